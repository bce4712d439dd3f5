//! What a blocked task waits with, and who may go on with it. Pure.

use jiff::Timestamp;
use stillframe_backends::ErrorKind;

use crate::branches::notices;
use crate::records::block::Block;
use crate::records::checkpoint::{CheckpointRow, CheckpointStatus};
use crate::records::follow_up::{DEFAULT_WAITING_REASON, FollowUpInput, FollowUpRow};
use crate::records::work_task::{WorkTaskRow, WorkTaskStatus};

/// What the task waits with from now on, in place of what it had; `None`: nothing is proven, so
/// that nobody could go on from it.
///
/// The checkpoint's branch wins over the adapter's: it is where the work was seen.
pub(crate) fn waiting(
    block: &Block,
    checkpoint: &CheckpointRow,
    at: Timestamp,
) -> Option<FollowUpRow> {
    if checkpoint.status != CheckpointStatus::Proven {
        return None;
    }
    let branch = checkpoint.branch.as_ref().or(block.branch.as_ref())?;
    Some(FollowUpRow {
        task_id: checkpoint.task_id.clone(),
        flow: block.flow.clone(),
        branch: branch.clone(),
        context: block.context.clone(),
        waiting_reason: block.told().unwrap_or(DEFAULT_WAITING_REASON).to_owned(),
        last_checkpoint: checkpoint.commit.clone(),
        updated_at: at,
    })
}

/// Where a claimed task goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The branch that was stored, whatever the task would be named today.
    pub(crate) branch: String,
    pub(crate) commit: String,
    /// The cursor once the input is consumed.
    pub(crate) cursor: u64,
}

/// Why input does not go on with a task. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unclaimable {
    #[error(
        "input {id} is not newer than {cursor}, which the task has consumed; nothing was changed"
    )]
    Old { id: u64, cursor: u64 },
    #[error(
        "input {id} has no number that is kept; numbers are 1 to {}; nothing was changed",
        i64::MAX
    )]
    Number { id: u64 },
    #[error("input {id} is of a bot; nothing was changed")]
    OfBot { id: u64 },
    #[error("input {id} is one of our own notices; nothing was changed")]
    OfOurOwn { id: u64 },
    #[error("the author of input {id} may not go on with the task; nothing was changed")]
    NotAllowed { id: u64 },
    #[error("a run works on the task already; nothing was changed")]
    HasRun,
    #[error(
        "the task is {status} and waits for no input; a run of it begins where its branch is; nothing was changed"
    )]
    NotWaiting { status: WorkTaskStatus },
}

impl Unclaimable {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Number { .. } => ErrorKind::InvalidOptions,
            _ => ErrorKind::Conflict,
        }
    }
}

/// Where the task goes on with this input.
///
/// Two who ask at once may both be told; the state lets one of them claim it.
pub(crate) fn claim(
    task: &WorkTaskRow,
    follow_up: Option<&FollowUpRow>,
    input: &FollowUpInput,
) -> Result<Claim, Unclaimable> {
    let (id, cursor) = (input.id, task.input_cursor);
    if id == 0 || i64::try_from(id).is_err() {
        return Err(Unclaimable::Number { id });
    }
    if task.active_run.is_some() {
        return Err(Unclaimable::HasRun);
    }
    let status = task.status;
    let waiting = follow_up.filter(|_| status == WorkTaskStatus::AwaitingFollowup);
    let Some(follow_up) = waiting else {
        return Err(Unclaimable::NotWaiting { status });
    };
    if id <= cursor {
        return Err(Unclaimable::Old { id, cursor });
    }
    if notices::has_marker(&input.text) {
        return Err(Unclaimable::OfOurOwn { id });
    }
    if input.is_of_bot {
        return Err(Unclaimable::OfBot { id });
    }
    if !input.is_of_allowed_author {
        return Err(Unclaimable::NotAllowed { id });
    }
    Ok(Claim {
        branch: follow_up.branch.clone(),
        commit: follow_up.last_checkpoint.clone(),
        cursor: cursor.max(id),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::records::checkpoint::CheckpointKind;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn task() -> WorkTaskRow {
        WorkTaskRow {
            status: WorkTaskStatus::AwaitingFollowup,
            input_cursor: 7,
            ..WorkTaskRow::new("42", None, "r", "stillframe/task/42", at(1))
        }
    }

    fn checkpoint(commit: &str, branch: Option<&str>) -> CheckpointRow {
        CheckpointRow {
            task_id: "t".parse().unwrap(),
            repository: "store".to_owned(),
            seq: 1,
            kind: CheckpointKind::Blocked,
            made_by: None,
            commit: commit.to_owned(),
            status: CheckpointStatus::Proven,
            remote: Some("r".to_owned()),
            branch: branch.map(str::to_owned),
            advanced_to: None,
            failure: None,
            error: None,
            created_at: at(1),
            updated_at: at(1),
        }
    }

    fn block(branch: Option<&str>, reason: Option<&str>) -> Block {
        Block {
            flow: "implement".to_owned(),
            branch: branch.map(str::to_owned),
            reason: reason.map(str::to_owned),
            context: json!({ "asked": "which port?" }),
        }
    }

    fn input(id: u64) -> FollowUpInput {
        FollowUpInput::new(id, "use 8080")
    }

    #[test]
    fn a_block_waits_with_what_was_proven_on_the_branch_of_the_checkpoint() {
        let block = block(Some("stillframe/task/43"), None);
        let proven = checkpoint("c1", Some("stillframe/task/42--diverged-r"));
        let row = waiting(&block, &proven, at(5)).unwrap();
        assert_eq!(
            row.branch, "stillframe/task/42--diverged-r",
            "not the adapter's"
        );
        assert_eq!(row.waiting_reason, "recoverable_blocked");
        assert_eq!(
            (row.last_checkpoint.as_str(), row.updated_at),
            ("c1", at(5))
        );
        assert_eq!(row.context, json!({ "asked": "which port?" }));
        let told = waiting(&block, &checkpoint("c1", None), at(5)).unwrap();
        assert_eq!(
            told.branch, "stillframe/task/43",
            "where the checkpoint has none"
        );
    }

    #[test]
    fn a_block_without_proof_waits_with_nothing() {
        for status in CheckpointStatus::ALL {
            let row = CheckpointRow {
                status,
                ..checkpoint("c1", Some("b"))
            };
            let waits = waiting(&block(None, Some("why")), &row, at(5)).is_some();
            assert_eq!(waits, status == CheckpointStatus::Proven, "{status}");
        }
        assert_eq!(
            waiting(&block(None, None), &checkpoint("c1", None), at(5)),
            None
        );
    }

    #[test]
    fn a_second_block_has_the_new_commit_and_reason() {
        let second = waiting(
            &block(None, Some("needs a key")),
            &checkpoint("c2", Some("b")),
            at(9),
        );
        let second = second.unwrap();
        assert_eq!(second.last_checkpoint, "c2");
        assert_eq!(second.waiting_reason, "needs a key");
    }

    #[test]
    fn new_input_of_an_allowed_author_goes_on_from_the_stored_branch() {
        // The task would be named otherwise today.
        let renamed = WorkTaskRow {
            task: "43".to_owned(),
            branch: "stillframe/task/43".to_owned(),
            ..task()
        };
        let row = waiting(&block(None, None), &checkpoint("c1", Some("stored")), at(5)).unwrap();
        let claim = claim(&renamed, Some(&row), &input(8)).unwrap();
        assert_eq!(
            (claim.branch.as_str(), claim.commit.as_str()),
            ("stored", "c1")
        );
        assert_eq!(claim.cursor, 8);
    }

    #[test]
    fn any_other_input_is_refused_without_a_trace() {
        let row = waiting(&block(None, None), &checkpoint("c1", Some("b")), at(5)).unwrap();
        let refused = |task: &WorkTaskRow, input: &FollowUpInput| {
            claim(task, Some(&row), input).expect_err("it is refused")
        };
        for id in [1, 6, 7] {
            let old = Unclaimable::Old { id, cursor: 7 };
            assert_eq!(refused(&task(), &input(id)), old);
        }
        let number = |id| Unclaimable::Number { id };
        assert_eq!(refused(&task(), &input(0)), number(0));
        assert_eq!(refused(&task(), &input(u64::MAX)), number(u64::MAX));
        assert_eq!(number(0).kind(), ErrorKind::InvalidOptions);
        let bot = input(8).is_of_bot(true);
        assert_eq!(refused(&task(), &bot), Unclaimable::OfBot { id: 8 });
        let text = format!("> {}\nsure", notices::marker(&"ab".repeat(32)));
        let ours = FollowUpInput::new(8, text);
        assert_eq!(refused(&task(), &ours), Unclaimable::OfOurOwn { id: 8 });
        let stranger = input(8).is_of_allowed_author(false);
        let not_allowed = refused(&task(), &stranger);
        assert_eq!(not_allowed, Unclaimable::NotAllowed { id: 8 });
        assert_eq!(not_allowed.kind(), ErrorKind::Conflict);
        let running = WorkTaskRow {
            active_run: Some("r".parse().unwrap()),
            ..task()
        };
        assert_eq!(refused(&running, &input(8)), Unclaimable::HasRun);
    }

    #[test]
    fn a_task_that_does_not_wait_or_has_no_row_is_not_claimed() {
        let row = waiting(&block(None, None), &checkpoint("c1", Some("b")), at(5)).unwrap();
        for status in WorkTaskStatus::ALL {
            let task = WorkTaskRow { status, ..task() };
            let claimed = claim(&task, Some(&row), &input(8)).is_ok();
            assert_eq!(
                claimed,
                status == WorkTaskStatus::AwaitingFollowup,
                "{status}"
            );
            let without = claim(&task, None, &input(8)).unwrap_err();
            assert_eq!(without, Unclaimable::NotWaiting { status });
        }
    }

    proptest::proptest! {
        #[test]
        fn a_cursor_never_goes_back(ids in proptest::collection::vec(0_u64..20, 0..30)) {
            let row = waiting(&block(None, None), &checkpoint("c1", Some("b")), at(5)).unwrap();
            let mut task = task();
            for id in ids {
                let before = task.input_cursor;
                if let Ok(claim) = claim(&task, Some(&row), &input(id)) {
                    proptest::prop_assert_eq!(claim.cursor, id);
                    task.input_cursor = claim.cursor;
                }
                proptest::prop_assert!(task.input_cursor >= before);
            }
        }
    }
}
