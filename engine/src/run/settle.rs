//! Settling a run whose engine or task is gone: it ends as failed, or rests if it can be resumed.

use std::sync::Arc;

use serde_json::json;
use stillframe_backends::{Backend, ErrorKind, Interrupt, Label, Workspace};

use crate::actors::core::Core;
use crate::error::Error;
use crate::failure::Failure;
use crate::id::EventId;
use crate::options::WorkspaceOptions;
use crate::process::survivors;
use crate::records::lease::{Lease, Moment};
use crate::records::operation::OperationRow;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::{RunEnding, RunRow};
use crate::records::step::Closed;
use crate::run::closing::{self, Closing};
use crate::run::owner;
use crate::state::change::{Change, NewEvent};
use crate::state::snapshot_name;
use crate::step::{answering, step_log};
use crate::workspace::adoption::{Untold, adopt};
use crate::workspace::opened::Opened;
use crate::workspace::{backends, capture, turn};

/// Why a run that a dead engine left is failed.
pub(crate) const STRANDED: &str = "stranded_in_progress";

/// How often a run that moves while it is settled is looked at.
pub(crate) const MAX_LOOKS: usize = 4;

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
                let is_free = move || owner::is_free(&parts, &asked, lease.as_ref());
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

pub(crate) async fn try_settle(
    core: &Core,
    run: RunRow,
    why: Option<Failure>,
) -> Result<Settled, Error> {
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
pub(crate) async fn close(core: &Core, run: &RunRow) -> Result<Closing, Error> {
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
    turn::work(core, &workspace, "recovery", patience, move |locked| {
        adopt(&parts, locked, Untold::Tell)?;
        let before = parts.reader.read_blocking_with(|store| {
            snapshot_name::known_snapshot(store, &recorded.before, &opened.workspace)
        })?;
        let backend: Arc<dyn Backend> = backends::backend_of(&parts, before.backend)?;
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
                capture::capture(
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
