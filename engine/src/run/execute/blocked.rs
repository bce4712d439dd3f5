//! A run whose work cannot go on without a person.

use serde::Deserialize as _;
use stillframe_backends::{ErrorKind, PreparedCandidate};

use super::RunTask;
use super::result::returned;
use crate::error::{Error, stopped};
use crate::events::data::RunEnded;
use crate::events::event::EventType;
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::WorkTaskId;
use crate::records::block::Block;
use crate::records::came_for::CameFor;
use crate::records::checkpoint::CheckpointKind;
use crate::records::follow_up::DEFAULT_WAITING_REASON;
use crate::records::outcome::RunResult;
use crate::records::restore_document::RestoreDocument;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::saved_work::SavedWork;
use crate::records::step::milliseconds;
use crate::run::closing::{self, Closing};
use crate::run::end::End;
use crate::saving::waiting::{self, Waits};
use crate::step::adapter_error::BLOCKED;
use crate::step::step_log::StepLog;

/// What a blocked run is to wait with.
pub(super) struct Blocked {
    /// What became of its work on each of its tasks, that of its own repository first.
    works: Vec<(WorkTaskId, SavedWork)>,
    block: Block,
}

/// How far the work of a run is saved when its end is written down.
pub(super) enum Way {
    /// It is not: the run is of no task, or rests.
    Ends,
    /// As far as it can be.
    Persisted,
    /// It is proven to be on its branch, and the run waits.
    Waits(Blocked),
    /// It is not proven, and the run can wait for nothing.
    Unproven,
    /// It is to be committed in the run's own worktree, and handed in.
    Concludes(Box<PreparedCandidate>),
}

impl RunTask {
    /// Makes a run blocked that ended by itself, and whose command has said that it is. Says
    /// whether it is.
    pub(super) async fn heed_report(&mut self, result: &mut RunResult) -> bool {
        let has_ended = matches!(result.status, RunStatus::Completed | RunStatus::Failed);
        if self.options.work_branch.is_none() || !has_ended || self.is_refused {
            return false;
        }
        self.heeds_reports = true;
        let query = EventQuery {
            event_types: vec![EventType::RUN_STARTED, EventType::BLOCK_REPORTED],
            ..EventQuery::session(self.session_id.clone()).run(self.run_id.clone())
        };
        let reader = &self.core.parts.reader;
        let told = match reader.read(move |store| store.events(&query)).await {
            Ok(mut told) => told.pop(),
            Err(e) => {
                tracing::warn!(run = %self.run_id, error = %e.chain(), "whether it is blocked is not known");
                None
            }
        };
        // What an earlier attempt has said has been answered.
        let told = told.filter(|event| event.event_type == EventType::BLOCK_REPORTED);
        let Some(block) = told.and_then(|event| Block::deserialize(event.data).ok()) else {
            return false;
        };
        self.heeds_reports = false;
        let reason = block.told().unwrap_or(DEFAULT_WAITING_REASON);
        result.status = RunStatus::Blocked;
        result.error = Some(Failure::new(BLOCKED, reason));
        self.block = Some(Box::new(block));
        true
    }

    /// Saves what a blocked run has in each of its repositories. The result says whether it waits
    /// or has failed.
    pub(super) async fn checkpointed(
        &self,
        result: &mut RunResult,
        closing: &mut Closing,
        rollback: Option<&RestoreDocument>,
        steps: &StepLog,
    ) -> Result<Way, Error> {
        let said = result.error.as_ref().map(|error| error.message.as_str());
        let block = self.block.as_deref().cloned();
        let block = block.unwrap_or_else(|| Block::new(said.unwrap_or_default()).kept());
        let unsaved = self.unsaved(closing).await;
        let obstacle = match (&self.options.work_branch, &unsaved.own) {
            (None, _) => {
                Some("the run is of no task, so that nobody could go on with it".to_owned())
            }
            (_, None) => Some("what it left could not be captured".to_owned()),
            (Some(_), Some(_)) => unsaved.obstacle(),
        };
        let files = closing.diff.as_ref().map(|diff| diff.files_changed);
        let begun = unsaved.started(CheckpointKind::Blocked, files, false);
        let (None, Some(begun)) = (&obstacle, begun) else {
            *result = self.given_up(result, &obstacle.unwrap_or_default(), rollback);
            return Ok(Way::Ends);
        };
        steps.withdraw_all().await?;
        let failure = result.error.clone();
        let said = RunEnded {
            exit_code: Some(result.exit_code),
            worked_ms: Some(milliseconds(steps.clock().worked())),
            ..failure.as_ref().map(RunEnded::because).unwrap_or_default()
        };
        self.write_end(End {
            exit_code: result.exit_code,
            error: failure,
            output: returned(result),
            workspace: closing::summary(closing, rollback),
            block: Some(Box::new(block.clone())),
            ..End::new(RunEvent::Blocked, said)
        })
        .await?;
        self.write_end(End::new(RunEvent::CheckpointBegun, begun))
            .await?;
        let (core, ids) = (&self.core, (&self.session_id, &self.run_id));
        let came_for = CameFor::Block(Box::new(block.clone()));
        let done = Box::pin(unsaved.save(core, ids, &came_for)).await;
        self.note(&done, closing);
        let works = done.works();
        let blocked = works.map(|works| Blocked { works, block });
        let waits = match &blocked {
            Some(blocked) => self.waits(blocked).await?,
            None => None,
        };
        match blocked.filter(|_| waits.is_some()) {
            Some(blocked) => {
                result.status = RunStatus::AwaitingFollowup;
                result.error = None;
                Ok(Way::Waits(blocked))
            }
            // It is made again by whoever comes next.
            None if core.stopping.is_cancelled() => Err(stopped()),
            None => {
                let why = done.why();
                let why = why.unwrap_or_else(|| "the remote has not shown it".to_owned());
                *result = self.given_up(result, &why, rollback);
                Ok(Way::Unproven)
            }
        }
    }

    /// What the run waits with, as it is to be written down.
    pub(super) async fn waits(&self, blocked: &Blocked) -> Result<Option<Waits>, Error> {
        let ids = (&self.session_id, &self.run_id);
        waiting::waits(&self.core, ids, &blocked.block, &blocked.works).await
    }

    /// The result of a blocked run that nobody could go on with.
    fn given_up(
        &self,
        result: &RunResult,
        why: &str,
        rollback: Option<&RestoreDocument>,
    ) -> RunResult {
        let reason = result.error.as_ref().map(|error| error.message.as_str());
        let reason = reason.unwrap_or(DEFAULT_WAITING_REASON);
        let workspace = self.options.workspace.as_ref();
        let rolls_back = workspace.is_some_and(|workspace| workspace.rollback_on_failure);
        let stays = match (rolls_back, rollback) {
            (true, None) => "; nothing was rolled back",
            // It was said after that.
            (_, Some(_)) => "; the workspace was rolled back before, and the store has its work",
            (false, None) => "",
        };
        let message =
            format!("it is blocked ({reason}), and cannot wait for an answer: {why}{stays}");
        RunResult {
            status: RunStatus::Failed,
            error: Some(Failure::new(ErrorKind::Unavailable.as_str(), message)),
            ..result.clone()
        }
    }
}
