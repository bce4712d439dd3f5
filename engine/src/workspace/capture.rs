//! A capture, and its row and event in the log.

use std::time::Instant;

use stillframe_backends::{
    Backend, LockedWorkspace, Operation, Snapshot, SnapshotError, SnapshotOptions, Workspace,
};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::SnapshotTaken;
use crate::events::event::EventType;
use crate::id::{RunId, SessionId};
use crate::records::outcome::TakenSnapshot;
use crate::records::snapshot::SnapshotRow;
use crate::state::change::{Change, NewEvent};
use crate::state::snapshot_name::{self, SnapshotName};
use crate::telemetry;

/// The label of a capture that is only made to be compared with, and forgotten at once.
pub(crate) const NOW: &str = "now";

/// Whose a snapshot is in the log.
pub(crate) struct Whose<'a> {
    pub(crate) session_id: &'a SessionId,
    pub(crate) run_id: Option<&'a RunId>,
    /// What has to hold for its row and its event to be written.
    pub(crate) fence: Option<Change>,
}

/// Takes a snapshot that is in the store then, and in no log.
pub(crate) fn take(
    op: &Operation,
    locked: &LockedWorkspace,
    backend: &dyn Backend,
    options: &SnapshotOptions,
) -> Result<Snapshot, SnapshotError> {
    let span = telemetry::capture_span(locked.id(), options);
    let began = Instant::now();
    let snapshot = span.in_scope(|| backend.snapshot(op, locked, options))?;
    telemetry::captured(&span, &snapshot, began.elapsed());
    Ok(snapshot)
}

/// Takes a snapshot, and returns once it, its row and its event are durable.
pub(crate) fn capture(
    op: &Operation,
    parts: &Parts,
    locked: &LockedWorkspace,
    backend: &dyn Backend,
    options: &SnapshotOptions,
    whose: Whose<'_>,
) -> Result<Snapshot, Error> {
    let Whose {
        session_id,
        run_id,
        fence,
    } = whose;
    let snapshot = take(op, locked, backend, options)?;
    let log = log_of(parts, locked, &snapshot, session_id, run_id);
    keep(parts, fence.into_iter().chain(log).collect())?;
    Ok(snapshot)
}

/// Takes a snapshot as [`capture`] does, unless nothing differs from the newest that is no guard:
/// then that one is the answer, and the other is not kept.
pub(crate) fn capture_if_changed(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    options: &SnapshotOptions,
    session_id: &SessionId,
) -> Result<TakenSnapshot, Error> {
    let snapshot = take(op, locked, backend, options)?;
    let latest = SnapshotName::Latest(0);
    let latest = parts
        .reader
        .read_blocking_with(|store| snapshot_name::find(store, latest, Some(locked)));
    let latest = latest.ok().map(|row| row.snapshot);
    if let Some(latest) = latest
        && adds_nothing(op, parts, locked, backend, (&latest, &snapshot))
    {
        return Ok(TakenSnapshot {
            snapshot: latest,
            unchanged: true,
        });
    }
    let log = log_of(parts, locked, &snapshot, session_id, None);
    keep(parts, log.into())?;
    Ok(TakenSnapshot {
        snapshot,
        unchanged: false,
    })
}

/// Whether `new`, which is in no log, differs in nothing from one that was there before; then it is
/// not kept. Where that cannot be found out, it is.
pub(crate) fn adds_nothing(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    (earlier, new): (&Snapshot, &Snapshot),
) -> bool {
    // It is there: what is made of it is done to its end.
    let op = &op.to_its_end();
    let is_unchanged = || backend.open(op, locked, earlier)?.is_unchanged(op, new);
    if earlier.backend != new.backend || !is_unchanged().unwrap_or(false) {
        return false;
    }
    let_go_of(op, parts, locked, backend, new);
    true
}

/// Lets go of what was captured for nothing, and is in no log.
pub(crate) fn let_go_of(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    captured: &Snapshot,
) {
    let ids = std::slice::from_ref(&captured.id);
    if backend.forget(op, locked, ids, &[]).is_err() {
        parts.lock.leave_work();
    }
}

/// The row and the event of a snapshot.
pub(crate) fn log_of(
    parts: &Parts,
    workspace: &Workspace,
    snapshot: &Snapshot,
    session_id: &SessionId,
    run_id: Option<&RunId>,
) -> [Change; 2] {
    let event = Change::Append(taken(parts, snapshot, session_id, run_id));
    let row = row_of(workspace, snapshot, Some(session_id), run_id);
    [row, event]
}

/// Writes what the store already has; where that fails the next engine has to look.
pub(crate) fn keep(parts: &Parts, changes: Vec<Change>) -> Result<(), Error> {
    match parts.writer.commit_blocking(changes) {
        Ok(_) => Ok(()),
        Err(e) => {
            parts.lock.leave_work();
            Err(e)
        }
    }
}

/// The row of a snapshot.
pub(crate) fn row_of(
    workspace: &Workspace,
    snapshot: &Snapshot,
    session_id: Option<&SessionId>,
    run_id: Option<&RunId>,
) -> Change {
    Change::AddSnapshot(Box::new(SnapshotRow {
        workspace_id: workspace.id().to_owned(),
        session_id: session_id.cloned(),
        run_id: run_id.cloned(),
        snapshot: snapshot.clone(),
    }))
}

pub(crate) fn taken(
    parts: &Parts,
    snapshot: &Snapshot,
    session_id: &SessionId,
    run_id: Option<&RunId>,
) -> NewEvent {
    let metadata = &snapshot.metadata;
    let said = SnapshotTaken {
        label: &snapshot.label,
        backend: snapshot.backend,
        reference: &snapshot.reference,
        snapshot_id: &snapshot.id,
        files: metadata.files,
        files_hashed: metadata.files_hashed,
        bytes_read: metadata.bytes_read,
        duration_ms: metadata.duration_ms,
        omissions: snapshot.omissions().len(),
        search: Some(metadata.search).filter(|search| !search.is_plain_walk()),
    };
    let event_type = EventType::WORKSPACE_SNAPSHOT_TAKEN;
    NewEvent::new(event_type, session_id, run_id, parts.now(), said)
}
