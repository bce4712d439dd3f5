//! The trees of the repository that a capture needs: HEAD's tree at the workspace, and the trees
//! that a sparse index has in place of a directory.

use std::collections::HashMap;

use super::{RepositoryError, UserRepository, hex_id};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::repository::Head;
use crate::tree::Entry;
use crate::tree_object::{self, ItemKind, RawItem};
use crate::{ObjectId, ObjectKind};

/// A commit message that long was not written by hand, and only its first line matters here.
const MAX_COMMIT_BYTES: u64 = 64 * 1024 * 1024;

/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 * 1024 * 1024;

/// How many entries the trees of one index may unfold to: a tree of ten levels can name each one
/// below ten times.
const MAX_UNFOLDED_ENTRIES: u64 = 10_000_000;

/// How many bytes the paths of these may have, and how many the trees themselves.
const MAX_UNFOLDED_BYTES: u64 = 1024 * 1024 * 1024;

impl UserRepository {
    /// The tree of `head`'s commit at the workspace; `None` if there is no commit, or it has no
    /// directory there.
    pub fn head_tree(
        &self,
        op: &Operation,
        head: &Head,
    ) -> Result<Option<ObjectId>, RepositoryError> {
        let Some(commit_id) = head.commit() else {
            return Ok(None);
        };
        let mut tree_id = self.commit_tree(op, commit_id)?;
        for name in self.scope.names() {
            let tree = self.object_of_kind(op, tree_id, ObjectKind::Tree, MAX_TREE_BYTES)?;
            let found = self.items(tree_id, &tree).find(|item| match item {
                Ok(item) => item.name == name,
                Err(_) => true,
            });
            match found.transpose()? {
                Some(item) if item.kind == ItemKind::Directory => tree_id = item.id,
                _ => return Ok(None),
            }
        }
        Ok(Some(tree_id))
    }

    /// The tree of a commit.
    pub fn commit_tree(
        &self,
        op: &Operation,
        commit_id: ObjectId,
    ) -> Result<ObjectId, RepositoryError> {
        let commit = self.object_of_kind(op, commit_id, ObjectKind::Commit, MAX_COMMIT_BYTES)?;
        let named = commit
            .strip_prefix(b"tree ")
            .and_then(|rest| rest.get(..40));
        let named = named.and_then(hex_id);
        named.ok_or_else(|| self.malformed(commit_id, "the commit names no tree"))
    }

    /// The files and links of a whole tree, by their paths below it; submodules are left out. Such
    /// a tree stands for a directory in a sparse index.
    ///
    /// How much that would be is known before any of it is: each tree is read once, however often
    /// it is named. [`RepositoryError::TooLarge`] if it is too much together with what `unfolded`
    /// knows of.
    pub fn tree_files(
        &self,
        op: &Operation,
        tree_id: ObjectId,
        unfolded: &mut Unfolded,
    ) -> Result<Vec<(RelPath, Entry)>, RepositoryError> {
        let extent = self.extent(op, tree_id, unfolded)?;
        unfolded.together = unfolded.together.and(extent);
        unfolded.together.check()?;
        let mut files = Vec::new();
        let mut waiting = vec![(RelPath::root(), tree_id)];
        while let Some((directory, tree_id)) = waiting.pop() {
            op.check()?;
            for item in self.items(tree_id, &unfolded.trees[&tree_id]) {
                let RawItem { name, kind, id } = item?;
                let path = directory.join(name);
                match kind {
                    ItemKind::Directory => waiting.push((path, id)),
                    ItemKind::Submodule => {}
                    ItemKind::Entry(kind) => {
                        let id = id.into();
                        files.push((path, Entry { kind, id }));
                    }
                }
            }
        }
        files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(files)
    }

    /// What `top` unfolds to. All trees in it have been read then.
    fn extent(
        &self,
        op: &Operation,
        top: ObjectId,
        known: &mut Unfolded,
    ) -> Result<Extent, RepositoryError> {
        let mut waiting = vec![top];
        while let Some(&tree_id) = waiting.last() {
            if known.extents.contains_key(&tree_id) {
                waiting.pop();
                continue;
            }
            if !known.trees.contains_key(&tree_id) {
                op.check()?;
                let tree = self.object_of_kind(op, tree_id, ObjectKind::Tree, MAX_TREE_BYTES)?;
                known.tree_bytes += tree.len() as u64;
                within(known.tree_bytes, MAX_UNFOLDED_BYTES, "size of the trees")?;
                known.trees.insert(tree_id, tree);
            }
            let mut extent = Extent::default();
            let before = waiting.len();
            for item in self.items(tree_id, &known.trees[&tree_id]) {
                let RawItem { name, kind, id } = item?;
                let name_bytes = name.len() as u64;
                extent = extent.and(Extent {
                    entries: 1,
                    path_bytes: name_bytes,
                });
                if kind != ItemKind::Directory {
                    continue;
                }
                match known.extents.get(&id) {
                    Some(below) => extent = extent.and(below.moved_down(name_bytes)),
                    None => waiting.push(id),
                }
            }
            // Else it is counted once what it names is; no object can name one that names it.
            if waiting.len() == before {
                known.extents.insert(tree_id, extent);
            }
        }
        Ok(known.extents[&top])
    }

    /// What a tree names, in its order; an error for a name that leads elsewhere.
    fn items<'t>(
        &self,
        tree_id: ObjectId,
        tree: &'t [u8],
    ) -> impl Iterator<Item = Result<RawItem<'t>, RepositoryError>> {
        tree_object::raw_items(tree_id, tree).map(move |item| match item {
            Ok(item) if !leads_elsewhere(item.name) => Ok(item),
            _ => Err(self.malformed(tree_id, "the tree is malformed")),
        })
    }

    fn object_of_kind(
        &self,
        op: &Operation,
        id: ObjectId,
        kind: ObjectKind,
        max_bytes: u64,
    ) -> Result<Vec<u8>, RepositoryError> {
        match self.read_object(op, id, max_bytes)? {
            Some((found, bytes)) if found == kind => Ok(bytes),
            Some((found, _)) => {
                let detail = format!("it is a {}, not a {}", found.as_str(), kind.as_str());
                Err(self.malformed(id, &detail))
            }
            None => Err(RepositoryError::MissingObject { id }),
        }
    }

    fn malformed(&self, id: ObjectId, detail: &str) -> RepositoryError {
        RepositoryError::CorruptObject {
            id,
            path: self.common().disk_path("objects"),
            detail: detail.to_owned(),
        }
    }
}

/// What is known of the trees that the directories of one sparse index stand for.
#[derive(Default)]
pub struct Unfolded {
    /// Each tree that was read.
    trees: HashMap<ObjectId, Vec<u8>>,
    tree_bytes: u64,
    extents: HashMap<ObjectId, Extent>,
    /// What was unfolded so far.
    together: Extent,
}

/// What a tree unfolds to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    entries: u64,
    /// The length of the paths of all entries, from the tree down.
    path_bytes: u64,
}

impl Extent {
    fn and(self, other: Self) -> Self {
        Self {
            entries: self.entries.saturating_add(other.entries),
            path_bytes: self.path_bytes.saturating_add(other.path_bytes),
        }
    }

    /// The same below a name of this length.
    fn moved_down(self, name_bytes: u64) -> Self {
        let longer = self.entries.saturating_mul(name_bytes + 1);
        Self {
            entries: self.entries,
            path_bytes: self.path_bytes.saturating_add(longer),
        }
    }

    fn check(self) -> Result<(), RepositoryError> {
        within(self.entries, MAX_UNFOLDED_ENTRIES, "number of entries")?;
        within(self.path_bytes, MAX_UNFOLDED_BYTES, "length of paths")
    }
}

fn within(actual: u64, limit: u64, what: &str) -> Result<(), RepositoryError> {
    if actual <= limit {
        return Ok(());
    }
    Err(RepositoryError::TooLarge {
        what: format!("the {what} of sparse directories"),
        limit,
        actual,
    })
}

fn leads_elsewhere(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.eq_ignore_ascii_case(b".git")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::testing::*;
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::test_repository::TestRepository;

    #[test]
    fn the_tree_of_head_is_that_of_the_scope() {
        let git = TestRepository::with_commit();
        git.write("deep/er/file", "x");
        git.commit("deeper");
        fs::create_dir_all(git.path.join("not/in/head")).unwrap();
        let tree = |below: &str| {
            let repository = found(&git.path.join(below));
            repository
                .head_tree(&Operation::unbounded(), &repository.head().unwrap())
                .unwrap()
        };
        let expected = |revision: &str| Some(id(&git.git(&["rev-parse", revision])));
        for _ in 0..2 {
            assert_eq!(tree(""), expected("HEAD^{tree}"));
            assert_eq!(tree("deep"), expected("HEAD:deep"));
            assert_eq!(tree("deep/er"), expected("HEAD:deep/er"));
            assert_eq!(tree("not/in/head"), None);
            // And once more from a pack.
            git.git(&["gc", "-q"]);
        }
        fs::remove_file(git.path.join("src/main.c")).unwrap();
        fs::create_dir(git.path.join("src/main.c")).unwrap();
        assert_eq!(tree("src/main.c"), None, "a file in HEAD");
    }

    #[test]
    fn a_whole_tree_unfolds_as_git_lists_it() {
        let git = TestRepository::with_commit();
        git.write("deep/er/file", "x");
        git.write("deep-er", "y");
        git.write(b"odd \xff", "z");
        symlink("nowhere", git.path.join("deep/link")).unwrap();
        let script = git.path.join("deep/run");
        fs::write(&script, "").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let library = TestRepository::with_commit();
        git.git(&[
            "submodule",
            "add",
            "-q",
            library.path.to_str().unwrap(),
            "library",
        ]);
        git.commit("all kinds");
        let repository = found(&git.path);
        let tree = repository
            .head_tree(&Operation::unbounded(), &repository.head().unwrap())
            .unwrap()
            .unwrap();

        let files = repository
            .tree_files(&Operation::unbounded(), tree, &mut Unfolded::default())
            .unwrap();

        let mut ours = Vec::new();
        for (path, entry) in &files {
            let mode = entry.kind.git_mode();
            let id = data_encoding::HEXLOWER.encode(entry.id.as_bytes());
            ours.extend(format!("{mode:06o} blob {id}\t").into_bytes());
            ours.extend(path.as_bytes());
            ours.push(0);
        }
        let listed = git.run(&git.path, &["ls-tree", "-r", "-z", "HEAD"]).stdout;
        let is_file = |line: &&[u8]| !line.starts_with(b"160000");
        let mut gits = Vec::new();
        for line in listed.split_inclusive(|b| *b == 0).filter(is_file) {
            gits.extend(line);
        }
        assert_eq!(
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&gits)
        );
        assert_eq!(ours, gits);
        let (_, file) = &files[0];
        let blob = ObjectId(file.id.as_bytes().try_into().unwrap());
        let no_tree =
            repository.tree_files(&Operation::unbounded(), blob, &mut Unfolded::default());
        assert!(matches!(
            no_tree,
            Err(RepositoryError::CorruptObject { .. })
        ));
    }

    #[test]
    fn a_tree_that_leads_elsewhere_is_malformed() {
        let git = TestRepository::with_commit();
        for name in ["..", ".", ".git", ".Git", "a/b"] {
            let mut tree = format!("100644 {name}\0").into_bytes();
            tree.extend([7; 20]);
            let id = ObjectId::of(ObjectKind::Tree, &tree).unwrap();
            let hex = id.to_string();
            let header = format!("tree {}\0", tree.len()).into_bytes();
            let path = format!(".git/objects/{}/{}", &hex[..2], &hex[2..]);
            git.write(path, deflated(&[header, tree].concat()));
            let result =
                found(&git.path).tree_files(&Operation::unbounded(), id, &mut Unfolded::default());
            let is_corrupt = matches!(result, Err(RepositoryError::CorruptObject { .. }));
            assert!(is_corrupt, "{name}: {result:?}");
        }
    }

    /// A loose tree with these entries: mode, name, id.
    fn tree_of(git: &TestRepository, entries: &[(&str, &str, ObjectId)]) -> ObjectId {
        let mut tree = Vec::new();
        for (mode, name, id) in entries {
            tree.extend(format!("{mode} {name}\0").into_bytes());
            tree.extend(id.0);
        }
        let id = ObjectId::of(ObjectKind::Tree, &tree).unwrap();
        let hex = id.to_string();
        let header = format!("tree {}\0", tree.len()).into_bytes();
        let path = format!(".git/objects/{}/{}", &hex[..2], &hex[2..]);
        git.write(path, deflated(&[header, tree].concat()));
        id
    }

    #[test]
    fn how_much_a_tree_unfolds_to_is_known_before_any_of_it_is() {
        let git = TestRepository::with_commit();
        let blob = ObjectId([7; 20]);
        let mut id = tree_of(&git, &[("100644", "a", blob), ("100644", "b", blob)]);
        let small = tree_of(&git, &[("40000", "one", id), ("40000", "other", id)]);
        // Each level names the one below it ten times.
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        for _ in 0..30 {
            let level: Vec<_> = names.iter().map(|n| ("40000", n.as_str(), id)).collect();
            id = tree_of(&git, &level);
        }
        let repository = found(&git.path);
        let mut unfolded = Unfolded::default();
        let files = repository
            .tree_files(&Operation::unbounded(), small, &mut unfolded)
            .unwrap();
        let paths: Vec<_> = files.iter().map(|(path, _)| path.as_bytes()).collect();
        assert_eq!(paths, [&b"one/a"[..], b"one/b", b"other/a", b"other/b"]);
        let length: usize = paths.iter().map(|path| path.len()).sum();
        let expected = Extent {
            entries: 6,
            path_bytes: (length + "oneother".len()) as u64,
        };
        assert_eq!(unfolded.together, expected);

        let bomb = repository.tree_files(&Operation::unbounded(), id, &mut Unfolded::default());
        let Err(RepositoryError::TooLarge { limit, actual, .. }) = bomb else {
            panic!("{bomb:?}");
        };
        assert_eq!((limit, actual), (MAX_UNFOLDED_ENTRIES, u64::MAX));

        // Many that are small enough are too much together.
        unfolded.together.entries = MAX_UNFOLDED_ENTRIES;
        let too_much = repository.tree_files(&Operation::unbounded(), small, &mut unfolded);
        assert!(matches!(too_much, Err(RepositoryError::TooLarge { .. })));
    }

    #[test]
    fn who_is_told_to_stop_does_not_call_an_object_corrupt() {
        let git = TestRepository::with_commit();
        let repository = found(&git.path);
        let tree = id(&git.git(&["rev-parse", "HEAD^{tree}"]));
        let interrupt = Interrupt::never();
        interrupt.cancel();
        let stopped = Operation::unbounded().cancelled_by(&interrupt);
        let error = repository.object_of_kind(&stopped, tree, ObjectKind::Tree, 1 << 20);
        if let Err(error) = error {
            assert!(matches!(error, RepositoryError::Interrupted(_)), "{error}");
        }
        let error = repository.tree_files(&stopped, tree, &mut Unfolded::default());
        assert!(
            matches!(error, Err(RepositoryError::Interrupted(_))),
            "{error:?}"
        );
    }
}
