//! The actor of a session: every transition of the session goes through here, and its runs are
//! started from here.

use std::collections::HashMap;

use ractor::{Actor, ActorProcessingErr, ActorRef, ActorStatus, SupervisionEvent};
use stillframe_backends::ErrorKind;

use super::run::{RunActor, RunArguments, RunMessage, Work};
use super::{OVER, Parts, Reply, STOP_TIMEOUT, Ticket, spawn};
use crate::error::Error;
use crate::events::data::SessionMoved;
use crate::id::{EventId, RunId, SessionId};
use crate::records::outcome::RunOutcome;
use crate::records::run::RunStatus;
use crate::records::run_row::NewRun;
use crate::records::session::{SessionEvent, SessionRow};
use crate::state::change::{Change, NewEvent, Withdrawal};

/// Accepts runs and starts their actors, and checks every transition of the session against the
/// table; answers once it is in the log.
pub(crate) struct SessionManagerActor;

/// What a session is asked for. A message that is sent again because its answer was lost has the
/// same ids, and gets the answer of the first.
pub(crate) enum SessionMessage {
    /// Start the work of a run, which is answered when it is done, or why it was not begun.
    Begin {
        run_id: RunId,
        /// What is to be accepted first; `None`: the run is on record.
        new: Option<Box<NewRun>>,
        work: Ticket<Work>,
        reply: Reply<RunOutcome>,
    },
    /// The actor of a run.
    Run {
        run_id: RunId,
        reply: Reply<ActorRef<RunMessage>>,
    },
    /// Take one step of the session.
    Move {
        event: SessionEvent,
        reason: String,
        event_id: EventId,
        reply: Reply<SessionRow>,
    },
}

/// What a session's actor has. Everything that can change is in the log, and is read from there:
/// what an earlier incarnation was about to write may still be written after this one has begun.
pub(crate) struct SessionState {
    session_id: SessionId,
    parts: Parts,
    /// The actors of its runs.
    runs: HashMap<RunId, ActorRef<RunMessage>>,
    /// Whether the session has ended, so that this actor is not needed once it has no runs.
    is_over: bool,
}

impl SessionManagerActor {
    /// Accepts a run, if the session takes any.
    async fn accept(&self, state: &SessionState, run: NewRun) -> Result<(), Error> {
        let run_id = run.id.clone();
        let change = Change::CreateRun(Box::new(run));
        match state.parts.writer.commit(vec![change]).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {
                // The answer to an earlier message may have been lost with its incarnation. No two
                // runs of this engine that are under way have one id, so a row of ours that has
                // not begun is this run's.
                let found = state
                    .parts
                    .reader
                    .read(move |store| store.run(&run_id))
                    .await?;
                let is_this = found.is_some_and(|row| {
                    row.engine_id == state.parts.engine_id && row.status == RunStatus::Pending
                });
                if is_this { Ok(()) } else { Err(e) }
            }
            result => result.map(|_| ()),
        }
    }

    /// Starts the actor of a run, with its work if that is still to be begun.
    async fn start(
        &self,
        myself: &ActorRef<SessionMessage>,
        state: &mut SessionState,
        run_id: RunId,
        work: Option<(Ticket<Work>, Reply<RunOutcome>)>,
    ) -> Result<ActorRef<RunMessage>, Error> {
        let arguments = RunArguments {
            session_id: state.session_id.clone(),
            run_id: run_id.clone(),
            parts: state.parts.clone(),
            work,
        };
        let actor = spawn(RunActor, arguments, myself.get_cell()).await?;
        state.runs.insert(run_id, actor.clone());
        Ok(actor)
    }

    /// The actor of a run.
    async fn run(
        &self,
        myself: &ActorRef<SessionMessage>,
        state: &mut SessionState,
        run_id: RunId,
    ) -> Result<ActorRef<RunMessage>, Error> {
        match state.runs.get(&run_id) {
            Some(actor) if actor.get_status() <= ActorStatus::Running => Ok(actor.clone()),
            _ => self.start(myself, state, run_id, None).await,
        }
    }

    /// Takes one step of the session, as the actor of a run does for that.
    async fn move_session(
        &self,
        state: &SessionState,
        event: SessionEvent,
        reason: &str,
        event_id: &EventId,
    ) -> Result<SessionRow, Error> {
        match self.try_move(state, event, reason, event_id).await {
            Err(e) if e.kind() == ErrorKind::Conflict => match self.read(state, event_id).await {
                Ok((row, true)) => Ok(row),
                _ => Err(e),
            },
            result => result,
        }
    }

    /// The row of the session, and whether this event is in the log.
    async fn read(
        &self,
        state: &SessionState,
        event_id: &EventId,
    ) -> Result<(SessionRow, bool), Error> {
        let (id, asked) = (state.session_id.clone(), event_id.clone());
        let (row, logged) = state
            .parts
            .reader
            .read(move |store| Ok((store.session(&id)?, store.event(&asked)?)))
            .await?;
        let row = row
            .ok_or_else(|| Error::not_found(format!("there is no session {}", state.session_id)))?;
        Ok((row, logged.is_some()))
    }

    async fn try_move(
        &self,
        state: &SessionState,
        event: SessionEvent,
        reason: &str,
        event_id: &EventId,
    ) -> Result<SessionRow, Error> {
        // Read anew: another engine may have the same session.
        let (row, is_logged) = self.read(state, event_id).await?;
        if is_logged {
            return Ok(row);
        }
        let (to, event_type) = row
            .status
            .next(event)
            .map_err(|e| Error::new(ErrorKind::Conflict, e))?;
        let at = state.parts.now();
        let said = SessionMoved {
            reason: Some(reason).filter(|reason| !reason.is_empty()),
        };
        let moved = Change::MoveSession {
            id: row.id.clone(),
            from: row.status,
            version: row.version,
            to,
            at,
        };
        let logged = Change::Append(NewEvent {
            id: event_id.clone(),
            ..NewEvent::new(event_type, &row.id, None, at, &said)
        });
        let withdrawn = to.is_terminal().then(|| Change::WithdrawQueued {
            session_id: row.id.clone(),
            withdrawal: Box::new(Withdrawal::at(at)),
        });
        let changes = [Some(moved), withdrawn, Some(logged)];
        let changes = changes.into_iter().flatten().collect();
        state.parts.writer.commit(changes).await?;
        state.parts.queue_bell.notify_one();
        if event == SessionEvent::Cancel {
            state.parts.live_runs.cancel_session(&row.id);
        }
        Ok(SessionRow {
            status: to,
            version: row.version + 1,
            ended_at: to.is_terminal().then_some(at),
            ..row
        })
    }
}

impl SessionManagerActor {
    fn stop_if_over(&self, myself: &ActorRef<SessionMessage>, state: &SessionState) {
        if state.is_over && state.runs.is_empty() {
            // The next request is sent to another actor.
            myself.stop(Some(OVER.to_owned()));
        }
    }
}

impl Actor for SessionManagerActor {
    type Msg = SessionMessage;
    type State = SessionState;
    type Arguments = (SessionId, Parts);

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        (session_id, parts): Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(SessionState {
            session_id,
            parts,
            runs: HashMap::new(),
            is_over: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SessionMessage::Begin {
                run_id,
                new,
                work,
                reply,
            } => {
                let accepted = match new {
                    Some(run) => self.accept(state, *run).await,
                    None => Ok(()),
                };
                match accepted {
                    // Where it cannot be started its claim hears of that, and asks again.
                    Ok(()) => {
                        let _ = self
                            .start(&myself, state, run_id, Some((work, reply)))
                            .await;
                    }
                    Err(e) => {
                        let _ = reply.send(Err(e));
                    }
                }
            }
            SessionMessage::Run { run_id, reply } => {
                let _ = reply.send(self.run(&myself, state, run_id).await);
            }
            SessionMessage::Move {
                event,
                reason,
                event_id,
                reply,
            } => {
                let moved = self.move_session(state, event, &reason, &event_id).await;
                state.is_over |= moved.as_ref().is_ok_and(|row| row.status.is_terminal());
                let _ = reply.send(moved);
                self.stop_if_over(&myself, state);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(ended, _)
        | SupervisionEvent::ActorTerminated(ended, _, _) = event
        {
            // If it is needed, the next request starts it again.
            state
                .runs
                .retain(|_, actor| actor.get_id() != ended.get_id());
            self.stop_if_over(&myself, state);
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<Self::Msg>,
        _state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // It would kill its children otherwise.
        myself.drain_children_and_wait(Some(STOP_TIMEOUT)).await;
        Ok(())
    }
}
