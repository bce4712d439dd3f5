//! The state that all parts of an engine share.

use std::future::Future;
use std::io::Read;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ractor::ActorRef;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};
use stillframe_backends::{ErrorKind, Identity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::actors::artifact_store::{self, ArtifactStoreMessage, Putting, Reader};
use crate::actors::run::{RunMessage, Step, Work};
use crate::actors::session_manager::SessionMessage;
use crate::actors::supervisor::SupervisorMessage;
use crate::actors::workspace::WorkspaceMessage;
use crate::actors::{Parts, Reply, Ticket};
use crate::error::{Error, stopped};
use crate::id::{RunId, SessionId};
use crate::records::outcome::RunOutcome;
use crate::records::recovery::RecoveryReport;
use crate::records::run_row::NewRun;
use crate::records::session::SessionDetails;
use crate::state::new_session;
use crate::telemetry;

/// How often an actor that was lost is asked for again before the engine counts as gone.
const MAX_ASKS: usize = 8;

/// What the handles share.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) parts: Parts,
    pub(crate) supervisor: ActorRef<SupervisorMessage>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) admission: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
    pub(crate) is_closing: AtomicBool,
    /// Set before anybody has the engine.
    pub(crate) recovery: OnceLock<RecoveryReport>,
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

impl Core {
    /// Refuses what comes once the engine is being shut down.
    fn check_open(&self) -> Result<(), Error> {
        self.parts.check_available()?;
        match self.is_closing() {
            true => Err(Error::unavailable("the engine is shutting down")),
            false => Ok(()),
        }
    }

    /// Whether the engine is being shut down.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Room for one more operation or run; `Busy` if there is none.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.check_open()?;
        Arc::clone(&self.admission)
            .try_acquire_owned()
            .map_err(|_| {
                Error::new(
                    ErrorKind::Busy,
                    format!(
                        "{} operations are under way, which is the limit of this engine; nothing was touched",
                        self.parts.settings.max_operations
                    ),
                )
            })
    }

    /// Starts a task that a shutdown waits for, and that continues if its caller is dropped.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_on(task.in_current_span(), &self.runtime)
    }

    /// Does something that goes on though the caller is dropped, and that a shutdown waits for.
    pub(crate) async fn operation<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = telemetry::counted(self.admit())?;
        let task = self.spawn(async move {
            let _permit = permit;
            operation.await
        });
        answer_of(task).await
    }

    /// As [`Core::operation`], even if the engine is at its limit: what lets its runs go on or end.
    pub(crate) async fn relief<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.check_open()?;
        answer_of(self.spawn(operation)).await
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
            let actor = self.session_actor(id).await?;
            let (reply, answer) = oneshot::channel();
            let _ = actor.send_message(message(reply));
            if let Ok(result) = answer.await {
                return result;
            }
        }
        Err(self.keeps_failing(id))
    }

    async fn session_actor(&self, id: &SessionId) -> Result<ActorRef<SessionMessage>, Error> {
        let id = id.clone();
        let ask = |reply| SupervisorMessage::Session {
            id: id.clone(),
            reply,
        };
        self.ask(ask).await
    }

    fn keeps_failing(&self, id: &SessionId) -> Error {
        let keeps_failing = || Error::unavailable(format!("session {id} keeps failing"));
        self.parts
            .check_available()
            .err()
            .unwrap_or_else(keeps_failing)
    }

    /// Has a session start the work of a run, and accept the run first if it is new; comes back
    /// with the answer of the work. `Err`: it was not begun.
    ///
    /// Once its session has the message, the work goes on though the caller is dropped.
    pub(crate) async fn begin_run(
        &self,
        (session_id, run_id): (&SessionId, &RunId),
        new: Option<NewRun>,
        work: Work,
    ) -> Result<Result<RunOutcome, Error>, Error> {
        let (mut work, mut claim) = Ticket::new(work);
        for _ in 0..MAX_ASKS {
            let actor = self.session_actor(session_id).await?;
            let (reply, answer) = oneshot::channel();
            let _ = actor.send_message(SessionMessage::Begin {
                run_id: run_id.clone(),
                new: new.clone().map(Box::new),
                work,
                reply,
            });
            let answer = answer.await;
            match (answer, claim.take_back()) {
                (Ok(answer), None) => return Ok(answer),
                (Ok(refused), Some(_)) => return Err(refused.err().unwrap_or_else(stopped)),
                // The actor ended with it in its queue.
                (Err(_), Some(lost)) => (work, claim) = Ticket::new(lost),
                (Err(_), None) => return Ok(Err(stopped())),
            }
        }
        Err(self.keeps_failing(session_id))
    }

    /// Has a run take one step: it is in the log on `Ok`. When the actor of the run is lost with
    /// its answer, its successor is asked again, which answers as the first would have.
    pub(crate) async fn step_run(&self, session_id: &SessionId, step: Step) -> Result<(), Error> {
        // One that is lost may be taken for alive for a moment: from the second time on the session
        // is asked, which takes longer than that.
        let mut known = self.parts.live_runs.actor(&step.run_id);
        for _ in 0..MAX_ASKS {
            let actor = match known.take() {
                Some(actor) => ActorRef::from(actor),
                None => {
                    let ask = |reply| SessionMessage::Run {
                        run_id: step.run_id.clone(),
                        reply,
                    };
                    self.ask_session(session_id, ask).await?
                }
            };
            let (reply, answer) = oneshot::channel();
            let step = Box::new(step.clone());
            let _ = actor.send_message(RunMessage::Step { step, reply });
            if let Ok(result) = answer.await {
                return result;
            }
        }
        Err(self.keeps_failing(session_id))
    }

    /// The actor that keeps artifacts.
    async fn artifact_store(&self) -> Result<ActorRef<ArtifactStoreMessage>, Error> {
        self.ask(|reply| SupervisorMessage::ArtifactStore { reply })
            .await
    }

    /// Has content kept under `key`, and does not wait for it. It is not registered.
    pub(crate) async fn begin_put(
        &self,
        key: ArtifactKey,
        content: Box<dyn Read + Send>,
        reader: Reader,
    ) -> Result<Putting, Error> {
        let actor = self.artifact_store().await?;
        Ok(Putting::begin(&actor, key, content, reader))
    }

    /// Keeps content under `key`. It is not registered.
    pub(crate) async fn put(
        &self,
        key: ArtifactKey,
        content: Box<dyn Read + Send>,
    ) -> Result<ArtifactMeta, Error> {
        let putting = self.begin_put(key, content, Reader::Blocking).await?;
        putting.done().await
    }

    pub(crate) async fn get(&self, key: ArtifactKey) -> Result<Box<dyn Read + Send>, Error> {
        let actor = self.artifact_store().await?;
        let (reply, answer) = oneshot::channel();
        let _ = actor.send_message(ArtifactStoreMessage::Get { key, reply });
        answer.await.unwrap_or_else(|_| Err(artifact_store::lost()))
    }

    /// Has the session of this id made and started if it is new.
    /// Of a new one the host says `details`; one that is there stays as it is.
    pub(crate) async fn ensure_session(
        &self,
        id: &SessionId,
        details: Option<&SessionDetails>,
    ) -> Result<(), Error> {
        self.parts.check_available()?;
        if !self.parts.state_dir.is_writable() {
            // Who only reads needs none, and everything else is refused.
            return Ok(());
        }
        for _ in 0..MAX_ASKS {
            let asked = id.clone();
            let found = self
                .parts
                .reader
                .read(move |store| store.session(&asked))
                .await?;
            if found.is_some() {
                return Ok(());
            }
            let details = details.cloned();
            let changes = new_session::described_creation(id, details, self.parts.now());
            match self.parts.writer.commit(changes).await {
                Ok(_) => {}
                // Another engine was faster: its session is the session.
                Err(e) if e.kind() == ErrorKind::Conflict => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::unavailable(format!("session {id} cannot be made")))
    }

    /// Ends the watches of a session if it has ended, also after an operation that outlasted it.
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

    /// Ends the watches of a session that no other session shares.
    pub(crate) async fn let_go(&self, session_id: &SessionId) {
        let gone = self.parts.watched.let_go(session_id);
        if !gone.is_empty() {
            // An engine that stops ends them too.
            let _ = self.parts.blocking.run(move || drop(gone)).await;
        }
    }
}

/// What a task answers, also where it panics, or is lost with its runtime.
async fn answer_of<T>(task: JoinHandle<Result<T, Error>>) -> Result<T, Error> {
    telemetry::counted(match task.await {
        Ok(answer) => answer,
        Err(lost) if lost.is_panic() => Err(Error::new(ErrorKind::Storage, lost)),
        Err(_) => Err(stopped()),
    })
}
