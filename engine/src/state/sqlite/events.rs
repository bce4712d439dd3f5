//! Rows of events.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::values::{all_of, id, json, nanoseconds, parse, time, word};
use crate::events::event::{EVENT_SCHEMA_VERSION, Event, EventSource, EventType};
use crate::events::query::EventQuery;
use crate::id::{EventId, RunId};
use crate::state::change::NewEvent;
use crate::state::error::StateError;
use crate::state::row_sum::{self, damaged};

/// Appends an event at the next place of its session; the stored one, if its id is there already.
pub(super) fn append(transaction: &Transaction<'_>, event: &NewEvent) -> Result<Event, StateError> {
    if let Some(stored) = find_event(transaction, &event.id)? {
        return match event.source == EventSource::Engine || event.is_told_by(&stored) {
            true => Ok(stored),
            false => Err(StateError::OtherEvent(event.id.clone())),
        };
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
            "INSERT INTO events (id, session_id, sequence, run_id, type, timestamp, schema_version,
                                 source, provider, correlation_id, metadata, data, data_ref)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?
        .execute(params![
            event.id.as_str(),
            event.session_id.as_str(),
            sequence,
            event.run_id.as_ref().map(RunId::as_str),
            event.event_type.as_str(),
            nanoseconds(event.at),
            EVENT_SCHEMA_VERSION,
            event.source.as_str(),
            event.provider,
            event.correlation_id,
            (!event.metadata.is_empty()).then(|| json(&event.metadata)),
            json(&event.data),
            event.data_ref,
        ])?;
    Ok(Event {
        id: event.id.clone(),
        position: transaction.last_insert_rowid().unsigned_abs(),
        event_type: event.event_type.clone(),
        timestamp: event.at,
        session_id: event.session_id.clone(),
        run_id: event.run_id.clone(),
        sequence: sequence.unsigned_abs(),
        schema_version: EVENT_SCHEMA_VERSION,
        source: event.source,
        provider: event.provider.clone(),
        correlation_id: event.correlation_id.clone(),
        metadata: event.metadata.clone(),
        data: event.data.clone(),
        data_ref: event.data_ref.clone(),
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
    read_event(row).map(Some)
}

/// The last position that is known to have only earlier events before it, of a session or, with no
/// name, of all.
pub(super) const SELECT_EVENT_TIME: &str = concat!(
    "SELECT position, ",
    damaged!(event_times),
    " FROM event_times WHERE session_id = ?1 AND latest < ?2 ORDER BY latest DESC LIMIT 1"
);

pub(super) const SELECT_EVENT: &str = concat!(
    "SELECT position, id, type, timestamp, session_id, run_id, sequence, schema_version, data,",
    " source, provider, correlation_id, metadata, data_ref, ",
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
        (query.event_types.len() == 1, "type = ?4"),
        // With a sign before it no index is searched by the types: what it finds is not in order.
        (
            query.event_types.len() > 1,
            "+type IN (SELECT value FROM json_each(?4))",
        ),
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

/// What a statement of [`select_events`] has in its fourth place.
pub(super) fn types_of(query: &EventQuery) -> Option<String> {
    match query.event_types.as_slice() {
        [] => None,
        [only] => Some(only.as_str().to_owned()),
        several => Some(json(&several)),
    }
}

pub(super) fn read_event(row: &Row<'_>) -> Result<Event, StateError> {
    let event_type = EventType::new(row.get::<_, String>(2)?);
    let source = match row.get::<_, Option<String>>(9)? {
        Some(text) => word(text, EventSource::of)?,
        None if event_type.may_be_written_by(EventSource::Adapter) && !event_type.is_known() => {
            EventSource::Adapter
        }
        None => EventSource::Engine,
    };
    Ok(Event {
        id: id(row.get(1)?)?,
        position: row.get::<_, i64>(0)?.unsigned_abs(),
        event_type,
        timestamp: time(row.get(3)?)?,
        session_id: id(row.get(4)?)?,
        run_id: row.get::<_, Option<String>>(5)?.map(id).transpose()?,
        sequence: row.get::<_, i64>(6)?.unsigned_abs(),
        schema_version: row.get(7)?,
        source,
        provider: row.get(10)?,
        correlation_id: row.get(11)?,
        metadata: match row.get::<_, Option<String>>(12)? {
            Some(text) => parse(&text)?,
            None => serde_json::Map::new(),
        },
        data: parse(&row.get::<_, String>(8)?)?,
        data_ref: row.get(13)?,
    })
}
