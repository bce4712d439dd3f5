//! What the last capture saw, so that the next one reads only what changed.
//!
//! The cache is a convenience: missing, damaged, or written by another version, at another boot or
//! for another directory it is built anew, and the answer is the same.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::codec::{Format, TooLong};
use crate::error::PathError;
use crate::path::RelPath;
use crate::tree::{ContentId, Entry, EntryKind};
use crate::workspace::Identity;
use crate::worktree::durable;
use crate::worktree::root::Stat;

/// Everything that is known of a workspace from its last capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    workspace: Identity,
    /// The kernel's id of this boot: after another one the clock may have gone backwards.
    boot: String,
}

const FORMAT: Format = Format {
    magic: *b"sfstats\n",
    version: 2,
    max_bytes: MAX_BYTES,
};

/// Tens of millions of files.
const MAX_BYTES: u64 = 4 << 30;

/// `None` if the kernel does not say which boot this is.
fn origin(workspace: Identity) -> Option<Origin> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(Origin {
        workspace,
        boot: boot.trim().to_owned(),
    })
}

/// `None` unless the bytes are a cache that was written for `expected`.
fn decode(bytes: &[u8], expected: &Origin) -> Option<StatCache> {
    let (origin, cache): (Origin, StatCache) = FORMAT.decode(bytes).ok()?;
    (origin == *expected).then_some(cache)
}

/// Reads the cache at `path`. Whatever is wrong with it, the answer is `None`.
pub(crate) fn load(path: &Path, workspace: Identity) -> Option<StatCache> {
    let bytes = durable::read(path, MAX_BYTES).ok()??;
    decode(&bytes, &origin(workspace)?)
}

/// Replaces the cache at `path`. It is not synced: after a power cut it is whole, old or useless,
/// and a useless one is built anew.
pub(crate) fn save(cache: &StatCache, path: &Path, workspace: Identity) -> Result<(), PathError> {
    let Some(origin) = origin(workspace) else {
        return Ok(());
    };
    match FORMAT.encode(&(origin, cache)) {
        Ok(bytes) => durable::replace_unsynced(path, &bytes),
        // One that nobody would read is not written.
        Err(TooLong) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::contract;

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

    fn here() -> Origin {
        origin(Identity {
            device: 1,
            inode: 2,
        })
        .expect("a boot id")
    }

    fn encode(cache: &StatCache, origin: &Origin) -> Vec<u8> {
        FORMAT.encode(&(origin, cache)).expect("it is short")
    }

    #[test]
    fn only_a_whole_cache_is_believed() {
        let bytes = encode(&cache(), &here());
        contract::only_whole_files_are_read(&bytes, &cache(), |bytes| decode(bytes, &here()));
    }

    #[test]
    fn a_cache_of_another_version_is_not_believed() {
        for version in [FORMAT.version - 1, FORMAT.version + 1] {
            let other = Format { version, ..FORMAT };
            let bytes = other.encode(&(here(), cache())).expect("it is short");
            assert_eq!(decode(&bytes, &here()), None, "version {version}");
        }
    }

    #[test]
    fn lengths_that_lie_are_found_before_anything_is_allocated() {
        let bytes = encode(&StatCache::default(), &here());
        // Behind device, inode and the boot id: every field of an empty cache but the index is a
        // length.
        let boot = here().boot.len();
        let lengths = [16, 24 + boot, 32 + boot, 41 + boot, 49 + boot];
        assert_eq!(contract::body_bytes(&bytes), 57 + boot);
        for at in lengths {
            let absurd = contract::with_absurd_length(&FORMAT, &bytes, at);
            assert_eq!(decode(&absurd, &here()), None, "at {at}");
        }
    }

    fn any_cache() -> impl Strategy<Value = StatCache> {
        let stat = || {
            (any::<(u64, i64, i64)>(), any::<(u64, u32)>()).prop_map(|(a, b)| EntryStat {
                size: a.0,
                mtime_ns: a.1,
                ctime_ns: a.2,
                inode: b.0,
                mode: b.1,
            })
        };
        let path = || "[a-z]{1,3}(/[a-z]{1,3}){0,2}".prop_map(|p| RelPath::new(p).expect("a path"));
        let entry = (any::<Vec<u8>>(), any::<[u8; 20]>(), stat(), any::<u8>()).prop_map(
            |(name, id, stat, flags)| CachedEntry {
                name: name.into(),
                kind: EntryKind::Symlink,
                id: ContentId::Sha1(id),
                stat,
                flags: Flags(flags),
            },
        );
        let directory = (prop::collection::vec(entry, 0..3), any::<(u32, bool)>()).prop_map(
            |(entries, (mode, is_absent))| CachedDirectory {
                entries,
                children: vec![b"child".as_slice().into()],
                mode,
                tree: Some(ContentId::Blake3([1; 32])),
                is_absent,
            },
        );
        let rules =
            (stat(), any::<(bool, Vec<u8>)>()).prop_map(|(stat, (is_racy, text))| CachedRules {
                stat,
                is_racy,
                text,
            });
        (
            prop::collection::hash_map(path(), directory, 0..3),
            prop::collection::hash_map(path(), rules, 0..2),
            prop::option::of((stat(), any::<bool>())),
            prop::collection::btree_map(path(), Just(vec![ContentId::Sha1([2; 20])]), 0..2),
        )
            .prop_map(|(directories, rule_files, index, index_only)| StatCache {
                directories,
                rule_files,
                index: index.map(|(stat, is_racy)| IndexStamp {
                    stat,
                    is_racy,
                    blob: ContentId::Sha1([3; 20]),
                }),
                index_only,
                not_left_out: BTreeMap::new(),
            })
    }

    proptest! {
        #[test]
        fn any_cache_is_read_back_as_it_was_written(cache in any_cache()) {
            prop_assert_eq!(decode(&encode(&cache, &here()), &here()), Some(cache));
        }

        #[test]
        fn any_cache_with_a_bit_flipped_or_cut_is_not_believed(
            cache in any_cache(),
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let mut bytes = encode(&cache, &here());
            let at = at.index(bytes.len());
            prop_assert_eq!(decode(&bytes[..at], &here()), None);
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(decode(&bytes, &here()), None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            decode(&bytes, &here());
            let origin = FORMAT.encode(&here()).expect("it is short");
            let origin = &origin[origin.len() - contract::body_bytes(&origin)..];
            // The same with a checksum that holds.
            decode(&contract::sealed(&FORMAT, &bytes), &here());
            decode(&contract::sealed(&FORMAT, &[origin, &bytes].concat()), &here());
        }
    }

    #[test]
    fn a_cache_of_another_directory_or_boot_is_not_believed() {
        let here = here();
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
