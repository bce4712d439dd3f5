//! The paths at which two trees differ, submodules included.

use std::cmp::Ordering;

use crate::git::ObjectId;
use crate::git::tree_object::{self, ItemKind, TreeItem, Trees};
use crate::git::user_index::MODE_SUBMODULE;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::EntryKind;

/// A path, from the top of the tree, that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::git) struct TreeChange {
    pub(in crate::git) path: RelPath,
    pub(in crate::git) old: Option<Side>,
    pub(in crate::git) new: Option<Side>,
}

/// What a tree, or an index, has at a path: the mode is git's, and never that of a directory.
pub(in crate::git) type Side = (u32, ObjectId);

/// What an item of a tree is to an index; `None` for a directory.
pub(in crate::git) fn side_of(item: &TreeItem) -> Option<Side> {
    match item.kind {
        ItemKind::Directory => None,
        ItemKind::Entry(kind) => Some((kind.git_mode(), item.id)),
        ItemKind::Submodule => Some((MODE_SUBMODULE, item.id)),
    }
}

/// What a tree has for it.
pub(in crate::git) fn item_of((mode, id): Side) -> Option<(ItemKind, ObjectId)> {
    match mode {
        MODE_SUBMODULE => Some((ItemKind::Submodule, id)),
        mode => EntryKind::from_git_mode(mode).map(|kind| (ItemKind::Entry(kind), id)),
    }
}

/// Whether it is a file, and no link and no commit of a submodule.
pub(in crate::git) fn is_file((mode, _): Side) -> bool {
    matches!(
        EntryKind::from_git_mode(mode),
        Some(EntryKind::File | EntryKind::Executable)
    )
}

/// Every path at which the trees differ, sorted, each once. `None` is a tree without names.
pub(in crate::git) fn between(
    op: &Operation,
    trees: &dyn Trees,
    old: Option<ObjectId>,
    new: Option<ObjectId>,
) -> Result<Vec<TreeChange>, StoreError> {
    let mut changes: Vec<TreeChange> = Vec::new();
    let mut waiting = vec![(RelPath::root(), old, new)];
    while let Some((directory, old, new)) = waiting.pop() {
        if old == new {
            continue;
        }
        op.check()?;
        let read = |id: Option<ObjectId>| id.map_or(Ok(Vec::new()), |id| trees.tree(op, &id));
        let (old, new) = (read(old)?, read(new)?);
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => tree_object::compare(old, new),
            };
            let old = old.next_if(|_| order != Ordering::Greater);
            let new = new.next_if(|_| order != Ordering::Less);
            let either = old.or(new).expect("one of them was there");
            let path = directory.join(&either.name);
            if either.kind == ItemKind::Directory {
                waiting.push((path, old.map(|item| item.id), new.map(|item| item.id)));
                continue;
            }
            let (old, new) = (old.and_then(side_of), new.and_then(side_of));
            if old != new {
                changes.push(TreeChange { path, old, new });
            }
        }
    }
    changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(changes)
}
