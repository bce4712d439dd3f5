//! Runs the commands of a file, each as a step, and reports progress.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use serde_json::{Value, json};
use stillframe::backends::RelPath;
use stillframe::commands::EndSignal;
use stillframe::events::{EventQuery, EventType};
use stillframe::records::{Answer, CommitRecord, Question};
use stillframe::steps::{CommitOptions, StepContext, StepError, StepOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, CancellationToken, CommandAdapter, Engine, Error,
    RunContext, RunId, SnapshotId,
};
use tokio::sync::Mutex;

use super::super::{Tools, questions, restore, run};
use super::{LOOK_EVERY, on_record};
use crate::output::{self, Console};
use crate::progress::ProgressLine;
use crate::request;
use crate::step_file::{FileStep, StepFile};

/// How long a signal to this process takes at most to reach the run.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// The variable in which a command finds the answer to its step's question.
const ANSWER: &str = "STILLFRAME_ANSWER";

/// The signal that a command died of that had the terminal: what is typed there, or hanging up, was
/// meant for the run as much as Ctrl-C at a script is meant for the script.
fn typed_at_terminal(error: &AdapterError) -> Option<Signal> {
    let command = error.output.as_ref()?.command.as_ref()?;
    if !command.had_terminal {
        return None;
    }
    let typed = [Signal::INT, Signal::QUIT, Signal::HUP];
    let died_of = |signal: &Signal| command.signal == Some(signal.as_raw());
    // A shell says it like this of its command; what the others are said by has other meanings too.
    let is_told = command.exit_code == 128 + Signal::INT.as_raw();
    let typed = typed.into_iter().find(died_of);
    typed.or(is_told.then_some(Signal::INT))
}

/// Has this process hear of a signal that its command died of; comes back once the run is asked to
/// stop. One that is ignored here, as by nohup, stops nothing.
async fn pass_on(signal: Signal, stopped: &CancellationToken) {
    if rustix::process::kill_process(rustix::process::getpid(), signal).is_ok() {
        let _ = tokio::time::timeout(HEARD_WITHIN, stopped.cancelled()).await;
    }
}

/// What an event of going back to where a step began has to say, a line each. `branch`: what is
/// checked out now.
fn went_back(data: &Value, branch: Option<&str>) -> Vec<String> {
    let guard = data["guard"].as_str();
    let mut lines = Vec::new();
    if let (Some(paths), Some(guard)) = (data["restored"].as_u64().filter(|n| *n > 0), guard) {
        lines.push(format!(
            "{} put back to where the step began; what was there is kept as {guard}",
            output::count(paths, "path")
        ));
    }
    let edited: Vec<RelPath> =
        serde_json::from_value(data["edited_since"].clone()).unwrap_or_default();
    if !edited.is_empty() {
        lines.push(format!(
            "left as it is, because it was edited since: {}",
            output::some_of(&edited)
        ));
    }
    let head = &data["head"];
    lines.extend(restore::head_story(head));
    if let Some(reason) = data["reason"].as_str() {
        lines.push(format!(
            "not everything of the repository went back: {reason}"
        ));
    }
    // What was committed since is on no branch any more.
    if let Some(tag) = data["safety_tag"].as_str() {
        let branch = match branch.filter(|_| head.is_null()) {
            Some(name) => format!("branch {name}"),
            None => "HEAD or its branch".to_owned(),
        };
        lines.push(format!(
            "{branch} was moved back to where the step began; its former tip, with what was committed since, is kept as {tag}"
        ));
    }
    lines
}

/// Runs the commands of a file, each as a step.
pub(super) struct StepRunner {
    engine: Engine,
    file: StepFile,
    json: bool,
    console: Console,
    progress: Option<ProgressLine>,
    /// By what its commands are ended.
    end_signal: EndSignal,
    /// How often something of the run was undone, as far as that was said.
    went_back: AtomicU64,
    /// What HEAD named when the last step before this process was done, until a step was begun
    /// here.
    left_on: Mutex<Option<String>>,
    /// The questions of which people were told.
    told: run::Told,
    /// The run, from its beginning on.
    id: Arc<OnceLock<RunId>>,
}

impl StepRunner {
    pub(super) fn new(
        tools: &Tools,
        file: StepFile,
        end_signal: &EndSignal,
        told: &run::Told,
        id: &Arc<OnceLock<RunId>>,
    ) -> Self {
        Self {
            engine: tools.engine.clone(),
            file,
            json: tools.json,
            console: tools.console,
            progress: tools.progress.clone(),
            end_signal: end_signal.clone(),
            went_back: AtomicU64::new(0),
            left_on: Mutex::default(),
            told: told.clone(),
            id: Arc::clone(id),
        }
    }

    fn say(&self, line: &str) {
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        self.console.note(&output::printable(line));
    }

    /// The command of a step, if it has one. `answer`: what was answered to its question.
    fn command(&self, step: &FileStep, answer: Option<&Answer>) -> Option<CommandAdapter> {
        let words = step.words();
        let (program, rest) = words.split_first()?;
        let mut command = request::foreground(program.into(), rest, self.json)
            .end_signal(self.end_signal.clone());
        if let Some(answer) = answer {
            command = command.env(ANSWER, &answer.text);
        }
        Some(match &step.timeout {
            Some(limit) => command.timeout(limit.duration),
            None => command,
        })
    }

    /// Says what became of an attempt that was interrupted, and of what was there, before this one
    /// goes on.
    async fn say_how_it_goes_on(&self, attempt: &StepContext, title: &str) {
        if attempt.attempt > 1 {
            let begun = self.events(&attempt.run, EventType::STEP_STARTED).await;
            let is_own = |data: &&Value| {
                data["step_id"] == attempt.step_id.as_str() && data["attempt"] == attempt.attempt
            };
            let reason = begun.iter().rfind(is_own);
            if let Some(reason) = reason.and_then(|data| data["in_place"].as_str()) {
                self.say(&format!("{title}: it goes on with what is there: {reason}"));
            }
        }
        let events = self
            .events(&attempt.run, EventType::WORKSPACE_ROLLED_BACK)
            .await;
        let said = u64::try_from(events.len()).unwrap_or(u64::MAX);
        if self.went_back.swap(said, Ordering::Relaxed) < said
            && let Some(data) = events.last()
        {
            let branch = self.branch_of(attempt.snapshot_before.as_ref()).await;
            for line in went_back(data, branch.as_deref()) {
                self.say(&format!("{title}: {line}"));
            }
        }
        if let Some(expected) = self.left_on.lock().await.take() {
            let here = self.branch_of(attempt.snapshot_before.as_ref()).await;
            if let Some(here) = here.filter(|here| *here != expected) {
                self.say(&format!(
                    "{title}: HEAD names {here} now; it was {expected} when what came before this was done"
                ));
            }
        }
    }

    /// What events of a run say, in their order. They are in the log; that it is said here is for
    /// convenience.
    async fn events(&self, run: &RunContext, of_type: EventType) -> Vec<Value> {
        let query = EventQuery::session(run.session_id.clone())
            .run(run.run_id.clone())
            .of_type(of_type);
        let events = self.engine.events(query).await.unwrap_or_default();
        events.into_iter().map(|event| event.data).collect()
    }

    /// The branch that was checked out in a snapshot, or the commit where there was none.
    async fn branch_of(&self, snapshot: Option<&SnapshotId>) -> Option<String> {
        let snapshot = self.engine.find_snapshot(snapshot?.as_str()).await.ok()?;
        let metadata = snapshot.metadata;
        metadata.branch.or(metadata.head_ref)
    }

    /// The branch that a commit of the run was put on.
    async fn branch_with(&self, run: &RunContext, commit: &str) -> Option<String> {
        let made = self.events(run, EventType::COMMIT_CREATED).await;
        let own = made.iter().rfind(|data| data["commit"] == commit)?;
        let branch = own["reference"].as_str()?.strip_prefix("refs/heads/")?;
        Some(branch.to_owned())
    }

    /// Does one attempt at a step: asks, runs, and commits if that is no step of its own.
    async fn attempt(
        &self,
        step: &FileStep,
        title: &str,
        attempt: StepContext,
    ) -> Result<AdapterOutput, AdapterError> {
        let answer = match step.question() {
            Some(question) => Some(self.ask(&attempt, question, title).await?),
            None => None,
        };
        let mut output = match self.command(step, answer.as_ref()) {
            Some(command) => {
                self.say(&format!("{title}: {}", output::shortened(&step.line())));
                let ran = command.run(attempt.run.clone()).await;
                if let Some(signal) = ran.as_ref().err().and_then(typed_at_terminal) {
                    pass_on(signal, attempt.cancellation()).await;
                }
                ran?
            }
            None => AdapterOutput::empty(),
        };
        let mut data = serde_json::Map::new();
        if let Some(answer) = &answer {
            data.insert("answer".to_owned(), json!(answer.text));
            data.insert("timed_out".to_owned(), json!(answer.timed_out));
        }
        if let (Some(message), None) = (&step.commit, step.commit_step()) {
            let commit = self.commit(message, title, &attempt).await?;
            data.insert("commit".to_owned(), json!(commit));
        }
        if !data.is_empty() {
            output.data = Value::Object(data);
        }
        Ok(output)
    }

    /// Makes the commit of a step, unless an earlier attempt did that; answers with its id.
    async fn commit(
        &self,
        message: &str,
        title: &str,
        attempt: &StepContext,
    ) -> Result<Option<String>, AdapterError> {
        let made = match self.made_before(attempt).await? {
            Some(made) => Some(made),
            None => attempt.commit(CommitOptions::new(message)).await?,
        };
        let said = match &made {
            Some(made) => {
                let files = output::count(made.files_changed, "file");
                let branch = self.branch_with(&attempt.run, &made.commit).await;
                let on = branch.map_or_else(String::new, |branch| format!(" on {branch}"));
                format!("{title}: commit {}{on}, {files}", made.commit)
            }
            None => format!("{title}: there is nothing to commit"),
        };
        self.say(&said);
        Ok(made.map(|made| made.commit))
    }

    /// The commit that an attempt made which was interrupted after it. What differs by now is not
    /// its step's work.
    async fn made_before(&self, attempt: &StepContext) -> Result<Option<CommitRecord>, Error> {
        if attempt.attempt == 1 {
            return Ok(None);
        }
        let export = self.engine.export_run(attempt.run.run_id.as_str()).await?;
        let mut steps = export.phases.iter().flat_map(|phase| &phase.steps);
        let own = steps.find(|step| step.id == attempt.step_id);
        let made = own.and_then(|step| step.commit_created.as_ref());
        let mut commits = export.commits.into_iter();
        Ok(commits.find(|commit| made == Some(&commit.commit)))
    }

    /// Asks, and says how to answer.
    async fn ask(
        &self,
        attempt: &StepContext,
        question: Question,
        title: &str,
    ) -> Result<Answer, AdapterError> {
        let asked = attempt.ask(question);
        tokio::pin!(asked);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut is_said = false;
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => {
                    let answer = answer?;
                    let how = if answer.timed_out { ", by default" } else { "" };
                    self.say(&format!("{title}: the answer is {:?}{how}", answer.text));
                    return Ok(answer);
                }
                _ = looks.tick(), if !is_said => {
                    // It is asked all the same; the next look may say so.
                    let open = self.engine.open_questions().await.unwrap_or_default();
                    let own = open
                        .iter()
                        .find(|question| question.step_id.as_ref() == Some(&attempt.step_id));
                    if let Some(question) = own {
                        is_said = true;
                        self.told.add(&question.id);
                        let line = questions::line(question);
                        self.say(&format!("{title} asks: {line}"));
                        self.say(&format!("\"stillframe answer {} ANSWER\" answers", question.id));
                    }
                }
            }
        }
    }

    async fn steps(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        self.id.get_or_init(|| context.run_id.clone());
        let before = self
            .events(&context, EventType::WORKSPACE_ROLLED_BACK)
            .await
            .len();
        let before = u64::try_from(before).unwrap_or(u64::MAX);
        self.went_back.store(before, Ordering::Relaxed);
        let export = self.engine.export_run(context.run_id.as_str()).await?;
        *self.left_on.lock().await = self.branch_of(on_record::last_done(&export)).await;
        if let Some(refused) = on_record::passes_over_cut_off(&self.file, &export) {
            return Err(refused);
        }
        let report = context.check_plan(&self.file.plan()).await?;
        for gone in &report.gone {
            self.say(&format!("{gone} was done, and is not in the plan"));
        }
        let count = self.file.steps.len();
        for (place, step) in self.file.steps.iter().enumerate() {
            let title = format!("[{}/{count}] {}/{}", place + 1, step.phase, step.name);
            let named = (step.phase.as_str(), title.as_str());
            let work = |title: String, attempt: StepContext| async move {
                self.attempt(step, &title, attempt).await
            };
            let began = Instant::now();
            let took = || output::lasting(began.elapsed());
            match self.step(&context, named, step.options(), work).await? {
                true => self.say(&format!("{title}: done in {}", took())),
                false => self.say(&format!("{title}: done before")),
            }
            if let (Some(options), Some(message)) = (step.commit_options(), &step.commit) {
                let work = |title: String, attempt: StepContext| async move {
                    let commit = self.commit(message, &title, &attempt).await?;
                    Ok(AdapterOutput::with_data(json!({ "commit": commit })))
                };
                let title = format!("{title} (commit)");
                self.step(&context, (&step.phase, &title), options, work)
                    .await?;
            }
            if self.file.is_last_of_its_phase(place) {
                context.phase(&step.phase).complete().await?;
            }
        }
        let mut output = AdapterOutput::empty();
        output.exit_code = Some(0);
        Ok(output)
    }
}

impl StepRunner {
    /// Does a step of the record, unless it is done; answers whether it was done now.
    async fn step<F, R>(
        &self,
        context: &RunContext,
        (phase, title): (&str, &str),
        options: StepOptions,
        work: F,
    ) -> Result<bool, StepError>
    where
        F: Fn(String, StepContext) -> R,
        R: Future<Output = Result<AdapterOutput, AdapterError>>,
    {
        let (retry, name) = (options.retry, options.name.clone());
        let mut was_run = false;
        let work = &work;
        let done: Result<AdapterOutput, StepError> = context
            .phase(phase)
            .step_with(options, |attempt: StepContext| {
                was_run = true;
                let title = match attempt.attempt {
                    1 => title.to_owned(),
                    number => format!("{title} (attempt {number})"),
                };
                async move {
                    self.say_how_it_goes_on(&attempt, &title).await;
                    let cancellation = attempt.cancellation().clone();
                    let failed = attempt.failed_attempts + 1;
                    let result = work(title.clone(), attempt).await;
                    if let (Err(e), false) = (&result, cancellation.is_cancelled())
                        && let Some(delay) = retry.delay(failed)
                    {
                        let delay = output::lasting(delay);
                        self.say(&format!("{title}: {e}; it is tried again in {delay}"));
                    }
                    result
                }
            })
            .await;
        match done {
            Ok(_) => Ok(was_run),
            Err(e) => {
                // The end of the run says why one stopped that was asked to.
                if !context.cancellation.is_cancelled() {
                    self.say(&format!("{title}: {e}"));
                }
                Err(match e {
                    // The run's own record says which step it was.
                    StepError::Work(mut error) => {
                        let message = format!("step {phase}/{name}: {}", error.failure.message);
                        error.failure.message = message;
                        StepError::Work(error)
                    }
                    other => other,
                })
            }
        }
    }
}

impl Adapter for StepRunner {
    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        self.steps(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_back_is_told_with_what_did_not() {
        let all = json!({
            "guard": "snap_g", "restored": 2, "skipped": 5, "safety_tag": "refs/tags/t",
            "edited_since": ["a", "b", "c", "d"], "head": {"from": "other", "to": "main"},
            "reason": "the index has other entries",
        });
        assert_eq!(
            went_back(&all, Some("main")),
            [
                "2 paths put back to where the step began; what was there is kept as snap_g",
                "left as it is, because it was edited since: a, b, c … and 1 more",
                "HEAD names main again; it was other",
                "not everything of the repository went back: the index has other entries",
                "HEAD or its branch was moved back to where the step began; its former tip, with what was committed since, is kept as refs/tags/t",
            ]
        );
        // What an event of another version, or of a restore that changed nothing, has.
        for nothing in [
            json!({}),
            json!({"guard": "snap_g", "restored": 0}),
            json!(null),
        ] {
            assert_eq!(went_back(&nothing, None), Vec::<String>::new(), "{nothing}");
        }
    }
}
