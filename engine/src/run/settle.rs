//! Settling a run whose engine or task is gone: it ends as failed, or stays interrupted if it can
//! be resumed.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;
use stillframe_backends::{Backend, ErrorKind, Label, Operation};

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::{RunEnded, Why};
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::RunId;
use crate::options::WorkspaceOptions;
use crate::policy::used::{Used, worked_until};
use crate::process::survivors;
use crate::records::isolation::IsolationRow;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::queue::QueueState;
use crate::records::recovery::Survivor;
use crate::records::restore_document::RestoreDocument;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::records::step::milliseconds;
use crate::run::candidate;
use crate::run::closing::{self, Closing};
use crate::run::end::{Changed, End, Left, end_run};
use crate::run::merging;
use crate::run::on_record::{OnRecord, STRANDED, Settled};
use crate::run::owner;
use crate::run::requeue::put_back;
use crate::run::saving;
use crate::state::snapshot_name;
use crate::workspace::adoption::{Untold, adopt};
use crate::workspace::opened::Opened;
use crate::workspace::{backends, capture, turn};

/// How often a run that moves while it is settled is looked at.
pub(crate) const MAX_LOOKS: usize = 4;

/// Puts on record what one run left in the workspace, and ends it as failed; or, if it can be
/// resumed, as interrupted.
///
/// Nothing is rolled back: nobody can prove that what the run had started has ended. A rollback
/// that had begun was finished when its workspace was locked. Its lease is raised, so that an owner
/// that was taken for dead writes nothing more.
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

/// Settles a run whose engine is gone, and leaves any other as it is.
pub(crate) async fn settle_if_left(core: &Core, run_id: &RunId) -> Result<(), Error> {
    let asked = run_id.clone();
    let (row, lease, queue) = core
        .parts
        .reader
        .read(move |store| {
            let queue = store.queue_row(&asked)?.map(|row| row.state);
            Ok((store.run(&asked)?, store.lease(&asked)?, queue))
        })
        .await?;
    let Some(row) = row.filter(|row| !row.status.is_terminal() && !row.status.is_at_rest()) else {
        return Ok(());
    };
    if queue == Some(QueueState::Waiting) {
        return Ok(());
    }
    let (parts, asked) = (core.parts.clone(), row.clone());
    let is_left = move || match queue {
        // Its work has not begun, so an engine that comes back late finds that out in time.
        Some(QueueState::Claimed) => owner::is_free(&parts, &asked, lease.as_ref()),
        _ => Ok(!owner::has_owner(&parts, &asked)?),
    };
    if core.parts.blocking.run(is_left).await?? {
        settle_run(core, row, None).await?;
    }
    Ok(())
}

async fn try_settle(core: &Core, run: RunRow, why: Option<Failure>) -> Result<Settled, Error> {
    if run.status.is_being_saved() {
        return Box::pin(settle_ended(core, run, why)).await;
    }
    let parts = &core.parts;
    let found = OnRecord::read(core, &run.id).await?;
    if why.is_none() && found.is_to_be_begun() {
        if let (Some(QueueState::Claimed), Some(lease)) = (found.queue, &found.lease) {
            put_back(core, &run.id, lease.epoch).await?;
        }
        return Ok(Settled::Done);
    }
    let survivors = match why {
        // What a guardian ends is not captured half way.
        None => survivors::unguarded(&run.id, parts.state_dir.path(), &parts.blocking).await,
        Some(_) => Vec::new(),
    };
    let event = found.event(&run);
    let isolation = found.isolation.as_ref();
    let mut closing = match what_it_left(core, &run, isolation, event).await {
        // An operation at work there is not disturbed, and the next engine settles the run.
        Err(e) if e.kind() == ErrorKind::Busy => {
            tracing::warn!(run = %run.id, error = %e.chain(), "not settled");
            return Ok(Settled::Left);
        }
        left => left?,
    };
    let (reason, failure) = reason_and_failure(why, &survivors);
    let seen_at = found.lease.as_ref().map(|lease| lease.heartbeat_at);
    let right = match found.lease {
        Some(lease) => Some(owner::taken_from_owner(parts, &run.id, lease, parts.now())?),
        None => None,
    };
    let elsewhere = closing
        .as_ref()
        .and_then(|closing| saving::is_elsewhere(&run, closing));
    let begun = match (&mut closing, elsewhere) {
        (Some(closing), Some(why)) => {
            closing.error = Some(why);
            Ok(None)
        }
        (closing, _) => Box::pin(saving::begin(core, &run, event, closing.as_ref())).await,
    };
    let begun = match begun {
        Err(e) if e.kind() == ErrorKind::Busy => {
            tracing::warn!(run = %run.id, error = %e.chain(), "not settled");
            return Ok(Settled::Left);
        }
        begun => begun?,
    };
    if let Some((ends, said)) = begun {
        let rollback = found.rollback.and_then(|row| row.outcome);
        let end = End {
            from: Some(run.status),
            right,
            is_recovered: true,
            error: Some(failure),
            workspace: summary(closing.as_ref(), rollback.as_ref()),
            ..End::new(RunEvent::Persisting(ends), said)
        };
        end_run(core, (&run.session_id, &run.id), end).await?;
        let asked = run.id.clone();
        let saving = parts.reader.read(move |store| store.run(&asked)).await?;
        return match saving {
            Some(run) => Box::pin(saving::settle(core, run, None)).await,
            None => Ok(Settled::Done),
        };
    }
    let asked = run.id.clone();
    // Read once the workspace was used, so that the steps know of their commits.
    let steps = parts
        .reader
        .read(move |store| Ok((store.phases(&asked)?, store.steps(&asked)?)))
        .await?;
    let after = closing.as_ref().and_then(|closing| closing.after.as_ref());
    let left = Left {
        steps,
        after: after.map(|after| after.id.clone()),
        // What was done in a worktree of its own is nothing to be undone in the workspace.
        changed: changed(&run, closing.as_ref().filter(|_| found.isolation.is_none())),
        guard: found.rollback.as_ref().map(|row| row.guard.clone()),
        problems: Vec::new(),
    };
    let rollback = found.rollback.and_then(|row| row.outcome);
    let said = said(core, &run, (event, seen_at), reason).await?;
    let end = End {
        from: Some(run.status),
        right,
        is_recovered: true,
        error: Some(failure),
        workspace: summary(closing.as_ref(), rollback.as_ref()),
        left: Some(left),
        ..End::new(event, said)
    };
    end_run(core, (&run.session_id, &run.id), end).await?;
    Ok(Settled::Done)
}

/// Settles a run whose work had ended, and was being saved, handed in or merged.
async fn settle_ended(core: &Core, run: RunRow, why: Option<Failure>) -> Result<Settled, Error> {
    match run.status {
        RunStatus::Candidate => candidate::settle(core, run).await,
        RunStatus::Merging => merging::settle(core, &run).await,
        _ => saving::settle(core, run, why).await,
    }
}

/// What the run's row says of what it left.
fn summary(closing: Option<&Closing>, rollback: Option<&RestoreDocument>) -> Value {
    closing.map_or(Value::Null, |closing| closing::summary(closing, rollback))
}

/// What a run left in its workspace, and why that could not be seen; `None`: its work had not begun
/// there. `Busy`: somebody is at work there.
async fn what_it_left(
    core: &Core,
    run: &RunRow,
    isolation: Option<&IsolationRow>,
    event: RunEvent,
) -> Result<Option<Closing>, Error> {
    if run.workspace.is_none() || !run.status.is_at_work() {
        return Ok(None);
    }
    match close(core, run, isolation, event).await {
        Err(e) if e.kind() != ErrorKind::Busy => Ok(Some(Closing {
            error: Some(Failure::from(&e)),
            ..Closing::default()
        })),
        closing => closing.map(Some),
    }
}

/// Why the run is settled: what its event says, and what its row does.
fn reason_and_failure(why: Option<Failure>, survivors: &[Survivor]) -> (String, Failure) {
    if let Some(why) = why {
        return (why.message.clone(), why);
    }
    let mut message = format!("{STRANDED}: the engine that had the run is gone");
    if !survivors.is_empty() {
        message += "; of what it had started is at work: ";
        message += &survivors::some_of(survivors);
    }
    let failure = Failure::new(ErrorKind::Unavailable.as_str(), message);
    (STRANDED.to_owned(), failure)
}

/// What the run changed, for an undo, if both its snapshots are there.
fn changed(run: &RunRow, closing: Option<&Closing>) -> Option<Changed> {
    let (workspace, closing) = run.workspace.as_ref().zip(closing)?;
    let (before, after) = closing.before.as_ref().zip(closing.after.as_ref())?;
    Some(Changed {
        workspace_id: workspace.workspace_id.clone(),
        before: before.id.clone(),
        after: after.id.clone(),
    })
}

/// What the event says that tells of it. `seen_at`: when its engine was last known to be at work.
async fn said(
    core: &Core,
    run: &RunRow,
    (event, seen_at): (RunEvent, Option<Timestamp>),
    reason: String,
) -> Result<RunEnded, Error> {
    let run_id = &run.id;
    let questions = match event {
        RunEvent::Parked => {
            let asked = run_id.clone();
            let reader = &core.parts.reader;
            let all = reader.read(move |store| store.questions(&asked)).await?;
            let is_open = |row: &QuestionRow| row.status == QuestionStatus::Open;
            Some(all.into_iter().filter(is_open).map(|row| row.id).collect())
        }
        _ => None,
    };
    let worked_ms = match event {
        RunEvent::Parked | RunEvent::Interrupted => Some(worked(core, run, seen_at).await?),
        _ => None,
    };
    Ok(RunEnded {
        why: Some(Why::Settled { reason }),
        questions,
        worked_ms: worked_ms.map(milliseconds),
        recovered: true,
        ..RunEnded::default()
    })
}

/// How long a run was worked on, up to the last that is known of its engine. What was written
/// later than that could be is of an engine that settles it.
async fn worked(core: &Core, run: &RunRow, seen_at: Option<Timestamp>) -> Result<Duration, Error> {
    let query = EventQuery {
        event_types: Used::TYPES.to_vec(),
        ..EventQuery::session(run.session_id.clone()).run(run.id.clone())
    };
    let (reader, id) = (&core.parts.reader, run.id.clone());
    let read = reader.read(move |store| Ok((store.last_event_at(&id)?, store.events(&query)?)));
    let (last, events) = read.await?;
    let latest = seen_at.and_then(|at| at.checked_add(core.parts.settings.heartbeat).ok());
    let until = match latest {
        Some(latest) => last.max(seen_at).min(Some(latest)),
        None => last,
    };
    Ok(until.map_or(Duration::ZERO, |until| worked_until(&events, until)))
}

/// Captures what a stranded run left, and compares it with what was there before.
async fn close(
    core: &Core,
    run: &RunRow,
    isolation: Option<&IsolationRow>,
    event: RunEvent,
) -> Result<Closing, Error> {
    let recorded = run.workspace.clone().expect("asked for runs that have one");
    let kept = KeptOptions::<WorkspaceOptions>::deserialize(&run.options).map_err(|e| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the options of run {} cannot be read: {e}", run.id),
        )
    })?;
    let mut options = kept.workspace;
    options.path = recorded.path.clone();
    // One that rests goes on, and its whole patch is known when it has ended.
    options.capture_patch &= !matches!(event, RunEvent::Parked | RunEvent::Interrupted);
    // No later capture could use a watch.
    options.watch = false;
    let parts = core.parts.clone();
    let of = isolation.map(|row| (run.clone(), row.clone()));
    let open = move || match of {
        Some((run, row)) => Opened::worktree_of(&parts, &run, &row, options),
        None => Opened::open(&parts, options),
    };
    let opened = core.parts.blocking.run(open).await??;
    let (session_id, run_id) = (run.session_id.clone(), run.id.clone());
    let (parts, place) = (core.parts.clone(), opened.clone());
    let lock_timeout = core.parts.settings.lock_timeout;
    let captured = turn::work(
        core,
        &opened.workspace,
        "recovery",
        lock_timeout,
        move |locked| {
            adopt(&Operation::unbounded(), &parts, locked, Untold::Tell)?;
            let before = parts.reader.read_blocking_with(|store| {
                snapshot_name::known_snapshot(store, &recorded.before, locked)
            })?;
            let backend: Arc<dyn Backend> = backends::backend_of(&parts, before.backend)?;
            let known = parts
                .reader
                .read_blocking(|store| store.snapshot(&recorded.after))?;
            let after = match known {
                // The engine died after it had captured the end.
                Some(row) => row.snapshot,
                None => {
                    let mut options = place.snapshot_options(
                        &parts,
                        Label::AFTER_FAILURE,
                        &session_id,
                        Some(&run_id),
                    );
                    options.id = recorded.after.clone();
                    options.since = Some(before.id.clone());
                    capture::capture(
                        &Operation::unbounded(),
                        &parts,
                        locked,
                        &*backend,
                        &options,
                        capture::Whose {
                            session_id: &session_id,
                            run_id: Some(&run_id),
                            fence: None,
                        },
                    )?
                }
            };
            Ok([before, after])
        },
    );
    let [before, after] = captured.await?;
    let snapshots = [before.clone(), after.clone()];
    let of = (&run.session_id, &run.id);
    let compared = Box::pin(closing::diff(core, opened, snapshots, of, None));
    let (diff, problem) = match compared.await {
        Ok((diff, problem)) => (Some(diff), problem),
        Err(e) => (None, Some(e)),
    };
    Ok(Closing {
        backend: Some(before.backend),
        before: Some(before),
        after: Some(after),
        diff,
        error: problem.as_ref().map(Failure::from),
        resumed: None,
        saved: None,
        repositories: None,
    })
}
