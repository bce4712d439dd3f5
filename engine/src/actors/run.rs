//! The steps of a run: every transition of the run goes through here.

use serde_json::Value;
use stillframe_backends::ErrorKind;

use super::session_manager::{SessionManagerActor, SessionState};
use crate::error::Error;
use crate::id::{EventId, RunId};
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunEnding;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;

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
    /// How the run ended, if it does.
    pub(crate) ending: Option<Box<RunEnding>>,
    /// What else belongs to the same transaction.
    pub(crate) changes: Vec<Change>,
}

impl SessionManagerActor {
    /// Takes one step of a run: check, log. `commit` returns once the state writer has committed,
    /// so an illegal event never reaches the log, and whoever is told can rely on it.
    pub(super) async fn step(&self, state: &SessionState, step: Step) -> Result<(), Error> {
        match self.try_step(state, &step).await {
            // An earlier incarnation was about to write this step, and has written it meanwhile.
            Err(e) if e.kind() == ErrorKind::Conflict => match self.is_logged(state, &step).await {
                Ok(true) => Ok(()),
                _ => Err(e),
            },
            result => result,
        }
    }

    async fn is_logged(&self, state: &SessionState, step: &Step) -> Result<bool, Error> {
        let event_id = step.event_id.clone();
        let logged = state
            .parts
            .reader
            .read(move |store| store.event(&event_id))
            .await?;
        Ok(logged.is_some())
    }

    async fn try_step(&self, state: &SessionState, step: &Step) -> Result<(), Error> {
        if self.is_logged(state, step).await? {
            return Ok(());
        }
        let run_id = step.run_id.clone();
        let row = state
            .parts
            .reader
            .read(move |store| store.run(&run_id))
            .await?;
        let row =
            row.ok_or_else(|| Error::not_found(format!("there is no run {}", step.run_id)))?;
        if let Some(from) = step.from.filter(|from| *from != row.status) {
            return Err(Error::from(StateError::Conflict {
                what: format!("run {}", step.run_id),
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
            id: step.run_id.clone(),
            from: row.status,
            to: transition.to,
            at,
            ending: step.ending.clone(),
        });
        changes.push(Change::Append(NewEvent {
            id: step.event_id.clone(),
            event_type: transition.logged,
            session_id: state.session_id.clone(),
            run_id: Some(step.run_id.clone()),
            at,
            data: step.data.clone(),
        }));
        state.parts.writer.commit(changes).await?;
        Ok(())
    }
}
