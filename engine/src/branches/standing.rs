//! Where a task stands while runs work on it. Pure.

use jiff::Timestamp;
use stillframe_backends::ErrorKind;
use stillframe_remote::failure_kind::FailureKind;

use crate::failure::Failure;

use crate::id::RunId;
use crate::records::run::{EndsAs, RunEvent};
use crate::records::work_task::{
    FailureClass, IllegalTaskEvent, WorkTaskEvent, WorkTaskRow, WorkTaskStatus,
};

/// The task once a run works on it that nobody's input has caused. Of two at once the later one has
/// it.
pub(crate) fn begun(
    task: &WorkTaskRow,
    run_id: &RunId,
    at: Timestamp,
) -> Result<WorkTaskRow, IllegalTaskEvent> {
    let status = match task.status {
        WorkTaskStatus::Running => WorkTaskStatus::Running,
        status => status.next(WorkTaskEvent::Begun)?,
    };
    Ok(WorkTaskRow {
        status,
        active_run: Some(run_id.clone()),
        updated_at: at,
        ..task.clone()
    })
}

/// The task once a run goes on with it that waits with a task of another repository, and has input
/// for that one.
pub(crate) fn gone_on(
    task: &WorkTaskRow,
    run_id: &RunId,
    at: Timestamp,
) -> Result<WorkTaskRow, IllegalTaskEvent> {
    Ok(WorkTaskRow {
        status: task.status.next(WorkTaskEvent::Claimed)?,
        active_run: Some(run_id.clone()),
        updated_at: at,
        ..task.clone()
    })
}

/// The task after what happens to the run that works on it; `None`: the run still does. `why`: why
/// the run failed, and `not_saved`: why what it had is not on the branch.
pub(crate) fn ended(
    task: &WorkTaskRow,
    run: RunEvent,
    (why, not_saved): (Option<&Failure>, Option<FailureKind>),
    at: Timestamp,
) -> Option<WorkTaskRow> {
    let event = match run {
        RunEvent::Proven => WorkTaskEvent::Blocked,
        RunEvent::Done | RunEvent::Persisted(EndsAs::Completed) => WorkTaskEvent::Completed,
        RunEvent::Cancelled | RunEvent::Persisted(EndsAs::Cancelled) => WorkTaskEvent::Cancelled,
        RunEvent::Failed
        | RunEvent::TimedOut
        | RunEvent::Stranded
        | RunEvent::Refused
        | RunEvent::Unproven
        | RunEvent::Persisted(EndsAs::Failed | EndsAs::Timeout) => WorkTaskEvent::Failed,
        _ => return None,
    };
    let class = class(run, why, not_saved);
    let failed = why.filter(|_| class.is_some()).map(Failure::line);
    Some(WorkTaskRow {
        status: task.status.next(event).ok()?,
        active_run: None,
        error: failed.or_else(|| task.error.clone()),
        last_failure_class: class,
        updated_at: at,
        ..task.clone()
    })
}

/// What kind of trouble ended a run; `None`: none did. Only what is known: whether it was a test
/// that failed is the command's to know.
fn class(
    run: RunEvent,
    why: Option<&Failure>,
    not_saved: Option<FailureKind>,
) -> Option<FailureClass> {
    match run {
        RunEvent::TimedOut | RunEvent::Persisted(EndsAs::Timeout) => Some(FailureClass::Timeout),
        RunEvent::Unproven => Some(match not_saved {
            Some(
                FailureKind::SecretFound
                | FailureKind::TooLarge
                | FailureKind::RemotePolicyRejected,
            ) => FailureClass::PolicyBlock,
            Some(FailureKind::AuthDenied | FailureKind::RefConflict | FailureKind::NetworkBlip) => {
                FailureClass::ForgeError
            }
            _ => FailureClass::Unknown,
        }),
        RunEvent::Failed
        | RunEvent::Stranded
        | RunEvent::Refused
        | RunEvent::Persisted(EndsAs::Failed) => {
            let kind = why.map(|why| why.kind.as_deref());
            Some(match kind {
                // Work that failed for reasons of its own.
                Some(None) => FailureClass::AgentError,
                Some(Some(kind)) if kind == ErrorKind::PolicyViolation.as_str() => {
                    FailureClass::PolicyBlock
                }
                _ => FailureClass::Unknown,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn task(status: WorkTaskStatus, active_run: Option<&str>) -> WorkTaskRow {
        WorkTaskRow {
            status,
            active_run: active_run.map(|id| id.parse().unwrap()),
            ..WorkTaskRow::new("42", None, "r", "stillframe/task/42", at(1))
        }
    }

    #[test]
    fn a_task_that_waits_for_input_is_not_begun_without_any() {
        for status in WorkTaskStatus::ALL {
            let begun = begun(&task(status, None), &"r".parse().unwrap(), at(5));
            match status {
                WorkTaskStatus::AwaitingFollowup => assert!(begun.is_err()),
                _ => {
                    let begun = begun.unwrap();
                    assert_eq!(begun.status, WorkTaskStatus::Running, "{status}");
                    assert_eq!(begun.active_run, Some("r".parse().unwrap()));
                    assert_eq!(begun.updated_at, at(5));
                }
            }
        }
        for status in WorkTaskStatus::ALL {
            let gone_on = gone_on(&task(status, None), &"r".parse().unwrap(), at(5));
            let waits = status == WorkTaskStatus::AwaitingFollowup;
            assert_eq!(gone_on.is_ok(), waits, "{status}");
            if let Ok(gone_on) = gone_on {
                assert_eq!(gone_on.status, WorkTaskStatus::Running);
                assert_eq!(gone_on.active_run, Some("r".parse().unwrap()));
            }
        }
        let later = begun(
            &task(WorkTaskStatus::Running, Some("a")),
            &"b".parse().unwrap(),
            at(5),
        );
        assert_eq!(later.unwrap().active_run, Some("b".parse().unwrap()));
    }

    #[test]
    fn a_run_leaves_its_task_where_its_end_leads() {
        use RunEvent as Run;
        use WorkTaskStatus as Task;
        for (event, to) in [
            (Run::Done, Some(Task::Completed)),
            (Run::Persisted(EndsAs::Completed), Some(Task::Completed)),
            (Run::Failed, Some(Task::Failed)),
            (Run::TimedOut, Some(Task::Failed)),
            (Run::Stranded, Some(Task::Failed)),
            (Run::Unproven, Some(Task::Failed)),
            (Run::Persisted(EndsAs::Failed), Some(Task::Failed)),
            (Run::Persisted(EndsAs::Timeout), Some(Task::Failed)),
            (Run::Cancelled, Some(Task::Open)),
            (Run::Persisted(EndsAs::Cancelled), Some(Task::Open)),
            (Run::Proven, Some(Task::AwaitingFollowup)),
            (Run::Interrupted, None),
            (Run::Parked, None),
            (Run::Blocked, None),
            (Run::CheckpointBegun, None),
            (Run::Persisting(EndsAs::Failed), None),
        ] {
            let after = ended(&task(Task::Running, Some("r")), event, (None, None), at(5));
            assert_eq!(after.as_ref().map(|row| row.status), to, "{event}");
            assert!(after.is_none_or(|row| row.active_run.is_none()));
        }
        let waits = task(Task::AwaitingFollowup, None);
        let given_up = ended(&waits, Run::Cancelled, (None, None), at(5)).unwrap();
        assert_eq!(given_up.status, Task::Open);
        assert_eq!(ended(&waits, Run::Done, (None, None), at(5)), None);
    }

    #[test]
    fn a_failed_run_says_what_kind_of_trouble_it_was_and_a_good_one_takes_that_back() {
        use FailureClass as Class;
        use RunEvent as Run;
        let of_work = Failure::of_work("exit code 3\nof make");
        let policy = Failure::new("PolicyViolation", "too many files");
        let other = Failure::new("NoSpace", "the disk is full");
        for (event, why, not_saved, class) in [
            (
                Run::Persisted(EndsAs::Failed),
                Some(&of_work),
                None,
                Some(Class::AgentError),
            ),
            (Run::Failed, Some(&policy), None, Some(Class::PolicyBlock)),
            (Run::Failed, Some(&other), None, Some(Class::Unknown)),
            (Run::Stranded, None, None, Some(Class::Unknown)),
            (
                Run::Persisted(EndsAs::Timeout),
                Some(&other),
                None,
                Some(Class::Timeout),
            ),
            (
                Run::Unproven,
                Some(&other),
                Some(FailureKind::SecretFound),
                Some(Class::PolicyBlock),
            ),
            (
                Run::Unproven,
                Some(&other),
                Some(FailureKind::AuthDenied),
                Some(Class::ForgeError),
            ),
            (Run::Unproven, Some(&other), None, Some(Class::Unknown)),
            (Run::Persisted(EndsAs::Completed), None, None, None),
            (Run::Persisted(EndsAs::Cancelled), Some(&other), None, None),
        ] {
            let before = WorkTaskRow {
                error: Some("not sent".to_owned()),
                last_failure_class: Some(Class::Unknown),
                ..task(WorkTaskStatus::Running, Some("r"))
            };
            let after = ended(&before, event, (why, not_saved), at(5)).unwrap();
            assert_eq!(after.last_failure_class, class, "{event}");
            let said = why.filter(|_| class.is_some()).map(Failure::line);
            assert_eq!(after.error, said.or(before.error), "{event}");
        }
    }
}
