//! The directories that a side has removed, and where it matters what became of them: who has put
//! a file into one meanwhile may want it where the others went. git compares more files with each
//! other there, and so finds other renames.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::stages::{Entry, mask};
use crate::path::RelPath;

/// How much it matters where a directory went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    No,
    /// To a directory above.
    Above,
    /// The other side has added a file to it.
    Itself,
}

/// The directories of the base that one side has no more.
#[derive(Debug, Default)]
pub(super) struct Removed(pub(super) HashMap<RelPath, Concern>);

impl Removed {
    pub(super) fn concern(&self, directory: &RelPath) -> Concern {
        self.0.get(directory).copied().unwrap_or(Concern::No)
    }
}

/// The same of both sides, of which the directories alone are known, and those with an added file.
pub(super) fn removed(
    directories: [HashSet<RelPath>; 2],
    entries: &BTreeMap<RelPath, Entry>,
) -> ([Removed; 2], HashSet<RelPath>) {
    let mut grown = [HashSet::new(), HashSet::new()];
    for (path, entry) in entries {
        // Which side has removed the directory, if only the other has the file.
        let side = match mask(&entry.stages) {
            2 => 1,
            4 => 0,
            _ => continue,
        };
        if let Some(parent) = path.parent().filter(|at| directories[side].contains(at)) {
            grown[side].insert(parent);
        }
    }
    let all: HashSet<RelPath> = grown.iter().flatten().cloned().collect();
    let mut grown = grown.iter();
    let removed = directories.map(|directories| {
        let grown = grown.next().expect("there are two");
        let concern = |at: RelPath| {
            let concern = match () {
                () if grown.contains(&at) => Concern::Itself,
                () if is_below_any(&at, &all) => Concern::Above,
                () => Concern::No,
            };
            (at, concern)
        };
        Removed(directories.into_iter().map(concern).collect())
    });
    (removed, all)
}

/// Whether a path lies in one of these directories.
pub(super) fn is_below_any(path: &RelPath, directories: &HashSet<RelPath>) -> bool {
    if directories.is_empty() {
        return false;
    }
    let mut above = path.parent();
    while let Some(at) = above {
        if directories.contains(&at) {
            return true;
        }
        above = at.parent();
    }
    false
}

/// Where the files of removed directories went, and how many.
#[derive(Debug, Default)]
pub(super) struct Moves(HashMap<RelPath, Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By the directory, as they came.
    to: Vec<(RelPath, usize)>,
    /// Of so many files it is not known.
    unknown: usize,
}

impl Moves {
    /// A file was renamed.
    pub(super) fn add(&mut self, removed: &Removed, from: &RelPath, to: &RelPath) {
        let mut is_first = true;
        let mut place = from.parent().zip(to.parent());
        while let Some((old, new)) = place {
            if !removed.0.contains_key(&old) {
                return;
            }
            let concern = removed.concern(&old);
            if is_first || concern == Concern::Itself {
                let counts = &mut self.0.entry(old.clone()).or_default().to;
                match counts.iter_mut().find(|(to, _)| *to == new) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((new.clone(), 1)),
                }
            }
            // The directory above went there only if this one has the same name there.
            if concern == Concern::No || old.name() != new.name() {
                return;
            }
            is_first = false;
            place = old.parent().zip(new.parent());
        }
    }

    /// Where most files of each directory went.
    pub(super) fn most(&self) -> HashMap<RelPath, RelPath> {
        let most = |(old, counts): (&RelPath, &Counts)| {
            let mut best: Option<&(RelPath, usize)> = None;
            let rank = |to: &(RelPath, usize)| (to.1, Reverse(bucket(to.0.as_bytes())));
            for to in &counts.to {
                if best.is_none_or(|best| rank(to) >= rank(best)) {
                    best = Some(to);
                }
            }
            best.map(|(new, _)| (old.clone(), new.clone()))
        };
        self.0.iter().filter_map(most).collect()
    }

    /// Takes note of files of which nobody knows yet where they went. From then on a directory
    /// concerns only what is above it if they cannot change where most of it went.
    pub(super) fn settle(&mut self, removed: &mut Removed, unknown: &[&RelPath]) {
        for path in unknown {
            let mut above = path.parent();
            while let Some(at) = above.filter(|at| removed.concern(at) != Concern::No) {
                above = at.parent();
                self.0.entry(at).or_default().unknown += 1;
            }
        }
        for (directory, counts) in &self.0 {
            let mut most = [0, 0];
            for (_, count) in &counts.to {
                if *count >= most[0] {
                    most = [*count, most[0]];
                } else {
                    most[1] = most[1].max(*count);
                }
            }
            let concern = removed.0.get_mut(directory);
            if let Some(concern @ Concern::Itself) = concern
                && most[0] > most[1] + counts.unknown
            {
                *concern = Concern::Above;
            }
        }
    }
}

/// Whether it still matters where a file of these directories went.
pub(super) fn matters(removed: &Removed, path: &RelPath) -> bool {
    let mut above = path.parent();
    while let Some(at) = above {
        match removed.concern(&at) {
            Concern::No => return false,
            Concern::Itself => return true,
            Concern::Above => above = at.parent(),
        }
    }
    false
}

/// The order in which git comes upon the files of a side, which decides among equals: directories
/// that the other side has left alone come later.
pub(super) struct Order<'a> {
    /// What the other side has changed, and all directories above.
    touched: HashSet<RelPath>,
    /// Directories with a file that was added where they were removed.
    grown: &'a HashSet<RelPath>,
    /// The size of git's table.
    buckets: u32,
}

impl<'a> Order<'a> {
    /// `own` are the paths that the side has changed, `others` those of the other side.
    pub(super) fn new<'p>(
        own: impl Iterator<Item = &'p RelPath>,
        others: impl Iterator<Item = &'p RelPath>,
        grown: &'a HashSet<RelPath>,
    ) -> Self {
        let mut order = Self {
            touched: HashSet::new(),
            grown,
            buckets: 64,
        };
        for path in others {
            let mut at = Some(path.clone());
            while let Some(path) = at {
                at = path.parent();
                if !order.touched.insert(path) {
                    break;
                }
            }
        }
        let alone: HashSet<RelPath> = own.filter_map(|path| order.alone(path)).collect();
        while alone.len() * 5 > order.buckets as usize * 4 {
            order.buckets *= 4;
        }
        order
    }

    /// The directory above a path that comes later as a whole, if any does.
    fn alone(&self, path: &RelPath) -> Option<RelPath> {
        let mut top = None;
        let mut above = path.parent();
        while let Some(at) = above.filter(|at| !at.is_root() && !self.touched.contains(at)) {
            above = at.parent();
            top = Some(at);
        }
        top.filter(|top| !is_below_any(top, self.grown))
    }

    pub(super) fn key(&self, path: &RelPath) -> impl Ord + use<> {
        let alone = self.alone(path);
        let alone = alone.map(|at| (hash(at.as_bytes()) % self.buckets, Reverse(at)));
        (alone, path.clone())
    }
}

/// What decides among directories that as many files went to: the place in a table of git's.
fn bucket(name: &[u8]) -> u32 {
    hash(name) % 64
}

fn hash(name: &[u8]) -> u32 {
    let hash = |hash: u32, byte: &u8| hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte);
    name.iter().fold(0x811c_9dc5, hash)
}
