//! Starting and stopping an engine, and its operations outside of sessions.

mod dispatch;
mod events;
mod export;
mod follow_up;
mod new_repository;
mod notices;
pub(crate) mod options;
mod quarantine;
pub(crate) mod question_sweep;
mod records;
mod resending;
mod retry;
pub(crate) mod reviews;
mod tasks;
pub(crate) mod transcript;
mod upkeep;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::Actor;
use stillframe_backends::{ErrorKind, StateDir};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::actors::adopted::Adopted;
use crate::actors::core::{Core, Shared};
use crate::actors::patience::Patience;
use crate::actors::state_writer::{LogOnDemand, StateWriter};
use crate::actors::supervisor::{SupervisorActor, SupervisorArguments};
use crate::actors::watched::WatchedWorkspaces;
use crate::actors::{Artifacts, LiveRuns, Parts};
use crate::blocking::Blocking;
use crate::engine::options::EngineOptions;
use crate::error::{Error, stopped};
use crate::events::notifier::Notifier;
use crate::id::{EngineId, QuestionId, RunId, SessionId};
use crate::options::{RunOptions, WorkspaceOptions};
use crate::records::outcome::RunOutcome;
use crate::records::question::QuestionRecord;
use crate::records::recovery::RecoveryReport;
use crate::records::run::RunStatus;
use crate::records::session::SessionDetails;
use crate::run::{cancel, waiting};
use crate::session::details;
use crate::session::manager::SessionManager;
use crate::state::liveness::EngineLock;
use crate::state::reader::StateReader;
use crate::state::reserve::Reserve;
use crate::state::sqlite::SqliteStore;
use crate::step::adapter::{Adapter, BoxAdapter};
use crate::step::answering;
use crate::telemetry;
use crate::upkeep::{recovery, trim};

/// How long to wait, at a shutdown, for what was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(60);

/// An engine, which runs work between snapshots. Cheap to clone.
///
/// It has to be started in a tokio runtime. When the last handle is dropped, the engine stops once
/// no work is under way; [`Engine::shutdown`] waits for that. While submitted runs are under way,
/// an engine goes on with the queue; a shutdown begins no more of them.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Core,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("id", &self.core.parts.engine_id)
            .field("state_dir", &self.core.parts.state_dir.path())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine: opens the state directory, recovers what dead engines left, and then
    /// accepts work.
    pub async fn start(options: EngineOptions) -> Result<Self, Error> {
        // On the heap, so that the host's own futures stay small.
        Box::pin(Self::started(options)).await
    }

    async fn started(options: EngineOptions) -> Result<Self, Error> {
        options.check()?;
        let secrets = options.secrets()?;
        telemetry::describe();
        let blocking = Blocking::new(options.max_blocking);
        let engine_id = EngineId::random();
        let (asked, id) = (options.clone(), engine_id.clone());
        let opened = blocking.run(move || open_state(&asked, &id)).await??;

        let notifier = Notifier::new();
        let (started, parts) = oneshot::channel();
        let make_parts = {
            let (settings, blocking) = (Arc::new(options.settings()), blocking.clone());
            let (state_dir, lock) = (opened.state_dir, opened.lock);
            let (reserve, reader, artifacts) = (opened.reserve, opened.reader, opened.artifacts);
            move |writer: StateWriter| Parts {
                settings,
                engine_id,
                state_dir,
                reserve,
                writer: writer.redacting(secrets),
                reader,
                blocking,
                artifacts,
                live_runs: LiveRuns::default(),
                watched: WatchedWorkspaces::default(),
                adopted: Adopted::default(),
                lock,
                removing: Arc::default(),
                trimming: Arc::default(),
                queue_bell: Arc::default(),
                notice_bell: Arc::default(),
                sending_notices: Arc::default(),
                patience: Patience::default(),
                stopped: CancellationToken::new(),
            }
        };
        let arguments = SupervisorArguments {
            log: opened.log,
            notifier,
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
                admission: Arc::new(Semaphore::new(
                    options.max_operations.min(Semaphore::MAX_PERMITS),
                )),
                tasks,
                is_closing: AtomicBool::new(false),
                recovery: OnceLock::new(),
                stopping: CancellationToken::new(),
            }),
        };
        let engine = Self { core };
        let sweep =
            question_sweep::sweep(Arc::downgrade(&engine.core.shared), options.resumer.clone());
        if options.notice_sink.is_some() && engine.core.parts.state_dir.is_writable() {
            // Until nobody is left who could want one sent.
            engine
                .core
                .spawn(notices::send_those_due(Arc::downgrade(&engine.core.shared)));
        }
        match recovery::recover(&engine.core).await {
            Ok(report) => {
                // Whoever is dead is known to be from here on.
                engine.core.parts.notice_bell.notify_one();
                engine.core.recovery.set(report).expect("it is set once");
            }
            Err(e) => {
                // Its actors would outlive it otherwise, and be interrupted with the runtime. Why
                // it cannot be started is the error to tell.
                let _ = engine.shutdown().await;
                return Err(e);
            }
        }
        tokio::spawn(sweep);
        if engine.core.parts.state_dir.is_writable() {
            let shared = Arc::downgrade(&engine.core.shared);
            tokio::spawn(resending::send_those_due(shared));
            tokio::spawn(finish_removals(engine.core.clone()));
        }
        if !options.adapters.is_empty() && engine.core.parts.state_dir.is_writable() {
            let shared = Arc::downgrade(&engine.core.shared);
            let (adapters, max_running) = (options.adapters.clone(), options.max_running);
            tokio::spawn(dispatch::dispatch(shared, adapters, max_running));
        }
        Ok(engine)
    }

    /// What dead engines had left when this engine started, and what it did about that.
    pub fn recovery(&self) -> &RecoveryReport {
        static NOTHING: RecoveryReport = RecoveryReport {
            done: Vec::new(),
            left: Vec::new(),
            survivors: Vec::new(),
            unknown_adapters: Vec::new(),
            quarantined: 0,
        };
        self.core.recovery.get().unwrap_or(&NOTHING)
    }

    /// Accepts no more work, waits for work under way and sends the notices that are due, cancels
    /// work that takes longer than the grace, and stops. Safe to repeat.
    ///
    /// # Errors
    ///
    /// `Timeout`: some work did not end within a minute after it was cancelled. The engine has
    /// stopped anyway, and the next engine settles that work.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let core = &self.core;
        core.is_closing.store(true, Ordering::Release);
        core.tasks.close();
        core.parts.notice_bell.notify_one();
        let grace = core.parts.settings.shutdown_grace;
        let mut is_done = tokio::time::timeout(grace, core.tasks.wait()).await.is_ok();
        if !is_done {
            core.parts.live_runs.stop_all();
            core.stopping.cancel();
            let finished = tokio::time::timeout(CANCEL_GRACE, core.tasks.wait());
            is_done = finished.await.is_ok();
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
        let parts = core.parts.clone();
        core.parts.blocking.run(move || parts.retire()).await?;
        Ok(())
    }

    /// The session of this id, made and started if it is new.
    ///
    /// An id is 1 to 200 letters, digits, `.`, `_` or `-`, the first a letter or digit. A session
    /// that has ended is returned too: it can be read, but accepts no runs.
    pub async fn session(&self, id: impl Into<String>) -> Result<SessionManager, Error> {
        let id = SessionId::try_from(id.into())?;
        self.session_of(id).await
    }

    /// As [`Engine::session`], of which the host says something, to find it by
    /// ([`Engine::sessions`]) or for itself. A session that is there stays as it is;
    /// [`SessionManager::describe`] changes what is said of it.
    ///
    /// ```no_run
    /// # use stillframe::options::SessionQuery;
    /// # use stillframe::records::SessionDetails;
    /// # async fn find(engine: stillframe::Engine) -> Result<(), stillframe::Error> {
    /// let details = SessionDetails::default().agent_id("reviewer").tag("urgent");
    /// let session = engine.session_with("ticket-42", details).await?;
    /// let mut details = session.record().await?.details;
    /// details.tags.insert("blocked".to_owned());
    /// session.describe(details).await?;
    /// for session in engine.sessions(SessionQuery::all().tag("blocked")).await? {
    ///     println!("{}: {}, {} queued", session.id, session.status, session.queued);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`SessionManager::describe`]; no session was made.
    pub async fn session_with(
        &self,
        id: impl Into<String>,
        details: SessionDetails,
    ) -> Result<SessionManager, Error> {
        let id = SessionId::try_from(id.into())?;
        details::check(&self.core.parts, &id, &details).await?;
        self.core.ensure_session(&id, Some(&details)).await?;
        Ok(SessionManager::new(self.core.clone(), id))
    }

    /// A new session with an id of its own, started.
    pub async fn new_session(&self) -> Result<SessionManager, Error> {
        self.session_of(SessionId::random()).await
    }

    /// The session for operations on a workspace outside of any other session; always the same for
    /// the same directory.
    pub async fn workspace_session(&self, path: impl AsRef<Path>) -> Result<SessionManager, Error> {
        let opened = self.core.open_known(&WorkspaceOptions::at(path)).await?;
        let id = SessionId::of_workspace(opened.workspace.id());
        self.session_of(id).await
    }

    async fn session_of(&self, id: SessionId) -> Result<SessionManager, Error> {
        self.core.ensure_session(&id, None).await?;
        Ok(SessionManager::new(self.core.clone(), id))
    }

    /// Creates a session, runs in it, and completes or fails the session as the run ends.
    ///
    /// A run that was cancelled cancels the session; one that was refused fails it. A run whose id
    /// is on record stays in its session. That session ends with the run only if it was created for
    /// the run, and not while the run is interrupted.
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
            .is_none_or(|row| row.begun_as().own_session);
        let mut options = options;
        options.own_session = true;
        options.is_nameless = options.run_id.is_none();
        let session = match recorded {
            Some(row) => self.session_of(row.session_id).await?,
            None => self.new_session().await?,
        };
        let run_id = options.run_id.get_or_insert_with(RunId::random).clone();
        let closing = session.clone();
        let adapter = BoxAdapter::new(adapter);
        let reader = self.core.parts.reader.clone();
        // On a separate task, so that the session ends with its run even if the caller is dropped.
        let run = async move {
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
                Err(_) => match reader.read(move |store| store.run(&run_id)).await {
                    // Its end could not be written: the next engine settles it, and it may go on.
                    Ok(Some(row))
                        if row.session_id == *closing.id() && !row.status.is_terminal() =>
                    {
                        return result;
                    }
                    Err(_) => return result,
                    Ok(_) => closing.fail("").await,
                },
            };
            match (result, ended) {
                (Ok(outcome), Err(e)) => Err(e.touched_if(true).with_outcome(outcome)),
                (result, _) => result,
            }
        };
        let task = self.core.runtime.spawn(run.in_current_span());
        task.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Asks a run to stop, whichever engine holds it; an interrupted run is cancelled at once.
    ///
    /// A run of another engine notices it within a second or two, and ends when its work has ended.
    /// A run that waits in the queue is `cancelled` at once, and is never begun.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run. `Conflict`: it has ended.
    pub async fn cancel_run(&self, run_id: &RunId) -> Result<(), Error> {
        cancel::cancel_any(&self.core, run_id).await
    }

    /// The outcome of a run, once it has ended, whichever engine runs it, and also after a restart:
    /// it is read from the record, as if the run was started again with its id. A run that was
    /// interrupted or waits for an answer is waited for until somebody has resumed it and it has
    /// ended.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run. `Unavailable`: the engine has stopped meanwhile.
    pub async fn wait(&self, run_id: &RunId) -> Result<RunOutcome, Error> {
        waiting::wait(&self.core, run_id).await
    }

    /// Asks a run of this engine to stop so that it can be resumed; it becomes `interrupted`. A run
    /// without [phases](crate::RunContext::phase) that was not started as
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

    /// Answers a question, also one of a parked run or of a run that another engine holds. The run
    /// gets the answer within a second, or when it is resumed.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such question. `InvalidOptions`: that is none of its choices, or has
    /// a [secret value](crate::secrets), which is not stored.
    /// `Conflict`: it already has an answer (the first one counts, or the default after the
    /// deadline), or its run has ended.
    pub async fn answer(&self, id: &QuestionId, answer: &str) -> Result<QuestionRecord, Error> {
        let (core, asked, text) = (self.core.clone(), id.clone(), answer.to_owned());
        self.core
            .relief(async move { answering::answer(&core, &asked, &text).await })
            .await?;
        self.find_question(id.as_str()).await
    }
}

/// Finishes in the background the removals of sessions that dead engines have begun. What is left
/// when the engine stops is for the next one.
async fn finish_removals(core: Core) {
    tokio::select! {
        finished = trim::finish(&core) => {
            if let Err(e) = finished {
                tracing::warn!(error = %e.chain(), "sessions that were being removed are still there");
            }
        }
        () = core.parts.stopped.cancelled() => {}
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
    let ended = parts.clone();
    let end = move || {
        ended.watched.let_go_of_all();
        ended.retire();
    };
    let _ = parts.blocking.run(end).await;
}

/// What an engine opens before it has actors.
struct OpenedState {
    state_dir: StateDir,
    reserve: Reserve,
    log: LogOnDemand,
    reader: StateReader,
    artifacts: Artifacts,
    lock: Arc<EngineLock>,
}

fn open_state(options: &EngineOptions, id: &EngineId) -> Result<OpenedState, Error> {
    let path = options
        .state_dir
        .clone()
        .or_else(|| StateDir::default_path(|name| std::env::var_os(name)))
        .ok_or_else(|| Error::invalid_options("there is no home directory; set STILLFRAME_HOME"))?;
    let state_dir = match options.allow_reading_alone && StateDir::is_there_to_read(&path) {
        true => StateDir::open_to_read(path)?,
        false => StateDir::open(path)?,
    };
    let reserve = Reserve::of(state_dir.path());
    match open_files(&state_dir, &reserve, options, id) {
        // A clean-up, which frees space, must be able to start.
        Err(e) if e.kind() == ErrorKind::NoSpace && state_dir.is_writable() && reserve.lend() => {
            open_files(&state_dir, &reserve, options, id)
        }
        opened => opened,
    }
}

fn open_files(
    state_dir: &StateDir,
    reserve: &Reserve,
    options: &EngineOptions,
    id: &EngineId,
) -> Result<OpenedState, Error> {
    let lock = Arc::new(EngineLock::new(state_dir, id));
    let mut made = None;
    let reader = match state_dir.is_writable() {
        false => SqliteStore::open_copy(state_dir.path())?,
        true => match SqliteStore::open_as_it_is(state_dir.path())? {
            Some(reader) => reader,
            None => {
                made = Some(SqliteStore::open(state_dir.path())?);
                SqliteStore::open_reader(state_dir.path())?
            }
        },
    };
    let artifacts = match &options.artifact_store {
        Some(store) => Artifacts::Host(Arc::clone(store)),
        None => Artifacts::in_files(state_dir),
    };
    let (directory, kept) = (state_dir.path().to_owned(), reserve.clone());
    let log = LogOnDemand::new(&lock, move || {
        let made = made.take();
        let store = made.map_or_else(|| SqliteStore::open(&directory), Ok)?;
        kept.keep();
        Ok(Box::new(store))
    });
    Ok(OpenedState {
        state_dir: state_dir.clone(),
        reserve: reserve.clone(),
        log,
        reader: StateReader::new(Box::new(reader)),
        artifacts,
        lock,
    })
}
