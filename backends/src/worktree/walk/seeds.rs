//! What an index has of directories that no capture has seen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::path::RelPath;
use crate::worktree::stat_cache::{CachedDirectory, Directories, StatCache};

/// The directories that a cache has from an index alone, taken out of it for the walk that looks at them
/// for the first time: what an index says of one is let go of as soon as the walk has seen it, so that a
/// workspace is never in memory twice.
#[derive(Debug, Default)]
pub(crate) struct Seeds(Mutex<Directories>);

impl Seeds {
    /// Takes them out of `cache`, if no capture has made any of it; those with a name that is one of
    /// `rule_files` stay, as other directories may ask for them.
    pub(crate) fn take_from(cache: &mut StatCache, rule_files: &[&[u8]]) -> Self {
        let has_capture = |directory: &Arc<CachedDirectory>| !directory.is_absent;
        if cache.directories.values().any(has_capture) {
            return Self::default();
        }
        let mut seeds = std::mem::take(&mut cache.directories);
        let has_rules =
            |d: &CachedDirectory| rule_files.iter().any(|name| d.entries.find(name).is_ok());
        cache.directories = seeds.extract_if(|_, d| has_rules(d)).collect();
        Self(Mutex::new(seeds))
    }

    /// Those that the walk has not seen.
    pub(crate) fn into_unseen(self) -> Directories {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the index has in a directory that was not seen.
    pub(super) fn get(&self, path: &RelPath) -> Option<Arc<CachedDirectory>> {
        self.lock().get(path).cloned()
    }

    /// Lets go of a directory that was seen.
    pub(super) fn let_go(&self, path: &RelPath) {
        self.lock().remove(path);
    }

    /// `before` with all that were not seen.
    pub(super) fn with_unseen(&self, before: &Directories) -> Directories {
        let unseen = self.lock();
        let all = before.iter().chain(unseen.iter());
        all.map(|(path, directory)| (path.clone(), Arc::clone(directory)))
            .collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Directories> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
