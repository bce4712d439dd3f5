//! An object that a repository has lost and that could not be restored.

use super::ObjectId;
use super::put_error::PutError;
use crate::error::chain;
use crate::repository_changes::RepositoryProblem;
use crate::store_error::StoreError;

/// An object that a repository still lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) id: ObjectId,
    /// What keeps it from coming back, which may pass; `None`: no snapshot has it in order.
    pub(super) obstacle: Option<RepositoryProblem>,
}

impl Lost {
    /// An object that neither the repository nor the snapshot has.
    pub(super) fn for_good(id: ObjectId) -> Self {
        Self { id, obstacle: None }
    }

    /// An object whose copy in the snapshot could not be read.
    pub(super) fn unread(id: ObjectId, error: &StoreError) -> Self {
        let obstacle = match error {
            StoreError::Corrupt { .. } => None,
            error => Some(RepositoryProblem::new(error.kind(), chain(error))),
        };
        Self { id, obstacle }
    }

    /// An object that could not be written into the repository.
    pub(super) fn unwritten(id: ObjectId, error: &PutError) -> Self {
        Self {
            id,
            obstacle: Some(RepositoryProblem::new(error.kind(), chain(error))),
        }
    }
}
