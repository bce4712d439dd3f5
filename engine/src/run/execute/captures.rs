//! The captures of a run, the comparison of them, and the rollback after a failure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{
    Backend, Diff, ErrorKind, Label, Operation, RelPath, Snapshot, SnapshotId, file_system_of,
};

use super::{RunTask, SharedError};
use crate::error::Error;
use crate::failure::Failure;
use crate::policy::limits::unknown_changes;
use crate::policy::violation::PolicyViolation;
use crate::records::restore_document::{self, RestoreDocument, RestorePurpose, RestoreStatus};
use crate::records::run::RunStatus;
use crate::run::closing::{self, CLOSING_LOCK_TIMEOUT, Closing};
use crate::step::step_log::StepLog;
use crate::workspace::opened::Opened;
use crate::workspace::restore::{self, WayBack};
use crate::workspace::{capture, turn};

/// Which of a run's snapshots is to be taken.
pub(super) struct CaptureRequest {
    pub(super) label: Label,
    pub(super) id: SnapshotId,
    /// The one that a rollback from it goes back to.
    pub(super) since: Option<SnapshotId>,
}

impl RunTask {
    pub(super) async fn capture(
        &self,
        opened: Opened,
        backend: Arc<dyn Backend>,
        wanted: CaptureRequest,
        op: Operation,
        lock_timeout: Duration,
    ) -> Result<Snapshot, Error> {
        let (session_id, hold) = (self.session_id.clone(), self.hold.clone());
        let parts = self.core.parts.clone();
        let workspace = opened.workspace.clone();
        let what = ("the capture of a run", self.options.priority);
        turn::work_as(&self.core, &workspace, what, lock_timeout, move |locked| {
            let mut options =
                opened.snapshot_options(&parts, wanted.label, &session_id, Some(&hold.run_id));
            options.id = wanted.id;
            options.since = wanted.since;
            options.keep_refs = true;
            capture::capture(
                &op,
                &parts,
                locked,
                &*backend,
                &options,
                capture::Whose {
                    session_id: &session_id,
                    run_id: Some(&hold.run_id),
                    fence: Some(hold.fence()),
                },
            )
        })
        .await
    }

    /// Makes the directory of the workspace again, if the work has removed it and is to be taken
    /// back: nothing could be captured or put back otherwise. A failure is the capture's to tell.
    pub(super) async fn make_place_again(&mut self, status: RunStatus) {
        let limits = self.limits();
        let Some(place) = &mut self.workspace else {
            return;
        };
        // One that is done may fail for what it changed.
        let is_done = matches!(status, RunStatus::Completed | RunStatus::Blocked);
        let may_fail = is_done && limits.are_of_changes();
        if !(may_fail || may_roll_back(status)) || !place.opened.options.rollback_on_failure {
            return;
        }
        let workspace = place.opened.workspace.clone();
        let what = "a rollback";
        let made = turn::work(
            &self.core,
            &workspace,
            what,
            CLOSING_LOCK_TIMEOUT,
            |locked| {
                Ok(locked
                    .make_again(&Operation::unbounded())?
                    .then(|| (**locked).clone()))
            },
        );
        if let Ok(Some(workspace)) = made.await {
            place.opened.workspace = workspace;
        }
    }

    /// Captures the workspace after the work and compares.
    pub(super) async fn close(&self, before: Snapshot, status: RunStatus) -> Closing {
        let place = self.workspace.clone().expect("there is a before-snapshot");
        let mut closing = Closing {
            backend: Some(before.backend),
            before: Some(before.clone()),
            resumed: self.on_branch.clone(),
            ..Closing::default()
        };
        let Ok(backend) = place.backend else {
            return closing;
        };
        let after = self
            .capture(
                place.opened.clone(),
                backend,
                CaptureRequest {
                    label: status.closing_label(),
                    id: place.after,
                    since: Some(before.id.clone()),
                },
                Operation::unbounded(),
                CLOSING_LOCK_TIMEOUT,
            )
            .await;
        let after = match after {
            Ok(after) => after,
            Err(e) => {
                closing.error = Some(failure_of(&e));
                return closing;
            }
        };
        closing.after = Some(after);
        match status.is_at_rest() {
            // What the run changed is known when it has ended.
            true => closing,
            false => self.compared(closing).await,
        }
    }

    /// With what the run changed between its snapshots, if both are there.
    pub(super) async fn compared(&self, mut closing: Closing) -> Closing {
        let (Some(place), Some(before), Some(after)) = (
            self.workspace.clone(),
            closing.before.clone(),
            closing.after.clone(),
        ) else {
            return closing;
        };
        let of = (&self.session_id, &self.run_id);
        let fence = Some(self.hold.fence());
        let snapshots = [before, after];
        let compared = closing::diff(&self.core, place.opened, snapshots, of, fence);
        match Box::pin(compared).await {
            Ok((diff, problem)) => {
                closing.diff = Some(diff);
                closing.error = problem.as_ref().map(failure_of);
            }
            Err(e) => closing.error = Some(failure_of(&e)),
        }
        closing
    }

    /// What the run changed that it must not, which is told; nothing if it may change anything.
    pub(super) async fn judge_changes(
        &self,
        closing: &Closing,
        steps: &StepLog,
    ) -> Vec<PolicyViolation> {
        let limits = steps.oversight().limits();
        if !limits.are_of_changes() {
            return Vec::new();
        }
        let bytes = match (limits.max_changed_bytes, &closing.diff) {
            (Some(_), Some(diff)) => self.changed_bytes(closing, diff).await.map(Some),
            _ => Ok(None),
        };
        let violations = match (&closing.diff, bytes) {
            (Some(diff), Ok(bytes)) => limits.of_changes(diff, bytes),
            (None, _) => {
                let why = closing.error.as_ref().map(|failure| &*failure.message);
                vec![unknown_changes(why.unwrap_or("it was not compared"))]
            }
            (Some(diff), Err(e)) => {
                let mut known = limits.of_changes(diff, None);
                known.push(unknown_changes(&e.chain()));
                known
            }
        };
        for violation in &violations {
            if let Err(e) = steps.tell_of(violation).await {
                tracing::warn!(run = %self.run_id, error = %e.chain(), "a violation is not on record");
            }
        }
        violations
    }

    /// How many bytes the changed files have together, as they are after the work.
    async fn changed_bytes(&self, closing: &Closing, diff: &Diff) -> Result<u64, Error> {
        let (Some(place), Some(after)) = (self.workspace.clone(), closing.after.clone()) else {
            return Ok(0);
        };
        let backend = place
            .backend
            .map_err(|e| Error::new(e.kind(), SharedError(e)))?;
        let changed_paths: BTreeSet<RelPath> = diff.changed_paths.iter().cloned().collect();
        let count = move || {
            let op = Operation::unbounded();
            let stored = backend.open(&op, &place.opened.workspace, &after)?;
            let files = stored.files(&op)?.into_iter();
            let stored = files.map(|file| (file.path, file.size));
            // What was not captured, because it is large, was changed as well.
            let omitted = after.omissions().iter();
            let omitted = omitted.map(|omission| (omission.path.clone(), omission.bytes));
            let changed = stored.chain(omitted);
            let changed = changed.filter(|(path, _)| changed_paths.contains(path));
            let sizes = changed.filter_map(|(_, size)| size);
            Ok(sizes.fold(0, u64::saturating_add))
        };
        self.core.parts.blocking.run_long(count).await?
    }

    /// Puts the workspace back after a failure, if the host asked for it.
    pub(super) async fn roll_back(
        &self,
        closing: &Closing,
        status: RunStatus,
    ) -> Option<RestoreDocument> {
        let place = self.workspace.clone()?;
        if !may_roll_back(status) || !place.opened.options.rollback_on_failure {
            return None;
        }
        let before = closing.before.clone()?;
        let Some(after) = closing.after.clone() else {
            let failure = closing.error.clone().unwrap_or_else(|| {
                Failure::new(ErrorKind::Unreadable.as_str(), "there is no after-snapshot")
            });
            return Some(restore_document::not_restored(
                RestoreStatus::Refused,
                Failure {
                    message: format!(
                        "what the run left could not be captured, so nothing was touched: {}; \"stillframe restore {}\" goes back to what was there before",
                        failure.message, before.id
                    ),
                    ..failure
                },
            ));
        };
        let backend = place.backend.ok()?;
        let (session_id, hold) = (self.session_id.clone(), self.hold.clone());
        let parts = self.core.parts.clone();
        let opened = place.opened;
        let workspace = opened.workspace.clone();
        let what = "a rollback";
        let restored = turn::work(
            &self.core,
            &workspace,
            what,
            CLOSING_LOCK_TIMEOUT,
            move |locked| {
                let way = WayBack {
                    before,
                    after,
                    session_id,
                    hold,
                    purpose: RestorePurpose::Rollback,
                };
                restore::go_back(&parts, locked, &*backend, &opened, way)
            },
        )
        .await;
        Some(match restored {
            Ok(outcome) => RestoreDocument {
                plan_id: None,
                durations: None,
                ..restore_document::restored_document(&outcome)
            },
            Err(e) => restore_document::not_restored(
                match e.touched() {
                    true => RestoreStatus::Failed,
                    false => RestoreStatus::Refused,
                },
                failure_of(&e),
            ),
        })
    }
}

/// Why the engine could not do its part; where a disk is full, which one.
fn failure_of(error: &Error) -> Failure {
    let mut failure = Failure::from(error);
    let full = error.path().filter(|_| error.kind() == ErrorKind::NoSpace);
    if let Some(full) = full.and_then(file_system_of) {
        failure.message += &format!("; there is no room on {full}");
    }
    failure
}

/// Whether a run with this status is followed by a rollback where one was asked for.
fn may_roll_back(status: RunStatus) -> bool {
    !matches!(status, RunStatus::Completed | RunStatus::Blocked) && !status.is_at_rest()
}
