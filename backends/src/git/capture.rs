//! Capturing a git work tree.

mod around;
mod borrow;
mod build;
mod describe;
mod seed;
mod sink;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::backend::SnapshotOptions;
use crate::bulk::Bulk;
use crate::caches::GIT_STAT_CACHE;
use crate::durable;
use crate::error::PathError;
use crate::git::ObjectId;
use crate::git::keep::Keep;
use crate::git::pack::PackWriter;
use crate::git::repository::UserRepository;
use crate::git::store::{Names, Parts, Store};
use crate::git::trees;
use crate::operation::Operation;
use crate::parallel;
use crate::record::Record;
use crate::snapshot_error::SnapshotError;
use crate::workspace::LockedWorkspace;
use crate::worktree::memory::{Closing, Outcome, Use};
use crate::worktree::root::Root;
use crate::worktree::stat_cache::StatCache;
use crate::worktree::walk::Walked;

pub(crate) use self::sink::GitSink;

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
    /// Whether every tree was made anew, and none was reused from the last capture.
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
    /// Drops what publishing would need.
    fn from(captured: Captured) -> Self {
        Self {
            record: captured.record,
            cache: Arc::clone(captured.closing.cache()),
            tree: captured.tree,
            new_trees: captured.new_trees.into_inner(),
        }
    }
}

/// The inputs of a capture.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The user's repository.
    Repository(&'a UserRepository),
    /// The same, but for its index, which cannot be read: its bytes are kept, and what is tracked
    /// is what the cache still knows.
    WithoutIndex(&'a UserRepository),
    /// What the cache still knows of a repository that a run has removed or broken.
    Cache,
}

impl<'a> Source<'a> {
    fn repository(self) -> Option<&'a UserRepository> {
        match self {
            Self::Repository(repository) | Self::WithoutIndex(repository) => Some(repository),
            Self::Cache => None,
        }
    }
}

/// What is to be captured, and how.
#[derive(Clone, Copy)]
pub(crate) struct Request<'r> {
    pub(crate) op: &'r Operation,
    pub(crate) workspace: &'r LockedWorkspace,
    pub(crate) source: Source<'r>,
    /// Where it is kept.
    pub(crate) store: &'r Store,
    pub(crate) options: &'r SnapshotOptions,
    pub(crate) keep: &'r Keep,
    /// The branches whose tips are recorded beside that of HEAD's, and beside those that a rebase
    /// in progress moves at its end.
    pub(crate) branches: &'r [String],
    pub(crate) usage: Use,
}

/// A request with what its stages work on.
struct Setting<'s> {
    request: Request<'s>,
    repository: Option<&'s UserRepository>,
    root: &'s Root,
    /// With the pack that is in the making.
    sink: &'s GitSink<'s>,
}

/// Captures a workspace; nothing is visible until [`publish`].
///
/// A seed is what was known before, a walk compares it with what is there, what is new comes from
/// the user's repository or is read, trees are built for what differs, and all of it is described.
pub(crate) fn capture(request: Request<'_>) -> Result<Captured, SnapshotError> {
    let started = Instant::now();
    let Request {
        op,
        workspace,
        store,
        ..
    } = request;
    let root = workspace.root();
    let root = root.map_err(|source| SnapshotError::Unreadable {
        context: "the workspace could not be opened".to_owned(),
        source,
    })?;
    let (memory, usage) = (workspace.memory(), request.usage);
    let base = memory.base(
        &workspace.own_path(),
        root.identity(),
        GIT_STAT_CACHE,
        usage,
    );
    let mut base = Bulk::new(op, base);
    op.check()?;
    let pack = store.writer(op)?;
    let packs = store.reader_set()?;
    let setting = Setting {
        request,
        repository: request.source.repository(),
        root: &root,
        sink: &GitSink {
            reader: store.reader(&packs),
            pack: &pack,
            purged: &store.purged()?,
        },
    };

    let mut seed = setting.seed(&mut base)?;
    let (scope, mut seen) = setting.walk(&mut base, seed.unread.take())?;
    let mut built = setting.build(&base, &seed, &mut seen.walked)?;
    let named = built.trees.beyond.take();
    let around = setting.around(&seed, &mut seen)?;
    note_index(&mut base.cache, &mut seen.walked);
    let mut staged = setting.staged(&base.cache, named.is_some())?;
    staged.extend(around.blobs());

    let mut snapshot = setting.describe(&scope, &mut seen, &built, &around)?;
    let result = Outcome {
        result: built.trees.root.0.to_vec(),
        has_kept: seen.has_kept,
    };
    let closing = Bulk::new(
        op,
        base.into_inner().close(
            scope,
            std::mem::take(&mut seen.walked.delta),
            std::mem::take(&mut seen.walked.omissions),
            seed.is_new || seen.has_new_rules,
            result,
        ),
    );
    op.check()?;
    let is_dirty = setting.is_dirty(&built, around.head_tree, closing.cache())?;
    snapshot.metadata.dirty = Some(is_dirty);
    let record = setting.record(snapshot, around.state, closing.tally(), started)?;
    op.check()?;
    Ok(Captured {
        record,
        tree: built.trees.root,
        new_trees: Bulk::new(op, std::mem::take(&mut built.trees.new)),
        index: seed.index,
        staged,
        has_only_new_trees: seed.has_only_new_trees,
        named,
        pack,
        closing,
    })
}

/// Notes what the index has otherwise than the walk saw it.
fn note_index(cache: &mut StatCache, walked: &mut Walked) {
    for (path, id) in std::mem::take(&mut walked.left_index) {
        let ids = cache.index_only.entry(path).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    for (path, indexed) in std::mem::take(&mut walked.not_left_out) {
        cache.not_left_out.entry(path).or_insert(indexed);
    }
}

/// Makes a capture durable and visible.
pub(crate) fn publish(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    options: &SnapshotOptions,
    captured: Captured,
) -> Result<Published, SnapshotError> {
    op.check()?;
    let mut record = captured.record;
    let named = match captured.has_only_new_trees {
        true => {
            let directories = &captured.closing.cache().directories;
            trees::named(op, directories, captured.closing.tally().files())?
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
    let (closing, own_path) = (&captured.closing, workspace.own_path());
    let publish = || store.publish(op, &options.owner, parts, captured.pack);
    let (staged, published) = match closing.is_changed() {
        // While the disk is waited for.
        true => parallel::both(|| closing.stage(op, &own_path), publish),
        false => (None, publish()),
    };
    record.snapshot = published?;
    let cache = Arc::clone(captured.closing.cache());
    // It is there, so a cancellation comes too late.
    let op = &op.to_its_end();
    store.vouch(op);
    store.merge_small_packs(op);
    let closing = captured.closing.into_inner();
    closing.keep(op, workspace.memory(), &own_path, staged);
    Ok(Published {
        record,
        cache,
        tree: captured.tree,
        new_trees: captured.new_trees.into_inner(),
    })
}

/// Whether there is anything that a capture starts from, of this workspace or of another with the
/// same store.
pub(crate) fn has_cache(workspace: &LockedWorkspace) -> bool {
    let mut all = workspace.own_paths().into_iter();
    all.any(|own| own.join(GIT_STAT_CACHE).exists())
}

/// Forgets what was captured, so that the next capture relies on nothing that the store lost, be it
/// of this workspace or of another with the same store.
pub(crate) fn forget_cache(op: &Operation, workspace: &LockedWorkspace) -> Result<(), PathError> {
    for own in workspace.own_paths() {
        durable::remove_file(op, &own.join(GIT_STAT_CACHE))?;
    }
    Ok(())
}
