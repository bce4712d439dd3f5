//! The work trees of runs, as linked work trees of git's.

mod look;
#[cfg(test)]
mod tests;

use std::path::Path;

use jiff::Timestamp;

use self::look::Places;
use super::backend::GitBackend;
use super::put_error::PutError;
use super::repository::RepositoryError;
use crate::error::PathError;
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::run_worktree::{
    Brought, Ensured, Origin, Removed, RunWorktree, RunWorktreeError, RunWorktreeState,
    RunWorktrees,
};
use crate::snapshot::SnapshotId;
use crate::snapshot_error::SnapshotError;
use crate::workspace::LockedWorkspace;

impl RunWorktrees for GitBackend {
    fn origin(
        &self,
        op: &Operation,
        repository: &Path,
        branch: Option<&str>,
    ) -> Result<Origin, RunWorktreeError> {
        look::origin(op, &*look::open(repository)?, branch)
    }

    fn look(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
    ) -> Result<RunWorktreeState, RunWorktreeError> {
        Places::of(worktree)?.look(op)
    }

    fn ensure(
        &self,
        _op: &Operation,
        worktree: &RunWorktree,
        _base: Option<&str>,
        _at: Timestamp,
    ) -> Result<Ensured, RunWorktreeError> {
        Places::of(worktree)?;
        Err(RunWorktreeError::Unsupported(
            "work trees of runs cannot be made".to_owned(),
        ))
    }

    fn bring(
        &self,
        _op: &Operation,
        worktree: &RunWorktree,
        _from: &Path,
        _paths: &[RelPath],
    ) -> Result<Brought, RunWorktreeError> {
        Places::of(worktree)?;
        Err(RunWorktreeError::Unsupported(
            "nothing can be brought into work trees of runs".to_owned(),
        ))
    }

    fn remove(
        &self,
        _op: &Operation,
        worktree: &RunWorktree,
        _guard: Option<(&mut LockedWorkspace, &SnapshotId)>,
        _tip: Option<&str>,
    ) -> Result<Removed, RunWorktreeError> {
        Places::of(worktree)?;
        Err(RunWorktreeError::Unsupported(
            "work trees of runs cannot be removed".to_owned(),
        ))
    }
}

impl From<RepositoryError> for RunWorktreeError {
    fn from(error: RepositoryError) -> Self {
        if let RepositoryError::Unsupported { .. } = error {
            return Self::Unsupported(error.to_string());
        }
        let error = SnapshotError::from(error);
        Self::Failed {
            context: "the repository could not be read".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}

impl From<PutError> for RunWorktreeError {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Moved {
                what,
                expected,
                found,
            } => Self::Moved {
                branch: what,
                expected,
                found,
            },
            error => Self::Failed {
                context: "the repository could not be written".to_owned(),
                kind: error.kind(),
                source: Box::new(error),
            },
        }
    }
}

impl From<PathError> for RunWorktreeError {
    fn from(error: PathError) -> Self {
        Self::Failed {
            context: "the work tree of the run could not be read or written".to_owned(),
            kind: error.storage_kind(),
            source: Box::new(error),
        }
    }
}

impl From<Interrupted> for RunWorktreeError {
    fn from(why: Interrupted) -> Self {
        RepositoryError::from(why).into()
    }
}
