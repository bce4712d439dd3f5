//! Rows of artifacts.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::removals::refuse_if_being_removed;
use super::values::{count, id, json, nanoseconds, parse, time};
use crate::id::{ArtifactId, RunId};
use crate::records::artifact::ArtifactRecord;
use crate::state::error::StateError;
use crate::state::row_sum::damaged;

/// Deletes the artifact under a key, or only that of an id; says how many that were.
pub(super) fn delete_artifact(
    transaction: &Connection,
    key: &str,
    id: Option<&ArtifactId>,
    at: Timestamp,
) -> Result<usize, StateError> {
    Ok(transaction.execute(
        "UPDATE artifacts SET deleted_at = ?1
          WHERE key = ?2 AND deleted_at IS NULL AND (?3 IS NULL OR id = ?3)",
        params![nanoseconds(at), key, id.map(ArtifactId::as_str)],
    )?)
}

/// Puts an artifact on record; one under the same key is deleted.
pub(super) fn register_artifact(
    transaction: &Connection,
    artifact: &ArtifactRecord,
) -> Result<(), StateError> {
    refuse_if_being_removed(transaction, &artifact.session_id)?;
    delete_artifact(transaction, &artifact.key, None, artifact.created_at)?;
    transaction.execute(
        "INSERT INTO artifacts (id, session_id, run_id, key, content_type, byte_size,
             checksum, storage_backend, storage_ref, metadata, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            artifact.id.as_str(),
            artifact.session_id.as_str(),
            artifact.run_id.as_ref().map(RunId::as_str),
            artifact.key,
            artifact.content_type,
            count(artifact.byte_size),
            artifact.checksum,
            artifact.storage_backend,
            artifact.storage_ref,
            json(&artifact.metadata),
            nanoseconds(artifact.created_at),
        ],
    )?;
    Ok(())
}

/// Deletes an artifact; fails where there is none.
pub(super) fn remove_artifact(
    transaction: &Connection,
    key: &str,
    id: Option<&ArtifactId>,
    at: Timestamp,
) -> Result<(), StateError> {
    if delete_artifact(transaction, key, id, at)? == 0 {
        let what = format!("artifact {key:?}");
        return Err(StateError::NotFound { what });
    }
    Ok(())
}

pub(super) const SELECT_ARTIFACT: &str = concat!(
    "SELECT id, session_id, run_id, key, content_type, byte_size, checksum, \
     storage_backend, storage_ref, metadata, created_at, deleted_at, ",
    damaged!(artifacts),
    " FROM artifacts"
);

pub(super) fn read_artifact(row: &Row<'_>) -> Result<ArtifactRecord, StateError> {
    Ok(ArtifactRecord {
        id: id(row.get(0)?)?,
        session_id: id(row.get(1)?)?,
        run_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
        key: row.get(3)?,
        content_type: row.get(4)?,
        byte_size: row.get::<_, i64>(5)?.unsigned_abs(),
        checksum: row.get(6)?,
        storage_backend: row.get(7)?,
        storage_ref: row.get(8)?,
        metadata: parse(&row.get::<_, String>(9)?)?,
        created_at: time(row.get(10)?)?,
        deleted_at: row.get::<_, Option<i64>>(11)?.map(time).transpose()?,
    })
}
