//! Which files git's index leaves out of the work tree (skip-worktree: a sparse checkout sets it,
//! and `git update-index --skip-worktree`), and how that changed between two snapshots.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::SkipWorktreeChange;
use crate::git::ObjectId;
use crate::git::index::within;
use crate::git::store::Store;
use crate::git::user_index::{self, IndexEntry, IndexError, MODE_SPARSE_DIRECTORY};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::{GitState, Record};
use crate::store_error::StoreError;

/// The files of which only one of two indexes has the bit, as far as both know them; sorted by
/// path. An index that cannot be read by itself says nothing.
pub(super) fn changes(
    op: &Operation,
    store: &Store,
    before: &Record,
    after: &Record,
) -> Result<Vec<SkipWorktreeChange>, StoreError> {
    let (Some(before), Some(after)) = (&before.git, &after.git) else {
        return Ok(Vec::new());
    };
    if before.index == after.index {
        return Ok(Vec::new());
    }
    let (was, is) = (Bits::of(op, store, before)?, Bits::of(op, store, after)?);
    Ok(was.zip(is).map(|(was, is)| was.to(&is)).unwrap_or_default())
}

/// What an index says of files of the workspace.
#[derive(Debug, Default)]
struct Bits {
    /// Whether each file is left out.
    files: BTreeMap<RelPath, bool>,
    /// Directories that are left out as a whole, in a sparse index.
    directories: BTreeSet<RelPath>,
}

impl Bits {
    fn of(op: &Operation, store: &Store, git: &GitState) -> Result<Option<Self>, StoreError> {
        let Some(index) = git.index else {
            return Ok(Some(Self::default()));
        };
        let (_, bytes) = store.read(op, &index, u64::MAX)?;
        let no_shared_index = |_: &ObjectId| -> Result<Vec<u8>, IndexError> { Ok(Vec::new()) };
        let Ok(parsed) = user_index::parse(&bytes, &mut { no_shared_index }) else {
            return Ok(None);
        };
        Ok(Some(Self::in_scope(&parsed.entries, &git.scope)))
    }

    fn in_scope(entries: &[IndexEntry], scope: &RelPath) -> Self {
        let mut bits = Self::default();
        for entry in entries {
            let Some(path) = within(&entry.path, scope) else {
                continue;
            };
            match entry.mode == MODE_SPARSE_DIRECTORY {
                true => drop(bits.directories.insert(path)),
                false => drop(bits.files.insert(path, entry.is_skip_worktree)),
            }
        }
        bits
    }

    /// Whether the file is left out; `None`: the index does not have it.
    fn at(&self, path: &RelPath) -> Option<bool> {
        let is_below = || {
            let mut above = std::iter::successors(path.parent(), RelPath::parent);
            above.any(|directory| self.directories.contains(&directory))
        };
        let file = self.files.get(path).copied();
        file.or_else(|| (!self.directories.is_empty() && is_below()).then_some(true))
    }

    fn to(&self, later: &Self) -> Vec<SkipWorktreeChange> {
        let paths: BTreeSet<&RelPath> = self.files.keys().chain(later.files.keys()).collect();
        let changed = paths.into_iter().filter_map(|path| {
            let (from, to) = (self.at(path)?, later.at(path)?);
            (from != to).then(|| SkipWorktreeChange {
                path: path.clone(),
                from,
                to,
            })
        });
        changed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(files: &[(&str, bool)], directories: &[&str]) -> Bits {
        let path = |text: &str| RelPath::new(text).unwrap();
        Bits {
            files: files.iter().map(|(name, bit)| (path(name), *bit)).collect(),
            directories: directories.iter().map(|name| path(name)).collect(),
        }
    }

    #[test]
    fn a_directory_of_a_sparse_index_stands_for_its_files() {
        let full = bits(
            &[("a", false), ("d/e", true), ("d/f", false), ("gone", true)],
            &[],
        );
        let sparse = bits(&[("a", true), ("new", true)], &["d"]);
        let told = |changes: Vec<SkipWorktreeChange>| -> Vec<(String, bool)> {
            let told = changes.into_iter().map(|c| (c.path.to_string(), c.to));
            told.collect()
        };
        let there = [("a".to_owned(), true), ("d/f".to_owned(), true)];
        assert_eq!(told(full.to(&sparse)), there);
        assert_eq!(told(sparse.to(&full)), there.map(|(path, to)| (path, !to)));
        assert_eq!(told(full.to(&full)), []);
    }
}
