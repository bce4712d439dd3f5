//! git's tree objects, made from what a walk found.

use std::collections::HashMap;

use crate::git::tree_object::{self, ItemKind, TreeItem};
use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::tree::ContentId;
use crate::worktree::stat_cache::{CachedDirectory, CachedEntry};

/// The trees of a capture.
pub(crate) struct Trees {
    /// The tree of the workspace.
    pub(crate) root: ObjectId,
    /// The trees that the last capture did not have, with their content.
    pub(crate) new: HashMap<ObjectId, Vec<u8>>,
}

/// Gives every directory its tree, deepest first.
///
/// A directory that holds what `before` says it held keeps its tree, and costs no hashing. One
/// with nothing captured in it has none, as git knows no empty directories.
pub(crate) fn build(
    directories: &mut HashMap<RelPath, CachedDirectory>,
    before: &HashMap<RelPath, CachedDirectory>,
) -> Trees {
    let mut paths: Vec<RelPath> = directories.keys().cloned().collect();
    // A directory's path is a prefix of those below it, so it sorts before them.
    paths.sort_unstable_by(|a, b| b.cmp(a));
    let mut new = HashMap::new();
    for path in paths {
        let directory = &directories[&path];
        let subtrees: Vec<(&[u8], ObjectId)> = directory
            .children
            .iter()
            .filter_map(|name| {
                let child = directories.get(&path.join(name))?;
                Some((&**name, tree_of(child)?))
            })
            .collect();
        let tree = match before
            .get(&path)
            .and_then(|known| unchanged(known, directory, &subtrees, before, &path))
        {
            Some(tree) => Some(tree),
            None => {
                let content = encode(&directory.entries, &subtrees);
                (!content.is_empty()).then(|| add(&mut new, content))
            }
        };
        directories
            .get_mut(&path)
            .expect("its path was listed")
            .tree = tree.map(ContentId::from);
    }
    let root = directories.get(&RelPath::root()).and_then(tree_of);
    Trees {
        root: root.unwrap_or_else(|| add(&mut new, Vec::new())),
        new,
    }
}

fn tree_of(directory: &CachedDirectory) -> Option<ObjectId> {
    match directory.tree? {
        ContentId::Sha1(bytes) => Some(ObjectId(bytes)),
        ContentId::Blake3(_) => None,
    }
}

fn add(new: &mut HashMap<ObjectId, Vec<u8>>, content: Vec<u8>) -> ObjectId {
    let id = ObjectId::of(ObjectKind::Tree, &content)
        .expect("a colliding tree would need ids that collide themselves");
    new.insert(id, content);
    id
}

/// The tree that a directory had, if it would get the same again.
fn unchanged(
    known: &CachedDirectory,
    directory: &CachedDirectory,
    subtrees: &[(&[u8], ObjectId)],
    before: &HashMap<RelPath, CachedDirectory>,
    path: &RelPath,
) -> Option<ObjectId> {
    let tree = tree_of(known)?;
    let was = known.entries.iter().filter(|e| e.is_captured());
    let is = directory.entries.iter().filter(|e| e.is_captured());
    let same =
        |a: &CachedEntry, b: &CachedEntry| a.name == b.name && a.kind == b.kind && a.id == b.id;
    if !was.clone().count().eq(&is.clone().count()) || !was.zip(is).all(|(a, b)| same(a, b)) {
        return None;
    }
    let were = known.children.iter().filter_map(|name| {
        let child = before.get(&path.join(name))?;
        Some((&**name, tree_of(child)?))
    });
    were.eq(subtrees.iter().copied()).then_some(tree)
}

/// The content of a tree object.
fn encode(entries: &[CachedEntry], subtrees: &[(&[u8], ObjectId)]) -> Vec<u8> {
    let files = entries.iter().filter(|e| e.is_captured()).filter_map(|e| {
        let ContentId::Sha1(id) = e.id else {
            return None;
        };
        Some(TreeItem {
            name: e.name.to_vec(),
            kind: ItemKind::Entry(e.kind),
            id: ObjectId(id),
        })
    });
    let trees = subtrees.iter().map(|(name, id)| TreeItem {
        name: name.to_vec(),
        kind: ItemKind::Directory,
        id: *id,
    });
    tree_object::serialize(&mut files.chain(trees).collect::<Vec<_>>())
}
