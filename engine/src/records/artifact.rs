//! The records of artifacts. Each type here is also a JSON document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{ArtifactId, RunId, SessionId};

/// An artifact, as the registry has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// What the artifacts of a session amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionStats {
    /// Artifacts that are not deleted.
    pub artifact_count: u64,
    /// Their bytes.
    pub total_bytes: u64,
}
