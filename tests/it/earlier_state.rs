//! A state directory that an earlier commit wrote: this one opens it, proves and restores every
//! snapshot, finishes what that commit left half done, and goes on from there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};
use stillframe_tests::{TestWorkspace, earlier, oracle, view};

fn state() -> TestWorkspace {
    earlier::state_of("cd12876")
}

/// The restores by hand that were finished by whoever looked after them, by what they led to.
fn finished(ws: &TestWorkspace) -> Vec<Value> {
    let events = ws.events::<&str>([]);
    let finished = events.into_iter().filter(|event| {
        event["type"] == "workspace_rolled_back" && event["data"]["recovered"] == true
    });
    finished.map(|event| event["data"].clone()).collect()
}

#[test]
fn the_restore_of_files_index_and_branch_that_it_left_is_finished() {
    let ws = state();
    assert_eq!(ws.text("tracked"), "later\n", "nothing was moved");
    ws.stillframe(["list"]).ok();
    assert_eq!(ws.text("tracked"), "one\ntwo\nthree\n");
    assert_eq!(ws.text("notes"), "untracked\n");
    assert_eq!(ws.text("dir/file"), "inside\n");
    let link = ws.path("dir/link").read_link().unwrap();
    assert_eq!(link.to_str(), Some("../tracked"));
    assert_eq!(ws.stat("tool").mode() & 0o777, 0o755);
    assert_eq!(ws.git(["status", "--short"]), "?? notes", "index as well");
    let log = ws.git(["log", "--format=%s"]);
    assert_eq!(log, "first", "and the branch");
    ws.git(["fsck", "--strict", "--no-dangling"]);
    let finished = finished(&ws);
    assert_eq!(finished.len(), 2, "each of the two: {finished:?}");
    assert!(finished.iter().all(|done| done["skipped"] == 0));

    // What was there is in its guard, and an undo is the way back.
    let undone = ws.json(["undo"]);
    assert_eq!(ws.text("tracked"), "later\n");
    assert_eq!(ws.text("dir/link"), "no link\n");
    assert_eq!(ws.text("notes"), "dirty\n");
    assert_eq!(ws.stat("tool").mode() & 0o777, 0o644);
    // The guard knows its repository by inode, and what came out of an archive is a copy of it.
    assert_eq!(undone["error"]["kind"], "Unsupported", "{undone}");
    assert_eq!(ws.git(["log", "--format=%s"]), "first");
}

#[test]
fn the_restore_of_a_plain_directory_that_it_left_is_finished() {
    let mut ws = state();
    ws.set_root("plain");
    let cut_off = view::worktree(ws.root());
    ws.stillframe(["list"]).ok();
    assert_eq!(ws.text("other"), "two\nthree\n");
    assert_eq!(ws.read(b"odd\xffname"), b"raw\0bytes\n");
    assert!(!ws.exists("stranger"), "the snapshot knows of its absence");
    assert!(!ws.exists("some"), "and of this");
    assert!(ws.exists("empty"));
    assert_eq!(ws.text("node_modules/file"), "dependency\n");
    assert_eq!(finished(&ws).len(), 2);

    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.text("other"), "more\n");
    assert_eq!(ws.text("stranger"), "strange\n");
    assert_eq!(ws.text("some/where"), "again\n");
    assert!(!ws.exists(b"odd\xffname"));
    assert!(view::difference(&cut_off, &view::worktree(ws.root())).is_some());
}

#[test]
fn every_snapshot_is_proven_and_put_back_as_it_was_taken() {
    let mut ws = state();
    let mut put_back = BTreeMap::new();
    for root in ["git", "plain"] {
        ws.set_root(root);
        let report = ws.json(["verify"]);
        assert_eq!(report["log"], Value::Null, "{report}");
        for snapshot in report["snapshots"].as_array().unwrap() {
            assert_eq!(snapshot["problems"], json!([]), "{report}");
        }
        let snapshots = ws.json(["list"]);
        for snapshot in snapshots.as_array().unwrap() {
            let id = snapshot["id"].as_str().unwrap();
            if snapshot["label"] == "digests" {
                ws.try_json(["restore", id]).refused("Unsupported");
                continue;
            }
            ws.restore_id(id);
            match snapshot["tree"].as_str() {
                // What git makes of the files that are there now.
                Some(tree) => assert_eq!(oracle::raw_tree(&ws), tree, "{id}"),
                None => {
                    let again = ws.snapshot_with(["--retain-content"]);
                    assert_eq!(again.reference(), snapshot["ref"], "{id}");
                }
            }
            *put_back.entry(root).or_insert(0) += 1;
        }
    }
    assert_eq!(put_back, BTreeMap::from([("git", 18), ("plain", 9)]));
}

#[test]
fn its_runs_artifacts_and_events_are_as_they_were_and_a_run_of_steps_goes_on() {
    let ws = state();
    let runs = ws.json(["runs"]);
    let of_a_workspace: BTreeMap<&str, &str> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| {
            (
                run["run_id"].as_str().unwrap(),
                run["status"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("done-1", "completed"),
        ("failed-1", "failed"),
        ("steps-1", "interrupted"),
    ];
    assert_eq!(of_a_workspace, BTreeMap::from(expected));
    let failed = ws.show("failed-1");
    assert_eq!(failed["exit_code"], 3, "{failed}");
    let rollback = &failed["workspace"]["rollback"];
    assert_eq!(rollback["status"], "completed", "{failed}");
    let tag = rollback["safety_tag"].as_str().unwrap();
    let left = ws.git(["log", "-1", "--format=%s", tag]);
    assert_eq!(left, "of the run", "its commit is still named");

    // The patch of the first run makes its before-snapshot into its after-snapshot, git says.
    let done = ws.show("done-1");
    let key = done["workspace"]["patch_ref"].as_str().unwrap();
    let patch = ws.stillframe(["artifact", "get", key]).ok().stdout;
    ws.restore_id(done["workspace"]["before_snapshot"].as_str().unwrap());
    let before = ws.copy();
    ws.restore_id(done["workspace"]["after_snapshot"].as_str().unwrap());
    oracle::applies(&patch, before.path(), ws.root());

    for session in ["ticket-1", "ticket-2", "ticket-3"] {
        let events = ws.events(["--session", session]);
        let numbers = events.iter().map(|event| event["sequence"].as_u64());
        assert!(numbers.eq((1..=events.len() as u64).map(Some)), "{session}");
    }

    fs::write(ws.base().join("go"), "").unwrap();
    ws.stillframe(["resume", "steps-1"]).ok();
    assert_eq!(ws.text("half"), "half\n");
    assert_eq!(ws.show("steps-1")["status"], "completed");
    ws.stillframe(["gc", "--keep", "3"]).ok();
    ws.json(["verify"]);
}
