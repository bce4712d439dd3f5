//! Commits from inside a step: the intent is recorded, the commit is made, and the result is
//! recorded.

use jiff::Timestamp;
use stillframe_backends::{
    Backend, CommitIntent, CommitRequest, Interrupt, Label, LockedWorkspace, Operation, Signature,
    Snapshot, seeded_bug,
};
use tokio_util::sync::CancellationToken;

use super::captures::stoppable;
use super::{StepLog, StepPlace};
use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::{CommitRecorded, CommitWanted};
use crate::events::event::EventType;
use crate::id::{EffectId, StepId};
use crate::records::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::state::change::{Change, NewEvent};
use crate::step::commit::CommitOptions;
use crate::workspace::effects::{self, Occasion};
use crate::workspace::{capture, turn};

/// The lines at the end of a message that say whose commit it is.
const RUN_TRAILER: &str = "Stillframe-Run";
const STEP_TRAILER: &str = "Stillframe-Step";

/// A commit that a step has requested and that is under way.
struct StepCommit {
    log: StepLog,
    place: StepPlace,
    step_id: StepId,
    options: CommitOptions,
    op: Operation,
}

impl StepLog {
    /// Commits what differs from the branch; `None`: nothing does.
    pub(crate) async fn make_commit(
        &self,
        step_id: &StepId,
        options: CommitOptions,
        cancellation: &CancellationToken,
    ) -> Result<Option<CommitRecord>, Error> {
        let place = self.commit_place()?;
        let interrupt = Interrupt::never();
        let wanted = StepCommit {
            log: self.clone(),
            place: place.clone(),
            step_id: step_id.clone(),
            options,
            op: Operation::unbounded().cancelled_by(&interrupt),
        };
        let (log, told) = (self.clone(), cancellation.clone());
        self.to_the_end(async move {
            let parts = log.inner.core.parts.clone();
            let lock_timeout = parts.settings.lock_timeout;
            let workspace = place.opened.workspace.clone();
            let core = &log.inner.core;
            let work = turn::work(core, &workspace, "a commit", lock_timeout, move |locked| {
                wanted.carry_out(&parts, locked)
            });
            stoppable(work, &told, &interrupt).await
        })
        .await
    }

    /// Puts a commit on record that something else has made.
    pub(crate) async fn record_commit(
        &self,
        step_id: &StepId,
        commit: &str,
    ) -> Result<CommitRecord, Error> {
        let place = self.commit_place()?;
        let (log, step_id, commit) = (self.clone(), step_id.clone(), commit.to_owned());
        self.to_the_end(async move {
            let parts = log.inner.core.parts.clone();
            let (workspace, asked) = (place.opened.workspace.clone(), commit.clone());
            let info = parts
                .blocking
                .run(move || {
                    let repository = place.backend.committing()?;
                    repository.commit_info(&Operation::unbounded(), &workspace, &asked)
                })
                .await??;
            let run_id = log.run_id();
            let record = CommitRecord::of_git(info, run_id, Some(&step_id), parts.now());
            let said = CommitRecorded {
                step_id: &step_id,
                commit: &record.commit,
            };
            let changes = vec![
                Change::RecordCommit(Box::new(record.clone())),
                Change::SetStepCommit {
                    run_id: run_id.clone(),
                    step_id: step_id.clone(),
                    commit: record.commit.clone(),
                },
                log.event(EventType::COMMIT_RECORDED, said),
            ];
            log.commit(changes).await?;
            let id = record.commit.clone();
            // Whose it is, if it was known before.
            let kept = parts
                .reader
                .read(move |store| store.commit_record("git", &id));
            Ok(kept.await?.unwrap_or(record))
        })
        .await
    }

    fn commit_place(&self) -> Result<StepPlace, Error> {
        self.inner.place.clone().ok_or_else(|| {
            Error::invalid_options("the run has no workspace, so that there is nothing to commit")
        })
    }
}

impl StepCommit {
    /// The whole way of a commit. The workspace is held.
    fn carry_out(
        self,
        parts: &Parts,
        locked: &mut LockedWorkspace,
    ) -> Result<Option<CommitRecord>, Error> {
        let backend = &*self.place.backend;
        let now = self.captured(parts, locked, backend)?;
        let intent = self.intent(parts, locked, backend, &now);
        // It has served; recovery forgets one that is left.
        backend.forget(
            &Operation::unbounded(),
            locked,
            std::slice::from_ref(&now.id),
            &[],
        )?;
        let (intent, known) = intent?;
        let Some(intent) = intent else {
            return Ok(known);
        };
        let effect = self.pending(parts, locked, intent)?;
        let session_id = &self.log.inner.session_id;
        let for_step = Occasion::Step(Box::new(self.log.inner.hold.fence()));
        effects::carry_out(parts, locked, backend, &effect, session_id, &for_step).map(Some)
    }

    fn captured(
        &self,
        parts: &Parts,
        locked: &LockedWorkspace,
        backend: &dyn Backend,
    ) -> Result<Snapshot, Error> {
        let run = Some(self.log.run_id());
        let session_id = &self.log.inner.session_id;
        let label = Label::new(capture::NOW);
        let opened = &self.place.opened;
        let options = opened.snapshot_options(parts, label, session_id, run);
        Ok(backend.snapshot(&self.op, locked, &options)?)
    }

    /// The commit that is to be made; without one, the same of the step's own that is in place
    /// already.
    fn intent(
        &self,
        parts: &Parts,
        locked: &mut LockedWorkspace,
        backend: &dyn Backend,
        now: &Snapshot,
    ) -> Result<(Option<CommitIntent>, Option<CommitRecord>), Error> {
        let run_id = self.log.run_id();
        let earlier = parts.reader.read_blocking(|store| store.effects(run_id))?;
        let of_step = || earlier.iter().filter(|row| row.step_id == self.step_id);
        let mut request = CommitRequest::new(&self.options.message, parts.now())
            .trailer(RUN_TRAILER, run_id.as_str())
            .trailer(STEP_TRAILER, self.step_id.as_str())
            .paths(self.options.paths.clone());
        if let Some(author) = &self.options.author {
            request = request.author(author.clone());
        }
        let repository = backend.committing()?;
        let Some(intent) = repository.prepare_commit(&self.op, locked, &now.id, &request)? else {
            let message = request.whole_message()?;
            let is_asked_for = |row: &EffectRow| {
                let is_author = |author: &Signature| row.intent.signature == *author;
                row.step_id == self.step_id
                    && row.intent.message == message
                    && row.intent.paths == request.paths
                    && request.author.as_ref().is_none_or(is_author)
            };
            let head = now.metadata.head_ref.as_deref();
            let known = match in_place(&earlier, head).find(|row| is_asked_for(row)) {
                Some(EffectRow {
                    commit: Some(commit),
                    ..
                }) => parts
                    .reader
                    .read_blocking(|store| store.commit_record("git", commit))?,
                _ => None,
            };
            return Ok((None, known));
        };
        // What an earlier attempt at the step made, and was gone back from, is the same commit
        // again.
        let same =
            of_step().find(|row| is_same(&row.intent, &intent) && !seeded_bug!("commit-made-anew"));
        let again = match same {
            Some(row) => {
                request.at = at_second(row.intent.time);
                repository.prepare_commit(&self.op, locked, &now.id, &request)?
            }
            None => None,
        };
        Ok((Some(again.unwrap_or(intent)), None))
    }

    /// The effect, which is on record as pending then.
    fn pending(
        &self,
        parts: &Parts,
        locked: &LockedWorkspace,
        intent: CommitIntent,
    ) -> Result<EffectRow, Error> {
        let run_id = self.log.run_id();
        let earlier = parts.reader.read_blocking(|store| store.effects(run_id))?;
        let found = earlier
            .into_iter()
            .find(|row| row.step_id == self.step_id && row.intent == intent);
        let at = parts.now();
        let from = found.as_ref().map(|row| row.status);
        let effect = EffectRow {
            id: found
                .as_ref()
                .map_or_else(EffectId::random, |row| row.id.clone()),
            run_id: run_id.clone(),
            step_id: self.step_id.clone(),
            workspace_id: locked.id().to_owned(),
            status: EffectStatus::Pending,
            intent,
            commit: None,
            error: None,
            created_at: found.map_or(at, |row| row.created_at),
            ended_at: None,
        };
        let wanted = Change::PutEffect {
            from,
            row: Box::new(effect.clone()),
        };
        let said = CommitWanted {
            effect_id: &effect.id,
            step_id: &effect.step_id,
            reference: &effect.intent.reference,
            parent: effect.intent.parent.as_deref(),
            tree: &effect.intent.tree,
        };
        let session_id = &self.log.inner.session_id;
        let told = NewEvent::new(EventType::COMMIT_WANTED, session_id, Some(run_id), at, said);
        let changes = vec![self.log.inner.hold.fence(), wanted, Change::Append(told)];
        parts.writer.commit_blocking(changes)?;
        Ok(effect)
    }
}

/// The commits of a run that are at `head`, and below it with nobody else's between, latest first.
fn in_place<'r>(
    earlier: &'r [EffectRow],
    head: Option<&'r str>,
) -> impl Iterator<Item = &'r EffectRow> {
    let made = move |commit: &str| {
        earlier
            .iter()
            .rfind(|row| row.status == EffectStatus::Done && row.commit.as_deref() == Some(commit))
    };
    let below = move |row: &&'r EffectRow| row.intent.parent.as_deref().and_then(made);
    // No more than there are, whatever is on record.
    std::iter::successors(head.and_then(made), below).take(earlier.len())
}

/// The moment of a commit that was made before.
fn at_second(time: i64) -> Timestamp {
    Timestamp::from_second(time).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Whether two commits differ in nothing but their time.
fn is_same(one: &CommitIntent, other: &CommitIntent) -> bool {
    one.reference == other.reference
        && one.parent == other.parent
        && one.tree == other.tree
        && one.message == other.message
        && one.signature == other.signature
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_commits_are_the_same_if_only_their_time_differs() {
        let one = CommitIntent {
            reference: "refs/heads/main".into(),
            parent: None,
            tree: "t".into(),
            message: "m".into(),
            signature: Signature::new("n", "e"),
            time: 1,
            commit: "c".into(),
            index: None,
            paths: Vec::new(),
        };
        let later = CommitIntent {
            time: 2,
            commit: "d".into(),
            index: Some("i".into()),
            ..one.clone()
        };
        assert!(is_same(&one, &later));
        let other = CommitIntent {
            tree: "u".into(),
            ..later
        };
        assert!(!is_same(&one, &other));
    }
}
