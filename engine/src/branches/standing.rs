//! Where a task stands while runs work on it. Pure.

use jiff::Timestamp;

use crate::id::RunId;
use crate::records::run::{EndsAs, RunEvent};
use crate::records::work_task::{IllegalTaskEvent, WorkTaskEvent, WorkTaskRow, WorkTaskStatus};

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

/// The task after what happens to the run that works on it; `None`: the run still does.
pub(crate) fn ended(task: &WorkTaskRow, event: RunEvent, at: Timestamp) -> Option<WorkTaskRow> {
    let event = match event {
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
    Some(WorkTaskRow {
        status: task.status.next(event).ok()?,
        active_run: None,
        updated_at: at,
        ..task.clone()
    })
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
            let after = ended(&task(Task::Running, Some("r")), event, at(5));
            assert_eq!(after.as_ref().map(|row| row.status), to, "{event}");
            assert!(after.is_none_or(|row| row.active_run.is_none()));
        }
        let waits = task(Task::AwaitingFollowup, None);
        let given_up = ended(&waits, Run::Cancelled, at(5)).unwrap();
        assert_eq!(given_up.status, Task::Open);
        assert_eq!(ended(&waits, Run::Done, at(5)), None);
    }
}
