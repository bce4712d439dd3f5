//! Sending again, by itself, what was not sent for a reason that may pass.

use serde::Deserialize as _;
use serde::de::IgnoredAny;
use stillframe_backends::{ErrorKind, Interrupt, Workspace};
use tokio_util::sync::CancellationToken;

use crate::actors::core::Core;
use crate::branches::retries;
use crate::error::Error;
use crate::id::SessionId;
use crate::options::WorkspaceOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::checkpoint::CheckpointRow;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::records::work_task::WorkTaskRow;
use crate::saving::save::Prepared;
use crate::saving::target::Target;
use crate::saving::work::Wanted;
use crate::state::branch_change::BranchChange;
use crate::state::change::Change;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;

/// Sends what is due, one task after the other, until `stop` says so. One that another engine has
/// claimed is left to that.
pub(crate) async fn send_due(core: &Core, stop: &CancellationToken) -> Result<(), Error> {
    let parts = &core.parts;
    let cancel = Cancellation::by(core, stop, Interrupt::never());
    for task in parts.reader.read(|store| store.work_tasks()).await? {
        if stop.is_cancelled() {
            break;
        }
        let Some(claimed) = retries::claimed(&task, parts.now()) else {
            continue;
        };
        match parts.writer.commit(vec![moved(claimed)]).await {
            Ok(_) => {}
            // Another engine was faster, or a run has begun to work on it.
            Err(e) if e.kind() == ErrorKind::Conflict => continue,
            Err(e) => return Err(e),
        }
        match Box::pin(again(core, &task, &cancel)).await {
            Ok(()) => {}
            // Somebody is at it, or it was stopped: it is due again when the claim is over.
            Err(e) if is_for_later(e.kind()) => {}
            Err(e) => {
                tracing::warn!(task = %task.id, error = %e.chain(), "work is not sent again");
                left(core, &task).await?;
            }
        }
    }
    Ok(())
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Busy | ErrorKind::Cancelled | ErrorKind::Timeout
    )
}

fn moved(task: WorkTaskRow) -> Change {
    Change::Branch(Box::new(BranchChange::MoveTask(task)))
}

/// Leaves it to the next checkpoint.
async fn left(core: &Core, task: &WorkTaskRow) -> Result<(), Error> {
    let (parts, id) = (&core.parts, task.id.clone());
    let Some(now) = parts.reader.read(move |store| store.work_task(&id)).await? else {
        return Ok(());
    };
    let left = WorkTaskRow {
        next_retry_at: None,
        ..now
    };
    match parts.writer.commit(vec![moved(left)]).await {
        Err(e) if e.kind() != ErrorKind::Conflict => Err(e),
        _ => Ok(()),
    }
}

/// Sends what of a task was not sent for a reason that may pass, from each workspace.
async fn again(core: &Core, task: &WorkTaskRow, cancel: &Cancellation) -> Result<(), Error> {
    let id = task.id.clone();
    let read = core.parts.reader.read(move |store| {
        let mut found = Vec::new();
        for row in retries::to_send(&store.checkpoints(&id)?) {
            let run = match &row.made_by {
                Some(run) => store.run(run)?,
                None => None,
            };
            found.push((row, run));
        }
        Ok(found)
    });
    let found = read.await?;
    if found.is_empty() {
        return left(core, task).await;
    }
    for (row, run) in found {
        let Some(prepared) = prepared(core, task, &row, run.as_ref()).await? else {
            return left(core, task).await;
        };
        let wanted = wanted(core, &row, run).await?;
        prepared.send_again(core, &row, wanted, cancel).await?;
    }
    Ok(())
}

/// The task and the workspace that the work is from; `None`: it would go elsewhere from there now.
async fn prepared(
    core: &Core,
    task: &WorkTaskRow,
    row: &CheckpointRow,
    run: Option<&RunRow>,
) -> Result<Option<Prepared>, Error> {
    let (parts, repository) = (core.parts.clone(), row.repository.clone());
    let open = move || {
        let kept = Workspace::kept(&repository, &parts.state_dir).ok_or_else(|| {
            Error::not_found(format!("nothing is known of the workspace {repository}"))
        })?;
        Opened::open(&parts, WorkspaceOptions::at(kept.disk_path()))
    };
    let opened = core.parts.blocking.run(open).await??;
    if opened.workspace.id() != row.repository {
        return Ok(None);
    }
    let kept = run.and_then(|run| KeptOptions::<IgnoredAny>::deserialize(&run.options).ok());
    let kept = kept.and_then(|kept| kept.work_branch);
    let of_task = || {
        let mut branch = WorkBranchOptions::of(&task.task);
        branch.namespace.clone_from(&task.namespace);
        branch
    };
    let branch = kept.map_or_else(of_task, WorkBranchOptions::of_kept);
    // What was typed where it was made, if nothing there leads to it; the user in an address is not
    // kept.
    let typed = branch.clone().remote(task.remote.clone());
    for branch in [branch, typed] {
        let (parts, opened_again, asked) = (core.parts.clone(), opened.clone(), branch.clone());
        let place = move || Ok::<_, Error>(Target::of(&parts, opened_again, &asked)?.place());
        let place = core.parts.blocking.run(place).await?;
        if place.is_ok_and(|place| place == task.remote) {
            let prepared = Prepared::of(core, opened, &branch).await?;
            return Ok(Some(prepared).filter(|prepared| prepared.task_id() == &task.id));
        }
    }
    Ok(None)
}

/// What the log is told in: the session of its run, or that of its workspace.
pub(super) async fn wanted(
    core: &Core,
    row: &CheckpointRow,
    run: Option<RunRow>,
) -> Result<Wanted, Error> {
    let session_id = match &run {
        Some(run) => run.session_id.clone(),
        None => {
            let id = SessionId::of_workspace(&row.repository);
            core.ensure_session(&id, None).await?;
            id
        }
    };
    Ok(Wanted {
        kind: row.kind,
        run_id: run.map(|run| run.id),
        session_id,
        template: None,
        on_remote: Vec::new(),
        began_at: None,
        // People were told that it was not saved.
        stopped: None,
        further: None,
        fence: None,
    })
}
