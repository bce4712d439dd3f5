//! Storing an artifact: the content in the artifact store, the record in the log.

use std::io::Read;

use serde_json::json;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{ArtifactId, RunId, SessionId};
use crate::records::artifact::ArtifactRecord;
use crate::state::change::Change;
use crate::state::registering::Registering;

/// Keeps content under `key`, and registers it.
pub(crate) async fn put(
    core: &Core,
    session_id: &SessionId,
    key: &str,
    content_type: &str,
    content: Box<dyn Read + Send>,
) -> Result<ArtifactRecord, Error> {
    let key = ArtifactKey::new(key)?;
    let parts = &core.parts;
    let held = registering(core).await?;
    let meta = core.put(key, content).await?;
    let record = record(parts, (session_id, None), meta, content_type);
    let changes = vec![Change::RegisterArtifact(Box::new(record.clone()))];
    parts.writer.commit_and_release(changes, Some(held)).await?;
    Ok(record)
}

/// Protects what is about to be put from clean-ups.
pub(crate) async fn registering(core: &Core) -> Result<Registering, Error> {
    let state_dir = core.parts.state_dir.clone();
    let begin = move || Registering::begin(state_dir.path());
    core.parts.blocking.run(begin).await?
}

/// The record of what the store has, to be registered.
pub(crate) fn record(
    parts: &Parts,
    (session_id, run_id): (&SessionId, Option<&RunId>),
    meta: ArtifactMeta,
    content_type: &str,
) -> ArtifactRecord {
    ArtifactRecord {
        id: ArtifactId::random(),
        session_id: session_id.clone(),
        run_id: run_id.cloned(),
        key: meta.key.into(),
        content_type: content_type.to_owned(),
        byte_size: meta.bytes,
        checksum: meta.blake3.to_string(),
        storage_backend: parts.artifacts.kind().to_owned(),
        storage_ref: meta.blake3.to_string(),
        metadata: json!({}),
        created_at: parts.now(),
        deleted_at: None,
    }
}
