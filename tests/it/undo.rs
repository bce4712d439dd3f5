//! Taking back what a run or a restore did, and keeping what others did since.

use std::os::unix::fs::MetadataExt as _;

use stillframe_tests::capability::{self, Capability};
use stillframe_tests::{TestWorkspace, json, view};

const NOTHING: [&str; 0] = [];

#[test]
fn undo_takes_back_the_latest_run() {
    let ws = TestWorkspace::repository();
    ws.write("removed", "mine\n");
    let before = view::worktree(ws.root());
    ws.run::<&str>(
        [],
        "echo x > README; rm removed; mkdir d; echo x > d/new; ln -s README l",
    )
    .ok();
    let outcome = ws.undo();
    view::same(&before, &view::worktree(ws.root()), "as before the run");
    assert_eq!(
        json::names(&outcome["restored"]),
        ["README", "d/new", "l", "removed"]
    );
    assert_eq!(json::names_in(&outcome["skipped"]), NOTHING);
}

#[test]
fn of_a_run_that_was_rolled_back_nothing_is_left_to_undo() {
    let ws = TestWorkspace::repository();
    let git = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
        GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";
    let script =
        format!("{git} echo x > README; echo y > new; git add new; git commit -q -m work; exit 3");
    let run = ws.run(["--rollback-on-failure"], &script).exits(3).json();
    let id = run["run_id"].as_str().unwrap();
    let snapshots = ws.published();
    for target in [vec!["undo"], vec!["undo", id], vec!["undo"]] {
        let outcome = ws.untouched(|| ws.json(target.clone()));
        assert_eq!(outcome["status"], "completed", "{outcome}");
        assert_eq!(outcome["undone"]["run_id"], id, "not what came before it");
        assert!(outcome["error"].is_null(), "no false alarm: {outcome}");
        assert!(outcome["guard_snapshot"].is_null(), "{outcome}");
        assert_eq!(json::names_in(&outcome["skipped"]), NOTHING);
        assert_eq!(json::names(&outcome["restored"]), NOTHING);
    }
    // A plan of something else was answered as if it had been this one.
    let planned = ws.json(["undo", "--plan"]);
    let plan = planned["plan_id"].as_str().unwrap();
    ws.untouched(|| ws.json(["undo", "--apply", plan]));
    let other = "plan_00000000000000000000000000000000";
    for undo in [vec!["undo"], vec!["undo", id]] {
        let refused = ws.untouched(|| ws.try_json([&undo[..], &["--apply", other]].concat()));
        let message = refused.refused("Conflict");
        assert!(message.contains("make a new plan"), "{message}");
    }
    assert_eq!(ws.published(), snapshots, "nothing was taken for nothing");
    let said = ws.stillframe(["undo"]).ok().stderr_text();
    assert!(said.contains("was rolled back"), "{said}");
    assert!(!said.contains("took back"), "{said}");

    ws.write("mine", "made since\n");
    let outcome = ws.untouched(|| ws.json(["undo"]));
    assert_eq!(json::names(&outcome["restored"]), NOTHING);

    let after = run["workspace"]["after_snapshot"]["id"].as_str().unwrap();
    ws.restore_id(after);
    assert_eq!(ws.text("README"), "x\n");
    ws.json(["undo", id]);
    assert_eq!(ws.text("README"), "hello\n", "what was brought back goes");
    assert!(!ws.exists("new"));
}

// Edits of others that stay are no failure: exit 0, and each is named
#[test]
fn later_edits_of_others_are_kept_and_named() {
    let ws = TestWorkspace::repository();
    for name in ["a", "b", "c"] {
        ws.write(name, "before\n");
    }
    ws.run::<&str>([], "for f in a b c; do echo run > $f; done")
        .ok();
    ws.write("b", "edited by a person since\n");
    ws.write("unrelated", "mine\n");
    let outcome = ws.undo();
    assert_eq!(ws.text("a"), "before\n");
    assert_eq!(ws.text("c"), "before\n");
    assert_eq!(ws.text("b"), "edited by a person since\n");
    assert_eq!(
        ws.text("unrelated"),
        "mine\n",
        "what the run did not touch is nobody's business"
    );
    assert_eq!(json::names(&outcome["restored"]), ["a", "c"]);
    assert_eq!(json::names_in(&outcome["skipped"]), ["b"]);
}

// A full restore takes the edit back, with the edit in the guard
#[test]
fn a_full_restore_takes_a_later_edit_back_through_the_guard() {
    let ws = TestWorkspace::repository();
    let run = ws.run::<&str>([], "echo run > README").ok().json();
    ws.write("README", "edited since\n");
    let before = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    let outcome = ws.restore_id(before);
    assert_eq!(ws.text("README"), "hello\n");
    ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
    assert_eq!(ws.text("README"), "edited since\n");
}

/// Twenty lines, some of them others.
fn lines(others: &[(usize, &str)]) -> String {
    let line = |n| match others.iter().find(|(at, _)| *at == n) {
        Some((_, other)) => format!("{other}\n"),
        None => format!("line {n}\n"),
    };
    (1..=20).map(line).collect()
}

const STRATEGIES: [&[&str]; 2] = [
    &["--strategy", "git"],
    &["--strategy", "hash", "--retain-content"],
];

// A run in the middle is taken back line by line, and what came since stays
#[test]
fn an_edit_elsewhere_in_a_file_of_the_run_stays_in_it() {
    for strategy in STRATEGIES {
        let ws = TestWorkspace::repository();
        ws.write("both", lines(&[]));
        ws.write("tool", lines(&[]));
        let script = "sed -i 's/^line 3$/three of the run/' both tool; chmod +x tool";
        let run = ws.run(strategy, script).ok().json();
        let edited = lines(&[(3, "three of the run"), (17, "mine")]);
        ws.write("both", &edited);
        ws.run(strategy, "sed -i 's/^line 9$/nine of another run/' tool")
            .ok();
        let before_undo = view::worktree(ws.root());

        let outcome = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(ws.text("both"), lines(&[(17, "mine")]), "{strategy:?}");
        assert_eq!(ws.text("tool"), lines(&[(9, "nine of another run")]));
        assert_eq!(ws.mode("tool") & 0o111, 0, "{strategy:?}");
        assert_eq!(json::names(&outcome["merged"]), ["both", "tool"]);
        assert_eq!(json::names(&outcome["restored"]), ["both", "tool"]);
        assert_eq!(outcome["skipped"], serde_json::json!([]));
        assert_eq!(outcome["conflicts"], serde_json::json!([]));

        let after_undo = view::worktree(ws.root());
        ws.undo();
        view::same(&before_undo, &view::worktree(ws.root()), "redone");
        ws.undo();
        view::same(&after_undo, &view::worktree(ws.root()), "undone once more");
    }
}

// Where edits meet the run's, the file is as it was, and the three versions are data
#[test]
fn an_edit_where_the_run_was_leaves_the_file_and_tells_all_versions() {
    for strategy in STRATEGIES {
        let ws = TestWorkspace::repository();
        ws.write("f", lines(&[]));
        let script = "sed -i 's/^line 3$/of the run/; s/^line 12$/of the run too/' f";
        let run = ws.run(strategy, script).ok().json();
        let edited = lines(&[(3, "<<<<<<< mine"), (12, "of the run too")]);
        ws.write("f", &edited);
        let times = view::times(ws.root());

        let run_id = run["run_id"].as_str().unwrap();
        let outcome = ws.json(["undo", run_id]);
        assert_eq!(ws.text("f"), edited, "{strategy:?}");
        assert_eq!(view::times(ws.root()), times, "nothing was touched");
        assert_eq!(outcome["status"], "completed");
        assert_eq!(json::names_in(&outcome["skipped"]), ["f"]);
        assert_eq!(outcome["skipped"][0]["reason"], "edited_since");
        let region = serde_json::json!({
            "current": "<<<<<<< mine\n",
            "after": "of the run\n",
            "before": "line 3\n",
        });
        let conflicts = serde_json::json!([{"path": "f", "regions": [region]}]);
        assert_eq!(outcome["conflicts"], conflicts, "{strategy:?}");
        assert_eq!(outcome["merged"], serde_json::json!([]));

        // Once it is resolved, the rest of the run is taken back.
        ws.write(
            "f",
            lines(&[(3, "of the run"), (12, "of the run too"), (18, "mine")]),
        );
        let text = ws.call(["undo", run_id]).run().ok();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(
            text.contains("merged   f (what was edited since stays in it)"),
            "{text}"
        );
        assert_eq!(ws.text("f"), lines(&[(18, "mine")]));
    }
}

// Where lines repeat, a merge that is asked for again takes the same thing back again
#[test]
fn where_nobody_can_say_what_was_taken_back_already_nothing_is() {
    let ws = TestWorkspace::repository();
    let rules = |first: &str, count| format!("{first}\n{}", "[rule]\nallow\n\n".repeat(count));
    ws.write("rules", rules("top", 3));
    ws.write("other", "one\n");
    let script = "printf '[rule]\nallow\n\n' >> rules; echo two > other";
    let run = ws.run::<&str>([], script).ok().json();
    ws.write("rules", rules("mine", 4));
    ws.write("other", "three\n");
    let undo = || ws.json(["undo", run["run_id"].as_str().unwrap()]);
    for _ in 0..3 {
        let outcome = undo();
        assert_eq!(json::names_in(&outcome["skipped"]), ["other", "rules"]);
        assert_eq!(ws.text("rules"), rules("mine", 4));
    }
}

#[test]
fn the_undo_of_a_run_can_be_asked_for_again() {
    let ws = TestWorkspace::repository();
    ws.write("f", lines(&[]));
    ws.write("other", "one\n");
    let script = "sed -i '3s/.*/of the run/' f; echo two > other";
    let run = ws.run::<&str>([], script).ok().json();
    ws.write("f", lines(&[(3, "of the run"), (17, "mine")]));
    ws.write("other", "three\n");
    for merged in [vec!["f"], vec![], vec![]] {
        let outcome = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(json::names(&outcome["merged"]), merged);
        assert_eq!(json::names_in(&outcome["skipped"]), ["other"]);
        assert_eq!(ws.text("f"), lines(&[(17, "mine")]));
    }
}

#[test]
fn a_run_that_was_rolled_back_is_in_no_file_any_more() {
    let ws = TestWorkspace::repository();
    ws.write("lines", "b\na\na\n");
    ws.run(["--rollback-on-failure"], "echo a >> lines; exit 3")
        .exits(3);
    ws.write("lines", "x\na\na\n");
    let outcome = ws.undo();
    assert_eq!(ws.text("lines"), "x\na\na\n");
    assert_eq!(outcome["restored"], serde_json::json!([]));
}

#[test]
fn permission_bits_alone_are_taken_back_in_place() {
    let ws = TestWorkspace::repository();
    ws.write("binary", "\0 one\n");
    ws.run::<&str>([], "chmod +x binary").ok();
    ws.write("binary", "\0 two\n");
    let before = ws.stat("binary");
    let outcome = ws.undo();
    let now = ws.stat("binary");
    assert_eq!(
        (now.ino(), now.mtime_nsec()),
        (before.ino(), before.mtime_nsec())
    );
    assert_eq!(ws.mode("binary") & 0o111, 0);
    assert_eq!(outcome["merged"], serde_json::json!([]));
    assert_eq!(json::names(&outcome["restored"]), ["binary"]);
}

// Only directories above files, and those that are empty themselves, were looked at
#[test]
fn permission_bits_of_directories_that_hold_nothing_but_directories_are_taken_back() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("src/f", "1\n");
        ws.mkdir("var/log/old");
        ws.mkdir("p/s");
        for private in ["p", "p/s"] {
            ws.chmod(private, 0o700);
        }
        let modes = || ["src", "var", "var/log", "var/log/old", "p"].map(|d| ws.mode(d) & 0o777);
        let before = modes();
        for script in [
            "chmod 755 p",
            "chmod 700 src var var/log var/log/old",
            "chmod 755 p p/s; chmod 700 src var var/log",
            "chmod 755 p; rmdir p/s",
        ] {
            let snapshot = ws.snapshot();
            ws.run::<&str>([], script).ok();
            assert_ne!(modes(), before, "{script}");
            let undone = ws.undo();
            assert_eq!(modes(), before, "{script}: {undone}");
            assert_eq!(undone["skipped"], serde_json::json!([]), "{script}");
            assert_eq!(ws.mode("p/s") & 0o777, 0o700, "{script}");
            ws.run::<&str>([], script).ok();
            ws.restore(&snapshot);
            assert_eq!(modes(), before, "{script}, restored");
        }
    }
}

#[test]
fn what_is_no_text_or_too_long_is_kept_as_it_is() {
    let ws = TestWorkspace::repository();
    let long = |first: &str| format!("{first}\n{}", "x\n".repeat(3 << 20));
    ws.write("binary", lines(&[(1, "\0")]));
    ws.write("long", long("one"));
    let run = ws
        .run::<&str>([], "sed -i '1s/.*/run/' binary long")
        .ok()
        .json();
    let binary = lines(&[(1, "run\0"), (20, "mine")]);
    ws.write("binary", &binary);
    ws.write("long", long("run") + "mine\n");
    let outcome = ws.json(["undo", run["run_id"].as_str().unwrap()]);
    assert_eq!(json::names_in(&outcome["skipped"]), ["binary", "long"]);
    assert_eq!(outcome["conflicts"], serde_json::json!([]));
    assert_eq!(ws.text("binary"), binary);
    assert_eq!(ws.text("long"), long("run") + "mine\n");
}

#[test]
fn a_file_of_the_run_that_was_edited_since_is_kept() {
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "echo made > new; echo made > other; rm README")
        .ok();
    ws.write("new", "continued by a person\n");
    ws.write("README", "written anew by a person\n");
    let outcome = ws.undo();
    assert_eq!(ws.text("new"), "continued by a person\n");
    assert_eq!(ws.text("README"), "written anew by a person\n");
    assert!(!ws.exists("other"));
    assert_eq!(json::names_in(&outcome["skipped"]), ["README", "new"]);
}

// "the last undo", which had taken nothing back
#[test]
fn an_undo_that_took_nothing_back_is_not_what_came_last() {
    for (ws, options) in [
        (TestWorkspace::repository(), &[][..]),
        (TestWorkspace::plain(), &["--retain-content"]),
    ] {
        let run = ws.run(options, "echo made > new").ok().json();
        let made = ws.text("new");
        ws.write("new", "written anew by a person\n");
        for _ in 0..2 {
            let undone = ws.undo();
            assert_eq!(undone["undone"]["run_id"], run["run_id"], "{undone}");
            assert_eq!(json::names(&undone["restored"]), NOTHING, "{undone}");
            assert_eq!(json::names_in(&undone["skipped"]), ["new"], "{undone}");
        }
        // Once the edit is taken away there is what it left.
        ws.write("new", made);
        let undone = ws.undo();
        assert_eq!(json::names(&undone["restored"]), ["new"], "{undone}");
        let redone = ws.undo();
        assert_eq!(redone["undone"]["operation"], "undo", "{redone}");
        assert_eq!(ws.text("new"), "made\n");
    }
}

// "nothing left to take back of the last restore", every time
#[test]
fn a_restore_that_changed_nothing_is_not_what_came_last() {
    for (ws, options) in [
        (TestWorkspace::repository(), &[][..]),
        (TestWorkspace::plain(), &["--retain-content"]),
    ] {
        let run = ws.run(options, "echo made > new").ok().json();
        let here = run["workspace"]["after_snapshot"]["id"].as_str().unwrap();
        let idle = ws.restore_id(here);
        assert_eq!(json::names(&idle["restored"]), NOTHING, "{idle}");
        let undone = ws.undo();
        assert_eq!(undone["undone"]["run_id"], run["run_id"], "{undone}");
        assert_eq!(json::names(&undone["restored"]), ["new"], "{undone}");
        // One that changed something is.
        ws.restore_id(here);
        let undone = ws.undo();
        assert_eq!(undone["undone"]["operation"], "restore", "{undone}");
        assert!(!ws.exists("new"), "{undone}");
    }
}

#[test]
fn a_named_run_is_taken_back_though_others_came_since() {
    let ws = TestWorkspace::repository();
    let first = ws.run::<&str>([], "echo first > a").ok().json();
    ws.run::<&str>([], "echo second > b").ok();
    let outcome = ws.json(["undo", first["run_id"].as_str().unwrap()]);
    assert!(!ws.exists("a"));
    assert_eq!(ws.text("b"), "second\n");
    assert_eq!(json::names(&outcome["restored"]), ["a"]);
}

#[test]
fn a_failed_run_can_be_undone() {
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "echo x > README; exit 3").exits(3);
    ws.undo();
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn undo_of_a_restore_gives_back_bytes_modes_and_links() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.write_executable("tool", "x\n");
    ws.symlink("link", "tool");
    ws.write("private", "x\n");
    ws.chmod("private", 0o600);
    ws.mkdir("empty");
    let edited = view::worktree(ws.root());
    ws.restore(&snapshot);
    assert!(!ws.exists("tool"));
    ws.undo();
    view::same(&edited, &view::worktree(ws.root()), "exactly");
}

#[test]
fn undo_takes_back_the_empty_directories_above_an_empty_directory_that_a_restore_made() {
    let ws = TestWorkspace::repository();
    ws.mkdir("zz/yy");
    let snapshot = ws.snapshot();
    ws.remove("zz");
    let without = view::worktree(ws.root());
    ws.restore(&snapshot);
    assert!(ws.exists("zz/yy"));
    ws.undo();
    view::same(&without, &view::worktree(ws.root()), "neither is there");
    ws.undo();
    assert!(ws.exists("zz/yy"), "redone");
}

// Given any restore, when its guard is restored, all is as before the first
#[test]
fn undo_takes_back_what_a_restore_made_though_a_rule_ignores_it() {
    for strategy in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        let rule = match strategy {
            "git" => "*.log\n",
            _ => "no rule for this backend\n",
        };
        ws.write("x.log", "1\n");
        ws.write("a/x.log", "1\n");
        let snapshot = ws.snapshot_with(["--strategy", strategy, "--retain-content"]);
        let then = view::worktree(ws.root());
        ws.remove("x.log");
        ws.remove("a");
        ws.write("a", "precious\n");
        ws.write(".gitignore", rule);
        let messed = view::worktree(ws.root());
        let guard = ws.restore(&snapshot)["guard_snapshot"].clone();
        view::same(&then, &view::worktree(ws.root()), "restored");
        let undone = ws.undo();
        assert_eq!(json::names_in(&undone["skipped"]), [""; 0], "{undone}");
        view::same(&messed, &view::worktree(ws.root()), "undone");
        ws.undo();
        view::same(&then, &view::worktree(ws.root()), "redone");
        let back = ws.restore_id(guard.as_str().unwrap());
        assert_eq!(json::names_in(&back["skipped"]), [""; 0], "{back}");
        view::same(&messed, &view::worktree(ws.root()), "by the first guard");
    }
}
// A second undo is a redo
#[test]
fn a_second_undo_is_a_redo() {
    let ws = TestWorkspace::repository();
    let before = view::worktree(ws.root());
    ws.run::<&str>([], "echo x > README; echo y > new").ok();
    let after = view::worktree(ws.root());
    ws.undo();
    view::same(&before, &view::worktree(ws.root()), "undone");
    ws.undo();
    view::same(&after, &view::worktree(ws.root()), "redone");
    ws.undo();
    view::same(&before, &view::worktree(ws.root()), "and undone again");
}

#[test]
fn undo_takes_the_latest_of_runs_and_restores() {
    let ws = TestWorkspace::repository();
    let snapshot = ws.snapshot();
    ws.run::<&str>([], "echo run > README").ok();
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");
    ws.undo();
    assert_eq!(ws.text("README"), "run\n", "the restore was the latest");
}

#[test]
fn undo_works_from_a_directory_below_the_workspace() {
    let ws = TestWorkspace::repository();
    ws.write("deep/er/file", "x\n");
    ws.run::<&str>([], "echo x > README; echo y > deep/er/file")
        .ok();
    assert_eq!(ws.text("deep/er/file"), "y\n");
    let below = ws.path("deep/er");
    ws.call(["--json", "undo"]).cwd(&below).run().ok();
    assert_eq!(ws.text("README"), "hello\n");
    assert_eq!(ws.text("deep/er/file"), "x\n");
}

#[test]
fn an_undo_of_some_paths_leaves_the_rest_of_the_run() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("a", "1\n");
        ws.write("d/b", "1\n");
        ws.write("d/gone", "1\n");
        ws.write("mine", "1\n");
        let script = "echo 2 > a; echo 2 > d/b; rm d/gone; echo 2 > d/new; echo 2 > e";
        let run = ws.run(["--retain-content"], script).ok().json();
        let run_id = run["run_id"].as_str().unwrap();
        ws.write("mine", "since\n");
        ws.write("d/mine", "since\n");
        let left = view::worktree(ws.root());

        let plan = ws.untouched(|| ws.json(["undo", run_id, "--plan", "--", "d"]));
        assert_eq!(json::names(&plan["removals"]), ["d/new"], "{plan}");
        assert_eq!(json::names_in(&plan["writes"]), ["d/b", "d/gone"], "{plan}");
        assert_eq!(plan["undone"]["run_id"], run_id, "{plan}");
        let id = plan["plan_id"].as_str().unwrap();
        ws.write("d/b", "3\n");
        let refused = ws.untouched(|| ws.try_json(["undo", run_id, "--apply", id, "--", "d"]));
        let told = refused.stderr_text();
        refused.refused("Conflict");
        let advice = format!("\"stillframe undo {run_id} --plan\" makes a new plan and shows it");
        assert!(
            told.contains(&advice) && !told.contains("restore SNAPSHOT"),
            "{told}"
        );
        ws.write("d/b", "2\n");

        let outcome = ws.json(["undo", run_id, "--apply", id, "--", "d"]);
        let restored = json::names(&outcome["restored"]);
        assert_eq!(restored, ["d/b", "d/gone", "d/new"], "{outcome}");
        let texts = ["a", "d/b", "d/gone", "e", "mine", "d/mine"].map(|path| ws.text(path));
        assert_eq!(texts, ["2\n", "1\n", "1\n", "2\n", "since\n", "since\n"]);
        assert!(!ws.exists("d/new"));

        // It is an operation of its own, and the run can still be taken back, as far as it is
        // there.
        ws.undo();
        view::same(&left, &view::worktree(ws.root()), "the undo of the undo");
        ws.json(["undo", run_id, "--", "d/new"]);
        assert!(!ws.exists("d/new") && ws.text("d/b") == "2\n");
        ws.json(["undo", run_id]);
        assert_eq!((ws.text("a"), ws.text("d/b")), ("1\n".into(), "1\n".into()));
        assert!(!ws.exists("e") && ws.text("mine") == "since\n");
    }
}

#[test]
fn an_undo_of_a_path_that_the_operation_did_not_change_is_refused() {
    let ws = TestWorkspace::repository();
    ws.write("other", "1\n");
    let run = ws.run::<&str>([], "echo 2 > README").ok().json();
    let run_id = run["run_id"].as_str().unwrap();
    for args in [
        &["undo", "--", "other"][..],
        &["undo", run_id, "--", "README", "nowhere"],
    ] {
        let refused = ws.untouched(|| ws.try_json(args));
        let message = refused.refused("NotFound");
        assert!(
            message.contains(run_id) && message.contains(args[args.len() - 1]),
            "{message}"
        );
    }
    // A run's id is no path unless it comes after the dashes.
    ws.untouched(|| ws.try_json(["undo", "--", run_id]).refused("NotFound"));
    let wrong = ws.untouched(|| ws.stillframe(["undo", run_id, "README"]));
    wrong.exits(2);
}

#[test]
fn paths_of_an_undo_are_named_from_where_one_stands() {
    let ws = TestWorkspace::repository();
    ws.write("d/e/file", "1\n");
    ws.write("file", "1\n");
    let script = "echo 2 > d/e/file; echo 2 > file";
    let run = ws.run::<&str>([], script).ok().json();
    let run_id = run["run_id"].as_str().unwrap();
    let below = ws.path("d/e");
    ws.call(["--json", "undo", "--", "file"])
        .cwd(&below)
        .run()
        .ok();
    assert_eq!(
        (ws.text("d/e/file"), ws.text("file")),
        ("1\n".into(), "2\n".into())
    );
    ws.undo();
    let root = ws.root().to_str().unwrap();
    let named = ws.call(["--json", "undo", run_id, "--workspace", root, "--", "file"]);
    named.cwd(&below).run().ok();
    assert_eq!(
        (ws.text("d/e/file"), ws.text("file")),
        ("2\n".into(), "1\n".into())
    );
}

#[test]
fn an_undo_of_some_paths_leaves_index_and_branch() {
    let ws = TestWorkspace::repository();
    let git = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
        GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";
    let script = format!("{git} echo x > new; echo x > README; git add -A; git commit -q -m work");
    ws.run::<&str>([], &script).ok();
    let state = || {
        (
            ws.git(["rev-parse", "HEAD"]),
            ws.git(["ls-files", "--stage"]),
        )
    };
    let was = state();
    let plan = ws.untouched(|| ws.json(["undo", "--plan"]));
    let name = &plan["repository"]["refs"][0]["name"];
    assert_eq!(
        name, "refs/heads/main",
        "the whole of it has the branch: {plan}"
    );
    ws.json(["undo", "--", "README"]);
    assert_eq!(state(), was);
    assert_eq!(
        (ws.text("README"), ws.text("new")),
        ("hello\n".into(), "x\n".into())
    );
}

#[test]
fn with_nothing_to_undo_it_says_so() {
    let ws = TestWorkspace::repository();
    ws.untouched(|| ws.try_json(["undo"]).refused("NotFound"));
    ws.snapshot();
    ws.untouched(|| ws.try_json(["undo"]).refused("NotFound"));
    ws.untouched(|| {
        ws.try_json(["undo", "run_00000000000000000000000000000000"])
            .refused("NotFound")
    });
}

// Index and branch as the operation undone
#[test]
fn undo_of_a_run_brings_index_and_branch_back() {
    let ws = TestWorkspace::repository();
    let git = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
        GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";
    let script = format!("{git} echo x > new; git add new; git commit -q -m work");
    ws.run::<&str>([], &script).ok();
    let tip = ws.git(["rev-parse", "HEAD"]);
    let before_run = ws.git(["rev-parse", "HEAD~1"]);
    ws.undo();
    assert!(!ws.exists("new"));
    assert_eq!(
        ws.git(["rev-parse", "HEAD"]),
        before_run,
        "the branch as before the run"
    );
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    ws.undo();
    assert_eq!(ws.text("new"), "x\n");
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
    assert_eq!(ws.git(["status", "--porcelain"]), "");
}

// The branch only by compare-and-swap
#[test]
fn undo_does_not_move_a_branch_that_somebody_else_moved_since() {
    let ws = TestWorkspace::repository();
    let git = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
        GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";
    ws.run::<&str>(
        [],
        &format!("{git} echo x > new; git add new; git commit -q -m work"),
    )
    .ok();
    assert_eq!(ws.git(["log", "-1", "--format=%s"]), "work");
    ws.write("mine", "x\n");
    ws.git(["add", "mine"]);
    ws.git(["commit", "-q", "-m", "somebody else's"]);
    let tip = ws.git(["rev-parse", "HEAD"]);
    let output = ws.try_json(["undo"]);
    assert_eq!(
        ws.git(["rev-parse", "HEAD"]),
        tip,
        "their commit stays: {output}"
    );
    assert_eq!(ws.text("mine"), "x\n");
}

#[test]
fn undo_never_touches_ignored_files() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.run::<&str>([], "echo x > a.log; echo x > README").ok();
    ws.undo();
    assert_eq!(ws.text("a.log"), "x\n");
    assert_eq!(ws.text("README"), "hello\n");
}

// It stayed, and the answer said nothing of it
#[test]
fn what_a_run_made_and_an_undo_may_not_read_stays_and_is_named() {
    let mut ws = TestWorkspace::repository();
    if !ws.drop_privileges() {
        return capability::skipped(Capability::OtherUser, "it cannot run as another user");
    }
    ws.run::<&str>(
        [],
        "echo run > README; echo x > made; mkdir d; echo y > d/made",
    )
    .ok();
    ws.chmod("made", 0);
    ws.chmod("d", 0);
    let outcome = ws.undo();
    ws.chmod("d", 0o755);
    assert_eq!(ws.text("README"), "hello\n");
    assert!(ws.exists("made") && ws.exists("d/made"), "{outcome}");
    assert_eq!(json::names_in(&outcome["skipped"]), ["d", "made"]);
}

#[test]
fn an_undo_that_keeps_edits_tells_a_person() {
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "echo run > README").ok();
    ws.write("README", "edited since\n");
    let output = ws.stillframe(["undo"]).ok();
    let said = output.stdout_text() + &output.stderr_text();
    assert!(said.contains("README"), "{output}");
}

#[test]
fn somebody_new_runs_a_command_breaks_something_and_gets_it_back() {
    let ws = TestWorkspace::repository();
    ws.write("notes", "never committed\n");
    ws.stillframe(["run", "--", "/bin/sh", "-c", "rm -rf notes README; exit 1"])
        .exits(1);
    assert!(!ws.exists("notes"));
    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.text("notes"), "never committed\n");
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn an_undo_that_switches_head_says_so() {
    let ws = TestWorkspace::repository();
    ws.stillframe(["run", "--", "git", "switch", "--quiet", "-c", "side"])
        .ok();
    for (from, to) in [("side", "main"), ("main", "side")] {
        let said = ws.stillframe(["undo"]).ok().stderr_text();
        let line = format!("HEAD names {to} again; it was {from}\n");
        assert!(said.contains(&line), "{said}");
        let head = ws.git(["symbolic-ref", "--short", "HEAD"]);
        assert_eq!(head.trim(), to);
    }
}

// Typed where it was told, it was about another directory
#[test]
fn what_is_advised_about_a_plan_is_about_the_workspace_that_was_named() {
    let ws = TestWorkspace::repository();
    let run = ws.run::<&str>([], "echo x > README").ok().json();
    let id = run["run_id"].as_str().unwrap();
    let other = "plan_00000000000000000000000000000000";
    for (target, elsewhere) in [(vec![], true), (vec![id], true), (vec![id], false)] {
        let mut call = ws.call(["undo"]).args(target).args(["--apply", other]);
        if elsewhere {
            call = call
                .args(["--workspace"])
                .args([ws.root()])
                .cwd(ws.outside());
        }
        let told = call.run().exits(1).stderr_text();
        let (_, command) = told.split_once("\"stillframe ").unwrap();
        let (command, _) = command.split_once('"').unwrap();
        let from = if elsewhere {
            ws.outside()
        } else {
            ws.root().to_owned()
        };
        let planned = ws.call(command.split(' ')).cwd(from).run().ok();
        assert!(planned.stdout_text().contains("replace  README"), "{told}");
    }
}

/// What a run with this script tells at its end.
fn told_by_run(ws: &TestWorkspace, script: &str) -> String {
    let ran = ws.call(["run", "--", "sh", "-c", script]).run();
    ran.ok().stderr_text()
}

// "takes it back", and the undo took nothing back
#[test]
fn no_undo_is_promised_that_would_take_nothing_back() {
    let ws = TestWorkspace::repository();
    ws.git(["checkout", "-q", "-b", "d"]);
    let told = told_by_run(&ws, "git branch -q -m d d/x");
    assert!(!told.contains("takes it back"), "{told}");
    let said = "cannot be taken back: refs/heads/d/x is in the way of refs/heads/d: ";
    assert!(told.contains(said), "{told}");
    assert!(
        told.contains("git symbolic-ref HEAD refs/heads/d"),
        "{told}"
    );

    for sparse in ["--no-sparse-index", "--sparse-index"] {
        let ws = TestWorkspace::repository();
        ws.write("in/file", "1\n");
        ws.write("out/file", "1\n");
        ws.write("out/second", "1\n");
        ws.commit("both");
        ws.git(["sparse-checkout", "set", "--cone", sparse, "in"]);
        let made = "mkdir -p out; echo 2 > out/file";
        let told = told_by_run(&ws, made);
        assert!(!told.contains("takes it back"), "{sparse}: {told}");
        assert!(told.contains("cannot be taken back"), "{sparse}: {told}");
        let left = "left     out/file (not captured: sparse)";
        assert!(told.contains(left), "{sparse}: {told}");
        // Beside something that can be.
        let told = told_by_run(&ws, "echo 3 > out/file; echo 2 > in/file");
        assert!(told.contains("takes it back"), "{sparse}: {told}");
        let told = told_by_run(&ws, "echo 2 > out/second; git rm -q --cached in/file");
        assert!(told.contains("takes it back"), "{sparse}: {told}");
    }
}

// HEAD and branch are taken back though no file changed
#[test]
fn an_undo_of_head_alone_is_promised_and_kept() {
    for script in ["git checkout -q -b side", "git checkout -q --detach"] {
        let ws = TestWorkspace::repository();
        let told = told_by_run(&ws, script);
        assert!(told.contains("takes it back"), "{script}: {told}");
        ws.undo();
        assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
    }
}

// "nothing had to be restored"
#[test]
fn what_went_back_of_the_repository_alone_is_said() {
    let commit = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
        GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; git commit -q --allow-empty -m two";
    for (script, line) in [
        ("git rm -q --cached README", "git's index put back; "),
        ("git checkout -q -B side", "HEAD put back; "),
        (commit, "branch main put back; "),
        (
            "git checkout -q -B side; git rm -q --cached README",
            "HEAD and git's index put back; ",
        ),
    ] {
        let ws = TestWorkspace::repository();
        let ran = ws.run::<&str>([], script).ok().json();
        let told = ws.stillframe(["undo"]).ok().stdout_text();
        assert!(!told.contains("had to be"), "{script}: {told}");
        assert!(
            told.lines().any(|l| l.starts_with(line)),
            "{script}: {told}"
        );
        let ran = ran["workspace"]["after_snapshot"]["id"].as_str().unwrap();
        ws.json(["restore", ran, "--repository"]);
        let undone = ws.json(["undo"]);
        let put_back = &undone["repository"];
        assert!(put_back["refs"].is_array(), "{script}: {undone}");
        assert_eq!(put_back["problem"], serde_json::Value::Null);

        let failing = format!("{script}; exit 1");
        let call = ws.call(["run", "--rollback-on-failure", "--", "sh", "-c", &failing]);
        let told = call.run().exits(1).stderr_text();
        let line = format!("rolled back: {line}");
        assert!(told.contains(&line), "{script}: {told}");
    }
    // Nothing of it went back.
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "echo x > README").ok();
    assert_eq!(ws.undo()["repository"], serde_json::Value::Null);
}
