//! Counts of a capture, and facts that a git tree cannot have, updated from the changes that
//! captures found.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::path::RelPath;
use crate::stat_cache::{CachedDirectory, Delta, Directories, Flags};
use crate::tree::{EntryKind, Modes, RECORDED_BITS};

/// The counts of all directories. They follow a difference at its own cost.
///
/// The permission bits that most entries of a kind have are said once, so that under any umask only
/// the odd ones are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    files: u64,
    /// How many entries of a kind have which permission bits.
    counts: [BTreeMap<u32, u64>; 3],
    /// The permission bits that most of a kind have.
    usual: [u32; 3],
    /// The entries that have others.
    exceptions: BTreeMap<RelPath, u32>,
    empty_directories: BTreeSet<RelPath>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            files: 0,
            counts: Default::default(),
            usual: DEFAULT_BITS,
            exceptions: BTreeMap::new(),
            empty_directories: BTreeSet::new(),
        }
    }
}

impl Tally {
    /// Counts `directories`.
    pub fn of(directories: &Directories) -> Self {
        let mut tally = Self::default();
        let delta = Delta::default();
        for (path, directory) in directories {
            tally.count(path, directory, true);
        }
        tally.list(directories, &delta, true);
        tally
    }

    /// Follows from what `before` was counted to what it is with `delta`.
    pub fn follow(&mut self, before: &Directories, delta: &Delta) {
        let were = delta.directories.keys().chain(&delta.removed);
        for path in were {
            if let Some(directory) = before.get(path) {
                self.count(path, directory, false);
                self.exceptions.remove(path);
                for (name, _) in directory.entries.iter() {
                    if !self.exceptions.is_empty() {
                        self.exceptions.remove(&path.join(name));
                    }
                }
            }
        }
        for (path, directory) in &delta.directories {
            self.count(path, directory, true);
        }
        self.list(before, delta, false);
    }

    /// Files and links that were captured.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Directories with nothing captured in them, sorted, the workspace itself left out.
    pub fn empty_directories(&self) -> Vec<RelPath> {
        self.empty_directories.iter().cloned().collect()
    }

    /// The permission bits.
    pub fn modes(&self) -> Modes {
        let [file, executable, directory] = self.usual;
        let exceptions = self.exceptions.iter();
        Modes {
            file,
            executable,
            directory,
            exceptions: exceptions
                .map(|(path, mode)| (path.clone(), *mode))
                .collect(),
        }
    }

    /// Adds a directory to the counts, or takes it away.
    fn count(&mut self, path: &RelPath, directory: &CachedDirectory, is_there: bool) {
        let mut add = |of: Of, mode: u32, count: u64| {
            let counts = &mut self.counts[of as usize];
            let n = counts.entry(mode).or_default();
            *n = if is_there {
                *n + count
            } else {
                n.saturating_sub(count)
            };
            if *n == 0 {
                counts.remove(&mode);
            }
        };
        let mut files = 0;
        // Most have what the one before has: those are counted together.
        let (mut last, mut same) = (None, 0);
        for (_, entry) in directory.entries.iter().filter(|(_, e)| e.is_captured()) {
            files += 1;
            let of = Of::entry(entry.kind, entry.flags);
            let of = of.map(|of| (of, entry.stat.mode & RECORDED_BITS));
            if of != last {
                if let Some((of, mode)) = std::mem::replace(&mut last, of) {
                    add(of, mode, same);
                }
                same = 0;
            }
            same += 1;
        }
        if let Some((of, mode)) = last {
            add(of, mode, same);
        }
        if has_mode(path, directory) {
            add(Of::Directory, directory.mode, 1);
        }
        self.files = match is_there {
            true => self.files + files,
            false => self.files.saturating_sub(files),
        };
    }

    /// Lists what is odd in the directories of `delta`, or in all.
    fn list(&mut self, before: &Directories, delta: &Delta, is_all: bool) {
        let usual = [Of::File, Of::Executable, Of::Directory].map(|of| {
            let counts = self.counts[of as usize].iter();
            // Of two that are as frequent the larger, so that the answer depends on the modes
            // alone.
            let most = counts.max_by_key(|(mode, n)| (**n, **mode));
            most.map_or(DEFAULT_BITS[of as usize], |(mode, _)| *mode)
        });
        let is_other = usual != self.usual;
        self.usual = usual;
        let is_uniform = self.counts.iter().all(|counts| counts.len() <= 1);
        if is_all || is_other {
            self.exceptions.clear();
        }
        if !is_uniform && (is_all || is_other) {
            for (path, directory) in delta.iter(before) {
                self.list_modes(path, directory);
            }
        } else if !is_uniform {
            for (path, directory) in &delta.directories {
                self.list_modes(path, directory);
            }
        }
        if is_all {
            for (path, directory) in delta.iter(before) {
                if is_empty(path, directory, before, delta) {
                    self.empty_directories.insert(path.clone());
                }
            }
            return;
        }
        // A directory is empty, or not, by the directories that are in it.
        let there = |path: &RelPath| before.contains_key(path);
        let appeared = delta.directories.keys().filter(|path| !there(path));
        let above = appeared.chain(&delta.removed).filter_map(RelPath::parent);
        let mut touched: HashSet<RelPath> = above.collect();
        touched.extend(delta.directories.keys().cloned());
        for path in &delta.removed {
            self.empty_directories.remove(path);
        }
        for path in touched {
            match delta.get(before, &path) {
                Some(directory) if is_empty(&path, directory, before, delta) => {
                    self.empty_directories.insert(path);
                }
                _ => drop(self.empty_directories.remove(&path)),
            }
        }
    }

    fn list_modes(&mut self, path: &RelPath, directory: &CachedDirectory) {
        for (name, entry) in directory.entries.iter().filter(|(_, e)| e.is_captured()) {
            let mode = entry.stat.mode & RECORDED_BITS;
            let of = Of::entry(entry.kind, entry.flags);
            if of.is_some_and(|of| self.usual[of as usize] != mode) {
                self.exceptions.insert(path.join(name), mode);
            }
        }
        if has_mode(path, directory) && directory.mode != self.usual[Of::Directory as usize] {
            self.exceptions.insert(path.clone(), directory.mode);
        }
    }
}

fn has_mode(path: &RelPath, directory: &CachedDirectory) -> bool {
    !directory.is_absent && !path.is_root()
}

fn is_empty(
    path: &RelPath,
    directory: &CachedDirectory,
    before: &Directories,
    delta: &Delta,
) -> bool {
    let is_there = |name: &[u8]| delta.get(before, &path.join(name)).is_some();
    has_mode(path, directory)
        && directory.captured().next().is_none()
        && !directory.children.iter().any(is_there)
}

/// The permission bits of a kind that there is nothing of, in the order of [`Of`].
const DEFAULT_BITS: [u32; 3] = [0o644, 0o755, 0o755];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    File,
    Executable,
    Directory,
}

impl Of {
    /// Which count an entry belongs to; links, and files that are not on disk, have no bits.
    fn entry(kind: EntryKind, flags: Flags) -> Option<Self> {
        match kind {
            _ if flags.has(Flags::ABSENT) => None,
            EntryKind::File => Some(Self::File),
            EntryKind::Executable => Some(Self::Executable),
            EntryKind::Symlink => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::stat_cache::{CachedEntry, EntryStat};
    use crate::tree::ContentId;

    /// A file or link: its kind, its permission bits, and whether it is on disk.
    type Leaf = (EntryKind, u32, bool);

    fn directories(leaves: &BTreeMap<String, Leaf>, empty: &BTreeMap<String, u32>) -> Directories {
        let mut found: HashMap<RelPath, CachedDirectory> = HashMap::new();
        found.insert(RelPath::root(), CachedDirectory::default());
        let mut enter = |path: &RelPath, mode: u32| {
            let mut at = path.clone();
            while let Some(above) = at.parent() {
                let directory = found.entry(at.clone()).or_default();
                directory.mode = mode;
                let above_it = found.entry(above.clone()).or_default();
                above_it.children.insert(at.name());
                at = above;
            }
        };
        let path = |text: &str| RelPath::new(text).expect("a path");
        for (at, mode) in empty {
            enter(&path(at), *mode);
        }
        for at in leaves.keys() {
            let above = path(at).parent().expect("it is no workspace");
            enter(&above, 0o755);
        }
        for (at, (kind, mode, is_there)) in leaves {
            let at = path(at);
            let above = at.parent().expect("it is no workspace");
            let directory = found.get_mut(&above).expect("it was made");
            let flags = Flags::default().set(Flags::ABSENT, !is_there);
            let stat = EntryStat {
                mode: *mode,
                ..EntryStat::default()
            };
            let entry = CachedEntry {
                kind: *kind,
                id: ContentId::Sha1([1; 20]),
                stat,
                flags,
            };
            directory.entries.push(at.name(), entry);
        }
        let all = found.into_iter();
        all.map(|(path, directory)| (path, Arc::new(directory)))
            .collect()
    }

    fn any_directories() -> impl Strategy<Value = Directories> {
        let kinds = prop_oneof![
            Just(EntryKind::File),
            Just(EntryKind::Executable),
            Just(EntryKind::Symlink)
        ];
        let modes = || prop_oneof![Just(0o644_u32), Just(0o755), Just(0o600)];
        let leaf = (kinds, modes(), any::<bool>());
        let leaves = prop::collection::btree_map("[ab]{1,2}(/[ab]){0,2}/f[12]", leaf, 0..8);
        let empty = prop::collection::btree_map("[ab]{1,2}(/[ab]){0,2}", modes(), 0..4);
        (leaves, empty).prop_map(|(leaves, empty)| directories(&leaves, &empty))
    }

    proptest! {
        #[test]
        fn to_follow_a_difference_comes_to_the_same_as_to_count_anew(
            before in any_directories(),
            after in any_directories(),
        ) {
            let mut delta = Delta::default();
            for (path, directory) in &after {
                if before.get(path) != Some(directory) {
                    delta.directories.insert(path.clone(), Arc::clone(directory));
                }
            }
            let gone = before.keys().filter(|path| !after.contains_key(*path));
            delta.removed.extend(gone.cloned());
            let mut tally = Tally::of(&before);
            tally.follow(&before, &delta);
            prop_assert_eq!(tally, Tally::of(&after));
            let mut directories = before.clone();
            delta.apply(&mut directories);
            prop_assert_eq!(directories, after);
        }
    }
}
