//! Rows of the state of runs: values, and their transitions.

use rusqlite::{Connection, Row, params};
use serde_json::Value;

use super::values::{json, nanoseconds, parse, time};
use crate::records::run_state::{NewValue, StateTransition, StateValue};
use crate::state::error::StateError;
use crate::state::row_sum::{self, damaged};

/// Sets a value of a run, and writes the transition. A key that has it already keeps it as it is.
pub(super) fn set_state(transaction: &Connection, new: &NewValue) -> Result<(), StateError> {
    let old = stored(transaction, new)?;
    let value = (!new.value.is_null()).then(|| json(&new.value));
    if old == value {
        return Ok(());
    }
    let at = nanoseconds(new.at);
    match value {
        Some(_) => transaction
            .prepare_cached(
                "INSERT INTO state_values (run_id, key, value, changed_at) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (run_id, key) DO UPDATE SET value = excluded.value,
                     changed_at = excluded.changed_at",
            )?
            .execute(params![new.run_id.as_str(), new.key, value, at])?,
        None => transaction
            .prepare_cached("DELETE FROM state_values WHERE run_id = ?1 AND key = ?2")?
            .execute(params![new.run_id.as_str(), new.key])?,
    };
    transaction
        .prepare_cached(
            "INSERT INTO state_transitions (run_id, key, old_value, new_value, cause, at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            new.run_id.as_str(),
            new.key,
            old,
            value,
            new.trigger,
            at
        ])?;
    Ok(())
}

/// The value that is there, as it is stored.
fn stored(transaction: &Connection, new: &NewValue) -> Result<Option<String>, StateError> {
    let mut statement = transaction.prepare_cached(concat!(
        "SELECT key, value, ",
        damaged!(state_values),
        " FROM state_values WHERE run_id = ?1 AND key = ?2"
    ))?;
    let mut rows = statement.query(params![new.run_id.as_str(), new.key])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    row_sum::check(row)?;
    Ok(Some(row.get(1)?))
}

pub(super) const SELECT_STATE_VALUE: &str = concat!(
    "SELECT key, value, changed_at, ",
    damaged!(state_values),
    " FROM state_values"
);

pub(super) fn read_state_value(row: &Row<'_>) -> Result<StateValue, StateError> {
    Ok(StateValue {
        key: row.get(0)?,
        value: parse(&row.get::<_, String>(1)?)?,
        changed_at: time(row.get(2)?)?,
    })
}

pub(super) const SELECT_STATE_TRANSITION: &str = concat!(
    "SELECT key, old_value, new_value, cause, at, ",
    damaged!(state_transitions),
    " FROM state_transitions"
);

pub(super) fn read_state_transition(row: &Row<'_>) -> Result<StateTransition, StateError> {
    let value = |at: usize| -> Result<Option<Value>, StateError> {
        row.get::<_, Option<String>>(at)?
            .map(|text| parse(&text))
            .transpose()
    };
    Ok(StateTransition {
        key: row.get(0)?,
        old_value: value(1)?,
        new_value: value(2)?,
        trigger: row.get(3)?,
        at: time(row.get(4)?)?,
    })
}
