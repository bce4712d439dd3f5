//! The hash backend: a blake3 manifest of a directory, with or without the content.

mod content;
mod manifest;
mod rules;
mod store;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::backend::{
    Backend, DiffError, Recovery, RepositoryProblem, RestoreError, RestoreOptions, RestoreOutcome,
    SnapshotError, SnapshotOptions, StoreError, Verification, Why,
};
use crate::coverage::{Coverage, OmissionReason};
use crate::diff::beside::{Beside, Compared};
use crate::diff::{self, Diff, DiffOptions};
use crate::error::PathError;
use crate::git::ObjectId;
use crate::git::rollback::FoundRepository;
use crate::hash::content::HashSink;
use crate::hash::manifest::{Item, Listing, Manifest};
use crate::hash::rules::HashRules;
use crate::hash::store::HashStore;
use crate::path::RelPath;
use crate::record::{RECORD_VERSION, Record};
use crate::restore::{
    self, Captured, ContentError, Contents, Node, Publish, Restorable, RestoreGoal, RestorePlan,
    Side,
};
use crate::snapshot::{BackendKind, Snapshot, SnapshotId};
use crate::tree::{Change, ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::area;
use crate::worktree::journal::Seen;
use crate::worktree::memory::{Basis, Outcome, Use};
use crate::worktree::root::Root;
use crate::worktree::stat_cache::StatCache;
use crate::worktree::walk::{self, Seeds, WalkOptions};

/// Captures a directory as a list of blake3 digests, and keeps the content if asked to.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashBackend {
    /// Why it stands in for the git backend, where it was chosen for want of that; each snapshot says
    /// so.
    instead_of_git: Option<String>,
}

/// What a capture found.
pub(crate) struct HashCapture {
    record: Record,
    /// Made when somebody asks for paths: most captures are only taken.
    manifest: OnceLock<Manifest>,
    cache: Arc<StatCache>,
}

impl HashCapture {
    fn manifest(&self) -> &Manifest {
        let listed = || Listing::of(&self.cache.directories).to_manifest();
        self.manifest.get_or_init(listed)
    }
}

impl Captured for HashCapture {
    fn record(&self) -> &Record {
        &self.record
    }

    fn seen(&self, path: &RelPath) -> Option<Seen> {
        let entry = self.cache.entry(path);
        entry.filter(|e| e.is_captured()).map(Seen::of)
    }
}

impl HashBackend {
    /// The backend for a workspace that lies in a repository which cannot be read, for this `reason`.
    pub(crate) fn instead_of_git(reason: String) -> Self {
        Self {
            instead_of_git: Some(reason),
        }
    }

    fn capture_now(
        &self,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        publish: Publish,
    ) -> Result<HashCapture, SnapshotError> {
        let started = Instant::now();
        let rules = HashRules::new(options)?;
        let root = Root::open(workspace).map_err(|source| SnapshotError::Unreadable {
            context: "the workspace could not be opened".to_owned(),
            source,
        })?;
        let store = HashStore::of(workspace);
        store.create().map_err(StoreError::from)?;
        if publish == Publish::Yes && store.has(&options.id) {
            return Err(SnapshotError::taken(&options.id));
        }
        let keeps = options.retain_content && publish == Publish::Yes;
        // A cache that vouches for a digest says nothing about its content, so captures that keep
        // content trust only a cache of their own kind.
        let cache_file = match options.retain_content {
            true => CONTENT_CACHE_FILE,
            false => CACHE_FILE,
        };
        let usage = match publish {
            Publish::Yes => Use::Takes,
            Publish::No => Use::Borrows,
        };
        let base = workspace
            .memory()
            .base(workspace, root.identity(), cache_file, usage);
        let mut scope = base.scope(&root, options.watch, usage, basis(options), &[]);
        let sink = HashSink::new(keeps.then_some(&store.content));
        let walked = walk::search(
            &root,
            &rules,
            &sink,
            &mut scope,
            WalkOptions {
                cache: &base.cache,
                // No index tells it of anything.
                seeds: &Seeds::default(),
                absent: &base.absent,
                only: None,
                watch: None,
                max_untracked_file_bytes: options.max_untracked_file_bytes,
                max_files: options.max_files,
                interrupt: &options.interrupt,
                progress: options.progress.as_deref(),
            },
        )?;
        let omissions = walked.omissions.values().cloned().collect();
        let search = scope.search;
        let outcome = Outcome {
            result: Vec::new(),
            has_kept: false,
        };
        let closing = base.close(scope, walked.delta, walked.omissions, false, outcome);
        let cache = Arc::clone(closing.cache());
        let listing = Listing::of(&cache.directories);
        let tally = closing.tally();
        let mut snapshot = Snapshot::new(
            options.id.clone(),
            BackendKind::Hash,
            workspace.disk_path().to_owned(),
            listing.digest().to_hex().to_string(),
            options.label.clone(),
            options.captured_at,
        );
        snapshot.omissions = Coverage::new(omissions);
        let reason = self.instead_of_git.as_ref();
        snapshot.metadata.warnings = reason
            .map(|reason| format!("captured with the hash backend: {reason}"))
            .into_iter()
            .collect();
        snapshot.metadata.search = search;
        snapshot.metadata.files = tally.files();
        snapshot.metadata.files_hashed = walked.files_hashed;
        snapshot.metadata.bytes_read = walked.bytes_read;
        snapshot.metadata.duration_ms =
            u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Record {
            version: RECORD_VERSION,
            snapshot,
            empty_directories: tally.empty_directories(),
            modes: tally.modes(),
            ignore: options.ignore.clone(),
            include: options.include.clone(),
            has_content: options.retain_content,
            git: None,
        };
        let cache = Arc::clone(closing.cache());
        if publish == Publish::Yes {
            options.interrupt.check()?;
            sink.publish()?;
            store.publish(&record, &listing)?;
            drop(listing);
            closing.keep(workspace, None);
        }
        Ok(HashCapture {
            record,
            manifest: OnceLock::new(),
            cache,
        })
    }

    fn manifest_of_side<'c>(
        workspace: &Workspace,
        side: Side<'c, HashCapture>,
    ) -> Result<Cow<'c, Manifest>, StoreError> {
        Ok(match side {
            Side::Stored(record) => {
                Cow::Owned(HashStore::of(workspace).manifest(&record.snapshot.reference)?)
            }
            Side::Now(capture) => Cow::Borrowed(capture.manifest()),
        })
    }
}

/// The names of the stat caches in the store.
const CACHE_FILE: &str = "hash.stat-cache";
const CONTENT_CACHE_FILE: &str = "hash-content.stat-cache";

/// What says which paths belong to the capture.
fn basis(options: &SnapshotOptions) -> Basis {
    let rules = (
        &options.ignore,
        &options.include,
        options.max_untracked_file_bytes,
    );
    Basis {
        rules: serde_json::to_vec(&rules).expect("rules are plain data"),
        rule_files: &[],
    }
}

/// A stored snapshot, of this workspace or another, as a side of a comparison.
struct StoredSide {
    record: Record,
    manifest: Manifest,
    rules: HashRules,
}

impl StoredSide {
    fn of(workspace: &Workspace, id: &SnapshotId) -> Result<Self, StoreError> {
        let store = HashStore::holding(workspace, id)?;
        let record = store.record(id)?;
        let manifest = store.manifest(&record.snapshot.reference)?;
        let rules = rules_of(&record)?;
        Ok(Self {
            record,
            manifest,
            rules,
        })
    }
}

impl Compared for StoredSide {
    fn record(&self) -> &Record {
        &self.record
    }

    fn node(&self, path: &RelPath) -> Result<Option<Node>, StoreError> {
        Ok(node_in(&self.manifest, path))
    }

    fn entries(&self) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        Ok(entries_of(&self.manifest))
    }

    fn leaves_out(&self, path: &RelPath, is_directory: bool) -> Result<bool, StoreError> {
        Ok(self.rules.excludes_in_tree(path, is_directory).is_some())
    }
}

fn node_in(manifest: &Manifest, path: &RelPath) -> Option<Node> {
    match manifest.entry(path) {
        Some(entry) => Some(Node::Entry(entry)),
        None => manifest.knows(path).then_some(Node::Directory),
    }
}

fn entries_of(manifest: &Manifest) -> Vec<(RelPath, Entry)> {
    let files = manifest.items().iter().filter_map(Item::content);
    files.map(|(path, entry)| (path.clone(), entry)).collect()
}

fn rules_of(record: &Record) -> Result<HashRules, StoreError> {
    HashRules::of_record(record).ok_or_else(|| {
        StoreError::corrupt(
            record.snapshot.id.to_string(),
            "its ignore options are not valid",
        )
    })
}

/// The content that a store keeps.
struct HashContents(HashStore);

impl Contents for HashContents {
    fn place(&self, _: &ContentId) -> u64 {
        // Each is a file of its own.
        0
    }

    fn write(&self, id: &ContentId, sink: &mut dyn Write) -> Result<(), ContentError> {
        self.0.content.write_to(id, sink).map(drop)
    }
}

impl Restorable for HashBackend {
    type Capture = HashCapture;

    fn record(&self, workspace: &Workspace, id: &SnapshotId) -> Result<Record, StoreError> {
        HashStore::of(workspace).record(id)
    }

    fn check_restorable(&self, record: &Record) -> Result<(), RestoreError> {
        if record.has_content {
            return Ok(());
        }
        Err(RestoreError::Unsupported(format!(
            "snapshot {} was taken without its content and cannot be put back; take snapshots \
             with retained content",
            record.snapshot.id
        )))
    }

    fn capture(
        &self,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
    ) -> Result<HashCapture, SnapshotError> {
        let mut options = options.clone();
        // What is put back must itself be able to come back.
        options.retain_content = true;
        let today = HashRules::new(&options)?;
        for record in keep {
            // What the target captured goes into the guard, whatever is excluded today.
            let manifest = HashStore::of(workspace).manifest(&record.snapshot.reference)?;
            let excluded = manifest.items().iter().filter(|item| {
                item.content().is_some() && today.excludes_in_tree(&item.path, false).is_some()
            });
            options
                .include
                .extend(excluded.map(|item| item.path.clone()));
        }
        self.capture_now(workspace, &options, publish)
    }

    fn changes(
        &self,
        workspace: &Workspace,
        from: Side<'_, HashCapture>,
        to: &Record,
    ) -> Result<Vec<Change>, StoreError> {
        let to = HashStore::of(workspace).manifest(&to.snapshot.reference)?;
        Ok(Self::manifest_of_side(workspace, from)?.changes_to(&to))
    }

    fn lookup(
        &self,
        workspace: &Workspace,
        side: Side<'_, HashCapture>,
        paths: &[RelPath],
    ) -> Result<Vec<Option<Node>>, StoreError> {
        let manifest = Self::manifest_of_side(workspace, side)?;
        Ok(paths.iter().map(|path| node_in(&manifest, path)).collect())
    }

    fn entries(
        &self,
        workspace: &Workspace,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        let manifest = HashStore::of(workspace).manifest(&record.snapshot.reference)?;
        Ok(entries_of(&manifest))
    }

    fn ignored(
        &self,
        _workspace: &Workspace,
        side: Side<'_, HashCapture>,
        paths: &[RelPath],
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError> {
        let record = match side {
            Side::Stored(record) => record,
            Side::Now(capture) => &capture.record,
        };
        let rules = rules_of(record)?;
        Ok(paths
            .iter()
            .filter(|path| rules.excludes_in_tree(path, false).is_some())
            .map(|path| (path.clone(), OmissionReason::Excluded))
            .collect())
    }

    fn missing(
        &self,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        let store = HashStore::of(workspace);
        let has = |id: &ContentId| content::digest(id).is_some_and(|d| store.content.contains(&d));
        Ok(ids.iter().filter(|id| !has(id)).copied().collect())
    }

    fn contents<'a>(
        &'a self,
        workspace: &'a Workspace,
        _: &[ContentId],
    ) -> Result<Box<dyn Contents + 'a>, StoreError> {
        Ok(Box::new(HashContents(HashStore::of(workspace))))
    }

    fn repository(
        &self,
        _workspace: &LockedWorkspace,
    ) -> Result<Option<FoundRepository>, RepositoryProblem> {
        Ok(None)
    }

    fn index_bytes(&self, _workspace: &Workspace, blob: &ObjectId) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::corrupt(
            blob.to_string(),
            "a hash snapshot keeps no index",
        ))
    }
}

impl Backend for HashBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Hash
    }

    fn snapshot(
        &self,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        Ok(self
            .capture_now(workspace, options, Publish::Yes)?
            .record
            .snapshot)
    }

    fn list(&self, workspace: &Workspace) -> Result<Vec<Snapshot>, StoreError> {
        let records = HashStore::of(workspace).records()?;
        Ok(records.into_iter().map(|record| record.snapshot).collect())
    }

    fn diff(
        &self,
        workspace: &Workspace,
        from: &Snapshot,
        to: &Snapshot,
        options: &DiffOptions,
        _patch: &mut dyn Write,
    ) -> Result<Diff, DiffError> {
        diff::check(from, to, options)?;
        options.interrupt.check()?;
        let (before, after) = (
            StoredSide::of(workspace, &from.id)?,
            StoredSide::of(workspace, &to.id)?,
        );
        let changes = before.manifest.changes_to(&after.manifest);
        let beside = Beside::between(&before, &after, &changes)?;
        let (from, to) = (&before.record.snapshot, &after.record.snapshot);
        let changes = diff::evident(changes, &from.omissions, &to.omissions);
        let diff = Diff::of_changes(BackendKind::Hash, &from.reference, &to.reference, &changes);
        Ok(diff.beside(beside))
    }

    fn plan(
        &self,
        workspace: &LockedWorkspace,
        goal: &RestoreGoal,
        options: &SnapshotOptions,
    ) -> Result<RestorePlan, RestoreError> {
        restore::plan_only(self, workspace, goal, options)
    }

    fn restore(
        &self,
        workspace: &mut LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError> {
        restore::restore(self, workspace, goal, options)
    }

    fn check_restore_place(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        restore::check_place(workspace)
    }

    fn recover(&self, workspace: &mut LockedWorkspace) -> Result<Recovery, RestoreError> {
        restore::recover(workspace)
    }

    fn why(
        &self,
        workspace: &LockedWorkspace,
        path: &RelPath,
        options: &SnapshotOptions,
    ) -> Result<Why, SnapshotError> {
        let rules = HashRules::new(options)?;
        let capture = self.capture_now(workspace, options, Publish::No)?;
        let mut why = why_in_record(&capture.record, capture.manifest(), path);
        if !why.captured {
            why.rule = rules.excludes_in_tree(path, true);
        }
        Ok(why)
    }

    fn why_in(
        &self,
        workspace: &Workspace,
        snapshot: &Snapshot,
        path: &RelPath,
    ) -> Result<Why, StoreError> {
        let store = HashStore::of(workspace);
        let record = store.record(&snapshot.id)?;
        let manifest = store.manifest(&record.snapshot.reference)?;
        let mut why = why_in_record(&record, &manifest, path);
        if !why.captured {
            why.rule = HashRules::of_record(&record).and_then(|r| r.excludes_in_tree(path, true));
        }
        Ok(why)
    }

    fn verify(
        &self,
        workspace: &Workspace,
        snapshot: &Snapshot,
    ) -> Result<Verification, StoreError> {
        let store = HashStore::of(workspace);
        Verification::proven(store.record(&snapshot.id).and_then(|record| {
            let problems = store.verify(&record)?;
            Ok(Verification::new(problems).without_content(!record.has_content))
        }))
    }

    fn forget(
        &self,
        workspace: &mut LockedWorkspace,
        ids: &[SnapshotId],
    ) -> Result<(), StoreError> {
        HashStore::of(workspace).forget(ids)?;
        // What a restore displaced goes with the guard that has the same content.
        area::purge_trashes(workspace.store_path(), ids)
    }

    fn collect(&self, workspace: &mut LockedWorkspace) -> Result<u64, StoreError> {
        let freed = HashStore::of(workspace).collect()?;
        // The cache may vouch for content that is gone.
        let cache = workspace.store_path().join(CONTENT_CACHE_FILE);
        match std::fs::remove_file(&cache) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(PathError::at("remove", cache)(e).into())
            }
            _ => Ok(freed),
        }
    }

    fn store_bytes(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        Ok(HashStore::of(workspace).bytes()? + area::trash_bytes(workspace.store_path())?)
    }
}

fn why_in_record(record: &Record, manifest: &Manifest, path: &RelPath) -> Why {
    let (captured, reason) = if manifest.knows(path) || path.is_root() {
        (true, "untracked")
    } else if let Some(omission) = record.snapshot.omissions.covers(path) {
        (false, omission.reason.as_str())
    } else {
        (false, "absent")
    };
    Why {
        path: path.clone(),
        captured,
        reason: reason.to_owned(),
        rule: None,
    }
}
