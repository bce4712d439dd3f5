//! Untracked, ignored and large files: what is captured, and what is never touched.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use stillframe_tests::{Snap, TestWorkspace, capability, json, oracle, view};

const NOTHING: [&str; 0] = [];

#[test]
fn a_file_made_after_the_snapshot_is_removed_and_kept_in_the_guard() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("new", "content\n");
    ws.write("dir/new", "content\n");
    let outcome = ws.restore(&snapshot);
    assert!(!ws.exists("new"));
    assert!(
        !ws.exists("dir"),
        "a directory that came with it goes with it"
    );
    assert_eq!(json::names(&outcome["restored"]), ["dir/new", "new"]);
    ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
    assert_eq!(ws.text("new"), "content\n");
    assert_eq!(ws.text("dir/new"), "content\n");
}

#[test]
fn an_untracked_file_comes_back_and_is_still_untracked() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "captured\n");
    let snapshot = ws.snapshot();
    let status = ws.git(["status", "--porcelain"]);
    ws.write("untracked", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("untracked"), "captured\n");
    assert_eq!(ws.git(["status", "--porcelain"]), status);
    assert_eq!(status, "?? untracked");
}

#[test]
fn an_ignored_file_keeps_its_present_content() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.write("a.log", "then\n");
    let snapshot = ws.snapshot();
    ws.write("a.log", "now\n");
    ws.write("README", "edited\n");
    let kept = ws.stat("a.log");
    ws.restore(&snapshot);
    assert_eq!(ws.text("a.log"), "now\n");
    let stat = ws.stat("a.log");
    assert_eq!(
        (stat.ino(), stat.mtime_nsec()),
        (kept.ino(), kept.mtime_nsec())
    );
}

// Those that were there before are not listed
#[test]
fn ignored_paths_that_came_since_stay_and_are_listed() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\nbuild/\n");
    ws.write("old.log", "x\n");
    let snapshot = ws.snapshot();
    ws.write("new.log", "x\n");
    ws.write("build/a", "x\n");
    ws.write("build/deep/b", "x\n");
    ws.write("src/other.log", "x\n");
    let outcome = ws.restore(&snapshot);
    for name in [
        "old.log",
        "new.log",
        "build/a",
        "build/deep/b",
        "src/other.log",
    ] {
        assert_eq!(ws.text(name), "x\n", "{name} is untouched");
    }
    assert_eq!(
        json::names(&outcome["leftover_ignored"]),
        ["build", "new.log", "src/other.log"],
        "a directory counts as one, and what was there before is not listed"
    );
}

#[test]
fn rules_outside_of_the_tree_are_honoured_and_why_names_them() {
    let ws = TestWorkspace::repository();
    ws.write(".git/info/exclude", "# mine\nsecret\n");
    fs::create_dir_all(ws.home().join(".config/git")).unwrap();
    fs::write(ws.home().join(".config/git/ignore"), "*.swp\n").unwrap();
    ws.write(".gitignore", "\n*.o\n");
    for name in ["secret", "a.swp", "b.o", "plain"] {
        ws.write(name, "x\n");
    }
    let snapshot = ws.snapshot();
    for (name, rule) in [
        ("secret", "exclude:2"),
        ("a.swp", "ignore:1"),
        ("b.o", ".gitignore:2"),
    ] {
        assert_eq!(snapshot.omitted(name).as_deref(), Some("ignored"), "{name}");
        let why = ws.json(["why", name]);
        assert_eq!(why["captured"], false, "{why}");
        assert_eq!(why["reason"], "ignored", "{why}");
        let named = why["rule"].as_str().unwrap();
        assert!(named.contains(rule), "{named} names {rule}");
    }
    assert_eq!(ws.json(["why", "plain"])["captured"], true);
    assert_eq!(ws.json(["why", "plain"])["reason"], "untracked");
    assert_eq!(ws.json(["why", "README"])["reason"], "tracked");
    assert_eq!(ws.json(["why", "nowhere"])["reason"], "absent");
    let then = ws.json(["why", "secret", "--snapshot", snapshot.id()]);
    assert_eq!(then["captured"], false);
    assert_eq!(then["reason"], "ignored");
}

#[test]
fn rules_that_the_users_own_configuration_includes_are_honoured_and_the_repositorys_are_not() {
    let ws = TestWorkspace::repository();
    let home = |name: &str, text: &str| fs::write(ws.home().join(name), text).unwrap();
    let root = ws.root().to_str().unwrap();
    home(
        ".gitconfig",
        &format!("[include]\npath = more\n[includeIf \"gitdir:{root}/\"]\npath = here\n"),
    );
    home("more", "[core]\nexcludesFile = ~/nowhere\n");
    home("here", "[core]\nexcludesFile = ~/rules\n");
    home("rules", "*.mine\n");
    ws.write("a.mine", "x\n");
    ws.write("a.theirs", "x\n");
    let ignored = ws
        .git_call(["check-ignore", "a.mine", "a.theirs"])
        .env_remove("GIT_CONFIG_GLOBAL")
        .run();
    assert_eq!(ignored.stdout_text(), "a.mine\n");
    // A run can write this file, and name any other in it.
    fs::write(ws.outside().join("rules"), "*.theirs\n").unwrap();
    let theirs = ws.outside().join("rules");
    ws.git(["config", "core.excludesFile", theirs.to_str().unwrap()]);
    ws.git(["config", "include.path", theirs.to_str().unwrap()]);
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.omitted("a.mine").as_deref(), Some("ignored"));
    assert_eq!(snapshot.omitted("a.theirs"), None);
    let rule = ws.json(["why", "a.mine"])["rule"].to_string();
    assert!(rule.contains("rules:1: *.mine"), "{rule}");
}

#[test]
fn the_variables_that_name_the_users_configuration_count_and_those_that_set_values_do_not() {
    let (global, system) = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM");
    let cases = [
        (&[][..], Some("a.home")),
        (&[(global, "global")], Some("a.global")),
        (&[(system, "system")], Some("a.home")),
        (&[(global, "global"), (system, "system")], Some("a.global")),
        (
            &[(global, "relative"), (system, "system")],
            Some("a.system"),
        ),
        (&[(global, "empty")], None),
    ];
    for (variables, ignored) in cases {
        // A workspace of its own: what a session has captured it goes on capturing.
        let ws = TestWorkspace::repository();
        let outside = |name: &str| ws.outside().join(name).to_str().unwrap().to_owned();
        for name in ["global", "system", "home", "value"] {
            fs::write(outside(&format!("{name}-rules")), format!("*.{name}\n")).unwrap();
            let text = format!("[core]\nexcludesFile = {}-rules\n", outside(name));
            fs::write(outside(name), text).unwrap();
        }
        fs::copy(outside("home"), ws.home().join(".gitconfig")).unwrap();
        let files = ["a.global", "a.home", "a.system", "a.value"];
        for file in files {
            ws.write(file, "x\n");
        }
        let git = ws.git_call([&["check-ignore"][..], &files].concat());
        let mut git = git.env_remove("GIT_CONFIG_NOSYSTEM");
        let mut program = ws.call(["snapshot", "--json"]);
        for (name, value) in variables {
            let value = match *value {
                "relative" => "relative/config".to_owned(),
                "empty" => String::new(),
                name => outside(name),
            };
            git = git.env(name, &value);
            program = program.env(name, &value);
        }
        let expected = ignored.map_or(String::new(), |name| format!("{name}\n"));
        assert_eq!(git.run().stdout_text(), expected, "{variables:?}");
        let values = outside("value-rules");
        for (name, value) in [
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "core.excludesFile"),
            ("GIT_CONFIG_VALUE_0", &values),
        ] {
            program = program.env(name, value);
        }
        let snapshot = Snap::of(&program.run().ok().json());
        let omitted = files.map(|file| snapshot.omitted(file).map(|_| file));
        let omitted: Vec<&str> = omitted.into_iter().flatten().collect();
        assert_eq!(omitted, Vec::from_iter(ignored), "{variables:?}");
    }
}

#[test]
fn data_that_an_uncommitted_rule_hides_survives_a_restore_to_before_the_rule() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write(".gitignore", "data/\n");
    ws.write("data/results", "hours of work\n");
    let outcome = ws.restore(&snapshot);
    assert!(!ws.exists(".gitignore"), "the rule came after the snapshot");
    assert_eq!(ws.text("data/results"), "hours of work\n");
    assert_eq!(json::names(&outcome["leftover_ignored"]), ["data"]);
    // The rule is gone, and what it protected is not exposed by that.
    let times = view::times(ws.root());
    let again = ws.restore(&snapshot);
    assert_eq!(view::times(ws.root()), times, "{again}");
    assert_eq!(json::names(&again["restored"]), [""; 0]);
    let reason = json::reason_of(&again["skipped"], "data/results");
    assert_eq!(reason.as_deref(), Some("ignored"), "{again}");
    // A run that came later saw them, so what it adds beside them is taken back as ever.
    ws.run(
        ["--rollback-on-failure"],
        "echo x > data/new; echo x >> data/results; exit 1",
    )
    .exits(1);
    assert!(!ws.exists("data/new"));
    assert_eq!(ws.text("data/results"), "hours of work\n");
}

#[test]
fn what_a_run_hid_in_a_directory_of_before_is_listed() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.commit("rules");
    ws.write("b/k.log", "x\n");
    ws.mkdir("empty");
    let run = ws
        .run(
            ["--rollback-on-failure"],
            "echo '*' > .gitignore; echo n > b/new; exit 1",
        )
        .exits(1)
        .json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(ws.text("b/new"), "n\n");
    assert_eq!(json::names(&rollback["leftover_ignored"]), ["b/new"]);
    assert_eq!(json::names_in(&rollback["skipped"]), [""; 0], "{run}");
}

// They were skipped, with the reason ignored
#[test]
fn what_a_run_made_while_it_had_removed_the_rule_is_listed_as_ignored() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\nbuild/\n");
    ws.commit("rules");
    let script = "echo > a.log; mkdir build; echo > build/out; rm .gitignore";
    let run = ws.run::<&str>([], script).ok().json();
    let undone = ws.undo();
    let before = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    ws.remove(".gitignore");
    let planned = ws.json(["restore", before, "--plan"]);
    let restored = ws.json(["restore", before]);
    let script = format!("echo > a.log; {script}; exit 1");
    ws.remove("a.log");
    ws.remove("build");
    let run = ws.run(["--rollback-on-failure"], &script).exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    for outcome in [&undone, &planned, &restored, rollback] {
        let left = json::names(&outcome["leftover_ignored"]);
        assert_eq!(left, ["a.log", "build"], "{outcome}");
        assert_eq!(json::names_in(&outcome["skipped"]), [""; 0], "{outcome}");
    }
    assert!(ws.exists("a.log") && ws.exists("build/out"));
    let session = run["session_id"].as_str().unwrap();
    let events = ws.events(["--session", session]);
    let mut of_type = events
        .iter()
        .filter(|e| e["type"] == "workspace_rolled_back");
    let data = &of_type.next().unwrap()["data"];
    let left = json::names(&data["leftover_ignored"]);
    assert_eq!(
        (left, &data["skipped"]),
        (vec!["a.log".into(), "build".into()], &0.into())
    );
}

#[test]
fn an_ignored_file_in_the_place_of_a_captured_one_is_kept_and_named() {
    let ws = TestWorkspace::repository();
    ws.write("place/file", "captured\n");
    let snapshot = ws.snapshot();
    ws.remove("place");
    ws.write(".gitignore", "place\n");
    ws.write("place", "an ignored file\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("place"), "an ignored file\n");
    let skipped = json::names_in(&outcome["skipped"]);
    assert!(
        skipped.iter().any(|p| p == "place" || p == "place/file"),
        "what was left as it is is named: {outcome}"
    );
}

// What the target captured is put back, its present bytes going into the guard
#[test]
fn a_captured_path_that_is_ignored_today_is_put_back_through_the_guard() {
    let ws = TestWorkspace::repository();
    ws.write("config", "captured\n");
    let snapshot = ws.snapshot();
    ws.write(".gitignore", "config\n");
    ws.write("config", "edited since\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("config"), "captured\n");
    ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
    assert_eq!(ws.text("config"), "edited since\n", "nothing was lost");
}

#[test]
fn a_new_rule_cannot_hide_an_edit() {
    let ws = TestWorkspace::repository();
    ws.write("tracked", "1\n");
    ws.commit("second");
    ws.write("untracked", "1\n");
    let run = ws
        .run::<&str>(
            [],
            "echo '*' > .gitignore; echo edited > untracked; echo edited > tracked; echo x > fresh",
        )
        .ok()
        .json();
    let diff = &run["workspace"]["diff"];
    let modified = json::names(&diff["modified"]);
    assert_eq!(modified, ["tracked", "untracked"], "{diff}");
    let after = Snap::of(&run["workspace"]["after_snapshot"]);
    let reported = json::names(&diff["added"]).contains(&"fresh".to_owned())
        || after.covered("fresh").is_some();
    assert!(reported, "a new file is captured or named: {run}");
}

#[test]
fn a_failed_run_that_ignores_what_is_there_deletes_nothing_old() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "mine\n");
    ws.write("other/untracked", "mine\n");
    let before = view::worktree(ws.root());
    let run = ws
        .run(
            ["--rollback-on-failure"],
            "printf 'made\\nuntracked\\nother/\\n' > .gitignore; echo x > untracked; rm -r other; echo y > made; exit 1",
        )
        .exits(1)
        .json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    view::same(
        &before,
        &view::worktree(ws.root()).without("made"),
        "everything from before is as before",
    );
    assert_eq!(ws.text("made"), "y\n", "an ignored path is never deleted");
    assert_eq!(
        json::names(&run["workspace"]["rollback"]["leftover_ignored"]),
        ["made"]
    );
}

#[test]
fn an_untracked_file_above_the_cap_is_named_and_never_touched() {
    let ws = TestWorkspace::repository();
    ws.sparse_file("big", 104_857_601);
    ws.sparse_file("bigger/data", 300_000_000_000);
    let output = ws.try_json(["snapshot"]).ok();
    let snapshot = Snap::of(&output.json());
    assert_eq!(snapshot.omitted("big").as_deref(), Some("too_large"));
    assert_eq!(
        snapshot.omitted("bigger/data").as_deref(),
        Some("too_large")
    );
    let omissions = snapshot.json["omissions"].as_array().unwrap();
    let big = omissions.iter().find(|o| o["path"] == "big").unwrap();
    assert_eq!(big["bytes"], 104_857_601_u64);
    assert!(
        output.stderr_text().contains("big"),
        "a person is told: {output}"
    );
    let before = ws.stat("big");
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    let after = ws.stat("big");
    assert_eq!(
        (before.ino(), before.len(), before.mtime_nsec()),
        (after.ino(), after.len(), after.mtime_nsec())
    );
}

// Not seen is not known to be absent
#[test]
fn a_large_file_that_came_after_the_snapshot_is_not_deleted() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.sparse_file("big", 104_857_601);
    let outcome = ws.restore(&snapshot);
    assert!(ws.exists("big"), "its bytes are in no guard, so it stays");
    assert_eq!(
        json::reason_of(&outcome["skipped"], "big").as_deref(),
        Some("too_large"),
        "{outcome}"
    );
}

#[test]
fn a_file_that_a_run_makes_too_large_comes_back_and_what_it_became_is_kept() {
    let ws = TestWorkspace::repository();
    ws.write("log", "small\n");
    let run = ws
        .run(
            ["--rollback-on-failure"],
            "truncate -s 104857601 log; exit 1",
        )
        .exits(1)
        .json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(ws.text("log"), "small\n", "{run}");
    let guard = rollback["guard_snapshot"].as_str().unwrap();
    assert_eq!(
        json::names_in(&ws.show(guard)["displaced"]),
        ["log"],
        "{run}"
    );
    ws.restore_id(guard);
    assert_eq!(ws.stat("log").len(), 104_857_601, "no snapshot holds it");
}

// A smaller cap, and what the run removed
#[test]
fn what_cannot_be_put_back_after_a_failed_run_is_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n/cache/\n");
    ws.write("grown", "x".repeat(200));
    ws.write("gone", "x".repeat(200));
    ws.write("same", "x".repeat(200));
    ws.write("edited.log", "x\n");
    ws.write("gone.log", "x\n");
    ws.write("cache/x", "x\n");
    ws.write("inner/file", "x\n");
    ws.git_in("work/inner", ["init", "-q"]);
    let run = ws
        .run(
            ["--rollback-on-failure", "--max-untracked-file-bytes", "100"],
            "echo >> grown; echo >> edited.log; rm -r gone gone.log cache inner; exit 1",
        )
        .exits(1)
        .json();
    let skipped = &run["workspace"]["rollback"]["skipped"];
    for (path, reason) in [
        ("grown", Some("too_large")),
        ("gone", Some("too_large")),
        ("same", None),
        ("edited.log", None),
        ("gone.log", Some("ignored")),
        ("cache", Some("ignored")),
        ("inner/.git", Some("git_dir")),
        ("inner/file", None),
    ] {
        assert_eq!(json::reason_of(skipped, path).as_deref(), reason, "{run}");
    }
    assert_eq!(ws.stat("grown").len(), 201);
    assert_eq!(ws.text("inner/file"), "x\n", "captured, so it is back");
}

#[test]
fn a_large_file_is_the_same_through_capture_restore_and_undo() {
    let ws = TestWorkspace::repository();
    ws.sparse_file("big", 200_000_000);
    let identity = |ws: &TestWorkspace| {
        let m = ws.stat("big");
        (m.ino(), m.len(), m.mtime(), m.mtime_nsec(), m.ctime_nsec())
    };
    let before = identity(&ws);
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    ws.undo();
    assert_eq!(ws.text("README"), "edited\n");
    assert_eq!(identity(&ws), before);
}

#[test]
fn a_tracked_file_is_captured_whatever_its_size() {
    let ws = TestWorkspace::repository();
    ws.write("model.bin", "small\n");
    ws.git(["add", "model.bin"]);
    ws.sparse_file("model.bin", 104_857_601);
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.omitted("model.bin"), None);
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    assert!(listing.entries.iter().any(|e| e.path == b"model.bin"));
}

#[test]
fn the_same_omission_is_in_every_snapshot_and_told_once_in_a_run() {
    let ws = TestWorkspace::repository();
    ws.sparse_file("big", 200_000_000);
    let output = ws.run::<&str>([], "true").ok();
    let run = output.json();
    for name in ["before_snapshot", "after_snapshot"] {
        let snapshot = Snap::of(&run["workspace"][name]);
        assert_eq!(
            snapshot.omitted("big").as_deref(),
            Some("too_large"),
            "{name}"
        );
    }
    let told = output.stderr_text().matches("big").count();
    assert_eq!(told, 1, "a person is told once: {output}");
}

#[test]
fn a_file_of_git_lfs_is_captured_without_git_lfs() {
    let ws = TestWorkspace::unborn();
    ws.git([
        "config",
        "filter.lfs.clean",
        "/nonexistent/git-lfs clean -- %f",
    ]);
    ws.git(["config", "filter.lfs.required", "true"]);
    let content = "the picture\n";
    let sha = "9d9d40dd9a4f0ce2c3a0b1e2bd6a3b7d5e6c46fd3a4b0d42b8d1ce9ee9fdbf10";
    ws.write(
        "plain.psd",
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize 12\n"),
    );
    ws.commit("the pointer is committed");
    ws.write(
        ".gitattributes",
        "*.psd filter=lfs diff=lfs merge=lfs -text\n",
    );
    ws.write("plain.psd", content);
    let snapshot = ws.snapshot();
    ws.write("plain.psd", "destroyed\n");
    ws.restore(&snapshot);
    assert_eq!(
        ws.text("plain.psd"),
        content,
        "the bytes on disk are what counts"
    );
}

#[test]
fn what_a_negation_takes_back_is_captured() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "out/*\n!out/keep\n");
    ws.write("out/keep", "x\n");
    ws.write("out/drop", "x\n");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.omitted("out/drop").as_deref(), Some("ignored"));
    assert_eq!(snapshot.covered("out/keep"), None);
    ws.remove("out/keep");
    ws.restore(&snapshot);
    assert_eq!(ws.text("out/keep"), "x\n");
}

// An omitted directory is one omission
#[test]
fn an_ignored_directory_is_one_omission() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "target/\n");
    for i in 0..30 {
        ws.write(format!("target/{i}/object"), "x\n");
    }
    let snapshot = ws.snapshot();
    assert_eq!(
        snapshot.omissions(),
        [("target".to_owned(), "ignored".to_owned())]
    );
}

#[test]
fn a_tracked_file_that_a_rule_matches_is_captured_and_not_removed() {
    let ws = TestWorkspace::repository();
    ws.write("keys.env", "tracked\n");
    ws.commit("before the rule");
    ws.write(".gitignore", "*.env\n");
    ws.commit("the rule");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    ws.write("keys.env", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("keys.env"), "tracked\n");
    ws.restore(&snapshot);
    assert!(ws.exists("keys.env"));
}

// Both lists add to git's rules, for untracked paths only
#[test]
fn options_leave_out_untracked_paths_beyond_the_rules_of_git() {
    let ws = TestWorkspace::repository();
    ws.write("cache/tracked", "x\n");
    ws.commit("second");
    ws.write("cache/tracked", "edited\n");
    ws.write("cache/untracked", "x\n");
    ws.write("notes.bak", "x\n");
    ws.write("deep/notes.bak", "x\n");
    ws.write("plain", "x\n");
    let snapshot = ws.snapshot_with(["--ignore-path", "cache", "--ignore-glob", "*.bak"]);
    for name in ["cache/untracked", "notes.bak", "deep/notes.bak"] {
        assert_eq!(
            snapshot.covered(name).as_deref(),
            Some("excluded"),
            "{name}"
        );
    }
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    let has = |path: &str| listing.entries.iter().any(|e| e.path == path.as_bytes());
    assert!(has("cache/tracked") && has("plain"));
    ws.write("cache/untracked", "later\n");
    ws.write("cache/tracked", "later\n");
    ws.restore(&snapshot);
    assert_eq!(
        ws.text("cache/untracked"),
        "later\n",
        "what was left out is not touched"
    );
    assert_eq!(ws.text("cache/tracked"), "edited\n");
}

#[test]
fn a_run_forwards_what_to_leave_out() {
    let ws = TestWorkspace::repository();
    let run = ws
        .run(
            ["--ignore-path", "tmp", "--ignore-glob", "*.bak"],
            "mkdir tmp; echo x > tmp/a; echo x > b.bak; echo x > c",
        )
        .ok()
        .json();
    assert_eq!(
        json::names(&run["workspace"]["diff"]["changed_paths"]),
        ["c"]
    );
}

// Not seeing a path is no evidence that it was not there
#[test]
fn what_one_side_left_out_is_no_change() {
    let ws = TestWorkspace::repository();
    ws.write("cache/a", "x\n");
    let without = ws.snapshot_with(["--ignore-path", "cache"]);
    let with = ws.snapshot();
    for (from, to) in [(&without, &with), (&with, &without)] {
        let diff = ws.diff(from, to);
        assert_eq!(json::names(&diff["changed_paths"]), NOTHING, "{diff}");
    }
}

#[test]
fn a_fifo_named_gitignore_is_special_and_gives_no_rules() {
    let ws = TestWorkspace::repository();
    ws.mkfifo(".gitignore");
    ws.mkdir("sub");
    ws.mkfifo("sub/.gitignore");
    ws.mkfifo("sub/.gitattributes");
    ws.write("sub/file", "x\n");
    let snapshot = ws.snapshot();
    for name in [".gitignore", "sub/.gitignore", "sub/.gitattributes"] {
        assert_eq!(snapshot.omitted(name).as_deref(), Some("special"), "{name}");
    }
    assert_eq!(snapshot.covered("sub/file"), None);
    ws.remove("sub/file");
    ws.restore(&snapshot);
    assert!(ws.exists("sub/file"));
}

#[test]
fn a_gitignore_that_is_a_link_is_never_followed() {
    let ws = TestWorkspace::repository();
    fs::write(ws.outside().join("rules"), "*\n").unwrap();
    ws.symlink(".gitignore", "../outside/rules");
    ws.symlink("sub/.gitignore", "/dev/zero");
    ws.write("sub/file", "x\n");
    ws.write("other", "x\n");
    let snapshot = ws.snapshot();
    let listing = oracle::stored_listing(&ws, snapshot.tree());
    let paths: Vec<String> = listing
        .entries
        .iter()
        .map(|e| e.path.escape_ascii().to_string())
        .collect();
    assert_eq!(
        paths,
        [
            ".gitignore",
            "README",
            "other",
            "sub/.gitignore",
            "sub/file"
        ],
        "no rule was read, and the links are captured as links"
    );
}

#[test]
fn a_gitignore_that_no_rules_are_read_from_is_said_once() {
    let ws = TestWorkspace::repository();
    fs::write(ws.outside().join("rules"), "*\n").unwrap();
    ws.symlink("linked/.gitignore", "../../outside/rules");
    ws.write("linked/file", "x\n");
    ws.write("large/.gitignore", "file\n".repeat((1 << 20) / 5 + 1));
    ws.write("large/file", "x\n");
    ws.write("sound/.gitignore", "none\n");
    ws.write("sound/file", "x\n");
    let said = [
        "the rules in large/.gitignore were not read: it is larger than 1 MiB",
        "the rules in linked/.gitignore were not read: it is a link",
    ];
    let lines = said.map(|line| format!("stillframe: warning: {line}\n"));
    let output = ws.try_json(["snapshot"]).ok();
    assert_eq!(output.stderr_text(), lines.concat());
    let snapshot = Snap::of(&output.json());
    assert_eq!(
        snapshot.json["metadata"]["warnings"],
        serde_json::json!(said)
    );
    assert_eq!(snapshot.omissions(), [], "the files are captured");
    let shown = ws.stillframe(["show", snapshot.id()]).ok().stdout_text();
    assert!(said.iter().all(|line| shown.contains(line)), "{shown}");
    let run = ws.run_call::<&str>([], "true").run().ok();
    let stderr = run.stderr_text();
    assert!(
        lines.iter().all(|line| stderr.matches(line).count() == 1),
        "two snapshots, and each said once: {stderr}"
    );

    ws.remove("large");
    ws.remove("linked");
    let snapshot = ws.snapshot();
    assert!(
        snapshot.json["metadata"].get("warnings").is_none(),
        "{}",
        snapshot.json
    );
}

// As an editor or a scanner makes it for a moment
#[test]
fn rules_that_could_not_be_opened_for_a_moment_are_named() {
    if !capability::can_inject() {
        return;
    }
    let said = "the rules in dir/.gitignore were not read: it may not be opened";
    let mut answers = BTreeSet::new();
    for nth in 1..6 {
        // A new one each time: what was captured once is not hidden by a rule later.
        let ws = TestWorkspace::repository();
        ws.write("dir/.gitignore", "hidden\n");
        ws.write("dir/hidden", "x\n");
        let inject = format!("inject=openat,openat2:error=EACCES:when={nth}");
        let strace = [
            "-f",
            "-o",
            "/dev/null",
            "-P",
            ".gitignore",
            "-e",
            "trace=openat,openat2",
            "-e",
        ];
        let call = ws.call(["--json", "snapshot"]);
        let output = call
            .through("strace", strace.into_iter().chain([&*inject]))
            .run()
            .ok();
        let snapshot = Snap::of(&output.json());
        let omitted: BTreeSet<_> = snapshot.omissions().into_iter().map(|o| o.0).collect();
        let hides = omitted.iter().any(|path| path == "dir/hidden");
        let is_named = output.stderr_text().contains(said);
        let is_omitted = omitted.iter().any(|path| path == "dir/.gitignore");
        assert!(
            hides || is_named || is_omitted,
            "call {nth}: it says why: {output}"
        );
        answers.insert((hides, is_named, is_omitted));
    }
    assert!(answers.contains(&(false, true, false)), "{answers:?}");
    assert!(
        answers.iter().any(|a| a.0),
        "and it came to its end: {answers:?}"
    );
}

// Secrets are captured, and stay local
#[test]
fn secrets_are_captured_and_in_no_event_or_message() {
    let ws = TestWorkspace::repository();
    ws.write(".env", "TOKEN=canary-3141592653\n");
    let snapshot = ws.snapshot();
    ws.write(".env", "TOKEN=canary-2718281828\n");
    let run = ws.run(["--no-patch"], "echo x > other").ok();
    let events = format!("{:?}", ws.events::<&str>([]));
    for text in [run.stdout_text(), run.stderr_text(), events] {
        assert!(!text.contains("canary-"), "{text}");
    }
    ws.restore(&snapshot);
    assert_eq!(ws.text(".env"), "TOKEN=canary-3141592653\n");
}

#[test]
fn a_directory_that_looks_like_one_of_a_restores_own_is_named() {
    for strategy in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        let name = format!(".stillframe-{}", "0123456789abcdef".repeat(2));
        ws.write(format!("{name}/x"), "x\n");
        let snapshot = ws.snapshot_with(["--strategy", strategy]);
        assert_eq!(snapshot.omitted(&name).as_deref(), Some("excluded"));
        let script = format!("mkdir -p deep/{name}; echo x > deep/{name}/x");
        let run = ws.run(["--strategy", strategy], &script).ok().json();
        let after = Snap::of(&run["workspace"]["after_snapshot"]);
        let omitted = after.omitted(&format!("deep/{name}"));
        assert_eq!(omitted.as_deref(), Some("excluded"), "{strategy}");
    }
}

#[test]
fn what_a_damaged_index_tracked_is_not_tracked_once_there_is_none() {
    let ws = TestWorkspace::repository();
    ws.write("x.log", "x\n");
    ws.commit("tracked");
    ws.write(".gitignore", "*.log\n");
    ws.commit("ignored since");
    assert_eq!(ws.snapshot().omitted("x.log"), None, "the index has it");
    ws.run::<&str>([], "echo damage > .git/index; exit 1")
        .exits(1);
    ws.remove(".git/index");
    assert_eq!(ws.snapshot().omitted("x.log"), None, "it was captured");
    assert_eq!(ws.json(["why", "x.log"])["reason"], "kept_in_session");
}

// The library had it alone
#[test]
fn an_ignored_path_that_is_asked_for_is_captured_compared_and_restored() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write(".gitignore", "*.env\nnode_modules/\n");
        ws.write("a.env", "one\n");
        ws.write("b.env", "one\n");
        ws.write("node_modules/dep/index.js", "one\n");
        let include = ["--include", "a.env", "--include", "./node_modules/dep/"];
        let options = [&["--retain-content"], &include[..]].concat();
        let taken = ws.snapshot_with(&options);
        let has = |path: &str| ws.json(["why", path, "--snapshot", taken.id()])["captured"] == true;
        assert!(has("a.env") && has("node_modules/dep/index.js"));
        let is_git = taken.json["backend"] == "git";
        assert_eq!(
            has("b.env"),
            !is_git,
            "of git's rules the hash backend knows none"
        );

        ws.write("a.env", "two\n");
        ws.write("node_modules/dep/index.js", "two\n");
        let changed = ws.json(["diff", taken.id()]);
        assert_eq!(
            json::names(&changed["modified"]),
            ["a.env", "node_modules/dep/index.js"]
        );
        ws.restore(&taken);
        assert_eq!(ws.text("a.env"), "one\n");
        assert_eq!(ws.text("node_modules/dep/index.js"), "one\n");

        let run = [&["--retain-content", "--rollback-on-failure"], &include[..]].concat();
        ws.run(&run, "echo three > a.env; rm -r node_modules; exit 1")
            .exits(1);
        assert_eq!(ws.text("a.env"), "one\n", "rolled back");
        assert_eq!(ws.text("node_modules/dep/index.js"), "one\n");
    }
}

#[test]
fn a_comparison_with_now_looks_at_an_ignored_path_that_is_asked_for() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.env\n");
    let taken = ws.snapshot();
    ws.write("a.env", "one\n");
    assert_eq!(ws.json(["diff", taken.id()])["files_changed"], 0);
    let diff = ws.json(["diff", taken.id(), "--include", "a.env"]);
    assert_eq!(json::names(&diff["added"]), ["a.env"], "{diff}");
    ws.try_json(["diff", taken.id(), taken.id(), "--include", "a.env"])
        .exits(1);
    for wrong in ["", "../x", "/etc/passwd"] {
        let refused = ws
            .try_json(["snapshot", "--include", wrong])
            .exits(1)
            .json();
        assert_eq!(refused["error"]["kind"], "InvalidOptions", "{wrong:?}");
    }
}

// "no file changed", and the only copy of the keys was gone
#[test]
fn ignored_files_that_a_run_removed_are_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", ".env\n*.log\nbuild/\n");
    ws.commit("rules");
    let told = |script: &str| {
        ws.write(".env", "KEY=1\n");
        ws.write("d/x.log", "1\n");
        ws.write("build/out", "1\n");
        let told = ws
            .stillframe(["run", "--", "sh", "-c", script])
            .ok()
            .stderr_text();
        let line = "no longer there, and in no snapshot, since a rule leaves it out: ";
        let named = told.lines().find_map(|said| Some(said.split_once(line)?.1));
        let named = named.map(|named| named.split_once("; --include PATH").unwrap().0);
        named.unwrap_or_default().to_owned()
    };
    assert_eq!(told("rm .env; rm -r build"), ".env");
    assert_eq!(told("rm .env d/x.log"), ".env, d/x.log");
    assert_eq!(told("echo KEY=2 > .env"), "");
    // What a link leads to is something else.
    ws.write("other/x.log", "1\n");
    assert_eq!(told("rm -r d; ln -s other d"), "d/x.log");
    ws.remove("d");
    ws.symlink("link.log", "x");
    assert_eq!(told("rm link.log"), "link.log");
    // What is captured by now is there, and so is what lies in the place of a file.
    assert_eq!(told("rm .gitignore"), "");
    ws.git(["checkout", "-q", ".gitignore"]);
    assert_eq!(
        told(": > .gitignore; rm .env; mkdir .env; touch .env/new"),
        ""
    );
}
