//! The list of everything in a hash snapshot, and its digest.

use std::cmp::Ordering;

use bincode::Options as _;
use serde::{Deserialize, Serialize};

use crate::backend::StoreError;
use crate::path::RelPath;
use crate::tree::{Change, ContentId, Entry, EntryKind};

/// Everything that a hash snapshot captured, sorted by path bytes, each path once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    items: Vec<Item>,
}

/// One path of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) path: RelPath,
    pub(crate) what: What,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    Directory,
    Content {
        kind: EntryKind,
        /// blake3 of the file's bytes or the link's text.
        digest: [u8; 32],
        /// Bytes of the file or the link's text.
        size: u64,
    },
}

impl Manifest {
    /// Sorts `items`, which hold each path once.
    pub(crate) fn new(mut items: Vec<Item>) -> Self {
        items.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Self { items }
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// The file or link at `path`.
    pub(crate) fn entry(&self, path: &RelPath) -> Option<Entry> {
        let at = self.items.binary_search_by(|i| i.path.cmp(path)).ok()?;
        self.items[at].entry()
    }

    /// Whether something was captured at `path` or below it.
    pub(crate) fn knows(&self, path: &RelPath) -> bool {
        let at = self.items.partition_point(|i| i.path < *path);
        // Names such as `a-b` sort between `a` and `a/b`.
        self.items[at..]
            .iter()
            .take_while(|i| i.path.as_bytes().starts_with(path.as_bytes()))
            .any(|i| i.path.starts_with(path))
    }

    /// Names the manifest by its content: the blake3 of every field with its length before it, so
    /// that no two manifests give the same bytes.
    pub(crate) fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"stillframe manifest 1\n");
        hasher.update(&(self.items.len() as u64).to_le_bytes());
        for item in &self.items {
            hasher.update(&(item.path.as_bytes().len() as u64).to_le_bytes());
            hasher.update(item.path.as_bytes());
            match item.what {
                What::Directory => {
                    hasher.update(b"d");
                }
                What::Content { kind, digest, size } => {
                    let kind = match kind {
                        EntryKind::File => b"f",
                        EntryKind::Executable => b"x",
                        EntryKind::Symlink => b"l",
                    };
                    hasher
                        .update(kind)
                        .update(&digest)
                        .update(&size.to_le_bytes());
                }
            }
        }
        hasher.finalize()
    }

    /// The paths at which files and links differ, sorted.
    pub(crate) fn changes_to(&self, later: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut old = self.items.iter().filter_map(Item::content).peekable();
        let mut new = later.items.iter().filter_map(Item::content).peekable();
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return changes,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let old = if order.is_le() { old.next() } else { None };
            let new = if order.is_ge() { new.next() } else { None };
            let path = old
                .or(new)
                .map(|(path, _)| path.clone())
                .expect("one side has an item");
            let (old, new) = (old.map(|(_, e)| e), new.map(|(_, e)| e));
            if old != new {
                changes.push(Change { path, old, new });
            }
        }
    }

    /// The bytes of the file that keeps the manifest.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = codec()
            .serialize(self)
            .expect("a manifest is plain data in memory");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        bytes.extend_from_slice(blake3::hash(&body).as_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads what [`Manifest::encode`] wrote; `what` names it in errors.
    ///
    /// The body is decoded only after its checksum holds, and it has to be in canonical order.
    pub(crate) fn decode(bytes: &[u8], what: &str) -> Result<Self, StoreError> {
        let corrupt = |detail| StoreError::corrupt(what, detail);
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or_else(|| corrupt("it is no manifest"))?;
        let (version, rest) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| corrupt("it is cut short"))?;
        let version = u32::from_le_bytes(*version);
        if version > VERSION {
            return Err(StoreError::VersionTooNew {
                what: what.to_owned(),
                found: version,
                supported: VERSION,
            });
        }
        let (length, rest) = rest
            .split_first_chunk::<8>()
            .ok_or_else(|| corrupt("it is cut short"))?;
        let (digest, body) = rest
            .split_first_chunk::<32>()
            .ok_or_else(|| corrupt("it is cut short"))?;
        if u64::from_le_bytes(*length) != body.len() as u64 {
            return Err(corrupt("its length is not what it says"));
        }
        if blake3::hash(body).as_bytes() != digest {
            return Err(corrupt("its checksum does not hold"));
        }
        let manifest: Self = codec()
            .deserialize(body)
            .map_err(|_| corrupt("it cannot be decoded"))?;
        if !manifest.items.is_sorted_by(|a, b| a.path < b.path) {
            return Err(corrupt("its paths are not in order"));
        }
        Ok(manifest)
    }
}

impl Item {
    fn entry(&self) -> Option<Entry> {
        match self.what {
            What::Directory => None,
            What::Content { kind, digest, .. } => Some(Entry {
                kind,
                id: ContentId::Blake3(digest),
            }),
        }
    }

    pub(crate) fn content(&self) -> Option<(&RelPath, Entry)> {
        Some((&self.path, self.entry()?))
    }
}

const MAGIC: &[u8; 8] = b"sfmanif\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = MAGIC.len() + 4 + 8 + 32;

/// Far above the manifest of any workspace that fits in memory; it bounds what a damaged length
/// field can ask for.
const MAX_BYTES: u64 = 16 << 30;

fn codec() -> impl bincode::Options {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_limit(MAX_BYTES)
        .reject_trailing_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).expect("a path")
    }

    fn file(at: &str, content: &[u8]) -> Item {
        let digest = *blake3::hash(content).as_bytes();
        let what = What::Content {
            kind: EntryKind::File,
            digest,
            size: content.len() as u64,
        };
        Item {
            path: path(at),
            what,
        }
    }

    fn directory(at: &str) -> Item {
        Item {
            path: path(at),
            what: What::Directory,
        }
    }

    #[test]
    fn changes_are_what_only_one_side_has() {
        let before = Manifest::new(vec![file("a", b"1"), file("b", b"1"), directory("e")]);
        let after = Manifest::new(vec![file("b", b"2"), file("c", b"1"), directory("f")]);
        let changes: Vec<_> = before
            .changes_to(&after)
            .into_iter()
            .map(|c| (c.path.to_string(), c.old.is_some(), c.new.is_some()))
            .collect();
        let expected = [("a", true, false), ("b", true, true), ("c", false, true)]
            .map(|(p, o, n)| (p.to_owned(), o, n));
        assert_eq!(changes, expected, "directories are no files");
        assert!(
            before.changes_to(&before).is_empty(),
            "nothing differs from itself"
        );
    }

    #[test]
    fn lengths_keep_two_manifests_apart_that_read_the_same() {
        let one = Manifest::new(vec![file("ab", b""), file("c", b"")]);
        let other = Manifest::new(vec![file("a", b""), file("bc", b"")]);
        assert_ne!(one.digest(), other.digest());
        let as_file = Manifest::new(vec![file("a", b"")]);
        let as_directory = Manifest::new(vec![directory("a")]);
        assert_ne!(as_file.digest(), as_directory.digest());
    }

    #[test]
    fn a_damaged_manifest_is_never_read() {
        let manifest = Manifest::new(vec![file("a", b"1"), directory("b")]);
        let bytes = manifest.encode();
        assert_eq!(
            Manifest::decode(&bytes, "it").expect("it is whole"),
            manifest
        );
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Manifest::decode(&damaged, "it").is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at], "it").is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_directory_is_known_by_what_lies_below_it() {
        let manifest = Manifest::new(vec![file("a-b", b""), file("a/c", b"")]);
        assert!(manifest.knows(&path("a")), "a/c lies below it");
        assert!(manifest.knows(&path("a/c")));
        assert!(!manifest.knows(&path("a/c/d")));
        assert!(!manifest.knows(&path("b")));
    }
}
