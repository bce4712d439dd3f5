//! A directory that is being read, beside what the cache has of it.

use std::sync::Arc;

use crate::worktree::root::Stat;
use crate::worktree::stat_cache::{CachedDirectory, CachedEntry, EntryStat, Listed, NameList};

/// An entry of the cache, and its place in its directory.
pub(super) struct Known<'c> {
    at: usize,
    pub(super) name: &'c [u8],
    pub(super) entry: &'c CachedEntry,
}

impl<'c> Known<'c> {
    pub(super) fn at(directory: &'c CachedDirectory, at: usize) -> Self {
        let (name, entry) = directory.entries.get(at);
        Self { at, name, entry }
    }
}

/// A directory that is being read: nothing is copied while it is found as the cache has it.
pub(super) struct Building<'c> {
    known: Option<&'c Arc<CachedDirectory>>,
    /// How many entries and children, from the first on, are as the cache has them.
    same_entries: usize,
    same_children: usize,
    is_absent: bool,
    mode: u32,
    /// From the first difference on, all of it.
    own: Option<CachedDirectory>,
    /// The names that are neither an entry nor a child.
    pub(super) others: NameList,
}

impl<'c> Building<'c> {
    pub(super) fn new(known: Option<&'c Arc<CachedDirectory>>, is_absent: bool, mode: u32) -> Self {
        Self {
            known,
            same_entries: 0,
            same_children: 0,
            is_absent,
            mode,
            own: None,
            others: NameList::default(),
        }
    }

    fn own(&mut self) -> &mut CachedDirectory {
        self.own.get_or_insert_with(|| {
            let mut own = CachedDirectory::default();
            if let Some(known) = self.known {
                own.entries.reserve_as(&known.entries);
                own.entries.begin_as(&known.entries, self.same_entries);
                own.children.begin_as(&known.children, self.same_children);
            }
            own
        })
    }

    /// Adds an entry of the cache, as it is or changed.
    pub(super) fn keep(&mut self, known: &Known<'_>, entry: CachedEntry) {
        if self.own.is_none() && known.at == self.same_entries && *known.entry == entry {
            self.same_entries += 1;
        } else {
            self.push(known.name, entry);
        }
    }

    /// Adds an entry of the cache as it is.
    pub(super) fn keep_as_it_is(&mut self, known: &Known<'_>) {
        if self.own.is_none() && known.at == self.same_entries {
            self.same_entries += 1;
        } else {
            self.push(known.name, known.entry.clone());
        }
    }

    pub(super) fn push(&mut self, name: &[u8], entry: CachedEntry) {
        self.own().entries.push(name, entry);
    }

    pub(super) fn child(&mut self, name: &[u8]) {
        let is_same = self.own.is_none()
            && self.known.is_some_and(|known| {
                let at = self.same_children;
                at < known.children.len() && known.children.get(at) == name
            });
        if is_same {
            self.same_children += 1;
        } else {
            self.own().children.push(name);
        }
    }

    /// The directory: the cache's own if nothing differs. `times` prove later that no name in it
    /// changed.
    pub(super) fn finish(mut self, times: Option<&Stat>) -> Arc<CachedDirectory> {
        let listed = times.map(|stat| {
            let EntryStat {
                mtime_ns,
                ctime_ns,
                inode,
                ..
            } = EntryStat::of(stat);
            Listed {
                inode,
                mtime_ns,
                ctime_ns,
                others: std::mem::take(&mut self.others),
            }
        });
        if let Some(known) = self.known
            && self.own.is_none()
            && self.same_entries == known.entries.len()
            && self.same_children == known.children.len()
            && self.mode == known.mode
            && self.is_absent == known.is_absent
            && listed == known.listed
        {
            return Arc::clone(known);
        }
        let (mode, is_absent) = (self.mode, self.is_absent);
        let mut own = std::mem::take(self.own());
        own.entries.shrink();
        (own.mode, own.is_absent, own.listed) = (mode, is_absent, listed);
        Arc::new(own)
    }
}
