//! The goal of a restore: which state it restores.

use crate::path::RelPath;
use crate::snapshot::Snapshot;

/// What a restore should make of the worktree.
///
/// Who restores has to know every goal: a new one is a change that implementations notice.
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
        /// Literal paths, files or directories; empty: everything. What the snapshot knows not to
        /// have been there is removed. A path that the workspace has not either is
        /// [`RestoreError::UnknownPath`](crate::restore_error::RestoreError::UnknownPath), one that
        /// the snapshot left out
        /// [`RestoreError::OmittedPath`](crate::restore_error::RestoreError::OmittedPath).
        paths: Vec<RelPath>,
    },
    /// Takes back what happened between two snapshots, and keeps what happened since.
    ///
    /// A path that still is as `after` has it becomes as `before` has it. Any other path that
    /// differs between the two is kept, and named in
    /// [`RestorePlan::skipped`](crate::restore_plan::RestorePlan::skipped) unless it already is as
    /// `before` has it.
    Undo {
        /// The state before the operation that is taken back.
        before: Snapshot,
        /// The state after it.
        after: Snapshot,
        /// The paths that the operation changed; `None`: all that differ.
        paths: Option<Vec<RelPath>>,
    },
}
