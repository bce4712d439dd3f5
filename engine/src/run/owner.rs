//! Which engine holds a run, and taking the run over from it.

use jiff::Timestamp;

use crate::actors::Parts;
use crate::error::Error;
use crate::id::RunId;
use crate::records::lease::{Lease, Moment};
use crate::records::run_row::RunRow;
use crate::state::change::Change;
use crate::state::liveness;

/// Whether no engine holds the run, or its engine does not renew the lease. Blocks.
pub(crate) fn is_free(parts: &Parts, row: &RunRow, lease: Option<&Lease>) -> Result<bool, Error> {
    let is_alive = has_owner(parts, row)?;
    Ok(match lease {
        Some(lease) => lease.is_free(&Moment::now()?, is_alive),
        None => !is_alive,
    })
}

/// Whether the engine that has a run is there, and at work on it as far as that can be known.
/// Blocks.
pub(crate) fn has_owner(parts: &Parts, row: &RunRow) -> Result<bool, Error> {
    if row.engine_id == parts.engine_id {
        // Its end may not have been written down.
        return Ok(parts.live_runs.has(&row.id));
    }
    Ok(liveness::is_alive(parts.state_dir.path(), &row.engine_id)?)
}

/// Takes a run from its engine, so that no engine holds it, and an owner that comes back late can
/// write nothing.
pub(crate) fn taken_from_owner(
    parts: &Parts,
    run_id: &RunId,
    lease: Lease,
    at: Timestamp,
) -> Result<Change, Error> {
    let owner = parts.engine_id.clone();
    let free = Lease::of_nobody(owner, lease.epoch + 1, Moment::now()?, at);
    Ok(Change::ClaimLease {
        run_id: run_id.clone(),
        from: Some(Box::new(lease)),
        lease: Box::new(free),
        after: None,
    })
}
