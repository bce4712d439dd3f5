//! Restores: a rollback, a restore by hand or an undo, from the beginning to the record.

use std::io;
use std::time::Instant;

use stillframe_backends::ref_commands::is_symbolic;
use stillframe_backends::{
    Backend, DiffOptions, Label, LockedWorkspace, Operation, RefChange, RepositoryRestore,
    RestoreError, RestoreGoal, RestoreOptions, RestoreOutcome, Snapshot, SnapshotId, Workspace,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::id::SessionId;
use crate::records::restore_document::{RestorePurpose, RestoreRow, restored_document};
use crate::state::change::Change;
use crate::state::hold::Hold;
use crate::telemetry;
use crate::workspace::adoption::{self, Untold};
use crate::workspace::opened::Opened;
use crate::workspace::restore_record::{Done, head, record};
use crate::workspace::{capture, compare, safety};

/// What a restore is part of.
pub(crate) struct Restoring {
    pub(crate) session_id: SessionId,
    /// The run that it is for. Nothing is touched if that was taken over.
    pub(crate) hold: Option<Hold>,
    /// What is gone back to.
    pub(crate) to: SnapshotId,
    pub(crate) purpose: RestorePurpose,
    /// Whether it concerns the user's index and branch too.
    pub(crate) repository: bool,
}

/// Restores, and returns once what was done is durable and on record. Blocks.
///
/// What it is about is on record before it begins, so that recovery can tell of one that it
/// finishes.
pub(crate) fn restore(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    goal: &RestoreGoal,
    options: &RestoreOptions,
    restoring: &Restoring,
) -> Result<RestoreOutcome, Error> {
    let run_id = restoring.hold.as_ref().map(|hold| &hold.run_id);
    let span = telemetry::restore_span(
        locked.id(),
        (&restoring.session_id, run_id),
        (restoring.purpose, restoring.to.as_str()),
    );
    let began = Instant::now();
    let done = || recorded(op, parts, locked, backend, goal, options, restoring);
    let outcome = span.in_scope(done)?;
    telemetry::restored(&span, restoring.purpose, &outcome, began.elapsed());
    Ok(outcome)
}

/// Restores, with what comes before and after on record.
fn recorded(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    goal: &RestoreGoal,
    options: &RestoreOptions,
    restoring: &Restoring,
) -> Result<RestoreOutcome, Error> {
    let begun = RestoreRow {
        guard: options.guard.id.clone(),
        workspace_id: locked.id().to_owned(),
        session_id: restoring.session_id.clone(),
        run_id: restoring.hold.as_ref().map(|hold| hold.run_id.clone()),
        target: restoring.to.clone(),
        purpose: restoring.purpose,
        repository: restoring.repository,
        at: parts.now(),
        outcome: None,
    };
    let change = Change::BeginRestore(Box::new(begun.clone()));
    // An engine that takes the run over settles it in this workspace, whose lock is held from here
    // on.
    let fence = restoring.hold.as_ref().map(Hold::fence);
    let changes = fence.into_iter().chain([change]).collect();
    parts.writer.commit_blocking(changes)?;
    let mut outcome = match backend.restore(op, locked, goal, options) {
        Ok(outcome) => outcome,
        Err(e) => {
            // The guard may be in the store. The error of the restore is the one to tell.
            let op = &op.to_its_end();
            if not_finished(op, parts, locked, &begun, &e).is_err() {
                parts.lock.leave_work();
            }
            return Err(e.into());
        }
    };
    // It is done, and what follows puts it on record.
    let op = &op.to_its_end();
    if restoring.repository {
        // Beside the restore, which is done: the next one, or a clean-up, moves what is still
        // there.
        let tags = safety::move_tags(op, parts, locked, backend).unwrap_or_default();
        outcome.moved_tags = tags.moved;
    }
    // Beside the restore too. The run's own comparison names them all.
    let left = refs_left(
        op,
        parts,
        locked,
        options,
        restoring.purpose,
        &outcome.result,
    );
    outcome.refs_left = left.unwrap_or_default();
    if !outcome.refs_left.is_empty() {
        let ids = ids_before(&outcome.refs_left);
        if let Some(repository) = backend.repository() {
            outcome.objects_gone = repository.objects_gone(op, locked, &ids);
            outcome.taken_elsewhere = repository.taken_elsewhere(op, locked);
        }
    }
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let mut changes: Vec<Change> = [&outcome.guard, &outcome.result]
        .into_iter()
        .map(|snapshot| capture::row_of(locked, snapshot, Some(session), run))
        .collect();
    let document = restored_document(&outcome);
    let done = Done {
        after: &outcome.result.id,
        paths: Some(document.restored.clone()),
        head: [head(&outcome.guard), head(&outcome.result)],
        is_idle: outcome.plan.is_empty() && document.restored.is_empty(),
        is_recovered: false,
    };
    changes.extend(record(parts, &begun, &document, done));
    capture::keep(parts, changes).map_err(|e| e.touched_if(true))?;
    Ok(outcome)
}

/// The objects that commands which take such changes back need.
fn ids_before(changes: &[RefChange]) -> Vec<&str> {
    let tips = changes.iter().filter_map(|change| change.before.as_deref());
    let tips = tips.filter(|said| !is_symbolic(said));
    let dropped = changes.iter().flat_map(|change| &change.dropped);
    tips.chain(dropped.map(|stash| &*stash.commit)).collect()
}

/// The refs that are not as they were before what a rollback or an undo with the repository took
/// back. After an undo, those that still are as that left them: what others did since is theirs.
/// HEAD and its branch are the restore's.
fn refs_left(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
    options: &RestoreOptions,
    purpose: RestorePurpose,
    result: &Snapshot,
) -> Result<Vec<RefChange>, Error> {
    let changed = |before, to| refs_changed(op, parts, workspace, before, to);
    match (purpose, &options.repository) {
        (RestorePurpose::Rollback, RepositoryRestore::Rollback { before, .. }) => {
            changed(before, result)
        }
        (RestorePurpose::Undo, RepositoryRestore::Undo { before, after, .. }) => {
            let mut left = changed(before, after)?;
            if !left.is_empty() {
                let now = changed(before, result)?;
                left.retain_mut(|change| is_left(change, &now));
            }
            Ok(left)
        }
        _ => Ok(Vec::new()),
    }
}

/// Whether what became of a ref is still so `now`. A stash that was dropped and is not listed again
/// is, whatever else was stashed since.
fn is_left(change: &mut RefChange, now: &[RefChange]) -> bool {
    let Some(now) = now.iter().find(|now| now.name == change.name) else {
        return false;
    };
    if change.dropped.is_empty() {
        return (&change.before, &change.after) == (&now.before, &now.after);
    }
    change.dropped.retain(|stash| now.dropped.contains(stash));
    !change.dropped.is_empty()
}

/// The refs but for HEAD that differ between two snapshots which kept them. No file is read for it.
fn refs_changed(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
    before: &Snapshot,
    to: &Snapshot,
) -> Result<Vec<RefChange>, Error> {
    let mut options = DiffOptions::default();
    options.max_compared_bytes = 0;
    let out = &mut io::sink();
    let diff = compare::compare(op, parts, workspace, before, to, &options, out)?;
    let others = diff.refs.into_iter().filter(|change| change.name != "HEAD");
    Ok(others.collect())
}

/// A way back from what a run, or a part of it, left.
pub(crate) struct WayBack {
    /// Where to.
    pub(crate) before: Snapshot,
    /// What was left.
    pub(crate) after: Snapshot,
    pub(crate) session_id: SessionId,
    pub(crate) hold: Hold,
    pub(crate) purpose: RestorePurpose,
}

/// Puts files, index and branch back: a rollback all of them, and a step what it changed itself.
/// Nobody can stop it. Blocks.
pub(crate) fn go_back(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    opened: &Opened,
    way: WayBack,
) -> Result<RestoreOutcome, Error> {
    let op = &Operation::unbounded();
    let guard =
        opened.snapshot_options(parts, Label::GUARD, &way.session_id, Some(&way.hold.run_id));
    let (before, after, run_id) = (way.before, way.after, way.hold.run_id.to_string());
    let to = before.id.clone();
    let (goal, repository) = match way.purpose {
        // It comes at once after what it undoes.
        RestorePurpose::Rollback => (
            RestoreGoal::Snapshot {
                snapshot: before.clone(),
                paths: Vec::new(),
            },
            RepositoryRestore::Rollback {
                before,
                after,
                run_id,
            },
        ),
        // Days may have passed, and others have worked here since.
        _ => (
            RestoreGoal::Undo {
                before: before.clone(),
                after: after.clone(),
                paths: None,
            },
            RepositoryRestore::Undo {
                before,
                after,
                run_id,
            },
        ),
    };
    let restoring = Restoring {
        session_id: way.session_id,
        hold: Some(way.hold),
        to,
        purpose: way.purpose,
        repository: true,
    };
    let guard = match way.purpose {
        RestorePurpose::Rollback => guard.keep_refs(true),
        _ => guard,
    };
    let options = RestoreOptions::new(guard).repository(repository);
    restore(op, parts, locked, backend, &goal, &options, &restoring)
}

/// Writes down what there is of a restore that failed.
fn not_finished(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    begun: &RestoreRow,
    error: &RestoreError,
) -> Result<(), Error> {
    let untold = match error {
        // It was carried out, and only its result could not be captured.
        RestoreError::Closing(_) => Untold::Tell,
        _ => Untold::Leave,
    };
    adoption::adopt(op, parts, locked, untold)?;
    if !error.touched() {
        let change = Change::EndRestore(begun.guard.clone());
        parts.writer.commit_blocking(vec![change])?;
    }
    Ok(())
}
