//! Rows of snapshots, and of the operations between two of them.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use stillframe_backends::{Snapshot, SnapshotId};

use super::packed::{pack, unpack};
use super::values::{id, json, nanoseconds, parse, time, word};
use crate::id::{RunId, SessionId};
use crate::records::operation::{OperationKind, OperationRow};
use crate::records::snapshot::SnapshotRow;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Deals the places of these snapshots out anew, in the order of `ids`.
pub(super) fn order_snapshots(
    transaction: &Connection,
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

/// So many bytes of a document are worth a row of their own that others may share.
const SHARED_FROM: usize = 1024;

/// Adds a snapshot; one that is there gets the owners that it does not have.
pub(super) fn add_snapshot(transaction: &Connection, row: &SnapshotRow) -> Result<(), StateError> {
    let mut document = row.snapshot.clone();
    let omissions = std::mem::take(&mut document.omissions);
    let text = json(&omissions);
    let digest = match text.len() < SHARED_FROM {
        true => {
            document.omissions = omissions;
            None
        }
        false => Some(share(transaction, &text)?),
    };
    transaction.execute(
        "INSERT INTO snapshots
             (id, workspace_id, session_id, run_id, captured_at, document, omissions)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET
             session_id = coalesce(excluded.session_id, session_id),
             run_id = coalesce(excluded.run_id, run_id)",
        params![
            row.snapshot.id.as_str(),
            row.workspace_id,
            row.session_id.as_ref().map(SessionId::as_str),
            row.run_id.as_ref().map(RunId::as_str),
            nanoseconds(row.snapshot.captured_at),
            json(&document),
            digest,
        ],
    )?;
    // One that was there may have them in its document.
    drop_unshared(transaction, digest.as_slice())
}

/// Keeps what was left out, once for all that left out the same; answers with the digest of `text`,
/// which says it.
fn share(transaction: &Connection, text: &str) -> Result<Vec<u8>, StateError> {
    let digest = blake3::hash(text.as_bytes()).as_bytes().to_vec();
    let is_there = transaction
        .prepare_cached("SELECT 1 FROM omissions WHERE digest = ?1")?
        .exists(params![digest])?;
    if !is_there {
        transaction.execute(
            "INSERT INTO omissions (digest, packed) VALUES (?1, ?2)",
            params![digest, pack(text)],
        )?;
    }
    Ok(digest)
}

/// Removes lists of omissions that no snapshot needs any more.
fn drop_unshared(transaction: &Connection, digests: &[Vec<u8>]) -> Result<(), StateError> {
    let mut remove = transaction.prepare_cached(
        "DELETE FROM omissions
          WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM snapshots WHERE omissions = ?1)",
    )?;
    for digest in digests {
        remove.execute(params![digest])?;
    }
    Ok(())
}

/// Takes snapshots off the record.
pub(super) fn forget_snapshots(
    transaction: &Connection,
    ids: &[SnapshotId],
) -> Result<(), StateError> {
    let mut statement =
        transaction.prepare_cached("DELETE FROM snapshots WHERE id = ?1 RETURNING omissions")?;
    let mut digests: Vec<Vec<u8>> = Vec::new();
    for id in ids {
        let digest: Option<Option<Vec<u8>>> = statement
            .query_row(params![id.as_str()], |row| row.get(0))
            .optional()?;
        digests.extend(digest.flatten());
    }
    digests.sort_unstable();
    digests.dedup();
    drop_unshared(transaction, &digests)
}

/// Adds an operation that can be undone.
pub(super) fn add_operation(
    transaction: &Connection,
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
    "SELECT workspace_id, session_id, run_id, document, omissions, \
     (SELECT packed FROM omissions WHERE digest = snapshots.omissions) AS packed, ",
    damaged!(snapshots),
    " FROM snapshots"
);

/// Conditions for the label that the document has. An invalid document matches, so that reading it
/// reports the damage.
pub(super) const LABEL_IS: &str =
    "CASE WHEN json_valid(document) THEN json_extract(document, '$.label') IS ?2 ELSE 1 END";
pub(super) const LABEL_IS_NOT: &str =
    "CASE WHEN json_valid(document) THEN json_extract(document, '$.label') IS NOT ?3 ELSE 1 END";

pub(super) fn read_snapshot(row: &Row<'_>) -> Result<SnapshotRow, StateError> {
    let mut snapshot: Snapshot = parse(&row.get::<_, String>(3)?)?;
    if let Some(digest) = row.get::<_, Option<Vec<u8>>>(4)? {
        let packed: Option<Vec<u8>> = row.get(5)?;
        let text = packed
            .and_then(|packed| unpack(&packed))
            .filter(|text| *blake3::hash(text.as_bytes()).as_bytes() == *digest)
            .ok_or_else(|| StateError::Corrupt {
                detail: format!("what {} left out is missing or damaged", snapshot.id),
            })?;
        snapshot.omissions = parse(&text)?;
    }
    Ok(SnapshotRow {
        workspace_id: row.get(0)?,
        session_id: row.get::<_, Option<String>>(1)?.map(id).transpose()?,
        run_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
        snapshot,
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
        "resume" => Some(OperationKind::Resume),
        "merge" => Some(OperationKind::Merge),
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
