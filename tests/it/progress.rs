//! Checkpoints of a task while a run works: by a host, by the command that is run, and by the
//! clock. The oracle is git.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use stillframe::backends::AllowedSecret;
use stillframe::events::{EventQuery, EventType};
use stillframe::records::{SavedState, SavedWork};
use stillframe::tasks::{Checkpointed, WorkBranchOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunOptions,
    RunOutcome, RunStatus, WorkspaceOptions,
};
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::{TestWorkspace, binary, git};

use super::tasks::{KILLS, counted};

const BRANCH: &str = "stillframe/task/42";

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

/// Where the host of a story is: the directory of all that is in it.
const BASE: &str = "STILLFRAME_TEST_BASE";

const HOUR: Duration = Duration::from_secs(3600);

/// A bare repository beside the workspace.
fn remote(ws: &TestWorkspace) -> PathBuf {
    let (home, base) = (ws.home(), ws.base());
    git::text(&home, base, ["init", "-q", "--bare", "remote.git"]);
    base.join("remote.git")
}

/// A git that notes each of its calls, and is then git.
pub(crate) fn counting_git(base: &Path) -> OsString {
    let real = Command::new("sh").args(["-c", "command -v git"]).output();
    let real = String::from_utf8(real.unwrap().stdout).unwrap();
    let (bin, calls) = (base.join("bin"), base.join("calls"));
    fs::create_dir(&bin).unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> '{}'\nexec {} \"$@\"\n",
        calls.display(),
        real.trim()
    );
    let program = bin.join("git");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let paths = env::var_os("PATH").unwrap();
    let paths = std::iter::once(bin).chain(env::split_paths(&paths));
    env::join_paths(paths).unwrap()
}

/// A workspace with a remote, as the host in its own process has them.
#[derive(Clone)]
struct Scene {
    base: PathBuf,
    workspace: PathBuf,
}

/// Tells `story` in a process of its own, so that the calls of git in it are its own.
fn in_a_host<S: Future<Output = ()>>(test: &str, story: impl FnOnce(Scene) -> S) {
    if let Some(base) = env::var_os(BASE) {
        let base = PathBuf::from(base);
        let scene = Scene {
            workspace: fs::read_to_string(base.join("place")).unwrap().into(),
            base,
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(story(scene));
    }
    let ws = TestWorkspace::repository();
    remote(&ws);
    fs::write(ws.base().join("place"), ws.root().to_str().unwrap()).unwrap();
    let host = Command::new(env::current_exe().unwrap())
        .args([&format!("progress::{test}"), "--exact", "--nocapture"])
        .env(BASE, ws.base())
        .env("HOME", ws.home())
        .env("PATH", counting_git(ws.base()))
        .output()
        .unwrap();
    let said = [host.stdout, host.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(host.status.success() && said.contains("1 passed"), "{said}");
}

impl Scene {
    fn write(&self, name: &str, text: &str) {
        fs::write(self.workspace.join(name), text).unwrap();
    }

    fn remote(&self) -> String {
        self.base.join("remote.git").to_str().unwrap().to_owned()
    }

    /// How often git was started until here.
    fn calls(&self) -> usize {
        let calls = fs::read_to_string(self.base.join("calls"));
        calls.unwrap_or_default().lines().count()
    }

    /// What git says, in the remote.
    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("/usr/bin/git")
            .current_dir(self.base.join("remote.git"))
            .args(args)
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.trim_end().to_owned()
    }

    /// Where the remote has the branch.
    fn tip(&self) -> Option<String> {
        let listed = self.git(&["ls-remote", ".", &format!("refs/heads/{BRANCH}")]);
        listed.split_whitespace().next().map(str::to_owned)
    }

    async fn engine(&self) -> Engine {
        let options = EngineOptions::default().state_dir(self.base.join("state"));
        Engine::start(options).await.unwrap()
    }

    fn branch(&self, interval: Duration) -> WorkBranchOptions {
        let branch = WorkBranchOptions::of("42").remote(self.remote());
        branch.checkpoint_interval(interval)
    }

    /// Does `work` in a run of the task.
    async fn run<W: Future<Output = ()> + Send>(
        &self,
        interval: Duration,
        work: impl Fn(Self, RunContext) -> W + Send + Sync + 'static,
    ) -> RunOutcome {
        let engine = self.engine().await;
        let session = engine.session("s").await.unwrap();
        let options = RunOptions::new("x")
            .workspace(WorkspaceOptions::at(&self.workspace))
            .work_branch(self.branch(interval));
        let does = Does(self.clone(), work);
        let outcome = session.execute_run(options, does).await.unwrap();
        engine.shutdown().await.unwrap();
        outcome
    }
}

struct Does<F>(Scene, F);

impl<F, W> Adapter for Does<F>
where
    F: Fn(Scene, RunContext) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send,
{
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        self.1(self.0.clone(), context).await;
        Ok(AdapterOutput::empty())
    }
}

fn made(answer: Checkpointed) -> SavedWork {
    match answer {
        Checkpointed::Made(saved) => *saved,
        other => panic!("{other:?}"),
    }
}

fn completed(outcome: &RunOutcome) {
    assert_eq!(outcome.run.status, RunStatus::Completed, "{outcome:?}");
}

#[test]
fn progress_is_pushed_and_marked_and_within_the_interval_nothing_is_started() {
    let name = "progress_is_pushed_and_marked_and_within_the_interval_nothing_is_started";
    in_a_host(name, async |scene: Scene| {
        let outcome = scene
            .run(HOUR, |scene, context| async move {
                let clean = made(context.checkpoint().await.unwrap());
                assert_eq!(clean.state, SavedState::Pushed, "the head was not there");
                assert!(!clean.carried, "nobody has done anything");

                scene.write("one", "1\n");
                let before = scene.calls();
                assert!(before > 0, "the git that counts is the one that is used");
                let began = Instant::now();
                const CALLS: u32 = 1000;
                for _ in 0..CALLS {
                    let answer = context.checkpoint().await.unwrap();
                    assert_eq!(answer, Checkpointed::NotDue);
                }
                let took = began.elapsed() / CALLS;
                assert!(took < Duration::from_millis(1), "{took:?}");
                assert_eq!(scene.calls(), before, "nothing was started");
                assert_eq!(scene.tip(), clean.commit, "and nothing was sent");

                let first = made(context.checkpoint_now().await.unwrap());
                assert_eq!((first.state, first.carried), (SavedState::Pushed, true));
                assert_eq!(scene.tip(), first.commit);
                let run = &context.run_id;
                let said =
                    scene.git(&["log", "-1", "--format=%B", first.commit.as_deref().unwrap()]);
                assert_eq!(
                    said,
                    format!(
                        "[checkpoint] stillframe run {run}\n\nRun-Id: {run}\nPipeline: unknown\n\
                         Step: unknown\nTask: 42\nCheckpoint-Kind: periodic"
                    )
                );
                // Who asks is told where it is, though nothing is new.
                let again = made(context.checkpoint_now().await.unwrap());
                assert_eq!((again.state, again.carried), (SavedState::NoChanges, true));
                assert_eq!(again.commit, first.commit);
            })
            .await;
        completed(&outcome);
        let saved = outcome.workspace.saved.unwrap();
        assert_eq!((saved.state, saved.carried), (SavedState::NoChanges, true));
        assert_eq!(scene.git(&["fsck", "--strict", "--no-dangling"]), "");
    });
}

#[test]
fn progress_after_the_interval_is_pushed_and_what_is_as_it_was_takes_no_process() {
    let name = "progress_after_the_interval_is_pushed_and_what_is_as_it_was_takes_no_process";
    in_a_host(name, async |scene: Scene| {
        const SHORT: Duration = Duration::from_millis(20);
        let outcome = scene
            .run(SHORT, |scene, context| async move {
                scene.write("one", "1\n");
                let first = made(context.checkpoint().await.unwrap());
                tokio::time::sleep(SHORT).await;
                let before = scene.calls();
                let same = context.checkpoint().await.unwrap();
                assert_eq!(same, Checkpointed::Unchanged);
                assert_eq!(scene.calls(), before, "nothing was started");
                scene.write("two", "2\n");
                tokio::time::sleep(SHORT).await;
                let second = made(context.checkpoint().await.unwrap());
                assert_eq!((second.state, second.carried), (SavedState::Pushed, true));
                assert_ne!(second.commit, first.commit);
                assert_eq!(scene.tip(), second.commit);
                let parent = format!("{BRANCH}^");
                assert_eq!(Some(scene.git(&["rev-parse", &parent])), first.commit);
            })
            .await;
        completed(&outcome);
        let engine = scene.engine().await;
        let query = EventQuery::all().run(outcome.run_id);
        let events = engine.events(query).await.unwrap();
        let told = |wanted: &EventType| events.iter().filter(|e| e.event_type == *wanted).count();
        assert_eq!(told(&EventType::PERSIST_STARTED), 3, "two, and the end");
        assert_eq!(told(&EventType::PERSIST_PUSHED), 2);
        assert_eq!(told(&EventType::PERSIST_NOOP), 1);
        let (_, checkpoints) = engine.find_task("42").await.unwrap();
        let kinds: Vec<&str> = checkpoints.iter().map(|one| one.kind.as_str()).collect();
        assert_eq!(kinds, ["periodic"; 2]);
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn without_an_interval_progress_is_never_saved_and_a_run_of_no_task_has_no_branch() {
    let name = "without_an_interval_progress_is_never_saved_and_a_run_of_no_task_has_no_branch";
    in_a_host(name, async |scene: Scene| {
        let outcome = scene
            .run(Duration::ZERO, |scene, context| async move {
                scene.write("one", "1\n");
                let before = scene.calls();
                for _ in 0..3 {
                    let answer = context.checkpoint().await.unwrap();
                    assert_eq!(answer, Checkpointed::NotDue);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(scene.calls(), before);
                assert_eq!(scene.tip(), None);
            })
            .await;
        completed(&outcome);
        let saved = outcome.workspace.saved.unwrap();
        assert_eq!((saved.state, saved.carried), (SavedState::Pushed, true));

        let engine = scene.engine().await;
        let session = engine.session("s").await.unwrap();
        let options = RunOptions::new("x").workspace(WorkspaceOptions::at(&scene.workspace));
        let does = Does(scene.clone(), |_, context: RunContext| async move {
            for answer in [context.checkpoint().await, context.checkpoint_now().await] {
                let refused = answer.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
            }
        });
        completed(&session.execute_run(options, does).await.unwrap());
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn a_secret_in_progress_is_neither_sent_nor_marked_and_place_and_rule_are_told() {
    let name = "a_secret_in_progress_is_neither_sent_nor_marked_and_place_and_rule_are_told";
    in_a_host(name, async |scene: Scene| {
        let outcome = scene
            .run(HOUR, |scene, context| async move {
                scene.write("key", &format!("a\ntoken = {SECRET}\n"));
                let refused = made(context.checkpoint().await.unwrap());
                assert_eq!(
                    (refused.state, refused.carried),
                    (SavedState::NotSaved, false)
                );
                assert_eq!(refused.failure.as_deref(), Some("SecretFound"));
                let found = &refused.secrets[0];
                assert_eq!((&*found.rule, found.line), ("github_token", 2));
                assert_eq!(found.path.to_string(), "key");
                let why = refused.error.unwrap();
                assert!(why.contains("key line 2") && !why.contains(SECRET), "{why}");
                assert_eq!(scene.tip(), None);
                // The next one does not go on from what was refused.
                fs::remove_file(scene.workspace.join("key")).unwrap();
                scene.write("other", "x\n");
                let clean = made(context.checkpoint_now().await.unwrap());
                assert_eq!((clean.state, clean.carried), (SavedState::Pushed, true));
            })
            .await;
        completed(&outcome);
        let history = scene.git(&["log", "-p", "--all"]);
        assert!(!history.contains(SECRET), "{history}");
    });
}

#[test]
fn what_is_refused_is_not_made_again_until_the_user_allows_it() {
    let name = "what_is_refused_is_not_made_again_until_the_user_allows_it";
    in_a_host(name, async |scene: Scene| {
        const SHORT: Duration = Duration::from_millis(20);
        let outcome = scene
            .run(SHORT, |scene, context| async move {
                scene.write("key", &format!("{SECRET}\n"));
                let refused = made(context.checkpoint().await.unwrap());
                assert_eq!(refused.state, SavedState::NotSaved);
                tokio::time::sleep(SHORT).await;
                let before = scene.calls();
                let again = made(context.checkpoint().await.unwrap());
                assert_eq!(again, refused);
                assert_eq!(scene.calls(), before, "nothing was started");
                let engine = scene.engine().await;
                let (task, checkpoints) = engine.find_task("42").await.unwrap();
                assert_eq!((checkpoints.len(), task.failures_in_a_row), (1, 1));
                let found = &refused.secrets[0];
                let (rule, path) = (found.rule.clone(), found.path.clone());
                let allowed = AllowedSecret::new(rule, path, found.fingerprint.clone());
                let workspace = WorkspaceOptions::at(&scene.workspace);
                engine.allow_secret(&workspace, allowed).await.unwrap();
                engine.shutdown().await.unwrap();
                tokio::time::sleep(SHORT).await;
                let sent = made(context.checkpoint().await.unwrap());
                assert_eq!((sent.state, sent.carried), (SavedState::Pushed, true));
            })
            .await;
        completed(&outcome);
    });
}

#[test]
fn a_failure_to_save_progress_is_answered_and_on_record_and_none_of_the_run() {
    let name = "a_failure_to_save_progress_is_answered_and_on_record_and_none_of_the_run";
    in_a_host(name, async |scene: Scene| {
        let outcome = scene
            .run(HOUR, |scene, context| async move {
                scene.write("one", "1\n");
                let (there, away) = (scene.base.join("remote.git"), scene.base.join("away.git"));
                fs::rename(&there, &away).unwrap();
                let kept = made(context.checkpoint().await.unwrap());
                assert_eq!((kept.state, kept.carried), (SavedState::NotSaved, false));
                assert!(kept.failure.is_some() && kept.kept_as.is_some(), "{kept:?}");
                fs::rename(&away, &there).unwrap();
                // Two at once: one after the other, and the second finds the first.
                let both = tokio::join!(context.checkpoint_now(), context.checkpoint_now());
                let both = [both.0, both.1].map(|answer| made(answer.unwrap()));
                let states = both.each_ref().map(|saved| saved.state);
                assert!(states.contains(&SavedState::Pushed), "{states:?}");
                assert!(states.contains(&SavedState::NoChanges), "{states:?}");
                for saved in both {
                    assert_eq!(saved.commit, kept.commit, "what was not sent is sent now");
                }
                assert_eq!(scene.tip(), kept.commit);
                let git = scene.workspace.join(".git");
                fs::rename(&git, scene.base.join("git")).unwrap();
                let nothing = context.checkpoint_now().await.unwrap();
                assert!(matches!(nothing, Checkpointed::NotMade(_)), "{nothing:?}");
                fs::rename(scene.base.join("git"), git).unwrap();
            })
            .await;
        completed(&outcome);
        let engine = scene.engine().await;
        let query = EventQuery::all().run(outcome.run_id);
        let events = engine.events(query).await.unwrap();
        let told = |wanted: &EventType| events.iter().filter(|e| e.event_type == *wanted).count();
        let failures = told(&EventType::PERSIST_FAILED) + told(&EventType::ERROR_OCCURRED);
        assert_eq!(failures, 2, "{events:#?}");
        engine.shutdown().await.unwrap();
    });
}

/// Where the remote has a branch, as git itself says.
fn at(ws: &TestWorkspace, branch: &str) -> Option<String> {
    let full = format!("refs/heads/{branch}");
    let listed = git::text(&ws.home(), ws.base(), ["ls-remote", "remote.git", &full]);
    listed.split_whitespace().next().map(str::to_owned)
}

fn sound(ws: &TestWorkspace) {
    let remote = ws.base().join("remote.git");
    git::run(&ws.home(), &remote, ["fsck", "--strict", "--no-dangling"]);
}

fn hook(ws: &TestWorkspace, script: &str) {
    let path = ws.base().join("remote.git/hooks/pre-receive");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The arguments of a run of the task in `sh`.
fn in_shell<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let first = ["--json", "run", "--task", "42", "--remote", "../remote.git"];
    let last = ["--", "sh", "-c", script];
    [&first[..], options, &last].concat()
}

fn checkpoints(ws: &TestWorkspace, task: &str) -> Vec<Value> {
    let shown = ws.json(["task", "show", task]);
    shown["checkpoints"].as_array().unwrap().clone()
}

fn text<'a>(document: &'a Value, key: &str) -> &'a str {
    document[key].as_str().unwrap()
}

#[test]
fn a_command_saves_the_work_of_its_run_without_naming_the_task() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let branch = "stillframe/task/p/q/42";
    let program = binary::stillframe();
    let script = format!(
        "echo 1 > one; mkdir -p d; cd d; {program} --json task checkpoint > ../../first || exit 9
         git ls-remote {remote} refs/heads/{branch} > ../../seen; echo 2 > ../two; exit 3",
        program = program.display(),
        remote = remote.display()
    );
    let options = ["--namespace", "p/q", "--checkpoint-every", "0"];
    let outcome = ws.stillframe(in_shell(&options, &script)).exits(3).json();
    let first = fs::read_to_string(ws.base().join("first")).unwrap();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(text(&first, "state"), "pushed", "{first}");
    assert_eq!(
        (&first["carried"], text(&first, "branch")),
        (&Value::Bool(true), branch)
    );
    let seen = fs::read_to_string(ws.base().join("seen")).unwrap();
    assert!(
        seen.starts_with(text(&first, "commit")),
        "it was there then: {seen}"
    );
    let saved = &outcome["workspace"]["saved"];
    assert_eq!(text(saved, "state"), "pushed");
    assert_eq!(at(&ws, branch).as_deref(), Some(text(saved, "commit")));
    let of_remote = |args: &[&str]| git::text(&ws.home(), &remote, args);
    let id = text(&outcome, "run_id");
    let log = of_remote(&[
        "log",
        "-2",
        "--format=%s %(trailers:key=Run-Id,valueonly)",
        branch,
    ]);
    let log: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(
        log,
        [
            format!("[wip] stillframe run {id} {id}"),
            format!("[checkpoint] stillframe run {id} {id}")
        ]
    );
    let parent = format!("{branch}^");
    assert_eq!(of_remote(&["rev-parse", &parent]), text(&first, "commit"));
    let made = checkpoints(&ws, "p/q/42");
    let kinds: Vec<&str> = made.iter().map(|one| text(one, "kind")).collect();
    assert_eq!(kinds, ["periodic", "wip"]);
    assert!(made.iter().all(|one| text(one, "run_id") == id), "{made:?}");
    sound(&ws);
}

#[test]
fn a_task_has_to_be_named_outside_of_a_run_of_it() {
    let ws = TestWorkspace::repository();
    remote(&ws);
    let outside = ws.try_json(["task", "checkpoint"]).exits(2);
    let said = outside.error("InvalidOptions");
    assert!(said.contains("stillframe task checkpoint ID"), "{said}");
    let inside = |name: &str, value: &str, args: &[&str]| {
        let call = ws.call(["--json", "task", "checkpoint"].iter().chain(args).copied());
        call.env("STILLFRAME_CURRENT_RUN", name)
            .env("STILLFRAME_CURRENT_STATE", value)
            .run()
    };
    inside("r1", "", &["--remote", "x"])
        .exits(2)
        .error("InvalidOptions");
    inside("r1", "1:1", &[]).refused("NotFound");
    inside("a b", "", &[]).refused("InvalidOptions");
    let program = binary::stillframe().display().to_string();
    let script = format!("{program} --json task checkpoint; test $? = 1");
    let plain = ["--json", "run", "--run-id", "r1", "--", "sh", "-c", &script];
    let output = ws.stillframe(plain).ok();
    assert!(output.stderr_text().contains("of no task"), "{output}");
    let state = fs::metadata(ws.state()).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    let mark = format!("{}:{}", state.dev(), state.ino());
    inside("r1", &mark, &[]).refused("Conflict");
    inside("r2", &mark, &[]).refused("NotFound");
    let every = ["run", "--checkpoint-every", "1s", "--", "true"];
    ws.try_json(every).exits(2);
    let every = [
        "run",
        "--task",
        "42",
        "--checkpoint-every",
        "often",
        "--",
        "true",
    ];
    ws.try_json(every).exits(2);
    assert_eq!(at(&ws, BRANCH), None);
}

#[test]
fn the_work_of_a_command_is_on_the_branch_while_it_works_and_once() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let path = counting_git(ws.base());
    let calls = ws.base().join("calls");
    // It waits for its own work to arrive, and then for more intervals without doing anything.
    let script = format!(
        "echo x > work
         until /usr/bin/git -C {remote} cat-file -e {BRANCH}:work 2> /dev/null; do sleep 0.02; done
         sleep 0.5; wc -l < {calls} > ../before; sleep 1; wc -l < {calls} > ../after",
        remote = remote.display(),
        calls = calls.display()
    );
    let options = ["--checkpoint-every", "100ms", "--timeout", "60s"];
    let call = ws.call(in_shell(&options, &script)).env("PATH", &path);
    let outcome = call.run().ok().json();
    let saved = &outcome["workspace"]["saved"];
    assert_eq!(text(saved, "state"), "no_changes");
    assert_eq!(saved["carried"], true, "{saved}");
    assert_eq!(at(&ws, BRANCH).as_deref(), Some(text(saved, "commit")));
    let read = |name: &str| fs::read_to_string(ws.base().join(name)).unwrap();
    assert_eq!(
        read("before"),
        read("after"),
        "nothing is new, and git is not started"
    );
    let made = checkpoints(&ws, "42");
    let ours = made
        .iter()
        .filter(|one| text(one, "commit") == text(saved, "commit"));
    assert_eq!(ours.count(), 1, "{made:?}");
    let tree = git::text(&ws.home(), &remote, ["ls-tree", "--name-only", BRANCH]);
    assert_eq!(tree, "README\nwork");
    sound(&ws);
    // Unless somebody says otherwise, that is every two minutes.
    let usual = ws.stillframe(in_shell(&[], "true")).ok().json();
    let shown = ws.show(text(&usual, "run_id"));
    assert_eq!(
        shown["options"]["work_branch"]["checkpoint_interval_ms"],
        120_000
    );
}

#[test]
fn what_is_not_saved_while_a_command_works_is_said_once() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    hook(&ws, "echo no >> tries; exit 1");
    let tries = remote.join("tries");
    let script = format!(
        "echo x > work; until test $(cat {tries} 2> /dev/null | wc -l) -ge 3; do sleep 0.02; done",
        tries = tries.display()
    );
    let options = ["--checkpoint-every", "20ms", "--timeout", "60s"];
    let output = ws.call(in_shell(&options, &script)).run().ok();
    let said = output.stderr_text();
    let told = said.matches("the work so far is not saved: ").count();
    assert_eq!(told, 1, "{said}");
    let saved = &output.json()["workspace"]["saved"];
    assert_eq!(text(saved, "failure"), "RemotePolicyRejected");
    assert_eq!(saved.get("carried"), None);
    assert_eq!(at(&ws, BRANCH), None);
}

#[test]
fn a_run_that_ends_while_its_progress_is_sent_does_not_wait_for_that_and_is_saved() {
    for (options, end, code, subject) in [
        (&[][..], "", 0, "checkpoint"),
        (&["--timeout", "2s"], "sleep 60", 124, "wip"),
    ] {
        let ws = TestWorkspace::repository();
        let remote = remote(&ws);
        // The first push stays away, and the next ones do not.
        hook(&ws, "test -e held && exit 0; touch held; exec sleep 60");
        let held = remote.join("held");
        let script = format!(
            "echo x > work; until test -e {held}; do sleep 0.02; done; echo y > last; {end}",
            held = held.display()
        );
        let options = [options, &["--checkpoint-every", "20ms"]].concat();
        let call = ws.call(in_shell(&options, &script));
        // The program is built by then.
        let began = Instant::now();
        let outcome = call.run().exits(code).json();
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
        let saved = &outcome["workspace"]["saved"];
        assert_eq!(text(saved, "state"), "pushed", "{saved}");
        assert_eq!(at(&ws, BRANCH).as_deref(), Some(text(saved, "commit")));
        let log = ["log", "-1", "--format=%s", BRANCH];
        let said = git::text(&ws.home(), &remote, log);
        assert_eq!(
            said,
            format!("[{subject}] stillframe run {}", text(&outcome, "run_id"))
        );
        let tree = git::text(&ws.home(), &remote, ["ls-tree", "--name-only", BRANCH]);
        assert_eq!(tree, "README\nlast\nwork");
        sound(&ws);
    }
}

#[test]
fn a_host_that_is_killed_while_progress_is_saved_has_claimed_nothing_that_is_not_there() {
    let rounds = counted(KILLS, 20);
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let script = "i=0; while :; do i=$((i+1)); echo $i > f$1; sleep 0.01; done";
    let options = ["--checkpoint-every", "1ms"];
    let shift = u64::from(std::process::id()) % 23;
    let mut proven = 0;
    for round in 0..rounds {
        let number = round.to_string();
        let args = [in_shell(&options, script), vec!["sh", &number]].concat();
        let mut running = ws.call(args).start();
        let begun = ws.path(format!("f{round}"));
        running.until("its command works", |_| begun.exists());
        // From the first capture to the third push, in steps that are others each time.
        thread::sleep(Duration::from_millis(
            (round % 20) * 23 + (shift + round / 20) % 23,
        ));
        if round % 4 == 3 {
            let is_proven = |_: &_| {
                let made = checkpoints(&ws, "42");
                made.iter().any(|one| text(one, "status") == "proven")
            };
            running.until("some progress is saved", is_proven);
        }
        running.kill();
        drop(running.wait());
        ws.json(["snapshot"]);
        for run in ws.json(["runs"]).as_array().unwrap() {
            assert_eq!(text(run, "status"), "failed", "round {round}: {run}");
        }
        if ws.json(["task", "list"]).as_array().unwrap().is_empty() {
            continue;
        }
        let mut commits = Vec::new();
        for one in checkpoints(&ws, "42") {
            let made = text(&one, "commit").to_owned();
            assert!(!commits.contains(&made), "round {round}: made twice: {one}");
            if text(&one, "status") == "proven" {
                proven += 1;
                let tip = at(&ws, text(&one, "branch")).unwrap();
                let is_there = ["merge-base", "--is-ancestor", &made, &tip];
                git::run(&ws.home(), &remote, is_there);
            }
            commits.push(made);
        }
    }
    assert!(proven > 0, "no host lived until its progress was saved");
    let last = ws.json(["task", "checkpoint", "42", "--remote", "../remote.git"]);
    assert_eq!(at(&ws, BRANCH).as_deref(), Some(text(&last, "commit")));
    let branches = git::text(&ws.home(), &remote, ["for-each-ref", "--format=%(refname)"]);
    assert_eq!(branches.lines().count(), 1, "{branches}");
    for round in 0..rounds {
        let name = format!("f{round}");
        let has_it = ["cat-file", "-e", &format!("{BRANCH}:{name}")];
        let has_it = git::call(&ws.home(), &remote, has_it).run().code == 0;
        assert_eq!(has_it, ws.exists(&name), "{name}");
    }
    sound(&ws);
}

#[test]
fn a_token_of_the_environment_serves_the_clock_and_the_command_and_is_nowhere_else() {
    const TOKEN: &str = "t0ken-of-the-test-7c1";
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    git::text(&ws.home(), &remote, ["config", "http.receivepack", "true"]);
    let options = HttpOptions {
        user: Some(("x-access-token", TOKEN)),
        ..HttpOptions::default()
    };
    let Some(server) = HttpServer::start(&ws.base().join("http"), ws.base(), options) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/remote.git", server.port());
    let program = binary::stillframe();
    let script = format!(
        "echo x > work
         until git -C {remote} cat-file -e {BRANCH}:work 2> /dev/null; do sleep 0.02; done
         echo y > own; {program} --json task checkpoint --token-env OURS > ../own || exit 9
         echo z > own; OURS= {program} task checkpoint --token-env OURS && exit 8; true",
        remote = remote.display(),
        program = program.display()
    );
    // A command that prints the token is a process, and none of the command's.
    for asked in [["--token-env", "OURS"], ["--token-command", "echo $OURS"]] {
        let options = ["run", "--task", "42", "--remote", &url, "--timeout", "60s"];
        let every = ["--checkpoint-every", "50ms", "--", "sh", "-c", &script];
        let args = [&["--json"][..], &options, &asked, &every].concat();
        let outcome = ws.call(args).env("OURS", TOKEN).run().ok().json();
        let own = fs::read_to_string(ws.base().join("own")).unwrap();
        let own: Value = serde_json::from_str(&own).unwrap();
        assert!(
            ["pushed", "no_changes"].contains(&text(&own, "state")),
            "{own}"
        );
        let saved = &outcome["workspace"]["saved"];
        assert_eq!(at(&ws, BRANCH).as_deref(), Some(text(saved, "commit")));
        ws.remove("work");
        ws.remove("own");
        let cleared = ["--json", "task", "checkpoint", "42", "--remote", &url];
        let cleared = [&cleared[..], &["--token-env", "OURS"]].concat();
        ws.call(cleared).env("OURS", TOKEN).run().ok();
    }
    let entries = walkdir::WalkDir::new(ws.state()).into_iter();
    for entry in entries
        .map(Result::unwrap)
        .filter(|e| e.file_type().is_file())
    {
        let bytes = fs::read(entry.path()).unwrap();
        let has_it = bytes.windows(TOKEN.len()).any(|at| at == TOKEN.as_bytes());
        assert!(!has_it, "{}", entry.path().display());
    }
}
