//! An index file, read from its beginning to its end.

use std::cmp::Ordering;

use sha1::{Digest as _, Sha1};

use super::link::Link;
use super::{
    IndexEntry, IndexError, IndexStat, MODE_EXECUTABLE, MODE_FILE, MODE_LINK,
    MODE_SPARSE_DIRECTORY, MODE_SUBMODULE, TRAILER_BYTES,
};
use crate::ObjectId;
use crate::path::RelPath;

/// `DIRC`, version and number of entries.
const HEADER_BYTES: usize = 12;
/// An entry up to its flags: what comes before the name in every version.
const FIXED_ENTRY_BYTES: usize = 62;

/// git assumes that the file is as in the index.
pub(super) const FLAG_ASSUME_UNCHANGED: u16 = 0x8000;
/// Further flags follow.
pub(super) const FLAG_EXTENDED: u16 = 0x4000;
/// The length of the path; all bits set: that much or more.
pub(super) const FLAG_LENGTH: u16 = 0x0fff;
pub(super) const EXTENDED_SKIP_WORKTREE: u16 = 0x4000;
pub(super) const EXTENDED_INTENT_TO_ADD: u16 = 0x2000;

/// The longest path that is read. Names that the kernel takes at once end at 4096 bytes; this
/// leaves room for trees that are deeper, and bounds what one entry of version 4 can claim.
const MAX_PATH_BYTES: usize = 64 * 1024;
/// How many bytes of paths an index may hold for each byte of its file. Version 4 stores only the
/// length of the part that a path shares with the path before it, so a small file could otherwise
/// claim any amount of memory. An entry takes 64 bytes at least: honest paths would have to be a
/// kilobyte long on average.
const MAX_PATH_EXPANSION: usize = 16;

/// What an index file says beside its entries.
pub(super) struct Outline {
    pub(super) version: u32,
    pub(super) link: Option<Link>,
    pub(super) is_sparse: bool,
    /// How much stands between the entries and the checksum.
    pub(super) extension_bytes: u64,
    /// What stands at the end; zero if git left it out.
    pub(super) checksum: ObjectId,
}

/// Reads an index file, and calls `visit` with each entry and whether it sorts after the one
/// before. In a split index the path of an entry may be empty.
pub(super) fn scan<E: From<IndexError>>(
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
