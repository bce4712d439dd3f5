//! Writing rows again for snapshots that the log has lost.

use std::time::Duration;

use stillframe_backends::{ErrorKind, Operation, Workspace};

use crate::actors::core::Core;
use crate::error::Error;
use crate::workspace::{holdings, turn};

/// How long to wait for the lock of a workspace whose log was lost. An operation that begins there
/// writes the rows at once, and a starting program holds the lock only for a moment.
const RELEARN_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

impl Core {
    /// Writes the rows of a workspace's snapshots again that the log has lost, so that they can be
    /// named. An operation that is at work in the workspace does that itself.
    pub(crate) async fn relearn(&self, workspace: &Workspace) -> Result<(), Error> {
        if !self.parts.state_dir.is_writable() || !workspace.store_path().exists() {
            return Ok(());
        }
        let (parts, asked) = (self.parts.clone(), workspace.clone());
        let unlisted = move || holdings::unlisted(&Operation::unbounded(), &parts, &asked);
        match self.parts.blocking.run(unlisted).await? {
            Ok(unlisted) if unlisted.is_empty() => return Ok(()),
            // The operation that needs that store reports it.
            Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(()),
            unlisted => drop(unlisted?),
        }
        let adopted = turn::work(
            self,
            workspace,
            "recovery",
            RELEARN_LOCK_TIMEOUT,
            // What is missing is adopted before any work.
            |_| Ok(()),
        );
        match adopted.await {
            // A reader gets what the log has. The next operation there writes the rows, or reports
            // what is wrong.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Busy | ErrorKind::Corrupt | ErrorKind::NoSpace
                ) =>
            {
                Ok(())
            }
            adopted => adopted,
        }
    }

    /// As [`Core::relearn`], for every workspace that has a store.
    pub(crate) async fn relearn_all(&self) -> Result<(), Error> {
        let state_dir = self.parts.state_dir.clone();
        let workspaces = move || state_dir.workspaces();
        for workspace in self.parts.blocking.run(workspaces).await?? {
            self.relearn(&workspace).await?;
        }
        Ok(())
    }
}
