//! Durable state: the port `StateStore`. [`sqlite`] implements it, with a file for the rows of each
//! noun.
//!
//! It owns the state directory except for workspaces and artifacts, and finds records by the names
//! that people give. It uses `records`, `events` and the error of the API.

#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "only the contract tests write what leaves the machine"
    )
)]
pub(crate) mod branch_change;
pub(crate) mod change;
#[cfg(test)]
pub(crate) mod contract;
#[cfg(test)]
mod earlier_versions;
pub(crate) mod error;
pub(crate) mod file_size_limit;
pub(crate) mod forgotten;
pub(crate) mod hold;
pub(crate) mod id_beginning;
pub(crate) mod isolation_change;
pub(crate) mod liveness;
pub(crate) mod new_session;
pub(crate) mod phases;
pub(crate) mod reader;
pub(crate) mod redaction;
pub(crate) mod registering;
pub(crate) mod reserve;
mod row_sum;
pub(crate) mod run_name;
pub(crate) mod snapshot_name;
pub(crate) mod sqlite;

use jiff::Timestamp;
use stillframe_backends::{Label, SnapshotId, Workspace};

use crate::events::event::Event;
use crate::events::floor::EventFloor;
use crate::events::query::EventQuery;
use crate::id::{EventId, QuestionId, RunId, SessionId};
use crate::policy::used::UsedTotal;
use crate::records::agent::AgentRecord;
use crate::records::artifact::{ArtifactRecord, SessionStats};
use crate::records::effect::{CommitRecord, EffectRow};
use crate::records::isolation::IsolationRow;
use crate::records::lease::Lease;
use crate::records::operation::OperationRow;
use crate::records::question::QuestionRow;
use crate::records::queue::{Legible, QueueRow, TakenRow};
use crate::records::restore_document::RestoreRow;
use crate::records::review::ReviewRecord;
use crate::records::revision::RevisionRow;
use crate::records::run::RunStatus;
use crate::records::run_row::RunRow;
use crate::records::run_state::{StateTransition, StateValue};
use crate::records::run_totals::RunTotals;
use crate::records::session::{SessionDetails, SessionRow, SessionStatus};
use crate::records::snapshot::{PinRow, SnapshotRow};
use crate::records::step::{PhaseKey, PhaseRow, StepRow};
use crate::records::task::TaskRow;
use crate::records::tool_call::ToolCallRow;
use crate::state::branch_change::BranchState;
use crate::state::change::{Change, DueSession, SessionExtent};
use crate::state::error::StateError;
use crate::state::hold::Hold;

/// Keeps sessions, runs, events, snapshots, operations and artifacts. Every method blocks.
///
/// Several processes may have the same state open; only [`StateStore::commit`] writes.
pub(crate) trait StateStore: BranchState + Send {
    /// Applies all of `changes`, in order, or none. On `Ok` they survive a power cut.
    ///
    /// Answers with the events among them as they are kept. A transition whose row is not in the
    /// state that it starts from is [`StateError::Conflict`].
    fn commit(&mut self, changes: &[Change]) -> Result<Vec<Event>, StateError>;

    /// As a [`StateStore::commit`] of each, one after the other; but what is durable together is
    /// waited for once. One that is refused leaves the others as they are.
    fn commit_each(&mut self, batches: &[&[Change]]) -> Vec<Result<Vec<Event>, StateError>>;

    /// Whether anybody else has committed since this was asked last, with another connection.
    fn is_changed_by_others(&mut self) -> Result<bool, StateError>;

    /// Whether the write-ahead log, which [`StateStore::fold`] empties, is so long that opening the
    /// state takes noticeable time.
    fn has_long_log(&self) -> bool;

    /// Brings everything that is durable to one place, and makes that the next commit has to wait
    /// for one sync only. Nothing depends on it, and it does not wait for readers.
    fn fold(&mut self) -> Result<(), StateError>;

    /// A session; `None`: unknown.
    fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, StateError>;

    /// Sessions that match, newest first.
    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRow>, StateError>;

    /// What a host says of a session.
    fn session_details(&self, id: &SessionId) -> Result<SessionDetails, StateError>;

    /// A run; `None`: unknown.
    fn run(&self, id: &RunId) -> Result<Option<RunRow>, StateError>;

    /// Runs that match, newest first.
    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRow>, StateError>;

    /// The ids of at least two, if there are, and of few runs whose id begins with one of the
    /// texts; in this workspace, if one is given.
    fn runs_that_begin(
        &self,
        prefixes: &[String],
        workspace_id: Option<&str>,
    ) -> Result<Vec<RunId>, StateError>;

    /// How many runs have an id that begins with one of the texts; in this workspace, if one is
    /// given.
    fn count_runs_that_begin(
        &self,
        prefixes: &[String; 2],
        workspace_id: Option<&str>,
    ) -> Result<u64, StateError>;

    /// The runs that have not ended, oldest first: under way, or to be resumed; none that waits in
    /// the queue.
    fn runs_not_ended(&self) -> Result<Vec<RunRow>, StateError>;

    /// What the queue has of a run; `None`: it was not submitted.
    fn queue_row(&self, run_id: &RunId) -> Result<Option<QueueRow>, StateError>;

    /// How many runs of a session wait in the queue.
    fn queued_in(&self, session_id: &SessionId) -> Result<u64, StateError>;

    /// How many runs wait in the queue.
    fn queue_length(&self) -> Result<u64, StateError>;

    /// The first run that waits of each session and priority, in the order of submission; of
    /// sessions that take runs. Nothing behind a damaged row is a head.
    fn queue_heads(&self) -> Result<Legible<QueueRow>, StateError>;

    /// The submitted runs that are claimed or under way, in the order of submission; also those
    /// whose rows are damaged, as far as they can be read.
    fn queue_taken(&self) -> Result<Legible<TakenRow>, StateError>;

    /// The runs that wait, with their adapters: interactive ones before batch ones, each in the
    /// order of submission.
    fn queue_waiting(&self) -> Result<Vec<(RunId, String)>, StateError>;

    /// Whose a run is; `None`: it is unknown, or of a version that had no leases.
    fn lease(&self, run_id: &RunId) -> Result<Option<Lease>, StateError>;

    /// Fails as a [`Change::Fence`] does: if the run was taken over, or is not under way.
    fn check_holds(&self, hold: &Hold) -> Result<(), StateError>;

    /// The phases of a run, in the order in which they were first begun.
    fn phases(&self, run_id: &RunId) -> Result<Vec<PhaseRow>, StateError>;

    /// The steps of a run, in the order in which they were first begun.
    fn steps(&self, run_id: &RunId) -> Result<Vec<StepRow>, StateError>;

    /// A phase of a run; `None`: nothing of it is on record.
    fn phase(&self, run_id: &RunId, key: &PhaseKey) -> Result<Option<PhaseRow>, StateError>;

    /// The parts of the steps of a run, in the order in which they were first begun.
    fn tasks(&self, run_id: &RunId) -> Result<Vec<TaskRow>, StateError>;

    /// The questions of a run, in the order in which they were first asked.
    fn questions(&self, run_id: &RunId) -> Result<Vec<QuestionRow>, StateError>;

    /// A question; `None`: unknown.
    fn question(&self, id: &QuestionId) -> Result<Option<QuestionRow>, StateError>;

    /// The questions whose id begins so, in the order in which they were first asked.
    fn questions_that_begin(&self, prefix: &str) -> Result<Vec<QuestionRow>, StateError>;

    /// The questions that wait for an answer, in the order in which they were first asked.
    fn open_questions(&self) -> Result<Vec<QuestionRow>, StateError>;

    /// The effects of a run on repositories, in the order in which they were wanted.
    fn effects(&self, run_id: &RunId) -> Result<Vec<EffectRow>, StateError>;

    /// The unsettled effects of one workspace, in the order in which they were wanted.
    fn pending_effects(&self, workspace_id: &str) -> Result<Vec<EffectRow>, StateError>;

    /// The commits that a run was the first to record, in that order.
    fn commits(&self, run_id: &RunId) -> Result<Vec<CommitRecord>, StateError>;

    /// A commit, by kind of repository and full id; `None`: not recorded.
    fn commit_record(&self, vcs: &str, commit: &str) -> Result<Option<CommitRecord>, StateError>;

    /// What a run amounts to; `None`: unknown.
    fn run_totals(&self, run_id: &RunId) -> Result<Option<RunTotals>, StateError>;

    /// What the events of a run add up to for its limits.
    fn used_total(&self, run_id: &RunId) -> Result<UsedTotal, StateError>;

    /// The time of the last event of a run that no host wrote.
    fn last_event_at(&self, run_id: &RunId) -> Result<Option<Timestamp>, StateError>;

    /// The agents that worked in a run, in the order in which they began.
    fn agents(&self, run_id: &RunId) -> Result<Vec<AgentRecord>, StateError>;

    /// The keys of the artifacts that are prompts of agents.
    fn prompt_keys(&self) -> Result<Vec<String>, StateError>;

    /// The reviews of a session, or of a run, or of all, in the order in which they were recorded.
    fn reviews(
        &self,
        session_id: Option<&SessionId>,
        run_id: Option<&RunId>,
    ) -> Result<Vec<ReviewRecord>, StateError>;

    /// The calls of tools in a run, in the order in which they were first told.
    fn tool_calls(&self, run_id: &RunId) -> Result<Vec<ToolCallRow>, StateError>;

    /// The state that a run keeps, sorted by key.
    fn state_values(&self, run_id: &RunId) -> Result<Vec<StateValue>, StateError>;

    /// One value of the state that a run keeps; `None`: the key has none.
    fn state_value(&self, run_id: &RunId, key: &str) -> Result<Option<StateValue>, StateError>;

    /// The changes of the state that a run keeps, in their order.
    fn state_transitions(&self, run_id: &RunId) -> Result<Vec<StateTransition>, StateError>;

    /// Events that match, in the order in which they were written.
    fn events(&self, query: &EventQuery) -> Result<Vec<Event>, StateError>;

    /// The position of the last event that was written to the whole log; zero: there was none.
    fn last_position(&self) -> Result<u64, StateError>;

    /// Up to where the events of a session were removed, or those of all; also of a session that
    /// was removed.
    fn event_floor(&self, session_id: Option<&SessionId>) -> Result<EventFloor, StateError>;

    /// A position up to which every event was written before this time, whatever the clock did;
    /// zero: none is known.
    fn last_position_before(&self, time: Timestamp) -> Result<u64, StateError>;

    /// The position of the last event before the last so many that there are, without those of some
    /// sessions; zero: there are not more.
    fn position_before_last(&self, count: u64, but: &[SessionId]) -> Result<u64, StateError>;

    /// The sessions that ended before this time, and those that ended before the last `keep` did,
    /// the oldest first; and whether anything else that is on record needs them.
    fn due_sessions(
        &self,
        ended_before: Option<Timestamp>,
        keep: Option<u64>,
    ) -> Result<Vec<DueSession>, StateError>;

    /// The sessions whose removal has begun, in that order.
    fn removals(&self) -> Result<Vec<SessionId>, StateError>;

    /// Fails if there is no such session, or it is being removed.
    fn check_accepts(&self, id: &SessionId) -> Result<(), StateError>;

    /// How much was ever written to a session; `NotFound` if there is none.
    fn session_extent(&self, id: &SessionId) -> Result<SessionExtent, StateError>;

    /// The keys under which a session has or had artifacts, but for those that another one uses.
    fn artifact_keys(&self, session_id: &SessionId) -> Result<Vec<String>, StateError>;

    /// The kinds of the stores that keep or kept artifacts of a session.
    fn artifact_stores(&self, session_id: &SessionId) -> Result<Vec<String>, StateError>;

    /// The event of this id; `None`: unknown.
    fn event(&self, id: &EventId) -> Result<Option<Event>, StateError>;

    /// The snapshots of a workspace, newest first.
    fn snapshots(&self, workspace_id: &str) -> Result<Vec<SnapshotRow>, StateError>;

    /// The snapshots that match, newest first.
    fn find_snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotRow>, StateError>;

    /// How many snapshots of the workspace there are. No row is read.
    fn snapshot_count(&self, workspace_id: &str) -> Result<u64, StateError>;

    /// The ids of the snapshots of a workspace, in no order. No document is read.
    fn snapshot_ids(&self, workspace_id: &str) -> Result<Vec<SnapshotId>, StateError>;

    /// Whether one of the newest snapshots of a workspace has this
    /// [`reference`](stillframe_backends::Snapshot::reference). A few are looked at, however many
    /// there are.
    fn is_among_newest(&self, workspace_id: &str, reference: &str) -> Result<bool, StateError>;

    /// A snapshot; `None`: unknown.
    fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRow>, StateError>;

    /// At most three snapshots whose id begins so, of one workspace or of any.
    fn snapshots_that_begin(
        &self,
        prefix: &str,
        workspace_id: Option<&str>,
    ) -> Result<Vec<SnapshotRow>, StateError>;

    /// How many snapshots have an id that begins so, of one workspace or of any.
    fn count_snapshots_that_begin(
        &self,
        prefix: &str,
        workspace_id: Option<&str>,
    ) -> Result<u64, StateError>;

    /// The snapshots that are pinned, of any workspace, in the order in which they were.
    fn pins(&self) -> Result<Vec<PinRow>, StateError>;

    /// The latest operation of a workspace that can be undone.
    fn latest_operation(&self, workspace_id: &str) -> Result<Option<OperationRow>, StateError>;

    /// The operation that records what a run changed.
    fn operation_of_run(&self, id: &RunId) -> Result<Option<OperationRow>, StateError>;

    /// The restore that took this guard, if its record is not written yet.
    fn restore(&self, guard: &SnapshotId) -> Result<Option<RestoreRow>, StateError>;

    /// The restore of a workspace that has begun and of which nothing further is known.
    fn restore_under_way(&self, workspace_id: &str) -> Result<Option<RestoreRow>, StateError>;

    /// The rollback of a run, if its record is not written yet.
    fn rollback_of_run(&self, id: &RunId) -> Result<Option<RestoreRow>, StateError>;

    /// Artifacts that are not deleted, oldest first.
    fn artifacts(&self, session_id: Option<&SessionId>) -> Result<Vec<ArtifactRecord>, StateError>;

    /// The artifacts of a run of this session that are not deleted, oldest first.
    fn artifacts_of_run(
        &self,
        session_id: &SessionId,
        run_id: &RunId,
    ) -> Result<Vec<ArtifactRecord>, StateError>;

    /// The artifact of this key that is not deleted.
    fn artifact(&self, key: &str) -> Result<Option<ArtifactRecord>, StateError>;

    /// Where a run works that has a worktree of its own; `None`: it has none.
    fn isolation(&self, run_id: &RunId) -> Result<Option<IsolationRow>, StateError>;

    /// What was to be changed in what the run has handed in, in the order of the numbers.
    fn revisions(&self, run_id: &RunId) -> Result<Vec<RevisionRow>, StateError>;

    /// The worktrees of runs that were not let go of, in the order in which the runs were accepted.
    fn isolations_kept(&self) -> Result<Vec<IsolationRow>, StateError>;

    /// What of all this is not as it was written, each in words; empty: nothing. Reads everything.
    fn problems(&self) -> Result<Vec<String>, StateError>;

    /// What the artifacts of a session amount to.
    fn session_stats(&self, session_id: &SessionId) -> Result<SessionStats, StateError>;
}

/// Which sessions to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionFilter {
    /// Empty: any.
    pub(crate) statuses: Vec<SessionStatus>,
    pub(crate) agent_id: Option<String>,
    pub(crate) parent_id: Option<SessionId>,
    /// All of them.
    pub(crate) tags: Vec<String>,
    pub(crate) limit: Option<u64>,
}

/// Which runs to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunFilter {
    pub(crate) session_id: Option<SessionId>,
    pub(crate) workspace_id: Option<String>,
    /// Empty: any.
    pub(crate) statuses: Vec<RunStatus>,
    /// Accepted at or after this time.
    pub(crate) since: Option<Timestamp>,
    /// Accepted before this time.
    pub(crate) until: Option<Timestamp>,
    /// Only those that work in the workspace itself, and in no worktree of their own.
    pub(crate) in_place: bool,
    pub(crate) limit: Option<u64>,
}

/// Which snapshots to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotFilter {
    pub(crate) workspace_id: String,
    pub(crate) label: Option<Label>,
    /// A label that they do not have.
    pub(crate) but: Option<Label>,
    /// Taken at or after this time.
    pub(crate) since: Option<Timestamp>,
    /// The run that took them.
    pub(crate) run_id: Option<RunId>,
    /// Only those of the workspace itself, and of no run's own worktree.
    pub(crate) in_place: bool,
    /// So many of the newest that match are passed over.
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
}

impl SnapshotFilter {
    /// All of a workspace.
    pub(crate) fn of(workspace: &Workspace) -> Self {
        Self {
            workspace_id: workspace.id().to_owned(),
            ..Self::default()
        }
    }
}
