//! Describing how HEAD moved between two snapshots.

use stillframe::Snapshot;

use crate::output;

/// Where HEAD went, which no file says.
pub(super) fn head_moved(before: &Snapshot, after: &Snapshot) -> Option<String> {
    let place = |snapshot: &Snapshot| {
        let metadata = &snapshot.metadata;
        let commit = metadata
            .head_ref
            .as_deref()
            .map(|id| id.get(..12).unwrap_or(id));
        let commit = commit.unwrap_or("no commit");
        match &metadata.branch {
            Some(branch) => format!("{} at {commit}", output::printable(branch)),
            None => format!("no branch at {commit}"),
        }
    };
    let (from, to) = (place(before), place(after));
    (from != to).then(|| format!("HEAD went from {from} to {to}"))
}
