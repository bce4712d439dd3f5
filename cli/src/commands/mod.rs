//! The commands, one file for each family.
//!
//! Each command calls the engine and turns the answer into a [`Reply`]. Pure functions decide what
//! to print.

mod above;
mod again;
pub(crate) mod artifact;
mod checkpoints;
mod completions;
pub(crate) mod config;
pub(crate) mod content;
mod diff;
mod diffstat;
mod events;
mod export;
pub(crate) mod files;
mod follow_up;
mod head_moved;
mod new_repository;
mod notices;
mod purge;
mod quarantine;
mod questions;
pub(crate) mod restore;
mod retention;
mod review;
mod run;
mod runs;
pub(crate) mod sessions;
pub(crate) mod show;
pub(crate) mod snapshot;
mod steps;
mod subject;
pub(crate) mod task;
mod transcript;
mod undo;
pub(crate) mod upkeep;
mod way_back;
mod why;
mod worktree;

use std::future::Future;
use std::path::PathBuf;

use stillframe::options::{LogRetention, RetentionOptions};
use stillframe::{CancellationToken, Engine, ErrorKind, WorkspaceOptions};

pub(crate) use completions::completions;
pub(crate) use config::config;
pub(crate) use upkeep::verify_without_log;

use crate::failure::Failure;
use crate::output::{Console, Reply};
use crate::progress::ProgressLine;
use crate::request::{self, Request};
use crate::signals::Signals;

/// What a command works with.
pub(crate) struct Tools {
    /// The engine.
    pub(crate) engine: Engine,
    /// Where it keeps everything.
    pub(crate) state_dir: PathBuf,
    /// Whether a document is wanted.
    pub(crate) json: bool,
    /// The workspace that was named; `None`: it is the current directory for want of another.
    pub(crate) named_workspace: Option<PathBuf>,
    /// For what has to be said before the end.
    pub(crate) console: Console,
    /// The line that says how far a capture has come, if there is one.
    pub(crate) progress: Option<ProgressLine>,
    /// Which snapshots, and what of the log, are kept without being asked; `None`: all.
    pub(crate) retention: Option<(RetentionOptions, LogRetention)>,
}

impl Tools {
    /// What to add to a suggested command line so that it is about the workspace that was named;
    /// may be empty.
    fn elsewhere(&self) -> String {
        let named = self.named_workspace.as_deref();
        named.map_or_else(String::new, |named| request::elsewhere(named.as_os_str()))
    }
}

/// Carries out the request, and applies retention.
pub(crate) async fn carry_out(tools: &Tools, request: Request) -> Result<Reply, Failure> {
    let request = above::settle(tools, request).await;
    let grown = retention::adds_to(&request);
    let reply = Box::pin(answer(tools, request)).await?;
    let told = match (grown, &tools.retention) {
        (Some(workspace), Some((options, log))) => {
            let of_snapshots = retention::apply(tools, &workspace, options.clone()).await;
            let of_log = retention::apply_to_log(tools, log.clone()).await;
            of_snapshots.into_iter().chain(of_log).collect()
        }
        _ => Vec::new(),
    };
    Ok(reply.notes(told))
}

async fn answer(tools: &Tools, request: Request) -> Result<Reply, Failure> {
    match request {
        Request::Run(request) => Box::pin(run::run(tools, *request)).await,
        Request::Snapshot(workspace, label) => {
            while_wanted(workspace, |workspace| {
                snapshot::snapshot(tools, workspace, label)
            })
            .await
        }
        Request::SnapshotIfChanged(workspace, label) => {
            while_wanted(workspace, |workspace| {
                snapshot::snapshot_if_changed(tools, workspace, label)
            })
            .await
        }
        Request::RemoveSnapshots(workspace, ids) => {
            while_wanted(workspace, |workspace| upkeep::remove(tools, workspace, ids)).await
        }
        Request::Pin(workspace, id) => snapshot::pin(tools, &workspace, &id).await,
        Request::Unpin(workspace, id) => snapshot::unpin(tools, &workspace, &id).await,
        Request::List(query) => snapshot::list(tools, query).await,
        Request::Diff(workspace, request, view) => {
            while_wanted(workspace, |workspace| {
                diff::diff(tools, workspace, request, view)
            })
            .await
        }
        Request::PlanRestore(workspace, request) => {
            while_wanted(workspace, |at| restore::plan(tools, at, request)).await
        }
        Request::Restore(workspace, request) => {
            to_the_end(tools, restore::restore(tools, workspace, request)).await
        }
        Request::WriteAbove(outside) => Err(above::refusal(tools, &outside).await),
        Request::ReadAbove(_, outside) => Err(outside.in_no_workspace()),
        Request::Copy(workspace, request) => {
            while_wanted(workspace, |workspace| {
                restore::copy(tools, workspace, request)
            })
            .await
        }
        Request::Undo(request) => to_the_end(tools, undo::undo(tools, request)).await,
        Request::Steps(request) => Box::pin(steps::run(tools, *request)).await,
        Request::Retry(request) => Box::pin(again::retry(tools, request)).await,
        Request::Resume(request) => Box::pin(steps::resume(tools, *request)).await,
        Request::Cancel(run) => Box::pin(steps::cancel(tools, &run)).await,
        Request::Questions(id) => questions::show(tools, id.as_deref()).await,
        Request::Answer { question, answer } => questions::answer(tools, &question, &answer).await,
        Request::Runs(query) => runs::runs(tools, query).await,
        Request::Sessions(query) => sessions::sessions(tools, query).await,
        Request::Show(id, workspace) => show::show(tools, &id, workspace).await,
        Request::ShowFile(id, workspace, path) => content::show(tools, &id, workspace, &path).await,
        Request::ListFiles(id, workspace) => files::list(tools, &id, workspace).await,
        Request::Follow(id) => runs::follow(tools, &id).await,
        Request::Why(workspace, path, snapshot) => {
            while_wanted(workspace, |workspace| {
                why::why(tools, workspace, path, snapshot.as_deref())
            })
            .await
        }
        Request::Events(query) => events::events(tools, query).await,
        Request::FollowEvents(query) => events::follow(tools, query).await,
        Request::Transcript { id, from } => transcript::transcript(tools, &id, from).await,
        Request::Export { id, to } => {
            until_a_signal(|cancellation| export::export(tools, &id, to, cancellation)).await
        }
        Request::FollowUp(request) => Box::pin(follow_up::answer(tools, *request)).await,
        Request::Init(options) => new_repository::init(tools, options).await,
        Request::Clone(options) => new_repository::clone(tools, *options).await,
        Request::Task(request) => task::answer(tools, request).await,
        Request::Revise(request) => Box::pin(again::revise(tools, *request)).await,
        Request::Review(request) => Box::pin(review::answer(tools, request)).await,
        Request::Worktree(request) => Box::pin(worktree::answer(tools, request)).await,
        Request::Notices(request) => notices::answer(tools, request).await,
        Request::Artifacts(run) => artifact::list(tools, run.as_deref()).await,
        Request::GetArtifact(key) => artifact::get(tools, &key).await,
        Request::RemoveArtifact(key) => artifact::remove(tools, &key).await,
        Request::Verify(workspace) => {
            while_wanted(workspace, |workspace| upkeep::verify(tools, workspace)).await
        }
        Request::Gc(workspace, options, log) => {
            let gc = |workspace| upkeep::gc(tools, workspace, options, log);
            while_wanted(workspace, gc).await
        }
        Request::PlanPurge(workspace, target) => {
            while_wanted(workspace, |workspace| purge::plan(tools, workspace, target)).await
        }
        // It goes to its end of its own accord once it removes anything.
        Request::Purge(workspace, target) => {
            while_wanted(workspace, |workspace| {
                purge::purge(tools, workspace, target)
            })
            .await
        }
        Request::Config(request) => config(tools.json, request),
        Request::Completions(shell) => Ok(completions(shell)),
    }
}

/// As [`until_a_signal`], for work on a workspace.
async fn while_wanted<F: Future<Output = Result<Reply, Failure>>>(
    workspace: WorkspaceOptions,
    work: impl FnOnce(WorkspaceOptions) -> F,
) -> Result<Reply, Failure> {
    until_a_signal(|cancellation| work(workspace.cancellation(cancellation))).await
}

/// Does `work` until a signal asks for it to end; then it ends as soon as it can, and leaves
/// nothing. What was done by then is answered as ever.
async fn until_a_signal<F: Future<Output = Result<Reply, Failure>>>(
    work: impl FnOnce(CancellationToken) -> F,
) -> Result<Reply, Failure> {
    let mut signals = Signals::listen()?;
    let cancellation = CancellationToken::new();
    let mut work = Box::pin(work(cancellation.clone()));
    let mut signal = None;
    loop {
        tokio::select! {
            reply = &mut work => return reply.map_err(|failure| match signal {
                Some(number) if failure.kind() == ErrorKind::Cancelled => failure.by_signal(number),
                _ => failure,
            }),
            number = signals.next() => {
                signal.get_or_insert(number);
                cancellation.cancel();
            }
        }
    }
}

/// Does `work` and ignores signals meanwhile. The next command would finish an interrupted restore,
/// but a person who presses Ctrl-C should not find half a restore until then.
async fn to_the_end(
    tools: &Tools,
    work: impl Future<Output = Result<Reply, Failure>>,
) -> Result<Reply, Failure> {
    let mut signals = Signals::listen()?;
    let mut work = Box::pin(work);
    loop {
        tokio::select! {
            reply = &mut work => return reply,
            _ = signals.next() => tools.console.note("finishing what was begun"),
        }
    }
}
