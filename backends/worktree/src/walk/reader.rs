//! Reading one directory, name by name, and merging it with its entry in the cache.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::coverage::OmissionReason;
use crate::descriptor::Stat;
use crate::parallel;
use crate::path::RelPath;
use crate::snapshot_error::SnapshotError;
use crate::stat_cache::{CachedDirectory, CachedEntry, NameList};

use super::building::{Building, Known};
use super::found::Found;
use super::{Job, Rules, Walker};

/// A directory that is open, and what the cache has of it.
pub(super) struct Reader<'w, 'a, R: Rules> {
    pub(super) walker: &'w Walker<'a, R>,
    pub(super) job: &'w Job<R::Scope>,
    pub(super) fd: BorrowedFd<'w>,
    pub(super) cached: Option<&'w Arc<CachedDirectory>>,
}

/// A directory with more names than this is looked at on every core, one such at a time: others lie
/// beside directories that the other threads look at. In tests every directory is shared out that
/// can be.
const MIN_SHARED_NAMES: usize = if cfg!(any(test, feature = "testing")) {
    1
} else {
    4096
};

/// The time in which one directory is looked at on every core, so that there are no more threads
/// than those of the walk and one for each core.
struct Sharing<'w>(&'w AtomicBool);

impl<'w> Sharing<'w> {
    /// `None` while another directory is.
    fn begin(is_sharing: &'w AtomicBool) -> Option<Self> {
        let was_sharing = is_sharing.swap(true, Ordering::Relaxed);
        (!was_sharing).then_some(Self(is_sharing))
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What was found of a part of a directory.
struct Part<'w, S> {
    directory: Building<'w>,
    found: Found,
    jobs: Vec<Job<S>>,
}

/// Which of the cache's entries belong to a part of a directory, and the place of its first child.
#[derive(Default)]
struct Places {
    entries: Range<usize>,
    child: usize,
}

impl<'w, R: Rules> Reader<'w, '_, R> {
    /// Looks at all of `names`, which were listed.
    pub(super) fn listed(
        &self,
        names: &NameList,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let scope = self.enter(&|name| names.contains(name))?;
        self.each(names.iter(), names.len(), &scope, directory, found)
    }

    /// Looks at all that the cache has in the directory, and at `others`: nothing else is there.
    pub(super) fn known(
        &self,
        cached: &CachedDirectory,
        others: &NameList,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let scope = self.enter(&|name| cached.may_have(name))?;
        let entries = cached.entries.len();
        if cached.children.is_empty() && others.is_empty() {
            return self.each(cached.names_on_disk(), entries, &scope, directory, found);
        }
        let names = merged(
            cached.names_on_disk(),
            cached.children.iter(),
            others.iter(),
        );
        let count = entries + cached.children.len() + others.len();
        self.each(names, count, &scope, directory, found)
    }

    /// Looks at `names`, which are sorted and `count` at most; on every core, where they are many.
    fn each<'n>(
        &self,
        names: impl Iterator<Item = &'n [u8]>,
        count: usize,
        scope: &Arc<R::Scope>,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let known = 0..self.cached.map_or(0, |cached| cached.entries.len());
        if count <= MIN_SHARED_NAMES {
            return self.span(names, known, scope, directory, found);
        }
        let Some(_sharing) = Sharing::begin(&self.walker.is_sharing) else {
            return self.span(names, known, scope, directory, found);
        };
        let names: Vec<&[u8]> = names.collect();
        if names.is_empty() {
            return self.span(std::iter::empty(), known, scope, directory, found);
        }
        let mut jobs = Vec::new();
        for part in self.in_parts(&names, scope) {
            let part = part?;
            directory.append(part.directory);
            found.absorb(part.found);
            jobs.extend(part.jobs);
        }
        Ok(jobs)
    }

    /// Looks at `names` on every core; the parts are in order.
    fn in_parts(
        &self,
        names: &[&[u8]],
        scope: &Arc<R::Scope>,
    ) -> Vec<Result<Part<'w, R::Scope>, SnapshotError>> {
        parallel::in_parts(names, MIN_SHARED_NAMES / 4, |part| {
            let places = self.places(names, part);
            let mut directory = Building::part(self.cached, places.entries.start, places.child);
            let mut found = Found::default();
            let part = part.iter().copied();
            match self.span(part, places.entries, scope, &mut directory, &mut found) {
                Ok(jobs) => Ok(Part {
                    directory,
                    found,
                    jobs,
                }),
                Err(error) => {
                    // The other parts need not be looked at any more.
                    self.walker.is_stopping.store(true, Ordering::Relaxed);
                    Err(error)
                }
            }
        })
    }

    /// What the cache has from the first of `part`'s names on, up to the part of `names` that
    /// follows.
    fn places(&self, names: &[&[u8]], part: &[&[u8]]) -> Places {
        let Some(cached) = self.cached else {
            return Places::default();
        };
        let (entries, children) = (&cached.entries, &cached.children);
        let entry_at = |name: &[u8]| entries.find(name).unwrap_or_else(|at| at);
        let is_first = part.first() == names.first();
        let last = part.last().expect("no part is empty");
        let next = names.partition_point(|name| name <= last);
        Places {
            entries: match is_first {
                true => 0,
                false => entry_at(part[0]),
            }..names.get(next).map_or(entries.len(), |next| entry_at(next)),
            child: match is_first {
                true => 0,
                false => children.find(part[0]).unwrap_or_else(|at| at),
            },
        }
    }

    /// Looks at `names`, and notes which of the cache's entries in `known` are not among them.
    fn span<'n>(
        &self,
        names: impl Iterator<Item = &'n [u8]>,
        known: Range<usize>,
        scope: &Arc<R::Scope>,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let (walker, job) = (self.walker, self.job);
        let mut jobs = Vec::new();
        let known = known.filter_map(|at| Some(Known::at(self.cached?, at)));
        let mut known = known.peekable();
        for name in names {
            if walker.is_stopping.load(Ordering::Relaxed) {
                break;
            }
            while let Some(gone) = known.next_if(|known| known.name < name) {
                found.keep_absent(walker.options.cache, &job.path, &gone, directory);
            }
            let known = known.next_if(|known| known.name == name);
            self.one(name, known, scope, directory, found, &mut jobs)?;
        }
        for gone in known {
            found.keep_absent(walker.options.cache, &job.path, &gone, directory);
        }
        Ok(jobs)
    }

    /// Looks at `names` alone; all else is as the cache has it, and `others` if they are known.
    pub(super) fn some(
        &self,
        cached: &CachedDirectory,
        names: &BTreeSet<Vec<u8>>,
        others: Option<&NameList>,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let scope = self.enter(&|name| names.contains(name) || cached.may_have(name))?;
        let no_others = NameList::default();
        let others = others.unwrap_or(&no_others);
        let mut jobs = Vec::new();
        let known = self.cached.map_or(0, |cached| cached.entries.len());
        let known = (0..known).filter_map(|at| Some(Known::at(self.cached?, at)));
        let mut known = known.peekable();
        let all = merged(
            cached.entries.iter().map(|(name, _)| name),
            cached.children.iter(),
            merged(
                others.iter(),
                names.iter().map(Vec::as_slice),
                std::iter::empty(),
            ),
        );
        for name in all {
            let known = known.next_if(|known| known.name == name);
            if names.contains(name) {
                self.one(name, known, &scope, directory, found, &mut jobs)?;
                continue;
            }
            if let Some(known) = &known {
                directory.keep_as_it_is(known);
            }
            if cached.children.contains(name) {
                directory.child(name);
            }
            if others.contains(name) {
                directory.others.push(name);
            }
        }
        Ok(jobs)
    }

    fn one(
        &self,
        name: &[u8],
        known: Option<Known<'w>>,
        scope: &Arc<R::Scope>,
        directory: &mut Building<'w>,
        found: &mut Found,
        jobs: &mut Vec<Job<R::Scope>>,
    ) -> Result<(), SnapshotError> {
        found.looked_at += 1;
        let visit = Visit {
            job: self.job,
            fd: self.fd,
            scope,
            name,
            known,
        };
        self.walker.entry(&visit, found, directory, jobs)
    }

    fn enter(&self, has: &dyn Fn(&[u8]) -> bool) -> Result<Arc<R::Scope>, SnapshotError> {
        let (rules, job) = (self.walker.rules, self.job);
        rules.enter(job.above.as_ref(), &job.path, has)
    }
}

/// The names of sorted sequences, in order and each once.
fn merged<'n>(
    a: impl Iterator<Item = &'n [u8]>,
    b: impl Iterator<Item = &'n [u8]>,
    c: impl Iterator<Item = &'n [u8]>,
) -> impl Iterator<Item = &'n [u8]> {
    let (mut a, mut b, mut c) = (a.peekable(), b.peekable(), c.peekable());
    std::iter::from_fn(move || {
        let heads = [a.peek(), b.peek(), c.peek()];
        let next = heads.into_iter().flatten().copied().min()?;
        a.next_if_eq(&next);
        b.next_if_eq(&next);
        c.next_if_eq(&next);
        Some(next)
    })
}

/// One name in a directory that is being read.
pub(super) struct Visit<'a, S> {
    pub(super) job: &'a Job<S>,
    pub(super) fd: BorrowedFd<'a>,
    pub(super) scope: &'a Arc<S>,
    pub(super) name: &'a [u8],
    pub(super) known: Option<Known<'a>>,
}

impl<S> Visit<'_, S> {
    pub(super) fn path(&self) -> RelPath {
        self.job.path.join(self.name)
    }

    /// What the cache has for a file or link of this name.
    pub(super) fn cached(&self) -> Option<&CachedEntry> {
        self.known.as_ref().map(|known| known.entry)
    }

    /// Remembers what the index has at this path, though it was not captured.
    pub(super) fn keep_unseen(&self, found: &mut Found, directory: &mut Building<'_>) {
        if let Some(known) = &self.known {
            found.keep_unseen(&self.job.path, known, directory);
        }
    }

    pub(super) fn omit(
        &self,
        reason: OmissionReason,
        stat: Option<&Stat>,
        found: &mut Found,
        directory: &mut Building<'_>,
    ) {
        self.keep_unseen(found, directory);
        directory.others.push(self.name);
        found.omit(self.path(), reason, stat);
    }
}
