//! `events`: the log, one JSON document on each line.

use stillframe::Event;
use stillframe::events::EventQuery;

use super::Tools;
use crate::failure::{self, Failure};
use crate::output::{self, Answer, Reply};
use crate::signals::Signals;

/// Prints the events that are in the log.
pub(super) async fn events(tools: &Tools, query: EventQuery) -> Result<Reply, Failure> {
    let events: Vec<Event> = tools.engine.events(query).await?;
    Ok(Reply {
        answer: Answer::Text(events.iter().map(output::json_line).collect()),
        ..Reply::default()
    })
}

/// Prints the events that are in the log and those that follow, until a signal comes or nobody
/// reads them any more.
pub(super) async fn follow(tools: &Tools, query: EventQuery) -> Result<Reply, Failure> {
    let mut signals = Signals::listen()?;
    let mut events = tools.engine.subscribe(query)?;
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
