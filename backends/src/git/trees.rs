//! git's tree objects, made from what a walk found.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::git::capture::sha1;
use crate::git::store::Names;
use crate::git::tree_object::{self, ItemKind, TreeItem};
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
    let named = by_parent(submodules);
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

/// The submodules with a commit, by the directories that they lie in; also those directories that have
/// only others.
fn by_parent(submodules: &BTreeMap<RelPath, Option<ObjectId>>) -> Submodules<'_> {
    let mut by_parent = Submodules::new();
    for (path, commit) in submodules {
        let above = path.parent().expect("the workspace itself is no submodule");
        let named = by_parent.entry(above).or_default();
        named.extend(commit.map(|commit| (path, commit)));
    }
    by_parent
}

type Submodules<'a> = HashMap<RelPath, Vec<(&'a RelPath, ObjectId)>>;

/// What the tree of a directory is made of, once those below it have theirs.
struct State<'s> {
    delta: &'s Delta,
    before: &'s Directories,
    /// The submodules with a commit, by the directories that they lie in.
    named: &'s Submodules<'s>,
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
        let subtrees = subtrees(directory, path, |path| delta.get(before, path));
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
pub(crate) fn named(directories: &Directories, files: u64) -> Option<Names> {
    let files = usize::try_from(files).unwrap_or_default();
    let mut named = Vec::with_capacity(directories.len() + files);
    let mut level = vec![RelPath::root()];
    for _ in 0..tree_object::MAX_DEPTH {
        if level.is_empty() {
            return Some(Names {
                beyond: None,
                ids: named,
            });
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

/// What the tree of the workspace names that its tree before the difference `delta` does not name in the
/// same place. The trees of both are made.
///
/// That `before` says what was in those trees is not believed: of each directory that is compared the
/// tree is made again, and has to have the id that the one above it names. `None` if one has another,
/// there was no tree, or it is deeper than a tree may be.
pub(crate) fn named_beyond(
    delta: &Delta,
    before: &Directories,
    submodules: &BTreeMap<RelPath, Option<ObjectId>>,
) -> Option<Names> {
    let by_parent = by_parent(submodules);
    let root = RelPath::root();
    let known = before.get(&root)?;
    let beyond = tree_of(known)?;
    let mut ids = Vec::new();
    // Directories whose trees are new in their places, each with what was there.
    let mut level = match tree_of(delta.get(before, &root)?) {
        Some(tree) if tree != beyond => vec![(root, Some(known))],
        _ => Vec::new(),
    };
    for _ in 0..tree_object::MAX_DEPTH {
        if level.is_empty() {
            let beyond = Some(beyond);
            return Some(Names { beyond, ids });
        }
        let mut below = Vec::new();
        for (path, known) in level {
            let directory = delta.get(before, &path)?;
            let known_subtrees = match known {
                Some(known) => {
                    let subtrees = subtrees(known, &path, |path| before.get(path));
                    let mut named = by_parent.get(&path).cloned().unwrap_or_default();
                    named.retain(|(path, _)| before.get(*path).and_then(|d| tree_of(d)).is_none());
                    let content = encode(known, &subtrees, &named);
                    let id = ObjectId::of_trusted(ObjectKind::Tree, &content);
                    (tree_of(known) == Some(id)).then_some(subtrees)?
                }
                None => Vec::new(),
            };
            let known_id = |name: &[u8]| {
                let entries = &known?.entries;
                let (_, known) = entries.get(entries.find(name).ok()?);
                known.is_captured().then_some(known.id)
            };
            let new = directory
                .captured()
                .filter(|(name, entry)| known_id(name) != Some(entry.id));
            ids.extend(new.filter_map(|(_, entry)| sha1(&entry.id)));
            for (name, tree) in subtrees(directory, &path, |path| delta.get(before, path)) {
                let at = known_subtrees.binary_search_by(|(known, _)| (*known).cmp(name));
                let known_tree = at.ok().map(|at| known_subtrees[at].1);
                if known_tree != Some(tree) {
                    let path = path.join(name);
                    let known = known_tree.and_then(|_| before.get(&path));
                    ids.push(tree);
                    below.push((path, known));
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
    let were = self::subtrees(known, path, |path| before.get(path));
    (were == subtrees).then_some(tree)
}

/// The trees of the directories in `directory`, which lies at `path`, with their names.
fn subtrees<'d>(
    directory: &'d CachedDirectory,
    path: &RelPath,
    get: impl Fn(&RelPath) -> Option<&'d Arc<CachedDirectory>>,
) -> Vec<(&'d [u8], ObjectId)> {
    let children = directory.children.iter();
    children
        .filter_map(|name| Some((name, tree_of(get(&path.join(name))?)?)))
        .collect()
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
