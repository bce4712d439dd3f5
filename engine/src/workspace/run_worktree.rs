//! The worktrees of runs: opening them as workspaces, and who makes and removes them.

use std::sync::Arc;

use stillframe_backends::{
    Backend, BackendKind, ErrorKind, RunWorktree, RunWorktreeError, RunWorktrees, Workspace,
    printable,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::options::WorkspaceOptions;
use crate::records::isolation::IsolationRow;
use crate::records::run_row::RunRow;
use crate::workspace::backends;
use crate::workspace::opened::Opened;

impl From<RunWorktreeError> for Error {
    fn from(error: RunWorktreeError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// The backend that has worktrees for runs.
pub(crate) fn backend(parts: &Parts) -> Result<Arc<dyn Backend>, Error> {
    backends::backend_of(parts, BackendKind::Git)
}

/// Who makes worktrees for runs, looks at them and removes them.
pub(crate) fn of_backend(backend: &dyn Backend) -> Result<&dyn RunWorktrees, Error> {
    backend.run_worktrees().ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            "the backend of this engine has no worktrees for runs; nothing was touched",
        )
    })
}

/// The worktree that a row is of.
pub(crate) fn of_row(row: &IsolationRow) -> RunWorktree {
    RunWorktree::stored(
        row.repository_path.clone(),
        row.worktree_branch.clone(),
        row.worktree_path.clone(),
    )
}

/// The workspace that a run with a worktree of its own was cut from, wherever its directory is by
/// now; `None`: a bare repository. Blocks.
pub(crate) fn cut_from(parts: &Parts, run: &RunRow, row: &IsolationRow) -> Option<Workspace> {
    let of = match &run.workspace {
        Some(recorded) => Workspace::kept(&recorded.workspace_id, &parts.state_dir),
        // Its work has never begun, so that nothing of it is in any store.
        None => Workspace::open(&row.repository_path, &parts.state_dir).ok(),
    };
    of.filter(|of| of.disk_path() != row.worktree_path)
}

/// A workspace by which the repository of a run can be read: that which the run was cut from or, where
/// that is gone, its worktree. Blocks.
pub(crate) fn any_of(parts: &Parts, run: &RunRow, row: &IsolationRow) -> Result<Workspace, Error> {
    match cut_from(parts, run, row).filter(|of| !of.is_gone()) {
        Some(workspace) => Ok(workspace),
        None => {
            let options = WorkspaceOptions::at(&row.worktree_path);
            Ok(Opened::worktree_of(parts, run, row, options)?.workspace)
        }
    }
}

impl Opened {
    /// Opens the worktree of a run, which has to be there. `of`: the workspace that the run came
    /// from; `None`: a bare repository. Reads alone; blocks.
    pub(crate) fn worktree(
        parts: &Parts,
        row: &IsolationRow,
        of: Option<&Workspace>,
        options: WorkspaceOptions,
    ) -> Result<Self, Error> {
        let path = &row.worktree_path;
        let workspace = Workspace::open_run_worktree(path, &parts.state_dir, of)?;
        let options = WorkspaceOptions {
            path: path.clone(),
            // No later capture could use a watch.
            watch: false,
            ..options
        };
        Ok(Self { workspace, options })
    }

    /// As [`Opened::worktree`], of a run that is on record with it.
    pub(crate) fn worktree_of(
        parts: &Parts,
        run: &RunRow,
        row: &IsolationRow,
        options: WorkspaceOptions,
    ) -> Result<Self, Error> {
        let opened = Self::worktree(parts, row, cut_from(parts, run, row).as_ref(), options)?;
        let recorded = run.workspace.as_ref();
        match recorded.is_none_or(|recorded| opened.workspace.id() == recorded.workspace_id) {
            true => Ok(opened),
            false => Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "the store that has the snapshots of run {} is gone; its worktree {} was left as it is",
                    run.id,
                    printable(&row.worktree_path)
                ),
            )),
        }
    }
}
