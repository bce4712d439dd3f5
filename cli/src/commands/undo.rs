//! `undo`: undoes the changes of an operation.

use stillframe::backends::DiffOptions;
use stillframe::events::{EventQuery, EventType};
use stillframe::options::UndoTarget;
use stillframe::records::{RestoreDocument, UndoOutcome, Undone};
use stillframe::{DiffRequest, Error, ErrorKind, SessionManager, SnapshotId, WorkspaceOptions};

use super::{Tools, above, diff, restore, runs};
use crate::failure::Failure;
use crate::output::Reply;
use crate::request::{UndoRequest, quoted};

/// Takes back an operation of the first candidate that knows of one.
///
/// A directory below a workspace is no workspace of its own by being stood in, so where nothing
/// was captured the search goes on above.
pub(super) async fn undo(tools: &Tools, request: UndoRequest) -> Result<Reply, Failure> {
    let mut unknown = None;
    for (at, candidate) in request.candidates.iter().enumerate() {
        let undo = request.at(at);
        let workspace = WorkspaceOptions::at(candidate);
        match tools.engine.snapshots(&workspace).await {
            Ok(snapshots) if snapshots.is_empty() => continue,
            Ok(_) => {}
            Err(e) if at == 0 => return Err(e.into()),
            // Some directory above that is no workspace, such as one that holds the state.
            Err(_) => continue,
        }
        let session = tools.engine.workspace_session(candidate).await?;
        let is_of_some = !undo.paths.is_empty();
        let done = match request.is_plan {
            true => {
                let planned = session.plan_undo(&workspace, undo).await;
                planned.map(|planned| restore::planned_undo(tools.json, &planned))
            }
            false => match session.undo(&workspace, undo).await {
                Ok(outcome) => {
                    let git = above::git(candidate);
                    let mut reply = told(tools.json, &outcome, is_of_some, &git);
                    reply.notes.extend(head(tools, &session, &outcome).await);
                    if !is_of_some {
                        reply.notes.extend(
                            sparse_settings(tools, &session, &workspace, &outcome.undone).await,
                        );
                    }
                    Ok(reply)
                }
                Err(e) => Err(e),
            },
        };
        match done {
            Ok(reply) => return Ok(reply),
            Err(e) if e.touched() || !is_elsewhere(e.kind(), &request.undo.target) => {
                return Err(refused(tools, e, &request.undo));
            }
            Err(e) => {
                unknown.get_or_insert(e);
            }
        }
    }
    match (unknown, request.undo.target) {
        (Some(error), _) => Err(error.into()),
        (None, UndoTarget::Run(id)) => Err(somewhere_else(tools, &id).await),
        (None, UndoTarget::Latest) => Err(Failure::not_found(
            "nothing was done to this workspace that could be taken back",
        )),
    }
}

/// Where HEAD went, which no path says. It is in the log; that it is said here is for convenience.
async fn head(tools: &Tools, session: &SessionManager, outcome: &UndoOutcome) -> Option<String> {
    let guard = outcome.restore.guard_snapshot.as_ref()?;
    let query = EventQuery::session(session.id().clone()).of_type(EventType::WORKSPACE_ROLLED_BACK);
    let events = tools.engine.events(query).await.ok()?;
    let own = events
        .iter()
        .rfind(|event| event.data["guard"] == guard.as_str())?;
    restore::head_story(&own.data["head"])
}

/// What the run did to a sparse checkout and no undo takes back.
async fn sparse_settings(
    tools: &Tools,
    session: &SessionManager,
    workspace: &WorkspaceOptions,
    undone: &Undone,
) -> Option<String> {
    undone.run_id.as_ref()?;
    let request = DiffRequest::between(undone.before.as_str(), undone.after.as_str());
    // Nobody asked for lines.
    let request = request.options(DiffOptions::default().max_compared_bytes(0));
    let outcome = session.diff(workspace, request).await.ok()?;
    let changes = &outcome.diff.skip_worktree;
    if changes.is_empty() {
        return None;
    }
    let end = async |id: &SnapshotId| {
        let found = tools.engine.find_snapshot_of(workspace, id.as_str());
        found.await.ok()
    };
    let (before, after) = (end(&undone.before).await?, end(&undone.after).await?);
    diff::sparse_settings(changes, &before, &after)
}

/// Whether this refusal may only mean that another directory was meant.
fn is_elsewhere(kind: ErrorKind, target: &UndoTarget) -> bool {
    match target {
        UndoTarget::Latest => kind == ErrorKind::NotFound,
        // A run of another workspace is known, and not one of this workspace.
        UndoTarget::Run(_) => matches!(kind, ErrorKind::NotFound | ErrorKind::InvalidOptions),
    }
}

/// Why nothing was undone; where a plan is another by now, with the command that makes one.
fn refused(tools: &Tools, error: Error, undo: &stillframe::UndoRequest) -> Failure {
    let is_other_plan = error.kind() == ErrorKind::Conflict && undo.expected_plan.is_some();
    let run = match &undo.target {
        UndoTarget::Run(id) => format!(" {}", quoted(id.as_ref())),
        UndoTarget::Latest => String::new(),
    };
    let elsewhere = tools.elsewhere();
    match is_other_plan {
        true => Failure::from(error).adding(&format!(
            "\"stillframe undo{run}{elsewhere} --plan\" makes a new plan and shows it"
        )),
        false => error.into(),
    }
}

/// Why a run cannot be undone where no workspace is known.
async fn somewhere_else(tools: &Tools, id: &str) -> Failure {
    match runs::by_id(tools, id).await {
        Err(e) => e.into(),
        Ok(run) => match run.workspace_path {
            Some(path) => Failure::invalid(format!(
                "run {} is of another workspace and nothing was touched; add --workspace {path}",
                run.id
            )),
            None => Failure::not_found(format!("run {} had no workspace", run.id)),
        },
    }
}

/// `is_of_some`: whether paths were named; `git` calls git for the repository of the workspace.
fn told(json: bool, outcome: &UndoOutcome, is_of_some: bool, git: &str) -> Reply {
    let what = story(&outcome.undone, &outcome.restore, is_of_some);
    let UndoOutcome {
        restore: document,
        merged,
        conflicts,
        ..
    } = outcome;
    let reply = Reply::new(json, outcome, || {
        restore::report(document, merged, conflicts, git)
    });
    restore::ended(reply.note(what), document)
}

/// What became of the operation, in one line.
fn story(undone: &Undone, document: &RestoreDocument, is_of_some: bool) -> String {
    let operation = match &undone.run_id {
        // Without a guard nothing was even about to be restored.
        Some(run_id) if document.guard_snapshot.is_none() => {
            return format!(
                "run {run_id} was rolled back when it ended, so there is nothing to take back"
            );
        }
        Some(run_id) => format!("run {run_id}"),
        None => format!("the last {}", undone.operation.as_str()),
    };
    // Of the repository too, whose index is no path that was restored.
    let is_idle = document
        .durations
        .is_some_and(|durations| durations.apply.is_zero());
    let is_all = document.skipped.is_empty() && document.error.is_none();
    match (is_idle, is_all) {
        (true, true) => format!("there was nothing left to take back of {operation}"),
        (true, false) => format!("nothing was taken back of {operation}"),
        (false, _) if is_of_some => format!("took back what {operation} did to what was named"),
        (false, _) => format!("took back {operation}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // "took back", of what somebody had taken back by hand
    #[test]
    fn only_what_was_taken_back_is_said_to_be() {
        let snapshot = format!("snap_{}", "a".repeat(32));
        let run = format!("run_{}", "b".repeat(32));
        let undone = |operation: &str, run_id: Option<&str>| -> Undone {
            serde_json::from_value(json!({
                "operation": operation, "run_id": run_id, "before": snapshot, "after": snapshot,
            }))
            .expect("it is what was undone")
        };
        let document = |apply_ms: u64, skipped: serde_json::Value| -> RestoreDocument {
            serde_json::from_value(json!({
                "status": "completed", "plan_id": "plan_1", "guard_snapshot": snapshot,
                "safety_tag": null, "restored": [], "leftover_ignored": [], "skipped": skipped,
                "error": null,
                "durations": {"guard_ms": 1, "plan_ms": 1, "apply_ms": apply_ms, "verify_ms": 0},
            }))
            .expect("it is the document of a restore")
        };
        let edited = json!([{"path": "a", "reason": "edited_since"}]);
        let of_run = undone("run", Some(&run));
        let nothing = json!([]);
        assert_eq!(
            story(&of_run, &document(0, nothing.clone()), false),
            format!("there was nothing left to take back of run {run}")
        );
        assert_eq!(
            story(&of_run, &document(0, edited.clone()), false),
            format!("nothing was taken back of run {run}")
        );
        assert_eq!(
            story(
                &undone("restore", None),
                &document(0, nothing.clone()),
                false
            ),
            "there was nothing left to take back of the last restore"
        );
        // Such as of a repository that is gone.
        let mut failed = document(0, nothing.clone());
        let problem =
            json!({"kind": "Unsupported", "message": "the repository is gone", "touched": false});
        failed.error = Some(serde_json::from_value(problem).expect("it is an error"));
        assert_eq!(
            story(&of_run, &failed, false),
            format!("nothing was taken back of run {run}")
        );
        // Such as an index, of which no path tells.
        for skipped in [nothing, edited] {
            assert_eq!(
                story(&undone("undo", None), &document(1, skipped), false),
                "took back the last undo"
            );
        }
    }

    #[test]
    fn only_what_may_be_meant_for_another_directory_goes_on_above() {
        let latest = UndoTarget::Latest;
        let run = UndoTarget::Run("run_1".to_owned());
        for (kind, target, expected) in [
            (ErrorKind::NotFound, &latest, true),
            (ErrorKind::NotFound, &run, true),
            (ErrorKind::InvalidOptions, &run, true),
            (ErrorKind::InvalidOptions, &latest, false),
            (ErrorKind::Busy, &latest, false),
            (ErrorKind::Conflict, &run, false),
        ] {
            assert_eq!(is_elsewhere(kind, target), expected, "{kind} {target:?}");
        }
    }
}
