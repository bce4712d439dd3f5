//! Events: durable, ordered, with a position in the whole log and a number in their session.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::id::{EventId, RunId, SessionId};

/// The version of the envelope that this version writes.
pub const EVENT_SCHEMA_VERSION: u32 = 1;

/// Something that happened, as it is kept in the log.
///
/// Its data has ids, counts, states and paths: never the content of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Event {
    /// Names this event for ever.
    pub id: EventId,
    /// Its place in the log of all sessions: larger than that of every event before it, and never
    /// used again in this database. There are gaps.
    #[serde(default)]
    pub position: u64,
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// When; for information only, since clocks go backwards. Order by `sequence`.
    pub timestamp: Timestamp,
    /// The session it belongs to.
    pub session_id: SessionId,
    /// The run it belongs to, if any.
    pub run_id: Option<RunId>,
    /// Its place in the session: 1, 2, 3 and so on without a gap.
    pub sequence: u64,
    /// The version of this envelope: [`EVENT_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Who wrote it.
    #[serde(default)]
    pub source: EventSource,
    /// Who serves what it is about, such as the provider of a model: the writer's words.
    #[serde(default)]
    pub provider: Option<String>,
    /// What the writer finds it by in other records.
    #[serde(default)]
    pub correlation_id: Option<String>,
    /// Whatever else the writer keeps with it.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// What there is to say about it, by type; null where an artifact has it.
    pub data: Value,
    /// The key of the artifact that has the data, as JSON, because that is large:
    /// [`Engine::event_data`](crate::Engine::event_data) reads it.
    #[serde(default)]
    pub data_ref: Option<String>,
}

/// Who wrote an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventSource {
    /// The engine, of what it did itself.
    #[default]
    Engine,
    /// The adapter of a run, of what it did or was told.
    Adapter,
    /// The host, outside of a run's work.
    Host,
}

impl EventSource {
    /// The source of this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let all = [Self::Engine, Self::Adapter, Self::Host];
        all.into_iter().find(|source| source.as_str() == name)
    }

    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Adapter => "adapter",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened. Written in snake case.
///
/// Hosts and adapters may write types of their own, and those among the constants that say so.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[a-z][a-z0-9_]{0,63}$")))]
#[serde(transparent)]
pub struct EventType(std::borrow::Cow<'static, str>);

macro_rules! event_types {
    ($meanings:ident: $($(#[doc = $doc:literal])+ $name:ident = $text:literal;)+) => {
        impl EventType {
            $($(#[doc = $doc])+ pub const $name: Self = Self(std::borrow::Cow::Borrowed($text));)+

            #[cfg(feature = "schema")]
            pub(crate) const $meanings: &'static [(Self, &'static str)] =
                &[$((Self::$name, concat!($($doc),+))),+];
        }
    };
    ($meanings:ident, $list:ident: $($(#[doc = $doc:literal])+ $name:ident = $text:literal;)+) => {
        event_types! { $meanings: $($(#[doc = $doc])+ $name = $text;)+ }

        impl EventType {
            const $list: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

event_types! { MEANINGS_OF_THE_ENGINE, OF_THE_ENGINE:
    /// A session was made.
    SESSION_CREATED = "session_created";
    /// A session takes runs.
    SESSION_STARTED = "session_started";
    /// A session takes no runs until it is resumed.
    SESSION_PAUSED = "session_paused";
    /// A session takes runs again.
    SESSION_RESUMED = "session_resumed";
    /// A session ended well.
    SESSION_COMPLETED = "session_completed";
    /// A session ended badly.
    SESSION_FAILED = "session_failed";
    /// A session was given up.
    SESSION_CANCELLED = "session_cancelled";
    /// A run was submitted, and waits to be begun. Data: `adapter`, `priority`.
    RUN_QUEUED = "run_queued";
    /// A run's work begins.
    RUN_STARTED = "run_started";
    /// A run ended well.
    RUN_COMPLETED = "run_completed";
    /// A run ended badly, or was refused.
    RUN_FAILED = "run_failed";
    /// A run was cancelled.
    RUN_CANCELLED = "run_cancelled";
    /// A run's time was up.
    RUN_TIMEOUT = "run_timeout";
    /// The engine of a run died or stopped in the middle; it can be resumed. Data: `reason`.
    RUN_INTERRUPTED = "run_interrupted";
    /// The work of a run has stopped, because it cannot go on without a person. Data: `reason`,
    /// `worked_ms`.
    RUN_BLOCKED = "run_blocked";
    /// A command of a run says that it cannot go on without a person: the run is blocked once it
    /// has ended. Data: `reason`, `flow`, `context`.
    BLOCK_REPORTED = "block_reported";
    /// The work of a run is about to be saved on its work branch. Data: `task_id`, `checkpoint`
    /// (`wip`, `periodic` or `blocked`), `file_count`.
    PERSIST_STARTED = "persist_started";
    /// The store has a commit of the work. Data: `task_id`, `repository`, `branch`, `commit`,
    /// `unconverted_paths`.
    PERSIST_COMMITTED = "persist_committed";
    /// There was nothing new, and the work branch is proven to have all that there is. Data: as of
    /// `persist_committed`.
    PERSIST_NOOP = "persist_noop";
    /// The work branch is proven to have the commit. Data: as of `persist_committed`, and
    /// `advanced_to` if somebody has moved the branch on from there.
    PERSIST_PUSHED = "persist_pushed";
    /// The work is not known to be on its work branch. Data: `task_id`, `repository`, `branch`,
    /// `commit`, `kind` (a [`FailureKind`](crate::records::FailureKind)), `reason`, and `findings`
    /// of secret values.
    PERSIST_FAILED = "persist_failed";
    /// The work of a task was not saved several times in a row, and a person should look. Data:
    /// `task_id`, `failures`, `kind`.
    PERSIST_FLAGGED = "persist_flagged";
    /// The user let go of work that no remote is proven to have. Data: `task_id`, `repository`,
    /// `commit`, `checkpoints`.
    CHECKPOINT_DISCARDED = "checkpoint_discarded";
    /// The user lets work be sent although this was found in it. Data: `repository`, `rule`, `path`
    /// (null: in a message, or in the name of an author), `fingerprint`.
    SECRET_ALLOWED = "secret_allowed";
    /// The user does so no more. Data: as before.
    SECRET_FORBIDDEN = "secret_forbidden";
    /// The work branch had commits that this side did not know, and they are merged with the work
    /// to be pushed once more. Data: `task_id`, `branch`.
    PUSH_DIVERGENCE_RETRIED = "push_divergence_retried";
    /// The work branch has the commits of both sides. Data: as before.
    PUSH_DIVERGENCE_RECOVERED = "push_divergence_recovered";
    /// The work branch has commits that the work does not go on from, and stays as it is. Data: as
    /// before, and `side_branch`, which has the work.
    PUSH_DIVERGENCE_FAILED = "push_divergence_failed";
    /// A blocked task can be looked at, and gone on with, from its branch. Data: `task_id`,
    /// `branch`, `commit`, `reason`.
    CHECKPOINT_READY = "checkpoint_ready";
    /// People outside were told of a checkpoint. Data: `task_id`, `notice` (`checkpoint_ready` or
    /// `checkpoint_failed`), `token`.
    CHECKPOINT_NOTICE_POSTED = "checkpoint_notice_posted";
    /// They had been told before. Data: the same, and `reason`.
    CHECKPOINT_NOTICE_SKIPPED = "checkpoint_notice_skipped";
    /// A task waits for new input, and its branch is proven to have its work. Data: `task_id`,
    /// `branch`.
    FOLLOWUP_WAITING = "followup_waiting";
    /// There is new input for a task that waits. Data: the same, `input_id`.
    FOLLOWUP_DETECTED = "followup_detected";
    /// A run that goes on with a task was submitted. Data: the same, `run_id`.
    FOLLOWUP_ENQUEUED = "followup_enqueued";
    /// A run goes on with a task from its stored branch. Data: the same, and the `text` of the
    /// input.
    FOLLOWUP_RESUMED = "followup_resumed";
    /// No other run gets this input. Data: the same.
    FOLLOWUP_CONSUMED = "followup_consumed";
    /// The work of a run ended well in a worktree of its own, and what it hands in for review is
    /// being made. Data: `commit`, `parent` and `tree` of the commit that is about to be made
    /// (null: there is nothing to commit), `out_of_scope`.
    RUN_CONCLUDED = "run_concluded";
    /// The work of a run with a worktree of its own has changed nothing, and worktree and branch
    /// are let go of. Data: `message`.
    RUN_NO_CHANGES_PRODUCED = "run_no_changes_produced";
    /// What a run has handed in waits for somebody's decision. Data: `request_id`, `branch`,
    /// `base`, `commit`, `tree`, and `recovered` where it was found as it should be after its
    /// engine had died.
    REVIEW_REQUESTED = "review_requested";
    /// What a run has handed in is not wanted; its worktree and its branch stay. Data:
    /// `request_id`, `reviewer`.
    REVIEW_DECLINED = "review_declined";
    /// What a run has handed in was approved. Data: `request_id`, `reviewer`.
    REVIEW_APPROVED = "review_approved";
    /// Something is to be changed in what a run has handed in. Data: `revision`, `comment`,
    /// `reviewer`.
    REVIEW_CHANGES_REQUESTED = "review_changes_requested";
    /// A run works on that, in the same worktree. Data: `revision`.
    REVISION_STARTED = "revision_started";
    /// What was approved is about to be merged. Data: `tree`, `branch` (the originating one),
    /// `target_advanced` (others have moved it since the run was cut from it).
    MERGE_STARTED = "merge_started";
    /// The originating branch has what was approved. Data: `commit`, `previous_head`, `new_head`,
    /// `mode` (`ref-only`, `fast-forward-files` or `merged-files`), `fast_forward`, `left_behind`
    /// (the work trees whose files stayed as they were).
    MERGE_COMPLETED = "merge_completed";
    /// What was approved conflicts with what others have done. Data: `conflicting_files` (the first
    /// fifty), `more`.
    MERGE_CONFLICTED = "merge_conflicted";
    /// What was approved cannot be merged; worktree and branch of the run stay. Data: `reason`.
    MERGE_FAILED = "merge_failed";
    /// Something is in the way of a merge, and nothing moved. Data: `reason`.
    MERGE_BLOCKED = "merge_blocked";
    /// Worktree and branch of a run were let go of. Data: `branch`, `commit` (where that was),
    /// `snapshot_id` (what was in the worktree; null: there was none).
    WORKTREE_LET_GO = "worktree_let_go";
    /// A phase begins, or is gone on with. Data: `phase`, `iteration`.
    PHASE_STARTED = "phase_started";
    /// A phase ended well. Data: as of its beginning, and `duration_ms`.
    PHASE_COMPLETED = "phase_completed";
    /// A phase ended with a step that failed.
    PHASE_FAILED = "phase_failed";
    /// A phase was left out. Data: `phase`, `iteration`, `reason`.
    PHASE_SKIPPED = "phase_skipped";
    /// A phase ended with its run, which was cancelled.
    PHASE_CANCELLED = "phase_cancelled";
    /// A phase was interrupted with its run.
    PHASE_INTERRUPTED = "phase_interrupted";
    /// An attempt at a step begins. Data: `step_id`, `phase`, `iteration`, `step`, `attempt`,
    /// `snapshot_before`.
    STEP_STARTED = "step_started";
    /// A step is done, and is not done again. Data: the same, `snapshot_after`, `duration_ms`.
    STEP_COMPLETED = "step_completed";
    /// An attempt at a step failed. Data: the same, `reason`, and `retry_in_ms` if there is
    /// another.
    STEP_FAILED = "step_failed";
    /// A step was left out. Data: as of its beginning, and `reason`.
    STEP_SKIPPED = "step_skipped";
    /// A step ended with its run, which was cancelled.
    STEP_CANCELLED = "step_cancelled";
    /// A step was interrupted with its run; `snapshot_after` is what it left.
    STEP_INTERRUPTED = "step_interrupted";
    /// A part of a step's work begins. Data: `step_id`, `task`, `attempt`.
    TASK_STARTED = "task_started";
    /// A part of a step's work ended well. Data: the same, `duration_ms`.
    TASK_COMPLETED = "task_completed";
    /// A part of a step's work failed. Data: the same, `kind`, `reason`.
    TASK_FAILED = "task_failed";
    /// A run asks, and waits. Data: `question_id`, `step_id`, `question`, `deadline`,
    /// `work_goes_on`.
    QUESTION_ASKED = "question_asked";
    /// Nobody answered for long, and the run rests until somebody does. Data: `questions`, a list
    /// of ids; `reason`.
    QUESTION_PARKED = "question_parked";
    /// A question has its answer. Data: as of its asking, `answer`, `timed_out`.
    QUESTION_ANSWERED = "question_answered";
    /// A run goes on with an answer. Data: as of its asking.
    QUESTION_CONSUMED = "question_consumed";
    /// A run goes on, or ends, without the answer. Data: as of its asking.
    QUESTION_WITHDRAWN = "question_withdrawn";
    /// A step wants a commit, and it is about to be made. Data: `effect_id`, `step_id`,
    /// `reference`, `parent`, `tree`.
    COMMIT_WANTED = "commit_wanted";
    /// A commit that a step wanted is in its branch. Data: `effect_id`, `step_id`, `commit`,
    /// `parent`, `reference`, `is_adopted`.
    COMMIT_CREATED = "commit_created";
    /// A commit that a step wanted cannot be made. Data: `effect_id`, `step_id`, `kind`, `reason`.
    COMMIT_FAILED = "commit_failed";
    /// A commit that something else made is on record. Data: `step_id`, `commit`.
    COMMIT_RECORDED = "commit_recorded";
    /// A snapshot is durable. Data: `label`, `backend`, `ref`, `snapshot_id`.
    WORKSPACE_SNAPSHOT_TAKEN = "workspace_snapshot_taken";
    /// Two snapshots were compared. Data: `files_changed`, `insertions`, `deletions`, `has_patch`,
    /// and `patch_ref` where an artifact has the patch: it is there by then.
    WORKSPACE_DIFF_COMPUTED = "workspace_diff_computed";
    /// A workspace was put back. Data: `to`, `guard`, `leftover_ignored`, `operation`, `durations`.
    WORKSPACE_ROLLED_BACK = "workspace_rolled_back";
    /// Content was taken out of what is kept. Data: `contents`, `bytes`, `snapshots`, `runs`,
    /// `artifacts`, `freed_bytes`, `proven`; no path and no content.
    WORKSPACE_CONTENT_PURGED = "workspace_content_purged";
    /// A clean-up removed something. Data: `snapshots` (ids), `artifacts` (keys),
    /// `safety_refs_removed` (names), `moved_tags`.
    WORKSPACE_CLEANED_UP = "workspace_cleaned_up";
    /// What the retention would forget was told for the first time. Data: `snapshots` (how many),
    /// `begins_at`.
    WORKSPACE_RETENTION_ANNOUNCED = "workspace_retention_announced";
    /// The engine failed beside the work of a run. Data: `kind`, `message`.
    ERROR_OCCURRED = "error_occurred";
    /// A run did, or was about to do, what its policy or a limit forbids. Data: a
    /// [`PolicyViolation`](crate::policy::PolicyViolation), which has `kind`, `message`, `action`,
    /// and what it is about.
    POLICY_VIOLATION = "policy_violation";
}

// The engine writes them for tools that it calls itself; an adapter around a foreign agent for
// those that the agent calls.
event_types! { MEANINGS_OF_ENGINE_AND_ADAPTERS, OF_ENGINE_AND_ADAPTERS:
    /// A tool is called. Data: `call_id`, which pairs it with its end, `tool_name`, `input`,
    /// `snapshot_before`. An adapter may write it, and with a `call_id` of 1 to 200 bytes it is the
    /// [record](crate::records::ToolCallRecord) of a call.
    ///
    /// An `input` or `output` of 1,024 bytes or more becomes an artifact: instead of it the data
    /// has `input_ref`, `input_summary` and `input_size_bytes`, or the same of the output.
    TOOL_CALL_STARTED = "tool_call_started";
    /// A call of a tool succeeded. Data: the same without `input`, `output`, `snapshot_after`,
    /// `warning`. An adapter may write it.
    TOOL_CALL_COMPLETED = "tool_call_completed";
    /// A call of a tool failed. Data: as of its beginning, `kind`, `reason`, and `rollback` if what
    /// it did could not be undone. An adapter may write it.
    TOOL_CALL_FAILED = "tool_call_failed";
}

// What hosts and adapters have in common, so that a reader knows it whoever wrote it.
event_types! { MEANINGS_IN_COMMON:
    /// A message was given to an agent or a model. Data is the writer's; a transcript shows `role`,
    /// `message_id`, and `text` or `content`.
    MESSAGE_SENT = "message_sent";
    /// An agent or a model answered with a message. Data is the writer's.
    MESSAGE_RECEIVED = "message_received";
    /// A piece of a message came. Data: `message_id`, `text` and `piece` if it was written by
    /// [`RunContext::stream_message`](crate::RunContext::stream_message), else the writer's.
    MESSAGE_STREAMED = "message_streamed";
    /// An agent ended its turn. Data is the writer's.
    TURN_COMPLETED = "turn_completed";
    /// This was used since the last report: a [`Usage`](crate::policy::Usage), which has
    /// `input_tokens`, `output_tokens` and `cost`, no totals. The tokens are added to [the totals
    /// of the run](crate::records::RunRecord::total_tokens). Further keys are the writer's; up to
    /// 64 KiB.
    TOKEN_USAGE_UPDATED = "token_usage_updated";
    /// An error that occurred is overcome. Data: `kind`, `message`.
    ERROR_RECOVERED = "error_recovered";
    /// A call of a tool waits for somebody to allow it. Data: `call_id`, `tool_name`, `url`,
    /// `message`. The engine writes it where a [policy asks](crate::policy::PolicyDecision::Ask),
    /// with the `question_id` of what is asked, and the `call_id` of a call that an adapter tells
    /// of.
    TOOL_APPROVAL_REQUESTED = "tool_approval_requested";
    /// A call of a tool was allowed. Data: as of its request. The engine writes it when the run
    /// gets the answer.
    TOOL_APPROVAL_GRANTED = "tool_approval_granted";
    /// A call of a tool was refused. Data: as of its request. The engine writes it when the run
    /// gets the answer.
    TOOL_APPROVAL_DENIED = "tool_approval_denied";
}

impl EventType {
    /// A type of the host's own: 1 to 64 lower-case letters, digits or `_`, the first a letter. It
    /// is refused where it is used if it is none; `parse` refuses it at once.
    pub fn new(text: impl Into<String>) -> Self {
        Self(std::borrow::Cow::Owned(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether events of this type may come from there.
    pub(crate) fn may_be_written_by(&self, source: EventSource) -> bool {
        match source {
            EventSource::Engine => true,
            EventSource::Adapter => !Self::OF_THE_ENGINE.contains(self),
            EventSource::Host => {
                !Self::OF_THE_ENGINE.contains(self) && !Self::OF_ENGINE_AND_ADAPTERS.contains(self)
            }
        }
    }

    /// Fails unless it is a type that there may be.
    pub(crate) fn check(&self) -> Result<(), InvalidEventType> {
        let text = self.as_str().as_bytes();
        let all = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_';
        let is_well_formed =
            (1..=64).contains(&text.len()) && text[0].is_ascii_lowercase() && text.iter().all(all);
        match is_well_formed {
            true => Ok(()),
            false => Err(InvalidEventType {
                text: self.as_str().chars().take(64).collect(),
            }),
        }
    }
}

/// Some text is no type of events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no type of events: 1 to 64 lower-case letters, digits or \"_\", the first a letter"
)]
pub struct InvalidEventType {
    text: String,
}

impl FromStr for EventType {
    type Err = InvalidEventType;

    fn from_str(text: &str) -> Result<Self, InvalidEventType> {
        let event_type = Self::new(text);
        event_type.check()?;
        Ok(event_type)
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
