//! What the last capture saw, so that the next one reads only what changed.
//!
//! The cache only saves time. If it is missing or damaged, or was written by another version, at
//! another boot or for another directory, it is rebuilt, and the answers are the same.

mod delta;
mod file;
mod names;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::descriptor::Stat;
use crate::path::RelPath;
use crate::tree::{ContentId, Entry, EntryKind};

pub use delta::Delta;
pub use file::{OnDisk, Staged, load};
pub(crate) use file::{save, stage};
pub use names::{Entries, NameList};

/// Everything that is known of a workspace from its last capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatCache {
    /// By their paths.
    pub directories: Directories,
    /// The texts of ignore files, by the directory they lie in.
    pub rule_files: HashMap<RelPath, CachedRules>,
    /// The user's index that the tracked entries were last taken from; `None`: there was none.
    pub index: Option<IndexStamp>,
    /// Objects that the user's index names for a path whose captured content is another.
    pub index_only: BTreeMap<RelPath, Vec<ContentId>>,
    /// What the user's index has for a path that a sparse checkout leaves out, where something else
    /// was captured: it counts again once the path is gone from the disk.
    pub not_left_out: BTreeMap<RelPath, Entry>,
    /// The submodules that the user's index has.
    pub submodules: BTreeMap<RelPath, Submodule>,
}

/// What the user's index has for the directory of a submodule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submodule {
    /// Its HEAD.
    pub commit: ContentId,
    /// Whether a sparse checkout leaves the directory out on purpose.
    pub is_sparse: bool,
}

/// Directories by path; the workspace itself is the empty path. One that a capture found as the
/// last capture left it is shared with the last capture's.
pub type Directories = HashMap<RelPath, Arc<CachedDirectory>>;

/// Which state of the user's index the cache agrees with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexStamp {
    /// The index file as it was.
    pub stat: EntryStat,
    /// Whether it may have changed behind an unchanged `stat`.
    pub is_racy: bool,
    /// The blob in the store that holds its bytes.
    pub blob: ContentId,
}

/// A directory as the last capture saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedDirectory {
    /// Files and links.
    pub entries: Entries,
    /// The names of the directories in it that were entered.
    pub children: NameList,
    /// Its permission bits.
    pub mode: u32,
    /// git: the id of its tree; `None` if nothing in it was captured.
    pub tree: Option<ContentId>,
    /// Whether it was there. A directory that is gone is remembered while the index has a path
    /// in it.
    pub is_absent: bool,
    /// How it can be seen that it has the same names as it had; `None`: it has to be listed.
    pub listed: Option<Listed>,
}

/// Proof that a directory was listed whole: while its inode and times stay, so do the names in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The inode of the file.
    pub inode: u64,
    /// Nanoseconds since the Unix epoch.
    pub mtime_ns: i64,
    /// Nanoseconds since the Unix epoch.
    pub ctime_ns: i64,
    /// The names in it that are no entry and no child: what was omitted.
    pub others: NameList,
}

/// A file or link as the last capture saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedEntry {
    /// A file, with what may be done with it, or a link.
    pub kind: EntryKind,
    /// Its content.
    pub id: ContentId,
    /// By which it is known to be unchanged.
    pub stat: EntryStat,
    /// What else is known of it.
    pub flags: Flags,
}

/// The part of `lstat` that tells whether a file changed. Times are nanoseconds since the Unix
/// epoch.
///
/// Packed, so that an entry is 72 bytes and not 80: every file of a workspace has two of them in
/// memory while it is captured for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, packed(4))]
pub struct EntryStat {
    /// In bytes.
    pub size: u64,
    /// Nanoseconds since the Unix epoch.
    pub mtime_ns: i64,
    /// Nanoseconds since the Unix epoch.
    pub ctime_ns: i64,
    /// Its number in the file system.
    pub inode: u64,
    /// Kind and permission bits.
    pub mode: u32,
}

/// What else is known of an entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags(u8);

impl Flags {
    /// The user's index has the path: it is captured whatever the ignore rules say.
    pub const TRACKED: Self = Self(1);
    /// The file may have changed behind an unchanged `stat`.
    pub const RACY: Self = Self(1 << 1);
    /// The stat data is the index's: some of it is cut to 32 bits, and no capture has confirmed it.
    pub const FROM_INDEX: Self = Self(1 << 2);
    /// The index names the same content.
    pub const AS_INDEXED: Self = Self(1 << 3);
    /// The index has the path, and it is not on disk.
    pub const ABSENT: Self = Self(1 << 4);
    /// A sparse checkout leaves the path out on purpose.
    pub const SPARSE: Self = Self(1 << 5);
    /// Whether an absent path is there was not seen, or something else lies in its place.
    pub const UNSEEN: Self = Self(1 << 6);

    #[cfg(test)]
    fn of_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Whether it is set.
    pub fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// The same with it set.
    #[must_use]
    pub fn with(self, flag: Self) -> Self {
        Self(self.0 | flag.0)
    }

    /// The same without it.
    #[must_use]
    pub fn without(self, flag: Self) -> Self {
        Self(self.0 & !flag.0)
    }

    /// The same with it set or not.
    #[must_use]
    pub fn set(self, flag: Self, is_on: bool) -> Self {
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
pub struct CachedRules {
    /// By which it is known to be unchanged.
    pub stat: EntryStat,
    /// Whether it may have been written since without the stat data showing it.
    pub is_racy: bool,
    /// All of it.
    pub text: Vec<u8>,
}

/// Returns whether the file may have changed since `captured_at_ns` behind an unchanged `stat`.
///
/// Times are nanoseconds since the Unix epoch. A file written in the same clock tick as the
/// capture keeps its time, so equal times prove nothing. The rule is git's
/// (`Documentation/technical/racy-git`), with ctime added because a run can set mtime back.
pub fn is_racy(stat: &EntryStat, captured_at_ns: i64) -> bool {
    stat.newest_ns() >= captured_at_ns
}

impl EntryStat {
    /// The latest time at which the file may have been written.
    ///
    /// Inodes of 128 bytes (ext2, ext3, and ext4 that was made so) have room for whole seconds
    /// only: a time without a fraction stands for all of its second.
    pub(crate) fn newest_ns(&self) -> i64 {
        const SECOND: i64 = 1_000_000_000;
        let newest = self.mtime_ns.max(self.ctime_ns);
        match newest % SECOND {
            0 => newest.saturating_add(SECOND - 1),
            _ => newest,
        }
    }

    /// Those of a file that was looked at.
    pub fn of(stat: &Stat) -> Self {
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
    pub fn is_clean(&self, now: &EntryStat) -> bool {
        if self.flags.has(Flags::RACY) || self.flags.has(Flags::ABSENT) {
            return false;
        }
        if seeded_bug!("ctime-not-compared") {
            return (self.stat.size, self.stat.mtime_ns) == (now.size, now.mtime_ns);
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

    /// What a tree says of it.
    pub fn entry(&self) -> Entry {
        Entry {
            kind: self.kind,
            id: self.id,
        }
    }

    /// Whether a capture has this entry: it is on disk, or left out by a sparse checkout.
    pub fn is_captured(&self) -> bool {
        let is_left_out = self.flags.has(Flags::SPARSE) && !self.flags.has(Flags::UNSEEN);
        !self.flags.has(Flags::ABSENT) || is_left_out
    }
}

/// The kind of entry that a mode of the kernel's stands for.
pub fn kind_of_mode(mode: u32) -> Option<EntryKind> {
    match mode & 0o170000 {
        0o100000 if mode & 0o100 != 0 => Some(EntryKind::Executable),
        0o100000 => Some(EntryKind::File),
        0o120000 => Some(EntryKind::Symlink),
        _ => None,
    }
}

impl CachedDirectory {
    /// Whether it is what captures make: names in order, each once.
    fn is_sound(&self) -> bool {
        let others = self.listed.as_ref().map(|listed| &listed.others);
        self.entries.is_sound() && self.children.is_sound() && others.is_none_or(NameList::is_sound)
    }

    /// What is known of the file or link of that name.
    pub fn entry(&self, name: &[u8]) -> Option<&CachedEntry> {
        Some(self.entries.get(self.entries.find(name).ok()?).1)
    }

    /// The names in it that are no entry and no child, if its stat data `now` proves that it has
    /// the names that it had.
    pub(crate) fn others_at(&self, now: &EntryStat) -> Option<&NameList> {
        let listed = self.listed.as_ref().filter(|_| !self.is_absent)?;
        let is_same = (listed.inode, listed.mtime_ns, listed.ctime_ns)
            == (now.inode, now.mtime_ns, now.ctime_ns);
        is_same.then_some(&listed.others)
    }

    /// The names of the files and links in it that were there.
    pub(crate) fn names_on_disk(&self) -> impl Iterator<Item = &[u8]> {
        let entries = self.entries.iter();
        let on_disk = entries.filter(|(_, entry)| !entry.flags.has(Flags::ABSENT));
        on_disk.map(|(name, _)| name)
    }

    /// Whether it was seen to have `name`; also true if not all of its names are known.
    pub(crate) fn may_have(&self, name: &[u8]) -> bool {
        let is_other = |listed: &Listed| listed.others.contains(name);
        self.entry(name)
            .is_some_and(|e| !e.flags.has(Flags::ABSENT))
            || self.children.contains(name)
            || self.listed.as_ref().is_none_or(is_other)
    }

    /// Whether it is the same as `other`, whatever their trees.
    pub(crate) fn is_same_but_tree(&self, other: &Self) -> bool {
        self.entries == other.entries
            && self.children == other.children
            && self.mode == other.mode
            && self.is_absent == other.is_absent
            && self.listed == other.listed
    }

    /// What was captured, with its names.
    pub fn captured(&self) -> impl Iterator<Item = (&[u8], Entry)> + Clone {
        let entries = self.entries.iter().filter(|(_, e)| e.is_captured());
        entries.map(|(name, entry)| (name, entry.entry()))
    }

    /// Whether the index has a path right in this directory.
    pub fn has_tracked(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|(_, entry)| entry.flags.has(Flags::TRACKED))
    }
}

impl StatCache {
    /// The file or link at `path`, if the last capture saw one or the index has one.
    pub fn entry(&self, path: &RelPath) -> Option<&CachedEntry> {
        self.directories.get(&path.parent()?)?.entry(path.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_fraction_stands_for_its_whole_second() {
        let written = |mtime_ns, ctime_ns| EntryStat {
            mtime_ns,
            ctime_ns,
            ..Default::default()
        };
        let second = 1_000_000_000;
        let whole = written(7 * second, 7 * second);
        assert!(is_racy(&whole, 7 * second + second / 2), "in that second");
        assert!(!is_racy(&whole, 8 * second), "a second later");
        let exact = written(7 * second, 7 * second + 1);
        assert!(!is_racy(&exact, 7 * second + 2), "one of the two is exact");
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
