//! Restores: a rollback, a restore by hand or an undo, from its beginning to its record.

use std::collections::BTreeSet;

use serde_json::json;
use stillframe_backends::ref_commands::is_symbolic;
use stillframe_backends::{
    Backend, DiffOptions, Interrupt, Label, LockedWorkspace, Owner, Recovery, RefChange, RelPath,
    RepositoryRestore, RestoreError, RestoreGoal, RestoreOptions, RestoreOutcome, SkipReason,
    Snapshot, SnapshotId, SnapshotOptions, Workspace,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::{OperationId, SessionId};
use crate::records::operation::OperationRow;
use crate::records::restore_document::{
    RestoreDocument, RestorePurpose, RestoreRow, nothing_restored, restored_document,
};
use crate::state::change::{Change, NewEvent};
use crate::state::hold::Hold;
use crate::upkeep::recovery::{self, Untold};
use crate::workspace::safety;
use crate::workspace::workspaces::{self, Opened};

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
    // Whoever takes the run over settles it in this workspace, which is held from here on.
    let fence = restoring.hold.as_ref().map(Hold::fence);
    let changes = fence.into_iter().chain([change]).collect();
    parts.writer.commit_blocking(changes)?;
    let mut outcome = match backend.restore(locked, goal, options) {
        Ok(outcome) => outcome,
        Err(e) => {
            // The guard may be in the store. The error of the restore is the one to tell.
            if not_finished(parts, locked, &begun, &e).is_err() {
                parts.lock.leave_work();
            }
            return Err(e.into());
        }
    };
    if restoring.repository {
        // Beside the restore, which is done: the next one, or a clean-up, moves what is still there.
        let tags = safety::move_tags(parts, locked, backend).unwrap_or_default();
        outcome.moved_tags = tags.moved;
    }
    // Beside the restore too. The run's own comparison names them all.
    let left = refs_left(parts, locked, options, restoring.purpose, &outcome.result);
    outcome.refs_left = left.unwrap_or_default();
    if !outcome.refs_left.is_empty() {
        outcome.objects_gone = backend.objects_gone(locked, &ids_before(&outcome.refs_left));
        outcome.taken_elsewhere = backend.taken_elsewhere(locked);
    }
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let mut changes: Vec<Change> = [&outcome.guard, &outcome.result]
        .into_iter()
        .map(|snapshot| workspaces::row_of(locked, snapshot, Some(session), run))
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
    workspaces::keep(parts, changes).map_err(|e| e.touched_if(true))?;
    Ok(outcome)
}

/// The objects that commands which take such changes back need.
fn ids_before(changes: &[RefChange]) -> Vec<&str> {
    let tips = changes.iter().filter_map(|change| change.before.as_deref());
    let tips = tips.filter(|said| !is_symbolic(said));
    let dropped = changes.iter().flat_map(|change| &change.dropped);
    tips.chain(dropped.map(|stash| &*stash.commit)).collect()
}

/// The refs that are not as they were before what a rollback or an undo with the repository took back. After an undo,
/// those that still are as that left them: what others did since is theirs. HEAD and its branch are the restore's.
fn refs_left(
    parts: &Parts,
    workspace: &Workspace,
    options: &RestoreOptions,
    purpose: RestorePurpose,
    result: &Snapshot,
) -> Result<Vec<RefChange>, Error> {
    let changed = |before, to| refs_changed(parts, workspace, before, to);
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

/// Whether what became of a ref is still so `now`. A stash that was dropped and is not listed again is, whatever else was
/// stashed since.
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
    parts: &Parts,
    workspace: &Workspace,
    before: &Snapshot,
    to: &Snapshot,
) -> Result<Vec<RefChange>, Error> {
    let mut options = DiffOptions::default();
    options.max_compared_bytes = 0;
    let (diff, _) = workspaces::compare(parts, workspace, before, to, &options)?;
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

/// Puts files, index and branch back: a rollback all of them, and a step what it changed itself. Nobody can stop it.
/// Blocks.
pub(crate) fn go_back(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    opened: &Opened,
    way: WayBack,
) -> Result<RestoreOutcome, Error> {
    let guard = opened.snapshot_options(
        parts,
        Label::GUARD,
        &way.session_id,
        Some(&way.hold.run_id),
        Interrupt::never(),
    );
    let (before, after, run_id) = (way.before, way.after, way.hold.run_id.to_string());
    let to = before.id.clone();
    let (goal, repository) = match way.purpose {
        // It comes at once after what it takes back.
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
    restore(parts, locked, backend, &goal, &options, &restoring)
}

/// Writes down what there is of a restore that failed.
fn not_finished(
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
    recovery::adopt(parts, locked, untold)?;
    if !error.touched() {
        let change = Change::EndRestore(begun.guard.clone());
        parts.writer.commit_blocking(vec![change])?;
    }
    Ok(())
}

/// What an undo has to know of a restore that was carried out.
struct Done<'a> {
    /// The state that it led to.
    after: &'a SnapshotId,
    /// The paths that it changed; `None`: those where the guard and `after` differ.
    paths: Option<Vec<RelPath>>,
    /// What HEAD named before it, and after.
    head: [(Option<&'a str>, Option<&'a str>); 2],
    /// Whether there was nothing to do, or nothing that could be done.
    is_idle: bool,
    /// Whether recovery carried it on to its end, or found it there.
    is_recovered: bool,
}

/// How many paths an event names at most: it is a line, and the record has all.
const MAX_NAMED: usize = 20;

/// The first of the paths that stayed as somebody had changed them since.
fn edited_since(document: &RestoreDocument) -> Vec<&RelPath> {
    let skipped = document.skipped.iter();
    let edited = skipped.filter(|skipped| skipped.reason == SkipReason::EditedSince);
    edited
        .map(|skipped| &skipped.path)
        .take(MAX_NAMED)
        .collect()
}

/// The record of a restore that was carried out: the event, and how an undo takes it back.
fn record(
    parts: &Parts,
    begun: &RestoreRow,
    document: &RestoreDocument,
    done: Done<'_>,
) -> Vec<Change> {
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let mut data = json!({
        "to": begun.target,
        "guard": document.guard_snapshot,
        "leftover_ignored": document.leftover_ignored,
        "operation": begun.purpose.as_str(),
        "restored": document.restored.len(),
        "skipped": document.skipped.len(),
    });
    if let Some(durations) = document.durations {
        data["durations"] = json!(durations);
    }
    if let Some(tag) = &document.safety_tag {
        data["safety_tag"] = json!(tag);
    }
    if !document.moved_tags.is_empty() {
        data["moved_tags"] = json!(document.moved_tags);
    }
    if !document.refs_left.is_empty() {
        let names = document.refs_left.iter().map(|left| &left.change.name);
        data["refs_left"] = json!(names.take(MAX_NAMED).collect::<Vec<_>>());
    }
    if let Some(problem) = &document.error {
        // Of the repository not everything went back.
        data["reason"] = problem.event_data()["message"].take();
    }
    let edited = edited_since(document);
    if !edited.is_empty() {
        data["edited_since"] = json!(edited);
    }
    let [from, to] = done.head;
    // The branch, or the commit where HEAD named none.
    let is_switched = from.0 != to.0 || (from.0.is_none() && from.1 != to.1);
    if is_switched {
        let name = |(branch, commit): (Option<&str>, Option<&str>)| json!(branch.or(commit));
        data["head"] = json!({ "from": name(from), "to": name(to) });
    }
    if done.is_recovered {
        data["recovered"] = json!(true);
    }
    let at = parts.now();
    let event_type = EventType::WORKSPACE_ROLLED_BACK;
    let event = NewEvent::new(event_type, session, run, at, data);
    let kept = match begun.purpose {
        // Until the run's own end is on record, it is this that says that what its steps did is taken back.
        RestorePurpose::Rollback if !done.is_recovered => {
            Change::BeginRestore(Box::new(RestoreRow {
                outcome: Some(document.clone()),
                ..begun.clone()
            }))
        }
        _ => Change::EndRestore(begun.guard.clone()),
    };
    let mut changes = vec![Change::Append(event), kept];
    // What changed nothing is not what came last: an undo would find nothing in it, and never come to what was before.
    if let (Some(kind), Some(guard), false) = (
        begun.purpose.operation(),
        &document.guard_snapshot,
        done.is_idle,
    ) {
        changes.push(Change::AddOperation(Box::new(OperationRow {
            id: OperationId::random(),
            workspace_id: begun.workspace_id.clone(),
            session_id: session.clone(),
            run_id: None,
            kind,
            before: guard.clone(),
            after: done.after.clone(),
            paths: done.paths,
            repository: begun.repository,
            at,
        })));
    }
    changes
}

/// The record of a restore whose engine died, or failed, before it could tell. `recovery`: what was
/// found when it was carried on to its end; `None`: it had come to its end, or had changed nothing.
/// Blocks.
///
/// Somebody may have worked in the workspace before anybody looked again. So what the restore did is
/// told by what it aimed at, and not by what is there: an undo keeps what differs from the target.
pub(crate) fn recovered(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    guard: &Snapshot,
    begun: &RestoreRow,
    recovery: Option<&Recovery>,
) -> Result<Vec<Change>, Error> {
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let target = parts
        .reader
        .read_blocking_with(|store| workspaces::known_snapshot(store, &begun.target, locked))?;
    let owner = Owner {
        session_id: session.to_string(),
        run_id: run.map(ToString::to_string),
    };
    let options = SnapshotOptions::new(Label::AFTER, parts.now())
        .owner(owner)
        .since(guard.id.clone())
        .retain_content(true);
    let backend = workspaces::backend_of(parts, guard.backend)?;
    let result = backend.snapshot(locked, &options)?;

    let wanted = differing(parts, locked, guard, &target)?;
    let left = differing(parts, locked, &result, &target)?;
    let changed = differing(parts, locked, guard, &result)?;
    let is_head_moved = begun.repository && head(guard) != head(&result);
    // What an undo merges differs from its target, and is changed all the same. Whether somebody else changed it
    // since cannot be told: an undo that took back nothing is better than one that nothing takes back.
    let merges = matches!(begun.purpose, RestorePurpose::Undo | RestorePurpose::Step);
    let may_have_merged = merges && !wanted.is_disjoint(&changed);
    let is_as_before = wanted.is_subset(&left) && !is_head_moved && !may_have_merged;
    if recovery.is_none() && is_as_before {
        // It ended before it changed anything: to take it back would be to take back nothing.
        backend.forget(locked, &[result.id])?;
        return Ok(vec![Change::EndRestore(begun.guard.clone())]);
    }
    let skipped = recovery.map_or(Vec::new(), |r| r.skipped.clone());
    let document = RestoreDocument {
        guard_snapshot: Some(guard.id.clone()),
        safety_tag: recovery.and_then(|r| r.safety_tags.first().cloned()),
        restored: wanted
            .intersection(&changed)
            .filter(|path| skipped.iter().all(|s| s.path != **path))
            .cloned()
            .collect(),
        error: recovery
            .and_then(|r| r.repository_errors.first())
            .map(|problem| Failure::new(problem.kind.as_str(), &problem.message)),
        skipped,
        ..nothing_restored()
    };
    let done = Done {
        after: &target.id,
        paths: None,
        // What is there by now may be somebody's own; only what it led to is its doing.
        head: match begun.repository && head(&result) == head(&target) {
            true => [head(guard), head(&target)],
            false => [head(guard); 2],
        },
        is_idle: false,
        is_recovered: true,
    };
    let mut changes = vec![workspaces::row_of(locked, &result, Some(session), run)];
    changes.extend(record(parts, begun, &document, done));
    changes.extend(of_run(parts, begun, document)?);
    Ok(changes)
}

/// The paths at which two snapshots differ in any way.
pub(crate) fn differing(
    parts: &Parts,
    workspace: &Workspace,
    from: &Snapshot,
    to: &Snapshot,
) -> Result<BTreeSet<RelPath>, Error> {
    let mut options = DiffOptions::default();
    options.capture_patch = false;
    let (diff, _) = workspaces::compare(parts, workspace, from, to, &options)?;
    let modes = diff.permissions_changed.into_iter().map(|mode| mode.path);
    let directories = diff.directories_added.into_iter();
    Ok(diff
        .changed_paths
        .into_iter()
        .chain(modes)
        .chain(directories)
        .chain(diff.directories_deleted)
        .collect())
}

/// What HEAD names in a snapshot.
fn head(snapshot: &Snapshot) -> (Option<&str>, Option<&str>) {
    let metadata = &snapshot.metadata;
    (metadata.branch.as_deref(), metadata.head_ref.as_deref())
}

/// Where the record of its run gets to know of a rollback that recovery has finished.
fn of_run(
    parts: &Parts,
    begun: &RestoreRow,
    document: RestoreDocument,
) -> Result<Vec<Change>, Error> {
    let (RestorePurpose::Rollback, Some(run_id)) = (begun.purpose, begun.run_id.clone()) else {
        return Ok(Vec::new());
    };
    let run = parts.reader.read_blocking(|store| store.run(&run_id))?;
    Ok(match run {
        Some(run) if run.status.is_terminal() => vec![Change::SetRollback {
            run_id,
            rollback: Box::new(document),
        }],
        // Whoever settles the run takes it from there.
        Some(_) => vec![Change::BeginRestore(Box::new(RestoreRow {
            outcome: Some(document),
            ..begun.clone()
        }))],
        None => Vec::new(),
    })
}
