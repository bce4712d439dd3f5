//! Tasks that have branches.

use serde::Deserialize as _;
use stillframe_backends::{AllowedSecret, ErrorKind};
use stillframe_remote::branch_name::Namespace;

use super::Engine;
use crate::error::Error;
use crate::events::branch_data::SecretAllowed;
use crate::events::event::EventType;
use crate::id::{RunId, SessionId};
use crate::options::WorkspaceOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::records::allowed_finding::{AllowedFinding, AllowedSecretRecord};
use crate::records::run::RunStatus;
use crate::records::run_document::KeptOptions;
use crate::records::run_row::RunRow;
use crate::records::saved_work::{CheckpointRecord, SavedWork, WorkTaskRecord};
use crate::records::work_task::WorkTaskRow;
use crate::run::saving;
use crate::saving::target::Target;
use crate::saving::work::Wanted;
use crate::saving::{recorded, save, waiting};
use crate::state::StateStore;
use crate::state::branch_change::BranchChange;
use crate::state::change::{Change, NewEvent};

impl Engine {
    /// The tasks that have a branch, in the order in which they were first heard of.
    pub async fn tasks(&self) -> Result<Vec<WorkTaskRecord>, Error> {
        self.read(|store| {
            let rows = store.work_tasks()?.into_iter();
            let waiting = waiting::waiting_runs(store)?;
            let told = rows.map(|row| {
                let checkpoints = store.checkpoints(&row.id)?;
                recorded::task(store, row, &checkpoints, &waiting)
            });
            told.collect()
        })
        .await
    }

    /// A task with all of its checkpoints, by what its host calls it, with its namespace if it has
    /// one: `42`, or `platform/project/42`. Where its work went to several remotes, it is the one
    /// that was last saved to.
    ///
    /// # Errors
    ///
    /// `NotFound`: no work of such a task was saved.
    pub async fn find_task(
        &self,
        name: &str,
    ) -> Result<(WorkTaskRecord, Vec<CheckpointRecord>), Error> {
        self.find_task_at(name, None).await
    }

    /// As [`Engine::find_task`], but where its work went to several remotes, it is the one of
    /// `remote`, an address as [`Engine::task_remote`] answers, if it went there.
    ///
    /// # Errors
    ///
    /// As of [`Engine::find_task`].
    pub async fn find_task_at(
        &self,
        name: &str,
        remote: Option<&str>,
    ) -> Result<(WorkTaskRecord, Vec<CheckpointRecord>), Error> {
        let (name, remote) = (stored(name), remote.map(str::to_owned));
        self.core
            .parts
            .reader
            .read_with(move |store| {
                let row = find(store, &name, remote.as_deref())?;
                let checkpoints = store.checkpoints(&row.id)?;
                let told = checkpoints.iter().map(recorded::checkpoint).collect();
                let waiting = waiting::waiting_runs(store)?;
                Ok((recorded::task(store, row, &checkpoints, &waiting)?, told))
            })
            .await
    }

    /// Where the work of a task would go from a workspace: an address without credentials. `None`:
    /// it would be kept in the store alone. Nobody is asked anything.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: a name or address cannot be right. `NotFound`: the repository has no such
    /// remote. `Unsupported`: the workspace is in no git work tree.
    pub async fn task_remote(
        &self,
        workspace: &WorkspaceOptions,
        branch: &WorkBranchOptions,
    ) -> Result<Option<String>, Error> {
        let opened = self.core.open(workspace).await?;
        let (parts, branch) = (self.core.parts.clone(), branch.clone());
        let find = move || {
            let target = Target::of(&parts, opened, &branch)?;
            Ok(target.address.map(|parsed| parsed.address.to_string()))
        };
        self.core.parts.blocking.run(find).await?
    }

    /// Lets checkpoints of a workspace be sent although `finding` is in them: the user knows that
    /// it is no secret. It is for the user alone to say so. Answers with what is allowed: as a
    /// finding names it, without secret values in its path.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: there is no such rule.
    pub async fn allow_secret(
        &self,
        workspace: &WorkspaceOptions,
        finding: AllowedSecret,
    ) -> Result<AllowedSecret, Error> {
        let finding = finding.redacted(self.core.parts.writer.secrets());
        let parts = &self.core.parts;
        let mut rules = parts.writer.secrets().names();
        if !rules.any(|name| name == finding.rule) {
            return Err(Error::invalid_options(format!(
                "there is no rule {:?} by which secret values are found",
                finding.rule
            )));
        }
        let (row, is_allowed) = self.finding(workspace, finding.clone()).await?;
        if !is_allowed {
            self.decide(BranchChange::AllowFinding, row, EventType::SECRET_ALLOWED)
                .await?;
        }
        Ok(finding)
    }

    /// Takes back what [`Engine::allow_secret`] has allowed: the next checkpoint with `finding` in
    /// it is not sent. What was sent stays where it is. Answers as that does.
    ///
    /// # Errors
    ///
    /// `NotFound`: it is not allowed in this workspace.
    pub async fn forbid_secret(
        &self,
        workspace: &WorkspaceOptions,
        finding: AllowedSecret,
    ) -> Result<AllowedSecret, Error> {
        let finding = finding.redacted(self.core.parts.writer.secrets());
        let (row, is_allowed) = self.finding(workspace, finding.clone()).await?;
        match is_allowed {
            true => {
                let told = EventType::SECRET_FORBIDDEN;
                self.decide(BranchChange::ForbidFinding, row, told).await?;
                Ok(finding)
            }
            false => Err(Error::not_found(format!(
                "a {} in {} with this fingerprint is not allowed in this workspace; nothing was done",
                row.rule, row.path
            ))),
        }
    }

    /// The findings that the user lets be sent from a workspace, in the order in which they were
    /// allowed.
    pub async fn allowed_secrets(
        &self,
        workspace: &WorkspaceOptions,
    ) -> Result<Vec<AllowedSecretRecord>, Error> {
        let opened = self.core.open_known(workspace).await?;
        let repository = opened.workspace.id().to_owned();
        let found = self.read(move |store| store.allowed_findings(&repository));
        Ok(found.await?.into_iter().map(Into::into).collect())
    }

    /// A finding of a workspace, and whether it is allowed.
    async fn finding(
        &self,
        workspace: &WorkspaceOptions,
        finding: AllowedSecret,
    ) -> Result<(AllowedFinding, bool), Error> {
        let opened = self.core.open_known(workspace).await?;
        let row = AllowedFinding {
            repository: opened.workspace.id().to_owned(),
            rule: finding.rule,
            path: finding.path,
            fingerprint: finding.fingerprint,
            allowed_at: self.core.parts.now(),
        };
        let repository = row.repository.clone();
        let allowed = self.read(move |store| store.allowed_findings(&repository));
        let is_allowed = allowed.await?.into_iter().any(|one| {
            let allowed_at = row.allowed_at;
            AllowedFinding { allowed_at, ..one } == row
        });
        Ok((row, is_allowed))
    }

    /// Puts on record what the user decides about a finding, and that it was decided.
    async fn decide(
        &self,
        change: fn(AllowedFinding) -> BranchChange,
        row: AllowedFinding,
        event_type: EventType,
    ) -> Result<(), Error> {
        let session_id = SessionId::of_workspace(&row.repository);
        self.core.ensure_session(&session_id, None).await?;
        let said = SecretAllowed {
            repository: &row.repository,
            rule: &row.rule,
            path: Some(&row.path).filter(|path| !path.is_root()),
            fingerprint: &row.fingerprint,
        };
        let told = NewEvent::new(event_type, &session_id, None, row.allowed_at, said);
        let changes = vec![Change::Append(told), Change::Branch(Box::new(change(row)))];
        self.core.parts.writer.commit(changes).await.map(drop)
    }

    /// Where a run that is at work or waits for input works, and where its work goes, as it was
    /// started but without who asks the remote. It is for [`Engine::checkpoint_run`] and
    /// [`Engine::claim_follow_up`].
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run. `InvalidOptions`: it is of no task. `Conflict`: its work
    /// has ended, or not begun.
    pub async fn work_branch_of(
        &self,
        run: &RunId,
    ) -> Result<(WorkspaceOptions, WorkBranchOptions), Error> {
        let waits = RunStatus::AwaitingFollowup;
        let row = self
            .run_that(run, |status| status.is_at_work() || status == waits)
            .await?;
        of_task(row)
    }

    /// Saves the work of a run that another engine has, while it is at work, as
    /// [`RunContext::checkpoint_now`](crate::RunContext::checkpoint_now) does in the engine that
    /// has it, but in its own repository alone. It is for what the run has started, such as its
    /// command. Of two checkpoints of a task one waits for the other.
    ///
    /// # Errors
    ///
    /// As of [`Engine::work_branch_of`] and
    /// [`SessionManager::checkpoint`](crate::SessionManager::checkpoint).
    pub async fn checkpoint_run(
        &self,
        run: &RunId,
        workspace: &WorkspaceOptions,
        branch: &WorkBranchOptions,
    ) -> Result<SavedWork, Error> {
        branch.branch_name()?;
        let row = self.run_that(run, RunStatus::is_at_work).await?;
        let opened = self.core.open(workspace).await?;
        let began_at = saving::began_at(&self.core, &row).await;
        let wanted = Wanted::of_progress((&row.session_id, &row.id), branch, began_at);
        let (core, branch) = (self.core.clone(), branch.clone());
        self.core
            .operation(async move { save::save_now(&core, opened, &branch, wanted).await })
            .await
    }

    /// A run, if its status is so.
    pub(super) async fn run_that(
        &self,
        run: &RunId,
        is_so: impl Fn(RunStatus) -> bool,
    ) -> Result<RunRow, Error> {
        let asked = run.clone();
        let found = self.read(move |store| store.run(&asked)).await?;
        let row = found.ok_or_else(|| Error::not_found(format!("there is no run {run}")))?;
        match is_so(row.status) {
            true => Ok(row),
            false => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "run {run} is {}, and not at work; nothing was done",
                    row.status
                ),
            )),
        }
    }
}

/// Where a run works, and where its work goes, as it was started.
pub(super) fn of_task(row: RunRow) -> Result<(WorkspaceOptions, WorkBranchOptions), Error> {
    let kept = KeptOptions::<Option<WorkspaceOptions>>::deserialize(&row.options)
        .map_err(|e| Error::new(ErrorKind::Corrupt, e))?;
    let (Some(branch), Some(mut workspace), Some(recorded)) =
        (kept.work_branch, kept.workspace, row.workspace)
    else {
        return Err(Error::invalid_options(format!(
            "run {} is of no task, so that its work has no branch; nothing was done",
            row.id
        )));
    };
    workspace.path = recorded.path;
    workspace.watch = false;
    Ok((workspace, WorkBranchOptions::of_kept(branch)))
}

/// The task of this full name that was last saved, at `remote` before all others.
pub(super) fn find(
    store: &dyn StateStore,
    name: &str,
    remote: Option<&str>,
) -> Result<WorkTaskRow, Error> {
    let rows = store.work_tasks()?.into_iter();
    let found = rows.filter(|row| row.full_name() == name);
    let found = found.max_by_key(|row| (Some(&*row.remote) == remote, row.updated_at));
    found.ok_or_else(|| {
        Error::not_found(format!(
            "there is no task {name:?} on record here: no work of it was saved from this machine"
        ))
    })
}

/// The full name of a task as rows have it: its namespace as slugs.
pub(super) fn stored(name: &str) -> String {
    let slugs = |(namespace, task): (&str, &str)| {
        let namespace = Namespace::parse(namespace).ok()?;
        Some(format!("{namespace}/{task}"))
    };
    let of_namespace = name.rsplit_once('/').and_then(slugs);
    of_namespace.unwrap_or_else(|| name.to_owned())
}
