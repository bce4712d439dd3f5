//! `run --steps`, `resume` and `cancel`: runs that can be resumed.

pub(super) mod on_record;
mod runner;

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::json;
use stillframe::backends::{self, BackendKind, StateDir, Workspace};
use stillframe::commands::EndSignal;
use stillframe::records::RunRecord;
use stillframe::steps::BoxAdapter;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Error, ErrorKind, RunContext, RunOptions, RunStatus,
    WorkspaceOptions,
};

use super::{Tools, run, runs};
use crate::failure::Failure;
use crate::output::{self, Reply};
use crate::request::{self, ResumeRequest, StepsRequest};
use crate::step_file::{self, StepFile};
use crate::toml_text;

use on_record::{STEPS, check_complete, has_steps, kept_steps};
use runner::StepRunner;

/// How long `cancel` waits for a run of another process to end.
const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the commands of a file, those that are not done.
pub(super) async fn run(tools: &Tools, request: StepsRequest) -> Result<Reply, Failure> {
    let file = read(&request.file)?;
    let id = Arc::new(OnceLock::new());
    let mut is_known = false;
    if let Some(named) = &request.options.run_id {
        let found = tools.engine.find_run(named.as_str()).await;
        is_known = found.is_ok_and(|found| found.id == *named);
        id.get_or_init(|| named.clone());
    }
    if let (Some(workspace), false) = (&request.options.workspace, is_known) {
        check_commits(&file, workspace, &tools.state_dir)?;
    }
    let metadata = json!({ STEPS: &file });
    let options = request.options.resumable(true).metadata(metadata);
    let (end_signal, told) = (EndSignal::default(), run::Told::default());
    let runner = StepRunner::new(tools, file, &end_signal, &told, &id);
    let carried = run::Carried {
        session: request.session,
        options,
        adapter: BoxAdapter::new(runner),
        end_signal,
        told,
        merges: false,
        going_on: None,
        resumable: Some(id),
        elsewhere: request.elsewhere,
    };
    Box::pin(run::carry(tools, carried)).await
}

/// Goes on with a run that was interrupted.
pub(super) async fn resume(tools: &Tools, request: ResumeRequest) -> Result<Reply, Failure> {
    let record = runs::by_id(tools, &request.run).await?;
    let end_signal = EndSignal::default();
    let told = run::Told::default();
    let id = Arc::new(OnceLock::from(record.id.clone()));
    if record.status == RunStatus::AwaitingFollowup {
        let task = record.options["work_branch"]["task"].as_str();
        return Err(Failure::invalid(format!(
            "run {} waits for input: \"stillframe task follow-up {} --input-id N --text TEXT\" goes on with it; nothing was done",
            record.id,
            task.map_or_else(|| "TASK".to_owned(), output::printable)
        )));
    }
    let adapter = match (request.command, kept_steps(&record)?) {
        (Some(_), Some(_)) if !record.status.is_terminal() => return Err(has_steps(&record)),
        (Some(command), _) => BoxAdapter::new(run::Foreground {
            command: command.end_signal(end_signal.clone()),
            progress: tools.progress.clone(),
        }),
        (None, Some(file)) => {
            if !record.status.is_terminal() {
                check_complete(&record, &file)?;
            }
            BoxAdapter::new(StepRunner::new(tools, file, &end_signal, &told, &id))
        }
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
        Some(workspace) if !is_here => request::elsewhere(workspace.path.as_os_str()),
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
        resumable: Some(id),
        elsewhere,
        told,
        merges: false,
        going_on: None,
    };
    Box::pin(run::carry(tools, carried)).await
}

/// Refuses a file that commits where no commit can be made, before there is a run.
fn check_commits(
    file: &StepFile,
    options: &WorkspaceOptions,
    state_dir: &Path,
) -> Result<(), Failure> {
    let Some(step) = file.steps.iter().find(|step| step.commit.is_some()) else {
        return Ok(());
    };
    let state = StateDir::open(state_dir).map_err(Error::from)?;
    let workspace = Workspace::open(&options.path, &state).map_err(Error::from)?;
    let detected = backends::detect(&workspace, options.strategy).map_err(Error::from)?;
    match detected.kind() {
        BackendKind::Hash => Err(Failure::invalid(format!(
            "step {:?} commits, and no commit can be made here: {}; nothing was run",
            step.name, detected.reason
        ))),
        _ => Ok(()),
    }
}

/// Asks a run to stop, and waits a while for it.
pub(super) async fn cancel(tools: &Tools, id: &str) -> Result<Reply, Failure> {
    let id = runs::by_id(tools, id).await?.id;
    tools.engine.cancel_run(&id).await?;
    let began = Instant::now();
    let record = loop {
        let record = tools.engine.find_run(id.as_str()).await?;
        if record.status.is_terminal() || began.elapsed() > CANCEL_GRACE {
            break record;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let note = match record.status.is_terminal() {
        true => format!("run {id} is {}", record.status),
        false => format!("run {id} was asked to stop, and ends when its work does"),
    };
    let mut reply = Reply::new(tools.json, &record, String::new).note(note);
    // Also those that were found, or made, when what it left was looked after just now.
    let commits = tools.engine.export_run(id.as_str()).await?.commits;
    let made: Vec<&str> = commits.iter().map(|made| made.commit.as_str()).collect();
    if !made.is_empty() {
        reply
            .notes
            .push(format!("it committed {}", made.join(", ")));
    }
    Ok(reply)
}

/// The workspace of a run as it was begun; where it lies by now, if `named` says so.
pub(super) fn workspace(
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
pub(super) fn is_same_place(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// What the file at `path` says.
fn read(path: &Path) -> Result<StepFile, Failure> {
    let shown = output::printable(&path.to_string_lossy());
    let text = toml_text::read(path, step_file::MAX_BYTES).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Failure::invalid(format!("{shown} {e}; nothing was run")),
        kind => Failure::new(
            match kind {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Unreadable,
            },
            format!("{shown} cannot be read: {e}; nothing was run"),
        ),
    })?;
    StepFile::parse(&text)
        .map_err(|why| Failure::invalid(format!("{shown}: {why}; nothing was run")))
}

/// Stands for work that is on record, and is not done again.
struct Nothing;

impl Adapter for Nothing {
    async fn run(&self, _context: RunContext) -> Result<AdapterOutput, AdapterError> {
        Err(Error::invalid_options("the run has ended").into())
    }
}
