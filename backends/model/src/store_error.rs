//! Why a store failed.

use crate::error::{ErrorKind, PathError};
use crate::exceeded::Exceeded;
use crate::interrupted::Interrupted;
use crate::snapshot::SnapshotId;

/// Why the store of a workspace could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file of the store could not be read or written.
    #[error("the store failed")]
    Io(#[source] PathError),
    /// Cancelled, or out of time. What was begun was undone; what a collection or a purge had
    /// already removed stays removed.
    #[error("stopped: {0}")]
    Interrupted(Interrupted),
    /// A limit would be exceeded. What had been written so far was removed.
    #[error("{what} is {actual}, the limit is {limit}")]
    LimitExceeded {
        /// What was counted.
        what: String,
        /// The limit.
        limit: u64,
        /// What it would have been.
        actual: u64,
    },
    /// Something that should be there is missing, or is not what its id says.
    #[error("{what} is corrupt: {detail}")]
    Corrupt {
        /// What: an id, or a file of the store.
        what: String,
        /// How.
        detail: String,
    },
    /// The snapshot is not in the store of this workspace.
    #[error("there is no snapshot {id} in the store of this workspace")]
    UnknownSnapshot {
        /// The id that was asked for.
        id: SnapshotId,
    },
    /// Written by a version that this one does not read.
    #[error("{what} has format {found}, this version reads up to {supported}; nothing was changed")]
    VersionTooNew {
        /// A file of the store.
        what: String,
        /// Its version.
        found: u32,
        /// The newest version that is understood.
        supported: u32,
    },
    /// The backend cannot do that at all. Nothing was touched.
    #[error("{0}")]
    Unsupported(String),
}

/// The message has the reason in it, so it is not a source, which would be printed again.
impl From<Interrupted> for StoreError {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl From<PathError> for StoreError {
    fn from(error: PathError) -> Self {
        if let Some(interrupted) = Interrupted::in_io(&error.source) {
            return Self::Interrupted(interrupted);
        }
        match Exceeded::in_io(&error.source) {
            Some(exceeded) => exceeded.clone().into(),
            None => Self::Io(error),
        }
    }
}

impl From<Exceeded> for StoreError {
    fn from(exceeded: Exceeded) -> Self {
        let Exceeded {
            what,
            limit,
            actual,
        } = exceeded;
        Self::LimitExceeded {
            what,
            limit,
            actual,
        }
    }
}

impl StoreError {
    /// Something of the store that is not what it should be.
    pub fn corrupt(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt {
            what: what.into(),
            detail: detail.into(),
        }
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(source) => source.storage_kind(),
            Self::Interrupted(source) => source.kind(),
            Self::LimitExceeded { .. } => ErrorKind::LimitExceeded,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::UnknownSnapshot { .. } => ErrorKind::NotFound,
            Self::VersionTooNew { .. } | Self::Unsupported(_) => ErrorKind::Unsupported,
        }
    }
}
