//! Phases and steps as a host gets them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::SnapshotId;

use crate::failure::Failure;
use crate::id::StepId;
use crate::records::step::{PhaseRow, StepRow, StepStatus};
use crate::records::task::TaskRecord;

/// A phase of a run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PhaseRecord {
    /// Its name.
    pub name: String,
    /// Which time it is, from 0.
    pub iteration: u32,
    /// Where it stands.
    pub status: StepStatus,
    /// When it first began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// How long engines were at work on it, in milliseconds, by a monotonic clock; the time between
    /// an engine's death and the next one's beginning is not in it, nor what the dead one took.
    pub duration_ms: Option<u64>,
    /// Its steps, in the order in which they first began.
    pub steps: Vec<StepRecord>,
}

/// A step of a run, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StepRecord {
    /// The step.
    #[serde(rename = "step_id")]
    pub id: StepId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: StepStatus,
    /// How often it was begun.
    pub attempt: u32,
    /// The snapshot before its last attempt.
    pub snapshot_before: Option<SnapshotId>,
    /// What its last attempt left.
    pub snapshot_after: Option<SnapshotId>,
    /// The commit that it made.
    pub commit_created: Option<String>,
    /// What it returned.
    pub result: serde_json::Value,
    /// Why its last attempt did not complete.
    pub error: Option<Failure>,
    /// When its last attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// How long its last attempt took, in milliseconds, by a monotonic clock; `None` if that was
    /// cut off.
    pub duration_ms: Option<u64>,
    /// The named parts of its last attempt, in the order in which they first began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRecord>,
}

impl From<PhaseRow> for PhaseRecord {
    fn from(row: PhaseRow) -> Self {
        Self {
            name: row.key.phase,
            iteration: row.key.iteration,
            status: row.status,
            started_at: row.started_at,
            completed_at: row.completed_at,
            duration_ms: row.duration_ms,
            steps: Vec::new(),
        }
    }
}

impl From<StepRow> for StepRecord {
    fn from(row: StepRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            status: row.status,
            attempt: row.attempt,
            snapshot_before: row.snapshot_before,
            snapshot_after: row.snapshot_after,
            commit_created: row.commit_created,
            result: row.result.unwrap_or_default(),
            error: row.error,
            started_at: row.started_at,
            completed_at: row.completed_at,
            duration_ms: row.duration_ms,
            tasks: Vec::new(),
        }
    }
}
