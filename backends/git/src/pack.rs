//! Reading pack files, and writing our own: one for each snapshot.
//!
//! The formats are git's (`gitformat-pack`): packs and indexes of version 2, with SHA-1 ids. Files
//! are read by position and never mapped, so if somebody truncates a pack, reading fails with an
//! error and does not end the process.

mod index;
mod read;

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use sha1::{Digest as _, Sha1};

use super::deflate::Deflater;
use super::object_id::Collision;
use super::{ObjectHasher, ObjectId, ObjectKind};
use crate::durable::{self, StagedFile};
use crate::error::{PathError, printable};
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::parallel;
use crate::store_error::StoreError;

pub use index::PackIndex;
pub(crate) use read::copy_exactly;
pub use read::{DeltaBases, OpenPack, Pack, StoredAs, open_regular};

/// How the names of unfinished files begin. git ignores such files among its packs.
pub const TEMPORARY_PREFIX: &str = "tmp_";
/// As [`TEMPORARY_PREFIX`], of those that may lie among loose objects, where git takes every other
/// name for that of a damaged object.
pub const TEMPORARY_OBJECT_PREFIX: &str = "tmp_obj_";

/// How much is gathered before it is written, and how much is read back at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// A pack of this size goes to the disk while it is read back, so that its last sync has little to
/// do.
const LARGE_BYTES: u64 = 8 << 20;

/// Magic, version and the number of objects.
const HEADER_BYTES: u64 = 12;
/// The SHA-1 at the end of packs and indexes.
pub const CHECKSUM_BYTES: u64 = 20;

/// A pack in the making. Nobody sees it before [`PackWriter::finish`]; dropping it removes it.
///
/// Any number of threads may add objects: they compress side by side and append in turn. After an
/// error of its own file every further call fails.
#[derive(Debug)]
pub struct PackWriter {
    op: Operation,
    directory: PathBuf,
    unfinished: Mutex<Unfinished>,
}

/// What became of the content given to [`PackWriter::add_stream`].
#[derive(Debug)]
pub enum Streamed {
    /// All of it is in the pack, under this id.
    Stored(ObjectId),
    /// The reader had fewer or more bytes than it was said to have; nothing was kept.
    Unstable,
    /// The reader failed; nothing was kept.
    Unreadable(io::Error),
    /// It is one half of an attack on SHA-1; nothing was kept.
    Collision(Collision),
}

/// A pack under its final name: synced, read back and found right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedPack {
    /// The file with the objects; its index has the same name with `.idx`.
    pub path: PathBuf,
    /// How many objects it holds.
    pub objects: u64,
    /// The size of pack and index together.
    pub bytes: u64,
}

/// An entry of a pack, as the index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    id: ObjectId,
    /// Where it begins, in bytes from the beginning of the pack.
    offset: u64,
    /// Over its header and its compressed content.
    crc32: u32,
}

#[derive(Debug)]
struct Unfinished {
    file: StagedFile,
    /// Not yet written.
    pending: Vec<u8>,
    /// The length of the file; `pending` follows.
    written: u64,
    /// By offset.
    entries: Vec<Packed>,
    ids: HashSet<ObjectId>,
    /// The file is in an unknown state: a write failed half-way, with this error of the system's
    /// if it was one.
    broken: Option<Option<i32>>,
}

impl PackWriter {
    /// Begins a pack in `directory`, where its temporary file lies until it is finished.
    pub fn create(op: &Operation, directory: &Path) -> Result<Self, PathError> {
        let file = temporary(op, directory, "pack_")?;
        let mut unfinished = Unfinished {
            file,
            pending: Vec::with_capacity(BUFFER_BYTES),
            written: 0,
            entries: Vec::new(),
            ids: HashSet::new(),
            broken: None,
        };
        // The count is filled in at the end.
        unfinished.append(b"PACK\0\0\0\x02\0\0\0\0")?;
        Ok(Self {
            op: op.clone(),
            directory: directory.to_owned(),
            unfinished: Mutex::new(unfinished),
        })
    }

    /// Adds an object, unless the pack has it already. `id` must be the id of `bytes`.
    pub fn add(&self, kind: ObjectKind, id: ObjectId, bytes: &[u8]) -> Result<(), PathError> {
        if self.lock().ids.contains(&id) {
            return Ok(());
        }
        let entry = deflated_entry(&self.op, kind, bytes)
            .map_err(PathError::at("compress an object for", &self.directory))?;
        let crc32 = crc32fast::hash(&entry);
        let mut unfinished = self.lock();
        if unfinished.ids.contains(&id) {
            return Ok(());
        }
        let offset = unfinished.position();
        unfinished.append(&entry)?;
        unfinished.record(Packed { id, offset, crc32 })
    }

    /// Adds the blob that `content` yields, which should have `size` bytes, without ever holding
    /// much of it. Other threads wait meanwhile: for content that is too large to hold.
    pub fn add_stream(&self, size: u64, content: &mut dyn Read) -> Result<Streamed, PathError> {
        let mut unfinished = self.lock();
        unfinished.flush()?;
        let offset = unfinished.position();
        let streamed = match unfinished.deflate_from(size, content) {
            Ok((id, _)) if unfinished.ids.contains(&id) => {
                unfinished.truncate(offset)?;
                Streamed::Stored(id)
            }
            Ok((id, crc32)) => {
                unfinished.record(Packed { id, offset, crc32 })?;
                Streamed::Stored(id)
            }
            Err(StreamError::Pack(error)) => return Err(error),
            Err(StreamError::Content(streamed)) => {
                unfinished.truncate(offset)?;
                streamed
            }
        };
        Ok(streamed)
    }

    /// Copies the entry of `id` that begins at `offset` of `pack` and is `length` bytes long, as it
    /// is. It must not be a delta. `Corrupt` if its CRC-32 is not `crc32`; nothing is kept then.
    pub fn add_entry_of(
        &self,
        pack: &Pack,
        id: ObjectId,
        (offset, length): (u64, u64),
        crc32: u32,
    ) -> Result<(), StoreError> {
        let mut unfinished = self.lock();
        if unfinished.ids.contains(&id) {
            return Ok(());
        }
        let at = unfinished.position();
        let mut hasher = crc32fast::Hasher::new();
        let copied = pack.for_each_chunk(&self.op, offset, length, |chunk| {
            hasher.update(chunk);
            unfinished.append(chunk).map_err(StoreError::from)
        });
        let found = hasher.finalize();
        let copied = match copied {
            Ok(()) if found != crc32 => Err(StoreError::corrupt(
                id.to_string(),
                format!("its bytes in {} changed", printable(pack.path())),
            )),
            other => other,
        };
        if let Err(error) = copied {
            unfinished.flush()?;
            unfinished.truncate(at)?;
            return Err(error);
        }
        let entry = Packed {
            id,
            offset: at,
            crc32,
        };
        Ok(unfinished.record(entry)?)
    }

    /// Gives the pack its name, durably: if the name exists after a crash, the whole pack does.
    ///
    /// The file is read back once and compared with what was written: `Corrupt` if it differs.
    /// `None` if nothing was added.
    pub fn finish(self) -> Result<Option<FinishedPack>, StoreError> {
        self.finish_with(&[])
    }

    /// The same; `others` are synced at the same time, also if nothing was added.
    pub fn finish_with(self, others: &[&StagedFile]) -> Result<Option<FinishedPack>, StoreError> {
        let unfinished = self
            .unfinished
            .into_inner()
            .expect("no thread panics while it appends");
        unfinished.finish(&self.op, &self.directory, others)
    }

    fn lock(&self) -> MutexGuard<'_, Unfinished> {
        self.unfinished
            .lock()
            .expect("no thread panics while it appends")
    }
}

enum StreamError {
    /// The pack could not be written.
    Pack(PathError),
    /// The content is not what it was said to be.
    Content(Streamed),
}

impl From<PathError> for StreamError {
    fn from(error: PathError) -> Self {
        Self::Pack(error)
    }
}

impl Unfinished {
    fn position(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), PathError> {
        if self.broken.is_some() || self.pending.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() > BUFFER_BYTES {
            return self.write(bytes);
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PathError> {
        let pending = std::mem::take(&mut self.pending);
        self.write(&pending)?;
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }

    /// Writes behind what was written; `pending` must be empty.
    fn write(&mut self, bytes: &[u8]) -> Result<(), PathError> {
        if let Some(errno) = self.broken {
            // Of two threads whose writes fail either may be the one that tells.
            let earlier = || io::Error::other("an earlier write failed");
            let source = errno.map_or_else(earlier, io::Error::from_raw_os_error);
            return Err(PathError::at("write", self.file.path())(source));
        }
        let result = self.file.write_at(bytes, self.written);
        self.note_broken(&result);
        result?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what lies behind `position`; `pending` must be empty.
    fn truncate(&mut self, position: u64) -> Result<(), PathError> {
        let result = self.file.truncate(position);
        self.note_broken(&result);
        result?;
        self.written = position;
        Ok(())
    }

    fn note_broken(&mut self, result: &Result<(), PathError>) {
        if let Err(error) = result
            && self.broken.is_none()
        {
            self.broken = Some(error.source.raw_os_error());
        }
    }

    fn record(&mut self, entry: Packed) -> Result<(), PathError> {
        if u32::try_from(self.entries.len() + 1).is_err() {
            self.broken = Some(None);
            let source = io::Error::other("a pack holds no more than 4 294 967 295 objects");
            return Err(PathError::at("extend", self.file.path())(source));
        }
        self.ids.insert(entry.id);
        self.entries.push(entry);
        Ok(())
    }

    /// Appends a blob of `size` bytes; answers with its id and the CRC-32 of the entry. On `Err`
    /// some of it may have been appended.
    fn deflate_from(
        &mut self,
        size: u64,
        content: &mut dyn Read,
    ) -> Result<(ObjectId, u32), StreamError> {
        let header = entry_header(ObjectKind::Blob, size);
        self.write(&header)?;
        let mut crc32 = crc32fast::Hasher::new();
        crc32.update(&header);
        let mut hasher = ObjectHasher::new(ObjectKind::Blob, size);
        // Deflated bytes pass through a buffer of their own, so that each write is large.
        let mut deflated = Vec::with_capacity(BUFFER_BYTES);
        let mut deflater = Deflater::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut seen = 0_u64;
        loop {
            let count = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(StreamError::Content(Streamed::Unreadable(e))),
            };
            seen += count as u64;
            if seen > size {
                return Err(StreamError::Content(Streamed::Unstable));
            }
            hasher.update(&buffer[..count]);
            deflater.add(&buffer[..count], &mut deflated);
            if deflated.len() >= BUFFER_BYTES / 2 {
                crc32.update(&deflated);
                self.write(&deflated)?;
                deflated.clear();
            }
        }
        if seen != size {
            return Err(StreamError::Content(Streamed::Unstable));
        }
        deflater.end(&mut deflated);
        crc32.update(&deflated);
        self.write(&deflated)?;
        let id = hasher
            .finish()
            .map_err(|collision| StreamError::Content(Streamed::Collision(collision)))?;
        Ok((id, crc32.finalize()))
    }

    fn finish(
        mut self,
        op: &Operation,
        directory: &Path,
        others: &[&StagedFile],
    ) -> Result<Option<FinishedPack>, StoreError> {
        if self.entries.is_empty() && self.broken.is_none() {
            durable::sync_together(others)?;
            return Ok(None);
        }
        self.flush()?;
        let end = self.written;
        let count = u32::try_from(self.entries.len()).expect("`record` counts");
        self.file.write_at(&count.to_be_bytes(), HEADER_BYTES - 4)?;
        let read_back = || read_back(op, &self.file, &self.entries, end);
        let checksum = match end >= LARGE_BYTES {
            true => {
                let (synced, checksum) = parallel::both(|| self.file.sync(), read_back);
                synced?;
                checksum?
            }
            false => read_back()?,
        };
        self.file.write_at(&checksum, end)?;
        let objects = self.entries.len() as u64;
        let index = write_index_file(op, directory, &mut self.entries, &checksum)?;
        let parts = [&self.file, &index];
        for file in parts {
            file.make_read_only()?;
        }
        if !seeded_bug!("pack-not-synced") {
            durable::sync_together(&[&parts, others].concat())?;
        }
        let bytes = parts.iter().try_fold(0, |sum, file| {
            file.as_file()
                .metadata()
                .map(|m| sum + m.len())
                .map_err(PathError::at("look at", file.path()))
        })?;
        let name = format!("pack-{}", ObjectId(checksum));
        let path = directory.join(format!("{name}.pack"));
        // The index last: it is what makes the pack visible.
        self.file.rename(&path)?;
        index.rename(&directory.join(format!("{name}.idx")))?;
        if !seeded_bug!("pack-directory-not-synced") {
            durable::sync_directory(op, directory)?;
        }
        Ok(Some(FinishedPack {
            path,
            objects,
            bytes,
        }))
    }
}

/// A temporary file in `directory`, readable by the owner alone.
fn temporary(op: &Operation, directory: &Path, kind: &str) -> Result<StagedFile, PathError> {
    StagedFile::create(op, directory, &format!("{TEMPORARY_PREFIX}{kind}"))
}

/// The SHA-1 of the first `end` bytes of a pack, after making sure that each entry still is what
/// was written. `entries` are in the order of the file.
fn read_back(
    op: &Operation,
    staged: &StagedFile,
    entries: &[Packed],
    end: u64,
) -> Result<[u8; 20], StoreError> {
    let (file, path) = (staged.as_file(), staged.path());
    let mut sha1 = Sha1::new();
    let ends = entries.iter().skip(1).map(|e| e.offset).chain([end]);
    let mut rest = entries.iter().zip(ends).peekable();
    let mut crc32 = crc32fast::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    while at < end {
        let count = usize::try_from(end - at).unwrap_or(usize::MAX);
        let chunk = &mut buffer[..count.min(BUFFER_BYTES)];
        op.check()?;
        file.read_exact_at(chunk, at)
            .map_err(PathError::at("read back", path))?;
        sha1.update(&*chunk);
        let chunk_end = at + chunk.len() as u64;
        let of_chunk = |from: u64, to: u64| {
            let place = |at_file: u64| (at_file.clamp(at, chunk_end) - at) as usize;
            &chunk[place(from)..place(to)]
        };
        while let Some((entry, entry_end)) = rest.next_if(|(_, end)| *end <= chunk_end) {
            crc32.update(of_chunk(entry.offset, entry_end));
            if std::mem::take(&mut crc32).finalize() != entry.crc32 {
                return Err(StoreError::corrupt(
                    entry.id.to_string(),
                    format!("{} reads back other bytes than written", printable(path)),
                ));
            }
        }
        if let Some((entry, entry_end)) = rest.peek() {
            crc32.update(of_chunk(entry.offset, *entry_end));
        }
        at = chunk_end;
    }
    Ok(sha1.finalize().into())
}

fn write_index_file(
    op: &Operation,
    directory: &Path,
    entries: &mut [Packed],
    pack_checksum: &[u8; 20],
) -> Result<StagedFile, PathError> {
    let mut file = temporary(op, directory, "idx_")?;
    entries.sort_unstable_by_key(|e| e.id);
    let failed = PathError::at("write", file.path().to_owned());
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, &mut file);
    index::write(&mut out, entries, pack_checksum)
        .and_then(|()| out.flush())
        .map_err(failed)?;
    drop(out);
    Ok(file)
}

/// What stands before the compressed content: kind and size, seven bits a byte after the first.
fn entry_header(kind: ObjectKind, size: u64) -> Vec<u8> {
    let kind = match kind {
        ObjectKind::Commit => 1,
        ObjectKind::Tree => 2,
        ObjectKind::Blob => 3,
    };
    let mut header = Vec::with_capacity(10);
    let mut byte = kind << 4 | (size & 0x0f) as u8;
    let mut rest = size >> 4;
    while rest > 0 {
        header.push(byte | 0x80);
        byte = (rest & 0x7f) as u8;
        rest >>= 7;
    }
    header.push(byte);
    header
}

/// So much is compressed between two looks at whether it is still wanted.
const DEFLATED_AT_ONCE: usize = 512 * 1024;

/// A whole entry: header and compressed content.
fn deflated_entry(op: &Operation, kind: ObjectKind, bytes: &[u8]) -> Result<Vec<u8>, Interrupted> {
    thread_local! {
        static DEFLATER: RefCell<Deflater> = RefCell::new(Deflater::new());
    }
    let mut entry = entry_header(kind, bytes.len() as u64);
    // As a rule it becomes shorter, and never much longer: to move it on the way costs more than
    // room.
    entry.reserve(bytes.len() + bytes.len() / 8 + 64);
    DEFLATER.with_borrow_mut(|deflater| {
        op.check()?;
        if bytes.len() <= DEFLATED_AT_ONCE {
            deflater.whole(bytes, &mut entry);
            return Ok(entry);
        }
        deflater.begin();
        for piece in bytes.chunks(DEFLATED_AT_ONCE) {
            op.check()?;
            deflater.add(piece, &mut entry);
        }
        deflater.end(&mut entry);
        Ok(entry)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::test_repository::TestRepository;
    use super::*;
    use crate::faults::Fault;
    use crate::trial;

    fn id_of(kind: ObjectKind, bytes: &[u8]) -> ObjectId {
        ObjectId::of(kind, bytes).unwrap()
    }

    fn add_blob(writer: &PackWriter, bytes: &[u8]) -> ObjectId {
        let id = id_of(ObjectKind::Blob, bytes);
        writer.add(ObjectKind::Blob, id, bytes).unwrap();
        id
    }

    fn packs_in(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Bytes that do not compress.
    fn noise(length: usize, seed: u32) -> Vec<u8> {
        let mut state = seed << 1 | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn git_finds_the_pack_right_and_makes_the_same_index() {
        let repository = TestRepository::new();
        let directory = repository.path.join(".git/objects/pack");
        let writer = PackWriter::create(&Operation::unbounded(), &directory).unwrap();
        let mut contents = vec![Vec::new(), b"one\n".to_vec(), noise(15, 1), noise(16, 2)];
        contents.extend((1..300).map(|n| noise(n * 37, n as u32)));
        contents.push(vec![b'a'; 3_000_000]);
        let ids: Vec<_> = contents.iter().map(|c| add_blob(&writer, c)).collect();
        let tree = b"100644 file\0".to_vec();
        let tree = [tree, ids[1].0.to_vec()].concat();
        let tree_id = id_of(ObjectKind::Tree, &tree);
        writer.add(ObjectKind::Tree, tree_id, &tree).unwrap();

        let finished = writer.finish().unwrap().unwrap();

        assert_eq!(finished.objects, contents.len() as u64 + 1);
        let index = finished.path.with_extension("idx");
        let sizes = [&finished.path, &index].map(|p| fs::metadata(p).unwrap().len());
        assert_eq!(finished.bytes, sizes.iter().sum::<u64>());
        repository.git(&["fsck", "--strict"]);
        for (id, content) in ids.iter().zip(&contents) {
            let args = ["cat-file", "blob", &id.to_string()];
            let output = repository.run(&repository.path, &args);
            assert!(output.stdout == *content, "{id} has its own bytes");
        }
        let path = finished.path.to_str().unwrap();
        repository.git(&["verify-pack", path]);
        let gits_index = repository.beside("by-git.idx");
        let args = ["index-pack", "-o", gits_index.to_str().unwrap(), path];
        let name = repository.git(&args);
        assert!(path.ends_with(&format!("pack-{name}.pack")), "{path}");
        assert_eq!(fs::read(index).unwrap(), fs::read(gits_index).unwrap());
    }

    #[test]
    fn an_object_is_kept_once() {
        let directory = tempfile::tempdir().unwrap();
        let writer = PackWriter::create(&Operation::unbounded(), directory.path()).unwrap();
        let id = add_blob(&writer, b"twice");
        add_blob(&writer, b"twice");
        let streamed = writer.add_stream(5, &mut &b"twice"[..]).unwrap();
        assert!(matches!(streamed, Streamed::Stored(stored) if stored == id));
        assert_eq!(writer.finish().unwrap().unwrap().objects, 1);
    }

    #[test]
    fn a_pack_without_objects_is_none_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let writer = PackWriter::create(&Operation::unbounded(), directory.path()).unwrap();
        assert_eq!(packs_in(directory.path()).len(), 1);
        assert_eq!(writer.finish().unwrap(), None);
        assert_eq!(packs_in(directory.path()), [""; 0]);
    }

    #[test]
    fn an_unfinished_pack_is_ignored_by_git_and_removed_when_dropped() {
        let repository = TestRepository::new();
        let directory = repository.path.join(".git/objects/pack");
        let writer = PackWriter::create(&Operation::unbounded(), &directory).unwrap();
        add_blob(&writer, &noise(1_000_000, 5));
        assert!(packs_in(&directory)[0].starts_with(TEMPORARY_PREFIX));
        repository.git(&["fsck", "--strict"]);
        drop(writer);
        assert_eq!(packs_in(&directory), [""; 0]);
    }

    #[test]
    fn large_content_streams_through_and_git_reads_it() {
        let repository = TestRepository::new();
        let directory = repository.path.join(".git/objects/pack");
        let content = [noise(2_000_000, 7), vec![0; 4_000_000], noise(100, 8)].concat();
        let writer = PackWriter::create(&Operation::unbounded(), &directory).unwrap();
        add_blob(&writer, b"before");
        let mut reader = content.as_slice();
        let streamed = writer.add_stream(content.len() as u64, &mut reader);
        let id = id_of(ObjectKind::Blob, &content);
        assert!(matches!(streamed, Ok(Streamed::Stored(stored)) if stored == id));
        add_blob(&writer, b"after");
        let empty = writer.add_stream(0, &mut io::empty()).unwrap();
        assert!(matches!(empty, Streamed::Stored(_)));
        assert_eq!(writer.finish().unwrap().unwrap().objects, 4);

        repository.git(&["fsck", "--strict"]);
        let args = ["cat-file", "blob", &id.to_string()];
        let output = repository.run(&repository.path, &args);
        assert!(output.stdout == content);
    }

    struct Failing;

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is on fire"))
        }
    }

    #[test]
    fn content_of_another_size_leaves_no_trace() {
        let repository = TestRepository::new();
        let directory = repository.path.join(".git/objects/pack");
        let writer = PackWriter::create(&Operation::unbounded(), &directory).unwrap();
        let first = add_blob(&writer, b"first");
        let content = noise(1_000_000, 9);
        for size in [0, 999_999, 1_000_001, u64::MAX] {
            let streamed = writer.add_stream(size, &mut content.as_slice()).unwrap();
            assert!(matches!(streamed, Streamed::Unstable), "{size}");
        }
        let mut broken = content.as_slice().chain(Failing);
        let streamed = writer.add_stream(2_000_000, &mut broken).unwrap();
        assert!(matches!(streamed, Streamed::Unreadable(_)));
        let second = add_blob(&writer, b"second");

        let finished = writer.finish().unwrap().unwrap();
        assert_eq!(finished.objects, 2);
        assert!(finished.bytes < 2000, "{} bytes", finished.bytes);
        repository.git(&["fsck", "--strict"]);
        for id in [first, second] {
            repository.git(&["cat-file", "-e", &id.to_string()]);
        }
    }

    #[test]
    fn many_threads_fill_one_pack() {
        let repository = TestRepository::new();
        let directory = repository.path.join(".git/objects/pack");
        let writer = PackWriter::create(&Operation::unbounded(), &directory).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let writer = &writer;
                scope.spawn(move || {
                    for n in 0..200 {
                        add_blob(writer, format!("shared {n}").as_bytes());
                        add_blob(writer, &noise(500, thread * 1000 + n));
                    }
                    let large = noise(600_000, thread);
                    writer
                        .add_stream(large.len() as u64, &mut large.as_slice())
                        .unwrap();
                });
            }
        });
        let finished = writer.finish().unwrap().unwrap();
        assert_eq!(finished.objects, 200 + 4 * 200 + 4);
        repository.git(&["fsck", "--strict"]);
        repository.git(&["verify-pack", finished.path.to_str().unwrap()]);
    }

    #[test]
    fn a_file_that_reads_back_otherwise_is_corrupt_and_nothing_appears() {
        let directory = tempfile::tempdir().unwrap();
        let writer = PackWriter::create(&Operation::unbounded(), directory.path()).unwrap();
        add_blob(&writer, &noise(600_000, 11));
        add_blob(&writer, b"another");
        let name = packs_in(directory.path()).remove(0);
        let file = File::options()
            .write(true)
            .open(directory.path().join(name))
            .unwrap();
        // The first entry is longer than the buffer, so it is in the file by now.
        file.write_all_at(b"?", 300_000).unwrap();

        let error = writer.finish().unwrap_err();

        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert_eq!(packs_in(directory.path()), [""; 0]);
    }

    #[test]
    fn what_differs_is_found_in_whichever_entry_and_buffer_it_lies() {
        let directory = tempfile::tempdir().unwrap();
        let writer = PackWriter::create(&Operation::unbounded(), directory.path()).unwrap();
        // Entries that end with a buffer, lie within one, and go over several.
        let lengths = [1, 261_000, 1000, 40, 700_000, 0, 9];
        for (seed, length) in (20..).zip(lengths) {
            add_blob(&writer, &noise(length, seed));
        }
        let mut unfinished = writer.unfinished.into_inner().unwrap();
        unfinished.flush().unwrap();
        let Unfinished {
            file,
            entries,
            written: end,
            ..
        } = unfinished;
        let whole = fs::read(file.path()).unwrap();
        let expected: [u8; 20] = Sha1::digest(&whole).into();
        assert_eq!(
            read_back(&Operation::unbounded(), &file, &entries, end).unwrap(),
            expected
        );

        let starts = entries.iter().map(|entry| entry.offset);
        let ends = starts.clone().skip(1).chain([end]).map(|end| end - 1);
        let buffers = (0..end).step_by(BUFFER_BYTES).skip(1);
        for at in starts.chain(ends).chain(buffers) {
            let damaged = entries.iter().rfind(|entry| entry.offset <= at).unwrap();
            let flipped = whole[usize::try_from(at).unwrap()] ^ 1;
            file.as_file().write_all_at(&[flipped], at).unwrap();
            let error = read_back(&Operation::unbounded(), &file, &entries, end)
                .unwrap_err()
                .to_string();
            assert!(error.contains(&damaged.id.to_string()), "{at}: {error}");
            file.as_file().write_all_at(&[flipped ^ 1], at).unwrap();
        }
    }

    #[test]
    fn a_large_pack_is_whole_and_a_sync_of_it_that_fails_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let fill = |op: &Operation| {
            let writer = PackWriter::create(op, directory.path()).unwrap();
            let large = noise(usize::try_from(LARGE_BYTES).unwrap(), 30);
            add_blob(&writer, &large);
            writer
        };
        let (_, filled) = trial::with(Fault::None, fill);
        let broken = Fault::FailAt(filled, rustix::io::Errno::IO.raw_os_error());
        let (finished, _) = trial::with(broken, |op| fill(op).finish());
        assert!(finished.is_err());
        assert_eq!(packs_in(directory.path()), [""; 0]);

        let finished = fill(&Operation::unbounded()).finish().unwrap().unwrap();
        let git = std::process::Command::new("git")
            .arg("index-pack")
            .arg("--strict")
            .arg("-o")
            .arg(directory.path().join("git.idx"))
            .arg(&finished.path)
            .output()
            .unwrap();
        assert!(git.status.success(), "{git:?}");
        let ours = fs::read(finished.path.with_extension("idx")).unwrap();
        assert!(ours == fs::read(directory.path().join("git.idx")).unwrap());
    }

    #[test]
    fn finished_packs_are_for_the_owner_alone_and_read_only() {
        let directory = tempfile::tempdir().unwrap();
        let writer = PackWriter::create(&Operation::unbounded(), directory.path()).unwrap();
        add_blob(&writer, b"private");
        let finished = writer.finish().unwrap().unwrap();
        for path in [finished.path.with_extension("idx"), finished.path] {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o400, "{}", path.display());
        }
    }

    #[test]
    fn a_full_disk_is_told_and_every_later_call_fails() {
        let directory = tempfile::tempdir().unwrap();
        let begin = |op: &Operation| PackWriter::create(op, directory.path()).unwrap();
        let large = noise(BUFFER_BYTES * 2, 12);
        let id = id_of(ObjectKind::Blob, &large);
        let (_, begun) = trial::with(Fault::None, begin);
        let full = Fault::FailAt(begun, rustix::io::Errno::NOSPC.raw_os_error());
        let ((writer, added), _) = trial::with(full, |op| {
            let writer = begin(op);
            let added = writer.add(ObjectKind::Blob, id, &large);
            (writer, added)
        });
        let error = added.unwrap_err();
        assert_eq!(error.storage_kind(), crate::error::ErrorKind::NoSpace);
        let small = id_of(ObjectKind::Blob, b"small");
        assert!(writer.add(ObjectKind::Blob, small, b"small").is_err());
        assert!(writer.add_stream(5, &mut &b"other"[..]).is_err());
        assert!(writer.finish().is_err());
        assert_eq!(packs_in(directory.path()), [""; 0]);
    }

    #[test]
    fn entry_headers_hold_sizes_of_every_length() {
        let cases: [(u64, &[u8]); 4] = [
            (15, &[0x3f]),
            (16, &[0xb0, 0x01]),
            (2047, &[0xbf, 0x7f]),
            (2048, &[0xb0, 0x80, 0x01]),
        ];
        for (size, expected) in cases {
            assert_eq!(entry_header(ObjectKind::Blob, size), expected, "{size}");
        }
        assert_eq!(entry_header(ObjectKind::Blob, u64::MAX).len(), 10);
    }
}
