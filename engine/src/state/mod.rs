//! What must survive the engine: the port that keeps it. [`sqlite`] implements it, with a file for the rows of each noun.

#[cfg(test)]
pub(crate) mod contract;
#[cfg(test)]
mod earlier_versions;
pub(crate) mod liveness;
pub(crate) mod reserve;
mod row_sum;
pub(crate) mod snapshot_name;
pub(crate) mod sqlite;

use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::Value;
use stillframe_backends::{ErrorKind, Label, PathError, SnapshotId, Workspace};

use crate::events::event::{Event, EventQuery, EventType};
use crate::id::{EventId, QuestionId, RunId, SessionId, StepId};
use crate::records::artifact::{ArtifactRecord, SessionStats};
use crate::records::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::records::lease::{Lease, Moment};
use crate::records::operation::OperationRow;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::restore_document::{RestoreDocument, RestoreRow};
use crate::records::run::RunStatus;
use crate::records::run_row::{NewRun, RunEnding, RunRow};
use crate::records::session::{SessionRow, SessionStatus};
use crate::records::snapshot::{PinRow, SnapshotRow};
use crate::records::step::{PhaseKey, PhaseRow, StepRow, StepStatus};
use crate::records::task::TaskRow;

/// Keeps sessions, runs, events, snapshots, operations and artifacts. Every method blocks.
///
/// Several processes may have the same state open; only [`StateStore::commit`] writes.
pub(crate) trait StateStore: Send {
    /// Applies all of `changes`, in order, or none. On `Ok` they survive a power cut.
    ///
    /// Answers with the events among them as they are kept. A transition whose row is not in the
    /// state that it starts from is [`StateError::Conflict`].
    fn commit(&mut self, changes: &[Change]) -> Result<Vec<Event>, StateError>;

    /// Whether anybody else has committed since this was asked last, with another connection.
    fn is_changed_by_others(&mut self) -> Result<bool, StateError>;

    /// Whether so much is beside the one place that [`StateStore::fold`] brings it to that whoever opens this waits for it.
    fn has_long_log(&self) -> bool;

    /// Brings everything that is durable to one place, and makes that the next commit has to wait for one sync
    /// alone. Nothing depends on it, and nobody is waited for.
    fn fold(&mut self) -> Result<(), StateError>;

    /// A session; `None`: unknown.
    fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, StateError>;

    /// Every session, oldest first.
    fn sessions(&self) -> Result<Vec<SessionRow>, StateError>;

    /// A run; `None`: unknown.
    fn run(&self, id: &RunId) -> Result<Option<RunRow>, StateError>;

    /// Runs that match, newest first.
    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRow>, StateError>;

    /// The ids of at least two, if there are, and of few runs whose id begins with one of the texts; in this
    /// workspace, if one is given.
    fn runs_that_begin(
        &self,
        prefixes: &[String],
        workspace_id: Option<&str>,
    ) -> Result<Vec<RunId>, StateError>;

    /// How many runs have an id that begins with one of the texts; in this workspace, if one is given.
    fn count_runs_that_begin(
        &self,
        prefixes: &[String; 2],
        workspace_id: Option<&str>,
    ) -> Result<u64, StateError>;

    /// The runs that have not ended, oldest first: under way, or to be resumed.
    fn runs_not_ended(&self) -> Result<Vec<RunRow>, StateError>;

    /// Whose a run is; `None`: it is unknown, or of a version that had no leases.
    fn lease(&self, run_id: &RunId) -> Result<Option<Lease>, StateError>;

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

    /// The effects that nobody has settled, of one workspace, in the order in which they were wanted.
    fn pending_effects(&self, workspace_id: &str) -> Result<Vec<EffectRow>, StateError>;

    /// The commits that a run was the first to record, in that order.
    fn commits(&self, run_id: &RunId) -> Result<Vec<CommitRecord>, StateError>;

    /// A commit, by kind of repository and full id; `None`: nobody has recorded it.
    fn commit_record(&self, vcs: &str, commit: &str) -> Result<Option<CommitRecord>, StateError>;

    /// Events that match, in the order in which they were written, each with its position in the
    /// whole log; only those at a position after `after_position`.
    fn events(
        &self,
        query: &EventQuery,
        after_position: u64,
    ) -> Result<Vec<(u64, Event)>, StateError>;

    /// The position of the last event in the whole log; zero: there is none.
    fn last_position(&self) -> Result<u64, StateError>;

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

    /// Whether one of the newest snapshots of a workspace has this [`reference`](stillframe_backends::Snapshot::reference).
    /// A few are looked at, however many there are.
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

    /// The latest operation of a workspace that an undo can take back.
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

    /// The artifact of this key that is not deleted.
    fn artifact(&self, key: &str) -> Result<Option<ArtifactRecord>, StateError>;

    /// What of all this is not as it was written, each in words; empty: nothing. Reads everything.
    fn problems(&self) -> Result<Vec<String>, StateError>;

    /// What the artifacts of a session amount to.
    fn session_stats(&self, session_id: &SessionId) -> Result<SessionStats, StateError>;
}

/// One thing to be written. Several are written together or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A session that is `pending`. One that exists is left as it is, which is no error.
    CreateSession { id: SessionId, at: Timestamp },
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
    /// A run's transition; only from this status.
    MoveRun {
        id: RunId,
        from: RunStatus,
        to: RunStatus,
        at: Timestamp,
        ending: Option<Box<RunEnding>>,
    },
    /// Writes what follows only if the lease of the run is of this epoch, so that an owner that was
    /// taken for dead changes nothing.
    Fence { run_id: RunId, epoch: u64 },
    /// Takes a run over, only from this lease, of this epoch and not renewed since; `None`: it has none. The
    /// run's next snapshot after its work gets the id `after`.
    ClaimLease {
        run_id: RunId,
        from: Option<Box<Lease>>,
        lease: Box<Lease>,
        after: Option<SnapshotId>,
    },
    /// Writes nothing with it if somebody has asked for the run to be cancelled, which is a
    /// [`StateError::Conflict`].
    RefuseIfCancelled(RunId),
    /// What the host says of a run from now on: the key `metadata` of its options.
    SetMetadata { run_id: RunId, metadata: Value },
    /// Holds a lease for longer, only one of this epoch.
    RenewLease {
        run_id: RunId,
        epoch: u64,
        expires: Moment,
        at: Timestamp,
    },
    /// Asks whoever has the run to cancel it.
    RequestCancel { run_id: RunId, at: Timestamp },
    /// A phase as it is now, only from this status; `None`: it is new.
    PutPhase {
        run_id: RunId,
        from: Option<StepStatus>,
        row: Box<PhaseRow>,
    },
    /// A step as it is now, only from this status; `None`: it is new. Its phase is there. The commit of one whose attempt is
    /// under way already stays as [`Change::SetStepCommit`] has it, which may have come since the row was read.
    PutStep {
        run_id: RunId,
        from: Option<StepStatus>,
        row: Box<StepRow>,
    },
    /// A part of a step as it is now; one that begins while another of its name is under way in the same attempt is
    /// [`StateError::Exists`].
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
    /// An event. One whose id exists is answered as it is kept.
    Append(NewEvent),
    /// A snapshot. One that exists gets the owner that is given here.
    AddSnapshot(Box<SnapshotRow>),
    /// Snapshots that the store no longer has.
    ForgetSnapshots(Vec<SnapshotId>),
    /// A snapshot that is kept until it is unpinned, whatever becomes of its row. One that is pinned stays so.
    PinSnapshot { row: PinRow, at: Timestamp },
    /// A snapshot that is pinned no more; that it was not is no error.
    UnpinSnapshot(SnapshotId),
    /// Snapshots, oldest first: they share the places that they have in the order of snapshots anew.
    /// Others keep theirs; an id that is unknown is no error.
    OrderSnapshots(Vec<SnapshotId>),
    /// An operation that an undo can take back.
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
    /// Takes the patches out of the records of these runs, embedded or as one of these artifacts, and notes
    /// that they were purged.
    RemovePatches {
        runs: Vec<RunId>,
        artifacts: Vec<String>,
    },
    /// Leaves no byte on disk of what was taken out before. Goes with no other change: it is none, and is
    /// repeated if it fails. It is `Busy` while another process reads.
    Scrub,
    /// Gives the disk back what nothing is in any more, where that is much of all. Goes with no other change: it
    /// is none.
    Compact,
    /// Marks the artifact of this key as deleted; `NotFound` if there is none.
    DeleteArtifact { key: String, at: Timestamp },
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

/// An event that is not written yet; its sequence number is found when it is.
#[derive(Clone, Debug)]
pub(crate) struct NewEvent {
    pub(crate) id: EventId,
    pub(crate) event_type: EventType,
    pub(crate) session_id: SessionId,
    pub(crate) run_id: Option<RunId>,
    pub(crate) at: Timestamp,
    pub(crate) data: Value,
}

impl NewEvent {
    /// An event with a random id.
    pub(crate) fn new(
        event_type: EventType,
        session_id: &SessionId,
        run_id: Option<&RunId>,
        at: Timestamp,
        data: Value,
    ) -> Self {
        Self {
            id: EventId::random(),
            event_type,
            session_id: session_id.clone(),
            run_id: run_id.cloned(),
            at,
            data,
        }
    }
}

/// Why the state could not be read or written. Nothing of the changes was kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StateError {
    /// A row is not in the state that a transition starts from.
    #[error("{what} is {found}, not {expected}; nothing was changed")]
    Conflict {
        what: String,
        expected: String,
        found: String,
    },
    /// Whoever writes has lost the run to somebody else.
    #[error("run {0} was taken over by another engine; nothing was written")]
    TakenOver(RunId),
    /// There is no such row.
    #[error("there is no {what}")]
    NotFound { what: String },
    /// A row of that id is there already.
    #[error("{what} exists already; nothing was changed")]
    Exists { what: String },
    /// What is kept cannot be what was written.
    #[error("the state database is corrupt: {detail}")]
    Corrupt { detail: String },
    /// Written by a version that this one does not read.
    #[error(
        "the state database {} has version {found}, this Stillframe reads up to {supported}; nothing was changed",
        path.display()
    )]
    VersionTooNew {
        path: PathBuf,
        found: i64,
        supported: i64,
    },
    /// Another process reads, so that nothing can be said of what is left on disk.
    #[error("the state database is in use by another process")]
    InUse,
    /// The place for the database cannot be used for one.
    #[error("{0}; nothing was changed")]
    Unsupported(String),
    /// A file of the state could not be made or read.
    #[error("the state cannot be kept")]
    Io(#[from] PathError),
    /// SQLite refused.
    #[error("the state database failed")]
    Sqlite(#[from] rusqlite::Error),
}

impl StateError {
    /// What a caller can do about it.
    pub(crate) fn kind(&self) -> ErrorKind {
        use rusqlite::ErrorCode as Code;
        match self {
            Self::Conflict { .. } | Self::Exists { .. } | Self::TakenOver(_) => ErrorKind::Conflict,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::InUse => ErrorKind::Busy,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::VersionTooNew { .. } | Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Io(source) => source.storage_kind(),
            Self::Sqlite(source) => match source.sqlite_error_code() {
                Some(Code::DatabaseBusy | Code::DatabaseLocked) => ErrorKind::Busy,
                Some(Code::DiskFull) => ErrorKind::NoSpace,
                // The file that readers and writers share could not be made longer.
                _ if source
                    .sqlite_error()
                    .is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) =>
                {
                    ErrorKind::NoSpace
                }
                // SQLite does not say that a file would become larger than the process may make it.
                Some(Code::SystemIoFailure)
                    if crate::state::reserve::has_file_size_limit()
                        && source.sqlite_error().is_some_and(|e| {
                            e.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE
                        }) =>
                {
                    ErrorKind::NoSpace
                }
                Some(Code::DatabaseCorrupt | Code::NotADatabase) => ErrorKind::Corrupt,
                // The only triggers that refuse anything are those of damaged rows.
                _ if source.sqlite_error().is_some_and(|e| {
                    e.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER
                }) =>
                {
                    ErrorKind::Corrupt
                }
                _ => ErrorKind::Storage,
            },
        }
    }
}

impl From<StateError> for crate::error::Error {
    fn from(source: StateError) -> Self {
        Self::new(source.kind(), source)
    }
}
