//! The common parts of every error: a kind that a caller can act on, and the path.

use std::io;
use std::path::{Path, PathBuf};

pub use crate::error_kind::ErrorKind;
use crate::exceeded::Exceeded;
use crate::interrupted::Interrupted;

impl ErrorKind {
    /// The kind of an I/O error of the store: a full disk is told apart from any other, and so is
    /// work that was asked to stop.
    pub fn of_storage(error: &io::Error) -> Self {
        if let Some(interrupted) = Interrupted::in_io(error) {
            return interrupted.kind();
        }
        if Exceeded::in_io(error).is_some() {
            return Self::LimitExceeded;
        }
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            // What the process may write to a file has a limit (RLIMIT_FSIZE), which is as good as
            // a quota.
            io::ErrorKind::FileTooLarge => Self::NoSpace,
            _ => Self::Storage,
        }
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

/// The path for messages that people read, as [`printable_name`](crate::path::printable_name) has
/// it.
pub fn printable(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    crate::path::printable_name(path.as_os_str().as_bytes())
}

/// The messages of `error` and its sources, joined by `: `.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let messages: Vec<String> = causes.map(ToString::to_string).collect();
    messages.join(": ")
}
