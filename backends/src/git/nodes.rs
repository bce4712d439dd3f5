//! The entries in the tree of a snapshot.

use crate::git::ObjectId;
use crate::git::store::Store;
use crate::git::tree_object::{ItemKind, TreeItem};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::restore::Node;
use crate::store_error::StoreError;
use crate::tree::Entry;

/// The tree of the workspace in a snapshot.
pub(super) fn tree_of(record: &Record) -> Result<ObjectId, StoreError> {
    let id = &record.snapshot.id;
    let tree =
        record.snapshot.tree.as_deref().ok_or_else(|| {
            StoreError::corrupt(format!("the record of {id}"), "it names no tree")
        })?;
    tree.parse()
        .map_err(|e| StoreError::corrupt(format!("the record of {id}"), e))
}

/// What a tree of the store holds at `path`.
pub(super) fn node_in(
    op: &Operation,
    store: &Store,
    tree: &ObjectId,
    path: &RelPath,
) -> Result<Option<Node>, StoreError> {
    Ok(store.entry_at(op, tree, path)?.and_then(node_of))
}

pub(super) fn node_of(item: TreeItem) -> Option<Node> {
    match item.kind {
        ItemKind::Entry(kind) => Some(Node::Entry(Entry {
            kind,
            id: item.id.into(),
        })),
        ItemKind::Directory => Some(Node::Directory),
        ItemKind::Submodule => None,
    }
}
