//! Why the work of a run is saved before the run moves on. Values.

use crate::records::block::Block;
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
