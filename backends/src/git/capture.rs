//! Capturing a work tree of git's.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::backend::{Interrupt, SnapshotError, SnapshotOptions, StoreError};
use crate::coverage::{Coverage, Omission, OmissionReason};
use crate::error::PathError;
use crate::git::compare::WithNew;
use crate::git::index;
use crate::git::pack::{PackWriter, Streamed};
use crate::git::repository::{IndexFile, UserRepository};
use crate::git::rules::GitRules;
use crate::git::store::{Parts, Store};
use crate::git::submodules;
use crate::git::trees::{self, Trees};
use crate::git::{ObjectHasher, ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::record::{GitState, Head, RECORD_VERSION, Record};
use crate::snapshot::{BackendKind, Snapshot};
use crate::tree::{ContentId, EntryKind};
use crate::workspace::LockedWorkspace;
use crate::worktree::durable;
use crate::worktree::faults::Seam;
use crate::worktree::modes;
use crate::worktree::read::{self, Content, ContentSink, Reading, SinkError};
use crate::worktree::root::Root;
use crate::worktree::stat_cache::{
    self, CachedEntry, EntryStat, Flags, IndexStamp, OnDisk, StatCache, is_racy,
};
use crate::worktree::walk::{self, Clock, WalkOptions, Walked};

/// The name of the alternate index in the store.
const CACHE_FILE: &str = "git.stat-cache";

/// Files up to this size are read whole, hashed and compressed by the thread that found them;
/// larger ones pass through in pieces, so that a file's size never is a thread's memory.
const MAX_BUFFERED_BYTES: u64 = 4 << 20;

/// What a capture found, and what it takes to publish it.
#[must_use = "a capture that is not published leaves nothing behind"]
pub(crate) struct Captured {
    pub(crate) record: Record,
    pub(crate) cache: StatCache,
    /// The tree of the workspace.
    pub(crate) tree: ObjectId,
    /// The trees that the store did not have before.
    pub(crate) new_trees: HashMap<ObjectId, Vec<u8>>,
    index: Option<ObjectId>,
    staged: Vec<ObjectId>,
    pack: PackWriter,
    on_disk: OnDisk,
    is_cache_changed: bool,
}

/// A capture after it was published, or in place of that.
pub(crate) struct Published {
    pub(crate) record: Record,
    pub(crate) cache: StatCache,
    pub(crate) tree: ObjectId,
    pub(crate) new_trees: HashMap<ObjectId, Vec<u8>>,
}

impl From<Captured> for Published {
    /// Lets go of what publishing would take.
    fn from(captured: Captured) -> Self {
        let Captured {
            record,
            cache,
            tree,
            new_trees,
            ..
        } = captured;
        Self {
            record,
            cache,
            tree,
            new_trees,
        }
    }
}

/// Trees whose paths are captured although a rule ignores them.
pub(crate) struct Keep {
    pub(crate) trees: Vec<ObjectId>,
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
/// `branches` are those whose tips are recorded beside that of HEAD's.
pub(crate) fn capture(
    workspace: &LockedWorkspace,
    source: Source<'_>,
    store: &Store,
    options: &SnapshotOptions,
    keep: &Keep,
    branches: &[String],
) -> Result<Captured, SnapshotError> {
    let started = Instant::now();
    let repository = match source {
        Source::Repository(repository) | Source::WithoutIndex(repository) => Some(repository),
        Source::Cache => None,
    };
    let root = Root::open(workspace).map_err(|source| SnapshotError::Unreadable {
        context: "the workspace could not be opened".to_owned(),
        source,
    })?;
    let cache_path = workspace.store_path().join(CACHE_FILE);
    let (mut cache, on_disk) = stat_cache::load(&cache_path, root.identity());
    let pack = store.writer()?;
    let sink = GitSink { store, pack: &pack };

    let (has_new_index, index_bytes) = match source {
        Source::Repository(repository) => {
            let clock = Clock::of(&root);
            (
                read_index(repository, &clock, &mut cache, store, &pack)?,
                None,
            )
        }
        Source::WithoutIndex(repository) => {
            (cache.index.take().is_some(), unread_index(repository)?)
        }
        Source::Cache => (cache.index.take().is_some(), None),
    };
    let index = match (&source, &index_bytes) {
        (Source::WithoutIndex(_), Some(kept)) => Some(kept.id),
        _ => cache.index.as_ref().and_then(|stamp| sha1(&stamp.blob)),
    };
    let rules = GitRules::new(&root, repository, store, &cache, options, keep)?;
    let walk_options = WalkOptions {
        cache: &cache,
        max_untracked_file_bytes: options.max_untracked_file_bytes,
        max_files: options.max_files,
        interrupt: &options.interrupt,
        progress: options.progress.as_deref(),
    };
    let seam = Seam::of_this_thread();
    let keep_index = || match &index_bytes {
        Some(index) => index.keep(store, &pack),
        None => Ok(()),
    };
    let mut walked = std::thread::scope(|scope| {
        // An index of a large repository takes as long to compress as all files to look at.
        let helper = std::thread::Builder::new().spawn_scoped(scope, || {
            seam.enter();
            keep_index()
        });
        let walked = walk::walk(&root, &rules, &sink, &walk_options)
            .map_err(|error| rules.failure().unwrap_or(error))?;
        let kept = match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(kept)) => kept,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => keep_index(),
        };
        kept?;
        Ok::<_, SnapshotError>(walked)
    })?;
    let trees = borrow(
        repository,
        store,
        &sink,
        &root,
        &cache,
        &mut walked,
        options,
    )?;
    for (id, content) in &trees.new {
        options.interrupt.check()?;
        pack.add(ObjectKind::Tree, *id, content)
            .map_err(StoreError::from)?;
    }

    let (git, head_tree) = match repository {
        Some(repository) => {
            let head = repository.head()?;
            // A commit that is not here, or damaged, is no reason to capture nothing.
            let head_tree = repository.head_tree(&head).unwrap_or_default();
            let git = GitState {
                common_dir: repository.identity(),
                branches: tips_of(repository, branches, &head),
                head,
                index,
                in_progress: repository.in_progress().map(str::to_owned),
                scope: repository.scope().clone(),
                outside_rules: rules.outside().to_vec(),
                rules_above: rules.above().to_vec(),
            };
            (Some(git), head_tree)
        }
        None => (None, None),
    };
    let warnings = rules.warnings();
    let (rule_files, has_new_rules) = rules.into_rule_files();
    let mut index_only = cache.index_only;
    for (path, id) in walked.left_index {
        let ids = index_only.entry(path).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut not_left_out = cache.not_left_out;
    for (path, indexed) in walked.not_left_out {
        not_left_out.entry(path).or_insert(indexed);
    }
    let next = StatCache {
        directories: walked.directories,
        rule_files,
        index: cache.index,
        index_only,
        not_left_out,
        submodules: cache.submodules,
    };
    let staged = staged(repository, store, &next, options)?;
    let mut snapshot = Snapshot::new(
        options.id.clone(),
        BackendKind::Git,
        workspace.disk_path().to_owned(),
        String::new(),
        options.label.clone(),
        options.captured_at,
    );
    snapshot.tree = Some(trees.root.to_string());
    snapshot.omissions = Coverage::new(walked.omissions);
    if let Some(git) = &git {
        snapshot.metadata.head_ref = git.head.commit().map(|id| id.to_string());
        snapshot.metadata.branch = git.head.branch().map(short_branch);
    }
    snapshot.metadata.dirty = Some(match (repository, head_tree) {
        (Some(_), Some(tree)) if tree == trees.root => false,
        (Some(repository), Some(tree)) if !next.submodules.is_empty() => {
            let with_new = WithNew {
                store,
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
    snapshot.metadata.warnings = warnings;
    let listed = modes::of(&next.directories);
    snapshot.metadata.files = listed.files;
    snapshot.metadata.files_hashed = walked.files_hashed;
    snapshot.metadata.bytes_read = walked.bytes_read;
    snapshot.metadata.duration_ms =
        u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let record = Record {
        version: RECORD_VERSION,
        snapshot,
        empty_directories: listed.empty_directories,
        modes: listed.modes,
        ignore: options.ignore.clone(),
        include: options.include.clone(),
        has_content: true,
        git,
    };
    Ok(Captured {
        record,
        cache: next,
        tree: trees.root,
        new_trees: trees.new,
        index,
        staged,
        pack,
        on_disk,
        is_cache_changed: walked.is_changed || has_new_index || has_new_rules,
    })
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
    let parts = Parts {
        worktree: captured.tree,
        record: &record,
        index: captured.index,
        staged: captured.staged,
    };
    record.snapshot = match store.publish(&options.owner, parts, captured.pack) {
        Ok(snapshot) => snapshot,
        Err(error @ StoreError::Corrupt { .. }) => {
            // The cache vouched for what the store has lost. The next capture looks for itself.
            forget_cache(workspace).map_err(StoreError::from)?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    if captured.is_cache_changed {
        // A cache that cannot be written costs the next capture some time, and nothing else.
        let _ = stat_cache::save(
            &captured.cache,
            captured.on_disk,
            &workspace.store_path().join(CACHE_FILE),
            workspace.identity(),
        );
    }
    Ok(Published {
        record,
        cache: captured.cache,
        tree: captured.tree,
        new_trees: captured.new_trees,
    })
}

/// Forgets what was captured, so that the next capture relies on nothing that the store lost.
pub(crate) fn forget_cache(workspace: &LockedWorkspace) -> Result<(), PathError> {
    durable::remove_file(&workspace.store_path().join(CACHE_FILE))
}

/// Where these branches are; HEAD's own is told by HEAD. One whose ref is a trap, damaged or a name
/// for another ref is left out: a rollback then leaves it where it is, and says so.
fn tips_of(
    repository: &UserRepository,
    branches: &[String],
    head: &Head,
) -> BTreeMap<String, Option<ObjectId>> {
    branches
        .iter()
        .filter(|name| head.branch() != Some(name))
        .filter_map(|name| Some((name.clone(), repository.tip(name).ok()?)))
        .collect()
}

fn short_branch(full: &str) -> String {
    full.strip_prefix("refs/heads/").unwrap_or(full).to_owned()
}

pub(crate) fn sha1(id: &ContentId) -> Option<ObjectId> {
    match id {
        ContentId::Sha1(bytes) => Some(ObjectId(*bytes)),
        ContentId::Blake3(_) => None,
    }
}

/// The bytes of the user's index, to be kept with the snapshot.
struct IndexBytes {
    id: ObjectId,
    bytes: Vec<u8>,
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
    cache: &mut StatCache,
    store: &Store,
    pack: &PackWriter,
) -> Result<bool, SnapshotError> {
    let Some(stat) = repository.index_stat()? else {
        // A capture beside a damaged index may have kept what an earlier one said.
        let is_tracking =
            !cache.submodules.is_empty() || cache.directories.values().any(|d| d.has_tracked());
        let had_one = cache.index.take().is_some() || is_tracking;
        if had_one {
            index::agree_with_none(cache);
        }
        return Ok(had_one);
    };
    let now = EntryStat::of(&stat);
    if cache
        .index
        .as_ref()
        .is_some_and(|known| known.stat == now && !known.is_racy)
    {
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
    let known = cache.index.as_ref().map(|known| known.blob);
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
            false => agree(repository, &file, cache).map(Some),
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
    cache.index = expected.map(|blob| IndexStamp {
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
    let mut expand = |tree: ObjectId| repository.tree_files(tree);
    index::agree(cache, tracked, &mut expand)?;
    index::doubt_other_sizes(cache, |ids| repository.object_sizes(ids))?;
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
        Streamed::Unreadable(source) => Err(SnapshotError::Unreadable {
            context: "the index could not be read".to_owned(),
            source: PathError::at("read", file.path())(source),
        }),
        Streamed::Collision(found) => Err(collision(found)),
    }
}

/// The bytes of an index, whatever they are; `None` if there is none.
fn unread_index(repository: &UserRepository) -> Result<Option<IndexBytes>, SnapshotError> {
    let Some((bytes, _)) = repository.index_bytes()? else {
        return Ok(None);
    };
    let id = ObjectId::of(ObjectKind::Blob, &bytes).map_err(collision)?;
    Ok(Some(IndexBytes { id, bytes }))
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
fn borrow(
    repository: Option<&UserRepository>,
    store: &Store,
    sink: &GitSink<'_>,
    root: &Root,
    cache: &StatCache,
    walked: &mut Walked,
    options: &SnapshotOptions,
) -> Result<Trees, SnapshotError> {
    let object_dirs = object_dirs(repository)?;
    let adopted = std::mem::take(&mut walked.adopted);
    // There is room for a tree for each directory, so that the list, which is long, is made once.
    let mut wanted = Vec::with_capacity(adopted.len() + walked.directories.len());
    wanted.extend(adopted.iter().filter_map(sha1));
    drop(adopted);
    let submodules = submodules::standing(cache, walked);
    let mut trees = trees::build(&mut walked.directories, &cache.directories, &submodules);
    wanted.extend(trees.new.keys());
    let missing: Vec<ObjectId> = if wanted.is_empty() {
        Vec::new()
    } else {
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
        for (directory, cached) in &walked.directories {
            let entries = cached.entries.iter().filter(|(_, entry)| is_lost(entry));
            paths.extend(entries.map(|(name, entry)| (directory.join(name), entry.id)));
        }
        for (path, id) in paths {
            options.interrupt.check()?;
            read_anew(root, sink, walked, &path, id, &options.interrupt)?;
        }
        trees = trees::build(&mut walked.directories, &cache.directories, &submodules);
    }
    let ids: Vec<ObjectId> = trees.new.keys().copied().collect();
    let missing: HashSet<ObjectId> = store.missing(ids)?.into_iter().collect();
    trees.new.retain(|id, _| missing.contains(id));
    Ok(trees)
}

/// Reads a file that looked unchanged, because nobody has the object that the index names for it.
fn read_anew(
    root: &Root,
    sink: &GitSink<'_>,
    walked: &mut Walked,
    path: &RelPath,
    indexed: ContentId,
    interrupt: &Interrupt,
) -> Result<(), SnapshotError> {
    let directory = path
        .parent()
        .and_then(|parent| walked.directories.get_mut(&parent))
        .map(Arc::make_mut)
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
        source: PathError::at(operation, root.disk_path(path))(source),
    };
    let reading = match root.open_parent(path) {
        Ok((parent, name)) => match entry.kind {
            EntryKind::Symlink => read::link(parent.as_fd(), name, sink),
            _ => read::file(parent.as_fd(), name, sink, interrupt),
        }
        .map_err(|error| match error {
            SinkError::Sink(error) => error,
            SinkError::Read(source) => unreadable("read", source),
        })?,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Reading::Replaced,
        Err(Errno::ACCESS | Errno::PERM) => Reading::Omitted(OmissionReason::Unreadable),
        Err(errno) => return Err(unreadable("open", errno.into())),
    };
    let reason = match reading {
        Reading::Read { id, stat, bytes } => {
            walked.files_hashed += 1;
            walked.bytes_read += bytes;
            entry.id = id;
            entry.stat = EntryStat::of(&stat);
            // It was clean a moment ago; the next capture looks again.
            entry.flags = entry.flags.with(Flags::RACY);
            if id != indexed {
                entry.flags = entry.flags.without(Flags::AS_INDEXED);
            }
            return Ok(());
        }
        Reading::Replaced => OmissionReason::Unstable,
        Reading::Omitted(reason) => reason,
    };
    entry.flags = entry.flags.with(Flags::ABSENT).with(Flags::UNSEEN);
    let bytes = Some(entry.stat.size);
    // It is there, and no entry says so: the next capture has to list the directory.
    directory.listed = None;
    walked.omissions.push(Omission {
        path: path.clone(),
        reason,
        bytes,
    });
    Ok(())
}

/// The blobs that only the user's index names, as far as anybody has them.
fn staged(
    repository: Option<&UserRepository>,
    store: &Store,
    cache: &StatCache,
    options: &SnapshotOptions,
) -> Result<Vec<ObjectId>, SnapshotError> {
    let ids: Vec<ObjectId> = index::only_in_index(cache)
        .iter()
        .filter_map(sha1)
        .collect();
    if ids.is_empty() {
        return Ok(ids);
    }
    let object_dirs = object_dirs(repository)?;
    let missing = store
        .borrow(&object_dirs, ids.clone(), options.borrow)?
        .missing;
    Ok(ids
        .into_iter()
        .filter(|id| missing.binary_search(id).is_err())
        .collect())
}

/// Puts new content into the pack of the capture.
pub(crate) struct GitSink<'a> {
    store: &'a Store,
    pack: &'a PackWriter,
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
    fn blob(&self, bytes: &[u8]) -> Result<ContentId, SinkError> {
        let id = ObjectId::of(ObjectKind::Blob, bytes).map_err(collision)?;
        if !self.store.contains(&id).map_err(SnapshotError::from)? {
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
        if self.store.contains(&id).map_err(SnapshotError::from)? {
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
