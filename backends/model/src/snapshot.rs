//! The immutable record of a workspace at one time.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::coverage::{Coverage, Omission};
use crate::nested::NestedRepository;
use crate::path::RelPath;
use crate::search::Search;

/// Names one snapshot for ever: `snap_` and 32 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^snap_[0-9a-f]{32}$")))]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(String);

/// Some text is no [`SnapshotId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a snapshot id: \"snap_\" and 32 hexadecimal digits")]
pub struct InvalidSnapshotId {
    text: String,
}

impl SnapshotId {
    const PREFIX: &'static str = "snap_";

    /// A new random id.
    pub fn random() -> Self {
        Self(format!("{}{}", Self::PREFIX, uuid::Uuid::new_v4().simple()))
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `text` is a beginning of this id, with or without `snap_`.
    ///
    /// At least four digits are asked for, so that a stray letter names nothing.
    pub fn has_prefix(&self, text: &str) -> bool {
        let digits = text.strip_prefix(Self::PREFIX).unwrap_or(text);
        digits.len() >= 4 && self.0[Self::PREFIX.len()..].starts_with(digits)
    }
}

impl FromStr for SnapshotId {
    type Err = InvalidSnapshotId;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotId> {
        let digits = text.strip_prefix(Self::PREFIX).unwrap_or_default();
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if digits.len() == 32 && digits.bytes().all(is_hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSnapshotId {
                text: text.to_owned(),
            })
        }
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = InvalidSnapshotId;

    fn try_from(text: String) -> Result<Self, InvalidSnapshotId> {
        text.parse()
    }
}

impl From<SnapshotId> for String {
    fn from(id: SnapshotId) -> Self {
        id.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which implementation captured a snapshot. Only it can read the snapshot again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// Trees and blobs of git in a private repository.
    Git,
    /// A blake3 manifest, with or without the content.
    Hash,
}

impl BackendKind {
    /// `git` or `hash`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Git => "git",
            Self::Hash => "hash",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a snapshot was taken for: one of the engine's own labels, or the host's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Label(std::borrow::Cow<'static, str>);

impl Label {
    /// Taken before the work of a run.
    pub const BEFORE: Self = Self::fixed("before");
    /// Taken after the work of a run that succeeded.
    pub const AFTER: Self = Self::fixed("after");
    /// Taken after the work of a run that failed, timed out or was cancelled.
    pub const AFTER_FAILURE: Self = Self::fixed("after_failure");
    /// Taken just before a restore.
    pub const GUARD: Self = Self::fixed("guard");
    /// Taken before a workspace comes to a branch. It is the guard of that, where no commit would
    /// be left that nothing names.
    pub const RESUME: Self = Self::fixed("resume");
    /// What a branch makes of a workspace that comes to it: nobody captured it.
    pub const BRANCH: Self = Self::fixed("branch");
    /// Taken by hand, with no text given.
    pub const MANUAL: Self = Self::fixed("manual");
    /// Taken around a step of a run.
    pub const STEP: Self = Self::fixed("step");

    const fn fixed(text: &'static str) -> Self {
        Self(std::borrow::Cow::Borrowed(text))
    }

    /// The host's own text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(std::borrow::Cow::Owned(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a capture saw around the files, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SnapshotMetadata {
    /// The full id of the commit that HEAD named; `None` when unborn, and for the hash backend.
    pub head_ref: Option<String>,
    /// The short name of the branch that HEAD named; `None` when detached, and for the hash
    /// backend.
    pub branch: Option<String>,
    /// Whether the captured files differ from HEAD's. A checked-out submodule with exactly the
    /// files of its commit does not count as different. `None` for the hash backend.
    pub dirty: Option<bool>,
    /// Always true: untracked files are captured like any others.
    pub includes_untracked: bool,
    /// Files and links in the snapshot; directories do not count.
    pub files: u64,
    /// Files and links whose content this capture read and hashed.
    pub files_hashed: u64,
    /// Bytes of worktree content that this capture read.
    pub bytes_read: u64,
    /// How long the capture took, on a monotonic clock.
    pub duration_ms: u64,
    /// Whether every file was looked at, or only those that a watch reported. In JSON only if a
    /// watch was requested.
    #[serde(default, skip_serializing_if = "Search::is_plain_walk")]
    pub search: Search,
    /// Whether the content of files is kept, so that the snapshot can be restored (the option
    /// `retain_content`). `None`: the git backend, which always keeps it, and snapshots of earlier
    /// versions. In JSON only if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_content: Option<bool>,
    /// How many commits the snapshot keeps that only HEAD's branch reaches. In JSON only if there
    /// are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<KeptHistory>,
    /// Warnings about this capture for people, beside its omissions, a clause each: for example
    /// that the hash backend was used in place of git's, or which ignore files were not read. A few
    /// at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// What a snapshot keeps of the commits that only HEAD's branch reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct KeptHistory {
    /// How many commits it keeps, the newest ones, each with the trees and the content that it
    /// added.
    pub commits: u64,
    /// The newest commit that it does not keep, with all before it, because they are too many or
    /// too large, or cannot be read; `None`: it keeps all.
    pub not_kept_from: Option<String>,
}

impl KeptHistory {
    /// So many commits; the newest that is not kept, if there is one.
    pub fn new(commits: u64, not_kept_from: Option<String>) -> Self {
        Self {
            commits,
            not_kept_from,
        }
    }
}

/// The immutable record of a workspace at one time.
///
/// It is a description: the content stays in the store of the workspace, and the backend that
/// captured it reads it from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Snapshot {
    /// Names this snapshot for ever.
    pub id: SnapshotId,
    /// Who captured it.
    pub backend: BackendKind,
    /// The path of the workspace's directory at that time: absolute, without links.
    #[serde(
        serialize_with = "disk_path::serialize",
        deserialize_with = "disk_path::deserialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::LosslessText"))]
    pub path: PathBuf,
    /// git: the id of the snapshot commit in the store. hash: the digest of the manifest.
    #[serde(rename = "ref")]
    pub reference: String,
    /// git: the id of the tree of the captured scope. `None` for the hash backend.
    pub tree: Option<String>,
    /// What it was taken for.
    pub label: Label,
    /// When the capture began.
    pub captured_at: Timestamp,
    /// What the capture saw and cost.
    pub metadata: SnapshotMetadata,
    /// What was left out, and why.
    pub omissions: Coverage,
    /// The repositories within the workspace whose files were captured, sorted by path. In JSON
    /// only where there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nested_repositories: Vec<NestedRepository>,
    /// The captured names of each file that had several names in the workspace, sorted. A restore
    /// makes separate files of them. At most 1000 names; a warning counts the files whose names are
    /// not listed. In JSON only if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hard_links: Vec<Vec<RelPath>>,
}

/// Its id, by which it is named wherever a text names a snapshot.
impl From<&Snapshot> for String {
    fn from(snapshot: &Snapshot) -> Self {
        snapshot.id.to_string()
    }
}

impl Snapshot {
    /// A record with the fields that every backend fills in.
    pub fn new(
        id: SnapshotId,
        backend: BackendKind,
        path: PathBuf,
        reference: String,
        label: Label,
        captured_at: Timestamp,
    ) -> Self {
        Self {
            id,
            backend,
            path,
            reference,
            tree: None,
            label,
            captured_at,
            metadata: SnapshotMetadata {
                includes_untracked: true,
                ..SnapshotMetadata::default()
            },
            omissions: Coverage::default(),
            nested_repositories: Vec::new(),
            hard_links: Vec::new(),
        }
    }

    /// What was left out, sorted by path.
    pub fn omissions(&self) -> &[Omission] {
        self.omissions.omissions()
    }

    /// Whether both hold the same files: the trees are compared, and for the hash backend the
    /// manifests.
    pub fn same_content(&self, other: &Self) -> bool {
        self.backend == other.backend
            && match (&self.tree, &other.tree) {
                (Some(a), Some(b)) => a == b,
                _ => self.reference == other.reference,
            }
    }
}

/// Paths on disk in JSON: the lossless form of [`RelPath`].
mod disk_path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        crate::path::serialize_lossless(path.as_os_str().as_bytes(), s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        crate::path::deserialize_lossless(d).map(|b| PathBuf::from(OsString::from_vec(b)))
    }
}
