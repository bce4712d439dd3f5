//! Which engines are alive: each holds a lock that the kernel releases when its process dies.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use stillframe_backends::{PathError, StateDir, open_regular};
use stillframe_disk::lock::{try_lock, unlock};

use crate::id::EngineId;

/// The sign of life of this engine, and a note of the workspaces that it has worked on.
///
/// Once it is shown, the kernel holds a lock on `engines/<id>.lock` in the state directory. An
/// engine that only reads shows none: nobody has to look after what it leaves.
#[derive(Debug)]
pub(crate) struct EngineLock {
    state_dir: StateDir,
    id: EngineId,
    shown: Mutex<Option<Shown>>,
    leaves_work: AtomicBool,
}

/// The file that says so.
#[derive(Debug)]
struct Shown {
    file: File,
    path: PathBuf,
    noted: HashSet<PathBuf>,
    /// Whether a power cut may take some of it.
    is_loose: bool,
}

/// An engine that died, with what it left. Nobody else can claim it while this value lives.
#[derive(Debug)]
pub(crate) struct DeadEngine {
    /// `None`: the name of its file is none.
    pub(crate) id: Option<EngineId>,
    /// The directories of the workspaces that it had worked on.
    pub(crate) workspaces: Vec<PathBuf>,
    path: PathBuf,
    _file: File,
}

fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("engines")
}

fn lock_path(state_dir: &Path, id: &EngineId) -> PathBuf {
    directory(state_dir).join(format!("{id}.lock"))
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).append(true).create_new(create);
    open_regular(options.mode(0o600), path)
}

impl EngineLock {
    /// The sign of life of the engine `id`, not shown yet.
    pub(crate) fn new(state_dir: &StateDir, id: &EngineId) -> Self {
        Self {
            state_dir: state_dir.clone(),
            id: id.clone(),
            shown: Mutex::default(),
            leaves_work: AtomicBool::new(false),
        }
    }

    /// Whether this engine may write at all.
    pub(crate) fn may_write(&self) -> bool {
        self.state_dir.is_writable()
    }

    /// Shows it, if it is not shown yet: before anything is written that tells of this engine.
    /// Fails where nothing is to be written.
    pub(crate) fn show(&self) -> Result<(), PathError> {
        self.with_shown(|_| Ok(()))
    }

    fn with_shown<T>(
        &self,
        then: impl FnOnce(&mut Shown) -> Result<T, PathError>,
    ) -> Result<T, PathError> {
        let state_dir = self.state_dir.path();
        if !self.state_dir.is_writable() {
            return Err(PathError::at("write in", state_dir)(
                self.state_dir.unwritable(),
            ));
        }
        let mut shown = self.shown.lock().unwrap_or_else(|e| e.into_inner());
        match &mut *shown {
            Some(shown) => then(shown),
            none => then(none.insert(Shown::make(state_dir, &self.id)?)),
        }
    }

    /// Notes, once, that this engine works on the workspace at `disk_path`. A power cut may take
    /// the note until [`EngineLock::make_notes_durable`].
    pub(crate) fn note_workspace(&self, disk_path: &Path) -> Result<(), PathError> {
        self.with_shown(|shown| shown.note(disk_path))
    }

    /// Makes what was noted survive a power cut.
    pub(crate) fn make_notes_durable(&self) -> Result<(), PathError> {
        self.with_shown(Shown::sync)
    }

    /// Something that a store has may lack its row: the next engine has to look.
    pub(crate) fn leave_work(&self) {
        self.leaves_work.store(true, Ordering::Relaxed);
    }

    /// Ends the sign of life: from here on this engine counts as dead. What it leaves for the next
    /// one to look at stays on record. Safe to repeat.
    ///
    /// What captures that were stopped had written is gone by then: the process may end right
    /// after.
    pub(crate) fn retire(&self) {
        stillframe_backends::wait_for_removals();
        let shown = self.shown.lock().unwrap_or_else(|e| e.into_inner());
        let Some(shown) = &*shown else {
            return;
        };
        // Best effort, both: a file that stays is looked at by the next engine, which finds
        // nothing, and the lock ends with the process at the latest.
        if !self.leaves_work.load(Ordering::Relaxed) {
            let _ = fs::remove_file(&shown.path);
        }
        let _ = unlock(&shown.file);
    }
}

impl Shown {
    fn make(state_dir: &Path, id: &EngineId) -> Result<Self, PathError> {
        let directory = directory(state_dir);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(PathError::at("make the directory", &directory))?;
        // Locked under a temporary name, and then renamed: another engine would treat an unlocked
        // file as a dead engine's.
        let staged = directory.join(format!(".{id}"));
        let path = lock_path(state_dir, id);
        let file = open(&staged, true).map_err(PathError::at("make", &staged))?;
        if !try_lock(&file).map_err(PathError::at("lock", &staged))? {
            let source = io::Error::from(io::ErrorKind::WouldBlock);
            return Err(PathError::at("lock", &staged)(source));
        }
        if let Err(e) = fs::rename(&staged, &path) {
            // This engine may try again.
            let _ = fs::remove_file(&staged);
            return Err(PathError::at("rename into", &path)(e));
        }
        Ok(Self {
            file,
            path,
            noted: HashSet::new(),
            is_loose: false,
        })
    }

    fn note(&mut self, disk_path: &Path) -> Result<(), PathError> {
        if self.noted.contains(disk_path) {
            return Ok(());
        }
        let mut line = disk_path.as_os_str().as_bytes().to_vec();
        // The one byte that no path has.
        line.push(0);
        (&self.file)
            .write_all(&line)
            .map_err(PathError::at("write", &self.path))?;
        self.is_loose = true;
        self.noted.insert(disk_path.to_owned());
        Ok(())
    }

    fn sync(&mut self) -> Result<(), PathError> {
        if self.is_loose {
            let sync = self.file.sync_all();
            sync.map_err(PathError::at("sync", &self.path))?;
        }
        self.is_loose = false;
        Ok(())
    }
}

impl DeadEngine {
    /// Everything was looked after.
    pub(crate) fn bury(self) -> Result<(), PathError> {
        fs::remove_file(&self.path).map_err(PathError::at("remove", &self.path))
    }
}

/// Claims the engines that died. Those that another engine has claimed are left out.
pub(crate) fn dead_engines(state_dir: &Path) -> Result<Vec<DeadEngine>, PathError> {
    let directory = directory(state_dir);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(PathError::at("list", &directory)(e)),
    };
    let mut dead = Vec::new();
    for entry in entries {
        let entry = entry.map_err(PathError::at("list", &directory))?;
        let path = entry.path();
        // What is no file is no engine's.
        if path.extension().is_none_or(|e| e != "lock")
            || !entry.file_type().is_ok_and(|found| found.is_file())
        {
            continue;
        }
        let mut file = match open(&path, false) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(PathError::at("open", &path)(e)),
        };
        if !try_lock(&file).map_err(PathError::at("lock", &path))? {
            continue;
        }
        // Somebody may have buried it between the two calls.
        if file.metadata().map(|m| m.nlink()).unwrap_or(0) == 0 {
            continue;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(PathError::at("read", &path))?;
        if bytes.last().is_none_or(|last| *last == 0) && !is_marked(&bytes) {
            // For those who wait for what it held. Best effort: only they depend on it.
            let _ = file.write_all(&[0]);
        }
        // What a torn write left has no NUL at its end.
        let mut workspaces: Vec<PathBuf> = bytes
            .split_inclusive(|b| *b == 0)
            .filter_map(|line| line.strip_suffix(&[0]))
            .filter(|line| !line.is_empty())
            .map(|line| PathBuf::from(OsString::from_vec(line.to_vec())))
            .collect();
        workspaces.dedup();
        let name = path.file_stem().and_then(|name| name.to_str());
        dead.push(DeadEngine {
            id: name.and_then(|name| name.parse().ok()),
            workspaces,
            path,
            _file: file,
        });
    }
    Ok(dead)
}

/// Whether what an engine noted says that it is dead: an empty line, which no path is.
fn is_marked(noted: &[u8]) -> bool {
    noted.split_inclusive(|b| *b == 0).any(|line| line == [0])
}

/// Whether the engine `id` is known to be dead, and another one looks after what it left, or did
/// until it died too.
pub(crate) fn is_looked_after(state_dir: &Path, id: &EngineId) -> Result<bool, PathError> {
    let path = lock_path(state_dir, id);
    let mut noted = Vec::new();
    match open(&path, false).and_then(|mut file| file.read_to_end(&mut noted)) {
        Ok(_) => Ok(is_marked(&noted)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(PathError::at("read", &path)(e)),
    }
}

/// Whether the engine `id` is alive. One whose lock is only being claimed counts as alive.
pub(crate) fn is_alive(state_dir: &Path, id: &EngineId) -> Result<bool, PathError> {
    let path = lock_path(state_dir, id);
    match open(&path, false) {
        Ok(file) => Ok(!try_lock(&file).map_err(PathError::at("lock", &path))?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(PathError::at("open", &path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(state_dir: &Path, id: &EngineId) -> EngineLock {
        EngineLock::new(&StateDir::open(state_dir).unwrap(), id)
    }

    fn shown(state_dir: &Path, id: &EngineId) -> EngineLock {
        let lock = new(state_dir, id);
        lock.show().unwrap();
        lock
    }

    #[test]
    fn an_engine_that_wrote_nothing_leaves_no_sign() {
        let state = tempfile::tempdir().unwrap();
        let id = EngineId::random();
        let lock = new(state.path(), &id);
        lock.retire();
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
        lock.show().unwrap();
        lock.show().unwrap();
        assert!(is_alive(state.path(), &id).unwrap());
    }

    #[test]
    fn an_engine_is_alive_exactly_as_long_as_it_holds_its_lock() {
        let state = tempfile::tempdir().unwrap();
        let id = EngineId::random();
        assert!(!is_alive(state.path(), &id).unwrap(), "it was never there");
        let lock = shown(state.path(), &id);
        assert!(is_alive(state.path(), &id).unwrap());
        assert!(dead_engines(state.path()).unwrap().is_empty());
        drop(lock);
        assert!(!is_alive(state.path(), &id).unwrap());
    }

    #[test]
    fn what_a_dead_engine_worked_on_is_known_to_exactly_one_heir() {
        let state = tempfile::tempdir().unwrap();
        let lock = shown(state.path(), &EngineId::random());
        let odd = PathBuf::from(OsString::from_vec(b"/a\n\xff b".to_vec()));
        lock.note_workspace(&odd).unwrap();
        lock.note_workspace(Path::new("/c")).unwrap();
        lock.note_workspace(&odd).unwrap();
        drop(lock);

        let mut dead = dead_engines(state.path()).unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].workspaces, [odd, PathBuf::from("/c")]);
        assert!(
            dead_engines(state.path()).unwrap().is_empty(),
            "it is claimed"
        );
        dead.pop().expect("there is one").bury().unwrap();
        assert!(dead_engines(state.path()).unwrap().is_empty(), "it is gone");
    }

    #[test]
    fn one_that_is_dead_is_known_to_be_looked_after_until_it_is_buried() {
        let state = tempfile::tempdir().unwrap();
        let id = EngineId::random();
        for noted in [&[][..], &["/a", "/b"]] {
            let lock = shown(state.path(), &id);
            for path in noted {
                lock.note_workspace(Path::new(path)).unwrap();
            }
            assert!(!is_looked_after(state.path(), &id).unwrap(), "it lives");
            drop(lock);
            assert!(!is_looked_after(state.path(), &id).unwrap(), "nobody does");
            // Also by the heir of an heir that has died.
            for _ in 0..2 {
                let dead = dead_engines(state.path()).unwrap();
                assert_eq!(dead[0].workspaces.len(), noted.len());
                assert!(is_looked_after(state.path(), &id).unwrap(), "{noted:?}");
                assert!(is_alive(state.path(), &id).unwrap(), "it is being claimed");
            }
            dead_engines(state.path())
                .unwrap()
                .remove(0)
                .bury()
                .unwrap();
            assert!(!is_looked_after(state.path(), &id).unwrap(), "it is gone");
        }
    }

    #[test]
    fn an_engine_that_retires_leaves_nothing_unless_it_has_to() {
        let state = tempfile::tempdir().unwrap();
        let lock = shown(state.path(), &EngineId::random());
        lock.retire();
        drop(lock);
        assert!(dead_engines(state.path()).unwrap().is_empty());

        let lock = shown(state.path(), &EngineId::random());
        lock.leave_work();
        lock.retire();
        assert_eq!(dead_engines(state.path()).unwrap().len(), 1);
    }
}
