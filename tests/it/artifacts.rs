//! Patches that are too large to embed, retention, and what they leave.

use std::fs;

use stillframe_tests::{Snap, TestWorkspace, json, oracle};

/// A run that changes some kilobytes and embeds at most 64 bytes of patch.
fn run_with_artifact(ws: &TestWorkspace) -> serde_json::Value {
    let script = "i=0; while [ $i -lt 300 ]; do echo \"line $i\"; i=$((i+1)); done > new";
    ws.run(["--max-patch-bytes", "64"], script).ok().json()
}

#[test]
fn a_patch_over_the_cap_goes_to_the_artifact_store_whole() {
    let ws = TestWorkspace::repository();
    let before = ws.copy();
    let run = run_with_artifact(&ws);
    let diff = &run["workspace"]["diff"];
    assert!(diff["patch"].is_null());
    assert_eq!(diff["patch_truncated"], true);
    assert_eq!(diff["has_patch"], true);
    let key = diff["patch_ref"].as_str().unwrap();
    let from = run["workspace"]["before_snapshot"]["ref"].as_str().unwrap();
    let to = run["workspace"]["after_snapshot"]["ref"].as_str().unwrap();
    let random = key.strip_prefix(&format!("patch_{from}_{to}_"));
    let random = random.unwrap_or_else(|| panic!("{key} names both sides"));
    assert_eq!(random.len(), 32, "{key}");
    assert!(random.bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
    let id = run["run_id"].as_str().unwrap();
    let of_run = ws.json(["artifact", "list", "--run", &id[..12]]);
    assert_eq!(of_run, ws.json(["artifact", "list"]));
    let other = ws.run::<&str>([], "true").ok().json();
    let other = other["run_id"].as_str().unwrap();
    let of_other = ws.json(["artifact", "list", "--run", other]);
    assert_eq!(of_other, serde_json::json!([]));
    let bytes = ws.stillframe(["artifact", "get", key]).ok().stdout;
    assert_eq!(diff["patch_bytes"], bytes.len());
    oracle::applies(&bytes, before.path(), ws.root());
    let listed = ws.json(["artifact", "list"]);
    assert_eq!(listed[0]["key"], key, "{listed}");
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let shown = ws.show(run["run_id"].as_str().unwrap());
    assert!(
        shown.to_string().contains(key),
        "the run's record names it: {shown}"
    );
}

#[test]
fn a_patch_exactly_at_the_cap_is_embedded() {
    let ws = TestWorkspace::repository();
    let size = ws.run::<&str>([], "echo x > new").ok().json()["workspace"]["diff"]["patch_bytes"]
        .as_u64()
        .unwrap();
    ws.remove("new");
    let at = ws
        .run(["--max-patch-bytes", &size.to_string()], "echo x > new")
        .ok()
        .json();
    assert_eq!(at["workspace"]["diff"]["patch_truncated"], false, "{at}");
    assert!(at["workspace"]["diff"]["patch"].is_string());
    assert!(at["workspace"]["diff"]["patch_ref"].is_null());
    ws.remove("new");
    let over = ws
        .run(
            ["--max-patch-bytes", &(size - 1).to_string()],
            "echo x > new",
        )
        .ok()
        .json();
    assert_eq!(over["workspace"]["diff"]["patch_truncated"], true, "{over}");
    assert!(over["workspace"]["diff"]["patch_ref"].is_string());
    assert_eq!(over["workspace"]["diff"]["patch_bytes"], size);
}

#[test]
fn an_artifact_can_be_removed_once_and_again() {
    let ws = TestWorkspace::repository();
    let run = run_with_artifact(&ws);
    let key = run["workspace"]["diff"]["patch_ref"].as_str().unwrap();
    ws.stillframe(["artifact", "rm", key]).ok();
    assert_eq!(ws.json(["artifact", "list"]), serde_json::json!([]));
    ws.try_json(["artifact", "get", key]).refused("NotFound");
    let again = ws.stillframe(["artifact", "rm", key]);
    assert!([0, 1].contains(&again.code), "{again}");
}

// Keys are never paths
#[test]
fn a_key_is_never_a_path() {
    let ws = TestWorkspace::repository();
    fs::write(
        ws.state().parent().unwrap().join("outside/secret"),
        "canary\n",
    )
    .unwrap();
    ws.snapshot();
    let long = "x".repeat(10_000);
    for key in [
        "../../outside/secret",
        "/etc/passwd",
        "%2e%2e/%2e%2e",
        "..\\..\\x",
        "",
        ".",
        "..",
        "a/../../b",
        "-",
        "--",
        &long,
    ] {
        let output = ws.untouched(|| ws.try_json(["artifact", "get", "--", key]));
        assert_eq!(output.code, 1, "{key:?}: {output}");
        assert!(!output.stdout_text().contains("canary"), "{output}");
        let kind = output.json()["error"]["kind"].clone();
        assert!(
            kind == "NotFound" || kind == "InvalidOptions",
            "{key:?}: {output}"
        );
        let removed = ws.try_json(["artifact", "rm", "--", key]);
        assert!([0, 1].contains(&removed.code), "{key:?}: {removed}");
    }
    assert!(ws.outside().join("secret").exists());
}

#[test]
fn a_flipped_bit_in_an_artifact_is_corrupt_and_no_bytes_are_handed_out() {
    let ws = TestWorkspace::repository();
    let run = run_with_artifact(&ws);
    let key = run["workspace"]["diff"]["patch_ref"].as_str().unwrap();
    let bytes = ws.stillframe(["artifact", "get", key]).ok().stdout;
    let needle = b"line 150";
    let mut damaged = 0;
    for entry in walkdir::WalkDir::new(ws.state()) {
        let entry = entry.unwrap();
        let in_store = entry.path().starts_with(ws.state().join("workspaces"));
        if !entry.file_type().is_file() || in_store {
            continue;
        }
        let mut content = fs::read(entry.path()).unwrap();
        let is_database = content.starts_with(b"SQLite format 3")
            || entry.path().to_string_lossy().ends_with("-wal");
        let at = content.windows(needle.len()).position(|w| w == needle);
        if let (Some(at), false) = (at, is_database) {
            content[at] ^= 1;
            fs::remove_file(entry.path()).unwrap();
            fs::write(entry.path(), content).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(
        damaged,
        1,
        "the artifact of {} bytes is one file",
        bytes.len()
    );
    let output = ws.stillframe(["artifact", "get", key]).exits(1);
    assert!(
        output.stdout.is_empty(),
        "no bytes are handed out: {output}"
    );
    ws.try_json(["artifact", "get", key]).refused("Corrupt");
}

#[test]
fn gc_keeps_the_newest_and_counts_all_labels() {
    let ws = TestWorkspace::repository();
    let ids: Vec<String> = (0..4)
        .map(|i| {
            ws.write("file", format!("{i}\n"));
            ws.snapshot().id().to_owned()
        })
        .collect();
    ws.run::<&str>([], "true").ok();
    ws.stillframe(["gc", "--keep", "3"]).ok();
    let listed = ws.json(["list"]);
    let left: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["id"].as_str().unwrap())
        .collect();
    assert_eq!(left.len(), 3, "two of the run, and one by hand: {listed}");
    assert_eq!(left[2], ids[3]);
    ws.try_json(["restore", &ids[0]]).refused("NotFound");
    ws.stillframe(["verify"]).ok();
    ws.stillframe(["gc", "--keep", "1"]).ok();
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 1);
    ws.stillframe(["verify"]).ok();
}

#[test]
fn what_a_clean_up_forgot_is_in_the_log_and_its_ids_are_answered_with_the_time() {
    let ws = TestWorkspace::repository();
    let ids: Vec<String> = (0..3)
        .map(|i| {
            ws.write("file", format!("{i}\n"));
            ws.snapshot().id().to_owned()
        })
        .collect();
    ws.stillframe(["gc", "--keep", "3"]).ok();
    let cleaned_up = || {
        let events = ws.stillframe(["events"]).ok().stdout_text();
        let events = events
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let is_one = |event: &serde_json::Value| event["type"] == "workspace_cleaned_up";
        events.filter(is_one).collect::<Vec<serde_json::Value>>()
    };
    assert!(cleaned_up().is_empty(), "nothing was forgotten");
    ws.stillframe(["gc", "--keep", "1"]).ok();
    let events = cleaned_up();
    assert_eq!(events.len(), 1, "{events:?}");
    let data = &events[0]["data"];
    assert_eq!(json::names(&data["snapshots"]), ids[..2], "{data}");
    let at = format!(
        "was forgotten at {}",
        events[0]["timestamp"].as_str().unwrap()
    );
    let beginning = &ids[0][..20];
    for args in [
        ["show", &ids[0]],
        ["restore", &ids[1]],
        ["diff", &ids[0]],
        ["show", beginning],
    ] {
        let message = ws.try_json(args).refused("NotFound");
        assert!(message.contains(&at), "{args:?}: {message}");
        let id = if args[1] == ids[1] { &ids[1] } else { &ids[0] };
        assert!(message.contains(id), "{args:?}: {message}");
    }
    let message = ws.try_json(["show", "snap_00000000000000000000000000000000"]);
    let message = message.refused("NotFound");
    assert!(!message.contains("forgotten"), "{message}");
}

// What a run that is under way goes back to is the oldest of all by then
#[test]
fn a_clean_up_in_a_run_keeps_what_the_run_goes_back_to() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "nowhere else\n");
    let program = stillframe_tests::binary::stillframe().display();
    let clean_up = format!("'{program}' snapshot && '{program}' gc --keep 1");
    let script = format!("rm untracked; {{ {clean_up}; }} >&2 || echo refused > told; exit 1");
    let run = ws.run(["--rollback-on-failure"], &script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert_eq!(ws.text("untracked"), "nowhere else\n");
    let restored = &run["workspace"]["rollback"]["restored"];
    assert_eq!(json::names(restored), ["untracked"], "nothing was refused");
}

#[test]
fn gc_never_takes_the_newest() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let newest = ws.snapshot();
    let output = ws.stillframe(["gc", "--keep", "0"]);
    assert!([0, 1, 2].contains(&output.code), "{output}");
    ws.stillframe(["gc", "--older-than", "0d"]);
    assert_eq!(ws.show(newest.id())["id"], newest.id());
    ws.write("README", "edited\n");
    ws.restore(&newest);
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn gc_by_age_takes_nothing_young() {
    let ws = TestWorkspace::repository();
    for _ in 0..3 {
        ws.snapshot();
    }
    ws.stillframe(["gc", "--older-than", "30d"]).ok();
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 3);
}

#[test]
fn a_quota_is_kept_and_below_the_newest_it_is_an_error() {
    let ws = TestWorkspace::repository();
    let mut noise = 1_u64;
    for i in 0..4 {
        let bytes: Vec<u8> = (0..300_000)
            .map(|_| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                noise as u8
            })
            .collect();
        ws.write("data", &bytes);
        ws.write("n", format!("{i}\n"));
        ws.snapshot();
    }
    let newest = Snap::of(&ws.json(["list"])[0]);
    ws.stillframe(["gc", "--max-bytes", "800000"]).ok();
    let left = ws.json(["list"]).as_array().unwrap().len();
    assert!((1..4).contains(&left), "the oldest went: {left}");
    assert!(
        size_of(&ws.state().join("workspaces")) < 1_000_000,
        "and their bytes with them"
    );
    let message = ws.try_json(["gc", "--max-bytes", "1000"]).refused_limit();
    assert!(!message.is_empty());
    ws.write("data", "destroyed\n");
    ws.restore(&newest);
    assert_eq!(ws.read("data").len(), 300_000, "the newest is kept");
}

// A pack that captures had merged was left until half of it was forgotten
#[test]
fn a_quota_forgets_no_more_than_it_has_to_though_many_snapshots_lie_in_one_pack() {
    const EACH: u64 = 200_000;
    let ws = TestWorkspace::repository();
    for seed in 0..52 {
        ws.write("data", crate::disk::noise(EACH as usize, seed));
        ws.snapshot();
    }
    let packs = ws.stores()[0].join("git/objects/pack");
    let packs = std::fs::read_dir(packs).unwrap().count();
    assert!(packs < 52, "they were merged: {packs}");
    let count = || ws.json(["list"]).as_array().unwrap().len();
    let used = ws.json(["gc", "--keep", "1000"])["used_bytes"]
        .as_u64()
        .unwrap();
    let quota = (used - EACH / 2).to_string();
    ws.stillframe(["gc", "--max-bytes", &quota]).ok();
    assert!((46..52).contains(&count()), "{}", count());

    let ids: Vec<String> = (30..42)
        .map(|at| ws.json(["list"])[at]["id"].as_str().unwrap().to_owned())
        .collect();
    let args = ["snapshot", "rm"].map(str::to_owned).into_iter().chain(ids);
    let before = size_of(&ws.state().join("workspaces"));
    let of_one = before / count() as u64;
    ws.stillframe(args.collect::<Vec<_>>()).ok();
    let after = size_of(&ws.state().join("workspaces"));
    assert!(before - after > 10 * of_one, "{before} to {after}");
}

trait Refused {
    fn refused_limit(self) -> String;
}

impl Refused for stillframe_tests::Output {
    /// Exit code 1 and `LimitExceeded`; what could go is gone, so nothing is said of `touched`.
    #[track_caller]
    fn refused_limit(self) -> String {
        let document = self.exits(1).json();
        assert_eq!(document["error"]["kind"], "LimitExceeded", "{document}");
        document["error"]["message"].as_str().unwrap().to_owned()
    }
}

fn size_of(dir: &std::path::Path) -> u64 {
    walkdir::WalkDir::new(dir)
        .into_iter()
        .flatten()
        .filter(|e| e.file_type().is_file())
        .map(|e| e.metadata().unwrap().len())
        .sum()
}

#[test]
fn what_gc_leaves_can_be_compared_and_restored() {
    let ws = TestWorkspace::repository();
    ws.write("a", "1\n");
    let run = run_with_artifact(&ws);
    let kept = ws.snapshot();
    ws.write("a", "2\n");
    let newest = ws.snapshot();
    ws.stillframe(["gc", "--keep", "2"]).ok();
    assert_eq!(json::names(&ws.diff(&kept, &newest)["modified"]), ["a"]);
    ws.restore(&kept);
    assert_eq!(ws.text("a"), "1\n");
    let key = run["workspace"]["diff"]["patch_ref"].as_str().unwrap();
    ws.stillframe(["artifact", "get", key]).ok();
}
