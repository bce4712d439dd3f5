//! A run that works in a worktree of its own: making that, and preparing what is handed in.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde::Deserialize as _;
use serde::de::IgnoredAny;
use stillframe_backends::{
    CommitRequest, ErrorKind, Interrupt, Label, Operation, PreparedCandidate, RelPath, RunWorktree,
    SnapshotId, Workspace, printable,
};

use super::{RunPlace, RunTask};
use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::data;
use crate::events::isolation_data::RunConcluded;
use crate::failure::Failure;
use crate::id::RunId;
use crate::options::isolation::IsolationOptions;
use crate::options::{RunOptions, WorkspaceOptions};
use crate::records::isolated_run::IsolationRecord;
use crate::records::isolation::IsolationRow;
use crate::records::outcome::RunResult;
use crate::records::run::RunStatus;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::{RunRow, RunWorkspace};
use crate::run::candidate;
use crate::run::closing::{CLOSING_LOCK_TIMEOUT, Closing};
use crate::run::end::End;
use crate::run::lock::{self, LockedPlace, RunLock};
use crate::state::StateStore;
use crate::state::change::Change;
use crate::state::isolation_change::IsolationChange;
use crate::workspace::opened::Opened;
use crate::workspace::{capture, run_worktree, turn};

/// The lines at the end of a message that say whose commit it is. No task goes with a worktree of a
/// run's own.
const RUN_TRAILER: &str = "Run-Id";
const TASK_TRAILER: (&str, &str) = ("Task", "unknown");

/// The longest line that a message has of what a run is for, in characters.
const MAX_SUMMARY_CHARS: usize = 72;

/// Where a run works that has a worktree of its own.
#[derive(Clone, Debug)]
pub(super) struct Isolated {
    pub(super) row: IsolationRow,
    /// The workspace that it is cut from; `None`: a bare repository.
    of: Option<Workspace>,
    /// The directory of that, below the top of the work tree.
    scope: RelPath,
    options: IsolationOptions,
    leaves_edits_out: Option<bool>,
}

/// Finds out what a run is to be cut from, or was. Reads alone; blocks.
pub(super) fn plan(
    parts: &Parts,
    options: &mut RunOptions,
    run_id: &RunId,
    begun: Option<&RunRow>,
) -> Result<Option<Isolated>, Error> {
    let Some(run) = begun else {
        return match options.isolation.clone() {
            Some(isolation) => new(parts, options, run_id, isolation).map(Some),
            None => Ok(None),
        };
    };
    let known = parts
        .reader
        .read_blocking(|store| store.isolation(&run.id))?;
    let Some(row) = known else {
        return match options.isolation {
            Some(_) => Err(Error::invalid_options(format!(
                "run {run_id} was begun in its workspace, and goes on there; nothing was touched"
            ))),
            None => Ok(None),
        };
    };
    let isolated = as_begun(parts, options, run, row)?;
    options.isolation = Some(isolated.options.clone());
    Ok(Some(isolated))
}

/// Where a new run is to work.
fn new(
    parts: &Parts,
    options: &RunOptions,
    run_id: &RunId,
    isolation: IsolationOptions,
) -> Result<Isolated, Error> {
    let workspace = options.workspace.clone().ok_or_else(|| {
        Error::invalid_options("a run with a worktree of its own needs a workspace")
    })?;
    let backend = run_worktree::backend(parts)?;
    let worktrees = run_worktree::of_backend(&*backend)?;
    let branch = isolation.from.as_deref();
    let origin = worktrees.origin(&Operation::unbounded(), &workspace.path, branch)?;
    let of = match origin.is_bare {
        true => None,
        false => Some(Opened::open(parts, workspace)?.workspace),
    };
    check_brought(&isolation, of.as_ref())?;
    let state_dir = &parts.state_dir;
    let place = RunWorktree::of_run(&origin.repository, state_dir, run_id.as_str());
    Ok(Isolated {
        row: IsolationRow {
            run_id: run_id.clone(),
            repository_path: place.repository,
            originating_branch: origin.branch,
            base: origin.commit,
            worktree_path: place.directory,
            worktree_branch: place.branch,
            made_at: None,
            intent: None,
            out_of_scope: Vec::new(),
            unconverted: Vec::new(),
            candidate: None,
            reviewed_by: None,
            merge: None,
            let_go_at: None,
        },
        of,
        scope: origin.scope,
        options: isolation,
        leaves_edits_out: None,
    })
}

/// Where a run goes on that was begun in a worktree of its own.
fn as_begun(
    parts: &Parts,
    options: &RunOptions,
    run: &RunRow,
    row: IsolationRow,
) -> Result<Isolated, Error> {
    if let Some(at) = row.let_go_at {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "the worktree of run {} was let go of at {at}, so that it cannot go on; nothing was touched",
                row.run_id
            ),
        ));
    }
    let kept = KeptOptions::<IgnoredAny>::deserialize(&run.options);
    let isolation =
        kept.and_then(|kept| IsolationOptions::deserialize(kept.isolation.unwrap_or_default()));
    let isolation = isolation.map_err(|e| {
        let message = format!("the options of run {} cannot be read: {e}", run.id);
        Error::new(ErrorKind::Corrupt, message)
    })?;
    let of = match (&run.workspace, &options.workspace) {
        (Some(_), _) => run_worktree::cut_from(parts, run, &row),
        // Its work has not begun.
        (None, Some(workspace)) => Opened::open(parts, workspace.clone())
            .ok()
            .map(|opened| opened.workspace)
            .filter(|of| of.disk_path().starts_with(&row.repository_path)),
        (None, None) => None,
    };
    let scope = of.as_ref().and_then(|of| {
        let below = of.disk_path().strip_prefix(&row.repository_path).ok()?;
        RelPath::new(below.as_os_str().as_bytes()).ok()
    });
    Ok(Isolated {
        row,
        of,
        scope: scope.unwrap_or_else(RelPath::root),
        options: isolation,
        leaves_edits_out: None,
    })
}

/// Refuses to bring along what is not there.
fn check_brought(options: &IsolationOptions, of: Option<&Workspace>) -> Result<(), Error> {
    for path in &options.with {
        let Some(of) = of else {
            return Err(Error::invalid_options(format!(
                "{path} cannot be brought along from a bare repository; the run was not started"
            )));
        };
        let place = of.disk_path().join(path.as_path());
        if std::fs::symlink_metadata(&place).is_err() {
            return Err(Error::invalid_options(format!(
                "{}, which is to be brought along, is not there; the run was not started",
                printable(&place)
            )));
        }
    }
    Ok(())
}

impl RunTask {
    /// Makes the run's own worktree, or finds it as it was left, and takes it for the run's
    /// workspace; `None`: it has none.
    pub(super) async fn isolate(&mut self) -> Result<Option<RunLock>, Error> {
        let Some(isolated) = self.isolated.as_deref().cloned() else {
            return Ok(None);
        };
        let parts = &self.core.parts;
        let place = LockedPlace::worktree(&parts.state_dir, &isolated.row.worktree_path);
        let holder = lock::holder_of(&self.run_id, &self.session_id);
        let lock_timeout = parts.settings.lock_timeout;
        let lock = RunLock::acquire_at(&place, &holder, lock_timeout, &parts.blocking).await?;
        if isolated.row.made_at.is_none() {
            let leaves_edits_out = self.looks_dirty(&isolated).await;
            if let Some(isolated) = &mut self.isolated {
                isolated.leaves_edits_out = leaves_edits_out;
            }
        }
        let workspace = self.options.workspace.clone();
        let workspace =
            workspace.unwrap_or_else(|| WorkspaceOptions::at(&isolated.row.repository_path));
        let interrupt = Interrupt::never();
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let parts = self.core.parts.clone();
        let make = move || -> Result<RunPlace, Error> {
            let backend = run_worktree::backend(&parts)?;
            let worktrees = run_worktree::of_backend(&*backend)?;
            let Isolated {
                row,
                of,
                scope,
                options,
                ..
            } = &isolated;
            let worktree = run_worktree::of_row(row);
            let base = row.made_at.is_none().then_some(&*row.base);
            let ensured = worktrees.ensure(&op, &worktree, base, parts.now())?;
            if ensured.files_written > 0 || base.is_some() {
                let below =
                    |path: &RelPath| path.names().fold(scope.clone(), |at, name| at.join(name));
                let paths: Vec<RelPath> = options.with.iter().map(below).collect();
                if !paths.is_empty() {
                    worktrees.bring(&op, &worktree, &row.repository_path, &paths)?;
                }
            }
            let opened = Opened::worktree(&parts, row, of.as_ref(), workspace)?;
            Ok(RunPlace {
                opened,
                backend: Ok(backend),
                before: SnapshotId::random(),
                after: SnapshotId::random(),
            })
        };
        let making = self.core.parts.blocking.run_long(make);
        tokio::pin!(making);
        let made = tokio::select! {
            biased;
            made = &mut making => made,
            () = self.asked_to_stop() => {
                interrupt.cancel();
                making.await
            }
        };
        match made? {
            Ok(place) => self.workspace = Some(place),
            // It is cancelled before its work began, as whoever calls finds out.
            Err(e) if e.kind() == ErrorKind::Cancelled => {}
            Err(e) => return Err(e),
        }
        Ok(Some(lock))
    }

    /// Whether something is not committed in the workspace that the run is cut from.
    async fn looks_dirty(&self, isolated: &Isolated) -> Option<bool> {
        let of = isolated.of.clone()?;
        let parts = self.core.parts.clone();
        let opened = Opened {
            workspace: of.clone(),
            options: self.options.workspace.clone()?,
        };
        let session_id = self.session_id.clone();
        let lock_timeout = parts.settings.lock_timeout;
        let look = turn::work(&self.core, &of, "a look", lock_timeout, move |locked| {
            let backend = run_worktree::backend(&parts)?;
            let label = Label::new(capture::NOW);
            let options = opened.snapshot_options(&parts, label, &session_id, None);
            let op = Operation::unbounded();
            let now = capture::take(&op, locked, &*backend, &options)?;
            capture::let_go_of(&op, &parts, locked, &*backend, &now);
            Ok(now.metadata.dirty)
        });
        look.await.ok().flatten()
    }

    /// What puts on record that the worktree is there, if the run has its own.
    pub(super) fn made(&self) -> Option<Change> {
        let (isolated, place) = self.isolated.as_ref().zip(self.workspace.as_ref())?;
        isolated.row.made_at.is_none().then(|| {
            Change::Isolation(IsolationChange::Made {
                run_id: self.run_id.clone(),
                workspace: Box::new(RunWorkspace {
                    workspace_id: place.opened.workspace.id().to_owned(),
                    path: place.opened.workspace.disk_path().to_owned(),
                    before: place.before.clone(),
                    after: place.after.clone(),
                }),
                at: self.core.parts.now(),
            })
        })
    }

    /// Where the work begins: in its own worktree at the place that the workspace it is cut from
    /// has in that one's.
    pub(super) fn working_directory(&self) -> Option<PathBuf> {
        let place = self.workspace.as_ref()?;
        let top = place.opened.workspace.disk_path().to_owned();
        Some(match &self.isolated {
            Some(isolated) if !isolated.scope.is_root() => top.join(isolated.scope.as_path()),
            _ => top,
        })
    }

    pub(super) fn leaves_edits_out(&self) -> Option<bool> {
        self.isolated.as_ref()?.leaves_edits_out
    }

    /// Prepares what a run with a worktree of its own hands in, if its work has ended well. Where
    /// that cannot be, the run has failed, and what it left is in its worktree.
    pub(super) async fn conclude(&mut self, result: &mut RunResult, closing: &Closing) {
        let Some(isolated) = self.isolated.as_deref() else {
            return;
        };
        if result.status != RunStatus::Completed {
            return;
        }
        match self.prepared(isolated, closing).await {
            Ok(prepared) => self.concluded = Some(Box::new(prepared)),
            Err(e) => {
                let failure = Failure::from(&e);
                result.status = RunStatus::Failed;
                result.error = Some(Failure {
                    message: format!(
                        "what the run did cannot be handed in, and is in its worktree: {}",
                        failure.message
                    ),
                    ..failure
                });
            }
        }
    }

    /// The end of the work of a run that hands something in.
    pub(super) fn concluding(&self, concluded: &PreparedCandidate, end: End) -> End {
        let intent = concluded.intent.as_ref();
        let said = RunConcluded {
            commit: intent.map(|intent| &*intent.commit),
            parent: intent.and_then(|intent| intent.parent.as_deref()),
            tree: intent.map(|intent| &*intent.tree),
            out_of_scope: &concluded.out_of_scope,
        };
        let commit = IsolationChange::Commit {
            run_id: self.run_id.clone(),
            intent: concluded.intent.clone().map(Box::new),
            out_of_scope: concluded.out_of_scope.clone(),
            unconverted: concluded.unconverted.clone(),
        };
        End {
            said: data(&said),
            changes: vec![Change::Isolation(commit)],
            ..end
        }
    }

    /// Hands in what the run has come to, which says how it stands.
    pub(super) async fn hand_in(&self, result: &mut RunResult) -> Result<(), Error> {
        result.status = RunStatus::Candidate;
        let run_id = self.run_id.clone();
        let read =
            move |store: &dyn StateStore| Ok((store.run(&run_id)?, store.isolation(&run_id)?));
        let (run, row) = self.core.parts.reader.read(read).await?;
        let (run, row) = run.zip(row).ok_or_else(|| {
            Error::not_found(format!("there is no run {} with a worktree", self.run_id))
        })?;
        let fence = self.hold.fence();
        let handed_in = candidate::hand_in(&self.core, &run, &row, fence, false);
        match Box::pin(handed_in).await {
            Ok(status) => result.status = status,
            Err(e) => {
                // The next engine goes on with it.
                self.core.parts.lock.leave_work();
                return Err(e);
            }
        }
        Ok(())
    }

    /// What is on record of the run's own worktree.
    pub(super) async fn isolation(&self) -> Option<IsolationRecord> {
        self.isolated.as_ref()?;
        let run_id = self.run_id.clone();
        let reader = &self.core.parts.reader;
        let row = reader.read(move |store| store.isolation(&run_id)).await;
        row.ok().flatten().map(IsolationRecord::from)
    }

    async fn prepared(
        &self,
        isolated: &Isolated,
        closing: &Closing,
    ) -> Result<PreparedCandidate, Error> {
        let place = self.workspace.clone().expect("it has worked there");
        let Some(after) = closing.after.clone() else {
            let why = closing.error.as_ref().map(|failure| &*failure.message);
            let why = why.unwrap_or("there is no snapshot after the work");
            return Err(Error::new(ErrorKind::Unreadable, why.to_owned()));
        };
        let backend = run_worktree::backend(&self.core.parts)?;
        let (scope, branch) = (
            isolated.options.globs()?,
            isolated.row.worktree_branch.clone(),
        );
        let parts = self.core.parts.clone();
        let message = match &isolated.options.message {
            Some(message) => message.clone(),
            None => {
                let input = parts.writer.secrets().redact(&self.options.input);
                format!("Stillframe run {}\n\n{}", self.run_id, summary(&input))
            }
        };
        let request = CommitRequest::new(message, parts.now())
            .trailer(RUN_TRAILER, self.run_id.as_str())
            .trailer(TASK_TRAILER.0, TASK_TRAILER.1);
        let what = "what a run hands in";
        let workspace = &place.opened.workspace;
        let work = turn::work(
            &self.core,
            workspace,
            what,
            CLOSING_LOCK_TIMEOUT,
            move |locked| {
                let op = Operation::unbounded();
                let repository = backend.committing()?;
                let prepared =
                    repository.prepare_candidate(&op, locked, &after.id, &request, &scope)?;
                match prepared.branch.as_deref() {
                    Some(found) if found == branch => Ok(prepared),
                    found => Err(Error::new(
                        ErrorKind::Conflict,
                        format!(
                            "HEAD is {}, and no more on {branch}; nothing was committed",
                            found.map_or_else(
                                || "detached".to_owned(),
                                |found| format!("on {found}")
                            )
                        ),
                    )),
                }
            },
        );
        work.await
    }
}

/// A line of a message, from what a run is for.
fn summary(input: &str) -> String {
    let line = input.lines().map(str::trim).find(|line| !line.is_empty());
    let line: String = line
        .unwrap_or("stillframe run")
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    match line.chars().count() > MAX_SUMMARY_CHARS {
        true => line
            .chars()
            .take(MAX_SUMMARY_CHARS - 1)
            .chain(['…'])
            .collect(),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_the_first_line_and_no_longer_than_is_shown() {
        assert_eq!(summary("\n  fix the\tbuild \nand more"), "fix thebuild");
        assert_eq!(summary(" \n"), "stillframe run");
        let long = summary(&"é".repeat(73));
        assert_eq!(long.chars().count(), 72);
        assert!(long.ends_with("é…"));
        assert_eq!(summary(&"é".repeat(72)), "é".repeat(72));
    }
}
