//! The journal of a restore that was interrupted, if it is damaged so that nobody can finish that.

use crate::git::rollback::RepositoryPlan;
use crate::problem::Problem;
use crate::store_error::StoreError;
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::journal;

impl Workspace {
    /// What is wrong with the journal of a restore that was interrupted, if nobody can finish it by that.
    /// [`LockedWorkspace::give_up_damaged_journal`] is the way out.
    pub fn damaged_journal(&self) -> Result<Option<Problem>, StoreError> {
        journal::problem(self.store_path(), RepositoryPlan::check)
    }
}

impl LockedWorkspace {
    /// Gives up the journal of a restore that was interrupted, if it is damaged so that nobody can finish
    /// it; answers with what is wrong with it. Files that the restore had not come to stay as they are,
    /// what it displaced stays beside the store for as long as its guard, and the guard leads back.
    pub fn give_up_damaged_journal(&mut self) -> Result<Option<Problem>, StoreError> {
        journal::give_up(self.store_path(), RepositoryPlan::check)
    }
}
