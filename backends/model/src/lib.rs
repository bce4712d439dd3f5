//! The values that Stillframe's crates share: paths, entries, snapshots, omissions and errors.
//!
//! This crate has only values and pure functions. Nothing here opens a file, reads the clock or
//! starts a thread. Hosts use the crate `stillframe`, which exports the parts of this crate that
//! they need.

pub mod contents;
pub mod coverage;
pub mod diff_error;
pub mod dot_git;
pub mod error;
pub mod error_kind;
pub mod exceeded;
pub mod file_system;
pub mod identity;
pub mod interrupted;
pub mod lock_error;
pub mod nested;
pub mod path;
pub mod plan_id;
pub mod problem;
pub mod progress;
pub mod read_error;
pub mod repository_changes;
pub mod restore_error;
pub mod restore_goal;
pub mod restore_plan;
pub mod retain;
#[cfg(feature = "schema")]
#[doc(hidden)]
pub mod schema;
pub mod search;
#[doc(hidden)]
pub mod setters;
pub mod size;
pub mod snapshot;
pub mod snapshot_error;
pub mod store_error;
pub mod tree;
