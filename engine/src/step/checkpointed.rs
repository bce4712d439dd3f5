//! What became of a run's progress that its adapter wanted to be saved.

use crate::failure::Failure;
use crate::records::saved_work::SavedWork;

/// What became of a run's progress that its adapter wanted to be saved. None of it fails the run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checkpointed {
    /// Nothing was done: the last one was tried less than
    /// [the interval](crate::tasks::WorkBranchOptions::checkpoint_interval) ago, or there is none.
    NotDue,
    /// The workspace is as the last checkpoint has it that this run's engine has seen to be saved.
    /// Nothing was made, and the remote was not asked.
    Unchanged,
    /// The store has it, and this says whether the remote has it too, and why not.
    Made(Box<SavedWork>),
    /// Nothing was made, for this reason.
    NotMade(Failure),
    /// The run works in several repositories, and this became of each, the run's own first, with
    /// its directory, printable. [`SavedWork::carried`] says of each whether its remote has work of
    /// the run.
    Each(Vec<(String, Checkpointed)>),
}
