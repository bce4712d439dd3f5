//! What a host may limit: how long it waits, and what is kept.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use stillframe::backends::{Label, Operation, PurgeTarget, RelPath, StateDir, Workspace};
use stillframe::options::GcOptions;
use stillframe::{
    CancellationToken, CommandAdapter, DiffRequest, Engine, EngineOptions, Error, ErrorKind,
    RestoreRequest, RunOptions, WorkspaceOptions,
};

/// A plain directory, and a state directory with the backends that everybody gets.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        let place = Self { directory };
        place.write("file", "captured\n");
        place
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("workspace")
    }

    fn state(&self) -> std::path::PathBuf {
        self.directory.path().join("state")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn options(&self) -> EngineOptions {
        EngineOptions::default().state_dir(self.state())
    }

    fn workspace(&self) -> WorkspaceOptions {
        WorkspaceOptions::at(self.path()).retain_content(true)
    }
}

fn file() -> RelPath {
    RelPath::new("file").unwrap()
}

/// What each operation answers with that is done with these options.
async fn errors(engine: &Engine, options: &WorkspaceOptions, snapshot: &str) -> Vec<Error> {
    let session = engine.session("s").await.unwrap();
    let restore = RestoreRequest::to(snapshot);
    vec![
        session.snapshot(options, Label::MANUAL).await.unwrap_err(),
        session
            .diff(options, DiffRequest::since(snapshot))
            .await
            .map(drop)
            .unwrap_err(),
        session
            .plan_restore(options, restore.clone())
            .await
            .unwrap_err(),
        session.restore(options, restore).await.unwrap_err(),
        engine.verify(options).await.unwrap_err(),
        engine
            .gc(options, GcOptions::default().keep(1))
            .await
            .unwrap_err(),
        engine.why(options, file(), None).await.unwrap_err(),
        engine
            .plan_purge(options, PurgeTarget::Path(file()))
            .await
            .unwrap_err(),
        engine
            .purge(options, PurgeTarget::Path(file()))
            .await
            .unwrap_err(),
    ]
}

#[tokio::test]
async fn whoever_is_cancelled_or_out_of_time_is_told_so_and_nothing_is_touched() {
    let place = Place::new();
    let engine = Engine::start(place.options()).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let plain = place.workspace();
    let snapshot = session.snapshot(&plain, Label::MANUAL).await.unwrap();
    place.write("file", "edited\n");
    let stop = CancellationToken::new();
    stop.cancel();
    let cancelled = place.workspace().cancellation(stop);
    let late = place.workspace().timeout(Duration::ZERO);
    for (options, kind) in [
        (cancelled, ErrorKind::Cancelled),
        (late, ErrorKind::Timeout),
    ] {
        for error in errors(&engine, &options, snapshot.id.as_str()).await {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!error.touched(), "{error}");
        }
    }
    let text = fs::read_to_string(place.path().join("file")).unwrap();
    assert_eq!(text, "edited\n");
    let kept = engine.snapshots(&plain).await.unwrap();
    assert_eq!(kept, [snapshot]);
    session.snapshot(&plain, Label::MANUAL).await.unwrap();
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn who_waits_for_a_workspace_need_not_wait_to_the_end_of_its_patience() {
    let place = Place::new();
    let patient = place.options().lock_timeout(Duration::from_secs(600));
    let engine = Engine::start(patient).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let state = StateDir::open(place.state()).unwrap();
    let held = Workspace::open(place.path(), &state)
        .unwrap()
        .lock(&Operation::unbounded(), Duration::from_secs(10))
        .unwrap();
    let begun = Instant::now();
    let stop = CancellationToken::new();
    let first = place.workspace().cancellation(stop.clone());
    // The first has its turn and waits for the kernel's lock, the second for its turn.
    let (first, second, ()) = tokio::join!(
        session.snapshot(&first, Label::MANUAL),
        session.snapshot(&first, Label::MANUAL),
        async {
            tokio::task::yield_now().await;
            stop.cancel();
        }
    );
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(300), "nobody waited");
    drop(held);
    let free = place.workspace();
    session.snapshot(&free, Label::MANUAL).await.unwrap();
    engine.shutdown().await.unwrap();
}

/// The bytes of all files below `directory`.
fn bytes_below(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let meta = entry.as_ref().unwrap().metadata().unwrap();
        bytes += match meta.is_dir() {
            true => bytes_below(&entry.unwrap().path()),
            false => meta.len(),
        };
    }
    bytes
}

#[tokio::test]
async fn a_store_with_a_limit_takes_no_more_and_nothing_is_forgotten_for_it() {
    let place = Place::new();
    let limit = 300_000;
    let limited = place.options().max_store_bytes(limit);
    let engine = Engine::start(limited).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let workspace = place.workspace();
    let first = session.snapshot(&workspace, Label::MANUAL).await.unwrap();
    place.write("large", &"x".repeat(400_000));
    let error = session
        .snapshot(&workspace, Label::MANUAL)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.to_string().contains("the limit is 300000"), "{error}");
    // A guard that there is no room for: nothing is touched.
    let restore = RestoreRequest::to(first.id.as_str());
    let error = session.restore(&workspace, restore).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(!error.touched());
    assert!(place.path().join("large").exists());
    fs::remove_file(place.path().join("large")).unwrap();
    // What a run left, likewise: its own result is told all the same.
    let script = "head -c 400000 /dev/zero > large; exit 3";
    let adapter = CommandAdapter::new("sh").args(["-c", script]);
    let run = RunOptions::new("too much").workspace(workspace.clone());
    let outcome = session.execute_run(run, adapter).await.unwrap();
    assert_eq!(outcome.run.exit_code, Some(3));
    let failure = outcome.workspace.error.expect("there is no after-snapshot");
    assert_eq!(failure.kind.as_deref(), Some("LimitExceeded"));
    let kept = engine.snapshots(&workspace).await.unwrap();
    assert!(kept.iter().any(|kept| kept.id == first.id), "it is kept");
    let stores = place.state().join("workspaces");
    assert!(bytes_below(&stores) <= limit);
    engine.shutdown().await.unwrap();
}
