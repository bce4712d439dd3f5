//! Rows of sessions.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::lost::lost;
use super::removals::refuse_if_being_removed;
use super::values::{all_of, count, id, json, nanoseconds, parse, time, word};
use crate::id::SessionId;
use crate::records::session::{SessionDetails, SessionRow, SessionStatus};
use crate::state::SessionFilter;
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

/// Replaces what a host says of a session.
pub(super) fn describe_session(
    transaction: &Connection,
    id: &SessionId,
    details: &SessionDetails,
) -> Result<(), StateError> {
    let is_there = transaction
        .prepare_cached("SELECT 1 FROM sessions WHERE id = ?1")?
        .exists(params![id.as_str()])?;
    if !is_there {
        let what = format!("session {id}");
        return Err(StateError::NotFound { what });
    }
    refuse_if_being_removed(transaction, id)?;
    transaction.execute(
        "INSERT OR REPLACE INTO session_details
             (session_id, agent_id, tags, metadata, parent_id, row_sum)
         VALUES (?1, ?2, ?3, ?4, ?5, row_sum('session_details', ?1, ?2, ?3, ?4, ?5))",
        params![
            id.as_str(),
            details.agent_id,
            json(&details.tags),
            json(&details.metadata),
            details.parent_id.as_ref().map(SessionId::as_str),
        ],
    )?;
    Ok(())
}

pub(super) const SELECT_DETAILS: &str = concat!(
    "SELECT session_id, agent_id, tags, metadata, parent_id, ",
    damaged!(session_details),
    " FROM session_details WHERE session_id = ?1"
);

pub(super) fn read_details(row: &Row<'_>) -> Result<SessionDetails, StateError> {
    Ok(SessionDetails {
        agent_id: row.get(1)?,
        tags: parse(&row.get::<_, String>(2)?)?,
        metadata: parse(&row.get::<_, String>(3)?)?,
        parent_id: row.get::<_, Option<String>>(4)?.map(id).transpose()?,
    })
}

/// The statement for the sessions that match, newest first.
pub(super) fn select_sessions(filter: &SessionFilter) -> String {
    let conditions = [
        (
            !filter.statuses.is_empty(),
            "status IN (SELECT value FROM json_each(?1))",
        ),
        (
            filter.agent_id.is_some(),
            "id IN (SELECT session_id FROM session_details WHERE agent_id = ?2)",
        ),
        (
            filter.parent_id.is_some(),
            "id IN (SELECT session_id FROM session_details WHERE parent_id = ?3)",
        ),
        (
            !filter.tags.is_empty(),
            "id IN (SELECT session_id FROM session_details AS d WHERE NOT EXISTS (
                 SELECT 1 FROM json_each(?4) AS wanted WHERE NOT EXISTS (
                     SELECT 1 FROM json_each(d.tags) AS own WHERE own.value = wanted.value)))",
        ),
    ];
    format!(
        "{SELECT_SESSION}{} ORDER BY rowid DESC LIMIT ?5",
        all_of(&conditions)
    )
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
