//! The rows of follow-ups: what a blocked task goes on from.

use jiff::Timestamp;

use crate::id::WorkTaskId;

/// Why a task waits, where its adapter says no more.
pub(crate) const DEFAULT_WAITING_REASON: &str = "recoverable_blocked";

/// What a blocked task goes on from, as it is kept: one row for each such task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FollowUpRow {
    pub(crate) task_id: WorkTaskId,
    /// What the host's flow is called that goes on with it.
    pub(crate) flow: String,
    /// The branch that the checkpoint is on.
    pub(crate) branch: String,
    /// What the host needs to go on.
    pub(crate) context: serde_json::Value,
    pub(crate) waiting_reason: String,
    /// The commit that was proven on the branch.
    pub(crate) last_checkpoint: String,
    pub(crate) updated_at: Timestamp,
}
