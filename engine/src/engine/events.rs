//! Reading the log of events.

use std::time::Instant;

use serde_json::Value;
use stillframe_backends::ErrorKind;

use super::Engine;
use crate::error::Error;
use crate::events::event::Event;
use crate::events::query::EventQuery;
use crate::id::{EventId, SessionId};
use crate::session::stream::{self, EventStream};
use crate::state::StateStore;

impl Engine {
    /// Events in the log, in the order in which they were written. With [`EventQuery::wait`] it
    /// waits for the first one that matches; the answer is empty if none came.
    ///
    /// # Errors
    ///
    /// `NotFound`: the session has never existed, and nothing is waited for. `InvalidOptions`: the
    /// query means nothing, such as a position that the log has not reached.
    pub async fn events(&self, mut query: EventQuery) -> Result<Vec<Event>, Error> {
        check_query(&query)?;
        let parts = &self.core.parts;
        parts.check_available()?;
        let deadline = query.wait.map(|wait| Instant::now().checked_add(wait));
        let session_id = query.session_id.clone();
        let mut notifier = parts.writer.notifier().subscribe(session_id.as_ref());
        loop {
            // Before reading, so that what is written meanwhile rings.
            notifier.mark_unchanged();
            let events = stream::read_page(parts, &mut query).await?;
            if !events.is_empty() || query.limit == Some(0) {
                return Ok(events);
            }
            let Some(deadline) = deadline else {
                self.check_session(session_id).await?;
                return Ok(events);
            };
            let is_over = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = notifier.changed() => {}
                () = is_over => return Ok(events),
                () = parts.stopped.cancelled() => return Ok(events),
            }
        }
    }

    /// The number in its session from which on the events of the query's session or run are kept,
    /// where earlier ones of it [were removed](Engine::trim_log): what a reader without a place
    /// does not get. `None`: none was, or the query is of all sessions.
    pub async fn oldest_sequence(&self, query: &EventQuery) -> Result<Option<u64>, Error> {
        let asked = query.clone();
        let look = move |store: &dyn StateStore| stream::oldest_sequence(store, &asked);
        self.read(look).await
    }

    /// The event of this id; `NotFound` if there is none.
    pub async fn event(&self, id: &EventId) -> Result<Event, Error> {
        let asked = id.clone();
        let found = self.read(move |store| store.event(&asked)).await?;
        found.ok_or_else(|| Error::not_found(format!("there is no event {id}")))
    }

    /// The data of an event, read from its artifact if that has it.
    pub async fn event_data(&self, event: &Event) -> Result<Value, Error> {
        let Some(key) = &event.data_ref else {
            return Ok(event.data.clone());
        };
        let content = self.open_artifact(key).await?;
        let read = move || {
            serde_json::from_reader(std::io::BufReader::new(content))
                .map_err(|e| Error::new(ErrorKind::Corrupt, e))
        };
        self.core.parts.blocking.run(read).await?
    }

    /// The events that match `query`, then every one that follows, of this engine or another; a
    /// session may also begin later.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: the query means nothing. A position that the log has not reached is told
    /// by the stream.
    pub fn subscribe(&self, query: EventQuery) -> Result<EventStream, Error> {
        self.core.parts.check_available()?;
        check_query(&query)?;
        Ok(self.core.subscribe(query))
    }

    /// The name of [`Engine::subscribe`] in earlier versions.
    #[deprecated(note = "it is called `subscribe`")]
    pub fn watch(&self, query: EventQuery) -> Result<EventStream, Error> {
        self.subscribe(query)
    }

    /// Fails if there has never been such a session.
    async fn check_session(&self, id: Option<SessionId>) -> Result<(), Error> {
        let Some(id) = id else { return Ok(()) };
        let asked = id.clone();
        match self.read(move |store| store.session(&asked)).await? {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("there is no session {id}"))),
        }
    }
}

/// Refuses a query that means nothing.
fn check_query(query: &EventQuery) -> Result<(), Error> {
    if query.session_id.is_none() && (query.after.is_some() || query.before.is_some()) {
        return Err(Error::invalid_options(
            "sequence numbers are counted in each session; name the session, or a position",
        ));
    }
    for event_type in &query.event_types {
        event_type.check()?;
    }
    Ok(())
}
