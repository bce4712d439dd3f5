//! Storing content again that a store has lost, while the workspace still has it.
//!
//! A capture relies on its cache, which says that the content of an unchanged file is in the store.
//! Checking every object each time would cost as much as the first capture. So damage of the store
//! is detected only when an object is read. Before a restore displaces a file, the object is read,
//! because afterwards it would be too late.

use std::os::fd::AsFd as _;

use crate::contents::ContentError;
use crate::error::PathError;
use crate::git::object_id::sha1;
use crate::git::pack::{PackWriter, Streamed};
use crate::git::store::Store;
use crate::git::tree_object::{self, ItemKind, TreeItem};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::parallel::in_parts;
use crate::path::RelPath;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::{ContentId, Entry, EntryKind};
use crate::worktree::read::{self, Content, ContentSink, Reading, SinkError};
use crate::worktree::root::{self, Root};
use crate::worktree::stat_cache::{CachedDirectory, StatCache};

/// Fewer objects than this are read before another thread has begun.
const OBJECTS_PER_THREAD: usize = 32;
/// Blobs up to this size are read at once.
const MAX_HELD_BYTES: u64 = 4 << 20;

/// Those of `ids` that cannot be read from the store as what their ids say. Reads all of them.
pub(super) fn unsound(
    op: &Operation,
    store: &Store,
    ids: &[ObjectId],
) -> Result<Vec<ObjectId>, StoreError> {
    let packs = store.reader_set()?;
    let reader = store.reader(&packs);
    let look = |id: &ObjectId| {
        let read = match reader.blob(op, id, MAX_HELD_BYTES) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => match store.blob_to(op, id, &mut std::io::sink()) {
                Ok(_) => Ok(()),
                Err(ContentError::Store(error)) => Err(error),
                Err(ContentError::Sink(_)) => unreachable!("a sink takes everything"),
            },
            Err(error) => Err(error),
        };
        match read {
            Ok(()) => Ok(None),
            Err(StoreError::Corrupt { .. }) => Ok(Some(*id)),
            Err(error) => Err(error),
        }
    };
    let looked = in_parts(ids, OBJECTS_PER_THREAD, |part| {
        part.iter().filter_map(|id| look(id).transpose()).collect()
    });
    let unsound: Result<Vec<Vec<ObjectId>>, StoreError> = looked.into_iter().collect();
    Ok(unsound?.concat())
}

/// Stores the content of `paths` anew, as far as it still is what the capture saw, and those trees
/// of the capture that cannot be read.
pub(super) fn heal(
    op: &Operation,
    root: &Root,
    store: &Store,
    cache: &StatCache,
    paths: &[(RelPath, Entry)],
) -> Result<(), SnapshotError> {
    let pack = store.writer(op)?;
    for (path, entry) in paths {
        read_anew(op, root, &pack, path, entry)?;
    }
    for (path, directory) in &cache.directories {
        let Some(id) = directory.tree.as_ref().and_then(sha1) else {
            continue;
        };
        match tree_object::Trees::tree(store, op, &id) {
            Err(StoreError::Corrupt { .. }) => {}
            read => {
                read?;
                continue;
            }
        }
        let content = tree_object::serialize(&mut items_of(cache, path, directory));
        if ObjectId::of(ObjectKind::Tree, &content).is_ok_and(|made| made == id) {
            pack.add(ObjectKind::Tree, id, &content)
                .map_err(StoreError::from)?;
        }
    }
    pack.finish()?;
    Ok(())
}

/// Puts what lies at `path` into the pack. That it is gone, or something else, is no error.
fn read_anew(
    op: &Operation,
    root: &Root,
    pack: &PackWriter,
    path: &RelPath,
    entry: &Entry,
) -> Result<(), SnapshotError> {
    let unreadable = |source: std::io::Error| SnapshotError::Unreadable {
        context: format!("{path} could not be read"),
        source: PathError::at("read", root.disk_path(path))(source),
    };
    let (parent, name) = match root.open_parent(path) {
        Ok(found) => found,
        Err(errno) if root::is_gone_or_replaced(errno) => return Ok(()),
        Err(errno) => return Err(unreadable(errno.into())),
    };
    let sink = Anew { pack };
    let reading = match entry.kind {
        EntryKind::Symlink => read::link(parent.as_fd(), name, &sink),
        _ => read::file(&op.to_its_end(), parent.as_fd(), name, &sink),
    };
    match reading {
        Ok(Reading::Read { .. } | Reading::Replaced | Reading::Omitted(_)) => Ok(()),
        Err(SinkError::Sink(error)) => Err(error),
        Err(SinkError::Read(source)) => Err(unreadable(source)),
    }
}

/// What the tree of a directory holds.
fn items_of(cache: &StatCache, path: &RelPath, directory: &CachedDirectory) -> Vec<TreeItem> {
    let item = |name: &[u8], kind, id| TreeItem {
        name: name.to_vec(),
        kind,
        id,
    };
    let tree_at = |path: &RelPath| {
        let directory = cache.directories.get(path)?;
        sha1(directory.tree.as_ref()?)
    };
    let files = directory.captured().filter_map(|(name, entry)| {
        Some(item(name, ItemKind::Entry(entry.kind), sha1(&entry.id)?))
    });
    let trees = directory
        .children
        .iter()
        .filter_map(|name| Some(item(name, ItemKind::Directory, tree_at(&path.join(name))?)));
    let submodules = cache.submodules.iter().filter_map(|(at, submodule)| {
        let is_here = at.parent().as_ref() == Some(path) && tree_at(at).is_none();
        let commit = sha1(&submodule.commit).filter(|_| is_here)?;
        Some(item(at.name(), ItemKind::Submodule, commit))
    });
    files.chain(trees).chain(submodules).collect()
}

/// Stores content whether or not the store seems to have it.
struct Anew<'a> {
    pack: &'a PackWriter,
}

impl ContentSink for Anew<'_> {
    fn file(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        let streamed = self.pack.add_stream(size, content);
        match streamed.map_err(|e| SnapshotError::from(StoreError::from(e)))? {
            Streamed::Stored(id) => Ok(Some(id.into())),
            Streamed::Unstable => Ok(None),
            Streamed::Unreadable(source) => Err(SinkError::Read(source)),
            Streamed::Collision(_) => Ok(None),
        }
    }

    fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
        let unsupported =
            |_| SnapshotError::Unsupported("a link is half of a SHA-1 collision".to_owned());
        let id = ObjectId::of(ObjectKind::Blob, text).map_err(unsupported)?;
        self.pack
            .add(ObjectKind::Blob, id, text)
            .map_err(|e| SnapshotError::from(StoreError::from(e)))?;
        Ok(id.into())
    }
}
