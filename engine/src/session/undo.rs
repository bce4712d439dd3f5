//! Undos: choosing the operation, choosing how much of it to undo, and undoing it.

use std::collections::BTreeSet;
use std::sync::Arc;

use stillframe_backends::{
    Backend, ErrorKind, Label, LockedWorkspace, Operation, RelPath, RepositoryRestore,
    RestoreError, RestoreGoal, RestoreOptions, SnapshotOptions, printable,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::id::SessionId;
use crate::options::{UndoRequest, UndoTarget};
use crate::records::operation::OperationRow;
use crate::records::restore_document::{
    self, RestorePurpose, RestoreStatus, UndoOutcome, UndoPlan, Undone,
};
use crate::records::run::RunStatus;
use crate::records::run_row::RunRow;
use crate::run::lock::RunLock;
use crate::state::run_name::{find_run, find_run_in};
use crate::state::{RunFilter, StateStore, snapshot_name};
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::{self, Opened};
use crate::workspace::restore::{self, Restoring};
use crate::workspace::{backends, restore_record, turn};

/// An undo, as far as it is known before anything is captured.
struct Undo {
    undone: Undone,
    goal: RestoreGoal,
    options: RestoreOptions,
    backend: Arc<dyn Backend>,
    /// Whether the run was already rolled back when it ended.
    is_rolled_back: bool,
}

impl Undo {
    fn of(
        parts: &Parts,
        locked: &LockedWorkspace,
        request: UndoRequest,
        mut guard: SnapshotOptions,
    ) -> Result<Self, Error> {
        let operation = operation(parts, locked, &request.target)?;
        let is_rolled_back = is_rolled_back(parts, &operation)?;
        let known = |id: &_| {
            parts
                .reader
                .read_blocking_with(|store| snapshot_name::known_snapshot(store, id, locked))
        };
        let (before, after) = (known(&operation.before)?, known(&operation.after)?);
        let backend = backends::backend_of(parts, before.backend)?;
        for side in [&before, &after] {
            opened::see_as_much_as(&mut guard, &*backend, locked, side)?;
        }
        let undone = Undone {
            operation: operation.kind,
            run_id: operation.run_id.clone(),
            before: before.id.clone(),
            after: after.id.clone(),
        };
        let paths = match request.paths.is_empty() {
            true => operation.paths,
            false => {
                let changed = match operation.paths {
                    Some(paths) => paths.into_iter().collect(),
                    None => restore_record::differing(parts, locked, &before, &after)?,
                };
                Some(changed_at(&undone, &changed, &request.paths)?)
            }
        };
        let mut options = RestoreOptions::new(guard);
        options.expected_plan = request.expected_plan;
        if operation.repository && request.paths.is_empty() {
            options = options.repository(RepositoryRestore::Undo {
                before: before.clone(),
                after: after.clone(),
                run_id: match &operation.run_id {
                    Some(run_id) => run_id.to_string(),
                    None => operation.id.to_string(),
                },
            });
        }
        let goal = RestoreGoal::Undo {
            before,
            after,
            paths,
        };
        Ok(Self {
            undone,
            goal,
            options,
            backend,
            is_rolled_back,
        })
    }

    /// Whether there is nothing to undo of the files, because the rollback did it. Since then
    /// somebody may have brought back what it took.
    fn is_done(&self, op: &Operation, locked: &LockedWorkspace) -> Result<bool, Error> {
        if !self.is_rolled_back {
            return Ok(false);
        }
        let plan = |options: &_| self.backend.plan(op, locked, &self.goal, options);
        let files = RestoreOptions::new(self.options.guard.clone());
        let is_done = plan(&files)?.is_empty();
        if let Some(expected) = self.options.expected_plan.clone().filter(|_| is_done) {
            let found = plan(&self.options)?.id;
            if found != expected {
                return Err(RestoreError::PlanChanged { expected, found }.into());
            }
        }
        Ok(is_done)
    }
}

/// Of what the operation `changed`, what lies at and below the paths that were `asked` for. Each
/// has to have some.
fn changed_at(
    undone: &Undone,
    changed: &BTreeSet<RelPath>,
    asked: &[RelPath],
) -> Result<Vec<RelPath>, Error> {
    for path in asked {
        if !changed.iter().any(|changed| changed.starts_with(path)) {
            let operation = match &undone.run_id {
                Some(run_id) => format!("run {run_id}"),
                None => format!("the last {}", undone.operation.as_str()),
            };
            return Err(Error::not_found(format!(
                "{operation} changed nothing at {path}; nothing was touched"
            )));
        }
    }
    let is_asked_for = |path: &&RelPath| asked.iter().any(|asked| path.starts_with(asked));
    Ok(changed.iter().filter(is_asked_for).cloned().collect())
}

/// Says what an undo would do: see [`SessionManager::plan_undo`](crate::SessionManager::plan_undo).
pub(crate) async fn plan(
    core: &Core,
    opened: Opened,
    session_id: SessionId,
    request: UndoRequest,
) -> Result<UndoPlan, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    let what = "a plan";
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| {
            let guard = opened.snapshot_options(&parts, Label::GUARD, &session_id, None);
            let undo = Undo::of(&parts, locked, request, guard)?;
            Ok(UndoPlan {
                plan: undo.backend.plan(&op, locked, &undo.goal, &undo.options)?,
                undone: undo.undone,
            })
        },
    )
    .await
}

/// Takes an operation back: see [`SessionManager::undo`](crate::SessionManager::undo).
pub(crate) async fn undo(
    core: &Core,
    opened: Opened,
    session_id: SessionId,
    request: UndoRequest,
) -> Result<UndoOutcome, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let lock = RunLock::acquire(&workspace, "an undo", lock_timeout, &parts.blocking);
    let lock = cancel.wait_for(lock, "waiting for the workspace").await?;
    let op = cancel.operation();
    let what = "an undo";
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| {
            let _lock = lock;
            let guard = opened.snapshot_options(&parts, Label::GUARD, &session_id, None);
            let undo = Undo::of(&parts, locked, request, guard)?;
            if undo.is_done(&op, locked)? {
                return Ok(UndoOutcome {
                    undone: undo.undone,
                    merged: Vec::new(),
                    conflicts: Vec::new(),
                    restore: restore_document::nothing_restored(),
                });
            }
            let Undo {
                undone,
                goal,
                mut options,
                backend,
                ..
            } = undo;
            let repository = matches!(options.repository, RepositoryRestore::Undo { .. });
            // To be compared with those that the operation left.
            options.guard.keep_refs = repository;
            let restoring = Restoring {
                session_id,
                hold: None,
                to: undone.before.clone(),
                purpose: RestorePurpose::Undo,
                repository,
            };
            let outcome =
                restore::restore(&op, &parts, locked, &*backend, &goal, &options, &restoring)?;
            Ok(restore_document::undone_document(undone, outcome))
        },
    )
    .await
}

/// Whether the operation is a run that was put back whole when it did not complete.
fn is_rolled_back(parts: &Parts, operation: &OperationRow) -> Result<bool, Error> {
    let Some(run_id) = operation.run_id.clone() else {
        return Ok(false);
    };
    let run = parts.reader.read_blocking(|store| store.run(&run_id))?;
    let rollback = run.and_then(|run| run.seen().rollback);
    Ok(rollback.is_some_and(|r| r.status == RestoreStatus::Completed && r.error.is_none()))
}

/// Fails if a run came after `latest` of which nobody knows what it changed: taking back what was
/// done before it would not be taking back the latest.
fn refuse_a_run_in_between(
    store: &dyn StateStore,
    locked: &LockedWorkspace,
    latest: Option<&OperationRow>,
) -> Result<(), Error> {
    let filter = RunFilter {
        workspace_id: Some(locked.id().to_owned()),
        in_place: true,
        limit: Some(1),
        ..RunFilter::default()
    };
    for run in store.runs(&filter)? {
        let is_later = latest.is_none_or(|operation| run.created_at > operation.at);
        let has_worked = run.started_at.is_some() && run.ended_at.is_some();
        if is_later && has_worked && store.operation_of_run(&run.id)?.is_none() {
            return Err(changes_unknown(&run));
        }
    }
    // Who is at work here is waited for by who undoes.
    let is_still = |status: &RunStatus| status.is_at_rest() || status.is_being_saved();
    let filter = RunFilter {
        workspace_id: Some(locked.id().to_owned()),
        statuses: Vec::from_iter(RunStatus::not_ended().into_iter().filter(is_still)),
        in_place: true,
        ..RunFilter::default()
    };
    for run in store.runs(&filter)? {
        let Some(workspace) = run.workspace.as_ref().filter(|_| run.started_at.is_some()) else {
            continue;
        };
        // What it left when it was last parked.
        let left = store.snapshot(&workspace.after)?;
        let at = left.map_or(run.created_at, |row| row.snapshot.captured_at);
        if latest.is_none_or(|operation| at > operation.at) {
            return Err(changes_unknown(&run));
        }
    }
    Ok(())
}

fn changes_unknown(run: &RunRow) -> Error {
    let id = &run.id;
    let way = match run.status {
        RunStatus::AwaitingFollowup => {
            format!(": \"stillframe cancel {id}\" gives it up, and new input goes on with it")
        }
        status if status.is_being_saved() => ", which is when its work is saved".to_owned(),
        status if status.is_at_rest() => format!(
            ": \"stillframe cancel {id}\" gives it up, \"stillframe resume {id}\" goes on with it"
        ),
        _ => String::new(),
    };
    if run.status.is_at_rest() || run.status.is_being_saved() {
        let message = format!(
            "run {id} is {}, and can be taken back once it has ended{way}; nothing was touched",
            run.status
        );
        return Error::new(ErrorKind::Conflict, message);
    }
    let before = run.workspace.as_ref().map(|w| w.before.to_string());
    let way = before.map_or(String::new(), |id| {
        format!("; if it took its snapshot before, \"stillframe restore {id}\" goes back to that")
    });
    Error::not_found(format!(
        "it is not known what run {} changed, because it has no snapshot after its work; nothing was touched{way}",
        run.id
    ))
}

fn not_here(run: &RunRow) -> Error {
    let place = match &run.workspace {
        Some(workspace) => format!("in {}, not in this workspace", printable(&workspace.path)),
        None => "in no workspace".to_owned(),
    };
    Error::invalid_options(format!("run {} was {place}; nothing was touched", run.id))
}

/// The operation that an undo is for.
fn operation(
    parts: &Parts,
    locked: &LockedWorkspace,
    target: &UndoTarget,
) -> Result<OperationRow, Error> {
    parts.reader.read_blocking_with(|store| match target {
        UndoTarget::Latest => {
            let latest = store.latest_operation(locked.id())?;
            refuse_a_run_in_between(store, locked, latest.as_ref())?;
            latest.ok_or_else(|| {
                Error::not_found("nothing was done in this workspace that could be undone")
            })
        }
        UndoTarget::Run(text) => {
            // What begins so elsewhere is not meant; were nothing here, or were it all of an id, it
            // is named.
            let run = match find_run_in(store, text, locked.id()) {
                Err(e) if e.kind() == ErrorKind::NotFound => find_run(store, text)?,
                found => found?,
            };
            let is_here = run
                .workspace
                .as_ref()
                .is_some_and(|w| w.workspace_id == locked.id());
            if !is_here {
                return Err(not_here(&run));
            }
            if store.isolation(&run.id)?.is_some() {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "run {} worked in a worktree of its own, so that there is nothing to take back here; nothing was touched",
                        run.id
                    ),
                ));
            }
            store
                .operation_of_run(&run.id)?
                .ok_or_else(|| changes_unknown(&run))
        }
    })
}
