//! Sessions, runs and artifacts as they are kept. Each type here is also a JSON document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::id::{ArtifactId, RunId, SessionId};
use crate::run::RunStatus;
use crate::state::{RunRow, SessionRow};

/// A session, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionRecord {
    /// The session.
    pub id: SessionId,
    /// Where it stands.
    pub status: crate::session::SessionStatus,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// A run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// The run.
    #[serde(rename = "run_id")]
    pub id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Where it stands.
    pub status: RunStatus,
    /// What it was for.
    pub input: String,
    /// The directory of its workspace, if it has one, printable.
    pub workspace_path: Option<String>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its work began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The exit code of a command.
    pub exit_code: Option<i32>,
    /// Why it did not complete.
    pub error: Option<Failure>,
    /// The options that it was given, the defaults filled in.
    pub options: serde_json::Value,
    /// What the adapter returned, without the streams of a command.
    pub output: serde_json::Value,
    /// `{backend, before_ref, after_ref, diff, patch_ref, patch_bytes, …}`; null without a workspace.
    pub workspace: serde_json::Value,
}

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
pub struct SessionStats {
    /// Artifacts that are not deleted.
    pub artifact_count: u64,
    /// Their bytes.
    pub total_bytes: u64,
}

impl From<SessionRow> for SessionRecord {
    fn from(row: SessionRow) -> Self {
        Self {
            id: row.id,
            status: row.status,
            created_at: row.created_at,
            ended_at: row.ended_at,
        }
    }
}

impl From<RunRow> for RunRecord {
    fn from(row: RunRow) -> Self {
        Self {
            id: row.id,
            session_id: row.session_id,
            status: row.status,
            input: row.input,
            workspace_path: row
                .workspace
                .as_ref()
                .map(|workspace| stillframe_backends::printable(&workspace.path)),
            created_at: row.created_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            exit_code: row.exit_code,
            error: row.error,
            options: row.options,
            output: row.output,
            workspace: row.summary,
        }
    }
}
