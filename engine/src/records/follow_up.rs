//! Follow-ups: what a blocked task waits with, and the input that it goes on with.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::ErrorKind;

use crate::id::WorkTaskId;

/// Why a task waits, where its adapter says no more.
pub(crate) const DEFAULT_WAITING_REASON: &str = "recoverable_blocked";

/// The longest text of an input, in bytes: a command gets it in its environment.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// What a blocked task goes on from, as it is kept: one row for each such task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FollowUpRow {
    pub(crate) task_id: WorkTaskId,
    /// What the host's flow is called that goes on with it.
    pub(crate) flow: String,
    /// The branch that the checkpoint is on.
    pub(crate) branch: String,
    /// What the host needs to go on.
    pub(crate) context: serde_json::Value,
    pub(crate) waiting_reason: String,
    /// The commit that was proven on the branch.
    pub(crate) last_checkpoint: String,
    pub(crate) updated_at: Timestamp,
}

/// What a blocked task waits with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FollowUpRecord {
    /// What the host calls the flow that goes on with it; empty: it has one.
    pub flow: String,
    /// The branch that has its work, without `refs/heads/`.
    pub branch: String,
    /// The commit that was proven to be there, by its full id.
    pub last_checkpoint: String,
    /// Why it waits.
    pub waiting_reason: String,
    /// What the host needs to go on.
    pub context: serde_json::Value,
    /// Since when it waits.
    pub updated_at: Timestamp,
}

impl From<FollowUpRow> for FollowUpRecord {
    fn from(row: FollowUpRow) -> Self {
        Self {
            flow: row.flow,
            branch: row.branch,
            last_checkpoint: row.last_checkpoint,
            waiting_reason: row.waiting_reason,
            context: row.context,
            updated_at: row.updated_at,
        }
    }
}

/// New input for a blocked task, such as a comment that somebody wrote.
///
/// Whoever looks for it says whose it is: see
/// [`Engine::claim_follow_up`](crate::Engine::claim_follow_up).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowUpInput {
    /// Its number, from 1 on. A task takes only input with a higher one than it has consumed.
    pub id: u64,
    /// What was written: at most 65 536 bytes without NUL. It is kept with the run, without [secret
    /// values](crate::secrets).
    pub text: String,
    /// Whether its author may go on with the task. Default: true.
    pub is_of_allowed_author: bool,
    /// Whether a bot wrote it. Default: false.
    pub is_of_bot: bool,
}

impl FollowUpInput {
    /// Input of somebody who may go on with the task.
    pub fn new(id: u64, text: impl Into<String>) -> Self {
        Self {
            id,
            text: text.into(),
            is_of_allowed_author: true,
            is_of_bot: false,
        }
    }

    stillframe_model::setters! {
        is_of_allowed_author: bool,
        is_of_bot: bool,
    }

    /// Refuses a text that no command could get.
    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        let id = self.id;
        match &self.text {
            text if text.len() > MAX_TEXT_BYTES => {
                let bytes = text.len();
                Err(InvalidInput::TooLong { id, bytes })
            }
            text if text.contains('\0') => Err(InvalidInput::Nul { id }),
            _ => Ok(()),
        }
    }
}

/// An input that no command could get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidInput {
    #[error(
        "the text of input {id} has {bytes} bytes, and {MAX_TEXT_BYTES} is the limit; nothing was changed"
    )]
    TooLong { id: u64, bytes: usize },
    #[error("the text of input {id} has a NUL; nothing was changed")]
    Nul { id: u64 },
}

impl InvalidInput {
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::TooLong { .. } => ErrorKind::LimitExceeded,
            Self::Nul { .. } => ErrorKind::InvalidOptions,
        }
    }
}
