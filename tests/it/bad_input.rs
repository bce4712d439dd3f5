//! Bad input: a clear typed error, and nothing is touched.

use std::fs;

use stillframe_tests::{Snap, TestWorkspace, capability};

#[test]
fn a_path_that_is_no_directory_is_refused() {
    let ws = TestWorkspace::repository();
    let file = ws.path("README");
    let nowhere = ws.path("nowhere");
    for (path, says) in [
        (file.to_str().unwrap(), "workspace path is not a directory"),
        (
            nowhere.to_str().unwrap(),
            "workspace path is not a directory",
        ),
        ("/dev/null", "workspace path is not a directory"),
        ("", "workspace path cannot be empty"),
    ] {
        let option = format!("--workspace={path}");
        let message = ws.untouched(|| ws.try_json(["snapshot", &option]).refused("InvalidOptions"));
        assert!(message.contains(says), "{message}");
        assert!(!ws.state().join("workspaces").exists(), "no store was made");
    }
}

#[test]
fn an_unknown_strategy_is_refused() {
    let ws = TestWorkspace::repository();
    for strategy in ["fast", "", "Git", "auto,git"] {
        let option = format!("--strategy={strategy}");
        let output = ws.untouched(|| ws.stillframe(["snapshot", &option]));
        assert!([1, 2].contains(&output.code), "{output}");
        assert!(!output.stderr.is_empty(), "{output}");
        assert!(!ws.state().join("workspaces").exists(), "no store was made");
    }
}

// It has no work tree
#[test]
fn a_bare_repository_is_no_workspace() {
    let ws = TestWorkspace::plain();
    ws.git(["init", "-q", "--bare"]);
    for strategy in ["git", "auto"] {
        ws.untouched(|| {
            ws.try_json(["snapshot", "--strategy", strategy])
                .refused("Unsupported")
        });
        let run = ws.untouched(|| ws.run(["--strategy", strategy], "touch ran"));
        run.exits(125).error("Unsupported");
    }
    assert!(ws.stores().is_empty());
    ws.try_json(["snapshot", "--strategy", "hash"]).ok();
}

#[test]
fn a_cap_of_zero_is_refused_before_the_command() {
    let ws = TestWorkspace::repository();
    let mark = ws.outside().join("ran");
    let script = format!("touch '{}'", mark.display());
    let output = ws.untouched(|| ws.run(["--max-patch-bytes", "0"], &script));
    match output.code {
        2 => {}
        _ => drop(output.exits(125).error("InvalidOptions")),
    }
    assert!(!mark.exists());
    for cap in ["-1", "many", "1.5", "99999999999999999999999"] {
        ws.run(["--max-patch-bytes", cap], &script).exits(2);
    }
    assert!(!mark.exists());
    let output = ws.run(["--timeout", "0s"], &script);
    assert!([2, 125].contains(&output.code), "{output}");
    assert!(!mark.exists(), "no time at all is no time");
}

// An unknown or ambiguous snapshot id; restore.rs has restore
#[test]
fn an_unknown_id_is_not_found_everywhere() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let id = "snap_0123456789abcdef0123456789abcdef";
    for args in [
        &["show", id][..],
        &["diff", id],
        &["restore", id],
        &["restore", id, "--plan"],
        &["why", "README", "--snapshot", id],
        &["show", "run_0123456789abcdef0123456789abcdef"],
        &["undo", "run_0123456789abcdef0123456789abcdef"],
    ] {
        let message = ws.untouched(|| ws.try_json(args).refused("NotFound"));
        assert!(
            message.contains("0123456789abcdef"),
            "it names the id: {message}"
        );
    }
}

#[test]
fn an_ambiguous_prefix_is_refused() {
    let ws = TestWorkspace::plain();
    // Sixteen first digits: of twenty ids two begin alike, and "snap_" begins all of them.
    let ids: Vec<String> = (0..3).map(|_| ws.snapshot().id().to_owned()).collect();
    for prefix in ["snap_", "s", ""] {
        let output = ws.untouched(|| ws.try_json(["show", "--", prefix]));
        assert_eq!(output.code, 1, "{prefix:?}: {output}");
    }
    for id in &ids {
        assert_eq!(
            ws.show(id)["id"],
            id.as_str(),
            "a whole id is never ambiguous"
        );
    }
}

#[test]
fn a_beginning_that_is_too_short_is_said_to_be_that_with_the_number_of_matches() {
    let ws = TestWorkspace::plain();
    let run = ws.run::<&str>([], "true").ok().json();
    let run_id = run["run_id"].as_str().unwrap();
    ws.snapshot();
    for (args, matching) in [
        (&["show", "snap_"][..], "3 snapshots begin so"),
        (&["show", "sn"], "3 snapshots begin so"),
        (&["show", "run_"], "1 run begins so"),
        (&["restore", "snap_"], "3 snapshots begin so"),
        (&["restore", ""], "3 snapshots begin so"),
        (&["diff", "snap_"], "3 snapshots begin so"),
        (&["why", "x", "--snapshot", "snap_"], "3 snapshots begin so"),
        (&["undo", "run_"], "1 run begins so"),
        (&["undo", "r"], "1 run begins so"),
    ] {
        let message = ws.untouched(|| ws.try_json(args).refused("InvalidOptions"));
        assert!(message.contains("too short"), "{args:?}: {message}");
        assert!(message.contains("a digit at least"), "{args:?}: {message}");
        assert!(message.contains(matching), "{args:?}: {message}");
    }
    for args in [&["show", "snap_zz"][..], &["restore", "zz"]] {
        ws.untouched(|| ws.try_json(args).refused("NotFound"));
    }
    let digit = &run_id[..5];
    assert_eq!(ws.json(["show", digit])["run_id"], run_id, "it is unique");
}

#[test]
fn a_command_without_a_name_is_refused_before_anything_is_taken() {
    let ws = TestWorkspace::repository();
    let output = ws.untouched(|| ws.try_json(["run", "--", ""]).exits(125));
    let message = output.error("InvalidOptions");
    assert!(
        message.contains("the name of the command is empty"),
        "{message}"
    );
    assert_eq!(ws.json(["list"]), serde_json::json!([]));
}

#[test]
fn the_home_directory_and_the_root_are_refused_unless_named() {
    let ws = TestWorkspace::plain();
    fs::write(ws.home().join("file"), "x\n").unwrap();
    for (dir, name) in [(ws.home(), "HOME"), ("/".into(), "the root")] {
        for args in [
            &["snapshot"][..],
            &["run", "--", "true"],
            &["restore", "snap_00000000"],
        ] {
            let output = ws.call(["--json"]).args(args).cwd(&dir).run();
            let code = if args[0] == "run" { 125 } else { 1 };
            let message = output.exits(code).error("InvalidOptions");
            assert!(
                message.contains("--workspace"),
                "{name}: the way to mean it: {message}"
            );
        }
    }
    assert!(!ws.state().join("workspaces").exists(), "nothing was made");
    let home = ws.home();
    let named = ws.json(["snapshot", "--workspace", home.to_str().unwrap()]);
    assert_eq!(Snap::of(&named).count("files"), 1);
    let below = ws.home().join("project");
    fs::create_dir(&below).unwrap();
    ws.call(["--json", "snapshot"]).cwd(below).run().ok();
}

// A link that leads home
#[test]
fn the_home_directory_under_another_name_is_refused_too() {
    let ws = TestWorkspace::plain();
    let link = ws.base().join("link");
    std::os::unix::fs::symlink(ws.home(), &link).unwrap();
    ws.call(["--json", "snapshot"])
        .cwd(&link)
        .run()
        .refused("InvalidOptions");
    ws.call(["--json", "snapshot"])
        .env("HOME", &link)
        .cwd(ws.home())
        .run()
        .refused("InvalidOptions");
}

#[test]
fn a_state_directory_inside_the_workspace_is_refused() {
    let ws = TestWorkspace::repository();
    fs::create_dir(ws.base().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(ws.root(), ws.base().join("elsewhere/link")).unwrap();
    for state in [
        ws.path("state"),
        ws.path(".state/deep/er"),
        ws.path(".git/stillframe"),
        ws.root().to_owned(),
        ws.base().join("elsewhere/link/state"),
    ] {
        let call = ws
            .call(["--json", "snapshot"])
            .env("STILLFRAME_HOME", &state);
        let message = ws.untouched(|| call.run().refused("InvalidOptions"));
        assert!(message.contains("state"), "{message}");
    }
}

#[test]
fn the_workspace_may_lie_beside_the_state_directory_but_not_in_it() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let inside = ws.state().join("workspaces");
    let output = ws.call(["--json", "snapshot"]).cwd(&inside).run();
    assert_eq!(output.code, 1, "our own store is no workspace: {output}");
}

// A read-only or missing state directory
#[test]
fn a_missing_state_directory_is_made() {
    let ws = TestWorkspace::repository();
    let state = ws.base().join("not/there/yet");
    let call = ws
        .call(["--json", "snapshot"])
        .env("STILLFRAME_HOME", &state);
    Snap::of(&call.run().ok().json());
    assert!(state.is_dir());
    stillframe_tests::oracle::fsck(&state);
}

#[test]
fn without_stillframe_home_the_platforms_state_directory_is_used() {
    let ws = TestWorkspace::repository();
    let call = || {
        ws.call(["--json", "snapshot"])
            .env_remove("STILLFRAME_HOME")
    };
    call().run().ok();
    let default = ws.home().join(".local/state/stillframe");
    assert!(default.join("workspaces").is_dir());
    stillframe_tests::oracle::fsck(&default);
    let xdg = ws.base().join("xdg");
    call().env("XDG_STATE_HOME", &xdg).run().ok();
    assert!(xdg.join("stillframe/workspaces").is_dir());
    stillframe_tests::oracle::fsck(&xdg.join("stillframe"));
    let output = call().env_remove("HOME").run();
    assert_eq!(output.code, 1, "no place to keep anything: {output}");
    assert!(
        output.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("STILLFRAME_HOME")
    );
}

#[test]
fn a_state_directory_that_is_none_is_a_typed_error() {
    let ws = TestWorkspace::repository();
    fs::write(ws.base().join("a-file"), "x").unwrap();
    for state in [
        ws.base().join("a-file"),
        ws.base().join("a-file/below"),
        "/dev/null/below".into(),
        "/proc/nowhere".into(),
    ] {
        let output = ws.untouched(|| {
            ws.call(["--json", "snapshot"])
                .env("STILLFRAME_HOME", &state)
                .run()
        });
        let message = output.refused("Storage");
        assert!(
            message.contains(state.to_str().unwrap()),
            "it names the path: {message}"
        );
    }
}

#[test]
fn a_state_directory_of_another_user_is_refused() {
    if !capability::is_root() {
        return;
    }
    let ws = TestWorkspace::repository();
    fs::create_dir(ws.state()).unwrap();
    std::os::unix::fs::chown(ws.state(), Some(4242), Some(4242)).unwrap();
    ws.try_json(["snapshot"]).refused("Storage");
}

// A scope or an include path may not lead out of the workspace
#[test]
fn options_that_lead_outside_are_refused_and_named() {
    let ws = TestWorkspace::repository();
    for path in ["../outside", "/etc", "a/../../b"] {
        let message = ws.untouched(|| {
            ws.try_json(["snapshot", "--ignore-path", path])
                .refused("InvalidOptions")
        });
        assert!(message.contains(path), "{message}");
    }
    for glob in ["[", "a{b", "**["] {
        let message = ws.untouched(|| {
            ws.try_json(["snapshot", "--ignore-glob", glob])
                .refused("InvalidOptions")
        });
        assert!(message.contains(glob), "{message}");
    }
    let list = ws.json(["list"]);
    assert_eq!(list, serde_json::json!([]), "nothing was stored");
}

#[test]
fn a_label_that_cannot_be_kept_is_refused_or_kept_exactly() {
    let ws = TestWorkspace::repository();
    let long = "x".repeat(100_000);
    for label in ["", "\n", "two\nlines", "\u{202e}", "parent 0000", &long] {
        let option = format!("--label={label}");
        let output = ws.try_json(["snapshot", &option]);
        if output.code == 0 {
            assert_eq!(Snap::of(&output.json()).json["label"], label);
        } else {
            let code = output.code;
            assert!([1, 2].contains(&code), "{output}");
        }
    }
    // Text that looks like the store's own headers changes nothing else.
    let forged = ws.snapshot_with(["--label=x\nauthor Somebody <x@example.org> 0 +0000\n\nbody"]);
    assert_eq!(ws.show(forged.id()), forged.json);
}

// State from another version, or garbage
#[test]
fn garbage_in_place_of_the_database_is_an_error_and_stays() {
    let ws = TestWorkspace::repository();
    ws.snapshot();
    let databases: Vec<_> = fs::read_dir(ws.state())
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .filter(|p| fs::read(p).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3\0")))
        .collect();
    assert_eq!(databases.len(), 1, "the log is one database: {databases:?}");
    let garbage = b"this was a database once, and somebody wrote over it".repeat(100);
    for side in ["-wal", "-shm"] {
        let mut name = databases[0].clone().into_os_string();
        name.push(side);
        let _ = fs::remove_file(name);
    }
    fs::write(&databases[0], &garbage).unwrap();
    let output = ws.untouched(|| ws.try_json(["snapshot"]));
    assert_eq!(output.code, 1, "{output}");
    let kind = output.json()["error"]["kind"].clone();
    assert!(kind == "Corrupt" || kind == "Storage", "{output}");
    assert_eq!(
        fs::read(&databases[0]).unwrap(),
        garbage,
        "it is left for whoever can save it"
    );
}

// No directory is left out for the number of files in it; a host that fears the cost refuses
#[test]
fn more_files_than_the_host_allows_are_refused_before_the_command() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        let exists = fs::read_dir(ws.root()).unwrap().count() > 0;
        for n in 0..20 {
            ws.write(format!("many/{n}"), "x\n");
        }
        let all = if exists { 21 } else { 20 };
        let mark = ws.outside().join("ran");
        let script = format!("touch '{}'", mark.display());
        let (under, exact) = ((all - 1).to_string(), all.to_string());
        let message = ws.untouched(|| {
            let output = ws.run(["--max-files", &under], &script);
            output.exits(125).error("LimitExceeded")
        });
        let limit = format!("the limit is {under}");
        assert!(
            message.contains(&limit) && message.contains("no snapshot"),
            "{message}"
        );
        assert!(!mark.exists(), "the command was not run");
        ws.try_json(["snapshot", "--max-files", &under])
            .refused("LimitExceeded");
        assert_eq!(ws.json(["list"]), serde_json::json!([]));

        for limit in [exact.as_str(), "0"] {
            let snapshot = ws.snapshot_with(["--max-files", limit]);
            assert_eq!(snapshot.count("files"), all);
            assert!(!snapshot.json["omissions"].to_string().contains("many"));
        }
    }
}

// A limit that kept a run from being captured would keep it from being taken back
#[test]
fn what_a_run_left_is_captured_and_taken_back_however_much_it_is() {
    let ws = TestWorkspace::repository();
    let script = "for n in 1 2 3 4 5 6 7 8 9; do echo x > new$n; done; exit 3";
    let run = ws
        .run(["--max-files", "3", "--rollback-on-failure"], script)
        .exits(3)
        .json();
    assert_eq!(run["workspace"]["diff"]["files_changed"], 9);
    assert_eq!(run["workspace"]["rollback"]["status"], "completed");
    assert!(!ws.exists("new1"));
}
