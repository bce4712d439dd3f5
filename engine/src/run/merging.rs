//! Merging what a run has handed in, once somebody has approved it: the decision, the merge, and what
//! is found of it after a crash.

mod attempt;
mod checkout;
mod repository;

use std::time::Duration;

use stillframe_backends::{ErrorKind, Operation, RunDirectory};
use tokio::time::Instant;

use self::attempt::Attempt;
use self::repository::Repository;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::event::EventType;
use crate::events::isolation_data::{
    MergeCompleted, MergeConflicted, MergeStarted, MergeStopped, ReviewDecided,
};
use crate::options::Approval;
use crate::options::approval::check_reviewer;
use crate::records::isolation::{Candidate, IsolationRow};
use crate::records::merge::{MergeMode, MergeOutcome, MergeRow, MergedRun};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::run::candidate::requested;
use crate::run::end::{End, end_run};
use crate::run::give_up::end_own_session;
use crate::run::let_go::let_go;
use crate::run::lock::{LockedPlace, RunLock};
use crate::run::on_record::Settled;
use crate::run::reviewing::{check_owner, find, not_in_review};
use crate::state::change::{Change, NewEvent};
use crate::state::isolation_change::IsolationChange;
use crate::workspace::run_worktree;

/// How long another merge, a lock of git's, or a branch that moves again and again is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Approves what a run has handed in, and merges it. What was decided before is the same answer.
pub(crate) async fn approve(core: &Core, approval: &Approval) -> Result<MergeOutcome, Error> {
    check_reviewer(approval.reviewer.as_deref())?;
    check_owner(core, &approval.run_id, approval.reviewer.as_deref()).await?;
    let (run, row) = known(core, approval).await?;
    if let Some(answer) = answered(&run, &row, approval)? {
        return Ok(answer);
    }
    let lock = lock_of(core, &run, &row, PATIENCE).await;
    // Somebody may have decided while it was waited for.
    let (mut run, mut row) = known(core, approval).await?;
    if run.status == RunStatus::Merging && lock.is_ok() {
        // By somebody who has died since.
        Box::pin(settle_held(core, &run, &row, true)).await?;
        (run, row) = known(core, approval).await?;
    }
    if let Some(answer) = answered(&run, &row, approval)? {
        return Ok(answer);
    }
    let lock = lock?;
    let outcome = Box::pin(decided(core, &run, &row, approval)).await;
    lock.release();
    outcome
}

async fn known(core: &Core, approval: &Approval) -> Result<(RunRow, IsolationRow), Error> {
    let id = &approval.run_id;
    let found = find(core, id).await?;
    found.ok_or_else(|| Error::not_found(format!("run {id} has no worktree of its own")))
}

/// Nobody else decides about what a run has handed in, or lets go of it, as long as this is held.
async fn lock_of(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    patience: Duration,
) -> Result<RunLock, Error> {
    let parts = &core.parts;
    let place = LockedPlace::worktree(&parts.state_dir, &row.worktree_path);
    let holder = format!("the merge of run {}", run.id);
    RunLock::acquire_at(&place, &holder, patience, &parts.blocking).await
}

/// The answer to an approval from the record; `None`: it is to be decided. Pure.
fn answered(
    run: &RunRow,
    row: &IsolationRow,
    approval: &Approval,
) -> Result<Option<MergeOutcome>, Error> {
    let outcome = row.merge.as_ref().and_then(|merge| merge.outcome.clone());
    let (candidate, is_decided) = match (&row.candidate, run.status) {
        (Some(candidate), RunStatus::AwaitingReview) => (candidate, false),
        (Some(candidate), RunStatus::Merged | RunStatus::MergeFailed) => (candidate, true),
        (_, RunStatus::Merging) => {
            let message = format!("run {} is being merged; nothing was decided", run.id);
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        _ => return Err(not_in_review(run)),
    };
    let is_same = [
        Some(&*candidate.commit) == Some(&*approval.commit),
        candidate.tree.as_deref() == Some(&*approval.tree),
        row.base == approval.base,
        candidate.diff.as_deref() == Some(&*approval.diff),
    ];
    match is_same.contains(&false) {
        true => Err(stale(
            run,
            "it has handed in something else than was approved",
        )),
        false if is_decided => Ok(outcome),
        false => Ok(None),
    }
}

/// The approval is of something that is not there any more.
fn stale(run: &RunRow, why: &str) -> Error {
    let message = format!(
        "the review of run {} is stale: {why}; nothing was merged",
        run.id
    );
    Error::new(ErrorKind::Conflict, message)
}

/// Puts the decision on record, and carries it out.
async fn decided(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    approval: &Approval,
) -> Result<MergeOutcome, Error> {
    let candidate = row.candidate.as_ref().ok_or_else(|| not_in_review(run))?;
    let requires_base = approval.require_current_base;
    let target_advanced = looked_at(core, run, (row, candidate), requires_base).await?;
    let merge = MergeRow {
        approved_at: core.parts.now(),
        ref_only: approval.ref_only,
        require_current_base: approval.require_current_base,
        planned: None,
        outcome: None,
    };
    begin(
        core,
        run,
        (row, candidate),
        approval,
        &merge,
        target_advanced,
    )
    .await?;
    let attempt = Attempt {
        core,
        run,
        row,
        candidate,
        merge: &merge,
    };
    match attempts(&attempt).await {
        Ok(outcome) => {
            conclude(core, run, row, &merge, &outcome, false).await?;
            Ok(outcome)
        }
        Err(e) => failed(core, run, row, e).await,
    }
}

/// Tries until the branch stays where it was found, or patience ends.
async fn attempts(attempt: &Attempt<'_>) -> Result<MergeOutcome, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Box::pin(attempt.carry_out()).await {
            Err(e) if e.kind() == ErrorKind::HeadMoved && !e.touched() => {
                if Instant::now() >= deadline {
                    let reason = format!(
                        "somebody has moved the branch or changed its checkout again and again for {} seconds",
                        PATIENCE.as_secs()
                    );
                    return Ok(MergeOutcome::Blocked { reason });
                }
                tracing::debug!(run = %attempt.run.id, error = %e.chain(), "once more");
            }
            done => return done,
        }
    }
}

/// Makes sure that what was handed in is there as it was, and goes on from what the originating
/// branch has. Answers whether others have moved that since.
async fn looked_at(
    core: &Core,
    run: &RunRow,
    (row, candidate): (&IsolationRow, &Candidate),
    requires_base: bool,
) -> Result<bool, Error> {
    let (parts, of) = (core.parts.clone(), row.clone());
    let look = move || {
        let backend = run_worktree::backend(&parts)?;
        let worktrees = run_worktree::of_backend(&*backend)?;
        let found = worktrees.look(&Operation::unbounded(), &run_worktree::of_row(&of))?;
        Ok::<_, Error>(found)
    };
    let found = core.parts.blocking.run(look).await??;
    let is_same = found.tip.as_ref().is_some_and(|tip| {
        tip.commit == candidate.commit && Some(&*tip.tree) == candidate.tree.as_deref()
    });
    if !is_same {
        return Err(stale(
            run,
            "its branch has something else than it handed in",
        ));
    }
    if found.directory != RunDirectory::Right {
        return Err(stale(run, "its worktree is not there any more"));
    }
    let of = Repository::of(core, run, row).await?;
    let (branch, base) = (row.originating_branch.clone(), row.base.clone());
    let run = run.clone();
    let commit = candidate.commit.clone();
    let look = move || {
        if !of.reaches(&commit, &base)? {
            let why = "what it handed in does not go on from the commit that it was compared with";
            return Err(stale(&run, why));
        }
        // That it is gone is told once it is decided.
        let Some(tip) = of.tip(&branch)? else {
            return Ok(false);
        };
        check_base(&of, &run, (&tip, &base), requires_base)?;
        Ok::<_, Error>(tip != base)
    };
    core.parts.blocking.run_long(look).await?
}

/// Refuses a tip of the originating branch that does not go on from what the run was compared with.
/// Blocks.
fn check_base(
    of: &Repository,
    run: &RunRow,
    (tip, base): (&str, &str),
    requires_base: bool,
) -> Result<(), Error> {
    if tip == base {
        return Ok(());
    }
    if requires_base {
        let why = "the branch that it was cut from has moved on, and has to be as it was";
        return Err(stale(run, why));
    }
    match of.reaches(tip, base)? {
        true => Ok(()),
        false => Err(stale(
            run,
            "the branch that it was cut from does not have the commit any more that it was compared with",
        )),
    }
}

/// The decision is on record on `Ok`, before anything moves.
async fn begin(
    core: &Core,
    run: &RunRow,
    (row, candidate): (&IsolationRow, &Candidate),
    approval: &Approval,
    merge: &MergeRow,
    target_advanced: bool,
) -> Result<(), Error> {
    let approved = ReviewDecided {
        request_id: &candidate.request_id,
        reviewer: approval.reviewer.as_deref(),
    };
    let said = MergeStarted {
        tree: &approval.tree,
        branch: &row.originating_branch,
        target_advanced,
    };
    let decided = IsolationChange::Decided {
        run_id: run.id.clone(),
        reviewed_by: approval.reviewer.clone(),
    };
    let end = End {
        from: Some(RunStatus::AwaitingReview),
        changes: vec![
            Change::Isolation(decided),
            Change::Isolation(kept(run, merge)),
            told(core, run, EventType::REVIEW_APPROVED, approved),
        ],
        ..End::of_row(RunEvent::Approved, said, run)
    };
    end_run(core, (&run.session_id, &run.id), end).await
}

fn kept(run: &RunRow, merge: &MergeRow) -> IsolationChange {
    IsolationChange::Merge {
        run_id: run.id.clone(),
        merge: Box::new(merge.clone()),
    }
}

fn told(core: &Core, run: &RunRow, what: EventType, said: impl serde::Serialize) -> Change {
    let at = core.parts.now();
    Change::Append(NewEvent::new(
        what,
        &run.session_id,
        Some(&run.id),
        at,
        said,
    ))
}

/// Puts on record what came of it, and lets go of what is merged.
async fn conclude(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    merge: &MergeRow,
    outcome: &MergeOutcome,
    recovered: bool,
) -> Result<(), Error> {
    let merge = MergeRow {
        planned: None,
        outcome: Some(outcome.clone()),
        ..merge.clone()
    };
    let mut changes = vec![Change::Isolation(kept(run, &merge))];
    let end = match outcome {
        MergeOutcome::Merged(merged) => {
            let said = MergeCompleted {
                commit: &merged.commit,
                previous_head: &merged.previous_head,
                new_head: &merged.new_head,
                mode: merged.mode.as_str(),
                fast_forward: merged.fast_forward,
                left_behind: &merged.left_behind,
                recovered,
            };
            End::of_row(RunEvent::Merged, said, run)
        }
        MergeOutcome::Conflict { files, more } => {
            let said = MergeConflicted {
                conflicting_files: files,
                more: *more,
            };
            changes.push(told(core, run, EventType::MERGE_CONFLICTED, said));
            let reason = format!("{} paths are in conflict", files.len() as u64 + more);
            End::of_row(RunEvent::Conflicted, MergeStopped { reason: &reason }, run)
        }
        MergeOutcome::Blocked { reason } => {
            End::of_row(RunEvent::MergeBlocked, MergeStopped { reason }, run)
        }
    };
    let end = End {
        from: Some(RunStatus::Merging),
        is_recovered: recovered,
        changes,
        ..end
    };
    end_run(core, (&run.session_id, &run.id), end).await?;
    if !matches!(outcome, MergeOutcome::Blocked { .. }) {
        end_own_session(core, run).await;
    }
    if let MergeOutcome::Merged(_) = outcome {
        // It is merged: what cannot be let go of now is by the next engine, or by hand.
        if let Err(e) = let_go(core, run, row, recovered).await {
            tracing::warn!(run = %run.id, error = %e.chain(), "its worktree stays");
            core.parts.lock.leave_work();
        }
    }
    Ok(())
}

/// What comes of a merge that ended with an error: the run waits as before, unless the branch has
/// moved all the same. Where that cannot be told, the next engine finds out.
async fn failed(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    error: Error,
) -> Result<MergeOutcome, Error> {
    match Box::pin(settle_held(core, run, row, false)).await {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => Err(error),
        Err(more) => {
            tracing::warn!(run = %run.id, error = %more.chain(), "not settled");
            core.parts.lock.leave_work();
            Err(error)
        }
    }
}

/// Finds out what became of a merge whose engine may be dead.
pub(crate) async fn settle(core: &Core, run: &RunRow) -> Result<Settled, Error> {
    let Some((_, row)) = find(core, &run.id).await? else {
        return Ok(Settled::Done);
    };
    let lock = match lock_of(core, run, &row, Duration::ZERO).await {
        // It is at work.
        Err(e) if e.kind() == ErrorKind::Busy => return Ok(Settled::Left),
        lock => lock?,
    };
    if let Some((run, row)) = find(core, &run.id).await?
        && run.status == RunStatus::Merging
    {
        Box::pin(settle_held(core, &run, &row, true)).await?;
    }
    lock.release();
    Ok(Settled::Done)
}

/// A merge that nobody carries out is done if the originating branch has what was approved; else the
/// run waits as before. What is half done in a checkout is carried on to its end first. Whoever calls
/// has the lock. Answers with what came of it, if it is done.
async fn settle_held(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    recovered: bool,
) -> Result<Option<MergeOutcome>, Error> {
    // Read again, with what was planned last.
    let row = match find(core, &run.id).await? {
        Some((_, row)) => row,
        None => row.clone(),
    };
    let (Some(candidate), Some(merge)) = (&row.candidate, &row.merge) else {
        let message = format!("run {} is being merged, and has handed nothing in", run.id);
        return Err(Error::new(ErrorKind::Corrupt, message));
    };
    let of = Repository::of(core, run, &row).await?;
    let is_with_files = |planned: &MergedRun| planned.mode != MergeMode::RefOnly;
    if merge.planned.as_ref().is_some_and(is_with_files) {
        checkout::carry_on(core, of.clone(), &row.originating_branch).await?;
    }
    let (branch, commit) = (row.originating_branch.clone(), candidate.commit.clone());
    let planned = merge.planned.clone();
    let base = row.base.clone();
    let look = move || {
        let Some(tip) = of.tip(&branch)?.filter(|tip| *tip != base) else {
            return Ok::<_, Error>(None);
        };
        if let Some(planned) = planned
            && of.reaches(&tip, &planned.new_head)?
        {
            return Ok(Some(planned));
        }
        // Somebody else has merged it.
        let is_merged = of.reaches(&tip, &commit)?;
        Ok(is_merged.then(|| MergedRun {
            commit,
            mode: MergeMode::RefOnly,
            previous_head: tip.clone(),
            new_head: tip,
            fast_forward: true,
            target_advanced: true,
            left_behind: Vec::new(),
            kept: Vec::new(),
        }))
    };
    let merged = core.parts.blocking.run_long(look).await??;
    if let Some(merged) = merged {
        let outcome = MergeOutcome::Merged(merged);
        conclude(core, run, &row, merge, &outcome, recovered).await?;
        return Ok(Some(outcome));
    }
    let waits = MergeRow {
        planned: None,
        ..merge.clone()
    };
    let end = End {
        from: Some(RunStatus::Merging),
        is_recovered: recovered,
        changes: vec![Change::Isolation(kept(run, &waits))],
        ..End::of_row(
            RunEvent::HandedIn,
            requested(&row, candidate, recovered),
            run,
        )
    };
    end_run(core, (&run.session_id, &run.id), end).await?;
    Ok(None)
}
