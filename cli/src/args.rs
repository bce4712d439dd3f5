//! The arguments of the command line and their help. `request.rs` decides what they mean.

mod review;
mod task;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args as ArgsOf, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use jiff::Timestamp;
use stillframe::backends::PathGlobs;
use stillframe::events::EventType;
use stillframe::records::SessionStatus;
use stillframe::{RunId, RunStatus, SessionId, Strategy};

pub(crate) use review::{ReviewCommand, WorktreeCommand};
pub(crate) use task::{
    BranchArgs, FollowUpArgs, PlaceArgs, QuarantineCommand, ShowArgs, StartArgs, TaskCommand,
    TokenArgs, shell_line, variable,
};

use crate::logging::LogFormat;
use crate::paint::ColorChoice;

/// Snapshots of a directory around the work that happens in it.
///
/// Stillframe records a directory before and after a command, says exactly what changed, and puts
/// it back. It works in git repositories and in plain directories. Taking a snapshot writes nothing
/// into your repository: everything that is kept lies in a directory of Stillframe's own.
#[derive(Debug, Parser)]
#[command(
    name = "stillframe",
    version,
    propagate_version = false,
    arg_required_else_help = true,
    after_help = TOP_HELP
)]
pub(crate) struct Args {
    /// Work on this directory instead of the current one.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        help_heading = "Everywhere"
    )]
    pub(crate) workspace: Option<OsString>,

    /// Print one JSON document on stdout, and nothing else there.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,

    /// Colour what a person reads. Default: auto, at a terminal and unless NO_COLOR is set.
    #[arg(
        long,
        global = true,
        value_name = "auto|always|never",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        help_heading = "Everywhere"
    )]
    pub(crate) color: ColorChoice,

    /// Forget nothing at the end of the command, however old it is.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) no_retention: bool,

    /// Show more, or less, of what the program tells of itself: off, error, warn, info, debug,
    /// trace, or TARGET=LEVEL,…. Default: $STILLFRAME_LOG, else warn; nothing with --json.
    #[arg(
        long,
        global = true,
        value_name = "LEVEL|FILTER",
        help_heading = "Everywhere"
    )]
    pub(crate) log: Option<String>,

    /// The form of these lines. Default: text.
    #[arg(
        long,
        global = true,
        value_name = "text|json",
        hide_possible_values = true,
        help_heading = "Everywhere"
    )]
    pub(crate) log_format: Option<LogFormat>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const TOP_HELP: &str = "\
Examples:
  stillframe run -- make test                   run a command between two snapshots
  stillframe run --rollback-on-failure -- ./fix put everything back if it fails
  stillframe undo                               take back what the last run changed
  stillframe snapshot --label \"before lunch\"    keep the present state
  stillframe list                               see what is kept
  stillframe diff snap_3f2a91                   what changed since then
  stillframe restore snap_3f2a91 src/main.rs    get one file back

Exit codes:
  0    done
  1    it could not be done; one line on stderr says why and what to do
  2    the command line is wrong
  \"run\" and \"resume\" exit with the command's own code, 75 when it rests until somebody answers, 124
  when its time was up, 125 when Stillframe itself failed, 126 and 127 when the command cannot be
  executed or found, 128+N when signal N ended it.

Environment:
  STILLFRAME_HOME    where everything is kept (default: ~/.local/state/stillframe)
  STILLFRAME_LOG     what the program tells of itself on stderr, as --log
  PAGER              what shows \"diff\" and \"show\" at a terminal (default: less); empty: nothing
  NO_COLOR           no colours, if it is not empty";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command between two snapshots.
    ///
    /// The command runs in the workspace; its input, output and exit code are its own. Afterwards
    /// stderr says what changed. With --json its output goes to stderr, and stdout has one document
    /// with the outcome.
    #[command(after_help = RUN_HELP, override_usage = RUN_USAGE)]
    Run(Box<RunArgs>),

    /// Take a snapshot.
    ///
    /// Captures every file as it is: tracked, modified, untracked. What is left out, such as
    /// ignored files, is listed by "stillframe show". Prints the id.
    #[command(after_help = SNAPSHOT_HELP, args_conflicts_with_subcommands = true)]
    Snapshot(SnapshotArgs),

    /// List the snapshots of this workspace, newest first.
    #[command(after_help = "\
Examples:
  stillframe list --json
  stillframe list --since 2h --limit 5
  stillframe list --label \"before lunch\"

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    List(ListArgs),

    /// Show what changed between two snapshots, or since one.
    #[command(after_help = DIFF_HELP)]
    Diff(DiffArgs),

    /// Put back what a snapshot has.
    ///
    /// Files that are in the snapshot are made as they were, files that it knows were not there are
    /// removed; ignored files are left alone. What is there is captured first, so "stillframe undo"
    /// takes any restore back.
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArgs),

    /// Take back what the last run or restore changed.
    ///
    /// Only what that operation changed goes back. Later edits are kept: in files of lines beside
    /// what goes back, as git merges, and elsewhere the file stays as it is, and is named. An undo
    /// can be undone, so a second one is a redo. Works from any directory below the workspace.
    #[command(after_help = "\
Examples:
  stillframe undo
  stillframe undo run_5d41402a
  stillframe undo --plan                      see what it would do
  stillframe undo run_5d41402a -- src/main.c  only what it did to this file

Exit codes: 0 done (also if later edits were kept), 1 it could not be done, 2 the command line is
wrong.")]
    Undo(UndoArgs),

    /// List the runs in this workspace, newest first.
    #[command(after_help = "\
Example:
  stillframe runs

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Runs(RunsArgs),

    /// List the sessions of all workspaces, newest first, with how many of their runs wait.
    #[command(after_help = "\
Examples:
  stillframe sessions --status active
  stillframe sessions --tag urgent --agent reviewer

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Sessions(SessionsArgs),

    /// Go on with a run that was interrupted, where it stopped.
    ///
    /// A run of steps knows what it has to do; any other one needs a command. A run that has ended
    /// is answered from its record, and nothing is run.
    #[command(after_help = "\
Examples:
  stillframe resume run_5d41402a
  stillframe resume nightly-7 -- ./agent --continue

Exit codes: as of \"stillframe run\".")]
    Resume {
        /// The id of the run, or the beginning of it.
        run: String,

        /// How long to wait for the answer to a question before the run is put to rest. Default:
        /// 10m.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,

        /// What goes on with it, after "--". Default: its steps.
        #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },

    /// Do again, in a new run, what a run has failed at.
    ///
    /// The new run has the workspace and the limits of the one that failed, and a worktree of its own
    /// if that had one. That stays as it is. At most three runs follow one another so.
    #[command(after_help = "\
Examples:
  stillframe retry run_5d41402a
  stillframe retry run_5d41402a -- agent --continue

Exit codes: as of \"stillframe run\".")]
    Retry {
        /// The run that failed, whose time was up, or whose merge was in conflict, by its id or the
        /// beginning of it.
        run: String,

        /// What does it. Default: the command that the run was started with, if that is on record,
        /// as of a run with a worktree of its own.
        #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },

    /// Answer a question that a run asks, or show what is asked.
    ///
    /// The first answer counts. A run that still waits goes on at once; one that rests goes on with
    /// "stillframe resume". Without an answer the question is shown, and without a question all
    /// that wait for an answer are.
    #[command(after_help = "\
Examples:
  stillframe answer
  stillframe answer que_5d41402a yes

Exit codes: 0 done, 1 there is no such question, it has its answer, or takes another one, 2 the command
line is wrong.")]
    Answer {
        /// The id of the question, or the beginning of it.
        question: Option<String>,

        /// The answer.
        answer: Option<String>,
    },

    /// Ask a run to stop, whoever runs it; one that is interrupted is given up.
    #[command(after_help = "\
Examples:
  stillframe cancel run_5d41402a

Exit codes: 0 it was asked to, 1 there is no such run or it has ended, 2 the command line is wrong.")]
    Cancel {
        /// The id of the run, or the beginning of it.
        run: String,
    },

    /// Show one run, session or snapshot in full, with what was left out of it.
    #[command(after_help = "\
Examples:
  stillframe show snap_3f2a91
  stillframe show run_5d41402a --json
  stillframe show latest~1
  stillframe show latest --files
  stillframe show latest:src/main.c > main.c.before

With a path behind a colon the bytes of that file, or the text of that link, go to stdout as they
are. With --json the document is {\"snapshot\", \"path\", \"mode\", \"bytes\", \"content\"}; content
that is not UTF-8 is {\"base64\": \"…\"}.

Exit codes: 0 done, 1 there is no such id or path or the id is ambiguous, 2 the command line is
wrong.")]
    Show {
        /// The id, or the beginning of it, but of a session all of it; of a snapshot also "latest",
        /// "latest~N" or "label:TEXT", and with ":PATH" one file of it, relative to the workspace.
        #[arg(value_name = "ID[:PATH]")]
        id: OsString,

        /// Say what the run does as it does it, until it ends.
        #[arg(long, conflicts_with = "files")]
        follow: bool,

        /// List the files, links and empty directories that the snapshot has: permission bits,
        /// size, id of the content, path.
        #[arg(long)]
        files: bool,
    },

    /// Say whether a path is captured, and why or why not.
    #[command(after_help = "\
Examples:
  stillframe why target/debug
  stillframe why notes.txt --snapshot snap_3f2a91

Exit codes: 0 answered, whatever the answer, 1 it could not be found out, 2 the command line is
wrong.")]
    Why {
        /// A path, relative to the workspace.
        #[arg(value_hint = ValueHint::AnyPath)]
        path: OsString,
        /// Whether this snapshot has it, by its id, "latest", "latest~N" or "label:TEXT"; default:
        /// whether one taken now would.
        #[arg(long, value_name = "ID")]
        snapshot: Option<String>,
    },

    /// Make a repository for a new project: one commit without files, on a branch.
    ///
    /// The directory is new or empty. The commit is by whom user.name and user.email of your
    /// configuration of git name, or else by Stillframe.
    #[command(after_help = "\
Examples:
  stillframe init ../web
  stillframe init ../web --branch trunk

Exit codes: 0 done, 1 it could not be done and nothing was touched, 2 the command line is wrong.")]
    Init {
        /// The directory. What is above it is there.
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        to: PathBuf,
        /// The branch that the commit is on. Default: main.
        #[arg(
            long,
            value_name = "BRANCH",
            default_value = "main",
            hide_default_value = true
        )]
        branch: String,
    },

    /// Clone a repository into a directory that is new or empty.
    ///
    /// git fetches, and Stillframe writes the files: no template, hook or filter takes part. The
    /// token, if there is one, is in the environment of git alone, and not in the clone. A clone
    /// that fails, or takes more than five minutes, leaves nothing.
    #[command(after_help = "\
Examples:
  stillframe clone acme/web ../web --token-env GITHUB_TOKEN
  stillframe clone https://git.example.com/acme/web.git ../web
  stillframe clone git@git.example.com:acme/web.git ../web
  stillframe clone ./web ./copy

Exit codes: 0 done, 1 it could not be done and nothing is left of it, or a path could not be written, 2 the
command line is wrong.")]
    Clone {
        /// Its address: https, ssh, git, file, or a path that begins with /, ./ or ../; OWNER/REPO
        /// is one of github.com, by https.
        #[arg(value_name = "ADDRESS|OWNER/REPO")]
        address: OsString,
        /// The directory. What is above it is there.
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        to: PathBuf,
        #[command(flatten)]
        token: TokenArgs,
    },

    /// Print what happened, one JSON document for each line.
    #[command(after_help = "\
Examples:
  stillframe events --follow
  stillframe events --session ticket-42 --after 7
  stillframe events --type run_failed --type run_timeout --since 1d
  stillframe events --from 4711 --follow

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Events(EventsArgs),

    /// Print what was said and done in a run or a session: messages, tools, questions, usage.
    ///
    /// With --json, one document for each line.
    #[command(after_help = "\
Examples:
  stillframe transcript run_59a4
  stillframe transcript ticket-42 --json

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Transcript {
        /// A run, by its id or the beginning of it, or a session, by all of its id. Of the same id
        /// the run is meant.
        id: OsString,
        /// Only what comes after this position of the log, which each document names.
        #[arg(long, value_name = "POSITION", value_parser = number)]
        from: Option<u64>,
    },

    /// Write what is kept of a run or a session into a directory: JSON lines, and artifacts.
    ///
    /// records.jsonl has the session, its runs, their events and artifacts, one JSON document on
    /// each line; artifacts/ has the content of the artifacts. All of it is written, or nothing.
    #[command(after_help = "\
Examples:
  stillframe export ticket-42 --to ticket-42.export
  stillframe export run_59a4 --to /srv/exports/run_59a4 --json

Exit codes: 0 done, 1 it could not be done, or is done and lacks the content of an artifact, which
could not be read, 2 the command line is wrong.")]
    Export {
        /// A run, by its id or the beginning of it, or a session, by all of its id. Of the same id
        /// the run is meant.
        id: OsString,
        /// Put it into this directory, which is new or empty.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        to: PathBuf,
    },

    /// Save the work of a task on a branch of a remote, and see what was saved.
    #[command(arg_required_else_help = true)]
    Task {
        #[command(subcommand)]
        command: TaskCommand,
    },

    /// See what runs with worktrees of their own have handed in, and decide about it.
    #[command(arg_required_else_help = true)]
    Review {
        #[command(subcommand)]
        command: ReviewCommand,
    },

    /// See where runs with worktrees of their own work, and let go of that.
    #[command(arg_required_else_help = true)]
    Worktree {
        #[command(subcommand)]
        command: WorktreeCommand,
    },

    /// List what people outside are told of tasks, and whether they were; or send it.
    ///
    /// Notices are written with what they tell of: that the work of a run is not on the branch of
    /// its task, or that a blocked task waits for input. The commands that config.toml names send
    /// them, soon after they were written. One that was not sent is tried again 30 and 60 seconds
    /// later, by the next command that writes anything.
    #[command(after_help = "\
Examples:
  stillframe notices --pending
  stillframe notices --send

Exit codes: 0 done, 1 it could not be done, or a notice was not sent, 2 the command line is wrong, or
no command is set that sends notices.")]
    Notices {
        /// Only those that are still to be sent.
        #[arg(long, conflicts_with = "send")]
        pending: bool,
        /// Send all that are still to be sent, also before their time, and say what became of each.
        #[arg(long)]
        send: bool,
    },

    /// List, read or remove artifacts, such as large patches of runs.
    #[command(arg_required_else_help = true)]
    Artifact {
        #[command(subcommand)]
        command: ArtifactCommand,
    },

    /// Prove that every snapshot of this workspace can be restored, or name those that cannot.
    ///
    /// Reads everything that the snapshots need, and the artifacts.
    #[command(after_help = "\
Exit codes: 0 everything is whole, 1 something is not or could not be read, 2 the command line is
wrong.")]
    Verify,

    /// Forget old snapshots of this workspace, and free their space.
    ///
    /// Without options nothing is forgotten, and only what nothing needs is removed. The newest
    /// snapshot stays, and so does what a run under way needs. While something is damaged that a
    /// snapshot needs no content is removed.
    #[command(after_help = GC_HELP)]
    Gc(GcArgs),

    /// Take a leaked secret out of every snapshot of this workspace, and prove it gone.
    ///
    /// What is removed is content: all that a path ever had in any snapshot, wherever else the same
    /// bytes lie, and the patches of runs that show it. Snapshots stay, without it; a restore
    /// leaves such a path alone and names it. No later snapshot takes the content again. The files
    /// of the workspace and the user's own repository are not touched.
    #[command(after_help = PURGE_HELP)]
    Purge(PurgeArgs),

    /// Say what you have set once, for every workspace or for one, and whether it is right.
    #[command(arg_required_else_help = true, after_help = CONFIG_HELP)]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },

    /// Print a script that completes commands and options in a shell.
    #[command(after_help = "\
Example:
  stillframe completions bash > ~/.local/share/bash-completion/completions/stillframe")]
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

impl Command {
    /// Whether it exits as a run does.
    pub(crate) fn is_run(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Resume { .. }
                | Self::Retry { .. }
                | Self::Review {
                    command: ReviewCommand::RequestChanges { .. }
                }
        )
    }
}

const CONFIG_HELP: &str = "\
The file is $XDG_CONFIG_HOME/stillframe/config.toml, else ~/.config/stillframe/config.toml:
  [ignore]
  paths = [\"cache\"]                     # as --ignore-path and --ignore-glob, which add to it
  globs = [\"*.log\"]

  [limits]
  max_untracked_file_bytes = \"500M\"     # and max_files, max_new_bytes, max_patch_bytes
  retain_content_bytes = \"4G\"
  max_store_bytes = \"20G\"

  [retention]                           # what is forgotten by itself
  enabled = true
  older_than = \"90d\"
  step_snapshots = 50                   # of each run
  sessions_older_than = \"365d\"          # from the log of all workspaces, as those options of gc;
                                        # also events_older_than, max_events, max_ended_sessions

  [notices]                             # what tells people of tasks; not for one workspace
  command = \"~/bin/tell-forge\"          # and shows_command, env, timeout

  [workspace.\"/home/me/data\".limits]    # the same sections, for one workspace
  retain_content_bytes = 0

An option counts before the environment, that before the file, and what is set for a workspace before
what is set for all. A file in a workspace is never read for this.

Exit codes: 0 done, 2 the command line or the file is wrong.";

/// What `config` can do.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print where the file is, or would be.
    #[command(after_help = "\
Exit codes: 0 done, 2 the command line is wrong, or there is no place for it.")]
    Path,
    /// Print every value that holds in this workspace, and who set it.
    #[command(after_help = "\
Exit codes: 0 done, 2 the command line or the file is wrong.")]
    Show,
    /// Say whether the file is right, or what is wrong in which line.
    #[command(after_help = "\
Exit codes: 0 it is right, or there is none; 2 it is wrong, or the command line is.")]
    Check,
}

/// What `artifact` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactCommand {
    /// List the artifacts, oldest first.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    List {
        /// Only those of this run, by its id or the beginning of it.
        #[arg(long, value_name = "ID")]
        run: Option<OsString>,
    },
    /// Write the bytes of an artifact to stdout.
    #[command(after_help = "\
Example:
  stillframe artifact get patch_… | git apply

With --json the document is {\"key\", \"bytes\", \"content\"}; content that is not UTF-8 is
{\"base64\": \"…\"}.

Exit codes: 0 done, 1 there is no such key or its bytes are damaged, 2 the command line is wrong.")]
    Get {
        /// Its key.
        key: String,
    },
    /// Remove an artifact.
    #[command(after_help = "\
Exit codes: 0 done, 1 there is no such key, 2 the command line is wrong.")]
    Rm {
        /// Its key.
        key: String,
    },
}

/// What is done with snapshots that there are.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Forget snapshots, all or none, and free their space.
    ///
    /// What is pinned is refused, and what a run that has not ended, a restore that has begun, or
    /// an undo of what came last needs.
    #[command(after_help = "\
Exit codes: 0 done, 1 there is no such snapshot, or something needs it, 2 the command line is wrong.")]
    Rm {
        /// Snapshots: ids, beginnings of ids, "latest", "latest~N" or "label:TEXT".
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Keep a snapshot whatever its age: no clean-up takes it until it is unpinned.
    #[command(after_help = "\
Exit codes: 0 done, 1 there is no such snapshot, 2 the command line is wrong.")]
    Pin {
        /// The snapshot: its id, the beginning of it, "latest", "latest~N" or "label:TEXT".
        id: String,
    },
    /// Let clean-ups take a snapshot again that was pinned.
    #[command(after_help = "\
Exit codes: 0 done, 1 there is no such snapshot, 2 the command line is wrong.")]
    Unpin {
        /// The snapshot: its id, the beginning of it, "latest", "latest~N" or "label:TEXT".
        id: String,
    },
}

/// What to capture, and with what.
#[derive(Clone, Debug, Default, ArgsOf)]
#[command(next_help_heading = "Capturing")]
pub(crate) struct CaptureArgs {
    /// How to capture: git in a git work tree, hash in a plain directory; auto chooses.
    #[arg(
        long,
        value_name = "auto|git|hash",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(["auto", "git", "hash"])
            .map(|name| name.parse::<Strategy>().expect("it is one of those three"))
    )]
    pub(crate) strategy: Strategy,

    /// Leave out untracked directories of this name, or with a slash this very path.
    #[arg(long, value_name = "P")]
    pub(crate) ignore_path: Vec<String>,

    /// Leave out untracked paths that match: * and ? stay within a name, **/ is any directories.
    #[arg(long, value_name = "G")]
    pub(crate) ignore_glob: Vec<String>,

    /// Capture this path, and what lies below it, although a rule ignores it.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) include: Vec<OsString>,

    /// Keep the content of files also in plain directories, however much it is, so that they can be
    /// put back.
    #[arg(long, overrides_with_all = ["no_retain_content", "retain_content_bytes"])]
    pub(crate) retain_content: bool,

    /// Keep digests alone in plain directories: they say what changed, and cannot put it back.
    #[arg(long, overrides_with_all = ["retain_content", "retain_content_bytes"])]
    pub(crate) no_retain_content: bool,

    /// In plain directories keep content unless more than this of it is new; 0: always. Default:
    /// 1G.
    #[arg(
        long,
        value_name = "N",
        value_parser = bytes,
        overrides_with_all = ["retain_content", "no_retain_content"]
    )]
    pub(crate) retain_content_bytes: Option<u64>,

    /// Leave out untracked files larger than this; 0: none. Default: 104857600.
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_untracked_file_bytes: Option<u64>,

    /// Refuse to begin if more files than this would be captured; 0: no limit. Default: 0.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) max_files: Option<u64>,

    /// Refuse to begin if more bytes than this would be stored anew; 0: no limit. Default: 0.
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_new_bytes: Option<u64>,
}

const RUN_HELP: &str = "\
Examples:
  stillframe run -- make test
  stillframe run --rollback-on-failure --timeout 15m -- ./migrate.sh
  stillframe run --json -- npm update > outcome.json
  stillframe run --steps nightly.toml --run-id nightly-7
  stillframe run --isolate --from main --with .env -- agent \"rename the field\"

A file of steps (TOML; all but the name can be left out, and the command of one that asks or commits):
  [[step]]
  phase = \"build\"
  name = \"compile\"
  command = [\"make\", \"-j2\"]   # or one line for /bin/sh
  retries = 2
  retry_delay = \"30s\"         # doubles, up to 300s
  timeout = \"15m\"
  rerun = \"from_before\"       # or \"in_place\", \"ask\": after it was cut off in the middle
  ask = \"Deploy?\"             # before the command, which gets $STILLFRAME_ANSWER
  choices = [\"yes\", \"no\"]
  deadline = \"24h\"
  default = \"no\"             # counts after the deadline
  commit = \"Build\"           # what differs from the branch, once the command has ended well

Exit codes: the command's own; 75 when it rests until somebody answers; 77 when it did its work and
changed what it must not; 124 when its time was up; 125 when Stillframe failed, before or after the
command; 126 not executable; 127 not found; 128+N when signal N ended it, 143 when it was cancelled;
2 the command line is wrong.";

const RUN_USAGE: &str = "\
stillframe run [OPTIONS] -- <CMD>...
       stillframe run [OPTIONS] --steps <FILE>";

/// What `run` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct RunArgs {
    /// The command and its arguments, after "--".
    #[arg(
        last = true,
        required_unless_present = "steps",
        conflicts_with = "steps",
        value_name = "CMD",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,

    /// Run the commands of this file in order, each once: "stillframe resume" goes on where they
    /// stopped.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["timeout", "idle_timeout"])]
    pub(crate) steps: Option<PathBuf>,

    /// With --steps: how long to wait for the answer to a question before the run is put to rest.
    /// Default: 10m.
    // That it requires --steps would not count, which the command conflicts with.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "command")]
    pub(crate) wait: Option<Duration>,

    /// The id of the run; one that is on record goes on, or is answered from its record.
    /// Default: $STILLFRAME_RUN_ID, else a new one.
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<RunId>,

    /// Run in this session, which is made if it is new. Default: a session of its own.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<SessionId>,

    /// Put everything back if the command fails, is cancelled or takes too long.
    #[arg(long)]
    pub(crate) rollback_on_failure: bool,

    /// Go on from the branch of this task, and save on it what the command did, however it ends:
    /// see "task resume" and "task checkpoint". HEAD stays on the branch.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with = "steps",
        help_heading = "Tasks"
    )]
    pub(crate) task: Option<String>,

    #[command(flatten, next_help_heading = "Tasks")]
    pub(crate) branch: BranchArgs,
    #[command(flatten)]
    pub(crate) start: StartArgs,

    /// Work in a worktree and on a branch of the run's own, and hand in what the command changed,
    /// as a commit, for "stillframe review". What is here and not committed is not in it.
    #[arg(
        long,
        conflicts_with_all = ["steps", "task", "rollback_on_failure", "watch"],
        help_heading = "Isolation"
    )]
    pub(crate) isolate: bool,

    /// Merge what it hands in at once, if nothing stands in the way, as "stillframe review approve"
    /// does. Else it waits for a decision.
    #[arg(long, requires = "isolate", help_heading = "Isolation")]
    pub(crate) merge: bool,

    /// Have what it hands in wait for a decision. That is the default.
    #[arg(
        long,
        requires = "isolate",
        conflicts_with = "merge",
        help_heading = "Isolation"
    )]
    pub(crate) review: bool,

    /// Cut the branch from the tip of this one. Default: the branch that is checked out.
    #[arg(
        long,
        value_name = "BRANCH",
        requires = "isolate",
        help_heading = "Isolation"
    )]
    pub(crate) from: Option<String>,

    /// Commit only changed files that match, or lie below a directory that does: as for --forbid.
    /// Others stay in the worktree, and are named. Can be given again.
    #[arg(
        long,
        value_name = "GLOB",
        value_parser = glob,
        requires = "isolate",
        help_heading = "Isolation"
    )]
    pub(crate) scope: Vec<String>,

    /// Bring this along, and what lies below it, though git ignores it, such as .env; it is not
    /// committed. Can be given again.
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::AnyPath,
        requires = "isolate",
        help_heading = "Isolation"
    )]
    pub(crate) with: Vec<OsString>,

    /// How often to save on the task's branch what the command has done by then, if anything has
    /// changed; 0: only once it has ended. Default: 120s.
    #[arg(long, value_name = "DURATION", value_parser = interval, help_heading = "Tasks")]
    pub(crate) checkpoint_every: Option<Duration>,

    /// Fail the run if it changes a path that matches, or lies below one: * and ? stay within a
    /// name, **/ is any directories; one without / is a name in any directory. Can be given again.
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    pub(crate) forbid: Vec<String>,

    /// Fail the run if it changes more files than this.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) max_changed_files: Option<u64>,

    /// Fail the run if the files that it changed have more bytes than this together.
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_changed_bytes: Option<u64>,

    /// Make no patch of the changes.
    #[arg(long)]
    pub(crate) no_patch: bool,

    /// The largest patch that the outcome holds; a larger one becomes an artifact.
    /// Default: 1048576.
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_patch_bytes: Option<u64>,

    /// Watch the workspace while the command runs, and capture only what changed.
    #[arg(long)]
    pub(crate) watch: bool,

    /// End the command after this long, such as 90s, 15m or 2h.
    #[arg(long, value_name = "DURATION", value_parser = time_limit)]
    pub(crate) timeout: Option<Duration>,

    /// End the command once it has written nothing for this long; it then writes to pipes.
    #[arg(long, value_name = "DURATION", value_parser = time_limit)]
    pub(crate) idle_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) capture: CaptureArgs,
}

/// What `list` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct ListArgs {
    /// Only those with exactly this label.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// At most this many, the newest.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) limit: Option<u64>,

    /// Only those that were taken at or after this time, such as 2026-01-31T12:00:00Z, or so long
    /// ago at most, such as 2h or 3d.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    pub(crate) since: Option<Moment>,
}

/// What `events` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct EventsArgs {
    /// Only the events of this session.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<SessionId>,

    /// Only those with a larger sequence number; it counts from 1 in each session.
    #[arg(long, value_name = "N", value_parser = number, requires = "session")]
    pub(crate) after: Option<u64>,

    /// Only the events of this run, by its id or the beginning of it.
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<OsString>,

    /// Only those of this type, such as run_failed; of one of them if there are several.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) types: Vec<EventType>,

    /// Only those written at or after this time, such as 2026-01-31T12:00:00Z, or so long ago
    /// at most, such as 2h or 3d.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    pub(crate) since: Option<Moment>,

    /// Only those after this position, which counts in all sessions together: where a reader
    /// goes on that has read up to there.
    #[arg(long, value_name = "POSITION", value_parser = number)]
    pub(crate) from: Option<u64>,

    /// At most this many, from the first that matches on.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) limit: Option<u64>,

    /// Go on with what happens next, until interrupted.
    #[arg(long)]
    pub(crate) follow: bool,
}

/// What `runs` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct RunsArgs {
    /// Only those that can be resumed: interrupted, or left by a process that is gone.
    #[arg(long)]
    pub(crate) incomplete: bool,

    /// Only those of this session, in any workspace.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<SessionId>,

    /// Only those that are pending, running, asking, waiting_for_input, interrupted, persisting,
    /// blocked, checkpointing, awaiting_followup, candidate, awaiting_review, merging, completed,
    /// failed, cancelled, timeout, merged, declined or merge_failed.
    #[arg(long, value_name = "STATUS", value_parser = run_status)]
    pub(crate) status: Vec<RunStatus>,

    /// Only those that were accepted at or after this time, such as 2026-01-31T12:00:00Z, or so
    /// long ago at most, such as 2h or 3d.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    pub(crate) since: Option<Moment>,

    /// Only those that were accepted before this time, or longer ago.
    #[arg(long, value_name = "TIME|AGE", value_parser = moment)]
    pub(crate) until: Option<Moment>,
}

/// What `sessions` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct SessionsArgs {
    /// Only those that have this tag; all of them if there are several.
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,

    /// Only those of this agent, by the host's name for it.
    #[arg(long, value_name = "ID")]
    pub(crate) agent: Option<String>,

    /// Only those that belong to this session.
    #[arg(long, value_name = "ID")]
    pub(crate) parent: Option<SessionId>,

    /// Only those that are pending, active, paused, completed, failed or cancelled.
    #[arg(long, value_name = "STATUS", value_parser = session_status)]
    pub(crate) status: Vec<SessionStatus>,

    /// At most this many, the newest.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) limit: Option<u64>,
}

fn session_status(text: &str) -> Result<SessionStatus, String> {
    SessionStatus::parse(text)
        .ok_or_else(|| "it is pending, active, paused, completed, failed or cancelled".to_owned())
}

fn run_status(text: &str) -> Result<RunStatus, String> {
    RunStatus::parse(text).ok_or_else(|| {
        "it is pending, running, asking, waiting_for_input, interrupted, persisting, blocked, checkpointing, awaiting_followup, candidate, awaiting_review, merging, completed, failed, cancelled, timeout, merged, declined or merge_failed".to_owned()
    })
}

const SNAPSHOT_HELP: &str = "\
Examples:
  stillframe snapshot
  stillframe snapshot --label \"before the big rename\"
  id=$(stillframe snapshot)
  stillframe snapshot pin snap_3f2a91
  stillframe snapshot rm latest~1

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.";

/// What `snapshot` takes: a verb, or how to take one.
#[derive(Debug, ArgsOf)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<SnapshotVerb>,

    /// What it is taken for, in your words.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Take none if nothing differs from the newest snapshot: its id is printed.
    #[arg(long)]
    pub(crate) skip_unchanged: bool,

    #[command(flatten)]
    pub(crate) capture: CaptureArgs,
}

const DIFF_HELP: &str = "\
Examples:
  stillframe diff snap_3f2a91                 what changed since then
  stillframe diff snap_3f2a91 snap_77c0de     what changed between the two
  stillframe diff \"label:before lunch\"        what changed since the newest with this label
  stillframe diff snap_3f2a91 -- src          what changed below src since then
  stillframe diff snap_3f2a91 now src         the same
  stillframe diff snap_3f2a91 --patch | git apply -R --binary

Exit codes: 0 done, whether something changed or not, 1 it could not be done, 2 the command line is
wrong.";

const DIFF_USAGE: &str = "\
stillframe diff [OPTIONS] <FROM> [TO] [PATH]...
       stillframe diff [OPTIONS] <FROM> -- <PATH>...";

/// What `diff` takes.
#[derive(Debug, ArgsOf)]
#[command(group(ArgGroup::new("view").multiple(false)), override_usage = DIFF_USAGE)]
pub(crate) struct DiffArgs {
    /// The earlier side: a snapshot's id, the beginning of one, "latest", "latest~N", "label:TEXT",
    /// or "now".
    pub(crate) from: String,

    /// The later side. Default: now, the workspace as it is.
    pub(crate) to: Option<String>,

    /// Compare these files and directories alone; no patterns. They are relative to the workspace,
    /// and come after both sides, or after "--".
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<OsString>,

    /// As PATH, where TO is left out.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath, last = true, hide = true)]
    pub(crate) paths_since: Vec<OsString>,

    /// The whole change as a patch that git applies.
    #[arg(long, group = "view")]
    pub(crate) patch: bool,

    /// How many lines or bytes changed in each file.
    #[arg(long, group = "view")]
    pub(crate) stat: bool,

    /// The paths alone.
    #[arg(long, group = "view")]
    pub(crate) name_only: bool,

    /// The paths, each after A (added), M (modified), D (deleted) or R and how much of it was kept
    /// (renamed).
    #[arg(long, group = "view")]
    pub(crate) name_status: bool,

    /// Show what was renamed as deleted and added.
    #[arg(long)]
    pub(crate) no_renames: bool,

    /// The largest patch that a document of --json --patch holds. Default: 1048576.
    #[arg(long, value_name = "N", value_parser = bytes, requires = "patch")]
    pub(crate) max_patch_bytes: Option<u64>,

    /// Of the workspace as it is, leave out untracked directories of this name too, or with a slash
    /// this very path.
    #[arg(long, value_name = "P")]
    pub(crate) ignore_path: Vec<String>,

    /// Of the workspace as it is, leave out untracked paths that match too.
    #[arg(long, value_name = "G")]
    pub(crate) ignore_glob: Vec<String>,

    /// Of the workspace as it is, look at this path, and what lies below it, although a rule
    /// ignores it.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) include: Vec<OsString>,

    /// Of the workspace as it is, leave out untracked files larger than this; 0: none. Default: as
    /// the snapshot did.
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_untracked_file_bytes: Option<u64>,
}

const RESTORE_HELP: &str = "\
Examples:
  stillframe restore snap_3f2a91 --plan       what would be done
  stillframe restore snap_3f2a91              do it
  stillframe restore snap_3f2a91 src README   only these, and what lies below them
  stillframe restore latest notes.txt         this one as the newest snapshot has it
  stillframe restore snap_3f2a91 --to ../old  a copy elsewhere, and nothing here is touched
  stillframe undo                             take it back

Exit codes: 0 done, 1 it could not be done (the message says whether anything was touched), 2 the
command line is wrong.";

/// What `restore` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct RestoreArgs {
    /// The snapshot's id, the beginning of it, "latest", "latest~N" or "label:TEXT".
    pub(crate) snapshot: String,

    /// Files or directories, relative to the workspace; no patterns. Default: everything.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<OsString>,

    /// Say what would be done, and do nothing.
    #[arg(long, conflicts_with = "apply")]
    pub(crate) plan: bool,

    /// Do it only if the plan still is this one, which --plan showed.
    #[arg(long, value_name = "PLAN_ID")]
    pub(crate) apply: Option<String>,

    /// Put back git's index and branch as well, not only files.
    #[arg(long, conflicts_with = "paths")]
    pub(crate) repository: bool,

    /// Put it into this directory, which is new or empty, and touch nothing of the workspace.
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        conflicts_with_all = ["plan", "apply", "repository"]
    )]
    pub(crate) to: Option<PathBuf>,
}

/// What `undo` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct UndoArgs {
    /// The run to take back: its id, or the beginning of it. Default: whatever came last.
    pub(crate) run: Option<String>,

    /// Take back only what was done to these files or directories; no patterns. They are named from
    /// the current directory, or from --workspace. Default: everything, git's index and branch too.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath, last = true)]
    pub(crate) paths: Vec<OsString>,

    /// Say what would be done, and do nothing.
    #[arg(long, conflicts_with = "apply")]
    pub(crate) plan: bool,

    /// Do it only if the plan still is this one, which --plan showed.
    #[arg(long, value_name = "PLAN_ID")]
    pub(crate) apply: Option<String>,
}

const GC_HELP: &str = "\
Examples:
  stillframe gc --keep 20
  stillframe gc --older-than 30d
  stillframe gc --max-bytes 2G
  stillframe gc --forget-damaged
  stillframe gc --retention --dry-run
  stillframe gc --events-older-than 90d --sessions-older-than 365d

Exit codes: 0 done, 1 it could not be done (a limit that even the newest snapshot exceeds is not
met), 2 the command line is wrong.";

/// What `gc` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct GcArgs {
    /// Keep this many snapshots, the newest, whatever their labels.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) keep: Option<u64>,

    /// Forget snapshots that are older than this, such as 30d or 12h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,

    /// Forget the oldest until snapshots and artifacts occupy no more than this.
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_bytes: Option<u64>,

    /// Forget every snapshot that "verify" says cannot be restored, and what it cannot read, the
    /// newest too. What the disk did not give, or a newer version wrote, is left alone.
    #[arg(long)]
    pub(crate) forget_damaged: bool,

    /// Forget what is let go of by itself in time, as the section "retention" of config.toml says.
    #[arg(long)]
    pub(crate) retention: bool,

    /// Remove events of every session that are older than this, such as 90d. A reader that has come
    /// to a position before those that are kept is told.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) events_older_than: Option<Duration>,

    /// Keep this many events of all sessions together, the newest.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) max_events: Option<u64>,

    /// Remove every session that ended longer ago than this, with its runs, events and artifacts.
    /// One of which a snapshot is kept stays.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) sessions_older_than: Option<Duration>,

    /// Keep this many sessions that have ended, the last that did, and remove the others in the
    /// same way.
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) max_ended_sessions: Option<u64>,

    /// Say what would be forgotten, and forget nothing.
    #[arg(long, conflicts_with_all = ["max_bytes", "forget_damaged"])]
    pub(crate) dry_run: bool,
}

const PURGE_HELP: &str = "\
Examples:
  stillframe purge .env --plan
  stillframe purge .env
  stillframe purge '**/*.pem'
  stillframe purge 8ab686eafeb1f44702738c8b0f24f2567c36da6d

Exit codes: 0 done and proven (or planned), 1 no snapshot has it, it could not be done, or something
could not be looked at, 2 the command line is wrong.";

/// What `purge` takes.
#[derive(Debug, ArgsOf)]
pub(crate) struct PurgeArgs {
    /// A file or directory, relative to the workspace; with * ? [ or { a pattern, as for
    /// --ignore-glob; or the id of content, 40 or 64 digits.
    #[arg(value_name = "PATH|GLOB|DIGEST", value_hint = ValueHint::AnyPath)]
    pub(crate) target: OsString,

    /// Say what would be removed, and remove nothing.
    #[arg(long)]
    pub(crate) plan: bool,
}

/// A time that has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// This one.
    At(Timestamp),
    /// So long before now.
    Ago(Duration),
}

/// A time as RFC 3339 has it, or an age as [`duration`] has it.
fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(time) = text.parse() {
        return Ok(Moment::At(time));
    }
    duration(text).map(Moment::Ago).map_err(|_| {
        "give a time such as 2026-01-31T12:00:00Z, or an age of a whole number and a unit: 90s, 15m, 2h, 3d, 4w"
            .to_owned()
    })
}

/// A whole number with a unit: `500ms`, `90s`, `15m`, `2h`, `30d`, `4w`.
///
/// A number alone is refused, because people mean seconds by one and days by the other.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => return Err("give a whole number and a unit: 500ms, 90s, 15m, 2h, 30d, 4w".to_owned()),
    };
    let number: u64 = match number {
        "" => return Err("give a number before the unit, such as 90s".to_owned()),
        number => number.parse().map_err(|_| "that is too long".to_owned())?,
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "that is too long".to_owned())
}

/// A duration; `0`: never.
fn interval(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => duration(text),
    }
}

/// A glob of paths, as it is typed.
fn glob(text: &str) -> Result<String, String> {
    let text = text.to_owned();
    PathGlobs::new(std::slice::from_ref(&text)).map(|_| text.clone())
}

/// A whole number.
fn number(text: &str) -> Result<u64, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if is_number => Ok(number),
        _ if is_number => Err(format!("that is too much, the most is {}", u64::MAX)),
        _ => Err("give a whole number, such as 0, 3 or 100".to_owned()),
    }
}

/// A duration in which something can be done.
fn time_limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("no command ends in no time".to_owned()),
        limit => Ok(limit),
    }
}

/// A number of bytes: digits, and `K`, `M`, `G` or `T` for powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err("give a number of bytes, such as 65536, 64K, 10M or 2G".to_owned()),
    };
    let number: u64 = match number {
        "" => return Err("give a number of bytes, such as 65536, 64K, 10M or 2G".to_owned()),
        number => number.parse().map_err(|_| "that is too much".to_owned())?,
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "that is too much".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["stillframe"], args].concat())
    }

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn json_and_workspace_are_taken_before_and_after_the_subcommand() {
        for args in [
            &["--json", "--workspace", "/w", "list"][..],
            &["list", "--json", "--workspace", "/w"],
            &["--json", "list", "--workspace=/w"],
            &["--workspace", "/w", "artifact", "list", "--json"],
            &["--workspace", "/w", "artifact", "--json", "list"],
            &["--workspace", "/w", "snapshot", "pin", "a", "--json"],
        ] {
            let args = parse(args).expect("it parses");
            assert!(args.json);
            assert_eq!(args.workspace, Some("/w".into()));
        }
    }

    #[test]
    fn what_comes_after_the_dashes_is_the_commands_own() {
        let args = parse(&["run", "--", "make", "--json", "--", "-x"]).expect("it parses");
        assert!(!args.json);
        let Command::Run(run) = args.command else {
            panic!("it is a run");
        };
        assert_eq!(run.command, ["make", "--json", "--", "-x"]);
    }

    #[test]
    fn a_run_without_dashes_or_without_a_command_is_a_usage_error() {
        for args in [
            &["run"][..],
            &["run", "--"],
            &["run", "make"],
            &["run", "--json", "make", "test"],
        ] {
            let error = parse(args).expect_err("it is refused");
            assert_eq!(error.exit_code(), 2, "{args:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_a_usage_error() {
        for args in [
            &["diff", "a", "--patch", "--stat"][..],
            &["snapshot", "rm"],
            &["snapshot", "--label", "x", "rm", "a"],
            &["snapshot", "pin", "a", "b"],
            &["diff", "a", "--name-only", "--name-status"],
            &["diff", "a", "--max-patch-bytes", "5"],
            &["restore", "a", "--plan", "--apply", "plan_0"],
            &["restore", "a", "path", "--repository"],
            &["restore", "a", "--to", "b", "--plan"],
            &["restore", "a", "--to", "b", "--repository"],
            &["events", "--after", "3"],
            &["events", "--type", "Run Failed"],
            &["events", "--from", "-1"],
            &["events", "--since", "yesterday"],
            &["run", "--strategy", "fast", "--", "true"],
            &["run", "--session", "a b", "--", "true"],
            &["run", "--timeout", "0s", "--", "true"],
            &["run", "--idle-timeout", "0s", "--", "true"],
            &["gc", "--older-than", "30"],
            &["list", "--since", "yesterday"],
            &["list", "--limit", "-1"],
            &["runs", "--until", "30"],
            &["show"],
            &["purge"],
            &["purge", ".env", "other"],
            &["nonsense"],
            &["list", "--nonsense"],
        ] {
            let error = parse(args).expect_err("it is refused");
            assert_eq!(error.exit_code(), 2, "{args:?}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("90s", 90_000),
            ("15m", 900_000),
            ("2h", 7_200_000),
            ("30d", 2_592_000_000),
            ("1w", 604_800_000),
            ("0d", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "s",
            "30",
            "1.5h",
            "-1s",
            "1 s",
            "1h30m",
            "1S",
            "99999999999999999999s",
            "18446744073709551615w",
            "1é",
        ] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_an_age() {
        let time = "2026-01-31T12:00:00Z".parse().expect("a time");
        assert_eq!(moment("2026-01-31T13:00:00+01:00"), Ok(Moment::At(time)));
        assert_eq!(moment("3d"), Ok(Moment::Ago(Duration::from_secs(259_200))));
        for text in [
            "",
            "3",
            "yesterday",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "-2h",
        ] {
            assert!(moment(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_whole_number_is_told_what_is_one() {
        assert_eq!(number("0"), Ok(0));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "x", "-1", "+3", "1.5", "3x", " 3"] {
            let said = number(text).expect_err(text);
            assert_eq!(said, "give a whole number, such as 0, 3 or 100", "{text:?}");
        }
        let said = number("18446744073709551616").expect_err("it is too much");
        assert_eq!(said, "that is too much, the most is 18446744073709551615");
        for args in [
            &["gc", "--keep", "x"][..],
            &["list", "--limit", "x"],
            &["snapshot", "--max-files", "x"],
            &["events", "--session", "s", "--after", "x"],
            &["events", "--from", "x"],
        ] {
            let said = parse(args).expect_err("it is none").to_string();
            assert!(said.contains("give a whole number"), "{args:?}: {said}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, expected) in [
            ("0", 0),
            ("65536", 65536),
            ("64K", 65536),
            ("10M", 10 << 20),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "M",
            "10MB",
            "-1",
            "1.5G",
            "99999999999999999999",
            "18446744073709551615K",
        ] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn paths_and_arguments_are_bytes() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = OsString::from_vec(b"odd\xffname".to_vec());
        let typed: Vec<OsString> = vec![
            "stillframe".into(),
            "restore".into(),
            "snap_1234".into(),
            odd.clone(),
        ];
        let Command::Restore(restore) = Args::try_parse_from(typed).expect("it parses").command
        else {
            panic!("it is a restore");
        };
        assert_eq!(restore.paths, [odd]);
    }

    #[test]
    fn every_command_explains_itself() {
        let mut command = Args::command();
        command.build();
        let mut names = Vec::new();
        for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
            assert!(
                sub.get_about().is_some(),
                "{} says what it does",
                sub.get_name()
            );
            names.push(sub.get_name().to_owned());
        }
        assert!(names.len() > 20, "they were all looked at: {names:?}");
    }
}
