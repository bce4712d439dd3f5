//! Work that was not sent for a reason that may pass is sent again by itself, with a real server
//! that is down and comes up. git is the oracle.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use stillframe::events::EventQuery;
use stillframe::records::{SavedWork, WorkTaskRecord};
use stillframe::tasks::{QuarantineScope, WorkBranchOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, RunContext, RunOptions, Timestamp,
    WorkspaceOptions,
};
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::{TestWorkspace, git};

const BRANCH: &str = "refs/heads/stillframe/task/42";

/// Writes something, and fails or not.
struct Works {
    fails: bool,
    /// Where the server is that goes down meanwhile.
    goes_down: Option<PathBuf>,
}

impl Adapter for Works {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let work = context.workspace.as_ref().unwrap().join("work");
        fs::write(work, context.run_id.as_str()).unwrap();
        if let Some(base) = &self.goes_down {
            goes_down(base);
        }
        match self.fails {
            true => Err(AdapterError::failed("no luck")),
            false => Ok(AdapterOutput::empty()),
        }
    }
}

/// The server answers that it cannot.
fn goes_down(base: &Path) {
    let backend = base.join("http/backend");
    fs::rename(&backend, base.join("backend")).unwrap();
    let away = "#!/bin/sh\nprintf 'Status: 503 Away\\r\\n\\r\\n'\n";
    fs::write(&backend, away).unwrap();
    fs::set_permissions(&backend, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A repository with a server, and hosts whose clock stands still unless it is moved.
struct Scene {
    ws: TestWorkspace,
    url: String,
    second: Arc<AtomicI64>,
    _server: HttpServer,
}

impl Scene {
    /// `None`: there is no lighttpd.
    fn new() -> Option<Self> {
        let ws = TestWorkspace::repository();
        git::text(
            &ws.home(),
            ws.base(),
            ["init", "-q", "--bare", "remote.git"],
        );
        let remote = ws.base().join("remote.git");
        git::text(&ws.home(), &remote, ["config", "http.receivepack", "true"]);
        // What arrives is written down.
        let hook = remote.join("hooks/post-receive");
        fs::create_dir_all(hook.parent().unwrap()).unwrap();
        fs::write(&hook, "#!/bin/sh\ncat >> arrived\n").unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        let own = ws.base().join("http");
        let server = HttpServer::start(&own, ws.base(), HttpOptions::default())?;
        Some(Self {
            url: format!("http://127.0.0.1:{}/git/remote.git", server.port()),
            ws,
            second: Arc::new(AtomicI64::new(1_700_000_000)),
            _server: server,
        })
    }

    fn goes_down(&self) {
        goes_down(self.ws.base());
    }

    fn comes_up(&self) {
        let base = self.ws.base();
        fs::rename(base.join("backend"), base.join("http/backend")).unwrap();
    }

    fn later(&self, seconds: i64) {
        self.second.fetch_add(seconds, Ordering::SeqCst);
    }

    async fn engine(&self) -> Engine {
        let second = Arc::clone(&self.second);
        let options = EngineOptions::default()
            .state_dir(self.ws.state())
            .clock(move || Timestamp::from_second(second.load(Ordering::SeqCst)).unwrap())
            .question_sweep(Duration::from_millis(20));
        Engine::start(options).await.unwrap()
    }

    async fn run(&self, engine: &Engine, work: Works) {
        let session = engine.session("s").await.unwrap();
        let branch = WorkBranchOptions::of("42").remote(self.url.clone());
        let options = RunOptions::new("x")
            .workspace(WorkspaceOptions::at(self.ws.root()))
            .work_branch(branch);
        session.execute_run(options, work).await.unwrap();
    }

    /// Saves what somebody has done by hand, while the server is away.
    async fn save(&self, engine: &Engine) -> SavedWork {
        let session = engine.session("s").await.unwrap();
        let workspace = WorkspaceOptions::at(self.ws.root());
        let branch = WorkBranchOptions::of("42").remote(self.url.clone());
        self.ws.write("work", "by hand\n");
        session.checkpoint(&workspace, &branch).await.unwrap()
    }

    /// What arrived on the branch, one line for each push.
    fn arrived(&self) -> Vec<String> {
        let arrived = self.ws.base().join("remote.git/arrived");
        let arrived = fs::read_to_string(arrived).unwrap_or_default();
        arrived.lines().map(str::to_owned).collect()
    }

    fn at(&self) -> String {
        let remote = self.ws.base().join("remote.git");
        git::text(&self.ws.home(), &remote, ["rev-parse", BRANCH])
    }

    /// How often it was tried, and in how many seconds it is again.
    fn retries(&self, task: &WorkTaskRecord) -> (u32, Option<i64>) {
        let now = self.second.load(Ordering::SeqCst);
        let due = task.next_retry_at.map(|at| at.as_second() - now);
        (task.retry_count, due)
    }
}

fn works() -> Works {
    Works {
        fails: false,
        goes_down: None,
    }
}

async fn task(engine: &Engine) -> WorkTaskRecord {
    engine.find_task("42").await.unwrap().0
}

async fn until(engine: &Engine, what: &str, is_so: impl Fn(&WorkTaskRecord) -> bool) {
    let began = Instant::now();
    loop {
        let task = task(engine).await;
        if is_so(&task) {
            return;
        }
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(60), "{what}: {task:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_was_away_for_is_sent_once_it_is_back_and_due() {
    let Some(scene) = Scene::new() else {
        return;
    };
    let engine = scene.engine().await;
    scene.run(&engine, works()).await;
    assert_eq!(scene.retries(&task(&engine).await), (0, None));
    let fails = Works {
        fails: true,
        goes_down: Some(scene.ws.base().to_owned()),
    };
    scene.run(&engine, fails).await;
    let waits = task(&engine).await;
    assert_eq!(scene.retries(&waits), (1, Some(30)));
    assert_eq!(waits.last_failure_class.as_deref(), Some("agent_error"));
    let last = waits.last_checkpoint.unwrap();
    assert_eq!(last.failure.as_deref(), Some("NetworkBlip"));
    engine.shutdown().await.unwrap();

    let engine = scene.engine().await;
    // It is not due, and then the server is still away.
    scene.later(29);
    assert_eq!(scene.retries(&task(&engine).await), (1, Some(1)));
    scene.later(1);
    until(&engine, "a second try", |task| task.retry_count == 2).await;
    assert_eq!(scene.retries(&task(&engine).await), (2, Some(60)));
    let listed = engine.quarantine(QuarantineScope::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    scene.comes_up();
    scene.later(60);
    until(&engine, "a third try", |task| task.retry_count == 0).await;
    assert_eq!(scene.retries(&task(&engine).await), (0, None));
    assert_eq!(scene.at(), last.commit, "it is on the branch");
    assert_eq!(scene.arrived().len(), 2);
    let done = task(&engine).await;
    assert_eq!(done.last_checkpoint.unwrap().status, "proven");
    let listed = engine.quarantine(QuarantineScope::default()).await.unwrap();
    assert_eq!(listed, []);
    let events = engine.events(EventQuery::all()).await.unwrap();
    let of = |name: &str| {
        let found = events.iter().filter(|e| e.event_type.to_string() == name);
        found.count()
    };
    assert_eq!(of("persist_pushed"), 2);
    assert_eq!(of("persist_committed"), 2, "nothing was made again");
    engine.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_third_failure_it_is_left_to_the_next_checkpoint() {
    let Some(scene) = Scene::new() else {
        return;
    };
    let engine = scene.engine().await;
    scene.run(&engine, works()).await;
    scene.goes_down();
    let saved = scene.save(&engine).await;
    assert_eq!(saved.failure.as_deref(), Some("NetworkBlip"));
    for (wait, tried) in [(30, 2), (60, 3)] {
        scene.later(wait);
        until(&engine, "a try", |task| task.retry_count == tried).await;
    }
    assert_eq!(scene.retries(&task(&engine).await), (3, None));
    scene.comes_up();
    scene.later(3_600);
    let saved = scene.save(&engine).await;
    assert_eq!((saved.failure, saved.commit), (None, Some(scene.at())));
    assert_eq!(scene.retries(&task(&engine).await), (0, None));
    assert_eq!(scene.arrived().len(), 2, "the first, and this");
    engine.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_engines_one_sends_what_is_due() {
    let Some(scene) = Scene::new() else {
        return;
    };
    let first = scene.engine().await;
    scene.run(&first, works()).await;
    scene.goes_down();
    scene.save(&first).await;
    let (second, third) = tokio::join!(scene.engine(), scene.engine());
    scene.comes_up();
    scene.later(30);
    until(&first, "it is sent", |task| task.retry_count == 0).await;
    for engine in [first, second, third] {
        engine.shutdown().await.unwrap();
    }
    assert_eq!(scene.arrived().len(), 2, "it arrived once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_says_in_its_task_what_kind_of_trouble_it_was() {
    let Some(scene) = Scene::new() else {
        return;
    };
    let engine = scene.engine().await;
    let fails = Works {
        fails: true,
        ..works()
    };
    scene.run(&engine, fails).await;
    let failed = task(&engine).await;
    assert_eq!(failed.last_failure_class.as_deref(), Some("agent_error"));
    assert!(failed.error.unwrap().contains("no luck"));
    scene.run(&engine, works()).await;
    let done = task(&engine).await;
    assert_eq!((done.error, done.last_failure_class), (None, None));
    engine.shutdown().await.unwrap();
}
