//! Notices: what people outside are told of a task's work, by the commands of a user, which are
//! programs here, and by a host.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use stillframe::records::{NoticeRecord, NoticeStatus};
use stillframe::tasks::{NoticeError, NoticeSink, Shown, WorkBranchOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunOptions,
    Timestamp, WorkspaceOptions,
};
use stillframe_tests::{Output, TestWorkspace, git};

use super::tasks::{KILLS, counted};

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

fn program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A workspace whose remote takes nothing, and a file in which people read what they are told.
struct Scene(TestWorkspace);

impl Scene {
    fn new() -> Self {
        let ws = TestWorkspace::repository();
        let (home, base) = (ws.home(), ws.base());
        git::text(&home, base, ["init", "-q", "--bare", "remote.git"]);
        fs::create_dir_all(base.join("remote.git/hooks")).unwrap();
        let hook = format!("echo 'not {SECRET} today' >&2; exit 1");
        program(&base.join("remote.git/hooks/pre-receive"), &hook);
        fs::write(base.join("told"), "").unwrap();
        Self(ws)
    }

    fn remote(&self) -> String {
        self.0
            .base()
            .join("remote.git")
            .to_str()
            .unwrap()
            .to_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.base().join(name)).unwrap_or_default()
    }

    /// What people were told, in its order.
    fn told(&self) -> Vec<Value> {
        let told = self.read("told");
        let documents = told.lines().map(|line| serde_json::from_str(line).unwrap());
        documents.collect()
    }

    /// Sets the command that sends notices, and more of the section.
    fn set(&self, script: &str, more: &str) {
        let send = self.0.base().join("send");
        program(&send, &format!("cd {}\n{script}", self.0.base().display()));
        let directory = self.0.home().join(".config/stillframe");
        fs::create_dir_all(&directory).unwrap();
        // In the place of the shell, so that its parent is Stillframe.
        let text = format!("[notices]\ncommand = \"exec {}\"\n{more}\n", send.display());
        fs::write(directory.join("config.toml"), text).unwrap();
    }

    /// The same, of a target that can be read back.
    fn set_with_reading_back(&self, script: &str) {
        let told = self.0.base().join("told");
        let told = told.display();
        let shows = format!("shows_command = 'grep -q $STILLFRAME_NOTICE_TOKEN {told}'");
        self.set(script, &shows);
    }

    /// A run of the task whose work does not get to its branch.
    fn run_args(&self, script: &str) -> Vec<String> {
        let args = ["--json", "run", "--task", "42", "--remote", &self.remote()];
        let args = [&args[..], &["--", "sh", "-c", script]].concat();
        args.into_iter().map(str::to_owned).collect()
    }

    fn run(&self, code: i32, script: &str) -> Value {
        self.0.call(self.run_args(script)).run().exits(code).json()
    }

    fn fail(&self) -> Value {
        self.run(3, "echo x >> work; exit 3")
    }

    fn notices(&self, options: &[&str]) -> Vec<Value> {
        let args = [&["notices"][..], options].concat();
        self.0.json(args).as_array().unwrap().clone()
    }

    fn send(&self) -> Output {
        self.0.try_json(["notices", "--send"])
    }

    fn events(&self) -> Vec<Value> {
        let types = ["checkpoint_notice_posted", "checkpoint_notice_skipped"];
        let types = types.iter().flat_map(|one| ["--type", one]);
        self.0.events(types)
    }
}

/// How a shell writes down what it reads, in one go.
const TELL: &str = "cat > doc.$$; echo >> doc.$$; cat doc.$$ >> told";

fn text<'a>(document: &'a Value, key: &str) -> &'a str {
    document[key].as_str().unwrap()
}

/// Where a notice stands, and for how many milliseconds it then waits.
fn stands(notice: &Value) -> (&str, u64, Option<i64>) {
    let time = |key: &str| notice[key].as_str()?.parse::<Timestamp>().ok();
    let next = time("next_at").zip(time("updated_at"));
    let waits = next.map(|(next, moved)| next.as_millisecond() - moved.as_millisecond());
    (
        text(notice, "status"),
        notice["attempts"].as_u64().unwrap(),
        waits,
    )
}

#[test]
fn that_work_is_not_on_its_branch_is_told_once_for_each_run() {
    let scene = Scene::new();
    scene.set(TELL, "");
    let failed = scene.fail();
    let told = scene.told();
    assert_eq!(told.len(), 1, "{told:?}");
    let saved = &failed["workspace"]["saved"];
    let run = text(&failed, "run_id");
    assert_eq!(text(&told[0], "kind"), "checkpoint_failed");
    assert_eq!(text(&told[0], "task"), "42");
    assert_eq!(text(&told[0], "run_id"), run);
    assert_eq!(told[0]["commit"], saved["commit"]);
    let said = text(&told[0], "text");
    for part in [
        format!("- Reason: `run {run} failed`\n"),
        "- Branch: `stillframe/task/42`\n".to_owned(),
        "- Error: `RemotePolicyRejected: ".to_owned(),
        // What follows may be cut.
        "not [redacted:github_token]".to_owned(),
        format!("- Kept: `{} of the store`\n", text(saved, "kept_as")),
        format!("<!-- stillframe-action:{} -->\n", text(&told[0], "token")),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    let kept = scene.notices(&[]);
    assert_eq!(stands(&kept[0]), ("succeeded", 1, None));
    assert_eq!(text(&kept[0], "text"), said);
    let shown = scene.0.json(["task", "show", "42"]);
    assert_eq!(shown["notices"], scene.0.json(["notices"]));
    let events = scene.events();
    assert_eq!(events.len(), 1);
    assert_eq!(text(&events[0], "type"), "checkpoint_notice_posted");
    assert_eq!(text(&events[0], "run_id"), run);
    assert_eq!(events[0]["data"]["token"], told[0]["token"]);

    // Also of one that is done; of what is saved while a run works, of a request, and where there
    // is no remote, nobody is told.
    let own = "stillframe task checkpoint";
    let program = stillframe_tests::binary::stillframe();
    let own = own.replacen("stillframe", program.to_str().unwrap(), 1);
    scene.run(0, &format!("echo y > work; {own} || true"));
    assert_eq!(scene.told().len(), 2);
    assert!(text(&scene.told()[1], "text").contains(" is done`\n"));
    scene.0.write("more", "x\n");
    let asked = ["task", "checkpoint", "42", "--remote", &scene.remote()];
    scene.0.try_json(asked).exits(1);
    // Where HEAD is on the branch of 42, what is there is that one's.
    scene.0.git(["switch", "-q", "main"]);
    let here = [
        "run",
        "--task",
        "43",
        "--",
        "sh",
        "-c",
        "echo z > work; exit 3",
    ];
    scene.0.try_json(here).exits(3);
    assert_eq!(scene.notices(&[]).len(), 2);
    assert_eq!(scene.send().ok().json(), serde_json::json!([]));
    assert_eq!(scene.told().len(), 2);
    let people = scene.0.call(["notices"]).run().ok().stdout_text();
    let lines: Vec<&str> = people.lines().collect();
    assert_eq!(lines.len(), 2, "{people}");
    assert!(
        lines[0].contains("  checkpoint_failed  42  succeeded  1 try"),
        "{people}"
    );
}

#[test]
fn without_a_command_notices_wait_for_one() {
    let scene = Scene::new();
    scene.fail();
    assert_eq!(
        stands(&scene.notices(&["--pending"])[0]),
        ("pending", 0, None)
    );
    let refused = scene.send().exits(2).error("InvalidOptions");
    assert!(refused.contains("[notices]"), "{refused}");
    assert_eq!(
        stands(&scene.notices(&["--pending"])[0]),
        ("pending", 0, None)
    );

    // Who only reads tells nobody, and whoever comes next does.
    scene.set(TELL, "");
    scene.0.json(["list"]);
    assert_eq!(scene.told(), [Value::Null; 0]);
    scene.0.json(["snapshot"]);
    assert_eq!(scene.told().len(), 1);
    assert_eq!(scene.notices(&["--pending"]), [Value::Null; 0]);
    for (text, says) in [
        (
            "[notices]\ntimeout = '1s'\n",
            "of notices a command has to be set",
        ),
        (
            "[notices]\ncommand = 'a'\ntimeout = '0s'\n",
            "timeout has to be more than zero",
        ),
        ("[notices]\ncommand = 'a'\nenv = ['A=b']\n", "line 3"),
        ("[notices]\ncommand = ''\n", "line 2"),
        (
            "[workspace.'/a'.notices]\ncommand = 'a'\n",
            "notices are not set for one workspace",
        ),
    ] {
        fs::write(scene.0.home().join(".config/stillframe/config.toml"), text).unwrap();
        let refused = scene
            .0
            .try_json(["notices"])
            .exits(2)
            .error("InvalidOptions");
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn one_that_fails_is_tried_three_times_and_one_that_says_never_once() {
    let scene = Scene::new();
    let script = format!(
        "echo tried >> tries; env > env; pwd > env.pwd; echo 'no {SECRET} here' >&2; exit $(cat code)"
    );
    scene.set(&script, "env = ['OURS']");
    fs::write(scene.0.base().join("code"), "7").unwrap();
    let args = scene.run_args("echo x > work; exit 3");
    let call = scene
        .0
        .call(args)
        .env("OURS", "ours")
        .env("OTHERS", "others");
    call.env("GIT_DIR", "/nowhere")
        .env_remove("GIT_DIR")
        .run()
        .exits(3);
    let tries = |scene: &Scene| scene.read("tries").lines().count();
    let first = &scene.notices(&["--pending"])[0];
    assert_eq!(stands(first), ("pending", 1, Some(30_000)));
    let why = text(first, "error");
    assert!(
        why.contains("(exec …) exited with code 7: no [redacted:github_token] here"),
        "{why}"
    );
    let env = scene.read("env");
    assert!(
        env.contains("OURS=ours\n") && env.contains("STILLFRAME_NOTICE_TOKEN="),
        "{env}"
    );
    assert!(
        !env.contains("others") && !env.contains("STILLFRAME_HOME"),
        "{env}"
    );
    // Before its time it is sent for who asks for that.
    scene.0.json(["snapshot"]);
    assert_eq!(tries(&scene), 1);
    let second = scene.send().exits(1);
    assert_eq!(stands(&second.json()[0]), ("pending", 2, Some(60_000)));
    assert!(second.stderr_text().contains("1 notice not sent"));
    let third = scene.send().exits(1).json();
    assert_eq!(stands(&third[0]), ("failed", 3, None));
    scene.0.json(["snapshot"]);
    assert_eq!(tries(&scene), 3, "it is given up");
    assert_eq!(scene.events(), [Value::Null; 0]);
    // Unless somebody asks for it.
    let fourth = scene.send().exits(1).json();
    assert_eq!(stands(&fourth[0]), ("failed", 4, None));
    fs::write(scene.0.base().join("code"), "0").unwrap();
    let fifth = scene.send().ok().json();
    assert_eq!(stands(&fifth[0]), ("succeeded", 5, None));
    assert_eq!(scene.events().len(), 1);

    fs::write(scene.0.base().join("code"), "3").unwrap();
    scene.fail();
    let never = scene.notices(&[]);
    assert_eq!(stands(&never[1]), ("failed", 1, None));
    assert_eq!(tries(&scene), 6);
    scene.fail();
    scene.set("kill -9 $$", "");
    let ended = scene.send().ok();
    assert_eq!(ended.json(), serde_json::json!([]));
    // That it cannot be asked whether it is there is no reason to send it.
    scene.set("echo sent >> told", "shows_command = 'exit 2'");
    scene.fail();
    let unknown = scene.notices(&["--pending"]);
    assert_eq!(stands(&unknown[0]), ("pending", 1, Some(30_000)));
    assert!(text(&unknown[0], "error").contains("exited with code 2"));
    assert_eq!(scene.read("told"), "");
}

#[test]
fn one_that_hangs_is_killed_and_holds_nobody_up() {
    let scene = Scene::new();
    scene.set("sh -c 'echo $$ > pid; exec sleep 600'", "timeout = '1s'");
    let began = Instant::now();
    scene.fail();
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    let notice = &scene.notices(&["--pending"])[0];
    assert_eq!(stands(notice), ("pending", 1, Some(30_000)));
    assert!(
        text(notice, "error").contains("took more than 1 seconds"),
        "{notice}"
    );
    let stat = PathBuf::from(format!("/proc/{}/stat", scene.read("pid").trim()));
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(began.elapsed() < Duration::from_secs(120), "it is left");
        thread::sleep(Duration::from_millis(5));
    }
    // One that leaves somebody behind has sent it.
    scene.set(&format!("sleep 600 & {TELL}"), "");
    let began = Instant::now();
    assert_eq!(stands(&scene.send().ok().json()[0]), ("succeeded", 2, None));
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn whoever_comes_next_sends_what_a_killed_one_did_not_and_nothing_twice() {
    let scene = Scene::new();
    // Killed before it is sent, and after that before it is on record.
    for (at, times) in [("before", 1), ("after", 2)] {
        let kill = format!("test -e killed.{at} || {{ touch killed.{at}; kill -9 $PPID; exit; }}");
        scene.set_with_reading_back(&match at {
            "before" => format!("{kill}\n{TELL}"),
            _ => format!("{TELL}\n{kill}"),
        });
        let args = scene.run_args("echo x >> work; exit 3");
        let killed = scene.0.call(args).run();
        assert_eq!(killed.code, 137, "{killed}");
        let left = &scene.notices(&["--pending"])[0];
        assert_eq!(stands(left), ("in_progress", 1, None), "{at}");
        scene.0.json(["snapshot"]);
        assert_eq!(scene.told().len(), times, "{at}");
        let events = scene.events();
        let last = events.last().unwrap();
        let (event_type, reason) = match at {
            "before" => ("checkpoint_notice_posted", None),
            _ => ("checkpoint_notice_skipped", Some("token_already_present")),
        };
        assert_eq!(text(last, "type"), event_type);
        assert_eq!(last["data"]["reason"].as_str(), reason);
        assert_eq!(last["data"]["recovered"], true);
        assert_eq!(events.len(), times);
        let kept = scene.notices(&[]);
        let once = ("succeeded", 1, None);
        assert_eq!(stands(&kept[times - 1]), once, "the try of the dead one");
    }

    // A command that outlives its engine is waited for before anybody looks.
    let slow = format!("test -e killed || {{ touch killed; kill -9 $PPID; sleep 1; }}; {TELL}");
    scene.set_with_reading_back(&slow);
    let args = scene.run_args("echo x >> work; exit 3");
    assert_eq!(scene.0.call(args).run().code, 137);
    scene.send().ok();
    assert_eq!(scene.told().len(), 3);
    assert_eq!(
        text(scene.events().last().unwrap(), "type"),
        "checkpoint_notice_skipped"
    );
}

#[test]
fn of_many_who_send_at_once_one_does() {
    let scene = Scene::new();
    for _ in 0..3 {
        scene.fail();
    }
    scene.set_with_reading_back(&format!("sleep 0.05; {TELL}"));
    let calls = (0..4).map(|_| scene.0.call(["--json", "notices", "--send"]).start());
    let calls: Vec<_> = calls.collect();
    for call in calls {
        let output = call.wait();
        assert!([0, 1].contains(&output.code), "{output}");
    }
    assert_eq!(scene.send().ok().json(), serde_json::json!([]));
    let mut tokens: Vec<String> = scene
        .told()
        .iter()
        .map(|t| text(t, "token").to_owned())
        .collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!((tokens.len(), scene.told().len()), (3, 3));
    let posted = scene.events();
    assert!(
        posted
            .iter()
            .all(|e| text(e, "type") == "checkpoint_notice_posted")
    );
    assert_eq!(posted.len(), 3);
}

#[test]
fn a_command_may_call_stillframe_itself() {
    let scene = Scene::new();
    scene.fail();
    scene.fail();
    let program = stillframe_tests::binary::stillframe();
    let workspace = scene.0.root().display();
    let call = format!("{} --workspace {workspace} snapshot", program.display());
    scene.set(
        &format!("{call} > out && {TELL}"),
        "env = ['STILLFRAME_HOME']",
    );
    scene.send().ok();
    assert_eq!(scene.told().len(), 2);
}

#[test]
fn however_often_somebody_is_killed_each_is_told_once() {
    let rounds = counted(KILLS, 15);
    let scene = Scene::new();
    scene.set_with_reading_back(&format!("sleep 0.02; {TELL}; sleep 0.02"));
    let mut runs = 0;
    for round in 0..rounds {
        let name = format!("r{round}");
        let mut args = scene.run_args("echo x >> work; exit 3");
        args.splice(2..2, ["--run-id".to_owned(), name.clone()]);
        let mut running = scene.0.call(args).start();
        let is_ended = |_: &_| {
            let shown = scene.0.try_json(["show", &name]);
            shown.code == 0 && shown.json()["status"] == "failed"
        };
        match round % 3 {
            // While its work is saved, or before.
            0 => {
                let begun = scene.0.path(b"work");
                running.until("it works", |_| begun.exists());
                thread::sleep(Duration::from_millis((round % 15) * 13));
            }
            // While the notice is sent.
            _ => {
                running.until("it has ended", is_ended);
                thread::sleep(Duration::from_millis((round % 15) * 5));
            }
        }
        running.kill();
        drop(running.wait());
        scene.0.json(["snapshot"]);
        scene.send();
        runs += u64::from(scene.0.try_json(["show", &name]).code == 0);
    }
    assert_eq!(scene.notices(&["--pending"]), [Value::Null; 0]);
    let kept = scene.notices(&[]);
    assert!(kept.len() as u64 >= runs / 2, "{} of {runs}", kept.len());
    let told = scene.read("told");
    let mut of_runs = Vec::new();
    for notice in &kept {
        assert_eq!(text(notice, "status"), "succeeded", "{notice}");
        let marker = format!("stillframe-action:{}", text(notice, "token"));
        assert_eq!(told.matches(&marker).count(), 1, "{notice}");
        assert!(!of_runs.contains(&text(notice, "run_id")), "{notice}");
        of_runs.push(text(notice, "run_id"));
    }
    // Of each run whose work is not on the branch, whoever has found that out.
    let ended = scene.0.json(["runs"]);
    let is_not_saved = |run: &&Value| run["workspace"]["saved"]["state"] == "not_saved";
    let not_saved = ended.as_array().unwrap().iter().filter(is_not_saved);
    let mut not_saved: Vec<&str> = not_saved.map(|run| text(run, "run_id")).collect();
    not_saved.sort_unstable();
    of_runs.sort_unstable();
    assert_eq!(not_saved, of_runs);
    assert_eq!(scene.told().len(), kept.len());
    assert_eq!(scene.events().len(), kept.len());
}

/// What a host's sink does with each call.
#[derive(Clone, Default)]
struct Target(Arc<Seen>);

#[derive(Default)]
struct Seen {
    sent: Mutex<Vec<NoticeRecord>>,
    asked: AtomicUsize,
    does: Mutex<Does>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Does {
    #[default]
    Well,
    Later,
    Panic,
    Hang,
    Slow,
}

impl Target {
    fn does(&self, what: Does) {
        *self.0.does.lock().unwrap() = what;
    }

    fn sent(&self) -> usize {
        self.0.sent.lock().unwrap().len()
    }
}

impl NoticeSink for Target {
    async fn send(&self, notice: &NoticeRecord) -> Result<(), NoticeError> {
        let does = *self.0.does.lock().unwrap();
        match does {
            Does::Well => {}
            Does::Later => return Err(NoticeError::Later("the forge\nis down".to_owned())),
            Does::Panic => panic!("the sink's own"),
            Does::Hang => std::future::pending().await,
            Does::Slow => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        self.0.sent.lock().unwrap().push(notice.clone());
        Ok(())
    }

    async fn shows(&self, token: &str) -> Result<Shown, NoticeError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let sent = self.0.sent.lock().unwrap();
        Ok(Shown::of(sent.iter().any(|one| one.token == token)))
    }
}

/// Leaves something, and fails.
struct Fails;

impl Adapter for Fails {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let work = context.workspace.as_ref().unwrap().join("work");
        fs::write(work, context.run_id.as_str()).unwrap();
        Err(AdapterError::failed("no luck"))
    }
}

/// A host whose clock stands still unless it is moved.
struct Host {
    scene: Scene,
    second: Arc<AtomicI64>,
    target: Target,
}

impl Host {
    fn new() -> Self {
        Self {
            scene: Scene::new(),
            second: Arc::new(AtomicI64::new(1_700_000_000)),
            target: Target::default(),
        }
    }

    fn options(&self) -> EngineOptions {
        let second = Arc::clone(&self.second);
        EngineOptions::default()
            .state_dir(self.scene.0.state())
            .clock(move || Timestamp::from_second(second.load(Ordering::SeqCst)).unwrap())
            .notice_timeout(Duration::from_secs(2))
    }

    async fn engine(&self) -> Engine {
        let options = self.options().notices(self.target.clone());
        Engine::start(options).await.unwrap()
    }

    /// A run whose work does not get to its branch.
    async fn fail(&self, engine: &Engine) {
        let session = engine.session("s").await.unwrap();
        let branch = WorkBranchOptions::of("42").remote(self.scene.remote());
        let options = RunOptions::new("x")
            .workspace(WorkspaceOptions::at(self.scene.0.root()))
            .work_branch(branch);
        session.execute_run(options, Fails).await.unwrap();
    }
}

fn stand(notices: &[NoticeRecord]) -> Vec<(NoticeStatus, u32, Option<i64>)> {
    let waits = |one: &NoticeRecord| Some(one.next_at?.as_second() - one.updated_at.as_second());
    let of = |one: &NoticeRecord| (one.status, one.attempts, waits(one));
    notices.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hosts_sink_gets_each_once_and_the_next_try_when_it_is_due() {
    let host = Host::new();
    let engine = host.engine().await;
    host.fail(&engine).await;
    engine.shutdown().await.unwrap();
    assert_eq!(host.target.sent(), 1, "before the engine stops");

    host.target.does(Does::Later);
    let engine = host.engine().await;
    host.fail(&engine).await;
    engine.shutdown().await.unwrap();
    let pending = (NoticeStatus::Pending, 1, Some(30));
    let asked = || host.target.0.asked.load(Ordering::SeqCst);
    assert_eq!(asked(), 2);
    for (moved, tried) in [(29, 2), (1, 3), (59, 3), (1, 4), (3600, 4)] {
        host.second.fetch_add(moved, Ordering::SeqCst);
        let engine = host.engine().await;
        engine.shutdown().await.unwrap();
        assert_eq!(asked(), tried, "after {moved} s more");
    }
    let engine = host.engine().await;
    let all = engine.notices().await.unwrap();
    let done = (NoticeStatus::Succeeded, 1, None);
    assert_eq!(stand(&all), [done, (NoticeStatus::Failed, 3, None)]);
    assert_eq!(all[1].error.as_deref(), Some("the forge is down"));
    let once_more = engine.send_notices().await.unwrap();
    assert_eq!(stand(&once_more), [(NoticeStatus::Failed, 4, None)]);

    // What its code does is no engine's failure, and each call ends in time.
    for (does, says) in [
        (Does::Panic, "panicked"),
        (Does::Hang, "took more than 2 seconds"),
    ] {
        host.target.does(does);
        host.fail(&engine).await;
        let began = Instant::now();
        while engine
            .notices()
            .await
            .unwrap()
            .last()
            .unwrap()
            .error
            .is_none()
        {
            assert!(began.elapsed() < Duration::from_secs(60), "{does:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let all = engine.notices().await.unwrap();
        assert_eq!(stand(&all).last(), Some(&pending));
        let why = all.last().unwrap().error.clone().unwrap();
        assert!(why.contains(says), "{why}");
    }
    host.target.does(Does::Well);
    let sent = engine.send_notices().await.unwrap();
    let done = |tries| (NoticeStatus::Succeeded, tries, None);
    assert_eq!(stand(&sent), [done(5), done(2), done(2)]);
    assert_eq!(host.target.sent(), 4);
    engine.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_engines_of_a_host_one_sends_and_one_without_a_sink_says_so() {
    let host = Host::new();
    let silent = Engine::start(host.options()).await.unwrap();
    for _ in 0..5 {
        host.fail(&silent).await;
    }
    let refused = silent.send_notices().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    assert!(refused.to_string().contains("no sink"), "{refused}");
    let pending = silent.notices().await.unwrap();
    assert_eq!(stand(&pending), [(NoticeStatus::Pending, 0, None); 5]);
    silent.shutdown().await.unwrap();

    host.target.does(Does::Slow);
    let (one, other) = tokio::join!(host.engine(), host.engine());
    let (first, second) = tokio::join!(one.send_notices(), other.send_notices());
    first.unwrap();
    second.unwrap();
    one.shutdown().await.unwrap();
    other.shutdown().await.unwrap();
    assert_eq!(host.target.sent(), 5);
    let engine = host.engine().await;
    let all = engine.notices().await.unwrap();
    assert_eq!(stand(&all), [(NoticeStatus::Succeeded, 1, None); 5]);
    engine.shutdown().await.unwrap();
}
