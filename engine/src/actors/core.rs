//! What everything of an engine shares.

use std::future::Future;
use std::io::Read;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ractor::ActorRef;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};
use stillframe_backends::{ErrorKind, Identity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actors::artifact_store::ArtifactStoreMessage;
use crate::actors::run::Step;
use crate::actors::session_manager::SessionMessage;
use crate::actors::supervisor::SupervisorMessage;
use crate::actors::workspace::WorkspaceMessage;
use crate::actors::{Parts, Reply};
use crate::error::{Error, stopped};
use crate::id::SessionId;
use crate::records::recovery::RecoveryReport;
use crate::state::new_session;

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
        match self.is_closing.load(Ordering::Acquire) {
            true => Err(Error::unavailable("the engine is shutting down")),
            false => Ok(()),
        }
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
        let answered = self.begin(Some(permit), operation);
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// As [`Core::operation`], also in an engine that has no room for more: what lets its runs go on or end.
    pub(crate) async fn relief<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.check_open()?;
        let answered = self.begin(None, operation);
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    fn begin<T: Send + 'static>(
        &self,
        permit: Option<OwnedSemaphorePermit>,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Error>> {
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
        answered
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

    /// Has the session of this id made and started if it is new.
    pub(crate) async fn ensure_session(&self, id: &SessionId) -> Result<(), Error> {
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
            let changes = new_session::creation(id, self.parts.now());
            match self.parts.writer.commit(changes).await {
                Ok(_) => {}
                // Another engine was faster: its session is the session.
                Err(e) if e.kind() == ErrorKind::Conflict => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::unavailable(format!("session {id} cannot be made")))
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
}

fn artifact_store_lost() -> Error {
    Error::unavailable("the artifact store was lost while it worked; try again")
}
