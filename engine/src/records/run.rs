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
    /// Its work has ended, and is saved on its work branch before the run ends.
    Persisting,
    /// Its work has stopped, because it cannot go on without a person.
    Blocked,
    /// It is blocked, and what it has is saved on its work branch.
    Checkpointing,
    /// It is blocked, its work branch is proven to have what it has, and no engine has it: it goes
    /// on with new input.
    AwaitingFollowup,
    /// It worked in a worktree of its own, and its work has ended well: what it hands in for review
    /// is being made.
    Candidate,
    /// Somebody's decision about what it has handed in is waited for, and no engine has it.
    AwaitingReview,
    /// What it has handed in was approved, and is being merged.
    Merging,
    /// What it has handed in was merged.
    Merged,
    /// What it has handed in was declined, and stays where it is.
    Declined,
    /// What it has handed in was approved, and conflicts with what others have done.
    MergeFailed,
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
    /// The work has ended so, and is saved before the run ends.
    Persisting(EndsAs),
    /// The work was saved, or cannot be, and the run ends as it was about to.
    Persisted(EndsAs),
    /// The work cannot go on without a person, and has stopped.
    Blocked,
    /// What a blocked run has is about to be saved.
    CheckpointBegun,
    /// The remote has shown what was saved of a blocked run.
    Proven,
    /// Nobody knows whether the remote has what was to be saved of a blocked run.
    Unproven,
    /// The work ended well in a worktree of its own, and what it has come to is to be handed in.
    Concluded,
    /// Something was handed in for review.
    HandedIn,
    /// It was reviewed, and is not wanted.
    Declined,
    /// It was reviewed, and is about to be merged.
    Approved,
    /// The originating branch has what was approved.
    Merged,
    /// What was approved conflicts with what others have done.
    Conflicted,
    /// Something is in the way of the merge, and nothing moved.
    MergeBlocked,
    /// What was handed in is not there any more as it was.
    Lost,
}

/// What a run ends as once its work is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EndsAs {
    Completed,
    Failed,
    Timeout,
    Cancelled,
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

impl EndsAs {
    pub(crate) const ALL: [Self; 4] = [
        Self::Completed,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
    ];

    /// The status that the run ends with.
    pub(crate) fn status(self) -> RunStatus {
        match self {
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Timeout => RunStatus::Timeout,
            Self::Cancelled => RunStatus::Cancelled,
        }
    }

    /// The end of this name, which is that of its status.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|one| one.status().as_str() == text)
    }
}

impl RunEvent {
    /// Whether it parks the run, so that it can go on.
    pub(crate) fn is_rest(self) -> bool {
        matches!(
            self,
            Self::Interrupted | Self::Parked | Self::Proven | Self::HandedIn
        )
    }
}

impl RunStatus {
    pub(crate) const ALL: [Self; 19] = [
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Timeout,
        Self::Asking,
        Self::WaitingForInput,
        Self::Interrupted,
        Self::Persisting,
        Self::Blocked,
        Self::Checkpointing,
        Self::AwaitingFollowup,
        Self::Candidate,
        Self::AwaitingReview,
        Self::Merging,
        Self::Merged,
        Self::Declined,
        Self::MergeFailed,
    ];

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
            Self::Persisting => "persisting",
            Self::Blocked => "blocked",
            Self::Checkpointing => "checkpointing",
            Self::AwaitingFollowup => "awaiting_followup",
            Self::Candidate => "candidate",
            Self::AwaitingReview => "awaiting_review",
            Self::Merging => "merging",
            Self::Merged => "merged",
            Self::Declined => "declined",
            Self::MergeFailed => "merge_failed",
        }
    }

    /// The status of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Whether no event leads away from here.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed
                | Self::Failed
                | Self::Cancelled
                | Self::Timeout
                | Self::Merged
                | Self::Declined
                | Self::MergeFailed
        )
    }

    /// Those that an event leads away from.
    pub(crate) fn not_ended() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|status| !status.is_terminal())
            .collect()
    }

    /// Whether no engine holds it, and it can be resumed, at once or after an answer or new input,
    /// or waits for somebody's decision.
    pub(crate) fn is_at_rest(self) -> bool {
        matches!(
            self,
            Self::Interrupted
                | Self::WaitingForInput
                | Self::AwaitingFollowup
                | Self::AwaitingReview
        )
    }

    /// Whether its adapter is at work, or waits for an answer.
    pub(crate) fn is_at_work(self) -> bool {
        matches!(self, Self::Running | Self::Asking)
    }

    /// Whether its work has ended, and its engine has to save, commit or merge it before the run
    /// moves on.
    pub(crate) fn is_being_saved(self) -> bool {
        matches!(
            self,
            Self::Persisting
                | Self::Blocked
                | Self::Checkpointing
                | Self::Candidate
                | Self::Merging
        )
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
                | Self::AwaitingFollowup
                | Self::Interrupted,
                RunEvent::Cancelled,
            ) => Self::Cancelled,
            (Self::Pending | Self::Running | Self::Blocked, RunEvent::Interrupted) => {
                Self::Interrupted
            }
            (
                Self::Interrupted
                | Self::WaitingForInput
                | Self::AwaitingFollowup
                | Self::AwaitingReview,
                RunEvent::Claimed,
            ) => Self::Running,
            (Self::Running, RunEvent::Done) => Self::Completed,
            (Self::Running, RunEvent::Failed) => Self::Failed,
            // The work may have written anything before its engine died, so it counts as failed.
            (Self::Running | Self::Asking, RunEvent::Stranded) => Self::Failed,
            (Self::Running | Self::Asking, RunEvent::TimedOut) => Self::Timeout,
            (Self::Running, RunEvent::Asked) => Self::Asking,
            (Self::Asking, RunEvent::Answered | RunEvent::Withdrawn) => Self::Running,
            (Self::Asking, RunEvent::Parked) => Self::WaitingForInput,
            (Self::Running, RunEvent::Persisting(_)) => Self::Persisting,
            // What waits for an answer has not ended well.
            (Self::Asking, RunEvent::Persisting(ends)) if ends != EndsAs::Completed => {
                Self::Persisting
            }
            // Whether this is what the run came for is on record, and compared when it is written.
            (Self::Persisting, RunEvent::Persisted(ends)) => ends.status(),
            (Self::Running, RunEvent::Blocked) => Self::Blocked,
            // Of a blocked run whose engine is dead: it is interrupted, and that at once given up.
            (Self::Blocked, RunEvent::Stranded) => Self::Failed,
            (Self::Blocked, RunEvent::Cancelled) => Self::Cancelled,
            (Self::Blocked, RunEvent::CheckpointBegun) => Self::Checkpointing,
            (Self::Checkpointing, RunEvent::Proven) => Self::AwaitingFollowup,
            (Self::Checkpointing, RunEvent::Unproven) => Self::Failed,
            (Self::Running, RunEvent::Concluded) => Self::Candidate,
            (Self::Candidate, RunEvent::HandedIn) => Self::AwaitingReview,
            // There was nothing to hand in.
            (Self::Candidate, RunEvent::Done) => Self::Completed,
            (Self::AwaitingReview, RunEvent::Declined) => Self::Declined,
            (Self::AwaitingReview, RunEvent::Lost) => Self::Failed,
            (Self::AwaitingReview, RunEvent::Approved) => Self::Merging,
            (Self::Merging, RunEvent::Merged) => Self::Merged,
            (Self::Merging, RunEvent::Conflicted) => Self::MergeFailed,
            // By an engine that died before the branch moved, it is handed in again.
            (Self::Merging, RunEvent::MergeBlocked | RunEvent::HandedIn) => Self::AwaitingReview,
            (from, event) => return Err(IllegalEvent { from, event }),
        };
        let logged = match (to, event) {
            (Self::Pending, _) => unreachable!("no row leads to {to}"),
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
            (Self::Persisting | Self::Checkpointing, _) => EventType::PERSIST_STARTED,
            (Self::Blocked, _) => EventType::RUN_BLOCKED,
            (Self::AwaitingFollowup, _) => EventType::FOLLOWUP_WAITING,
            (Self::Candidate, _) => EventType::RUN_CONCLUDED,
            (Self::AwaitingReview, RunEvent::MergeBlocked) => EventType::MERGE_BLOCKED,
            (Self::AwaitingReview, _) => EventType::REVIEW_REQUESTED,
            (Self::Declined, _) => EventType::REVIEW_DECLINED,
            (Self::Merging, _) => EventType::MERGE_STARTED,
            (Self::Merged, _) => EventType::MERGE_COMPLETED,
            (Self::MergeFailed, _) => EventType::MERGE_FAILED,
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
            Self::Persisting(_) => "persisting",
            Self::Persisted(_) => "persisted",
            Self::Blocked => "blocked",
            Self::CheckpointBegun => "checkpointing",
            Self::Proven => "proven to be saved",
            Self::Unproven => "given up as not proven to be saved",
            Self::Concluded => "concluded",
            Self::HandedIn => "handed in for review",
            Self::Declined => "declined",
            Self::Approved => "approved",
            Self::Merged => "merged",
            Self::Conflicted => "given up as in conflict",
            Self::MergeBlocked => "kept from being merged",
            Self::Lost => "given up as not there any more",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [RunStatus; 19] = RunStatus::ALL;
    const EVENTS: [RunEvent; 33] = [
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
        RunEvent::Persisting(EndsAs::Completed),
        RunEvent::Persisting(EndsAs::Failed),
        RunEvent::Persisting(EndsAs::Timeout),
        RunEvent::Persisting(EndsAs::Cancelled),
        RunEvent::Persisted(EndsAs::Completed),
        RunEvent::Persisted(EndsAs::Failed),
        RunEvent::Persisted(EndsAs::Timeout),
        RunEvent::Persisted(EndsAs::Cancelled),
        RunEvent::Blocked,
        RunEvent::CheckpointBegun,
        RunEvent::Proven,
        RunEvent::Unproven,
        RunEvent::Concluded,
        RunEvent::HandedIn,
        RunEvent::Declined,
        RunEvent::Approved,
        RunEvent::Merged,
        RunEvent::Conflicted,
        RunEvent::MergeBlocked,
        RunEvent::Lost,
    ];

    /// The rows of states that have to do with a work branch.
    fn rows_of_saving() -> Vec<(RunStatus, RunEvent, RunStatus)> {
        use {RunEvent as Event, RunStatus as Status};
        let mut rows = vec![
            (Status::Running, Event::Blocked, Status::Blocked),
            (
                Status::Blocked,
                Event::CheckpointBegun,
                Status::Checkpointing,
            ),
            (
                Status::Checkpointing,
                Event::Proven,
                Status::AwaitingFollowup,
            ),
            (Status::Checkpointing, Event::Unproven, Status::Failed),
            (Status::AwaitingFollowup, Event::Claimed, Status::Running),
            (
                Status::AwaitingFollowup,
                Event::Cancelled,
                Status::Cancelled,
            ),
            (Status::Blocked, Event::Interrupted, Status::Interrupted),
            // To `interrupted`, and from there.
            (Status::Blocked, Event::Stranded, Status::Failed),
            (Status::Blocked, Event::Cancelled, Status::Cancelled),
        ];
        for ends in EndsAs::ALL {
            rows.push((Status::Running, Event::Persisting(ends), Status::Persisting));
            if ends != EndsAs::Completed {
                rows.push((Status::Asking, Event::Persisting(ends), Status::Persisting));
            }
            rows.push((Status::Persisting, Event::Persisted(ends), ends.status()));
        }
        rows
    }

    /// The rows of states that have to do with a review.
    fn rows_of_reviews() -> Vec<(RunStatus, RunEvent, RunStatus)> {
        use {RunEvent as Event, RunStatus as Status};
        vec![
            (Status::Running, Event::Concluded, Status::Candidate),
            (Status::Candidate, Event::HandedIn, Status::AwaitingReview),
            (Status::Candidate, Event::Done, Status::Completed),
            (Status::AwaitingReview, Event::Declined, Status::Declined),
            (Status::AwaitingReview, Event::Lost, Status::Failed),
            (Status::AwaitingReview, Event::Claimed, Status::Running),
            (Status::AwaitingReview, Event::Approved, Status::Merging),
            (Status::Merging, Event::Merged, Status::Merged),
            (Status::Merging, Event::Conflicted, Status::MergeFailed),
            (Status::Merging, Event::MergeBlocked, Status::AwaitingReview),
            (Status::Merging, Event::HandedIn, Status::AwaitingReview),
        ]
    }

    #[test]
    fn a_run_ends_as_each_status_that_is_an_end_without_a_review_and_no_other() {
        let of_reviews = [
            RunStatus::Merged,
            RunStatus::Declined,
            RunStatus::MergeFailed,
        ];
        for status in RunStatus::ALL {
            let ends = EndsAs::parse(status.as_str());
            let is_end = status.is_terminal() && !of_reviews.contains(&status);
            assert_eq!(ends.is_some(), is_end, "{status}");
            assert_eq!(ends.map(EndsAs::status).unwrap_or(status), status);
        }
    }

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
        let saving = rows_of_saving();
        let reviews = rows_of_reviews();
        for from in STATES {
            for event in EVENTS {
                let row = table
                    .iter()
                    .chain(&saving)
                    .chain(&reviews)
                    .find(|(f, e, _)| (*f, *e) == (from, event));
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
        assert_eq!(STATES.iter().filter(|s| s.is_terminal()).count(), 7);
    }

    #[test]
    fn a_run_that_has_not_ended_is_to_be_begun_at_work_being_saved_or_at_rest() {
        for status in STATES {
            let of = [
                status == RunStatus::Pending,
                status.is_at_work(),
                status.is_being_saved(),
                status.is_at_rest(),
                status.is_terminal(),
            ];
            assert_eq!(of.iter().filter(|of| **of).count(), 1, "{status}");
            assert_eq!(
                RunStatus::not_ended().contains(&status),
                !status.is_terminal()
            );
        }
    }

    #[test]
    fn every_status_is_read_back_from_its_name() {
        for status in STATES {
            assert_eq!(RunStatus::parse(status.as_str()), Some(status));
        }
    }
}
