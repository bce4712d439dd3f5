//! Rows of snapshots that are pinned.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use stillframe_backends::SnapshotId;

use super::values::{id, nanoseconds};
use crate::records::snapshot::PinRow;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Pins a snapshot; one that is stays as it is.
pub(super) fn pin(transaction: &Connection, row: &PinRow, at: Timestamp) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO pins (snapshot_id, workspace_id, pinned_at) VALUES (?1, ?2, ?3)
         ON CONFLICT (snapshot_id) DO NOTHING",
        params![row.snapshot_id.as_str(), row.workspace_id, nanoseconds(at)],
    )?;
    Ok(())
}

/// Lets go of the pin of a snapshot, if it has one.
pub(super) fn unpin(transaction: &Connection, id: &SnapshotId) -> Result<(), StateError> {
    transaction.execute(
        "DELETE FROM pins WHERE snapshot_id = ?1",
        params![id.as_str()],
    )?;
    Ok(())
}

pub(super) const SELECT_PIN: &str = concat!(
    "SELECT snapshot_id, workspace_id, ",
    damaged!(pins),
    " FROM pins"
);

pub(super) fn read_pin(row: &Row<'_>) -> Result<PinRow, StateError> {
    Ok(PinRow {
        snapshot_id: id(row.get(0)?)?,
        workspace_id: row.get(1)?,
    })
}
