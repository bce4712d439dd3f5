//! Rows of sessions.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::lost::lost;
use super::values::{count, id, nanoseconds, time, word};
use crate::id::SessionId;
use crate::records::session::{SessionRow, SessionStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Makes a session that is pending; one that is there stays as it is. The numbers of one that was
/// removed go on.
pub(super) fn create_session(
    transaction: &Connection,
    id: &SessionId,
    at: Timestamp,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO sessions (id, status, version, sequence_floor, created_at)
         VALUES (?1, 'pending', 1, coalesce(
                    (SELECT sequence FROM event_floors WHERE session_id = ?1), 0), ?2)
         ON CONFLICT (id) DO NOTHING",
        params![id.as_str(), nanoseconds(at)],
    )?;
    Ok(())
}

/// Moves a session by compare-and-swap.
pub(super) fn move_session(
    transaction: &Connection,
    id: &SessionId,
    from: SessionStatus,
    version: u64,
    to: SessionStatus,
    at: Timestamp,
) -> Result<(), StateError> {
    let ended = to.is_terminal().then(|| nanoseconds(at));
    let moved = transaction.execute(
        "UPDATE sessions SET status = ?1, version = version + 1, ended_at = ?2
          WHERE id = ?3 AND status = ?4 AND version = ?5",
        params![
            to.as_str(),
            ended,
            id.as_str(),
            from.as_str(),
            count(version)
        ],
    )?;
    if moved == 0 {
        return Err(lost(
            transaction,
            "sessions",
            "session",
            id.as_str(),
            from.as_str(),
        ));
    }
    Ok(())
}

pub(super) const SELECT_SESSION: &str = concat!(
    "SELECT id, status, version, created_at, ended_at, ",
    damaged!(sessions),
    " FROM sessions"
);

pub(super) fn read_session(row: &Row<'_>) -> Result<SessionRow, StateError> {
    Ok(SessionRow {
        id: id(row.get(0)?)?,
        status: word(row.get(1)?, SessionStatus::parse)?,
        version: row.get::<_, i64>(2)?.unsigned_abs(),
        created_at: time(row.get(3)?)?,
        ended_at: row.get::<_, Option<i64>>(4)?.map(time).transpose()?,
    })
}
