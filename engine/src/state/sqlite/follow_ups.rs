//! Rows of what blocked tasks go on from.

use rusqlite::{Connection, Row, params};

use super::values::{id, json, nanoseconds, parse, time};
use crate::id::WorkTaskId;
use crate::records::follow_up::FollowUpRow;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes what a task waits with, in place of what it had.
pub(super) fn put_follow_up(transaction: &Connection, row: &FollowUpRow) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO follow_ups (task_id, flow, branch, context, waiting_reason, last_checkpoint,
             updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (task_id) DO UPDATE SET flow = excluded.flow, branch = excluded.branch,
             context = excluded.context, waiting_reason = excluded.waiting_reason,
             last_checkpoint = excluded.last_checkpoint, updated_at = excluded.updated_at",
        params![
            row.task_id.as_str(),
            row.flow,
            row.branch,
            json(&row.context),
            row.waiting_reason,
            row.last_checkpoint,
            nanoseconds(row.updated_at),
        ],
    )?;
    Ok(())
}

/// Removes what a task waits with, if it does.
pub(super) fn drop_follow_up(
    transaction: &Connection,
    task_id: &WorkTaskId,
) -> Result<(), StateError> {
    transaction.execute(
        "DELETE FROM follow_ups WHERE task_id = ?1",
        params![task_id.as_str()],
    )?;
    Ok(())
}

pub(super) const SELECT_FOLLOW_UP: &str = concat!(
    "SELECT task_id, flow, branch, context, waiting_reason, last_checkpoint, updated_at, ",
    damaged!(follow_ups),
    " FROM follow_ups"
);

pub(super) fn read_follow_up(row: &Row<'_>) -> Result<FollowUpRow, StateError> {
    Ok(FollowUpRow {
        task_id: id(row.get(0)?)?,
        flow: row.get(1)?,
        branch: row.get(2)?,
        context: parse(&row.get::<_, String>(3)?)?,
        waiting_reason: row.get(4)?,
        last_checkpoint: row.get(5)?,
        updated_at: time(row.get(6)?)?,
    })
}
