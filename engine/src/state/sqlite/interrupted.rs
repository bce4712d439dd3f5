//! What was under way in a run when it stopped.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::values::nanoseconds;
use crate::id::RunId;
use crate::records::run::RunStatus;
use crate::state::error::StateError;

/// Follows a run that has moved: in one that rests or has ended, no call of a tool is under way and
/// no agent works.
pub(super) fn run_moved(
    transaction: &Connection,
    run_id: &RunId,
    to: RunStatus,
    at: Timestamp,
) -> Result<(), StateError> {
    if !to.is_terminal() && !to.is_at_rest() {
        return Ok(());
    }
    for table in ["tool_calls", "agents"] {
        let mut interrupt = transaction.prepare_cached(&format!(
            "UPDATE {table} SET status = 'interrupted', ended_at = ?1
              WHERE run_id = ?2 AND status = 'running'"
        ))?;
        interrupt.execute(params![nanoseconds(at), run_id.as_str()])?;
    }
    Ok(())
}
