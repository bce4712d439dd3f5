//! git's operations in progress, the bits of an index, and repositories within the workspace: git
//! itself says what is there before a run, and has to say the same after it was taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use stillframe_tests::{Call, TestWorkspace, json, view};

/// The script that makes git usable inside of a run: without any configuration of this machine.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_EDITOR=true \
    GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
    GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";

/// Everything of a repository but objects, reflogs and our own refs: path and bytes.
type State = BTreeMap<String, Vec<u8>>;

fn state(ws: &TestWorkspace) -> State {
    fn add(directory: &Path, prefix: &str, state: &mut State) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            // What git leaves lying about: it says nothing of the state.
            let is_beside =
                ["objects", "logs", "refs/stillframe", "COMMIT_EDITMSG"].contains(&&*name);
            if is_beside {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                // An empty directory of refs is what remains of a branch; one of an operation means
                // one.
                if !name.starts_with("refs") {
                    state.insert(format!("{name}/"), Vec::new());
                }
                add(&entry.path(), &format!("{name}/"), state);
            } else {
                state.insert(name, fs::read(entry.path()).unwrap());
            }
        }
    }
    let mut state = State::new();
    add(&ws.path(".git"), "", &mut state);
    state
}

#[track_caller]
fn same_state(before: &State, ws: &TestWorkspace, why: &str) {
    let now = state(ws);
    let names = before.keys().chain(now.keys());
    let differing: Vec<_> = names
        .filter(|name| before.get(*name) != now.get(*name))
        .collect();
    assert!(differing.is_empty(), "{why}: {differing:?}");
}

fn status(ws: &TestWorkspace) -> String {
    ws.git(["status", "--porcelain=v2", "--branch"])
}

/// `main` and `topic` change the same line; `topic` twice.
fn two_branches() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.git(["checkout", "-q", "-b", "topic"]);
    for text in ["topic\n", "more\n"] {
        ws.write("README", text);
        ws.commit(text);
    }
    ws.git(["checkout", "-q", "main"]);
    ws.write("README", "main\n");
    ws.commit("main");
    ws.write("untracked", "mine\n");
    ws
}

/// What begins an operation and stops in its midst, what goes on with it, and what gives it up.
/// Going on follows a resolution of the conflict.
const OPERATIONS: [(&str, &str, &str, &str); 7] = [
    (
        "merge",
        "git merge topic",
        "git merge --continue",
        "git merge --abort",
    ),
    (
        "rebase",
        "git rebase topic",
        "git rebase --continue",
        "git rebase --abort",
    ),
    (
        "rebase",
        "git rebase --apply topic",
        "git rebase --continue",
        "git rebase --abort",
    ),
    (
        "rebase",
        "git checkout -q topic; git rebase --rebase-merges --update-refs main",
        "git rebase --skip; git rebase --skip",
        "git rebase --abort",
    ),
    (
        "cherry-pick",
        "git cherry-pick topic~1 topic",
        "git cherry-pick --skip",
        "git cherry-pick --abort",
    ),
    (
        "revert",
        "git revert HEAD~1",
        "git revert --continue",
        "git revert --abort",
    ),
    (
        "bisect",
        "git bisect start topic HEAD~1",
        "git reset -q --hard; git bisect good; git bisect reset",
        "git reset -q --hard; git bisect reset",
    ),
];

const RESOLVE: &str = "echo resolved > README; git add README; ";

fn shell(ws: &TestWorkspace, script: &str) {
    let shell = stillframe_tests::Call::new("/bin/sh", ws.root());
    let script = format!("{GIT}{script}");
    let path = std::env::var_os("PATH").unwrap();
    let call = shell
        .args(["-c", &script])
        .env("PATH", path)
        .env("HOME", ws.home());
    call.run();
}

fn rolled_back(ws: &TestWorkspace, script: &str) -> Value {
    let run = ws.run(["--rollback-on-failure"], &format!("{GIT}{script}; exit 1"));
    let run = run.exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["status"], "completed", "{script}: {run}");
    assert!(rollback["error"].is_null(), "{script}: {rollback}");
    run
}

#[test]
fn an_operation_that_a_failed_run_began_is_gone() {
    for (operation, begin, _, _) in OPERATIONS {
        let ws = two_branches();
        let files = view::worktree(ws.root());
        let told = status(&ws);
        let before = state(&ws);
        let run = rolled_back(&ws, begin);
        same_state(&before, &ws, begin);
        view::same(&files, &view::worktree(ws.root()), begin);
        assert_eq!(status(&ws), told, "{begin}");
        let change = &run["workspace"]["diff"]["operation"];
        assert_eq!(change["from"], Value::Null, "{run}");
        assert_eq!(change["to"], operation, "{run}");
        ws.git(["fsck", "--strict"]);
    }
}

#[test]
fn one_that_it_ended_is_there_again_and_git_goes_on_with_it() {
    for (operation, begin, goes_on, abort) in OPERATIONS {
        for end in [goes_on, abort] {
            let ws = two_branches();
            shell(&ws, begin);
            let files = view::worktree(ws.root());
            let told = status(&ws);
            let before = state(&ws);
            let run = rolled_back(&ws, &format!("{RESOLVE}{end}"));
            let change = &run["workspace"]["diff"]["operation"];
            assert_eq!(change["from"], operation, "{end}: {run}");
            same_state(&before, &ws, end);
            view::same(&files, &view::worktree(ws.root()), end);
            assert_eq!(status(&ws), told, "{end}");
            // git may have looked at the files anew for that.
            let before = state(&ws);

            // An undo of a run that did the same leads there, too.
            ws.run::<&str>([], &format!("{GIT}{RESOLVE}{end}; true"))
                .ok();
            let ended = state(&ws);
            let undone = ws.undo();
            assert!(undone["error"].is_null(), "{end}: {undone}");
            same_state(&before, &ws, end);
            let redone = ws.undo();
            assert!(redone["error"].is_null(), "{end}: {redone}");
            same_state(&ended, &ws, end);
            ws.undo();

            // From there git itself gets where it would have got to.
            assert_eq!(status(&ws), told, "{end}");
            shell(&ws, &format!("{RESOLVE}{end}"));
            assert_eq!(ws.git(["for-each-ref", "refs/heads"]).lines().count(), 2);
            for mark in [
                "MERGE_HEAD",
                "rebase-merge",
                "rebase-apply",
                "REVERT_HEAD",
                "BISECT_LOG",
            ] {
                assert!(
                    !ws.exists(format!(".git/{mark}")),
                    "{end} came to its end: {mark}"
                );
            }
        }
    }
}

#[test]
fn a_rebase_that_the_run_finished_gives_all_its_branches_back() {
    let ws = two_branches();
    ws.git(["checkout", "-q", "topic"]);
    ws.git(["branch", "-f", "between", "topic~1"]);
    shell(&ws, "git rebase --update-refs main");
    assert!(ws.exists(".git/rebase-merge/update-refs"));
    let before = state(&ws);
    let finish = "for i in 1 2; do echo $i > README; git add README; git rebase --continue; done; \
                  test ! -d .git/rebase-merge && git rev-parse between > ../outside/moved";
    let between = ws.git(["rev-parse", "between"]);
    rolled_back(&ws, finish);
    let moved = fs::read_to_string(ws.outside().join("moved")).unwrap();
    assert_ne!(moved.trim(), between, "the rebase moved it");
    same_state(&before, &ws, "between and topic are where they were");
}

#[test]
fn every_bit_of_an_index_and_every_sort_of_head_comes_back() {
    let heads: [&[&str]; 3] = [
        &["status"],
        &["checkout", "-q", "--detach"],
        &["checkout", "-q", "--orphan", "unborn"],
    ];
    for head in heads {
        let ws = two_branches();
        for name in ["skipped", "assumed", "removed"] {
            ws.write(name, "x\n");
        }
        ws.git(["add", "skipped", "assumed", "removed"]);
        ws.git(["commit", "-q", "-m", "more"]);
        ws.git(head);
        ws.git(["update-index", "--skip-worktree", "skipped"]);
        ws.git(["update-index", "--assume-unchanged", "assumed"]);
        ws.git(["rm", "-q", "--cached", "removed"]);
        ws.git(["add", "-N", "untracked"]);
        let blob = ws.git(["rev-parse", "topic:README"]);
        let stages =
            format!("100644 {blob} 1\tboth\n100644 {blob} 2\tboth\n100755 {blob} 3\tboth\n");
        fs::write(ws.outside().join("stages"), stages).unwrap();
        shell(&ws, "git update-index --index-info < ../outside/stages");
        let told = (status(&ws), ws.git(["ls-files", "-v", "-t", "--stage"]));
        let before = state(&ws);
        rolled_back(
            &ws,
            "git reset -q --hard topic; git checkout -q --detach; rm README; git add -A; git commit -qm x; \
             git update-index --force-remove skipped",
        );
        same_state(&before, &ws, head[0]);
        assert_eq!(
            (status(&ws), ws.git(["ls-files", "-v", "-t", "--stage"])),
            told
        );
    }
}

#[test]
fn a_restore_of_files_alone_touches_none_of_it() {
    let ws = two_branches();
    shell(&ws, "git rebase topic");
    let snapshot = ws.snapshot();
    shell(&ws, "git rebase --abort; git merge topic");
    let before = view::git_dir(ws.root());
    ws.restore(&snapshot);
    view::same(&before, &view::git_dir(ws.root()), "the merge goes on");
    let restored = ws.json(["restore", "--repository", snapshot.id()]);
    assert!(restored["error"].is_null(), "{restored}");
    assert!(ws.exists(".git/rebase-merge/done") && !ws.exists(".git/MERGE_HEAD"));
    ws.git(["rebase", "--abort"]);
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
}

#[test]
fn an_operation_of_a_linked_worktree_is_its_own() {
    let mut ws = two_branches();
    let linked = ws.base().join("linked");
    ws.git([
        "worktree",
        "add",
        "-q",
        "-b",
        "side",
        linked.to_str().unwrap(),
        "main",
    ]);
    let main = state(&ws);
    ws.set_root("linked");
    shell(&ws, "git merge topic");
    let git_dir = ws.git(["rev-parse", "--absolute-git-dir"]);
    let merge = fs::read(Path::new(&git_dir).join("MERGE_HEAD")).unwrap();
    let told = status(&ws);
    rolled_back(&ws, "git merge --abort");
    assert_eq!(
        fs::read(Path::new(&git_dir).join("MERGE_HEAD")).unwrap(),
        merge
    );
    assert_eq!(status(&ws), told);
    ws.set_root("work");
    let strip = |state: State| -> State {
        let own = |name: &str| !name.starts_with("worktrees/");
        state.into_iter().filter(|(name, _)| own(name)).collect()
    };
    assert!(
        strip(main) == strip(state(&ws)),
        "the main worktree's are untouched"
    );
}

#[test]
fn a_trap_in_the_place_of_such_a_file_keeps_a_run_from_nothing_but_that() {
    for name in ["MERGE_HEAD", "MERGE_MSG", "rebase-merge", "refs/bisect"] {
        let ws = two_branches();
        let head = ws.git(["rev-parse", "HEAD"]);
        let index = fs::read(ws.path(".git/index")).unwrap();
        let script = format!(
            "{GIT}git commit -qam x --allow-empty; echo x > README; mkfifo .git/{name}; exit 1"
        );
        let output = ws.run(["--rollback-on-failure"], &script);
        assert!(output.took.as_secs() < 60, "{name}: {:?}", output.took);
        let run = output.exits(1).json();
        let rollback = &run["workspace"]["rollback"];
        assert_eq!(rollback["status"], "completed", "{name}: {run}");
        assert_eq!(
            rollback["error"]["kind"], "HostileRepository",
            "{name}: {run}"
        );
        let told = rollback["error"]["message"].as_str().unwrap();
        assert!(told.contains(name) && told.contains("FIFO"), "{told}");
        assert_eq!(ws.text("README"), "main\n");
        assert_eq!(fs::read(ws.path(".git/index")).unwrap(), index, "{name}");
        assert_eq!(ws.git(["rev-parse", "HEAD"]), head, "{name}");

        let output = ws.try_json(["snapshot"]);
        assert!(output.took.as_secs() < 20, "{name}: {:?}", output.took);
        assert!(output.refused("HostileRepository").contains(name));
    }
}

#[test]
fn too_large_an_operation_is_named_and_keeps_nobody_from_a_snapshot() {
    let ws = two_branches();
    shell(&ws, "git rebase --apply topic");
    ws.sparse_file(".git/rebase-apply/0002", 1 << 30);
    let snapshot = ws.snapshot();
    let warnings = snapshot.json["metadata"]["warnings"].to_string();
    assert!(warnings.contains("rebase were not kept"), "{warnings}");
    let run = ws.run(
        ["--rollback-on-failure"],
        &format!("{GIT}git rebase --abort; exit 1"),
    );
    let run = run.exits(1).json();
    let error = &run["workspace"]["rollback"]["error"];
    assert_eq!(error["kind"], "Unsupported", "{run}");
    assert!(
        error["message"].as_str().unwrap().contains("rebase"),
        "{run}"
    );
}

// A run could keep itself from being rolled back
#[test]
fn a_run_that_begins_more_than_is_kept_is_rolled_back_all_the_same() {
    let ws = two_branches();
    let script = "echo x > new; mkdir .git/rebase-merge; i=0; while [ $i -lt 4200 ]; do \
                  : > .git/rebase-merge/$i; i=$((i+1)); done; exit 1";
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert!(!ws.exists("new"), "{run}");
    assert_eq!(rollback["error"]["kind"], "LimitExceeded", "{run}");
    assert!(ws.exists(".git/rebase-merge/0"), "{run}");
}

/// A submodule, a clone, and a repository without a commit.
fn with_nested() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let upstream = ws.outside().join("upstream");
    let upstream = upstream.to_str().unwrap();
    ws.git(["init", "-q", upstream]);
    fs::write(Path::new(upstream).join("a"), "one\n").unwrap();
    for args in [&["add", "a"][..], &["commit", "-q", "-m", "first"]] {
        ws.git([&["-C", upstream][..], args].concat());
    }
    ws.git(["submodule", "--quiet", "add", upstream, "sub"]);
    ws.git(["clone", "-q", upstream, "clone"]);
    ws.git(["init", "-q", "unborn"]);
    ws.write("unborn/file", "x\n");
    ws.git(["commit", "-q", "-m", "submodule"]);
    ws
}

fn head(ws: &TestWorkspace, path: &str) -> String {
    ws.git(["-C", path, "rev-parse", "HEAD"])
}

#[test]
fn head_and_index_of_every_nested_repository_are_in_the_snapshot() {
    let ws = with_nested();
    ws.write("clone/a", "dirty\n");
    for strategy in ["git", "hash"] {
        let snapshot = ws.snapshot_with(["--strategy", strategy]);
        let shown = ws.show(snapshot.id());
        let nested = shown["nested_repositories"].as_array().unwrap();
        let paths: Vec<_> = nested.iter().map(|n| n["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["clone", "sub", "unborn"], "{strategy}");
        for (at, path) in [(0, "clone"), (1, "sub")] {
            assert_eq!(nested[at]["head_ref"], head(&ws, path), "{strategy}");
            assert_eq!(nested[at]["branch"], "refs/heads/main");
            assert_eq!(nested[at]["index"].as_str().unwrap().len(), 64);
        }
        assert_eq!(
            nested[0]["index"], nested[1]["index"],
            "they stage the same"
        );
        assert_eq!(nested[2]["branch"], "refs/heads/main");
        assert!(nested[2]["head_ref"].is_null() && nested[2]["index"].is_null());
        let text = ws.stillframe(["show", snapshot.id()]).ok().stdout_text();
        let commit = head(&ws, "sub");
        assert!(
            text.contains(&format!("nested repository sub at {commit} (main)")),
            "{text}"
        );
    }
}

#[test]
fn what_a_run_did_to_a_nested_repository_is_in_its_diff_and_stays() {
    let ws = with_nested();
    let was = head(&ws, "sub");
    let script = format!(
        "{GIT}echo x > sub/a; git -C sub commit -qam x; git -C clone rm -q --cached a; \
         git -C clone status -s; rm -rf unborn/.git; git init -q made; exit 1"
    );
    let run = ws.run(["--rollback-on-failure"], &script).exits(1).json();
    let moved = &run["workspace"]["diff"]["nested_repositories"];
    let paths: Vec<_> = moved
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["clone", "made", "sub", "unborn"], "{moved}");
    assert_ne!(moved[0]["from"]["index"], moved[0]["to"]["index"]);
    assert_eq!(moved[0]["from"]["head_ref"], moved[0]["to"]["head_ref"]);
    assert!(
        moved[1]["from"].is_null() && moved[3]["to"].is_null(),
        "{moved}"
    );
    assert_eq!(moved[2]["from"]["head_ref"], was);
    assert_eq!(
        moved[2]["to"]["head_ref"],
        head(&ws, "sub"),
        "it stays where the run left it"
    );
    assert_ne!(head(&ws, "sub"), was);
    assert_eq!(ws.text("sub/a"), "one\n", "its files are back");

    let before = ws.snapshot();
    ws.git(["-C", "sub", "status"]);
    ws.git(["-C", "sub", "update-index", "-q", "--really-refresh"]);
    let after = ws.snapshot();
    assert!(
        ws.diff(&before, &after)
            .get("nested_repositories")
            .is_none(),
        "a look is no move"
    );
}

#[test]
fn a_nested_repository_that_is_a_trap_never_makes_it_wait_and_never_fails_the_whole() {
    let damages = [
        "rm sub/.git; mkfifo sub/.git",
        "rm clone/.git/HEAD; mkfifo clone/.git/HEAD",
        "rm clone/.git/HEAD; ln -s /dev/zero clone/.git/HEAD",
        "rm clone/.git/index; mkfifo clone/.git/index",
        "mkdir -p trap; ln -s /dev/zero trap/.git; echo x > trap/file",
        "echo 'gitdir: /proc/self/fd' > sub/.git",
    ];
    for damage in damages {
        let ws = with_nested();
        shell(&ws, damage);
        let output = ws.try_json(["snapshot"]);
        assert!(output.took.as_secs() < 20, "{damage}: {:?}", output.took);
        let snapshot = output.ok().json();
        let nested = snapshot["nested_repositories"].as_array().unwrap();
        let problems: Vec<_> = nested.iter().filter(|n| n["problem"].is_string()).collect();
        assert_eq!(problems.len(), 1, "{damage}: {nested:?}");
        assert!(
            nested
                .iter()
                .any(|n| n["problem"].is_null() && n["branch"].is_string())
        );
    }
}

/// Every ref with what it names, and HEAD, as git says.
fn refs(ws: &TestWorkspace) -> BTreeMap<String, String> {
    let listed = ws.git(["for-each-ref", "--format=%(refname) %(objectname)"]);
    let lines = listed
        .lines()
        .filter(|line| !line.starts_with("refs/stillframe/"));
    let mut refs: BTreeMap<String, String> = lines
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, id)| (name.to_owned(), id.to_owned()))
        .collect();
    let head = ws.git(["rev-parse", "--symbolic-full-name", "HEAD"]);
    let head = match head.as_str() {
        "HEAD" => ws.git(["rev-parse", "HEAD"]),
        branch => branch.to_owned(),
    };
    refs.insert("HEAD".to_owned(), head);
    refs
}

/// What differs, in the words of a document.
fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<Value> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    changed
        .map(|name| serde_json::json!({"name": name, "before": before.get(name), "after": after.get(name)}))
        .collect()
}

/// A repository with branches, tags and packed refs, and what a run does to them.
fn with_refs() -> (TestWorkspace, String) {
    let ws = TestWorkspace::repository();
    for args in [
        &["branch", "moves"][..],
        &["branch", "goes"],
        &["branch", "stays"],
        &["tag", "goes"],
    ] {
        ws.git(args);
    }
    ws.git(["tag", "-a", "-m", "annotated", "moves"]);
    ws.git(["pack-refs", "--all"]);
    ws.git(["branch", "loose"]);
    let script = format!(
        "{GIT}git checkout -q -b made; echo x > x; git add x; git commit -q -m x; git branch -f moves; \
         git branch -q -D goes; git branch -q -D loose; git tag -d goes >/dev/null; git tag -f -a -m again moves \
         >/dev/null; git tag 'odd;name'; git update-ref refs/remotes/origin/main HEAD; git checkout -q main"
    );
    (ws, script)
}

#[test]
fn what_a_run_did_to_refs_is_told() {
    let (ws, script) = with_refs();
    let before = refs(&ws);
    let script = format!("{script}; echo y > README; git stash -q; git checkout -q made");
    let output = ws.run::<&str>([], &script).ok();
    let run = output.json();
    let told = run["workspace"]["diff"]["refs"].as_array().unwrap().clone();
    assert_eq!(told, changes(&before, &refs(&ws)), "{run}");
    assert_eq!(told.len(), 10, "{told:?}");
    let run_id = run["run_id"].as_str().unwrap();
    assert_eq!(
        ws.show(run_id)["workspace"]["diff"]["refs"],
        Value::Array(told.clone())
    );
    let shown = ws.stillframe(["show", run_id]).ok().stdout_text();
    for line in [shown
        .lines()
        .find(|line| line.starts_with("refs "))
        .unwrap()]
    {
        for part in [
            "branch goes deleted",
            "branch made made",
            "branch moves moved",
            "remote branch origin/main made",
            "stash made",
            "tag odd;name made",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    // Two snapshots that kept them are compared as the run's were.
    let id = |key: &str| run["workspace"][key]["id"].as_str().unwrap().to_owned();
    let diff = ws.json(["diff", &id("before_snapshot"), &id("after_snapshot")]);
    assert_eq!(diff["refs"], Value::Array(told));
    // A person is told in one line of the run itself.
    let quiet = ws
        .call(["run", "--", "git", "tag", "another"])
        .run()
        .ok()
        .stderr_text();
    assert!(
        quiet
            .lines()
            .any(|line| line.ends_with("refs: tag another made")),
        "{quiet}"
    );
    let nothing = ws.run::<&str>([], "echo z > z").ok().json();
    assert_eq!(nothing["workspace"]["diff"]["refs"], Value::Null);
}

#[test]
fn a_rollback_names_the_refs_that_it_leaves_with_what_takes_each_back() {
    let (ws, script) = with_refs();
    let before = refs(&ws);
    let failing = format!("{script}; exit 1");
    let call = ws.run_call(["--rollback-on-failure"], &failing);
    let run = call.run().exits(1).json();
    let left = run["workspace"]["rollback"]["refs_left"]
        .as_array()
        .unwrap();
    let mut named = left.clone();
    for change in &mut named {
        change.as_object_mut().unwrap().remove("undo").unwrap();
    }
    let now = refs(&ws);
    assert_eq!(named, changes(&before, &now), "{run}");
    assert!(named.len() >= 6, "{named:?}");
    for change in left {
        let undo = change["undo"].as_str().unwrap();
        let call = Call::new("sh", ws.root()).args(["-c", undo]);
        call.env("PATH", std::env::var_os("PATH").unwrap())
            .run()
            .ok();
    }
    assert_eq!(refs(&ws), before);
    ws.git(["fsck", "--strict"]);
}

/// What an undo of a run with this script says of refs, with the commands.
fn left_by_undo(ws: &TestWorkspace, script: &str) -> Vec<(String, String)> {
    ws.run::<&str>([], &format!("{GIT}{script}")).ok();
    let undone = ws.json(["undo"]);
    let left = undone["refs_left"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    left.map(|left| (text(&left["name"]), text(&left["undo"])))
        .collect()
}

// "git stash drop" and "git stash clear" were named, and took the user's own stashes
#[test]
fn no_command_that_is_named_after_an_undo_takes_a_stash_of_the_users() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    let shell = |command: &str| {
        let call = Call::new("sh", ws.root()).args(["-c", command]);
        call.env("PATH", std::env::var_os("PATH").unwrap())
            .run()
            .ok();
    };
    let stash = |text: &str| {
        ws.write("README", text);
        ws.git(["stash", "-q"]);
    };
    let left = left_by_undo(&ws, "for i in 1 2; do echo $i > README; git stash -q; done");
    assert_eq!(left.len(), 1, "{left:?}");
    let made = left[0].1.clone();
    shell(&made);
    assert_eq!(ws.git(["stash", "list"]), "", "both were the run's");

    let left = left_by_undo(&ws, "echo x > README; git stash -q");
    stash("mine");
    let refused = Call::new("sh", ws.root()).args(["-c", &left[0].1]).run();
    assert_ne!(refused.code, 0, "somebody has stashed since");
    ws.git(["stash", "drop", "-q", "stash@{1}"]);

    stash("mine too");
    let mine = ws.git(["stash", "list", "--format=%H"]);
    let left = left_by_undo(&ws, "git stash pop -q; git checkout -q .");
    shell(&left[0].1);
    let now = ws.git(["stash", "list", "--format=%H"]);
    assert_eq!(now, mine, "the one that was dropped is back");
    let left = left_by_undo(&ws, "echo x > README; git stash -q");
    let none = ("refs/stash".to_owned(), String::new());
    assert_eq!(left, [none], "it came to those of the user");
    ws.git(["stash", "clear"]);
    ws.git(["stash", "store", mine.lines().next().unwrap()]);
    let left = left_by_undo(&ws, "git stash clear");
    shell(&left[0].1);
    assert_eq!(
        ws.git(["stash", "list", "--format=%H"]).lines().next(),
        mine.lines().next()
    );
}

#[test]
fn what_git_has_removed_is_not_promised_back() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    ws.git(["branch", "stays"]);
    ws.git(["checkout", "-q", "-b", "goes"]);
    ws.write("file", "of the branch\n");
    ws.commit("two");
    ws.git(["checkout", "-q", "stays"]);
    let prune =
        "git branch -q -D goes; git reflog expire --expire=now --all; git gc -q --prune=now";
    let left = left_by_undo(&ws, prune);
    assert_eq!(left, [("refs/heads/goes".to_owned(), String::new())]);
}

// An undo said nothing of them
#[test]
fn an_undo_names_the_refs_that_it_leaves_as_a_rollback_does() {
    let (ws, script) = with_refs();
    let before = refs(&ws);
    let ran = ws.run::<&str>([], &script).ok().json();
    // What somebody moved since is theirs, and what they put back is not left.
    ws.git(["update-ref", "refs/remotes/origin/main", "HEAD"]);
    ws.git(["tag", "-d", "odd;name"]);
    ws.git(["tag", "mine"]);
    let others = [
        "refs/remotes/origin/main",
        "refs/tags/odd;name",
        "refs/tags/mine",
    ];
    let id = ran["run_id"].as_str().unwrap();
    let undone = ws.json(["undo", id]);
    let left = undone["refs_left"].as_array().expect("they are named");
    let name = |change: &Value| change["name"].as_str().unwrap().to_owned();
    let mut expected = changes(&before, &refs(&ws));
    expected.retain(|change| !others.contains(&name(change).as_str()));
    assert!(expected.len() >= 5, "{expected:?}");
    let named: Vec<Value> = left
        .iter()
        .cloned()
        .map(|mut change| {
            change.as_object_mut().unwrap().remove("undo").unwrap();
            change
        })
        .collect();
    assert_eq!(named, expected, "{undone}");
    // A person is told as well, also where no file is left to take back.
    let told = ws.stillframe(["undo", id]).ok().stdout_text();
    let line = "left     tag goes deleted; \"git update-ref --no-deref refs/tags/goes ";
    assert!(told.contains(line), "{told}");
    for change in left {
        let undo = change["undo"].as_str().unwrap();
        let call = Call::new("sh", ws.root()).args(["-c", undo]);
        call.env("PATH", std::env::var_os("PATH").unwrap())
            .run()
            .ok();
    }
    let mut now = refs(&ws);
    now.retain(|name, _| !others.contains(&name.as_str()));
    assert_eq!(now, before);
}

/// Each file of the index with whether git leaves it out of the work tree, as git says.
fn left_out(ws: &TestWorkspace) -> BTreeMap<String, bool> {
    let listed = ws.git(["ls-files", "-t"]);
    let lines = listed.lines().map(|line| line.split_at(2));
    lines
        .map(|(tag, name)| (name.to_owned(), tag.starts_with('S')))
        .collect()
}

#[test]
fn what_a_run_leaves_out_of_the_work_tree_is_in_its_diff() {
    let ws = TestWorkspace::repository();
    for name in ["in/a", "out/b", "out/c"] {
        ws.write(name, "x\n");
    }
    ws.commit("with directories");
    for (script, said) in [
        (
            "git sparse-checkout set in",
            "2 files left out of the work tree by git's index",
        ),
        ("git sparse-checkout set --sparse-index in", ""),
        (
            "git sparse-checkout set out",
            "1 file left out of the work tree by git's index",
        ),
        (
            "git sparse-checkout disable",
            "1 file taken into it again by git's index",
        ),
        (
            "git update-index --skip-worktree README in/a",
            "2 files left out",
        ),
        (
            "git update-index --no-skip-worktree README",
            "1 file taken into it again",
        ),
        ("echo y > out/b; git add out/b", ""),
    ] {
        let was = left_out(&ws);
        let output = ws.call(["run", "--", "sh", "-c", script]).run().ok();
        let now = left_out(&ws);
        let run = ws.json(["runs"])[0].clone();
        let id = |key: &str| run["workspace"][key].as_str().unwrap().to_owned();
        let diff = ws.json(["diff", &id("before_snapshot"), &id("after_snapshot")]);
        let told = diff["skip_worktree"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let both = was
            .iter()
            .filter_map(|(name, from)| Some((name, *from, *now.get(name)?)));
        let expected: Vec<Value> = both
            .filter(|(_, from, to)| from != to)
            .map(|(name, from, to)| serde_json::json!({"path": name, "from": from, "to": to}))
            .collect();
        assert_eq!(told, expected, "{script}");
        let text = output.stderr_text();
        assert_eq!(
            text.contains("git's index"),
            !expected.is_empty(),
            "{script}: {text}"
        );
        assert!(text.contains(said), "{script}: {text}");
    }
}

#[test]
fn a_sparse_checkout_of_a_run_is_listed_and_its_settings_are_said_to_stay() {
    let ws = TestWorkspace::repository();
    for name in ["in/a", "out/b"] {
        ws.write(name, "x\n");
    }
    ws.commit("with directories");
    let settings = |run: &[&str], command: &str| {
        let text = ws.call(run).run().stderr_text();
        assert!(text.contains(command), "{run:?}: {text}");
        assert!(text.contains("core.sparseCheckout"), "{run:?}: {text}");
    };
    let lists = |line: &str| {
        let diff = ws.call(["diff", "latest~1", "latest"]).run().ok();
        let listed = diff.stdout_text();
        assert!(listed.lines().any(|said| said == line), "{listed}");
    };
    let of = |script: &str| ["run", "--", "sh", "-c", script].map(str::to_owned);
    let began = of("git sparse-checkout set in");
    ws.call(&began).run().ok();
    lists("absent out/b (git's index leaves it out of the work tree)");

    settings(&["undo"], "\"git sparse-checkout disable\" ends it");
    ws.git(["sparse-checkout", "disable"]);
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    let failing = "git sparse-checkout set in; exit 1";
    settings(
        &["run", "--rollback-on-failure", "--", "sh", "-c", failing],
        "\"git sparse-checkout disable\" ends it",
    );

    // Git leaves no file out that it takes for edited, as one that was just put back.
    ws.git(["status", "--porcelain"]);
    ws.git(["sparse-checkout", "set", "in"]);
    ws.call(of("git sparse-checkout disable")).run().ok();
    lists("present out/b (git's index has it in the work tree again)");
    settings(
        &["undo"],
        "\"git sparse-checkout init\" begins it again, with --no-cone if it was not one of whole directories",
    );
    ws.git(["sparse-checkout", "init"]);
    assert!(!ws.exists("out/b"), "the patterns are the old ones");
}

/// A repository with `in/a`, and `out/b` and `out/deep/c` that a sparse checkout of the user's
/// leaves out by `set`.
fn sparse(set: &[&str]) -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for name in ["in/a", "out/b", "out/deep/c"] {
        ws.write(name, "x\n");
    }
    ws.commit("with directories");
    ws.git([&["sparse-checkout", "set"], set, &["in"]].concat());
    ws
}

// git did not look at the file any more
#[test]
fn what_was_edited_after_a_run_that_ended_a_sparse_checkout_is_seen_by_git_after_its_undo() {
    let ws = sparse(&[]);
    let disable = ["run", "--", "git", "sparse-checkout", "disable"];
    ws.call(disable).run().ok();
    ws.write("out/b", "edited\n");
    let seen = |what: &str, c_is_left_out: bool| {
        assert_eq!(ws.text("out/b"), "edited\n", "{what}");
        assert_eq!(ws.git(["status", "--porcelain"]), " M out/b", "{what}");
        let left_out = left_out(&ws);
        let of = |name: &str| left_out[name];
        assert_eq!(
            (of("out/b"), of("out/deep/c")),
            (false, c_is_left_out),
            "{what}"
        );
    };
    let planned = ws.json(["undo", "--plan"]);
    let plan = planned["plan_id"].as_str().unwrap();
    let undone = ws.json(["undo", "--apply", plan]);
    assert_eq!(undone["error"], Value::Null, "{undone}");
    seen("undo", false);
    assert_eq!(ws.undo()["error"], Value::Null);
    seen("redo", false);

    // As well what the run itself wrote, if a rollback leaves it.
    let ws = sparse(&[]);
    let script = "git sparse-checkout disable; echo edited > out/b; exit 1";
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    let skipped = json::names_in(&run["workspace"]["rollback"]["skipped"]);
    assert_eq!(skipped, ["out/b", "out/deep/c"], "{run}");
    assert_eq!(ws.git(["status", "--porcelain"]), " M out/b", "{run}");
    assert!(!left_out(&ws)["out/deep/c"]);

    // An index that is not written is put back as it was, and the file is named.
    let ws = sparse(&["--sparse-index"]);
    ws.call(disable).run().ok();
    ws.write("out/b", "edited\n");
    let error = &ws.undo()["error"];
    let message = error["message"]
        .as_str()
        .unwrap_or_else(|| panic!("{error}"));
    assert!(message.contains("out/b"), "{message}");
    assert_eq!(ws.text("out/b"), "edited\n");
}

// It was seen as removed: the next commit of everything would have deleted it
#[test]
fn what_an_undo_removes_again_is_not_kept_in_gits_sight() {
    let ws = sparse(&[]);
    ws.git(["sparse-checkout", "disable"]);
    ws.write("out/b", "edited\n");
    let script = "git stash -q && git sparse-checkout set in";
    ws.run::<&str>([], script).ok();
    let status = ws.git(["status", "--porcelain"]);
    ws.undo();
    assert_eq!(ws.text("out/b"), "edited\n");
    ws.undo();
    assert_eq!(ws.git(["status", "--porcelain"]), status);
    assert!(left_out(&ws)["out/b"]);
    ws.undo();
    assert_eq!(ws.text("out/b"), "edited\n", "and it comes back");
}

// Every file that a filter had converted counted as edited
#[test]
fn what_git_converted_is_no_edit_in_a_sparse_checkout() {
    let ws = TestWorkspace::repository();
    ws.write(".gitattributes", "* text eol=crlf\n");
    for name in ["in/a", "out/b", "out/c"] {
        ws.write(name, "x\n");
    }
    ws.commit("with directories");
    ws.git(["sparse-checkout", "set", "in"]);
    ws.call(["run", "--", "git", "sparse-checkout", "disable"])
        .run()
        .ok();
    assert_eq!(ws.text("out/b"), "x\r\n");
    ws.write("out/c", "edited\r\n");
    let undone = ws.undo();
    assert_eq!(undone["error"], Value::Null, "{undone}");
    let seen = left_out(&ws);
    assert_eq!((seen["out/b"], seen["out/c"]), (false, false));
    assert_eq!(ws.git(["status", "--porcelain"]), " M out/c");
    // What is edited after the undo stays too where the advice is followed, and what is not goes.
    ws.write("out/b", "edited later\r\n");
    ws.git(["checkout", "-q", "out/c"]);
    ws.git(["sparse-checkout", "init"]);
    assert_eq!(ws.text("out/b"), "edited later\r\n");
    assert!(!ws.exists("out/c"));
    assert_eq!(ws.git(["status", "--porcelain"]), " M out/b");
}

// Empty ones of what the undo had put there
#[test]
fn the_undo_of_an_undo_of_a_sparse_checkout_leaves_no_directory() {
    let ws = sparse(&[]);
    ws.git(["sparse-checkout", "disable"]);
    ws.mkdir("in/own");
    let set = ["run", "--", "git", "sparse-checkout", "set", "in"];
    ws.call(set).run().ok();
    let after = view::worktree(ws.root());
    assert!(!ws.exists("out"), "git removes what it leaves empty");
    for _ in 0..2 {
        let undone = ws.undo();
        assert_eq!(
            json::names(&undone["restored"]),
            ["out/b", "out/deep/c"],
            "{undone}"
        );
        assert!(ws.exists("in/own"), "{undone}");
        ws.undo();
        view::same(&after, &view::worktree(ws.root()), "as the run left it");
    }
}

// "kept (edited since)" of each file that was gone, and "the index was changed since", which git
// had only written in another form
#[test]
fn what_the_undo_of_an_undo_of_a_sparse_checkout_removed_is_told_as_that() {
    let ws = sparse(&[]);
    ws.git(["sparse-checkout", "disable"]);
    ws.git(["config", "index.sparse", "true"]);
    let set = ["run", "--", "git", "sparse-checkout", "set", "in"];
    ws.call(set).run().ok();
    ws.undo();
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    let removed = ["out/b", "out/deep/c"];
    let redone = ws.undo();
    assert_eq!(redone["error"], Value::Null, "{redone}");
    assert_eq!(json::names(&redone["restored"]), removed, "{redone}");
    assert_eq!(json::names_in(&redone["skipped"]), [""; 0], "{redone}");
    assert!(left_out(&ws)["out/b"] && !ws.exists("out"));

    // Where the index stays, since it was edited, the files are gone all the same.
    ws.undo();
    ws.write("in/new", "x\n");
    ws.git(["add", "in/new"]);
    let redone = ws.undo();
    let error = redone["error"]["message"].as_str().unwrap();
    assert!(error.contains("the index was changed since"), "{redone}");
    assert_eq!(json::names(&redone["restored"]), removed, "{redone}");
    assert_eq!(json::names_in(&redone["skipped"]), [""; 0], "{redone}");
    assert!(!ws.exists("out"));
    assert_eq!(
        ws.git(["status", "--porcelain"]),
        "A  in/new\n D out/b\n D out/deep/c"
    );
}

// "git sparse-checkout disable", which ended the sparse checkout that was the user's own
#[test]
fn of_a_sparse_checkout_that_was_there_before_only_the_patterns_are_named() {
    let ws = TestWorkspace::repository();
    for name in ["in/a", "out/b", "more/c"] {
        ws.write(name, "x\n");
    }
    ws.commit("with directories");
    ws.git(["sparse-checkout", "set", "in", "more"]);
    for script in [
        "git sparse-checkout set out",
        "git sparse-checkout set in",
        "git sparse-checkout set in more out; git sparse-checkout set more",
    ] {
        ws.call(["run", "--", "sh", "-c", script]).run().ok();
        let text = ws.call(["undo"]).run().ok().stderr_text();
        assert!(text.contains("info/sparse-checkout"), "{script}: {text}");
        assert!(!text.contains("\"git sparse-checkout"), "{script}: {text}");
        ws.git(["status", "--porcelain"]);
        ws.git(["sparse-checkout", "set", "in", "more"]);
    }
}

// A single bit, and git's settings were said to stay
#[test]
fn a_bit_of_the_index_alone_tells_of_no_sparse_checkout() {
    let ws = TestWorkspace::repository();
    for bit in ["--skip-worktree", "--no-skip-worktree"] {
        ws.call(["run", "--", "git", "update-index", bit, "README"])
            .run()
            .ok();
        let text = ws.call(["undo"]).run().ok().stderr_text();
        assert!(text.contains("took back run"), "{text}");
        assert!(!text.contains("sparse"), "{bit}: {text}");
        ws.git(["update-index", "--skip-worktree", "README"]);
    }
}

#[test]
fn of_a_large_sparse_checkout_a_diff_lists_the_first_files() {
    let ws = TestWorkspace::repository();
    for number in 0..103 {
        ws.write(format!("out/{number:03}"), "x\n");
    }
    ws.commit("with a directory");
    ws.call(["run", "--", "git", "sparse-checkout", "set", "in"])
        .run()
        .ok();
    let listed = ws
        .call(["diff", "latest~1", "latest"])
        .run()
        .ok()
        .stdout_text();
    let absent = listed.lines().filter(|line| line.starts_with("absent "));
    assert_eq!(absent.count(), 100);
    let more = "3 files more left out of the work tree or taken into it again; --json has them all";
    assert!(listed.lines().any(|line| line == more), "{listed}");
}

// "there was nothing left to take back", and then that the repository is gone
#[test]
fn of_a_repository_that_a_run_removed_it_is_not_said_that_nothing_was_left() {
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "rm -rf .git").ok();
    let told = ws.stillframe(["undo"]);
    assert!(
        told.stdout_text().contains("the repository is gone"),
        "{told}"
    );
    let said = told.stderr_text();
    assert!(said.contains("nothing was taken back of run"), "{told}");
    assert!(!said.contains("nothing left"), "{told}");
}

// "the repository is gone", of one that was cloned anew
#[test]
fn another_repository_in_the_place_of_the_one_that_was_captured_is_told_as_that() {
    let ws = TestWorkspace::repository();
    let script = format!("{GIT}echo x > x; git add x; git commit -q -m x");
    let run = ws.run::<&str>([], &script).ok().json();
    let away = ws.outside().join("away");
    std::fs::rename(ws.path(".git"), &away).unwrap();
    ws.git(["clone", "-q", "--bare", away.to_str().unwrap(), ".git"]);
    ws.git(["config", "core.bare", "false"]);
    let head = ws.git(["rev-parse", "HEAD"]);
    let undone = ws.json(["undo", run["run_id"].as_str().unwrap()]);
    assert_eq!(undone["error"]["kind"], "Unsupported", "{undone}");
    let message = undone["error"]["message"].as_str().unwrap();
    assert!(message.contains("another repository"), "{message}");
    assert!(!message.contains("gone"), "{message}");
    assert_eq!(ws.git(["rev-parse", "HEAD"]), head, "it is left alone");
    assert!(!ws.exists("x"), "the files are taken back");
}

// HEAD was back at the commit before with the index of the one after it, and nothing said what to
// do
#[test]
fn where_head_goes_back_and_an_edited_index_stays_the_way_on_is_told() {
    let ws = TestWorkspace::repository();
    ws.commit("first");
    let first = ws.git(["rev-parse", "HEAD"]);
    let script = format!("{GIT}echo made > made; git add made; git commit -q -m second");
    ws.call(["run", "--", "sh", "-c", &script]).run().ok();
    ws.write("own", "x\n");
    ws.git(["add", "own"]);
    let undone = ws.undo();
    let error = undone["error"]["message"].as_str().unwrap();
    assert!(
        error.contains("\"git reset\" makes it that of HEAD"),
        "{undone}"
    );
    assert_eq!(ws.git(["rev-parse", "HEAD"]), first);
    assert_eq!(ws.git(["diff", "--cached", "--name-only"]), "made\nown");
    ws.git(["reset", "-q"]);
    assert_eq!(ws.git(["status", "--porcelain"]), "?? own");

    // Where HEAD's commit stays, the index is right as it is.
    let script = format!("{GIT}git checkout -q -b side");
    ws.call(["run", "--", "sh", "-c", &script]).run().ok();
    ws.git(["add", "own"]);
    let undone = ws.undo();
    let error = undone["error"]["message"].as_str().unwrap();
    assert!(
        error.contains("the index was changed since") && !error.contains("git reset"),
        "{undone}"
    );
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(ws.git(["status", "--porcelain"]), "A  own");
}
