//! Which events a host reads, and from where.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::events::event::EventType;
use crate::id::{RunId, SessionId};

/// A place in the log of a session: everything up to and including `after` was seen.
///
/// It is a number, so a host can keep it and go on after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor {
    after: u64,
}

impl Cursor {
    /// Before the first event.
    pub fn start() -> Self {
        Self::default()
    }

    /// Just after the event with this sequence number.
    pub fn after(sequence: u64) -> Self {
        Self { after: sequence }
    }

    /// The sequence number of the last event that was seen; zero: none.
    pub fn sequence(self) -> u64 {
        self.after
    }
}

/// Which events to read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EventQuery {
    /// Only this session's. Default: every session's, in the order in which they were written.
    pub session_id: Option<SessionId>,
    /// Only this run's. Default: any.
    pub run_id: Option<RunId>,
    /// Only of one of these types. Default: any.
    pub event_types: Vec<EventType>,
    /// Only those at a later [`position`](crate::Event::position): where a reader of all sessions
    /// goes on. One that the log has not reached is `InvalidOptions`. Default: from the first.
    pub after_position: Option<u64>,
    /// Where a reader knows that events before this position may be missing, because
    /// [`PositionsForgotten`](crate::events::PositionsForgotten) has told it
    /// ([`oldest`](crate::events::PositionsForgotten::oldest)): it gets all that is kept after its
    /// own place, and is told only of what is removed from this position on. Default: it knows of
    /// none.
    pub gaps_before: Option<u64>,
    /// Only those with a larger sequence number; one that the session has not reached is
    /// `InvalidOptions`. Needs a session. Default: from the first.
    pub after: Option<u64>,
    /// Only those with a smaller sequence number. Needs a session. Default: to the last.
    pub before: Option<u64>,
    /// Only those that were written at or after this time. Default: any.
    pub since: Option<Timestamp>,
    /// At most this many. Default: all.
    pub limit: Option<u64>,
    /// Where nothing matches yet, [`Engine::events`](crate::Engine::events) waits up to this long
    /// for the first that does; a stream waits in any case. Default: not at all.
    pub wait: Option<Duration>,
    /// Whether the run has been, so that one that is not there was removed.
    pub(crate) is_of_handle: bool,
}

impl EventQuery {
    /// Every event, in the order in which they were written.
    pub fn all() -> Self {
        Self::default()
    }

    /// The events of one session.
    pub fn session(id: SessionId) -> Self {
        Self {
            session_id: Some(id),
            ..Self::default()
        }
    }

    /// Sets [`EventQuery::run_id`].
    pub fn run(mut self, id: RunId) -> Self {
        self.run_id = Some(id);
        self
    }

    /// Adds to [`EventQuery::event_types`].
    pub fn of_type(mut self, event_type: EventType) -> Self {
        self.event_types.push(event_type);
        self
    }

    stillframe_model::setters! {
        after_position: u64,
        gaps_before: u64,
        after: u64,
        before: u64,
        since: Timestamp,
        limit: u64,
        wait: Duration,
    }
}
