//! Rows of what runs came for whose work is being saved. They follow the runs.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::values::{json, parse, word};
use crate::id::RunId;
use crate::records::came_for::CameFor;
use crate::records::run::EndsAs;
use crate::records::run::RunStatus;
use crate::state::error::StateError;
use crate::state::row_sum::{self, damaged};

/// What a run came for that waits for a person.
const BLOCKED: &str = "blocked";

/// Follows a run that is about to move; fails if it would end as something else than it came for.
pub(super) fn moves(
    transaction: &Connection,
    run_id: &RunId,
    (from, to): (RunStatus, RunStatus),
    came_for: Option<&CameFor>,
) -> Result<(), StateError> {
    if from == RunStatus::Persisting
        && let Some(CameFor::End(ends)) = find(transaction, run_id)?
        && ends.status() != to
    {
        return Err(StateError::Conflict {
            what: format!("the end of run {run_id}"),
            expected: to.to_string(),
            found: ends.status().to_string(),
        });
    }
    if from.is_being_saved() && to != RunStatus::Checkpointing {
        let mut delete = transaction.prepare_cached("DELETE FROM came_for WHERE run_id = ?1")?;
        delete.execute(params![run_id.as_str()])?;
    }
    match came_for {
        Some(came_for) => put(transaction, run_id, came_for),
        None => Ok(()),
    }
}

fn put(transaction: &Connection, run_id: &RunId, came_for: &CameFor) -> Result<(), StateError> {
    let (reason, block) = match came_for {
        CameFor::End(ends) => (ends.status().as_str(), None),
        CameFor::Block(block) => (BLOCKED, Some(json(block))),
    };
    transaction.execute(
        "INSERT INTO came_for (run_id, reason, block, row_sum)
         VALUES (?1, ?2, ?3, row_sum('came_for', ?1, ?2, ?3))",
        params![run_id.as_str(), reason, block],
    )?;
    Ok(())
}

/// What a run came for; `None`: its work is not being saved.
pub(super) fn find(connection: &Connection, run_id: &RunId) -> Result<Option<CameFor>, StateError> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT run_id, reason, block, ",
        damaged!(came_for),
        " FROM came_for WHERE run_id = ?1"
    ))?;
    let found = statement.query_row(params![run_id.as_str()], |row| {
        Ok(row_sum::check(row).and_then(|()| read(row)))
    });
    found.optional()?.transpose()
}

fn read(row: &Row<'_>) -> Result<CameFor, StateError> {
    let block: Option<String> = row.get(2)?;
    match block {
        Some(block) => Ok(CameFor::Block(Box::new(parse(&block)?))),
        None => Ok(CameFor::End(word(row.get(1)?, EndsAs::parse)?)),
    }
}
