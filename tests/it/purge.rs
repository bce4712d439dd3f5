//! A leaked secret, and getting rid of it. That it is gone is said by git and by the bytes of every
//! file, never by us.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};
use stillframe_tests::choice::one_of_each;
use stillframe_tests::{Snap, TestWorkspace, capability, git, json, view};
use walkdir::WalkDir;

/// No compressor makes another text of it, and it is in no other file.
const SECRET: &str = "AWS_SECRET=q9XKf2Zr7LmWb4Tn8VpCd1Ys\n";
const NEEDLE: &[u8] = b"q9XKf2Zr7LmWb4Tn8VpCd1Ys";

/// What can be found in `bytes`: themselves, and what comes out where a zlib stream may begin.
fn has_needle(bytes: &[u8]) -> bool {
    let has = |bytes: &[u8]| bytes.windows(NEEDLE.len()).any(|part| part == NEEDLE);
    if has(bytes) {
        return true;
    }
    // The second byte of a zlib header makes it divisible by 31.
    (0..bytes.len().saturating_sub(1))
        .filter(|at| {
            bytes[*at] == 0x78
                && u16::from_be_bytes([bytes[*at], bytes[*at + 1]]).is_multiple_of(31)
        })
        .any(|at| {
            let mut out = Vec::new();
            // What comes out before an error counts too.
            let _ = flate2::read::ZlibDecoder::new(&bytes[at..])
                .take(16 << 20)
                .read_to_end(&mut out);
            has(&out)
        })
}

/// The files below `directory` that have the secret, compressed or not.
fn files_with_secret(directory: &Path) -> Vec<String> {
    WalkDir::new(directory)
        .into_iter()
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().is_file())
        .filter(|entry| has_needle(&fs::read(entry.path()).unwrap()))
        .map(|entry| {
            let path = entry.path().strip_prefix(directory).unwrap();
            path.display().to_string()
        })
        .collect()
}

/// How many objects git finds in the stores, and those of them that have the secret.
fn objects_with_secret(ws: &TestWorkspace) -> (usize, Vec<String>) {
    let (mut count, mut with) = (0, Vec::new());
    for store in ws.stores() {
        let store = store.join("git");
        let all = ["cat-file", "--batch-all-objects", "--batch-check"];
        for line in git::text(&ws.home(), &store, all).lines() {
            let [id, kind, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let read = git::run(&ws.home(), &store, ["cat-file", kind, id]).ok();
            count += 1;
            if has_needle(&read.stdout) {
                with.push(id.to_owned());
            }
        }
    }
    (count, with)
}

/// Asserts that neither git nor any byte of the state directory knows the secret.
#[track_caller]
fn is_gone(ws: &TestWorkspace) {
    let (_, with) = objects_with_secret(ws);
    assert_eq!(with, Vec::<String>::new(), "objects with the secret");
    let files = files_with_secret(&ws.state());
    assert_eq!(files, Vec::<String>::new(), "files with the secret");
    let beside: Vec<String> = fs::read_dir(ws.base())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(b".stillframe-")
        })
        .flat_map(|entry| files_with_secret(&entry.path()))
        .collect();
    assert_eq!(beside, Vec::<String>::new(), "what restores displaced");
}

/// Asserts that git finds nothing wrong with the stores but that these blobs are missing.
#[track_caller]
fn only_misses(ws: &TestWorkspace, ids: &[&str]) {
    for store in ws.stores() {
        let fsck = git::call(&ws.home(), &store.join("git"), ["fsck", "--no-progress"]).run();
        let text = format!("{}{}", fsck.stdout_text(), fsck.stderr_text());
        for line in text.lines() {
            let is_expected = ids.iter().any(|id| line.ends_with(&format!(" blob {id}")))
                || [
                    "notice:",
                    "dangling ",
                    "unreachable ",
                    "broken link from    tree ",
                ]
                .iter()
                .any(|harmless| line.starts_with(harmless));
            assert!(is_expected, "{line}");
        }
    }
}

fn purged(ws: &TestWorkspace, target: &str) -> Value {
    let outcome = ws.json(["purge", target]);
    assert_eq!(outcome["proof"]["unproven"], json!([]), "{outcome}");
    outcome
}

/// A workspace with a secret in two snapshots, the patch of a run, and the guard of a restore.
fn leaked(mut ws: TestWorkspace, options: &[&str]) -> (TestWorkspace, Snap, Snap, Value) {
    // A blob is missing from then on, as it is meant to be.
    ws.damages_the_store();
    ws.write("a/code", "one\n");
    let clean = ws.snapshot_with(options);
    // The record of a run has its command line, which is nobody's content.
    fs::write(ws.outside().join("secret"), SECRET).unwrap();
    let run = ws.run(
        options.iter().copied(),
        "cp ../outside/secret .env; mkdir copies; cp .env copies/backup; echo two > a/code",
    );
    let run = run.ok().json();
    let leaked = Snap::of(&run["workspace"]["after_snapshot"]);
    ws.write("a/code", "three\n");
    ws.restore(&clean);
    assert!(!ws.exists(".env"));
    ws.undo();
    assert_eq!(ws.text(".env"), SECRET);
    (ws, clean, leaked, run)
}

fn repository() -> (TestWorkspace, Snap, Snap, Value) {
    leaked(TestWorkspace::repository(), &[])
}

fn directory() -> (TestWorkspace, Snap, Snap, Value) {
    leaked(TestWorkspace::plain(), &["--retain-content"])
}

#[test]
fn a_plan_says_what_goes_and_removes_nothing() {
    for (ws, ..) in [repository(), directory()] {
        let is_git = ws.exists(".git");
        let had = files_with_secret(&ws.state());
        assert_ne!(had, Vec::<String>::new(), "the oracle sees it");
        let plan = ws.untouched(|| ws.json(["purge", ".env", "--plan"]));
        let contents = plan["contents"].as_array().unwrap();
        assert_eq!(contents.len(), 1, "{plan}");
        assert_eq!(json::names(&contents[0]["paths"]), [".env"]);
        assert_eq!(json::names(&contents[0]["also_at"]), ["copies/backup"]);
        assert_eq!(contents[0]["bytes"], SECRET.len());
        assert_eq!(plan["bytes"], SECRET.len());
        assert_eq!(contents[0]["purged"], false);
        if is_git {
            let id = ws.git(["hash-object", ".env"]);
            assert_eq!(contents[0]["id"], id.trim());
            assert_eq!(
                plan["runs"].as_array().unwrap().len(),
                1,
                "its patch shows it"
            );
        }
        let snapshots = plan["snapshots"].as_array().unwrap();
        let labels: Vec<_> = snapshots
            .iter()
            .map(|s| s["label"].as_str().unwrap())
            .collect();
        assert_eq!(labels, ["after", "guard", "after"], "{plan}");
        assert!(snapshots.iter().all(|s| s["paths"] == 2), "{plan}");
        assert_eq!(files_with_secret(&ws.state()), had);
        let text = ws
            .stillframe(["purge", ".env", "--plan"])
            .ok()
            .stdout_text();
        let id = contents[0]["id"].as_str().unwrap();
        assert!(
            text.starts_with(&format!("content {id} (36 bytes)\n  .env\n")),
            "{text}"
        );
        assert!(
            text.contains("  copies/backup (not named, and the same bytes)\n"),
            "{text}"
        );
        assert!(
            text.ends_with("36 bytes of content in 3 snapshots\n"),
            "{text}"
        );
    }
}

// A path with ".." was refused in a subdirectory
#[test]
fn a_plan_names_a_path_from_where_somebody_stands_and_a_purge_says_how() {
    let (ws, ..) = repository();
    let below = ws.path("a");
    let call = |args: &[&str]| ws.call(["--json"]).args(args).cwd(&below).run();
    let absolute = ws.path(".env");
    for target in ["../.env", absolute.to_str().unwrap()] {
        let plan = ws.untouched(|| call(&["purge", target, "--plan"]).ok().json());
        assert_eq!(
            json::names(&plan["contents"][0]["paths"]),
            [".env"],
            "{plan}"
        );
        let message = ws.untouched(|| call(&["purge", target]).refused("InvalidOptions"));
        let way = format!("--workspace {}", ws.root().display());
        assert!(message.contains(&way), "{message}");
    }
    let beyond = call(&["purge", "../../elsewhere", "--plan"]);
    assert_ne!(beyond.code, 0, "no workspace has it: {beyond}");
}

#[test]
fn a_purged_secret_is_in_no_byte_of_the_state_and_in_no_object() {
    for (ws, clean, leaked, run) in [repository(), directory()] {
        let is_git = ws.exists(".git");
        let before: Vec<_> = ws.json(["list"]).as_array().unwrap().clone();
        let files = view::worktree(ws.root());
        let outcome = purged(&ws, ".env");
        is_gone(&ws);
        view::same(
            &files,
            &view::worktree(ws.root()),
            "the workspace is left alone",
        );
        let id = outcome["contents"][0]["id"].as_str().unwrap();
        if is_git {
            only_misses(&ws, &[id]);
            let (count, _) = objects_with_secret(&ws);
            let looked_at = |what: &str| outcome["proof"][what].as_u64().unwrap() as usize;
            let objects = looked_at("objects") + looked_at("files");
            assert_eq!(objects, count, "all were looked at");
        }
        assert_eq!(
            ws.json(["list"]),
            json!(before),
            "snapshots stay as they are"
        );
        for snap in [&clean, &leaked] {
            assert_eq!(ws.show(snap.id())["id"], snap.id());
        }
        let shown = ws.show(run["run_id"].as_str().unwrap());
        if is_git {
            assert_eq!(shown["workspace"]["patch_purged"], true, "{shown}");
            assert!(shown["workspace"]["patch"].is_null());
        }
        assert_eq!(shown["workspace"]["diff"], {
            let diff = &run["workspace"]["diff"];
            json!({"files_changed": diff["files_changed"], "insertions": diff["insertions"],
                "deletions": diff["deletions"], "changed_paths": diff["changed_paths"]})
        });
    }
}

#[test]
fn verify_counts_a_snapshot_as_restorable_and_names_what_was_purged() {
    for (ws, clean, leaked, _) in [repository(), directory()] {
        purged(&ws, ".env");
        let verified = ws.json(["verify"]);
        let by_id: BTreeMap<_, _> = verified["snapshots"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| (s["id"].as_str().unwrap(), s))
            .collect();
        assert!(
            by_id.values().all(|s| s["problems"] == json!([])),
            "{verified}"
        );
        assert!(by_id[clean.id()]["purged"].is_null());
        let lacks = json::names(&by_id[leaked.id()]["purged"]);
        assert_eq!(lacks, [".env", "copies/backup"]);
        let text = ws.stillframe(["verify"]).ok().stdout_text();
        let line = format!(
            "{} lacks what was purged: .env, copies/backup\n",
            leaked.id()
        );
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn a_restore_puts_the_rest_back_and_leaves_purged_paths_alone() {
    for (ws, _, leaked, _) in [repository(), directory()] {
        purged(&ws, ".env");
        ws.write(".env", "mine, and new\n");
        ws.remove("copies");
        ws.write("a/code", "four\n");
        let outcome = ws.restore(&leaked);
        assert_eq!(ws.text(".env"), "mine, and new\n", "never overwritten");
        assert!(!ws.exists("copies/backup"));
        assert_eq!(ws.text("a/code"), "two\n");
        for path in [".env", "copies/backup"] {
            let reason = json::reason_of(&outcome["skipped"], path);
            assert_eq!(reason.as_deref(), Some("purged"), "{outcome}");
        }
        // What is asked for by name and is not to be had is an error.
        let call = ws.try_json(["restore", leaked.id(), ".env"]);
        let message = call.refused("NotFound");
        assert!(message.contains("purged"), "{message}");
        ws.undo();
        assert_eq!(ws.text("a/code"), "four\n");
        assert_eq!(ws.text(".env"), "mine, and new\n");
    }
}

#[test]
fn a_path_that_still_has_the_secret_is_omitted_and_never_touched() {
    for (ws, clean, leaked, _) in [repository(), directory()] {
        let options: &[&str] = match ws.exists(".git") {
            true => &[],
            false => &["--retain-content"],
        };
        purged(&ws, ".env");
        for _ in 0..2 {
            let snap = ws.snapshot_with(options);
            assert_eq!(snap.omitted(".env").as_deref(), Some("purged"));
            assert_eq!(snap.omitted("copies/backup").as_deref(), Some("purged"));
        }
        // By another name it is the same.
        ws.write("other", SECRET);
        let snap = ws.snapshot_with(options);
        assert_eq!(snap.omitted("other").as_deref(), Some("purged"));
        for target in [&clean, &leaked] {
            let outcome = ws.restore(target);
            assert_eq!(ws.text(".env"), SECRET, "{outcome}");
            assert_eq!(ws.text("other"), SECRET);
        }
        is_gone(&ws);
        let why = ws.json(["why", ".env"]);
        assert_eq!(
            (&why["captured"], &why["reason"]),
            (&json!(false), &json!("purged"))
        );
        ws.write(".env", "SAFE=1\n");
        let snap = ws.snapshot_with(options);
        assert_eq!(
            snap.omitted(".env"),
            None,
            "other content is captured again"
        );
        ws.remove(".env");
        ws.restore(&snap);
        assert_eq!(ws.text(".env"), "SAFE=1\n");
    }
}

#[test]
fn a_comparison_lists_the_path_without_a_patch() {
    let (ws, clean, leaked, _) = repository();
    purged(&ws, ".env");
    let diff = ws.json(["diff", clean.id(), leaked.id(), "--patch"]);
    assert_eq!(
        json::names(&diff["changed_paths"]),
        [".env", "a/code", "copies/backup"]
    );
    let patch = String::from_utf8(json::patch_bytes(&diff["patch"])).unwrap();
    assert!(
        patch.contains("a/code") && !patch.contains(".env"),
        "{patch}"
    );
    let reason = json::reason_of(&diff["approximated"], ".env");
    assert_eq!(reason.as_deref(), Some("purged"));
    let text = ws
        .stillframe(["diff", clean.id(), leaked.id()])
        .ok()
        .stdout_text();
    assert!(text.contains("its content was purged"), "{text}");
}

#[test]
fn a_glob_and_an_id_name_content_as_well_as_a_path() {
    for (ws, ..) in [repository(), directory()] {
        let plan = ws.json(["purge", "**/back*", "--plan"]);
        assert_eq!(
            json::names(&plan["contents"][0]["paths"]),
            ["copies/backup"]
        );
        assert_eq!(json::names(&plan["contents"][0]["also_at"]), [".env"]);
        let id = plan["contents"][0]["id"].as_str().unwrap();
        let outcome = purged(&ws, id);
        assert_eq!(outcome["contents"][0]["id"], id);
        is_gone(&ws);
        let again = purged(&ws, "copies");
        assert_eq!(again["contents"][0]["purged"], true, "{again}");
        for wrong in ["nothing", "**/nothing*", &"0".repeat(40)] {
            let message = ws.try_json(["purge", wrong]).refused("NotFound");
            assert!(message.contains("nothing was purged"), "{message}");
        }
        for wrong in ["{a", ".", "../.env", "/etc/passwd"] {
            ws.try_json(["purge", wrong]).refused("InvalidOptions");
        }
    }
}

#[test]
fn a_secret_that_git_tracks_goes_with_the_packs_that_were_borrowed() {
    let mut ws = TestWorkspace::repository();
    ws.damages_the_store();
    ws.write(".env", SECRET);
    for n in 0..40 {
        ws.write(format!("src/f{n}"), format!("{n}\n").repeat(50));
    }
    ws.commit("all of it");
    // As a delta of the secret, so that its base goes.
    ws.write("like", format!("{}{SECRET}", "x\n".repeat(200)));
    ws.write("alike", "x\n".repeat(200));
    ws.commit("more");
    ws.git(["repack", "-adfq"]);
    ws.git(["prune-packed"]);
    let first = ws.snapshot();
    let tree = view::worktree(ws.root());
    let user = view::git_dir(ws.root());

    let id = ws.git(["hash-object", ".env"]);
    let both = ws.json(["purge", "{.env,like}"]);
    assert_eq!(both["contents"].as_array().unwrap().len(), 2, "{both}");
    assert_eq!(both["proof"]["unproven"], json!([]));
    is_gone(&ws);
    view::same(
        &user,
        &view::git_dir(ws.root()),
        "the user's repository is left alone",
    );
    assert_eq!(
        ws.git(["cat-file", "-p", id.trim()]),
        SECRET.trim(),
        "and has it"
    );
    let like = ws.git(["hash-object", "like"]);
    only_misses(&ws, &[id.trim(), like.trim()]);

    // It is in the index, in HEAD and in the user's pack, and does not come back with anything.
    ws.write("src/f0", "changed\n");
    ws.write("src/new", "new\n");
    ws.git(["add", "src/new"]);
    ws.commit("later");
    ws.git(["repack", "-adfq"]);
    ws.git(["prune-packed"]);
    let snap = ws.snapshot();
    assert_eq!(snap.omitted(".env").as_deref(), Some("purged"));
    assert_eq!(snap.omissions().len(), 2, "{:?}", snap.omissions());
    is_gone(&ws);
    ws.restore(&first);
    let restored = view::worktree(ws.root());
    ws.remove("src");
    ws.restore(&first);
    view::same(&tree, &view::worktree(ws.root()), "the rest is as it was");
    drop(restored);
    is_gone(&ws);
    ws.stillframe(["gc"]).ok();
    ws.stillframe(["verify"]).ok();
    is_gone(&ws);
}

#[test]
fn a_secret_that_is_only_staged_is_found_and_goes() {
    let mut ws = TestWorkspace::repository();
    ws.damages_the_store();
    ws.write(".env", SECRET);
    ws.git(["add", ".env"]);
    ws.write(".env", "SAFE=1\n");
    let snap = ws.snapshot();
    assert_ne!(objects_with_secret(&ws).1, Vec::<String>::new());
    let outcome = purged(&ws, ".env");
    assert_eq!(
        outcome["contents"].as_array().unwrap().len(),
        2,
        "{outcome}"
    );
    is_gone(&ws);
    ws.snapshot();
    is_gone(&ws);
    ws.stillframe(["verify"]).ok();
    ws.restore(&snap);
    assert_eq!(ws.text(".env"), "SAFE=1\n");
}

#[test]
fn patches_that_are_artifacts_go_too() {
    let mut ws = TestWorkspace::repository();
    ws.damages_the_store();
    fs::write(ws.outside().join("secret"), SECRET).unwrap();
    let script = "cp ../outside/secret .env; seq 400 > n";
    let run = ws.run(["--max-patch-bytes", "64"], script).ok().json();
    let harmless = ws
        .run(["--max-patch-bytes", "64"], "seq 500 > m")
        .ok()
        .json();
    let key = |run: &Value| {
        let key = &run["workspace"]["diff"]["patch_ref"];
        key.as_str().unwrap().to_owned()
    };
    let plan = ws.json(["purge", ".env", "--plan"]);
    assert_eq!(plan["artifacts"], json!([key(&run)]));
    purged(&ws, ".env");
    is_gone(&ws);
    let listed = ws.json(["artifact", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["key"], key(&harmless));
    let shown = ws.show(run["run_id"].as_str().unwrap());
    assert_eq!(shown["workspace"]["patch_purged"], true);
    assert!(shown["workspace"]["patch_ref"].is_null());
    ws.stillframe(["verify"]).ok();
}

#[test]
fn empty_files_and_ignore_files_stay() {
    let mut ws = TestWorkspace::repository();
    ws.damages_the_store();
    ws.write("secrets/.gitkeep", "");
    ws.write("secrets/.gitignore", "*.tmp\n");
    ws.write("elsewhere", "");
    ws.write("secrets/key", SECRET);
    let snap = ws.snapshot();
    let outcome = purged(&ws, "secrets");
    let kept = &outcome["kept"];
    let reason = |path| json::reason_of(kept, path);
    assert_eq!(reason("secrets/.gitkeep").as_deref(), Some("empty"));
    assert_eq!(
        reason("secrets/.gitignore").as_deref(),
        Some("ignore_rules")
    );
    is_gone(&ws);
    ws.remove("secrets");
    ws.remove("elsewhere");
    let restored = ws.restore(&snap);
    assert!(ws.exists("elsewhere") && ws.exists("secrets/.gitkeep"));
    let reason = json::reason_of(&restored["skipped"], "secrets/key");
    assert_eq!(reason.as_deref(), Some("purged"));
    ws.try_json(["purge", "elsewhere"]).refused("NotFound");
}

#[test]
fn what_one_backend_lost_the_other_does_not_keep() {
    let (ws, ..) = repository();
    ws.rename(".env", "renamed");
    ws.remove("copies");
    ws.snapshot_with(["--strategy", "hash", "--retain-content"]);
    assert!(
        files_with_secret(&ws.state())
            .iter()
            .any(|f| f.contains("hash/content"))
    );
    let outcome = purged(&ws, ".env");
    assert_eq!(
        outcome["contents"].as_array().unwrap().len(),
        2,
        "{outcome}"
    );
    assert_eq!(outcome["bytes"], SECRET.len(), "it is one secret");
    is_gone(&ws);
    let snap = ws.snapshot_with(["--strategy", "hash", "--retain-content"]);
    assert_eq!(snap.omitted("renamed").as_deref(), Some("purged"));
    is_gone(&ws);
}

#[test]
fn a_run_under_way_makes_a_purge_busy() {
    let (ws, ..) = repository();
    let go = ws.outside().join("go");
    let script = format!(
        "echo on > started; while [ ! -e '{}' ]; do :; done",
        go.display()
    );
    let mut running = ws.run_call::<&str>([], &script).start();
    running.until("it runs", |_| ws.exists("started"));
    let had = files_with_secret(&ws.state());
    let message = ws.try_json(["purge", ".env"]).refused("Busy");
    assert!(message.contains("in use by"), "{message}");
    assert_eq!(files_with_secret(&ws.state()), had);
    fs::write(go, "").unwrap();
    running.wait().ok();
    purged(&ws, ".env");
    is_gone(&ws);
}

#[test]
fn an_undo_of_the_run_that_leaked_it_takes_back_the_rest() {
    for (ws, _, _, run) in [repository(), directory()] {
        purged(&ws, ".env");
        ws.write("a/code", "two\n");
        let undone = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(ws.text("a/code"), "one\n", "{undone}");
        assert_eq!(ws.text(".env"), SECRET, "the file is the user's to remove");
        let reason = json::reason_of(&undone["skipped"], ".env");
        assert_eq!(reason.as_deref(), Some("purged"), "{undone}");
        is_gone(&ws);
    }
}

#[test]
fn a_run_that_writes_the_secret_again_stores_none_of_it() {
    for (ws, ..) in [repository(), directory()] {
        let options: &[&str] = match ws.exists(".git") {
            true => &[],
            false => &["--retain-content"],
        };
        purged(&ws, ".env");
        let run = ws.run(
            options.iter().copied().chain(["--rollback-on-failure"]),
            "cp .env again; echo five > a/code; exit 3",
        );
        let run = run.exits(3).json();
        assert_eq!(ws.text("a/code"), "three\n", "{run}");
        assert_eq!(ws.text("again"), SECRET, "it is named, not removed");
        is_gone(&ws);
    }
}

#[test]
fn a_workspace_that_is_gone_can_be_purged() {
    for (ws, _, leaked, _) in [repository(), directory()] {
        fs::remove_dir_all(ws.root()).unwrap();
        let dir = ws.root().to_str().unwrap();
        let call = ws.call(["--json", "--workspace", dir, "purge", ".env"]);
        let outcome = call.cwd(ws.base()).run().ok().json();
        assert_eq!(outcome["proof"]["unproven"], json!([]), "{outcome}");
        is_gone(&ws);
        let call = ws.call(["--workspace", dir, "restore", leaked.id()]);
        call.cwd(ws.base()).run().ok();
        assert_eq!(ws.text("a/code"), "two\n");
        assert!(!ws.exists(".env"));
    }
}

#[test]
fn why_says_of_a_snapshot_that_the_path_was_purged() {
    for (ws, clean, leaked, _) in [repository(), directory()] {
        let why = |snap: &Snap| {
            let why = ws.json(["why", ".env", "--snapshot", snap.id()]);
            (why["captured"].clone(), why["reason"].clone())
        };
        assert_eq!(why(&leaked).0, true);
        purged(&ws, ".env");
        assert_eq!(why(&leaked), (json!(false), json!("purged")));
        assert_eq!(why(&clean), (json!(false), json!("absent")));
    }
}

#[test]
fn a_damaged_pack_is_named_as_what_is_not_proven() {
    let (ws, ..) = repository();
    let packs = ws.stores()[0].join("git/objects/pack");
    // Nobody can tell what it has.
    fs::write(packs.join("pack-0123.idx"), "no index").unwrap();
    fs::write(packs.join("pack-0123.pack"), SECRET).unwrap();
    let call = ws.try_json(["purge", ".env"]).exits(1);
    let unproven = call.json()["proof"]["unproven"].clone();
    assert_eq!(unproven.as_array().unwrap().len(), 1, "{unproven}");
    assert!(unproven[0]["what"].as_str().unwrap().contains("pack-0123"));
    let text = ws.call(["purge", ".env"]).run().exits(1).stdout_text();
    assert!(text.contains("\nnot proven: "), "{text}");
    let left = files_with_secret(&ws.state());
    assert_eq!(left.len(), 1, "all else is gone: {left:?}");
    ws.stillframe(["gc"]).ok();
    purged(&ws, ".env");
    is_gone(&ws);
}

#[test]
fn a_snapshot_that_cannot_be_read_does_not_keep_others_from_being_purged() {
    let (ws, ..) = repository();
    ws.write("odd", "one\n");
    let broken = ws.snapshot();
    // With it goes all that only this snapshot has.
    let pack = pack_of(&ws, broken.reference());
    fs::remove_file(pack.with_extension("idx")).unwrap();
    fs::remove_file(&pack).unwrap();
    let call = ws.try_json(["purge", ".env"]).exits(1);
    let outcome = call.json();
    assert_eq!(
        outcome["unreadable"].as_array().unwrap().len(),
        1,
        "{outcome}"
    );
    is_gone(&ws);
    let verified = ws.try_json(["verify"]).exits(1).json();
    for snapshot in verified["snapshots"].as_array().unwrap() {
        let is_broken = snapshot["id"] == broken.id();
        assert_eq!(snapshot["problems"] != json!([]), is_broken, "{snapshot}");
    }
}

/// The pack of the store that has an object.
fn pack_of(ws: &TestWorkspace, id: &str) -> std::path::PathBuf {
    let store = ws.stores()[0].join("git");
    let packs = fs::read_dir(store.join("objects/pack")).unwrap();
    let packs = packs.map(|entry| entry.unwrap().path());
    let mut packs = packs.filter(|path| path.extension().is_some_and(|e| e == "pack"));
    packs
        .find(|pack| {
            let index = pack.with_extension("idx");
            let listed = git::text(
                &ws.home(),
                &store,
                ["verify-pack", "-v", index.to_str().unwrap()],
            );
            listed.lines().any(|line| line.starts_with(id))
        })
        .unwrap()
}

/// Calls that change something on disk. One that this machine's kernel does not have is no error.
const MUTATING: &str = "?rename,?renameat,?renameat2,?unlink,?unlinkat,?fsync,?fdatasync,?ftruncate,\
    ?pwrite64";

#[test]
fn a_purge_killed_at_any_step_is_finished_by_the_next() {
    if !capability::can_inject() {
        return;
    }
    for (make, states) in [(repository as fn() -> _, 3), (directory, 2)] {
        let mut endings = BTreeMap::new();
        // The list comes about the tenth call, the packs and the database long after.
        let about_the_list = one_of_each("list", 2).filter(|nth| *nth >= 6);
        let later = one_of_each("later", 101).filter(|nth| *nth >= 14);
        let later = later.take_while(|nth| *nth < 400);
        for nth in about_the_list.take_while(|nth| *nth < 14).chain(later) {
            let (ws, clean, leaked, _) = make();
            let inject = format!("inject={MUTATING}:signal=KILL:when={nth}");
            let trace = format!("trace={MUTATING}");
            let killed = ws
                .call(["--json", "purge", ".env"])
                .through(
                    "strace",
                    ["-f", "-o", "/dev/null", "-e", &trace, "-e", &inject],
                )
                .run();
            let is_done = killed.code == 0;
            let is_listed = WalkDir::new(ws.state())
                .into_iter()
                .any(|entry| entry.unwrap().file_name() == "purged");
            let left = files_with_secret(&ws.state()).len();
            *endings.entry((is_listed, left)).or_insert(0) += 1;
            // Whatever it had done, nothing is broken.
            ws.stillframe(["verify"]).ok();
            if nth % 2 == 0 {
                ws.stillframe(["gc"]).ok();
                assert_eq!(ws.json(["verify"])["artifacts"], json!([]));
            }
            purged(&ws, ".env");
            is_gone(&ws);
            ws.restore(&leaked);
            assert_eq!(ws.text("a/code"), "two\n");
            ws.restore(&clean);
            assert_eq!(ws.text("a/code"), "one\n");
            ws.stillframe(["verify"]).ok();
            if is_done {
                break;
            }
        }
        // Before the list, in a repository after it with a patch left, and with nothing left.
        assert!(endings.len() >= states, "{endings:?}");
    }
}

#[test]
fn a_purge_is_in_the_log_with_counts_and_neither_path_nor_content() {
    for (ws, _, leaked, run) in [repository(), directory()] {
        let outcome = purged(&ws, ".env");
        let events = ws.events::<&str>([]);
        let told: Vec<_> = events
            .iter()
            .filter(|e| e["type"] == "workspace_content_purged")
            .collect();
        assert_eq!(told.len(), 1, "{events:?}");
        let data = &told[0]["data"];
        assert_eq!(data["proven"], true, "{data}");
        let contents = outcome["contents"].as_array().unwrap();
        assert_eq!(data["contents"].as_u64().unwrap(), contents.len() as u64);
        let snapshots = data["snapshots"].as_array().unwrap();
        assert!(snapshots.iter().any(|id| id == leaked.id()), "{data}");
        if ws.exists(".git") {
            assert_eq!(data["runs"], json!([run["run_id"]]), "{data}");
        }
        let text = told[0].to_string();
        assert!(
            !text.contains(".env") && !has_needle(text.as_bytes()),
            "{text}"
        );
    }
}

/// A workspace in which a restore displaced the secret, whose guard was then forgotten by a
/// clean-up that was killed before it removed that.
fn displaced_and_forgotten() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", SECRET);
    ws.restore(&snapshot);
    let store = ws.stores()[0].clone();
    let name_of = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let names = fs::read_dir(&store)
        .unwrap()
        .map(|entry| name_of(entry.unwrap()));
    let area = names
        .into_iter()
        .find(|name| name.starts_with("restore-") && store.join(name).is_dir());
    let area = store.join(area.expect("it is kept as long as its guard"));
    let only = ["-P", area.to_str().unwrap()];
    let kill = [
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=?open,openat",
        "-e",
        "inject=?open,openat:signal=KILL:when=1",
    ];
    let gc = ws
        .call(["gc", "--keep", "1"])
        .through("strace", kill.into_iter().chain(only));
    assert_ne!(gc.run().code, 0, "it was killed");
    let labels = ws.json(["list"]);
    assert!(
        !labels.to_string().contains("guard"),
        "the guard is forgotten: {labels}"
    );
    assert!(!files_with_secret(&area).is_empty());
    ws
}

// The purge answered that no snapshot has it, and no clean-up found it
#[test]
fn what_a_killed_clean_up_left_of_a_restore_is_purged_by_its_id_and_cleaned_up() {
    if !capability::can_inject() {
        return;
    }
    let ws = displaced_and_forgotten();
    ws.write("secret", SECRET);
    let blob = ws.git(["hash-object", "secret"]);
    let digest = blake3::hash(SECRET.as_bytes()).to_hex().to_string();
    ws.remove("secret");
    let plan = ws.json(["purge", "--plan", &blob]);
    assert_eq!(plan["contents"][0]["id"], blob, "{plan}");
    assert_eq!(plan["contents"][0]["other_id"], digest, "{plan}");
    assert_eq!(plan["contents"][0]["bytes"], SECRET.len(), "{plan}");
    purged(&ws, &blob);
    is_gone(&ws);

    let ws = displaced_and_forgotten();
    purged(&ws, &digest);
    is_gone(&ws);

    // A path says nothing of what has no path any more: it goes with every purge.
    let mut ws = displaced_and_forgotten();
    ws.damages_the_store();
    purged(&ws, "README");
    let store = ws.stores()[0].clone();
    let names = fs::read_dir(&store)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let areas = names.filter(|name| name.as_encoded_bytes().starts_with(b"restore-"));
    assert_eq!(areas.count(), 0);

    let ws = displaced_and_forgotten();
    let cleaned = ws.json(["gc"]);
    assert!(cleaned["freed_bytes"].as_u64().unwrap() > 0, "{cleaned}");
    is_gone(&ws);
}
