//! The description of a file system, for messages that it is full.

use std::fmt;
use std::path::PathBuf;

use crate::error::printable;

/// A file system, as a person knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystem {
    /// The directory that it is mounted at, as far as the path shows.
    pub mount_point: PathBuf,
    /// How many bytes this user may still use; `None`: it does not say.
    pub free_bytes: Option<u64>,
}

impl FileSystem {
    /// The one that is mounted there.
    pub fn new(mount_point: PathBuf, free_bytes: Option<u64>) -> Self {
        Self {
            mount_point,
            free_bytes,
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file system at {}", printable(&self.mount_point))?;
        match self.free_bytes {
            Some(free) => write!(f, ", which has {free} bytes free"),
            None => Ok(()),
        }
    }
}
