//! The events that a host can subscribe to, their data, and waking subscribers when an event is
//! written.
//!
//! It uses only ids and failures.

#[cfg_attr(
    not(test),
    allow(
        dead_code,
        reason = "no work leaves the machine: its tests and its schemas alone have them"
    )
)]
pub(crate) mod branch_data;
pub(crate) mod data;
pub(crate) mod draft;
pub(crate) mod event;
pub(crate) mod floor;
pub(crate) mod isolation_data;
pub(crate) mod notifier;
pub(crate) mod query;

pub use draft::EventDraft;
pub use event::{EVENT_SCHEMA_VERSION, EventSource, EventType, InvalidEventType};
pub use floor::PositionsForgotten;
pub use query::EventQuery;
