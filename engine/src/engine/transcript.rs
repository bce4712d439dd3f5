//! The transcript of a run or a session, read from the log page by page.

use std::collections::VecDeque;
use std::fmt;

use serde_json::Value;
use stillframe_backends::ErrorKind;

use super::Engine;
use crate::error::Error;
use crate::events::event::{Event, EventType};
use crate::events::query::EventQuery;
use crate::options::{RecordsOf, TranscriptQuery};
use crate::records::transcript::{TYPES, TranscriptEntry};
use crate::session::stream;

/// How many events are read at a time. Their data has up to 64 KiB each in the log.
const PAGE: u64 = 64;

/// The entries of a transcript, in the order in which they were written. It holds one page of them,
/// however many there are, and ends where the log ends when it gets there.
pub struct Transcript {
    engine: Engine,
    query: EventQuery,
    page: VecDeque<Event>,
    oldest_sequence: Option<u64>,
}

impl Engine {
    /// What was said and done in a run or a session: messages, calls of tools, questions, turns and
    /// usage, as adapters and hosts reported them.
    ///
    /// ```no_run
    /// # use stillframe::options::TranscriptQuery;
    /// # use stillframe::records::TranscriptItem;
    /// # async fn read(engine: stillframe::Engine, run_id: stillframe::RunId) -> Result<(), stillframe::Error> {
    /// let mut transcript = engine.transcript(TranscriptQuery::run(run_id)).await?;
    /// while let Some(entry) = transcript.next().await {
    ///     if let TranscriptItem::Message { text: Some(text), .. } = entry?.item {
    ///         println!("{text}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run, or no such session.
    pub async fn transcript(&self, query: TranscriptQuery) -> Result<Transcript, Error> {
        let mut events = self.events_of(query.of).await?;
        events.event_types = TYPES.to_vec();
        events.after_position = query.after_position;
        events.limit = Some(PAGE);
        let has_place = query.after_position.unwrap_or(0) > 0;
        let (page, oldest_sequence) = match has_place {
            // Who would miss something is told.
            true => Default::default(),
            false => stream::read_first_page(&self.core.parts, &mut events).await?,
        };
        Ok(Transcript {
            engine: self.clone(),
            query: events,
            page: page.into(),
            oldest_sequence,
        })
    }

    /// All events of a run or a session; `NotFound`: there is no such run, or no such session.
    pub(super) async fn events_of(&self, of: RecordsOf) -> Result<EventQuery, Error> {
        match of {
            RecordsOf::Run(id) => {
                let asked = id.clone();
                let found = self.read(move |store| store.run(&asked)).await?;
                let row = found.ok_or_else(|| Error::not_found(format!("there is no run {id}")))?;
                Ok(EventQuery::session(row.session_id).run(id))
            }
            RecordsOf::Session(id) => {
                let asked = id.clone();
                let found = self.read(move |store| store.session(&asked)).await?;
                match found {
                    Some(_) => Ok(EventQuery::session(id)),
                    None => Err(Error::not_found(format!("there is no session {id}"))),
                }
            }
        }
    }
}

impl Transcript {
    /// Where it does not begin with the run or the session, because events of it
    /// [were removed](Engine::trim_log): the number in the session from which on none was. `None`:
    /// none was, or it goes on after a position.
    pub fn oldest_sequence(&self) -> Option<u64> {
        self.oldest_sequence
    }

    /// The next entry; `None`: there is no further one yet.
    pub async fn next(&mut self) -> Option<Result<TranscriptEntry, Error>> {
        loop {
            if let Some(event) = self.page.pop_front() {
                match self.entry(event).await {
                    Ok(None) => continue,
                    Ok(Some(entry)) => return Some(Ok(entry)),
                    Err(e) => return Some(Err(e)),
                }
            }
            match stream::read_page(&self.engine.core.parts, &mut self.query).await {
                Ok(events) if events.is_empty() => return None,
                Ok(events) => self.page = events.into(),
                Err(e) => return Some(Err(e)),
            }
        }
    }

    async fn entry(&self, event: Event) -> Result<Option<TranscriptEntry>, Error> {
        let data = match self.engine.event_data(&event).await {
            // Somebody has removed the artifact. What follows is worth reading all the same.
            Err(e) if event.data_ref.is_some() && e.kind() == ErrorKind::NotFound => Value::Null,
            data => data?,
        };
        let input = match &event.run_id {
            Some(id) if event.event_type == EventType::RUN_STARTED => {
                let asked = id.clone();
                let reader = &self.engine.core.parts.reader;
                let found = reader.read(move |store| store.run(&asked)).await?;
                found.map(|row| row.input)
            }
            _ => None,
        };
        let entry = TranscriptEntry::of(event, data, input);
        Ok(entry.map(|entry| TranscriptEntry {
            oldest_sequence: self.oldest_sequence,
            ..entry
        }))
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transcript")
            .field("after_position", &self.query.after_position)
            .finish_non_exhaustive()
    }
}
