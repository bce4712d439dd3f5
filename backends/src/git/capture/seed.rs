//! The starting point of a capture: what the last one saw, updated from the user's index.

use super::sink::collision;
use super::{Setting, Source};
use rustix::io::Errno;

use crate::error::PathError;
use crate::git::object_id::sha1;
use crate::git::pack::{PackWriter, Streamed};
use crate::git::repository::{IndexFile, Unfolded, UserRepository};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind, index};
use crate::operation::Operation;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::ContentId;
use crate::worktree::clock::Clock;
use crate::worktree::memory::Base;
use crate::worktree::stat_cache::{EntryStat, IndexStamp, StatCache, is_racy};

/// What a capture takes from the user's index before it looks at any file.
pub(super) struct Seed {
    /// Whether the index is another than last time.
    pub(super) is_new: bool,
    /// The blob with its bytes; `None`: there is no index.
    pub(super) index: Option<ObjectId>,
    /// When that was last written, in nanoseconds since the Unix epoch.
    pub(super) index_modified_ns: Option<i64>,
    /// The bytes of an index that cannot be read, which are still to be kept.
    pub(super) unread: Option<IndexBytes>,
    /// Whether no tree of the last capture is known.
    pub(super) has_only_new_trees: bool,
}

impl Setting<'_> {
    /// Brings what the last capture saw into agreement with the user's index.
    pub(super) fn seed(&self, base: &mut Base) -> Result<Seed, SnapshotError> {
        let (is_new, unread) = match self.request.source {
            Source::Repository(repository) => {
                let clock = Clock::of(self.root);
                let (store, pack) = (self.request.store, self.sink.pack);
                (
                    read_index(self.request.op, repository, &clock, base, store, pack)?,
                    None,
                )
            }
            Source::WithoutIndex(repository) => {
                let had_one = base.cache.index.take().is_some();
                (had_one, unread_index(repository)?)
            }
            Source::Cache => (base.cache.index.take().is_some(), None),
        };
        let (index, index_modified_ns) = match (&unread, &base.cache.index) {
            (Some(kept), _) => (Some(kept.id), Some(kept.modified_ns)),
            (None, Some(stamp)) => (sha1(&stamp.blob), Some(stamp.stat.mtime_ns)),
            (None, None) => (None, None),
        };
        let mut directories = base.cache.directories.values();
        Ok(Seed {
            is_new,
            index,
            index_modified_ns,
            unread,
            has_only_new_trees: directories.all(|directory| directory.tree.is_none()),
        })
    }
}

/// The bytes of the user's index, to be kept with the snapshot.
pub(super) struct IndexBytes {
    id: ObjectId,
    bytes: Vec<u8>,
    /// When they were last written, in nanoseconds since the Unix epoch.
    modified_ns: i64,
}

impl IndexBytes {
    pub(super) fn keep(&self, store: &Store, pack: &PackWriter) -> Result<(), StoreError> {
        if !store.contains(&self.id)? {
            pack.add(ObjectKind::Blob, self.id, &self.bytes)?;
        }
        Ok(())
    }
}

/// Brings the cache into agreement with the user's index, if that is another than last time, and
/// keeps its bytes in the store. Answers whether it was.
fn read_index(
    op: &Operation,
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
    let id = known.map(|_| file.blob_id(op)).transpose()?;
    let is_same = id.is_some() && known == id.map(ContentId::from);
    let (agreed, kept) = std::thread::scope(|scope| {
        // To hash and compress the bytes takes as long as to read the entries.
        let helper = std::thread::Builder::new()
            .spawn_scoped(scope, || keep_index(op, &file, id, store, pack));
        let agreed = match is_same {
            true => Ok(None),
            false => base
                .revise(|cache| agree(op, repository, &file, cache))
                .map(Some),
        };
        let kept = match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(kept)) => kept,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // A machine that gives no thread gets its answer all the same.
            Err(_) => keep_index(op, &file, id, store, pack),
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
    op: &Operation,
    repository: &UserRepository,
    file: &IndexFile<'_>,
    cache: &mut StatCache,
) -> Result<ObjectId, SnapshotError> {
    let mtime_ns = EntryStat::of(&file.stat()).mtime_ns;
    let begin = || index::Tracked::new(repository.scope(), mtime_ns);
    let (tracked, id) = file.fold(op, begin, index::Tracked::add)?;
    let mut unfolded = Unfolded::default();
    let mut expand =
        |tree: ObjectId| Ok::<_, SnapshotError>(repository.tree_files(op, tree, &mut unfolded)?);
    index::agree(op, cache, tracked, &mut expand)?;
    let sizes = |ids: &[ObjectId]| Ok::<_, SnapshotError>(repository.object_sizes(op, ids)?);
    index::doubt_other_sizes(op, cache, sizes)?;
    Ok(id)
}

/// Puts the bytes of the index into the pack, unless the store has them; answers with their id,
/// which is `id` if that is known. `None`: the index has not as many of them as it had.
fn keep_index(
    op: &Operation,
    file: &IndexFile<'_>,
    id: Option<ObjectId>,
    store: &Store,
    pack: &PackWriter,
) -> Result<Option<ObjectId>, SnapshotError> {
    if store.has_packs()? {
        let id = match id {
            Some(id) => id,
            None => file.blob_id(op)?,
        };
        if store.contains(&id)? {
            return Ok(Some(id));
        }
    }
    let streamed = pack.add_stream(file.stat().size, &mut file.bytes(op));
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
