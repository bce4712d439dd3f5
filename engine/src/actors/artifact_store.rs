//! The actor that stores artifacts.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta, PutOptions};
use stillframe_backends::ErrorKind;
use tokio::sync::oneshot;

use super::{Artifacts, Reply};
use crate::blocking::{Blocking, StepLost};
use crate::error::Error;

/// Starts the work of keeping and reading artifacts. It has no state beside the store.
pub(crate) struct ArtifactStoreActor;

/// What the artifact store is asked for.
pub(crate) enum ArtifactStoreMessage {
    /// Keep this content, which may be written while it is read.
    Put {
        key: ArtifactKey,
        content: Box<dyn Read + Send>,
        /// Who reads it.
        reader: Reader,
        reply: Reply<ArtifactMeta>,
    },
    /// Open the content of a key.
    Get {
        key: ArtifactKey,
        reply: Reply<Box<dyn Read + Send>>,
    },
}

/// On which thread content is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// One of the blocking threads.
    Blocking,
    /// One of its own, because somebody on a blocking thread writes meanwhile what is read.
    Own,
}

/// An artifact on its way into the store.
pub(crate) struct Putting {
    key: ArtifactKey,
    answer: oneshot::Receiver<Result<ArtifactMeta, Error>>,
}

impl Putting {
    /// Has `content` kept under `key`, and does not wait for it.
    pub(crate) fn begin(
        actor: &ActorRef<ArtifactStoreMessage>,
        key: ArtifactKey,
        content: Box<dyn Read + Send>,
        reader: Reader,
    ) -> Self {
        let (reply, answer) = oneshot::channel();
        let asked = key.clone();
        // Where the actor is lost, so is the reply.
        let _ = actor.send_message(ArtifactStoreMessage::Put {
            key,
            content,
            reader,
            reply,
        });
        Self { key: asked, answer }
    }

    /// Waits until the artifact is kept.
    pub(crate) async fn done(self) -> Result<ArtifactMeta, Error> {
        let meta = self.answer.await.unwrap_or_else(|_| Err(lost()))?;
        if meta.key == self.key {
            return Ok(meta);
        }
        let detail = format!("the artifact store kept {:?} as {:?}", self.key, meta.key);
        Err(Error::new(ErrorKind::Storage, detail))
    }
}

pub(crate) fn lost() -> Error {
    Error::unavailable("the artifact store was lost while it worked; try again")
}

/// What the artifact store starts with.
pub(crate) struct ArtifactStoreArguments {
    pub(crate) artifacts: Artifacts,
    pub(crate) blocking: Blocking,
}

impl Actor for ArtifactStoreActor {
    type Msg = ArtifactStoreMessage;
    type State = ArtifactStoreArguments;
    type Arguments = ArtifactStoreArguments;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let artifacts = state.artifacts.clone();
        let blocking = state.blocking.clone();
        match message {
            ArtifactStoreMessage::Put {
                key,
                mut content,
                reader,
                reply,
            } => {
                let put = move || {
                    let options = PutOptions::default();
                    Ok(artifacts.store()?.put(&key, &mut *content, &options)?)
                };
                match reader {
                    Reader::Blocking => start(reply, async move { blocking.run_put(put).await }),
                    Reader::Own => start_beside(&blocking, reply, put),
                }
            }
            ArtifactStoreMessage::Get { key, reply } => {
                let get = move || Ok(artifacts.store()?.get(&key)?);
                start(reply, async move { blocking.run_long(get).await });
            }
        }
        Ok(())
    }
}

/// Does `work` outside of the actor, and answers.
fn start<T: Send + 'static>(
    reply: Reply<T>,
    work: impl Future<Output = Result<Result<T, Error>, StepLost>> + Send + 'static,
) {
    tokio::spawn(async move {
        let result = match work.await {
            Ok(result) => result,
            Err(lost) => Err(lost.into()),
        };
        let _ = reply.send(result);
    });
}

/// Does `work` on a thread of its own, and answers.
fn start_beside<T: Send + 'static>(
    blocking: &Blocking,
    reply: Reply<T>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) {
    // Handed over once there is a thread, so that the way to answer is not lost with one.
    let (hand, handed) = mpsc::channel::<Reply<T>>();
    let begun = blocking.start_beside(move || {
        let Ok(reply) = handed.recv() else { return };
        let done = catch_unwind(AssertUnwindSafe(work));
        let _ = reply.send(done.unwrap_or_else(|panic| Err(StepLost::panicked(&*panic).into())));
    });
    match begun {
        Ok(()) => drop(hand.send(reply)),
        Err(e) => drop(reply.send(Err(Error::new(ErrorKind::Storage, e)))),
    }
}
