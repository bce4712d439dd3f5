//! In a plain directory content is kept unless more of it is new than a limit, so that what a
//! command did can be taken back.

use std::collections::BTreeSet;

use stillframe_tests::{TestWorkspace, json, view};

/// What people are warned of.
fn warned(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines();
    lines
        .filter(|line| line.starts_with("stillframe: warning: "))
        .collect()
}

/// All files of content that the store has.
fn kept(ws: &TestWorkspace) -> BTreeSet<String> {
    let walk = walkdir::WalkDir::new(ws.state().join("workspaces"));
    let files = walk.into_iter().map(|entry| entry.unwrap());
    let content = files.filter(|entry| {
        let is_content = |part| part == std::path::Component::Normal("content".as_ref());
        entry.file_type().is_file() && entry.path().components().any(is_content)
    });
    content
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

// "no content was kept, so it cannot be taken back"
#[test]
fn whoever_types_run_in_a_plain_directory_has_the_way_back() {
    let ws = TestWorkspace::plain();
    ws.write("a", "precious\n");
    ws.write("d/b", "2\n");
    let before = view::worktree(ws.root());
    let run = ws.stillframe(["run", "--", "sh", "-c", "rm a; echo x > d/b; echo y > new"]);
    let told = run.ok().stderr_text();
    assert_eq!(warned(&told), [""; 0], "{told}");
    assert!(told.contains("stillframe undo"), "{told}");
    let undone = ws.json(["undo"]);
    view::same(&before, &view::worktree(ws.root()), "all is back");
    ws.restore_id(undone["guard_snapshot"].as_str().unwrap());
    assert!(!ws.exists("a"), "the guard has what was displaced");
    assert_eq!(ws.text("new"), "y\n");

    let snapshot = ws.snapshot();
    assert_eq!(snapshot.json["metadata"]["has_content"], true);
    ws.remove("d");
    ws.restore(&snapshot);
    assert_eq!(ws.text("d/b"), "x\n");
}

#[test]
fn above_the_limit_there_are_digests_alone_and_that_is_said_before_the_run() {
    let ws = TestWorkspace::plain();
    ws.write("a", "x".repeat(600));
    ws.write("b", "y".repeat(600));
    ws.write("c", "z".repeat(600));
    let run = |options: &[&str]| {
        let script = "echo the command begins >&2; rm -f a";
        let args = [&["run"], options, &["--", "sh", "-c", script]].concat();
        ws.call(args).run()
    };
    let ended = run(&["--retain-content-bytes", "1K"]).ok();
    let told = ended.stderr_text();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "stillframe: warning: this run cannot be taken back: more than 1.0 KiB of content is new here, so that digests alone are kept; --retain-content keeps all",
            "the command begins",
        ],
        "{told}"
    );
    assert_eq!(warned(&told).len(), 1, "once: {told}");
    assert!(
        told.contains("cannot be taken back; --retain-content keeps it"),
        "{told}"
    );
    assert_eq!(kept(&ws), BTreeSet::new(), "nothing is left of it");
    let message = ws.try_json(["undo"]).refused("Unsupported");
    assert!(message.contains("without its content"), "{message}");
    let told = ws.stillframe(["undo"]).exits(1).stderr_text();
    assert!(
        told.contains("--retain-content keeps the content"),
        "{told}"
    );

    // Also with a document, which says it too.
    ws.write("a", "x".repeat(600));
    let ended = ws.run(["--retain-content-bytes", "1K"], "rm a").ok();
    assert_eq!(warned(&ended.stderr_text()).len(), 1, "{ended}");
    let document = ended.json();
    let before = &document["workspace"]["before_snapshot"];
    assert_eq!(before["metadata"]["has_content"], false, "{document}");
    let id = before["id"].as_str().unwrap();
    let shown = ws.stillframe(["show", id]).ok().stdout_text();
    assert!(shown.contains("not kept"), "{shown}");

    // By name, whatever the limit.
    ws.write("a", "x".repeat(600));
    run(&["--retain-content"]).ok();
    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.text("a"), "x".repeat(600));
    // And nobody is told of what was asked for.
    let told = run(&["--no-retain-content"]).ok().stderr_text();
    assert_eq!(warned(&told), [""; 0], "{told}");
    ws.try_json(["undo"]).refused("Unsupported");
}

#[test]
fn a_rollback_that_could_not_work_is_refused_before_the_command() {
    let ws = TestWorkspace::plain();
    ws.write("a", "x".repeat(600));
    ws.write("b", "y".repeat(600));
    let script = "echo begun > begun; false";
    for options in [
        &["--no-retain-content"][..],
        &["--retain-content-bytes", "1K"],
    ] {
        let options = [&["--rollback-on-failure"], options].concat();
        let message = ws.run(&options, script).exits(125).error("Unsupported");
        assert!(message.contains("the run was not started"), "{message}");
        assert!(!ws.exists("begun"), "{options:?}");
        if options.contains(&"1K") {
            assert!(message.contains("more than 1.0 KiB of it"), "{message}");
        }
        let told = ws
            .call([&["run"], &options[..], &["--", "true"]].concat())
            .run();
        let told = told.exits(125).stderr_text();
        assert!(
            told.contains("--retain-content keeps the content"),
            "{told}"
        );
    }
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert!(!ws.exists("begun"));
}

// What is far too much is neither written nor read by each capture
#[test]
fn a_directory_above_the_limit_is_read_once_and_has_content_when_it_fits() {
    let ws = TestWorkspace::plain();
    for number in 0..40 {
        ws.write(format!("f{number}"), format!("{number:0100}"));
    }
    ws.settle();
    let limited = || ws.snapshot_with(["--retain-content-bytes", "1K"]);
    let has_content = |snapshot: &json::Snap| snapshot.json["metadata"]["has_content"] == true;
    let first = limited();
    assert!(!has_content(&first));
    let second = limited();
    assert!(!has_content(&second));
    assert_eq!(second.count("files_hashed"), 0, "it was not tried again");
    assert_eq!(kept(&ws), BTreeSet::new());
    for number in 5..40 {
        ws.remove(format!("f{number}"));
    }
    let fits = limited();
    assert!(has_content(&fits));
    assert_eq!(kept(&ws).len(), 5);
    // What is there is not new, and equal content counts once.
    for number in 0..5 {
        ws.write(format!("copy{number}"), format!("{number:0100}"));
    }
    ws.write("more", "n".repeat(1000));
    let grown = limited();
    assert!(has_content(&grown));
    ws.write("one", "1".repeat(600));
    ws.write("two", "2".repeat(600));
    assert!(!has_content(&limited()), "both are new");
    assert_eq!(kept(&ws).len(), 6, "and neither is kept");
    ws.remove("one");
    ws.restore(&grown);
    assert_eq!(ws.text("more"), "n".repeat(1000));
    assert!(!ws.exists("two"));
}

// A cache that a collection has made worthless made everything look new
#[test]
fn what_is_in_the_store_is_not_new_though_nobody_remembers_it() {
    let ws = TestWorkspace::plain();
    ws.write("a", "x".repeat(900));
    ws.write("b", "y".repeat(900));
    let all = ws.snapshot_with(["--retain-content"]);
    ws.stillframe(["gc"]).ok();
    let again = ws.snapshot_with(["--retain-content-bytes", "1K"]);
    assert_eq!(again.count("files_hashed"), 2, "nothing is known of them");
    assert_eq!(again.json["metadata"]["has_content"], true);
    assert_eq!(again.reference(), all.reference());
}

#[test]
fn a_run_that_leaves_too_much_can_be_taken_back() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    let before = view::worktree(ws.root());
    let big = "head -c 3000 /dev/zero | tr '\\0' z > big; echo 2 > a";
    let args = ["run", "--retain-content-bytes", "1K", "--", "sh", "-c", big];
    let told = ws.stillframe(args).ok().stderr_text();
    let warnings = warned(&told);
    assert_eq!(warnings.len(), 1, "{told}");
    assert!(
        warnings[0].contains("what the run left cannot be restored"),
        "{told}"
    );
    let undone = ws.json(["undo"]);
    view::same(&before, &view::worktree(ws.root()), "it is back");
    // The guard keeps what it displaces, however much it is.
    ws.restore_id(undone["guard_snapshot"].as_str().unwrap());
    assert_eq!(ws.text("big"), "z".repeat(3000));
    let failed = ws.run(
        ["--retain-content-bytes", "1K", "--rollback-on-failure"],
        "head -c 5000 /dev/zero | tr '\\0' y > big; rm a; false",
    );
    // 3000 bytes of the last are in the store by now.
    let failed = failed.exits(1).json();
    assert_eq!(
        failed["workspace"]["rollback"]["status"], "completed",
        "{failed}"
    );
    assert_eq!(ws.text("big"), "z".repeat(3000));
    assert_eq!(ws.text("a"), "2\n");
}
