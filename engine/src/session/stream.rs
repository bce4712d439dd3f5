//! A stream of events, read from the log by cursor.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use stillframe_backends::ErrorKind;
use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::event::{Event, EventType};
use crate::events::floor::EventFloor;
use crate::events::query::{Cursor, EventQuery};
use crate::state::StateStore;
use crate::state::error::StateError;

/// How many events are read at a time: enough that reading is cheap, and few enough that a batch
/// that nobody takes costs little.
const BATCH: u64 = 256;

/// A stream of events from a cursor on. It ends when the engine stops.
///
/// The events are read from the log. So a slow reader costs nothing and misses nothing, and events
/// of other processes are included.
pub struct EventStream {
    /// Batches, so that a reader is woken once for each.
    batches: mpsc::Receiver<Result<Vec<Event>, Error>>,
    /// What was taken and not returned yet.
    batch: std::vec::IntoIter<Event>,
    cursor: Cursor,
    position: u64,
}

impl EventStream {
    /// Starts to read. Has to be called on `runtime`, or with it entered.
    pub(crate) fn start(parts: Parts, runtime: &tokio::runtime::Handle, query: EventQuery) -> Self {
        let cursor = Cursor::after(query.after.unwrap_or(0));
        let position = query.after_position.unwrap_or(0);
        let (sender, batches) = mpsc::channel(1);
        runtime.spawn(pump(parts, query, sender));
        Self {
            batches,
            batch: Vec::new().into_iter(),
            cursor,
            position,
        }
    }

    /// The place in its session of the last event that was returned. It is meaningful only in a
    /// stream of one session; [`EventStream::position`] is in any.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The position of the last event that was returned, or that of the query before there is one.
    ///
    /// A host that keeps it goes on after a restart with
    /// [`EventQuery::after_position`](crate::events::EventQuery::after_position), and misses
    /// nothing.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next event; `None`: the engine has stopped, or the limit of the query is reached.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Core {
    /// The events that match, from the query's cursor on.
    pub(crate) fn subscribe(&self, query: EventQuery) -> EventStream {
        EventStream::start(self.parts.clone(), &self.runtime, query)
    }
}

impl Stream for EventStream {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.batch.next() {
                self.cursor = Cursor::after(event.sequence);
                self.position = event.position;
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(self.batches.poll_recv(cx)) {
                Some(Ok(batch)) => self.batch = batch.into_iter(),
                Some(Err(e)) => return Poll::Ready(Some(Err(e))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Reads batch after batch for as long as somebody takes them.
async fn pump(
    parts: Parts,
    mut query: EventQuery,
    sender: mpsc::Sender<Result<Vec<Event>, Error>>,
) {
    if let Some(error) = forgotten_run(&parts, &query).await.transpose() {
        let _ = sender.send(Err(error.unwrap_or_else(|e| e))).await;
        return;
    }
    let session_id = query.session_id.as_ref();
    let mut notifier = parts.writer.notifier().subscribe(session_id);
    let mut left = query.limit;
    while left != Some(0) {
        // One batch ahead of the reader, and no more: the rest stays in the log.
        let Ok(room) = sender.reserve().await else {
            return;
        };
        // Before reading, so that what is written meanwhile rings.
        notifier.mark_unchanged();
        let has_stopped = parts.stopped.is_cancelled();
        query.limit = Some(left.map_or(BATCH, |left| left.min(BATCH)));
        let events = match read_page(&parts, &mut query).await {
            Ok(events) => events,
            Err(e) => {
                // The reader decides whether to ask again.
                room.send(Err(e));
                return;
            }
        };
        let is_end = events.is_empty();
        if !is_end {
            left = left.map(|left| left.saturating_sub(events.len() as u64));
            room.send(Ok(events));
        }
        if is_end && has_stopped {
            return;
        }
        if is_end {
            tokio::select! {
                rung = notifier.changed() => {
                    if rung.is_err() {
                        parts.stopped.cancelled().await;
                    }
                }
                () = parts.stopped.cancelled() => {}
                () = sender.closed() => return,
            }
        }
    }
}

/// The next events that match, and moves the query to the position up to which there are no more:
/// what was passed over is not looked at again.
pub(crate) async fn read_page(parts: &Parts, query: &mut EventQuery) -> Result<Vec<Event>, Error> {
    let asked = query.clone();
    let page = parts
        .reader
        .read_with(move |store| page(store, &asked))
        .await?;
    taken(page, query)
}

/// As [`read_page`], of a reader that has no page yet; and where events of a session or a run begin
/// that were removed before: see [`oldest_sequence`].
pub(crate) async fn read_first_page(
    parts: &Parts,
    query: &mut EventQuery,
) -> Result<(Vec<Event>, Option<u64>), Error> {
    let asked = query.clone();
    let first = move |store: &dyn StateStore| loop {
        let floor = floor_of(store, &asked)?;
        let oldest = oldest_sequence(store, &asked)?;
        let page = page(store, &asked)?;
        if floor_of(store, &asked)? == floor {
            return Ok((page, oldest));
        }
    };
    let (page, oldest) = parts.reader.read_with(first).await?;
    Ok((taken(page, query)?, oldest))
}

/// The events of a page; the query goes on behind it.
fn taken((events, end): (Vec<Event>, u64), query: &mut EventQuery) -> Result<Vec<Event>, Error> {
    if let Some(after) = query.after_position
        && after > end
    {
        return Err(Error::invalid_options(format!(
            "position {after} is not in the log, which ends at position {end}"
        )));
    }
    let is_all = query
        .limit
        .is_none_or(|limit| (events.len() as u64) < limit);
    let last = events.last().map(|event| event.position);
    let seen = if is_all { last.max(Some(end)) } else { last };
    query.after_position = query.after_position.max(seen);
    if query.session_id.is_some() {
        // The number leads straight to where the next page begins.
        query.after = query.after.max(events.last().map(|event| event.sequence));
    }
    Ok(events)
}

/// The events that match, and the position up to which there are no more. Fails with
/// [`PositionsForgotten`](crate::events::PositionsForgotten) where some of them were removed after
/// the place that the reader had come to.
fn page(store: &dyn StateStore, query: &EventQuery) -> Result<(Vec<Event>, u64), Error> {
    loop {
        let floor = floor_of(store, query)?;
        let asked = floor
            .begin(query)
            .map_err(|forgotten| Error::new(ErrorKind::PositionsForgotten, forgotten))?;
        // Before the events, of which more may come meanwhile.
        let end = store.last_position()?;
        let events = store.events(&asked)?;
        // Some of those that were asked for may have been removed before they were read.
        if floor_of(store, query)? != floor {
            continue;
        }
        if events.is_empty() {
            check_number(store, query, floor)?;
        }
        return Ok((events, end));
    }
}

/// Refuses a number that the session has not reached. One that has never been may begin later.
fn check_number(
    store: &dyn StateStore,
    query: &EventQuery,
    floor: EventFloor,
) -> Result<(), Error> {
    let (Some(id), Some(after)) = (&query.session_id, query.after) else {
        return Ok(());
    };
    let last = match store.session_extent(id) {
        Ok(extent) => extent.last_sequence,
        Err(StateError::NotFound { .. }) if floor.sequence > 0 => floor.sequence,
        Err(StateError::NotFound { .. }) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    match after > last {
        false => Ok(()),
        true => Err(Error::invalid_options(format!(
            "number {after} is not in session {id}, which ends at number {last}"
        ))),
    }
}

/// That all events of a run were removed which will have no more, for a reader without a place.
async fn forgotten_run(parts: &Parts, query: &EventQuery) -> Result<Option<Error>, Error> {
    let Some(run_id) = query.run_id.clone() else {
        return Ok(None);
    };
    if query.after_position.unwrap_or(0) > 0 || query.after.unwrap_or(0) > 0 {
        return Ok(None);
    }
    let query = query.clone();
    let look = move |store: &dyn StateStore| {
        let floor = floor_of(store, &query)?;
        let is_over = match store.run(&run_id)? {
            Some(run) => run.status.is_terminal(),
            None => query.is_of_handle,
        };
        if floor.position == 0 || !is_over {
            return Ok(None);
        }
        let any = EventQuery {
            session_id: query.session_id.clone(),
            ..EventQuery::all().run(run_id).limit(1)
        };
        Ok(store
            .events(&any)?
            .is_empty()
            .then(|| Error::new(ErrorKind::PositionsForgotten, floor.forgotten(&query))))
    };
    parts.reader.read(look).await
}

/// The number in its session from which on the events of a session or a run are kept, where some of
/// them were removed before; `None`: none was, or those of all sessions are asked for.
pub(crate) fn oldest_sequence(
    store: &dyn StateStore,
    query: &EventQuery,
) -> Result<Option<u64>, StateError> {
    let floor = floor_of(store, query)?;
    if floor.sequence == 0 {
        return Ok(None);
    }
    let run = match &query.run_id {
        Some(id) => store.run(id)?,
        None => None,
    };
    let mut kept = EventQuery::all().after(floor.sequence).limit(1);
    let begins_with = match &run {
        Some(run) if store.queue_row(&run.id)?.is_some() => EventType::RUN_QUEUED,
        Some(run) if run.started_at.is_some() => EventType::RUN_STARTED,
        // It has none, or one that says how it ended.
        Some(_) => return Ok(None),
        // One that is made anew under the id of a removed one begins with a later number.
        None => EventType::SESSION_CREATED,
    };
    let session_id = run.as_ref().map(|run| run.session_id.clone());
    kept.session_id = session_id.or(query.session_id.clone());
    kept.run_id.clone_from(&query.run_id);
    let first = store.events(&kept)?.pop();
    let is_first = |event: &Event| event.event_type == begins_with && !event.told().resumed;
    let is_whole = match run.filter(|run| run.workspace.is_some()) {
        // What it began with is captured before it is said that it started.
        Some(_) if begins_with == EventType::RUN_STARTED => {
            let started = store.events(&kept.of_type(begins_with.clone()))?.pop();
            started.as_ref().is_some_and(is_first) && started != first
        }
        _ => first.as_ref().is_some_and(is_first),
    };
    Ok((!is_whole).then_some(floor.sequence + 1))
}

/// Up to where what a query asks for was removed.
fn floor_of(store: &dyn StateStore, query: &EventQuery) -> Result<EventFloor, StateError> {
    let of_run = match (&query.session_id, &query.run_id) {
        (None, Some(id)) => store.run(id)?.map(|run| run.session_id),
        _ => None,
    };
    store.event_floor(query.session_id.as_ref().or(of_run.as_ref()))
}
