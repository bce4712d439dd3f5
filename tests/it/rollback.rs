//! The restore that ends a failed run: files, index and branch, or a refusal that says why.

use std::fs;

use stillframe_tests::capability::Mounts;
use stillframe_tests::{Output, TestWorkspace, json, oracle, shapes, view};

const ROLLBACK: [&str; 1] = ["--rollback-on-failure"];

/// The `rollback` of a run that failed with exit code 1, which must have completed.
#[track_caller]
fn completed(output: Output) -> serde_json::Value {
    let run = output.exits(1).json();
    let rollback = run["workspace"]["rollback"].clone();
    assert_eq!(run["status"], "failed", "{run}");
    assert_eq!(run["exit_code"], 1, "{run}");
    assert_eq!(rollback["status"], "completed", "{run}");
    assert!(rollback["error"].is_null(), "{run}");
    rollback
}

/// The script that makes git usable inside of a run: without any configuration of this machine.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
    GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";

#[test]
fn a_failed_run_is_taken_back() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "mine\n");
    ws.write("removed", "mine\n");
    let before = view::worktree(ws.root());
    let run = ws.run(
        ROLLBACK,
        "echo x > README; echo x > untracked; rm removed; mkdir d; echo x > d/new; chmod +x README; exit 1",
    );
    let rollback = completed(run);
    view::same(&before, &view::worktree(ws.root()), "as before the run");
    assert_eq!(
        json::names(&rollback["restored"]),
        ["README", "d/new", "removed", "untracked"]
    );
    assert_eq!(
        ws.git(["status", "--porcelain"]),
        "?? removed\n?? untracked"
    );
}

// Two names of one file
#[test]
fn every_name_of_a_file_that_the_run_changed_or_linked_is_taken_back() {
    // What was there, and what the run did.
    for (before, command) in [
        ("echo 1 > a; ln a b", "echo 2 > a; exit 1"),
        ("echo 1 > a", "ln a b; echo x >> a; exit 1"),
        (
            "echo 1 > a; ln a b",
            "echo 2 > a; rm b; ln a c; chmod 600 c; exit 1",
        ),
        ("echo 1 > a; ln a b", "rm a b; echo 2 > a; ln a b; exit 1"),
    ] {
        for options in [
            &ROLLBACK[..],
            &[ROLLBACK[0], "--strategy", "hash", "--retain-content"],
        ] {
            let ws = TestWorkspace::repository();
            let status = std::process::Command::new("/bin/sh")
                .args(["-c", before])
                .current_dir(ws.root())
                .status();
            assert!(status.unwrap().success());
            let seen = view::worktree(ws.root());
            let rollback = completed(ws.run(options, command));
            assert_eq!(json::names(&rollback["skipped"]), [""; 0], "{command}");
            view::same(&seen, &view::worktree(ws.root()), command);
        }
    }
}

#[test]
fn a_run_that_succeeds_is_not_taken_back() {
    let ws = TestWorkspace::repository();
    let run = ws.run(ROLLBACK, "echo x > README").ok().json();
    assert!(run["workspace"]["rollback"].is_null());
    assert_eq!(ws.text("README"), "x\n");
}

#[test]
fn without_the_option_a_failed_run_keeps_its_changes() {
    let ws = TestWorkspace::repository();
    let run = ws
        .run::<&str>([], "echo x > README; exit 7")
        .exits(7)
        .json();
    assert!(run["workspace"]["rollback"].is_null());
    assert_eq!(run["workspace"]["after_snapshot"]["label"], "after_failure");
    assert_eq!(ws.text("README"), "x\n");
}

#[test]
fn the_index_comes_back_byte_for_byte() {
    let ws = TestWorkspace::repository();
    ws.write("edited", "1\n");
    ws.write("gone", "1\n");
    ws.commit("second");
    ws.write("edited", "staged\n");
    ws.write("added", "staged\n");
    ws.git(["add", "edited", "added"]);
    ws.git(["rm", "-q", "--cached", "gone"]);
    ws.write("edited", "edited since\n");
    ws.remove("added");
    ws.git(["add", "-N", "README"]);
    // Asking for the status may refresh the index, so the index is read after it.
    let status = ws.git(["status", "--porcelain"]);
    let index = fs::read(ws.path(".git/index")).unwrap();
    let before = view::worktree(ws.root());
    let script = format!("{GIT} echo x > edited; git add -A; git rm -q --cached README; exit 1");
    completed(ws.run(ROLLBACK, &script));
    assert_eq!(
        fs::read(ws.path(".git/index")).unwrap(),
        index,
        "byte for byte"
    );
    view::same(&before, &view::worktree(ws.root()), "files as before");
    assert_eq!(ws.git(["status", "--porcelain"]), status);
    assert_eq!(
        ws.git(["show", ":edited"]),
        "staged",
        "what is staged can be read"
    );
    assert_eq!(ws.git(["show", ":added"]), "staged");
}

// What only the index names outlives the repository's housekeeping
#[test]
fn staged_content_that_is_nowhere_else_comes_back() {
    let ws = TestWorkspace::repository();
    ws.write("README", "only staged\n");
    ws.git(["add", "README"]);
    ws.write("README", "in the worktree\n");
    let script = format!("{GIT} git reset -q --hard; git gc -q --prune=now; exit 1");
    completed(ws.run(ROLLBACK, &script));
    assert_eq!(ws.text("README"), "in the worktree\n");
    assert_eq!(ws.git(["show", ":README"]), "only staged");
    assert_eq!(ws.git(["status", "--porcelain"]), "MM README");
    ws.git(["fsck", "--strict"]);
}

// libgit2 reads neither form, so that nothing was missed
#[test]
fn so_does_that_of_a_split_index_and_of_a_sparse_one() {
    let forms = [
        &["update-index", "--split-index"][..],
        &["sparse-checkout", "set", "--cone", "--sparse-index", "in"],
    ];
    for form in forms {
        let ws = TestWorkspace::repository();
        ws.write("in/file", "x\n");
        ws.write("out/file", "x\n");
        ws.commit("directories");
        ws.git(form.iter().copied());
        ws.write("README", "only staged\n");
        ws.git(["add", "README"]);
        ws.write("README", "in the worktree\n");
        let status = ws.git(["status", "--porcelain"]);
        let script = format!("{GIT} git reset -q --hard; git gc -q --prune=now; exit 1");
        completed(ws.run(ROLLBACK, &script));
        assert_eq!(ws.git(["show", ":README"]), "only staged", "{form:?}");
        assert_eq!(ws.git(["status", "--porcelain"]), status, "{form:?}");
    }
}

// libgit2 opens whatever has the name of a pack's index
#[test]
fn a_fifo_among_the_packs_is_not_waited_for() {
    let pack = "pack-0123456789abcdef0123456789abcdef01234567";
    let idx = format!("{pack}.idx");
    for (name, kind) in [
        (&*idx, None),
        ("multi-pack-index", Some("HostileRepository")),
    ] {
        let ws = TestWorkspace::repository();
        let tip = ws.git(["rev-parse", "HEAD"]);
        let script = format!(
            "{GIT} git commit -qm x --allow-empty; mkfifo .git/objects/pack/{name}; \
             : > .git/objects/pack/{pack}.pack; exit 1"
        );
        let run = ws.run(ROLLBACK, &script).exits(1).json();
        ws.remove(format!(".git/objects/pack/{name}"));
        let error = &run["workspace"]["rollback"]["error"];
        assert_eq!(error["kind"].as_str(), kind, "{run}");
        let is_back = ws.git(["rev-parse", "HEAD"]) == tip;
        assert_eq!(is_back, kind.is_none(), "{run}");
    }
}

#[test]
fn conflict_stages_come_back() {
    let ws = (shapes::named("merge_in_conflict").make)();
    let stages = ws.git(["ls-files", "-s", "-u"]);
    let index = fs::read(ws.path(".git/index")).unwrap();
    let before = view::worktree(ws.root());
    let script = format!("{GIT} echo resolved > file; git add file; exit 1");
    completed(ws.run(ROLLBACK, &script));
    assert_eq!(fs::read(ws.path(".git/index")).unwrap(), index);
    assert_eq!(ws.git(["ls-files", "-s", "-u"]), stages);
    view::same(
        &before,
        &view::worktree(ws.root()),
        "the conflict as it was",
    );
    assert!(
        ws.exists(".git/MERGE_HEAD"),
        "a merge that was there is left alone"
    );
}

#[test]
fn an_index_that_was_not_there_is_not_there_again() {
    let ws = (shapes::named("unborn").make)();
    assert!(!ws.exists(".git/index"));
    completed(ws.run(ROLLBACK, &format!("{GIT} git add -A; exit 1")));
    assert_eq!(ws.git(["ls-files", "-s"]), "", "nothing is staged");
}

#[test]
fn a_branch_that_the_run_moved_goes_back_and_a_tag_keeps_the_old_tip() {
    let ws = TestWorkspace::repository();
    let tip = ws.git(["rev-parse", "HEAD"]);
    let index = fs::read(ws.path(".git/index")).unwrap();
    let before = view::worktree(ws.root());
    let script = format!("{GIT} echo x > new; git add new; git commit -q -m 'by the run'; exit 1");
    let rollback = completed(ws.run(ROLLBACK, &script));
    assert_eq!(ws.git(["rev-parse", "refs/heads/main"]), tip);
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(fs::read(ws.path(".git/index")).unwrap(), index);
    view::same(&before, &view::worktree(ws.root()), "files as before");
    let tag = rollback["safety_tag"].as_str().unwrap();
    assert!(tag.starts_with("refs/stillframe/safety/run_"), "{tag}");
    assert_eq!(ws.git(["log", "-1", "--format=%s", tag]), "by the run");
    assert_eq!(
        ws.git(["cat-file", "-t", tag]),
        "commit",
        "a ref names a commit"
    );
    ws.git(["fsck", "--strict"]);
}

#[test]
fn a_run_that_moves_no_branch_gets_no_tag() {
    let ws = TestWorkspace::repository();
    let refs = ws.git(["for-each-ref"]);
    let rollback = completed(ws.run(ROLLBACK, "echo x > README; exit 1"));
    assert!(rollback["safety_tag"].is_null());
    assert_eq!(ws.git(["for-each-ref"]), refs);
}

#[test]
fn head_goes_back_if_the_run_switched_or_detached_it() {
    for command in [
        "git checkout -q -b side",
        "git checkout -q --detach",
        "git checkout -q other",
    ] {
        let ws = TestWorkspace::repository();
        ws.git(["branch", "other"]);
        let tip = ws.git(["rev-parse", "HEAD"]);
        let script =
            format!("{GIT} {command}; echo x > new; git add new; git commit -q -m more; exit 1");
        completed(ws.run(ROLLBACK, &script));
        assert_eq!(
            ws.git(["symbolic-ref", "HEAD"]),
            "refs/heads/main",
            "{command}"
        );
        assert_eq!(ws.git(["rev-parse", "HEAD"]), tip, "{command}");
        assert!(!ws.exists("new"), "{command}");
    }
}

#[test]
fn other_refs_that_the_run_made_stay() {
    let ws = TestWorkspace::repository();
    let script = format!("{GIT} git branch made; git tag made-too; exit 1");
    completed(ws.run(ROLLBACK, &script));
    ws.git(["rev-parse", "--verify", "refs/heads/made"]);
    ws.git(["rev-parse", "--verify", "refs/tags/made-too"]);
}

#[test]
fn a_first_commit_on_an_unborn_branch_is_taken_back() {
    let ws = (shapes::named("unborn").make)();
    let before = view::worktree(ws.root());
    let script = format!("{GIT} git add -A; git commit -q -m first; echo x > a; exit 1");
    let rollback = completed(ws.run(ROLLBACK, &script));
    view::same(&before, &view::worktree(ws.root()), "files as before");
    assert_ne!(
        ws.git_call(["rev-parse", "--verify", "-q", "HEAD"])
            .run()
            .code,
        0,
        "unborn again"
    );
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
    let tag = rollback["safety_tag"].as_str().unwrap();
    assert_eq!(ws.git(["log", "-1", "--format=%s", tag]), "first");
}

// A linked worktree shares its branches with the others
#[test]
fn in_a_linked_worktree_only_that_worktree_goes_back() {
    let ws = (shapes::named("linked_worktree").make)();
    let main = ws.base().join("work");
    let main_before = (
        view::worktree(&main),
        fs::read(main.join(".git/index")).unwrap(),
    );
    let tip = ws.git(["rev-parse", "side"]);
    let before = view::worktree(ws.root());
    let script = format!("{GIT} git commit -q -m more; echo x > README; exit 1");
    completed(ws.run(ROLLBACK, &script));
    view::same(&before, &view::worktree(ws.root()), "files as before");
    assert_eq!(ws.git(["rev-parse", "side"]), tip);
    assert_eq!(
        (
            view::worktree(&main),
            fs::read(main.join(".git/index")).unwrap()
        ),
        main_before
    );
}

#[test]
fn an_ignored_directory_that_the_run_made_stays_and_is_listed() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "build/\n");
    let rollback = completed(ws.run(
        ROLLBACK,
        "mkdir build; echo x > build/out; echo x > README; exit 1",
    ));
    assert_eq!(ws.text("build/out"), "x\n");
    assert_eq!(json::names(&rollback["leftover_ignored"]), ["build"]);
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn a_repository_that_the_run_made_is_kept_whole_wherever_it_is() {
    for options in [
        &ROLLBACK[..],
        &[ROLLBACK[0], "--strategy", "hash", "--retain-content"],
    ] {
        let ws = TestWorkspace::repository();
        ws.mkdir("empty");
        ws.write("known/file", "captured\n");
        let run = ws.run(
            options,
            "for d in empty known new; do git init -q $d; echo x > $d/made; mkdir $d/sub; done; \
             echo edited > known/file; echo x > other; exit 1",
        );
        let rollback = completed(run);
        for name in ["empty", "known", "new"] {
            assert_eq!(ws.text(format!("{name}/made")), "x\n", "{rollback}");
            assert!(ws.exists(format!("{name}/.git/HEAD")) && ws.exists(format!("{name}/sub")));
            let reason = json::reason_of(&rollback["skipped"], name);
            assert_eq!(reason.as_deref(), Some("nested_repository"), "{rollback}");
        }
        assert_eq!(json::names_in(&rollback["skipped"]).len(), 3, "{rollback}");
        assert_eq!(json::names(&rollback["leftover_ignored"]), [""; 0]);
        assert_eq!(ws.text("known/file"), "captured\n", "the target has it");
        assert!(!ws.exists("other"));
    }
}

#[test]
fn a_rename_with_an_edit_is_taken_back() {
    let ws = TestWorkspace::repository();
    completed(ws.run(ROLLBACK, "mv README MOVED; echo more >> MOVED; exit 1"));
    assert_eq!(ws.text("README"), "hello\n");
    assert!(!ws.exists("MOVED"));
}

#[test]
fn a_run_that_fails_or_times_out_has_an_after_failure_snapshot_and_a_diff() {
    let ws = TestWorkspace::repository();
    for (options, script, code, status) in [
        (&[][..], "echo 1 > f; exit 9", 9, "failed"),
        (
            &["--timeout", "1s"][..],
            "echo 2 > f; sleep 60",
            124,
            "timeout",
        ),
        (&[][..], "echo 3 > f; kill -9 $$", 137, "failed"),
    ] {
        let run = ws.run(options, script).exits(code).json();
        assert_eq!(run["status"], status, "{run}");
        assert_eq!(run["exit_code"], code, "{run}");
        let after = &run["workspace"]["after_snapshot"];
        assert_eq!(after["label"], "after_failure", "{run}");
        assert_eq!(
            json::names(&run["workspace"]["diff"]["changed_paths"]),
            ["f"],
            "{run}"
        );
        let listed = ws.json(["list"]);
        let ids = listed.as_array().unwrap().iter();
        assert!(
            ids.map(|s| &s["id"]).any(|id| id == &after["id"]),
            "it is listed"
        );
    }
}

#[test]
fn a_run_that_times_out_is_taken_back() {
    let ws = TestWorkspace::repository();
    let run = ws
        .run(
            ["--rollback-on-failure", "--timeout", "1s"],
            "echo x > README; sleep 60",
        )
        .exits(124)
        .json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert_eq!(ws.text("README"), "hello\n");
}

#[test]
fn a_run_that_removes_the_repository_gets_its_files_back_and_is_told() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "x\n");
    let before = view::worktree(ws.root());
    let run = ws
        .run(ROLLBACK, "rm -rf .git README untracked; exit 1")
        .exits(1)
        .json();
    let rollback = &run["workspace"]["rollback"];
    view::same(&before, &view::worktree(ws.root()), "the files are back");
    let said = rollback["error"].to_string();
    assert!(
        !rollback["error"].is_null(),
        "what cannot be put back is said: {run}"
    );
    assert!(
        said.contains("repository") || said.contains(".git"),
        "{said}"
    );
    assert!(!ws.exists(".git"));
}

// The store is whole, whatever the run did to `.git`
#[test]
fn a_run_that_breaks_the_repository_gets_its_files_back_and_is_told() {
    let damages = [
        ("rm .git/HEAD", "Unreadable"),
        ("echo garbage > .git/HEAD", "Unreadable"),
        ("echo garbage > .git/refs/heads/main", "Unreadable"),
        ("rm -r .git/objects", "Unreadable"),
        ("echo '[core' > .git/config", "Unreadable"),
        ("rm -r .git; echo 'gitdir: /x' > .git", "Unreadable"),
        ("rm .git/config; mkfifo .git/config", "HostileRepository"),
        ("rm .git/index; mkfifo .git/index", "HostileRepository"),
    ];
    for (damage, kind) in damages {
        let ws = TestWorkspace::repository();
        ws.write("untracked", "x\n");
        let before = view::worktree(ws.root());
        let script = format!("echo x > README; rm untracked; echo x > new; {damage}; exit 1");
        let run = ws.run(ROLLBACK, &script).exits(1).json();
        let rollback = &run["workspace"]["rollback"];
        assert_eq!(rollback["status"], "completed", "{damage}: {run}");
        assert_eq!(rollback["error"]["kind"], kind, "{damage}: {run}");
        let told = rollback["error"]["message"].as_str().unwrap();
        assert!(told.contains("move .git away"), "{damage}: {told}");
        view::same(&before, &view::worktree(ws.root()), damage);

        // A snapshot says what is wrong; a restore of files goes on working.
        ws.try_json(["snapshot"]).refused(kind);
        ws.write("README", "later\n");
        let id = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
        ws.restore_id(id);
        view::same(&before, &view::worktree(ws.root()), damage);
        ws.json(["undo"]);
        assert_eq!(ws.text("README"), "later\n", "{damage}");
    }
}

#[test]
fn an_index_that_the_run_broke_comes_back() {
    for damage in [": > .git/index", "echo garbage > .git/index"] {
        let ws = TestWorkspace::repository();
        ws.write("staged", "x\n");
        ws.git(["add", "staged"]);
        let index = fs::read(ws.path(".git/index")).unwrap();
        let commit = ws.git(["rev-parse", "HEAD"]);
        let script = format!("{GIT} git commit -qam wip; rm README; {damage}; exit 1");
        completed(ws.run(ROLLBACK, &script));
        assert_eq!(fs::read(ws.path(".git/index")).unwrap(), index, "{damage}");
        assert_eq!(ws.git(["rev-parse", "HEAD"]), commit);
        assert_eq!(ws.git(["status", "--porcelain"]), "A  staged");
    }
}

// A lock on a ref is one like that on the index
#[test]
fn a_foreign_lock_on_the_branch_refuses_the_rollback_before_anything_is_touched() {
    let ws = TestWorkspace::repository();
    let script = format!(
        "{GIT} echo x > README; git commit -qam wip; touch .git/refs/heads/main.lock; exit 1"
    );
    let run = ws.run(ROLLBACK, &script).exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["status"], "refused", "{run}");
    assert_eq!(rollback["error"]["kind"], "Busy", "{run}");
    assert!(rollback["safety_tag"].is_null(), "{run}");
    assert_eq!(ws.text("README"), "x\n", "nothing was touched");
    assert!(ws.exists(".git/refs/heads/main.lock"));
}

/// A script that removes the workspace, directory and all, and fails.
fn removes_itself(ws: &TestWorkspace) -> String {
    format!("rm -rf {}; exit 1", ws.root().display())
}

#[test]
fn a_run_that_removes_the_workspace_itself_is_taken_back() {
    for (ws, options) in [
        (TestWorkspace::repository(), &ROLLBACK[..]),
        (
            TestWorkspace::plain(),
            &["--rollback-on-failure", "--retain-content"],
        ),
    ] {
        ws.write("sub/file", "x\n");
        ws.mkdir("empty/inner");
        ws.chmod("sub", 0o700);
        ws.chmod("", 0o750);
        let before = view::worktree(ws.root());
        let output = ws.run(options.iter().copied(), &removes_itself(&ws));
        let run = output.exits(1).json();
        view::same(&before, &view::worktree(ws.root()), "everything is back");
        assert_eq!(ws.mode("") & 0o7777, 0o750);
        let workspace = &run["workspace"];
        assert_eq!(workspace["rollback"]["status"], "completed", "{run}");
        let skipped = json::names_in(&workspace["rollback"]["skipped"]);
        assert_eq!(skipped, [] as [&str; 0], "{run}");
        assert!(
            json::names(&workspace["diff"]["deleted"]).contains(&"sub/file".to_owned()),
            "what it removed is told: {run}"
        );
        // The directory was made anew, and it is the same workspace.
        let options = ["--rollback-on-failure", "--retain-content"];
        ws.run(options, "echo y > sub/file; exit 1").exits(1);
        view::same(&before, &view::worktree(ws.root()), "and is one");
        let first = workspace["before_snapshot"]["id"].as_str().unwrap();
        let listed = ws.json(["list"]).to_string();
        assert!(listed.contains(first), "{listed}");
    }
}

#[test]
fn a_run_that_removes_its_part_of_a_repository_gets_index_and_branch_back_too() {
    let mut ws = TestWorkspace::repository();
    ws.write("part/file", "x\n");
    ws.commit("part");
    ws.write("part/staged", "y\n");
    ws.git(["add", "part/staged"]);
    ws.set_root("work/part");
    let top = ws.root().parent().unwrap().to_owned();
    let state = || {
        let git = |args: &[&str]| ws.git_in("work", args);
        let index = fs::read(top.join(".git/index")).unwrap();
        (view::worktree(&top), index, git(&["rev-parse", "main"]))
    };
    let before = state();
    let commands = format!(
        "git rm -q --cached file; git commit -qm gone; cd {}",
        top.display()
    );
    let script = format!("{GIT} {commands}; {}", removes_itself(&ws));
    let rollback = completed(ws.run(ROLLBACK, &script));
    assert!(rollback["safety_tag"].is_string(), "{rollback}");
    assert!(before == state(), "files, index and branch are as before");
}

#[test]
fn a_workspace_that_the_run_replaced_is_left_and_the_way_back_is_named() {
    let ws = TestWorkspace::repository();
    ws.write("untracked", "x\n");
    let before = view::worktree(ws.root());
    let root = ws.root().display();
    let script = format!("rm -rf {root}; mkdir {root}; echo other > {root}/other; exit 1");
    let run = ws.run(ROLLBACK, &script).exits(125).json();
    assert_eq!(run["exit_code"], 1, "the run's own result is told: {run}");
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["status"], "refused", "{run}");
    assert_eq!(ws.text("other"), "other\n", "nothing was touched");
    let id = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    let told = rollback["error"]["message"].as_str().unwrap();
    assert!(
        told.contains(&format!("\"stillframe restore {id}\"")),
        "{told}"
    );
    ws.restore_id(id);
    view::same(&before, &view::worktree(ws.root()), "what it says is so");
}

// Capture does not need it, a rollback waits and then says so
#[test]
fn a_foreign_index_lock_does_not_stop_a_capture_and_is_never_deleted() {
    let ws = TestWorkspace::repository();
    ws.write(".git/index.lock", "");
    ws.write("new", "x\n");
    let snapshot = ws.untouched(|| ws.snapshot());
    assert_eq!(snapshot.tree(), oracle::raw_tree(&ws));
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n");

    let script = "GIT_INDEX_FILE=.git/other git add README; echo x > README; cp .git/other .git/index; exit 1";
    let run = ws.run(ROLLBACK, &format!("{GIT} {script}")).exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["status"], "refused", "{run}");
    assert_eq!(rollback["error"]["kind"], "Busy", "{run}");
    assert_eq!(ws.text("README"), "x\n", "nothing was touched");
    assert_eq!(ws.read(".git/index.lock"), b"");
}

// Nothing that the run started may write while it is taken back
#[test]
fn what_the_run_left_running_has_ended_before_the_rollback() {
    let ws = TestWorkspace::repository();
    let script = "(while :; do echo again > README; done) & sleep 0.2; exit 1";
    completed(ws.run(ROLLBACK, script));
    assert_eq!(ws.text("README"), "hello\n");
    let before = ws.stat("README");
    ws.settle();
    let after = ws.stat("README");
    assert_eq!(
        before.modified().unwrap(),
        after.modified().unwrap(),
        "nobody writes any more"
    );
}

// Any restore can be undone
#[test]
fn the_guard_of_a_rollback_holds_what_the_run_did() {
    let ws = TestWorkspace::repository();
    let rollback = completed(ws.run(ROLLBACK, "echo 'hours of work' > result; exit 1"));
    assert!(!ws.exists("result"));
    ws.restore_id(rollback["guard_snapshot"].as_str().unwrap());
    assert_eq!(ws.text("result"), "hours of work\n");
}

// The document of a rollback has these keys
#[test]
fn a_rollback_has_exactly_the_keys_of_the_design() {
    let ws = TestWorkspace::repository();
    let rollback = completed(ws.run(ROLLBACK, "echo x > README; exit 1"));
    assert_eq!(
        json::keys(&rollback),
        [
            "error",
            "guard_snapshot",
            "leftover_ignored",
            "restored",
            "safety_tag",
            "skipped",
            "status"
        ]
    );
}

#[test]
fn a_failed_rollback_does_not_hide_the_result_of_the_run() {
    let ws = TestWorkspace::repository();
    let script = format!("{GIT} git checkout -q --orphan other; git bisect start; exit 42");
    let output = ws.run(ROLLBACK, &script).exits(42);
    let run = output.json();
    assert_eq!(run["exit_code"], 42, "{run}");
    assert_eq!(run["status"], "failed", "{run}");
    assert!(run["workspace"]["rollback"].is_object(), "{run}");
}

/// A repository with a file that its index marks skip-worktree, and that holds `text`.
fn behind_skip_worktree(text: &str) -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("settings", "committed\n");
    ws.commit("second");
    ws.git(["update-index", "--skip-worktree", "settings"]);
    ws.write("settings", text);
    ws
}

// What the target captured is put back, whatever the index says of it today
#[test]
fn a_local_edit_behind_skip_worktree_comes_back() {
    let ws = behind_skip_worktree("local, and nowhere else\n");
    let before = view::worktree(ws.root());
    let run = ws.run(ROLLBACK, "rm settings; exit 1").exits(1).json();
    assert_eq!(
        json::names(&run["workspace"]["diff"]["changed_paths"]),
        ["settings"],
        "its loss is reported: {run}"
    );
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(json::names(&rollback["restored"]), ["settings"], "{run}");
    assert_eq!(json::names_in(&rollback["skipped"]), [] as [&str; 0]);
    view::same(&before, &view::worktree(ws.root()), "the edit is back");
    assert_eq!(ws.git(["ls-files", "-t", "settings"]), "S settings");
}

// The two trees hold the same entry, and only one of the two disks has the file
#[test]
fn an_unchanged_file_behind_skip_worktree_comes_back() {
    let ws = behind_skip_worktree("committed\n");
    let before = view::worktree(ws.root());
    ws.run(ROLLBACK, "rm settings; exit 1").exits(1);
    view::same(&before, &view::worktree(ws.root()), "the file is back");
    let run = "rm settings; git sparse-checkout set --no-cone '/*' '!/README'; exit 1";
    ws.run(ROLLBACK, &format!("{GIT} {run}")).exits(1);
    view::same(&before, &view::worktree(ws.root()), "both files are back");
}

// What was left out at the target is neither made nor removed, and that is said
#[test]
fn what_a_run_leaves_out_of_the_checkout_itself_is_put_back() {
    for command in [
        "git update-index --skip-worktree README d/b; rm -r README d",
        "git sparse-checkout set --no-cone /nothing",
    ] {
        let ws = TestWorkspace::repository();
        ws.write("d/b", "x\n");
        ws.commit("more");
        let snapshot = ws.snapshot();
        let before = view::worktree(ws.root());
        let rollback = completed(ws.run(ROLLBACK, &format!("{GIT} {command}; exit 1")));
        assert_eq!(json::names(&rollback["restored"]), ["README", "d/b"]);
        view::same(&before, &view::worktree(ws.root()), command);

        // A restore of files leaves the index alone, and its undo takes away what it made.
        let refresh = "git update-index -q --refresh";
        ws.run::<&str>([], &format!("{GIT} {refresh}; {command}"))
            .ok();
        assert!(!ws.exists("README"), "{command}");
        let outcome = ws.restore(&snapshot);
        assert_eq!(json::names_in(&outcome["skipped"]), [""; 0], "{outcome}");
        view::same(&before, &view::worktree(ws.root()), command);
        let undone = ws.undo();
        assert_eq!(json::names_in(&undone["skipped"]), [""; 0], "{undone}");
        // Whether the directory was there is in no snapshot, and git does not care.
        assert!(!ws.exists("README") && !ws.exists("d/b"), "{command}");
    }
}

#[test]
fn a_file_that_a_sparse_checkout_left_out_is_not_removed_by_a_rollback() {
    let ws = behind_skip_worktree("committed\n");
    ws.remove("settings");
    let made = "echo made > settings; echo x > README; exit 1";
    let run = ws.run(ROLLBACK, made).exits(1).json();
    assert_eq!(ws.text("settings"), "made\n");
    assert_eq!(ws.text("README"), "hello\n");
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(json::names_in(&rollback["skipped"]), ["settings"], "{run}");
    assert_eq!(rollback["skipped"][0]["reason"], "sparse", "{run}");
}

/// What a run does to the branch that HEAD named, once HEAD names something else.
const MOVES_WHAT_IT_LEFT: [&str; 3] = [
    "git checkout -q -b other; git branch -q -f main HEAD~1",
    "git checkout -q --detach; git update-ref refs/heads/main HEAD~1; echo x > file",
    "git checkout -q --detach; git branch -q -D main",
];

// By compare-and-swap, wherever HEAD was by then
#[test]
fn a_branch_that_the_run_left_and_then_moved_goes_back_with_head() {
    for script in MOVES_WHAT_IT_LEFT {
        let ws = TestWorkspace::repository();
        ws.write("file", "1\n");
        ws.commit("more");
        let tip = ws.git(["rev-parse", "main"]);
        let script = format!("{GIT} {script}");
        let rollback = completed(ws.run(ROLLBACK, &format!("{script}; exit 1")));
        assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(ws.git(["rev-parse", "main"]), tip, "{script}");
        assert_eq!(ws.git(["status", "--porcelain"]), "");
        if let Some(tag) = rollback["safety_tag"].as_str() {
            assert_eq!(
                ws.git(["rev-parse", tag]),
                ws.git(["rev-parse", "main~1"]),
                "the tip that the run gave it"
            );
        } else {
            assert!(script.contains("-D"), "{rollback}");
        }
        ws.git(["fsck", "--strict", "--connectivity-only"]);
    }
}

#[test]
fn an_undo_takes_a_branch_back_that_the_run_left_and_another_gives_it_again() {
    for script in MOVES_WHAT_IT_LEFT {
        let ws = TestWorkspace::repository();
        ws.write("file", "1\n");
        ws.commit("more");
        let seen = || {
            let head = fs::read_to_string(ws.path(".git/HEAD")).unwrap();
            (head, ws.git(["for-each-ref", "refs/heads/main"]))
        };
        let before = seen();
        ws.run::<&str>([], &format!("{GIT} {script}")).ok();
        let after = seen();
        for (round, is) in [&before, &after, &before].into_iter().enumerate() {
            let outcome = ws.undo();
            assert!(outcome["error"].is_null(), "{outcome}");
            assert_eq!(seen(), *is, "{script}, round {round}");
        }
    }
}

/// A run of git that fails: afterwards branch, HEAD, index, files and status are as before.
fn git_is_taken_back(commands: &str) {
    let ws = TestWorkspace::repository();
    ws.git(["checkout", "-q", "-b", "side"]);
    ws.write("from-side", "x\n");
    ws.commit("side");
    ws.git(["checkout", "-q", "main"]);
    for i in 0..2 {
        ws.write("file", format!("{i}\n"));
        ws.commit("more");
    }
    ws.write("file", "edited\n");
    ws.write("staged", "x\n");
    ws.git(["add", "staged"]);
    ws.write("untracked", "x\n");
    let status = ws.git(["status", "--porcelain", "-b"]);
    let tip = ws.git(["rev-parse", "HEAD"]);
    let index = fs::read(ws.path(".git/index")).unwrap();
    let before = view::worktree(ws.root());
    let script = format!("{GIT} {commands}; exit 1");
    let run = ws.run(ROLLBACK, &script).exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["status"], "completed", "{rollback}");
    assert!(rollback["error"].is_null(), "{rollback}");
    view::same(&before, &view::worktree(ws.root()), "files as before");
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(ws.git(["rev-parse", "refs/heads/main"]), tip);
    assert_eq!(fs::read(ws.path(".git/index")).unwrap(), index);
    assert_eq!(ws.git(["status", "--porcelain", "-b"]), status);
    ws.git(["fsck", "--strict", "--connectivity-only"]);
}

macro_rules! git_is_taken_back {
    ($($name:ident: $commands:literal)*) => {
        // Whatever git did to the branch
        mod git_is_taken_back {
            $(
                #[test]
                fn $name() {
                    super::git_is_taken_back($commands);
                }
            )*
        }
    };
}

git_is_taken_back! {
    amend: "git commit -q --amend -m amended"
    hard_reset: "git reset -q --hard HEAD~1"
    soft_reset: "git reset -q --soft HEAD~2"
    rebase: "git stash -q; git rebase -q side"
    several_commits: "git commit -q -am more; git commit -q --allow-empty -m more"
    branch_made_anew: "git checkout -q -B main HEAD~1"
    branch_renamed: "git branch -m main renamed"
    branch_deleted: "git checkout -q -b other; git branch -q -D main"
    branch_reference_deleted: "git update-ref -d refs/heads/main"
    orphan: "git checkout -q --orphan fresh; git commit -q -m orphan"
    detached: "git checkout -q -f --detach HEAD~1"
    stash: "git stash -q"
    merge: "git merge -q --no-ff -m merged side"
    cherry_pick: "git stash -q; git cherry-pick side"
    emptied: "git rm -rqf .; git commit -q -m emptied"
    renamed: "git mv README MOVED; git commit -q -m moved"
    packed: "git pack-refs --all; git commit -q -am packed"
    collected: "git commit -q -am collected; git gc -q --prune=now"
    unstaged: "git reset -q"
    everything_staged: "git add -A"
    index_removed: "rm .git/index"
    head_removed_and_made: "git symbolic-ref HEAD refs/heads/nowhere"
}

#[test]
fn a_detached_head_that_the_run_moved_goes_back() {
    let ws = (shapes::named("detached").make)();
    let tip = ws.git(["rev-parse", "HEAD"]);
    let script = format!("{GIT} git commit -q --allow-empty -m more; exit 1");
    completed(ws.run(ROLLBACK, &script));
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
    assert_ne!(
        ws.git_call(["symbolic-ref", "-q", "HEAD"]).run().code,
        0,
        "still detached"
    );
}

#[test]
fn a_branch_that_is_only_packed_goes_back() {
    let ws = TestWorkspace::repository();
    ws.git(["pack-refs", "--all"]);
    assert!(!ws.exists(".git/refs/heads/main"));
    let tip = ws.git(["rev-parse", "HEAD"]);
    let script = format!("{GIT} git commit -q --allow-empty -m more; git pack-refs --all; exit 1");
    completed(ws.run(ROLLBACK, &script));
    assert_eq!(ws.git(["rev-parse", "refs/heads/main"]), tip);
}

// The other way round, a rule that goes away
#[test]
fn a_run_that_removes_a_rule_exposes_nothing_to_deletion() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "data/\n*.env\n");
    ws.commit("rules");
    ws.write("data/results", "hours of work\n");
    ws.write("secret.env", "x\n");
    let run = ws
        .run(ROLLBACK, "rm .gitignore; echo x > README; exit 1")
        .exits(1)
        .json();
    let diff = &run["workspace"]["diff"];
    assert_eq!(
        json::names(&diff["added"]),
        [] as [&str; 0],
        "not seen before is not new: {diff}"
    );
    assert_eq!(ws.text("data/results"), "hours of work\n");
    assert_eq!(ws.text("secret.env"), "x\n");
    assert_eq!(ws.text(".gitignore"), "data/\n*.env\n");
}

#[test]
fn paths_that_are_no_text_are_exact_in_a_rollback() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.log\n");
    ws.write(b"kept\xff", "1\n");
    let script = "for f in kept*; do echo 2 > \"$f\"; done; printf x > \"$(printf 'left\\376.log')\"; exit 1";
    let rollback = completed(ws.run(ROLLBACK, script));
    let of = |key: &str| json::path_bytes(&rollback[key][0]);
    assert_eq!(of("restored"), b"kept\xff");
    assert_eq!(of("leftover_ignored"), b"left\xfe.log");
    assert_eq!(ws.read(b"kept\xff"), b"1\n");
}

// A rollback that cannot work is refused before the adapter is called
#[test]
fn a_rollback_that_has_no_place_to_stage_in_is_refused_before_the_command() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let ws = TestWorkspace::plain();
    mounts.tmpfs(ws.root(), "8m");
    let mark = ws.outside().join("ran");
    let script = format!("touch '{}'; exit 1", mark.display());
    let run = |options: &[&str]| {
        let call = ws.run_call(options, &script);
        mounts.inside(call, ws.root()).run()
    };
    let refused = run(&["--rollback-on-failure", "--retain-content"]).exits(125);
    let message = refused.error("Unsupported");
    assert!(message.contains("is a mount point"), "{message}");
    assert!(!mark.exists(), "the command was not run");
    run(&[]).exits(1);
    assert!(
        mark.exists(),
        "without a rollback there is nothing to refuse"
    );
}

// "takes it back", and an undo that was refused
#[test]
fn where_nothing_can_be_put_back_in_place_only_a_copy_is_promised() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let ws = TestWorkspace::plain();
    mounts.tmpfs(ws.root(), "8m");
    fs::write(mounts.path(&ws.path("kept")), "mine\n").unwrap();
    let call = |args: &[&str]| mounts.inside(ws.call(args), ws.root()).run();
    let run = call(&["run", "--", "rm", "kept"]).ok().stderr_text();
    assert!(!run.contains("stillframe undo"), "{run}");
    let command = run
        .split('"')
        .find(|part| part.starts_with("stillframe restore snap_"));
    let command = command.unwrap_or_else(|| panic!("a command is named: {run}"));
    let target = command.split(' ').nth(2).unwrap();

    for args in [
        &["restore", target, "--plan"][..],
        &["undo", "--plan"],
        &["undo"],
        &["restore", target],
    ] {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let message = call(&args).refused("Unsupported");
        assert!(message.contains("is a mount point"), "{message}");
        assert!(!message.contains("STILLFRAME_HOME"), "{message}");
        assert!(message.contains("restore SNAPSHOT --to DIR"), "{message}");
    }
    // Where nothing would be done, nothing is in the way of that.
    let snapshot = call(&["snapshot"]).ok();
    let said = snapshot.stderr_text();
    assert!(said.contains("--to DIR"), "in time: {said}");
    call(&["restore", "latest", "--plan"]).ok();
    // A command for where one stands.
    let root = ws.root().to_str().unwrap();
    let away = mounts.inside(ws.call(["snapshot", "--workspace", root]), &ws.outside());
    let said = away.run().ok().stderr_text();
    let whole = format!(" --workspace {root} --to DIR\"");
    assert!(said.contains(&whole), "{said}");

    assert!(command.ends_with(" --to DIR"), "{command}");
    let copy = ws.outside().join("copy");
    call(&["restore", target, "--to", copy.to_str().unwrap()]).ok();
    assert_eq!(fs::read_to_string(copy.join("kept")).unwrap(), "mine\n");
    let told = call(&["run", "--json", "--", "touch", "more"]).ok();
    assert!(
        told.stderr_text().contains("--to DIR"),
        "to whoever reads JSON, too: {told}"
    );
}
