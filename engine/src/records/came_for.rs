//! Why the work of a run is saved before the run moves on. Values.

use serde::{Deserialize, Serialize};

use crate::records::run::RunStatus;

/// Why the work of a run is saved before the run moves on, as it is kept meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CameFor {
    /// The run ends: it is [`Persisting`](RunStatus::Persisting).
    End(EndsAs),
    /// The run waits for a person: it is [`Blocked`](RunStatus::Blocked), then
    /// [`Checkpointing`](RunStatus::Checkpointing).
    Block(Box<Block>),
}

/// What a run ends as once its work is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EndsAs {
    Completed,
    Failed,
    Timeout,
    Cancelled,
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

impl EndsAs {
    pub(crate) const ALL: [Self; 4] = [
        Self::Completed,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
    ];

    /// The status that the run ends with.
    pub(crate) fn status(self) -> RunStatus {
        match self {
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Timeout => RunStatus::Timeout,
            Self::Cancelled => RunStatus::Cancelled,
        }
    }

    /// The end of this name, which is that of its status.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|one| one.status().as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_as_each_status_that_is_an_end_and_no_other() {
        for status in RunStatus::ALL {
            let ends = EndsAs::parse(status.as_str());
            assert_eq!(ends.is_some(), status.is_terminal(), "{status}");
            assert_eq!(ends.map(EndsAs::status).unwrap_or(status), status);
        }
    }
}
