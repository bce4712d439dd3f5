//! Phases and steps for an adapter: named parts of a run, each done once.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stillframe_backends::{ErrorKind, SnapshotId};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::error::Error;
use crate::failure::Failure;
use crate::id::StepId;
use crate::policy::PolicySubject;
use crate::policy::violation::PolicyViolation;
use crate::records::effect::CommitRecord;
use crate::records::output::AdapterOutput;
use crate::records::question::{Answer, Question, QuestionPlace};
use crate::records::step::{PhaseKey, StepEnding, StepEvent, StepRow, StepStatus};
use crate::state::error::is_taken_over;
use crate::step::adapter_error::{AdapterError, Ending};
use crate::step::commit::CommitOptions;
use crate::step::context::RunContext;
use crate::step::options::{Rerun, StepOptions};
use crate::step::plan::{PlanReport, StepIdentity};
use crate::step::step_error::StepError;
use crate::step::step_log::{self, Attempt, Begun, Choices, StepLog};
use crate::telemetry;

/// The longest name of a phase or step, in bytes: a line in a listing, not a document.
const MAX_NAME_BYTES: usize = 200;

/// The largest result of a step, in bytes of JSON. It is read whenever the run is resumed; what is
/// larger belongs into an artifact or a file.
const MAX_RESULT_BYTES: usize = 16 * 1024 * 1024;

/// The answers to how a step that was interrupted goes on.
const FROM_BEFORE: &str = "from_before";
const IN_PLACE: &str = "in_place";
const GIVE_UP: &str = "give_up";

/// A named part of a run, in which steps are done: see [`RunContext::phase`].
///
/// Cheap to clone.
#[derive(Clone)]
pub struct Phase {
    context: RunContext,
    log: StepLog,
    key: PhaseKey,
}

/// What the work of a step knows of it.
#[derive(Clone)]
#[non_exhaustive]
pub struct StepContext {
    /// The step.
    pub step_id: StepId,
    /// The number of this attempt; the first is 1, and interrupted attempts count.
    pub attempt: u32,
    /// How many attempts failed before this one, also before the run was resumed; interrupted
    /// attempts do not count.
    pub failed_attempts: u32,
    /// The snapshot before this attempt.
    pub snapshot_before: Option<SnapshotId>,
    /// The run: its workspace, its input, its log.
    pub run: RunContext,
    /// How often which text was asked in this attempt.
    pub(crate) asked: Arc<Mutex<HashMap<String, u32>>>,
}

impl StepContext {
    /// The directory of the workspace, if the run has one.
    pub fn workspace(&self) -> Option<&PathBuf> {
        self.run.workspace.as_ref()
    }

    /// Cancelled when the work should stop.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.run.cancellation
    }

    /// Does `work` as a named part of the step, for observers: the record of the step has it with
    /// its status and duration. Its result is not stored, so another attempt does the work again.
    /// Only one task of a name may be under way: a second one is a `Conflict`.
    pub async fn task<T>(
        &self,
        name: impl Into<String>,
        work: impl Future<Output = Result<T, AdapterError>>,
    ) -> Result<T, AdapterError> {
        let name = name.into();
        check_name("task", &name)?;
        let step = (&self.step_id, self.attempt);
        let log = &self.run.steps;
        log.note_work(self.run.within).await?;
        let part = log.part(self.run.within);
        let done = part.of(log.task(step, name, work)).await;
        log.note_worked(self.run.within).await;
        done
    }

    /// Commits what differs from the branch that is checked out, as `git add --all` and `git
    /// commit` would: new files that are not ignored, changed and deleted ones, with line endings
    /// as attributes say. `None`: nothing differs. The index then has what the commit has. No hook
    /// runs, and nothing is signed; the message ends with lines that name the run and the step.
    ///
    /// The commit is made once, even if the process dies meanwhile: the complete commit is written
    /// to the log before it is made, so the next use of the workspace makes the same commit or
    /// finds that it exists. If a step runs again and nothing differs, it gets the commit that it
    /// has already made with the same message, paths and author, provided that only commits of its
    /// run follow that commit on the branch.
    ///
    /// ```no_run
    /// # async fn work(step: stillframe::steps::StepContext) -> Result<(), stillframe::AdapterError> {
    /// use stillframe::steps::CommitOptions;
    ///
    /// if let Some(made) = step.commit(CommitOptions::new("Fix the parser")).await? {
    ///     println!("{}: {} files", made.commit, made.files_changed);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `HeadMoved`: somebody moved the branch meanwhile. `Conflict`: the repository is in the
    /// middle of a merge or the like. `Unsupported`: the workspace is in no repository of git's, a
    /// changed file is under a filter, or no author is configured. `InvalidOptions`: no message, or
    /// an invalid author. In all these cases nothing was committed.
    pub async fn commit(&self, options: CommitOptions) -> Result<Option<CommitRecord>, Error> {
        let log = &self.run.steps;
        log.note_work(self.run.within).await?;
        let _part = log.part(self.run.within);
        let made = log.make_commit(&self.step_id, options, &self.run.cancellation);
        let made = made.await;
        log.note_worked(self.run.within).await;
        made
    }

    /// Records a commit that the work has made by itself, by its full id. The record names the run
    /// and step that recorded it first.
    pub async fn record_commit(&self, commit: &str) -> Result<CommitRecord, Error> {
        let log = &self.run.steps;
        log.note_work(self.run.within).await?;
        let _part = log.part(self.run.within);
        log.record_commit(&self.step_id, commit).await
    }

    /// Asks a person, and waits for the answer. The first answer counts, and the question is asked
    /// once: when the step runs again, also after the run was resumed, the recorded answer is
    /// returned. If one attempt asks the same text twice, these are two questions.
    ///
    /// After [`EngineOptions::hot_wait`](crate::EngineOptions::hot_wait) the run is parked if no
    /// other step is at work: its work is stopped as by a cancellation, the workspace is captured
    /// and unlocked, and the run is [`WaitingForInput`](crate::RunStatus::WaitingForInput). The run
    /// continues with the step that asked when it is started again after
    /// [`Engine::answer`](crate::Engine::answer) or after the deadline, by the host or by
    /// [`EngineOptions::resumer`](crate::EngineOptions::resumer). That step runs again like an
    /// interrupted one: see [`StepOptions::rerun`]. Its changes before the question are undone
    /// then; changes in the workspace while it waited stay.
    ///
    /// So a step should do no work while its question waits. If [tasks](StepContext::task),
    /// [commits](StepContext::commit) or [tools](RunContext::call_tool) of the step begin or end
    /// while it waits, or another question is answered, the step counts as still at work: all
    /// changes up to its interruption are undone with it. Other writes of the step meanwhile cannot
    /// be told from those of others. They stay, and the step makes them a second time. To avoid
    /// this, use a task for such work, or ask first.
    ///
    /// ```no_run
    /// # async fn work(step: stillframe::steps::StepContext) -> Result<(), stillframe::AdapterError> {
    /// use std::time::Duration;
    /// use stillframe::records::Question;
    ///
    /// let question = Question::new("Apply this migration?")
    ///     .choices(["yes", "no"])
    ///     .deadline(Duration::from_secs(24 * 3600), "no");
    /// if step.ask(question).await?.text == "yes" {
    ///     println!("applying");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: the question is not valid. `Cancelled`: the run ends or is parked; return
    /// the error with `?`.
    pub async fn ask(&self, question: Question) -> Result<Answer, Error> {
        let step = Some(&self.step_id);
        self.run.ask_in(step, &self.asked, question, None).await
    }
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepContext")
            .field("step_id", &self.step_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl RunContext {
    /// The phase with this name. Its steps are done once: their results are stored. If the engine
    /// dies, the run is resumed by starting its id again, which does only the remaining steps.
    ///
    /// Nothing is written before its first step. If the engine dies or shuts down, a run with a
    /// phase becomes [`Interrupted`](crate::RunStatus::Interrupted).
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
}

impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Phase")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Phase {
    pub(crate) fn new(context: RunContext, log: StepLog, name: String) -> Self {
        Self {
            context,
            log,
            key: PhaseKey {
                phase: name,
                iteration: 0,
            },
        }
    }

    /// The same phase in this iteration of a loop; the first is 0, which is also that of a phase
    /// that is in no loop.
    pub fn iteration(mut self, iteration: u32) -> Self {
        self.key.iteration = iteration;
        self
    }

    /// Does `work` once under this name, and answers with what it returned.
    ///
    /// If the run is resumed after that, the stored result is returned, and the work is not done
    /// again. The result is stored as JSON, so a type that JSON does not represent exactly
    /// (`Some(())` is `null`, which is read as `None`) may come back changed, and [secret
    /// values](crate::secrets) come back redacted. The name belongs to this step in its phase and
    /// iteration for ever. [`Phase::step_with`] takes further options.
    ///
    /// # Errors
    ///
    /// The work failed, or the engine itself failed; in both cases return the error with `?`. A
    /// step whose work ends with [`AdapterError::cancelled`] is cancelled, and not tried again.
    pub async fn step<T, F, R>(&self, name: impl Into<String>, work: F) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(StepContext) -> R,
        R: Future<Output = Result<T, AdapterError>>,
    {
        let mut work = Some(work);
        self.step_with(StepOptions::new(name), move |context| {
            // There is one attempt.
            let work = work.take();
            async move {
                match work {
                    Some(work) => work(context).await,
                    None => Err(AdapterError::failed("the step has been tried")),
                }
            }
        })
        .await
    }

    /// As [`Phase::step`], with options; `work` is called for each attempt.
    pub async fn step_with<T, F, R>(&self, options: StepOptions, work: F) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: FnMut(StepContext) -> R,
        R: Future<Output = Result<T, AdapterError>>,
    {
        self.check()?;
        check_name("step", &options.name)?;
        let began = Instant::now();
        let span = telemetry::step_span(
            &self.context.run_id,
            &self.key.phase,
            self.key.iteration,
            &options.name,
        );
        let done = async {
            let at_work = self.log.at_work(self.context.within);
            let done = at_work.of(self.done(options, work, at_work.number)).await;
            telemetry::worked(done.is_ok(), began.elapsed());
            done
        };
        done.instrument(span).await
    }

    /// Does a step with a valid name, unless it is done. `number`: its number among those that are
    /// being done.
    async fn done<T, F, R>(
        &self,
        mut options: StepOptions,
        mut work: F,
        number: u64,
    ) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        F: FnMut(StepContext) -> R,
        R: Future<Output = Result<T, AdapterError>>,
    {
        self.permit(&options, number).await?;
        let mut attempt = match self.begin(&mut options, number).await? {
            Started::Attempt(attempt) => *attempt,
            Started::Done(result) => return read_result(&options.name, result),
        };
        // Those that were interrupted do not count against it: nobody knows that the work would
        // have failed.
        let mut failed = match attempt.row.attempt {
            1 => 0,
            _ => self.log.failed_attempts(&attempt.row.id).await?,
        };
        loop {
            // A future that is dropped in the middle leaves no step that looks as if it were under
            // way.
            let Attempt { row, dropped } = attempt;
            tracing::Span::current().record("attempt", row.attempt);
            let context = self.context_of(&row, failed, number);
            let began = Instant::now();
            let result = work(context).await;
            dropped.disarm();
            let worked = Some(began.elapsed());
            let error = match result.map(|value| (write_result(&options.name, &value), value)) {
                Ok((Ok(stored), value)) => {
                    let ending = StepEnding {
                        result: Some(stored),
                        worked,
                        ..StepEnding::default()
                    };
                    self.end(row, StepEvent::Done, ending, None, &options)
                        .await?;
                    return Ok(value);
                }
                Ok((Err(refused), _)) => AdapterError::new(Ending::Failed, refused),
                Err(error) => error,
            };
            failed += 1;
            if self.context.cancellation.is_cancelled() {
                // The end of the run decides what becomes of the step.
                return Err(error.into());
            }
            let ending = StepEnding {
                error: Some(Failure {
                    exit_code: error.output.as_ref().and_then(|output| output.exit_code),
                    ..error.failure.clone()
                }),
                worked,
                ..StepEnding::default()
            };
            let (event, delay) = after_failure(&error, &options, failed);
            let Some(delay) = delay else {
                self.end(row, event, ending, None, &options).await?;
                return Err(error.into());
            };
            let retried = StepEvent::Retried;
            let row = self
                .end(row, retried, ending, Some(delay), &options)
                .await?;
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // How the last attempt ended is on record, and is not how the run does.
                () = self.context.cancellation.cancelled() => {
                    return Err(step_log::not_begun(&options.name).into());
                }
            }
            attempt = self
                .log
                .begin_again(row, &options, &self.context.cancellation)
                .await?;
        }
    }

    /// Asks the policy of the host, unless there is nothing to begin. `number`: the step's among
    /// those that are being done.
    async fn permit(&self, options: &StepOptions, number: u64) -> Result<(), StepError> {
        if !self.log.oversight().has_policy() || !self.log.is_to_begin(&self.key, options).await? {
            return Ok(());
        }
        let waits = RunContext {
            within: Some(number),
            ..self.context.clone()
        };
        let subject = PolicySubject::Step {
            phase: self.key.phase.clone(),
            iteration: self.key.iteration,
            step: options.name.clone(),
            definition: options.definition.clone(),
        };
        let permitted = waits.permit(subject).await;
        permitted.map_err(|e| match e.wrapped::<PolicyViolation>() {
            Some(violation) => StepError::Denied(Box::new(violation.clone())),
            None => StepError::Engine(e),
        })
    }

    /// Begins a step, once it is known how it goes on if it was interrupted. `number`: its number
    /// among those that are being done.
    async fn begin(&self, options: &mut StepOptions, number: u64) -> Result<Started, StepError> {
        let mut chosen = None;
        loop {
            let begun = self
                .log
                .begin(&self.key, options, &self.context.cancellation)
                .await;
            if let (Err(e), Some(place)) = (&begun, &chosen)
                && is_lost_for_good(e)
                && let Err(e) = self.log.forget_answer(place).await
            {
                // Why it cannot be carried out is the one to tell.
                tracing::warn!(step = %options.name, error = %e.chain(), "an answer is kept that leads nowhere");
            }
            match begun? {
                Begun::Attempt(attempt) => return Ok(Started::Attempt(attempt)),
                Begun::Choose(row, choices) => {
                    let (rerun, place) = self.choose(*row, choices, number).await?;
                    (options.rerun, chosen) = (Some(rerun), Some(place));
                }
                Begun::Done(result) => return Ok(Started::Done(result)),
                Begun::Failed(status, failure) => return Err(ended_before(status, failure).into()),
                Begun::Skipped => return Err(StepError::Skipped(options.name.clone())),
                Begun::Changed(steps) => return Err(self.plan_changed(options, &steps)),
            }
        }
    }

    /// What the work of this attempt knows.
    fn context_of(&self, row: &StepRow, failed_attempts: u32, number: u64) -> StepContext {
        let asked: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
        StepContext {
            step_id: row.id.clone(),
            attempt: row.attempt,
            failed_attempts,
            snapshot_before: row.snapshot_before.clone(),
            run: RunContext {
                within: Some(number),
                step_id: Some(row.id.clone()),
                asked_in_step: Some(asked.clone()),
                ..self.context.clone()
            },
            asked,
        }
    }

    /// Asks how a step that was interrupted goes on.
    async fn choose(
        &self,
        row: StepRow,
        choices: Choices,
        asker: u64,
    ) -> Result<(Rerun, QuestionPlace), StepError> {
        let all = [FROM_BEFORE, IN_PLACE, GIVE_UP];
        let question = Question::new(format!(
            "step {:?} of phase {:?} was cut off in attempt {}: go back to where it began, go on with what is there, or give it up?",
            row.name, row.phase.phase, row.attempt
        ))
        .choices(all.into_iter().filter(|choice| choices.from_before || *choice != FROM_BEFORE));
        let place = QuestionPlace {
            step_id: Some(row.id.clone()),
            text: question.text.clone(),
            nth: 0,
        };
        let answer = self
            .log
            .ask(
                place.clone(),
                Some(asker),
                (&question, None),
                &self.context.cancellation,
            )
            .await?;
        match answer.text.as_str() {
            FROM_BEFORE => Ok((Rerun::FromBefore, place)),
            IN_PLACE => Ok((Rerun::InPlace, place)),
            _ => {
                let given_up = Failure::of_work("it was cut off, and given up");
                let ending = StepEnding {
                    error: Some(given_up.clone()),
                    ..StepEnding::default()
                };
                self.log
                    .end_attempt(row, StepEvent::Failed, ending, None, false)
                    .await?;
                Err(AdapterError::new(Ending::Failed, given_up).into())
            }
        }
    }

    /// Leaves a step out for good; it is a `Conflict` if the step is done or under way.
    pub async fn skip_step(&self, name: &str, reason: &str) -> Result<(), Error> {
        self.check()?;
        check_name("step", name)?;
        self.log.skip_step(&self.key, name, reason).await
    }

    /// Leaves the phase out for good: each of its steps then fails with [`StepError::Skipped`]. It
    /// is a `Conflict` if the phase is done or under way.
    pub async fn skip(&self, reason: &str) -> Result<(), Error> {
        self.check()?;
        self.log
            .end_phase(&self.key, StepEvent::Skipped, Some(reason))
            .await
    }

    /// Completes the phase; another step in it is a `Conflict` from then on. A phase that was not
    /// completed ends with its run.
    pub async fn complete(&self) -> Result<(), Error> {
        self.check()?;
        self.log.end_phase(&self.key, StepEvent::Done, None).await
    }

    fn check(&self) -> Result<(), Error> {
        check_name("phase", &self.key.phase)
    }

    async fn end(
        &self,
        row: StepRow,
        event: StepEvent,
        ending: StepEnding,
        retry_in: Option<Duration>,
        options: &StepOptions,
    ) -> Result<StepRow, Error> {
        self.log
            .end_attempt(row, event, ending, retry_in, options.snapshots)
            .await
    }

    fn plan_changed(&self, options: &StepOptions, steps: &[StepRow]) -> StepError {
        let identity = StepIdentity::new(&self.key.phase, self.key.iteration, &options.name);
        StepError::PlanChanged(Box::new(PlanReport::of_one(identity, steps)))
    }
}

/// What a step that is asked for has to do, once nobody has to be asked.
enum Started {
    /// An attempt.
    Attempt(Box<Attempt>),
    /// Nothing: this is its result.
    Done(Value),
}

/// What an attempt that failed means for its step, and when there is another; `None`: there is
/// none.
fn after_failure(
    error: &AdapterError,
    options: &StepOptions,
    failed: u32,
) -> (StepEvent, Option<Duration>) {
    match error.ending {
        // It can go on once the reason is gone.
        _ if error.is_of_engine => (StepEvent::Interrupted, options.retry.delay(failed)),
        // Its work has given itself up: another attempt would do the same.
        Ending::Cancelled => (StepEvent::Cancelled, None),
        // It goes on once there is new input.
        Ending::Blocked => (StepEvent::Interrupted, None),
        _ => (StepEvent::Failed, options.retry.delay(failed)),
    }
}

/// Whether how somebody wants a step to go on can never be done, so that another answer is needed.
/// What is in the way for a while, as a full disk or a workspace in use, takes nobody's answer
/// away.
fn is_lost_for_good(error: &Error) -> bool {
    match error.kind() {
        // The place to go back to is built upon, or is not there.
        ErrorKind::HeadMoved
        | ErrorKind::NotFound
        | ErrorKind::Corrupt
        | ErrorKind::Unsupported => true,
        ErrorKind::Conflict => !is_taken_over(error),
        _ => false,
    }
}

/// How the work of a step ended that is not done again, from its record.
fn ended_before(status: StepStatus, failure: Failure) -> AdapterError {
    let is_timeout = failure.kind.as_deref() == Some(ErrorKind::Timeout.as_str());
    let ending = match status {
        StepStatus::Cancelled => Ending::Cancelled,
        _ if is_timeout => Ending::TimedOut,
        _ => Ending::Failed,
    };
    let output = failure.exit_code.map(|code| AdapterOutput {
        exit_code: Some(code),
        ..AdapterOutput::empty()
    });
    let failure = Failure {
        exit_code: None,
        ..failure
    };
    AdapterError {
        output,
        ..AdapterError::new(ending, failure)
    }
}

/// Refuses what is no name of a phase or a step.
fn check_name(noun: &str, name: &str) -> Result<(), Error> {
    if name.trim().is_empty() {
        return Err(Error::invalid_options(format!("a {noun} needs a name")));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::invalid_options(format!(
            "the name of a {noun} has at most {MAX_NAME_BYTES} bytes, this one has {}",
            name.len()
        )));
    }
    Ok(())
}

/// The result as it is kept, which can be read back.
fn write_result<T: Serialize + DeserializeOwned>(name: &str, value: &T) -> Result<Value, Failure> {
    let cannot = |e: serde_json::Error| {
        Failure::new(
            ErrorKind::InvalidOptions.as_str(),
            format!("the result of step {name:?} cannot be stored: {e}"),
        )
    };
    let text = serde_json::to_value(value).map_err(cannot)?.to_string();
    let bytes = text.len();
    if bytes > MAX_RESULT_BYTES {
        return Err(Failure::new(
            ErrorKind::LimitExceeded.as_str(),
            format!(
                "the result of step {name:?} has {bytes} bytes, more than {MAX_RESULT_BYTES}; keep it as an artifact"
            ),
        ));
    }
    // What cannot be read back would end the run for good: a number that JSON does not have, or one
    // value within another more often than a reader takes.
    let stored: Value = serde_json::from_str(&text).map_err(cannot)?;
    T::deserialize(&stored).map_err(cannot)?;
    Ok(stored)
}

fn read_result<T: DeserializeOwned>(name: &str, stored: Value) -> Result<T, StepError> {
    serde_json::from_value(stored).map_err(|e| {
        StepError::Engine(Error::new(
            ErrorKind::Conflict,
            format!("the stored result of step {name:?} is not of this type: {e}"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_before_ends_the_run_as_it_would_have() {
        let of = |status, failure| {
            let error = ended_before(status, failure);
            let code = error.output.as_ref().and_then(|output| output.exit_code);
            (error.ending, code, error.is_of_engine)
        };
        let failed = Failure {
            exit_code: Some(7),
            ..Failure::of_work("the command exited with code 7")
        };
        let ended = of(StepStatus::Failed, failed);
        assert_eq!(ended, (Ending::Failed, Some(7), false));
        let late = AdapterError::timed_out("late").failure;
        let ended = of(StepStatus::Failed, late);
        assert_eq!(ended, (Ending::TimedOut, None, false));
        let given_up = AdapterError::cancelled("not today").failure;
        let ended = of(StepStatus::Cancelled, given_up);
        assert_eq!(ended, (Ending::Cancelled, None, false));
    }

    #[test]
    fn a_name_is_a_line() {
        assert!(check_name("step", "build and test").is_ok());
        for name in ["", "  ", &"x".repeat(201)] {
            let error = check_name("step", name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{name:?}");
        }
    }
}
