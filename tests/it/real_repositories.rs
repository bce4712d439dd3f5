//! Real input: this project's own checkout, and a repository with some thousand files and history.

use std::fs;

use stillframe_tests::{TestWorkspace, binary, json, mutate, oracle, shapes, view};

/// A clone of this project's repository, with its history.
fn own_checkout() -> TestWorkspace {
    let ws = TestWorkspace::plain();
    let from = binary::project();
    let clone = ws
        .git_call(["-c", "safe.directory=*", "clone", "-q", "--no-local"])
        .args([from, ws.root()])
        .run();
    if clone.code != 0 {
        // A tarball of the sources has no repository; its files are real input all the same.
        let copied = ["backends", "engine", "cli", "artifact-store", "tests"];
        for name in copied {
            let to = ws.path(name);
            fs::create_dir(&to).unwrap();
            oracle::copy_tree(&from.join(name), &to, oracle::DotGit::LeaveOut);
        }
        ws.git(["init", "-q"]);
        ws.commit("the sources");
    }
    ws.settle();
    ws
}

#[test]
fn this_projects_own_checkout_is_captured_and_put_back() {
    let ws = own_checkout();
    let snapshot = ws.untouched(|| ws.snapshot());
    assert_eq!(snapshot.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    assert_eq!(snapshot.json["metadata"]["dirty"], false);
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    let before = view::worktree(ws.root());
    let copy = ws.copy();

    let listing = oracle::stored_listing(&ws, snapshot.tree());
    let paths: Vec<Vec<u8>> = listing.entries.into_iter().map(|e| e.path).collect();
    mutate::everything(&ws, &paths);
    let after = ws.snapshot();
    assert_eq!(after.tree(), oracle::raw_tree(&ws));
    let diff = ws.json(["diff", snapshot.id(), after.id(), "--patch"]);
    if let Some(text) = diff["patch"].as_str() {
        oracle::applies(text.as_bytes(), copy.path(), ws.root());
    } else {
        let patch = ws
            .stillframe(["diff", snapshot.id(), after.id(), "--patch"])
            .ok();
        oracle::applies(&patch.stdout, copy.path(), ws.root());
    }
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "every file is back");
    assert_eq!(ws.git(["status", "--porcelain"]), "");
}

#[test]
fn a_run_in_this_projects_own_checkout_is_reported_and_taken_back() {
    let ws = own_checkout();
    ws.write(".git/info/exclude", "/target\n");
    let before = view::worktree(ws.root());
    let script = "echo '// edited' >> backends/src/lib.rs; rm -r cli; mkdir target; \
        echo x > target/out; exit 1";
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    let modified = json::names(&run["workspace"]["diff"]["modified"]);
    assert_eq!(modified, ["backends/src/lib.rs"]);
    view::same(
        &before,
        &view::worktree(ws.root()).without("target"),
        "as before the run, but for what is ignored",
    );
    assert_eq!(ws.git(["status", "--porcelain"]), "");
}

/// Some thousand files in some hundred directories, with thirty commits, branches, tags and packs.
fn large() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise
    };
    let name = |i: u64| format!("d{:02}/s{}/file-{i}.txt", i % 37, i % 5);
    for i in 0..3000 {
        let lines = 1 + next() % 60;
        let text: String = (0..lines)
            .map(|l| format!("line {l} of {i}: {:x}\n", next()))
            .collect();
        ws.write(name(i), text);
    }
    ws.write(".gitignore", "*.o\nbuild/\n");
    ws.write("empty", "");
    ws.commit("import");
    for round in 0..30 {
        for _ in 0..12 {
            let i = next() % 3000;
            ws.write(
                name(i),
                format!("rewritten in {round}: {:x}\n", next()).repeat(20),
            );
        }
        ws.git(["commit", "-q", "-a", "-m", &format!("round {round}")]);
        match round {
            8 => drop(ws.git(["repack", "-a", "-d", "-q"])),
            12 => drop(ws.git(["tag", "-a", "v1", "-m", "one"])),
            18 => drop(ws.git(["branch", "side", "HEAD~5"])),
            20 => drop(ws.git(["merge", "-q", "-s", "ours", "-m", "merge", "side"])),
            25 => drop(ws.git(["repack", "-d", "-q"])),
            _ => {}
        }
    }
    ws.settle();
    ws.git(["status"]);
    ws.settle();
    ws
}

#[test]
fn a_repository_with_thousands_of_files_and_history() {
    let ws = large();
    let first = ws.untouched(|| ws.snapshot());
    assert_eq!(first.tree(), ws.git(["rev-parse", "HEAD^{tree}"]));
    assert_eq!(first.count("files"), 3002);
    assert_eq!(first.count("files_hashed"), 0, "everything is clean");
    let before = view::worktree(ws.root());
    let times = view::times(ws.root());
    let copy = ws.copy();

    for i in (0..3000_u64).step_by(30) {
        ws.write(
            format!("d{:02}/s{}/file-{i}.txt", i % 37, i % 5),
            format!("edited {i}\n"),
        );
    }
    for i in 0..50 {
        ws.write(format!("new/{i}"), format!("{i}\n"));
    }
    for i in (7..3000_u64).step_by(150) {
        ws.remove(format!("d{:02}/s{}/file-{i}.txt", i % 37, i % 5));
    }
    ws.settle();
    let second = ws.untouched(|| ws.snapshot());
    assert_eq!(
        second.count("files_hashed"),
        150,
        "what changed, and nothing else"
    );
    assert_eq!(second.tree(), oracle::raw_tree(&ws));
    let diff = ws.json(["diff", first.id(), second.id(), "--patch"]);
    assert_eq!(diff["modified"].as_array().unwrap().len(), 100);
    assert_eq!(diff["added"].as_array().unwrap().len(), 50);
    assert_eq!(diff["deleted"].as_array().unwrap().len(), 20);
    oracle::applies(&json::patch_bytes(&diff["patch"]), copy.path(), ws.root());

    let outcome = ws.restore(&first);
    assert_eq!(outcome["restored"].as_array().unwrap().len(), 170);
    view::same(&before, &view::worktree(ws.root()), "every file is back");
    let now = view::times(ws.root());
    let same = times
        .iter()
        .filter(|(path, t)| now.get(*path) == Some(t))
        .count();
    assert!(same >= 3002 - 120, "what matches is not written: {same}");

    ws.git(["gc", "-q", "--prune=now"]);
    ws.restore(&second);
    ws.stillframe(["verify"]).ok();
    ws.restore(&first);
    view::same(&before, &view::worktree(ws.root()), "after gc");
}

#[test]
fn ten_thousand_untracked_files_come_back() {
    let ws = (shapes::named("clean").make)();
    for i in 0..10_000 {
        ws.write(format!("data/{:03}/{i}", i % 250), format!("{i}\n"));
    }
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    let before = view::worktree(ws.root());
    ws.remove("data");
    ws.restore(&snapshot);
    view::same(&before, &view::worktree(ws.root()), "every file is back");
}
