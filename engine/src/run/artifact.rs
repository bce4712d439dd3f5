//! Keeping an artifact: the content in its store, the record in the log.

use std::io::Read;

use serde_json::json;
use stillframe_artifact_store::ArtifactKey;

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{ArtifactId, RunId, SessionId};
use crate::records::artifact::ArtifactRecord;
use crate::state::change::Change;

/// Keeps content under `key`, and registers it.
pub(crate) async fn put(
    core: &Core,
    session_id: &SessionId,
    key: &str,
    content_type: &str,
    content: Box<dyn Read + Send>,
) -> Result<ArtifactRecord, Error> {
    let record = keep(core, (session_id, None), key, content_type, content).await?;
    let change = Change::RegisterArtifact(Box::new(record.clone()));
    core.parts.writer.commit(vec![change]).await?;
    Ok(record)
}

/// Keeps content under `key`, and answers with the record that is to be registered.
pub(crate) async fn keep(
    core: &Core,
    (session_id, run_id): (&SessionId, Option<&RunId>),
    key: &str,
    content_type: &str,
    content: Box<dyn Read + Send>,
) -> Result<ArtifactRecord, Error> {
    let meta = core.put(ArtifactKey::new(key)?, content).await?;
    Ok(ArtifactRecord {
        id: ArtifactId::random(),
        session_id: session_id.clone(),
        run_id: run_id.cloned(),
        key: key.to_owned(),
        content_type: content_type.to_owned(),
        byte_size: meta.bytes,
        checksum: meta.blake3.to_string(),
        storage_backend: core.parts.artifacts.kind().to_owned(),
        storage_ref: meta.blake3.to_string(),
        metadata: json!({}),
        created_at: core.parts.now(),
        deleted_at: None,
    })
}
