//! A captured file in whose place a run leaves what no snapshot takes: one that is too large, a
//! FIFO, one that may not be read. It is a change, it comes back, and what was in its way can be
//! had back too.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use stillframe_tests::capability::{self, Capability};
use stillframe_tests::{TestWorkspace, json, oracle};

const NOTHING: [&str; 0] = [];

/// What a run leaves in the place of `db`.
struct Way {
    script: &'static str,
    reason: &'static str,
    /// As what the file is known again: kind, size, permission bits.
    left: (bool, u64, u32),
}

const LARGE: Way = Way {
    script: "truncate -s 104857601 db",
    reason: "too_large",
    left: (false, 104_857_601, 0o644),
};
const FIFO: Way = Way {
    script: "rm db; mkfifo -m 640 db",
    reason: "special",
    left: (true, 0, 0o640),
};
const LOCKED: Way = Way {
    script: "chmod 000 db",
    reason: "unreadable",
    left: (false, 9, 0),
};

/// A workspace with the untracked file `db`, and the options that its backend needs.
fn workspaces() -> [(TestWorkspace, Vec<&'static str>); 2] {
    let made = [
        (TestWorkspace::repository(), vec![]),
        (TestWorkspace::plain(), vec!["--retain-content"]),
    ];
    for (ws, _) in &made {
        ws.write("db", "precious\n");
        ws.chmod("db", 0o644);
        ws.write("other", "kept\n");
    }
    made
}

// "takes it back", and the undo took nothing back
#[test]
fn no_undo_is_promised_of_what_no_snapshot_has() {
    for (ws, options) in workspaces() {
        ws.stillframe(["snapshot"]).ok();
        let run = |script: &str| {
            let args = [&["run"], &options[..], &["--", "sh", "-c", script]].concat();
            ws.call(args).run().ok().stderr_text()
        };
        for script in ["truncate -s 104857601 big", "echo small > big"] {
            let said = run(script);
            assert!(said.contains("cannot be taken back"), "{script}: {said}");
            assert!(!said.contains("takes it back"), "{script}: {said}");
        }
        run("truncate -s 104857601 big");
        let said = run("rm big");
        assert!(said.contains("cannot be taken back"), "{said}");
        assert!(!said.contains("takes it back"), "{said}");
        let said = run("truncate -s 104857601 big; echo more >> other");
        assert!(said.contains("takes it back"), "{said}");
    }
}

/// The ways that mean something to whoever runs the program, and each in a workspace of each
/// backend.
fn each_way(story: impl Fn(&TestWorkspace, &[&str], &Way)) {
    for way in [LARGE, FIFO, LOCKED] {
        for (mut ws, options) in workspaces() {
            if way.reason == "unreadable" && !ws.drop_privileges() {
                let why = "nobody cannot run the program";
                return capability::skipped(Capability::OtherUser, why);
            }
            story(&ws, &options, &way);
        }
    }
}

fn is_left(ws: &TestWorkspace, way: &Way) -> bool {
    let found = ws.stat("db");
    (
        found.file_type().is_fifo(),
        found.len(),
        found.mode() & 0o7777,
    ) == way.left
}

#[test]
fn a_captured_file_comes_back_whatever_a_failed_run_leaves_in_its_place() {
    each_way(|ws, options, way| {
        let options = [options, &["--rollback-on-failure"]].concat();
        let run = ws
            .run(&options, &format!("{}; exit 1", way.script))
            .exits(1)
            .json();
        let diff = &run["workspace"]["diff"];
        assert_eq!(json::names(&diff["changed_paths"]), ["db"], "{run}");
        assert_eq!(json::names(&diff["modified"]), ["db"], "{run}");
        let approximated = json::reason_of(&diff["approximated"], "db");
        assert_eq!(approximated.as_deref(), Some(way.reason), "{run}");
        assert_eq!(
            (&diff["insertions"], &diff["deletions"]),
            (&0.into(), &0.into())
        );
        assert_eq!(
            diff["has_patch"], false,
            "nothing is known that a patch could say"
        );

        let rollback = &run["workspace"]["rollback"];
        assert_eq!(rollback["status"], "completed", "{run}");
        assert_eq!(json::names(&rollback["restored"]), ["db"], "{run}");
        assert_eq!(json::names_in(&rollback["skipped"]), NOTHING, "{run}");
        assert_eq!(
            (ws.text("db").as_str(), ws.mode("db")),
            ("precious\n", 0o644)
        );

        let row = ws.show(run["run_id"].as_str().unwrap());
        let stored = &row["workspace"]["diff"]["changed_paths"];
        assert_eq!(json::names(stored), ["db"], "{row}");
    });
}

#[test]
fn a_person_is_told_that_it_changed_and_why_nothing_is_shown_of_it() {
    for (way, why) in [
        (LARGE, "db (one side left it out: too_large)"),
        (FIFO, "db (one side left it out: special)"),
    ] {
        let (ws, _) = &workspaces()[0];
        let said = ws
            .stillframe(
                ["run", "--rollback-on-failure", "--", "/bin/sh", "-c"]
                    .map(String::from)
                    .into_iter()
                    .chain([format!("{}; exit 1", way.script)]),
            )
            .exits(1)
            .stderr_text();
        assert!(said.contains("1 file changed"), "{said}");
        assert!(said.contains("rolled back: 1 path restored"), "{said}");
        let before = ws.json(["list"]);
        let before = before.as_array().unwrap().last().unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        ws.stillframe(["run", "--", "/bin/sh", "-c", way.script])
            .ok();
        let shown = ws.stillframe(["diff", &before]).ok().stdout_text();
        assert!(shown.contains("M db\n"), "{shown}");
        assert!(shown.contains(why), "{shown}");
    }
}

#[test]
fn one_path_or_all_of_a_snapshot_is_put_back_over_it() {
    each_way(|ws, options, way| {
        let before = ws.snapshot_with(options);
        for path in [&["db"][..], &[]] {
            ws.run(options, way.script).ok();
            ws.write("other", "kept\n");
            assert!(is_left(ws, way));
            let arguments = [&["restore", before.id()], path].concat();
            let plan = ws.json([&arguments[..], &["--plan"]].concat());
            assert_eq!(json::names(&plan["displaced"]), ["db"], "{plan}");
            let outcome = ws.json(&arguments);
            assert_eq!(json::names(&outcome["restored"]), ["db"], "{outcome}");
            assert_eq!(json::names_in(&outcome["skipped"]), NOTHING, "{outcome}");
            assert_eq!(ws.text("db"), "precious\n");
            let again = ws.json(&arguments);
            assert_eq!(json::names(&again["restored"]), NOTHING, "{again}");
        }
    });
}

#[test]
fn what_was_in_the_way_is_listed_with_the_guard_and_had_back_by_it() {
    each_way(|ws, options, way| {
        let before = ws.snapshot_with(options);
        ws.run(options, way.script).ok();
        let inode = ws.stat("db").ino();
        let outcome = ws.restore(&before);
        let guard = outcome["guard_snapshot"].as_str().unwrap();
        let shown = ws.show(guard);
        let displaced = shown["displaced"].as_array().unwrap();
        assert_eq!(displaced.len(), 1, "{shown}");
        assert_eq!(displaced[0]["path"], "db");
        assert_eq!(displaced[0]["reason"], way.reason);
        let at = displaced[0]["at"].as_str().unwrap();
        let kept = std::fs::symlink_metadata(at).unwrap();
        assert_eq!(kept.ino(), inode, "it was moved, and not read");
        let told = ws.stillframe(["show", guard]).ok().stdout_text();
        assert!(told.contains(at), "{told}");

        let back = ws.restore_id(guard);
        assert_eq!(json::names(&back["restored"]), ["db"], "{back}");
        assert_eq!(json::names_in(&back["skipped"]), NOTHING, "{back}");
        assert!(is_left(ws, way), "as it was before the restore");
        assert_eq!(ws.stat("db").ino(), inode);
        // The restore that brought it back is one like any other.
        ws.undo();
        assert_eq!(ws.text("db"), "precious\n");
        ws.restore_id(guard);
        assert!(is_left(ws, way), "as often as somebody wants it");
        let again = ws.restore_id(guard);
        assert_eq!(json::names(&again["restored"]), NOTHING, "{again}");
    });
}

#[test]
fn an_undo_and_its_undo_go_there_and_back() {
    each_way(|ws, options, way| {
        ws.run(options, way.script).ok();
        for _ in 0..2 {
            let undone = ws.undo();
            assert_eq!(json::names_in(&undone["skipped"]), NOTHING, "{undone}");
            assert_eq!(json::names(&undone["restored"]), ["db"], "{undone}");
            assert_eq!(ws.text("db"), "precious\n");
            let redone = ws.undo();
            assert_eq!(json::names(&redone["restored"]), ["db"], "{redone}");
            assert!(is_left(ws, way), "{redone}");
        }
    });
}

#[test]
fn an_undo_leaves_what_somebody_changed_since() {
    let (ws, _) = &workspaces()[0];
    ws.run::<&str>([], LARGE.script).ok();
    ws.sparse_file("db", 200_000_000);
    let undone = ws.undo();
    assert_eq!(
        json::reason_of(&undone["skipped"], "db").as_deref(),
        Some("edited_since")
    );
    assert_eq!(ws.stat("db").len(), 200_000_000);

    ws.remove("db");
    let before = ws.snapshot();
    ws.write("db", "precious\n");
    let file = ws.snapshot();
    ws.run::<&str>([], LARGE.script).ok();
    let guard = ws.restore(&file)["guard_snapshot"]
        .as_str()
        .unwrap()
        .to_owned();
    ws.write("db", "edited since\n");
    let undone = ws.undo();
    assert_eq!(
        json::reason_of(&undone["skipped"], "db").as_deref(),
        Some("edited_since")
    );
    assert_eq!(ws.text("db"), "edited since\n");
    // A restore of the guard asks nobody.
    ws.restore_id(&guard);
    assert!(is_left(ws, &LARGE));
    let left = ws.restore(&before);
    assert_eq!(
        json::reason_of(&left["skipped"], "db").as_deref(),
        Some("too_large"),
        "{left}"
    );
}

// "nothing was restored", and the file was back
#[test]
fn a_guard_of_a_low_limit_gives_back_what_it_displaced_under_a_higher_one() {
    for (ws, options) in workspaces() {
        let options = [&options[..], &["--max-untracked-file-bytes", "1K"]].concat();
        let options = [&options[..], &["--rollback-on-failure"]].concat();
        // One of them lies alone in its directory.
        ws.write("d/db", "precious\n");
        let script = "head -c 5000 /dev/zero > db; cp db d/db; exit 1";
        let run = ws.run(&options, script).exits(1).json();
        let both = ["d/db", "db"];
        assert_eq!(both.map(|path| ws.text(path)), ["precious\n"; 2]);
        let guard = run["workspace"]["rollback"]["guard_snapshot"].as_str();
        let back = ws.restore_id(guard.unwrap());
        assert_eq!(both.map(|path| ws.stat(path).len()), [5000; 2]);
        assert_eq!(json::names(&back["restored"]), both, "{back}");
        assert_eq!(json::names_in(&back["skipped"]), NOTHING, "{back}");
        let again = ws.json(["restore", guard.unwrap(), "--plan"]);
        assert_eq!(json::names_in(&again["skipped"]), NOTHING, "{again}");
        for what in ["writes", "make_directories"] {
            assert_eq!(again[what], serde_json::json!([]), "{again}");
        }
        let undone = ws.undo();
        assert_eq!(json::names(&undone["restored"]), both, "{undone}");
        assert_eq!(both.map(|path| ws.text(path)), ["precious\n"; 2]);
    }
}

// Nothing at all
#[test]
fn an_undo_names_what_the_run_changed_and_no_snapshot_had() {
    for (ws, options) in workspaces() {
        let options = [&options[..], &["--max-untracked-file-bytes", "1K"]].concat();
        ws.sparse_file("big", 3000);
        ws.sparse_file("same", 3000);
        ws.sparse_file("shrunk", 3000);
        let script = "truncate -s 4000 big shrunk";
        let run = ws.run(&options, script).ok().json();
        // What has its size again is not known to be lost.
        ws.sparse_file("shrunk", 3000);
        let undone = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(json::names_in(&undone["skipped"]), ["big"], "{undone}");
        let reason = json::reason_of(&undone["skipped"], "big");
        assert_eq!(reason.as_deref(), Some("too_large"), "{undone}");
    }
}

// "too large", of what a person made so
#[test]
fn an_undo_says_edited_since_of_what_somebody_made_unfit_for_a_capture() {
    for (ws, options) in workspaces() {
        let run = ws.run(&options, "for f in db pipe large; do echo run > $f; done");
        let run = run.ok().json();
        ws.remove("pipe");
        ws.mkfifo("pipe");
        for path in ["db", "large"] {
            ws.sparse_file(path, 104_857_601);
        }
        let undone = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(json::names(&undone["restored"]), NOTHING, "{undone}");
        for path in ["db", "pipe", "large"] {
            let reason = json::reason_of(&undone["skipped"], path);
            assert_eq!(reason.as_deref(), Some("edited_since"), "{path}: {undone}");
        }
    }
}

// "edited since" of files that nobody edited
#[test]
fn an_undo_says_edited_since_only_of_what_was() {
    for (ws, options) in workspaces() {
        let options = [&options[..], &["--max-untracked-file-bytes", "10"]].concat();
        let script = "echo longer than before > db; echo made by the run > made";
        let script = format!("{script}; {PAST_DOUBT}");
        let run = ws.run(&options, &script).ok().json();
        let id = run["run_id"].as_str().unwrap();
        let reasons = |restored: &[&str]| {
            let undone = ws.json(["undo", id]);
            assert_eq!(json::names(&undone["restored"]), restored, "{undone}");
            ["db", "made"].map(|path| json::reason_of(&undone["skipped"], path))
        };
        // Now the limit is the usual one, and both are seen: as large as the run left them.
        let too_large = || Some("too_large".to_owned());
        assert_eq!(reasons(&["db"]), [None, too_large()]);
        assert_eq!(ws.text("db"), "precious\n");
        ws.undo();
        assert_eq!(ws.text("db"), "longer than before\n", "the guard had it");
        ws.write("db", "edited\n");
        let edited = || Some("edited_since".to_owned());
        assert_eq!(reasons(&[]), [edited(), too_large()]);
        ws.write("made", "edited\n");
        assert_eq!(reasons(&[]), [edited(), edited()]);
        let (db, made) = (ws.text("db"), ws.text("made"));
        assert_eq!((db.as_str(), made.as_str()), ("edited\n", "edited\n"));
    }
}

/// Ends when `db` and what was written before are older than any tick of the clock of file times:
/// whether what was written in the tick of a capture was written before it cannot be told.
const PAST_DOUBT: &str =
    "until [ $(($(date +%s%N) - $(date -r db +%s%N))) -gt 50000000 ]; do :; done";

// "restored db", over what a person had written
#[test]
fn an_undo_keeps_an_edit_that_left_the_size_of_what_the_run_made_too_large() {
    for (ws, options) in workspaces() {
        let options = [&options[..], &["--max-untracked-file-bytes", "1K"]].concat();
        ws.write("bits", "precious\n");
        ws.write("left", "precious\n");
        let script = "head -c 5000 /dev/zero > db; cp db bits; cp db left";
        let script = format!("{script}; {PAST_DOUBT}");
        let run = ws.run(&options, &script).ok().json();
        let edited = "e".repeat(5000);
        ws.write("db", &edited);
        ws.chmod("bits", 0o755);
        let undone = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(json::names(&undone["restored"]), ["left"], "{undone}");
        for path in ["db", "bits"] {
            let reason = json::reason_of(&undone["skipped"], path);
            assert_eq!(reason.as_deref(), Some("edited_since"), "{path}: {undone}");
        }
        assert_eq!(ws.text("db"), edited);
        assert_eq!((ws.mode("bits"), ws.stat("bits").len()), (0o755, 5000));
        assert_eq!(ws.text("left"), "precious\n");
    }
}

#[test]
fn what_somebody_wrote_into_since_it_was_displaced_is_not_taken_for_it() {
    let (ws, _) = &workspaces()[0];
    let before = ws.snapshot();
    ws.run::<&str>([], LARGE.script).ok();
    let first = ws.restore(&before)["guard_snapshot"]
        .as_str()
        .unwrap()
        .to_owned();
    ws.restore_id(&first);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(ws.path("db"))
        .unwrap();
    file.set_len(104_857_700).unwrap();
    drop(file);
    ws.restore(&before);
    let back = ws.restore_id(&first);
    assert_eq!(
        json::reason_of(&back["skipped"], "db").as_deref(),
        Some("too_large"),
        "{back}"
    );
    assert_eq!(ws.text("db"), "precious\n");
    assert!(
        ws.show(&first)["displaced"].is_null(),
        "it is no more what it was"
    );
}

#[test]
fn what_is_in_the_way_of_a_directory_goes_too() {
    for (ws, options) in workspaces() {
        ws.write("d/file", "x\n");
        ws.write("e/f/file", "y\n");
        let before = ws.snapshot_with(&options);
        let script = "rm -r d e; truncate -s 104857601 d; mkfifo e";
        let run = ws.run(&options, script).ok().json();
        let diff = &run["workspace"]["diff"];
        assert_eq!(json::names(&diff["added"]), ["d", "e"], "{diff}");
        assert_eq!(
            json::names(&diff["deleted"]),
            ["d/file", "e/f/file"],
            "{diff}"
        );
        let outcome = ws.restore(&before);
        assert_eq!(
            (ws.text("d/file"), ws.text("e/f/file")),
            ("x\n".into(), "y\n".into())
        );
        assert_eq!(json::names_in(&outcome["skipped"]), NOTHING, "{outcome}");
        ws.undo();
        assert_eq!(ws.stat("d").len(), 104_857_601);
        assert!(ws.stat("e").file_type().is_fifo());
    }
}

#[test]
fn what_came_or_went_without_ever_being_captured_is_named() {
    for (ws, options) in workspaces() {
        ws.sparse_file("gone", 104_857_601);
        ws.sparse_file("stays", 104_857_601);
        ws.sparse_file("shrinks", 104_857_601);
        let script = "rm gone; truncate -s 104857601 came; mkfifo pipe; echo > shrinks";
        let run = ws.run(&options, script).ok().json();
        let diff = &run["workspace"]["diff"];
        assert_eq!(json::names(&diff["added"]), ["came", "pipe"], "{diff}");
        assert_eq!(json::names(&diff["deleted"]), ["gone"], "{diff}");
        assert_eq!(json::names(&diff["modified"]), ["shrinks"], "{diff}");
        assert_eq!(diff["files_changed"], 4);
        let approximated = json::names_in(&diff["approximated"]);
        assert_eq!(approximated, ["came", "gone", "pipe", "shrinks"], "{diff}");
        // The other way round it is the other way round.
        let id = |key: &str| run["workspace"][key]["id"].as_str().unwrap().to_owned();
        let diff = ws.json(["diff", &id("after_snapshot"), &id("before_snapshot")]);
        assert_eq!(json::names(&diff["added"]), ["gone"], "{diff}");
        assert_eq!(json::names(&diff["deleted"]), ["came", "pipe"], "{diff}");
        assert_eq!(json::names(&diff["modified"]), ["shrinks"], "{diff}");
    }
}

// "there was nothing left to take back", of a link
#[test]
fn what_a_rule_hides_and_a_run_replaced_by_a_thing_of_another_kind_is_named() {
    let ways = [
        ("ln -s /etc/passwd x.log", "rm x.log; mkdir x.log"),
        ("ln -s /etc/passwd x.log", "rm x.log; mkfifo x.log"),
        ("ln -s /etc/passwd x.log", "rm x.log; echo 1 > x.log"),
        ("mkdir x.log", "rmdir x.log; ln -s /etc/passwd x.log"),
        ("mkdir x.log", "rmdir x.log; mkfifo x.log"),
        ("echo 1 > x.log", "rm x.log; mkdir x.log"),
        ("echo 1 > x.log", "rm x.log; ln -s /etc/passwd x.log"),
    ];
    for (before, script) in ways {
        let ws = TestWorkspace::repository();
        ws.write(".gitignore", "*.log\n");
        ws.commit("a rule");
        ws.run::<&str>([], before).ok();
        ws.run::<&str>([], script).ok();
        let told = ws.stillframe(["undo"]).ok();
        let left = "left     x.log (not captured: ignored)";
        assert!(
            told.stdout_text().contains(left),
            "{before}; {script}: {told}"
        );
        let said = told.stderr_text();
        assert!(
            said.contains("nothing was taken back of run"),
            "{script}: {said}"
        );
    }
    // An edit, as its owner likes, and what stayed what it was.
    for (before, script) in [
        ("ln -s /etc/passwd x.log", "ln -sfn /etc/group x.log"),
        ("mkdir x.log", "rmdir x.log; mkdir x.log; echo 1 > x.log/a"),
        ("echo 1 > x.log", "echo more > x.log"),
    ] {
        let ws = TestWorkspace::repository();
        ws.write(".gitignore", "*.log\n");
        ws.commit("a rule");
        ws.run::<&str>([], before).ok();
        let run = ws.run::<&str>([], script).ok().json();
        let undone = ws.json(["undo", run["run_id"].as_str().unwrap()]);
        assert_eq!(
            undone["skipped"],
            serde_json::json!([]),
            "{script}: {undone}"
        );
    }
}

// A directory in the place of a file was one only where the rule hid it, too
#[test]
fn what_a_rule_hides_and_a_directory_that_is_captured_replaces_is_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n!*.log/\n");
    ws.commit("a rule");
    ws.symlink("x.log", "/etc/passwd");
    ws.run::<&str>([], "rm x.log; mkdir x.log; echo 1 > x.log/a")
        .ok();
    let told = ws.stillframe(["undo"]).ok().stdout_text();
    assert!(
        told.contains("left     x.log (not captured: ignored)"),
        "{told}"
    );
}

#[test]
fn an_omission_says_what_kind_of_thing_it_is_where_nothing_else_does() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.commit("a rule");
    ws.symlink("a.log", "/etc/passwd");
    ws.mkdir("b.log");
    ws.write("c.log", "1\n");
    let left = ws.show(ws.snapshot().id())["omissions"].clone();
    assert_eq!(
        left,
        serde_json::json!([
            {"path": "a.log", "reason": "ignored", "bytes": null, "kind": "link"},
            {"path": "b.log", "reason": "ignored", "bytes": null, "kind": "directory"},
            {"path": "c.log", "reason": "ignored", "bytes": 2},
        ])
    );
}

#[test]
fn a_directory_that_nobody_may_enter_hides_changed_files_and_no_deleted_ones() {
    for (mut ws, options) in workspaces() {
        ws.write("d/file", "x\n");
        if !ws.drop_privileges() {
            let why = "nobody cannot run the program";
            return capability::skipped(Capability::OtherUser, why);
        }
        let run = ws.run(&options, "chmod 000 d").ok().json();
        ws.chmod("d", 0o755);
        let diff = &run["workspace"]["diff"];
        assert_eq!(json::names(&diff["changed_paths"]), ["d/file"], "{diff}");
        assert_eq!(json::names(&diff["modified"]), ["d/file"], "{diff}");
        let reason = json::reason_of(&diff["approximated"], "d/file");
        assert_eq!(reason.as_deref(), Some("unreadable"), "{diff}");
    }
}

// "the git backend does not compare lines"
#[test]
fn where_there_is_no_patch_the_reason_is_the_true_one() {
    let (ws, _) = &workspaces()[0];
    let before = ws.snapshot();
    ws.sparse_file("db", 104_857_601);
    let refused = ws.stillframe(["diff", before.id(), "--patch"]).exits(1);
    let why = "nothing that changed is in both snapshots";
    assert!(
        refused.stderr_text().contains(why),
        "{}",
        refused.stderr_text()
    );
    let diff = ws.json(["diff", before.id(), "--patch"]);
    assert_eq!(diff["no_patch"], why);
    assert_eq!(json::names(&diff["changed_paths"]), ["db"]);
}

#[test]
fn what_a_patch_says_beside_it_can_be_applied() {
    let (ws, _) = &workspaces()[0];
    let before = ws.copy();
    let run = ws
        .run::<&str>(
            [],
            "truncate -s 104857601 db; echo more >> other; rm README",
        )
        .ok()
        .json();
    let diff = &run["workspace"]["diff"];
    assert_eq!(
        json::names(&diff["changed_paths"]),
        ["README", "db", "other"]
    );
    let patch = json::patch_bytes(&diff["patch"]);
    ws.write("db", "precious\n");
    oracle::applies(&patch, before.path(), ws.root());
}

// The advice named the snapshot after the run, which does not have it
#[test]
fn what_a_person_is_told_to_restore_after_a_rollback_brings_back_what_the_run_left() {
    each_way(|ws, options, way| {
        let args = ["run", "--rollback-on-failure"].into_iter();
        let args = args.chain(options.iter().copied());
        let script = format!("{}; exit 3", way.script);
        let call = ws.call(args.chain(["--", "sh", "-c", &script]));
        let told = call.run().exits(3).stderr_text();
        assert_eq!(ws.text("db"), "precious\n");
        let advice = told
            .split('"')
            .find(|part| part.starts_with("stillframe restore "));
        let words = advice
            .unwrap_or_else(|| panic!("{told}"))
            .split(' ')
            .skip(1);
        ws.call(words.collect::<Vec<_>>()).run().ok();
        assert!(is_left(ws, way), "{told}");
    });
}

// Restores and undos looked by their own limit at what was captured by a larger one
#[test]
fn a_file_that_was_captured_under_a_larger_limit_is_put_back_and_told_of_as_any_other() {
    const LIMIT: &str = "--max-untracked-file-bytes=300M";
    for retain in [&[][..], &["--retain-content"]] {
        let ws = match retain {
            [] => TestWorkspace::repository(),
            _ => TestWorkspace::plain(),
        };
        let large = || {
            let file = std::fs::File::create(ws.path("big")).unwrap();
            file.set_len(104_857_601).unwrap();
        };
        large();
        let options = [&[LIMIT][..], retain].concat();
        for script in ["echo q >> big", "rm big"] {
            ws.run(options.clone(), script).ok();
            let undone = ws.undo();
            assert_eq!(
                json::names(&undone["restored"]),
                ["big"],
                "{script}: {undone}"
            );
            assert_eq!(
                json::names(&undone["skipped"]),
                NOTHING,
                "{script}: {undone}"
            );
            assert_eq!(ws.path("big").metadata().unwrap().len(), 104_857_601);
        }
        let snapshot = ws.snapshot_with(&options);
        std::fs::remove_file(ws.path("big")).unwrap();
        let restored = ws.json(["restore", snapshot.id()]);
        assert_eq!(json::names(&restored["restored"]), ["big"], "{restored}");
        let undone = ws.undo();
        assert_eq!(json::names(&undone["restored"]), ["big"], "{undone}");
        assert!(!ws.path("big").exists());
    }
}

// Every file that the rule had hidden
#[test]
fn of_what_a_rule_hid_before_a_run_that_took_it_away_only_what_the_run_changed_is_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\nbuild/\nout/\n");
    let hidden = ["a.log", "d/b.log", "kept.log", "build/kept", "build/deep/b"];
    let below = ["build/names/d", "out/again/f", "out/moved/c"];
    for path in hidden.into_iter().chain(below) {
        ws.write(path, "before\n");
    }
    ws.settle();
    // What size and content leave open, the times tell.
    let script = ": > .gitignore; echo after1 > a.log; chmod 600 build/deep/b; \
                      mv out/moved x; mv x out/moved; mv d/b.log y; mv y d/b.log; \
                      mv out/again z; mv z out/again; echo > out/again/g; \
                      echo > build/names/e; echo > new.log";
    let changed = "a.log build/deep/b build/names/e d/b.log out/again/f out/again/g out/moved/c";
    let changed: Vec<_> = changed.split(' ').collect();
    let run = ws.run::<&str>([], script).ok().json();
    let id = run["run_id"].as_str().unwrap();
    let undone = ws.json(["undo", id]);
    ws.remove("new.log");
    ws.remove("build/names/e");
    ws.remove("out/again/g");
    ws.settle();
    let script = format!("{script}; exit 1");
    let failed = ws.run(["--rollback-on-failure"], &script).exits(1).json();
    for outcome in [&undone, &failed["workspace"]["rollback"]] {
        assert_eq!(json::names_in(&outcome["skipped"]), changed, "{outcome}");
        let leftover = json::names(&outcome["leftover_ignored"]);
        assert_eq!(leftover, ["new.log"], "{outcome}");
    }
}

// What nobody had changed, too
#[test]
fn of_what_was_too_large_for_a_snapshot_and_is_captured_by_now_only_what_changed_is_named() {
    for (ws, options) in workspaces() {
        ws.sparse_file("same", 3000);
        ws.sparse_file("written", 3000);
        ws.settle();
        let low = [&options[..], &["--max-untracked-file-bytes", "1K"]].concat();
        let snapshot = ws.snapshot_with(&low);
        ws.write("written", [b'w'; 3000]);
        ws.write("db", "edited\n");
        ws.snapshot_with(&options);
        let plan = ws.json(["restore", snapshot.id(), "--plan"]);
        let outcome = ws.restore(&snapshot);
        assert_eq!(json::names(&outcome["restored"]), ["db"], "{outcome}");
        for outcome in [&plan, &outcome] {
            assert_eq!(
                json::names_in(&outcome["skipped"]),
                ["written"],
                "{outcome}"
            );
            let reason = json::reason_of(&outcome["skipped"], "written");
            assert_eq!(reason.as_deref(), Some("too_large"), "{outcome}");
        }
    }
}

// "lists what is not as it was", which no list of captured files has
#[test]
fn a_rollback_that_left_an_ignored_file_does_not_say_that_a_diff_lists_it() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "log\n");
    ws.write("log", "a line\n");
    let script = "rm log; echo two > README; exit 1";
    let call = ws.call(["run", "--rollback-on-failure", "--", "sh", "-c", script]);
    let told = call.run().exits(1).stderr_text();
    assert!(
        told.contains("left     log (not captured: ignored)"),
        "{told}"
    );
    let said = "\" lists the captured files that are not as they were before the run";
    assert!(told.contains(said), "{told}");
}
