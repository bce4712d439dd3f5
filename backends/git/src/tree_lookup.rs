//! Finding many paths in one tree.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::ObjectId;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::EntryKind;
use crate::tree_object::{self, ItemKind, TreeItem, Trees};

/// How many names are remembered at most: some twenty megabytes.
const MAX_ITEMS: usize = 200_000;

/// One tree, whose directories are read once however many paths in them are asked for.
pub struct TreeLookup<'a> {
    trees: &'a dyn Trees,
    root: ObjectId,
    known: RefCell<Known>,
}

/// The names of a directory in git's order; `None` if the tree has no such directory.
pub type Items = Option<Rc<[TreeItem]>>;

#[derive(Default)]
struct Known {
    directories: HashMap<RelPath, Items>,
    items: usize,
}

impl Known {
    fn insert(&mut self, path: RelPath, items: &Items) {
        let count = 1 + items.as_ref().map_or(0, |items| items.len());
        if self.items + count > MAX_ITEMS {
            *self = Self::default();
        }
        self.items += count;
        self.directories.insert(path, items.clone());
    }
}

impl<'a> TreeLookup<'a> {
    /// Paths in the tree `root`.
    pub fn new(trees: &'a dyn Trees, root: ObjectId) -> Self {
        Self {
            trees,
            root,
            known: RefCell::default(),
        }
    }

    /// What the tree has at `path`; `None` if it has nothing there.
    pub fn at(&self, op: &Operation, path: &RelPath) -> Result<Option<TreeItem>, StoreError> {
        let Some(parent) = path.parent() else {
            return Ok(Some(TreeItem {
                name: Vec::new(),
                kind: ItemKind::Directory,
                id: self.root,
            }));
        };
        let items = self.directory(op, &parent)?;
        Ok(items.and_then(|items| named(&items, path.name()).cloned()))
    }

    /// The names that the tree has in a directory, in git's order; `None` if it has no directory
    /// there.
    pub fn directory(&self, op: &Operation, path: &RelPath) -> Result<Items, StoreError> {
        // A loop: the depth of a tree must not be the depth of the stack.
        let mut unknown = Vec::new();
        let mut at = path.clone();
        let mut items = loop {
            if let Some(items) = self.known.borrow().directories.get(&at) {
                break items.clone();
            }
            match at.parent() {
                Some(parent) => unknown.push(std::mem::replace(&mut at, parent)),
                None => break self.read(op, at, Some(self.root))?,
            }
        };
        while let Some(path) = unknown.pop() {
            let item = items.as_ref().and_then(|i| named(i, path.name()));
            let id = item.filter(|i| i.kind == ItemKind::Directory).map(|i| i.id);
            items = self.read(op, path, id)?;
        }
        Ok(items)
    }

    fn read(
        &self,
        op: &Operation,
        path: RelPath,
        id: Option<ObjectId>,
    ) -> Result<Items, StoreError> {
        let items = match id {
            Some(id) => Some(self.trees.tree(op, &id)?.into()),
            None => None,
        };
        self.known.borrow_mut().insert(path, &items);
        Ok(items)
    }
}

/// The item with this name, which git sorts by whether it is a directory.
fn named<'i>(items: &'i [TreeItem], name: &[u8]) -> Option<&'i TreeItem> {
    [ItemKind::Entry(EntryKind::File), ItemKind::Directory]
        .into_iter()
        .find_map(|kind| {
            let wanted = TreeItem {
                name: name.to_vec(),
                kind,
                id: ObjectId([0; 20]),
            };
            let at = items.binary_search_by(|item| tree_object::compare(item, &wanted));
            at.ok().map(|at| &items[at])
        })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted<'a> {
        trees: HashMap<ObjectId, Vec<TreeItem>>,
        reads: &'a AtomicUsize,
    }

    impl Trees for Counted<'_> {
        fn tree(&self, _: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Ok(self.trees[id].clone())
        }
    }

    fn item(name: &str, kind: ItemKind, id: u8) -> TreeItem {
        TreeItem {
            name: name.into(),
            kind,
            id: ObjectId([id; 20]),
        }
    }

    #[test]
    fn every_path_is_found_and_no_directory_is_read_twice() {
        let file = ItemKind::Entry(EntryKind::File);
        let root = vec![
            item("a-b", file, 1),
            // Between a file and a directory of the name `a`, as git sorts.
            item("a", ItemKind::Directory, 2),
            item("a0", file, 3),
            item("m", ItemKind::Submodule, 4),
        ];
        let reads = AtomicUsize::new(0);
        let trees = Counted {
            trees: HashMap::from([
                (ObjectId([9; 20]), root.clone()),
                (
                    ObjectId([2; 20]),
                    vec![item("deep", ItemKind::Directory, 5)],
                ),
                (ObjectId([5; 20]), vec![item("x", file, 6)]),
            ]),
            reads: &reads,
        };
        assert!(root.is_sorted_by(|a, b| tree_object::compare(a, b).is_lt()));
        let lookup = TreeLookup::new(&trees, ObjectId([9; 20]));
        let paths = [
            ("", Some(9)),
            ("a", Some(2)),
            ("a-b", Some(1)),
            ("a0", Some(3)),
            ("m", Some(4)),
            ("m/x", None),
            ("a-b/x", None),
            ("a-b/x/y", None),
            ("gone", None),
            ("gone/x", None),
            ("a/deep", Some(5)),
            ("a/deep/x", Some(6)),
            ("a/deep/y", None),
        ];
        for (path, id) in paths.iter().chain(paths.iter().rev()) {
            let path = match *path {
                "" => RelPath::root(),
                path => RelPath::new(path.as_bytes()).unwrap(),
            };
            let found = lookup
                .at(&Operation::unbounded(), &path)
                .unwrap()
                .map(|item| item.id);
            assert_eq!(found, id.map(|id| ObjectId([id; 20])), "{path}");
            let same =
                tree_object::find(&Operation::unbounded(), &trees, &ObjectId([9; 20]), &path)
                    .unwrap();
            assert_eq!(found, same.map(|item| item.id), "{path}");
        }
        let before = reads.load(Ordering::Relaxed);
        for (path, _) in &paths[1..] {
            lookup
                .at(
                    &Operation::unbounded(),
                    &RelPath::new(path.as_bytes()).unwrap(),
                )
                .unwrap();
        }
        assert_eq!(reads.load(Ordering::Relaxed), before);
    }
}
