//! Making git's tree objects from the result of a walk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::git::object_id::sha1;
use crate::git::store::Names;
use crate::git::tree_object::{self, ItemKind, RawItem};
use crate::git::{ObjectId, ObjectKind};
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::pace::Pace;
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
    /// What the tree of the workspace names that its tree in `before` does not name in the same
    /// place, if that was asked for and is known.
    ///
    /// That `before` says what was in its trees is not believed: of each directory that is compared
    /// the tree is made again, and has to have the id that the one above it names.
    pub(crate) beyond: Option<Names>,
}

/// Whether [`Trees::beyond`] is to be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Yes,
    No,
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
    op: &Operation,
    delta: &mut Delta,
    before: &Directories,
    doubtful: impl IntoIterator<Item = &'a RelPath>,
    submodules: &BTreeMap<RelPath, Option<ObjectId>>,
    compare: Compare,
) -> Result<Trees, Interrupted> {
    let named = by_parent(submodules);
    let root = RelPath::root();
    let known_root = match compare {
        Compare::Yes => before.get(&root).and_then(|known| tree_of(known)),
        Compare::No => None,
    };
    let mut beyond = known_root.map(|_| Vec::new());
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
    let mut pace = Pace::of(op);
    while let Some(level) = stale.deepest() {
        let state = State {
            delta,
            before,
            named: &named,
            compares: beyond.is_some(),
        };
        let made = in_parts(&level, DIRECTORIES_PER_THREAD, |part| {
            let mut pace = Pace::of(op);
            let tree = |path| pace.step().map(|()| state.tree(path));
            part.iter().map(tree).collect::<Result<Vec<_>, _>>()
        });
        let made: Vec<Vec<_>> = made.into_iter().collect::<Result<_, _>>()?;
        for (path, made) in level.into_iter().zip(made.into_iter().flatten()) {
            pace.step()?;
            let Some(made) = made else {
                stale.add_above(&path);
                continue;
            };
            if before.get(&path).map(|known| tree_of(known)) != Some(made.tree) {
                stale.add_above(&path);
            }
            if let (Some(_), Some(ids)) = (&made.content, &mut beyond) {
                match made.beyond {
                    Some(found) => ids.extend(found),
                    None => beyond = None,
                }
            }
            new.extend(made.tree.zip(made.content));
            delta.set_tree(before, &path, made.tree.map(ContentId::from));
        }
    }
    let root = delta.get(before, &root).and_then(|d| tree_of(d));
    let ids = beyond.filter(|_| root.is_some());
    Ok(Trees {
        root: root.unwrap_or_else(|| {
            let empty = id_of(b"");
            new.insert(empty, Vec::new());
            empty
        }),
        new,
        beyond: ids.map(|ids| Names {
            beyond: known_root,
            ids,
        }),
    })
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

    /// Adds the directory that holds `path`.
    fn add_above(&mut self, path: &RelPath) {
        let Some(depth) = path.names().count().checked_sub(1) else {
            return;
        };
        let level = self.0.entry(depth).or_default();
        if !level.contains(path.parent_bytes()) {
            level.extend(path.parent());
        }
    }

    /// Takes out those that lie deepest.
    fn deepest(&mut self) -> Option<Vec<RelPath>> {
        Some(self.0.pop_last()?.1.into_iter().collect())
    }
}

/// Fewer directories than this are given their trees before another thread has begun.
const DIRECTORIES_PER_THREAD: usize = 16;

/// The submodules with a commit, by the directories that they lie in; also those directories that
/// have only others.
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
    /// Whether new entries are reported for each directory.
    compares: bool,
}

/// The tree of a directory.
#[derive(Default)]
struct Made {
    /// `None`: nothing is captured in it.
    tree: Option<ObjectId>,
    /// The content of a tree that the directory did not have.
    content: Option<Vec<u8>>,
    /// What that content names in other places than the tree that the directory had; `None`: that
    /// was not asked for, or is not known.
    beyond: Option<Vec<ObjectId>>,
}

impl Made {
    fn of(content: Vec<u8>) -> Self {
        if content.is_empty() {
            return Self::default();
        }
        Self {
            tree: Some(id_of(&content)),
            content: Some(content),
            beyond: None,
        }
    }

    fn kept(tree: ObjectId) -> Self {
        Self {
            tree: Some(tree),
            content: None,
            beyond: None,
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
        let mut made = match self.named.get(path) {
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
        };
        if self.compares && made.content.is_some() {
            made.beyond = self.beyond(path, directory, &subtrees);
        }
        Some(made)
    }

    /// What the tree of the directory at `path` names that the one it had does not name in the same
    /// place: files, and the trees of directories. `None` if the one it had is not what `before`
    /// says, or it is deeper than a tree may be.
    fn beyond(
        &self,
        path: &RelPath,
        directory: &CachedDirectory,
        subtrees: &[(&[u8], ObjectId)],
    ) -> Option<Vec<ObjectId>> {
        let before = self.before;
        if path.names().count() + 1 >= tree_object::MAX_DEPTH {
            return None;
        }
        let tree_before = |path: &RelPath| before.get(path).and_then(|d| tree_of(d));
        let known = before.get(path).filter(|known| known.tree.is_some());
        let known_subtrees = match known {
            Some(known) => {
                let subtrees = self::subtrees(known, path, |path| before.get(path));
                let mut submodules = self.named.get(path).cloned().unwrap_or_default();
                submodules.retain(|(path, _)| tree_before(path).is_none());
                let content = encode(known, &subtrees, &submodules);
                let id = ObjectId::of_trusted(ObjectKind::Tree, &content);
                (tree_of(known) == Some(id)).then_some(subtrees)?
            }
            None => Vec::new(),
        };
        let mut known_files = known.iter().flat_map(|known| known.captured()).peekable();
        let new = directory.captured().filter(|(name, entry)| {
            while known_files.next_if(|(known, _)| known < name).is_some() {}
            let known = known_files.next_if(|(known, _)| known == name);
            known.is_none_or(|(_, known)| known.id != entry.id)
        });
        let mut ids: Vec<ObjectId> = new.filter_map(|(_, entry)| sha1(&entry.id)).collect();
        for (name, tree) in subtrees {
            match known_subtrees.binary_search_by_key(name, |(known, _)| known) {
                Ok(at) if known_subtrees[at].1 == *tree => {}
                Ok(_) => ids.push(*tree),
                // It was compared with what no tree names.
                Err(_) if tree_before(&path.join(name)).is_some() => return None,
                Err(_) => ids.push(*tree),
            }
        }
        Some(ids)
    }
}

/// The ids of all trees, that of the workspace left out, and of all files that the tree of the
/// workspace names, about `files` of them. `None` if it is deeper than a tree may be.
pub(crate) fn named(
    op: &Operation,
    directories: &Directories,
    files: u64,
) -> Result<Option<Names>, Interrupted> {
    let files = usize::try_from(files).unwrap_or_default();
    let mut named = Vec::with_capacity(directories.len() + files);
    let mut level = vec![RelPath::root()];
    let mut pace = Pace::of(op);
    for _ in 0..tree_object::MAX_DEPTH {
        if level.is_empty() {
            return Ok(Some(Names {
                beyond: None,
                ids: named,
            }));
        }
        let mut below = Vec::new();
        for path in level {
            pace.step()?;
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
    Ok(None)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::tree::EntryKind;
    use crate::worktree::stat_cache::{CachedEntry, EntryStat, Flags};

    /// Paths of files, and what tells their contents apart.
    type Files = BTreeMap<String, u8>;
    type Contents = HashMap<ObjectId, Vec<u8>>;

    fn directories(files: &Files) -> Directories {
        let mut made: HashMap<RelPath, CachedDirectory> = HashMap::new();
        made.insert(RelPath::root(), CachedDirectory::default());
        for (path, content) in files {
            let path = RelPath::new(path.as_str()).expect("a path");
            let mut at = path.parent().expect("it is no workspace");
            let entry = CachedEntry {
                kind: EntryKind::File,
                id: ContentId::Sha1([*content; 20]),
                stat: EntryStat::default(),
                flags: Flags::default(),
            };
            let directory = made.entry(at.clone()).or_default();
            directory.entries.push(path.name(), entry);
            while let Some(above) = at.parent() {
                let directory = made.entry(above.clone()).or_default();
                directory.children.insert(at.name());
                at = above;
            }
        }
        let all = made.into_iter();
        all.map(|(path, directory)| (path, Arc::new(directory)))
            .collect()
    }

    /// The difference that leads from `before`, whose trees are made, to `files`.
    fn delta(before: &Directories, files: &Files) -> Delta {
        let mut now = directories(files);
        let removed = before.keys().filter(|path| !now.contains_key(*path));
        let removed = removed.cloned().collect();
        now.retain(|path, directory| {
            let is_same = |known: &Arc<CachedDirectory>| {
                known.children == directory.children && known.captured().eq(directory.captured())
            };
            !before.get(path).is_some_and(is_same)
        });
        Delta {
            directories: now,
            removed,
        }
    }

    /// `files` after `before`, with their trees, all of which come into `contents`.
    fn made(before: &Directories, files: &Files, contents: &mut Contents) -> (Delta, Trees) {
        let mut delta = delta(before, files);
        let trees = build(
            &Operation::unbounded(),
            &mut delta,
            before,
            [],
            &BTreeMap::new(),
            Compare::Yes,
        )
        .unwrap();
        let new = trees.new.iter();
        contents.extend(new.map(|(id, content)| (*id, content.clone())));
        (delta, trees)
    }

    /// Every path of a tree with the id that it has there, read from the trees alone.
    fn listing(contents: &Contents, root: ObjectId) -> BTreeSet<(RelPath, ObjectId)> {
        let mut listing = BTreeSet::new();
        let mut pending = vec![(RelPath::root(), root)];
        while let Some((above, tree)) = pending.pop() {
            for item in tree_object::raw_items(tree, &contents[&tree]) {
                let item = item.unwrap();
                let path = above.join(item.name);
                if item.kind == ItemKind::Directory {
                    pending.push((path.clone(), item.id));
                }
                listing.insert((path, item.id));
            }
        }
        listing
    }

    fn any_files() -> impl Strategy<Value = Files> {
        prop::collection::btree_map("([ab]/){0,3}[f-h]", 1..4_u8, 0..12)
    }

    proptest! {
        #[test]
        fn what_is_named_beyond_a_tree_is_what_differs_from_it_in_place(
            old in any_files(),
            new in any_files(),
        ) {
            let mut contents = Contents::new();
            let mut before = Directories::new();
            let (first, Trees { root: old_root, .. }) = made(&before, &old, &mut contents);
            first.apply(&mut before);
            let (_, Trees { root: new_root, beyond, .. }) = made(&before, &new, &mut contents);
            let Some(named) = beyond else {
                prop_assert!(old.is_empty() || new.is_empty(), "one of them has no tree");
                return Ok(());
            };
            prop_assert_eq!(named.beyond, Some(old_root));
            let old = listing(&contents, old_root);
            let new = listing(&contents, new_root);
            let expected: BTreeSet<_> = new.difference(&old).map(|(_, id)| *id).collect();
            prop_assert_eq!(named.ids.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }

    #[test]
    fn a_cache_that_says_other_than_its_trees_names_nothing() {
        let files = |f: u8| Files::from([("d/f".to_owned(), f), ("d/g".to_owned(), 2)]);
        let mut before = Directories::new();
        let (first, _) = made(&before, &files(1), &mut Contents::new());
        first.apply(&mut before);
        let named = |before: &Directories| {
            let (_, trees) = made(before, &files(3), &mut Contents::new());
            trees.beyond
        };
        assert_eq!(named(&before).unwrap().ids.len(), 2, "the file and `d`");
        for path in [RelPath::root(), RelPath::new("d").unwrap()] {
            let mut other = before.clone();
            let directory = Arc::make_mut(other.get_mut(&path).unwrap());
            directory.entries.push(b"h", {
                let (_, entry) = before[&RelPath::new("d").unwrap()].entries.get(0);
                entry.clone()
            });
            assert!(named(&other).is_none(), "{path}");
        }
    }
}
