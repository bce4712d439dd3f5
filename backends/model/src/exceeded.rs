//! A limit that would have been exceeded.

use std::io;

/// A write would have exceeded a limit, and was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {actual}, the limit is {limit}")]
pub struct Exceeded {
    /// What was counted.
    pub what: String,
    /// The limit, in bytes.
    pub limit: u64,
    /// What it would have been, in bytes.
    pub actual: u64,
}

impl Exceeded {
    /// The exceeded limit, if that is the cause of `error`.
    pub fn in_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Exceeded> for io::Error {
    fn from(exceeded: Exceeded) -> Self {
        Self::other(exceeded)
    }
}
