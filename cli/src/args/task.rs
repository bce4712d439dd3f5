//! The arguments of `task`.

use std::ffi::OsString;

use clap::{Args as ArgsOf, Subcommand, ValueHint};
use stillframe::tasks::OnDivergence;

/// What `task` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Print the name of a task's branch, or say why there is none.
    #[command(after_help = "\
Example:
  stillframe task name 18693 --namespace AzureRepos/Engineering

Exit codes: 0 done, 2 there is no branch of that name, or the command line is wrong.")]
    Name {
        /// The task.
        id: String,
        /// The project that it is of, where several share a remote.
        #[arg(long, value_name = "PLATFORM/PROJECT")]
        namespace: Option<String>,
    },
    /// List the tasks whose work was saved, or that were only begun here.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    List,
    /// Show a task with its checkpoints, and where each setting comes from.
    ///
    /// The settings are those that "task checkpoint" would have here, with the same options.
    #[command(after_help = "\
Exit codes: 0 done, 1 there is no such task, 2 the command line is wrong.")]
    Show(ShowArgs),
    /// Save the work in this workspace on the task's branch of a remote, now. In a command of "run
    /// --task" without an ID: the work of that run.
    ///
    /// What is in the workspace becomes a commit in Stillframe's own store, is looked through for
    /// secret values, pushed, and proven to be there. Your branches, HEAD, index and files stay as
    /// they are. The branch is never moved but forward: where it has commits that this work does
    /// not go on from, the work goes to a branch beside it.
    #[command(after_help = "\
Examples:
  stillframe task checkpoint 42
  stillframe task checkpoint 42 --remote https://git.example.com/a/b.git --token-env TOKEN
  stillframe run --task 42 -- sh -c 'make && stillframe task checkpoint && make test'

Exit codes: 0 the branch is proven to have the work, or there is no remote; 1 it could not be done,
or the work is kept and not on the branch; 2 the command line is wrong.")]
    Checkpoint(CheckpointArgs),
    /// Bring this workspace to the task's branch: go on with what was saved, also on another
    /// machine.
    ///
    /// HEAD names the branch then, and files and index have what it has. What was here is captured
    /// first, and "stillframe undo" brings it back. Local changes stay where the branch has nothing
    /// else; where it has, nothing is moved, and they are named.
    #[command(after_help = "\
Examples:
  stillframe task resume 42
  stillframe task resume 42 --remote https://git.example.com/a/b.git --token-env TOKEN

Exit codes: 0 done; 1 nothing was moved, and why; 2 the command line is wrong.")]
    Resume(ResumeArgs),
    /// Say, in a command of "run --task", that its work cannot go on without a person.
    ///
    /// Once the command has ended by itself, whatever its exit code, its work is saved on the
    /// task's branch. When that is proven the run rests, and "task follow-up" goes on with it. If
    /// it cannot be proven, the run has failed; the work stays here and in the store.
    #[command(after_help = "\
Example:
  stillframe run --task 42 -- sh -c 'make deploy || stillframe task block \"which port?\"'

Exit codes: 0 it is on record, 1 it could not be done, 2 the command line is wrong.")]
    Block {
        /// Why, for people.
        #[arg(value_parser = reason)]
        reason: String,
    },
    /// Go on with a task that waits for input, once: its run goes on in its workspace.
    ///
    /// The workspace is brought to the branch that the task has waited with, as "task resume" does.
    /// The command finds the input in its environment: STILLFRAME_INPUT_ID, STILLFRAME_INPUT, and
    /// STILLFRAME_INPUT_FILE, a file that has the text. Of two at once one goes on.
    #[command(after_help = "\
Examples:
  stillframe task follow-up 42 --input-id 7 --text 'it is 8080'
  stillframe task follow-up 42 --input-id 7 --text 8080 -- sh -c 'deploy \"$STILLFRAME_INPUT\"'

Exit codes: as of \"run\"; 1 the task does not wait for this input, or it could not be done.")]
    FollowUp(FollowUpArgs),
    /// Work that no remote is proven to have: what was refused, or could not be sent. It is kept
    /// here.
    #[command(arg_required_else_help = true)]
    Quarantine {
        #[command(subcommand)]
        command: QuarantineCommand,
    },
    /// Let checkpoints of this workspace be sent although a secret value was found in them; without
    /// arguments, list what is allowed.
    ///
    /// "task checkpoint" prints the three words where it finds one. It is for you to know that the
    /// value is none.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, or what is to be taken back is not allowed; 2 the command
line is wrong.")]
    AllowSecret(AllowSecretArgs),
}

/// What `task quarantine` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum QuarantineCommand {
    /// List it: what it is, why it is not on its branch, and what can be done.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    List {
        /// Also the work of tasks that have no remote.
        #[arg(long)]
        all: bool,
    },
    /// Bring it back to the files of this workspace.
    ///
    /// Every file is as the commit has it, which has to go on from HEAD. HEAD, its branch and the
    /// index stay as they are, and the work stays in quarantine. What was here is captured first,
    /// and "stillframe undo" brings it back. Where you changed something since, nothing is moved,
    /// and it is named.
    #[command(after_help = "\
Exit codes: 0 done; 1 nothing was moved, and why; 2 the command line is wrong.")]
    Restore {
        /// The work: its id in the list, or more digits of its commit.
        id: String,
    },
    /// Let go of it, for good: the next clean-up frees what nothing else has.
    ///
    /// Snapshots with the same content stay: to have a leaked value out of the store, purge the
    /// file too. There is no other way to let go of such work.
    #[command(after_help = "\
Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.")]
    Discard {
        /// The work: its id in the list, or more digits of its commit.
        id: String,
    },
}

/// The arguments of `task allow-secret`.
#[derive(Debug, ArgsOf)]
pub(crate) struct AllowSecretArgs {
    /// The rule that found it.
    #[arg(requires = "path")]
    pub(crate) rule: Option<String>,
    /// The file, from the top of the work tree.
    #[arg(requires = "fingerprint")]
    pub(crate) path: Option<OsString>,
    /// What tells the value from others.
    pub(crate) fingerprint: Option<String>,
    /// Take back that it is allowed.
    #[arg(long, requires = "rule")]
    pub(crate) remove: bool,
}

/// The arguments of `task follow-up`.
#[derive(Debug, ArgsOf)]
pub(crate) struct FollowUpArgs {
    /// The task; one of a namespace has that before it: platform/project/42.
    pub(crate) id: String,
    /// The number of the input: only one that is higher than those before is taken.
    #[arg(long, value_name = "N")]
    pub(crate) input_id: u64,
    /// What was written.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) text: String,
    /// The commit that the task is expected to go on from, by its full id, such as that of the
    /// notice: where somebody has gone on with the branch, nothing is claimed. Default: any that
    /// has it.
    #[arg(long, value_name = "COMMIT")]
    pub(crate) expect: Option<String>,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
    /// The command that goes on, after "--". Default: the one that the run was started with.
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// The arguments of `task show`.
#[derive(Debug, ArgsOf)]
pub(crate) struct ShowArgs {
    /// The task; one of a namespace may have that before it: platform/project/42.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) branch: BranchArgs,
}

/// The arguments of `task checkpoint`.
#[derive(Debug, ArgsOf)]
pub(crate) struct CheckpointArgs {
    /// The task. Default: that of the run whose command this is, with its remote.
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) branch: BranchArgs,
}

/// The arguments of `task resume`.
#[derive(Debug, ArgsOf)]
pub(crate) struct ResumeArgs {
    /// The task.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) start: StartArgs,
}

/// Where a branch begins.
#[derive(Debug, ArgsOf)]
pub(crate) struct StartArgs {
    /// Where the branch begins if nobody has it yet: a commit by its full id, a branch or a tag.
    /// Default: HEAD.
    #[arg(long, value_name = "REV")]
    pub(crate) start_point: Option<String>,
    /// The commit that the task is expected to go on from, by its full id: where it would go on
    /// from another, nothing is moved. Default: any.
    #[arg(long, value_name = "COMMIT")]
    pub(crate) expect: Option<String>,
}

/// Where the work of a task goes, and how it is told there.
#[derive(Debug, ArgsOf)]
pub(crate) struct BranchArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// The message of the commits; {task} is the task, {runId} the run.
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) message: Option<String>,
    /// What is done where others have gone on with the branch, which stays as it is: send the work
    /// to a branch beside it, or merge it with theirs, where no lines conflict. Default:
    /// side-branch.
    #[arg(long, value_name = "side-branch|merge", value_parser = on_divergence)]
    pub(crate) on_divergence: Option<OnDivergence>,
}

/// Where the work of a task is.
#[derive(Debug, ArgsOf)]
pub(crate) struct PlaceArgs {
    /// The project that the task is of, where several share a remote.
    #[arg(long, value_name = "PLATFORM/PROJECT")]
    pub(crate) namespace: Option<String>,
    /// Where the branch is: a remote of the repository, an address, or a path. Default: origin; if
    /// there is none, the work is kept in the store.
    #[arg(long, value_name = "NAME|URL")]
    pub(crate) remote: Option<String>,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
}

/// Who asks a remote.
#[derive(Debug, ArgsOf)]
pub(crate) struct TokenArgs {
    /// The variable of the environment with a token for the remote.
    #[arg(long, value_name = "VAR", value_parser = variable, conflicts_with = "token_command")]
    pub(crate) token_env: Option<String>,
    /// A command for the shell that prints a token for the remote, each time that it is asked: the
    /// first line of its output.
    #[arg(long, value_name = "CMD", value_parser = shell_line)]
    pub(crate) token_command: Option<String>,
}

impl BranchArgs {
    /// Whether it says where the work of a task goes.
    pub(crate) fn is_of_task(&self) -> bool {
        self.place.namespace.is_some()
            || self.place.remote.is_some()
            || self.on_divergence.is_some()
    }

    /// Whether anything of it is given.
    pub(crate) fn is_given(&self) -> bool {
        let place = &self.place;
        let all = [
            &place.namespace,
            &place.remote,
            &self.message,
            &place.token.token_env,
            &place.token.token_command,
        ];
        self.on_divergence.is_some() || all.into_iter().any(Option::is_some)
    }
}

/// What is done where others have gone on with a branch.
fn on_divergence(name: &str) -> Result<OnDivergence, String> {
    match name {
        "side-branch" => Ok(OnDivergence::SideBranch),
        "merge" => Ok(OnDivergence::Merge),
        _ => Err("it is side-branch or merge".to_owned()),
    }
}

/// The name of a variable of the environment.
pub(crate) fn variable(name: &str) -> Result<String, String> {
    match name.is_empty() || name.contains(['=', '\0']) {
        true => Err(format!("{name:?} is no name of a variable")),
        false => Ok(name.to_owned()),
    }
}

/// What people are told.
fn reason(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("a reason is missing".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// A line for the shell.
pub(crate) fn shell_line(line: &str) -> Result<String, String> {
    match line.trim().is_empty() || line.contains('\0') {
        true => Err("a command is missing".to_owned()),
        false => Ok(line.to_owned()),
    }
}
