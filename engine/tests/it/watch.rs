//! A workspace that is watched from one snapshot of a session to the next.

use serde_json::json;
use stillframe::backends::{Label, Search, WalkReason};
use stillframe::{Engine, EngineOptions, RunOptions};

use crate::support::{Host, all, ruins, writes};

/// An engine with the backends of its own, which can watch.
async fn engine(host: &Host) -> Engine {
    let options = EngineOptions::default().state_dir(host.state());
    Engine::start(options).await.unwrap()
}

fn walked() -> Search {
    Search::Walked {
        because: Some(WalkReason::NoJournal),
    }
}

#[tokio::test]
async fn every_capture_around_a_watched_run_is_asked_to_watch_and_no_other() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let watched = || std::mem::take(&mut *host.backend.watched.lock().unwrap());
    let options = RunOptions::new("x").workspace(host.workspace().watch(true));
    session
        .execute_run(options, writes("new", "1"))
        .await
        .unwrap();
    assert_eq!(watched(), ["before", "after"]);
    let workspace = host.workspace().watch(true).rollback_on_failure(true);
    let options = RunOptions::new("y").workspace(workspace);
    session
        .execute_run(options, ruins("new", "2"))
        .await
        .unwrap();
    assert_eq!(watched()[..2], ["before", "after_failure"]);
    let workspace = host.workspace().watch(true);
    session
        .snapshot(&workspace, Label::new("by hand"))
        .await
        .unwrap();
    assert_eq!(watched(), ["by hand"]);
    let options = RunOptions::new("z").workspace(host.workspace());
    session
        .execute_run(options, writes("new", "3"))
        .await
        .unwrap();
    assert!(watched().is_empty());
}

#[tokio::test]
async fn how_a_watched_capture_searched_is_told_with_it() {
    let host = Host::new();
    let engine = engine(&host).await;
    let session = engine.session("s").await.unwrap();
    let told = async || {
        let events = all(&engine, &session).await;
        let taken = events
            .iter()
            .rfind(|event| event.event_type.as_str() == "workspace_snapshot_taken");
        taken.unwrap().data.get("search").cloned()
    };
    session
        .snapshot(&host.workspace(), Label::MANUAL)
        .await
        .unwrap();
    assert_eq!(told().await, None, "nobody asked");
    let workspace = host.workspace().watch(true);
    let first = session.snapshot(&workspace, Label::MANUAL).await.unwrap();
    assert_eq!(first.metadata.search, walked());
    assert_eq!(
        told().await,
        Some(json!({"how": "walked", "because": "no_journal"}))
    );
}

#[tokio::test]
async fn a_session_watches_on_from_run_to_run_until_it_ends() {
    let host = Host::new();
    let engine = engine(&host).await;
    let session = engine.session("s").await.unwrap();
    let workspace = || host.workspace().watch(true);
    let mut searches = Vec::new();
    for name in ["one", "two"] {
        let options = RunOptions::new(name).workspace(workspace());
        let outcome = session
            .execute_run(options, writes(name, "1"))
            .await
            .unwrap();
        let taken = outcome.document().workspace.unwrap();
        searches.push(taken.before_snapshot.unwrap().metadata.search);
        searches.push(taken.after_snapshot.unwrap().metadata.search);
        assert_eq!(taken.diff.unwrap().added.len(), 1, "{name}");
    }
    let by_hand = session.snapshot(&workspace(), Label::MANUAL).await.unwrap();
    searches.push(by_hand.metadata.search);
    assert_eq!(searches[0], walked());
    for search in &searches[1..] {
        assert!(matches!(search, Search::Watched { .. }), "{searches:?}");
    }

    session.complete("").await.unwrap();
    let next = engine.new_session().await.unwrap();
    let after = next.snapshot(&workspace(), Label::MANUAL).await.unwrap();
    assert_eq!(after.metadata.search, walked(), "it was let go of");
}
