//! Whether a workspace is large, so that work on it may occupy a thread for long.

use stillframe_backends::Workspace;

use crate::actors::Parts;
use crate::state::SnapshotFilter;

/// From so many files on a workspace is large: the first capture of fewer takes about a tenth of a
/// second.
const LARGE: u64 = 2_000;

/// Whether a workspace is large, by its newest snapshot, or by a look at it if it has none. Blocks,
/// for milliseconds.
pub(crate) fn is_large(parts: &Parts, workspace: &Workspace) -> bool {
    let newest = parts.reader.read_blocking(|store| {
        store.find_snapshots(&SnapshotFilter {
            limit: Some(1),
            ..SnapshotFilter::of(workspace)
        })
    });
    match newest.ok().and_then(|mut rows| rows.pop()) {
        Some(row) => row.snapshot.metadata.files >= LARGE,
        None => workspace.has_more_than(LARGE),
    }
}
