//! Recovery: an engine finishes what a dead engine left, before it accepts work.

use std::collections::{BTreeMap, HashSet};

use stillframe_backends::{ErrorKind, Operation};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::event::Event;
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::{EngineId, RunId};
use crate::options::WorkspaceOptions;
use crate::process::{input_file, survivors};
use crate::records::recovery::{LeftWorkspace, RecoveryReport, UnknownAdapter};
use crate::run::left_reviews;
use crate::run::settle::settle_run;
use crate::saving::quarantine;
use crate::state::liveness;
use crate::workspace::adoption::{Untold, adopt};
use crate::workspace::finish::is_for_later;
use crate::workspace::opened::Opened;
use crate::workspace::turn;

/// Looks after everything that dead engines left. What cannot be looked after, because its
/// directory is gone or in use, is left as it is.
pub(crate) async fn recover(core: &Core) -> Result<RecoveryReport, Error> {
    let parts = core.parts.clone();
    let mut report = RecoveryReport::default();
    if !parts.state_dir.is_writable() {
        // Recovery is left to an engine that may write.
        return Ok(report);
    }
    let before = parts.reader.read(|store| store.last_position()).await?;
    let directory = parts.state_dir.path().to_owned();
    let dead = parts
        .blocking
        .run(move || liveness::dead_engines(&directory))
        .await??;
    let crashed: HashSet<EngineId> = dead.iter().filter_map(|engine| engine.id.clone()).collect();
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
    let (parts_of_inputs, removing) = (core.parts.clone(), &core.parts.blocking);
    removing
        .run(move || remove_inputs(&parts_of_inputs))
        .await?;
    settle_runs(core, &mut report).await?;
    left_reviews::recover(core, &crashed, &mut report).await?;
    report.unknown_adapters = unknown_adapters(core).await?;
    report.quarantined = quarantined(core).await?;
    let later = parts
        .reader
        .read(move |store| store.events(&EventQuery::all().after_position(before)))
        .await?;
    let is_of_recovery = |event: &Event| event.told().recovered;
    report.done.extend(later.into_iter().filter(is_of_recovery));
    Ok(report)
}

async fn adopt_at(core: &Core, path: std::path::PathBuf) -> Result<(), Error> {
    let parts = core.parts.clone();
    let open = move || match path.starts_with(parts.state_dir.path()) {
        true => worktree_at(&parts, &path),
        false => Opened::open(&parts, WorkspaceOptions::at(path)).map(Some),
    };
    let Some(opened) = core.parts.blocking.run(open).await?? else {
        return Ok(());
    };
    let parts = core.parts.clone();
    let lock_timeout = core.parts.settings.lock_timeout;
    turn::work(
        core,
        &opened.workspace,
        "recovery",
        lock_timeout,
        move |locked| adopt(&Operation::unbounded(), &parts, locked, Untold::Tell),
    )
    .await
}

/// The worktree of a run at a place in the state directory; `None`: it was let go of. Blocks.
fn worktree_at(parts: &Parts, path: &std::path::Path) -> Result<Option<Opened>, Error> {
    let found = parts.reader.read_blocking(|store| {
        let mut kept = store.isolations_kept()?.into_iter();
        match kept.find(|row| row.worktree_path == path) {
            Some(row) => Ok(store.run(&row.run_id)?.map(|run| (run, row))),
            None => Ok(None),
        }
    })?;
    let open = |(run, row)| Opened::worktree_of(parts, &run, &row, WorkspaceOptions::at(path));
    match found {
        // It is looked after where its run is.
        Some((_, row)) if !row.worktree_path.is_dir() => Ok(None),
        found => found.map(open).transpose(),
    }
}

/// How many pieces of work are in quarantine.
async fn quarantined(core: &Core) -> Result<usize, Error> {
    match core
        .parts
        .reader
        .read(|store| quarantine::count(store))
        .await
    {
        // A damaged row must not stop the start. Whoever lists them is told of it.
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            tracing::warn!(error = %e.chain(), "what is in quarantine is not known");
            Ok(0)
        }
        counted => counted,
    }
}

/// The adapters that queued runs wait for and this engine does not have, in the order of the names.
async fn unknown_adapters(core: &Core) -> Result<Vec<UnknownAdapter>, Error> {
    let known = &core.parts.settings.adapters;
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let mut unknown = BTreeMap::<String, Vec<RunId>>::new();
    for (run_id, adapter) in core
        .parts
        .reader
        .read(|store| store.queue_waiting())
        .await?
    {
        if !known.contains(&adapter) {
            unknown.entry(adapter).or_default().push(run_id);
        }
    }
    let unknown = unknown.into_iter();
    Ok(unknown
        .map(|(adapter, runs)| UnknownAdapter { adapter, runs })
        .collect())
}

/// Removes what dead engines have left of the input of their runs. Blocks.
fn remove_inputs(parts: &Parts) {
    let state_dir = parts.state_dir.path();
    let files = std::fs::read_dir(input_file::directory(state_dir));
    for file in files.into_iter().flatten().flatten() {
        let name = file.file_name();
        let owner = name.to_str().and_then(input_file::owner);
        let is_dead = |owner| matches!(liveness::is_alive(state_dir, &owner), Ok(false));
        if owner.is_some_and(is_dead)
            && let Err(error) = std::fs::remove_file(file.path())
        {
            tracing::warn!(path = %file.path().display(), %error, "an input stays");
        }
    }
}

/// Ends the runs that dead engines left, and puts those back into the queue whose work had not
/// begun.
async fn settle_runs(core: &Core, report: &mut RecoveryReport) -> Result<(), Error> {
    let parts = &core.parts;
    let not_ended = match parts.reader.read(|store| store.runs_not_ended()).await {
        // A damaged row must not stop the start. A run is settled when it is used next.
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
            // A damaged run must not stop the others.
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
        let state_dir = parts.state_dir.clone();
        let survivors = parts
            .blocking
            .run(move || survivors::survivors(&id, state_dir.path()))
            .await?;
        report.survivors.extend(survivors);
    }
    Ok(())
}
