//! The actor through which everything durable is written.

use std::sync::mpsc;
use std::thread;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::event::Event;
use crate::state::{Change, StateError, StateStore};

/// Writes to the state, one batch after the other, on a thread of its own.
///
/// SQLite's connection belongs to that thread, which outlives a kill of the actor until its queue
/// is done: what was taken is written.
pub(crate) struct StateWriterActor;

/// What the state writer is asked for.
pub(crate) enum StateWriterMessage {
    /// Write these changes, all or none.
    Commit {
        changes: Vec<Change>,
        reply: oneshot::Sender<Result<Vec<Event>, StateError>>,
    },
    /// The thread has ended, which it never does by itself.
    ThreadEnded,
}

/// What the state writer starts with.
pub(crate) struct StateWriterArguments {
    pub(crate) store: Box<dyn StateStore>,
    /// Rung after every commit.
    pub(crate) doorbell: watch::Sender<u64>,
}

pub(crate) struct StateWriterState {
    queue: Option<mpsc::Sender<Job>>,
    done: Option<oneshot::Receiver<()>>,
}

struct Job {
    changes: Vec<Change>,
    reply: oneshot::Sender<Result<Vec<Event>, StateError>>,
}

/// The handle of the state writer.
#[derive(Clone)]
pub(crate) struct StateWriter {
    actor: ActorRef<StateWriterMessage>,
    doorbell: watch::Sender<u64>,
}

impl StateWriter {
    /// The handle of `actor`, which rings `doorbell`.
    pub(crate) fn new(actor: ActorRef<StateWriterMessage>, doorbell: watch::Sender<u64>) -> Self {
        Self { actor, doorbell }
    }

    /// Writes `changes`, all or none; answers with the events among them, as they are kept.
    ///
    /// They are durable on `Ok`. [`ErrorKind::Unavailable`](stillframe_backends::ErrorKind): the
    /// state writer is lost, and nobody can tell whether they are.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Event>, Error> {
        match self.send(changes).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(lost()),
        }
    }

    /// As [`StateWriter::commit`], for work that may block.
    pub(crate) fn commit_blocking(&self, changes: Vec<Change>) -> Result<Vec<Event>, Error> {
        match self.send(changes).blocking_recv() {
            Ok(result) => Ok(result?),
            Err(_) => Err(lost()),
        }
    }

    fn send(&self, changes: Vec<Change>) -> oneshot::Receiver<Result<Vec<Event>, StateError>> {
        let (reply, answer) = oneshot::channel();
        // A message that cannot be sent takes its reply along, which the receiver hears of.
        let _ = self
            .actor
            .send_message(StateWriterMessage::Commit { changes, reply });
        answer
    }

    /// Rung after every commit of this engine.
    pub(crate) fn doorbell(&self) -> watch::Receiver<u64> {
        self.doorbell.subscribe()
    }

    /// The actor, to be told apart from others.
    pub(crate) fn actor(&self) -> &ActorRef<StateWriterMessage> {
        &self.actor
    }
}

fn lost() -> Error {
    Error::unavailable("the engine has lost the part that keeps its state; start another one")
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
        let (queue, jobs) = mpsc::channel::<Job>();
        let (done, is_done) = oneshot::channel();
        let mut store = arguments.store;
        let doorbell = arguments.doorbell;
        thread::Builder::new()
            .name("stillframe-state".to_owned())
            .spawn(move || {
                let _end = TellTheEnd {
                    actor: myself,
                    _done: done,
                };
                for job in jobs {
                    let result = store.commit(&job.changes);
                    if result.is_ok() {
                        doorbell.send_modify(|rings| *rings = rings.wrapping_add(1));
                    }
                    // The asker may have left; what is written is written.
                    let _ = job.reply.send(result);
                }
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
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            StateWriterMessage::Commit { changes, reply } => {
                let queue = state.queue.as_ref().ok_or("the queue is closed")?;
                queue
                    .send(Job { changes, reply })
                    .map_err(|_| "the thread of the state writer is gone")?;
                Ok(())
            }
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
