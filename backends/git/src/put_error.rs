//! Why something could not be written in a user's repository.

use std::path::PathBuf;

use crate::error::{ErrorKind, PathError, chain, printable};
use crate::repository_changes::RepositoryProblem;

/// Why a part of the repository could not be put back.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] PathError),
    /// Another process holds a lock of git's, or died with it.
    #[error("{what} is locked by another process, or by what is left of one")]
    Locked {
        /// The ref or file.
        what: String,
    },
    /// A ref is at another commit than it was seen at.
    #[error("{what} is {found} and not {expected}")]
    Moved {
        /// The ref.
        what: String,
        /// Where it was.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// Something that git does not put there has taken the place.
    #[error("{what} is {problem}")]
    Unsafe {
        /// The path, printable.
        what: String,
        /// What it is.
        problem: &'static str,
    },
    /// A file is not as it was seen before.
    #[error("{what} is not as it was seen before")]
    Changed {
        /// The path, printable.
        what: String,
    },
    /// A directory was replaced by another one.
    #[error("{} is another directory than before", printable(path))]
    Replaced {
        /// The directory.
        path: PathBuf,
    },
    /// Every name that was tried for a ref is taken.
    #[error("{last} is taken, and so are all names of safety refs before it")]
    NoFreeTag {
        /// The last name.
        last: String,
    },
}

impl PutError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(source) => source.storage_kind(),
            Self::Locked { .. } => ErrorKind::Busy,
            Self::Moved { .. } => ErrorKind::HeadMoved,
            Self::Unsafe { .. } => ErrorKind::HostileRepository,
            Self::Replaced { .. } | Self::Changed { .. } => ErrorKind::Conflict,
            Self::NoFreeTag { .. } => ErrorKind::LimitExceeded,
        }
    }

    /// As a part of an outcome: `what` is a clause that says what came of it.
    pub fn problem(&self, what: &str) -> RepositoryProblem {
        RepositoryProblem::new(self.kind(), format!("{what}: {}", chain(self)))
    }
}
