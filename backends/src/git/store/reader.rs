//! Reading many objects: packs stay open, threads share them, and each object costs one look at an
//! index and, as a rule, one read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sha1::{Digest as _, Sha1};

use super::{LooseShards, MAX_TREE_BYTES, PackSet, Store, check_kind};
use crate::git::pack::{OpenPack, PackIndex};
use crate::git::tree_object::{self, TreeItem, Trees};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// How many packs are kept open, and how many indexes. What lies in others is read all the same.
const MAX_OPEN_PACKS: usize = 64;

/// Reads objects of a [`Store`] as [`Store::read`] does, at less cost for each. Threads may share
/// it.
///
/// An object is compared with its id by a plain SHA-1: that finds any damage. What an attack on
/// SHA-1 made is looked for where content comes in, and wherever content goes back into a
/// workspace.
pub(crate) struct Reader<'s> {
    store: &'s Store,
    set: &'s PackSet,
    files: Vec<OnceLock<Option<OpenPack<'s>>>>,
    opened: AtomicUsize,
    indexes: Vec<OnceLock<Option<PackIndex>>>,
    opened_indexes: AtomicUsize,
    last_hit: AtomicUsize,
    loose_shards: OnceLock<LooseShards>,
}

/// The packs of a store as they were at one time.
pub(crate) struct ReaderSet(Arc<PackSet>);

impl Store {
    /// The packs as they are now, for [`Store::reader`].
    pub(crate) fn reader_set(&self) -> Result<ReaderSet, StoreError> {
        Ok(ReaderSet(self.packs()?))
    }

    /// A reader of these packs, and through the store of everything else.
    pub(crate) fn reader<'s>(&'s self, ReaderSet(set): &'s ReaderSet) -> Reader<'s> {
        Reader {
            store: self,
            set,
            files: set.packs.iter().map(|_| OnceLock::new()).collect(),
            opened: AtomicUsize::new(0),
            indexes: set.packs.iter().map(|_| OnceLock::new()).collect(),
            opened_indexes: AtomicUsize::new(0),
            last_hit: AtomicUsize::new(self.last_hit.load(Ordering::Relaxed)),
            loose_shards: OnceLock::new(),
        }
    }
}

impl Reader<'_> {
    /// As [`Store::contains`], in these packs and the directories of loose objects that there were
    /// when this was first asked.
    pub(crate) fn contains(&self, id: &ObjectId) -> Result<bool, StoreError> {
        for at in 0..self.set.packs.len() {
            if self.index(at).contains(id)? {
                return Ok(true);
            }
        }
        let shards = match self.loose_shards.get() {
            Some(shards) => shards,
            None => {
                let found = self.store.loose_shards()?;
                self.loose_shards.get_or_init(|| found)
            }
        };
        Ok(shards.has(id) && self.store.has_loose(id)?)
    }

    /// The bytes of a blob; `None` if they are more than `max_bytes`.
    pub(crate) fn blob(
        &self,
        op: &Operation,
        id: &ObjectId,
        max_bytes: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some((kind, bytes)) = self.quick(op, id, max_bytes) {
            check_kind(id, kind, ObjectKind::Blob)?;
            return Ok(Some(bytes));
        }
        if self.store.blob_size(id)? > max_bytes {
            return Ok(None);
        }
        let (kind, bytes) = self.store.read(op, id, max_bytes)?;
        check_kind(id, kind, ObjectKind::Blob)?;
        Ok(Some(bytes))
    }

    /// The bytes of a tree.
    pub(super) fn tree_bytes(&self, op: &Operation, id: &ObjectId) -> Result<Vec<u8>, StoreError> {
        // It need not be anywhere.
        if *id == tree_object::empty_tree_id() {
            return Ok(Vec::new());
        }
        let (kind, bytes) = match self.quick(op, id, MAX_TREE_BYTES) {
            Some(found) => found,
            None => self.store.read(op, id, MAX_TREE_BYTES)?,
        };
        check_kind(id, kind, ObjectKind::Tree)?;
        Ok(bytes)
    }

    /// The object, if it is in a pack and can be read simply. A caller that gets nothing asks the
    /// store, which looks everywhere and says what is wrong.
    fn quick(
        &self,
        op: &Operation,
        id: &ObjectId,
        max_bytes: u64,
    ) -> Option<(ObjectKind, Vec<u8>)> {
        let packs = &self.set.packs;
        let start = self.last_hit.load(Ordering::Relaxed);
        for step in 0..packs.len() {
            let at = (start + step) % packs.len();
            let Some(offset) = self.index(at).find(id).ok()? else {
                continue;
            };
            if step > 0 {
                self.last_hit.store(at, Ordering::Relaxed);
            }
            let file = self.file(at)?;
            let bases = &self.store.bases;
            let (kind, bytes) = packs[at]
                .object_of(op, file, offset, max_bytes, bases)
                .ok()?;
            return is_object(id, kind, &bytes).then_some((kind, bytes));
        }
        None
    }

    /// The index of a pack, with its file held open if that is needed and allowed.
    fn index(&self, at: usize) -> &PackIndex {
        let index = &self.set.packs[at].index;
        if index.is_resident() {
            return index;
        }
        let open = || {
            let opened = self.opened_indexes.fetch_add(1, Ordering::Relaxed);
            let is_allowed = opened < MAX_OPEN_PACKS;
            is_allowed.then(|| index.held_open().ok()).flatten()
        };
        self.indexes[at].get_or_init(open).as_ref().unwrap_or(index)
    }

    fn file(&self, at: usize) -> Option<&OpenPack<'_>> {
        let open = || {
            let is_allowed = self.opened.fetch_add(1, Ordering::Relaxed) < MAX_OPEN_PACKS;
            is_allowed.then(|| self.set.packs[at].file().ok()).flatten()
        };
        self.files[at].get_or_init(open).as_ref()
    }
}

/// Whether the bytes are those that the id was made of.
fn is_object(id: &ObjectId, kind: ObjectKind, bytes: &[u8]) -> bool {
    let mut hasher = Sha1::new();
    hasher.update(format!("{} {}\0", kind.as_str(), bytes.len()));
    hasher.update(bytes);
    id.0 == <[u8; 20]>::from(hasher.finalize())
}

impl Trees for Reader<'_> {
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
        tree_object::parse(id, &self.tree_bytes(op, id)?)
    }
}
