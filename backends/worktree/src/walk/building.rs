//! A directory that is being read, merged with its entry in the cache.

use std::ops::Range;
use std::sync::Arc;

use crate::descriptor::Stat;
use crate::stat_cache::{CachedDirectory, CachedEntry, EntryStat, Listed, NameList};

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
    /// Which entries and children of the cache it begins with: as many as are found as they are
    /// there, one after the other.
    same_entries: Range<usize>,
    same_children: Range<usize>,
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
            same_entries: 0..0,
            same_children: 0..0,
            is_absent,
            mode,
            own: None,
            others: NameList::default(),
        }
    }

    /// A part of the directory, to be appended to what lies before it: it begins at these places
    /// among the entries and children that the cache has.
    pub(super) fn part(
        known: Option<&'c Arc<CachedDirectory>>,
        entry_at: usize,
        child_at: usize,
    ) -> Self {
        Self {
            same_entries: entry_at..entry_at,
            same_children: child_at..child_at,
            ..Self::new(known, false, 0)
        }
    }

    /// Adds a part that lies after all that is here.
    pub(super) fn append(&mut self, mut more: Self) {
        let is_next = self.same_entries.end == more.same_entries.start
            && self.same_children.end == more.same_children.start;
        if self.own.is_none() && more.own.is_none() && is_next {
            self.same_entries.end = more.same_entries.end;
            self.same_children.end = more.same_children.end;
        } else {
            let (own, more) = (self.own(), more.own());
            let (entries, children) = (&more.entries, &more.children);
            own.entries.extend_from(entries, 0..entries.len());
            own.children.extend_from(children, 0..children.len());
        }
        self.others.extend_from(&more.others, 0..more.others.len());
    }

    fn own(&mut self) -> &mut CachedDirectory {
        self.own.get_or_insert_with(|| {
            let mut own = CachedDirectory::default();
            if let Some(known) = self.known {
                let (entries, children) = (&self.same_entries, &self.same_children);
                if entries.start == 0 {
                    own.entries.reserve_as(&known.entries);
                }
                own.entries.extend_from(&known.entries, entries.clone());
                own.children.extend_from(&known.children, children.clone());
            }
            own
        })
    }

    /// Adds an entry of the cache, as it is or changed.
    pub(super) fn keep(&mut self, known: &Known<'_>, entry: CachedEntry) {
        if self.own.is_none() && known.at == self.same_entries.end && *known.entry == entry {
            self.same_entries.end += 1;
        } else {
            self.push(known.name, entry);
        }
    }

    /// Adds an entry of the cache as it is.
    pub(super) fn keep_as_it_is(&mut self, known: &Known<'_>) {
        if self.own.is_none() && known.at == self.same_entries.end {
            self.same_entries.end += 1;
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
                let at = self.same_children.end;
                at < known.children.len() && known.children.get(at) == name
            });
        if is_same {
            self.same_children.end += 1;
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
            && self.same_entries == (0..known.entries.len())
            && self.same_children == (0..known.children.len())
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
