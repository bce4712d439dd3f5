//! Starting and stopping an engine, its limits, and a state directory that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use stillframe::backends::Label;
use stillframe::options::{RunQuery, SessionQuery};
use stillframe::{AdapterOutput, Engine, ErrorKind, RunContext, RunOptions, RunStatus};

use crate::support::{Gate, Host, Work, wait_for, writes};

#[tokio::test]
async fn a_shutdown_takes_no_more_work_and_lets_what_is_under_way_end() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("before", gate);
    let (engine, session) = host.session().await;
    let options = RunOptions::new("x").workspace(host.workspace());
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.execute_run(options, writes("new", "x\n")).await }
    });
    wait_for(is_there).await;
    let stopping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.shutdown().await }
    });
    let keep = || session.put_artifact("k", "text/plain", Box::new(&b""[..]));
    while keep().await.is_ok() {
        tokio::task::yield_now().await;
    }
    let refused = session
        .execute_run(RunOptions::new("x"), writes("a", ""))
        .await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    open.send(()).unwrap();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(
        outcome.run.status,
        RunStatus::Completed,
        "it was let to its end"
    );
    stopping.await.unwrap().unwrap();

    for error in [
        engine
            .sessions(SessionQuery::all())
            .await
            .map(|_| ())
            .unwrap_err(),
        engine.session("t").await.map(|_| ()).unwrap_err(),
        session.record().await.map(|_| ()).unwrap_err(),
        session.pause("").await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    engine.shutdown().await.expect("it is safe to repeat");
    assert_eq!(
        fs::read_dir(host.state().join("engines")).unwrap().count(),
        0
    );
}

#[tokio::test]
async fn a_shutdown_cancels_what_takes_longer_than_the_grace() {
    let host = Host::new();
    let options = host.options().shutdown_grace(Duration::from_millis(50));
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let (started, has_started) = tokio::sync::oneshot::channel();
    let started = std::sync::Mutex::new(Some(started));
    let work = Work(move |context: RunContext| {
        started.lock().unwrap().take().unwrap().send(()).unwrap();
        async move {
            context.cancellation.cancelled().await;
            Ok(AdapterOutput::empty())
        }
    });
    let options = RunOptions::new("wait").workspace(host.workspace());
    let run = tokio::spawn(async move { session.execute_run(options, work).await });
    has_started.await.unwrap();
    engine.shutdown().await.unwrap();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    let engine = host.engine().await;
    let runs = engine.runs(RunQuery::all()).await.unwrap();
    assert_eq!(runs[0].status, RunStatus::Cancelled, "and it is on record");
}

#[tokio::test]
async fn more_operations_than_the_limit_are_busy_at_once() {
    let host = Host::new();
    let engine = Engine::start(host.options().max_operations(1))
        .await
        .unwrap();
    let session = engine.session("s").await.unwrap();
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("manual", gate);
    let first = tokio::spawn({
        let (session, workspace) = (session.clone(), host.workspace());
        async move { session.snapshot(&workspace, Label::MANUAL).await }
    });
    wait_for(is_there).await;
    let busy = session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("limit"), "{busy}");
    assert_eq!(
        engine.snapshots(&host.workspace()).await.unwrap(),
        [],
        "reading goes on"
    );
    open.send(()).unwrap();
    first.await.unwrap().unwrap();
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
}

#[tokio::test]
async fn work_on_one_workspace_takes_turns_and_the_wait_is_bounded() {
    let host = Host::impatient();
    let (engine, session) = host.session().await;
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("manual", gate);
    let first = tokio::spawn({
        let (session, workspace) = (session.clone(), host.workspace());
        async move { session.snapshot(&workspace, Label::MANUAL).await }
    });
    wait_for(is_there).await;
    let busy = session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(
        busy.to_string().contains("a snapshot of this engine"),
        "{busy}"
    );
    // Another engine is another process, as far as the lock goes.
    let other = host.engine().await;
    let elsewhere = other.session("t").await.unwrap();
    let busy = elsewhere
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("process"), "{busy}");
    open.send(()).unwrap();
    first.await.unwrap().unwrap();
    elsewhere
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    assert_eq!(engine.snapshots(&host.workspace()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn many_snapshots_at_once_by_several_engines_are_all_kept() {
    let host = Host::new();
    host.write("a", "one\n");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let options = host.options();
        let workspace = host.workspace();
        tasks.spawn(async move {
            let engine = Engine::start(options).await.unwrap();
            let session = engine.workspace_session(&workspace.path).await.unwrap();
            let taken = session.snapshot(&workspace, Label::MANUAL).await.unwrap();
            engine.shutdown().await.unwrap();
            taken.id
        });
    }
    let mut ids = tasks.join_all().await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
    let engine = host.engine().await;
    let found = engine.verify(&host.workspace()).await.unwrap();
    assert!(found.is_sound());
    assert_eq!(found.snapshots.len(), 8);
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_used_is_a_typed_error() {
    let host = Host::new();
    host.write("file", "");
    let start = |path: std::path::PathBuf| Engine::start(host.options().state_dir(path));
    let refused = start(host.path().join("file/state")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");

    let state = host.state();
    fs::create_dir(&state).unwrap();
    fs::write(
        state.join("stillframe.db"),
        "not a database at all, but long enough".repeat(100),
    )
    .unwrap();
    let refused = start(state).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");

    let locked = host.path().parent().unwrap().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
    // Root may write everywhere, so the probe decides whether there is anything to see.
    if fs::write(locked.join("probe"), "").is_err() {
        let refused = start(locked.join("state")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
    }
}

#[tokio::test]
async fn options_of_zero_are_refused() {
    let host = Host::new();
    for options in [
        host.options().max_operations(0),
        host.options().max_blocking(0),
    ] {
        let refused = Engine::start(options).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    }
    assert!(!host.state().exists(), "nothing was made");
}

#[tokio::test]
async fn an_engine_whose_handles_are_dropped_lets_go_of_everything() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    drop(session);
    drop(engine);
    let again = host.engine().await;
    assert_eq!(again.snapshots(&host.workspace()).await.unwrap().len(), 1);
}
