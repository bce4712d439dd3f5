//! The host's work: what runs between the before- and the after-snapshot.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use stillframe_backends::{ErrorKind, Snapshot};
use tokio_util::sync::CancellationToken;

use crate::blocking::Blocking;
use crate::error::Error;
use crate::events::event::{Event, EventType};
use crate::failure::Failure;
use crate::id::{RunId, SessionId, StepId};
use crate::records::output::AdapterOutput;
use crate::records::question::{Answer, Question, QuestionPlace};
use crate::step::phase::{Phase, StepError};
use crate::step::plan::{PlanReport, StepPlan};
use crate::step::step_log::StepLog;
use crate::step::tool::ToolCounters;

/// Does the work of a run.
///
/// The engine calls [`Adapter::run`] once for each run, after the before-snapshot is durable. The
/// work is over when the future is: whatever it started must have ended by then, because the
/// after-snapshot, and possibly a rollback, follow at once. A panic is a failed run.
pub trait Adapter: Send + Sync + 'static {
    /// Refuses options that cannot be right, before anything is done.
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        let _ = workspace;
        Ok(())
    }

    /// Does the work, until it is done or [`RunContext::cancellation`] is cancelled.
    ///
    /// A future that does not end within five seconds after the cancellation is dropped.
    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send;
}

impl<A: Adapter> Adapter for Arc<A> {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        A::check(self, workspace)
    }

    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        A::run(self, context)
    }
}

/// An adapter whose type was forgotten, for hosts that choose one while they run.
pub struct BoxAdapter(Box<dyn ErasedAdapter>);

type AdapterFuture<'a> =
    Pin<Box<dyn Future<Output = Result<AdapterOutput, AdapterError>> + Send + 'a>>;

/// [`Adapter`] in a form that can be a trait object.
trait ErasedAdapter: Send + Sync + 'static {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error>;
    fn run(&self, context: RunContext) -> AdapterFuture<'_>;
}

impl<A: Adapter> ErasedAdapter for A {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        Adapter::check(self, workspace)
    }

    fn run(&self, context: RunContext) -> AdapterFuture<'_> {
        Box::pin(Adapter::run(self, context))
    }
}

impl BoxAdapter {
    /// Forgets the type of `adapter`.
    pub fn new(adapter: impl Adapter) -> Self {
        Self(Box::new(adapter))
    }
}

impl fmt::Debug for BoxAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxAdapter")
    }
}

impl Adapter for BoxAdapter {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        self.0.check(workspace)
    }

    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        self.0.run(context)
    }
}

/// What an adapter knows of the run that it works for.
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
    /// Cancelled when the work should stop.
    pub cancellation: CancellationToken,
    pub(crate) blocking: Blocking,
    pub(crate) steps: StepLog,
    pub(crate) tools: Arc<Mutex<ToolCounters>>,
    /// How often which text was asked outside of steps.
    pub(crate) asked: Arc<Mutex<HashMap<String, u32>>>,
    /// The step in which this is used, by its number among those that are being done.
    pub(crate) within: Option<u64>,
}

impl RunContext {
    /// The phase of this name, in which steps are done once: their results are kept, and a run whose engine died
    /// is resumed by starting its id again, which does what was not done.
    ///
    /// Nothing is written before its first step. A run with a phase is left as
    /// [`Interrupted`](crate::RunStatus::Interrupted) by an engine that dies or shuts down.
    ///
    /// ```no_run
    /// # async fn work(context: stillframe::RunContext) -> Result<(), stillframe::AdapterError> {
    /// let plan = context.phase("plan");
    /// let tasks: Vec<String> = plan
    ///     .step("analyse", |_| async { Ok(vec!["parser".to_owned()]) })
    ///     .await?;
    /// for (round, task) in (0..).zip(&tasks) {
    ///     let edit = context.phase("edit").iteration(round);
    ///     edit.step("apply", |step| async move {
    ///         println!("attempt {} at {task}", step.attempt);
    ///         Ok(())
    ///     })
    ///     .await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn phase(&self, name: impl Into<String>) -> Phase {
        Phase::new(self.clone(), self.steps.clone(), name.into())
    }

    /// Compares the steps that are going to be done with those that are on record.
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

    /// As [`StepContext::ask`](crate::StepContext::ask), outside of any step. A run without phases that was not begun
    /// as [resumable](crate::RunOptions::resumable) is never put to rest: it waits until the deadline.
    pub async fn ask(&self, question: Question) -> Result<Answer, Error> {
        self.ask_in(None, &self.asked, question).await
    }

    /// Asks, where the same text has been asked as often as `asked` says.
    pub(crate) async fn ask_in(
        &self,
        step: Option<&StepId>,
        asked: &Mutex<HashMap<String, u32>>,
        question: Question,
    ) -> Result<Answer, Error> {
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
            .ask(place, self.within, &question, &self.cancellation)
            .await
    }

    /// Appends an event to the log of the session; it is durable on `Ok`.
    ///
    /// The types that the engine writes are refused. `data` should have ids, counts, states and
    /// paths: never the content of files, never credentials.
    pub async fn emit(
        &self,
        event_type: EventType,
        data: serde_json::Value,
    ) -> Result<Event, Error> {
        check_own(&event_type)?;
        self.steps.append(event_type, data).await
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

/// Why the work of a run did not end well.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", failure.message)]
#[non_exhaustive]
pub struct AdapterError {
    /// How it ended.
    pub ending: Ending,
    /// Why, for people and for the log.
    pub failure: Failure,
    /// What there was of an output.
    pub output: Option<AdapterOutput>,
    /// Whether it is the engine that could not do its part, so that the work may go on another time.
    pub(crate) is_of_engine: bool,
}

/// How work that did not end well ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It failed.
    Failed,
    /// Its time was up.
    TimedOut,
    /// It stopped because it was asked to.
    Cancelled,
}

impl AdapterError {
    /// The work failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Ending::Failed, Failure::of_work(message))
    }

    /// The work was stopped because its time was up.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Ending::TimedOut, Failure::new("Timeout", message))
    }

    /// The work stopped because it was asked to.
    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::new(Ending::Cancelled, Failure::new("Cancelled", message))
    }

    /// The work ended like this, for this reason.
    pub fn new(ending: Ending, failure: Failure) -> Self {
        Self {
            ending,
            failure,
            output: None,
            is_of_engine: false,
        }
    }

    /// Keeps what there was of an output.
    pub fn output(mut self, output: AdapterOutput) -> Self {
        self.output = Some(output);
        self
    }
}

/// The engine could not do its part of the work, so that the work cannot go on.
impl From<Error> for AdapterError {
    fn from(error: Error) -> Self {
        let ending = match error.kind() {
            ErrorKind::Cancelled => Ending::Cancelled,
            _ => Ending::Failed,
        };
        // What was asked for in a way that cannot be right is no better another time.
        let is_of_engine = error.kind() != ErrorKind::InvalidOptions;
        Self {
            is_of_engine,
            ..Self::new(ending, Failure::from(&error))
        }
    }
}

/// Refuses what a host may not write.
fn check_own(event_type: &EventType) -> Result<(), Error> {
    if event_type.is_reserved() {
        return Err(Error::invalid_options(format!(
            "events of the type {event_type} are the engine's"
        )));
    }
    if !event_type.is_well_formed() {
        return Err(Error::invalid_options(format!(
            "{:?} is no type of events: 1 to 64 lower-case letters, digits or \"_\", the first a letter",
            event_type.as_str()
        )));
    }
    Ok(())
}
