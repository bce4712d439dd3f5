//! A directory of the user's repository, held open; its files are read without following links and
//! without ever waiting for one.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::RepositoryError;
use crate::descriptor::{self, Stat};
use crate::error::PathError;
use crate::identity::Identity;
use crate::identity::KnownDirectory;

/// A directory of the user's repository: the git directory, the common one, or one with objects.
///
/// Names below it have `/` between their components. A link among them, or anything that is neither
/// file nor directory, is [`RepositoryError::Hostile`]; nothing of the kind is opened.
#[derive(Debug)]
pub(super) struct GitDir {
    fd: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

/// What stands at a name.
#[derive(Debug)]
pub(super) enum Found {
    /// A regular file, open for reading.
    File(File, Stat),
    Directory,
    Nothing,
}

/// What stands at a name, not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Nothing,
}

/// A component of a name, and the directory that holds it.
#[derive(Debug)]
struct Place<'n> {
    /// `None`: the directory that the whole name starts from.
    parent: Option<OwnedFd>,
    name: &'n str,
    start: usize,
    end: usize,
}

impl<'n> Place<'n> {
    fn component(&self) -> &'n str {
        &self.name[self.start..self.end]
    }

    fn so_far(&self) -> &'n str {
        &self.name[..self.end]
    }
}

impl GitDir {
    /// Opens the directory at `path`, which should be free of links.
    pub(super) fn open(path: &Path) -> Result<Self, RepositoryError> {
        let fd = rustix::fs::open(path, DIRECTORY, Mode::empty())
            .map_err(PathError::at("open", path))?;
        Self::from_fd(fd, path.to_owned())
    }

    fn from_fd(fd: OwnedFd, path: PathBuf) -> Result<Self, RepositoryError> {
        let stat = descriptor::fstat(&fd).map_err(PathError::at("look at", &path))?;
        Ok(Self { fd, path, stat })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn identity(&self) -> Identity {
        Identity {
            device: self.stat.device,
            inode: self.stat.inode,
        }
    }

    /// What it is known again by.
    pub(super) fn known_as(&self) -> KnownDirectory {
        let looked = rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let born = looked.filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0);
        KnownDirectory {
            identity: self.identity(),
            born_ns: born.and_then(|found| {
                let seconds = u64::try_from(found.stx_btime.tv_sec).ok()?;
                let nanos = seconds.checked_mul(1_000_000_000)?;
                nanos.checked_add(u64::from(found.stx_btime.tv_nsec))
            }),
        }
    }

    /// The user it belongs to.
    pub(super) fn owner(&self) -> u32 {
        self.stat.owner
    }

    /// `name` as it is on disk.
    pub(super) fn disk_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What stands at `name`.
    pub(super) fn kind(&self, name: &str) -> Result<Kind, RepositoryError> {
        match self.parent(name)? {
            Some(place) => self.kind_at(&place),
            None => Ok(Kind::Nothing),
        }
    }

    /// Opens the file at `name`.
    pub(super) fn find(&self, name: &str) -> Result<Found, RepositoryError> {
        let Some(place) = self.parent(name)? else {
            return Ok(Found::Nothing);
        };
        // Looked at before it is opened: opening a device can have effects of its own.
        match self.kind_at(&place)? {
            Kind::Nothing => return Ok(Found::Nothing),
            Kind::Directory => return Ok(Found::Directory),
            Kind::File => {}
        }
        let parent = place.parent.as_ref().unwrap_or(&self.fd);
        let file = match descriptor::open_file_at(parent.as_fd(), place.component().as_bytes()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(Errno::LOOP | Errno::NXIO) => {
                return Err(self.hostile(name, "it was exchanged while it was being opened"));
            }
            Err(errno) => return Err(PathError::at("open", self.disk_path(name))(errno).into()),
        };
        let stat =
            descriptor::fstat(&file).map_err(PathError::at("look at", self.disk_path(name)))?;
        if !stat.file_type().is_file() {
            return Err(self.hostile(name, "it was exchanged while it was being opened"));
        }
        Ok(Found::File(file, stat))
    }

    /// Reads the file at `name`; `None` if there is none. One that is longer than `max_bytes` is
    /// [`RepositoryError::TooLarge`].
    pub(super) fn read(
        &self,
        name: &str,
        max_bytes: u64,
    ) -> Result<Option<Vec<u8>>, RepositoryError> {
        Ok(self
            .read_with_stat(name, max_bytes)?
            .map(|(bytes, _)| bytes))
    }

    /// As [`GitDir::read`], with what `fstat` said of the file before it was read.
    pub(super) fn read_with_stat(
        &self,
        name: &str,
        max_bytes: u64,
    ) -> Result<Option<(Vec<u8>, Stat)>, RepositoryError> {
        let (file, stat) = match self.find(name)? {
            Found::File(file, stat) => (file, stat),
            Found::Nothing => return Ok(None),
            Found::Directory => {
                return Err(RepositoryError::Damaged {
                    path: self.disk_path(name),
                    reason: "it is a directory".to_owned(),
                });
            }
        };
        let too_large = |actual| RepositoryError::TooLarge {
            what: format!(
                "the size of {}",
                crate::error::printable(&self.disk_path(name))
            ),
            limit: max_bytes,
            actual,
        };
        if stat.size > max_bytes {
            return Err(too_large(stat.size));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(stat.size).unwrap_or(0));
        // It may grow while it is read, and a file of /proc says that it is empty.
        file.take(max_bytes.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(PathError::at("read", self.disk_path(name)))?;
        if bytes.len() as u64 > max_bytes {
            return Err(too_large(bytes.len() as u64));
        }
        Ok(Some((bytes, stat)))
    }

    /// Opens the directory at `name`; `None` if there is none.
    pub(super) fn directory(&self, name: &str) -> Result<Option<Self>, RepositoryError> {
        let Some(place) = self.parent(name)? else {
            return Ok(None);
        };
        match self.step(&place)? {
            Some(fd) => Self::from_fd(fd, self.disk_path(name)).map(Some),
            None => Ok(None),
        }
    }

    /// The names in this directory that `keep` wants, at most `max_names` of them.
    pub(super) fn list(
        &self,
        max_names: usize,
        mut keep: impl FnMut(&[u8]) -> bool,
    ) -> Result<Vec<String>, RepositoryError> {
        let mut names = Vec::new();
        let entries =
            rustix::fs::Dir::read_from(&self.fd).map_err(PathError::at("list", &self.path))?;
        for entry in entries {
            let entry = entry.map_err(PathError::at("list", &self.path))?;
            let name = entry.file_name().to_bytes();
            if !keep(name) {
                continue;
            }
            if names.len() == max_names {
                return Err(RepositoryError::TooLarge {
                    what: format!(
                        "the number of files in {}",
                        crate::error::printable(&self.path)
                    ),
                    limit: max_names as u64,
                    actual: max_names as u64 + 1,
                });
            }
            // What git itself names is ASCII.
            if let Ok(name) = std::str::from_utf8(name) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Opens the directory that holds `name`; `None` if there is none.
    fn parent<'n>(&self, name: &'n str) -> Result<Option<Place<'n>>, RepositoryError> {
        let mut place = Place {
            parent: None,
            name,
            start: 0,
            end: 0,
        };
        loop {
            let rest = &name[place.start..];
            place.end = place.start + rest.find('/').unwrap_or(rest.len());
            if place.end == name.len() {
                return Ok(Some(place));
            }
            match self.step(&place)? {
                Some(directory) => place.parent = Some(directory),
                None => return Ok(None),
            }
            place.start = place.end + 1;
        }
    }

    /// Opens the directory at `place`; `None` if there is none, or a file.
    fn step(&self, place: &Place<'_>) -> Result<Option<OwnedFd>, RepositoryError> {
        let parent = place.parent.as_ref().unwrap_or(&self.fd);
        match rustix::fs::openat(parent, place.component(), DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            // Linux says "not a directory" of a link, too.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                self.kind_at(place)?;
                Ok(None)
            }
            Err(errno) => Err(PathError::at("open", self.disk_path(place.so_far()))(errno).into()),
        }
    }

    fn kind_at(&self, place: &Place<'_>) -> Result<Kind, RepositoryError> {
        let parent = place.parent.as_ref().unwrap_or(&self.fd);
        let stat = match descriptor::lstat_at(parent.as_fd(), place.component().as_bytes()) {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Kind::Nothing),
            Err(errno) => {
                let path = self.disk_path(place.so_far());
                return Err(PathError::at("look at", path)(errno).into());
            }
        };
        match stat.file_type() {
            FileType::RegularFile => Ok(Kind::File),
            FileType::Directory => Ok(Kind::Directory),
            other => Err(self.hostile(place.so_far(), trap(other))),
        }
    }

    fn hostile(&self, name: &str, reason: impl Into<String>) -> RepositoryError {
        RepositoryError::Hostile {
            path: self.disk_path(name),
            reason: reason.into(),
        }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Reads a file of the user's own, such as `~/.gitconfig`, which may well be a link. `None` if
/// there is none, or nothing that can be read as a file of at most `max_bytes`.
pub(super) fn read_own_file(path: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= max_bytes).then_some(bytes)
}

/// Reads a regular file that may have been put there as a trap: `None` if it is anything else,
/// longer than `max_bytes`, or cannot be read. A link is not followed.
pub(super) fn read_plain_file(path: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path.parent()?, flags, Mode::empty()).ok()?;
    let name = path.file_name()?.as_bytes();
    // Looked at before it is opened: opening a device can have effects of its own.
    if !descriptor::lstat_at(directory.as_fd(), name)
        .ok()?
        .file_type()
        .is_file()
    {
        return None;
    }
    let file = descriptor::open_file_at(directory.as_fd(), name).ok()?;
    if !descriptor::fstat(&file).ok()?.file_type().is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= max_bytes).then_some(bytes)
}

/// A path that a file of the repository holds.
pub(super) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// What makes something that is neither file nor directory a trap.
pub(super) fn trap(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => {
            "it is a symbolic link, and none is followed there; what it leads to can take its place"
        }
        FileType::Fifo => "it is a FIFO",
        FileType::Socket => "it is a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "it is a device",
        _ => "it is neither a file nor a directory",
    }
}
