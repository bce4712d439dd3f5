//! Rows of what is in quarantine.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::effects::elsewhere;
use super::lost::lost;
use super::values::{id, nanoseconds, optional_time, time, word};
use crate::id::{QuarantineId, WorkTaskId};
use crate::records::quarantine::{QuarantineKind, QuarantineRow, QuarantineStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Writes something that is kept.
pub(super) fn add_quarantine(
    transaction: &Connection,
    row: &QuarantineRow,
) -> Result<(), StateError> {
    let added = transaction.execute(
        "INSERT INTO quarantine (id, kind, origin, place, reason, task_id, status, created_at,
             ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO NOTHING",
        params![
            row.id.as_str(),
            row.kind.as_str(),
            row.origin.as_os_str().as_bytes(),
            row.place.as_os_str().as_bytes(),
            row.reason,
            row.task_id.as_ref().map(WorkTaskId::as_str),
            row.status.as_str(),
            nanoseconds(row.created_at),
            row.ended_at.map(nanoseconds),
        ],
    )?;
    match added {
        0 => Err(elsewhere(format!("quarantine {}", row.id), None)),
        _ => Ok(()),
    }
}

/// Lets go of something that is kept.
pub(super) fn end_quarantine(
    transaction: &Connection,
    id: &QuarantineId,
    to: QuarantineStatus,
    at: Timestamp,
) -> Result<(), StateError> {
    let ended = transaction.execute(
        "UPDATE quarantine SET status = ?1, ended_at = ?2 WHERE id = ?3 AND status = 'kept'",
        params![to.as_str(), nanoseconds(at), id.as_str()],
    )?;
    match ended {
        0 => {
            let expected = QuarantineStatus::Kept.as_str();
            Err(lost(
                transaction,
                "quarantine",
                "quarantine",
                id.as_str(),
                expected,
            ))
        }
        _ => Ok(()),
    }
}

pub(super) const SELECT_QUARANTINE: &str = concat!(
    "SELECT id, kind, origin, place, reason, task_id, status, created_at, ended_at, ",
    damaged!(quarantine),
    " FROM quarantine"
);

pub(super) fn read_quarantine(row: &Row<'_>) -> Result<QuarantineRow, StateError> {
    let path = |at: usize| -> Result<PathBuf, StateError> {
        Ok(PathBuf::from(OsString::from_vec(row.get(at)?)))
    };
    Ok(QuarantineRow {
        id: id(row.get(0)?)?,
        kind: word(row.get(1)?, QuarantineKind::parse)?,
        origin: path(2)?,
        place: path(3)?,
        reason: row.get(4)?,
        task_id: row.get::<_, Option<String>>(5)?.map(id).transpose()?,
        status: word(row.get(6)?, QuarantineStatus::parse)?,
        created_at: time(row.get(7)?)?,
        ended_at: optional_time(row, 8)?,
    })
}
