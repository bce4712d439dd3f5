//! What it means to start a run whose id is on record.

use std::time::{Duration, Instant};

use serde_json::Value;
use stillframe_backends::{BackendKind, DiffOptions, ErrorKind, Snapshot, Workspace};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::actors::session_manager::{SessionMessage, Step};
use crate::error::Error;
use crate::failure::Failure;
use crate::id::{EventId, RunId, SessionId};
use crate::records::lease::{Lease, Moment};
use crate::records::operation::OperationRow;
use crate::records::outcome::{RunOutcome, RunResult, WorkspaceOutcome};
use crate::records::output::AdapterOutput;
use crate::records::question::{QuestionRecord, QuestionRow, QuestionStatus};
use crate::records::restore_document::RestoreDocument;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_record::RunExport;
use crate::records::run_row::{RunEnding, RunRow};
use crate::records::session::SessionEvent;
use crate::records::step::Closed;
use crate::run::answering;
use crate::run::lock::RunLock;
use crate::state::change::Change;
use crate::state::error::StateError;
use crate::state::liveness;
use crate::step::step_log;
use crate::upkeep::recovery::{self, Settled};
use crate::workspace::compare;
use crate::workspace::opened::Opened;
use crate::workspace::turn::MAX_PATIENCE;

/// A run that is on record, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) row: RunRow,
    pub(crate) lease: Option<Lease>,
    /// Whether anybody may take it.
    pub(crate) is_free: bool,
    /// Its questions that wait for an answer.
    pub(crate) open: Vec<QuestionRow>,
}

/// What it means to start a run whose id is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has ended: the answer is what is on record.
    Ended,
    /// It can be gone on with.
    Claimable,
    /// It rests until somebody answers.
    Waiting,
    /// Somebody has it.
    Held,
}

impl Recorded {
    /// What it means to start the run again.
    pub(crate) fn standing(&self) -> Standing {
        match self.row.status {
            status if status.is_terminal() => Standing::Ended,
            RunStatus::WaitingForInput if !self.open.is_empty() => Standing::Waiting,
            // Whoever had it has given it up.
            status if status.is_at_rest() => Standing::Claimable,
            _ if self.is_free => Standing::Claimable,
            _ => Standing::Held,
        }
    }

    /// What somebody is told who wants a run that another engine has.
    pub(crate) fn held(&self) -> Error {
        let since = self.lease.as_ref().map_or(String::new(), |lease| {
            format!(
                " of engine {}, renewed at {}",
                lease.owner, lease.heartbeat_at
            )
        });
        Error::new(
            ErrorKind::Busy,
            format!(
                "run {} is under way, with a lease{since}; nothing was touched",
                self.row.id
            ),
        )
    }

    /// What somebody is told who was about to begin a run that another began first.
    pub(crate) fn begun_meanwhile(&self) -> Error {
        match self.standing() {
            Standing::Held => self.held(),
            _ => Error::new(
                ErrorKind::Busy,
                format!(
                    "run {} was begun by somebody else meanwhile; nothing was touched",
                    self.row.id
                ),
            ),
        }
    }
}

/// What is on record under `id`; `None`: nothing.
pub(crate) async fn recorded(core: &Core, id: &RunId) -> Result<Option<Recorded>, Error> {
    answering::settle_ripe(core, Some(id)).await?;
    let asked = id.clone();
    let (row, lease, questions) = core
        .parts
        .reader
        .read(move |store| {
            Ok((
                store.run(&asked)?,
                store.lease(&asked)?,
                store.questions(&asked)?,
            ))
        })
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let open = questions.into_iter();
    let open = open.filter(|question| question.status == QuestionStatus::Open);
    let (parts, asked) = (core.parts.clone(), (row.clone(), lease.clone()));
    let is_free = core
        .parts
        .blocking
        .run(move || is_free(&parts, &asked.0, asked.1.as_ref()))
        .await??;
    Ok(Some(Recorded {
        row,
        lease,
        is_free,
        open: open.collect(),
    }))
}

/// As [`recorded`]; of a run whose engine is dead, and which another engine is about to settle, once that is done. It is
/// not waited for longer than for a workspace.
pub(crate) async fn recorded_when_settled(
    core: &Core,
    id: &RunId,
) -> Result<Option<Recorded>, Error> {
    let deadline = Instant::now() + core.parts.settings.lock_patience.min(MAX_PATIENCE);
    loop {
        let found = recorded(core, id).await?;
        let held = found.as_ref().filter(|f| f.standing() == Standing::Held);
        let Some(held) = held.filter(|_| Instant::now() < deadline) else {
            return Ok(found);
        };
        let (parts, owner) = (core.parts.clone(), held.row.engine_id.clone());
        let is_looked_after = move || liveness::is_looked_after(parts.state_dir.path(), &owner);
        if !core.parts.blocking.run(is_looked_after).await?? {
            return Ok(found);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether nobody has the run, or nobody who is heard of. Blocks.
pub(crate) fn is_free(parts: &Parts, row: &RunRow, lease: Option<&Lease>) -> Result<bool, Error> {
    let is_alive = has_owner(parts, row)?;
    Ok(match lease {
        Some(lease) => lease.is_free(&Moment::now()?, is_alive),
        None => !is_alive,
    })
}

/// Whether the engine that has a run is there, and at work on it as far as that can be known. Blocks.
fn has_owner(parts: &Parts, row: &RunRow) -> Result<bool, Error> {
    if row.engine_id == parts.engine_id {
        // Its end may not have been written down.
        return Ok(parts.live_runs.has(&row.id));
    }
    Ok(liveness::is_alive(parts.state_dir.path(), &row.engine_id)?)
}

/// How often a run is looked at that another engine is about to settle.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often a run that moves while it is cancelled is looked at again.
const MAX_LOOKS: usize = 8;

/// Cancels a run that this engine does not have.
pub(crate) async fn cancel(core: &Core, run_id: &RunId) -> Result<(), Error> {
    let mut looks = 1;
    let cancelled = loop {
        match try_cancel(core, run_id).await {
            // Somebody has taken it, or let go of it, since it was looked at.
            Err(e) if e.kind() == ErrorKind::Conflict && looks < MAX_LOOKS => {
                looks += 1;
                let found = recorded(core, run_id).await?;
                if found.is_none_or(|found| found.row.status.is_terminal()) {
                    return Err(e);
                }
            }
            done => break done?,
        }
    };
    if let Some(run) = cancelled {
        end_own_session(core, &run).await;
    }
    Ok(())
}

/// Ends the session of a run that was cancelled here, if it was made for the run: whoever began it is gone. The run is
/// cancelled, which is what was asked for, whatever becomes of this.
async fn end_own_session(core: &Core, run: &RunRow) {
    if run.options["own_session"] != true {
        return;
    }
    let event_id = EventId::random();
    let moved = core
        .ask_session(&run.session_id, |reply| SessionMessage::Move {
            event: SessionEvent::Cancel,
            reason: String::new(),
            event_id: event_id.clone(),
            reply,
        })
        .await;
    match moved {
        Ok(_) => core.let_go(&run.session_id).await,
        Err(e) => {
            tracing::debug!(session = %run.session_id, error = %e.chain(), "not ended");
        }
    }
}

/// `None`: whoever has the run was asked; otherwise the run, which is cancelled.
async fn try_cancel(core: &Core, run_id: &RunId) -> Result<Option<RunRow>, Error> {
    let mut found = recorded(core, run_id).await?;
    let is_stranded = |found: &Recorded| {
        found.standing() == Standing::Claimable && !found.row.status.is_at_rest()
    };
    let mut is_left = false;
    if let Some(stranded) = found.clone().filter(is_stranded) {
        is_left = has_its_workspace(core, &stranded.row).await?
            || recovery::settle_run(core, stranded.row, None).await? == Settled::Left;
        found = recorded(core, run_id).await?;
        // It had been asked to before, and is now.
        let is_cancelled = |found: &Recorded| found.row.status == RunStatus::Cancelled;
        if found.as_ref().is_some_and(is_cancelled) {
            return Ok(found.map(|found| found.row));
        }
    }
    let found = found.ok_or_else(|| Error::not_found(format!("there is no run {run_id}")))?;
    let parts = &core.parts;
    // Whoever is in its workspace may be an owner that was not heard of for a while, and hears of it there.
    if found.standing() == Standing::Held || is_left {
        let ask = Change::RequestCancel {
            run_id: run_id.clone(),
            at: parts.now(),
        };
        match parts.writer.commit(vec![ask]).await {
            // It has ended, or was interrupted, since.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(Error::new(ErrorKind::Conflict, e));
            }
            asked => asked?,
        };
        let (parts, row) = (parts.clone(), found.row.clone());
        let lives = move || has_owner(&parts, &row);
        return match core.parts.blocking.run(lives).await?? {
            true => Ok(None),
            // Nobody hears of it before the run is settled.
            false => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the engine of run {run_id} is gone, and its workspace is in use; the run is cancelled by whoever settles it, or by asking again; nothing was touched"
                ),
            )),
        };
    }
    let asked = run_id.clone();
    let (phases, steps) = parts
        .reader
        .read(move |store| Ok((store.phases(&asked)?, store.steps(&asked)?)))
        .await?;
    let session_id = &found.row.session_id;
    let how = Closed::Cancelled;
    let mut changes = match found.row.status.is_terminal() {
        // The table refuses it, by name.
        true => Vec::new(),
        false => step_log::closing_changes(
            core,
            session_id,
            run_id,
            (&phases, &steps),
            how,
            None,
            false,
        ),
    };
    if !found.row.status.is_terminal() {
        changes.extend(answering::withdrawal(core, &found.row).await?);
        changes.extend(operation(core, &found.row).await?);
    }
    if let (Some(lease), false) = (&found.lease, found.row.status.is_terminal()) {
        // Whoever takes it over at the same time, or was taken for dead, is refused.
        let claim = Change::ClaimLease {
            run_id: run_id.clone(),
            from: Some(Box::new(lease.clone())),
            lease: Box::new(Lease::of_nobody(
                parts.engine_id.clone(),
                lease.epoch + 1,
                Moment::now()?,
                parts.now(),
            )),
            after: None,
        };
        changes.insert(0, claim);
    }
    let failure = Failure::new(
        ErrorKind::Cancelled.as_str(),
        match found.row.status {
            RunStatus::WaitingForInput => "cancelled while it waited for an answer",
            _ => "cancelled while it was interrupted",
        },
    );
    let mut data = failure.event_data();
    data["reason"] = data["message"].take();
    let step = Step {
        run_id: run_id.clone(),
        event: RunEvent::Cancelled,
        event_id: EventId::random(),
        data,
        ending: Some(Box::new(RunEnding {
            error: Some(failure),
            ..RunEnding::default()
        })),
        changes,
    };
    core.step_run(session_id, step).await?;
    Ok(Some(found.row))
}

/// Whether the owner of a run, though it was not heard of for long, is there and has the workspace: what it has started
/// may be at work.
async fn has_its_workspace(core: &Core, run: &RunRow) -> Result<bool, Error> {
    let Some(recorded) = run.workspace.clone() else {
        return Ok(false);
    };
    let (parts, asked) = (core.parts.clone(), run.clone());
    let looked = move || {
        let workspace = match has_owner(&parts, &asked)? {
            // One that is gone is nobody's.
            true => Workspace::open(&recorded.path, &parts.state_dir).ok(),
            false => None,
        };
        Ok::<_, Error>(workspace)
    };
    let Some(workspace) = core.parts.blocking.run(looked).await?? else {
        return Ok(false);
    };
    let blocking = &core.parts.blocking;
    let lock = RunLock::acquire(&workspace, "a cancellation", Duration::ZERO, blocking);
    match lock.await {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == ErrorKind::Busy => Ok(true),
        Err(e) => Err(e),
    }
}

/// The record of what a run that rests has changed, for an undo, if both its snapshots are there.
async fn operation(core: &Core, run: &RunRow) -> Result<Option<Change>, Error> {
    let Some(workspace) = run.workspace.clone() else {
        return Ok(None);
    };
    let ids = (workspace.before.clone(), workspace.after.clone());
    let are_there = core
        .parts
        .reader
        .read(move |store| {
            let is_there = |id| Ok::<_, StateError>(store.snapshot(id)?.is_some());
            Ok(is_there(&ids.0)? && is_there(&ids.1)?)
        })
        .await?;
    Ok(are_there.then(|| {
        Change::AddOperation(Box::new(OperationRow::of_run(
            &run.session_id,
            &run.id,
            &workspace.workspace_id,
            (&workspace.before, &workspace.after),
            core.parts.now(),
        )))
    }))
}

/// Refuses a run of another session.
pub(crate) fn check_session(row: &RunRow, session_id: &SessionId) -> Result<(), Error> {
    match row.session_id == *session_id {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "run {} is of session {}, not of {session_id}; nothing was touched",
                row.id, row.session_id
            ),
        )),
    }
}

/// Refuses to go on with a run in another workspace than it was in.
pub(crate) fn check_workspace(row: &RunRow, opened: Option<&Opened>) -> Result<(), Error> {
    let recorded = row.workspace.as_ref().map(|w| w.workspace_id.as_str());
    let asked = opened.map(|opened| opened.workspace.id());
    if recorded == asked {
        return Ok(());
    }
    let place = match &row.workspace {
        Some(workspace) => format!("in {}", stillframe_backends::printable(&workspace.path)),
        None => "in no workspace".to_owned(),
    };
    Err(Error::invalid_options(format!(
        "run {} was begun {place}, and can go on nowhere else; nothing was touched",
        row.id
    )))
}

/// What is on record of a run that has ended, or that waits. Blocks.
pub(crate) fn stored(
    parts: &Parts,
    row: RunRow,
    opened: Option<&Opened>,
) -> Result<RunOutcome, Error> {
    let run_id = row.id.clone();
    let (phases, questions) = parts.reader.read_blocking(|store| {
        let phases = RunExport::phases_of(store, &run_id)?;
        Ok((phases, store.questions(&run_id)?))
    })?;
    let summary = &row.summary;
    // Those that were forgotten since are not there.
    let snapshot = |key: &str| -> Result<Option<Snapshot>, Error> {
        let Some(id) = summary[key].as_str().and_then(|id| id.parse().ok()) else {
            return Ok(None);
        };
        let found = parts.reader.read_blocking(|store| store.snapshot(&id))?;
        Ok(found.map(|row| row.snapshot))
    };
    let (before, after) = (snapshot("before_snapshot")?, snapshot("after_snapshot")?);
    let diff = match (opened, &before, &after) {
        (Some(opened), Some(before), Some(after)) => {
            let mut options =
                DiffOptions::default().max_patch_bytes(opened.options.max_patch_bytes);
            options.capture_patch = opened.options.capture_patch;
            // What it was then is in the record in any case.
            compare::compare(parts, &opened.workspace, before, after, &options)
                .ok()
                .map(|(diff, _)| diff)
        }
        _ => None,
    };
    let output = match &row.output {
        Value::Null => None,
        output => Some(AdapterOutput {
            exit_code: row.exit_code,
            command: None,
            data: output["data"].clone(),
        }),
    };
    Ok(RunOutcome {
        session_id: row.session_id,
        run_id: row.id,
        run: RunResult {
            status: row.status,
            exit_code: row.exit_code,
            output,
            error: row.error,
        },
        workspace: WorkspaceOutcome {
            backend: part::<BackendKind>(&summary["backend"]),
            before_snapshot: before,
            after_snapshot: after,
            diff,
            rollback: part::<RestoreDocument>(&summary["rollback"]),
            error: part::<Failure>(&summary["error"]),
        },
        phases,
        questions: questions.into_iter().map(QuestionRecord::from).collect(),
        is_stored: true,
    })
}

/// A part of a record, which another version may have written in another way.
fn part<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}
