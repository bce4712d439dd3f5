//! Restoring.
//!
//! `plan.rs` decides, over values; `goal.rs` asks the backend for what it decides by;
//! `procedure.rs` carries it out, in the one order that both backends share; `restorable.rs` is
//! what it needs from a backend. Options and outcome are the port's (`backend.rs`), goals, plans
//! and errors the model's.

pub use crate::plan_id::PlanId;
pub use crate::repository_changes::{DroppedStash, IndexChange, RefChange, RepositoryChanges};
pub use crate::restore_goal::RestoreGoal;
pub use crate::restore_plan::{
    Conflict, ConflictRegion, LostAttributes, ModeChange, Removal, RestorePlan, SkipReason,
    Skipped, Write,
};

mod copy;
mod damaged_journal;
mod evidence;
mod goal;
mod merge;
#[cfg(test)]
pub(crate) mod naive;
mod plan;
mod procedure;
mod restorable;
mod sorted;
mod view;

pub(crate) use copy::copy;
pub use copy::{CopyOptions, CopyOutcome};
pub(crate) use merge::{MAX_FILE_BYTES as MAX_MERGED_FILE_BYTES, TextMerge, merge_texts};
pub(crate) use plan::{Node, View};
pub(crate) use procedure::{check_place, plan_only, recover, restore};
pub(crate) use restorable::{Captured, Publish, Restorable, Side, check_content_kept};
