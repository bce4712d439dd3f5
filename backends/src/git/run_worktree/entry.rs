//! The entry of a run's work tree in the repository: git's files about a linked work tree, below
//! `worktrees` in the common directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::descriptor;
use crate::error::{PathError, printable};
use crate::faults::Effect;
use crate::git::directory::{Create, give_to, open_below, open_directory, read_file};
use crate::git::put_error::PutError;
use crate::git::rollback::reflog::{self, Line, Missing};
use crate::operation::Operation;

/// Where in the common directory entries are.
const ENTRIES: &str = "worktrees";
/// git leaves an entry alone that has a file of this name. It has why.
const LOCKED: &str = "locked";
/// Says that what is in the entry is ours, and not whole.
const MARK: &[u8] = b"stillframe is making or removing this work tree\n";
/// What a file has before it gets its name.
const NEW: &str = "stillframe-new";
const MAX_BYTES: u64 = 64 << 10;

/// What is in the place of a run's entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// The run's: it names the run's directory and has the run's branch checked out.
    Whole,
    /// The run's, half made or half removed.
    Marked,
    /// Something else: why, as a clause.
    Other(String),
}

/// The place of a run's entry.
pub(super) struct Entry<'a> {
    pub(super) op: &'a Operation,
    common: OwnedFd,
    path: PathBuf,
    /// Below the common directory.
    name: String,
    branch: &'a str,
    directory: &'a Path,
}

impl<'a> Entry<'a> {
    /// That of the run with this branch, whose last part is a name of its own, and this directory.
    pub(super) fn of(
        op: &'a Operation,
        common_dir: &Path,
        branch: &'a str,
        directory: &'a Path,
    ) -> Result<Self, PutError> {
        let name = name_of(branch);
        Ok(Self {
            op,
            common: open_directory(common_dir)?,
            path: common_dir.join(&name),
            name,
            branch,
            directory,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at it.
    pub(super) fn find(&self) -> Result<Found, PutError> {
        let fd = match open_below(self.op, self.common.as_fd(), &self.name, Create::No) {
            Ok(Some(fd)) => fd,
            Ok(None) => return Ok(Found::Nothing),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(self.other("is no directory")),
            Err(errno) => return Err(self.error("open")(errno).into()),
        };
        let read = |name: &str| read_file(fd.as_fd(), name.as_bytes(), MAX_BYTES, &self.path);
        // Of one that was begun and is not marked yet.
        let is_ours = |name: &OsString| name == NEW;
        if read(LOCKED)?.as_deref() == Some(MARK) || self.names(&fd)?.iter().all(is_ours) {
            return Ok(Found::Marked);
        }
        let (Some(gitdir), Some(head)) = (read("gitdir")?, read("HEAD")?) else {
            return Ok(self.other("is half of an entry"));
        };
        if self.path.join(path_of(&gitdir)) != self.dot_git() {
            return Ok(self.other("is the entry of another work tree"));
        }
        if head != self.head() {
            return Ok(self.other("has something else checked out than the run's branch"));
        }
        Ok(Found::Whole)
    }

    /// Makes it, or what is missing of it, and marks it. On `Ok` it survives a power cut.
    pub(super) fn make(&self) -> Result<(), PutError> {
        let fd = open_below(self.op, self.common.as_fd(), &self.name, Create::Yes);
        let fd = fd.map_err(self.error("make"))?;
        let fd = fd.expect("made where it was missing");
        // The mark first: from then on it is known whose it is, and git leaves it alone.
        self.put(&fd, LOCKED, MARK)?;
        let gitdir = [self.dot_git().as_os_str().as_bytes(), b"\n"].concat();
        self.put(&fd, "commondir", b"../..\n")?;
        self.put(&fd, "HEAD", &self.head())?;
        self.put(&fd, "gitdir", &gitdir)?;
        let above = open_below(self.op, self.common.as_fd(), ENTRIES, Create::No);
        let above = above.map_err(self.error("open"))?;
        for fd in [Some(&fd), above.as_ref(), Some(&self.common)]
            .into_iter()
            .flatten()
        {
            self.op
                .effect(Effect::SyncDirectory(&self.path))
                .and_then(|()| Ok(rustix::fs::fsync(fd)?))
                .map_err(self.error("sync"))?;
        }
        Ok(())
    }

    /// Gives it an index, and a first line in the log of its HEAD.
    pub(super) fn fill(
        &self,
        index: &[u8],
        line: &Line<'_>,
        missing: Missing,
    ) -> Result<(), PutError> {
        let fd = self.open()?;
        self.put(&fd, "index", index)?;
        if reflog::last(self.op, fd.as_fd(), "HEAD") != line.to {
            reflog::add(self.op, fd.as_fd(), "HEAD", line, missing);
        }
        Ok(())
    }

    /// Takes the mark away: it is whole.
    pub(super) fn unmark(&self) -> Result<(), PutError> {
        let fd = self.open()?;
        let read = read_file(fd.as_fd(), LOCKED.as_bytes(), MAX_BYTES, &self.path)?;
        match read.as_deref() == Some(MARK) {
            true => Ok(self.unlink(fd.as_fd(), LOCKED.as_ref())?),
            // Somebody has locked it, who has a reason.
            false => Ok(()),
        }
    }

    /// Removes it. What of it is locked, by git or by who uses git, is not, and then nothing is.
    /// Where git keeps the repositories of the submodules of this work tree.
    pub(super) fn modules(&self) -> PathBuf {
        self.path.join("modules")
    }

    /// Whether there are some.
    pub(super) fn has_modules(&self) -> bool {
        std::fs::symlink_metadata(self.modules()).is_ok()
    }

    pub(super) fn remove(&self) -> Result<(), PutError> {
        let fd = self.open()?;
        let names = self.names(&fd)?;
        if let Some(lock) = names
            .iter()
            .find(|name| name.as_bytes().ends_with(b".lock"))
        {
            return Err(PutError::Locked {
                what: printable(&self.path.join(lock)),
            });
        }
        // The mark goes last: what a crash leaves is known to be ours.
        self.put(&fd, LOCKED, MARK)?;
        for name in names.iter().filter(|name| *name != LOCKED) {
            self.remove_at(fd.as_fd(), name)?;
        }
        self.unlink(fd.as_fd(), LOCKED.as_ref())?;
        let above = open_below(self.op, self.common.as_fd(), ENTRIES, Create::No);
        let Some(above) = above.map_err(self.error("open"))? else {
            return Ok(());
        };
        let name = self.path.file_name().expect("it was joined");
        self.remove_directory(above.as_fd(), name)?;
        rustix::fs::fsync(&above).map_err(self.error("sync"))?;
        Ok(())
    }

    fn open(&self) -> Result<OwnedFd, PutError> {
        let fd = open_below(self.op, self.common.as_fd(), &self.name, Create::No);
        let fd = fd.map_err(self.error("open"))?;
        fd.ok_or_else(|| self.error("open")(Errno::NOENT).into())
    }

    fn dot_git(&self) -> PathBuf {
        self.directory.join(".git")
    }

    fn head(&self) -> Vec<u8> {
        format!("ref: {}\n", self.branch).into_bytes()
    }

    fn other(&self, why: &str) -> Found {
        Found::Other(format!("{} {why}", printable(&self.path)))
    }

    fn names(&self, fd: &OwnedFd) -> Result<Vec<OsString>, PathError> {
        names_in(fd.as_fd()).map_err(self.error("list"))
    }

    /// Writes a file, which is whole or as it was, and synced.
    fn put(&self, fd: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), PathError> {
        let path = self.path.join(name);
        let like = rustix::fs::fstat(fd).map_err(self.error("look at"))?;
        let put = || -> io::Result<()> {
            self.op.effect(Effect::Write(&path))?;
            let flags = OFlags::WRONLY
                | OFlags::CREATE
                | OFlags::TRUNC
                | OFlags::NOFOLLOW
                | OFlags::CLOEXEC;
            let made = rustix::fs::openat(fd, NEW, flags, Mode::from_raw_mode(0o600))?;
            let mut file = File::from(made);
            file.write_all(bytes)?;
            give_to(file.as_fd(), &like)?;
            file.set_permissions(std::fs::Permissions::from_mode(like.st_mode & 0o666))?;
            file.sync_all()?;
            self.op.effect(Effect::Rename {
                from: &self.path.join(NEW),
                to: &path,
            })?;
            Ok(rustix::fs::renameat(fd, NEW, fd, name)?)
        };
        put().map_err(PathError::at("write", &path))
    }

    /// Removes what has this name, with all below it.
    fn remove_at(&self, directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), PathError> {
        let stat = match descriptor::lstat_at(directory, name.as_bytes()) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(self.error("look at")(errno)),
        };
        if stat.file_type() != FileType::Directory {
            return self.unlink(directory, name);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let below = rustix::fs::openat(directory, name, flags, Mode::empty());
        let below = below.map_err(self.error("open"))?;
        for name in names_in(below.as_fd()).map_err(self.error("list"))? {
            self.remove_at(below.as_fd(), &name)?;
        }
        self.remove_directory(directory, name)
    }

    fn unlink(&self, directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), PathError> {
        self.unlink_as(directory, name, AtFlags::empty())
    }

    fn remove_directory(&self, above: BorrowedFd<'_>, name: &OsStr) -> Result<(), PathError> {
        self.unlink_as(above, name, AtFlags::REMOVEDIR)
    }

    fn unlink_as(
        &self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        flags: AtFlags,
    ) -> Result<(), PathError> {
        let removed = self.op.effect(Effect::Remove(&self.path));
        let removed = removed.and_then(|()| Ok(rustix::fs::unlinkat(directory, name, flags)?));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.error("remove")(error))
            }
            _ => Ok(()),
        }
    }

    fn error<E: Into<io::Error>>(
        &self,
        operation: &'static str,
    ) -> impl FnOnce(E) -> PathError + use<E> {
        PathError::at(operation, self.path.clone())
    }
}

/// Below the common directory. Its name comes from the branch's, so that one run has one.
pub(super) fn name_of(branch: &str) -> String {
    let (_, leaf) = crate::git::repository::split(branch);
    format!("{ENTRIES}/stillframe-{leaf}")
}

fn names_in(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn path_of(text: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(text.trim_ascii_end().to_vec()))
}
