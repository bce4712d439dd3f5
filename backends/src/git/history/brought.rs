//! The objects that a commit adds to those of its parents.

use std::collections::{HashMap, HashSet};

use super::unreached::{Commit, Past};
use crate::git::repository::{RepositoryError, UserRepository};
use crate::git::tree_object::{self, ItemKind};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;

/// How much is read for one commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) trees: usize,
    /// The bytes of all trees together.
    pub(super) bytes: u64,
}

/// The trees and the content of a commit that none of its parents has in the same place.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// That of the commit first.
    pub(super) trees: Vec<(ObjectId, Vec<u8>)>,
    /// Sorted and unique.
    pub(super) blobs: Vec<ObjectId>,
}

impl Brought {
    /// Finds it. `None`: the trees are too many or too large, or one is no tree that git would
    /// take. One that is not there is [`RepositoryError::MissingObject`].
    pub(super) fn by(
        op: &Operation,
        past: &Past<'_>,
        commit: &Commit,
        limits: Limits,
    ) -> Result<Option<Self>, RepositoryError> {
        let read = |tree| tree_bytes(op, past.repository, tree, limits.bytes);
        let mut brought = Self::default();
        let mut parents = Vec::new();
        for parent in &commit.parents {
            // Without a parent all that the commit has is taken for new.
            parents.extend(past.commit(*parent)?.map(|parent| parent.tree));
        }
        let (mut blobs, mut seen, mut total) = (HashSet::new(), HashSet::new(), 0);
        let mut pending = vec![(commit.tree, parents)];
        while let Some((tree, before)) = pending.pop() {
            // What the same place of a parent has, or another place of this commit, is there.
            if before.contains(&tree) || !seen.insert(tree) {
                continue;
            }
            let Some(bytes) = read(tree)? else {
                return Err(RepositoryError::MissingObject { id: tree });
            };
            total += bytes.len() as u64;
            let Ok(items) = tree_object::parse(&tree, &bytes) else {
                return Ok(None);
            };
            if total > limits.bytes || seen.len() > limits.trees {
                return Ok(None);
            }
            let mut known: HashMap<Vec<u8>, Vec<(ItemKind, ObjectId)>> = HashMap::new();
            for tree in &before {
                let bytes = read(*tree)?.unwrap_or_default();
                for item in tree_object::raw_items(*tree, &bytes).map_while(Result::ok) {
                    let items = known.entry(item.name.to_vec()).or_default();
                    items.push((item.kind, item.id));
                }
            }
            for item in items {
                let same = known.get(&item.name).map_or(&[][..], Vec::as_slice);
                match item.kind {
                    _ if same.contains(&(item.kind, item.id)) => {}
                    ItemKind::Directory => {
                        let trees = same.iter().filter(|(kind, _)| *kind == item.kind);
                        pending.push((item.id, trees.map(|(_, id)| *id).collect()));
                    }
                    ItemKind::Submodule => {}
                    ItemKind::Entry(_) => _ = blobs.insert(item.id),
                }
            }
            brought.trees.push((tree, bytes));
        }
        brought.blobs = blobs.into_iter().collect();
        brought.blobs.sort_unstable();
        Ok(Some(brought))
    }
}

fn tree_bytes(
    op: &Operation,
    repository: &UserRepository,
    id: ObjectId,
    max_bytes: u64,
) -> Result<Option<Vec<u8>>, RepositoryError> {
    // git need not have it anywhere.
    if id == tree_object::empty_tree_id() {
        return Ok(Some(Vec::new()));
    }
    Ok(match repository.read_object(op, id, max_bytes)? {
        Some((ObjectKind::Tree, bytes)) => Some(bytes),
        _ => None,
    })
}
