//! Checkpoints: a task's work as commits in the private store, and the port that makes them.
//!
//! A checkpoint is a commit of what a snapshot captured. It is made and kept in the store, under
//! `refs/checkpoints/<task>/<seq>`, and can be sent from there by its id. The user's repository and
//! workspace stay as they are, and so nothing in them is in its way: a merge that is in progress, a
//! detached HEAD, an index with conflicts.

mod message;
pub(crate) mod secrets;

use std::ffi::OsString;
use std::path::PathBuf;

use jiff::Timestamp;

pub use self::message::{CheckpointKind, CheckpointMessage};
pub use self::secrets::{AllowedSecret, RevealedSecrets, SecretFinding, SecretPlace, SecretSearch};
use crate::borrow_mode::BorrowMode;
use crate::commit::{CommitError, Signature};
use crate::coverage::Omission;
use crate::error::ErrorKind;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::problem::Problem;
use crate::snapshot::SnapshotId;
use crate::workspace::{LockedWorkspace, Workspace};

/// What a backend can do with the checkpoints of tasks. The git backend implements it.
pub trait Checkpoints: Send + Sync {
    /// Makes a checkpoint of `snapshot`, and keeps it under the number that the request has.
    ///
    /// Its tree is that of HEAD, as the snapshot saw it, with the workspace replaced by what was
    /// captured, converted as `git add --all` converts without a program. What cannot be converted
    /// or was not captured stays as HEAD has it, and the outcome names it. Its parents are the
    /// task's last checkpoint that was sent and HEAD, or the one of them that contains the other;
    /// if its tree and history are those of its only parent, no commit is made, and that one is
    /// kept.
    ///
    /// On `Ok` it is durable, with all that it reaches and that the remote is not known to have.
    /// The same request gives the same commit, and may be repeated: it is kept once. On `Err`
    /// nothing is kept. Nothing outside of the store changes.
    fn make_checkpoint(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        snapshot: &SnapshotId,
        request: &CheckpointRequest,
    ) -> Result<CheckpointOutcome, CheckpointError>;

    /// Merges a checkpoint with what its branch has by now, and keeps what comes of it under the
    /// number that the request has. `None`: they conflict, or have no commit that both go on from,
    /// or one contains the other; then nothing is kept.
    ///
    /// What each side has changed since that commit is in it, renames included, and the same files
    /// conflict as in git; where several are the newest such commit they are merged first.
    /// `docs/merging.md` lists what git does otherwise. No program is run. The first parent is what the branch has, the second the checkpoint; who
    /// made the checkpoint made the merge, at the later time of both, so that the same two and the
    /// same message give the same commit.
    ///
    /// On `Ok` it is durable, with all that it reaches and that the remote is not known to have. On
    /// `Err` nothing is kept. Nothing outside of the store changes.
    fn merge_checkpoint(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        request: &MergeRequest,
    ) -> Result<Option<KeptCheckpoint>, CheckpointError>;

    /// Searches for secret values what sending a commit of the store would reveal: all that commits
    /// add which the remote is not known to have, in lines, names of files, messages and names of
    /// people, also what a later one of them takes away again. UTF-16 is read too.
    ///
    /// A value counts where its line comes: not where the same line was in the file before, or in a
    /// file that the commit renames. Reads the store, and the user's repository for what the refs
    /// of the remote reach.
    fn revealed_secrets(
        &self,
        op: &Operation,
        workspace: &Workspace,
        search: &SecretSearch,
    ) -> Result<RevealedSecrets, CheckpointError>;

    /// The bare repository that checkpoints are sent from, by their ids.
    fn sending_repository(&self, workspace: &Workspace) -> PathBuf;

    /// What the configuration of the user's repository says of the address of its remote `name`, as
    /// it stands there; `None`: it has no remote of that name. Where it names several, the first
    /// counts, as for a fetch.
    fn remote_address(
        &self,
        workspace: &Workspace,
        name: &str,
    ) -> Result<Option<RemoteAddress>, CheckpointError>;

    /// Whether `commit` is `ancestor`, or reaches it by parents, which are read in the store and in
    /// the user's repository. Both are full ids.
    fn reaches(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
        ancestor: &str,
    ) -> Result<Reaches, CheckpointError>;

    /// The checkpoints of `task` that the store keeps, by their numbers.
    fn kept_checkpoints(
        &self,
        op: &Operation,
        workspace: &Workspace,
        task: &str,
    ) -> Result<Vec<KeptCheckpoint>, CheckpointError>;

    /// Reads and hashes all that the checkpoints of all tasks need of the store; answers with what
    /// is missing or wrong.
    fn verify_checkpoints(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
    ) -> Result<Vec<Problem>, CheckpointError>;

    /// Lets go of checkpoints of `task` by their numbers. One that is not there is fine. The
    /// content goes with the next collection.
    fn forget_checkpoints(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        task: &str,
        numbers: &[u64],
    ) -> Result<(), CheckpointError>;
}

/// An address that a repository suggests. Nothing else that it says of a remote counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteAddress {
    /// The address, as it is written.
    pub text: OsString,
    /// The directory that a relative path is taken from.
    pub base: PathBuf,
}

impl RemoteAddress {
    /// An address that is written so; for implementations of [`Checkpoints`].
    pub fn new(text: OsString, base: PathBuf) -> Self {
        Self { text, base }
    }
}

/// Whether a commit reaches another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaches {
    /// It is that one, or goes on from it.
    Yes,
    /// All that it reaches was looked at.
    No,
    /// One of them is not here, or history ends before that can be told.
    Unknown,
}

/// What a checkpoint should be made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckpointRequest {
    /// The task that it is of: any text, the same for all checkpoints of the task.
    pub task: String,
    /// Which of the task's it is. A number names one request for ever: one that is asked for again,
    /// after a crash, is answered with what was made.
    pub number: u64,
    /// The whole message, as [`CheckpointMessage::whole`] gives it.
    pub message: String,
    /// Who makes it. Default: the repository's user, or else `Stillframe <stillframe@localhost>`.
    pub author: Option<Signature>,
    /// When, to the second, in UTC.
    pub at: Timestamp,
    /// The task's last checkpoint that was sent from this workspace, by its full id. Default: none
    /// was.
    pub sent: Option<String>,
    /// The full ids of commits that the remote is known to have, such as what its refs name. One
    /// that is not known here changes nothing. Default: none, so that the store has to have
    /// everything.
    pub on_remote: Vec<String>,
    /// How objects of the user's repository come into the store.
    pub borrow: BorrowMode,
}

impl CheckpointRequest {
    /// The checkpoint `number` of `task`.
    pub fn new(
        task: impl Into<String>,
        number: u64,
        message: impl Into<String>,
        at: Timestamp,
    ) -> Self {
        Self {
            task: task.into(),
            number,
            message: message.into(),
            author: None,
            at,
            sent: None,
            on_remote: Vec::new(),
            borrow: BorrowMode::default(),
        }
    }

    stillframe_model::setters! {
        author: Signature,
        sent: String,
        on_remote: Vec<String>,
        borrow: BorrowMode,
    }
}

/// What a checkpoint should be merged with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MergeRequest {
    /// The task that it is of.
    pub task: String,
    /// Which of the task's the merge is. It has to be free.
    pub number: u64,
    /// The whole message.
    pub message: String,
    /// The full id of the checkpoint.
    pub commit: String,
    /// The full id of the commit that the branch is at. The remote has it.
    pub tip: String,
    /// As [`CheckpointRequest::on_remote`].
    pub on_remote: Vec<String>,
    /// How objects of the user's repository come into the store.
    pub borrow: BorrowMode,
}

impl MergeRequest {
    /// The merge of `commit` with `tip`, as number `number` of `task`.
    pub fn new(
        task: impl Into<String>,
        number: u64,
        message: impl Into<String>,
        (commit, tip): (impl Into<String>, impl Into<String>),
    ) -> Self {
        Self {
            task: task.into(),
            number,
            message: message.into(),
            commit: commit.into(),
            tip: tip.into(),
            on_remote: Vec::new(),
            borrow: BorrowMode::default(),
        }
    }

    stillframe_model::setters! {
        on_remote: Vec<String>,
        borrow: BorrowMode,
    }
}

/// A checkpoint that the store keeps, and what it does not have of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointOutcome {
    /// What is to be sent; `None`: there is no commit at all, and nothing to commit.
    pub checkpoint: Option<KeptCheckpoint>,
    /// Whether it is a commit of its own: `false` if it is HEAD, or the last one that was sent.
    pub is_new: bool,
    /// The full ids of its parents, if it is a commit of its own.
    pub parents: Vec<String>,
    /// Changed files that stay as HEAD has them, because a filter or an encoding applies to them
    /// that takes a program; from the top of the work tree, sorted. The snapshot has their bytes.
    pub unconverted_paths: Vec<RelPath>,
    /// What the snapshot left out although HEAD has it, or for a reason that is no rule; relative
    /// to the workspace, sorted. HEAD's stays.
    pub left_out: Vec<Omission>,
    /// Submodules that are checked out at another commit than the one that is committed, and
    /// repositories that are no submodules, of which nothing is committed; from the top of the work
    /// tree, sorted. The snapshot has their files.
    pub submodules: Vec<RelPath>,
}

/// A checkpoint in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptCheckpoint {
    /// Which of the task's it is.
    pub number: u64,
    /// The full id of the commit.
    pub commit: String,
    /// The full name of the ref that keeps it, in the store.
    pub reference: String,
}

impl KeptCheckpoint {
    /// One that is kept so; for implementations of [`Checkpoints`].
    pub fn new(number: u64, commit: String, reference: String) -> Self {
        Self {
            number,
            commit,
            reference,
        }
    }
}

/// Why there is no checkpoint. The snapshot has the work, and nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// What was asked for cannot be right.
    #[error("{0}; no checkpoint was made")]
    InvalidOptions(String),
    /// The backend, or the repository, allows none.
    #[error("{0}; no checkpoint was made")]
    Unsupported(String),
    /// The number is that of another checkpoint, or the snapshot is of another repository.
    #[error("{0}; no checkpoint was made")]
    Conflict(String),
    /// A commit that its history should go on from is neither in the store nor in the repository.
    #[error(
        "the commit {commit} is neither in the store nor in the repository; no checkpoint was made"
    )]
    CommitMissing {
        /// Its full id.
        commit: String,
    },
    /// Whether one of two commits contains the other cannot be told, because history is cut off.
    #[error(
        "whether one of {one} and {other} contains the other cannot be told, because the history of \
         {cut_at} is not here; no checkpoint was made"
    )]
    HistoryUnknown {
        /// The task's last checkpoint that was sent.
        one: String,
        /// What HEAD names.
        other: String,
        /// A commit whose parents are not here.
        cut_at: String,
    },
    /// The repository or the store could not be read or written, or asked to stop.
    #[error("{context}; no checkpoint was made")]
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

impl CheckpointError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidOptions(_) => ErrorKind::InvalidOptions,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::CommitMissing { .. } => ErrorKind::NotFound,
            Self::HistoryUnknown { .. } => ErrorKind::Unsupported,
            Self::Failed { kind, .. } => *kind,
        }
    }
}

/// Of deciding what it has.
impl From<CommitError> for CheckpointError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::InvalidOptions(what) => Self::InvalidOptions(what),
            CommitError::Unsupported(what) => Self::Unsupported(what),
            CommitError::Conflict(what) => Self::Conflict(what),
            CommitError::NotFound(commit) => Self::CommitMissing { commit },
            CommitError::Incomplete { kind, source, .. } => Self::Failed {
                context: "the content could not be read".to_owned(),
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
