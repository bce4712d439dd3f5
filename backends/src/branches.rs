//! Branches of the user's repository: where they are, and how a workspace comes to one.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::branch_merge::{BranchMerge, BranchMove, Checkout, Merged};
use crate::checkpoint::{CheckpointError, Reaches};
use crate::commit::{CommitError, Signature};
use crate::error::ErrorKind;
use crate::operation::Operation;
use crate::owner::Owner;
use crate::path::RelPath;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::workspace::{LockedWorkspace, Workspace};

/// What a backend can do with branches of the repository. The git backend implements it.
///
/// A branch has its full name, such as `refs/heads/main`, and a commit its full id.
pub trait Branches: Send + Sync {
    /// The commit that a branch names; `None`: there is no such branch.
    fn tip(&self, workspace: &Workspace, branch: &str) -> Result<Option<String>, BranchError>;

    /// The commit that somebody names: a full id, `HEAD`, a branch, or a tag that is no object of
    /// its own, as git finds these by short names. `NotFound`: nothing in the repository has that
    /// name.
    fn commit_named(
        &self,
        op: &Operation,
        workspace: &Workspace,
        name: &str,
    ) -> Result<String, BranchError>;

    /// Whether the store or the user's repository has a commit.
    fn has(&self, op: &Operation, workspace: &Workspace, commit: &str)
    -> Result<bool, BranchError>;

    /// The directories with the objects of the user's repository, its alternates included.
    fn object_directories(&self, workspace: &Workspace) -> Result<Vec<PathBuf>, BranchError>;

    /// What the newest commit says of the first of two trailers that has both, of the first
    /// thousand that `tip` reaches by first parents and none of `beyond` does. Commits are read in
    /// the store and in the user's repository; what is nowhere of `beyond` reaches nothing.
    fn newest_trailer(
        &self,
        op: &Operation,
        workspace: &Workspace,
        tip: &str,
        beyond: &[String],
        trailers: (&str, &str),
    ) -> Result<Trailer, BranchError>;

    /// Whether two commits come from one by first parents.
    fn have_one_base(
        &self,
        op: &Operation,
        workspace: &Workspace,
        one: &str,
        other: &str,
    ) -> Result<Reaches, BranchError>;

    /// Who made a commit of the user's repository, and when.
    fn made_by(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
    ) -> Result<(Signature, Timestamp), BranchError>;

    /// Decides how the workspace comes to a branch, and gives the repository the objects that it
    /// lacks for it. What the branch has otherwise than HEAD comes to the files and to the index,
    /// with line ends and `$Id$` as git writes them; what else was changed here stays, staged or
    /// not.
    ///
    /// `captured` is what is in the workspace, taken with
    /// [`SnapshotOptions::branches`](crate::SnapshotOptions) that name the branch. The answer is
    /// the state that the workspace is to have, as a snapshot in the store: a restore with
    /// [`RepositoryRestore::Switch`](crate::RepositoryRestore) brings it there. Until then nothing
    /// that anybody sees has changed.
    ///
    /// [`BranchError::InTheWay`]: somebody's change would be lost, or an operation of git's is in
    /// progress, or another work tree has the branch checked out.
    fn prepare_switch(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        captured: &SnapshotId,
        request: &SwitchRequest,
    ) -> Result<Switch, BranchError>;

    /// Merges two commits of the user's repository as git merges them, without a checkout
    /// (docs/merging.md says where the answer is another). No ref moves.
    ///
    /// No driver, hook or filter runs, and nothing is signed.
    fn merge(
        &self,
        op: &Operation,
        workspace: &Workspace,
        request: &BranchMerge,
    ) -> Result<Merged, BranchError>;

    /// The work trees of the repository in which a branch is in use, the main one first. What is in
    /// the middle of a rebase or a bisection counts, as for `git branch -D`.
    fn checkouts(
        &self,
        op: &Operation,
        workspace: &Workspace,
        branch: &str,
    ) -> Result<Vec<Checkout>, BranchError>;

    /// Moves a branch by compare-and-swap, with a line in its reflog. May be repeated, also after a
    /// crash: a branch that is there stays. Answers with the work trees in which it is in use, where
    /// git shows what came as taken back: none, unless it was allowed or it came into use meanwhile.
    ///
    /// [`BranchError::InTheWay`]: it is in use, and nothing was moved. [`BranchError::Moved`]: it is
    /// neither where it was expected nor where it is to be.
    fn move_branch(
        &self,
        op: &Operation,
        workspace: &Workspace,
        request: &BranchMove,
    ) -> Result<Vec<Checkout>, BranchError>;
}

/// What a commit says of a trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trailer {
    /// No commit has it.
    Nowhere,
    /// Its value; the last one, if a commit has several.
    Value(String),
    /// A commit is not here, or cannot be read.
    Unknown,
}

/// A branch that a workspace is to come to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SwitchRequest {
    /// The full name of the branch. It is made where there is none. `None`: the files alone come to
    /// what the commit has, and HEAD, branch and index stay as they are.
    pub branch: Option<String>,
    /// Where it is expected to be; `None`: nowhere. Default: nowhere.
    pub from: Option<String>,
    /// Where it is to be; `None`: without a commit, as in a repository that has none yet.
    pub to: Option<String>,
    /// A commit that has what was saved from this workspace, and that `to` reaches unless the files
    /// alone come: what is here as it has it is no change of somebody's, and what was changed here
    /// since is in the way only where `to` has something else. Default: none.
    pub saved: Option<String>,
    /// Whether a file that takes a program or a table to write it, because a filter or an encoding
    /// applies to it, is written as it is stored. Default: it is refused, with all else.
    pub writes_unconverted: bool,
    /// Why changes that are in the workspace and not in HEAD may not come along, as a clause: where
    /// there are any, [`BranchError::InTheWay`]. Default: they may.
    pub refuse_changes: Option<String>,
    /// The id that the state gets as a snapshot.
    pub id: SnapshotId,
    /// Whose that is. Default: the session `manual`, no run.
    pub owner: Owner,
    /// The time that it records.
    pub at: Timestamp,
}

impl SwitchRequest {
    /// To `branch` at `to`.
    pub fn new(branch: impl Into<String>, to: Option<String>, at: Timestamp) -> Self {
        Self {
            branch: Some(branch.into()),
            from: None,
            to,
            saved: None,
            writes_unconverted: false,
            refuse_changes: None,
            id: SnapshotId::random(),
            owner: Owner::default(),
            at,
        }
    }

    /// To the files of `commit`, which has to go on from HEAD: what came to HEAD since would be
    /// taken back otherwise. [`BranchError::InTheWay`]: it does not.
    pub fn files_of(commit: String, at: Timestamp) -> Self {
        Self {
            branch: None,
            ..Self::new("", Some(commit), at)
        }
    }

    stillframe_model::setters! {
        owner: Owner,
        writes_unconverted: bool,
    }
}

/// How a workspace comes to a branch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Switch {
    /// The state that it is to have.
    pub to: Snapshot,
    /// The paths whose files change, relative to the workspace, sorted.
    pub paths: Vec<RelPath>,
    /// The paths, from the top of the work tree, at which something of somebody's stays though the
    /// branch has something else: the branch has not gone on there from what was saved.
    pub kept: Vec<RelPath>,
    /// The submodules of which the branch has another commit, from the top of the work tree,
    /// sorted. Their directories stay as they are, as with git.
    pub submodules: Vec<RelPath>,
    /// The paths, from the top of the work tree, that come as they are stored, though a filter or an
    /// encoding applies to them.
    pub unconverted: Vec<RelPath>,
    /// Whether all that is to come is there already.
    pub is_there: bool,
}

/// Why a workspace does not come to a branch, or what of branches is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BranchError {
    /// What was asked for cannot be right.
    #[error("{0}; nothing was moved")]
    InvalidOptions(String),
    /// Nothing has that name.
    #[error("{0}; nothing was moved")]
    NotFound(String),
    /// The backend, or the repository, allows it not.
    #[error("{0}; nothing was moved")]
    Unsupported(String),
    /// Something that would be lost, or an operation of git's, is in the way.
    #[error("{0}; nothing was moved")]
    InTheWay(String),
    /// The branch is not where it was expected.
    #[error("{branch} is {found} and not {expected}; nothing was moved")]
    Moved {
        /// Its full name.
        branch: String,
        /// Where it was expected.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// What the branch has is not all in the store or in the repository.
    #[error(
        "{object}, which {commit} has, is neither in the store nor in the repository; nothing was moved"
    )]
    Incomplete {
        /// The full id of what is missing.
        object: String,
        /// The full id of the branch's commit.
        commit: String,
    },
    /// The repository or the store could not be read or written, or asked to stop.
    #[error("{context}; nothing was moved")]
    Failed {
        /// What was being done, and to what.
        context: String,
        /// What a caller can do about it.
        kind: ErrorKind,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl BranchError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidOptions(_) => ErrorKind::InvalidOptions,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::InTheWay(_) => ErrorKind::Conflict,
            Self::Moved { .. } => ErrorKind::HeadMoved,
            Self::Incomplete { .. } => ErrorKind::Corrupt,
            Self::Failed { kind, .. } => *kind,
        }
    }
}

/// Of deciding what a commit would have.
impl From<CommitError> for BranchError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::InvalidOptions(what) => Self::InvalidOptions(what),
            CommitError::Unsupported(what) => Self::Unsupported(what),
            CommitError::Conflict(what) => Self::InTheWay(what),
            CommitError::NotFound(commit) => {
                Self::NotFound(format!("the commit {commit} is not in the repository"))
            }
            CommitError::Incomplete { kind, source, .. } => Self::Failed {
                context: "the repository could not be read".to_owned(),
                kind,
                source,
            },
            CommitError::Failed {
                context,
                kind,
                source,
            } => Self::Failed {
                context,
                kind,
                source,
            },
        }
    }
}

/// Of looking through history.
impl From<CheckpointError> for BranchError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::InvalidOptions(what) => Self::InvalidOptions(what),
            CheckpointError::Unsupported(what) => Self::Unsupported(what),
            CheckpointError::Conflict(what) => Self::InTheWay(what),
            error @ (CheckpointError::CommitMissing { .. }
            | CheckpointError::HistoryUnknown { .. }) => Self::Failed {
                context: "the history is not all here".to_owned(),
                kind: error.kind(),
                source: Box::new(error),
            },
            CheckpointError::Failed {
                context,
                kind,
                source,
            } => Self::Failed {
                context,
                kind,
                source,
            },
        }
    }
}
