//! The user's index for a commit: which paths it tracks, and which files match it.

use crate::commit::CommitError;
use crate::git::index::{is_doubtful, seed_stat};
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::git::user_index::{IndexEntry, MODE_SUBMODULE, UserIndex};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::GitState;
use crate::tree::EntryKind;
use crate::worktree::root::Root;
use crate::worktree::stat_cache::{CachedEntry, EntryStat, Flags};

/// An index as a commit or a switch goes by it.
#[derive(Debug)]
pub(in crate::git) struct Staged {
    /// One for each path, in their order.
    entries: Vec<IndexEntry>,
    /// All of the paths that are in a conflict, in the order of the index.
    conflicts: Vec<IndexEntry>,
    /// When it was last written, in nanoseconds since the Unix epoch.
    modified_ns: i64,
    /// 2, 3 or 4; `None`: there is no index.
    version: Option<u32>,
    /// Why it cannot be written by us; `None`: it can.
    pub(in crate::git) unwritable_form: Option<&'static str>,
}

impl Staged {
    fn none() -> Self {
        Self {
            entries: Vec::new(),
            conflicts: Vec::new(),
            modified_ns: 0,
            version: None,
            unwritable_form: None,
        }
    }

    /// In a conflict it has what git goes by then: our side, or else another.
    fn of(index: UserIndex, modified_ns: i64) -> Self {
        let unwritable_form = index.unwritable_form();
        let mut entries = index.entries;
        let is_in_conflict = |entry: &&IndexEntry| entry.stage != 0;
        let conflicts: Vec<_> = entries.iter().filter(is_in_conflict).cloned().collect();
        // A sparse directory is sorted as if its path ended in a slash.
        if !conflicts.is_empty() || unwritable_form.is_some() {
            let rank = |entry: &IndexEntry| [0, 3, 1, 2][usize::from(entry.stage & 3)];
            entries.sort_by(|a, b| (&a.path, rank(a)).cmp(&(&b.path, rank(b))));
            entries.dedup_by(|later, earlier| later.path == earlier.path);
        }
        Self {
            entries,
            conflicts,
            modified_ns,
            version: Some(index.version),
            unwritable_form,
        }
    }

    /// Reads the index. One that no commit can be made beside is an error that says why.
    pub(super) fn read(repository: &UserRepository) -> Result<Self, CommitError> {
        let Some((bytes, stat)) = repository.index_bytes()? else {
            return Ok(Self::none());
        };
        let index = repository.parse_index(&bytes)?;
        let staged = Self::of(index, EntryStat::of(&stat).mtime_ns);
        if let Some(form) = staged.unwritable_form {
            return Err(CommitError::Unsupported(format!(
                "the index of {} is {form}, which is not written",
                crate::error::printable(repository.work_tree())
            )));
        }
        if let Some(entry) = staged.conflicts.first() {
            return Err(CommitError::Conflict(format!(
                "{} has a conflict that is not resolved",
                entry.path
            )));
        }
        Ok(staged)
    }

    /// The index as it was when a snapshot was taken.
    pub(in crate::git) fn of_snapshot(
        op: &Operation,
        repository: &UserRepository,
        store: &Store,
        state: &GitState,
    ) -> Result<Self, CommitError> {
        let Some(id) = state.index else {
            return Ok(Self::none());
        };
        let of_user = repository.index_bytes().ok().flatten();
        let of_user = of_user.map(|(bytes, _)| bytes);
        // As a rule it is still there. The id was made with a look for attacks on SHA-1.
        let is_it = |bytes: &Vec<u8>| ObjectId::of_trusted(ObjectKind::Blob, bytes) == id;
        let bytes = match of_user.filter(is_it) {
            Some(bytes) => bytes,
            None => store.read(op, &id, u64::MAX)?.1,
        };
        // Without a time every entry counts as one that git would look into.
        let modified_ns = state.index_modified_ns.unwrap_or(i64::MIN);
        Ok(Self::of(repository.parse_index(&bytes)?, modified_ns))
    }

    /// Whether there is an index at all.
    pub(in crate::git) fn is_there(&self) -> bool {
        self.version.is_some()
    }

    /// The version of its file: 2, where there is none.
    pub(in crate::git) fn version(&self) -> u32 {
        self.version.unwrap_or(2)
    }

    /// The digest of what it stages; `None`: there is no index.
    pub(super) fn digest(&self) -> Option<String> {
        self.is_there().then(|| digest(&self.entries))
    }

    /// One entry for each path, in their order.
    pub(in crate::git) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// The entries of all paths that are in a conflict, in the order of the index.
    pub(in crate::git) fn conflicts(&self) -> &[IndexEntry] {
        &self.conflicts
    }

    /// The entry at a path, which is from the top of the work tree.
    pub(in crate::git) fn at(&self, path: &RelPath) -> Option<&IndexEntry> {
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
