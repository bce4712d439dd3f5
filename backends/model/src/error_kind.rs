//! What a caller can do about an error.

use std::fmt;

/// What a caller can do about an error. Every error enum of this crate maps to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's path, id, name or cap cannot be right; nothing was done.
    InvalidOptions,
    /// That id, key or path is not known.
    NotFound,
    /// Another process holds what is needed; trying again may help.
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
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
