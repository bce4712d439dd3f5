//! What a commit has, in the order in which an index has it.

use std::collections::HashMap;

use crate::git::ObjectId;
use crate::git::commit::RepositoryTrees;
use crate::git::repository::UserRepository;
use crate::git::tree_object::{ItemKind, TreeItem, Trees as _};
use crate::git::user_index::{IndexTree, MODE_SUBMODULE};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::EntryKind;

/// A tree that names itself again and again through a few objects can claim any number.
const MAX_ENTRIES: usize = 10_000_000;
/// How many bytes their paths may have.
const MAX_PATH_BYTES: usize = 1 << 30;

/// What a tree has, at any depth.
#[derive(Default)]
pub(super) struct TreeContents {
    /// In the order of an index.
    pub(super) items: Vec<Item>,
    /// The directories, each before what it has.
    pub(super) trees: Vec<IndexTree>,
    /// The attribute files, by their directories.
    pub(super) attributes: HashMap<RelPath, ObjectId>,
}

/// A file, a link or a submodule.
pub(super) struct Item {
    /// From the top.
    pub(super) path: RelPath,
    /// `None`: a submodule.
    pub(super) kind: Option<EntryKind>,
    pub(super) id: ObjectId,
}

impl Item {
    pub(super) fn git_mode(&self) -> u32 {
        self.kind.map_or(MODE_SUBMODULE, EntryKind::git_mode)
    }
}

/// A directory of which some names are still to come.
struct Begun {
    path: RelPath,
    /// Its place among the trees.
    number: usize,
    rest: std::vec::IntoIter<TreeItem>,
    /// How many items there were before it.
    items_before: usize,
}

impl TreeContents {
    /// Reads the tree `root` with all below it.
    pub(super) fn read(
        op: &Operation,
        repository: &UserRepository,
        root: ObjectId,
    ) -> Result<Self, StoreError> {
        let trees = RepositoryTrees(repository);
        let mut contents = Self::default();
        let mut path_bytes = 0;
        let top = contents.begin(RelPath::root(), root, trees.tree(op, &root)?);
        // A loop: the depth of a tree must not be the depth of the stack.
        let mut begun = vec![top];
        while let Some(directory) = begun.last_mut() {
            let Some(TreeItem { name, kind, id }) = directory.rest.next() else {
                let Begun {
                    number,
                    items_before,
                    ..
                } = *directory;
                contents.trees[number].entries = (contents.items.len() - items_before) as u64;
                begun.pop();
                continue;
            };
            let path = directory.path.join(&name);
            path_bytes += path.as_bytes().len();
            let count = contents.items.len() + contents.trees.len();
            if count >= MAX_ENTRIES || path_bytes > MAX_PATH_BYTES {
                return Err(too_large(count));
            }
            let kind = match kind {
                ItemKind::Directory => {
                    op.check()?;
                    contents.trees[directory.number].directories += 1;
                    let items = trees.tree(op, &id)?;
                    begun.push(contents.begin(path, id, items));
                    continue;
                }
                ItemKind::Submodule => None,
                ItemKind::Entry(kind) => Some(kind),
            };
            let is_file = matches!(kind, Some(EntryKind::File | EntryKind::Executable));
            if is_file && name == b".gitattributes" {
                contents.attributes.insert(directory.path.clone(), id);
            }
            contents.items.push(Item { path, kind, id });
        }
        Ok(contents)
    }

    fn begin(&mut self, path: RelPath, id: ObjectId, items: Vec<TreeItem>) -> Begun {
        self.trees.push(IndexTree {
            name: path.name().to_vec(),
            id,
            entries: 0,
            directories: 0,
        });
        Begun {
            path,
            number: self.trees.len() - 1,
            rest: items.into_iter(),
            items_before: self.items.len(),
        }
    }
}

fn too_large(count: usize) -> StoreError {
    StoreError::LimitExceeded {
        what: "the number of files of the commit".to_owned(),
        limit: MAX_ENTRIES as u64,
        actual: count as u64 + 1,
    }
}
