//! Commits in the user's repository: the request, the intent and the result.
//!
//! A commit is first an intent: a value that determines every byte of the commit. Carrying the
//! intent out always gives the same commit, whichever process does it and however often. So a crash
//! between two steps leaves no doubt about what to do.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::ErrorKind;
use crate::path::RelPath;

/// What a commit should be made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CommitRequest {
    /// What it says: a subject, and whatever follows it.
    pub message: String,
    /// Lines `Key: value` that end the message. Default: none.
    pub trailers: Vec<(String, String)>,
    /// Who wrote it. Default: the repository's user, as `user.name` and `user.email` have it.
    pub author: Option<Signature>,
    /// When, to the second, in UTC.
    pub at: Timestamp,
    /// Only what differs at these paths, and below them; empty: everything that differs.
    pub paths: Vec<RelPath>,
}

impl CommitRequest {
    /// A commit of everything that differs.
    pub fn new(message: impl Into<String>, at: Timestamp) -> Self {
        Self {
            message: message.into(),
            trailers: Vec::new(),
            author: None,
            at,
            paths: Vec::new(),
        }
    }

    /// Adds a line to the end of the message.
    pub fn trailer(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.trailers.push((key.into(), value.into()));
        self
    }

    stillframe_model::setters! {
        author: Signature,
        paths: Vec<RelPath>,
    }
}

/// Who wrote a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Signature {
    /// A name, as `user.name`.
    pub name: String,
    /// An address, as `user.email`.
    pub email: String,
}

impl Signature {
    /// This one.
    pub fn new(name: impl Into<String>, email: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            email: email.into(),
        }
    }
}

/// A commit that is going to be made: every byte of it, and where it goes. Its objects but for the
/// commit itself are durable in the user's repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommitIntent {
    /// The ref that moves to it: a branch, or `HEAD` where that is detached.
    pub reference: String,
    /// Where the ref is, and the parent of the commit; `None`: the branch has no commit.
    pub parent: Option<String>,
    /// The tree of the repository.
    pub tree: String,
    /// The whole message, trailers included.
    pub message: String,
    /// Author and committer.
    pub signature: Signature,
    /// Seconds since 1970, of author and committer, in UTC.
    pub time: i64,
    /// The id that follows from all that.
    pub commit: String,
    /// A digest of what the index staged when this was prepared; `None`: there was no index. While
    /// it stages that, all of its entries at paths that the commit changes become the commit's;
    /// later, only those that still are as in the parent, so that nothing that somebody staged
    /// since is lost.
    pub index: Option<String>,
    /// Only what differs at these paths, and below them, is committed; empty: everything.
    pub paths: Vec<RelPath>,
}

/// What a run is about to hand in: see
/// [`Repository::prepare_candidate`](crate::Repository::prepare_candidate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreparedCandidate {
    /// The commit; `None`: there is nothing to commit.
    pub intent: Option<CommitIntent>,
    /// The branch that is checked out, by its full name; `None`: HEAD is detached.
    pub branch: Option<String>,
    /// Changed paths that are not in the scope, from the top of the work tree, sorted.
    pub out_of_scope: Vec<RelPath>,
    /// Changed paths within the scope that stay as HEAD has them, because converting them takes a
    /// program; sorted.
    pub unconverted: Vec<RelPath>,
}

/// What came of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The ref is at the commit, or was and has gone on from there.
    InPlace {
        /// The commit; another id than that of the intent where somebody made the same commit
        /// again, with the same parent, tree and trailers.
        commit: String,
        /// Whether it was there already.
        is_adopted: bool,
    },
    /// The ref is elsewhere, and was left there.
    RefMoved {
        /// Which one.
        reference: String,
        /// Where it should be; `None`: it should not exist.
        expected: Option<String>,
        /// Where it is; `None`: it does not exist.
        found: Option<String>,
    },
    /// It was only to be looked for, and the ref is where it was before it.
    NotMade,
}

/// What a repository says of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommitInfo {
    /// Its full id.
    pub commit: String,
    /// The full id of its tree.
    pub tree: String,
    /// Its first parent; `None`: it has none.
    pub parent: Option<String>,
    /// Its whole message, what is not UTF-8 replaced.
    pub message: String,
    /// Its author.
    pub author: Signature,
    /// How many files differ from its first parent.
    pub files_changed: u64,
    /// How many lines were added, of files that are text.
    pub insertions: u64,
    /// How many lines were removed, of files that are text.
    pub deletions: u64,
}

/// Why no commit was made. The ref is where it was, but for [`CommitError::Incomplete`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// What was asked for cannot be right.
    #[error("{0}; nothing was committed")]
    InvalidOptions(String),
    /// The backend, or the state of the repository, allows none.
    #[error("{0}; nothing was committed")]
    Unsupported(String),
    /// The repository is in the middle of something, or somebody changed it meanwhile.
    #[error("{0}; nothing was committed")]
    Conflict(String),
    /// There is no such commit.
    #[error("there is no commit {0}")]
    NotFound(String),
    /// The ref is at the commit, and the index does not have it yet, or the name on disk may not
    /// survive a power cut. The intent can be applied again, and that finishes it.
    #[error("commit {commit} was made, and what follows from it was not all done; apply it again")]
    Incomplete {
        /// The commit.
        commit: String,
        /// What a caller can do about it.
        kind: ErrorKind,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The repository or the store could not be read or written, or asked to stop.
    #[error("{context}; nothing was committed")]
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

impl CommitError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidOptions(_) => ErrorKind::InvalidOptions,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Incomplete { kind, .. } | Self::Failed { kind, .. } => *kind,
        }
    }
}
