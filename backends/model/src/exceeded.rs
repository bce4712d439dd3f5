//! A limit that would have been exceeded.

use std::io;

/// There is no room for what was to be written, and it was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {actual}, the limit is {limit}")]
pub struct Exceeded {
    /// What was counted, with what there was.
    pub what: String,
    /// The limit, in bytes.
    pub limit: u64,
    /// What it would have been, in bytes.
    pub actual: u64,
}

impl Exceeded {
    /// Why something was not written, if that is why.
    pub fn in_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Exceeded> for io::Error {
    fn from(exceeded: Exceeded) -> Self {
        Self::other(exceeded)
    }
}
