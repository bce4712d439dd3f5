//! What a run with a worktree of its own hands in: its commit is made, compared with what the
//! branch was cut from, and put on record for a review.

use std::io::Write;

use stillframe_backends::{
    BranchTip, CommitError, CommitInfo, CommitOutcome, DiffOptions, ErrorKind, LockedWorkspace,
    Operation,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::RunEnded;
use crate::events::event::EventType;
use crate::events::isolation_data::{NoChangesProduced, ReviewRequested};
use crate::id::{ReviewRequestId, RunId};
use crate::options::WorkspaceOptions;
use crate::records::effect::CommitRecord;
use crate::records::isolation::{Candidate, IsolationRow};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::run::closing::{self, CLOSING_LOCK_TIMEOUT, Keeping, PATCH};
use crate::run::end::{End, end_run};
use crate::run::on_record::Settled;
use crate::run::{let_go, owner, patch};
use crate::state::StateStore;
use crate::state::change::{Change, NewEvent};
use crate::state::isolation_change::IsolationChange;
use crate::step::artifact;
use crate::workspace::finish::is_for_later;
use crate::workspace::opened::Opened;
use crate::workspace::{run_worktree, turn};

/// The tip of the run's branch, once the commit is made.
struct Tip {
    at: BranchTip,
    /// The commit that was made for the run; `None`: there was nothing to commit.
    made: Option<CommitInfo>,
}

/// Hands in what a [candidate](RunStatus::Candidate) has: all of it is durable on `Ok`, with the
/// status that the run has then. It may be repeated. `right`: what refuses it if the run is
/// somebody else's by then.
///
/// What has changed nothing is let go of, and has completed.
pub(crate) async fn hand_in(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    right: Change,
    is_recovered: bool,
) -> Result<RunStatus, Error> {
    let opened = opened(core, run, row, is_recovered).await?;
    let (parts, of) = (core.parts.clone(), row.clone());
    let what = "what a run hands in";
    let tip = turn::work(
        core,
        &opened.workspace,
        what,
        CLOSING_LOCK_TIMEOUT,
        move |locked| committed(&parts, locked, &of),
    );
    let tip = tip.await?;
    if tip.at.commit == row.base {
        return nothing_changed(core, run, row, right, is_recovered).await;
    }
    let diff = compared(core, &opened, run, (&row.base, &tip.at.commit)).await?;
    let candidate = Candidate {
        request_id: ReviewRequestId::random(),
        commit: tip.at.commit,
        tree: Some(tip.at.tree),
        diff: Some(diff),
        ready_at: core.parts.now(),
    };
    let made = tip.made.map(|info| {
        let record = CommitRecord::of_git(info, &run.id, None, core.parts.now());
        Change::RecordCommit(Box::new(record))
    });
    handed_in(core, run, row, candidate, (right, made), is_recovered).await?;
    Ok(RunStatus::AwaitingReview)
}

/// Puts on record what is handed in.
async fn handed_in(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    candidate: Candidate,
    (right, made): (Change, Option<Change>),
    recovered: bool,
) -> Result<(), Error> {
    let said = requested(row, &candidate, recovered);
    let hand_in = IsolationChange::HandIn {
        run_id: run.id.clone(),
        candidate: Box::new(candidate.clone()),
    };
    let end = End {
        from: Some(RunStatus::Candidate),
        right: Some(right),
        is_recovered: recovered,
        changes: made
            .into_iter()
            .chain([Change::Isolation(hand_in)])
            .collect(),
        ..End::new(RunEvent::HandedIn, said)
    };
    end_run(core, (&run.session_id, &run.id), end).await
}

/// What the event says that asks for a review.
pub(crate) fn requested<'a>(
    row: &'a IsolationRow,
    candidate: &'a Candidate,
    recovered: bool,
) -> ReviewRequested<'a> {
    ReviewRequested {
        request_id: &candidate.request_id,
        branch: &row.worktree_branch,
        base: &row.base,
        commit: &candidate.commit,
        tree: candidate.tree.as_deref(),
        recovered,
    }
}

/// The worktree as a workspace; one that is gone is made again from its branch.
async fn opened(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    is_recovered: bool,
) -> Result<Opened, Error> {
    let (parts, run, row) = (core.parts.clone(), run.clone(), row.clone());
    let open = move || {
        if is_recovered {
            let backend = run_worktree::backend(&parts)?;
            let worktrees = run_worktree::of_backend(&*backend)?;
            let worktree = run_worktree::of_row(&row);
            worktrees.ensure(&Operation::unbounded(), &worktree, None, parts.now())?;
        }
        let options = WorkspaceOptions::at(&row.worktree_path);
        Opened::worktree_of(&parts, &run, &row, options)
    };
    core.parts.blocking.run_long(open).await?
}

/// Makes the commit, or what is left of it. Where somebody has moved the branch, what they have put
/// there is what is handed in.
fn committed(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    row: &IsolationRow,
) -> Result<Tip, Error> {
    let (op, backend) = (&Operation::unbounded(), run_worktree::backend(parts)?);
    let repository = backend.committing()?;
    let mut made = None;
    if let Some(intent) = &row.intent {
        let applied = match repository.apply_commit(op, locked, intent) {
            // Whatever was in the way may have been there for a moment.
            Err(CommitError::Incomplete { .. }) => repository.apply_commit(op, locked, intent),
            applied => applied,
        };
        if let CommitOutcome::InPlace { commit, .. } = applied? {
            made = repository.commit_info(op, locked, &commit).ok();
        }
    }
    let worktrees = run_worktree::of_backend(&*backend)?;
    let found = worktrees.look(op, &run_worktree::of_row(row))?;
    let at = found.tip.ok_or_else(|| {
        let message = format!("the branch {} is gone", row.worktree_branch);
        Error::new(ErrorKind::Conflict, message)
    })?;
    Ok(Tip { at, made })
}

/// Compares the base with the tip, and keeps the patch as an artifact. Answers with its key.
async fn compared(
    core: &Core,
    opened: &Opened,
    run: &RunRow,
    (base, tip): (&str, &str),
) -> Result<String, Error> {
    let stem = format!("{PATCH}{base}_{tip}_");
    let (shared, ids) = (core.clone(), (run.session_id.clone(), run.id.clone()));
    let commits = (base.to_owned(), tip.to_owned());
    let what = "a comparison";
    let work = turn::work(
        core,
        &opened.workspace,
        what,
        CLOSING_LOCK_TIMEOUT,
        move |locked| {
            let backend = run_worktree::backend(&shared.parts)?;
            let repository = backend.committing()?;
            let compare = |out: &mut dyn Write| {
                let options = DiffOptions::with_patch();
                let commits = (&*commits.0, &*commits.1);
                let op = Operation::unbounded();
                Ok(repository.compare_commits(&op, locked, commits, &options, out)?)
            };
            let keep = |patch| closing::keep(&shared, &stem, (&ids.0, &ids.1), patch);
            let held = DiffOptions::default().max_patch_bytes;
            let (_, keeping) = patch::offloaded(held, compare, |_| true, keep)?;
            let keeping: Result<Keeping, Error> = keeping.expect("it is wanted");
            keeping
        },
    );
    let (key, put) = work.await?.kept().await?;
    if let Some((meta, held)) = put {
        let whose = (&run.session_id, Some(&run.id));
        let record = artifact::record(&core.parts, whose, meta, "text/x-patch");
        let changes = vec![Change::RegisterArtifact(Box::new(record))];
        let writer = &core.parts.writer;
        writer.commit_and_release(changes, Some(held)).await?;
    }
    Ok(key.into())
}

/// Ends a run that has changed nothing that could be committed, and lets go of its worktree if that
/// has nothing more.
async fn nothing_changed(
    core: &Core,
    run: &RunRow,
    row: &IsolationRow,
    right: Change,
    recovered: bool,
) -> Result<RunStatus, Error> {
    let said = NoChangesProduced {
        message: "the run has changed nothing that could be committed",
        recovered,
    };
    let (told, at) = (EventType::RUN_NO_CHANGES_PRODUCED, core.parts.now());
    let tell = NewEvent::new(told, &run.session_id, Some(&run.id), at, said);
    let ended = RunEnded {
        exit_code: Some(run.exit_code),
        recovered,
        ..RunEnded::default()
    };
    let end = End {
        from: Some(RunStatus::Candidate),
        right: Some(right),
        is_recovered: recovered,
        changes: vec![Change::Append(tell)],
        ..End::of_row(RunEvent::Done, ended, run)
    };
    end_run(core, (&run.session_id, &run.id), end).await?;
    if row.leaves_something() {
        return Ok(RunStatus::Completed);
    }
    // It has ended: what cannot be let go of now is by the next engine, or by hand.
    if let Err(e) = let_go::let_go(core, run, row, recovered).await {
        tracing::warn!(run = %run.id, error = %e.chain(), "its worktree stays");
        core.parts.lock.leave_work();
    }
    Ok(RunStatus::Completed)
}

/// Hands in what a dead engine was about to. Where its worktree cannot be had as it was, the run is
/// under review with what is known, and whoever looks at that finds what is missing.
pub(crate) async fn settle(core: &Core, run: RunRow) -> Result<Settled, Error> {
    let parts = &core.parts;
    let asked = run.id.clone();
    let read = move |store: &dyn StateStore| Ok((store.isolation(&asked)?, store.lease(&asked)?));
    let (row, lease) = parts.reader.read(read).await?;
    let row = row.ok_or_else(|| {
        let message = format!(
            "run {} hands something in, and has no worktree on record",
            run.id
        );
        Error::new(ErrorKind::Corrupt, message)
    })?;
    let lease = lease.ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("run {} has no lease on record", run.id),
        )
    })?;
    let right = owner::taken_from_owner(parts, &run.id, lease, parts.now())?;
    match hand_in(core, &run, &row, right.clone(), true).await {
        Ok(_) => Ok(Settled::Done),
        // Somebody else has settled it.
        Err(e) if e.kind() == ErrorKind::Conflict && has_moved(core, &run.id).await? => {
            Ok(Settled::Done)
        }
        Err(e) if is_for_later(e.kind()) => {
            tracing::warn!(run = %run.id, error = %e.chain(), "not settled");
            Ok(Settled::Left)
        }
        Err(e) => {
            tracing::warn!(run = %run.id, error = %e.chain(), "it is handed in as far as it is known");
            let candidate = Candidate {
                request_id: ReviewRequestId::random(),
                commit: row
                    .intent
                    .as_ref()
                    .map_or(&row.base, |intent| &intent.commit)
                    .clone(),
                tree: row.intent.as_ref().map(|intent| intent.tree.clone()),
                diff: None,
                ready_at: parts.now(),
            };
            handed_in(core, &run, &row, candidate, (right, None), true).await?;
            Ok(Settled::Done)
        }
    }
}

async fn has_moved(core: &Core, run_id: &RunId) -> Result<bool, Error> {
    let asked = run_id.clone();
    let run = core
        .parts
        .reader
        .read(move |store| store.run(&asked))
        .await?;
    Ok(run.is_none_or(|run| run.status != RunStatus::Candidate))
}
