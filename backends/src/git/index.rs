//! Updating the stat cache from the user's index.
//!
//! The user's index says which paths are tracked. For a file that has not changed since, it also
//! says which object has its content. So the first capture of a clean checkout reads no file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::bulk::Bulk;
use crate::git::ObjectId;
use crate::git::object_id::sha1;
use crate::git::user_index::IndexEntry;
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::pace::Pace;
use crate::parallel;
use crate::path::RelPath;
use crate::tree::{ContentId, Entry, EntryKind};
use crate::worktree::stat_cache::{
    CachedDirectory, CachedEntry, Entries, EntryStat, Flags, StatCache, Submodule, is_racy,
};

/// git's mode of a submodule: its id is a commit, and it has no content of its own.
const GITLINK: u32 = 0o160000;

/// git's mode of a directory that a sparse index keeps whole.
const SPARSE_DIRECTORY: u32 = 0o40000;

/// Fewer entries than this are sorted before another thread has begun.
const SORTED_PER_THREAD: usize = 10_000;

/// The id of empty content; an entry of size zero with another id is one that git has marked as
/// possibly changed.
const EMPTY_BLOB: ObjectId = ObjectId([
    0xe6, 0x9d, 0xe2, 0x9b, 0xb2, 0xd1, 0xd6, 0x43, 0x4b, 0x8b, 0x29, 0xae, 0x77, 0x5a, 0xd8, 0xc2,
    0xe4, 0x8c, 0x53, 0x91,
]);

/// Makes `cache` agree about what is tracked with the index that `tracked` was taken from.
///
/// Entries that the cache has keep what a capture found out about them; those that it has not are
/// taken over with the index's own stat data, and the next walk confirms or replaces them. `expand`
/// lists what is below a directory that a sparse index keeps as one entry.
pub(crate) fn agree<E: From<Interrupted>>(
    op: &Operation,
    cache: &mut StatCache,
    tracked: Tracked,
    expand: &mut dyn FnMut(ObjectId) -> Result<Vec<(RelPath, Entry)>, E>,
) -> Result<(), E> {
    let tracked = tracked.expanded(expand)?;
    op.check()?;
    if cache.directories.is_empty() {
        agree_anew(cache, tracked);
        return Ok(op.check()?);
    }
    let before = Bulk::new(op, cache.directories.clone());
    op.check()?;
    let mut touched = forget_tracked(cache);
    let mut pace = Pace::of(op);
    for (path, seeds) in tracked.directories {
        pace.step()?;
        let directory = cache.directories.entry(path.clone());
        let directory = directory.or_insert_with(|| indexed(Entries::default()));
        let directory = Arc::make_mut(directory);
        if directory.entries.is_empty() {
            directory.entries = seeds;
            touched.insert(path);
            continue;
        }
        let mut new = Vec::new();
        for (name, seed) in seeds.iter() {
            let Ok(at) = directory.entries.find(name) else {
                new.push((name, seed.clone()));
                continue;
            };
            let entry = directory.entries.entry_mut(at);
            if seed.flags.has(Flags::SPARSE) && entry.entry() != seed.entry() {
                cache.not_left_out.insert(path.join(name), seed.entry());
            }
            let is_same = entry.id == seed.id && seed.flags.has(Flags::AS_INDEXED);
            if !is_same && seed.flags.has(Flags::AS_INDEXED) {
                let ids = cache.index_only.entry(path.join(name)).or_default();
                ids.push(seed.id);
            }
            entry.flags = entry
                .flags
                .with(Flags::TRACKED)
                .set(Flags::AS_INDEXED, is_same)
                .set(Flags::SPARSE, seed.flags.has(Flags::SPARSE));
        }
        if !new.is_empty() {
            directory.entries.merge(new);
            touched.insert(path);
        }
    }
    // The trees above a submodule have its commit.
    let was = std::mem::replace(&mut cache.submodules, tracked.submodules);
    let is_new = |path: &RelPath| was.get(path) != cache.submodules.get(path);
    let changed = was.keys().chain(cache.submodules.keys());
    touched.extend(
        changed
            .filter(|path| is_new(path))
            .filter_map(RelPath::parent),
    );
    keep_unmerged(cache, tracked.unmerged);
    cache
        .directories
        .retain(|_, d| !d.is_absent || !d.entries.is_empty());
    forget_trees(cache, touched);
    // What is as it was is one with what it was, so that nothing is made or written again for it.
    for (path, directory) in &mut cache.directories {
        pace.step()?;
        if let Some(before) = before.get(path).filter(|before| *before == directory) {
            *directory = Arc::clone(before);
        }
    }
    Ok(())
}

/// The same, where no capture has left anything to agree with.
fn agree_anew(cache: &mut StatCache, tracked: Tracked) {
    let directories = tracked.directories.into_iter();
    cache.directories = directories
        .map(|(path, seeds)| (path, indexed(seeds)))
        .collect();
    cache.submodules = tracked.submodules;
    cache.index_only.clear();
    cache.not_left_out.clear();
    keep_unmerged(cache, tracked.unmerged);
}

/// A directory of which the index alone knows.
fn indexed(entries: Entries) -> Arc<CachedDirectory> {
    Arc::new(CachedDirectory {
        entries,
        is_absent: true,
        mode: 0o755,
        ..Default::default()
    })
}

fn keep_unmerged(cache: &mut StatCache, unmerged: Vec<(RelPath, ObjectId)>) {
    for (path, id) in unmerged {
        cache.index_only.entry(path).or_default().push(id.into());
    }
}

/// Marks the files that the index vouches for with an object of another size, or of a size that
/// nobody can tell, so that the next walk reads them.
///
/// git compares stat data alone. A file that was checked out with its line endings converted, with
/// `$Id$` expanded or through a filter stays clean when the attributes or the configuration that
/// asked for it go, and nothing else remembers them. All of that changes the size. `sizes_of`
/// answers for sorted ids.
pub(crate) fn doubt_other_sizes<E>(
    op: &Operation,
    cache: &mut StatCache,
    sizes_of: impl FnOnce(&[ObjectId]) -> Result<Vec<Option<u64>>, E>,
) -> Result<(), E>
where
    E: From<Interrupted>,
{
    // What an earlier capture confirmed is not from the index any more.
    let is_trusted = |entry: &CachedEntry| {
        entry.kind != EntryKind::Symlink
            && entry.flags.has(Flags::FROM_INDEX)
            && !entry.flags.has(Flags::RACY)
    };
    let size_and_id = |entry: &CachedEntry| match sha1(&entry.id) {
        Some(id) if is_trusted(entry) => Some((id, entry.stat.size)),
        _ => None,
    };
    let trusted = |directory: &CachedDirectory| {
        let entries = directory.entries.iter();
        entries.filter(|(_, entry)| is_trusted(entry)).count()
    };
    let count = cache.directories.values().map(|d| trusted(d)).sum();
    op.check()?;
    let mut expected: Vec<(ObjectId, u64)> = Vec::with_capacity(count);
    let mut pace = Pace::of(op);
    for directory in cache.directories.values() {
        pace.step()?;
        let entries = directory.entries.iter();
        expected.extend(entries.filter_map(|(_, entry)| size_and_id(entry)));
    }
    if expected.is_empty() {
        return Ok(());
    }
    parallel::sort(op, &mut expected, SORTED_PER_THREAD)?;
    expected.dedup();
    op.check()?;
    let mut ids: Vec<ObjectId> = expected.iter().map(|(id, _)| *id).collect();
    ids.dedup();
    op.check()?;
    let sizes = sizes_of(&ids)?;
    // Both are sorted by id, and every id has a size.
    let mut place = 0;
    let mut doubtful: HashSet<(ObjectId, u64)> = HashSet::new();
    for (id, size) in expected {
        pace.step()?;
        while ids[place] != id {
            place += 1;
        }
        if sizes[place] != Some(size) {
            doubtful.insert((id, size));
        }
    }
    if doubtful.is_empty() {
        return Ok(());
    }
    let is_doubtful =
        |entry: &CachedEntry| size_and_id(entry).is_some_and(|found| doubtful.contains(&found));
    for directory in cache.directories.values_mut() {
        pace.step()?;
        if !directory.entries.iter().any(|(_, e)| is_doubtful(e)) {
            continue;
        }
        for entry in Arc::make_mut(directory).entries.entries_mut() {
            if is_doubtful(entry) {
                entry.flags = entry.flags.with(Flags::RACY);
            }
        }
    }
    Ok(())
}

/// Forgets that anything is tracked: the repository has no index.
pub(crate) fn agree_with_none(cache: &mut StatCache) {
    let mut touched = forget_tracked(cache);
    let submodules = std::mem::take(&mut cache.submodules);
    touched.extend(submodules.keys().filter_map(RelPath::parent));
    cache.directories.retain(|_, d| !d.is_absent);
    forget_trees(cache, touched);
}

/// Forgets what the last index said; answers with the directories that lost an entry by it.
fn forget_tracked(cache: &mut StatCache) -> HashSet<RelPath> {
    let mut touched = HashSet::new();
    cache.index_only.clear();
    cache.not_left_out.clear();
    for (path, directory) in &mut cache.directories {
        let directory = Arc::make_mut(directory);
        let known = directory.entries.len();
        directory.entries.retain(|e| !e.flags.has(Flags::ABSENT));
        if directory.entries.len() != known || directory.is_absent {
            touched.insert(path.clone());
        }
        for entry in directory.entries.entries_mut() {
            entry.flags = entry
                .flags
                .without(Flags::TRACKED)
                .without(Flags::AS_INDEXED)
                .without(Flags::SPARSE);
        }
    }
    touched
}

/// Forgets the trees of `touched` and of the directories above them: the cache has other entries
/// there than the capture that the trees were made by.
fn forget_trees(cache: &mut StatCache, touched: HashSet<RelPath>) {
    let mut done = HashSet::new();
    for path in touched {
        let mut at = Some(path);
        while let Some(path) = at {
            at = path.parent();
            if let Some(directory) = cache.directories.get_mut(&path) {
                Arc::make_mut(directory).tree = None;
            }
            if !done.insert(path) {
                break;
            }
        }
    }
}

/// What an index tracks below a workspace, gathered entry by entry.
pub(crate) struct Tracked {
    /// Where the workspace lies below the work tree: what is outside of it is left out.
    scope: RelPath,
    index_mtime_ns: i64,
    directories: HashMap<RelPath, Entries>,
    /// The directory of the last entry, as the next one is likely to lie there too. Its entries
    /// move to memory of their own, of the right size, once it is known how many there are.
    last: (RelPath, Entries),
    /// The memory that directories are gathered in, while one that came back is gone on with in its
    /// own.
    spare: Option<Entries>,
    /// The objects of conflict stages: the paths are tracked, and no single content is theirs.
    unmerged: Vec<(RelPath, ObjectId)>,
    submodules: BTreeMap<RelPath, Submodule>,
    /// Directories that the index keeps as one entry, by their paths below the work tree, with
    /// their trees.
    sparse: Vec<(RelPath, ObjectId)>,
}

impl Tracked {
    /// Nothing as yet, of an index that was written at `index_mtime_ns`.
    pub(crate) fn new(scope: &RelPath, index_mtime_ns: i64) -> Self {
        Self {
            scope: scope.clone(),
            index_mtime_ns,
            directories: HashMap::new(),
            last: Default::default(),
            spare: None,
            unmerged: Vec::new(),
            submodules: BTreeMap::new(),
            sparse: Vec::new(),
        }
    }

    /// Adds the next entry of the index.
    pub(crate) fn add(&mut self, entry: &IndexEntry<&[u8]>) {
        let owned = |path: &[u8]| RelPath::new(path).expect("the end of a path is a path");
        if entry.mode == SPARSE_DIRECTORY {
            self.sparse.push((owned(entry.path), entry.id));
            return;
        }
        let Some(path) = below(entry.path, &self.scope) else {
            return;
        };
        let Some(kind) = EntryKind::from_git_mode(entry.mode) else {
            debug_assert_eq!(entry.mode, GITLINK, "the parser lets no other mode through");
            if entry.stage == 0 {
                let submodule = Submodule {
                    commit: entry.id.into(),
                    is_sparse: entry.is_skip_worktree,
                };
                self.submodules.insert(owned(path), submodule);
            }
            return;
        };
        let content = Entry {
            kind,
            id: entry.id.into(),
        };
        if entry.stage != 0 {
            self.unmerged.push((owned(path), entry.id));
            self.put(
                path,
                content,
                EntryStat::default(),
                Flags::TRACKED.with(Flags::RACY),
            );
            return;
        }
        let stat = seed_stat(entry);
        let is_doubtful = entry.is_intent_to_add || is_doubtful(entry, &stat, self.index_mtime_ns);
        let flags = Flags::TRACKED
            .with(Flags::FROM_INDEX)
            .set(Flags::AS_INDEXED, !entry.is_intent_to_add)
            .set(Flags::RACY, is_doubtful)
            .set(Flags::SPARSE, entry.is_skip_worktree);
        self.put(path, content, stat, flags);
    }

    fn put(&mut self, path: &[u8], content: Entry, stat: EntryStat, flags: Flags) {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = match slash {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&[][..], path),
        };
        if self.last.0.as_bytes() != directory {
            self.put_last();
            if let Some(entries) = self.directories.remove(directory) {
                self.spare = Some(std::mem::replace(&mut self.last.1, entries));
            }
            self.last.0 = RelPath::new(directory).expect("the beginning of a path is a path");
        }
        let entries = &mut self.last.1;
        // Conflict stages give one path several times, one after the other.
        if entries.last().is_some_and(|last| last == name) {
            return;
        }
        let Entry { kind, id } = content;
        entries.push(
            name,
            CachedEntry {
                kind,
                id,
                stat,
                flags,
            },
        );
    }

    fn put_last(&mut self) {
        let (path, last) = &mut self.last;
        let path = std::mem::take(path);
        match self.spare.take() {
            // It was moved here, and is moved back: one may come back for each of its names.
            Some(spare) => {
                let entries = std::mem::replace(last, spare);
                self.directories.insert(path, entries);
            }
            None if last.is_empty() => {}
            None => {
                self.directories.insert(path, last.clone());
                last.clear();
            }
        }
    }

    /// The same, with what lies below the directories that the index keeps whole.
    fn expanded<E>(
        mut self,
        expand: &mut dyn FnMut(ObjectId) -> Result<Vec<(RelPath, Entry)>, E>,
    ) -> Result<Self, E> {
        let flags = Flags::TRACKED.with(Flags::AS_INDEXED).with(Flags::SPARSE);
        for (above, tree) in std::mem::take(&mut self.sparse) {
            for (below_it, content) in expand(tree)? {
                let mut path = above.clone();
                for name in below_it.names() {
                    path = path.join(name);
                }
                if let Some(path) = within(&path, &self.scope) {
                    let flags = flags.with(Flags::ABSENT);
                    self.put(path.as_bytes(), content, EntryStat::default(), flags);
                }
            }
        }
        self.put_last();
        Ok(self)
    }
}

/// The path relative to the scope; `None` outside of it.
pub(super) fn within(path: &RelPath, scope: &RelPath) -> Option<RelPath> {
    RelPath::new(below(path.as_bytes(), scope)?).ok()
}

/// As [`within`], of the bytes of a path.
fn below<'p>(path: &'p [u8], scope: &RelPath) -> Option<&'p [u8]> {
    if scope.is_root() {
        return Some(path);
    }
    path.strip_prefix(scope.as_bytes())?.strip_prefix(b"/")
}

pub(super) fn seed_stat<P>(entry: &IndexEntry<P>) -> EntryStat {
    let ns = |(seconds, nanos): (u32, u32)| i64::from(seconds) * 1_000_000_000 + i64::from(nanos);
    EntryStat {
        size: u64::from(entry.stat.size),
        mtime_ns: ns(entry.stat.mtime),
        ctime_ns: ns(entry.stat.ctime),
        inode: u64::from(entry.stat.ino),
        mode: entry.mode,
    }
}

/// Whether the index's own stat data proves nothing: written in the same tick, marked by git, or
/// left empty by a program that does not keep all of it.
pub(super) fn is_doubtful<P>(entry: &IndexEntry<P>, stat: &EntryStat, index_mtime_ns: i64) -> bool {
    let is_marked = stat.size == 0 && entry.id != EMPTY_BLOB;
    let is_partial = stat.inode == 0 || stat.ctime_ns == 0 || stat.mtime_ns == 0;
    is_marked || is_partial || is_racy(stat, index_mtime_ns)
}

/// The content that the index names and the captured tree does not, for a snapshot to keep.
pub(crate) fn only_in_index(cache: &StatCache) -> Vec<ContentId> {
    let mut ids: Vec<ContentId> = cache.index_only.values().flatten().copied().collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::user_index::IndexStat;

    fn entry(size: u32, id: ObjectId) -> IndexEntry {
        IndexEntry {
            path: RelPath::new("f").expect("a path"),
            mode: 0o100644,
            id,
            stat: IndexStat {
                ctime: (10, 1),
                mtime: (10, 1),
                dev: 1,
                ino: 7,
                uid: 0,
                gid: 0,
                size,
            },
            stage: 0,
            is_intent_to_add: false,
            is_skip_worktree: false,
            is_assume_unchanged: false,
        }
    }

    fn is_doubted(entry: &IndexEntry, index_mtime_ns: i64) -> bool {
        is_doubtful(entry, &seed_stat(entry), index_mtime_ns)
    }

    #[test]
    fn an_emptied_size_is_believed_of_the_empty_blob_alone() {
        let later = 20_000_000_000;
        assert!(!is_doubted(&entry(0, EMPTY_BLOB), later), "it is empty");
        assert!(
            is_doubted(&entry(0, ObjectId([1; 20])), later),
            "git marked it so"
        );
        assert!(!is_doubted(&entry(3, ObjectId([1; 20])), later));
    }

    #[test]
    fn an_entry_in_the_tick_of_its_index_proves_nothing() {
        let entry = entry(3, ObjectId([1; 20]));
        assert!(is_doubted(&entry, 10_000_000_001), "the same tick");
        assert!(!is_doubted(&entry, 10_000_000_002));
    }

    #[test]
    fn sizes_and_inodes_are_compared_in_the_32_bits_that_an_index_has() {
        let seed = entry(5, ObjectId([1; 20]));
        let cached = CachedEntry {
            kind: EntryKind::File,
            id: seed.id.into(),
            stat: seed_stat(&seed),
            flags: Flags::TRACKED.with(Flags::FROM_INDEX),
        };
        let now = EntryStat {
            size: (1 << 32) + 5,
            inode: (1 << 32) + 7,
            mtime_ns: 10_000_000_001,
            ctime_ns: 10_000_000_001,
            mode: 0o100644,
        };
        assert!(
            cached.is_clean(&now),
            "the upper halves are not in the index"
        );
        assert!(!cached.is_clean(&EntryStat { size: 6, ..now }));
        assert!(!cached.is_clean(&EntryStat {
            ctime_ns: 10_000_000_002,
            ..now
        }));
        assert!(!cached.is_clean(&EntryStat {
            mode: 0o100755,
            ..now
        }));
    }
}
