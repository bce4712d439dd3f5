//! Runs that work in worktrees of their own: what they hand in for review, and letting go of them.

use std::time::Duration;

use serde::Deserialize as _;
use serde::de::IgnoredAny;
use stillframe_backends::{DiffOptions, ErrorKind, Operation};

use super::Engine;
use crate::actors::core::Core;
use crate::error::Error;
use crate::options::{Approval, ChangeRequest, RunOptions};
use crate::records::isolated_run::{DiscardedWorktree, IsolatedRun};
use crate::records::isolation::IsolationRow;
use crate::records::merge::MergeOutcome;
use crate::records::outcome::{DiffOutcome, RunOutcome};
use crate::records::run::RunStatus;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::run::let_go::{LetGo, let_go};
use crate::run::lock::{LockedPlace, RunLock};
use crate::run::{merging, reviewing};
use crate::state::StateStore;
use crate::state::run_name::find_run;
use crate::step::adapter::Adapter;
use crate::workspace::{compare, run_worktree, turn};

impl Engine {
    /// The runs whose worktrees are kept, in the order in which they were accepted: those at work,
    /// those in review, and those that have ended until
    /// [`Engine::discard_worktree`] lets go of them.
    pub async fn isolated_runs(&self) -> Result<Vec<IsolatedRun>, Error> {
        self.read(|store| {
            let mut runs = Vec::new();
            for row in store.isolations_kept()? {
                if let Some(run) = store.run(&row.run_id)? {
                    let revisions = store.revisions(&run.id)?;
                    runs.push(IsolatedRun::of(run, row, revisions));
                }
            }
            Ok(runs)
        })
        .await
    }

    /// What waits for somebody's decision, in the order in which the runs were accepted.
    pub async fn pending_reviews(&self) -> Result<Vec<IsolatedRun>, Error> {
        let mut runs = self.isolated_runs().await?;
        runs.retain(|run| run.status == RunStatus::AwaitingReview);
        Ok(runs)
    }

    /// A run that works in a worktree of its own, or did, and what it has handed in. `id`: that of
    /// the run, or a beginning that no other run has.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run, or it works in its workspace. `InvalidOptions`: several
    /// runs begin so.
    pub async fn review(&self, id: &str) -> Result<Review, Error> {
        let (run, _) = self.isolated(id).await?;
        Ok(Review {
            core: self.core.clone(),
            run: reviewing::described(&self.core, &run.id).await?,
        })
    }

    /// Has a run change what it has handed in, and hand that in anew: `adapter` works in the same
    /// worktree, on the same branch, and gets the comment as
    /// [`RunContext::revision`](crate::RunContext::revision). `id`: as of [`Engine::review`]. What
    /// `options` leave out is as the run was started.
    ///
    /// # Errors
    ///
    /// Nothing was decided. `NotFound`: as of [`Engine::review`]. `Conflict`: the run is not in
    /// review, or not the reviewer's to decide about. `InvalidOptions`: the comment or the reviewer's name is none. `LimitExceeded`: the
    /// run has had ten revisions.
    pub async fn request_changes(
        &self,
        id: &str,
        request: ChangeRequest,
        options: RunOptions,
        adapter: impl Adapter,
    ) -> Result<RunOutcome, Error> {
        request.cleaned()?;
        let (run, _) = self.isolated(id).await?;
        reviewing::check_owner(&self.core, &run.id, request.reviewer.as_deref()).await?;
        if run.status != RunStatus::AwaitingReview {
            return Err(reviewing::not_in_review(&run));
        }
        let options = going_on(options, run, request)?;
        self.run_once(options, adapter).await
    }

    /// Lets go of the worktree and the branch of a run that has ended. What is in the worktree is
    /// captured before that, with the commits that only its branch has, and the directory goes to
    /// the trash of that snapshot. It may be repeated, also after a crash at any point: what was
    /// let go of before is the same answer.
    ///
    /// # Errors
    ///
    /// `NotFound`, `InvalidOptions`: as of [`Engine::review`]. `Conflict`: the run has not ended,
    /// or something that is not the run's is in the place of its worktree, and was not touched.
    /// `HeadMoved`: somebody has moved the branch in that moment, and it stays. `Busy`: something
    /// that the run has started is at work there, or somebody holds a lock of git's.
    pub async fn discard_worktree(&self, id: &str) -> Result<DiscardedWorktree, Error> {
        let (run, row) = self.isolated(id).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { discard(&core, run, row).await })
            .await
    }

    async fn isolated(&self, id: &str) -> Result<(RunRow, IsolationRow), Error> {
        let id = id.to_owned();
        let find = move |store: &dyn StateStore| {
            let run = find_run(store, &id)?;
            let row = store.isolation(&run.id)?;
            row.map(|row| (run, row))
                .ok_or_else(|| Error::not_found(format!("run {id} has no worktree of its own")))
        };
        self.core.parts.reader.read_with(find).await
    }
}

/// The options of a run that goes on with a request for changes.
fn going_on(
    mut options: RunOptions,
    run: RunRow,
    request: ChangeRequest,
) -> Result<RunOptions, Error> {
    let kept = KeptOptions::<IgnoredAny>::deserialize(&run.options)
        .map_err(|e| Error::new(ErrorKind::Corrupt, e))?;
    let timeout = kept.timeout_ms.map(Duration::from_millis);
    options.timeout = options.timeout.or(timeout);
    options.input = run.input;
    options.run_id = Some(run.id);
    options.changes = Some(request);
    Ok(options)
}

async fn discard(core: &Core, run: RunRow, row: IsolationRow) -> Result<DiscardedWorktree, Error> {
    let gone = match (row.let_go_at, run.status.is_terminal()) {
        (Some(_), _) => LetGo::default(),
        (None, true) => {
            let parts = &core.parts;
            let place = LockedPlace::worktree(&parts.state_dir, &row.worktree_path);
            let lock_timeout = parts.settings.lock_timeout;
            let what = "a worktree that is let go of";
            let lock = RunLock::acquire_at(&place, what, lock_timeout, &parts.blocking).await?;
            let gone = let_go(core, &run, &row, false).await?;
            lock.release();
            gone
        }
        (None, false) => {
            let first = match run.status {
                RunStatus::AwaitingReview => "decide about it first",
                _ => "cancel it first",
            };
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "run {} is {}: {first}; nothing was touched",
                    run.id, run.status
                ),
            ));
        }
    };
    Ok(DiscardedWorktree {
        run: reviewing::described(core, &run.id).await?,
        branch_was_at: gone.commit,
        snapshot_id: gone.snapshot,
    })
}

/// A run that works in a worktree of its own, as it was when it was asked for, and the decisions
/// about it: see [`Engine::review`].
#[derive(Clone)]
pub struct Review {
    core: Core,
    run: IsolatedRun,
}

impl Review {
    /// The run, and what it has handed in.
    pub fn run(&self) -> &IsolatedRun {
        &self.run
    }

    /// Compares the commit that was handed in with the one that the run was cut from.
    ///
    /// # Errors
    ///
    /// `Conflict`: nothing was handed in. `Corrupt`: the repository has not all of it any more; the
    /// artifact that [`diff`](crate::records::IsolationRecord::diff) names has the patch.
    pub async fn diff(&self, options: DiffOptions) -> Result<DiffOutcome, Error> {
        let (core, run) = (self.core.clone(), self.run.clone());
        self.core
            .operation(async move { diff(&core, &run, options).await })
            .await
    }

    /// Approves what was handed in, and merges it into the branch that the run was cut from: a
    /// fast-forward where that has not moved on, and else a merge as git's. Where the branch is
    /// checked out, files and index of that work tree come along, and what is changed there beside
    /// them stays as it is. Then the run's worktree and branch are let go of, as by
    /// [`Engine::discard_worktree`].
    ///
    /// The decision is on record before anything moves. To approve what was merged is the same
    /// answer, and so it is where the merge was in conflict.
    ///
    /// # Errors
    ///
    /// `Conflict`: the run is not in review; or what was handed in is not what was approved, or the
    /// originating branch does not have any more what it was compared with, so that the approval is
    /// void. Nothing moved, and the run still waits. `InvalidOptions`: the reviewer's name is none.
    /// `Busy`: the checkout is in use, or somebody holds a lock of git's for longer than five
    /// seconds; nothing moved.
    pub async fn approve(&self, approval: Approval) -> Result<MergeOutcome, Error> {
        let core = self.core.clone();
        self.core
            .operation(async move { merging::approve(&core, &approval).await })
            .await
    }

    /// Declines what was handed in. The originating branch is as it was, and worktree and branch of
    /// the run stay. To decline what is declined is the same answer. `reviewer`: whose decision it
    /// is, in 1 to 200 characters.
    ///
    /// # Errors
    ///
    /// `Conflict`: the run is not in review. `InvalidOptions`: that is no name.
    pub async fn decline(&self, reviewer: Option<&str>) -> Result<IsolatedRun, Error> {
        let (core, id) = (self.core.clone(), self.run.run_id.clone());
        let reviewer = reviewer.map(str::to_owned);
        self.core
            .operation(async move { reviewing::decline(&core, &id, reviewer).await })
            .await
    }
}

async fn diff(core: &Core, run: &IsolatedRun, options: DiffOptions) -> Result<DiffOutcome, Error> {
    let isolation = &run.isolation;
    let Some(commit) = isolation.commit.clone() else {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "run {} is {}, and has handed nothing in",
                run.run_id, run.status
            ),
        ));
    };
    let commits = (isolation.base.clone(), commit);
    let found = reviewing::find(core, &run.run_id).await?;
    let (row, isolation) = found
        .ok_or_else(|| Error::not_found(format!("there is no run {} any more", run.run_id)))?;
    let parts = core.parts.clone();
    let open = move || run_worktree::any_of(&parts, &row, &isolation);
    let workspace = core.parts.blocking.run(open).await??;
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    turn::work(
        core,
        &workspace,
        "a comparison",
        lock_timeout,
        move |locked| {
            let backend = run_worktree::backend(&parts)?;
            let repository = backend.committing()?;
            let op = Operation::unbounded();
            let (diff, patch) = compare::spooled(&parts, |out| {
                let commits = (&*commits.0, &*commits.1);
                Ok(repository.compare_commits(&op, locked, commits, &options, out)?)
            })?;
            let patch = options.capture_patch.then_some(patch);
            Ok(DiffOutcome { diff, patch })
        },
    )
    .await
}
