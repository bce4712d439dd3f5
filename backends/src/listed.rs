//! The entries of a snapshot as a list.

use crate::path::RelPath;
use crate::record::Record;
use crate::tree::{ContentId, Entry};

/// A file, a link, or a directory with nothing captured in it, as a snapshot has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedFile {
    /// The path, relative to the workspace.
    pub path: RelPath,
    /// What is there; `None`: a directory.
    pub entry: Option<Entry>,
    /// The permission bits; `None` of a link.
    pub mode: Option<u32>,
    /// The bytes of the file, or of the link's text; `None` of a directory, and where the store has
    /// lost or purged the content and only that says how much it was.
    pub size: Option<u64>,
}

impl ListedFile {
    /// What is there, as a word: `file`, `executable`, `symlink` or `directory`.
    pub fn kind(&self) -> &'static str {
        self.entry.map_or("directory", |entry| entry.kind.as_str())
    }

    /// The id of the content.
    pub fn content(&self) -> Option<ContentId> {
        self.entry.map(|entry| entry.id)
    }
}

/// All that a snapshot has, sorted by path: its `entries`, with their sizes, and its empty
/// directories.
pub(crate) fn list(
    record: &Record,
    entries: impl IntoIterator<Item = (RelPath, Entry, Option<u64>)>,
) -> Vec<ListedFile> {
    let files = entries.into_iter().map(|(path, entry, size)| ListedFile {
        mode: record.modes.of(&path, entry.kind),
        path,
        entry: Some(entry),
        size,
    });
    let directories = record.empty_directories.iter().map(|path| ListedFile {
        path: path.clone(),
        entry: None,
        mode: Some(record.modes.of_directory(path)),
        size: None,
    });
    let mut all: Vec<ListedFile> = files.chain(directories).collect();
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}
