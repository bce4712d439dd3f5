//! Where the user's index lies, and what it takes to read it.

use super::git_dir;
use super::{RepositoryError, UserRepository};
use crate::git::user_index::{self, IndexError, UserIndex};
use crate::worktree::root::Stat;

/// Ten million entries of a hundred bytes.
const MAX_INDEX_BYTES: u64 = 1024 * 1024 * 1024;

impl UserRepository {
    /// The bytes of the index, and what `fstat` said of the file; `None` if there is none, as
    /// before the first `git add`.
    pub(crate) fn index_bytes(&self) -> Result<Option<(Vec<u8>, Stat)>, RepositoryError> {
        self.git_dir.read_with_stat("index", MAX_INDEX_BYTES)
    }

    /// What `fstat` says of the index; `None` if there is none. Cheap: nothing is read.
    pub(crate) fn index_stat(&self) -> Result<Option<Stat>, RepositoryError> {
        match self.git_dir.find("index")? {
            git_dir::Found::File(_, stat) => Ok(Some(stat)),
            git_dir::Found::Nothing => Ok(None),
            git_dir::Found::Directory => Err(RepositoryError::Damaged {
                path: self.git_dir.disk_path("index"),
                reason: "it is a directory".to_owned(),
            }),
        }
    }

    /// Parses what [`UserRepository::index_bytes`] answered with. The shared index of a split one
    /// is read from beside it.
    pub(crate) fn parse_index(&self, bytes: &[u8]) -> Result<UserIndex, RepositoryError> {
        let bad = |source| RepositoryError::Index {
            path: self.git_dir.disk_path("index"),
            source,
        };
        user_index::parse(bytes, &mut |id| {
            let name = format!("sharedindex.{id}");
            match self.git_dir.read(&name, MAX_INDEX_BYTES)? {
                Some(bytes) => Ok(bytes),
                None => Err(IndexOr::Repository(RepositoryError::Damaged {
                    path: self.git_dir.disk_path(&name),
                    reason: "it is missing, and the index needs it".to_owned(),
                })),
            }
        })
        .map_err(|error| match error {
            IndexOr::Index(source) => bad(source),
            IndexOr::Repository(error) => error,
        })
    }

    /// The index, and what `fstat` said of its file; `None` if there is none.
    #[cfg(test)]
    pub(crate) fn index(&self) -> Result<Option<(UserIndex, Stat)>, RepositoryError> {
        match self.index_bytes()? {
            Some((bytes, stat)) => Ok(Some((self.parse_index(&bytes)?, stat))),
            None => Ok(None),
        }
    }
}

/// What can go wrong while an index is parsed that may need a second file.
enum IndexOr {
    Index(IndexError),
    Repository(RepositoryError),
}

impl From<IndexError> for IndexOr {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<RepositoryError> for IndexOr {
    fn from(error: RepositoryError) -> Self {
        Self::Repository(error)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::super::testing::*;
    use super::*;
    use crate::backend::SnapshotError;
    use crate::error::ErrorKind;
    use crate::git::test_repository::TestRepository;

    #[test]
    fn a_split_index_is_read_with_its_shared_one() {
        let git = TestRepository::with_commit();
        git.git(&["update-index", "--split-index"]);
        let (index, stat) = found(&git.path).index().unwrap().unwrap();
        assert_eq!(index.entries.len(), 1);
        let shared = index.shared_id.expect("it is split");
        let meta = fs::metadata(git.path.join(".git/index")).unwrap();
        assert_eq!((stat.inode, stat.size), (meta.ino(), meta.len()));
        assert_eq!(found(&git.path).index_stat().unwrap(), Some(stat));

        fs::remove_file(git.path.join(format!(".git/sharedindex.{shared}"))).unwrap();
        assert!(is_damaged(&found(&git.path).index()));
    }

    #[test]
    fn a_damaged_index_is_named_and_told_from_an_unknown_one() {
        let git = TestRepository::with_commit();
        let path = git.path.join(".git/index");
        let kind = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = found(&git.path).index().unwrap_err();
            assert!(matches!(&error, RepositoryError::Index { path: p, .. } if *p == path));
            SnapshotError::from(error).kind()
        };
        assert_eq!(kind(b""), ErrorKind::Unreadable);
        let version_9 = [&b"DIRC\0\0\0\x09"[..], &[0; 40]].concat();
        assert_eq!(kind(&version_9), ErrorKind::Unsupported);
    }
}
