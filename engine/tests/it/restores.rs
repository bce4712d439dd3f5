//! Snapshots by hand, comparing them, going back, and taking that back.

use std::io::Read as _;

use stillframe::backends::{BackendKind, DiffOptions, Label, RelPath};
use stillframe::events::EventType;
use stillframe::options::UndoTarget;
use stillframe::records::RestoreStatus;
use stillframe::{
    DiffRequest, Engine, EngineOptions, ErrorKind, RestoreRequest, RunOptions, SessionManager,
    Snapshot, WorkspaceOptions,
};

use crate::support::{Host, all, ruins, writes};

async fn snapshot(session: &SessionManager, host: &Host) -> Snapshot {
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

async fn count(engine: &Engine, host: &Host) -> usize {
    engine.snapshots(&host.workspace()).await.unwrap().len()
}

#[tokio::test]
async fn a_restore_puts_back_and_the_undo_takes_that_back_and_the_undo_of_the_undo_again() {
    let host = Host::new();
    host.write("a", "one\n");
    let (engine, session) = host.session().await;
    let first = snapshot(&session, &host).await;
    host.write("a", "two\n");
    host.write("b", "new\n");

    let request = RestoreRequest::to(&first);
    let done = session.restore(&host.workspace(), request).await.unwrap();
    assert_eq!(done.status, RestoreStatus::Completed);
    assert!(done.plan_id.is_some());
    assert_eq!(done.restored, [path("a"), path("b")]);
    assert_eq!(
        (host.read("a").as_deref(), host.read("b")),
        (Some("one\n"), None)
    );
    let guard = engine
        .find_snapshot(done.guard_snapshot.as_ref().unwrap().as_str())
        .await
        .unwrap();
    assert_eq!(guard.label.as_str(), "guard");

    let undone = session
        .undo(&host.workspace(), UndoTarget::Latest)
        .await
        .unwrap();
    assert_eq!(undone.undone.operation.as_str(), "restore");
    assert_eq!(host.read("a").as_deref(), Some("two\n"));
    assert_eq!(host.read("b").as_deref(), Some("new\n"));

    let redone = session
        .undo(&host.workspace(), UndoTarget::Latest)
        .await
        .unwrap();
    assert_eq!(redone.undone.operation.as_str(), "undo");
    assert_eq!(
        (host.read("a").as_deref(), host.read("b")),
        (Some("one\n"), None)
    );
    let events = all(&engine, &session).await;
    let operations: Vec<_> = events
        .iter()
        .filter(|e| e.event_type == EventType::WORKSPACE_ROLLED_BACK)
        .map(|e| e.data["operation"].as_str().unwrap())
        .collect();
    assert_eq!(operations, ["restore", "undo", "undo"]);
}

#[tokio::test]
async fn the_undo_of_a_run_keeps_what_somebody_edited_since_and_names_it() {
    let host = Host::new();
    host.write("a", "one\n");
    host.write("b", "one\n");
    let (_engine, session) = host.session().await;
    let options = || RunOptions::new("x").workspace(host.workspace());
    let run = session
        .execute_run(options(), writes("a", "run\n"))
        .await
        .unwrap();
    session
        .execute_run(options(), ruins("b", "run\n"))
        .await
        .unwrap();
    host.write("b", "mine\n");

    let undone = session
        .undo(&host.workspace(), UndoTarget::Latest)
        .await
        .unwrap();
    assert_eq!(undone.restore.status, RestoreStatus::Completed);
    assert_eq!(undone.restore.skipped[0].path, path("b"));
    assert_eq!(host.read("b").as_deref(), Some("mine\n"), "kept");

    let target = UndoTarget::Run(run.run_id.to_string());
    let undone = session.undo(&host.workspace(), target).await.unwrap();
    assert_eq!(undone.undone.run_id.as_ref(), Some(&run.run_id));
    assert_eq!(host.read("a").as_deref(), Some("one\n"));
    assert_eq!(host.read("b").as_deref(), Some("mine\n"));
    let document = serde_json::to_value(&undone).unwrap();
    assert_eq!(document["undone"]["operation"], "run");
    assert_eq!(document["restored"][0], "a");
}

#[tokio::test]
async fn there_is_nothing_to_undo_where_nothing_was_done() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    snapshot(&session, &host).await;
    let nothing = session.undo(&host.workspace(), UndoTarget::Latest).await;
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::NotFound);
    let unknown = UndoTarget::Run("run_0000".to_owned());
    let nothing = session.undo(&host.workspace(), unknown).await;
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::NotFound);

    let elsewhere = Host::new();
    let options = RunOptions::new("x").workspace(elsewhere.workspace());
    let run = session
        .execute_run(options, writes("a", "x\n"))
        .await
        .unwrap();
    let there = UndoTarget::Run(run.run_id.to_string());
    let refused = session.undo(&host.workspace(), there).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    assert_eq!(elsewhere.read("a").as_deref(), Some("x\n"));
    assert_eq!(count(&engine, &host).await, 1, "no guard was taken");
}

#[tokio::test]
async fn a_plan_that_is_out_of_date_is_refused_and_nothing_is_touched() {
    let host = Host::new();
    host.write("a", "one\n");
    let (_engine, session) = host.session().await;
    let first = snapshot(&session, &host).await;
    host.write("a", "two\n");
    let request = RestoreRequest::to(&first);
    let plan = session
        .plan_restore(&host.workspace(), request.clone())
        .await
        .unwrap();
    host.write("a", "three\n");
    let stale = request.clone().expected_plan(plan.id);
    let refused = session.restore(&host.workspace(), stale).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(!refused.touched());
    assert_eq!(host.read("a").as_deref(), Some("three\n"));

    let plan = session
        .plan_restore(&host.workspace(), request.clone())
        .await
        .unwrap();
    let fresh = request.expected_plan(plan.id.clone());
    let done = session.restore(&host.workspace(), fresh).await.unwrap();
    assert_eq!(done.plan_id, Some(plan.id));
    assert_eq!(host.read("a").as_deref(), Some("one\n"));
}

#[tokio::test]
async fn only_the_paths_that_are_named_are_put_back() {
    let host = Host::new();
    host.write("a", "one\n");
    host.write("b", "one\n");
    let (_engine, session) = host.session().await;
    let first = snapshot(&session, &host).await;
    host.write("a", "two\n");
    host.write("b", "two\n");
    let request = |name| RestoreRequest::to(&first).paths(vec![path(name)]);
    session
        .restore(&host.workspace(), request("b"))
        .await
        .unwrap();
    assert_eq!(host.read("a").as_deref(), Some("two\n"));
    assert_eq!(host.read("b").as_deref(), Some("one\n"));
    let unknown = session.restore(&host.workspace(), request("c")).await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_snapshot_is_found_by_the_beginning_of_its_id_and_never_by_less() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let one = snapshot(&session, &host).await;
    let digits = one.id.as_str().strip_prefix("snap_").unwrap();
    for text in [
        one.id.as_str(),
        digits,
        &digits[..12],
        &digits[..1],
        &one.id.as_str()[..17],
    ] {
        assert_eq!(engine.find_snapshot(text).await.unwrap(), one, "{text}");
    }
    for text in ["zzzz", "../x", "snap_%%%%", &"0".repeat(33)] {
        let unknown = engine.find_snapshot(text).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "{text}");
    }
    for text in ["", "snap_", "sn"] {
        let too_short = engine.find_snapshot(text).await.unwrap_err();
        assert_eq!(too_short.kind(), ErrorKind::InvalidOptions, "{text}");
    }
}

#[tokio::test]
async fn a_snapshot_of_another_workspace_is_refused_by_name() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let elsewhere = Host::new();
    elsewhere.write("a", "theirs\n");
    let theirs = session
        .snapshot(&elsewhere.workspace(), Label::MANUAL)
        .await
        .unwrap();
    host.write("a", "ours\n");
    let request = RestoreRequest::to(theirs.id.as_str());
    let refused = session
        .restore(&host.workspace(), request)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    assert!(
        refused
            .to_string()
            .contains(elsewhere.path().to_str().unwrap()),
        "{refused}"
    );
    assert_eq!(host.read("a").as_deref(), Some("ours\n"));
}

#[tokio::test]
async fn two_snapshots_are_compared_either_way_and_one_with_the_present() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let one = snapshot(&session, &host).await;
    host.write("a", "new\n");
    let two = snapshot(&session, &host).await;
    let there = DiffRequest::between(&one, &two);
    let outcome = session.diff(&host.workspace(), there).await.unwrap();
    assert_eq!(outcome.diff.added, [path("a")]);
    assert!(outcome.patch.is_none(), "none was asked for");
    let back = DiffRequest::between(&two, &one);
    let outcome = session.diff(&host.workspace(), back).await.unwrap();
    assert_eq!(outcome.diff.deleted, [path("a")]);

    host.write("b", "newer\n");
    let since = DiffRequest::since(&two).options(DiffOptions::with_patch());
    let outcome = session.diff(&host.workspace(), since).await.unwrap();
    assert_eq!(outcome.diff.added, [path("b")]);
    let mut patch = String::new();
    outcome.patch.unwrap().read_to_string(&mut patch).unwrap();
    assert!(patch.contains("+newer"), "{patch}");
    let from_now = DiffRequest::between("now", &one);
    let outcome = session.diff(&host.workspace(), from_now).await.unwrap();
    assert_eq!(outcome.diff.deleted, [path("a"), path("b")]);

    assert_eq!(count(&engine, &host).await, 2, "the present was not kept");
    assert!(engine.verify(&host.workspace()).await.unwrap().is_sound());
    assert_eq!(count(&engine, &host).await, 2, "nor was it adopted");
}

// An empty file, which is the patch of no change
#[tokio::test]
async fn a_patch_that_no_backend_can_make_is_none_and_says_why() {
    let host = Host::new();
    let options = EngineOptions::default().state_dir(host.state());
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("of-hashes").await.unwrap();
    let workspace = WorkspaceOptions::at(host.path());
    host.write("a", "1\n");
    let taken = session.snapshot(&workspace, Label::MANUAL).await.unwrap();
    assert_eq!(taken.backend, BackendKind::Hash);
    let since = || DiffRequest::since(&taken).options(DiffOptions::with_patch());
    let same = session.diff(&workspace, since()).await.unwrap();
    let mut patch = String::new();
    same.patch.unwrap().read_to_string(&mut patch).unwrap();
    assert_eq!((patch.as_str(), same.diff.no_patch), ("", None));

    host.write("a", "2\n");
    let changed = session.diff(&workspace, since()).await.unwrap();
    assert!(changed.patch.is_none());
    let why = changed.diff.no_patch.unwrap();
    assert!(why.contains("does not compare lines"), "{why}");
    assert_eq!(changed.diff.modified, [path("a")]);
    let unasked = session
        .diff(&workspace, DiffRequest::since(&taken))
        .await
        .unwrap();
    assert_eq!(unasked.diff.no_patch, None);
}

#[tokio::test]
async fn a_label_comes_back_as_it_was_given_and_now_is_taken() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let text = "before the \u{1f980} \"big\" refactoring";
    let taken = session
        .snapshot(&host.workspace(), Label::new(text))
        .await
        .unwrap();
    let found = engine.find_snapshot(taken.id.as_str()).await.unwrap();
    assert_eq!(found.label.as_str(), text);
    for bad in ["now", "", &"x".repeat(1001)] {
        let refused = session.snapshot(&host.workspace(), Label::new(bad)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidOptions);
    }
}

#[tokio::test]
async fn a_restore_that_fails_says_whether_files_were_touched() {
    let host = Host::new();
    host.write("a", "one\n");
    let (engine, session) = host.session().await;
    let first = snapshot(&session, &host).await;
    host.write("a", "two\n");
    let request = || RestoreRequest::to(&first);
    host.backend.fail("closing");
    let failed = session
        .restore(&host.workspace(), request())
        .await
        .unwrap_err();
    assert!(failed.touched(), "{failed}");
    assert_eq!(host.read("a").as_deref(), Some("one\n"));
    let snapshots = engine.snapshots(&host.workspace()).await.unwrap();
    let guard = snapshots.iter().find(|s| s.label == Label::GUARD);
    assert!(guard.is_some(), "what was there is on record");

    host.backend.fail("guard");
    host.write("a", "three\n");
    let refused = session
        .restore(&host.workspace(), request())
        .await
        .unwrap_err();
    assert!(!refused.touched(), "the guard comes first");
    assert_eq!(host.read("a").as_deref(), Some("three\n"));
    assert_eq!(count(&engine, &host).await, snapshots.len());
}

#[tokio::test]
async fn why_is_asked_of_the_present_and_of_a_snapshot() {
    let host = Host::new();
    host.write("a", "one\n");
    let (engine, session) = host.session().await;
    let first = snapshot(&session, &host).await;
    host.write("b", "two\n");
    let workspace = WorkspaceOptions::at(host.path());
    let ask = |name, snapshot: Option<String>| {
        let (engine, workspace) = (engine.clone(), workspace.clone());
        async move {
            let why = engine
                .why(&workspace, path(name), snapshot.as_deref())
                .await;
            why.unwrap().captured
        }
    };
    assert!(ask("b", None).await);
    assert!(!ask("b", Some(first.id.to_string())).await);
    assert!(ask("a", Some(first.id.to_string())).await);
}

#[tokio::test]
async fn a_restore_waits_for_a_run_that_is_at_work() {
    let host = Host::impatient();
    host.write("a", "one\n");
    let (_engine, session) = host.session().await;
    let first = snapshot(&session, &host).await;
    let inner = session.clone();
    let workspace = host.workspace();
    let request = RestoreRequest::to(&first);
    let work = crate::support::Work(move |_| {
        let (session, workspace, request) = (inner.clone(), workspace.clone(), request.clone());
        async move {
            let busy = session.restore(&workspace, request).await.unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy);
            assert!(busy.to_string().contains("run run_"), "{busy}");
            let busy = session
                .undo(&workspace, UndoTarget::Latest)
                .await
                .unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy);
            Ok(stillframe::AdapterOutput::empty())
        }
    });
    let options = RunOptions::new("x").workspace(host.workspace());
    let outcome = session.execute_run(options, work).await.unwrap();
    assert_eq!(outcome.run.error, None);
}
