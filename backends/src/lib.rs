//! Synchronous snapshots of a directory: what is in it, what changed, and back again.

mod backend;
mod coverage;
mod detect;
mod diff;
mod error;
mod path;
mod restore;
mod snapshot;
mod tree;
mod workspace;
mod worktree;

pub use workspace::{Identity, LockError, LockedWorkspace, StateDir, Workspace, WorkspaceError};

pub use detect::{Detection, Strategy, UnknownStrategy, detect};

pub use backend::{
    Backend, BorrowMode, DiffError, IgnoreOptions, Interrupt, Interrupted, Owner, Problem,
    Progress, Recovery, RepositoryRestore, RestoreError, RestoreOptions, RestoreOutcome,
    SnapshotError, SnapshotOptions, StoreError, Why,
};
pub use coverage::{Coverage, Omission, OmissionReason};
pub use diff::{Diff, DiffOptions, PatchText};
pub use error::{ErrorKind, PathError, printable};
pub use path::{InvalidPath, RelPath, printable_bytes};
pub use restore::{
    ModeChange, PlanId, Removal, RestoreGoal, RestorePlan, SkipReason, Skipped, Write,
};
pub use snapshot::{BackendKind, InvalidSnapshotId, Label, Snapshot, SnapshotId, SnapshotMetadata};
pub use tree::{ContentId, Entry, EntryKind};
