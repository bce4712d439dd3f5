//! The lifecycle of a run: a table, and the decisions that follow from it. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};
use stillframe_backends::Label;

use crate::events::event::EventType;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// Accepted; its work has not begun.
    Pending,
    /// Its work has begun, and what follows the work is not done yet.
    Running,
    /// The work ended well.
    Completed,
    /// The work ended badly, or was refused.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its time was up.
    Timeout,
    /// It waits for somebody's answer, and its engine waits with it.
    Asking,
    /// It waits for somebody's answer, and no engine has it: it is resumed once that is there.
    WaitingForInput,
    /// Its engine died or stopped in the middle, and its steps are on record: it can be resumed.
    Interrupted,
}

/// What happens to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RunEvent {
    /// The options are right, the workspace is taken, the before-snapshot is durable.
    Started,
    /// The run cannot begin: the workspace is in use, an option cannot be had, the before-snapshot
    /// failed.
    Refused,
    /// The work ended well.
    Done,
    /// The work ended badly.
    Failed,
    /// The work's time was up, and it has ended.
    TimedOut,
    /// Cancelled; the work, if it had begun, has ended.
    Cancelled,
    /// The engine that had the run is dead, and nothing says where to go on.
    Stranded,
    /// The engine that had the run is dead or stops, and the run can go on where it was.
    Interrupted,
    /// An engine goes on with it.
    Claimed,
    /// It asks a question, and goes on when it is answered.
    Asked,
    /// It has its answers.
    Answered,
    /// It no longer wants the answer.
    Withdrawn,
    /// Nobody has answered, and its engine stops waiting, or is dead.
    Parked,
}

/// Where an event leads, and what it leaves in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    /// The status to move to.
    pub(crate) to: RunStatus,
    /// The event that reports it.
    pub(crate) logged: EventType,
}

/// An event that the lifecycle has no row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {from} cannot be {event}")]
pub(crate) struct IllegalEvent {
    from: RunStatus,
    event: RunEvent,
}

impl RunEvent {
    /// Whether it parks the run, so that it can go on.
    pub(crate) fn is_rest(self) -> bool {
        matches!(self, Self::Interrupted | Self::Parked)
    }
}

impl RunStatus {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
            Self::Asking => "asking",
            Self::WaitingForInput => "waiting_for_input",
            Self::Interrupted => "interrupted",
        }
    }

    /// The status of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            "timeout" => Self::Timeout,
            "asking" => Self::Asking,
            "waiting_for_input" => Self::WaitingForInput,
            "interrupted" => Self::Interrupted,
            _ => return None,
        })
    }

    /// Whether no event leads away from here.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Timeout
        )
    }

    /// Whether no engine holds it, and it can be resumed, at once or after an answer.
    pub(crate) fn is_at_rest(self) -> bool {
        matches!(self, Self::Interrupted | Self::WaitingForInput)
    }

    /// What the snapshot after the work is taken for, when the work left the run here.
    pub(crate) fn closing_label(self) -> Label {
        match self {
            Self::Completed => Label::AFTER,
            _ => Label::AFTER_FAILURE,
        }
    }

    /// Where `event` leads from here.
    ///
    /// Recovery comes through here like live traffic, so it reads no clock and does no I/O. Rows
    /// of further states are further arms.
    pub(crate) fn next(self, event: RunEvent) -> Result<Transition, IllegalEvent> {
        let to = match (self, event) {
            (Self::Pending, RunEvent::Started) => Self::Running,
            (Self::Pending, RunEvent::Refused | RunEvent::Stranded) => Self::Failed,
            (
                Self::Pending
                | Self::Running
                | Self::Asking
                | Self::WaitingForInput
                | Self::Interrupted,
                RunEvent::Cancelled,
            ) => Self::Cancelled,
            (Self::Pending | Self::Running, RunEvent::Interrupted) => Self::Interrupted,
            (Self::Interrupted | Self::WaitingForInput, RunEvent::Claimed) => Self::Running,
            (Self::Running, RunEvent::Done) => Self::Completed,
            (Self::Running, RunEvent::Failed) => Self::Failed,
            // The work may have written anything before its engine died, so it counts as failed.
            (Self::Running | Self::Asking, RunEvent::Stranded) => Self::Failed,
            (Self::Running | Self::Asking, RunEvent::TimedOut) => Self::Timeout,
            (Self::Running, RunEvent::Asked) => Self::Asking,
            (Self::Asking, RunEvent::Answered | RunEvent::Withdrawn) => Self::Running,
            (Self::Asking, RunEvent::Parked) => Self::WaitingForInput,
            (from, event) => return Err(IllegalEvent { from, event }),
        };
        let logged = match (to, event) {
            (Self::Pending, _) => unreachable!("no row leads to pending"),
            (Self::Running, RunEvent::Answered) => EventType::QUESTION_CONSUMED,
            (Self::Running, RunEvent::Withdrawn) => EventType::QUESTION_WITHDRAWN,
            (Self::Running, _) => EventType::RUN_STARTED,
            (Self::Asking, _) => EventType::QUESTION_ASKED,
            (Self::WaitingForInput, _) => EventType::QUESTION_PARKED,
            (Self::Completed, _) => EventType::RUN_COMPLETED,
            (Self::Failed, _) => EventType::RUN_FAILED,
            (Self::Cancelled, _) => EventType::RUN_CANCELLED,
            (Self::Timeout, _) => EventType::RUN_TIMEOUT,
            (Self::Interrupted, _) => EventType::RUN_INTERRUPTED,
        };
        Ok(Transition { to, logged })
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Started => "started",
            Self::Refused => "refused",
            Self::Done => "completed",
            Self::Failed => "failed",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::Stranded => "given up as stranded",
            Self::Interrupted => "interrupted",
            Self::Claimed => "claimed",
            Self::Asked => "asking",
            Self::Answered => "answered",
            Self::Withdrawn => "going on without an answer",
            Self::Parked => "parked",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [RunStatus; 9] = [
        RunStatus::Pending,
        RunStatus::Running,
        RunStatus::Completed,
        RunStatus::Failed,
        RunStatus::Cancelled,
        RunStatus::Timeout,
        RunStatus::Asking,
        RunStatus::WaitingForInput,
        RunStatus::Interrupted,
    ];
    const EVENTS: [RunEvent; 13] = [
        RunEvent::Started,
        RunEvent::Refused,
        RunEvent::Done,
        RunEvent::Failed,
        RunEvent::TimedOut,
        RunEvent::Cancelled,
        RunEvent::Stranded,
        RunEvent::Interrupted,
        RunEvent::Claimed,
        RunEvent::Asked,
        RunEvent::Answered,
        RunEvent::Withdrawn,
        RunEvent::Parked,
    ];

    #[test]
    fn every_pair_is_a_row_of_the_table_or_a_conflict() {
        let table = [
            (RunStatus::Pending, RunEvent::Started, RunStatus::Running),
            (RunStatus::Pending, RunEvent::Refused, RunStatus::Failed),
            (
                RunStatus::Pending,
                RunEvent::Cancelled,
                RunStatus::Cancelled,
            ),
            (RunStatus::Pending, RunEvent::Stranded, RunStatus::Failed),
            (RunStatus::Running, RunEvent::Done, RunStatus::Completed),
            (RunStatus::Running, RunEvent::Failed, RunStatus::Failed),
            (RunStatus::Running, RunEvent::TimedOut, RunStatus::Timeout),
            (
                RunStatus::Running,
                RunEvent::Cancelled,
                RunStatus::Cancelled,
            ),
            (RunStatus::Running, RunEvent::Stranded, RunStatus::Failed),
            (
                RunStatus::Pending,
                RunEvent::Interrupted,
                RunStatus::Interrupted,
            ),
            (
                RunStatus::Running,
                RunEvent::Interrupted,
                RunStatus::Interrupted,
            ),
            (
                RunStatus::Interrupted,
                RunEvent::Claimed,
                RunStatus::Running,
            ),
            (
                RunStatus::Interrupted,
                RunEvent::Cancelled,
                RunStatus::Cancelled,
            ),
            (RunStatus::Running, RunEvent::Asked, RunStatus::Asking),
            (RunStatus::Asking, RunEvent::Answered, RunStatus::Running),
            (RunStatus::Asking, RunEvent::Withdrawn, RunStatus::Running),
            (
                RunStatus::Asking,
                RunEvent::Parked,
                RunStatus::WaitingForInput,
            ),
            (RunStatus::Asking, RunEvent::Cancelled, RunStatus::Cancelled),
            (RunStatus::Asking, RunEvent::TimedOut, RunStatus::Timeout),
            (RunStatus::Asking, RunEvent::Stranded, RunStatus::Failed),
            (
                RunStatus::WaitingForInput,
                RunEvent::Claimed,
                RunStatus::Running,
            ),
            (
                RunStatus::WaitingForInput,
                RunEvent::Cancelled,
                RunStatus::Cancelled,
            ),
        ];
        for from in STATES {
            for event in EVENTS {
                let row = table.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                assert_eq!(
                    from.next(event).map(|t| t.to).ok(),
                    row.map(|(_, _, to)| *to),
                    "{from:?} and {event:?}"
                );
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn a_walk_at_random_ends_where_its_legal_events_lead(
            walk in proptest::collection::vec(0..EVENTS.len(), 0..40)
        ) {
            let mut status = RunStatus::Pending;
            let mut legal = Vec::new();
            for event in walk.into_iter().map(|at| EVENTS[at]) {
                match status.next(event) {
                    Ok(transition) => {
                        proptest::prop_assert!(!status.is_terminal());
                        status = transition.to;
                        legal.push(event);
                    }
                    Err(refused) => {
                        let said = refused.to_string();
                        proptest::prop_assert!(said.contains(status.as_str()), "{said}");
                        proptest::prop_assert!(said.contains(&event.to_string()), "{said}");
                    }
                }
            }
            let replayed = legal
                .into_iter()
                .try_fold(RunStatus::Pending, |at, event| at.next(event).map(|t| t.to));
            proptest::prop_assert_eq!(replayed, Ok(status));
        }
    }

    #[test]
    fn a_terminal_status_takes_no_event_at_all() {
        for from in STATES.into_iter().filter(|s| s.is_terminal()) {
            assert!(EVENTS.iter().all(|e| from.next(*e).is_err()), "{from}");
        }
        assert_eq!(STATES.iter().filter(|s| s.is_terminal()).count(), 4);
    }

    #[test]
    fn every_status_is_read_back_from_its_name() {
        for status in STATES {
            assert_eq!(RunStatus::parse(status.as_str()), Some(status));
        }
    }
}
