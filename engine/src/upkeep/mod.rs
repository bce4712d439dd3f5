//! What keeps the state directory in order: clean-ups, retention, purges, checks, and recovery after a crash.
//!
//! It knows `run`, `workspace` and what is below them. Nothing but the engine calls it.

pub(crate) mod claims;
pub(crate) mod gc;
pub(crate) mod purge;
pub(crate) mod recovery;
pub(crate) mod retention;
pub(crate) mod retention_rules;
pub(crate) mod verify;
