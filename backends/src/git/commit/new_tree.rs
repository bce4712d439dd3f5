//! The tree of a commit: the tree of HEAD with the edits applied.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::edits::Edits;
use crate::commit::CommitError;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{self, ItemKind, TreeItem, Trees};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;

/// What becomes of the names of a directory.
type Names = BTreeMap<Vec<u8>, Option<(ItemKind, ObjectId)>>;

/// A tree, and those that it is made of, as far as they are new.
#[derive(Debug)]
pub(in crate::git) struct NewTree {
    pub(in crate::git) id: ObjectId,
    /// The bytes of each.
    pub(in crate::git) trees: BTreeMap<ObjectId, Vec<u8>>,
}

impl NewTree {
    /// The tree `base` as it is.
    pub(super) fn same(base: ObjectId) -> Self {
        Self {
            id: base,
            trees: BTreeMap::new(),
        }
    }

    /// The tree `base` with `edits`. A directory with nothing left in it goes.
    pub(super) fn of(
        op: &Operation,
        trees: &dyn Trees,
        base: ObjectId,
        edits: &Edits,
    ) -> Result<Self, CommitError> {
        let known = TreeLookup::new(trees, base);
        let mut in_directory: BTreeMap<RelPath, Names> = BTreeMap::new();
        let mut directories: BTreeSet<(Reverse<usize>, RelPath)> = BTreeSet::new();
        directories.insert((Reverse(0), RelPath::root()));
        for (path, edit) in edits {
            let mut at = path.parent();
            while let Some(directory) = at {
                at = directory.parent();
                let depth = directory.names().count();
                if !directories.insert((Reverse(depth), directory)) {
                    break;
                }
            }
            let directory = path.parent().expect("the work tree itself is not edited");
            let names = in_directory.entry(directory).or_default();
            names.insert(path.name().to_vec(), *edit);
        }
        let mut made = Self::same(base);
        // The deepest first: what comes of one is an edit of the one above.
        for (_, directory) in directories {
            let items = known.directory(op, &directory)?;
            let mut items: BTreeMap<Vec<u8>, TreeItem> = items
                .iter()
                .flat_map(|items| items.iter())
                .map(|item| (item.name.clone(), item.clone()))
                .collect();
            for (name, edit) in in_directory.remove(&directory).unwrap_or_default() {
                match edit {
                    Some((kind, id)) => {
                        let item = TreeItem {
                            name: name.clone(),
                            kind,
                            id,
                        };
                        items.insert(name, item);
                    }
                    None => {
                        items.remove(&name);
                    }
                }
            }
            let mut items: Vec<TreeItem> = items.into_values().collect();
            let is_empty = items.is_empty();
            let bytes = tree_object::serialize(&mut items);
            let id = ObjectId::of(ObjectKind::Tree, &bytes).map_err(|collision| {
                StoreError::corrupt("a tree for the commit", collision.to_string())
            })?;
            let Some(above) = directory.parent() else {
                made.trees.insert(id, bytes);
                made.id = id;
                break;
            };
            let names = in_directory.entry(above).or_default();
            if is_empty {
                // A file or another directory may have been there.
                names.insert(directory.name().to_vec(), None);
            } else {
                made.trees.insert(id, bytes);
                let item = (ItemKind::Directory, id);
                names.insert(directory.name().to_vec(), Some(item));
            }
        }
        Ok(made)
    }
}

/// The tree `base` with `edits`, as [`NewTree::of`] makes it.
pub(in crate::git) fn tree_with(
    op: &Operation,
    trees: &dyn Trees,
    base: ObjectId,
    edits: &Edits,
) -> Result<NewTree, CommitError> {
    match edits.is_empty() {
        true => Ok(NewTree::same(base)),
        false => NewTree::of(op, trees, base, edits),
    }
}
