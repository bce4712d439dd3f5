//! The end of a run: the only code that writes it.
//!
//! Every end is one transaction: the steps that were under way, the questions that are withdrawn,
//! the operation that can be undone, the outcome, the status and the last event.

use serde::Serialize;
use serde_json::Value;
use stillframe_backends::SnapshotId;

use crate::actors::core::Core;
use crate::actors::run::Step;
use crate::error::Error;
use crate::events::data::{ErrorOccurred, data};
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::{EventId, RunId, SessionId};
use crate::records::block::Block;
use crate::records::operation::OperationRow;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::{RunEnding, RunRow};
use crate::records::step::{Closed, PhaseRow, StepRow};
use crate::saving::waiting;
use crate::state::StateStore;
use crate::state::change::{Change, NewEvent};
use crate::step::{answering, step_log};

/// How a run ends or is parked, or how its work ended that is saved before.
#[derive(Debug)]
pub(crate) struct End {
    /// What brings it about.
    pub(crate) event: RunEvent,
    /// The status that the run has until then; `None`: any that `event` leads away from.
    pub(crate) from: Option<RunStatus>,
    /// What refuses all of it if the run is somebody else's by then.
    pub(crate) right: Option<Change>,
    /// What the last event says.
    pub(crate) said: Value,
    /// Whether this is the end of a run whose engine or task was lost.
    pub(crate) is_recovered: bool,
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<Failure>,
    /// What its row says of what the adapter returned.
    pub(crate) output: Value,
    /// What its row says of the workspace.
    pub(crate) workspace: Value,
    /// What its work left; `None`: that had not begun.
    pub(crate) left: Option<Left>,
    /// What its adapter said of its block, if the run is blocked by this.
    pub(crate) block: Option<Box<Block>>,
    /// What else is written with it.
    pub(crate) changes: Vec<Change>,
}

/// What the work of a run left, as far as its end is concerned with it.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Its phases and steps, of which those that are under way end with it.
    pub(crate) steps: (Vec<PhaseRow>, Vec<StepRow>),
    /// The snapshot of what those steps left.
    pub(crate) after: Option<SnapshotId>,
    /// The operation for an undo; `None`: the run has no workspace, or what it did there is not
    /// known.
    pub(crate) changed: Option<Changed>,
    /// The guard of its rollback, which is on record with this end.
    pub(crate) guard: Option<SnapshotId>,
    /// What the engine could not do after the work, to be told before the end.
    pub(crate) problems: Vec<Failure>,
}

/// The workspace that a run changed, and between which snapshots.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) workspace_id: String,
    pub(crate) before: SnapshotId,
    pub(crate) after: SnapshotId,
}

impl Changed {
    /// What a run has changed whose work has ended, if both its snapshots are there.
    pub(crate) async fn on_record(core: &Core, run: &RunRow) -> Result<Option<Self>, Error> {
        let Some(workspace) = run.workspace.clone() else {
            return Ok(None);
        };
        let ids = (workspace.before.clone(), workspace.after.clone());
        let run_id = run.id.clone();
        let read = move |store: &dyn StateStore| {
            // What was done in a worktree of its own is nothing to be undone in the workspace.
            let is_isolated = store.isolation(&run_id)?.is_some();
            let [before, after] = [store.snapshot(&ids.0)?, store.snapshot(&ids.1)?];
            Ok(!is_isolated && before.is_some() && after.is_some())
        };
        let are_there = core.parts.reader.read(read).await?;
        Ok(are_there.then_some(Self {
            workspace_id: workspace.workspace_id,
            before: workspace.before,
            after: workspace.after,
        }))
    }
}

impl End {
    /// An end of a run whose work had ended before, as the row has it.
    pub(crate) fn of_row(event: RunEvent, said: impl Serialize, run: &RunRow) -> Self {
        Self {
            exit_code: run.exit_code,
            error: run.error.clone(),
            output: run.output.clone(),
            workspace: run.summary.clone(),
            ..Self::new(event, said)
        }
    }

    /// An end without an outcome, of a run whose work had not begun.
    pub(crate) fn new(event: RunEvent, said: impl Serialize) -> Self {
        Self {
            event,
            from: None,
            right: None,
            said: data(&said),
            is_recovered: false,
            exit_code: None,
            error: None,
            output: Value::Null,
            workspace: Value::Null,
            left: None,
            block: None,
            changes: Vec::new(),
        }
    }
}

/// Ends a run or parks it, or writes down how its work ended before that is saved: all of it is
/// durable on `Ok`, and nothing is written on `Err`.
///
/// # Errors
///
/// `Conflict`: the run is somebody else's, has ended, or moved meanwhile; or it was to rest, and
/// somebody has asked for its end.
pub(crate) async fn end_run(
    core: &Core,
    (session_id, run_id): (&SessionId, &RunId),
    end: End,
) -> Result<(), Error> {
    let at = core.parts.now();
    let is_rest = end.event.is_rest();
    let mut changes = Vec::from_iter(end.right);
    changes.extend(Box::pin(waiting::ended(core, run_id, end.event, end.error.as_ref())).await?);
    changes.extend(end.changes);
    if let Some(left) = &end.left {
        changes.extend(step_log::closing_changes(
            core,
            (session_id, run_id),
            &left.steps,
            Closed::of(end.event),
            left.after.as_ref(),
            end.is_recovered,
        ));
    }
    // What was proven is on record whatever somebody wants since; it is cancelled from there. What
    // is handed in is declined from there.
    if is_rest && !matches!(end.event, RunEvent::Proven | RunEvent::HandedIn) {
        changes.push(Change::RefuseIfCancelled(run_id.clone()));
    }
    if let Some(left) = end.left {
        if !is_rest {
            changes.extend(answering::withdrawal(core, (session_id, run_id)).await?);
            changes.extend(left.changed.map(|changed| {
                let Changed {
                    workspace_id,
                    before,
                    after,
                } = changed;
                let snapshots = (&before, &after);
                let row = OperationRow::of_run(session_id, run_id, &workspace_id, snapshots, at);
                Change::AddOperation(Box::new(row))
            }));
        }
        changes.extend(left.guard.map(Change::EndRestore));
        changes.extend(left.problems.iter().map(|problem| {
            let (told, said) = (EventType::ERROR_OCCURRED, ErrorOccurred::from(problem));
            Change::Append(NewEvent::new(told, session_id, Some(run_id), at, said))
        }));
    }
    let ending = RunEnding {
        exit_code: end.exit_code,
        error: end.error,
        output: end.output,
        workspace: end.workspace,
    };
    let step = Step {
        run_id: run_id.clone(),
        event: end.event,
        from: end.from,
        event_id: EventId::random(),
        data: end.said,
        // Nothing has ended that can be resumed.
        ending: (!is_rest).then(|| Box::new(ending)),
        block: end.block,
        changes,
    };
    let tells = step.event == RunEvent::Proven;
    core.step_run(session_id, step).await?;
    if tells {
        core.parts.notice_bell.notify_one();
    }
    Ok(())
}
