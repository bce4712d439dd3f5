//! Why a comparison failed.

use crate::error::ErrorKind;
use crate::interrupted::Interrupted;
use crate::path::RelPath;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;

/// Why two snapshots could not be compared. An error is never an empty diff.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// The two were captured by different backends.
    #[error("workspace snapshots must use the same backend")]
    DifferentBackends,
    /// The two are of different workspaces.
    #[error("snapshots {from} and {to} are of different workspaces")]
    DifferentWorkspaces {
        /// The earlier side.
        from: SnapshotId,
        /// The later side.
        to: SnapshotId,
    },
    /// An option cannot be right.
    #[error("{0}")]
    InvalidOptions(String),
    /// Neither side has this path, or left it out.
    #[error("neither side has {path}; nothing was compared")]
    UnknownPath {
        /// What was asked for.
        path: RelPath,
    },
    /// The patch could not be written to where the caller wanted it.
    #[error("cannot write the patch")]
    Sink(#[source] std::io::Error),
    /// Asked to stop, or out of time.
    #[error("the comparison was stopped: {0}; what was written of the patch is none")]
    Interrupted(Interrupted),
    /// The store could not answer.
    #[error(transparent)]
    Store(StoreError),
}

/// The message has why in it, so it is no source, which would be told again.
impl From<Interrupted> for DiffError {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl From<StoreError> for DiffError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Interrupted(source) => Self::Interrupted(source),
            error => Self::Store(error),
        }
    }
}

impl DiffError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::DifferentBackends
            | Self::DifferentWorkspaces { .. }
            | Self::InvalidOptions(_) => ErrorKind::InvalidOptions,
            Self::UnknownPath { .. } => ErrorKind::NotFound,
            Self::Sink(source) => ErrorKind::of_storage(source),
            Self::Interrupted(source) => source.kind(),
            Self::Store(source) => source.kind(),
        }
    }
}
