//! Why something could not be locked.

use crate::error::{ErrorKind, PathError};

/// Why a workspace, or a file that stands for something else, could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else is at work there.
    #[error("{what} is in use by {holder}")]
    Busy {
        /// What is locked.
        what: String,
        /// What the holder wrote into the lock file: its process and command.
        holder: String,
    },
    /// The lock file could not be made.
    #[error("cannot lock")]
    Io(#[from] PathError),
}

impl LockError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Io(source) => source.storage_kind(),
        }
    }
}
