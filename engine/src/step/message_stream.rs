//! Messages that an adapter receives in pieces.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Mutex;

use crate::error::Error;
use crate::events::draft::EventDraft;
use crate::events::event::EventType;
use crate::step::context::RunContext;
use crate::step::step_log::StepLog;

/// How often pieces of one message are stored at most.
const STORE_EVERY: Duration = Duration::from_millis(250);

/// So much text is stored at once, whatever the time: it is in memory until then.
const MAX_PENDING: usize = 4 * 1024 * 1024;

/// The longest word that is stored with what follows it.
const MAX_WORD: usize = 64 * 1024;

/// A message of an agent or a model that comes in pieces: see [`RunContext::stream_message`].
#[must_use = "its pieces are pushed"]
pub struct MessageStream {
    log: StepLog,
    pieces: Arc<Pieces>,
}

/// What has come of a message and is not stored yet.
pub(crate) struct Pieces {
    message_id: String,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    text: String,
    stored_at: Option<Instant>,
    /// How many pieces are stored.
    stored: u64,
    /// Whether somebody is about to store what is there.
    is_awaited: bool,
}

/// How much of what has come is to be stored.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Share {
    /// All but a word at its end that may be the beginning of a secret value.
    Settled,
    /// All.
    All,
}

impl RunContext {
    /// A message that arrives in pieces. They are stored as `message_streamed`, with `message_id`,
    /// `text`, and `piece`, which counts from 1.
    ///
    /// At most one event is stored every 250 ms; pieces that come between are put together. Before
    /// the next event of the adapter, of its steps and tools, and when the work ends, what has come
    /// is stored. A word at the end that may be the beginning of a [secret value](crate::secrets) is
    /// stored with what follows it. So a value is redacted though it comes in several pieces.
    pub fn stream_message(&self, message_id: impl Into<String>) -> MessageStream {
        let pieces = Arc::new(Pieces {
            message_id: message_id.into(),
            pending: Mutex::default(),
        });
        self.steps.add_stream(&pieces);
        MessageStream {
            log: self.steps.clone(),
            pieces,
        }
    }
}

impl MessageStream {
    /// Adds a piece. On `Ok` it is stored, or will be within 250 ms.
    ///
    /// # Errors
    ///
    /// The event could not be written. What was to be stored is tried again with the next piece.
    pub async fn push(&self, piece: &str) -> Result<(), Error> {
        let (is_due, later) = self.pieces.pending.lock().await.add(piece);
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
    pub async fn finish(self) -> Result<(), Error> {
        self.store(Share::All).await?;
        self.log.remove_stream(&self.pieces);
        Ok(())
    }

    /// Goes to its end though the adapter drops the future: what is written is not to be written
    /// again.
    async fn store(&self, share: Share) -> Result<(), Error> {
        let (log, pieces) = (self.log.clone(), Arc::clone(&self.pieces));
        let work = async move { pieces.store(&log, share).await };
        self.log.to_the_end(work).await
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageStream")
            .field("message_id", &self.pieces.message_id)
            .finish_non_exhaustive()
    }
}

async fn store_later(log: StepLog, pieces: Weak<Pieces>, due: Instant) {
    tokio::time::sleep_until(due.into()).await;
    let Some(pieces) = pieces.upgrade() else {
        return;
    };
    pieces.pending.lock().await.is_awaited = false;
    let work = {
        let log = log.clone();
        async move { pieces.store(&log, Share::Settled).await }
    };
    if let Err(e) = log.to_the_end(work).await {
        // What is there is tried again with the next piece, which tells why.
        tracing::debug!(error = %e.chain(), "pieces of a message are not stored yet");
    }
}

impl Pending {
    /// Adds a piece; answers with whether it is time to store, and else when it will be, if nobody
    /// waits for that yet.
    fn add(&mut self, piece: &str) -> (bool, Option<Instant>) {
        self.text.push_str(piece);
        let due = self.stored_at.map(|at| at + STORE_EVERY);
        match due.filter(|due| *due > Instant::now()) {
            None => (true, None),
            Some(_) if self.text.len() >= MAX_PENDING => (true, None),
            Some(due) => (
                false,
                Some(due).filter(|_| !std::mem::replace(&mut self.is_awaited, true)),
            ),
        }
    }
}

impl Pieces {
    /// Stores what has come, as one event.
    pub(crate) async fn store(&self, log: &StepLog, share: Share) -> Result<(), Error> {
        let mut pending = self.pending.lock().await;
        let all = pending.text.len();
        let len = match share {
            Share::All => all,
            Share::Settled => match log.secrets().settled_len(&pending.text) {
                // A word that does not end is stored in parts.
                len if all - len > MAX_WORD => all,
                len => len,
            },
        };
        if len == 0 {
            return Ok(());
        }
        let data = json!({
            "message_id": self.message_id,
            "text": &pending.text[..len],
            "piece": pending.stored + 1,
        });
        let draft = EventDraft::new(EventType::MESSAGE_STREAMED, data);
        log.write_events(vec![draft]).await?;
        pending.text.drain(..len);
        pending.stored += 1;
        pending.stored_at = Some(Instant::now());
        Ok(())
    }
}
