//! An event that a host or an adapter is about to write.

use serde_json::{Map, Value};

use crate::events::event::EventType;
use crate::id::{EventId, RunId};

/// An event that a host or an adapter is about to write: see
/// [`SessionManager::emit`](crate::SessionManager::emit) and
/// [`RunContext::emit_draft`](crate::RunContext::emit_draft).
///
/// ```
/// use serde_json::json;
/// use stillframe::events::{EventDraft, EventType};
///
/// let draft = EventDraft::new(EventType::TOKEN_USAGE_UPDATED, json!({ "input_tokens": 1200 }))
///     .provider("anthropic")
///     .correlation_id("request-17");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EventDraft {
    /// What happened.
    pub event_type: EventType,
    /// What there is to say about it. Up to 64 KiB of JSON are kept in the log; more is kept as an
    /// artifact, and 16 MiB are the limit.
    pub data: Value,
    /// The id; the same draft with the same id is written once, however often it is sent. (Not if
    /// other [secret rules](crate::EngineOptions::secret_rules) take something out of it in
    /// between: that is a `Conflict`.) Default: a random one.
    pub id: Option<EventId>,
    /// A run of the session that it belongs to. An adapter's events belong to its run. Default:
    /// none.
    pub run_id: Option<RunId>,
    /// Who serves what it is about, such as the provider of a model: 1 to 200 bytes. Default: none.
    pub provider: Option<String>,
    /// What the host finds it by in records of its own or of others: 1 to 200 bytes. Default: none.
    pub correlation_id: Option<String>,
    /// Whatever else the host keeps with it, at most 64 KiB of JSON. Default: empty.
    pub metadata: Map<String, Value>,
}

impl EventDraft {
    /// An event of this type.
    pub fn new(event_type: EventType, data: Value) -> Self {
        Self {
            event_type,
            data,
            id: None,
            run_id: None,
            provider: None,
            correlation_id: None,
            metadata: Map::new(),
        }
    }

    /// Sets [`EventDraft::id`].
    pub fn id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets [`EventDraft::run_id`].
    pub fn run(mut self, id: RunId) -> Self {
        self.run_id = Some(id);
        self
    }

    /// Sets [`EventDraft::provider`].
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// Sets [`EventDraft::correlation_id`].
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Sets [`EventDraft::metadata`].
    pub fn metadata(mut self, metadata: Map<String, Value>) -> Self {
        self.metadata = metadata;
        self
    }
}
