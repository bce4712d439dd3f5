//! Starting and stopping an engine, and what it answers beyond any one session.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::{Actor, ActorRef};
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta, ArtifactStore, FileStore};
use stillframe_backends::{ErrorKind, Identity, PurgeTarget, RelPath, Snapshot, StateDir, Why};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actors::artifact_store::ArtifactStoreMessage;
use crate::actors::session_manager::{SessionMessage, Step};
use crate::actors::supervisor::{SupervisorActor, SupervisorArguments, SupervisorMessage};
use crate::actors::workspace::WorkspaceMessage;
use crate::actors::{Artifacts, LiveRuns, Parts, Reply, StateReader, stopped};
use crate::adapter::{Adapter, BoxAdapter};
use crate::blocking::Blocking;
use crate::doorbell::Doorbell;
use crate::effect::EffectRecord;
use crate::error::Error;
use crate::event::{Event, EventQuery};
use crate::gc;
use crate::gc::GcOutcome;
use crate::id::{EngineId, QuestionId, RunId, SessionId};
use crate::lease::Lease;
use crate::liveness::EngineLock;
use crate::options::{EngineOptions, GcOptions, RunOptions, RunQuery, WorkspaceOptions};
use crate::outcome::RunOutcome;
use crate::purge::{self, PurgeOutcome, PurgePlan};
use crate::question::{QuestionRecord, QuestionRow};
use crate::record::{
    ArtifactRecord, LeaseRecord, RunExport, RunRecord, SessionRecord, SessionStats,
};
use crate::recovery::RecoveryReport;
use crate::resume;
use crate::run::RunStatus;
use crate::session_manager::SessionManager;
use crate::state::sqlite::SqliteStore;
use crate::state::{Change, RunFilter, RunRow, SessionRow};
use crate::stream::EventStream;
use crate::verify::VerifyOutcome;
use crate::watched::WatchedWorkspaces;
use crate::wish::Wish;
use crate::workspaces::{self, Opened};
use crate::{answering, liveness, recovery, reserve, session, verify};

/// How long to wait, at a shutdown, for what was cancelled.
const CANCEL_PATIENCE: Duration = Duration::from_secs(60);

/// How often an actor that was lost is asked for again before the engine counts as gone.
const MAX_ASKS: usize = 8;

/// An engine: everything that is needed to run work between snapshots. Cheap to clone.
///
/// It has to be started in a tokio runtime. Dropping the last handle stops it once nothing is
/// under way; [`Engine::shutdown`] waits for that.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Core,
}

/// What the handles share.
#[derive(Clone)]
pub(crate) struct Core {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) parts: Parts,
    supervisor: ActorRef<SupervisorMessage>,
    runtime: tokio::runtime::Handle,
    admission: Arc<Semaphore>,
    tasks: TaskTracker,
    is_closing: AtomicBool,
    /// Set before anybody has the engine.
    recovery: OnceLock<RecoveryReport>,
    /// Stops what belongs to no run.
    pub(crate) stopping: CancellationToken,
}

impl Deref for Core {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl From<Arc<Shared>> for Core {
    fn from(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The state writer has a queue, so the tree stops by itself and in its order.
        self.supervisor.stop(None);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("id", &self.core.parts.engine_id)
            .field("state_dir", &self.core.parts.state_dir.path())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Room for one more operation or run; `Busy` if there is none.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.parts.check_available()?;
        if self.is_closing.load(Ordering::Acquire) {
            return Err(Error::unavailable("the engine is shutting down"));
        }
        Arc::clone(&self.admission)
            .try_acquire_owned()
            .map_err(|_| {
                Error::new(
                    ErrorKind::Busy,
                    format!(
                        "{} operations are under way, which is the limit of this engine; nothing was touched",
                        self.parts.options.max_operations
                    ),
                )
            })
    }

    /// Starts a task that a shutdown waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Does something that goes on though the caller is dropped, and that a shutdown waits for.
    pub(crate) async fn operation<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = self.admit()?;
        let (answer, answered) = oneshot::channel();
        self.spawn(async move {
            let _permit = permit;
            let result = match tokio::spawn(operation).await {
                Ok(result) => result,
                Err(e) => Err(Error::new(ErrorKind::Storage, e)),
            };
            // The asker may have left; what is done is done.
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Asks the supervisor.
    pub(crate) async fn ask<T>(
        &self,
        ask: impl Fn(Reply<T>) -> SupervisorMessage,
    ) -> Result<T, Error> {
        self.parts.check_available()?;
        let (reply, answer) = oneshot::channel();
        // A message that cannot be sent takes its reply along, which the receiver hears of.
        let _ = self.supervisor.send_message(ask(reply));
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// The actor of a workspace.
    pub(crate) async fn workspace_actor(
        &self,
        identity: Identity,
    ) -> Result<ActorRef<WorkspaceMessage>, Error> {
        self.ask(|reply| SupervisorMessage::Workspace { identity, reply })
            .await
    }

    /// Asks the actor of a session. When it is lost with its answer, its successor is asked again,
    /// which answers as the first would have.
    pub(crate) async fn ask_session<T>(
        &self,
        id: &SessionId,
        message: impl Fn(Reply<T>) -> SessionMessage,
    ) -> Result<T, Error> {
        for _ in 0..MAX_ASKS {
            let actor = self
                .ask(|reply| SupervisorMessage::Session {
                    id: id.clone(),
                    reply,
                })
                .await?;
            let (reply, answer) = oneshot::channel();
            let _ = actor.send_message(message(reply));
            if let Ok(result) = answer.await {
                return result;
            }
        }
        self.parts.check_available()?;
        Err(Error::unavailable(format!("session {id} keeps failing")))
    }

    /// Has a run take one step: it is in the log on `Ok`.
    pub(crate) async fn step_run(&self, session_id: &SessionId, step: Step) -> Result<(), Error> {
        self.ask_session(session_id, |reply| SessionMessage::Step {
            step: Box::new(step.clone()),
            reply,
        })
        .await
    }

    /// Keeps content under `key`. It is not registered.
    pub(crate) async fn put(
        &self,
        key: ArtifactKey,
        content: Box<dyn Read + Send>,
    ) -> Result<ArtifactMeta, Error> {
        let actor = self
            .ask(|reply| SupervisorMessage::ArtifactStore { reply })
            .await?;
        let (reply, answer) = oneshot::channel();
        let _ = actor.send_message(ArtifactStoreMessage::Put {
            key,
            content,
            reply,
        });
        answer.await.unwrap_or_else(|_| Err(artifact_store_lost()))
    }

    pub(crate) async fn get(&self, key: ArtifactKey) -> Result<Box<dyn Read + Send>, Error> {
        let actor = self
            .ask(|reply| SupervisorMessage::ArtifactStore { reply })
            .await?;
        let (reply, answer) = oneshot::channel();
        let _ = actor.send_message(ArtifactStoreMessage::Get { key, reply });
        answer.await.unwrap_or_else(|_| Err(artifact_store_lost()))
    }

    pub(crate) async fn delete(&self, key: ArtifactKey) -> Result<(), Error> {
        let actor = self
            .ask(|reply| SupervisorMessage::ArtifactStore { reply })
            .await?;
        let (reply, answer) = oneshot::channel();
        let _ = actor.send_message(ArtifactStoreMessage::Delete { key, reply });
        answer.await.unwrap_or_else(|_| Err(artifact_store_lost()))
    }

    /// The session of this id, made and started if it is new.
    pub(crate) async fn ensure_session(&self, id: &SessionId) -> Result<SessionRow, Error> {
        self.parts.check_available()?;
        for _ in 0..MAX_ASKS {
            let asked = id.clone();
            let found = self
                .parts
                .reader
                .read(move |store| store.session(&asked))
                .await?;
            if let Some(row) = found {
                return Ok(row);
            }
            let changes = session::creation(id, self.parts.now());
            match self.parts.writer.commit(changes).await {
                Ok(_) => {}
                // Another engine was faster: its session is the session.
                Err(e) if e.kind() == ErrorKind::Conflict => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::unavailable(format!("session {id} cannot be made")))
    }

    /// Opens a workspace. Reads alone.
    pub(crate) async fn open(&self, options: &WorkspaceOptions) -> Result<Opened, Error> {
        self.parts.check_available()?;
        let (parts, options) = (self.parts.clone(), options.clone());
        self.parts
            .blocking
            .run(move || Opened::open(&parts, options))
            .await?
    }

    /// Has a watched workspace stay watched until its session ends.
    pub(crate) fn keep_watched(&self, opened: &mut Opened, session_id: &SessionId) {
        if opened.options.watch {
            let workspace = opened.workspace.clone();
            opened.workspace = self.parts.watched.keep(workspace, session_id);
        }
    }

    /// Lets go of what a session watches if it has ended, also while something of it was under way.
    pub(crate) async fn let_go_if_ended(&self, session_id: &SessionId) {
        let parts = &self.parts;
        if !parts.watched.has(session_id) {
            return;
        }
        let asked = session_id.clone();
        let found = parts.reader.read(move |store| store.session(&asked)).await;
        if matches!(found, Ok(Some(row)) if row.status.is_terminal()) {
            self.let_go(session_id).await;
        }
    }

    /// Lets go of what a session watches, where no other does.
    pub(crate) async fn let_go(&self, session_id: &SessionId) {
        let gone = self.parts.watched.let_go(session_id);
        if !gone.is_empty() {
            // An engine that stops lets go of them too.
            let _ = self.parts.blocking.run(move || drop(gone)).await;
        }
    }

    /// As [`Core::open`], also where the directory is gone: it can be listed and restored.
    pub(crate) async fn open_known(&self, options: &WorkspaceOptions) -> Result<Opened, Error> {
        self.parts.check_available()?;
        let (parts, options) = (self.parts.clone(), options.clone());
        self.parts
            .blocking
            .run(move || Opened::open_known(&parts, options))
            .await?
    }

    /// Lets the log know again of the snapshots of a workspace if it was lost, so that they can be named.
    /// Whoever is at work in the workspace does that itself.
    pub(crate) async fn relearn(&self, opened: &Opened) -> Result<(), Error> {
        let id = opened.workspace.id().to_owned();
        let has_any = self
            .parts
            .reader
            .read(move |store| store.has_snapshots(&id))
            .await?;
        if has_any || !opened.workspace.store_path().exists() {
            return Ok(());
        }
        let adopted = workspaces::work(
            self,
            &opened.workspace,
            "recovery",
            RELEARN_PATIENCE,
            // What is missing is adopted before any work.
            |_| Ok(()),
        );
        match adopted.await {
            Err(e) if e.kind() == ErrorKind::Busy => Ok(()),
            adopted => adopted,
        }
    }

    /// The events that match, from the query's cursor on.
    pub(crate) fn watch(&self, query: EventQuery) -> EventStream {
        EventStream::start(self.parts.clone(), &self.runtime, query)
    }
}

/// How long somebody who is at work in a workspace whose log was lost is waited for: whoever begins gives the
/// log its rows at once, and a program that is being started elsewhere holds a lock for a moment.
const RELEARN_PATIENCE: Duration = Duration::from_secs(1);

fn artifact_store_lost() -> Error {
    Error::unavailable("the artifact store was lost while it worked; try again")
}

impl Engine {
    /// Starts an engine: opens the state directory, recovers what a dead engine left, and takes
    /// work from then on.
    pub async fn start(options: EngineOptions) -> Result<Self, Error> {
        options.check()?;
        let blocking = Blocking::new(options.max_blocking);
        let engine_id = EngineId::random();
        let (asked, id) = (options.clone(), engine_id.clone());
        let opened = blocking.run(move || open_state(&asked, &id)).await??;

        let doorbell = Doorbell::new();
        let (started, parts) = oneshot::channel();
        let make_parts = {
            let (options, blocking) = (Arc::new(options.clone()), blocking.clone());
            let (state_dir, lock) = (opened.state_dir, Arc::new(opened.lock));
            let (reader, artifacts) = (opened.reader, opened.artifacts);
            move |writer| Parts {
                options,
                engine_id,
                state_dir,
                writer,
                reader,
                blocking,
                artifacts,
                live_runs: LiveRuns::default(),
                watched: WatchedWorkspaces::default(),
                lock,
                stopped: CancellationToken::new(),
            }
        };
        let arguments = SupervisorArguments {
            store: Box::new(opened.writer),
            doorbell,
            parts: Box::new(make_parts),
            started,
        };
        let (supervisor, ended) = Actor::spawn(None, SupervisorActor, arguments)
            .await
            .map_err(|e| Error::unavailable(format!("the engine cannot be started: {e}")))?;
        let parts = parts
            .await
            .map_err(|_| Error::unavailable("the engine cannot be started"))?;
        let tasks = TaskTracker::new();
        tokio::spawn(after_the_tree(ended, parts.clone(), tasks.clone()));
        let core = Core {
            shared: Arc::new(Shared {
                parts,
                supervisor,
                runtime: tokio::runtime::Handle::current(),
                admission: Arc::new(Semaphore::new(options.max_operations)),
                tasks,
                is_closing: AtomicBool::new(false),
                recovery: OnceLock::new(),
                stopping: CancellationToken::new(),
            }),
        };
        let engine = Self { core };
        let sweep = answering::sweep(Arc::downgrade(&engine.core.shared));
        match recovery::recover(&engine.core).await {
            Ok(report) => engine.core.recovery.set(report).expect("it is set once"),
            Err(e) => {
                // Its actors would outlive it otherwise, and be cut off with the runtime. Why it cannot
                // be started is the error to tell.
                let _ = engine.shutdown().await;
                return Err(e);
            }
        }
        tokio::spawn(sweep);
        Ok(engine)
    }

    /// What this engine found of dead ones when it started, and what it did about that.
    pub fn recovery(&self) -> &RecoveryReport {
        static NOTHING: RecoveryReport = RecoveryReport {
            done: Vec::new(),
            left: Vec::new(),
        };
        self.core.recovery.get().unwrap_or(&NOTHING)
    }

    /// Takes no more work, waits for what is under way, cancels what takes longer than the grace,
    /// and stops. Safe to repeat.
    ///
    /// # Errors
    ///
    /// `Timeout`: something did not end within a minute of being cancelled. The engine has stopped
    /// all the same, and the next one settles what that left.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let core = &self.core;
        core.is_closing.store(true, Ordering::Release);
        core.tasks.close();
        let grace = core.parts.options.shutdown_grace;
        let mut is_done = tokio::time::timeout(grace, core.tasks.wait()).await.is_ok();
        if !is_done {
            core.parts.live_runs.stop_all();
            core.stopping.cancel();
            let patience = tokio::time::timeout(CANCEL_PATIENCE, core.tasks.wait());
            is_done = patience.await.is_ok();
        }
        core.supervisor.stop(None);
        core.parts.stopped.cancelled().await;
        if !is_done {
            return Err(Error::new(
                ErrorKind::Timeout,
                "not everything ended after it was cancelled; the next engine settles it",
            )
            .touched_if(true));
        }
        let lock = Arc::clone(&core.parts.lock);
        core.parts.blocking.run(move || lock.retire()).await?;
        Ok(())
    }

    /// The session of this id, made and started if it is new.
    ///
    /// An id is 1 to 200 letters, digits, `.`, `_` or `-`, the first a letter or digit. A session
    /// that has ended is given out as well: what it has can be read, and it takes no runs.
    pub async fn session(&self, id: impl Into<String>) -> Result<SessionManager, Error> {
        let id = SessionId::try_from(id.into())?;
        self.session_of(id).await
    }

    /// A new session with an id of its own, started.
    pub async fn new_session(&self) -> Result<SessionManager, Error> {
        self.session_of(SessionId::random()).await
    }

    /// The session of what is done to a workspace outside of any other session; always the same
    /// for the same directory.
    pub async fn workspace_session(&self, path: impl AsRef<Path>) -> Result<SessionManager, Error> {
        let opened = self.core.open_known(&WorkspaceOptions::at(path)).await?;
        let id = SessionId::of_workspace(opened.workspace.id());
        self.session_of(id).await
    }

    async fn session_of(&self, id: SessionId) -> Result<SessionManager, Error> {
        self.core.ensure_session(&id).await?;
        Ok(SessionManager::new(self.core.clone(), id))
    }

    /// Every session, oldest first.
    pub async fn sessions(&self) -> Result<Vec<SessionRecord>, Error> {
        let rows = self.read(|store| store.sessions()).await?;
        Ok(rows.into_iter().map(SessionRecord::from).collect())
    }

    /// Makes a session, runs in it, and completes or fails it as the run ends.
    ///
    /// A run that was cancelled cancels the session; one that was refused fails it. A run whose id is on
    /// record is in the session that it was in, which ends with it only if it was made for it, and not while the run is
    /// interrupted.
    pub async fn run_once(
        &self,
        options: RunOptions,
        adapter: impl Adapter,
    ) -> Result<RunOutcome, Error> {
        let recorded = match options.run_id.clone() {
            Some(id) => self.read(move |store| store.run(&id)).await?,
            None => None,
        };
        let is_recorded = recorded.is_some();
        let ends_session = recorded
            .as_ref()
            .is_none_or(|row| row.options["own_session"] == true);
        let mut options = options;
        options.own_session = true;
        let session = match recorded {
            Some(row) => self.session_of(row.session_id).await?,
            None => self.new_session().await?,
        };
        let closing = session.clone();
        let adapter = BoxAdapter::new(adapter);
        // On a task of its own, so that the session ends with its run though nobody waits.
        let task = self.core.runtime.spawn(async move {
            let result = closing.execute_run(options, adapter).await;
            let ended = match &result {
                Ok(outcome) if outcome.is_stored || !ends_session => return result,
                // It is as it was, or somebody else's.
                Err(_) if is_recorded => return result,
                Ok(outcome) => match outcome.run.status {
                    status if status.is_at_rest() => return result,
                    RunStatus::Completed => closing.complete("").await,
                    RunStatus::Cancelled => closing.cancel("").await,
                    _ => closing.fail("").await,
                },
                Err(_) => closing.fail("").await,
            };
            match (result, ended) {
                (Ok(outcome), Err(e)) => Err(e.touched_if(true).with_outcome(outcome)),
                (result, _) => result,
            }
        });
        task.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Asks a run to stop, whichever engine has it; one that is interrupted is cancelled at once.
    ///
    /// A run of another engine hears of it within a second or two, and takes as long as its work does to end.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run. `Conflict`: it has ended.
    pub async fn cancel_run(&self, run_id: &RunId) -> Result<(), Error> {
        if self.core.parts.live_runs.cancel(run_id) {
            let ask = Change::RequestCancel {
                run_id: run_id.clone(),
                at: self.core.parts.now(),
            };
            match self.core.parts.writer.commit(vec![ask]).await {
                // It was about to end or to rest.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                asked => return asked.map(|_| ()),
            }
            let asked = run_id.clone();
            let row = self.read(move |store| store.run(&asked)).await?;
            if row.is_none_or(|row| row.status.is_terminal()) {
                return Ok(());
            }
        }
        let core = self.core.clone();
        let run_id = run_id.clone();
        self.core
            .operation(async move { resume::cancel(&core, &run_id).await })
            .await
    }

    /// Asks a run of this engine to stop so that it can be resumed: it is `interrupted` then. One without
    /// [phases](crate::RunContext::phase) that was not begun as
    /// [resumable](RunOptions::resumable) is cancelled. `NotFound` if this engine has no such run
    /// under way.
    pub async fn suspend_run(&self, run_id: &RunId) -> Result<(), Error> {
        match self.core.parts.live_runs.suspend(run_id) {
            true => Ok(()),
            false => Err(Error::not_found(format!(
                "run {run_id} is not under way in this engine"
            ))),
        }
    }

    /// The snapshots of a workspace, newest first.
    pub async fn snapshots(&self, workspace: &WorkspaceOptions) -> Result<Vec<Snapshot>, Error> {
        let opened = self.core.open_known(workspace).await?;
        let id = opened.workspace.id().to_owned();
        self.core.relearn(&opened).await?;
        let rows = self.read(move |store| store.snapshots(&id)).await?;
        Ok(rows.into_iter().map(|row| row.snapshot).collect())
    }

    /// The snapshot of this id, or the only one whose id begins so, of any workspace.
    ///
    /// A beginning has at least one hexadecimal digit, with or without `snap_`: one without is
    /// `InvalidOptions`, and so is one that several ids have. None that begins so is `NotFound`.
    pub async fn find_snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        let id = id.to_owned();
        self.core.parts.check_available()?;
        let row = self
            .core
            .parts
            .reader
            .read_with(move |store| workspaces::find_snapshot(store, &id, None))
            .await?;
        Ok(row.snapshot)
    }

    /// Runs, newest first.
    pub async fn runs(&self, query: RunQuery) -> Result<Vec<RunRecord>, Error> {
        let workspace_id = match &query.workspace {
            None => None,
            Some(path) => {
                let opened = self.core.open_known(&WorkspaceOptions::at(path)).await?;
                Some(opened.workspace.id().to_owned())
            }
        };
        let filter = RunFilter {
            session_id: query.session_id,
            workspace_id,
            statuses: query.statuses,
            since: query.since,
            until: query.until,
            limit: query.limit,
        };
        if query.incomplete {
            return self.incomplete(filter).await;
        }
        let rows = self.read(move |store| store.runs(&filter)).await?;
        Ok(rows.into_iter().map(RunRecord::from).collect())
    }

    /// Those that match and can be claimed.
    async fn incomplete(&self, mut filter: RunFilter) -> Result<Vec<RunRecord>, Error> {
        let limit = filter.limit.take();
        if filter.statuses.is_empty() {
            filter.statuses = vec![
                RunStatus::Pending,
                RunStatus::Running,
                RunStatus::Asking,
                RunStatus::WaitingForInput,
                RunStatus::Interrupted,
            ];
        }
        let found = self
            .read(move |store| {
                let waiting: HashSet<RunId> = store
                    .open_questions()?
                    .into_iter()
                    .map(|question| question.run_id)
                    .collect();
                let rows = store.runs(&filter)?.into_iter();
                let is_wanted = |row: &RunRow| {
                    row.status != RunStatus::WaitingForInput || !waiting.contains(&row.id)
                };
                rows.filter(is_wanted)
                    .map(|row| Ok((store.lease(&row.id)?, row)))
                    .collect()
            })
            .await?;
        let found: Vec<(Option<Lease>, RunRow)> = found;
        let parts = self.core.parts.clone();
        let limit = limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        self.core
            .parts
            .blocking
            .run(move || {
                let mut free = Vec::new();
                for (lease, row) in found {
                    let is_claimable = match row.status {
                        status if status.is_terminal() => false,
                        status if status.is_at_rest() => true,
                        _ => resume::is_free(&parts, &row, lease.as_ref())?,
                    };
                    if is_claimable && free.len() < limit {
                        free.push(RunRecord::from(row));
                    }
                }
                Ok(free)
            })
            .await?
    }

    /// Everything that is kept of the run of this id, or of the only one whose id begins so: see
    /// [`Engine::find_run`].
    pub async fn export_run(&self, id: &str) -> Result<RunExport, Error> {
        let run = self.find_run(id).await?;
        let run_id = run.id.clone();
        self.read(move |store| {
            let events = store.events(&EventQuery::all().run(run_id.clone()), 0)?;
            let snapshots = match store.run(&run_id)?.and_then(|row| row.workspace) {
                Some(workspace) => store.snapshots(&workspace.workspace_id)?,
                None => Vec::new(),
            };
            let is_of_run = |id: &Option<RunId>| id.as_ref() == Some(&run_id);
            Ok(RunExport {
                lease: store.lease(&run_id)?.map(LeaseRecord::from),
                phases: RunExport::phases_of(store, &run_id)?,
                questions: store
                    .questions(&run_id)?
                    .into_iter()
                    .map(QuestionRecord::from)
                    .collect(),
                effects: store
                    .effects(&run_id)?
                    .into_iter()
                    .map(EffectRecord::from)
                    .collect(),
                commits: store.commits(&run_id)?,
                snapshots: snapshots
                    .into_iter()
                    .rev()
                    .filter(|row| is_of_run(&row.run_id))
                    .map(|row| row.snapshot)
                    .collect(),
                artifacts: store
                    .artifacts(Some(&run.session_id))?
                    .into_iter()
                    .filter(|artifact| is_of_run(&artifact.run_id))
                    .collect(),
                events: events.into_iter().map(|(_, event)| event).collect(),
                run,
            })
        })
        .await
    }

    /// The run of this id, or the only one whose id begins so, with or without `run_`.
    ///
    /// A beginning has at least one character behind `run_`: one that has not is `InvalidOptions`, and
    /// so is one that several ids have. None that begins so is `NotFound`.
    pub async fn find_run(&self, id: &str) -> Result<RunRecord, Error> {
        let id = id.to_owned();
        self.core.parts.check_available()?;
        let row = self
            .core
            .parts
            .reader
            .read_with(move |store| find_run(store, &id))
            .await?;
        Ok(RunRecord::from(row))
    }

    /// The questions that wait for an answer, oldest first.
    pub async fn open_questions(&self) -> Result<Vec<QuestionRecord>, Error> {
        answering::settle_ripe(&self.core, None).await?;
        let rows = self.read(|store| store.open_questions()).await?;
        Ok(rows.into_iter().map(QuestionRecord::from).collect())
    }

    /// The question of this id, or the only one whose id begins so, with or without `que_`: as
    /// [`Engine::find_run`].
    pub async fn find_question(&self, id: &str) -> Result<QuestionRecord, Error> {
        let id = id.to_owned();
        self.core.parts.check_available()?;
        let row = self
            .core
            .parts
            .reader
            .read_with(move |store| find_question(store, &id))
            .await?;
        Ok(QuestionRecord::from(row))
    }

    /// Answers a question, also one of a run that another engine has, or that rests. The run hears of it within a
    /// second, or when it is gone on with.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such question. `InvalidOptions`: that is none of its choices. `Conflict`: it has its
    /// answer, since the first one counts, or the default because its time was up; or its run has ended.
    pub async fn answer(&self, id: &QuestionId, answer: &str) -> Result<QuestionRecord, Error> {
        let (core, asked, text) = (self.core.clone(), id.clone(), answer.to_owned());
        self.core
            .operation(async move { answering::answer(&core, &asked, &text).await })
            .await?;
        self.find_question(id.as_str()).await
    }

    /// Events that are in the log, in the order in which they were written. `NotFound` if the session
    /// that is asked for has never been there.
    pub async fn events(&self, query: EventQuery) -> Result<Vec<Event>, Error> {
        query.check()?;
        let asked = query.session_id.clone();
        let (events, is_known) = self
            .read(move |store| {
                let events = store.events(&query, 0)?;
                let is_known = match &query.session_id {
                    Some(id) if events.is_empty() => store.session(id)?.is_some(),
                    _ => true,
                };
                Ok((events, is_known))
            })
            .await?;
        match asked {
            Some(id) if !is_known => Err(Error::not_found(format!("there is no session {id}"))),
            _ => Ok(events.into_iter().map(|(_, event)| event).collect()),
        }
    }

    /// The events that match `query`, then every one that follows, of this engine or another; a
    /// session may also begin later.
    pub fn watch(&self, query: EventQuery) -> Result<EventStream, Error> {
        self.core.parts.check_available()?;
        query.check()?;
        Ok(self.core.watch(query))
    }

    /// The artifacts that are not deleted, oldest first; of one session or of all.
    pub async fn artifacts(
        &self,
        session_id: Option<&SessionId>,
    ) -> Result<Vec<ArtifactRecord>, Error> {
        let session_id = session_id.cloned();
        self.read(move |store| store.artifacts(session_id.as_ref()))
            .await
    }

    /// What the artifacts of a session amount to.
    pub async fn session_stats(&self, session_id: &SessionId) -> Result<SessionStats, Error> {
        let session_id = session_id.clone();
        self.read(move |store| store.session_stats(&session_id))
            .await
    }

    /// The bytes of an artifact. The reader blocks; bytes that were damaged are never handed out.
    pub async fn open_artifact(&self, key: &str) -> Result<Box<dyn Read + Send>, Error> {
        self.artifact(key).await?;
        self.core.get(ArtifactKey::new(key)?).await
    }

    /// Deletes an artifact; the key may be used again. `NotFound` if there is none.
    pub async fn remove_artifact(&self, key: &str) -> Result<(), Error> {
        self.artifact(key).await?;
        let core = self.core.clone();
        let key = ArtifactKey::new(key)?;
        self.core
            .operation(async move { gc::remove_artifact(&core, key).await })
            .await
    }

    async fn artifact(&self, key: &str) -> Result<ArtifactRecord, Error> {
        let asked = key.to_owned();
        let found = self.read(move |store| store.artifact(&asked)).await?;
        found.ok_or_else(|| Error::not_found(format!("there is no artifact {key:?}")))
    }

    /// Proves every snapshot of a workspace restorable, and every artifact whole.
    ///
    /// It reads everything that they need. A snapshot that the log did not know of gets its row.
    pub async fn verify(&self, workspace: &WorkspaceOptions) -> Result<VerifyOutcome, Error> {
        let opened = self.core.open(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move {
                let wish = Wish::of(&core, &opened.options);
                match adopt(&core, &opened, core.parts.options.lock_patience).await {
                    // What keeps a snapshot from its row is told by the proof.
                    Err(e) if e.kind() == ErrorKind::Corrupt => {}
                    adopted => adopted?,
                }
                let interrupt = wish.interrupt();
                let (parts, workspace) = (core.parts.clone(), opened.workspace.clone());
                let prove = move || interrupt.during(|| verify::logged(&parts, &workspace));
                let mut found = core.parts.blocking.run(prove.clone()).await?;
                if !found.as_ref().is_ok_and(verify::StoreVerdicts::is_sound) {
                    // A clean-up that went on meanwhile looks like damage. Nobody is at work beside this.
                    let lock = opened.workspace.clone();
                    let patience = core.parts.options.lock_patience;
                    let prove_alone = move || {
                        let _locked = lock.lock(patience)?;
                        prove()
                    };
                    found = core.parts.blocking.run(prove_alone).await?;
                }
                let found = found?;
                let artifacts = tokio::select! {
                    artifacts = verify::artifacts(&core) => artifacts?,
                    () = wish.told() => return Err(Error::new(ErrorKind::Cancelled, "cancelled")),
                };
                Ok(VerifyOutcome {
                    snapshots: found.snapshots,
                    artifacts,
                    store: found.store,
                    log: verify::log(&core, &wish).await?,
                })
            })
            .await
    }

    /// Forgets what need not be kept, and frees its space.
    ///
    /// # Errors
    ///
    /// `LimitExceeded`: what has to be kept is larger than the quota. Everything else is gone.
    pub async fn gc(
        &self,
        workspace: &WorkspaceOptions,
        options: GcOptions,
    ) -> Result<GcOutcome, Error> {
        let opened = self.core.open(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { gc::collect(&core, opened, options).await })
            .await
    }

    /// Says what [`Engine::purge`] would remove. Reads alone: every tree, and every artifact.
    pub async fn plan_purge(
        &self,
        workspace: &WorkspaceOptions,
        target: PurgeTarget,
    ) -> Result<PurgePlan, Error> {
        let opened = self.core.open_known(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { purge::plan(&core, opened, target).await })
            .await
    }

    /// Removes content, such as a leaked secret, from every snapshot of a workspace and from the
    /// patches of its runs, and proves that it is gone.
    ///
    /// Snapshots keep their ids, and everything else that they have. What they have at a purged path a
    /// restore leaves alone and names, and no later snapshot takes the content again. The user's own
    /// repository and the files of the workspace are not touched. Look at
    /// [`PurgeOutcome::is_proven`].
    ///
    /// # Errors
    ///
    /// `NotFound`: no snapshot has anything of it. `Busy`: a run or a restore is under way. `Cancelled` and
    /// `Timeout`: nothing was touched; from the removal on it goes to its end. After any other error the same purge, or [`Engine::gc`], goes on. A workspace whose directory is gone is no
    /// error: its snapshots are still there.
    pub async fn purge(
        &self,
        workspace: &WorkspaceOptions,
        target: PurgeTarget,
    ) -> Result<PurgeOutcome, Error> {
        let opened = self.core.open_known(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { purge::purge(&core, opened, target).await })
            .await
    }

    /// Whether `path` would be captured now, or is part of `snapshot`, and why or why not.
    pub async fn why(
        &self,
        workspace: &WorkspaceOptions,
        path: RelPath,
        snapshot: Option<&str>,
    ) -> Result<Why, Error> {
        let opened = self.core.open(workspace).await?;
        let core = self.core.clone();
        let snapshot = snapshot.map(str::to_owned);
        self.core
            .operation(async move { why(&core, opened, path, snapshot).await })
            .await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn crate::state::StateStore) -> Result<T, crate::state::StateError>
        + Send
        + 'static,
    ) -> Result<T, Error> {
        self.core.parts.check_available()?;
        self.core.parts.reader.read(read).await
    }
}

/// Ends what is left of an engine once its tree of actors has ended, however it did.
async fn after_the_tree(
    ended: impl Future<Output = Result<(), tokio::task::JoinError>>,
    parts: Parts,
    tasks: TaskTracker,
) {
    // A root that panicked is as gone as one that was stopped.
    let _ = ended.await;
    parts.stopped.cancel();
    parts.live_runs.stop_all();
    tasks.close();
    tasks.wait().await;
    // Only now is nothing of this engine at work any more, so that another may settle its runs.
    let (lock, watched) = (Arc::clone(&parts.lock), parts.watched.clone());
    let end = move || {
        watched.let_go_of_all();
        lock.retire();
    };
    let _ = parts.blocking.run(end).await;
}

/// What an engine opens before it has actors.
struct OpenedState {
    state_dir: StateDir,
    writer: SqliteStore,
    reader: StateReader,
    artifacts: Artifacts,
    lock: EngineLock,
}

fn open_state(options: &EngineOptions, id: &EngineId) -> Result<OpenedState, Error> {
    let path = options
        .state_dir
        .clone()
        .or_else(|| StateDir::default_path(|name| std::env::var_os(name)))
        .ok_or_else(|| Error::invalid_options("there is no home directory; set STILLFRAME_HOME"))?;
    let state_dir = StateDir::open(path)?;
    match open_files(&state_dir, options, id) {
        // What a dead engine left half done is worth the room that is kept for it.
        Err(e)
            if e.kind() == ErrorKind::NoSpace
                && !liveness::dead_engines(state_dir.path())?.is_empty()
                && reserve::release(state_dir.path()) =>
        {
            open_files(&state_dir, options, id)
        }
        opened => opened,
    }
}

fn open_files(
    state_dir: &StateDir,
    options: &EngineOptions,
    id: &EngineId,
) -> Result<OpenedState, Error> {
    let writer = SqliteStore::open(state_dir.path())?;
    let reader = SqliteStore::open_reader(state_dir.path())?;
    let artifacts = match &options.artifact_store {
        Some(store) => Artifacts {
            store: Arc::clone(store),
            files: None,
        },
        None => {
            let files = Arc::new(FileStore::open(state_dir.path().join("artifacts"))?);
            Artifacts {
                store: Arc::clone(&files) as Arc<dyn ArtifactStore>,
                files: Some(files),
            }
        }
    };
    let lock = EngineLock::acquire(state_dir.path(), id)?;
    Ok(OpenedState {
        state_dir: state_dir.clone(),
        writer,
        reader: StateReader::new(Box::new(reader)),
        artifacts,
        lock,
    })
}

/// Finds the one run whose id is `text` or begins so.
pub(crate) fn find_run(store: &dyn crate::state::StateStore, text: &str) -> Result<RunRow, Error> {
    let unknown = || Error::not_found(format!("there is no run {text:?}"));
    if let Ok(id) = text.parse()
        && let Some(row) = store.run(&id)?
    {
        return Ok(row);
    }
    let beginnings = [text.to_owned(), format!("run_{text}")];
    let is_of_prefix = "run_".starts_with(text);
    let own = text.strip_prefix("run_").unwrap_or(text);
    if is_of_prefix || own.len() < workspaces::MIN_BEGINNING {
        let matching = store.count_runs_that_begin(&beginnings)?;
        return Err(workspaces::too_short(text, "run", matching));
    }
    let found = store.runs_that_begin(&beginnings)?;
    match found.as_slice() {
        [] => Err(unknown()),
        [id] => store.run(id)?.ok_or_else(unknown),
        several => Err(workspaces::ambiguous(
            text,
            several.iter().map(RunId::as_str),
            store.count_runs_that_begin(&beginnings)?,
        )),
    }
}

/// The question of this id, or the only one whose id begins so, with or without `que_`.
fn find_question(store: &dyn crate::state::StateStore, text: &str) -> Result<QuestionRow, Error> {
    let own = text.strip_prefix("que_").unwrap_or(text);
    let beginning = format!("que_{own}");
    let is_too_short = "que_".starts_with(text) || own.len() < workspaces::MIN_BEGINNING;
    let found = store.questions_that_begin(&beginning)?;
    let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
    match found.as_slice() {
        _ if is_too_short => Err(workspaces::too_short(text, "question", count)),
        [] => Err(Error::not_found(format!("there is no question {text:?}"))),
        [question] => Ok(question.clone()),
        several => {
            let named = several.iter().take(3).map(|question| question.id.as_str());
            Err(workspaces::ambiguous(text, named, count))
        }
    }
}

async fn why(
    core: &Core,
    opened: Opened,
    path: RelPath,
    snapshot: Option<String>,
) -> Result<Why, Error> {
    let parts = core.parts.clone();
    let workspace = opened.workspace.clone();
    let wish = Wish::of(core, &opened.options);
    let interrupt = wish.interrupt();
    let Some(text) = snapshot else {
        let patience = parts.options.lock_patience;
        let what = "a question";
        return workspaces::work_while_wanted(
            core,
            &workspace,
            what,
            patience,
            &wish,
            move |locked| {
                let backend = opened.detect(&parts)?;
                let session_id = SessionId::of_workspace(locked.id());
                let label = stillframe_backends::Label::MANUAL;
                let wanted = interrupt.clone();
                let options = opened.snapshot_options(&parts, label, &session_id, None, wanted);
                interrupt.during(|| Ok(backend.why(locked, &path, &options)?))
            },
        )
        .await;
    };
    core.parts
        .blocking
        .run(move || {
            let row = parts
                .reader
                .read_blocking_with(|s| workspaces::find_snapshot(s, &text, Some(&workspace)))?;
            let backend = workspaces::backend_of(&parts, row.snapshot.backend)?;
            interrupt.during(|| Ok(backend.why_in(&workspace, &row.snapshot, &path)?))
        })
        .await?
}

/// Gives a row to every snapshot of a workspace that the log does not know of.
async fn adopt(core: &Core, opened: &Opened, patience: Duration) -> Result<(), Error> {
    let parts = core.parts.clone();
    let work = move |locked: &mut stillframe_backends::LockedWorkspace| {
        recovery::adopt(&parts, locked, recovery::Untold::Tell)
    };
    workspaces::work(core, &opened.workspace, "recovery", patience, work).await
}
