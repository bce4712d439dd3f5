//! What a host may watch: the events, what they say, and who is woken when one is written.
//!
//! It knows ids and failures alone.

pub(crate) mod data;
pub(crate) mod event;
pub(crate) mod notifier;

pub use event::{EVENT_SCHEMA_VERSION, EventQuery, EventType};
