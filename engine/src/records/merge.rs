//! What becomes of what a run has handed in once it is approved. [`MergeOutcome`] and what it has are
//! JSON documents too.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::RelPath;

/// What came of an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum MergeOutcome {
    /// The originating branch has it.
    Merged(MergedRun),
    /// Something is in the way. Nothing moved, and the run waits for a decision as before.
    Blocked {
        /// What, and what can be done about it.
        reason: String,
    },
    /// It conflicts with what others have done. Nothing moved, and that is final: worktree and
    /// branch of the run stay.
    Conflict {
        /// The first fifty of the paths at which, from the top of the work tree, sorted.
        files: Vec<RelPath>,
        /// How many more there are.
        more: u64,
    },
}

/// How the originating branch has got it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct MergedRun {
    /// The commit that was approved, by its full id.
    pub commit: String,
    /// What moved.
    pub mode: MergeMode,
    /// Where the branch was, by its full id.
    pub previous_head: String,
    /// Where it is: at the commit, or at a merge of that with what was there.
    pub new_head: String,
    /// Whether no merge was needed.
    pub fast_forward: bool,
    /// Whether others had moved the branch since the run was cut from it.
    pub target_advanced: bool,
    /// The work trees that have the branch checked out, and the files from before.
    #[serde(default)]
    pub left_behind: Vec<String>,
    /// Paths of the checkout that somebody changed in that moment, and that stayed as they are: git
    /// shows there what was merged as taken back.
    #[serde(default)]
    pub kept: Vec<RelPath>,
}

/// What a merge moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MergeMode {
    /// The branch alone.
    RefOnly,
    /// The branch goes on to the commit, and the files of its checkout come along.
    FastForwardFiles,
    /// The branch goes on to a merge, and the files of its checkout come along.
    MergedFiles,
}

impl MergeOutcome {
    /// In a word: `merged:COMMIT`, `blocked:REASON` or `conflict:REASON`.
    pub fn text(&self) -> String {
        match self {
            Self::Merged(merged) => format!("merged:{}", merged.new_head),
            Self::Blocked { reason } => format!("blocked:{reason}"),
            Self::Conflict { files, more } => {
                format!("conflict:{} paths", files.len() as u64 + more)
            }
        }
    }
}

impl MergeMode {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RefOnly => "ref-only",
            Self::FastForwardFiles => "fast-forward-files",
            Self::MergedFiles => "merged-files",
        }
    }
}

/// An approval on record, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MergeRow {
    /// When it was given. The merge has this time, so that it is the same one made again.
    pub(crate) approved_at: Timestamp,
    pub(crate) ref_only: bool,
    pub(crate) require_current_base: bool,
    /// What is about to be done, as long as nobody knows whether it was.
    pub(crate) planned: Option<MergedRun>,
    /// What came of it; `None`: that is not known yet.
    pub(crate) outcome: Option<MergeOutcome>,
}
