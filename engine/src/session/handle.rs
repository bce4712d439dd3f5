//! The handle of a submitted run.

use std::fmt;

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::query::EventQuery;
use crate::id::{RunId, SessionId};
use crate::records::outcome::RunOutcome;
use crate::records::run::RunStatus;
use crate::run::{cancel, waiting};
use crate::session::stream::EventStream;

/// A run that was submitted, wherever it is begun. Cheap to clone; dropping it changes nothing.
#[derive(Clone)]
pub struct RunHandle {
    core: Core,
    session_id: SessionId,
    id: RunId,
}

impl RunHandle {
    pub(crate) fn new(core: Core, session_id: SessionId, id: RunId) -> Self {
        Self {
            core,
            session_id,
            id,
        }
    }

    /// The id of the run.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Where the run stands: [`RunStatus::Pending`] while it waits in the queue.
    pub async fn status(&self) -> Result<RunStatus, Error> {
        self.core.parts.check_available()?;
        let id = self.id.clone();
        let row = self.core.parts.reader.read(move |store| store.run(&id));
        let row = row.await?;
        row.map(|row| row.status)
            .ok_or_else(|| Error::not_found(format!("there is no run {}", self.id)))
    }

    /// The events of the run from its first, `run_queued`, on, including future ones. Where all of
    /// them [were removed](crate::Engine::trim_log), that is `PositionsForgotten`.
    pub fn events(&self) -> EventStream {
        let query = EventQuery::session(self.session_id.clone()).run(self.id.clone());
        self.core.subscribe(EventQuery {
            is_of_handle: true,
            ..query
        })
    }

    /// The outcome, once the run has ended: as [`Engine::wait`](crate::Engine::wait).
    pub async fn wait(&self) -> Result<RunOutcome, Error> {
        waiting::wait(&self.core, &self.id).await
    }

    /// Cancels the run: as [`Engine::cancel_run`](crate::Engine::cancel_run).
    pub async fn cancel(&self) -> Result<(), Error> {
        cancel::cancel_any(&self.core, &self.id).await
    }
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle")
            .field("session_id", &self.session_id)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
