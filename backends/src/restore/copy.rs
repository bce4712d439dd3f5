//! Putting what a snapshot has into a directory of its own, elsewhere: all of it, or nothing.
//!
//! It is a restore into a directory that nobody knows yet, by the same steps: staged, intended,
//! applied. What it is made of lies beside the place where it will be, in a private directory, and
//! gets its name last.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::procedure::stage_error;
use super::{PlanId, Restorable, RestorePlan, SkipReason, Skipped, Write, check_content_kept};
use crate::content_hash::ContentHashes;
use crate::coverage::OmissionReason;
use crate::error::PathError;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::place::{Place, Scratch};
use crate::purge::Purged;
use crate::record::Record;
use crate::restore_error::RestoreError;
use crate::snapshot::SnapshotId;
use crate::tree::{ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::displaced::{Held, lossless};
use crate::worktree::root::Root;
use crate::worktree::staging::{self, CommitError, StageError};

/// Where to, and what of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyOptions {
    /// The directory: new, or empty. What is above it is there.
    pub to: PathBuf,
    /// Literal paths, files or directories. Default: everything.
    pub paths: Vec<RelPath>,
}

impl CopyOptions {
    /// All of a snapshot, into this directory.
    pub fn to(directory: impl Into<PathBuf>) -> Self {
        Self {
            to: directory.into(),
            paths: Vec::new(),
        }
    }

    /// Sets [`CopyOptions::paths`].
    pub fn paths(mut self, paths: Vec<RelPath>) -> Self {
        self.paths = paths;
        self
    }

    /// Refuses a directory that nothing can be put into: [`RestoreError::BadPlace`]. No snapshot is
    /// read.
    pub fn check_place(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        place(&self.to, workspace).map(drop)
    }

    fn asks_for(&self, path: &RelPath) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|asked| path.starts_with(asked))
    }
}

/// What is in the directory now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CopyOutcome {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The directory: absolute, without links.
    #[serde(serialize_with = "lossless")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub to: PathBuf,
    /// How many files and links are in it.
    pub files: u64,
    /// What was asked for and is not in it, since its content was purged; sorted by path.
    pub skipped: Vec<Skipped>,
}

/// Copies: see [`StoredSnapshot::copy`](crate::StoredSnapshot::copy).
pub(crate) fn copy<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    record: &Record,
    options: &CopyOptions,
) -> Result<CopyOutcome, RestoreError> {
    let place = place(&options.to, workspace)?;
    check_content_kept(record)?;
    let entries = backend.entries(op, workspace, record)?;
    let Wanted { plan, skipped } = wanted(record, entries, &Purged::of(workspace)?, options)?;
    let scratch = place.scratch(op).map_err(RestoreError::Prepare)?;
    make(op, backend, workspace, record, &plan, &scratch, &place)
        .map_err(|error| told_of(&place, error, &scratch))?;
    Ok(CopyOutcome {
        snapshot: record.snapshot.id.clone(),
        to: place.path(),
        files: plan.writes.len() as u64,
        skipped,
    })
}

/// What is to be put there.
struct Wanted {
    plan: RestorePlan,
    skipped: Vec<Skipped>,
}

/// Decides what of a snapshot is put there. Pure.
fn wanted(
    record: &Record,
    entries: Vec<(RelPath, Entry)>,
    purged: &Purged,
    options: &CopyOptions,
) -> Result<Wanted, RestoreError> {
    let empty = record.empty_directories.iter();
    let empty: Vec<&RelPath> = empty.filter(|path| options.asks_for(path)).collect();
    let entries = entries
        .into_iter()
        .filter(|(path, _)| options.asks_for(path));
    let (gone, entries): (Vec<_>, Vec<_>) =
        entries.partition(|(_, entry)| purged.contains(&entry.id));
    for asked in &options.paths {
        let paths = entries.iter().chain(&gone).map(|(path, _)| path);
        if !paths
            .chain(empty.iter().copied())
            .any(|path| path.starts_with(asked))
        {
            return Err(absent(record, asked));
        }
    }
    let id = PlanId::of_digest(blake3::hash(record.snapshot.id.as_str().as_bytes()).as_bytes());
    let mut plan = RestorePlan::empty(id, record.snapshot.id.clone());
    let write = |(path, entry): (RelPath, Entry)| Write {
        mode: record.modes.of(&path, entry.kind),
        path,
        current: None,
        entry,
    };
    plan.writes = entries.into_iter().map(write).collect();
    let directory = |path: &RelPath| (path.clone(), record.modes.of_directory(path));
    plan.make_directories = empty.into_iter().map(directory).collect();
    let skipped = gone.into_iter().map(|(path, _)| Skipped {
        path,
        reason: SkipReason::Omitted(OmissionReason::Purged),
    });
    Ok(Wanted {
        plan,
        skipped: skipped.collect(),
    })
}

/// Why a path that was asked for is not in a snapshot.
fn absent(record: &Record, path: &RelPath) -> RestoreError {
    let (snapshot, path) = (record.snapshot.id.clone(), path.clone());
    match record.snapshot.omissions.covers(&path).cloned() {
        None => RestoreError::AbsentPath { snapshot, path },
        Some(omission) => RestoreError::OmittedPath {
            snapshot,
            path,
            omission,
        },
    }
}

/// Makes all of it in `scratch`, and gives it its name.
fn make<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    record: &Record,
    plan: &RestorePlan,
    scratch: &Scratch,
    place: &Place,
) -> Result<(), RestoreError> {
    let (store, tree) = (scratch.path().join("store"), scratch.tree());
    let make =
        |path: &Path| fs::create_dir(path).map_err(PathError::at("make the directory", path));
    make(&store)
        .and_then(|()| make(&tree))
        .and_then(|()| place.dress(&tree))
        .map_err(RestoreError::Prepare)?;
    let root = Root::of_directory(&tree).map_err(RestoreError::Prepare)?;
    let ids: BTreeSet<ContentId> = plan.writes.iter().map(|write| write.entry.id).collect();
    let ids = Vec::from_iter(ids);
    if let Some(first) = backend.missing(op, workspace, &ids)?.first() {
        return Err(RestoreError::TargetCorrupt {
            snapshot: record.snapshot.id.clone(),
            detail: format!("the store lacks {first}"),
        });
    }
    let contents = backend
        .contents(op, workspace, &ids)
        .map_err(|error| stage_error(StageError::Store(error), &record.snapshot.id))?;
    let staged = staging::stage(&staging::Request {
        root: &root,
        store: &store,
        journal: &store,
        plan,
        // Of what is displaced, which is nothing.
        guard: &SnapshotId::random(),
        modes: &record.modes,
        seen: &|_| None,
        hidden: &|_| SkipReason::ChangedMeanwhile,
        contents: &*contents,
        held: &Held::default(),
        index: None,
        op,
    })
    .map_err(|error| stage_error(error, &record.snapshot.id))?;
    let mut skipped = staged.skipped().to_vec();
    let committed = staged
        .commit(op, &store, plan, None)
        .map_err(|error| match error {
            CommitError::Refused(source) | CommitError::Undecided(source) => {
                RestoreError::Prepare(source)
            }
        })?;
    skipped.extend(
        committed
            .apply(op, &root, &ContentHashes)
            .map_err(RestoreError::Prepare)?,
    );
    committed
        .finish(op, &store)
        .map_err(RestoreError::Prepare)?;
    if let Some(Skipped { path, .. }) = skipped.into_iter().next() {
        // Somebody was at work in a directory that is ours alone.
        return Err(RestoreError::Changed { path });
    }
    op.check()?;
    place.take(op, scratch).map_err(RestoreError::Prepare)
}

/// Finds the place for a copy: it lies neither in the workspace nor where everything is kept.
fn place(to: &Path, workspace: &Workspace) -> Result<Place, RestoreError> {
    let apart_from = [
        (workspace.disk_path(), "the workspace"),
        (workspace.state().path(), "the state directory"),
    ];
    Ok(Place::find(to, &apart_from)?)
}

/// The error as one of the place, if it is of a name in `scratch`.
fn told_of(place: &Place, error: RestoreError, scratch: &Scratch) -> RestoreError {
    match error {
        RestoreError::Prepare(source) => RestoreError::Prepare(place.told(source, scratch)),
        RestoreError::NoRoom {
            needed_bytes,
            file_system,
            source,
        } => RestoreError::NoRoom {
            needed_bytes,
            file_system,
            source: place.told(source, scratch),
        },
        error => error,
    }
}
