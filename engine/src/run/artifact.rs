//! Keeping an artifact: the content in its store, the record in the log.

use serde_json::json;
use stillframe_artifact_store::ArtifactKey;

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{ArtifactId, RunId, SessionId};
use crate::records::artifact::ArtifactRecord;
use crate::state::change::Change;

/// Keeps content under `key`, and registers it, unless `fence` refuses that.
pub(crate) async fn put(
    core: &Core,
    session_id: &SessionId,
    run_id: Option<&RunId>,
    key: &str,
    content_type: &str,
    content: Box<dyn std::io::Read + Send>,
    fence: Option<Change>,
) -> Result<ArtifactRecord, Error> {
    let meta = core.put(ArtifactKey::new(key)?, content).await?;
    let record = ArtifactRecord {
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
    };
    let change = Change::RegisterArtifact(Box::new(record.clone()));
    let changes = fence.into_iter().chain([change]).collect();
    core.parts.writer.commit(changes).await?;
    Ok(record)
}
