//! `task follow-up`: new input for a task that waits.

use std::ffi::OsString;

use stillframe::commands::EndSignal;
use stillframe::records::RunRecord;
use stillframe::steps::BoxAdapter;
use stillframe::{CommandAdapter, RunOptions};

use super::checkpoints::Saved;
use super::run::{Carried, Foreground, Told, carry};
use super::steps::{Nothing, is_same_place, workspace};
use super::{Tools, runs};
use crate::branch;
use crate::failure::Failure;
use crate::output::{Reply, printable};
use crate::request::{self, COMMAND, FollowUpRequest, foreground};

/// What stands in a command for a secret value that was taken out of its record.
const TAKEN_OUT: &str = "[redacted:";

/// Goes on with a task.
pub(super) async fn answer(tools: &Tools, request: FollowUpRequest) -> Result<Reply, Failure> {
    let (task, _) = tools.engine.find_task(&request.task).await?;
    let waiting = task.run_id.as_ref().filter(|_| task.follow_up.is_some());
    let Some(run) = waiting else {
        // The engine says why it does not go on.
        let options = RunOptions::new("");
        let claim = tools
            .engine
            .claim_follow_up(&request.task, request.input, options, Nothing);
        return match claim.await {
            Err(e) => Err(e.into()),
            Ok(_) => Err(Failure::invalid("the task waits since now; try again")),
        };
    };
    let record = runs::by_id(tools, run.as_str()).await?;
    let command = match request.command {
        Some(command) => command,
        None => stored(&record, tools.json)?,
    };
    let (place, kept) = tools.engine.work_branch_of(run).await?;
    let set = request.config.settings(Some(&place.path)).task;
    let every = kept.checkpoint_interval;
    let branch = branch::of_run(kept, (None, request.token), set)?.checkpoint_interval(every);
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
        follow_up: Some((request.task, request.input)),
    };
    Box::pin(carry(tools, carried)).await
}

/// The command that a run was started with.
fn stored(record: &RunRecord, json: bool) -> Result<CommandAdapter, Failure> {
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
