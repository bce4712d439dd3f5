//! A workspace that is watched from one snapshot of a session to the next.

use serde_json::json;
use stillframe::{Label, RunOptions, Search, WalkReason};

use crate::support::{Host, all, writes};

#[tokio::test]
async fn what_is_asked_for_is_kept_with_the_run_and_told_with_its_snapshots() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let options = RunOptions::new("x").workspace(host.workspace().watch(true));
    let outcome = session
        .execute_run(options, writes("new", "1"))
        .await
        .unwrap();
    let document = outcome.document();
    let workspace = document.workspace.unwrap();
    let before = workspace.before_snapshot.unwrap();
    assert_eq!(
        before.metadata.search,
        Search::Walked {
            because: Some(WalkReason::NoJournal)
        }
    );
    let events = all(&engine, &session).await;
    let told: Vec<_> = events
        .iter()
        .filter(|event| event.event_type.as_str() == "workspace_snapshot_taken")
        .map(|event| event.data["search"].clone())
        .collect();
    assert_eq!(told[0], json!({"how": "walked", "because": "no_journal"}));
    assert_eq!(told.len(), 2);

    let options = RunOptions::new("y").workspace(host.workspace());
    session
        .execute_run(options, writes("other", "1"))
        .await
        .unwrap();
    let events = all(&engine, &session).await;
    let taken = events
        .iter()
        .rfind(|event| event.event_type.as_str() == "workspace_snapshot_taken");
    assert_eq!(taken.unwrap().data.get("search"), None, "nobody asked");
}

#[tokio::test]
async fn a_session_watches_on_from_run_to_run_until_it_ends() {
    let host = Host::new();
    let (engine, session) = host.session().await;
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
    let walked = Search::Walked {
        because: Some(WalkReason::NoJournal),
    };
    assert_eq!(searches[0], walked);
    for search in &searches[1..] {
        assert!(matches!(search, Search::Watched { .. }), "{searches:?}");
    }

    session.complete("").await.unwrap();
    let next = engine.new_session().await.unwrap();
    let after = next.snapshot(&workspace(), Label::MANUAL).await.unwrap();
    assert_eq!(after.metadata.search, walked, "it was let go of");
}
