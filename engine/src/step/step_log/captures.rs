//! Captures at the borders of steps and tools.

use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{Interrupt, Label, Operation, Snapshot};
use tokio_util::sync::CancellationToken;

use super::{StepLog, StepPlace};
use crate::error::Error;
use crate::workspace::{capture, turn};

/// How long the capture after a step waits for its turn: without it nobody knows what the step did.
const CLOSING_PATIENCE: Duration = Duration::from_secs(600);

impl StepLog {
    /// The workspace before a tool is called; `None`: the run has none.
    pub(crate) async fn capture_before(
        &self,
        cancellation: &CancellationToken,
    ) -> Result<Option<Snapshot>, Error> {
        match &self.inner.place {
            Some(place) => self.capture(place, Some(cancellation)).await.map(Some),
            None => Ok(None),
        }
    }

    /// The workspace after a tool was called; `None`: the run has none.
    pub(crate) async fn capture_after(&self) -> Result<Option<Snapshot>, Error> {
        match &self.inner.place {
            Some(place) => self.capture(place, None).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether the worktree is as HEAD has it. Leaves no snapshot.
    pub(crate) async fn is_clean(&self, cancellation: &CancellationToken) -> Result<bool, Error> {
        let Some(place) = self.inner.place.clone() else {
            return Ok(true);
        };
        let parts = self.inner.core.parts.clone();
        let (session_id, run_id) = (self.inner.session_id.clone(), self.run_id().clone());
        let workspace = place.opened.workspace.clone();
        let lock_timeout = parts.settings.lock_timeout;
        let interrupt = Interrupt::never();
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let what = "a look whether a workspace is clean";
        let look = turn::work(
            &self.inner.core,
            &workspace,
            what,
            lock_timeout,
            move |locked| {
                let label = Label::new(capture::NOW);
                let run = Some(&run_id);
                let options = place
                    .opened
                    .snapshot_options(&parts, label, &session_id, run);
                let now = place.backend.snapshot(&op, locked, &options)?;
                place.backend.forget(
                    &op.to_its_end(),
                    locked,
                    std::slice::from_ref(&now.id),
                    &[],
                )?;
                Ok(now.metadata.dirty == Some(false))
            },
        );
        stoppable(look, cancellation, &interrupt).await
    }

    /// Captures the workspace at the border of a step.
    pub(super) async fn capture(
        &self,
        place: &StepPlace,
        cancellation: Option<&CancellationToken>,
    ) -> Result<Snapshot, Error> {
        let parts = self.inner.core.parts.clone();
        let (session_id, hold) = (self.inner.session_id.clone(), self.inner.hold.clone());
        let (opened, backend) = (place.opened.clone(), Arc::clone(&place.backend));
        let workspace = opened.workspace.clone();
        let lock_timeout = match cancellation {
            Some(_) => parts.settings.lock_timeout,
            None => CLOSING_PATIENCE,
        };
        let interrupt = Interrupt::never();
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let what = "the capture of a step";
        let capture = turn::work(
            &self.inner.core,
            &workspace,
            what,
            lock_timeout,
            move |locked| {
                let run = Some(&hold.run_id);
                let label = Label::STEP;
                let options = opened.snapshot_options(&parts, label, &session_id, run);
                let fence = Some(hold.fence());
                capture::capture(
                    &op,
                    &parts,
                    locked,
                    &*backend,
                    &options,
                    capture::Whose {
                        session_id: &session_id,
                        run_id: run,
                        fence,
                    },
                )
            },
        );
        let Some(cancellation) = cancellation else {
            return capture.await;
        };
        stoppable(capture, cancellation, &interrupt).await
    }
}

/// Does `work`, and tells it to stop once that is wanted.
pub(super) async fn stoppable<T>(
    work: impl Future<Output = Result<T, Error>>,
    cancellation: &CancellationToken,
    told: &Interrupt,
) -> Result<T, Error> {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => done,
        () = cancellation.cancelled() => {
            told.cancel();
            work.await
        }
    }
}
