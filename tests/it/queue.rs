//! The queue of runs in a host that is killed: what was accepted is not lost, and not begun twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use stillframe::events::{EventQuery, EventType};
use stillframe::options::RunQuery;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, Priority, RunContext, RunId,
    RunOptions, RunOutcome, RunStatus, WorkspaceOptions,
};
use stillframe_tests::TestWorkspace;

/// How often the host is killed; a hundred times by default.
const KILLS: &str = "STILLFRAME_QUEUE_KILLS";

/// Where the host that is to be killed works.
const ROOT: &str = "STILLFRAME_TEST_ROOT";

const SESSIONS: usize = 7;

/// Notes that it was begun, and takes a while.
struct Tally {
    root: PathBuf,
    milliseconds: u64,
}

impl Adapter for Tally {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        note(&self.root.join("begun"), context.run_id.as_str());
        tokio::time::sleep(Duration::from_millis(self.milliseconds)).await;
        Ok(AdapterOutput::empty())
    }
}

/// Adds a line to a file, in one write, so that a kill leaves all of it or nothing.
fn note(path: &Path, line: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn engine(root: &Path) -> Engine {
    let adapter = root.to_owned();
    let options = EngineOptions::default()
        .state_dir(root.join("state"))
        .max_running(3)
        .adapter("tally", move |input: Value| {
            let milliseconds = input.as_u64().ok_or("it is no number")?;
            let root = adapter.clone();
            Ok(Tally { root, milliseconds })
        });
    Engine::start(options).await.unwrap()
}

/// Submits runs until it is killed, and notes those that were accepted.
async fn host(root: &Path) {
    let engine = engine(root).await;
    let so_far = lines(&root.join("accepted")).len();
    note(&root.join("started"), "");
    for at in so_far.. {
        let session = engine.session(format!("s{}", at % SESSIONS)).await.unwrap();
        let handle = session
            .submit_run(RunOptions::new("x"), "tally", json!(at % 13))
            .await
            .unwrap();
        note(&root.join("accepted"), handle.id().as_str());
        // Faster than they are done, but not by much, so that all that can happen does.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn on_a_runtime<R>(story: impl Future<Output = R>) -> R {
    tokio::runtime::Runtime::new().unwrap().block_on(story)
}

/// Kills one host after another, each after a time of its own, and says how many runs waited or
/// were under way each time.
fn killed_hosts(root: &Path, kills: u64) -> Vec<usize> {
    let test = "queue::what_was_accepted_is_begun_once_however_often_its_host_is_killed";
    let mut left = Vec::new();
    for kill in 0..kills {
        // Before it is started: it may be faster than the next line here.
        let started = lines(&root.join("started")).len();
        let mut host = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(ROOT, root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while lines(&root.join("started")).len() == started {
            assert!(
                host.try_wait().unwrap().is_none(),
                "the host has ended by itself"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        // All times up to a fifth of a second, in steps that have no common factor with its own.
        std::thread::sleep(Duration::from_millis(kill * 37 % 199));
        host.kill().unwrap();
        host.wait().unwrap();
        let accepted = lines(&root.join("accepted")).len();
        let begun = lines(&root.join("begun")).len();
        left.push(accepted.saturating_sub(begun));
    }
    left
}

/// The outcome of a run, which nothing keeps from ending.
async fn ended(engine: &Engine, id: &RunId) -> RunOutcome {
    let outcome = tokio::time::timeout(Duration::from_secs(60), engine.wait(id)).await;
    outcome.expect("a run that was lost").unwrap()
}

/// Works until it is cancelled.
struct Endless;

impl Adapter for Endless {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        context.cancellation.cancelled().await;
        Err(AdapterError::cancelled("asked to"))
    }
}

#[test]
fn the_command_lists_shows_and_cancels_what_a_host_has_queued() {
    let ws = TestWorkspace::repository();
    on_a_runtime(async {
        let options = EngineOptions::default().state_dir(ws.state());
        let options = options.adapter("endless", |_| Ok(Endless));
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let mut handles = Vec::new();
        for (id, priority) in [
            ("at-work", Priority::Interactive),
            ("queued", Priority::Batch),
        ] {
            let options = RunOptions::new(format!("what {id} is for"))
                .run_id(id.parse().unwrap())
                .priority(priority)
                .workspace(WorkspaceOptions::at(ws.root()));
            let submitted = session.submit_run(options, "endless", json!({ "ticket": 42 }));
            handles.push(submitted.await.unwrap());
            // The first is at work before the second is there.
            while handles[0].status().await.unwrap() == RunStatus::Pending {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let listed = ws.stillframe(["runs"]).ok().stdout_text();
        let line = listed
            .lines()
            .find(|line| line.starts_with("queued"))
            .unwrap();
        assert!(
            line.contains("pending  1 in the queue (batch, endless)"),
            "{listed}"
        );
        let shown = ws.json(["show", "queued"]);
        let queue = json!({
            "adapter": "endless", "input": { "ticket": 42 }, "priority": "batch", "place": 1,
        });
        assert_eq!(
            (&shown["status"], &shown["queue"]),
            (&json!("pending"), &queue)
        );
        assert!(ws.json(["show", "at-work"])["queue"]["place"].is_null());
        assert_eq!(ws.json(["runs", "--incomplete"]), json!([]));
        ws.stillframe(["cancel", "queued"]).ok();
        ws.stillframe(["cancel", "at-work"]).ok();
        for handle in handles {
            assert_eq!(
                handle.wait().await.unwrap().run.status,
                RunStatus::Cancelled
            );
        }
        let begun = EventQuery::all().of_type(EventType::RUN_STARTED);
        assert_eq!(
            engine.events(begun).await.unwrap().len(),
            1,
            "the other was never begun"
        );
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn what_was_accepted_is_begun_once_however_often_its_host_is_killed() {
    if let Some(root) = std::env::var_os(ROOT) {
        return on_a_runtime(host(Path::new(&root)));
    }
    let ws = TestWorkspace::plain();
    let root = ws.outside().join("queue");
    fs::create_dir(&root).unwrap();
    let kills = std::env::var(KILLS).map_or(100, |kills| kills.parse().unwrap());
    let left = killed_hosts(&root, kills);
    assert!(
        left.iter().any(|left| *left > 0),
        "some runs waited when their host was killed"
    );

    let accepted = lines(&root.join("accepted"));
    on_a_runtime(async {
        let engine = engine(&root).await;
        let mut statuses = BTreeMap::new();
        for id in &accepted {
            let outcome = ended(&engine, &id.parse().unwrap()).await;
            let status = outcome.run.status;
            *statuses.entry(status.as_str()).or_insert(0) += 1;
            if status != RunStatus::Completed {
                // Its host was killed while it was at work.
                assert_eq!(status, RunStatus::Failed, "{id}: {:?}", outcome.run);
                let why = outcome.run.error.unwrap().message;
                assert!(why.starts_with("stranded_in_progress"), "{id}: {why}");
            }
        }
        println!("{} runs: {statuses:?}", accepted.len());
        // Those that were written, and whose host was killed before it heard of that, end too.
        for run in engine.runs(RunQuery::all()).await.unwrap() {
            ended(&engine, &run.id).await;
        }
        let started = EventQuery::all().of_type(EventType::RUN_STARTED);
        let started = engine.events(started).await.unwrap();
        let runs: BTreeSet<_> = started.iter().map(|event| &event.run_id).collect();
        assert_eq!(
            runs.len(),
            started.len(),
            "no run is begun twice, says the log"
        );
        engine.shutdown().await.unwrap();
    });
    let begun = lines(&root.join("begun"));
    let once: BTreeSet<&String> = begun.iter().collect();
    assert_eq!(
        once.len(),
        begun.len(),
        "no run is begun twice, says the adapter"
    );
}
