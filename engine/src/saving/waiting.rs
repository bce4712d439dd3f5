//! What is on record of a task while runs work on it and when it waits for input.

use serde::Deserialize;
use serde_json::Value;
use stillframe_backends::ErrorKind;

use crate::actors::core::Core;
use crate::branches::{claim, notices, standing};
use crate::error::Error;
use crate::events::branch_data::{CheckpointReady, FollowUpMoved};
use crate::events::data::data;
use crate::events::event::{Event, EventType};
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::{RunId, SessionId, WorkTaskId};
use crate::records::block::Block;
use crate::records::follow_up::{FollowUpInput, FollowUpRow};
use crate::records::notice::NoticeRow;
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

/// What a run waits with that is blocked, and whose work in each of its repositories `works` tells
/// of, the run's own first; `None`: one is not proven to be on a branch.
///
/// People are told of the run's own, where they answer.
pub(crate) async fn waits(
    core: &Core,
    (session_id, run_id): (&SessionId, &RunId),
    block: &Block,
    works: &[(WorkTaskId, SavedWork)],
) -> Result<Option<Waits>, Error> {
    let (mut said, mut changes) = (None, Vec::new());
    for (task_id, saved) in works {
        let Some((task, row, earlier)) = proven(core, run_id, block, (task_id, saved)).await?
        else {
            return Ok(None);
        };
        let ready = CheckpointReady {
            task_id,
            branch: &row.branch,
            commit: &row.last_checkpoint,
            reason: &row.waiting_reason,
        };
        let (told, at) = (EventType::CHECKPOINT_READY, row.updated_at);
        let event = NewEvent::new(told, session_id, Some(run_id), at, ready);
        changes.push(Change::Append(event));
        if said.is_none() {
            said = Some(data(&moved(&row, None)));
            let default_branch = saved.default_branch.as_deref();
            let notice = notices::ready(
                &task,
                (session_id, run_id),
                &row,
                (default_branch, &earlier),
                at,
            );
            changes.push(of_branch(BranchChange::AddNotice(notice)));
        }
        changes.push(of_branch(BranchChange::PutFollowUp(row)));
    }
    Ok(said.map(|said| Waits { said, changes }))
}

/// What the run's task waits with, with that task and all notices; `None`: its work is not proven
/// to be on a branch.
async fn proven(
    core: &Core,
    run_id: &RunId,
    block: &Block,
    (task_id, saved): (&WorkTaskId, &SavedWork),
) -> Result<Option<(WorkTaskRow, FollowUpRow, Vec<NoticeRow>)>, Error> {
    // What was proven before is not proven at this moment.
    let is_seen = matches!(
        saved.state,
        SavedState::Pushed
            | SavedState::NoChanges
            | SavedState::Recovered
            | SavedState::PushedBeside
    );
    let Some(commit) = saved.commit.clone().filter(|_| is_seen) else {
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
    let row = claim::waiting(block, &checkpoint, core.parts.now());
    Ok(row.map(|row| (task, row, earlier)))
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
            Err(_) => Err(waits_for_input(store, &task)?),
        }
    };
    core.parts.reader.read_with(read).await
}

/// That a task is not gone on with, because it waits for input.
pub(crate) fn waits_for_input(
    store: &dyn StateStore,
    task: &WorkTaskRow,
) -> Result<Error, StateError> {
    let (name, waiting) = (task.full_name(), waiting_run(store, &task.id)?);
    let of = waiting.as_ref().map_or(task, |(_, of)| of).full_name();
    let with = match of == name {
        true => String::new(),
        false => format!(" with task {of}"),
    };
    let run = match waiting {
        Some((run, _)) => format!(", and \"stillframe cancel {}\" gives it up", run.id),
        None => String::new(),
    };
    let message = format!(
        "task {name} waits{with} for input: \"stillframe task follow-up {of} --input-id N --text TEXT\" goes on with it{run}; nothing was done"
    );
    Ok(Error::new(ErrorKind::Conflict, message))
}

/// What is written with the begin of a run that goes on with a further task of its, which waits as
/// the run's own does.
///
/// # Errors
///
/// `Conflict`: the task does not wait. Nothing was done.
pub(crate) async fn gone_on(
    core: &Core,
    task_id: &WorkTaskId,
    run_id: &RunId,
) -> Result<Change, Error> {
    let (asked, run_id, at) = (task_id.clone(), run_id.clone(), core.parts.now());
    let read = move |store: &dyn StateStore| {
        let task = store.work_task(&asked)?;
        let task = task.ok_or_else(|| Error::not_found(format!("there is no task {asked}")))?;
        match standing::gone_on(&task, &run_id, at) {
            Ok(row) => Ok(of_branch(BranchChange::MoveTask(row))),
            Err(_) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "task {} is {}, and does not wait with run {run_id}; nothing was done",
                    task.full_name(),
                    task.status
                ),
            )),
        }
    };
    core.parts.reader.read_with(read).await
}

/// What is written with what happens to a run, of the tasks that it works on or waits for.
pub(crate) async fn ended(
    core: &Core,
    run_id: &RunId,
    event: RunEvent,
    why: Option<&Failure>,
) -> Result<Vec<Change>, Error> {
    let asked = run_id.clone();
    let read = move |store: &dyn StateStore| {
        let mut tasks = store.work_tasks_of_run(&asked)?;
        if tasks.is_empty()
            && event == RunEvent::Cancelled
            && let Some(run) = store.run(&asked)?
            && run.status == RunStatus::AwaitingFollowup
        {
            tasks = all_waited_for(store, &run)?;
        }
        let mut found = Vec::new();
        for task in tasks {
            let not_saved = match event {
                RunEvent::Unproven => store.checkpoints(&task.id)?.pop(),
                _ => None,
            };
            found.push((task, not_saved.and_then(|row| row.failure)));
        }
        Ok(found)
    };
    let found = core.parts.reader.read(read).await?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let at = core.parts.now();
    let after = found
        .iter()
        .filter_map(|(task, not_saved)| standing::ended(task, event, (why, *not_saved), at));
    let changes = after.flat_map(|after| {
        let waits = after.status == WorkTaskStatus::AwaitingFollowup;
        let dropped = (!waits).then(|| BranchChange::DropFollowUp(after.id.clone()));
        let moved = BranchChange::MoveTask(after);
        [Some(moved), dropped].into_iter().flatten()
    });
    Ok(changes.map(of_branch).collect())
}

/// The run that waits with a task, and the task that it waits for input of: this one, or that of
/// the run's own repository.
pub(crate) fn waiting_run(
    store: &dyn StateStore,
    task_id: &WorkTaskId,
) -> Result<Option<(RunRow, WorkTaskRow)>, StateError> {
    let waits = |(_, tasks): &(RunRow, Vec<WorkTaskRow>)| tasks.iter().any(|t| t.id == *task_id);
    let found = waiting_runs(store)?.into_iter().find(waits);
    Ok(found.map(|(run, mut tasks)| (run, tasks.swap_remove(0))))
}

/// The runs that wait for input, each with its tasks, that of its own repository first.
pub(crate) fn waiting_runs(
    store: &dyn StateStore,
) -> Result<Vec<(RunRow, Vec<WorkTaskRow>)>, StateError> {
    let filter = RunFilter {
        statuses: vec![RunStatus::AwaitingFollowup],
        ..RunFilter::default()
    };
    let mut all = Vec::new();
    for run in store.runs(&filter)? {
        let tasks = all_waited_for(store, &run)?;
        all.push((run, tasks));
    }
    Ok(all)
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

/// The tasks that a run which waits for input is of, that of its own repository first; empty: it
/// does not wait.
fn all_waited_for(store: &dyn StateStore, run: &RunRow) -> Result<Vec<WorkTaskRow>, StateError> {
    #[derive(Deserialize)]
    struct Said {
        task_id: WorkTaskId,
    }
    let Some(own) = waited_for(store, run)? else {
        return Ok(Vec::new());
    };
    let mut tasks = vec![own];
    for event in told(store, run, EventType::CHECKPOINT_READY)? {
        let Ok(said) = Said::deserialize(event.data) else {
            continue;
        };
        if tasks.iter().all(|task| task.id != said.task_id) {
            tasks.extend(store.work_task(&said.task_id)?);
        }
    }
    Ok(tasks)
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

/// What the last event of this type says of a run.
fn last_told(
    store: &dyn StateStore,
    run: &RunRow,
    event_type: EventType,
) -> Result<Option<Value>, StateError> {
    Ok(told(store, run, event_type)?.pop().map(|event| event.data))
}

/// The events of this type of a run, which are kept as long as it has not ended.
fn told(
    store: &dyn StateStore,
    run: &RunRow,
    event_type: EventType,
) -> Result<Vec<Event>, StateError> {
    let query = EventQuery {
        event_types: vec![event_type],
        ..EventQuery::session(run.session_id.clone()).run(run.id.clone())
    };
    store.events(&query)
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
