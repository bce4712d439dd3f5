//! `task`: work that leaves the machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde::Serialize;
use stillframe::backends::{AllowedSecret, OmissionReason, RelPath, SkipReason, shell_word};
use stillframe::records::{
    AllowedSecretRecord, CheckpointRecord, FoundSecret, NoticeRecord, QuarantinedWork, ResumeState,
    ResumedWork, SavedState, SavedWork, WorkTaskRecord,
};
use stillframe::tasks::{QuarantineScope, WorkBranchOptions, without_login};
use stillframe::{CancellationToken, RunId, WorkspaceOptions};

use super::config::row;
use super::{Tools, notices, quarantine, until_a_signal, while_wanted};
use crate::args::BranchArgs;
use crate::branch;
use crate::config::{Held, Source};
use crate::failure::Failure;
use crate::output::{self, Reply, count, name_of, printable, short};
use crate::request::{Allowance, CurrentRun, ShowTask, TaskRequest};

/// The branch of a task.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Named<'a> {
    /// The task.
    task: &'a str,
    /// Its branch, without `refs/heads/`.
    branch: &'a str,
}

/// A task, its checkpoints and notices.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Shown {
    #[serde(flatten)]
    task: WorkTaskRecord,
    /// All of them, the oldest first.
    checkpoints: Vec<CheckpointRecord>,
    /// What people outside were to be told of it, the oldest first.
    notices: Vec<NoticeRecord>,
    /// Where a checkpoint from here would go and how, and who says so: the names of keys and
    /// options with what holds. The remote is an address, if the workspace has one of that name.
    settings: Vec<Held>,
}

/// A finding that may be sent from now on, or may not be sent any more.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Allowed<'a> {
    /// The rule.
    rule: &'a str,
    /// The file.
    path: &'a RelPath,
    /// What tells the value from others.
    fingerprint: &'a str,
    /// Whether it may be sent.
    allowed: bool,
}

/// A run that is blocked once its command has ended.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Reported<'a> {
    /// The run.
    run_id: &'a RunId,
}

/// What is asked of tasks.
pub(super) async fn answer(tools: &Tools, request: TaskRequest) -> Result<Reply, Failure> {
    match request {
        TaskRequest::Name(options) => name(tools, &options),
        TaskRequest::List => list(tools).await,
        TaskRequest::Show(request) => show(tools, *request).await,
        TaskRequest::Checkpoint(workspace, branch) => {
            while_wanted(*workspace, |workspace| {
                checkpoint(tools, workspace, *branch)
            })
            .await
        }
        TaskRequest::CheckpointOfRun(run, args) => {
            until_a_signal(|cancellation| checkpoint_of_run(tools, *run, *args, cancellation)).await
        }
        TaskRequest::Block(run, reason) => block(tools, *run, reason).await,
        TaskRequest::Resume(workspace, branch) => {
            while_wanted(*workspace, |workspace| resume(tools, workspace, *branch)).await
        }
        TaskRequest::Quarantine(request) => quarantine::answer(tools, *request).await,
        TaskRequest::AllowSecret(workspace, None) => allowed(tools, *workspace).await,
        TaskRequest::AllowSecret(workspace, Some((finding, allowance))) => {
            allow(tools, *workspace, finding, allowance).await
        }
    }
}

/// Prints the name of a task's branch.
fn name(tools: &Tools, options: &WorkBranchOptions) -> Result<Reply, Failure> {
    let branch = branch::named(options)?;
    let document = Named {
        task: &options.task,
        branch: &branch,
    };
    Ok(Reply::new(tools.json, &document, || format!("{branch}\n")))
}

/// Lists the tasks.
async fn list(tools: &Tools) -> Result<Reply, Failure> {
    let tasks = tools.engine.tasks().await?;
    let reply = Reply::new(tools.json, &tasks, || tasks.iter().map(line).collect());
    let reply = reply.notes(
        quarantine::note(&quarantined(tools).await?)
            .into_iter()
            .collect(),
    );
    Ok(match tasks.is_empty() {
        true => reply.note("no work of a task was saved"),
        false => reply,
    })
}

/// The work of tasks with a remote that no remote is proven to have.
async fn quarantined(tools: &Tools) -> Result<Vec<QuarantinedWork>, Failure> {
    Ok(tools.engine.quarantine(QuarantineScope::Remotes).await?)
}

/// Shows a task.
async fn show(tools: &Tools, request: ShowTask) -> Result<Reply, Failure> {
    let address = match &request.workspace {
        // A directory without a repository has none, and neither has a repository without that one.
        Some(workspace) => tools.engine.task_remote(workspace, &request.branch).await,
        None => Ok(None),
    };
    let address = address.ok().flatten();
    let found = tools
        .engine
        .find_task_at(&request.name, address.as_deref())
        .await;
    let (task, checkpoints) = found?;
    let mut settings = request.settings;
    if let Some(address) = address
        && let Some(remote) = settings.iter_mut().find(|held| held.key == "remote")
    {
        remote.value = address.into();
        if remote.source == Source::Default {
            remote.source = Source::Repository;
        }
    }
    let mut notices = tools.engine.notices().await?;
    notices.retain(|one| {
        let of = (&one.task, &one.namespace, &one.remote);
        of == (&task.task, &task.namespace, &task.remote)
    });
    let mut unsaved = quarantined(tools).await?;
    unsaved.retain(|work| {
        let of = (&work.task, &work.namespace, &work.remote);
        of == (&task.task, &task.namespace, &task.remote)
    });
    let shown = Shown {
        task,
        checkpoints,
        notices,
        settings,
    };
    Ok(Reply::new(tools.json, &shown, || {
        let mut text = line(&shown.task);
        for checkpoint in &shown.checkpoints {
            text.push_str(&checkpoint_line(checkpoint));
        }
        for line in notices::lines(&shown.notices).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        let rows: Vec<Vec<String>> = shown.settings.iter().map(row).collect();
        for row in output::table(&rows).lines() {
            text.push_str(&format!("  {row}\n"));
        }
        text
    })
    .notes(quarantine::note(&unsaved).into_iter().collect()))
}

/// Saves the work in a workspace.
async fn checkpoint(
    tools: &Tools,
    workspace: WorkspaceOptions,
    branch: WorkBranchOptions,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let saved = session.checkpoint(&workspace, &branch).await?;
    Ok(answered(tools, &saved))
}

/// Saves the work of the run whose command this is.
async fn checkpoint_of_run(
    tools: &Tools,
    run: CurrentRun,
    args: BranchArgs,
    cancellation: CancellationToken,
) -> Result<Reply, Failure> {
    check_state(tools, &run)?;
    let (workspace, kept) = tools.engine.work_branch_of(&run.id).await?;
    let set = run.config.settings(Some(&workspace.path)).task;
    let branch = branch::of_run(kept, (args.message, args.place.token), set)?;
    let workspace = workspace.cancellation(cancellation);
    let saved = tools.engine.checkpoint_run(&run.id, &workspace, &branch);
    Ok(answered(tools, &saved.await?))
}

/// Refuses a run that is on record in another state directory.
fn check_state(tools: &Tools, run: &CurrentRun) -> Result<(), Failure> {
    let state = fs::metadata(&tools.state_dir).ok();
    let state = state.map(|found| format!("{}:{}", found.dev(), found.ino()));
    match (&run.state, state) {
        (Some(its), Some(state)) if *its != *state => Err(Failure::not_found(format!(
            "run {} is on record in another state directory; set STILLFRAME_HOME as it was set for the run; nothing was done",
            run.id
        ))),
        _ => Ok(()),
    }
}

/// Says that the run whose command this is cannot go on without a person.
async fn block(tools: &Tools, run: CurrentRun, reason: String) -> Result<Reply, Failure> {
    check_state(tools, &run)?;
    tools.engine.report_block(&run.id, reason.as_str()).await?;
    let document = Reported { run_id: &run.id };
    Ok(Reply::new(tools.json, &document, || {
        format!("run {} is blocked once its command has ended\n", run.id)
    }))
}

/// Says where the work is.
fn answered(tools: &Tools, saved: &SavedWork) -> Reply {
    let reply = Reply::new(tools.json, saved, || told(saved));
    let reply = reply.warnings(doubts(saved)).notes(ways(saved));
    match &saved.error {
        None => reply,
        Some(why) => reply.failed(printable(why)).exit_code(1),
    }
}

/// Brings a workspace to the branch of a task.
async fn resume(
    tools: &Tools,
    workspace: WorkspaceOptions,
    branch: WorkBranchOptions,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let resumed = session.resume_task(&workspace, &branch).await?;
    let reply = Reply::new(tools.json, &resumed, || told_of_resume(&resumed));
    let reply = reply
        .warnings(doubts_of_resume(&resumed))
        .notes(ways_back(&resumed, None));
    let problem = resumed.restore.as_ref().and_then(|r| r.error.as_ref());
    Ok(match problem {
        None => reply,
        Some(problem) => reply.failed(printable(&problem.message)).exit_code(1),
    })
}

/// Where the workspace is, in one line.
fn told_of_resume(resumed: &ResumedWork) -> String {
    let branch = printable(&resumed.branch);
    let Some(commit) = resumed.commit.as_deref().map(short) else {
        return format!("{branch} begins here, and has no commit yet\n");
    };
    let by = match (&resumed.author, &resumed.made_at) {
        (Some(author), Some(at)) => format!(", by {} at {at}", printable(author)),
        _ => String::new(),
    };
    let changed = resumed.restore.as_ref().map_or(0, |r| r.restored.len());
    let files = match changed {
        0 => String::new(),
        changed => format!("; {} changed", count(changed as u64, "file")),
    };
    match resumed.state {
        ResumeState::Fresh => format!("{branch} begins at {commit}{by}{files}\n"),
        _ => format!("{branch} goes on from {commit}{by}{files}\n"),
    }
}

/// What was not done of it.
fn doubts_of_resume(resumed: &ResumedWork) -> Vec<String> {
    let problem = resumed.restore.as_ref().and_then(|r| r.error.as_ref());
    let skipped = resumed.restore.iter().flat_map(|r| &r.skipped);
    // What a sparse checkout leaves out is not missed.
    let skipped = skipped.filter(|s| s.reason != SkipReason::Omitted(OmissionReason::Sparse));
    let skipped =
        skipped.map(|skipped| format!("{} stays as it is ({})", skipped.path, skipped.reason));
    let kept = resumed.kept.iter().map(|path| {
        format!("{path} is not as the branch has it: it was changed or put back here since")
    });
    let submodules = resumed.submodules.iter().map(|path| {
        format!(
            "the branch has another commit of the submodule {path}; git submodule update brings it"
        )
    });
    let problem = problem.iter().map(|problem| printable(&problem.message));
    problem
        .chain(skipped)
        .chain(kept)
        .chain(submodules)
        .collect()
}

/// What was checked out before, if it was another branch.
fn was_before(resumed: &ResumedWork) -> Option<String> {
    resumed.way_back.as_ref()?;
    match (&resumed.branch_before, &resumed.commit_before) {
        (Some(branch), _) => Some(format!("before, {} was checked out", printable(branch))),
        (None, Some(commit)) => Some(format!("before, HEAD was detached at {}", short(commit))),
        (None, None) => None,
    }
}

/// How to go back, after the command that has to come `first`.
fn ways_back(resumed: &ResumedWork, first: Option<&str>) -> Vec<String> {
    let Some(command) = &resumed.way_back else {
        return Vec::new();
    };
    let was = was_before(resumed).unwrap_or_default();
    let first = first
        .map(|first| format!("{first} && "))
        .unwrap_or_default();
    vec![format!("{was}; back to it: {first}{command}")]
}

/// Tells how a run came to the branch of its task, if it is of one. `commands`: those of its task.
/// What was saved of the run has to be brought to the branch here before one goes back: git would
/// carry it along.
pub(super) fn tell_of_resume(
    reply: &mut Reply,
    resumed: Option<&ResumedWork>,
    saved: Option<&SavedWork>,
    commands: Option<&Commands>,
) {
    let Some(resumed) = resumed else {
        return;
    };
    reply
        .notes
        .push(told_of_resume(resumed).trim_end().to_owned());
    let is_ahead = saved.is_some_and(|saved| saved.commit != resumed.commit);
    match (saved.is_some_and(|saved| saved.failure.is_some()), commands) {
        (false, _) => {
            let first = commands.filter(|_| is_ahead);
            let first = first.map(|commands| &*commands.resume);
            reply.notes.extend(ways_back(resumed, first));
        }
        // What is not on the branch would come along.
        (true, Some(commands)) => reply.notes.extend(was_before(resumed).map(|was| {
            let checkpoint = &commands.checkpoint;
            format!("{was}; what is here has to be saved before you go back: {checkpoint}")
        })),
        (true, None) => {}
    }
    reply.warnings.extend(doubts_of_resume(resumed));
}

/// What is done for the branch of a task, by commands for a shell. They have nothing of who asks
/// its remote.
pub(super) struct Commands {
    /// Brings its workspace to the branch.
    pub(super) resume: String,
    /// Saves what is in its workspace there.
    checkpoint: String,
}

/// The commands for the workspace that `elsewhere` names.
pub(super) fn commands(branch: &WorkBranchOptions, elsewhere: &str) -> Commands {
    Commands {
        resume: command("resume", branch, elsewhere),
        checkpoint: command("checkpoint", branch, elsewhere),
    }
}

fn command(what: &str, branch: &WorkBranchOptions, elsewhere: &str) -> String {
    let mut command = format!(
        "stillframe task {what} {}",
        shell_word(branch.task.as_bytes())
    );
    let remote = branch.remote.as_deref().map(without_login);
    let options = [("namespace", &branch.namespace), ("remote", &remote)];
    for (name, value) in options {
        if let Some(value) = value {
            command.push_str(&format!(" --{name} {}", shell_word(value.as_bytes())));
        }
    }
    command.push_str(elsewhere);
    command
}

/// Lists the findings that may be sent.
async fn allowed(tools: &Tools, workspace: WorkspaceOptions) -> Result<Reply, Failure> {
    let all = tools.engine.allowed_secrets(&workspace).await?;
    let reply = Reply::new(tools.json, &all, || {
        let line = |one: &AllowedSecretRecord| {
            format!(
                "{}  {}  {}  {}\n",
                one.allowed_at,
                printable(&one.rule),
                typed(&one.path),
                one.fingerprint
            )
        };
        all.iter().map(line).collect()
    });
    Ok(match all.is_empty() {
        true => reply.note("no finding is allowed in this workspace"),
        false => reply,
    })
}

/// Lets a finding be sent, or no more.
async fn allow(
    tools: &Tools,
    workspace: WorkspaceOptions,
    finding: AllowedSecret,
    allowance: Allowance,
) -> Result<Reply, Failure> {
    let engine = &tools.engine;
    let finding = match allowance {
        Allowance::Given => engine.allow_secret(&workspace, finding).await?,
        Allowance::TakenBack => engine.forbid_secret(&workspace, finding).await?,
    };
    let document = Allowed {
        rule: &finding.rule,
        path: &finding.path,
        fingerprint: &finding.fingerprint,
        allowed: allowance == Allowance::Given,
    };
    Ok(Reply::new(tools.json, &document, || {
        let may = match allowance {
            Allowance::Given => "may be sent with it",
            Allowance::TakenBack => "may not be sent with it any more",
        };
        format!(
            "checkpoints of this workspace {may}: {} in {}\n",
            finding.rule, finding.path
        )
    })
    .notes(match allowance {
        Allowance::Given => Vec::new(),
        Allowance::TakenBack => vec!["what was sent with it stays on the remote".to_owned()],
    }))
}

/// The path of a finding as a shell takes it: the top of the work tree stands for a message.
fn typed(path: &RelPath) -> String {
    shell_word(match path.is_root() {
        true => b".",
        false => path.as_bytes(),
    })
}

/// Tells of the work of a run, if it is of a task.
pub(super) fn tell(reply: &mut Reply, saved: Option<&SavedWork>) {
    let Some(saved) = saved else {
        return;
    };
    reply.notes.push(told(saved).trim_end().to_owned());
    reply.notes.extend(ways(saved));
    reply.warnings.extend(doubts(saved));
}

/// Where the work is, in one line.
fn told(saved: &SavedWork) -> String {
    let branch = printable(&saved.branch);
    let remote = saved.remote.as_deref().map(printable).unwrap_or_default();
    let Some(commit) = saved.commit.as_deref().map(short) else {
        return match &saved.failure {
            None => "there is nothing to save: no commit, and no file\n".to_owned(),
            Some(_) => format!(
                "the work is on no branch, and no commit was made; {} has it\n",
                saved.snapshot
            ),
        };
    };
    let kept = saved.kept_as.as_deref().unwrap_or("its store");
    match saved.state {
        SavedState::Pushed => match saved.advanced_to.as_deref().map(short) {
            None => format!("{commit} is on {branch} of {remote}: pushed and proven\n"),
            Some(tip) => format!(
                "{commit} is on {branch} of {remote}: pushed and proven; the branch has gone on to {tip}\n"
            ),
        },
        SavedState::Recovered => format!(
            "{commit} is on {branch} of {remote}: merged with what others did there, pushed and proven; \
             \"task resume\" brings that here\n"
        ),
        SavedState::NoChanges => {
            format!("{commit} is on {branch} of {remote}: nothing new, and proven\n")
        }
        SavedState::RecordedOnly => {
            format!("{commit} is kept in the store as {kept}; there is no remote\n")
        }
        SavedState::PushedBeside => format!(
            "{commit} is on {} of {remote}: pushed and proven, beside {branch}, which has other commits\n",
            printable(saved.side_branch.as_deref().unwrap_or_default())
        ),
        _ => {
            format!("{commit} is not on {branch} of {remote}; it is kept in the store as {kept}\n")
        }
    }
}

/// Why the work is not on its branch, and what the commit does not have of the workspace.
fn doubts(saved: &SavedWork) -> Vec<String> {
    let as_head = saved.unconverted_paths.iter();
    let as_head = as_head.map(|path| {
        format!("{path} is in the commit as HEAD has it: a filter applies to it, and none is run")
    });
    let left_out = saved.left_out.iter().map(|omission| {
        format!(
            "{} is in the commit only as HEAD has it, if it has: it was not captured ({})",
            omission.path, omission.reason
        )
    });
    let submodules = saved.submodules.iter();
    let submodules = submodules
        .map(|path| format!("{path} is a repository of its own: what it has is not in the commit"));
    let why = saved.error.iter().map(|why| printable(why));
    why.chain(as_head)
        .chain(left_out)
        .chain(submodules)
        .collect()
}

/// What can be done where the work is not on its branch.
fn ways(saved: &SavedWork) -> Vec<String> {
    let way = |found: &FoundSecret| {
        let place = match (found.path.is_root(), found.line) {
            (true, line) => format!("line {line} of the commit {}", short(&found.commit)),
            (false, 0) => format!("the name {}", found.path),
            (false, line) => format!("{} line {line}", found.path),
        };
        format!(
            "if {place} has no secret: stillframe task allow-secret {} {} {}",
            shell_word(found.rule.as_bytes()),
            typed(&found.path),
            found.fingerprint
        )
    };
    let branch = printable(&saved.branch);
    let next = match (saved.state, &saved.side_branch) {
        (SavedState::NotSaved, _) if saved.commit.is_some() => Some(
            "\"stillframe task quarantine list\" says what can be done with what is not sent"
                .to_owned(),
        ),
        (SavedState::PushedBeside, Some(beside)) => Some(format!(
            "to have both on {branch}: commit what is here, fetch and merge {} and {branch} in git, and save what comes \
             of it with a checkpoint",
            printable(beside)
        )),
        (SavedState::NotSaved, _) => {
            let mut of_task = WorkBranchOptions::of(&saved.task);
            of_task.namespace.clone_from(&saved.namespace);
            of_task.remote.clone_from(&saved.remote);
            let checkpoint = command("checkpoint", &of_task, "");
            Some(format!("once that is put right: {checkpoint}"))
        }
        _ => None,
    };
    saved.secrets.iter().map(way).chain(next).collect()
}

fn line(task: &WorkTaskRecord) -> String {
    let name = name_of(task.namespace.as_deref(), &task.task);
    let mut line = format!("{}  {}", printable(&name), printable(&task.branch));
    match &task.remote {
        Some(remote) => line.push_str(&format!("  {}", printable(remote))),
        None => line.push_str("  no remote"),
    }
    line.push_str(&format!("  {}", task.status));
    if let Some(waits) = &task.follow_up {
        line.push_str(&format!(" ({})", printable(&waits.waiting_reason)));
    }
    if let Some(last) = &task.last_checkpoint {
        line.push_str(&format!("  {} {}", short(&last.commit), last.status));
        if let Some(beside) = last.branch.as_ref().filter(|on| **on != task.branch) {
            line.push_str(&format!(" on {}", printable(beside)));
        }
    }
    if task.failures_in_a_row > 0 {
        let failures = count(u64::from(task.failures_in_a_row), "failure");
        line.push_str(&format!("  {failures} in a row"));
    }
    let last = task.last_checkpoint.as_ref();
    let waits = last.is_some_and(|last| last.status != "discarded");
    if let Some(at) = task.next_retry_at.as_ref().filter(|_| waits) {
        line.push_str(&format!("  is due again at {at:.0}"));
    }
    if let Some(class) = &task.last_failure_class {
        line.push_str(&format!("  {class}"));
    }
    if let Some(error) = &task.error {
        line.push_str(&format!("  {}", printable(error)));
    }
    line.push('\n');
    line
}

fn checkpoint_line(checkpoint: &CheckpointRecord) -> String {
    let mut line = format!(
        "  {}  {}  {} {}",
        checkpoint.number,
        checkpoint.created_at,
        short(&checkpoint.commit),
        checkpoint.status
    );
    if let Some(branch) = &checkpoint.branch {
        line.push_str(&format!(" on {}", printable(branch)));
    }
    if let Some(error) = &checkpoint.error {
        line.push_str(&format!(": {}", printable(error)));
    }
    line.push('\n');
    line
}
