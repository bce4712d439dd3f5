//! What an engine does about what a dead one left, before it takes work of its own.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;
use stillframe_backends::{
    Backend, ErrorKind, Interrupt, Label, LockedWorkspace, Owner, Recovery, Snapshot, SnapshotId,
    SnapshotOptions, Workspace,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::event::{Event, EventQuery, EventType};
use crate::failure::Failure;
use crate::id::{EventId, OperationId, SessionId};
use crate::options::WorkspaceOptions;
use crate::process::survivors;
use crate::records::lease::{Lease, Moment};
use crate::records::operation::{OperationKind, OperationRow};
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::recovery::{LeftWorkspace, RecoveryReport};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::{RunEnding, RunRow};
use crate::records::step::Closed;
use crate::run::closing::{self, Closing};
use crate::run::{answering, resume};
use crate::state::change::{Change, NewEvent};
use crate::state::{liveness, new_session};
use crate::step::step_log;
use crate::workspace::workspaces::{self, NOW, Opened};
use crate::workspace::{effects, holdings, restore};

/// Why a run that a dead engine left is failed.
const STRANDED: &str = "stranded_in_progress";

/// Looks after everything that dead engines left. What cannot be looked after, because its
/// directory is gone or in use, is left as it is.
pub(crate) async fn recover(core: &Core) -> Result<RecoveryReport, Error> {
    let parts = core.parts.clone();
    let mut report = RecoveryReport::default();
    if !parts.state_dir.is_writable() {
        // It is for whoever may write.
        return Ok(report);
    }
    let before = parts.reader.read(|store| store.last_position()).await?;
    let directory = parts.state_dir.path().to_owned();
    let dead = parts
        .blocking
        .run(move || liveness::dead_engines(&directory))
        .await??;
    for engine in dead {
        let mut is_done = true;
        for path in &engine.workspaces {
            let mut looked = adopt_at(core, path.clone()).await;
            let is_full = matches!(&looked, Err(e) if e.kind() == ErrorKind::NoSpace);
            if is_full && parts.reserve.lend() {
                looked = adopt_at(core, path.clone()).await;
            }
            if let Err(e) = looked {
                tracing::warn!(path = %path.display(), error = %e.chain(), "not recovered");
                report.left.push(LeftWorkspace {
                    path: stillframe_backends::printable(path),
                    reason: Failure::from(&e),
                });
                is_done &= !is_for_later(e.kind());
            }
        }
        // One that is not buried is looked at by the next engine that starts.
        if is_done {
            parts.blocking.run(move || engine.bury()).await??;
        }
    }
    settle_runs(core, &mut report).await?;
    let later = parts
        .reader
        .read(move |store| store.events(&EventQuery::all(), before))
        .await?;
    let is_of_recovery = |event: &Event| event.data["recovered"] == true;
    let events = later.into_iter().map(|(_, event)| event);
    report.done.extend(events.filter(is_of_recovery));
    Ok(report)
}

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

async fn adopt_at(core: &Core, path: std::path::PathBuf) -> Result<(), Error> {
    let parts = core.parts.clone();
    let opened = core
        .parts
        .blocking
        .run(move || Opened::open(&parts, WorkspaceOptions::at(path)))
        .await??;
    let parts = core.parts.clone();
    let patience = core.parts.settings.lock_patience;
    workspaces::work(
        core,
        &opened.workspace,
        "recovery",
        patience,
        move |locked| adopt(&parts, locked, Untold::Tell),
    )
    .await
}

/// What to do about a restore that was not told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untold {
    /// It is over, so it is put on record.
    Tell,
    /// It is not over, or somebody else puts it on record.
    Leave,
}

/// Gives a row to every snapshot that the store has and the log does not know of, in the place that the
/// store says is its own: one that was taken meanwhile stays the newest. One that a clean-up had taken off the
/// log and not come to remove goes now.
pub(crate) fn adopt(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    untold: Untold,
) -> Result<(), Error> {
    let known = holdings::known(parts, locked)?;
    let is_found = |snapshot: &&Snapshot| !known.contains(&snapshot.id);
    let mut all = Vec::new();
    for backend in workspaces::backends(parts) {
        let held = backend.list(locked)?;
        let forgotten = match held.iter().any(|snapshot| is_found(&snapshot)) {
            true => workspaces::forgotten_by_clean_ups(parts, locked)?,
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
            backend.forget(locked, &ids)?;
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
        .map(|snapshot| workspaces::row_of(locked, snapshot, None, None))
        .collect();
    let order = all.iter().map(|snapshot| snapshot.id.clone());
    rows.push(Change::OrderSnapshots(order.collect()));
    // A guard without a row is that of a restore whose engine died before it could tell. What it did
    // stands, so it can be undone like any other.
    let guard = found.iter().rfind(|s| s.label == Label::GUARD);
    if let (Untold::Tell, Some(guard)) = (untold, guard) {
        let begun = parts
            .reader
            .read_blocking(|store| store.restore(&guard.id))?;
        let later = all.iter().skip_while(|s| s.id != guard.id).skip(1);
        rows.extend(match (begun, &*later.collect::<Vec<_>>()) {
            (Some(begun), _) => restore::recovered(parts, locked, guard, &begun, None)?,
            (None, []) => best_effort(untold_restore(parts, locked, guard, None)),
            (None, [after]) if after.label == Label::AFTER => {
                best_effort(untold_restore(parts, locked, guard, Some(after)))
            }
            // Others came after it, so it is not what an undo would mean.
            (None, _) => Vec::new(),
        });
    }
    workspaces::keep(parts, rows)?;
    parts.adopted.add(locked.id(), adopted);
    Ok(())
}

/// What a lost log can be told of a restore is better than nothing, and nothing better than no log.
fn best_effort(told: Result<Vec<Change>, Error>) -> Vec<Change> {
    told.unwrap_or_else(|e| {
        tracing::warn!(error = %e.chain(), "what the last restore did is not known");
        Vec::new()
    })
}

/// Two lists of snapshots as one, each in its own order, which is that in which they were published:
/// a clock may go backwards.
fn in_one_order(one: Vec<Snapshot>, other: Vec<Snapshot>) -> Vec<Snapshot> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let is_first = a.captured_at <= b.captured_at;
        merged.extend(if is_first { one.next() } else { other.next() });
    }
    merged.extend(one.chain(other));
    merged
}

/// As [`adopt`] where log and store are out of step: some of the log was lost. Whoever does anything with the
/// workspace begins with that, so that what comes next is the newest.
pub(crate) fn adopt_unlisted(parts: &Parts, locked: &mut LockedWorkspace) -> Result<(), Error> {
    let adopted = match holdings::is_in_step(parts, locked) {
        Ok(true) => Ok(()),
        Ok(false) => adopt(parts, locked, Untold::Tell),
        Err(e) => Err(e),
    };
    match adopted {
        // Whoever is to work here meets that too, or has no need of it.
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NoSpace) => {
            tracing::warn!(error = %e.chain(), "snapshots that the log lacks are not in it yet");
            Ok(())
        }
        adopted => adopted,
    }
}

/// The operation that `guard` was taken for, with `after` for its outcome: what it was compared with
/// when it had ended, or else the workspace as it is.
fn untold_restore(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    guard: &Snapshot,
    after: Option<&Snapshot>,
) -> Result<Vec<Change>, Error> {
    let session_id = SessionId::of_workspace(locked.id());
    let owner = Owner {
        session_id: session_id.to_string(),
        run_id: None,
    };
    let options = SnapshotOptions::new(Label::AFTER, parts.now())
        .owner(owner)
        .since(guard.id.clone())
        .retain_content(true);
    let backend = workspaces::backend_of(parts, guard.backend)?;
    let taken = match after {
        Some(_) => None,
        None => Some(backend.snapshot(locked, &options)?),
    };
    let after = after.or(taken.as_ref()).expect("one of them is there");
    if after.same_content(guard) {
        // It ended before it changed anything: to take it back would be to take back nothing.
        if let Some(taken) = taken {
            backend.forget(locked, &[taken.id])?;
        }
        return Ok(Vec::new());
    }
    let mut changes = of_new_session(parts, &session_id)?;
    changes.push(workspaces::row_of(locked, after, Some(&session_id), None));
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

/// Finishes the restores that a crash interrupted in this workspace, and settles the effects. Most often there are
/// none.
pub(crate) fn finish(parts: &Parts, locked: &mut LockedWorkspace) -> Result<(), Error> {
    let mut is_discarded = false;
    for backend in workspaces::backends(parts) {
        let recovery = backend.recover(locked)?;
        for guard in &recovery.rolled_forward {
            finished(parts, locked, guard, &recovery)?;
        }
        is_discarded |= recovery.discarded > 0;
    }
    if let Err(e) = tell_untold(parts, locked, is_discarded) {
        // It keeps nobody from working here; the next engine looks again.
        tracing::warn!(error = %e.chain(), "a restore is not on record");
        parts.lock.leave_work();
    }
    effects::settle(parts, locked)
}

/// Puts on record a restore that is over, and of which nobody could tell: what was carried on to its
/// end before may have ended before it was told.
///
/// Whoever restores holds the workspace until the record is written, so what is under way here by
/// the record has ended.
fn tell_untold(
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
    if locked.is_gone() {
        // Its journal waits for a directory that comes back.
        return Ok(());
    }
    adopt(parts, locked, Untold::Leave)?;
    let guard = parts
        .reader
        .read_blocking(|store| store.snapshot(&begun.guard))?;
    let changes = match guard {
        Some(row) if !is_discarded => {
            restore::recovered(parts, locked, &row.snapshot, &begun, None)?
        }
        // Nothing was changed.
        _ => vec![Change::EndRestore(begun.guard.clone())],
    };
    workspaces::keep(parts, changes)
}

/// Puts a restore that was carried on to its end on record.
fn finished(
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
    adopt(parts, locked, untold)?;
    if let (Some(begun), Some(row)) = (begun, find(guard)?.1) {
        let changes = restore::recovered(parts, locked, &row.snapshot, &begun, Some(recovery))?;
        return workspaces::keep(parts, changes);
    }
    // The log that knew what it was about was lost.
    let session_id = SessionId::of_workspace(locked.id());
    let mut changes = of_new_session(parts, &session_id)?;
    let data = json!({ "to": null, "guard": guard, "leftover_ignored": [], "recovered": true });
    let event_type = EventType::WORKSPACE_ROLLED_BACK;
    let event = NewEvent::new(event_type, &session_id, None, parts.now(), data);
    changes.push(Change::Append(event));
    workspaces::keep(parts, changes)
}

/// Ends the runs that dead engines left.
async fn settle_runs(core: &Core, report: &mut RecoveryReport) -> Result<(), Error> {
    let parts = &core.parts;
    let not_ended = match parts.reader.read(|store| store.runs_not_ended()).await {
        // Whoever goes on with another one settles that.
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            tracing::warn!(error = %e.chain(), "no run is settled");
            return Ok(());
        }
        not_ended => not_ended?,
    };
    for run in not_ended {
        // Those that wait to be resumed are settled.
        if run.engine_id == parts.engine_id || run.status.is_at_rest() {
            continue;
        }
        let (directory, engine_id) = (parts.state_dir.path().to_owned(), run.engine_id.clone());
        let is_alive = parts
            .blocking
            .run(move || liveness::is_alive(&directory, &engine_id))
            .await??;
        if is_alive {
            continue;
        }
        let (id, workspace) = (run.id.clone(), run.workspace.clone());
        match settle_run(core, run, None).await {
            // It is in nobody's way but its own.
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                tracing::warn!(run = %id, error = %e.chain(), "not settled");
                report.left.extend(workspace.map(|workspace| LeftWorkspace {
                    path: stillframe_backends::printable(&workspace.path),
                    reason: Failure::from(&e),
                }));
            }
            settled => {
                settled?;
            }
        }
        let survivors = parts
            .blocking
            .run(move || survivors::survivors(&id))
            .await?;
        report.survivors.extend(survivors);
    }
    Ok(())
}

/// How often a run that moves while it is settled is looked at.
const MAX_LOOKS: usize = 4;

/// What became of a run that was to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It rests or has ended, by this engine or another one.
    Done,
    /// It is as it was: somebody is at work in its workspace, who may be its owner, or its owner is back.
    Left,
}

/// Puts on record what one run left in the workspace, and ends it as failed; or, if it can be resumed, as
/// interrupted.
///
/// Nothing is rolled back: nobody can prove that what the run had started has ended. A rollback
/// that had begun was finished when its workspace was locked. Its lease is raised, so that an owner that
/// was taken for dead writes nothing more.
///
/// `why`: what is known of the end of its engine's work; `None`: the engine is gone.
pub(crate) async fn settle_run(
    core: &Core,
    mut run: RunRow,
    why: Option<Failure>,
) -> Result<Settled, Error> {
    for _ in 1..MAX_LOOKS {
        match try_settle(core, run.clone(), why.clone()).await {
            // Another engine was faster; or somebody asked the run to stop since it was looked at.
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            settled => return settled,
        }
        let asked = run.id.clone();
        let found = core
            .parts
            .reader
            .read(move |store| {
                let run = store.run(&asked)?;
                let lease = store.lease(&asked)?;
                Ok(run.map(|run| (run, lease)))
            })
            .await?;
        match found {
            Some((row, _)) if row.engine_id != run.engine_id => return Ok(Settled::Done),
            Some((row, _)) if row.status.is_terminal() || row.status.is_at_rest() => {
                return Ok(Settled::Done);
            }
            Some((row, lease)) => {
                let (parts, asked) = (core.parts.clone(), row.clone());
                let is_free = move || resume::is_free(&parts, &asked, lease.as_ref());
                // Its owner was only late, and is back.
                if why.is_none() && !core.parts.blocking.run(is_free).await?? {
                    return Ok(Settled::Left);
                }
                run = row;
            }
            None => return Ok(Settled::Done),
        }
    }
    try_settle(core, run, why).await
}

async fn try_settle(core: &Core, run: RunRow, why: Option<Failure>) -> Result<Settled, Error> {
    let parts = &core.parts;
    let asked = run.id.clone();
    let (has_phases, lease) = parts
        .reader
        .read(move |store| Ok((!store.phases(&asked)?.is_empty(), store.lease(&asked)?)))
        .await?;
    let run_id = run.id.clone();
    let rollback = parts
        .reader
        .read(move |store| store.rollback_of_run(&run_id))
        .await?;
    // Of a run whose rollback had begun the steps are taken back.
    let is_resumable = rollback.is_none() && (run.options["resumable"] == true || has_phases);
    let survivors = match why {
        // What a guardian ends is not captured half way.
        None => survivors::unguarded(&run.id, &parts.blocking).await,
        Some(_) => Vec::new(),
    };
    let closing = match (&run.workspace, run.status) {
        (Some(_), RunStatus::Running | RunStatus::Asking) => match close(core, &run).await {
            Ok(closing) => Some(closing),
            // Whoever is at work there is left alone, and the next engine settles the run.
            Err(e) if e.kind() == ErrorKind::Busy => {
                tracing::warn!(run = %run.id, error = %e.chain(), "not settled");
                return Ok(Settled::Left);
            }
            Err(e) => Some(Closing {
                error: Some(Failure::from(&e)),
                ..Closing::default()
            }),
        },
        _ => None,
    };
    // The workspace was used meanwhile, so that they know of their commits.
    let asked = run.id.clone();
    let (phases, steps) = parts
        .reader
        .read(move |store| Ok((store.phases(&asked)?, store.steps(&asked)?)))
        .await?;
    let asked = run.id.clone();
    let reason = why.as_ref().map_or(STRANDED, |why| &why.message).to_owned();
    let failure = why.unwrap_or_else(|| {
        Failure::new(
            ErrorKind::Unavailable.as_str(),
            match &*survivors {
                [] => format!("{STRANDED}: the engine that had the run is gone"),
                survivors => format!(
                    "{STRANDED}: the engine that had the run is gone; of what it had started is at work: {}",
                    survivors::some_of(survivors)
                ),
            },
        )
    });
    // Somebody asked for its end, and its engine died before it heard of it.
    let is_unwanted = lease
        .as_ref()
        .is_some_and(|l| l.cancel_requested_at.is_some());
    let is_resumable = is_resumable && !is_unwanted;
    let event = match (is_resumable, is_unwanted) {
        (true, _) if run.status == RunStatus::Asking => RunEvent::Parked,
        (true, _) => RunEvent::Interrupted,
        (_, true) => RunEvent::Cancelled,
        (_, false) => RunEvent::Stranded,
    };
    let transition = run
        .status
        .next(event)
        .map_err(|e| Error::new(ErrorKind::Conflict, e))?;
    let at = parts.now();
    let mut changes = Vec::new();
    if let Some(lease) = lease {
        changes.push(Change::ClaimLease {
            run_id: run.id.clone(),
            lease: Box::new(Lease::of_nobody(
                parts.engine_id.clone(),
                lease.epoch + 1,
                Moment::now()?,
                at,
            )),
            from: Some(Box::new(lease)),
            after: None,
        });
    }
    changes.extend(
        rollback
            .iter()
            .map(|row| Change::EndRestore(row.guard.clone())),
    );
    let left = closing.as_ref().and_then(|c| c.after.as_ref());
    let how = match event {
        RunEvent::Interrupted | RunEvent::Parked => Closed::Interrupted,
        RunEvent::Cancelled => Closed::Cancelled,
        _ => Closed::Failed,
    };
    changes.extend(step_log::closing_changes(
        core,
        &run.session_id,
        &run.id,
        (&phases, &steps),
        how,
        left.map(|after| &after.id),
        true,
    ));
    if !is_resumable {
        changes.extend(answering::withdrawal(core, &run).await?);
    }
    let rollback = rollback.and_then(|row| row.outcome);
    if !is_resumable
        && let (Some(workspace), Some((before, after))) = (
            &run.workspace,
            closing
                .as_ref()
                .and_then(|c| c.before.as_ref().zip(c.after.as_ref())),
        )
    {
        changes.push(Change::AddOperation(Box::new(OperationRow::of_run(
            &run.session_id,
            &run.id,
            &workspace.workspace_id,
            (&before.id, &after.id),
            at,
        ))));
    }
    changes.push(Change::MoveRun {
        id: run.id.clone(),
        from: run.status,
        to: transition.to,
        at,
        ending: (!is_resumable).then(|| {
            Box::new(RunEnding {
                error: Some(failure),
                workspace: closing.as_ref().map_or(serde_json::Value::Null, |c| {
                    closing::summary(c, rollback.as_ref())
                }),
                ..RunEnding::default()
            })
        }),
    });
    changes.push(Change::Append(NewEvent {
        id: EventId::random(),
        event_type: transition.logged,
        session_id: run.session_id.clone(),
        run_id: Some(run.id.clone()),
        at,
        data: match event {
            RunEvent::Parked => {
                let open = parts
                    .reader
                    .read(move |store| store.questions(&asked))
                    .await?;
                let is_open = |row: &QuestionRow| row.status == QuestionStatus::Open;
                let ids: Vec<_> = open.into_iter().filter(is_open).map(|row| row.id).collect();
                json!({ "questions": ids, "reason": reason, "recovered": true })
            }
            _ => json!({ "reason": reason, "recovered": true }),
        },
    }));
    parts.writer.commit(changes).await?;
    Ok(Settled::Done)
}

/// Captures what a stranded run left, and compares it with what was there before.
async fn close(core: &Core, run: &RunRow) -> Result<Closing, Error> {
    let recorded = run.workspace.clone().expect("asked for runs that have one");
    let mut options: WorkspaceOptions = serde_json::from_value(run.options["workspace"].clone())
        .map_err(|e| {
            Error::new(
                ErrorKind::Corrupt,
                format!("the options of run {} cannot be read: {e}", run.id),
            )
        })?;
    options.path = recorded.path.clone();
    // The whole patch belongs to a run that came to its end; it can still be asked for.
    options.capture_patch = false;
    // Nothing follows that a journal could serve.
    options.watch = false;
    let parts = core.parts.clone();
    let opened = core
        .parts
        .blocking
        .run(move || Opened::open(&parts, options))
        .await??;
    let (session_id, run_id) = (run.session_id.clone(), run.id.clone());
    let parts = core.parts.clone();
    let patience = core.parts.settings.lock_patience;
    let workspace: Workspace = opened.workspace.clone();
    workspaces::work(core, &workspace, "recovery", patience, move |locked| {
        adopt(&parts, locked, Untold::Tell)?;
        let before = parts.reader.read_blocking_with(|store| {
            workspaces::known_snapshot(store, &recorded.before, &opened.workspace)
        })?;
        let backend: Arc<dyn Backend> = workspaces::backend_of(&parts, before.backend)?;
        let known = parts
            .reader
            .read_blocking(|store| store.snapshot(&recorded.after))?;
        let after = match known {
            // The engine died after it had captured the end.
            Some(row) => row.snapshot,
            None => {
                let mut options = opened.snapshot_options(
                    &parts,
                    Label::AFTER_FAILURE,
                    &session_id,
                    Some(&run_id),
                    Interrupt::never(),
                );
                options.id = recorded.after.clone();
                options.since = Some(before.id.clone());
                workspaces::capture(
                    &parts,
                    locked,
                    &*backend,
                    &options,
                    &session_id,
                    Some(&run_id),
                    None,
                )?
            }
        };
        let diff = closing::diff(
            &parts,
            &opened,
            [&before, &after],
            (&session_id, &run_id),
            None,
        )
        .map(|(diff, _)| diff);
        let (diff, error) = match diff {
            Ok(diff) => (Some(diff), None),
            Err(e) => (None, Some(Failure::from(&e))),
        };
        Ok(Closing {
            backend: Some(before.backend),
            before: Some(before),
            after: Some(after),
            diff,
            error,
        })
    })
    .await
}
