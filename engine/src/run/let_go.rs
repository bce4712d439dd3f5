//! Letting go of the worktree and the branch of a run.

use stillframe_backends::{
    ErrorKind, Label, Operation, RunDirectory, RunWorktreeState, SnapshotId, printable,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::event::EventType;
use crate::events::isolation_data::WorktreeLetGo;
use crate::options::WorkspaceOptions;
use crate::records::isolation::IsolationRow;
use crate::records::run_row::RunRow;
use crate::run::closing::CLOSING_LOCK_TIMEOUT;
use crate::state::change::{Change, NewEvent};
use crate::state::isolation_change::IsolationChange;
use crate::workspace::opened::Opened;
use crate::workspace::{capture, run_worktree, turn};

/// What was let go of.
#[derive(Clone, Debug, Default)]
pub(crate) struct LetGo {
    /// Where the branch was.
    pub(crate) commit: Option<String>,
    /// What was in the worktree.
    pub(crate) snapshot: Option<SnapshotId>,
}

/// Captures what is in the worktree of a run, and then removes directory, entry and branch. It may
/// be repeated, also after a crash at any point. Whoever calls has the run lock of the worktree.
///
/// # Errors
///
/// `Conflict`: something that is not the run's has its place, and was left as it is. `HeadMoved`:
/// the branch has moved meanwhile, and stays.
pub(crate) async fn let_go(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    recovered: bool,
) -> Result<LetGo, Error> {
    let (parts, of) = (core.parts.clone(), row.clone());
    let look = move || found(&parts, &of);
    let found = core.parts.blocking.run_long(look).await??;
    let commit = found.tip.map(|tip| tip.commit);
    let tip = commit.clone().filter(|commit| is_runs(row, commit));
    let snapshot = match found.directory {
        RunDirectory::Right => Some(captured_and_removed(core, run, row, tip).await?),
        RunDirectory::Missing => {
            removed(core, row, tip).await?;
            None
        }
        RunDirectory::Other(what) => {
            let path = printable(&row.worktree_path);
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{path} is not the worktree of run {}: {what}; it was left as it is",
                    run.id
                ),
            ));
        }
        _ => None,
    };
    let at = core.parts.now();
    let said = WorktreeLetGo {
        branch: &row.worktree_branch,
        commit: commit.as_deref(),
        snapshot_id: snapshot.as_ref(),
        recovered,
    };
    let told = EventType::WORKTREE_LET_GO;
    let tell = NewEvent::new(told, &run.session_id, Some(&run.id), at, said);
    let run_id = run.id.clone();
    let gone = Change::Isolation(IsolationChange::LetGo { run_id, at });
    core.parts
        .writer
        .commit(vec![gone, Change::Append(tell)])
        .await?;
    Ok(LetGo { commit, snapshot })
}

/// Whether the branch is the run's to remove. Where its worktree was never there whole, somebody
/// else may have made a branch of that name, and worked on it.
fn is_runs(row: &IsolationRow, tip: &str) -> bool {
    row.made_at.is_some() || tip == row.base
}

/// What there is of the worktree. One whose directory is gone, and whose branch has commits, is
/// made again from that, so that they are captured. Blocks.
fn found(parts: &Parts, row: &IsolationRow) -> Result<RunWorktreeState, Error> {
    let (op, backend) = (Operation::unbounded(), run_worktree::backend(parts)?);
    let worktrees = run_worktree::of_backend(&*backend)?;
    let worktree = run_worktree::of_row(row);
    let found = worktrees.look(&op, &worktree)?;
    let has_commits = found.tip.as_ref().is_some_and(|tip| tip.commit != row.base);
    match found.directory == RunDirectory::Missing && row.made_at.is_some() && has_commits {
        true => {
            worktrees.ensure(&op, &worktree, None, parts.now())?;
            Ok(worktrees.look(&op, &worktree)?)
        }
        false => Ok(found),
    }
}

async fn captured_and_removed(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    tip: Option<String>,
) -> Result<SnapshotId, Error> {
    let (parts, of) = (core.parts.clone(), (run.clone(), row.clone()));
    let open = move || {
        let options = WorkspaceOptions::at(&of.1.worktree_path);
        Opened::worktree_of(&parts, &of.0, &of.1, options)
    };
    let opened = core.parts.blocking.run(open).await??;
    let parts = core.parts.clone();
    let (session_id, run_id) = (run.session_id.clone(), run.id.clone());
    let worktree = run_worktree::of_row(row);
    let (what, workspace) = ("letting go of a worktree", opened.workspace.clone());
    let work = turn::work(
        core,
        &workspace,
        what,
        CLOSING_LOCK_TIMEOUT,
        move |locked| {
            let op = Operation::unbounded();
            let backend = run_worktree::backend(&parts)?;
            let whose = (&session_id, Some(&run_id));
            let mut options =
                opened.snapshot_options(&parts, Label::AFTER_FAILURE, whose.0, whose.1);
            // Of commits that only its branch has nothing else is left.
            options.keep_refs = true;
            let whose = capture::Whose {
                session_id: &session_id,
                run_id: Some(&run_id),
                fence: None,
            };
            let captured = capture::capture(&op, &parts, locked, &*backend, &options, whose)?;
            let worktrees = run_worktree::of_backend(&*backend)?;
            let with = Some((locked, &captured.id));
            worktrees.remove(&op, &worktree, with, tip.as_deref())?;
            Ok(captured.id)
        },
    );
    work.await
}

async fn removed(core: &Core, row: &IsolationRow, tip: Option<String>) -> Result<(), Error> {
    let (parts, worktree) = (core.parts.clone(), run_worktree::of_row(row));
    let remove = move || -> Result<(), Error> {
        let backend = run_worktree::backend(&parts)?;
        let worktrees = run_worktree::of_backend(&*backend)?;
        worktrees.remove(&Operation::unbounded(), &worktree, None, tip.as_deref())?;
        Ok(())
    };
    core.parts.blocking.run(remove).await?
}
