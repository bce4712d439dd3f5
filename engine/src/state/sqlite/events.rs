//! Rows of events.

use std::collections::HashMap;

use rusqlite::types::{FromSql as _, ValueRef};
use rusqlite::{Connection, Row, params};

use super::removals::refuse_if_being_removed;
use super::run_totals::add_tokens;
use super::tool_calls::move_call;
use super::values::{all_of, id_of, json, nanoseconds, parse, time, word};
use crate::events::event::{EVENT_SCHEMA_VERSION, Event, EventSource, EventType};
use crate::events::query::EventQuery;
use crate::id::{EventId, RunId, SessionId};
use crate::state::change::{NewEvent, Reported};
use crate::state::error::StateError;
use crate::state::row_sum::{self, damaged};

/// The events that one transaction appends.
#[derive(Default)]
pub(super) struct Appended {
    pub(super) events: Vec<Event>,
    /// What is read once: only one transaction writes at a time.
    sessions: HashMap<SessionId, Place>,
    all: Option<Place>,
}

/// Where the events of a session, or those of all, end.
#[derive(Clone, Copy)]
struct Place {
    /// The last number in the session; of all, the last position.
    last: i64,
    /// The latest time in `event_times`; `None`: it has none.
    latest: Option<i64>,
}

impl Place {
    /// Of a session.
    fn of(connection: &Connection, id: &SessionId) -> Result<Self, StateError> {
        refuse_if_being_removed(connection, id)?;
        Ok(Self {
            last: last_sequence(connection, id)?,
            latest: latest(connection, id.as_str())?,
        })
    }

    /// Of all sessions.
    fn of_all(connection: &Connection) -> Result<Self, StateError> {
        let mut statement = connection.prepare_cached(SELECT_LAST_POSITION)?;
        Ok(Self {
            last: statement.query_row((), |row| row.get(0))?,
            latest: latest(connection, ALL)?,
        })
    }

    /// Whether an event of this time needs a row in `event_times`: there is one for each second
    /// that the latest time moves on by.
    fn is_time_due(&self, at: i64) -> bool {
        self.latest
            .is_none_or(|latest| latest <= at.saturating_sub(1_000_000_000))
    }
}

/// The name of all sessions in `event_times`.
const ALL: &str = "";

impl Appended {
    /// Takes what was appended since this was asked last.
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What was appended since this was asked last was undone.
    pub(super) fn undone(&mut self) {
        *self = Self::default();
    }

    /// What was read of a session may not be so any more.
    pub(super) fn look_again(&mut self, id: &SessionId) {
        self.sessions.remove(id);
    }

    /// Appends an event at the next place of its session; the stored one, if its id is there
    /// already.
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        event: &NewEvent,
    ) -> Result<(), StateError> {
        let all = match &mut self.all {
            Some(all) => all,
            none => none.insert(Place::of_all(connection)?),
        };
        if !self.sessions.contains_key(&event.session_id) {
            let place = Place::of(connection, &event.session_id)?;
            self.sessions.insert(event.session_id.clone(), place);
        }
        let place = self.sessions.get_mut(&event.session_id);
        let session = place.expect("it was put there");
        let (sequence, position) = (session.last + 1, all.last + 1);
        if !insert(connection, event, sequence, position)? {
            self.events.push(stored(connection, event)?);
            return Ok(());
        }
        match (&event.run_id, &event.reported) {
            (Some(run_id), Some(Reported::Call(moved))) => {
                move_call(connection, run_id, event.source, event.at, moved)?;
            }
            (Some(run_id), Some(Reported::Tokens(told))) => {
                let (used, agent_id) = &**told;
                add_tokens(connection, run_id, used, agent_id.as_ref())?;
            }
            (None, _) | (_, None) => {}
        }
        let at = nanoseconds(event.at);
        for (place, last, name) in [
            (session, sequence, event.session_id.as_str()),
            (all, position, ALL),
        ] {
            place.last = last;
            if place.is_time_due(at) {
                insert_time(connection, name, at, position)?;
                place.latest = Some(at);
            }
        }
        self.events.push(Event {
            id: event.id.clone(),
            position: position.unsigned_abs(),
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
        });
        Ok(())
    }
}

/// The number of the last event that a session was given.
pub(super) fn last_sequence(connection: &Connection, id: &SessionId) -> Result<i64, StateError> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT id, max(sequence_floor, coalesce(
                    (SELECT max(sequence) FROM events WHERE session_id = ?1), 0)), ",
        damaged!(sessions),
        " FROM sessions WHERE id = ?1"
    ))?;
    let mut rows = statement.query(params![id.as_str()])?;
    let Some(row) = rows.next()? else {
        let what = format!("session {id}");
        return Err(StateError::NotFound { what });
    };
    row_sum::check(row)?;
    Ok(row.get(1)?)
}

/// The latest time in `event_times`, of a session or of all.
fn latest(connection: &Connection, name: &str) -> Result<Option<i64>, StateError> {
    let mut statement =
        connection.prepare_cached("SELECT max(latest) FROM event_times WHERE session_id = ?1")?;
    Ok(statement.query_row(params![name], |row| row.get(0))?)
}

/// Writes that the events at this position and before it are of this time or earlier.
fn insert_time(
    connection: &Connection,
    name: &str,
    at: i64,
    position: i64,
) -> Result<(), StateError> {
    connection
        .prepare_cached(
            "INSERT INTO event_times (session_id, latest, position, row_sum)
             VALUES (?1, ?2, ?3, row_sum('event_times', ?1, ?2, ?3))",
        )?
        .execute(params![name, at, position])?;
    Ok(())
}

/// Writes a row with its sum; `false`: there is an event of its id.
fn insert(
    connection: &Connection,
    event: &NewEvent,
    sequence: i64,
    position: i64,
) -> Result<bool, StateError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO events (position, id, session_id, sequence, run_id, type, timestamp,
                             schema_version, data, source, provider, correlation_id, metadata,
                             data_ref, row_sum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,
                 row_sum('events', ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14))
         ON CONFLICT (id) DO NOTHING",
    )?;
    let rows = statement.execute(params![
        position,
        event.id.as_str(),
        event.session_id.as_str(),
        sequence,
        event.run_id.as_ref().map(RunId::as_str),
        event.event_type.as_str(),
        nanoseconds(event.at),
        EVENT_SCHEMA_VERSION,
        json(&event.data),
        event.source.as_str(),
        event.provider,
        event.correlation_id,
        (!event.metadata.is_empty()).then(|| json(&event.metadata)),
        event.data_ref,
    ])?;
    Ok(rows == 1)
}

/// The event that has the id of this one.
fn stored(connection: &Connection, event: &NewEvent) -> Result<Event, StateError> {
    let stored = find_event(connection, &event.id)?;
    match stored {
        Some(stored) if event.source == EventSource::Engine || event.is_told_by(&stored) => {
            Ok(stored)
        }
        _ => Err(StateError::OtherEvent(event.id.clone())),
    }
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
    read_event(row).map(Some)
}

/// The last position that was given, whether or not its event is still there.
pub(super) const SELECT_LAST_POSITION: &str =
    "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'";

/// The last position that is known to have only earlier events before it, of a session or, with no
/// name, of all.
pub(super) const SELECT_EVENT_TIME: &str = concat!(
    "SELECT position, latest, ",
    damaged!(event_times),
    " FROM event_times WHERE session_id = ?1 AND latest < ?2 ORDER BY latest DESC LIMIT 1"
);

/// The first position at which the latest time was this much later that it was noted.
pub(super) const SELECT_NEXT_EVENT_TIME: &str = concat!(
    "SELECT position, latest, ",
    damaged!(event_times),
    " FROM event_times WHERE session_id = ?1 AND latest > ?2 ORDER BY latest LIMIT 1"
);

/// The columns that are in a row's sum, in its order, and the sum.
pub(super) const SELECT_EVENT: &str = concat!(
    "SELECT position, id, session_id, sequence, run_id, type, timestamp, schema_version, data,",
    " source, provider, correlation_id, metadata, data_ref, row_sum FROM events"
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

/// The event of a row of [`SELECT_EVENT`], if that matches its sum.
pub(super) fn read_event(row: &Row<'_>) -> Result<Event, StateError> {
    let mut columns = [ValueRef::Null; 15];
    for (at, column) in columns.iter_mut().enumerate() {
        *column = row.get_ref(at)?;
    }
    let [columns @ .., sum] = &columns;
    row_sum::check_columns("events", "event", columns, *sum)?;
    let [
        position,
        event_id,
        session_id,
        sequence,
        run_id,
        event_type,
        timestamp,
        schema_version,
        data,
        source,
        provider,
        correlation_id,
        metadata,
        data_ref,
    ] = columns;
    let event_type = EventType::new(event_type.as_str()?);
    let source = match source.as_str_or_null()? {
        Some(text) => word(text.to_owned(), EventSource::of)?,
        // A row of a version without sources. Only adapters could write what is not the engine's.
        None if event_type.may_be_written_by(EventSource::Host) => EventSource::Adapter,
        None => EventSource::Engine,
    };
    let text = |column: &ValueRef<'_>| -> Result<Option<String>, StateError> {
        Ok(column.as_str_or_null()?.map(str::to_owned))
    };
    Ok(Event {
        id: id_of(event_id.as_str()?)?,
        position: position.as_i64()?.unsigned_abs(),
        event_type,
        timestamp: time(timestamp.as_i64()?)?,
        session_id: id_of(session_id.as_str()?)?,
        run_id: run_id.as_str_or_null()?.map(id_of).transpose()?,
        sequence: sequence.as_i64()?.unsigned_abs(),
        schema_version: u32::column_result(*schema_version)?,
        source,
        provider: text(provider)?,
        correlation_id: text(correlation_id)?,
        metadata: match metadata.as_str_or_null()? {
            Some(text) => parse(text)?,
            None => serde_json::Map::new(),
        },
        data: parse(data.as_str()?)?,
        data_ref: text(data_ref)?,
    })
}
