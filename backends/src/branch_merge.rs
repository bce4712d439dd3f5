//! Merging two commits without a checkout, and moving a branch.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::commit::CommitRequest;
use crate::path::RelPath;

/// What is to be merged.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BranchMerge {
    /// The full id of the commit that is merged into: the first parent.
    pub into: String,
    /// The full id of the commit that is merged: the second parent.
    pub from: String,
    /// What the merge says, and whose it is; its paths say nothing. It follows from that and the
    /// two commits, so that the same merge made again is the same commit.
    pub commit: CommitRequest,
}

impl BranchMerge {
    /// `from` into `into`.
    pub fn new(into: impl Into<String>, from: impl Into<String>, commit: CommitRequest) -> Self {
        Self {
            into: into.into(),
            from: from.into(),
            commit,
        }
    }
}

/// What comes of two commits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Merged {
    /// There is nothing to merge: all of it is in already.
    Contained,
    /// What is merged contains what it is merged into: the branch can go on to it.
    FastForward,
    /// A commit with both as parents. With all that it has it is durable in the user's repository,
    /// and no ref names it.
    Commit {
        /// Its full id.
        commit: String,
        /// The full id of its tree.
        tree: String,
    },
    /// A person has to decide. Nothing was made.
    Conflict {
        /// The first fifty of the paths at which, from the top of the work tree, sorted.
        files: Vec<RelPath>,
        /// How many more there are.
        more: u64,
    },
    /// They come from no common commit. Nothing was made.
    Unrelated,
}

/// Where a branch is to go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BranchMove {
    /// Its full name, such as `refs/heads/main`.
    pub branch: String,
    /// The full id of the commit at which it is expected.
    pub from: String,
    /// The full id of the commit to which it goes, which the repository has.
    pub to: String,
    /// What its reflog says of it: one line.
    pub message: String,
    /// When, in its reflog, to the second.
    pub at: Timestamp,
    /// Whether it goes also where a work tree uses it, where git then shows what came as taken
    /// back. Default: it does not.
    pub leaves_behind: bool,
}

impl BranchMove {
    /// `branch` goes on from one commit to another.
    pub fn new(
        branch: impl Into<String>,
        [from, to]: [&str; 2],
        message: impl Into<String>,
        at: Timestamp,
    ) -> Self {
        Self {
            branch: branch.into(),
            from: from.to_owned(),
            to: to.to_owned(),
            message: message.into(),
            at,
            leaves_behind: false,
        }
    }

    stillframe_model::setters! {
        leaves_behind: bool,
    }
}

/// A work tree in which a branch is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkout {
    /// Its directory, as the repository has it.
    pub directory: PathBuf,
    /// How it uses the branch.
    pub usage: CheckoutUsage,
}

impl Checkout {
    pub(crate) fn new(directory: PathBuf, usage: CheckoutUsage) -> Self {
        Self { directory, usage }
    }
}

/// How a work tree uses a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckoutUsage {
    /// HEAD names it.
    CheckedOut,
    /// HEAD names it or not, and an operation of git's, such as a rebase, goes back to it or moves it.
    InOperation,
    /// The work tree is not where the repository says, or the repository does not say where: why, as
    /// a clause. What is changed in it cannot be seen.
    Away(String),
}
