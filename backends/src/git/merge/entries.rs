//! What becomes of each path of two trees that go on from a third, decided as git's own merge
//! decides it (`merge-ort.c`), so that the same paths conflict. The contents of files are asked
//! for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::contents::Contents;
use super::directories::{self, Order, is_below_any};
use super::renames::{self, Added, Deleted, Wanted};
use super::stages::{BASE, Entry, Level, OURS, Same, Stages, THEIRS, mask};
use crate::git::ObjectId;
use crate::git::commit::{Side, TreeChange, is_file};
use crate::path::RelPath;
use crate::store_error::StoreError;

/// What each path comes to; `None`: it is not there. A path that nobody changed is not in it.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) paths: BTreeMap<RelPath, Option<Side>>,
    /// Where that is not settled.
    pub(super) conflicts: BTreeSet<RelPath>,
}

/// Merges two trees, from what each has changed.
pub(super) fn merge(
    trees: [ObjectId; 2],
    changes: [Vec<TreeChange>; 2],
    level: Level<'_>,
    contents: &mut Contents<'_>,
) -> Result<Merged, StoreError> {
    let (entries, directories) = entries(changes);
    let mut merging = Merging {
        trees,
        entries,
        directories,
        settled: [Vec::new(), Vec::new()],
        level,
        contents,
        filled: HashSet::new(),
        merged: Merged::default(),
    };
    merging.settle_what_one_side_has_changed();
    let renames = merging.renames()?;
    merging.follow(&renames)?;
    // What is below a path comes before it: whether a directory is left decides about the file.
    let entries = std::mem::take(&mut merging.entries);
    for (path, entry) in entries.into_iter().rev() {
        merging.decide(path, entry)?;
    }
    let mut merged = merging.merged;
    let above_is_file = |path: &RelPath| {
        let mut above = path.parent();
        while let Some(at) = above {
            if merged.paths.get(&at).is_some_and(Option::is_some) {
                return true;
            }
            above = at.parent();
        }
        false
    };
    let with_it: Vec<RelPath> = merged
        .paths
        .keys()
        .filter(|path| above_is_file(path))
        .cloned()
        .collect();
    for path in with_it {
        merged.paths.remove(&path);
    }
    Ok(merged)
}

/// Everything that either side has changed, with what the three have there; and the directories
/// above, with who has something among that, as bits.
fn entries(
    [ours, theirs]: [Vec<TreeChange>; 2],
) -> (BTreeMap<RelPath, Entry>, HashMap<RelPath, u8>) {
    let mut stages: BTreeMap<RelPath, Stages> = BTreeMap::new();
    for TreeChange { path, old, new } in ours {
        stages.insert(path, [old, new, old]);
    }
    for TreeChange { path, old, new } in theirs {
        stages.entry(path).or_insert([old, old, old])[THEIRS] = new;
    }
    // A directory in which nothing has changed on any side has no file in its place on any.
    let mut directories: HashMap<RelPath, u8> = HashMap::new();
    for (path, stages) in &stages {
        let mask = mask(stages);
        let mut above = path.parent();
        while let Some(at) = above.filter(|at| !at.is_root()) {
            let known = directories.entry(at.clone()).or_default();
            if *known & mask == mask && *known != 0 {
                break;
            }
            *known |= mask;
            above = at.parent();
        }
    }
    let entry = |(path, stages): (RelPath, Stages)| {
        let entry = Entry {
            stages,
            from: [path.clone(), path.clone(), path.clone()],
            directories: directories.get(&path).copied().unwrap_or(0),
            same: Same::of(&stages),
            is_conflict: false,
            is_moved: false,
        };
        (path, entry)
    };
    let entries = stages.into_iter().map(entry).collect();
    (entries, directories)
}

/// A file that a side has renamed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rename {
    from: RelPath,
    side: usize,
    to: RelPath,
}

struct Merging<'m, 'c> {
    /// Ours and theirs.
    trees: [ObjectId; 2],
    directories: HashMap<RelPath, u8>,
    /// What each side has changed and is settled.
    settled: [Vec<RelPath>; 2],
    entries: BTreeMap<RelPath, Entry>,
    level: Level<'m>,
    contents: &'m mut Contents<'c>,
    /// The directories that have something.
    filled: HashSet<RelPath>,
    merged: Merged,
}

impl Merging<'_, '_> {
    /// Files that all three have, and at most one has changed, or both alike. No rename concerns
    /// them.
    fn settle_what_one_side_has_changed(&mut self) {
        let merged = &mut self.merged;
        let mut settled = Vec::new();
        self.entries.retain(|path, entry| {
            let [Some(_), Some(ours), Some(theirs)] = entry.stages else {
                return true;
            };
            let side = match entry.same {
                Same::Ours => theirs,
                Same::Theirs | Same::Sides => ours,
                Same::None => return true,
            };
            merged.paths.insert(path.clone(), Some(side));
            for (at, by_side) in [OURS, THEIRS].into_iter().zip(&mut self.settled) {
                if entry.stages[at] != entry.stages[BASE] {
                    by_side.push(path.clone());
                }
            }
            settled.push(path.clone());
            false
        });
        for path in &settled {
            self.fill_above(path);
        }
    }

    /// The renames of both sides, by where the file was.
    fn renames(&mut self) -> Result<Vec<Rename>, StoreError> {
        let (removed, grown) = self.removed()?;
        let mut renames = Vec::new();
        for (side, mut removed) in [OURS, THEIRS].into_iter().zip(removed) {
            let other = OURS + THEIRS - side;
            let (mut deleted, mut added) = (Vec::new(), Vec::new());
            for (path, entry) in &self.entries {
                match (entry.stages[BASE], entry.stages[side]) {
                    (Some(old), None) => deleted.push(Deleted {
                        path,
                        file: old,
                        wanted: match () {
                            () if entry.stages[other] != Some(old) => Wanted::Changed,
                            () if is_below_any(path, &grown) => Wanted::Moved,
                            () => Wanted::No,
                        },
                    }),
                    (None, Some(file)) => added.push(Added { path, file }),
                    _ => {}
                }
            }
            let changed = |side: usize| {
                let entries = self.entries.iter();
                let changed = entries.filter(move |(_, e)| e.stages[side] != e.stages[BASE]);
                let settled = &self.settled[side - OURS];
                changed.map(|(path, _)| path).chain(settled)
            };
            let order = Order::new(changed(side), changed(other), &grown);
            deleted.sort_by_cached_key(|one| order.key(one.path));
            added.sort_by_cached_key(|one| order.key(one.path));
            for (from, to) in renames::find(&deleted, &added, &mut removed, self.contents)? {
                renames.push(Rename { from, side, to });
            }
        }
        renames.sort();
        Ok(renames)
    }

    /// The directories that each side has removed, and those that only the other has added a file
    /// to.
    fn removed(&self) -> Result<([directories::Removed; 2], HashSet<RelPath>), StoreError> {
        let mut removed = [HashSet::new(), HashSet::new()];
        for (side, removed) in [OURS, THEIRS].into_iter().zip(&mut removed) {
            let is_new =
                |entry: &&Entry| entry.stages[BASE].is_none() && entry.stages[side].is_some();
            if self.entries.values().find(is_new).is_none() {
                continue;
            }
            for (directory, mask) in &self.directories {
                // It may have something that nobody has changed.
                if mask & 1 != 0
                    && mask & 1 << side == 0
                    && !self
                        .contents
                        .is_directory(self.trees[side - OURS], directory)?
                {
                    removed.insert(directory.clone());
                }
            }
        }
        Ok(directories::removed(removed, &self.entries))
    }

    /// Brings what the other side has of a renamed file to where it is now.
    fn follow(&mut self, renames: &[Rename]) -> Result<(), StoreError> {
        let mut renames = renames.iter().peekable();
        while let Some(rename) = renames.next() {
            match renames.next_if(|next| next.from == rename.from) {
                Some(next) => self.follow_two(rename, next)?,
                None => self.follow_one(rename)?,
            }
        }
        Ok(())
    }

    fn entry(&self, path: &RelPath) -> Entry {
        self.entries
            .get(path)
            .expect("a rename is among the changes")
            .clone()
    }

    fn entry_mut(&mut self, path: &RelPath) -> &mut Entry {
        self.entries
            .get_mut(path)
            .expect("a rename is among the changes")
    }

    /// Both have renamed the file.
    fn follow_two(&mut self, ours: &Rename, theirs: &Rename) -> Result<(), StoreError> {
        let old = self.entry(&ours.from);
        if ours.to == theirs.to {
            self.entry_mut(&ours.to).stages[BASE] = old.stages[BASE];
            self.entry_mut(&ours.from).is_moved = true;
            return Ok(());
        }
        let stages = [
            old.stages[BASE],
            self.entry(&ours.to).stages[OURS],
            self.entry(&theirs.to).stages[THEIRS],
        ];
        let from = [ours.from.clone(), ours.to.clone(), theirs.to.clone()];
        let marker = 1 + 2 * self.level.depth;
        let merged = self.contents.merge(stages, &from, marker, self.level)?;
        let is_binary = !merged.is_clean && merged.file == stages[OURS];
        let to_ours = self.entry_mut(&ours.to);
        to_ours.stages[OURS] = merged.file;
        to_ours.is_conflict = true;
        let to_theirs = self.entry_mut(&theirs.to);
        if !is_binary {
            to_theirs.stages[THEIRS] = merged.file;
        }
        to_theirs.is_conflict = true;
        self.entry_mut(&ours.from).is_conflict = true;
        Ok(())
    }

    /// One has renamed the file.
    fn follow_one(&mut self, rename: &Rename) -> Result<(), StoreError> {
        let Rename { from, side, to } = rename;
        let other = OURS + THEIRS - side;
        let (old, new) = (self.entry(from), self.entry(to));
        let is_deleted = mask(&old.stages) == 1;
        let is_regular = |side: Option<Side>| side.is_some_and(is_file);
        let is_other_kind =
            !is_deleted && is_regular(old.stages[other]) != is_regular(new.stages[*side]);
        let meets_another = new.stages[other].is_some() && !is_other_kind;
        if meets_another && !is_deleted && kind(old.stages[other]) != kind(new.stages[*side]) {
            self.entry_mut(to).is_conflict = true;
        } else if meets_another && !is_deleted {
            let mut stages = old.stages;
            stages[*side] = new.stages[*side];
            let mut places = [from.clone(), from.clone(), from.clone()];
            places[*side] = to.clone();
            let marker = 1 + 2 * self.level.depth;
            let merged = self.contents.merge(stages, &places, marker, self.level)?;
            self.entry_mut(to).stages[*side] = merged.file;
        } else if meets_another {
            self.entry_mut(to).is_conflict = true;
        } else {
            let place = self.entry_mut(to);
            place.stages[BASE] = old.stages[BASE];
            place.from[BASE] = from.clone();
            if is_other_kind {
                self.entry_mut(from).stages[BASE] = None;
            } else if is_deleted {
                place.is_conflict = true;
            } else {
                place.stages[other] = old.stages[other];
                place.from[other] = from.clone();
            }
        }
        if !is_other_kind {
            self.entry_mut(from).is_moved = true;
        }
        Ok(())
    }

    /// Decides what comes of a path.
    fn decide(&mut self, path: RelPath, mut entry: Entry) -> Result<(), StoreError> {
        self.merged.paths.insert(path.clone(), None);
        if entry.is_moved {
            return Ok(());
        }
        let (mut place, mut beside) = (path, None);
        if entry.directories != 0 && self.filled.contains(&place) {
            if mask(&entry.stages) <= 1 {
                return Ok(());
            }
            let side = match entry.directories & 1 << OURS {
                0 => OURS,
                _ => THEIRS,
            };
            place = self.beside(&place, side)?;
            beside = Some(side);
        }
        let is_conflict = beside.is_some() || entry.is_conflict;
        let [base, ours, theirs] = entry.stages;
        let (file, is_clean) = match (entry.same, mask(&entry.stages)) {
            (Same::Sides, _) => (ours, !is_conflict),
            (Same::Ours, _) => (theirs, theirs.is_none() || !is_conflict),
            (Same::Theirs, _) => (ours, ours.is_none() || !is_conflict),
            (_, 6 | 7) if kind(ours) != kind(theirs) => {
                match self.level.depth {
                    0 => {
                        self.fill_above(&place);
                        self.merged.conflicts.insert(place);
                        return Ok(());
                    }
                    // Whatever it is, it is no side's.
                    _ => (base, false),
                }
            }
            (_, 6 | 7) => {
                let marker = 2 * self.level.depth;
                let merged = self
                    .contents
                    .merge(entry.stages, &entry.from, marker, self.level)?;
                (merged.file, merged.is_clean && !is_conflict)
            }
            (_, 3) if self.level.depth == 0 => (ours, false),
            (_, 5) if self.level.depth == 0 => (theirs, false),
            (_, 3 | 5) => (base, false),
            (_, 2) => (ours, !is_conflict),
            (_, 4) => (theirs, !is_conflict),
            _ => (None, !entry.is_conflict),
        };
        entry.stages = [None; 3];
        if !is_clean {
            self.merged.conflicts.insert(place.clone());
        }
        if file.is_some() {
            self.fill_above(&place);
        }
        self.merged.paths.insert(place, file);
        Ok(())
    }

    /// Where a file goes that a directory has displaced. Whoever asked for the merge gets its own
    /// name, since nothing is written of a merge that conflicts.
    fn beside(&self, path: &RelPath, side: usize) -> Result<RelPath, StoreError> {
        if self.level.depth == 0 {
            return Ok(path.clone());
        }
        let parent = path.parent().unwrap_or_default();
        let name = [path.name(), b"~", self.level.names[side - OURS].as_bytes()].concat();
        let mut place = parent.join(&name);
        let mut count = 0;
        while self.merged.paths.contains_key(&place) || self.contents.has(self.trees[0], &place)? {
            place = parent.join(&[&name[..], format!("_{count}").as_bytes()].concat());
            count += 1;
        }
        Ok(place)
    }

    fn fill_above(&mut self, path: &RelPath) {
        let mut above = path.parent();
        while let Some(at) = above.filter(|at| !at.is_root()) {
            above = at.parent();
            if !self.filled.insert(at) {
                break;
            }
        }
    }
}

/// A file, a link, or the commit of a submodule.
fn kind(side: Option<Side>) -> u32 {
    side.map_or(0, |(mode, _)| mode & 0o170_000)
}
