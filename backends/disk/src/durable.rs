//! Durable writes: a file of the store is whole or absent, even after a power cut.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read as _, Seek as _, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};

use crate::directory::{self, Directory};
use crate::faults::Effect;
use crate::operation::Operation;
use crate::quota::Reserved;
use crate::temporary::Temporary;
use stillframe_model::error::{PathError, printable};
use stillframe_model::store_error::StoreError;

/// This many bytes are written between two checks for a cancellation.
pub const WRITTEN_AT_ONCE: usize = 4 << 20;

/// How the names of staged files of the store begin.
pub const STAGED_PREFIX: &str = ".tmp-";

/// A file that has no name yet which anybody looks for. Readable by the owner alone; dropping it
/// removes it.
#[derive(Debug)]
#[must_use = "dropping it removes the file"]
pub struct StagedFile {
    name: Temporary,
    file: File,
    /// As many bytes as it has.
    reserved: Reserved,
}

/// A [`StagedFile`] that is written and closed, so that there may be any number of them.
#[derive(Debug)]
#[must_use = "dropping it removes the file"]
pub struct ClosedFile {
    name: Temporary,
    reserved: Reserved,
}

impl StagedFile {
    /// Makes an empty file in `directory`, under a name that begins with `prefix`.
    pub fn create(op: &Operation, directory: &Path, prefix: &str) -> Result<Self, PathError> {
        Self::make(op, None, directory, prefix)
            .map_err(PathError::at("make a temporary file in", directory))
    }

    /// Makes an empty file in `directory`, which [`Directory::reap`] leaves alone.
    pub fn create_in(directory: &Directory) -> Result<Self, PathError> {
        let path = directory.disk_path();
        let make = || loop {
            let made = Self::make(&directory.op, Some(&directory.fd), path, "")?;
            if directory::claim(&made.file)? {
                return Ok(made);
            }
        };
        make().map_err(PathError::at::<io::Error>("make a temporary file in", path))
    }

    fn make(
        op: &Operation,
        directory: Option<&Arc<OwnedFd>>,
        path: &Path,
        prefix: &str,
    ) -> io::Result<Self> {
        check(op)?;
        op.effect(Effect::Stage(path))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let (name, file) = Temporary::make(op, directory, path, prefix, |at, name| {
            let mode = Mode::RUSR | Mode::WUSR;
            let open = || rustix::fs::openat(at, name, flags, mode);
            Ok(File::from(rustix::io::retry_on_intr(open)?))
        })?;
        let reserved = op.reserve();
        Ok(Self {
            name,
            file,
            reserved,
        })
    }

    /// Where it lies for the time being.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// To read it, or to have the kernel fill it.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Writes `bytes` at `position`, in bytes from the beginning.
    pub fn write_at(&self, bytes: &[u8], position: u64) -> Result<(), PathError> {
        if seeded_bug!("short-write-taken-for-whole") {
            return self.change("write", |file| file.write_at(bytes, position).map(drop));
        }
        let mut at = position;
        for piece in bytes.chunks(WRITTEN_AT_ONCE) {
            let end = at + piece.len() as u64;
            self.change("write", |file| {
                self.reserved.up_to(end)?;
                file.write_all_at(piece, at)
            })?;
            at = end;
        }
        Ok(())
    }

    /// Cuts it off behind `length` bytes.
    pub fn truncate(&self, length: u64) -> Result<(), PathError> {
        self.change("truncate", |file| file.set_len(length))?;
        self.reserved.down_to(length);
        Ok(())
    }

    /// Reserves what it needs to have `length` bytes: for who fills it through
    /// [`StagedFile::as_file`].
    pub fn reserve(&self, length: u64) -> Result<(), PathError> {
        let reserved = self.reserved.up_to(length);
        reserved.map_err(PathError::at("fill", self.path()))
    }

    /// Takes the right to write from everybody.
    pub fn make_read_only(&self) -> Result<(), PathError> {
        self.change("make read-only", |file| {
            file.set_permissions(Permissions::from_mode(0o400))
        })
    }

    /// Makes its bytes survive a power cut. With a large file, a cancellation ends the wait.
    pub fn sync(&self) -> Result<(), PathError> {
        let sync = || match self.as_file().metadata()?.len() >= LONG_SYNC_BYTES {
            true => unless_cancelled(self.name.op(), self.as_file(), |file| file.sync_all()),
            false => self.as_file().sync_all(),
        };
        check(self.name.op())
            .and_then(|()| self.name.op().effect(Effect::Sync(self.path())))
            .and_then(|()| sync())
            .map_err(PathError::at("sync", self.path()))
    }

    /// Gives it its name, in place of what had it. A power cut may undo that until the directory is
    /// synced.
    pub fn rename(self, to: &Path) -> Result<(), PathError> {
        self.close().rename(to)
    }

    /// As [`StagedFile::rename`]: the name is `name` in `directory`.
    pub fn rename_in(mut self, directory: &Directory, name: &str) -> Result<(), PathError> {
        let to = directory.path_of(name);
        let at = directory.fd.as_fd();
        self.name
            .rename(at, Path::new(name), &to, RenameFlags::empty())
            .map_err(PathError::at("rename into", to))?;
        self.reserved.keep();
        Ok(())
    }

    /// Gives it a name that nothing has; the file comes back with the error.
    pub fn rename_to_new(mut self, to: &Path) -> Result<(), (io::Error, Self)> {
        match self.name.rename(CWD, to, to, RenameFlags::NOREPLACE) {
            Ok(()) => self.reserved.keep(),
            Err(error) => return Err((error, self)),
        }
        Ok(())
    }

    /// Lets go of the descriptor.
    pub fn close(self) -> ClosedFile {
        ClosedFile {
            name: self.name,
            reserved: self.reserved,
        }
    }

    fn change(
        &self,
        operation: &'static str,
        change: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), PathError> {
        check(self.name.op())
            .and_then(|()| self.name.op().effect(Effect::Write(self.path())))
            .and_then(|()| change(self.as_file()))
            .map_err(PathError::at(operation, self.path()))
    }
}

/// Appends; errors do not name the path.
impl Write for StagedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check(self.name.op())?;
        self.name.op().effect(Effect::Write(self.path()))?;
        let mut file = self.as_file();
        let piece = &bytes[..bytes.len().min(WRITTEN_AT_ONCE)];
        if self.reserved.is_limited() {
            let end = file.stream_position()? + piece.len() as u64;
            self.reserved.up_to(end)?;
        }
        file.write(piece)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ClosedFile {
    /// Where it lies for the time being.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Makes its bytes survive a power cut.
    pub fn sync(&self) -> Result<(), PathError> {
        sync_file(self.name.op(), self.path())
    }

    /// Gives it its name, in place of what had it. A power cut may undo that until the directory is
    /// synced.
    pub fn rename(mut self, to: &Path) -> Result<(), PathError> {
        self.name
            .rename(CWD, to, to, RenameFlags::empty())
            .map_err(PathError::at("rename into", to))?;
        self.reserved.keep();
        Ok(())
    }
}

/// Gives the file `name` in `source` a further name in `directory`, which must be on the same file
/// system, as if it had been staged there. A link is not followed: it is itself linked.
pub fn stage_link(
    op: &Operation,
    source: BorrowedFd<'_>,
    name: &str,
    directory: &Path,
    prefix: &str,
) -> io::Result<ClosedFile> {
    let reserved = op.reserve();
    let (name, ()) = Temporary::make(op, None, directory, prefix, |at, path| {
        check(op)?;
        if reserved.is_limited() {
            let found = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
            reserved.linked(found.st_size.unsigned_abs())?;
        }
        op.effect(Effect::Link(path))?;
        Ok(rustix::fs::linkat(
            source,
            name,
            at,
            path,
            AtFlags::empty(),
        )?)
    })?;
    Ok(ClosedFile { name, reserved })
}

/// Replaces the file at `path` by `bytes`: staged beside it, synced, renamed, and its directory
/// synced. A reader sees the old bytes or the new ones, on `Err` either of them.
pub fn replace(op: &Operation, path: &Path, bytes: &[u8]) -> Result<(), PathError> {
    let staged = stage_for(op, path)?;
    staged.write_at(bytes, 0)?;
    // Before the rename: a name must never point at bytes that a power cut can take.
    staged.sync()?;
    staged.rename(path)?;
    sync_directory(op, directory_of(path))
}

/// As [`replace`], without a sync: after a power cut the file may be whole, old, damaged or gone.
pub fn replace_unsynced(op: &Operation, path: &Path, bytes: &[u8]) -> Result<(), PathError> {
    let staged = stage_for(op, path)?;
    staged.write_at(bytes, 0)?;
    staged.rename(path)
}

/// An empty file that can be given the name `path`.
pub fn stage_for(op: &Operation, path: &Path) -> Result<StagedFile, PathError> {
    StagedFile::create(op, directory_of(path), &staged_prefix(path))
}

/// Removes the files that were to be given the name `path` by a process that was killed. Nobody
/// else may be about to give it.
pub fn remove_staged_for(op: &Operation, path: &Path) -> Result<(), PathError> {
    let (directory, prefix) = (directory_of(path), staged_prefix(path));
    for entry in fs::read_dir(directory).map_err(PathError::at("list", directory))? {
        let entry = entry.map_err(PathError::at("list", directory))?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_bytes())
        {
            remove_file(op, &entry.path())?;
        }
    }
    Ok(())
}

fn staged_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    format!("{STAGED_PREFIX}{}-", name.to_string_lossy())
}

fn directory_of(path: &Path) -> &Path {
    path.parent()
        .expect("a file of the store lies in a directory")
}

/// How files are made that only the owner may read, whatever the umask.
pub fn private_file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Makes the directory `path` and what is missing above it, readable by the owner alone, whatever
/// the umask. A power cut may take them until the directories above are synced.
pub fn make_private(op: &Operation, path: &Path) -> Result<(), PathError> {
    for directory in missing(path).into_iter().rev() {
        let made = op
            .effect(Effect::MakeDirectory(directory))
            .and_then(|()| DirBuilder::new().mode(0o700).create(directory));
        match made {
            // Another process made it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            other => other.map_err(PathError::at("make the directory", directory))?,
        }
    }
    Ok(())
}

/// As [`make_private`], and durably.
pub fn make_private_durably(op: &Operation, path: &Path) -> Result<(), PathError> {
    let missing = missing(path);
    make_private(op, path)?;
    missing.into_iter().try_for_each(|made| {
        // Of a relative path the first part lies in the current directory.
        let above = made.parent().filter(|above| !above.as_os_str().is_empty());
        sync_directory(op, above.unwrap_or(Path::new(".")))
    })
}

/// Those directories of `path` and above it that are not there, the deepest first: `path` too, if
/// it is something else.
fn missing(path: &Path) -> Vec<&Path> {
    let above = path.ancestors().skip(1);
    let missing = above.take_while(|above| !above.as_os_str().is_empty() && !above.exists());
    match path.is_dir() {
        true => Vec::new(),
        false => std::iter::once(path).chain(missing).collect(),
    }
}

/// Makes the bytes of the file at `path` survive a power cut.
pub fn sync_file(op: &Operation, path: &Path) -> Result<(), PathError> {
    op.effect(Effect::Sync(path))
        .and_then(|()| File::open(path)?.sync_all())
        .map_err(PathError::at("sync", path))
}

/// Makes the bytes of some files survive a power cut: all at once, so that a file system with a
/// journal writes that once for all of them.
pub fn sync_together(files: &[&StagedFile]) -> Result<(), PathError> {
    let Some((own, others)) = files.split_first() else {
        return Ok(());
    };
    std::thread::scope(|scope| {
        let spawn = |file| {
            let helper = std::thread::Builder::new();
            (
                file,
                helper.spawn_scoped(scope, move || StagedFile::sync(file)),
            )
        };
        let helpers: Vec<_> = others.iter().copied().map(spawn).collect();
        let own = own.sync();
        let others = helpers.into_iter().map(|(file, helper)| match helper {
            Ok(helper) => helper
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread can be had: one after the other.
            Err(_) => file.sync(),
        });
        std::iter::once(own)
            .chain(others.collect::<Vec<_>>())
            .collect()
    })
}

/// Makes the names in `directory` survive a power cut.
pub fn sync_directory(op: &Operation, directory: &Path) -> Result<(), PathError> {
    op.effect(Effect::SyncDirectory(directory))
        .and_then(|()| File::open(directory)?.sync_all())
        .map_err(PathError::at("sync the directory", directory))
}

/// Makes the name of `directory`, a part of a workspace's store, survive a power cut, with those of
/// the store and of the directory of all stores, which may be as new.
pub fn sync_above(op: &Operation, directory: &Path) -> Result<(), PathError> {
    let above = directory.ancestors().skip(1).take(3);
    above
        .filter(|above| !above.as_os_str().is_empty())
        .try_for_each(|above| sync_directory(op, above))
}

/// Makes everything on the file system of `directory` survive a power cut. A cancellation ends the
/// wait.
pub fn sync_file_system(op: &Operation, directory: &Path) -> Result<(), PathError> {
    let sync = |file: &File| Ok(rustix::fs::syncfs(file.as_fd())?);
    op.effect(Effect::SyncFileSystem(directory))
        .and_then(|()| unless_cancelled(op, &File::open(directory)?, sync))
        .map_err(PathError::at("sync the file system of", directory))
}

/// Fails if the operation was cancelled.
fn check(op: &Operation) -> io::Result<()> {
    Ok(op.check()?)
}

/// Syncing less than this takes no longer than starting a thread that waits for the sync.
const LONG_SYNC_BYTES: u64 = 8 << 20;

/// How often a waiting sync checks for a cancellation.
const CHECK_SYNC_EVERY: Duration = Duration::from_millis(10);

/// The most cancelled syncs that may still be under way. Further syncs are waited for to their end,
/// so that a disk that does not answer does not use up all threads.
const MAX_LEFT_SYNCS: usize = 8;

static LEFT_SYNCS: AtomicUsize = AtomicUsize::new(0);

/// Does `sync`, which the kernel cannot interrupt, on a separate thread, and stops waiting for it
/// when the operation is cancelled. The thread ends when the kernel is done.
fn unless_cancelled(
    op: &Operation,
    file: &File,
    sync: fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    if !op.may_be_cancelled() || LEFT_SYNCS.load(Ordering::Relaxed) >= MAX_LEFT_SYNCS {
        return sync(file);
    }
    let (done, is_done) = mpsc::sync_channel(1);
    let own = file.try_clone()?;
    // Set by whichever comes first: the end of the sync, or the cancellation. The second one sees
    // it.
    let is_settled = Arc::new(AtomicBool::new(false));
    let of_helper = Arc::clone(&is_settled);
    let helper = std::thread::Builder::new().spawn(move || {
        let synced = sync(&own);
        drop(own);
        let _ = done.send(synced);
        if of_helper.swap(true, Ordering::AcqRel) {
            LEFT_SYNCS.fetch_sub(1, Ordering::Relaxed);
        }
    });
    if helper.is_err() {
        return sync(file);
    }
    loop {
        match is_done.recv_timeout(CHECK_SYNC_EVERY) {
            Ok(synced) => return synced,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("it panicked")),
        }
        if let Err(interrupted) = op.check() {
            LEFT_SYNCS.fetch_add(1, Ordering::Relaxed);
            if is_settled.swap(true, Ordering::AcqRel) {
                LEFT_SYNCS.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(interrupted.into());
        }
    }
}

/// Removes the file or link at `path`; that there is none is fine.
pub fn remove_file(op: &Operation, path: &Path) -> Result<(), PathError> {
    match op
        .effect(Effect::Remove(path))
        .and_then(|()| fs::remove_file(path))
    {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PathError::at("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Whether the file of the store at `path` has exactly these bytes. It is never held in memory
/// whole.
pub fn holds(path: &Path, bytes: &[u8]) -> Result<bool, PathError> {
    // A FIFO in its place would be waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path)
        .map_err(PathError::at("open", path))?;
    let meta = file.metadata().map_err(PathError::at("look at", path))?;
    if !meta.is_file() || meta.len() != bytes.len() as u64 {
        return Ok(false);
    }
    let mut piece = vec![0; bytes.len().min(256 * 1024)];
    for expected in bytes.chunks(256 * 1024) {
        let found = &mut piece[..expected.len()];
        match file.read_exact(found) {
            Ok(()) if found == expected => {}
            Ok(()) => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(PathError::at("read", path)(e)),
        }
    }
    Ok(true)
}

/// Reads a file of the store; `None` if there is none.
///
/// One that is longer than `max_bytes`, or no regular file, is `Corrupt` and is not read: what was
/// damaged must cost neither more memory nor more time than what is whole.
pub fn read(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, StoreError> {
    // A FIFO in its place would be waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(PathError::at("open", path)(e).into()),
    };
    let corrupt = |detail: String| StoreError::corrupt(printable(path), detail);
    let meta = file.metadata().map_err(PathError::at("look at", path))?;
    if !meta.is_file() {
        return Err(corrupt("it is no file".to_owned()));
    }
    let too_long = |length: u64| corrupt(format!("it has {length} bytes, {max_bytes} are allowed"));
    if meta.len() > max_bytes {
        return Err(too_long(meta.len()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    // It may grow meanwhile.
    let read = (&mut file)
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(PathError::at("read", path))?;
    match read as u64 > max_bytes {
        true => Err(too_long(read as u64)),
        false => Ok(Some(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::interrupt::Interrupt;

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(read(&path, 10).unwrap(), None);
        fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read(&path, 10).unwrap().unwrap(), [7; 10]);
        // More than any machine has memory for: to read it would end the process.
        let file = File::options().write(true).open(&path).unwrap();
        for length in [11, 1 << 42] {
            file.set_len(length).unwrap();
            let error = read(&path, 10).unwrap_err();
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
    }

    #[test]
    fn only_a_file_of_the_same_bytes_holds_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        // More than is compared at a time.
        let bytes: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
        for length in [0, 1, 256 * 1024, bytes.len()] {
            let bytes = &bytes[..length];
            fs::write(&path, bytes).unwrap();
            assert!(holds(&path, bytes).unwrap());
            let longer = [bytes, b"x"].concat();
            assert!(!holds(&path, &longer).unwrap(), "it was cut short");
            fs::write(&path, &longer).unwrap();
            assert!(!holds(&path, bytes).unwrap(), "it has more");
            if let Some(last) = length.checked_sub(1) {
                let mut other = bytes.to_vec();
                other[last] ^= 1;
                fs::write(&path, &other).unwrap();
                assert!(!holds(&path, bytes).unwrap(), "the last byte is another");
            }
        }
        assert!(!holds(directory.path(), b"").unwrap(), "it is no file");
        assert!(holds(&directory.path().join("none"), b"").is_err());
    }

    #[test]
    fn what_is_no_file_is_neither_read_nor_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        for path in [&path, directory.path(), Path::new("/dev/zero")] {
            let error = read(path, 1 << 20).unwrap_err();
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        }
    }

    #[test]
    fn directories_are_made_for_the_owner_alone_and_may_be_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/c");
        for _ in 0..2 {
            make_private(&Operation::unbounded(), &path).unwrap();
            for made in path.ancestors().take(3) {
                let mode = fs::metadata(made).unwrap().permissions().mode();
                assert_eq!(mode & 0o077, 0, "{}", made.display());
            }
        }
        fs::write(path.join("file"), "x").unwrap();
        for taken in ["file", "file/below"].map(|name| path.join(name)) {
            let error = make_private(&Operation::unbounded(), &taken).unwrap_err();
            assert_eq!(error.path, taken, "it is the one that was asked for");
        }
    }

    /// Syncs that are held up until a test lets them go.
    static HELD_UP: Mutex<()> = Mutex::new(());

    #[test]
    fn a_sync_that_the_disk_does_not_answer_is_not_waited_for_by_who_is_told_to_stop() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("file")).unwrap();
        let slow = |_: &File| {
            drop(HELD_UP.lock());
            Ok(())
        };
        let held_up = HELD_UP.lock().unwrap();
        let soon = Interrupt::after(Duration::from_millis(1));
        let told = Operation::unbounded().cancelled_by(&soon);
        for _ in 0..MAX_LEFT_SYNCS {
            let error = unless_cancelled(&told, &file, slow).unwrap_err();
            assert!(
                stillframe_model::interrupted::Interrupted::in_io(&error).is_some(),
                "{error}"
            );
        }
        assert_eq!(LEFT_SYNCS.load(Ordering::Relaxed), MAX_LEFT_SYNCS);
        drop(held_up);
        // They end, each for itself; nobody but the test looks at that.
        while LEFT_SYNCS.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        let never = Operation::unbounded().cancelled_by(&Interrupt::never());
        unless_cancelled(&never, &file, slow).unwrap();
    }
}
