//! Which paths a capture left out, and why. If a path is missing from a snapshot and not in this
//! list, it did not exist.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::path::RelPath;

/// Why a path was left out of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OmissionReason {
    /// git's ignore rules name it, and neither the index nor the session had it.
    Ignored,
    /// The host's options, or the hash backend's default names, exclude it.
    Excluded,
    /// Its own permissions forbid reading it.
    Unreadable,
    /// A FIFO, a socket or a device. It was never opened.
    Special,
    /// A repository's own directory or file, by the name `.git`.
    GitDir,
    /// An untracked file above the size limit.
    TooLarge,
    /// A mount point: another file system begins there.
    OtherFilesystem,
    /// Absent because of a sparse checkout. The tree has the entry of the index.
    Sparse,
    /// It kept changing while it was read.
    Unstable,
    /// A name that no tree of git's may hold, such as `.GIT`.
    Unrepresentable,
    /// Its content was purged from the store, and is not stored again.
    Purged,
}

impl OmissionReason {
    /// The name that JSON documents use, such as `too_large`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Excluded => "excluded",
            Self::Unreadable => "unreadable",
            Self::Special => "special",
            Self::GitDir => "git_dir",
            Self::TooLarge => "too_large",
            Self::OtherFilesystem => "other_filesystem",
            Self::Sparse => "sparse",
            Self::Unstable => "unstable",
            Self::Unrepresentable => "unrepresentable",
            Self::Purged => "purged",
        }
    }

    /// Whether it is what a rule says, git's or the host's.
    pub fn is_a_rule(self) -> bool {
        matches!(self, Self::Ignored | Self::Excluded)
    }
}

impl fmt::Display for OmissionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A path that a capture left out. A directory stands for everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Omission {
    /// The path, relative to the workspace.
    pub path: RelPath,
    /// Why it was left out.
    pub reason: OmissionReason,
    /// The size of a regular file, in bytes; `None` for anything else.
    pub bytes: Option<u64>,
    /// Whether it is a directory or a link, if neither size nor reason says so; `None`: not known,
    /// as for omissions that earlier versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<OmittedKind>,
}

/// What was left out, where neither a size nor the reason tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OmittedKind {
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

impl Omission {
    /// Whether it is known that two omissions are of things of different kinds.
    pub fn is_of_another_kind(&self, other: &Self) -> bool {
        let is_file = |o: &Self| o.bytes.is_some();
        is_file(self) != is_file(other)
            || self.is_special() != other.is_special()
            || matches!((self.kind, other.kind), (Some(one), Some(two)) if one != two)
    }

    /// Whether it is a FIFO, a socket or a device.
    pub fn is_special(&self) -> bool {
        self.reason == OmissionReason::Special
    }

    /// Whether it is known to be no directory, so that nothing is below it.
    pub fn is_no_directory(&self) -> bool {
        self.bytes.is_some() || self.is_special() || self.kind == Some(OmittedKind::Link)
    }

    /// Whether this is a single file, of any kind, that was left out because it is too large,
    /// special or unreadable, and not by a rule. A restore can move such a file aside without
    /// reading it.
    pub fn is_file_out_of_reach(&self) -> bool {
        match self.reason {
            OmissionReason::Special | OmissionReason::TooLarge => true,
            OmissionReason::Unreadable => self.bytes.is_some(),
            _ => false,
        }
    }

    /// Whether a rule left it out, git's or the host's.
    pub fn is_left_out_by_rule(&self) -> bool {
        self.reason.is_a_rule()
    }

    /// Whether a rule left out what may be a directory, so that the paths below it are not known.
    pub fn hides_a_directory(&self) -> bool {
        self.is_left_out_by_rule() && self.bytes.is_none()
    }
}

/// The omissions of a capture, sorted by path, at most one for each path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "Vec<Omission>", into = "Vec<Omission>")]
pub struct Coverage {
    omissions: Vec<Omission>,
}

impl From<Vec<Omission>> for Coverage {
    fn from(omissions: Vec<Omission>) -> Self {
        Self::new(omissions)
    }
}

impl From<Coverage> for Vec<Omission> {
    fn from(coverage: Coverage) -> Self {
        coverage.omissions
    }
}

impl Coverage {
    /// Sorts `omissions`; of several for one path the first stays.
    pub fn new(mut omissions: Vec<Omission>) -> Self {
        omissions.sort_by(|a, b| a.path.cmp(&b.path));
        omissions.dedup_by(|later, earlier| later.path == earlier.path);
        Self { omissions }
    }

    /// All omissions, sorted by path.
    pub fn omissions(&self) -> &[Omission] {
        &self.omissions
    }

    /// The omission of `path` itself.
    pub fn at(&self, path: &RelPath) -> Option<&Omission> {
        let at = self.omissions.binary_search_by(|o| o.path.cmp(path)).ok()?;
        Some(&self.omissions[at])
    }

    /// The omission that covers `path`: its own, or that of the nearest directory above it.
    ///
    /// If there is one, it is not known whether `path` existed.
    pub fn covers(&self, path: &RelPath) -> Option<&Omission> {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if let Some(omission) = self.at(&path) {
                return Some(omission);
            }
            at = path.parent();
        }
        None
    }

    /// Whether it is known that `path` did not exist if the capture does not have it: no omission
    /// covers it, except one above it that is not a directory.
    pub fn knows(&self, path: &RelPath) -> bool {
        self.covers(path)
            .is_none_or(|o| o.path != *path && o.is_file_out_of_reach())
    }

    /// The omissions at or below `directory`.
    pub fn below<'a>(&'a self, directory: &'a RelPath) -> impl Iterator<Item = &'a Omission> {
        // Names such as `a-b` sort between `a` and `a/b`, so the range is filtered, not cut.
        let start = self.omissions.partition_point(|o| o.path < *directory);
        self.omissions[start..]
            .iter()
            .take_while(|o| o.path.as_bytes().starts_with(directory.as_bytes()))
            .filter(|o| o.path.starts_with(directory))
    }
}
