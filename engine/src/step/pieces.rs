//! What has come of a message and is not stored yet.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::json;
use stillframe_secrets::SecretRules;
use tokio::sync::Mutex;

use crate::error::Error;
use crate::events::draft::EventDraft;
use crate::events::event::EventType;

/// How often pieces of one message are stored at most.
const STORE_EVERY: Duration = Duration::from_millis(250);

/// So much text is stored at once, whatever the time: it is in memory until then.
const MAX_PENDING: usize = 4 * 1024 * 1024;

/// The longest word that is stored with what follows it.
const MAX_WORD: usize = 64 * 1024;

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
    /// Of a message that has none yet.
    pub(crate) fn of(message_id: String) -> Self {
        Self {
            message_id,
            pending: Mutex::default(),
        }
    }

    pub(crate) fn message_id(&self) -> &str {
        &self.message_id
    }

    /// Adds a piece; answers as [`Pending::add`].
    pub(crate) async fn add(&self, piece: &str) -> (bool, Option<Instant>) {
        self.pending.lock().await.add(piece)
    }

    /// Who waited until it was time to store is about to.
    pub(crate) async fn is_looked_after(&self) {
        self.pending.lock().await.is_awaited = false;
    }

    /// Has what has come written, as one event; what could not be written stays.
    pub(crate) async fn store<T, Written: Future<Output = Result<T, Error>>>(
        &self,
        secrets: &SecretRules,
        share: Share,
        write: impl FnOnce(EventDraft) -> Written,
    ) -> Result<(), Error> {
        let mut pending = self.pending.lock().await;
        let all = pending.text.len();
        let len = match share {
            Share::All => all,
            Share::Settled => match secrets.settled_len(&pending.text) {
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
        write(draft).await?;
        pending.text.drain(..len);
        pending.stored += 1;
        pending.stored_at = Some(Instant::now());
        Ok(())
    }
}
