//! Making checkpoints: commits in the store, from what a snapshot captured.
//!
//! In the user's repository things are read and nothing is written.

mod closure;
mod make;
mod past;
mod revealed;
mod scan;
#[cfg(test)]
mod tests;

use crate::checkpoint::{CheckpointError, KeptCheckpoint};
use crate::commit::CommitError;
use crate::git::refs::CheckpointRef;
use crate::git::repository::RepositoryError;
use crate::interrupted::Interrupted;
use crate::store_error::StoreError;

pub(super) use self::make::make;
pub(super) use self::revealed::revealed;

impl From<CheckpointRef> for KeptCheckpoint {
    fn from(found: CheckpointRef) -> Self {
        Self::new(found.number, found.commit.to_string(), found.name)
    }
}

impl From<StoreError> for CheckpointError {
    fn from(error: StoreError) -> Self {
        Self::Failed {
            context: "the store could not be read or written".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}

impl From<RepositoryError> for CheckpointError {
    fn from(error: RepositoryError) -> Self {
        CommitError::from(error).into()
    }
}

impl From<Interrupted> for CheckpointError {
    fn from(why: Interrupted) -> Self {
        StoreError::Interrupted(why).into()
    }
}
