//! How the work of a run is saved at its end, and who makes up for a host that is killed at one
//! point of that. git is the oracle.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use stillframe::tasks::WorkBranchOptions;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, RunContext, RunOptions, RunStatus,
    WorkspaceOptions,
};
use stillframe_tests::{TestWorkspace, git};

const BRANCH: &str = "stillframe/task/42";

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

/// A repository whose `origin` is a bare one beside it.
fn scene() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let (home, base) = (ws.home(), ws.base());
    git::text(&home, base, ["init", "-q", "--bare", "remote.git"]);
    ws.git(["remote", "add", "origin", remote(&ws).to_str().unwrap()]);
    ws
}

fn remote(ws: &TestWorkspace) -> PathBuf {
    ws.base().join("remote.git")
}

/// What git says, in the remote.
fn there<const N: usize>(ws: &TestWorkspace, args: [&str; N]) -> String {
    git::text(&ws.home(), &remote(ws), args)
}

/// Where the remote has the branch, as git itself says.
fn at(ws: &TestWorkspace) -> Option<String> {
    let listed = there(ws, ["ls-remote", ".", &format!("refs/heads/{BRANCH}")]);
    listed.split_whitespace().next().map(str::to_owned)
}

fn hook(ws: &TestWorkspace, name: &str, script: &str) {
    let path = remote(ws).join("hooks").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn lines(path: &Path) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().count()
}

fn in_shell(script: &str) -> [&str; 8] {
    ["--json", "run", "--task", "42", "--", "sh", "-c", script]
}

fn text<'a>(document: &'a Value, key: &str) -> &'a str {
    document[key].as_str().unwrap()
}

/// The types of events of a run that say how its states follow each other.
fn told(ws: &TestWorkspace, run: &str) -> Vec<String> {
    let shown = ws.show(run);
    let events = shown["events"].as_array().unwrap().iter();
    let types = events.map(|event| text(event, "type").to_owned());
    let is_of_state = |name: &String| name.starts_with("persist") || name.starts_with("run_");
    types.filter(is_of_state).collect()
}

/// What git takes for the trailers of a commit.
fn trailers(ws: &TestWorkspace, commit: &str) -> String {
    let message = there(ws, ["log", "-1", "--format=%B", commit]);
    let call = git::call(&ws.home(), &remote(ws), ["interpret-trailers", "--parse"]);
    call.stdin(message + "\n").run().ok().stdout_text()
}

#[test]
fn what_a_run_left_that_failed_is_one_commit_with_trailers_that_git_reads() {
    let ws = scene();
    let head = ws.git(["rev-parse", "HEAD"]);
    ws.write("before", "of the user\n");
    let failed = ws.call(in_shell("echo x > work; exit 3")).run().exits(3);
    let failed = failed.json();
    let run = text(&failed, "run_id");
    let saved = &failed["workspace"]["saved"];
    let made = text(saved, "commit");
    assert_eq!(at(&ws).as_deref(), Some(made));
    assert!(saved.get("failure").is_none_or(Value::is_null), "{saved}");
    assert_eq!(there(&ws, ["rev-list", BRANCH]), format!("{made}\n{head}"));
    let subject = there(&ws, ["log", "-1", "--format=%s", made]);
    assert_eq!(subject, format!("[wip] stillframe run {run}"));
    assert_eq!(
        trailers(&ws, made),
        format!(
            "Run-Id: {run}\nPipeline: unknown\nFailed-Step: unknown\nTask: 42\nCheckpoint-Kind: wip\n"
        )
    );
    let done = ws.call(in_shell("echo y > work")).run().ok().json();
    let made = text(&done["workspace"]["saved"], "commit");
    assert_eq!(
        trailers(&ws, made),
        format!(
            "Run-Id: {}\nPipeline: unknown\nStep: unknown\nTask: 42\nCheckpoint-Kind: periodic\n",
            text(&done, "run_id")
        )
    );
    ws.git(["symbolic-ref", "HEAD", "refs/heads/main"]);
    let named = [
        "task",
        "checkpoint",
        "1",
        "--namespace",
        "A B/c",
        "--remote",
    ];
    let other = ws.base().join("other.git");
    git::text(&ws.home(), ws.base(), ["init", "-q", "--bare", "other.git"]);
    let named = ws.json([&named[..], &[other.to_str().unwrap()]].concat());
    let of = ["log", "-1", "--format=%B", text(&named, "commit")];
    let message = git::text(&ws.home(), &other, of);
    assert!(message.contains("\nTask: a-b/c/1\n"), "{message}");
}

/// Prepares, goes on from a step that fails, and builds what cannot be built.
struct Builds;

impl Adapter for Builds {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let place = context.workspace.clone().unwrap();
        let write = |text: &str| fs::write(place.join("work"), text).unwrap();
        let phase = context.phase("work");
        let prepared = phase.step("prepare it", async |_| {
            write("1");
            Ok(())
        });
        prepared.await?;
        let tried = phase.step("try", async |_| Err::<(), _>(AdapterError::failed("no")));
        tried.await.unwrap_err();
        write("what it does without that");
        context.checkpoint_now().await.unwrap();
        let built = phase.step("build", async |_| {
            write("2");
            context.checkpoint_now().await.unwrap();
            write("3");
            Err::<(), _>(AdapterError::failed("no luck"))
        });
        built.await?;
        Ok(AdapterOutput::empty())
    }
}

#[tokio::test]
async fn the_step_that_a_run_is_in_is_named_and_the_one_that_failed() {
    let ws = scene();
    let options = EngineOptions::default().state_dir(ws.state());
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let run = RunOptions::new("x")
        .workspace(WorkspaceOptions::at(ws.root()))
        .work_branch(WorkBranchOptions::of("42").message("{step} of {task}".to_owned()));
    let failed = session.execute_run(run, Builds).await.unwrap();
    assert_eq!(failed.run.status, RunStatus::Failed, "{failed:?}");
    let made = failed.workspace.saved.unwrap().commit.unwrap();
    let last = trailers(&ws, &made);
    let failed = "Failed-Step: build\nTask: 42\nCheckpoint-Kind: wip\n";
    assert!(last.ends_with(failed), "{last}");
    let before = format!("{made}^");
    let of = trailers(&ws, &before);
    let periodic = "Step: build\nTask: 42\nCheckpoint-Kind: periodic\n";
    assert!(of.ends_with(periodic), "{of}");
    assert_eq!(
        there(&ws, ["log", "-1", "--format=%s", &before]),
        "build of 42"
    );
    let of = trailers(&ws, &format!("{made}^^"));
    let in_none = "Step: unknown\nTask: 42\nCheckpoint-Kind: periodic\n";
    assert!(of.ends_with(in_none), "{of}");
    engine.shutdown().await.unwrap();
}

#[test]
fn a_run_that_is_cancelled_is_saved_before_that_and_cannot_stop_it() {
    let ws = scene();
    let began = ws.base().join("began");
    // Whoever cancels once more, while it is sent, does not stop that either.
    let sending = ws.base().join("sending");
    let held =
        "touch ../sending; for i in $(seq 1200); do test -e ../go && break; sleep 0.05; done";
    hook(&ws, "pre-receive", held);
    let script = format!("echo x > work; touch {}; exec sleep 60", began.display());
    let mut running = ws.call(in_shell(&script)).start();
    running.until("its command works", |_| began.exists());
    running.signal(Signal::INT);
    running.until("its work is sent", |_| sending.exists());
    let runs = ws.json(["runs"]);
    assert_eq!(runs[0]["status"], "persisting", "{runs}");
    ws.json(["cancel", text(&runs[0], "run_id")]);
    fs::write(ws.base().join("go"), "").unwrap();
    let cancelled = running.wait().exits(130).json();
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let saved = &cancelled["workspace"]["saved"];
    assert_eq!(text(saved, "state"), "pushed", "{saved}");
    assert_eq!(at(&ws).as_deref(), Some(text(saved, "commit")));
    assert_eq!(there(&ws, ["show", &format!("{BRANCH}:work")]), "x");
    let run = text(&cancelled, "run_id");
    assert!(trailers(&ws, BRANCH).contains("Checkpoint-Kind: wip\n"));
    let order = [
        "run_started",
        "persist_started",
        "persist_committed",
        "persist_pushed",
        "run_cancelled",
    ];
    assert_eq!(told(&ws, run), order);
}

#[test]
fn a_failure_to_save_is_not_the_runs_and_that_ends_once() {
    let ws = scene();
    hook(&ws, "pre-receive", "echo x >> tries; exit 1");
    let failed = ws.call(in_shell("echo x > work; exit 7")).run().exits(7);
    let failed = failed.json();
    assert_eq!(failed["error"]["message"], "the command exited with code 7");
    let saved = &failed["workspace"]["saved"];
    assert_eq!(text(saved, "failure"), "RemotePolicyRejected");
    assert_eq!(
        lines(&remote(&ws).join("tries")),
        1,
        "neither merged nor tried again"
    );
    let order = [
        "run_started",
        "persist_started",
        "persist_committed",
        "persist_failed",
        "run_failed",
    ];
    assert_eq!(told(&ws, text(&failed, "run_id")), order);

    // One that never had its workspace has nothing to save.
    let nowhere = [
        "--json", "run", "--task", "42", "--remote", "/nowhere", "--",
    ];
    ws.call([&nowhere[..], &["true"]].concat()).run().exits(125);
    let runs = ws.json(["runs"]);
    for run in runs.as_array().unwrap() {
        if run["run_id"] != failed["run_id"] {
            let types = told(&ws, text(run, "run_id"));
            let of_saving = types.iter().filter(|name| name.starts_with("persist"));
            assert_eq!(of_saving.count(), 0, "{types:?}");
        }
    }
}

#[test]
fn a_secret_in_what_a_failed_run_left_is_not_sent() {
    let ws = scene();
    let script = format!("echo '{SECRET}' > key; exit 3");
    let failed = ws.call(in_shell(&script)).run().exits(3);
    // Its document has the patch of what the command did, which is the user's own content.
    assert!(!failed.stderr_text().contains(SECRET), "{failed}");
    let failed = failed.json();
    assert_eq!(failed["error"]["message"], "the command exited with code 3");
    let saved = &failed["workspace"]["saved"];
    assert_eq!(text(saved, "failure"), "SecretFound", "{saved}");
    assert_eq!(saved["secrets"][0]["path"], "key");
    assert_eq!(at(&ws), None);
    let objects = there(&ws, ["count-objects"]);
    assert!(objects.starts_with("0 objects"), "{objects}");
}

/// What was not sent stays in the store, whatever becomes of snapshots, of the repository's own
/// objects and of the work tree, and is sent once that can be.
#[test]
fn work_that_was_not_sent_outlives_every_clean_up() {
    let ws = scene();
    let away = ws.base().join("away.git");
    fs::rename(remote(&ws), &away).unwrap();
    ws.write("work", "not sent\n");
    let kept = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    ws.remove("work");
    ws.git(["gc", "-q", "--prune=now"]);
    ws.json(["gc", "--keep", "0", "--older-than", "0d"]);
    let store = ws.stores()[0].join("git");
    let has_it = [
        "cat-file",
        "-p",
        &format!("{}:work", text(&kept, "kept_as")),
    ];
    assert_eq!(git::text(&ws.home(), &store, has_it), "not sent");
    ws.json(["verify"]);
    fs::rename(away, remote(&ws)).unwrap();
    ws.json(["task", "checkpoint", "42"]);
    let log = there(&ws, ["log", "--format=%H", BRANCH]);
    assert!(log.contains(text(&kept, "commit")), "{log}");
}

/// A foreign commit on the branch stays reachable, and the branch at it or beyond, whatever is
/// asked for.
#[test]
fn what_somebody_else_has_put_on_the_branch_stays_with_every_option() {
    let ws = scene();
    ws.write("ours", "first\n");
    ws.json(["task", "checkpoint", "42"]);
    let foreign = ["commit-tree", "-m", "foreign", "-p", "HEAD", "HEAD^{tree}"];
    let foreign = ws.git(foreign);
    let push = format!("+{foreign}:refs/heads/{BRANCH}");
    ws.git(["push", "-q", "origin", &push]);
    let run = |options: &[&'static str]| {
        let all = [&["run", "--task", "42"], options, &["--"]].concat();
        [all, vec!["sh", "-c", "echo y >> ours; exit 3"]].concat()
    };
    let merge = ["--on-divergence", "merge"];
    let side = ["--on-divergence", "side-branch"];
    let checkpoint = ["task", "checkpoint", "42"];
    let calls: Vec<Vec<&str>> = vec![
        checkpoint.to_vec(),
        [&checkpoint[..], &merge].concat(),
        [&checkpoint[..], &side, &["--message", "mine"]].concat(),
        vec!["task", "resume", "42"],
        vec!["task", "resume", "42", "--start-point", "main"],
        run(&[]),
        run(&merge),
        run(&["--rollback-on-failure", "--checkpoint-every", "1ms"]),
        run(&["--start-point", "main", "--on-divergence", "side-branch"]),
        vec!["undo"],
        vec!["gc", "--keep", "0"],
    ];
    let is_there = |call: &[&str]| {
        let reaches = ["merge-base", "--is-ancestor", &foreign, BRANCH];
        let reaches = git::call(&ws.home(), &remote(&ws), reaches).run();
        assert_eq!(reaches.code, 0, "after {call:?}");
    };
    for call in &calls {
        ws.write("ours", format!("{call:?}\n"));
        ws.try_json(call);
        is_there(call);
    }
    // With a local branch that goes on from what was ours.
    let beside = there(
        &ws,
        [
            "for-each-ref",
            "--format=%(objectname)",
            "refs/heads/*/*/*--*",
        ],
    );
    let ours = beside.lines().next().unwrap();
    ws.git([
        "fetch",
        "-q",
        "origin",
        "+refs/heads/*:refs/remotes/origin/*",
    ]);
    ws.git(["checkout", "-q", "-f", "--detach"]);
    ws.git(["branch", "-f", BRANCH, ours]);
    for call in &calls {
        ws.write("ours", format!("{call:?} again\n"));
        ws.try_json(call);
        is_there(call);
    }
    there(&ws, ["fsck", "--strict", "--no-dangling"]);
}

/// A hook that kills the host of whoever pushes: of its own ancestors git that receives, git that
/// pushes, and the host above.
pub(super) const KILLS_THE_HOST: &str = "echo x >> pushes\n\
    pid=$PPID\n\
    while [ \"$pid\" -gt 1 ]; do\n\
    read -r comm < /proc/$pid/comm\n\
    parent=$(sed 's/.*) . //' /proc/$pid/stat | cut -d' ' -f1)\n\
    [ \"$comm\" != stillframe ] || { kill -9 \"$pid\"; exit; }\n\
    pid=$parent\n\
    done";

/// A host dies in the moment in which the remote has taken its work, and so do two who come next.
/// Then it is found there, and not sent again.
#[test]
fn what_was_pushed_before_its_row_was_written_is_found_and_not_pushed_again() {
    let ws = scene();
    hook(&ws, "post-receive", KILLS_THE_HOST);
    let killed = ws.call(in_shell("echo x > work; exit 3")).run();
    assert_eq!(killed.code, 137, "{killed}");
    let pushes = remote(&ws).join("pushes");
    assert_eq!(lines(&pushes), 1);
    let there_since = at(&ws).unwrap();
    // Whoever comes next is killed too, in the middle of making up for that.
    let stop = "touch ../asked; while [ -e ../held ]; do sleep 0.01; done";
    let bin = slow_git(&ws, stop);
    fs::write(ws.base().join("held"), "").unwrap();
    for _ in 0..2 {
        let mut next = ws.call(["snapshot"]).env("PATH", &bin).start();
        let asked = ws.base().join("asked");
        next.until("it asks the remote", |_| asked.exists());
        next.kill();
        next.wait();
        fs::remove_file(asked).unwrap();
    }
    fs::remove_file(ws.base().join("held")).unwrap();
    ws.json(["snapshot"]);
    let run = ws.json(["runs"])[0].clone();
    let shown = ws.show(text(&run, "run_id"));
    assert_eq!(shown["status"], "failed", "{shown}");
    assert_eq!(shown["workspace"]["saved"]["commit"], *there_since);
    assert_eq!(lines(&pushes), 1, "it is not pushed again");
    assert_eq!(at(&ws), Some(there_since));
    let task = ws.json(["task", "show", "42"]);
    let made = task["checkpoints"].as_array().unwrap();
    let made: Vec<_> = made.iter().map(|one| text(one, "status")).collect();
    assert_eq!(made, ["proven"], "{task}");
    let types = told(&ws, text(&run, "run_id"));
    for once in ["persist_pushed", "run_failed"] {
        let times = types.iter().filter(|name| *name == once).count();
        assert_eq!(times, 1, "{types:?}");
    }
    // And a second look finds nothing to do.
    ws.json(["snapshot"]);
    assert_eq!(told(&ws, text(&run, "run_id")), types);
}

/// A `PATH` on which git does something else first.
fn slow_git(ws: &TestWorkspace, first: &str) -> String {
    let bin = ws.base().join("slow");
    fs::create_dir(&bin).unwrap();
    let base = ws.base().display();
    let script = format!("#!/bin/sh\n(cd {base}/home && {first})\nexec /usr/bin/git \"$@\"\n");
    fs::write(bin.join("git"), script).unwrap();
    fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

#[test]
fn what_the_user_has_where_a_run_was_killed_is_not_sent_once_head_is_elsewhere() {
    let ws = scene();
    let began = ws.base().join("began");
    let script = format!("echo x > work; touch {}; exec sleep 60", began.display());
    let mut running = ws.call(in_shell(&script)).start();
    running.until("its command works", |_| began.exists());
    running.kill();
    drop(running.wait());
    // Its user puts away what it left, and goes on with something else.
    ws.git(["add", "-A"]);
    ws.git(["stash", "-q"]);
    ws.git(["checkout", "-q", "main"]);
    ws.write("private", "mine\n");
    let runs = ws.json(["runs"]);
    assert_eq!(runs[0]["status"], "failed", "{runs}");
    assert_eq!(at(&ws), None, "nothing was sent");
    let shown = ws.show(text(&runs[0], "run_id"));
    let why = text(&shown["workspace"]["error"], "message");
    assert!(why.contains("HEAD is at main by now"), "{why}");
    assert!(why.contains("was not sent; snapshot snap_"), "{why}");
    assert_eq!(ws.read("private"), b"mine\n");

    // Where HEAD stays, what was left is saved.
    fs::remove_file(&began).unwrap();
    ws.git(["stash", "drop", "-q"]);
    let mut running = ws.call(in_shell(&script)).start();
    running.until("its command works", |_| began.exists());
    running.kill();
    drop(running.wait());
    ws.json(["list"]);
    assert_eq!(there(&ws, ["show", &format!("{BRANCH}:work")]), "x");
}
