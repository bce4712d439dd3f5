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

/// `review_declined`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ReviewDeclined<'a> {
    pub(crate) request_id: &'a ReviewRequestId,
    /// Whose decision it was; null: nobody has said.
    pub(crate) reviewer: Option<&'a str>,
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
