//! Reading one directory, name by name, beside what the cache has of it.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::SnapshotError;
use crate::coverage::OmissionReason;
use crate::path::RelPath;
use crate::worktree::stat_cache::{CachedDirectory, CachedEntry, NameList};

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

impl<'w, R: Rules> Reader<'w, '_, R> {
    /// Looks at all of `names`, which were listed.
    pub(super) fn listed(
        &self,
        names: &NameList,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let scope = self.enter(&|name| names.contains(name))?;
        self.each(names.iter(), &scope, directory, found)
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
        if cached.children.is_empty() && others.is_empty() {
            return self.each(cached.names_on_disk(), &scope, directory, found);
        }
        let names = merged(
            cached.names_on_disk(),
            cached.children.iter(),
            others.iter(),
        );
        self.each(names, &scope, directory, found)
    }

    fn each<'n>(
        &self,
        names: impl Iterator<Item = &'n [u8]>,
        scope: &Arc<R::Scope>,
        directory: &mut Building<'w>,
        found: &mut Found,
    ) -> Result<Vec<Job<R::Scope>>, SnapshotError> {
        let (walker, job) = (self.walker, self.job);
        let mut jobs = Vec::new();
        let known = self.cached.map_or(0, |cached| cached.entries.len());
        let known = (0..known).filter_map(|at| Some(Known::at(self.cached?, at)));
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
        bytes: Option<u64>,
        found: &mut Found,
        directory: &mut Building<'_>,
    ) {
        self.keep_unseen(found, directory);
        directory.others.push(self.name);
        found.omit(self.path(), reason, bytes);
    }
}
