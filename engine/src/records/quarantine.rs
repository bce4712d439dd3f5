//! Quarantine: what could not be proven saved, and is therefore kept. What a host is told of it,
//! and the rows of what is kept outside of stores.

use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::RelPath;

use crate::id::{QuarantineId, RunId, WorkTaskId};
use crate::records::restore_document::RestoreDocument;

/// Work of a task that the store of a workspace keeps, and that no remote is proven to have: a
/// commit, and those that it alone goes on from. Only
/// [`Engine::discard_quarantined`](crate::Engine::discard_quarantined) lets go of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QuarantinedWork {
    /// What it is called by: the first digits of its commit, so many that they are no other's.
    pub id: String,
    /// The task, as the host calls it.
    pub task: String,
    /// Its namespace, as slugs; null: it has none.
    pub namespace: Option<String>,
    /// The remote, an address without credentials; null: there is none, and the store is where the
    /// host wants the work.
    pub remote: Option<String>,
    /// The task's branch, without `refs/heads/`.
    pub branch: String,
    /// The workspace whose store keeps it.
    pub workspace_id: String,
    /// Its directory, printable; null: nobody knows it any more.
    pub path: Option<String>,
    /// The run whose work it has; null: it was made outside of runs.
    pub run_id: Option<RunId>,
    /// The number of its checkpoint among those of the task in this workspace.
    pub number: u64,
    /// The full id of the commit, which has all of the work.
    pub commit: String,
    /// The full ids of the checkpoints that it goes on from and that are as little proven, the
    /// oldest first.
    pub earlier: Vec<String>,
    /// Where it stands: `made` (it was not sent), `sent` (the remote said that it took it, and has
    /// not shown it) or `refused` (it may not be sent).
    pub status: String,
    /// Why it was not saved when that was last tried, such as `SecretFound`; null: it was not
    /// tried, or whoever did died.
    pub failure: Option<String>,
    /// The same in one line.
    pub error: Option<String>,
    /// The ref of the store that keeps it; null: the store cannot be read.
    pub kept_as: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What brought work in quarantine back to the files of its workspace. It stays in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QuarantineRestore {
    /// The work.
    pub work: QuarantinedWork,
    /// What was done to the files; null: all were as they were to be.
    pub restore: Option<RestoreDocument>,
    /// The submodules of which the work has another commit. Their directories are as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<RelPath>,
}

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
