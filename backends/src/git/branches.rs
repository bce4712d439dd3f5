//! The port for branches, as the git backend fills it.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use super::backend::{GitBackend, environment, existing_store};
use super::commit;
use super::either::Either;
use super::repository::UserRepository;
use super::store::Store;
use super::{ObjectId, branch_merge, switch, worktrees};
use crate::branch_merge::{BranchMerge, BranchMove, Checkout, Merged};
use crate::branches::{BranchError, Branches, Switch, SwitchRequest, Trailer};
use crate::checkpoint::Reaches;
use crate::commit::{CommitError, Signature};
use crate::operation::Operation;
use crate::snapshot::SnapshotId;
use crate::workspace::{LockedWorkspace, Workspace};

/// A message of this length is no message.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

impl Branches for GitBackend {
    fn tip(&self, workspace: &Workspace, branch: &str) -> Result<Option<String>, BranchError> {
        let repository = commit::repository_of(workspace)?;
        let tip = repository.tip(branch).map_err(CommitError::from)?;
        Ok(tip.map(|commit| commit.to_string()))
    }

    fn commit_named(
        &self,
        op: &Operation,
        workspace: &Workspace,
        name: &str,
    ) -> Result<String, BranchError> {
        let repository = commit::repository_of(workspace)?;
        Ok(switch::commit_named(op, &repository, name)?.to_string())
    }

    fn has(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
    ) -> Result<bool, BranchError> {
        let (store, repository) = both(workspace)?;
        let id = commit.parse().map_err(BranchError::InvalidOptions)?;
        let either = Either {
            store: &store,
            repository: &repository,
        };
        Ok(either.object(op, id, MAX_COMMIT_BYTES)?.is_some())
    }

    fn object_directories(&self, workspace: &Workspace) -> Result<Vec<PathBuf>, BranchError> {
        let repository = commit::repository_of(workspace)?;
        Ok(repository.object_dirs().map_err(CommitError::from)?)
    }

    fn newest_trailer(
        &self,
        op: &Operation,
        workspace: &Workspace,
        tip: &str,
        beyond: &[String],
        trailers: (&str, &str),
    ) -> Result<Trailer, BranchError> {
        let (store, repository) = both(workspace)?;
        let either = Either {
            store: &store,
            repository: &repository,
        };
        let tip = tip.parse().map_err(BranchError::InvalidOptions)?;
        let beyond: Vec<ObjectId> = beyond.iter().filter_map(|id| id.parse().ok()).collect();
        switch::newest_trailer(op, either, tip, &beyond, trailers)
    }

    fn have_one_base(
        &self,
        op: &Operation,
        workspace: &Workspace,
        one: &str,
        other: &str,
    ) -> Result<Reaches, BranchError> {
        let (store, repository) = both(workspace)?;
        let either = Either {
            store: &store,
            repository: &repository,
        };
        let id = |text: &str| text.parse().map_err(BranchError::InvalidOptions);
        switch::have_one_base(op, either, id(one)?, id(other)?)
    }

    fn made_by(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
    ) -> Result<(Signature, Timestamp), BranchError> {
        let repository = commit::repository_of(workspace)?;
        let id = commit.parse().map_err(BranchError::InvalidOptions)?;
        Ok(commit::made_by(op, &repository, id)?)
    }

    fn prepare_switch(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        captured: &SnapshotId,
        request: &SwitchRequest,
    ) -> Result<Switch, BranchError> {
        let store = existing_store(workspace)?;
        store.refresh()?;
        let record = store.record(op, captured)?;
        switch::prepare(op, workspace, &store, &record, request, &environment)
    }

    fn merge(
        &self,
        op: &Operation,
        workspace: &Workspace,
        request: &BranchMerge,
    ) -> Result<Merged, BranchError> {
        let (store, repository) = both(workspace)?;
        branch_merge::merge(op, &store, &repository, request)
    }

    fn checkouts(
        &self,
        op: &Operation,
        workspace: &Workspace,
        branch: &str,
    ) -> Result<Vec<Checkout>, BranchError> {
        let repository = commit::repository_of(workspace)?;
        let checkouts = worktrees::checkouts_of(op, repository.common_dir(), branch);
        Ok(checkouts.map_err(CommitError::from)?)
    }

    fn move_branch(
        &self,
        op: &Operation,
        workspace: &Workspace,
        request: &BranchMove,
    ) -> Result<Vec<Checkout>, BranchError> {
        let repository = commit::repository_of(workspace)?;
        branch_merge::move_branch(op, workspace.state(), &repository, request)
    }
}

/// The store, with what git has fetched since, and the user's repository.
fn both(workspace: &Workspace) -> Result<(Arc<Store>, Box<UserRepository>), BranchError> {
    let store = existing_store(workspace)?;
    store.refresh()?;
    Ok((store, commit::repository_of(workspace)?))
}
