//! Why the work of a run is saved before the run moves on. Values.

use serde::{Deserialize, Serialize};

use crate::records::run::EndsAs;

/// Why the work of a run is saved before the run moves on, as it is kept meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CameFor {
    /// The run ends: it is [`Persisting`](RunStatus::Persisting).
    End(EndsAs),
    /// The run waits for a person: it is [`Blocked`](RunStatus::Blocked), then
    /// [`Checkpointing`](RunStatus::Checkpointing).
    Block(Box<Block>),
}

/// What an adapter said of its block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// What the host's flow is called that goes on with the task.
    pub(crate) flow: String,
    /// The branch that the adapter believes to be on.
    pub(crate) branch: Option<String>,
    pub(crate) reason: Option<String>,
    /// What the host needs to go on.
    pub(crate) context: serde_json::Value,
}
