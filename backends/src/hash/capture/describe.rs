//! The record of a snapshot of the hash backend.

use std::time::Instant;

use super::Setting;
use super::walk::WalkResult;
use crate::description;
use crate::record::Record;
use crate::snapshot::BackendKind;
use crate::snapshot_error::SnapshotError;

impl Setting<'_> {
    /// The record of the snapshot whose manifest has the name `reference`.
    pub(super) fn describe(
        &self,
        seen: &mut WalkResult,
        reference: String,
        started: Instant,
    ) -> Result<Record, SnapshotError> {
        let options = self.request.options;
        let mut snapshot = description::snapshot(
            self.request.op,
            (self.request.workspace, self.root),
            options,
            BackendKind::Hash,
            std::mem::take(&mut seen.omissions),
            &mut seen.walked,
        )?;
        snapshot.reference = reference;
        let has_content = self.keeping.has_content();
        let reason = self.request.instead_of_git;
        let warning = reason.map(|reason| format!("captured with the hash backend: {reason}"));
        snapshot.metadata.warnings.extend(warning);
        snapshot.metadata.has_content = Some(has_content);
        snapshot.metadata.search = seen.search;
        let tally = seen.closing.tally();
        Ok(description::record(
            snapshot,
            options,
            tally,
            has_content,
            None,
            started,
        ))
    }
}
