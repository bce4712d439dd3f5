//! The actor of a workspace, which runs one job after another.

use std::collections::VecDeque;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use crate::blocking::Blocking;
use crate::records::queue::Priority;

/// Lets the work of this engine on one directory take turns, in the order of asking.
///
/// The lock that keeps other processes out is taken by the work itself, which owns it: the work
/// goes on, locked, when this actor is killed.
pub(crate) struct WorkspaceActor;

/// Work on a workspace that waits for its turn, and is asked for when that comes; `None`: it was
/// withdrawn. If it is dropped before, the caller is told.
pub(crate) type Waiting = Box<dyn FnOnce() -> Option<Job> + Send>;

/// Work on a workspace. It returns the function that answers the caller.
pub(crate) type Job = Box<dyn FnOnce() -> Answer + Send>;

/// Tells the caller the result. Never waits.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// What decides when work gets a thread, if there is none for it at once.
pub(crate) struct Weight {
    pub(crate) priority: Priority,
    /// Whether it may take long. It is asked where that matters, and is brief.
    pub(crate) is_large: Box<dyn FnOnce() -> bool + Send>,
}

/// What a workspace is asked for.
pub(crate) enum WorkspaceMessage {
    /// Do this when its turn comes. `what` is a noun, for those who wait.
    Work {
        work: Waiting,
        what: &'static str,
        weight: Weight,
    },
    /// The work that was begun has ended.
    Done,
    /// What is being done; `None`: nothing.
    Holder {
        reply: oneshot::Sender<Option<&'static str>>,
    },
}

#[derive(Default)]
pub(crate) struct WorkspaceState {
    queue: VecDeque<(Waiting, &'static str, Weight)>,
    holder: Option<&'static str>,
}

impl WorkspaceActor {
    /// Begins the next piece of work, if there is one and nothing is being done.
    fn begin_next(
        &self,
        myself: &ActorRef<WorkspaceMessage>,
        blocking: &Blocking,
        state: &mut WorkspaceState,
    ) {
        if state.holder.is_some() {
            return;
        }
        while let Some((waiting, what, weight)) = state.queue.pop_front() {
            let Some(job) = waiting() else {
                continue;
            };
            state.holder = Some(what);
            let myself = myself.clone();
            // A job catches its own panics. Where the runtime is shutting down it is lost, and
            // with it what would have answered.
            let Weight { priority, is_large } = weight;
            blocking.start(priority, is_large, move || {
                let answer = job();
                let _ = myself.send_message(WorkspaceMessage::Done);
                // Only after that is the caller answered, so that its next request finds the
                // workspace free.
                answer();
            });
            return;
        }
    }
}

impl Actor for WorkspaceActor {
    type Msg = WorkspaceMessage;
    type State = (Blocking, WorkspaceState);
    type Arguments = Blocking;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        blocking: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok((blocking, WorkspaceState::default()))
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        (blocking, state): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WorkspaceMessage::Work { work, what, weight } => {
                state.queue.push_back((work, what, weight));
            }
            WorkspaceMessage::Done => state.holder = None,
            WorkspaceMessage::Holder { reply } => {
                let _ = reply.send(state.holder);
            }
        }
        self.begin_next(&myself, blocking, state);
        Ok(())
    }
}
