//! How far a capture has come.

/// How far a capture has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Entries looked at so far.
    pub entries: u64,
    /// Bytes read so far.
    pub bytes_read: u64,
}

impl Progress {
    /// So many entries were looked at, and so many bytes read.
    pub fn new(entries: u64, bytes_read: u64) -> Self {
        Self {
            entries,
            bytes_read,
        }
    }
}
