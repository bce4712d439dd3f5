//! Why something could not be written in a user's repository.

use std::path::PathBuf;

use crate::error::{ErrorKind, PathError, chain, printable};
use crate::repository_changes::RepositoryProblem;

/// Why a part of the repository could not be put back.
#[derive(Debug, thiserror::Error)]
pub(in crate::git) enum PutError {
    #[error(transparent)]
    Io(#[from] PathError),
    #[error("{what} is locked by another process, or by what is left of one")]
    Locked { what: String },
    #[error("{what} is {found} and not {expected}")]
    Moved {
        what: String,
        expected: String,
        found: String,
    },
    #[error("{what} is {problem}")]
    Unsafe { what: String, problem: &'static str },
    #[error("{what} is not as it was seen before")]
    Changed { what: String },
    #[error("{} is another directory than before", printable(path))]
    Replaced { path: PathBuf },
    #[error("{last} is taken, and so are all names of safety refs before it")]
    NoFreeTag { last: String },
}

impl PutError {
    /// What a caller can do about it.
    pub(in crate::git) fn kind(&self) -> ErrorKind {
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
    pub(in crate::git) fn problem(&self, what: &str) -> RepositoryProblem {
        RepositoryProblem::new(self.kind(), format!("{what}: {}", chain(self)))
    }
}
