//! The message that says how to undo a run.

use std::collections::BTreeSet;

use stillframe::backends::{ApproximatedFile, BackendKind, Diff, RelPath, RestorePlan};
use stillframe::options::UndoTarget;
use stillframe::records::{RunDocument, WorkspaceDocument};
use stillframe::{RunId, Snapshot, WorkspaceOptions};

use super::head_moved::head_moved;
use super::{Tools, restore};
use crate::output;

/// Why an undo takes nothing back, where it is not for anything in the repository.
const LEFT_OUT: &str =
    "what changed cannot be taken back: it was left out before the run, or is by now";

/// What an undo of a run would do, as far as that is known.
#[derive(Clone, Debug, Default)]
pub(super) enum Foreseen {
    /// It was not planned, or could not be; `undo` says why.
    #[default]
    Nothing,
    /// It would take something back.
    Work,
    /// It would take nothing back, and tell this.
    Idle(Vec<String>),
}

/// What is known of a run that has ended and was not rolled back.
pub(super) struct WayBack<'a> {
    pub(super) run_id: &'a RunId,
    pub(super) workspace: &'a WorkspaceDocument,
    /// Whether nothing can be put back in place in its workspace.
    pub(super) is_copied_only: bool,
    pub(super) undo: &'a Foreseen,
    /// Added to command lines so that they are about this workspace.
    pub(super) elsewhere: &'a str,
}

impl WayBack<'_> {
    /// What takes back what changed, or why nothing does; nothing where nothing changed.
    pub(super) fn lines(&self) -> Vec<String> {
        let Some(Ends { before, diff, .. }) = ends(self.workspace) else {
            return Vec::new();
        };
        match (changed(self.workspace), self.undo) {
            (Changed::Nothing, _) => return Vec::new(),
            (_, Foreseen::Idle(why)) => return why.clone(),
            (Changed::LeftOut, Foreseen::Nothing) => return vec![LEFT_OUT.to_owned()],
            (Changed::Files | Changed::Other | Changed::LeftOut, _) => {}
        }
        let Self {
            run_id, elsewhere, ..
        } = self;
        vec![match (diff.backend, before.metadata.has_content) {
            (BackendKind::Hash, Some(false)) => {
                "no content was kept, so it cannot be taken back; --retain-content keeps it"
                    .to_owned()
            }
            _ if self.is_copied_only => restore::copy_command(&before.id, elsewhere),
            _ => format!("\"stillframe undo {run_id}{elsewhere}\" takes it back"),
        }]
    }
}

/// What an undo of the run would do. It is planned only where no file vouches for that it would
/// take something back: to plan it takes a capture.
pub(super) async fn foresee(tools: &Tools, document: &RunDocument) -> Foreseen {
    let workspace = document.workspace.as_ref();
    let is_in_doubt = |workspace: &&WorkspaceDocument| {
        matches!(changed(workspace), Changed::LeftOut | Changed::Other)
            && workspace.rollback.is_none()
            && !document.is_stored
    };
    let Some(ends) = workspace.filter(is_in_doubt).and_then(ends) else {
        return Foreseen::Nothing;
    };
    let options = WorkspaceOptions::at(&ends.before.path);
    let target = UndoTarget::Run(document.run_id.to_string());
    let session = tools.engine.session(document.session_id.as_str()).await;
    let planned = match session {
        Ok(session) => session.plan_undo(&options, target).await,
        Err(e) => Err(e),
    };
    match planned {
        Ok(planned) if planned.plan.is_empty() => Foreseen::Idle(idle_story(&planned.plan)),
        Ok(_) => Foreseen::Work,
        Err(_) => Foreseen::Nothing,
    }
}

/// Of a plan that does nothing, why.
fn idle_story(plan: &RestorePlan) -> Vec<String> {
    let problem = plan.repository.problem.as_ref().map(|problem| {
        let message = output::printable(&problem.message);
        format!("what changed cannot be taken back: {message}")
    });
    let mut lines = vec![problem.unwrap_or_else(|| LEFT_OUT.to_owned())];
    let skipped = plan.skipped.iter().take(restore::MAX_NAMED);
    lines.extend(skipped.map(restore::kept));
    let more = plan.skipped.len().saturating_sub(restore::MAX_NAMED);
    lines.extend(
        (more > 0).then(|| format!("left     {} more", output::count(more as u64, "path"))),
    );
    lines
}

/// A run whose snapshots were compared.
struct Ends<'a> {
    before: &'a Snapshot,
    after: &'a Snapshot,
    diff: &'a Diff,
}

fn ends(workspace: &WorkspaceDocument) -> Option<Ends<'_>> {
    Some(Ends {
        before: workspace.before_snapshot.as_ref()?,
        after: workspace.after_snapshot.as_ref()?,
        diff: workspace.diff.as_ref()?,
    })
}

/// What a run changed, as far as an undo is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changed {
    /// Nothing that is captured.
    Nothing,
    /// Something that an undo can undo.
    Files,
    /// No such file, but something of the repository, which others may have a say in.
    Other,
    /// Only what was left out before, or is by now.
    LeftOut,
}

fn changed(workspace: &WorkspaceDocument) -> Changed {
    let Some(Ends {
        before,
        after,
        diff,
    }) = ends(workspace)
    else {
        return Changed::Nothing;
    };
    let was_captured = |path: &RelPath| before.omissions.covers(path).is_none();
    // What a rule hides is in no snapshot, so nothing takes it back.
    let is_for_good = |file: &&ApproximatedFile| {
        file.left_out && (!was_captured(&file.path) || diff.added.contains(&file.path))
    };
    let for_good = diff.approximated.iter().filter(is_for_good);
    let for_good: BTreeSet<&RelPath> = for_good.map(|file| &file.path).collect();
    let is_taken_back = |path: &RelPath| !for_good.contains(path) && was_captured(path);
    let is_beside = !diff.permissions_changed.is_empty()
        || !diff.directories_added.is_empty()
        || !diff.directories_deleted.is_empty();
    let is_other = head_moved(before, after).is_some()
        || diff.operation.is_some()
        || !diff.skip_worktree.is_empty();
    if is_beside || diff.changed_paths.iter().any(is_taken_back) {
        Changed::Files
    } else if is_other {
        Changed::Other
    } else if diff.files_changed > 0 {
        Changed::LeftOut
    } else {
        Changed::Nothing
    }
}
