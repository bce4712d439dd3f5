//! Recording the phases and steps of a run as its adapter calls them: the order of reads, captures
//! and writes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as BlockingMutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use stillframe_backends::{Backend, ErrorKind, SnapshotId};
use stillframe_secrets::SecretRules;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actors::core::Core;
use crate::error::{Error, stopped};
use crate::events::data::{ErrorOccurred, Failed, PhaseMoved, StepMoved, data};
use crate::events::draft::EventDraft;
use crate::events::event::{Event, EventType};
use crate::events::query::EventQuery;
use crate::failure::Failure;
use crate::id::{EngineId, RunId, SessionId, StepId};
use crate::options::RunOptions;
use crate::policy::limits::RunLimits;
use crate::policy::used::Used;
use crate::records::run_record::RunExport;
use crate::records::step::{
    self, Asked, PhaseKey, PhaseRow, StepEnding, StepEvent, StepRow, StepStatus,
};
use crate::records::step_record::PhaseRecord;
use crate::saving::repository::Repository;
use crate::state::change::{Change, NewEvent};
use crate::state::hold::Hold;
use crate::step::emit;
use crate::step::options::StepOptions;
use crate::step::oversight::Oversight;
use crate::step::pieces::{Pieces, Share};
use crate::step::work_clock::WorkClock;
use crate::workspace::opened::Opened;
use crate::workspace::turn::MAX_WAIT;

mod agents;
mod artifacts;
mod captures;
mod checkpoints;
mod commits;
mod going_back;
mod questions;
mod reviews;
mod run_state;
mod tasks;
mod tool_calls;
mod violations;
mod waiting;

use checkpoints::Progress;
pub(crate) use going_back::Choices;
use going_back::Ready;
pub(crate) use questions::Approval;
pub(crate) use tool_calls::CallTold;
use waiting::Waiting;

/// How long between two tries at a database that somebody else has.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// The record of one run's phases and steps. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StepLog {
    inner: Arc<Inner>,
}

struct Inner {
    core: Core,
    session_id: SessionId,
    hold: Hold,
    place: Option<StepPlace>,
    /// Whether the run has any phase.
    is_used: AtomicBool,
    /// Whether the run can be resumed though it has none.
    is_begun_as_resumable: bool,
    /// How long an answer is waited for before the run rests.
    hot_wait: Duration,
    /// What the host says of the run now, until that is on record.
    metadata: BlockingMutex<Option<Value>>,
    /// Set once the run has ended: nothing of it changes any more.
    is_closed: AtomicBool,
    /// What is under way, however the futures of the adapter fare.
    under_way: TaskTracker,
    /// One reads, decides and writes at a time.
    turn: Mutex<()>,
    /// Since when phases are worked on, in this process.
    began: BlockingMutex<HashMap<PhaseKey, Instant>>,
    waiting: BlockingMutex<Waiting>,
    clock: WorkClock,
    /// Cancelled once the run should rest until it is answered.
    parking: CancellationToken,
    /// Messages that come in pieces, and are not at their end.
    streams: BlockingMutex<Vec<Arc<Pieces>>>,
    oversight: Oversight,
    /// `None`: the run is of no task.
    progress: Option<Progress>,
}

/// Where the steps of a run work, and with what they are captured.
#[derive(Clone)]
pub(crate) struct StepPlace {
    pub(crate) opened: Opened,
    pub(crate) backend: Arc<dyn Backend>,
}

/// What a step that is asked for has to do.
pub(crate) enum Begun {
    /// Nothing: this is its result.
    Done(Value),
    /// Nothing: it ended like this, for this reason.
    Failed(StepStatus, Failure),
    /// Nothing: it, or its phase, was left out.
    Skipped,
    /// Another attempt.
    Attempt(Box<Attempt>),
    /// It was interrupted, and somebody has to be asked how it goes on.
    Choose(Box<StepRow>, Choices),
    /// Nothing can be done: it is on record with another definition.
    Changed(Vec<StepRow>),
}

/// An attempt at a step that is on record as under way.
pub(crate) struct Attempt {
    pub(crate) row: StepRow,
    /// Let go of once its work has ended.
    pub(crate) dropped: Dropped,
}

impl StepLog {
    pub(crate) fn new(
        core: Core,
        session_id: SessionId,
        hold: Hold,
        place: Option<StepPlace>,
        (is_used, used): (bool, Used),
        (options, limits): (&RunOptions, RunLimits),
        repositories: Vec<Repository>,
    ) -> Self {
        let policy = core.parts.settings.policy.clone();
        let oversight = Oversight::new(policy, limits, used);
        let hot_wait = options.hot_wait.unwrap_or(core.parts.settings.hot_wait);
        let inner = Inner {
            core,
            session_id,
            hold,
            place,
            is_used: AtomicBool::new(is_used),
            is_begun_as_resumable: options.resumable,
            hot_wait,
            metadata: BlockingMutex::new(Some(options.metadata.clone()).filter(|m| !m.is_null())),
            is_closed: AtomicBool::new(false),
            under_way: TaskTracker::new(),
            turn: Mutex::new(()),
            began: BlockingMutex::default(),
            waiting: BlockingMutex::default(),
            clock: WorkClock::started(),
            parking: CancellationToken::new(),
            streams: BlockingMutex::default(),
            oversight,
            progress: Progress::of(repositories),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Whether the run has phases.
    pub(crate) fn is_used(&self) -> bool {
        self.inner.is_used.load(Ordering::Acquire)
    }

    /// Whether the run can go on after it was stopped.
    pub(crate) fn is_resumable(&self) -> bool {
        self.inner.is_begun_as_resumable || self.is_used()
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire)
    }

    /// Whether something of the run can change.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.is_closed() {
            true => Err(Error::new(
                ErrorKind::Conflict,
                format!("run {} has ended; nothing was done", self.run_id()),
            )),
            false => Ok(()),
        }
    }

    /// Does `work` to its end, though the adapter drops the future that asked for it: what is half
    /// on record would be in everybody's way.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.check_open()?;
        let tracked = self.inner.under_way.track_future(work);
        let answered = self.inner.core.spawn(tracked).await;
        answered.unwrap_or_else(|_| Err(stopped()))
    }

    /// Waits for what is under way; from here on nothing more begins.
    pub(crate) async fn settle(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.inner.under_way.close();
        self.inner.under_way.wait().await;
        // Last, so that each piece that was taken is stored.
        self.store_pieces(Share::All).await;
    }

    /// An attempt that is on record as under way, and who looks after it.
    fn attempt(
        &self,
        row: StepRow,
        options: &StepOptions,
        cancellation: &CancellationToken,
    ) -> Attempt {
        let dropped = Dropped {
            attempt: Some((self.clone(), row.clone(), options.snapshots)),
            cancellation: cancellation.clone(),
        };
        Attempt { row, dropped }
    }

    /// What is taken out of everything that is written.
    pub(crate) fn secrets(&self) -> &SecretRules {
        self.inner.core.parts.writer.secrets()
    }

    /// Where the run is on record.
    pub(crate) fn state_dir(&self) -> &Path {
        self.inner.core.parts.state_dir.path()
    }

    /// The same, and the engine that has the run.
    pub(crate) fn held_by(&self) -> (PathBuf, EngineId) {
        let parts = &self.inner.core.parts;
        (self.state_dir().to_owned(), parts.engine_id.clone())
    }

    fn run_id(&self) -> &RunId {
        &self.inner.hold.run_id
    }

    fn event(&self, event_type: EventType, said: impl Serialize) -> Change {
        let at = self.inner.core.parts.now();
        let (session, run) = (&self.inner.session_id, Some(self.run_id()));
        Change::Append(NewEvent::new(event_type, session, run, at, said))
    }

    async fn commit(&self, mut changes: Vec<Change>) -> Result<(), Error> {
        self.store_pieces(Share::Settled).await;
        changes.insert(0, self.inner.hold.fence());
        self.inner.core.parts.writer.commit(changes).await?;
        Ok(())
    }

    /// As [`StepLog::commit`], for work that was already done: if the disk is full, the reserve
    /// that is kept for recovery is released for it, and if another process has the database, it
    /// waits as long as this engine holds the run.
    async fn commit_ending(&self, changes: Vec<Change>) -> Result<(), Error> {
        let expiry = self.inner.core.parts.settings.lease_expiry;
        let deadline = Instant::now() + expiry.min(MAX_WAIT);
        let committed = loop {
            match self.commit(changes.clone()).await {
                // Each has waited for some seconds.
                Err(e) if e.kind() == ErrorKind::Busy && Instant::now() < deadline => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                committed => break committed,
            }
        };
        match committed {
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                let reserve = self.inner.core.parts.reserve.clone();
                let blocking = &self.inner.core.parts.blocking;
                match blocking.run(move || reserve.lend()).await? {
                    true => self.commit(changes).await,
                    false => Err(e),
                }
            }
            committed => committed,
        }
    }

    /// What the host says of the run now; `None`: nothing, or it is on record.
    fn metadata(&self) -> Option<Change> {
        let mut metadata = self
            .inner
            .metadata
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        let metadata = metadata.take()?;
        Some(Change::SetMetadata {
            run_id: self.run_id().clone(),
            metadata,
        })
    }

    /// Puts on record what the host says of the run now, of which the plan is part: it was found to
    /// fit.
    pub(crate) async fn keep_metadata(&self) -> Result<(), Error> {
        match self.metadata() {
            Some(change) => self.commit(vec![change]).await,
            None => Ok(()),
        }
    }

    /// The phases on record with their steps, each in the order in which they were first begun.
    pub(crate) async fn records(&self) -> Result<Vec<PhaseRecord>, Error> {
        let run_id = self.run_id().clone();
        let reader = &self.inner.core.parts.reader;
        reader
            .read(move |store| RunExport::phases_of(store, &run_id))
            .await
    }

    /// The steps on record, in the order in which they were first begun.
    pub(crate) async fn steps(&self) -> Result<Vec<StepRow>, Error> {
        let run_id = self.run_id().clone();
        let reader = &self.inner.core.parts.reader;
        reader.read(move |store| store.steps(&run_id)).await
    }

    async fn phase(&self, key: &PhaseKey) -> Result<Option<PhaseRow>, Error> {
        let (run_id, key) = (self.run_id().clone(), key.clone());
        let reader = &self.inner.core.parts.reader;
        reader.read(move |store| store.phase(&run_id, &key)).await
    }

    /// How long a phase was worked on in this process and before it.
    fn worked(&self, phase: &PhaseRow) -> Option<Duration> {
        let began = self.inner.began.lock().unwrap_or_else(|e| e.into_inner());
        let here = began.get(&phase.key)?.elapsed();
        Some(here + Duration::from_millis(phase.duration_ms.unwrap_or(0)))
    }

    /// What a phase's move means for its row and the log.
    fn phase_change(
        &self,
        found: Option<&PhaseRow>,
        key: &PhaseKey,
        event: StepEvent,
        reason: Option<&str>,
    ) -> Result<Vec<Change>, Error> {
        let at = self.inner.core.parts.now();
        let fresh = PhaseRow::new(key.clone());
        let row = found.unwrap_or(&fresh);
        let worked = self.worked(row);
        let row = row.after(event, at, worked).map_err(conflict)?;
        let said = PhaseMoved {
            reason,
            ..row.said()
        };
        let told = step::phase_event(row.status).map(|told| self.event(told, said));
        let put = Change::PutPhase {
            run_id: self.run_id().clone(),
            from: found.map(|row| row.status),
            row: Box::new(row),
        };
        Ok([Some(put), told].into_iter().flatten().collect())
    }

    /// What a step's move means for its row and the log.
    fn step_change(
        &self,
        from: Option<StepStatus>,
        row: &StepRow,
        said: StepMoved<'_>,
    ) -> Vec<Change> {
        let put = Change::PutStep {
            run_id: self.run_id().clone(),
            from,
            row: Box::new(row.clone()),
        };
        vec![put, self.event(step::step_event(row.status), said)]
    }

    /// Begins a step, or finds that there is nothing to begin.
    ///
    /// The snapshot before it, where there is a workspace, and the attempt are durable then.
    pub(crate) async fn begin(
        &self,
        phase: &PhaseKey,
        options: &StepOptions,
        cancellation: &CancellationToken,
    ) -> Result<Begun, Error> {
        let (log, phase, options) = (self.clone(), phase.clone(), options.clone());
        let cancellation = cancellation.clone();
        self.to_the_end(async move { log.try_begin(&phase, &options, &cancellation).await })
            .await
    }

    async fn try_begin(
        &self,
        phase: &PhaseKey,
        options: &StepOptions,
        cancellation: &CancellationToken,
    ) -> Result<Begun, Error> {
        let _turn = self.inner.turn.lock().await;
        let found_phase = self.phase(phase).await?;
        let is_skipped = found_phase
            .as_ref()
            .is_some_and(|row| row.status == StepStatus::Skipped);
        if is_skipped {
            return Ok(Begun::Skipped);
        }
        let steps = self.steps().await?;
        let found = steps
            .iter()
            .find(|row| row.phase == *phase && row.name == options.name);
        let fresh = StepRow::new(
            phase.clone(),
            options.name.clone(),
            options.definition_hash(),
        );
        let from = found.map(|row| row.status);
        let mut in_place = None;
        let row = match step::asked(found.cloned(), fresh) {
            Asked::Done(row) => return Ok(Begun::Done(row.result.unwrap_or(Value::Null))),
            Asked::Failed(row) => {
                let failure = row.error.unwrap_or_else(|| {
                    Failure::new(ErrorKind::Cancelled.as_str(), "its run was cancelled")
                });
                return Ok(Begun::Failed(row.status, failure));
            }
            Asked::Skipped => return Ok(Begun::Skipped),
            Asked::Changed => return Ok(Begun::Changed(steps)),
            Asked::UnderWay => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "step {:?} of phase {:?} is under way already",
                        options.name, phase.phase
                    ),
                ));
            }
            Asked::Finish(row) => return self.finish(found_phase, *row, options).await,
            Asked::Begin(row) => *row,
            Asked::Interrupted(row) => {
                match self.make_ready(*row, &steps, options, cancellation).await? {
                    Ready::Begin(row) => *row,
                    Ready::InPlace(row, reason) => {
                        in_place = Some(reason);
                        *row
                    }
                    Ready::Choose(row, choices) => return Ok(Begun::Choose(row, choices)),
                }
            }
        };
        let begun = self
            .begin_attempt((found_phase, from, row), in_place, options, cancellation)
            .await?;
        let attempt = self.attempt(begun, options, cancellation);
        Ok(Begun::Attempt(Box::new(attempt)))
    }

    /// Begins another attempt at a step of which one has failed.
    pub(crate) async fn begin_again(
        &self,
        row: StepRow,
        options: &StepOptions,
        cancellation: &CancellationToken,
    ) -> Result<Attempt, Error> {
        let (log, options, cancellation) = (self.clone(), options.clone(), cancellation.clone());
        self.to_the_end(async move {
            let _turn = log.inner.turn.lock().await;
            let phase = log.phase(&row.phase).await?;
            let row = on_record(log.steps().await?, row);
            let from = Some(row.status);
            let begun = log
                .begin_attempt((phase, from, row), None, &options, &cancellation)
                .await?;
            Ok(log.attempt(begun, &options, &cancellation))
        })
        .await
    }

    /// `in_place`: why it goes on with what is there, though nobody asked for that.
    async fn begin_attempt(
        &self,
        (phase, from, row): (Option<PhaseRow>, Option<StepStatus>, StepRow),
        in_place: Option<String>,
        options: &StepOptions,
        cancellation: &CancellationToken,
    ) -> Result<StepRow, Error> {
        let run_id = self.run_id().clone();
        let reader = &self.inner.core.parts.reader;
        let lease = reader.read(move |store| store.lease(&run_id)).await?;
        let is_unwanted = lease.is_some_and(|lease| lease.cancel_requested_at.is_some());
        if is_unwanted || cancellation.is_cancelled() {
            return Err(not_begun(&row.name));
        }
        let is_running = phase
            .as_ref()
            .is_some_and(|row| row.status == StepStatus::Running);
        let key = row.phase.clone();
        // A plan that has grown may have a new step in a phase that an earlier process was done
        // with.
        let is_of_earlier = || {
            let began = self.inner.began.lock().unwrap_or_else(|e| e.into_inner());
            !began.contains_key(&key)
        };
        let is_settled = |row: &PhaseRow| {
            row.status.is_settled() && !(row.status == StepStatus::Completed && is_of_earlier())
        };
        if phase.as_ref().is_some_and(is_settled) {
            let status = phase.map_or(StepStatus::Completed, |row| row.status);
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "phase {:?} is {status}, so that step {:?} cannot begin",
                    key.phase, row.name
                ),
            ));
        }
        let reserve = self.inner.core.parts.reserve.clone();
        let what = format!("step {:?}", row.name);
        let blocking = &self.inner.core.parts.blocking;
        blocking.run(move || reserve.check(&what)).await??;
        let before = match &self.inner.place {
            Some(place) if options.snapshots => {
                let before = self.capture(place, Some(cancellation)).await?;
                Some(before.id)
            }
            _ => None,
        };
        let order = step::next_order(&self.steps().await?);
        let at = self.inner.core.parts.now();
        let begun = row.begun(before, at, order).map_err(conflict)?;
        let mut changes = match is_running {
            true => Vec::new(),
            false => self.phase_change(phase.as_ref(), &key, StepEvent::Begun, None)?,
        };
        let said = StepMoved {
            in_place,
            ..begun.said()
        };
        changes.extend(self.step_change(from, &begun, said));
        changes.extend(self.metadata());
        self.commit(changes).await?;
        self.inner.is_used.store(true, Ordering::Release);
        let mut began = self.inner.began.lock().unwrap_or_else(|e| e.into_inner());
        began.entry(key).or_insert_with(Instant::now);
        Ok(begun)
    }

    /// Writes down how an attempt ended. `event` is one that ends it; `retry_in`: there is another
    /// after that.
    pub(crate) async fn end_attempt(
        &self,
        row: StepRow,
        event: StepEvent,
        ending: StepEnding,
        retry_in: Option<Duration>,
        snapshots: bool,
    ) -> Result<StepRow, Error> {
        let log = self.clone();
        self.to_the_end(async move { log.try_end(row, event, ending, retry_in, snapshots).await })
            .await
    }

    async fn try_end(
        &self,
        row: StepRow,
        event: StepEvent,
        mut ending: StepEnding,
        retry_in: Option<Duration>,
        snapshots: bool,
    ) -> Result<StepRow, Error> {
        if let (Some(place), true) = (&self.inner.place, snapshots) {
            match self.capture(place, None).await {
                Ok(after) => ending.snapshot_after = Some(after.id),
                // Its result is kept, and it is completed once what it left is captured.
                Err(e) if event == StepEvent::Done => {
                    let _turn = self.inner.turn.lock().await;
                    let steps = self.steps().await?;
                    let order = step::next_order(&steps);
                    let row = on_record(steps, row);
                    let at = self.inner.core.parts.now();
                    ending.error = Some(Failure::from(&e));
                    let cut = row
                        .after(StepEvent::Interrupted, ending, at, order)
                        .map_err(conflict)?;
                    let changes = self.step_change(Some(row.status), &cut, cut.said());
                    self.commit_ending(changes).await?;
                    return Err(e);
                }
                // That it failed is the one to tell.
                Err(e) if !matches!(e.kind(), ErrorKind::Conflict) => {
                    let failure = Failure::from(&e);
                    let told = self.event(EventType::ERROR_OCCURRED, ErrorOccurred::from(&failure));
                    self.commit(vec![told]).await?;
                }
                Err(e) => return Err(e),
            }
        }
        let _turn = self.inner.turn.lock().await;
        let steps = self.steps().await?;
        let order = step::next_order(&steps);
        let row = on_record(steps, row);
        let at = self.inner.core.parts.now();
        let ended = row.after(event, ending, at, order).map_err(conflict)?;
        let said = StepMoved {
            retry_in_ms: retry_in.map(step::milliseconds),
            ..ended.said()
        };
        self.commit_ending(self.step_change(Some(row.status), &ended, said))
            .await?;
        Ok(ended)
    }

    /// How many attempts at a step have failed, and were to be repeated.
    pub(crate) async fn failed_attempts(&self, step: &StepId) -> Result<u32, Error> {
        let query = EventQuery::session(self.inner.session_id.clone())
            .run(self.run_id().clone())
            .of_type(EventType::STEP_FAILED);
        let reader = &self.inner.core.parts.reader;
        let events = reader.read(move |store| store.events(&query)).await?;
        let of_step = events
            .iter()
            .filter(|event| event.told().step_id.as_deref() == Some(step.as_str()));
        Ok(u32::try_from(of_step.count()).unwrap_or(u32::MAX))
    }

    /// Completes a step whose work is done, and of which what that left could not be captured.
    async fn finish(
        &self,
        phase: Option<PhaseRow>,
        row: StepRow,
        options: &StepOptions,
    ) -> Result<Begun, Error> {
        let after = match &self.inner.place {
            Some(place) if options.snapshots => Some(self.capture(place, None).await?.id),
            _ => None,
        };
        let at = self.inner.core.parts.now();
        let order = step::next_order(&self.steps().await?);
        let ending = StepEnding {
            snapshot_after: after,
            ..StepEnding::default()
        };
        let again = row.after(StepEvent::Begun, StepEnding::default(), at, order);
        let done = again
            .and_then(|row| row.after(StepEvent::Done, ending, at, order))
            .map_err(conflict)?;
        let done = StepRow {
            error: None,
            ..done
        };
        let mut changes = match phase.as_ref().map(|phase| phase.status) {
            Some(StepStatus::Running) => Vec::new(),
            _ => self.phase_change(phase.as_ref(), &row.phase, StepEvent::Begun, None)?,
        };
        changes.extend(self.step_change(Some(row.status), &done, done.said()));
        self.commit(changes).await?;
        Ok(Begun::Done(done.result.unwrap_or(Value::Null)))
    }

    /// Leaves a step out. One that is skipped already stays so.
    pub(crate) async fn skip_step(
        &self,
        phase: &PhaseKey,
        name: &str,
        reason: &str,
    ) -> Result<(), Error> {
        let _turn = self.inner.turn.lock().await;
        let steps = self.steps().await?;
        let found = steps
            .iter()
            .find(|row| row.phase == *phase && row.name == name);
        if found.is_some_and(|row| row.status == StepStatus::Skipped) {
            return Ok(());
        }
        let options = StepOptions::new(name);
        let fresh = || StepRow::new(phase.clone(), name.to_owned(), options.definition_hash());
        let row = found.cloned().unwrap_or_else(fresh);
        let at = self.inner.core.parts.now();
        let order = step::next_order(&steps);
        let skipped = row
            .after(StepEvent::Skipped, StepEnding::default(), at, order)
            .map_err(conflict)?;
        let mut said = skipped.said();
        said.failed = Some(Failed {
            kind: said.failed.and_then(|failed| failed.kind),
            reason: reason.to_owned(),
        });
        let found_phase = self.phase(phase).await?;
        let mut changes = match found_phase {
            Some(_) => Vec::new(),
            None => self.phase_change(None, phase, StepEvent::Begun, None)?,
        };
        changes.extend(self.step_change(found.map(|row| row.status), &skipped, said));
        self.commit(changes).await?;
        self.inner.is_used.store(true, Ordering::Release);
        Ok(())
    }

    /// Moves a phase; one that is there already stays so.
    pub(crate) async fn end_phase(
        &self,
        key: &PhaseKey,
        event: StepEvent,
        reason: Option<&str>,
    ) -> Result<(), Error> {
        let _turn = self.inner.turn.lock().await;
        let found = self.phase(key).await?;
        let goal = match event {
            StepEvent::Skipped => StepStatus::Skipped,
            _ => StepStatus::Completed,
        };
        if found.as_ref().is_some_and(|row| row.status == goal) {
            // The phase has ended before, so no more steps of it follow here.
            let mut began = self.inner.began.lock().unwrap_or_else(|e| e.into_inner());
            began.entry(key.clone()).or_insert_with(Instant::now);
            return Ok(());
        }
        // A phase that is gone on with and in which nothing was left to do was begun all the same.
        let is_resumed = goal == StepStatus::Completed
            && found
                .as_ref()
                .is_some_and(|row| row.status == StepStatus::Interrupted);
        let mut changes = Vec::new();
        let mut row = found;
        if is_resumed && let Some(interrupted) = &row {
            changes = self.phase_change(Some(interrupted), key, StepEvent::Begun, None)?;
            let at = self.inner.core.parts.now();
            row = Some(
                interrupted
                    .after(StepEvent::Begun, at, None)
                    .map_err(conflict)?,
            );
        }
        let steps = self.steps().await?;
        let open = steps
            .iter()
            .find(|step| step.phase == *key && !step.status.is_settled());
        if let Some(open) = open {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "step {:?} of phase {:?} is {}, so that the phase cannot end",
                    open.name, key.phase, open.status
                ),
            ));
        }
        changes.extend(self.phase_change(row.as_ref(), key, event, reason)?);
        self.commit(changes).await?;
        self.inner.is_used.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes events of the adapter into the log, all or none.
    /// `step_id`: the step in which it does.
    pub(crate) async fn emit(
        &self,
        step_id: Option<&StepId>,
        drafts: Vec<EventDraft>,
    ) -> Result<Vec<Event>, Error> {
        self.store_pieces(Share::Settled).await;
        self.write_events(step_id, drafts).await
    }

    /// Looks after a message that comes in pieces until it is at its end.
    pub(crate) fn add_stream(&self, pieces: &Arc<Pieces>) {
        self.streams().push(Arc::clone(pieces));
    }

    /// A message is at its end.
    pub(crate) fn remove_stream(&self, pieces: &Arc<Pieces>) {
        self.streams().retain(|other| !Arc::ptr_eq(other, pieces));
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<Pieces>>> {
        let streams = self.inner.streams.lock();
        streams.unwrap_or_else(|e| e.into_inner())
    }

    /// Stores what has come of messages, before something else is written. If it cannot be, what
    /// follows tells why, or the next piece does.
    async fn store_pieces(&self, share: Share) {
        let streams = self.streams().clone();
        for pieces in streams {
            let is_let_go = pieces.is_let_go();
            let share = if is_let_go { Share::All } else { share };
            match self.store_of(&pieces, share).await {
                Ok(()) if is_let_go => self.remove_stream(&pieces),
                Ok(()) => {}
                Err(e) => {
                    tracing::warn!(run = %self.run_id(), error = %e.chain(), "pieces of a message are not stored");
                }
            }
        }
    }

    /// Stores what has come of one message.
    pub(crate) async fn store_of(&self, pieces: &Pieces, share: Share) -> Result<(), Error> {
        let write = |draft| self.write_events(None, vec![draft]);
        pieces.store(self.secrets(), share, write).await
    }

    /// Writes events of the adapter into the log, all or none, and nothing before them.
    async fn write_events(
        &self,
        step_id: Option<&StepId>,
        drafts: Vec<EventDraft>,
    ) -> Result<Vec<Event>, Error> {
        let Inner {
            core,
            session_id,
            hold,
            ..
        } = &*self.inner;
        emit::emit(core, session_id, Some((hold, step_id)), drafts).await
    }

    /// The phases and steps on record, those that are under way with how long they were worked on
    /// until now.
    pub(crate) async fn until_now(&self) -> Result<(Vec<PhaseRow>, Vec<StepRow>), Error> {
        let run_id = self.run_id().clone();
        let (phases, steps) = self
            .inner
            .core
            .parts
            .reader
            .read(move |store| Ok((store.phases(&run_id)?, store.steps(&run_id)?)))
            .await?;
        let phases = phases
            .into_iter()
            .map(|row| PhaseRow {
                duration_ms: match row.status.is_settled() {
                    true => row.duration_ms,
                    false => self
                        .worked(&row)
                        .map(|worked| u64::try_from(worked.as_millis()).unwrap_or(u64::MAX))
                        .or(row.duration_ms),
                },
                ..row
            })
            .collect();
        Ok((phases, steps))
    }
}

/// An attempt whose work is being done. Dropped before that has ended, it ends the attempt, so that
/// the step can be asked for again.
pub(crate) struct Dropped {
    attempt: Option<(StepLog, StepRow, bool)>,
    /// Cancelled when the work of the run should stop.
    cancellation: CancellationToken,
}

impl Dropped {
    /// The work has ended.
    pub(crate) fn disarm(mut self) {
        self.attempt = None;
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        let Some((log, row, snapshots)) = self.attempt.take() else {
            return;
        };
        if self.cancellation.is_cancelled() || log.is_closed() {
            // The end of the run says what became of it.
            return;
        }
        let ending = StepEnding {
            error: Some(Failure::of_work(
                "its future was dropped before it had ended",
            )),
            ..StepEnding::default()
        };
        let ended = log.clone();
        let end = async move {
            let ended = ended
                .try_end(row, StepEvent::Retried, ending, None, snapshots)
                .await;
            if let Err(e) = ended {
                tracing::warn!(error = %e.chain(), "a step that was dropped is not ended");
            }
        };
        let tracked = log.inner.under_way.track_future(end);
        log.inner.core.spawn(tracked);
    }
}

/// What the end of a run changes in the rows of its phases and steps, and what it tells.
pub(crate) fn closing_changes(
    core: &Core,
    (session_id, run_id): (&SessionId, &RunId),
    (phases, steps): &(Vec<PhaseRow>, Vec<StepRow>),
    how: step::Closed,
    left: Option<&SnapshotId>,
    is_recovered: bool,
) -> Vec<Change> {
    let at = core.parts.now();
    let (ended_phases, ended_steps) = step::closed(phases, steps, how, left, at);
    let event = |event_type: EventType, said: Value| {
        Change::Append(NewEvent::new(
            event_type,
            session_id,
            Some(run_id),
            at,
            said,
        ))
    };
    let mut changes = Vec::new();
    for row in ended_steps {
        let from = steps.iter().find(|step| step.id == row.id);
        let said = StepMoved {
            recovered: is_recovered,
            ..row.said()
        };
        let told = event(step::step_event(row.status), data(&said));
        changes.push(Change::PutStep {
            run_id: run_id.clone(),
            from: from.map(|step| step.status),
            row: Box::new(row),
        });
        changes.push(told);
    }
    for row in ended_phases {
        let from = phases.iter().find(|phase| phase.key == row.key);
        let said = data(&PhaseMoved {
            recovered: is_recovered,
            ..row.said()
        });
        let told = step::phase_event(row.status).map(|told| event(told, said));
        changes.push(Change::PutPhase {
            run_id: run_id.clone(),
            from: from.map(|phase| phase.status),
            row: Box::new(row),
        });
        changes.extend(told);
    }
    changes
}

/// Why there is no attempt at a step.
pub(crate) fn not_begun(name: &str) -> Error {
    Error::new(
        ErrorKind::Cancelled,
        format!("step {name:?} was not begun, because its run ends"),
    )
}

/// The row as it is by now: what its work has put on record meanwhile is in it.
fn on_record(steps: Vec<StepRow>, row: StepRow) -> StepRow {
    let found = steps.into_iter().find(|step| step.id == row.id);
    match found {
        Some(found) if found.status == row.status && found.attempt == row.attempt => found,
        // Somebody has ended it; the compare-and-swap says so.
        _ => row,
    }
}

fn conflict(error: step::IllegalStepEvent) -> Error {
    Error::new(ErrorKind::Conflict, error)
}
