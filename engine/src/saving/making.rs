//! From a workspace to a commit in its store, and its row.

use jiff::Timestamp;
use stillframe_backends::{
    CheckpointError, CheckpointKind as Kind, CheckpointMessage, CheckpointRequest, Checkpoints,
    ErrorKind, KeptCheckpoint, Label, LockedWorkspace, MergeRequest, Operation, SnapshotId,
};
use stillframe_remote::ObjectId;

use crate::actors::Parts;
use crate::error::Error;
use crate::id::RunId;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow, CheckpointStatus, base_of_next};
use crate::records::step::{StepRow, StepStatus};
use crate::records::work_task::WorkTaskRow;
use crate::saving::others;
use crate::saving::target::Target;
use crate::saving::told::Telling;
use crate::saving::work::{Made, Merged, Wanted};
use crate::state::branch_change::BranchChange;
use crate::state::change::Change;
use crate::workspace::capture;

/// Captures the workspace for a checkpoint, unless it is as the snapshot `unless` has it: `None`.
pub(crate) fn capture(
    op: &Operation,
    telling: &Telling<'_>,
    locked: &mut LockedWorkspace,
    target: &Target,
    unless: Option<&SnapshotId>,
) -> Result<Option<SnapshotId>, Error> {
    let Telling { parts, wanted, .. } = telling;
    let Wanted {
        session_id, run_id, ..
    } = wanted;
    let label = Label::new(CHECKPOINT);
    let (opened, backend) = (&target.opened, &*target.backend);
    let options = opened.snapshot_options(parts, label, session_id, run_id.as_ref());
    let snapshot = capture::take(op, locked, backend, &options)?;
    // A run's work is what its command has made of the branch that it was brought to.
    let head = snapshot.metadata.branch.as_deref();
    if let (None, Some(why)) = (run_id, others::whose(parts, head, telling.task)?) {
        let op = &Operation::unbounded();
        capture::let_go_of(op, parts, locked, backend, &snapshot);
        let message = format!("{why}; nothing was saved");
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    if let Some(id) = unless {
        let earlier = parts.reader.read_blocking(|store| store.snapshot(id))?;
        if let Some(row) = earlier
            && capture::adds_nothing(op, parts, locked, backend, (&row.snapshot, &snapshot))
        {
            return Ok(None);
        }
    }
    let log = capture::log_of(parts, locked, &snapshot, session_id, run_id.as_ref());
    let changes = std::iter::once(telling.started()).chain(log);
    capture::keep(parts, wanted.fenced(changes.collect()))?;
    Ok(Some(snapshot.id))
}

/// Makes a checkpoint of a snapshot in the store, and puts it on record.
pub(crate) fn make(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    target: &Target,
    task: &WorkTaskRow,
    (wanted, snapshot): (&Wanted, &SnapshotId),
) -> Result<Made, Error> {
    let known = of_name(parts, task)?;
    let repository = locked.id().to_owned();
    let base = base_of_next(&known, &repository);
    let checkpoints = target.checkpoints();
    let name = task.full_name();
    let (number, kept) = next_number(op, locked, checkpoints, &name, &known)?;
    let at = parts.now();
    let captured = parts
        .reader
        .read_blocking(|store| store.snapshot(snapshot))?;
    // Made again of the same snapshot it is the same commit.
    let captured_at = captured.map_or(at, |row| row.snapshot.captured_at);
    let message = message(parts, &name, wanted)?;
    let mut request = CheckpointRequest::new(&name, number, message, captured_at)
        .on_remote(wanted.on_remote.clone());
    request.sent = base.map(|row| row.commit.clone());
    request.borrow = parts.settings.borrow;
    let outcome = checkpoints
        .make_checkpoint(op, locked, snapshot, &request)
        .map_err(|e| Error::new(e.kind(), e))?;
    let Some(made) = &outcome.checkpoint else {
        return Ok(Made {
            row: None,
            outcome,
            snapshot: snapshot.clone(),
        });
    };
    if let Some(base) = base.filter(|base| base.commit == made.commit) {
        // It is that one, which has a number.
        let forgotten = checkpoints.forget_checkpoints(op, locked, &name, &[number]);
        if let Err(e) = forgotten {
            tracing::warn!(error = %e, "a second name of a checkpoint stays");
        }
        let mut outcome = outcome;
        outcome.checkpoint = kept.into_iter().find(|kept| kept.number == base.seq);
        // It is sent where this task's work goes.
        let base = base_here(parts, task, base, &known)?;
        return Ok(Made {
            row: Some(base),
            outcome,
            snapshot: snapshot.clone(),
        });
    }
    let row = row(task, wanted, &repository, (number, &made.commit), at);
    let telling = Telling {
        parts,
        task,
        wanted,
    };
    let told = telling.committed(&row, &outcome);
    capture::keep(parts, wanted.fenced(vec![added(&row), told]))?;
    Ok(Made {
        row: Some(row),
        outcome,
        snapshot: snapshot.clone(),
    })
}

/// The number of the next checkpoint of a name, and what the store keeps of that name. What whoever
/// made it did not live to put on record is let go of first: it was never sent, and its snapshot is
/// kept.
fn next_number(
    op: &Operation,
    locked: &mut LockedWorkspace,
    checkpoints: &dyn Checkpoints,
    name: &str,
    known: &[CheckpointRow],
) -> Result<(u64, Vec<KeptCheckpoint>), Error> {
    let failed = |e: CheckpointError| Error::new(e.kind(), e);
    let kept = checkpoints.kept_checkpoints(op, locked, name);
    let mut kept = kept.map_err(failed)?;
    let of_rows = known.iter().filter(|row| row.repository == locked.id());
    let last = of_rows.map(|row| row.seq).max().unwrap_or(0);
    if let Some(number) = not_on_record(last, &kept) {
        checkpoints
            .forget_checkpoints(op, locked, name, &[number])
            .map_err(failed)?;
        kept.retain(|kept| kept.number != number);
    }
    let newest = kept.iter().map(|kept| kept.number).max();
    Ok((newest.unwrap_or(0).max(last) + 1, kept))
}

/// The number of what is kept and was not put on record, where `last` is the last row's. Whoever
/// dies leaves one. Where there are more, rows are lost, and nobody knows what those were.
fn not_on_record(last: u64, kept: &[KeptCheckpoint]) -> Option<u64> {
    let mut numbers = kept.iter().map(|kept| kept.number);
    let is_only = numbers.clone().filter(|number| *number > last).count() == 1;
    numbers.find(|number| is_only && *number == last + 1)
}

/// Merges a checkpoint with what its branch is at, and puts that on record before anybody can have
/// seen it; `None`: they conflict, or cannot be merged here.
pub(crate) fn merge(
    op: &Operation,
    telling: &Telling<'_>,
    locked: &mut LockedWorkspace,
    target: &Target,
    checkpoint: &CheckpointRow,
    tip: ObjectId,
) -> Result<Option<Merged>, Error> {
    let Telling {
        parts,
        task,
        wanted,
    } = telling;
    let known = of_name(parts, task)?;
    let (repository, name) = (locked.id().to_owned(), task.full_name());
    let checkpoints = target.checkpoints();
    let (number, kept) = next_number(op, locked, checkpoints, &name, &known)?;
    let tip = tip.to_string();
    let mut on_remote = wanted.on_remote.clone();
    // It may have come there since.
    on_remote.push(tip.clone());
    let both = (checkpoint.commit.clone(), tip);
    let request = MergeRequest::new(&name, number, message(parts, &name, wanted)?, both)
        .on_remote(on_remote)
        .borrow(parts.settings.borrow);
    let made = match checkpoints.merge_checkpoint(op, locked, &request) {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(None),
        // The work goes beside the branch, as if there were a conflict.
        Err(e) => {
            tracing::warn!(error = %e, "a task's work is not merged with its branch");
            return Ok(None);
        }
    };
    let is_it = |row: &&CheckpointRow| {
        row.task_id == task.id
            && row.repository == repository
            && row.commit == made.commit
            && row.status != CheckpointStatus::Discarded
    };
    // One that was made before, and not sent.
    let earlier = known.iter().filter(is_it);
    let mut earlier = earlier.filter(|row| row.kind == CheckpointKind::Merge);
    let earlier = earlier.next_back().and_then(|row| {
        let kept = kept.iter().find(|kept| kept.number == row.seq)?;
        Some((row.clone(), kept.clone()))
    });
    if let Some((row, kept)) = earlier {
        let forgotten = checkpoints.forget_checkpoints(op, locked, &name, &[number]);
        if let Err(e) = forgotten {
            tracing::warn!(error = %e, "a second name of a checkpoint stays");
        }
        capture::keep(parts, wanted.fenced(vec![telling.retried()]))?;
        return Ok(Some(Merged { row, kept }));
    }
    let row = CheckpointRow {
        kind: CheckpointKind::Merge,
        ..row(
            task,
            wanted,
            &repository,
            (number, &made.commit),
            parts.now(),
        )
    };
    capture::keep(parts, wanted.fenced(vec![added(&row), telling.retried()]))?;
    Ok(Some(Merged { row, kept: made }))
}

/// The checkpoints of all tasks of this name, wherever their branches are: the same work may have
/// been sent elsewhere before, and what the store keeps is numbered by the name.
pub(crate) fn of_name(parts: &Parts, task: &WorkTaskRow) -> Result<Vec<CheckpointRow>, Error> {
    let name = task.full_name();
    parts.reader.read_blocking(|store| {
        let mut known = Vec::new();
        for row in store.work_tasks()? {
            if row.full_name() == name {
                known.extend(store.checkpoints(&row.id)?);
            }
        }
        Ok(known)
    })
}

/// The row of a checkpoint for this task: its own, or a new one for what was made when the branch
/// was elsewhere.
fn base_here(
    parts: &Parts,
    task: &WorkTaskRow,
    base: &CheckpointRow,
    known: &[CheckpointRow],
) -> Result<CheckpointRow, Error> {
    let is_it = |row: &&CheckpointRow| {
        row.task_id == task.id && row.repository == base.repository && row.seq == base.seq
    };
    if let Some(own) = known.iter().find(is_it) {
        return Ok(own.clone());
    }
    let row = CheckpointRow {
        task_id: task.id.clone(),
        status: CheckpointStatus::Made,
        remote: None,
        branch: None,
        advanced_to: None,
        failure: None,
        error: None,
        ..base.clone()
    };
    capture::keep(parts, vec![added(&row)])?;
    Ok(row)
}

/// That a checkpoint is new.
fn added(row: &CheckpointRow) -> Change {
    Change::Branch(Box::new(BranchChange::PutCheckpoint {
        from: None,
        row: row.clone(),
    }))
}

/// The label of the captures that checkpoints are made of.
const CHECKPOINT: &str = "checkpoint";

fn row(
    task: &WorkTaskRow,
    wanted: &Wanted,
    repository: &str,
    (seq, commit): (u64, &str),
    at: Timestamp,
) -> CheckpointRow {
    CheckpointRow {
        task_id: task.id.clone(),
        repository: repository.to_owned(),
        seq,
        kind: wanted.kind,
        made_by: wanted.run_id.clone(),
        commit: commit.to_owned(),
        status: CheckpointStatus::Made,
        remote: None,
        branch: None,
        advanced_to: None,
        failure: None,
        error: None,
        created_at: at,
        updated_at: at,
    }
}

fn message(parts: &Parts, task: &str, wanted: &Wanted) -> Result<String, Error> {
    let kind = match wanted.kind {
        CheckpointKind::Wip => Kind::Wip,
        CheckpointKind::Periodic | CheckpointKind::Merge => Kind::Periodic,
        CheckpointKind::Blocked => Kind::Blocked,
    };
    // A value that is missing is `unknown`.
    let run_id = wanted.run_id.as_ref().map_or("", RunId::as_str);
    let mut message = CheckpointMessage::new(kind, run_id).task(task.to_owned());
    message.template.clone_from(&wanted.template);
    if let Some(run) = &wanted.run_id {
        let steps = parts.reader.read_blocking(|store| store.steps(run))?;
        message.step = step_in(&steps, wanted.kind).map(|row| row.name.clone());
    }
    message.whole().map_err(Error::from)
}

/// The step that a run is in, or that has failed: of those that were begun and are not done the one
/// that was begun last. A step whose failure the adapter went on from is no place that work in
/// progress is at. It is the same for whoever makes the checkpoint again.
fn step_in(steps: &[StepRow], kind: CheckpointKind) -> Option<&StepRow> {
    let is_open = |row: &&StepRow| match row.status {
        StepStatus::Completed | StepStatus::Skipped => false,
        StepStatus::Failed => kind == CheckpointKind::Wip,
        _ => true,
    };
    let begun = steps.iter().filter(|row| row.begun_order.is_some());
    begun.filter(is_open).max_by_key(|row| row.begun_order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_rows_was_not_put_on_record_and_of_several_nobody_knows() {
        let found = |last, numbers: &[u64]| {
            let kept = |number: &u64| KeptCheckpoint::new(*number, "c".into(), "r".into());
            let kept: Vec<_> = numbers.iter().map(kept).collect();
            not_on_record(last, &kept)
        };
        assert_eq!(found(0, &[]), None);
        assert_eq!(found(2, &[1, 2]), None);
        assert_eq!(found(0, &[1]), Some(1));
        assert_eq!(found(2, &[1, 2, 3]), Some(3));
        assert_eq!(found(2, &[3]), Some(3), "what is before may be let go of");
        assert_eq!(found(0, &[1, 2]), None, "the rows are lost");
        assert_eq!(found(2, &[1, 2, 4]), None);
        assert_eq!(found(5, &[1, 3]), None);
    }
}
