//! Writing all files of a directory that nobody has a name for yet.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::contents::ContentError;
use crate::error::PathError;
use crate::faults::Effect;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::staging::Filled;
use crate::store_error::StoreError;

/// A directory that is being filled. Threads share it; each works with a [`Hand`] of its own.
#[derive(Debug)]
pub struct NewFiles<'a> {
    op: &'a Operation,
    fd: OwnedFd,
    path: PathBuf,
    /// Shown in errors in place of `path`.
    told: &'a Path,
    /// What every file says of when it was last written.
    times: Timestamps,
}

impl<'a> NewFiles<'a> {
    /// Those of the directory at `path`, which is there and has nothing that comes. Each file says
    /// that it was last written at `modified_ns`, in nanoseconds since the Unix epoch. Errors name
    /// the path that the file has once `path` is renamed to `told`.
    pub fn of(
        op: &'a Operation,
        path: &Path,
        told: &'a Path,
        modified_ns: i64,
    ) -> Result<Self, PathError> {
        let fd = rustix::fs::open(path, DIRECTORY, Mode::empty())
            .map_err(PathError::at("open", told))?;
        Ok(Self {
            op,
            fd,
            path: path.to_owned(),
            told,
            times: Timestamps {
                last_access: Timespec {
                    tv_sec: 0,
                    tv_nsec: rustix::fs::UTIME_OMIT,
                },
                last_modification: Timespec {
                    tv_sec: modified_ns.div_euclid(1_000_000_000),
                    tv_nsec: modified_ns.rem_euclid(1_000_000_000) as _,
                },
            },
        })
    }

    /// For one thread.
    pub fn hand(&self) -> Hand<'_> {
        Hand {
            files: self,
            open: Vec::new(),
        }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Puts one entry after another into its place. It holds the directories open that lead to the last
/// one, so that entries are best put in the order of their paths.
#[derive(Debug)]
pub struct Hand<'a> {
    files: &'a NewFiles<'a>,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl Hand<'_> {
    /// Makes a file with what `fill` writes, and answers with what the kernel says of it then.
    /// Nothing is synced.
    pub fn file(
        &mut self,
        path: &RelPath,
        is_executable: bool,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), ContentError>,
    ) -> Result<Stat, ContentError> {
        let files = self.files;
        files.op.check().map_err(StoreError::from)?;
        let failed = |source: io::Error| ContentError::Sink(source);
        let directory = self.enter(path.parent_bytes())?;
        files
            .op
            .effect(Effect::Stage(&files.path))
            .map_err(failed)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // As git: the umask says the rest.
        let mode = Mode::from_raw_mode(if is_executable { 0o777 } else { 0o666 });
        let name = OsStr::from_bytes(path.name());
        let made = rustix::fs::openat(directory, name, flags, mode);
        let mut filled = Filled::new(files.op, File::from(made.map_err(|e| failed(e.into()))?));
        fill(&mut filled)?;
        let file = filled.done().map_err(failed)?;
        let stat =
            rustix::fs::futimens(&file, &files.times).and_then(|()| rustix::fs::fstat(&file));
        stat.map_err(|e| failed(e.into()))
    }

    /// Makes a link with this text.
    pub fn link(&mut self, path: &RelPath, text: &[u8]) -> Result<Stat, ContentError> {
        let files = self.files;
        files.op.check().map_err(StoreError::from)?;
        let directory = self.enter(path.parent_bytes())?;
        let name = OsStr::from_bytes(path.name());
        let make = || {
            files.op.effect(Effect::Stage(&files.path))?;
            rustix::fs::symlinkat(OsStr::from_bytes(text), directory, name)?;
            rustix::fs::utimensat(directory, name, &files.times, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(rustix::fs::statat(
                directory,
                name,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        };
        make().map_err(ContentError::Sink)
    }

    /// Makes a directory, with those above it.
    pub fn directory(&mut self, path: &RelPath) -> Result<(), ContentError> {
        self.enter(path.as_bytes()).map(|_| ())
    }

    /// What an error is about, as a path.
    pub fn told(&self, path: &RelPath) -> PathBuf {
        self.files.told.join(path.as_path())
    }

    /// Opens a directory, made where it is missing.
    fn enter(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, ContentError> {
        let files = self.files;
        let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        let mut depth = 0;
        let missing = loop {
            match (names.next(), self.open.get(depth)) {
                (Some(name), Some((open, _))) if name == open => depth += 1,
                (next, _) => break next,
            }
        };
        self.open.truncate(depth);
        for name in missing.into_iter().chain(names) {
            let above = self.open.last().map_or(&files.fd, |(_, fd)| fd).as_fd();
            let path = OsStr::from_bytes(name);
            let make = || {
                files.op.effect(Effect::MakeDirectory(&files.path))?;
                match rustix::fs::mkdirat(above, path, Mode::from_raw_mode(0o777)) {
                    // Another thread was faster.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                Ok(rustix::fs::openat(above, path, DIRECTORY, Mode::empty())?)
            };
            let fd = make().map_err(ContentError::Sink)?;
            self.open.push((name.to_vec(), fd));
        }
        Ok(self.open.last().map_or(&files.fd, |(_, fd)| fd).as_fd())
    }
}
