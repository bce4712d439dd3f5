//! A summary of the snapshots in a store.

use crate::problem::Problem;
use crate::snapshot::SnapshotId;

/// What a look at a store tells of the snapshots in it: see
/// [`Backend::holdings`](crate::Backend::holdings).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holdings {
    /// All of them, in no order.
    Ids(Vec<SnapshotId>),
    /// Their number, and the one that was published last.
    Newest {
        /// How many there are.
        count: u64,
        /// The [`reference`](crate::Snapshot::reference) of that one; `None`: there is none, or it
        /// cannot be read.
        reference: Option<String>,
    },
}

impl Holdings {
    /// How many snapshots there are.
    pub fn count(&self) -> u64 {
        match self {
            Self::Ids(ids) => ids.len() as u64,
            Self::Newest { count, .. } => *count,
        }
    }
}

/// Something in a store that is there as a snapshot and cannot be read as one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// What the store has it under, to forget it by.
    pub name: String,
    /// The snapshot that it is, if that can be told.
    pub id: Option<SnapshotId>,
    /// What is wrong with it.
    pub problem: Problem,
    /// It is of a newer version of this program, and nothing is wrong with it: it is to be left
    /// alone.
    pub is_newer: bool,
}
