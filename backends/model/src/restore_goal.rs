//! The goal of a restore: which state it restores.

use crate::path::RelPath;
use crate::snapshot::Snapshot;

/// Which state a restore makes in the worktree.
///
/// Every backend has to implement every goal, so a new goal is a breaking change on purpose.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each restore, and it is passed by reference"
)]
pub enum RestoreGoal {
    /// Every captured path as `snapshot` has it, or only those at and below `paths`.
    Snapshot {
        /// What to go back to.
        snapshot: Snapshot,
        /// Literal paths, files or directories; empty: everything. A path that did not exist when
        /// the snapshot was taken is removed. If the workspace does not have it either, the error
        /// is [`RestoreError::UnknownPath`](crate::restore_error::RestoreError::UnknownPath), one
        /// that the snapshot left out
        /// [`RestoreError::OmittedPath`](crate::restore_error::RestoreError::OmittedPath).
        paths: Vec<RelPath>,
    },
    /// Undoes the changes between two snapshots, and keeps later changes.
    ///
    /// A path that is still as in `after` becomes as in `before`. Any other path that differs
    /// between the two is kept, and named in
    /// [`RestorePlan::skipped`](crate::restore_plan::RestorePlan::skipped) unless it already is as
    /// in `before`.
    Undo {
        /// The state before the operation that is undone.
        before: Snapshot,
        /// The state after it.
        after: Snapshot,
        /// The paths that the operation changed; `None`: all that differ.
        paths: Option<Vec<RelPath>>,
    },
}
