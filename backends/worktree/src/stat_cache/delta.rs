//! The differences between a capture and the last one.

use std::collections::HashSet;
use std::sync::Arc;

use super::{CachedDirectory, Directories};
use crate::path::RelPath;
use crate::tree::ContentId;

/// The difference between what two captures saw. What it does not name is as it was, so that a
/// capture costs what changed, not what is there.
#[derive(Debug, Default)]
pub struct Delta {
    /// The directories that are new or differ.
    pub directories: Directories,
    /// Those that are no more. The index has no path in them.
    pub removed: HashSet<RelPath>,
}

impl Delta {
    /// Whether nothing is different.
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty() && self.removed.is_empty()
    }

    /// The directory at `path`, after the difference to `before`.
    pub fn get<'a>(
        &'a self,
        before: &'a Directories,
        path: &RelPath,
    ) -> Option<&'a Arc<CachedDirectory>> {
        match self.directories.get(path) {
            Some(directory) => Some(directory),
            None if self.removed.contains(path) => None,
            None => before.get(path),
        }
    }

    /// All directories after the difference to `before`, in no order.
    pub fn iter<'a>(
        &'a self,
        before: &'a Directories,
    ) -> impl Iterator<Item = (&'a RelPath, &'a Arc<CachedDirectory>)> {
        let is_same =
            |path: &RelPath| !self.directories.contains_key(path) && !self.removed.contains(path);
        let same = before.iter().filter(move |(path, _)| is_same(path));
        self.directories.iter().chain(same)
    }

    /// The directory at `path`, to be changed.
    pub fn get_mut<'a>(
        &'a mut self,
        before: &Directories,
        path: &RelPath,
    ) -> Option<&'a mut CachedDirectory> {
        if !self.directories.contains_key(path) {
            let known = Arc::clone(before.get(path).filter(|_| !self.removed.contains(path))?);
            self.directories.insert(path.clone(), known);
        }
        self.directories.get_mut(path).map(Arc::make_mut)
    }

    /// Says that the directory at `path`, if there is one, has `tree`.
    pub fn set_tree(&mut self, before: &Directories, path: &RelPath, tree: Option<ContentId>) {
        if let Some(directory) = self.directories.get_mut(path) {
            if directory.tree != tree {
                Arc::make_mut(directory).tree = tree;
            }
        } else if self.get(before, path).is_some_and(|d| d.tree != tree) {
            self.get_mut(before, path).expect("it is there").tree = tree;
        }
    }

    /// The directories that are new, differ or are no more.
    pub fn paths(&self) -> impl Iterator<Item = &RelPath> {
        self.removed.iter().chain(self.directories.keys())
    }

    /// Brings `directories`, those that the difference is to, up to what was found.
    pub fn apply(self, directories: &mut Directories) {
        for path in &self.removed {
            directories.remove(path);
        }
        directories.extend(self.directories);
    }
}
