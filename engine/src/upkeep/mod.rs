//! Upkeep of the state directory: clean-ups, retention, purges, checks, and recovery after a crash.
//!
//! It uses `run`, `workspace` and the folders below them. Only the engine calls it.

pub(crate) mod claims;
pub(crate) mod content;
pub(crate) mod gc;
pub(crate) mod purge;
pub(crate) mod recovery;
pub(crate) mod retention;
pub(crate) mod retention_rules;
pub(crate) mod trim;
pub(crate) mod trim_rules;
pub(crate) mod unregistered;
pub(crate) mod verify;

pub use crate::workspace::safety::SafetyRefs;
pub use gc::{GcOutcome, RemovalOutcome};
pub use purge::{PurgeOutcome, PurgePlan, PurgedSnapshot};
pub use retention::RetentionOutcome;
pub use trim::{LogTrimOutcome, LogTrimStopped};
pub use verify::{ArtifactVerdict, SnapshotVerdict, VerifyOutcome, verify_without_log};
