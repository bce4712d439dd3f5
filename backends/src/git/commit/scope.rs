//! Which edits of a commit are left out, because they are not in its scope. Pure.

use std::collections::BTreeSet;

use super::edits::Edits;
use crate::path::RelPath;

/// The paths of the edits that are left out: those that are not inside, and those inside that could
/// not be made without one of these, as a file in the place of a directory.
pub(super) fn outside(edits: &Edits, is_inside: impl Fn(&RelPath) -> bool) -> BTreeSet<RelPath> {
    let mut outside: BTreeSet<RelPath> = edits
        .keys()
        .filter(|path| !is_inside(path))
        .cloned()
        .collect();
    loop {
        let with_some_below: BTreeSet<RelPath> = outside.iter().flat_map(above).collect();
        let depends = |path: &RelPath| {
            with_some_below.contains(path) || above(path).any(|other| outside.contains(&other))
        };
        let more: Vec<RelPath> = edits
            .iter()
            .filter(|(path, edit)| edit.is_some() && !outside.contains(*path) && depends(path))
            .map(|(path, _)| path.clone())
            .collect();
        if more.is_empty() {
            return outside;
        }
        outside.extend(more);
    }
}

/// The directories above a path, the nearest first.
fn above(path: &RelPath) -> impl Iterator<Item = RelPath> {
    std::iter::successors(path.parent(), RelPath::parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::ObjectId;
    use crate::git::tree_object::ItemKind;
    use crate::tree::EntryKind;

    fn edits(of: &[(&str, bool)]) -> Edits {
        let id: ObjectId = "0a".repeat(20).parse().unwrap();
        let item = (ItemKind::Entry(EntryKind::File), id);
        of.iter()
            .map(|(path, comes)| (RelPath::new(*path).unwrap(), comes.then_some(item)))
            .collect()
    }

    fn left_out(of: &[(&str, bool)], inside: &[&str]) -> Vec<String> {
        let is_inside = |path: &RelPath| inside.iter().any(|one| path.as_bytes() == one.as_bytes());
        let outside = outside(&edits(of), is_inside);
        outside.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_inside_is_left_out_with_what_cannot_be_without_it() {
        let none: [&str; 0] = [];
        assert_eq!(left_out(&[("a", true), ("b", false)], &["a", "b"]), none);
        assert_eq!(left_out(&[("a", true), ("b", false)], &["a"]), ["b"]);
        // A file that becomes a directory, and the reverse.
        let becomes_directory = [("a", false), ("a/b", true), ("a-b", true)];
        assert_eq!(left_out(&becomes_directory, &["a/b", "a-b"]), ["a", "a/b"]);
        assert_eq!(left_out(&becomes_directory, &["a", "a-b"]), ["a/b"]);
        let becomes_file = [
            ("a", true),
            ("a-b", false),
            ("a/b", false),
            ("a/c/d", false),
        ];
        assert_eq!(
            left_out(&becomes_file, &["a", "a-b", "a/b"]),
            ["a", "a/c/d"]
        );
        assert_eq!(left_out(&becomes_file, &["a", "a/b", "a/c/d"]), ["a-b"]);
    }
}
