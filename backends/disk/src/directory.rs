//! Directories of ours as descriptors: no path is looked up twice, and no link is followed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stillframe_model::error::PathError;

use crate::faults::Effect;
use crate::lock::{LockFile, try_lock};
use crate::operation::Operation;

/// `openat`, repeated if a signal interrupts it.
fn open_at(directory: &OwnedFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::io::retry_on_intr(|| rustix::fs::openat(directory, name, flags, FILE_MODE))
}

/// A directory that is held open for an operation. It belongs to the user of this process, unless
/// it is only read in.
#[derive(Debug)]
pub struct Directory {
    pub(crate) op: Operation,
    pub(crate) fd: Arc<OwnedFd>,
    /// The user that everything below it has to belong to.
    owner: u32,
    disk_path: PathBuf,
}

/// What lies under a name.
#[derive(Debug)]
pub enum Opened {
    /// Nothing at all.
    Nothing,
    /// A regular file, open for reading, and its length in bytes.
    File(File, u64),
    /// A link, a directory, a FIFO or the like. It was neither followed nor waited for.
    Other,
}

impl Directory {
    /// Opens the directory at `path`, whose last name must not be a link. `None` if there is
    /// nothing.
    pub fn open(op: &Operation, path: &Path) -> Result<Option<Self>, PathError> {
        let opened = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty());
        let me = rustix::process::geteuid().as_raw();
        Self::from_kernel(op, opened, path.to_owned(), Some(me))
    }

    /// As [`Directory::open`], whoever it belongs to: to read in it.
    pub fn open_to_read(op: &Operation, path: &Path) -> Result<Option<Self>, PathError> {
        let opened = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty());
        Self::from_kernel(op, opened, path.to_owned(), None)
    }

    /// `expected`: whom it has to belong to, if that matters.
    fn from_kernel(
        op: &Operation,
        opened: rustix::io::Result<OwnedFd>,
        disk_path: PathBuf,
        expected: Option<u32>,
    ) -> Result<Option<Self>, PathError> {
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(PathError::at("open the directory", disk_path)(errno)),
        };
        let owner = rustix::fs::fstat(&fd)
            .map_err(PathError::at("look at", &disk_path))?
            .st_uid;
        if let Some(expected) = expected.filter(|expected| owner != *expected) {
            let me = rustix::process::geteuid().as_raw();
            let reason = match expected == me {
                true => format!("it belongs to user {owner}, this is user {me}"),
                false => format!("it belongs to user {owner}, and the store to user {expected}"),
            };
            let source = io::Error::new(io::ErrorKind::PermissionDenied, reason);
            return Err(PathError::at("trust", disk_path)(source));
        }
        Ok(Some(Self {
            op: op.clone(),
            fd: Arc::new(fd),
            owner,
            disk_path,
        }))
    }

    /// Where it was when it was opened.
    pub fn disk_path(&self) -> &Path {
        &self.disk_path
    }

    /// Where `name` is, for messages.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.disk_path.join(name)
    }

    /// The directory `name` in this one; `None` if there is nothing.
    pub fn subdirectory(&self, name: &str) -> Result<Option<Self>, PathError> {
        let opened = open_at(&self.fd, name, DIRECTORY_FLAGS);
        Self::from_kernel(&self.op, opened, self.path_of(name), Some(self.owner))
    }

    /// The directory `name` in this one, made if there was none, and there to stay.
    pub fn make_subdirectory(&self, name: &str) -> Result<Self, PathError> {
        let path = self.path_of(name);
        let made = self
            .op
            .effect(Effect::MakeDirectory(&path))
            .and_then(|()| Ok(rustix::fs::mkdirat(&self.fd, name, Mode::RWXU)?));
        let is_new = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            made => made
                .map(|()| true)
                .map_err(PathError::at("make the directory", &path))?,
        };
        let made = self
            .subdirectory(name)?
            .ok_or(Errno::NOENT)
            .map_err(PathError::at("open the directory", path))?;
        if is_new {
            made.make_private()?;
        }
        // Also if it was there: whoever made it may have died before the sync.
        self.sync()?;
        Ok(made)
    }

    /// Takes all access from everybody but the owner.
    pub fn make_private(&self) -> Result<(), PathError> {
        let path = &self.disk_path;
        let stat = rustix::fs::fstat(&self.fd).map_err(PathError::at("look at", path))?;
        if Mode::from_raw_mode(stat.st_mode) == Mode::RWXU {
            return Ok(());
        }
        self.op
            .effect(Effect::Write(path))
            .and_then(|()| Ok(rustix::fs::fchmod(&self.fd, Mode::RWXU)?))
            .map_err(PathError::at("make private", path))
    }

    /// Makes the names in this directory survive a power cut.
    pub fn sync(&self) -> Result<(), PathError> {
        let sync = |fd: &OwnedFd| -> io::Result<()> {
            self.op.effect(Effect::SyncDirectory(&self.disk_path))?;
            Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(fd))?)
        };
        sync(&self.fd)
            .or_else(|_| {
                // A descriptor reports a failed sync once, and then success whatever became of
                // the names, so only another one can be asked again.
                let again = open_at(&self.fd, ".", DIRECTORY_FLAGS)?;
                sync(&again)
            })
            .map_err(PathError::at("sync the directory", &self.disk_path))
    }

    /// Opens what lies under `name` for reading.
    pub fn file(&self, name: &str) -> Result<Opened, PathError> {
        self.opened(name, OFlags::RDONLY)
    }

    fn opened(&self, name: &str, access: OFlags) -> Result<Opened, PathError> {
        let fd = match open_at(&self.fd, name, access | FILE_FLAGS) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(Opened::Nothing),
            // In this order: a link; a socket; a directory, if it is to be written.
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Ok(Opened::Other),
            Err(errno) => return Err(PathError::at("open", self.path_of(name))(errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(PathError::at("look at", self.path_of(name)))?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                Opened::File(fd.into(), u64::try_from(stat.st_size).unwrap_or(0))
            }
            _ => Opened::Other,
        })
    }

    /// The first `max_bytes` and one of the file `name`; `None` if there is no such name. What is
    /// no file reads as empty.
    pub fn read(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, PathError> {
        let mut bytes = Vec::new();
        match self.file(name)? {
            Opened::Nothing => return Ok(None),
            Opened::Other => {}
            Opened::File(file, _) => {
                file.take(max_bytes + 1)
                    .read_to_end(&mut bytes)
                    .map_err(PathError::at("read", self.path_of(name)))?;
            }
        }
        Ok(Some(bytes))
    }

    /// The length in bytes of the file `name`; `None` if there is none, or something else.
    pub fn file_bytes(&self, name: &str) -> Result<Option<u64>, PathError> {
        let stat = self.stat(name)?;
        let file = stat.filter(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        Ok(file.map(|stat| u64::try_from(stat.st_size).unwrap_or(0)))
    }

    /// Whether anything at all lies under `name`.
    pub fn has(&self, name: &str) -> Result<bool, PathError> {
        Ok(self.stat(name)?.is_some())
    }

    fn stat(&self, name: &str) -> Result<Option<rustix::fs::Stat>, PathError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(PathError::at("look at", self.path_of(name))(errno)),
        }
    }

    /// Every name in the directory, in the order of their bytes.
    pub fn names(&self) -> Result<Vec<OsString>, PathError> {
        let failed = || PathError::at("list", &self.disk_path);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name != *"." && name != *".." {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes sure that there is an empty file `name`.
    pub fn touch(&self, name: &str) -> Result<(), PathError> {
        let path = self.path_of(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | FILE_FLAGS;
        self.op
            .effect(Effect::Write(&path))
            .and_then(|()| {
                let file = open_at(&self.fd, name, flags)?;
                Ok(rustix::fs::fchmod(&file, FILE_MODE)?)
            })
            .map_err(PathError::at("make", path))
    }

    /// Removes the name of a file or link; whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool, PathError> {
        let path = self.path_of(name);
        let removed = self
            .op
            .effect(Effect::Remove(&path))
            .and_then(|()| Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?));
        match removed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed
                .map(|()| true)
                .map_err(PathError::at("remove", path)),
        }
    }

    /// Locks the file `name`, which is made if there is none; waits at most `timeout`. The inner
    /// error is who has the lock.
    pub fn lock(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<Result<LockFile, String>, PathError> {
        let path = self.path_of(name);
        let opened = open_at(&self.fd, name, OFlags::RDWR | OFlags::CREATE | FILE_FLAGS);
        let file = opened
            .and_then(|fd| {
                // A umask that takes from the owner would shut out whoever locks next.
                if Mode::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FILE_MODE {
                    rustix::fs::fchmod(&fd, FILE_MODE)?;
                }
                Ok(fd.into())
            })
            .map_err(PathError::at("open the lock file", &path))?;
        LockFile::lock(&self.op, file, &path, timeout)
    }

    /// Removes the staged file `name` unless somebody is still at work on it. Answers with its
    /// length in bytes if it was removed.
    pub fn reap(&self, name: &str) -> Result<Option<u64>, PathError> {
        let (file, bytes) = match self.opened(name, OFlags::RDWR)? {
            Opened::File(file, bytes) => (file, bytes),
            // No store puts anything else there, so it is not ours to remove.
            Opened::Nothing | Opened::Other => return Ok(None),
        };
        if !try_lock(&file).map_err(PathError::at("lock", self.path_of(name)))? {
            return Ok(None);
        }
        Ok(self.remove(name)?.then_some(bytes))
    }
}

/// Locks a file that was just staged, which says that somebody is at work on it, and takes access
/// from everybody else; `false`: [`Directory::reap`] was quicker.
pub(crate) fn claim(file: &File) -> io::Result<bool> {
    if !try_lock(file)? {
        return Ok(false);
    }
    rustix::fs::fchmod(file.as_fd(), FILE_MODE)?;
    Ok(rustix::fs::fstat(file.as_fd())?.st_nlink > 0)
}

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// NONBLOCK: a FIFO would wait for somebody at its other end.
const FILE_FLAGS: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
