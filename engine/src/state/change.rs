//! What is written to the state: a change, and an event without a sequence number.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use stillframe_backends::{ErrorKind, SnapshotId};

use crate::events::data::{RunEnded, data};
use crate::events::event::{Event, EventSource, EventType};
use crate::events::floor::EventPlace;
use crate::failure::Failure;
use crate::id::{AgentId, ArtifactId, EventId, RunId, SessionId, StepId};
use crate::policy::usage::Usage;
use crate::records::agent::AgentRecord;
use crate::records::artifact::ArtifactRecord;
use crate::records::came_for::CameFor;
use crate::records::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::records::lease::{Lease, Moment};
use crate::records::operation::OperationRow;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::queue::QueueRow;
use crate::records::restore_document::{RestoreDocument, RestoreRow};
use crate::records::review::ReviewRecord;
use crate::records::run::RunStatus;
use crate::records::run_row::{NewRun, RunEnding};
use crate::records::run_state::NewValue;
use crate::records::session::{SessionDetails, SessionStatus};
use crate::records::session_need::SessionNeed;
use crate::records::snapshot::{PinRow, SnapshotRow};
use crate::records::step::{PhaseRow, StepRow, StepStatus};
use crate::records::task::TaskRow;
use crate::records::tool_call::ToolCallMoved;
use crate::state::branch_change::BranchChange;
use crate::state::isolation_change::IsolationChange;

/// One thing to be written. Several are written together or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A session that is `pending`. One that exists is left as it is, which is no error.
    CreateSession { id: SessionId, at: Timestamp },
    /// What a host says of a session from now on; `NotFound` if there is no such session.
    DescribeSession {
        id: SessionId,
        details: Box<SessionDetails>,
    },
    /// A session's transition; only from this status and version.
    MoveSession {
        id: SessionId,
        from: SessionStatus,
        version: u64,
        to: SessionStatus,
        at: Timestamp,
    },
    /// A run that is `pending`. Its session must be active.
    CreateRun(Box<NewRun>),
    /// Puts a new run into the queue, if fewer than `max_queued` runs wait; its position is found
    /// when it is written.
    Enqueue { row: Box<QueueRow>, max_queued: u64 },
    /// Takes a run from the queue to begin it, only from this lease: the first that waits of its
    /// session and priority, if the session takes runs and fewer than so many are under way.
    ClaimQueued {
        run_id: RunId,
        from: Option<Box<Lease>>,
        lease: Box<Lease>,
        max_in_session: u64,
    },
    /// Puts a run back into the queue whose work has not begun, only from this epoch, and only if
    /// nobody has asked for its end. One whose session has ended is withdrawn.
    Requeue {
        run_id: RunId,
        epoch: u64,
        free: Box<Lease>,
        withdrawal: Box<Withdrawal>,
    },
    /// Cancels what waits in a session, which ends.
    WithdrawQueued {
        session_id: SessionId,
        withdrawal: Box<Withdrawal>,
    },
    /// A run's transition; only from this status, and from `persisting` only to what the run came
    /// for. `came_for` goes with a transition to `persisting` or `blocked`, and is kept as long as
    /// the work is being saved, and so is `ending`.
    MoveRun {
        id: RunId,
        from: RunStatus,
        to: RunStatus,
        at: Timestamp,
        ending: Option<Box<RunEnding>>,
        came_for: Option<CameFor>,
    },
    /// Writes what follows only if the lease of the run is of this epoch, so that an owner that was
    /// taken for dead changes nothing.
    Fence { run_id: RunId, epoch: u64 },
    /// Takes a run over, only from this lease, of this epoch and not renewed since; `None`: it has
    /// none. The run's next snapshot after its work gets the id `after`.
    ClaimLease {
        run_id: RunId,
        from: Option<Box<Lease>>,
        lease: Box<Lease>,
        after: Option<SnapshotId>,
    },
    /// Writes nothing with it if somebody has asked for the run to be cancelled, which is a
    /// [`StateError::Conflict`].
    RefuseIfCancelled(RunId),
    /// Writes nothing with it if something that the run has started has said, since its work began
    /// last, that this cannot go on without a person, which is a [`StateError::Conflict`].
    RefuseIfReported(RunId),
    /// What the host says of a run from now on: the key `metadata` of its options.
    SetMetadata { run_id: RunId, metadata: Value },
    /// The limits of the engines that had a run until its work begins, of each the strictest.
    SetEngineLimits { run_id: RunId, limits: Value },
    /// Holds a lease for longer, only one of this epoch.
    RenewLease {
        run_id: RunId,
        epoch: u64,
        expires: Moment,
        at: Timestamp,
    },
    /// Asks the engine that holds the run to cancel it.
    RequestCancel { run_id: RunId, at: Timestamp },
    /// A phase as it is now, only from this status; `None`: it is new.
    PutPhase {
        run_id: RunId,
        from: Option<StepStatus>,
        row: Box<PhaseRow>,
    },
    /// A step as it is now, only from this status; `None`: it is new. Its phase is there. The
    /// commit of one whose attempt is under way already stays as [`Change::SetStepCommit`] has it,
    /// which may have come since the row was read.
    PutStep {
        run_id: RunId,
        from: Option<StepStatus>,
        row: Box<StepRow>,
    },
    /// A part of a step as it is now; one that begins while another of its name is under way in the
    /// same attempt is [`StateError::Exists`].
    PutTask(Box<TaskRow>),
    /// A question as it is now, only from this status; `None`: it is new in its place.
    PutQuestion {
        from: Option<QuestionStatus>,
        row: Box<QuestionRow>,
    },
    /// An effect as it is now, only from this status; `None`: it is new.
    PutEffect {
        from: Option<EffectStatus>,
        row: Box<EffectRow>,
    },
    /// A commit. One that is known keeps its first owner and time, and gets the rest.
    RecordCommit(Box<CommitRecord>),
    /// The last commit that a step made.
    SetStepCommit {
        run_id: RunId,
        step_id: StepId,
        commit: String,
    },
    /// An agent that begins to work.
    BeginAgent(Box<AgentRecord>),
    /// What became of an agent, only of one that works. Its tokens stay as events have told them.
    MoveAgent(Box<AgentRecord>),
    /// A review.
    RecordReview(Box<ReviewRecord>),
    /// A value of the state that a run keeps, with its transition; if it is that already, nothing
    /// is written.
    SetState(Box<NewValue>),
    /// An event. One whose id exists is answered as it is kept; if a host or an adapter has sent it
    /// and it says something else there, that is a [`StateError::Conflict`].
    Append(NewEvent),
    /// A snapshot. One that exists gets the owner that is given here.
    AddSnapshot(Box<SnapshotRow>),
    /// Snapshots that the store no longer has.
    ForgetSnapshots(Vec<SnapshotId>),
    /// Events that nothing needs, with the rows of the artifacts that have their data. Of each
    /// session they are the first that are left, but for those that the engine itself needs. Their
    /// numbers and positions are not given again.
    ForgetEvents(Vec<EventPlace>),
    /// Runs that have ended, with all that is on record of them but snapshots, artifacts and
    /// events.
    ForgetRuns(Vec<RunId>),
    /// A session whose removal begins: its artifacts are deleted, and nothing is written to it
    /// until it is removed. If it is needed, or was written to, that is a [`StateError::Conflict`].
    BeginRemoval(Box<SessionRemoval>),
    /// Writes nothing with it, unless the session is being removed.
    IfBeingRemoved(SessionId),
    /// A session that is being removed, without runs and events; if it has one of them, that is a
    /// [`StateError::Conflict`]. Should it be made again, its numbers go on.
    ForgetSession(SessionId),
    /// A snapshot that is kept until it is unpinned, whatever becomes of its row. One that is
    /// pinned stays so.
    PinSnapshot { row: PinRow, at: Timestamp },
    /// A snapshot that is pinned no more; that it was not is no error.
    UnpinSnapshot(SnapshotId),
    /// Snapshots, oldest first: they share the places that they have in the order of snapshots
    /// anew. Others keep theirs; an id that is unknown is no error.
    OrderSnapshots(Vec<SnapshotId>),
    /// An operation that can be undone.
    AddOperation(Box<OperationRow>),
    /// A restore that is about to begin, or one that recovery has finished and whose run is still
    /// to be settled. There is one at a time in a workspace: an earlier one without an outcome is
    /// dropped, because it came to nothing.
    BeginRestore(Box<RestoreRow>),
    /// A restore is on record, or came to nothing. One that is unknown is no error.
    EndRestore(SnapshotId),
    /// How the rollback of a run that has ended came out after all; `NotFound` if there is no such
    /// run.
    SetRollback {
        run_id: RunId,
        rollback: Box<RestoreDocument>,
    },
    /// An artifact. The row that has its key is marked as deleted.
    RegisterArtifact(Box<ArtifactRecord>),
    /// Takes the patches out of the records of these runs, embedded or as one of these artifacts,
    /// and notes that they were purged.
    RemovePatches {
        runs: Vec<RunId>,
        artifacts: Vec<String>,
    },
    /// Leaves no byte on disk of what was taken out before. Goes with no other change: it is none,
    /// and is repeated if it fails. It is `Busy` while another process reads.
    Scrub,
    /// Gives the disk back what nothing is in any more, where that is much of all. Goes with no
    /// other change: it is none.
    Compact,
    /// Marks the artifact of this key as deleted, with an id only that one; `NotFound` if there is
    /// none.
    DeleteArtifact {
        key: String,
        id: Option<ArtifactId>,
        at: Timestamp,
    },
    /// Something of work that leaves the machine.
    Branch(Box<BranchChange>),
    /// Something of a run that works in a worktree of its own.
    Isolation(IsolationChange),
}

impl Change {
    /// Whether it tells of a capture, and the store of the workspace could tell it again.
    pub(crate) fn is_of_a_capture(&self) -> bool {
        match self {
            Self::AddSnapshot(_) => true,
            Self::Append(event) => event.event_type == EventType::WORKSPACE_SNAPSHOT_TAKEN,
            _ => false,
        }
    }
}

/// A session that has ended, to be removed as it was looked at.
#[derive(Clone, Debug)]
pub(crate) struct SessionRemoval {
    pub(crate) id: SessionId,
    /// As in [`StateStore::due_sessions`](super::StateStore::due_sessions).
    pub(crate) ended_before: Option<Timestamp>,
    pub(crate) keep: Option<u64>,
    /// What there was of it.
    pub(crate) seen: SessionExtent,
    pub(crate) at: Timestamp,
}

/// A session that has ended and need not be kept for its own sake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueSession {
    pub(crate) id: SessionId,
    /// What needs it; `None`: it can be removed.
    pub(crate) needed_by: Option<SessionNeed>,
}

/// How much was ever written to a session; what was removed is counted too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionExtent {
    pub(crate) last_sequence: u64,
    pub(crate) artifacts: u64,
}

/// How a run ends that waits in the queue of a session that ends.
#[derive(Clone, Debug)]
pub(crate) struct Withdrawal {
    pub(crate) at: Timestamp,
    pub(crate) ending: RunEnding,
    /// What its last event says.
    pub(crate) said: Value,
}

impl Withdrawal {
    /// At this time.
    pub(crate) fn at(at: Timestamp) -> Self {
        let message = "its session ended before its work began";
        let failure = Failure::new(ErrorKind::Cancelled.as_str(), message);
        Self {
            at,
            said: data(&RunEnded::because(&failure)),
            ending: RunEnding::because(failure),
        }
    }
}

/// An event that is not written yet; its sequence number is found when it is.
#[derive(Clone, Debug)]
pub(crate) struct NewEvent {
    pub(crate) id: EventId,
    pub(crate) event_type: EventType,
    pub(crate) session_id: SessionId,
    pub(crate) run_id: Option<RunId>,
    pub(crate) at: Timestamp,
    pub(crate) source: EventSource,
    pub(crate) provider: Option<String>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) data: Value,
    pub(crate) data_ref: Option<String>,
    /// What it says of its run that the run's records have too. It is written with the event, and
    /// not again if the event is there already.
    pub(crate) reported: Option<Reported>,
}

/// What an event says of its run that the run's records have too.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reported {
    /// A call of a tool began, or ended.
    Call(Box<ToolCallMoved>),
    /// Tokens were used, by this agent if somebody said so. One that is on no record is nobody.
    Tokens(Box<(Usage, Option<AgentId>)>),
}

impl NewEvent {
    /// An event with a random id.
    pub(crate) fn new(
        event_type: EventType,
        session_id: &SessionId,
        run_id: Option<&RunId>,
        at: Timestamp,
        said: impl Serialize,
    ) -> Self {
        Self {
            id: EventId::random(),
            event_type,
            session_id: session_id.clone(),
            run_id: run_id.cloned(),
            at,
            source: EventSource::Engine,
            provider: None,
            correlation_id: None,
            metadata: Map::new(),
            data: data(&said),
            data_ref: None,
            reported: None,
        }
    }

    /// Whether `stored`, which has its id, says the same. When it was written does not count.
    pub(crate) fn is_told_by(&self, stored: &Event) -> bool {
        self.event_type == stored.event_type
            && self.session_id == stored.session_id
            && self.run_id == stored.run_id
            && self.source == stored.source
            && self.provider == stored.provider
            && self.correlation_id == stored.correlation_id
            && self.metadata == stored.metadata
            && self.data == stored.data
            && self.data_ref == stored.data_ref
    }
}
