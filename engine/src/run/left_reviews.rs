//! What an engine that starts finds of the worktrees that are kept: reviews, merges, and clean-ups
//! that were not finished.

use std::collections::HashSet;
use std::time::Duration;

use stillframe_backends::{ErrorKind, Operation, RunDirectory, RunWorktreeState, printable};

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::{RunEnded, Why};
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::EngineId;
use crate::records::isolation::{Candidate, IsolationRow};
use crate::records::recovery::{LeftWorkspace, RecoveryReport};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::run::candidate::requested;
use crate::run::end::{End, end_run};
use crate::run::let_go::let_go;
use crate::run::lock::{LockedPlace, RunLock};
use crate::run::merging;
use crate::run::reviewing::find;
use crate::state::change::{Change, NewEvent};
use crate::workspace::run_worktree;

/// Looks after the worktrees that are kept: what is under review has to be there as it was handed
/// in, and what has nothing of anybody's goes. `crashed`: the engines that have died since this was
/// done last. What cannot be looked at is left as it is.
pub(crate) async fn recover(
    core: &Core,
    crashed: &HashSet<EngineId>,
    report: &mut RecoveryReport,
) -> Result<(), Error> {
    let kept = match core
        .parts
        .reader
        .read(|store| store.isolations_kept())
        .await
    {
        // A damaged row must not stop the start. Whoever lists them is told of it.
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            tracing::warn!(error = %e.chain(), "no worktree of a run is looked at");
            return Ok(());
        }
        kept => kept?,
    };
    for row in kept {
        let run_id = row.run_id.clone();
        let run = core
            .parts
            .reader
            .read(move |store| store.run(&run_id))
            .await?;
        let Some(run) = run else { continue };
        let path = row.worktree_path.clone();
        let looked = match run.status {
            RunStatus::AwaitingReview => {
                let has_crashed = crashed.contains(&run.engine_id);
                Box::pin(look_at_held_review(core, &run, &row, has_crashed)).await
            }
            RunStatus::Merging => Box::pin(merging::settle(core, &run)).await.map(drop),
            status if status.is_terminal() && has_nothing(&run, &row) => {
                Box::pin(go_on_letting_go(core, run, row)).await
            }
            _ => Ok(()),
        };
        if let Err(e) = looked {
            tracing::warn!(path = %path.display(), error = %e.chain(), "not looked after");
            report.left.push(LeftWorkspace {
                path: printable(&path),
                reason: Failure::from(&e),
            });
        }
    }
    Ok(())
}

/// Whether nothing is in the worktree of a run that nobody has elsewhere: it changed nothing, or its
/// work never began, or what it handed in is merged.
fn has_nothing(run: &RunRow, row: &IsolationRow) -> bool {
    match run.status {
        RunStatus::Merged => true,
        RunStatus::Completed => !row.leaves_something(),
        _ => row.made_at.is_none(),
    }
}

async fn go_on_letting_go(core: &Core, run: RunRow, row: IsolationRow) -> Result<(), Error> {
    let parts = &core.parts;
    let place = LockedPlace::worktree(&parts.state_dir, &row.worktree_path);
    let lock = RunLock::acquire_at(&place, "recovery", Duration::ZERO, &parts.blocking).await;
    match lock {
        // Its own engine is about to.
        Err(e) if e.kind() == ErrorKind::Busy => Ok(()),
        lock => {
            let lock = lock?;
            // By another engine, since it was read.
            let is_kept = find(core, &run.id)
                .await?
                .is_some_and(|(_, row)| row.let_go_at.is_none());
            let gone = match is_kept {
                true => let_go(core, &run, &row, true).await.map(drop),
                false => Ok(()),
            };
            lock.release();
            match gone {
                // Something is in its place that no engine will let go of: whoever discards it is
                // told what.
                Err(e) if e.kind() == ErrorKind::Conflict => {
                    tracing::info!(run = %run.id, error = %e.chain(), "its worktree stays");
                    Ok(())
                }
                gone => gone,
            }
        }
    }
}

/// As [`look_at_review`], of what is under review by then, unless somebody decides about it.
async fn look_at_held_review(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    has_crashed: bool,
) -> Result<(), Error> {
    let parts = &core.parts;
    let place = LockedPlace::worktree(&parts.state_dir, &row.worktree_path);
    let lock = RunLock::acquire_at(&place, "recovery", Duration::ZERO, &parts.blocking).await;
    let lock = match lock {
        Err(e) if e.kind() == ErrorKind::Busy => return Ok(()),
        lock => lock?,
    };
    // It may have been handed in anew since it was read.
    if let Some((run, row)) = find(core, &run.id).await?
        && run.status == RunStatus::AwaitingReview
    {
        look_at_review(core, run, row, has_crashed).await?;
    }
    lock.release();
    Ok(())
}

/// Fails a run whose candidate is not there any more as it was handed in, and says otherwise that
/// it still waits, where its engine has died.
async fn look_at_review(
    core: &Core,
    run: RunRow,
    row: IsolationRow,
    has_crashed: bool,
) -> Result<(), Error> {
    let (parts, of) = (core.parts.clone(), row.clone());
    let look = move || -> Result<RunWorktreeState, Error> {
        let backend = run_worktree::backend(&parts)?;
        let worktrees = run_worktree::of_backend(&*backend)?;
        Ok(worktrees.look(&Operation::unbounded(), &run_worktree::of_row(&of))?)
    };
    let found = core.parts.blocking.run(look).await??;
    if let Some(reason) = missing(row.candidate.as_ref(), &found) {
        return lost(core, &run, reason).await;
    }
    let Some(candidate) = row.candidate.as_ref().filter(|_| has_crashed) else {
        return Ok(());
    };
    let said = requested(&row, candidate, true);
    let told = EventType::REVIEW_REQUESTED;
    let at = core.parts.now();
    let tell = NewEvent::new(told, &run.session_id, Some(&run.id), at, said);
    core.parts.writer.commit(vec![Change::Append(tell)]).await?;
    Ok(())
}

/// Why a candidate cannot be reviewed any more; `None`: it can. A worktree in which HEAD is elsewhere
/// may be back at its branch in a moment, and an approval refuses it until then. Pure.
fn missing(candidate: Option<&Candidate>, found: &RunWorktreeState) -> Option<&'static str> {
    let tree = candidate.and_then(|candidate| candidate.tree.as_deref());
    match (&found.tip, tree) {
        _ if found.directory == RunDirectory::Missing => Some("recovered_worktree_missing"),
        (None, _) => Some("recovered_worktree_branch_missing"),
        (_, None) => Some("recovered_tree_hash_missing"),
        // The same tree with another history is another candidate.
        (Some(tip), Some(tree)) => {
            let commit = candidate.map(|candidate| &*candidate.commit);
            let is_same = tip.tree == tree && commit == Some(&*tip.commit);
            (!is_same).then_some("recovered_tree_hash_mismatch")
        }
    }
}

/// Ends a run whose candidate is not there any more. What is left of it stays.
async fn lost(core: &Core, run: &RunRow, reason: &str) -> Result<(), Error> {
    let said = RunEnded {
        why: Some(Why::Settled {
            reason: reason.to_owned(),
        }),
        recovered: true,
        ..RunEnded::default()
    };
    let message = format!(
        "{reason}: what was handed in is not there any more as it was; what is left is kept"
    );
    let end = End {
        from: Some(RunStatus::AwaitingReview),
        is_recovered: true,
        error: Some(Failure::new(ErrorKind::Conflict.as_str(), message)),
        ..End::of_row(RunEvent::Lost, said, run)
    };
    match end_run(core, (&run.session_id, &run.id), end).await {
        // Somebody has decided in that moment, or another engine has found it.
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(()),
        ended => ended,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use stillframe_backends::BranchTip;

    use super::*;
    use crate::id::ReviewRequestId;

    #[test]
    fn what_is_missing_of_a_candidate_is_told_by_its_reason() {
        let candidate = |tree: Option<&str>| Candidate {
            request_id: ReviewRequestId::random(),
            commit: "c".to_owned(),
            tree: tree.map(str::to_owned),
            diff: None,
            ready_at: Timestamp::UNIX_EPOCH,
        };
        let tip = |commit: &str, tree: &str| BranchTip::new(commit, tree);
        let other = || RunDirectory::Other("a file".to_owned());
        for (tree, tip, directory, reason) in [
            (Some("t"), Some(tip("c", "t")), RunDirectory::Right, None),
            (
                Some("t"),
                Some(tip("c", "u")),
                RunDirectory::Right,
                Some("tree_hash_mismatch"),
            ),
            (
                Some("t"),
                Some(tip("d", "t")),
                RunDirectory::Right,
                Some("tree_hash_mismatch"),
            ),
            (
                None,
                Some(tip("c", "t")),
                RunDirectory::Right,
                Some("tree_hash_missing"),
            ),
            (Some("t"), None, other(), Some("worktree_branch_missing")),
            (Some("t"), Some(tip("c", "t")), other(), None),
            (
                Some("t"),
                None,
                RunDirectory::Missing,
                Some("worktree_missing"),
            ),
        ] {
            let found = RunWorktreeState::new(tip, directory);
            let reason = reason.map(|reason| format!("recovered_{reason}"));
            let missing = missing(Some(&candidate(tree)), &found);
            assert_eq!(missing.map(str::to_owned), reason, "{found:?}");
        }
    }
}
