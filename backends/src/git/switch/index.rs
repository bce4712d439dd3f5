//! The user's index before and after.

use std::collections::BTreeMap;

use super::change::{Change, Coming};
use crate::git::commit::{Side, Staged, TreeChange};
use crate::git::user_index::{self, IndexEntry, IndexStat};
use crate::path::RelPath;

/// The entries of an index, by their paths from the top of the work tree.
pub(super) struct Entries {
    pub(super) staged: Staged,
}

/// What is staged at a path that the branch has otherwise.
pub(super) enum StagedAs {
    /// What HEAD or the branch has, or was saved from here.
    Known,
    /// Something that would be lost: why, as a clause.
    Other(&'static str),
}

impl Entries {
    /// The entry at a path, if it is not in a conflict.
    pub(super) fn at(&self, path: &RelPath) -> Option<&IndexEntry> {
        self.staged.at(path).filter(|entry| entry.stage == 0)
    }

    /// What is staged at a path.
    pub(super) fn staged_as(&self, change: &Change) -> StagedAs {
        if !self.staged.is_there() {
            return StagedAs::Known;
        }
        let is_known = |staged: Option<Side>| {
            [change.old, change.new].contains(&staged) || change.saved == Some(staged)
        };
        match self.staged.at(&change.path) {
            None if is_known(None) => StagedAs::Known,
            None => StagedAs::Other("is staged to be removed"),
            Some(entry) if entry.stage == 0 => {
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
        let coming = coming.iter().filter(|coming| coming.is_staged);
        let coming = coming.map(|coming| (&coming.change.path, coming.change.new));
        let whole = whole.iter().map(|change| (&change.path, change.new));
        let news: BTreeMap<&RelPath, Option<Side>> = match self.staged.is_there() {
            true => coming
                .filter(|(path, new)| self.is_news(path, *new))
                .collect(),
            false => whole.filter(|(_, new)| new.is_some()).collect(),
        };
        if news.is_empty() {
            return None;
        }
        let there = self.staged.entries().iter();
        let there = there.filter(|entry| entry.stage == 0);
        let there = there.chain(self.staged.conflicts());
        let stays = there.filter(|entry| !news.contains_key(&entry.path));
        let mut entries: Vec<IndexEntry<&[u8]>> = stays.map(IndexEntry::borrowed).collect();
        entries.extend(news.iter().filter_map(|(path, new)| {
            let (mode, id) = (*new)?;
            let was = self.staged.at(path);
            Some(IndexEntry {
                path: path.as_bytes(),
                mode,
                id,
                stat: IndexStat::default(),
                stage: 0,
                is_intent_to_add: false,
                is_skip_worktree: was.is_some_and(|entry| entry.is_skip_worktree),
                is_assume_unchanged: was.is_some_and(|entry| entry.is_assume_unchanged),
            })
        }));
        // All but what comes is in order.
        entries.sort_by(|a, b| (a.path, a.stage).cmp(&(b.path, b.stage)));
        Some(user_index::serialize(self.staged.version(), &entries, &[]))
    }

    /// Whether the index has something else at a path.
    fn is_news(&self, path: &RelPath, new: Option<Side>) -> bool {
        match self.staged.at(path) {
            None => new.is_some(),
            Some(entry) if entry.stage == 0 && !entry.is_intent_to_add => {
                new != Some((entry.mode, entry.id))
            }
            Some(_) => true,
        }
    }
}
