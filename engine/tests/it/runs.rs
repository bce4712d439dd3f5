//! A run between two snapshots: what is done, and what is told.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stillframe::backends::DiffOptions;
use stillframe::events::EventType;
use stillframe::options::RunQuery;
use stillframe::records::RestoreStatus;
use stillframe::steps::BoxAdapter;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, CancellationToken, Cursor, Engine, ErrorKind, Event,
    RunContext, RunOptions, RunStatus, Strategy, WorkspaceOptions,
};

use crate::support::{Gate, HeldUpStore, Host, Work, all, ruins, types, wait_for, writes};

#[tokio::test]
async fn a_run_gives_both_snapshots_and_what_changed_between_them() {
    let host = Host::new();
    host.write("poem", "roses\n");
    let (engine, session) = host.session().await;
    let options = RunOptions::new("write").workspace(host.workspace());
    let outcome = session
        .execute_run(options, writes("poem", "violets\n"))
        .await
        .unwrap();

    assert_eq!(outcome.run.status, RunStatus::Completed);
    let workspace = &outcome.workspace;
    assert_eq!(workspace.error, None);
    assert!(workspace.rollback.is_none());
    let (before, after) = (&workspace.before_snapshot, &workspace.after_snapshot);
    let (before, after) = (before.as_ref().unwrap(), after.as_ref().unwrap());
    assert_eq!(
        (before.label.as_str(), after.label.as_str()),
        ("before", "after")
    );
    let diff = workspace.diff.as_ref().unwrap();
    assert_eq!(diff.files_changed, 1);
    assert!(diff.patch.is_some(), "small enough to be embedded");
    assert_eq!(diff.patch_ref, None, "and nothing was stored");
    assert!(engine.artifacts(None).await.unwrap().is_empty());

    assert_eq!(
        types(&engine, &session).await,
        [
            "session_created",
            "session_started",
            "workspace_snapshot_taken",
            "run_started",
            "workspace_snapshot_taken",
            "workspace_diff_computed",
            "run_completed",
        ]
    );
    let run = engine.find_run(outcome.run_id.as_str()).await.unwrap();
    assert_eq!(run.status, RunStatus::Completed);
    let seen = run.workspace.unwrap();
    assert_eq!(seen.diff.unwrap().files_changed, 1);
    assert_eq!(seen.before_ref, Some(before.reference.clone()));
    assert_eq!(run.options["workspace"]["max_patch_bytes"], 1_048_576);
    assert_eq!(run.options["workspace"]["strategy"], "auto");
    let listed = engine.snapshots(&host.workspace()).await.unwrap();
    assert_eq!(listed, [after.clone(), before.clone()], "newest first");
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_document_of_a_run_has_the_keys_of_the_design() {
    let host = Host::new();
    host.write("poem", "roses\n");
    let (_engine, session) = host.session().await;
    let workspace = host.workspace().rollback_on_failure(true);
    let options = RunOptions::new("write").workspace(workspace);
    let outcome = session
        .execute_run(options, ruins("poem", "x\n"))
        .await
        .unwrap();
    let document = serde_json::to_value(&outcome).unwrap();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(
        keys(&document),
        "error exit_code run_id session_id status workspace"
    );
    assert_eq!(
        keys(&document["workspace"]),
        "after_snapshot backend before_snapshot diff rollback"
    );
    assert_eq!(
        keys(&document["workspace"]["rollback"]),
        "error guard_snapshot leftover_ignored restored safety_tag skipped status"
    );
    assert_eq!(document["status"], "failed");
    assert_eq!(document["workspace"]["rollback"]["status"], "completed");
    assert_eq!(document["workspace"]["rollback"]["restored"][0], "poem");
    assert_eq!(
        document["workspace"]["after_snapshot"]["label"],
        "after_failure"
    );
}

#[tokio::test]
async fn a_run_without_a_workspace_just_runs() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|_| async { Ok(AdapterOutput::with_data(serde_json::json!(42))) });
    let outcome = session
        .execute_run(RunOptions::new("think"), work)
        .await
        .unwrap();
    assert_eq!(outcome.run.output.as_ref().unwrap().data, 42);
    assert!(outcome.document().workspace.is_none());
    let types = types(&engine, &session).await;
    assert_eq!(types[2..], ["run_started", "run_completed"]);
}

#[tokio::test]
async fn a_run_that_fails_keeps_its_own_error_and_is_rolled_back() {
    let host = Host::new();
    host.write("poem", "roses\n");
    let (engine, session) = host.session().await;
    let workspace = host.workspace().rollback_on_failure(true);
    let options = RunOptions::new("write").workspace(workspace);
    let outcome = session
        .execute_run(options, ruins("poem", "x\n"))
        .await
        .unwrap();

    assert_eq!(outcome.run.status, RunStatus::Failed);
    assert_eq!(outcome.run.error.unwrap().message, "it came to nothing");
    assert_eq!(host.read("poem").as_deref(), Some("roses\n"));
    let rollback = outcome.workspace.rollback.unwrap();
    assert_eq!(rollback.status, RestoreStatus::Completed);
    let guard = rollback.guard_snapshot.unwrap();
    let events = all(&engine, &session).await;
    let rolled_back: Vec<_> = events
        .iter()
        .filter(|e| e.event_type == EventType::WORKSPACE_ROLLED_BACK)
        .collect();
    assert_eq!(rolled_back.len(), 1);
    assert_eq!(rolled_back[0].data["guard"], guard.as_str());
    let before = outcome.workspace.before_snapshot.unwrap();
    assert_eq!(rolled_back[0].data["to"], before.id.as_str());
    let taken = events
        .iter()
        .filter(|e| e.event_type == EventType::WORKSPACE_SNAPSHOT_TAKEN)
        .count();
    assert_eq!(taken, 2, "a guard has no event of its own");
    assert_eq!(events.last().unwrap().event_type, EventType::RUN_FAILED);
    assert_eq!(events.last().unwrap().data["reason"], "it came to nothing");
}

#[tokio::test]
async fn a_rollback_that_cannot_be_is_refused_before_the_adapter_is_called() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let called = Arc::new(AtomicBool::new(false));
    let adapter = {
        let called = called.clone();
        Work(move |_| {
            called.store(true, Ordering::SeqCst);
            async { Ok(AdapterOutput::empty()) }
        })
    };
    let workspace = WorkspaceOptions::at(host.path()).rollback_on_failure(true);
    let options = RunOptions::new("write").workspace(workspace);
    let refused = session.execute_run(options, adapter).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(!refused.touched());
    assert!(!called.load(Ordering::SeqCst), "the adapter was not called");
    let run = engine
        .find_run(refused.run_id().unwrap().as_str())
        .await
        .unwrap();
    assert_eq!(run.status, RunStatus::Failed);
    assert_eq!(run.error.unwrap().kind.as_deref(), Some("Unsupported"));
    assert_eq!(types(&engine, &session).await[2..], ["run_failed"]);
    assert!(
        !host.state().join("workspaces").exists(),
        "no store was made"
    );
}

#[tokio::test]
async fn options_that_cannot_be_right_leave_no_run() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let of = |workspace: WorkspaceOptions| RunOptions::new("x").workspace(workspace);
    host.write("file", "");
    for options in [
        of(host.workspace().max_patch_bytes(0)),
        of(WorkspaceOptions::at("")),
        of(WorkspaceOptions::at(host.path().join("file"))),
        of(WorkspaceOptions::at(host.path().join("missing"))),
        of(WorkspaceOptions::at(host.path().parent().unwrap())),
    ] {
        let refused = session
            .execute_run(options, writes("file", "touched"))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{refused}");
        assert_eq!(refused.run_id(), None);
    }
    assert_eq!(host.read("file").as_deref(), Some(""));
    assert!(engine.runs(RunQuery::all()).await.unwrap().is_empty());
    let unsupported = of(host.workspace().strategy(Strategy::Git));
    let refused = session.execute_run(unsupported, writes("file", "x")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn without_the_before_snapshot_the_adapter_is_not_called() {
    let host = Host::new();
    host.backend.fail("before");
    let (engine, session) = host.session().await;
    let options = RunOptions::new("write").workspace(host.workspace());
    let refused = session
        .execute_run(options, writes("new", "x"))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert_eq!(host.read("new"), None);
    let run = engine
        .find_run(refused.run_id().unwrap().as_str())
        .await
        .unwrap();
    assert_eq!((run.status, run.started_at), (RunStatus::Failed, None));
}

#[tokio::test]
async fn an_after_snapshot_that_fails_does_not_hide_that_the_run_completed() {
    let host = Host::new();
    host.backend.fail("after");
    let (engine, session) = host.session().await;
    let options = RunOptions::new("write").workspace(host.workspace());
    let outcome = session
        .execute_run(options, writes("new", "x\n"))
        .await
        .unwrap();
    assert_eq!(outcome.run.status, RunStatus::Completed);
    assert!(outcome.run.output.is_some(), "the output is not lost");
    let document = outcome.document();
    assert_eq!(document.status, RunStatus::Completed);
    assert_eq!(document.error, None, "it completed");
    assert_eq!(document.workspace.unwrap().error, outcome.workspace.error);
    assert_eq!(
        outcome.workspace.error.unwrap().kind.as_deref(),
        Some("LimitExceeded")
    );
    assert!(outcome.workspace.after_snapshot.is_none());
    assert!(outcome.workspace.before_snapshot.is_some());
    let events = all(&engine, &session).await;
    let last: Vec<_> = events[events.len() - 2..]
        .iter()
        .map(|e| e.event_type.as_str())
        .collect();
    assert_eq!(last, ["error_occurred", "run_completed"]);
}

#[tokio::test]
async fn a_comparison_that_fails_is_an_error_and_never_an_empty_diff() {
    let host = Host::new();
    host.backend.fail("diff");
    let (_engine, session) = host.session().await;
    let options = RunOptions::new("write").workspace(host.workspace());
    let outcome = session
        .execute_run(options, writes("new", "x\n"))
        .await
        .unwrap();
    assert_eq!(outcome.run.status, RunStatus::Completed);
    assert!(outcome.workspace.diff.is_none());
    assert!(outcome.workspace.after_snapshot.is_some());
    assert!(outcome.workspace.error.is_some());
}

#[tokio::test]
async fn a_rollback_that_is_refused_is_a_field_beside_the_failure_of_the_run() {
    let host = Host::new();
    host.backend.fail("restore");
    host.write("poem", "roses\n");
    let (engine, session) = host.session().await;
    let workspace = host.workspace().rollback_on_failure(true);
    let options = RunOptions::new("write").workspace(workspace);
    let outcome = session
        .execute_run(options, ruins("poem", "x\n"))
        .await
        .unwrap();
    assert_eq!(outcome.run.error.unwrap().message, "it came to nothing");
    let rollback = outcome.workspace.rollback.unwrap();
    assert_eq!(rollback.status, RestoreStatus::Refused);
    assert_eq!(rollback.error.unwrap().kind.as_deref(), Some("HeadMoved"));
    assert_eq!(host.read("poem").as_deref(), Some("x\n"));
    let types = types(&engine, &session).await;
    assert!(
        !types.contains(&"workspace_rolled_back".to_owned()),
        "{types:?}"
    );
    assert!(types.contains(&"error_occurred".to_owned()), "{types:?}");
}

#[tokio::test]
async fn without_an_after_snapshot_nothing_is_rolled_back() {
    let host = Host::new();
    host.backend.fail("after_failure");
    host.write("poem", "roses\n");
    let (_engine, session) = host.session().await;
    let workspace = host.workspace().rollback_on_failure(true);
    let options = RunOptions::new("write").workspace(workspace);
    let outcome = session
        .execute_run(options, ruins("poem", "x\n"))
        .await
        .unwrap();
    let rollback = outcome.workspace.rollback.unwrap();
    assert_eq!(rollback.status, RestoreStatus::Refused);
    assert_eq!(host.read("poem").as_deref(), Some("x\n"));
}

#[tokio::test]
async fn an_adapter_that_panics_is_a_failed_run_and_the_engine_lives() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let options = || RunOptions::new("write").workspace(host.workspace());
    let work = Work(|context: RunContext| async move {
        fs::write(context.workspace.unwrap().join("half"), "done\n").unwrap();
        panic!("out of cheese")
    });
    let outcome = session.execute_run(options(), work).await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Failed);
    let error = outcome.run.error.unwrap();
    assert_eq!(error.kind, None, "no kind of the engine's says it");
    assert!(error.message.contains("out of cheese"), "{error:?}");
    assert_eq!(outcome.workspace.diff.unwrap().files_changed, 1);
    let again = session.execute_run(options(), writes("whole", "x\n")).await;
    assert_eq!(again.unwrap().run.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_backend_that_panics_is_a_failed_step_and_lets_go_of_the_workspace() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let panic = stillframe::backends::Label::new("panic");
    let failed = session
        .snapshot(&host.workspace(), panic)
        .await
        .unwrap_err();
    assert!(
        failed.to_string().contains("the backend is broken"),
        "{failed}"
    );
    let manual = stillframe::backends::Label::MANUAL;
    session.snapshot(&host.workspace(), manual).await.unwrap();
}

#[tokio::test]
async fn a_run_that_is_cancelled_ends_and_is_captured_as_a_failure() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let token = CancellationToken::new();
    let options = RunOptions::new("wait")
        .workspace(host.workspace())
        .cancellation(token.clone());
    let work = Work(move |context: RunContext| {
        let token = token.clone();
        async move {
            fs::write(context.workspace.unwrap().join("half"), "done\n").unwrap();
            token.cancel();
            context.cancellation.cancelled().await;
            Err(AdapterError::failed("whatever it says"))
        }
    });
    let outcome = session.execute_run(options, work).await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    assert_eq!(
        outcome.run.error.unwrap().kind.as_deref(),
        Some("Cancelled")
    );
    let after = outcome.workspace.after_snapshot.unwrap();
    assert_eq!(after.label.as_str(), "after_failure");
    assert_eq!(outcome.workspace.diff.unwrap().files_changed, 1);
    assert_eq!(
        types(&engine, &session).await.last().unwrap(),
        "run_cancelled"
    );
}

#[tokio::test]
async fn a_run_can_be_cancelled_by_its_id_before_its_work_begins() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("before", gate);
    let (engine, session) = host.session().await;
    let id: stillframe::RunId = "r".parse().unwrap();
    let options = RunOptions::new("wait")
        .workspace(host.workspace())
        .run_id(id.clone());
    let run = tokio::spawn(async move { session.execute_run(options, writes("new", "x")).await });
    wait_for(is_there).await;
    engine.cancel_run(&id).await.unwrap();
    tokio::task::yield_now().await;
    open.send(()).unwrap();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    assert!(outcome.workspace.before_snapshot.is_none());
    assert_eq!(host.read("new"), None, "the adapter was not called");
    let late = engine.cancel_run(&id).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Conflict);
}

#[tokio::test(start_paused = true)]
async fn an_adapter_that_does_not_stop_is_dropped_after_the_grace() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let options = RunOptions::new("wait for ever").timeout(Duration::from_millis(300));
    let work = Work(|_| std::future::pending());
    let outcome = session.execute_run(options, work).await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Timeout);
    assert_eq!(outcome.run.error.unwrap().kind.as_deref(), Some("Timeout"));
}

#[tokio::test]
async fn dropping_the_future_of_a_run_does_not_stop_it() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    host.backend.hold("before", gate);
    let (engine, session) = host.session().await;
    let mut events = session.events(stillframe::Cursor::start());
    let options = RunOptions::new("write").workspace(host.workspace());
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.execute_run(options, writes("new", "x\n")).await }
    });
    wait_for(is_there).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    open.send(()).unwrap();
    loop {
        let event = events.next().await.unwrap().unwrap();
        if event.event_type == EventType::RUN_COMPLETED {
            break;
        }
    }
    assert_eq!(host.read("new").as_deref(), Some("x\n"));
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_second_run_in_a_workspace_waits_and_is_told_who_has_it() {
    let host = Host::impatient();
    let (engine, session) = host.session().await;
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let ends = Arc::new(std::sync::Mutex::new(Some((started, finished))));
    let work = Work(move |_| {
        let (started, finished) = ends.lock().unwrap().take().unwrap();
        async move {
            started.send(()).unwrap();
            finished.await.unwrap();
            Ok(AdapterOutput::empty())
        }
    });
    let options = || RunOptions::new("x").workspace(host.workspace());
    let first = tokio::spawn({
        let (session, options) = (session.clone(), options());
        async move {
            session
                .execute_run(options.run_id("first".parse().unwrap()), work)
                .await
        }
    });
    has_started.await.unwrap();

    let busy = session
        .execute_run(options(), writes("new", "x"))
        .await
        .unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(
        busy.to_string().contains("run first of session s"),
        "{busy}"
    );
    assert_eq!(host.read("new"), None);
    let run = engine
        .find_run(busy.run_id().unwrap().as_str())
        .await
        .unwrap();
    assert_eq!(run.status, RunStatus::Failed);

    // Another spelling of the same directory is the same workspace.
    let link = host.state().parent().unwrap().join("link");
    std::os::unix::fs::symlink(host.path(), &link).unwrap();
    let spelled = RunOptions::new("x").workspace(WorkspaceOptions::at(&link));
    let busy = session
        .execute_run(spelled, writes("new", "x"))
        .await
        .unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);

    // A snapshot by hand is no run: it can be taken while one is at work.
    let label = stillframe::backends::Label::MANUAL;
    session.snapshot(&host.workspace(), label).await.unwrap();
    finish.send(()).unwrap();
    let outcome = first.await.unwrap().unwrap();
    assert_eq!(outcome.run.status, RunStatus::Completed);
    session
        .execute_run(options(), writes("new", "x"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_run_id_is_used_once() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let options = || RunOptions::new("x").run_id("again".parse().unwrap());
    let work = || Work(|_| async { Ok(AdapterOutput::empty()) });
    let first = session.execute_run(options(), work()).await.unwrap();
    let again = session.execute_run(options(), work()).await.unwrap();
    assert!(again.is_stored && !first.is_stored);
    assert_eq!(engine.runs(RunQuery::all()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_run_is_found_by_the_beginning_of_its_id() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    for id in ["run_aaaa1", "run_aaaa2", "ticket"] {
        let options = RunOptions::new(id).run_id(id.parse().unwrap());
        let work = Work(|_| async { Ok(AdapterOutput::empty()) });
        session.execute_run(options, work).await.unwrap();
    }
    assert_eq!(engine.find_run("aaaa1").await.unwrap().input, "run_aaaa1");
    assert_eq!(engine.find_run("tick").await.unwrap().input, "ticket");
    let ambiguous = engine.find_run("run_aaaa").await.unwrap_err();
    assert_eq!(ambiguous.kind(), ErrorKind::InvalidOptions);
    assert_eq!(engine.find_run("t").await.unwrap().input, "ticket");
    for unknown in ["run_b", "zzzz", "../x", "%"] {
        let error = engine.find_run(unknown).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{unknown:?}");
    }
    for too_short in ["", "run_", "r"] {
        let error = engine.find_run(too_short).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{too_short:?}");
    }
}

#[tokio::test]
async fn a_patch_above_the_limit_is_kept_whole_as_an_artifact() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let workspace = host.workspace().max_patch_bytes(64);
    let options = RunOptions::new("write").workspace(workspace);
    let long: &'static str = "0123456789\n".repeat(1000).leak();
    let outcome = session
        .execute_run(options, writes("new", long))
        .await
        .unwrap();
    let diff = outcome.workspace.diff.as_ref().unwrap();
    assert_eq!(diff.patch, None);
    assert!(diff.patch_truncated);
    let key = diff.patch_ref.clone().unwrap();
    let mut text = String::new();
    let mut reader = engine.open_artifact(&key).await.unwrap();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text.len() as u64, diff.patch_bytes.unwrap());
    assert_eq!(text.matches("+0123456789").count(), 1000, "the whole of it");
    let run = engine.find_run(outcome.run_id.as_str()).await.unwrap();
    let seen = run.workspace.unwrap();
    assert_eq!(
        (seen.patch_ref, seen.patch_bytes),
        (Some(key), diff.patch_bytes)
    );
}

#[tokio::test]
async fn the_event_of_a_comparison_comes_once_the_artifact_can_be_read_and_names_it() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let options = host.options().artifact_store(store);
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let workspace = host.workspace().offload_patches(true);
    let options = RunOptions::new("write").workspace(workspace);
    let at_work = session.clone();
    let run = tokio::spawn(async move { at_work.execute_run(options, writes("new", "x\n")).await });
    wait_for(is_there).await;
    let compared = |events: &[Event]| {
        let is_it = |event: &&Event| event.event_type == EventType::WORKSPACE_DIFF_COMPUTED;
        events.iter().find(is_it).cloned()
    };
    let so_far = all(&engine, &session).await;
    assert_eq!(compared(&so_far), None, "the artifact is not there yet");
    open.send(()).unwrap();

    let mut events = session.events(Cursor::start());
    let event = loop {
        let event = events.next().await.unwrap().unwrap();
        if let Some(event) = compared(&[event]) {
            break event;
        }
    };
    let key = event.data["patch_ref"].as_str().unwrap();
    let mut text = String::new();
    let mut reader = engine.open_artifact(key).await.unwrap();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert!(text.contains("+x"), "{text}");
    let diff = run.await.unwrap().unwrap().workspace.diff.unwrap();
    assert_eq!(diff.patch_ref.as_deref(), Some(key));
}

#[tokio::test]
async fn an_offloaded_patch_is_an_artifact_whatever_its_size() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let workspace = host.workspace().offload_patches(true);
    let options = || RunOptions::new("write").workspace(workspace.clone());
    let outcome = session
        .execute_run(options(), writes("new", "x\n"))
        .await
        .unwrap();
    let diff = outcome.workspace.diff.unwrap();
    let key = diff.patch_ref.unwrap();
    let digits = key.rsplit('_').next().unwrap();
    assert_eq!(
        key,
        format!("patch_{}_{}_{digits}", diff.from_ref, diff.to_ref)
    );
    assert_eq!(digits.len(), 32);
    assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()));
    assert_eq!(
        (diff.patch, diff.patch_truncated, diff.has_patch),
        (None, false, true)
    );
    let record = &engine.artifacts(Some(session.id())).await.unwrap()[0];
    assert_eq!(
        (&record.key, record.run_id.as_ref()),
        (&key, Some(&outcome.run_id))
    );
    assert_eq!(record.byte_size, diff.patch_bytes.unwrap());

    let idle = session
        .execute_run(options(), writes("new", "x\n"))
        .await
        .unwrap();
    let diff = idle.workspace.diff.unwrap();
    assert_eq!(
        (diff.files_changed, diff.has_patch, diff.patch_ref),
        (0, false, None)
    );
    assert_eq!(
        engine.artifacts(None).await.unwrap().len(),
        1,
        "no change, no artifact"
    );
}

#[tokio::test]
async fn a_patch_can_be_left_out() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let workspace = host.workspace().capture_patch(false);
    let options = RunOptions::new("write").workspace(workspace);
    let outcome = session
        .execute_run(options, writes("new", "x\n"))
        .await
        .unwrap();
    let diff = outcome.workspace.diff.unwrap();
    assert_eq!((diff.has_patch, diff.patch_bytes), (false, None));
    let zero = DiffOptions::with_patch().max_patch_bytes(0);
    let request = stillframe::DiffRequest::since("now").options(zero);
    let refused = session.diff(&host.workspace(), request).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
}

/// A call of a model that is answered at once.
struct ModelCall;

impl Adapter for ModelCall {
    fn calls_model(&self) -> bool {
        true
    }

    async fn run(&self, _context: RunContext) -> Result<AdapterOutput, AdapterError> {
        Ok(AdapterOutput::empty())
    }
}

#[tokio::test]
async fn a_call_of_a_model_has_a_timeout_by_default_and_the_record_says_so() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let own = || RunOptions::new("ask").timeout(Duration::from_secs(7));
    for (options, adapter, expected) in [
        (
            RunOptions::new("ask"),
            BoxAdapter::new(ModelCall),
            Some(60_000),
        ),
        (
            RunOptions::new("ask"),
            BoxAdapter::new(Arc::new(ModelCall)),
            Some(60_000),
        ),
        (own(), BoxAdapter::new(ModelCall), Some(7_000)),
        (
            RunOptions::new("write"),
            BoxAdapter::new(writes_nothing()),
            None,
        ),
    ] {
        let outcome = session.execute_run(options, adapter).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        let run = engine.find_run(outcome.run_id.as_str()).await.unwrap();
        assert_eq!(
            run.options["timeout_ms"].as_u64(),
            expected,
            "{}",
            run.input
        );
    }
    engine.shutdown().await.unwrap();
}

fn writes_nothing() -> impl Adapter {
    Work(|_| async { Ok(AdapterOutput::empty()) })
}
