//! Why a capture failed.

use std::path::PathBuf;

use crate::error::{ErrorKind, PathError};
use crate::interrupted::Interrupted;
use crate::path::InvalidPath;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;

/// Why no snapshot was taken. Nothing was published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// An option is not valid.
    #[error("{0}; nothing was captured")]
    InvalidOptions(String),
    /// A path in the options is not valid.
    #[error(transparent)]
    InvalidPath(#[from] InvalidPath),
    /// The repository has a format that is not handled.
    #[error("{0}; nothing was captured")]
    Unsupported(String),
    /// The repository's own files are a trap.
    #[error("the repository at {} is not safe to read: {reason}; nothing was captured", path.display())]
    HostileRepository {
        /// The file in question.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The worktree could not be read, for a reason that is not one path's own permission.
    #[error("{context}; no snapshot was taken")]
    Unreadable {
        /// What was being read.
        context: String,
        /// What the system said.
        source: PathError,
    },
    /// A limit was exceeded.
    #[error("{what} is {actual}, the limit is {limit}; no snapshot was taken")]
    LimitExceeded {
        /// What was counted.
        what: String,
        /// The limit.
        limit: u64,
        /// What was found.
        actual: u64,
    },
    /// Asked to stop, or out of time.
    #[error("the capture was stopped: {0}; no snapshot was taken")]
    Interrupted(Interrupted),
    /// The store could not keep it.
    #[error(transparent)]
    Store(StoreError),
}

/// The message has the reason in it, so it is not a source, which would be printed again.
impl From<Interrupted> for SnapshotError {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Interrupted(source) => Self::Interrupted(source),
            StoreError::LimitExceeded {
                what,
                limit,
                actual,
            } => Self::LimitExceeded {
                what,
                limit,
                actual,
            },
            error => Self::Store(error),
        }
    }
}

impl SnapshotError {
    /// Something could not be read; a cancellation stays a cancellation.
    pub fn unreadable(context: impl Into<String>, source: PathError) -> Self {
        match Interrupted::in_io(&source.source) {
            Some(interrupted) => Self::Interrupted(interrupted),
            None => Self::Unreadable {
                context: context.into(),
                source,
            },
        }
    }

    /// The id in the options names another snapshot: an id never changes its meaning.
    pub fn taken(id: &SnapshotId) -> Self {
        Self::InvalidOptions(format!("there is a snapshot {id} already"))
    }

    /// Whether a capture may have failed because of what is wrong with the repository.
    pub fn may_be_damage(&self) -> bool {
        match self {
            Self::Unsupported(_)
            | Self::HostileRepository { .. }
            | Self::Unreadable { .. }
            | Self::LimitExceeded { .. }
            | Self::Store(StoreError::Corrupt { .. }) => true,
            Self::InvalidOptions(_)
            | Self::InvalidPath(_)
            | Self::Interrupted(_)
            | Self::Store(_) => false,
        }
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidOptions(_) | Self::InvalidPath(_) => ErrorKind::InvalidOptions,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::HostileRepository { .. } => ErrorKind::HostileRepository,
            Self::Unreadable { .. } => ErrorKind::Unreadable,
            Self::LimitExceeded { .. } => ErrorKind::LimitExceeded,
            Self::Interrupted(source) => source.kind(),
            Self::Store(source) => source.kind(),
        }
    }
}
