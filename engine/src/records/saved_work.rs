//! What became of a task's work: the answer to a request to save it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{Omission, RelPath, SnapshotId};

use crate::id::RunId;
use crate::records::follow_up::FollowUpRecord;

/// What became of a task's work. The store has it in any case, as `snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SavedWork {
    /// The task, as the host calls it.
    pub task: String,
    /// Its namespace, as slugs. In JSON only if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The task's branch, without `refs/heads/`.
    pub branch: String,
    /// The remote, an address without credentials; null: there is none.
    pub remote: Option<String>,
    /// Where the work is.
    pub state: SavedState,
    /// The full id of the commit that has the work; null: there is nothing to commit.
    pub commit: Option<String>,
    /// Whether the commit was made for this request.
    pub is_new: bool,
    /// What was captured.
    pub snapshot: SnapshotId,
    /// Whether the remote is proven to have work of the run, by this checkpoint or an earlier one:
    /// a commit beyond the one that the run began at. Outside of runs: whether it was proven to
    /// have the commit that was made. In JSON only if so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub carried: bool,
    /// The branch beside the task's that has the work, because the task's has another history. In
    /// JSON only if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side_branch: Option<String>,
    /// Where the branch is, if somebody has gone on from the commit. In JSON only if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advanced_to: Option<String>,
    /// Why the work is not on the task's branch, such as `AuthDenied`. In JSON only if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The same in one line. In JSON only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The ref of the store that keeps the commit; null: there is no commit.
    pub kept_as: Option<String>,
    /// The secret values that a push would have revealed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<FoundSecret>,
    /// Changed files that are in the commit as HEAD has them, because a filter or an encoding
    /// applies to them that takes a program. The snapshot has their bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconverted_paths: Vec<RelPath>,
    /// What was not captured for a reason that is no rule; in the commit it is as HEAD has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Omission>,
    /// Submodules that are checked out at another commit than the one that is committed, and
    /// repositories that are no submodules, of which nothing is committed. The snapshot has their
    /// files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<RelPath>,
    /// The branch that the remote's HEAD names, as far as it has said so.
    #[serde(skip)]
    pub(crate) default_branch: Option<String>,
}

/// Where a task's work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SavedState {
    /// It was sent, and the task's branch is proven to have it.
    Pushed,
    /// Others had gone on with the task's branch. It was merged with what they did, and the branch
    /// is proven to have the merge, which is the commit. The workspace has their part once the task
    /// is resumed.
    Recovered,
    /// The branch is proven to have had it before; without a remote: there is nothing to commit.
    NoChanges,
    /// It is in the store, and there is no remote.
    RecordedOnly,
    /// The task's branch has a history of its own, which stays. A branch beside it is proven to
    /// have the work.
    PushedBeside,
    /// It is in the store, and not proven to be on the remote.
    NotSaved,
}

/// A secret value that a push would have revealed. The value is not in here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FoundSecret {
    /// The name of the rule.
    pub rule: String,
    /// The file, from the top of the work tree; `.`: the commit's own text.
    pub path: RelPath,
    /// The line, from 1; 0: the name of the file.
    pub line: u64,
    /// The commit that adds it.
    pub commit: String,
    /// Tells the value from others.
    pub fingerprint: String,
}

/// A task that has a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WorkTaskRecord {
    /// The task, as the host calls it.
    pub task: String,
    /// Its namespace, as slugs; null: it has none.
    pub namespace: Option<String>,
    /// Its branch, without `refs/heads/`. It was computed once.
    pub branch: String,
    /// The remote, an address without credentials; null: there is none.
    pub remote: Option<String>,
    /// Where it stands: `open`, `running`, `awaiting_followup`, `completed` or `failed`, as its
    /// last run has left it.
    pub status: String,
    /// The run that works on it, or waits for input; null: none does.
    pub run_id: Option<RunId>,
    /// What it waits with, if it does; else null.
    pub follow_up: Option<FollowUpRecord>,
    /// The newest input that it has consumed; 0: none.
    pub input_cursor: u64,
    /// How often in a row its work could not be saved.
    pub failures_in_a_row: u32,
    /// Whether a person should look, because that was too often.
    pub flagged: bool,
    /// Why its last run failed, or its work was not saved when that was last tried: one line; null:
    /// neither.
    pub error: Option<String>,
    /// What kind of trouble ended its last run, as far as that is known: `agent_error` (what worked
    /// on it failed), `policy_block`, `forge_error`, `timeout` or `unknown`; null: none did.
    pub last_failure_class: Option<String>,
    /// How often the same work could not be sent for reasons that may pass.
    pub retry_count: u32,
    /// When it is sent again by an engine that is there then, without being asked: after 30 and 60
    /// seconds; null: with the next checkpoint.
    pub next_retry_at: Option<Timestamp>,
    /// Its last checkpoint; null: there is none.
    pub last_checkpoint: Option<CheckpointRecord>,
    /// When it was first heard of.
    pub created_at: Timestamp,
    /// When its row was last changed.
    pub updated_at: Timestamp,
}

/// A commit that has a task's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CheckpointRecord {
    /// Its number among those of the task in this repository, from 1 on.
    pub number: u64,
    /// The repository whose work it is: the id of the workspace.
    pub workspace_id: String,
    /// Why it was made: `wip`, `periodic` or `blocked`.
    pub kind: String,
    /// The run whose work it has; null: it was made outside of runs.
    pub run_id: Option<RunId>,
    /// Its full id.
    pub commit: String,
    /// Where it stands: `made` (the store has it), `sent` (the remote said that it took it),
    /// `proven` (the remote has shown it) or `refused` (it may not be sent).
    pub status: String,
    /// The branch that it is proven to be on; null: on none.
    pub branch: Option<String>,
    /// Where that branch was, if somebody had gone on from the commit.
    pub advanced_to: Option<String>,
    /// Why it is not on the task's branch, such as `AuthDenied`.
    pub failure: Option<String>,
    /// The same in one line.
    pub error: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
}
