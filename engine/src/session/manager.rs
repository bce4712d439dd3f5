//! The handle of a session.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use stillframe_backends::{
    Backend, BackendKind, CaptureRules, CopyOutcome, ErrorKind, Label, LockedWorkspace,
    RepositoryRestore, RestoreGoal, RestoreOptions, RestorePlan, Snapshot, SnapshotOptions,
    Workspace,
};

use crate::actors::core::Core;
use crate::actors::session_manager::SessionMessage;
use crate::error::Error;
use crate::events::draft::EventDraft;
use crate::events::event::Event;
use crate::events::query::{Cursor, EventQuery};
use crate::id::{EventId, SessionId};
use crate::options::work_branch::WorkBranchOptions;
use crate::options::{
    CopyRequest, DiffEnd, DiffRequest, RestoreRequest, RunOptions, UndoRequest, WorkspaceOptions,
};
use crate::records::artifact::{ArtifactDraft, ArtifactRecord};
use crate::records::checkpoint::CheckpointKind;
use crate::records::outcome::{DiffOutcome, RunOutcome, TakenSnapshot};
use crate::records::quarantine::QuarantineRestore;
use crate::records::restore_document::{
    self, RestoreDocument, RestorePurpose, UndoOutcome, UndoPlan,
};
use crate::records::resumed_work::ResumedWork;
use crate::records::review::{ReviewDraft, ReviewRecord};
use crate::records::saved_work::SavedWork;
use crate::records::session::{SessionDetails, SessionEvent, SessionRecord};
use crate::run::execute;
use crate::run::lock::RunLock;
use crate::saving::quarantine;
use crate::saving::resume::Whose;
use crate::saving::save::{self, Prepared};
use crate::saving::work::Wanted;
use crate::session::handle::RunHandle;
use crate::session::stream::EventStream;
use crate::session::{copy, details, undo};
use crate::state::change::Change;
use crate::state::{StateStore, snapshot_name};
use crate::step::adapter::{Adapter, BoxAdapter};
use crate::step::review;
use crate::step::{artifact, emit};
use crate::telemetry;
use crate::workspace::cancellation::Cancellation;
use crate::workspace::capture::{self, NOW};
use crate::workspace::opened::{self, Opened};
use crate::workspace::restore::{self, Restoring};
use crate::workspace::{backends, compare, turn};

/// The message of a checkpoint that is made outside of runs, unless the host has its own.
const BY_HAND: &str = "[checkpoint] task {task}";

/// The most bytes of a label that the host chooses: a line, not a document.
const MAX_LABEL_BYTES: usize = 1_000;

/// A session: where a host runs its work. Cheap to clone.
///
/// An operation that was started through it continues if its future is dropped.
#[derive(Clone)]
pub struct SessionManager {
    core: Core,
    id: SessionId,
}

impl fmt::Debug for SessionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionManager")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl SessionManager {
    /// The handle of a session that there is.
    pub(crate) fn new(core: Core, id: SessionId) -> Self {
        Self { core, id }
    }

    /// The id of the session.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The session as it is kept.
    pub async fn record(&self) -> Result<SessionRecord, Error> {
        self.core.parts.check_available()?;
        let id = self.id.clone();
        let record = self
            .core
            .parts
            .reader
            .read(move |store| match store.session(&id)? {
                Some(row) => details::recorded(store, row).map(Some),
                None => Ok(None),
            })
            .await?;
        record.ok_or_else(|| Error::not_found(format!("there is no session {}", self.id)))
    }

    /// Replaces what the host says of the session; also of one that has ended.
    ///
    /// # Errors
    ///
    /// Nothing was changed. `InvalidOptions`: the agent's id, a tag or the metadata cannot be kept,
    /// an id or a tag has a [secret value](crate::secrets), or the session would belong to itself.
    /// `NotFound`: there is no such parent.
    pub async fn describe(&self, details: SessionDetails) -> Result<SessionRecord, Error> {
        details::check(&self.core.parts, &self.id, &details).await?;
        let (core, id) = (self.core.clone(), self.id.clone());
        let details = Box::new(details);
        self.core
            .operation(async move {
                let change = Change::DescribeSession { id, details };
                core.parts.writer.commit(vec![change]).await
            })
            .await?;
        self.record().await
    }

    /// Runs `adapter` between two snapshots.
    ///
    /// Dropping the future does not stop the run; [`RunOptions::cancellation`] does.
    ///
    /// # Errors
    ///
    /// The engine itself failed. [`Error::touched`] is false if the adapter was not called. After
    /// `InvalidOptions`, and after `Conflict` of a session that accepts no runs, there is no run.
    /// Any other refusal leaves a failed run, or an interrupted one if the host has named it, and
    /// [`Error::run_id`] says which. A run whose end could not be recorded is in
    /// [`Error::outcome`].
    pub async fn execute_run(
        &self,
        options: RunOptions,
        adapter: impl Adapter,
    ) -> Result<RunOutcome, Error> {
        let adapter = BoxAdapter::new(adapter);
        // On the heap, so that the host's own futures stay small.
        let executed = Box::pin(execute::execute(&self.core, &self.id, options, adapter));
        telemetry::counted(executed.await)
    }

    /// Accepts a run into the durable queue: on `Ok` it is on disk, with its options, the name of
    /// its adapter and the adapter's input, and it is begun once, by this engine or by another one
    /// that uses the state directory and [has the adapter](crate::EngineOptions::adapter), also
    /// after a crash.
    ///
    /// The runs of a session are begun in the order of their submission, interactive ones before
    /// batch ones, and by default one after the other. A run that was queued waits while its
    /// session is paused, and while its workspace is in use; a session that is paused accepts no
    /// more. If the session ends, its queued runs are cancelled.
    ///
    /// A [`run_id`](RunOptions::run_id) that was submitted before in the same way is not submitted
    /// again: the answer is the handle of that run. Of `options`, the cancellation is not kept.
    ///
    /// # Errors
    ///
    /// Nothing was queued. `InvalidOptions`: no adapter of this name is registered, an option
    /// cannot be right, or the adapter's input has a [secret value](crate::secrets). `Busy`:
    /// [`max_queued`](crate::EngineOptions::max_queued) runs wait already; try again later.
    /// `Conflict`: the session accepts no runs, or the id is another run's. `LimitExceeded`: the
    /// input is larger than a megabyte. `Unsupported`: a rollback was asked for that the backend
    /// cannot do.
    pub async fn submit_run(
        &self,
        options: RunOptions,
        adapter: &str,
        input: serde_json::Value,
    ) -> Result<RunHandle, Error> {
        let id = execute::submit(&self.core, &self.id, options, adapter, input).await?;
        Ok(RunHandle::new(self.core.clone(), self.id.clone(), id))
    }

    /// Takes a snapshot.
    ///
    /// The label is the host's: 1 to 1000 bytes, and any text but `now`, which stands for the
    /// workspace as it is wherever a snapshot can be named.
    pub async fn snapshot(
        &self,
        workspace: &WorkspaceOptions,
        label: Label,
    ) -> Result<Snapshot, Error> {
        let taken = self.take(workspace, label, Skipping::Nothing).await?;
        Ok(taken.snapshot)
    }

    /// As [`SessionManager::snapshot`]. But if nothing differs from the newest snapshot of the
    /// workspace that is not a guard, that snapshot is the answer, whatever its label, and no new
    /// one is kept.
    ///
    /// What differs is what
    /// [`StoredSnapshot::is_unchanged`](stillframe_backends::StoredSnapshot::is_unchanged) looks
    /// at.
    pub async fn snapshot_if_changed(
        &self,
        workspace: &WorkspaceOptions,
        label: Label,
    ) -> Result<TakenSnapshot, Error> {
        self.take(workspace, label, Skipping::Unchanged).await
    }

    async fn take(
        &self,
        workspace: &WorkspaceOptions,
        label: Label,
        skipping: Skipping,
    ) -> Result<TakenSnapshot, Error> {
        check_label(&label)?;
        self.check_open().await?;
        let mut opened = self.core.open(workspace).await?;
        let (core, session_id) = (self.core.clone(), self.id.clone());
        self.core
            .operation(async move {
                core.keep_watched(&mut opened, &session_id);
                let taken = take(&core, opened, session_id.clone(), label, skipping).await;
                core.let_go_if_ended(&session_id).await;
                taken
            })
            .await
    }

    /// Saves the work in a workspace on the branch of a task: it is captured, becomes a commit in
    /// the private store, is looked through for secret values, sent, and proven to be there. HEAD,
    /// branches, index and files stay as they are, also in the middle of a merge.
    ///
    /// The branch is never moved but forward. Where it has a history of its own, the work goes to a
    /// branch beside it. On `Ok` the store has the work, and the answer says whether the remote has
    /// it too, and why not. See [`WorkBranchOptions`] for an example.
    ///
    /// # Errors
    ///
    /// Nothing was made or sent. `InvalidOptions`: the task, its namespace or the address cannot be
    /// right. `NotFound`: the repository has no such remote. `Unsupported`: the workspace has no
    /// repository. `Busy`: somebody else saves the task's work, or uses the workspace.
    pub async fn checkpoint(
        &self,
        workspace: &WorkspaceOptions,
        branch: &WorkBranchOptions,
    ) -> Result<SavedWork, Error> {
        branch.branch_name()?;
        self.check_open().await?;
        let opened = self.core.open(workspace).await?;
        let wanted = Wanted {
            kind: CheckpointKind::Periodic,
            run_id: None,
            session_id: self.id.clone(),
            // There is no run that it could name.
            template: Some(branch.message.clone().unwrap_or_else(|| BY_HAND.to_owned())),
            on_remote: Vec::new(),
            began_at: None,
            stopped: None,
            further: None,
            fence: None,
        };
        let (core, branch) = (self.core.clone(), branch.clone());
        self.core
            .operation(async move { save::save_now(&core, opened, &branch, wanted).await })
            .await
    }

    /// Brings work in quarantine back to the files of its workspace: every file is as the commit
    /// has it. HEAD, its branch and the index stay as they are, so that what may not be sent is no
    /// ancestor of the next checkpoint. What was there before is captured first, and an undo brings
    /// it back. The work stays in quarantine. `id`: as
    /// [`QuarantinedWork::id`](crate::records::QuarantinedWork::id), or more digits.
    ///
    /// # Errors
    ///
    /// Nothing was moved. `NotFound`: no such work is in the quarantine of this workspace; that of
    /// another is named. `Conflict`: somebody's change is in the way, the commit does not go on
    /// from HEAD, or an operation of git's is in progress. `InvalidOptions`: it is no id, or
    /// several begin so. `Busy`: somebody else uses the workspace.
    pub async fn restore_quarantined(
        &self,
        workspace: &WorkspaceOptions,
        id: &str,
    ) -> Result<QuarantineRestore, Error> {
        self.check_open().await?;
        let opened = self.core.open(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let (core, session_id, id) = (self.core.clone(), self.id.clone(), id.to_owned());
        self.core
            .operation(async move {
                let cancel = Cancellation::of(&core, &opened.options);
                let lock_timeout = core.parts.settings.lock_timeout;
                let lock = RunLock::acquire(
                    &opened.workspace,
                    "a restore",
                    lock_timeout,
                    &core.parts.blocking,
                );
                let _lock = cancel.wait_for(lock, "waiting for the workspace").await?;
                let restoring = quarantine::restore(&core, opened, session_id, id, &cancel);
                Box::pin(restoring).await
            })
            .await
    }

    /// Brings a workspace to the branch of a task: what the remote and the repository have of it is
    /// in the files and in the index, and HEAD names it. A branch that is nowhere begins at
    /// [`WorkBranchOptions::start_point`]. Another machine goes on so with what this one has saved.
    ///
    /// What was there before is captured first, and an undo brings it back. Local changes stay,
    /// staged or not, where the branch has nothing else.
    ///
    /// ```no_run
    /// # use stillframe::tasks::WorkBranchOptions;
    /// # use stillframe::WorkspaceOptions;
    /// # async fn resume(session: stillframe::SessionManager) -> Result<(), stillframe::Error> {
    /// let branch = WorkBranchOptions::of("42").remote("origin".to_owned());
    /// let resumed = session
    ///     .resume_task(&WorkspaceOptions::at("/src/app"), &branch)
    ///     .await?;
    /// println!("{} is at {:?}", resumed.branch, resumed.commit);
    /// if let Some(command) = &resumed.way_back {
    ///     println!("back: {command}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was moved. `Unavailable`: the remote cannot be asked. `Conflict`: both have commits
    /// that the other has not, the branch is another task's or [at another commit than is
    /// expected](WorkBranchOptions::expected), or somebody's change is in the way; the message
    /// names it. `NotFound`: what was saved from here is not on the branch. `InvalidOptions`,
    /// `Unsupported` and `Busy` as of [`SessionManager::checkpoint`].
    pub async fn resume_task(
        &self,
        workspace: &WorkspaceOptions,
        branch: &WorkBranchOptions,
    ) -> Result<ResumedWork, Error> {
        branch.branch_name()?;
        self.check_open().await?;
        let opened = self.core.open(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let (core, branch) = (self.core.clone(), branch.clone());
        let whose = Whose {
            session_id: self.id.clone(),
            hold: None,
            only_looks: false,
        };
        self.core
            .operation(async move {
                let cancel = Cancellation::of(&core, &opened.options);
                let lock_timeout = core.parts.settings.lock_timeout;
                let lock = RunLock::acquire(
                    &opened.workspace,
                    "a resume of a task",
                    lock_timeout,
                    &core.parts.blocking,
                );
                let _lock = cancel.wait_for(lock, "waiting for the workspace").await?;
                let prepared = Prepared::of(&core, opened, &branch).await?;
                Box::pin(prepared.resume(&core, whose, &cancel)).await
            })
            .await
    }

    /// Compares two snapshots, or one with the workspace as it is.
    ///
    /// An end is a snapshot of this workspace, by any of its [names](crate::SnapshotName); with the
    /// hash backend also one of another workspace, by its id.
    ///
    /// The present workspace is captured with the rules and limits that are stored with the
    /// snapshot on the other side. The rules of `workspace` are added to them.
    pub async fn diff(
        &self,
        workspace: &WorkspaceOptions,
        request: DiffRequest,
    ) -> Result<DiffOutcome, Error> {
        if request.options.max_patch_bytes == 0 {
            return Err(Error::invalid_options("max_patch_bytes must not be zero"));
        }
        let opened = self.core.open(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let (core, session_id) = (self.core.clone(), self.id.clone());
        self.core
            .operation(async move { diff(&core, opened, session_id, request).await })
            .await
    }

    /// Says what a restore would do, also to the repository if requested. Nothing is touched.
    pub async fn plan_restore(
        &self,
        workspace: &WorkspaceOptions,
        request: RestoreRequest,
    ) -> Result<RestorePlan, Error> {
        let opened = self.core.open(workspace).await?;
        let (core, session_id) = (self.core.clone(), self.id.clone());
        self.core
            .operation(async move {
                let parts = core.parts.clone();
                let lock_timeout = parts.settings.lock_timeout;
                let cancel = Cancellation::of(&core, &opened.options);
                let op = cancel.operation();
                let workspace = opened.workspace.clone();
                let what = "a plan";
                turn::cancellable(
                    &core,
                    &workspace,
                    what,
                    lock_timeout,
                    &cancel,
                    move |locked| {
                        let (target, backend) = target(&parts, locked, &request.snapshot)?;
                        let mut guard =
                            opened.snapshot_options(&parts, Label::GUARD, &session_id, None);
                        opened::see_as_much_as(&mut guard, &*backend, locked, &target)?;
                        let mut options = RestoreOptions::new(guard.clone());
                        let present = match request.repository {
                            true => {
                                let mut now = guard.since(target.id.clone());
                                now.label = Label::new(NOW);
                                Some(capture::take(&op, locked, &*backend, &now)?)
                            }
                            false => None,
                        };
                        if let Some(present) = &present {
                            options = options.repository(to_target(&target, present));
                        }
                        let goal = RestoreGoal::Snapshot {
                            snapshot: target,
                            paths: request.paths,
                        };
                        let plan = backend.plan(&op, locked, &goal, &options);
                        // It has served whatever became of the plan, whose error is the one to
                        // tell.
                        let served = Vec::from_iter(present.map(|present| present.id));
                        if backend
                            .forget(&op.to_its_end(), locked, &served, &[])
                            .is_err()
                        {
                            parts.lock.leave_work();
                        }
                        Ok(plan?)
                    },
                )
                .await
            })
            .await
    }

    /// Restores a snapshot. The present state is captured first, as the guard.
    ///
    /// It waits for a run that is at work in the workspace, and is `Busy` after a while.
    pub async fn restore(
        &self,
        workspace: &WorkspaceOptions,
        request: RestoreRequest,
    ) -> Result<RestoreDocument, Error> {
        self.check_open().await?;
        let opened = self.core.open_known(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let (core, session_id) = (self.core.clone(), self.id.clone());
        self.core
            .operation(async move {
                let restore =
                    || restore(&core, opened.clone(), session_id.clone(), request.clone());
                let parts = &core.parts;
                parts.reserve.if_needed(&parts.blocking, restore).await
            })
            .await
    }

    /// Copies what a snapshot has into another directory, completely or not at all. The workspace
    /// is not touched, and no guard is taken.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: the directory exists and is not empty, or lies in a forbidden place.
    /// `NotFound`: the snapshot does not have a requested path. After any error the directory is as
    /// it was.
    pub async fn copy(
        &self,
        workspace: &WorkspaceOptions,
        request: CopyRequest,
    ) -> Result<CopyOutcome, Error> {
        let opened = self.core.open_known(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { copy::copy(&core, opened, request).await })
            .await
    }

    /// Undoes what an operation changed, and keeps later changes.
    ///
    /// It waits for a run that is at work in the workspace, and is `Busy` after a while. `NotFound`
    /// if there is nothing to undo, or the operation changed nothing at a named path. If a run was
    /// rolled back, nothing is left to undo, unless somebody restored its result. The outcome then
    /// has no guard, and is not an operation that another undo could undo.
    pub async fn undo(
        &self,
        workspace: &WorkspaceOptions,
        request: impl Into<UndoRequest>,
    ) -> Result<UndoOutcome, Error> {
        self.check_open().await?;
        let opened = self.core.open_known(workspace).await?;
        let (core, session_id, request) = (self.core.clone(), self.id.clone(), request.into());
        self.core
            .operation(async move {
                let undo =
                    || undo::undo(&core, opened.clone(), session_id.clone(), request.clone());
                let parts = &core.parts;
                parts.reserve.if_needed(&parts.blocking, undo).await
            })
            .await
    }

    /// Says what an undo would do. Nothing is touched.
    pub async fn plan_undo(
        &self,
        workspace: &WorkspaceOptions,
        request: impl Into<UndoRequest>,
    ) -> Result<UndoPlan, Error> {
        let opened = self.core.open_known(workspace).await?;
        let (core, session_id, request) = (self.core.clone(), self.id.clone(), request.into());
        self.core
            .operation(async move { undo::plan(&core, opened, session_id, request).await })
            .await
    }

    /// The events of this session from `cursor` on, including future ones.
    pub fn events(&self, cursor: Cursor) -> EventStream {
        self.core
            .subscribe(EventQuery::session(self.id.clone()).after(cursor.sequence()))
    }

    /// Appends an event to the log of the session, outside of a run's work; it is durable on `Ok`.
    ///
    /// A session that has ended takes events too. `data` should have ids, counts, states and paths:
    /// never the content of files, never credentials.
    ///
    /// # Errors
    ///
    /// Nothing was written. `InvalidOptions`: the type is no type or is not the host's to write, or
    /// another part of the draft cannot be right. `LimitExceeded`: the data is larger than 16 MiB,
    /// or the metadata than 64 KiB. `NotFound`: the session has no such run. `Conflict`: an event
    /// of that id is on record and says something else.
    pub async fn emit(&self, draft: EventDraft) -> Result<Event, Error> {
        emit::one(self.emit_batch(vec![draft]).await)
    }

    /// As [`SessionManager::emit`], of up to 10,000 events, in this order: all are written or none.
    pub async fn emit_batch(&self, drafts: Vec<EventDraft>) -> Result<Vec<Event>, Error> {
        emit::emit(&self.core, &self.id, None, drafts).await
    }

    /// Records a review of something, for a run of the session if the draft names one.
    /// [`Engine::session_reviews`](crate::Engine::session_reviews) lists it.
    ///
    /// # Errors
    ///
    /// Nothing was written. `InvalidOptions`: a name is empty or too long, or the review approves
    /// and blocks. `LimitExceeded`: summary or issues are too large. `NotFound`: the session has no
    /// such run.
    pub async fn record_review(&self, draft: ReviewDraft) -> Result<ReviewRecord, Error> {
        review::record(&self.core, &self.id, None, draft).await
    }

    /// Stores `content` under `key`, in place of what was there.
    pub async fn put_artifact(
        &self,
        key: &str,
        content_type: &str,
        content: Box<dyn Read + Send>,
    ) -> Result<ArtifactRecord, Error> {
        let (core, session_id) = (self.core.clone(), self.id.clone());
        let draft = ArtifactDraft::new(key, content_type);
        self.core
            .operation(async move { artifact::put(&core, &session_id, None, draft, content).await })
            .await
    }

    /// Pauses the session: it accepts no runs and begins no queued ones until it is resumed. Runs
    /// under way continue.
    pub async fn pause(&self, reason: &str) -> Result<SessionRecord, Error> {
        self.step(SessionEvent::Pause, reason).await
    }

    /// Takes runs again.
    pub async fn resume(&self, reason: &str) -> Result<SessionRecord, Error> {
        self.step(SessionEvent::Resume, reason).await
    }

    /// Ends the session well. Runs that are under way go on; queued ones are cancelled.
    pub async fn complete(&self, reason: &str) -> Result<SessionRecord, Error> {
        self.step(SessionEvent::Complete, reason).await
    }

    /// Ends the session badly. Runs that are under way go on; queued ones are cancelled.
    pub async fn fail(&self, reason: &str) -> Result<SessionRecord, Error> {
        self.step(SessionEvent::Fail, reason).await
    }

    /// Cancels the session, its queued runs, and its runs in this engine.
    pub async fn cancel(&self, reason: &str) -> Result<SessionRecord, Error> {
        self.step(SessionEvent::Cancel, reason).await
    }

    async fn step(&self, event: SessionEvent, reason: &str) -> Result<SessionRecord, Error> {
        let event_id = EventId::random();
        let row = self
            .core
            .ask_session(&self.id, |reply| SessionMessage::Move {
                event,
                reason: reason.to_owned(),
                event_id: event_id.clone(),
                reply,
            })
            .await?;
        if row.status.is_terminal() {
            self.core.let_go(&self.id).await;
        }
        let recorded = move |store: &dyn StateStore| details::recorded(store, row);
        self.core.parts.reader.read(recorded).await
    }

    /// Fails on a session that has ended.
    async fn check_open(&self) -> Result<(), Error> {
        let status = self.record().await?.status;
        if status.is_terminal() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("session {} is {status}; nothing was touched", self.id),
            ));
        }
        Ok(())
    }
}

fn check_label(label: &Label) -> Result<(), Error> {
    let text = label.as_str();
    if text == NOW {
        return Err(Error::invalid_options(
            "the label \"now\" stands for the workspace as it is; choose another",
        ));
    }
    if text.is_empty() || text.len() > MAX_LABEL_BYTES {
        return Err(Error::invalid_options(format!(
            "a label has 1 to {MAX_LABEL_BYTES} bytes, this one has {}",
            text.len()
        )));
    }
    Ok(())
}

/// Which snapshots need not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skipping {
    Nothing,
    /// Those that have nothing new.
    Unchanged,
}

async fn take(
    core: &Core,
    opened: Opened,
    session_id: SessionId,
    label: Label,
    skipping: Skipping,
) -> Result<TakenSnapshot, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    let workspace = opened.workspace.clone();
    let backend = detect(core, &opened).await?;
    let what = "a snapshot";
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| {
            parts.reserve.check_if_lent(what)?;
            let options = opened.snapshot_options(&parts, label, &session_id, None);
            match skipping {
                Skipping::Unchanged => capture::capture_if_changed(
                    &op,
                    &parts,
                    locked,
                    &*backend,
                    &options,
                    &session_id,
                ),
                Skipping::Nothing => {
                    let snapshot = capture::capture(
                        &op,
                        &parts,
                        locked,
                        &*backend,
                        &options,
                        capture::Whose {
                            session_id: &session_id,
                            run_id: None,
                            fence: None,
                        },
                    )?;
                    Ok(TakenSnapshot {
                        snapshot,
                        unchanged: false,
                    })
                }
            }
        },
    )
    .await
}

/// The backend for a new capture, found before anything is made for the workspace.
async fn detect(core: &Core, opened: &Opened) -> Result<Arc<dyn Backend>, Error> {
    let (parts, opened) = (core.parts.clone(), opened.clone());
    core.parts
        .blocking
        .run(move || opened.detect(&parts))
        .await?
}

/// The snapshot that is named, and the backend that understands it.
fn target(
    parts: &crate::actors::Parts,
    locked: &LockedWorkspace,
    text: &str,
) -> Result<(Snapshot, Arc<dyn Backend>), Error> {
    let row = parts
        .reader
        .read_blocking_with(|store| snapshot_name::find_snapshot(store, text, Some(locked)))?;
    let backend = backends::backend_of(parts, row.snapshot.backend)?;
    Ok((row.snapshot, backend))
}

async fn diff(
    core: &Core,
    opened: Opened,
    session_id: SessionId,
    request: DiffRequest,
) -> Result<DiffOutcome, Error> {
    let parts = core.parts.clone();
    let workspace = opened.workspace.clone();
    let stored = {
        let (parts, workspace) = (parts.clone(), workspace.clone());
        let ends = [request.from, request.to];
        core.parts
            .blocking
            .run(move || {
                let find = |end: DiffEnd| match end {
                    DiffEnd::Now => Ok(None),
                    DiffEnd::Snapshot(text) => parts
                        .reader
                        .read_blocking_with(|store| {
                            snapshot_name::find_for_diff(store, &text, &workspace)
                        })
                        .map(Some),
                };
                let [from, to] = ends;
                Ok::<_, Error>((find(from)?, find(to)?))
            })
            .await??
    };
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    let options = request.options;
    if let (Some(from), Some(to)) = &stored {
        let (from, to) = (from.snapshot.clone(), to.snapshot.clone());
        let compared = core
            .parts
            .blocking
            .run_long(move || compare::with_patch(&op, &parts, &workspace, &from, &to, &options))
            .await??;
        let (diff, patch) = compared;
        return Ok(DiffOutcome { diff, patch });
    }
    let (from, to) = stored;
    let other = from.as_ref().or(to.as_ref());
    let kind: Option<BackendKind> = other.map(|row| row.snapshot.backend);
    let lock_timeout = parts.settings.lock_timeout;
    let now_workspace = workspace.clone();
    let what = "a comparison";
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| {
            let backend = match kind {
                Some(kind) => backends::backend_of(&parts, kind)?,
                None => opened.detect(&parts)?,
            };
            let label = Label::new(NOW);
            let mut capture = opened.snapshot_options(&parts, label, &session_id, None);
            if let Some(other) = from.as_ref().or(to.as_ref()) {
                // It may be of another workspace.
                let kept = Workspace::kept(&other.workspace_id, &parts.state_dir);
                let workspace = match &kept {
                    Some(workspace) if other.workspace_id != locked.id() => workspace,
                    _ => locked,
                };
                let other = backend.open(&op.to_its_end(), workspace, &other.snapshot)?;
                as_captured(&mut capture, other.rules());
            }
            if let Some(bytes) = request.max_untracked_file_bytes {
                capture.max_untracked_file_bytes = bytes;
            }
            let now = capture::take(&op, locked, &*backend, &capture)?;
            let compared = compare::with_patch(
                &op,
                &parts,
                &now_workspace,
                from.as_ref().map_or(&now, |row| &row.snapshot),
                to.as_ref().map_or(&now, |row| &row.snapshot),
                &options,
            );
            // It has served whatever became of the comparison, whose error is the one to tell.
            let forgotten =
                backend.forget(&op.to_its_end(), locked, std::slice::from_ref(&now.id), &[]);
            let (diff, patch) = compared?;
            if forgotten.is_err() {
                parts.lock.leave_work();
            }
            Ok(DiffOutcome { diff, patch })
        },
    )
    .await
}

/// Lets `options` leave out and include what `rules` did, beside what they say themselves.
fn as_captured(options: &mut SnapshotOptions, rules: CaptureRules) {
    options.ignore.paths.extend(rules.ignore.paths);
    options.ignore.globs.extend(rules.ignore.globs);
    options.include.extend(rules.include);
    if let Some(bytes) = rules.max_untracked_file_bytes {
        options.max_untracked_file_bytes = bytes;
    }
}

async fn restore(
    core: &Core,
    opened: Opened,
    session_id: SessionId,
    request: RestoreRequest,
) -> Result<RestoreDocument, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    // A name is resolved at once, even while another operation is at work: a wrong name is reported
    // immediately, and snapshots taken meanwhile do not change its meaning.
    let named = {
        let (text, workspace) = (request.snapshot.clone(), workspace.clone());
        core.parts
            .reader
            .read_with(move |store| snapshot_name::find_snapshot(store, &text, Some(&workspace)))
            .await?
            .snapshot
            .id
    };
    let cancel = Cancellation::of(core, &opened.options);
    let lock = RunLock::acquire(&workspace, "a restore", lock_timeout, &parts.blocking);
    let lock = cancel.wait_for(lock, "waiting for the workspace").await?;
    let op = cancel.operation();
    let what = "a restore";
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| {
            let _lock = lock;
            let (target, backend) = target(&parts, locked, named.as_str())?;
            // Each is a snapshot of its own, by its own id.
            let as_large = || {
                let mut options = opened.snapshot_options(&parts, Label::GUARD, &session_id, None);
                opened::see_as_much_as(&mut options, &*backend, locked, &target)?;
                Ok::<_, Error>(options)
            };
            let guard = as_large()?;
            let mut options = RestoreOptions::new(guard);
            options.expected_plan = request.expected_plan;
            if request.repository {
                // What is there stands for what a run left: anything else would be a guess at what
                // the index and the branch may lose.
                let present = as_large()?.since(target.id.clone());
                let present = capture::take(&op, locked, &*backend, &present)?;
                let row = capture::row_of(locked, &present, Some(&session_id), None);
                capture::keep(&parts, vec![row])?;
                options = options.repository(to_target(&target, &present));
            }
            let to = target.id.clone();
            let goal = RestoreGoal::Snapshot {
                snapshot: target,
                paths: request.paths,
            };
            let restoring = Restoring {
                session_id,
                hold: None,
                to,
                purpose: RestorePurpose::Restore,
                repository: request.repository,
            };
            let outcome =
                restore::restore(&op, &parts, locked, &*backend, &goal, &options, &restoring)?;
            Ok(restore_document::restored_document(&outcome))
        },
    )
    .await
}

/// What a restore of `target` by hand does to the repository, whose state is `present`.
fn to_target(target: &Snapshot, present: &Snapshot) -> RepositoryRestore {
    RepositoryRestore::Rollback {
        before: target.clone(),
        after: present.clone(),
        run_id: target.id.to_string(),
    }
}
