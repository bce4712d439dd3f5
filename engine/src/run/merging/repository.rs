//! The repository of a run: where its branches are, and what goes on from what.

use std::sync::Arc;

use stillframe_backends::{
    Backend, BranchError, Branches, Checkout, ErrorKind, Operation, Reaches, Workspace,
};

use crate::actors::core::Core;
use crate::error::Error;
use crate::records::isolation::IsolationRow;
use crate::records::run_row::RunRow;
use crate::workspace::run_worktree;

/// The repository of a run, for questions. Everything blocks.
#[derive(Clone)]
pub(super) struct Repository {
    backend: Arc<dyn Backend>,
    pub(super) workspace: Workspace,
}

impl Repository {
    pub(super) async fn of(core: &Core, run: &RunRow, row: &IsolationRow) -> Result<Self, Error> {
        let (parts, run, row) = (core.parts.clone(), run.clone(), row.clone());
        let open = move || {
            let backend = run_worktree::backend(&parts)?;
            let workspace = run_worktree::any_of(&parts, &run, &row)?;
            Ok(Self { backend, workspace })
        };
        core.parts.blocking.run(open).await?
    }

    pub(super) fn branches(&self) -> Result<&dyn Branches, Error> {
        self.backend.branches().ok_or_else(|| {
            let message = "the backend of this engine has no branches; nothing was merged";
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// Where a branch is; `None`: there is none.
    pub(super) fn tip(&self, branch: &str) -> Result<Option<String>, Error> {
        let tip = self.branches()?.tip(&self.workspace, branch);
        tip.map_err(failed)
    }

    /// The work trees that have a branch checked out, or use it.
    pub(super) fn checkouts(&self, branch: &str) -> Result<Vec<Checkout>, Error> {
        let op = Operation::unbounded();
        let checkouts = self.branches()?.checkouts(&op, &self.workspace, branch);
        checkouts.map_err(failed)
    }

    /// Whether a commit goes on from another. What cannot be told is an error.
    pub(super) fn reaches(&self, commit: &str, ancestor: &str) -> Result<bool, Error> {
        let checkpoints = self.backend.checkpoints().ok_or_else(|| {
            let message = "the backend of this engine reads no history; nothing was merged";
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let op = Operation::unbounded();
        match checkpoints.reaches(&op, &self.workspace, commit, ancestor) {
            Ok(Reaches::Yes) => Ok(true),
            Ok(Reaches::No) => Ok(false),
            Ok(Reaches::Unknown) => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the history between {ancestor} and {commit} is not all here; nothing was merged"
                ),
            )),
            Err(e) => Err(Error::new(e.kind(), e)),
        }
    }
}

pub(super) fn failed(error: BranchError) -> Error {
    Error::new(error.kind(), error)
}
