//! The rows of snapshots and of pins.

use stillframe_backends::{Snapshot, SnapshotId};

use crate::id::{RunId, SessionId};

/// A snapshot as it is kept: the description, and whose it is. The content is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRow {
    pub(crate) workspace_id: String,
    /// `None`: found in the store without a row, so that its owner is not known.
    pub(crate) session_id: Option<SessionId>,
    pub(crate) run_id: Option<RunId>,
    pub(crate) snapshot: Snapshot,
}

/// A snapshot that somebody has said is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PinRow {
    pub(crate) snapshot_id: SnapshotId,
    pub(crate) workspace_id: String,
}
