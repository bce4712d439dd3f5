//! What is written of work that leaves the machine, and what can be read of it.

use jiff::Timestamp;

use crate::id::{EngineId, QuarantineId, RunId, WorkTaskId};
use crate::records::allowed_finding::AllowedFinding;
use crate::records::came_for::CameFor;
use crate::records::checkpoint::{CheckpointRow, CheckpointStatus};
use crate::records::follow_up::FollowUpRow;
use crate::records::notice::{NoticeRow, NoticeStatus};
use crate::records::quarantine::{QuarantineRow, QuarantineStatus};
use crate::records::work_task::WorkTaskRow;
use crate::state::error::StateError;

/// One thing to be written of work that leaves the machine.
#[derive(Clone, Debug)]
pub(crate) enum BranchChange {
    /// A task, which is new. Its branch is no other task's, and the remote has no tasks of the
    /// other layout: with a namespace, or without one.
    AddTask(WorkTaskRow),
    /// A task as it is now, only from the version of the row, which is counted on. Its name stays,
    /// and its cursor never goes back.
    MoveTask(WorkTaskRow),
    /// A run goes on with a task, with this input: only if that waits, has no run and a follow-up,
    /// and has not consumed the input or a later one.
    ClaimFollowUp {
        task_id: WorkTaskId,
        run_id: RunId,
        input_id: u64,
        at: Timestamp,
    },
    /// Writes nothing with it unless the run is at work, which is a [`StateError::Conflict`].
    RefuseUnlessAtWork(RunId),
    /// What a task waits with, in place of what it had.
    PutFollowUp(FollowUpRow),
    /// A task waits with nothing; that it did not is no error.
    DropFollowUp(WorkTaskId),
    /// A checkpoint as it is now, only from this status; `None`: it is new. What its commit is made
    /// of stays.
    PutCheckpoint {
        from: Option<CheckpointStatus>,
        row: CheckpointRow,
    },
    /// A notice. One of the same token stays as it is, which is no error.
    AddNotice(NoticeRow),
    /// A notice as it is now, only from this status, tried so often, and sent by this engine. What
    /// it says stays.
    MoveNotice {
        from: (NoticeStatus, u32, Option<EngineId>),
        row: NoticeRow,
    },
    /// A finding that the user allows. One that is allowed stays as it is.
    AllowFinding(AllowedFinding),
    /// A finding that the user allows no more; that it was not allowed is no error.
    ForbidFinding(AllowedFinding),
    /// Something that is kept from now on.
    AddQuarantine(QuarantineRow),
    /// The user lets go of something in quarantine; only if it is kept.
    EndQuarantine {
        id: QuarantineId,
        to: QuarantineStatus,
        at: Timestamp,
    },
}

/// What the state has of work that leaves the machine. Every method blocks.
pub(crate) trait BranchState {
    /// Why the work of a run is being saved; `None`: it is not.
    fn came_for(&self, run_id: &RunId) -> Result<Option<CameFor>, StateError>;

    /// A task; `None`: unknown.
    fn work_task(&self, id: &WorkTaskId) -> Result<Option<WorkTaskRow>, StateError>;

    /// The task of this name on a remote; `None`: it has no branch there.
    fn work_task_of(
        &self,
        remote: &str,
        namespace: Option<&str>,
        task: &str,
    ) -> Result<Option<WorkTaskRow>, StateError>;

    /// The tasks that a run works on, in the order in which they were made.
    fn work_tasks_of_run(&self, run_id: &RunId) -> Result<Vec<WorkTaskRow>, StateError>;

    /// All tasks, in the order in which they were made.
    fn work_tasks(&self) -> Result<Vec<WorkTaskRow>, StateError>;

    /// What a task waits with; `None`: it does not.
    fn follow_up(&self, task_id: &WorkTaskId) -> Result<Option<FollowUpRow>, StateError>;

    /// The checkpoints of a task, in the order in which they were wanted.
    fn checkpoints(&self, task_id: &WorkTaskId) -> Result<Vec<CheckpointRow>, StateError>;

    /// The checkpoints of all tasks that no remote is proven to have and that nobody let go of, in
    /// the order in which they were wanted.
    fn unproven_checkpoints(&self) -> Result<Vec<CheckpointRow>, StateError>;

    /// All notices, or those that are still to be sent, in the order in which they were written.
    fn notices(&self, only_to_send: bool) -> Result<Vec<NoticeRow>, StateError>;

    /// The findings that are allowed in a repository, in the order in which they were.
    fn allowed_findings(&self, repository: &str) -> Result<Vec<AllowedFinding>, StateError>;

    /// What is in quarantine, or was, in the order in which it got there.
    fn quarantine(&self) -> Result<Vec<QuarantineRow>, StateError>;
}
