//! The records of tasks: named parts of a step's work, only for observers.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::events::data::{Failed, TaskMoved};
use crate::failure::Failure;
use crate::id::{RunId, StepId};
use crate::records::step::{StepStatus, milliseconds};

/// A part of a step's work, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskRow {
    pub(crate) run_id: RunId,
    pub(crate) step_id: StepId,
    pub(crate) name: String,
    /// The attempt at the step that it is a part of.
    pub(crate) attempt: u32,
    pub(crate) status: StepStatus,
    pub(crate) error: Option<Failure>,
    pub(crate) started_at: Timestamp,
    pub(crate) completed_at: Option<Timestamp>,
    pub(crate) duration_ms: Option<u64>,
}

impl TaskRow {
    /// A task that ended so. `error`: why it did not end well.
    pub(crate) fn ended(
        self,
        status: StepStatus,
        error: Option<Failure>,
        at: Timestamp,
        worked: Duration,
    ) -> Self {
        Self {
            status,
            error,
            completed_at: Some(at),
            duration_ms: Some(milliseconds(worked)),
            ..self
        }
    }

    /// What an event about it says.
    pub(crate) fn said(&self) -> TaskMoved<'_> {
        TaskMoved {
            step_id: &self.step_id,
            task: &self.name,
            attempt: self.attempt,
            duration_ms: self.duration_ms,
            failed: self.error.as_ref().map(Failed::from),
        }
    }
}

/// A part of a step's work, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TaskRecord {
    /// Its name.
    pub name: String,
    /// `running`, `completed` or `failed`; `interrupted`: its step ended before it did.
    pub status: StepStatus,
    /// Why it failed.
    pub error: Option<Failure>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// How long it took, in milliseconds, by a monotonic clock.
    pub duration_ms: Option<u64>,
}

impl TaskRecord {
    /// The record of a task in a step that stands at `step`.
    pub(crate) fn of(row: TaskRow, step: StepStatus) -> Self {
        let is_cut_off = row.status == StepStatus::Running && step != StepStatus::Running;
        Self {
            name: row.name,
            status: match is_cut_off {
                true => StepStatus::Interrupted,
                false => row.status,
            },
            error: row.error,
            started_at: row.started_at,
            completed_at: row.completed_at,
            duration_ms: row.duration_ms,
        }
    }
}
