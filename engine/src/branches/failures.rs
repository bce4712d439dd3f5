//! How often in a row the work of a task could not be saved. Pure.

use jiff::{SignedDuration, Timestamp};

use crate::records::work_task::WorkTaskRow;
use stillframe_remote::failure_kind::FailureKind;

/// So many failures in a row flag a task.
pub(crate) const FLAG_AT: u32 = 3;

/// A count that nothing was added to for that long begins anew.
const LIFETIME: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How a try to save the work of a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// It was sent, and is proven.
    Saved,
    /// There was nothing new, and what there is is proven.
    NoChanges,
    Failed(FailureKind),
}

/// Counts a try. Answers whether it is the one that flags the task.
///
/// A flag stays until work is saved, also when the count has become old: nobody has looked yet.
pub(crate) fn count(task: &mut WorkTaskRow, attempt: Attempt, now: Timestamp) -> bool {
    match attempt {
        Attempt::Saved => {
            task.failures_in_a_row = 0;
            task.last_failure_at = None;
            task.is_flagged = false;
            false
        }
        // A line that was cut says nothing of the next try, and neither does an idle task.
        Attempt::NoChanges | Attempt::Failed(FailureKind::NetworkBlip) => false,
        Attempt::Failed(_) => {
            task.failures_in_a_row = in_a_row(task, now).saturating_add(1);
            task.last_failure_at = Some(now);
            let is_first = !task.is_flagged && task.failures_in_a_row >= FLAG_AT;
            task.is_flagged |= is_first;
            is_first
        }
    }
}

/// The failures in a row that still count.
pub(crate) fn in_a_row(task: &WorkTaskRow, now: Timestamp) -> u32 {
    // A clock that was set back makes no failure old.
    let is_old = |last: Timestamp| now.duration_since(last) >= LIFETIME;
    match task.last_failure_at.is_some_and(is_old) {
        true => 0,
        false => task.failures_in_a_row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3_600;

    fn task() -> WorkTaskRow {
        WorkTaskRow::new("42", None, "r", "b", Timestamp::UNIX_EPOCH)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn denied(task: &mut WorkTaskRow, second: i64) -> bool {
        count(task, Attempt::Failed(FailureKind::AuthDenied), at(second))
    }

    #[test]
    fn the_third_denial_in_a_row_flags_the_task_once() {
        let mut task = task();
        assert_eq!(
            [1, 2, 3, 4].map(|s| denied(&mut task, s)),
            [false, false, true, false]
        );
        assert_eq!((task.failures_in_a_row, task.is_flagged), (4, true));
    }

    #[test]
    fn every_kind_counts_but_a_blip_and_nothing_new() {
        for kind in FailureKind::ALL {
            let mut task = task();
            count(&mut task, Attempt::Failed(kind), at(1));
            let expected = u32::from(kind != FailureKind::NetworkBlip);
            assert_eq!(task.failures_in_a_row, expected, "{kind}");
        }
        let mut task = task();
        denied(&mut task, 1);
        denied(&mut task, 2);
        let before = task.clone();
        count(&mut task, Attempt::NoChanges, at(3));
        count(&mut task, Attempt::Failed(FailureKind::NetworkBlip), at(4));
        assert_eq!(task, before, "they neither count nor forgive");
        assert!(denied(&mut task, 5));
    }

    #[test]
    fn what_was_saved_begins_the_count_anew_and_takes_the_flag_down() {
        let mut task = task();
        for second in 1..4 {
            denied(&mut task, second);
        }
        assert!(!count(&mut task, Attempt::Saved, at(5)));
        assert_eq!((task.failures_in_a_row, task.is_flagged), (0, false));
        assert_eq!(task.last_failure_at, None);
        assert_eq!(
            [6, 7, 8].map(|s| denied(&mut task, s)),
            [false, false, true]
        );
    }

    #[test]
    fn a_count_lives_for_seven_days_after_its_last_failure() {
        let mut task = task();
        denied(&mut task, 0);
        denied(&mut task, 6 * DAY);
        assert_eq!(in_a_row(&task, at(13 * DAY - 1)), 2);
        assert_eq!(in_a_row(&task, at(13 * DAY)), 0);
        assert!(!denied(&mut task, 13 * DAY), "it is the first again");
        assert_eq!(task.failures_in_a_row, 1);
        assert_eq!(
            in_a_row(&task, at(5 * DAY)),
            1,
            "with a clock that was set back"
        );
    }

    #[test]
    fn a_flag_outlives_its_count() {
        let mut task = task();
        for second in 1..4 {
            denied(&mut task, second);
        }
        assert!(!denied(&mut task, 30 * DAY));
        assert_eq!((task.failures_in_a_row, task.is_flagged), (1, true));
    }
}
