//! Rows of the queue: runs that were submitted.

use rusqlite::{Connection, Row, params};

use super::events::Appended;
use super::leases::claim_lease;
use super::lost::lost;
use super::queue_state::set_state;
use super::runs::move_run;
use super::values::{count, id, json, nanoseconds, parse, word};
use crate::events::event::EventType;
use crate::id::{RunId, SessionId};
use crate::records::lease::Lease;
use crate::records::queue::{Priority, QueueRow, QueueState, TakenRow};
use crate::records::run::RunStatus;
use crate::state::change::{NewEvent, Withdrawal};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// How many runs wait.
pub(super) fn waiting(connection: &Connection) -> rusqlite::Result<u64> {
    let mut count =
        connection.prepare_cached("SELECT count(*) FROM queue WHERE state = 'waiting'")?;
    let waiting: i64 = count.query_row((), |row| row.get(0))?;
    Ok(waiting.unsigned_abs())
}

/// Puts a run into the queue whose row was made before in the same transaction.
pub(super) fn enqueue(
    transaction: &Connection,
    row: &QueueRow,
    max_queued: u64,
) -> Result<(), StateError> {
    if waiting(transaction)? >= max_queued {
        return Err(StateError::Full { max_queued });
    }
    transaction.execute(
        "INSERT INTO queue (run_id, session_id, adapter, input, priority, workspace_id, state)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            row.run_id.as_str(),
            row.session_id.as_str(),
            row.adapter,
            json(&row.input),
            row.priority.as_str(),
            row.workspace_id,
            row.state.as_str(),
        ],
    )?;
    Ok(())
}

/// Takes the first run that waits in its session, of its priority, if the session takes runs and
/// fewer than `max_in_session` of it are under way.
pub(super) fn claim_queued(
    transaction: &Connection,
    run_id: &RunId,
    (from, lease): (Option<&Lease>, &Lease),
    max_in_session: u64,
) -> Result<(), StateError> {
    let can_begin: bool = transaction.query_row(
        "SELECT EXISTS (
             SELECT 1 FROM queue AS own WHERE run_id = ?1 AND state = 'waiting'
                AND EXISTS (SELECT 1 FROM sessions
                             WHERE id = own.session_id AND status = 'active')
                AND NOT EXISTS (SELECT 1 FROM queue AS earlier
                                 WHERE earlier.session_id = own.session_id
                                   AND earlier.priority = own.priority
                                   AND earlier.position < own.position
                                   AND earlier.state = 'waiting')
                AND (SELECT count(*) FROM queue AS taken
                      WHERE taken.session_id = own.session_id
                        AND taken.state IN ('claimed', 'under_way')) < ?2)",
        params![run_id.as_str(), count(max_in_session)],
        |row| row.get(0),
    )?;
    if !can_begin {
        return Err(StateError::Conflict {
            what: format!("run {run_id}"),
            expected: "the next of its session".to_owned(),
            found: "taken, withdrawn or not to begin yet".to_owned(),
        });
    }
    claim_lease(transaction, run_id, from, lease, None)?;
    set_state(transaction, run_id, QueueState::Claimed)
}

/// Puts a run back whose work has not begun, held under `epoch`; if its session has ended
/// meanwhile, it is cancelled. Fails if somebody has asked for its end.
pub(super) fn requeue(
    transaction: &Connection,
    run_id: &RunId,
    epoch: u64,
    free: &Lease,
    withdrawal: &Withdrawal,
    appended: &mut Appended,
) -> Result<(), StateError> {
    let freed = transaction.execute(
        "UPDATE leases SET owner = ?1, epoch = ?2, boot_id = ?3, expires_at = ?4, heartbeat_at = ?5
          WHERE run_id = ?6 AND epoch = ?7 AND cancel_requested_at IS NULL
            AND EXISTS (SELECT 1 FROM queue WHERE run_id = ?6 AND state = 'claimed')",
        params![
            free.owner.as_str(),
            count(free.epoch),
            free.expires.boot_id,
            free.expires.nanoseconds,
            nanoseconds(free.heartbeat_at),
            run_id.as_str(),
            count(epoch),
        ],
    )?;
    if freed == 0 {
        return Err(lost(
            transaction,
            "runs",
            "run",
            run_id.as_str(),
            "claimed, and wanted",
        ));
    }
    set_state(transaction, run_id, QueueState::Waiting)?;
    let of_ended: Option<String> = transaction.query_row(
        "SELECT (SELECT id FROM sessions WHERE id = queue.session_id
                    AND status NOT IN ('pending', 'active', 'paused'))
           FROM queue WHERE run_id = ?1",
        params![run_id.as_str()],
        |row| row.get(0),
    )?;
    match of_ended {
        Some(session_id) => withdraw(transaction, &id(session_id)?, run_id, withdrawal, appended),
        None => Ok(()),
    }
}

/// Cancels every run of a session that waits.
pub(super) fn withdraw_all(
    transaction: &Connection,
    session_id: &SessionId,
    withdrawal: &Withdrawal,
    appended: &mut Appended,
) -> Result<(), StateError> {
    let mut find = transaction.prepare_cached(
        "SELECT run_id FROM queue WHERE session_id = ?1 AND state = 'waiting' ORDER BY position",
    )?;
    let found = find.query_map(params![session_id.as_str()], |row| row.get::<_, String>(0))?;
    let waiting: Vec<String> = found.collect::<Result<_, _>>()?;
    for run_id in waiting {
        withdraw(transaction, session_id, &id(run_id)?, withdrawal, appended)?;
    }
    Ok(())
}

fn withdraw(
    transaction: &Connection,
    session_id: &SessionId,
    run_id: &RunId,
    withdrawal: &Withdrawal,
    appended: &mut Appended,
) -> Result<(), StateError> {
    let (pending, cancelled) = (RunStatus::Pending, RunStatus::Cancelled);
    let ending = Some(&withdrawal.ending);
    let moves = (pending, cancelled);
    move_run(transaction, run_id, moves, withdrawal.at, (ending, None))?;
    let event = NewEvent::new(
        EventType::RUN_CANCELLED,
        session_id,
        Some(run_id),
        withdrawal.at,
        &withdrawal.said,
    );
    appended.append(transaction, &event)?;
    Ok(())
}

pub(super) const SELECT_QUEUE: &str = concat!(
    "SELECT position, run_id, session_id, adapter, input, priority, workspace_id, state, ",
    damaged!(queue),
    " FROM queue"
);

/// The first that waits of each session and priority, where the session takes runs.
pub(super) const HEADS: &str = concat!(
    "SELECT position, run_id, session_id, adapter, input, priority, workspace_id, state, ",
    damaged!(queue),
    " FROM queue
      WHERE position IN (SELECT min(position) FROM queue WHERE state = 'waiting'
                          GROUP BY session_id, priority)
        AND (SELECT status FROM sessions WHERE id = queue.session_id) = 'active'
      ORDER BY position"
);

pub(super) fn read_queue(row: &Row<'_>) -> Result<QueueRow, StateError> {
    Ok(QueueRow {
        position: row.get::<_, i64>(0)?.unsigned_abs(),
        run_id: id(row.get(1)?)?,
        session_id: id(row.get(2)?)?,
        adapter: row.get(3)?,
        input: parse(&row.get::<_, String>(4)?)?,
        priority: word(row.get(5)?, Priority::parse)?,
        workspace_id: row.get(6)?,
        state: word(row.get(7)?, QueueState::parse)?,
    })
}

/// What is taken, also from a row that is damaged elsewhere.
pub(super) fn read_taken(row: &Row<'_>) -> Result<TakenRow, StateError> {
    Ok(TakenRow {
        run_id: id(row.get(1)?)?,
        session_id: id(row.get(2)?)?,
        workspace_id: row.get(6)?,
    })
}
