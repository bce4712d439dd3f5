//! The record of a run, its lease and its export. Each type here is also a JSON document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::Snapshot;

use crate::events::event::Event;
use crate::failure::Failure;
use crate::id::{RunId, SessionId};
use crate::records::agent::AgentRecord;
use crate::records::artifact::ArtifactRecord;
use crate::records::effect::{CommitRecord, EffectRecord};
use crate::records::isolated_run::IsolationRecord;
use crate::records::lease::Lease;
use crate::records::question::QuestionRecord;
use crate::records::queue::QueueRecord;
use crate::records::review::ReviewRecord;
use crate::records::run::RunStatus;
use crate::records::run_document::WorkspaceSummary;
use crate::records::run_row::RunRow;
use crate::records::run_state::{StateTransition, StateValue};
use crate::records::run_totals::{RunTotals, TokenTotals};
use crate::records::step_record::PhaseRecord;
use crate::records::tool_call::ToolCallRecord;

/// A run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RunRecord {
    /// The run.
    #[serde(rename = "run_id")]
    pub id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Where it stands.
    pub status: RunStatus,
    /// What it was for.
    pub input: String,
    /// The directory of its workspace, if it has one, printable.
    pub workspace_path: Option<String>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its work began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The exit code of a command; known once its work has ended, so also while that is saved.
    pub exit_code: Option<i32>,
    /// Why it did not complete; known as early as `exit_code`.
    pub error: Option<Failure>,
    /// What the host keeps with it: the latest
    /// [`RunOptions::metadata`](crate::RunOptions::metadata) that it was started with; null:
    /// nothing.
    #[serde(default)]
    pub metadata: serde_json::Value,
    /// The options that it was given, the defaults filled in.
    pub options: serde_json::Value,
    /// What the adapter returned, without the streams of a command.
    pub output: serde_json::Value,
    /// What was seen of its workspace; `None`: its work has not ended, or it has no workspace.
    pub workspace: Option<Box<WorkspaceSummary>>,
    /// What the run ends as once its work is saved, while it is
    /// [`Persisting`](crate::RunStatus::Persisting). In JSON only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_as: Option<RunStatus>,
    /// How many agents it has on record.
    #[serde(default)]
    pub total_agents: u64,
    /// How many calls of tools it has on record.
    #[serde(default)]
    pub total_tool_calls: u64,
    /// The tokens that it has used, as far as events of its adapter and of the host told it.
    #[serde(default)]
    pub total_tokens: TokenTotals,
    /// How many phases were begun in it; each iteration of one counts.
    #[serde(default)]
    pub total_iterations: u64,
    /// Where it works, and what it has handed in, if it has a worktree of its own. In JSON only
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Box<IsolationRecord>>,
    /// What the queue has of it; `None`: it was not submitted. In JSON only if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueRecord>,
}

/// Whose a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LeaseRecord {
    /// The engine that has, or last had, the run.
    pub owner: String,
    /// How often the run was taken.
    pub epoch: u64,
    /// When the lease was last renewed.
    pub heartbeat_at: Timestamp,
    /// When somebody asked for the run to be cancelled.
    pub cancel_requested_at: Option<Timestamp>,
}

/// Everything that is kept of a run, in one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RunExport {
    /// The run.
    #[serde(flatten)]
    pub run: RunRecord,
    /// Whose it is; `None`: a version without leases had it.
    pub lease: Option<LeaseRecord>,
    /// Its phases, in the order in which they first began.
    pub phases: Vec<PhaseRecord>,
    /// What it asked, in that order.
    #[serde(default)]
    pub questions: Vec<QuestionRecord>,
    /// The effects that its steps requested on its repository, in their order, with their results.
    #[serde(default)]
    pub effects: Vec<EffectRecord>,
    /// The commits that it was the first to record, in that order.
    #[serde(default)]
    pub commits: Vec<CommitRecord>,
    /// The agents that worked in it, in the order in which they began.
    #[serde(default)]
    pub agents: Vec<AgentRecord>,
    /// The calls of tools in it, in the order in which they were first told.
    #[serde(default)]
    pub tool_calls: Vec<ToolCallRecord>,
    /// The reviews that belong to it, in the order in which they were recorded.
    #[serde(default)]
    pub reviews: Vec<ReviewRecord>,
    /// The state that it keeps, sorted by key.
    #[serde(default)]
    pub state: Vec<StateValue>,
    /// Every change of that state, in their order.
    #[serde(default)]
    pub state_transitions: Vec<StateTransition>,
    /// Its snapshots that are still kept, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Its artifacts that are not deleted, oldest first.
    pub artifacts: Vec<ArtifactRecord>,
    /// Its events, in their order: every transition is one of them.
    pub events: Vec<Event>,
}

impl From<Lease> for LeaseRecord {
    fn from(lease: Lease) -> Self {
        Self {
            owner: lease.owner.to_string(),
            epoch: lease.epoch,
            heartbeat_at: lease.heartbeat_at,
            cancel_requested_at: lease.cancel_requested_at,
        }
    }
}

impl RunRecord {
    /// The record of a run that amounts to this.
    pub(crate) fn of(row: RunRow, totals: RunTotals) -> Self {
        let metadata = row.metadata();
        Self {
            id: row.id,
            session_id: row.session_id,
            status: row.status,
            input: row.input,
            workspace_path: row
                .workspace
                .as_ref()
                .map(|workspace| stillframe_backends::printable(&workspace.path)),
            created_at: row.created_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            exit_code: row.exit_code,
            error: row.error,
            metadata,
            options: row.options,
            output: row.output,
            workspace: WorkspaceSummary::of(&row.summary).map(Box::new),
            ends_as: None,
            isolation: None,
            total_agents: totals.agents,
            total_tool_calls: totals.tool_calls,
            total_tokens: totals.tokens,
            total_iterations: totals.iterations,
            queue: None,
        }
    }
}
