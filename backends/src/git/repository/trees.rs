//! The trees of the repository, as far as a capture needs them: HEAD's at the workspace, and those that
//! stand for a directory in a sparse index.

use super::{RepositoryError, UserRepository, hex_id};
use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::record::Head;
use crate::tree::{Entry, EntryKind};

/// A commit message that long was not written by hand, and only its first line matters here.
const MAX_COMMIT_BYTES: u64 = 64 * 1024 * 1024;

/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 * 1024 * 1024;

/// How much a tree may unfold to: a tree of ten levels can name each one below ten times.
const MAX_TREE_ENTRIES: u64 = 10_000_000;

const MAX_TREE_PATH_BYTES: u64 = 1024 * 1024 * 1024;

/// The modes of a directory and of a submodule in a tree.
const MODE_DIRECTORY: u32 = 0o040_000;

const MODE_SUBMODULE: u32 = 0o160_000;

impl UserRepository {
    /// The tree of `head`'s commit at the workspace; `None` if there is no commit, or it has no
    /// directory there.
    pub(crate) fn head_tree(&self, head: &Head) -> Result<Option<ObjectId>, RepositoryError> {
        let Some(commit_id) = head.commit() else {
            return Ok(None);
        };
        let commit = self.object_of_kind(commit_id, ObjectKind::Commit, MAX_COMMIT_BYTES)?;
        let mut tree_id = commit
            .strip_prefix(b"tree ")
            .and_then(|rest| rest.get(..40))
            .and_then(hex_id)
            .ok_or_else(|| self.malformed(commit_id, "the commit names no tree"))?;
        for name in self.scope.names() {
            let tree = self.object_of_kind(tree_id, ObjectKind::Tree, MAX_TREE_BYTES)?;
            match subtree(&tree, name) {
                Ok(Some(id)) => tree_id = id,
                Ok(None) => return Ok(None),
                Err(Malformed) => return Err(self.malformed(tree_id, "the tree is malformed")),
            }
        }
        Ok(Some(tree_id))
    }

    /// The files and links of a whole tree, by their paths below it; submodules are left out. Such a
    /// tree stands for a directory in a sparse index.
    pub(crate) fn tree_files(
        &self,
        tree_id: ObjectId,
    ) -> Result<Vec<(RelPath, Entry)>, RepositoryError> {
        let mut files = Vec::new();
        let (mut entries, mut path_bytes) = (0, 0);
        let mut waiting = vec![(RelPath::root(), tree_id)];
        while let Some((directory, tree_id)) = waiting.pop() {
            let malformed = || self.malformed(tree_id, "the tree is malformed");
            let tree = self.object_of_kind(tree_id, ObjectKind::Tree, MAX_TREE_BYTES)?;
            for entry in TreeEntries(&tree) {
                let (mode, name, id) = entry.map_err(|Malformed| malformed())?;
                let path = directory.join(name);
                entries += 1;
                path_bytes += path.as_bytes().len() as u64;
                let too_large = |what: &str, limit, actual| RepositoryError::TooLarge {
                    what: format!("the {what} of a sparse directory"),
                    limit,
                    actual,
                };
                if entries > MAX_TREE_ENTRIES {
                    return Err(too_large("number of entries", MAX_TREE_ENTRIES, entries));
                }
                if path_bytes > MAX_TREE_PATH_BYTES {
                    return Err(too_large(
                        "length of paths",
                        MAX_TREE_PATH_BYTES,
                        path_bytes,
                    ));
                }
                match mode {
                    MODE_DIRECTORY => waiting.push((path, id)),
                    MODE_SUBMODULE => {}
                    _ => {
                        let kind = EntryKind::from_git_mode(mode).ok_or_else(malformed)?;
                        let id = id.into();
                        files.push((path, Entry { kind, id }));
                    }
                }
            }
        }
        files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(files)
    }

    fn object_of_kind(
        &self,
        id: ObjectId,
        kind: ObjectKind,
        max_bytes: u64,
    ) -> Result<Vec<u8>, RepositoryError> {
        match self.read_object(id, max_bytes)? {
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

/// A tree object that git would not have written.
struct Malformed;

/// The entries of a tree object: mode, name, id.
struct TreeEntries<'t>(&'t [u8]);

impl<'t> Iterator for TreeEntries<'t> {
    type Item = Result<(u32, &'t [u8], ObjectId), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_none() {
            self.0 = &[];
        }
        Some(entry.ok_or(Malformed))
    }
}

impl<'t> TreeEntries<'t> {
    fn entry(&mut self) -> Option<(u32, &'t [u8], ObjectId)> {
        let blank = self.0.iter().position(|b| *b == b' ')?;
        let (mode, rest) = self.0.split_at(blank);
        let mode = u32::from_str_radix(std::str::from_utf8(mode).ok()?, 8).ok()?;
        let end = rest.iter().position(|b| *b == 0)?;
        let name = &rest[1..end];
        let (id, rest) = rest[end + 1..].split_at_checked(20)?;
        let is_name = !name.is_empty()
            && !name.contains(&b'/')
            && name != b"."
            && name != b".."
            && !name.eq_ignore_ascii_case(b".git");
        if !is_name {
            return None;
        }
        self.0 = rest;
        let id = ObjectId(id.try_into().expect("split off at this length"));
        Some((mode, name, id))
    }
}

/// The id of the directory `name` in a tree object.
fn subtree(tree: &[u8], name: &[u8]) -> Result<Option<ObjectId>, Malformed> {
    for entry in TreeEntries(tree) {
        let (mode, found, id) = entry?;
        if found == name {
            return Ok((mode == MODE_DIRECTORY).then_some(id));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::testing::*;
    use super::*;
    use crate::git::test_repository::TestRepository;

    #[test]
    fn the_tree_of_head_is_that_of_the_scope() {
        let git = TestRepository::with_commit();
        git.write("deep/er/file", "x");
        git.commit("deeper");
        fs::create_dir_all(git.path.join("not/in/head")).unwrap();
        let tree = |below: &str| {
            let repository = found(&git.path.join(below));
            repository.head_tree(&repository.head().unwrap()).unwrap()
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
            .head_tree(&repository.head().unwrap())
            .unwrap()
            .unwrap();

        let files = repository.tree_files(tree).unwrap();

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
        let no_tree = repository.tree_files(blob);
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
            let result = found(&git.path).tree_files(id);
            let is_corrupt = matches!(result, Err(RepositoryError::CorruptObject { .. }));
            assert!(is_corrupt, "{name}: {result:?}");
        }
    }
}
