//! Up to where events were removed, and which readers may go on. Pure.

use crate::events::event::Event;
use crate::events::query::EventQuery;
use crate::id::SessionId;

/// Up to where the events of a session, or those of all sessions, were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventFloor {
    /// The sequence number of the last one that was removed from a session; of all sessions zero.
    pub(crate) sequence: u64,
    /// The position of the last one that was removed; zero: none was.
    pub(crate) position: u64,
}

/// Where an event is, that is to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventPlace {
    pub(crate) session_id: SessionId,
    pub(crate) sequence: u64,
    pub(crate) position: u64,
    /// The artifact that has its data.
    pub(crate) data_ref: Option<String>,
}

impl From<&Event> for EventPlace {
    fn from(event: &Event) -> Self {
        Self {
            session_id: event.session_id.clone(),
            sequence: event.sequence,
            position: event.position,
            data_ref: event.data_ref.clone(),
        }
    }
}

/// Events after the place that a reader had come to were removed
/// ([`Engine::trim_log`](crate::Engine::trim_log)): it would miss some without being told.
///
/// It is what an [`Error`](crate::Error) of kind `PositionsForgotten`
/// [wraps](crate::Error::wrapped). A reader that goes on at `oldest` misses nothing from there on;
/// what is on record of runs says what became of those whose events it has missed. Of all sessions
/// there may be others before that: one that goes on where it is, with
/// [`EventQuery::gaps_before`] of `oldest`, gets them, and misses only what was removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PositionsForgotten {
    /// The first position from which on no event was removed, of those that were asked for: a
    /// reader goes on with [`after_position`](EventQuery::after_position) of one less.
    pub oldest: u64,
    /// The same as a sequence number, where the events of one session were asked for: a reader goes
    /// on with a [`Cursor`](crate::Cursor) after one less.
    pub oldest_sequence: Option<u64>,
    /// The session whose events were asked for.
    pub session_id: Option<SessionId>,
}

impl std::fmt::Display for PositionsForgotten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (of, number) = match (&self.session_id, self.oldest_sequence) {
            (Some(id), Some(oldest)) => (
                format!(" of session {id}"),
                format!(" (number {})", oldest - 1),
            ),
            _ => Default::default(),
        };
        write!(
            f,
            "events{of} up to position {}{number} were removed",
            self.oldest - 1
        )
    }
}

impl EventFloor {
    /// What is read for this query, of one session or of all, where that was removed. Without a
    /// place to go on from, a reader gets what is kept; with one after which something was removed,
    /// it is told.
    pub(crate) fn begin(self, query: &EventQuery) -> Result<EventQuery, PositionsForgotten> {
        let position = query.after_position.filter(|position| *position > 0);
        let sequence = query.after.filter(|sequence| *sequence > 0);
        let mut begun = query.clone();
        if position.is_none() && sequence.is_none() {
            if query.session_id.is_some() && self.sequence > 0 {
                // The engine keeps some that it needs itself, which would look like gaps.
                begun.after = Some(self.sequence);
            }
            return Ok(begun);
        }
        // With both, what is asked for is after both.
        let is_behind = self.position > position.unwrap_or(0)
            && (self.sequence > sequence.unwrap_or(0) || sequence.is_none());
        let is_known = query.gaps_before > Some(self.position);
        if is_behind && is_known && query.session_id.is_some() {
            // As for who has no place.
            begun.after = sequence.max(Some(self.sequence));
        }
        match is_behind && !is_known {
            false => Ok(begun),
            true => Err(self.forgotten(query)),
        }
    }

    /// What a reader is told.
    pub(crate) fn forgotten(self, query: &EventQuery) -> PositionsForgotten {
        PositionsForgotten {
            oldest: self.position + 1,
            oldest_sequence: query.session_id.as_ref().map(|_| self.sequence + 1),
            session_id: query.session_id.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_goes_on_or_is_told_and_one_without_a_place_gets_what_is_kept() {
        let of_session = EventQuery::session("s".parse().unwrap());
        let floor = EventFloor {
            sequence: 7,
            position: 40,
        };
        let none = EventFloor::default();
        let all = EventQuery::all;
        for (floor, query, is_fine) in [
            (none, all().after_position(1), true),
            (none, of_session.clone().after(1), true),
            (floor, all(), true),
            (floor, all().after_position(0), true),
            (floor, all().after_position(39), false),
            (floor, all().after_position(40), true),
            (floor, of_session.clone().after(6), false),
            (floor, of_session.clone().after(7), true),
            (floor, of_session.clone().after_position(39), false),
            (floor, of_session.clone().after_position(40), true),
            (floor, of_session.clone().after(7).after_position(3), true),
            (floor, of_session.clone().after(3).after_position(40), true),
            (floor, of_session.clone().after(3).after_position(3), false),
        ] {
            let begun = floor.begin(&query);
            assert_eq!(begun.is_ok(), is_fine, "{query:?}");
            if let Err(forgotten) = begun {
                assert_eq!(forgotten.oldest, 41);
                let of_session = forgotten.session_id.is_some();
                assert_eq!(forgotten.oldest_sequence, of_session.then_some(8));
            }
        }
        // Who was told goes on where it is, until more is removed.
        let told = all().after_position(3).gaps_before(41);
        assert_eq!(floor.begin(&told).unwrap().after_position, Some(3));
        let told = of_session.clone().after(3).gaps_before(41);
        assert_eq!(floor.begin(&told).unwrap().after, Some(7));
        let told_earlier = all().after_position(3).gaps_before(40);
        assert!(floor.begin(&told_earlier).is_err());
        assert_eq!(floor.begin(&of_session).unwrap().after, Some(7));
        assert_eq!(none.begin(&of_session).unwrap().after, None);
    }

    #[test]
    fn who_is_told_is_told_where_to_go_on() {
        let floor = EventFloor {
            sequence: 7,
            position: 40,
        };
        let of_session = EventQuery::session("s".parse().unwrap());
        for (query, expected) in [
            (EventQuery::all(), "events up to position 40 were removed"),
            (
                of_session,
                "events of session s up to position 40 (number 7) were removed",
            ),
        ] {
            let forgotten = floor.begin(&query.after_position(1)).unwrap_err();
            assert_eq!(forgotten.to_string(), expected);
        }
    }
}
