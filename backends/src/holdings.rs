//! What a store has: a list of its snapshots, and a summary of them.

use crate::error::chain;
use crate::problem::Problem;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::store_error::StoreError;

/// What a store has: see [`Backend::list`](crate::Backend::list).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// What is there as a snapshot and cannot be read as one, so that nothing but its name may be
    /// known of it.
    pub unreadable: Vec<Unreadable>,
}

impl Listing {
    /// These, and nothing that cannot be read; for implementations of
    /// [`Backend`](crate::Backend).
    pub fn new(snapshots: Vec<Snapshot>) -> Self {
        Self {
            snapshots,
            unreadable: Vec::new(),
        }
    }
}

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
    /// Why it cannot be read.
    pub problem: Problem,
    /// Nothing is known to be wrong with it, so that it is to be left alone: it is of a newer
    /// version of this program, or the disk did not give it. The problem then has the kind of what
    /// the disk said.
    pub leave_alone: bool,
}

impl Unreadable {
    /// One that is damaged, of which no more is known; for implementations of
    /// [`Backend`](crate::Backend).
    pub fn new(name: String, problem: Problem) -> Self {
        Self {
            name,
            id: None,
            problem,
            leave_alone: false,
        }
    }

    /// One that could not be read because of this `error`, which is a problem of `what`.
    pub(crate) fn because(
        name: String,
        id: Option<SnapshotId>,
        what: String,
        error: &StoreError,
    ) -> Self {
        let problem = Problem::new(what, chain(error));
        Self {
            name,
            id,
            problem: match error {
                StoreError::Io(_) => problem.of_kind(error.kind()),
                _ => problem,
            },
            leave_alone: !matches!(error, StoreError::Corrupt { .. }),
        }
    }
}
