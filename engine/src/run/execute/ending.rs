//! The end of a run: what is written down of it, and what its caller is told.

use serde_json::{Value, json};
use stillframe_backends::ErrorKind;

use super::RunTask;
use super::result::{recorded, unwanted};
use crate::actors::core::Core;
use crate::blocking::panic_text;
use crate::error::Error;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::RunId;
use crate::records::operation::OperationRow;
use crate::records::outcome::{RunOutcome, RunResult, WorkspaceOutcome};
use crate::records::question::QuestionRecord;
use crate::records::restore_document::RestoreDocument;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunEnding;
use crate::records::step::Closed;
use crate::run::closing::{self, Closing};
use crate::run::settle;
use crate::state::change::{Change, NewEvent};
use crate::step::answering;
use crate::step::step_log::StepLog;

/// How often the end of a run is written down anew that something else came in between of.
const MAX_ENDINGS: usize = 4;

impl RunTask {
    /// Writes down how the run ended, and answers.
    pub(super) async fn end(
        &self,
        mut result: RunResult,
        mut closing: Closing,
        mut rollback: Option<RestoreDocument>,
        steps: &StepLog,
    ) -> Result<RunOutcome, Error> {
        let mut tries = 1;
        let logged = loop {
            let logged = self.log_end(&result, &closing, rollback.as_ref(), steps);
            match logged.await {
                // A question was answered in that moment, or somebody asked the run to stop.
                Err(e) if e.kind() == ErrorKind::Conflict && tries < MAX_ENDINGS => {
                    tries += 1;
                    if result.status.is_at_rest() && self.is_unwanted().await {
                        result = unwanted();
                        // What follows the end of a run, and not its rest.
                        closing = self.compared(closing).await;
                        rollback = self.roll_back(&closing, result.status).await;
                    }
                }
                logged => break logged,
            }
        };
        let phases = match steps.is_used() {
            true => steps.records().await.unwrap_or_default(),
            false => Vec::new(),
        };
        let questions = self.questions().await;
        let outcome = RunOutcome {
            session_id: self.session_id.clone(),
            run_id: self.run_id.clone(),
            run: result,
            workspace: WorkspaceOutcome {
                backend: closing.backend,
                before_snapshot: closing.before,
                after_snapshot: closing.after,
                diff: closing.diff,
                rollback,
                error: closing.error,
            },
            phases,
            questions,
            is_stored: false,
        };
        match logged {
            Ok(()) => Ok(outcome),
            Err(e) => Err(e.touched_if(true).with_outcome(outcome)),
        }
    }

    /// Writes down how the run ended, in one transaction.
    async fn log_end(
        &self,
        result: &RunResult,
        closing: &Closing,
        rollback: Option<&RestoreDocument>,
        steps: &StepLog,
    ) -> Result<(), Error> {
        let (event, how) = match result.status {
            RunStatus::Completed => (RunEvent::Done, Closed::Completed),
            RunStatus::Timeout => (RunEvent::TimedOut, Closed::Failed),
            RunStatus::Cancelled => (RunEvent::Cancelled, Closed::Cancelled),
            RunStatus::Interrupted => (RunEvent::Interrupted, Closed::Interrupted),
            RunStatus::WaitingForInput => (RunEvent::Parked, Closed::Interrupted),
            _ => (RunEvent::Failed, Closed::Failed),
        };
        if matches!(result.status, RunStatus::Completed | RunStatus::Failed) {
            // Those that could not be taken back before.
            steps
                .withdraw_all()
                .await
                .map_err(|e| e.touched_if(true).in_run(self.run_id.clone()))?;
        }
        let ending = RunEnding {
            exit_code: result.exit_code,
            error: result.error.clone(),
            output: result.output.as_ref().map_or(Value::Null, recorded),
            workspace: closing::summary(closing, rollback),
        };
        let mut changes = Vec::new();
        if steps.is_used() {
            let left = closing.after.as_ref().map(|after| &after.id);
            changes = steps
                .close(how, left)
                .await
                .map_err(|e| e.touched_if(true).in_run(self.run_id.clone()))?;
        }
        if result.status.is_at_rest() {
            changes.push(Change::RefuseIfCancelled(self.run_id.clone()));
        } else {
            changes.extend(self.operation(closing));
            changes.extend(self.withdrawal().await?);
        }
        let guard = rollback.and_then(|r| r.guard_snapshot.clone());
        changes.extend(guard.map(Change::EndRestore));
        let failures = [
            closing.error.as_ref(),
            rollback.and_then(|r| r.error.as_ref()),
        ];
        for failure in failures.into_iter().flatten() {
            changes.push(self.event(EventType::ERROR_OCCURRED, failure.event_data()));
        }
        let data = match &result.error {
            None if event == RunEvent::Parked => json!({ "questions": steps.open_questions() }),
            None => json!({ "exit_code": result.exit_code }),
            Some(failure) => {
                let mut data = failure.event_data();
                data["reason"] = data["message"].take();
                data["exit_code"] = json!(result.exit_code);
                data
            }
        };
        // Nothing has ended that could be resumed.
        let ending = (!result.status.is_at_rest()).then(|| Box::new(ending));
        self.step(event, data, ending, changes).await
    }

    /// Whether somebody wants the run to end for good.
    pub(super) async fn is_unwanted(&self) -> bool {
        if self.cancellation.is_cancelled() {
            return true;
        }
        let run_id = self.run_id.clone();
        let reader = &self.core.parts.reader;
        let lease = reader.read(move |store| store.lease(&run_id)).await;
        matches!(lease, Ok(Some(lease)) if lease.cancel_requested_at.is_some())
    }

    /// What takes back the questions that nobody will answer.
    async fn withdrawal(&self) -> Result<Vec<Change>, Error> {
        let run_id = self.run_id.clone();
        let reader = &self.core.parts.reader;
        let told = |e: Error| e.touched_if(true).in_run(self.run_id.clone());
        let row = reader.read(move |store| store.run(&run_id)).await;
        match row.map_err(told)? {
            Some(row) => answering::withdrawal(&self.core, &row).await.map_err(told),
            None => Ok(Vec::new()),
        }
    }

    /// What the run has asked, for whoever is told of its end.
    async fn questions(&self) -> Vec<QuestionRecord> {
        let run_id = self.run_id.clone();
        let reader = &self.core.parts.reader;
        let rows = reader.read(move |store| store.questions(&run_id)).await;
        let rows = rows.unwrap_or_default().into_iter();
        rows.map(QuestionRecord::from).collect()
    }

    /// The record of what the run changed, for an undo.
    fn operation(&self, closing: &Closing) -> Option<Change> {
        let place = self.workspace.as_ref()?;
        let (before, after) = closing.before.as_ref().zip(closing.after.as_ref())?;
        Some(Change::AddOperation(Box::new(OperationRow::of_run(
            &self.session_id,
            &self.run_id,
            place.opened.workspace.id(),
            (&before.id, &after.id),
            self.core.parts.now(),
        ))))
    }

    fn event(&self, event_type: EventType, data: Value) -> Change {
        let at = self.core.parts.now();
        let (session, run) = (&self.session_id, Some(&self.run_id));
        Change::Append(NewEvent::new(event_type, session, run, at, data))
    }

    /// Ends a run whose work was not begun, because the engine could not do its part. One that the host has named, so
    /// that it may be started again, rests instead: what was in the way may pass.
    pub(super) async fn refuse(&self, error: Error) -> Error {
        let failure = Failure::from(&error);
        let is_named = self.options.run_id.is_some() && !self.options.is_nameless;
        if is_named {
            // As below, the refusal is what the caller has to know.
            let _ = self.rest_or_cancel(&failure, true).await;
            return error.in_run(self.run_id.clone());
        }
        let mut data = failure.event_data();
        data["reason"] = data["message"].take();
        let ending = Box::new(RunEnding {
            error: Some(failure),
            ..RunEnding::default()
        });
        // The refusal is what the caller has to know. Where it could not be written down, the
        // next engine writes that the run was given up.
        let _ = self
            .step(RunEvent::Refused, data, Some(ending), Vec::new())
            .await;
        error.in_run(self.run_id.clone())
    }

    /// Puts a run to rest whose work has not begun in this process, or ends it if somebody wants that or it cannot be
    /// resumed. Says which.
    pub(super) async fn rest_or_cancel(
        &self,
        failure: &Failure,
        is_resumable: bool,
    ) -> Result<RunStatus, Error> {
        let mut data = failure.event_data();
        data["reason"] = data["message"].take();
        if is_resumable && !self.is_unwanted().await {
            let guard = vec![Change::RefuseIfCancelled(self.run_id.clone())];
            let rest = self.step(RunEvent::Interrupted, data.clone(), None, guard);
            match rest.await {
                // Somebody wants it to end for good in this moment.
                Err(e) if e.kind() == ErrorKind::Conflict && self.is_unwanted().await => {}
                rested => return rested.map(|()| RunStatus::Interrupted),
            }
        }
        let ending = Box::new(RunEnding {
            error: Some(failure.clone()),
            ..RunEnding::default()
        });
        self.step(RunEvent::Cancelled, data, Some(ending), Vec::new())
            .await
            .map(|()| RunStatus::Cancelled)
    }

    pub(super) async fn cancelled_before_start(&self) -> Result<RunOutcome, Error> {
        let failure = Failure::new("Cancelled", "cancelled before its work began");
        let status = self
            .rest_or_cancel(&failure, self.options.resumable)
            .await
            .map_err(|e| e.in_run(self.run_id.clone()))?;
        let backend = self
            .workspace
            .as_ref()
            .and_then(|p| p.backend.as_ref().ok());
        Ok(RunOutcome {
            session_id: self.session_id.clone(),
            run_id: self.run_id.clone(),
            run: RunResult {
                status,
                exit_code: None,
                output: None,
                error: Some(failure),
            },
            workspace: WorkspaceOutcome {
                backend: backend.map(|b| b.kind()),
                ..WorkspaceOutcome::default()
            },
            phases: Vec::new(),
            questions: Vec::new(),
            is_stored: false,
        })
    }
}

/// Ends a run whose own task is lost, which takes a defect of the engine.
pub(super) async fn abandon(core: &Core, run_id: &RunId, lost: tokio::task::JoinError) -> Error {
    let message = match lost.try_into_panic() {
        Ok(payload) => format!("the engine panicked: {}", panic_text(&*payload)),
        Err(_) => "the runtime is shutting down".to_owned(),
    };
    let failure = Failure::new(ErrorKind::Storage.as_str(), message);
    // The first failure is the one to tell.
    if let Err(e) = settle_lost(core, run_id, failure.clone()).await {
        tracing::warn!(run = %run_id, error = %e.chain(), "not settled");
    }
    Error::new(ErrorKind::Storage, failure.message)
        .touched_if(true)
        .in_run(run_id.clone())
}

/// Settles a run of this engine that has lost its task, as one whose engine is gone: it can go on if it has steps.
async fn settle_lost(core: &Core, run_id: &RunId, failure: Failure) -> Result<(), Error> {
    let asked = run_id.clone();
    let (row, lease) = core
        .parts
        .reader
        .read(move |store| Ok((store.run(&asked)?, store.lease(&asked)?)))
        .await?;
    let is_ours = lease.is_some_and(|lease| lease.owner == core.parts.engine_id);
    match row {
        Some(row) if is_ours && !row.status.is_terminal() && !row.status.is_at_rest() => {
            settle::settle_run(core, row, Some(failure)).await?;
            Ok(())
        }
        _ => Ok(()),
    }
}
