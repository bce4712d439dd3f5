//! What is on record of a run whose engine or task is gone.

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::RunId;
use crate::records::isolation::IsolationRow;
use crate::records::lease::Lease;
use crate::records::queue::QueueState;
use crate::records::restore_document::RestoreRow;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::state::StateStore;

/// Why a run that a dead engine left is failed.
pub(crate) const STRANDED: &str = "stranded_in_progress";

/// What became of a run that was to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It rests or has ended, by this engine or another one.
    Done,
    /// It is as it was: somebody is at work in its workspace, who may be its owner, or its owner is
    /// back.
    Left,
}

/// What is on record of a run that is to be settled.
pub(super) struct OnRecord {
    has_phases: bool,
    pub(super) lease: Option<Lease>,
    /// Where it stands in the queue, if it was submitted.
    pub(super) queue: Option<QueueState>,
    /// Its rollback, if one had begun.
    pub(super) rollback: Option<RestoreRow>,
    /// Its own worktree, if it has one.
    pub(super) isolation: Option<IsolationRow>,
}

impl OnRecord {
    pub(super) async fn read(core: &Core, run_id: &RunId) -> Result<Self, Error> {
        let asked = run_id.clone();
        let read = move |store: &dyn StateStore| {
            Ok(Self {
                has_phases: !store.phases(&asked)?.is_empty(),
                lease: store.lease(&asked)?,
                queue: store.queue_row(&asked)?.map(|row| row.state),
                rollback: store.rollback_of_run(&asked)?,
                isolation: store.isolation(&asked)?,
            })
        };
        core.parts.reader.read(read).await
    }

    /// Whether somebody asked for the end of the run, and its engine died before it heard of it.
    pub(super) fn is_unwanted(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.cancel_requested_at.is_some())
    }

    /// Whether its work has not begun, and its place is in the queue.
    pub(super) fn is_to_be_begun(&self) -> bool {
        self.queue.is_some_and(QueueState::is_queued) && !self.is_unwanted()
    }

    /// What happens to the run: it rests where it can be resumed. Of one whose rollback had begun
    /// the steps are undone.
    pub(super) fn event(&self, run: &RunRow) -> RunEvent {
        let is_resumable = run.begun_as().resumable || self.has_phases;
        match (is_resumable && self.rollback.is_none(), self.is_unwanted()) {
            (_, true) => RunEvent::Cancelled,
            (true, false) if run.status == RunStatus::Asking => RunEvent::Parked,
            (true, false) => RunEvent::Interrupted,
            (false, false) => RunEvent::Stranded,
        }
    }
}
