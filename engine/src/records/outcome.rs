//! The outcomes of a run and of a comparison. Each type that a host gets is also a JSON document.

use std::fs::File;

use serde::{Deserialize, Serialize};
use stillframe_backends::{BackendKind, Diff, EntryKind, Snapshot};

use crate::failure::Failure;
use crate::id::{RunId, SessionId};
use crate::records::follow_up::FollowUpRecord;
use crate::records::isolated_run::IsolationRecord;
use crate::records::output::AdapterOutput;
use crate::records::question::QuestionRecord;
use crate::records::repositories::SavedRepositories;
use crate::records::restore_document::RestoreDocument;
use crate::records::resumed_work::ResumedWork;
use crate::records::run::RunStatus;
use crate::records::saved_work::SavedWork;
use crate::records::step_record::PhaseRecord;

/// A snapshot that stands for what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TakenSnapshot {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Whether the snapshot existed already, because nothing differs from it. In JSON only if so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
}

/// The outcome of a run. A run that failed is still `Ok`, because the engine itself did not fail.
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
    /// The phases of the run, in the order in which they first began; empty if it has none.
    pub phases: Vec<PhaseRecord>,
    /// The questions of the run, in their order; a run that is
    /// [`WaitingForInput`](crate::RunStatus::WaitingForInput) waits for the open ones.
    pub questions: Vec<QuestionRecord>,
    /// What it waits with, if it is [`AwaitingFollowup`](crate::RunStatus::AwaitingFollowup).
    pub follow_up: Option<FollowUpRecord>,
    /// Where it works, and what it has handed in; `None`: it has no
    /// [worktree of its own](crate::RunOptions::isolated).
    pub isolation: Option<IsolationRecord>,
    /// Whether this is the stored outcome and nothing was run, because the run had ended before the
    /// call or still waits for an answer.
    pub is_stored: bool,
}

/// What became of the work of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunResult {
    /// `completed`, `failed`, `timeout` or `cancelled`; `interrupted` if the engine was shut down
    /// meanwhile and the run can be resumed; `waiting_for_input` if it is parked until somebody
    /// answers; `awaiting_review` if it has handed something in.
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
    /// Why the capture after the work, the comparison, or storing the patch failed.
    pub error: Option<Failure>,
    /// How the workspace came to the branch of its task; `None`: the run is of none, or went on
    /// with what an engine had begun.
    pub resumed: Option<ResumedWork>,
    /// What became of the work on that branch; `None`: the run is of none.
    pub saved: Option<SavedWork>,
    /// What became of the work in all of its repositories; `None`: it worked in no
    /// [further one](crate::RunOptions::repository), or its work is not to be saved.
    pub repositories: Option<SavedRepositories>,
}

/// The JSON document of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Why the work did not complete; `None`: it did. A failure of the engine after the work is in
    /// [`WorkspaceDocument::error`]; neither failure hides the other.
    pub error: Option<Failure>,
    /// `None`: the run had no workspace.
    pub workspace: Option<WorkspaceDocument>,
    /// The phases of the run; left out if it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseRecord>,
    /// What the run has asked; left out if nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<QuestionRecord>,
    /// What the run waits with, if it waits for new input; left out if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_up: Option<FollowUpRecord>,
    /// Where the run works that has a worktree of its own, and what it has handed in; left out if
    /// it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationRecord>,
    /// Whether the run had ended before it was asked for; left out if it had not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stored: bool,
}

/// The part of a run's JSON document that is about the workspace.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// The failure of the engine after the work; left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// How the workspace came to the branch of its task; left out if the run is of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<ResumedWork>,
    /// What became of the work on that branch; left out if the run is of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedWork>,
    /// What became of the work in all of its repositories; left out if it worked in no further one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<SavedRepositories>,
}

impl RunOutcome {
    /// The JSON document of this run.
    pub fn document(&self) -> RunDocument {
        let workspace = &self.workspace;
        RunDocument {
            run_id: self.run_id.clone(),
            session_id: self.session_id.clone(),
            status: self.run.status,
            exit_code: self.run.exit_code,
            error: self.run.error.clone(),
            workspace: workspace.backend.map(|backend| WorkspaceDocument {
                backend: Some(backend),
                before_snapshot: workspace.before_snapshot.clone(),
                after_snapshot: workspace.after_snapshot.clone(),
                diff: workspace.diff.clone(),
                rollback: workspace.rollback.clone(),
                error: workspace.error.clone(),
                resumed: workspace.resumed.clone(),
                saved: workspace.saved.clone(),
                repositories: workspace.repositories.clone(),
            }),
            phases: self.phases.clone(),
            questions: self.questions.clone(),
            follow_up: self.follow_up.clone(),
            isolation: self.isolation.clone(),
            is_stored: self.is_stored,
        }
    }
}

impl Serialize for RunOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(serializer)
    }
}

/// What a snapshot has at a path.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoredFile {
    /// What it is.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// The bytes of the file, or the text of the link, in a file without a name, at its start.
    pub content: File,
}

/// Two snapshots compared, with the whole patch.
#[derive(Debug)]
#[non_exhaustive]
pub struct DiffOutcome {
    /// The comparison.
    pub diff: Diff,
    /// The whole patch, whatever its size, in a file without a name, at its start; `None` if no
    /// patch was asked for, or none can be made of what changed ([`Diff::no_patch`] says why).
    pub patch: Option<File>,
}
