//! Capturing a work tree of git's.

mod borrow;
mod seed;
mod sink;
mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use self::borrow::{borrow, staged};
use self::seed::{read_index, unread_index};
use self::state::{short_branch, tips_of};
use crate::backend::SnapshotOptions;
use crate::caches::GIT_STAT_CACHE;
use crate::coverage::Coverage;
use crate::error::PathError;
use crate::faults::Seam;
use crate::git::compare::WithNew;
use crate::git::history::{self, Keeper};
use crate::git::keep::Keep;
use crate::git::kept_refs::{self, RefDetails};
use crate::git::object_id::sha1;
use crate::git::operation::{self, KeptOperation};
use crate::git::pack::PackWriter;
use crate::git::repository::{SharedRefs, UserRepository};
use crate::git::rules::{ATTRIBUTES_FILE, GitRules, IGNORE_FILE};
use crate::git::store::{Names, Parts, Store};
use crate::git::trees::{self, Compare};
use crate::git::{ObjectId, ObjectKind, nested, submodules};
use crate::interrupt::{self, Bulk, Interrupt};
use crate::parallel::{self, in_parts};
use crate::purge::Purged;
use crate::record::{GitState, RECORD_VERSION, Record};
use crate::snapshot::{BackendKind, Snapshot};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::LockedWorkspace;
use crate::worktree::clock::Clock;
use crate::worktree::memory::{Basis, Closing, Outcome, Use};
use crate::worktree::stat_cache::StatCache;
use crate::worktree::walk::{self, WalkOptions};
use crate::{durable, hard_links};

pub(crate) use self::sink::GitSink;

/// The names of the files that hold rules; those whose text the cache has come first.
const RULE_FILES: &[&[u8]] = &[IGNORE_FILE, ATTRIBUTES_FILE];

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
