//! What a caller can do about an error.

use std::fmt;

/// What a caller can do about an error. Every error enum of this crate maps to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// The policy of a run, or one of the run's limits, forbids it.
    PolicyViolation,
    /// The disk is full, or a quota is.
    NoSpace,
    /// Stored content does not match its id, or is missing.
    Corrupt,
    /// The repository's own files are a trap.
    HostileRepository,
    /// Events after the place that a reader had come to were removed; it goes on after them.
    PositionsForgotten,
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
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidOptions => "InvalidOptions",
            Self::NotFound => "NotFound",
            Self::Busy => "Busy",
            Self::Conflict => "Conflict",
            Self::HeadMoved => "HeadMoved",
            Self::Unsupported => "Unsupported",
            Self::Unreadable => "Unreadable",
            Self::LimitExceeded => "LimitExceeded",
            Self::PolicyViolation => "PolicyViolation",
            Self::NoSpace => "NoSpace",
            Self::Corrupt => "Corrupt",
            Self::HostileRepository => "HostileRepository",
            Self::PositionsForgotten => "PositionsForgotten",
            Self::Unavailable => "Unavailable",
            Self::Cancelled => "Cancelled",
            Self::Timeout => "Timeout",
            Self::Storage => "Storage",
        }
    }

    /// Whether the same call, made again later, may succeed although its caller changes nothing.
    ///
    /// `Busy`: whoever holds what is needed lets go of it. `Unavailable`: an engine starts again,
    /// and so does the part of it that was lost. `Timeout`: the machine, a model or a remote may be
    /// quicker another time.
    ///
    /// For all others somebody has to do something first. What was asked for cannot be right or is
    /// not there (`InvalidOptions`, `NotFound`), is more than is allowed (`LimitExceeded`), or is
    /// forbidden (`PolicyViolation`). What was seen before has to be looked at again, because the
    /// same call would be refused again (`Conflict`, `HeadMoved`), and a reader has to choose where
    /// it goes on (`PositionsForgotten`). The place is of the wrong kind or is damaged
    /// (`Unsupported`, `Unreadable`, `Corrupt`, `HostileRepository`), the disk is full or fails
    /// (`NoSpace`, `Storage`): a loop that tries again would only hide that. `Cancelled`: somebody
    /// did not want it.
    pub fn is_retryable(self) -> bool {
        // Without a default, so that a new kind is decided about.
        match self {
            Self::Busy | Self::Unavailable | Self::Timeout => true,
            Self::InvalidOptions
            | Self::NotFound
            | Self::Conflict
            | Self::HeadMoved
            | Self::Unsupported
            | Self::Unreadable
            | Self::LimitExceeded
            | Self::PolicyViolation
            | Self::NoSpace
            | Self::Corrupt
            | Self::HostileRepository
            | Self::PositionsForgotten
            | Self::Cancelled
            | Self::Storage => false,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorKind::{self, *};

    #[test]
    fn a_kind_is_retryable_where_waiting_alone_may_help() {
        for (kind, is_retryable) in [
            (InvalidOptions, false),
            (NotFound, false),
            (Busy, true),
            (Conflict, false),
            (HeadMoved, false),
            (Unsupported, false),
            (Unreadable, false),
            (LimitExceeded, false),
            (PolicyViolation, false),
            (NoSpace, false),
            (Corrupt, false),
            (HostileRepository, false),
            (PositionsForgotten, false),
            (Unavailable, true),
            (Cancelled, false),
            (Timeout, true),
            (Storage, false),
        ] {
            let kind: ErrorKind = kind;
            assert_eq!(kind.is_retryable(), is_retryable, "{kind}");
        }
    }
}
