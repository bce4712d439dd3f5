//! The records of runs that work in a worktree of their own. Each type here is also a JSON
//! document.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{RelPath, SnapshotId};

use crate::id::{ReviewRequestId, RunId, SessionId};
use crate::records::isolation::IsolationRow;
use crate::records::merge::MergeOutcome;
use crate::records::repositories::path;
use crate::records::revision::{Revision, RevisionRow};
use crate::records::run::RunStatus;
use crate::records::run_row::RunRow;

/// Where a run works that has a worktree of its own, and what it has handed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct IsolationRecord {
    /// The checkout, or the bare repository, that the run came from.
    #[serde(with = "path")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub repository_path: PathBuf,
    /// The full name of the branch that the run's is cut from.
    pub originating_branch: String,
    /// The commit that it is cut from, by its full id.
    pub base: String,
    /// The directory in which the run works.
    #[serde(with = "path")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub worktree_path: PathBuf,
    /// The full name of the run's branch.
    pub worktree_branch: String,
    /// Changed paths that are not in the scope of the run, sorted: they are not committed, and are
    /// in the worktree.
    pub out_of_scope: Vec<RelPath>,
    /// Changed paths that are committed as the branch had them, because converting them takes a
    /// program; sorted. In the worktree they are as the run left them.
    pub unconverted_paths: Vec<RelPath>,
    /// Names the request for a review; `None`, as the next three: nothing was handed in yet.
    pub request_id: Option<ReviewRequestId>,
    /// The commit that was handed in, by its full id: the tip of the run's branch.
    pub commit: Option<String>,
    /// The full id of its tree.
    pub tree: Option<String>,
    /// The key of the artifact that has the patch from the base to the commit.
    pub diff: Option<String>,
    /// When it could be reviewed.
    pub review_ready_at: Option<Timestamp>,
    /// Whose decision it was, in the host's words.
    pub reviewed_by: Option<String>,
    /// What came of the last approval; `None`: there was none, or it is being merged.
    pub merge: Option<MergeOutcome>,
    /// When worktree and branch were let go of; `None`: they are kept.
    pub let_go_at: Option<Timestamp>,
}

/// A run that works in a worktree of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct IsolatedRun {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Where it stands.
    pub status: RunStatus,
    /// What it is for, in the host's words.
    pub input: String,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// Where it works, and what it has handed in.
    #[serde(flatten)]
    pub isolation: IsolationRecord,
    /// What was to be changed in what it had handed in before, in order.
    pub revisions: Vec<Revision>,
}

/// A worktree that was let go of, with the branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DiscardedWorktree {
    /// The run that had it.
    #[serde(flatten)]
    pub run: IsolatedRun,
    /// Where the branch was, by its full id; `None`: there was none, or it was let go of before.
    pub branch_was_at: Option<String>,
    /// What was in the worktree; `None`: there was none, or it was let go of before.
    pub snapshot_id: Option<SnapshotId>,
}

impl From<IsolationRow> for IsolationRecord {
    fn from(row: IsolationRow) -> Self {
        let (request_id, commit, ready_at) = match &row.candidate {
            Some(of) => (
                Some(of.request_id.clone()),
                Some(of.commit.clone()),
                Some(of.ready_at),
            ),
            None => (None, None, None),
        };
        let (tree, diff) = match row.candidate {
            Some(of) => (of.tree, of.diff),
            None => (None, None),
        };
        Self {
            repository_path: row.repository_path,
            originating_branch: row.originating_branch,
            base: row.base,
            worktree_path: row.worktree_path,
            worktree_branch: row.worktree_branch,
            out_of_scope: row.out_of_scope,
            unconverted_paths: row.unconverted,
            request_id,
            commit,
            tree,
            diff,
            review_ready_at: ready_at,
            reviewed_by: row.reviewed_by,
            merge: row.merge.and_then(|merge| merge.outcome),
            let_go_at: row.let_go_at,
        }
    }
}

impl IsolatedRun {
    /// The record of a run with the row of its worktree, and what was to be changed.
    pub(crate) fn of(run: RunRow, row: IsolationRow, revisions: Vec<RevisionRow>) -> Self {
        Self {
            run_id: run.id,
            session_id: run.session_id,
            status: run.status,
            input: run.input,
            created_at: run.created_at,
            isolation: row.into(),
            revisions: revisions.into_iter().map(|row| row.revision).collect(),
        }
    }
}
