//! The data of events about runs with a worktree of their own. Subscribers depend on the keys, so
//! no key is renamed; new keys may be added.

use serde::Serialize;
use stillframe_backends::{RelPath, SnapshotId};

use crate::id::ReviewRequestId;

/// `run_concluded`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RunConcluded<'a> {
    /// The commit that is about to be made; null: there is nothing to commit.
    pub(crate) commit: Option<&'a str>,
    /// Its parent.
    pub(crate) parent: Option<&'a str>,
    pub(crate) tree: Option<&'a str>,
    /// Changed paths that are not in the scope of the run, and stay in its worktree.
    pub(crate) out_of_scope: &'a [RelPath],
}

/// `run_no_changes_produced`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct NoChangesProduced {
    pub(crate) message: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `review_requested`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ReviewRequested<'a> {
    pub(crate) request_id: &'a ReviewRequestId,
    /// The full name of the run's branch.
    pub(crate) branch: &'a str,
    /// The commit that it was cut from.
    pub(crate) base: &'a str,
    /// Its tip.
    pub(crate) commit: &'a str,
    /// The tree of that; null: nobody could say.
    pub(crate) tree: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `review_approved`, `review_declined`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ReviewDecided<'a> {
    pub(crate) request_id: &'a ReviewRequestId,
    /// Whose decision it was; null: nobody has said.
    pub(crate) reviewer: Option<&'a str>,
}

/// `review_changes_requested`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ChangesRequested<'a> {
    /// The number of the revision, from 1 on.
    pub(crate) revision: u64,
    /// What is to be changed.
    pub(crate) comment: &'a str,
    /// Whose decision it was; null: nobody has said.
    pub(crate) reviewer: Option<&'a str>,
}

/// `revision_started`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RevisionStarted {
    pub(crate) revision: u64,
}

/// `merge_started`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct MergeStarted<'a> {
    pub(crate) tree: &'a str,
    /// The full name of the originating branch.
    pub(crate) branch: &'a str,
    /// Whether others have moved it since the run was cut from it.
    pub(crate) target_advanced: bool,
}

/// `merge_completed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct MergeCompleted<'a> {
    /// The commit that was approved.
    pub(crate) commit: &'a str,
    /// Where the branch was.
    pub(crate) previous_head: &'a str,
    /// Where it is.
    pub(crate) new_head: &'a str,
    /// `ref-only`, `fast-forward-files` or `merged-files`.
    pub(crate) mode: &'a str,
    pub(crate) fast_forward: bool,
    /// The work trees that have the branch checked out, and the files from before.
    pub(crate) left_behind: &'a [String],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}

/// `merge_conflicted`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct MergeConflicted<'a> {
    /// The first fifty, from the top of the work tree.
    pub(crate) conflicting_files: &'a [RelPath],
    /// How many more there are.
    pub(crate) more: u64,
}

/// `merge_blocked`, `merge_failed`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct MergeStopped<'a> {
    pub(crate) reason: &'a str,
}

/// `worktree_let_go`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct WorktreeLetGo<'a> {
    /// The full name of the run's branch.
    pub(crate) branch: &'a str,
    /// Where it was; null: there was none.
    pub(crate) commit: Option<&'a str>,
    /// What was in the worktree; null: there was none.
    pub(crate) snapshot_id: Option<&'a SnapshotId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
}
