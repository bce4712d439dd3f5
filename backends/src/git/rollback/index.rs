//! Deciding what the user's index becomes, and from which blob it is restored.

use serde::{Deserialize, Serialize};

use super::staged::staging_digest;
use crate::git::{ObjectId, ObjectKind};
use crate::parallel;
use crate::restore::IndexChange;

/// Older than any file: git then takes the stat data of no entry for proof.
const BEFORE_ALL_FILES_NS: i64 = 1_000_000_000;

/// An index that gets another content, or goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexMove {
    /// What is replaced, and nothing else is.
    pub(super) from: IndexSeen,
    pub(super) to: IndexGoal,
}

impl IndexMove {
    /// `to` is the bytes that it gets, if it gets some.
    pub(super) fn change(&self, to: Option<&[u8]>) -> IndexChange {
        let digest = |digest: [u8; 32]| blake3::Hash::from_bytes(digest).to_hex().to_string();
        let IndexSeen {
            blob,
            digest: staged,
        } = &self.from;
        let to = to.map(|bytes| blake3::hash(bytes).to_hex().to_string());
        let from = staged
            .map(digest)
            .or_else(|| blob.map(|blob| blob.to_string()));
        IndexChange::new(from, to)
    }
}

/// What takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum IndexGoal {
    /// So many of the staged bytes, the first ones.
    Write { bytes: u64, modified_ns: i64 },
    /// There was none.
    Remove,
}

impl IndexGoal {
    /// Bytes that were last written at `modified_ns`, as far as that is known. By that time git
    /// knows which entries stand for files that may have been changed since without their stat data
    /// showing it (git's Documentation/technical/racy-git): with a later one it would take them for
    /// clean.
    pub(super) fn write(bytes: &[u8], modified_ns: Option<i64>) -> Self {
        Self::Write {
            bytes: bytes.len() as u64,
            modified_ns: modified_ns.unwrap_or(BEFORE_ALL_FILES_NS),
        }
    }
}

/// An index as it was seen. git writes it anew for its stat data alone, which is no change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexSeen {
    /// The blob with its bytes; `None`: there was none.
    pub(super) blob: Option<ObjectId>,
    /// The digest of what it stages; `None`: unreadable.
    digest: Option<[u8; 32]>,
}

impl IndexSeen {
    /// One that has these bytes; `None` for half of a SHA-1 collision.
    pub(super) fn of(bytes: Option<&[u8]>) -> Option<Self> {
        let Some(bytes) = bytes else {
            return Some(Self {
                blob: None,
                digest: None,
            });
        };
        let (digest, blob) = parallel::both(
            || staging_digest(bytes),
            || ObjectId::of(ObjectKind::Blob, bytes),
        );
        Some(Self {
            blob: Some(blob.ok()?),
            digest,
        })
    }

    /// Whether an index with these bytes is this one.
    pub(super) fn is(&self, now: Option<&[u8]>) -> bool {
        let Some(bytes) = now else {
            return self.blob.is_none();
        };
        // The id was made with a look for attacks on SHA-1.
        self.blob == Some(ObjectId::of_trusted(ObjectKind::Blob, bytes))
            || (self.digest.is_some() && self.digest == staging_digest(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    #[test]
    fn stat_data_make_no_other_index() {
        let git = TestRepository::new();
        git.write("file", "content\n");
        git.git(&["add", "file"]);
        let read = || std::fs::read(git.path.join(".git/index")).unwrap();
        let first = read();
        let seen = IndexSeen::of(Some(&first)).unwrap();
        assert!(seen.is(Some(&first)));
        assert!(!seen.is(None));
        assert!(!seen.is(Some(b"no index")));

        let file = std::fs::File::open(git.path.join("file")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        git.git(&["update-index", "--refresh"]);
        let refreshed = read();
        assert_ne!(refreshed, first);
        assert!(seen.is(Some(&refreshed)));
        git.git(&["update-index", "--chmod=+x", "file"]);
        assert!(!seen.is(Some(&read())));

        let none = IndexSeen::of(None).unwrap();
        assert!(none.is(None) && !none.is(Some(&first)));
        let garbage = IndexSeen::of(Some(b"garbage")).unwrap();
        assert!(garbage.is(Some(b"garbage")));
        assert!(!garbage.is(Some(b"other garbage")));
    }
}
