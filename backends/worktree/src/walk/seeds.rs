//! Entries of an index for directories that no capture has seen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::path::RelPath;
use crate::stat_cache::{CachedDirectory, Directories, StatCache};

/// The directories that a cache has from an index alone, taken out of it for the walk that looks at
/// them for the first time: the entries of the index for a directory are dropped as soon as the
/// walk has seen it, so that a workspace is never in memory twice.
#[derive(Debug, Default)]
pub struct Seeds(Mutex<Directories>);

impl Seeds {
    /// Takes them out of `cache`, if no capture has made any of it; those with a name that is one
    /// of `rule_files` stay, as other directories may ask for them.
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

    /// Lets go of the directory at `path`, which was seen to be `seen`. That lies from here on
    /// where the index's lay, if it has the same names: memory that one thread took and another
    /// gives back would not be used again.
    pub(super) fn let_go(&self, path: &RelPath, seen: &mut Arc<CachedDirectory>) {
        let seed = self.lock().remove(path).and_then(Arc::into_inner);
        if let (Some(seed), Some(seen)) = (seed, Arc::get_mut(seen)) {
            let entries = std::mem::take(&mut seen.entries);
            seen.entries = entries.in_place_of(seed.entries);
        }
    }

    /// Calls `with` for each that was not seen.
    pub(super) fn each(&self, mut with: impl FnMut(&RelPath, &CachedDirectory)) {
        for (path, directory) in self.lock().iter() {
            with(path, directory);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat_cache::{CachedEntry, EntryStat, Flags};
    use crate::tree::{ContentId, EntryKind};

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    /// A cache with a directory for each of these files.
    fn cache(files: &[(&str, &str)], is_absent: bool) -> StatCache {
        let mut cache = StatCache::default();
        for (directory, name) in files {
            let mut made = CachedDirectory {
                is_absent,
                ..Default::default()
            };
            let entry = CachedEntry {
                kind: EntryKind::File,
                id: ContentId::Sha1([1; 20]),
                stat: EntryStat::default(),
                flags: Flags::TRACKED.with(Flags::FROM_INDEX),
            };
            made.entries.push(name.as_bytes(), entry);
            cache.directories.insert(path(directory), Arc::new(made));
        }
        cache
    }

    #[test]
    fn a_directory_that_was_seen_is_let_go_of_and_others_come_back() {
        let files = [("seen", "a"), ("gone", "b"), ("rules", ".gitignore")];
        let mut cache = cache(&files, true);
        let mut all = cache.directories.clone();
        let seeds = Seeds::take_from(&mut cache, &[b".gitignore"]);
        let left: Vec<_> = cache.directories.keys().collect();
        assert_eq!(left, [&path("rules")], "other directories may ask for it");
        assert_eq!(seeds.get(&path("seen")), all.get(&path("seen")).cloned());

        let mut seen = (*all[&path("seen")]).clone();
        seen.entries.entry_mut(0).stat.size = 7;
        let mut kept = Arc::new(seen.clone());
        let indexed = all.remove(&path("seen"));
        drop(indexed);
        seeds.let_go(&path("seen"), &mut kept);
        assert_eq!(*kept, seen, "what was seen counts");

        assert_eq!(seeds.get(&path("seen")), None);
        assert_eq!(seeds.with_unseen(&cache.directories), all);
        cache.directories.extend(seeds.into_unseen());
        assert_eq!(cache.directories, all);
    }

    #[test]
    fn what_a_capture_saw_stays_where_it_is() {
        let mut cache = cache(&[("d", "a")], false);
        let before = cache.clone();
        let seeds = Seeds::take_from(&mut cache, &[]);
        assert!(seeds.is_empty());
        assert_eq!(cache, before);
    }
}
