//! The store's directories as descriptors: no path is looked up twice, and no link is followed.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stillframe_disk::lock::try_lock;

use crate::error::PathError;

/// Passed by every call that changes the disk, so that a test can see their order and make any one
/// of them fail. `place` is the directory that the call is about.
#[cfg_attr(not(test), expect(unused_variables, reason = "for tests"))]
fn before(change: &'static str, place: &Path) -> rustix::io::Result<()> {
    #[cfg(test)]
    super::faults::strike(change, place)?;
    Ok(())
}

/// `openat`, repeated if a signal interrupts it.
fn open_at(directory: &OwnedFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::io::retry_on_intr(|| rustix::fs::openat(directory, name, flags, FILE_MODE))
}

/// A directory of the store, held open. It belongs to the user of this process, unless it is only
/// read in.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    /// The user that everything below it has to belong to.
    owner: u32,
    disk_path: PathBuf,
}

/// What lies under a name.
#[derive(Debug)]
pub(crate) enum Opened {
    Nothing,
    /// A regular file, open for reading, and its length in bytes.
    File(File, u64),
    /// A link, a directory, a FIFO or the like. It was neither followed nor waited for.
    Other,
}

impl Directory {
    /// Opens the directory at `path`, whose last name must not be a link. `None` if there is
    /// nothing.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, PathError> {
        Self::from_kernel(
            rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty()),
            path.to_owned(),
            Some(rustix::process::geteuid().as_raw()),
        )
    }

    /// As [`Directory::open`], whoever it belongs to: to read in it.
    pub(crate) fn open_to_read(path: &Path) -> Result<Option<Self>, PathError> {
        let opened = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty());
        Self::from_kernel(opened, path.to_owned(), None)
    }

    /// `expected`: whom it has to belong to, if that matters.
    fn from_kernel(
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
            fd,
            owner,
            disk_path,
        }))
    }

    /// Where it was when it was opened.
    pub(crate) fn disk_path(&self) -> &Path {
        &self.disk_path
    }

    /// Where `name` is, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.disk_path.join(name)
    }

    /// The directory `name` in this one; `None` if there is nothing.
    pub(crate) fn subdirectory(&self, name: &str) -> Result<Option<Self>, PathError> {
        let opened = open_at(&self.fd, name, DIRECTORY_FLAGS);
        Self::from_kernel(opened, self.path_of(name), Some(self.owner))
    }

    /// The directory `name` in this one, made if there was none, and there to stay.
    pub(crate) fn make_subdirectory(&self, name: &str) -> Result<Self, PathError> {
        let path = || self.path_of(name);
        let is_new = match before("make directory", &self.disk_path)
            .and_then(|()| rustix::fs::mkdirat(&self.fd, name, Mode::RWXU))
        {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(PathError::at("make the directory", path())(errno)),
        };
        let made = self
            .subdirectory(name)?
            .ok_or(Errno::NOENT)
            .map_err(PathError::at("open the directory", path()))?;
        if is_new {
            made.make_private()?;
        }
        // Also if it was there: whoever made it may have died before the sync.
        self.sync()?;
        Ok(made)
    }

    /// Takes all access from everybody but the owner.
    pub(crate) fn make_private(&self) -> Result<(), PathError> {
        let path = &self.disk_path;
        let stat = rustix::fs::fstat(&self.fd).map_err(PathError::at("look at", path))?;
        if Mode::from_raw_mode(stat.st_mode) == Mode::RWXU {
            return Ok(());
        }
        before("make private", &self.disk_path)
            .and_then(|()| rustix::fs::fchmod(&self.fd, Mode::RWXU))
            .map_err(PathError::at("make private", path))
    }

    /// Makes the names in this directory survive a power cut.
    pub(crate) fn sync(&self) -> Result<(), PathError> {
        let sync = |fd: &OwnedFd| {
            before("sync directory", &self.disk_path)
                .and_then(|()| rustix::io::retry_on_intr(|| rustix::fs::fsync(fd)))
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
    pub(crate) fn file(&self, name: &str) -> Result<Opened, PathError> {
        self.opened(name, OFlags::RDONLY)
    }

    fn opened(&self, name: &str, access: OFlags) -> Result<Opened, PathError> {
        // NONBLOCK: a FIFO would wait for somebody at its other end.
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match open_at(&self.fd, name, flags) {
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
    pub(crate) fn read(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, PathError> {
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
    pub(crate) fn file_bytes(&self, name: &str) -> Result<Option<u64>, PathError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Some(u64::try_from(stat.st_size).unwrap_or(0)))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(PathError::at("look at", self.path_of(name))(errno)),
        }
    }

    /// Whether anything at all lies under `name`.
    pub(crate) fn has(&self, name: &str) -> Result<bool, PathError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(PathError::at("look at", self.path_of(name))(errno)),
        }
    }

    /// Every name in the directory, in the order of their bytes.
    pub(crate) fn names(&self) -> Result<Vec<OsString>, PathError> {
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
    pub(crate) fn touch(&self, name: &str) -> Result<(), PathError> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        before("make", &self.disk_path)
            .and_then(|()| open_at(&self.fd, name, flags))
            .and_then(|fd| rustix::fs::fchmod(&fd, FILE_MODE))
            .map_err(PathError::at("make", self.path_of(name)))
    }

    /// Removes the name of a file or link; whether there was one.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, PathError> {
        match before("remove", &self.disk_path)
            .and_then(|()| rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()))
        {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(PathError::at("remove", self.path_of(name))(errno)),
        }
    }

    /// Opens the lock file `name`, making it if there is none.
    pub(crate) fn lock_file(&self, name: &str) -> Result<File, PathError> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        open_at(&self.fd, name, flags)
            .and_then(|fd| {
                // A umask that takes from the owner would shut out whoever locks next.
                if Mode::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FILE_MODE {
                    rustix::fs::fchmod(&fd, FILE_MODE)?;
                }
                Ok(fd.into())
            })
            .map_err(PathError::at("open the lock file", self.path_of(name)))
    }

    /// Makes a file in this directory that is to be renamed to its place.
    pub(crate) fn stage(&self) -> Result<Staged<'_>, PathError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let name = random_name();
            let fd = match before("stage", &self.disk_path)
                .and_then(|()| open_at(&self.fd, &name, flags))
            {
                Ok(fd) => fd,
                Err(Errno::EXIST) => continue,
                Err(errno) => {
                    let failed = PathError::at("make a temporary file in", &self.disk_path);
                    return Err(failed(errno));
                }
            };
            let staged = Staged {
                directory: self,
                name,
                file: fd.into(),
                is_published: false,
            };
            // The lock says that somebody is still at work on the file. The collector takes the
            // same lock before it removes one, so it may have been quicker.
            if staged.claim()? {
                return Ok(staged);
            }
        }
    }

    /// Removes the staged file `name` unless somebody is still at work on it. Answers with its
    /// length in bytes if it was removed.
    pub(crate) fn reap(&self, name: &str) -> Result<Option<u64>, PathError> {
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

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A name that nobody else picks: the randomness of the process, and a count within it.
fn random_name() -> String {
    let part = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", part(), part())
}

/// A file that has no place yet. Dropped, it is removed.
#[derive(Debug)]
#[must_use = "dropping it removes the file"]
pub(crate) struct Staged<'d> {
    directory: &'d Directory,
    name: String,
    file: File,
    is_published: bool,
}

/// A staged file whose bytes survive a power cut; only such a file can be given a name.
#[derive(Debug)]
#[must_use = "dropping it removes the file"]
pub(crate) struct Synced<'d>(Staged<'d>);

impl<'d> Staged<'d> {
    /// Adds `bytes` to the file's end.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), PathError> {
        before("write", &self.directory.disk_path)
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(bytes))
            .map_err(PathError::at("write", self.path()))
    }

    /// Makes the bytes survive a power cut.
    pub(crate) fn sync(self) -> Result<Synced<'d>, PathError> {
        if seeded_bug!("artifact-not-synced") {
            return Ok(Synced(self));
        }
        before("sync file", &self.directory.disk_path)
            .map_err(io::Error::from)
            .and_then(|()| self.file.sync_all())
            .map_err(PathError::at("sync", self.path()))?;
        Ok(Synced(self))
    }

    /// Locks the file, and says whether it still has its name.
    fn claim(&self) -> Result<bool, PathError> {
        if !try_lock(&self.file).map_err(PathError::at("lock", self.path()))? {
            return Ok(false);
        }
        rustix::fs::fchmod(&self.file, FILE_MODE)
            .and_then(|()| rustix::fs::fstat(self.file.as_fd()))
            .map(|stat| stat.st_nlink > 0)
            .map_err(PathError::at("look at", self.path()))
    }

    fn path(&self) -> PathBuf {
        self.directory.path_of(&self.name)
    }
}

impl Synced<'_> {
    /// Gives the file its name, in place of what had it.
    pub(crate) fn publish(mut self, directory: &Directory, name: &str) -> Result<(), PathError> {
        let staged = &mut self.0;
        before("rename", &directory.disk_path)
            .and_then(|()| {
                rustix::fs::renameat(&staged.directory.fd, &staged.name, &directory.fd, name)
            })
            .map_err(PathError::at("rename into", directory.path_of(name)))?;
        staged.is_published = true;
        Ok(())
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed here is removed by the collector.
            let _ = self.directory.remove(&self.name);
        }
    }
}

/// What is at the path of a store's root. A link is not followed.
pub(crate) enum Root {
    Nothing,
    Directory { owner: u32, me: u32 },
    Link,
    Other,
}

/// Looks at `path` without opening it.
pub(crate) fn look_at(path: &Path) -> Result<Root, PathError> {
    let stat = match rustix::fs::lstat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Root::Nothing),
        // A file is where a directory should lead there.
        Err(Errno::NOTDIR) => return Ok(Root::Other),
        Err(errno) => return Err(PathError::at("look at", path)(errno)),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Root::Directory {
            owner: stat.st_uid,
            me: rustix::process::geteuid().as_raw(),
        },
        FileType::Symlink => Root::Link,
        _ => Root::Other,
    })
}

/// Makes the directory `path` and what is missing above it, for the owner alone, and there to
/// stay.
pub(crate) fn make_root(path: &Path) -> Result<(), PathError> {
    let mut missing = Vec::new();
    for directory in path.ancestors() {
        match rustix::fs::lstat(directory) {
            Ok(_) => break,
            Err(Errno::NOENT) => missing.push(directory),
            Err(errno) => return Err(PathError::at("look at", directory)(errno)),
        }
    }
    for directory in missing.into_iter().rev() {
        match before("make root", directory).and_then(|()| rustix::fs::mkdir(directory, Mode::RWXU))
        {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(PathError::at("make the directory", directory)(errno)),
        }
        let parent = directory.parent().unwrap_or(directory);
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(PathError::at("sync the directory", parent))?;
    }
    Ok(())
}
