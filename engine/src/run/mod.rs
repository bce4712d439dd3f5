//! A run from its acceptance to its end, whoever brings that about.
//!
//! It knows `step`, `process`, `workspace` and what is below them. It does not know sessions but by
//! their actor.

pub(crate) mod artifact;
pub(crate) mod cancel;
pub(crate) mod closing;
pub(crate) mod end;
pub(crate) mod execute;
pub(crate) mod heartbeat;
pub(crate) mod lock;
pub(crate) mod owner;
mod patch;
pub(crate) mod recorded;
pub(crate) mod settle;
pub(crate) mod stored;
