//! A workspace that can be made as it was, again and again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::{TestWorkspace, view};

/// A workspace with its state directory, and how all of it was once.
///
/// It stays where it is: a workspace is known by its path, and the directory itself is never made
/// anew. What did not change is left alone, with its inode and its times.
pub struct Sandbox {
    /// The workspace.
    pub ws: TestWorkspace,
    was: Directory,
}

/// What a user would miss: the files of the workspace, and the state of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Files, links and directories, with modes.
    pub files: view::View,
    /// HEAD, index, refs and the like.
    pub repository: view::View,
}

#[derive(Debug)]
struct Directory {
    mode: u32,
    entries: BTreeMap<OsString, Entry>,
}

#[derive(Debug)]
enum Entry {
    Directory(Directory),
    File { mode: u32, bytes: Vec<u8> },
    Link(PathBuf),
}

/// Where sandboxes are: in memory if there is a place for that, because a disk that is waited for
/// finds nothing more; else in the temporary directory.
pub fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match tempfile::tempdir_in(memory) {
        Ok(_) => memory.to_owned(),
        Err(_) => std::env::temp_dir(),
    }
}

impl Picture {
    /// What is there.
    pub fn of(ws: &TestWorkspace) -> Self {
        Self {
            files: view::worktree(ws.root()),
            repository: view::git_state(ws.root()),
        }
    }

    /// What is neither as one of these pictures has it, nor absent where one of them has nothing.
    pub fn strangers(&self, known: &[&Self]) -> Vec<String> {
        let files: Vec<_> = known.iter().map(|picture| &picture.files).collect();
        let repositories: Vec<_> = known.iter().map(|picture| &picture.repository).collect();
        let inside = self.repository.strangers(&repositories);
        let mut strangers = self.files.strangers(&files);
        strangers.extend(inside.into_iter().map(|path| format!(".git/{path}")));
        strangers
    }

    /// Whether there is a file or a link at a path of [`Picture::strangers`]. What is missing in
    /// the repository counts as something.
    pub fn has_bytes(&self, escaped: &str) -> bool {
        escaped.starts_with(".git/")
            || self.files.paths().iter().any(|path| path == escaped)
                && !self.files.line_of(escaped).ends_with('/')
    }

    /// The lines in which they differ; `None` if there are none.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let files = view::difference(&self.files, &other.files);
        let repository = view::difference(&self.repository, &other.repository);
        match (files, repository) {
            (None, None) => None,
            (files, repository) => {
                let both = [files, repository.map(|lines| format!(".git:\n{lines}"))];
                Some(both.into_iter().flatten().collect())
            }
        }
    }
}

impl Sandbox {
    /// The workspace, to be made as it is this moment.
    ///
    /// # Panics
    ///
    /// If there is something else than files, links and directories.
    pub fn new(mut ws: TestWorkspace) -> Self {
        // The harnesses say themselves what they think of the store.
        ws.damages_the_store();
        let was = Directory::read(ws.base()).expect("a workspace of a test can be read");
        Self { ws, was }
    }

    /// Makes everything as it was, the state directory and what lies outside included.
    ///
    /// # Panics
    ///
    /// If the disk does not do it.
    pub fn reset(&self) {
        self.was
            .restore(self.ws.base())
            .expect("a workspace of a test can be written");
    }

    /// Every path, below the directory that holds everything, that has not the content and the mode
    /// that it had, or came, or is gone. Of a directory that came or is gone it is the path alone.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    pub fn changed(&self) -> Vec<PathBuf> {
        let mut changed = Vec::new();
        self.was
            .changed(self.ws.base(), Path::new(""), &mut changed)
            .expect("a workspace of a test can be read");
        changed
    }
}

/// Does something in the workspace and beside it; then makes everything as it was.
///
/// # Panics
///
/// If the disk does not do it.
pub fn and_back<T>(ws: &TestWorkspace, work: impl FnOnce() -> T) -> T {
    let was = Directory::read(ws.base()).expect("a workspace of a test can be read");
    let answer = work();
    was.restore(ws.base())
        .expect("a workspace of a test can be written");
    answer
}

impl Directory {
    fn read(path: &Path) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let (path, meta) = (entry.path(), entry.metadata()?);
            let kind = meta.file_type();
            let value = if kind.is_dir() {
                Entry::Directory(Self::read(&path)?)
            } else if kind.is_symlink() {
                Entry::Link(fs::read_link(&path)?)
            } else if kind.is_file() {
                Entry::File {
                    mode: mode_of(&meta),
                    bytes: fs::read(&path)?,
                }
            } else {
                let what = format!("{} is something special", path.display());
                return Err(io::Error::other(what));
            };
            entries.insert(entry.file_name(), value);
        }
        let mode = mode_of(&path.symlink_metadata()?);
        Ok(Self { mode, entries })
    }

    /// Adds the paths that are not as they are here to `changed`; `rel` is where this directory is.
    fn changed(&self, path: &Path, rel: &Path, changed: &mut Vec<PathBuf>) -> io::Result<()> {
        if mode_of(&path.symlink_metadata()?) != self.mode {
            changed.push(rel.to_owned());
        }
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            if !self.entries.contains_key(&name) {
                changed.push(rel.join(name));
            }
        }
        for (name, entry) in &self.entries {
            let (path, rel) = (path.join(name), rel.join(name));
            let meta = path.symlink_metadata();
            let is_same = match entry {
                Entry::Directory(directory) if meta.as_ref().is_ok_and(fs::Metadata::is_dir) => {
                    directory.changed(&path, &rel, changed)?;
                    true
                }
                Entry::Directory(_) => false,
                Entry::File { mode, bytes } => is_file_with(&meta, bytes, &path, Some(*mode)),
                Entry::Link(target) => fs::read_link(&path).ok().as_ref() == Some(target),
            };
            if !is_same {
                changed.push(rel);
            }
        }
        Ok(())
    }

    /// Makes the directory at `path` like this one.
    fn restore(&self, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if !self.entries.contains_key(&entry.file_name()) {
                remove(&entry.path())?;
            }
        }
        for (name, entry) in &self.entries {
            let path = path.join(name);
            match entry {
                Entry::Directory(directory) => {
                    if !path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                        remove(&path)?;
                        fs::create_dir(&path)?;
                    }
                    directory.restore(&path)?;
                }
                Entry::File { mode, bytes } => restore_file(&path, *mode, bytes)?,
                Entry::Link(target) => {
                    if fs::read_link(&path).ok().as_ref() != Some(target) {
                        remove(&path)?;
                        symlink(target, &path)?;
                    }
                }
            }
        }
        if mode_of(&path.symlink_metadata()?) != self.mode {
            fs::set_permissions(path, Permissions::from_mode(self.mode))?;
        }
        Ok(())
    }
}

fn restore_file(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    if !is_file_with(&path.symlink_metadata(), bytes, path, None) {
        // Never into what is there: another name of it may lie in the user's repository.
        remove(path)?;
        fs::write(path, bytes)?;
    }
    if mode_of(&path.symlink_metadata()?) != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Whether a regular file is at `path`, of which `meta` is known, with these bytes and, where that
/// counts, this mode.
fn is_file_with(
    meta: &io::Result<fs::Metadata>,
    bytes: &[u8],
    path: &Path,
    mode: Option<u32>,
) -> bool {
    let size = u64::try_from(bytes.len()).expect("it fits into memory");
    let is_alike = |meta: &fs::Metadata| {
        meta.is_file() && meta.len() == size && mode.is_none_or(|mode| mode == mode_of(meta))
    };
    meta.as_ref().is_ok_and(is_alike) && fs::read(path).is_ok_and(|found| found == bytes)
}

/// Removes whatever is there, if anything is.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

fn mode_of(meta: &fs::Metadata) -> u32 {
    meta.permissions().mode() & 0o7777
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn everything_is_as_it_was_and_what_did_not_change_is_the_same_file() {
        let ws = TestWorkspace::repository();
        ws.write("dir/file", "x\n");
        ws.write_executable("tool", "y\n");
        ws.symlink("link", "tool");
        ws.write("kept", "z\n");
        let sandbox = Sandbox::new(ws);
        let ws = &sandbox.ws;
        let before = Picture::of(ws);
        let inode = ws.stat("kept").ino();
        ws.remove("dir");
        ws.write("dir", "a file\n");
        ws.chmod("tool", 0o600);
        ws.remove("link");
        ws.mkdir("link");
        ws.write("new/deep", "x\n");
        ws.git(["checkout", "-q", "-b", "other"]);
        fs::write(ws.outside().join("made"), "x").unwrap();
        assert!(before.difference(&Picture::of(ws)).is_some());
        let changed = sandbox.changed();
        for path in [
            "work/dir",
            "work/tool",
            "work/link",
            "work/new",
            "outside/made",
        ] {
            assert!(changed.contains(&path.into()), "{path}: {changed:?}");
        }
        assert!(!changed.contains(&"work/kept".into()), "{changed:?}");
        sandbox.reset();
        assert_eq!(sandbox.changed(), [""; 0].map(PathBuf::from));
        assert_eq!(before.difference(&Picture::of(ws)), None);
        assert!(!ws.outside().join("made").exists());
        assert_eq!(ws.stat("kept").ino(), inode);
    }

    #[test]
    fn a_file_with_two_names_is_not_written_through_one_of_them() {
        let ws = TestWorkspace::plain();
        ws.write("a", "1\n");
        ws.write("b", "2\n");
        let sandbox = Sandbox::new(ws);
        let ws = &sandbox.ws;
        ws.remove("b");
        ws.hard_link("a", &ws.path("b"));
        sandbox.reset();
        assert_eq!((ws.text("a"), ws.text("b")), ("1\n".into(), "2\n".into()));
    }
}
