//! Keeping an artifact: the content in its store, the record in the log.

use std::io::Read;

use serde_json::json;
use stillframe_artifact_store::ArtifactKey;

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
    let whose = (session_id, None);
    let (record, held) = keep(core, whose, key, content_type, content).await?;
    let changes = vec![Change::RegisterArtifact(Box::new(record.clone()))];
    let writer = &core.parts.writer;
    writer.commit_and_release(changes, Some(held)).await?;
    Ok(record)
}

/// Keeps content under `key`, and answers with the record that is to be registered, and what keeps
/// clean-ups away until it is.
pub(crate) async fn keep(
    core: &Core,
    (session_id, run_id): (&SessionId, Option<&RunId>),
    key: &str,
    content_type: &str,
    content: Box<dyn Read + Send>,
) -> Result<(ArtifactRecord, Registering), Error> {
    let key = ArtifactKey::new(key)?;
    let state_dir = core.parts.state_dir.clone();
    let begin = move || Registering::begin(state_dir.path());
    let held = core.parts.blocking.run(begin).await??;
    let meta = core.put(key, content).await?;
    let record = ArtifactRecord {
        id: ArtifactId::random(),
        session_id: session_id.clone(),
        run_id: run_id.cloned(),
        key: meta.key.into(),
        content_type: content_type.to_owned(),
        byte_size: meta.bytes,
        checksum: meta.blake3.to_string(),
        storage_backend: core.parts.artifacts.kind().to_owned(),
        storage_ref: meta.blake3.to_string(),
        metadata: json!({}),
        created_at: core.parts.now(),
        deleted_at: None,
    };
    Ok((record, held))
}
