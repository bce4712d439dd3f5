//! The changes in the watched directories since the last capture: a pure function of the kernel's
//! events.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use rustix::fs::inotify::ReadFlags;

use crate::path::RelPath;
use crate::search::WalkReason;
use crate::watch::Pending;
use crate::watch::holds::{CarriedHolds, Holds};
use crate::watch::names::{Carried, Names, first_below};

/// More names and directories than this are not kept: some megabytes, and by then a walk costs
/// little more.
pub(super) const MAX_NAMES: usize = 65_536;

/// How many moves are remembered until their other half is seen. The kernel tells of both one after
/// the other, but for what others do in between.
const MAX_MOVES: usize = 64;

/// With more directories than this in a capture the next one waits until their holders are known.
const MAX_UNSCANNED: usize = 256;

/// What the kernel said.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) watch: i32,
    pub(super) what: ReadFlags,
    /// The same for both halves of a move.
    pub(super) cookie: u32,
    /// `None`: of the directory itself.
    pub(super) name: Option<Vec<u8>>,
}

/// What has happened since the last capture, and what is watched.
#[derive(Debug, Default)]
pub(super) struct Changes {
    hole: Option<WalkReason>,
    paths: HashMap<i32, Arc<RelPath>>,
    watches: BTreeMap<Arc<RelPath>, i32>,
    /// The names that changed since `pending` was last called.
    changed: Names,
    /// The names that `pending` returned, and that no capture has settled yet.
    told: Names,
    /// Files that may change without an event.
    lasting: Names,
    /// Why each of these files may change without an event.
    holds: Holds,
    /// The file of the last event, if that event created the name.
    just_made: Option<RelPath>,
    is_settled: bool,
    /// Whether a directory was added since the last capture settled.
    has_grown: bool,
    /// Those directories, once there was a first capture.
    fresh: BTreeSet<Arc<RelPath>>,
    /// Settled directories that were not yet searched for open files.
    unscanned: Unscanned,
    moves: VecDeque<Move>,
    /// Watches that are no longer needed.
    unneeded: Vec<i32>,
}

/// Directories whose holders are being looked for.
#[derive(Debug, Default)]
enum Unscanned {
    #[default]
    None,
    Few(BTreeSet<Arc<RelPath>>),
    Many,
}

/// How many directories have files that may be held by somebody not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    None,
    /// So few that they can be looked at as a whole.
    Few,
    Many,
}

/// One rename, which the kernel tells in two halves.
#[derive(Debug)]
struct Move {
    cookie: u32,
    to: Option<RelPath>,
    carried: Carried,
    holds: CarriedHolds,
}

impl Changes {
    /// The hole: why the changes are not known.
    pub(super) fn hole(&self) -> Option<WalkReason> {
        self.hole
    }

    /// Ends with a hole: the first reason stays, and nothing else is kept.
    pub(super) fn end(&mut self, reason: WalkReason) {
        *self = Self {
            hole: self.hole.or(Some(reason)),
            ..Self::default()
        };
    }

    /// The watches to remove; they are asked for once.
    pub(super) fn take_unneeded(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.unneeded)
    }

    /// Whether the directory is watched, so that every change in it is reported.
    pub(super) fn watches(&self, path: &RelPath) -> bool {
        self.watches.contains_key(path)
    }

    /// How many directories are watched.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.watches.len()
    }

    /// Directory `path` has the watch `watch`.
    pub(super) fn add(&mut self, path: &RelPath, watch: i32) {
        if self.hole.is_some() {
            return;
        }
        if let Some(known) = self.paths.get(&watch) {
            if **known == *path {
                return;
            }
            // It is watched under another path: it was moved, and which of the two paths is the
            // newer cannot be told from here. Neither is believed.
            let known = RelPath::clone(known);
            self.lose(&known);
            self.lose(path);
            return;
        }
        if self.watches(path) {
            self.forget(path);
        }
        let path = Arc::new(path.clone());
        self.paths.insert(watch, Arc::clone(&path));
        self.watches.insert(Arc::clone(&path), watch);
        self.has_grown = true;
        if self.is_settled {
            self.fresh.insert(path);
        }
    }

    /// Stops watching `path` and everything below it.
    pub(super) fn forget(&mut self, path: &RelPath) {
        let below: Vec<Arc<RelPath>> = self
            .watches
            .range::<RelPath, _>(first_below(path)..)
            .map(|(at, _)| at)
            .take_while(|at| at.starts_with(path))
            .cloned()
            .collect();
        let itself = self.watches.get_key_value(path).map(|(at, _)| at.clone());
        for at in itself.into_iter().chain(below) {
            if let Some(watch) = self.watches.remove(&*at) {
                self.paths.remove(&watch);
                self.unneeded.push(watch);
            }
            self.fresh.remove(&*at);
        }
        self.changed.clear_below(path);
        self.told.clear_below(path);
    }

    /// A file with several names can change without an event, so it is in every answer. Returns
    /// whether the file was not known as such.
    pub(super) fn always_look_at(&mut self, directory: &RelPath, name: &[u8]) -> bool {
        if self.hole.is_some() {
            return true;
        }
        self.lasting.insert(directory, name);
        let is_news = self.holds.link(directory.join(name));
        self.bound();
        is_news
    }

    /// As [`Changes::always_look_at`], of a file that somebody was found to hold: whether it has
    /// several names was not looked at.
    pub(super) fn look_at_held(&mut self, directory: &RelPath, name: &[u8]) {
        if self.hole.is_none() {
            self.lasting.insert(directory, name);
            self.holds.doubt(directory.join(name));
            self.bound();
        }
    }

    pub(super) fn pending(&mut self) -> Result<Pending, WalkReason> {
        if !self.is_settled {
            self.end(WalkReason::NoJournal);
        }
        if let Some(hole) = self.hole {
            return Err(hole);
        }
        // The capture that read these directories did not settle, so it may not have read
        // everything below them.
        for path in std::mem::take(&mut self.fresh) {
            self.lose(&path);
        }
        let changed = std::mem::take(&mut self.changed);
        self.told.absorb(changed);
        let mut answer = self.told.clone();
        answer.absorb(self.lasting.clone());
        if let Unscanned::Few(unscanned) = &self.unscanned {
            for directory in unscanned {
                answer.insert_all(directory);
            }
        }
        let mut answer = answer.into_pending();
        // The other directories are gone or omitted, or are below a directory that is read as a
        // whole.
        answer.retain(|directory, _| self.watches(directory));
        Ok(answer)
    }

    /// Answers with whether directories were added since the last time.
    pub(super) fn settle(&mut self) -> bool {
        self.told = Names::default();
        let fresh = std::mem::take(&mut self.fresh);
        let has_grown = std::mem::take(&mut self.has_grown);
        // Before the first settling, new directories are not in `fresh`.
        self.unscanned = match std::mem::take(&mut self.unscanned) {
            _ if has_grown && !self.is_settled => Unscanned::Many,
            Unscanned::None if fresh.is_empty() => Unscanned::None,
            Unscanned::None => Unscanned::Few(fresh),
            Unscanned::Few(mut known) => {
                known.extend(fresh);
                Unscanned::Few(known)
            }
            Unscanned::Many => Unscanned::Many,
        };
        if matches!(&self.unscanned, Unscanned::Few(few) if few.len() > MAX_UNSCANNED) {
            self.unscanned = Unscanned::Many;
        }
        self.is_settled = true;
        has_grown
    }

    /// How many settled directories were not yet searched for open files.
    pub(super) fn growth(&self) -> Growth {
        match self.unscanned {
            Unscanned::None => Growth::None,
            Unscanned::Few(_) => Growth::Few,
            Unscanned::Many => Growth::Many,
        }
    }

    /// The directories that were not yet searched for open files.
    pub(super) fn unscanned(&self) -> Vec<Arc<RelPath>> {
        match &self.unscanned {
            Unscanned::None => Vec::new(),
            Unscanned::Few(few) => few.iter().cloned().collect(),
            Unscanned::Many => self.watches.keys().cloned().collect(),
        }
    }

    /// The open files in the settled directories are known and reported.
    pub(super) fn know_holders(&mut self) {
        self.unscanned = Unscanned::None;
    }

    pub(super) fn note(&mut self, event: &Event) {
        if self.hole.is_some() {
            return;
        }
        if event.what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.end(WalkReason::QueueOverflow);
        }
        // A watch that was removed: wherever its directory is, it will be read as a whole.
        let Some(directory) = self.paths.get(&event.watch).cloned() else {
            return;
        };
        if event.what.contains(ReadFlags::UNMOUNT) {
            return self.end(WalkReason::Remounted);
        }
        match &event.name {
            None => self.note_itself(&directory, event.what),
            Some(name) => self.note_name(&directory, name, event),
        }
        self.bound();
    }

    fn note_itself(&mut self, directory: &RelPath, what: ReadFlags) {
        let ended = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
        match directory.parent() {
            _ if !what.intersects(ended | ReadFlags::ATTRIB) => {}
            None if what.intersects(ended) => self.end(WalkReason::LostWatch),
            None => self.changed.insert_all(directory),
            Some(_) if what.intersects(ended) => self.lose(directory),
            Some(parent) => self.changed.insert(&parent, directory.name()),
        }
    }

    fn note_name(&mut self, directory: &RelPath, name: &[u8], event: &Event) {
        let path = directory.join(name);
        let just_made = self.just_made.take();
        if !event.what.contains(ReadFlags::ISDIR) {
            if event.what.contains(ReadFlags::OPEN) {
                if just_made.as_ref() == Some(&path) {
                    self.holds.make(&path);
                }
                return self.note_open(directory, path);
            }
            let closed = ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE;
            if event.what.intersects(closed) {
                let has_written = event.what.contains(ReadFlags::CLOSE_WRITE);
                self.note_close(directory, &path, has_written);
            }
        } else if event
            .what
            .intersects(ReadFlags::OPEN | ReadFlags::CLOSE_NOWRITE)
        {
            return;
        }
        self.changed.insert(directory, name);
        let is_name =
            ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
        if event.what.intersects(is_name) {
            self.note_path(directory, path, event);
        }
    }

    /// A file that is open may be mapped, and stores into a mapping have no event.
    fn note_open(&mut self, directory: &RelPath, path: RelPath) {
        self.lasting.insert(directory, path.name());
        self.holds.open(path);
        self.bound();
    }

    /// Nobody has it open or mapped any more, if that was the last one; what was stored before is
    /// looked at once again.
    fn note_close(&mut self, directory: &RelPath, path: &RelPath, has_written: bool) {
        if self.holds.close(path, has_written) {
            self.lasting.take(path);
        } else {
            self.lasting.insert(directory, path.name());
        }
    }

    /// Somebody made or removed the name of a file or directory.
    fn note_path(&mut self, directory: &RelPath, path: RelPath, event: &Event) {
        let is_directory = event.what.contains(ReadFlags::ISDIR);
        // The watched directory was moved or removed; what is there instead is read as a whole.
        self.forget(&path);
        if event.what.contains(ReadFlags::MOVED_FROM) {
            // When two names are exchanged, both arrive before they leave.
            let is_exchanged = self.moves.iter().any(|m| m.to.as_ref() == Some(&path));
            let (carried, holds) = if is_exchanged {
                (self.lasting.copy(&path), self.holds.copy(&path))
            } else {
                (self.lasting.take(&path), self.holds.take(&path))
            };
            if self.moves.len() == MAX_MOVES {
                self.moves.pop_front();
            }
            self.moves.push_back(Move {
                cookie: event.cookie,
                to: None,
                carried,
                holds,
            });
        } else if event.what.contains(ReadFlags::DELETE) {
            self.lasting.take(&path);
            match is_directory {
                true => drop(self.holds.take(&path)),
                false => self.holds.leave(&path),
            }
        } else {
            self.holds.replace(&path);
            let moved = self
                .moves
                .iter_mut()
                .find(|m| event.what.contains(ReadFlags::MOVED_TO) && m.cookie == event.cookie);
            match moved {
                Some(moved) => {
                    moved.to = Some(path.clone());
                    self.lasting.put(std::mem::take(&mut moved.carried), &path);
                    self.holds.put(std::mem::take(&mut moved.holds), &path);
                }
                // A file that appears by a rename or a link may already be open.
                None if !is_directory => {
                    self.lasting.insert(directory, path.name());
                    self.holds.come(path.clone());
                }
                None => {}
            }
            if event.what.contains(ReadFlags::CREATE) {
                self.just_made = Some(path);
            }
        }
    }

    /// Stops watching a directory, and reports its name as changed.
    fn lose(&mut self, path: &RelPath) {
        self.forget(path);
        match path.parent() {
            Some(parent) => self.changed.insert(&parent, path.name()),
            None => self.end(WalkReason::LostWatch),
        }
    }

    fn bound(&mut self) {
        let names = self.changed.len() + self.told.len() + self.lasting.len();
        if names > MAX_NAMES || self.holds.len() > MAX_NAMES {
            self.end(WalkReason::TooManyFiles);
        }
    }
}
