//! The user's index before and after.

use std::collections::BTreeMap;

use super::change::{Change, Coming};
use crate::branches::BranchError;
use crate::git::commit::{Side, TreeChange};
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::git::user_index::{self, IndexEntry, IndexStat};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::GitState;

/// The entries of an index, by their paths from the top of the work tree.
pub(super) struct Entries {
    version: u32,
    by_path: BTreeMap<RelPath, Vec<IndexEntry>>,
    /// Whether there is an index.
    pub(super) is_there: bool,
    /// Why it is not written; `None`: it is.
    pub(super) unwritable_form: Option<&'static str>,
}

/// What is staged at a path that the branch has otherwise.
pub(super) enum StagedAs {
    /// What HEAD or the branch has, or was saved from here.
    Known,
    /// Something that would be lost: why, as a clause.
    Other(&'static str),
}

impl Entries {
    /// Those of the index that a snapshot kept.
    pub(super) fn of_snapshot(
        op: &Operation,
        repository: &UserRepository,
        store: &Store,
        state: &GitState,
    ) -> Result<Self, BranchError> {
        let Some(id) = state.index else {
            return Ok(Self {
                version: 2,
                by_path: BTreeMap::new(),
                is_there: false,
                unwritable_form: None,
            });
        };
        let (_, bytes) = store.read(op, &id, u64::MAX)?;
        let index = repository
            .parse_index(&bytes)
            .map_err(super::commit_error)?;
        let unwritable_form = index.unwritable_form();
        let mut by_path: BTreeMap<RelPath, Vec<IndexEntry>> = BTreeMap::new();
        for entry in index.entries {
            by_path.entry(entry.path.clone()).or_default().push(entry);
        }
        Ok(Self {
            version: index.version,
            by_path,
            is_there: true,
            unwritable_form,
        })
    }

    /// The entry at a path, if it is not in a conflict.
    pub(super) fn at(&self, path: &RelPath) -> Option<&IndexEntry> {
        match self.by_path.get(path).map(Vec::as_slice) {
            Some([entry]) if entry.stage == 0 => Some(entry),
            _ => None,
        }
    }

    /// What is staged at a path.
    pub(super) fn staged_as(&self, change: &Change) -> StagedAs {
        if !self.is_there {
            return StagedAs::Known;
        }
        let is_known = |staged: Option<Side>| {
            [change.old, change.new].contains(&staged) || change.saved == Some(staged)
        };
        match self.by_path.get(&change.path).map(Vec::as_slice) {
            None if is_known(None) => StagedAs::Known,
            None => StagedAs::Other("is staged to be removed"),
            Some([entry]) if entry.stage == 0 => {
                match entry.is_intent_to_add || is_known(Some((entry.mode, entry.id))) {
                    true => StagedAs::Known,
                    false => StagedAs::Other("is staged otherwise"),
                }
            }
            Some(_) => StagedAs::Other("has a conflict that is not resolved"),
        }
    }

    /// The bytes of the index with what comes, if that is another: of the rest all stays, with its
    /// stat data. What comes has none, so that git looks at it once. `whole`: all that the branch
    /// has, for where there is no index yet.
    pub(super) fn with(&self, coming: &[Coming], whole: &[TreeChange]) -> Option<Vec<u8>> {
        let mut by_path = self.by_path.clone();
        let mut is_changed = false;
        let mut put = |path: &RelPath, new: Option<Side>| {
            let staged = by_path.get(path).map(Vec::as_slice);
            let is_new = match staged {
                None => new.is_some(),
                Some([entry]) if entry.stage == 0 && !entry.is_intent_to_add => {
                    new != Some((entry.mode, entry.id))
                }
                Some(_) => true,
            };
            if !is_new {
                return;
            }
            is_changed = true;
            let was = by_path.remove(path);
            let was = was.as_deref().and_then(<[IndexEntry]>::first);
            let Some((mode, id)) = new else {
                return;
            };
            let entry = IndexEntry {
                path: path.clone(),
                mode,
                id,
                stat: IndexStat::default(),
                stage: 0,
                is_intent_to_add: false,
                is_skip_worktree: was.is_some_and(|entry| entry.is_skip_worktree),
                is_assume_unchanged: was.is_some_and(|entry| entry.is_assume_unchanged),
            };
            by_path.insert(path.clone(), vec![entry]);
        };
        match self.is_there {
            true => coming
                .iter()
                .filter(|coming| coming.is_staged)
                .for_each(|coming| put(&coming.change.path, coming.change.new)),
            false => whole
                .iter()
                .for_each(|change| put(&change.path, change.new)),
        }
        let entries: Vec<IndexEntry> = by_path.into_values().flatten().collect();
        is_changed.then(|| user_index::serialize(self.version, &entries))
    }
}
