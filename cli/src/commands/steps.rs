//! `run --steps`, `resume`, `cancel`: runs that go on where they were.

use std::future::Future;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Answer, BackendKind, BoxAdapter, CommandAdapter,
    CommitOptions, CommitRecord, EndSignal, Engine, Error, ErrorKind, EventQuery, EventType,
    PlanReport, Question, RunContext, RunExport, RunId, RunOptions, RunRecord, StepContext,
    StepError, StepIdentity, StepOptions, StepRecord, StepStatus, WorkspaceOptions,
};

use super::{Tools, questions, run};
use crate::failure::Failure;
use crate::output::{self, Console, Reply};
use crate::progress::ProgressLine;
use crate::request::{self, ResumeRequest, StepsRequest};
use crate::step_file::{self, FileStep, StepFile};

/// How long `cancel` waits for a run of another process to end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(10);

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the commands of a file, those that are not done.
pub(super) async fn run(tools: &Tools, request: StepsRequest) -> Result<Reply, Failure> {
    let file = read(&request.file)?;
    let id = request.options.run_id.clone().unwrap_or_else(RunId::random);
    let metadata = serde_json::json!({ STEPS: &file });
    let options = request
        .options
        .run_id(id.clone())
        .resumable(true)
        .metadata(metadata);
    let runner = StepRunner::new(tools, file);
    let carried = run::Carried {
        session: request.session,
        options,
        end_signal: runner.end_signal.clone(),
        told: runner.told.clone(),
        adapter: BoxAdapter::new(runner),
        resumable: Some(id),
        elsewhere: request.elsewhere,
    };
    run::carry(tools, carried).await
}

/// Goes on with a run that was interrupted.
pub(super) async fn resume(tools: &Tools, request: ResumeRequest) -> Result<Reply, Failure> {
    let record = tools.engine.find_run(&request.run).await?;
    let end_signal = EndSignal::default();
    let told = run::Told::default();
    let adapter = match (request.command, kept_steps(&record)?) {
        (Some(_), Some(_)) if !record.status.is_terminal() => return Err(has_steps(&record)),
        (Some(command), _) => BoxAdapter::new(run::Foreground {
            command: command.end_signal(end_signal.clone()),
            progress: tools.progress.clone(),
        }),
        (None, Some(file)) => BoxAdapter::new(StepRunner {
            end_signal: end_signal.clone(),
            told: told.clone(),
            ..StepRunner::new(tools, file)
        }),
        // What it was is on record, and nothing is run.
        (None, None) if record.status.is_terminal() => BoxAdapter::new(Nothing),
        (None, None) => {
            return Err(Failure::invalid(format!(
                "run {} has no steps on record that this command could run; name what goes on with it: \"stillframe resume {} -- CMD\"",
                record.id, record.id
            )));
        }
    };
    let mut options = RunOptions::new(record.input.clone())
        .run_id(record.id.clone())
        .resumable(true);
    if let Some(wait) = request.wait {
        options = options.hot_wait(wait);
    }
    let current = request.current.clone();
    let workspace = workspace(&record, request.workspace, request.current)?;
    let is_here = workspace
        .as_ref()
        .zip(current)
        .is_some_and(|(workspace, current)| is_same_place(&workspace.path, &current));
    let elsewhere = match &workspace {
        // There is no need to name the one that one is in.
        Some(workspace) if !is_here => format!(
            " --workspace {}",
            request::quoted(workspace.path.as_os_str())
        ),
        _ => String::new(),
    };
    if let Some(workspace) = workspace {
        options = options.workspace(workspace);
    }
    let carried = run::Carried {
        // It is in the session that it was in.
        session: None,
        options,
        adapter,
        end_signal,
        resumable: Some(record.id),
        elsewhere,
        told,
    };
    run::carry(tools, carried).await
}

/// Refuses a command in the place of the steps that an interrupted run has still to do.
pub(super) fn refuse_steps(record: &RunRecord) -> Result<(), Failure> {
    match kept_steps(record)? {
        Some(_) if !record.status.is_terminal() => Err(has_steps(record)),
        _ => Ok(()),
    }
}

fn has_steps(record: &RunRecord) -> Failure {
    Failure::invalid(format!(
        "run {} is a run of steps, which a command cannot take the place of; \"stillframe resume {}\" goes on with them, \"stillframe cancel {}\" gives them up; nothing was run",
        record.id, record.id, record.id
    ))
}

/// Asks a run to stop, and waits a while for it.
pub(super) async fn cancel(tools: &Tools, id: &str) -> Result<Reply, Failure> {
    let id = tools.engine.find_run(id).await?.id;
    tools.engine.cancel_run(&id).await?;
    let began = Instant::now();
    let record = loop {
        let record = tools.engine.find_run(id.as_str()).await?;
        if record.status.is_terminal() || began.elapsed() > CANCEL_PATIENCE {
            break record;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let note = match record.status.is_terminal() {
        true => format!("run {id} is {}", record.status),
        false => format!("run {id} was asked to stop, and ends when its work does"),
    };
    Ok(Reply::new(tools.json, &record, String::new).note(note))
}

/// The variable in which a command finds the answer to its step's question.
const ANSWER: &str = "STILLFRAME_ANSWER";

/// Where a run's record has the commands that it was begun with.
const STEPS: &str = "steps";

/// The commands that a run was begun with, if it was begun with any.
fn kept_steps(record: &RunRecord) -> Result<Option<StepFile>, Failure> {
    match &record.options["metadata"][STEPS] {
        Value::Null => Ok(None),
        kept => serde_json::from_value(kept.clone()).map(Some).map_err(|e| {
            Failure::new(
                ErrorKind::Corrupt,
                format!("the steps of run {} cannot be read: {e}", record.id),
            )
        }),
    }
}

/// The record of a step of a file.
fn row<'a>(export: &'a RunExport, phase: &str, name: &str) -> Option<&'a StepRecord> {
    let phase = export.phases.iter().find(|row| row.name == phase)?;
    phase.steps.iter().find(|row| row.name == name)
}

/// The steps of a run that were begun and are not done; a command that is done has a commit behind it which is one
/// of these though it was not begun.
fn cut_off(export: &RunExport) -> Vec<StepIdentity> {
    let mut open = Vec::new();
    for phase in &export.phases {
        let steps = phase.steps.iter().filter(|step| !step.status.is_settled());
        open.extend(steps.map(|step| StepIdentity::new(&phase.name, phase.iteration, &step.name)));
    }
    let kept = kept_steps(&export.run).ok().flatten();
    for step in kept.iter().flat_map(|file| &file.steps) {
        let Some(commit) = step.commit_step() else {
            continue;
        };
        let command = row(export, &step.phase, &step.name);
        let is_done = command.is_some_and(|row| row.status == StepStatus::Completed);
        if is_done && row(export, &step.phase, &commit).is_none() {
            open.push(StepIdentity::new(&step.phase, 0, commit));
        }
    }
    open
}

/// The workspace of a run as it was begun; where it lies by now, if `named` says so.
fn workspace(
    record: &RunRecord,
    named: Option<std::path::PathBuf>,
    current: Option<std::path::PathBuf>,
) -> Result<Option<WorkspaceOptions>, Failure> {
    let Some(path) = &record.workspace_path else {
        return Ok(None);
    };
    let kept = record.options["workspace"].clone();
    let mut options: WorkspaceOptions = serde_json::from_value(kept).map_err(|e| {
        Failure::new(
            ErrorKind::Corrupt,
            format!("the options of run {} cannot be read: {e}", record.id),
        )
    })?;
    let recorded = std::path::PathBuf::from(path);
    options.path = match named {
        Some(named) => named,
        // It was moved, perhaps to here; a directory that it was not in is refused.
        None if !recorded.exists() => current.unwrap_or(recorded),
        None => recorded,
    };
    Ok(Some(options))
}

/// Whether two paths lead to one directory.
fn is_same_place(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// What the file at `path` says.
fn read(path: &Path) -> Result<StepFile, Failure> {
    let shown = output::printable(&path.to_string_lossy());
    let cannot = |e: std::io::Error| {
        Failure::new(
            match e.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Unreadable,
            },
            format!("{shown} cannot be read: {e}; nothing was run"),
        )
    };
    // A FIFO would be waited for.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(cannot)?;
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(Failure::invalid(format!(
            "{shown} is no regular file; nothing was run"
        )));
    }
    let mut text = String::new();
    file.take(step_file::MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(cannot)?;
    if text.len() as u64 > step_file::MAX_BYTES {
        return Err(Failure::invalid(format!(
            "{shown} has more than {} bytes; nothing was run",
            step_file::MAX_BYTES
        )));
    }
    StepFile::parse(&text)
        .map_err(|why| Failure::invalid(format!("{shown}: {why}; nothing was run")))
}

/// Runs the commands of a file, each as a step.
struct StepRunner {
    engine: Engine,
    file: StepFile,
    json: bool,
    console: Console,
    progress: Option<ProgressLine>,
    end_signal: EndSignal,
    /// How often something of the run was taken back, as far as that was said.
    went_back: AtomicU64,
    told: run::Told,
}

impl StepRunner {
    fn new(tools: &Tools, file: StepFile) -> Self {
        Self {
            engine: tools.engine.clone(),
            file,
            json: tools.json,
            console: tools.console,
            progress: tools.progress.clone(),
            end_signal: EndSignal::default(),
            went_back: AtomicU64::new(0),
            told: run::Told::default(),
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

    /// Says what was taken back of an attempt that was cut off, so that this one begins anew.
    async fn say_what_went_back(&self, attempt: &StepContext, title: &str) {
        let run = &attempt.run;
        let query = EventQuery::session(run.session_id.clone())
            .run(run.run_id.clone())
            .of_type(EventType::WORKSPACE_ROLLED_BACK);
        // It is in the log; that it is said here is for convenience.
        let events = self.engine.events(query).await.unwrap_or_default();
        let said = u64::try_from(events.len()).unwrap_or(u64::MAX);
        if self.went_back.swap(said, Ordering::Relaxed) >= said {
            return;
        }
        let Some(data) = events.last().map(|event| &event.data) else {
            return;
        };
        let Some(guard) = data["guard"].as_str() else {
            return;
        };
        if let Some(paths) = data["restored"].as_u64().filter(|paths| *paths > 0) {
            self.say(&format!(
                "{title}: {} put back to where the step began; what was there is kept as {guard}",
                output::count(paths, "path")
            ));
        }
        // What was committed since is on no branch any more.
        if let Some(tag) = data["safety_tag"].as_str() {
            let branch = match self.branch_before(attempt).await {
                Some(branch) => format!("branch {branch}"),
                None => "the branch".to_owned(),
            };
            self.say(&format!(
                "{title}: {branch} was moved back to where the step began; its former tip, with what was committed since, is kept as {tag}"
            ));
        }
    }

    /// The branch that was checked out when an attempt began.
    async fn branch_before(&self, attempt: &StepContext) -> Option<String> {
        let id = attempt.snapshot_before.as_ref()?;
        let snapshot = self.engine.find_snapshot(id.as_str()).await.ok()?;
        let branch = snapshot.metadata.branch?;
        Some(branch.trim_start_matches("refs/heads/").to_owned())
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
                command.run(attempt.run.clone()).await?
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
            Some(made) => format!(
                "{title}: commit {}, {}",
                made.commit,
                output::count(made.files_changed, "file")
            ),
            None => format!("{title}: there is nothing to commit"),
        };
        self.say(&said);
        Ok(made.map(|made| made.commit))
    }

    /// The commit that an attempt made which was cut off after it. What differs by now is not its step's work.
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

    /// Why a file that commits is not begun in this workspace; `None`: it may be.
    fn wrong_place(&self, export: &RunExport) -> Option<Error> {
        let commits = self.file.steps.iter().find(|step| step.commit.is_some());
        let before = export.snapshots.first();
        let is_of_git = before.is_none_or(|before| before.backend != BackendKind::Hash);
        let step = commits.filter(|_| export.phases.is_empty() && !is_of_git)?;
        Some(Error::invalid_options(format!(
            "step {:?} commits, which takes a git repository and its backend, and this workspace is captured by the hash backend; nothing was run",
            step.name
        )))
    }

    /// Why this file cannot go on with the run, if it lacks a step which was begun and is not done, or has a new one
    /// in front of it: what that step left half made would be in what the others do.
    fn passes_over_cut_off(&self, export: &RunExport) -> Option<AdapterError> {
        let open = cut_off(export);
        let is_there = |step: &StepIdentity| self.file.place_of(&step.phase, &step.step).is_some();
        let gone: Vec<StepIdentity> = open
            .iter()
            .filter(|step| !is_there(step))
            .cloned()
            .collect();
        let places = open
            .iter()
            .filter_map(|step| self.file.place_of(&step.phase, &step.step));
        let last = places.max().unwrap_or(0);
        let is_new = |step: &&FileStep| row(export, &step.phase, &step.name).is_none();
        let identity = |step: &FileStep| StepIdentity::new(&step.phase, 0, &step.name);
        let in_front = self.file.steps[..last].iter().filter(is_new).map(identity);
        let in_front: Vec<StepIdentity> = in_front.collect();
        let names = |steps: &[StepIdentity]| {
            let names: Vec<String> = steps.iter().map(StepIdentity::to_string).collect();
            names.join(", ")
        };
        let (what, way) = match (gone.as_slice(), in_front.as_slice()) {
            ([], []) => return None,
            ([], new) => (
                format!(
                    "in front of {}, cut off before it was done, is what is new: {}",
                    names(&open),
                    names(new)
                ),
                "put it behind that step",
            ),
            (gone, _) => (
                format!("cut off before it was done, and gone: {}", names(gone)),
                "put it back into the file as it was",
            ),
        };
        let mut report = PlanReport::default();
        report.gone = gone;
        report.new = in_front;
        let mut refused = AdapterError::from(StepError::PlanChanged(Box::new(report)));
        refused.failure.message = format!(
            "the plan of this run is another than the one on record: {what}; nothing was run; {way}, or give the run up with \"stillframe cancel {}\"",
            export.run.id
        );
        Some(refused)
    }

    async fn steps(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let query = EventQuery::session(context.session_id.clone())
            .run(context.run_id.clone())
            .of_type(EventType::WORKSPACE_ROLLED_BACK);
        let before = self.engine.events(query).await.unwrap_or_default().len();
        let before = u64::try_from(before).unwrap_or(u64::MAX);
        self.went_back.store(before, Ordering::Relaxed);
        let export = self.engine.export_run(context.run_id.as_str()).await?;
        if let Some(wrong) = self.wrong_place(&export) {
            return Err(wrong.into());
        }
        if let Some(refused) = self.passes_over_cut_off(&export) {
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
        let attempts = options.retry.attempts;
        let mut was_run = false;
        let failed = &AtomicU32::new(1);
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
                    self.say_what_went_back(&attempt, &title).await;
                    let cancellation = attempt.cancellation().clone();
                    let result = work(title.clone(), attempt).await;
                    if let (Err(e), false) = (&result, cancellation.is_cancelled())
                        && failed.fetch_add(1, Ordering::Relaxed) < attempts
                    {
                        self.say(&format!("{title}: {e}; it is tried again"));
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
                Err(e)
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

/// Stands for work that is on record, and is not done again.
struct Nothing;

impl Adapter for Nothing {
    async fn run(&self, _context: RunContext) -> Result<AdapterOutput, AdapterError> {
        Err(Error::invalid_options("the run has ended").into())
    }
}
