//! The list of everything in a hash snapshot, and its digest.

mod listing;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

#[cfg(any(test, feature = "fuzzing"))]
use crate::codec::TooLong;
use crate::codec::{Format, Unusable};
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::pace::Pace;
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId, Entry, EntryKind};

pub(crate) use listing::Listing;

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
    /// The longest file that keeps one: tens of millions of paths.
    pub(crate) const MAX_FILE_BYTES: u64 = 4 << 30;

    /// Sorts `items`, which hold each path once.
    #[cfg(test)]
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
        let mut digest = Digest::new(self.items.len());
        for item in &self.items {
            digest.add(item.path.as_bytes(), item.what);
        }
        digest.finish()
    }

    /// The paths at which files and links differ, sorted.
    pub(crate) fn changes_to(
        &self,
        op: &Operation,
        later: &Self,
    ) -> Result<Vec<Change>, Interrupted> {
        let mut changes = Vec::new();
        let mut old = self.items.iter().filter_map(Item::content).peekable();
        let mut new = later.items.iter().filter_map(Item::content).peekable();
        let mut pace = Pace::of(op);
        loop {
            pace.step()?;
            let order = match (old.peek(), new.peek()) {
                (None, None) => return Ok(changes),
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

    /// The bytes of the file that keeps the manifest, as [`Listing::encode`] gives them.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn encode(&self) -> Result<Vec<u8>, TooLong> {
        FORMAT.encode(self)
    }

    /// Whether `bytes` are what [`Listing::encode`] gave for some manifest, unharmed. Costs no more
    /// than to hash them.
    pub(crate) fn is_whole(bytes: &[u8]) -> bool {
        FORMAT.is_whole(bytes)
    }

    /// Reads what [`Listing::encode`] gave; `what` names it in errors.
    ///
    /// The body is decoded only after its checksum holds, and it has to be in canonical order.
    pub(crate) fn decode(bytes: &[u8], what: &str) -> Result<Self, StoreError> {
        let corrupt = |detail| StoreError::corrupt(what, detail);
        let manifest: Self = FORMAT.decode(bytes).map_err(|unusable| match unusable {
            Unusable::TooNew { found } => StoreError::VersionTooNew {
                what: what.to_owned(),
                found,
                supported: FORMAT.version,
            },
            Unusable::Damaged { how } => corrupt(how),
        })?;
        if !manifest.items.is_sorted_by(|a, b| a.path < b.path) {
            return Err(corrupt("its paths are not in order"));
        }
        Ok(manifest)
    }
}

/// The digest of a manifest whose items come one by one.
struct Digest {
    hasher: blake3::Hasher,
    /// What is not hashed yet: many small pieces cost several times as much as few large ones.
    pending: Vec<u8>,
}

impl Digest {
    /// How much is hashed at a time: enough for every lane of the processor.
    const PIECE_BYTES: usize = 128 * 1024;

    fn new(items: usize) -> Self {
        let mut pending = Vec::with_capacity(Self::PIECE_BYTES + 4096);
        pending.extend_from_slice(b"stillframe manifest 1\n");
        pending.extend_from_slice(&(items as u64).to_le_bytes());
        Self {
            hasher: blake3::Hasher::new(),
            pending,
        }
    }

    fn add(&mut self, path: &[u8], what: What) {
        let pending = &mut self.pending;
        pending.extend_from_slice(&(path.len() as u64).to_le_bytes());
        pending.extend_from_slice(path);
        match what {
            What::Directory => pending.push(b'd'),
            What::Content { kind, digest, size } => {
                pending.push(match kind {
                    EntryKind::File => b'f',
                    EntryKind::Executable => b'x',
                    EntryKind::Symlink => b'l',
                });
                pending.extend_from_slice(&digest);
                pending.extend_from_slice(&size.to_le_bytes());
            }
        }
        if pending.len() >= Self::PIECE_BYTES {
            self.hasher.update(pending);
            pending.clear();
        }
    }

    fn finish(mut self) -> blake3::Hash {
        self.hasher.update(&self.pending);
        self.hasher.finalize()
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

    /// The length of what is there; `None`: it is a directory.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self.what {
            What::Content { size, .. } => Some(size),
            What::Directory => None,
        }
    }

    /// The path with what is there, unless it is a directory.
    pub(crate) fn content(&self) -> Option<(&RelPath, Entry)> {
        Some((&self.path, self.entry()?))
    }
}

const FORMAT: Format = Format {
    magic: *b"sfmanif\n",
    version: 1,
    max_bytes: Manifest::MAX_FILE_BYTES,
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::contract;

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
            .changes_to(&Operation::unbounded(), &after)
            .unwrap()
            .into_iter()
            .map(|c| (c.path.to_string(), c.old.is_some(), c.new.is_some()))
            .collect();
        let expected = [("a", true, false), ("b", true, true), ("c", false, true)]
            .map(|(p, o, n)| (p.to_owned(), o, n));
        assert_eq!(changes, expected, "directories are no files");
        assert!(
            before
                .changes_to(&Operation::unbounded(), &before)
                .unwrap()
                .is_empty(),
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

    fn decoded(bytes: &[u8]) -> Option<Manifest> {
        match Manifest::decode(bytes, "it") {
            Ok(manifest) => Some(manifest),
            Err(StoreError::Corrupt { .. } | StoreError::VersionTooNew { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_damaged_manifest_is_never_read() {
        let manifest = Manifest::new(vec![file("a", b"1"), directory("d"), file("d/b", b"2")]);
        let bytes = manifest.encode().expect("it is short");
        contract::only_whole_files_are_read(&bytes, &manifest, decoded);
    }

    #[test]
    fn a_manifest_that_is_not_in_order_is_corrupt_though_its_checksum_holds() {
        for items in [
            vec![file("b", b""), file("a", b"")],
            vec![file("a", b""), file("a", b"")],
        ] {
            let bytes = FORMAT.encode(&Manifest { items }).expect("it is short");
            assert_eq!(decoded(&bytes), None);
        }
    }

    #[test]
    fn lengths_that_lie_are_found_before_anything_is_allocated() {
        let manifest = Manifest::new(vec![file("a", b"1")]);
        let bytes = manifest.encode().expect("it is short");
        // Number of items, and length of the first path.
        for at in [0, 8] {
            let absurd = contract::with_absurd_length(&FORMAT, &bytes, at);
            assert_eq!(decoded(&absurd), None);
        }
    }

    fn any_manifest() -> impl Strategy<Value = Manifest> {
        let what = prop_oneof![
            Just(What::Directory),
            (any::<[u8; 32]>(), any::<u64>(), 0..3_usize).prop_map(|(digest, size, kind)| {
                let kinds = [EntryKind::File, EntryKind::Executable, EntryKind::Symlink];
                let kind = kinds[kind];
                What::Content { kind, digest, size }
            }),
        ];
        prop::collection::btree_map("[a-z\\PC]{1,6}(/[a-z]{1,3}){0,3}", what, 0..6).prop_map(
            |all| {
                let items = all.into_iter().filter_map(|(path, what)| {
                    let path = RelPath::new(path).ok()?;
                    Some(Item { path, what })
                });
                Manifest::new(items.collect())
            },
        )
    }

    proptest! {
        #[test]
        fn any_manifest_comes_back(manifest in any_manifest()) {
            let bytes = manifest.encode().expect("it is short");
            prop_assert_eq!(decoded(&bytes), Some(manifest));
        }

        #[test]
        fn any_manifest_with_a_flipped_bit_or_cut_short_is_corrupt(
            manifest in any_manifest(),
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let mut bytes = manifest.encode().expect("it is short");
            let at = at.index(bytes.len());
            prop_assert_eq!(decoded(&bytes[..at]), None);
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(decoded(&bytes), None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            decoded(&bytes);
            // The same with a checksum that holds: what comes out is a manifest that goes in.
            if let Some(manifest) = decoded(&contract::sealed(&FORMAT, &bytes)) {
                prop_assert_eq!(manifest.encode().expect("it is short"), contract::sealed(&FORMAT, &bytes));
            }
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
