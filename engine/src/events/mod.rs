//! What a host may watch: the events, and who is woken when one is written.
//!
//! It knows the ids alone.

pub(crate) mod doorbell;
pub(crate) mod event;
