//! Why a transition found no row.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::state::error::StateError;

/// Why a transition found no row: it is elsewhere, or not there.
pub(super) fn lost(
    transaction: &Connection,
    table: &'static str,
    noun: &str,
    id: &str,
    expected: &str,
) -> StateError {
    let what = format!("{noun} {id}");
    let found = transaction
        .query_row(
            &format!("SELECT status FROM {table} WHERE id = ?1"),
            params![id],
            |row| row.get::<_, String>(0),
        )
        .optional();
    match found {
        Ok(Some(found)) => StateError::Conflict {
            what,
            expected: expected.to_owned(),
            found,
        },
        Ok(None) => StateError::NotFound { what },
        Err(e) => e.into(),
    }
}
