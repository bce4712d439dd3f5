//! Work on one workspace: open it, take turns, capture, compare, restore, and finish what a crash
//! interrupted.
//!
//! It knows `actors`, `state` and what is below them. It does not know of steps, runs and sessions
//! but by their records.

pub(crate) mod adoption;
pub(crate) mod backends;
pub(crate) mod cancellation;
pub(crate) mod capture;
pub(crate) mod compare;
pub(crate) mod effects;
pub(crate) mod finish;
pub(crate) mod holdings;
pub(crate) mod opened;
pub(crate) mod relearn;
pub(crate) mod restore;
pub(crate) mod restore_record;
pub(crate) mod safety;
pub(crate) mod turn;
