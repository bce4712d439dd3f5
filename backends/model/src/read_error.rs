//! Why a file of a snapshot could not be read.

use crate::coverage::Omission;
use crate::error::ErrorKind;
use crate::path::RelPath;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;

/// Why a file of a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The snapshot knows that nothing was there.
    #[error("snapshot {snapshot} has no {path}")]
    UnknownPath {
        /// Where it was looked for.
        snapshot: SnapshotId,
        /// What was asked for.
        path: RelPath,
    },
    /// The snapshot left the path out, or a directory above it, or its content was purged.
    #[error("snapshot {snapshot} does not have {path}: it left {} out ({})", omission.path, omission.reason)]
    OmittedPath {
        /// Where it was looked for.
        snapshot: SnapshotId,
        /// What was asked for.
        path: RelPath,
        /// What was left out, and why.
        omission: Omission,
    },
    /// It is a directory, which has no bytes.
    #[error("{path} is a directory in snapshot {snapshot}")]
    Directory {
        /// Where it was looked for.
        snapshot: SnapshotId,
        /// What was asked for.
        path: RelPath,
    },
    /// The snapshot has digests alone.
    #[error("snapshot {snapshot} was taken without content")]
    NoContent {
        /// Where it was looked for.
        snapshot: SnapshotId,
    },
    /// It could not be written to where the caller wanted it.
    #[error("cannot write the content")]
    Sink(#[source] std::io::Error),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ReadError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownPath { .. } | Self::OmittedPath { .. } => ErrorKind::NotFound,
            Self::Directory { .. } => ErrorKind::InvalidOptions,
            Self::NoContent { .. } => ErrorKind::Unsupported,
            Self::Sink(source) => ErrorKind::of_storage(source),
            Self::Store(source) => source.kind(),
        }
    }
}
