//! Rows of restores.

use rusqlite::{Connection, Row, params};
use stillframe_backends::SnapshotId;

use super::removals::refuse_if_being_removed;
use super::values::{id, json, nanoseconds, parse, time, word};
use crate::id::RunId;
use crate::records::restore_document::{RestorePurpose, RestoreRow};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes down that a restore begins; what one of this workspace left behind without an outcome
/// goes.
pub(super) fn begin_restore(transaction: &Connection, row: &RestoreRow) -> Result<(), StateError> {
    refuse_if_being_removed(transaction, &row.session_id)?;
    transaction.execute(
        "DELETE FROM restores WHERE workspace_id = ?1 AND outcome IS NULL",
        params![row.workspace_id],
    )?;
    transaction.execute(
        "INSERT INTO restores (guard, workspace_id, session_id, run_id, target, purpose,
             repository, created_at, outcome)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            row.guard.as_str(),
            row.workspace_id,
            row.session_id.as_str(),
            row.run_id.as_ref().map(RunId::as_str),
            row.target.as_str(),
            row.purpose.as_str(),
            row.repository,
            nanoseconds(row.at),
            row.outcome.as_ref().map(json),
        ],
    )?;
    Ok(())
}

/// Takes a restore off the record.
pub(super) fn end_restore(transaction: &Connection, guard: &SnapshotId) -> Result<(), StateError> {
    transaction.execute(
        "DELETE FROM restores WHERE guard = ?1",
        params![guard.as_str()],
    )?;
    Ok(())
}

pub(super) const SELECT_RESTORE: &str = concat!(
    "SELECT guard, workspace_id, session_id, run_id, target, purpose, \
     repository, created_at, outcome, ",
    damaged!(restores),
    " FROM restores"
);

pub(super) fn read_restore(row: &Row<'_>) -> Result<RestoreRow, StateError> {
    Ok(RestoreRow {
        guard: id(row.get(0)?)?,
        workspace_id: row.get(1)?,
        session_id: id(row.get(2)?)?,
        run_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        target: id(row.get(4)?)?,
        purpose: word(row.get(5)?, RestorePurpose::parse)?,
        repository: row.get(6)?,
        at: time(row.get(7)?)?,
        outcome: row
            .get::<_, Option<String>>(8)?
            .map(|text| parse(&text))
            .transpose()?,
    })
}
