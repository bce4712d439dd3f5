//! The user's index for a commit: which paths it tracks, and which files match it.

use crate::commit::CommitError;
use crate::git::ObjectId;
use crate::git::index::{is_doubtful, seed_stat};
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::git::user_index::{IndexEntry, MODE_SUBMODULE};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::GitState;
use crate::tree::EntryKind;
use crate::worktree::root::Root;
use crate::worktree::stat_cache::{CachedEntry, EntryStat, Flags};

/// An index that a commit can be made beside.
#[derive(Debug)]
pub(super) struct Staged {
    entries: Vec<IndexEntry>,
    modified_ns: i64,
    /// The digest of what it stages; `None`: there is no index.
    pub(super) digest: Option<String>,
}

impl Staged {
    /// Reads the index. One that no commit can be made beside is an error that says why.
    pub(super) fn read(repository: &UserRepository) -> Result<Self, CommitError> {
        let Some((bytes, stat)) = repository.index_bytes()? else {
            return Ok(Self {
                entries: Vec::new(),
                modified_ns: 0,
                digest: None,
            });
        };
        let index = repository.parse_index(&bytes)?;
        if let Some(form) = index.unwritable_form() {
            return Err(CommitError::Unsupported(format!(
                "the index of {} is {form}, which is not written",
                crate::error::printable(repository.work_tree())
            )));
        }
        if let Some(entry) = index.entries.iter().find(|entry| entry.stage != 0) {
            return Err(CommitError::Conflict(format!(
                "{} has a conflict that is not resolved",
                entry.path
            )));
        }
        Ok(Self {
            modified_ns: EntryStat::of(&stat).mtime_ns,
            digest: Some(digest(&index.entries)),
            entries: index.entries,
        })
    }

    /// The index as it was when a snapshot was taken. In a conflict it has what git goes by then: our
    /// side, or else another.
    pub(super) fn of_snapshot(
        op: &Operation,
        repository: &UserRepository,
        store: &Store,
        state: &GitState,
    ) -> Result<Self, CommitError> {
        let Some(id) = state.index else {
            return Ok(Self {
                entries: Vec::new(),
                modified_ns: 0,
                digest: None,
            });
        };
        let (_, bytes) = store.read(op, &id, u64::MAX)?;
        let mut entries = repository.parse_index(&bytes)?.entries;
        let rank = |entry: &IndexEntry| [0, 3, 1, 2][usize::from(entry.stage & 3)];
        entries.sort_by(|a, b| (&a.path, rank(a)).cmp(&(&b.path, rank(b))));
        entries.dedup_by(|later, earlier| later.path == earlier.path);
        Ok(Self {
            // Without a time every entry counts as one that git would look into.
            modified_ns: state.index_modified_ns.unwrap_or(i64::MIN),
            digest: Some(digest(&entries)),
            entries,
        })
    }

    /// Whether there is an index at all.
    pub(super) fn is_there(&self) -> bool {
        self.digest.is_some()
    }

    /// The entry at a path, which is from the top of the work tree.
    pub(super) fn at(&self, path: &RelPath) -> Option<&IndexEntry> {
        let at = self.entries.binary_search_by(|entry| entry.path.cmp(path));
        at.ok().map(|at| &self.entries[at])
    }

    /// The files that git has, and looks at, in the order of their paths.
    pub(super) fn files(&self) -> impl Iterator<Item = &IndexEntry> {
        self.entries.iter().filter(|entry| {
            let is_file = entry.mode & 0o170_000 == 0o100_000;
            let is_hidden = entry.is_skip_worktree || entry.is_assume_unchanged;
            is_file && !is_hidden && !entry.is_intent_to_add
        })
    }

    /// Whether a submodule is tracked at the path.
    pub(super) fn is_submodule(&self, path: &RelPath) -> bool {
        self.at(path).is_some_and(|e| e.mode == MODE_SUBMODULE)
    }

    /// Whether anything is tracked below the path.
    pub(super) fn has_below(&self, path: &RelPath) -> bool {
        let first = [path.as_bytes(), b"/"].concat();
        let at = self
            .entries
            .partition_point(|entry| entry.path.as_bytes() < &first[..]);
        self.entries
            .get(at)
            .is_some_and(|entry| entry.path.as_bytes().starts_with(&first))
    }

    /// The entry of a file or link that is on disk as git last saw it, going by its stat data: git
    /// would not look into it. `below` is the path below the workspace.
    pub(super) fn clean(
        &self,
        root: &Root,
        path: &RelPath,
        below: &RelPath,
    ) -> Option<(EntryKind, ObjectId)> {
        self.clean_before(root, path, below, self.modified_ns)
    }

    /// Whether git may look into a file or link that is on disk. Not every git goes by fractions of
    /// a second: it does so with what was written in the second of the index.
    pub(super) fn may_be_looked_into(&self, root: &Root, path: &RelPath, below: &RelPath) -> bool {
        let second = begin_of_second(self.modified_ns);
        self.clean_before(root, path, below, second).is_none()
    }

    fn clean_before(
        &self,
        root: &Root,
        path: &RelPath,
        below: &RelPath,
        index_ns: i64,
    ) -> Option<(EntryKind, ObjectId)> {
        let entry = self.at(path).filter(|entry| !entry.is_intent_to_add)?;
        let kind = EntryKind::from_git_mode(entry.mode).filter(|_| entry.mode != MODE_SUBMODULE)?;
        let stat = seed_stat(entry);
        let seen = CachedEntry {
            kind,
            id: entry.id.into(),
            stat,
            flags: Flags::TRACKED.with(Flags::FROM_INDEX),
        };
        let now = EntryStat::of(&root.lstat(below).ok()?);
        let is_clean = !is_doubtful(entry, &stat, index_ns) && seen.is_clean(&now);
        is_clean.then_some((kind, entry.id))
    }
}

fn begin_of_second(ns: i64) -> i64 {
    const SECOND: i64 = 1_000_000_000;
    ns.div_euclid(SECOND).saturating_mul(SECOND)
}

/// A digest of what entries stage, stat data left out.
pub(super) fn digest(entries: &[IndexEntry]) -> String {
    let mut hasher = blake3::Hasher::new();
    for entry in entries {
        entry.borrowed().add_to(&mut hasher);
    }
    hasher.finalize().to_hex().to_string()
}
