//! What a restore changes in the user's repository, and what it cannot change.

use serde::{Deserialize, Serialize};

use crate::error::ErrorKind;

/// What a restore changes in the user's repository, beside the worktree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RepositoryChanges {
    /// HEAD, if it comes to name another branch or commit, then branches, sorted by name.
    pub refs: Vec<RefChange>,
    /// The index, if it gets another content.
    pub index: Option<IndexChange>,
    /// Files and directories of git's operations (a merge, a rebase and the like) that are made,
    /// replaced or removed, below the git directory; sorted.
    pub operation: Vec<String>,
    /// What cannot be put back.
    pub problem: Option<RepositoryProblem>,
}

/// A ref that comes to name something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RefChange {
    /// `HEAD`, or the full name of a ref.
    pub name: String,
    /// What it named before: the id of an object in hexadecimal, or the full name of the ref that
    /// HEAD or another symbolic ref led to; `None`: it did not exist.
    pub before: Option<String>,
    /// What it names after that; `None`: it does not exist.
    pub after: Option<String>,
    /// For `refs/stash`: the stashes that are no longer listed, the oldest first, as far as is
    /// known. If only older stashes were dropped, `before` and `after` are the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<DroppedStash>,
}

impl RefChange {
    /// The ref of this name, and what it names before and after.
    pub fn new(name: &str, before: Option<String>, after: Option<String>) -> Self {
        Self {
            name: name.to_owned(),
            before,
            after,
            dropped: Vec::new(),
        }
    }
}

/// A stash that was taken off the list of stashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DroppedStash {
    /// The commit that has it, in hexadecimal.
    pub commit: String,
    /// What `git stash list` said of it; may be empty.
    pub message: String,
    /// Whether git no longer has the commit, so that the stash cannot be restored.
    #[serde(rename = "gone", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gone: bool,
}

impl DroppedStash {
    /// The stash that `commit` has, and what was said of it.
    pub fn new(commit: String, message: String) -> Self {
        Self {
            commit,
            message,
            is_gone: false,
        }
    }
}

/// An index that gets another content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct IndexChange {
    /// Stands for what it stages now, whatever stat data it holds: a digest in hexadecimal; `None`:
    /// there is no index.
    pub from: Option<String>,
    /// Stands for the bytes that it gets: a digest in hexadecimal; `None`: it is removed.
    pub to: Option<String>,
}

impl IndexChange {
    /// By the digests of what it stages now, and of the bytes that it gets.
    pub fn new(from: Option<String>, to: Option<String>) -> Self {
        Self { from, to }
    }
}

impl RepositoryChanges {
    /// With all that there is to it.
    pub fn new(
        refs: Vec<RefChange>,
        index: Option<IndexChange>,
        operation: Vec<String>,
        problem: Option<RepositoryProblem>,
    ) -> Self {
        Self {
            refs,
            index,
            operation,
            problem,
        }
    }

    /// Whether nothing is changed, and nothing is in the way of that.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether something is changed.
    pub fn changes_something(&self) -> bool {
        !self.refs.is_empty() || self.index.is_some() || !self.operation.is_empty()
    }
}

/// A part of the user's repository that a restore did not restore, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RepositoryProblem {
    /// The kind of the cause. If there are several causes: the first that a person can do something
    /// about.
    pub kind: ErrorKind,
    /// In words, one line.
    pub message: String,
}

impl RepositoryProblem {
    /// A problem of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// All of them as one; `None` if there are none. Nobody can do anything about
    /// [`ErrorKind::Unsupported`], so any other kind comes before it.
    pub fn of_all(problems: &[Self]) -> Option<Self> {
        let messages: Vec<&str> = problems.iter().map(|p| p.message.as_str()).collect();
        let mut kinds = problems.iter().map(|p| p.kind);
        let first = kinds.clone().next()?;
        let kind = kinds.find(|kind| *kind != ErrorKind::Unsupported);
        Some(Self::new(kind.unwrap_or(first), messages.join("; ")))
    }
}
