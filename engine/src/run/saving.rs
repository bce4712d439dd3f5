//! Settling a run whose engine or task is gone since its work ended and was to be saved: that is
//! done again, and the run ends as what it came for, or rests.

use serde::Deserialize as _;
use serde::de::IgnoredAny;
use serde_json::Value;
use stillframe_backends::{ErrorKind, Label, SnapshotId, printable};

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::{RunEnded, Why, data};
use crate::failure::Failure;
use crate::options::WorkspaceOptions;
use crate::options::repository::RepositoryOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::came_for::CameFor;
use crate::records::checkpoint::CheckpointKind;
use crate::records::repositories::SavedRepositories;
use crate::records::restore_document::RestoreDocument;
use crate::records::run::EndsAs;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_document::{KeptOptions, WorkspaceSummary, document};
use crate::records::run_row::RunRow;
use crate::records::saved_work::SavedWork;
use crate::run::closing::Closing;
use crate::run::end::{Changed, End, Left, end_run};
use crate::run::give_up::{end_own_session, give_up};
use crate::run::on_record::{OnRecord, STRANDED, Settled};
use crate::run::owner;
use crate::run::recorded as on_the_record;
use crate::saving::repository::{Part, Repository, Unsaved, after_in, before_in};
use crate::saving::waiting::{self, Waits};
use crate::saving::work::Content;
use crate::state::StateStore;
use crate::workspace::opened::Opened;
use crate::workspace::turn;

/// Ends a run whose work was being saved, or lets it rest. How its work ended is on record, and
/// what it left was captured: nothing is captured here.
pub(super) async fn settle(
    core: &Core,
    run: RunRow,
    why: Option<Failure>,
) -> Result<Settled, Error> {
    let place = match finish(core, &run).await {
        Err(e) if e.kind() == ErrorKind::Busy => {
            tracing::warn!(run = %run.id, error = %e.chain(), "not settled");
            return Ok(Settled::Left);
        }
        // The run ends all the same. A restore that is not finished waits for the next to come.
        Err(e) => {
            tracing::warn!(run = %run.id, error = %e.chain(), "its workspace is not seen");
            None
        }
        Ok(place) => place,
    };
    let parts = &core.parts;
    let found = OnRecord::read(core, &run.id).await?;
    let came_for = came_for(core, &run).await?;
    let changed = Changed::on_record(core, &run).await?;
    let after = changed.as_ref().map(|changed| changed.after.clone());
    if let (CameFor::Block(_), RunStatus::Blocked) = (&came_for, run.status)
        && !found.is_unwanted()
    {
        let unsaved = Box::pin(unsaved(core, &run, (place.clone(), after.clone()))).await;
        if let Some(said) = unsaved.started(CheckpointKind::Blocked, None, true) {
            return checkpointing(core, run, found, said).await;
        }
    }
    let Again {
        saved,
        repositories,
        unsaved,
        waits,
    } = match run.status {
        RunStatus::Blocked => Again::default(),
        _ => Box::pin(save_again(core, &run, &came_for, (place, after.clone()))).await,
    };
    let event = event(&run, &came_for, &found, waits.is_some());
    let is_unwanted = found.is_unwanted();
    let unsaved = match (unsaved, &saved) {
        (Some(why), _) => Some(not_sent(&why)),
        (None, Some(_)) => None,
        (None, None) => Some(not_saved(&came_for, after.as_ref(), why.as_ref())),
    };
    let asked = run.id.clone();
    let steps = parts
        .reader
        .read(move |store| Ok((store.phases(&asked)?, store.steps(&asked)?)))
        .await?;
    let rollback = found.rollback.as_ref().and_then(|row| row.outcome.clone());
    let error = match event {
        RunEvent::Persisted(_) => run.error.clone(),
        RunEvent::Unproven => unsaved
            .clone()
            .or_else(|| Some(not_saved(&came_for, None, None))),
        _ => Some(why.unwrap_or_else(stranded)),
    };
    let right = match found.lease {
        Some(lease) => Some(owner::taken_from_owner(parts, &run.id, lease, parts.now())?),
        None => None,
    };
    let (said, changes) = match waits {
        Some(waits) => (waits.said, waits.changes),
        None => (data(&said(&run, event, error.as_ref())), Vec::new()),
    };
    let end = End {
        from: Some(run.status),
        right,
        is_recovered: true,
        changes,
        exit_code: run.exit_code,
        error: error.clone(),
        output: run.output.clone(),
        workspace: seen(&run, rollback, unsaved.as_ref(), (saved, repositories)),
        left: Some(Left {
            steps,
            after,
            changed,
            guard: found.rollback.map(|row| row.guard),
            problems: Vec::from_iter(unsaved),
        }),
        ..End::new(event, said)
    };
    end_run(core, (&run.session_id, &run.id), end).await?;
    if event == RunEvent::Proven && is_unwanted {
        // It is on its branch, and nobody wants it to go on.
        if let Some(found) = on_the_record::recorded(core, &run.id).await? {
            Box::pin(give_up(core, &found)).await?;
            Box::pin(end_own_session(core, &found.row)).await;
        }
    }
    Ok(Settled::Done)
}

/// Goes on with a blocked run to its checkpoint.
async fn checkpointing(
    core: &Core,
    run: RunRow,
    found: OnRecord,
    said: Value,
) -> Result<Settled, Error> {
    let parts = &core.parts;
    let right = match found.lease {
        Some(lease) => Some(owner::taken_from_owner(parts, &run.id, lease, parts.now())?),
        None => None,
    };
    let end = End {
        from: Some(run.status),
        right,
        is_recovered: true,
        ..End::new(RunEvent::CheckpointBegun, said)
    };
    end_run(core, (&run.session_id, &run.id), end).await?;
    let asked = run.id.clone();
    match parts.reader.read(move |store| store.run(&asked)).await? {
        Some(run) => Box::pin(settle(core, run, None)).await,
        None => Ok(Settled::Done),
    }
}

/// That what a run of a task left is saved before it ends, which its engine died before it could
/// do: how it ends, and what the event says that tells of the begin. What it left in its further
/// repositories is captured by then. `None`: it is of no task, it rests, or nothing of it was
/// captured.
///
/// # Errors
///
/// `Busy`: somebody is at work in one of those.
pub(super) async fn begin(
    core: &Core,
    run: &RunRow,
    event: RunEvent,
    closing: Option<&Closing>,
) -> Result<Option<(EndsAs, Value)>, Error> {
    let ends = match event {
        RunEvent::Stranded => EndsAs::Failed,
        RunEvent::Cancelled => EndsAs::Cancelled,
        _ => return Ok(None),
    };
    let may_begin = run.status.next(RunEvent::Persisting(ends)).is_ok();
    let Some(closing) = closing.filter(|_| may_begin) else {
        return Ok(None);
    };
    capture_further(core, run).await?;
    let place = open(core, run).await.ok().flatten();
    let after = closing.after.as_ref().map(|after| after.id.clone());
    let files = closing.diff.as_ref().map(|diff| diff.files_changed);
    // Without a repository there is no branch, and the run ends as any other.
    let unsaved = Box::pin(unsaved(core, run, (place, after))).await;
    let said = unsaved.started(CheckpointKind::of_end(ends), files, true);
    Ok(said.map(|said| (ends, said)))
}

/// Why what is in the workspace of a run that was killed at work is not saved for its task; `None`:
/// it is, or the run is of none. Whoever has moved HEAD to another branch may have put away what
/// the run left, and what is there by now is nobody's to send.
pub(super) fn is_elsewhere(run: &RunRow, closing: &Closing) -> Option<Failure> {
    let kept = KeptOptions::<WorkspaceOptions>::deserialize(&run.options).ok()?;
    kept.work_branch?;
    let (before, after) = closing.before.as_ref().zip(closing.after.as_ref())?;
    let (was, is) = (&before.metadata.branch, &after.metadata.branch);
    let named = |branch: &Option<String>| branch.clone().unwrap_or("no branch".to_owned());
    (was != is).then(|| {
        let message = format!(
            "HEAD is at {} by now, and was at {} when the work began: what is there was not sent; snapshot {} has it",
            named(is),
            named(was),
            after.id
        );
        Failure::new(ErrorKind::Unavailable.as_str(), message)
    })
}

/// The workspace of a run, as it was asked for.
async fn open(core: &Core, run: &RunRow) -> Result<Option<Opened>, Error> {
    let Some(recorded) = run.workspace.clone() else {
        return Ok(None);
    };
    let kept = KeptOptions::<WorkspaceOptions>::deserialize(&run.options)
        .map_err(|e| Error::new(ErrorKind::Corrupt, e))?;
    let mut options = kept.workspace;
    options.path = recorded.path;
    options.watch = false;
    let parts = core.parts.clone();
    let opened = move || Opened::open(&parts, options);
    core.parts.blocking.run(opened).await?.map(Some)
}

/// Finishes what a crash left half done in the directories of a run, such as its rollback. `Busy`:
/// somebody is at work in one, who may be its owner.
async fn finish(core: &Core, run: &RunRow) -> Result<Option<Opened>, Error> {
    let lock_timeout = core.parts.settings.lock_timeout;
    for (_, further) in further(core, run).await {
        let Ok(further) = further else {
            continue;
        };
        let workspace = &further.opened.workspace;
        match turn::work(core, workspace, "recovery", lock_timeout, |_| Ok(())).await {
            Err(e) if e.kind() == ErrorKind::Busy => return Err(e),
            // What comes of that is told where its work is saved.
            Ok(()) | Err(_) => {}
        }
    }
    let Some(opened) = open(core, run).await? else {
        return Ok(None);
    };
    let workspace = &opened.workspace;
    turn::work(core, workspace, "recovery", lock_timeout, |_| Ok(())).await?;
    Ok(Some(opened))
}

/// The further repositories that a run works in, with how they were given, or why they cannot be
/// opened.
async fn further(core: &Core, run: &RunRow) -> Vec<(RepositoryOptions, Result<Repository, Error>)> {
    let kept = KeptOptions::<IgnoredAny>::deserialize(&run.options);
    let kept = kept.map(|kept| kept.repositories).unwrap_or_default();
    let kept = kept.into_iter().map(RepositoryOptions::of_kept);
    let mut further = Vec::new();
    for given in kept.filter_map(Result::ok) {
        let (parts, workspace) = (core.parts.clone(), given.workspace.clone());
        let opened = core
            .parts
            .blocking
            .run(move || Opened::open(&parts, workspace));
        let opened = match opened.await {
            Ok(opened) => opened,
            Err(lost) => Err(lost.into()),
        };
        let repository = match opened {
            Ok(opened) => Ok(Repository {
                began_at: began_in(core, run, &opened).await,
                branch: given.work_branch.clone(),
                opened,
            }),
            Err(e) => Err(e),
        };
        further.push((given, repository));
    }
    further
}

/// The commit that the work of a run began at in a further repository, as far as that is on record.
async fn began_in(core: &Core, run: &RunRow, opened: &Opened) -> Option<String> {
    let asked = before_in(&run.id, opened);
    let reader = &core.parts.reader;
    let found = reader.read(move |store| store.find_snapshots(&asked)).await;
    found.ok()?.into_iter().next()?.snapshot.metadata.head_ref
}

/// What a run left in its repositories, as the snapshots after it have it; its own is at `place`.
async fn unsaved(
    core: &Core,
    run: &RunRow,
    (place, after): (Option<Opened>, Option<SnapshotId>),
) -> Unsaved {
    let kept = KeptOptions::<IgnoredAny>::deserialize(&run.options).ok();
    let branch = kept.and_then(|kept| kept.work_branch);
    let mut unsaved = Unsaved::default();
    let Some(branch) = branch.map(WorkBranchOptions::of_kept) else {
        return unsaved;
    };
    if let (Some(opened), Some(after)) = (place, after) {
        let own = Repository {
            opened,
            branch,
            began_at: began_at(core, run).await,
        };
        unsaved.own = Some(Part::of(core, own, Content::Of(after), Some(&run.id)).await);
    }
    for (given, repository) in further(core, run).await {
        let captured = match repository {
            Ok(repository) => captured_in(core, run, repository).await,
            Err(e) => Err(e),
        };
        unsaved.further.push(match captured {
            Ok((repository, after)) => {
                Part::of(core, repository, Content::Of(after), Some(&run.id)).await
            }
            Err(e) => Part::lost(printable(&given.workspace.path), given.work_branch, e),
        });
    }
    unsaved
}

/// A further repository of a run, with the snapshot after the work there. What is there by now may
/// be somebody else's.
async fn captured_in(
    core: &Core,
    run: &RunRow,
    repository: Repository,
) -> Result<(Repository, SnapshotId), Error> {
    let after = run.workspace.as_ref().map(|own| own.after.clone());
    let after = after.map(|after| after_in(&after, &repository.opened));
    let read = move |store: &dyn StateStore| match &after {
        Some(after) => store.snapshot(after),
        None => Ok(None),
    };
    match core.parts.reader.read(read).await? {
        Some(row) => Ok((repository, row.snapshot.id)),
        None => Err(Error::not_found(
            "what the run left there was not captured before its engine was gone, and is not known to be saved; what is there by now was not touched",
        )),
    }
}

/// Captures what a run that was at work left in its further repositories. `Busy`: somebody is at
/// work in one.
async fn capture_further(core: &Core, run: &RunRow) -> Result<(), Error> {
    let Some(own) = &run.workspace else {
        return Ok(());
    };
    let ids = (&run.session_id, &run.id);
    let lock_timeout = core.parts.settings.lock_timeout;
    for (_, repository) in further(core, run).await {
        // Why it cannot be opened is told where its work is saved.
        let Ok(repository) = repository else {
            continue;
        };
        let wanted = (
            Label::AFTER_FAILURE,
            after_in(&own.after, &repository.opened),
        );
        let captured = repository.capture_after(core, ids, wanted, None, lock_timeout);
        match Box::pin(captured).await {
            Err(e) if e.kind() == ErrorKind::Busy => return Err(e),
            Err(e) => {
                tracing::warn!(run = %run.id, repository = repository.name(), error = %e.chain(), "what the run left is not captured");
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// What became of work that was saved again.
#[derive(Default)]
struct Again {
    /// `None`: the run is of no task, or that cannot be known.
    saved: Option<SavedWork>,
    repositories: Option<SavedRepositories>,
    /// Why not all of it is on its branches.
    unsaved: Option<String>,
    /// What the run waits with, if it is blocked and its work is proven.
    waits: Option<Waits>,
}

/// Saves again what a run left, in its own repository what the snapshot after it has: what was made
/// and sent before its engine died is found, and not made or sent twice.
///
/// Who asks the remotes is what the engine's options say: what the run's own said is not kept.
async fn save_again(
    core: &Core,
    run: &RunRow,
    came_for: &CameFor,
    left: (Option<Opened>, Option<SnapshotId>),
) -> Again {
    let ids = (&run.session_id, &run.id);
    let unsaved = unsaved(core, run, left).await;
    let done = Box::pin(unsaved.save(core, ids, came_for)).await;
    let waits = match (came_for, done.works()) {
        (CameFor::Block(block), Some(works)) => waiting::waits(core, ids, block, &works).await,
        _ => Ok(None),
    };
    // Nobody could go on with it, and it ends all the same.
    let (waits, why) = match waits {
        Ok(waits) => (waits, None),
        Err(e) => (None, Some(e.chain())),
    };
    let path = run.workspace.as_ref().map(|of| printable(&of.path));
    Again {
        repositories: done.told(&path.unwrap_or_default()),
        unsaved: done.why().or(why),
        saved: done.own.and_then(|own| own.saved),
        waits,
    }
}

/// The commit that the work of a run began at, as far as that is on record.
pub(crate) async fn began_at(core: &Core, run: &RunRow) -> Option<String> {
    let before = run.workspace.as_ref()?.before.clone();
    let reader = &core.parts.reader;
    let found = reader.read(move |store| store.snapshot(&before)).await;
    found.ok()??.snapshot.metadata.head_ref
}

/// What the run came for.
async fn came_for(core: &Core, run: &RunRow) -> Result<CameFor, Error> {
    let asked = run.id.clone();
    let found = core
        .parts
        .reader
        .read(move |store| store.came_for(&asked))
        .await?;
    found.ok_or_else(|| {
        let message = format!(
            "run {} is {}, and what it came for is not on record",
            run.id, run.status
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// What happens to the run. `is_proven`: the remote has what it had when it was blocked.
fn event(run: &RunRow, came_for: &CameFor, found: &OnRecord, is_proven: bool) -> RunEvent {
    match (came_for, run.status) {
        (CameFor::End(ends), _) => RunEvent::Persisted(*ends),
        (CameFor::Block(_), _) if is_proven => RunEvent::Proven,
        (CameFor::Block(_), RunStatus::Checkpointing) => RunEvent::Unproven,
        // Its checkpoint has not begun.
        (CameFor::Block(_), _) => found.event(run),
    }
}

/// What was not saved of a run whose engine or task is gone. What is settled is not saved again:
/// its work stays in the store.
fn not_saved(came_for: &CameFor, after: Option<&SnapshotId>, why: Option<&Failure>) -> Failure {
    let what = match came_for {
        CameFor::End(EndsAs::Completed) => "its work",
        CameFor::End(_) => "what it left",
        CameFor::Block(_) => "what it had when it was blocked",
    };
    let why = match why {
        Some(why) => why.line(),
        None => "the engine that was to save it is gone".to_owned(),
    };
    let place = match after {
        Some(after) => format!("; snapshot {after} has it"),
        None => String::new(),
    };
    let message = format!("{what} is not known to be on its work branch: {why}{place}");
    Failure::new(ErrorKind::Unavailable.as_str(), message)
}

/// That the work of a run is not on its branch.
fn not_sent(why: &str) -> Failure {
    let message = format!("what it left is not on its work branch: {why}");
    Failure::new(ErrorKind::Unavailable.as_str(), message)
}

fn stranded() -> Failure {
    let message = format!("{STRANDED}: the engine that had the run is gone");
    Failure::new(ErrorKind::Unavailable.as_str(), message)
}

/// What was seen of the workspace when the work ended, and what was not saved of it.
fn seen(
    run: &RunRow,
    rollback: Option<RestoreDocument>,
    unsaved: Option<&Failure>,
    (saved, repositories): (Option<SavedWork>, Option<SavedRepositories>),
) -> Value {
    let seen = run.seen();
    let error = match (&seen.error, unsaved) {
        // That the engine failed twice is told in full.
        (Some(first), Some(unsaved)) => Some(Failure {
            message: format!("{}; {}", first.message, unsaved.message),
            ..first.clone()
        }),
        (first, unsaved) => first.as_ref().or(unsaved).cloned(),
    };
    document(&WorkspaceSummary {
        rollback: rollback.or(seen.rollback.clone()),
        error,
        saved: saved.or(seen.saved.clone()),
        repositories: repositories.or(seen.repositories.clone()),
        ..seen
    })
}

/// What the event says that tells of it.
fn said(run: &RunRow, event: RunEvent, error: Option<&Failure>) -> RunEnded {
    let why = match (event, error) {
        (RunEvent::Persisted(_) | RunEvent::Unproven, Some(error)) => RunEnded::because(error).why,
        (RunEvent::Persisted(_) | RunEvent::Unproven, None) => None,
        _ => Some(Why::Settled {
            reason: STRANDED.to_owned(),
        }),
    };
    RunEnded {
        exit_code: matches!(event, RunEvent::Persisted(_)).then_some(run.exit_code),
        why,
        recovered: true,
        ..RunEnded::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use serde_json::json;
    use stillframe_backends::StateDir;

    use super::*;
    use crate::engine::Engine;
    use crate::engine::options::EngineOptions;
    use crate::events::event::EventType;
    use crate::events::query::EventQuery;
    use crate::id::RunId;
    use crate::options::{RunOptions, RunQuery, UndoTarget};
    use crate::records::block::Block;
    use crate::records::output::AdapterOutput;
    use crate::records::run_row::RunEnding;
    use crate::session::manager::SessionManager;
    use crate::state::change::Change;
    use crate::state::sqlite::SqliteStore;
    use crate::step::adapter::Adapter;
    use crate::step::adapter_error::AdapterError;
    use crate::step::context::RunContext;

    /// Writes a file, says that it has, and does not end by itself.
    struct Writes(tokio::sync::mpsc::Sender<()>);

    impl Adapter for Writes {
        async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
            std::fs::write(context.workspace.unwrap().join("new"), "x\n").unwrap();
            self.0.send(()).await.unwrap();
            std::future::pending().await
        }
    }

    struct Scene {
        scratch: tempfile::TempDir,
    }

    fn id() -> RunId {
        "r".parse().unwrap()
    }

    impl Scene {
        /// A run that has changed its workspace, and whose engine is gone.
        async fn new() -> Self {
            let scene = Self {
                scratch: tempfile::tempdir().unwrap(),
            };
            std::fs::create_dir(scene.place()).unwrap();
            let (engine, session) = scene.engine().await;
            let (sender, mut has_begun) = tokio::sync::mpsc::channel(1);
            let options = scene.options();
            let work =
                tokio::spawn(async move { session.execute_run(options, Writes(sender)).await });
            has_begun.recv().await.unwrap();
            engine.suspend_run(&id()).await.unwrap();
            let rested = work.await.unwrap().unwrap();
            assert_eq!(rested.run.status, RunStatus::Interrupted);
            engine.shutdown().await.unwrap();
            scene
        }

        fn place(&self) -> PathBuf {
            self.scratch.path().join("workspace")
        }

        fn workspace(&self) -> WorkspaceOptions {
            WorkspaceOptions::at(self.place()).retain_content(true)
        }

        fn options(&self) -> RunOptions {
            RunOptions::new("x")
                .run_id(id())
                .resumable(true)
                .workspace(self.workspace())
        }

        async fn engine(&self) -> (Engine, SessionManager) {
            let options = EngineOptions::default()
                .state_dir(self.scratch.path().join("state"))
                .lock_timeout(Duration::from_secs(30));
            let engine = Engine::start(options).await.unwrap();
            let session = engine.session("s").await.unwrap();
            (engine, session)
        }

        /// What the engine would have written that was about to save the work.
        fn moved(&self, to: RunStatus, came_for: Option<CameFor>) {
            let state = StateDir::open(self.scratch.path().join("state")).unwrap();
            let mut store = SqliteStore::open(state.path()).unwrap();
            let row = store.run(&id()).unwrap().unwrap();
            let fails = came_for != Some(CameFor::End(EndsAs::Completed));
            let ending = RunEnding {
                exit_code: Some(7),
                error: fails.then(|| Failure::of_work("no luck")),
                output: json!({ "data": "said" }),
                workspace: json!({ "backend": "hash" }),
            };
            let change = Change::MoveRun {
                id: id(),
                from: row.status,
                to,
                at: jiff::Timestamp::UNIX_EPOCH,
                ending: Some(Box::new(ending)),
                came_for,
            };
            store.commit(&[change]).unwrap();
        }
    }

    fn blocked() -> Option<CameFor> {
        let reason = Some("which port?".to_owned());
        Some(CameFor::Block(Box::new(Block {
            reason,
            ..Block::default()
        })))
    }

    #[tokio::test]
    async fn a_run_whose_work_was_being_saved_ends_as_it_came_for_and_says_what_was_not_saved() {
        for ends in EndsAs::ALL {
            let scene = Scene::new().await;
            let (watching, _) = scene.engine().await;
            scene.moved(RunStatus::Persisting, Some(CameFor::End(ends)));
            let run = watching.find_run("r").await.unwrap();
            assert_eq!(run.status, RunStatus::Persisting);
            assert_eq!((run.ends_as, run.ended_at), (Some(ends.status()), None));
            watching.shutdown().await.unwrap();

            let (engine, _) = scene.engine().await;
            let run = engine.find_run("r").await.unwrap();
            assert_eq!(run.status, ends.status());
            assert_eq!((run.ends_as, run.exit_code), (None, Some(7)));
            let said = run.error.map(|error| error.message);
            let fails = ends != EndsAs::Completed;
            assert_eq!(said.as_deref(), fails.then_some("no luck"));
            assert_eq!(run.output, json!({ "data": "said" }));
            let unsaved = run.workspace.unwrap().error.unwrap().message;
            assert!(unsaved.contains("its work branch"), "{unsaved}");
            assert!(unsaved.contains("; snapshot snap_"), "{unsaved}");

            let events = engine.events(EventQuery::all().run(id())).await.unwrap();
            let [.., told, last] = events.as_slice() else {
                panic!("{events:?}");
            };
            assert_eq!(told.event_type, EventType::ERROR_OCCURRED);
            assert_eq!(last.event_type.as_str(), format!("run_{}", ends.status()));
            assert_eq!(last.data["exit_code"], 7);
            assert_eq!(last.data["recovered"], true);
            engine.shutdown().await.unwrap();

            // There is nothing left to do, and what the run did can be undone.
            let (engine, session) = scene.engine().await;
            assert!(engine.recovery().done.is_empty());
            let again = engine.events(EventQuery::all().run(id())).await.unwrap();
            assert_eq!(again, events);
            assert!(scene.place().join("new").exists());
            let target = UndoTarget::Run("r".to_owned());
            session.undo(&scene.workspace(), target).await.unwrap();
            assert!(!scene.place().join("new").exists());
            engine.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_blocked_run_fails_without_proof_and_rests_before_its_checkpoint() {
        for (status, expected) in [
            (RunStatus::Checkpointing, RunStatus::Failed),
            (RunStatus::Blocked, RunStatus::Interrupted),
        ] {
            let scene = Scene::new().await;
            scene.moved(status, blocked());
            let (engine, _) = scene.engine().await;
            let run = engine.find_run("r").await.unwrap();
            assert_eq!(run.status, expected, "{status}");
            let told = engine.events(EventQuery::all().run(id())).await.unwrap();
            let last = told.last().unwrap();
            assert_eq!(last.event_type.as_str(), format!("run_{expected}"));
            assert_eq!(last.data["recovered"], true);
            if expected == RunStatus::Failed {
                let error = run.error.unwrap().message;
                assert!(error.contains("when it was blocked"), "{error}");
                assert!(error.contains("; snapshot snap_"), "{error}");
            }
            engine.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_run_that_waits_for_new_input_is_no_engines_until_somebody_has_some() {
        let scene = Scene::new().await;
        scene.moved(RunStatus::AwaitingFollowup, None);
        let (engine, session) = scene.engine().await;
        assert!(engine.recovery().done.is_empty());
        let run = engine.find_run("r").await.unwrap();
        assert_eq!(run.status, RunStatus::AwaitingFollowup);
        let claimable = engine.runs(RunQuery::default().incomplete()).await.unwrap();
        assert_eq!(claimable, []);

        // Starting it again answers with what is on record.
        let (sender, _receiver) = tokio::sync::mpsc::channel(1);
        let answer = session.execute_run(scene.options(), Writes(sender));
        let answer = answer.await.unwrap();
        assert_eq!(answer.run.status, RunStatus::AwaitingFollowup);
        assert!(answer.is_stored);

        let target = UndoTarget::Run("r".to_owned());
        let refused = session.undo(&scene.workspace(), target).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let said = refused.to_string();
        assert!(said.contains("new input goes on with it"), "{said}");

        engine.cancel_run(&id()).await.unwrap();
        let run = engine.find_run("r").await.unwrap();
        assert_eq!(run.status, RunStatus::Cancelled);
        let said = run.error.unwrap().message;
        assert_eq!(said, "cancelled while it waited for new input");
        session
            .undo(&scene.workspace(), UndoTarget::Latest)
            .await
            .unwrap();
        assert!(!scene.place().join("new").exists());
        engine.shutdown().await.unwrap();
    }
}
