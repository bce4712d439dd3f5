//! Finding and reading the user's index.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::git_dir::Found;
use super::{RepositoryError, UserRepository};
use crate::descriptor::Stat;
use crate::error::{PathError, printable};
use crate::object_id::TrustingHasher;
use crate::operation::Operation;
use crate::user_index::{self, IndexEntry, IndexError, UserIndex, Visited};
use crate::{ObjectId, ObjectKind};

/// Ten million entries of a hundred bytes.
const MAX_INDEX_BYTES: u64 = 1024 * 1024 * 1024;

/// The user's index, held open: whatever takes its name meanwhile, this is what is read.
#[derive(Debug)]
pub struct IndexFile<'r> {
    repository: &'r UserRepository,
    file: File,
    stat: Stat,
}

impl IndexFile<'_> {
    /// What `fstat` said of it when it was opened.
    pub fn stat(&self) -> Stat {
        self.stat
    }

    /// Its bytes from the beginning, at most as many as it had when it was opened.
    pub fn bytes(&self, op: &Operation) -> IndexBytes<'_> {
        IndexBytes {
            op: op.clone(),
            file: &self.file,
            at: 0,
            end: self.stat.size,
        }
    }

    /// The id of the blob with its bytes. Attacks on SHA-1 are not looked for: to compare with an
    /// id that was made with such a look.
    pub fn blob_id(&self, op: &Operation) -> Result<ObjectId, RepositoryError> {
        let mut hasher = TrustingHasher::new(ObjectKind::Blob, self.stat.size);
        let mut bytes = self.bytes(op);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match bytes.read(&mut piece).map_err(self.unreadable())? {
                0 => return Ok(hasher.finish()),
                count => hasher.update(&piece[..count]),
            }
        }
    }

    /// Reads it, and adds each of its entries in order to what `begin` makes; answers with that,
    /// and with the id of the blob with the bytes that were read, as [`IndexFile::blob_id`] does.
    ///
    /// Entries are held one at a time, but for those of a split index, whose shared one is read
    /// from beside it.
    pub fn fold<T>(
        &self,
        op: &Operation,
        begin: impl Fn() -> T,
        mut add: impl FnMut(&mut T, &IndexEntry<&[u8]>),
    ) -> Result<(T, ObjectId), RepositoryError> {
        let mut hasher = TrustingHasher::new(ObjectKind::Blob, self.stat.size);
        let mut bytes = self.bytes(op);
        let mut source = |into: &mut [u8]| {
            let count = bytes.read(into).map_err(self.unreadable())?;
            hasher.update(&into[..count]);
            Ok::<_, IndexOr>(count)
        };
        let mut all = begin();
        let visited = user_index::visit(&mut source, self.stat.size, &mut |e| add(&mut all, e));
        match visited.map_err(|error| self.repository.index_error(error))? {
            Visited::All => return Ok((all, hasher.finish())),
            // Only once both files were read is it known what the entries are.
            Visited::Split => drop(all),
        }
        let mut whole = Vec::new();
        let read = self.bytes(op).read_to_end(&mut whole);
        read.map_err(self.unreadable())?;
        let index = self.repository.parse_index(&whole)?;
        let mut all = begin();
        for entry in &index.entries {
            add(&mut all, &entry.borrowed());
        }
        Ok((all, ObjectId::of_trusted(ObjectKind::Blob, &whole)))
    }

    /// Where it was found, for messages.
    pub fn path(&self) -> PathBuf {
        self.repository.git_dir.disk_path("index")
    }

    fn unreadable(&self) -> impl FnOnce(io::Error) -> PathError {
        PathError::at("read", self.path())
    }
}

/// How much of an index is read at once.
const PIECE_BYTES: usize = 128 * 1024;

/// Reads an [`IndexFile`] by position, so that several may do so at once.
#[derive(Debug)]
pub struct IndexBytes<'f> {
    op: Operation,
    file: &'f File,
    at: u64,
    end: u64,
}

impl Read for IndexBytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.op.check()?;
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let room = left.min(into.len());
        let count = loop {
            match self.file.read_at(&mut into[..room], self.at) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl UserRepository {
    /// Opens the index; `None` if there is none, as before the first `git add`.
    pub fn open_index(&self) -> Result<Option<IndexFile<'_>>, RepositoryError> {
        let (file, stat) = match self.git_dir.find("index")? {
            Found::File(file, stat) => (file, stat),
            Found::Nothing => return Ok(None),
            Found::Directory => return Err(self.index_is_directory()),
        };
        if stat.size > MAX_INDEX_BYTES {
            let path = self.git_dir.disk_path("index");
            return Err(RepositoryError::TooLarge {
                what: format!("the size of {}", printable(&path)),
                limit: MAX_INDEX_BYTES,
                actual: stat.size,
            });
        }
        Ok(Some(IndexFile {
            repository: self,
            file,
            stat,
        }))
    }

    fn index_is_directory(&self) -> RepositoryError {
        RepositoryError::Damaged {
            path: self.git_dir.disk_path("index"),
            reason: "it is a directory".to_owned(),
        }
    }

    /// The bytes of the index, and what `fstat` said of the file; `None` if there is none, as
    /// before the first `git add`.
    pub fn index_bytes(&self) -> Result<Option<(Vec<u8>, Stat)>, RepositoryError> {
        self.git_dir.read_with_stat("index", MAX_INDEX_BYTES)
    }

    /// What `fstat` says of the index; `None` if there is none. Cheap: nothing is read.
    pub fn index_stat(&self) -> Result<Option<Stat>, RepositoryError> {
        match self.git_dir.find("index")? {
            Found::File(_, stat) => Ok(Some(stat)),
            Found::Nothing => Ok(None),
            Found::Directory => Err(self.index_is_directory()),
        }
    }

    /// The blake3 of what the index stages, without stat data; `None` if there is none. One of more
    /// than `max_bytes` is [`RepositoryError::TooLarge`].
    pub fn staged_digest(
        &self,
        op: &Operation,
        max_bytes: u64,
    ) -> Result<Option<blake3::Hash>, RepositoryError> {
        let Some(file) = self.open_index()? else {
            return Ok(None);
        };
        if file.stat.size > max_bytes {
            return Err(RepositoryError::TooLarge {
                what: format!("the size of {}", printable(&file.path())),
                limit: max_bytes,
                actual: file.stat.size,
            });
        }
        let (hasher, _) = file.fold(op, blake3::Hasher::new, |hasher, e| e.add_to(hasher))?;
        Ok(Some(hasher.finalize()))
    }

    /// Parses the bytes of an index. The shared index of a split one
    /// is read from beside it.
    pub fn parse_index(&self, bytes: &[u8]) -> Result<UserIndex, RepositoryError> {
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
        .map_err(|error| self.index_error(error))
    }

    fn index_error(&self, error: IndexOr) -> RepositoryError {
        match error {
            IndexOr::Index(source) => RepositoryError::Index {
                path: self.git_dir.disk_path("index"),
                source,
            },
            IndexOr::Repository(error) => error,
        }
    }

    /// The index, and what `fstat` said of its file; `None` if there is none.
    #[cfg(test)]
    pub fn index(&self) -> Result<Option<(UserIndex, Stat)>, RepositoryError> {
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

impl From<PathError> for IndexOr {
    fn from(error: PathError) -> Self {
        Self::Repository(error.into())
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
    use crate::error::ErrorKind;
    use crate::snapshot_error::SnapshotError;
    use crate::test_repository::TestRepository;

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
    fn entries_are_those_of_the_bytes_whose_id_is_told_though_the_file_changes() {
        for is_split in [false, true] {
            let git = TestRepository::with_commit();
            git.write("d/more", "more\n");
            git.git(&["add", "-A"]);
            if is_split {
                git.git(&["update-index", "--split-index"]);
            }
            let repository = found(&git.path);
            let fold = |file: &IndexFile<'_>| {
                let add = |paths: &mut Vec<Vec<u8>>, entry: &IndexEntry<&[u8]>| {
                    paths.push(entry.path.to_owned());
                };
                file.fold(&Operation::unbounded(), Vec::new, add).unwrap()
            };
            let id = || git.git(&["hash-object", "--no-filters", ".git/index"]);
            let listed = || git.git(&["ls-files"]);
            let is_read = |(paths, read): (Vec<Vec<u8>>, ObjectId)| {
                assert_eq!(paths.join(&b'\n'), listed().as_bytes());
                assert_eq!(read.to_string(), id());
            };
            let file = repository.open_index().unwrap().unwrap();
            is_read(fold(&file));
            assert_eq!(
                file.blob_id(&Operation::unbounded()).unwrap().to_string(),
                id()
            );
            let before = id();

            // Another file takes its name: what is open stays as it is.
            git.write("another", "file\n");
            git.git(&["add", "another"]);
            assert_ne!(id(), before);
            assert_eq!(fold(&file).1.to_string(), before);
            is_read(fold(&repository.open_index().unwrap().unwrap()));

            // It is written to in place.
            let file = repository.open_index().unwrap().unwrap();
            let path = git.path.join(".git/index");
            let mut bytes = fs::read(&path).unwrap();
            let end = bytes.len() - 20;
            bytes[end..].fill(0);
            fs::write(&path, bytes).unwrap();
            assert_eq!(
                file.blob_id(&Operation::unbounded()).unwrap().to_string(),
                id()
            );
            is_read(fold(&file));
        }
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
