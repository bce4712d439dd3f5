//! The port, as the git backend fills it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::backend::{Backend, RestoreOptions, RestoreOutcome, SnapshotOptions, Verification, Why};
use crate::branches::Branches;
use crate::checkpoint::{
    CheckpointError, CheckpointOutcome, CheckpointRequest, Checkpoints, KeptCheckpoint,
    MergeRequest, Reaches, RemoteAddress, RevealedSecrets, SecretSearch,
};
use crate::commit::{
    CommitError, CommitInfo, CommitIntent, CommitOutcome, CommitRequest, PreparedCandidate,
};
use crate::contents::{ContentError, Contents};
use crate::coverage::OmissionReason;
use crate::diff::beside;
use crate::diff::scope::Scope;
use crate::diff::{self, Diff, DiffOptions, Renames};
use crate::diff_error::DiffError;
use crate::error::ErrorKind;
use crate::error::chain;
use crate::git::ObjectId;
use crate::git::capture::{self, Published, Source};
use crate::git::checkpoint;
use crate::git::commit;
use crate::git::compare::WithNew;
use crate::git::heal;
use crate::git::history;
use crate::git::index;
use crate::git::keep::{Keep, KeptFor};
use crate::git::kept_refs;
use crate::git::line_diffs;
use crate::git::nodes::{node_of, tree_of};
use crate::git::object_id::sha1;
use crate::git::renames;
use crate::git::repository::OperationFiles;
use crate::git::repository::{self, OperationContents, Probe, RepositoryError, UserRepository};
use crate::git::rollback::{self, FoundRepository, LOCK_TIMEOUT, staging_digest};
use crate::git::safety_refs;
use crate::git::skip_worktree;
use crate::git::store::{Proven, Store, StoreSlot, purged_objects};
use crate::git::switch::ComingIndex;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{self, ItemKind};
use crate::git::tree_rules::{StoredSide, TreeRules};
use crate::git::user_index::{self, IndexError};
use crate::git::worktrees;
use crate::hard_links;
use crate::holdings::{Holdings, Listing};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::path_globs::PathGlobs;
use crate::problem::Problem;
use crate::purge::{
    self, FoundContent, FoundContents, Proof, PurgeError, PurgeTarget, Purged, Purging, Wanted,
};
use crate::record::{GitState, Record};
use crate::repository::{EarlierTag, MovedTags, ReleasedRefs, Repository};
use crate::repository_changes::RepositoryProblem;
use crate::restore::{self, Captured, Node, Publish, Restorable, RestoreGoal, RestorePlan, Side};
use crate::restore_error::RestoreError;
use crate::run_worktree::RunWorktrees;
use crate::snapshot::{BackendKind, Label, Snapshot, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::stored::{ReadStored, Stored, StoredSnapshot};
use crate::tree::{Change, ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::area;
use crate::worktree::attributes;
use crate::worktree::journal::Seen;
use crate::worktree::memory::Use;
use crate::worktree::stat_cache::{Flags, StatCache};

/// Captures a work tree of git's as trees and blobs in a private repository.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GitBackend;

/// What a capture found, published or not.
pub(crate) struct GitCapture(Published);

impl Captured for GitCapture {
    fn record(&self) -> &Record {
        &self.0.record
    }

    fn seen(&self, path: &RelPath) -> Option<Seen> {
        let entry = self.0.cache.entry(path);
        entry.filter(|e| !e.flags.has(Flags::ABSENT)).map(Seen::of)
    }
}

/// The capture that a switch goes on from, until it is asked for or another is made.
#[derive(Default)]
struct LastCapture(Mutex<Option<GitCapture>>);

impl LastCapture {
    fn keep(&self, capture: Option<GitCapture>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = capture;
    }

    fn take(&self) -> Option<GitCapture> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What a ref names is a commit or the text of a tag; what is larger is there as well.
const MAX_NAMED_BYTES: u64 = 1 << 20;

/// The repository that `workspace` lies in, or why there is none to capture.
fn repository_of(workspace: &Workspace) -> Result<UserRepository, SnapshotError> {
    let path = workspace.disk_path().display();
    match repository::probe(workspace.disk_path())? {
        Probe::Found(repository) => Ok(*repository),
        Probe::None => Err(SnapshotError::Unsupported(format!(
            "{path} is not in a git work tree"
        ))),
        Probe::Bare(git_dir) => Err(SnapshotError::Unsupported(repository::no_work_tree(
            &git_dir,
        ))),
        Probe::Unsupported { git_dir, format } => Err(SnapshotError::Unsupported(format!(
            "the repository {} uses {format}, which cannot be read",
            git_dir.display()
        ))),
    }
}

fn store_of(workspace: &Workspace) -> Result<Option<Arc<Store>>, StoreError> {
    workspace
        .kept_open::<StoreSlot>()
        .open(&store_dir(workspace))
}

/// Where the store of a workspace is, if it has one.
fn store_dir(workspace: &Workspace) -> PathBuf {
    workspace.store_path().join("git")
}

pub(super) fn existing_store(workspace: &Workspace) -> Result<Arc<Store>, StoreError> {
    store_of(workspace)?.ok_or_else(|| {
        StoreError::corrupt(
            format!("the store of {}", workspace.disk_path().display()),
            "it is gone",
        )
    })
}

/// What a repository does to a capture that is there and cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// It is an error: it is never taken for "no repository".
    Refused,
    /// What is on disk is captured by what the cache knows of the repository, as if that were gone:
    /// what a run broke must not keep the files from being put back.
    PassedOver,
}

impl Damage {
    /// Who asks for a snapshot gets to know of damage, and so does who begins a run or brings one
    /// to a good end. What a failed run left, and what a restore finds, is captured all the same:
    /// it is what a rollback or an undo starts from.
    fn of(options: &SnapshotOptions) -> Self {
        match options.label == Label::AFTER_FAILURE || options.label == Label::GUARD {
            true => Self::PassedOver,
            false => Self::Refused,
        }
    }
}

impl GitBackend {
    fn capture_now(
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
        damage: Damage,
    ) -> Result<GitCapture, SnapshotError> {
        // It holds on to what this one begins with.
        workspace.kept_open::<LastCapture>().keep(None);
        let op = &op.within(options.quota(op, workspace)?);
        let captured = Self::capture_within(op, workspace, options, keep, publish, damage);
        captured.map_err(|error| crate::backend::cause_of(op, error))
    }

    fn capture_within(
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
        damage: Damage,
    ) -> Result<GitCapture, SnapshotError> {
        let repository = repository_if_any(workspace, damage)?;
        let store = workspace.kept_open::<StoreSlot>();
        let store = store.create(op, &workspace.store_path().join("git"))?;
        if publish == Publish::Yes && store.has(&options.id) {
            return Err(SnapshotError::taken(&options.id));
        }
        if !store.is_vouched_for(op)? && capture::has_cache(workspace) {
            capture::forget_cache(op, workspace).map_err(StoreError::from)?;
        }
        let mut trees = keep
            .iter()
            .filter_map(|record| Some((KeptFor::Goal, tree_of(record).ok()?)))
            .collect::<Vec<_>>();
        let latest = store.latest_in_session(op, &options.owner.session_id)?;
        let passed_over = latest.passed_over.iter().map(|problem| {
            format!(
                "{} cannot be read and was passed over: {}; verifying the snapshots tells what is damaged",
                problem.what, problem.detail
            )
        });
        let mut warnings: Vec<String> = passed_over.collect();
        let latest = latest.record;
        if let Some(latest) = &latest {
            trees.push((KeptFor::Session, tree_of(latest)?));
        }
        // In the middle of a run another repository is one that the run put there: it is not read.
        let is_in_run = options.owner.run_id.is_some() && options.label != Label::BEFORE;
        let known = latest
            .and_then(|latest| latest.git)
            .map(|git| git.common_dir);
        let repository = repository.filter(|found| {
            !is_in_run || known.is_none_or(|known| known.is_same(&found.known_as()))
        });
        let branches = match known_branches(op, &store, options) {
            Err(StoreError::Corrupt { what, detail }) => {
                warnings.push(format!(
                    "which branches to look at is not known: {what} is corrupt: {detail}"
                ));
                Vec::new()
            }
            known => known?,
        };
        let keep = Keep { trees };
        let usage = match publish {
            Publish::Yes => Use::Takes,
            Publish::No => Use::Borrows,
        };
        let capture = |source: Source<'_>| {
            capture::capture(capture::Request {
                op,
                workspace,
                source,
                store: &store,
                options,
                keep: &keep,
                branches: &branches,
                usage,
            })
        };
        let attempt = || {
            let mut captured = with_as_much_as_can_be_read(op, &repository, damage, capture)?;
            let metadata = &mut captured.record.snapshot.metadata;
            metadata.warnings.extend(warnings.iter().cloned());
            Ok(GitCapture(match publish {
                Publish::Yes => capture::publish(op, workspace, &store, options, captured)?,
                Publish::No => {
                    // It may have borrowed.
                    store.vouch(&op.to_its_end());
                    store.keep_what_came_in();
                    captured.into()
                }
            }))
        };
        let captured = match attempt() {
            // The cache vouched for what the store has lost. Once more without it: what the
            // workspace or the repository still has is stored anew.
            Err(SnapshotError::Store(StoreError::Corrupt { .. }))
                if capture::has_cache(workspace) =>
            {
                capture::forget_cache(op, workspace).map_err(StoreError::from)?;
                attempt()
            }
            captured => captured,
        };
        if captured.is_err() {
            store.take_back(&op.to_its_end());
        }
        captured
    }
}

/// The user's repository; `None`: the run has removed it, or broken it and that is passed over.
/// What it left is captured all the same, so that the files can be put back.
fn repository_if_any(
    workspace: &LockedWorkspace,
    damage: Damage,
) -> Result<Option<UserRepository>, SnapshotError> {
    match repository_of(workspace) {
        Ok(repository) => Ok(Some(repository)),
        Err(SnapshotError::Unsupported(_)) if store_of(workspace)?.is_some() => Ok(None),
        Err(_) if damage == Damage::PassedOver && store_of(workspace)?.is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Captures by the repository, and where damage is passed over by less of it.
fn with_as_much_as_can_be_read<'r>(
    op: &Operation,
    repository: &'r Option<UserRepository>,
    damage: Damage,
    capture: impl Fn(Source<'r>) -> Result<capture::Captured, SnapshotError>,
) -> Result<capture::Captured, SnapshotError> {
    let Some(found) = repository else {
        return capture(Source::Cache);
    };
    match capture(Source::Repository(found)) {
        // If it succeeds with less of the repository, the rest was the reason.
        Err(error)
            if damage == Damage::PassedOver && error.may_be_damage() && op.refused().is_none() =>
        {
            capture(Source::WithoutIndex(found))
                .or_else(|_| capture(Source::Cache))
                .map_err(|_| error)
        }
        captured => captured,
    }
}

/// The files of git's operations as a rollback compares them.
fn operation_files(
    contents: Result<OperationContents, RepositoryError>,
) -> Result<OperationFiles, RepositoryProblem> {
    let problem = |error: RepositoryError| {
        let message = chain(&error);
        RepositoryProblem::new(SnapshotError::from(error).kind(), message)
    };
    contents.map_err(problem)?.ids().map_err(|error| {
        RepositoryProblem::new(ErrorKind::Unsupported, format!("one of them is {error}"))
    })
}

/// The branches that are to be looked at, and those that were known when the snapshot was taken
/// which this one follows.
fn known_branches(
    op: &Operation,
    store: &Store,
    options: &SnapshotOptions,
) -> Result<Vec<String>, StoreError> {
    let mut known = options.branches.clone();
    let git = match options.since.as_ref().map(|id| store.record(op, id)) {
        Some(Ok(record)) => record.git,
        None | Some(Err(StoreError::UnknownSnapshot { .. })) => None,
        Some(Err(error)) => return Err(error),
    };
    let names = git.iter().flat_map(GitState::tips);
    known.extend(names.map(|(name, _)| name.to_owned()));
    Ok(known)
}

/// Whether the same is staged in both of these kept indexes. One that cannot be parsed is the same
/// as itself alone.
fn stage_the_same(
    op: &Operation,
    store: &Store,
    a: Option<ObjectId>,
    b: Option<ObjectId>,
) -> Result<bool, StoreError> {
    let (Some(a), Some(b)) = (a, b) else {
        return Ok(a == b);
    };
    if a == b {
        return Ok(true);
    }
    let digest = |blob: &ObjectId| {
        let (_, bytes) = store.read(op, blob, u64::MAX)?;
        Ok::<_, StoreError>(staging_digest(&bytes))
    };
    Ok(match (digest(&a)?, digest(&b)?) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    })
}

/// The paths of a snapshot whose content was purged, sorted.
fn purged_paths(
    op: &Operation,
    store: &Store,
    record: &Record,
) -> Result<Vec<RelPath>, StoreError> {
    let purged = store.purged()?;
    if purged.is_empty() {
        return Ok(Vec::new());
    }
    let entries = match store.tree_paths(op, &tree_of(record)?) {
        Ok(entries) => entries,
        // It was named as a problem.
        Err(StoreError::Corrupt { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let gone = entries.into_iter().filter(|(_, e)| purged.contains(&e.id));
    Ok(gone.map(|(path, _)| path).collect())
}

/// The paths that the index had when a snapshot was taken, relative to the workspace. An index that
/// cannot be parsed is not looked into: then nothing counts as tracked.
fn tracked_in(
    op: &Operation,
    store: &Store,
    record: &Record,
) -> Result<HashSet<RelPath>, StoreError> {
    let Some((git, index)) = record.git.as_ref().and_then(|git| Some((git, git.index?))) else {
        return Ok(HashSet::new());
    };
    let (_, bytes) = store.read(op, &index, u64::MAX)?;
    let no_shared_index = |_: &ObjectId| -> Result<Vec<u8>, IndexError> { Ok(Vec::new()) };
    let parsed = user_index::parse(&bytes, &mut { no_shared_index });
    let entries = parsed.map(|index| index.entries).unwrap_or_default();
    Ok(entries
        .iter()
        .filter_map(|entry| index::within(&entry.path, &git.scope))
        .collect())
}

/// What a capture holds at `path`.
fn captured_at(cache: &StatCache, path: &RelPath) -> Option<Node> {
    if let Some(entry) = cache.entry(path).filter(|e| e.is_captured()) {
        return Some(Node::Entry(entry.entry()));
    }
    cache
        .directories
        .get(path)
        .filter(|d| !d.is_absent)
        .map(|_| Node::Directory)
}

impl Restorable for GitBackend {
    type Capture = GitCapture;

    fn record(
        &self,
        op: &Operation,
        workspace: &Workspace,
        id: &SnapshotId,
    ) -> Result<Record, StoreError> {
        match store_of(workspace)? {
            Some(store) => store.record(op, id),
            None => Err(StoreError::UnknownSnapshot { id: id.clone() }),
        }
    }

    fn capture(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
    ) -> Result<GitCapture, SnapshotError> {
        // A restore of files needs nothing of the repository.
        Self::capture_now(op, workspace, options, keep, publish, Damage::PassedOver)
    }

    fn taken(&self, workspace: &LockedWorkspace, id: &SnapshotId) -> Option<GitCapture> {
        let last = workspace.kept_open::<LastCapture>().take();
        last.filter(|capture| capture.record().snapshot.id == *id)
    }

    fn changes(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: Side<'_, GitCapture>,
        to: &Record,
    ) -> Result<Vec<Change>, StoreError> {
        let store = existing_store(workspace)?;
        let to = tree_of(to)?;
        match from {
            Side::Stored(record) => store.tree_changes(op, Some(tree_of(record)?), Some(to)),
            Side::Now(capture) => {
                let packs = store.reader_set()?;
                let trees = WithNew {
                    store: &store.reader(&packs),
                    new: &capture.0.new_trees,
                };
                tree_object::changes(op, &trees, Some(capture.0.tree), Some(to))
            }
        }
    }

    fn lookup(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, GitCapture>,
        paths: &[RelPath],
    ) -> Result<Vec<Option<Node>>, StoreError> {
        match side {
            Side::Stored(_) if paths.is_empty() => Ok(Vec::new()),
            Side::Stored(record) => {
                let store = existing_store(workspace)?;
                let packs = store.reader_set()?;
                let trees = store.reader(&packs);
                let tree = TreeLookup::new(&trees, tree_of(record)?);
                let nodes = paths
                    .iter()
                    .map(|path| Ok(tree.at(op, path)?.and_then(node_of)));
                nodes.collect()
            }
            Side::Now(capture) => {
                let cache = &capture.0.cache;
                Ok(paths.iter().map(|path| captured_at(cache, path)).collect())
            }
        }
    }

    fn entries(
        &self,
        op: &Operation,
        workspace: &Workspace,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        existing_store(workspace)?.tree_paths(op, &tree_of(record)?)
    }

    fn ignored(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, GitCapture>,
        paths: &[RelPath],
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError> {
        let store = existing_store(workspace)?;
        let (record, cache) = match side {
            Side::Stored(record) => (record, None),
            Side::Now(capture) => (&capture.0.record, Some(&capture.0.cache)),
        };
        let rules = TreeRules::of(&store, record, cache.map(|cache| &**cache))?;
        let mut ignored = BTreeMap::new();
        for path in paths {
            if let Some((reason, _)) = rules.omits(op, path)? {
                ignored.insert(path.clone(), reason);
            }
        }
        if ignored.is_empty() {
            return Ok(ignored);
        }
        // A path that the index has is not ignored, whatever the rules say, also while it is gone
        // from disk.
        match cache {
            Some(cache) => ignored.retain(|path, _| {
                !cache
                    .entry(path)
                    .is_some_and(|e| e.flags.has(Flags::TRACKED))
            }),
            None => {
                let tracked = tracked_in(op, &store, record)?;
                ignored.retain(|path, _| !tracked.contains(path));
            }
        }
        Ok(ignored)
    }

    fn ignored_directories(
        &self,
        op: &Operation,
        workspace: &Workspace,
        side: Side<'_, GitCapture>,
        directories: &[RelPath],
    ) -> Result<Vec<RelPath>, StoreError> {
        let store = existing_store(workspace)?;
        let (record, cache) = match side {
            Side::Stored(record) => (record, None),
            Side::Now(capture) => (&capture.0.record, Some(&capture.0.cache)),
        };
        let rules = TreeRules::of(&store, record, cache.map(|cache| &**cache))?;
        let mut ignored = Vec::new();
        for directory in directories {
            if rules.omits_at(op, directory, true)?.is_some() {
                ignored.push(directory.clone());
            }
        }
        Ok(ignored)
    }

    fn missing(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        let ids: Vec<ObjectId> = ids.iter().filter_map(sha1).collect();
        let missing = existing_store(workspace)?.missing(op, ids)?;
        Ok(missing.into_iter().map(ContentId::from).collect())
    }

    fn unsound(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError> {
        let ids: Vec<ObjectId> = ids.iter().filter_map(sha1).collect();
        let unsound = heal::unsound(op, &*existing_store(workspace)?, &ids)?;
        Ok(unsound.into_iter().map(ContentId::from).collect())
    }

    fn heal(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        capture: &GitCapture,
        paths: &[(RelPath, Entry)],
    ) -> Result<(), SnapshotError> {
        let root = workspace
            .root()
            .map_err(|source| SnapshotError::Unreadable {
                context: "the workspace could not be opened".to_owned(),
                source,
            })?;
        let store = existing_store(workspace)?;
        heal::heal(op, &root, &store, &capture.0.cache, paths)
    }

    fn contents<'a>(
        &'a self,
        op: &Operation,
        workspace: &'a Workspace,
        ids: &[ContentId],
    ) -> Result<Box<dyn Contents + 'a>, StoreError> {
        let ids = ids.iter().filter_map(sha1).collect();
        Ok(Box::new(existing_store(workspace)?.blobs(op, ids)?))
    }

    fn user_repository(&self) -> Option<&dyn rollback::RestorableRepository> {
        Some(self)
    }
}

impl rollback::RestorableRepository for GitBackend {
    fn found(&self, workspace: &Workspace) -> Result<Option<FoundRepository>, RepositoryProblem> {
        let found = || match repository::probe(workspace.disk_path())? {
            Probe::Found(repository) => {
                let operation = repository.operation()?;
                Ok(Some(FoundRepository {
                    git_dir: repository.git_dir().to_owned(),
                    common_dir: repository.common_dir().to_owned(),
                    known_as: repository.known_as(),
                    head: repository.head()?,
                    in_progress: operation.in_progress.map(str::to_owned),
                    operation: operation_files(operation.contents),
                }))
            }
            Probe::None | Probe::Bare(_) => Ok(None),
            Probe::Unsupported { format, .. } => Err(RepositoryError::Unsupported { what: format }),
        };
        found().map_err(|error: RepositoryError| {
            let message = format!(
                "index, HEAD and branch were not put back, because the repository cannot be read: \
                 {}; move .git away if it cannot be repaired: the files can be restored without it",
                chain(&error)
            );
            RepositoryProblem::new(SnapshotError::from(error).kind(), message)
        })
    }

    fn kept(
        &self,
        op: &Operation,
        workspace: &Workspace,
        blob: &ObjectId,
    ) -> Result<Vec<u8>, StoreError> {
        if let Some(coming) = workspace.kept_open::<ComingIndex>().take(blob) {
            return Ok(coming);
        }
        let mut bytes = Vec::new();
        match existing_store(workspace)?.blob_to(op, blob, &mut bytes) {
            Ok(_) => Ok(bytes),
            Err(ContentError::Store(error)) => Err(error),
            Err(ContentError::Sink(_)) => unreachable!("a vector takes every byte"),
        }
    }
}

impl ReadStored for GitBackend {
    type Store = Arc<Store>;

    fn record_in(
        &self,
        op: &Operation,
        store: &Arc<Store>,
        id: &SnapshotId,
    ) -> Result<Record, StoreError> {
        store.record(op, id)
    }

    fn sized_entries(
        &self,
        op: &Operation,
        store: &Arc<Store>,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry, Option<u64>)>, StoreError> {
        let entries = store.tree_paths(op, &tree_of(record)?)?;
        let ids = entries.iter().filter_map(|(_, entry)| sha1(&entry.id));
        let sizes = store.blob_sizes(op, ids.collect())?;
        let with_size = |(path, entry): (RelPath, Entry)| {
            let size = sha1(&entry.id).and_then(|id| sizes.get(&id).copied());
            (path, entry, size)
        };
        Ok(entries.into_iter().map(with_size).collect())
    }

    fn why_in(
        &self,
        op: &Operation,
        stored: &Stored<'_, Self>,
        path: &RelPath,
    ) -> Result<Why, StoreError> {
        let (store, record) = (&*stored.store, &stored.record);
        let purged = store.purged()?;
        let item = store.entry_at(op, &tree_of(record)?, path)?;
        if is_of_git_dir(path) {
            return Ok(why_not_git_dir(path));
        }
        if item.as_ref().is_some_and(|item| {
            matches!(item.kind, ItemKind::Entry(_)) && purged.contains(&item.id.into())
        }) {
            let reason = OmissionReason::Purged.as_str();
            return Ok(Why::new(path.clone(), false, reason));
        }
        let item = item.map(|item| item.kind);
        let rules = TreeRules::of(store, record, None)?;
        let omission = record.snapshot.omissions.covers(path);
        let rule = match omission {
            Some(omission) => rules.of_omission(op, path, omission)?,
            None => rules.omits(op, path)?.and_then(|(_, rule)| rule),
        };
        let (captured, reason) = match (item, omission) {
            (Some(_), Some(omission)) => (true, omission.reason.as_str()),
            (Some(ItemKind::Directory | ItemKind::Submodule), None) => (true, "directory"),
            (Some(_), None) => (true, "captured"),
            (None, Some(omission)) => (false, omission.reason.as_str()),
            (None, None) if record.empty_directories.contains(path) => (true, "directory"),
            (None, None) => (false, "absent"),
        };
        let mut why = Why::new(path.clone(), captured, reason);
        why.rule = rule;
        why.hard_links = hard_links::others(&record.snapshot, path);
        Ok(why)
    }

    fn is_repository_unchanged(
        &self,
        op: &Operation,
        store: &Arc<Store>,
        earlier: &Record,
        later: &Record,
    ) -> Result<bool, StoreError> {
        match (&earlier.git, &later.git) {
            (None, None) => Ok(true),
            (Some(a), Some(b)) if a.stands_the_same(b) => {
                stage_the_same(op, store, a.index, b.index)
            }
            _ => Ok(false),
        }
    }
}

impl Backend for GitBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Git
    }

    fn repository(&self) -> Option<&dyn Repository> {
        Some(self)
    }

    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        Some(self)
    }

    fn branches(&self) -> Option<&dyn Branches> {
        Some(self)
    }

    fn run_worktrees(&self) -> Option<&dyn RunWorktrees> {
        Some(self)
    }

    fn snapshot(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        let damage = Damage::of(options);
        let capture = Self::capture_now(op, workspace, options, &[], Publish::Yes, damage)?;
        let snapshot = capture.record().snapshot.clone();
        let is_for_switch = !options.branches.is_empty();
        let last = workspace.kept_open::<LastCapture>();
        last.keep(Some(capture).filter(|_| is_for_switch));
        Ok(snapshot)
    }

    fn purging(&self) -> Option<&dyn Purging> {
        Some(self)
    }

    fn open<'a>(
        &'a self,
        op: &Operation,
        workspace: &'a Workspace,
        snapshot: &Snapshot,
    ) -> Result<Box<dyn StoredSnapshot + 'a>, StoreError> {
        let unknown = || StoreError::UnknownSnapshot {
            id: snapshot.id.clone(),
        };
        let store = store_of(workspace)?.ok_or_else(unknown)?;
        Ok(Box::new(Stored {
            backend: self,
            workspace,
            record: store.record(op, &snapshot.id)?,
            store,
        }))
    }

    fn list(&self, op: &Operation, workspace: &Workspace) -> Result<Listing, StoreError> {
        match store_of(workspace)? {
            Some(store) => store.list(op),
            None => Ok(Listing::default()),
        }
    }

    fn holdings(&self, _: &Operation, workspace: &Workspace) -> Result<Holdings, StoreError> {
        match store_of(workspace)? {
            Some(store) => store.holdings(),
            None => Ok(Holdings::Ids(Vec::new())),
        }
    }

    fn diff(
        &self,
        op: &Operation,
        workspace: &Workspace,
        from: &Snapshot,
        to: &Snapshot,
        options: &DiffOptions,
        patch: &mut dyn Write,
    ) -> Result<Diff, DiffError> {
        diff::check(from, to, options)?;
        let store = existing_store(workspace)?;
        let (before, after) = match (store.record(op, &from.id), store.record(op, &to.id)) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(StoreError::UnknownSnapshot { .. }), _)
            | (_, Err(StoreError::UnknownSnapshot { .. }))
                if from.path != to.path =>
            {
                let (from, to) = (from.id.clone(), to.id.clone());
                return Err(DiffError::DifferentWorkspaces { from, to });
            }
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        op.check()?;
        let changes = store.tree_changes(op, Some(tree_of(&before)?), Some(tree_of(&after)?))?;
        let (earlier, later) = (
            StoredSide::of(&store, &before)?,
            StoredSide::of(&store, &after)?,
        );
        let scope = Scope::of(&options.paths);
        scope.check(op, &earlier, &later, &options.paths)?;
        let (beside, left_out) = beside::between(op, &earlier, &later, &changes)?;
        let (from, to) = (&before.snapshot, &after.snapshot);
        let mut changes = diff::evident(changes, &from.omissions, &to.omissions);
        changes.retain(|change| scope.has(&change.path));
        let mut diff = Diff::of_changes(BackendKind::Git, &from.reference, &to.reference, &changes)
            .left_out(&left_out)
            .beside(beside)
            .with_nested(&before, &after)
            .with_operation(before.git.as_ref(), after.git.as_ref());
        diff.skip_worktree = skip_worktree::changes(op, &store, &before, &after)?;
        diff.refs = kept_refs::changes(op, &store, before.git.as_ref(), after.git.as_ref())?;
        scope.limit(&mut diff);
        line_diffs::compare(op, &store, &changes, options, patch, &mut diff)?;
        if options.renames == Renames::Similar {
            renames::find(op, &store, &changes, options, &mut diff)?;
        }
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
        if is_of_git_dir(path) {
            return Ok(why_not_git_dir(path));
        }
        // What a capture would do is found out by doing one, and not publishing it.
        let GitCapture(capture) =
            Self::capture_now(op, workspace, options, &[], Publish::No, Damage::Refused)?;
        let store = existing_store(workspace)?;
        let mut why = Why::new(path.clone(), false, "");
        let rules = TreeRules::of(&store, &capture.record, Some(&capture.cache))?;
        let entry = capture.cache.entry(path).filter(|e| e.is_captured());
        if let Some(omission) = capture.record.snapshot.omissions.covers(path) {
            why.captured = entry.is_some();
            why.reason = omission.reason.as_str().to_owned();
            why.rule = rules.of_omission(op, path, omission)?;
        } else if let Some(entry) = entry {
            why.captured = true;
            why.rule = rules.omits(op, path)?.and_then(|(_, rule)| rule);
            why.reason = if entry.flags.has(Flags::TRACKED) {
                "tracked"
            } else if options.include.iter().any(|p| path.starts_with(p)) {
                "included"
            } else if why.rule.is_some() {
                "kept_in_session"
            } else {
                "untracked"
            }
            .to_owned();
        } else if captured_at(&capture.cache, path).is_some() {
            why.captured = true;
            why.reason = "directory".to_owned();
        } else {
            why.reason = "absent".to_owned();
            why.rule = rules.omits(op, path)?.and_then(|(_, rule)| rule);
        }
        if why.captured {
            why.hard_links = hard_links::others(&capture.record.snapshot, path);
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
        let mut proven = Proven::default();
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
        workspace.kept_open::<LastCapture>().keep(None);
        if let Some(store) = store_of(workspace)? {
            store.forget(op, ids)?;
            if !unreadable.is_empty() {
                store.forget_names(op, unreadable)?;
            }
        }
        // What a restore displaced goes with the guard that has the same content.
        area::purge_trashes(op, workspace.store_path(), ids)
    }

    fn collect(&self, op: &Operation, workspace: &mut LockedWorkspace) -> Result<u64, StoreError> {
        let Some(store) = store_of(workspace)? else {
            return Ok(0);
        };
        area::reap_leftovers(op, workspace.store_path()).map_err(StoreError::from)?;
        // First, because a cache must never vouch for an object that is gone.
        capture::forget_cache(op, workspace)?;
        store.collect(op)
    }

    fn store_bytes(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        match store_of(workspace)? {
            Some(store) => Ok(store.bytes()? + area::bytes_beside(workspace.store_path())?),
            None => Ok(0),
        }
    }
}

impl Purging for GitBackend {
    fn find_content(
        &self,
        op: &Operation,
        workspace: &Workspace,
        target: &PurgeTarget,
        also: &[ContentId],
    ) -> Result<FoundContents, PurgeError> {
        let wanted = Wanted::new(target, also)?;
        match store_of(workspace)? {
            Some(store) => store.find_content(op, &wanted),
            None => Ok(FoundContents::default()),
        }
    }

    fn purge(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        contents: &[FoundContent],
        at: Timestamp,
    ) -> Result<Proof, PurgeError> {
        let purged = Purged::note(op, workspace, contents, at)?;
        // It vouches for objects that go, and has the text of ignore files.
        capture::forget_cache(op, workspace)?;
        let displaced = purge::displaced::drop_purged(op, workspace.store_path(), &purged)?;
        let Some(store) = store_of(workspace)? else {
            return Ok(displaced);
        };
        store.remove_temporaries(op)?;
        store.drop_purged(op, &purged)?;
        let mut proof = displaced.and(store.prove_purged(op, &purged)?);
        // One that cannot be read has no refs that anybody could go by.
        if let Ok(repository) = repository_of(workspace) {
            let ids = purged_objects(&purged);
            match history::own_refs_with(op, &repository, &ids) {
                Ok(found) => {
                    proof.safety_refs = found.with;
                    proof.safety_refs_unsearched = found.unsearched;
                }
                Err(error) => {
                    let what = "the refs of the repository";
                    proof
                        .unproven
                        .push(crate::problem::Problem::new(what, chain(&error)));
                }
            }
        }
        Ok(proof)
    }
}

impl Repository for GitBackend {
    fn objects_gone(
        &self,
        op: &Operation,
        workspace: &Workspace,
        ids: &[&str],
    ) -> BTreeSet<String> {
        let repository = repository_of(workspace).ok();
        let is_there = |id: &str| {
            let asked = repository.as_ref().zip(id.parse().ok());
            let found =
                asked.map(|(repository, id)| repository.read_object(op, id, MAX_NAMED_BYTES));
            // What cannot be read, as the text of a tag, is there.
            !matches!(found, None | Some(Ok(None)))
        };
        let gone = ids.iter().filter(|id| !is_there(id));
        gone.map(|&id| id.to_owned()).collect()
    }

    fn taken_elsewhere(&self, op: &Operation, workspace: &Workspace) -> BTreeMap<String, PathBuf> {
        let repository = repository_of(workspace).ok();
        let taken = repository.map(|r| worktrees::taken_elsewhere(op, r.common_dir(), r.git_dir()));
        taken.unwrap_or_default()
    }

    fn safety_tags(&self, workspace: &Workspace) -> Result<Vec<String>, SnapshotError> {
        let tags = safety_refs::earlier_tags(workspace)?;
        Ok(tags.into_keys().collect())
    }

    fn move_safety_tags(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        known: &[EarlierTag],
    ) -> Result<MovedTags, StoreError> {
        let store = store_of(workspace)?;
        safety_refs::move_tags(op, workspace, store.as_deref(), known)
    }

    fn release_safety_refs(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        guards: &[SnapshotId],
        known: &[EarlierTag],
    ) -> Result<ReleasedRefs, StoreError> {
        match store_of(workspace)? {
            Some(store) => safety_refs::release(op, workspace, &store, guards, known),
            None => Ok(ReleasedRefs::default()),
        }
    }

    fn prepare_commit(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        snapshot: &SnapshotId,
        request: &CommitRequest,
    ) -> Result<Option<CommitIntent>, CommitError> {
        let store = existing_store(workspace)?;
        let record = store.record(op, snapshot)?;
        commit::prepare(op, workspace, &store, &record, request, &environment)
    }

    fn prepare_candidate(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        snapshot: &SnapshotId,
        request: &CommitRequest,
        scope: &PathGlobs,
    ) -> Result<PreparedCandidate, CommitError> {
        let store = existing_store(workspace)?;
        let record = store.record(op, snapshot)?;
        let wanted = (request, scope);
        commit::prepare_candidate(op, workspace, &store, &record, wanted, &environment)
    }

    fn compare_commits(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        commits: (&str, &str),
        options: &DiffOptions,
        patch: &mut dyn Write,
    ) -> Result<Diff, DiffError> {
        let store = existing_store(workspace)?;
        commit::compare(op, workspace, &store, commits, options, patch)
    }

    fn apply_commit(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        intent: &CommitIntent,
    ) -> Result<CommitOutcome, CommitError> {
        let op = &op.to_its_end();
        commit::apply(
            op,
            workspace,
            intent,
            commit::Aim::Make,
            &environment,
            LOCK_TIMEOUT,
        )
    }

    fn adopt_commit(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        intent: &CommitIntent,
    ) -> Result<CommitOutcome, CommitError> {
        let op = &op.to_its_end();
        commit::apply(
            op,
            workspace,
            intent,
            commit::Aim::Adopt,
            &environment,
            LOCK_TIMEOUT,
        )
    }

    fn commit_info(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
    ) -> Result<CommitInfo, CommitError> {
        commit::info(op, workspace, commit)
    }
}

impl Checkpoints for GitBackend {
    fn make_checkpoint(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        snapshot: &SnapshotId,
        request: &CheckpointRequest,
    ) -> Result<CheckpointOutcome, CheckpointError> {
        let store = existing_store(workspace)?;
        let record = store.record(op, snapshot)?;
        checkpoint::make(op, workspace, &store, &record, request, &environment)
    }

    fn merge_checkpoint(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        request: &MergeRequest,
    ) -> Result<Option<KeptCheckpoint>, CheckpointError> {
        checkpoint::merge(op, workspace, &*existing_store(workspace)?, request)
    }

    fn revealed_secrets(
        &self,
        op: &Operation,
        workspace: &Workspace,
        search: &SecretSearch,
    ) -> Result<RevealedSecrets, CheckpointError> {
        let store = existing_store(workspace)?;
        // A push needs the store alone.
        let repository = repository_of(workspace).ok();
        checkpoint::revealed(op, repository.as_ref(), &store, search)
    }

    fn sending_repository(&self, workspace: &Workspace) -> PathBuf {
        store_dir(workspace)
    }

    fn remote_address(
        &self,
        workspace: &Workspace,
        name: &str,
    ) -> Result<Option<RemoteAddress>, CheckpointError> {
        let repository = commit::repository_of(workspace)?;
        let settings = repository.settings(&environment)?;
        let url = settings.first_below("remote", name.as_bytes(), "url");
        Ok(url.map(|url| {
            let base = repository.work_tree().to_owned();
            RemoteAddress::new(OsStr::from_bytes(url).to_owned(), base)
        }))
    }

    fn reaches(
        &self,
        op: &Operation,
        workspace: &Workspace,
        commit: &str,
        ancestor: &str,
    ) -> Result<Reaches, CheckpointError> {
        let store = existing_store(workspace)?;
        let repository = repository_of(workspace).ok();
        checkpoint::reaches(op, repository.as_ref(), &store, commit, ancestor)
    }

    fn kept_checkpoints(
        &self,
        _: &Operation,
        workspace: &Workspace,
        task: &str,
    ) -> Result<Vec<KeptCheckpoint>, CheckpointError> {
        let Some(store) = store_of(workspace)? else {
            return Ok(Vec::new());
        };
        let kept = store.checkpoints(Some(task))?;
        Ok(kept.into_iter().map(KeptCheckpoint::from).collect())
    }

    fn verify_checkpoints(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
    ) -> Result<Vec<Problem>, CheckpointError> {
        match store_of(workspace)? {
            Some(store) => Ok(store.verify_checkpoints(op)?),
            None => Ok(Vec::new()),
        }
    }

    fn forget_checkpoints(
        &self,
        op: &Operation,
        workspace: &mut LockedWorkspace,
        task: &str,
        numbers: &[u64],
    ) -> Result<(), CheckpointError> {
        match store_of(workspace)? {
            Some(store) => Ok(store.forget_checkpoints(op, task, numbers)?),
            None => Ok(()),
        }
    }
}

/// Proves that everything a snapshot needs is in the store and right, but for what is `proven`
/// already.
fn verify(
    op: &Operation,
    workspace: &Workspace,
    snapshot: &Snapshot,
    proven: &mut Proven,
) -> Result<Verification, StoreError> {
    let found = match store_of(workspace)? {
        Some(store) => store.record(op, &snapshot.id).and_then(|record| {
            let proof = store.verify(op, &record, proven)?;
            Ok(Verification::new(proof.problems)
                .beside(proof.beside)
                .purged(purged_paths(op, &store, &record)?))
        }),
        None => Err(StoreError::UnknownSnapshot {
            id: snapshot.id.clone(),
        }),
    };
    // Whatever was made of an earlier failure: what was not looked at is not proven.
    op.check()?;
    Verification::proven(found)
}

/// Where the user's own configuration lies.
pub(super) fn environment(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Whether the path is, or lies in, what is called `.git` in the workspace: it is never captured,
/// and not listed as an omission.
fn is_of_git_dir(path: &RelPath) -> bool {
    path.names().next() == Some(b".git")
}

fn why_not_git_dir(path: &RelPath) -> Why {
    Why::new(path.clone(), false, OmissionReason::GitDir.as_str())
}

/// Says what `detect` needs to know of the place that a workspace lies in.
pub(crate) fn probe(workspace: &Workspace) -> Result<Probe, SnapshotError> {
    Ok(repository::probe(workspace.disk_path())?)
}
