//! Reviews of what runs have handed in: finding it, and declining it.

use stillframe_backends::ErrorKind;

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::isolation_data::ReviewDecided;
use crate::id::RunId;
use crate::options::approval::check_reviewer;
use crate::records::isolated_run::IsolatedRun;
use crate::records::isolation::IsolationRow;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::run::end::{End, end_run};
use crate::run::give_up::end_own_session;
use crate::state::StateStore;
use crate::state::change::Change;
use crate::state::isolation_change::IsolationChange;

/// A run with the row of its worktree; `None`: it has none.
pub(crate) async fn find(
    core: &Core,
    run_id: &RunId,
) -> Result<Option<(RunRow, IsolationRow)>, Error> {
    let asked = run_id.clone();
    let read = move |store: &dyn StateStore| Ok(store.run(&asked)?.zip(store.isolation(&asked)?));
    core.parts.reader.read(read).await
}

/// What a host is told of a run with a worktree of its own.
pub(crate) async fn described(core: &Core, run_id: &RunId) -> Result<IsolatedRun, Error> {
    let asked = run_id.clone();
    let read = move |store: &dyn StateStore| {
        let found = store.run(&asked)?.zip(store.isolation(&asked)?);
        Ok(found.zip(Some(store.revisions(&asked)?)))
    };
    let found = core.parts.reader.read(read).await?;
    let ((run, row), revisions) = found.ok_or_else(|| unknown(run_id))?;
    Ok(IsolatedRun::of(run, row, revisions))
}

fn unknown(run_id: &RunId) -> Error {
    Error::not_found(format!("run {run_id} has no worktree of its own"))
}

/// Refuses a decision of somebody whom the host does not let decide.
pub(crate) async fn check_owner(
    core: &Core,
    run_id: &RunId,
    reviewer: Option<&str>,
) -> Result<(), Error> {
    let Some(check) = core.parts.settings.owner_check.clone() else {
        return Ok(());
    };
    let run = described(core, run_id).await?;
    match check.may_decide(run, reviewer.map(str::to_owned)).await {
        true => Ok(()),
        false => {
            let who = reviewer.unwrap_or("somebody without a name");
            let message = format!(
                "run {run_id} is not {who}'s to decide about (not its owner); nothing was decided"
            );
            Err(Error::new(ErrorKind::Conflict, message))
        }
    }
}

/// Declines what a run has handed in. One that is declined stays so, which is the same answer.
pub(crate) async fn decline(
    core: &Core,
    run_id: &RunId,
    reviewer: Option<String>,
) -> Result<IsolatedRun, Error> {
    check_reviewer(reviewer.as_deref())?;
    check_owner(core, run_id, reviewer.as_deref()).await?;
    let found = find(core, run_id).await?;
    let (run, row) = found.ok_or_else(|| unknown(run_id))?;
    if run.status == RunStatus::Declined {
        return described(core, run_id).await;
    }
    let candidate = match (&row.candidate, run.status) {
        (Some(candidate), RunStatus::AwaitingReview) => candidate,
        _ => return Err(not_in_review(&run)),
    };
    let said = ReviewDecided {
        request_id: &candidate.request_id,
        reviewer: reviewer.as_deref(),
    };
    let decided = IsolationChange::Decided {
        run_id: run_id.clone(),
        reviewed_by: reviewer.clone(),
    };
    let end = End {
        from: Some(RunStatus::AwaitingReview),
        changes: vec![Change::Isolation(decided)],
        ..End::of_row(RunEvent::Declined, said, &run)
    };
    let ended = end_run(core, (&run.session_id, run_id), end).await;
    let found = find(core, run_id).await?;
    let (run, _) = found.ok_or_else(|| unknown(run_id))?;
    match ended {
        // Somebody else has declined it in that moment, or decided otherwise.
        Err(e) if e.kind() == ErrorKind::Conflict && run.status != RunStatus::Declined => {
            Err(not_in_review(&run))
        }
        Err(e) if e.kind() != ErrorKind::Conflict => Err(e),
        _ => {
            end_own_session(core, &run).await;
            described(core, run_id).await
        }
    }
}

/// Refuses to decide about a run that nobody waits for.
pub(crate) fn not_in_review(run: &RunRow) -> Error {
    let message = format!(
        "run {} is {}, and not in review; nothing was decided",
        run.id, run.status
    );
    Error::new(ErrorKind::Conflict, message)
}
