//! Sessions as the command lists and shows them, with what their hosts say of them.

use serde_json::json;
use stillframe::records::SessionDetails;
use stillframe::{Engine, EngineOptions};
use stillframe_tests::TestWorkspace;

#[test]
fn sessions_are_listed_by_what_their_hosts_say_of_them_and_shown_with_their_runs() {
    let ws = TestWorkspace::plain();
    assert_eq!(ws.json(["sessions"]), json!([]));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = EngineOptions::default().state_dir(ws.state());
        let engine = Engine::start(options).await.unwrap();
        engine.session("epic").await.unwrap();
        let metadata = json!({"ticket": 42}).as_object().unwrap().clone();
        let details = SessionDetails::default()
            .agent_id("reviewer")
            .tag("urgent")
            .tag("docs");
        let details = details
            .metadata(metadata)
            .parent_id("epic".parse().unwrap());
        engine.session_with("ticket-42", details).await.unwrap();
        engine.shutdown().await.unwrap();
    });
    let run = ws.run(["--session", "ticket-42"], "true").ok().json();

    let listed = |options: &[&str]| -> Vec<String> {
        let listed = ws.json(["sessions"].iter().chain(options).copied());
        let ids = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|session| session["id"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    };
    assert_eq!(listed(&[]), ["ticket-42", "epic"]);
    assert_eq!(listed(&["--limit", "1"]), ["ticket-42"]);
    assert_eq!(listed(&["--tag", "urgent", "--tag", "docs"]), ["ticket-42"]);
    assert_eq!(listed(&["--tag", "urgent", "--tag", "other"]), [""; 0]);
    assert_eq!(
        listed(&["--agent", "reviewer", "--status", "active"]),
        ["ticket-42"]
    );
    assert_eq!(listed(&["--parent", "epic"]), ["ticket-42"]);
    assert_eq!(
        listed(&["--status", "failed", "--status", "completed"]),
        [""; 0]
    );
    ws.stillframe(["sessions", "--status", "asleep"]).exits(2);
    let text = ws.stillframe(["sessions"]).ok().stdout_text();
    assert!(text.contains("reviewer #docs #urgent"), "{text}");

    let shown = ws.show("ticket-42");
    assert_eq!(shown["metadata"], json!({"ticket": 42}));
    assert_eq!(
        (&shown["parent_id"], &shown["queued"]),
        (&json!("epic"), &json!(0))
    );
    assert_eq!(shown["runs"][0]["run_id"], run["run_id"]);
    let text = ws.stillframe(["show", "ticket-42"]).ok().stdout_text();
    for said in ["docs, urgent", "reviewer", run["run_id"].as_str().unwrap()] {
        assert!(text.contains(said), "{text}");
    }
    let message = ws.try_json(["show", "ticket-43"]).refused("NotFound");
    assert!(message.contains("session"), "{message}");
}
