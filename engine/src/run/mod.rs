//! A run from its acceptance to its end, whoever brings that about.
//!
//! It knows `step`, `process`, `workspace` and what is below them. It does not know sessions but by their actor.

pub(crate) mod answering;
pub(crate) mod artifact;
pub(crate) mod closing;
pub(crate) mod execute;
pub(crate) mod heartbeat;
pub(crate) mod lock;
pub(crate) mod resume;
