//! What a run has used of its limits, and reading that from its events.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize as _;

use crate::events::event::{Event, EventType};
use crate::policy::usage::Usage;
use crate::policy::violation::{PolicyViolation, ViolationAction};

/// What a run has used of its limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// The calls of tools that were allowed.
    pub(crate) tool_calls: u64,
    pub(crate) usage: Usage,
    /// How long it was worked on before this process did.
    pub(crate) worked: Duration,
    /// The refusals that were told.
    pub(crate) refusals: u64,
    /// What the run is to end for, if its engine died before it had.
    pub(crate) violation: Option<PolicyViolation>,
}

impl Used {
    /// What is read for this of a run.
    pub(crate) const TYPES: [EventType; 8] = [
        EventType::RUN_STARTED,
        EventType::RUN_INTERRUPTED,
        EventType::RUN_BLOCKED,
        EventType::QUESTION_ASKED,
        EventType::QUESTION_CONSUMED,
        EventType::QUESTION_WITHDRAWN,
        EventType::QUESTION_PARKED,
        EventType::POLICY_VIOLATION,
    ];

    /// What the events of a run say, in their order, and what its events of calls and of usage add
    /// up to. Where nobody has said how long work went on whose engine died, its time counts up to
    /// the last of these events.
    pub(crate) fn of(total: &UsedTotal, events: &[Event]) -> Self {
        let mut used = Self {
            tool_calls: total.tool_calls,
            usage: total.usage,
            ..Self::default()
        };
        let mut attempt = Attempt::default();
        let mut last = Timestamp::MIN;
        for event in events {
            let event_type = &event.event_type;
            if *event_type == EventType::POLICY_VIOLATION {
                let said = PolicyViolation::deserialize(&event.data).ok();
                let refuses =
                    |violation: &PolicyViolation| violation.action == ViolationAction::Deny;
                used.refusals += u64::from(said.as_ref().is_some_and(refuses));
                let ends =
                    |violation: &PolicyViolation| violation.action == ViolationAction::Cancel;
                used.violation = used.violation.or(said.filter(ends));
            } else if !attempt.is_moved_by(event) {
                let told = event.told();
                let until = match told.recovered {
                    true => last,
                    false => event.timestamp,
                };
                let worked = std::mem::take(&mut attempt).worked_until(until);
                // The engine that did the work knows it best.
                let known = told.worked_ms.map(Duration::from_millis);
                used.worked = used.worked.saturating_add(known.unwrap_or(worked));
            }
            last = event.timestamp;
        }
        used
    }
}

/// What the events of a run add up to that its adapter may write without bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UsedTotal {
    /// The calls of tools.
    pub(crate) tool_calls: u64,
    /// What its adapter reported; what a host reports outside of the run's work is not of it.
    pub(crate) usage: Usage,
}

/// How long the work went on whose engine died, by the events of its run, if it was under way until
/// then.
pub(crate) fn worked_until(events: &[Event], until: Timestamp) -> Duration {
    let mut attempt = Attempt::default();
    for event in events {
        if event.event_type != EventType::POLICY_VIOLATION && !attempt.is_moved_by(event) {
            attempt = Attempt::default();
        }
    }
    attempt.worked_until(until)
}

/// The time of one attempt at a run, by its events.
#[derive(Default)]
struct Attempt {
    /// What was worked before the time that goes.
    worked: Duration,
    /// Since when time counts; `None`: it does not.
    since: Option<Timestamp>,
    /// The questions that it waits for.
    open: HashSet<String>,
}

impl Attempt {
    /// Takes what an event means for it; `false`: nothing, or its end.
    fn is_moved_by(&mut self, event: &Event) -> bool {
        let event_type = &event.event_type;
        if *event_type == EventType::RUN_STARTED {
            *self = Self {
                since: Some(event.timestamp),
                ..Self::default()
            };
        } else if *event_type == EventType::QUESTION_ASKED {
            self.asks(event);
        } else if [EventType::QUESTION_CONSUMED, EventType::QUESTION_WITHDRAWN].contains(event_type)
        {
            self.goes_on(event);
        } else {
            return false;
        }
        true
    }

    fn asks(&mut self, event: &Event) {
        self.open.extend(event.told().question_id);
        self.waits_or_works(event);
    }

    /// It has an answer, or does without it.
    fn goes_on(&mut self, event: &Event) {
        let question = event.told().question_id;
        if question.is_some_and(|id| self.open.remove(&id)) {
            self.waits_or_works(event);
        }
    }

    /// What is done beside a question does not show in the log. So what the engine said with the
    /// last move of a question holds until the next one.
    fn waits_or_works(&mut self, event: &Event) {
        match self.open.is_empty() || event.told().work_goes_on {
            true => drop(self.since.get_or_insert(event.timestamp)),
            false => self.stop(event.timestamp),
        }
    }

    fn stop(&mut self, at: Timestamp) {
        if let Some(since) = self.since.take() {
            let gone = Duration::try_from(at.duration_since(since)).unwrap_or_default();
            self.worked = self.worked.saturating_add(gone);
        }
    }

    fn worked_until(mut self, at: Timestamp) -> Duration {
        // The clock of people may have been set back since.
        self.stop(at);
        self.worked
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::violation::ViolationKind;

    fn event(second: i64, event_type: EventType, data: Value) -> Event {
        serde_json::from_value(json!({
            "id": format!("evt_{second}"), "type": event_type,
            "timestamp": Timestamp::from_second(second).unwrap(), "session_id": "s",
            "run_id": "r", "sequence": second, "position": second, "schema_version": 1,
            "source": "adapter", "data": data,
        }))
        .unwrap()
    }

    #[test]
    fn what_was_used_is_read_again() {
        let cancelled = PolicyViolation::new(
            ViolationKind::MaxTokens,
            ViolationAction::Cancel,
            "too many",
        );
        let denied = PolicyViolation::new(ViolationKind::Denied, ViolationAction::Deny, "no");
        let none = || json!({});
        let events = [
            event(10, EventType::RUN_STARTED, none()),
            event(13, EventType::POLICY_VIOLATION, json!(denied)),
            event(14, EventType::QUESTION_PARKED, none()),
            event(100, EventType::RUN_STARTED, none()),
            event(103, EventType::POLICY_VIOLATION, json!(cancelled)),
            event(
                900,
                EventType::RUN_INTERRUPTED,
                json!({ "recovered": true }),
            ),
            event(1000, EventType::RUN_STARTED, none()),
        ];
        let total = UsedTotal {
            tool_calls: 1,
            usage: Usage::tokens(3, 4).cost(1.5),
        };
        let used = Used::of(&total, &events);
        assert_eq!(used.tool_calls, 1);
        assert_eq!(used.usage, Usage::tokens(3, 4).cost(1.5));
        assert_eq!(used.worked, Duration::from_secs(4 + 3));
        assert_eq!(used.violation, Some(cancelled));
        assert_eq!(used.refusals, 1);
        assert_eq!(Used::of(&UsedTotal::default(), &[]), Used::default());
        let until = |events: &[Event]| worked_until(events, Timestamp::from_second(1009).unwrap());
        assert_eq!(until(&events), Duration::from_secs(9));
        assert_eq!(until(&events[..events.len() - 1]), Duration::ZERO);
    }

    #[test]
    fn time_in_which_people_are_waited_for_is_no_work() {
        let question = |id: &str| json!({ "question_id": id });
        let events = [
            event(10, EventType::RUN_STARTED, json!({})),
            event(13, EventType::QUESTION_ASKED, question("a")),
            event(20, EventType::QUESTION_ASKED, question("b")),
            event(30, EventType::QUESTION_CONSUMED, question("a")),
            event(50, EventType::QUESTION_WITHDRAWN, question("b")),
            event(54, EventType::QUESTION_ASKED, question("c")),
            event(99, EventType::QUESTION_PARKED, json!({ "recovered": true })),
            event(200, EventType::RUN_STARTED, json!({})),
            // It was answered while the run rested.
            event(202, EventType::QUESTION_CONSUMED, question("c")),
            event(208, EventType::RUN_INTERRUPTED, json!({})),
            event(300, EventType::RUN_STARTED, json!({})),
            event(
                400,
                EventType::QUESTION_PARKED,
                json!({ "worked_ms": 2_500 }),
            ),
        ];
        let worked = Used::of(&UsedTotal::default(), &events).worked;
        assert_eq!(worked, Duration::from_millis(7_000 + 8_000 + 2_500));
    }

    #[test]
    fn work_that_went_on_beside_a_question_counts() {
        let question = |id: &str| json!({ "question_id": id });
        let beside = |id: &str| json!({ "question_id": id, "work_goes_on": true });
        let events = [
            event(10, EventType::RUN_STARTED, json!({})),
            event(13, EventType::QUESTION_ASKED, beside("a")),
            event(20, EventType::QUESTION_ASKED, question("b")),
            event(30, EventType::QUESTION_CONSUMED, beside("a")),
            event(50, EventType::QUESTION_ASKED, question("c")),
            event(60, EventType::QUESTION_WITHDRAWN, question("b")),
            event(70, EventType::QUESTION_CONSUMED, question("c")),
        ];
        for (until, seconds) in [(15, 5), (25, 10), (35, 15), (55, 30), (65, 30), (75, 35)] {
            let so_far = events.iter().filter(|e| e.timestamp.as_second() <= until);
            let so_far: Vec<Event> = so_far.cloned().collect();
            let worked = worked_until(&so_far, Timestamp::from_second(until).unwrap());
            assert_eq!(worked, Duration::from_secs(seconds), "{until}");
        }
    }
}
