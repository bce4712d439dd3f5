//! What the kernel knows a directory by.

use serde::{Deserialize, Serialize};

/// What the kernel knows a directory by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The device that holds it.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}
