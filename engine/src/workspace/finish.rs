//! Finishing what a crash interrupted in a workspace.

use stillframe_backends::{ErrorKind, LockedWorkspace, Operation, Recovery, SnapshotId};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::RolledBack;
use crate::events::event::EventType;
use crate::id::SessionId;
use crate::records::restore_document::RestoreRow;
use crate::state::change::{Change, NewEvent};
use crate::workspace::adoption::{Untold, adopt, of_new_session};
use crate::workspace::{backends, capture, effects, restore_record};

/// Whether what could not be done in a workspace may be another time. One that was removed, or
/// is none any more, has nothing that could be finished.
pub(crate) fn is_for_later(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Busy
            | ErrorKind::Timeout
            | ErrorKind::NoSpace
            | ErrorKind::Storage
            | ErrorKind::Unavailable
    )
}

/// Finishes the restores that a crash interrupted in this workspace, and settles the effects. Most
/// often there are none.
pub(crate) fn finish(parts: &Parts, locked: &mut LockedWorkspace) -> Result<(), Error> {
    let mut is_discarded = false;
    for backend in backends::backends(parts) {
        let recovery = backend.recover(&Operation::unbounded(), locked)?;
        for guard in &recovery.rolled_forward {
            finished(parts, locked, guard, &recovery)?;
        }
        is_discarded |= recovery.discarded > 0;
    }
    if let Err(e) = tell_untold(parts, locked, is_discarded) {
        // It does not stop work here; the next engine tries again.
        tracing::warn!(error = %e.chain(), "a restore is not on record");
        parts.lock.leave_work();
    }
    effects::settle(parts, locked)
}

/// Puts on record a restore that is over, and of which nobody could tell: what was carried on to
/// its end before may have ended before it was told.
///
/// A restore holds the lock of the workspace until its record is written. So a restore that is
/// under way according to the log has ended.
pub(crate) fn tell_untold(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    is_discarded: bool,
) -> Result<(), Error> {
    let workspace_id = locked.id().to_owned();
    let begun = parts
        .reader
        .read_blocking(move |store| store.restore_under_way(&workspace_id))?;
    let Some(begun) = begun else {
        return Ok(());
    };
    if locked.is_gone() || is_elsewhere(parts, locked, &begun)? {
        // Its journal waits for a directory that comes back.
        return Ok(());
    }
    adopt(&Operation::unbounded(), parts, locked, Untold::Leave)?;
    let guard = parts
        .reader
        .read_blocking(|store| store.snapshot(&begun.guard))?;
    let changes = match guard {
        Some(row) if !is_discarded => {
            restore_record::recovered(parts, locked, &row.snapshot, &begun, None)?
        }
        // Nothing was changed.
        _ => vec![Change::EndRestore(begun.guard.clone())],
    };
    capture::keep(parts, changes)
}

/// Whether a restore is in another directory with this store: in a run's own worktree, or in the
/// workspace that the run came from.
fn is_elsewhere(
    parts: &Parts,
    locked: &LockedWorkspace,
    begun: &RestoreRow,
) -> Result<bool, Error> {
    let isolation = match &begun.run_id {
        Some(run_id) => parts
            .reader
            .read_blocking(|store| store.isolation(run_id))?,
        None => None,
    };
    let here = locked.disk_path();
    Ok(match isolation {
        Some(row) => row.worktree_path != here,
        // Nobody but their runs has restores in worktrees of runs.
        None => here.starts_with(parts.state_dir.path()),
    })
}

/// Puts a restore that was carried on to its end on record.
pub(crate) fn finished(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    guard: &SnapshotId,
    recovery: &Recovery,
) -> Result<(), Error> {
    let find = |guard: &SnapshotId| {
        parts
            .reader
            .read_blocking(|store| Ok((store.restore(guard)?, store.snapshot(guard)?)))
    };
    let (begun, _) = find(guard)?;
    let untold = match &begun {
        Some(_) => Untold::Leave,
        None => Untold::Tell,
    };
    adopt(&Operation::unbounded(), parts, locked, untold)?;
    if let (Some(begun), Some(row)) = (begun, find(guard)?.1) {
        let changes =
            restore_record::recovered(parts, locked, &row.snapshot, &begun, Some(recovery))?;
        return capture::keep(parts, changes);
    }
    // The log that knew what it was about was lost.
    let session_id = SessionId::of_workspace(locked.id());
    let mut changes = of_new_session(parts, &session_id)?;
    let said = RolledBack {
        guard: Some(guard),
        recovered: true,
        ..RolledBack::default()
    };
    let event_type = EventType::WORKSPACE_ROLLED_BACK;
    let event = NewEvent::new(event_type, &session_id, None, parts.now(), said);
    changes.push(Change::Append(event));
    capture::keep(parts, changes)
}
