//! Refs that git does not keep beside each other, `d` and `d/x`: what is in the way of a branch
//! that a rollback or an undo makes again is found before anything moves, and the commands that are
//! told make room.

use serde_json::Value;
use stillframe_tests::{Call, Output, TestWorkspace};

/// Who commits in a run.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null \
    GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
    GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";

/// A repository that is on the branch `own`, with a commit and something staged.
fn on(own: &str) -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.git(["checkout", "-q", "-b", own]);
    ws.write("file", "one\n");
    ws.commit("one");
    ws.write("staged", "before\n");
    ws.git(["add", "staged"]);
    ws
}

/// What HEAD and the branches name, and what is staged.
fn git_has(ws: &TestWorkspace) -> [String; 3] {
    let format = "--format=%(refname) %(objectname) %(symref)";
    [
        ws.text(".git/HEAD"),
        ws.git(["for-each-ref", format, "refs/heads"]),
        ws.git(["ls-files", "--stage"]),
    ]
}

/// The one command that a message names.
#[track_caller]
fn command_in(message: &str) -> &str {
    let named: Vec<&str> = message.split('"').collect();
    assert_eq!(named.len(), 3, "{message}");
    named[1]
}

#[track_caller]
fn typed(ws: &TestWorkspace, command: &str) {
    tried(ws, command).ok();
}

/// The same of one that may fail.
fn tried(ws: &TestWorkspace, command: &str) -> Output {
    let call = Call::new("sh", ws.root()).args(["-c", command]);
    call.env("PATH", std::env::var_os("PATH").unwrap()).run()
}

/// The refs in a namespace, with what they name.
fn refs_in(ws: &TestWorkspace, namespace: &str) -> String {
    ws.git([
        "for-each-ref",
        "--format=%(refname) %(objectname)",
        namespace,
    ])
}

/// What the rollback of a run with this script tells, which finds a branch in the way.
#[track_caller]
fn told_of(ws: &TestWorkspace, script: &str) -> String {
    let rollback = rolled_back(ws, script);
    let told = rollback["error"]["message"].as_str();
    told.unwrap_or_else(|| panic!("{rollback}")).to_owned()
}

/// Runs `script`, which fails, and answers with its rollback.
fn rolled_back(ws: &TestWorkspace, script: &str) -> Value {
    let run = ws.run(["--rollback-on-failure"], &format!("{GIT}{script}; exit 1"));
    run.exits(1).json()["workspace"]["rollback"].clone()
}

// "Is a directory", of what git itself removes on the way
#[test]
fn empty_directories_are_in_no_branchs_way() {
    for leave in [
        "git checkout -q main; git branch -q -D d",
        "git branch -q -m d e",
    ] {
        for pack in ["", "; git pack-refs --all"] {
            let ws = on("d");
            let before = git_has(&ws);
            let script =
                format!("{leave}{pack}; mkdir -p .git/refs/heads/d/a/b .git/refs/heads/d/c");
            let rollback = rolled_back(&ws, &script);
            assert_eq!(rollback["error"], Value::Null, "{script}: {rollback}");
            ws.git_call(["branch", "-D", "e"]).run();
            assert_eq!(git_has(&ws), before, "{script}");
            ws.run::<&str>([], &script).ok();
            let undone = ws.undo();
            assert_eq!(undone["error"], Value::Null, "{script}: {undone}");
            ws.git_call(["branch", "-D", "e"]).run();
            assert_eq!(git_has(&ws), before, "{script}");
        }
    }
    // A branch that is packed, and comes back to where it was.
    let ws = on("d");
    let before = git_has(&ws);
    let script = "echo two > file; git commit -q -a -m two; git pack-refs --all; mkdir -p .git/refs/heads/d/a";
    ws.write("staged", "by the run\n");
    let rollback = rolled_back(&ws, script);
    assert_eq!(rollback["error"], Value::Null, "{rollback}");
    assert_eq!(git_has(&ws), before);
}

// A descriptor was open for each
#[test]
fn any_number_of_empty_directories_is_in_no_branchs_way() {
    let ws = on("d");
    let before = git_has(&ws);
    ws.run::<&str>([], "git checkout -q main; git branch -q -D d")
        .ok();
    for n in 0..600 {
        std::fs::create_dir_all(ws.path(format!(".git/refs/heads/d/{n}"))).unwrap();
    }
    let limited = ["-c", "ulimit -n 256; exec \"$@\"", "sh"];
    let undone = ws.call(["undo", "--json"]).through("sh", limited).run();
    let undone = undone.ok().json();
    assert_eq!(undone["error"], Value::Null, "{undone}");
    assert_eq!(git_has(&ws), before);
}

// They were removed with what a link among them led to, or the branch with what lay in its place
#[test]
fn what_holds_anything_else_than_directories_is_left_alone() {
    let ws = on("d");
    let away = ws.outside().join("empty");
    std::fs::create_dir(&away).unwrap();
    let at = "refs/heads/d/a/link";
    let script = format!(
        "git checkout -q main; git branch -q -D d; echo two > file; mkdir -p .git/refs/heads/d/a .git/refs/heads/d/b; \
         ln -s {} .git/{at}",
        away.display()
    );
    let rollback = rolled_back(&ws, &script);
    let message = rollback["error"]["message"].as_str().unwrap();
    assert_eq!(rollback["error"]["kind"], "Conflict", "{rollback}");
    let said = format!("{at}, which is no ref, is in the way of refs/heads/d: ");
    assert!(message.starts_with(&said), "{message}");
    assert!(!message.contains('"'), "{message}");
    assert!(away.exists());
    assert!(ws.path(".git/refs/heads/d/b").exists());
    assert_eq!(ws.text("file"), "one\n", "the files are restored");
}

// The rollback failed half-way with "Is a directory", and nothing said how to go on
#[test]
fn a_branch_in_the_way_is_told_and_the_command_makes_room() {
    for (own, script) in [
        ("d", "git branch -q -m d d/x"),
        ("d", "git branch -q -m d d/x; git pack-refs --all"),
        (
            "d",
            "git checkout -q --detach; git branch -q -D d; git branch d/x",
        ),
        (
            "d",
            "git checkout -q --detach; git branch -q -D d; git branch d/x; git branch d/y/z; git pack-refs --all; \
             git branch d/w; git symbolic-ref refs/heads/d/link refs/heads/main",
        ),
        ("d/x", "git branch -q -m d/x d"),
        ("d/x", "git branch -q -m d/x d; git pack-refs --all"),
        (
            "d/x/y",
            "git branch -q -m d/x/y d/x; git pack-refs --all; rmdir .git/refs/heads/d",
        ),
    ] {
        let ws = on(own);
        let was = git_has(&ws);
        let script = format!("{GIT}{script}; echo two > file; git commit -q -a -m two");
        let run = ws.run::<&str>([], &script).ok().json();
        let (run, before) = (&run["run_id"], &run["workspace"]["before_snapshot"]["id"]);
        let [run, before] = [run, before].map(|id| id.as_str().unwrap());
        let left = git_has(&ws);

        let planned = ws.json(["undo", "--plan"]);
        let told = planned["repository"]["problem"]["message"].as_str();
        let told = told.unwrap_or_else(|| panic!("{script}: {planned}"));
        let undone = ws.json(["undo"]);
        assert_eq!(undone["error"]["kind"], "Conflict", "{script}: {undone}");
        assert_eq!(undone["error"]["message"], told, "{script}");
        assert_eq!(undone["safety_tag"], Value::Null, "{script}: {undone}");
        assert_eq!(ws.text("file"), "one\n", "{script}");
        assert_eq!(git_has(&ws), left, "{script}");
        let said = format!(
            "in the way of refs/heads/{own}: HEAD, branch and index were left as they are; "
        );
        assert!(told.contains(&said), "{script}: {told}");

        // It is what came last only as far as it did something.
        assert_eq!(ws.json(["undo"])["undone"]["operation"], "undo", "{script}");
        assert_eq!(ws.text("file"), "two\n", "{script}");
        ws.json(["undo", run]);
        let again = ws.json(["undo", run]);
        assert_eq!(again["error"]["message"], told, "{script}: {again}");
        assert_eq!(
            again["restored"],
            Value::Array(Vec::new()),
            "{script}: {again}"
        );

        typed(&ws, command_in(told));
        assert_eq!(git_has(&ws)[..2], was[..2], "{script}: {told}");
        ws.json(["restore", before, "--repository"]);
        assert_eq!(git_has(&ws), was, "{script}: {told}");
        assert_eq!(ws.git(["status", "--porcelain"]), "A  staged", "{script}");
    }
}

// It said what came last, though it had done nothing
#[test]
fn a_rollback_that_finds_a_branch_in_the_way_restores_the_files() {
    let ws = on("d");
    let script = "git branch -q -m d d/x; echo two > file; git commit -q -a -m two";
    let rollback = rolled_back(&ws, script);
    assert_eq!(rollback["status"], "completed", "{rollback}");
    assert_eq!(rollback["error"]["kind"], "Conflict", "{rollback}");
    assert_eq!(ws.text("file"), "one\n");
    let left = git_has(&ws);
    let run = ws.json(["undo"]);
    assert_eq!(run["undone"]["operation"], "run", "{run}");
    assert_eq!(run["error"]["message"], rollback["error"]["message"]);
    let again = ws.json(["undo"]);
    assert_eq!(again["undone"], run["undone"], "{again}");
    assert_eq!(git_has(&ws), left);
    let told = rollback["error"]["message"].as_str().unwrap();
    typed(&ws, command_in(told));
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/d");
    assert_eq!(ws.git(["branch", "--format=%(refname:short)"]), "d\nmain");
}

// A branch without a commit yet was named by HEAD where none could be made
#[test]
fn a_branch_in_the_way_of_one_without_a_commit_is_told_too() {
    let ws = TestWorkspace::unborn();
    ws.git(["symbolic-ref", "HEAD", "refs/heads/d"]);
    ws.write("file", "one\n");
    let script = "git add file; git commit -q -m one; git branch -q -m d d/x; echo two > file";
    let rollback = rolled_back(&ws, script);
    let told = rollback["error"]["message"].as_str();
    let told = told.unwrap_or_else(|| panic!("{rollback}"));
    assert!(
        told.starts_with("refs/heads/d/x is in the way of refs/heads/d: "),
        "{told}"
    );
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/d/x");
    typed(&ws, command_in(told));
    ws.git(["add", "file"]);
    ws.git(["commit", "-q", "-m", "first"]);
    assert_eq!(ws.git(["branch", "--format=%(refname:short)"]), "d");
}

// The other work tree had no branch any more
#[test]
fn a_branch_in_the_way_that_another_work_tree_has_out_is_not_to_be_removed() {
    let ws = on("d");
    let other = ws.outside().join("other tree");
    let script = format!(
        "git checkout -q main; git branch -q -D d; git worktree add -q -b d/x '{}'",
        other.display()
    );
    let rollback = rolled_back(&ws, &script);
    let told = rollback["error"]["message"].as_str().unwrap();
    let said = format!(
        "refs/heads/d/x, which the work tree {} has checked out, is in the way of refs/heads/d: ",
        other.display()
    );
    assert!(told.starts_with(&said), "{told}");
    assert!(!told.contains('"'), "{told}");
}

const RENAMED: &str = "git branch -q -m d d/x; echo two > file; git commit -q -a -m two";
const DETACHED: &str = "git checkout -q --detach; git branch -q -D d; git branch d/x";

// HEAD was dragged along from where somebody had gone
#[test]
fn the_command_does_nothing_where_head_has_moved_since() {
    for (script, since) in [
        (RENAMED, "git checkout -q main"),
        (RENAMED, "git checkout -q --detach"),
        (DETACHED, "git checkout -q main"),
        (DETACHED, "git checkout -q d/x"),
        (DETACHED, "git commit -q --allow-empty -m mine"),
    ] {
        let ws = on("d");
        let told = told_of(&ws, script);
        typed(&ws, &format!("{GIT}git reset -q --hard; {since}"));
        let theirs = (git_has(&ws), refs_in(&ws, "refs"));
        let tried = tried(&ws, command_in(&told));
        assert_ne!(tried.code, 0, "{script}; {since}: {told}");
        let now = (git_has(&ws), refs_in(&ws, "refs"));
        assert_eq!(now, theirs, "{script}; {since}: {told}");
    }
}

// It removed the only name of what the run had committed
#[test]
fn the_command_keeps_what_the_removed_branch_named() {
    let detached = format!("{DETACHED}; git commit -q --allow-empty -m two");
    for script in [RENAMED, &*detached] {
        let ws = on("d");
        let told = told_of(&ws, script);
        let two = ws.git(["rev-parse", "HEAD"]);
        typed(&ws, command_in(&told));
        assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/d");
        let kept = refs_in(&ws, "refs/stillframe/safety");
        assert!(kept.ends_with(&format!("-1 {two}")), "{told}: {kept}");
        assert_eq!(kept.lines().count(), 1, "{told}: {kept}");
        ws.json(["gc", "--keep", "1"]);
        assert_eq!(refs_in(&ws, "refs/stillframe/safety"), kept);
    }
    // The name is there already, of an earlier try.
    let ws = on("d");
    let script = format!("{GIT}{RENAMED}");
    let run = ws.run::<&str>([], &script).ok().json();
    let run = run["run_id"].as_str().unwrap();
    let told = ws.json(["undo", run])["error"]["message"].clone();
    let command = command_in(told.as_str().unwrap());
    let safety = command.split(" && ").find(|c| c.contains("safety"));
    typed(&ws, safety.unwrap());
    let kept = refs_in(&ws, "refs/stillframe/safety");
    let told = ws.json(["undo", run])["error"]["message"].clone();
    typed(&ws, command_in(told.as_str().unwrap()));
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/d");
    assert_eq!(refs_in(&ws, "refs/stillframe/safety"), kept);
    // What the branch names that is made needs no other name.
    let ws = on("d");
    let told = told_of(&ws, "git branch -q -m d d/x");
    typed(&ws, command_in(&told));
    assert_eq!(refs_in(&ws, "refs/stillframe"), "", "{told}");
}
