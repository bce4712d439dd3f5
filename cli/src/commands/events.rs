//! `events`: the log, one JSON document on each line.

use stillframe::Event;
use stillframe::events::EventQuery;

use super::subject::removed;
use super::{Tools, runs};
use crate::failure::{self, Failure, Place};
use crate::output::{self, Reply};
use crate::request::EventsOf;
use crate::signals::Signals;

/// How many events are read and printed at a time, so that a long log takes little memory.
const PAGE: u64 = 1_000;

/// Prints the events that are in the log.
pub(super) async fn events(tools: &Tools, asked: EventsOf) -> Result<Reply, Failure> {
    let (mut query, place) = query(tools, asked).await?;
    let mut left = query.limit;
    loop {
        let size = left.map_or(PAGE, |left| left.min(PAGE));
        query.limit = Some(size);
        let events: Vec<Event> = tools
            .engine
            .events(query.clone())
            .await
            .map_err(|e| Failure::from(e).going_on(place))?;
        let Some(last) = events.last() else {
            return Ok(Reply::default());
        };
        query.after_position = Some(last.position);
        let lines: String = events.iter().map(output::json_line).collect();
        let count = events.len() as u64;
        left = left.map(|left| left - count);
        if !tools.console.line(&lines)? || count < size || left == Some(0) {
            return Ok(Reply::default());
        }
    }
}

/// Prints the events that are in the log and those that follow, until a signal comes or nobody
/// reads them any more.
pub(super) async fn follow(tools: &Tools, asked: EventsOf) -> Result<Reply, Failure> {
    let mut signals = Signals::listen()?;
    let (query, place) = query(tools, asked).await?;
    let mut events = tools.engine.subscribe(query)?;
    loop {
        tokio::select! {
            number = signals.next() => {
                return Ok(Reply::default().exit_code(failure::exit_code_of(number)));
            }
            event = events.next() => match event {
                None => return Ok(Reply::default()),
                Some(event) => {
                    let event = event.map_err(|e| Failure::from(e).going_on(place))?;
                    if !tools.console.line(&output::json_line(&event))? {
                        return Ok(Reply::default());
                    }
                }
            },
        }
    }
}

/// What is asked for, with the whole id of its run. Who has no place is told what is not there.
async fn query(tools: &Tools, asked: EventsOf) -> Result<(EventQuery, Place), Failure> {
    let EventsOf { mut query, run } = asked;
    if let Some(run) = run {
        query.run_id = Some(runs::by_id(tools, &run).await?.id);
    }
    let is_begun = query.after.or(query.after_position).unwrap_or(0) > 0;
    if !is_begun && let Some(line) = removed(tools.engine.oldest_sequence(&query).await?) {
        tools.console.note(&line);
    }
    let place = match query.after {
        Some(_) => Place::Number,
        None => Place::Position,
    };
    Ok((query, place))
}
