//! What became of what a host asked for. Each type here is also a JSON document.

use std::fs::File;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{
    BackendKind, Diff, PlanId, Problem, RelPath, Skipped, Snapshot, SnapshotId,
};

use crate::adapter::AdapterOutput;
use crate::id::{ArtifactId, RunId, SessionId};
use crate::run::RunStatus;

/// Why something failed, in a form that can be kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The name of an [`ErrorKind`](stillframe_backends::ErrorKind), or for the work of a run:
    /// `Failed`, `NotExecutable`, `Panicked`.
    pub kind: String,
    /// One line.
    pub message: String,
}

impl Failure {
    /// The kind of work that failed for reasons of its own.
    pub const FAILED: &str = "Failed";

    /// A failure of this kind.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
        }
    }
}

impl From<&crate::error::Error> for Failure {
    fn from(error: &crate::error::Error) -> Self {
        Self::new(error.kind().as_str(), error.chain())
    }
}

/// What became of a run. A run that failed is still `Ok`: the engine did its part.
///
/// Serialised, it is the document that `stillframe run --json` prints: see [`RunDocument`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunOutcome {
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// The adapter's own result, whatever happened to the workspace.
    pub run: RunResult,
    /// What the engine saw and did, whatever happened to the run.
    pub workspace: WorkspaceOutcome,
}

/// What became of the work of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunResult {
    /// `completed`, `failed`, `timeout` or `cancelled`.
    pub status: RunStatus,
    /// The exit code of a command; `None` for other adapters, unless they gave one.
    pub exit_code: Option<i32>,
    /// What the adapter returned; a failed command has an output too.
    pub output: Option<AdapterOutput>,
    /// Why it did not complete.
    pub error: Option<Failure>,
}

/// What the engine saw and did around the work of a run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WorkspaceOutcome {
    /// Who captured the workspace; `None`: the run had no workspace.
    pub backend: Option<BackendKind>,
    /// The workspace before the work.
    pub before_snapshot: Option<Snapshot>,
    /// The workspace after it; `None` if the capture failed.
    pub after_snapshot: Option<Snapshot>,
    /// What changed; `None` if it could not be computed.
    pub diff: Option<Diff>,
    /// The rollback; `None` if none was asked for or needed.
    pub rollback: Option<RestoreDocument>,
    /// Why the capture after the work, the comparison, or the keeping of the patch failed.
    pub error: Option<Failure>,
}

/// The JSON document of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunDocument {
    /// The run.
    pub run_id: RunId,
    /// The session.
    pub session_id: SessionId,
    /// `completed`, `failed`, `timeout` or `cancelled`.
    pub status: RunStatus,
    /// The exit code of a command.
    pub exit_code: Option<i32>,
    /// Why the work did not complete, or else what the engine could not do after it. Where the
    /// work ended with an exit code, that says it all, and the failure of the engine is here.
    pub error: Option<Failure>,
    /// `None`: the run had no workspace.
    pub workspace: Option<WorkspaceDocument>,
}

/// The part of a run's JSON document that is about the workspace.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkspaceDocument {
    /// Who captured it.
    pub backend: Option<BackendKind>,
    /// The workspace before the work, in full.
    pub before_snapshot: Option<Snapshot>,
    /// The workspace after the work, in full.
    pub after_snapshot: Option<Snapshot>,
    /// What changed.
    pub diff: Option<Diff>,
    /// The rollback, if there was one.
    pub rollback: Option<RestoreDocument>,
    /// What the engine could not do after the work; left out if there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl RunOutcome {
    /// The JSON document of this run.
    pub fn document(&self) -> RunDocument {
        let workspace = &self.workspace;
        // Neither failure may hide the other. An exit code is not hidden by an error beside it.
        let is_told_by_code = |failure: &Failure| {
            failure.kind == Failure::FAILED && self.run.exit_code.is_some_and(|code| code != 0)
        };
        let error = match (&self.run.error, &workspace.error) {
            (Some(own), Some(engine)) if is_told_by_code(own) => Some(engine),
            (own, engine) => own.as_ref().or(engine.as_ref()),
        };
        RunDocument {
            run_id: self.run_id.clone(),
            session_id: self.session_id.clone(),
            status: self.run.status,
            exit_code: self.run.exit_code,
            error: error.cloned(),
            workspace: workspace.backend.map(|backend| WorkspaceDocument {
                backend: Some(backend),
                before_snapshot: workspace.before_snapshot.clone(),
                after_snapshot: workspace.after_snapshot.clone(),
                diff: workspace.diff.clone(),
                rollback: workspace.rollback.clone(),
                error: workspace.error.clone(),
            }),
        }
    }
}

impl Serialize for RunOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(serializer)
    }
}

/// What became of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RestoreStatus {
    /// The files are as the goal wants them. An error beside it concerns the repository alone.
    Completed,
    /// Nothing was touched.
    Refused,
    /// It stopped on the way; recovery finishes it.
    Failed,
}

/// What a restore, a rollback or an undo did: its outcome and its JSON document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RestoreDocument {
    /// Whether it was done.
    pub status: RestoreStatus,
    /// The plan that was carried out. Left out of the document of a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_id: Option<PlanId>,
    /// What was there before; restoring it is the undo.
    pub guard_snapshot: Option<SnapshotId>,
    /// The full name of the tag that keeps the old branch tip, if a branch moved.
    pub safety_tag: Option<String>,
    /// Every path that was written or removed, sorted.
    pub restored: Vec<RelPath>,
    /// Ignored paths that came since and were left alone, sorted; a directory counts as one.
    pub leftover_ignored: Vec<RelPath>,
    /// Paths that differ from the goal and were left as they are, sorted.
    pub skipped: Vec<Skipped>,
    /// Why it was refused or failed, or what of the repository could not be put back.
    pub error: Option<Failure>,
}

/// Two snapshots compared, with the whole patch.
#[derive(Debug)]
#[non_exhaustive]
pub struct DiffOutcome {
    /// The comparison.
    pub diff: Diff,
    /// The whole patch, whatever its size, in a file without a name, at its start; `None` if no
    /// patch was asked for.
    pub patch: Option<File>,
}

/// What `undo` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UndoOutcome {
    /// What was taken back.
    pub undone: Undone,
    /// What that did.
    #[serde(flatten)]
    pub restore: RestoreDocument,
}

/// The operation that an undo took back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Undone {
    /// `run`, `restore` or `undo`.
    pub operation: OperationKind,
    /// The run, if it was one.
    pub run_id: Option<RunId>,
    /// The snapshot of the state that was gone back to.
    pub before: SnapshotId,
    /// The snapshot of the state after the operation.
    pub after: SnapshotId,
}

/// What kind of operation changed a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperationKind {
    /// The work of a run.
    Run,
    /// A restore by hand.
    Restore,
    /// Another undo.
    Undo,
}

impl OperationKind {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Restore => "restore",
            Self::Undo => "undo",
        }
    }
}

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

/// Whether everything that is kept is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyOutcome {
    /// Every snapshot of the workspace, newest first.
    pub snapshots: Vec<SnapshotVerdict>,
    /// The artifacts that are missing or damaged, by key.
    pub artifacts: Vec<ArtifactVerdict>,
}

impl VerifyOutcome {
    /// Whether there is nothing wrong.
    pub fn is_sound(&self) -> bool {
        self.artifacts.is_empty() && self.snapshots.iter().all(|s| s.problems.is_empty())
    }
}

/// Whether a snapshot can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SnapshotVerdict {
    /// The snapshot.
    pub id: SnapshotId,
    /// Who captured it.
    pub backend: BackendKind,
    /// What is missing or wrong; empty: it is whole.
    pub problems: Vec<Problem>,
    /// It was taken without content: it can be compared, and not restored. That is no damage.
    pub without_content: bool,
}

impl SnapshotVerdict {
    /// Whether it can be restored as it was taken.
    pub fn is_restorable(&self) -> bool {
        self.problems.is_empty() && !self.without_content
    }
}

/// What is wrong with an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArtifactVerdict {
    /// The artifact.
    pub key: String,
    /// What is wrong with it.
    pub error: Failure,
}

/// What a clean-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GcOutcome {
    /// The snapshots that were forgotten, oldest first.
    pub forgotten: Vec<SnapshotId>,
    /// The keys of the artifacts that were removed.
    pub artifacts_removed: Vec<String>,
    /// The bytes that this freed.
    pub freed_bytes: u64,
    /// The bytes that the store and the artifacts occupy afterwards.
    pub used_bytes: u64,
    /// How many snapshots of the workspace are left.
    pub kept: u64,
}
