//! Restoring: exactly what the plan says, through a guard, and never more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use stillframe_tests::{Snap, TestWorkspace, capability, json, shapes, view};

const NOTHING: [&str; 0] = [];

// A restore by hand puts back files, not index or branch
#[test]
fn a_restore_leaves_index_head_refs_reflogs_and_stash_alone() {
    let ws = TestWorkspace::repository();
    ws.write("stashed", "x\n");
    ws.git(["add", "stashed"]);
    ws.git(["stash", "-q"]);
    let snapshot = ws.snapshot();
    ws.write("README", "committed since\n");
    ws.commit("since");
    ws.write("README", "staged\n");
    ws.write("new", "staged\n");
    ws.git(["add", "-A"]);
    ws.settle();
    let before = view::git_dir(ws.root());
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    assert!(!ws.exists("new"));
    view::same(
        &before,
        &view::git_dir(ws.root()),
        "nothing in .git is touched",
    );
}

// A directory that is gone is known by its path: nothing that was kept of it is out of reach
#[test]
fn a_workspace_that_was_removed_is_listed_and_restored() {
    let ws = TestWorkspace::repository();
    ws.write("sub/file", "x\n");
    let root = ws.root().to_str().unwrap();
    let before = view::worktree(ws.root());
    let run = ws.run::<&str>([], "echo y > sub/file").ok().json();
    let first = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    fs::remove_dir_all(root).unwrap();
    let call = |args: &[&str]| {
        let here = ["--workspace", root];
        ws.call(here).args(args).cwd(ws.base()).run()
    };

    let refused = call(&["snapshot"]).exits(1).stderr_text();
    for way in ["stillframe list --workspace", "stillframe restore SNAPSHOT"] {
        assert!(refused.contains(way), "{refused}");
    }
    let refused = call(&["undo"]).exits(1).stderr_text();
    assert!(
        refused.contains(&format!("stillframe restore {first}")),
        "{refused}"
    );
    call(&["restore", "snap_00000000"]).exits(1);
    call(&["restore", first, "--plan"]).exits(1);
    assert!(!ws.exists(""), "none of them made anything");
    let listed = call(&["list"]).ok().stdout_text();
    assert!(listed.contains(first), "{listed}");

    call(&["restore", first]).ok();
    view::same(&before, &view::worktree(ws.root()), "everything is back");
    // What the directory of before was tracked by is gone for good, and nothing was made of it.
    assert!(!ws.exists(".git"));
    call(&["undo"]).ok();
    assert!(ws.exists("") && !ws.exists("sub"));
}

#[test]
fn what_has_taken_the_place_of_a_workspace_is_not_touched() {
    let ws = TestWorkspace::plain();
    ws.write("file", "x\n");
    let snapshot = ws.snapshot_with(["--retain-content"]);
    let outside = ws.base().join("elsewhere");
    fs::create_dir(&outside).unwrap();
    let root = ws.root().to_owned();
    let restore = || {
        let args = [
            "restore",
            snapshot.id(),
            "--workspace",
            root.to_str().unwrap(),
        ];
        ws.call(args).cwd(ws.base()).run()
    };
    fs::remove_dir_all(&root).unwrap();
    fs::write(&root, "a file\n").unwrap();
    restore().exits(1);
    assert_eq!(fs::read_to_string(&root).unwrap(), "a file\n");
    fs::remove_file(&root).unwrap();
    std::os::unix::fs::symlink("elsewhere/none", &root).unwrap();
    restore().exits(1);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // The way that messages name: a directory by hand, in which everything is put back.
    fs::remove_file(&root).unwrap();
    fs::create_dir(&root).unwrap();
    restore().ok();
    assert_eq!(ws.text("file"), "x\n");
}

// A file cannot take the place of a directory that holds what no snapshot has: nothing of it goes
#[test]
fn a_directory_that_stays_for_an_ignored_file_is_named_with_everything_else_in_it() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.write("build", "a file\n");
    let snapshot = ws.snapshot();
    ws.remove("build");
    ws.write("build/x.log", "in no snapshot\n");
    ws.write("build/a", "x\n");
    ws.write("build/sub/b", "x\n");
    ws.mkdir("build/empty");
    let before = view::worktree(ws.root());
    let kept = ["build", "build/a", "build/empty", "build/sub/b"];

    let outcome = ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "nothing was touched");
    assert_eq!(json::names_in(&outcome["skipped"]), kept, "{outcome}");
    assert_eq!(json::names(&outcome["restored"]), NOTHING);
    assert_eq!(json::names(&outcome["leftover_ignored"]), ["build/x.log"]);

    let told = ws.stillframe(["restore", snapshot.id()]).ok();
    let told = told.stdout_text();
    for path in kept {
        assert!(told.contains(&format!("kept     {path} (")), "{told}");
    }
    assert!(!told.contains("nothing had to be restored"), "{told}");
}

// Only what is in it and was captured goes; the rest is in no guard
#[test]
fn a_directory_that_stays_for_what_a_rule_hides_in_it_keeps_it() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    let snapshot = ws.snapshot();
    ws.write("build/x.log", "in no snapshot\n");
    ws.write("build/a", "in the guard\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("build/x.log"), "in no snapshot\n");
    assert!(!ws.exists("build/a"), "{outcome}");
    assert_eq!(json::names(&outcome["restored"]), ["build/a"]);
}

#[test]
fn an_id_that_names_nothing_is_refused_before_anything_is_touched() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    ws.write("README", "edited\n");
    for id in [
        "snap_00000000000000000000000000000000",
        "00000000",
        "HEAD",
        "HEAD~1",
        "main",
        ":/x",
        "@{-1}",
        "^{/x}",
        "../x",
        "-",
        "snap_",
        "",
        "ffff\n",
        "refs/snapshots/manual",
    ] {
        let output = ws.untouched(|| ws.try_json(["restore", "--", id]));
        assert_eq!(output.code, 1, "{id:?}: {output}");
        let kind = output.json()["error"]["kind"].as_str().unwrap().to_owned();
        assert!(
            kind == "NotFound" || kind == "InvalidOptions",
            "{id:?}: {output}"
        );
    }
}

#[test]
fn a_unique_prefix_is_enough_and_an_ambiguous_one_is_refused() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    let short = &first.id()[.."snap_".len() + 8];
    assert_eq!(ws.show(short)["id"], first.id());
    assert_eq!(ws.json(["diff", short, "now"])["files_changed"], 0);
    ws.snapshot();
    ws.snapshot();
    let output = ws.untouched(|| ws.try_json(["restore", "snap_"]));
    assert_eq!(output.code, 1, "a prefix of them all: {output}");
}

#[test]
fn a_snapshot_whose_content_is_gone_is_corrupt_and_deletes_nothing() {
    let mut ws = TestWorkspace::repository();
    ws.write("only-here", "not in the repository\n");
    let snapshot = ws.snapshot();
    ws.write("only-here", "edited\n");
    ws.write("new", "x\n");
    ws.damages_the_store();
    remove_packs(&ws);
    let message = ws.untouched(|| ws.try_json(["restore", snapshot.id()]).refused("Corrupt"));
    assert!(!message.is_empty());
    let output = ws.stillframe(["verify"]);
    assert_ne!(output.code, 0, "verify finds it: {output}");
    let said = output.stdout_text() + &output.stderr_text();
    assert!(
        said.contains(snapshot.id()),
        "verify names the snapshot: {output}"
    );
}

fn remove_packs(ws: &TestWorkspace) {
    let mut removed = 0;
    for entry in walkdir::WalkDir::new(ws.stores()[0].join("git/objects")) {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            fs::remove_file(entry.path()).unwrap();
            removed += 1;
        }
    }
    assert!(removed > 0, "the store has objects");
}

// `verify` proves every snapshot restorable, or names those that are not
#[test]
fn a_flipped_bit_in_the_store_is_found() {
    let mut ws = TestWorkspace::unborn();
    ws.write(
        "file",
        "some content that compresses to a few dozen bytes, 0123456789\n",
    );
    let snapshot = ws.snapshot();
    ws.stillframe(["verify"]).ok();
    ws.damages_the_store();
    let pack = walkdir::WalkDir::new(ws.stores()[0].join("git/objects"))
        .into_iter()
        .flatten()
        .find(|e| e.file_name().to_string_lossy().ends_with(".pack"))
        .expect("a snapshot makes one pack");
    let mut bytes = fs::read(pack.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::remove_file(pack.path()).unwrap();
    fs::write(pack.path(), bytes).unwrap();
    let output = ws.stillframe(["verify"]);
    assert_ne!(output.code, 0, "{output}");
    let said = output.stdout_text() + &output.stderr_text();
    assert!(said.contains(snapshot.id()), "{output}");
    ws.write("file", "edited\n");
    let output = ws.try_json(["restore", snapshot.id()]);
    if output.code == 0 {
        // The damage hit something that this restore does not need.
        assert!(ws.text("file").starts_with("some content"));
    } else {
        output.refused("Corrupt");
        assert_eq!(ws.text("file"), "edited\n");
    }
}

#[test]
fn a_file_deleted_and_made_again_gets_its_captured_content() {
    let ws = TestWorkspace::repository();
    ws.write("dir/file", "captured\n");
    let snapshot = ws.snapshot();
    ws.remove("dir");
    ws.write("dir/file", "made again\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("dir/file"), "captured\n");
}

#[test]
fn what_already_matches_is_not_written() {
    let ws = TestWorkspace::repository();
    for i in 0..200 {
        ws.write(format!("d{}/f{i}", i % 7), format!("{i}\n"));
    }
    ws.commit("many");
    ws.write("untracked", "x\n");
    ws.write(".gitignore", "*.log\n");
    ws.write("a.log", "x\n");
    let snapshot = ws.snapshot();
    ws.write("d3/f3", "edited\n");
    ws.settle();
    let before = view::times(ws.root());
    let outcome = ws.restore(&snapshot);
    assert_eq!(json::names(&outcome["restored"]), ["d3/f3"]);
    let mut changed: Vec<String> = Vec::new();
    for (path, times) in view::times(ws.root()) {
        if before.get(&path) != Some(&times) {
            changed.push(String::from_utf8(path).unwrap());
        }
    }
    assert_eq!(
        changed,
        ["d3", "d3/f3"],
        "every other mtime and inode is as it was"
    );
}

#[test]
fn the_guard_of_a_restore_leads_back_exactly() {
    let ws = (shapes::named("dirty").make)();
    let snapshot = ws.snapshot();
    ws.write("src/main.rs", "later\n");
    ws.remove("untracked");
    ws.write_executable("tool", "x\n");
    ws.symlink("new-link", "tool");
    ws.mkdir("new-empty");
    let later = view::worktree(ws.root());
    let outcome = ws.restore(&snapshot);
    let guard = outcome["guard_snapshot"].as_str().unwrap().to_owned();
    assert_eq!(ws.show(&guard)["label"], "guard");
    let back = ws.restore_id(&guard);
    view::same(&later, &view::worktree(ws.root()), "as before the restore");
    // And from there to the first state again, through the second guard.
    ws.restore_id(back["guard_snapshot"].as_str().unwrap());
    assert!(!ws.exists("tool"));
}

#[test]
fn a_second_restore_has_nothing_to_do() {
    let ws = TestWorkspace::repository();
    ws.mkdir("empty");
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.remove("empty");
    ws.restore(&snapshot);
    ws.untouched(|| {
        let outcome = ws.restore(&snapshot);
        assert_eq!(json::names(&outcome["restored"]), NOTHING);
    });
}

// The document that a restore prints has these keys
#[test]
fn a_restore_prints_the_keys_of_a_rollback_and_the_plan() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(
        json::keys(&outcome),
        [
            "durations",
            "error",
            "guard_snapshot",
            "leftover_ignored",
            "plan_id",
            "restored",
            "safety_tag",
            "skipped",
            "status"
        ]
    );
    assert!(outcome["safety_tag"].is_null());
    assert!(
        outcome["guard_snapshot"]
            .as_str()
            .unwrap()
            .starts_with("snap_")
    );
    assert!(outcome["plan_id"].as_str().unwrap().starts_with("plan_"));
    assert_eq!(
        json::keys(&outcome["durations"]),
        ["apply_ms", "guard_ms", "plan_ms", "verify_ms"]
    );
}

// `restore` does it, `--plan` alone previews
#[test]
fn a_plan_says_what_would_be_done_and_does_nothing() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.write("new", "x\n");
    let plan = ws.untouched(|| ws.json(["restore", snapshot.id(), "--plan"]));
    assert!(plan["plan_id"].is_string(), "{plan}");
    let text = ws.untouched(|| ws.stillframe(["restore", snapshot.id(), "--plan"]).ok());
    for name in ["README", "new"] {
        assert!(
            text.stdout_text().contains(name),
            "a person is told: {text}"
        );
    }
    assert_eq!(
        ws.json(["list"]).as_array().unwrap().len(),
        1,
        "a plan takes no guard"
    );
}

// The rules of the state that is there now were looked for in the store, which has no capture of it
#[test]
fn a_plan_goes_by_rules_that_nothing_was_captured_with() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "first\n");
    ws.commit("rules");
    let snapshot = ws.snapshot();
    ws.write(".gitignore", "second\n");
    ws.write("dir/.gitignore", "third\n");
    // The index has every path, so that no rule decides about any.
    ws.git(["add", "-N", "."]);
    let plan = ws.untouched(|| ws.json(["restore", snapshot.id(), "--plan"]));
    assert_eq!(json::names(&plan["removals"]), ["dir/.gitignore"], "{plan}");
    let why = ws.untouched(|| ws.json(["why", "dir/.gitignore"]));
    assert_eq!(why["captured"], true, "{why}");
}

// It was taken for hidden, and came back only with the second restore, when the rule was gone
#[test]
fn an_empty_directory_that_a_new_rule_hides_comes_back_at_once() {
    for rules in [".gitignore", ".git/info/exclude"] {
        let ws = TestWorkspace::repository();
        ws.mkdir("a/b");
        let snapshot = ws.snapshot();
        ws.remove("a/b");
        ws.write(rules, "a\n");
        ws.restore(&snapshot);
        assert!(ws.path("a/b").is_dir(), "{rules}");
        let again = ws.untouched(|| ws.restore(&snapshot));
        assert_eq!(json::names(&again["restored"]), [""; 0], "{again}");
    }
}

#[test]
fn a_plan_is_carried_out_by_its_id_unless_the_tree_moved() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    let plan = ws.json(["restore", snapshot.id(), "--plan"]);
    let again = ws.json(["restore", snapshot.id(), "--plan"]);
    assert_eq!(
        plan["plan_id"], again["plan_id"],
        "the same state gives the same plan"
    );
    let plan_id = plan["plan_id"].as_str().unwrap();

    ws.write("README", "edited again\n");
    ws.untouched(|| {
        ws.try_json(["restore", snapshot.id(), "--apply", plan_id])
            .refused("Conflict")
    });
    ws.write("README", "edited\n");
    ws.write("since", "x\n");
    ws.untouched(|| {
        ws.try_json(["restore", snapshot.id(), "--apply", plan_id])
            .refused("Conflict")
    });
    ws.remove("since");
    let outcome = ws.json(["restore", snapshot.id(), "--apply", plan_id]);
    assert_eq!(outcome["status"], "completed");
    assert_eq!(outcome["plan_id"], plan["plan_id"]);
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn a_plan_of_somebody_elses_is_refused() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    for id in ["plan_00000000000000000000000000000000", "nonsense", ""] {
        let output = ws.untouched(|| ws.try_json(["restore", snapshot.id(), "--apply", id]));
        let message = output.refused("Conflict");
        let told = format!("there is no plan {id:?} for this snapshot and the worktree as it is");
        assert!(message.starts_with(&told), "{message}");
        let output = ws.stillframe(["restore", snapshot.id(), "--apply", id]);
        let text = output.exits(1).stderr_text();
        assert!(
            text.contains("\"stillframe restore SNAPSHOT --plan\""),
            "{text}"
        );
    }
}

#[test]
fn only_the_named_paths_are_restored() {
    let ws = TestWorkspace::repository();
    ws.write("a", "1\n");
    ws.write("dir/b", "1\n");
    ws.write("dir/c", "1\n");
    ws.write("e", "1\n");
    let snapshot = ws.snapshot();
    for name in ["a", "dir/b", "e"] {
        ws.write(name, "2\n");
    }
    ws.remove("dir/c");
    ws.write("dir/new", "x\n");
    ws.write("new", "x\n");
    let outcome = ws.json(["restore", snapshot.id(), "a", "dir"]);
    assert_eq!(
        json::names(&outcome["restored"]),
        ["a", "dir/b", "dir/c", "dir/new"]
    );
    assert_eq!(ws.text("a"), "1\n");
    assert_eq!(ws.text("dir/b"), "1\n");
    assert_eq!(ws.text("dir/c"), "1\n");
    assert!(!ws.exists("dir/new"), "known to have been absent there");
    assert_eq!(ws.text("e"), "2\n", "not asked for");
    assert_eq!(ws.text("new"), "x\n", "not asked for");
}

// NotFound for a path that the snapshot does not know; PATH is literal
#[test]
fn a_path_is_literal_and_must_be_known() {
    let ws = TestWorkspace::repository();
    ws.write("*", "a star\n");
    ws.write("[ab]", "brackets\n");
    ws.write("a", "1\n");
    let snapshot = ws.snapshot();
    for name in ["*", "[ab]", "a"] {
        ws.write(name, "2\n");
    }
    ws.json(["restore", snapshot.id(), "*"]);
    ws.json(["restore", snapshot.id(), "[ab]"]);
    assert_eq!(ws.text("*"), "a star\n");
    assert_eq!(ws.text("[ab]"), "brackets\n");
    assert_eq!(ws.text("a"), "2\n", "a star is a name and no pattern");
    for name in ["nowhere", "a/below", "?", ":(glob)*", ".git", ".git/HEAD"] {
        let message = ws.untouched(|| {
            ws.try_json(["restore", snapshot.id(), "--", name])
                .refused("NotFound")
        });
        assert!(message.contains(name), "{message}");
    }
    for name in ["../outside", "/etc/passwd", "a/../../outside"] {
        let message = ws.untouched(|| {
            ws.try_json(["restore", snapshot.id(), "--", name])
                .refused("InvalidOptions")
        });
        assert!(message.contains(name), "{message}");
    }
}

// "Reject this one new file": it was `NotFound`, since the snapshot does not have it
#[test]
fn a_path_that_came_after_the_snapshot_goes_and_is_had_back() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("kept", "1\n");
        ws.write(".gitignore", "*.o\n");
        let snapshot = ws.snapshot_with(["--retain-content"]);
        ws.write("kept", "2\n");
        ws.write("new", "x\n");
        ws.write("dir/a", "x\n");
        ws.write("dir/b/c", "x\n");
        ws.write("stays", "x\n");
        let all = view::worktree(ws.root());
        let plan = ws.untouched(|| ws.json(["restore", snapshot.id(), "--plan", "new", "dir"]));
        let gone = ["dir/a", "dir/b/c", "new"];
        assert_eq!(json::names(&plan["removals"]), gone, "{plan}");
        let outcome = ws.json(["restore", snapshot.id(), "new", "dir"]);
        assert_eq!(json::names(&outcome["restored"]), gone, "{outcome}");
        assert!(!ws.exists("new") && !ws.exists("dir"));
        assert_eq!(
            (ws.text("kept"), ws.text("stays")),
            ("2\n".into(), "x\n".into())
        );
        ws.undo();
        view::same(
            &all,
            &view::worktree(ws.root()),
            "the undo has all of it back",
        );

        // By now neither has it.
        ws.remove("new");
        let refused = ws.untouched(|| ws.try_json(["restore", snapshot.id(), "new"]));
        let message = refused.refused("NotFound");
        assert!(
            message.contains("neither") && message.contains("new"),
            "{message}"
        );
    }
}

#[test]
fn an_ignored_path_that_came_after_the_snapshot_stays_though_it_is_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.o\n");
    let snapshot = ws.snapshot();
    ws.write("a.o", "hours of work\n");
    let outcome = ws.untouched(|| ws.json(["restore", snapshot.id(), "a.o"]));
    assert_eq!(
        json::names(&outcome["leftover_ignored"]),
        ["a.o"],
        "{outcome}"
    );
}

/// What git says of a repository's state.
fn git_state(ws: &TestWorkspace) -> [String; 4] {
    [
        ws.git([
            "for-each-ref",
            "--format=%(refname) %(objectname)",
            "refs/heads",
        ]),
        ws.git(["rev-parse", "--symbolic-full-name", "HEAD"]),
        ws.git(["ls-files", "--stage"]),
        ws.git(["status", "--porcelain=v2", "--branch"]),
    ]
}

#[test]
fn a_plan_with_the_repository_says_what_becomes_of_it_and_is_carried_out_as_it_is() {
    let ws = TestWorkspace::repository();
    ws.write("staged", "1\n");
    ws.git(["add", "staged"]);
    let snapshot = ws.snapshot();
    let was = git_state(&ws);
    let first = ws.git(["rev-parse", "main"]);
    ws.commit("of the run");
    let second = ws.git(["rev-parse", "main"]);
    ws.git(["checkout", "-q", "-b", "side"]);
    ws.write("staged", "2\n");
    ws.git(["add", "staged"]);

    let args = ["restore", snapshot.id(), "--repository", "--plan"];
    let plan = ws.untouched(|| ws.json(args));
    let refs = serde_json::json!([
        {"name": "HEAD", "before": "refs/heads/side", "after": "refs/heads/main"},
        {"name": "refs/heads/main", "before": second, "after": first},
    ]);
    assert_eq!(plan["repository"]["refs"], refs, "{plan}");
    assert!(plan["repository"]["index"].is_object(), "{plan}");
    assert_eq!(json::names(&plan["repository"]["operation"]), [""; 0]);
    let text = ws.untouched(|| ws.stillframe(args).ok()).stdout_text();
    let lines = [
        "move     HEAD (refs/heads/side to refs/heads/main)".to_owned(),
        format!(
            "move     refs/heads/main ({} to {})",
            &second[..12],
            &first[..12]
        ),
        "replace  git's index".to_owned(),
    ];
    for line in &lines {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert_eq!(
        ws.json(["list"]).as_array().unwrap().len(),
        1,
        "nothing is kept of it"
    );
    let files = ws.json(["restore", snapshot.id(), "--plan"]);
    assert_ne!(
        files["plan_id"], plan["plan_id"],
        "the files alone are another plan"
    );
    assert_eq!(files["repository"]["refs"], serde_json::json!([]));

    // What is staged is a part of it, and what git notes of files' times is not.
    let id = plan["plan_id"].as_str().unwrap();
    let apply = ["restore", snapshot.id(), "--repository", "--apply", id];
    ws.write("other", "x\n");
    ws.git(["add", "other"]);
    ws.untouched(|| ws.try_json(apply).refused("Conflict"));
    ws.git(["rm", "-q", "-f", "other"]);
    ws.git(["branch", "-f", "main", "side~1"]);
    ws.untouched(|| ws.try_json(apply).refused("Conflict"));
    ws.git(["branch", "-f", "main", &second]);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    let file = std::fs::File::options().write(true).open(ws.path("staged"));
    file.unwrap().set_modified(later).unwrap();
    ws.git(["update-index", "--refresh"]);
    let outcome = ws.json(apply);
    assert_eq!(outcome["plan_id"], plan["plan_id"], "{outcome}");
    assert_eq!(outcome["error"], serde_json::Value::Null, "{outcome}");
    assert_eq!(git_state(&ws)[1..], was[1..]);
    assert_eq!(ws.git(["rev-parse", "main"]), first);
    let again = ws.untouched(|| ws.json(args));
    assert_eq!(
        again["repository"]["refs"],
        serde_json::json!([]),
        "{again}"
    );
}

#[test]
fn a_plan_with_the_repository_names_the_files_of_an_operation_and_what_stays() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.git(["checkout", "-q", "-b", "side"]);
    ws.write("README", "side\n");
    ws.commit("side");
    ws.git(["checkout", "-q", "main"]);
    ws.write("README", "main\n");
    ws.commit("main");
    ws.git_call(["merge", "-q", "side"]).run().exits(1);
    let args = ["restore", snapshot.id(), "--repository", "--plan"];
    let plan = ws.untouched(|| ws.json(args));
    let files = json::names(&plan["repository"]["operation"]);
    assert!(files.contains(&"MERGE_HEAD".to_owned()), "{plan}");
    let text = ws.stillframe(args).ok().stdout_text();
    assert!(text.contains("change   .git/MERGE_HEAD\n"), "{text}");
    let id = plan["plan_id"].as_str().unwrap();
    ws.json(["restore", snapshot.id(), "--repository", "--apply", id]);
    assert!(!ws.exists(".git/MERGE_HEAD"));
    assert_eq!(ws.git(["status", "--porcelain"]), "");
}

#[test]
fn a_path_that_the_snapshot_left_out_is_told_with_the_reason() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "/build/\n*.log\n");
    ws.write("build/out", "x\n");
    ws.write("a.log", "x\n");
    ws.sparse_file("large", 104_857_601);
    ws.mkfifo("pipe");
    let snapshot = ws.snapshot();
    for (path, omitted, reason) in [
        ("large", "large", "too_large"),
        ("a.log", "a.log", "ignored"),
        ("build", "build", "ignored"),
        ("build/out", "build", "ignored"),
        ("pipe", "pipe", "special"),
    ] {
        let message = ws.untouched(|| {
            ws.try_json(["restore", snapshot.id(), path])
                .refused("NotFound")
        });
        let expected = format!("does not have {path}: it left {omitted} out ({reason})");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn head_stays_detached_or_unborn() {
    for shape in ["detached", "unborn"] {
        let ws = (shapes::named(shape).make)();
        let head = fs::read(ws.path(".git/HEAD")).unwrap();
        let snapshot = ws.snapshot();
        let before = view::worktree(ws.root());
        ws.write("more", "x\n");
        ws.restore(&snapshot);
        view::same(&before, &view::worktree(ws.root()), shape);
        let run = ws
            .run(["--rollback-on-failure"], "echo x > more; exit 1")
            .exits(1)
            .json();
        assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
        view::same(&before, &view::worktree(ws.root()), shape);
        assert_eq!(fs::read(ws.path(".git/HEAD")).unwrap(), head, "{shape}");
    }
}

#[test]
fn another_untracked_file_in_the_same_place_goes_into_the_guard_first() {
    let ws = TestWorkspace::repository();
    ws.write("notes", "theirs\n");
    let snapshot = ws.snapshot();
    ws.write("notes", "mine, from today\n");
    let outcome = ws.restore(&snapshot);
    assert_eq!(ws.text("notes"), "theirs\n");
    ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
    assert_eq!(ws.text("notes"), "mine, from today\n");
}

// A merge or rebase in progress does not keep a restore by hand from the files
#[test]
fn captured_files_come_back_while_a_merge_is_in_progress() {
    let ws = (shapes::named("merge_in_conflict").make)();
    let snapshot = ws.snapshot();
    let before = view::worktree(ws.root());
    let repository = view::git_dir(ws.root());
    ws.write("file", "resolved\n");
    ws.restore(&snapshot);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "the conflict as it was",
    );
    view::same(&repository, &view::git_dir(ws.root()), "the merge goes on");
}

// A snapshot of another workspace
#[test]
fn a_snapshot_of_another_workspace_is_refused() {
    let mut ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    fs::create_dir(ws.base().join("second")).unwrap();
    ws.set_root("second");
    ws.git(["init", "-q"]);
    ws.write("README", "another workspace\n");
    let output = ws.untouched(|| ws.try_json(["restore", snapshot.id()]));
    assert_eq!(output.code, 1, "{output}");
    let kind = output.json()["error"]["kind"].clone();
    assert!(kind == "NotFound" || kind == "InvalidOptions", "{output}");
    let second = ws.snapshot();
    let output = ws.try_json(["diff", snapshot.id(), second.id()]);
    assert_eq!(output.code, 1, "{output}");
    assert_eq!(
        ws.json(["list"]).as_array().unwrap().len(),
        1,
        "lists are of one workspace"
    );
}

#[test]
fn a_workspace_that_was_moved_keeps_its_snapshots() {
    let mut ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    fs::rename(ws.base().join("work"), ws.base().join("moved")).unwrap();
    ws.set_root("moved");
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn two_spellings_of_a_path_are_one_workspace() {
    let ws = TestWorkspace::repository();
    std::os::unix::fs::symlink(ws.root(), ws.base().join("link")).unwrap();
    let root = ws.root().to_str().unwrap();
    let base = ws.base().to_str().unwrap();
    ws.snapshot();
    for spelling in [
        format!("{root}/"),
        format!("{root}/."),
        format!("{base}/./work"),
        format!("{base}/home/../work"),
        format!("{base}/link"),
        "../work".to_owned(),
        ".".to_owned(),
    ] {
        ws.json(["snapshot", "--workspace", &spelling]);
    }
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 8);
}

#[test]
fn omitted_paths_are_the_same_before_and_after_any_restore() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "ignored/\n*.log\n");
    ws.commit("rules");
    ws.write("ignored/a", "x\n");
    ws.write("b.log", "x\n");
    ws.mkfifo("pipe");
    ws.write("inner/file", "x\n");
    ws.git_in("work/inner", ["init", "-q"]);
    let snapshot = ws.snapshot();
    let state = |ws: &TestWorkspace| {
        [
            "ignored/a",
            "b.log",
            "pipe",
            "inner/.git/HEAD",
            "inner/.git",
        ]
        .map(|name| {
            let m = ws.stat(name);
            (
                m.ino(),
                m.mode(),
                m.mtime(),
                m.mtime_nsec(),
                m.ctime_nsec(),
                m.len(),
            )
        })
    };
    let before = state(&ws);
    ws.write("README", "edited\n");
    ws.write("inner/file", "edited\n");
    ws.remove("README");
    ws.restore(&snapshot);
    assert_eq!(state(&ws), before);
    assert_eq!(ws.text("inner/file"), "x\n");
}

#[test]
fn ids_are_unique_and_keep_their_meaning() {
    let ws = TestWorkspace::repository();
    let mut ids = BTreeSet::new();
    let mut shown = Vec::new();
    for i in 0..5 {
        ws.write("file", format!("{i}\n"));
        let snapshot = ws.snapshot();
        assert!(ids.insert(snapshot.id().to_owned()));
        shown.push((snapshot.id().to_owned(), ws.show(snapshot.id())));
    }
    ws.restore(&Snap::of(&shown[0].1));
    for (id, document) in shown {
        assert_eq!(ws.show(&id), document);
    }
}

// What is left behind
#[test]
fn nothing_is_left_in_or_beside_the_workspace() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.write("new/file", "x\n");
    ws.restore(&snapshot);
    ws.undo();
    let names = |dir: &std::path::Path| -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(ws.root()), [".git", "README", "new"]);
    assert_eq!(names(ws.base()), ["home", "outside", "state", "work"]);
}

#[test]
fn git_takes_no_notice_of_what_a_restore_keeps_beside_a_part_of_a_repository() {
    let Some(other) = capability::other_file_system() else {
        return;
    };
    let elsewhere = tempfile::tempdir_in(other).unwrap();
    let mut ws = TestWorkspace::repository();
    ws.set_env("STILLFRAME_HOME", elsewhere.path().join("state"));
    ws.write("sub/file", "captured\n");
    ws.commit("a part");
    let whole = ws.snapshot();
    ws.set_root("work/sub");
    let snapshot = ws.snapshot();
    ws.write("file", "edited\n");
    ws.write("new", "x\n");
    ws.restore(&snapshot);
    ws.set_root("work");
    let kept: Vec<_> = fs::read_dir(ws.root())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".stillframe-"))
        .collect();
    assert_eq!(kept.len(), 1, "what was displaced is beside the part");
    assert_eq!(
        ws.git(["status", "--porcelain", "--untracked-files=all"]),
        ""
    );

    let now = ws.snapshot();
    assert_eq!(now.tree(), whole.tree());
    assert_eq!(now.omitted(&kept[0]).as_deref(), Some("excluded"));
    let diff = ws.diff(&whole, &now);
    assert_eq!(diff["files_changed"], 0, "{diff}");
    let outcome = ws.restore(&whole);
    assert_eq!(json::names(&outcome["restored"]), [""; 0], "{outcome}");
    assert_eq!(json::names_in(&outcome["skipped"]), [""; 0], "{outcome}");
    assert!(
        ws.exists(format!("{}/trash/0", kept[0])),
        "nobody touches it"
    );
}

// Hard-linked names of one file within the workspace
#[test]
fn inodes_of_what_matches_stay() {
    let ws = TestWorkspace::repository();
    ws.write("one", "x\n");
    ws.hard_link("one", &ws.path("two"));
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.stat("one").ino(), ws.stat("two").ino(), "still one file");
}
