//! Work on one workspace: opening it, waiting for its lock, capturing, comparing, restoring, and
//! finishing what a crash interrupted.
//!
//! It uses `actors`, `state` and the folders below them. It knows only the records of steps, runs
//! and sessions.

pub(crate) mod adoption;
pub(crate) mod backends;
pub(crate) mod cancellation;
pub(crate) mod capture;
pub(crate) mod compare;
pub(crate) mod effects;
pub(crate) mod finish;
pub(crate) mod holdings;
pub(crate) mod lock_file;
pub(crate) mod opened;
pub(crate) mod relearn;
pub(crate) mod restore;
pub(crate) mod restore_record;
pub(crate) mod run_worktree;
pub(crate) mod safety;
mod size;
pub(crate) mod turn;
