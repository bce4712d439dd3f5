//! The hash backend: directories without git.

use stillframe_tests::capability::{self, Capability};
use stillframe_tests::{TestWorkspace, json, view};

const NOTHING: [&str; 0] = [];

/// Which of `files` a capture with these options has, seen as a diff against the empty workspace.
fn captured(options: &[&str], files: &[&str]) -> Vec<String> {
    let ws = TestWorkspace::plain();
    let empty = ws.snapshot_with(options);
    for name in files {
        ws.write(name, "x\n");
    }
    let full = ws.snapshot_with(options);
    json::names(&ws.diff(&empty, &full)["added"])
}

#[test]
fn directories_with_the_default_names_are_left_out_at_any_depth() {
    let files = [
        ".git/config",
        "deps/a",
        "_build/b",
        "node_modules/c",
        "sub/node_modules/d/e",
        "sub/deep/deps/f",
        "sub/.git/g",
        "ordinary",
        "sub/deps-like",
        // A file of such a name is no directory.
        "sub/other/_build",
    ];
    let ws = TestWorkspace::plain();
    for name in files {
        ws.write(name, "x\n");
    }
    let snapshot = ws.snapshot_with(["--strategy", "hash"]);
    for name in [
        "deps",
        "_build",
        "node_modules",
        "sub/node_modules",
        "sub/deep/deps",
    ] {
        assert_eq!(
            snapshot.omitted(name).as_deref(),
            Some("excluded"),
            "{name}"
        );
    }
    for name in [".git", "sub/.git"] {
        let reason = snapshot.omitted(name);
        assert!(
            matches!(reason.as_deref(), Some("excluded" | "git_dir")),
            "{name}: {reason:?}"
        );
    }
    assert_eq!(snapshot.count("files"), 3);
    assert_eq!(
        captured(&["--strategy", "hash"], &files),
        ["ordinary", "sub/deps-like", "sub/other/_build"]
    );
}

#[test]
fn names_and_globs_add_to_the_default_names() {
    let files = [
        "vendor/a",
        "deep/vendor/b",
        "logs/c",
        "a.log",
        "deep/b.log",
        "c.bak",
        "deep/er/d.bak",
        "node_modules/e",
        "kept",
    ];
    let options = [
        "--ignore-path",
        "vendor",
        "--ignore-path",
        "logs",
        "--ignore-glob",
        "*.log",
        "--ignore-glob",
        "**/*.bak",
    ];
    // A glob without a slash is also tried on the base name, so a log below is left out too.
    assert_eq!(captured(&options, &files), ["kept"]);
}

#[test]
fn a_path_with_a_slash_counts_from_the_root_and_a_glob_is_anchored() {
    let files = [
        "a/b/x",
        "c/a/b/x",
        "src/a.rs",
        "src/deep/a.rs",
        "other/src/a.rs",
        "all/x",
        "all/y/z",
    ];
    let options = [
        "--ignore-path",
        "a/b",
        "--ignore-glob",
        "src/*.rs",
        "--ignore-glob",
        "all/**",
    ];
    assert_eq!(
        captured(&options, &files),
        ["c/a/b/x", "other/src/a.rs", "src/deep/a.rs"]
    );
}

#[test]
fn with_kept_content_a_restore_gives_back_every_path() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.write("d/b", "2\n");
    ws.write_executable("tool", "x\n");
    ws.symlink("link", "d");
    ws.mkdir("empty");
    ws.write("private", "x\n");
    ws.chmod("private", 0o600);
    ws.write(b"odd\xff\n", "3\n");
    let snapshot = ws.snapshot_with(["--retain-content"]);
    let before = view::worktree(ws.root());
    ws.write("a", "edited\n");
    ws.remove("d");
    ws.write("d", "a file\n");
    ws.remove("link");
    ws.write("link/inside", "x\n");
    ws.remove("empty");
    ws.chmod("tool", 0o644);
    ws.remove(b"odd\xff\n");
    ws.write("new", "x\n");
    let changed = view::worktree(ws.root());
    let outcome = ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "everything is back");
    ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
    view::same(
        &changed,
        &view::worktree(ws.root()),
        "the guard has kept content too",
    );
}

// Unsupported, and the workspace unchanged
// It was captured, and then no restore of the snapshot was possible
#[test]
fn what_some_file_system_takes_for_git_is_named_and_the_rest_comes_back() {
    let ws = TestWorkspace::plain();
    ws.write("file", "x\n");
    ws.write("inner/.GIT/file", "x\n");
    ws.write("git~1", "x\n");
    let snapshot = ws.snapshot_with(["--retain-content"]);
    for name in ["inner/.GIT", "git~1"] {
        let reason = snapshot.omitted(name);
        assert_eq!(reason.as_deref(), Some("unrepresentable"), "{name}");
    }
    ws.remove("file");
    let before = view::worktree(ws.root()).without("file");
    ws.restore(&snapshot);
    assert_eq!(ws.text("file"), "x\n");
    view::same(
        &before,
        &view::worktree(ws.root()).without("file"),
        "what was omitted stays",
    );
}

#[test]
fn without_kept_content_a_restore_is_refused() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    let snapshot = ws.snapshot_with(["--no-retain-content"]);
    ws.write("a", "edited\n");
    ws.untouched(|| {
        ws.try_json(["restore", snapshot.id()])
            .refused("Unsupported")
    });
}

// The hash backend counts no lines and makes no patch
#[test]
fn a_diff_of_hashes_has_paths_and_no_lines() {
    let ws = TestWorkspace::plain();
    ws.write("edited", "1\n");
    ws.write("removed", "1\n");
    ws.write("mode", "1\n");
    ws.symlink("link", "a");
    let from = ws.snapshot();
    ws.write("edited", "2\n");
    ws.remove("removed");
    ws.chmod("mode", 0o755);
    ws.remove("link");
    ws.symlink("link", "b");
    ws.write("added", "1\n");
    let to = ws.snapshot();
    let diff = ws.diff(&from, &to);
    assert_eq!(diff["backend"], "hash");
    assert_eq!(json::names(&diff["added"]), ["added"]);
    assert_eq!(json::names(&diff["modified"]), ["edited", "link", "mode"]);
    assert_eq!(json::names(&diff["deleted"]), ["removed"]);
    assert_eq!(
        (&diff["insertions"], &diff["deletions"]),
        (&0.into(), &0.into())
    );
    assert!(diff["patch"].is_null());
    assert_eq!(diff["has_patch"], false);
}

// An empty patch would say that nothing changed
#[test]
fn whoever_asks_for_the_patch_of_hashes_is_told_that_there_is_none() {
    let ws = TestWorkspace::plain();
    ws.write("edited", "1\n");
    let from = ws.snapshot();
    ws.write("edited", "2\n");
    let arguments = ["diff", from.id(), "--patch"];
    let refused = ws.stillframe(arguments).exits(1);
    assert_eq!(refused.stdout_text(), "");
    let message = refused.stderr_text();
    let why = "the hash backend does not compare lines";
    assert!(message.contains(why), "{message}");
    let diff = ws.json(arguments);
    assert_eq!(
        (&diff["no_patch"], &diff["has_patch"]),
        (&why.into(), &false.into())
    );
    ws.write("edited", "1\n");
    let same = ws.stillframe(arguments).ok();
    assert_eq!(
        same.stdout_text(),
        "",
        "nothing changed, and that is the patch"
    );
    assert_eq!(ws.json(arguments)["no_patch"], serde_json::Value::Null);
}

#[test]
fn changes_inside_a_left_out_directory_are_no_changes() {
    let ws = TestWorkspace::plain();
    ws.write("node_modules/a", "1\n");
    ws.write("src/a", "1\n");
    let from = ws.snapshot();
    ws.write("node_modules/a", "2\n");
    ws.write("node_modules/b", "2\n");
    ws.write("src/a", "2\n");
    let to = ws.snapshot();
    assert_eq!(
        json::names(&ws.diff(&from, &to)["changed_paths"]),
        ["src/a"]
    );
}

#[test]
fn the_reference_says_what_is_there_and_nothing_else() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.write("b/c", "2\n");
    let first = ws.snapshot();
    let again = ws.snapshot();
    assert_eq!(first.reference(), again.reference());
    let twin = TestWorkspace::plain();
    twin.write("b/c", "2\n");
    twin.write("a", "1\n");
    assert_eq!(
        twin.snapshot().reference(),
        first.reference(),
        "another place, the same content"
    );
    let mut seen = std::collections::BTreeSet::from([first.reference().to_owned()]);
    let changes: [fn(&TestWorkspace); 5] = [
        |ws| ws.write("a", "2\n"),
        |ws| ws.rename("a", "a2"),
        |ws| ws.chmod("a2", 0o755),
        |ws| {
            ws.remove("a2");
            ws.symlink("a2", "2\n");
        },
        |ws| ws.write("b/d", ""),
    ];
    for change in changes {
        change(&ws);
        assert!(seen.insert(ws.snapshot().reference().to_owned()));
    }
    assert_eq!(first.reference().len(), 64, "a blake3 in hexadecimal");
}

// Two trees that share a digest of path and hash lines
#[test]
fn fields_cannot_run_into_one_another() {
    let one = TestWorkspace::plain();
    one.write("a", "x");
    one.write("b", "y");
    let two = TestWorkspace::plain();
    two.write("a\nb", "x");
    two.write("ab", "y");
    assert_ne!(one.snapshot().reference(), two.snapshot().reference());
}

#[test]
fn an_unchanged_directory_is_captured_again_without_reading_a_byte() {
    let ws = TestWorkspace::plain();
    for i in 0..20 {
        ws.write(format!("d/{i}"), "x\n");
    }
    ws.settle();
    let first = ws.snapshot();
    assert_eq!(first.count("files"), 20);
    ws.settle();
    let second = ws.snapshot();
    assert_eq!(second.count("files_hashed"), 0);
    assert_eq!(second.count("bytes_read"), 0);
    assert_eq!(second.reference(), first.reference());
}

#[test]
fn an_edit_in_the_tick_of_a_capture_is_seen() {
    let ws = TestWorkspace::plain();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..8 {
        ws.write("racy", format!("{round}\n"));
        assert!(
            seen.insert(ws.snapshot().reference().to_owned()),
            "in round {round}"
        );
    }
}

#[test]
fn gitignore_means_nothing_to_it() {
    let ws = TestWorkspace::plain();
    ws.write(".gitignore", "*\n");
    ws.write("file", "x\n");
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.count("files"), 2);
    assert!(snapshot.omissions().is_empty());
}

#[test]
fn snapshots_of_two_directories_may_be_compared_by_a_host() {
    let mut ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    let first = ws.snapshot();
    std::fs::create_dir(ws.base().join("second")).unwrap();
    ws.set_root("second");
    ws.write("b", "1\n");
    let second = ws.snapshot();
    // The command line speaks of one workspace at a time: it compares them or says why not.
    let output = ws.try_json(["diff", first.id(), second.id()]);
    if output.code == 0 {
        assert_eq!(json::names(&output.json()["changed_paths"]), ["a", "b"]);
    } else {
        output.refused("InvalidOptions");
    }
}

#[test]
fn a_run_in_a_plain_directory_reports_and_is_taken_back() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.write("node_modules/x", "1\n");
    let run = ws
        .run::<&str>([], "echo 2 > a; echo 3 > b; echo 2 > node_modules/x")
        .ok()
        .json();
    assert_eq!(run["workspace"]["backend"], "hash");
    assert_eq!(
        json::names(&run["workspace"]["diff"]["changed_paths"]),
        ["a", "b"]
    );
    assert!(run["workspace"]["rollback"].is_null());

    let before = view::worktree(ws.root());
    let run = ws
        .run(
            ["--rollback-on-failure", "--retain-content"],
            "echo 9 > a; rm b; echo x > c; echo 9 > node_modules/x; exit 1",
        )
        .exits(1)
        .json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    view::same(
        &before.without("node_modules"),
        &view::worktree(ws.root()).without("node_modules"),
        "what was captured is back",
    );
    assert_eq!(
        ws.text("node_modules/x"),
        "9\n",
        "what was left out is not touched"
    );
}

#[test]
fn undo_works_with_kept_content() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.run(["--retain-content"], "echo 2 > a; echo x > new")
        .ok();
    ws.undo();
    assert_eq!(ws.text("a"), "1\n");
    assert!(!ws.exists("new"));
}

// Wildcard characters in the path of the workspace
#[test]
fn wildcards_in_the_path_of_the_workspace_are_characters() {
    let mut ws = TestWorkspace::plain();
    std::fs::create_dir(ws.base().join("[a]*?{b}")).unwrap();
    ws.set_root("[a]*?{b}");
    ws.write("file", "x\n");
    assert_eq!(ws.snapshot().count("files"), 1);
}

#[test]
fn links_are_hashed_as_links() {
    let ws = TestWorkspace::plain();
    std::fs::write(ws.outside().join("target"), "1\n").unwrap();
    ws.symlink("link", "../outside/target");
    ws.symlink("dir", "../outside");
    let first = ws.snapshot();
    assert_eq!(first.count("files"), 2);
    std::fs::write(ws.outside().join("target"), "2\n").unwrap();
    assert_eq!(
        ws.snapshot().reference(),
        first.reference(),
        "the target is another matter"
    );
}

#[test]
fn an_empty_directory_is_captured() {
    let ws = TestWorkspace::plain();
    let empty = ws.snapshot_with(["--retain-content"]);
    assert_eq!(empty.count("files"), 0);
    ws.write("new/file", "x\n");
    let outcome = ws.restore(&empty);
    assert_eq!(json::names(&outcome["restored"]), ["new/file"]);
    assert_eq!(view::worktree(ws.root()).paths(), NOTHING);
}

// A capture of a plain directory changes nothing in it
#[test]
fn a_capture_touches_nothing() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.symlink("link", "a");
    ws.mkfifo("pipe");
    ws.untouched(|| {
        let snapshot = ws.snapshot_with(["--retain-content"]);
        assert_eq!(snapshot.omitted("pipe").as_deref(), Some("special"));
    });
}

// Damaged content is named and never handed out
#[test]
fn a_flipped_bit_in_kept_content_is_found() {
    let mut ws = TestWorkspace::plain();
    let content = "kept content that nobody else has, long enough to be found ".repeat(20);
    ws.write("file", &content);
    let snapshot = ws.snapshot_with(["--retain-content"]);
    ws.stillframe(["verify"]).ok();
    ws.damages_the_store();
    let mut damaged = 0;
    for entry in walkdir::WalkDir::new(ws.state().join("workspaces")) {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let aside = ["lock", "workspace.json"].contains(&name.as_str()) || name.contains("cache");
        if entry.file_type().is_file() && !aside {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            if let Some(byte) = bytes.last_mut() {
                *byte ^= 0x40;
                std::fs::remove_file(entry.path()).unwrap();
                std::fs::write(entry.path(), bytes).unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let output = ws.stillframe(["verify"]);
    assert_ne!(output.code, 0, "{output}");
    ws.write("file", "edited\n");
    ws.untouched(|| {
        let output = ws.try_json(["restore", snapshot.id()]);
        assert_eq!(output.code, 1, "{output}");
    });
}

#[test]
fn verify_tells_what_was_taken_without_content_and_calls_it_no_damage() {
    let ws = TestWorkspace::plain();
    ws.write("file", "one\n");
    let hashes = ws.snapshot_with(["--no-retain-content"]);
    let content = ws.json(["snapshot", "--retain-content"]);

    let found = ws.json(["verify"]);
    let verdict = |id: &str| {
        let all = found["snapshots"].as_array().unwrap();
        let one = all.iter().find(|s| s["id"] == id).unwrap();
        assert_eq!(one["problems"], serde_json::json!([]), "{found}");
        one["without_content"].clone()
    };
    assert_eq!(verdict(hashes.id()), true);
    assert_eq!(verdict(content["id"].as_str().unwrap()), false);

    let told = ws.stillframe(["verify"]).ok();
    let text = told.stdout_text();
    assert!(text.contains("1 snapshot can be restored"), "{text}");
    assert!(
        text.contains("1 snapshot can be compared but not restored: their content was not kept, by an option or a limit"),
        "{text}"
    );

    // What is damaged is damaged, with content or without.
    for entry in walkdir::WalkDir::new(ws.state().join("workspaces")) {
        let entry = entry.unwrap();
        if entry
            .path()
            .parent()
            .is_some_and(|p| p.ends_with("manifests"))
        {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let told = ws.stillframe(["verify"]).exits(1);
    let text = told.stdout_text();
    assert!(text.contains("0 snapshots can be restored"), "{text}");
    assert!(!text.contains("can be compared"), "{text}");
}

#[test]
fn what_a_plain_directory_has_no_word_for_is_said_in_words_that_fit() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.write("node_modules/x", "1\n");
    ws.write("deps/x", "1\n");
    let before = ws.snapshot();
    ws.write("a", "2\n");
    let stat = ws.stillframe(["diff", before.id(), "--stat"]).ok();
    assert!(stat.stdout_text().contains("M a"), "{stat}");
    let note = "the hash backend counts no lines, so this is the list of what changed";
    assert!(stat.stderr_text().contains(note), "{stat}");
    assert!(!stat.stderr_text().contains("patch"), "{stat}");

    let run = ["run", "--", "rm", "-r", "node_modules"];
    let told = ws.stillframe(run).ok().stderr_text();
    let line = "no longer there, and in no snapshot, since a rule leaves it out: node_modules; --include PATH captures such a path";
    assert!(told.lines().any(|said| said.ends_with(line)), "{told}");
    // Nothing is said of what no option captures.
    ws.write("nested/.git/HEAD", "x\n");
    for script in ["true", "rm -r nested/.git"] {
        let told = ws.stillframe(["run", "--", "sh", "-c", script]).ok();
        let told = told.stderr_text();
        assert!(!told.contains("a rule leaves it out"), "{script}: {told}");
    }
    // As it says.
    let run = ["run", "--include", "deps", "--", "rm", "-r", "deps"];
    let told = ws.stillframe(run).ok().stderr_text();
    assert!(!told.contains("a rule leaves it out"), "{told}");
    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.text("deps/x"), "1\n");
}

// "gone", of what was there behind a door that the run had closed
#[test]
fn of_what_nobody_can_see_any_more_it_is_not_said_that_it_is_gone() {
    let mut ws = TestWorkspace::plain();
    ws.write("closed/deps/x", "1\n");
    ws.write("deps/x", "1\n");
    if !ws.drop_privileges() {
        let why = "nobody cannot run the program";
        return capability::skipped(Capability::OtherUser, why);
    }
    let script = "chmod 0 closed; rm -r deps";
    let told = ws.stillframe(["run", "--", "sh", "-c", script]).ok();
    let told = told.stderr_text();
    assert!(told.contains("a rule leaves it out: deps; "), "{told}");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(ws.path("closed"), open).unwrap();
    assert_eq!(ws.text("closed/deps/x"), "1\n");
}
