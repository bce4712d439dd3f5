//! The snapshots that this engine gave rows to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use stillframe_backends::SnapshotId;

/// The snapshots that this engine wrote rows for, by workspace, until `verify` reports them. Clones
/// are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adopted(Arc<Mutex<HashMap<String, Vec<SnapshotId>>>>);

impl Adopted {
    /// Adds more of a workspace, oldest first.
    pub(crate) fn add(&self, workspace_id: &str, ids: Vec<SnapshotId>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(workspace_id.to_owned()).or_default().extend(ids);
    }

    /// Those of a workspace, to tell of them.
    pub(crate) fn take(&self, workspace_id: &str) -> Vec<SnapshotId> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(workspace_id).unwrap_or_default()
    }
}
