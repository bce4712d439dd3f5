//! Rows of snapshots, and of the operations between two of them.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use stillframe_backends::SnapshotId;

use super::values::{id, json, nanoseconds, parse, time, word};
use crate::id::{RunId, SessionId};
use crate::restore::OperationKind;
use crate::state::row_sum::damaged;
use crate::state::{OperationRow, SnapshotRow, StateError};

/// Deals the places of these snapshots out anew, in the order of `ids`.
pub(super) fn order_snapshots(
    transaction: &Transaction<'_>,
    ids: &[SnapshotId],
) -> Result<(), StateError> {
    let mut places = Vec::with_capacity(ids.len());
    {
        let mut find =
            transaction.prepare_cached("SELECT position FROM snapshots WHERE id = ?1")?;
        for id in ids {
            let found: Option<i64> = find
                .query_row(params![id.as_str()], |row| row.get(0))
                .optional()?;
            places.extend(found.map(|place| (id, place)));
        }
    }
    let mut in_order: Vec<i64> = places.iter().map(|(_, place)| *place).collect();
    in_order.sort_unstable();
    let moved: Vec<_> = places
        .into_iter()
        .zip(in_order)
        .filter(|((_, from), to)| from != to)
        .map(|((id, _), to)| (id, to))
        .collect();
    let mut put = transaction.prepare_cached("UPDATE snapshots SET position = ?2 WHERE id = ?1")?;
    // No two may ever have one place, so they leave all of theirs first. None in use is negative.
    for (id, place) in &moved {
        put.execute(params![id.as_str(), -place])?;
    }
    for (id, place) in &moved {
        put.execute(params![id.as_str(), place])?;
    }
    Ok(())
}

/// Adds a snapshot; one that is there gets the owners that it does not have.
pub(super) fn add_snapshot(
    transaction: &Transaction<'_>,
    row: &SnapshotRow,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO snapshots (id, workspace_id, session_id, run_id, captured_at, document)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id) DO UPDATE SET
             session_id = coalesce(excluded.session_id, session_id),
             run_id = coalesce(excluded.run_id, run_id)",
        params![
            row.snapshot.id.as_str(),
            row.workspace_id,
            row.session_id.as_ref().map(SessionId::as_str),
            row.run_id.as_ref().map(RunId::as_str),
            nanoseconds(row.snapshot.captured_at),
            json(&row.snapshot),
        ],
    )?;
    Ok(())
}

/// Takes snapshots off the record.
pub(super) fn forget_snapshots(
    transaction: &Transaction<'_>,
    ids: &[SnapshotId],
) -> Result<(), StateError> {
    let mut statement = transaction.prepare_cached("DELETE FROM snapshots WHERE id = ?1")?;
    for id in ids {
        statement.execute(params![id.as_str()])?;
    }
    Ok(())
}

/// Adds what an undo can take back.
pub(super) fn add_operation(
    transaction: &Transaction<'_>,
    row: &OperationRow,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO operations (id, workspace_id, session_id, run_id, kind,
             before_snapshot, after_snapshot, paths, repository, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            row.id.as_str(),
            row.workspace_id,
            row.session_id.as_str(),
            row.run_id.as_ref().map(RunId::as_str),
            row.kind.as_str(),
            row.before.as_str(),
            row.after.as_str(),
            row.paths.as_ref().map(json),
            row.repository,
            nanoseconds(row.at),
        ],
    )?;
    Ok(())
}

pub(super) const SELECT_SNAPSHOT: &str = concat!(
    "SELECT workspace_id, session_id, run_id, document, ",
    damaged!(snapshots),
    " FROM snapshots"
);

/// Conditions for the label that the document has. A document that is none matches, so that whoever reads it is
/// told that it is damaged.
pub(super) const LABEL_IS: &str =
    "CASE WHEN json_valid(document) THEN json_extract(document, '$.label') IS ?2 ELSE 1 END";
pub(super) const LABEL_IS_NOT: &str =
    "CASE WHEN json_valid(document) THEN json_extract(document, '$.label') IS NOT ?3 ELSE 1 END";

pub(super) fn read_snapshot(row: &Row<'_>) -> Result<SnapshotRow, StateError> {
    Ok(SnapshotRow {
        workspace_id: row.get(0)?,
        session_id: row.get::<_, Option<String>>(1)?.map(id).transpose()?,
        run_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
        snapshot: parse(&row.get::<_, String>(3)?)?,
    })
}

pub(super) const SELECT_OPERATION: &str = concat!(
    "SELECT id, workspace_id, session_id, run_id, kind, before_snapshot, \
     after_snapshot, paths, repository, created_at, ",
    damaged!(operations),
    " FROM operations"
);

pub(super) fn read_operation(row: &Row<'_>) -> Result<OperationRow, StateError> {
    let kind = |text: &str| match text {
        "run" => Some(OperationKind::Run),
        "restore" => Some(OperationKind::Restore),
        "undo" => Some(OperationKind::Undo),
        _ => None,
    };
    Ok(OperationRow {
        id: id(row.get(0)?)?,
        workspace_id: row.get(1)?,
        session_id: id(row.get(2)?)?,
        run_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        kind: word(row.get(4)?, kind)?,
        before: id(row.get(5)?)?,
        after: id(row.get(6)?)?,
        paths: row
            .get::<_, Option<String>>(7)?
            .map(|text| parse(&text))
            .transpose()?,
        repository: row.get(8)?,
        at: time(row.get(9)?)?,
    })
}
