//! git's tree objects, made from what a walk found.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::git::tree_object::{self, ItemKind, TreeItem};
use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::tree::ContentId;
use crate::worktree::stat_cache::{CachedDirectory, Delta, Directories};

/// The trees of a capture.
pub(crate) struct Trees {
    /// The tree of the workspace.
    pub(crate) root: ObjectId,
    /// The trees that the last capture did not have, with their content.
    pub(crate) new: HashMap<ObjectId, Vec<u8>>,
}

/// Gives every directory its tree: those of `before` with the difference `delta`.
///
/// One that is as it was, with all that is below it, keeps its tree and is not looked at. One that
/// holds what it held costs no hashing. One with nothing captured in it has none, as git knows no
/// empty directories. `doubtful` are directories of `before` whose trees are not to be relied on.
///
/// `submodules` are all that the index has. One with a commit is named in the tree of the directory
/// above it if nothing in its own is captured; its name is none of a captured file's.
pub(crate) fn build<'a>(
    delta: &mut Delta,
    before: &Directories,
    doubtful: impl IntoIterator<Item = &'a RelPath>,
    submodules: &BTreeMap<RelPath, Option<ObjectId>>,
) -> Trees {
    let mut named: HashMap<RelPath, Vec<(&RelPath, ObjectId)>> = HashMap::new();
    for (path, commit) in submodules {
        let above = path.parent().expect("the workspace itself is no submodule");
        let named = named.entry(above).or_default();
        named.extend(commit.map(|commit| (path, commit)));
    }
    // A directory's path is a prefix of those below it, so the last path is one of the deepest.
    let mut stale: BTreeSet<RelPath> = delta.directories.keys().cloned().collect();
    stale.extend(doubtful.into_iter().cloned());
    // Of a directory that is gone the one above it may not say so itself.
    stale.extend(delta.removed.iter().filter_map(RelPath::parent));
    // What is captured below a submodule decides, and no directory says whether that has changed.
    stale.extend(named.keys().cloned());
    let mut new = HashMap::new();
    while let Some(path) = stale.pop_last() {
        let Some(directory) = delta.get(before, &path) else {
            stale.extend(path.parent());
            continue;
        };
        let subtrees: Vec<(&[u8], ObjectId)> = directory
            .children
            .iter()
            .filter_map(|name| {
                let child = delta.get(before, &path.join(name))?;
                Some((name, tree_of(child)?))
            })
            .collect();
        let known = before.get(&path);
        let tree = match named.get(&path) {
            Some(named) => {
                let content_of = |path: &RelPath| delta.get(before, path).and_then(|d| tree_of(d));
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
            let directory = delta.get_mut(before, &path);
            directory.expect("it was just looked at").tree = tree;
        }
    }
    let root = delta.get(before, &RelPath::root()).and_then(|d| tree_of(d));
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
