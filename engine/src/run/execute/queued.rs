//! Runs that were submitted: accepting one into the queue, and beginning it.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use stillframe_backends::{ErrorKind, SnapshotId, Workspace};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::{
    NoWork, NotStarted, RunPlace, RunTask, SharedError, kept, limit_call_of_model, limits_of, place,
};
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::RunQueued;
use crate::events::event::EventType;
use crate::id::{RunId, SessionId};
use crate::options::{RunOptions, WorkspaceOptions};
use crate::policy::limits::RunLimits;
use crate::records::lease::{Lease, Moment};
use crate::records::queue::{QueueRow, QueueState};
use crate::records::run::RunStatus;
use crate::records::run_document::{KeptOptions, document};
use crate::records::run_row::{NewRun, RunRow, RunWorkspace};
use crate::run::cancel;
use crate::run::heartbeat::new_lease;
use crate::run::lock::{self, RunLock};
use crate::run::recorded::check_workspace;
use crate::run::requeue::put_back;
use crate::state::change::{Change, NewEvent};
use crate::state::hold::Hold;
use crate::step::adapter::{Adapter as _, BoxAdapter};
use crate::step::adapters::Adapters;

/// The largest input of a submitted run, in bytes of JSON: parameters, not data, which belongs into
/// an artifact.
const MAX_INPUT_BYTES: usize = 1_048_576;

/// What became of a run that was to be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It has ended or rests, or is not this engine's to begin.
    Over,
    /// It waits on: its workspace is in use, or another engine was faster.
    Blocked,
    /// It waits on: the engine could not do its part.
    Faulted,
}

/// What a run of the queue needs before its work.
pub(super) struct Queued {
    row: QueueRow,
    adapters: Adapters,
    lock: Option<RunLock>,
    /// Why it cannot be begun.
    refused: Option<Error>,
    /// Takes it, with the limits of this engine.
    claim: Vec<Change>,
}

/// Accepts a run into the queue: on `Ok` it is durable. A run of this id that was submitted in the
/// same way is the answer as it stands.
pub(crate) async fn submit(
    core: &Core,
    session_id: &SessionId,
    options: RunOptions,
    adapter: &str,
    input: Value,
) -> Result<RunId, Error> {
    check(core, &options, adapter, &input)?;
    let (shared, session_id) = (core.clone(), session_id.clone());
    let adapter = adapter.to_owned();
    core.relief(async move { try_submit(&shared, session_id, options, adapter, input).await })
        .await
}

fn check(core: &Core, options: &RunOptions, adapter: &str, input: &Value) -> Result<(), Error> {
    options.check()?;
    if options.isolation.is_some() {
        return Err(Error::invalid_options(
            "a submitted run works in its workspace; start one that works in a worktree of its own; nothing was queued",
        ));
    }
    if !options.repositories.is_empty() {
        return Err(Error::invalid_options(
            "a submitted run works in one repository; start one that works in several; nothing was queued",
        ));
    }
    let known = &core.parts.settings.adapters;
    if !known.iter().any(|name| name == adapter) {
        let names: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
        let registered = match names.is_empty() {
            true => "none is".to_owned(),
            false => format!("registered are {}", names.join(", ")),
        };
        return Err(Error::invalid_options(format!(
            "no adapter {adapter:?} is registered; {registered}; nothing was queued"
        )));
    }
    let bytes = input.to_string().len();
    if bytes > MAX_INPUT_BYTES {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "the input of a submitted run has {bytes} bytes, and at most {MAX_INPUT_BYTES} are kept; nothing was queued"
            ),
        ));
    }
    // The run gets both from the log, and has to get what was submitted.
    for (text, what) in [
        (&input.to_string(), "the input of a submitted run"),
        (&options.input, "what a submitted run is to do"),
    ] {
        core.parts.writer.refuse_secrets(
            text,
            what,
            "submit the place where its adapter finds it; nothing was queued",
        )?;
    }
    Ok(())
}

async fn try_submit(
    core: &Core,
    session_id: SessionId,
    options: RunOptions,
    adapter: String,
    input: Value,
) -> Result<RunId, Error> {
    let run_id = options.run_id.clone().unwrap_or_else(RunId::random);
    let mut row = QueueRow {
        position: 0,
        run_id: run_id.clone(),
        session_id: session_id.clone(),
        adapter,
        input,
        priority: options.priority,
        workspace_id: None,
        state: QueueState::Waiting,
    };
    if options.run_id.is_some() && is_known(core, &row, &options).await? {
        return Ok(run_id);
    }
    let parts = core.parts.clone();
    let (options, placed) = core
        .parts
        .blocking
        .run(move || {
            let placed = place(&parts, &options)?;
            parts.reserve.check("the run")?;
            Ok::<_, Error>((options, placed))
        })
        .await??;
    let workspace = match placed {
        Some(placed) => {
            // What would be refused before its work is refused at once.
            placed
                .backend
                .map_err(|e| Error::new(e.kind(), SharedError(e)))?;
            Some(RunWorkspace {
                workspace_id: placed.opened.workspace.id().to_owned(),
                path: placed.opened.workspace.disk_path().to_owned(),
                before: placed.before,
                after: placed.after,
            })
        }
        None => None,
    };
    row.workspace_id = workspace.as_ref().map(|w| w.workspace_id.clone());
    let parts = &core.parts;
    let at = parts.now();
    let said = RunQueued {
        adapter: &row.adapter,
        priority: row.priority.as_str(),
    };
    let event = NewEvent::new(EventType::RUN_QUEUED, &session_id, Some(&run_id), at, said);
    let new = NewRun {
        id: run_id.clone(),
        session_id,
        input: options.input.clone(),
        options: kept(&options, &parts.settings.limits),
        workspace,
        isolation: None,
        at,
        lease: Lease::of_nobody(parts.engine_id.clone(), 1, Moment::now()?, at),
    };
    let changes = vec![
        Change::CreateRun(Box::new(new)),
        Change::Enqueue {
            row: Box::new(row.clone()),
            max_queued: parts.settings.max_queued,
        },
        Change::Append(event),
    ];
    match parts.writer.commit(changes).await {
        // Somebody else has submitted it since it was looked for.
        Err(e)
            if e.kind() == ErrorKind::Conflict
                && options.run_id.is_some()
                && is_known(core, &row, &options).await? => {}
        committed => {
            committed?;
        }
    }
    parts.queue_bell.notify_one();
    Ok(run_id)
}

/// Whether a run of this id was submitted in this way before. One that is something else is a
/// `Conflict`.
async fn is_known(core: &Core, asked: &QueueRow, options: &RunOptions) -> Result<bool, Error> {
    let id = asked.run_id.clone();
    let (run, row) = core
        .parts
        .reader
        .read(move |store| Ok((store.run(&id)?, store.queue_row(&id)?)))
        .await?;
    let Some(run) = run else {
        return Ok(false);
    };
    let is_same = row.is_some_and(|row| {
        (&row.session_id, &row.adapter, &row.input, row.priority)
            == (
                &asked.session_id,
                &asked.adapter,
                &asked.input,
                asked.priority,
            )
            && run.input == options.input
    });
    match is_same
        && without_metadata(&options_of(&run)?) == without_metadata(options)
        && is_in_workspace(core, &run, options).await?
    {
        true => Ok(true),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "run {} is on record, with another session, adapter, input, priority, workspace or other options; nothing was queued",
                asked.run_id
            ),
        )),
    }
}

/// What is kept of options, but for the metadata, which the run itself adds to.
fn without_metadata(options: &RunOptions) -> Value {
    let mut options = kept(options, &RunLimits::default());
    if let Some(fields) = options.as_object_mut() {
        fields.remove("metadata");
    }
    options
}

/// Whether the workspace of a run that is on record is that of `options`.
async fn is_in_workspace(core: &Core, run: &RunRow, options: &RunOptions) -> Result<bool, Error> {
    let (recorded, asked) = match (run.workspace.clone(), &options.workspace) {
        (Some(recorded), Some(asked)) => (recorded, asked.path.clone()),
        (recorded, asked) => return Ok(recorded.is_none() && asked.is_none()),
    };
    if recorded.path == asked {
        return Ok(true);
    }
    let state_dir = core.parts.state_dir.clone();
    let opened = move || Workspace::open(&asked, &state_dir);
    let opened = core.parts.blocking.run(opened).await?;
    // One that cannot be opened is no other name of it.
    Ok(opened.is_ok_and(|opened| opened.id() == recorded.workspace_id))
}

/// The options of a run that is on record.
pub(crate) fn options_of(row: &RunRow) -> Result<RunOptions, Error> {
    let kept = KeptOptions::<Option<WorkspaceOptions>>::deserialize(&row.options).map_err(|e| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the options of run {} cannot be read: {e}", row.id),
        )
    })?;
    let mut options = RunOptions::new(row.input.clone()).run_id(row.id.clone());
    let workspace = kept.workspace.zip(row.workspace.as_ref());
    options.workspace = workspace.map(|(mut options, place)| {
        options.path = place.path.clone();
        options
    });
    options.limits = kept.limits;
    options.timeout = kept.timeout_ms.map(Duration::from_millis);
    options.hot_wait = kept.hot_wait_ms.map(Duration::from_millis);
    options.resumable = kept.begun_as.resumable;
    options.metadata = kept.metadata;
    // Nobody waits with its options to start it again.
    options.is_nameless = true;
    Ok(options)
}

/// Begins a run that waits, and comes back when it is over; at once where it cannot be begun now.
pub(crate) async fn begin(
    core: &Core,
    row: QueueRow,
    adapters: Adapters,
    permit: OwnedSemaphorePermit,
) -> Begun {
    let run_id = row.run_id.clone();
    let done = match Box::pin(claimable(core, row, adapters, permit)).await {
        Ok(Some(task)) => task.start().await.map(drop),
        Ok(None) => Ok(()),
        Err(e) => Err(e),
    };
    let asked = run_id.clone();
    let reader = &core.parts.reader;
    let is_over = match reader.read(move |store| store.queue_row(&asked)).await {
        Ok(row) => row.is_some_and(|row| row.state != QueueState::Waiting),
        Err(_) => false,
    };
    let is_expected = |e: &Error| matches!(e.kind(), ErrorKind::Busy | ErrorKind::Conflict);
    match done {
        Err(e) if !is_over && !is_expected(&e) => {
            tracing::warn!(
                run = %run_id, error = %e.chain(),
                "a queued run could not be begun; it waits, and that is tried again"
            );
            Begun::Faulted
        }
        done => {
            if let Err(e) = done {
                tracing::debug!(run = %run_id, error = %e.chain(), "not begun, or failed");
            }
            match is_over {
                true => Begun::Over,
                false => Begun::Blocked,
            }
        }
    }
}

/// Whether a run that was accepted waits for the end of such a fault, rather than to fail without
/// its work. Besides what the caller of anything may try again, the disk of an engine that stays
/// there gets room again, and is mounted again.
fn is_passing(kind: ErrorKind) -> bool {
    kind.is_retryable() || matches!(kind, ErrorKind::NoSpace | ErrorKind::Storage)
}

/// The task of a run that waits, with its workspace taken; `None`: it is not to be begun. `Busy`:
/// somebody else uses its workspace.
async fn claimable(
    core: &Core,
    row: QueueRow,
    adapters: Adapters,
    permit: OwnedSemaphorePermit,
) -> Result<Option<RunTask>, Error> {
    let asked = row.run_id.clone();
    let (run, lease) = core
        .parts
        .reader
        .read(move |store| Ok((store.run(&asked)?, store.lease(&asked)?)))
        .await?;
    let Some(run) = run.filter(|run| run.status == RunStatus::Pending) else {
        return Ok(None);
    };
    let is_unwanted = |lease: &Lease| lease.cancel_requested_at.is_some();
    if lease.as_ref().is_some_and(is_unwanted) {
        cancel::cancel(core, &row.run_id).await?;
        return Ok(None);
    }
    let (options, workspace, refused) = placed(core, &run, &row).await?;
    let lock = match &workspace {
        Some(place) => {
            let holder = lock::holder_of(&row.run_id, &row.session_id);
            let (workspace, blocking) = (&place.opened.workspace, &core.parts.blocking);
            Some(RunLock::acquire(workspace, &holder, Duration::ZERO, blocking).await?)
        }
        None => None,
    };
    let epoch = lease.as_ref().map_or(0, |lease| lease.epoch) + 1;
    let mut claim = vec![Change::ClaimQueued {
        run_id: row.run_id.clone(),
        from: lease.map(Box::new),
        lease: Box::new(new_lease(&core.parts, epoch)?),
        max_in_session: core.parts.settings.max_running_in_session,
    }];
    // What cannot be read is why it is refused.
    let stricter = run.stricter_in(&core.parts.settings.limits);
    if let Some(stricter) = stricter.ok().flatten() {
        claim.push(Change::SetEngineLimits {
            run_id: row.run_id.clone(),
            limits: document(&stricter),
        });
    }
    Ok(Some(RunTask {
        core: core.clone(),
        session_id: row.session_id.clone(),
        run_id: row.run_id.clone(),
        hold: Hold {
            run_id: row.run_id.clone(),
            epoch,
        },
        cancellation: CancellationToken::new(),
        options,
        // Made once the run is this engine's.
        adapter: BoxAdapter::new(NoWork),
        workspace,
        recorded: None,
        queued: Some(Queued {
            row,
            adapters,
            lock,
            refused,
            claim,
        }),
        tended: None,
        on_branch: None,
        further: Vec::new(),
        isolated: None,
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
    }))
}

/// The options of a run that waits and its workspace, or why it is refused.
async fn placed(
    core: &Core,
    run: &RunRow,
    row: &QueueRow,
) -> Result<(RunOptions, Option<RunPlace>, Option<Error>), Error> {
    let bounded = options_of(run).and_then(|options| {
        let limits = limits_of(run, &core.parts.settings.limits)?;
        Ok(RunOptions { limits, ..options })
    });
    let mut options = match bounded {
        Ok(options) => options,
        Err(e) => {
            let mut options = RunOptions::new(run.input.clone());
            options.is_nameless = true;
            return Ok((options, None, Some(e)));
        }
    };
    options.priority = row.priority;
    let (parts, asked, run) = (core.parts.clone(), options.clone(), run.clone());
    let found = move || {
        let found = place(&parts, &asked)?;
        check_workspace(&run, found.as_ref().map(|place| &place.opened))?;
        // Those that were chosen when it was accepted, so that a clean-up spares them.
        let ids = run.workspace.map(|kept| (kept.before, kept.after));
        let found = found.zip(ids);
        Ok::<_, Error>(found.map(
            |(place, ids): (RunPlace, (SnapshotId, SnapshotId))| RunPlace {
                before: ids.0,
                after: ids.1,
                ..place
            },
        ))
    };
    Ok(match core.parts.blocking.run(found).await? {
        Ok(place) => (options, place, None),
        Err(e) if is_passing(e.kind()) => return Err(e),
        Err(e) => (options, None, Some(e)),
    })
}

impl RunTask {
    /// Takes a run of the queue for this engine. `Conflict`: somebody else has it, or it is not to
    /// be begun now.
    pub(super) async fn claim_queued(&self) -> Result<(), Error> {
        if let Some(queued) = &self.queued {
            let claim = queued.claim.clone();
            self.core.parts.writer.commit(claim).await?;
        }
        Ok(())
    }

    /// Whether it is a run of the queue.
    pub(super) fn is_queued(&self) -> bool {
        self.queued.is_some()
    }

    /// Makes the adapter of a run of the queue, and answers with its workspace's lock.
    pub(super) fn unpacked(&mut self) -> Result<Option<RunLock>, Error> {
        let directory = self.workspace.as_ref();
        let directory = directory.map(|p| p.opened.workspace.disk_path().to_owned());
        let Some(queued) = &mut self.queued else {
            return Ok(None);
        };
        if let Some(refused) = queued.refused.take() {
            return Err(refused);
        }
        let (name, input) = (&queued.row.adapter, queued.row.input.clone());
        let made = queued.adapters.make(name, input);
        self.adapter = made.map_err(|failure| Error::invalid_options(failure.message))?;
        self.adapter.check(directory.as_deref())?;
        limit_call_of_model(&mut self.options, &self.adapter);
        Ok(queued.lock.take())
    }

    /// Puts a run back that was not begun for no reason of its own: its workspace is in use, the
    /// engine stops, or something failed that may pass. Any other stays what it is.
    pub(super) async fn back_in_queue(&self, why: NotStarted) -> Result<Error, NotStarted> {
        let is_to_wait = match &why {
            NotStarted::Refused(e) => is_passing(e.kind()),
            NotStarted::Cancelled => !self.is_unwanted().await,
        };
        if !self.is_queued() || !is_to_wait {
            return Err(why);
        }
        let (kind, because) = match &why {
            NotStarted::Refused(e) => (e.kind(), format!(": {}", e.chain())),
            NotStarted::Cancelled => (ErrorKind::Busy, String::new()),
        };
        match put_back(&self.core, &self.run_id, self.hold.epoch).await {
            Ok(()) => Ok(Error::new(
                kind,
                format!(
                    "run {} is in the queue again; its work was not begun{because}",
                    self.run_id
                ),
            )
            .in_run(self.run_id.clone())),
            // Somebody asks for its end in this moment.
            Err(e) if e.kind() == ErrorKind::Conflict => Err(NotStarted::Cancelled),
            Err(e) => Ok(e),
        }
    }
}
