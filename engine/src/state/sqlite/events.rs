//! Rows of events.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::values::{all_of, id, json, nanoseconds, parse, time};
use crate::events::event::{EVENT_SCHEMA_VERSION, Event, EventType};
use crate::events::query::EventQuery;
use crate::id::{EventId, RunId};
use crate::state::change::NewEvent;
use crate::state::error::StateError;
use crate::state::row_sum::{self, damaged};

/// Appends an event at the next place of its session; the stored one, if its id is there already.
pub(super) fn append(transaction: &Transaction<'_>, event: &NewEvent) -> Result<Event, StateError> {
    if let Some(stored) = find_event(transaction, &event.id)? {
        return Ok(stored);
    }
    let sequence: Option<i64> = transaction
        .query_row(
            "UPDATE sessions SET last_sequence = last_sequence + 1 WHERE id = ?1
             RETURNING last_sequence",
            params![event.session_id.as_str()],
            |row| row.get(0),
        )
        .optional()?;
    let Some(sequence) = sequence else {
        let what = format!("session {}", event.session_id);
        return Err(StateError::NotFound { what });
    };
    transaction
        .prepare_cached(
            "INSERT INTO events (id, session_id, sequence, run_id, type, timestamp, schema_version, data)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            event.id.as_str(),
            event.session_id.as_str(),
            sequence,
            event.run_id.as_ref().map(RunId::as_str),
            event.event_type.as_str(),
            nanoseconds(event.at),
            EVENT_SCHEMA_VERSION,
            json(&event.data),
        ])?;
    Ok(Event {
        id: event.id.clone(),
        event_type: event.event_type.clone(),
        timestamp: event.at,
        session_id: event.session_id.clone(),
        run_id: event.run_id.clone(),
        sequence: sequence.unsigned_abs(),
        schema_version: EVENT_SCHEMA_VERSION,
        data: event.data.clone(),
    })
}

/// The event with this id.
pub(super) fn find_event(
    connection: &Connection,
    id: &EventId,
) -> Result<Option<Event>, StateError> {
    let mut statement = connection.prepare_cached(&format!("{SELECT_EVENT} WHERE id = ?1"))?;
    let mut rows = statement.query(params![id.as_str()])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    row_sum::check(row)?;
    let (_, event) = read_event(row)?;
    Ok(Some(event))
}

/// The last position that is known to have only earlier events before it, of a session or, with no
/// name, of all.
pub(super) const SELECT_EVENT_TIME: &str = concat!(
    "SELECT position, ",
    damaged!(event_times),
    " FROM event_times WHERE session_id = ?1 AND latest < ?2 ORDER BY latest DESC LIMIT 1"
);

pub(super) const SELECT_EVENT: &str = concat!(
    "SELECT position, id, type, timestamp, session_id, run_id, sequence, schema_version, data, ",
    damaged!(events),
    " FROM events"
);

/// The statement for a query. In a session the order of the sequence is that of writing, and leads
/// straight to where a page begins, however much is before it and in other sessions.
pub(super) fn select_events(query: &EventQuery) -> String {
    let is_of_session = query.session_id.is_some();
    let conditions = [
        (!is_of_session, "position > ?1"),
        (
            is_of_session,
            // With a sign before it no index is searched by the position.
            "session_id = ?2 AND +position > ?1 AND sequence > max(coalesce(?5, 0), coalesce(
               (SELECT sequence FROM events WHERE position = ?1 AND session_id = ?2), 0))",
        ),
        (query.run_id.is_some(), "run_id = ?3"),
        (query.event_type.is_some(), "type = ?4"),
        (query.before.is_some(), "sequence < ?6"),
        (query.since.is_some(), "timestamp >= ?7"),
    ];
    let order = match is_of_session {
        true => "sequence",
        false => "position",
    };
    format!(
        "{SELECT_EVENT}{} ORDER BY {order} LIMIT ?8",
        all_of(&conditions)
    )
}

pub(super) fn read_event(row: &Row<'_>) -> Result<(u64, Event), StateError> {
    let event = Event {
        id: id(row.get(1)?)?,
        event_type: EventType::new(row.get::<_, String>(2)?),
        timestamp: time(row.get(3)?)?,
        session_id: id(row.get(4)?)?,
        run_id: row.get::<_, Option<String>>(5)?.map(id).transpose()?,
        sequence: row.get::<_, i64>(6)?.unsigned_abs(),
        schema_version: row.get(7)?,
        data: parse(&row.get::<_, String>(8)?)?,
    };
    Ok((row.get::<_, i64>(0)?.unsigned_abs(), event))
}
