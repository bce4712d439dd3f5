//! Why an operation failed, and what a caller can do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

pub use stillframe_model::error::{ErrorKind, PathError};

pub(crate) use stillframe_model::error::printable;

use crate::digest::Digest;
use crate::key::ArtifactKey;

/// What is wrong with a stored artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The record that leads from the key to the content does not match its checksum.
    Record,
    /// The content is not there.
    Missing,
    /// A link, a directory or something else that is no file lies where the content should.
    NotAFile,
    /// The content has another length.
    Length {
        /// The length that was put.
        expected: u64,
        /// The length on disk.
        found: u64,
    },
    /// The content has the right length and other bytes.
    Content {
        /// The digest of what was put.
        expected: Digest,
        /// The digest of what is on disk.
        found: Digest,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record => f.write_str("its record does not match its checksum"),
            Self::Missing => f.write_str("its content is missing"),
            Self::NotAFile => f.write_str("its content is not a file"),
            Self::Length { expected, found } => {
                write!(f, "it has {found} bytes in place of {expected}")
            }
            Self::Content { expected, found } => {
                write!(f, "its blake3 is {found} in place of {expected}")
            }
        }
    }
}

/// Why a store could not be opened. Nothing that was there before was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No directory was named.
    #[error("the root of an artifact store cannot be empty")]
    EmptyRoot,
    /// What is at the path is not fit to be a store.
    #[error("{} cannot be an artifact store: {reason}", printable(path))]
    Refused {
        /// The root.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The store was written by a version that this one does not know.
    #[error(
        "the artifact store {} has an unknown format: {found}",
        printable(path)
    )]
    UnknownFormat {
        /// The root.
        path: PathBuf,
        /// The beginning of what the format file says, escaped.
        found: String,
    },
    /// The directory could not be made or read.
    #[error(transparent)]
    Io(#[from] PathError),
}

impl OpenError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::EmptyRoot | Self::Refused { .. } => ErrorKind::InvalidOptions,
            Self::UnknownFormat { .. } => ErrorKind::Unsupported,
            Self::Io(source) => source.storage_kind(),
        }
    }
}

/// What can go wrong in any operation. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else has been changing the store for longer than this store is willing to wait.
    #[error(
        "the artifact store {} is in use by {holder}; nothing was changed",
        printable(path)
    )]
    Busy {
        /// The root of the store.
        path: PathBuf,
        /// What the holder wrote into the lock file: its process and command.
        holder: String,
    },
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] PathError),
}

impl StoreError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Io(source) => source.storage_kind(),
        }
    }
}

/// Why an artifact was not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The caller's content ended in an error. The key has what it had before.
    #[error("the content for artifact {key:?} could not be read; nothing of it was kept")]
    Content {
        /// The key.
        key: ArtifactKey,
        /// What the reader said.
        source: io::Error,
    },
    /// The content is longer than [`PutOptions::max_bytes`](crate::PutOptions::max_bytes). The key
    /// has what it had before.
    #[error("artifact {key:?} is larger than {max_bytes} bytes; nothing of it was kept")]
    TooLarge {
        /// The key.
        key: ArtifactKey,
        /// The limit.
        max_bytes: u64,
    },
    /// The artifact is in its place, but the disk would not say that it is there to stay: a power
    /// cut may bring back what the key had before.
    #[error("artifact {key:?} was kept, but a power cut may undo it")]
    Unconfirmed {
        /// The key.
        key: ArtifactKey,
        /// What the disk said.
        source: PathError,
    },
    /// The store could not be used. The key has what it had before.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PutError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Content { .. } => ErrorKind::Unreadable,
            Self::TooLarge { .. } => ErrorKind::LimitExceeded,
            Self::Unconfirmed { source, .. } => source.storage_kind(),
            Self::Store(source) => source.kind(),
        }
    }
}

/// Why the content of an artifact was not handed out. None of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// There is no artifact under that key.
    #[error("there is no artifact {key:?}")]
    NotFound {
        /// The key.
        key: ArtifactKey,
    },
    /// What is stored is not what was put.
    #[error("artifact {key:?} is damaged: {damage}")]
    Corrupt {
        /// The key.
        key: ArtifactKey,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The store could not be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl GetError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Store(source) => source.kind(),
        }
    }
}

/// Why an artifact was not deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeleteError {
    /// The artifact is gone, but the disk would not say that it is gone for good: a power cut may
    /// bring it back.
    #[error("artifact {key:?} was deleted, but a power cut may bring it back")]
    Unconfirmed {
        /// The key.
        key: ArtifactKey,
        /// What the disk said.
        source: PathError,
    },
    /// The store could not be used. The artifact is still there.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DeleteError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unconfirmed { source, .. } => source.storage_kind(),
            Self::Store(source) => source.kind(),
        }
    }
}

impl From<PathError> for PutError {
    fn from(source: PathError) -> Self {
        Self::Store(source.into())
    }
}

impl From<PathError> for GetError {
    fn from(source: PathError) -> Self {
        Self::Store(source.into())
    }
}

impl From<PathError> for DeleteError {
    fn from(source: PathError) -> Self {
        Self::Store(source.into())
    }
}
