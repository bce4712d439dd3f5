//! What every error of this crate has in common: a kind that a caller can act on, and the path.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::exceeded::Exceeded;
use crate::interrupted::Interrupted;

/// What a caller can do about an error. Every error enum of this crate maps to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's path, id, name or cap cannot be right; nothing was done.
    InvalidOptions,
    /// That id, key or path is not known.
    NotFound,
    /// Somebody else holds what is needed; trying again may help.
    Busy,
    /// The worktree or a plan is not what was seen before; nothing was overwritten.
    Conflict,
    /// A branch tip is not what the after-snapshot saw.
    HeadMoved,
    /// A repository format, file system or state version that is not handled, or a backend that
    /// cannot do what was asked.
    Unsupported,
    /// The worktree could not be read, for a reason that is not one path's own permission.
    Unreadable,
    /// A limit that the caller set, or a hard bound, was exceeded.
    LimitExceeded,
    /// The disk is full, or a quota is.
    NoSpace,
    /// Stored content does not match its id, or is missing.
    Corrupt,
    /// The repository's own files are a trap.
    HostileRepository,
    /// The engine is shutting down, or has lost the part that keeps its state.
    Unavailable,
    /// Asked to stop.
    Cancelled,
    /// A deadline passed.
    Timeout,
    /// An I/O error of the store or the log.
    Storage,
}

impl ErrorKind {
    /// The name that JSON documents use, such as `InvalidOptions`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidOptions => "InvalidOptions",
            Self::NotFound => "NotFound",
            Self::Busy => "Busy",
            Self::Conflict => "Conflict",
            Self::HeadMoved => "HeadMoved",
            Self::Unsupported => "Unsupported",
            Self::Unreadable => "Unreadable",
            Self::LimitExceeded => "LimitExceeded",
            Self::NoSpace => "NoSpace",
            Self::Corrupt => "Corrupt",
            Self::HostileRepository => "HostileRepository",
            Self::Unavailable => "Unavailable",
            Self::Cancelled => "Cancelled",
            Self::Timeout => "Timeout",
            Self::Storage => "Storage",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::Unavailable | Self::Timeout)
    }

    /// The kind of an I/O error of the store: a full disk is told apart from any other, and so is work that
    /// was asked to stop.
    pub fn of_storage(error: &io::Error) -> Self {
        if let Some(interrupted) = Interrupted::in_io(error) {
            return interrupted.kind();
        }
        if Exceeded::in_io(error).is_some() {
            return Self::LimitExceeded;
        }
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            // What the process may write to a file has a limit (RLIMIT_FSIZE), which is as good as a quota.
            io::ErrorKind::FileTooLarge => Self::NoSpace,
            _ => Self::Storage,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A system call that failed, with what it was about.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", printable(path))]
pub struct PathError {
    /// A verb, such as `open`.
    pub operation: &'static str,
    /// The path as it is on disk.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

impl PathError {
    /// Attaches `path` to a failed system call; meant for `map_err`.
    pub fn at<E: Into<io::Error>>(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self {
            operation,
            path,
            source: source.into(),
        }
    }

    /// The kind of this error when it concerns the store.
    pub fn storage_kind(&self) -> ErrorKind {
        ErrorKind::of_storage(&self.source)
    }
}

/// The path for messages that people read, as [`printable_name`](crate::path::printable_name) has it.
pub fn printable(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    crate::path::printable_name(path.as_os_str().as_bytes())
}
