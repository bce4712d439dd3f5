//! What a workspace holds at a path: a kind, and the id of its content.

use std::fmt;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::path::RelPath;

/// What kind of thing a captured path is. Directories are not entries: they follow from the paths
/// below them, and empty ones are listed beside the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file that its owner may not execute.
    File,
    /// A regular file that its owner may execute.
    Executable,
    /// A symbolic link; its content is the link's text.
    Symlink,
}

impl EntryKind {
    /// `file`, `executable` or `symlink`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Executable => "executable",
            Self::Symlink => "symlink",
        }
    }

    /// The mode that git gives such an entry in a tree, such as `0o100644`.
    pub fn git_mode(self) -> u32 {
        match self {
            Self::File => 0o100644,
            Self::Executable => 0o100755,
            Self::Symlink => 0o120000,
        }
    }

    /// The kind that a mode of git's stands for; `None` for a tree, a submodule or anything else.
    pub fn from_git_mode(mode: u32) -> Option<Self> {
        match mode {
            0o100755 => Some(Self::Executable),
            0o120000 => Some(Self::Symlink),
            // git itself has written 0o100664 into old trees.
            _ if mode & 0o170000 == 0o100000 => Some(Self::File),
            _ => None,
        }
    }
}

/// The id of some content: git's SHA-1 of the blob, or the blake3 of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ContentId {
    /// What git calls the blob's object id.
    Sha1([u8; 20]),
    /// The blake3 hash of the bytes, or of the link's text.
    Blake3([u8; 32]),
}

impl ContentId {
    /// The raw digest.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Sha1(bytes) => bytes,
            Self::Blake3(bytes) => bytes,
        }
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(self.as_bytes()))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What was captured at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// File, executable or link.
    pub kind: EntryKind,
    /// The id of the content.
    pub id: ContentId,
}

/// A path at which two captures differ. One of the two sides is always there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path, relative to the workspace.
    pub path: RelPath,
    /// What the earlier side holds; `None`: nothing that was captured.
    pub old: Option<Entry>,
    /// What the later side holds; `None`: nothing that was captured.
    pub new: Option<Entry>,
}

/// The bits of a mode that a snapshot records and a restore puts back: permissions and sticky,
/// without which anybody may remove what others have in a shared directory. Never setuid and
/// setgid, which would lend a captured file's rights to whoever runs what took its place.
pub const RECORDED_BITS: u32 = 0o1777;

/// Permission bits that are not what the entry's kind alone says.
///
/// A tree of git's knows one bit, executable or not. The others are kept here, so that a restore
/// puts a `0600` file back as `0600`. It is [`RECORDED_BITS`] that are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes {
    /// The permission bits of most files, such as `0o644`.
    pub file: u32,
    /// The permission bits of most executables, such as `0o755`.
    pub executable: u32,
    /// The permission bits of most directories, such as `0o755`.
    pub directory: u32,
    /// The paths whose bits differ, sorted by path, unique; directories included.
    pub exceptions: Vec<(RelPath, u32)>,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            file: 0o644,
            executable: 0o755,
            directory: 0o755,
            exceptions: Vec::new(),
        }
    }
}

impl Modes {
    /// The bits recorded for the entry of kind `kind` at `path`; links have none.
    pub fn of(&self, path: &RelPath, kind: EntryKind) -> Option<u32> {
        let usual = match kind {
            EntryKind::File => self.file,
            EntryKind::Executable => self.executable,
            EntryKind::Symlink => return None,
        };
        Some(self.exception(path).unwrap_or(usual))
    }

    /// The bits recorded for the directory at `path`.
    pub fn of_directory(&self, path: &RelPath) -> u32 {
        self.exception(path).unwrap_or(self.directory)
    }

    fn exception(&self, path: &RelPath) -> Option<u32> {
        let at = self
            .exceptions
            .binary_search_by(|(p, _)| p.cmp(path))
            .ok()?;
        Some(self.exceptions[at].1)
    }
}
