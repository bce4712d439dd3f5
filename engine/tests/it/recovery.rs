//! What an engine does about what a dead one left.
//!
//! A dead engine is one whose runtime was dropped in the middle: its tasks are gone, its lock is
//! free, and nobody wrote down how its work ended.

use std::sync::Arc;
use std::time::Duration;

use stillframe::backends::{Label, Operation};
use stillframe::commands::{CommandOutput, OutputPiece};
use stillframe::events::EventType;
use stillframe::options::{RunQuery, UndoTarget};
use stillframe::{
    CommandAdapter, Engine, ErrorKind, RunContext, RunOptions, RunStatus, SessionManager,
};

use crate::support::{
    Gate, HeldUpStore, Host, Work, all, completed, die_in_the_middle_of, eventually, on_a_runtime,
    ruins, writes,
};
use stillframe_artifact_store::ArtifactStore as _;

async fn leave_a_run_at_work(host: &Host) {
    let (engine, session) = host.session().await;
    let (started, has_started) = tokio::sync::oneshot::channel();
    let started = std::sync::Mutex::new(Some(started));
    let work = Work(move |context: RunContext| {
        let started = started.lock().unwrap().take().unwrap();
        async move {
            std::fs::write(context.workspace.unwrap().join("half"), "done\n").unwrap();
            started.send(()).unwrap();
            std::future::pending().await
        }
    });
    let options = RunOptions::new("x")
        .workspace(host.workspace().rollback_on_failure(true))
        .run_id("stranded".parse().unwrap());
    tokio::spawn(async move {
        let _engine = engine;
        session.execute_run(options, work).await
    });
    has_started.await.unwrap();
}

#[test]
fn a_run_that_a_dead_engine_left_is_failed_with_what_it_left_on_record() {
    let host = Host::new();
    die_in_the_middle_of(leave_a_run_at_work(&host));
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let run = engine.find_run("stranded").await.unwrap();
        assert_eq!(run.status, RunStatus::Failed);
        let error = run.error.unwrap();
        assert!(error.message.contains("stranded_in_progress"), "{error:?}");
        assert_eq!(run.workspace.unwrap().diff.unwrap().files_changed, 1);
        let last = all(&engine, &session).await.pop().unwrap();
        assert_eq!(last.event_type, EventType::RUN_FAILED);
        assert_eq!(last.data["reason"], "stranded_in_progress");
        assert_eq!(last.data["recovered"], true);

        let snapshots = engine.snapshots(&host.workspace()).await.unwrap();
        let labels: Vec<_> = snapshots.iter().map(|s| s.label.as_str()).collect();
        assert_eq!(labels, ["after_failure", "before"]);
        assert_eq!(
            host.read("half").as_deref(),
            Some("done\n"),
            "not rolled back"
        );
        session
            .undo(&host.workspace(), UndoTarget::Latest)
            .await
            .unwrap();
        assert_eq!(host.read("half"), None, "but it can be undone");
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn a_run_that_a_dead_engine_left_has_its_whole_patch_as_an_artifact() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let inner = store.inner.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = host.options().artifact_store(store);
    // It dies once the store has the patch, and before that is in the log.
    runtime.block_on(async {
        let engine = Engine::start(options).await.unwrap();
        let session = engine.session("s").await.unwrap();
        let workspace = host.workspace().offload_patches(true);
        let options = RunOptions::new("x").workspace(workspace);
        let options = options.run_id("stranded".parse().unwrap());
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, writes("new", "x\n")).await
        });
        crate::support::wait_for(is_there).await;
    });
    runtime.shutdown_background();
    open.send(()).unwrap();
    wait_for_the_death_of_all(&host);
    on_a_runtime(async {
        let options = host.options().artifact_store(inner.clone());
        let engine = Engine::start(options).await.unwrap();
        let run = engine.find_run("stranded").await.unwrap();
        assert_eq!(run.status, RunStatus::Failed);
        let key = run.workspace.unwrap().patch_ref.unwrap();
        let mut text = String::new();
        let mut patch = engine.open_artifact(&key).await.unwrap();
        std::io::Read::read_to_string(&mut patch, &mut text).unwrap();
        assert!(text.contains("+x"), "{text}");
        let session = engine.session("s").await.unwrap();
        let events = all(&engine, &session).await;
        let mut compared = events
            .iter()
            .filter(|e| e.event_type == EventType::WORKSPACE_DIFF_COMPUTED);
        assert_eq!(compared.next().unwrap().data["patch_ref"], key);
        assert_eq!(compared.next(), None);

        let left = inner.list().unwrap().artifacts;
        assert_eq!(left.len(), 2, "and that of the engine that died");
        let kept = engine.artifacts(None).await.unwrap();
        assert_eq!(kept.len(), 1);
    });
}

#[test]
fn a_patch_that_a_dead_engine_had_on_record_is_named_again() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("restore", gate);
    host.backend.fail("restore");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // It dies between the comparison and the end of the run.
    runtime.block_on(async {
        let (engine, session) = host.session().await;
        let workspace = host.workspace().offload_patches(true);
        let options = RunOptions::new("x").workspace(workspace.rollback_on_failure(true));
        let options = options.run_id("stranded".parse().unwrap());
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, ruins("new", "x\n")).await
        });
        crate::support::wait_for(is_there).await;
    });
    runtime.shutdown_background();
    open.send(()).unwrap();
    wait_for_the_death_of_all(&host);
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let run = engine.find_run("stranded").await.unwrap();
        assert_eq!(run.status, RunStatus::Failed);
        let kept = engine.artifacts(None).await.unwrap();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let key = run.workspace.unwrap().patch_ref;
        assert_eq!(key.as_deref(), Some(kept[0].key.as_str()));
        let events = all(&engine, &session).await;
        let compared = events
            .iter()
            .filter(|e| e.event_type == EventType::WORKSPACE_DIFF_COMPUTED);
        let named: Vec<_> = compared.map(|e| e.data["patch_ref"].clone()).collect();
        assert_eq!(named, [kept[0].key.as_str(); 2]);
    });
}

#[test]
fn a_run_of_an_engine_that_is_alive_is_left_alone() {
    let host = Host::new();
    on_a_runtime(async {
        leave_a_run_at_work(&host).await;
        let other = host.engine().await;
        let run = other.find_run("stranded").await.unwrap();
        assert_eq!(run.status, RunStatus::Running);
        let sessions: SessionManager = other.session("s").await.unwrap();
        sessions.cancel("the test is over").await.unwrap();
    });
}

#[test]
fn what_an_engine_did_about_dead_ones_is_told_as_data_and_a_second_one_finds_nothing() {
    let host = Host::new();
    die_in_the_middle_of(leave_a_run_at_work(&host));
    on_a_runtime(async {
        let engine = host.engine().await;
        let report = engine.recovery().clone();
        let types: Vec<&str> = report.done.iter().map(|e| e.event_type.as_str()).collect();
        assert_eq!(types, ["run_failed"]);
        assert!(report.left.is_empty(), "{report:?}");
        engine.shutdown().await.unwrap();
        let engine = host.engine().await;
        assert!(engine.recovery().done.is_empty());
    });
    let host = Host::new();
    die_in_the_middle_of(leave_a_run_at_work(&host));
    std::fs::remove_dir_all(host.path()).unwrap();
    on_a_runtime(async {
        let engine = host.engine().await;
        let left = &engine.recovery().left;
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].path.ends_with("workspace"), "{left:?}");
    });
}

#[test]
fn what_a_dead_engine_left_at_work_is_named_and_no_run_begins_beside_it() {
    let host = Host::impatient();
    let run_id = "stranded".to_owned();
    let (sender, mut pieces) = tokio::sync::mpsc::channel(8);
    let mut left = 0;
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let options = RunOptions::new("x").workspace(host.workspace());
        let options = options.run_id(run_id.parse().unwrap());
        // Out of the group, which the death of the runtime ends.
        let script = "setsid sh -c 'echo $$; exec sleep 300' & wait";
        let command = CommandAdapter::new("sh").args(["-c", script]);
        let command = command.output(CommandOutput::Stream(sender));
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, command).await
        });
        let Some(OutputPiece::Stdout(id)) = pieces.recv().await else {
            panic!("it did not begin");
        };
        left = String::from_utf8(id).unwrap().trim().parse().unwrap();
    });
    on_a_runtime(async {
        let (engine, session) = host.session().await;
        let survivors = engine.recovery().survivors.clone();
        let named: Vec<_> = survivors
            .iter()
            .map(|s| (s.process, s.name.as_str()))
            .collect();
        assert_eq!(named, [(left, "sleep")]);
        assert_eq!(survivors[0].run_id.as_str(), run_id);
        let run = engine.find_run(&run_id).await.unwrap();
        let process = format!("process {left} (sleep)");
        let error = run.error.unwrap();
        assert!(error.message.contains(&process), "{error:?}");

        let begin = |session: &SessionManager| {
            let options = RunOptions::new("x").workspace(host.workspace());
            let session = session.clone();
            async move {
                session
                    .execute_run(options, CommandAdapter::new("true"))
                    .await
            }
        };
        let refused = begin(&session).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains(&process), "{refused}");
        assert!(refused.to_string().contains(&run_id), "{refused}");

        let process = rustix::process::Pid::from_raw(left).unwrap();
        let ended = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty());
        let ended = ended.unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        let mut waited = [rustix::event::PollFd::new(
            &ended,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut waited, None).unwrap();
        begin(&session).await.unwrap();
        engine.shutdown().await.unwrap();
        let engine = host.engine().await;
        assert!(engine.recovery().survivors.is_empty());
    });
}

#[test]
fn what_is_at_work_under_the_same_id_in_another_state_directory_is_not_named() {
    let (host, other) = (Host::impatient(), Host::new());
    let run = |host: &Host| {
        let run = RunOptions::new("x").workspace(host.workspace());
        run.run_id("same".parse().unwrap())
    };
    die_in_the_middle_of(async {
        let (engine, session) = host.session().await;
        let options = run(&host);
        let work = Work(|_: RunContext| std::future::pending());
        tokio::spawn(async move { session.execute_run(options, work).await });
        eventually("it is at work", || async {
            let found = engine.find_run("same").await;
            found.is_ok_and(|run| run.status == RunStatus::Running)
        })
        .await;
    });
    on_a_runtime(async {
        let (_other_engine, session) = other.session().await;
        let (sender, mut pieces) = tokio::sync::mpsc::channel(8);
        let command = CommandAdapter::new("sh").args(["-c", "echo up; exec sleep 300"]);
        let command = command.output(CommandOutput::Stream(sender));
        let options = run(&other);
        let running = tokio::spawn(async move { session.execute_run(options, command).await });
        pieces.recv().await.unwrap();

        let (engine, session) = host.session().await;
        let survivors = &engine.recovery().survivors;
        assert!(survivors.is_empty(), "{survivors:?}");
        let left = engine.find_run("same").await.unwrap().error.unwrap();
        assert!(!left.message.contains("process"), "{left:?}");
        let next = RunOptions::new("x").workspace(host.workspace());
        let next = session.execute_run(next, CommandAdapter::new("true")).await;
        completed(&next.unwrap());
        assert!(!running.is_finished(), "it was there all the time");
    });
}

#[test]
fn two_engines_that_find_a_stranded_run_settle_it_once() {
    let host = Host::new();
    die_in_the_middle_of(leave_a_run_at_work(&host));
    on_a_runtime(async {
        let (one, other) =
            tokio::join!(Engine::start(host.options()), Engine::start(host.options()));
        let (one, _other) = (one.unwrap(), other.unwrap());
        let session = one.session("s").await.unwrap();
        let events = all(&one, &session).await;
        let failed = events
            .iter()
            .filter(|e| e.event_type == EventType::RUN_FAILED);
        assert_eq!(failed.count(), 1);
    });
}

#[test]
fn a_workspace_that_is_gone_does_not_keep_an_engine_from_starting() {
    let host = Host::new();
    die_in_the_middle_of(leave_a_run_at_work(&host));
    std::fs::remove_dir_all(host.path()).unwrap();
    on_a_runtime(async {
        let engine = host.engine().await;
        let runs = engine.runs(RunQuery::all()).await.unwrap();
        assert_eq!(runs[0].status, RunStatus::Failed);
        let seen = runs[0].workspace.as_ref().unwrap();
        assert!(seen.error.is_some(), "{seen:?}");
    });
}

#[test]
fn a_snapshot_that_the_store_has_and_the_log_has_not_is_adopted() {
    let host = Host::new();
    // The engine dies between the store and the log: its runtime goes while the capture is held up,
    // and the capture then comes to its end with nobody to write it down.
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("manual", gate);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (engine, session) = host.session().await;
        let workspace = host.workspace();
        tokio::spawn(async move {
            let _engine = engine;
            session.snapshot(&workspace, Label::MANUAL).await
        });
        crate::support::wait_for(is_there).await;
    });
    runtime.shutdown_background();
    open.send(()).unwrap();
    on_a_runtime(async {
        let found = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let engine = host.engine().await;
                let found = engine.snapshots(&host.workspace()).await.unwrap();
                engine.shutdown().await.unwrap();
                if !found.is_empty() {
                    return found;
                }
            }
        });
        assert_eq!(found.await.expect("it is adopted").len(), 1);
    });
}

/// Waits until nobody holds the sign of life of a dead engine any more.
fn wait_for_the_death_of_all(host: &Host) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    for entry in std::fs::read_dir(host.state().join("engines")).unwrap() {
        let file = std::fs::File::open(entry.unwrap().path()).unwrap();
        while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .is_err()
        {
            assert!(std::time::Instant::now() < deadline, "it is alive");
            std::thread::yield_now();
        }
    }
}

/// The workspace of the host, locked by somebody else than an engine.
fn locked_by_another(host: &Host) -> stillframe::backends::LockedWorkspace {
    let state = stillframe::backends::StateDir::open(host.state()).unwrap();
    let workspace = stillframe::backends::Workspace::open(host.path(), &state).unwrap();
    workspace
        .lock(&Operation::unbounded(), Duration::from_secs(20))
        .unwrap()
}

#[test]
fn what_a_dead_engine_left_in_a_workspace_in_use_is_looked_after_by_a_later_one() {
    let is_shown = (0..10).any(|_| is_looked_after_later());
    assert!(is_shown, "every engine had told of it before it died");
}

/// Whether an engine died between a capture and its row, which it may be too fast for.
fn is_looked_after_later() -> bool {
    let host = Host::impatient();
    let (gate, is_there, open) = Gate::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (engine, session) = host.session().await;
        let workspace = host.workspace();
        session.snapshot(&workspace, Label::MANUAL).await.unwrap();
        host.backend.hold("manual", gate);
        tokio::spawn(async move {
            let _engine = engine;
            session.snapshot(&workspace, Label::MANUAL).await
        });
        crate::support::wait_for(is_there).await;
    });
    runtime.shutdown_background();
    open.send(()).unwrap();
    let locked = locked_by_another(&host);
    wait_for_the_death_of_all(&host);
    let mut found_at_first = 0;
    on_a_runtime(async {
        let engine = host.engine().await;
        let found = engine.snapshots(&host.workspace()).await.unwrap();
        found_at_first = found.len();
        engine.shutdown().await.unwrap();
    });
    drop(locked);
    if found_at_first == 2 {
        return false;
    }
    assert_eq!(found_at_first, 1, "somebody else is at work there");
    on_a_runtime(async {
        let engine = host.engine().await;
        let found = engine.snapshots(&host.workspace()).await.unwrap();
        assert_eq!(found.len(), 2, "what was left is not forgotten");
    });
    true
}

#[test]
fn a_stranded_run_in_a_workspace_in_use_is_settled_by_a_later_engine() {
    let host = Host::impatient();
    die_in_the_middle_of(leave_a_run_at_work(&host));
    let locked = locked_by_another(&host);
    on_a_runtime(async {
        let engine = host.engine().await;
        let run = engine.find_run("stranded").await.unwrap();
        assert_eq!(run.status, RunStatus::Running, "nobody can look at it");
        engine.shutdown().await.unwrap();
    });
    drop(locked);
    on_a_runtime(async {
        let engine = host.engine().await;
        let run = engine.find_run("stranded").await.unwrap();
        assert_eq!(run.status, RunStatus::Failed);
        assert_eq!(run.workspace.unwrap().diff.unwrap().files_changed, 1);
    });
}

#[test]
fn a_restore_that_was_finished_by_recovery_is_in_the_log() {
    let host = Host::new();
    on_a_runtime(async {
        let engine = host.engine().await;
        let session = engine.workspace_session(host.path()).await.unwrap();
        let guard = session
            .snapshot(&host.workspace(), Label::MANUAL)
            .await
            .unwrap();
        host.backend
            .rolled_forward
            .lock()
            .unwrap()
            .push(guard.id.clone());
        session
            .snapshot(&host.workspace(), Label::MANUAL)
            .await
            .unwrap();
        let events = all(&engine, &session).await;
        let types: Vec<_> = events.iter().map(|e| e.event_type.as_str()).collect();
        assert_eq!(
            types[2..],
            [
                "workspace_snapshot_taken",
                "workspace_rolled_back",
                "workspace_snapshot_taken"
            ]
        );
        assert_eq!(events[3].data["recovered"], true);
        assert_eq!(events[3].data["guard"], guard.id.as_str());
    });
}
