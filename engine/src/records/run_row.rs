//! The rows of runs: when a run is accepted, while it works, and when it ends.

use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::Value;
use stillframe_backends::SnapshotId;

use crate::failure::Failure;
use crate::id::{EngineId, RunId, SessionId};
use crate::records::isolation::IsolationRow;
use crate::records::lease::Lease;
use crate::records::run::RunStatus;

/// A run that is accepted.
#[derive(Clone, Debug)]
pub(crate) struct NewRun {
    pub(crate) id: RunId,
    pub(crate) session_id: SessionId,
    pub(crate) input: String,
    pub(crate) options: Value,
    pub(crate) workspace: Option<RunWorkspace>,
    /// Where it is to work, if that is a worktree of its own, of which nothing is made yet.
    pub(crate) isolation: Option<Box<IsolationRow>>,
    pub(crate) at: Timestamp,
    /// Whose it is.
    pub(crate) lease: Lease,
}

/// The workspace of a run, and the ids that its snapshots will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunWorkspace {
    pub(crate) workspace_id: String,
    pub(crate) path: PathBuf,
    pub(crate) before: SnapshotId,
    pub(crate) after: SnapshotId,
}

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEnding {
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<Failure>,
    pub(crate) output: Value,
    pub(crate) workspace: Value,
}

impl RunEnding {
    /// It ended for this reason, and its work had not begun.
    pub(crate) fn because(failure: Failure) -> Self {
        Self {
            error: Some(failure),
            ..Self::default()
        }
    }
}

/// A run as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunRow {
    pub(crate) id: RunId,
    pub(crate) session_id: SessionId,
    pub(crate) engine_id: EngineId,
    pub(crate) status: RunStatus,
    pub(crate) input: String,
    pub(crate) options: Value,
    pub(crate) workspace: Option<RunWorkspace>,
    pub(crate) created_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<Failure>,
    pub(crate) output: Value,
    pub(crate) summary: Value,
}
