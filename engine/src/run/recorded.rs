//! What happens when a run is started whose id is on record.

use std::time::{Duration, Instant};

use stillframe_backends::ErrorKind;

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::options::RunOptions;
use crate::records::lease::Lease;
use crate::records::question::{QuestionRow, QuestionStatus};
use crate::records::queue::QueueState;
use crate::records::run::RunStatus;
use crate::records::run_row::RunRow;
use crate::run::owner::is_free;
use crate::state::liveness;
use crate::step::answering;
use crate::workspace::opened::Opened;
use crate::workspace::turn::MAX_WAIT;

/// A run that is on record, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) row: RunRow,
    pub(crate) lease: Option<Lease>,
    /// Whether anybody may take it.
    pub(crate) is_free: bool,
    /// Whether it waits in the queue.
    pub(crate) is_queued: bool,
    /// Its questions that wait for an answer.
    pub(crate) open: Vec<QuestionRow>,
}

/// What happens when a run is started whose id is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It has ended: the answer is what is on record.
    Ended,
    /// It can be gone on with.
    Claimable,
    /// It rests until somebody answers or decides, or there is new input.
    Waiting,
    /// Somebody has it.
    Held,
    /// It was submitted, and waits in the queue.
    Queued,
}

impl Recorded {
    /// What it means to start the run again.
    pub(crate) fn claim(&self) -> Claim {
        match self.row.status {
            status if status.is_terminal() => Claim::Ended,
            _ if self.is_queued => Claim::Queued,
            RunStatus::WaitingForInput if !self.open.is_empty() => Claim::Waiting,
            RunStatus::AwaitingFollowup | RunStatus::AwaitingReview => Claim::Waiting,
            // The previous holder has released it.
            status if status.is_at_rest() => Claim::Claimable,
            _ if self.is_free => Claim::Claimable,
            _ => Claim::Held,
        }
    }

    /// Whether the run, which waits, goes on with what `options` have for it: input, or what it is
    /// to change.
    ///
    /// # Errors
    ///
    /// `Conflict`: there is some, and the run does not wait for that.
    pub(crate) fn goes_on_with(&self, options: &RunOptions) -> Result<bool, Error> {
        let (id, status) = (&self.row.id, self.row.status);
        let why = match (&options.follow_up, &options.changes) {
            (Some(_), _) if status == RunStatus::AwaitingFollowup => return Ok(true),
            (None, Some(_)) if status == RunStatus::AwaitingReview => return Ok(true),
            (None, None) => return Ok(false),
            (Some(input), _) => format!(
                "run {id} is {status}, and waits for no input; nothing was done with input {}",
                input.id
            ),
            (None, Some(_)) => {
                format!("run {id} is {status}, and not in review; nothing was decided")
            }
        };
        Err(Error::new(ErrorKind::Conflict, why))
    }

    /// The error if another engine holds the run.
    pub(crate) fn held(&self) -> Error {
        let since = self.lease.as_ref().map_or(String::new(), |lease| {
            format!(
                " of engine {}, renewed at {}",
                lease.owner, lease.heartbeat_at
            )
        });
        Error::new(
            ErrorKind::Busy,
            format!(
                "run {} is under way, with a lease{since}; nothing was touched",
                self.row.id
            ),
        )
    }

    /// The error if the run waits in the queue.
    pub(crate) fn queued(&self) -> Error {
        Error::new(
            ErrorKind::Busy,
            format!(
                "run {} waits in the queue, and an engine with its adapter begins it; nothing was touched",
                self.row.id
            ),
        )
    }

    /// The error if another engine began the run first.
    pub(crate) fn begun_meanwhile(&self) -> Error {
        match self.claim() {
            Claim::Held => self.held(),
            Claim::Queued => self.queued(),
            _ => Error::new(
                ErrorKind::Busy,
                format!(
                    "run {} was begun by somebody else meanwhile; nothing was touched",
                    self.row.id
                ),
            ),
        }
    }
}

/// What is on record under `id`; `None`: nothing.
pub(crate) async fn recorded(core: &Core, id: &RunId) -> Result<Option<Recorded>, Error> {
    answering::settle_ripe(core, Some(id)).await?;
    let asked = id.clone();
    let (row, lease, queue, questions) = core
        .parts
        .reader
        .read(move |store| {
            Ok((
                store.run(&asked)?,
                store.lease(&asked)?,
                store.queue_row(&asked)?,
                store.questions(&asked)?,
            ))
        })
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let open = questions.into_iter();
    let open = open.filter(|question| question.status == QuestionStatus::Open);
    let (parts, asked) = (core.parts.clone(), (row.clone(), lease.clone()));
    let is_free = core
        .parts
        .blocking
        .run(move || is_free(&parts, &asked.0, asked.1.as_ref()))
        .await??;
    Ok(Some(Recorded {
        row,
        lease,
        is_free,
        is_queued: queue.is_some_and(|row| row.state == QueueState::Waiting),
        open: open.collect(),
    }))
}

/// As [`recorded`]; of a run whose engine is dead, and which another engine is about to settle,
/// once that is done. It is not waited for longer than for a workspace.
pub(crate) async fn recorded_when_settled(
    core: &Core,
    id: &RunId,
) -> Result<Option<Recorded>, Error> {
    let deadline = Instant::now() + core.parts.settings.lock_timeout.min(MAX_WAIT);
    loop {
        let found = recorded(core, id).await?;
        let held = found.as_ref().filter(|f| f.claim() == Claim::Held);
        let Some(held) = held.filter(|_| Instant::now() < deadline) else {
            return Ok(found);
        };
        let (parts, owner) = (core.parts.clone(), held.row.engine_id.clone());
        let is_looked_after = move || liveness::is_looked_after(parts.state_dir.path(), &owner);
        if !core.parts.blocking.run(is_looked_after).await?? {
            return Ok(found);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How often a run is looked at that another engine is about to settle.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Refuses a run of another session.
pub(crate) fn check_session(row: &RunRow, session_id: &SessionId) -> Result<(), Error> {
    match row.session_id == *session_id {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "run {} is of session {}, not of {session_id}; nothing was touched",
                row.id, row.session_id
            ),
        )),
    }
}

/// Refuses to go on with a run in another workspace than it was in.
pub(crate) fn check_workspace(row: &RunRow, opened: Option<&Opened>) -> Result<(), Error> {
    let recorded = row.workspace.as_ref().map(|w| w.workspace_id.as_str());
    let asked = opened.map(|opened| opened.workspace.id());
    if recorded == asked {
        return Ok(());
    }
    let place = match &row.workspace {
        Some(workspace) => format!("in {}", stillframe_backends::printable(&workspace.path)),
        None => "in no workspace".to_owned(),
    };
    Err(Error::invalid_options(format!(
        "run {} was begun {place}, and can go on nowhere else; nothing was touched",
        row.id
    )))
}
