//! Work that no remote is proven to have.

use super::Engine;
use crate::error::Error;
use crate::options::WorkspaceOptions;
use crate::options::quarantine_scope::QuarantineScope;
use crate::records::quarantine::QuarantinedWork;
use crate::saving::quarantine;

impl Engine {
    /// The work of tasks that stores keep and that no remote is proven to have, in the order in
    /// which the tasks were first heard of: what was refused, what could not be sent, and what was
    /// sent and never shown. What is being sent at this moment is among it. Nobody is asked
    /// anything.
    ///
    /// [`SessionManager::restore_quarantined`](crate::SessionManager::restore_quarantined) brings
    /// it back to the files, [`SessionManager::checkpoint`](crate::SessionManager::checkpoint)
    /// sends what may be sent, and [`Engine::discard_quarantined`] alone lets go of it.
    pub async fn quarantine(&self, scope: QuarantineScope) -> Result<Vec<QuarantinedWork>, Error> {
        let parts = self.core.parts.clone();
        let list = move || quarantine::listed(&parts, scope);
        self.core.parts.blocking.run(list).await?
    }

    /// Lets go of work in the quarantine of a workspace, and of the checkpoints that it alone goes
    /// on from: no later checkpoint is made on it, unless HEAD goes on from it, and [`Engine::gc`]
    /// frees what only it has. Snapshots with the same content stay. `id`: as
    /// [`QuarantinedWork::id`], or more digits.
    ///
    /// The remote is asked first, for 15 seconds if it does not answer: whoever sent it may have
    /// died before that was on record. What the remote has is proven from then on, and stays.
    ///
    /// One that is killed on the way has let go of it, or not; the content is freed in any case
    /// once it has.
    ///
    /// # Errors
    ///
    /// Nothing was let go of. `NotFound`: no such work is in the quarantine of this workspace; that
    /// of another is named. `Conflict`: the remote has it, or more work goes on from it by now.
    /// `Unavailable`: the remote cannot be asked, and it is not on record that the last try to send
    /// it failed. `InvalidOptions`: it is no id, or several begin so. `Busy`: somebody saves the
    /// task's work, or uses the workspace.
    pub async fn discard_quarantined(
        &self,
        workspace: &WorkspaceOptions,
        id: &str,
    ) -> Result<QuarantinedWork, Error> {
        let opened = self.core.open_known(workspace).await?;
        let (core, id) = (self.core.clone(), id.to_owned());
        self.core
            .operation(async move { quarantine::discard(&core, opened, id).await })
            .await
    }
}
