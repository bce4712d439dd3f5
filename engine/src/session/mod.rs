//! What a host does in a session: runs, captures, comparisons, restores and undos.
//!
//! It uses `run`, `workspace` and the folders below them.

pub(crate) mod copy;
pub(crate) mod details;
pub(crate) mod handle;
pub(crate) mod manager;
pub(crate) mod stream;
pub(crate) mod undo;
