//! Taking back what a step or a tool did.

use stillframe_backends::{BackendKind, ErrorKind, Snapshot, SnapshotId};

use super::StepLog;
use crate::error::Error;
use crate::restore::{self, RestorePurpose, WayBack};
use crate::step::{self, StepRow};
use crate::step_options::{Rerun, StepOptions};
use crate::workspaces;

/// What a step that was cut off has to do.
pub(super) enum Ready {
    /// Another attempt.
    Begin(Box<StepRow>),
    /// Nothing yet: somebody has to be asked.
    Choose(Box<StepRow>, Choices),
}

/// How a step that was cut off can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choices {
    /// Whether the workspace can go back to where it began.
    pub(crate) from_before: bool,
}

impl StepLog {
    /// Makes the workspace ready for another attempt at a step that was cut off, unless somebody has to be asked how.
    pub(super) async fn make_ready(
        &self,
        row: StepRow,
        steps: &[StepRow],
        options: &StepOptions,
    ) -> Result<Ready, Error> {
        let Some(place) = &self.inner.place else {
            return Ok(Ready::Begin(Box::new(row)));
        };
        let keeps_content =
            place.backend.kind() != BackendKind::Hash || place.opened.options.retain_content;
        let mut refusal = step::cannot_go_back(&row, steps, keeps_content);
        if refusal.is_none()
            && !self
                .are_there([&row.snapshot_before, &row.snapshot_after])
                .await?
        {
            refusal = Some("a snapshot of it was forgotten");
        }
        match (options.rerun, refusal) {
            (Some(Rerun::Ask), refusal) => {
                let from_before = refusal.is_none();
                Ok(Ready::Choose(Box::new(row), Choices { from_before }))
            }
            (Some(Rerun::InPlace), _) | (None, Some(_)) => Ok(Ready::Begin(Box::new(row))),
            (Some(Rerun::FromBefore), Some(why)) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "step {:?} was interrupted and cannot be gone back from: {why}; nothing was touched",
                    row.name
                ),
            )),
            (None | Some(Rerun::FromBefore), None) => {
                self.go_back(&row).await?;
                // The branch is where it was, so that what the step committed is not in it.
                Ok(Ready::Begin(Box::new(StepRow {
                    commit_created: None,
                    ..row
                })))
            }
        }
    }

    /// Whether these snapshots are still on record.
    async fn are_there(&self, ids: [&Option<SnapshotId>; 2]) -> Result<bool, Error> {
        let ids = ids.map(Clone::clone);
        let reader = &self.inner.core.parts.reader;
        reader
            .read(move |store| {
                for id in ids.into_iter().flatten() {
                    if store.snapshot(&id)?.is_none() {
                        return Ok(false);
                    }
                }
                Ok(true)
            })
            .await
    }

    /// Puts the workspace back to where the interrupted step began. What it left is in its record.
    async fn go_back(&self, row: &StepRow) -> Result<(), Error> {
        let Some(place) = &self.inner.place else {
            return Ok(());
        };
        let workspace = place.opened.workspace.clone();
        let ids = [&row.snapshot_before, &row.snapshot_after].map(Clone::clone);
        let [before, after] = self
            .inner
            .core
            .parts
            .reader
            .read_with(move |store| {
                let known = |id: Option<SnapshotId>| {
                    let id = id.expect("asked for what has both");
                    workspaces::known_snapshot(store, &id, &workspace)
                };
                let [before, after] = ids;
                Ok([known(before)?, known(after)?])
            })
            .await?;
        let what = "going back to the beginning of a step";
        self.put_back(before, after, what).await
    }

    /// Takes back what a tool did between two snapshots.
    pub(crate) async fn take_back(&self, before: Snapshot, after: Snapshot) -> Result<(), Error> {
        self.put_back(before, after, "taking back a tool").await
    }

    /// Puts the workspace, the index and the branch back to `before`. `after`: what is there now.
    async fn put_back(
        &self,
        before: Snapshot,
        after: Snapshot,
        what: &'static str,
    ) -> Result<(), Error> {
        let Some(place) = self.inner.place.clone() else {
            return Ok(());
        };
        let core = &self.inner.core;
        let parts = core.parts.clone();
        let session_id = self.inner.session_id.clone();
        let run_id = self.run_id().clone();
        let patience = parts.options.lock_patience;
        let workspace = place.opened.workspace.clone();
        workspaces::work(core, &workspace, what, patience, move |locked| {
            let way = WayBack {
                before,
                after,
                session_id,
                run_id,
                purpose: RestorePurpose::Step,
            };
            restore::go_back(&parts, locked, &*place.backend, &place.opened, way)?;
            Ok(())
        })
        .await
    }
}
