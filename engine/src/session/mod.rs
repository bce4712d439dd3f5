//! What a host does in a session: runs, captures, comparisons, restores and undos.
//!
//! It knows `run`, `workspace` and what is below them.

pub(crate) mod copy;
pub(crate) mod manager;
pub(crate) mod stream;
pub(crate) mod undo;
