//! What an adapter gets of the run that it works for.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use stillframe_backends::Snapshot;
use tokio_util::sync::CancellationToken;

use crate::blocking::Blocking;
use crate::error::Error;
use crate::events::draft::EventDraft;
use crate::events::event::{Event, EventType};
use crate::id::{RunId, SessionId, StepId};
use crate::records::artifact::{ArtifactDraft, ArtifactRecord};
use crate::records::block::Block;
use crate::records::follow_up::FollowUpInput;
use crate::records::question::{Answer, Question, QuestionPlace};
use crate::records::revision::Revision;
use crate::step::adapter_error::AdapterError;
use crate::step::checkpointed::Checkpointed;
use crate::step::emit;
use crate::step::message_stream::MessageStream;
use crate::step::plan::{PlanReport, StepPlan};
use crate::step::step_error::StepError;
use crate::step::step_log::{Approval, StepLog};
use crate::step::tool_counters::ToolCounters;

/// What an adapter gets of the run that it works for.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunContext {
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// What the run is for, in the host's words.
    pub input: String,
    /// The directory of the workspace: absolute, without links; `None`: the run has none.
    pub workspace: Option<PathBuf>,
    /// The snapshot that was taken before the work; `None`: the run has no workspace.
    pub snapshot_before: Option<Arc<Snapshot>>,
    /// Whether something in the workspace that the run was cut from is not committed, and so not in
    /// the run's [own worktree](crate::RunOptions::isolated); `None`: it has none, goes on, or that
    /// could not be found out.
    pub leaves_edits_out: Option<bool>,
    /// The input that the run goes on with, which was [blocked](RunContext::blocked); `None`: it
    /// was not. It stays when the run is resumed after that.
    pub follow_up: Option<Arc<FollowUpInput>>,
    /// What the run is to change in what it had handed in for a review; `None`: it works for the
    /// first time. It stays when the run is resumed after that.
    pub revision: Option<Arc<Revision>>,
    /// Cancelled when the work should stop.
    pub cancellation: CancellationToken,
    pub(crate) blocking: Blocking,
    pub(crate) steps: StepLog,
    pub(crate) tools: Arc<Mutex<ToolCounters>>,
    /// How often which text was asked outside of steps.
    pub(crate) asked: Arc<Mutex<HashMap<String, u32>>>,
    /// The step in which this is used, by its number among those that are being done.
    pub(crate) within: Option<u64>,
    /// The same step on record.
    pub(crate) step_id: Option<StepId>,
    /// How often which text was asked in its attempt.
    pub(crate) asked_in_step: Option<Arc<Mutex<HashMap<String, u32>>>>,
}

impl RunContext {
    /// Compares the planned steps with those on record.
    ///
    /// # Errors
    ///
    /// [`StepError::PlanChanged`]: a step is on record with another definition. Nothing was done.
    pub async fn check_plan(&self, plan: &StepPlan) -> Result<PlanReport, StepError> {
        let report = PlanReport::compare(plan, &self.steps.steps().await?);
        match report.is_refused() {
            true => Err(StepError::PlanChanged(Box::new(report))),
            false => {
                self.steps.keep_metadata().await?;
                Ok(report)
            }
        }
    }

    /// As [`StepContext::ask`](crate::steps::StepContext::ask), outside of any step. A run without
    /// phases that was not begun as [resumable](crate::RunOptions::resumable) is never parked: it
    /// waits until the deadline.
    pub async fn ask(&self, question: Question) -> Result<Answer, Error> {
        self.ask_in(None, &self.asked, question, None).await
    }

    /// Asks, where the same text has been asked as often as `asked` says. `approval`: the call of a
    /// tool that the answer allows or refuses.
    pub(crate) async fn ask_in(
        &self,
        step: Option<&StepId>,
        asked: &Mutex<HashMap<String, u32>>,
        mut question: Question,
        approval: Option<Approval>,
    ) -> Result<Answer, Error> {
        // Before it is looked for: it is known by its text.
        question.redact(self.steps.secrets());
        let nth = {
            let mut asked = asked.lock().unwrap_or_else(|e| e.into_inner());
            let times = asked.entry(question.text.clone()).or_default();
            let nth = *times;
            *times += 1;
            nth
        };
        let place = QuestionPlace {
            step_id: step.cloned(),
            text: question.text.clone(),
            nth,
        };
        self.steps
            .ask(
                place,
                self.within,
                (&question, approval),
                &self.cancellation,
            )
            .await
    }

    /// Says that the run has made progress: what is in the workspace is saved on the branch of its
    /// [task](crate::RunOptions::work_branch) as
    /// [`SessionManager::checkpoint`](crate::SessionManager::checkpoint) saves it, at most once in
    /// [the interval](crate::tasks::WorkBranchOptions::checkpoint_interval). A call within it does
    /// nothing, starts no process, and takes microseconds. One whose workspace is as it was saved
    /// last, or was refused last for a secret value, is captured, and starts no process either.
    ///
    /// The workspace is in use only while it is captured, and what works in it meanwhile is not
    /// disturbed. What could not be saved is answered and on record, and fails neither the call nor
    /// the run. When the work should stop, so does a checkpoint that is being made: the end of the
    /// run saves everything in any case.
    ///
    /// A run of [several repositories](crate::RunOptions::repository) saves each of them, in their
    /// order, and one that fails stops no other.
    ///
    /// ```no_run
    /// # use stillframe::{AdapterError, RunContext};
    /// # async fn apply(_: &str) -> Result<(), AdapterError> { Ok(()) }
    /// # async fn work(context: RunContext, parts: &[&str]) -> Result<(), AdapterError> {
    /// for part in parts {
    ///     apply(part).await?;
    ///     context.checkpoint().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was done. `InvalidOptions`: the run is of no task. `Conflict`: it has ended.
    pub async fn checkpoint(&self) -> Result<Checkpointed, Error> {
        self.checkpointed(false).await
    }

    /// As [`RunContext::checkpoint`], whatever the interval is and whether or not anything has
    /// changed: the answer says where the work is at this moment.
    pub async fn checkpoint_now(&self) -> Result<Checkpointed, Error> {
        self.checkpointed(true).await
    }

    /// Says that the work cannot go on without a person: what it is to return. `block` is the
    /// reason, or a [`Block`] that says more.
    ///
    /// What is in the workspace is then saved on the branch of the run's
    /// [task](crate::RunOptions::work_branch). Once that is proven the run is
    /// [`AwaitingFollowup`](crate::RunStatus::AwaitingFollowup), and
    /// [`Engine::claim_follow_up`](crate::Engine::claim_follow_up) goes on with it. If it is not
    /// proven, or the run is of no task, the run has failed; its work stays in the workspace and in
    /// the store, and nothing is rolled back.
    ///
    /// ```no_run
    /// # use stillframe::{AdapterError, AdapterOutput, RunContext};
    /// # struct Agent;
    /// impl stillframe::Adapter for Agent {
    ///     async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
    ///         let Some(answer) = &context.follow_up else {
    ///             return Err(context.blocked("which port does staging have?"));
    ///         };
    ///         println!("it goes on with {}", answer.text);
    ///         Ok(AdapterOutput::empty())
    ///     }
    /// }
    /// ```
    pub fn blocked(&self, block: impl Into<Block>) -> AdapterError {
        AdapterError::blocked(block.into())
    }

    async fn checkpointed(&self, now: bool) -> Result<Checkpointed, Error> {
        self.steps.checkpoint(now, &self.cancellation).await
    }

    /// Appends an event to the log of the session; it is durable on `Ok`.
    ///
    /// The types that only the engine writes are refused. `data` should have ids, counts, states
    /// and paths: never the content of files, never credentials.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`, `LimitExceeded` or `Conflict`, as [`EventDraft`] says; nothing was
    /// written. `PolicyViolation`: the call of a tool that begins is not allowed, and nothing was
    /// written; or the use that is reported is too much, and it is written, as
    /// [`RunContext::report_usage`] says.
    pub async fn emit(
        &self,
        event_type: EventType,
        data: serde_json::Value,
    ) -> Result<Event, Error> {
        self.emit_draft(EventDraft::new(event_type, data)).await
    }

    /// As [`RunContext::emit`], with all that an event may say.
    pub async fn emit_draft(&self, draft: EventDraft) -> Result<Event, Error> {
        emit::one(self.emit_batch(vec![draft]).await)
    }

    /// Appends several events, in this order, all or none; but where the call of a tool among them
    /// is not allowed, the reports of usage are written and count, and nothing else is.
    pub async fn emit_batch(&self, drafts: Vec<EventDraft>) -> Result<Vec<Event>, Error> {
        self.emit_watched(drafts).await
    }

    /// A message that arrives in pieces. They are stored as `message_streamed`, with `message_id`,
    /// `text`, and `piece`, which counts from 1.
    ///
    /// At most one event is stored every 250 ms; pieces that come between are put together. Before
    /// the next event of the adapter, of its steps and tools, and when the work ends, what has come
    /// is stored. A word at the end that may be the beginning of a [secret value](crate::secrets)
    /// is stored with what follows it. So a value is redacted though it comes in several pieces.
    pub fn stream_message(&self, message_id: impl Into<String>) -> MessageStream {
        MessageStream::begin(self.steps.clone(), message_id.into())
    }

    /// Stores `content` as an artifact of the run, in place of what is there under its key.
    ///
    /// # Errors
    ///
    /// Nothing was stored. `InvalidOptions`: the key is none, or one of those that the engine makes
    /// up. `Conflict`: the run has ended, or another engine has taken it over.
    pub async fn put_artifact(
        &self,
        draft: ArtifactDraft,
        content: Box<dyn Read + Send>,
    ) -> Result<ArtifactRecord, Error> {
        let _part = self.steps.part(self.within);
        self.steps.put_artifact(draft, content).await
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("session_id", &self.session_id)
            .field("run_id", &self.run_id)
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}
