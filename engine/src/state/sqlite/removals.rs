//! Whether a session is being removed, and what is refused meanwhile.

use rusqlite::{Connection, params};

use crate::id::SessionId;
use crate::state::error::StateError;

pub(super) const BEING_REMOVED: &str = "being removed";

fn is_being_removed(connection: &Connection, id: &SessionId) -> Result<bool, StateError> {
    let mut statement =
        connection.prepare_cached("SELECT 1 FROM removals WHERE session_id = ?1")?;
    Ok(statement.exists(params![id.as_str()])?)
}

/// Fails if a session is being removed: what is written to it would go unseen.
pub(super) fn refuse_if_being_removed(
    transaction: &Connection,
    id: &SessionId,
) -> Result<(), StateError> {
    match is_being_removed(transaction, id)? {
        true => Err(conflict(id, "kept", BEING_REMOVED)),
        false => Ok(()),
    }
}

/// Fails if there is no such session, or it is being removed.
pub(super) fn check_accepts(connection: &Connection, id: &SessionId) -> Result<(), StateError> {
    refuse_if_being_removed(connection, id)?;
    let mut statement = connection.prepare_cached("SELECT 1 FROM sessions WHERE id = ?1")?;
    match statement.exists(params![id.as_str()])? {
        true => Ok(()),
        false => Err(StateError::NotFound {
            what: format!("session {id}"),
        }),
    }
}

/// Fails unless a session is being removed: one of its name may have been made meanwhile.
pub(super) fn check_being_removed(
    transaction: &Connection,
    id: &SessionId,
) -> Result<(), StateError> {
    match is_being_removed(transaction, id)? {
        true => Ok(()),
        false => Err(conflict(id, BEING_REMOVED, "kept or gone")),
    }
}

pub(super) fn conflict(id: &SessionId, expected: &str, found: &str) -> StateError {
    StateError::Conflict {
        what: format!("session {id}"),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}
