//! Operations that can be undone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{RelPath, SnapshotId};

use crate::id::{OperationId, RunId, SessionId};

/// What kind of operation changed a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperationKind {
    /// The work of a run.
    Run,
    /// A restore by hand.
    Restore,
    /// Another undo.
    Undo,
    /// A workspace that was brought to the branch of a task.
    Resume,
    /// What a run has handed in was merged into the branch that is checked out.
    Merge,
}

impl OperationKind {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Restore => "restore",
            Self::Undo => "undo",
            Self::Resume => "resume",
            Self::Merge => "merge",
        }
    }
}

/// An operation that can be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationRow {
    pub(crate) id: OperationId,
    pub(crate) workspace_id: String,
    pub(crate) session_id: SessionId,
    pub(crate) run_id: Option<RunId>,
    pub(crate) kind: OperationKind,
    pub(crate) before: SnapshotId,
    pub(crate) after: SnapshotId,
    /// The paths that it changed; `None`: all that differ between the two snapshots.
    pub(crate) paths: Option<Vec<RelPath>>,
    /// Whether it concerned the user's index and branch too.
    pub(crate) repository: bool,
    pub(crate) at: Timestamp,
}

impl OperationRow {
    /// What a run changed, which is all that differs between its first and its last snapshot.
    pub(crate) fn of_run(
        session_id: &SessionId,
        run_id: &RunId,
        workspace_id: &str,
        (before, after): (&SnapshotId, &SnapshotId),
        at: Timestamp,
    ) -> Self {
        Self {
            id: OperationId::random(),
            workspace_id: workspace_id.to_owned(),
            session_id: session_id.clone(),
            run_id: Some(run_id.clone()),
            kind: OperationKind::Run,
            before: before.clone(),
            after: after.clone(),
            paths: None,
            repository: true,
            at,
        }
    }
}
