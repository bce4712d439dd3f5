//! What commits name: trees and blobs, as far as others do not have them in the same places.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::CheckpointError;
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::git::tree_object::{self, ItemKind, TreeItem, Trees as _};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 << 20;

/// The ids that some trees name, themselves included.
pub(super) struct Closure<'a> {
    op: &'a Operation,
    repository: &'a UserRepository,
    store: &'a Store,
    seen: HashSet<ObjectId>,
    pub(super) ids: HashSet<ObjectId>,
}

impl<'a> Closure<'a> {
    pub(super) fn new(op: &'a Operation, repository: &'a UserRepository, store: &'a Store) -> Self {
        Self {
            op,
            repository,
            store,
            seen: HashSet::new(),
            ids: HashSet::new(),
        }
    }

    /// Adds what `tree` names that none of `known` has in the same place. A tree that is nowhere is
    /// added, and nothing below it.
    pub(super) fn add(
        &mut self,
        tree: ObjectId,
        known: &[ObjectId],
    ) -> Result<(), CheckpointError> {
        let mut waiting = vec![(tree, known.to_vec())];
        while let Some((tree, known)) = waiting.pop() {
            if known.contains(&tree) || !self.seen.insert(tree) {
                continue;
            }
            self.op.check()?;
            // It need not be anywhere.
            if tree != tree_object::empty_tree_id() {
                self.ids.insert(tree);
            }
            let Some(items) = self.tree(&tree)? else {
                continue;
            };
            let mut beside: HashMap<Vec<u8>, Vec<TreeItem>> = HashMap::new();
            for id in &known {
                for item in self.tree(id)?.unwrap_or_default() {
                    beside.entry(item.name.clone()).or_default().push(item);
                }
            }
            for item in items {
                let same = beside.get(&item.name).map_or(&[][..], Vec::as_slice);
                let of_kind = same.iter().filter(|other| other.kind == item.kind);
                let known: Vec<ObjectId> = of_kind.map(|other| other.id).collect();
                match item.kind {
                    ItemKind::Directory => waiting.push((item.id, known)),
                    ItemKind::Entry(_) if known.contains(&item.id) => {}
                    ItemKind::Entry(_) => _ = self.ids.insert(item.id),
                    ItemKind::Submodule => {}
                }
            }
        }
        Ok(())
    }

    fn tree(&self, id: &ObjectId) -> Result<Option<Vec<TreeItem>>, CheckpointError> {
        if *id == tree_object::empty_tree_id() {
            return Ok(Some(Vec::new()));
        }
        if self.store.contains(id)? {
            return Ok(Some(self.store.tree(self.op, id)?));
        }
        match self.repository.read_object(self.op, *id, MAX_TREE_BYTES)? {
            Some((ObjectKind::Tree, bytes)) => Ok(Some(tree_object::parse(id, &bytes)?)),
            Some(_) => Err(StoreError::corrupt(id.to_string(), "it is no tree").into()),
            None => Ok(None),
        }
    }
}
