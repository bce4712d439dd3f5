//! What the last capture saw, so that the next one reads only what changed.
//!
//! The cache is a convenience: missing, damaged, or written by another version, at another boot or
//! for another directory it is built anew, and the answer is the same.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bincode::Options as _;
use serde::{Deserialize, Serialize};

use crate::error::PathError;
use crate::path::RelPath;
use crate::tree::{ContentId, Entry, EntryKind};
use crate::workspace::Identity;
use crate::worktree::durable;
use crate::worktree::root::Stat;

/// Everything that is known of a workspace from its last capture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StatCache {
    /// By path; the workspace itself is the empty path.
    pub(crate) directories: HashMap<RelPath, CachedDirectory>,
    /// The texts of ignore files, by the directory they lie in.
    pub(crate) rule_files: HashMap<RelPath, CachedRules>,
    /// The user's index that the tracked entries were last taken from; `None`: there was none.
    pub(crate) index: Option<IndexStamp>,
    /// Objects that the user's index names for a path whose captured content is another.
    pub(crate) index_only: BTreeMap<RelPath, Vec<ContentId>>,
    /// What the user's index has for a path that a sparse checkout leaves out, where something else
    /// was captured: it counts again once the path is gone from the disk.
    pub(crate) not_left_out: BTreeMap<RelPath, Entry>,
}

/// Which state of the user's index the cache agrees with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexStamp {
    /// The index file as it was.
    pub(crate) stat: EntryStat,
    /// Whether it may have changed behind an unchanged `stat`.
    pub(crate) is_racy: bool,
    /// The blob in the store that holds its bytes.
    pub(crate) blob: ContentId,
}

/// A directory as the last capture saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedDirectory {
    /// Files and links, sorted by name.
    pub(crate) entries: Vec<CachedEntry>,
    /// The names of the directories in it that were entered, sorted.
    pub(crate) children: Vec<Box<[u8]>>,
    /// Its permission bits.
    pub(crate) mode: u32,
    /// git: the id of its tree; `None` if nothing in it was captured.
    pub(crate) tree: Option<ContentId>,
    /// Whether it was there. A directory that is gone is remembered while the index has a path
    /// in it.
    pub(crate) is_absent: bool,
}

/// A file or link as the last capture saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedEntry {
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: EntryKind,
    pub(crate) id: ContentId,
    pub(crate) stat: EntryStat,
    pub(crate) flags: Flags,
}

/// The part of `lstat` that tells whether a file changed. Times are nanoseconds since the Unix
/// epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryStat {
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) inode: u64,
    /// Kind and permission bits.
    pub(crate) mode: u32,
}

/// What else is known of an entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flags(u8);

impl Flags {
    /// The user's index has the path: it is captured whatever the ignore rules say.
    pub(crate) const TRACKED: Self = Self(1);
    /// The file may have changed behind an unchanged `stat`.
    pub(crate) const RACY: Self = Self(1 << 1);
    /// The stat data is the index's: some of it is cut to 32 bits, and no capture has confirmed it.
    pub(crate) const FROM_INDEX: Self = Self(1 << 2);
    /// The index names the same content.
    pub(crate) const AS_INDEXED: Self = Self(1 << 3);
    /// The index has the path, and it is not on disk.
    pub(crate) const ABSENT: Self = Self(1 << 4);
    /// A sparse checkout leaves the path out on purpose.
    pub(crate) const SPARSE: Self = Self(1 << 5);
    /// Whether an absent path is there was not seen, or something else lies in its place.
    pub(crate) const UNSEEN: Self = Self(1 << 6);

    pub(crate) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    #[must_use]
    pub(crate) fn with(self, flag: Self) -> Self {
        Self(self.0 | flag.0)
    }

    #[must_use]
    pub(crate) fn without(self, flag: Self) -> Self {
        Self(self.0 & !flag.0)
    }

    #[must_use]
    pub(crate) fn set(self, flag: Self, is_on: bool) -> Self {
        if is_on {
            self.with(flag)
        } else {
            self.without(flag)
        }
    }
}

impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#08b}", self.0)
    }
}

/// The text of an ignore file, kept so that an unchanged one is not read again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedRules {
    pub(crate) stat: EntryStat,
    pub(crate) is_racy: bool,
    pub(crate) text: Vec<u8>,
}

/// Returns whether the file may have changed since `captured_at_ns` behind an unchanged `stat`.
///
/// Times are nanoseconds since the Unix epoch. A file written in the same clock tick as the
/// capture keeps its time, so equal times prove nothing. The rule is git's
/// (`Documentation/technical/racy-git`), with ctime added because a run can set mtime back.
pub(crate) fn is_racy(stat: &EntryStat, captured_at_ns: i64) -> bool {
    stat.mtime_ns.max(stat.ctime_ns) >= captured_at_ns
}

impl EntryStat {
    pub(crate) fn of(stat: &Stat) -> Self {
        let ns = |t: i128| i64::try_from(t).unwrap_or(if t < 0 { i64::MIN } else { i64::MAX });
        Self {
            size: stat.size,
            mtime_ns: ns(stat.mtime_ns),
            ctime_ns: ns(stat.ctime_ns),
            inode: stat.inode,
            mode: stat.mode,
        }
    }
}

impl CachedEntry {
    /// Whether the content on disk still is `id`, going by `now`.
    pub(crate) fn is_clean(&self, now: &EntryStat) -> bool {
        if self.flags.has(Flags::RACY) || self.flags.has(Flags::ABSENT) {
            return false;
        }
        if !self.flags.has(Flags::FROM_INDEX) {
            return self.stat == *now;
        }
        // The index keeps sizes and inodes in 32 bits, and of the mode only what git records.
        let was = &self.stat;
        was.size as u32 == now.size as u32
            && was.inode as u32 == now.inode as u32
            && was.mtime_ns == now.mtime_ns
            && was.ctime_ns == now.ctime_ns
            && kind_of_mode(now.mode) == Some(self.kind)
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry {
            kind: self.kind,
            id: self.id,
        }
    }

    /// Whether a capture has this entry: it is on disk, or left out by a sparse checkout.
    pub(crate) fn is_captured(&self) -> bool {
        let is_left_out = self.flags.has(Flags::SPARSE) && !self.flags.has(Flags::UNSEEN);
        !self.flags.has(Flags::ABSENT) || is_left_out
    }
}

/// The kind of entry that a mode of the kernel's stands for.
pub(crate) fn kind_of_mode(mode: u32) -> Option<EntryKind> {
    match mode & 0o170000 {
        0o100000 if mode & 0o100 != 0 => Some(EntryKind::Executable),
        0o100000 => Some(EntryKind::File),
        0o120000 => Some(EntryKind::Symlink),
        _ => None,
    }
}

impl CachedDirectory {
    pub(crate) fn entry(&self, name: &[u8]) -> Option<&CachedEntry> {
        let at = self
            .entries
            .binary_search_by(|e| (*e.name).cmp(name))
            .ok()?;
        Some(&self.entries[at])
    }

    /// Whether the index has a path right in this directory.
    pub(crate) fn has_tracked(&self) -> bool {
        self.entries.iter().any(|e| e.flags.has(Flags::TRACKED))
    }
}

impl StatCache {
    /// The file or link at `path`, if the last capture saw one or the index has one.
    pub(crate) fn entry(&self, path: &RelPath) -> Option<&CachedEntry> {
        self.directories.get(&path.parent()?)?.entry(path.name())
    }
}

/// Where the cache was written, so that it is believed only there.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    version: u32,
    workspace: Identity,
    /// The kernel's id of this boot: after another one the clock may have gone backwards.
    boot: String,
}

const MAGIC: &[u8; 8] = b"sfstats\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = MAGIC.len() + 8 + 32;

/// Far above the entries of any workspace that fits in memory; it bounds what a damaged length
/// field can ask for.
const MAX_BYTES: u64 = 16 << 30;

fn codec() -> impl bincode::Options {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_limit(MAX_BYTES)
        .reject_trailing_bytes()
}

/// `None` if the kernel does not say which boot this is.
fn origin(workspace: Identity) -> Option<Origin> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(Origin {
        version: VERSION,
        workspace,
        boot: boot.trim().to_owned(),
    })
}

/// The file's bytes: magic, length of the body, blake3 of the body, body.
fn encode(cache: &StatCache, origin: &Origin) -> Vec<u8> {
    let body = codec()
        .serialize(&(origin, cache))
        .expect("the cache is plain data in memory");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(blake3::hash(&body).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// `None` unless the bytes are exactly what [`encode`] made for `expected`.
fn decode(bytes: &[u8], expected: &Origin) -> Option<StatCache> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (digest, body) = rest.split_first_chunk::<32>()?;
    if u64::from_le_bytes(*length) != body.len() as u64 || blake3::hash(body).as_bytes() != digest {
        return None;
    }
    let (origin, cache): (Origin, StatCache) = codec().deserialize(body).ok()?;
    (origin == *expected).then_some(cache)
}

/// Reads the cache at `path`. Whatever is wrong with it, the answer is `None`.
pub(crate) fn load(path: &Path, workspace: Identity) -> Option<StatCache> {
    decode(&durable::read(path).ok()??, &origin(workspace)?)
}

/// Replaces the cache at `path`. It is not synced: after a power cut it is whole, old or useless,
/// and a useless one is built anew.
pub(crate) fn save(cache: &StatCache, path: &Path, workspace: Identity) -> Result<(), PathError> {
    let Some(origin) = origin(workspace) else {
        return Ok(());
    };
    let directory = path.parent().expect("the cache lies in the store");
    let staged = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempfile_in(directory)
        .map_err(PathError::at("make a temporary file in", directory))?;
    std::fs::write(staged.path(), encode(cache, &origin)).map_err(PathError::at("write", path))?;
    staged
        .persist(path)
        .map_err(|e| PathError::at("rename into", path)(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> StatCache {
        let entry = CachedEntry {
            name: b"f\xff".as_slice().into(),
            kind: EntryKind::File,
            id: ContentId::Sha1([7; 20]),
            stat: EntryStat {
                size: 3,
                mtime_ns: 10,
                ctime_ns: 11,
                inode: 4,
                mode: 0o100644,
            },
            flags: Flags::TRACKED,
        };
        let directory = CachedDirectory {
            entries: vec![entry],
            ..Default::default()
        };
        StatCache {
            directories: HashMap::from([(RelPath::root(), directory)]),
            ..Default::default()
        }
    }

    #[test]
    fn a_cache_is_read_back_as_it_was_written() {
        let origin = origin(Identity {
            device: 1,
            inode: 2,
        })
        .expect("a boot id");
        let read = decode(&encode(&cache(), &origin), &origin).expect("it is whole");
        assert_eq!(
            read.directories,
            cache().directories,
            "every field survives"
        );
    }

    #[test]
    fn a_cache_with_any_bit_flipped_or_cut_is_not_believed() {
        let origin = origin(Identity {
            device: 1,
            inode: 2,
        })
        .expect("a boot id");
        let bytes = encode(&cache(), &origin);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode(&damaged, &origin).is_none(), "bit 0 of byte {at}");
            assert!(decode(&bytes[..at], &origin).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_cache_of_another_directory_or_boot_is_not_believed() {
        let here = origin(Identity {
            device: 1,
            inode: 2,
        })
        .expect("a boot id");
        let bytes = encode(&cache(), &here);
        let there = origin(Identity {
            device: 1,
            inode: 3,
        })
        .expect("a boot id");
        assert!(
            decode(&bytes, &there).is_none(),
            "another inode is another directory"
        );
        let later = Origin {
            boot: "another".to_owned(),
            ..here
        };
        assert!(
            decode(&bytes, &later).is_none(),
            "the clock may have gone backwards since"
        );
    }

    #[test]
    fn equal_times_prove_nothing() {
        let stat = |mtime_ns, ctime_ns| EntryStat {
            mtime_ns,
            ctime_ns,
            ..Default::default()
        };
        for (mtime, ctime, racy) in [
            (9, 9, false),
            (10, 9, true),
            (9, 10, true),
            (11, 0, true),
            (0, 11, true),
        ] {
            assert_eq!(
                is_racy(&stat(mtime, ctime), 10),
                racy,
                "mtime {mtime}, ctime {ctime}"
            );
        }
    }
}
