//! What a run did, or was about to do, against its policy or its limits.

use serde::{Deserialize, Serialize};
use serde_json::Number;
use stillframe_backends::{ErrorKind, RelPath};

use crate::failure::Failure;
use crate::policy::{PolicySubject, in_brief};

/// What a run did, or was about to do, against its policy or one of its limits.
///
/// Serialised, it is the data of the event `policy_violation`. Of an [`Error`](crate::Error) of the
/// kind [`PolicyViolation`](crate::ErrorKind::PolicyViolation) that a report of usage or an event
/// answers with, it is [`Error::wrapped`](crate::Error::wrapped).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
#[non_exhaustive]
pub struct PolicyViolation {
    /// What was violated.
    pub kind: ViolationKind,
    /// What happened, in one line.
    pub message: String,
    /// What follows.
    pub action: ViolationAction,
    /// The phase of the step that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The iteration of that phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u32>,
    /// The step that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The tool that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// The limit, in the unit of the option.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Number>,
    /// What there was instead, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Number>,
    /// The glob of the paths that must not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// The paths that it is about, sorted: the first hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPath>,
    /// How many paths there are, if they are more than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_paths: Option<u64>,
}

/// What was violated: the policy of the host, or a limit, which has the name of the option in
/// [`RunLimits`](crate::policy::RunLimits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ViolationKind {
    /// The policy forbids it, or the person whom it asked does.
    Denied,
    /// The policy did not answer in time.
    NoAnswer,
    /// The policy panicked.
    Panicked,
    /// The work took too long.
    MaxDuration,
    /// Too many tools were called.
    MaxToolCalls,
    /// Too many tokens were used.
    MaxTokens,
    /// It cost too much.
    MaxCost,
    /// Too many files were changed.
    MaxChangedFiles,
    /// The changed files are too large.
    MaxChangedBytes,
    /// Paths were changed that must not change.
    ForbiddenPaths,
    /// What was changed is not known, so that no limit of changes can be said to be kept.
    ChangesUnknown,
}

/// What follows a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ViolationAction {
    /// It was refused.
    Deny,
    /// The work of the run is cancelled, and the run fails.
    Cancel,
    /// The run fails, though its work was done.
    Fail,
}

impl PolicyViolation {
    pub(crate) fn new(
        kind: ViolationKind,
        action: ViolationAction,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            message: message.into(),
            action,
            phase: None,
            iteration: None,
            step: None,
            tool_name: None,
            limit: None,
            found: None,
            glob: None,
            paths: Vec::new(),
            total_paths: None,
        }
    }

    /// With what it is about.
    pub(crate) fn about(mut self, subject: &PolicySubject) -> Self {
        match subject {
            PolicySubject::Step {
                phase,
                iteration,
                step,
                ..
            } => {
                self.phase = Some(phase.clone());
                self.iteration = Some(*iteration);
                self.step = Some(step.clone());
            }
            PolicySubject::ToolCall { tool_name, .. } => self.tool_name = Some(in_brief(tool_name)),
            PolicySubject::Run | PolicySubject::Usage(_) => {}
        }
        self
    }

    /// What a run says that fails for it.
    pub(crate) fn failure(&self) -> Failure {
        Failure::new(ErrorKind::PolicyViolation.as_str(), self.message.clone())
    }
}
