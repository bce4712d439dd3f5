//! The files of a store that are caches. If one is missing or damaged, the store computes its
//! content again.
//!
//! They are not synced, and any of them may be lost or damaged without harm. `docs/format.md`
//! describes them.

/// The stat cache of the git backend: an index of git's, by which a capture knows which files it
/// need not read.
pub(crate) const GIT_STAT_CACHE: &str = "git.stat-cache";
/// That of the hash backend where it keeps digests alone.
pub(crate) const HASH_STAT_CACHE: &str = "hash.stat-cache";
/// That of the hash backend where it keeps content.
pub(crate) const CONTENT_STAT_CACHE: &str = "hash-content.stat-cache";
/// Which packs the stat cache relies on: where they are others, files are read.
pub(crate) const VOUCHED_PACKS: &str = "vouched-packs";
/// Which directories of content the stat cache relies on: where they are others, files are read.
pub(crate) const VOUCHED_CONTENT: &str = "vouched-content";
/// The ref that was made last, and how many there are: without it they are listed.
pub(crate) const LAST_REF: &str = "last-ref";
/// The record that came last, and how many there are: without it they are listed.
pub(crate) const LAST_RECORD: &str = "last-record";
/// The directory of the shortcuts from the id of a snapshot to its ref: without them refs are
/// searched.
pub(crate) const SHORTCUTS: &str = "by-id";
/// Which commits the last capture kept, in the directory of the git store: without it they are
/// searched.
pub(crate) const HISTORY: &str = "history";

/// Whether `path` is a file of which a capture writes what it looked at, whatever comes of it.
#[cfg(test)]
pub(crate) fn is_of_captures(path: &std::path::Path) -> bool {
    let names = [
        GIT_STAT_CACHE,
        HASH_STAT_CACHE,
        CONTENT_STAT_CACHE,
        VOUCHED_PACKS,
        VOUCHED_CONTENT,
    ];
    names.iter().any(|name| path.ends_with(name))
}

/// Whether `path` is a cache.
#[cfg(test)]
pub(crate) fn is_cache(path: &std::path::Path) -> bool {
    let of_snapshots = [LAST_REF, LAST_RECORD, HISTORY];
    is_of_captures(path)
        || of_snapshots.iter().any(|name| path.ends_with(name))
        || path
            .parent()
            .is_some_and(|above| above.ends_with(SHORTCUTS))
}
