//! The one lock of a store.

use std::fs::File;
use std::time::Duration;

use stillframe_disk::deadline::Deadline;
use stillframe_disk::lock;
use stillframe_disk::operation::Operation;

use super::disk::Directory;
use crate::error::{PathError, StoreError};

/// Proof that nobody else changes the store. Dropping it lets others in, and so does dying.
///
/// The file is never removed: a file that is removed while somebody waits for it is locked by two.
#[derive(Debug)]
#[must_use = "dropping it gives the store back"]
pub(crate) struct StoreLock {
    _file: File,
}

impl StoreLock {
    pub(crate) const FILE: &str = "lock";

    /// Waits at most `lock_timeout`.
    pub(crate) fn acquire(root: &Directory, lock_timeout: Duration) -> Result<Self, StoreError> {
        // Opened anew each time, so that two threads exclude each other too.
        let mut file = root.lock_file(Self::FILE)?;
        let is_ours = lock::lock_within(
            &Operation::unbounded(),
            &file,
            Deadline::after(lock_timeout),
        );
        if !is_ours.map_err(PathError::at("lock", root.path_of(Self::FILE)))? {
            return Err(StoreError::Busy {
                path: root.disk_path().to_owned(),
                holder: lock::read_holder(&mut file),
            });
        }
        let _ = lock::write_holder(&mut file, &lock::this_process());
        Ok(Self { _file: file })
    }
}
