//! git's tree objects, made from what a walk found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::git::tree_object::{self, ItemKind, TreeItem};
use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::tree::ContentId;
use crate::worktree::stat_cache::{CachedDirectory, Directories};

/// The trees of a capture.
pub(crate) struct Trees {
    /// The tree of the workspace.
    pub(crate) root: ObjectId,
    /// The trees that the last capture did not have, with their content.
    pub(crate) new: HashMap<ObjectId, Vec<u8>>,
}

/// Gives every directory its tree.
///
/// One that is as it was in `before`, with all that is below it, keeps its tree and is not looked
/// at. One that holds what it held costs no hashing. One with nothing captured in it has none, as git
/// knows no empty directories.
///
/// `submodules` are all that the index has. One with a commit is named in the tree of the directory
/// above it if nothing in its own is captured; its name is none of a captured file's.
pub(crate) fn build(
    directories: &mut Directories,
    before: &Directories,
    submodules: &BTreeMap<RelPath, Option<ObjectId>>,
) -> Trees {
    let mut named: HashMap<RelPath, Vec<(&RelPath, ObjectId)>> = HashMap::new();
    for (path, commit) in submodules {
        let above = path.parent().expect("the workspace itself is no submodule");
        let named = named.entry(above).or_default();
        named.extend(commit.map(|commit| (path, commit)));
    }
    // A directory's path is a prefix of those below it, so the last path is one of the deepest.
    let mut stale: BTreeSet<RelPath> = directories
        .iter()
        .filter(|(path, directory)| {
            let is_same = before
                .get(*path)
                .is_some_and(|before| Arc::ptr_eq(before, directory));
            let is_empty = directory.entries.is_empty() && directory.children.is_empty();
            !is_same || (directory.tree.is_none() && !is_empty)
        })
        .map(|(path, _)| path.clone())
        .collect();
    // Of a directory that is gone the one above it may not say so itself.
    let gone = before
        .keys()
        .filter(|path| !directories.contains_key(*path));
    stale.extend(gone.filter_map(RelPath::parent));
    // What is captured below a submodule decides, and no directory says whether that has changed.
    stale.extend(named.keys().cloned());
    let mut new = HashMap::new();
    while let Some(path) = stale.pop_last() {
        let Some(directory) = directories.get(&path) else {
            stale.extend(path.parent());
            continue;
        };
        let subtrees: Vec<(&[u8], ObjectId)> = directory
            .children
            .iter()
            .filter_map(|name| {
                let child = directories.get(&path.join(name))?;
                Some((name, tree_of(child)?))
            })
            .collect();
        let known = before.get(&path);
        let tree = match named.get(&path) {
            Some(named) => {
                let content_of = |path: &RelPath| directories.get(path).and_then(|d| tree_of(d));
                let mut named = named.clone();
                named.retain(|(path, _)| content_of(path).is_none());
                let content = encode(directory, &subtrees, &named);
                known
                    .and_then(|known| tree_of(known))
                    .filter(|known| *known == id_of(&content))
                    .or_else(|| add(&mut new, content))
            }
            None => known
                .and_then(|known| unchanged(known, directory, &subtrees, before, &path))
                .or_else(|| add(&mut new, encode(directory, &subtrees, &[]))),
        };
        if known.map(|known| tree_of(known)) != Some(tree) {
            stale.extend(path.parent());
        }
        let tree = tree.map(ContentId::from);
        if directory.tree != tree {
            let directory = directories.get_mut(&path).expect("its path was listed");
            Arc::make_mut(directory).tree = tree;
        }
    }
    let root = directories.get(&RelPath::root()).and_then(|d| tree_of(d));
    Trees {
        root: root.unwrap_or_else(|| {
            let empty = id_of(b"");
            new.insert(empty, Vec::new());
            empty
        }),
        new,
    }
}

fn tree_of(directory: &CachedDirectory) -> Option<ObjectId> {
    match directory.tree? {
        ContentId::Sha1(bytes) => Some(ObjectId(bytes)),
        ContentId::Blake3(_) => None,
    }
}

/// Adds a tree; `None` if there is nothing in it.
fn add(new: &mut HashMap<ObjectId, Vec<u8>>, content: Vec<u8>) -> Option<ObjectId> {
    if content.is_empty() {
        return None;
    }
    let id = id_of(&content);
    new.insert(id, content);
    Some(id)
}

fn id_of(content: &[u8]) -> ObjectId {
    ObjectId::of(ObjectKind::Tree, content)
        .expect("a colliding tree would need ids that collide themselves")
}

/// The tree that a directory had, if it would get the same again.
fn unchanged(
    known: &CachedDirectory,
    directory: &CachedDirectory,
    subtrees: &[(&[u8], ObjectId)],
    before: &Directories,
    path: &RelPath,
) -> Option<ObjectId> {
    let tree = tree_of(known)?;
    if !known.captured().eq(directory.captured()) {
        return None;
    }
    let were = known.children.iter().filter_map(|name| {
        let child = before.get(&path.join(name))?;
        Some((name, tree_of(child)?))
    });
    were.eq(subtrees.iter().copied()).then_some(tree)
}

/// The content of a tree object.
fn encode(
    directory: &CachedDirectory,
    subtrees: &[(&[u8], ObjectId)],
    submodules: &[(&RelPath, ObjectId)],
) -> Vec<u8> {
    let files = directory.captured().filter_map(|(name, entry)| {
        let ContentId::Sha1(id) = entry.id else {
            return None;
        };
        Some(TreeItem {
            name: name.to_vec(),
            kind: ItemKind::Entry(entry.kind),
            id: ObjectId(id),
        })
    });
    let trees = subtrees.iter().map(|(name, id)| TreeItem {
        name: name.to_vec(),
        kind: ItemKind::Directory,
        id: *id,
    });
    let submodules = submodules.iter().map(|(path, commit)| TreeItem {
        name: path.name().to_vec(),
        kind: ItemKind::Submodule,
        id: *commit,
    });
    tree_object::serialize(&mut files.chain(trees).chain(submodules).collect::<Vec<_>>())
}
