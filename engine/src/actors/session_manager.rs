//! The actor of a session: every transition of the session and of its runs goes through here.

use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde_json::json;
use stillframe_backends::ErrorKind;

use super::run::Step;
use super::{Parts, Reply};
use crate::error::Error;
use crate::id::{EventId, SessionId};
use crate::records::run::RunStatus;
use crate::records::run_row::NewRun;
use crate::records::session::{SessionEvent, SessionRow};
use crate::state::change::{Change, NewEvent};

/// The reason that the supervisor is given when a session is over and its actor not needed.
pub(crate) const OVER: &str = "the session is over";

/// Checks every transition against the tables, and answers once it is in the log.
pub(crate) struct SessionManagerActor;

/// What a session is asked for. A message that is sent again because its answer was lost has the
/// same ids, and gets the answer of the first.
pub(crate) enum SessionMessage {
    /// Accept a run.
    Begin { run: Box<NewRun>, reply: Reply<()> },
    /// Take one step of a run.
    Step { step: Box<Step>, reply: Reply<()> },
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
    pub(super) session_id: SessionId,
    pub(super) parts: Parts,
}

impl SessionManagerActor {
    async fn begin(&self, state: &SessionState, run: NewRun) -> Result<(), Error> {
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

    /// Takes one step of the session, as [`SessionManagerActor::step`] does for a run.
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
        let data = match reason {
            "" => json!({}),
            reason => json!({ "reason": reason }),
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
            event_type,
            session_id: row.id.clone(),
            run_id: None,
            at,
            data,
        });
        state.parts.writer.commit(vec![moved, logged]).await?;
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

impl Actor for SessionManagerActor {
    type Msg = SessionMessage;
    type State = SessionState;
    type Arguments = (SessionId, Parts);

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        (session_id, parts): Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(SessionState { session_id, parts })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SessionMessage::Begin { run, reply } => {
                let _ = reply.send(self.begin(state, *run).await);
            }
            SessionMessage::Step { step, reply } => {
                let _ = reply.send(self.step(state, *step).await);
            }
            SessionMessage::Move {
                event,
                reason,
                event_id,
                reply,
            } => {
                let moved = self.move_session(state, event, &reason, &event_id).await;
                let is_over = moved.as_ref().is_ok_and(|row| row.status.is_terminal());
                let _ = reply.send(moved);
                if is_over {
                    // Runs that are still under way find another, as everybody does who asks.
                    myself.stop(Some(OVER.to_owned()));
                }
            }
        }
        Ok(())
    }
}
