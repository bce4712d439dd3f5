//! When something that failed for a passing reason is tried again. Pure.

use jiff::{SignedDuration, Timestamp};
use stillframe_remote::failure_kind::FailureKind;

use crate::records::checkpoint::{CheckpointRow, CheckpointStatus, base_of_next};
use crate::records::work_task::WorkTaskRow;

/// More tries are not made.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// Between the first try and the second. Each later pause is twice as long as the one before.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// No pause is longer.
const MAX_PAUSE: SignedDuration = SignedDuration::from_secs(300);

/// When the next try is due, after so many have failed; `None`: there is none.
pub(crate) fn next_try(failed: u32, now: Timestamp) -> Option<Timestamp> {
    match failed < MAX_ATTEMPTS {
        // A clock at the end of time has no later moment.
        true => now.checked_add(pause_after(failed)).ok(),
        false => None,
    }
}

/// Notes a try to send the work of a task. `failed`: why it was not sent. `is_new`: it was not
/// tried before. What fails for a reason that may pass is due again; all else waits for the next
/// checkpoint.
pub(crate) fn note(
    task: &mut WorkTaskRow,
    failed: Option<FailureKind>,
    is_new: bool,
    now: Timestamp,
) {
    let may_pass = failed == Some(FailureKind::NetworkBlip);
    let before = match is_new {
        true => 0,
        false => task.retry_count,
    };
    task.retry_count = match may_pass {
        true => before.saturating_add(1),
        false => 0,
    };
    let next = may_pass.then(|| next_try(task.retry_count, now));
    task.next_retry_at = next.flatten();
}

/// The task once somebody sends its work again, whose it is for five minutes; `None`: it is not
/// due, or a run works on it, which saves it when it ends.
pub(crate) fn claimed(task: &WorkTaskRow, now: Timestamp) -> Option<WorkTaskRow> {
    let is_due = task.next_retry_at.is_some_and(|at| at <= now);
    (is_due && task.active_run.is_none()).then(|| WorkTaskRow {
        next_retry_at: now.checked_add(MAX_PAUSE).ok(),
        ..task.clone()
    })
}

/// Of the checkpoints of a task, those that are sent again: of each repository the newest, if that
/// was not sent for a reason that may pass. It has the others.
pub(crate) fn to_send(checkpoints: &[CheckpointRow]) -> Vec<CheckpointRow> {
    let mut repositories: Vec<&str> = checkpoints.iter().map(|row| &*row.repository).collect();
    repositories.sort_unstable();
    repositories.dedup();
    let newest = repositories
        .into_iter()
        .filter_map(|repository| base_of_next(checkpoints, repository));
    newest.filter(|row| may_be_sent(row)).cloned().collect()
}

/// Whether a checkpoint was not sent for a reason that may pass.
pub(crate) fn may_be_sent(row: &CheckpointRow) -> bool {
    let is_on_its_way = matches!(row.status, CheckpointStatus::Made | CheckpointStatus::Sent);
    is_on_its_way && row.failure == Some(FailureKind::NetworkBlip)
}

/// How long to wait after so many failed tries; there was at least one.
fn pause_after(failed: u32) -> SignedDuration {
    let doubled = failed.saturating_sub(1);
    let factor = 1_i32.checked_shl(doubled).filter(|factor| *factor > 0);
    let pause = factor.and_then(|factor| FIRST_PAUSE.checked_mul(factor));
    pause.map_or(MAX_PAUSE, |pause| pause.min(MAX_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_failure_is_the_last_and_the_pauses_before_were_30_and_60_seconds() {
        let now = Timestamp::from_second(1_000).unwrap();
        let due = |failed| next_try(failed, now).map(|at| at.as_second() - 1_000);
        assert_eq!([1, 2, 3, 4].map(due), [Some(30), Some(60), None, None]);
    }

    fn task() -> WorkTaskRow {
        WorkTaskRow::new("42", None, "r", "b", Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn only_what_may_pass_is_tried_again_and_other_work_begins_anew() {
        let now = Timestamp::from_second(1_000).unwrap();
        let blip = Some(FailureKind::NetworkBlip);
        let mut task = task();
        let mut noted = |failed, is_new| {
            note(&mut task, failed, is_new, now);
            let due = task.next_retry_at.map(|at| at.as_second() - 1_000);
            (task.retry_count, due)
        };
        assert_eq!(noted(blip, true), (1, Some(30)));
        assert_eq!(noted(blip, false), (2, Some(60)));
        assert_eq!(noted(blip, false), (3, None));
        assert_eq!(noted(blip, true), (1, Some(30)), "it is other work");
        for kind in FailureKind::ALL {
            if Some(kind) != blip {
                assert_eq!(noted(Some(kind), false), (0, None), "{kind}");
                noted(blip, true);
            }
        }
        assert_eq!(noted(None, false), (0, None));
    }

    #[test]
    fn what_is_due_is_claimed_once_until_the_claim_is_over() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut due = task();
        assert_eq!(claimed(&due, at(0)), None);
        due.next_retry_at = Some(at(30));
        assert_eq!(claimed(&due, at(29)), None);
        let taken = claimed(&due, at(30)).unwrap();
        assert_eq!(claimed(&taken, at(329)), None, "whoever has it is at it");
        assert!(claimed(&taken, at(330)).is_some(), "or has died");
        due.active_run = Some("r".parse().unwrap());
        assert_eq!(claimed(&due, at(30)), None, "it saves it itself");
    }

    #[test]
    fn of_each_repository_the_newest_is_sent_if_it_may_be() {
        use CheckpointStatus::{Made, Proven, Refused, Sent};
        let row = |repository: &str, seq, status, failure| CheckpointRow {
            task_id: "t".parse().unwrap(),
            repository: repository.to_owned(),
            seq,
            kind: crate::records::checkpoint::CheckpointKind::Wip,
            made_by: None,
            commit: format!("{repository}{seq}"),
            status,
            remote: None,
            branch: None,
            advanced_to: None,
            failure,
            error: None,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        };
        let blip = Some(FailureKind::NetworkBlip);
        let rows = [
            row("a", 1, Made, blip),
            row("a", 2, Made, blip),
            row("b", 1, Made, blip),
            row("b", 2, Proven, None),
            row("c", 1, Made, Some(FailureKind::AuthDenied)),
            row("d", 1, Sent, blip),
            row("e", 1, Made, blip),
            row("e", 2, Refused, Some(FailureKind::SecretFound)),
        ];
        let sent = to_send(&rows).into_iter();
        let sent: Vec<String> = sent.map(|row| row.commit).collect();
        assert_eq!(sent, ["a2", "d1"]);
    }

    #[test]
    fn a_pause_doubles_up_to_five_minutes() {
        let seconds = [1, 2, 3, 4, 5, 6, 31, 32, 33, 1_000, u32::MAX];
        let seconds = seconds.map(|failed| pause_after(failed).as_secs());
        assert_eq!(seconds[..6], [30, 60, 120, 240, 300, 300]);
        assert_eq!(seconds[6..], [300; 5]);
        assert_eq!(next_try(1, Timestamp::MAX), None);
    }
}
