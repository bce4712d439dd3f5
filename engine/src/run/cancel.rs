//! Cancelling a run that this engine does not hold.

use std::time::Duration;

use stillframe_backends::{ErrorKind, Workspace};

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::RunId;
use crate::records::queue::QueueState;
use crate::records::run::RunStatus;
use crate::records::run_row::RunRow;
use crate::run::give_up::{end_own_session, give_up};
use crate::run::lock::{LockedPlace, RunLock};
use crate::run::on_record::Settled;
use crate::run::owner::has_owner;
use crate::run::recorded::{Claim, Recorded, recorded};
use crate::run::settle;
use crate::state::change::Change;

/// How often a run that moves while it is cancelled is looked at again.
pub(crate) const MAX_LOOKS: usize = 8;

/// Asks a run to stop, whichever engine has it. One that rests or waits in the queue is cancelled
/// at once.
pub(crate) async fn cancel_any(core: &Core, run_id: &RunId) -> Result<(), Error> {
    if core.parts.live_runs.cancel(run_id) {
        let ask = Change::RequestCancel {
            run_id: run_id.clone(),
            at: core.parts.now(),
        };
        match core.parts.writer.commit(vec![ask]).await {
            // It was about to end or to rest.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            asked => {
                asked?;
                let asked = run_id.clone();
                let queued = core.parts.reader.read(move |store| store.queue_row(&asked));
                // One that was put back before that was written has nobody who hears of it.
                if queued
                    .await?
                    .is_none_or(|row| row.state != QueueState::Waiting)
                {
                    return Ok(());
                }
            }
        }
        let asked = run_id.clone();
        let row = core
            .parts
            .reader
            .read(move |store| store.run(&asked))
            .await?;
        if row.is_none_or(|row| row.status.is_terminal()) {
            return Ok(());
        }
    }
    let (shared, run_id) = (core.clone(), run_id.clone());
    core.relief(async move { cancel(&shared, &run_id).await })
        .await
}

/// Cancels a run that this engine does not have.
pub(crate) async fn cancel(core: &Core, run_id: &RunId) -> Result<(), Error> {
    if let Some(run) = cancelled(core, run_id).await? {
        end_own_session(core, &run).await;
    }
    Ok(())
}

/// The same, and the session that was made for the run stays. `None`: the engine that holds the run
/// was asked; otherwise the cancelled run.
pub(crate) async fn cancelled(core: &Core, run_id: &RunId) -> Result<Option<RunRow>, Error> {
    let mut looks = 1;
    loop {
        match try_cancel(core, run_id).await {
            // Another engine has taken or released it since it was read.
            Err(e) if e.kind() == ErrorKind::Conflict && looks < MAX_LOOKS => {
                looks += 1;
                let found = recorded(core, run_id).await?;
                if found.is_none_or(|found| found.row.status.is_terminal()) {
                    return Err(e);
                }
            }
            done => return done,
        }
    }
}

/// `None`: the engine that holds the run was asked; otherwise the cancelled run.
async fn try_cancel(core: &Core, run_id: &RunId) -> Result<Option<RunRow>, Error> {
    let mut found = recorded(core, run_id).await?;
    let is_stranded =
        |found: &Recorded| found.claim() == Claim::Claimable && !found.row.status.is_at_rest();
    let mut is_left = false;
    if let Some(stranded) = found.clone().filter(is_stranded) {
        is_left = has_its_workspace(core, &stranded.row).await?
            || settle::settle_run(core, stranded.row, None).await? == Settled::Left;
        found = recorded(core, run_id).await?;
        // It had been asked to before, and is now.
        let is_cancelled = |found: &Recorded| found.row.status == RunStatus::Cancelled;
        if found.as_ref().is_some_and(is_cancelled) {
            return Ok(found.map(|found| found.row));
        }
    }
    let found = found.ok_or_else(|| Error::not_found(format!("there is no run {run_id}")))?;
    // The engine at work in its workspace may be an owner that did not renew its lease for a while,
    // and notices the cancellation there.
    if found.claim() == Claim::Held || is_left {
        return ask_its_owner(core, &found.row).await.map(|()| None);
    }
    Box::pin(give_up(core, &found)).await?;
    Ok(Some(found.row))
}

/// Asks the engine that holds a run to cancel it.
async fn ask_its_owner(core: &Core, row: &RunRow) -> Result<(), Error> {
    let parts = &core.parts;
    let ask = Change::RequestCancel {
        run_id: row.id.clone(),
        at: parts.now(),
    };
    match parts.writer.commit(vec![ask]).await {
        // It has ended, or was interrupted, since.
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(Error::new(ErrorKind::Conflict, e));
        }
        asked => asked?,
    };
    let (asked, owned) = (parts.clone(), row.clone());
    let lives = move || has_owner(&asked, &owned);
    match parts.blocking.run(lives).await?? {
        true => Ok(()),
        // Nobody hears of it before the run is settled.
        false => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "the engine of run {} is gone, and its workspace is in use; the run is cancelled by whoever settles it, or by asking again; nothing was touched",
                row.id
            ),
        )),
    }
}

/// Whether the owner of a run, though it was not heard of for long, is there and has the workspace:
/// what it has started may be at work.
pub(crate) async fn has_its_workspace(core: &Core, run: &RunRow) -> Result<bool, Error> {
    let Some(recorded) = run.workspace.clone() else {
        return Ok(false);
    };
    let (parts, asked) = (core.parts.clone(), run.clone());
    let looked = move || {
        if !has_owner(&parts, &asked)? {
            return Ok(None);
        }
        let isolation = parts
            .reader
            .read_blocking(|store| store.isolation(&asked.id))?;
        Ok::<_, Error>(match isolation {
            Some(row) => Some(LockedPlace::worktree(&parts.state_dir, &row.worktree_path)),
            // One that is gone is nobody's.
            None => Workspace::open(&recorded.path, &parts.state_dir)
                .ok()
                .map(|workspace| LockedPlace::workspace(&workspace)),
        })
    };
    let Some(place) = core.parts.blocking.run(looked).await?? else {
        return Ok(false);
    };
    let blocking = &core.parts.blocking;
    let lock = RunLock::acquire_at(&place, "a cancellation", Duration::ZERO, blocking);
    match lock.await {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == ErrorKind::Busy => Ok(true),
        Err(e) => Err(e),
    }
}
