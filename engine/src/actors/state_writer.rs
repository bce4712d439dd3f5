//! The actor that writes all durable state.

use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use stillframe_secrets::SecretRules;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::error::Error;
use crate::events::event::Event;
use crate::events::notifier::Notifier;
use crate::state::StateStore;
use crate::state::change::Change;
use crate::state::error::StateError;
use crate::state::liveness::EngineLock;
use crate::state::redaction;
use crate::state::registering::Registering;
use crate::telemetry;

/// How long between two looks for events of other processes, which ring no bell here.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How many commits are synced together at most: what is one transaction takes memory.
const MAX_TOGETHER: usize = 256;

/// Writes to the state, on a thread of its own: one batch after the other, and those that came
/// meanwhile together.
///
/// SQLite's connection belongs to that thread, which outlives a kill of the actor until its queue
/// is done: what was taken is written.
pub(crate) struct StateWriterActor;

/// What the state writer is told.
pub(crate) enum StateWriterMessage {
    /// The thread has ended, which it never does by itself.
    ThreadEnded,
}

/// What the state writer starts with.
pub(crate) struct StateWriterArguments {
    pub(crate) log: LogOnDemand,
    /// Rung after every commit with events.
    pub(crate) notifier: Notifier,
    pub(crate) queue: Queue,
}

pub(crate) struct StateWriterState {
    queue: Option<OpenQueue>,
    done: Option<oneshot::Receiver<()>>,
}

/// What is to be written, in this order. It goes from who asks to the thread at once: a way through
/// the mailbox of the actor takes about as long as to write. Clones are one queue.
#[derive(Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<Option<mpsc::Sender<Job>>>>);

impl Queue {
    fn sender(&self) -> MutexGuard<'_, Option<mpsc::Sender<Job>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lets it take jobs.
    fn open(&self) -> (OpenQueue, mpsc::Receiver<Job>) {
        let (sender, jobs) = mpsc::channel();
        *self.sender() = Some(sender);
        (OpenQueue(self.clone()), jobs)
    }

    /// A job that cannot be written takes its reply along, which the receiver hears of.
    fn send(&self, job: Job) {
        if let Some(sender) = &*self.sender() {
            let _ = sender.send(job);
        }
    }
}

/// A queue is open until this is dropped, with the actor at the latest.
struct OpenQueue(Queue);

impl Drop for OpenQueue {
    fn drop(&mut self) {
        *self.0.sender() = None;
    }
}

/// The log to be written to, opened by the first that has something to write.
pub(crate) struct LogOnDemand {
    open: Box<dyn FnMut() -> Result<Box<dyn StateStore>, StateError> + Send>,
    opened: Option<Box<dyn StateStore>>,
    /// It ends with the engine, and not with the thread that still closes the log.
    lock: Weak<EngineLock>,
    /// Whether it got anything that no other file has.
    has_more_than_captures: bool,
}

impl LogOnDemand {
    /// The store that `open` opens; if that fails, the next call tries again. `lock`: shows that
    /// the writing engine is alive.
    pub(crate) fn new(
        lock: &Arc<EngineLock>,
        open: impl FnMut() -> Result<Box<dyn StateStore>, StateError> + Send + 'static,
    ) -> Self {
        Self {
            open: Box::new(open),
            opened: None,
            lock: Arc::downgrade(lock),
            has_more_than_captures: false,
        }
    }

    fn store(&mut self) -> Result<&mut dyn StateStore, StateError> {
        let store = match self.opened.take() {
            Some(store) => store,
            None => (self.open)()?,
        };
        Ok(self.opened.insert(store).as_mut())
    }

    /// Writes each batch, whole or not at all, in this order.
    fn commit(&mut self, batches: &[&[Change]]) -> Vec<Result<Vec<Event>, StateError>> {
        if batches.len() > 1
            && let Ok(store) = self.ready_for(batches.iter().copied().flatten())
        {
            return store.commit_each(batches);
        }
        let commit = |batch: &&[Change]| self.ready_for(batch.iter())?.commit(batch);
        batches.iter().map(commit).collect()
    }

    /// The store, once what is to be known before these changes is.
    fn ready_for<'a>(
        &mut self,
        mut changes: impl Iterator<Item = &'a Change>,
    ) -> Result<&mut dyn StateStore, StateError> {
        let lock = self.lock.upgrade().ok_or_else(|| StateError::Conflict {
            what: "the engine".to_owned(),
            expected: "at work".to_owned(),
            found: "gone".to_owned(),
        })?;
        // Before anything tells of this engine, so that what it leaves is looked after.
        lock.show()?;
        if !changes.all(Change::is_of_a_capture) {
            // The next engine has to find out by this where something is half done. A capture that
            // is interrupted leaves nothing of the kind.
            lock.make_notes_durable()?;
            self.has_more_than_captures = true;
        }
        self.store()
    }

    fn is_changed_by_others(&mut self) -> Result<bool, StateError> {
        // What is read where nothing can be written is a copy.
        let may_write = self.lock.upgrade().is_some_and(|lock| lock.may_write());
        match may_write {
            true => self.store()?.is_changed_by_others(),
            false => Ok(false),
        }
    }

    /// Ends the writing: see [`StateStore::fold`].
    fn close(&mut self) {
        let more = self.has_more_than_captures;
        // Who commits once folds a long log and does not begin it anew, and who opens it next does
        // not know that it is folded. So without this it would grow for ever.
        let is_due = |store: &&mut Box<dyn StateStore>| more || store.has_long_log();
        if let Some(store) = self.opened.as_mut().filter(is_due)
            && let Err(error) = store.fold()
        {
            // It is as durable where it is.
            tracing::debug!(%error, "the log is not folded into the database");
        }
    }
}

struct Job {
    changes: Vec<Change>,
    /// Let go of once they are written.
    held: Option<Registering>,
    reply: oneshot::Sender<Result<Vec<Event>, StateError>>,
}

/// The handle of the state writer.
#[derive(Clone)]
pub(crate) struct StateWriter {
    actor: ActorRef<StateWriterMessage>,
    queue: Queue,
    notifier: Notifier,
    secrets: SecretRules,
}

impl StateWriter {
    /// The handle of `actor`, whose thread takes what is in `queue` and rings `notifier`. It takes
    /// out what the built-in rules recognise.
    pub(crate) fn new(
        actor: ActorRef<StateWriterMessage>,
        queue: Queue,
        notifier: Notifier,
    ) -> Self {
        Self {
            actor,
            queue,
            notifier,
            secrets: SecretRules::new(),
        }
    }

    /// The same, which takes out what `secrets` recognise.
    pub(crate) fn redacting(self, secrets: SecretRules) -> Self {
        Self { secrets, ..self }
    }

    /// Fails if `text` has a secret value: it is called `what`, has to be kept as it is, and
    /// `instead` says what to do.
    pub(crate) fn refuse_secrets(
        &self,
        text: &str,
        what: &str,
        instead: &str,
    ) -> Result<(), Error> {
        match self.secrets.find(text.as_bytes()).first() {
            None => Ok(()),
            Some(found) => Err(Error::invalid_options(format!(
                "{what} has a secret value ({}), which would be kept in the log; {instead}",
                found.rule
            ))),
        }
    }

    /// What is taken out of everything that is written.
    pub(crate) fn secrets(&self) -> &SecretRules {
        &self.secrets
    }

    /// Writes `changes`, all or none; answers with the events among them, as they are kept.
    ///
    /// They are durable on `Ok`. [`ErrorKind::Unavailable`](stillframe_backends::ErrorKind): the
    /// state writer is lost, and nobody can tell whether they are.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Event>, Error> {
        self.commit_and_release(changes, None).await
    }

    /// As [`StateWriter::commit`]; `held` is dropped once they are written or refused, even if the
    /// caller no longer waits.
    pub(crate) async fn commit_and_release(
        &self,
        changes: Vec<Change>,
        held: Option<Registering>,
    ) -> Result<Vec<Event>, Error> {
        let (span, began) = (telemetry::commit_span(changes.len()), Instant::now());
        let events = match self.send(changes, held).instrument(span.clone()).await {
            Ok(result) => result?,
            Err(_) => return Err(lost()),
        };
        telemetry::committed(&span, events.len(), began.elapsed());
        Ok(events)
    }

    /// As [`StateWriter::commit`], for work that may block.
    pub(crate) fn commit_blocking(&self, changes: Vec<Change>) -> Result<Vec<Event>, Error> {
        let (span, began) = (telemetry::commit_span(changes.len()), Instant::now());
        let events = match span.in_scope(|| self.send(changes, None).blocking_recv()) {
            Ok(result) => result?,
            Err(_) => return Err(lost()),
        };
        telemetry::committed(&span, events.len(), began.elapsed());
        Ok(events)
    }

    fn send(
        &self,
        mut changes: Vec<Change>,
        held: Option<Registering>,
    ) -> oneshot::Receiver<Result<Vec<Event>, StateError>> {
        for change in &mut changes {
            redaction::redact(&self.secrets, change);
        }
        let (reply, answer) = oneshot::channel();
        self.queue.send(Job {
            changes,
            held,
            reply,
        });
        answer
    }

    /// Rung once events are committed, by this engine or another.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// The actor, to be told apart from others.
    pub(crate) fn actor(&self) -> &ActorRef<StateWriterMessage> {
        &self.actor
    }
}

fn lost() -> Error {
    Error::unavailable("the engine has lost the part that keeps its state; start another one")
}

/// Does job after job until the queue is closed, and looks between them for what others wrote.
fn write(log: &mut LogOnDemand, jobs: &mpsc::Receiver<Job>, notifier: &Notifier) {
    let mut looked = Instant::now();
    loop {
        let job = jobs.recv_timeout(LOOK_EVERY.saturating_sub(looked.elapsed()));
        if let Ok(job) = job {
            // With all that came while the last ones were synced.
            let waiting = jobs.try_iter().take(MAX_TOGETHER - 1);
            let jobs: Vec<Job> = std::iter::once(job).chain(waiting).collect();
            let batches: Vec<&[Change]> = jobs.iter().map(|job| &*job.changes).collect();
            let results = log.commit(&batches);
            for (job, result) in jobs.into_iter().zip(results) {
                drop(job.held);
                if let Ok(events) = &result {
                    notifier.notify(events);
                }
                // The asker may have left; what is written is written.
                let _ = job.reply.send(result);
            }
        } else if let Err(mpsc::RecvTimeoutError::Disconnected) = job {
            return log.close();
        }
        if looked.elapsed() >= LOOK_EVERY {
            // An error that cannot be reported here appears again when reading.
            if notifier.has_subscribers() && log.is_changed_by_others().unwrap_or(true) {
                notifier.notify_all();
            }
            looked = Instant::now();
        }
    }
}

/// Tells the actor that the thread has ended, also when it panicked.
struct TellTheEnd {
    actor: ActorRef<StateWriterMessage>,
    _done: oneshot::Sender<()>,
}

impl Drop for TellTheEnd {
    fn drop(&mut self) {
        let _ = self.actor.send_message(StateWriterMessage::ThreadEnded);
    }
}

impl Actor for StateWriterActor {
    type Msg = StateWriterMessage;
    type State = StateWriterState;
    type Arguments = StateWriterArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let (done, is_done) = oneshot::channel();
        let StateWriterArguments {
            log,
            notifier,
            queue,
        } = arguments;
        let (queue, jobs) = queue.open();
        thread::Builder::new()
            .name("stillframe-state".to_owned())
            .spawn(move || {
                let _end = TellTheEnd {
                    actor: myself,
                    _done: done,
                };
                // It is closed before the end is told.
                let mut log = log;
                write(&mut log, &jobs, &notifier);
            })?;
        Ok(StateWriterState {
            queue: Some(queue),
            done: Some(is_done),
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        _state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            StateWriterMessage::ThreadEnded => Err("the thread of the state writer ended".into()),
        }
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // The thread ends once its queue is closed and done.
        drop(state.queue.take());
        if let Some(done) = state.done.take() {
            let _ = done.await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use stillframe_backends::StateDir;

    use super::*;
    use crate::events::event::EventType;
    use crate::id::EngineId;
    use crate::state::change::NewEvent;
    use crate::state::new_session;
    use crate::state::sqlite::SqliteStore;

    // The log of a workspace in which every snapshot was a process of its own grew for ever
    #[test]
    fn a_log_that_one_process_after_the_other_adds_a_capture_to_stays_short() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().to_owned();
        let at = Timestamp::UNIX_EPOCH;
        let id = "s".parse().unwrap();
        let mut first = SqliteStore::open(&directory).unwrap();
        first.commit(&new_session::creation(&id, at)).unwrap();
        drop(first);
        let mut longest = 0;
        for nth in 0..200 {
            let lock = Arc::new(EngineLock::new(
                &StateDir::open(&directory).unwrap(),
                &EngineId::random(),
            ));
            let path = directory.clone();
            let mut log = LogOnDemand::new(&lock, move || Ok(Box::new(SqliteStore::open(&path)?)));
            let data = serde_json::json!({ "files": "x".repeat(4000), "nth": nth });
            let kind = EventType::WORKSPACE_SNAPSHOT_TAKEN;
            let event = NewEvent::new(kind, &id, None, at, data);
            let changes = [Change::Append(event)];
            log.commit(&[&changes]).pop().unwrap().unwrap();
            log.close();
            lock.retire();
            let wal = std::fs::metadata(directory.join("stillframe.db-wal"));
            longest = longest.max(wal.unwrap().len());
        }
        assert!(
            longest > 1_000_000,
            "it was long enough to be folded: {longest}"
        );
        assert!(longest < 2 << 20, "it has {longest} bytes");
    }
}
