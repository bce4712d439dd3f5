//! Names by directory, with a limit on their number.

use std::collections::BTreeSet;

use crate::path::RelPath;
use crate::watch::{Look, Pending};

/// More names than this in one directory are as good as all of it: looking at them costs about
/// what looking at all of them costs, and a directory without limit has a name that is kept in no
/// memory.
pub(super) const MAX_NAMES_OF_A_DIRECTORY: usize = 4096;

/// What to look at, by directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    by_directory: Pending,
    count: usize,
}

/// What was taken from [`Names`] at and below a path, to be put elsewhere.
#[derive(Clone, Debug, Default)]
pub(super) struct Carried {
    from: RelPath,
    has_itself: bool,
    below: Pending,
}

impl Names {
    /// How many names and directories are kept.
    pub(super) fn len(&self) -> usize {
        self.count + self.by_directory.len()
    }

    pub(super) fn insert(&mut self, directory: &RelPath, name: &[u8]) {
        let look = match self.by_directory.get_mut(directory) {
            Some(look) => look,
            None => {
                let none = Look::Names(BTreeSet::new());
                self.by_directory.entry(directory.clone()).or_insert(none)
            }
        };
        if let Look::Names(names) = look
            && !names.contains(name)
        {
            names.insert(name.to_owned());
            self.count += 1;
            if names.len() > MAX_NAMES_OF_A_DIRECTORY {
                self.count -= names.len();
                *look = Look::All;
            }
        }
    }

    /// The directory itself changed, and none of its names need have.
    pub(super) fn insert_directory(&mut self, directory: &RelPath) {
        let none = || Look::Names(BTreeSet::new());
        self.by_directory
            .entry(directory.clone())
            .or_insert_with(none);
    }

    /// Everything in the directory may have changed.
    pub(super) fn insert_all(&mut self, directory: &RelPath) {
        let before = self.by_directory.insert(directory.clone(), Look::All);
        if let Some(Look::Names(names)) = before {
            self.count -= names.len();
        }
    }

    pub(super) fn absorb(&mut self, other: Self) {
        if self.by_directory.is_empty() {
            *self = other;
            return;
        }
        for (directory, look) in other.by_directory {
            self.insert_directory(&directory);
            match look {
                Look::Names(names) => {
                    for name in names {
                        self.insert(&directory, &name);
                    }
                }
                Look::All => self.insert_all(&directory),
            }
        }
    }

    /// Removes the name of `path` from its directory, and everything below it.
    pub(super) fn take(&mut self, path: &RelPath) -> Carried {
        let mut carried = self.copy(path);
        for (directory, look) in &carried.below {
            self.by_directory.remove(directory);
            if let Look::Names(names) = look {
                self.count -= names.len();
            }
        }
        if let Some(parent) = path.parent()
            && let Some(Look::Names(names)) = self.by_directory.get_mut(&parent)
        {
            carried.has_itself = names.remove(path.name());
            self.count -= usize::from(carried.has_itself);
            if names.is_empty() {
                self.by_directory.remove(&parent);
            }
        }
        carried
    }

    /// Removes everything below the directory `path`; its own name stays.
    pub(super) fn clear_below(&mut self, path: &RelPath) {
        let below: Vec<RelPath> = self.below(path).map(|(path, _)| path.clone()).collect();
        for directory in below {
            if let Some(Look::Names(names)) = self.by_directory.remove(&directory) {
                self.count -= names.len();
            }
        }
    }

    /// What [`Self::take`] would answer with.
    pub(super) fn copy(&self, path: &RelPath) -> Carried {
        let parent = path.parent();
        let beside = parent.and_then(|parent| self.by_directory.get(&parent));
        Carried {
            from: path.clone(),
            has_itself: matches!(beside, Some(Look::Names(names)) if names.contains(path.name())),
            below: self
                .below(path)
                .map(|(directory, look)| (directory.clone(), look.clone()))
                .collect(),
        }
    }

    /// Inserts what was taken elsewhere under the path `to`.
    pub(super) fn put(&mut self, carried: Carried, to: &RelPath) {
        if carried.has_itself
            && let Some(parent) = to.parent()
        {
            self.insert(&parent, to.name());
        }
        let mut moved = Self::default();
        for (directory, look) in carried.below {
            let skipped = carried.from.names().count();
            let names = directory.names().skip(skipped);
            let directory = names.fold(to.clone(), |path, name| path.join(name));
            if let Look::Names(names) = &look {
                moved.count += names.len();
            }
            moved.by_directory.insert(directory, look);
        }
        self.absorb(moved);
    }

    pub(super) fn into_pending(self) -> Pending {
        self.by_directory
    }

    /// The directory `path`, and those below it.
    fn below<'a>(&'a self, path: &'a RelPath) -> impl Iterator<Item = (&'a RelPath, &'a Look)> {
        // Names such as `a-b` sort between `a` and `a/b`, so these are two ranges.
        let itself = self.by_directory.get_key_value(path);
        let below = self
            .by_directory
            .range(first_below(path)..)
            .take_while(move |(at, _)| at.starts_with(path));
        let itself = itself.filter(|_| !path.is_root());
        itself.into_iter().chain(below)
    }
}

/// What no path below `path` sorts before: no name begins with less than its byte.
pub(super) fn first_below(path: &RelPath) -> RelPath {
    if path.is_root() {
        path.clone()
    } else {
        path.join(b"\x01")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn names(of: &[(&str, &str)]) -> Names {
        let mut names = Names::default();
        for (directory, name) in of {
            names.insert(&path(directory), name.as_bytes());
        }
        names
    }

    #[test]
    fn what_is_moved_is_found_in_the_new_place_and_its_neighbours_stay() {
        let mut all = names(&[
            ("", "d"),
            ("", "d-x"),
            ("d", "a"),
            ("d/e", "b"),
            ("d-x", "c"),
            ("d0", "e"),
        ]);
        let carried = all.take(&path("d"));
        assert_eq!(all, names(&[("", "d-x"), ("d-x", "c"), ("d0", "e")]));
        all.put(carried, &path("n/m"));
        let expected = names(&[
            ("", "d-x"),
            ("d-x", "c"),
            ("d0", "e"),
            ("n", "m"),
            ("n/m", "a"),
            ("n/m/e", "b"),
        ]);
        assert_eq!(all, expected);
    }

    #[test]
    fn many_names_of_one_directory_become_all_of_it() {
        let mut all = Names::default();
        for n in 0..=MAX_NAMES_OF_A_DIRECTORY {
            all.insert(&path("d"), n.to_string().as_bytes());
        }
        all.insert(&path("d"), b"more");
        assert_eq!(all.len(), 1);
        let few = names(&[("d", "a"), ("e", "b")]);
        let mut both = few.clone();
        both.absorb(all.clone());
        assert_eq!(both.len(), 3, "two directories and a name");
        let mut the_other_way_round = all;
        the_other_way_round.absorb(few);
        assert_eq!(both, the_other_way_round);
        assert_eq!(both.into_pending()[&path("d")], Look::All);
    }

    #[test]
    fn the_count_is_right_whatever_is_taken_and_put() {
        let mut all = names(&[("", "a"), ("", "b"), ("a", "x"), ("a/b", "y"), ("c", "z")]);
        let whole = all.len();
        let carried = all.take(&path("a"));
        all.put(carried, &path("q"));
        assert_eq!(all.len(), whole);
        all.clear_below(&path("q"));
        assert_eq!(all, names(&[("", "b"), ("", "q"), ("c", "z")]));
        assert_eq!(all.len(), 5);
        all.clear_below(&RelPath::root());
        assert_eq!(all.len(), 0);
    }
}
