//! A further repository that a run works in.

use serde::Deserialize as _;

use crate::error::Error;
use crate::options::WorkspaceOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::repositories::KeptRepository;
use crate::records::run_document::document;

/// A further repository that a run works in, and the task that its work is of.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryOptions {
    pub(crate) workspace: WorkspaceOptions,
    pub(crate) work_branch: WorkBranchOptions,
}

impl RepositoryOptions {
    /// Refuses what cannot be, before anything is done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.workspace.check()?;
        self.work_branch.branch_name()?;
        match self.workspace.rollback_on_failure {
            true => Err(Error::invalid_options(
                "rollback_on_failure is for the run's own workspace, and for no further repository; the run was not started",
            )),
            false => Ok(()),
        }
    }

    /// What is kept of it.
    pub(crate) fn kept(&self) -> KeptRepository {
        KeptRepository {
            path: self.workspace.path.clone(),
            workspace: document(&self.workspace),
            work_branch: self.work_branch.kept(),
        }
    }

    /// Of what was kept: nobody asks its remote.
    pub(crate) fn of_kept(kept: KeptRepository) -> Result<Self, serde_json::Error> {
        let workspace = WorkspaceOptions::deserialize(kept.workspace)?;
        Ok(Self {
            workspace: WorkspaceOptions {
                path: kept.path,
                watch: false,
                ..workspace
            },
            work_branch: WorkBranchOptions::of_kept(kept.work_branch),
        })
    }
}
