//! Rows of checkpoints.

use rusqlite::{Connection, Row, params};

use super::effects::elsewhere;
use super::values::{count, id, nanoseconds, time, word};
use crate::id::RunId;
use crate::records::checkpoint::{CheckpointKind, CheckpointRow, CheckpointStatus};
use crate::state::error::StateError;
use crate::state::row_sum::damaged;
use stillframe_remote::failure_kind::FailureKind;

/// Writes a checkpoint that is new, or is in the status that was seen.
pub(super) fn put_checkpoint(
    transaction: &Connection,
    from: Option<CheckpointStatus>,
    row: &CheckpointRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO checkpoints (status, remote, branch, advanced_to, failure, error,
                     updated_at, task_id, repository, seq, kind, made_by, commit_id, created_at)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14 WHERE ?15 IS NULL
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE checkpoints SET status = ?1, remote = ?2, branch = ?3, advanced_to = ?4,
                     failure = ?5, error = ?6, updated_at = ?7
                  WHERE task_id = ?8 AND repository = ?9 AND seq = ?10 AND kind = ?11
                    AND made_by IS ?12 AND commit_id = ?13 AND created_at = ?14 AND status = ?15"
            }
        },
        params![
            row.status.as_str(),
            row.remote,
            row.branch,
            row.advanced_to,
            row.failure.map(FailureKind::as_str),
            row.error,
            nanoseconds(row.updated_at),
            row.task_id.as_str(),
            row.repository,
            count(row.seq),
            row.kind.as_str(),
            row.made_by.as_ref().map(RunId::as_str),
            row.commit,
            nanoseconds(row.created_at),
            from.map(CheckpointStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!(
            "checkpoint {} of task {} in {}",
            row.seq, row.task_id, row.repository
        );
        return Err(elsewhere(what, from.map(CheckpointStatus::as_str)));
    }
    Ok(())
}

pub(super) const SELECT_CHECKPOINT: &str = concat!(
    "SELECT commit_id, task_id, repository, seq, kind, made_by, status, remote, branch, \
     advanced_to, failure, error, created_at, updated_at, ",
    damaged!(checkpoints),
    " FROM checkpoints"
);

pub(super) fn read_checkpoint(row: &Row<'_>) -> Result<CheckpointRow, StateError> {
    let failure = row.get::<_, Option<String>>(10)?;
    Ok(CheckpointRow {
        commit: row.get(0)?,
        task_id: id(row.get(1)?)?,
        repository: row.get(2)?,
        seq: row.get::<_, i64>(3)?.unsigned_abs(),
        kind: word(row.get(4)?, CheckpointKind::parse)?,
        made_by: row.get::<_, Option<String>>(5)?.map(id).transpose()?,
        status: word(row.get(6)?, CheckpointStatus::parse)?,
        remote: row.get(7)?,
        branch: row.get(8)?,
        advanced_to: row.get(9)?,
        failure: failure
            .map(|failure| word(failure, FailureKind::parse))
            .transpose()?,
        error: row.get(11)?,
        created_at: time(row.get(12)?)?,
        updated_at: time(row.get(13)?)?,
    })
}
