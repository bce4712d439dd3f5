//! The hash backend: a blake3 manifest of a directory, with or without the content.

mod capture;
mod content;
mod last;
mod limit;
mod manifest;
mod rules;
mod store;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::os::fd::AsFd as _;

use jiff::Timestamp;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::manifest::Manifest as FuzzedManifest;
use crate::backend::{Backend, RestoreOptions, RestoreOutcome, SnapshotOptions, Verification, Why};
use crate::caches::{CONTENT_STAT_CACHE, HASH_STAT_CACHE};
use crate::contents::{ContentError, Contents};
use crate::coverage::OmissionReason;
use crate::diff::beside::{self, Compared};
use crate::diff::scope::Scope;
use crate::diff::{self, Diff, DiffOptions, Renames, renames};
use crate::diff_error::DiffError;
use crate::durable;
use crate::error::PathError;
use crate::hard_links;
use crate::hash::capture::{HashCapture, Request};
use crate::hash::content::HashSink;
use crate::hash::manifest::{Item, Manifest};
use crate::hash::rules::HashRules;
use crate::hash::store::HashStore;
use crate::holdings::{Holdings, Listing};
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::purge::{
    self, FoundContent, FoundContents, Proof, PurgeError, PurgeTarget, Purged, Purging, Wanted,
};
use crate::record::Record;
use crate::removal;
use crate::restore::{self, Node, Publish, Restorable, RestoreGoal, RestorePlan, Side};
use crate::restore_error::RestoreError;
use crate::retain::RetainContent;
use crate::snapshot::{BackendKind, Snapshot, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::stored::{ReadStored, Stored, StoredSnapshot};
use crate::tree::{Change, ContentId, Entry, EntryKind};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::area;
use crate::worktree::attributes;
use crate::worktree::read::{self, SinkError};
use crate::worktree::root;

/// Captures a directory as a list of blake3 digests, and keeps the content if asked to.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashBackend {
    /// Why it stands in for the git backend, where it was chosen for want of that; each snapshot
    /// says so.
    instead_of_git: Option<String>,
}

impl HashBackend {
    /// The backend for a workspace that lies in a repository which cannot be read, for this
    /// `reason`.
    pub(crate) fn instead_of_git(reason: String) -> Self {
        Self {
            instead_of_git: Some(reason),
        }
    }

    fn capture_now(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        publish: Publish,
    ) -> Result<HashCapture, SnapshotError> {
        let request = Request {
            op,
            workspace,
            options,
            publish,
            instead_of_git: self.instead_of_git.as_deref(),
        };
        request.carry_out()
    }

    fn manifest_of_side<'c>(
        op: &Operation,
        workspace: &Workspace,
        side: Side<'c, HashCapture>,
    ) -> Result<Cow<'c, Manifest>, StoreError> {
        Ok(match side {
            Side::Stored(record) => {
                Cow::Owned(HashStore::of(workspace).manifest(&record.snapshot.reference)?)
            }
            Side::Now(capture) => Cow::Borrowed(capture.manifest(op)),
        })
    }
}

/// Fewer files than this are read before another thread has begun.
const MIN_FILES_PER_THREAD: usize = 32;

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

    fn node(&self, _: &Operation, path: &RelPath) -> Result<Option<Node>, StoreError> {
        Ok(node_in(&self.manifest, path))
    }

    fn entries(&self, _: &Operation) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        Ok(entries_of(&self.manifest))
    }

    fn leaves_out(
        &self,
        _: &Operation,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<bool, StoreError> {
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
struct HashContents {
    op: Operation,
    store: HashStore,
}

impl Contents for HashContents {
    fn place(&self, _: &ContentId) -> u64 {
        // Each is a file of its own.
        0
    }

    fn length(&self, id: &ContentId) -> Result<u64, StoreError> {
        self.store.content.length(id)
    }

    fn write(&self, id: &ContentId, sink: &mut dyn Write) -> Result<(), ContentError> {
        let content = &self.store.content;
        content.write_to(&self.op, id, sink).map(drop)
    }
}

impl Restorable for HashBackend {
    type Capture = HashCapture;

    fn record(
        &self,
        _: &Operation,
        workspace: &Workspace,
        id: &SnapshotId,
    ) -> Result<Record, StoreError> {
        HashStore::of(workspace).record(id)
    }

    fn capture(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
    ) -> Result<HashCapture, SnapshotError> {
        let mut options = options.clone();
        // What is put back must itself be able to come back.
        options.retain_content = RetainContent::Always;
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
        self.capture_now(op, workspace, &options, publish)
    }

    fn changes(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: Side<'_, HashCapture>,
        to: &Record,
    ) -> Result<Vec<Change>, StoreError> {
        let to = HashStore::of(workspace).manifest(&to.snapshot.reference)?;
        Ok(Self::manifest_of_side(op, workspace, from)?.changes_to(op, &to)?)
    }

    fn lookup(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, HashCapture>,
        paths: &[RelPath],
    ) -> Result<Vec<Option<Node>>, StoreError> {
        let manifest = Self::manifest_of_side(op, workspace, side)?;
        Ok(paths.iter().map(|path| node_in(&manifest, path)).collect())
    }

    fn entries(
        &self,
        _: &Operation,
        workspace: &Workspace,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        let manifest = HashStore::of(workspace).manifest(&record.snapshot.reference)?;
        Ok(entries_of(&manifest))
    }

    fn ignored(
        &self,
        _: &Operation,
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

    fn ignored_directories(
        &self,
        _: &Operation,
        _workspace: &Workspace,
        side: Side<'_, HashCapture>,
        directories: &[RelPath],
    ) -> Result<Vec<RelPath>, StoreError> {
        let rules = rules_of(side.record())?;
        let is_ignored = |path: &&RelPath| rules.excludes_in_tree(path, true).is_some();
        Ok(directories.iter().filter(is_ignored).cloned().collect())
    }

    fn missing(
        &self,
        _: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        let store = HashStore::of(workspace);
        let has = |id: &ContentId| content::digest(id).is_some_and(|d| store.content.contains(&d));
        Ok(ids.iter().filter(|id| !has(id)).copied().collect())
    }

    fn unsound(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        let store = HashStore::of(workspace);
        let look = |id: &ContentId| match store.content.write_to(op, id, &mut std::io::sink()) {
            Ok(_) => Ok(None),
            Err(ContentError::Store(StoreError::Corrupt { .. })) => Ok(Some(*id)),
            Err(ContentError::Store(error)) => Err(error),
            Err(ContentError::Sink(_)) => unreachable!("a sink takes everything"),
        };
        let looked = parallel::in_parts(ids, MIN_FILES_PER_THREAD, |part| {
            part.iter().filter_map(|id| look(id).transpose()).collect()
        });
        let unsound: Result<Vec<Vec<ContentId>>, StoreError> = looked.into_iter().collect();
        Ok(unsound?.concat())
    }

    fn heal(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        _: &HashCapture,
        paths: &[(RelPath, Entry)],
    ) -> Result<(), SnapshotError> {
        let unreadable = |context: String, source| SnapshotError::Unreadable { context, source };
        let root = workspace
            .root()
            .map_err(|source| unreadable("the workspace could not be opened".to_owned(), source))?;
        let store = HashStore::of(workspace);
        let purged = Purged::of(workspace)?;
        let sink = HashSink::anew(op, &store.content, &purged).removed_by(workspace.remover());
        for (path, entry) in paths {
            let cannot = |source: std::io::Error| {
                let source = PathError::at("read", root.disk_path(path))(source);
                unreadable(format!("{path} could not be read"), source)
            };
            let (parent, name) = match root.open_parent(path) {
                Ok(found) => found,
                Err(errno) if root::is_gone_or_replaced(errno) => continue,
                Err(errno) => return Err(cannot(errno.into())),
            };
            let reading = match entry.kind {
                EntryKind::Symlink => read::link(parent.as_fd(), name, &sink),
                _ => read::file(&op.to_its_end(), parent.as_fd(), name, &sink),
            };
            match reading {
                // Whatever is there is under its own id, so nobody is misled.
                Ok(_) => {}
                Err(SinkError::Sink(error)) => return Err(error),
                Err(SinkError::Read(source)) => return Err(cannot(source)),
            }
        }
        let arrived = sink.publish()?;
        if !arrived.is_empty() {
            store.content.vouch(op);
        }
        arrived.keep();
        Ok(())
    }

    fn contents<'a>(
        &'a self,
        op: &Operation,
        workspace: &'a Workspace,
        _: &[ContentId],
    ) -> Result<Box<dyn Contents + 'a>, StoreError> {
        Ok(Box::new(HashContents {
            op: op.clone(),
            store: HashStore::of(workspace),
        }))
    }
}

impl ReadStored for HashBackend {
    type Store = HashStore;

    fn record_in(
        &self,
        _: &Operation,
        store: &HashStore,
        id: &SnapshotId,
    ) -> Result<Record, StoreError> {
        store.record(id)
    }

    fn sized_entries(
        &self,
        _: &Operation,
        store: &HashStore,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry, Option<u64>)>, StoreError> {
        let manifest = store.manifest(&record.snapshot.reference)?;
        let with_size = |item: &Item| {
            let (path, entry) = item.content()?;
            Some((path.clone(), entry, item.bytes()))
        };
        Ok(manifest.items().iter().filter_map(with_size).collect())
    }

    fn why_in(
        &self,
        _: &Operation,
        stored: &Stored<'_, Self>,
        path: &RelPath,
    ) -> Result<Why, StoreError> {
        let record = &stored.record;
        let manifest = stored.store.manifest(&record.snapshot.reference)?;
        let purged = Purged::of(stored.workspace)?;
        let entry = manifest.entry(path);
        if entry.is_some_and(|entry| purged.contains(&entry.id)) {
            let reason = OmissionReason::Purged.as_str();
            return Ok(Why::new(path.clone(), false, reason));
        }
        let mut why = why_in_record(record, &manifest, path);
        if !why.captured {
            why.rule = HashRules::of_record(record).and_then(|r| r.excludes_in_tree(path, true));
        }
        Ok(why)
    }
}

impl Backend for HashBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Hash
    }

    fn snapshot(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        Ok(self
            .capture_now(op, workspace, options, Publish::Yes)?
            .record
            .snapshot)
    }

    fn purging(&self) -> Option<&dyn Purging> {
        Some(self)
    }

    fn open<'a>(
        &'a self,
        _: &Operation,
        workspace: &'a Workspace,
        snapshot: &Snapshot,
    ) -> Result<Box<dyn StoredSnapshot + 'a>, StoreError> {
        let store = HashStore::of(workspace);
        Ok(Box::new(Stored {
            backend: self,
            workspace,
            record: store.record(&snapshot.id)?,
            store,
        }))
    }

    fn list(&self, _: &Operation, workspace: &Workspace) -> Result<Listing, StoreError> {
        HashStore::of(workspace).list()
    }

    fn holdings(&self, _: &Operation, workspace: &Workspace) -> Result<Holdings, StoreError> {
        let store = HashStore::of(workspace);
        Ok(match store.last() {
            Some(last) => Holdings::Newest {
                count: last.count,
                reference: Some(last.reference),
            },
            None => Holdings::Ids(store.ids()?),
        })
    }

    fn diff(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: &Snapshot,
        to: &Snapshot,
        options: &DiffOptions,
        _patch: &mut dyn Write,
    ) -> Result<Diff, DiffError> {
        diff::check(from, to, options)?;
        op.check()?;
        let (before, after) = (
            StoredSide::of(workspace, &from.id)?,
            StoredSide::of(workspace, &to.id)?,
        );
        let changes = before.manifest.changes_to(op, &after.manifest)?;
        let scope = Scope::of(&options.paths);
        scope.check(op, &before, &after, &options.paths)?;
        let (beside, left_out) = beside::between(op, &before, &after, &changes)?;
        let (from, to) = (&before.record.snapshot, &after.record.snapshot);
        let mut changes = diff::evident(changes, &from.omissions, &to.omissions);
        changes.retain(|change| scope.has(&change.path));
        let (from, to) = (&from.reference, &to.reference);
        let mut diff = Diff::of_changes(BackendKind::Hash, from, to, &changes)
            .left_out(&left_out)
            .beside(beside)
            .with_nested(&before.record, &after.record);
        scope.limit(&mut diff);
        if options.renames == Renames::Similar {
            diff.set_renamed(&changes, &renames::exact(&changes), Renames::Similar);
        }
        diff.explain_no_patch(options, "the hash backend does not compare lines");
        op.check()?;
        Ok(diff)
    }

    fn plan(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestorePlan, RestoreError> {
        restore::plan_only(op, self, workspace, goal, options)
    }

    fn check_restore_place(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        restore::check_place(workspace)
    }

    fn restore(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        goal: &RestoreGoal,
        options: &RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError> {
        restore::restore(op, self, workspace, goal, options)
    }

    fn why(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        path: &RelPath,
        options: &SnapshotOptions,
    ) -> Result<Why, SnapshotError> {
        let rules = HashRules::new(options)?;
        let capture = self.capture_now(op, workspace, options, Publish::No)?;
        let mut why = why_in_record(&capture.record, capture.manifest(op), path);
        if !why.captured {
            why.rule = rules.excludes_in_tree(path, true);
        } else {
            why.attributes = workspace
                .root()
                .map_or_else(|_| Vec::new(), |root| attributes::names_at(&root, path));
        }
        Ok(why)
    }

    fn verify(
        &self,
        op: &Operation,
        workspace: &Workspace,
        snapshots: &[&Snapshot],
    ) -> Vec<Result<Verification, StoreError>> {
        let mut proven = HashSet::new();
        let verify = |snapshot: &&Snapshot| verify(op, workspace, snapshot, &mut proven);
        snapshots.iter().map(verify).collect()
    }

    fn forget(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        ids: &[SnapshotId],
        unreadable: &[String],
    ) -> Result<(), StoreError> {
        let unreadable = unreadable.iter().filter_map(|name| name.parse().ok());
        let ids: Vec<SnapshotId> = ids.iter().cloned().chain(unreadable).collect();
        HashStore::of(workspace).forget(op, &ids)?;
        // What a restore displaced goes with the guard that has the same content.
        area::purge_trashes(op, workspace.store_path(), &ids)
    }

    fn collect(&self, op: &Operation, workspace: &mut LockedWorkspace) -> Result<u64, StoreError> {
        removal::wait_for(op, workspace.store_path())?;
        area::reap_leftovers(op, workspace.store_path()).map_err(StoreError::from)?;
        let store = HashStore::of(workspace);
        let before = store.bytes()?;
        // What a purge that was killed left.
        let purged = Purged::of(workspace)?;
        purge::displaced::drop_purged(op, workspace.store_path(), &purged)?;
        store.content.drop_purged(op, &purged)?;
        let dropped = before.saturating_sub(store.bytes()?);
        let freed = dropped + store.collect(op)?;
        // The cache may vouch for content that is gone.
        let cache = workspace.store_path().join(CONTENT_STAT_CACHE);
        match std::fs::remove_file(&cache) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(PathError::at("remove", cache)(e).into())
            }
            _ => Ok(freed),
        }
    }

    fn store_bytes(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        let own = HashStore::of(workspace).bytes()?;
        // What lies beside both stores is counted once.
        match workspace.store_path().join("git").exists() {
            true => Ok(own),
            false => Ok(own + area::bytes_beside(workspace.store_path())?),
        }
    }
}

impl Purging for HashBackend {
    fn find_content(
        &self,
        op: &Operation,
        workspace: &Workspace,
        target: &PurgeTarget,
        also: &[ContentId],
    ) -> Result<FoundContents, PurgeError> {
        let wanted = Wanted::new(target, also)?;
        let purged = Purged::of(workspace)?;
        HashStore::of(workspace).find_content(op, &wanted, &purged)
    }

    fn purge(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        contents: &[FoundContent],
        at: Timestamp,
    ) -> Result<Proof, PurgeError> {
        removal::wait_for(op, workspace.store_path()).map_err(StoreError::from)?;
        let purged = Purged::note(op, workspace, contents, at)?;
        for cache in [HASH_STAT_CACHE, CONTENT_STAT_CACHE] {
            durable::remove_file(op, &workspace.store_path().join(cache))?;
        }
        let displaced = purge::displaced::drop_purged(op, workspace.store_path(), &purged)?;
        let store = HashStore::of(workspace);
        store.content.drop_purged(op, &purged)?;
        Ok(displaced.and(store.content.prove_purged(&purged)?))
    }
}

/// Proves that everything a snapshot needs is in the store and right, but for content that is
/// `proven` already.
fn verify(
    op: &Operation,
    workspace: &Workspace,
    snapshot: &Snapshot,
    proven: &mut HashSet<ContentId>,
) -> Result<Verification, StoreError> {
    let store = HashStore::of(workspace);
    Verification::proven(store.record(&snapshot.id).and_then(|record| {
        let purged = Purged::of(workspace)?;
        let (problems, gone) = store.verify(op, &record, &purged, proven)?;
        // Whatever was made of an earlier failure: what was not looked at is not proven.
        op.check()?;
        Ok(Verification::new(problems)
            .without_content(!record.has_content)
            .purged(gone))
    }))
}

fn why_in_record(record: &Record, manifest: &Manifest, path: &RelPath) -> Why {
    let (captured, reason) = if manifest.knows(path) || path.is_root() {
        (true, "untracked")
    } else if let Some(omission) = record.snapshot.omissions.covers(path) {
        (false, omission.reason.as_str())
    } else {
        (false, "absent")
    };
    let mut why = Why::new(path.clone(), captured, reason);
    why.hard_links = hard_links::others(&record.snapshot, path);
    why
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::Path;
    use std::time::Duration;

    use super::capture::MIN_FILES_TO_WRITE_ASIDE;
    use super::*;
    use crate::error::ErrorKind;
    use crate::snapshot::Label;
    use crate::workspace::StateDir;

    /// What `docs/format.md` says of the reference, of all that lies below `root`, read once more.
    fn reference_of(root: &Path) -> String {
        let entries = walkdir::WalkDir::new(root).min_depth(1);
        let mut items: Vec<_> = entries.into_iter().map(Result::unwrap).collect();
        let path = |item: &walkdir::DirEntry| {
            let path = item.path().strip_prefix(root).unwrap();
            path.as_os_str().as_bytes().to_vec()
        };
        items.sort_by_key(path);
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"stillframe manifest 1\n");
        hasher.update(&(items.len() as u64).to_le_bytes());
        for item in &items {
            let path = path(item);
            hasher.update(&(path.len() as u64).to_le_bytes());
            hasher.update(&path);
            let meta = item.path().symlink_metadata().unwrap();
            let (kind, content) = if meta.is_dir() {
                hasher.update(b"d");
                continue;
            } else if meta.is_symlink() {
                let text = fs::read_link(item.path()).unwrap();
                (b"l", text.as_os_str().as_bytes().to_vec())
            } else {
                let is_executable = meta.mode() & 0o100 != 0;
                let kind = if is_executable { b"x" } else { b"f" };
                (kind, fs::read(item.path()).unwrap())
            };
            hasher.update(kind);
            hasher.update(blake3::hash(&content).as_bytes());
            hasher.update(&(content.len() as u64).to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// A workspace that stays open.
    struct Stage {
        home: tempfile::TempDir,
        workspace: LockedWorkspace,
    }

    impl Stage {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            fs::create_dir(home.path().join("tree")).unwrap();
            let workspace = Self::open(home.path());
            Self { home, workspace }
        }

        fn open(home: &Path) -> LockedWorkspace {
            let state = StateDir::open(home.join("state")).unwrap();
            let workspace = Workspace::open(home.join("tree"), &state).unwrap();
            workspace
                .lock(&Operation::unbounded(), Duration::from_secs(30))
                .unwrap()
        }

        fn tree(&self) -> std::path::PathBuf {
            self.home.path().join("tree")
        }

        fn snapshot(&self, retains: bool) -> Snapshot {
            let mut options = SnapshotOptions::new(Label::MANUAL, jiff::Timestamp::UNIX_EPOCH);
            options.retain_content = retains.into();
            let backend = HashBackend::default();
            let snapshot = backend
                .snapshot(&Operation::unbounded(), &self.workspace, &options)
                .unwrap();
            let verified = backend
                .verify(&Operation::unbounded(), &self.workspace, &[&snapshot])
                .remove(0)
                .unwrap();
            assert!(verified.problems.is_empty(), "{:?}", verified.problems);
            snapshot
        }
    }

    #[test]
    fn nothing_here_imports_what_is_gits() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hash");
        let mut read = 0;
        for entry in walkdir::WalkDir::new(folder) {
            let entry = entry.unwrap();
            if entry.file_type().is_file() {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let imports = text.contains(concat!("crate::", "git"));
                assert!(!imports, "{}", entry.path().display());
                read += 1;
            }
        }
        assert!(read > 10, "{read}");
    }

    #[test]
    fn a_reference_is_right_whether_it_was_known_from_the_last_capture_or_not() {
        let stage = Stage::new();
        let tree = stage.tree();
        type Edit<'a> = (&'a str, &'a dyn Fn());
        let write = |path: &str, text: &str| fs::write(tree.join(path), text).unwrap();
        let set_mode = |path: &str, mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(tree.join(path), mode).unwrap();
        };
        let edits: [Edit<'_>; 9] = [
            ("nothing is there", &|| ()),
            ("files", &|| {
                fs::create_dir_all(tree.join("a/b")).unwrap();
                write("a/b/one", "1");
                write("a.b", "2");
                write("a/empty", "");
                write("large", &"large ".repeat(100_000));
            }),
            ("nothing", &|| ()),
            ("an edit", &|| write("a/b/one", "another")),
            ("back again", &|| write("a/b/one", "1")),
            ("executable", &|| set_mode("a.b", 0o755)),
            ("bits that the reference is not made of", &|| {
                set_mode("a/b", 0o700)
            }),
            ("an empty directory", &|| {
                fs::create_dir(tree.join("a-")).unwrap()
            }),
            ("another name", &|| {
                fs::rename(tree.join("a"), tree.join("c")).unwrap();
            }),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for (what, edit) in edits {
            edit();
            let expected = reference_of(&tree);
            for retains in [false, true, false] {
                assert_eq!(stage.snapshot(retains).reference, expected, "{what}");
            }
            seen.insert(expected);
        }
        assert_eq!(seen.len(), 6, "some captures found nothing new");
    }

    #[test]
    fn how_many_there_are_is_known_without_a_list_until_somebody_else_was_there() {
        let mut stage = Stage::new();
        let backend = HashBackend::default();
        let newest = |count, snapshot: &Snapshot| Holdings::Newest {
            count,
            reference: Some(snapshot.reference.clone()),
        };
        let nothing = backend
            .holdings(&Operation::unbounded(), &stage.workspace)
            .unwrap();
        assert_eq!(nothing, Holdings::Ids(Vec::new()));
        let mut last = None;
        for count in 1..=3 {
            fs::write(stage.tree().join("file"), count.to_string()).unwrap();
            let snapshot = stage.snapshot(false);
            let found = backend
                .holdings(&Operation::unbounded(), &stage.workspace)
                .unwrap();
            assert_eq!(found, newest(count, &snapshot));
            last = Some(snapshot);
        }
        let last = last.unwrap();
        let records = stage.workspace.store_path().join("hash/snapshots");
        let record = records.join(format!("{}.json", last.id));
        let aside = stage.home.path().join("aside");
        let listed = || match backend
            .holdings(&Operation::unbounded(), &stage.workspace)
            .unwrap()
        {
            Holdings::Ids(ids) => ids.len(),
            noted => panic!("{noted:?}"),
        };
        // The clock of file times may tick slowly.
        let times = || {
            (
                records.metadata().unwrap().ctime(),
                records.metadata().unwrap().ctime_nsec(),
            )
        };
        let before = times();
        fs::rename(&record, &aside).unwrap();
        while times() == before {
            fs::rename(&aside, &record).unwrap();
            fs::rename(&record, &aside).unwrap();
        }
        assert_eq!(listed(), 2, "one is gone");
        fs::rename(&aside, &record).unwrap();
        assert_eq!(listed(), 3, "and there again");

        let snapshot = stage.snapshot(false);
        let found = backend
            .holdings(&Operation::unbounded(), &stage.workspace)
            .unwrap();
        assert_eq!(found, newest(4, &snapshot), "they were counted");
        backend
            .forget(
                &Operation::unbounded(),
                &mut stage.workspace,
                &[last.id],
                &[],
            )
            .unwrap();
        let found = backend
            .holdings(&Operation::unbounded(), &stage.workspace)
            .unwrap();
        assert_eq!(found.count(), 3);

        let snapshot = stage.snapshot(false);
        let note = stage.workspace.store_path().join("hash/last-record");
        let mut bytes = fs::read(&note).unwrap();
        assert_eq!(
            backend
                .holdings(&Operation::unbounded(), &stage.workspace)
                .unwrap(),
            newest(4, &snapshot)
        );
        bytes[0] ^= 1;
        fs::write(&note, bytes).unwrap();
        let listed = |count| {
            let found = backend
                .holdings(&Operation::unbounded(), &stage.workspace)
                .unwrap();
            assert!(matches!(found, Holdings::Ids(ids) if ids.len() == count));
        };
        listed(4);
        // Whatever is in its place is in nobody's way.
        fs::remove_file(&note).unwrap();
        fs::create_dir(&note).unwrap();
        stage.snapshot(false);
        listed(5);
    }

    #[test]
    fn a_record_that_the_disk_does_not_give_hides_no_other_and_is_to_stay() {
        let stage = Stage::new();
        let (first, second) = (stage.snapshot(false), stage.snapshot(false));
        let records = stage.workspace.store_path().join("hash/snapshots");
        let record = records.join(format!("{}.json", first.id));
        fs::remove_file(&record).unwrap();
        std::os::unix::fs::symlink(&record, &record).unwrap();
        let backend = HashBackend::default();
        let listed = |stays: bool| {
            let listing = backend
                .list(&Operation::unbounded(), &stage.workspace)
                .unwrap();
            assert_eq!(listing.snapshots, std::slice::from_ref(&second));
            assert_eq!(listing.unreadable.len(), 1);
            assert_eq!(listing.unreadable[0].id.as_ref(), Some(&first.id));
            assert_eq!(listing.unreadable[0].leave_alone, stays);
            let kind = listing.unreadable[0].problem.kind;
            assert_eq!(kind, stays.then_some(ErrorKind::Storage));
        };
        listed(true);
        fs::remove_file(&record).unwrap();
        fs::write(&record, "no record").unwrap();
        listed(false);
    }

    #[test]
    fn a_manifest_that_goes_missing_is_written_again_though_nothing_changed() {
        let stage = Stage::new();
        fs::write(stage.tree().join("file"), "text").unwrap();
        let first = stage.snapshot(false);
        stage.snapshot(false);
        let store = HashStore::of(&stage.workspace);
        let manifests = stage.workspace.store_path().join("hash/manifests");
        fs::remove_file(manifests.join(&first.reference)).unwrap();
        assert!(store.manifest(&first.reference).is_err());
        assert_eq!(stage.snapshot(false).reference, first.reference);
        assert!(store.manifest(&first.reference).is_ok());
    }

    #[test]
    fn what_is_written_on_two_threads_is_all_there() {
        let stage = Stage::new();
        for directory in 0..10 {
            let path = stage.tree().join(format!("d{directory}"));
            fs::create_dir(&path).unwrap();
            for file in 0..MIN_FILES_TO_WRITE_ASIDE / 10 {
                fs::write(path.join(file.to_string()), format!("{directory} {file}")).unwrap();
            }
        }
        let snapshot = stage.snapshot(false);
        assert_eq!(snapshot.metadata.files, MIN_FILES_TO_WRITE_ASIDE);
        assert_eq!(snapshot.metadata.files_hashed, MIN_FILES_TO_WRITE_ASIDE);
        let expected = reference_of(&stage.tree());
        assert_eq!(snapshot.reference, expected);
        // One that was opened anew finds the cache.
        let Stage { home, workspace } = stage;
        drop(workspace);
        let stage = Stage {
            workspace: Stage::open(home.path()),
            home,
        };
        let snapshot = stage.snapshot(false);
        assert_eq!(snapshot.reference, expected);
        assert_eq!(snapshot.metadata.files_hashed, 0);
    }
}
