//! Verifying, retention and quota.

use std::fs;
use std::time::Duration;

use stillframe::backends::{Backend as _, Label, Operation, PurgeTarget, StateDir, Workspace};
use stillframe::options::GcOptions;
use stillframe::{
    Engine, EngineOptions, ErrorKind, RestoreRequest, RunContext, RunOptions, SessionManager,
    Snapshot,
};

use crate::support::{DISK, Host, NO_ANSWER, RECORD, RECORD_OF_NOBODY, Work, writes};

async fn snapshots(session: &SessionManager, host: &Host, count: u32) -> Vec<Snapshot> {
    let mut taken = Vec::new();
    for number in 0..count {
        host.write("file", &format!("{number}").repeat(100));
        taken.push(
            session
                .snapshot(&host.workspace(), Label::MANUAL)
                .await
                .unwrap(),
        );
    }
    taken
}

async fn left(engine: &Engine, host: &Host) -> Vec<Snapshot> {
    engine.snapshots(&host.workspace()).await.unwrap()
}

#[tokio::test]
async fn retention_keeps_so_many_and_never_takes_the_newest() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let mut taken = snapshots(&session, &host, 5).await;
    taken.reverse();
    let gone = engine
        .gc(&host.workspace(), GcOptions::default().keep(3))
        .await
        .unwrap();
    assert_eq!(
        gone.forgotten,
        [taken[4].id.clone(), taken[3].id.clone()],
        "oldest first"
    );
    assert!(gone.freed_bytes > 0);
    assert_eq!(gone.kept, 3);
    assert_eq!(left(&engine, &host).await, taken[..3]);
    engine
        .gc(&host.workspace(), GcOptions::default().keep(0))
        .await
        .unwrap();
    assert_eq!(left(&engine, &host).await, taken[..1]);
    let forgotten = engine
        .find_snapshot(taken[1].id.as_str())
        .await
        .unwrap_err();
    assert_eq!(forgotten.kind(), ErrorKind::NotFound);
    let nothing = engine
        .gc(&host.workspace(), GcOptions::default())
        .await
        .unwrap();
    assert!(nothing.forgotten.is_empty());
}

#[tokio::test]
async fn retention_by_age_counts_from_the_capture() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let taken = snapshots(&session, &host, 3).await;
    let age = taken[2].captured_at.duration_since(taken[1].captured_at);
    let young = GcOptions::default().older_than(Duration::from_secs(3600));
    assert!(
        engine
            .gc(&host.workspace(), young)
            .await
            .unwrap()
            .forgotten
            .is_empty()
    );
    assert!(age.is_positive(), "the clock ticks");
    let old = GcOptions::default().older_than(Duration::ZERO);
    engine.gc(&host.workspace(), old).await.unwrap();
    assert_eq!(left(&engine, &host).await, taken[2..]);
}

#[tokio::test]
async fn a_quota_forgets_the_oldest_until_it_fits_and_keeps_the_newest_whatever_it_is() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let taken = snapshots(&session, &host, 4).await;
    let all = engine
        .gc(&host.workspace(), GcOptions::default())
        .await
        .unwrap();
    let quota = GcOptions::default().max_bytes(all.used_bytes - 1);
    let gone = engine.gc(&host.workspace(), quota).await.unwrap();
    assert_eq!(gone.forgotten, [taken[0].id.clone()], "one is enough");
    assert!(gone.used_bytes < all.used_bytes);

    let quota = GcOptions::default().max_bytes(1);
    let over = engine.gc(&host.workspace(), quota).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::LimitExceeded);
    assert_eq!(left(&engine, &host).await, taken[3..], "the newest is kept");
    assert!(engine.verify(&host.workspace()).await.unwrap().is_sound());
}

#[tokio::test]
async fn the_patch_of_a_run_outlives_its_snapshots_until_a_quota_wants_its_place() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let workspace = host.workspace().offload_patches(true);
    let options = RunOptions::new("x").workspace(workspace);
    let run = session
        .execute_run(options, writes("new", "x\n"))
        .await
        .unwrap();
    let key = run.workspace.diff.unwrap().patch_ref.unwrap();
    let content = Box::new(&b"mine"[..]);
    session
        .put_artifact("mine", "text/plain", content)
        .await
        .unwrap();
    snapshots(&session, &host, 1).await;

    let keep = GcOptions::default().keep(1);
    let gone = engine.gc(&host.workspace(), keep).await.unwrap();
    assert_eq!(gone.forgotten.len(), 2);
    assert!(gone.artifacts_removed.is_empty());
    engine.open_artifact(&key).await.unwrap();

    let quota = GcOptions::default().max_bytes(gone.used_bytes - 1);
    let gone = engine.gc(&host.workspace(), quota).await.unwrap();
    assert_eq!(gone.artifacts_removed, [key]);
    let kept = engine.artifacts(None).await.unwrap();
    assert_eq!(kept.len(), 1, "the host's own stays");
    assert_eq!(kept[0].key, "mine");
}

#[tokio::test]
async fn what_a_run_under_way_names_is_kept() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let (collector, workspace) = (engine.clone(), host.workspace());
    let inner = session.clone();
    let work = Work(move |context: RunContext| {
        let (engine, session) = (collector.clone(), inner.clone());
        let workspace = workspace.clone();
        async move {
            fs::write(context.workspace.unwrap().join("file"), "x\n").unwrap();
            session.snapshot(&workspace, Label::MANUAL).await.unwrap();
            let options = GcOptions::default().keep(0);
            let gone = engine.gc(&workspace, options).await.unwrap();
            assert!(
                gone.forgotten.is_empty(),
                "before is pinned, manual is the newest"
            );
            Ok(stillframe::AdapterOutput::empty())
        }
    });
    let options = RunOptions::new("x").workspace(host.workspace());
    let outcome = session.execute_run(options, work).await.unwrap();
    assert_eq!(outcome.run.error, None);
    assert!(outcome.workspace.diff.is_some());
}

#[tokio::test]
async fn verify_names_a_snapshot_that_lost_its_content() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let taken = snapshots(&session, &host, 2).await;
    let copies = fs::read_dir(host.state().join("workspaces"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path()
        .join("copies");
    fs::remove_file(copies.join(taken[0].id.as_str()).join("content/file")).unwrap();
    let found = engine.verify(&host.workspace()).await.unwrap();
    let bad: Vec<_> = found
        .snapshots
        .iter()
        .filter(|s| !s.problems.is_empty())
        .collect();
    assert_eq!(bad.len(), 1);
    assert_eq!(bad[0].id, taken[0].id);
    fs::remove_dir_all(copies.join(taken[1].id.as_str())).unwrap();
    let found = engine.verify(&host.workspace()).await.unwrap();
    assert!(found.snapshots.iter().all(|s| !s.problems.is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_nobody_uses_is_free_at_once_for_whoever_cannot_wait() {
    let host = Host::new();
    let engine = Engine::start(host.options().lock_timeout(Duration::ZERO))
        .await
        .unwrap();
    let session = engine.session("s").await.unwrap();
    for _ in 0..100 {
        session
            .snapshot(&host.workspace(), Label::MANUAL)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_host_takes_a_leaked_secret_out_of_its_snapshots() {
    let host = Host::new();
    let options = EngineOptions::default().state_dir(host.state());
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    host.write(".env", "KEY=hunter2\n");
    host.write("code", "one\n");
    let taken = session.snapshot(&host.workspace(), Label::MANUAL).await;
    let taken = taken.unwrap();

    let target: PurgeTarget = ".env".parse().unwrap();
    let plan = engine.plan_purge(&host.workspace(), target.clone()).await;
    let plan = plan.unwrap();
    assert_eq!((plan.snapshots.len(), plan.bytes), (1, 12));
    let outcome = engine.purge(&host.workspace(), target.clone()).await;
    let outcome = outcome.unwrap();
    assert!(outcome.is_proven(), "{outcome:?}");
    assert_eq!(outcome.purged.contents[0].paths[0].as_bytes(), b".env");

    host.write("code", "two\n");
    let back = RestoreRequest::to(taken.id.as_str());
    let restored = session.restore(&host.workspace(), back).await.unwrap();
    assert_eq!(restored.skipped.len(), 1, "{restored:?}");
    assert_eq!(host.read("code").unwrap(), "one\n");
    let verified = engine.verify(&host.workspace()).await.unwrap();
    assert!(verified.is_sound());
    assert!(verified.snapshots.iter().all(|s| s.is_restorable()));
    let again = engine.purge(&host.workspace(), target).await.unwrap();
    assert!(again.purged.contents[0].purged);
}

#[tokio::test]
async fn a_backend_of_a_hosts_own_that_cannot_purge_says_so() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    snapshots(&session, &host, 1).await;
    let target: PurgeTarget = "file".parse().unwrap();
    let error = engine.purge(&host.workspace(), target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("nothing was purged"), "{error}");
    assert_eq!(left(&engine, &host).await.len(), 1);
}

#[tokio::test]
async fn nothing_is_forgotten_while_the_disk_fails_for_one_that_may_be_any() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    snapshots(&session, &host, 3).await;
    let all = left(&engine, &host).await;
    host.backend.fail(RECORD_OF_NOBODY);
    for options in [
        GcOptions::default().keep(1),
        GcOptions::default().keep(1).forget_damaged(true),
    ] {
        let refused = engine.gc(&host.workspace(), options).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
        assert!(
            refused.to_string().contains("nothing was forgotten"),
            "{refused}"
        );
        assert_eq!(left(&engine, &host).await, all);
    }
}

// The engine panicked where a backend had an answer too few
#[tokio::test]
async fn what_the_disk_or_the_backend_does_not_tell_of_one_hides_no_other() {
    for (failing, kind) in [
        (DISK, ErrorKind::Storage),
        (NO_ANSWER, ErrorKind::Unsupported),
    ] {
        let host = Host::new();
        let (engine, session) = host.session().await;
        snapshots(&session, &host, 2).await;
        let all = left(&engine, &host).await;
        host.backend.fail(failing);
        let found = engine.verify(&host.workspace()).await.unwrap();
        let problems = |id: &_| {
            let of = found.snapshots.iter().find(|verdict| verdict.id == *id);
            of.unwrap().problems.clone()
        };
        assert_eq!(problems(&all[0].id), [], "{failing}");
        assert_eq!(problems(&all[1].id)[0].kind, Some(kind), "{failing}");
        // That is no reason to give it up.
        let options = GcOptions::default().forget_damaged(true);
        let refused = engine.gc(&host.workspace(), options).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{failing}");
        assert_eq!(left(&engine, &host).await, all, "{failing}");
    }
}

#[tokio::test]
async fn a_backend_of_a_hosts_own_is_asked_where_it_restores() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let taken = snapshots(&session, &host, 1).await;
    engine.check_restore_place(&taken[0]).await.unwrap();
    host.backend.fail("place");
    let refused = engine.check_restore_place(&taken[0]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[tokio::test]
async fn what_cannot_be_read_counts_too() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    snapshots(&session, &host, 3).await;
    let state = StateDir::open(host.state()).unwrap();
    let workspace = Workspace::open(host.workspace().path, &state).unwrap();
    let holdings = || {
        let found = host.backend.holdings(&Operation::unbounded(), &workspace);
        found.unwrap().count()
    };
    assert_eq!(holdings(), 3);
    host.backend.fail(RECORD);
    assert_eq!(holdings(), 3);
}
