//! Names in the place of a snapshot's id: `latest`, `latest~N` and `label:TEXT`.

use stillframe_tests::{Snap, TestWorkspace, json};

/// The id of the snapshot that `name` means.
#[track_caller]
fn id_of(ws: &TestWorkspace, name: &str) -> String {
    Snap::of(&ws.show(name)).id().to_owned()
}

/// The kind and the message of the error that `args` end with.
#[track_caller]
fn refusal(ws: &TestWorkspace, args: &[&str]) -> (String, String) {
    let error = ws.try_json(args).exits(1).json()["error"].clone();
    let text = |key: &str| error[key].as_str().expect("an error has it").to_owned();
    (text("kind"), text("message"))
}

#[test]
fn latest_is_the_newest_that_is_no_guard() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        ws.write("a", "one\n");
        let one = ws.snapshot_with(["--retain-content"]);
        ws.write("a", "two\n");
        ws.write("b", "two\n");
        let two = ws.snapshot_with(["--retain-content"]);
        let guard = ws.restore(&one)["guard_snapshot"].clone();
        // What the restore left is captured too, behind its guard.
        let listed = ws.json(["list"]);
        assert_eq!(listed[1]["id"], guard);
        assert_eq!(listed.as_array().unwrap().len(), 4);

        for (name, id) in [
            ("latest", listed[0]["id"].as_str().unwrap()),
            ("latest~0", listed[0]["id"].as_str().unwrap()),
            ("latest~1", two.id()),
            ("latest~2", one.id()),
            ("label:guard", guard.as_str().unwrap()),
        ] {
            assert_eq!(id_of(&ws, name), id, "{name}");
        }
        let diff = ws.json(["diff", "latest~2", "latest~1"]);
        assert_eq!(json::names(&diff["added"]), ["b"]);
        let since = ws.json(["diff", "latest~1"]);
        assert_eq!(json::names(&since["deleted"]), ["b"]);
        assert_eq!(ws.json(["diff", "latest"])["files_changed"], 0);
        let why = ws.json(["why", "b", "--snapshot", "latest~2"]);
        assert_eq!(why["captured"], false, "{why}");
        let why = ws.json(["why", "b", "--snapshot", "latest~1"]);
        assert_eq!(why["captured"], true, "{why}");
        let plan = ws.json(["restore", "latest~1", "--plan"]);
        assert_eq!(plan["target"], two.id());
        ws.restore_id("latest~1");
        assert_eq!(ws.text("b"), "two\n");
    }
}

#[test]
fn a_label_means_the_newest_that_has_exactly_that_one() {
    let ws = TestWorkspace::repository();
    let labelled = |label: &str, text: &str| {
        ws.write("README", text);
        ws.snapshot_with(["--label", label])
    };
    labelled("before lunch", "1");
    let second = labelled("before lunch", "2");
    let other = labelled("Before lunch", "3");
    labelled("before", "4");
    assert_eq!(id_of(&ws, "label:before lunch"), second.id());
    assert_eq!(id_of(&ws, "label:Before lunch"), other.id());
    ws.restore_id("label:before lunch");
    assert_eq!(ws.text("README"), "2");
}

#[test]
fn a_label_never_takes_the_place_of_another_name() {
    let ws = TestWorkspace::repository();
    let first = ws.snapshot();
    let like_an_id = &first.id()["snap_".len()..][..12];
    ws.snapshot_with(["--label", like_an_id]);
    let labelled = ws.snapshot_with(["--label", "latest"]);
    let newest = ws.snapshot();
    assert_eq!(id_of(&ws, like_an_id), first.id());
    assert_eq!(id_of(&ws, "latest"), newest.id());
    assert_eq!(id_of(&ws, "label:latest"), labelled.id());
    let plan = ws.json(["restore", like_an_id, "--plan"]);
    assert_eq!(plan["target"], first.id());
}

// A host chooses the ids of its runs
#[test]
fn a_run_that_is_called_latest_is_shown_by_its_id_and_one_that_begins_so_is_not() {
    let ws = TestWorkspace::repository();
    ws.run(["--run-id", "latest-2"], "true").ok();
    let newest = ws.snapshot();
    assert_eq!(id_of(&ws, "latest"), newest.id());
    ws.run(["--run-id", "latest"], "true").ok();
    assert_eq!(ws.show("latest")["run_id"], "latest");
    assert_eq!(ws.show("latest-")["run_id"], "latest-2");
}

#[test]
fn what_a_name_does_not_find_is_named() {
    let mut ws = TestWorkspace::repository();
    for args in [&["show", "latest"][..], &["diff", "latest"]] {
        let (kind, message) = refusal(&ws, args);
        assert_eq!(kind, "NotFound", "{message}");
        assert!(message.contains(ws.root().to_str().unwrap()), "{message}");
    }
    ws.snapshot();
    for (name, kind) in [
        ("latest~1", "NotFound"),
        ("label:no such", "NotFound"),
        ("latest~", "InvalidOptions"),
        ("latest~one", "InvalidOptions"),
        ("label:", "InvalidOptions"),
    ] {
        for args in [
            &["show", name][..],
            &["diff", name],
            &["diff", "latest", name],
            &["restore", name],
            &["restore", name, "--plan"],
            &["why", "README", "--snapshot", name],
        ] {
            let (found, message) = ws.untouched(|| refusal(&ws, args));
            assert_eq!(found, kind, "{args:?}: {message}");
            assert!(message.contains(name), "{args:?}: {message}");
        }
    }
    // There was one.
    ws.json(["snapshot", "rm", "latest"]);
    let message = refusal(&ws, &["show", "latest"]).1;
    assert!(!message.contains("yet"), "{message}");
    // Of another workspace, with the same state directory.
    std::fs::create_dir(ws.base().join("other")).unwrap();
    ws.set_root("other");
    assert_eq!(refusal(&ws, &["show", "latest"]).0, "NotFound");
}

#[test]
fn below_a_workspace_they_are_of_that_one() {
    let mut ws = TestWorkspace::repository();
    ws.write("below/a", "one\n");
    let taken = ws.snapshot_with(["--label", "mine"]);
    ws.set_root("work/below");
    for name in ["latest", "label:mine"] {
        let shown = ws.stillframe(["show", name]).ok();
        assert!(shown.stdout_text().contains(taken.id()), "{shown}");
        assert!(shown.stderr_text().contains("above it"), "{shown}");
    }
}

/// A plain directory beside the test's workspace, with the same state directory.
fn beside(ws: &TestWorkspace) -> String {
    let other = ws.base().join("beside");
    std::fs::create_dir_all(&other).unwrap();
    other.to_str().unwrap().to_owned()
}

// A beginning was "of several ids", though the others were of another workspace
#[test]
fn a_beginning_is_of_the_workspace_that_one_is_in_before_it_is_of_another() {
    let ws = TestWorkspace::plain();
    let other = beside(&ws);
    ws.write("a", "1\n");
    let own = ws.snapshot();
    let digit = &own.id()["snap_".len()..][..1];
    let same = (0..500).find_map(|number: u32| {
        std::fs::write(format!("{other}/a"), number.to_string()).unwrap();
        let taken = ws.json(["snapshot", "--workspace", &other]);
        let id = taken["id"].as_str().unwrap().to_owned();
        id["snap_".len()..].starts_with(digit).then_some(id)
    });
    let same = same.expect("one of sixteen begins so");
    let beginning = format!("snap_{digit}");
    assert_eq!(ws.json(["show", &beginning])["id"], own.id());
    let file = ws.stillframe(["show", &format!("{beginning}:a")]).ok();
    assert_eq!(file.stdout_text(), "1\n");
    ws.write("below/b", "1\n");
    let call = ws.call(["--json", "show", &beginning]);
    let below = call.cwd(ws.path("below")).run().ok().json();
    assert_eq!(below["id"], own.id(), "the nearest above counts");
    // All of an id is that snapshot's wherever one is.
    assert_eq!(ws.json(["show", &same])["id"], same);

    let run = |workspace: &str, id: &str| {
        let args = ["run", "--workspace", workspace, "--run-id", id];
        let script = ["--", "sh", "-c", "echo 2 > a"];
        ws.json(args.iter().chain(&script)).clone()
    };
    let root = ws.root().display().to_string();
    run(&root, "fix_1");
    run(&other, "fix_2");
    assert_eq!(ws.json(["show", "fix"])["run_id"], "fix_1");
    let undone = ws.json(["undo", "fix"]);
    assert_eq!(undone["undone"]["run_id"], "fix_1", "{undone}");
    assert_eq!(ws.text("a"), "1\n");
    // Several that are here are several.
    run(&root, "fix_3");
    let said = ws.try_json(["show", "fix"]).refused("InvalidOptions");
    assert!(said.contains("give more of it"), "{said}");
    ws.try_json(["undo", "fix"]).refused("InvalidOptions");
}

// "fix_1" of here was taken back, for all of an id that is a run's elsewhere
#[test]
fn all_of_an_id_is_that_run_wherever_it_was_and_the_beginning_of_no_other() {
    let ws = TestWorkspace::plain();
    let other = beside(&ws);
    let root = ws.root().display().to_string();
    ws.write("a", "1\n");
    std::fs::write(format!("{other}/a"), "1\n").unwrap();
    for (workspace, id) in [(&other, "fix"), (&root, "fix_1")] {
        let args = ["run", "--workspace", workspace, "--run-id", id];
        let script = ["--", "sh", "-c", "echo 2 > a"];
        ws.json(args.iter().chain(&script));
    }
    for args in [&["undo", "fix"][..], &["undo", "fix", "--plan"]] {
        let said = ws.try_json(args.iter().copied()).refused("InvalidOptions");
        let place = format!("run fix was in {other}, not in this workspace");
        assert!(said.contains(&place), "{args:?}: {said}");
    }
    assert_eq!(ws.text("a"), "2\n", "nothing was taken back");
    assert_eq!(ws.json(["show", "fix"])["run_id"], "fix");
    assert_eq!(ws.json(["undo", "fix_"])["undone"]["run_id"], "fix_1");
}

// The snapshot was shown, though two runs begin so as well
#[test]
fn what_is_the_beginning_of_several_runs_and_of_a_snapshot_is_refused() {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    let own = ws.snapshot();
    let digit = own.id()["snap_".len()..][..1].to_owned();
    let run = |number: u32| {
        let id = format!("{digit}_{number}");
        ws.json(["run", "--run-id", &id, "--", "true"])
    };
    run(1);
    let show = || ws.try_json(["show", &digit]).refused("InvalidOptions");
    let said = show();
    assert!(said.contains("give more of it"), "{said}");
    run(2);
    let said = show();
    assert!(
        said.contains("begin so") || said.contains("give more of it"),
        "{said}"
    );
    assert_eq!(ws.json(["show", own.id()])["id"], own.id());
    let first = format!("{digit}_1");
    assert_eq!(ws.json(["show", &first])["run_id"], first);
}

// "there is no snapshot", and not a word of what it is
#[test]
fn the_id_of_a_run_in_the_place_of_a_snapshot_is_answered_with_its_snapshots() {
    let ws = TestWorkspace::repository();
    let run = ws.run::<&str>([], "echo 2 > README").ok().json();
    let id = run["run_id"].as_str().unwrap();
    let end = |key: &str| run["workspace"][key]["id"].as_str().unwrap().to_owned();
    let (before, after) = (end("before_snapshot"), end("after_snapshot"));
    let expected =
        format!("{id} is a run; its snapshots are {before} (before) and {after} (after)");
    let file = format!("{id}:README");
    for args in [
        &["diff", id][..],
        &["diff", "latest", id],
        &["restore", id],
        &["show", &file],
        &["why", "--snapshot", id, "README"],
        &["diff", &id[..12]],
    ] {
        let said = ws.try_json(args.iter().copied()).refused("NotFound");
        assert!(said.contains(&expected), "{args:?}: {said}");
    }
    ws.json(["gc", "--keep", "1"]);
    let said = ws.try_json(["diff", id]).refused("NotFound");
    assert!(
        said.contains(&format!("its snapshots are {after} (after)")),
        "{said}"
    );
}
