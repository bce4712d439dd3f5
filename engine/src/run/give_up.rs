//! Giving up a run that no engine has.

use stillframe_backends::ErrorKind;

use crate::actors::core::Core;
use crate::actors::session_manager::SessionMessage;
use crate::error::Error;
use crate::events::data::RunEnded;
use crate::failure::Failure;
use crate::id::EventId;
use crate::records::run::{RunEvent, RunStatus};
use crate::records::run_row::RunRow;
use crate::records::session::SessionEvent;
use crate::run::end::{Changed, End, Left, end_run};
use crate::run::owner;
use crate::run::recorded::Recorded;
use crate::state::change::Change;

/// Cancels a run that rests, or waits in the queue.
pub(crate) async fn give_up(core: &Core, found: &Recorded) -> Result<(), Error> {
    let failure = Failure::new(
        ErrorKind::Cancelled.as_str(),
        match found.row.status {
            RunStatus::Pending => "cancelled while it waited in the queue",
            RunStatus::WaitingForInput => "cancelled while it waited for an answer",
            RunStatus::AwaitingFollowup => "cancelled while it waited for new input",
            _ => "cancelled while it was interrupted",
        },
    );
    let (right, left) = what_is_left(core, found).await?;
    let said = RunEnded::because(&failure);
    let end = End {
        right,
        error: Some(failure),
        left,
        ..End::new(RunEvent::Cancelled, said)
    };
    end_run(core, (&found.row.session_id, &found.row.id), end).await
}

/// What takes a run that rests from its last owner, and what its work left.
async fn what_is_left(
    core: &Core,
    found: &Recorded,
) -> Result<(Option<Change>, Option<Left>), Error> {
    let (parts, row) = (&core.parts, &found.row);
    if row.status.is_terminal() {
        // The table refuses its end, by name.
        return Ok((None, None));
    }
    let right = match found.lease.clone() {
        // An engine that takes it over at the same time, or that only seemed dead, is refused.
        Some(lease) => {
            let at = parts.now();
            Some(owner::taken_from_owner(parts, &row.id, lease, at)?)
        }
        None => None,
    };
    let asked = row.id.clone();
    let steps = parts
        .reader
        .read(move |store| Ok((store.phases(&asked)?, store.steps(&asked)?)))
        .await?;
    let left = Left {
        steps,
        changed: Changed::on_record(core, row).await?,
        ..Left::default()
    };
    Ok((right, Some(left)))
}

/// Ends the session of a run that was cancelled here, if it was made for the run: the process that
/// began it is gone. The run is cancelled, which is what was asked for, whatever becomes of this.
pub(crate) async fn end_own_session(core: &Core, run: &RunRow) {
    if !run.begun_as().own_session {
        return;
    }
    let event_id = EventId::random();
    let moved = core
        .ask_session(&run.session_id, |reply| SessionMessage::Move {
            event: SessionEvent::Cancel,
            reason: String::new(),
            event_id: event_id.clone(),
            reply,
        })
        .await;
    match moved {
        Ok(_) => core.let_go(&run.session_id).await,
        Err(e) => {
            tracing::debug!(session = %run.session_id, error = %e.chain(), "not ended");
        }
    }
}
