//! Sending notices: each is claimed, looked for where it goes, sent, and on record as sent.

use std::future::Future;
use std::time::Instant;

use stillframe_backends::ErrorKind;
use tokio_util::task::AbortOnDropHandle;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::branches::notices;
use crate::error::Error;
use crate::events::branch_data::CheckpointNotice;
use crate::events::event::EventType;
use crate::options::notice_sink::{BoxSink, NoticeError, Shown};
use crate::records::notice::{NoticeKind, NoticeRecord, NoticeRow, NoticeStatus};
use crate::records::work_task::{WorkTaskRow, WorkTaskStatus};
use crate::saving::recorded;
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;
use crate::state::liveness;

/// Which notices are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those whose time has come.
    Due,
    /// All that are to be sent, and those that were given up after their last try.
    All,
}

/// What became of a try.
enum Tried {
    Sent,
    WasThere,
    NotSent(NoticeError),
    /// The engine stops before it is known. It counts as none.
    Unanswered,
}

/// Sends notices, one after the other, and answers what became of each that was tried. One that
/// another engine sends is left to that.
pub(crate) async fn send(
    core: &Core,
    sink: &BoxSink,
    which: Which,
) -> Result<Vec<NoticeRecord>, Error> {
    let parts = &core.parts;
    let _turn = parts.sending_notices.lock().await;
    let began = Instant::now();
    let mut told = Vec::new();
    let only_to_send = which == Which::Due;
    let found = parts
        .reader
        .read(move |store| with_tasks(store, only_to_send));
    for (row, task) in found.await? {
        // The last one has to come to its end before the engine stops.
        if core.is_closing() && began.elapsed() > parts.settings.shutdown_grace / 2 {
            break;
        }
        let is_being_sent = is_being_sent(parts, &row).await?;
        let due_by = (which == Which::Due).then(|| parts.now());
        if !notices::may_be_claimed(&row, is_being_sent, due_by) {
            continue;
        }
        // Nobody is told of a question that needs no answer any more, and that is known already.
        if row.status == NoticeStatus::Failed && !is_asked(parts, &row).await? {
            continue;
        }
        let claimed = notices::claimed(&row, &parts.engine_id, parts.now());
        let claimed = claimed.expect("it may be claimed");
        match parts.writer.commit(vec![moved(&row, &claimed)]).await {
            Ok(_) => {}
            // Another engine was faster.
            Err(e) if e.kind() == ErrorKind::Conflict => continue,
            Err(e) => return Err(e),
        }
        let notice = recorded::notice(&claimed, &task);
        let tried = tokio::select! {
            biased;
            tried = try_once(core, sink, notice, is_asked(parts, &row).await?) => tried,
            () = core.stopping.cancelled() => Tried::Unanswered,
        };
        let was_taken_over = row.status == NoticeStatus::InProgress;
        let row = record(parts, &claimed, tried, was_taken_over).await?;
        told.push(recorded::notice(&row, &task));
    }
    Ok(told)
}

/// All notices, or those that are to be sent, with their tasks.
pub(crate) fn with_tasks(
    store: &dyn StateStore,
    only_to_send: bool,
) -> Result<Vec<(NoticeRow, WorkTaskRow)>, StateError> {
    let mut found = Vec::new();
    for row in store.notices(only_to_send)? {
        if let Some(task) = store.work_task(&row.task_id)? {
            found.push((row, task));
        }
    }
    Ok(found)
}

/// Whether the engine that has claimed a notice is at it. One of this engine's is lost: only one is
/// sent at a time.
async fn is_being_sent(parts: &Parts, row: &NoticeRow) -> Result<bool, Error> {
    let Some(owner) = row.owner.clone().filter(|owner| *owner != parts.engine_id) else {
        return Ok(false);
    };
    let state_dir = parts.state_dir.path().to_owned();
    let is_alive = move || liveness::is_alive(&state_dir, &owner);
    Ok(parts.blocking.run(is_alive).await??)
}

/// Whether somebody would still answer a notice; what asks nothing is told in any case.
async fn is_asked(parts: &Parts, row: &NoticeRow) -> Result<bool, Error> {
    if row.kind == NoticeKind::CheckpointFailed {
        return Ok(true);
    }
    let (task, commit) = (row.task_id.clone(), row.commit.clone());
    let read = move |store: &dyn StateStore| {
        let waits = store.work_task(&task)?;
        let waits = waits.is_some_and(|task| task.status == WorkTaskStatus::AwaitingFollowup);
        let follow_up = store.follow_up(&task)?;
        Ok(waits && follow_up.map(|row| row.last_checkpoint) == commit)
    };
    parts.reader.read(read).await
}

/// Looks for a notice where it goes, and sends it if it is not there.
async fn try_once(core: &Core, sink: &BoxSink, notice: NoticeRecord, is_asked: bool) -> Tried {
    if !is_asked {
        let why = "the task does not wait for an answer to it any more".to_owned();
        return Tried::NotSent(NoticeError::Never(why));
    }
    let shows = sink.clone().shows(notice.token.clone());
    match in_time(core, "asking for it", shows).await {
        Ok(Shown::Yes) => return Tried::WasThere,
        Ok(Shown::No | Shown::Unknown) => {}
        Err(e) => return Tried::NotSent(e),
    }
    let send = sink.clone().send(notice);
    match in_time(core, "sending it", send).await {
        Ok(()) => Tried::Sent,
        Err(e) => Tried::NotSent(e),
    }
}

/// What a sink answers, which is the host's code.
async fn in_time<T: Send + 'static>(
    core: &Core,
    what: &str,
    call: impl Future<Output = Result<T, NoticeError>> + Send + 'static,
) -> Result<T, NoticeError> {
    let limit = core.parts.settings.notice_timeout;
    let call = AbortOnDropHandle::new(core.runtime.spawn(call));
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(NoticeError::Later(format!("{what} panicked"))),
        Err(_) => Err(NoticeError::Later(format!(
            "{what} took more than {} seconds",
            limit.as_secs_f32()
        ))),
    }
}

/// Puts on record what became of a try, with the event.
async fn record(
    parts: &Parts,
    claimed: &NoticeRow,
    tried: Tried,
    recovered: bool,
) -> Result<NoticeRow, Error> {
    let now = parts.now();
    let (row, told) = match tried {
        Tried::Sent => {
            let told = (EventType::CHECKPOINT_NOTICE_POSTED, None);
            (notices::sent(claimed, now), Some(told))
        }
        Tried::WasThere => {
            let reason = Some("token_already_present");
            let told = (EventType::CHECKPOINT_NOTICE_SKIPPED, reason);
            (notices::sent(claimed, now), Some(told))
        }
        Tried::Unanswered => (notices::unanswered(claimed, now), None),
        Tried::NotSent(why) => {
            let may_pass = matches!(why, NoticeError::Later(_));
            let why = why.to_string();
            (notices::not_sent(claimed, &why, may_pass, now), None)
        }
    };
    let mut row = row.expect("it is in progress");
    let event = told.zip(row.session_id.as_ref());
    let event = event.map(|((event_type, reason), session_id)| {
        let said = CheckpointNotice {
            task_id: &row.task_id,
            notice: row.kind.as_str(),
            token: &row.token,
            reason,
            recovered,
        };
        let run_id = row.run_id.as_ref();
        Change::Append(NewEvent::new(event_type, session_id, run_id, now, said))
    });
    let moved = moved(claimed, &row);
    let has_event = event.is_some();
    let changes = event.into_iter().chain([moved.clone()]).collect();
    match parts.writer.commit(changes).await {
        // Its session was removed, or is about to be, and the log of that with it.
        Err(e) if has_event && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
            parts.writer.commit(vec![moved]).await.map(drop)?;
        }
        written => written.map(drop)?,
    }
    // As it is written.
    if let Some(error) = &mut row.error {
        *error = parts.writer.secrets().redact(error).into_owned();
    }
    Ok(row)
}

/// A notice as it is now, only from what it was.
fn moved(from: &NoticeRow, to: &NoticeRow) -> Change {
    Change::Branch(Box::new(BranchChange::MoveNotice {
        from: (from.status, from.attempts, from.owner.clone()),
        row: to.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branches::notices::NotSaved;
    use crate::engine::Engine;
    use crate::engine::options::EngineOptions;
    use crate::events::query::EventQuery;
    use crate::options::notice_sink::NoticeSink;
    use crate::state::sqlite::SqliteStore;

    /// Cannot be read back.
    struct Takes;

    impl NoticeSink for Takes {
        async fn send(&self, _: &NoticeRecord) -> Result<(), NoticeError> {
            Ok(())
        }

        async fn shows(&self, _: &str) -> Result<Shown, NoticeError> {
            Ok(Shown::Unknown)
        }
    }

    #[tokio::test]
    async fn one_whose_session_is_gone_is_sent_and_told_of_nowhere() {
        let state = tempfile::tempdir().unwrap();
        let at = jiff::Timestamp::UNIX_EPOCH;
        let task = WorkTaskRow::new("42", None, "r", "b", at);
        let run = (&"gone".parse().unwrap(), &"r".parse().unwrap());
        let why = NotSaved {
            reason: "run r failed",
            error: "AuthDenied: no",
            kept: "the store",
            commit: None,
            further: None,
        };
        let notice = notices::failed(&task, run, why, at);
        let changes = [BranchChange::AddTask(task), BranchChange::AddNotice(notice)];
        let changes = changes.map(|change| Change::Branch(Box::new(change)));
        let opened = stillframe_backends::StateDir::open(state.path()).unwrap();
        let mut store = SqliteStore::open(opened.path()).unwrap();
        store.commit(&changes).unwrap();
        drop(store);

        let options = EngineOptions::default().state_dir(state.path());
        let engine = Engine::start(options.notices(Takes)).await.unwrap();
        engine.send_notices().await.unwrap();
        let all = engine.notices().await.unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].status, NoticeStatus::Succeeded);
        assert_eq!((all[0].attempts, &all[0].error), (1, &None));
        assert_eq!(engine.events(EventQuery::all()).await.unwrap(), []);
        engine.shutdown().await.unwrap();
    }
}
