//! `run`: a command between two snapshots.

use std::ffi::OsStr;
use std::fs;
use std::future::Future;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use stillframe::backends::{
    BackendKind, Omission, OmissionReason, OmittedKind, RelPath, RetainContent, Search, shell_word,
};
use stillframe::commands::EndSignal;
use stillframe::options::ChangeRequest;
use stillframe::records::{
    Failure as FailureRecord, FollowUpRecord, QuestionId, QuestionStatus, RestoreDocument,
    RestoreStatus, ResumeState, RunDocument, WorkspaceDocument,
};
use stillframe::steps::BoxAdapter;
use stillframe::tasks::FollowUpInput;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, CancellationToken, CommandAdapter, Error, ErrorKind,
    RunContext, RunId, RunOptions, RunOutcome, RunStatus, SessionId, Snapshot,
};

use super::checkpoints::Saved;
use super::head_moved::head_moved;
use super::way_back::{self, Foreseen, WayBack};
use super::{Tools, above, restore, review, snapshot, task};
use crate::failure::{self, Failure};
use crate::output::{self, Console, Reply};
use crate::progress::ProgressLine;
use crate::request::RunRequest;
use crate::signals::Signals;

/// The work failed, and has no exit code of its own.
const EXIT_WORK_FAILED: u8 = 1;
/// The engine could not do its part before or after the command.
const EXIT_ENGINE_FAILED: u8 = 125;
/// As timeout(1) has it.
const EXIT_TIMED_OUT: u8 = 124;

/// The engine's message for a step whose changes should be undone and cannot be.
const NOT_GONE_BACK: &str = "gone back from";

/// What the engine's message says where a workspace did not come to the branch of a task.
const NOTHING_MOVED: &str = "nothing was moved";

/// The kind of what a run fails for that changed what it must not.
const FORBIDDEN: &str = ErrorKind::PolicyViolation.as_str();

/// As a command that SIGTERM ends has it, by which one is ended that somebody else cancels.
const EXIT_CANCELLED: u8 = 128 + 15;

/// How often a run that was asked to rest before it had begun is asked again.
const SUSPEND_EVERY: Duration = Duration::from_millis(10);

/// What `run` and `resume` exit with when the work was done, and the run failed for what it
/// changed: the permission was not there, as sysexits.h has it.
const EXIT_FORBIDDEN: u8 = 77;

/// What `run` and `resume` exit with when the run rests until somebody answers, or there is new
/// input: try again later, as sysexits.h has it.
const EXIT_WAITING: u8 = 75;

/// Runs the command; a signal ends it, and what follows the command is done all the same.
pub(super) async fn run(tools: &Tools, request: RunRequest) -> Result<Reply, Failure> {
    if let Some(id) = &request.options.run_id
        && let Ok(record) = tools.engine.find_run(id.as_str()).await
        && record.id == *id
    {
        super::steps::on_record::refuse_steps(&record)?;
    }
    let end_signal = EndSignal::default();
    let branch = request.options.work_branch.as_ref();
    let every = branch.map(|branch| branch.checkpoint_interval);
    let adapter = Saved {
        adapter: Foreground {
            command: request.adapter.end_signal(end_signal.clone()),
            progress: tools.progress.clone(),
        },
        every: every.filter(|every| !every.is_zero()),
        console: tools.console,
        progress: tools.progress.clone(),
    };
    let carried = Carried {
        session: request.session,
        options: request.options,
        adapter: BoxAdapter::new(adapter),
        end_signal,
        resumable: None,
        elsewhere: request.elsewhere,
        told: Told::default(),
        merges: request.merges,
        going_on: None,
    };
    Box::pin(carry(tools, carried)).await
}

/// A run that is to be carried out.
pub(super) struct Carried {
    pub(super) session: Option<SessionId>,
    pub(super) options: RunOptions,
    pub(super) adapter: BoxAdapter,
    /// By what a command of it is ended.
    pub(super) end_signal: EndSignal,
    /// The run, if it can go on after a signal; empty as long as it has no id.
    pub(super) resumable: Option<Arc<OnceLock<RunId>>>,
    /// As of [`RunRequest`].
    pub(super) elsewhere: String,
    /// The questions of which people were told while it ran.
    pub(super) told: Told,
    /// Whether what it hands in is merged at once.
    pub(super) merges: bool,
    /// What the run goes on with; `None`: it is new.
    pub(super) going_on: Option<GoingOn>,
}

/// What a run goes on with.
pub(super) enum GoingOn {
    /// Its task, and new input.
    FollowUp(String, FollowUpInput),
    /// Its id, and what it is to change in what it has handed in.
    Changes(String, ChangeRequest),
    /// The id of a run in whose place this one is.
    Retry(String),
}

/// Questions that were shown to people. Cheap to clone: all clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Arc<Mutex<Vec<QuestionId>>>);

impl Told {
    pub(super) fn add(&self, id: &QuestionId) {
        self.list().push(id.clone());
    }

    fn has(&self, id: &QuestionId) -> bool {
        self.list().contains(id)
    }

    fn list(&self) -> MutexGuard<'_, Vec<QuestionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries out a run and tells of it.
pub(super) async fn carry(tools: &Tools, carried: Carried) -> Result<Reply, Failure> {
    let mut signals = Signals::listen()?;
    let cancellation = CancellationToken::new();
    let retains = carried.options.workspace.as_ref();
    let retains = retains.map_or(RetainContent::Never, |options| options.retain_content);
    let branch = carried.options.work_branch.as_ref();
    let commands = branch.map(|branch| task::commands(branch, &carried.elsewhere));
    let named = carried.options.run_id.clone();
    let options = carried.options.cancellation(cancellation.clone());
    let adapter = BoxAdapter::new(Foretold {
        adapter: carried.adapter,
        retains,
        console: tools.console,
        progress: tools.progress.clone(),
    });
    let which = (carried.session, carried.going_on);
    let mut execution = Box::pin(execute(tools, which, options, adapter));
    let mut signal = None;
    // The run, as long as it is to be parked and has not begun.
    let mut not_begun = None;
    let outcome = loop {
        tokio::select! {
            outcome = &mut execution => break outcome,
            number = signals.next() => {
                if signal.is_none() {
                    signal = Some(number);
                    // The command ends by what we were sent, so its exit code is what ours is.
                    carried.end_signal.set(i32::from(number));
                    // One without an id has not begun, and nobody would know how to go on with it.
                    match carried.resumable.as_ref().and_then(|cell| cell.get()) {
                        Some(id) => not_begun = Some(id.clone()),
                        None => cancellation.cancel(),
                    }
                    tools.console.note("stopping: a command that is at work is ended, and what it left is captured");
                }
            }
            () = tokio::time::sleep(SUSPEND_EVERY), if not_begun.is_some() => {}
        }
        if let Some(id) = &not_begun
            && tools.engine.suspend_run(id).await.is_ok()
        {
            not_begun = None;
        }
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(e) => return Err(not_done(tools, e, named, signal).await),
    };
    if let Some(progress) = &tools.progress {
        progress.clear();
    }
    let mut document = outcome.document();
    let mut not_merged = Vec::new();
    if carried.merges && document.status == RunStatus::AwaitingReview {
        // What stands in the way keeps nobody from deciding later.
        not_merged = match review::merge_at_once(tools, &mut document).await {
            Ok(not_merged) => not_merged,
            Err(e) => vec![output::printable(&e.to_string())],
        };
    }
    let before = document.workspace.as_ref();
    let before = before.and_then(|workspace| workspace.before_snapshot.as_ref());
    let is_copied_only = match before {
        Some(before) => restore::is_copied_only(tools, before).await,
        None => false,
    };
    let may_undo = is_copied_only || tools.console.shows_notes();
    let undo = match may_undo && document.isolation.is_none() {
        // After a signal it is not waited for.
        true => tokio::select! {
            undo = way_back::foresee(tools, &document) => undo,
            _ = signals.next() => Foreseen::default(),
        },
        false => Foreseen::default(),
    };
    let ended = Ended {
        is_copied_only,
        undo,
        document: &document,
        run_error: outcome.run.error.as_ref(),
        engine_error: outcome.workspace.error.as_ref(),
        told: carried.told,
        git: before.map_or_else(|| "git".to_owned(), |before| above::git(&before.path)),
    };
    let mut reply = match tools.json {
        true => Reply::new(true, &document, String::new),
        // stdout is the command's alone.
        false => Reply::default(),
    };
    tell(
        &mut reply,
        &ended,
        (&carried.elsewhere, commands.as_ref()),
        retains,
    );
    reply.failure = failure(&ended, &carried.elsewhere);
    reply.warnings.extend(not_merged);
    Ok(reply.exit_code(exit_code(&ended, signal)))
}

/// Has the engine do a run: one that waits for this input, one in this session, or one of its own.
async fn execute(
    tools: &Tools,
    which: (Option<SessionId>, Option<GoingOn>),
    options: RunOptions,
    adapter: BoxAdapter,
) -> Result<RunOutcome, Error> {
    let engine = &tools.engine;
    match which {
        (_, Some(GoingOn::FollowUp(task, input))) => {
            engine.claim_follow_up(&task, input, options, adapter).await
        }
        (_, Some(GoingOn::Changes(run, request))) => {
            engine
                .request_changes(&run, request, options, adapter)
                .await
        }
        (_, Some(GoingOn::Retry(run))) => engine.retry_run(&run, options, adapter).await,
        (Some(id), None) => {
            let session = engine.session(id).await?;
            session.execute_run(options, adapter).await
        }
        (None, None) => engine.run_once(options, adapter).await,
    }
}

/// Tells of a run that has ended. `commands`: those of its task, if it is of one.
fn tell(
    reply: &mut Reply,
    ended: &Ended<'_>,
    (elsewhere, commands): (&str, Option<&task::Commands>),
    retains: RetainContent,
) {
    let Some(workspace) = &ended.document.workspace else {
        reply.notes.extend(story(ended, elsewhere));
        return;
    };
    let (resumed, saved) = (workspace.resumed.as_ref(), workspace.saved.as_ref());
    task::tell_of_resume(reply, resumed, saved, commands);
    reply.notes.extend(carried_along(workspace));
    reply.notes.extend(story(ended, elsewhere));
    reply.warnings.extend(warnings(workspace, retains));
    task::tell(reply, saved);
    let isolation = ended.document.isolation.as_ref();
    reply
        .warnings
        .extend(isolation.into_iter().flat_map(review::left_out));
    if let Some(all) = &workspace.repositories {
        let line = format!(
            "in all of its repositories: {}",
            output::printable(&all.summary)
        );
        match all.failure {
            Some(_) => reply.warnings.push(line),
            None => reply.notes.push(line),
        }
    }
    // A rollback that was refused has said why.
    if ended.is_copied_only && workspace.rollback.is_none() {
        reply.warnings.extend(ended.way_back(workspace, elsewhere));
    }
}

/// That a branch which begins here has what somebody had not committed yet.
fn carried_along(workspace: &WorkspaceDocument) -> Option<String> {
    let is_fresh = workspace.resumed.as_ref()?.state == ResumeState::Fresh;
    let was_dirty = workspace.before_snapshot.as_ref()?.metadata.dirty == Some(true);
    (is_fresh && was_dirty).then(|| {
        "changes that were here before the run, and not committed, are work of the task too"
            .to_owned()
    })
}

/// What a person should know of what was captured, and was not told before the work.
fn warnings(workspace: &WorkspaceDocument, retains: RetainContent) -> Vec<String> {
    let captured = [&workspace.before_snapshot, &workspace.after_snapshot];
    let [before, after] = captured.map(Option::as_ref);
    // Of a run that goes on without a way back that has been said.
    let is_news = before.is_none_or(|before| before.metadata.has_content != Some(false));
    let follows = "what the run left cannot be restored";
    let without = after.filter(|_| is_news);
    let without = without.and_then(|after| snapshot::without_content(after, retains, follows));
    let others = snapshot::warnings(before.into_iter().chain(after));
    without.into_iter().chain(others).collect()
}

/// Says before the work that there is no way back from it, where nobody asked for that.
struct Foretold {
    adapter: BoxAdapter,
    retains: RetainContent,
    console: Console,
    progress: Option<ProgressLine>,
}

impl Adapter for Foretold {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        self.adapter.check(workspace)
    }

    fn calls_model(&self) -> bool {
        self.adapter.calls_model()
    }

    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        if context.leaves_edits_out == Some(true) {
            let line = "what is here and not committed is not in the worktree of the run";
            if let Some(progress) = &self.progress {
                progress.clear();
            }
            self.console.note(line);
        }
        let follows = "this run cannot be taken back";
        let before = context.snapshot_before.as_deref();
        if let Some(line) =
            before.and_then(|before| snapshot::without_content(before, self.retains, follows))
        {
            if let Some(progress) = &self.progress {
                progress.clear();
            }
            self.console.warn(&line);
        }
        self.adapter.run(context)
    }
}

/// The one line that says how Stillframe failed, or why the command did not run to its end. A
/// command that fails by itself has said so by itself.
fn failure(ended: &Ended<'_>, elsewhere: &str) -> Option<String> {
    let document = ended.document;
    let workspace = document.workspace.as_ref();
    let rollback = workspace.and_then(|workspace| workspace.rollback.as_ref());
    if document.is_stored && document.status == RunStatus::Completed {
        None
    } else if let Some(error) = ended.engine_error {
        Some(not_known(error))
    } else if let Some(rollback) = rollback.filter(|r| r.status != RestoreStatus::Completed) {
        Some(restore::upshot(rollback))
    } else {
        ended
            .run_error
            .filter(|error| error.kind.is_some())
            .map(|_| ending(ended, elsewhere))
    }
}

fn not_known(error: &FailureRecord) -> String {
    format!(
        "what the command changed is not fully known: {}",
        output::printable(&error.message)
    )
}

/// Why a run was not done. `named`: it, if somebody has chosen its id; `signal`: the one that asked
/// it to stop.
async fn not_done(
    tools: &Tools,
    error: Error,
    named: Option<RunId>,
    signal: Option<u8>,
) -> Failure {
    let is_untouched = !error.touched();
    let mut failure = Failure::from(error);
    // It did not come to the branch of its task.
    if failure.message().contains(NOTHING_MOVED) {
        failure = failure.adding("the command was not run");
    }
    // Others are there as long as what was asked for is as it is.
    let may_pass = matches!(
        failure.kind(),
        ErrorKind::Busy
            | ErrorKind::NoSpace
            | ErrorKind::Storage
            | ErrorKind::Timeout
            | ErrorKind::Unavailable
            | ErrorKind::Unreadable
            | ErrorKind::LimitExceeded
            | ErrorKind::Cancelled
    );
    if let Some(id) = named.filter(|_| is_untouched && may_pass)
        && let Ok(run) = tools.engine.find_run(id.as_str()).await
        && run.id == id
        && run.status == RunStatus::Interrupted
    {
        failure = failure.adding(&format!(
            "run {id} is interrupted, and begins or goes on when it is started again"
        ));
    }
    // Also where it was stopped while it waited for somebody.
    match signal.filter(|_| is_untouched) {
        Some(number) => failure.by_signal(number),
        None => failure,
    }
}

/// A run that is over, and whose fault what is: two failures are two fields.
#[derive(Clone)]
struct Ended<'a> {
    document: &'a RunDocument,
    /// Why the work did not complete.
    run_error: Option<&'a FailureRecord>,
    /// What the engine could not do after the work.
    engine_error: Option<&'a FailureRecord>,
    told: Told,
    /// Whether nothing can be put back in place in its workspace.
    is_copied_only: bool,
    undo: Foreseen,
    /// Calls git for the repository of its workspace.
    git: String,
}

impl Ended<'_> {
    /// How to undo what the run changed, if it changed anything.
    fn way_back(&self, workspace: &WorkspaceDocument, elsewhere: &str) -> Vec<String> {
        let way_back = WayBack {
            run_id: &self.document.run_id,
            workspace,
            is_copied_only: self.is_copied_only,
            undo: &self.undo,
            elsewhere,
        };
        way_back.lines()
    }
}

/// A command that has the terminal to itself while it runs.
pub(super) struct Foreground {
    pub(super) command: CommandAdapter,
    pub(super) progress: Option<ProgressLine>,
}

impl Adapter for Foreground {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        self.command.check(workspace)
    }

    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        self.command.run(context)
    }
}

/// The exit code of `run`: the command's own, unless the engine could not see or put right what it
/// did: that is an error of its own. `signal` is the number of the one that cancelled the run, for
/// a command that had not begun. For a run that had completed before, the engine has nothing left
/// to do, so a host that starts the run again until it exits with 0 does not loop for ever.
fn exit_code(ended: &Ended<'_>, signal: Option<u8>) -> u8 {
    let document = ended.document;
    let is_answered = document.is_stored && document.status == RunStatus::Completed;
    if is_answered {
        let own = document.exit_code.and_then(|code| u8::try_from(code).ok());
        return own.unwrap_or(0);
    }
    if ended.engine_error.is_some() || document.workspace.as_ref().is_some_and(is_unfinished) {
        return EXIT_ENGINE_FAILED;
    }
    let own = document.exit_code.and_then(|code| u8::try_from(code).ok());
    match document.status {
        RunStatus::Completed | RunStatus::AwaitingReview | RunStatus::Merged => own.unwrap_or(0),
        RunStatus::MergeFailed => own.filter(|code| *code != 0).unwrap_or(EXIT_WORK_FAILED),
        RunStatus::WaitingForInput | RunStatus::AwaitingFollowup => EXIT_WAITING,
        RunStatus::Timeout => EXIT_TIMED_OUT,
        RunStatus::Cancelled => own
            .filter(|code| *code != 0)
            .or(signal.map(failure::exit_code_of))
            .unwrap_or(EXIT_CANCELLED),
        RunStatus::Interrupted => own
            .filter(|code| *code != 0)
            .or(signal.map(failure::exit_code_of))
            .unwrap_or(EXIT_ENGINE_FAILED),
        _ => own
            .filter(|code| *code != 0)
            .unwrap_or(match ended.run_error {
                // Nobody but the work failed, such as a step that somebody has given up.
                Some(FailureRecord { kind: None, .. }) => EXIT_WORK_FAILED,
                Some(error) if error.kind.as_deref() == Some(FORBIDDEN) => EXIT_FORBIDDEN,
                _ => EXIT_ENGINE_FAILED,
            }),
    }
}

/// Whether the engine left its part undone. A rollback that was refused touched nothing and says
/// why, so it does not hide the command's own code.
fn is_unfinished(workspace: &WorkspaceDocument) -> bool {
    let rollback_failed = workspace
        .rollback
        .as_ref()
        .is_some_and(|rollback| rollback.status == RestoreStatus::Failed);
    let is_incomplete = workspace.before_snapshot.is_some() && workspace.after_snapshot.is_none();
    is_incomplete || rollback_failed
}

/// What became of a run, for people: a few lines. `elsewhere` is added to command lines so that
/// they are about this workspace.
fn story(ended: &Ended<'_>, elsewhere: &str) -> Vec<String> {
    let document = ended.document;
    let mut lines = vec![ending(ended, elsewhere)];
    if document.status == RunStatus::WaitingForInput {
        lines.extend(waits_for(document, &ended.told));
    } else if let Some(waits) = &document.follow_up {
        lines.extend(waits_with(ended, waits));
    } else if document.is_stored && document.status.is_terminal() {
        lines.push(
            "it had ended before, so that nothing was run; this is what is on record".to_owned(),
        );
    }
    if let Some(error) = ended.engine_error {
        lines.push(not_known(error));
    }
    if let Some(isolation) = &document.isolation {
        let id = document.run_id.as_str();
        lines.extend(review::what_next(id, document.status, isolation));
    }
    let Some(workspace) = &document.workspace else {
        return lines;
    };
    if let Some(diff) = &workspace.diff {
        lines.push(super::diff::totals(diff));
        lines.extend(super::diff::hidden(diff));
        lines.extend(super::diff::approximated(diff));
        lines.extend(super::diff::unseen(diff));
        if let Some(key) = &diff.patch_ref {
            lines.push(format!(
                "the patch ({}): \"stillframe artifact get {}\"",
                output::size(diff.patch_bytes.unwrap_or(0)),
                output::printable(key)
            ));
        }
    }
    if let (Some(before), Some(after)) = (&workspace.before_snapshot, &workspace.after_snapshot) {
        lines.extend(head_moved(before, after));
        let branch = after.metadata.branch.as_deref();
        let told = branch.filter(|_| before.metadata.branch == after.metadata.branch);
        let refs = workspace.diff.as_ref().map_or(&[][..], |diff| &diff.refs);
        lines.extend(restore::refs_story(refs, told));
        lines.extend(gone_by_rule(before, after));
        lines.push(format!("before {}, after {}", before.id, after.id));
        // That the first one looked everywhere goes without saying.
        if let Search::Walked {
            because: Some(reason),
        } = after.metadata.search
        {
            lines.push(format!("the after-snapshot looked at every file: {reason}"));
        }
    }
    match &workspace.rollback {
        Some(rollback) => {
            lines.extend(restore::rollback_story(rollback, &ended.git));
            if let (RestoreStatus::Completed, Some(diff), Some(before), Some(after)) = (
                rollback.status,
                &workspace.diff,
                &workspace.before_snapshot,
                &workspace.after_snapshot,
            ) {
                let changes = &diff.skip_worktree;
                lines.extend(super::diff::sparse_settings(changes, before, after));
            }
            lines.extend(what_next(document, workspace, rollback, elsewhere));
            lines.extend(way_forward(rollback, elsewhere));
        }
        // One that waits can be taken back once it has ended, and in a worktree of its own there is
        // nothing to take back.
        None if document.follow_up.is_some() || document.isolation.is_some() => {}
        None => lines.extend(ended.way_back(workspace, elsewhere)),
    }
    lines
}

/// What is no longer there after the run, and in no snapshot and no diff, since rules leave it out.
///
/// In a git work tree that is the files that git ignores: directories that it ignores whole are
/// what builds make and remove. A repository is no path that could be captured, and what an
/// omission covers may be there. So may what a rule hid then and none does now, which only the disk
/// tells.
fn gone_by_rule(before: &Snapshot, after: &Snapshot) -> Option<String> {
    let is_told = |omission: &&Omission| match before.backend {
        BackendKind::Git => {
            let is_link = omission.kind == Some(OmittedKind::Link);
            omission.reason == OmissionReason::Ignored && (omission.bytes.is_some() || is_link)
        }
        _ => omission.reason == OmissionReason::Excluded && omission.path.name() != b".git",
    };
    let is_there =
        |path: &RelPath| after.omissions.covers(path).is_some() || is_on_disk(&after.path, path);
    let gone = before.omissions.omissions().iter().filter(is_told);
    let gone = gone.map(|omission| &omission.path);
    let gone: Vec<&RelPath> = gone.filter(|path| !is_there(path)).collect();
    (!gone.is_empty()).then(|| {
        format!(
            "no longer there, and in no snapshot, since a rule leaves it out: {}; --include PATH captures such a path",
            output::some_of(&gone)
        )
    })
}

/// Whether there is something at a path of a workspace. No link is followed.
fn is_on_disk(workspace: &Path, path: &RelPath) -> bool {
    let mut at = workspace.to_owned();
    let mut is_below = true;
    for name in path.as_bytes().split(|byte| *byte == b'/') {
        at.push(OsStr::from_bytes(name));
        match fs::symlink_metadata(&at) {
            Ok(meta) if is_below => is_below = meta.is_dir(),
            _ => return false,
        }
    }
    true
}

/// What a run that rests waits for, unless that was `told`, and how it goes on.
fn waits_for(document: &RunDocument, told: &Told) -> Vec<String> {
    let open = document
        .questions
        .iter()
        .filter(|question| question.status == QuestionStatus::Open && !told.has(&question.id));
    let mut lines: Vec<String> = open
        .flat_map(|question| {
            [
                format!("it asks: {}", super::questions::line(question)),
                format!("\"stillframe answer {} ANSWER\" answers", question.id),
            ]
        })
        .collect();
    lines.push(format!(
        "then \"stillframe resume {}\" goes on with it",
        document.run_id
    ));
    lines
}

/// Why a task waits, and how it goes on.
fn waits_with(ended: &Ended<'_>, waits: &FollowUpRecord) -> [String; 2] {
    let workspace = ended.document.workspace.as_ref();
    let saved = workspace.and_then(|workspace| workspace.saved.as_ref());
    let task = saved.map(|saved| output::name_of(saved.namespace.as_deref(), &saved.task));
    let task = task.unwrap_or_else(|| "TASK".to_owned());
    [
        format!(
            "it is blocked: {}",
            output::printable(&waits.waiting_reason)
        ),
        format!(
            "\"stillframe task follow-up {} --input-id N --text TEXT\" goes on with it",
            shell_word(task.as_bytes())
        ),
    ]
}

fn ending(ended: &Ended<'_>, elsewhere: &str) -> String {
    let document = ended.document;
    let id = &document.run_id;
    let how = match document.status {
        RunStatus::Completed => "completed",
        RunStatus::Failed => "failed",
        RunStatus::Timeout => "timed out",
        RunStatus::Cancelled => "was cancelled",
        RunStatus::Interrupted => "was interrupted",
        RunStatus::WaitingForInput => "rests until somebody answers",
        RunStatus::AwaitingFollowup => "rests until there is new input",
        RunStatus::AwaitingReview => "has handed something in",
        RunStatus::Merged => "was merged",
        RunStatus::MergeFailed => "conflicts with what others have done",
        RunStatus::Pending | RunStatus::Running => "is under way",
        _ => document.status.as_str(),
    };
    match ended.run_error {
        // That it was asked to stop is all there is to say.
        Some(_) if document.status == RunStatus::Cancelled => format!("run {id} {how}"),
        Some(error) if document.status == RunStatus::Interrupted => {
            let because = match error.kind.as_deref() == Some(ErrorKind::Cancelled.as_str()) {
                true => String::new(),
                false => format!(": {}", output::printable(&error.message)),
            };
            let way = match error.message.contains(NOT_GONE_BACK) {
                // The steps on record say what they say.
                true => format!(
                    "\"stillframe resume {id}\" goes on as it is on record, \"stillframe run --steps FILE --run-id {id}{elsewhere}\" and its other options with a file that says so"
                ),
                false => format!("\"stillframe resume {id}\" goes on with it"),
            };
            format!("run {id} {how}{because}; {way}")
        }
        Some(error) => format!("run {id} {how}: {}", output::printable(&error.message)),
        None => format!("run {id} {how}"),
    }
}

/// The command to go on with after a rollback that did not do everything, in one line.
fn what_next(
    document: &RunDocument,
    workspace: &WorkspaceDocument,
    rollback: &RestoreDocument,
    elsewhere: &str,
) -> Option<String> {
    let run = &document.run_id;
    let before = workspace.before_snapshot.as_ref().map(|before| &before.id);
    let after = workspace.after_snapshot.as_ref().map(|after| &after.id);
    let with_repository = match workspace.backend {
        Some(BackendKind::Git) => " --repository",
        _ => "",
    };
    let kind = rollback
        .error
        .as_ref()
        .and_then(|error| error.kind.as_deref());
    match (rollback.status, before, after) {
        (RestoreStatus::Refused, _, Some(_)) if kind == Some(ErrorKind::HeadMoved.as_str()) => {
            Some(format!(
                "\"stillframe undo {run}{elsewhere}\" puts the files back and leaves HEAD where it is"
            ))
        }
        (RestoreStatus::Refused, _, Some(_)) => Some(format!(
            "once that is put right, \"stillframe undo {run}{elsewhere}\" takes the run back"
        )),
        // What the run left is in no snapshot, so no undo can tell it from later edits.
        (RestoreStatus::Refused, Some(before), None) => Some(format!(
            "once that is put right, \"stillframe restore {before}{with_repository}{elsewhere}\" goes back to before the run"
        )),
        (RestoreStatus::Failed, ..) => Some(format!(
            "once that is put right, \"stillframe snapshot{elsewhere}\" finishes the rollback first"
        )),
        (RestoreStatus::Completed, Some(before), _)
            if rollback.error.is_some() || !rollback.skipped.is_empty() =>
        {
            Some(format!(
                "\"stillframe diff {before}{elsewhere}\" lists the captured files that are not as they were before the run"
            ))
        }
        _ => None,
    }
}

/// Where the work is that a rollback took back. The guard has also what no snapshot captures and
/// the rollback displaced.
fn way_forward(rollback: &RestoreDocument, elsewhere: &str) -> Option<String> {
    let guard = rollback.guard_snapshot.as_ref()?;
    let is_taken_back =
        rollback.status == RestoreStatus::Completed && !rollback.restored.is_empty();
    is_taken_back.then(|| {
        format!(
            "what the run left is kept: \"stillframe restore {guard}{elsewhere}\" brings it back"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::snapshot::tests::snapshot_json;

    fn document(status: &str, exit_code: Option<i32>, workspace: Value) -> RunDocument {
        let error = (status != "completed")
            .then(|| json!({"kind": null, "message": "the command did\nsomething"}));
        serde_json::from_value(json!({
            "run_id": "run_1", "session_id": "ses_1", "status": status, "exit_code": exit_code,
            "error": error, "workspace": workspace,
        }))
        .expect("it is the document of a run")
    }

    fn ended(document: &RunDocument) -> Ended<'_> {
        Ended {
            document,
            run_error: document.error.as_ref(),
            engine_error: None,
            told: Told::default(),
            is_copied_only: false,
            undo: Foreseen::default(),
            git: "git".to_owned(),
        }
    }

    fn workspace(changed: &[&str]) -> Value {
        json!({
            "backend": "git",
            "before_snapshot": snapshot_json('a', &[]),
            "after_snapshot": snapshot_json('b', &[]),
            "diff": {
                "backend": "git", "from_ref": "a", "to_ref": "b", "files_changed": changed.len(),
                "insertions": 2 * changed.len().min(1), "deletions": changed.len().min(1),
                "changed_paths": changed, "added": [],
                "modified": changed, "deleted": [], "has_patch": true, "patch": "x",
                "patch_ref": null, "patch_bytes": 1, "patch_truncated": false,
            },
            "rollback": null,
            "error": null,
        })
    }

    fn rollback(status: &str) -> Value {
        json!({
            "status": status, "guard_snapshot": format!("snap_{}", "c".repeat(32)),
            "safety_tag": null, "restored": ["a"], "leftover_ignored": [], "skipped": [],
            "error": null,
        })
    }

    #[test]
    fn the_exit_code_is_the_commands_own() {
        for (status, own, expected) in [
            ("completed", Some(0), 0),
            ("completed", None, 0),
            ("failed", Some(42), 42),
            ("failed", Some(127), 127),
            ("failed", Some(137), 137),
            ("timeout", Some(124), 124),
            ("timeout", None, 124),
            // Such as a step that was given up.
            ("failed", None, 1),
        ] {
            let document = document(status, own, workspace(&[]));
            assert_eq!(
                exit_code(&ended(&document), None),
                expected,
                "{status} {own:?}"
            );
        }
    }

    #[test]
    fn a_run_that_changed_what_it_must_not_exits_with_77_unless_its_command_failed() {
        for (own, expected) in [(Some(0), 77), (None, 77), (Some(3), 3)] {
            let mut failed = document("failed", own, workspace(&["a"]));
            failed.error = Some(FailureRecord::new("PolicyViolation", "it changed a"));
            assert_eq!(exit_code(&ended(&failed), None), expected, "{own:?}");
        }
    }

    #[test]
    fn a_run_that_the_engine_let_fail_exits_with_125() {
        let mut failed = document("failed", None, workspace(&[]));
        failed.error = Some(FailureRecord::new("PlanChanged", "it is another"));
        assert_eq!(exit_code(&ended(&failed), None), 125);
    }

    #[test]
    fn a_cancelled_run_exits_as_its_document_says_or_by_the_signal_that_asked_for_it() {
        for (own, signal, expected) in [
            (Some(130), Some(2), 130),
            (Some(143), Some(2), 143),
            (Some(3), Some(2), 3),
            (None, Some(2), 130),
            (None, Some(1), 129),
            (Some(143), None, 143),
            // As one that was at work when somebody else cancelled it.
            (None, None, 143),
            (Some(0), None, 143),
        ] {
            let document = document("cancelled", own, Value::Null);
            assert_eq!(
                exit_code(&ended(&document), signal),
                expected,
                "{own:?} {signal:?}"
            );
        }
        let finished = document("completed", Some(0), workspace(&[]));
        assert_eq!(
            exit_code(&ended(&finished), Some(2)),
            0,
            "it was done before the signal counted"
        );
    }

    #[test]
    fn a_watch_that_did_not_serve_says_why() {
        let mut watched = workspace(&[]);
        let first = json!({"how": "walked", "because": "no_journal"});
        watched["before_snapshot"]["metadata"]["search"] = first;
        watched["after_snapshot"]["metadata"]["search"] =
            json!({"how": "watched", "directories": 1});
        let served = document("completed", Some(0), watched.clone());
        let is_said = |lines: &[String]| lines.iter().any(|line| line.contains("every file"));
        assert!(
            !is_said(&story(&ended(&served), "")),
            "the first one always walks"
        );
        watched["after_snapshot"]["metadata"]["search"] =
            json!({"how": "walked", "because": "queue_overflow"});
        let lines = story(&ended(&document("completed", Some(0), watched)), "");
        let line =
            "the after-snapshot looked at every file: more happened at once than the kernel kept";
        assert!(lines.iter().any(|said| said == line), "{lines:?}");
    }

    #[test]
    fn a_failure_of_the_engine_after_the_command_is_125() {
        let mut uncaptured = workspace(&[]);
        uncaptured["after_snapshot"] = Value::Null;
        let mut half_way = workspace(&[]);
        half_way["rollback"] = rollback("failed");
        for workspace in [uncaptured, half_way] {
            let document = document("failed", Some(3), workspace);
            assert_eq!(exit_code(&ended(&document), None), 125);
            assert_eq!(
                document.exit_code,
                Some(3),
                "the document has the command's own"
            );
        }
        let document_of_failed = document("failed", Some(3), workspace(&[]));
        let full = FailureRecord::new("NoSpace", "the disk is full");
        let uncompared = Ended {
            engine_error: Some(&full),
            ..ended(&document_of_failed)
        };
        assert_eq!(exit_code(&uncompared, None), 125);
        let lines = story(&uncompared, "");
        let line = "what the command changed is not fully known: the disk is full";
        assert_eq!(lines[1], line, "beside the command's own: {lines:?}");
        // Of what is on record nothing is tried again.
        let mut again = document("completed", Some(0), workspace(&[]));
        for (is_stored, expected) in [(false, 125), (true, 0)] {
            again.is_stored = is_stored;
            let uncompared = Ended {
                engine_error: Some(&full),
                ..ended(&again)
            };
            assert_eq!(exit_code(&uncompared, None), expected);
            assert_eq!(
                story(&uncompared, "")
                    .iter()
                    .filter(|l| l.ends_with("is full"))
                    .count(),
                1
            );
        }
        let mut refused = workspace(&[]);
        refused["rollback"] = rollback("refused");
        assert_eq!(
            exit_code(&ended(&document("failed", Some(3), refused)), None),
            3
        );
    }

    #[test]
    fn a_completed_run_says_what_changed_and_how_to_take_it_back() {
        let document = document("completed", Some(0), workspace(&["a", "b"]));
        let (a, b) = ("a".repeat(32), "b".repeat(32));
        assert_eq!(
            story(&ended(&document), " --workspace /w"),
            [
                "run run_1 completed".to_owned(),
                "2 files changed, 2 insertions(+), 1 deletion(-)".to_owned(),
                format!("before snap_{a}, after snap_{b}"),
                "\"stillframe undo run_1 --workspace /w\" takes it back".to_owned(),
            ]
        );
    }

    #[test]
    fn a_run_that_changed_nothing_has_nothing_to_take_back() {
        let lines = story(&ended(&document("failed", Some(2), workspace(&[]))), "");
        assert_eq!(lines[0], "run run_1 failed: the command did\\nsomething");
        assert_eq!(lines[1], "no file changed");
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    #[test]
    fn a_cancelled_run_is_said_to_be_that_and_no_more() {
        let lines = story(&ended(&document("cancelled", Some(143), Value::Null)), "");
        assert_eq!(lines, ["run run_1 was cancelled"]);
    }

    #[test]
    fn a_rollback_says_where_the_work_is_kept() {
        let mut rolled_back = workspace(&["a"]);
        rolled_back["rollback"] = rollback("completed");
        let lines = story(&ended(&document("failed", Some(2), rolled_back)), "");
        // By its guard, which has also what no snapshot captures.
        let restore = format!("stillframe restore snap_{}", "c".repeat(32));
        assert!(
            lines.last().is_some_and(|line| line.contains(&restore)),
            "{lines:?}"
        );
        assert!(!lines.iter().any(|line| line.contains("undo")), "{lines:?}");
    }

    #[test]
    fn a_rollback_that_was_not_done_says_which_command_goes_on() {
        let (before, guard) = (
            format!("snap_{}", "a".repeat(32)),
            format!("snap_{}", "c".repeat(32)),
        );
        let error = |kind: &str| json!({"kind": kind, "message": "so it is"});
        for (status, error, skipped, expected) in [
            (
                "refused",
                error("HeadMoved"),
                json!([]),
                "\"stillframe undo run_1 -w\"".to_owned(),
            ),
            (
                "refused",
                error("Conflict"),
                json!([]),
                "\"stillframe undo run_1 -w\"".to_owned(),
            ),
            (
                "failed",
                error("NoSpace"),
                json!([]),
                "\"stillframe snapshot -w\"".to_owned(),
            ),
            (
                "completed",
                error("NotFound"),
                json!([]),
                format!("\"stillframe diff {before} -w\""),
            ),
            (
                "completed",
                Value::Null,
                json!([{"path": "x", "reason": "changed_meanwhile"}]),
                format!("\"stillframe diff {before} -w\""),
            ),
            (
                "completed",
                Value::Null,
                json!([]),
                format!("\"stillframe restore {guard} -w\""),
            ),
        ] {
            let mut ended_so = workspace(&["a"]);
            ended_so["rollback"] = rollback(status);
            ended_so["rollback"]["error"] = error.clone();
            ended_so["rollback"]["skipped"] = skipped;
            let document = document("failed", Some(2), ended_so);
            let lines = story(&ended(&document), " -w");
            let is_said = lines.iter().any(|line| line.contains(&expected));
            assert!(is_said, "{status} {error}: {lines:?}");
        }
        let mut uncaptured = workspace(&["a"]);
        uncaptured["after_snapshot"] = Value::Null;
        uncaptured["rollback"] = rollback("refused");
        let document = document("failed", Some(2), uncaptured);
        let lines = story(&ended(&document), "");
        let expected = format!("\"stillframe restore {before} --repository\"");
        assert!(
            lines.last().is_some_and(|l| l.contains(&expected)),
            "{lines:?}"
        );
    }

    #[test]
    fn what_a_run_hid_is_named_and_is_nothing_to_take_back() {
        let mut hiding = workspace(&[]);
        hiding["diff"]["newly_ignored"] = json!(["a", "b", "c", "d"]);
        let document = document("completed", Some(0), hiding);
        let lines = story(&ended(&document), "");
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(
            lines[2],
            "4 new paths are hidden by ignore rules that came since: a, b, c … and 1 more"
        );
    }

    #[test]
    fn permissions_and_directories_alone_can_be_taken_back() {
        for (key, value) in [
            (
                "permissions_changed",
                json!([{"path": "k", "from": 0o644, "to": 0o600}]),
            ),
            ("directories_added", json!(["d"])),
            ("directories_deleted", json!(["d"])),
        ] {
            let mut beside = workspace(&[]);
            beside["diff"][key] = value;
            let document = document("completed", Some(0), beside);
            let lines = story(&ended(&document), "");
            let last = lines.last().expect("there are lines");
            assert!(last.contains("stillframe undo run_1"), "{key}: {lines:?}");
        }
    }

    #[test]
    fn an_undo_that_cannot_work_is_not_suggested() {
        let mut hashed = workspace(&["a"]);
        hashed["diff"]["backend"] = json!("hash");
        for (keeps_content, expected) in [(false, "--retain-content"), (true, "stillframe undo")] {
            hashed["before_snapshot"]["metadata"]["has_content"] = json!(keeps_content);
            let lines = story(&ended(&document("failed", Some(2), hashed.clone())), "");
            let last = lines.last().expect("there are lines");
            assert!(last.contains(expected), "{last}");
        }
    }
}
