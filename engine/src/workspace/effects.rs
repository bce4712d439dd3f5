//! Carrying out the effects of steps on a repository, and settling those that a crash interrupted,
//! by looking at the repository.

use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use stillframe_backends::{
    Backend, BackendKind, CommitError, CommitOutcome, ErrorKind, LockedWorkspace, Operation,
};

use crate::actors::Parts;
use crate::blocking::panic_text;
use crate::error::{Error, chain};
use crate::events::data::{CommitCreated, CommitFailed, Reason};
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::SessionId;
use crate::records::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::records::run::RunStatus;
use crate::records::step::StepStatus;
use crate::state::change::{Change, NewEvent};
use crate::workspace::{backends, capture};

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// For whom an effect is carried out.
#[derive(Clone, Debug)]
pub(crate) enum Occasion {
    /// For its step. What came of it is written with this, so that nothing is if the run was taken
    /// over.
    Step(Box<Change>),
    /// A crash left it, in a step that is under way by the record.
    Recovery,
    /// Its step was interrupted or has ended. What that did is known, and nothing is added to it.
    TooLate,
}

impl Occasion {
    /// For an effect that is found pending. `step`: its step, if that is on record.
    fn of_leftover(run: RunStatus, step: Option<StepStatus>) -> Self {
        match step {
            Some(StepStatus::Running) if run.is_at_work() => Self::Recovery,
            _ => Self::TooLate,
        }
    }

    fn is_recovery(&self) -> bool {
        !matches!(self, Self::Step(_))
    }

    /// These changes, with what has to hold for them.
    fn guarded(&self, changes: Vec<Change>) -> Vec<Change> {
        let fence = match self {
            Self::Step(fence) => Some((**fence).clone()),
            Self::Recovery | Self::TooLate => None,
        };
        fence.into_iter().chain(changes).collect()
    }
}

/// Carries out an effect that is on record as pending, or what is left of it, and writes down what
/// came of it.
///
/// `Err`: it could not be carried out, which is on record too, unless it could not be written down;
/// then it is settled when the workspace is used next.
pub(crate) fn carry_out(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    effect: &EffectRow,
    session_id: &SessionId,
    occasion: &Occasion,
) -> Result<CommitRecord, Error> {
    let (commit, is_adopted) = match apply(locked, backend, effect, occasion) {
        Ok(applied) => applied,
        // It is made, and what is left is done when the workspace is used next.
        Err(NotApplied::Unfinished(e)) => {
            parts.lock.leave_work();
            return Err(e.touched_if(true));
        }
        Err(NotApplied::Later(e)) => return Err(e),
        Err(NotApplied::Never(e)) => return Err(fail(parts, effect, session_id, e, occasion)),
    };
    let (at, run_id, step_id) = (parts.now(), &effect.run_id, &effect.step_id);
    let op = &Operation::unbounded();
    let info = backend
        .committing()
        .and_then(|repository| repository.commit_info(op, locked, &commit));
    let record = match info {
        Ok(info) => CommitRecord::of_git(info, run_id, Some(step_id), at),
        // It is made, whatever cannot be read of what it replaced.
        Err(e) => {
            let because = e.source().map_or_else(|| e.to_string(), chain);
            tracing::warn!(commit, because, "what it changed is not counted");
            CommitRecord::of_effect(effect, &commit, at)
        }
    };
    let said = CommitCreated {
        effect_id: &effect.id,
        step_id,
        commit: &commit,
        parent: effect.intent.parent.as_deref(),
        reference: &effect.intent.reference,
        is_adopted,
        recovered: occasion.is_recovery(),
    };
    let done = EffectRow {
        status: EffectStatus::Done,
        commit: Some(commit.clone()),
        error: None,
        ended_at: Some(at),
        ..effect.clone()
    };
    let event_type = EventType::COMMIT_CREATED;
    let told = NewEvent::new(event_type, session_id, Some(run_id), at, said);
    let changes = vec![
        Change::PutEffect {
            from: Some(EffectStatus::Pending),
            row: Box::new(done),
        },
        Change::RecordCommit(Box::new(record.clone())),
        Change::SetStepCommit {
            run_id: run_id.clone(),
            step_id: step_id.clone(),
            commit,
        },
        Change::Append(told),
    ];
    capture::keep(parts, occasion.guarded(changes))?;
    Ok(record)
}

/// Why a commit is not in place.
enum NotApplied {
    /// It cannot be put there.
    Never(Error),
    /// Somebody has the repository now; the next look may find it free.
    Later(Error),
    /// It is made, and not everything beside it.
    Unfinished(Error),
}

/// Has the backend make the commit, or what is left of it. Answers with its id, and whether
/// somebody else had made it.
fn apply(
    locked: &mut LockedWorkspace,
    backend: &dyn Backend,
    effect: &EffectRow,
    occasion: &Occasion,
) -> Result<(String, bool), NotApplied> {
    let op = &Operation::unbounded();
    let mut apply = || {
        let repository = backend.committing()?;
        match occasion {
            Occasion::Step(_) | Occasion::Recovery => {
                repository.apply_commit(op, locked, &effect.intent)
            }
            Occasion::TooLate => repository.adopt_commit(op, locked, &effect.intent),
        }
    };
    let applied = match apply() {
        // Whatever was in the way may have been there for a moment.
        Err(CommitError::Incomplete { .. }) => apply(),
        applied => applied,
    };
    match applied {
        Ok(CommitOutcome::InPlace { commit, is_adopted }) => Ok((commit, is_adopted)),
        Ok(CommitOutcome::RefMoved {
            reference,
            expected,
            found,
        }) => {
            let at = |id: Option<String>| id.unwrap_or_else(|| "nothing".to_owned());
            Err(NotApplied::Never(Error::new(
                ErrorKind::HeadMoved,
                format!(
                    "{reference} is at {}, not at {}, so that the commit was not put on it; nothing was touched",
                    at(found),
                    at(expected)
                ),
            )))
        }
        Ok(CommitOutcome::NotMade) => Err(NotApplied::Never(Error::new(
            ErrorKind::Conflict,
            "its step was cut off, or has ended, before the commit could be made, so that it is not made; nothing was touched",
        ))),
        Err(e @ CommitError::Incomplete { .. }) => Err(NotApplied::Unfinished(e.into())),
        Err(e) if occasion.is_recovery() && e.kind() == ErrorKind::Busy => {
            Err(NotApplied::Later(e.into()))
        }
        Err(e) => Err(NotApplied::Never(e.into())),
    }
}

/// Writes down that an effect cannot be carried out. The failure is the one to tell.
fn fail(
    parts: &Parts,
    effect: &EffectRow,
    session_id: &SessionId,
    error: Error,
    occasion: &Occasion,
) -> Error {
    let at = parts.now();
    let failure = Failure::from(&error);
    let said = CommitFailed {
        effect_id: &effect.id,
        step_id: &effect.step_id,
        why: Reason::from(&failure),
        recovered: occasion.is_recovery(),
    };
    let failed = EffectRow {
        status: EffectStatus::Failed,
        error: Some(failure),
        ended_at: Some(at),
        ..effect.clone()
    };
    let run_id = Some(&effect.run_id);
    let told = NewEvent::new(EventType::COMMIT_FAILED, session_id, run_id, at, said);
    let changes = vec![
        Change::PutEffect {
            from: Some(EffectStatus::Pending),
            row: Box::new(failed),
        },
        Change::Append(told),
    ];
    if let Err(e) = capture::keep(parts, occasion.guarded(changes)) {
        tracing::warn!(effect = %effect.id, error = %e.chain(), "its failure is not on record");
        // The next use of the workspace while the step is under way tries it again.
        return error.touched_if(true);
    }
    error
}

/// Settles the effects on this workspace that a crash left pending: carrying one out needs the lock
/// of the workspace, so no other process is doing that now. Effects that cannot be settled now do
/// not stop other work here.
pub(crate) fn settle(parts: &Parts, locked: &mut LockedWorkspace) -> Result<(), Error> {
    let workspace_id = locked.id().to_owned();
    let pending = parts
        .reader
        .read_blocking(move |store| store.pending_effects(&workspace_id));
    let pending = match pending {
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            tracing::warn!(error = %e.chain(), "effects are not settled");
            return Ok(());
        }
        pending => pending?,
    };
    if pending.is_empty() || locked.is_gone() {
        return Ok(());
    }
    let backend = backends::backend_of(parts, BackendKind::Git)?;
    for effect in pending {
        let found = parts
            .reader
            .read_blocking(|store| Ok((store.run(&effect.run_id)?, store.steps(&effect.run_id)?)));
        let (run, steps) = match found {
            Ok((Some(run), steps)) => (run, steps),
            Ok((None, _)) => continue,
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                tracing::warn!(effect = %effect.id, error = %e.chain(), "not settled");
                continue;
            }
            Err(e) => return Err(e),
        };
        // That of a run's own worktree, which has the same store, is settled there.
        let is_here = run
            .workspace
            .as_ref()
            .is_none_or(|place| place.path == locked.disk_path());
        let is_isolated = || parts.reader.read_blocking(|store| store.isolation(&run.id));
        if !is_here && is_isolated()?.is_some() {
            continue;
        }
        let step = steps.iter().find(|step| step.id == effect.step_id);
        let occasion = Occasion::of_leftover(run.status, step.map(|step| step.status));
        let session_id = &run.session_id;
        let look = || carry_out(parts, locked, &*backend, &effect, session_id, &occasion);
        // A defect in making commits must not stop other work here.
        let settled = catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|panic| {
            let message = format!(
                "an internal step failed: panicked at the commit: {}",
                panic_text(&*panic)
            );
            let error = Error::new(ErrorKind::Storage, message);
            Err(fail(parts, &effect, session_id, error, &occasion))
        });
        if let Err(e) = settled {
            tracing::warn!(effect = %effect.id, error = %e.chain(), "not carried out");
            if e.kind() == ErrorKind::Busy {
                parts.lock.leave_work();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_in_a_step_that_is_under_way_in_a_run_that_is_is_a_leftover_made() {
        let made = |run, step| matches!(Occasion::of_leftover(run, step), Occasion::Recovery);
        assert!(made(RunStatus::Running, Some(StepStatus::Running)));
        assert!(made(RunStatus::Asking, Some(StepStatus::Running)));
        // The run was claimed anew, and the step has not begun again.
        assert!(!made(RunStatus::Running, Some(StepStatus::Interrupted)));
        assert!(!made(RunStatus::Running, Some(StepStatus::Failed)));
        assert!(!made(RunStatus::Running, None));
        for at_rest in [
            RunStatus::Interrupted,
            RunStatus::WaitingForInput,
            RunStatus::AwaitingFollowup,
            // What it left was captured.
            RunStatus::Persisting,
            RunStatus::Blocked,
            RunStatus::Checkpointing,
            RunStatus::Cancelled,
        ] {
            assert!(!made(at_rest, Some(StepStatus::Running)), "{at_rest}");
        }
    }
}
