//! Messages that an adapter receives in pieces.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::error::Error;
use crate::step::pieces::{Pieces, Share};
use crate::step::step_log::StepLog;

/// A message of an agent or a model that comes in pieces: see
/// [`RunContext::stream_message`](crate::RunContext::stream_message).
#[must_use = "its pieces are pushed"]
pub struct MessageStream {
    log: StepLog,
    pieces: Arc<Pieces>,
}

impl MessageStream {
    /// The message of this id, which has no pieces yet.
    pub(crate) fn begin(log: StepLog, message_id: String) -> Self {
        let pieces = Arc::new(Pieces::of(message_id));
        log.add_stream(&pieces);
        Self { log, pieces }
    }
}

impl MessageStream {
    /// Adds a piece. On `Ok` it is stored, or will be within 250 ms. One that is long is stored as
    /// several events.
    ///
    /// # Errors
    ///
    /// - [`InvalidOptions`](crate::ErrorKind::InvalidOptions): the id of the message has more than
    ///   200 bytes; nothing of it is stored.
    /// - [`Conflict`](crate::ErrorKind::Conflict): the run has ended.
    /// - The event could not be written. What was to be stored is tried again with the next piece.
    pub async fn push(&self, piece: &str) -> Result<(), Error> {
        self.pieces.check_id()?;
        let check = || self.log.check_open();
        self.log.note_piece(&self.pieces);
        let (is_due, later) = self.pieces.add(piece, check).await?;
        if let Some(due) = later {
            tokio::spawn(store_later(
                self.log.clone(),
                Arc::downgrade(&self.pieces),
                due,
            ));
        }
        match is_due {
            true => self.store(Share::Settled).await,
            false => Ok(()),
        }
    }

    /// Stores what is not stored yet: the message is at its end.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub async fn finish(self) -> Result<(), Error> {
        self.pieces.check_id()?;
        self.store(Share::All).await?;
        self.log.remove_stream(&self.pieces);
        Ok(())
    }

    /// Goes to its end though the adapter drops the future: what is written is not to be written
    /// again.
    async fn store(&self, share: Share) -> Result<(), Error> {
        let (log, pieces) = (self.log.clone(), Arc::clone(&self.pieces));
        let work = async move { log.store_of(&pieces, share).await };
        self.log.to_the_end(work).await
    }
}

impl Drop for MessageStream {
    /// What is not stored yet is stored before whatever follows.
    fn drop(&mut self) {
        self.pieces.let_go();
        self.log.note_end_of_pieces(&self.pieces);
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageStream")
            .field("message_id", &self.pieces.message_id())
            .finish_non_exhaustive()
    }
}

async fn store_later(log: StepLog, pieces: Weak<Pieces>, due: Instant) {
    tokio::time::sleep_until(due.into()).await;
    let Some(pieces) = pieces.upgrade() else {
        return;
    };
    pieces.is_looked_after().await;
    let work = {
        let log = log.clone();
        async move { log.store_of(&pieces, Share::Settled).await }
    };
    if let Err(e) = log.to_the_end(work).await {
        // What is there is tried again with the next piece, which tells why.
        tracing::debug!(error = %e.chain(), "pieces of a message are not stored yet");
    }
}
