//! The further repositories that a run works in, beside its own.

use std::time::Instant;

use serde::Deserialize as _;
use stillframe_backends::{
    ErrorKind, Interrupt, Label, Operation, Snapshot, SnapshotId, printable,
};

use super::captures::CaptureRequest;
use super::{RunPlace, RunTask};
use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::BegunIn;
use crate::id::WorkTaskId;
use crate::options::RunOptions;
use crate::options::repository::RepositoryOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::repositories::SavedRepositories;
use crate::records::resumed_work::ResumedWork;
use crate::records::run::RunStatus;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::run::closing::{CLOSING_LOCK_TIMEOUT, Closing};
use crate::run::lock::{self, RunLock};
use crate::saving::repository::{
    AllDone, Part, Repository, Unsaved, after_in, before_in, check_apart,
};
use crate::saving::resume::{SeenBranch, Whose};
use crate::saving::save::Prepared;
use crate::saving::waiting;
use crate::saving::work::Content;
use crate::state::StateStore;
use crate::state::change::Change;
use crate::telemetry::{self, Lock};
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;

/// A further repository that a run works in.
#[derive(Clone)]
pub(super) struct Further {
    pub(super) repository: Repository,
    /// The task whose work is done there, once it is on the branch of that.
    task: Option<WorkTaskId>,
    /// How it came there.
    resumed: Option<Box<ResumedWork>>,
    /// What the work has left there, once it is captured.
    after: Option<SnapshotId>,
}

/// A repository on the branch of its task.
pub(super) struct OnBranch {
    pub(super) task: WorkTaskId,
    /// Whatever becomes of the repository's configuration: where its work goes.
    pub(super) branch: WorkBranchOptions,
    pub(super) resumed: Box<ResumedWork>,
    /// Where the branch was seen to go on; `None`: that was on record.
    seen: Option<SeenBranch>,
}

/// The further repositories of a run that is gone on with: those that it was begun in.
pub(super) fn as_begun(
    row: &RunRow,
    given: Vec<RepositoryOptions>,
) -> Result<Vec<RepositoryOptions>, Error> {
    let kept = KeptOptions::<serde::de::IgnoredAny>::deserialize(&row.options);
    let kept = kept.and_then(|kept| {
        let kept = kept.repositories.into_iter();
        kept.map(RepositoryOptions::of_kept)
            .collect::<Result<Vec<_>, _>>()
    });
    let kept = kept.map_err(|e| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the repositories of run {} cannot be read: {e}", row.id),
        )
    })?;
    if given.is_empty() {
        return Ok(kept);
    }
    let name = |of: &RepositoryOptions| {
        let path = &of.workspace.path;
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        (path, of.work_branch.branch_name().ok())
    };
    match given.iter().map(name).eq(kept.iter().map(name)) {
        true => Ok(given),
        false => Err(Error::invalid_options(format!(
            "run {} was begun in other further repositories, and goes on in those; nothing was touched",
            row.id
        ))),
    }
}

/// Opens the further repositories of a run, which then has their true paths. Reads alone; blocks.
pub(super) fn open(
    parts: &Parts,
    options: &mut RunOptions,
    own: Option<&RunPlace>,
) -> Result<Vec<Further>, Error> {
    let Some(own) = own else {
        return Ok(Vec::new());
    };
    let mut further = Vec::new();
    for given in &mut options.repositories {
        let opened = Opened::open(parts, given.workspace.clone())?;
        given.workspace.path = opened.workspace.disk_path().to_owned();
        further.push(Further {
            repository: Repository {
                opened,
                branch: given.work_branch.clone(),
                began_at: None,
            },
            task: None,
            resumed: None,
            after: None,
        });
    }
    let opened = further.iter().map(|one| &one.repository.opened);
    let all: Vec<&Opened> = std::iter::once(&own.opened).chain(opened).collect();
    check_apart(&all)?;
    Ok(further)
}

impl RunTask {
    /// The repositories that the run works in, its own first; empty: it is of no task.
    pub(super) fn repositories(&self, before: Option<&Snapshot>) -> Vec<Repository> {
        let own = self.own_repository(before);
        let further = self.further.iter().map(|one| one.repository.clone());
        own.into_iter().chain(further).collect()
    }

    fn own_repository(&self, before: Option<&Snapshot>) -> Option<Repository> {
        let (place, branch) = self
            .workspace
            .as_ref()
            .zip(self.options.work_branch.as_ref())?;
        Some(Repository {
            opened: place.opened.clone(),
            branch: branch.clone(),
            began_at: before.and_then(|before| before.metadata.head_ref.clone()),
        })
    }

    /// Waits for the right to change all directories that the run works in. Every run takes them in
    /// one order, so that no two wait for each other.
    pub(super) async fn take_workspaces(&self, own: &RunPlace) -> Result<Vec<RunLock>, Error> {
        let parts = &self.core.parts;
        let lock_timeout = parts.settings.lock_timeout;
        let holder = lock::holder_of(&self.run_id, &self.session_id);
        let further = self.further.iter().map(|one| &one.repository.opened);
        let all = std::iter::once(&own.opened).chain(further);
        let mut all: Vec<_> = all.map(|opened| opened.workspace.clone()).collect();
        all.sort_by(|one, other| one.id().cmp(other.id()));
        let (began, mut locks) = (Instant::now(), Vec::new());
        for workspace in all {
            let lock = RunLock::acquire(&workspace, &holder, lock_timeout, &parts.blocking);
            locks.push(lock.await?);
        }
        telemetry::waited(Lock::Run, began.elapsed());
        Ok(locks)
    }

    /// Brings all repositories to the branches of their tasks, if the run is of one. Nothing is
    /// moved unless all can be.
    pub(super) async fn resume_tasks(&mut self) -> Result<(), Error> {
        let mut seen = Vec::new();
        if !self.further.is_empty() {
            for one in self.resume_all(None).await? {
                seen.push(one.seen);
            }
        }
        let mut all = self.resume_all(Some(seen)).await?.into_iter();
        let Some(own) = all.next() else {
            return Ok(());
        };
        self.options.work_branch = Some(own.branch);
        self.task = Some(own.task);
        self.on_branch = Some(own.resumed);
        for (further, one) in self.further.iter_mut().zip(all) {
            further.repository.branch = one.branch;
            further.task = Some(one.task);
            further.resumed = Some(one.resumed);
        }
        Ok(())
    }

    /// `seen`: what a look at them has found, which is not asked for again; `None`: only that is to
    /// be known, and nothing is moved. The run's own is the first; empty: it is of no task.
    async fn resume_all(
        &self,
        seen: Option<Vec<Option<SeenBranch>>>,
    ) -> Result<Vec<OnBranch>, Error> {
        let (Some(place), Some(branch)) = (self.workspace.clone(), &self.options.work_branch)
        else {
            return Ok(Vec::new());
        };
        let only_looks = seen.is_none();
        let mut seen = seen.unwrap_or_default().into_iter();
        let mut next = || (only_looks, seen.next().flatten());
        let own = self.on_branch(&place.opened, branch, self.task.as_ref(), next());
        let own = match Box::pin(own).await {
            Ok(own) => own,
            // There is no repository, and so no branch. The end says so.
            Err(e) if e.kind() == ErrorKind::Unsupported && self.further.is_empty() => {
                return Ok(Vec::new());
            }
            Err(e) => return Err(e),
        };
        let mut all = vec![own];
        let mut names = vec![printable(place.opened.workspace.disk_path())];
        for Further { repository, .. } in &self.further {
            let Repository { opened, branch, .. } = repository;
            let one = self.on_branch(opened, branch, None, next());
            let one = Box::pin(one).await.map_err(|e| {
                let moved = match only_looks {
                    true => String::new(),
                    false => moved(&names, &all),
                };
                let has_moved = e.touched() || !moved.is_empty();
                // What could be moved a moment ago may not be now, and others were.
                let message = format!("{}: {}{moved}", repository.name(), e.chain());
                Error::new(e.kind(), message).touched_if(has_moved)
            })?;
            if all.iter().any(|other| other.task == one.task) {
                return Err(Error::invalid_options(format!(
                    "the work of {} would go to the branch of another repository of the run, {}; the run was not started",
                    repository.name(),
                    one.resumed.branch
                )));
            }
            names.push(repository.name());
            all.push(one);
        }
        Ok(all)
    }

    /// Brings a repository to the branch of its task, or to the one that the task has waited with.
    /// `claimed`: the task, where it is known.
    async fn on_branch(
        &self,
        opened: &Opened,
        branch: &WorkBranchOptions,
        claimed: Option<&WorkTaskId>,
        (only_looks, seen): (bool, Option<SeenBranch>),
    ) -> Result<OnBranch, Error> {
        let core = &self.core;
        let prepared = Prepared::of(core, opened.clone(), branch).await?;
        let task = prepared.task_id().clone();
        if claimed.is_some_and(|claimed| *claimed != task) {
            let message = "the task that waits has its branch on another remote than the options name; nothing was done";
            return Err(Error::invalid_options(message));
        }
        let waited = match self.options.follow_up.is_some() {
            true => {
                // Somebody else may go on with it meanwhile.
                waiting::gone_on(core, &task, &self.run_id).await?;
                let asked = task.clone();
                let reader = &core.parts.reader;
                let read = move |store: &dyn StateStore| store.follow_up(&asked);
                reader.read(read).await?
            }
            false => {
                // Its work would go on beside what somebody is asked for.
                waiting::begun(core, &task, &self.run_id).await?;
                None
            }
        };
        let cancel = Cancellation::by(core, &self.cancellation, Interrupt::never());
        let whose = Whose {
            session_id: self.session_id.clone(),
            // One that is about to be gone on with is nobody's yet.
            hold: self.tended.is_some().then(|| self.hold.clone()),
            only_looks,
        };
        let beside = waited
            .as_ref()
            .filter(|row| row.branch != prepared.branch_name());
        let (resumed, seen) = match beside {
            Some(row) => {
                let at = (&*row.branch, &*row.last_checkpoint);
                let resumed = Box::pin(prepared.go_to(core, whose, &cancel, at)).await?;
                (resumed, None)
            }
            None => {
                let resumed = Box::pin(prepared.resume_as_seen(core, whose, &cancel, seen)).await?;
                (resumed.0, Some(resumed.1))
            }
        };
        if let Some(problem) = resumed.problem() {
            // Its work would be another's, or go elsewhere.
            let message = format!(
                "the workspace did not come to {} as a whole: {problem}; \"stillframe undo\" goes back",
                resumed.branch
            );
            return Err(Error::new(ErrorKind::Conflict, message).touched_if(true));
        }
        Ok(OnBranch {
            task,
            branch: branch.clone().pinned_to(prepared.address()),
            resumed: Box::new(resumed),
            seen,
        })
    }

    /// Finds out which tasks the run works on that goes on where it was. Its work goes where it
    /// came from, whatever it has made of the configuration before.
    pub(super) async fn find_tasks(&mut self) -> Result<(), Error> {
        let Some(own) = self.own_repository(None) else {
            return Ok(());
        };
        let run = Some(&self.run_id);
        match Prepared::of_run(&self.core, own.opened, &own.branch, run).await {
            Ok(prepared) => {
                self.task = Some(prepared.task_id().clone());
                self.options.work_branch = Some(own.branch.pinned_to(prepared.address()));
            }
            // There is no repository, and so no branch. The end says so.
            Err(e) if e.kind() == ErrorKind::Unsupported => {}
            Err(e) => return Err(e),
        }
        for at in 0..self.further.len() {
            let Repository { opened, branch, .. } = self.further[at].repository.clone();
            match Prepared::of_run(&self.core, opened, &branch, run).await {
                Ok(prepared) => {
                    self.further[at].task = Some(prepared.task_id().clone());
                    self.further[at].repository.branch = branch.pinned_to(prepared.address());
                }
                Err(e) if e.kind() == ErrorKind::Unsupported => {}
                Err(e) => return Err(in_repository(&self.further[at].repository, e)),
            }
        }
        Ok(())
    }

    /// What the event says that tells of the begin, if the run works in several repositories: where
    /// its work goes is known by that, whatever becomes of their configurations.
    pub(super) fn begun_in(&self) -> Vec<BegunIn> {
        let Some(place) = self.workspace.as_ref().filter(|_| !self.further.is_empty()) else {
            return Vec::new();
        };
        let further = self.further.iter();
        let further = further.map(|one| (&one.repository.opened, one.task.as_ref()));
        let all = std::iter::once((&place.opened, self.task.as_ref())).chain(further);
        let known = all.filter_map(|(opened, task)| {
            Some(BegunIn {
                repository: opened.workspace.id().to_owned(),
                task_id: task?.clone(),
            })
        });
        known.collect()
    }

    /// What is written with the begin of its work, of the tasks that it works on.
    pub(super) async fn begun_tasks(&self) -> Result<Vec<Change>, Error> {
        let mut changes = Vec::new();
        let further = self.further.iter().filter_map(|one| one.task.as_ref());
        for task in self.task.iter().chain(further) {
            changes.push(waiting::begun(&self.core, task, &self.run_id).await?);
        }
        Ok(changes)
    }

    /// What is written with the input that the run goes on with, of its further tasks.
    pub(super) async fn further_tasks_gone_on(&self) -> Result<Vec<Change>, Error> {
        let mut changes = Vec::new();
        for task in self.further.iter().filter_map(|one| one.task.as_ref()) {
            changes.push(waiting::gone_on(&self.core, task, &self.run_id).await?);
        }
        Ok(changes)
    }

    /// Captures the further repositories before the work, unless that was done: what the run
    /// carries is known by that.
    pub(super) async fn capture_further(&mut self) -> Result<(), Error> {
        for at in 0..self.further.len() {
            let repository = self.further[at].repository.clone();
            let captured = self.before_in(&repository.opened).await;
            let captured = captured.map_err(|e| in_repository(&repository, e))?;
            self.further[at].repository.began_at = captured.metadata.head_ref;
        }
        Ok(())
    }

    /// What was in a further repository before the work.
    async fn before_in(&self, opened: &Opened) -> Result<Snapshot, Error> {
        let parts = &self.core.parts;
        let asked = before_in(&self.run_id, opened);
        let reader = &parts.reader;
        let known = reader
            .read(move |store| store.find_snapshots(&asked))
            .await?;
        if let Some(known) = known.into_iter().next() {
            return Ok(known.snapshot);
        }
        let (shared, place) = (parts.clone(), opened.clone());
        let backend = parts.blocking.run(move || place.detect(&shared)).await??;
        let wanted = CaptureRequest {
            label: Label::BEFORE,
            id: SnapshotId::random(),
            since: None,
        };
        let lock_timeout = parts.settings.lock_timeout;
        let (opened, op) = (opened.clone(), Operation::unbounded());
        self.capture(opened, backend, wanted, op, lock_timeout)
            .await
    }

    /// Captures what the work has left in the further repositories, unless the run rests: what is
    /// done there from then on is not the run's.
    pub(super) async fn close_further(&mut self, status: RunStatus) {
        let Some(place) = self.workspace.as_ref().filter(|_| !status.is_at_rest()) else {
            return;
        };
        let ids = (&self.session_id, &self.run_id);
        for Further {
            repository, after, ..
        } in &mut self.further
        {
            let id = after_in(&place.after, &repository.opened);
            let wanted = (status.closing_label(), id);
            let fence = Some(self.hold.fence());
            let captured =
                repository.capture_after(&self.core, ids, wanted, fence, CLOSING_LOCK_TIMEOUT);
            match Box::pin(captured).await {
                Ok(captured) => *after = Some(captured),
                // It is tried again when it is saved: no other run can be at work there before.
                Err(e) => {
                    tracing::warn!(run = %self.run_id, repository = repository.name(), error = %e.chain(), "what the run left is not captured yet");
                }
            }
        }
    }

    /// What the run left in its repositories, to be saved: what the snapshots after it have.
    pub(super) async fn unsaved(&self, closing: &Closing) -> Unsaved {
        let mut unsaved = Unsaved::default();
        let own = self.own_repository(closing.before.as_ref());
        if let (Some(own), Some(after)) = (own, &closing.after) {
            let content = Content::Of(after.id.clone());
            unsaved.own = Some(Part::of(&self.core, own, content, None).await);
        }
        for Further {
            repository, after, ..
        } in &self.further
        {
            let content = match after {
                Some(after) => Content::Of(after.clone()),
                None => Content::Now { unless: None },
            };
            let part = Part::of(&self.core, repository.clone(), content, None).await;
            unsaved.further.push(part);
        }
        unsaved
    }

    /// Notes what became of it.
    pub(super) fn note(&self, done: &AllDone, closing: &mut Closing) {
        if let Some(own) = &done.own {
            closing.saved.clone_from(&own.saved);
        }
        let place = self.workspace.as_ref();
        let own = place.map(|place| printable(place.opened.workspace.disk_path()));
        let mut told: Option<SavedRepositories> = done.told(&own.unwrap_or_default());
        if let Some(told) = &mut told {
            for (one, further) in told.further.iter_mut().zip(&self.further) {
                one.resumed = further.resumed.as_deref().cloned();
            }
        }
        closing.repositories = told;
    }
}

/// Which repositories were moved, as an error says it, and how they go back; empty: none was.
fn moved(names: &[String], all: &[OnBranch]) -> String {
    let moved = names.iter().zip(all);
    let moved = moved.filter(|(_, one)| one.resumed.restore.is_some());
    let told = moved.map(|(name, one)| {
        let branch = &one.resumed.branch;
        format!("; {name} is on {branch} by now, and \"stillframe undo\" there goes back")
    });
    told.collect()
}

/// An error of one of several repositories.
fn in_repository(repository: &Repository, error: Error) -> Error {
    let message = format!("{}: {}", repository.name(), error.chain());
    Error::new(error.kind(), message).touched_if(error.touched())
}
