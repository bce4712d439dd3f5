//! The work trees of runs, as linked work trees of git's.

mod bring;
mod contents;
mod ensure;
mod entry;
mod files;
mod look;
mod remove;
#[cfg(test)]
mod tests;

use std::path::Path;

use jiff::Timestamp;

use self::ensure::Maker;
use self::look::Places;
use super::ObjectId;
use super::backend::GitBackend;
use super::put_error::PutError;
use super::repository::RepositoryError;
use crate::commit::CommitError;
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
use crate::store_error::StoreError;
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
        op: &Operation,
        worktree: &RunWorktree,
        base: Option<&str>,
        at: Timestamp,
    ) -> Result<Ensured, RunWorktreeError> {
        let base = base.map(id_of).transpose()?;
        Maker::new(op, &Places::of(worktree)?, at)?.ensure(base)
    }

    fn bring(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
        from: &Path,
        paths: &[RelPath],
    ) -> Result<Brought, RunWorktreeError> {
        bring::bring(op, &Places::of(worktree)?, from, paths)
    }

    fn remove(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
        guard: Option<(&mut LockedWorkspace, &SnapshotId)>,
        tip: Option<&str>,
    ) -> Result<Removed, RunWorktreeError> {
        let tip = tip.map(id_of).transpose()?;
        remove::remove(op, &Places::of(worktree)?, guard, tip)
    }
}

fn id_of(text: &str) -> Result<ObjectId, RunWorktreeError> {
    text.parse().map_err(RunWorktreeError::InvalidOptions)
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

impl From<StoreError> for RunWorktreeError {
    fn from(error: StoreError) -> Self {
        Self::Failed {
            context: "the work tree of the run could not be read or written".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}

impl From<CommitError> for RunWorktreeError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Unsupported(why) => Self::Unsupported(why),
            error => Self::Failed {
                context: "the repository could not be read".to_owned(),
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
