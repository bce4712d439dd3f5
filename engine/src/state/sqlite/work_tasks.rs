//! Rows of tasks that have a branch.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::values::{count, id, nanoseconds, optional_time, time, word};
use crate::id::{RunId, WorkTaskId};
use crate::records::work_task::{FailureClass, WorkTaskRow, WorkTaskStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes a task that is new.
pub(super) fn add_task(transaction: &Connection, row: &WorkTaskRow) -> Result<(), StateError> {
    let written = transaction.execute(
        "INSERT INTO work_tasks (id, task, namespace, remote, branch, status, version, error,
             last_failure_class, retry_count, next_retry_at, active_run, failures_in_a_row,
             last_failure_at, flagged, input_cursor, created_at, updated_at)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
          WHERE NOT EXISTS (SELECT 1 FROM work_tasks
                             WHERE remote = ?4 AND (namespace IS NULL) <> (?3 IS NULL)
                               AND EXISTS (SELECT 1 FROM checkpoints
                                            WHERE checkpoints.task_id = work_tasks.id))
         ON CONFLICT DO NOTHING",
        params![
            row.id.as_str(),
            row.task,
            row.namespace,
            row.remote,
            row.branch,
            row.status.as_str(),
            count(row.version),
            row.error,
            row.last_failure_class.map(FailureClass::as_str),
            row.retry_count,
            row.next_retry_at.map(nanoseconds),
            row.active_run.as_ref().map(RunId::as_str),
            row.failures_in_a_row,
            row.last_failure_at.map(nanoseconds),
            row.is_flagged,
            count(row.input_cursor),
            nanoseconds(row.created_at),
            nanoseconds(row.updated_at),
        ],
    )?;
    match written {
        0 => Err(not_added(transaction, row)?),
        _ => Ok(()),
    }
}

/// Why a task was not added.
fn not_added(transaction: &Connection, row: &WorkTaskRow) -> Result<StateError, StateError> {
    let what = format!("task {} of {}", row.full_name(), row.remote);
    let is_there: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM work_tasks
                         WHERE id = ?1 OR (remote = ?2 AND namespace IS ?3 AND task = ?4))",
        params![row.id.as_str(), row.remote, row.namespace, row.task],
        |row| row.get(0),
    )?;
    if is_there {
        return Ok(StateError::Exists { what });
    }
    let other = transaction
        .query_row(
            "SELECT coalesce(namespace || '/', '') || task FROM work_tasks
              WHERE remote = ?1 AND branch = ?2",
            params![row.remote, row.branch],
            |row| row.get(0),
        )
        .optional()?;
    Ok(match other {
        Some(other) => StateError::BranchTaken {
            what,
            branch: row.branch.clone(),
            other,
        },
        None => StateError::OtherLayout { what },
    })
}

/// Writes what has become of a task that is of the version that was seen.
pub(super) fn move_task(transaction: &Connection, row: &WorkTaskRow) -> Result<(), StateError> {
    let written = transaction.execute(
        "UPDATE work_tasks SET version = version + 1, status = ?1, error = ?2,
             last_failure_class = ?3, retry_count = ?4, next_retry_at = ?5, active_run = ?6,
             failures_in_a_row = ?7, last_failure_at = ?8, flagged = ?9,
             input_cursor = max(input_cursor, ?10), updated_at = ?11
          WHERE id = ?12 AND version = ?13 AND task = ?14 AND namespace IS ?15 AND remote = ?16
            AND branch = ?17",
        params![
            row.status.as_str(),
            row.error,
            row.last_failure_class.map(FailureClass::as_str),
            row.retry_count,
            row.next_retry_at.map(nanoseconds),
            row.active_run.as_ref().map(RunId::as_str),
            row.failures_in_a_row,
            row.last_failure_at.map(nanoseconds),
            row.is_flagged,
            count(row.input_cursor),
            nanoseconds(row.updated_at),
            row.id.as_str(),
            count(row.version),
            row.task,
            row.namespace,
            row.remote,
            row.branch,
        ],
    )?;
    match written {
        0 => {
            let expected = format!("as it was in version {}", row.version);
            Err(lost(transaction, &row.id, &expected)?)
        }
        _ => Ok(()),
    }
}

/// Lets a run go on with a task that waits, with input that is new to it.
pub(super) fn claim_follow_up(
    transaction: &Connection,
    (task_id, run_id): (&WorkTaskId, &RunId),
    input_id: u64,
    at: Timestamp,
) -> Result<(), StateError> {
    let claimed = transaction.execute(
        "UPDATE work_tasks SET version = version + 1, status = 'running', active_run = ?1,
             input_cursor = ?2, updated_at = ?3
          WHERE id = ?4 AND status = 'awaiting_followup' AND active_run IS NULL
            AND input_cursor < ?2
            AND EXISTS (SELECT 1 FROM follow_ups WHERE task_id = ?4)",
        params![
            run_id.as_str(),
            count(input_id),
            nanoseconds(at),
            task_id.as_str()
        ],
    )?;
    match claimed {
        0 => Err(lost(transaction, task_id, "waiting for this input")?),
        _ => Ok(()),
    }
}

/// Why a task was not changed: it is elsewhere, or not there.
fn lost(
    transaction: &Connection,
    task_id: &WorkTaskId,
    expected: &str,
) -> Result<StateError, StateError> {
    let found = transaction
        .query_row(
            "SELECT status, version, input_cursor FROM work_tasks WHERE id = ?1",
            params![task_id.as_str()],
            |row| {
                let (status, version): (String, i64) = (row.get(0)?, row.get(1)?);
                let cursor: i64 = row.get(2)?;
                Ok(format!(
                    "{status} in version {version}, with input up to {cursor} consumed"
                ))
            },
        )
        .optional()?;
    let what = format!("task {task_id}");
    Ok(match found {
        Some(found) => StateError::Conflict {
            what,
            expected: expected.to_owned(),
            found,
        },
        None => StateError::NotFound { what },
    })
}

pub(super) const SELECT_WORK_TASK: &str = concat!(
    "SELECT id, task, namespace, remote, branch, status, version, error, last_failure_class, \
     retry_count, next_retry_at, active_run, failures_in_a_row, last_failure_at, flagged, \
     input_cursor, created_at, updated_at, ",
    damaged!(work_tasks),
    " FROM work_tasks"
);

pub(super) fn read_work_task(row: &Row<'_>) -> Result<WorkTaskRow, StateError> {
    let class = row.get::<_, Option<String>>(8)?;
    Ok(WorkTaskRow {
        id: id(row.get(0)?)?,
        task: row.get(1)?,
        namespace: row.get(2)?,
        remote: row.get(3)?,
        branch: row.get(4)?,
        status: word(row.get(5)?, WorkTaskStatus::parse)?,
        version: row.get::<_, i64>(6)?.unsigned_abs(),
        error: row.get(7)?,
        last_failure_class: class
            .map(|class| word(class, FailureClass::parse))
            .transpose()?,
        retry_count: row.get(9)?,
        next_retry_at: optional_time(row, 10)?,
        active_run: row.get::<_, Option<String>>(11)?.map(id).transpose()?,
        failures_in_a_row: row.get(12)?,
        last_failure_at: optional_time(row, 13)?,
        is_flagged: row.get(14)?,
        input_cursor: row.get::<_, i64>(15)?.unsigned_abs(),
        created_at: time(row.get(16)?)?,
        updated_at: time(row.get(17)?)?,
    })
}
