//! `events`: the log, one JSON document on each line.

use stillframe::Event;
use stillframe::events::EventQuery;

use super::{Tools, runs};
use crate::failure::{self, Failure};
use crate::output::{self, Reply};
use crate::request::EventsOf;
use crate::signals::Signals;

/// How many events are read and printed at a time, so that a long log takes little memory.
const PAGE: u64 = 1_000;

/// Prints the events that are in the log.
pub(super) async fn events(tools: &Tools, asked: EventsOf) -> Result<Reply, Failure> {
    let mut query = query(tools, asked).await?;
    let mut left = query.limit;
    loop {
        let size = left.map_or(PAGE, |left| left.min(PAGE));
        query.limit = Some(size);
        let events: Vec<Event> = tools.engine.events(query.clone()).await?;
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
    let mut events = tools.engine.subscribe(query(tools, asked).await?)?;
    loop {
        tokio::select! {
            number = signals.next() => {
                return Ok(Reply::default().exit_code(failure::exit_code_of(number)));
            }
            event = events.next() => match event {
                None => return Ok(Reply::default()),
                Some(event) => {
                    if !tools.console.line(&output::json_line(&event?))? {
                        return Ok(Reply::default());
                    }
                }
            },
        }
    }
}

/// What is asked for, with the whole id of its run.
async fn query(tools: &Tools, asked: EventsOf) -> Result<EventQuery, Failure> {
    let EventsOf { mut query, run } = asked;
    if let Some(run) = run {
        query.run_id = Some(runs::by_id(tools, &run).await?.id);
    }
    Ok(query)
}
