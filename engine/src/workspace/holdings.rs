//! Comparing the snapshots in the log with those in the stores of a workspace.
//!
//! A snapshot is in its store before it is in the log, and the log can lose its newest entries:
//! through a damaged disk, or through a copy without the write-ahead log. So the two are compared
//! before work in a workspace, and before its snapshots are listed. The comparison costs only a
//! look at the names of the refs. If the log has lost its end, the newest snapshot of the store is
//! missing in it; if anything else is missing, the numbers differ.

use std::collections::HashSet;

use stillframe_backends::{Holdings, Operation, Snapshot, SnapshotId, Workspace};

use crate::actors::Parts;
use crate::error::Error;
use crate::state::StateStore;
use crate::state::error::StateError;
use crate::workspace::backends;
use crate::workspace::capture::NOW;

/// Whether a look tells of nothing that only the log or only a store has. Blocks; reads no
/// snapshot.
pub(crate) fn is_in_step(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
) -> Result<bool, Error> {
    let mut holdings = Vec::new();
    for backend in backends::backends(parts) {
        holdings.push(backend.holdings(op, workspace)?);
    }
    let agree = parts
        .reader
        .read_blocking(|store| agree(store, workspace.id(), &holdings))?;
    Ok(agree)
}

/// Whether the log can have what the stores of a workspace hold, and no more.
fn agree(
    log: &dyn StateStore,
    workspace_id: &str,
    holdings: &[Holdings],
) -> Result<bool, StateError> {
    let held: u64 = holdings.iter().map(Holdings::count).sum();
    if held != log.snapshot_count(workspace_id)? {
        return Ok(false);
    }
    for held in holdings.iter().filter(|held| held.count() > 0) {
        let is_known = match held {
            Holdings::Ids(ids) => {
                let known: HashSet<_> = log.snapshot_ids(workspace_id)?.into_iter().collect();
                ids.iter().all(|id| known.contains(id))
            }
            Holdings::Newest {
                reference: Some(reference),
                ..
            } => log.is_among_newest(workspace_id, reference)?,
            _ => false,
        };
        if !is_known {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The snapshots that the stores of a workspace hold and the log does not have, in no order. One
/// that was only made to be compared with is none. Blocks; where log and stores are in step nothing
/// is read.
pub(crate) fn unlisted(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
) -> Result<Vec<Snapshot>, Error> {
    if is_in_step(op, parts, workspace)? {
        return Ok(Vec::new());
    }
    let mut held = Vec::new();
    for backend in backends::backends(parts) {
        held.extend(backend.list(op, workspace)?.snapshots);
    }
    // After the stores: a snapshot that is published meanwhile has its row, or the next comparison
    // finds it.
    let known = known(parts, workspace)?;
    held.retain(|snapshot| !known.contains(&snapshot.id) && snapshot.label.as_str() != NOW);
    Ok(held)
}

/// The snapshots of a workspace that the log has.
pub(crate) fn known(parts: &Parts, workspace: &Workspace) -> Result<HashSet<SnapshotId>, Error> {
    let ids = parts
        .reader
        .read_blocking(|store| store.snapshot_ids(workspace.id()))?;
    Ok(ids.into_iter().collect())
}
