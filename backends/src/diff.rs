//! Comparing two snapshots.

pub(crate) mod beside;
mod file;
pub(crate) mod fingerprint;
pub(crate) mod nested;
pub(crate) mod renames;
pub(crate) mod scope;
pub(crate) mod sketch;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::coverage::Coverage;
pub(crate) use crate::diff::file::Looked;
pub use crate::diff::file::{ChangedFile, FileStatus};
pub use crate::diff::nested::NestedChange;
use crate::diff::renames::Pair;
pub use crate::diff::renames::{Renamed, Renames};
use crate::diff_error::DiffError;
use crate::path::RelPath;
use crate::record::{GitState, KNOWS_NESTED, Record};
use crate::restore::ModeChange;
use crate::restore::RefChange;
use crate::snapshot::{BackendKind, Snapshot};
use crate::tree::{Change, EntryKind};

/// What a diff should contain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiffOptions {
    /// Whether to produce the patch. Default: false.
    pub capture_patch: bool,
    /// The largest patch, in bytes, that is embedded as text in [`Diff::patch`]. Nothing is ever
    /// cut short: a larger patch is only written to the sink. Default: 1 048 576, since a megabyte
    /// shows any change that a person reads and keeps a document quick to parse. Must not be zero.
    pub max_patch_bytes: u64,
    /// The most changed text of one side of a file, in bytes, that is compared line by line. It is
    /// what lies between the first and the last line that differ: a line appended to a huge log is
    /// little. Beyond it the file is [`approximated`](Diff::approximated). Default: 33 554 432,
    /// which is also the most that is ever compared; zero compares no lines. The answer depends on
    /// nothing but the two contents.
    pub max_compared_bytes: u64,
    /// How long the search for the lines that one file shares may take before it is
    /// [`approximated`](Diff::approximated). Default: 5 seconds, which is what a person waits for,
    /// and far more than text that people write ever needs. `None`: as long as it takes, which
    /// `max_compared_bytes` bounds. Only where time ran out can two diffs of the same snapshots
    /// differ, in `approximated`, the counts, and the hunks of the files named there.
    pub max_file_time: Option<Duration>,
    /// How long all files together may be searched; every file that is compared later, and takes
    /// more than a look, is [`approximated`](Diff::approximated). The answer is complete all the
    /// same. Default: `None`.
    pub max_time: Option<Duration>,
    /// How renames are looked for, which are beside the lists of paths and in no patch. Default:
    /// [`Renames::Exact`].
    pub renames: Renames,
    /// Compare these files and directories alone, the latter with all below; no patterns. What
    /// git's operations and refs came to is then left out. One that neither side knows anything of
    /// is [`DiffError::UnknownPath`]. Default: everything.
    pub paths: Vec<RelPath>,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            capture_patch: false,
            max_patch_bytes: 1_048_576,
            max_compared_bytes: crate::patch::MAX_COMPARED_BYTES as u64,
            max_file_time: Some(Duration::from_secs(5)),
            max_time: None,
            renames: Renames::default(),
            paths: Vec::new(),
        }
    }
}

impl DiffOptions {
    /// A diff with its patch.
    pub fn with_patch() -> Self {
        Self {
            capture_patch: true,
            ..Self::default()
        }
    }

    stillframe_model::setters! {
        max_patch_bytes: u64,
        max_compared_bytes: u64,
        max_file_time: impl Into<Option<Duration>>,
        max_time: impl Into<Option<Duration>>,
        renames: Renames,
        paths: Vec<RelPath>,
    }
}

/// A changed file whose lines were not compared as git compares them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ApproximatedFile {
    /// The file.
    pub path: RelPath,
    /// Why, and with that what the counts are.
    pub reason: Approximation,
    /// What it adds to [`Diff::insertions`].
    pub insertions: u64,
    /// What it adds to [`Diff::deletions`].
    pub deletions: u64,
    /// Whether one side left it out, so that nothing is counted and the patch, which is right for
    /// all other files, has nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
}

impl ApproximatedFile {
    /// A file with the counts that a cheaper method gave.
    pub fn new(path: RelPath, reason: Approximation, insertions: u64, deletions: u64) -> Self {
        Self {
            path,
            reason,
            insertions,
            deletions,
            left_out: false,
        }
    }
}

/// Why the lines of a file were not compared as git compares them. Its patch, if it has one, is
/// right in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Approximation {
    /// It has more than 64 MiB, and is not held in memory. The patch has it whole and compressed.
    /// The counts are lower bounds: lines of which one side has more than the other, wherever they
    /// are. Or one side left it out for its size ([`ApproximatedFile::left_out`]).
    TooLarge,
    /// More text changed than is compared: [`DiffOptions::max_compared_bytes`], or 524 288 lines.
    /// The counts are upper bounds, and the hunk is as long: every line from the first difference
    /// to the last.
    TooMuchChanged,
    /// [`DiffOptions::max_file_time`] or [`DiffOptions::max_time`] was over. The counts are upper
    /// bounds, those of the hunks, which may replace lines that are the same.
    OutOfTime,
    /// The content of a side was purged from the store. Nothing is counted, and the patch, which is
    /// right for all other files, leaves this one out.
    Purged,
    /// One side left it out: it is a FIFO, a socket or a device there.
    Special,
    /// One side left it out: it may not be read there.
    Unreadable,
}

impl Approximation {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::TooMuchChanged => "too_much_changed",
            Self::OutOfTime => "out_of_time",
            Self::Purged => "purged",
            Self::Special => "special",
            Self::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for Approximation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Two snapshots compared: what the later one has that the earlier one has not, and the reverse.
///
/// `files_changed`, `changed_paths` and the three parts of it are git's notion of a change. What
/// git does not record is in four further lists, which JSON documents leave out while they are
/// empty, as they do those that say where the counts are not exact, and what became of nested
/// repositories and of git's operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Diff {
    /// The backend of both snapshots.
    pub backend: BackendKind,
    /// [`Snapshot::reference`](crate::Snapshot::reference) of the earlier side.
    pub from_ref: String,
    /// [`Snapshot::reference`](crate::Snapshot::reference) of the later side.
    pub to_ref: String,
    /// The length of `changed_paths`.
    pub files_changed: u64,
    /// Text lines that only the later side has, as `git diff --numstat` counts them. Binary files
    /// count nothing; so does every file of the hash backend.
    pub insertions: u64,
    /// Text lines that only the earlier side has.
    pub deletions: u64,
    /// Every path that differs, sorted by bytes, unique.
    pub changed_paths: Vec<RelPath>,
    /// The part of `changed_paths` that the earlier side knows was not there.
    pub added: Vec<RelPath>,
    /// The part of `changed_paths` whose content, executable bit, link text or kind differs; and
    /// what one side captured and the other left out because it is too large, special or unreadable
    /// there, which is in `approximated` too.
    pub modified: Vec<RelPath>,
    /// The part of `changed_paths` that the later side knows is not there.
    pub deleted: Vec<RelPath>,
    /// What changed at each path of `changed_paths`, in that order.
    #[serde(default)]
    pub files: Vec<ChangedFile>,
    /// Whether there is a patch, embedded or not.
    pub has_patch: bool,
    /// The patch, if it was asked for and is not larger than the limit.
    pub patch: Option<PatchText>,
    /// The key of the artifact that holds the whole patch, if it was kept as one.
    pub patch_ref: Option<String>,
    /// The size of the whole patch in bytes; `None` if none was asked for.
    pub patch_bytes: Option<u64>,
    /// Whether the patch was larger than the limit, and is therefore not embedded.
    pub patch_truncated: bool,
    /// Deleted files that are at an added path, found as [`DiffOptions::renames`] says and paired
    /// as git does, sorted by the added path. They are in the other lists as if they were not here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub renamed: Vec<Renamed>,
    /// Whether so much came and went that [`Renames::Similar`] was not looked for but among files
    /// that kept their names: more than a million pairs, or more than 64 MiB to read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renames_incomplete: bool,
    /// Why there is no patch, where one was asked for and something changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_patch: Option<String>,
    /// Files and directories of both sides whose permission bits differ, sorted by path. A change
    /// of the executable bit alone is not among them: it is in `modified`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions_changed: Vec<ModeChange>,
    /// Empty directories where the earlier side had no directory, sorted. Other directories follow
    /// from the paths below them, captured or left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories_added: Vec<RelPath>,
    /// Directories that were empty where the later side has no directory, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories_deleted: Vec<RelPath>,
    /// New paths that the later side leaves out by a rule or an option which the earlier side had
    /// not, sorted; a directory counts as one. They are in no other list: they were not captured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub newly_ignored: Vec<RelPath>,
    /// Files that a limit of [`DiffOptions`] or of memory kept from being compared line by line,
    /// and those that one side left out, sorted by path. They are in the other lists and in the
    /// sums too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approximated: Vec<ApproximatedFile>,
    /// Repositories within the workspace whose HEAD or index is another, or that only one side has;
    /// sorted by path. No restore puts that back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nested_repositories: Vec<NestedChange>,
    /// What became of git's operations in the repository of the workspace, if that is another on
    /// both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationChange>,
    /// Files that git's index came to leave out of the work tree, or to take in again: its
    /// skip-worktree bit, which a sparse checkout sets. Sorted by path; those that both sides have
    /// in the index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_worktree: Vec<SkipWorktreeChange>,
    /// HEAD, if it names another branch or commit, then refs that name another object, or that only
    /// one side has, sorted by name: branches, tags, the newest stash. Known of two snapshots that
    /// kept what refs name ([`SnapshotOptions::keep_refs`](crate::SnapshotOptions::keep_refs)), as
    /// those before and after a run do; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refs: Vec<RefChange>,
}

/// A file whose skip-worktree bit in git's index is another on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SkipWorktreeChange {
    /// The file.
    pub path: RelPath,
    /// Whether the earlier side leaves it out of the work tree.
    pub from: bool,
    /// Whether the later side does.
    pub to: bool,
}

/// What became of git's operations: a merge, rebase, cherry-pick, revert or bisect that began, went
/// on or ended, or what git remembers of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OperationChange {
    /// `merge`, `rebase`, `cherry-pick`, `revert` or `bisect`, if one was in progress on the
    /// earlier side.
    pub from: Option<String>,
    /// The same of the later side.
    pub to: Option<String>,
    /// The files and directories below the git directory that differ, sorted; none where a side did
    /// not keep them.
    pub files: Vec<String>,
}

/// The bytes of a patch. In JSON a string, or `{"base64": "…"}` where they are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PatchText(
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub Vec<u8>,
);

impl Serialize for PatchText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::path::serialize_lossless(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for PatchText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::path::deserialize_lossless(deserializer).map(Self)
    }
}

/// Refuses what cannot be compared.
pub(crate) fn check(
    from: &Snapshot,
    to: &Snapshot,
    options: &DiffOptions,
) -> Result<(), DiffError> {
    if from.backend != to.backend {
        return Err(DiffError::DifferentBackends);
    }
    if options.max_patch_bytes == 0 {
        return Err(DiffError::InvalidOptions(
            "max_patch_bytes must not be zero; to have no patch, do not ask for one".to_owned(),
        ));
    }
    Ok(())
}

/// Keeps of `changes` what both sides can vouch for.
///
/// A path that one side omitted is no change of content: that side did not see whether it was
/// there, unless it was below something that is no directory. What it may be is found out beside
/// ([`beside::between`]). A path that both sides captured is compared whatever the coverages say.
pub(crate) fn evident(changes: Vec<Change>, from: &Coverage, to: &Coverage) -> Vec<Change> {
    changes
        .into_iter()
        .filter(|change| match (&change.old, &change.new) {
            (None, Some(_)) => from.knows(&change.path),
            (Some(_), None) => to.knows(&change.path),
            _ => true,
        })
        .collect()
}

/// A path that one side left out for what it is, and that is a change all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) path: RelPath,
    pub(crate) status: FileStatus,
    /// Why there is nothing to be seen of it.
    pub(crate) reason: Approximation,
    /// What either side captured.
    pub(crate) kinds: [Option<EntryKind>; 2],
}

impl Diff {
    /// The record of `changes`, which are sorted by path, without counts of lines and patch.
    pub fn of_changes(
        backend: BackendKind,
        from_ref: impl Into<String>,
        to_ref: impl Into<String>,
        changes: &[Change],
    ) -> Self {
        let paths = |keep: fn(&Change) -> bool| -> Vec<RelPath> {
            changes
                .iter()
                .filter(|c| keep(c))
                .map(|c| c.path.clone())
                .collect()
        };
        let mut diff = Self {
            backend,
            from_ref: from_ref.into(),
            to_ref: to_ref.into(),
            files_changed: changes.len() as u64,
            insertions: 0,
            deletions: 0,
            changed_paths: paths(|_| true),
            added: paths(|c| c.old.is_none()),
            modified: paths(|c| c.old.is_some() && c.new.is_some()),
            deleted: paths(|c| c.new.is_none()),
            files: changes.iter().map(ChangedFile::from).collect(),
            has_patch: false,
            patch: None,
            patch_ref: None,
            patch_bytes: None,
            patch_truncated: false,
            renamed: Vec::new(),
            renames_incomplete: false,
            no_patch: None,
            permissions_changed: Vec::new(),
            directories_added: Vec::new(),
            directories_deleted: Vec::new(),
            newly_ignored: Vec::new(),
            approximated: Vec::new(),
            nested_repositories: Vec::new(),
            operation: None,
            skip_worktree: Vec::new(),
            refs: Vec::new(),
        };
        diff.set_renamed(changes, &renames::exact(changes), Renames::Exact);
        diff
    }

    /// Says which of `changes` were renamed, which was found out in this way; `pairs` are sorted by
    /// the added path.
    pub(crate) fn set_renamed(&mut self, changes: &[Change], pairs: &[Pair], how: Renames) {
        self.renamed.clear();
        for pair in pairs {
            let from = changes[pair.from].path.clone();
            let as_one = pair.as_one(changes);
            if let Some(file) = self.file_mut(&as_one.path) {
                file.from = Some(from.clone());
            }
            let mut changed = ChangedFile::from(&as_one);
            changed.from = Some(from.clone());
            self.renamed.push(Renamed {
                from,
                to: as_one.path,
                similarity: pair.percent(),
                changed: (how == Renames::Similar).then_some(changed),
            });
        }
    }

    fn file_mut(&mut self, path: &RelPath) -> Option<&mut ChangedFile> {
        let at = self.files.binary_search_by(|file| file.path.cmp(path));
        self.files.get_mut(at.ok()?)
    }

    /// Adds paths that one side left out. None of them is among the changes; they are sorted by
    /// path.
    pub(crate) fn left_out(mut self, left_out: &[LeftOut]) -> Self {
        for LeftOut {
            path,
            status,
            reason,
            kinds: [old, new],
        } in left_out
        {
            self.changed_paths.push(path.clone());
            let list = match status {
                FileStatus::Added => &mut self.added,
                FileStatus::Modified => &mut self.modified,
                FileStatus::Deleted => &mut self.deleted,
            };
            list.push(path.clone());
            let file = ChangedFile::new(path.clone(), *status, *old, *new);
            self.files.push(file);
            self.approximated.push(ApproximatedFile {
                left_out: true,
                ..ApproximatedFile::new(path.clone(), *reason, 0, 0)
            });
        }
        let Self {
            changed_paths,
            added,
            modified,
            deleted,
            ..
        } = &mut self;
        for list in [changed_paths, added, modified, deleted] {
            list.sort_unstable();
        }
        self.files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        self.files_changed = self.changed_paths.len() as u64;
        self
    }

    /// Adds what comparing the lines of a file gave, which is one of the changes.
    pub(crate) fn count(&mut self, path: &RelPath, looked: &Looked) {
        let counts = looked.compared.counts;
        let (insertions, deletions) = (counts.insertions, counts.deletions);
        self.insertions += insertions;
        self.deletions += deletions;
        if let Some(file) = self.file_mut(path) {
            file.count(looked);
        }
        self.approximated.extend(
            looked
                .compared
                .approximation
                .map(|reason| ApproximatedFile::new(path.clone(), reason, insertions, deletions)),
        );
    }

    /// Says why there is no patch, if that is so though one was asked for and something changed.
    pub(crate) fn explain_no_patch(&mut self, options: &DiffOptions, why: &str) {
        if options.capture_patch && !self.has_patch && self.files_changed > 0 {
            self.no_patch = Some(why.to_owned());
        }
    }

    /// Whether the two sides are known to be alike: no list has a path, and nothing became of git's
    /// operations or refs.
    pub fn is_empty(&self) -> bool {
        self.changed_paths.is_empty()
            && self.permissions_changed.is_empty()
            && self.directories_added.is_empty()
            && self.directories_deleted.is_empty()
            && self.newly_ignored.is_empty()
            && self.nested_repositories.is_empty()
            && self.operation.is_none()
            && self.skip_worktree.is_empty()
            && self.refs.is_empty()
    }

    /// Adds what became of nested repositories, if both sides looked at them.
    pub(crate) fn with_nested(mut self, from: &Record, to: &Record) -> Self {
        if from.version >= KNOWS_NESTED && to.version >= KNOWS_NESTED {
            self.nested_repositories = nested::changes(&from.snapshot, &to.snapshot);
        }
        self
    }

    /// Adds what became of git's operations, if both sides know of a repository.
    pub(crate) fn with_operation(mut self, from: Option<&GitState>, to: Option<&GitState>) -> Self {
        let Some((from, to)) = from.zip(to) else {
            return self;
        };
        let files = match (&from.operation, &to.operation) {
            (Some(old), Some(new)) => old.differing(new).into_iter().map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        if from.in_progress != to.in_progress || !files.is_empty() {
            self.operation = Some(OperationChange {
                from: from.in_progress.clone(),
                to: to.in_progress.clone(),
                files,
            });
        }
        self
    }

    /// Adds what changed beside the entries.
    pub(crate) fn beside(mut self, beside: beside::Beside) -> Self {
        self.permissions_changed = beside.permissions_changed;
        self.directories_added = beside.directories_added;
        self.directories_deleted = beside.directories_deleted;
        self.newly_ignored = beside.newly_ignored;
        self
    }
}
