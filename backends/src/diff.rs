//! Two snapshots compared.

pub(crate) mod beside;

use serde::{Deserialize, Serialize};

use crate::backend::DiffError;
use crate::coverage::Coverage;
use crate::path::RelPath;
use crate::restore::ModeChange;
use crate::snapshot::{BackendKind, Snapshot};
use crate::tree::Change;

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
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            capture_patch: false,
            max_patch_bytes: 1_048_576,
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

    /// Sets [`DiffOptions::max_patch_bytes`].
    pub fn max_patch_bytes(mut self, bytes: u64) -> Self {
        self.max_patch_bytes = bytes;
        self
    }
}

/// Two snapshots compared: what the later one has that the earlier one has not, and the reverse.
///
/// `files_changed`, `changed_paths` and the three parts of it are git's notion of a change. What git
/// does not record is in the last four lists, which JSON documents leave out while they are empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The part of `changed_paths` whose content, executable bit, link text or kind differs.
    pub modified: Vec<RelPath>,
    /// The part of `changed_paths` that the later side knows is not there.
    pub deleted: Vec<RelPath>,
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
}

/// The bytes of a patch. In JSON a string, or `{"base64": "…"}` where they are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchText(pub Vec<u8>);

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
/// A path that one side omitted is no change: that side did not see whether it was there. A path
/// that both sides captured is compared whatever the coverages say.
pub(crate) fn evident(changes: Vec<Change>, from: &Coverage, to: &Coverage) -> Vec<Change> {
    changes
        .into_iter()
        .filter(|change| match (&change.old, &change.new) {
            (None, Some(_)) => from.covers(&change.path).is_none(),
            (Some(_), None) => to.covers(&change.path).is_none(),
            _ => true,
        })
        .collect()
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
        Self {
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
            has_patch: false,
            patch: None,
            patch_ref: None,
            patch_bytes: None,
            patch_truncated: false,
            permissions_changed: Vec::new(),
            directories_added: Vec::new(),
            directories_deleted: Vec::new(),
            newly_ignored: Vec::new(),
        }
    }

    /// Whether the two sides are known to be alike: no list has a path.
    pub fn is_empty(&self) -> bool {
        self.changed_paths.is_empty()
            && self.permissions_changed.is_empty()
            && self.directories_added.is_empty()
            && self.directories_deleted.is_empty()
            && self.newly_ignored.is_empty()
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
