//! Rows of leases: which engine works on a run, and until when.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use stillframe_backends::SnapshotId;

use super::values::{count, id, nanoseconds, optional_time, time};
use crate::events::event::EventType;
use crate::id::RunId;
use crate::records::lease::{Lease, Moment};
use crate::records::run::RunStatus;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// The first lease of a run.
pub(super) fn insert_lease(
    transaction: &Connection,
    run_id: &RunId,
    lease: &Lease,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO leases (run_id, owner, epoch, boot_id, expires_at, heartbeat_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            run_id.as_str(),
            lease.owner.as_str(),
            count(lease.epoch),
            lease.expires.boot_id,
            lease.expires.nanoseconds,
            nanoseconds(lease.heartbeat_at),
        ],
    )?;
    Ok(())
}

/// Takes a run over from the lease that was seen; `after` is where its next owner captures.
pub(super) fn claim_lease(
    transaction: &Connection,
    run_id: &RunId,
    from: Option<&Lease>,
    lease: &Lease,
    after: Option<&SnapshotId>,
) -> Result<(), StateError> {
    match from {
        None => {
            let is_taken: bool = transaction.query_row(
                "SELECT EXISTS (SELECT 1 FROM leases WHERE run_id = ?1)",
                params![run_id.as_str()],
                |row| row.get(0),
            )?;
            if is_taken {
                return Err(StateError::TakenOver(run_id.clone()));
            }
            insert_lease(transaction, run_id, lease)?;
        }
        Some(from) => {
            let claimed = transaction.execute(
                "UPDATE leases SET owner = ?1, epoch = ?2, boot_id = ?3, expires_at = ?4,
                     heartbeat_at = ?5, cancel_requested_at = NULL
                  WHERE run_id = ?6 AND epoch = ?7 AND boot_id = ?8 AND expires_at = ?9
                    AND cancel_requested_at IS ?10",
                params![
                    lease.owner.as_str(),
                    count(lease.epoch),
                    lease.expires.boot_id,
                    lease.expires.nanoseconds,
                    nanoseconds(lease.heartbeat_at),
                    run_id.as_str(),
                    count(from.epoch),
                    from.expires.boot_id,
                    from.expires.nanoseconds,
                    from.cancel_requested_at.map(nanoseconds),
                ],
            )?;
            if claimed == 0 {
                return Err(StateError::TakenOver(run_id.clone()));
            }
        }
    }
    transaction.execute(
        "UPDATE runs SET engine_id = ?1, version = version + 1,
             after_snapshot = CASE WHEN workspace_id IS NULL THEN NULL
                                   ELSE coalesce(?2, after_snapshot) END
          WHERE id = ?3",
        params![
            lease.owner.as_str(),
            after.map(SnapshotId::as_str),
            run_id.as_str()
        ],
    )?;
    Ok(())
}

/// Fails unless the run is under way, and still held under this epoch.
pub(super) fn fence(
    transaction: &Connection,
    run_id: &RunId,
    epoch: u64,
) -> Result<(), StateError> {
    let is_ours: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM leases WHERE run_id = ?1 AND epoch = ?2)",
        params![run_id.as_str(), count(epoch)],
        |row| row.get(0),
    )?;
    if !is_ours {
        return Err(StateError::TakenOver(run_id.clone()));
    }
    let status: String = transaction.query_row(
        "SELECT status FROM runs WHERE id = ?1",
        params![run_id.as_str()],
        |row| row.get(0),
    )?;
    match RunStatus::parse(&status) {
        // What its work has left behind comes too late.
        Some(status) if status.is_terminal() || status.is_at_rest() => Err(StateError::Conflict {
            what: format!("run {run_id}"),
            expected: "under way".to_owned(),
            found: status.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Fails if somebody has asked the run to stop.
pub(super) fn refuse_if_cancelled(
    transaction: &Connection,
    run_id: &RunId,
) -> Result<(), StateError> {
    let is_unwanted: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM leases
                         WHERE run_id = ?1 AND cancel_requested_at IS NOT NULL)",
        params![run_id.as_str()],
        |row| row.get(0),
    )?;
    if is_unwanted {
        return Err(StateError::Conflict {
            what: format!("run {run_id}"),
            expected: "wanted".to_owned(),
            found: "to be cancelled".to_owned(),
        });
    }
    Ok(())
}

/// Fails unless a run is at work.
pub(super) fn refuse_unless_at_work(
    transaction: &Connection,
    run_id: &RunId,
) -> Result<(), StateError> {
    let status: Option<String> = transaction
        .query_row(
            "SELECT status FROM runs WHERE id = ?1",
            params![run_id.as_str()],
            |row| row.get(0),
        )
        .optional()?;
    let is_at_work = status
        .as_deref()
        .and_then(RunStatus::parse)
        .is_some_and(RunStatus::is_at_work);
    match is_at_work {
        true => Ok(()),
        false => Err(StateError::Conflict {
            what: format!("run {run_id}"),
            expected: "at work".to_owned(),
            found: status.unwrap_or_else(|| "gone".to_owned()),
        }),
    }
}

/// Fails if something that the run has started has said, since its work began last, that it is
/// blocked.
pub(super) fn refuse_if_reported(
    transaction: &Connection,
    run_id: &RunId,
) -> Result<(), StateError> {
    let last: Option<String> = transaction
        .query_row(
            "SELECT type FROM events WHERE run_id = ?1 AND type IN (?2, ?3)
              ORDER BY position DESC LIMIT 1",
            params![
                run_id.as_str(),
                EventType::RUN_STARTED.as_str(),
                EventType::BLOCK_REPORTED.as_str()
            ],
            |row| row.get(0),
        )
        .optional()?;
    if last.as_deref() == Some(EventType::BLOCK_REPORTED.as_str()) {
        return Err(StateError::Conflict {
            what: format!("run {run_id}"),
            expected: "able to go on".to_owned(),
            found: "blocked".to_owned(),
        });
    }
    Ok(())
}

/// Puts off when a lease expires.
pub(super) fn renew_lease(
    transaction: &Connection,
    run_id: &RunId,
    epoch: u64,
    expires: &Moment,
    at: Timestamp,
) -> Result<(), StateError> {
    let renewed = transaction.execute(
        "UPDATE leases SET boot_id = ?1, expires_at = ?2, heartbeat_at = ?3
          WHERE run_id = ?4 AND epoch = ?5",
        params![
            expires.boot_id,
            expires.nanoseconds,
            nanoseconds(at),
            run_id.as_str(),
            count(epoch)
        ],
    )?;
    if renewed == 0 {
        return Err(StateError::TakenOver(run_id.clone()));
    }
    Ok(())
}

/// Asks a run that is under way to stop.
pub(super) fn request_cancel(
    transaction: &Connection,
    run_id: &RunId,
    at: Timestamp,
) -> Result<(), StateError> {
    let asked = transaction.execute(
        "UPDATE leases SET cancel_requested_at = coalesce(cancel_requested_at, ?1)
          WHERE run_id = ?2 AND EXISTS (
              SELECT 1 FROM runs
               WHERE id = ?2 AND status IN (
                   'pending', 'running', 'asking', 'persisting', 'blocked', 'checkpointing'))",
        params![nanoseconds(at), run_id.as_str()],
    )?;
    if asked == 0 {
        let what = format!("run {run_id} that could be asked to stop");
        return Err(StateError::NotFound { what });
    }
    Ok(())
}

pub(super) const SELECT_LEASE: &str = concat!(
    "SELECT run_id, owner, epoch, boot_id, expires_at, heartbeat_at, cancel_requested_at, ",
    damaged!(leases),
    " FROM leases"
);

pub(super) fn read_lease(row: &Row<'_>) -> Result<Lease, StateError> {
    Ok(Lease {
        owner: id(row.get(1)?)?,
        epoch: row.get::<_, i64>(2)?.unsigned_abs(),
        expires: Moment {
            boot_id: row.get(3)?,
            nanoseconds: row.get(4)?,
        },
        heartbeat_at: time(row.get(5)?)?,
        cancel_requested_at: optional_time(row, 6)?,
    })
}
