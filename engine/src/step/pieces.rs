//! What has come of a message and is not stored yet.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use stillframe_backends::ErrorKind;
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

/// So much text one event has at most: as JSON it may be six times as long, which still fits.
const MAX_EVENT: usize = 1024 * 1024;

/// So long the id of a message is at most, in bytes: each of its events has it.
const MAX_MESSAGE_ID: usize = 200;

/// What has come of a message and is not stored yet.
pub(crate) struct Pieces {
    message_id: String,
    pending: Mutex<Pending>,
    /// Whether nobody can add to it any more.
    is_let_go: AtomicBool,
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
            is_let_go: AtomicBool::new(false),
        }
    }

    pub(crate) fn message_id(&self) -> &str {
        &self.message_id
    }

    /// Nobody can add to it any more.
    pub(crate) fn let_go(&self) {
        self.is_let_go.store(true, Ordering::Release);
    }

    pub(crate) fn is_let_go(&self) -> bool {
        self.is_let_go.load(Ordering::Acquire)
    }

    /// Whether events can have its id.
    pub(crate) fn check_id(&self) -> Result<(), Error> {
        match self.message_id.len() {
            len if len > MAX_MESSAGE_ID => Err(Error::new(
                ErrorKind::InvalidOptions,
                format!("a message id has {len} bytes; the limit is {MAX_MESSAGE_ID}"),
            )),
            _ => Ok(()),
        }
    }

    /// Adds a piece unless `check` fails, which is asked while nothing is being stored; answers as
    /// [`Pending::add`].
    pub(crate) async fn add(
        &self,
        piece: &str,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(bool, Option<Instant>), Error> {
        let mut pending = self.pending.lock().await;
        check()?;
        Ok(pending.add(piece))
    }

    /// Who waited until it was time to store is about to.
    pub(crate) async fn is_looked_after(&self) {
        self.pending.lock().await.is_awaited = false;
    }

    /// Has what has come written, in as few events as hold it; what could not be written stays.
    pub(crate) async fn store<T, Written: Future<Output = Result<T, Error>>>(
        &self,
        secrets: &SecretRules,
        share: Share,
        write: impl Fn(EventDraft) -> Written,
    ) -> Result<(), Error> {
        let mut pending = self.pending.lock().await;
        let mut left = match share {
            Share::All => pending.text.len(),
            Share::Settled => settled(secrets, &pending.text),
        };
        if left == 0 {
            // What is held back is not looked at again with each piece.
            pending.stored_at = Some(Instant::now());
        }
        while left > 0 {
            let len = event_len(secrets, &pending.text[..left]);
            let data = json!({
                "message_id": self.message_id,
                "text": &pending.text[..len],
                "piece": pending.stored + 1,
            });
            write(EventDraft::new(EventType::MESSAGE_STREAMED, data)).await?;
            pending.text.drain(..len);
            pending.stored += 1;
            pending.stored_at = Some(Instant::now());
            left -= len;
        }
        Ok(())
    }
}

/// How much of `text` can be stored although more follows.
fn settled(secrets: &SecretRules, text: &str) -> usize {
    let settled = secrets.settled_len(text);
    if text.len() - settled <= MAX_WORD {
        return settled;
    }
    let blank = |c: char| c.is_ascii_whitespace();
    match text.rfind(blank).map_or(0, |at| at + 1) {
        // A word that does not end is stored in parts.
        word if text.len() - word > MAX_WORD => text.len(),
        word => word,
    }
}

/// How much of `text`, which is not empty, is stored as one event.
fn event_len(secrets: &SecretRules, text: &str) -> usize {
    if text.len() <= MAX_EVENT {
        return text.len();
    }
    let most = text.floor_char_boundary(MAX_EVENT);
    settled(secrets, &text[..most])
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as BlockingMutex;

    use super::*;

    #[tokio::test]
    async fn a_long_piece_is_stored_as_events_that_fit() {
        let secrets = SecretRules::new();
        let text = "\u{1}\u{e9} ".repeat(MAX_EVENT);
        let pieces = Pieces::of("m".to_owned());
        pieces.add(&text, || Ok(())).await.unwrap();
        let written = BlockingMutex::new(Vec::new());
        let write = |draft: EventDraft| {
            written.lock().unwrap().push(draft);
            std::future::ready(Ok(()))
        };
        pieces.store(&secrets, Share::All, write).await.unwrap();
        let written = written.into_inner().unwrap();
        assert!(written.len() >= 4, "{}", written.len());
        assert!(pieces.pending.lock().await.text.is_empty());
        for size in [
            event_len(&secrets, &text),
            event_len(&secrets, &"\u{e9}".repeat(MAX_EVENT)),
        ] {
            assert!((MAX_EVENT - MAX_WORD..=MAX_EVENT).contains(&size), "{size}");
        }
    }

    #[test]
    fn an_element_that_does_not_end_is_cut_between_words() {
        let secrets = SecretRules::new();
        let open = format!("<add {} word", "a ".repeat(MAX_WORD));
        assert_eq!(settled(&secrets, &open), open.len() - "word".len());
        let long = format!("<add {}", "a".repeat(MAX_WORD + 1));
        assert_eq!(settled(&secrets, &long), long.len());
        assert_eq!(settled(&secrets, "one <add two"), "one ".len());
    }

    #[tokio::test]
    async fn what_is_held_back_is_not_looked_at_with_each_piece() {
        let pieces = Pieces::of("m".to_owned());
        let write = |_| std::future::ready(Ok(()));
        assert!(pieces.add("<add key", || Ok(())).await.unwrap().0);
        pieces
            .store(&SecretRules::new(), Share::Settled, write)
            .await
            .unwrap();
        assert!(!pieces.add("=", || Ok(())).await.unwrap().0);
    }
}
