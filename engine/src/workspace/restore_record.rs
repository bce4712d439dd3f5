//! The record of a restore in the log, also for a restore whose engine died before it wrote the
//! record.

use std::collections::BTreeSet;
use std::io;

use stillframe_backends::{
    DiffOptions, Label, LockedWorkspace, Operation, Owner, Recovery, RelPath, SkipReason, Snapshot,
    SnapshotId, SnapshotOptions, Workspace,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::{HeadMoved, Restored, RolledBack};
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::OperationId;
use crate::records::operation::OperationRow;
use crate::records::restore_document::{
    RestoreDocument, RestorePurpose, RestoreRow, nothing_restored,
};
use crate::state::change::{Change, NewEvent};
use crate::state::snapshot_name;
use crate::workspace::{backends, capture, compare};

/// What an undo has to know of a restore that was carried out.
pub(crate) struct Done<'a> {
    /// The state that it led to.
    pub(crate) after: &'a SnapshotId,
    /// The paths that it changed; `None`: those where the guard and `after` differ.
    pub(crate) paths: Option<Vec<RelPath>>,
    /// What HEAD named before it, and after.
    pub(crate) head: [(Option<&'a str>, Option<&'a str>); 2],
    /// Whether there was nothing to do, or nothing that could be done.
    pub(crate) is_idle: bool,
    /// Whether recovery carried it on to its end, or found it there.
    pub(crate) is_recovered: bool,
}

/// How many paths an event names at most: it is a line, and the record has all.
pub(crate) const MAX_NAMED: usize = 20;

/// The first of the paths that stayed as somebody had changed them since.
pub(crate) fn edited_since(document: &RestoreDocument) -> Vec<&RelPath> {
    let skipped = document.skipped.iter();
    let edited = skipped.filter(|skipped| skipped.reason == SkipReason::EditedSince);
    edited
        .map(|skipped| &skipped.path)
        .take(MAX_NAMED)
        .collect()
}

/// The record of a restore that was carried out: the event, and how an undo takes it back.
pub(crate) fn record(
    parts: &Parts,
    begun: &RestoreRow,
    document: &RestoreDocument,
    done: Done<'_>,
) -> Vec<Change> {
    let (session, run) = (&begun.session_id, begun.run_id.as_ref());
    let [from, to] = done.head;
    // The branch, or the commit where HEAD named none.
    let is_switched = from.0 != to.0 || (from.0.is_none() && from.1 != to.1);
    let refs_left = document.refs_left.iter();
    let refs_left = refs_left.map(|left| left.change.name.as_str());
    let said = RolledBack {
        to: Some(&begun.target),
        guard: document.guard_snapshot.as_ref(),
        leftover_ignored: &document.leftover_ignored,
        restored: Some(Restored {
            operation: begun.purpose.as_str(),
            restored: document.restored.len(),
            skipped: document.skipped.len(),
        }),
        durations: document.durations,
        safety_tag: document.safety_tag.as_deref(),
        moved_tags: &document.moved_tags,
        refs_left: refs_left.take(MAX_NAMED).collect(),
        // Of the repository not everything went back.
        reason: document.error.as_ref().map(Failure::line),
        edited_since: edited_since(document),
        head: is_switched.then_some(HeadMoved {
            from: from.0.or(from.1),
            to: to.0.or(to.1),
        }),
        recovered: done.is_recovered,
    };
    let at = parts.now();
    let event_type = EventType::WORKSPACE_ROLLED_BACK;
    let event = NewEvent::new(event_type, session, run, at, said);
    let kept = match begun.purpose {
        // Until the run's own end is on record, it is this that says that what its steps did is
        // taken back.
        RestorePurpose::Rollback if !done.is_recovered => {
            Change::BeginRestore(Box::new(RestoreRow {
                outcome: Some(document.clone()),
                ..begun.clone()
            }))
        }
        _ => Change::EndRestore(begun.guard.clone()),
    };
    let mut changes = vec![Change::Append(event), kept];
    // What changed nothing is not what came last: an undo would find nothing in it, and never come
    // to what was before.
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
/// Somebody may have worked in the workspace before anybody looked again. So what the restore did
/// is described by its goal, and not by the present files: an undo keeps what differs from the
/// target.
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
        .read_blocking_with(|store| snapshot_name::known_snapshot(store, &begun.target, locked))?;
    let owner = Owner {
        session_id: session.to_string(),
        run_id: run.map(ToString::to_string),
    };
    let options = SnapshotOptions::new(Label::AFTER, parts.now())
        .owner(owner)
        .since(guard.id.clone())
        .retain_content(true);
    let backend = backends::backend_of(parts, guard.backend)?;
    let result = capture::take(&Operation::unbounded(), locked, &*backend, &options)?;

    let wanted = differing(parts, locked, guard, &target)?;
    let left = differing(parts, locked, &result, &target)?;
    let changed = differing(parts, locked, guard, &result)?;
    let is_head_moved = begun.repository && head(guard) != head(&result);
    // What an undo merges differs from its target, and is changed all the same. Whether somebody
    // else changed it since cannot be told: an undo that took back nothing is better than one that
    // nothing undoes.
    let merges = matches!(
        begun.purpose,
        RestorePurpose::Undo
            | RestorePurpose::Step
            | RestorePurpose::Resume
            | RestorePurpose::Merge
    );
    let may_have_merged = merges && !wanted.is_disjoint(&changed);
    let is_as_before = wanted.is_subset(&left) && !is_head_moved && !may_have_merged;
    if recovery.is_none() && is_as_before {
        // It ended before it changed anything: undoing it would change nothing.
        backend.forget(&Operation::unbounded(), locked, &[result.id], &[])?;
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
    let mut changes = vec![capture::row_of(locked, &result, Some(session), run)];
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
    let diff = compare::compare(
        &Operation::unbounded(),
        parts,
        workspace,
        from,
        to,
        &options,
        &mut io::sink(),
    )?;
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
pub(crate) fn head(snapshot: &Snapshot) -> (Option<&str>, Option<&str>) {
    let metadata = &snapshot.metadata;
    (metadata.branch.as_deref(), metadata.head_ref.as_deref())
}

/// Where the record of its run gets to know of a rollback that recovery has finished.
pub(crate) fn of_run(
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
        // Settling the run reads it from there.
        Some(_) => vec![Change::BeginRestore(Box::new(RestoreRow {
            outcome: Some(document),
            ..begun.clone()
        }))],
        None => Vec::new(),
    })
}
