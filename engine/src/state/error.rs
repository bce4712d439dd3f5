//! Why the state could not be read or written.

use std::path::PathBuf;
use std::sync::Arc;

use stillframe_backends::{ErrorKind, PathError};

use crate::error::Error;
use crate::id::{EventId, RunId};

/// Why the state could not be read or written. Nothing of the changes was kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StateError {
    /// A row is not in the state that a transition starts from.
    #[error("{what} is {found}, not {expected}; nothing was changed")]
    Conflict {
        what: String,
        expected: String,
        found: String,
    },
    /// The writer has lost the run to another engine.
    #[error("run {0} was taken over by another engine; nothing was written")]
    TakenOver(RunId),
    /// There is no such row.
    #[error("there is no {what}")]
    NotFound { what: String },
    /// A row of that id is there already.
    #[error("{what} exists already; nothing was changed")]
    Exists { what: String },
    /// Another task has the branch.
    #[error(
        "{what} would have the branch {branch}, which is that of task {other}; nothing was changed"
    )]
    BranchTaken {
        what: String,
        branch: String,
        other: String,
    },
    /// A branch cannot have others below its name.
    #[error(
        "{what}: the tasks of this remote have a namespace each, or none of them has; nothing was changed"
    )]
    OtherLayout { what: String },
    /// An event of that id says something else.
    #[error("event {0} is on record and says something else; nothing was written")]
    OtherEvent(EventId),
    /// The queue has no room for one more run.
    #[error(
        "{max_queued} runs wait in the queue, which is the limit of this engine (max_queued); nothing was queued"
    )]
    Full { max_queued: u64 },
    /// What is kept cannot be what was written.
    #[error("the state database is corrupt: {detail}")]
    Corrupt { detail: String },
    /// Written by a version that this one does not read.
    #[error(
        "the state database {} has version {found}, this Stillframe reads up to {supported}; nothing was changed",
        path.display()
    )]
    VersionTooNew {
        path: PathBuf,
        found: i64,
        supported: i64,
    },
    /// Another process reads, so it is not known what is left on disk.
    #[error("the state database is in use by another process")]
    InUse,
    /// The place for the database cannot be used for one.
    #[error("{0}; nothing was changed")]
    Unsupported(String),
    /// A file of the state could not be made or read.
    #[error("the state cannot be kept")]
    Io(#[from] PathError),
    /// What kept this and other commits from being written.
    #[error(transparent)]
    OfAll(Arc<Self>),
    /// SQLite refused.
    #[error("the state database failed")]
    Sqlite(#[from] rusqlite::Error),
}

impl From<rusqlite::types::FromSqlError> for StateError {
    /// A value of another type than the column has.
    fn from(source: rusqlite::types::FromSqlError) -> Self {
        Self::Sqlite(source.into())
    }
}

impl StateError {
    /// What a caller can do about it.
    pub(crate) fn kind(&self) -> ErrorKind {
        use rusqlite::ErrorCode as Code;
        match self {
            Self::Conflict { .. }
            | Self::Exists { .. }
            | Self::OtherEvent(_)
            | Self::TakenOver(_) => ErrorKind::Conflict,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::BranchTaken { .. } | Self::OtherLayout { .. } => ErrorKind::InvalidOptions,
            Self::InUse | Self::Full { .. } => ErrorKind::Busy,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::VersionTooNew { .. } | Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::OfAll(source) => source.kind(),
            Self::Io(source) => source.storage_kind(),
            Self::Sqlite(source) => match source.sqlite_error_code() {
                Some(Code::DatabaseBusy | Code::DatabaseLocked) => ErrorKind::Busy,
                Some(Code::DiskFull) => ErrorKind::NoSpace,
                // The file that readers and writers share could not be made longer.
                _ if source
                    .sqlite_error()
                    .is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) =>
                {
                    ErrorKind::NoSpace
                }
                // SQLite does not say that a file would become larger than the process may make it.
                Some(Code::SystemIoFailure)
                    if crate::state::file_size_limit::has_file_size_limit()
                        && source.sqlite_error().is_some_and(|e| {
                            e.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE
                        }) =>
                {
                    ErrorKind::NoSpace
                }
                Some(Code::DatabaseCorrupt | Code::NotADatabase) => ErrorKind::Corrupt,
                // The only triggers that refuse anything are those of damaged rows.
                _ if source.sqlite_error().is_some_and(|e| {
                    e.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER
                }) =>
                {
                    ErrorKind::Corrupt
                }
                _ => ErrorKind::Storage,
            },
        }
    }
}

impl From<StateError> for Error {
    fn from(source: StateError) -> Self {
        Self::new(source.kind(), source)
    }
}

/// Whether `error` is that another engine has the run by now.
pub(crate) fn is_taken_over(error: &Error) -> bool {
    matches!(error.wrapped(), Some(StateError::TakenOver(_)))
}
