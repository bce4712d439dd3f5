//! Finding the workspace for a command that names none and is started in a directory below a
//! workspace.

use std::path::{Path, PathBuf};

use stillframe::backends::printable;
use stillframe::options::SnapshotQuery;
use stillframe::{Engine, WorkspaceOptions};

use super::Tools;
use crate::failure::Failure;
use crate::request::{OutsidePath, Request, quoted};

/// The request for a directory without snapshots below a workspace with some: commands that read
/// use that workspace, and commands that write say how to name it.
///
/// Being in a directory below a workspace does not make it a workspace. But a command that writes
/// works in the directory where it was called.
pub(super) async fn settle(tools: &Tools, request: Request) -> Request {
    let request = match request {
        Request::ReadAbove(meant, outside) if captured(tools, &outside).await.is_some() => *meant,
        request => request,
    };
    if tools.named_workspace.is_some() || !request.may_be_meant_for_above() {
        return request;
    }
    let Some(here) = request.workspace().map(Path::to_owned) else {
        return request;
    };
    // The operation that needs it reports what is wrong.
    if has_snapshots(&tools.engine, &here).await.unwrap_or(true) {
        if is_above_the_current(&here) {
            tools.console.note(&format!(
                "this is about {} above this directory",
                printable(&here)
            ));
        }
        return request;
    }
    let Some(above) = nearest_above(&tools.engine, &here).await else {
        return request;
    };
    if request.reads() {
        tools.console.note(&format!(
            "nothing was captured in this directory; this is about {} above it",
            printable(&above)
        ));
        return request.about(above);
    }
    tools.console.note(&format!(
        "{} above this directory is a workspace; this is about the directory alone, add --workspace {} to be about that one",
        printable(&above),
        quoted(above.as_os_str())
    ));
    request
}

/// The workspace that somebody is in: the one that was named, else the current directory or the
/// nearest above of which there are snapshots.
pub(super) async fn own(tools: &Tools) -> Option<WorkspaceOptions> {
    if let Some(named) = &tools.named_workspace {
        return Some(WorkspaceOptions::at(named));
    }
    let here = std::env::current_dir().ok()?;
    let own = match has_snapshots(&tools.engine, &here).await {
        Some(true) => here,
        _ => nearest_above(&tools.engine, &here).await?,
    };
    Some(WorkspaceOptions::at(own))
}

/// Why nothing is written to such a path, and the workspace above to name, if there is one.
pub(super) async fn refusal(tools: &Tools, outside: &OutsidePath) -> Failure {
    outside.refusal(captured(tools, outside).await.as_deref())
}

/// The directory that has such a path, or the nearest above, of which there are snapshots.
async fn captured(tools: &Tools, outside: &OutsidePath) -> Option<PathBuf> {
    match has_snapshots(&tools.engine, &outside.above).await {
        Some(true) => Some(outside.above.clone()),
        _ => nearest_above(&tools.engine, &outside.above).await,
    }
}

/// What a command that writes has to be given to be about this workspace, if somebody stands below
/// it and did not name it.
pub(super) fn to_name(tools: &Tools, workspace: &Path) -> Option<String> {
    let is_above = tools.named_workspace.is_none() && is_above_the_current(workspace);
    is_above.then(|| format!("--workspace {}", quoted(workspace.as_os_str())))
}

/// The call of git for the repository of a workspace, for a person in the present current
/// directory.
pub(super) fn git(workspace: &Path) -> String {
    let current = std::env::current_dir().ok();
    let here = current.as_deref().and_then(work_tree);
    match here.is_some() && here == work_tree(workspace) {
        true => "git".to_owned(),
        false => format!("git -C {}", quoted(workspace.as_os_str())),
    }
}

/// The nearest directory at or above this one that git takes for a work tree.
fn work_tree(directory: &Path) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    let mut candidates = directory.ancestors();
    let found = candidates.find(|candidate| candidate.join(".git").symlink_metadata().is_ok());
    found.map(Path::to_owned)
}

/// Whether a path that was named leads to a directory above the one that somebody is in.
fn is_above_the_current(workspace: &Path) -> bool {
    let current = std::env::current_dir().ok();
    current.is_some_and(|current| current != workspace && current.starts_with(workspace))
}

/// The nearest directory above of which there are snapshots.
async fn nearest_above(engine: &Engine, below: &Path) -> Option<PathBuf> {
    for candidate in below.ancestors().skip(1) {
        // Some are no workspace and cannot be one, such as one that holds the state.
        if has_snapshots(engine, candidate).await == Some(true) {
            return Some(candidate.to_owned());
        }
    }
    None
}

/// Whether there are snapshots of the directory; `None`: that cannot be told.
async fn has_snapshots(engine: &Engine, directory: &Path) -> Option<bool> {
    let any = SnapshotQuery::of(&WorkspaceOptions::at(directory)).limit(1);
    Some(!engine.snapshots(any).await.ok()?.is_empty())
}
