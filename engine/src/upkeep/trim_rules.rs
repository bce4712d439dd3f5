//! Which events are removed. Pure.

use std::collections::HashMap;

use crate::events::event::{Event, EventType};
use crate::events::floor::EventPlace;
use crate::id::SessionId;
use crate::workspace::safety;

/// Those of `events` that go: up to `cut`, and in each session before the first that is needed.
pub(crate) fn removable(
    events: &[Event],
    cut: u64,
    needed: &HashMap<SessionId, u64>,
) -> Vec<EventPlace> {
    let goes = |event: &&Event| {
        let first_needed = needed.get(&event.session_id);
        event.position <= cut
            && first_needed.is_none_or(|needed| event.position < *needed)
            && !is_read_by_engine(event)
    };
    events.iter().filter(goes).map(EventPlace::from).collect()
}

/// Whether the engine looks for it, however old it is: which snapshots it has removed, when it
/// announced that it would, and which refs in the user's repository an earlier version has made.
fn is_read_by_engine(event: &Event) -> bool {
    [
        EventType::WORKSPACE_CLEANED_UP,
        EventType::WORKSPACE_RETENTION_ANNOUNCED,
    ]
    .contains(&event.event_type)
        || (event.event_type == EventType::WORKSPACE_ROLLED_BACK && safety::names_a_tag(event))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::events::event::{EVENT_SCHEMA_VERSION, EventSource};
    use crate::events::floor::EventFloor;
    use crate::events::query::EventQuery;
    use crate::id::EventId;

    fn session(name: u8) -> SessionId {
        format!("s{name}").parse().unwrap()
    }

    /// A log of events of these sessions, in this order; those that are marked are read by the
    /// engine.
    fn log(of: &[(u8, bool)]) -> Vec<Event> {
        let mut counted: HashMap<u8, u64> = HashMap::new();
        let event = |(at, (name, is_read)): (usize, &(u8, bool))| {
            let sequence = counted.entry(*name).or_default();
            *sequence += 1;
            Event {
                id: EventId::random(),
                event_type: match is_read {
                    true => EventType::WORKSPACE_CLEANED_UP,
                    false => EventType::new("noted"),
                },
                timestamp: Timestamp::UNIX_EPOCH,
                session_id: session(*name),
                run_id: None,
                position: at as u64 + 1,
                sequence: *sequence,
                schema_version: EVENT_SCHEMA_VERSION,
                source: EventSource::Engine,
                provider: None,
                correlation_id: None,
                metadata: serde_json::Map::new(),
                data: json!({}),
                data_ref: None,
            }
        };
        of.iter().enumerate().map(event).collect()
    }

    #[test]
    fn a_tag_of_an_earlier_version_is_still_looked_for() {
        let mut events = log(&[(0, false), (0, false)]);
        for (event, name) in events
            .iter_mut()
            .zip(["refs/tags/x", "refs/stillframe/safety/x"])
        {
            event.event_type = EventType::WORKSPACE_ROLLED_BACK;
            event.data = json!({"safety_tag": name});
        }
        let gone = removable(&events, 9, &HashMap::new());
        assert_eq!(gone, [EventPlace::from(&events[1])]);
    }

    proptest! {
        // Where a reader is not told that something was removed, nothing of it was.
        #[test]
        fn each_reader_gets_all_after_its_place_or_is_told(
            of in prop::collection::vec((0u8..3, prop::bool::weighted(0.1)), 1..40),
            cuts in prop::collection::vec(0u64..45, 1..4),
            needed in prop::collection::hash_map(0u8..3, 1u64..45, 0..3),
        ) {
            let all = log(&of);
            let needed: HashMap<SessionId, u64> =
                needed.into_iter().map(|(name, at)| (session(name), at)).collect();
            let mut kept = all.clone();
            let mut floors: HashMap<Option<SessionId>, EventFloor> = HashMap::new();
            for cut in cuts {
                let gone = removable(&kept, cut, &needed);
                for place in &gone {
                    for (name, sequence) in [(Some(place.session_id.clone()), place.sequence), (None, 0)] {
                        let floor = floors.entry(name).or_default();
                        floor.sequence = floor.sequence.max(sequence);
                        floor.position = floor.position.max(place.position);
                    }
                }
                kept.retain(|event| !gone.contains(&EventPlace::from(event)));
            }
            for (id, first) in &needed {
                let missing = all.iter().find(|event| {
                    event.session_id == *id && event.position >= *first && !kept.contains(event)
                });
                prop_assert!(missing.is_none(), "{missing:?} was needed");
            }
            let names = (0..3).map(session).map(Some).chain([None]);
            for name in names {
                let floor = floors.get(&name).copied().unwrap_or_default();
                let query = |at: u64, by_number: bool| match (&name, by_number) {
                    (Some(id), true) => EventQuery::session(id.clone()).after(at),
                    (Some(id), false) => EventQuery::session(id.clone()).after_position(at),
                    (None, _) => EventQuery::all().after_position(at),
                };
                for (at, by_number) in (0..=41).flat_map(|at| [(at, false), (at, true)]) {
                    let matches = |event: &&Event, query: &EventQuery| {
                        query.session_id.as_ref().is_none_or(|id| event.session_id == *id)
                            && event.position > query.after_position.unwrap_or(0)
                            && event.sequence > query.after.unwrap_or(0)
                    };
                    let asked = query(at, by_number);
                    let expected: Vec<&Event> = all.iter().filter(|e| matches(e, &asked)).collect();
                    let begun = floor.begin(&asked);
                    let begun = match begun {
                        Ok(begun) => begun,
                        Err(forgotten) => {
                            prop_assert!(at > 0);
                            let lost = expected.iter().any(|event| !kept.contains(event));
                            prop_assert!(lost, "it is told of what was removed");
                            // From there on everything is there.
                            let asked = match (by_number, forgotten.oldest_sequence) {
                                (true, Some(oldest)) => query(oldest - 1, true),
                                _ => query(forgotten.oldest - 1, false),
                            };
                            prop_assert!(floor.begin(&asked).is_ok());
                            let mut rest = all.iter().filter(|e| matches(e, &asked));
                            prop_assert!(rest.all(|event| kept.contains(event)));
                            continue;
                        }
                    };
                    let found: Vec<&Event> = kept.iter().filter(|e| matches(e, &begun)).collect();
                    match at {
                        // What is kept, in a session without a gap.
                        0 if name.is_some() => {
                            let numbers: Vec<u64> = found.iter().map(|e| e.sequence).collect();
                            let last = all.iter().filter(|e| Some(&e.session_id) == name.as_ref()).count() as u64;
                            let expected: Vec<u64> = (floor.sequence + 1..=last).collect();
                            prop_assert_eq!(numbers, expected);
                        }
                        0 => {}
                        _ => prop_assert_eq!(found, expected),
                    }
                }
            }
        }
    }
}
