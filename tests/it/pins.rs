//! Snapshots that are removed by name, and those that are kept.

use std::fs;

use serde_json::Value;
use stillframe_tests::{Snap, TestWorkspace};

/// The ids of all snapshots, newest first.
fn ids(ws: &TestWorkspace) -> Vec<String> {
    let listed = ws.json(["list"]);
    let all = listed.as_array().expect("a list").iter();
    all.map(|s| Snap::of(s).id().to_owned()).collect()
}

/// Takes so many snapshots of different content.
fn taken(ws: &TestWorkspace, number: usize) -> Vec<Snap> {
    let take = |at: usize| {
        ws.write("file", format!("{at}\n"));
        ws.snapshot()
    };
    (0..number).map(take).collect()
}

#[track_caller]
fn refusal(ws: &TestWorkspace, args: &[&str]) -> (String, String) {
    let error = ws.try_json(args).exits(1).json()["error"].clone();
    assert_eq!(error["touched"], false);
    let text = |key: &str| error[key].as_str().expect("an error has it").to_owned();
    (text("kind"), text("message"))
}

#[test]
fn no_clean_up_takes_what_is_pinned() {
    let ws = TestWorkspace::repository();
    let taken = taken(&ws, 4);
    let (pinned, newest) = (taken[1].id(), taken[3].id());
    let said = ws.json(["snapshot", "pin", pinned]);
    assert_eq!(said, serde_json::json!({"id": pinned, "pinned": true}));
    ws.stillframe(["snapshot", "pin", pinned]).ok();
    assert_eq!(ws.show(pinned)["pinned"], true);
    assert_eq!(ws.show(newest)["pinned"], Value::Null);
    let listed = ws.json(["list"]);
    assert_eq!(listed[2]["pinned"], true);
    let lines = ws.stillframe(["list"]).ok().stdout_text();
    assert!(lines.lines().nth(2).unwrap().ends_with("pinned"), "{lines}");

    ws.json(["gc", "--keep", "1"]);
    assert_eq!(ids(&ws), [newest, pinned]);
    ws.json(["gc", "--older-than", "0s"]);
    let quota = ws.try_json(["gc", "--max-bytes", "1"]).exits(1).json();
    assert_eq!(quota["error"]["kind"], "LimitExceeded");
    assert_eq!(ids(&ws), [newest, pinned]);
    ws.restore(&taken[1]);
    assert_eq!(ws.text("file"), "1\n");

    ws.json(["snapshot", "unpin", pinned]);
    ws.json(["snapshot", "unpin", pinned]);
    ws.json(["gc", "--keep", "1"]);
    assert_eq!(ids(&ws).len(), 1);
    let (kind, _) = refusal(&ws, &["snapshot", "pin", pinned]);
    assert_eq!(kind, "NotFound");
}

#[test]
fn a_pin_is_kept_where_the_snapshot_is_damaged() {
    let mut ws = TestWorkspace::plain();
    ws.damages_the_store();
    ws.write("file", "precious\n");
    let damaged = ws.snapshot_with(["--retain-content"]);
    ws.write("file", "another\n");
    ws.snapshot_with(["--retain-content"]);
    ws.json(["snapshot", "pin", damaged.id()]);
    let digest = blake3::hash(b"precious\n").to_hex();
    let content = walkdir::WalkDir::new(ws.state())
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .find(|path| digest.ends_with(path.file_name().unwrap().to_str().unwrap_or("-")))
        .expect("the content is a file");
    fs::remove_file(content).unwrap();
    let outcome = ws.json(["gc", "--forget-damaged"]);
    assert_eq!(outcome["damaged_pinned"][0], damaged.id(), "{outcome}");
    let told = ws.stillframe(["gc", "--forget-damaged"]).ok().stderr_text();
    assert!(told.contains("snapshot unpin"), "{told}");
    assert!(ids(&ws).contains(&damaged.id().to_owned()));
    ws.json(["snapshot", "unpin", damaged.id()]);
    ws.json(["gc", "--forget-damaged"]);
    assert!(!ids(&ws).contains(&damaged.id().to_owned()));
}

#[test]
fn a_snapshot_goes_by_name_with_its_space_and_only_if_all_can() {
    let ws = TestWorkspace::repository();
    ws.write(
        "large",
        (0..200_000u32)
            .flat_map(u32::to_le_bytes)
            .collect::<Vec<u8>>(),
    );
    let large = ws.snapshot();
    ws.remove("large");
    let taken = taken(&ws, 3);
    ws.json(["snapshot", "pin", taken[0].id()]);
    let (kind, message) = refusal(&ws, &["snapshot", "rm", large.id(), taken[0].id()]);
    assert_eq!(kind, "Conflict");
    assert!(
        message.contains(taken[0].id()) && message.contains("pinned"),
        "{message}"
    );
    assert_eq!(ids(&ws).len(), 4, "none is gone");

    let outcome = ws.json(["snapshot", "rm", large.id(), "latest"]);
    assert_eq!(
        outcome["forgotten"].as_array().unwrap().len(),
        2,
        "{outcome}"
    );
    assert!(
        outcome["freed_bytes"].as_u64().unwrap() > 100_000,
        "{outcome}"
    );
    assert_eq!(ids(&ws), [taken[1].id(), taken[0].id()]);
    let (kind, message) = refusal(&ws, &["show", large.id()]);
    assert_eq!(kind, "NotFound");
    assert!(message.contains("forgotten at"), "{message}");
    let is_by_hand = message.contains("because somebody removed it");
    assert!(is_by_hand, "no clean-up did: {message}");
    ws.json(["verify"]);
}

#[test]
fn what_an_undo_needs_is_refused_and_of_an_earlier_run_it_is_said() {
    let ws = TestWorkspace::repository();
    let run = |script: &str| ws.run::<&str>([], script).ok().json();
    let (first, second) = (run("echo 1 > a"), run("echo 2 > b"));
    let id = |run: &Value, side: &str| run["workspace"][side]["id"].as_str().unwrap().to_owned();
    for side in ["before_snapshot", "after_snapshot"] {
        let (kind, message) = refusal(&ws, &["snapshot", "rm", &id(&second, side)]);
        assert_eq!(kind, "Conflict");
        assert!(
            message.contains(second["run_id"].as_str().unwrap()),
            "{message}"
        );
    }
    let outcome = ws.json(["snapshot", "rm", &id(&first, "before_snapshot")]);
    assert_eq!(outcome["not_undoable"][0], first["run_id"], "{outcome}");
    let (kind, _) = refusal(&ws, &["undo", first["run_id"].as_str().unwrap()]);
    assert_eq!(kind, "NotFound");
    ws.undo();
    assert!(!ws.exists("b"));
}

#[test]
fn what_a_run_under_way_needs_is_refused() {
    let ws = TestWorkspace::repository();
    ws.mkfifo("go");
    let mut running = ws
        .call(["run", "--run-id", "busy", "--", "/bin/sh", "-c"])
        .args(["touch started; read line < go"])
        .start();
    running.until("it has begun", |_| ws.exists("started"));
    let before = ids(&ws);
    let (kind, message) = refusal(&ws, &["snapshot", "rm", &before[0]]);
    assert_eq!(kind, "Conflict");
    assert!(message.contains("busy"), "{message}");
    assert_eq!(ids(&ws), before);
    // Opening it waits until somebody reads.
    fs::write(ws.path("go"), "go\n").unwrap();
    running.wait().ok();
}

#[test]
fn a_snapshot_without_a_verb_is_taken_as_ever() {
    let ws = TestWorkspace::repository();
    ws.stillframe(["snapshot", "--label", "rm"]).ok();
    ws.stillframe(["snapshot"]).ok();
    assert_eq!(ids(&ws).len(), 2);
    ws.stillframe(["snapshot", "rm"]).exits(2);
    ws.stillframe(["snapshot", "--label", "x", "rm", "latest"])
        .exits(2);
    ws.stillframe(["snapshot", "nonsense"]).exits(2);
    assert_eq!(ids(&ws).len(), 2);
}
