//! Tasks that have branches.

use stillframe_backends::AllowedSecret;

use super::Engine;
use crate::error::Error;
use crate::options::WorkspaceOptions;
use crate::records::allowed_finding::AllowedFinding;
use crate::records::saved_work::{CheckpointRecord, WorkTaskRecord};
use crate::saving::recorded;
use crate::state::branch_change::BranchChange;
use crate::state::change::Change;

impl Engine {
    /// The tasks that have a branch, in the order in which they were first heard of.
    pub async fn tasks(&self) -> Result<Vec<WorkTaskRecord>, Error> {
        self.read(|store| {
            let rows = store.work_tasks()?.into_iter();
            let told = rows.map(|row| {
                let checkpoints = store.checkpoints(&row.id)?;
                Ok(recorded::task(row, &checkpoints))
            });
            told.collect()
        })
        .await
    }

    /// A task with all of its checkpoints, by what its host calls it, with its namespace if it has
    /// one: `42`, or `platform/project/42`. Where its work went to several remotes, it is the one that
    /// was last saved to.
    ///
    /// # Errors
    ///
    /// `NotFound`: no work of such a task was saved.
    pub async fn find_task(
        &self,
        name: &str,
    ) -> Result<(WorkTaskRecord, Vec<CheckpointRecord>), Error> {
        let name = name.to_owned();
        self.core
            .parts
            .reader
            .read_with(move |store| {
                let rows = store.work_tasks()?.into_iter();
                let found = rows.filter(|row| row.full_name() == name);
                let Some(row) = found.max_by_key(|row| row.updated_at) else {
                    return Err(Error::not_found(format!(
                        "there is no task {name:?}: no work of it was saved"
                    )));
                };
                let checkpoints = store.checkpoints(&row.id)?;
                let told = checkpoints.iter().map(recorded::checkpoint).collect();
                Ok((recorded::task(row, &checkpoints), told))
            })
            .await
    }

    /// Lets checkpoints of a workspace be sent although `finding` is in them: the user knows that it
    /// is no secret. It is for the user alone to say so.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: there is no such rule.
    pub async fn allow_secret(
        &self,
        workspace: &WorkspaceOptions,
        finding: AllowedSecret,
    ) -> Result<(), Error> {
        let parts = &self.core.parts;
        let mut rules = parts.writer.secrets().names();
        if !rules.any(|name| name == finding.rule) {
            return Err(Error::invalid_options(format!(
                "there is no rule {:?} by which secret values are found",
                finding.rule
            )));
        }
        let opened = self.core.open_known(workspace).await?;
        let row = AllowedFinding {
            repository: opened.workspace.id().to_owned(),
            rule: finding.rule,
            path: finding.path,
            fingerprint: finding.fingerprint,
            allowed_at: parts.now(),
        };
        let allow = Change::Branch(Box::new(BranchChange::AllowFinding(row)));
        parts.writer.commit(vec![allow]).await?;
        Ok(())
    }
}
