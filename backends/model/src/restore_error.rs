//! Why a restore failed.

use std::path::PathBuf;

use crate::coverage::Omission;
use crate::error::{ErrorKind, PathError, printable};
use crate::file_system::FileSystem;
use crate::interrupted::Interrupted;
use crate::lock_error::LockError;
use crate::path::RelPath;
use crate::plan_id::PlanId;
use crate::snapshot::SnapshotId;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;

/// Why a restore stopped. No byte is lost: the guard snapshot holds what was there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Neither the snapshot nor the workspace has a path that was asked for.
    #[error("neither snapshot {snapshot} nor the workspace has {path}; nothing was touched")]
    UnknownPath {
        /// Where it was looked for.
        snapshot: SnapshotId,
        /// What was asked for.
        path: RelPath,
    },
    /// The snapshot left a path out that was asked for, or a directory above it, so it does not
    /// have its bytes.
    #[error("snapshot {snapshot} does not have {path}: it left {} out ({}); nothing was touched",
        omission.path, omission.reason)]
    OmittedPath {
        /// Where it was looked for.
        snapshot: SnapshotId,
        /// What was asked for.
        path: RelPath,
        /// What was left out, and why.
        omission: Omission,
    },
    /// The snapshot does not have a path that was asked for.
    #[error("snapshot {snapshot} does not have {path}; nothing was made")]
    AbsentPath {
        /// Where it was looked for.
        snapshot: SnapshotId,
        /// What was asked for.
        path: RelPath,
    },
    /// Nothing can be put where it was asked for.
    #[error("{0}; nothing was made")]
    BadPlace(String),
    /// There is no such plan for the snapshot and the worktree as they are: the worktree moved
    /// since it was made, or it is of something else.
    #[error(
        "there is no plan {:?} for this snapshot and the worktree as it is; nothing was touched, make a new plan",
        expected.as_str()
    )]
    PlanChanged {
        /// The plan that was asked for.
        expected: PlanId,
        /// The plan that would be made now.
        found: PlanId,
    },
    /// Somebody replaced or removed this while the restore was prepared. What is there now is not
    /// in the guard; another attempt takes a new one.
    #[error("{path} changed while the restore was prepared; nothing was touched, try again")]
    Changed {
        /// What changed.
        path: RelPath,
    },
    /// Somebody moved HEAD or the branch since the after-snapshot.
    #[error("{what} is at {found}, the run left it at {expected}; nothing was touched")]
    HeadMoved {
        /// `HEAD`, or the full name of the branch.
        what: String,
        /// What the after-snapshot saw.
        expected: String,
        /// What is there now.
        found: String,
    },
    /// Somebody continued an operation of git's since the after-snapshot.
    #[error("{path} in the git directory is not as the run left it; nothing was touched")]
    OperationChanged {
        /// The file or directory below the git directory, printable.
        path: String,
    },
    /// An operation of git's is in progress that is neither the target's nor the run's.
    #[error("a {operation} is in progress; nothing was touched, finish or abort it first")]
    InProgress {
        /// merge, rebase, cherry-pick, revert or bisect.
        operation: &'static str,
    },
    /// Somebody holds a lock that the restore needs.
    #[error("{what} is held by {holder}; nothing was touched")]
    Busy {
        /// What is locked.
        what: String,
        /// By whom, as far as is known.
        holder: String,
    },
    /// The backend, or the file system, cannot do this.
    #[error("{0}; nothing was touched")]
    Unsupported(String),
    /// No directory outside of the workspace is on its file system and can be written to, so that
    /// every restore is refused. A copy can be put elsewhere.
    #[error("{0}; nothing was touched")]
    NoPlace(String),
    /// The operation cannot be taken back, because the workspace is gone, with everything that was
    /// left there.
    #[error(
        "{} is gone, and everything that was left there: {before} has it as it was before the \
         operation, {after} as it was after; nothing was touched",
        printable(workspace)
    )]
    NothingLeft {
        /// The directory.
        workspace: PathBuf,
        /// The snapshot before the operation, which can be restored.
        before: SnapshotId,
        /// The one after it, likewise.
        after: SnapshotId,
    },
    /// The target cannot be put back because the store lacks some of it.
    #[error("snapshot {snapshot} cannot be restored: {detail}; nothing was touched")]
    TargetCorrupt {
        /// The target.
        snapshot: SnapshotId,
        /// What is missing.
        detail: String,
    },
    /// The guard, or the capture for the plan, failed.
    #[error("what is there now could not be captured, so nothing was touched")]
    Guard(#[source] SnapshotError),
    /// Asked to stop, or out of time, before the point of no return.
    #[error("the restore was stopped: {0}; nothing was touched")]
    Interrupted(Interrupted),
    /// The disk refused before the point of no return.
    #[error("the restore could not be prepared; nothing was touched")]
    Prepare(#[source] PathError),
    /// The file system of the workspace has no space for the restored files.
    #[error("{}; nothing was touched", no_room(*needed_bytes, file_system))]
    NoRoom {
        /// The size of all restored files, in bytes.
        needed_bytes: u64,
        /// Where it has to be written to.
        file_system: FileSystem,
        /// What the kernel said.
        source: PathError,
    },
    /// The disk refused after the point of no return.
    #[error("the restore is incomplete; recovery will finish it")]
    Apply(#[source] PathError),
    /// The files are restored, and the closing capture failed.
    #[error("the files were restored, but could not be captured again to compare")]
    Closing(#[source] SnapshotError),
    /// The store could not answer; nothing was touched.
    #[error(transparent)]
    Store(StoreError),
}

/// Small and empty files need space too, so the sum of their bytes may not explain the failure.
fn no_room(needed_bytes: u64, file_system: &FileSystem) -> String {
    match needed_bytes {
        0 => format!("the restore needs room for new files on {file_system}"),
        bytes if file_system.free_bytes.is_some_and(|free| free >= bytes) => format!(
            "the restore has to write {bytes} bytes, and each file in blocks of its own, to {file_system}"
        ),
        bytes => format!("the restore has to write {bytes} bytes to {file_system}"),
    }
}

/// The message has the reason in it, so it is not a source, which would be printed again.
impl From<Interrupted> for RestoreError {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Interrupted(source) => Self::Interrupted(source),
            error => Self::Store(error),
        }
    }
}

impl From<LockError> for RestoreError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Busy { what, holder } => Self::Busy { what, holder },
            LockError::Io(source) => Self::Prepare(source),
        }
    }
}

impl RestoreError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownPath { .. } | Self::OmittedPath { .. } | Self::AbsentPath { .. } => {
                ErrorKind::NotFound
            }
            Self::BadPlace(_) => ErrorKind::InvalidOptions,
            Self::PlanChanged { .. }
            | Self::Changed { .. }
            | Self::InProgress { .. }
            | Self::OperationChanged { .. } => ErrorKind::Conflict,
            Self::HeadMoved { .. } => ErrorKind::HeadMoved,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Unsupported(_) | Self::NoPlace(_) | Self::NothingLeft { .. } => {
                ErrorKind::Unsupported
            }
            Self::TargetCorrupt { .. } => ErrorKind::Corrupt,
            Self::Guard(source) | Self::Closing(source) => source.kind(),
            Self::Interrupted(source) => source.kind(),
            Self::Prepare(source) | Self::Apply(source) | Self::NoRoom { source, .. } => {
                source.storage_kind()
            }
            Self::Store(source) => source.kind(),
        }
    }

    /// If a file was not written because of a cancellation or a quota, the error says that.
    pub fn or_its_cause(self) -> Self {
        match self {
            Self::Prepare(source) => match StoreError::from(source) {
                StoreError::Io(source) => Self::Prepare(source),
                cause => cause.into(),
            },
            error => error,
        }
    }

    /// Whether the workspace may have been changed.
    pub fn touched(&self) -> bool {
        matches!(self, Self::Apply(_) | Self::Closing(_))
    }
}
