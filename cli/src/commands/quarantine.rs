//! `task quarantine`: work that no remote is proven to have.

use stillframe::WorkspaceOptions;
use stillframe::backends::shell_word;
use stillframe::records::{QuarantineRestore, QuarantinedWork};
use stillframe::tasks::QuarantineScope;

use super::{Tools, to_the_end, while_wanted};
use crate::failure::Failure;
use crate::output::{Reply, count, name_of, printable, short};
use crate::request::QuarantineRequest;

/// What is asked of work in quarantine.
pub(super) async fn answer(tools: &Tools, request: QuarantineRequest) -> Result<Reply, Failure> {
    match request {
        QuarantineRequest::List(scope) => list(tools, scope).await,
        QuarantineRequest::Restore(workspace, id) => {
            while_wanted(workspace, |workspace| restore(tools, workspace, id)).await
        }
        QuarantineRequest::Discard(workspace, id) => {
            to_the_end(tools, discard(tools, workspace, id)).await
        }
    }
}

async fn list(tools: &Tools, scope: QuarantineScope) -> Result<Reply, Failure> {
    let all = tools.engine.quarantine(scope).await?;
    let reply = Reply::new(tools.json, &all, || all.iter().map(told).collect());
    Ok(match all.is_empty() {
        true => reply.note("all work that was to be sent is proven to be on a remote"),
        false => reply,
    })
}

async fn restore(tools: &Tools, workspace: WorkspaceOptions, id: String) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let restored = session.restore_quarantined(&workspace, &id).await?;
    let reply = Reply::new(tools.json, &restored, || told_of_restore(&restored));
    let skipped = restored.restore.iter().flat_map(|r| &r.skipped);
    let skipped = skipped.map(|s| format!("{} stays as it is ({})", s.path, s.reason));
    let submodules = restored.submodules.iter().map(|path| {
        format!("the work has another commit of the submodule {path}, which stays as it is")
    });
    let reply = reply.warnings(skipped.chain(submodules).collect());
    Ok(match restored.restore.is_some() {
        true => reply.note(
            "HEAD, its branch and the index are as they were; \"stillframe undo\" takes it back",
        ),
        false => reply,
    })
}

async fn discard(tools: &Tools, workspace: WorkspaceOptions, id: String) -> Result<Reply, Failure> {
    let work = tools.engine.discard_quarantined(&workspace, &id).await?;
    let elsewhere = tools.elsewhere();
    Ok(Reply::new(tools.json, &work, || {
        let earlier = match work.earlier.len() as u64 {
            0 => String::new(),
            earlier => format!(", and {} before it", count(earlier, "checkpoint")),
        };
        format!("{} of task {} is let go of{earlier}\n", short(&work.commit), task_of(&work))
    })
    .note(format!(
        "snapshots with the same content stay; \"stillframe gc{elsewhere}\" frees what nothing else has"
    )))
}

/// One piece of work: what it is, why it is here, and what can be done.
fn told(work: &QuarantinedWork) -> String {
    let path = work.path.as_deref().unwrap_or("a workspace that is gone");
    let earlier = match work.earlier.len() as u64 {
        0 => String::new(),
        earlier => format!(" and {} before it", count(earlier, "checkpoint")),
    };
    let why = match (&work.failure, &work.error, work.status.as_str()) {
        _ if work.remote.is_none() => "the task has no remote".to_owned(),
        (Some(kind), Some(error), _) => format!("{kind}: {}", printable(error)),
        (Some(kind), None, _) => kind.clone(),
        (None, _, "sent") => "it was sent, and the remote has not shown it".to_owned(),
        (None, _, _) => "it was not sent, or whoever sent it has not said so".to_owned(),
    };
    let kept = work.kept_as.as_deref().map_or_else(
        || "its store cannot be read".to_owned(),
        |name| format!("kept as {name}"),
    );
    let elsewhere = work
        .path
        .as_deref()
        .map(|path| format!(" --workspace {}", shell_word(path.as_bytes())))
        .unwrap_or_default();
    let mut text = format!(
        "{}  {:.0}  task {}  {} in {}{earlier}\n  {why}; {kept}\n  back to the files: stillframe task quarantine \
         restore {}{elsewhere}\n",
        work.id,
        work.created_at,
        task_of(work),
        work.status,
        printable(path),
        work.id,
    );
    if let Some(remote) = work.remote.as_deref().filter(|_| work.status != "refused") {
        let task = shell_word(work.task.as_bytes());
        let namespace = work
            .namespace
            .as_deref()
            .map(|namespace| format!(" --namespace {}", shell_word(namespace.as_bytes())));
        text.push_str(&format!(
            "  to the branch, with what is in the workspace: stillframe task checkpoint {task}{} --remote {}{elsewhere}\n",
            namespace.unwrap_or_default(),
            shell_word(remote.as_bytes())
        ));
    }
    text
}

fn told_of_restore(restored: &QuarantineRestore) -> String {
    let work = &restored.work;
    let changed = restored.restore.as_ref().map_or(0, |r| r.restored.len());
    let files = match changed {
        0 => "every file is so already".to_owned(),
        changed => format!("{} changed", count(changed as u64, "file")),
    };
    format!(
        "the files are as {} of task {} has them; {files}\n",
        short(&work.commit),
        task_of(work)
    )
}

fn task_of(work: &QuarantinedWork) -> String {
    printable(&name_of(work.namespace.as_deref(), &work.task))
}

/// That there is work in quarantine, with the command that lists it; `None`: there is none.
pub(super) fn note(works: &[QuarantinedWork]) -> Option<String> {
    let many = count(works.len() as u64, "piece");
    (!works.is_empty()).then(|| {
        format!(
            "{many} of work not proven to be on a remote; \"stillframe task quarantine list\" says why and what can be done"
        )
    })
}
