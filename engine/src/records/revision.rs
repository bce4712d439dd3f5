//! Revisions of what runs hand in. [`Revision`] is a JSON document too.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::RunId;

/// A decision that something has to be changed in what a run has handed in. The run went on with it in
/// the same worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Revision {
    /// Counted from 1 for each run.
    pub number: u64,
    /// Whose decision it was, in the host's words.
    pub reviewer: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// What was to be changed, without control characters.
    pub comment: String,
    /// The full id of the tree that had been handed in.
    pub previous_tree: Option<String>,
}

/// A revision as it is kept. It is never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevisionRow {
    pub(crate) run_id: RunId,
    pub(crate) revision: Revision,
    /// What the reviewer wrote.
    pub(crate) raw_comment: String,
}
