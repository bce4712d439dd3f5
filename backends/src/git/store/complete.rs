//! Checking that the store has everything that a snapshot names, before a ref names the snapshot.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::reader::Reader;
use super::{Store, StoredParts, missing};
use crate::git::ObjectId;
use crate::git::refs::SnapshotRef;
use crate::git::tree_object::{self, ItemKind};
use crate::operation::Operation;
use crate::parallel::in_parts;
use crate::path::RelPath;
use crate::store_error::StoreError;

/// Fewer trees than this are read before another thread has begun.
const TREES_PER_THREAD: usize = 100;

/// What a tree names at any depth, as far as that is known without reading it.
#[derive(Debug)]
pub(crate) struct Names {
    /// A tree that names all the rest in the same places. `None`: there is no rest.
    pub(crate) beyond: Option<ObjectId>,
    /// Trees and blobs, in any order.
    pub(crate) ids: Vec<ObjectId>,
}

/// A snapshot that was published, and that everything it names was there then. As long as its ref
/// is there nobody takes any of it away.
#[derive(Debug)]
pub(super) struct LastPublished {
    found: SnapshotRef,
    parts: StoredParts,
    /// The staged blobs, sorted and unique.
    staged: Vec<ObjectId>,
}

/// What some trees name.
#[derive(Default)]
struct Found {
    /// Other trees, each with what is known to be complete in the same place.
    directories: Vec<(ObjectId, Option<ObjectId>)>,
    /// Blobs.
    entries: Vec<ObjectId>,
}

impl Store {
    /// The staged blobs of the snapshot that was published last, sorted and unique: they were seen
    /// to be there. None if it cannot be read.
    pub(crate) fn last_published_staged(&self, op: &Operation) -> Vec<ObjectId> {
        let last_published = self.last_published(op);
        last_published.map_or_else(Vec::new, |last_published| last_published.staged.clone())
    }

    /// Notes a snapshot that was just published, so that the next one need not read it.
    pub(super) fn note_published(
        &self,
        found: SnapshotRef,
        parts: StoredParts,
        staged: Vec<ObjectId>,
    ) {
        *self
            .last_published
            .lock()
            .expect("no panic while it is held") = Some(Arc::new(LastPublished {
            found,
            parts,
            staged,
        }));
    }

    /// Makes sure that everything of a new snapshot is there: `own` objects that nothing names yet,
    /// and what `parts` names. `staged` is what the tree of the staged blobs does, sorted and
    /// unique, and `named` what the tree of the workspace does, as far as the caller knows. Most of
    /// it is in `new_pack`.
    ///
    /// What the last published snapshot names was seen to be there then. Of its tree that is
    /// believed of subtrees at the same path, and if `named` goes on from it, of the staged blobs
    /// too.
    ///
    /// No tree is read of which it is known what it names. Its id was made of that, by a hash that
    /// finds attacks on SHA-1, so that an object of this id names nothing else, and that all of the
    /// ids are in the store is as complete as it gets. Whether the bytes of an object that was
    /// borrowed are in order is looked at here for no blob, and then for no tree either: it is when
    /// they are read, and by [`Store::verify`].
    pub(super) fn check_complete(
        &self,
        op: &Operation,
        own: &[ObjectId],
        parts: &StoredParts,
        staged: &[ObjectId],
        named: Option<Names>,
        new_pack: Option<&Path>,
    ) -> Result<(), StoreError> {
        self.refresh()?;
        let last_published = self.last_published(op);
        let is_last_published = |tree| {
            last_published
                .as_ref()
                .is_some_and(|s| s.parts.worktree == tree)
        };
        let mut needed = own.to_vec();
        needed.extend(parts.index);
        needed.extend(parts.staged);
        let mut seen_staged: &[ObjectId] = &[];
        let goes_on = named.as_ref().is_some_and(|named| named.beyond.is_some());
        match named {
            Some(Names { beyond, ids }) if beyond.is_none_or(is_last_published) => {
                needed.push(parts.worktree);
                needed.extend(ids);
                if let (Some(_), Some(last_published)) = (beyond, &last_published) {
                    seen_staged = &last_published.staged;
                }
            }
            _ => {
                let known = last_published.as_ref().map(|s| s.parts.worktree);
                self.look_through(op, parts.worktree, known, &mut needed)?;
            }
        }
        let is_seen = |id: &&ObjectId| seen_staged.binary_search(id).is_ok();
        needed.extend(staged.iter().filter(|id| !is_seen(id)));
        let set = self.packs()?;
        let new = set.packs.iter().find(|p| Some(p.path()) == new_pack);
        if let Some(new) = new.filter(|_| goes_on) {
            // Almost all of them are there, and no other pack has to be asked.
            needed.sort_unstable();
            needed.dedup();
            new.index.retain_missing(op, &mut needed)?;
        }
        match self.missing_of(op, &set, needed)?.first() {
            None => Ok(()),
            Some(id) => Err(missing(id)),
        }
    }

    /// A snapshot that is known to be complete: the one that was published last, as far as this
    /// store knows. `None` if there is none that can be read, which proves nothing.
    fn last_published(&self, op: &Operation) -> Option<Arc<LastPublished>> {
        let mut held = self
            .last_published
            .lock()
            .expect("no panic while it is held");
        let stands = |known: &Arc<LastPublished>| {
            let found = self.refs.get(&known.found.name).ok().flatten();
            found.as_ref() == Some(&known.found)
        };
        if held.as_ref().is_none_or(|known| !stands(known)) {
            *held = self.read_last_published(op).map(Arc::new);
        }
        held.clone()
    }

    fn read_last_published(&self, op: &Operation) -> Option<LastPublished> {
        let found = self.refs.latest().ok()??;
        let parts = self.parts(op, &found.commit).ok()?;
        let mut staged: Vec<ObjectId> = match parts.staged {
            Some(tree) => {
                let items = tree_object::Trees::tree(self, op, &tree).ok()?;
                items.into_iter().map(|item| item.id).collect()
            }
            None => Vec::new(),
        };
        staged.sort_unstable();
        Some(LastPublished {
            found,
            parts,
            staged,
        })
    }

    /// Reads a tree and those below it, and adds the blobs that they name to `needed`. Subtrees
    /// that `known` has at the same path are not looked into, and their blobs left out.
    fn look_through(
        &self,
        op: &Operation,
        worktree: ObjectId,
        known: Option<ObjectId>,
        needed: &mut Vec<ObjectId>,
    ) -> Result<(), StoreError> {
        let packs = self.reader_set()?;
        let reader = self.reader(&packs);
        let mut seen = HashSet::new();
        let mut level = vec![(worktree, known)];
        for depth in 0.. {
            level.retain(|(id, known)| *known != Some(*id) && seen.insert(*id));
            if level.is_empty() {
                break;
            }
            let look = |part: &[_]| look_into(op, &reader, part, depth);
            let parts = in_parts(&level, TREES_PER_THREAD, look);
            level.clear();
            for part in parts {
                let part = part?;
                needed.extend(part.entries);
                level.extend(part.directories);
            }
        }
        Ok(())
    }
}

/// What `trees`, which lie `depth` directories deep, name that the known ones beside them do not
/// have under the same name.
fn look_into(
    op: &Operation,
    reader: &Reader<'_>,
    trees: &[(ObjectId, Option<ObjectId>)],
    depth: usize,
) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for (id, known) in trees {
        op.check()?;
        let bytes = reader.tree_bytes(op, id)?;
        let known_bytes =
            known.and_then(|known| Some((known, reader.tree_bytes(op, &known).ok()?)));
        // One that is malformed proves as little as one that cannot be read.
        let mut known = known_bytes
            .iter()
            .flat_map(|(id, bytes)| tree_object::raw_items(*id, bytes))
            .map_while(Result::ok)
            .peekable();
        for item in tree_object::raw_items(*id, &bytes) {
            let item = item?;
            let name = (item.name, item.kind);
            while known
                .next_if(|k| tree_object::compare_names((k.name, k.kind), name).is_lt())
                .is_some()
            {}
            let same_name = known.next_if(|k| (k.name, k.kind) == name);
            let known = same_name.map(|k| k.id);
            if item.kind == ItemKind::Directory {
                tree_object::check_depth(&RelPath::root().join(item.name), depth)?;
                found.directories.push((item.id, known));
            } else if item.kind != ItemKind::Submodule && known != Some(item.id) {
                found.entries.push(item.id);
            }
        }
    }
    Ok(found)
}
