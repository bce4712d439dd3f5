//! What is sorted by path, and parts of it.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::path::RelPath;
use crate::tree::Change;

pub(super) fn change_at<'c>(changes: &'c [Change], path: &RelPath) -> Option<&'c Change> {
    let at = changes.binary_search_by(|c| c.path.cmp(path)).ok()?;
    Some(&changes[at])
}

pub(super) fn changes_below<'c>(changes: &'c [Change], directory: &RelPath) -> &'c [Change] {
    below(changes, directory, |c| &c.path)
}

/// The part of a slice sorted by path that lies strictly below `directory`.
pub(super) fn below<'s, T>(
    sorted: &'s [T],
    directory: &RelPath,
    path: fn(&T) -> &RelPath,
) -> &'s [T] {
    if directory.is_root() {
        return sorted;
    }
    let prefix = prefix_of(directory);
    let start = sorted.partition_point(|t| path(t).as_bytes() < &prefix[..]);
    let length = sorted[start..].partition_point(|t| path(t).as_bytes().starts_with(&prefix));
    &sorted[start..start + length]
}

/// The keys strictly below `directory`.
pub(crate) fn range_below<T>(map: &BTreeMap<RelPath, T>, directory: &RelPath) -> Vec<RelPath> {
    let prefix = prefix_of(directory);
    map.range::<[u8], _>((Bound::Included(&prefix[..]), Bound::Unbounded))
        .take_while(|(path, _)| path.as_bytes().starts_with(&prefix))
        .map(|(path, _)| path.clone())
        .collect()
}

fn prefix_of(directory: &RelPath) -> Vec<u8> {
    let mut prefix = directory.as_bytes().to_vec();
    prefix.push(b'/');
    prefix
}
