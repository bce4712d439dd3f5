//! Taking and restoring snapshots of a directory: the blocking half of Stillframe, for tools that
//! need no async runtime.
//!
//! A [`Workspace`] is a directory; its lock is a value, [`LockedWorkspace`]. A [`Backend`] captures
//! it as a [`Snapshot`]: [`detect`] chooses one of two: the backend that stores git objects in a
//! private repository, or, for directories without git, the one that stores a list of blake3
//! digests. Two snapshots are compared to a [`Diff`]. A restore restores one of them, after a guard
//! snapshot has captured what the restore is about to replace. The [`Coverage`] of a snapshot names
//! the paths that it does not have; a restore never touches these.
//!
//! ```
//! use std::{fs, io, time::Duration};
//!
//! use stillframe_backends::{
//!     DiffOptions, Label, Operation, RestoreGoal, RestoreOptions, SnapshotOptions, StateDir,
//!     Strategy, Timestamp, Workspace, detect,
//! };
//!
//! # let temporary = tempfile::tempdir()?;
//! # let (app, state) = (temporary.path().join("app"), temporary.path().join("state"));
//! # fs::create_dir(&app)?;
//! # fs::write(app.join("config"), "debug = false\n")?;
//! // What may stop each call: nothing here; a deadline or a cancellation elsewhere.
//! let op = &Operation::unbounded();
//! let workspace = Workspace::open(&app, &StateDir::open(&state)?)?;
//! let mut workspace = workspace.lock(op, Duration::ZERO)?;
//! let backend = detect(&workspace, Strategy::Auto)?.backend;
//! let options = |label| SnapshotOptions::new(label, Timestamp::now()).retain_content(true);
//!
//! let before = backend.snapshot(op, &workspace, &options(Label::BEFORE))?;
//! fs::write(app.join("config"), "debug = true\n")?;
//! let after = backend.snapshot(op, &workspace, &options(Label::AFTER))?;
//!
//! let no_patch = DiffOptions::default();
//! let diff = backend.diff(op, &workspace, &before, &after, &no_patch, &mut io::sink())?;
//! assert_eq!(diff.modified[0].as_bytes(), b"config");
//!
//! let goal = RestoreGoal::Snapshot { snapshot: before, paths: Vec::new() };
//! let guarded = RestoreOptions::new(options(Label::GUARD));
//! backend.restore(op, &mut workspace, &goal, &guarded)?;
//! assert_eq!(fs::read_to_string(app.join("config"))?, "debug = false\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate runs no hook, filter or helper of a repository and no program of a workspace, and
//! uses no network. It has no log, no runs and no retention; the crate `stillframe` has them. It is
//! for Unix, where a path is bytes.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests start git and others that are their oracles"
    )
)]

#[macro_use(seeded_bug)]
extern crate stillframe_disk;

mod backend;
mod borrow_mode;
mod branch_merge;
mod branches;
mod caches;
#[cfg(test)]
mod capture_faults;
mod capture_rules;
mod checkpoint;
mod commit;
mod content_hash;
mod description;
mod detect;
mod diff;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod git;
mod hard_links;
mod hash;
#[cfg(test)]
#[path = "../../tests/support/holder.rs"]
mod holder;
mod holdings;
mod host_rules;
mod kept_open;
mod listed;
#[cfg(test)]
#[path = "../../tests/support/must_run.rs"]
mod must_run;
mod owner;
mod patch;
mod path_globs;
mod place;
mod purge;
#[cfg(test)]
mod purge_faults;
mod record;
pub mod ref_commands;
mod repository;
mod restore;
mod run_worktree;
mod shell;
#[cfg(test)]
mod stopped;
mod stored;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workspace;

#[cfg(test)]
use stillframe_disk::trial;
use stillframe_disk::{
    blob, bulk, codec, deadline, descriptor, durable, faults, file_system_of, interrupt, lock,
    note, operation, pace, parallel, quota, regular_file, removal,
};
use stillframe_git::{ignore_rules, path_pattern};
use stillframe_model::{
    contents, coverage, diff_error, dot_git, error, file_system, identity, interrupted, lock_error,
    nested, path, plan_id, problem, progress, read_error, repository_changes, restore_error,
    restore_goal, restore_plan, retain, search, size, snapshot, snapshot_error, store_error, tree,
};
use stillframe_worktree as worktree;

#[doc(hidden)]
pub use stillframe_disk::seeded_bug;

pub use removal::wait_for_removals;

pub use lock_error::LockError;

pub use identity::Identity;

pub use workspace::{LockedWorkspace, StateDir, Workspace, WorkspaceError};

pub use detect::{Detection, Strategy, UnknownStrategy, backend_of, detect};

pub use backend::{
    Backend, Recovery, RepositoryRestore, RestoreDurations, RestoreOptions, RestoreOutcome,
    SnapshotOptions, Verification, Why,
};

pub use borrow_mode::BorrowMode;

pub use capture_rules::CaptureRules;

pub use diff_error::DiffError;

pub use holdings::{Holdings, Listing, Unreadable};

pub use host_rules::IgnoreOptions;

pub use path_globs::PathGlobs;

pub use git::new_repository::NewRepository;

pub use place::{Place, PlaceError, Scratch};

pub use interrupt::Interrupt;

pub use interrupted::Interrupted;

pub use operation::Operation;

/// The times of snapshots.
pub use jiff::Timestamp;

pub use owner::Owner;

pub use repository::{EarlierTag, KeptRef, MovedTag, MovedTags, ReleasedRefs, Repository};

pub use problem::Problem;

pub use progress::Progress;

pub use read_error::ReadError;

pub use repository_changes::RepositoryProblem;

pub use restore_error::RestoreError;

pub use snapshot_error::SnapshotError;

pub use store_error::StoreError;

pub use stored::StoredSnapshot;

pub use snapshot::{
    BackendKind, InvalidSnapshotId, KeptHistory, Label, Snapshot, SnapshotId, SnapshotMetadata,
};

pub use size::printable_size;

pub use shell::shell_word;

pub use search::{Search, WalkReason};

pub use nested::{NestedRepository, NestedState};

pub use coverage::{Coverage, Omission, OmissionReason, OmittedKind};

pub use diff::{
    ApproximatedFile, Approximation, ChangedFile, Diff, DiffOptions, FileStatus, NestedChange,
    OperationChange, PatchText, Renamed, Renames, SkipWorktreeChange,
};

pub use restore::{
    Conflict, ConflictRegion, CopyOptions, CopyOutcome, DroppedStash, IndexChange, LostAttributes,
    ModeChange, PlanId, RefChange, Removal, RepositoryChanges, RestoreGoal, RestorePlan,
    SkipReason, Skipped, Write,
};

pub use retain::RetainContent;

pub use purge::{
    FoundContent, FoundContents, KeptContent, Proof, PurgeError, PurgeTarget, Purging,
};

pub use branch_merge::{BranchMerge, BranchMove, Checkout, CheckoutUsage, Merged};
pub use branches::{BranchError, Branches, Switch, SwitchRequest, Trailer};
pub use checkpoint::{
    AllowedSecret, CheckpointError, CheckpointKind, CheckpointMessage, CheckpointOutcome,
    CheckpointRequest, Checkpoints, KeptCheckpoint, MergeRequest, Reaches, RemoteAddress,
    RevealedSecrets, SecretFinding, SecretPlace, SecretSearch,
};

pub use run_worktree::{
    BranchTip, Brought, Ensured, Origin, Removed, RunDirectory, RunWorktree, RunWorktreeError,
    RunWorktreeState, RunWorktrees,
};

pub use commit::{
    CommitError, CommitInfo, CommitIntent, CommitOutcome, CommitRequest, PreparedCandidate,
    Signature,
};

pub use tree::{Change, ContentId, Entry, EntryKind};

pub use listed::ListedFile;

pub use worktree::displaced::Displaced;

pub use path::{InvalidPath, RelPath, printable_bytes, printable_name};

pub use error::{ErrorKind, PathError, printable};

pub use file_system::FileSystem;

pub use file_system_of::file_system_of;

pub use regular_file::open_regular;
