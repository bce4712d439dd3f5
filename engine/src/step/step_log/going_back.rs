//! Undoing what a step or a tool did.

use stillframe_backends::{BackendKind, ErrorKind, Label, Operation, Snapshot, SnapshotId};

use tokio_util::sync::CancellationToken;

use super::{StepLog, StepPlace};
use crate::error::Error;
use crate::records::restore_document::RestorePurpose;
use crate::records::step::{self, StepRow};
use crate::state::snapshot_name;
use crate::step::adapter_error::BLOCKED;
use crate::step::options::{Rerun, StepOptions};
use crate::workspace::restore::{self, WayBack};
use crate::workspace::{capture, turn};

/// What a step that was interrupted has to do.
pub(super) enum Ready {
    /// Another attempt.
    Begin(Box<StepRow>),
    /// Another attempt on what is there, which nobody asked for, for this reason.
    InPlace(Box<StepRow>, String),
    /// Nothing yet: somebody has to be asked.
    Choose(Box<StepRow>, Choices),
}

/// How a step that was interrupted can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choices {
    /// Whether the workspace can go back to where it began.
    pub(crate) from_before: bool,
}

/// Why a step is not gone back from that somebody has built on.
const HEAD_MOVED: &str = "HEAD or its branch was moved since the step was cut off";

/// What there is to do about a step that is not gone back from.
const IN_PLACE: &str = "\"in_place\" instead of \"from_before\" goes on with what is there";

/// Why a step goes on with what is there that could not go on without a person.
const GOES_ON: &str = "it was blocked, and goes on with what it had";

/// Whether the work of a step ended because it could not go on without a person.
fn was_blocked(row: &StepRow) -> bool {
    let kind = row.error.as_ref().and_then(|error| error.kind.as_deref());
    kind == Some(BLOCKED)
}

/// Whether HEAD named the same branch, and that the same commit.
fn same_head(one: &Snapshot, other: &Snapshot) -> bool {
    let (one, other) = (&one.metadata, &other.metadata);
    (&one.branch, &one.head_ref) == (&other.branch, &other.head_ref)
}

impl StepLog {
    /// Makes the workspace ready for another attempt at a step that was interrupted, unless
    /// somebody has to be asked how.
    pub(super) async fn make_ready(
        &self,
        row: StepRow,
        steps: &[StepRow],
        options: &StepOptions,
        cancellation: &CancellationToken,
    ) -> Result<Ready, Error> {
        let Some(place) = &self.inner.place else {
            return Ok(Ready::Begin(Box::new(row)));
        };
        let mut row = row;
        let is_unknown = row.snapshot_before.is_some() && row.snapshot_after.is_none();
        if is_unknown && options.rerun == Some(Rerun::FromBefore) {
            // Nobody could capture what it left when it was interrupted. What is there now is all
            // that is known of it, and may be somebody's work of days: that goes back, and into the
            // guard, only where it was asked for by name.
            row.snapshot_after = Some(self.capture(place, Some(cancellation)).await?.id);
        }
        let mut refusal = step::cannot_go_back(&row, steps, self.kept_content(place, &row).await?);
        if refusal.is_none()
            && !self
                .are_there([&row.snapshot_before, &row.snapshot_after])
                .await?
        {
            refusal = Some("a snapshot of it was forgotten");
        }
        match (options.rerun, refusal) {
            // It only waited for an answer, say: there is nothing to choose from.
            (Some(Rerun::Ask), _) if self.did_nothing(&row).await? => {
                Ok(Ready::Begin(Box::new(row)))
            }
            (Some(Rerun::Ask), refusal) => {
                let from_before = refusal.is_none();
                Ok(Ready::Choose(Box::new(row), Choices { from_before }))
            }
            (Some(Rerun::InPlace), _) => Ok(Ready::Begin(Box::new(row))),
            (None, _) if was_blocked(&row) => Ok(Ready::InPlace(Box::new(row), GOES_ON.to_owned())),
            (None, Some(why)) => Ok(Ready::InPlace(Box::new(row), why.to_owned())),
            (Some(Rerun::FromBefore), Some(why)) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "step {:?} was interrupted and cannot be gone back from: {why}; {IN_PLACE}; nothing was touched",
                    row.name
                ),
            )),
            (None | Some(Rerun::FromBefore), None) => {
                match self.go_back(&row).await {
                    // Somebody has built on what it did: nothing of that is taken apart unless it
                    // is asked for, or there is nothing of it to take apart.
                    Err(e)
                        if e.kind() == ErrorKind::HeadMoved && self.did_nothing(&row).await? =>
                    {
                        return Ok(Ready::Begin(Box::new(row)));
                    }
                    Err(e) if e.kind() == ErrorKind::HeadMoved && options.rerun.is_none() => {
                        return Ok(Ready::InPlace(Box::new(row), HEAD_MOVED.to_owned()));
                    }
                    gone_back => gone_back?,
                }
                // The branch is where it was, so that what the step committed is not in it.
                Ok(Ready::Begin(Box::new(StepRow {
                    commit_created: None,
                    ..row
                })))
            }
        }
    }

    /// Whether a step that was interrupted is known to have left files, branch and HEAD as it had
    /// found them.
    async fn did_nothing(&self, row: &StepRow) -> Result<bool, Error> {
        let (Some(before), Some(after)) = (&row.snapshot_before, &row.snapshot_after) else {
            return Ok(false);
        };
        let (before, after) = (before.clone(), after.clone());
        let reader = &self.inner.core.parts.reader;
        let found =
            reader.read(move |store| Ok(store.snapshot(&before)?.zip(store.snapshot(&after)?)));
        Ok(found.await?.is_some_and(|(before, after)| {
            let (before, after) = (&before.snapshot, &after.snapshot);
            before.same_content(after) && same_head(before, after)
        }))
    }

    /// Whether there are bytes to go back to where a step began.
    async fn kept_content(&self, place: &StepPlace, row: &StepRow) -> Result<bool, Error> {
        let Some(before) = row.snapshot_before.clone() else {
            return Ok(false);
        };
        let reader = &self.inner.core.parts.reader;
        let found = reader.read(move |store| store.snapshot(&before)).await?;
        let is_known = found.and_then(|row| row.snapshot.metadata.has_content);
        Ok(is_known.unwrap_or_else(|| {
            let retains = place.opened.options.retain_content;
            place.backend.kind() != BackendKind::Hash || !retains.is_never()
        }))
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
                    snapshot_name::known_snapshot(store, &id, &workspace)
                };
                let [before, after] = ids;
                Ok([known(before)?, known(after)?])
            })
            .await?;
        let what = "going back to the beginning of a step";
        self.put_back(before, after, what, true).await
    }

    /// Takes back what a tool did between two snapshots.
    pub(crate) async fn take_back(&self, before: Snapshot, after: Snapshot) -> Result<(), Error> {
        self.put_back(before, after, "taking back a tool", false)
            .await
    }

    /// Takes back what happened between `before` and `after`, in files, index and branch.
    ///
    /// `is_later`: others may have worked here since. Where they moved the branch that is
    /// `HeadMoved`, and nothing is touched: files would not be those of any commit then.
    async fn put_back(
        &self,
        before: Snapshot,
        after: Snapshot,
        what: &'static str,
        is_later: bool,
    ) -> Result<(), Error> {
        let Some(place) = self.inner.place.clone() else {
            return Ok(());
        };
        let core = &self.inner.core;
        let parts = core.parts.clone();
        let session_id = self.inner.session_id.clone();
        let hold = self.inner.hold.clone();
        let lock_timeout = parts.settings.lock_timeout;
        let workspace = place.opened.workspace.clone();
        turn::work(core, &workspace, what, lock_timeout, move |locked| {
            if is_later {
                let label = Label::new(capture::NOW);
                let (opened, run) = (&place.opened, Some(&hold.run_id));
                let options = opened.snapshot_options(&parts, label, &session_id, run);
                let now = place.backend.snapshot(&Operation::unbounded(), locked, &options)?;
                place
                    .backend
                    .forget(&Operation::unbounded(), locked, std::slice::from_ref(&now.id), &[])?;
                let is_known = [&before, &after].iter().any(|known| same_head(known, &now));
                if !is_known {
                    return Err(Error::new(
                        ErrorKind::HeadMoved,
                        format!(
                            "{HEAD_MOVED}, so that it is not gone back from; {IN_PLACE}; nothing was touched"
                        ),
                    ));
                }
            }
            let way = WayBack {
                before,
                after,
                session_id,
                hold,
                purpose: RestorePurpose::Step,
            };
            restore::go_back(&parts, locked, &*place.backend, &place.opened, way)?;
            Ok(())
        })
        .await
    }
}
