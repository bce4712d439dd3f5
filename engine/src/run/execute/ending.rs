//! Ending a run: the record of the end, and the answer to the caller.

use stillframe_backends::ErrorKind;

use super::RunTask;
use super::blocked::Way;
use super::result::{returned, unwanted};
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::RunEnded;
use crate::failure::Failure;
use crate::id::RunId;
use crate::records::came_for::CameFor;
use crate::records::checkpoint::CheckpointKind;
use crate::records::follow_up::FollowUpRecord;
use crate::records::outcome::{RunOutcome, RunResult, WorkspaceOutcome};
use crate::records::question::QuestionRecord;
use crate::records::restore_document::RestoreDocument;
use crate::records::run::EndsAs;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::step::milliseconds;
use crate::run::closing::{self, Closing};
use crate::run::end::{Changed, End, Left, end_run};
use crate::run::{cancel, settle};
use crate::saving::waiting;
use crate::state::StateStore;
use crate::state::change::Change;
use crate::step::step_log::StepLog;

/// How often the end of a run is written down anew that something else came in between of.
const MAX_ENDINGS: usize = 4;

impl RunTask {
    /// Writes down how the run ended, and answers.
    pub(super) async fn end(
        &mut self,
        mut result: RunResult,
        mut closing: Closing,
        mut rollback: Option<RestoreDocument>,
        steps: &StepLog,
    ) -> Result<RunOutcome, Error> {
        let way = loop {
            let way = self.way(&mut result, &mut closing, rollback.as_ref(), steps);
            match Box::pin(way).await {
                Ok(way) => break way,
                // What was told it is blocked is so, though its command had ended before.
                Err(e)
                    if e.kind() == ErrorKind::Conflict
                        && self.heeds_reports
                        && self.heed_report(&mut result).await => {}
                Err(e) => return Err(e.touched_if(true).in_run(self.run_id.clone())),
            }
        };
        let mut tries = 1;
        let logged = loop {
            let logged = self.log_end(&result, &closing, rollback.as_ref(), (steps, &way));
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
        let logged = match (logged, &way) {
            (Ok(()), Way::Waits(_)) if self.is_unwanted().await => {
                // It is on its branch, and nobody wants it to go on.
                result = unwanted();
                cancel::cancelled(&self.core, &self.run_id).await.map(drop)
            }
            (Ok(()), Way::Concludes(_)) => self.hand_in(&mut result).await,
            (logged, _) => logged,
        };
        let phases = match steps.is_used() {
            true => steps.records().await.unwrap_or_default(),
            false => Vec::new(),
        };
        let questions = self.questions().await;
        let follow_up = match result.status {
            RunStatus::AwaitingFollowup => self.waits_with().await,
            _ => None,
        };
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
                resumed: closing.resumed.map(|resumed| *resumed),
                saved: closing.saved,
                repositories: closing.repositories,
            },
            phases,
            questions,
            follow_up,
            isolation: self.isolation().await,
            is_stored: false,
        };
        match logged {
            Ok(()) => Ok(outcome),
            Err(e) => Err(e.touched_if(true).with_outcome(outcome)),
        }
    }

    /// Saves what the run left on the branch of its task, and says how it ends from there.
    async fn way(
        &self,
        result: &mut RunResult,
        closing: &mut Closing,
        rollback: Option<&RestoreDocument>,
        steps: &StepLog,
    ) -> Result<Way, Error> {
        if result.status == RunStatus::Blocked {
            match self.checkpointed(result, closing, rollback, steps).await? {
                Way::Ends => {}
                way => return Ok(way),
            }
        }
        if let Some(concluded) = &self.concluded {
            return Ok(Way::Concludes(concluded.clone()));
        }
        Ok(match self.saved(result, closing, rollback, steps).await? {
            true => Way::Persisted,
            false => Way::Ends,
        })
    }

    /// Writes down how the run ended.
    async fn log_end(
        &self,
        result: &RunResult,
        closing: &Closing,
        rollback: Option<&RestoreDocument>,
        (steps, way): (&StepLog, &Way),
    ) -> Result<(), Error> {
        let ends = EndsAs::parse(result.status.as_str());
        let event = match (result.status, way, ends) {
            (_, Way::Persisted, Some(ends)) => RunEvent::Persisted(ends),
            (_, Way::Waits(_), _) => RunEvent::Proven,
            (_, Way::Unproven, _) => RunEvent::Unproven,
            (_, Way::Concludes(_), _) => RunEvent::Concluded,
            (status, ..) => match status {
                RunStatus::Completed => RunEvent::Done,
                RunStatus::Timeout => RunEvent::TimedOut,
                RunStatus::Cancelled => RunEvent::Cancelled,
                RunStatus::Interrupted => RunEvent::Interrupted,
                RunStatus::WaitingForInput => RunEvent::Parked,
                _ => RunEvent::Failed,
            },
        };
        if matches!(result.status, RunStatus::Completed | RunStatus::Failed) {
            // Those that could not be undone before.
            steps.withdraw_all().await?;
        }
        let problems = [
            closing.error.as_ref(),
            rollback.and_then(|r| r.error.as_ref()),
        ];
        let left = Left {
            steps: match steps.is_used() {
                true => steps.until_now().await?,
                false => Default::default(),
            },
            after: closing.after.as_ref().map(|after| after.id.clone()),
            changed: self.changed(closing),
            guard: rollback.and_then(|r| r.guard_snapshot.clone()),
            problems: problems.into_iter().flatten().cloned().collect(),
        };
        let exit_code = Some(result.exit_code);
        let said = match &result.error {
            None if event == RunEvent::Parked => RunEnded {
                questions: Some(steps.open_questions()),
                ..RunEnded::default()
            },
            None => RunEnded {
                exit_code,
                ..RunEnded::default()
            },
            Some(failure) => RunEnded {
                exit_code,
                ..RunEnded::because(failure)
            },
        };
        let worked = result.status.is_at_rest().then(|| steps.clock().worked());
        let said = RunEnded {
            worked_ms: worked.map(milliseconds),
            ..said
        };
        let end = End {
            exit_code: result.exit_code,
            error: result.error.clone(),
            output: returned(result),
            workspace: closing::summary(closing, rollback),
            left: Some(left),
            ..End::new(event, said)
        };
        let blocked = match way {
            Way::Waits(blocked) => blocked,
            Way::Concludes(concluded) => {
                return self.write_end(self.concluding(concluded, end)).await;
            }
            _ => return self.write_end(end).await,
        };
        let waits = self.waits(blocked).await?;
        let waits = waits.ok_or_else(|| {
            let message = "what was proven of a blocked run is not on record any more";
            Error::new(ErrorKind::Corrupt, message)
        })?;
        self.write_end(End {
            said: waits.said,
            changes: waits.changes,
            ..end
        })
        .await
    }

    /// What the run waits with.
    async fn waits_with(&self) -> Option<FollowUpRecord> {
        let run_id = self.run_id.clone();
        let read = move |store: &dyn StateStore| match store.run(&run_id)? {
            Some(run) => waiting::waits_with(store, &run),
            None => Ok(None),
        };
        let row = self.core.parts.reader.read(read).await.ok()??;
        Some(row.into())
    }

    /// Saves what the run left in each of its repositories, once it is on record how the work
    /// ended, unless it rests or is of no task. Answers whether the run ends from there.
    async fn saved(
        &self,
        result: &RunResult,
        closing: &mut Closing,
        rollback: Option<&RestoreDocument>,
        steps: &StepLog,
    ) -> Result<bool, Error> {
        let Some(ends) = EndsAs::parse(result.status.as_str()) else {
            return Ok(false);
        };
        let unsaved = self.unsaved(closing).await;
        let files = closing.diff.as_ref().map(|d| d.files_changed);
        // Without any repository that can be read there is nothing to be told of.
        let said = unsaved.started(CheckpointKind::of_end(ends), files, false);
        let persists = said.is_some();
        if let Some(said) = said {
            if matches!(ends, EndsAs::Completed | EndsAs::Failed) {
                steps.withdraw_all().await?;
            }
            self.write_end(End {
                exit_code: result.exit_code,
                error: result.error.clone(),
                output: returned(result),
                workspace: closing::summary(closing, rollback),
                changes: match self.heeds_reports {
                    true => vec![Change::RefuseIfReported(self.run_id.clone())],
                    false => Vec::new(),
                },
                ..End::new(RunEvent::Persisting(ends), said)
            })
            .await?;
        }
        let (ids, came_for) = ((&self.session_id, &self.run_id), CameFor::End(ends));
        let done = Box::pin(unsaved.save(&self.core, ids, &came_for)).await;
        self.note(&done, closing);
        Ok(persists)
    }

    /// Ends the run or parks it, unless it is another engine's by then.
    pub(super) async fn write_end(&self, end: End) -> Result<(), Error> {
        let end = End {
            right: Some(self.hold.fence()),
            ..end
        };
        end_run(&self.core, (&self.session_id, &self.run_id), end).await
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

    /// The questions of the run, for its outcome.
    async fn questions(&self) -> Vec<QuestionRecord> {
        let run_id = self.run_id.clone();
        let reader = &self.core.parts.reader;
        let rows = reader.read(move |store| store.questions(&run_id)).await;
        let rows = rows.unwrap_or_default().into_iter();
        rows.map(QuestionRecord::from).collect()
    }

    /// What the run changed, for an undo.
    fn changed(&self, closing: &Closing) -> Option<Changed> {
        // What was done in a worktree of its own is nothing to be undone in the workspace.
        let place = self
            .workspace
            .as_ref()
            .filter(|_| self.isolated.is_none())?;
        let (before, after) = closing.before.as_ref().zip(closing.after.as_ref())?;
        Some(Changed {
            workspace_id: place.opened.workspace.id().to_owned(),
            before: before.id.clone(),
            after: after.id.clone(),
        })
    }

    /// Ends a run whose work was not begun, because the engine could not do its part. One that the
    /// host has named, so that it may be started again, rests instead: what was in the way may
    /// pass.
    pub(super) async fn refuse(&self, error: Error) -> Error {
        let failure = Failure::from(&error);
        let is_named = self.options.run_id.is_some() && !self.options.is_nameless;
        if is_named {
            // As below, the refusal is what the caller has to know.
            let _ = self.rest_or_cancel(&failure, true).await;
            return error.in_run(self.run_id.clone());
        }
        let said = RunEnded::because(&failure);
        // The refusal is what the caller has to know. Where it could not be written down, the
        // next engine writes that the run was given up.
        let _ = self
            .write_end(End {
                error: Some(failure),
                ..End::new(RunEvent::Refused, said)
            })
            .await;
        error.in_run(self.run_id.clone())
    }

    /// Parks a run whose work has not begun in this process, or ends it if somebody wants
    /// that or it cannot be resumed. Says which.
    pub(super) async fn rest_or_cancel(
        &self,
        failure: &Failure,
        is_resumable: bool,
    ) -> Result<RunStatus, Error> {
        let said = RunEnded::because(failure);
        if is_resumable && !self.is_unwanted().await {
            let rest = self.write_end(End::new(RunEvent::Interrupted, said.clone()));
            match rest.await {
                // Somebody wants it to end for good in this moment.
                Err(e) if e.kind() == ErrorKind::Conflict && self.is_unwanted().await => {}
                rested => return rested.map(|()| RunStatus::Interrupted),
            }
        }
        self.write_end(End {
            error: Some(failure.clone()),
            ..End::new(RunEvent::Cancelled, said)
        })
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
            follow_up: None,
            isolation: self.isolation().await,
            is_stored: false,
        })
    }
}

/// Ends a run whose task has panicked, which takes a defect of the engine.
pub(super) async fn abandon(core: &Core, run_id: &RunId, panic: &str) -> Error {
    let message = format!("the engine panicked: {panic}");
    let failure = Failure::new(ErrorKind::Storage.as_str(), message);
    // The first failure is the one to tell.
    if let Err(e) = settle_lost(core, run_id, failure.clone()).await {
        tracing::warn!(run = %run_id, error = %e.chain(), "not settled");
    }
    Error::new(ErrorKind::Storage, failure.message)
        .touched_if(true)
        .in_run(run_id.clone())
}

/// Settles a run of this engine that has lost its task, as one whose engine is gone: it can go on
/// if it has steps.
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
