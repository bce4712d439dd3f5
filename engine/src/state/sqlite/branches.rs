//! What is written and read of work that leaves the machine.

use rusqlite::{Connection, params};

use super::SqliteStore;
use super::allowed_findings::{
    SELECT_ALLOWED_FINDING, allow_finding, forbid_finding, read_allowed_finding,
};
use super::came_for;
use super::checkpoints::{SELECT_CHECKPOINT, put_checkpoint, read_checkpoint};
use super::follow_ups::{SELECT_FOLLOW_UP, drop_follow_up, put_follow_up, read_follow_up};
use super::leases::refuse_unless_at_work;
use super::notices::{SELECT_NOTICE, add_notice, move_notice, read_notice};
use super::quarantine::{SELECT_QUARANTINE, add_quarantine, end_quarantine, read_quarantine};
use super::work_tasks::{SELECT_WORK_TASK, add_task, claim_follow_up, move_task, read_work_task};
use crate::id::{RunId, WorkTaskId};
use crate::records::allowed_finding::AllowedFinding;
use crate::records::came_for::CameFor;
use crate::records::checkpoint::CheckpointRow;
use crate::records::follow_up::FollowUpRow;
use crate::records::notice::NoticeRow;
use crate::records::quarantine::QuarantineRow;
use crate::records::work_task::WorkTaskRow;
use crate::state::branch_change::{BranchChange, BranchState};
use crate::state::error::StateError;

/// Writes one change as part of `transaction`.
pub(super) fn apply_branch(
    transaction: &Connection,
    change: &BranchChange,
) -> Result<(), StateError> {
    match change {
        BranchChange::AddTask(row) => add_task(transaction, row),
        BranchChange::MoveTask(row) => move_task(transaction, row),
        BranchChange::ClaimFollowUp {
            task_id,
            run_id,
            input_id,
            at,
        } => claim_follow_up(transaction, (task_id, run_id), *input_id, *at),
        BranchChange::RefuseUnlessAtWork(run_id) => refuse_unless_at_work(transaction, run_id),
        BranchChange::PutFollowUp(row) => put_follow_up(transaction, row),
        BranchChange::DropFollowUp(task_id) => drop_follow_up(transaction, task_id),
        BranchChange::PutCheckpoint { from, row } => put_checkpoint(transaction, *from, row),
        BranchChange::AddNotice(row) => add_notice(transaction, row),
        BranchChange::MoveNotice { from, row } => move_notice(transaction, from, row),
        BranchChange::AllowFinding(row) => allow_finding(transaction, row),
        BranchChange::ForbidFinding(row) => forbid_finding(transaction, row),
        BranchChange::AddQuarantine(row) => add_quarantine(transaction, row),
        BranchChange::EndQuarantine { id, to, at } => end_quarantine(transaction, id, *to, *at),
    }
}

impl BranchState for SqliteStore {
    fn came_for(&self, run_id: &RunId) -> Result<Option<CameFor>, StateError> {
        came_for::find(&self.connection, run_id)
    }

    fn work_task(&self, id: &WorkTaskId) -> Result<Option<WorkTaskRow>, StateError> {
        self.one(
            &format!("{SELECT_WORK_TASK} WHERE id = ?1"),
            params![id.as_str()],
            read_work_task,
        )
    }

    fn work_task_of(
        &self,
        remote: &str,
        namespace: Option<&str>,
        task: &str,
    ) -> Result<Option<WorkTaskRow>, StateError> {
        self.one(
            &format!("{SELECT_WORK_TASK} WHERE remote = ?1 AND namespace IS ?2 AND task = ?3"),
            params![remote, namespace, task],
            read_work_task,
        )
    }

    fn work_tasks_of_run(&self, run_id: &RunId) -> Result<Vec<WorkTaskRow>, StateError> {
        self.all(
            &format!("{SELECT_WORK_TASK} WHERE active_run = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_work_task,
        )
    }

    fn work_tasks(&self) -> Result<Vec<WorkTaskRow>, StateError> {
        self.all(
            &format!("{SELECT_WORK_TASK} ORDER BY position"),
            (),
            read_work_task,
        )
    }

    fn follow_up(&self, task_id: &WorkTaskId) -> Result<Option<FollowUpRow>, StateError> {
        self.one(
            &format!("{SELECT_FOLLOW_UP} WHERE task_id = ?1"),
            params![task_id.as_str()],
            read_follow_up,
        )
    }

    fn checkpoints(&self, task_id: &WorkTaskId) -> Result<Vec<CheckpointRow>, StateError> {
        self.all(
            &format!("{SELECT_CHECKPOINT} WHERE task_id = ?1 ORDER BY position"),
            params![task_id.as_str()],
            read_checkpoint,
        )
    }

    fn unproven_checkpoints(&self) -> Result<Vec<CheckpointRow>, StateError> {
        self.all(
            &format!(
                "{SELECT_CHECKPOINT} WHERE status IN ('made', 'sent', 'refused') ORDER BY position"
            ),
            (),
            read_checkpoint,
        )
    }

    fn notices(&self, only_to_send: bool) -> Result<Vec<NoticeRow>, StateError> {
        let which = match only_to_send {
            true => "WHERE status IN ('pending', 'in_progress')",
            false => "",
        };
        self.all(
            &format!("{SELECT_NOTICE} {which} ORDER BY position"),
            (),
            read_notice,
        )
    }

    fn allowed_findings(&self, repository: &str) -> Result<Vec<AllowedFinding>, StateError> {
        self.all(
            &format!("{SELECT_ALLOWED_FINDING} WHERE repository = ?1 ORDER BY position"),
            params![repository],
            read_allowed_finding,
        )
    }

    fn quarantine(&self) -> Result<Vec<QuarantineRow>, StateError> {
        self.all(
            &format!("{SELECT_QUARANTINE} ORDER BY position"),
            (),
            read_quarantine,
        )
    }
}
