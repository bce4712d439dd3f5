//! Protecting an artifact from clean-ups while the artifact store has it already and the log does
//! not.
//!
//! Code that stores an artifact holds a shared lock on one file, from before the put until the row
//! is written, which for a large patch is as long as the comparison takes; the kernel releases it
//! if the process dies. A clean-up takes the exclusive lock for a moment. After that, for every
//! artifact that was in the store before, the row is written or will never be. Who removes content
//! holds it until that is gone: a key that no row names may be put once more at any time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stillframe_backends::{ErrorKind, Operation, PathError, open_regular};
use stillframe_disk::deadline::Deadline;
use stillframe_disk::lock::{lock_within, shared_lock_within};

use crate::error::Error;

/// How long a put waits for a clean-up, which releases the lock at once, and how long somebody
/// waits for puts who cannot leave what is to be removed.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// How long a clean-up waits for puts. What it leaves because of them is the next one's.
pub(crate) const MAX_WAIT_OF_CLEANUP: Duration = Duration::from_millis(500);

/// An artifact is on its way into store and log, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it says that the row is written"]
pub(crate) struct Registering {
    _file: File,
}

/// Nobody puts an artifact, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets others put artifacts"]
pub(crate) struct NoneRegistering {
    _file: File,
}

impl Registering {
    /// Says so: to be called before the put. Blocks.
    pub(crate) fn begin(state_dir: &Path) -> Result<Self, Error> {
        let path = lock_path(state_dir);
        let file = open(&path)?;
        let deadline = Deadline::after(MAX_WAIT);
        let is_had = shared_lock_within(&Operation::unbounded(), &file, deadline);
        match is_had.map_err(PathError::at("lock", &path))? {
            true => Ok(Self { _file: file }),
            false => Err(Error::new(
                ErrorKind::Busy,
                "a clean-up is at work on the artifacts; try again",
            )),
        }
    }

    /// Waits so long for those who have begun, and keeps others from beginning; `None`: somebody is
    /// still at it. To be held for a moment. Blocks.
    pub(crate) fn keep_out(
        state_dir: &Path,
        patience: Duration,
    ) -> Result<Option<NoneRegistering>, Error> {
        let path = lock_path(state_dir);
        let file = open(&path)?;
        let is_had = lock_within(&Operation::unbounded(), &file, Deadline::after(patience));
        let is_had = is_had.map_err(PathError::at("lock", &path))?;
        Ok(is_had.then_some(NoneRegistering { _file: file }))
    }

    /// Waits a moment for those who have begun; `false`: somebody is still at it. Blocks.
    pub(crate) fn wait_for_all(state_dir: &Path) -> Result<bool, Error> {
        Ok(Self::keep_out(state_dir, MAX_WAIT_OF_CLEANUP)?.is_some())
    }
}

fn lock_path(state_dir: &Path) -> PathBuf {
    state_dir.join("artifacts.lock")
}

fn open(path: &Path) -> Result<File, PathError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open_regular(options.mode(0o600), path).map_err(PathError::at("open the lock file", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_up_knows_whether_an_artifact_is_on_its_way() {
        let state = tempfile::tempdir().unwrap();
        assert!(Registering::wait_for_all(state.path()).unwrap());
        let one = Registering::begin(state.path()).unwrap();
        let other = Registering::begin(state.path()).unwrap();
        drop(one);
        assert!(!Registering::wait_for_all(state.path()).unwrap());
        drop(other);
        assert!(Registering::wait_for_all(state.path()).unwrap());
    }
}
