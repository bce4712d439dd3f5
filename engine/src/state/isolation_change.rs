//! What is written of runs that work in a worktree of their own.

use jiff::Timestamp;
use stillframe_backends::{CommitIntent, RelPath};

use crate::id::RunId;
use crate::records::isolation::Candidate;
use crate::records::merge::MergeRow;
use crate::records::revision::RevisionRow;
use crate::records::run_row::RunWorkspace;

/// One thing to be written of a run with a worktree of its own.
#[derive(Clone, Debug)]
pub(crate) enum IsolationChange {
    /// The worktree is there whole, and this is the run's workspace; only where it was not.
    Made {
        run_id: RunId,
        workspace: Box<RunWorkspace>,
        at: Timestamp,
    },
    /// The work has ended, and this commit is about to be made; `None`: there is nothing to commit.
    Commit {
        run_id: RunId,
        intent: Option<Box<CommitIntent>>,
        out_of_scope: Vec<RelPath>,
        unconverted: Vec<RelPath>,
    },
    /// What is handed in for review, in the place of the intent.
    HandIn {
        run_id: RunId,
        candidate: Box<Candidate>,
    },
    /// Who has decided, if somebody says so.
    Decided {
        run_id: RunId,
        reviewed_by: Option<String>,
    },
    /// What was approved, and how far that is.
    Merge { run_id: RunId, merge: Box<MergeRow> },
    /// Something is to be changed.
    Revise(Box<RevisionRow>),
    /// Worktree and branch are let go of; only where they were not.
    LetGo { run_id: RunId, at: Timestamp },
}
