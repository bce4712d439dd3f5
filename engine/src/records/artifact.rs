//! The records of artifacts. Each type here is also a JSON document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{ArtifactId, RunId, SessionId};

/// An artifact, as the registry has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ArtifactRecord {
    /// The row.
    pub id: ArtifactId,
    /// The session that it belongs to.
    pub session_id: SessionId,
    /// The run that it belongs to, if any.
    pub run_id: Option<RunId>,
    /// Its key.
    pub key: String,
    /// What it is, such as `text/x-patch`.
    pub content_type: String,
    /// Its size in bytes.
    pub byte_size: u64,
    /// The blake3 of its bytes, in hexadecimal.
    pub checksum: String,
    /// Which kind of store has it: `file`, or `custom` for the host's own.
    pub storage_backend: String,
    /// What the store knows it by.
    pub storage_ref: String,
    /// The host's own.
    pub metadata: serde_json::Value,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it was deleted.
    pub deleted_at: Option<Timestamp>,
}

/// An artifact that an adapter is about to store: see
/// [`RunContext::put_artifact`](crate::RunContext::put_artifact).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ArtifactDraft {
    /// Its key: 1 to 512 bytes without control characters. There is one artifact of a key in a
    /// state directory, whoever stored it.
    pub key: String,
    /// What it is, such as `text/html`.
    pub content_type: String,
    /// The writer's own. Default: empty.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

impl ArtifactDraft {
    /// One without metadata.
    pub fn new(key: impl Into<String>, content_type: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            content_type: content_type.into(),
            metadata: serde_json::Map::new(),
        }
    }

    /// Sets [`ArtifactDraft::metadata`].
    pub fn metadata(mut self, metadata: serde_json::Map<String, serde_json::Value>) -> Self {
        self.metadata = metadata;
        self
    }
}

/// What the artifacts of a session amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionStats {
    /// Artifacts that are not deleted.
    pub artifact_count: u64,
    /// Their bytes.
    pub total_bytes: u64,
}
