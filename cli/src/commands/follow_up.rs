//! `task follow-up`: new input for a task that waits.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use stillframe::commands::EndSignal;
use stillframe::records::RunRecord;
use stillframe::steps::BoxAdapter;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, CommandAdapter, Error, RunContext, RunOptions,
};

use super::checkpoints::Saved;
use super::run::{Carried, Foreground, GoingOn, Told, carry};
use super::steps::{is_same_place, workspace};
use super::task::commands;
use super::{Tools, runs};
use crate::branch;
use crate::failure::Failure;
use crate::output::{Reply, printable};
use crate::request::{self, COMMAND, FollowUpRequest, IDLE_TIMEOUT, TIMEOUT, foreground};

/// What stands in a command for a secret value that was taken out of its record.
const TAKEN_OUT: &str = "[redacted:";

/// As a shell has it: there is no such program.
const EXIT_NOT_FOUND: u8 = 127;

/// Goes on with a task.
pub(super) async fn answer(tools: &Tools, request: FollowUpRequest) -> Result<Reply, Failure> {
    let Some(record) = waiting(tools, &request).await? else {
        // The engine says why it does not go on.
        let options = RunOptions::new("");
        let claim = tools
            .engine
            .claim_follow_up(&request.task, request.input, options, NotKnown);
        return match claim.await {
            Err(e) => Err(e.into()),
            Ok(outcome) => unreachable!("{} has no adapter", outcome.run_id),
        };
    };
    let run = &record.id;
    let is_typed = request.command.is_some();
    let command = match request.command {
        Some(command) => command,
        None => stored(&record, tools.json)?,
    };
    let command = limited(command, &record);
    let (place, kept) = tools.engine.work_branch_of(run).await?;
    let set = request.config.settings(Some(&place.path)).task;
    let every = kept.checkpoint_interval;
    let mut branch = branch::of_run(kept, (None, request.token), set)?.checkpoint_interval(every);
    branch.expected = request.expect;
    branch::named(&branch)?;
    if is_typed {
        let place = request.workspace.as_deref();
        let place = place.or(record.workspace_path.as_deref().map(Path::new));
        let elsewhere = place.map(|place| request::elsewhere(place.as_os_str()));
        let commands = commands(&branch, &elsewhere.unwrap_or_default());
        refuse_without_program(&command, place, &commands.resume)?;
    }
    let end_signal = EndSignal::default();
    let adapter = Saved {
        adapter: Foreground {
            command: command.end_signal(end_signal.clone()),
            progress: tools.progress.clone(),
        },
        every: Some(every).filter(|every| !every.is_zero()),
        console: tools.console,
        progress: tools.progress.clone(),
    };
    let mut options = RunOptions::new(record.input.clone()).work_branch(branch);
    let mut elsewhere = String::new();
    let current = request.current.clone();
    if let Some(place) = workspace(&record, request.workspace, request.current)? {
        if !current.is_some_and(|current| is_same_place(&place.path, &current)) {
            elsewhere = request::elsewhere(place.path.as_os_str());
        }
        options = options.workspace(place);
    }
    let carried = Carried {
        session: None,
        options,
        adapter: BoxAdapter::new(adapter),
        end_signal,
        resumable: None,
        elsewhere,
        told: Told::default(),
        merges: false,
        going_on: Some(GoingOn::FollowUp(request.task, request.input)),
    };
    Box::pin(carry(tools, carried)).await
}

/// The run that waits for input of a task: in the workspace that was named or that one is in, or
/// else the only one. `None`: none does, or the engine has to be asked.
async fn waiting(tools: &Tools, request: &FollowUpRequest) -> Result<Option<RunRecord>, Failure> {
    let mut found: Vec<RunRecord> = Vec::new();
    let (asked, _) = tools.engine.find_task(&request.task).await?;
    for task in tools.engine.tasks().await? {
        let is_it = (&task.namespace, &task.task) == (&asked.namespace, &asked.task);
        let run = task.run_id.filter(|_| is_it && task.follow_up.is_some());
        // One that works in several repositories has a task of this name in each, say.
        let run = run.filter(|run| found.iter().all(|record| record.id != *run));
        if let Some(run) = run {
            found.push(runs::by_id(tools, run.as_str()).await?);
        }
    }
    let here = request.workspace.as_deref().or(request.current.as_deref());
    let is_here = |record: &&RunRecord| {
        let path = record.workspace_path.as_deref().map(Path::new);
        let around = here.into_iter().flat_map(Path::ancestors);
        path.is_some_and(|path| around.into_iter().any(|dir| is_same_place(dir, path)))
    };
    if let Some(record) = found.iter().find(is_here) {
        return Ok(Some(record.clone()));
    }
    match found.as_slice() {
        [record] => {
            if let Some(path) = &record.workspace_path {
                tools.console.note(&format!(
                    "the task waits in {}, and goes on there",
                    printable(path)
                ));
            }
            Ok(Some(record.clone()))
        }
        _ => Ok(None),
    }
}

/// Refuses a command that could not be started, which would use up the input. `resume`: the command
/// that brings the workspace to the branch, where the program may be.
fn refuse_without_program(
    command: &CommandAdapter,
    place: Option<&Path>,
    resume: &str,
) -> Result<(), Failure> {
    let Some(code) = command.cannot_start(place) else {
        return Ok(());
    };
    let why = match code {
        EXIT_NOT_FOUND => "there is no such program",
        _ => "its program may not be executed",
    };
    Err(Failure::not_found(format!(
        "the command cannot be started: {why}; nothing was claimed, and the task still waits; if the branch has the \
         program, \"{resume}\" brings it here"
    ))
    .of_command(code))
}

/// The command, with the limits of time that the run was started with.
pub(super) fn limited(mut command: CommandAdapter, record: &RunRecord) -> CommandAdapter {
    let limit = |key: &str| {
        let kept = record.options["metadata"][key].as_u64();
        kept.map(Duration::from_millis)
    };
    if let Some(limit) = limit(TIMEOUT) {
        command = command.timeout(limit);
    }
    if let Some(limit) = limit(IDLE_TIMEOUT) {
        command = command.idle_timeout(limit);
    }
    command
}

/// Stands for the command of a run that waits nowhere: it is refused before anything is claimed.
struct NotKnown;

impl Adapter for NotKnown {
    fn check(&self, _: Option<&Path>) -> Result<(), Error> {
        Err(refused())
    }

    async fn run(&self, _: RunContext) -> Result<AdapterOutput, AdapterError> {
        Err(refused().into())
    }
}

fn refused() -> Error {
    Error::invalid_options("the task waits since a moment ago; nothing was done, so try again")
}

/// The command that a run was started with.
pub(super) fn stored(record: &RunRecord, json: bool) -> Result<CommandAdapter, Failure> {
    let words = record.options["metadata"][COMMAND].as_array();
    let words = words.into_iter().flatten().filter_map(|word| word.as_str());
    let words: Vec<OsString> = words.map(OsString::from).collect();
    let has_gap = |word: &OsString| word.to_string_lossy().contains(TAKEN_OUT);
    match words.split_first() {
        Some((program, rest)) if !words.iter().any(has_gap) => {
            Ok(foreground(program.clone(), rest, json))
        }
        found => {
            let why = match found {
                Some(_) => "has a secret value that is not on record",
                None => "is not on record as text",
            };
            Err(Failure::usage(format!(
                "the command of run {} {why}; name what goes on with it: -- CMD; nothing was done",
                printable(record.id.as_str())
            )))
        }
    }
}
