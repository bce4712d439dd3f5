//! The work tree of a run: a branch and a directory that are the run's alone, in the user's
//! repository.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::error::ErrorKind;
use crate::git::refs::component;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot::SnapshotId;
use crate::workspace::{LockedWorkspace, StateDir, WORKTREES};

/// What a backend does for the work trees of runs. The git backend implements it.
///
/// A repository is named by a directory: one in a work tree of it, linked or not, or a bare one. A
/// branch has its full name, and a commit its full id. Whoever calls sees to it that one call at a
/// time is about a run's work tree; calls for several runs of one repository may go on at once.
///
/// No hook, filter or helper runs, and nothing uses the network. A lock of git's that somebody
/// holds is waited for a moment, and then [`ErrorKind::Busy`]; none is ever deleted.
pub trait RunWorktrees: Send + Sync {
    /// What a run in `repository` is cut from: the branch of this name, with or without
    /// `refs/heads/`; `None`: the one that is checked out there.
    ///
    /// [`RunWorktreeError::InvalidOptions`]: there is no repository, or no such branch, or it has
    /// no commit, or HEAD is detached. [`RunWorktreeError::Unsupported`]: the repository is in a
    /// format that is not handled (sha256, reftable). Nothing is written.
    fn origin(
        &self,
        op: &Operation,
        repository: &Path,
        branch: Option<&str>,
    ) -> Result<Origin, RunWorktreeError>;

    /// What there is of a run's work tree. Nothing is written, and nothing is taken on trust: the
    /// directory is the run's only if it and the repository name each other, and its HEAD the
    /// branch.
    fn look(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
    ) -> Result<RunWorktreeState, RunWorktreeError>;

    /// Sees to it that the work tree is there: the branch, its entry in the repository, and the
    /// directory with the files and the index of the branch's tip. May be repeated, also after a
    /// crash at any point, and then goes on with what is there; the directory appears last, and
    /// whole. What is there already stays as it is, with all that was done in it.
    ///
    /// `base` is the commit that the branch is made at where there is none; `None`: the run has
    /// worked, so that a branch that is gone is a conflict. A directory that is gone is made again
    /// from the branch, and what is left of its entry goes first.
    ///
    /// [`RunWorktreeError::Conflict`]: something that is not this run's has one of the places, and
    /// was not touched. On any error, what has been made is what the next call goes on with, or
    /// [`RunWorktrees::remove`] removes.
    fn ensure(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
        base: Option<&str>,
        at: Timestamp,
    ) -> Result<Ensured, RunWorktreeError>;

    /// Brings files along that no commit has, from `from`, a work tree, to the same places in the
    /// run's: each of `paths` with all below it. Where the file system can share their content, it
    /// does. A link comes as a link. What is there already stays.
    ///
    /// [`RunWorktreeError::InvalidOptions`]: the branch has a file at one of the paths or below it,
    /// or nothing is there. Nothing was brought then.
    fn bring(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
        from: &Path,
        paths: &[RelPath],
    ) -> Result<Brought, RunWorktreeError>;

    /// Lets go of it: first the directory, then the entry, then the branch, if it is at `tip`. May
    /// be repeated, also after a crash at any point. What is not there is passed over, and what is
    /// in its place and not the run's is [`RunWorktreeError::Conflict`], untouched.
    ///
    /// The directory goes to the trash of `guard`, which is a capture of it in the store of
    /// `workspace`, the run's own, and stays there for as long as the guard. `None`: there is no
    /// directory any more, and one that is there is a conflict.
    ///
    /// `tip` is where the branch is expected; anywhere else it stays, with
    /// [`RunWorktreeError::Moved`]. `None`: the branch stays.
    fn remove(
        &self,
        op: &Operation,
        worktree: &RunWorktree,
        guard: Option<(&mut LockedWorkspace, &SnapshotId)>,
        tip: Option<&str>,
    ) -> Result<Removed, RunWorktreeError>;
}

/// Which work tree it is: by what the run's row says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunWorktree {
    /// The repository: [`Origin::repository`].
    pub repository: PathBuf,
    /// The run's branch, such as `refs/heads/stillframe/run/run_0123`.
    pub branch: String,
    /// The run's directory, absolute.
    pub directory: PathBuf,
}

impl RunWorktree {
    /// That of the run of this id: the branch `stillframe/run/ID`, and the directory `worktrees/ID`
    /// below the state directory. What git does not take in the name of a branch is escaped, so
    /// that no two runs meet.
    pub fn of_run(repository: impl Into<PathBuf>, state: &StateDir, run_id: &str) -> Self {
        let name = component(run_id);
        Self {
            repository: repository.into(),
            branch: format!("refs/heads/stillframe/run/{name}"),
            directory: state.path().join(WORKTREES).join(name),
        }
    }

    /// As it was stored.
    pub fn stored(repository: PathBuf, branch: String, directory: PathBuf) -> Self {
        Self {
            repository,
            branch,
            directory,
        }
    }
}

/// What a run is cut from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The repository, absolute and without links: the top of the work tree that was named, or the
    /// bare repository.
    pub repository: PathBuf,
    /// The directory that was named, below that.
    pub scope: RelPath,
    /// Whether it is a bare repository.
    pub is_bare: bool,
    /// The full name of the branch.
    pub branch: String,
    /// The commit at its tip.
    pub commit: String,
    /// The tree of that.
    pub tree: String,
}

/// What there is of a run's work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunWorktreeState {
    /// Where the branch is; `None`: there is none.
    pub tip: Option<BranchTip>,
    /// What is in the place of the directory.
    pub directory: RunDirectory,
}

impl RunWorktreeState {
    /// A branch and a directory.
    pub fn new(tip: Option<BranchTip>, directory: RunDirectory) -> Self {
        Self { tip, directory }
    }

    /// Whether somebody can work in it.
    pub fn is_ready(&self) -> bool {
        self.tip.is_some() && self.directory == RunDirectory::Right
    }
}

/// The commit at the tip of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchTip {
    /// The full id.
    pub commit: String,
    /// The full id of its tree.
    pub tree: String,
}

impl BranchTip {
    /// This commit, with this tree, by their full ids.
    pub fn new(commit: impl Into<String>, tree: impl Into<String>) -> Self {
        Self {
            commit: commit.into(),
            tree: tree.into(),
        }
    }
}

/// What is in the place of a run's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunDirectory {
    /// The run's work tree, on the run's branch.
    Right,
    /// Nothing.
    Missing,
    /// Something else: what, as a clause.
    Other(String),
}

/// What [`RunWorktrees::ensure`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ensured {
    /// The commit at the tip of the branch.
    pub tip: BranchTip,
    /// The files that were written; zero: the directory was there.
    pub files_written: u64,
    /// The bytes that were written into them.
    pub bytes_written: u64,
    /// The paths, sorted, that have what is stored, though a filter or an encoding applies to
    /// them: git shows them as changed.
    pub unconverted: Vec<RelPath>,
}

/// What [`RunWorktrees::bring`] came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Brought {
    /// The files and links that came.
    pub files: u64,
    /// Those of them that share their content with where they came from.
    pub shared: u64,
    /// What was left out, sorted: something is there, or it is neither a file, a link nor a
    /// directory.
    pub skipped: Vec<RelPath>,
}

/// What [`RunWorktrees::remove`] removed: what was not there is `false`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The directory, which went to the trash.
    pub directory: bool,
    /// Its entry in the repository.
    pub entry: bool,
    /// The branch.
    pub branch: bool,
}

/// Why a run has no work tree, or keeps it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunWorktreeError {
    /// What was asked for cannot be right. Nothing was touched.
    #[error("{0}; nothing was touched")]
    InvalidOptions(String),
    /// The repository does not allow it. Nothing was touched.
    #[error("{0}; nothing was touched")]
    Unsupported(String),
    /// Something that is not the run's has its place. It was not touched.
    #[error("{0}; it was left as it is")]
    Conflict(String),
    /// The branch is not where it was expected. It was not touched.
    #[error("{branch} is {found} and not at {expected}; it was left as it is")]
    Moved {
        /// Its full name.
        branch: String,
        /// The full id of the commit that was expected.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// The repository has not all that the commit needs.
    #[error("{object}, which {commit} has, is not in the repository")]
    Incomplete {
        /// The full id of what is missing.
        object: String,
        /// The full id of the commit.
        commit: String,
    },
    /// The repository or the disk could not be read or written, or it was asked to stop. What was
    /// made so far is the run's, and another call goes on with it.
    #[error("{context}")]
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

impl RunWorktreeError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidOptions(_) => ErrorKind::InvalidOptions,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Moved { .. } => ErrorKind::HeadMoved,
            Self::Incomplete { .. } => ErrorKind::Corrupt,
            Self::Failed { kind, .. } => *kind,
        }
    }
}
