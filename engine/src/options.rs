//! The options of a run, a workspace, a comparison, a restore, an undo, clean-ups and of lists.
//! The options of the engine are in `engine/options.rs`.

pub(crate) mod approval;
pub(crate) mod change_request;
pub(crate) mod credentials;
pub(crate) mod isolation;
pub(crate) mod new_repository;
pub(crate) mod notice_sink;
pub(crate) mod owner_check;
pub(crate) mod quarantine_scope;
pub(crate) mod repository;
pub(crate) mod work_branch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{
    DiffOptions, IgnoreOptions, Label, PlanId, RelPath, RetainContent, Strategy,
};
use tokio_util::sync::CancellationToken;

pub use self::approval::Approval;
pub use self::change_request::ChangeRequest;
pub use self::isolation::IsolationOptions;
pub use self::new_repository::{CloneOptions, InitOptions};
pub use self::owner_check::OwnerCheck;

use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::options::repository::RepositoryOptions;
use crate::options::work_branch::WorkBranchOptions;
use crate::policy::limits::RunLimits;
use crate::records::follow_up::FollowUpInput;
use crate::records::queue::Priority;
use crate::records::run::RunStatus;
use crate::records::session::SessionStatus;

/// The largest patch that is embedded by default, in bytes: a megabyte shows any change that a
/// person reads, and keeps a document quick to parse.
pub const DEFAULT_MAX_PATCH_BYTES: u64 = 1_048_576;

/// The largest untracked file that is captured by default, in bytes: forges refuse larger files.
pub const DEFAULT_MAX_UNTRACKED_FILE_BYTES: u64 = 104_857_600;

/// A workspace, and how to capture it.
///
/// Serialised, it is stored with a run; the path is stored beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkspaceOptions {
    /// The directory.
    #[serde(skip)]
    pub path: PathBuf,
    /// How the backend is chosen. Default: [`Strategy::Auto`].
    pub strategy: Strategy,
    /// Whether a run's diff has a patch. Default: true.
    pub capture_patch: bool,
    /// The largest patch, in bytes, that is embedded in a run's diff; a larger one is kept as an
    /// artifact. Must not be zero. Default: 1 048 576.
    pub max_patch_bytes: u64,
    /// Whether a run's patch is kept as an artifact whatever its size, and never embedded.
    /// Default: false.
    pub offload_patches: bool,
    /// Whether a run that failed, timed out or was cancelled is followed by a restore of its
    /// before-snapshot. Default: false.
    pub rollback_on_failure: bool,
    /// Hash backend: whether to keep the content, so that it can be restored. Default:
    /// [`RetainContent::Never`]; `rollback_on_failure` is then refused before the work.
    #[serde(flatten)]
    pub retain_content: RetainContent,
    /// What to leave out, beyond git's rules or the default names. Default: nothing.
    pub ignore: IgnoreOptions,
    /// Paths to capture although a rule ignores them. Default: none.
    pub include: Vec<RelPath>,
    /// Untracked files larger than this, in bytes, are omitted; zero: no limit. Default:
    /// 104 857 600.
    pub max_untracked_file_bytes: u64,
    /// Refuse with `LimitExceeded` if a snapshot by hand, or the one before a run, would have more
    /// files and links than this; zero: no limit. Default: 0. The after-snapshot of a run has no
    /// such limit, because without it the run could be neither reported nor undone.
    #[serde(default)]
    pub max_files: u64,
    /// Refuse with `LimitExceeded` if a snapshot by hand, or the one before a run, would add more
    /// bytes to the store than this; zero: no limit. Default: 0. The after-snapshot of a run has no
    /// such limit.
    #[serde(default)]
    pub max_new_bytes: u64,
    /// How long an operation by hand may take: a snapshot, a comparison, a plan, a verification, a
    /// clean-up, and a restore until it begins to change files. After that time it fails with
    /// `Timeout`, and nothing was touched or published. A run has its own limit, for its work.
    /// Default: no limit.
    #[serde(skip)]
    pub timeout: Option<Duration>,
    /// Cancelling it stops the same operations: they fail with `Cancelled`. They check it every few
    /// milliseconds; only a system call under way is waited for. Default: a token that nobody
    /// cancels.
    #[serde(skip)]
    pub cancellation: CancellationToken,
    /// Watch the workspace for changes (inotify) from the first snapshot of a session to the
    /// session's end, so that each later snapshot looks only where something changed. It costs one
    /// watch a directory and a thread. If the workspace cannot be watched, everything is looked at,
    /// and [`SnapshotMetadata::search`](crate::backends::SnapshotMetadata) says why. Default:
    /// false.
    #[serde(default)]
    pub watch: bool,
}

impl WorkspaceOptions {
    /// The directory at `path`, with every option at its default.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            strategy: Strategy::Auto,
            capture_patch: true,
            max_patch_bytes: DEFAULT_MAX_PATCH_BYTES,
            offload_patches: false,
            rollback_on_failure: false,
            retain_content: RetainContent::Never,
            ignore: IgnoreOptions::default(),
            include: Vec::new(),
            max_untracked_file_bytes: DEFAULT_MAX_UNTRACKED_FILE_BYTES,
            max_files: 0,
            max_new_bytes: 0,
            timeout: None,
            cancellation: CancellationToken::new(),
            watch: false,
        }
    }

    stillframe_model::setters! {
        max_new_bytes: u64,
        timeout: Duration,
        cancellation: CancellationToken,
        strategy: Strategy,
        capture_patch: bool,
        max_patch_bytes: u64,
        offload_patches: bool,
        rollback_on_failure: bool,
        retain_content: impl Into<RetainContent>,
        ignore: IgnoreOptions,
        include: Vec<RelPath>,
        max_untracked_file_bytes: u64,
        max_files: u64,
        watch: bool,
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.max_patch_bytes == 0 {
            return Err(Error::invalid_options(
                "max_patch_bytes must not be zero; switch the patch off instead",
            ));
        }
        Ok(())
    }
}

/// A run, and what to do around its work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunOptions {
    /// What the run is for, in the host's words; it is stored with the run, without [secret
    /// values](crate::secrets).
    pub input: String,
    /// The id of the run. Default: a random one.
    ///
    /// An id that is on record is not used for another run. An interrupted run is resumed. A run
    /// that has ended is not run again: the answer is its stored outcome, with
    /// [`RunOutcome::is_stored`](crate::RunOutcome::is_stored) set. A run that another engine holds
    /// is `Busy`.
    pub run_id: Option<RunId>,
    /// The workspace around the work. Default: none; no snapshots are taken then.
    pub workspace: Option<WorkspaceOptions>,
    /// Cancelling it ends the work, and the run is `cancelled`. Default: a token that nobody
    /// cancels. It is not kept in the queue: see
    /// [`RunHandle::cancel`](crate::RunHandle::cancel).
    pub cancellation: CancellationToken,
    /// How long the work may take; after that it is ended, and the run is `timeout`. Time in which
    /// nothing is done but to wait for an answer of a person does not count. Default: no limit; 60
    /// seconds where the adapter [calls a model](crate::Adapter::calls_model).
    pub timeout: Option<Duration>,
    /// Whether the run can be resumed after its engine has died, even before its first
    /// [phase](crate::RunContext::phase); after its first phase a run can always be resumed.
    /// Default: false.
    pub resumable: bool,
    /// How long the run waits for an answer before it is parked. Default:
    /// [`EngineOptions::hot_wait`](crate::EngineOptions::hot_wait).
    pub hot_wait: Option<Duration>,
    /// Data of the host that is stored with the run, such as what is needed to resume it, without
    /// [secret values](crate::secrets). Default: null.
    pub metadata: serde_json::Value,
    /// How urgent the run is: in the queue, and when captures wait for a thread. Default:
    /// [`Priority::Interactive`].
    pub priority: Priority,
    /// What the run may do at most. They are stored with it: when it is resumed they hold again,
    /// and those that are given then count where they are stricter. Default: none but [those of the
    /// engine](crate::EngineOptions::limits), which bound a resumption in the same way.
    pub limits: RunLimits,
    /// The task whose work the run does. When the work has ended, however it did, it is saved on
    /// the task's branch as [`SessionManager::checkpoint`](crate::SessionManager::checkpoint) saves
    /// it, and then the run ends; the outcome says where the work is. That it could not be saved is
    /// no failure of the run. It needs a workspace. The adapter can [save
    /// progress](crate::RunContext::checkpoint) before that.
    ///
    /// The run is refused with `Conflict` before its work if the branch has commits that neither
    /// HEAD nor the last checkpoint of this workspace goes on from, and with `Unavailable` if the
    /// remote cannot be asked. It is not kept in the queue, and has to be given again where a run
    /// is resumed. Default: none.
    pub work_branch: Option<WorkBranchOptions>,
    /// How the run works in a worktree of its own; `None`: it works in the workspace itself.
    pub(crate) isolation: Option<IsolationOptions>,
    /// The further repositories that the run works in.
    pub(crate) repositories: Vec<RepositoryOptions>,
    /// The input that the run, which waits for it, is to go on with.
    pub(crate) follow_up: Option<FollowUpInput>,
    /// What the run, which waits for a decision, is to change.
    pub(crate) changes: Option<ChangeRequest>,
    /// The run in whose place this one is.
    pub(crate) retried_from: Option<RunId>,
    /// Whether the session was made for the run, and ends with it.
    pub(crate) own_session: bool,
    /// Whether the host chose no id, so this one is not started again.
    pub(crate) is_nameless: bool,
}

impl RunOptions {
    /// A run for `input`, with every option at its default.
    pub fn new(input: impl Into<String>) -> Self {
        Self {
            input: input.into(),
            run_id: None,
            workspace: None,
            cancellation: CancellationToken::new(),
            timeout: None,
            resumable: false,
            hot_wait: None,
            metadata: serde_json::Value::Null,
            priority: Priority::Interactive,
            limits: RunLimits::default(),
            work_branch: None,
            isolation: None,
            repositories: Vec::new(),
            follow_up: None,
            changes: None,
            retried_from: None,
            own_session: false,
            is_nameless: false,
        }
    }

    stillframe_model::setters! {
        hot_wait: Duration,
        priority: Priority,
        limits: RunLimits,
        work_branch: WorkBranchOptions,
        resumable: bool,
        metadata: serde_json::Value,
        run_id: RunId,
        workspace: WorkspaceOptions,
        cancellation: CancellationToken,
        timeout: Duration,
    }

    /// Adds a further repository that the run works in, with the task that its work there is of.
    /// The run's own is the [workspace](RunOptions::workspace), which then needs a
    /// [work branch](RunOptions::work_branch) too.
    ///
    /// All of them are brought to their branches before the work, or none is: one that would be
    /// refused refuses the run, and nothing was moved. No other run works in any of them meanwhile.
    /// Progress is saved in each, at most once in the
    /// [interval](WorkBranchOptions::checkpoint_interval) of the run's own, and so is what is there
    /// when the work has ended; that one fails stops no other.
    /// [`WorkspaceOutcome::repositories`](crate::records::WorkspaceOutcome::repositories) says what
    /// became of each. A blocked run waits only if all are proven.
    ///
    /// Snapshots after the work, comparison, limits, rollback and undo are of the run's own
    /// workspace alone.
    ///
    /// ```no_run
    /// # use stillframe::tasks::WorkBranchOptions;
    /// # use stillframe::{Adapter, Error, RunOptions, SessionManager, WorkspaceOptions};
    /// # async fn run(session: SessionManager, agent: impl Adapter) -> Result<(), Error> {
    /// let options = RunOptions::new("rename the field")
    ///     .workspace(WorkspaceOptions::at("/src/app"))
    ///     .work_branch(WorkBranchOptions::of("42"))
    ///     .repository(WorkspaceOptions::at("/src/lib"), WorkBranchOptions::of("42"));
    /// let outcome = session.execute_run(options, agent).await?;
    /// if let Some(all) = &outcome.workspace.repositories {
    ///     println!("{}", all.summary); // 1 pushed, /src/lib: AuthDenied (…)
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The run is refused with `InvalidOptions` if two of them are one work tree or would go to one
    /// branch, and with `Unsupported` if one is in no git work tree. It cannot be submitted to the
    /// queue. One that is gone on with has those that it was begun with, unless they are given
    /// again.
    pub fn repository(mut self, workspace: WorkspaceOptions, branch: WorkBranchOptions) -> Self {
        self.repositories.push(RepositoryOptions {
            workspace,
            work_branch: branch,
        });
        self
    }

    /// Has the run work in a worktree and on a branch of its own, which are cut from the tip of a
    /// branch of the repository that the [workspace](RunOptions::workspace) lies in, or that it is,
    /// bare. The branch is `stillframe/run/ID`, the worktree `worktrees/ID` in the state directory;
    /// `ID` is that of the run. Several runs work at once, and nobody's checkout is touched. What
    /// is in the checkout and not committed is not in the worktree.
    ///
    /// If the work ends well, what it has changed and git does not ignore is committed there, and
    /// the run is [`AwaitingReview`](crate::RunStatus::AwaitingReview): see
    /// [`Engine::pending_reviews`](crate::Engine::pending_reviews). If it has changed nothing, the
    /// run is `Completed`, and worktree and branch are let go of. However else it ends, they stay
    /// until [`Engine::discard_worktree`](crate::Engine::discard_worktree).
    ///
    /// ```no_run
    /// # use stillframe::options::IsolationOptions;
    /// # use stillframe::{CommandAdapter, Error, RunOptions, SessionManager, WorkspaceOptions};
    /// # async fn run(session: SessionManager) -> Result<(), Error> {
    /// let options = RunOptions::new("rename the field")
    ///     .workspace(WorkspaceOptions::at("/src/app"))
    ///     .isolated(IsolationOptions::new().from("main".to_owned()));
    /// let outcome = session.execute_run(options, CommandAdapter::new("agent")).await?;
    /// if let Some(isolation) = &outcome.isolation {
    ///     println!("{}", isolation.worktree_path.display());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The run is refused with `InvalidOptions`, and is on no record, where there is no repository,
    /// no such branch, or HEAD is detached and no branch is named; also with a
    /// [work branch](RunOptions::work_branch), with
    /// [`rollback_on_failure`](WorkspaceOptions::rollback_on_failure), and where it is submitted to
    /// the queue.
    pub fn isolated(mut self, isolation: IsolationOptions) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Refuses what cannot be, before anything is done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(isolation) = &self.isolation {
            isolation.check()?;
            self.check_isolation()?;
        }
        for repository in &self.repositories {
            repository.check()?;
        }
        let has_branch = self.workspace.is_some() && self.work_branch.is_some();
        if !self.repositories.is_empty() && !has_branch {
            return Err(Error::invalid_options(
                "a run with further repositories needs a workspace with a work branch; the run was not started",
            ));
        }
        if let Some(defect) = self.limits.defect() {
            return Err(Error::invalid_options(defect));
        }
        match &self.workspace {
            Some(workspace) => workspace.check(),
            None if self.limits.are_of_changes() => Err(Error::invalid_options(
                "the run has no workspace, so that what it changes can have no limits",
            )),
            None => Ok(()),
        }
    }

    /// Refuses what does not go with a worktree of the run's own.
    fn check_isolation(&self) -> Result<(), Error> {
        let beside = match &self.workspace {
            None => "needs a workspace, which says what it is cut from",
            Some(_) if self.work_branch.is_some() => "is of no task with a work branch",
            Some(workspace) if workspace.rollback_on_failure => {
                "is not rolled back, because its worktree is kept as it was left"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::invalid_options(format!(
            "a run with a worktree of its own {beside}; the run was not started"
        )))
    }
}

/// One end of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiffEnd {
    /// The snapshot that this [names](crate::SnapshotName): its id, a beginning of it, `latest`,
    /// `latest~N` or `label:TEXT`.
    Snapshot(String),
    /// The workspace as it is. It is captured for the comparison and not kept.
    Now,
}

impl From<&str> for DiffEnd {
    /// `now` is the workspace as it is; anything else a snapshot.
    fn from(text: &str) -> Self {
        match text {
            "now" => Self::Now,
            _ => Self::Snapshot(text.to_owned()),
        }
    }
}

impl From<&stillframe_backends::Snapshot> for DiffEnd {
    fn from(snapshot: &stillframe_backends::Snapshot) -> Self {
        Self::Snapshot(snapshot.id.to_string())
    }
}

/// What to compare, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiffRequest {
    /// The earlier side.
    pub from: DiffEnd,
    /// The later side. Default: the workspace as it is.
    pub to: DiffEnd,
    /// Untracked files larger than this, in bytes, are left out of a side that is [`DiffEnd::Now`];
    /// zero: no limit. Default: the limit of the snapshot on the other side, or that of the
    /// workspace's options if the snapshot has none stored.
    pub max_untracked_file_bytes: Option<u64>,
    /// Whether to make the patch, and how much of it to embed. Default: no patch.
    pub options: DiffOptions,
}

impl DiffRequest {
    /// What changed since `from`.
    pub fn since(from: impl Into<DiffEnd>) -> Self {
        Self {
            from: from.into(),
            to: DiffEnd::Now,
            max_untracked_file_bytes: None,
            options: DiffOptions::default(),
        }
    }

    /// What changed from `from` to `to`.
    pub fn between(from: impl Into<DiffEnd>, to: impl Into<DiffEnd>) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            max_untracked_file_bytes: None,
            options: DiffOptions::default(),
        }
    }

    stillframe_model::setters! {
        max_untracked_file_bytes: u64,
        options: DiffOptions,
    }

    /// Compares only these files and directories: [`DiffOptions::paths`].
    pub fn paths(mut self, paths: Vec<RelPath>) -> Self {
        self.options.paths = paths;
        self
    }
}

/// What to put back, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RestoreRequest {
    /// The snapshot to go back to, as it is [named](crate::SnapshotName): its id, a beginning of it
    /// that no other one has, `latest`, `latest~N` or `label:TEXT`.
    pub snapshot: String,
    /// Literal paths, files or directories. Default: everything.
    pub paths: Vec<RelPath>,
    /// Refuse unless the plan is still this one. Default: any plan is carried out.
    pub expected_plan: Option<PlanId>,
    /// Whether the user's index and the branch tip are restored too. Default: files only.
    pub repository: bool,
}

impl RestoreRequest {
    /// Every captured path as the snapshot has it: `RestoreRequest::to(&snapshot)`, or by a name of
    /// it.
    pub fn to(snapshot: impl Into<String>) -> Self {
        Self {
            snapshot: snapshot.into(),
            paths: Vec::new(),
            expected_plan: None,
            repository: false,
        }
    }

    stillframe_model::setters! {
        paths: Vec<RelPath>,
        expected_plan: PlanId,
        repository: bool,
    }
}

/// What to put elsewhere, and where.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyRequest {
    /// The snapshot, as of [`RestoreRequest::snapshot`].
    pub snapshot: String,
    /// A directory that is new or empty, and lies neither in the workspace nor in the state
    /// directory.
    pub to: PathBuf,
    /// Literal paths, files or directories. Default: everything.
    pub paths: Vec<RelPath>,
}

impl CopyRequest {
    /// All that a snapshot has, into the directory `to`.
    pub fn new(snapshot: impl Into<String>, to: impl Into<PathBuf>) -> Self {
        Self {
            snapshot: snapshot.into(),
            to: to.into(),
            paths: Vec::new(),
        }
    }

    /// Sets [`CopyRequest::paths`].
    pub fn paths(mut self, paths: Vec<RelPath>) -> Self {
        self.paths = paths;
        self
    }
}

/// Which operation to undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UndoTarget {
    /// The latest run of the workspace, or restore or undo that changed something; so a second undo
    /// is a redo.
    #[default]
    Latest,
    /// The run with this id, or the only one whose id begins so.
    Run(String),
}

/// An operation to undo, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UndoRequest {
    /// Which one. Default: the latest.
    pub target: UndoTarget,
    /// Literal paths, files or directories, that the operation changed. Its other changes stay,
    /// including index and branch. Default: everything that it changed.
    pub paths: Vec<RelPath>,
    /// Refuse unless the plan is still this one. Default: any plan is carried out.
    pub expected_plan: Option<PlanId>,
}

impl UndoRequest {
    /// Everything that this operation did.
    pub fn of(target: UndoTarget) -> Self {
        Self {
            target,
            ..Self::default()
        }
    }

    stillframe_model::setters! {
        paths: Vec<RelPath>,
        expected_plan: PlanId,
    }
}

impl From<UndoTarget> for UndoRequest {
    fn from(target: UndoTarget) -> Self {
        Self::of(target)
    }
}

/// What a clean-up of a workspace keeps. Snapshots of a live run, and the newest snapshot, are
/// always kept.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GcOptions {
    /// Keep this many snapshots, whatever their labels. Default: all.
    pub keep: Option<u64>,
    /// Forget snapshots that are older than this. Default: none.
    pub older_than: Option<Duration>,
    /// Remove the oldest snapshots until the store and the artifacts of the workspace's runs
    /// together are no larger than this, in bytes. An artifact is removed after the snapshots of
    /// its run; artifacts that the host stored itself are neither counted nor removed. Default: no
    /// limit.
    pub max_bytes: Option<u64>,
    /// Remove every snapshot in which verification finds something missing or wrong, even the
    /// newest, and unreadable ones. It reads everything. Default: false.
    pub forget_damaged: bool,
    /// Remove at once what this retention would remove. Default: none.
    pub retention: Option<RetentionOptions>,
    /// Remove nothing, and say what would be removed. It is refused with a quota and with
    /// `forget_damaged`, because their result is known only when they are done. Default: false.
    pub dry_run: bool,
}

impl GcOptions {
    stillframe_model::setters! {
        retention: RetentionOptions,
        dry_run: bool,
        forget_damaged: bool,
        keep: u64,
        older_than: Duration,
        max_bytes: u64,
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.dry_run && (self.max_bytes.is_some() || self.forget_damaged) {
            true => Err(Error::invalid_options(
                "what a quota would take, and what is damaged, is not known beforehand; nothing was done",
            )),
            false => Ok(()),
        }
    }
}

/// Which snapshots of a workspace to list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SnapshotQuery {
    /// The workspace.
    pub workspace: WorkspaceOptions,
    /// Only those with exactly this label. Default: any.
    pub label: Option<Label>,
    /// Only those that were taken at or after this time. Default: any.
    pub since: Option<Timestamp>,
    /// At most this many, the newest. Default: all.
    pub limit: Option<u64>,
}

impl SnapshotQuery {
    /// Every snapshot of a workspace.
    pub fn of(workspace: &WorkspaceOptions) -> Self {
        Self {
            workspace: workspace.clone(),
            label: None,
            since: None,
            limit: None,
        }
    }

    stillframe_model::setters! {
        label: Label,
        since: Timestamp,
        limit: u64,
    }
}

impl From<&WorkspaceOptions> for SnapshotQuery {
    fn from(workspace: &WorkspaceOptions) -> Self {
        Self::of(workspace)
    }
}

/// Which sessions to list.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionQuery {
    /// Only those that have all of these tags. Default: any.
    pub tags: Vec<String>,
    /// Only those of this agent. Default: any.
    pub agent_id: Option<String>,
    /// Only those that belong to this session. Default: any.
    pub parent_id: Option<SessionId>,
    /// Only those with one of these statuses. Default: any.
    pub statuses: Vec<SessionStatus>,
    /// At most this many, the newest. Default: all.
    pub limit: Option<u64>,
}

impl SessionQuery {
    /// Every session.
    pub fn all() -> Self {
        Self::default()
    }

    /// Adds to [`SessionQuery::tags`].
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Adds to [`SessionQuery::statuses`].
    pub fn status(mut self, status: SessionStatus) -> Self {
        self.statuses.push(status);
        self
    }

    /// Sets [`SessionQuery::agent_id`].
    pub fn agent_id(mut self, id: impl Into<String>) -> Self {
        self.agent_id = Some(id.into());
        self
    }

    stillframe_model::setters! {
        parent_id: SessionId,
        limit: u64,
    }
}

/// Which runs to list.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunQuery {
    /// Only those of this session. Default: any.
    pub session_id: Option<crate::id::SessionId>,
    /// Only those in this workspace. Default: any.
    pub workspace: Option<PathBuf>,
    /// Only those with one of these statuses. Default: any.
    pub statuses: Vec<RunStatus>,
    /// Only those that were accepted at or after this time. Default: any.
    pub since: Option<Timestamp>,
    /// Only those that were accepted before this time. Default: any.
    pub until: Option<Timestamp>,
    /// Only those that can be resumed: under way or interrupted, and held by no engine. Default:
    /// any.
    pub incomplete: bool,
    /// At most this many. Default: all.
    pub limit: Option<u64>,
}

impl RunQuery {
    /// Every run.
    pub fn all() -> Self {
        Self::default()
    }

    /// The runs in the workspace at `path`.
    pub fn workspace(path: impl Into<PathBuf>) -> Self {
        Self {
            workspace: Some(path.into()),
            ..Self::default()
        }
    }

    /// The runs of a session.
    pub fn session(id: crate::id::SessionId) -> Self {
        Self {
            session_id: Some(id),
            ..Self::default()
        }
    }

    /// Adds to [`RunQuery::statuses`].
    pub fn status(mut self, status: RunStatus) -> Self {
        self.statuses.push(status);
        self
    }

    stillframe_model::setters! {
        since: Timestamp,
        until: Timestamp,
        limit: u64,
    }

    /// Sets [`RunQuery::incomplete`].
    pub fn incomplete(mut self) -> Self {
        self.incomplete = true;
        self
    }
}

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Which snapshots retention keeps.
///
/// It always keeps the newest snapshot of a workspace; pinned ones and those with a label of the
/// host; those that a run under way, the latest operation or a restore under way needs; and both
/// the before- and after-snapshot of a run if it keeps one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionOptions {
    /// For how long any other is kept. Default: 90 days.
    pub older_than: Duration,
    /// How many snapshots of steps are kept for each run, the newest. Default: 50.
    pub step_snapshots: u64,
}

impl Default for RetentionOptions {
    fn default() -> Self {
        Self {
            older_than: 90 * DAY,
            step_snapshots: 50,
        }
    }
}

impl RetentionOptions {
    stillframe_model::setters! {
        older_than: Duration,
        step_snapshots: u64,
    }
}

/// How much of the log of events, and of the sessions that have ended, is kept:
/// [`Engine::trim_log`](crate::Engine::trim_log). By default everything is.
///
/// What a run needs that has not ended stays in any case: its events, and all later ones of its
/// session. So do the events by which the engine knows which snapshots it has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogRetention {
    /// Remove events that were written longer ago than this. Times of the log are not trusted
    /// alone: an event stays as long as one before it is said to be younger. Default: none.
    pub events_older_than: Option<Duration>,
    /// Keep this many of the events that there are, the last that were written in all sessions
    /// together, and remove those before them. Default: all.
    pub max_events: Option<u64>,
    /// Remove sessions that ended longer ago than this, with their runs, events and artifacts. A
    /// session stays as long as a snapshot of it is kept, the latest undo of a workspace needs it,
    /// or an artifact of it is a prompt of an agent of another session. Default: none.
    pub sessions_older_than: Option<Duration>,
    /// Keep this many sessions that have ended, the last that did, and remove the others in the
    /// same way. Default: all.
    pub max_ended_sessions: Option<u64>,
    /// Remove nothing, and say how much would be removed. Default: false.
    pub dry_run: bool,
}

impl LogRetention {
    stillframe_model::setters! {
        events_older_than: Duration,
        max_events: u64,
        sessions_older_than: Duration,
        max_ended_sessions: u64,
        dry_run: bool,
    }
}

/// Whose transcript to read, and from where.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TranscriptQuery {
    /// Whose it is.
    pub(crate) of: RecordsOf,
    /// Only entries at a later [`position`](crate::records::TranscriptEntry::position). Default:
    /// all.
    pub after_position: Option<u64>,
}

/// Whose records are read.
#[derive(Clone, Debug)]
pub(crate) enum RecordsOf {
    Run(RunId),
    Session(SessionId),
}

impl TranscriptQuery {
    /// The transcript of a run.
    pub fn run(id: RunId) -> Self {
        Self {
            of: RecordsOf::Run(id),
            after_position: None,
        }
    }

    /// The transcript of all runs of a session, and of what its host wrote outside of runs.
    pub fn session(id: SessionId) -> Self {
        Self {
            of: RecordsOf::Session(id),
            after_position: None,
        }
    }

    stillframe_model::setters! {
        after_position: u64,
    }
}

/// Whose records to export, and where to: see [`Engine::export`](crate::Engine::export).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExportRequest {
    /// Whose they are.
    pub(crate) of: RecordsOf,
    /// A directory that is new or empty, and does not lie in the state directory. What is above it
    /// is there.
    pub to: PathBuf,
    /// Cancelling it ends the export, which is `Cancelled` and leaves nothing, unless it is there
    /// whole by then. Default: a token that nobody cancels.
    pub cancellation: CancellationToken,
}

impl ExportRequest {
    /// A run, into the directory `to`.
    pub fn run(id: RunId, to: impl Into<PathBuf>) -> Self {
        Self::new(RecordsOf::Run(id), to.into())
    }

    /// A session with all of its runs, into the directory `to`.
    pub fn session(id: SessionId, to: impl Into<PathBuf>) -> Self {
        Self::new(RecordsOf::Session(id), to.into())
    }

    fn new(of: RecordsOf, to: PathBuf) -> Self {
        Self {
            of,
            to,
            cancellation: CancellationToken::new(),
        }
    }

    stillframe_model::setters! {
        cancellation: CancellationToken,
    }
}
