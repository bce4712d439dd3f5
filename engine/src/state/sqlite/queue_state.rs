//! The state of a submitted run in the queue, which follows the run.

use rusqlite::{Connection, params};

use crate::id::RunId;
use crate::records::queue::QueueState;
use crate::records::run::RunStatus;
use crate::state::error::StateError;

/// Follows a run that has moved, if it was submitted.
pub(super) fn moved(
    transaction: &Connection,
    run_id: &RunId,
    to: RunStatus,
) -> Result<(), StateError> {
    let state = match to {
        // Until its work is saved its engine and its workspace are not free.
        to if to.is_at_work() || to.is_being_saved() => QueueState::UnderWay,
        _ => QueueState::Over,
    };
    set_state(transaction, run_id, state)
}

/// Sets the state of a row; one that has it already, or is not there, is no error.
pub(super) fn set_state(
    transaction: &Connection,
    run_id: &RunId,
    state: QueueState,
) -> Result<(), StateError> {
    let mut set = transaction
        .prepare_cached("UPDATE queue SET state = ?1 WHERE run_id = ?2 AND state <> ?1")?;
    set.execute(params![state.as_str(), run_id.as_str()])?;
    Ok(())
}
