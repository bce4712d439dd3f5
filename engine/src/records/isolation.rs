//! The rows of runs that work in a worktree of their own. Values.

use std::path::PathBuf;

use jiff::Timestamp;
use stillframe_backends::{CommitIntent, RelPath};

use crate::id::{ReviewRequestId, RunId};
use crate::records::merge::MergeRow;

/// Where a run works that has a worktree of its own, and what it has come to, as it is kept.
///
/// It has names and ids. The content is git's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IsolationRow {
    pub(crate) run_id: RunId,
    /// The checkout, or the bare repository, that the run came from.
    pub(crate) repository_path: PathBuf,
    /// The full name of the branch that the run's is cut from.
    pub(crate) originating_branch: String,
    /// The commit that it is cut from: the tip of that branch then.
    pub(crate) base: String,
    pub(crate) worktree_path: PathBuf,
    /// The full name.
    pub(crate) worktree_branch: String,
    /// When the worktree was there whole, and the work could begin.
    pub(crate) made_at: Option<Timestamp>,
    /// The commit that is about to be made, as long as that is so.
    pub(crate) intent: Option<CommitIntent>,
    /// Changed paths that are not in the scope, sorted: they stay in the worktree.
    pub(crate) out_of_scope: Vec<RelPath>,
    /// Changed paths that are committed as HEAD has them, because converting them takes a program,
    /// sorted.
    pub(crate) unconverted: Vec<RelPath>,
    /// What is under review, or was.
    pub(crate) candidate: Option<Candidate>,
    /// Whose decision it was, in the host's words.
    pub(crate) reviewed_by: Option<String>,
    /// What was approved, and what came of it.
    pub(crate) merge: Option<MergeRow>,
    /// When worktree and branch were let go of.
    pub(crate) let_go_at: Option<Timestamp>,
}

impl IsolationRow {
    /// Whether changes are in the worktree that no commit has.
    pub(crate) fn leaves_something(&self) -> bool {
        !self.out_of_scope.is_empty() || !self.unconverted.is_empty()
    }
}

/// What a run hands in for review: what a decision about it is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Names this request among all.
    pub(crate) request_id: ReviewRequestId,
    /// The commit at the tip of the run's branch, by its full id.
    pub(crate) commit: String,
    /// Its tree; `None`: nobody could say.
    pub(crate) tree: Option<String>,
    /// The key of the artifact with the patch from the base to the commit; `None`: they could not
    /// be compared.
    pub(crate) diff: Option<String>,
    /// When it could be reviewed.
    pub(crate) ready_at: Timestamp,
}
