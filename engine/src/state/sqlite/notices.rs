//! Rows of notices.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::values::{id, nanoseconds, optional_time, time, word};
use crate::id::{EngineId, RunId, SessionId};
use crate::records::notice::{NoticeKind, NoticeRow, NoticeStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes a notice; one of its token stays as it is.
pub(super) fn add_notice(transaction: &Connection, row: &NoticeRow) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO notices (token, kind, task_id, commit_id, text, status, attempts, next_at,
             owner, error, created_at, updated_at, told_in, made_by)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT (token) DO NOTHING",
        params![
            row.token,
            row.kind.as_str(),
            row.task_id.as_str(),
            row.commit,
            row.text,
            row.status.as_str(),
            row.attempts,
            row.next_at.map(nanoseconds),
            row.owner.as_ref().map(EngineId::as_str),
            row.error,
            nanoseconds(row.created_at),
            nanoseconds(row.updated_at),
            row.session_id.as_ref().map(SessionId::as_str),
            row.run_id.as_ref().map(RunId::as_str),
        ],
    )?;
    Ok(())
}

/// Writes what has become of a notice that is as it was seen.
pub(super) fn move_notice(
    transaction: &Connection,
    (from, attempts, owner): &(NoticeStatus, u32, Option<EngineId>),
    row: &NoticeRow,
) -> Result<(), StateError> {
    let moved = transaction.execute(
        "UPDATE notices SET status = ?1, attempts = ?2, next_at = ?3, owner = ?4, error = ?5,
             updated_at = ?6
          WHERE token = ?7 AND status = ?8 AND attempts = ?9 AND owner IS ?10",
        params![
            row.status.as_str(),
            row.attempts,
            row.next_at.map(nanoseconds),
            row.owner.as_ref().map(EngineId::as_str),
            row.error,
            nanoseconds(row.updated_at),
            row.token,
            from.as_str(),
            attempts,
            owner.as_ref().map(EngineId::as_str),
        ],
    )?;
    if moved > 0 {
        return Ok(());
    }
    let found: Option<String> = transaction
        .query_row(
            "SELECT status || ' after ' || attempts || ' tries' FROM notices WHERE token = ?1",
            params![row.token],
            |row| row.get(0),
        )
        .optional()?;
    let what = format!("notice {}", row.token);
    Err(match found {
        Some(found) => StateError::Conflict {
            what,
            expected: format!("{from} after {attempts} tries"),
            found,
        },
        None => StateError::NotFound { what },
    })
}

pub(super) const SELECT_NOTICE: &str = concat!(
    "SELECT token, kind, task_id, commit_id, text, status, attempts, next_at, owner, error, \
     created_at, updated_at, told_in, made_by, ",
    damaged!(notices),
    " FROM notices"
);

pub(super) fn read_notice(row: &Row<'_>) -> Result<NoticeRow, StateError> {
    Ok(NoticeRow {
        token: row.get(0)?,
        kind: word(row.get(1)?, NoticeKind::parse)?,
        task_id: id(row.get(2)?)?,
        commit: row.get(3)?,
        text: row.get(4)?,
        status: word(row.get(5)?, NoticeStatus::parse)?,
        attempts: row.get(6)?,
        next_at: optional_time(row, 7)?,
        owner: row.get::<_, Option<String>>(8)?.map(id).transpose()?,
        error: row.get(9)?,
        created_at: time(row.get(10)?)?,
        updated_at: time(row.get(11)?)?,
        session_id: row.get::<_, Option<String>>(12)?.map(id).transpose()?,
        run_id: row.get::<_, Option<String>>(13)?.map(id).transpose()?,
    })
}
