//! The actor of a run: every transition of the run goes through here, and its work is started from
//! here.

use std::future::Future;
use std::pin::Pin;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde_json::Value;
use stillframe_backends::ErrorKind;

use super::{OVER, Parts, Reply, Ticket};
use crate::error::Error;
use crate::id::{EventId, RunId, SessionId};
use crate::records::block::Block;
use crate::records::came_for::CameFor;
use crate::records::outcome::RunOutcome;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunEnding;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;

/// Checks every transition of one run against the table, and answers once it is in the log.
///
/// The work of the run is a task that owns what it needs, so that it continues if this actor is
/// lost; the next request makes a new actor.
pub(crate) struct RunActor;

/// What a run is asked for.
pub(crate) enum RunMessage {
    /// Take one step. A message that is sent again because its answer was lost has the same ids,
    /// and gets the answer of the first.
    Step { step: Box<Step>, reply: Reply<()> },
}

/// The work of a run, from its acceptance to its answer. It never panics.
pub(crate) type Work =
    Box<dyn FnOnce(Reply<RunOutcome>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// One step of a run, and what is written with it.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) run_id: RunId,
    pub(crate) event: RunEvent,
    /// The status that the run has until then; `None`: any that the event leads away from.
    pub(crate) from: Option<RunStatus>,
    /// The id that the event of the transition gets: repeating the step repeats nothing.
    pub(crate) event_id: EventId,
    /// The data of that event.
    pub(crate) data: Value,
    /// How the work of the run ended, if it does.
    pub(crate) ending: Option<Box<RunEnding>>,
    /// What its adapter said of its block, if it is blocked by this.
    pub(crate) block: Option<Box<Block>>,
    /// What else belongs to the same transaction.
    pub(crate) changes: Vec<Change>,
}

/// What the actor of a run starts with.
pub(crate) struct RunArguments {
    pub(crate) session_id: SessionId,
    pub(crate) run_id: RunId,
    pub(crate) parts: Parts,
    /// What is to be done, and where the answer goes; `None`: that is begun already, or the run is
    /// in no engine.
    pub(crate) work: Option<(Ticket<Work>, Reply<RunOutcome>)>,
}

/// What the actor of a run has. Everything that can change is in the log, and is read from there.
pub(crate) struct RunState {
    session_id: SessionId,
    run_id: RunId,
    parts: Parts,
}

impl Step {
    /// Why the work of the run is saved from now on, if it is.
    fn came_for(&self) -> Option<CameFor> {
        match self.event {
            RunEvent::Persisting(ends) => Some(CameFor::End(ends)),
            RunEvent::Blocked => Some(CameFor::Block(self.block.clone().unwrap_or_default())),
            _ => None,
        }
    }
}

impl RunActor {
    /// Takes one step of a run: check, log. `commit` returns once the state writer has committed,
    /// so an illegal event never reaches the log, and the caller can rely on the answer.
    async fn step(&self, state: &RunState, step: Step) -> Result<(), Error> {
        match self.try_step(state, &step).await {
            // An earlier incarnation was about to write this step, and has written it meanwhile.
            Err(e) if e.kind() == ErrorKind::Conflict => match self.is_logged(state, &step).await {
                Ok(true) => Ok(()),
                _ => Err(e),
            },
            result => result,
        }
    }

    async fn is_logged(&self, state: &RunState, step: &Step) -> Result<bool, Error> {
        let event_id = step.event_id.clone();
        let logged = state
            .parts
            .reader
            .read(move |store| store.event(&event_id))
            .await?;
        Ok(logged.is_some())
    }

    async fn try_step(&self, state: &RunState, step: &Step) -> Result<(), Error> {
        if self.is_logged(state, step).await? {
            return Ok(());
        }
        let run_id = state.run_id.clone();
        let row = state
            .parts
            .reader
            .read(move |store| store.run(&run_id))
            .await?;
        let row =
            row.ok_or_else(|| Error::not_found(format!("there is no run {}", state.run_id)))?;
        if let Some(from) = step.from.filter(|from| *from != row.status) {
            return Err(Error::from(StateError::Conflict {
                what: format!("run {}", state.run_id),
                expected: from.to_string(),
                found: row.status.to_string(),
            }));
        }
        let transition = row
            .status
            .next(step.event)
            .map_err(|e| Error::new(ErrorKind::Conflict, e))?;
        let at = state.parts.now();
        let mut changes = step.changes.clone();
        changes.push(Change::MoveRun {
            id: state.run_id.clone(),
            from: row.status,
            to: transition.to,
            at,
            ending: step.ending.clone(),
            came_for: step.came_for(),
        });
        changes.push(Change::Append(NewEvent {
            id: step.event_id.clone(),
            ..NewEvent::new(
                transition.logged,
                &state.session_id,
                Some(&state.run_id),
                at,
                &step.data,
            )
        }));
        state.parts.writer.commit(changes).await?;
        Ok(())
    }
}

impl Actor for RunActor {
    type Msg = RunMessage;
    type State = RunState;
    type Arguments = RunArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let RunArguments {
            session_id,
            run_id,
            parts,
            work,
        } = arguments;
        parts.live_runs.serve(&run_id, myself.get_cell());
        if let Some((ticket, reply)) = work
            && let Some(work) = ticket.begin()
        {
            tokio::spawn(work(reply));
        }
        Ok(RunState {
            session_id,
            run_id,
            parts,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let RunMessage::Step { step, reply } = message;
        let _ = reply.send(self.step(state, *step).await);
        if !state.parts.live_runs.has(&state.run_id) {
            // The run is no longer in this engine, or never was. The next step is sent to another
            // actor.
            myself.stop(Some(OVER.to_owned()));
        }
        Ok(())
    }
}
