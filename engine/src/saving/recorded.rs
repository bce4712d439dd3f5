//! Documents of tasks and of what was saved, made of their rows.

use stillframe_backends::SnapshotId;
use stillframe_remote::failure_kind::FailureKind;

use crate::error::Error;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::checkpoint::CheckpointRow;
use crate::records::notice::{NoticeRecord, NoticeRow};
use crate::records::run_row::RunRow;
use crate::records::saved_work::{
    CheckpointRecord, FoundSecret, SavedState, SavedWork, WorkTaskRecord,
};
use crate::records::work_task::{WorkTaskRow, WorkTaskStatus};
use crate::saving::target::{OF_WORKSPACE, Target};
use crate::saving::work::{Fate, Made};
use crate::state::StateStore;
use crate::state::error::StateError;

/// What became of a task's work.
pub(crate) fn saved(target: &Target, task: &WorkTaskRow, made: &Made, fate: &Fate) -> SavedWork {
    let merged = match fate {
        Fate::Merged(merged, _) => Some(merged),
        _ => None,
    };
    let row = merged.map(|merged| &merged.row).or(made.row.as_ref());
    let commit = row.map(|row| row.commit.clone());
    let kept = merged.map(|merged| &merged.kept);
    let kept = kept.or(made.outcome.checkpoint.as_ref());
    let (state, side_branch, advanced_to, not_sent) = match fate {
        Fate::Kept if commit.is_none() => (SavedState::NoChanges, None, None, None),
        Fate::Kept => (SavedState::RecordedOnly, None, None, None),
        Fate::Sent(sent) => {
            let state = match sent.was_there {
                true => SavedState::NoChanges,
                false => SavedState::Pushed,
            };
            (state, None, sent.advanced_to, None)
        }
        Fate::Merged(_, sent) => (SavedState::Recovered, None, sent.advanced_to, None),
        Fate::Beside(not_sent, sent) => {
            let side = Some(sent.branch.as_str().to_owned());
            (
                SavedState::PushedBeside,
                side,
                sent.advanced_to,
                Some(not_sent),
            )
        }
        Fate::NotSent(not_sent) => (SavedState::NotSaved, None, None, Some(not_sent)),
    };
    let findings = not_sent.map(|not_sent| &not_sent.findings[..]);
    let findings = findings.unwrap_or_default().iter();
    SavedWork {
        task: task.task.clone(),
        namespace: task.namespace.clone(),
        branch: task.branch.clone(),
        remote: target.address.as_ref().map(|of| of.address.to_string()),
        state,
        commit,
        is_new: made.outcome.is_new || merged.is_some(),
        snapshot: made.snapshot.clone(),
        carried: false,
        side_branch,
        advanced_to: advanced_to.map(|id| id.to_string()),
        failure: not_sent.map(|not_sent| failure(not_sent.kind)),
        error: not_sent.map(|not_sent| not_sent.why.clone()),
        kept_as: kept.map(|kept| kept.reference.clone()),
        secrets: findings
            .map(|found| FoundSecret {
                rule: found.rule.clone(),
                path: found.path.clone(),
                line: found.line,
                commit: found.commit.clone(),
                fingerprint: found.fingerprint.clone(),
            })
            .collect(),
        unconverted_paths: made.outcome.unconverted_paths.clone(),
        left_out: made.outcome.left_out.clone(),
        submodules: made.outcome.submodules.clone(),
        default_branch: None,
    }
}

/// That no commit could be made of what a run left, which `snapshot` has.
pub(crate) fn not_made(
    branch: &WorkBranchOptions,
    snapshot: &SnapshotId,
    kind: FailureKind,
    error: &Error,
) -> SavedWork {
    SavedWork {
        task: branch.task.clone(),
        namespace: branch.namespace.clone(),
        branch: branch.branch_name().unwrap_or_default(),
        remote: None,
        state: SavedState::NotSaved,
        commit: None,
        is_new: false,
        snapshot: snapshot.clone(),
        carried: false,
        side_branch: None,
        advanced_to: None,
        failure: Some(failure(kind)),
        error: Some(error.chain()),
        kept_as: None,
        secrets: Vec::new(),
        unconverted_paths: Vec::new(),
        left_out: Vec::new(),
        submodules: Vec::new(),
        default_branch: None,
    }
}

/// What a host is told of a task with this row. `checkpoints`: all of it. `waiting`: the runs that
/// wait, with their tasks.
pub(crate) fn task(
    store: &dyn StateStore,
    row: WorkTaskRow,
    checkpoints: &[CheckpointRow],
    waiting: &[(RunRow, Vec<WorkTaskRow>)],
) -> Result<WorkTaskRecord, StateError> {
    let waits = row.status == WorkTaskStatus::AwaitingFollowup;
    let (run, follow_up) = match waits {
        true => {
            let of_it = |tasks: &[WorkTaskRow]| tasks.iter().any(|task| task.id == row.id);
            let run = waiting.iter().find(|(_, tasks)| of_it(tasks));
            let follow_up = store.follow_up(&row.id)?.map(Into::into);
            (run.map(|(run, _)| run.id.clone()), follow_up)
        }
        false => (row.active_run, None),
    };
    let remote = Some(row.remote).filter(|remote| !remote.starts_with(OF_WORKSPACE));
    Ok(WorkTaskRecord {
        task: row.task,
        namespace: row.namespace,
        branch: row.branch,
        remote,
        status: row.status.as_str().to_owned(),
        run_id: run,
        follow_up,
        input_cursor: row.input_cursor,
        failures_in_a_row: row.failures_in_a_row,
        flagged: row.is_flagged,
        error: row.error,
        last_failure_class: row
            .last_failure_class
            .map(|class| class.as_str().to_owned()),
        retry_count: row.retry_count,
        next_retry_at: row.next_retry_at,
        last_checkpoint: checkpoints.last().map(checkpoint),
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}

/// What a host is told of a checkpoint.
pub(crate) fn checkpoint(row: &CheckpointRow) -> CheckpointRecord {
    CheckpointRecord {
        number: row.seq,
        workspace_id: row.repository.clone(),
        kind: row.kind.as_str().to_owned(),
        run_id: row.made_by.clone(),
        commit: row.commit.clone(),
        status: row.status.as_str().to_owned(),
        branch: row.branch.clone(),
        advanced_to: row.advanced_to.clone(),
        failure: row.failure.map(|kind| kind.as_str().to_owned()),
        error: row.error.clone(),
        created_at: row.created_at,
    }
}

/// What a host is told of a notice.
pub(crate) fn notice(row: &NoticeRow, task: &WorkTaskRow) -> NoticeRecord {
    let remote = Some(&task.remote).filter(|remote| !remote.starts_with(OF_WORKSPACE));
    NoticeRecord {
        kind: row.kind,
        task: task.task.clone(),
        namespace: task.namespace.clone(),
        remote: remote.cloned(),
        run_id: row.run_id.clone(),
        commit: row.commit.clone(),
        token: row.token.clone(),
        text: row.text.clone(),
        status: row.status,
        attempts: row.attempts,
        next_at: row.next_at,
        error: row.error.clone(),
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

fn failure(kind: FailureKind) -> String {
    kind.as_str().to_owned()
}
