//! The options of a run, a workspace, a comparison, a restore, an undo, a clean-up and of lists.
//! The options of the engine are in `engine/options.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::{
    DiffOptions, IgnoreOptions, Label, PlanId, RelPath, RetainContent, Strategy,
};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::id::RunId;
use crate::records::run::RunStatus;

/// The largest patch that is embedded when nothing else is said, in bytes: a megabyte shows any
/// change that a person reads, and keeps a document quick to parse.
pub const DEFAULT_MAX_PATCH_BYTES: u64 = 1_048_576;

/// The largest untracked file that is captured when nothing else is said, in bytes: what a forge
/// refuses to take in one file.
pub const DEFAULT_MAX_UNTRACKED_FILE_BYTES: u64 = 104_857_600;

/// A workspace, and how to capture it.
///
/// Serialised, it is what is kept with a run; the path is kept beside it.
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
    /// Hash backend: whether to keep the content, so that it can be put back. Default:
    /// [`RetainContent::Never`], with which `rollback_on_failure` is refused before the work.
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
    /// files and links than this; zero: no limit. Default: 0. What a run left is always captured,
    /// however much it is, since only then can it be told and taken back.
    #[serde(default)]
    pub max_files: u64,
    /// Refuse with `LimitExceeded` if a snapshot by hand, or the one before a run, would store more
    /// bytes anew than this; zero: no limit. Default: 0. What a run left is always captured.
    #[serde(default)]
    pub max_new_bytes: u64,
    /// How long an operation by hand may take: a snapshot, a comparison, a plan, a proof, a
    /// clean-up, and a restore up to where it begins to change files. After that it is `Timeout`,
    /// and nothing was touched or published. A run has a limit of its own, for its work. Default:
    /// as long as it takes.
    #[serde(skip)]
    pub timeout: Option<Duration>,
    /// Cancelling it stops the same operations: they are `Cancelled`. They look every few
    /// milliseconds; only a call that the kernel does not return from is waited for. Default:
    /// nobody can.
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
    /// What the run is for, in the host's words; it is kept with the run.
    pub input: String,
    /// The id of the run. Default: a random one.
    ///
    /// An id that is on record is not used for another run. One that was interrupted goes on. One
    /// that has ended is not run again: the answer is what became of it, with
    /// [`RunOutcome::is_stored`](crate::RunOutcome::is_stored) set. One that another engine has is
    /// `Busy`.
    pub run_id: Option<RunId>,
    /// The workspace around the work. Default: none; no snapshots are taken then.
    pub workspace: Option<WorkspaceOptions>,
    /// Cancelling it ends the work, and the run is `cancelled`. Default: nobody can.
    pub cancellation: CancellationToken,
    /// How long the work may take; after that it is ended, and the run is `timeout`. Default: as
    /// long as it wants.
    pub timeout: Option<Duration>,
    /// Whether the run can go on after its engine has died, also before it has come to its first
    /// [phase](crate::RunContext::phase); one that has come there can anyway. Default: false.
    pub resumable: bool,
    /// How long the engine waits with the run for an answer before the run rests. Default:
    /// [`EngineOptions::hot_wait`](crate::EngineOptions::hot_wait).
    pub hot_wait: Option<Duration>,
    /// The host's own, kept with the run: what it takes to go on with it. Default: null.
    pub metadata: serde_json::Value,
    /// Whether the session was made for the run, and ends with it.
    pub(crate) own_session: bool,
    /// Whether the host has chosen no id, so that nobody starts this one again.
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
            own_session: false,
            is_nameless: false,
        }
    }

    stillframe_model::setters! {
        hot_wait: Duration,
        resumable: bool,
        metadata: serde_json::Value,
        run_id: RunId,
        workspace: WorkspaceOptions,
        cancellation: CancellationToken,
        timeout: Duration,
    }
}

/// One end of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Untracked files larger than this, in bytes, are left out of a side that is
    /// [`DiffEnd::Now`]; zero: no limit. Default: as it was for the snapshot that it is compared
    /// with, or as of the workspace's options where that is not on record.
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

    /// Compares these files and directories alone: [`DiffOptions::paths`].
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
    /// Whether the user's index and the branch tip go back too. Default: files only.
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
    /// A directory that is new or empty, and lies neither in the workspace nor where everything is
    /// kept.
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

/// Which operation to take back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UndoTarget {
    /// The latest run of the workspace, or restore or undo that changed something; so a second undo
    /// is a redo.
    #[default]
    Latest,
    /// The run with this id, or the only one whose id begins so.
    Run(String),
}

/// An operation to take back, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UndoRequest {
    /// Which one. Default: the latest.
    pub target: UndoTarget,
    /// Literal paths, files or directories, that the operation changed. The rest of what it did
    /// stays, index and branch included. Default: everything that it did.
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

/// What to keep, when a workspace is cleaned up. What a live run names is always kept, and so is
/// the newest snapshot.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GcOptions {
    /// Keep this many snapshots, whatever their labels. Default: all.
    pub keep: Option<u64>,
    /// Forget snapshots that are older than this. Default: none.
    pub older_than: Option<Duration>,
    /// Forget the oldest until the store and the artifacts of the workspace's runs together are no
    /// larger, in bytes. An artifact goes after the snapshots of its run; those that the host has
    /// put by hand neither count nor go. Default: no limit.
    pub max_bytes: Option<u64>,
    /// Forget every snapshot in which a proof finds something missing or wrong, the newest too, and
    /// what cannot be read as one. It reads everything. Default: false.
    pub forget_damaged: bool,
    /// Forget what the default retention lets go of, at once. Default: none.
    pub retention: Option<RetentionOptions>,
    /// Forget nothing, and say what would be forgotten. What a quota would take, and what is
    /// damaged, is known only when it is done, so that these two are refused with it. Default:
    /// false.
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
    /// Only those that can be claimed: under way or interrupted, and nobody has them. Default: any.
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

/// Which snapshots are kept without being asked.
///
/// Always kept are the newest of a workspace; one that is pinned or has a label of the host's own;
/// those that a run which has not ended, the latest operation or a restore under way names; and the
/// before- and after-snapshot of a run as long as one of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionOptions {
    /// For how long any other is kept. Default: 90 days.
    pub older_than: Duration,
    /// How many of the snapshots of its steps are kept of each run, the newest. Default: 50.
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
