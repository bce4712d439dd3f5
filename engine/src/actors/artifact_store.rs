//! The actor that stores artifacts.

use std::io::Read;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta, PutOptions};

use super::{Artifacts, Reply};
use crate::blocking::Blocking;
use crate::error::Error;

/// Starts the work of keeping and reading artifacts. It has no state beside the store.
pub(crate) struct ArtifactStoreActor;

/// What the artifact store is asked for.
pub(crate) enum ArtifactStoreMessage {
    /// Keep this content.
    Put {
        key: ArtifactKey,
        content: Box<dyn Read + Send>,
        reply: Reply<ArtifactMeta>,
    },
    /// Open the content of a key.
    Get {
        key: ArtifactKey,
        reply: Reply<Box<dyn Read + Send>>,
    },
    /// Forget a key.
    Delete { key: ArtifactKey, reply: Reply<()> },
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
                reply,
            } => start(blocking, reply, move || {
                Ok(artifacts
                    .store()?
                    .put(&key, &mut *content, &PutOptions::default())?)
            }),
            ArtifactStoreMessage::Get { key, reply } => {
                start(blocking, reply, move || Ok(artifacts.store()?.get(&key)?));
            }
            ArtifactStoreMessage::Delete { key, reply } => {
                start(blocking, reply, move || {
                    Ok(artifacts.store()?.delete(&key)?)
                });
            }
        }
        Ok(())
    }
}

/// Does `work` outside of the actor, and answers.
fn start<T: Send + 'static>(
    blocking: Blocking,
    reply: Reply<T>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) {
    tokio::spawn(async move {
        let result = match blocking.run(work).await {
            Ok(result) => result,
            Err(lost) => Err(lost.into()),
        };
        let _ = reply.send(result);
    });
}
