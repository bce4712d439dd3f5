//! Writing rows for snapshots that a store has and the log lacks.

use std::collections::HashSet;

use stillframe_backends::{ErrorKind, Operation, SnapshotId, Workspace};
use stillframe_backends::{Label, LockedWorkspace, Owner, Snapshot, SnapshotOptions};

use crate::actors::Parts;
use crate::error::Error;
use crate::id::{OperationId, SessionId};
use crate::records::operation::{OperationKind, OperationRow};
use crate::state::change::Change;
use crate::state::forgotten::told_by_clean_ups;
use crate::state::new_session;
use crate::workspace::capture::{self, NOW};
use crate::workspace::{backends, holdings, restore_record};

/// The snapshots of a workspace that clean-ups have taken off the log, as far as what they told can
/// be read.
pub(crate) fn forgotten_by_clean_ups(
    parts: &Parts,
    workspace: &Workspace,
) -> Result<HashSet<SnapshotId>, Error> {
    let told = parts
        .reader
        .read_blocking(|store| told_by_clean_ups(store, "", Some(workspace)));
    match told {
        Ok(told) => Ok(told.into_keys().filter_map(|id| id.parse().ok()).collect()),
        // If it is not known, nothing is removed.
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(HashSet::new()),
        Err(e) => Err(e),
    }
}

/// What to do about a restore without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untold {
    /// It is over, so it is put on record.
    Tell,
    /// It is not over, or somebody else puts it on record.
    Leave,
}

/// Gives a row to every snapshot that the store has and the log does not know of, in the place that
/// the store says is its own: one that was taken meanwhile stays the newest. One that a clean-up
/// had taken off the log and not come to remove goes now.
pub(crate) fn adopt(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    untold: Untold,
) -> Result<(), Error> {
    let known = holdings::known(parts, locked)?;
    let is_found = |snapshot: &&Snapshot| !known.contains(&snapshot.id);
    let mut all = Vec::new();
    for backend in backends::backends(parts) {
        let held = backend.list(op, locked)?.snapshots;
        let forgotten = match held.iter().any(|snapshot| is_found(&snapshot)) {
            true => forgotten_by_clean_ups(parts, locked)?,
            false => HashSet::new(),
        };
        let has_served = |snapshot: &Snapshot| {
            // One that was only made to be compared with has.
            let is_due = snapshot.label.as_str() == NOW || forgotten.contains(&snapshot.id);
            is_due && is_found(&snapshot)
        };
        let (served, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(has_served);
        if !served.is_empty() {
            let ids: Vec<SnapshotId> = served.into_iter().map(|s| s.id).collect();
            backend.forget(op, locked, &ids, &[])?;
        }
        all = in_one_order(all, kept);
    }
    let found: Vec<&Snapshot> = all.iter().filter(is_found).collect();
    if found.is_empty() {
        return Ok(());
    }
    let adopted: Vec<SnapshotId> = found.iter().map(|snapshot| snapshot.id.clone()).collect();
    let mut rows: Vec<Change> = found
        .iter()
        .map(|snapshot| capture::row_of(locked, snapshot, None, None))
        .collect();
    let order = all.iter().map(|snapshot| snapshot.id.clone());
    rows.push(Change::OrderSnapshots(order.collect()));
    // A guard without a row is that of a restore whose engine died before it could tell. What it
    // did stands, so it can be undone like any other.
    let is_guard = |s: &&&Snapshot| s.label == Label::GUARD && s.path == locked.disk_path();
    let guard = found.iter().rfind(is_guard);
    if let (Untold::Tell, Some(guard)) = (untold, guard) {
        let begun = parts
            .reader
            .read_blocking(|store| store.restore(&guard.id))?;
        let later = all.iter().skip_while(|s| s.id != guard.id).skip(1);
        rows.extend(match (begun, &*later.collect::<Vec<_>>()) {
            (Some(begun), _) => restore_record::recovered(parts, locked, guard, &begun, None)?,
            (None, []) => best_effort(untold_restore(op, parts, locked, guard, None)),
            (None, [after]) if after.label == Label::AFTER => {
                best_effort(untold_restore(op, parts, locked, guard, Some(after)))
            }
            // Others came after it, so it is not what an undo would mean.
            (None, _) => Vec::new(),
        });
    }
    capture::keep(parts, rows)?;
    parts.adopted.add(locked.id(), adopted);
    Ok(())
}

/// If the log was lost, an incomplete record of a restore is better than none, and a log without
/// the record is better than no log.
pub(crate) fn best_effort(told: Result<Vec<Change>, Error>) -> Vec<Change> {
    told.unwrap_or_else(|e| {
        tracing::warn!(error = %e.chain(), "what the last restore did is not known");
        Vec::new()
    })
}

/// Two lists of snapshots as one, each in its own order, which is that in which they were
/// published: a clock may go backwards.
pub(crate) fn in_one_order(one: Vec<Snapshot>, other: Vec<Snapshot>) -> Vec<Snapshot> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let is_first = a.captured_at <= b.captured_at;
        merged.extend(if is_first { one.next() } else { other.next() });
    }
    merged.extend(one.chain(other));
    merged
}

/// As [`adopt`], if a part of the log was lost. Every operation on the workspace does this first,
/// so that what it adds is the newest.
pub(crate) fn adopt_unlisted(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
) -> Result<(), Error> {
    let adopted = match holdings::is_in_step(op, parts, locked) {
        Ok(true) => Ok(()),
        Ok(false) => adopt(op, parts, locked, Untold::Tell),
        Err(e) => Err(e),
    };
    match adopted {
        // Work here reports that too, or does not need it.
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NoSpace) => {
            tracing::warn!(error = %e.chain(), "snapshots that the log lacks are not in it yet");
            Ok(())
        }
        adopted => adopted,
    }
}

/// The operation that `guard` was taken for, with `after` for its outcome: what it was compared
/// with when it had ended, or else the workspace as it is.
pub(crate) fn untold_restore(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    guard: &Snapshot,
    after: Option<&Snapshot>,
) -> Result<Vec<Change>, Error> {
    // An incomplete record would be mistaken for a complete one.
    let op = &op.to_its_end();
    let session_id = SessionId::of_workspace(locked.id());
    let owner = Owner {
        session_id: session_id.to_string(),
        run_id: None,
    };
    let options = SnapshotOptions::new(Label::AFTER, parts.now())
        .owner(owner)
        .since(guard.id.clone())
        .retain_content(true);
    let backend = backends::backend_of(parts, guard.backend)?;
    let taken = match after {
        Some(_) => None,
        None => Some(capture::take(op, locked, &*backend, &options)?),
    };
    let after = after.or(taken.as_ref()).expect("one of them is there");
    if after.same_content(guard) {
        // It ended before it changed anything: undoing it would change nothing.
        if let Some(taken) = taken {
            backend.forget(op, locked, &[taken.id], &[])?;
        }
        return Ok(Vec::new());
    }
    let mut changes = of_new_session(parts, &session_id)?;
    changes.push(capture::row_of(locked, after, Some(&session_id), None));
    changes.push(Change::AddOperation(Box::new(OperationRow {
        id: OperationId::random(),
        workspace_id: locked.id().to_owned(),
        session_id,
        run_id: None,
        kind: OperationKind::Restore,
        before: guard.id.clone(),
        after: after.id.clone(),
        paths: None,
        repository: false,
        at: parts.now(),
    })));
    Ok(changes)
}

/// What makes the session, if there is none yet.
pub(crate) fn of_new_session(parts: &Parts, session_id: &SessionId) -> Result<Vec<Change>, Error> {
    let asked = session_id.clone();
    let known = parts
        .reader
        .read_blocking(move |store| store.session(&asked))?;
    Ok(match known {
        Some(_) => Vec::new(),
        None => new_session::creation(session_id, parts.now()),
    })
}
