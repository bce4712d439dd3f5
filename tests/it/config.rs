//! What a user sets once in `config.toml`, and what becomes of it.

use stillframe_tests::{TestWorkspace, view};

/// Writes the file of the test's own HOME.
fn set(ws: &TestWorkspace, text: &str) {
    let directory = ws.home().join(".config/stillframe");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.toml"), text).unwrap();
}

#[test]
fn what_is_set_holds_unless_it_is_typed() {
    let ws = TestWorkspace::plain();
    ws.write("big", "x".repeat(3000));
    ws.write("kept", "k\n");
    ws.write("own/file", "1\n");
    ws.write("cache/file", "1\n");
    ws.write("a.log", "1\n");
    let root = ws.root().display().to_string();
    set(
        &ws,
        &format!(
            "[ignore]\npaths = [\"cache\"]\n[limits]\nmax_untracked_file_bytes = \"1K\"\n[workspace.{root:?}.ignore]\npaths = [\"own\"]\n"
        ),
    );
    let snapshot = ws.snapshot_with(["--ignore-glob", "*.log"]);
    let omitted = |path: &str| snapshot.omitted(path);
    for path in ["cache", "own", "a.log"] {
        assert_eq!(omitted(path).as_deref(), Some("excluded"), "{path}");
    }
    assert_eq!(omitted("big").as_deref(), Some("too_large"));
    assert_eq!(omitted("kept"), None);
    let why = ws.json(["why", "cache/file"]);
    assert_eq!(why["captured"], false, "{why}");
    let typed = ws.snapshot_with(["--max-untracked-file-bytes", "1M"]);
    assert_eq!(
        typed.omitted("big"),
        None,
        "an option counts before the file"
    );

    // A restore leaves alone what its snapshot left out.
    ws.write("kept", "edited\n");
    ws.write("cache/file", "2\n");
    ws.restore(&snapshot);
    assert_eq!(
        (ws.text("kept"), ws.text("cache/file")),
        ("k\n".to_owned(), "2\n".to_owned())
    );

    // Of another workspace it says what it says of all.
    std::fs::create_dir_all(ws.base().join("other/own")).unwrap();
    std::fs::write(ws.base().join("other/own/file"), "1\n").unwrap();
    let other = ws.base().join("other");
    let other = ws.json(["snapshot", "--workspace", other.to_str().unwrap()]);
    assert_eq!(other["metadata"]["files"], 1, "{other}");
}

#[test]
fn limits_of_the_file_hold_and_the_environment_counts_before_them() {
    let mut ws = TestWorkspace::plain();
    ws.write("a", "x".repeat(2000));
    set(
        &ws,
        "[limits]\nretain_content_bytes = 1000\nmax_store_bytes = 1\n",
    );
    ws.try_json(["snapshot"]).refused("LimitExceeded");
    ws.set_env("STILLFRAME_MAX_STORE_BYTES", "0");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.json["metadata"]["has_content"], false);
    let shown = ws.json(["config", "show"]);
    let of = |key: &str| {
        let values = shown["values"].as_array().unwrap();
        let held = values.iter().find(|held| held["key"] == key).unwrap();
        (
            held["value"].clone(),
            held["source"].clone(),
            held["line"].clone(),
        )
    };
    let null = serde_json::Value::Null;
    assert_eq!(
        of("limits.max_store_bytes"),
        (0.into(), "environment".into(), null.clone())
    );
    assert_eq!(
        of("limits.retain_content_bytes"),
        (1000.into(), "file".into(), 2.into())
    );
    assert_eq!(of("limits.max_files"), (0.into(), "default".into(), null));
    let text = ws.stillframe(["config", "show"]).ok().stdout_text();
    assert!(text.contains("config.toml, line 2"), "{text}");
    assert!(text.contains("$STILLFRAME_MAX_STORE_BYTES"), "{text}");
}

#[test]
fn what_is_wrong_in_the_file_is_an_error_of_usage_and_nothing_is_done() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    let path = ws.home().join(".config/stillframe/config.toml");
    let path = path.to_str().unwrap();
    for (text, line, key) in [
        ("[limits]\nmax_flies = 3\n", "line 2", "max_flies"),
        ("\n[limits]\nmax_files = \"many\"\n", "line 3", "max_files"),
        ("[hook]\n", "line 1", "hook"),
    ] {
        set(&ws, text);
        for args in [
            &["snapshot"][..],
            &["run", "--", "touch", "begun"],
            &["undo"],
            &["config", "show"],
            &["config", "check"],
        ] {
            let output = ws.stillframe(args).exits(2);
            let told = output.stderr_text();
            for part in [path, line, key] {
                assert!(told.contains(part), "{args:?}: {told}");
            }
            assert_eq!(told.lines().count(), 1, "{told}");
        }
        ws.try_json(["snapshot"]).exits(2).error("InvalidOptions");
        assert_eq!(
            ws.stillframe(["config", "path"]).ok().stdout_text(),
            format!("{path}\n")
        );
    }
    assert!(!ws.exists("begun") && !ws.state().exists());
    // A FIFO is not waited for.
    std::fs::remove_file(path).unwrap();
    stillframe_tests::make_fifo(std::path::Path::new(path));
    let told = ws.stillframe(["list"]).exits(2).stderr_text();
    assert!(told.contains("is no regular file"), "{told}");
}

#[test]
fn a_file_in_a_workspace_is_never_configuration() {
    let mut ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    for path in [
        "config.toml",
        "stillframe/config.toml",
        ".config/stillframe/config.toml",
    ] {
        ws.write(path, "[limits]\nmax_files = 1\n[nonsense]\n");
    }
    // A relative path would be one.
    ws.set_env("XDG_CONFIG_HOME", ".config");
    let before = view::worktree(ws.root());
    assert_eq!(ws.snapshot().count("files"), 4);
    view::same(&before, &view::worktree(ws.root()), "nothing is touched");
    let checked = ws.json(["config", "check"]);
    assert_eq!(checked["exists"], false, "{checked}");
    let elsewhere = ws.base().join("elsewhere");
    ws.set_env("XDG_CONFIG_HOME", &elsewhere);
    let expected = elsewhere.join("stillframe/config.toml");
    assert_eq!(
        ws.json(["config", "path"])["path"],
        expected.to_str().unwrap()
    );
    std::fs::create_dir_all(expected.parent().unwrap()).unwrap();
    std::fs::write(&expected, "[ignore]\nglobs = [\"*.toml\", \"**/*.toml\"]\n").unwrap();
    assert_eq!(ws.json(["config", "check"])["sound"], true);
    assert_eq!(ws.snapshot().count("files"), 1);
}

#[test]
fn what_is_kept_of_the_log_is_set_for_all_workspaces_and_for_none_alone() {
    let ws = TestWorkspace::plain();
    let sessions = || ws.json(["sessions"]).as_array().unwrap().len();
    let from_first = || ws.events([""; 0])[0]["position"] == 1;
    let root = ws.root().display().to_string();
    set(
        &ws,
        &format!(
            "[retention]\nolder_than = \"9d\"\n\n[workspace.{root:?}.retention]\nmax_events = 5\n"
        ),
    );
    let told = ws.stillframe(["config", "check"]).exits(2).stderr_text();
    for part in ["line 5", "max_events", "share the log", "[retention]"] {
        assert!(told.contains(part), "{part}: {told}");
    }

    set(&ws, "");
    ws.run([""; 0], "true").ok();
    ws.run([""; 0], "true").ok();
    assert!(from_first(), "nothing is removed unless somebody wants it");
    set(&ws, "[retention]\nmax_events = 5\n");
    let shown = ws.json(["config", "show"]);
    let shown = shown["values"].as_array().unwrap().iter();
    let shown: Vec<_> = shown
        .filter(|held| held["key"] == "retention.max_events")
        .collect();
    assert_eq!(shown.len(), 1);
    assert_eq!(
        (&shown[0]["value"], &shown[0]["line"]),
        (&5.into(), &2.into())
    );

    // Not by what was not asked, then by itself, and no more on that day.
    ws.json(["gc"]);
    ws.run(["--no-retention"], "true").ok();
    assert!(from_first());
    let told = ws.stillframe(["snapshot"]).ok().stderr_text();
    assert!(told.contains("from the log"), "{told}");
    assert!(!from_first());
    assert_eq!(ws.events([""; 0]).len(), 5);
    let told = ws.stillframe(["run", "--", "true"]).ok().stderr_text();
    assert!(!told.contains("from the log"), "{told}");
    assert!(ws.events([""; 0]).len() > 5);
    // At once where it is asked for; what is typed counts more.
    let gc = ws.json(["gc", "--retention", "--max-events", "1000"]);
    assert_eq!(gc["log"]["events"], 0, "{gc}");
    let gc = ws.json(["gc", "--retention", "--dry-run"]);
    assert!(gc["log"]["events"].as_u64().unwrap() > 0, "{gc}");
    ws.json(["gc", "--retention"]);
    assert_eq!(ws.events([""; 0]).len(), 5);
    assert_eq!(sessions(), 5, "no session was to go");
}

#[test]
fn what_is_wrong_is_said_in_words_of_the_file_and_a_check_finds_all_of_it() {
    let mut ws = TestWorkspace::plain();
    for (text, expected) in [
        ("[limits]\nmax_files = \"3\"\n", "a whole number"),
        ("[limits]\nmax_files = -3\n", "a whole number"),
        ("[retention]\nenabled = \"no\"\n", "true or false"),
        ("[ignore]\nglobs = \"x\"\n", "a list"),
        ("ignore = 3\n", "a section"),
        ("[retention]\nolder_than = \"0d\"\n", "more than zero"),
        ("[retention]\nmax_events = 0\n", "more than zero"),
        (
            "[retention]\nsessions_older_than = \"0d\"\n",
            "more than zero",
        ),
        (
            "[workspace.\"/a\".retention]\nolder_than = \"0ms\"\n",
            "more than zero",
        ),
    ] {
        set(&ws, text);
        let told = ws.stillframe(["config", "check"]).exits(2).stderr_text();
        assert!(told.contains(&format!("has to be {expected}")), "{told}");
        for of_the_parser in ["u64", "struct", "sequence", "invalid type"] {
            assert!(!told.contains(of_the_parser), "{of_the_parser}: {told}");
        }
    }
    let told = ws.stillframe(["gc", "--keep", "x"]).exits(2).stderr_text();
    assert!(told.contains("give a whole number"), "{told}");
    let help = ws.stillframe(["config", "--help"]).ok().stdout_text();
    for key in ["[retention]", "enabled", "older_than", "step_snapshots"] {
        assert!(help.contains(key), "{key}: {help}");
    }
    set(&ws, "");
    ws.stillframe(["config", "check"]).ok();
    ws.set_env("STILLFRAME_MAX_STORE_BYTES", "lots");
    let said = ws.try_json(["config", "check"]).refused("InvalidOptions");
    assert!(said.contains("STILLFRAME_MAX_STORE_BYTES"), "{said}");
    ws.stillframe(["list"]).exits(1);
}
