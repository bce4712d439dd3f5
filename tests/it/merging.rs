//! `review approve`: what runs have handed in comes to the branch that they were cut from. git is the
//! oracle.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use stillframe_tests::choice::one_of_each;
use stillframe_tests::{Output, TestWorkspace, capability, git};

use super::crash::{MUTATING, killed_at};
use super::isolation::{checkout, done, id, is_there, isolated, show, text, types, worktree};
use super::tasks::counted;

/// How often a merge is killed.
const KILLS: &str = "STILLFRAME_MERGE_KILLS";

fn approve(ws: &TestWorkspace, run: &Value, options: &[&str]) -> Output {
    ws.try_json([&["review", "approve", id(run)], options].concat())
}

/// What is blocked says this, moves nothing, and waits as before.
#[track_caller]
fn is_blocked(ws: &TestWorkspace, run: &Value, by: &str) {
    let before = (ws.git(["for-each-ref"]), index(ws, ws.root()));
    let output = approve(ws, run, &[]).exits(1);
    let document = output.json();
    assert_eq!(document["status"], "awaiting_review", "{output}");
    assert_eq!(document["merge"]["outcome"], "blocked", "{output}");
    let why = document["merge"]["reason"].as_str().unwrap();
    assert!(why.contains(by), "{why}");
    let base = ws.base().to_str().unwrap();
    assert!(!why.contains(base), "it has no absolute path: {why}");
    assert!(output.stderr_text().contains(by), "{output}");
    let after = (ws.git(["for-each-ref"]), index(ws, ws.root()));
    assert_eq!(after, before);
    assert_eq!(types(ws, run).last().unwrap(), "merge_blocked");
    assert_eq!(is_there(ws, run), [true; 3]);
}

#[track_caller]
fn is_merged(ws: &TestWorkspace, run: &Value, options: &[&str]) -> Value {
    let output = approve(ws, run, options).ok();
    let document = output.json();
    assert_eq!(document["status"], "merged", "{output}");
    assert_eq!(document["merge"]["outcome"], "merged", "{output}");
    assert_eq!(
        ws.git(["rev-parse", text(&document, "originating_branch")]),
        document["merge"]["new_head"].as_str().unwrap()
    );
    assert_eq!(is_there(ws, run), [false; 3]);
    document
}

/// The bytes of the index, and the stat data of the work tree's files.
fn index(ws: &TestWorkspace, at: &Path) -> (Vec<u8>, String) {
    let git_dir = git::text(&ws.home(), at, ["rev-parse", "--absolute-git-dir"]);
    let bytes = fs::read(Path::new(&git_dir).join("index")).unwrap_or_default();
    let files = git::text(&ws.home(), at, ["ls-files", "-t"]);
    (bytes, files)
}

/// What git says of a work tree, without writing down what it finds out.
fn status(ws: &TestWorkspace, at: &Path) -> String {
    let args = ["--no-optional-locks", "status", "--porcelain", "--ignored"];
    git::text(&ws.home(), at, args)
}

fn fsck(ws: &TestWorkspace) {
    git::run(&ws.home(), ws.root(), ["fsck", "--strict", "--no-dangling"]);
}

/// Has a shell do something at the top of the work tree.
#[track_caller]
fn sh(ws: &TestWorkspace, script: &str) -> String {
    let alias = format!("alias.do=!f() {{ {script}; }}; f");
    ws.git_call(["-c", &alias, "do"]).run().ok().stdout_text()
}

fn read(ws: &TestWorkspace, path: &str) -> String {
    fs::read_to_string(ws.path(path)).unwrap()
}

#[test]
fn a_clean_checkout_goes_on_to_what_was_approved_and_the_worktree_is_let_go_of() {
    let ws = TestWorkspace::repository();
    ws.write("gone", "x\n");
    ws.write("d/kept", "kept\n");
    ws.commit("second");
    let head = ws.git(["rev-parse", "HEAD"]);
    let script = "echo more >> README; rm gone; ln -s d link; echo x > d/new; chmod +x README";
    let run = done(&ws, script);
    let commit = text(&run, "commit").to_owned();
    let document = is_merged(&ws, &run, &["--by", "ann", "--commit", &commit[..9]]);
    assert_eq!(
        document["merge"],
        json!({
            "outcome": "merged", "commit": commit, "mode": "fast-forward-files",
            "previous_head": head, "new_head": commit, "fast_forward": true,
            "target_advanced": false, "left_behind": [], "kept": [],
        })
    );
    assert_eq!(document["reviewed_by"], "ann");
    assert_eq!(ws.git(["rev-parse", "HEAD"]), commit);
    assert_eq!(status(&ws, ws.root()), "");
    assert_eq!(ws.git(["write-tree"]), text(&run, "tree"));
    assert!(read(&ws, "README").ends_with("more\n"));
    fsck(&ws);

    let told = types(&ws, &run);
    let order = [
        "review_requested",
        "review_approved",
        "merge_started",
        "merge_completed",
        "worktree_let_go",
    ];
    let found = told.iter().filter(|one| order.contains(&one.as_str()));
    assert_eq!(found.collect::<Vec<_>>(), order, "{told:?}");
    let log = ws.git(["reflog", "-1", "--format=%gs", "HEAD"]);
    assert_eq!(log, "stillframe: merge");
    // The same answer, and nothing twice.
    assert_eq!(approve(&ws, &run, &["--by", "bob"]).ok().json(), document);
    assert_eq!(types(&ws, &run), told);
    let refused = ws.try_json(["review", "decline", id(&run)]).exits(1);
    assert!(refused.error("Conflict").contains("is merged"));
    assert_eq!(show(&ws, &run)["exit_code"], 0);

    // It can be taken back as one thing.
    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.git(["rev-parse", "HEAD"]), head);
    assert_eq!(status(&ws, ws.root()), "");
    assert!(ws.path("gone").exists() && !ws.path("d/new").exists());
}

#[test]
fn what_is_changed_beside_the_merge_stays_as_it_is() {
    let ws = TestWorkspace::repository();
    for name in ["staged", "unstaged", "both", "touched", "mode"] {
        ws.write(name, "1\n");
    }
    ws.write(".gitignore", "ignored\n");
    ws.commit("second");
    let run = done(&ws, "echo 2 >> touched; mkdir new; echo x > new/file");
    ws.write("staged", "2\n");
    ws.write("both", "2\n");
    ws.git(["add", "staged", "both"]);
    ws.write("both", "3\n");
    ws.write("unstaged", "2\n");
    ws.write("untracked", "mine\n");
    ws.write("ignored", "mine\n");
    ws.write("dir/untracked", "mine\n");
    ws.git(["rm", "-q", "--cached", "mode"]);
    ws.git(["add", "-N", "untracked"]);
    let before = (status(&ws, ws.root()), ws.git(["diff", "--cached"]));
    let unstaged = ws.git(["diff"]);
    is_merged(&ws, &run, &[]);
    let after = (status(&ws, ws.root()), ws.git(["diff", "--cached"]));
    assert_eq!(after, before);
    assert_eq!(ws.git(["diff"]), unstaged);
    assert_eq!(read(&ws, "touched"), "1\n2\n");
    assert_eq!(read(&ws, "new/file"), "x\n");
    fsck(&ws);
}

#[test]
fn what_is_changed_where_the_merge_goes_is_in_its_way_until_it_is_not() {
    for (what, change, undo) in [
        ("touched", "echo mine >> touched", "git checkout -q touched"),
        (
            "touched",
            "echo mine >> touched; git add touched; git show HEAD:touched > touched",
            "git reset -q --hard",
        ),
        ("new", "echo mine > new", "rm new"),
        (
            "ignored.d/new",
            "mkdir ignored.d; echo mine > ignored.d/new",
            "rm -r ignored.d",
        ),
        ("ignored.d", "echo mine > ignored.d", "rm ignored.d"),
        ("gone", "echo mine >> gone", "git checkout -q gone"),
        ("new", "mkdir new", "rmdir new"),
    ] {
        let ws = TestWorkspace::repository();
        ws.write("touched", "1\n");
        ws.write("gone", "1\n");
        ws.commit("second");
        let script =
            "echo 2 >> touched; echo x > new; rm gone; mkdir ignored.d; echo x > ignored.d/new";
        let run = done(&ws, script);
        ws.write(".git/info/exclude", "/ignored.d\n");
        sh(&ws, change);
        let before = sh(
            &ws,
            "cat touched gone new ignored.d ignored.d/new 2>&1; true",
        );
        is_blocked(&ws, &run, what);
        let after = sh(
            &ws,
            "cat touched gone new ignored.d ignored.d/new 2>&1; true",
        );
        assert_eq!(after, before, "{change}");
        sh(&ws, undo);
        let document = is_merged(&ws, &run, &[]);
        assert_eq!(document["merge"]["mode"], "fast-forward-files");
        assert_eq!(read(&ws, "new"), "x\n");
    }
}

#[test]
fn an_operation_of_gits_is_in_the_way() {
    let ws = TestWorkspace::repository();
    ws.write("file", "1\n");
    ws.commit("second");
    let run = done(&ws, "echo x > new");
    ws.git(["branch", "other"]);
    ws.write("file", "2\n");
    ws.commit("third");
    ws.git(["checkout", "-q", "other"]);
    ws.write("file", "3\n");
    ws.commit("elsewhere");
    ws.git(["checkout", "-q", "-"]);
    for (begin, end) in [
        ("git merge -q other", "git merge --abort"),
        ("git cherry-pick other", "git cherry-pick --abort"),
        (
            "git revert --no-edit HEAD~1; git revert --no-commit HEAD",
            "git reset -q --hard",
        ),
        ("git rebase -q other", "git rebase --abort"),
        ("git bisect start -q", "git bisect reset"),
    ] {
        let head = ws.git(["rev-parse", "HEAD"]);
        sh(&ws, &format!("({begin}) >/dev/null 2>&1; true"));
        is_blocked(&ws, &run, "in progress");
        sh(&ws, &format!("{end} >/dev/null 2>&1"));
        ws.git(["reset", "-q", "--hard", &head]);
    }
    // An index with conflicts, and nothing else that says so.
    sh(
        &ws,
        "git merge -q other >/dev/null 2>&1; rm .git/MERGE_HEAD .git/MERGE_MSG .git/MERGE_MODE .git/AUTO_MERGE 2>/dev/null; true",
    );
    assert!(ws.git(["ls-files", "-u"]).contains("file"));
    is_blocked(&ws, &run, "file");
    ws.git(["reset", "-q", "--hard"]);
    let document = is_merged(&ws, &run, &[]);
    assert_eq!(document["merge"]["mode"], "merged-files");
    assert_eq!(document["merge"]["target_advanced"], true);
    assert_eq!(read(&ws, "new"), "x\n");
}

#[test]
fn a_branch_that_is_checked_out_nowhere_moves_alone() {
    let ws = TestWorkspace::repository();
    let branch = ws.git(["branch", "--show-current"]);
    let detached = done(&ws, "echo x > one");
    ws.git(["checkout", "-q", "--detach"]);
    let before = (index(&ws, ws.root()), ws.git(["rev-parse", "HEAD"]));
    let document = is_merged(&ws, &detached, &[]);
    assert_eq!(document["merge"]["mode"], "ref-only");
    assert_eq!(
        (index(&ws, ws.root()), ws.git(["rev-parse", "HEAD"])),
        before
    );
    assert!(!ws.path("one").exists());

    // A linked worktree that has the branch is brought along.
    let run = isolated(&ws, &["--from", &branch], "echo x > two")
        .ok()
        .json();
    ws.git(["worktree", "add", "-q", "../linked", &branch]);
    let linked = ws.base().join("linked");
    fs::write(linked.join("mine"), "x\n").unwrap();
    let document = is_merged(&ws, &run, &[]);
    assert_eq!(document["merge"]["mode"], "fast-forward-files");
    assert_eq!(fs::read_to_string(linked.join("two")).unwrap(), "x\n");
    assert_eq!(status(&ws, &linked), "?? mine");
    assert_eq!(
        (index(&ws, ws.root()), ws.git(["rev-parse", "HEAD"])),
        before
    );

    // Two that have it, or one that is away, are in the way.
    let run = isolated(&ws, &["--from", &branch], "echo x > three")
        .ok()
        .json();
    ws.git(["worktree", "add", "-q", "--force", "../second", &branch]);
    is_blocked(&ws, &run, "2 work trees");
    ws.git(["worktree", "remove", "../second"]);
    fs::rename(&linked, ws.base().join("away")).unwrap();
    is_blocked(&ws, &run, "linked");
    let document = is_merged(&ws, &run, &["--ref-only"]);
    assert_eq!(document["merge"]["mode"], "ref-only");
    let left = document["merge"]["left_behind"][0].as_str().unwrap();
    assert!(left.ends_with("linked"), "{left}");
    fsck(&ws);
}

#[test]
fn a_checkout_that_is_left_behind_on_purpose_is_named() {
    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    let before = index(&ws, ws.root());
    let output = approve(&ws, &run, &["--ref-only"]).ok();
    let document = output.json();
    assert_eq!(document["merge"]["mode"], "ref-only");
    let root = ws.root().to_str().unwrap();
    assert_eq!(document["merge"]["left_behind"], json!([root]));
    assert!(output.stderr_text().contains("taken back"), "{output}");
    assert_eq!(index(&ws, ws.root()), before);
    assert_eq!(status(&ws, ws.root()), "D  new");

    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    ws.git(["config", "core.worktree", "/elsewhere"]);
    let output = approve(&ws, &run, &[]).exits(1);
    assert_eq!(output.json()["merge"]["outcome"], "blocked", "{output}");
}

#[test]
fn what_others_did_meanwhile_is_merged_as_git_merges_it() {
    let ws = TestWorkspace::repository();
    ws.write("file", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    ws.write("other", "1\n");
    ws.commit("second");
    let run = done(&ws, "sed -i s/1/one/ file; git mv other moved");
    sh(
        &ws,
        "sed -i s/9/nine/ file; echo 2 >> other; git commit -qam third",
    );
    let (head, commit) = (ws.git(["rev-parse", "HEAD"]), text(&run, "commit"));
    let tree = ws.git(["merge-tree", "--write-tree", &head, commit]);
    let document = is_merged(&ws, &run, &[]);
    let merge = &document["merge"];
    assert_eq!(merge["mode"], "merged-files");
    assert_eq!(merge["target_advanced"], true);
    assert_eq!(merge["fast_forward"], false);
    assert_eq!(ws.git(["rev-parse", "HEAD^{tree}"]), tree);
    assert_eq!(
        ws.git(["rev-parse", "HEAD^1", "HEAD^2"]),
        format!("{head}\n{commit}")
    );
    let branch = ws.git(["branch", "--show-current"]);
    let said = ws.git(["log", "-1", "--format=%B"]);
    let expected = format!("Merge stillframe run into {branch}\n\nRun-Id: {}", id(&run));
    assert_eq!(said.trim(), expected);
    assert_eq!(status(&ws, ws.root()), "");
    assert_eq!(read(&ws, "moved"), "1\n2\n");
    fsck(&ws);
}

#[test]
fn a_conflict_is_final_and_names_fifty_paths() {
    let ws = TestWorkspace::repository();
    for n in 0..80 {
        ws.write(format!("f{n:02}"), "1\n");
    }
    ws.commit("second");
    let run = done(&ws, "for f in f*; do echo theirs > $f; done");
    sh(
        &ws,
        "for f in f*; do echo ours > $f; done; git commit -qam third",
    );
    let before = checkout(&ws);
    let output = approve(&ws, &run, &[]).exits(1);
    let document = output.json();
    assert_eq!(document["status"], "merge_failed", "{output}");
    let files = document["merge"]["files"].as_array().unwrap();
    assert_eq!((files.len(), &document["merge"]["more"]), (50, &json!(30)));
    assert_eq!(files[0], "f00");
    assert!(!output.stderr_text().contains("theirs"), "{output}");
    assert_eq!(checkout(&ws), before);
    assert_eq!(is_there(&ws, &run), [true; 3]);
    let told = types(&ws, &run);
    assert_eq!(told[told.len() - 2..], ["merge_conflicted", "merge_failed"]);
    assert_eq!(approve(&ws, &run, &[]).exits(1).json(), document);
    assert_eq!(types(&ws, &run), told);
    ws.json(["worktree", "discard", id(&run)]);
    assert_eq!(is_there(&ws, &run), [false; 3]);
}

#[test]
fn no_common_history_is_in_the_way() {
    let ws = TestWorkspace::repository();
    let branch = ws.git(["branch", "--show-current"]);
    let run = done(&ws, "echo x > new");
    sh(
        &ws,
        &format!(
            "git checkout -q --orphan fresh && git commit -qm fresh && git branch -q -M fresh {branch}"
        ),
    );
    let refused = approve(&ws, &run, &[]).exits(1).error("Conflict");
    assert!(refused.contains("stale"), "{refused}");
}

#[test]
fn an_approval_of_something_else_is_stale_and_moves_nothing() {
    type Change = fn(&TestWorkspace, &Value);
    let changes: [(&str, Change); 5] = [
        ("another commit on the branch", |ws, run| {
            let at = worktree(run);
            fs::write(at.join("later"), "x\n").unwrap();
            git::text(&ws.home(), &at, ["add", "later"]);
            git::text(&ws.home(), &at, ["commit", "-qm", "later"]);
        }),
        ("the same tree by another commit", |ws, run| {
            git::text(
                &ws.home(),
                &worktree(run),
                ["commit", "-q", "--amend", "-m", "said otherwise"],
            );
        }),
        ("the branch is gone", |ws, run| {
            git::text(&ws.home(), &worktree(run), ["checkout", "-q", "--detach"]);
            ws.git(["update-ref", "-d", text(run, "worktree_branch")]);
        }),
        ("the worktree is gone", |_, run| {
            fs::remove_dir_all(worktree(run)).unwrap()
        }),
        ("the base is not in the branch any more", |ws, _| {
            ws.git(["commit", "-q", "--amend", "-m", "said otherwise"]);
        }),
    ];
    for (what, change) in changes {
        let ws = TestWorkspace::repository();
        ws.write("file", "1\n");
        ws.commit("second");
        let run = done(&ws, "echo x > new");
        change(&ws, &run);
        let before = ws.git(["for-each-ref"]);
        let output = approve(&ws, &run, &[]).exits(1);
        let said = output.error("Conflict");
        // What an engine finds gone when it starts, it fails before anybody approves it.
        assert!(
            said.contains("stale") || said.contains("is failed"),
            "{what}: {said}"
        );
        assert_eq!(ws.git(["for-each-ref"]), before, "{what}");
        assert!(!ws.path("new").exists(), "{what}");
        assert!(
            !types(&ws, &run).contains(&"review_approved".to_owned()),
            "{what}"
        );
    }
    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    let other = ws.git(["rev-parse", "HEAD"]);
    let said = approve(&ws, &run, &["--commit", &other])
        .exits(1)
        .error("Conflict");
    assert!(said.contains("stale"), "{said}");
    ws.write("mine", "x\n");
    ws.commit("third");
    let said = approve(&ws, &run, &["--require-current-base"])
        .exits(1)
        .error("Conflict");
    assert!(said.contains("moved on"), "{said}");
    assert_eq!(show(&ws, &run)["status"], "awaiting_review");
    is_merged(&ws, &run, &[]);
    ws.try_json(["review", "approve", id(&run), "--commit", "xyz"])
        .exits(2);
    ws.try_json(["review", "approve", "run_00000000"])
        .exits(1)
        .error("NotFound");
}

#[test]
fn of_two_decisions_at_once_there_is_one() {
    let ws = TestWorkspace::repository();
    for round in 0..counted("STILLFRAME_DECISIONS", 4) {
        let run = done(&ws, &format!("echo {round} > new{round}"));
        let first = ["review", "approve", id(&run)];
        let second = match round % 2 {
            0 => first,
            _ => ["review", "decline", id(&run)],
        };
        let calls = [first, second].map(|args| ws.call([&["--json"], &args[..]].concat()).start());
        let outputs = calls.map(|call| call.wait());
        let told = types(&ws, &run);
        let count = |of: &str| told.iter().filter(|one| *one == of).count();
        let decided = [count("review_approved"), count("review_declined")];
        assert_eq!(decided.iter().sum::<usize>(), 1, "{told:?} {outputs:?}");
        let status = show(&ws, &run)["status"].clone();
        assert_eq!(status, ["merged", "declined"][decided[1]], "{outputs:?}");
        assert_eq!(count("merge_completed"), decided[0], "{told:?}");
        assert_eq!(ws.path(format!("new{round}")).exists(), decided[0] == 1);
    }
}

#[test]
fn what_is_left_in_the_worktree_of_a_merged_run_is_in_a_snapshot() {
    let ws = TestWorkspace::repository();
    let run = isolated(&ws, &["--scope", "in"], "echo x > in; echo y > out")
        .ok()
        .json();
    is_merged(&ws, &run, &[]);
    assert!(ws.path("in").exists() && !ws.path("out").exists());
    let events = ws.events(["--run", id(&run)]);
    let gone = events
        .iter()
        .find(|event| event["type"] == "worktree_let_go");
    let snapshot = gone.unwrap()["data"]["snapshot_id"].as_str().unwrap();
    let kept = ws.stillframe(["show", &format!("{snapshot}:out")]);
    let kept = kept.ok().stdout_text();
    assert_eq!(kept, "y\n");
}

#[test]
fn a_lock_of_gits_is_waited_for_and_never_removed() {
    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    for lock in ["index.lock", "HEAD.lock"] {
        let lock = ws.path(".git").join(lock);
        fs::write(&lock, "somebody's").unwrap();
        let before = ws.git(["for-each-ref"]);
        is_blocked(&ws, &run, "lock");
        assert_eq!(ws.git(["for-each-ref"]), before);
        assert_eq!(fs::read_to_string(&lock).unwrap(), "somebody's");
        assert!(!ws.path("new").exists());
        assert_eq!(show(&ws, &run)["status"], "awaiting_review");
        fs::remove_file(lock).unwrap();
    }
    is_merged(&ws, &run, &[]);
    assert_eq!(left_locks(&ws), Vec::<PathBuf>::new());
}

/// The locks in the repository, of git's and of ours.
fn left_locks(ws: &TestWorkspace) -> Vec<PathBuf> {
    let found = walkdir::WalkDir::new(ws.path(".git")).into_iter();
    let found = found.map(|entry| entry.unwrap().into_path());
    found
        .filter(|path| path.extension().is_some_and(|end| end == "lock"))
        .collect()
}

#[test]
fn a_run_is_merged_at_once_if_nothing_stands_in_the_way() {
    let ws = TestWorkspace::repository();
    ws.write("file", "1\n");
    ws.commit("second");
    let output = isolated(&ws, &["--merge"], "echo x > new").ok();
    let run = output.json();
    assert_eq!(run["status"], "merged", "{output}");
    assert_eq!(run["isolation"]["merge"]["outcome"], "merged");
    assert_eq!(read(&ws, "new"), "x\n");
    ws.write("file", "mine\n");
    let output = isolated(&ws, &["--merge"], "echo 2 >> file").ok();
    let run = output.json();
    assert_eq!(run["status"], "awaiting_review", "{output}");
    assert!(
        output.stderr_text().contains("nothing was merged: "),
        "{output}"
    );
    ws.git(["commit", "-qam", "third"]);
    let output = isolated(&ws, &["--merge"], "exit 3").exits(3);
    assert_eq!(output.json()["status"], "failed");
    let output = approve(&ws, &run, &[]).exits(1);
    assert_eq!(output.json()["status"], "merge_failed", "{output}");
    let said = ws
        .call([
            "run",
            "--isolate",
            "--merge",
            "--",
            "sh",
            "-c",
            "echo y > other",
        ])
        .run()
        .ok()
        .stderr_text();
    assert!(
        said.contains("was merged") && said.contains("a fast-forward"),
        "{said}"
    );
}

#[test]
fn somebody_who_commits_meanwhile_is_merged_with() {
    let ws = TestWorkspace::repository();
    let runs: Vec<Value> = (0..3)
        .map(|n| done(&ws, &format!("echo {n} > new{n}")))
        .collect();
    let is_over = AtomicBool::new(false);
    let (commits, merged) = thread::scope(|scope| {
        let committing = scope.spawn(|| {
            let mut commits = Vec::new();
            for n in 0..60 {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                ws.write("mine", n.to_string());
                let script = "git add mine && git commit -qm mine && git rev-parse HEAD";
                let committed = ws.git_call(["-c", &format!("alias.do=!{script}"), "do"]);
                let output = committed.run();
                // A lock of ours, for a moment.
                if output.code == 0 {
                    commits.push(output.stdout_text().trim().to_owned());
                }
                thread::sleep(Duration::from_millis(700));
            }
            commits
        });
        // Whoever commits again and again keeps a merge away for a while.
        let is_merged_soon = |run: &&Value| {
            let mut tries = 0..20;
            tries.any(|_| approve(&ws, run, &[]).code == 0)
        };
        let merged = runs.iter().filter(is_merged_soon).count();
        is_over.store(true, Ordering::Relaxed);
        (committing.join().unwrap(), merged)
    });
    assert_eq!(merged, 3);
    assert!(!commits.is_empty());
    for commit in &commits {
        ws.git(["merge-base", "--is-ancestor", commit, "HEAD"]);
    }
    for n in 0..3 {
        assert_eq!(read(&ws, &format!("new{n}")), format!("{n}\n"));
    }
    assert!(!status(&ws, ws.root()).contains("new"));
    fsck(&ws);
}

#[test]
fn a_submodule_that_moves_is_shown_and_its_commits_keep_the_worktree_that_has_them() {
    let ws = TestWorkspace::repository();
    ws.git(["init", "-q", "--bare", "../sub.git"]);
    ws.git(["push", "-q", "../sub.git", "HEAD:refs/heads/main"]);
    let allow = ["-c", "protocol.file.allow=always"];
    let add = ["submodule", "-q", "add", "-b", "main", "../sub.git", "sm"];
    let address = ws.base().join("sub.git");
    let add = add.map(|word| match word {
        "../sub.git" => address.to_str().unwrap(),
        word => word,
    });
    ws.git([&allow[..], &add].concat());
    ws.commit("sm");
    let script = "git -c protocol.file.allow=always submodule -q update --init && cd sm && echo x > w && git add w && git -c user.name=a -c user.email=a@b commit -qm in && git rev-parse HEAD > ../head";
    let run = done(&ws, script);
    let bump = format!(
        "git update-index --cacheinfo 160000,{},sm && git -c user.name=a -c user.email=a@b commit -qm bump",
        ws.git(["rev-parse", "HEAD"])
    );
    let bumped = isolated(&ws, &[], &bump).ok().json();
    let moved = &ws.json(["review", "diff", id(&bumped)])["nested_repositories"][0];
    let named = |side: &str| moved[side]["head_ref"].as_str().unwrap().to_owned();
    assert_eq!(moved["path"], "sm");
    assert_eq!(named("from"), ws.git(["rev-parse", "HEAD:sm"]));
    let tip = format!("{}:sm", text(&bumped, "commit"));
    assert_eq!(named("to"), ws.git(["rev-parse", &tip]));
    let output = approve(&ws, &run, &[]).ok().json();
    assert_eq!(output["status"], "merged");
    ws.json(["runs"]);
    let made = read(&ws, "head");
    let inside = worktree(&run).join("sm");
    let kind = git::text(&ws.home(), &inside, ["cat-file", "-t", made.trim()]);
    assert_eq!(kind, "commit");
    let why = ws.try_json(["worktree", "discard", id(&run)]).exits(1);
    let why = why.error("Conflict");
    assert!(why.contains("submodules"), "{why}");
    let modules = why.split("remove ").nth(1).unwrap();
    let modules = modules.split(';').next().unwrap();
    fs::remove_dir_all(modules).unwrap();
    ws.json(["worktree", "discard", id(&run)]);
    assert_eq!(is_there(&ws, &run), [false; 3]);
}

/// As git tells people to do where a lock is left.
#[test]
fn whoever_removes_the_locks_of_a_killed_merge_finds_nothing_written_after_that() {
    if !capability::can_inject() {
        return;
    }
    let ws = TestWorkspace::repository();
    for n in 0..8 {
        ws.write(format!("d/{n}"), format!("{n}\n"));
    }
    ws.commit("second");
    let (mut in_the_middle, mut is_over) = (0, false);
    for nth in one_of_each("merge", 9) {
        if is_over {
            break;
        }
        let run = done(&ws, "for f in d/*; do echo more >> $f; done; echo x >> new");
        let call = ws.call(["--json", "review", "approve", id(&run)]);
        is_over = killed_at(call, MUTATING, nth).code == 0;
        let commit = text(&run, "commit");
        let has_moved = ws.git(["rev-parse", "main"]) == commit;
        if !is_over && !has_moved && !left_locks(&ws).is_empty() {
            in_the_middle += 1;
            for lock in left_locks(&ws) {
                fs::remove_file(lock).unwrap();
            }
            ws.git(["reset", "-q", "--hard"]);
            ws.git(["clean", "-qfd"]);
            ws.git(["checkout", "-q", "-B", "side"]);
            ws.json(["list"]);
            assert_eq!(status(&ws, ws.root()), "", "killed at call {nth}");
            assert_eq!(show(&ws, &run)["status"], "awaiting_review");
            ws.git(["checkout", "-q", "main"]);
        } else {
            ws.json(["list"]);
            assert_eq!(status(&ws, ws.root()), "", "killed at call {nth}");
        }
        assert_eq!(
            left_locks(&ws),
            Vec::<PathBuf>::new(),
            "killed at call {nth}"
        );
        approve(&ws, &run, &[]).ok();
        assert_eq!(ws.git(["rev-parse", "main"]), commit);
        assert_eq!(status(&ws, ws.root()), "");
    }
    fsck(&ws);
    assert!(in_the_middle > 0, "no kill came while the locks were held");
}

/// Kills a merge at moments that are spread over all that it does.
#[test]
fn whoever_is_killed_in_a_merge_leaves_what_the_next_one_goes_on_with() {
    let rounds = counted(KILLS, 18);
    let ws = TestWorkspace::repository();
    for n in 0..40 {
        ws.write(format!("d/{n}"), format!("{n}\n"));
    }
    ws.write("mine", "1\n");
    ws.commit("second");
    let first = done(&ws, "echo first > new");
    let whole = approve(&ws, &first, &[]).ok().took;
    ws.write("mine", "2\n");
    ws.write("untracked", "x\n");
    let mut endings = BTreeSet::new();
    for round in 0..rounds {
        let script =
            format!("for f in d/*; do echo {round} >> $f; done; echo {round} > new{round}");
        let run = done(&ws, &script);
        let before = ws.git(["rev-parse", "HEAD"]);
        let mut merging = ws.call(["--json", "review", "approve", id(&run)]).start();
        // A later one takes longer: it has more files.
        let at = f64::from(u32::try_from(round).unwrap() % 18 + 1) / 12.0;
        thread::sleep(whole.mul_f64(at));
        merging.kill();
        // Whoever comes next settles it, and whoever comes after that has nothing to do.
        let runs = ws.json(["runs"]);
        let events = ws.events::<&str>([]).len();
        assert_eq!(ws.json(["runs"]), runs);
        assert_eq!(ws.events::<&str>([]).len(), events);
        let status_of = show(&ws, &run)["status"].clone();
        let head = ws.git(["rev-parse", "HEAD"]);
        let is_new = ws.path(format!("new{round}")).exists();
        match status_of.as_str().unwrap() {
            "awaiting_review" => {
                assert_eq!((&head, is_new), (&before, false));
                assert_eq!(is_there(&ws, &run), [true; 3]);
                is_merged(&ws, &run, &[]);
            }
            "merged" => {
                assert_eq!((&*head, is_new), (text(&run, "commit"), true));
                assert_eq!(is_there(&ws, &run), [false; 3]);
            }
            other => panic!("{other}"),
        }
        assert_eq!(status(&ws, ws.root()), " M mine\n?? untracked");
        assert_eq!(left_locks(&ws), Vec::<PathBuf>::new());
        endings.insert(status_of.to_string());
    }
    fsck(&ws);
    assert!(
        endings.len() > 1,
        "the loop came to one ending alone: {endings:?}"
    );
}
