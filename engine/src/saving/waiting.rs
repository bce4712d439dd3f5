//! What is on record of a task while runs work on it and when it waits for input.

use serde::Deserialize;
use serde_json::Value;
use stillframe_backends::ErrorKind;

use crate::actors::core::Core;
use crate::branches::{claim, notices, standing};
use crate::error::Error;
use crate::events::branch_data::{CheckpointReady, FollowUpMoved};
use crate::events::data::data;
use crate::events::event::EventType;
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::{RunId, SessionId, WorkTaskId};
use crate::records::block::Block;
use crate::records::follow_up::{FollowUpInput, FollowUpRow};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::records::saved_work::{SavedState, SavedWork};
use crate::records::work_task::{WorkTaskRow, WorkTaskStatus};
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;
use crate::state::{RunFilter, StateStore};

/// A blocked run whose work is proven to be on its branch.
pub(crate) struct Waits {
    /// What the event says that tells of it.
    pub(crate) said: Value,
    /// What is written with it.
    pub(crate) changes: Vec<Change>,
}

/// What a run waits with that is blocked, and whose work `saved` tells of; `None`: it is not proven to
/// be on a branch.
pub(crate) async fn waits(
    core: &Core,
    (session_id, run_id): (&SessionId, &RunId),
    task_id: &WorkTaskId,
    block: &Block,
    saved: Option<&SavedWork>,
) -> Result<Option<Waits>, Error> {
    // What was proven before is not proven at this moment.
    let seen = saved.filter(|saved| {
        let is_seen = [
            SavedState::Pushed,
            SavedState::NoChanges,
            SavedState::Recovered,
            SavedState::PushedBeside,
        ];
        is_seen.contains(&saved.state)
    });
    let default_branch = seen.and_then(|saved| saved.default_branch.as_deref());
    let Some(commit) = seen.and_then(|saved| saved.commit.clone()) else {
        return Ok(None);
    };
    let asked = task_id.clone();
    let read = move |store: &dyn StateStore| {
        let mut checkpoints = store.checkpoints(&asked)?.into_iter();
        let made = checkpoints.rfind(|row| row.commit == commit);
        Ok((store.work_task(&asked)?.zip(made), store.notices(false)?))
    };
    let (found, earlier) = core.parts.reader.read(read).await?;
    // A later run of the task has taken it over: nobody would go on with this one.
    let is_own = |task: &WorkTaskRow| task.active_run.as_ref() == Some(run_id);
    let Some((task, checkpoint)) = found.filter(|(task, _)| is_own(task)) else {
        return Ok(None);
    };
    let at = core.parts.now();
    let Some(row) = claim::waiting(block, &checkpoint, at) else {
        return Ok(None);
    };
    let ready = CheckpointReady {
        task_id,
        branch: &row.branch,
        commit: &row.last_checkpoint,
        reason: &row.waiting_reason,
    };
    let told = EventType::CHECKPOINT_READY;
    let changes = vec![
        Change::Append(NewEvent::new(told, session_id, Some(run_id), at, ready)),
        of_branch(BranchChange::AddNotice(notices::ready(
            &task,
            (session_id, run_id),
            &row,
            (default_branch, &earlier),
            at,
        ))),
        of_branch(BranchChange::PutFollowUp(row.clone())),
    ];
    let said = data(&moved(&row, None));
    Ok(Some(Waits { said, changes }))
}

/// What is written with the begin of a run that works on a task.
///
/// # Errors
///
/// `Conflict`: the task waits for input. Nothing was done.
pub(crate) async fn begun(
    core: &Core,
    task_id: &WorkTaskId,
    run_id: &RunId,
) -> Result<Change, Error> {
    let (asked, run_id, at) = (task_id.clone(), run_id.clone(), core.parts.now());
    let read = move |store: &dyn StateStore| {
        let Some(task) = store.work_task(&asked)? else {
            return Err(Error::not_found(format!("there is no task {asked}")));
        };
        match standing::begun(&task, &run_id, at) {
            Ok(row) => Ok(of_branch(BranchChange::MoveTask(row))),
            Err(_) => Err(waits_for_input(&task, waiting_run(store, &asked)?.as_ref())),
        }
    };
    core.parts.reader.read_with(read).await
}

/// That a task is not gone on with, because it waits for input.
pub(crate) fn waits_for_input(task: &WorkTaskRow, run: Option<&RunRow>) -> Error {
    let name = task.full_name();
    let run = match run {
        Some(run) => format!(", and \"stillframe cancel {}\" gives it up", run.id),
        None => String::new(),
    };
    let message = format!(
        "task {name} waits for input: \"stillframe task follow-up {name} --input-id N --text TEXT\" goes on with it{run}; nothing was done"
    );
    Error::new(ErrorKind::Conflict, message)
}

/// What is written with what happens to a run, of the task that it works on or waits for.
pub(crate) async fn ended(
    core: &Core,
    run_id: &RunId,
    event: RunEvent,
    why: Option<&Failure>,
) -> Result<Vec<Change>, Error> {
    let asked = run_id.clone();
    let read = move |store: &dyn StateStore| {
        if let Some(task) = store.work_task_of_run(&asked)? {
            let not_saved = match event {
                RunEvent::Unproven => store.checkpoints(&task.id)?.pop(),
                _ => None,
            };
            return Ok(Some((task, not_saved.and_then(|row| row.failure))));
        }
        if event != RunEvent::Cancelled {
            return Ok(None);
        }
        let task = match store.run(&asked)? {
            Some(run) if run.status == RunStatus::AwaitingFollowup => waited_for(store, &run)?,
            _ => None,
        };
        Ok(task.map(|task| (task, None)))
    };
    let found = core.parts.reader.read(read).await?;
    let after = found.and_then(|(task, not_saved)| {
        standing::ended(&task, event, (why, not_saved), core.parts.now())
    });
    let Some(after) = after else {
        return Ok(Vec::new());
    };
    let waits = after.status == WorkTaskStatus::AwaitingFollowup;
    let dropped = (!waits).then(|| BranchChange::DropFollowUp(after.id.clone()));
    let moved = BranchChange::MoveTask(after);
    Ok([Some(moved), dropped]
        .into_iter()
        .flatten()
        .map(of_branch)
        .collect())
}

/// The run that waits for input of a task.
pub(crate) fn waiting_run(
    store: &dyn StateStore,
    task_id: &WorkTaskId,
) -> Result<Option<RunRow>, StateError> {
    let filter = RunFilter {
        statuses: vec![RunStatus::AwaitingFollowup],
        ..RunFilter::default()
    };
    for run in store.runs(&filter)? {
        if waited_for(store, &run)?.is_some_and(|task| task.id == *task_id) {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// What a run waits with; `None`: it does not wait for input.
pub(crate) fn waits_with(
    store: &dyn StateStore,
    run: &RunRow,
) -> Result<Option<FollowUpRow>, StateError> {
    if run.status != RunStatus::AwaitingFollowup {
        return Ok(None);
    }
    match waited_for(store, run)? {
        Some(task) => store.follow_up(&task.id),
        None => Ok(None),
    }
}

/// The task that a run which waits for input is of.
pub(crate) fn waited_for(
    store: &dyn StateStore,
    run: &RunRow,
) -> Result<Option<WorkTaskRow>, StateError> {
    #[derive(Deserialize)]
    struct Said {
        task_id: WorkTaskId,
    }
    let told = last_told(store, run, EventType::FOLLOWUP_WAITING)?;
    match told.and_then(|said| Said::deserialize(said).ok()) {
        Some(said) => store.work_task(&said.task_id),
        None => Ok(None),
    }
}

/// The input that a run goes on with; `None`: it has had none.
pub(crate) fn input_of(
    store: &dyn StateStore,
    run: &RunRow,
) -> Result<Option<FollowUpInput>, StateError> {
    #[derive(Deserialize)]
    struct Said {
        input_id: u64,
        text: String,
    }
    let told = last_told(store, run, EventType::FOLLOWUP_RESUMED)?;
    let said = told.and_then(|said| Said::deserialize(said).ok());
    Ok(said.map(|said| FollowUpInput::new(said.input_id, said.text)))
}

/// What the last event of this type says of a run, which are kept as long as it has not ended.
fn last_told(
    store: &dyn StateStore,
    run: &RunRow,
    event_type: EventType,
) -> Result<Option<Value>, StateError> {
    let query = EventQuery {
        event_types: vec![event_type],
        ..EventQuery::session(run.session_id.clone()).run(run.id.clone())
    };
    Ok(store.events(&query)?.pop().map(|event| event.data))
}

/// What an event says of a task that waits, or is gone on with. `by`: the input, and the run.
pub(crate) fn moved<'a>(row: &'a FollowUpRow, by: Option<(u64, &'a RunId)>) -> FollowUpMoved<'a> {
    FollowUpMoved {
        task_id: &row.task_id,
        branch: &row.branch,
        text: None,
        input_id: by.map(|(id, _)| id),
        run_id: by.map(|(_, run)| run),
        recovered: false,
    }
}

fn of_branch(change: BranchChange) -> Change {
    Change::Branch(Box::new(change))
}
