//! A state directory that cannot be written: what is there is told, and nothing is changed.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use stillframe_tests::capability::{self, Capability, Mounts};
use stillframe_tests::{Output, Snap, TestWorkspace, copy_whole, view};
use walkdir::WalkDir;

/// A workspace with something of everything that can be asked for, and the questions. What the last
/// snapshot has is in no file but the log of the database.
fn lived_in() -> (TestWorkspace, Vec<Vec<String>>) {
    let mut ws = TestWorkspace::repository();
    // It is looked at where nobody can write, and where it is another user's.
    ws.damages_the_store();
    let first = ws.snapshot();
    let run = ws.run(
        ["--session", "s", "--max-patch-bytes", "10"],
        "seq 99 > made",
    );
    let run = run.ok().json();
    let key = run["workspace"]["diff"]["patch_ref"].as_str().unwrap();
    ws.write("README", "edited\n");
    let last = ws.snapshot();
    let file = format!("{}:README", last.id());
    let questions: [&[&str]; 11] = [
        &["list"],
        &["show", &file],
        &["runs"],
        &["events"],
        &["show", last.id()],
        &["show", run["run_id"].as_str().unwrap()],
        &["diff", first.id(), last.id(), "--patch"],
        &["why", "README", "--snapshot", last.id()],
        &["verify"],
        &["artifact", "list"],
        &["artifact", "get", key],
    ];
    let owned = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect();
    (ws, questions.into_iter().map(owned).collect())
}

/// Every file below a directory with its bytes and what `lstat` says that a write changes.
fn files(directory: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        let bytes = match meta.is_file() {
            true => fs::read(entry.path()).unwrap(),
            false => Vec::new(),
        };
        let sum = blake3::hash(&bytes);
        files.push(format!("{:?} {:?} {sum}", entry.path(), meta.modified()));
    }
    files
}

// It used to be refused: the log was opened to be written
#[test]
fn what_is_on_a_disk_that_is_mounted_to_read_is_told() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let (ws, questions) = lived_in();
    let whole: Vec<Output> = questions.iter().map(|args| ws.try_json(args)).collect();
    let state = ws.state().display().to_string();
    mounts.shell(&format!(
        "mount --bind '{state}' '{state}' && mount -o remount,bind,ro '{state}'"
    ));
    let snapshot = Snap::of(&ws.json(["list"])[0]);
    let before = files(&ws.state());
    let call = |args: &[String]| {
        let call = ws.call(["--json"]).args(args);
        mounts.inside(call, ws.root()).run()
    };
    for (args, whole) in questions.iter().zip(whole) {
        let told = call(args);
        assert_eq!(told.code, 0, "{args:?}: {told}");
        assert_eq!(told.stdout_text(), whole.ok().stdout_text(), "{args:?}");
    }
    let tree = view::worktree(ws.root());
    let never_made = ws.outside().join("never-made").display().to_string();
    // What takes a capture, or changes anything, is refused as a whole.
    for args in [
        &["snapshot"][..],
        &["diff", snapshot.id()],
        &["restore", snapshot.id()],
        &["restore", snapshot.id(), "--to", &never_made],
        &["run", "--", "true"],
        &["gc"],
    ] {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let refused = call(&args);
        assert_ne!(refused.code, 0, "{args:?}: {refused}");
        let message = refused.json().to_string();
        assert!(message.contains("cannot be written"), "{args:?}: {message}");
    }
    view::same(&tree, &view::worktree(ws.root()), "nothing was touched");
    assert!(!std::path::Path::new(&never_made).exists());
    assert_eq!(files(&ws.state()), before);
}

// It wanted to make a place for artifacts first
#[test]
fn what_a_purge_would_remove_is_told_where_there_never_was_an_artifact() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let ws = TestWorkspace::plain();
    ws.write(".env", "secret\n");
    ws.run(["--retain-content"], "touch made").ok();
    let args = ["purge", ".env", "--plan"];
    let whole = ws.json(args);
    let artifacts = ws.state().join("artifacts");
    if artifacts.exists() {
        fs::remove_dir_all(&artifacts).unwrap();
    }
    let state = ws.state().display().to_string();
    mounts.shell(&format!(
        "mount --bind '{state}' '{state}' && mount -o remount,bind,ro '{state}'"
    ));
    let call = ws.call(["--json"]).args(args);
    let told = mounts.inside(call, ws.root()).run().ok().json();
    assert_eq!(told, whole);
}

// It was said that it cannot be written, by what only reads
#[test]
fn a_state_directory_that_may_not_be_read_is_said_to_be_that() {
    if !rustix::process::geteuid().is_root() {
        return capability::skipped(Capability::Root, "only root may give a directory away");
    }
    let mut ws = TestWorkspace::repository();
    ws.snapshot();
    if !ws.drop_privileges() {
        return capability::skipped(Capability::Root, "another user runs the program");
    }
    chown(ws.state(), Some(0), Some(0)).unwrap();
    let told = ws.stillframe(["list"]).exits(1).stderr_text();
    let state = ws.state().display().to_string();
    let said = format!("the state directory {state} cannot be read");
    assert!(told.contains(&said), "{told}");
    assert!(!told.contains("cannot be written"), "{told}");
}

#[test]
fn what_another_user_has_is_read_and_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return capability::skipped(
            Capability::Root,
            "only root may read what is another user's",
        );
    }
    let (ws, questions) = lived_in();
    let whole: Vec<Output> = questions.iter().map(|args| ws.try_json(args)).collect();
    for entry in WalkDir::new(ws.state()) {
        let entry = entry.unwrap();
        if !entry.file_type().is_symlink() {
            chown(entry.path(), Some(65534), Some(65534)).unwrap();
        }
    }
    let before = files(&ws.state());
    for (args, whole) in questions.iter().zip(whole) {
        let told = ws.try_json(args);
        assert_eq!(told.code, 0, "{args:?}: {told}");
        assert_eq!(told.stdout_text(), whole.ok().stdout_text(), "{args:?}");
    }
    let id = ws.json(["list"])[0]["id"].as_str().unwrap().to_owned();
    let copy = ws.outside().join("copy").display().to_string();
    for args in [&["snapshot"][..], &["restore", &id, "--to", &copy]] {
        let said = ws.stillframe(args).exits(1).stderr_text();
        assert!(said.contains("belongs to user 65534"), "{args:?}: {said}");
        assert!(!said.contains("read-only"), "{args:?}: {said}");
    }
    assert_eq!(files(&ws.state()), before);
}

// "set STILLFRAME_HOME to a directory that can be", in which there is no snapshot
#[test]
fn where_nothing_can_be_written_a_copy_is_advised_and_gives_back_what_there_is() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let ws = TestWorkspace::plain();
    ws.write("a", "kept\n");
    let kept = ws.snapshot_with(["--retain-content"]);
    ws.write("a", "edited\n");
    let state = ws.state().display().to_string();
    mounts.shell(&format!(
        "mount --bind '{state}' '{state}' && mount -o remount,bind,ro '{state}'"
    ));
    let to = ws.outside().join("to").display().to_string();
    for args in [
        &["restore", kept.id()][..],
        &["restore", kept.id(), "--to", &to],
        &["undo"],
    ] {
        let refused = mounts.inside(ws.call(args), ws.root()).run().exits(1);
        let said = refused.stderr_text();
        assert!(
            said.contains("STILLFRAME_HOME to a copy"),
            "{args:?}: {said}"
        );
    }
    assert_eq!(ws.text("a"), "edited\n");
    let copy = ws.outside().join("copied");
    copy_whole(&ws.state(), &copy);
    let with_copy = |args: &[&str]| {
        let call = ws.call(args).env("STILLFRAME_HOME", &copy);
        mounts.inside(call, ws.root()).run().ok()
    };
    with_copy(&["restore", kept.id(), "--to", &to]);
    assert_eq!(
        fs::read_to_string(ws.outside().join("to/a")).unwrap(),
        "kept\n"
    );
    with_copy(&["restore", "latest"]);
    assert_eq!(ws.text("a"), "kept\n");
    with_copy(&["undo"]);
    assert_eq!(ws.text("a"), "edited\n");
}
