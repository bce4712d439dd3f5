//! A run from its acceptance to its end.
//!
//! The work of a run is a task that the run's actor starts. The task owns everything that the run
//! needs: permit, lock, adapter. It asks the actor for every transition. So a run continues if its
//! actor is lost, and if its caller drops the future.

mod blocked;
mod captures;
mod ending;
mod further;
mod going_on;
mod isolated;
mod queued;
mod result;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stillframe_backends::{
    Backend, BackendKind, ErrorKind, Interrupt, Label, Operation, PreparedCandidate, RetainContent,
    Snapshot, SnapshotId, printable_size,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::actors::run::{Step, Work};
use crate::blocking::{caught, panic_text};
use crate::error::Error;
use crate::events::data::{RunStarted, data};
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::{EventId, RunId, SessionId, WorkTaskId};
use crate::options::repository::RepositoryOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::options::{RunOptions, WorkspaceOptions};
use crate::policy::PolicySubject;
use crate::policy::limits::RunLimits;
use crate::policy::used::Used;
use crate::records::block::Block;
use crate::records::follow_up::FollowUpInput;
use crate::records::outcome::{RunOutcome, RunResult};
use crate::records::output::AdapterOutput;
use crate::records::resumed_work::ResumedWork;
use crate::records::revision::Revision;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_document::{BegunAs, KeptOptions, document};
use crate::records::run_row::{NewRun, RunRow, RunWorkspace};
use crate::records::session::SessionStatus;
use crate::records::step::milliseconds;
use crate::run::closing::{CLOSING_LOCK_TIMEOUT, Closing};
use crate::run::heartbeat::{self, new_lease};
use crate::run::lock::RunLock;
use crate::run::recorded::{self, Claim, Recorded};
use crate::run::{settle, stored};
use crate::state::change::Change;
use crate::state::error::StateError;
use crate::state::hold::Hold;
use crate::step::adapter::{Adapter, BoxAdapter};
use crate::step::adapter_error::{AdapterError, Ending};
use crate::step::context::RunContext;
use crate::step::step_log::{StepLog, StepPlace};
use crate::telemetry;
use crate::workspace::opened::Opened;
use crate::workspace::{backends, turn};

use captures::CaptureRequest;
use ending::abandon;
use further::Further;
use isolated::Isolated;
use queued::Queued;
pub(crate) use queued::{Begun, begin, options_of, submit};
use result::{judged, result, unwanted, violated};

/// How long the work of a run may take that calls a model, unless the host says otherwise: most
/// answers take seconds, and one that takes longer than this seldom comes.
const MODEL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an adapter may take to end after it was cancelled, before its future is dropped.
const ADAPTER_GRACE: Duration = Duration::from_secs(5);

/// How often the begin of work is written down whose task moves meanwhile.
const MAX_BEGINNINGS: usize = 5;

/// A run that is to be done.
pub(crate) struct RunTask {
    core: Core,
    session_id: SessionId,
    run_id: RunId,
    options: RunOptions,
    adapter: BoxAdapter,
    workspace: Option<RunPlace>,
    /// What is on record of it; `None`: it is new.
    recorded: Option<Recorded>,
    /// What the queue has of it; `None`: it was not submitted.
    queued: Option<Queued>,
    hold: Hold,
    tended: Option<AbortOnDropHandle<()>>,
    /// How the workspace came to the branch of its task.
    on_branch: Option<Box<ResumedWork>>,
    /// The further repositories that it works in.
    further: Vec<Further>,
    /// Where it works, if that is a worktree of its own, which becomes its workspace.
    isolated: Option<Box<Isolated>>,
    /// What it is about to hand in.
    concluded: Option<Box<PreparedCandidate>>,
    /// The task whose work it does, once its workspace is on the branch of that.
    task: Option<WorkTaskId>,
    /// What is needed to go on, where its work has stopped for that.
    block: Option<Box<Block>>,
    /// Whether it is blocked if something that it has left behind still says so.
    heeds_reports: bool,
    /// The input that it goes on with.
    follow_up: Option<Arc<FollowUpInput>>,
    /// What it is to change in what it had handed in.
    revision: Option<Arc<Revision>>,
    /// Whether its work ended because the engine could not do its part of it.
    is_refused: bool,
    cancellation: CancellationToken,
    /// Ends it so that it can be resumed, if it can.
    suspension: CancellationToken,
    /// Cancelled once another engine has taken it over.
    lost: CancellationToken,
    // Given back when the run is over: how many there may be at once is limited.
    _permit: OwnedSemaphorePermit,
}

/// Where a run works, and with what it is captured.
#[derive(Clone)]
struct RunPlace {
    opened: Opened,
    /// Or why it cannot be captured as asked.
    backend: Result<Arc<dyn Backend>, Arc<Error>>,
    before: SnapshotId,
    after: SnapshotId,
}

/// Why work was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// To end like this.
    End(Ending),
    /// To be resumed.
    Suspend,
    /// Another engine has taken the run over.
    Lost,
}

/// How the part before the work ended, if it did not lead to the work.
enum NotStarted {
    Refused(Error),
    Cancelled,
}

/// Runs `adapter`; comes back when everything about the run is durable.
pub(crate) async fn execute(
    core: &Core,
    session_id: &SessionId,
    mut options: RunOptions,
    adapter: BoxAdapter,
) -> Result<RunOutcome, Error> {
    let permit = core.admit()?;
    options.check()?;
    let recorded = match &options.run_id {
        Some(id) => recorded::recorded_when_settled(core, id).await?,
        None => None,
    };
    if let Some(recorded) = &recorded {
        // A caller that named no session looked for one before another engine began the run.
        let is_anothers = recorded.row.session_id != *session_id;
        if is_anothers && (options.own_session || recorded.claim() == Claim::Held) {
            return Err(recorded.begun_meanwhile().in_run(recorded.row.id.clone()));
        }
        recorded::check_session(&recorded.row, session_id)?;
        let goes_on = recorded.goes_on_with(&options)?;
        if !goes_on && matches!(recorded.claim(), Claim::Ended | Claim::Waiting) {
            return stored(core, recorded.row.clone(), &options).await;
        }
        if recorded.claim() == Claim::Queued {
            return Err(recorded.queued().in_run(recorded.row.id.clone()));
        }
        let bound = limits_of(&recorded.row, &core.parts.settings.limits)?;
        options.limits = options.limits.within(&bound);
        if options.work_branch.is_some() {
            let given = std::mem::take(&mut options.repositories);
            options.repositories = further::as_begun(&recorded.row, given)?;
        }
    }
    let run_id = options.run_id.clone().unwrap_or_else(RunId::random);
    let begun = recorded.as_ref().map(|recorded| recorded.row.clone());
    let (parts, id) = (core.parts.clone(), run_id.clone());
    let (mut options, adapter, workspace, further, isolated) = core
        .parts
        .blocking
        .run(move || {
            let mut options = options;
            let isolated = isolated::plan(&parts, &mut options, &id, begun.as_ref())?;
            let workspace = match &isolated {
                Some(_) => None,
                None => place(&parts, &options)?,
            };
            check_branch(&options)?;
            let further = further::open(&parts, &mut options, workspace.as_ref())?;
            let directory = workspace.as_ref().map(|p| p.opened.workspace.disk_path());
            let cut_from = options.workspace.as_ref().map(|options| &*options.path);
            adapter.check(directory.or(cut_from))?;
            limit_call_of_model(&mut options, &adapter);
            parts.reserve.check("the run")?;
            Ok::<_, Error>((options, adapter, workspace, further, isolated))
        })
        .await??;
    if let Some(recorded) = &recorded {
        // Its properties stay as they were when it was begun.
        options.resumable |= recorded.row.begun_as().resumable;
        if isolated.is_none() {
            let opened = workspace.as_ref().map(|place| &place.opened);
            recorded::check_workspace(&recorded.row, opened)?;
        }
        if recorded.claim() == Claim::Held {
            return Err(recorded.held().in_run(run_id));
        }
    }
    let task = RunTask {
        core: core.clone(),
        session_id: session_id.clone(),
        // The first to have a new run.
        hold: Hold {
            run_id: run_id.clone(),
            epoch: 1,
        },
        run_id,
        // The host's token stops this run; stopping this run does not touch the host's token.
        cancellation: options.cancellation.child_token(),
        options,
        adapter,
        workspace,
        recorded,
        queued: None,
        tended: None,
        on_branch: None,
        further,
        isolated: isolated.map(Box::new),
        concluded: None,
        task: None,
        block: None,
        heeds_reports: false,
        follow_up: None,
        revision: None,
        is_refused: false,
        suspension: CancellationToken::new(),
        lost: CancellationToken::new(),
        _permit: permit,
    };
    task.start().await
}

/// What bounds a run that is gone on with in an engine with these limits.
fn limits_of(row: &RunRow, engine: &RunLimits) -> Result<RunLimits, Error> {
    row.limits_in(engine).map_err(|e| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the limits of run {} cannot be read: {e}", row.id),
        )
    })
}

/// Gives a run that calls a model its time, unless the host has.
fn limit_call_of_model(options: &mut RunOptions, adapter: &BoxAdapter) {
    if options.timeout.is_none() && adapter.calls_model() {
        options.timeout = Some(MODEL_TIMEOUT);
    }
}

/// Why a run was not begun: somebody else may have begun it since it was looked for.
async fn not_begun(core: &Core, run_id: &RunId, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    match recorded::recorded(core, run_id).await {
        Ok(Some(recorded)) => recorded.begun_meanwhile().in_run(run_id.clone()),
        _ => error,
    }
}

/// The answer of a run that has ended before, also where its directory is gone.
pub(crate) async fn stored(
    core: &Core,
    row: RunRow,
    options: &RunOptions,
) -> Result<RunOutcome, Error> {
    let parts = core.parts.clone();
    let workspace = options.workspace.clone();
    core.parts
        .blocking
        .run_long(move || {
            let opened = workspace.and_then(|options| Opened::open_known(&parts, options).ok());
            if let Some(opened) = &opened {
                recorded::check_workspace(&row, Some(opened))?;
            }
            stored::stored(&parts, row, opened.as_ref())
        })
        .await?
}

/// Refuses a work branch that cannot be.
fn check_branch(options: &RunOptions) -> Result<(), Error> {
    let Some(branch) = &options.work_branch else {
        return Ok(());
    };
    branch.branch_name()?;
    match options.workspace {
        Some(_) => Ok(()),
        None => Err(Error::invalid_options(
            "a run with a work branch needs a workspace; the run was not started",
        )),
    }
}

/// Opens the workspace of a run, and finds out what it can be captured with. Reads alone; blocks.
fn place(parts: &Parts, options: &RunOptions) -> Result<Option<RunPlace>, Error> {
    let Some(workspace) = &options.workspace else {
        return Ok(None);
    };
    let opened = Opened::open(parts, workspace.clone())?;
    let backend = opened.detect(parts).and_then(|backend| {
        let options = &opened.options;
        if backend.kind() == BackendKind::Hash && options.retain_content.is_never() {
            refuse_without_content(options)?;
        }
        if opened.options.rollback_on_failure {
            backend.check_restore_place(&opened.workspace)?;
        }
        Ok(backend)
    });
    Ok(Some(RunPlace {
        opened,
        backend: backend.map_err(Arc::new),
        before: SnapshotId::random(),
        after: SnapshotId::random(),
    }))
}

/// Refuses a run that nothing could be rolled back from, because there is no content.
fn refuse_without_content(options: &WorkspaceOptions) -> Result<(), Error> {
    let why = match options.retain_content {
        _ if !options.rollback_on_failure => return Ok(()),
        RetainContent::UpTo(bytes) => {
            let limit = printable_size(bytes);
            format!(", and none was kept, because more than {limit} of it are new")
        }
        RetainContent::Never | RetainContent::Always => String::new(),
    };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "rollback_on_failure needs retain_content with the hash backend{why}; the run was not started and nothing was touched"
        ),
    ))
}

/// As [`refuse_without_content`], once it is known what was kept.
fn refuse_where_none_was_kept(place: &RunPlace, before: &Snapshot) -> Result<(), Error> {
    match before.metadata.has_content {
        Some(false) => refuse_without_content(&place.opened.options),
        _ => Ok(()),
    }
}

impl RunTask {
    /// Has the session start the run's actor, and that the run.
    async fn start(self) -> Result<RunOutcome, Error> {
        let (core, session_id, run_id) = (
            self.core.clone(),
            self.session_id.clone(),
            self.run_id.clone(),
        );
        let under_way = core.parts.live_runs.begin(
            run_id.clone(),
            session_id.clone(),
            self.cancellation.clone(),
            self.suspension.clone(),
        );
        let under_way = under_way.ok_or_else(|| {
            let message = format!("run {run_id} is under way already");
            Error::new(ErrorKind::Busy, message)
        })?;
        let new = match &self.recorded {
            None if !self.is_queued() => Some(self.as_new()?),
            _ => None,
        };
        self.claim_queued().await?;
        // From here on a shutdown waits for it, though its task is still to be started.
        let waited_for = core.tasks.token();
        let span = telemetry::run_span(&session_id, &run_id);
        let work: Work = Box::new(move |reply| {
            let work = async move {
                let began = Instant::now();
                let answer = Box::pin(self.finished()).await;
                let status = answer
                    .as_ref()
                    .ok()
                    .map(|outcome| outcome.run.status.as_str());
                telemetry::ran(status, began.elapsed());
                drop(under_way);
                // The host may have left; what is done is done.
                let _ = reply.send(answer);
                drop(waited_for);
            };
            Box::pin(work.instrument(span))
        });
        match core.begin_run((&session_id, &run_id), new, work).await {
            Ok(answer) => answer,
            Err(e) => Err(not_begun(&core, &run_id, e).await),
        }
    }

    /// Does all of the run, and ends it also where that panics, which takes a defect of the engine.
    async fn finished(self) -> Result<RunOutcome, Error> {
        let (core, run_id) = (self.core.clone(), self.run_id.clone());
        match caught(Box::pin(self.run())).await {
            Ok(answer) => answer,
            Err(payload) => {
                let message = panic_text(&*payload).to_owned();
                Err(abandon(&core, &run_id, &message).await)
            }
        }
    }

    async fn run(mut self) -> Result<RunOutcome, Error> {
        let recorded = self.recorded.take();
        if recorded.is_none() {
            self.hold_on();
        }
        if let Some(place) = &mut self.workspace {
            self.core.keep_watched(&mut place.opened, &self.session_id);
        }
        let outcome = match recorded {
            Some(recorded) => self.resumed(recorded).await,
            None => match self.prepare().await {
                Ok((locks, before)) => self.started(locks, before).await,
                Err(why) => match self.back_in_queue(why).await {
                    Ok(waits) => Err(waits),
                    Err(NotStarted::Refused(e)) => Err(self.refuse(e).await),
                    Err(NotStarted::Cancelled) => self.cancelled_before_start().await,
                },
            },
        };
        self.core.let_go_if_ended(&self.session_id).await;
        outcome
    }

    /// Goes on with a run that nobody has.
    async fn resumed(&mut self, recorded: Recorded) -> Result<RunOutcome, Error> {
        let in_run = self.run_id.clone();
        let isolated = self.isolate().await.map_err(|e| e.in_run(in_run.clone()))?;
        // The previous holder may still exist, and hold the workspace.
        let locks = match self.workspace.clone() {
            Some(_) if isolated.is_some() => Vec::from_iter(isolated),
            Some(place) => {
                if let Err(e) = place.backend.clone() {
                    return Err(Error::new(e.kind(), SharedError(e)).in_run(in_run));
                }
                tokio::select! {
                    biased;
                    () = self.asked_to_stop() => {
                        let stopped = "cancelled before it was gone on with; nothing was touched";
                        return Err(Error::new(ErrorKind::Cancelled, stopped).in_run(in_run));
                    }
                    locks = self.take_workspaces(&place) => locks?,
                }
            }
            None => Vec::new(),
        };
        if !recorded.row.status.is_at_rest() {
            settle::settle_run(&self.core, recorded.row, None).await?;
        }
        let recorded = recorded::recorded(&self.core, &self.run_id)
            .await?
            .ok_or_else(|| Error::not_found(format!("there is no run {in_run}")))?;
        let goes_on = recorded.goes_on_with(&self.options);
        let goes_on = goes_on.map_err(|e| e.in_run(in_run.clone()))?;
        if !goes_on && matches!(recorded.claim(), Claim::Ended | Claim::Waiting) {
            return stored(&self.core, recorded.row, &self.options).await;
        }
        if recorded.claim() == Claim::Queued {
            return Err(recorded.queued().in_run(in_run));
        }
        if !recorded.row.status.is_at_rest() {
            return Err(recorded.held().in_run(in_run));
        }
        if let Some(place) = &self.workspace {
            // What a crash left half done here is finished or given up before anybody reads what
            // its steps did.
            let (core, workspace) = (&self.core, &place.opened.workspace);
            let lock_timeout = core.parts.settings.lock_timeout;
            turn::work(core, workspace, "recovery", lock_timeout, |_| Ok(()))
                .await
                .map_err(|e| e.in_run(in_run.clone()))?;
        }
        self.check_session_is_active()
            .await
            .map_err(|e| e.in_run(in_run.clone()))?;
        let claims = match (self.options.follow_up.clone(), self.options.changes.clone()) {
            (Some(input), _) => Box::pin(self.follow_up(input)).await,
            (None, Some(request)) => Box::pin(self.revise(request)).await,
            (None, None) => Box::pin(self.again(&recorded.row)).await,
        };
        let claims = claims.map_err(|e| e.in_run(in_run.clone()))?;
        self.claim(&recorded, claims)
            .await
            .map_err(|e| e.in_run(in_run))?;
        self.hold_on();
        let before = match self.captured(&recorded.row).await {
            Ok(before) => {
                if let (Some(place), Some(before)) = (&mut self.workspace, &before) {
                    // Whatever the directory has become since: what is compared is of one kind.
                    let backend = backends::backend_of(&self.core.parts, before.backend);
                    place.backend = backend.map_err(Arc::new);
                }
                before
            }
            Err(e) => {
                // It is as it was, for the next attempt. The first failure is the one to tell.
                let _ = self.rest_or_cancel(&Failure::from(&e), true).await;
                return Err(e.in_run(self.run_id.clone()));
            }
        };
        self.worked(locks, before).await
    }

    /// Refuses to go on with a run whose session takes none.
    async fn check_session_is_active(&self) -> Result<(), Error> {
        let session_id = self.session_id.clone();
        let reader = &self.core.parts.reader;
        let session = reader.read(move |store| store.session(&session_id)).await?;
        match session.filter(|row| row.status != SessionStatus::Active) {
            None => Ok(()),
            Some(idle) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "session {} is {}, and takes no runs; nothing was touched",
                    idle.id, idle.status
                ),
            )),
        }
    }

    /// Takes an interrupted run over.
    async fn claim(&mut self, recorded: &Recorded, with: Vec<Change>) -> Result<(), Error> {
        let epoch = recorded.lease.as_ref().map_or(0, |lease| lease.epoch) + 1;
        let lease = new_lease(&self.core.parts, epoch)?;
        let after = self.workspace.as_ref().map(|place| place.after.clone());
        let claim = Change::ClaimLease {
            run_id: self.run_id.clone(),
            from: recorded.lease.clone().map(Box::new),
            lease: Box::new(lease),
            after,
        };
        let said = RunStarted {
            attempt: Some(epoch),
            resumed: true,
            repositories: self.begun_in(),
        };
        let changes = std::iter::once(claim).chain(with).collect();
        self.step(RunEvent::Claimed, &said, changes).await?;
        self.hold.epoch = epoch;
        if let (Some(place), Some(recorded)) = (&mut self.workspace, &recorded.row.workspace) {
            place.before = recorded.before.clone();
        }
        Ok(())
    }

    /// Holds the lease for as long as this task lives.
    fn hold_on(&mut self) {
        let tended = tokio::spawn(heartbeat::tend(
            self.core.clone(),
            self.hold.clone(),
            self.cancellation.clone(),
            self.lost.clone(),
        ));
        self.tended = Some(AbortOnDropHandle::new(tended));
    }

    /// Comes back once somebody wants the run to end, for good or to be resumed.
    async fn asked_to_stop(&self) {
        tokio::select! {
            () = self.cancellation.cancelled() => {}
            () = self.suspension.cancelled() => {}
        }
    }

    /// As [`RunTask::before_of`], with the further repositories captured too.
    async fn captured(&mut self, row: &RunRow) -> Result<Option<Snapshot>, Error> {
        let before = self.before_of(row).await?;
        self.capture_further().await?;
        Ok(before)
    }

    /// The snapshot before a resumed run; taken now if its engine died before it was.
    async fn before_of(&self, row: &RunRow) -> Result<Option<Snapshot>, Error> {
        let (Some(place), Some(recorded)) = (self.workspace.clone(), &row.workspace) else {
            return Ok(None);
        };
        let id = recorded.before.clone();
        let reader = &self.core.parts.reader;
        if let Some(found) = reader.read(move |store| store.snapshot(&id)).await? {
            refuse_where_none_was_kept(&place, &found.snapshot)?;
            return Ok(Some(found.snapshot));
        }
        let backend = place
            .backend
            .clone()
            .map_err(|e| Error::new(e.kind(), SharedError(e)))?;
        let wanted = CaptureRequest {
            label: Label::BEFORE,
            id: place.before.clone(),
            since: None,
        };
        let lock_timeout = self.core.parts.settings.lock_timeout;
        let (opened, op) = (place.opened.clone(), Operation::unbounded());
        let taken = self.capture(opened, backend, wanted, op, lock_timeout);
        let before = taken.await?;
        refuse_where_none_was_kept(&place, &before)?;
        Ok(Some(before))
    }

    /// Does the work of a run that its session has accepted.
    async fn started(
        &mut self,
        locks: Vec<RunLock>,
        before: Option<Snapshot>,
    ) -> Result<RunOutcome, Error> {
        if let Err(e) = self.begin_work().await {
            return Err(self.refuse(e).await);
        }
        self.worked(locks, before).await
    }

    /// Puts on record that the work begins, also of its task.
    async fn begin_work(&self) -> Result<(), Error> {
        let said = RunStarted {
            repositories: self.begun_in(),
            ..RunStarted::default()
        };
        let mut tries = 1;
        loop {
            let mut changes = vec![self.hold.fence()];
            changes.extend(self.made());
            changes.extend(self.begun_tasks().await?);
            let begun = self.step(RunEvent::Started, &said, changes);
            match begun.await {
                // Somebody has saved work of the task meanwhile, say.
                Err(e) if e.kind() == ErrorKind::Conflict && tries < MAX_BEGINNINGS => tries += 1,
                begun => return begun,
            }
        }
    }

    /// Does the work of a run that has begun, and what follows it.
    async fn worked(
        &mut self,
        locks: Vec<RunLock>,
        before: Option<Snapshot>,
    ) -> Result<RunOutcome, Error> {
        let steps = self
            .step_log(before.as_ref())
            .await
            .map_err(|e| e.in_run(self.run_id.clone()))?;
        let mut result = self.work(&steps, before.clone().map(Arc::new)).await;
        // What ends after this changes nothing in a run that is over.
        steps.settle().await;
        let violation = steps.oversight().violation();
        if let Some(violation) = &violation {
            result = violated(result, violation);
        }
        if violation.is_none() {
            self.heed_report(&mut result).await;
        }
        let has_stopped = matches!(
            result.status,
            RunStatus::Completed | RunStatus::Failed | RunStatus::Blocked
        );
        if has_stopped && steps.is_asking() {
            // Nobody waits for the answers any more, and the run is under way until its end is on
            // record. What is not taken back now is when the end is written down: what the work
            // left is captured in any case.
            if let Err(e) = steps.withdraw_all().await {
                tracing::warn!(run = %self.run_id, error = %e.chain(), "its questions are not withdrawn");
            }
        }
        let is_refused = self.is_refused && violation.is_none();
        if is_refused && result.status == RunStatus::Failed && steps.is_resumable() {
            // What could not be gone on with can be once the reason is gone.
            result.status = RunStatus::Interrupted;
        }
        if result.status == RunStatus::Interrupted && steps.is_asking() {
            result.status = RunStatus::WaitingForInput;
            result.error = None;
        }
        let rests = result.status.is_at_rest() || result.status == RunStatus::Blocked;
        if rests && self.is_unwanted().await {
            result = unwanted();
        }
        if self.lost.is_cancelled() {
            let taken_over = StateError::TakenOver(self.run_id.clone());
            return Err(Error::from(taken_over)
                .touched_if(true)
                .in_run(self.run_id.clone()));
        }
        self.make_place_again(result.status).await;
        let closing = match before {
            Some(before) => self.close(before, result.status).await,
            None => Closing::default(),
        };
        self.close_further(result.status).await;
        if !result.status.is_at_rest() {
            let violations = self.judge_changes(&closing, &steps).await;
            self.heeds_reports &= violations.is_empty();
            result = judged(result, &violations);
        }
        self.conclude(&mut result, &closing).await;
        let rollback = self.roll_back(&closing, result.status).await;
        let outcome = Box::pin(self.end(result, closing, rollback, &steps)).await;
        locks.into_iter().for_each(RunLock::release);
        outcome
    }

    /// The record of the run's phases and steps.
    async fn step_log(&self, before: Option<&Snapshot>) -> Result<StepLog, Error> {
        let id = self.run_id.clone();
        let reader = &self.core.parts.reader;
        // What cannot be read is known before the work begins, and not in the middle of it.
        let (phases, _) = reader
            .read(move |store| Ok((store.phases(&id)?, store.steps(&id)?)))
            .await?;
        let used = self.used().await?;
        let place = self.workspace.as_ref().and_then(|place| {
            let backend = place.backend.as_ref().ok()?;
            Some(StepPlace {
                opened: place.opened.clone(),
                backend: Arc::clone(backend),
            })
        });
        Ok(StepLog::new(
            self.core.clone(),
            self.session_id.clone(),
            self.hold.clone(),
            place,
            (!phases.is_empty(), used),
            (&self.options, self.limits()),
            self.repositories(before),
        ))
    }

    /// What the run may do at most, in this engine.
    fn limits(&self) -> RunLimits {
        let defaults = &self.core.parts.settings.limits;
        let limits = self.options.limits.clone().over(defaults);
        match self.workspace {
            Some(_) => limits,
            None => limits.without_changes(),
        }
    }

    /// What the run has used of its limits before, if anybody asks.
    async fn used(&self) -> Result<Used, Error> {
        // The first to have it finds nothing.
        let is_watched = self.core.parts.settings.policy.is_some() || !self.limits().are_none();
        if self.hold.epoch == 1 || !is_watched {
            return Ok(Used::default());
        }
        let query = EventQuery {
            event_types: Used::TYPES.to_vec(),
            ..EventQuery::session(self.session_id.clone()).run(self.run_id.clone())
        };
        let (reader, id) = (&self.core.parts.reader, self.run_id.clone());
        let read = reader.read(move |store| Ok((store.used_total(&id)?, store.events(&query)?)));
        let (total, events) = read.await?;
        Ok(Used::of(&total, &events))
    }

    /// The run as its session is to accept it.
    fn as_new(&self) -> Result<NewRun, Error> {
        Ok(NewRun {
            id: self.run_id.clone(),
            session_id: self.session_id.clone(),
            input: self.options.input.clone(),
            options: kept(&self.options, &self.core.parts.settings.limits),
            workspace: self.workspace.as_ref().map(|place| RunWorkspace {
                workspace_id: place.opened.workspace.id().to_owned(),
                path: place.opened.workspace.disk_path().to_owned(),
                before: place.before.clone(),
                after: place.after.clone(),
            }),
            isolation: self
                .isolated
                .as_ref()
                .map(|isolated| Box::new(isolated.row.clone())),
            at: self.core.parts.now(),
            lease: new_lease(&self.core.parts, self.hold.epoch)?,
        })
    }

    /// Takes the workspace, and captures it before the work.
    async fn prepare(&mut self) -> Result<(Vec<RunLock>, Option<Snapshot>), NotStarted> {
        let (cancellation, suspension) = (self.cancellation.clone(), self.suspension.clone());
        let is_stopped = || cancellation.is_cancelled() || suspension.is_cancelled();
        if is_stopped() {
            return Err(NotStarted::Cancelled);
        }
        let taken = match self.isolate().await.map_err(NotStarted::Refused)? {
            Some(lock) => Some(lock),
            None => self.unpacked().map_err(NotStarted::Refused)?,
        };
        let Some(place) = self.workspace.clone() else {
            return Ok((Vec::new(), None));
        };
        if is_stopped() {
            return Err(NotStarted::Cancelled);
        }
        let backend = place
            .backend
            .clone()
            .map_err(|e| NotStarted::Refused(Error::new(e.kind(), SharedError(e))))?;
        let lock_timeout = match self.isolated {
            // Captures of other runs, in worktrees of the same repository, are in no user's way.
            Some(_) => CLOSING_LOCK_TIMEOUT,
            None => self.core.parts.settings.lock_timeout,
        };
        let locks = match taken {
            Some(lock) => vec![lock],
            None => tokio::select! {
                biased;
                () = self.asked_to_stop() => return Err(NotStarted::Cancelled),
                locks = self.take_workspaces(&place) => locks.map_err(NotStarted::Refused)?,
            },
        };
        self.resume_tasks().await.map_err(NotStarted::Refused)?;
        if is_stopped() {
            return Err(NotStarted::Cancelled);
        }
        let interrupt = Interrupt::never();
        let wanted = CaptureRequest {
            label: Label::BEFORE,
            id: place.before.clone(),
            since: None,
        };
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let before = {
            let capture = self.capture(place.opened.clone(), backend, wanted, op, lock_timeout);
            tokio::pin!(capture);
            tokio::select! {
                biased;
                before = &mut capture => before,
                () = self.asked_to_stop() => {
                    interrupt.cancel();
                    capture.await
                }
            }
        };
        match before {
            // Also when the capture was faster than the cancellation.
            _ if is_stopped() => Err(NotStarted::Cancelled),
            Ok(before) => {
                refuse_where_none_was_kept(&place, &before).map_err(NotStarted::Refused)?;
                self.capture_further().await.map_err(NotStarted::Refused)?;
                Ok((locks, Some(before)))
            }
            Err(e) => Err(NotStarted::Refused(e)),
        }
    }

    /// Lets the adapter work, until it has ended and that is certain.
    async fn work(&mut self, steps: &StepLog, before: Option<Arc<Snapshot>>) -> RunResult {
        let work = CancellationToken::new();
        let context = RunContext {
            session_id: self.session_id.clone(),
            run_id: self.run_id.clone(),
            input: self.options.input.clone(),
            workspace: self.working_directory(),
            snapshot_before: before,
            leaves_edits_out: self.leaves_edits_out(),
            follow_up: self.follow_up.clone(),
            revision: self.revision.clone(),
            cancellation: work.clone(),
            blocking: self.core.parts.blocking.clone(),
            steps: steps.clone(),
            tools: Arc::default(),
            asked: Arc::default(),
            within: None,
            step_id: None,
            asked_in_step: None,
        };
        let adapter = std::mem::replace(&mut self.adapter, BoxAdapter::new(NoWork));
        let violation = steps.oversight().violation();
        let worked = async move {
            if let Some(violation) = violation {
                // Its engine died before it had ended for that.
                return Err(AdapterError::new(Ending::Failed, violation.failure()));
            }
            context.permit(PolicySubject::Run).await?;
            adapter.run(context).await
        };
        let mut task = tokio::spawn(worked.in_current_span());
        let oversight = steps.oversight();
        let worked_for = async |limit: Option<Duration>| match limit {
            Some(limit) => steps.clock().reaches(limit).await,
            None => std::future::pending().await,
        };
        let time_is_up = worked_for(self.options.timeout);
        let too_long = worked_for(oversight.time_left());
        let asked = tokio::select! {
            biased;
            ended = &mut task => {
                if let Ok(Err(e)) = &ended {
                    self.is_refused = e.is_of_engine;
                    self.block = e.block.clone();
                }
                // What it has left behind on tasks of its own is not waited for.
                work.cancel();
                return result(ended, None);
            }
            () = self.lost.cancelled() => Asked::Lost,
            () = self.cancellation.cancelled() => Asked::End(Ending::Cancelled),
            () = self.suspension.cancelled() => {
                match steps.is_resumable() {
                    true => Asked::Suspend,
                    false => Asked::End(Ending::Cancelled),
                }
            }
            () = oversight.violated() => Asked::End(Ending::Failed),
            () = time_is_up => Asked::End(Ending::TimedOut),
            () = too_long => {
                if let Some(violation) = oversight.limits().of_duration() {
                    steps.violate(violation).await;
                }
                Asked::End(Ending::Failed)
            }
            () = steps.parked() => Asked::Suspend,
        };
        work.cancel();
        let ended = match tokio::time::timeout(ADAPTER_GRACE, &mut task).await {
            Ok(ended) => ended,
            Err(_) => {
                task.abort();
                // Only now is it certain that nothing of it is at work any more.
                task.await
            }
        };
        result(ended, Some(asked))
    }

    /// Takes a step of the run that does not end it. The first of `changes` refuses it if the run
    /// is another engine's by then.
    async fn step(
        &self,
        event: RunEvent,
        said: &RunStarted,
        changes: Vec<Change>,
    ) -> Result<(), Error> {
        let step = Step {
            run_id: self.run_id.clone(),
            event,
            from: None,
            event_id: EventId::random(),
            data: data(said),
            ending: None,
            block: None,
            changes,
        };
        self.core.step_run(&self.session_id, step).await
    }
}

/// An error that several may hold.
#[derive(Debug)]
struct SharedError(Arc<Error>);

impl std::fmt::Display for SharedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Stands where an adapter was that has been taken to its work.
struct NoWork;

impl Adapter for NoWork {
    async fn run(&self, _context: RunContext) -> Result<AdapterOutput, AdapterError> {
        Ok(AdapterOutput::empty())
    }
}

/// What a run's row says of the options, in an engine with these limits.
fn kept(options: &RunOptions, engine_limits: &RunLimits) -> Value {
    document(&KeptOptions {
        workspace: &options.workspace,
        timeout_ms: options.timeout.map(milliseconds),
        hot_wait_ms: options.hot_wait.map(milliseconds),
        begun_as: BegunAs {
            resumable: options.resumable,
            own_session: options.own_session,
        },
        work_branch: options.work_branch.as_ref().map(WorkBranchOptions::kept),
        repositories: options
            .repositories
            .iter()
            .map(RepositoryOptions::kept)
            .collect(),
        isolation: options.isolation.as_ref().map(document),
        retried_from: options.retried_from.clone(),
        limits: options.limits.clone(),
        engine_limits: engine_limits.clone(),
        metadata: options.metadata.clone(),
    })
}
