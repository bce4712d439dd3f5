//! The meaning of the arguments, with every choice made and every default filled in. Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap_complete::Shell;
use jiff::Timestamp;
use stillframe::backends::{
    AllowedSecret, DiffOptions, IgnoreOptions, Label, PlanId, PurgeTarget, RelPath, Renames,
    RetainContent, printable, shell_word,
};
use stillframe::commands::{CommandInput, CommandOutput};
use stillframe::events::EventQuery;
use stillframe::options::{
    ChangeRequest, CloneOptions, CopyRequest, DiffEnd, GcOptions, InitOptions, IsolationOptions,
    LogRetention, RetentionOptions, RunQuery, SessionQuery, SnapshotQuery, UndoTarget,
};
use stillframe::policy::RunLimits;
use stillframe::tasks::{FollowUpInput, QuarantineScope, WorkBranchOptions};
use stillframe::{
    CommandAdapter, DiffRequest, RestoreRequest, RunId, RunOptions, SessionId, SnapshotName,
    WorkspaceOptions,
};

use crate::args::{
    ArtifactCommand, BranchArgs, CaptureArgs, Command, ConfigCommand, DiffArgs, EventsArgs,
    FollowUpArgs, GcArgs, ListArgs, Moment, PurgeArgs, QuarantineCommand, RestoreArgs,
    ReviewCommand, RunArgs, RunsArgs, SessionsArgs, ShowArgs, SnapshotArgs, SnapshotVerb,
    TaskCommand, TokenArgs, UndoArgs, WorktreeCommand,
};
use crate::branch;
use crate::config::{Config, DEFAULT_RETAIN_CONTENT_BYTES, Held, Settings, TaskSettings};
use crate::failure::Failure;
use crate::guardian;
use crate::signals;

/// What the process was started in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// The current directory, without links; `None`: it is gone or cannot be looked at.
    pub(crate) current_dir: Option<PathBuf>,
    /// The home directory, without links.
    pub(crate) home: Option<PathBuf>,
    /// The id of the run to start, from `STILLFRAME_RUN_ID`.
    pub(crate) run_id: Option<OsString>,
    /// The run whose command this is, from `STILLFRAME_CURRENT_RUN`.
    pub(crate) current_run: Option<OsString>,
    /// The state directory that has it, from `STILLFRAME_CURRENT_STATE`.
    pub(crate) current_state: Option<OsString>,
    /// What the clock says.
    pub(crate) now: Timestamp,
    /// What the user has set once.
    pub(crate) config: Config,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Request {
    /// Run a command between two snapshots.
    Run(Box<RunRequest>),
    /// Run the commands of a file, each once.
    Steps(Box<StepsRequest>),
    /// Go on with a run.
    Resume(Box<ResumeRequest>),
    /// Do again what a run has failed at.
    Retry(RetryRequest),
    /// Ask a run to stop.
    Cancel(String),
    /// Show the questions that wait, or one of them.
    Questions(Option<String>),
    /// Answer a question.
    Answer { question: String, answer: String },
    /// Take a snapshot.
    Snapshot(WorkspaceOptions, Label),
    /// Take a snapshot, unless nothing differs from the newest.
    SnapshotIfChanged(WorkspaceOptions, Label),
    /// Forget snapshots, by name.
    RemoveSnapshots(WorkspaceOptions, Vec<String>),
    /// Keep a snapshot.
    Pin(WorkspaceOptions, String),
    /// Keep a snapshot no more.
    Unpin(WorkspaceOptions, String),
    /// List snapshots.
    List(SnapshotQuery),
    /// Compare.
    Diff(WorkspaceOptions, DiffRequest, DiffView),
    /// Say what a restore would do.
    PlanRestore(WorkspaceOptions, RestoreRequest),
    /// Restore.
    Restore(WorkspaceOptions, RestoreRequest),
    /// Write above the current directory, which is refused.
    WriteAbove(OutsidePath),
    /// Read in a directory above the current one that has to be named, which is refused if nothing
    /// was captured there.
    ReadAbove(Box<Self>, OutsidePath),
    /// Put what a snapshot has elsewhere.
    Copy(WorkspaceOptions, CopyRequest),
    /// Take back an operation.
    Undo(UndoRequest),
    /// List runs.
    Runs(RunQuery),
    /// List sessions.
    Sessions(SessionQuery),
    /// Show a run or a snapshot; one that is named by the workspace that it is of comes with that.
    Show(String, Option<WorkspaceOptions>),
    /// Write one file of a snapshot; as [`Request::Show`].
    ShowFile(String, Option<WorkspaceOptions>, RelPath),
    /// List what a snapshot has; as [`Request::Show`].
    ListFiles(String, Option<WorkspaceOptions>),
    /// Say what a run does as it does it.
    Follow(String),
    /// Whether a path is captured.
    Why(WorkspaceOptions, RelPath, Option<String>),
    /// Print what was said in a run or a session, after this position of the log.
    Transcript { id: String, from: Option<u64> },
    /// Write what is kept of a run or a session into a directory.
    Export { id: String, to: PathBuf },
    /// Print events.
    Events(EventsOf),
    /// Print events, and go on with those to come.
    FollowEvents(EventsOf),
    /// Make a repository.
    Init(InitOptions),
    /// Clone a repository.
    Clone(Box<CloneOptions>),
    /// What is asked of tasks.
    Task(TaskRequest),
    /// Go on with a task that waits.
    FollowUp(Box<FollowUpRequest>),
    /// What is asked of reviews.
    Review(ReviewRequest),
    /// Have a run change what it has handed in.
    Revise(Box<ChangesRequest>),
    /// What is asked of the worktrees of runs.
    Worktree(WorktreeRequest),
    /// What is asked of notices.
    Notices(NoticesRequest),
    /// List artifacts.
    Artifacts(Option<String>),
    /// Read an artifact.
    GetArtifact(String),
    /// Remove an artifact.
    RemoveArtifact(String),
    /// Prove that everything can be restored.
    Verify(WorkspaceOptions),
    /// Forget, and free space.
    Gc(WorkspaceOptions, GcOptions, Option<LogRetention>),
    /// Say what a purge would remove.
    PlanPurge(WorkspaceOptions, PurgeTarget),
    /// Remove content from every snapshot.
    Purge(WorkspaceOptions, PurgeTarget),
    /// Say what the user has set once.
    Config(ConfigRequest),
    /// Print a completion script.
    Completions(Shell),
}

/// What is asked of the file in which users set what holds everywhere.
#[derive(Debug)]
pub(crate) enum ConfigRequest {
    /// Where it is.
    Path,
    /// What holds, in this workspace if there is one.
    Show(Option<PathBuf>),
    /// Whether it is right.
    Check,
}

/// What is asked of reviews; a run is named by its id or the beginning of it.
#[derive(Debug)]
pub(crate) enum ReviewRequest {
    /// List the runs that wait for a decision.
    List,
    /// Show what a run has handed in.
    Show(String),
    /// Compare it with what the run was cut from.
    Diff(String, DiffView),
    /// Approve it, and merge it.
    Approve(ApproveRequest),
    /// Decline it.
    Decline {
        run: String,
        /// Whose decision it is.
        by: Option<String>,
    },
}

/// A run that is done again.
#[derive(Debug)]
pub(crate) struct RetryRequest {
    pub(crate) run: String,
    /// What does it; `None`: what the run was started with.
    pub(crate) command: Option<CommandAdapter>,
}

/// How something is approved.
#[derive(Debug)]
pub(crate) struct ApproveRequest {
    pub(crate) run: String,
    /// The beginning of the commit that was looked at.
    pub(crate) commit: Option<String>,
    pub(crate) ref_only: bool,
    pub(crate) require_current_base: bool,
    /// Whose decision it is.
    pub(crate) by: Option<String>,
}

/// What is to be changed in what a run has handed in.
#[derive(Debug)]
pub(crate) struct ChangesRequest {
    pub(crate) run: String,
    pub(crate) request: ChangeRequest,
    /// What changes it; `None`: what the run was started with.
    pub(crate) command: Option<CommandAdapter>,
}

/// What is asked of the worktrees of runs; a run is named by its id or the beginning of it.
#[derive(Debug)]
pub(crate) enum WorktreeRequest {
    /// List those that are kept.
    List,
    /// Print where one is.
    Path(String),
    /// Let go of one.
    Discard(String),
}

/// What is asked of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticesRequest {
    /// List them.
    List {
        /// Only those that are to be sent.
        pending: bool,
    },
    /// Send those that are to be sent.
    Send {
        /// When this was asked.
        since: Timestamp,
    },
}

/// What is asked of tasks.
#[derive(Debug)]
pub(crate) enum TaskRequest {
    /// Name the branch of one.
    Name(Box<WorkBranchOptions>),
    /// List them.
    List,
    /// Show one.
    Show(Box<ShowTask>),
    /// Bring a workspace to the branch of one.
    Resume(Box<WorkspaceOptions>, Box<WorkBranchOptions>),
    /// Save the work of one.
    Checkpoint(Box<WorkspaceOptions>, Box<WorkBranchOptions>),
    /// Save the work of the run whose command this is.
    CheckpointOfRun(Box<CurrentRun>, Box<BranchArgs>),
    /// Say that the run whose command this is cannot go on without a person.
    Block(Box<CurrentRun>, String),
    /// Something with work that no remote is proven to have.
    Quarantine(Box<QuarantineRequest>),
    /// Let a finding be sent, or no more; `None`: list those that may be.
    AllowSecret(Box<WorkspaceOptions>, Option<(AllowedSecret, Allowance)>),
}

/// What is asked of work that no remote is proven to have.
#[derive(Debug)]
pub(crate) enum QuarantineRequest {
    /// List it.
    List(QuarantineScope),
    /// Bring it back to the files of its workspace.
    Restore(WorkspaceOptions, String),
    /// Let go of it.
    Discard(WorkspaceOptions, String),
}

impl QuarantineRequest {
    fn is_list(&self) -> bool {
        matches!(self, Self::List(_))
    }

    fn workspace(&self) -> Option<&Path> {
        match self {
            Self::List(_) => None,
            Self::Restore(workspace, _) | Self::Discard(workspace, _) => Some(&workspace.path),
        }
    }
}

/// What the user decides about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// It may be sent.
    Given,
    /// It may not be sent any more.
    TakenBack,
}

/// A task to be shown.
#[derive(Debug)]
pub(crate) struct ShowTask {
    /// It, with its namespace if it has one.
    pub(crate) name: String,
    /// Where its work would be saved; `None`: no workspace was named or can be meant.
    pub(crate) workspace: Option<WorkspaceOptions>,
    /// Where it would go from there.
    pub(crate) branch: WorkBranchOptions,
    /// What is typed and set of that.
    pub(crate) settings: Vec<Held>,
}

/// A task that waits, and is to be gone on with.
#[derive(Debug)]
pub(crate) struct FollowUpRequest {
    /// It, with its namespace if it has one.
    pub(crate) task: String,
    pub(crate) input: FollowUpInput,
    /// The commit that it is to go on from, if that was typed.
    pub(crate) expect: Option<String>,
    /// Who asks the remote, if that was typed.
    pub(crate) token: TokenArgs,
    /// What goes on with it; `None`: what its run was started with.
    pub(crate) command: Option<CommandAdapter>,
    /// Where its workspace lies, if that was said.
    pub(crate) workspace: Option<PathBuf>,
    /// The current directory.
    pub(crate) current: Option<PathBuf>,
    /// What the user has set once.
    pub(crate) config: Config,
}

/// The run whose command this is.
#[derive(Debug)]
pub(crate) struct CurrentRun {
    pub(crate) id: RunId,
    /// What the state directory is known by that has it.
    pub(crate) state: Option<OsString>,
    /// What the user has set once.
    pub(crate) config: Config,
}

/// Which events are printed.
#[derive(Debug)]
pub(crate) struct EventsOf {
    pub(crate) query: EventQuery,
    /// The run, by its id or the beginning of it.
    pub(crate) run: Option<String>,
}

/// A command to be run.
#[derive(Debug)]
pub(crate) struct RunRequest {
    /// `None`: in a session of its own, which ends with the run.
    pub(crate) session: Option<SessionId>,
    /// Without a cancellation; the caller adds one.
    pub(crate) options: RunOptions,
    /// The command.
    pub(crate) adapter: CommandAdapter,
    /// What to add to a suggested command line so that it is about this workspace; may be empty.
    pub(crate) elsewhere: String,
    /// Whether what it hands in is merged at once.
    pub(crate) merges: bool,
}

/// The commands of a file, to be run each once.
#[derive(Debug)]
pub(crate) struct StepsRequest {
    pub(crate) file: PathBuf,
    /// As of [`RunRequest`].
    pub(crate) session: Option<SessionId>,
    /// As of [`RunRequest`].
    pub(crate) options: RunOptions,
    /// As of [`RunRequest`].
    pub(crate) elsewhere: String,
}

/// A run to go on with.
#[derive(Debug)]
pub(crate) struct ResumeRequest {
    /// Its id, or the beginning of it.
    pub(crate) run: String,
    /// What goes on with it; `None`: its steps.
    pub(crate) command: Option<CommandAdapter>,
    /// How long an answer is waited for before the run rests, if that was said.
    pub(crate) wait: Option<Duration>,
    /// Where its workspace lies, if that was said.
    pub(crate) workspace: Option<PathBuf>,
    /// The current directory.
    pub(crate) current: Option<PathBuf>,
}

/// An operation to be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UndoRequest {
    /// Where to look for it: the workspace that was named, or the current directory and then every
    /// directory above it.
    pub(crate) candidates: Vec<PathBuf>,
    /// Which one, and how much of it. The paths are taken from the first candidate.
    pub(crate) undo: stillframe::UndoRequest,
    /// Whether to say what would be done, and do nothing.
    pub(crate) is_plan: bool,
}

impl UndoRequest {
    /// The undo as the candidate of this number has it, whose paths are its own.
    pub(crate) fn at(&self, candidate: usize) -> stillframe::UndoRequest {
        let below = match (self.candidates.first(), self.candidates.get(candidate)) {
            (Some(first), Some(above)) => below(first, above),
            _ => RelPath::root(),
        };
        let mut undo = self.undo.clone();
        for path in &mut undo.paths {
            *path = joined(&below, path);
        }
        if undo.paths.iter().any(RelPath::is_root) {
            // "." beside others asks for everything.
            undo.paths.clear();
        }
        undo
    }
}

/// The path of a directory in one that is above it.
fn below(directory: &Path, above: &Path) -> RelPath {
    let below = directory.strip_prefix(above).unwrap_or(Path::new(""));
    RelPath::new(below.as_os_str().as_encoded_bytes()).unwrap_or(RelPath::root())
}

/// The path of what lies in `directory` at `path`.
fn joined(directory: &RelPath, path: &RelPath) -> RelPath {
    path.names()
        .fold(directory.clone(), |at, name| at.join(name))
}

/// How a diff is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiffView {
    /// The paths with their status, and the totals.
    Summary,
    /// The patch.
    Patch,
    /// Lines per file, and the totals.
    Stat,
    /// The paths.
    NameOnly,
    /// The paths with their status.
    NameStatus,
}

/// Which workspace a command is about.
struct Chooser<'a> {
    named: Option<OsString>,
    surroundings: &'a Surroundings,
}

impl Request {
    /// What `command` means, typed in these surroundings. `json`: whether a document is wanted.
    pub(crate) fn lower(
        command: Command,
        named_workspace: Option<OsString>,
        json: bool,
        surroundings: &Surroundings,
    ) -> Result<Self, Failure> {
        let chooser = Chooser {
            named: named_workspace,
            surroundings,
        };
        Ok(match command {
            Command::Run(args) => run(*args, json, &chooser)?,
            Command::Retry { run, command } => Self::Retry(RetryRequest {
                run,
                command: command_of(command, json),
            }),
            Command::Resume { run, wait, command } => Self::Resume(Box::new(ResumeRequest {
                run,
                wait,
                command: command_of(command, json),
                workspace: chooser.named.as_ref().map(PathBuf::from),
                current: surroundings.current_dir.clone(),
            })),
            Command::Cancel { run } => Self::Cancel(run),
            Command::Answer {
                question: Some(question),
                answer: Some(answer),
            } => Self::Answer { question, answer },
            Command::Answer { question, .. } => Self::Questions(question),
            Command::Snapshot(SnapshotArgs {
                verb: Some(verb), ..
            }) => {
                let workspace = chooser.plain()?;
                match verb {
                    SnapshotVerb::Rm { ids } => Self::RemoveSnapshots(workspace, ids),
                    SnapshotVerb::Pin { id } => Self::Pin(workspace, id),
                    SnapshotVerb::Unpin { id } => Self::Unpin(workspace, id),
                }
            }
            Command::Snapshot(args) => snapshot(args, &chooser)?,
            Command::List(args) => Self::List(list(args, &chooser)?),
            Command::Diff(args) => diff(args, json, &chooser)?,
            Command::Restore(args) => restore(args, &chooser)?,
            Command::Undo(args) => undo(args, &chooser)?,
            Command::Runs(args) => Self::Runs(runs(args, &chooser)?),
            Command::Sessions(args) => Self::Sessions(sessions(args)),
            Command::Show {
                id, follow: true, ..
            } if json => {
                return Err(Failure::invalid(format!(
                    "what is followed is no one document; \"stillframe events --follow\" prints the events of {} as JSON",
                    printable(Path::new(&id))
                )));
            }
            Command::Show {
                id, follow: true, ..
            } => Self::Follow(id.to_string_lossy().into_owned()),
            Command::Show { id, files, .. } => show(&id, files, &chooser)?,
            Command::Why { path, snapshot } => {
                let typed = [path];
                let (place, mut paths) = chooser.choose_for(&typed)?;
                let path = paths.pop().unwrap_or(RelPath::root());
                let why = Self::Why(chooser.configured_at(place.clone()).0, path, snapshot);
                chooser.reading(&place, &typed, why)?
            }
            Command::Events(args) => events(args, &chooser),
            Command::Transcript { id, from } => Self::Transcript {
                id: id.to_string_lossy().into_owned(),
                from,
            },
            Command::Export { id, to } => Self::Export {
                id: id.to_string_lossy().into_owned(),
                to,
            },
            Command::Init { to, branch } => Self::Init(InitOptions::at(to).branch(branch)),
            Command::Clone { address, to, token } => chooser.clone_of(address, to, token),
            Command::Task { command } => task(command, json, &chooser)?,
            Command::Review { command } => review(command, json),
            Command::Worktree { command } => Self::Worktree(worktree(command)),
            Command::Notices { send: true, .. } => Self::Notices(send_notices(surroundings)?),
            Command::Notices { pending, .. } => Self::Notices(NoticesRequest::List { pending }),
            Command::Artifact { command } => match command {
                ArtifactCommand::List { run } => {
                    Self::Artifacts(run.map(|id| id.to_string_lossy().into_owned()))
                }
                ArtifactCommand::Get { key } => Self::GetArtifact(key),
                ArtifactCommand::Rm { key } => Self::RemoveArtifact(key),
            },
            Command::Verify => Self::Verify(chooser.plain()?),
            Command::Gc(args) => {
                let (workspace, settings) = chooser.configured()?;
                let log = log_of(&args, settings.log_retention);
                Self::Gc(workspace, gc(&args, settings.retention), log)
            }
            Command::Purge(args) => purge(args, &chooser)?,
            Command::Config { command } => Self::Config(config(command, &chooser)),
            Command::Completions { shell } => Self::Completions(shell),
        })
    }

    /// Whether somebody who stands below a workspace may mean that one. An undo looks above by
    /// itself.
    pub(crate) fn may_be_meant_for_above(&self) -> bool {
        let writes = matches!(
            self,
            Self::Run(_)
                | Self::Steps(_)
                | Self::Snapshot(..)
                | Self::SnapshotIfChanged(..)
                | Self::RemoveSnapshots(..)
                | Self::Pin(..)
                | Self::Unpin(..)
                | Self::Restore(..)
                | Self::Gc(..)
                | Self::Purge(..)
        );
        writes || self.reads()
    }

    /// Whether it is about a workspace, and touches neither that nor what is kept of it.
    pub(crate) fn reads(&self) -> bool {
        matches!(
            self,
            Self::ReadAbove(..)
                | Self::List(_)
                | Self::Diff(..)
                | Self::PlanRestore(..)
                | Self::Copy(..)
                | Self::Why(..)
                | Self::Verify(_)
                | Self::PlanPurge(..)
                | Self::Runs(_)
                | Self::Show(_, Some(_))
                | Self::ShowFile(_, Some(_), _)
                | Self::ListFiles(_, Some(_))
        )
    }

    /// Whether it is one question that is answered, or one capture that is taken, and nothing goes
    /// on meanwhile.
    pub(crate) fn is_one_question(&self) -> bool {
        self.needs_no_writing() || matches!(self, Self::Snapshot(..))
    }

    /// Whether it tells what is there, so that it has an answer also where nothing can be written.
    pub(crate) fn needs_no_writing(&self) -> bool {
        let is_list = |request: &TaskRequest| match request {
            TaskRequest::Name(_) | TaskRequest::List | TaskRequest::Show(_) => true,
            TaskRequest::Quarantine(request) => request.is_list(),
            _ => false,
        };
        self.reads()
            || matches!(self, Self::Task(request) if is_list(request))
            || matches!(
                self,
                Self::Show(..)
                    | Self::ShowFile(..)
                    | Self::ListFiles(..)
                    | Self::WriteAbove(_)
                    | Self::Events(_)
                    | Self::Sessions(_)
                    | Self::Transcript { .. }
                    | Self::Export { .. }
                    | Self::Review(ReviewRequest::List | ReviewRequest::Show(_))
                    | Self::Worktree(WorktreeRequest::List | WorktreeRequest::Path(_))
                    | Self::Notices(NoticesRequest::List { .. })
                    | Self::Artifacts(_)
                    | Self::GetArtifact(_)
                    | Self::Questions(_)
            )
    }

    /// This, about the workspace at `above`, if it [reads](Self::reads). A path that was named from
    /// the directory below stays the same file.
    pub(crate) fn about(mut self, above: PathBuf) -> Self {
        let below = self.workspace().map(|here| below(here, &above));
        let below = below.unwrap_or(RelPath::root());
        match &mut self {
            Self::List(SnapshotQuery { workspace, .. })
            | Self::Verify(workspace)
            | Self::Show(_, Some(workspace))
            | Self::ShowFile(_, Some(workspace), _)
            | Self::ListFiles(_, Some(workspace)) => {
                workspace.path = above;
            }
            Self::Diff(workspace, request, _) => {
                workspace.path = above;
                for path in &mut request.options.paths {
                    *path = joined(&below, path);
                }
            }
            Self::PlanRestore(workspace, request) => {
                workspace.path = above;
                for path in &mut request.paths {
                    *path = joined(&below, path);
                }
            }
            Self::Copy(workspace, request) => {
                workspace.path = above;
                for path in &mut request.paths {
                    *path = joined(&below, path);
                }
            }
            Self::Why(workspace, path, _) => {
                workspace.path = above;
                *path = joined(&below, path);
            }
            Self::PlanPurge(workspace, target) => {
                workspace.path = above;
                if let PurgeTarget::Path(path) = target {
                    *path = joined(&below, path);
                }
            }
            Self::Runs(query) => query.workspace = Some(above),
            _ => {}
        }
        self
    }

    /// The directory that it is about, if it is about one.
    pub(crate) fn workspace(&self) -> Option<&Path> {
        match self {
            Self::Run(request) => request.options.workspace.as_ref().map(|w| w.path.as_path()),
            Self::Steps(request) => request.options.workspace.as_ref().map(|w| w.path.as_path()),
            Self::Resume(request) => request.workspace.as_deref(),
            Self::FollowUp(request) => request.workspace.as_deref(),
            Self::Snapshot(workspace, _)
            | Self::SnapshotIfChanged(workspace, _)
            | Self::RemoveSnapshots(workspace, _)
            | Self::Pin(workspace, _)
            | Self::Unpin(workspace, _)
            | Self::List(SnapshotQuery { workspace, .. })
            | Self::Diff(workspace, ..)
            | Self::PlanRestore(workspace, _)
            | Self::Copy(workspace, _)
            | Self::Restore(workspace, _)
            | Self::Why(workspace, ..)
            | Self::Verify(workspace)
            | Self::PlanPurge(workspace, _)
            | Self::Purge(workspace, _)
            | Self::Gc(workspace, ..)
            | Self::Show(_, Some(workspace))
            | Self::ShowFile(_, Some(workspace), _)
            | Self::ListFiles(_, Some(workspace)) => Some(&workspace.path),
            Self::Task(
                TaskRequest::Checkpoint(workspace, _) | TaskRequest::AllowSecret(workspace, _),
            ) => Some(&workspace.path),
            Self::Task(TaskRequest::Quarantine(request)) => request.workspace(),
            Self::Undo(request) => request.candidates.first().map(PathBuf::as_path),
            Self::Runs(query) => query.workspace.as_deref(),
            Self::Show(_, None)
            | Self::ShowFile(_, None, _)
            | Self::ListFiles(_, None)
            | Self::WriteAbove(_)
            | Self::ReadAbove(..)
            | Self::Follow(_)
            | Self::Cancel(_)
            | Self::Questions(_)
            | Self::Answer { .. }
            | Self::Sessions(_)
            | Self::Events(_)
            | Self::FollowEvents(_)
            | Self::Transcript { .. }
            | Self::Export { .. }
            | Self::Init(_)
            | Self::Clone(_)
            | Self::Task(_)
            | Self::Review(_)
            | Self::Revise(_)
            | Self::Retry(_)
            | Self::Worktree(_)
            | Self::Notices(_)
            | Self::Artifacts(_)
            | Self::GetArtifact(_)
            | Self::RemoveArtifact(_)
            | Self::Config(_)
            | Self::Completions(_) => None,
        }
    }
}

/// A path to which nothing is written: no workspace was named, and it is not below the current
/// directory.
#[derive(Debug)]
pub(crate) struct OutsidePath {
    typed: OsString,
    /// The nearest directory that has both.
    pub(crate) above: PathBuf,
}

impl OutsidePath {
    /// `workspace`: the one above that has both, if there is one.
    pub(crate) fn refusal(&self, workspace: Option<&Path>) -> Failure {
        let way = match workspace {
            Some(workspace) => format!(
                "add --workspace {} and name paths from there",
                quoted(workspace.as_os_str())
            ),
            None => "name it with --workspace DIR, and paths from there".to_owned(),
        };
        Failure::invalid(format!(
            "{} is not below the current directory, and nothing above that is written to unless its workspace is named; nothing was touched, {way}",
            quoted(&self.typed)
        ))
    }

    /// That nothing above was captured.
    pub(crate) fn in_no_workspace(&self) -> Failure {
        Failure::invalid(format!(
            "{} is not below a workspace that the current directory is in; name one with --workspace DIR",
            quoted(&self.typed)
        ))
    }
}

impl Chooser<'_> {
    /// The directory that was named, else the current one.
    ///
    /// `/` and the home directory hold far more than anybody means to capture by the way, so they
    /// have to be named.
    fn choose(&self) -> Result<PathBuf, Failure> {
        if let Some(named) = &self.named {
            return Ok(PathBuf::from(named));
        }
        self.unnamed(self.current()?)
    }

    /// The directory, which nobody named, unless it has to be.
    fn unnamed(&self, current: &Path) -> Result<PathBuf, Failure> {
        let what = if current.parent().is_none() {
            "the root directory"
        } else if self.surroundings.home.as_deref() == Some(current) {
            "the home directory"
        } else {
            return Ok(current.to_owned());
        };
        Err(Failure::invalid(format!(
            "{what} is a workspace only if it is named, and nothing was done; if you mean it, add --workspace {}, and if snapshots are kept below it, name another place for them with STILLFRAME_HOME",
            quoted(current.as_os_str())
        )))
    }

    /// What paths that were typed mean, and the directory that they are below.
    ///
    /// From a directory within a workspace a path may lead up and down again, as for git. Then that
    /// is the nearest directory above the current one that has all of them.
    fn choose_for(&self, typed: &[OsString]) -> Result<(PathBuf, Vec<RelPath>), Failure> {
        if self.named.is_some() || !typed.iter().any(leads_out) {
            return Ok((self.choose()?, rel_paths(typed)?));
        }
        let here = self.current()?;
        let places: Vec<PathBuf> = typed
            .iter()
            .map(|path| place(here, path))
            .collect::<Result<_, _>>()?;
        let has_all = |above: &&Path| places.iter().all(|place| place.starts_with(above));
        let above = here.ancestors().find(has_all).unwrap_or(Path::new("/"));
        let paths = places.iter().map(|place| {
            let path = place.strip_prefix(above).unwrap_or(place);
            match path.as_os_str().is_empty() {
                true => Ok(RelPath::root()),
                false => rel_path(path.as_os_str()),
            }
        });
        let paths = paths.collect::<Result<_, _>>()?;
        if above == here {
            return Ok((self.unnamed(above)?, paths));
        }
        match self.outside(above, typed)? {
            // No workspace, since what is kept lies in it wherever that is.
            Some(outside) if above.parent().is_none() => Err(outside.in_no_workspace()),
            _ => Ok((above.to_owned(), paths)),
        }
    }

    /// The request, which reads at `place`: one that has to be named is it only if something was
    /// captured there.
    fn reading(
        &self,
        place: &Path,
        typed: &[OsString],
        request: Request,
    ) -> Result<Request, Failure> {
        Ok(match self.unnamed_outside(place, typed)? {
            Some(outside) => Request::ReadAbove(Box::new(request), outside),
            None => request,
        })
    }

    /// As [`Self::outside`], if that is a place that has to be named.
    fn unnamed_outside(
        &self,
        place: &Path,
        typed: &[OsString],
    ) -> Result<Option<OutsidePath>, Failure> {
        let outside = self.outside(place, typed)?;
        Ok(outside.filter(|outside| self.unnamed(&outside.above).is_err()))
    }

    /// The path among `typed` that takes what writes to `place` above the current directory, which
    /// it does not do by itself.
    fn outside(&self, place: &Path, typed: &[OsString]) -> Result<Option<OutsidePath>, Failure> {
        if self.named.is_some() || place == self.current()? {
            return Ok(None);
        }
        let outside = typed.iter().find(|path| leads_out(path));
        Ok(outside.map(|path| OutsidePath {
            typed: path.clone(),
            above: place.to_owned(),
        }))
    }

    /// A clone, which is of no workspace yet.
    fn clone_of(&self, address: OsString, to: PathBuf, token: TokenArgs) -> Request {
        let set = self.surroundings.config.settings(None).task;
        let options = branch::of_clone(CloneOptions::of(address, to), token, set);
        Request::Clone(Box::new(options))
    }

    fn plain(&self) -> Result<WorkspaceOptions, Failure> {
        Ok(WorkspaceOptions::at(self.choose()?))
    }

    /// The workspace in which a snapshot is so named; `None`: the name is an id.
    fn of_name(&self, name: &str) -> Result<Option<WorkspaceOptions>, Failure> {
        match SnapshotName::parse(name)?.is_relative() {
            true => self.plain().map(Some),
            false => Ok(None),
        }
    }

    /// With what is set for it of what is captured.
    fn configured(&self) -> Result<(WorkspaceOptions, Settings), Failure> {
        Ok(self.configured_at(self.choose()?))
    }

    /// What is set of tasks, for the workspace if there is one.
    fn of_tasks(&self) -> TaskSettings {
        let workspace = self.choose().ok();
        self.surroundings.config.settings(workspace.as_deref()).task
    }

    fn configured_at(&self, place: PathBuf) -> (WorkspaceOptions, Settings) {
        let options = WorkspaceOptions::at(place);
        let settings = self.surroundings.config.settings(Some(&options.path));
        let mut options = options.ignore(settings.ignore.clone());
        if let Some(bytes) = settings.max_untracked_file_bytes {
            options = options.max_untracked_file_bytes(bytes);
        }
        (options, settings)
    }

    fn capturing(&self, args: CaptureArgs) -> Result<WorkspaceOptions, Failure> {
        let (mut options, settings) = self.configured()?;
        options = options
            .strategy(args.strategy)
            .include(rel_paths(&args.include)?)
            .retain_content(retained(&args, settings.retain_content_bytes));
        options.ignore.paths.extend(args.ignore_path);
        options.ignore.globs.extend(args.ignore_glob);
        if let Some(bytes) = args.max_untracked_file_bytes {
            options = options.max_untracked_file_bytes(bytes);
        }
        if let Some(files) = args.max_files.or(settings.max_files) {
            options = options.max_files(files);
        }
        if let Some(bytes) = args.max_new_bytes.or(settings.max_new_bytes) {
            options = options.max_new_bytes(bytes);
        }
        if let Some(bytes) = settings.max_patch_bytes {
            options = options.max_patch_bytes(bytes);
        }
        Ok(options)
    }

    /// When that was. What is longer ago than any time that can be written was at the first of
    /// those.
    fn time(&self, moment: Moment) -> Timestamp {
        match moment {
            Moment::At(time) => time,
            Moment::Ago(age) => self
                .surroundings
                .now
                .checked_sub(age)
                .unwrap_or(Timestamp::MIN),
        }
    }

    /// Where an operation is looked for, from this directory on.
    fn candidates(&self, first: PathBuf) -> Vec<PathBuf> {
        match self.named {
            Some(_) => vec![first],
            None => first.ancestors().map(Path::to_owned).collect(),
        }
    }

    fn current(&self) -> Result<&Path, Failure> {
        self.surroundings.current_dir.as_deref().ok_or_else(|| {
            Failure::invalid(
                "the current directory is gone or cannot be read; name one with --workspace DIR",
            )
        })
    }
}

fn retained(args: &CaptureArgs, set: Option<u64>) -> RetainContent {
    if args.retain_content || args.no_retain_content {
        return args.retain_content.into();
    }
    let bytes = args.retain_content_bytes.or(set);
    match bytes.unwrap_or(DEFAULT_RETAIN_CONTENT_BYTES) {
        0 => RetainContent::Always,
        bytes => RetainContent::UpTo(bytes),
    }
}

/// What makes a command line be about this workspace, wherever one stands.
pub(crate) fn elsewhere(workspace: &OsStr) -> String {
    format!(" --workspace {}", quoted(workspace))
}

/// A command that was typed, if one was.
fn command_of(words: Vec<OsString>, json: bool) -> Option<CommandAdapter> {
    let (program, rest) = words.split_first()?;
    Some(foreground(program.clone(), rest, json))
}

fn review(command: ReviewCommand, json: bool) -> Request {
    Request::Review(match command {
        ReviewCommand::List => ReviewRequest::List,
        ReviewCommand::Show { run } => ReviewRequest::Show(run),
        ReviewCommand::Diff { run, stat, patch } => ReviewRequest::Diff(
            run,
            match (stat, patch) {
                (_, true) => DiffView::Patch,
                (true, _) => DiffView::Stat,
                _ => DiffView::Summary,
            },
        ),
        ReviewCommand::Approve {
            run,
            commit,
            ref_only,
            require_current_base,
            by,
        } => ReviewRequest::Approve(ApproveRequest {
            run,
            commit,
            ref_only,
            require_current_base,
            by,
        }),
        ReviewCommand::RequestChanges {
            run,
            message,
            by,
            command,
        } => {
            let mut request = ChangeRequest::new(message);
            request.reviewer = by;
            return Request::Revise(Box::new(ChangesRequest {
                run,
                request,
                command: command_of(command, json),
            }));
        }
        ReviewCommand::Decline { run, by } => ReviewRequest::Decline { run, by },
    })
}

fn worktree(command: WorktreeCommand) -> WorktreeRequest {
    match command {
        WorktreeCommand::List => WorktreeRequest::List,
        WorktreeCommand::Path { run } => WorktreeRequest::Path(run),
        WorktreeCommand::Discard { run } => WorktreeRequest::Discard(run),
    }
}

fn config(command: ConfigCommand, chooser: &Chooser<'_>) -> ConfigRequest {
    match command {
        ConfigCommand::Show => ConfigRequest::Show(chooser.choose().ok()),
        ConfigCommand::Path => ConfigRequest::Path,
        ConfigCommand::Check => ConfigRequest::Check,
    }
}

/// How a run works in a worktree of its own, if it shall.
fn isolation(args: &mut RunArgs) -> Result<Option<IsolationOptions>, Failure> {
    if !args.isolate {
        return Ok(None);
    }
    let mut options = IsolationOptions::new()
        .scope(std::mem::take(&mut args.scope))
        .with(rel_paths(&args.with)?);
    options.from = args.from.take();
    Ok(Some(options))
}

fn run(mut args: RunArgs, json: bool, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let on_record = on_record(&args);
    let isolation = isolation(&mut args)?;
    let mut workspace = chooser
        .capturing(args.capture)?
        .rollback_on_failure(args.rollback_on_failure)
        .capture_patch(!args.no_patch)
        .watch(args.watch);
    if let Some(bytes) = args.max_patch_bytes {
        workspace = workspace.max_patch_bytes(bytes);
    }
    let input = match &args.steps {
        Some(file) => format!("steps {}", quoted(file.as_os_str())),
        None => command_line(&args.command),
    };
    let mut limits = RunLimits::default().forbid(args.forbid);
    if let Some(files) = args.max_changed_files {
        limits = limits.max_changed_files(files);
    }
    if let Some(bytes) = args.max_changed_bytes {
        limits = limits.max_changed_bytes(bytes);
    }
    let mut options = RunOptions::new(input).workspace(workspace).limits(limits);
    let id = match args.run_id {
        Some(id) => Some(id),
        None => run_id(chooser.surroundings)?,
    };
    if let Some(id) = id {
        options = options.run_id(id);
    }
    match args.task {
        Some(task) => {
            let mut branch = branch::of_task(task, args.branch, chooser.of_tasks())?;
            if let Some(interval) = args.checkpoint_every {
                branch = branch.checkpoint_interval(interval);
            }
            branch.start_point = args.start.start_point;
            branch.expected = args.start.expect;
            branch::named(&branch)?;
            options = options.work_branch(branch).metadata(on_record.clone());
        }
        None if args.branch.is_given()
            || args.start.start_point.is_some()
            || args.start.expect.is_some()
            || args.checkpoint_every.is_some() =>
        {
            return Err(Failure::usage(
                "--namespace, --remote, --start-point, --expect, --message, --on-divergence, --token-env, --token-command and --checkpoint-every are of a task; add --task ID; nothing was run",
            ));
        }
        None => {}
    }
    if let Some(isolation) = isolation {
        options = options.isolated(isolation).metadata(on_record);
    }
    let elsewhere = chooser.named.as_deref().map(elsewhere).unwrap_or_default();
    if let Some(wait) = args.wait {
        options = options.hot_wait(wait);
    }
    if let Some(file) = args.steps {
        return Ok(Request::Steps(Box::new(StepsRequest {
            file,
            session: args.session,
            options,
            elsewhere,
        })));
    }
    let (program, rest) = args.command.split_first().expect("clap requires a command");
    if program.is_empty() {
        return Err(Failure::invalid(
            "the name of the command is empty, perhaps a variable that is not set; nothing was run",
        ));
    }
    let mut adapter = foreground(program.clone(), rest, json);
    if let Some(limit) = args.timeout {
        adapter = adapter.timeout(limit);
    }
    if let Some(limit) = args.idle_timeout {
        adapter = adapter.idle_timeout(limit);
    }
    Ok(Request::Run(Box::new(RunRequest {
        session: args.session,
        options,
        adapter,
        elsewhere,
        merges: args.merge,
    })))
}

/// The keys of a run's metadata that have the words of its command, and its limits in milliseconds.
pub(crate) const COMMAND: &str = "command";
pub(crate) const TIMEOUT: &str = "timeout_ms";
pub(crate) const IDLE_TIMEOUT: &str = "idle_timeout_ms";

/// What is kept of a run's command, by which it can be started again: its words, if all of them are
/// text, and its limits.
fn on_record(args: &RunArgs) -> serde_json::Value {
    let words: Option<Vec<&str>> = args.command.iter().map(|word| word.to_str()).collect();
    let limit = |limit: Option<Duration>| {
        let milliseconds = limit.map(|limit| u64::try_from(limit.as_millis()));
        milliseconds.map(|milliseconds| milliseconds.unwrap_or(u64::MAX))
    };
    serde_json::json!({
        COMMAND: words,
        TIMEOUT: limit(args.timeout),
        IDLE_TIMEOUT: limit(args.idle_timeout),
    })
}

/// A command that has the terminal to itself while it runs. `json`: stdout is the document's.
pub(crate) fn foreground<A: Into<OsString> + Clone>(
    program: OsString,
    rest: &[A],
    json: bool,
) -> CommandAdapter {
    CommandAdapter::new(program)
        .args(rest.iter().cloned().map(Into::into))
        .stdin(CommandInput::Foreground)
        .adopt_orphans(true)
        .guardian(guardian::die_with_it)
        .ignoring(signals::ignored_and_caught())
        .output(match json {
            true => CommandOutput::Stderr,
            false => CommandOutput::Inherit,
        })
}

fn events(args: EventsArgs, chooser: &Chooser<'_>) -> Request {
    let mut query = args
        .session
        .map_or_else(EventQuery::all, EventQuery::session);
    query.after = args.after;
    query.event_types = args.types;
    query.since = args.since.map(|moment| chooser.time(moment));
    query.after_position = args.from;
    query.limit = args.limit;
    let run = args.run.map(|id| id.to_string_lossy().into_owned());
    let asked = EventsOf { query, run };
    match args.follow {
        false => Request::Events(asked),
        true => Request::FollowEvents(asked),
    }
}

/// Which runs are listed: those of a session, else those of the workspace.
fn runs(args: RunsArgs, chooser: &Chooser<'_>) -> Result<RunQuery, Failure> {
    let mut query = match args.session {
        Some(id) => RunQuery::session(id),
        None => RunQuery::workspace(chooser.choose()?),
    };
    query.incomplete = args.incomplete;
    query.statuses = args.status;
    query.since = args.since.map(|moment| chooser.time(moment));
    query.until = args.until.map(|moment| chooser.time(moment));
    Ok(query)
}

/// Which sessions are listed.
fn sessions(args: SessionsArgs) -> SessionQuery {
    let mut query = SessionQuery::all();
    query.tags = args.tag;
    query.agent_id = args.agent;
    query.parent_id = args.parent;
    query.statuses = args.status;
    query.limit = args.limit;
    query
}

/// Which snapshots are listed.
fn list(args: ListArgs, chooser: &Chooser<'_>) -> Result<SnapshotQuery, Failure> {
    let mut query = SnapshotQuery::of(&chooser.plain()?);
    query.label = args.label.map(Label::new);
    query.limit = args.limit;
    query.since = args.since.map(|moment| chooser.time(moment));
    Ok(query)
}

fn run_id(surroundings: &Surroundings) -> Result<Option<RunId>, Failure> {
    let Some(text) = surroundings.run_id.as_deref().filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    match text.to_string_lossy().parse() {
        Ok(id) => Ok(Some(id)),
        Err(e) => Err(Failure::invalid(format!("STILLFRAME_RUN_ID: {e}"))),
    }
}

/// What follows for a checkpoint where there is no run.
const NAME_THE_TASK: &str = "the task has to be named: stillframe task checkpoint ID";

/// The run whose command this is. `so`: what follows if it is the command of none.
fn current_run(chooser: &Chooser<'_>, so: &str) -> Result<CurrentRun, Failure> {
    let surroundings = chooser.surroundings;
    let text = surroundings.current_run.as_deref();
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Err(Failure::usage(format!(
            "this is no command of a run, so that {so}; nothing was done"
        )));
    };
    match text.to_string_lossy().parse() {
        Ok(id) => Ok(CurrentRun {
            id,
            state: surroundings.current_state.clone(),
            config: surroundings.config.clone(),
        }),
        Err(e) => Err(Failure::invalid(format!("STILLFRAME_CURRENT_RUN: {e}"))),
    }
}

/// That notices are sent, by whoever is set for that.
fn send_notices(surroundings: &Surroundings) -> Result<NoticesRequest, Failure> {
    match surroundings.config.notices() {
        Some(_) => Ok(NoticesRequest::Send {
            since: surroundings.now,
        }),
        None => Err(Failure::usage(
            "config.toml names no command that sends notices ([notices] command); nothing was sent"
                .to_owned(),
        )),
    }
}

fn task(command: TaskCommand, json: bool, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    Ok(Request::Task(match command {
        TaskCommand::Name { id, namespace } => {
            let mut options = WorkBranchOptions::of(id);
            options.namespace = namespace.or(chooser.of_tasks().namespace);
            TaskRequest::Name(Box::new(options))
        }
        TaskCommand::List => TaskRequest::List,
        TaskCommand::Show(args) => TaskRequest::Show(Box::new(show_task(args, chooser)?)),
        TaskCommand::Resume(args) => {
            let mut options = branch::at_place(args.id, args.place, chooser.of_tasks())?;
            options.start_point = args.start.start_point;
            options.expected = args.start.expect;
            branch::named(&options)?;
            let workspace = chooser.configured()?.0;
            TaskRequest::Resume(Box::new(workspace), Box::new(options))
        }
        TaskCommand::Checkpoint(args) => {
            let Some(id) = args.id else {
                let run = current_run(chooser, NAME_THE_TASK)?;
                if chooser.named.is_some() || args.branch.is_of_task() {
                    return Err(Failure::usage(
                        "--workspace, --namespace, --remote and --on-divergence are those of the run without an ID of a task; nothing was done",
                    ));
                }
                return Ok(Request::Task(TaskRequest::CheckpointOfRun(
                    Box::new(run),
                    Box::new(args.branch),
                )));
            };
            let options = branch::of_task(id, args.branch, chooser.of_tasks())?;
            let workspace = chooser.configured()?.0;
            TaskRequest::Checkpoint(Box::new(workspace), Box::new(options))
        }
        TaskCommand::FollowUp(args) => return Ok(follow_up(args, json, chooser)),
        TaskCommand::Block { reason } => TaskRequest::Block(
            Box::new(current_run(chooser, "there is none that could be blocked")?),
            reason,
        ),
        TaskCommand::Quarantine { command } => TaskRequest::Quarantine(Box::new(match command {
            QuarantineCommand::List { all: false } => {
                QuarantineRequest::List(QuarantineScope::Remotes)
            }
            QuarantineCommand::List { all: true } => QuarantineRequest::List(QuarantineScope::All),
            QuarantineCommand::Restore { id } => {
                QuarantineRequest::Restore(chooser.configured()?.0, id)
            }
            QuarantineCommand::Discard { id } => QuarantineRequest::Discard(chooser.plain()?, id),
        })),
        TaskCommand::AllowSecret(args) => {
            let allowance = match args.remove {
                true => Allowance::TakenBack,
                false => Allowance::Given,
            };
            let finding = match (args.rule, args.path, args.fingerprint) {
                (Some(rule), Some(path), Some(fingerprint)) => {
                    let finding = branch::finding(rule, &path, fingerprint)?;
                    Some((finding, allowance))
                }
                _ => None,
            };
            TaskRequest::AllowSecret(Box::new(chooser.plain()?), finding)
        }
    }))
}

/// A task that waits, and its input.
fn follow_up(args: FollowUpArgs, json: bool, chooser: &Chooser<'_>) -> Request {
    let mut words = args.command.into_iter();
    let command = words
        .next()
        .map(|program| foreground(program, words.as_slice(), json));
    Request::FollowUp(Box::new(FollowUpRequest {
        task: args.id,
        input: FollowUpInput::new(args.input_id, args.text),
        expect: args.expect,
        token: args.token,
        command,
        workspace: chooser.named.as_ref().map(PathBuf::from),
        current: chooser.surroundings.current_dir.clone(),
        config: chooser.surroundings.config.clone(),
    }))
}

fn show_task(args: ShowArgs, chooser: &Chooser<'_>) -> Result<ShowTask, Failure> {
    let ShowArgs { id, mut branch } = args;
    let task = match id.rsplit_once('/') {
        Some(_) if branch.place.namespace.is_some() => {
            return Err(Failure::usage(format!(
                "{id:?} has a namespace, and --namespace names one; give it once"
            )));
        }
        Some((namespace, task)) => {
            branch.place.namespace = Some(namespace.to_owned());
            task.to_owned()
        }
        None => id,
    };
    let workspace = chooser.choose().ok();
    let held = chooser
        .surroundings
        .config
        .held(workspace.as_deref(), |_| None);
    let settings = branch::settings(&branch, held);
    let branch = branch::of_task(task, branch, chooser.of_tasks())?;
    let name = match &branch.namespace {
        Some(namespace) => format!("{namespace}/{}", branch.task),
        None => branch.task.clone(),
    };
    Ok(ShowTask {
        name,
        workspace: workspace.map(WorkspaceOptions::at),
        branch,
        settings,
    })
}

fn snapshot(args: SnapshotArgs, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let label = args.label.map_or(Label::MANUAL, Label::new);
    let workspace = chooser.capturing(args.capture)?;
    Ok(match args.skip_unchanged {
        true => Request::SnapshotIfChanged(workspace, label),
        false => Request::Snapshot(workspace, label),
    })
}

fn diff(args: DiffArgs, json: bool, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let view = match (args.patch, args.stat, args.name_only, args.name_status) {
        (true, ..) => DiffView::Patch,
        (_, true, ..) => DiffView::Stat,
        (_, _, true, _) => DiffView::NameOnly,
        (.., true) => DiffView::NameStatus,
        _ => DiffView::Summary,
    };
    let mut options = DiffOptions::default();
    options.capture_patch = view == DiffView::Patch;
    // A document has those that are found without reading anything.
    let shows_renames = !matches!(view, DiffView::Patch | DiffView::NameOnly) && !args.no_renames;
    if shows_renames && !json {
        options.renames = Renames::Similar;
    }
    if let Some(bytes) = args.max_patch_bytes {
        options = options.max_patch_bytes(bytes);
    }
    let to = args.to.as_deref().map_or(DiffEnd::Now, DiffEnd::from);
    let typed = [args.paths, args.paths_since].concat();
    let (place, paths) = chooser.choose_for(&typed)?;
    let mut request = DiffRequest::between(args.from.as_str(), to)
        .options(options)
        .paths(paths);
    request.max_untracked_file_bytes = args.max_untracked_file_bytes;
    let ignore = IgnoreOptions {
        paths: args.ignore_path,
        globs: args.ignore_glob,
    };
    let is_captured = [&request.from, &request.to].contains(&&DiffEnd::Now);
    let include = rel_paths(&args.include)?;
    let chooses = ignore != IgnoreOptions::default()
        || !include.is_empty()
        || args.max_untracked_file_bytes.is_some();
    if chooses && !is_captured {
        return Err(Failure::invalid(
            "what is left out can be said of the workspace as it is, and both sides are snapshots; nothing was compared",
        ));
    }
    let workspace = WorkspaceOptions::at(&place);
    let diff = Request::Diff(workspace.ignore(ignore).include(include), request, view);
    chooser.reading(&place, &typed, diff)
}

fn undo(args: UndoArgs, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let target = args.run.map_or(UndoTarget::Latest, UndoTarget::Run);
    let (place, paths) = chooser.choose_for(&args.paths)?;
    if let Some(outside) = chooser.unnamed_outside(&place, &args.paths)? {
        return Ok(Request::WriteAbove(outside));
    }
    let mut undo = stillframe::UndoRequest::of(target).paths(paths);
    undo.expected_plan = args.apply.map(plan_id);
    Ok(Request::Undo(UndoRequest {
        candidates: chooser.candidates(place),
        undo,
        is_plan: args.plan,
    }))
}

/// Whether a path leads out of the directory that it is named from, or does not begin there.
fn leads_out(typed: &OsString) -> bool {
    let path = Path::new(typed);
    path.is_absolute()
        || path.components().find(|c| *c != Component::CurDir) == Some(Component::ParentDir)
}

/// Where a path is that was named from `here`, which has no links in it. So what is above that is
/// known; a ".." further on may lead anywhere, and stays.
fn place(here: &Path, typed: &OsStr) -> Result<PathBuf, Failure> {
    if typed.is_empty() {
        return rel_path(typed).map(|_| here.to_owned());
    }
    let mut at = here;
    let mut rest = Path::new(typed).components();
    loop {
        let behind = rest.as_path();
        match rest.next() {
            Some(Component::CurDir) => {}
            Some(Component::ParentDir) => at = at.parent().unwrap_or(at),
            _ => return Ok(at.join(behind)),
        }
    }
}

fn plan_id(text: String) -> PlanId {
    text.parse().expect("any text is taken for a plan's id")
}

fn rel_paths(typed: &[OsString]) -> Result<Vec<RelPath>, Failure> {
    typed.iter().map(|path| rel_path(path)).collect()
}

fn restore(args: RestoreArgs, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let (place, mut paths) = chooser.choose_for(&args.paths)?;
    let reads = args.plan || args.to.is_some();
    if !reads && let Some(outside) = chooser.outside(&place, &args.paths)? {
        return Ok(Request::WriteAbove(outside));
    }
    let workspace = WorkspaceOptions::at(&place);
    if paths.iter().any(RelPath::is_root) {
        // "." beside others asks for everything.
        paths.clear();
    }
    if let Some(to) = args.to {
        // From where one stands, as any other program has it.
        let to = match to.is_absolute() {
            true => to,
            false => chooser.current()?.join(to),
        };
        let request = CopyRequest::new(args.snapshot, to).paths(paths);
        return chooser.reading(&place, &args.paths, Request::Copy(workspace, request));
    }
    let mut request = RestoreRequest::to(args.snapshot)
        .paths(paths)
        .repository(args.repository);
    request.expected_plan = args.apply.map(plan_id);
    match args.plan {
        true => chooser.reading(
            &place,
            &args.paths,
            Request::PlanRestore(workspace, request),
        ),
        false => Ok(Request::Restore(workspace, request)),
    }
}

/// A path may lead out of the current directory, as one that is restored may.
fn purge(args: PurgeArgs, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let typed = std::slice::from_ref(&args.target);
    let (place, target) = match purge_target(&args.target) {
        Err(_) if leads_out(&args.target) => {
            let (place, mut paths) = chooser.choose_for(typed)?;
            (place, PurgeTarget::Path(paths.remove(0)))
        }
        target => (chooser.choose()?, target?),
    };
    if !args.plan
        && let Some(outside) = chooser.outside(&place, typed)?
    {
        return Ok(Request::WriteAbove(outside));
    }
    let workspace = WorkspaceOptions::at(&place);
    Ok(match args.plan {
        true => chooser.reading(&place, typed, Request::PlanPurge(workspace, target))?,
        false => Request::Purge(workspace, target),
    })
}

/// What is no text has no pattern in it: it is a path.
fn purge_target(text: &OsStr) -> Result<PurgeTarget, Failure> {
    match text.to_str().map(str::parse) {
        Some(Ok(target @ (PurgeTarget::Content(_) | PurgeTarget::Glob(_)))) => Ok(target),
        _ => Ok(PurgeTarget::Path(rel_path(text)?)),
    }
}

/// `retention`: that of the workspace, which is asked for by name though it is switched off.
fn gc(args: &GcArgs, retention: Option<RetentionOptions>) -> GcOptions {
    let mut options = GcOptions::default();
    options.keep = args.keep;
    options.older_than = args.older_than;
    options.max_bytes = args.max_bytes;
    options.forget_damaged = args.forget_damaged;
    options.retention = args.retention.then(|| retention.unwrap_or_default());
    options.dry_run = args.dry_run;
    options
}

/// What is kept of the log; `None`: it is left alone. `retention`: what is set, if that is asked
/// for.
fn log_of(args: &GcArgs, retention: LogRetention) -> Option<LogRetention> {
    let mut kept = match args.retention {
        true => retention,
        false => LogRetention::default(),
    };
    kept.events_older_than = args.events_older_than.or(kept.events_older_than);
    kept.max_events = args.max_events.or(kept.max_events);
    kept.sessions_older_than = args.sessions_older_than.or(kept.sessions_older_than);
    kept.max_ended_sessions = args.max_ended_sessions.or(kept.max_ended_sessions);
    (kept != LogRetention::default()).then(|| kept.dry_run(args.dry_run))
}

/// A run, a snapshot, what a snapshot has, or one file of it.
fn show(text: &OsStr, lists: bool, chooser: &Chooser<'_>) -> Result<Request, Failure> {
    let (name, path) = name_and_path(text);
    let workspace = chooser.of_name(&name)?;
    Ok(match (path, lists) {
        (Some(_), true) => {
            return Err(Failure::invalid(format!(
                "--files lists what a snapshot has, and {} is one file of one",
                printable(Path::new(text))
            )));
        }
        (Some(path), false) => Request::ShowFile(name, workspace, rel_path(path)?),
        (None, true) => Request::ListFiles(name, workspace),
        (None, false) => Request::Show(name, workspace),
    })
}

/// What is before the first colon, and behind it. The one of "label:" divides nothing.
fn name_and_path(text: &OsStr) -> (String, Option<&OsStr>) {
    const LABEL: &[u8] = b"label:";
    let bytes = text.as_bytes();
    let start = if bytes.starts_with(LABEL) {
        LABEL.len()
    } else {
        0
    };
    let colon = bytes[start..].iter().position(|byte| *byte == b':');
    let end = colon.map_or(bytes.len(), |at| start + at);
    let name = String::from_utf8_lossy(&bytes[..end]).into_owned();
    (name, colon.map(|_| OsStr::from_bytes(&bytes[end + 1..])))
}

/// A path that a person typed. The empty one is refused: it is a variable that a script forgot to
/// set, and not a wish for everything.
fn rel_path(text: &OsStr) -> Result<RelPath, Failure> {
    if text.is_empty() {
        return Err(Failure::invalid(
            "a path is empty; \".\" means the whole workspace",
        ));
    }
    RelPath::from_user(text)
        .map_err(|e| Failure::invalid(format!("{e}; give it relative to the workspace")))
}

/// The command as a person would type it, printable.
fn command_line(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

/// A word as a shell takes it, printable.
pub(crate) fn quoted(word: &OsStr) -> String {
    shell_word(word.as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;
    use stillframe::{ErrorKind, Strategy};

    use super::*;
    use crate::args::Args;

    fn surroundings() -> Surroundings {
        Surroundings {
            current_dir: Some("/home/jo/src/app".into()),
            home: Some("/home/jo".into()),
            run_id: None,
            current_run: None,
            current_state: None,
            now: Timestamp::UNIX_EPOCH,
            config: Config::default(),
        }
    }

    fn lower_in(surroundings: &Surroundings, args: &[&str]) -> Result<Request, Failure> {
        let args = Args::try_parse_from([&["stillframe"], args].concat()).expect("it parses");
        Request::lower(args.command, args.workspace, args.json, surroundings)
    }

    fn lower(args: &[&str]) -> Request {
        lower_in(&surroundings(), args).expect("it means something")
    }

    fn run(args: &[&str]) -> RunRequest {
        match lower(args) {
            Request::Run(request) => *request,
            other => panic!("not a run: {other:?}"),
        }
    }

    #[test]
    fn a_run_with_nothing_said_has_the_defaults() {
        let request = run(&["run", "--", "make", "the test"]);
        let workspace = request.options.workspace.expect("there is one");
        assert_eq!(workspace.path, Path::new("/home/jo/src/app"));
        assert_eq!(workspace.strategy, Strategy::Auto);
        assert!(workspace.capture_patch);
        assert_eq!(workspace.max_patch_bytes, 1_048_576);
        assert_eq!(workspace.max_untracked_file_bytes, 104_857_600);
        assert_eq!(workspace.max_files, 0);
        assert!(!workspace.rollback_on_failure);
        assert!(!workspace.watch);
        assert_eq!(workspace.retain_content, RetainContent::UpTo(1_073_741_824));
        assert_eq!(workspace.ignore, IgnoreOptions::default());
        assert_eq!(request.options.input, "make 'the test'");
        assert_eq!(request.session, None);
        assert_eq!(request.elsewhere, "");
        let adapter = format!("{:?}", request.adapter);
        assert!(
            adapter.contains("Inherit"),
            "stdout is the command's: {adapter}"
        );
    }

    #[test]
    fn the_last_that_is_said_of_content_counts() {
        let retained = |args: &[&str]| {
            let request = run(&[&["run"], args, &["--", "true"]].concat());
            request
                .options
                .workspace
                .expect("there is one")
                .retain_content
        };
        for (args, expected) in [
            (&["--retain-content"][..], RetainContent::Always),
            (&["--no-retain-content"], RetainContent::Never),
            (&["--retain-content-bytes", "2K"], RetainContent::UpTo(2048)),
            (&["--retain-content-bytes", "0"], RetainContent::Always),
            (
                &["--retain-content", "--no-retain-content"],
                RetainContent::Never,
            ),
            (
                &["--no-retain-content", "--retain-content-bytes", "1"],
                RetainContent::UpTo(1),
            ),
            (
                &["--retain-content-bytes", "1", "--retain-content"],
                RetainContent::Always,
            ),
        ] {
            assert_eq!(retained(args), expected, "{args:?}");
        }
    }

    #[test]
    fn a_run_hands_on_everything_that_was_said() {
        let request = run(&[
            "run",
            "--json",
            "--session",
            "ticket-42",
            "--strategy",
            "hash",
            "--ignore-path",
            "a",
            "--ignore-path",
            "b/c",
            "--ignore-glob",
            "*.log",
            "--retain-content",
            "--rollback-on-failure",
            "--no-patch",
            "--watch",
            "--max-patch-bytes",
            "10K",
            "--timeout",
            "90s",
            "--idle-timeout",
            "30s",
            "--max-untracked-file-bytes",
            "0",
            "--max-files",
            "1000",
            "--max-new-bytes",
            "1M",
            "--workspace",
            "/some dir",
            "--",
            "true",
        ]);
        let workspace = request.options.workspace.expect("there is one");
        assert_eq!(workspace.path, Path::new("/some dir"));
        assert_eq!(workspace.strategy, Strategy::Hash);
        assert_eq!(workspace.ignore.paths, ["a", "b/c"]);
        assert_eq!(workspace.ignore.globs, ["*.log"]);
        assert_eq!(workspace.retain_content, RetainContent::Always);
        assert!(workspace.rollback_on_failure);
        assert!(!workspace.capture_patch);
        assert!(workspace.watch);
        assert_eq!(workspace.max_patch_bytes, 10_240);
        assert_eq!(workspace.max_untracked_file_bytes, 0);
        assert_eq!(workspace.max_files, 1000);
        assert_eq!(workspace.max_new_bytes, 1_048_576);
        assert_eq!(request.session.expect("it was named").as_str(), "ticket-42");
        assert_eq!(request.elsewhere, " --workspace '/some dir'");
        let adapter = format!("{:?}", request.adapter);
        assert!(
            adapter.contains("output: Stderr"),
            "stdout is the document's: {adapter}"
        );
        assert!(
            adapter.contains(&format!("{:?}", Some(Duration::from_secs(90)))),
            "{adapter}"
        );
    }

    #[test]
    fn a_command_without_a_name_is_refused_and_empty_arguments_are_not() {
        let failure = lower_in(&surroundings(), &["run", "--", "", "x"]).expect_err("no name");
        assert_eq!(failure.kind(), ErrorKind::InvalidOptions);
        assert!(failure.line().contains("empty"), "{}", failure.line());
        assert_eq!(run(&["run", "--", "x", ""]).options.input, "x ''");
    }

    #[test]
    fn the_environment_names_the_run() {
        let mut surroundings = surroundings();
        for (text, expected) in [("", None), ("run_7", Some("run_7"))] {
            surroundings.run_id = Some(text.into());
            let Ok(Request::Run(request)) = lower_in(&surroundings, &["run", "--", "x"]) else {
                panic!("it is a run");
            };
            assert_eq!(request.options.run_id.as_ref().map(RunId::as_str), expected);
        }
        surroundings.run_id = Some("../x".into());
        let failure = lower_in(&surroundings, &["run", "--", "x"]).expect_err("no id");
        assert_eq!(failure.kind(), ErrorKind::InvalidOptions);
    }

    #[test]
    fn the_root_and_the_home_directory_have_to_be_named() {
        for (directory, what) in [("/", "root"), ("/home/jo", "home")] {
            let mut surroundings = surroundings();
            surroundings.current_dir = Some(directory.into());
            for command in [
                &["snapshot"][..],
                &["run", "--", "true"],
                &["list"],
                &["undo"],
                &["gc", "--keep", "1"],
                &["purge", ".env"],
            ] {
                let failure = lower_in(&surroundings, command).expect_err("it is refused");
                assert_eq!(failure.kind(), ErrorKind::InvalidOptions);
                let line = failure.line();
                assert!(line.contains(what), "{line}");
                let way = format!("--workspace {directory}, ");
                assert!(
                    line.contains(&way) && line.contains("STILLFRAME_HOME"),
                    "{line}"
                );
            }
            let Ok(Request::Snapshot(options, _)) =
                lower_in(&surroundings, &["snapshot", "--workspace", directory])
            else {
                panic!("it was meant");
            };
            assert_eq!(options.path, Path::new(directory));
            assert!(
                lower_in(&surroundings, &["show", "x"]).is_ok(),
                "it needs no workspace"
            );
        }
    }

    #[test]
    fn without_a_current_directory_one_has_to_be_named() {
        let nowhere = Surroundings::default();
        let failure = lower_in(&nowhere, &["list"]).expect_err("it is refused");
        assert!(failure.line().contains("--workspace"), "{}", failure.line());
        assert!(lower_in(&nowhere, &["list", "--workspace", "x"]).is_ok());
        assert!(lower_in(&nowhere, &["events"]).is_ok());
    }

    #[test]
    fn a_diff_goes_up_to_now_unless_a_second_end_is_named() {
        let Request::Diff(_, request, view) = lower(&["diff", "3f2a"]) else {
            panic!("it is a diff");
        };
        assert_eq!(request.from, DiffEnd::Snapshot("3f2a".to_owned()));
        assert_eq!(request.to, DiffEnd::Now);
        assert_eq!(view, DiffView::Summary);
        assert!(!request.options.capture_patch);

        let Request::Diff(_, request, view) = lower(&["diff", "now", "3f2a", "--patch"]) else {
            panic!("it is a diff");
        };
        assert_eq!(request.from, DiffEnd::Now);
        assert_eq!(request.to, DiffEnd::Snapshot("3f2a".to_owned()));
        assert_eq!(view, DiffView::Patch);
        assert!(request.options.capture_patch);
    }

    #[test]
    fn a_patch_is_made_only_where_it_is_used() {
        for (args, expected) in [
            (&["diff", "3f2a", "--patch"][..], true),
            (&["diff", "3f2a", "--patch", "--json"], true),
            (&["diff", "3f2a", "--stat"], false),
            (&["diff", "3f2a", "--name-status"], false),
        ] {
            let Request::Diff(_, request, _) = lower(args) else {
                panic!("it is a diff");
            };
            assert_eq!(request.options.capture_patch, expected, "{args:?}");
        }
    }

    #[test]
    fn a_file_of_a_snapshot_is_named_behind_the_first_colon() {
        for (text, name, path) in [
            ("snap_3f2a", "snap_3f2a", None),
            ("snap_3f2a:a/b", "snap_3f2a", Some("a/b")),
            ("latest~2:a:b", "latest~2", Some("a:b")),
            ("label:two words", "label:two words", None),
            ("label:two words:a", "label:two words", Some("a")),
            ("3f:", "3f", Some("")),
        ] {
            let found = name_and_path(OsStr::new(text));
            assert_eq!(found, (name.to_owned(), path.map(OsStr::new)), "{text}");
        }
        for args in [
            &["show", "3f:"][..],
            &["show", "3f:/etc"],
            &["show", "3f:a", "--files"],
        ] {
            let refused = lower_in(&surroundings(), args).expect_err("it is refused");
            assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{args:?}");
        }
    }

    #[test]
    fn paths_of_a_diff_come_after_both_sides_or_after_the_dashes() {
        for (args, to, expected) in [
            (
                &["diff", "3f2a", "now", "a", "./b//c"][..],
                DiffEnd::Now,
                &["a", "b/c"][..],
            ),
            (&["diff", "3f2a", "--", "a", "b"], DiffEnd::Now, &["a", "b"]),
            (
                &["diff", "3f2a", "77", "--", "-x"],
                DiffEnd::from("77"),
                &["-x"],
            ),
            (
                &["diff", "3f2a", "77", "a", "--", "b"],
                DiffEnd::from("77"),
                &["a", "b"],
            ),
            (&["diff", "3f2a", "77"], DiffEnd::from("77"), &[]),
        ] {
            let Request::Diff(_, request, _) = lower(args) else {
                panic!("it is a diff");
            };
            let paths = request.options.paths.iter().map(RelPath::to_string);
            assert_eq!(paths.collect::<Vec<_>>(), expected, "{args:?}");
            assert_eq!(request.to, to, "{args:?}");
        }
        let refused = lower_in(&surroundings(), &["diff", "3f2a", "--", "/etc"]);
        let refused = refused.expect_err("it is no path of the workspace");
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    }

    #[test]
    fn what_was_renamed_and_edited_is_looked_for_where_a_person_sees_it() {
        for (args, expected) in [
            (&["diff", "3f2a"][..], Renames::Similar),
            (&["diff", "3f2a", "--stat"], Renames::Similar),
            (&["diff", "3f2a", "--name-status"], Renames::Similar),
            (
                &["diff", "3f2a", "--name-status", "--no-renames"],
                Renames::Exact,
            ),
            (&["diff", "3f2a", "--name-only"], Renames::Exact),
            (&["diff", "3f2a", "--patch"], Renames::Exact),
            (&["diff", "3f2a", "--stat", "--json"], Renames::Exact),
        ] {
            let Request::Diff(_, request, _) = lower(args) else {
                panic!("it is a diff");
            };
            assert_eq!(request.options.renames, expected, "{args:?}");
        }
    }

    #[test]
    fn restore_does_it_and_plan_previews() {
        let Request::Restore(_, request) = lower(&["restore", "3f2a", "./a//b", "*.c"]) else {
            panic!("it is a restore");
        };
        let paths: Vec<&[u8]> = request.paths.iter().map(RelPath::as_bytes).collect();
        assert_eq!(paths, [&b"a/b"[..], b"*.c"], "literal");
        assert!(!request.repository);
        assert_eq!(request.expected_plan, None);

        assert!(matches!(
            lower(&["restore", "3f2a", "--plan"]),
            Request::PlanRestore(..)
        ));
        let Request::Restore(_, request) = lower(&["restore", "3f2a", "--apply", "plan_1"]) else {
            panic!("it is a restore");
        };
        assert_eq!(
            request.expected_plan.expect("it was given").as_str(),
            "plan_1"
        );
    }

    #[test]
    fn the_whole_workspace_is_a_dot_and_never_an_empty_word() {
        let Request::Restore(_, request) = lower(&["restore", "3f2a", "a", "."]) else {
            panic!("it is a restore");
        };
        assert!(request.paths.is_empty());
        for path in ["", "/etc/passwd", "a/../b"] {
            let failure =
                lower_in(&surroundings(), &["restore", "3f2a", path]).expect_err("it is refused");
            assert_eq!(failure.kind(), ErrorKind::InvalidOptions, "{path:?}");
        }
    }

    #[test]
    fn a_restore_of_a_path_above_is_refused_and_names_a_workspace_that_there_is() {
        let Request::WriteAbove(outside) = lower(&["restore", "3f2a", "b", "../x"]) else {
            panic!("it is above");
        };
        assert_eq!(outside.above, Path::new("/home/jo/src"));
        let named = outside.refusal(Some(Path::new("/home/jo")));
        assert_eq!(named.kind(), ErrorKind::InvalidOptions);
        let way = "../x is not below the current directory";
        assert!(named.line().contains(way), "{}", named.line());
        assert!(
            named.line().contains("--workspace /home/jo and"),
            "{}",
            named.line()
        );
        let unnamed = outside.refusal(None);
        assert!(
            unnamed.line().contains("--workspace DIR"),
            "{}",
            unnamed.line()
        );
        assert!(matches!(
            lower(&["restore", "3f2a", "--plan", "../x"]),
            Request::PlanRestore(..)
        ));
    }

    #[test]
    fn what_reads_above_the_home_directory_waits_for_what_was_captured_and_an_undo_does_not() {
        for args in [
            &["diff", "latest", "--", "../../x"][..],
            &["why", "../../x"],
            &["restore", "3f2a", "--plan", "../../x"],
            &["restore", "3f2a", "--to", "copy", "../../x"],
            &["purge", "../../x", "--plan"],
        ] {
            let Request::ReadAbove(meant, outside) = lower(args) else {
                panic!("{args:?}: it has to be named");
            };
            assert_eq!(meant.workspace(), Some(Path::new("/home/jo")), "{args:?}");
            assert_eq!(outside.above, Path::new("/home/jo"), "{args:?}");
        }
        let Request::WriteAbove(outside) = lower(&["undo", "--", "../../x"]) else {
            panic!("it has to be named");
        };
        assert_eq!(outside.above, Path::new("/home/jo"));
        let refused = lower_in(&surroundings(), &["why", "/etc"]).expect_err("it is refused");
        let line = refused.line();
        assert!(line.contains("is not below a workspace"), "{line}");
    }

    #[test]
    fn undo_looks_above_the_current_directory_but_not_above_a_named_one() {
        let Request::Undo(request) = lower(&["undo"]) else {
            panic!("it is an undo");
        };
        let above = ["/home/jo/src/app", "/home/jo/src", "/home/jo", "/home", "/"];
        assert_eq!(request.candidates, above.map(PathBuf::from));
        assert_eq!(request.undo.target, UndoTarget::Latest);

        let Request::Undo(request) = lower(&["undo", "run_1", "--workspace", "a/b"]) else {
            panic!("it is an undo");
        };
        assert_eq!(request.candidates, [PathBuf::from("a/b")]);
        assert_eq!(request.undo.target, UndoTarget::Run("run_1".to_owned()));
    }

    #[test]
    fn an_age_is_taken_off_what_the_clock_says() {
        let Request::List(query) = lower(&["list", "--since", "2h", "--limit", "3"]) else {
            panic!("it is a list");
        };
        let expected = Timestamp::from_second(-7200).expect("a time");
        assert_eq!((query.since, query.limit), (Some(expected), Some(3)));
        let Request::Runs(query) = lower(&["runs", "--until", "18446744073709551615ms"]) else {
            panic!("it is a list");
        };
        assert_eq!(query.until, Some(Timestamp::MIN), "before any time");
    }

    #[test]
    fn what_is_purged_is_a_path_a_pattern_or_an_id() {
        let target = |text: &str| match lower(&["purge", text]) {
            Request::Purge(_, target) => target,
            other => panic!("{other:?}"),
        };
        let path = |text: &str| PurgeTarget::Path(RelPath::new(text).expect("a path"));
        let id = "ab".repeat(20);
        assert_eq!(target(".env"), path(".env"));
        assert_eq!(target("a/b/"), path("a/b"));
        assert_eq!(target(&format!("./{id}")), path(&id));
        assert_eq!(target("*.pem"), PurgeTarget::Glob("*.pem".to_owned()));
        assert_eq!(target(&id), id.parse().expect("an id"));
        assert!(matches!(target(&id), PurgeTarget::Content(_)));
        let odd = OsStr::from_bytes(b"odd*\xff");
        assert_eq!(
            purge_target(odd).expect("a path"),
            PurgeTarget::Path(RelPath::new(*b"odd*\xff").expect("a path"))
        );
        for wrong in ["", "/etc/passwd", "../x"] {
            let refused = purge_target(OsStr::new(wrong)).expect_err("no path of a workspace");
            assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
        }
    }

    #[test]
    fn what_works_in_a_workspace_says_in_which() {
        for args in [
            &["run", "--", "true"][..],
            &["snapshot"],
            &["snapshot", "--skip-unchanged"],
            &["snapshot", "rm", "3f2a"],
            &["list"],
            &["diff", "3f2a"],
            &["restore", "3f2a"],
            &["restore", "3f2a", "--plan"],
            &["restore", "3f2a", "--to", "/copy"],
            &["undo"],
            &["runs"],
            &["why", "a"],
            &["verify"],
            &["gc"],
            &["purge", ".env"],
            &["purge", ".env", "--plan"],
        ] {
            let request = lower(args);
            assert_eq!(
                request.workspace(),
                Some(Path::new("/home/jo/src/app")),
                "{args:?}"
            );
        }
        for args in [
            &["show", "3f2a"][..],
            &["events"],
            &["artifact", "get", "k"],
        ] {
            assert_eq!(lower(args).workspace(), None, "{args:?}");
        }
    }

    #[test]
    fn words_are_quoted_as_a_shell_wants_them_and_can_be_printed() {
        for (word, expected) in [
            ("plain/word-1.2", "plain/word-1.2"),
            ("two words", "'two words'"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("$HOME", "'$HOME'"),
            ("esc\u{1b}", "$'esc\\033'"),
        ] {
            assert_eq!(quoted(OsStr::new(word)), expected);
        }
    }
}
