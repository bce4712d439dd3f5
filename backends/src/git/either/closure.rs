//! What commits name: trees and blobs, as far as others do not have them in the same places.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::CheckpointError;
use crate::git::ObjectId;
use crate::git::either::EitherTrees;
use crate::git::tree_object::{self, ItemKind, TreeItem};
use crate::operation::Operation;

/// The ids that some trees name, themselves included.
pub(in crate::git) struct Closure<'a> {
    op: &'a Operation,
    trees: EitherTrees<'a>,
    seen: HashSet<ObjectId>,
    pub(in crate::git) ids: HashSet<ObjectId>,
}

impl<'a> Closure<'a> {
    pub(in crate::git) fn new(op: &'a Operation, trees: EitherTrees<'a>) -> Self {
        Self {
            op,
            trees,
            seen: HashSet::new(),
            ids: HashSet::new(),
        }
    }

    /// Adds what `tree` names that none of `known` has in the same place. A tree that is nowhere is
    /// added, and nothing below it.
    pub(in crate::git) fn add(
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
            let Some(items) = self.trees.tree_if_any(self.op, &tree)? else {
                continue;
            };
            let mut beside: HashMap<Vec<u8>, Vec<TreeItem>> = HashMap::new();
            for id in &known {
                for item in self.trees.tree_if_any(self.op, id)?.unwrap_or_default() {
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
}
