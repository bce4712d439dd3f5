//! Capturing a work tree of git's.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::backend::SnapshotOptions;
use crate::caches::GIT_STAT_CACHE;
use crate::coverage::{Coverage, Omission, OmissionReason};
use crate::durable;
use crate::error::PathError;
use crate::faults::Seam;
use crate::git::compare::WithNew;
use crate::git::history::{self, Keeper};
use crate::git::index;
use crate::git::keep::Keep;
use crate::git::kept_refs::{self, RefDetails};
use crate::git::nested;
use crate::git::object_id::sha1;
use crate::git::operation::{self, KeptOperation};
use crate::git::pack::{PackWriter, Streamed};
use crate::git::repository::Head;
use crate::git::repository::{IndexFile, SharedRefs, Unfolded, UserRepository};
use crate::git::rules::{ATTRIBUTES_FILE, GitRules, IGNORE_FILE};
use crate::git::store::{Names, Parts, Reader, Store};
use crate::git::submodules;
use crate::git::trees::{self, Compare, Trees};
use crate::git::{ObjectHasher, ObjectId, ObjectKind};
use crate::hard_links;
use crate::interrupt::Interrupt;
use crate::interrupt::{self, Bulk};
use crate::parallel::{self, in_parts};
use crate::path::RelPath;
use crate::purge::Purged;
use crate::record::{GitState, RECORD_VERSION, Record};
use crate::snapshot::{BackendKind, Snapshot};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::{ContentId, EntryKind};
use crate::workspace::LockedWorkspace;
use crate::worktree::clock::Clock;
use crate::worktree::memory::{Base, Basis, Closing, Outcome, Use};
use crate::worktree::read::{self, Content, ContentSink, Reading, SinkError};
use crate::worktree::root::{self, Root};
use crate::worktree::stat_cache::{
    CachedEntry, Directories, EntryStat, Flags, IndexStamp, StatCache, is_racy,
};
use crate::worktree::walk::{self, WalkOptions, Walked};

/// The names of the files that hold rules; those whose text the cache has come first.
const RULE_FILES: &[&[u8]] = &[IGNORE_FILE, ATTRIBUTES_FILE];

/// Files up to this size are read whole, hashed and compressed by the thread that found them;
/// larger ones pass through in pieces, so that a file's size never is a thread's memory.
const MAX_BUFFERED_BYTES: u64 = 4 << 20;

/// Fewer trees than this are compressed before another thread has begun.
const TREES_PER_THREAD: usize = 50;

/// What a capture found, and what it takes to publish it.
#[must_use = "a capture that is not published leaves nothing behind"]
pub(crate) struct Captured {
    pub(crate) record: Record,
    /// The tree of the workspace.
    pub(crate) tree: ObjectId,
    /// The trees that the store did not have before.
    pub(crate) new_trees: Bulk<HashMap<ObjectId, Vec<u8>>>,
    index: Option<ObjectId>,
    staged: Vec<ObjectId>,
    /// Whether every tree was made of what it holds, and none taken over from the last capture.
    has_only_new_trees: bool,
    /// What the tree names beyond that of the last capture, if that is known.
    named: Option<Names>,
    pack: PackWriter,
    closing: Bulk<Closing>,
}

/// A capture after it was published, or in place of that.
pub(crate) struct Published {
    pub(crate) record: Record,
    pub(crate) cache: Arc<StatCache>,
    pub(crate) tree: ObjectId,
    pub(crate) new_trees: HashMap<ObjectId, Vec<u8>>,
}

impl From<Captured> for Published {
    /// Lets go of what publishing would take.
    fn from(captured: Captured) -> Self {
        Self {
            record: captured.record,
            cache: Arc::clone(captured.closing.cache()),
            tree: captured.tree,
            new_trees: captured.new_trees.into_inner(),
        }
    }
}

/// By what a capture goes.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The user's repository.
    Repository(&'a UserRepository),
    /// The same, but for its index, which cannot be read: its bytes are kept, and what is tracked is
    /// what the cache still knows.
    WithoutIndex(&'a UserRepository),
    /// What the cache still knows of a repository that a run has removed or broken.
    Cache,
}

/// Captures `workspace` into `store`; nothing is visible until [`publish`].
///
/// `branches` are those whose tips are recorded beside that of HEAD's, and those that a rebase in
/// progress moves at its end.
pub(crate) fn capture(
    workspace: &LockedWorkspace,
    source: Source<'_>,
    store: &Store,
    options: &SnapshotOptions,
    keep: &Keep,
    branches: &[String],
    usage: Use,
) -> Result<Captured, SnapshotError> {
    let started = Instant::now();
    let repository = match source {
        Source::Repository(repository) | Source::WithoutIndex(repository) => Some(repository),
        Source::Cache => None,
    };
    let root = workspace
        .root()
        .map_err(|source| SnapshotError::Unreadable {
            context: "the workspace could not be opened".to_owned(),
            source,
        })?;
    let base = workspace.memory().base(
        workspace.store_path(),
        root.identity(),
        GIT_STAT_CACHE,
        usage,
    );
    let mut base = Bulk::new(base);
    interrupt::check()?;
    let pack = store.writer()?;
    let packs = store.reader_set()?;
    let purged = &store.purged()?;
    let sink = GitSink {
        reader: store.reader(&packs),
        pack: &pack,
        purged,
    };

    let (has_new_index, index_bytes) = match source {
        Source::Repository(repository) => {
            let clock = Clock::of(&root);
            let is_new = read_index(repository, &clock, &mut base, store, &pack)?;
            (is_new, None)
        }
        Source::WithoutIndex(repository) => {
            let had_one = base.cache.index.take().is_some();
            (had_one, unread_index(repository)?)
        }
        Source::Cache => (base.cache.index.take().is_some(), None),
    };
    let (index, index_modified_ns) = match (&source, &index_bytes) {
        (Source::WithoutIndex(_), Some(kept)) => (Some(kept.id), Some(kept.modified_ns)),
        _ => {
            let stamp = base.cache.index.as_ref();
            let modified_ns = stamp.map(|stamp| stamp.stat.mtime_ns);
            (stamp.and_then(|stamp| sha1(&stamp.blob)), modified_ns)
        }
    };
    let has_only_new_trees = base.cache.directories.values().all(|d| d.tree.is_none());
    let seeds = Bulk::new(base.take_seeds(RULE_FILES));
    interrupt::check()?;
    let rules = GitRules::new(&root, repository, store, &base.cache, options, keep)?;
    let mut scope = base.scope(
        &root,
        options.watch,
        usage,
        basis(source, &rules, options, purged),
        &keep
            .trees
            .iter()
            .map(|(_, tree)| tree.0.to_vec())
            .collect::<Vec<_>>(),
    );
    let walk_options = WalkOptions {
        cache: &base.cache,
        seeds: &seeds,
        absent: &base.absent,
        only: None,
        watch: None,
        max_untracked_file_bytes: options.max_untracked_file_bytes,
        max_files: options.max_files,
        interrupt: &options.interrupt,
        progress: options.progress.as_deref(),
        is_purged: &|id| purged.contains(id),
    };
    let mut walk = || {
        walk::search(&root, &rules, &sink, &mut scope, walk_options)
            .map_err(|error| rules.failure().unwrap_or(error))
    };
    let mut walked = Bulk::new(match &index_bytes {
        None => walk()?,
        Some(index) => beside(&|| index.keep(store, &pack), &mut walk)?,
    });
    drop(index_bytes);
    if usage == Use::Borrows {
        rules.read_changed(&walked.delta)?;
    }
    let warnings = rules.warnings(&walked.omissions);
    let has_kept = rules.has_kept();
    let is_whole = scope.only().is_none();
    let (outside_rules, rules_above) = (rules.outside().to_vec(), rules.above().to_vec());
    let (rule_files, has_new_rules) = rules.into_rule_files();
    let has_new_rules =
        has_new_rules || (is_whole && rule_files.len() != base.cache.rule_files.len());
    match is_whole {
        true => base.cache.rule_files = rule_files,
        false => base.cache.rule_files.extend(rule_files),
    }
    base.put_back(seeds.into_inner());
    interrupt::check()?;
    let (submodules, left_out) = submodules::standing(&base.cache, &walked);
    let compare = match (has_only_new_trees, usage) {
        (false, Use::Takes) => Compare::Yes,
        _ => Compare::No,
    };
    interrupt::check()?;
    let trees = borrow(
        repository,
        store,
        &sink,
        &root,
        &base,
        &submodules,
        compare,
        &mut walked,
        options,
    )?;
    let mut trees = Bulk::new(trees);
    add_trees(&pack, &trees.new, &options.interrupt)?;
    let named = trees.beyond.take();

    let mut operation = KeptOperation::default();
    let (mut refs, mut ref_details) = (None, None);
    let mut history = history::Kept::default();
    let (git, head_tree) = match repository {
        Some(repository) => {
            let head = repository.head()?;
            // A commit that is not here, or damaged, is no reason to capture nothing.
            let head_tree = repository.head_tree(&head).unwrap_or_default();
            let is_damaged = matches!(source, Source::WithoutIndex(_));
            operation = operation::keep(repository, is_damaged, store, &pack, purged)?;
            // Refs that cannot be read are no reason to capture nothing: then they are not kept.
            if options.keep_refs
                && let Ok(SharedRefs {
                    ids: named,
                    symbolic,
                }) = repository.shared_refs("refs")
            {
                refs = kept_refs::keep(&named, store, &pack)?;
                // As little is a log of stashes that cannot be read.
                if let Ok(stashes) = repository.stashes() {
                    let details = RefDetails { symbolic, stashes };
                    ref_details = kept_refs::keep_details(&details, store, &pack)?;
                }
                let keeper = Keeper {
                    repository,
                    store,
                    pack: &pack,
                    purged,
                    borrow: options.borrow,
                };
                history = keeper.keep(&head, &named)?;
            }
            let branches = branches.iter().chain(&operation.branches);
            let git = GitState {
                common_dir: repository.known_as(),
                branches: tips_of(repository, branches, &head),
                head,
                refs,
                ref_details,
                history: history.list,
                index,
                index_modified_ns,
                safety_refs: options.safety_refs.clone(),
                in_progress: operation.in_progress.map(str::to_owned),
                operation: operation.files.clone(),
                scope: repository.scope().clone(),
                outside_rules,
                rules_above,
            };
            (Some(git), head_tree)
        }
        None => (None, None),
    };
    for (path, id) in std::mem::take(&mut walked.left_index) {
        let ids = base.cache.index_only.entry(path).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    for (path, indexed) in std::mem::take(&mut walked.not_left_out) {
        base.cache.not_left_out.entry(path).or_insert(indexed);
    }
    let seen_staged = match named {
        Some(_) => store.standing_staged(),
        None => Vec::new(),
    };
    let mut staged = staged(repository, store, &base.cache, &seen_staged, options)?;
    staged.retain(|id| !purged.contains(&(*id).into()));
    staged.extend(operation.blobs());
    staged.extend(refs.into_iter().chain(ref_details));
    staged.extend(history.ids);
    let mut snapshot = Snapshot::new(
        options.id.clone(),
        BackendKind::Git,
        workspace.disk_path().to_owned(),
        String::new(),
        options.label.clone(),
        options.captured_at,
    );
    snapshot.tree = Some(trees.root.to_string());
    interrupt::check()?;
    let omissions = walked.omissions.values().cloned();
    snapshot.omissions = Coverage::new(omissions.chain(left_out).collect());
    snapshot.nested_repositories = nested::look_at(
        &root,
        workspace.memory(),
        snapshot.omissions(),
        &options.interrupt,
    )?;
    hard_links::note(&mut snapshot, std::mem::take(&mut walked.links));
    if let Some(git) = &git {
        snapshot.metadata.head_ref = git.head.commit().map(|id| id.to_string());
        snapshot.metadata.branch = git.head.branch().map(short_branch);
    }
    snapshot.metadata.search = scope.search;
    snapshot.metadata.history = history.summary;
    let mut walked = walked.into_inner();
    let closing = base.into_inner().close(
        scope,
        std::mem::take(&mut walked.delta),
        std::mem::take(&mut walked.omissions),
        has_new_index || has_new_rules,
        Outcome {
            result: trees.root.0.to_vec(),
            has_kept,
        },
    );
    let closing = Bulk::new(closing);
    interrupt::check()?;
    let next = closing.cache();
    snapshot.metadata.dirty = Some(match (repository, head_tree) {
        (Some(_), Some(tree)) if tree == trees.root => false,
        (Some(repository), Some(tree)) if !next.submodules.is_empty() => {
            let packs = store.reader_set()?;
            let with_new = WithNew {
                store: &store.reader(&packs),
                new: &trees.new,
            };
            !submodules::is_as_committed(
                &with_new,
                trees.root,
                workspace.disk_path(),
                &next.directories,
                repository,
                tree,
            )
        }
        (_, Some(_)) => true,
        (_, None) => next.directories.values().any(|d| d.tree.is_some()),
    });
    let tally = closing.tally();
    if options.max_files != 0 && tally.files() > options.max_files {
        return Err(SnapshotError::LimitExceeded {
            what: "the number of files".to_owned(),
            limit: options.max_files,
            actual: tally.files(),
        });
    }
    snapshot.metadata.warnings.extend(warnings);
    snapshot.metadata.warnings.extend(operation.warning);
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
        max_untracked_file_bytes: Some(options.max_untracked_file_bytes),
        has_content: true,
        git,
    };
    interrupt::check()?;
    Ok(Captured {
        record,
        tree: trees.root,
        new_trees: Bulk::new(std::mem::take(&mut trees.new)),
        index,
        staged,
        has_only_new_trees,
        named,
        pack,
        closing,
    })
}

/// Puts new trees into the pack. Each is small, but a change deep in a workspace makes many.
fn add_trees(
    pack: &PackWriter,
    trees: &HashMap<ObjectId, Vec<u8>>,
    interrupt: &Interrupt,
) -> Result<(), SnapshotError> {
    let trees: Vec<_> = trees.iter().collect();
    let seam = Seam::of_this_thread();
    let added = in_parts(&trees, TREES_PER_THREAD, |part| {
        seam.enter();
        for (id, content) in part {
            interrupt.check()?;
            pack.add(ObjectKind::Tree, **id, content)
                .map_err(StoreError::from)?;
        }
        Ok(())
    });
    added.into_iter().collect()
}

/// Does `aside` while `work` is done, where there is a thread for it.
fn beside<T>(
    aside: &(dyn Fn() -> Result<(), StoreError> + Sync),
    work: &mut dyn FnMut() -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let seam = Seam::of_this_thread();
    std::thread::scope(|scope| {
        let helper = std::thread::Builder::new().spawn_scoped(scope, || {
            seam.enter();
            aside()
        });
        let done = work()?;
        match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(finished)) => finished?,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => aside()?,
        }
        Ok(done)
    })
}

/// What says which paths belong to the capture, beside the files in the workspace.
fn basis(
    source: Source<'_>,
    rules: &GitRules<'_>,
    options: &SnapshotOptions,
    purged: &Purged,
) -> Basis {
    let repository = match source {
        Source::Repository(repository) => Some((true, repository)),
        Source::WithoutIndex(repository) => Some((false, repository)),
        Source::Cache => None,
    };
    let repository = repository.map(|(has_index, repository)| {
        (has_index, repository.identity(), repository.scope().clone())
    });
    let rules = (
        repository,
        rules.outside(),
        rules.above(),
        &options.ignore,
        &options.include,
        options.max_untracked_file_bytes,
        purged.len(),
    );
    Basis {
        rules: serde_json::to_vec(&rules).expect("rules are plain data"),
        rule_files: RULE_FILES,
    }
}

/// Makes a capture durable and visible.
pub(crate) fn publish(
    workspace: &LockedWorkspace,
    store: &Store,
    options: &SnapshotOptions,
    captured: Captured,
) -> Result<Published, SnapshotError> {
    options.interrupt.check()?;
    let mut record = captured.record;
    let named = match captured.has_only_new_trees {
        true => {
            let directories = &captured.closing.cache().directories;
            trees::named(directories, captured.closing.tally().files())?
        }
        false => captured.named,
    };
    let parts = Parts {
        worktree: captured.tree,
        record: &record,
        index: captured.index,
        staged: captured.staged,
        named,
    };
    let closing = &captured.closing;
    let publish = || store.publish(&options.owner, parts, captured.pack);
    let (staged, published) = match closing.is_changed() {
        // While the disk is waited for.
        true => parallel::both(|| closing.stage(workspace.store_path()), publish),
        false => (None, publish()),
    };
    record.snapshot = published?;
    let cache = Arc::clone(captured.closing.cache());
    // It is there, so a wish to stop comes too late.
    interrupt::to_the_end(|| {
        store.vouch();
        store.merge_small_packs();
        let closing = captured.closing.into_inner();
        closing.keep(workspace.memory(), workspace.store_path(), staged);
    });
    Ok(Published {
        record,
        cache,
        tree: captured.tree,
        new_trees: captured.new_trees.into_inner(),
    })
}

/// Whether there is anything that a capture starts from.
pub(crate) fn has_cache(workspace: &LockedWorkspace) -> bool {
    workspace.store_path().join(GIT_STAT_CACHE).exists()
}

/// Forgets what was captured, so that the next capture relies on nothing that the store lost.
pub(crate) fn forget_cache(workspace: &LockedWorkspace) -> Result<(), PathError> {
    durable::remove_file(&workspace.store_path().join(GIT_STAT_CACHE))
}

/// Where these branches are; HEAD's own is told by HEAD. One whose ref is a trap, damaged or a name
/// for another ref is left out: a rollback then leaves it where it is, and says so.
fn tips_of<'a>(
    repository: &UserRepository,
    branches: impl Iterator<Item = &'a String>,
    head: &Head,
) -> BTreeMap<String, Option<ObjectId>> {
    branches
        .filter(|name| head.branch() != Some(name))
        .filter_map(|name| Some((name.clone(), repository.tip(name).ok()?)))
        .collect()
}

fn short_branch(full: &str) -> String {
    full.strip_prefix("refs/heads/").unwrap_or(full).to_owned()
}

/// The bytes of the user's index, to be kept with the snapshot.
struct IndexBytes {
    id: ObjectId,
    bytes: Vec<u8>,
    /// When they were last written, in nanoseconds since the Unix epoch.
    modified_ns: i64,
}

impl IndexBytes {
    fn keep(&self, store: &Store, pack: &PackWriter) -> Result<(), StoreError> {
        if !store.contains(&self.id)? {
            pack.add(ObjectKind::Blob, self.id, &self.bytes)?;
        }
        Ok(())
    }
}

/// Brings the cache into agreement with the user's index, if that is another than last time, and keeps
/// its bytes in the store. Answers whether it was.
fn read_index(
    repository: &UserRepository,
    clock: &Clock,
    base: &mut Base,
    store: &Store,
    pack: &PackWriter,
) -> Result<bool, SnapshotError> {
    let Some(stat) = repository.index_stat()? else {
        let cache = &mut base.cache;
        // A capture beside a damaged index may have kept what an earlier one said.
        let is_tracking =
            !cache.submodules.is_empty() || cache.directories.values().any(|d| d.has_tracked());
        let had_one = cache.index.take().is_some() || is_tracking;
        if had_one {
            base.revise(|cache| {
                index::agree_with_none(cache);
                Ok::<_, SnapshotError>(())
            })?;
        }
        return Ok(had_one);
    };
    let now = EntryStat::of(&stat);
    let known = base.cache.index.as_ref();
    if known.is_some_and(|known| known.stat == now && !known.is_racy) {
        return Ok(false);
    }
    // Before it is read: what is written after that has a later time.
    let before_ns = clock.now_ns();
    let path = || repository.git_dir().join("index");
    let Some(file) = repository.open_index()? else {
        return Err(SnapshotError::Unreadable {
            context: "the index was removed while it was read".to_owned(),
            source: PathError::at("read", path())(Errno::NOENT),
        });
    };
    let now = EntryStat::of(&file.stat());
    let is_racy = is_racy(&now, before_ns);
    let known = known.map(|known| known.blob);
    let is_same = known.is_some() && known == Some(file.blob_id()?.into());
    let seam = Seam::of_this_thread();
    let (agreed, kept) = std::thread::scope(|scope| {
        // To hash and compress the bytes takes as long as to read the entries.
        let helper = std::thread::Builder::new().spawn_scoped(scope, || {
            seam.enter();
            keep_index(&file, store, pack)
        });
        let agreed = match is_same {
            true => Ok(None),
            false => base
                .revise(|cache| agree(repository, &file, cache))
                .map(Some),
        };
        let kept = match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(kept)) => kept,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // A machine that gives no thread gets its answer all the same.
            Err(_) => keep_index(&file, store, pack),
        };
        (agreed, kept)
    });
    let (agreed, kept) = (agreed?, kept?);
    let expected = agreed.map_or(known, |id| Some(id.into()));
    if kept.map(ContentId::from) != expected {
        return Err(SnapshotError::Unreadable {
            context: "the index was written to while it was read".to_owned(),
            source: PathError::at("read", path())(Errno::AGAIN),
        });
    }
    base.cache.index = expected.map(|blob| IndexStamp {
        stat: now,
        is_racy,
        blob,
    });
    Ok(true)
}

/// Makes the cache agree with the index in `file`; answers with the id of its bytes.
fn agree(
    repository: &UserRepository,
    file: &IndexFile<'_>,
    cache: &mut StatCache,
) -> Result<ObjectId, SnapshotError> {
    let mtime_ns = EntryStat::of(&file.stat()).mtime_ns;
    let begin = || index::Tracked::new(repository.scope(), mtime_ns);
    let (tracked, id) = file.fold(begin, index::Tracked::add)?;
    let mut unfolded = Unfolded::default();
    let mut expand =
        |tree: ObjectId| Ok::<_, SnapshotError>(repository.tree_files(tree, &mut unfolded)?);
    index::agree(cache, tracked, &mut expand)?;
    let sizes = |ids: &[ObjectId]| Ok::<_, SnapshotError>(repository.object_sizes(ids)?);
    index::doubt_other_sizes(cache, sizes)?;
    Ok(id)
}

/// Puts the bytes of the index into the pack, unless the store has them; answers with their id. `None`:
/// the index has not as many of them as it had.
fn keep_index(
    file: &IndexFile<'_>,
    store: &Store,
    pack: &PackWriter,
) -> Result<Option<ObjectId>, SnapshotError> {
    if store.has_packs()? {
        let id = file.blob_id()?;
        if store.contains(&id)? {
            return Ok(Some(id));
        }
    }
    let streamed = pack.add_stream(file.stat().size, &mut file.bytes());
    match streamed.map_err(StoreError::from)? {
        Streamed::Stored(id) => Ok(Some(id)),
        Streamed::Unstable => Ok(None),
        Streamed::Unreadable(source) => Err(SnapshotError::unreadable(
            "the index could not be read",
            PathError::at("read", file.path())(source),
        )),
        Streamed::Collision(found) => Err(collision(found)),
    }
}

/// The bytes of an index, whatever they are; `None` if there is none.
fn unread_index(repository: &UserRepository) -> Result<Option<IndexBytes>, SnapshotError> {
    let Some((bytes, stat)) = repository.index_bytes()? else {
        return Ok(None);
    };
    let id = ObjectId::of(ObjectKind::Blob, &bytes).map_err(collision)?;
    let modified_ns = EntryStat::of(&stat).mtime_ns;
    Ok(Some(IndexBytes {
        id,
        bytes,
        modified_ns,
    }))
}

fn object_dirs(repository: Option<&UserRepository>) -> Result<Vec<PathBuf>, SnapshotError> {
    Ok(repository
        .map(UserRepository::object_dirs)
        .transpose()?
        .unwrap_or_default())
}

/// Makes sure that every object of the capture is in the store, or will be with its pack.
///
/// A file whose object the repository lacks, as in a partial clone, is read like a changed one.
#[expect(clippy::too_many_arguments, reason = "all of them are the capture's")]
fn borrow(
    repository: Option<&UserRepository>,
    store: &Store,
    sink: &GitSink<'_>,
    root: &Root,
    base: &Base,
    submodules: &BTreeMap<RelPath, Option<ObjectId>>,
    compare: Compare,
    walked: &mut Walked,
    options: &SnapshotOptions,
) -> Result<Trees, SnapshotError> {
    let before = &base.cache.directories;
    let adopted = std::mem::take(&mut walked.adopted).into_iter();
    // In place: there is one for each file.
    let mut wanted: Vec<ObjectId> = adopted.map(ObjectId).collect();
    let build = |walked: &mut Walked| {
        let revised = &base.revised;
        trees::build(&mut walked.delta, before, revised, submodules, compare)
    };
    let mut trees = build(walked)?;
    let missing: Vec<ObjectId> = if wanted.is_empty() {
        // Trees alone are not looked for in the repository: they are at hand.
        Vec::new()
    } else {
        wanted.extend(trees.new.keys());
        let object_dirs = object_dirs(repository)?;
        store.borrow(&object_dirs, wanted, options.borrow)?.missing
    };
    let lost: HashSet<ObjectId> = missing
        .into_iter()
        .filter(|id| !trees.new.contains_key(id))
        .collect();
    if !lost.is_empty() {
        let is_lost = |entry: &CachedEntry| {
            entry.is_captured() && sha1(&entry.id).is_some_and(|id| lost.contains(&id))
        };
        let mut paths = Vec::new();
        for (directory, cached) in walked.delta.iter(before) {
            let entries = cached.entries.iter().filter(|(_, entry)| is_lost(entry));
            paths.extend(entries.map(|(name, entry)| (directory.join(name), entry.id)));
        }
        let anew = Anew {
            root,
            sink,
            before,
            interrupt: &options.interrupt,
        };
        for (path, id) in paths {
            options.interrupt.check()?;
            anew.read(walked, &path, id)?;
        }
        trees = build(walked)?;
    }
    let ids: Vec<ObjectId> = trees.new.keys().copied().collect();
    let missing: HashSet<ObjectId> = store.missing(ids)?.into_iter().collect();
    trees.new.retain(|id, _| missing.contains(id));
    Ok(trees)
}

/// Reads files that looked unchanged, because nobody has the objects that the index names for them.
struct Anew<'a, 's> {
    root: &'a Root,
    sink: &'a GitSink<'s>,
    before: &'a Directories,
    interrupt: &'a Interrupt,
}

impl Anew<'_, '_> {
    fn read(
        &self,
        walked: &mut Walked,
        path: &RelPath,
        indexed: ContentId,
    ) -> Result<(), SnapshotError> {
        let directory = path
            .parent()
            .and_then(|parent| walked.delta.get_mut(self.before, &parent))
            .expect("an adopted entry lies in a directory that was walked");
        let at = directory.entries.find(path.name());
        let at = at.expect("an adopted entry was kept");
        let entry = directory.entries.entry_mut(at);
        if entry.flags.has(Flags::ABSENT) {
            // A sparse checkout of a partial clone: neither the file nor its object is here.
            entry.flags = entry.flags.with(Flags::UNSEEN);
            return Ok(());
        }
        let unreadable = |operation, source: std::io::Error| SnapshotError::Unreadable {
            context: format!("{path} could not be read"),
            source: PathError::at(operation, self.root.disk_path(path))(source),
        };
        let reading = match self.root.open_parent(path) {
            Ok((parent, name)) => match entry.kind {
                EntryKind::Symlink => read::link(parent.as_fd(), name, self.sink),
                _ => read::file(parent.as_fd(), name, self.sink, self.interrupt),
            }
            .map_err(|error| match error {
                SinkError::Sink(error) => error,
                SinkError::Read(source) => unreadable("read", source),
            })?,
            Err(errno) if root::is_gone_or_replaced(errno) => Reading::Replaced,
            Err(Errno::ACCESS | Errno::PERM) => Reading::Omitted(OmissionReason::Unreadable),
            Err(errno) => return Err(unreadable("open", errno.into())),
        };
        let reason = match reading {
            Reading::Read { id, bytes, .. } if self.sink.purged.contains(&id) => {
                walked.files_hashed += 1;
                walked.bytes_read += bytes;
                OmissionReason::Purged
            }
            Reading::Read { id, stat, bytes } => {
                walked.files_hashed += 1;
                walked.bytes_read += bytes;
                entry.id = id;
                entry.stat = EntryStat::of(&stat);
                // It was clean a moment ago; the next capture looks again.
                entry.flags = entry.flags.with(Flags::RACY);
                if id != indexed && entry.flags.has(Flags::AS_INDEXED) {
                    entry.flags = entry.flags.without(Flags::AS_INDEXED);
                    walked.left_index.push((path.clone(), indexed));
                }
                return Ok(());
            }
            Reading::Replaced => OmissionReason::Unstable,
            Reading::Omitted(reason) => reason,
        };
        entry.flags = entry.flags.with(Flags::ABSENT).with(Flags::UNSEEN);
        if entry.flags.has(Flags::AS_INDEXED) {
            entry.flags = entry.flags.without(Flags::AS_INDEXED);
            walked.left_index.push((path.clone(), indexed));
        }
        let bytes = Some(entry.stat.size);
        // It is there, and no entry says so: the next capture has to list the directory.
        directory.listed = None;
        let omission = Omission {
            path: path.clone(),
            reason,
            bytes,
            kind: None,
        };
        walked.omissions.insert(path.clone(), omission);
        Ok(())
    }
}

/// So many staged blobs are looked for although they were seen before: it costs next to nothing.
const MAX_STAGED_LOOKED_FOR: usize = 1000;

/// The blobs that only the user's index names, as far as anybody has them. Those in `seen`, which is
/// sorted, were seen to be in the store: of very many that is believed.
fn staged(
    repository: Option<&UserRepository>,
    store: &Store,
    cache: &StatCache,
    seen: &[ObjectId],
    options: &SnapshotOptions,
) -> Result<Vec<ObjectId>, SnapshotError> {
    let ids: Vec<ObjectId> = index::only_in_index(cache)
        .iter()
        .filter_map(sha1)
        .collect();
    let is_many = ids.len() > MAX_STAGED_LOOKED_FOR;
    let unseen = ids
        .iter()
        .filter(|id| !is_many || seen.binary_search(id).is_err());
    let unseen: Vec<ObjectId> = unseen.copied().collect();
    if unseen.is_empty() {
        return Ok(ids);
    }
    let object_dirs = object_dirs(repository)?;
    let missing = store.borrow(&object_dirs, unseen, options.borrow)?.missing;
    Ok(ids
        .into_iter()
        .filter(|id| missing.binary_search(id).is_err())
        .collect())
}

/// Puts new content into the pack of the capture.
pub(crate) struct GitSink<'a> {
    reader: Reader<'a>,
    pack: &'a PackWriter,
    /// What is hashed and never stored.
    purged: &'a Purged,
}

fn collision(_: crate::git::Collision) -> SnapshotError {
    SnapshotError::Unsupported(
        "a file is half of a SHA-1 collision, which git cannot store".to_owned(),
    )
}

thread_local! {
    /// The content of the file that this thread reads; kept, so that its space is.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ContentSink for GitSink<'_> {
    fn file(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        if size > MAX_BUFFERED_BYTES {
            return self.large_file(size, content);
        }
        BUFFER.with_borrow_mut(|buffer| {
            if !read::exactly(size, content, buffer).map_err(SinkError::Read)? {
                return Ok(None);
            }
            self.blob(buffer).map(Some)
        })
    }

    fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
        self.blob(text)
    }
}

impl GitSink<'_> {
    /// Whether the content need not be stored: it is there, or was purged.
    fn has(&self, id: &ObjectId) -> Result<bool, SnapshotError> {
        Ok(self.purged.contains(&(*id).into()) || self.reader.contains(id)?)
    }

    fn blob(&self, bytes: &[u8]) -> Result<ContentId, SinkError> {
        let id = ObjectId::of(ObjectKind::Blob, bytes).map_err(collision)?;
        if !self.has(&id)? {
            self.pack
                .add(ObjectKind::Blob, id, bytes)
                .map_err(|e| SnapshotError::from(StoreError::from(e)))?;
        }
        Ok(id.into())
    }

    /// Reads the file once to know its id, and again only if the store lacks it.
    fn large_file(
        &self,
        size: u64,
        content: &mut dyn Content,
    ) -> Result<Option<ContentId>, SinkError> {
        let mut hasher = ObjectHasher::new(ObjectKind::Blob, size);
        let mut piece = vec![0; 256 * 1024];
        let mut total = 0;
        loop {
            match content.read(&mut piece).map_err(SinkError::Read)? {
                0 => break,
                n => {
                    hasher.update(&piece[..n]);
                    total += n as u64;
                }
            }
        }
        if total != size {
            return Ok(None);
        }
        let id = hasher.finish().map_err(collision)?;
        if self.has(&id)? {
            return Ok(Some(id.into()));
        }
        content.rewind().map_err(SinkError::Read)?;
        match self
            .pack
            .add_stream(size, content)
            .map_err(|e| SnapshotError::from(StoreError::from(e)))?
        {
            Streamed::Stored(stored) if stored == id => Ok(Some(id.into())),
            // It changed between the two readings: what was stored is whole, and nobody's.
            Streamed::Stored(_) | Streamed::Unstable => Ok(None),
            Streamed::Unreadable(source) => Err(SinkError::Read(source)),
            Streamed::Collision(found) => Err(collision(found).into()),
        }
    }
}
