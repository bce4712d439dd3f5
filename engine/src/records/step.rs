//! The lifecycle of phases and steps: a table, and what follows from it for their rows. Pure.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stillframe_backends::SnapshotId;

use crate::events::data::{Failed, PhaseMoved, StepLeft, StepMoved};
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::StepId;
use crate::records::run::EndsAs;
use crate::records::run::RunEvent;

/// Where a phase or a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepStatus {
    /// Known, and no attempt is under way: one that failed may be repeated.
    Pending,
    /// Under way.
    Running,
    /// Done; it is never done again.
    Completed,
    /// Given up after its last attempt.
    Failed,
    /// Left out.
    Skipped,
    /// Its run was cancelled.
    Cancelled,
    /// Its engine died or stopped in the middle of it.
    Interrupted,
}

/// What happens to a phase or a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepEvent {
    /// It begins, for the first time or again.
    Begun,
    /// It ended well.
    Done,
    /// An attempt ended badly, and there is another.
    Retried,
    /// It ended badly, for good.
    Failed,
    /// It is left out.
    Skipped,
    /// Its run is cancelled.
    Cancelled,
    /// Its engine is dead or stops.
    Interrupted,
}

/// An event that the lifecycle has no row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a step that is {from} cannot be {event}")]
pub(crate) struct IllegalStepEvent {
    from: StepStatus,
    event: StepEvent,
}

impl StepStatus {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "skipped" => Self::Skipped,
            "cancelled" => Self::Cancelled,
            "interrupted" => Self::Interrupted,
            _ => return None,
        })
    }

    /// Whether no event leads away from here.
    pub fn is_settled(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Skipped | Self::Cancelled
        )
    }

    /// Where `event` leads from here.
    pub(crate) fn next(self, event: StepEvent) -> Result<Self, IllegalStepEvent> {
        Ok(match (self, event) {
            (Self::Pending | Self::Interrupted, StepEvent::Begun) => Self::Running,
            (Self::Pending | Self::Interrupted, StepEvent::Skipped) => Self::Skipped,
            (Self::Running, StepEvent::Done) => Self::Completed,
            (Self::Running, StepEvent::Retried) => Self::Pending,
            // What waits for another attempt when its run ends has failed in the last one.
            (Self::Pending | Self::Running | Self::Interrupted, StepEvent::Failed) => Self::Failed,
            (Self::Pending | Self::Running | Self::Interrupted, StepEvent::Cancelled) => {
                Self::Cancelled
            }
            // Again, before its next attempt began: what is there by then is what it left.
            (Self::Running | Self::Interrupted, StepEvent::Interrupted) => Self::Interrupted,
            (from, event) => return Err(IllegalStepEvent { from, event }),
        })
    }
}

/// The event that reports that a phase is here now; `None`: nobody is told.
pub(crate) fn phase_event(status: StepStatus) -> Option<EventType> {
    Some(match status {
        StepStatus::Pending => return None,
        StepStatus::Running => EventType::PHASE_STARTED,
        StepStatus::Completed => EventType::PHASE_COMPLETED,
        StepStatus::Failed => EventType::PHASE_FAILED,
        StepStatus::Skipped => EventType::PHASE_SKIPPED,
        StepStatus::Cancelled => EventType::PHASE_CANCELLED,
        StepStatus::Interrupted => EventType::PHASE_INTERRUPTED,
    })
}

/// The event that reports that a step is here now.
pub(crate) fn step_event(status: StepStatus) -> EventType {
    match status {
        StepStatus::Running => EventType::STEP_STARTED,
        StepStatus::Completed => EventType::STEP_COMPLETED,
        // It is pending again because an attempt failed.
        StepStatus::Pending | StepStatus::Failed => EventType::STEP_FAILED,
        StepStatus::Skipped => EventType::STEP_SKIPPED,
        StepStatus::Cancelled => EventType::STEP_CANCELLED,
        StepStatus::Interrupted => EventType::STEP_INTERRUPTED,
    }
}

impl fmt::Display for StepStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for StepEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begun => "begun",
            Self::Done => "completed",
            Self::Retried => "repeated",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        })
    }
}

/// Which phase of a run: the same name comes again in loops, with another iteration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct PhaseKey {
    pub(crate) phase: String,
    pub(crate) iteration: u32,
}

/// A phase, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhaseRow {
    pub(crate) key: PhaseKey,
    pub(crate) status: StepStatus,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) completed_at: Option<Timestamp>,
    /// Of the time in which an engine was at work on it, in milliseconds.
    pub(crate) duration_ms: Option<u64>,
}

impl PhaseRow {
    /// A phase of which nothing has happened.
    pub(crate) fn new(key: PhaseKey) -> Self {
        Self {
            key,
            status: StepStatus::Pending,
            started_at: None,
            completed_at: None,
            duration_ms: None,
        }
    }

    /// The row after `event`. Unlike a step, a phase that is done may begin again, for a step that
    /// is new in it.
    pub(crate) fn after(
        &self,
        event: StepEvent,
        at: Timestamp,
        worked: Option<Duration>,
    ) -> Result<Self, IllegalStepEvent> {
        let status = match (self.status, event) {
            (StepStatus::Completed, StepEvent::Begun) => StepStatus::Running,
            (status, event) => status.next(event)?,
        };
        Ok(Self {
            key: self.key.clone(),
            status,
            started_at: self
                .started_at
                .or((status == StepStatus::Running).then_some(at)),
            completed_at: status.is_settled().then_some(at),
            duration_ms: worked.map(milliseconds).or(self.duration_ms),
        })
    }

    /// What an event about it says.
    pub(crate) fn said(&self) -> PhaseMoved<'_> {
        PhaseMoved {
            phase: &self.key.phase,
            iteration: self.key.iteration,
            duration_ms: self.duration_ms.filter(|_| self.status.is_settled()),
            reason: None,
            recovered: false,
        }
    }
}

/// A step, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepRow {
    pub(crate) id: StepId,
    pub(crate) phase: PhaseKey,
    pub(crate) name: String,
    pub(crate) status: StepStatus,
    /// How often it was begun; the first is 1.
    pub(crate) attempt: u32,
    /// Tells definitions apart.
    pub(crate) definition_hash: String,
    pub(crate) snapshot_before: Option<SnapshotId>,
    /// What the last attempt left, also where that was interrupted.
    pub(crate) snapshot_after: Option<SnapshotId>,
    pub(crate) commit_created: Option<String>,
    pub(crate) result: Option<Value>,
    pub(crate) error: Option<Failure>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) completed_at: Option<Timestamp>,
    /// Of the last attempt, in milliseconds.
    pub(crate) duration_ms: Option<u64>,
    /// The place of its last beginning among the beginnings and ends of steps of its run: what was
    /// at work at one time is told by these, since clocks go backwards.
    pub(crate) begun_order: Option<u64>,
    /// The place of its end among the same; `None`: it has not ended since.
    pub(crate) ended_order: Option<u64>,
}

/// How an attempt at a step ended, or why there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepEnding {
    pub(crate) snapshot_after: Option<SnapshotId>,
    pub(crate) result: Option<Value>,
    pub(crate) error: Option<Failure>,
    /// By a clock that nobody sets; `None`: nobody measured it.
    pub(crate) worked: Option<Duration>,
}

impl StepRow {
    /// A step of which nothing has happened.
    pub(crate) fn new(phase: PhaseKey, name: String, definition_hash: String) -> Self {
        Self {
            id: StepId::random(),
            phase,
            name,
            status: StepStatus::Pending,
            attempt: 0,
            definition_hash,
            snapshot_before: None,
            snapshot_after: None,
            commit_created: None,
            result: None,
            error: None,
            started_at: None,
            completed_at: None,
            duration_ms: None,
            begun_order: None,
            ended_order: None,
        }
    }

    /// The row of another attempt. The snapshot before the first one stays, as long as nobody took
    /// another.
    pub(crate) fn begun(
        &self,
        snapshot_before: Option<SnapshotId>,
        at: Timestamp,
        order: u64,
    ) -> Result<Self, IllegalStepEvent> {
        Ok(Self {
            status: self.status.next(StepEvent::Begun)?,
            attempt: self.attempt + 1,
            snapshot_before: snapshot_before.or(self.snapshot_before.clone()),
            snapshot_after: None,
            error: None,
            started_at: Some(at),
            completed_at: None,
            duration_ms: None,
            begun_order: Some(order),
            ended_order: None,
            ..self.clone()
        })
    }

    /// The row after `event`. What the ending does not say keeps what is there.
    pub(crate) fn after(
        &self,
        event: StepEvent,
        ending: StepEnding,
        at: Timestamp,
        order: u64,
    ) -> Result<Self, IllegalStepEvent> {
        let status = self.status.next(event)?;
        Ok(Self {
            status,
            snapshot_after: ending.snapshot_after.or(self.snapshot_after.clone()),
            result: ending.result.or(self.result.clone()),
            error: ending.error.or(self.error.clone()),
            completed_at: status.is_settled().then_some(at),
            duration_ms: ending.worked.map(milliseconds).or(self.duration_ms),
            ended_order: Some(order),
            ..self.clone()
        })
    }

    /// What an event about it says.
    pub(crate) fn said(&self) -> StepMoved<'_> {
        let left = StepLeft {
            snapshot_after: self.snapshot_after.as_ref(),
            commit_created: self.commit_created.as_deref(),
            duration_ms: self.duration_ms,
        };
        let error = self.error.as_ref();
        StepMoved {
            step_id: &self.id,
            phase: &self.phase.phase,
            iteration: self.phase.iteration,
            step: &self.name,
            attempt: self.attempt,
            snapshot_before: self.snapshot_before.as_ref(),
            left: (self.status != StepStatus::Running).then_some(left),
            failed: error
                .filter(|_| self.status != StepStatus::Completed)
                .map(Failed::from),
            in_place: None,
            retry_in_ms: None,
            recovered: false,
        }
    }
}

/// A duration as it is kept; one beyond all counting is the largest.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What a step has to do that the host asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    /// It is done: this is its record.
    Done(Box<StepRow>),
    /// It failed for good, and that was reported.
    Failed(Box<StepRow>),
    /// It was left out.
    Skipped,
    /// Nothing of it is under way: begin.
    Begin(Box<StepRow>),
    /// It was interrupted.
    Interrupted(Box<StepRow>),
    /// Its work is done, and what that left is still to be captured.
    Finish(Box<StepRow>),
    /// Somebody is at work on it.
    UnderWay,
    /// It is on record with another definition.
    Changed,
}

/// What the step `fresh` has to do, of which `found` is on record.
pub(crate) fn asked(found: Option<StepRow>, fresh: StepRow) -> Asked {
    let Some(found) = found else {
        return Asked::Begin(Box::new(fresh));
    };
    // A step can be left out without its definition.
    if found.status != StepStatus::Skipped && found.definition_hash != fresh.definition_hash {
        return Asked::Changed;
    }
    match found.status {
        StepStatus::Completed => Asked::Done(Box::new(found)),
        StepStatus::Failed | StepStatus::Cancelled => Asked::Failed(Box::new(found)),
        StepStatus::Skipped => Asked::Skipped,
        StepStatus::Pending => Asked::Begin(Box::new(found)),
        StepStatus::Interrupted if found.result.is_some() => Asked::Finish(Box::new(found)),
        StepStatus::Interrupted => Asked::Interrupted(Box::new(found)),
        StepStatus::Running => Asked::UnderWay,
    }
}

/// How the phases and steps of a run end that are not settled when the run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The run completed.
    Completed,
    /// It failed, or its time was up.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It can be resumed.
    Interrupted,
}

impl Closed {
    /// What the end of a run is for its steps.
    pub(crate) fn of(event: RunEvent) -> Self {
        match event {
            RunEvent::Done | RunEvent::Concluded | RunEvent::Persisted(EndsAs::Completed) => {
                Self::Completed
            }
            RunEvent::Cancelled | RunEvent::Persisted(EndsAs::Cancelled) => Self::Cancelled,
            event if event.is_rest() => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}

/// Why the workspace cannot go back to where an interrupted step began; `None`: it can.
/// `keeps_content`: whether there are bytes to go back to.
pub(crate) fn cannot_go_back(
    row: &StepRow,
    steps: &[StepRow],
    keeps_content: bool,
) -> Option<&'static str> {
    match (&row.snapshot_before, &row.snapshot_after) {
        (None, _) => Some("no snapshot was taken before it"),
        (_, None) => Some("what it left could not be captured"),
        _ if !was_alone(row, steps) => Some("other steps were at work since it began"),
        _ if !keeps_content => Some("no content is kept"),
        _ => None,
    }
}

/// The rows of `steps` and `phases` that the end of their run changes.
///
/// `left`: what the run left in the workspace.
pub(crate) fn closed(
    phases: &[PhaseRow],
    steps: &[StepRow],
    how: Closed,
    left: Option<&SnapshotId>,
    at: Timestamp,
) -> (Vec<PhaseRow>, Vec<StepRow>) {
    let order = next_order(steps);
    let event = match how {
        // Nobody has waited for it, and it is no longer at work.
        Closed::Completed | Closed::Failed => StepEvent::Failed,
        Closed::Cancelled => StepEvent::Cancelled,
        Closed::Interrupted => StepEvent::Interrupted,
    };
    let ended: Vec<StepRow> = steps
        .iter()
        .filter(|step| !step.status.is_settled())
        // What was interrupted before stays as it is. What is there by now may be somebody else's,
        // who worked here since, also where nobody could capture what the step had left.
        .filter(|step| how != Closed::Interrupted || step.status != StepStatus::Interrupted)
        .filter_map(|step| {
            // A step that asks did nothing since it began to wait; all changes since then are by
            // others.
            let is_asking = step.status == StepStatus::Running && step.snapshot_after.is_some();
            let ending = StepEnding {
                snapshot_after: left.filter(|_| !is_asking).cloned(),
                error: (event == StepEvent::Failed && step.error.is_none())
                    .then(|| Failure::of_work("its run ended before it")),
                ..StepEnding::default()
            };
            // What waits for its next attempt goes on waiting when the run is interrupted.
            step.after(event, ending, at, order).ok()
        })
        .collect();
    let statuses = |phase: &PhaseRow| -> Vec<StepStatus> {
        let of_phase = steps.iter().filter(|step| step.phase == phase.key);
        let now = |step: &StepRow| {
            let changed = ended.iter().find(|row| row.id == step.id);
            changed.map_or(step.status, |row| row.status)
        };
        of_phase.map(now).collect()
    };
    let has_failed = |phase: &PhaseRow| statuses(phase).contains(&StepStatus::Failed);
    let has_completed = |phase: &PhaseRow| statuses(phase).contains(&StepStatus::Completed);
    // As far as is known: for a step that is new in it, it begins again.
    let is_done = |phase: &PhaseRow| {
        let is_over =
            |step: &StepStatus| matches!(step, StepStatus::Completed | StepStatus::Skipped);
        has_completed(phase) && statuses(phase).iter().all(is_over)
    };
    let done = |phase: &PhaseRow| match phase.status {
        StepStatus::Running => phase.after(StepEvent::Done, at, None).ok(),
        // All of it was done before its run was interrupted.
        _ => {
            let resumed = phase.after(StepEvent::Begun, at, None).ok()?;
            resumed.after(StepEvent::Done, at, None).ok()
        }
    };
    let phases = phases
        .iter()
        .filter(|phase| !phase.status.is_settled())
        .filter_map(|phase| {
            let event = match how {
                Closed::Completed | Closed::Failed if has_failed(phase) => StepEvent::Failed,
                Closed::Completed | Closed::Failed
                    if phase.status == StepStatus::Running || has_completed(phase) =>
                {
                    return done(phase);
                }
                Closed::Completed | Closed::Failed => StepEvent::Skipped,
                Closed::Cancelled => StepEvent::Cancelled,
                Closed::Interrupted if is_done(phase) => return done(phase),
                Closed::Interrupted => StepEvent::Interrupted,
            };
            phase.after(event, at, None).ok()
        })
        .collect();
    (phases, ended)
}

/// The place of what happens next among the beginnings and ends of `steps`.
pub(crate) fn next_order(steps: &[StepRow]) -> u64 {
    let orders = steps
        .iter()
        .flat_map(|step| [step.begun_order, step.ended_order])
        .flatten();
    orders.max().map_or(1, |last| last + 1)
}

/// Whether going back to where the interrupted `step` began undoes nothing but what it did: no
/// other step of its run was at work since.
pub(crate) fn was_alone(step: &StepRow, steps: &[StepRow]) -> bool {
    let Some(began) = step.begun_order else {
        return false;
    };
    steps
        .iter()
        .filter(|other| other.id != step.id && other.begun_order.is_some())
        // Of several that were interrupted at once none may go back: each has work of the others
        // after it.
        .all(|other| {
            other.status != StepStatus::Interrupted
                && other.ended_order.is_some_and(|ended| ended < began)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const STATES: [StepStatus; 7] = [
        StepStatus::Pending,
        StepStatus::Running,
        StepStatus::Completed,
        StepStatus::Failed,
        StepStatus::Skipped,
        StepStatus::Cancelled,
        StepStatus::Interrupted,
    ];
    const EVENTS: [StepEvent; 7] = [
        StepEvent::Begun,
        StepEvent::Done,
        StepEvent::Retried,
        StepEvent::Failed,
        StepEvent::Skipped,
        StepEvent::Cancelled,
        StepEvent::Interrupted,
    ];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn step(name: &str) -> StepRow {
        let phase = PhaseKey {
            phase: "p".into(),
            iteration: 0,
        };
        StepRow::new(phase, name.into(), "d".into())
    }

    #[test]
    fn every_pair_is_a_row_of_the_table_or_a_conflict() {
        use StepEvent as E;
        use StepStatus as S;
        let table = [
            (S::Pending, E::Begun, S::Running),
            (S::Pending, E::Failed, S::Failed),
            (S::Pending, E::Skipped, S::Skipped),
            (S::Pending, E::Cancelled, S::Cancelled),
            (S::Running, E::Done, S::Completed),
            (S::Running, E::Retried, S::Pending),
            (S::Running, E::Failed, S::Failed),
            (S::Running, E::Cancelled, S::Cancelled),
            (S::Running, E::Interrupted, S::Interrupted),
            (S::Interrupted, E::Begun, S::Running),
            (S::Interrupted, E::Failed, S::Failed),
            (S::Interrupted, E::Skipped, S::Skipped),
            (S::Interrupted, E::Cancelled, S::Cancelled),
            (S::Interrupted, E::Interrupted, S::Interrupted),
        ];
        for from in STATES {
            assert_eq!(StepStatus::parse(from.as_str()), Some(from));
            for event in EVENTS {
                let row = table.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                assert_eq!(
                    from.next(event).ok(),
                    row.map(|(_, _, to)| *to),
                    "{from:?} and {event:?}"
                );
            }
            let leads_away = EVENTS.iter().any(|event| from.next(*event).is_ok());
            assert_eq!(leads_away, !from.is_settled(), "{from}");
        }
        let refused = S::Completed.next(E::Begun).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a step that is completed cannot be begun"
        );
    }

    proptest::proptest! {
        #[test]
        fn a_walk_at_random_ends_where_its_legal_events_lead(
            walk in proptest::collection::vec(0..EVENTS.len(), 0..40)
        ) {
            let (mut row, mut begun) = (step("a"), 0);
            for (order, event) in walk.into_iter().map(|at| EVENTS[at]).enumerate() {
                let (order, time) = (order as u64, at(order as i64));
                let moved = match event {
                    StepEvent::Begun => row.begun(None, time, order),
                    event => row.after(event, StepEnding::default(), time, order),
                };
                match (row.status.next(event), moved) {
                    (Ok(status), Ok(moved)) => {
                        begun += u32::from(event == StepEvent::Begun);
                        proptest::prop_assert_eq!(moved.status, status);
                        proptest::prop_assert_eq!(moved.attempt, begun);
                        proptest::prop_assert_eq!(moved.completed_at.is_some(), status.is_settled());
                        row = moved;
                    }
                    (Err(expected), Err(refused)) => {
                        proptest::prop_assert_eq!(expected, refused);
                        let said = refused.to_string();
                        proptest::prop_assert!(said.contains(row.status.as_str()), "{said}");
                        proptest::prop_assert!(said.contains(&event.to_string()), "{said}");
                    }
                    (table, moved) => proptest::prop_assert!(false, "{table:?}, {moved:?}"),
                }
            }
        }
    }

    #[test]
    fn a_step_that_is_settled_is_answered_from_its_record() {
        let of = |status| {
            let found = StepRow {
                status,
                ..step("a")
            };
            asked(Some(found), step("a"))
        };
        assert!(matches!(asked(None, step("a")), Asked::Begin(_)));
        assert!(matches!(of(StepStatus::Pending), Asked::Begin(_)));
        assert!(matches!(of(StepStatus::Interrupted), Asked::Interrupted(_)));
        let uncaptured = StepRow {
            status: StepStatus::Interrupted,
            result: Some(json!(null)),
            ..step("a")
        };
        let finish = asked(Some(uncaptured), step("a"));
        assert!(matches!(finish, Asked::Finish(_)), "it is not done again");
        assert!(matches!(of(StepStatus::Completed), Asked::Done(_)));
        assert!(matches!(of(StepStatus::Failed), Asked::Failed(_)));
        assert!(matches!(of(StepStatus::Cancelled), Asked::Failed(_)));
        assert_eq!(of(StepStatus::Skipped), Asked::Skipped);
        assert_eq!(of(StepStatus::Running), Asked::UnderWay);
    }

    #[test]
    fn another_definition_under_a_known_name_is_a_change() {
        let mut found = step("a");
        found.status = StepStatus::Completed;
        let mut fresh = step("a");
        assert!(matches!(
            asked(Some(found.clone()), fresh.clone()),
            Asked::Done(_)
        ));
        fresh.definition_hash = "other".into();
        assert_eq!(asked(Some(found), fresh), Asked::Changed);
    }

    #[test]
    fn what_an_ending_does_not_say_keeps_what_is_there() {
        let before = SnapshotId::random();
        let running = step("a").begun(Some(before.clone()), at(1), 1).unwrap();
        let mut made = running.clone();
        made.commit_created = Some("c0ffee".into());
        let ended = made
            .after(StepEvent::Done, StepEnding::default(), at(2), 2)
            .unwrap();
        assert_eq!(ended.snapshot_before, Some(before));
        assert_eq!(ended.commit_created.as_deref(), Some("c0ffee"));
        assert!(
            ended
                .after(StepEvent::Done, StepEnding::default(), at(3), 3)
                .is_err()
        );
    }

    #[test]
    fn the_end_of_a_run_leaves_nothing_running() {
        let running = step("a").begun(None, at(1), 1).unwrap();
        let done = step("b")
            .begun(None, at(1), 2)
            .and_then(|row| row.after(StepEvent::Done, StepEnding::default(), at(2), 2))
            .unwrap();
        let phase = PhaseRow::new(running.phase.clone())
            .after(StepEvent::Begun, at(1), None)
            .unwrap();
        let steps = [running.clone(), done];
        let left = SnapshotId::random();
        for (how, step_is, phase_is) in [
            (Closed::Completed, StepStatus::Failed, StepStatus::Failed),
            (Closed::Failed, StepStatus::Failed, StepStatus::Failed),
            (
                Closed::Cancelled,
                StepStatus::Cancelled,
                StepStatus::Cancelled,
            ),
            (
                Closed::Interrupted,
                StepStatus::Interrupted,
                StepStatus::Interrupted,
            ),
        ] {
            let (phases, ended) = closed(
                std::slice::from_ref(&phase),
                &steps,
                how,
                Some(&left),
                at(3),
            );
            assert_eq!(phases[0].status, phase_is, "{how:?}");
            assert_eq!(ended.len(), 1, "the one that is done stays done");
            assert_eq!(ended[0].status, step_is, "{how:?}");
            assert_eq!(ended[0].snapshot_after.as_ref(), Some(&left));
        }
    }

    #[test]
    fn a_phase_whose_steps_are_all_done_is_done_though_its_run_is_interrupted() {
        let with = |status| StepRow {
            status,
            ..step("b")
        };
        let completed = StepRow {
            status: StepStatus::Completed,
            ..step("a")
        };
        let key = completed.phase.clone();
        let running = PhaseRow::new(key)
            .after(StepEvent::Begun, at(1), None)
            .unwrap();
        let interrupted = running.after(StepEvent::Interrupted, at(2), None).unwrap();
        let after = |phase: &PhaseRow, steps: &[StepRow]| {
            let phase = std::slice::from_ref(phase);
            closed(phase, steps, Closed::Interrupted, None, at(3)).0[0].status
        };
        for phase in [&running, &interrupted] {
            for (status, is) in [
                (StepStatus::Completed, StepStatus::Completed),
                (StepStatus::Skipped, StepStatus::Completed),
                (StepStatus::Running, StepStatus::Interrupted),
                // It waits for its next attempt.
                (StepStatus::Pending, StepStatus::Interrupted),
                (StepStatus::Failed, StepStatus::Interrupted),
            ] {
                let steps = [completed.clone(), with(status)];
                assert_eq!(after(phase, &steps), is, "{status} in {}", phase.status);
            }
            assert_eq!(
                after(phase, &[]),
                StepStatus::Interrupted,
                "nothing of it was done"
            );
        }
    }

    // What is there when its run rests again may be somebody else's
    #[test]
    fn what_was_cut_off_left_what_was_there_then_whether_or_not_anybody_could_look() {
        let left = [SnapshotId::random(), SnapshotId::random()];
        for seen in [Some(&left[0]), None] {
            let begun = vec![step("a").begun(None, at(1), 1).unwrap()];
            let (_, cut) = closed(&[], &begun, Closed::Interrupted, seen, at(2));
            assert_eq!(cut[0].snapshot_after.as_ref(), seen);
            let (_, again) = closed(&[], &cut, Closed::Interrupted, Some(&left[1]), at(3));
            assert_eq!(again, [], "it is as it was");
        }
    }

    #[test]
    fn going_back_is_for_a_step_that_was_alone() {
        let cut = StepRow {
            status: StepStatus::Interrupted,
            begun_order: Some(10),
            ended_order: Some(20),
            ..step("cut")
        };
        let other = |status, began: u64, ended: Option<u64>| StepRow {
            status,
            begun_order: Some(began),
            ended_order: ended,
            ..step("other")
        };
        for (other, is_alone) in [
            (other(StepStatus::Completed, 1, Some(9)), true),
            (other(StepStatus::Completed, 1, Some(11)), false),
            (other(StepStatus::Completed, 11, Some(12)), false),
            (other(StepStatus::Interrupted, 1, Some(9)), false),
            (other(StepStatus::Running, 1, None), false),
        ] {
            let steps = [cut.clone(), other, step("never begun")];
            assert_eq!(was_alone(&cut, &steps), is_alone, "{:?}", steps[1]);
        }
    }
}
