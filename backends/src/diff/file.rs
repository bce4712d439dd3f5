//! The change at one path.

use serde::{Deserialize, Serialize};

use crate::patch::Compared;
use crate::path::RelPath;
use crate::tree::{Change, EntryKind};

/// What changed at one path of [`Diff::changed_paths`](crate::Diff::changed_paths).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ChangedFile {
    /// The path.
    pub path: RelPath,
    /// Which of the three lists of the diff it is in.
    pub status: FileStatus,
    /// What it adds to [`Diff::insertions`](crate::Diff::insertions).
    pub insertions: u64,
    /// What it adds to [`Diff::deletions`](crate::Diff::deletions).
    pub deletions: u64,
    /// Whether git treats a side as binary, so that no lines are counted. Always false with the
    /// hash backend, and if the content is the same.
    pub binary: bool,
    /// What the earlier side captured; `None`: nothing. In JSON git's mode, such as `"100644"`.
    #[serde(with = "git_mode")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub old_mode: Option<EntryKind>,
    /// What the later side captured; `None`: nothing. In JSON git's mode.
    #[serde(with = "git_mode")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub new_mode: Option<EntryKind>,
    /// Where the later side's file comes from, if [`Diff::renamed`](crate::Diff::renamed) has it.
    pub from: Option<RelPath>,
    /// The size of the earlier side in bytes, if the file is binary and that side has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_bytes: Option<u64>,
    /// The size of the later side in bytes, if the file is binary and that side has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_bytes: Option<u64>,
}

/// What comparing the lines of a file gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) compared: Compared,
    /// Of both sides, in bytes; zero for one that is not there or was not looked at.
    pub(crate) sizes: [u64; 2],
}

/// What became of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    /// The earlier side knows that it was not there.
    Added,
    /// Both sides know of it.
    Modified,
    /// The later side knows that it is not there.
    Deleted,
}

impl ChangedFile {
    /// A file whose lines are not compared, or not yet.
    pub(crate) fn new(
        path: RelPath,
        status: FileStatus,
        old_mode: Option<EntryKind>,
        new_mode: Option<EntryKind>,
    ) -> Self {
        Self {
            path,
            status,
            insertions: 0,
            deletions: 0,
            binary: false,
            old_mode,
            new_mode,
            from: None,
            old_bytes: None,
            new_bytes: None,
        }
    }

    /// Takes what comparing its lines gave.
    pub(crate) fn count(&mut self, looked: &Looked) {
        let counts = looked.compared.counts;
        (self.insertions, self.deletions) = (counts.insertions, counts.deletions);
        self.binary = counts.is_binary;
        let [old, new] = looked.sizes;
        let bytes =
            |mode: Option<EntryKind>, bytes| mode.filter(|_| counts.is_binary).map(|_| bytes);
        self.old_bytes = bytes(self.old_mode, old);
        self.new_bytes = bytes(self.new_mode, new);
    }
}

impl From<&Change> for ChangedFile {
    fn from(change: &Change) -> Self {
        let kind = |entry: Option<crate::tree::Entry>| entry.map(|entry| entry.kind);
        let status = match (change.old, change.new) {
            (None, _) => FileStatus::Added,
            (_, None) => FileStatus::Deleted,
            _ => FileStatus::Modified,
        };
        Self::new(
            change.path.clone(),
            status,
            kind(change.old),
            kind(change.new),
        )
    }
}

/// Kinds as the modes that git writes.
mod git_mode {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::tree::EntryKind;

    pub(super) fn serialize<S: Serializer>(
        kind: &Option<EntryKind>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mode = kind.map(|kind| format!("{:06o}", kind.git_mode()));
        mode.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<EntryKind>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let mode = u32::from_str_radix(&text, 8).ok();
        let kind = mode.and_then(EntryKind::from_git_mode);
        let unknown = || serde::de::Error::custom(format!("{text:?} is no mode of a file"));
        kind.map(Some).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{ContentId, Entry};

    #[test]
    fn a_document_of_a_file_has_modes_as_git_writes_them_and_is_read_again() {
        let entry = |kind| {
            Some(Entry {
                kind,
                id: ContentId::Sha1([1; 20]),
            })
        };
        for (old, new, document) in [
            (
                None,
                entry(EntryKind::Symlink),
                r#""status":"added","insertions":0,"deletions":0,"binary":false,"old_mode":null,"new_mode":"120000""#,
            ),
            (
                entry(EntryKind::File),
                entry(EntryKind::Executable),
                r#""status":"modified","insertions":0,"deletions":0,"binary":false,"old_mode":"100644","new_mode":"100755""#,
            ),
            (
                entry(EntryKind::File),
                None,
                r#""status":"deleted","insertions":0,"deletions":0,"binary":false,"old_mode":"100644","new_mode":null"#,
            ),
        ] {
            let path = RelPath::new("a").expect("it is valid");
            let file = ChangedFile::from(&Change { path, old, new });
            let text = serde_json::to_string(&file).expect("it is plain data");
            assert_eq!(text, format!(r#"{{"path":"a",{document},"from":null}}"#));
            let again: ChangedFile = serde_json::from_str(&text).expect("it was just written");
            assert_eq!(again, file);
        }
        let wrong = r#"{"path":"a","status":"added","insertions":0,"deletions":0,"binary":false,"old_mode":null,"new_mode":"040000","from":null}"#;
        assert!(serde_json::from_str::<ChangedFile>(wrong).is_err());
    }
}
