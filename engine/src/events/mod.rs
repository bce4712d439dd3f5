//! The events that a host can subscribe to, their data, and waking subscribers when an event is
//! written.
//!
//! It uses only ids and failures.

pub(crate) mod data;
pub(crate) mod draft;
pub(crate) mod event;
pub(crate) mod floor;
pub(crate) mod notifier;
pub(crate) mod query;

pub use draft::EventDraft;
pub use event::{EVENT_SCHEMA_VERSION, EventSource, EventType, InvalidEventType};
pub use floor::PositionsForgotten;
pub use query::EventQuery;
