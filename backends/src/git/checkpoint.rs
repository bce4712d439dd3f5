//! Making checkpoints: commits in the store, from what a snapshot captured.
//!
//! In the user's repository things are read and nothing is written.

mod make;
mod merge;
mod revealed;
mod scan;
#[cfg(test)]
mod tests;

use crate::checkpoint::{CheckpointError, KeptCheckpoint, Reaches};
use crate::commit::CommitError;
use crate::git::ObjectId;
use crate::git::either::past::{Past, Relation};
use crate::git::refs::CheckpointRef;
use crate::git::repository::{RepositoryError, UserRepository};
use crate::git::store::Store;
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::store_error::StoreError;

pub(super) use self::make::make;
pub(super) use self::merge::merge;
pub(super) use self::revealed::revealed;

/// See [`Checkpoints::reaches`](crate::Checkpoints::reaches).
pub(super) fn reaches(
    op: &Operation,
    repository: Option<&UserRepository>,
    store: &Store,
    commit: &str,
    ancestor: &str,
) -> Result<Reaches, CheckpointError> {
    let id = |text: &str| {
        text.parse::<ObjectId>()
            .map_err(CheckpointError::InvalidOptions)
    };
    let (commit, ancestor) = (id(commit)?, id(ancestor)?);
    // What git has fetched since lies in packs of its own.
    store.refresh()?;
    Ok(
        match Past::new(op, repository, store)?.relation(commit, ancestor) {
            Ok(Relation::Contains) => Reaches::Yes,
            Ok(Relation::Contained | Relation::Apart) => Reaches::No,
            Ok(Relation::CutAt(_)) | Err(CheckpointError::CommitMissing { .. }) => Reaches::Unknown,
            Err(error) => return Err(error),
        },
    )
}

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
