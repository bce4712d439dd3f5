//! The name of a staged file, until it has the one that is looked for.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use crate::faults::Effect;
use crate::operation::Operation;

/// A name that nobody else picks. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Temporary {
    op: Operation,
    /// The directory that it is in, if that is held open.
    directory: Option<Arc<OwnedFd>>,
    /// Empty once there is nothing to be removed.
    path: PathBuf,
}

impl Temporary {
    /// Has `make` make something in the directory at `path`, under a name that begins with
    /// `prefix`.
    pub(crate) fn make<T>(
        op: &Operation,
        directory: Option<&Arc<OwnedFd>>,
        path: &Path,
        prefix: &str,
        make: impl Fn(BorrowedFd<'_>, &Path) -> io::Result<T>,
    ) -> io::Result<(Self, T)> {
        let random = || RandomState::new().hash_one(std::process::id());
        loop {
            let name = format!("{prefix}{:016x}{:016x}", random(), random());
            let mut made = Self {
                op: op.clone(),
                directory: directory.cloned(),
                path: path.join(name),
            };
            let (at, name) = made.place();
            match make(at, name) {
                Ok(answer) => return Ok((made, answer)),
                // It is another's, or there is none.
                Err(e) => {
                    made.path.clear();
                    if e.kind() != io::ErrorKind::AlreadyExists {
                        return Err(e);
                    }
                }
            }
        }
    }

    pub(crate) fn op(&self) -> &Operation {
        &self.op
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is, as the kernel is told.
    fn place(&self) -> (BorrowedFd<'_>, &Path) {
        let name = self.path.file_name().map(Path::new);
        match self.directory.as_deref().zip(name) {
            Some((directory, name)) => (directory.as_fd(), name),
            None => (CWD, &self.path),
        }
    }

    /// Gives what has this name another, `to` in the directory `at`, whose path is `path`.
    ///
    /// Each caller is a place of its own for tests that disturb calls by where they are made.
    #[cfg_attr(any(test, feature = "testing"), track_caller)]
    pub(crate) fn rename(
        &mut self,
        at: BorrowedFd<'_>,
        to: &Path,
        path: &Path,
        flags: RenameFlags,
    ) -> io::Result<()> {
        let from = &self.path;
        self.op.effect(Effect::Rename { from, to: path })?;
        let (own, from) = self.place();
        let renamed = match flags.is_empty() {
            true => rustix::fs::renameat(own, from, at, to),
            false => rustix::fs::renameat_with(own, from, at, to, flags),
        };
        match renamed {
            // Not every file system can see to it that nothing is replaced. This name goes when
            // it is dropped.
            Err(Errno::INVAL | Errno::NOSYS) if flags == RenameFlags::NOREPLACE => {
                return Ok(rustix::fs::linkat(own, from, at, to, AtFlags::empty())?);
            }
            renamed => renamed?,
        }
        self.path.clear();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A process that died cleans up nothing: a test of that makes this call fail too.
        let is_there = !self.path.as_os_str().is_empty();
        if is_there && self.op.effect(Effect::Remove(&self.path)).is_ok() {
            let (at, name) = self.place();
            let _ = rustix::fs::unlinkat(at, name, AtFlags::empty());
        }
    }
}
