//! The right to write for a run.

use crate::id::RunId;
use crate::state::change::Change;

/// The right to write for a run, until another engine takes the run over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) run_id: RunId,
    pub(crate) epoch: u64,
}

impl Hold {
    /// What is written before everything else, so that nothing is if the run was taken over.
    pub(crate) fn fence(&self) -> Change {
        Change::Fence {
            run_id: self.run_id.clone(),
            epoch: self.epoch,
        }
    }
}
