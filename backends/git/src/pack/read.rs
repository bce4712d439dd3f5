//! Reading the objects of a pack.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sha1::{Digest as _, Sha1};

use super::{BUFFER_BYTES, CHECKSUM_BYTES, PackIndex};
use crate::contents::ContentError;
use crate::error::{PathError, printable};
use crate::inflate::{self, Inflate};
use crate::operation::Operation;
use crate::parallel::in_parts;
use crate::regular_file;
use crate::store_error::StoreError;
use crate::{ObjectId, ObjectKind};

/// The largest object that takes part in a delta, in bytes. git stores what is larger than 512 MiB
/// whole unless it is told otherwise, and a delta of a few bytes can claim any size.
const MAX_DELTA_OBJECT_BYTES: u64 = 2 << 30;
/// git never chains more than 4095 deltas.
const MAX_DELTA_CHAIN: usize = 4096;
/// How much memory the results of deltas may take that others are likely to build on.
const MAX_CACHED_BYTES: usize = 48 << 20;
/// What is larger is not kept: one such object would drive out thousands of directories.
const MAX_CACHED_OBJECT_BYTES: usize = 1 << 20;
/// Memory is taken as content arrives, not as a header promises; up to this it is taken at once.
const MAX_TRUSTED_BYTES: u64 = 1 << 20;

/// What the beginning of an entry takes at most: ten bytes of size, and ten of a distance or twenty
/// of an id.
const HEADER_BYTES: usize = 32;
/// What tells the size of an object: a header, and of a delta the first two numbers, behind the
/// codes of the block that they are deflated in. Rarely it takes more, which is read then.
const TELLING_BYTES: u64 = 256;
/// Objects that begin within so many bytes of each other are read in one piece with what lies
/// between them: a call costs as much as to copy that.
const NEAR_BYTES: u64 = 6 * 1024;
/// How long such a piece is at most.
const PIECE_BYTES: u64 = 64 * 1024;
/// How much is read of an entry at once: all that most files of a work tree are compressed to.
const AHEAD_BYTES: u64 = 8192;

/// A pack and its index.
#[derive(Debug)]
pub struct Pack {
    /// Where each of its objects is.
    pub index: PackIndex,
    path: PathBuf,
    /// Tells packs apart in [`DeltaBases`].
    number: u64,
    /// The file, if it is to stay open.
    file: Option<Arc<File>>,
}

/// What stands at an offset of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAs {
    /// An object as it is.
    Whole(ObjectKind),
    /// An annotated tag. No snapshot needs one.
    Tag,
    /// A change to the object at an earlier offset.
    OffsetDelta {
        /// Where that object begins.
        base: u64,
    },
    /// A change to an object of the same pack.
    IdDelta {
        /// That object.
        base: ObjectId,
    },
}

/// The beginning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryHeader {
    kind: StoredAs,
    /// The size of the object, or of the delta, in bytes.
    size: u64,
    /// Where the compressed bytes begin.
    content_at: u64,
}

/// Opens the regular file at `path`: a link is refused, and a FIFO does not block.
pub fn open_regular(path: &Path) -> Result<File, PathError> {
    regular_file::open_regular(File::options().read(true), path)
        .map_err(PathError::at("open", path))
}

/// Fewer sizes than this are found before another thread has begun.
const SIZES_PER_THREAD: usize = 2_000;

impl Pack {
    /// Opens the index at `index_path`; the pack of the same name is opened when it is read.
    pub fn open(index_path: &Path) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            index: PackIndex::open(index_path)?,
            path: index_path.with_extension("pack"),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            file: None,
        })
    }

    /// The same pack with both its files open, for many reads one after the other. A store may have
    /// more packs than a process may have open files, so only few are to be held.
    pub fn held_open(&self) -> Result<Self, StoreError> {
        Ok(Self {
            index: self.index.held_open()?,
            path: self.path.clone(),
            number: self.number,
            file: Some(Arc::new(open_regular(&self.path)?)),
        })
    }

    /// The file with the objects.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands at `offset`, and the size that its header claims: of the object, or of the
    /// delta.
    pub fn entry_at(&self, offset: u64) -> Result<(StoredAs, u64), StoreError> {
        let header = self.file()?.header(offset)?;
        Ok((header.kind, header.size))
    }

    /// Whether what stands at one of `offsets` is a delta.
    pub fn has_deltas(&self, offsets: impl Iterator<Item = u64>) -> Result<bool, StoreError> {
        let file = self.file()?;
        for offset in offsets {
            if !matches!(file.header(offset)?.kind, StoredAs::Whole(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Kind and size of the object at `offset`, without building it.
    pub fn object_size(&self, offset: u64) -> Result<(ObjectKind, u64), StoreError> {
        let file = self.file()?;
        let mut header = file.header(offset)?;
        let size = file.size_of(offset, &header)?;
        for _ in 0..MAX_DELTA_CHAIN {
            let base = match header.kind {
                StoredAs::Whole(kind) => return Ok((kind, size)),
                StoredAs::Tag => return Err(file.corrupt(offset, "it is a tag")),
                StoredAs::OffsetDelta { base } => base,
                StoredAs::IdDelta { base } => self.base_of(&file, offset, &base)?,
            };
            header = file.header(base)?;
        }
        Err(file.corrupt(offset, "its deltas go round in a circle"))
    }

    /// Calls `found` with the place in `wanted` of every object that the pack has, and its size as
    /// far as its own entry tells it. `wanted` is sorted and unique.
    ///
    /// Costs a pass over the index, and one read for objects that lie together; nothing
    /// proves that the content is in order. An object whose size cannot be told is left out.
    pub fn sizes(
        &self,
        op: &Operation,
        wanted: &[ObjectId],
        found: &mut dyn FnMut(usize, u64),
    ) -> Result<(), StoreError> {
        let mut entries = Vec::new();
        self.index
            .each_offset(op, wanted, &mut |at, offset| entries.push((offset, at)))?;
        if entries.is_empty() {
            return Ok(());
        }
        // As they lie in the file.
        entries.sort_unstable();
        let file = self.file()?;
        let sizes_of = |entries: &[(u64, usize)]| -> Vec<(usize, u64)> {
            let mut piece = vec![0; PIECE_BYTES as usize];
            let mut sizes = Vec::with_capacity(entries.len());
            let mut rest = entries;
            while let Some((start, _)) = rest.first() {
                let (near, after) = rest.split_at(near(rest));
                // Where the file ends early, the objects before that are told all the same.
                let bytes = file.piece(*start, near[near.len() - 1].0, &mut piece);
                let size_of = |(offset, at): &(u64, usize)| {
                    let skipped = usize::try_from(offset - start).expect("within the piece");
                    let size = file.size_in(*offset, bytes.get(skipped..)?);
                    size.ok().map(|size| (*at, size))
                };
                sizes.extend(near.iter().filter_map(size_of));
                rest = after;
            }
            sizes
        };
        // The size of a delta's object is in its compressed bytes, so this takes a processor's
        // time.
        let parts = in_parts(&entries, SIZES_PER_THREAD, sizes_of);
        for (at, size) in parts.into_iter().flatten() {
            found(at, size);
        }
        Ok(())
    }

    /// The object at `offset`, which may be a delta; at most `max_bytes` of it. Its id is not
    /// checked.
    pub fn object(
        &self,
        op: &Operation,
        offset: u64,
        max_bytes: u64,
        bases: &DeltaBases,
    ) -> Result<(ObjectKind, Vec<u8>), StoreError> {
        self.object_of(op, &self.file()?, offset, max_bytes, bases)
    }

    /// As [`Pack::object`], from this pack's file, for those who read many.
    pub fn object_of(
        &self,
        op: &Operation,
        file: &OpenPack<'_>,
        offset: u64,
        max_bytes: u64,
        bases: &DeltaBases,
    ) -> Result<(ObjectKind, Vec<u8>), StoreError> {
        let mut deltas = Vec::new();
        let mut at = offset;
        let (kind, mut bytes) = loop {
            if let Some(found) = bases.get(self.number, at) {
                break found;
            }
            let begun = file.begin(at)?;
            let limit = match deltas.is_empty() {
                true => max_bytes,
                false => MAX_DELTA_OBJECT_BYTES,
            };
            let base = match begun.header.kind {
                StoredAs::Whole(kind) => {
                    let bytes = Arc::new(file.inflate(op, at, begun, limit)?);
                    if !deltas.is_empty() {
                        bases.put(self.number, at, kind, &bytes);
                    }
                    break (kind, bytes);
                }
                StoredAs::Tag => return Err(file.corrupt(at, "it is a tag")),
                StoredAs::OffsetDelta { base } => base,
                StoredAs::IdDelta { base } => self.base_of(file, at, &base)?,
            };
            if deltas.len() == MAX_DELTA_CHAIN {
                return Err(file.corrupt(offset, "its deltas go round in a circle"));
            }
            deltas.push(at);
            at = base;
        };
        while let Some(at) = deltas.pop() {
            let delta = file.inflate(op, at, file.begin(at)?, MAX_DELTA_OBJECT_BYTES)?;
            let limit = match deltas.is_empty() {
                true => max_bytes.min(MAX_DELTA_OBJECT_BYTES),
                false => MAX_DELTA_OBJECT_BYTES,
            };
            let applied = Delta(&delta).apply(&bytes, limit);
            bytes = Arc::new(applied.map_err(|detail| file.corrupt(at, detail))?);
            bases.put(self.number, at, kind, &bytes);
        }
        if bytes.len() as u64 > max_bytes {
            return Err(file.corrupt(offset, "it is larger than it may be"));
        }
        Ok((kind, Arc::unwrap_or_clone(bytes)))
    }

    /// Writes the object at `offset` to `out`, which may be of any size; it must not be a delta.
    /// Its id is not checked. On `Err` some of it may have been written.
    pub fn whole_object_to(
        &self,
        op: &Operation,
        offset: u64,
        out: &mut dyn Write,
    ) -> Result<(), ContentError> {
        let file = self.file()?;
        let header = file.header(offset)?;
        if !matches!(header.kind, StoredAs::Whole(_)) {
            return Err(file.corrupt(offset, "it is no whole object").into());
        }
        let mut content = file.content(&header);
        copy_exactly(op, &mut content, header.size, out, |e| {
            file.unreadable(offset, e)
        })
    }

    /// Calls `take` with the raw bytes from `offset` on, `length` in all, piece by piece.
    pub(crate) fn for_each_chunk(
        &self,
        op: &Operation,
        offset: u64,
        length: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let file = self.file()?;
        let mut buffer = vec![0; usize::try_from(length.min(BUFFER_BYTES as u64)).expect("small")];
        let mut done = 0;
        while done < length {
            let count = usize::try_from(length - done)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let chunk = &mut buffer[..count];
            op.check()?;
            file.file
                .read_exact_at(chunk, offset + done)
                .map_err(|e| file.unreadable(offset, e))?;
            take(chunk)?;
            done += count as u64;
        }
        Ok(())
    }

    /// Makes sure, by reading a few bytes, that pack and index belong together and are whole.
    pub fn check(&self) -> Result<(), StoreError> {
        let file = self.file()?;
        self.index.check_pair(&file.file, &self.path)
    }

    /// Reads all of pack and index, and compares with their checksums and with each other.
    pub fn verify(&self, op: &Operation) -> Result<(), StoreError> {
        self.index.verify(op)?;
        let file = self.file()?;
        self.index.check_pair(&file.file, &self.path)?;
        let mut sha1 = Sha1::new();
        self.for_each_chunk(op, 0, file.end, |chunk| {
            sha1.update(chunk);
            Ok(())
        })?;
        if self.index.pack_checksum()? != <[u8; 20]>::from(sha1.finalize()) {
            return Err(StoreError::corrupt(
                printable(&self.path),
                "its checksum is wrong",
            ));
        }
        Ok(())
    }

    fn base_of(
        &self,
        file: &OpenPack<'_>,
        offset: u64,
        base: &ObjectId,
    ) -> Result<u64, StoreError> {
        self.index
            .find(base)?
            .ok_or_else(|| file.corrupt(offset, "it is a delta of something that is elsewhere"))
    }

    /// Opens the file with the objects.
    pub fn file(&self) -> Result<OpenPack<'_>, StoreError> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::new(open_regular(&self.path)?),
        };
        let length = file
            .metadata()
            .map_err(PathError::at("look at", &self.path))?
            .len();
        Ok(OpenPack {
            file,
            path: &self.path,
            end: length.saturating_sub(CHECKSUM_BYTES),
        })
    }
}

/// How many of `entries`, the first of them and those that follow, are read in one piece. They are
/// sorted by their offsets, and one at least.
fn near(entries: &[(u64, usize)]) -> usize {
    let fits = |offset: u64| offset - entries[0].0 <= PIECE_BYTES - TELLING_BYTES;
    let pairs = entries.windows(2);
    let follow = pairs.take_while(|two| two[1].0 - two[0].0 <= NEAR_BYTES && fits(two[1].0));
    1 + follow.count()
}

/// The file of a pack, open for reading. Threads may share it.
#[derive(Debug)]
pub struct OpenPack<'a> {
    file: Arc<File>,
    path: &'a Path,
    /// Where the checksum begins.
    end: u64,
}

/// An entry whose header was read, and with it the beginning of its content: all of it, as a rule.
struct Begun<'f> {
    header: EntryHeader,
    content: Ahead<'f>,
}

/// What follows a place of a file, the first of it read already.
struct Ahead<'f> {
    read: Box<[u8]>,
    at: usize,
    rest: Section<'f>,
}

impl Read for Ahead<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut from = self.fill_buf()?;
        let count = from.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Ahead<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.read.len() {
            // The first of a small object was little; there is no end to what a large one has.
            let mut buffer = std::mem::take(&mut self.read).into_vec();
            buffer.resize(BUFFER_BYTES.min(64 * 1024), 0);
            let count = self.rest.read(&mut buffer)?;
            buffer.truncate(count);
            (self.read, self.at) = (buffer.into_boxed_slice(), 0);
        }
        Ok(&self.read[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.read.len());
    }
}

impl OpenPack<'_> {
    fn header(&self, offset: u64) -> Result<EntryHeader, StoreError> {
        let mut bytes = [0; HEADER_BYTES];
        let room = self.end.saturating_sub(offset).min(bytes.len() as u64);
        let bytes = &mut bytes[..usize::try_from(room).expect("at most 32")];
        self.file
            .read_exact_at(bytes, offset)
            .map_err(|e| self.unreadable(offset, e))?;
        parse_header(bytes, offset)
            .ok_or_else(|| self.corrupt(offset, "what stands there is no object"))
    }

    /// The size of the object at `offset`, whose header this is. That of a delta's result stands at
    /// the beginning of the delta.
    fn size_of(&self, offset: u64, header: &EntryHeader) -> Result<u64, StoreError> {
        if let StoredAs::Whole(_) | StoredAs::Tag = header.kind {
            return Ok(header.size);
        }
        let mut head = Vec::with_capacity(20);
        self.content(header)
            .take(20)
            .read_to_end(&mut head)
            .map_err(|e| self.unreadable(offset, e))?;
        self.result_size(offset, &head)
    }

    /// What tells the sizes of the objects from that at `first` to that at `last`, as far as it can
    /// be read into `space`.
    fn piece<'s>(&self, first: u64, last: u64, space: &'s mut [u8]) -> &'s [u8] {
        let end = self.end.min(last.saturating_add(TELLING_BYTES));
        let room = usize::try_from(end.saturating_sub(first)).unwrap_or(usize::MAX);
        let space = &mut space[..room];
        let mut section = Section {
            file: &self.file,
            at: first,
            end,
        };
        let mut filled = 0;
        while filled < room {
            match section.read(&mut space[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        &space[..filled]
    }

    /// The size of the object at `offset`, of which `bytes` are the first.
    fn size_in(&self, offset: u64, bytes: &[u8]) -> Result<u64, StoreError> {
        let header = parse_header(&bytes[..bytes.len().min(HEADER_BYTES)], offset)
            .ok_or_else(|| self.corrupt(offset, "what stands there is no object"))?;
        if let StoredAs::Whole(_) | StoredAs::Tag = header.kind {
            return Ok(header.size);
        }
        let skipped = usize::try_from(header.content_at - offset).expect("a header is short");
        let mut head = [0; 20];
        match inflate::beginning(&bytes[skipped..], &mut head, has_two_numbers) {
            Some(head) => self.result_size(offset, head),
            None => self.size_of(offset, &header),
        }
    }

    /// The size that a delta says its result has.
    fn result_size(&self, offset: u64, head: &[u8]) -> Result<u64, StoreError> {
        let mut delta = Delta(head);
        let size = delta.size().and_then(|_| delta.size());
        size.ok_or_else(|| self.corrupt(offset, "its delta is malformed"))
    }

    /// The inflated bytes of an entry, as far as they go.
    fn content(&self, header: &EntryHeader) -> Inflate<BufReader<Section<'_>>> {
        let section = Section {
            file: &self.file,
            at: header.content_at,
            end: self.end,
        };
        // Small objects are many: one read of little more than they need.
        let capacity = header.size.saturating_add(64).clamp(512, 64 * 1024);
        let capacity = usize::try_from(capacity).expect("at most 64 KiB");
        Inflate::new(BufReader::with_capacity(capacity, section))
    }

    /// Reads the header of the entry at `offset`, and what follows it up to a few pages.
    fn begin(&self, offset: u64) -> Result<Begun<'_>, StoreError> {
        let room = self.end.saturating_sub(offset).min(AHEAD_BYTES);
        let mut bytes = vec![0; usize::try_from(room).expect("a few pages")];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|e| self.unreadable(offset, e))?;
        let header = parse_header(&bytes[..bytes.len().min(HEADER_BYTES)], offset)
            .ok_or_else(|| self.corrupt(offset, "what stands there is no object"))?;
        let content = Ahead {
            at: usize::try_from(header.content_at - offset).expect("a header is short"),
            read: bytes.into_boxed_slice(),
            rest: Section {
                file: &self.file,
                at: offset + room,
                end: self.end,
            },
        };
        Ok(Begun { header, content })
    }

    fn inflate(
        &self,
        op: &Operation,
        offset: u64,
        begun: Begun<'_>,
        max_bytes: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let size = begun.header.size;
        if size > max_bytes {
            return Err(self.corrupt(
                offset,
                format!("it claims {size} bytes, {max_bytes} are allowed"),
            ));
        }
        let mut content = Inflate::new(begun.content);
        if size <= MAX_TRUSTED_BYTES {
            return content
                .read_whole(trusted(size))
                .map_err(|e| self.unreadable(offset, e));
        }
        let mut bytes = Vec::with_capacity(trusted(size));
        copy_exactly(op, &mut content, size, &mut bytes, |e| {
            self.unreadable(offset, e)
        })
        .map_err(|error| match error {
            ContentError::Store(error) => error,
            ContentError::Sink(e) => self.unreadable(offset, e),
        })?;
        Ok(bytes)
    }

    fn corrupt(&self, offset: u64, detail: impl std::fmt::Display) -> StoreError {
        StoreError::corrupt(
            format!("the object at {offset} of {}", printable(self.path)),
            detail.to_string(),
        )
    }

    /// Tells what the disk refused from what it gave wrong.
    fn unreadable(&self, offset: u64, error: io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
                self.corrupt(offset, error)
            }
            _ => PathError::at("read", self.path)(error).into(),
        }
    }
}

/// A number of bytes for which memory is taken before they have been seen.
fn trusted(size: u64) -> usize {
    usize::try_from(size.min(MAX_TRUSTED_BYTES)).expect("a small number")
}

/// Passes on `size` bytes of `content`, which must have no more and no fewer. `unreadable` makes
/// the error of a failed read.
pub(crate) fn copy_exactly(
    op: &Operation,
    content: &mut dyn Read,
    size: u64,
    out: &mut dyn Write,
    unreadable: impl Fn(io::Error) -> StoreError,
) -> Result<(), ContentError> {
    let mut buffer = [0; 16 * 1024];
    let mut seen = 0;
    loop {
        op.check().map_err(StoreError::from)?;
        // What follows the last byte is asked for too: only its absence proves the checksum.
        let count = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(unreadable(e).into()),
        };
        seen += count as u64;
        if seen > size {
            break;
        }
        out.write_all(&buffer[..count])
            .map_err(ContentError::Sink)?;
    }
    if seen != size {
        let detail = format!("it claims {size} bytes and has others");
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, detail)).into());
    }
    Ok(())
}

/// A part of a file, read from its beginning to its end.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let room = room.min(buffer.len());
        let count = self.file.read_at(&mut buffer[..room], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn parse_header(bytes: &[u8], offset: u64) -> Option<EntryHeader> {
    let mut bytes_left = bytes.iter();
    let mut byte = *bytes_left.next()?;
    let kind = byte >> 4 & 7;
    let mut size = u64::from(byte & 0x0f);
    let mut shift = 4_u32;
    while byte & 0x80 != 0 {
        byte = *bytes_left.next()?;
        let part = u64::from(byte & 0x7f);
        if shift > 63 || part.leading_zeros() < shift {
            return None;
        }
        size |= part << shift;
        shift += 7;
    }
    let kind = match kind {
        1 => StoredAs::Whole(ObjectKind::Commit),
        2 => StoredAs::Whole(ObjectKind::Tree),
        3 => StoredAs::Whole(ObjectKind::Blob),
        4 => StoredAs::Tag,
        6 => {
            // Big-endian, and each further byte counts from one: no number has two spellings.
            let mut byte = *bytes_left.next()?;
            let mut distance = u64::from(byte & 0x7f);
            while byte & 0x80 != 0 {
                byte = *bytes_left.next()?;
                distance = (distance + 1).checked_mul(128)? | u64::from(byte & 0x7f);
            }
            let base = offset.checked_sub(distance).filter(|_| distance > 0)?;
            StoredAs::OffsetDelta { base }
        }
        7 => {
            let id = bytes_left.as_slice().get(..20)?;
            bytes_left = bytes_left.as_slice()[20..].iter();
            let base = ObjectId(id.try_into().expect("twenty bytes"));
            StoredAs::IdDelta { base }
        }
        _ => return None,
    };
    let content_at = offset + (bytes.len() - bytes_left.len()) as u64;
    Some(EntryHeader {
        kind,
        size,
        content_at,
    })
}

/// Whether these bytes have the two sizes that a delta begins with: the last byte of each number is
/// the one without the high bit.
fn has_two_numbers(delta: &[u8]) -> bool {
    delta.iter().filter(|byte| **byte < 0x80).count() == 2
}

/// What is left to read of a delta (`gitformat-pack`, "Deltified representation").
struct Delta<'a>(&'a [u8]);

impl Delta<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn size(&mut self) -> Option<u64> {
        let mut size = 0_u64;
        let mut shift = 0_u32;
        loop {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift > 63 || part.leading_zeros() < shift {
                return None;
            }
            size |= part << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(size);
            }
        }
    }

    /// A number of which only the bytes whose bits are set in `present` are there.
    fn number(&mut self, present: u8, bytes: u32) -> Option<u32> {
        let mut number = 0;
        for at in 0..bytes {
            if present >> at & 1 != 0 {
                number |= u32::from(self.byte()?) << (8 * at);
            }
        }
        Some(number)
    }

    fn apply(mut self, base: &[u8], max_bytes: u64) -> Result<Vec<u8>, String> {
        const MALFORMED: &str = "its delta is malformed";
        let base_size = self.size().ok_or(MALFORMED)?;
        let size = self.size().ok_or(MALFORMED)?;
        if base_size != base.len() as u64 {
            return Err("its delta is one of something else".to_owned());
        }
        if size > max_bytes {
            return Err(format!(
                "its delta claims {size} bytes, {max_bytes} are allowed"
            ));
        }
        let mut result = Vec::with_capacity(trusted(size));
        while let Some(command) = self.byte() {
            let piece = if command & 0x80 != 0 {
                let from = self.number(command, 4).ok_or(MALFORMED)? as usize;
                let length = match self.number(command >> 4, 3).ok_or(MALFORMED)? {
                    0 => 0x10000,
                    length => length as usize,
                };
                from.checked_add(length)
                    .and_then(|end| base.get(from..end))
                    .ok_or(MALFORMED)?
            } else {
                let length = usize::from(command);
                if length == 0 || length > self.0.len() {
                    return Err(MALFORMED.to_owned());
                }
                let (piece, rest) = self.0.split_at(length);
                self.0 = rest;
                piece
            };
            if (result.len() + piece.len()) as u64 > size {
                return Err(MALFORMED.to_owned());
            }
            result.extend_from_slice(piece);
        }
        if result.len() as u64 != size {
            return Err(MALFORMED.to_owned());
        }
        Ok(result)
    }
}

/// Objects that deltas were built on lately. Bounded; the oldest go first.
#[derive(Debug, Default)]
pub struct DeltaBases {
    cached: Mutex<Cached>,
}

type Content = (ObjectKind, Arc<Vec<u8>>);

#[derive(Debug, Default)]
struct Cached {
    /// By number of the pack and offset.
    objects: HashMap<(u64, u64), Content>,
    order: VecDeque<(u64, u64)>,
    bytes: usize,
}

impl DeltaBases {
    /// Forgets all of them.
    pub fn clear(&self) {
        *self.cached.lock().expect("no panic while it is held") = Cached::default();
    }

    fn get(&self, pack: u64, offset: u64) -> Option<Content> {
        let cached = self.cached.lock().expect("no panic while it is held");
        cached.objects.get(&(pack, offset)).cloned()
    }

    fn put(&self, pack: u64, offset: u64, kind: ObjectKind, bytes: &Arc<Vec<u8>>) {
        if bytes.len() > MAX_CACHED_OBJECT_BYTES {
            return;
        }
        let mut cached = self.cached.lock().expect("no panic while it is held");
        let key = (pack, offset);
        if cached
            .objects
            .insert(key, (kind, Arc::clone(bytes)))
            .is_some()
        {
            return;
        }
        cached.order.push_back(key);
        cached.bytes += bytes.len();
        while cached.bytes > MAX_CACHED_BYTES {
            let Some(oldest) = cached.order.pop_front() else {
                return;
            };
            if let Some((_, bytes)) = cached.objects.remove(&oldest) {
                cached.bytes -= bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::pack::{PackWriter, deflated_entry, entry_header};
    use crate::test_repository::TestRepository;

    const LIMIT: u64 = 1 << 24;

    fn pack_in(directory: &Path) -> Pack {
        let index = fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|p| p.extension().is_some_and(|e| e == "idx"));
        Pack::open(&index.unwrap()).unwrap()
    }

    /// A repository whose one pack has deltas of files and of directories.
    fn with_deltas() -> (TestRepository, Pack) {
        let repository = TestRepository::new();
        let mut text = String::new();
        for commit in 0..20 {
            for line in 0..40 {
                text.push_str(&format!("line {line} of commit {commit}\n"));
            }
            repository.write("long", &text);
            for n in 0..40 {
                repository.write(format!("d/file-{n}"), format!("{n} {}\n", commit * n / 30));
            }
            repository.commit("more");
        }
        repository.git(&["tag", "-a", "-m", "a tag", "tagged"]);
        repository.git(&["repack", "-adfq", "--depth=40"]);
        let pack = pack_in(&repository.path.join(".git/objects/pack"));
        (repository, pack)
    }

    #[test]
    fn every_object_of_a_pack_of_gits_has_its_bytes() {
        let (_repository, pack) = with_deltas();
        let bases = DeltaBases::default();
        let (mut deltas, mut tags) = (0, 0);
        for (id, offset, _) in pack.index.entries(&Operation::unbounded()).unwrap() {
            let (kind, _) = pack.entry_at(offset).unwrap();
            match kind {
                StoredAs::Tag => {
                    tags += 1;
                    assert!(
                        pack.object(&Operation::unbounded(), offset, LIMIT, &bases)
                            .is_err()
                    );
                    continue;
                }
                StoredAs::OffsetDelta { .. } | StoredAs::IdDelta { .. } => deltas += 1,
                StoredAs::Whole(_) => {
                    let mut out = Vec::new();
                    pack.whole_object_to(&Operation::unbounded(), offset, &mut out)
                        .unwrap();
                    let (kind, _) = pack
                        .object(&Operation::unbounded(), offset, LIMIT, &bases)
                        .unwrap();
                    assert_eq!(ObjectId::of(kind, &out).unwrap(), id);
                }
            }
            let (kind, bytes) = pack
                .object(&Operation::unbounded(), offset, LIMIT, &bases)
                .unwrap();
            assert_eq!(ObjectId::of(kind, &bytes).unwrap(), id);
            let size = bytes.len() as u64;
            assert_eq!(pack.object_size(offset).unwrap(), (kind, size));
            assert!(
                pack.object(&Operation::unbounded(), offset, size - 1, &bases)
                    .is_err(),
                "the limit"
            );
            let nothing_cached = DeltaBases::default();
            assert!(
                pack.object(&Operation::unbounded(), offset, size - 1, &nothing_cached)
                    .is_err()
            );
        }
        assert!(deltas > 10, "{deltas} deltas");
        assert_eq!(tags, 1);
        pack.verify(&Operation::unbounded()).unwrap();
    }

    #[test]
    fn the_sizes_of_many_objects_are_those_that_each_has() {
        let (_repository, pack) = with_deltas();
        let bases = DeltaBases::default();
        let mut wanted = vec![ObjectId([0; 20]), ObjectId([0xff; 20])];
        let mut expected = Vec::new();
        for (id, offset, _) in pack.index.entries(&Operation::unbounded()).unwrap() {
            if let Ok((_, bytes)) = pack.object(&Operation::unbounded(), offset, LIMIT, &bases) {
                wanted.push(id);
                expected.push((id, bytes.len() as u64));
            }
        }
        wanted.sort_unstable();
        let mut sizes = Vec::new();
        pack.sizes(&Operation::unbounded(), &wanted, &mut |at, size| {
            sizes.push((wanted[at], size))
        })
        .unwrap();
        sizes.sort_unstable();
        assert_eq!(sizes, expected);
        // Few are looked up in another way than many.
        for (id, size) in expected.into_iter().step_by(7) {
            let mut found = Vec::new();
            pack.sizes(&Operation::unbounded(), &[id], &mut |at, size| {
                found.push((at, size))
            })
            .unwrap();
            assert_eq!(found, [(0, size)]);
        }
    }

    #[test]
    fn sizes_are_those_that_git_tells_however_far_apart_the_objects_lie() {
        let repository = TestRepository::new();
        let mut state = 1_u32;
        // Bytes that no deflating makes fewer.
        let mut noise = |length: usize| -> Vec<u8> {
            let next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            std::iter::repeat_with(next).take(length).collect()
        };
        for (n, length) in [3, 100, 6_000, 6_200, 64_000, 66_000, 300_000, 7, 5_000]
            .into_iter()
            .cycle()
            .take(45)
            .enumerate()
        {
            repository.write(format!("noise-{n}"), noise(length));
        }
        repository.commit("far and near");
        repository.git(&["repack", "-adfq"]);
        let pack = pack_in(&repository.path.join(".git/objects/pack"));
        let told = repository.git(&[
            "cat-file",
            "--batch-all-objects",
            "--batch-check=%(objectname) %(objectsize)",
        ]);
        let told: Vec<(ObjectId, u64)> = told
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(id, size)| (id.parse().unwrap(), size.parse().unwrap()))
            .collect();
        assert!(told.len() > 45);
        for step in [1, 2, 5] {
            let some: Vec<_> = told.iter().copied().step_by(step).collect();
            let ids: Vec<ObjectId> = some.iter().map(|(id, _)| *id).collect();
            let mut sizes = Vec::new();
            pack.sizes(&Operation::unbounded(), &ids, &mut |at, size| {
                sizes.push((ids[at], size))
            })
            .unwrap();
            sizes.sort_unstable();
            assert_eq!(sizes, some);
        }
    }

    #[test]
    fn what_is_read_in_one_piece_lies_near_and_fits() {
        let near = |offsets: &[u64]| {
            let entries: Vec<_> = offsets.iter().map(|offset| (*offset, 0)).collect();
            super::near(&entries)
        };
        let step = NEAR_BYTES;
        assert_eq!(near(&[12]), 1);
        assert_eq!(near(&[12, 12 + step, 13 + 2 * step, 14 + 2 * step]), 2);
        assert_eq!(near(&[12, 12, 13]), 3, "an index may say anything");
        let row: Vec<u64> = (0..100).map(|n| 12 + n * step).collect();
        let count = near(&row);
        let length = |count: usize| row[count - 1] - row[0] + TELLING_BYTES;
        assert!(length(count) <= PIECE_BYTES && PIECE_BYTES < length(count + 1));
    }

    #[test]
    fn sizes_in_a_pack_that_is_cut_short_or_damaged_are_left_out_or_told() {
        let (repository, pack) = with_deltas();
        let ids: Vec<_> = pack.index.entries(&Operation::unbounded()).unwrap();
        let ids: Vec<_> = ids.into_iter().map(|(id, ..)| id).collect();
        let mut whole = Vec::new();
        pack.sizes(&Operation::unbounded(), &ids, &mut |at, size| {
            whole.push((at, size))
        })
        .unwrap();
        let bytes = fs::read(pack.path()).unwrap();
        let forged = repository.beside("forged");
        fs::create_dir(&forged).unwrap();
        let path = forged.join("pack-forged.pack");
        fs::copy(pack.index.path(), path.with_extension("idx")).unwrap();
        for length in (0..bytes.len()).step_by(bytes.len() / 40) {
            fs::write(&path, &bytes[..length]).unwrap();
            let mut some = Vec::new();
            let pack = pack_in(&forged);
            pack.sizes(&Operation::unbounded(), &ids, &mut |at, size| {
                some.push((at, size))
            })
            .unwrap();
            assert!(some.iter().all(|found| whole.contains(found)), "{length}");
            assert!(some.len() < whole.len() || length > bytes.len() / 2);
        }
        for flipped in [0xff, 0x80, 0x60] {
            let damaged: Vec<u8> = bytes.iter().map(|b| b ^ flipped).collect();
            fs::write(&path, damaged).unwrap();
            pack_in(&forged)
                .sizes(&Operation::unbounded(), &ids, &mut |_, _| {})
                .unwrap();
        }
    }

    #[test]
    fn deltas_by_id_are_read_too() {
        let repository = TestRepository::new();
        let directory = repository.path.join(".git/objects/pack");
        let base = b"the base of it all".to_vec();
        let base_id = ObjectId::of(ObjectKind::Blob, &base).unwrap();
        // Copies "the base", then adds "ment".
        let delta = [&[18, 12, 0x90, 8, 4][..], b"ment"].concat();
        let whole = deflated_entry(&Operation::unbounded(), ObjectKind::Blob, &base).unwrap();
        let mut bytes = b"PACK\0\0\0\x02\0\0\0\x02".to_vec();
        bytes.extend(&whole);
        let mut header = entry_header(ObjectKind::Blob, delta.len() as u64);
        header[0] = header[0] & 0x8f | 7 << 4;
        bytes.extend(header);
        bytes.extend(base_id.0);
        let compressed = deflated_entry(&Operation::unbounded(), ObjectKind::Blob, &delta).unwrap();
        bytes.extend(&compressed[1..]);
        bytes.extend(Sha1::digest(&bytes).to_vec());
        let path = directory.join("pack-by-id.pack");
        fs::write(&path, bytes).unwrap();
        // git reads it, so it is a pack.
        repository.git(&["index-pack", path.to_str().unwrap()]);

        let pack = pack_in(&directory);
        let bases = DeltaBases::default();
        let id = ObjectId::of(ObjectKind::Blob, b"the basement").unwrap();
        let offset = pack.index.find(&id).unwrap().unwrap();
        assert_eq!(
            pack.entry_at(offset).unwrap().0,
            StoredAs::IdDelta { base: base_id }
        );
        let object = pack
            .object(&Operation::unbounded(), offset, LIMIT, &bases)
            .unwrap();
        assert_eq!(object, (ObjectKind::Blob, b"the basement".to_vec()));
        assert_eq!(pack.object_size(offset).unwrap(), (ObjectKind::Blob, 12));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_by_verify() {
        let directory = tempfile::tempdir().unwrap();
        let writer = PackWriter::create(&Operation::unbounded(), directory.path()).unwrap();
        for content in [&b"one"[..], b"two", b"three"] {
            let id = ObjectId::of(ObjectKind::Blob, content).unwrap();
            writer.add(ObjectKind::Blob, id, content).unwrap();
        }
        let path = writer.finish().unwrap().unwrap().path;
        for path in [&path, &path.with_extension("idx")] {
            let original = fs::read(path).unwrap();
            let damaged = directory.path().join("damaged");
            for at in 0..original.len() {
                let mut bytes = original.clone();
                bytes[at] ^= 1 << (at % 8);
                fs::write(&damaged, bytes).unwrap();
                fs::rename(&damaged, path).unwrap();
                let index = path.with_extension("idx");
                let result =
                    Pack::open(&index).and_then(|pack| pack.verify(&Operation::unbounded()));
                assert!(
                    matches!(result, Err(StoreError::Corrupt { .. })),
                    "byte {at} of {}: {result:?}",
                    path.display()
                );
            }
            fs::write(&damaged, &original).unwrap();
            fs::rename(&damaged, path).unwrap();
        }
        pack_in(directory.path())
            .verify(&Operation::unbounded())
            .unwrap();
    }

    #[test]
    fn a_pack_that_was_cut_short_is_corrupt_wherever_it_ends() {
        let (_repository, pack) = with_deltas();
        let original = fs::read(pack.path()).unwrap();
        let entries = pack.index.entries(&Operation::unbounded()).unwrap();
        let (_, last, _) = *entries.iter().max_by_key(|e| e.1).unwrap();
        fs::remove_file(pack.path()).unwrap();
        for length in [
            0,
            5,
            12,
            last as usize - 1,
            last as usize + 1,
            last as usize + 9,
        ] {
            fs::write(pack.path(), &original[..length]).unwrap();
            let result = pack.object(&Operation::unbounded(), last, LIMIT, &DeltaBases::default());
            assert!(
                matches!(result, Err(StoreError::Corrupt { .. })),
                "{length}: {result:?}"
            );
        }
    }

    #[test]
    fn deltas_that_go_round_in_a_circle_end() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (ObjectId([1; 20]), ObjectId([2; 20]));
        let delta =
            deflated_entry(&Operation::unbounded(), ObjectKind::Blob, &[1, 1, 0x90, 1]).unwrap();
        let entry = |base: ObjectId| [&[0x74][..], &base.0, &delta[1..]].concat();
        let mut bytes = b"PACK\0\0\0\x02\0\0\0\x02".to_vec();
        let offsets = [12, 12 + entry(two).len() as u64];
        bytes.extend(entry(two));
        bytes.extend(entry(one));
        bytes.extend([0; 20]);
        let path = directory.path().join("pack-circle.pack");
        fs::write(&path, &bytes).unwrap();
        let packed =
            [(one, offsets[0]), (two, offsets[1])].map(|(id, offset)| super::super::Packed {
                id,
                offset,
                crc32: 0,
            });
        let mut index = Vec::new();
        super::super::index::write(&mut index, &packed, &[0; 20]).unwrap();
        fs::write(path.with_extension("idx"), index).unwrap();
        let pack = pack_in(directory.path());
        for offset in offsets {
            let object = pack.object(
                &Operation::unbounded(),
                offset,
                LIMIT,
                &DeltaBases::default(),
            );
            assert!(matches!(object, Err(StoreError::Corrupt { .. })));
            let size = pack.object_size(offset);
            assert!(matches!(size, Err(StoreError::Corrupt { .. })));
        }
    }

    #[test]
    fn a_delta_that_claims_the_world_takes_no_memory() {
        // Sizes of 2^60 and then a copy.
        let claim = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
        let delta = [&[4][..], &claim, &[0x90, 4]].concat();
        assert!(Delta(&delta).apply(b"base", u64::MAX).is_err());
        assert!(Delta(&delta).apply(b"base", 1 << 20).is_err());
        // Ten bytes and more of a size do not fit into 64 bits.
        assert_eq!(Delta(&[0xff; 12]).size(), None);
        assert_eq!(parse_header(&[0xff; 32], 12), None);
    }

    #[test]
    fn content_that_inflates_to_more_than_it_says_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let bomb = deflated_entry(
            &Operation::unbounded(),
            ObjectKind::Blob,
            &vec![0; 50_000_000],
        )
        .unwrap();
        let header = entry_header(ObjectKind::Blob, 50_000_000).len();
        let small = [&entry_header(ObjectKind::Blob, 100)[..], &bomb[header..]].concat();
        let mut bytes = b"PACK\0\0\0\x02\0\0\0\x01".to_vec();
        bytes.extend(small);
        bytes.extend([0; 20]);
        let path = directory.path().join("pack-bomb.pack");
        fs::write(&path, bytes).unwrap();
        let packed = super::super::Packed {
            id: ObjectId([1; 20]),
            offset: 12,
            crc32: 0,
        };
        let mut index = Vec::new();
        super::super::index::write(&mut index, &[packed], &[0; 20]).unwrap();
        fs::write(path.with_extension("idx"), index).unwrap();
        let pack = pack_in(directory.path());
        let mut out = Vec::new();
        let result = pack.whole_object_to(&Operation::unbounded(), 12, &mut out);
        assert!(matches!(
            result,
            Err(ContentError::Store(StoreError::Corrupt { .. }))
        ));
        assert!(out.len() <= 100, "{} bytes came through", out.len());
    }

    #[test]
    fn the_cache_of_bases_stays_small() {
        let bases = DeltaBases::default();
        let object = Arc::new(vec![0; 1 << 20]);
        for offset in 0..100 {
            bases.put(1, offset, ObjectKind::Blob, &object);
        }
        assert!(bases.cached.lock().unwrap().bytes <= MAX_CACHED_BYTES);
        assert!(bases.get(1, 0).is_none(), "the oldest went first");
        assert!(bases.get(1, 99).is_some());
        assert!(bases.get(2, 99).is_none(), "another pack");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_delta_or_an_error(
            delta in prop::collection::vec(any::<u8>(), 0..40),
            base in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let fits = [&[base.len() as u8, 30][..], &delta].concat();
            if let Ok(result) = Delta(&fits).apply(&base, 1000) {
                prop_assert_eq!(result.len(), 30);
            }
            let _ = Delta(&delta).apply(&base, 1000);
        }

        #[test]
        fn any_bytes_are_a_header_or_none(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
            if let Some(header) = parse_header(&bytes, 1000) {
                prop_assert!(header.content_at > 1000);
                prop_assert!(header.content_at <= 1000 + bytes.len() as u64);
            }
        }
    }
}
