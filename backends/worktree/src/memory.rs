//! State that stays in memory between the captures of a workspace, so that the next capture need
//! not read it from disk.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::identity::Identity;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::root::Root;
use crate::search::{Search, WalkReason};
use crate::stat_cache::{self, Delta, Directories, EntryStat, Flags, OnDisk, Staged, StatCache};
use crate::tally::Tally;
use crate::walk::{ChangedOnly, Omissions, Seeds};
use crate::watch::{Look, Pending, Watch};

/// What a workspace remembers, by the file that would otherwise be read.
#[derive(Debug, Default)]
pub struct Memory {
    remembered: Mutex<HashMap<&'static str, Remembered>>,
    /// What the index of a repository within the workspace stages, by where that lies, with what
    /// `lstat` said of the index.
    nested: Mutex<HashMap<PathBuf, (EntryStat, String)>>,
}

/// What one capture leaves to the next.
#[derive(Clone, Debug)]
struct Remembered {
    identity: Identity,
    cache: Arc<StatCache>,
    on_disk: OnDisk,
    absent: BTreeSet<RelPath>,
    tally: Tally,
    inventory: Option<Inventory>,
    kept: Option<KeptWatch>,
}

/// The file in which a backend listed all that a capture saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Names its content.
    pub reference: String,
    /// The stat data of the file when it was last checked; `None`: the file could have changed
    /// without a change of its stat data.
    pub proof: Option<EntryStat>,
}

/// A watch that continues after a capture, with the rules and the result of that capture.
#[derive(Clone, Debug)]
struct KeptWatch {
    watch: Arc<Watch>,
    omissions: Omissions,
    basis: Basis,
    result: Vec<u8>,
    /// Whether it has a path that the rules ignore, because an earlier capture of the session had
    /// it.
    has_kept: bool,
}

/// The rules by which a capture decides which paths belong to it. If the basis of two captures is
/// equal, they decide the same for all unchanged paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The rules, in any form that is the same for the same rules alone.
    pub rules: Vec<u8>,
    /// The names of files that hold rules; those whose text the cache has come first.
    pub rule_files: &'static [&'static [u8]],
}

/// The starting point of a capture.
#[derive(Debug)]
pub struct Base {
    file: &'static str,
    identity: Identity,
    /// What the last capture saw.
    pub cache: StatCache,
    /// Those of its directories that were not there.
    pub absent: BTreeSet<RelPath>,
    on_disk: OnDisk,
    tally: Option<Tally>,
    inventory: Option<Inventory>,
    kept: Option<KeptWatch>,
    why_no_watch: WalkReason,
    /// Directories that the cache has not as the last capture left them.
    pub revised: BTreeSet<RelPath>,
}

/// Where a capture looks.
#[derive(Debug)]
pub struct Scope {
    watch: Option<Arc<Watch>>,
    only: Option<(Pending, Omissions)>,
    basis: Option<Basis>,
    /// What is said of it.
    pub search: Search,
}

/// The state that a capture leaves for the next one, once it is published.
#[derive(Debug)]
pub struct Closing {
    file: &'static str,
    remembered: Remembered,
    is_changed: bool,
}

/// Whether a capture is going to be published, and so takes what is remembered for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is.
    Takes,
    /// It is not: what is remembered stays for the next one.
    Borrows,
}

/// What a capture came to.
#[derive(Debug)]
pub struct Outcome {
    /// What tells it from others.
    pub result: Vec<u8>,
    /// Whether it has a path that the rules ignore, because an earlier capture of the session had
    /// it.
    pub has_kept: bool,
}

impl Memory {
    /// What is known from the last capture: from memory, if `file` in the store is the
    /// one that goes with it, else from that.
    pub fn base(&self, store: &Path, identity: Identity, file: &'static str, usage: Use) -> Base {
        let path = store.join(file);
        let mut held = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let remembered = match usage {
            Use::Takes => held.remove(file),
            Use::Borrows => held.get(file).cloned(),
        };
        drop(held);
        let had_one = remembered.is_some();
        let is_current =
            |known: &Remembered| known.identity == identity && known.on_disk.is_current(&path);
        if let Some(known) = remembered.filter(is_current) {
            return Base {
                file,
                identity,
                cache: Arc::unwrap_or_clone(known.cache),
                absent: known.absent,
                on_disk: known.on_disk,
                tally: Some(known.tally),
                inventory: known.inventory,
                kept: known.kept,
                why_no_watch: WalkReason::NoJournal,
                revised: BTreeSet::new(),
            };
        }
        let (cache, on_disk) = stat_cache::load(&path, identity);
        Base {
            file,
            identity,
            absent: absent_in(&cache.directories),
            cache,
            on_disk,
            tally: None,
            inventory: None,
            kept: None,
            why_no_watch: match had_one {
                true => WalkReason::CacheReplaced,
                false => WalkReason::NoJournal,
            },
            revised: BTreeSet::new(),
        }
    }

    /// What the index of the repository at `path` stages, if it is known of one with this stat
    /// data.
    pub fn nested_index(&self, path: &Path, stat: &EntryStat) -> Option<String> {
        let nested = self.nested.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, staged) = nested.get(path)?;
        (known == stat).then(|| staged.clone())
    }

    /// Remembers that. `stat` must not be one that a later index could have as well.
    pub fn keep_nested_index(&self, path: &Path, stat: EntryStat, staged: String) {
        let mut nested = self.nested.lock().unwrap_or_else(PoisonError::into_inner);
        nested.insert(path.to_owned(), (stat, staged));
    }

    fn keep(&self, file: &'static str, remembered: Remembered) {
        let mut held = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        held.insert(file, remembered);
    }
}

impl Base {
    /// Changes what the cache says, before a walk compares it with the workspace.
    pub fn revise<T, E>(
        &mut self,
        revise: impl FnOnce(&mut StatCache) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.cache.directories.is_empty() {
            // All that there is after it is seeds.
            return revise(&mut self.cache);
        }
        let before = self.cache.directories.clone();
        let revised = revise(&mut self.cache)?;
        let now = &self.cache.directories;
        let differs = |path: &RelPath| match (before.get(path), now.get(path)) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
            _ => true,
        };
        let differing = before.keys().chain(now.keys()).filter(|path| differs(path));
        self.revised.extend(differing.cloned());
        if !self.revised.is_empty() {
            self.absent = absent_in(now);
            self.tally = None;
        }
        Ok(revised)
    }

    /// Takes out what the index has of directories that no capture has seen: all of them, before
    /// the first capture. Those with a file of rules stay.
    pub fn take_seeds(&mut self, rule_files: &[&[u8]]) -> Seeds {
        let seeds = Seeds::take_from(&mut self.cache, rule_files);
        if self.cache.directories.values().all(|d| d.is_absent) {
            self.absent = absent_in(&self.cache.directories);
            self.revised.extend(self.absent.iter().cloned());
        }
        seeds
    }

    /// Puts back those that the walk has not seen.
    pub fn put_back(&mut self, seeds: Seeds) {
        for (path, directory) in seeds.into_unseen() {
            self.absent.insert(path.clone());
            self.revised.insert(path.clone());
            self.cache.directories.insert(path, directory);
        }
    }

    /// Decides where to look. With `watches` the workspace is watched from here on, for the next
    /// capture; one that the last capture left is gone by if its basis was the same, and its result
    /// is all of `results`: what this capture has to keep although a rule ignores it.
    pub fn scope(
        &self,
        root: &Root,
        watches: bool,
        usage: Use,
        basis: Basis,
        results: &[Vec<u8>],
    ) -> Scope {
        let walks = |watch, because| Scope {
            watch,
            only: None,
            basis: Some(basis.clone()),
            search: Search::Walked { because },
        };
        if !watches {
            return walks(None, None);
        }
        match self.use_watch(root, &basis, results) {
            Ok((watch, pending, omissions)) => Scope {
                search: Search::Watched {
                    directories: pending.len() as u64,
                },
                watch: Some(watch),
                only: Some((pending, omissions)),
                basis: Some(basis),
            },
            Err(because) if usage == Use::Borrows => walks(None, Some(because)),
            Err(because) => match Watch::begin(root) {
                Ok(watch) => walks(Some(Arc::new(watch)), Some(because)),
                Err(because) => walks(None, Some(because)),
            },
        }
    }

    fn use_watch(
        &self,
        root: &Root,
        basis: &Basis,
        results: &[Vec<u8>],
    ) -> Result<(Arc<Watch>, Pending, Omissions), WalkReason> {
        let kept = self.kept.as_ref().ok_or(self.why_no_watch)?;
        let is_same_result = match results {
            [] => !kept.has_kept,
            results => results.iter().all(|result| *result == kept.result),
        };
        let mut pending = kept.watch.pending()?;
        if kept.basis != *basis
            || !is_same_result
            || may_change_rules(root, basis, &pending, &self.cache)
        {
            return Err(WalkReason::RulesChanged);
        }
        // A directory that is named has other permissions: what could not be looked at in it
        // perhaps can, or the reverse.
        let mut named = Vec::new();
        for (directory, look) in &pending {
            match look {
                Look::All => {
                    let below = pending
                        .keys()
                        .filter(|p| p.parent().as_ref() == Some(directory));
                    named.extend(below.cloned());
                }
                Look::Names(names) => {
                    let below = names.iter().map(|name| directory.join(name));
                    named.extend(below.filter(|path| kept.watch.watches(path)));
                }
            }
        }
        pending.extend(named.into_iter().map(|path| (path, Look::All)));
        for path in &self.revised {
            if kept.watch.watches(path) {
                pending.insert(path.clone(), Look::All);
            }
            // Whether a directory belongs to the capture may depend on what the index has in it.
            let mut child = path.clone();
            while let Some(parent) = child.parent() {
                match pending
                    .entry(parent.clone())
                    .or_insert_with(|| Look::Names(BTreeSet::new()))
                {
                    Look::All => {}
                    Look::Names(names) => drop(names.insert(child.name().to_owned())),
                }
                child = parent;
            }
        }
        Ok((Arc::clone(&kept.watch), pending, kept.omissions.clone()))
    }

    /// Ends a capture: what it found is what the next one starts from. `rest` fills in what the
    /// cache has beside its directories; `result` is what the capture came to.
    pub fn close(
        mut self,
        scope: Scope,
        delta: Delta,
        omissions: Omissions,
        has_new: bool,
        result: Outcome,
    ) -> Closing {
        let tally = self.tally.take().map(|mut tally| {
            tally.follow(&self.cache.directories, &delta);
            tally
        });
        let is_changed = has_new || !delta.is_empty() || !self.revised.is_empty();
        for path in &delta.removed {
            self.absent.remove(path);
        }
        for (path, directory) in &delta.directories {
            match directory.is_absent {
                true => self.absent.insert(path.clone()),
                false => self.absent.remove(path),
            };
        }
        self.on_disk.note_changed(delta.paths().cloned());
        self.on_disk.note_changed(self.revised);
        delta.apply(&mut self.cache.directories);
        let tally = tally.unwrap_or_else(|| Tally::of(&self.cache.directories));
        let had_kept = scope.only.is_some() && self.kept.as_ref().is_some_and(|k| k.has_kept);
        let kept = scope
            .watch
            .zip(scope.basis)
            .map(|(watch, basis)| KeptWatch {
                watch,
                omissions,
                basis,
                result: result.result,
                has_kept: result.has_kept || had_kept,
            });
        Closing {
            file: self.file,
            remembered: Remembered {
                identity: self.identity,
                cache: Arc::new(self.cache),
                on_disk: self.on_disk,
                absent: self.absent,
                tally,
                // It lists what is there as long as nothing differs.
                inventory: self.inventory.filter(|_| !is_changed),
                kept,
            },
            is_changed,
        }
    }
}

impl Scope {
    /// For the walk: the watch that directories are added to.
    pub fn watch(&self) -> Option<&Watch> {
        self.watch.as_deref()
    }

    /// Looks everywhere after all. The watch continues.
    pub(crate) fn widen(&mut self, because: WalkReason) {
        self.only = None;
        self.search = Search::Walked {
            because: Some(because),
        };
    }

    /// For the walk: where to look.
    pub fn only(&self) -> Option<ChangedOnly<'_>> {
        let (pending, omissions) = self.only.as_ref()?;
        Some(ChangedOnly {
            watch: self.watch()?,
            pending,
            omissions,
        })
    }
}

impl Closing {
    /// All that the capture saw.
    pub fn cache(&self) -> &Arc<StatCache> {
        &self.remembered.cache
    }

    /// What it counted.
    pub fn tally(&self) -> &Tally {
        &self.remembered.tally
    }

    /// Where all that the capture saw is listed, if that is known from an earlier one.
    pub fn inventory(&self) -> Option<&Inventory> {
        self.remembered.inventory.as_ref()
    }

    /// Says where all that the capture saw is listed.
    pub fn note_inventory(&mut self, inventory: Inventory) {
        self.remembered.inventory = Some(inventory);
    }

    /// Whether the file of the cache lacks something of it.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Makes ready what [`Closing::keep`] writes, under no name that anybody would read it by.
    ///
    /// For a thread beside the one that makes durable what the cache vouches for.
    pub fn stage(&self, op: &Operation, store: &Path) -> Option<Staged> {
        let path = store.join(self.file);
        let Remembered {
            identity,
            cache,
            on_disk,
            ..
        } = &self.remembered;
        match self.is_changed {
            true => stat_cache::stage(op, cache, on_disk, &path, *identity),
            false => None,
        }
    }

    /// Writes the cache, or names the one that is staged, and remembers it. To be called when what
    /// the cache vouches for is durable.
    ///
    /// A cache that cannot be written costs the next capture some time, and nothing else.
    pub fn keep(mut self, op: &Operation, memory: &Memory, store: &Path, staged: Option<Staged>) {
        let path = store.join(self.file);
        let Remembered {
            identity,
            cache,
            on_disk,
            ..
        } = &mut self.remembered;
        if self.is_changed
            && stat_cache::save(op, cache, on_disk, staged, &path, *identity).is_err()
        {
            return;
        }
        if let Some(kept) = &self.remembered.kept {
            kept.watch.settle();
        }
        memory.keep(self.file, self.remembered);
    }
}

fn absent_in(directories: &Directories) -> BTreeSet<RelPath> {
    let absent = directories
        .iter()
        .filter(|(_, directory)| directory.is_absent);
    absent.map(|(path, _)| path.clone()).collect()
}

/// Whether a file with rules may have changed: then any path may belong to the capture that did
/// not, or the reverse.
fn may_change_rules(root: &Root, basis: &Basis, pending: &Pending, cache: &StatCache) -> bool {
    let is_as_it_was = |directory: &RelPath, name: &[u8]| {
        let path = directory.join(name);
        let known = cache.entry(&path).filter(|e| !e.flags.has(Flags::ABSENT));
        let read = cache.rule_files.get(directory);
        let read = read.filter(|_| basis.rule_files.first() == Some(&name));
        match root.lstat(&path) {
            Ok(stat) => {
                let now = EntryStat::of(&stat);
                known.is_some_and(|known| known.is_clean(&now))
                    || read.is_some_and(|read| read.stat == now && !read.is_racy)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => known.is_none() && read.is_none(),
            Err(_) => false,
        }
    };
    basis.rule_files.iter().any(|name| {
        pending.iter().any(|(directory, look)| match look {
            Look::Names(names) if !names.contains(*name) => false,
            _ => !is_as_it_was(directory, name),
        })
    })
}
