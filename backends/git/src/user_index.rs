//! The user's index, parsed from its bytes.
//!
//! The format is git's (`gitformat-index`), versions 2, 3 and 4 with SHA-1 ids, including split and
//! sparse indexes, which libgit2 does not read. Nothing here touches the disk. For any bytes the
//! result is an index or a typed error.

mod bytes;
mod extensions;

use std::cmp::Ordering;

use sha1::{Digest as _, Sha1};

pub use self::bytes::serialize;
pub use self::extensions::{cached_trees, without_cached_trees};
use super::ObjectId;
use crate::path::{InvalidPath, RelPath};

/// The kinds that an entry's mode can name, in git's canonical form.
const MODE_FILE: u32 = 0o100_644;
const MODE_EXECUTABLE: u32 = 0o100_755;
const MODE_LINK: u32 = 0o120_000;
/// The mode of an entry for a submodule.
pub const MODE_SUBMODULE: u32 = 0o160_000;
/// The mode of an entry of a sparse index that stands for all below a directory.
pub const MODE_SPARSE_DIRECTORY: u32 = 0o040_000;

/// `DIRC`, version and number of entries.
const HEADER_BYTES: usize = 12;
/// The SHA-1 at the end.
const TRAILER_BYTES: usize = 20;
/// An entry up to its flags: what comes before the name in every version.
const FIXED_ENTRY_BYTES: usize = 62;

/// git takes the file to be as the index has it.
const FLAG_ASSUME_UNCHANGED: u16 = 0x8000;
/// Further flags follow.
const FLAG_EXTENDED: u16 = 0x4000;
/// The length of the path; all bits set: that much or more.
const FLAG_LENGTH: u16 = 0x0fff;
const EXTENDED_SKIP_WORKTREE: u16 = 0x4000;
const EXTENDED_INTENT_TO_ADD: u16 = 0x2000;

/// The longest path that is read. Names that the kernel takes at once end at 4096 bytes; this
/// leaves room for trees that are deeper, and bounds what one entry of version 4 can claim.
const MAX_PATH_BYTES: usize = 64 * 1024;
/// How many bytes of paths an index may hold for each byte of its file. Version 4 stores what a
/// path shares with the one before as a number, so a small file could otherwise claim any amount of
/// memory. An entry takes 64 bytes at least: honest paths would have to be a kilobyte long on
/// average.
const MAX_PATH_EXPANSION: usize = 16;

/// The user's index: which paths git tracks, with what content and what stat data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIndex {
    /// 2, 3 or 4.
    pub version: u32,
    /// As in the file: sorted by path bytes, then stage, each pair once. A sparse directory is
    /// sorted as if its path ended in `/`.
    pub entries: Vec<IndexEntry>,
    /// The shared index that a split index is laid over. Its file, `sharedindex.<id>`, is needed to
    /// read this index again.
    pub shared_id: Option<ObjectId>,
}

/// One path of the index. While the index is read, `P` is the bytes of a path that [`RelPath`]
/// takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry<P = RelPath> {
    /// From the top of the work tree. Never empty; no component is `.git` in any case.
    pub path: P,
    /// `100644`, `100755`, `120000` (link), `160000` (submodule), or `040000`: a directory outside
    /// of a sparse checkout, whose `id` is a tree.
    pub mode: u32,
    /// The content as git stores it: filters and line-ending conversion may lie between it and the
    /// file.
    pub id: ObjectId,
    /// What `lstat` said when git last found file and `id` equal. All zero where it never did.
    pub stat: IndexStat,
    /// 0, or in a conflict 1 (base), 2 (ours), 3 (theirs).
    pub stage: u8,
    /// `git add --intent-to-add`: `id` is the empty blob, and says nothing about the file.
    pub is_intent_to_add: bool,
    /// Not in the work tree by intent (sparse checkout).
    pub is_skip_worktree: bool,
    /// The user asked git not to look at the file. We look.
    pub is_assume_unchanged: bool,
}

/// Stat data as the index keeps it: each value cut to 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStat {
    /// Seconds since the Unix epoch, nanoseconds.
    pub ctime: (u32, u32),
    /// Seconds since the Unix epoch, nanoseconds.
    pub mtime: (u32, u32),
    /// The lower half of the device, as all numbers here.
    pub dev: u32,
    /// The inode.
    pub ino: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes. 0 also marks an entry of which git itself no longer trusts the rest; a size that is a
    /// multiple of 4 GiB is kept as `0x80000000`.
    pub size: u32,
}

/// Why some bytes are no index that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// There is no `DIRC` at the beginning, or not even room for a header and a checksum.
    #[error("it does not begin like an index")]
    NotAnIndex,
    /// A version that this does not know.
    #[error("its version is {0}; 2, 3 and 4 can be read")]
    UnsupportedVersion(u32),
    /// An extension without which the entries would be misread.
    #[error("it needs the extension {0:?}, which is not known")]
    UnsupportedExtension(String),
    /// The bytes are not those that git wrote.
    #[error("its checksum is {found}, its content has {expected}")]
    Checksum {
        /// What the content hashes to.
        expected: ObjectId,
        /// What stands at the end.
        found: ObjectId,
    },
    /// It ends too early, or claims more than it can hold.
    #[error("it ends inside {0}")]
    Truncated(&'static str),
    /// An entry that git would not have written. Counted from 0.
    #[error("entry {position} {reason}")]
    BadEntry {
        /// Which one.
        position: usize,
        /// A clause.
        reason: &'static str,
    },
    /// The path of an entry leads elsewhere.
    #[error("entry {position} has a bad path")]
    BadPath {
        /// Which one.
        position: usize,
        /// What is wrong with it.
        source: InvalidPath,
    },
    /// Two entries are in the wrong order, or one comes twice.
    #[error("entry {position}, {path}, is not in order")]
    Unsorted {
        /// The second one of the two.
        position: usize,
        /// Its path.
        path: RelPath,
    },
    /// A split index does not fit the shared one.
    #[error("it is split, and {0}")]
    BadLink(&'static str),
    /// The paths would take more memory than an honest index of this size.
    #[error("its paths are longer than {limit} bytes in all")]
    PathsTooLong {
        /// The limit, in bytes.
        limit: usize,
    },
}

impl IndexEntry {
    /// The same, with its path as bytes.
    pub fn borrowed(&self) -> IndexEntry<&[u8]> {
        let Self {
            ref path,
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        } = *self;
        IndexEntry {
            path: path.as_bytes(),
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        }
    }
}

impl IndexEntry<&[u8]> {
    /// Adds what it stages, without stat data, to a digest.
    pub fn add_to(&self, hasher: &mut blake3::Hasher) {
        let flags = [
            self.stage,
            u8::from(self.is_intent_to_add),
            u8::from(self.is_skip_worktree),
            u8::from(self.is_assume_unchanged),
        ];
        hasher
            .update(&(self.path.len() as u64).to_le_bytes())
            .update(self.path)
            .update(&self.mode.to_le_bytes())
            .update(&self.id.0)
            .update(&flags);
    }

    fn to_owned(&self) -> IndexEntry {
        let Self {
            path,
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        } = *self;
        IndexEntry {
            path: RelPath::new(path).expect("it was checked when it was read"),
            mode,
            id,
            stat,
            stage,
            is_intent_to_add,
            is_skip_worktree,
            is_assume_unchanged,
        }
    }
}

impl UserIndex {
    /// Why it cannot be written by us; `None` if it can.
    pub fn unwritable_form(&self) -> Option<&'static str> {
        if self.shared_id.is_some() {
            return Some("split");
        }
        let is_sparse = |entry: &IndexEntry| entry.mode == MODE_SPARSE_DIRECTORY;
        self.entries.iter().any(is_sparse).then_some("sparse")
    }
}

impl IndexError {
    /// Whether the index may well be in order, in a format that this does not read.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::UnsupportedVersion(_) | Self::UnsupportedExtension(_)
        )
    }
}

/// Reads an index file. A split index is merged with the shared one, whose bytes `shared` supplies;
/// it is called at most once.
///
/// Optional extensions are skipped. The checksum is verified unless git left it out
/// (`index.skipHash`).
pub fn parse<E: From<IndexError>>(
    bytes: &[u8],
    shared: &mut dyn FnMut(&ObjectId) -> Result<Vec<u8>, E>,
) -> Result<UserIndex, E> {
    let file = parse_file(bytes)?;
    let mut entries = file.entries;
    let mut shared_id = None;
    let mut is_sparse = file.is_sparse;
    if let Some(link) = file.link {
        let base = parse_file(&shared(&link.shared_id)?)?;
        if base.checksum != link.shared_id {
            return Err(IndexError::BadLink("the shared index is another one").into());
        }
        if base.link.is_some() {
            return Err(IndexError::BadLink("so is the shared index").into());
        }
        is_sparse |= base.is_sparse;
        shared_id = Some(link.shared_id);
        entries = link.merge(base.entries, entries)?;
    }
    check_entries(&entries, is_sparse)?;
    Ok(UserIndex {
        version: file.version,
        entries,
        shared_id,
    })
}

/// One index file. In a split one, entries that replace shared ones come first and have the empty
/// path.
struct IndexFile {
    version: u32,
    entries: Vec<IndexEntry>,
    link: Option<Link>,
    is_sparse: bool,
    /// What stands at the end; zero if git left it out.
    checksum: ObjectId,
}

fn parse_file(bytes: &[u8]) -> Result<IndexFile, IndexError> {
    let mut rest = bytes;
    let mut source = |into: &mut [u8]| {
        let (taken, left) = rest.split_at(rest.len().min(into.len()));
        into[..taken.len()].copy_from_slice(taken);
        rest = left;
        Ok::<_, IndexError>(taken.len())
    };
    let mut entries = Vec::new();
    let outline = scan(&mut source, bytes.len() as u64, &mut |entry, _| {
        entries.push(entry.to_owned());
    })?;
    Ok(IndexFile {
        version: outline.version,
        entries,
        link: outline.link,
        is_sparse: outline.is_sparse,
        checksum: outline.checksum,
    })
}

/// What [`visit`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visited {
    /// All entries of the index.
    All,
    /// The index is a split one. What was visited says nothing: it takes [`parse`].
    Split,
}

/// Reads an index of `length` bytes from `source`, which is asked for more of it until it answers
/// 0, and calls `visit` with each entry, so that no caller needs all of them in memory.
///
/// What was visited counts only if this answers with [`Visited::All`]: the checksum and the kind of
/// the index stand at its end. Whatever was visited was in order.
pub fn visit<E: From<IndexError>>(
    source: &mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    length: u64,
    visit: &mut dyn FnMut(&IndexEntry<&[u8]>),
) -> Result<Visited, E> {
    let mut position = 0;
    let mut failure = None;
    let mut directory = None;
    let outline = scan(source, length, &mut |entry, is_next| {
        if entry.path.is_empty() || !is_next {
            failure.get_or_insert_with(|| match entry.path.is_empty() {
                true => IndexError::BadEntry {
                    position,
                    reason: "has no path",
                },
                false => IndexError::Unsorted {
                    position,
                    path: entry.to_owned().path,
                },
            });
        }
        if entry.mode == MODE_SPARSE_DIRECTORY {
            directory.get_or_insert(position);
        }
        if failure.is_none() {
            visit(entry);
        }
        position += 1;
    })?;
    if outline.link.is_some() {
        return Ok(Visited::Split);
    }
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    match directory {
        Some(position) if !outline.is_sparse => Err(IndexError::BadEntry {
            position,
            reason: DIRECTORY_WITHOUT_SPARSE,
        }
        .into()),
        _ => Ok(Visited::All),
    }
}

const DIRECTORY_WITHOUT_SPARSE: &str = "is a directory, and the index is not sparse";

/// What an index file says beside its entries.
struct Outline {
    version: u32,
    link: Option<Link>,
    is_sparse: bool,
    /// How much stands between the entries and the checksum.
    extension_bytes: u64,
    /// What stands at the end; zero if git left it out.
    checksum: ObjectId,
}

/// Reads an index file, and calls `visit` with each entry and whether it sorts after the one
/// before. In a split index the path of an entry may be empty.
fn scan<E: From<IndexError>>(
    source: &mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    length: u64,
    visit: &mut dyn FnMut(&IndexEntry<&[u8]>, bool),
) -> Result<Outline, E> {
    let Some(body) = length
        .checked_sub(TRAILER_BYTES as u64)
        .filter(|body| *body >= HEADER_BYTES as u64)
    else {
        return Err(IndexError::NotAnIndex.into());
    };
    let mut stream = Stream {
        source,
        bytes: Vec::new(),
        at: 0,
        unread: body,
        sha1: Sha1::new(),
        part: "its header",
    };
    let begun = stream.header();
    let (version, count) = match begun {
        Ok(header) => header,
        // Nothing else of such a file means anything.
        Err(Failed::Source(error)) => return Err(error),
        Err(Failed::Index(error)) => return Err(error.into()),
    };
    let parsed = stream
        .entries(version, count, body, visit)
        .and_then(|()| Ok((stream.rest(), stream.extensions()?)));
    let checksum = match stream.checksum() {
        Ok(checksum) => checksum,
        Err(Failed::Source(error)) => return Err(error),
        Err(Failed::Index(error)) => return Err(error.into()),
    };
    match parsed {
        Ok((extension_bytes, (link, is_sparse))) => Ok(Outline {
            version,
            link,
            is_sparse,
            extension_bytes,
            checksum,
        }),
        Err(Failed::Source(error)) => Err(error),
        Err(Failed::Index(error)) => Err(error.into()),
    }
}

/// Why an index could not be read to its end.
enum Failed<E> {
    /// Its bytes could not be had.
    Source(E),
    Index(IndexError),
}

impl<E> From<IndexError> for Failed<E> {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

/// How much is read at once.
const STREAM_BYTES: usize = 128 * 1024;

/// Takes the body of an index, all but its checksum, off a source.
struct Stream<'s, E> {
    source: &'s mut dyn FnMut(&mut [u8]) -> Result<usize, E>,
    /// What was read and, from `at` on, not yet taken.
    bytes: Vec<u8>,
    at: usize,
    /// How much of the body is still to be read.
    unread: u64,
    /// Over what was read.
    sha1: Sha1,
    /// What is being read, for the error.
    part: &'static str,
}

impl<E> Stream<'_, E> {
    fn truncated(&self) -> IndexError {
        IndexError::Truncated(self.part)
    }

    /// How much of the body was not taken.
    fn rest(&self) -> u64 {
        self.unread + (self.bytes.len() - self.at) as u64
    }

    /// Reads more.
    fn fill(&mut self) -> Result<(), Failed<E>> {
        let room = STREAM_BYTES.min(usize::try_from(self.unread).unwrap_or(usize::MAX));
        self.bytes.drain(..self.at);
        self.at = 0;
        let had = self.bytes.len();
        self.bytes.resize(had + room, 0);
        let count = match room {
            0 => 0,
            _ => (self.source)(&mut self.bytes[had..]).map_err(Failed::Source)?,
        };
        self.bytes.truncate(had + count);
        if count == 0 {
            return Err(self.truncated().into());
        }
        self.sha1.update(&self.bytes[had..]);
        self.unread -= count as u64;
        Ok(())
    }

    /// The next `count` bytes; they stay.
    fn peek(&mut self, count: usize) -> Result<&[u8], Failed<E>> {
        while self.bytes.len() - self.at < count {
            self.fill()?;
        }
        Ok(&self.bytes[self.at..][..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failed<E>> {
        let taken = self.peek(N)?.try_into().expect("taken at this length");
        self.at += N;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Failed<E>> {
        self.array().map(u32::from_be_bytes)
    }

    /// A number in the form that packs use for offsets: seven bits a byte, the high ones first, and
    /// one added at each step.
    fn varint(&mut self) -> Result<u64, Failed<E>> {
        let mut byte = self.array::<1>()?[0];
        let mut value = u64::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            if value >= 1 << 56 {
                return Err(self.truncated().into());
            }
            byte = self.array::<1>()?[0];
            value = ((value + 1) << 7) | u64::from(byte & 0x7f);
        }
        Ok(value)
    }

    /// How many bytes stand before the next NUL; `None` if there are more than `max`.
    fn before_nul(&mut self, max: usize) -> Result<Option<usize>, Failed<E>> {
        let mut seen = 0;
        loop {
            let new = &self.bytes[self.at + seen..];
            match new.iter().position(|b| *b == 0) {
                Some(at) => return Ok((seen + at <= max).then_some(seen + at)),
                None => seen += new.len(),
            }
            if seen > max {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    /// The version, and how many entries there are.
    fn header(&mut self) -> Result<(u32, usize), Failed<E>> {
        if &self.array::<4>()? != b"DIRC" {
            return Err(IndexError::NotAnIndex.into());
        }
        let version = self.u32()?;
        if !(2..=4).contains(&version) {
            return Err(IndexError::UnsupportedVersion(version).into());
        }
        Ok((version, self.u32()? as usize))
    }

    fn entries(
        &mut self,
        version: u32,
        count: usize,
        body: u64,
        visit: &mut dyn FnMut(&IndexEntry<&[u8]>, bool),
    ) -> Result<(), Failed<E>> {
        self.part = "its entries";
        // Before anything is looked at: that many entries must be able to fit.
        if count as u64 > self.rest() / FIXED_ENTRY_BYTES as u64 {
            return Err(self.truncated().into());
        }
        let max_path_bytes = usize::try_from(body)
            .unwrap_or(usize::MAX)
            .saturating_mul(MAX_PATH_EXPANSION);
        let mut path_bytes = 0;
        // The whole names of this entry and of the one before, and that one's stage.
        let (mut name, mut previous): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut previous_stage = 0;
        for position in 0..count {
            let fixed = self.fixed_part(position)?;
            name.clear();
            self.name(version, position, &fixed, &previous, &mut name)?;
            path_bytes += name.len();
            if path_bytes > max_path_bytes {
                return Err(IndexError::PathsTooLong {
                    limit: max_path_bytes,
                }
                .into());
            }
            let path = checked_path(position, fixed.mode, &name, &previous)?;
            let stage = (fixed.flags >> 12 & 3) as u8;
            let is_next = match previous.cmp(&name) {
                Ordering::Less => true,
                // Merged and unmerged at once: no path is both.
                Ordering::Equal => previous_stage != 0 && previous_stage < stage,
                Ordering::Greater => false,
            };
            let entry = IndexEntry {
                path,
                mode: fixed.mode,
                id: fixed.id,
                stat: fixed.stat,
                stage,
                is_intent_to_add: fixed.extended & EXTENDED_INTENT_TO_ADD != 0,
                is_skip_worktree: fixed.extended & EXTENDED_SKIP_WORKTREE != 0,
                is_assume_unchanged: fixed.flags & FLAG_ASSUME_UNCHANGED != 0,
            };
            visit(&entry, is_next);
            previous_stage = stage;
            std::mem::swap(&mut name, &mut previous);
        }
        Ok(())
    }

    /// What an entry has in front of its name.
    #[inline]
    fn fixed_part(&mut self, position: usize) -> Result<FixedPart, Failed<E>> {
        let head: [u8; FIXED_ENTRY_BYTES] = self.array()?;
        let word =
            |at: usize| u32::from_be_bytes(head[at * 4..][..4].try_into().expect("four bytes"));
        let flags = u16::from_be_bytes([head[60], head[61]]);
        let extended = match flags & FLAG_EXTENDED {
            0 => 0,
            _ => u16::from_be_bytes(self.array()?),
        };
        if extended & !(EXTENDED_SKIP_WORKTREE | EXTENDED_INTENT_TO_ADD) != 0 {
            return Err(bad(position, "has flags that are not known").into());
        }
        let mode = word(6);
        if !matches!(
            mode,
            MODE_FILE | MODE_EXECUTABLE | MODE_LINK | MODE_SUBMODULE | MODE_SPARSE_DIRECTORY
        ) {
            return Err(bad(position, "has a mode that is not one of git's").into());
        }
        Ok(FixedPart {
            stat: IndexStat {
                ctime: (word(0), word(1)),
                mtime: (word(2), word(3)),
                dev: word(4),
                ino: word(5),
                uid: word(7),
                gid: word(8),
                size: word(9),
            },
            mode,
            id: ObjectId(head[40..60].try_into().expect("twenty bytes")),
            flags,
            extended,
        })
    }

    /// Reads the name of an entry to the end of `name`, which is empty, and what pads it.
    #[inline]
    fn name(
        &mut self,
        version: u32,
        position: usize,
        fixed: &FixedPart,
        previous: &[u8],
        name: &mut Vec<u8>,
    ) -> Result<(), Failed<E>> {
        if version == 4 {
            let kept = usize::try_from(self.varint()?)
                .ok()
                .and_then(|stripped| previous.len().checked_sub(stripped))
                .ok_or_else(|| bad(position, "shares more with the entry before than that has"))?;
            name.extend_from_slice(&previous[..kept]);
        }
        let length = self
            .before_nul(MAX_PATH_BYTES - name.len())?
            .ok_or_else(|| bad(position, "has a path that is too long"))?;
        name.extend_from_slice(&self.bytes[self.at..][..length]);
        self.at += length;
        if version == 4 {
            self.at += 1;
            return Ok(());
        }
        if name.len().min(usize::from(FLAG_LENGTH)) != usize::from(fixed.flags & FLAG_LENGTH) {
            return Err(bad(position, "has a path of another length than it says").into());
        }
        // One to eight NULs, so that the entry is a multiple of eight bytes long.
        let is_extended = fixed.flags & FLAG_EXTENDED != 0;
        let unpadded = FIXED_ENTRY_BYTES + 2 * usize::from(is_extended) + length;
        let padding = 8 - unpadded % 8;
        if self.peek(padding)?.iter().any(|b| *b != 0) {
            return Err(bad(position, "is not padded with NUL").into());
        }
        self.at += padding;
        Ok(())
    }

    /// Reads what follows the entries: how the index is split, and whether it is sparse.
    fn extensions(&mut self) -> Result<(Option<Link>, bool), Failed<E>> {
        self.part = "an extension";
        let mut link = None;
        let mut is_sparse = false;
        while self.rest() > 0 {
            let name: [u8; 4] = self.array()?;
            let length = self.u32()? as usize;
            if length as u64 > self.rest() {
                return Err(self.truncated().into());
            }
            match &name {
                b"link" => link = Link::parse(self.peek(length)?)?,
                b"sdir" => is_sparse = true,
                // An upper-case letter in front means that the entries can be read without it.
                [b'A'..=b'Z', ..] => {}
                _ => {
                    let name = crate::path::printable_bytes(&name);
                    return Err(IndexError::UnsupportedExtension(name).into());
                }
            }
            self.pass_over(length)?;
        }
        Ok((link, is_sparse))
    }

    fn pass_over(&mut self, length: usize) -> Result<(), Failed<E>> {
        let mut left = length;
        loop {
            let here = left.min(self.bytes.len() - self.at);
            self.at += here;
            left -= here;
            if left == 0 {
                return Ok(());
            }
            self.fill()?;
        }
    }

    /// Reads what is left of the body, and the checksum behind it, which must be that of the body
    /// or zero.
    fn checksum(&mut self) -> Result<ObjectId, Failed<E>> {
        self.at = self.bytes.len();
        while self.unread > 0 {
            self.fill()?;
            self.at = self.bytes.len();
        }
        let expected = ObjectId(std::mem::take(&mut self.sha1).finalize().into());
        self.unread = TRAILER_BYTES as u64;
        let found = ObjectId(self.array()?);
        if found.0 != [0; TRAILER_BYTES] && found != expected {
            return Err(IndexError::Checksum { expected, found }.into());
        }
        Ok(found)
    }
}

/// How many bytes at the beginning of `path` are whole names, each with its slash, that `previous`
/// begins with too.
fn shared_names(previous: &[u8], path: &[u8]) -> usize {
    let same = previous.iter().zip(path).take_while(|(a, b)| a == b);
    let same = same.count();
    path[..same]
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1)
}

/// Whether a component of `path` is `.git`, in any case. git writes no such entry; on a file system
/// that ignores case it would name the repository itself.
fn names_git_dir(path: &[u8]) -> bool {
    path.iter().enumerate().any(|(at, byte)| {
        *byte == b'.'
            && (at == 0 || path[at - 1] == b'/')
            && path
                .get(at + 1..at + 4)
                .is_some_and(|rest| rest.eq_ignore_ascii_case(b"git"))
            && matches!(path.get(at + 4), None | Some(b'/'))
    })
}

fn check_entries(entries: &[IndexEntry], is_sparse: bool) -> Result<(), IndexError> {
    for (position, entry) in entries.iter().enumerate() {
        let bad = |reason| IndexError::BadEntry { position, reason };
        if entry.path.is_root() {
            return Err(bad("has no path"));
        }
        if entry.mode == MODE_SPARSE_DIRECTORY && !is_sparse {
            return Err(bad(DIRECTORY_WITHOUT_SPARSE));
        }
    }
    for (position, pair) in entries.windows(2).enumerate() {
        let (first, second) = (&pair[0], &pair[1]);
        let in_order = match order(first, second) {
            Ordering::Less => true,
            // Merged and unmerged at once: no path is both.
            Ordering::Equal => first.stage != 0 && first.stage < second.stage,
            Ordering::Greater => false,
        };
        if !in_order {
            return Err(IndexError::Unsorted {
                position: position + 1,
                path: second.path.clone(),
            });
        }
    }
    Ok(())
}

/// How the paths of two entries are sorted in the file; stages not counted.
fn order(a: &IndexEntry, b: &IndexEntry) -> Ordering {
    if a.mode != MODE_SPARSE_DIRECTORY && b.mode != MODE_SPARSE_DIRECTORY {
        return a.path.cmp(&b.path);
    }
    fn bytes(entry: &IndexEntry) -> impl Iterator<Item = u8> + '_ {
        let slash = (entry.mode == MODE_SPARSE_DIRECTORY).then_some(b'/');
        entry.path.as_bytes().iter().copied().chain(slash)
    }
    bytes(a).cmp(bytes(b))
}

/// How a split index differs from the shared one: the `link` extension.
struct Link {
    shared_id: ObjectId,
    /// Positions in the shared index, as EWAH bitmaps.
    deleted: Bitmap,
    replaced: Bitmap,
}

impl Link {
    /// `None`: the extension says that nothing is shared.
    fn parse(content: &[u8]) -> Result<Option<Self>, IndexError> {
        let mut reader = Reader {
            bytes: content,
            at: 0,
            part: "the extension \"link\"",
        };
        let shared_id = ObjectId(reader.array()?);
        // Without bitmaps the shared index is taken as it is.
        let (mut deleted, mut replaced) = (Bitmap::default(), Bitmap::default());
        if reader.rest() > 0 {
            deleted = Bitmap::parse(&mut reader)?;
            replaced = Bitmap::parse(&mut reader)?;
        }
        if reader.rest() > 0 {
            return Err(IndexError::BadLink("its bitmaps are followed by garbage"));
        }
        Ok((shared_id.0 != [0; 20]).then_some(Self {
            shared_id,
            deleted,
            replaced,
        }))
    }

    /// Lays `own` over `base`: some of the shared entries go, some get other content and stat data,
    /// and the rest of `own` comes in between, in order.
    fn merge(
        &self,
        base: Vec<IndexEntry>,
        own: Vec<IndexEntry>,
    ) -> Result<Vec<IndexEntry>, IndexError> {
        let mut is_deleted = vec![false; base.len()];
        self.deleted.each(base.len(), |at| {
            is_deleted[at] = true;
            Ok(())
        })?;
        let mut base = base;
        let mut own = own.into_iter();
        self.replaced.each(base.len(), |at| {
            let Some(replacement) = own.next() else {
                return Err(IndexError::BadLink("it replaces more than it has"));
            };
            if is_deleted[at] {
                return Err(IndexError::BadLink("it replaces an entry that it deletes"));
            }
            if !replacement.path.is_root() {
                return Err(IndexError::BadLink("a replacing entry has its own path"));
            }
            let path = std::mem::take(&mut base[at].path);
            base[at] = IndexEntry {
                path,
                ..replacement
            };
            Ok(())
        })?;

        let mut merged = Vec::with_capacity(base.len() + own.len());
        let mut own = own.peekable();
        let kept = base.into_iter().zip(is_deleted).filter(|(_, gone)| !gone);
        for (entry, _) in kept {
            while let Some(added) =
                own.next_if(|o| order(o, &entry).then(o.stage.cmp(&entry.stage)).is_lt())
            {
                merged.push(added);
            }
            merged.push(entry);
        }
        merged.extend(own);
        Ok(merged)
    }
}

/// A compressed bitmap as EWAH stores it: runs of equal words, then literal words, again and again.
#[derive(Default)]
struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, IndexError> {
        let _bits = reader.u32()?;
        let count = reader.u32()? as usize;
        let content = reader.take(count.checked_mul(8).ok_or(reader.truncated())?)?;
        let _last_run = reader.u32()?;
        let word = |b: &[u8]| u64::from_be_bytes(b.try_into().expect("chunks of eight"));
        Ok(Self {
            words: content.chunks_exact(8).map(word).collect(),
        })
    }

    /// Calls `visit` with the position of each bit that is set, in order. One at `limit` or beyond
    /// is an error, so a run cannot claim more than there is.
    fn each(
        &self,
        limit: usize,
        mut visit: impl FnMut(usize) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let beyond = IndexError::BadLink("its bitmaps reach beyond the shared index");
        let mut visit = |at: u64| match usize::try_from(at) {
            Ok(at) if at < limit => visit(at),
            _ => Err(beyond.clone()),
        };
        let mut at: u64 = 0;
        let mut words = self.words.iter().copied();
        while let Some(marker) = words.next() {
            let is_set = marker & 1 == 1;
            let run_bits = (marker >> 1 & 0xffff_ffff) * 64;
            if is_set {
                for bit in 0..run_bits {
                    visit(at.saturating_add(bit))?;
                }
            }
            at = at.saturating_add(run_bits);
            for _ in 0..marker >> 33 {
                let Some(literal) = words.next() else {
                    return Err(IndexError::BadLink("its bitmaps are cut short"));
                };
                let mut rest = literal;
                while rest != 0 {
                    visit(at.saturating_add(u64::from(rest.trailing_zeros())))?;
                    rest &= rest - 1;
                }
                at = at.saturating_add(64);
            }
        }
        Ok(())
    }
}

/// Takes big-endian values off some bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is being read, for the error.
    part: &'static str,
}

impl<'a> Reader<'a> {
    fn truncated(&self) -> IndexError {
        IndexError::Truncated(self.part)
    }

    fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], IndexError> {
        let taken = self.bytes[self.at..].get(..count).ok_or(self.truncated())?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], IndexError> {
        Ok(self.take(N)?.try_into().expect("taken at this length"))
    }

    fn u32(&mut self) -> Result<u32, IndexError> {
        self.array().map(u32::from_be_bytes)
    }
}

/// What an entry has in front of its name.
struct FixedPart {
    stat: IndexStat,
    mode: u32,
    id: ObjectId,
    flags: u16,
    /// Zero where there are none.
    extended: u16,
}

fn bad(position: usize, reason: &'static str) -> IndexError {
    IndexError::BadEntry { position, reason }
}

/// The path that an entry has by its name. `previous` is the name before it, which was looked at.
#[inline]
fn checked_path<'n>(
    position: usize,
    mode: u32,
    name: &'n [u8],
    previous: &[u8],
) -> Result<&'n [u8], IndexError> {
    // `dir/`: the slash says that the entry is a directory, as the mode does.
    let path = match mode {
        MODE_SPARSE_DIRECTORY => name.strip_suffix(b"/").ok_or_else(|| {
            let reason = "is a directory, and its path does not end in a slash";
            bad(position, reason)
        })?,
        _ => name,
    };
    // The names that it has in common with the path before were looked at there.
    let known = shared_names(previous, path);
    if path.len() == known || RelPath::check(&path[known..]).is_err() {
        RelPath::check(path).map_err(|source| IndexError::BadPath { position, source })?;
    }
    if names_git_dir(&path[known..]) {
        return Err(bad(position, "has a path with a component \".git\""));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;
    use crate::test_repository::TestRepository;

    fn index_bytes(repository: &TestRepository) -> Vec<u8> {
        fs::read(repository.path.join(".git/index")).unwrap()
    }

    fn read(repository: &TestRepository) -> UserIndex {
        let git_dir = repository.path.join(".git");
        parse(&index_bytes(repository), &mut |id| {
            Ok::<_, IndexError>(fs::read(git_dir.join(format!("sharedindex.{id}"))).unwrap())
        })
        .unwrap()
    }

    fn not_split(_: &ObjectId) -> Result<Vec<u8>, IndexError> {
        panic!("the index is not split")
    }

    fn parse_alone(bytes: &[u8]) -> Result<UserIndex, IndexError> {
        parse(bytes, &mut not_split)
    }

    /// The index in the words of `git ls-files --stage --debug -z`.
    fn as_git_prints(index: &UserIndex) -> String {
        let mut out = String::new();
        for entry in &index.entries {
            let slash = if entry.mode == MODE_SPARSE_DIRECTORY {
                "/"
            } else {
                ""
            };
            let s = &entry.stat;
            let flags = u32::from(entry.stage) << 12
                | u32::from(entry.is_assume_unchanged) << 15
                | u32::from(entry.is_intent_to_add) << 29
                | u32::from(entry.is_skip_worktree) << 30;
            write!(
                out,
                "{:06o} {} {}\t{}{slash}\0  ctime: {}:{}\n  mtime: {}:{}\n  dev: {}\tino: {}\n  \
                 uid: {}\tgid: {}\n  size: {}\tflags: {:x}\n",
                entry.mode,
                entry.id,
                entry.stage,
                String::from_utf8_lossy(entry.path.as_bytes()),
                s.ctime.0,
                s.ctime.1,
                s.mtime.0,
                s.mtime.1,
                s.dev,
                s.ino,
                s.uid,
                s.gid,
                s.size,
                flags,
            )
            .unwrap();
        }
        out
    }

    /// git's own view, with the bits left out of the flags that only say how they are stored.
    fn git_prints(repository: &TestRepository) -> String {
        const ON_DISK: u32 = 0x6000_b000;
        let args = ["ls-files", "--stage", "--debug", "--sparse", "-z"];
        let output = repository.run(&repository.path, &args);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = |line: &str| match line.split_once("flags: ") {
            Some((head, flags)) => {
                let flags = u32::from_str_radix(flags, 16).unwrap() & ON_DISK;
                format!("{head}flags: {flags:x}\n")
            }
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    }

    fn assert_read_as_by_git(repository: &TestRepository) -> UserIndex {
        let index = read(repository);
        assert!(!index.entries.is_empty());
        assert_eq!(as_git_prints(&index), git_prints(repository));
        index
    }

    fn with_files() -> TestRepository {
        let repository = TestRepository::new();
        for directory in ["", "a/", "a/deep/er/", "dir/", "dir-x/", "z/"] {
            for name in ["one", "two", "three", "long name with blanks in it"] {
                let path = format!("{directory}{name}");
                repository.write(&path, format!("{path}\n"));
                // Older than the index, or git holds every entry for racy.
                let file = fs::File::open(repository.path.join(&path)).unwrap();
                let day = std::time::Duration::from_secs(24 * 60 * 60);
                let now = file.metadata().unwrap().modified().unwrap();
                file.set_modified(now - day).unwrap();
            }
        }
        repository.write(b"not utf-8 \xff", "x");
        repository.write("x".repeat(200), "x");
        std::os::unix::fs::symlink("one", repository.path.join("link")).unwrap();
        let script = repository.path.join("run.sh");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let mut permissions = fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(&script, permissions).unwrap();
        repository.commit("files");
        repository
    }

    #[test]
    fn version_2_reads_as_git_reads_it() {
        let repository = with_files();
        let index = assert_read_as_by_git(&repository);
        assert_eq!(index.version, 2);
        assert_eq!(index.shared_id, None);
    }

    #[test]
    fn version_3_brings_intent_to_add_and_assume_unchanged() {
        let repository = with_files();
        repository.write("planned", "not yet\n");
        repository.git(&["add", "--intent-to-add", "planned"]);
        repository.git(&["update-index", "--assume-unchanged", "a/one"]);
        repository.git(&["update-index", "--skip-worktree", "a/two"]);

        let index = assert_read_as_by_git(&repository);

        assert_eq!(index.version, 3);
        let with = |is: fn(&IndexEntry) -> bool| -> Vec<&[u8]> {
            let found = index.entries.iter().filter(|e| is(e));
            found.map(|e| e.path.as_bytes()).collect()
        };
        assert_eq!(with(|e| e.is_intent_to_add), [b"planned"]);
        assert_eq!(with(|e| e.is_assume_unchanged), [b"a/one"]);
        assert_eq!(with(|e| e.is_skip_worktree), [b"a/two"]);
    }

    #[test]
    fn version_4_builds_each_path_on_the_one_before() {
        let repository = with_files();
        repository.git(&["update-index", "--index-version", "4"]);
        assert_eq!(assert_read_as_by_git(&repository).version, 4);
    }

    #[test]
    fn version_4_written_in_blocks_by_several_threads_reads_the_same() {
        let repository = with_files();
        repository.git(&[
            "-c",
            "index.threads=4",
            "-c",
            "index.version=4",
            "update-index",
            "--index-version",
            "4",
            "--force-write-index",
        ]);
        assert_read_as_by_git(&repository);
    }

    #[test]
    fn a_path_longer_than_its_length_field_is_read_whole() {
        let repository = TestRepository::new();
        let id = repository.git(&["hash-object", "-w", "-t", "blob", "/dev/null"]);
        let path = vec!["d".repeat(200); 22].join("/");
        assert!(path.len() > 0xfff);
        let entry = format!("100644,{id},{path}");
        repository.git(&["update-index", "--add", "--cacheinfo", &entry]);
        for version in ["2", "4"] {
            repository.git(&["update-index", "--index-version", version]);
            let index = assert_read_as_by_git(&repository);
            assert_eq!(index.entries[0].path.as_bytes(), path.as_bytes());
        }
    }

    #[test]
    fn a_split_index_is_merged_with_the_shared_one() {
        for version in ["2", "4"] {
            let repository = with_files();
            repository.git(&["update-index", "--index-version", version]);
            repository.git(&["config", "splitIndex.maxPercentChange", "100"]);
            repository.git(&["update-index", "--split-index"]);
            assert_read_as_by_git(&repository);
            // One replaced, one deleted, three added: at the beginning, between and at the end.
            repository.write("a/one", "changed\n");
            for name in ["!first", "a/new", "zz"] {
                repository.write(name, "new\n");
            }
            repository.git(&["add", "-A"]);
            repository.git(&["rm", "-q", "a/two", "dir/one"]);

            let index = assert_read_as_by_git(&repository);

            let shared_id = index.shared_id.expect("it is split");
            let shared = format!(".git/sharedindex.{shared_id}");
            assert!(repository.path.join(shared).exists());
            let own = parse_file(&index_bytes(&repository)).unwrap();
            assert!(own.entries[0].path.is_root(), "something was replaced");
            assert!(own.entries.len() < index.entries.len());
        }
    }

    #[test]
    fn a_split_index_with_a_wrong_shared_one_is_an_error() {
        let repository = with_files();
        repository.git(&["update-index", "--split-index"]);
        let bytes = index_bytes(&repository);
        let other = index_bytes(&with_files());
        let result = parse(&bytes, &mut |_| Ok::<_, IndexError>(other.clone()));
        assert_eq!(
            result,
            Err(IndexError::BadLink("the shared index is another one"))
        );
        let missing = IndexError::Truncated("the callback's own error");
        let result = parse(&bytes, &mut |_| Err(missing.clone()));
        assert_eq!(result, Err(missing), "it comes back as it is");
    }

    #[test]
    fn a_sparse_index_has_directories() {
        let repository = with_files();
        repository.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "a"]);
        let index = assert_read_as_by_git(&repository);
        let directories = index
            .entries
            .iter()
            .filter(|e| e.mode == MODE_SPARSE_DIRECTORY);
        let paths: Vec<&[u8]> = directories.map(|e| e.path.as_bytes()).collect();
        assert_eq!(paths, [&b"dir-x"[..], b"dir", b"z"]);
        let tree = repository.git(&["rev-parse", "HEAD:z"]);
        assert_eq!(index.entries.last().unwrap().id.to_string(), tree);
    }

    #[test]
    fn a_conflict_has_three_stages() {
        let repository = with_files();
        repository.git(&["checkout", "-q", "-b", "side"]);
        repository.write("a/one", "theirs\n");
        repository.commit("theirs");
        repository.git(&["checkout", "-q", "main"]);
        repository.write("a/one", "ours\n");
        repository.commit("ours");
        repository.run(&repository.path, &["merge", "-q", "side"]);

        let index = assert_read_as_by_git(&repository);

        let conflicted = index.entries.iter().filter(|e| e.stage != 0);
        let stages: Vec<u8> = conflicted.map(|e| e.stage).collect();
        assert_eq!(stages, [1, 2, 3]);
    }

    #[test]
    fn a_checksum_that_git_left_out_is_not_missed() {
        let repository = with_files();
        repository.git(&["config", "index.skipHash", "true"]);
        repository.write("one", "changed\n");
        repository.git(&["add", "one"]);
        assert!(index_bytes(&repository).ends_with(&[0; TRAILER_BYTES]));
        assert_read_as_by_git(&repository);
    }

    #[test]
    fn optional_extensions_are_passed_over() {
        let repository = with_files();
        repository.git(&["update-index", "--untracked-cache"]);
        repository.git(&[
            "-c",
            "core.fsmonitor=printf 'token\\0/\\0' #",
            "update-index",
            "--fsmonitor",
        ]);
        let bytes = index_bytes(&repository);
        for extension in [b"TREE", b"UNTR", b"FSMN"] {
            let found = bytes.windows(4).any(|w| w == extension);
            assert!(found, "{}", String::from_utf8_lossy(extension));
        }
        let names: Vec<String> = parse_alone(&bytes)
            .unwrap()
            .entries
            .iter()
            .map(|e| e.path.to_string())
            .collect();
        assert_eq!(names.len(), with_files_index().entries.len());
    }

    fn with_files_index() -> &'static UserIndex {
        static INDEX: OnceLock<UserIndex> = OnceLock::new();
        INDEX.get_or_init(|| read(&with_files()))
    }

    #[test]
    fn an_index_loses_its_cache_of_trees_and_nothing_else() {
        for options in [
            &["-c", "index.skipHash=true"][..],
            &["-c", "index.threads=4"],
            &[],
        ] {
            let repository = with_files();
            let git = |arguments: &[&str]| repository.git(&[options, arguments].concat());
            git(&["update-index", "--untracked-cache", "--force-write-index"]);
            git(&["commit", "-q", "--allow-empty", "-m", "x"]);
            let bytes = index_bytes(&repository);
            let trees = cached_trees(&bytes);
            let told = git(&["ls-tree", "-r", "-d", "--format=%(objectname)", "HEAD"]);
            let mut known: Vec<String> = told.lines().map(str::to_owned).collect();
            known.push(git(&["rev-parse", "HEAD^{tree}"]));
            let mut named: Vec<String> = trees.iter().map(ObjectId::to_string).collect();
            named.sort();
            known.sort();
            assert_eq!(named, known);
            let without = without_cached_trees(&bytes).unwrap();
            assert_eq!(cached_trees(&without), []);
            assert!(without.windows(4).any(|four| four == b"UNTR"));
            assert_eq!(parse_alone(&without), parse_alone(&bytes));
            let again = without_cached_trees(&without).unwrap();
            assert_eq!(again, without);
            fs::write(repository.path.join(".git/index"), &without).unwrap();
            git(&["fsck", "--full", "--strict"]);
            assert_read_as_by_git(&repository);
        }
    }

    #[test]
    fn an_index_without_entries_is_read() {
        let repository = with_files();
        repository.git(&["rm", "-q", "-r", "."]);
        assert_eq!(read(&repository).entries, []);
    }

    /// The same bytes with a checksum that fits.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let end = bytes.len() - TRAILER_BYTES;
        let checksum = Sha1::digest(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum);
        bytes
    }

    /// A version 2 index with these paths, and extensions after them.
    fn index_of(entries: &[(u32, &[u8], u16)], extensions: &[u8]) -> Vec<u8> {
        let mut bytes = b"DIRC\0\0\0\x02".to_vec();
        bytes.extend((entries.len() as u32).to_be_bytes());
        for (mode, path, stage) in entries {
            let start = bytes.len();
            bytes.extend([1; 24]);
            bytes.extend(mode.to_be_bytes());
            bytes.extend([1; 12]);
            bytes.extend([7; 20]);
            let flags = stage << 12 | path.len().min(0xfff) as u16;
            bytes.extend(flags.to_be_bytes());
            bytes.extend(*path);
            let unpadded = bytes.len() - start;
            bytes.resize(start + unpadded + 8 - unpadded % 8, 0);
        }
        bytes.extend(extensions);
        bytes.extend([0; TRAILER_BYTES]);
        sealed(bytes)
    }

    fn index_of_paths(paths: &[&str]) -> Vec<u8> {
        let entries: Vec<_> = paths.iter().map(|p| (MODE_FILE, p.as_bytes(), 0)).collect();
        index_of(&entries, b"")
    }

    #[test]
    fn the_builder_of_these_tests_makes_an_index_that_git_reads() {
        let repository = TestRepository::new();
        let bytes = index_of_paths(&["a", "b/c", "b/d"]);
        fs::write(repository.path.join(".git/index"), bytes).unwrap();
        assert_read_as_by_git(&repository);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in [
            "..",
            "a/../b",
            "/a",
            "a//b",
            "a/",
            "./a",
            ".git",
            "a/.git/x",
            ".GiT/config",
        ] {
            let result = parse_alone(&index_of_paths(&[path]));
            assert!(
                matches!(
                    result,
                    Err(IndexError::BadPath { position: 0, .. }
                        | IndexError::BadEntry { position: 0, .. })
                ),
                "{path}: {result:?}"
            );
        }
        for path in [".gitignore", ".github/x", "a.git/x", "...", ".gi"] {
            assert!(parse_alone(&index_of_paths(&[path])).is_ok(), "{path}");
        }
        let no_path = parse_alone(&index_of_paths(&[""]));
        let reason = "has no path";
        assert_eq!(
            no_path,
            Err(IndexError::BadEntry {
                position: 0,
                reason
            })
        );
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        let unsorted = |entries: &[(u32, &[u8], u16)]| {
            matches!(
                parse_alone(&index_of(entries, b"")),
                Err(IndexError::Unsorted { position: 1, .. })
            )
        };
        let file = MODE_FILE;
        assert!(unsorted(&[(file, b"b", 0), (file, b"a", 0)]));
        assert!(unsorted(&[(file, b"a", 0), (file, b"a", 0)]), "twice");
        assert!(
            unsorted(&[(file, b"a", 0), (file, b"a", 1)]),
            "merged and unmerged"
        );
        assert!(unsorted(&[(file, b"a", 2), (file, b"a", 1)]));
        assert!(!unsorted(&[(file, b"a", 1), (file, b"a", 3)]));
    }

    #[test]
    fn modes_that_git_does_not_write_are_refused() {
        for mode in [0, 0o100_600, 0o100_664, 0o060_000, u32::MAX] {
            let result = parse_alone(&index_of(&[(mode, b"a", 0)], b""));
            assert!(matches!(result, Err(IndexError::BadEntry { .. })));
        }
        let directory = [(MODE_SPARSE_DIRECTORY, &b"a/"[..], 0)];
        assert!(
            parse_alone(&index_of(&directory, b"")).is_err(),
            "only a sparse index has directories"
        );
        assert!(parse_alone(&index_of(&directory, b"sdir\0\0\0\0")).is_ok());
    }

    #[test]
    fn an_extension_that_is_nested_deeply_is_passed_over() {
        let levels = 200_000;
        // A name, a NUL, no entries that are known, and one directory below.
        let trees = b"d\0-1 1\n".repeat(levels);
        // No names, one directory below, and a name.
        let untracked = b"\0\x01d\0".repeat(levels);
        for (name, content) in [(b"TREE", trees), (b"UNTR", untracked)] {
            let length = u32::try_from(content.len()).unwrap().to_be_bytes();
            let extension = [&name[..], &length, &content].concat();
            let bytes = index_of(&[(MODE_FILE, b"a", 0)], &extension);
            assert_eq!(parse_alone(&bytes).unwrap().entries.len(), 1);
            assert!(cached_trees(&bytes).is_empty());
        }
    }

    #[test]
    fn an_unknown_extension_is_named_unless_it_is_optional() {
        let with = |extension: &[u8]| parse_alone(&index_of(&[(MODE_FILE, b"a", 0)], extension));
        assert!(with(b"ABCD\0\0\0\x02xy").is_ok());
        let error = with(b"abcd\0\0\0\x02xy").unwrap_err();
        assert_eq!(error, IndexError::UnsupportedExtension("abcd".to_owned()));
        assert!(error.is_unsupported());
        assert_eq!(
            with(b"ABCD\0\0\0\x03xy"),
            Err(IndexError::Truncated("an extension"))
        );
    }

    #[test]
    fn other_versions_are_unsupported_and_other_files_are_no_index() {
        for version in [0, 1, 5, u32::MAX] {
            let mut bytes = index_of_paths(&["a"]);
            bytes[4..8].copy_from_slice(&version.to_be_bytes());
            let error = parse_alone(&bytes).unwrap_err();
            assert_eq!(error, IndexError::UnsupportedVersion(version));
        }
        for bytes in [&b""[..], b"DIRC", &[0; 100]] {
            assert_eq!(parse_alone(bytes), Err(IndexError::NotAnIndex));
        }
    }

    #[test]
    fn one_flipped_bit_is_a_wrong_checksum() {
        let mut bytes = index_of_paths(&["a"]);
        bytes[20] ^= 1;
        let result = parse_alone(&bytes);
        assert!(matches!(result, Err(IndexError::Checksum { .. })));
    }

    #[test]
    fn a_count_that_cannot_fit_is_refused_before_memory_is_taken() {
        let mut bytes = index_of_paths(&["a"]);
        bytes[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(
            parse_alone(&sealed(bytes)),
            Err(IndexError::Truncated("its entries"))
        );
    }

    #[test]
    fn a_small_file_cannot_claim_paths_without_end() {
        // Version 4: the first path is long, and each one after it shares all of it but one byte.
        let mut bytes = b"DIRC\0\0\0\x04".to_vec();
        let count = 2000_u32;
        bytes.extend(count.to_be_bytes());
        for n in 0..count {
            bytes.extend([1; 24]);
            bytes.extend(MODE_FILE.to_be_bytes());
            bytes.extend([1; 32]);
            bytes.extend([0x0f, 0xff]);
            bytes.push(0);
            let long = if n == 0 { 60_000 } else { 1 };
            bytes.extend(vec![b'a'; long]);
            bytes.push(0);
        }
        bytes.extend([0; TRAILER_BYTES]);
        let result = parse_alone(&bytes);
        assert!(matches!(result, Err(IndexError::PathsTooLong { .. })));
    }

    #[test]
    fn a_bitmap_that_claims_more_than_there_is_ends_at_once() {
        // A run of 2^32 - 1 words of ones, and one of zeros.
        for run in [0x1_ffff_ffff_u64, 0x1_ffff_fffe] {
            let bitmap = Bitmap {
                words: vec![run, 1 << 33, 1],
            };
            let mut visited = 0;
            let result = bitmap.each(10, |_| {
                visited += 1;
                Ok(())
            });
            assert!(matches!(result, Err(IndexError::BadLink(_))));
            assert!(visited <= 10);
        }
    }

    /// Indexes that git made, with their shared ones: version 2, 4, split, sparse.
    fn real_indexes() -> &'static [(Vec<u8>, Vec<u8>)] {
        static INDEXES: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();
        INDEXES.get_or_init(|| {
            let mut indexes = Vec::new();
            let repository = with_files();
            indexes.push((index_bytes(&repository), Vec::new()));
            repository.git(&["update-index", "--index-version", "4"]);
            indexes.push((index_bytes(&repository), Vec::new()));
            repository.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "a"]);
            indexes.push((index_bytes(&repository), Vec::new()));

            let repository = with_files();
            repository.git(&["config", "splitIndex.maxPercentChange", "100"]);
            repository.git(&["update-index", "--split-index"]);
            repository.write("a/one", "changed\n");
            repository.write("a/new", "new\n");
            repository.git(&["add", "-A"]);
            repository.git(&["rm", "-q", "a/two"]);
            let shared_id = read(&repository).shared_id.unwrap();
            let shared = repository
                .path
                .join(format!(".git/sharedindex.{shared_id}"));
            indexes.push((index_bytes(&repository), fs::read(shared).unwrap()));
            indexes
        })
    }

    /// Visits an index that is said to have `length` bytes, and comes in pieces.
    fn visit_in_pieces(
        bytes: &[u8],
        piece: usize,
        length: usize,
        entries: &mut Vec<IndexEntry>,
    ) -> Result<Visited, IndexError> {
        let mut rest = bytes;
        let mut source = |into: &mut [u8]| {
            let count = rest.len().min(into.len()).min(piece);
            let (taken, left) = rest.split_at(count);
            into[..count].copy_from_slice(taken);
            rest = left;
            Ok(count)
        };
        visit(&mut source, length as u64, &mut |entry| {
            entries.push(entry.to_owned())
        })
    }

    #[test]
    fn an_index_that_is_cut_short_while_it_is_read_is_an_error() {
        let bytes = index_of_paths(&["a", "b/c", "b/d"]);
        let mut entries = Vec::new();
        let whole = visit_in_pieces(&bytes, 7, bytes.len(), &mut entries);
        assert_eq!((whole, entries.len()), (Ok(Visited::All), 3));
        for length in 0..bytes.len() {
            let cut = visit_in_pieces(&bytes[..length], 7, bytes.len(), &mut entries);
            assert!(
                matches!(cut, Err(IndexError::Truncated(_))),
                "{length}: {cut:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn damaged_indexes_are_errors_or_keep_every_promise(
            which in 0_usize..4,
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
            checksum_fits: bool,
            piece in 1_usize..300,
        ) {
            let (original, shared) = &real_indexes()[which];
            let mut bytes = original.clone();
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if checksum_fits && bytes.len() >= TRAILER_BYTES {
                bytes = sealed(bytes);
            }
            let is_intact = bytes == *original;

            let result = parse(&bytes, &mut |_| Ok::<_, IndexError>(shared.clone()));

            let mut visited = Vec::new();
            let seen = visit_in_pieces(&bytes, piece, bytes.len(), &mut visited);
            match (&result, seen) {
                (Ok(index), Ok(Visited::All)) => {
                    prop_assert_eq!(&visited, &index.entries);
                    prop_assert_eq!(index.shared_id, None);
                }
                (Ok(index), Ok(Visited::Split)) => prop_assert!(index.shared_id.is_some()),
                (Err(_), Ok(Visited::Split) | Err(_)) => {}
                (result, seen) => prop_assert!(false, "{result:?}, and visited {seen:?}"),
            }

            match result {
                Ok(index) => {
                    for entry in &index.entries {
                        prop_assert!(!entry.path.is_root());
                        prop_assert!(RelPath::new(entry.path.as_bytes().to_vec()).is_ok());
                        prop_assert!(entry.stage < 4);
                    }
                    let key = |e: &IndexEntry| {
                        let mut path = e.path.as_bytes().to_vec();
                        if e.mode == MODE_SPARSE_DIRECTORY {
                            path.push(b'/');
                        }
                        (path, e.stage)
                    };
                    prop_assert!(index.entries.is_sorted_by(|a, b| key(a) < key(b)));
                }
                Err(error) => prop_assert!(!is_intact, "{error}"),
            }
        }
    }
}
