//! git's tree objects, made from what a walk found.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::git::capture::sha1;
use crate::git::tree_object::{self, ItemKind, RawItem};
use crate::git::{ObjectId, ObjectKind};
use crate::parallel::in_parts;
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
    // By depth: the deepest first, as a directory's tree has the ids of those below it.
    let mut stale = Stale::default();
    delta
        .directories
        .keys()
        .for_each(|path| stale.add(path.clone()));
    doubtful
        .into_iter()
        .for_each(|path| stale.add(path.clone()));
    // Of a directory that is gone the one above it may not say so itself.
    let gone = delta.removed.iter().filter_map(RelPath::parent);
    gone.for_each(|path| stale.add(path));
    // What is captured below a submodule decides, and no directory says whether that has changed.
    named.keys().for_each(|path| stale.add(path.clone()));
    let mut new = HashMap::new();
    while let Some(level) = stale.deepest() {
        let level: Vec<RelPath> = level.into_iter().collect();
        let state = State {
            delta,
            before,
            named: &named,
        };
        let made = in_parts(&level, DIRECTORIES_PER_THREAD, |part| {
            part.iter().map(|path| state.tree(path)).collect::<Vec<_>>()
        });
        for (path, made) in level.into_iter().zip(made.into_iter().flatten()) {
            let Some(made) = made else {
                path.parent().into_iter().for_each(|path| stale.add(path));
                continue;
            };
            if before.get(&path).map(|known| tree_of(known)) != Some(made.tree) {
                path.parent().into_iter().for_each(|path| stale.add(path));
            }
            new.extend(made.tree.zip(made.content));
            let tree = made.tree.map(ContentId::from);
            if delta.get(before, &path).is_some_and(|d| d.tree != tree) {
                let directory = delta.get_mut(before, &path);
                directory.expect("it was just looked at").tree = tree;
            }
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
    sha1(directory.tree.as_ref()?)
}

/// Directories whose trees are to be made, by how deep they lie.
#[derive(Default)]
struct Stale(BTreeMap<usize, HashSet<RelPath>>);

impl Stale {
    fn add(&mut self, path: RelPath) {
        self.0.entry(path.names().count()).or_default().insert(path);
    }

    /// Takes out those that lie deepest.
    fn deepest(&mut self) -> Option<HashSet<RelPath>> {
        Some(self.0.pop_last()?.1)
    }
}

/// Fewer directories than this are given their trees before another thread has begun.
const DIRECTORIES_PER_THREAD: usize = 200;

/// What the tree of a directory is made of, once those below it have theirs.
struct State<'s> {
    delta: &'s Delta,
    before: &'s Directories,
    /// The submodules with a commit, by the directories that they lie in.
    named: &'s HashMap<RelPath, Vec<(&'s RelPath, ObjectId)>>,
}

/// The tree of a directory.
#[derive(Default)]
struct Made {
    /// `None`: nothing is captured in it.
    tree: Option<ObjectId>,
    /// The content of a tree that the directory did not have.
    content: Option<Vec<u8>>,
}

impl Made {
    fn of(content: Vec<u8>) -> Self {
        if content.is_empty() {
            return Self::default();
        }
        Self {
            tree: Some(id_of(&content)),
            content: Some(content),
        }
    }

    fn kept(tree: ObjectId) -> Self {
        Self {
            tree: Some(tree),
            content: None,
        }
    }
}

impl State<'_> {
    /// The tree of the directory at `path`; `None` if there is no directory.
    fn tree(&self, path: &RelPath) -> Option<Made> {
        let Self { delta, before, .. } = *self;
        let directory = delta.get(before, path)?;
        let subtrees: Vec<(&[u8], ObjectId)> = directory
            .children
            .iter()
            .filter_map(|name| {
                let child = delta.get(before, &path.join(name))?;
                Some((name, tree_of(child)?))
            })
            .collect();
        let known = before.get(path);
        Some(match self.named.get(path) {
            Some(named) => {
                let content_of = |path: &RelPath| delta.get(before, path).and_then(|d| tree_of(d));
                let mut named = named.clone();
                named.retain(|(path, _)| content_of(path).is_none());
                let made = Made::of(encode(directory, &subtrees, &named));
                match known.and_then(|known| tree_of(known)) {
                    Some(known) if made.tree == Some(known) => Made::kept(known),
                    _ => made,
                }
            }
            None => known
                .and_then(|known| unchanged(known, directory, &subtrees, before, path))
                .map_or_else(|| Made::of(encode(directory, &subtrees, &[])), Made::kept),
        })
    }
}

/// The ids of all trees, that of the workspace left out, and of all files that the tree of the
/// workspace names, about `files` of them. `None` if it is deeper than a tree may be.
pub(crate) fn named(directories: &Directories, files: u64) -> Option<Vec<ObjectId>> {
    let files = usize::try_from(files).unwrap_or_default();
    let mut named = Vec::with_capacity(directories.len() + files);
    let mut level = vec![RelPath::root()];
    for _ in 0..tree_object::MAX_DEPTH {
        if level.is_empty() {
            return Some(named);
        }
        let mut below = Vec::new();
        for path in level {
            let Some(directory) = directories.get(&path) else {
                continue;
            };
            named.extend(
                directory
                    .captured()
                    .filter_map(|(_, entry)| sha1(&entry.id)),
            );
            for name in directory.children.iter() {
                let path = path.join(name);
                let tree = directories.get(&path).and_then(|child| tree_of(child));
                if let Some(tree) = tree {
                    named.push(tree);
                    below.push(path);
                }
            }
        }
        level = below;
    }
    None
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
        let kind = ItemKind::Entry(entry.kind);
        let id = sha1(&entry.id)?;
        Some(RawItem { name, kind, id })
    });
    let trees = subtrees.iter().map(|(name, id)| RawItem {
        name,
        kind: ItemKind::Directory,
        id: *id,
    });
    let submodules = submodules.iter().map(|(path, commit)| RawItem {
        name: path.name(),
        kind: ItemKind::Submodule,
        id: *commit,
    });
    let mut items = Vec::with_capacity(directory.entries.len() + subtrees.len());
    items.extend(files.chain(trees).chain(submodules));
    tree_object::serialize_raw(&mut items)
}
