//! Work that outlives its machine. A host does a task in five parts and saves each part on the
//! task's branch; its machine dies after three. Another one, with a clone and a state of its own,
//! goes on from there, is blocked until somebody answers, and finishes.
//!
//! ```sh
//! cargo run -p stillframe --example two_machines
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

use stillframe::tasks::{FollowUpInput, WorkBranchOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, RunContext, RunOptions,
    RunOutcome, WorkspaceOptions,
};

const TASK: &str = "42";

/// Writes the parts that are not there. `dies_after`: the machine goes away once so many are.
struct Parts {
    dies_after: Option<usize>,
}

impl Adapter for Parts {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let place = context.workspace.clone().expect("the run has one");
        let failed = |e: std::io::Error| AdapterError::failed(e.to_string());
        for part in 1..=5 {
            let path = place.join(format!("part-{part}"));
            if path.exists() {
                continue;
            }
            let text = match (part, &context.follow_up) {
                // Nobody but a person knows what comes last.
                (5, None) => return Err(context.blocked("what is the last part?")),
                (5, Some(answer)) => answer.text.clone(),
                _ => format!("part {part}"),
            };
            fs::write(path, text + "\n").map_err(failed)?;
            context.checkpoint_now().await?;
            if self.dies_after == Some(part) {
                std::process::abort();
            }
        }
        Ok(AdapterOutput::empty())
    }
}

/// An engine with a state of its own, as each machine has one.
async fn machine(place: &Path) -> Result<Engine, stillframe::Error> {
    Engine::start(EngineOptions::default().state_dir(place.join("state"))).await
}

/// Does the task in the clone of a machine.
async fn work(engine: &Engine, place: &Path, work: Parts) -> Result<RunOutcome, Box<dyn Error>> {
    let options = RunOptions::new("write five parts")
        .workspace(WorkspaceOptions::at(place.join("clone")))
        .work_branch(WorkBranchOptions::of(TASK));
    Ok(engine.run_once(options, work).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The first machine is a process of its own, so that it can die.
    if let Some(place) = env::args_os().nth(1) {
        let dies = Parts {
            dies_after: Some(3),
        };
        let engine = machine(place.as_ref()).await?;
        work(&engine, place.as_ref(), dies).await?;
        return Ok(());
    }
    let scratch = tempfile::tempdir()?;
    let machines = [scratch.path().join("first"), scratch.path().join("second")];
    let remote = scratch.path().join("remote.git");
    started("git", ["init", "-q", "--bare", "-b", "main"], &[&remote])?;
    for machine in &machines {
        started("git", ["clone", "-q"], &[&remote, &machine.join("clone")])?;
    }

    let dead = started(env::current_exe()?, [], &[&machines[0]])?;
    println!("the first machine died: {}", dead.status.signal().is_some());

    let engine = machine(&machines[1]).await?;
    let parts = Parts { dies_after: None };
    let outcome = work(&engine, &machines[1], parts).await?;
    let written = || machines[1].join("clone").read_dir().map(Iterator::count);
    println!("the second one has {} of 5 parts", written()? - 1);
    let waits = outcome.follow_up.ok_or("the run is blocked")?;
    println!("{} waits: {}", waits.branch, waits.waiting_reason);

    let answer = FollowUpInput::new(1, "a good end");
    let parts = Parts { dies_after: None };
    let outcome = engine.claim_follow_up(TASK, answer, RunOptions::new(""), parts);
    let outcome = outcome.await?;
    println!("the run is {}", outcome.run.status);
    let saved = outcome.workspace.saved.ok_or("it is of a task")?;
    println!("{} has all: {}", saved.branch, saved.error.is_none());
    engine.shutdown().await?;
    Ok(())
}

/// What became of a program that was started to its end.
#[expect(
    clippy::disallowed_methods,
    reason = "the scene of the example is made by git, and by the example itself"
)]
fn started<const N: usize>(
    program: impl AsRef<std::ffi::OsStr>,
    words: [&str; N],
    paths: &[&Path],
) -> std::io::Result<Output> {
    Command::new(program).args(words).args(paths).output()
}
