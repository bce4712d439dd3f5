//! The rows of quarantine: what holds work that could not be proven saved, and is therefore kept.

use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;

use crate::id::{QuarantineId, WorkTaskId};

/// What was put into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QuarantineKind {
    Worktree,
    Branch,
    /// A place in which tasks work one after the other.
    Slot,
    Store,
}

/// Where something in quarantine stands. Only the user moves it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QuarantineStatus {
    /// It is kept, and nobody gets it.
    Kept,
    /// It is where it was.
    Restored,
    /// It is gone.
    Discarded,
}

/// Something in quarantine, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuarantineRow {
    pub(crate) id: QuarantineId,
    pub(crate) kind: QuarantineKind,
    /// Where it was: a path, or the full name of a ref.
    pub(crate) origin: PathBuf,
    /// Where it is.
    pub(crate) place: PathBuf,
    /// Why it could not be proven saved: one line.
    pub(crate) reason: String,
    pub(crate) task_id: Option<WorkTaskId>,
    pub(crate) status: QuarantineStatus,
    pub(crate) created_at: Timestamp,
    /// When the user let go of it.
    pub(crate) ended_at: Option<Timestamp>,
}

impl QuarantineKind {
    pub(crate) const ALL: [Self; 4] = [Self::Worktree, Self::Branch, Self::Slot, Self::Store];

    /// The name that JSON documents use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Worktree => "worktree",
            Self::Branch => "branch",
            Self::Slot => "slot",
            Self::Store => "store",
        }
    }

    /// The kind of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl QuarantineStatus {
    pub(crate) const ALL: [Self; 3] = [Self::Kept, Self::Restored, Self::Discarded];

    /// The name that JSON documents use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Restored => "restored",
            Self::Discarded => "discarded",
        }
    }

    /// The status of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for QuarantineStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_from_its_name() {
        for status in QuarantineStatus::ALL {
            assert_eq!(QuarantineStatus::parse(status.as_str()), Some(status));
        }
        for kind in QuarantineKind::ALL {
            assert_eq!(QuarantineKind::parse(kind.as_str()), Some(kind));
        }
    }
}
