//! Artifacts that are stored while the run writes them.

use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex, PoisonError};

use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::StateDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::StepLog;
use crate::actors::artifact_store::Reader;
use crate::error::Error;
use crate::records::artifact::{ArtifactDraft, ArtifactRecord};
use crate::state::change::Change;
use crate::state::registering::Registering;
use crate::step::artifact;

impl StepLog {
    /// Keeps an artifact of the adapter's. That goes on though the adapter does not wait for it,
    /// and the run does not end before.
    pub(crate) async fn put_artifact(
        &self,
        draft: ArtifactDraft,
        content: Box<dyn Read + Send>,
    ) -> Result<ArtifactRecord, Error> {
        let inner = self.inner.clone();
        let put = async move {
            let (session_id, hold) = (&inner.session_id, Some(&inner.hold));
            artifact::put(&inner.core, session_id, hold, draft, content).await
        };
        self.to_the_end(put).await
    }

    /// Has the pieces kept as an artifact of the run, until there are no more senders.
    ///
    /// That goes on though the caller does not wait for it, and the run does not end before.
    pub(crate) fn keep(
        &self,
        key: ArtifactKey,
        content_type: &'static str,
        pieces: mpsc::Receiver<Vec<u8>>,
    ) -> JoinHandle<Result<ArtifactRecord, Error>> {
        let inner = self.inner.clone();
        let kept = async move {
            let parts = &inner.core.parts;
            let registering = Arc::<Mutex<Option<Registering>>>::default();
            let content = Incoming {
                pieces,
                piece: Cursor::default(),
                state_dir: parts.state_dir.clone(),
                registering: registering.clone(),
            };
            let put = inner.core.begin_put(key, Box::new(content), Reader::Own);
            let meta = put.await?.done().await?;
            let held = registering
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let whose = (&inner.session_id, Some(&inner.hold.run_id));
            let record = artifact::record(parts, whose, meta, content_type);
            let registered = Change::RegisterArtifact(Box::new(record.clone()));
            let changes = vec![inner.hold.fence(), registered];
            parts.writer.commit_and_release(changes, held).await?;
            Ok(record)
        };
        let tracked = self.inner.under_way.track_future(kept);
        self.inner.core.spawn(tracked)
    }
}

/// The pieces, to be read once.
struct Incoming {
    pieces: mpsc::Receiver<Vec<u8>>,
    piece: Cursor<Vec<u8>>,
    state_dir: StateDir,
    /// What keeps clean-ups away from the artifact, from when all of it was read.
    registering: Arc<Mutex<Option<Registering>>>,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.position() == self.piece.get_ref().len() as u64 {
            let Some(next) = self.pieces.blocking_recv() else {
                // Not before: what is written may take hours, and no clean-up looks at what is not
                // yet there.
                let held = Registering::begin(self.state_dir.path()).map_err(io::Error::other)?;
                let mut registering = self
                    .registering
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *registering = Some(held);
                return Ok(0);
            };
            self.piece = Cursor::new(next);
        }
        self.piece.read(buffer)
    }
}
