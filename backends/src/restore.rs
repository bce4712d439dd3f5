//! Deciding what a restore does. Everything here is a function over values; the disk is touched
//! in `worktree/apply.rs`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::coverage::OmissionReason;
use crate::path::RelPath;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::tree::Entry;

/// What a restore should make of the worktree.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RestoreGoal {
    /// Every captured path as `snapshot` has it, or only those at and below `paths`.
    Snapshot {
        /// What to go back to.
        snapshot: Snapshot,
        /// Literal paths, files or directories; empty: everything. A path that the snapshot does
        /// not know is [`RestoreError::UnknownPath`](crate::RestoreError::UnknownPath).
        paths: Vec<RelPath>,
    },
    /// Takes back what happened between two snapshots, and keeps what happened since.
    ///
    /// A path that still is as `after` has it becomes as `before` has it. Any other path that
    /// differs between the two is kept, and named in [`RestorePlan::skipped`] unless it already
    /// is as `before` has it.
    Undo {
        /// The state before the operation that is taken back.
        before: Snapshot,
        /// The state after it.
        after: Snapshot,
        /// The paths that the operation changed; `None`: all that differ.
        paths: Option<Vec<RelPath>>,
    },
}

/// Names a plan by its content: two plans with one id do the same to the same state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanId(String);

impl PlanId {
    /// The id of the plan whose content has this digest: `plan_` and 32 hexadecimal digits.
    pub(crate) fn of_digest(digest: &blake3::Hash) -> Self {
        Self(format!("plan_{}", &digest.to_hex()[..32]))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PlanId {
    type Err = std::convert::Infallible;

    /// Takes any text: an id that is no plan's own matches none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// What has to change on disk. Nothing in it was done yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RestorePlan {
    /// The digest of everything below: it is another one when the worktree has moved.
    pub id: PlanId,
    /// The snapshot whose content is put back.
    pub target: SnapshotId,
    /// Entries that are made or replaced, sorted by path.
    pub writes: Vec<Write>,
    /// Entries that are removed, sorted by path.
    pub removals: Vec<Removal>,
    /// Directories that are made although nothing is put into them, parents first.
    pub make_directories: Vec<(RelPath, u32)>,
    /// Directories that are removed if nothing is left in them, children first.
    pub remove_directories: Vec<RelPath>,
    /// Entries and directories whose content is right and whose permission bits are not.
    pub modes: Vec<ModeChange>,
    /// Paths that differ from the goal and are left as they are, sorted by path.
    pub skipped: Vec<Skipped>,
}

/// An entry to be made or replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Where.
    pub path: RelPath,
    /// What is there now; `None`: nothing that was captured.
    pub current: Option<Entry>,
    /// What will be there.
    pub entry: Entry,
    /// The permission bits it gets; `None` for links.
    pub mode: Option<u32>,
}

/// An entry to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Where.
    pub path: RelPath,
    /// What is there now.
    pub current: Entry,
}

/// Permission bits to be changed, the content staying as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// Where.
    pub path: RelPath,
    /// The bits now.
    pub from: u32,
    /// The bits it gets.
    pub to: u32,
}

/// A path that a restore leaves as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The path.
    pub path: RelPath,
    /// Why.
    pub reason: SkipReason,
}

/// Why a restore leaves a path as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkipReason {
    /// Undo: somebody changed it after the operation that is taken back.
    EditedSince,
    /// It changed between the guard and its turn.
    ChangedMeanwhile,
    /// A directory that holds something which no snapshot has stands where a file would go.
    DirectoryNotEmpty,
    /// A nested repository that came after the target was captured; it is kept whole.
    NestedRepository,
    /// The system refused this path; it is as it was.
    Refused,
    /// The target did not capture it, so it does not know that it was not there; or what is there
    /// now could not be captured, so it would be lost.
    #[serde(untagged)]
    Omitted(OmissionReason),
}

impl RestorePlan {
    /// Whether carrying it out would change nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.removals.is_empty()
            && self.make_directories.is_empty()
            && self.remove_directories.is_empty()
            && self.modes.is_empty()
    }
}
