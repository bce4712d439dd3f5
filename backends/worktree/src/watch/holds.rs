//! Why a file may change without an event, by path.

use std::collections::BTreeMap;

use crate::path::RelPath;
use crate::watch::names::first_below;

/// What is known of those who may change the file at a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hold {
    /// How often it was opened and, as far as is told, not closed again; those who still have the
    /// file open that was there before are among them, as they close it by the same name.
    opens: u32,
    /// Whether the number is not reliable: a process had the file open and was not counted.
    is_doubtful: bool,
    /// Whether it was told as a file with several names.
    is_linked: bool,
    /// Whether it came by a name, and was perhaps open before that.
    has_come: bool,
    /// Whether its name was made by the first of those who opened it, as it seems. If they close it
    /// after writing, it was.
    is_made: bool,
}

/// The holds of all files.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(BTreeMap<RelPath, Hold>);

/// What was taken from [`Holds`] at and below a path, to be put elsewhere.
#[derive(Clone, Debug, Default)]
pub(super) struct CarriedHolds {
    from: RelPath,
    all: Vec<(RelPath, Hold)>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn open(&mut self, path: RelPath) {
        self.0.entry(path).or_default().opens += 1;
    }

    /// The process that created the name opens it with the next event.
    pub(super) fn make(&mut self, path: &RelPath) {
        if let Some(hold) = self.0.get_mut(path) {
            hold.is_made = hold.has_come && !hold.is_doubtful && hold.opens == 0;
        }
    }

    /// Returns whether no process can change the file without an event after this close.
    pub(super) fn close(&mut self, path: &RelPath, has_written: bool) -> bool {
        let Some(hold) = self.0.get_mut(path).filter(|hold| hold.opens != 0) else {
            // It was open before its directory was watched, or two openings were told as one.
            self.0.entry(path.clone()).or_default().is_doubtful = true;
            return false;
        };
        hold.opens -= 1;
        if hold.is_made && has_written {
            hold.has_come = false;
        }
        let is_over = hold.opens == 0 && !hold.is_doubtful && !hold.is_linked && !hold.has_come;
        if is_over {
            self.0.remove(path);
        }
        is_over
    }

    /// A file came to the path by its name alone.
    pub(super) fn come(&mut self, path: RelPath) {
        let hold = self.0.entry(path).or_default();
        hold.has_come = true;
        hold.is_linked = false;
        hold.is_made = false;
    }

    /// The file at the path has several names, or was open when the watch began. Answers whether
    /// that is news of this file.
    pub(super) fn link(&mut self, path: RelPath) -> bool {
        let hold = self.0.entry(path).or_default();
        hold.is_doubtful = true;
        !std::mem::replace(&mut hold.is_linked, true)
    }

    /// A process that was not counted has the file at the path open.
    pub(super) fn doubt(&mut self, path: RelPath) {
        self.0.entry(path).or_default().is_doubtful = true;
    }

    /// The file at the path is gone. Those who have it open close it by its name.
    pub(super) fn leave(&mut self, path: &RelPath) {
        if let Some(hold) = self.0.get_mut(path) {
            *hold = Hold {
                opens: hold.opens,
                is_doubtful: hold.is_doubtful,
                ..Hold::default()
            };
            if *hold == Hold::default() {
                self.0.remove(path);
            }
        }
    }

    /// Another file takes the place of the one at the path, which may yet turn up elsewhere.
    pub(super) fn replace(&mut self, path: &RelPath) {
        if let Some(hold) = self.0.get_mut(path) {
            hold.is_linked = false;
            hold.is_made = false;
        }
    }

    /// Removes what is known at and below the path.
    pub(super) fn take(&mut self, path: &RelPath) -> CarriedHolds {
        let carried = self.known(path);
        for (path, _) in &carried.all {
            self.0.remove(path);
        }
        carried
    }

    /// What is known at and below the path, for what may be there, or elsewhere by the time.
    pub(super) fn copy(&self, path: &RelPath) -> CarriedHolds {
        let mut copied = self.known(path);
        for (_, hold) in &mut copied.all {
            hold.is_linked = false;
        }
        copied
    }

    fn known(&self, path: &RelPath) -> CarriedHolds {
        let itself = self.0.get_key_value(path);
        let below = self.0.range(first_below(path)..);
        let below = below.take_while(|(at, _)| at.starts_with(path));
        let all = itself.into_iter().chain(below);
        CarriedHolds {
            from: path.clone(),
            all: all.map(|(at, hold)| (at.clone(), *hold)).collect(),
        }
    }

    /// Adds what was taken elsewhere to what is known of the path `to`. A file's own goes on; below
    /// a directory nobody counted since it was moved.
    pub(super) fn put(&mut self, carried: CarriedHolds, to: &RelPath) {
        let skipped = carried.from.names().count();
        for (path, moved) in carried.all {
            let names = path.names().skip(skipped);
            let at = names.fold(to.clone(), |path, name| path.join(name));
            let is_below = path != carried.from;
            let hold = self.0.entry(at).or_default();
            let is_first = hold.opens == 0 && !hold.is_doubtful;
            *hold = Hold {
                opens: hold.opens.saturating_add(moved.opens),
                is_doubtful: hold.is_doubtful || moved.is_doubtful || is_below,
                is_linked: moved.is_linked && !is_below,
                has_come: hold.has_come || moved.has_come,
                is_made: moved.is_made && is_first && !is_below,
            };
        }
    }
}
