//! Which added files are deleted ones at another path, as git finds it (`diffcore-rename.c`). Pure.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::path::RelPath;
use crate::tree::{Change, ContentId, Entry, EntryKind};

/// How many deleted files with the content of an added one are looked at for one of the same name: as many as
/// git looks at.
const MAX_ALTERNATIVES: usize = 100;

/// A file that is at another path. The one is in [`Diff::deleted`](crate::Diff::deleted) and the other in
/// [`Diff::added`](crate::Diff::added) all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Renamed {
    /// The path that the earlier side has.
    pub from: RelPath,
    /// The path that the later side has.
    pub to: RelPath,
}

/// A deleted and an added file that are taken for one, by their places among the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Pairs deleted with added files that have the same content, each at most once, sorted by the added path.
/// Of several the one with the same name is taken, else the first. A link is no file.
///
/// `changes` are sorted by path. No content is read.
pub(crate) fn exact(changes: &[Change]) -> Vec<Pair> {
    let mut sources: HashMap<(ContentId, bool), BTreeSet<usize>> = HashMap::new();
    for (at, change) in changes.iter().enumerate() {
        if let (Some(old), None) = (change.old, change.new) {
            sources.entry(key(old)).or_default().insert(at);
        }
    }
    let mut pairs = Vec::new();
    for (to, change) in changes.iter().enumerate() {
        let (None, Some(new)) = (change.old, change.new) else {
            continue;
        };
        let Some(alike) = sources.get_mut(&key(new)) else {
            continue;
        };
        let name = change.path.name();
        let mut looked_at = alike.iter().take(MAX_ALTERNATIVES);
        let same_name = looked_at.find(|at| changes[**at].path.name() == name);
        let Some(from) = same_name.or(alike.first()).copied() else {
            continue;
        };
        alike.remove(&from);
        pairs.push(Pair { from, to });
    }
    pairs
}

/// What two files have in common that are taken for one: the content, and whether it is that of a link.
fn key(entry: Entry) -> (ContentId, bool) {
    (entry.id, entry.kind == EntryKind::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(content: u8, kind: EntryKind) -> Entry {
        Entry {
            kind,
            id: ContentId::Sha1([content; 20]),
        }
    }

    /// Changes of files by path and content on either side, zero for none; sorted.
    fn changes(files: &[(&str, u8, u8)]) -> Vec<Change> {
        let side = |content| (content > 0).then(|| entry(content, EntryKind::File));
        let change = |(path, old, new): &(&str, u8, u8)| Change {
            path: RelPath::new(*path).expect("it is valid"),
            old: side(*old),
            new: side(*new),
        };
        let mut changes: Vec<Change> = files.iter().map(change).collect();
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes
    }

    fn found(changes: &[Change]) -> Vec<(String, String)> {
        let path = |at: usize| changes[at].path.to_string();
        let pairs = exact(changes).into_iter();
        pairs.map(|pair| (path(pair.from), path(pair.to))).collect()
    }

    fn pair(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn the_same_content_that_went_and_came_is_a_rename() {
        let moved = changes(&[
            ("a", 1, 0),
            ("b", 0, 1),
            ("c", 1, 2),
            ("d", 2, 0),
            ("e", 0, 3),
        ]);
        assert_eq!(found(&moved), [pair("a", "b")]);
    }

    #[test]
    fn each_file_is_in_one_pair_at_most_and_the_same_name_comes_first() {
        let moved = changes(&[
            ("a/one", 1, 0),
            ("a/two", 1, 0),
            ("b/three", 0, 1),
            ("b/two", 0, 1),
            ("c", 0, 1),
        ]);
        let expected = [pair("a/one", "b/three"), pair("a/two", "b/two")];
        assert_eq!(found(&moved), expected);
        let moved = changes(&[("a/one", 1, 0), ("a/two", 1, 0), ("b/two", 0, 1)]);
        assert_eq!(found(&moved), [pair("a/two", "b/two")]);
    }

    #[test]
    fn a_link_is_no_file_and_the_executable_bit_makes_no_other_file() {
        let with = |old, new| {
            let mut moved = changes(&[("a", 1, 0), ("b", 0, 1)]);
            moved[0].old = Some(entry(1, old));
            moved[1].new = Some(entry(1, new));
            found(&moved).len()
        };
        assert_eq!(with(EntryKind::File, EntryKind::Executable), 1);
        assert_eq!(with(EntryKind::Symlink, EntryKind::Symlink), 1);
        assert_eq!(with(EntryKind::File, EntryKind::Symlink), 0);
        assert_eq!(with(EntryKind::Symlink, EntryKind::Executable), 0);
    }

    #[test]
    fn a_crowd_of_the_same_content_is_paired_in_order() {
        let names = |letter: char| (0..3000).map(move |n| format!("{letter}/{letter}{n:04}"));
        let (gone, come): (Vec<String>, Vec<String>) = (names('a').collect(), names('b').collect());
        let files: Vec<(&str, u8, u8)> = gone
            .iter()
            .map(|path| (path.as_str(), 1, 0))
            .chain(come.iter().map(|path| (path.as_str(), 0, 1)))
            .collect();
        let pairs = found(&changes(&files));
        let expected: Vec<_> = gone.into_iter().zip(come).collect();
        assert_eq!(pairs, expected);
    }
}
