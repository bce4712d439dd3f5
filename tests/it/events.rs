//! The durable log, as `stillframe events` shows it.

use std::collections::BTreeSet;

use serde_json::Value;
use stillframe::events::{EventDraft, EventType};
use stillframe_tests::{TestWorkspace, json};

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|e| e["type"].as_str().unwrap()).collect()
}

fn of_type<'a>(events: &'a [Value], wanted: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["type"] == wanted).collect()
}

#[test]
fn a_run_writes_two_snapshots_and_one_diff() {
    let ws = TestWorkspace::repository();
    let run = ws.run(["--session", "s"], "echo x > new").ok().json();
    let events = ws.events(["--session", "s"]);
    for event in &events {
        assert_eq!(
            json::keys(event),
            [
                "correlation_id",
                "data",
                "data_ref",
                "id",
                "metadata",
                "position",
                "provider",
                "run_id",
                "schema_version",
                "sequence",
                "session_id",
                "source",
                "timestamp",
                "type"
            ]
        );
        assert_eq!(event["schema_version"], 1);
        assert_eq!(event["source"], "engine");
        assert_eq!(event["session_id"], "s");
        let at = event["timestamp"].as_str().unwrap();
        at.parse::<jiff::Timestamp>().expect("RFC 3339");
        assert!(at.ends_with('Z'), "{at}");
    }
    let snapshots = of_type(&events, "workspace_snapshot_taken");
    assert_eq!(snapshots.len(), 2, "{:?}", types(&events));
    for (event, (label, document)) in snapshots
        .iter()
        .zip([("before", "before_snapshot"), ("after", "after_snapshot")])
    {
        assert_eq!(event["data"]["label"], label);
        assert_eq!(event["data"]["backend"], "git");
        assert_eq!(event["data"]["ref"], run["workspace"][document]["ref"]);
        assert_eq!(event["run_id"], run["run_id"]);
    }
    let diffs = of_type(&events, "workspace_diff_computed");
    assert_eq!(diffs.len(), 1);
    let data = &diffs[0]["data"];
    assert_eq!(data["files_changed"], 1);
    assert_eq!(data["insertions"], 1);
    assert_eq!(data["deletions"], 0);
    assert_eq!(data["has_patch"], true);
    assert!(of_type(&events, "workspace_rolled_back").is_empty());
    let order: Vec<&str> = types(&events)
        .into_iter()
        .filter(|t| t.starts_with("run_") || t.starts_with("workspace_"))
        .collect();
    assert_eq!(order.last(), Some(&"run_completed"), "{order:?}");
    assert!(order.contains(&"run_started"), "{order:?}");
}

#[test]
fn a_rollback_is_an_event_that_names_its_guard() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    let script = "echo x > README; echo x > a.log; exit 1";
    let run = ws
        .run(["--session", "s", "--rollback-on-failure"], script)
        .exits(1)
        .json();
    let events = ws.events(["--session", "s"]);
    let rolled_back = of_type(&events, "workspace_rolled_back");
    assert_eq!(rolled_back.len(), 1, "{:?}", types(&events));
    let data = &rolled_back[0]["data"];
    assert_eq!(
        data["guard"], run["workspace"]["rollback"]["guard_snapshot"],
        "{data}"
    );
    assert_eq!(json::names(&data["leftover_ignored"]), ["a.log"]);
    let to = data["to"].as_str().unwrap();
    let before = &run["workspace"]["before_snapshot"];
    assert!(
        before["id"] == to || before["ref"] == to,
        "{data} leads to {before}"
    );
    assert_eq!(
        of_type(&events, "workspace_snapshot_taken").len(),
        2,
        "a guard has no event"
    );
    let labels: Vec<&Value> = of_type(&events, "workspace_snapshot_taken")
        .iter()
        .map(|e| &e["data"]["label"])
        .collect();
    assert_eq!(labels, ["before", "after_failure"]);
    assert_eq!(of_type(&events, "run_failed").len(), 1);
}

#[test]
fn two_snapshots_without_a_change_are_two_events_in_a_row() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    ws.snapshot();
    let events = ws.events::<&str>([]);
    let snapshots = of_type(&events, "workspace_snapshot_taken");
    assert_eq!(snapshots.len(), 2, "{:?}", types(&events));
    assert_eq!(snapshots[0]["session_id"], snapshots[1]["session_id"]);
    let [a, b] = [snapshots[0], snapshots[1]].map(|e| e["sequence"].as_u64().unwrap());
    assert_eq!(b, a + 1, "consecutive");
}

// Numbers start at 1 in each session
#[test]
fn sequence_numbers_start_at_one_in_each_session_and_have_no_gap() {
    let ws = TestWorkspace::repository();
    for session in ["a", "b", "a"] {
        ws.run(["--session", session], "true").ok();
    }
    for session in ["a", "b"] {
        let events = ws.events(["--session", session]);
        let numbers: Vec<u64> = events
            .iter()
            .map(|e| e["sequence"].as_u64().unwrap())
            .collect();
        let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, expected, "{session}");
        let ids: BTreeSet<&str> = events.iter().map(|e| e["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), events.len(), "ids are unique");
    }
    assert!(ws.events(["--session", "a"]).len() > ws.events(["--session", "b"]).len());
}

#[test]
fn a_session_that_has_never_been_there_has_no_log() {
    let ws = TestWorkspace::repository();
    ws.run(["--session", "s"], "true").ok();
    for args in [
        &["events", "--session", "nosuch"][..],
        &["events", "--session", "nosuch", "--after", "1"],
    ] {
        let message = ws.try_json(args).exits(1).refused("NotFound");
        assert!(message.contains("nosuch"), "{message}");
        let people = ws.stillframe(args).exits(1);
        assert!(people.stderr_text().contains("nosuch"), "{people}");
    }
}

// `--after` counts within a session, so it needs one
#[test]
fn a_reader_goes_on_where_it_stopped() {
    let ws = TestWorkspace::repository();
    ws.run(["--session", "s"], "true").ok();
    let all = ws.events(["--session", "s"]);
    let half = (all.len() / 2).to_string();
    let rest = ws.events(["--session", "s", "--after", &half]);
    assert_eq!(rest, all[all.len() / 2..]);
    let none = ws.events(["--session", "s", "--after", &all.len().to_string()]);
    assert!(none.is_empty());
    let without_session = ws.try_json(["events", "--after", "1"]);
    assert_ne!(without_session.code, 0, "{without_session}");
}

// A position counts in all sessions, so that one reader of all of them goes on there
#[test]
fn a_reader_of_all_sessions_goes_on_at_a_position() {
    let ws = TestWorkspace::repository();
    for session in ["a", "b", "a"] {
        ws.run(["--session", session], "true").ok();
    }
    let all = ws.events::<&str>([]);
    let positions: Vec<u64> = all
        .iter()
        .map(|e| e["position"].as_u64().unwrap())
        .collect();
    assert!(positions.windows(2).all(|w| w[0] < w[1]), "{positions:?}");
    for at in [0, all.len() / 2, all.len() - 1] {
        let position = positions[at].to_string();
        assert_eq!(
            ws.events(["--from", &position]),
            all[at + 1..],
            "{position}"
        );
        let of_session: Vec<&Value> = all[at + 1..]
            .iter()
            .filter(|e| e["session_id"] == "b")
            .collect();
        let found = ws.events(["--from", &position, "--session", "b"]);
        assert_eq!(found.iter().collect::<Vec<_>>(), of_session);
    }
    assert_eq!(ws.events(["--from", "0"]), all);
    assert_eq!(ws.events(["--limit", "3"]), all[..3]);
    let last = positions.last().unwrap();
    let future = (last + 1).to_string();
    let refused = ws.try_json(["events", "--from", &future]);
    let message = refused.exits(1).refused("InvalidOptions");
    assert!(
        message.contains(&future) && message.contains(&last.to_string()),
        "{message}"
    );
}

#[test]
fn events_are_chosen_by_run_types_and_time() {
    let ws = TestWorkspace::repository();
    let run = ws.run(["--session", "s"], "true").ok().json();
    ws.run(["--session", "s"], "exit 3").exits(3);
    let all = ws.events::<&str>([]);
    let id = run["run_id"].as_str().unwrap();
    let of_run: Vec<Value> = all.iter().filter(|e| e["run_id"] == id).cloned().collect();
    assert!(of_run.len() > 3, "{:?}", types(&all));
    assert_eq!(ws.events(["--run", &id[..12]]), of_run);
    let ends = ws.events(["--type", "run_failed", "--type", "run_completed"]);
    assert_eq!(types(&ends), ["run_completed", "run_failed"]);
    let ends = ws.events(["--type", "run_failed", "--run", id]);
    assert!(ends.is_empty(), "{:?}", types(&ends));
    assert_eq!(ws.events(["--since", "1h"]), all);
    assert!(ws.events(["--since", "2999-01-01T00:00:00Z"]).is_empty());
    ws.try_json(["events", "--run", "run_ffff"])
        .exits(1)
        .refused("NotFound");
    ws.stillframe(["events", "--type", "No Type"]).exits(2);
}

#[test]
fn a_log_of_many_pages_is_printed_whole() {
    let ws = TestWorkspace::repository();
    let state = ws.state().to_owned();
    ws.snapshot();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = stillframe::EngineOptions::default().state_dir(&state);
        let engine = stillframe::Engine::start(options).await.unwrap();
        let session = engine.session("many").await.unwrap();
        let draft = |number: u64| {
            let data = serde_json::json!({ "number": number });
            EventDraft::new(EventType::MESSAGE_SENT, data)
        };
        for batch in 0..3 {
            let drafts = (0..1_000).map(|n| draft(batch * 1_000 + n)).collect();
            session.emit_batch(drafts).await.unwrap();
        }
        engine.shutdown().await.unwrap();
    });
    let sent = ws.events(["--session", "many", "--type", "message_sent"]);
    let numbers: Vec<u64> = sent
        .iter()
        .map(|e| e["data"]["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..3_000).collect::<Vec<_>>());
    assert!(sent.iter().all(|e| e["source"] == "host"));
    assert_eq!(
        ws.events(["--session", "many", "--limit", "1500"]).len(),
        1_500
    );
}

#[test]
fn the_log_is_the_same_however_often_it_is_read() {
    let ws = TestWorkspace::repository();
    ws.run(["--session", "s"], "echo x > a").ok();
    let first = ws.events(["--session", "s"]);
    assert!(!first.is_empty(), "a run is in the log");
    assert_eq!(ws.events(["--session", "s"]), first);
    let all = ws.events::<&str>([]);
    for event in &first {
        assert!(
            all.contains(event),
            "without --session, events of all sessions are shown"
        );
    }
}

#[test]
fn a_follower_sees_what_comes() {
    let ws = TestWorkspace::repository();
    ws.run(["--session", "s"], "true").ok();
    let known = ws.events(["--session", "s"]).len();
    assert!(known > 0, "a run is in the log");
    let call = ws.call(["--json", "events", "--session", "s", "--follow"]);
    let mut follower = call.start();
    follower.until("what is there is shown", |f| {
        f.stdout_so_far().lines().count() >= known
    });
    ws.run(["--session", "s"], "echo x > new").ok();
    let total = ws.events(["--session", "s"]).len();
    follower.until("what came is shown", |f| {
        f.stdout_so_far().lines().count() >= total
    });
    let numbers: Vec<u64> = follower
        .stdout_so_far()
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["sequence"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(numbers, (1..=total as u64).collect::<Vec<_>>());
    follower.kill();
}

#[test]
fn events_tell_of_start_outcome_and_counts_and_of_no_content() {
    let ws = TestWorkspace::repository();
    ws.write("secret", "canary-content-before\n");
    ws.run(
        ["--session", "s"],
        "echo canary-content-after > secret; echo canary-output",
    )
    .ok();
    let events = ws.events(["--session", "s"]);
    let all = serde_json::to_string(&events).unwrap();
    assert!(!all.contains("canary-content"), "{all}");
    let types: BTreeSet<&str> = types(&events).into_iter().collect();
    for wanted in [
        "session_created",
        "run_started",
        "workspace_snapshot_taken",
        "workspace_diff_computed",
        "run_completed",
    ] {
        assert!(types.contains(wanted), "{wanted} is in {types:?}");
    }
}

#[test]
fn restores_and_undos_are_in_the_log() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    let before = ws.events::<&str>([]).len();
    ws.restore(&snapshot);
    let after_restore = ws.events::<&str>([]).len();
    assert!(after_restore > before, "a restore is an event");
    ws.undo();
    assert!(
        ws.events::<&str>([]).len() > after_restore,
        "an undo is an event"
    );
}

#[test]
fn an_unknown_session_has_no_events_or_is_not_found() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let output = ws.try_json(["events", "--session", "nobody"]);
    match output.code {
        0 => assert!(output.stdout.is_empty(), "{output}"),
        _ => drop(output.refused("NotFound")),
    }
}

#[test]
fn a_session_id_is_letters_digits_and_three_signs() {
    let ws = TestWorkspace::repository();
    let long = "x".repeat(201);
    for id in [
        "",
        "-dash",
        ".hidden",
        "_x",
        "a/b",
        "a b",
        "a\nb",
        "ünïcode",
        "a..b/../c",
        "@{-1}",
        "~",
        "a:b",
        "\u{202e}",
        "*",
        &long,
    ] {
        let mark = ws.outside().join("ran");
        let option = format!("--session={id}");
        let output = ws.run([&option], &format!("touch '{}'", mark.display()));
        assert!([2, 125].contains(&output.code), "{id:?}: {output}");
        assert!(!mark.exists(), "{id:?}: the command was not run");
    }
    for id in [
        "a",
        "7",
        "A.b_c-d",
        "x..y",
        "a.lock",
        "HEAD",
        &"x".repeat(200),
    ] {
        ws.run(["--session", id], "true").ok();
    }
}
