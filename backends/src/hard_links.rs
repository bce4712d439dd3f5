//! Files with several names in a workspace.

use std::collections::{BTreeMap, BTreeSet};

use crate::path::RelPath;
use crate::snapshot::Snapshot;
use crate::worktree::walk::Link;

/// At most this many names are listed in a snapshot; of the rest only the number of files. A
/// package store that links its files has hundreds of thousands, and nobody reads that.
const MAX_NAMED: usize = 1000;

/// Writes down in `snapshot` which of the captured names are of one file. A name may be among
/// `links` twice: a directory that changes while it is read is read again.
pub(crate) fn note(snapshot: &mut Snapshot, links: Vec<Link>) {
    let mut files: BTreeMap<(u64, u64), BTreeSet<RelPath>> = BTreeMap::new();
    for link in links {
        let names = files.entry((link.device, link.inode)).or_default();
        names.insert(link.path);
    }
    let shared = files.into_values().filter(|names| names.len() > 1);
    let mut shared: Vec<Vec<RelPath>> = shared.map(Vec::from_iter).collect();
    shared.sort_unstable();
    let (all, mut room) = (shared.len(), MAX_NAMED);
    shared.retain(|names| {
        let rest = room.checked_sub(names.len());
        room = rest.unwrap_or(room);
        rest.is_some()
    });
    let more = all - shared.len();
    if more > 0 {
        snapshot.metadata.warnings.push(format!(
            "files with several names whose names are not listed: {more}"
        ));
    }
    snapshot.hard_links = shared;
}

/// The other names that the file at `path` had.
pub(crate) fn others(snapshot: &Snapshot, path: &RelPath) -> Vec<RelPath> {
    let mut files = snapshot.hard_links.iter();
    let names = files.find(|names| names.binary_search(path).is_ok());
    let names = names.into_iter().flatten();
    names.filter(|name| *name != path).cloned().collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::snapshot::{BackendKind, Label, SnapshotId};

    fn snapshot() -> Snapshot {
        Snapshot::new(
            SnapshotId::random(),
            BackendKind::Hash,
            "/w".into(),
            String::new(),
            Label::MANUAL,
            Timestamp::UNIX_EPOCH,
        )
    }

    fn link(path: &str, device: u64, inode: u64) -> Link {
        let path = RelPath::new(path).unwrap();
        Link {
            path,
            device,
            inode,
        }
    }

    #[test]
    fn names_of_one_file_are_together_and_others_are_left_out() {
        let mut snapshot = snapshot();
        let links = vec![
            link("z", 1, 7),
            link("alone", 1, 8),
            link("b", 1, 9),
            link("other-device", 2, 7),
            link("a", 1, 7),
            link("c", 1, 9),
            link("twice", 1, 10),
            link("twice", 1, 10),
        ];
        note(&mut snapshot, links);
        let names = |names: [&str; 2]| names.map(|n| RelPath::new(n).unwrap()).to_vec();
        assert_eq!(snapshot.hard_links, [names(["a", "z"]), names(["b", "c"])]);
        let at = |path: &str| others(&snapshot, &RelPath::new(path).unwrap());
        assert_eq!(at("c"), [RelPath::new("b").unwrap()]);
        assert_eq!(at("alone"), []);
        assert_eq!(snapshot.metadata.warnings, [""; 0]);
    }

    #[test]
    fn of_very_many_the_first_are_named_and_the_rest_counted() {
        let mut snapshot = snapshot();
        let names = |n: u64| [format!("{n:05}"), format!("{n:05}.again")];
        let pairs = (0..503).flat_map(|n| names(n).map(|name| link(&name, 1, n)));
        // A file with more names than the limit does not keep others from being listed.
        let many = (0..1001).map(|n| link(&format!("0/{n}"), 2, 1));
        note(&mut snapshot, pairs.chain(many).collect());
        assert_eq!(snapshot.hard_links.len(), MAX_NAMED / 2);
        let warning = "files with several names whose names are not listed: 4";
        assert_eq!(snapshot.metadata.warnings, [warning]);
    }
}
