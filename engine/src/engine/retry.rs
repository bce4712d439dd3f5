//! Running again what a run has failed at.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize as _;
use stillframe_backends::ErrorKind;

use super::Engine;
use crate::actors::Parts;
use crate::error::Error;
use crate::options::{IsolationOptions, RunOptions, WorkspaceOptions};
use crate::records::isolation::IsolationRow;
use crate::records::outcome::RunOutcome;
use crate::records::run::RunStatus;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::state::StateStore;
use crate::state::run_name::find_run;
use crate::step::adapter::Adapter;
use crate::workspace::run_worktree;

/// How many runs may follow one another, each in the place of one that failed.
const MAX_RETRIES: usize = 3;

impl Engine {
    /// Does again, in a new run, what a run has failed at that had no task: one that failed, whose
    /// time was up, or whose merge was in conflict. What `options` leave out is as that was started:
    /// its input, its workspace, its limits, and whether it works in a worktree of its own, which is
    /// a new one. The failed run stays as it is. `id`: that of the run, or a beginning that no other
    /// run has.
    ///
    /// # Errors
    ///
    /// Nothing was started. `NotFound`: there is no such run. `InvalidOptions`: several runs begin
    /// so; or it is of a task, whose next run goes on from its branch. `Conflict`: it has not failed.
    /// `LimitExceeded`: it was itself started in the place of another, and so on, three times.
    pub async fn retry_run(
        &self,
        id: &str,
        options: RunOptions,
        adapter: impl Adapter,
    ) -> Result<RunOutcome, Error> {
        let id = id.to_owned();
        let find = move |store: &dyn StateStore| {
            let run = find_run(store, &id)?;
            let isolation = store.isolation(&run.id)?;
            let earlier = earlier(store, &run)?;
            Ok((run, isolation, earlier))
        };
        let (run, isolation, earlier) = self.core.parts.reader.read_with(find).await?;
        let kept = kept(&run)?;
        check(&run, earlier, kept.work_branch.is_some())?;
        let parts = self.core.parts.clone();
        let started = move || as_started(&parts, options, &run, kept, isolation.as_ref());
        let options = self.core.parts.blocking.run(started).await??;
        self.run_once(options, adapter).await
    }
}

type Kept = KeptOptions<Option<WorkspaceOptions>>;

fn kept(run: &RunRow) -> Result<Kept, Error> {
    Kept::deserialize(&run.options).map_err(|e| {
        let message = format!("the options of run {} cannot be read: {e}", run.id);
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// How many runs failed before this one, each in the place of the one before.
fn earlier(store: &dyn StateStore, run: &RunRow) -> Result<usize, Error> {
    let mut from = kept(run)?.retried_from;
    let mut count = 0;
    while let (Some(id), true) = (from, count < MAX_RETRIES) {
        count += 1;
        from = match store.run(&id)? {
            Some(earlier) => kept(&earlier)?.retried_from,
            None => None,
        };
    }
    Ok(count)
}

/// Refuses what is not done again. Pure.
fn check(run: &RunRow, earlier: usize, is_of_task: bool) -> Result<(), Error> {
    let (id, status) = (&run.id, run.status);
    let has_failed = matches!(
        status,
        RunStatus::Failed | RunStatus::Timeout | RunStatus::MergeFailed
    );
    if !has_failed {
        let message = format!("run {id} is {status}, and has not failed; nothing was started");
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    if is_of_task {
        return Err(Error::invalid_options(format!(
            "run {id} is of a task, and the next run of that goes on from its branch; nothing was started"
        )));
    }
    match earlier < MAX_RETRIES {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "run {id} was started after {MAX_RETRIES} that failed, which is the most; nothing was started"
            ),
        )),
    }
}

/// The options of a run in the place of `run`, of which `row` is if it worked in a worktree of its
/// own. Blocks.
fn as_started(
    parts: &Parts,
    mut options: RunOptions,
    run: &RunRow,
    kept: Kept,
    row: Option<&IsolationRow>,
) -> Result<RunOptions, Error> {
    let place: Option<PathBuf> = match row {
        Some(row) => Some(run_worktree::cut_from(parts, run, row).map_or_else(
            || row.repository_path.clone(),
            |of| of.disk_path().to_owned(),
        )),
        None => run.workspace.as_ref().map(|place| place.path.clone()),
    };
    if let (None, Some(mut workspace)) = (&options.workspace, kept.workspace) {
        if let Some(place) = place {
            workspace.path = place;
        }
        options.workspace = Some(workspace);
    }
    if options.input.is_empty() {
        options.input.clone_from(&run.input);
    }
    if options.metadata.is_null() {
        options.metadata = kept.metadata;
    }
    let isolation = kept.isolation.map(IsolationOptions::deserialize);
    let isolation = isolation.transpose().map_err(|e| {
        let message = format!("the options of run {} cannot be read: {e}", run.id);
        Error::new(ErrorKind::Corrupt, message)
    })?;
    let isolation = isolation.map(|mut isolation| {
        // Whatever is checked out by now.
        let branch = row.map(|row| row.originating_branch.clone());
        isolation.from = isolation.from.or(branch);
        isolation
    });
    options.isolation = options.isolation.or(isolation);
    let millis = |ms: Option<u64>| ms.map(Duration::from_millis);
    options.timeout = options.timeout.or(millis(kept.timeout_ms));
    options.hot_wait = options.hot_wait.or(millis(kept.hot_wait_ms));
    options.limits = options.limits.within(&kept.limits);
    options.resumable |= kept.begun_as.resumable;
    options.retried_from = Some(run.id.clone());
    Ok(options)
}
