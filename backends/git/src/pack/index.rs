//! The index of a pack: which objects it holds, and where.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use sha1::{Digest as _, Sha1};

use super::{CHECKSUM_BYTES, HEADER_BYTES, Packed};
use crate::ObjectId;
use crate::error::{PathError, printable};
use crate::operation::Operation;
use crate::pace::Pace;
use crate::parallel::in_parts;
use crate::store_error::StoreError;

/// The longest an index may be that is kept in memory, some 2000 objects. A store has many packs of
/// that size, one for each snapshot, and few larger ones.
const MAX_RESIDENT_BYTES: u64 = 64 * 1024;
/// How much of the table of names is read at once when many are looked up.
const SCAN_BYTES: u64 = 128 * 1024;
/// How many names are read around the place where an id should be: a page of them.
const WINDOW: u32 = 200;
/// How many rows of the table of offsets are read at once at most: a page of them.
const OFFSETS_AT_ONCE: u32 = 1024;
/// Where a bucket of the table has more names than this for each one wanted, looking each up costs
/// less than reading the bucket.
const SPARSE: u64 = 400;

/// Fewer ids than this are looked up before another thread has begun.
const IDS_PER_THREAD: usize = 10_000;

const MAGIC: [u8; 8] = [0xff, b't', b'O', b'c', 0, 0, 0, 2];
/// Behind magic, version, and 256 counts.
const NAMES_AT: u64 = 8 + 256 * 4;
const ID_BYTES: u64 = 20;
/// An offset of four bytes with this bit names a row of the table of eight-byte offsets.
const LARGE_OFFSET: u32 = 1 << 31;

/// The index of a pack (`gitformat-pack`, version 2), read by position.
///
/// Memory is bounded whatever its size: a large one is read where it is needed.
#[derive(Debug)]
pub struct PackIndex {
    path: PathBuf,
    bytes: Bytes,
    /// The number of ids whose first byte is at most the position.
    fanout: Box<[u32; 256]>,
    /// How many rows the table of eight-byte offsets has.
    large_offsets: u64,
    /// The length of the file.
    length: u64,
}

#[derive(Debug)]
enum Bytes {
    Resident(Vec<u8>),
    /// An open file.
    Open(File),
    /// A file that is opened for each use: a store may have more packs than a process may have
    /// open files.
    Named,
}

impl PackIndex {
    /// Opens the index at `path`. A link is refused.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = super::read::open_regular(path)?;
        let mut index = Self::of_file(file, path)?;
        if matches!(index.bytes, Bytes::Open(_)) {
            index.bytes = Bytes::Named;
        }
        Ok(index)
    }

    /// The index in `file`, which stays open if it is large. `path` is for messages.
    ///
    /// Checks magic, version, the counts, and that the length fits them; the ids and offsets are
    /// checked by whoever reads the object.
    pub fn of_file(file: File, path: &Path) -> Result<Self, StoreError> {
        let length = file
            .metadata()
            .map_err(PathError::at("look at", path))?
            .len();
        let mut index = Self {
            path: path.to_owned(),
            bytes: Bytes::Open(file),
            fanout: Box::new([0; 256]),
            large_offsets: 0,
            length,
        };
        if length < NAMES_AT + 2 * CHECKSUM_BYTES {
            return Err(index.corrupt("it is too short"));
        }
        let mut head = [0; NAMES_AT as usize];
        index.read_at(&mut head, 0)?;
        if head[..8] != MAGIC {
            return Err(index.corrupt("it is no pack index of version 2"));
        }
        for (count, bytes) in index.fanout.iter_mut().zip(head[8..].chunks_exact(4)) {
            *count = u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        }
        if !index.fanout.is_sorted() {
            return Err(index.corrupt("its counts go backwards"));
        }
        let count = u64::from(index.count());
        let tables = NAMES_AT + count * (ID_BYTES + 4 + 4) + 2 * CHECKSUM_BYTES;
        let large = length.checked_sub(tables).filter(|rest| rest % 8 == 0);
        index.large_offsets = match large.map(|rest| rest / 8) {
            Some(rows) if rows <= count => rows,
            _ => return Err(index.corrupt("its length does not fit its counts")),
        };
        if length <= MAX_RESIDENT_BYTES {
            let mut all = vec![0; usize::try_from(length).expect("a small file")];
            index.read_at(&mut all, 0)?;
            index.bytes = Bytes::Resident(all);
        }
        Ok(index)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many objects the pack holds.
    pub fn count(&self) -> u32 {
        self.fanout[255]
    }

    /// Where the object begins in the pack, in bytes; `None` if the pack does not have it.
    pub fn find(&self, id: &ObjectId) -> Result<Option<u64>, StoreError> {
        match self.position(id)? {
            Some(position) => self.offset_at(position).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the pack has the object.
    pub fn contains(&self, id: &ObjectId) -> Result<bool, StoreError> {
        Ok(self.position(id)?.is_some())
    }

    /// Removes from `wanted`, which is sorted and unique, every id that the pack has.
    ///
    /// Costs one pass over those parts of the index where many are wanted, and one read for each id
    /// where few are.
    pub fn retain_missing(
        &self,
        op: &Operation,
        wanted: &mut Vec<ObjectId>,
    ) -> Result<(), StoreError> {
        // A byte for each: they may be as many as a workspace has files.
        let are_found = in_parts(wanted, IDS_PER_THREAD, |part| {
            let mut is_found = vec![false; part.len()];
            self.each_hit(op, part, &mut |at| is_found[at] = true)?;
            Ok::<_, StoreError>(is_found)
        });
        let are_found: Vec<Vec<bool>> = are_found.into_iter().collect::<Result<_, _>>()?;
        let mut is_found = are_found.iter().flatten();
        wanted.retain(|_| is_found.next() == Some(&false));
        Ok(())
    }

    /// Calls `hit` with the place in `wanted` of every id that the pack has, in order. `wanted` is
    /// sorted and unique.
    pub fn each_hit(
        &self,
        op: &Operation,
        wanted: &[ObjectId],
        hit: &mut dyn FnMut(usize),
    ) -> Result<(), StoreError> {
        self.each_position(op, wanted, &mut |at, _| hit(at))
            .map(drop)
    }

    /// As [`PackIndex::each_hit`], with where the object begins in the pack.
    pub fn each_offset(
        &self,
        op: &Operation,
        wanted: &[ObjectId],
        hit: &mut dyn FnMut(usize, u64),
    ) -> Result<(), StoreError> {
        let mut found = Vec::new();
        let opened =
            self.each_position(op, wanted, &mut |at, position| found.push((at, position)))?;
        let this = opened.as_ref().unwrap_or(self);
        let mut words = Vec::new();
        let mut rest = found.as_slice();
        // Positions ascend with the ids, so those that share a page are read with it.
        while let Some((_, first)) = rest.first() {
            let count = rest.partition_point(|(_, at)| at - first < OFFSETS_AT_ONCE);
            let (near, after) = rest.split_at(count);
            let rows = near.last().expect("the first is one of them").1 - first + 1;
            words.resize(rows as usize * 4, 0);
            this.read_at(&mut words, this.offsets_at() + u64::from(*first) * 4)?;
            for (at, position) in near {
                let word = &words[(position - first) as usize * 4..][..4];
                let word = u32::from_be_bytes(word.try_into().expect("four bytes"));
                hit(*at, this.resolve_offset(word)?);
            }
            rest = after;
        }
        Ok(())
    }

    /// As [`PackIndex::each_hit`], with the position in this index. Answers with the index that it
    /// opened for that, if its file was not open.
    fn each_position(
        &self,
        op: &Operation,
        wanted: &[ObjectId],
        hit: &mut dyn FnMut(usize, u32),
    ) -> Result<Option<Self>, StoreError> {
        debug_assert!(wanted.is_sorted_by(|a, b| a < b), "sorted and unique");
        let opened = match self.bytes {
            Bytes::Named => Some(self.held_open()?),
            _ => None,
        };
        let this = opened.as_ref().unwrap_or(self);
        let mut from = 0;
        let mut buffer = Vec::new();
        let mut pace = Pace::of(op);
        while let Some(first) = wanted.get(from) {
            let bucket = first.0[0];
            let to = from + wanted[from..].partition_point(|id| id.0[0] == bucket);
            let (low, high) = this.bucket(bucket);
            let (names, ids) = (u64::from(high - low), (to - from) as u64);
            if names > ids.saturating_mul(SPARSE) {
                for (at, id) in wanted.iter().enumerate().take(to).skip(from) {
                    pace.step()?;
                    if let Some(position) = this.position(id)? {
                        hit(at, position);
                    }
                }
            } else {
                this.scan(
                    op,
                    low,
                    high,
                    &wanted[from..to],
                    &mut buffer,
                    &mut |at, position| {
                        hit(from + at, position);
                    },
                )?;
            }
            from = to;
        }
        Ok(opened)
    }

    /// Every entry in the order of ids: id, offset and CRC-32 of the entry.
    pub fn entries(&self, op: &Operation) -> Result<Vec<(ObjectId, u64, u32)>, StoreError> {
        let count = self.count();
        let mut entries = Vec::new();
        let mut names = Vec::new();
        let step = u32::try_from(SCAN_BYTES / ID_BYTES).expect("a small number");
        let mut low = 0;
        while low < count {
            let high = count.min(low.saturating_add(step));
            op.check()?;
            self.names(low, high, &mut names)?;
            let rows = (high - low) as usize;
            let mut crcs = vec![0; rows * 4];
            self.read_at(&mut crcs, self.crcs_at() + u64::from(low) * 4)?;
            let mut offsets = vec![0; rows * 4];
            self.read_at(&mut offsets, self.offsets_at() + u64::from(low) * 4)?;
            let word = |bytes: &[u8], row: usize| {
                u32::from_be_bytes(bytes[row * 4..][..4].try_into().expect("four bytes"))
            };
            for (row, name) in names.chunks_exact(20).enumerate() {
                let id = ObjectId(name.try_into().expect("twenty bytes"));
                let offset = self.resolve_offset(word(&offsets, row))?;
                entries.push((id, offset, word(&crcs, row)));
            }
            low = high;
        }
        Ok(entries)
    }

    /// The SHA-1 at the end of the pack that this index was made for.
    pub(crate) fn pack_checksum(&self) -> Result<[u8; 20], StoreError> {
        let mut checksum = [0; 20];
        self.read_at(&mut checksum, self.length - 2 * CHECKSUM_BYTES)?;
        Ok(checksum)
    }

    /// Makes sure, by reading a few bytes of each, that `pack` is the one this index was made for.
    /// `pack_path` is for messages.
    pub fn check_pair(&self, pack: &File, pack_path: &Path) -> Result<(), StoreError> {
        let broken = |detail: &str| StoreError::corrupt(printable(pack_path), detail.to_owned());
        let length = pack
            .metadata()
            .map_err(PathError::at("look at", pack_path))?
            .len();
        if length < HEADER_BYTES + CHECKSUM_BYTES {
            return Err(broken("it is too short"));
        }
        let mut header = [0; HEADER_BYTES as usize];
        let mut checksum = [0; 20];
        pack.read_exact_at(&mut header, 0)
            .and_then(|()| pack.read_exact_at(&mut checksum, length - CHECKSUM_BYTES))
            .map_err(PathError::at("read", pack_path))?;
        // Version 3 differs from 2 in name only, and git reads both.
        if header[..7] != *b"PACK\0\0\0" || !matches!(header[7], 2 | 3) {
            return Err(broken("it is no pack of version 2"));
        }
        if header[8..] != self.count().to_be_bytes() {
            return Err(broken("its index counts other objects"));
        }
        if checksum != self.pack_checksum()? {
            return Err(broken(
                "its index was made for another pack, or it is cut short",
            ));
        }
        Ok(())
    }

    /// Reads all of it and compares with the checksum at its end.
    pub fn verify(&self, op: &Operation) -> Result<(), StoreError> {
        let mut sha1 = Sha1::new();
        let end = self.length - CHECKSUM_BYTES;
        let mut buffer = vec![0; usize::try_from(SCAN_BYTES).expect("a small number")];
        let mut at = 0;
        while at < end {
            let count = usize::try_from((end - at).min(SCAN_BYTES)).expect("a small number");
            op.check()?;
            self.read_at(&mut buffer[..count], at)?;
            sha1.update(&buffer[..count]);
            at += count as u64;
        }
        let mut checksum = [0; 20];
        self.read_at(&mut checksum, end)?;
        if checksum != <[u8; 20]>::from(sha1.finalize()) {
            return Err(self.corrupt("its checksum is wrong"));
        }
        Ok(())
    }

    /// The positions of the ids that begin with `first`.
    fn bucket(&self, first: u8) -> (u32, u32) {
        let low = match first.checked_sub(1) {
            Some(before) => self.fanout[usize::from(before)],
            None => 0,
        };
        (low, self.fanout[usize::from(first)])
    }

    fn position(&self, id: &ObjectId) -> Result<Option<u32>, StoreError> {
        let (mut low, mut high) = self.bucket(id.0[0]);
        // Ids are evenly spread, so the first guess is off by a few hundred in a million; after
        // that, halving never fails.
        let spread = u64::from(u32::from_be_bytes([0, id.0[1], id.0[2], id.0[3]]));
        let mut guess = low + u32::try_from((u64::from(high - low) * spread) >> 24).expect("less");
        let mut names = Vec::new();
        while low < high {
            let from = guess.saturating_sub(WINDOW / 2).max(low);
            let to = high.min(from.saturating_add(WINDOW));
            self.names(from, to, &mut names)?;
            let rows = names.len() / 20;
            let row = partition(&names, rows, |name| *name < id.0);
            if row < rows && names[row * 20..][..20] == id.0 {
                return Ok(Some(from + row as u32));
            }
            if row == 0 {
                high = from;
            } else if row == rows {
                low = to;
            } else {
                return Ok(None);
            }
            guess = low + (high - low) / 2;
        }
        Ok(None)
    }

    /// Calls `hit` for every one of `wanted` among the names `low..high`, with its position.
    fn scan(
        &self,
        op: &Operation,
        low: u32,
        high: u32,
        wanted: &[ObjectId],
        buffer: &mut Vec<u8>,
        hit: &mut dyn FnMut(usize, u32),
    ) -> Result<(), StoreError> {
        let step = u32::try_from(SCAN_BYTES / ID_BYTES).expect("a small number");
        let (mut from, mut at) = (low, 0);
        while from < high && at < wanted.len() {
            let to = high.min(from.saturating_add(step));
            op.check()?;
            self.names(from, to, buffer)?;
            at += intersect(&wanted[at..], buffer, &mut |hit_at, row| {
                hit(
                    at + hit_at,
                    from + u32::try_from(row).expect("a part of the table"),
                );
            });
            from = to;
        }
        Ok(())
    }

    fn names(&self, low: u32, high: u32, into: &mut Vec<u8>) -> Result<(), StoreError> {
        let bytes = u64::from(high - low) * ID_BYTES;
        into.resize(usize::try_from(bytes).expect("a part of a file"), 0);
        self.read_at(into, NAMES_AT + u64::from(low) * ID_BYTES)
    }

    fn crcs_at(&self) -> u64 {
        NAMES_AT + u64::from(self.count()) * ID_BYTES
    }

    fn offsets_at(&self) -> u64 {
        self.crcs_at() + u64::from(self.count()) * 4
    }

    fn offset_at(&self, position: u32) -> Result<u64, StoreError> {
        let mut word = [0; 4];
        self.read_at(&mut word, self.offsets_at() + u64::from(position) * 4)?;
        self.resolve_offset(u32::from_be_bytes(word))
    }

    fn resolve_offset(&self, word: u32) -> Result<u64, StoreError> {
        if word & LARGE_OFFSET == 0 {
            return Ok(u64::from(word));
        }
        let row = u64::from(word & !LARGE_OFFSET);
        if row >= self.large_offsets {
            return Err(self.corrupt("it names an offset that it does not have"));
        }
        let mut offset = [0; 8];
        let table = self.offsets_at() + u64::from(self.count()) * 4;
        self.read_at(&mut offset, table + row * 8)?;
        Ok(u64::from_be_bytes(offset))
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> Result<(), StoreError> {
        let mut read = |file: &File| {
            file.read_exact_at(into, at).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => self.corrupt("it is cut short"),
                _ => PathError::at("read", &self.path)(e).into(),
            })
        };
        match &self.bytes {
            Bytes::Open(file) => read(file),
            Bytes::Named => read(&super::read::open_regular(&self.path)?),
            Bytes::Resident(bytes) => {
                let at = usize::try_from(at).expect("inside a small file");
                into.copy_from_slice(&bytes[at..][..into.len()]);
                Ok(())
            }
        }
    }

    /// Whether all of it is in memory.
    pub fn is_resident(&self) -> bool {
        matches!(self.bytes, Bytes::Resident(_))
    }

    /// The same index with its file open, or all of it in memory, for many reads.
    pub fn held_open(&self) -> Result<Self, StoreError> {
        let bytes = match &self.bytes {
            Bytes::Resident(bytes) => Bytes::Resident(bytes.clone()),
            _ => Bytes::Open(super::read::open_regular(&self.path)?),
        };
        Ok(Self {
            path: self.path.clone(),
            bytes,
            fanout: self.fanout.clone(),
            large_offsets: self.large_offsets,
            length: self.length,
        })
    }

    fn corrupt(&self, detail: &str) -> StoreError {
        StoreError::corrupt(printable(&self.path), detail)
    }
}

/// Writes an index of version 2 for `entries`, which are sorted by id and unique.
pub(super) fn write(
    out: &mut dyn Write,
    entries: &[Packed],
    pack_checksum: &[u8; 20],
) -> io::Result<()> {
    let mut out = Hashing {
        out,
        sha1: Sha1::new(),
    };
    out.put(&MAGIC)?;
    let mut counts = [0_u32; 256];
    for entry in entries {
        counts[usize::from(entry.id.0[0])] += 1;
    }
    let mut sum = 0;
    for count in counts {
        sum += count;
        out.put(&sum.to_be_bytes())?;
    }
    for entry in entries {
        out.put(&entry.id.0)?;
    }
    for entry in entries {
        out.put(&entry.crc32.to_be_bytes())?;
    }
    let mut large = Vec::new();
    for entry in entries {
        let word = match u32::try_from(entry.offset) {
            Ok(offset) if offset & LARGE_OFFSET == 0 => offset,
            _ => {
                large.push(entry.offset);
                LARGE_OFFSET | (large.len() as u32 - 1)
            }
        };
        out.put(&word.to_be_bytes())?;
    }
    for offset in large {
        out.put(&offset.to_be_bytes())?;
    }
    out.put(pack_checksum)?;
    let checksum: [u8; 20] = out.sha1.finalize().into();
    out.out.write_all(&checksum)
}

struct Hashing<'a> {
    out: &'a mut dyn Write,
    sha1: Sha1,
}

impl Hashing<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sha1.update(bytes);
        self.out.write_all(bytes)
    }
}

/// Calls `hit` with the place in `wanted` of every id that is among `names`, and its place there;
/// both are sorted. Answers how many of `wanted` are settled: those up to the last of `names`.
fn intersect(wanted: &[ObjectId], names: &[u8], hit: &mut dyn FnMut(usize, usize)) -> usize {
    let name = |at: usize| ObjectId(names[at * 20..][..20].try_into().expect("twenty bytes"));
    let (ids, rows) = (wanted.len(), names.len() / 20);
    let (mut at, mut row) = (0, 0);
    while at < ids && row < rows {
        match wanted[at].cmp(&name(row)) {
            std::cmp::Ordering::Less => {
                let name = name(row);
                at = gallop(at, ids, |i| wanted[i] < name);
            }
            std::cmp::Ordering::Greater => {
                row = gallop(row, rows, |i| name(i) < wanted[at]);
            }
            std::cmp::Ordering::Equal => {
                hit(at, row);
                at += 1;
                row += 1;
            }
        }
    }
    at
}

/// The first place after `from` and below `end` where `is_before` fails; it holds at `from`. Looks
/// near `from` first.
fn gallop(from: usize, end: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let mut step = 1;
    let mut low = from;
    while low + step < end && is_before(low + step) {
        low += step;
        step *= 2;
    }
    let mut high = end.min(low + step);
    low += 1;
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The number of rows of twenty bytes at the beginning of `names` for which `is_before` holds.
fn partition(names: &[u8], rows: usize, is_before: impl Fn(&[u8; 20]) -> bool) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low + (high - low) / 2;
        let name = names[middle * 20..][..20].try_into().expect("twenty bytes");
        if is_before(name) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::test_repository::TestRepository;

    /// Ids that are spread like hashes, by number.
    fn id(number: u64) -> ObjectId {
        let mut id = [0; 20];
        let hash = Sha1::digest(number.to_be_bytes());
        id.copy_from_slice(&hash);
        ObjectId(id)
    }

    fn index_of(directory: &Path, entries: &[Packed]) -> PathBuf {
        let path = directory.join("pack-test.idx");
        let mut bytes = Vec::new();
        write(&mut bytes, entries, &[7; 20]).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn entries(ids: impl IntoIterator<Item = ObjectId>) -> Vec<Packed> {
        let ids: BTreeSet<_> = ids.into_iter().collect();
        let packed = |(at, id): (usize, ObjectId)| Packed {
            id,
            offset: 12 + at as u64 * 10,
            crc32: at as u32,
        };
        ids.into_iter().enumerate().map(packed).collect()
    }

    #[test]
    fn every_object_is_found_where_it_is_and_no_other() {
        // Small ones stay in memory, large ones on the disk.
        for count in [0, 1, 2, 300, 20_000] {
            let directory = tempfile::tempdir().unwrap();
            let entries = entries((0..count).map(|n| id(n * 2)));
            let index = PackIndex::open(&index_of(directory.path(), &entries)).unwrap();
            assert_eq!(u64::from(index.count()), count);
            for entry in &entries {
                assert_eq!(index.find(&entry.id).unwrap(), Some(entry.offset));
            }
            for n in 0..1000 {
                assert_eq!(index.find(&id(n * 2 + 1)).unwrap(), None);
            }
            for end in [ObjectId([0; 20]), ObjectId([0xff; 20])] {
                assert_eq!(index.find(&end).unwrap(), None);
            }
            let listed = index.entries(&Operation::unbounded()).unwrap();
            let expected: Vec<_> = entries.iter().map(|e| (e.id, e.offset, e.crc32)).collect();
            assert_eq!(listed, expected);
            index.verify(&Operation::unbounded()).unwrap();
        }
    }

    #[test]
    fn ids_that_are_not_spread_like_hashes_are_found_too() {
        let directory = tempfile::tempdir().unwrap();
        let crowded = |n: u32| {
            let mut id = [0; 20];
            id[16..].copy_from_slice(&n.to_be_bytes());
            ObjectId(id)
        };
        let entries = entries((0..10_000).map(|n| crowded(n * 2)));
        let index = PackIndex::open(&index_of(directory.path(), &entries)).unwrap();
        for n in 0..10_000 {
            assert!(index.contains(&crowded(n * 2)).unwrap());
            assert!(!index.contains(&crowded(n * 2 + 1)).unwrap());
        }
    }

    #[test]
    fn offsets_beyond_two_gigabytes_have_their_own_table() {
        let directory = tempfile::tempdir().unwrap();
        let offsets = [
            12,
            (1 << 31) - 1,
            1 << 31,
            (1 << 32) + 5,
            1 << 40,
            u64::from(u32::MAX),
        ];
        let mut entries = entries((0..offsets.len() as u64).map(id));
        for (entry, offset) in entries.iter_mut().zip(offsets) {
            entry.offset = offset;
        }
        let path = index_of(directory.path(), &entries);
        let index = PackIndex::open(&path).unwrap();
        for entry in &entries {
            assert_eq!(index.find(&entry.id).unwrap(), Some(entry.offset));
        }
        // git reads the same offsets out of it.
        let repository = TestRepository::new();
        let show = format!("git show-index < {}", path.display());
        let output = std::process::Command::new("sh")
            .args(["-c", &show])
            .current_dir(&repository.path)
            .env("HOME", repository.home())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let expected: Vec<_> = entries
            .iter()
            .map(|e| format!("{} {} ({:08x})", e.offset, e.id, e.crc32))
            .collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn long_lists_and_short_ones_are_settled_against_a_large_pack() {
        let directory = tempfile::tempdir().unwrap();
        let entries = entries((0..200_000).map(id));
        let index = PackIndex::open(&index_of(directory.path(), &entries)).unwrap();
        let mut wanted: Vec<_> = (100_000..300_000).step_by(2).map(id).collect();
        wanted.sort();
        index
            .retain_missing(&Operation::unbounded(), &mut wanted)
            .unwrap();
        let mut expected: Vec<_> = (200_000..300_000).step_by(2).map(id).collect();
        expected.sort();
        assert_eq!(wanted, expected);

        // Few of them: each is looked up by itself.
        let mut few: Vec<_> = (199_900..200_100).map(id).collect();
        few.sort();
        index
            .retain_missing(&Operation::unbounded(), &mut few)
            .unwrap();
        let mut expected: Vec<_> = (200_000..200_100).map(id).collect();
        expected.sort();
        assert_eq!(few, expected);
    }

    proptest! {
        #[test]
        fn what_is_missing_is_what_a_set_says(
            packed in prop::collection::btree_set(0_u64..6000, 0..3000),
            wanted in prop::collection::btree_set(0_u64..6000, 0..200),
            // With some more entries the index stays on the disk.
            is_large: bool,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let more = if is_large { 1_000_000..1_003_000 } else { 0..0 };
            let entries = entries(packed.iter().copied().chain(more).map(id));
            let index = PackIndex::open(&index_of(directory.path(), &entries)).unwrap();
            let mut missing: Vec<_> = wanted.iter().copied().map(id).collect();
            missing.sort();
            let mut expected: Vec<_> = wanted.difference(&packed).copied().map(id).collect();
            expected.sort();
            index.retain_missing(&Operation::unbounded(), &mut missing).unwrap();
            prop_assert_eq!(missing, expected);
        }

        #[test]
        fn a_damaged_index_is_an_error_or_an_answer_and_never_a_panic(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in prop::option::of(any::<prop::sample::Index>()),
            count in prop_oneof![Just(0_u64), Just(50), Just(3000)],
        ) {
            let directory = tempfile::tempdir().unwrap();
            let entries = entries((0..count).map(id));
            let path = index_of(directory.path(), &entries);
            let original = fs::read(&path).unwrap();
            let mut bytes = original.clone();
            for (at, byte) in &edits {
                // Half of the edits hit the counts, where most of the trouble is.
                let end = if byte % 2 == 0 { 1032 } else { bytes.len() };
                bytes[at.index(end)] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            fs::write(&path, &bytes).unwrap();
            match PackIndex::open(&path) {
                Err(error) => {
                    prop_assert!(matches!(error, StoreError::Corrupt { .. }), "{}", error);
                    prop_assert!(bytes != original);
                }
                Ok(index) => {
                    prop_assert_eq!(index.verify(&Operation::unbounded()).is_ok(), bytes == original);
                    for n in 0..60 {
                        let _ = index.find(&id(n));
                    }
                    let mut wanted: Vec<_> = (0..60).map(id).collect();
                    wanted.sort();
                    let _ = index.retain_missing(&Operation::unbounded(), &mut wanted);
                    let _ = index.entries(&Operation::unbounded());
                }
            }
        }
    }

    #[test]
    fn an_index_that_is_a_link_or_a_pipe_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let real = index_of(directory.path(), &entries((0..5).map(id)));
        let link = directory.path().join("link.idx");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(PackIndex::open(&link).is_err());
        let pipe = directory.path().join("pipe.idx");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert!(PackIndex::open(&pipe).is_err(), "and nothing waits");
    }

    #[test]
    fn indexes_that_git_made_are_read() {
        let repository = TestRepository::new();
        for n in 0..300 {
            repository.write(format!("d{}/f{n}", n % 7), format!("{n}\n"));
        }
        repository.commit("many");
        repository.git(&["repack", "-adq"]);
        let objects = repository.git(&["cat-file", "--batch-all-objects", "--batch-check"]);
        let directory = repository.path.join(".git/objects/pack");
        let paths: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == "idx"))
            .collect();
        let index = PackIndex::open(&paths[0]).unwrap();
        assert_eq!(index.count() as usize, objects.lines().count());
        for line in objects.lines() {
            let id: ObjectId = line[..40].parse().unwrap();
            assert!(index.contains(&id).unwrap(), "{id}");
        }
        let pack_path = paths[0].with_extension("pack");
        let pack = File::open(&pack_path).unwrap();
        index.check_pair(&pack, &pack_path).unwrap();
    }

    #[test]
    fn a_pack_that_is_not_the_indexes_own_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let entries = entries((0..3).map(id));
        let index = PackIndex::open(&index_of(directory.path(), &entries)).unwrap();
        let path = directory.path().join("pack-test.pack");
        let good = [&b"PACK\0\0\0\x02\0\0\0\x03some bytes"[..], &[7; 20]].concat();
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            index.check_pair(&File::open(&path).unwrap(), &path)
        };
        check(&good).unwrap();
        for at in [0, 7, 11, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(
                matches!(check(&bad), Err(StoreError::Corrupt { .. })) || at == 7,
                "{at}"
            );
        }
        for length in [0, 11, 31, good.len() - 1] {
            let result = check(&good[..length]);
            assert!(
                matches!(result, Err(StoreError::Corrupt { .. })),
                "{length}"
            );
        }
    }
}
