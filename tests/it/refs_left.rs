//! What a run did to refs and a rollback or an undo leaves: the commands that are named do what is
//! said of them, typed where somebody stands.

use std::path::Path;

use serde_json::Value;
use stillframe_tests::{Call, Output, TestWorkspace};

/// Who stashes in a run.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null \
    GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
    GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";

/// The commands that lines of a rollback or undo name, in their order.
fn named(text: &str) -> Vec<String> {
    let of = |line: &str| {
        let (_, from) = line.split_once("left     ")?.1.split_once("; \"")?;
        Some(from.strip_suffix("\" takes that back")?.to_owned())
    };
    text.lines().filter_map(of).collect()
}

/// Types a command in a shell in `directory`.
#[track_caller]
fn typed(directory: &Path, command: &str) {
    tried(directory, command).ok();
}

/// The same of one that may fail. In bash: an older sh knows no `$'…'`.
fn tried(directory: &Path, command: &str) -> Output {
    let call = Call::new("bash", directory).args(["-c", command]);
    call.env("PATH", std::env::var_os("PATH").unwrap()).run()
}

/// Every ref with what it names, and every stash with what is said of it.
fn refs(ws: &TestWorkspace) -> [String; 2] {
    let format = "--format=%(refname) %(objectname) %(symref)";
    let refs = ws.git(["for-each-ref", format]);
    let others = refs
        .lines()
        .filter(|line| !line.starts_with("refs/stillframe/"));
    let others: Vec<&str> = others.collect();
    [
        others.join("\n"),
        ws.git(["stash", "list", "--format=%H %gs"]),
    ]
}

/// Stashes of a person, the oldest first.
fn stash(ws: &TestWorkspace, messages: &[&str]) {
    for (n, message) in messages.iter().enumerate() {
        ws.write("README", format!("{n} {message}"));
        match message.is_empty() {
            true => ws.git(["stash", "push", "-q"]),
            false => ws.git(["stash", "push", "-q", "-m", message]),
        };
    }
}

/// What an undo of a run with this script leaves.
fn left_by_undo(ws: &TestWorkspace, script: &str) -> Vec<Value> {
    ws.run::<&str>([], &format!("{GIT}{script}")).ok();
    let undone = ws.json(["undo"]);
    undone["refs_left"].as_array().cloned().unwrap_or_default()
}

// They were for the repository that somebody stood in, and did their work there
#[test]
fn a_command_that_is_named_elsewhere_is_for_the_workspace() {
    let mut ws = TestWorkspace::repository();
    ws.commit("one");
    let root = ws.root().join("it's a dir");
    std::fs::create_dir(&root).unwrap();
    ws.git(["init", "-q", "it's a dir/inner"]);
    let inner = root.join("inner");
    let elsewhere = ws.outside();
    std::fs::create_dir_all(&elsewhere).unwrap();
    ws.git(["branch", "goes"]);
    let before = refs(&ws);
    let script = format!("{GIT}git tag made; git branch -q -D goes; exit 1");
    let workspace = ws.root().to_owned();
    for here in [&elsewhere, &inner] {
        let call = ws.call(["--workspace"]).args([&workspace]).cwd(here);
        let call = call.args(["run", "--rollback-on-failure", "--", "sh", "-c", &script]);
        let told = call.run().exits(1).stderr_text();
        let commands = named(&told);
        assert_eq!(commands.len(), 2, "{told}");
        for command in commands {
            assert!(command.starts_with("git -C "), "{command}");
            typed(here, &command);
        }
        assert_eq!(refs(&ws), before, "from {}", here.display());
    }
    // In the repository, wherever, no directory is named.
    let call = ws.call(["--workspace"]).args([&workspace]).cwd(&root);
    let call = call.args(["run", "--rollback-on-failure", "--", "sh", "-c", &script]);
    let told = call.run().exits(1).stderr_text();
    let commands = named(&told);
    assert!(
        commands
            .iter()
            .all(|c| c.starts_with("git update-ref --no-deref ")),
        "{told}"
    );
    commands.iter().for_each(|command| typed(&root, command));
    assert_eq!(refs(&ws), before);
    // An undo says it likewise.
    ws.run::<&str>([], &format!("{GIT}git tag made")).ok();
    let call = ws.call(["--workspace"]).args([&workspace]).cwd(&elsewhere);
    let told = call.args(["undo"]).run().ok().stdout_text();
    named(&told)
        .iter()
        .for_each(|command| typed(&elsewhere, command));
    assert_eq!(refs(&ws), before, "{told}");
    ws.set_root(root.to_str().unwrap());
    ws.run::<&str>([], &format!("{GIT}git tag made")).ok();
    let call = ws.call(["--workspace"]).args([ws.root()]).cwd(&elsewhere);
    let told = call.args(["undo"]).run().ok().stdout_text();
    let commands = named(&told);
    assert!(commands[0].starts_with("git -C '"), "{commands:?}");
    typed(&elsewhere, &commands[0]);
    assert_eq!(ws.git(["tag"]), "");
}

// Only the newest was named, and came back without what was said of it
#[test]
fn every_stash_that_a_run_drops_can_be_had_back() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    stash(&ws, &["first", "", "it's the third"]);
    let before = refs(&ws);
    for (script, told) in [
        ("git stash clear", "3 stashes dropped"),
        (
            "git stash drop -q; git stash drop -q; git stash drop -q",
            "3 stashes dropped",
        ),
        (
            "git stash drop -q; git stash drop -q",
            "stash moved, 2 dropped",
        ),
    ] {
        let output = ws
            .call(["run", "--rollback-on-failure", "--", "sh", "-c"])
            .args([format!("{GIT}{script}; exit 1")])
            .run()
            .exits(1)
            .stderr_text();
        assert!(output.contains(&format!("refs: {told}")), "{output}");
        let commands = named(&output);
        assert_eq!(commands.len(), 1, "{output}");
        typed(ws.root(), &commands[0]);
        assert_eq!(refs(&ws), before, "{script}: {output}");
    }
    // One from the middle: the ref itself names what it named.
    let second = ws.git(["rev-parse", "stash@{1}"]);
    let ran = ws
        .run::<&str>([], &format!("{GIT}git stash drop -q 'stash@{{1}}'"))
        .ok()
        .json();
    let told = &ran["workspace"]["diff"]["refs"];
    assert_eq!(told[0]["name"], "refs/stash", "{ran}");
    assert_eq!(told[0]["before"], told[0]["after"]);
    assert_eq!(told[0]["dropped"][0]["commit"], second.as_str());
    let shown = ws.stillframe(["show", ran["run_id"].as_str().unwrap()]);
    let shown = shown.ok().stdout_text();
    assert!(shown.contains("1 stash dropped"), "{shown}");
    // What somebody stashes since is theirs, and in nobody's way.
    stash(&ws, &["mine"]);
    let undone = ws.json(["undo"]);
    let left = &undone["refs_left"][0];
    assert_eq!(left["dropped"].as_array().unwrap().len(), 1, "{undone}");
    typed(ws.root(), left["undo"].as_str().unwrap());
    let now = ws.git(["stash", "list", "--format=%gs"]);
    let now: Vec<&str> = now.lines().collect();
    let expected = [&before[1].lines().nth(1).unwrap()[41..], "On main: mine"];
    assert_eq!(now[..2], expected);
    assert_eq!(now.len(), 4);
}

#[test]
fn a_stash_that_git_has_removed_is_told_and_not_promised() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    stash(&ws, &["first", "second"]);
    let kept = ws.git(["rev-parse", "stash@{1}"]);
    ws.git(["branch", "kept", &kept]);
    let left = left_by_undo(
        &ws,
        "git stash clear; git reflog expire --expire=now --all; git gc -q --prune=now",
    );
    let dropped = left[0]["dropped"].as_array().unwrap();
    let gone: Vec<bool> = dropped.iter().map(|s| s["gone"] == true).collect();
    assert_eq!(gone, [false, true], "the oldest first: {left:?}");
    typed(ws.root(), left[0]["undo"].as_str().unwrap());
    let now = ws.git(["stash", "list", "--format=%H %gs"]);
    assert_eq!(now, format!("{kept} On main: first"));
}

// The command for `d` failed as long as there was `d/x`
#[test]
fn what_is_in_the_way_of_a_ref_goes_first() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    for name in ["d", "e/x"] {
        ws.git(["branch", name]);
    }
    let before = refs(&ws);
    let left = left_by_undo(
        &ws,
        "git branch -q -D d e/x; git branch d/x; git branch d/y/z; git branch e; git tag d",
    );
    assert_eq!(left.len(), 6, "{left:?}");
    for left in &left {
        typed(ws.root(), left["undo"].as_str().unwrap());
    }
    assert_eq!(refs(&ws), before);
}

// A symbolic ref that came to lead elsewhere was named nowhere
#[test]
fn a_symbolic_ref_that_a_run_changes_is_named() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    ws.git(["branch", "b"]);
    ws.git(["branch", "plain"]);
    let remote = "refs/remotes/origin/HEAD";
    ws.git(["symbolic-ref", remote, "refs/remotes/origin/main"]);
    ws.git(["symbolic-ref", "refs/heads/alias", "refs/heads/b"]);
    ws.git(["symbolic-ref", "refs/heads/goes", "refs/heads/b"]);
    let links = || {
        let names = [
            remote,
            "refs/heads/alias",
            "refs/heads/goes",
            "refs/heads/made",
            "refs/heads/plain",
        ];
        names.map(|name| std::fs::read(ws.path(".git").join(name)).ok())
    };
    let before = (links(), refs(&ws));
    let script = format!(
        "git symbolic-ref {remote} refs/heads/b; git symbolic-ref refs/heads/alias refs/heads/main; \
         git symbolic-ref -d refs/heads/goes; git symbolic-ref refs/heads/made refs/heads/b; \
         git symbolic-ref refs/heads/plain refs/heads/b"
    );
    let left = left_by_undo(&ws, &script);
    let told: Vec<[&Value; 3]> = left
        .iter()
        .map(|left| [&left["name"], &left["before"], &left["after"]])
        .collect();
    assert_eq!(told.len(), 5, "{left:?}");
    assert!(
        told.contains(&[
            &Value::from("refs/heads/alias"),
            &Value::from("refs/heads/b"),
            &Value::from("refs/heads/main")
        ]),
        "{told:?}"
    );
    let undo = |name: &str| left.iter().find(|l| l["name"] == name).unwrap()["undo"].clone();
    assert_eq!(
        undo("refs/heads/alias"),
        "git symbolic-ref refs/heads/alias | grep -qxF refs/heads/main && git symbolic-ref refs/heads/alias refs/heads/b"
    );
    // What somebody has made of it since is theirs. The guard was on other refs alone.
    let theirs = [
        (
            "refs/heads/alias",
            vec!["symbolic-ref", "refs/heads/alias", "refs/heads/mine"],
        ),
        (
            "refs/heads/goes",
            vec!["symbolic-ref", "refs/heads/goes", "refs/heads/mine"],
        ),
        (
            "refs/heads/goes",
            vec!["update-ref", "--no-deref", "refs/heads/goes", "main"],
        ),
        (
            "refs/heads/made",
            vec!["symbolic-ref", "refs/heads/made", "refs/heads/mine"],
        ),
        (
            "refs/heads/plain",
            vec!["symbolic-ref", "refs/heads/plain", "refs/heads/mine"],
        ),
    ];
    ws.git(["branch", "mine"]);
    let changed = (links(), refs(&ws));
    for (name, command) in theirs {
        let was = std::fs::read(ws.path(".git").join(name)).ok();
        ws.git(&command);
        let as_they_left_it = (links(), refs(&ws));
        let tried = tried(ws.root(), undo(name).as_str().unwrap());
        assert_eq!(
            (links(), refs(&ws)),
            as_they_left_it,
            "{command:?}: {tried}"
        );
        match was {
            Some(was) => std::fs::write(ws.path(".git").join(name), was).unwrap(),
            None => std::fs::remove_file(ws.path(".git").join(name)).unwrap(),
        }
    }
    assert_eq!((links(), refs(&ws)), changed);
    ws.git(["branch", "-D", "mine"]);
    for left in &left {
        typed(ws.root(), left["undo"].as_str().unwrap());
    }
    assert_eq!((links(), refs(&ws)), before);
    let quiet = left_by_undo(&ws, "git symbolic-ref refs/heads/alias refs/heads/b");
    assert!(quiet.is_empty(), "{quiet:?}");
}

// git followed it, and the branch that it led to was deleted or moved
#[test]
fn what_has_become_a_symbolic_ref_leads_no_command_to_another() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    ws.git(["branch", "moved"]);
    ws.git(["branch", "goes"]);
    ws.commit("two");
    let script = "git branch made; git branch -q -f moved; git branch -q -D goes";
    let left = left_by_undo(&ws, script);
    assert_eq!(left.len(), 3, "{left:?}");
    ws.git(["branch", "victim"]);
    let victim = || {
        ws.git([
            "for-each-ref",
            "--format=%(objectname)",
            "refs/heads/victim",
        ])
    };
    let was = victim();
    for name in ["made", "moved"] {
        ws.git([
            "symbolic-ref",
            &format!("refs/heads/{name}"),
            "refs/heads/victim",
        ]);
    }
    ws.git(["symbolic-ref", "refs/heads/goes", "refs/heads/none"]);
    for left in &left {
        tried(ws.root(), left["undo"].as_str().unwrap());
        assert_eq!(victim(), was, "{left}");
    }
    let none = ws.git(["for-each-ref", "refs/heads/none"]);
    assert_eq!(none, "", "{left:?}");
}

// One that git refuses kept the others from being stored again
#[test]
fn each_stash_is_stored_again_whatever_becomes_of_the_others() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    let none = ws.git(["rev-parse", "HEAD"]);
    ws.git([
        "update-ref",
        "--create-reflog",
        "-m",
        "no stash",
        "refs/stash",
        &none,
    ]);
    stash(&ws, &["first", "second"]);
    let left = left_by_undo(&ws, "git stash clear");
    assert_eq!(left[0]["dropped"].as_array().unwrap().len(), 3, "{left:?}");
    typed(ws.root(), left[0]["undo"].as_str().unwrap());
    let now = ws.git(["stash", "list", "--format=%gs"]);
    assert_eq!(now, "On main: second\nOn main: first");
}

// The name was printed, and no shell finds such a directory
#[test]
fn a_command_for_a_directory_of_any_name_works() {
    for name in [&b"a\tb"[..], b"line\nbreak", b"\xff bytes", b"it's \x1b\\n"] {
        let ws = TestWorkspace::plain();
        let root = ws.path(name);
        std::fs::create_dir(&root).unwrap();
        let git = |args: &[&str]| {
            let call = ws.git_call(["-C"]).args([&root]).args(args);
            call.run().ok().stdout_text()
        };
        git(&["init", "-q"]);
        git(&["commit", "-q", "--allow-empty", "-m", "one"]);
        let elsewhere = ws.outside();
        let script = format!("{GIT}git tag made; exit 1");
        let call = ws.call(["--workspace"]).args([&root]).cwd(&elsewhere);
        let call = call.args(["run", "--rollback-on-failure", "--", "sh", "-c", &script]);
        let told = call.run().exits(1).stderr_text();
        let commands = named(&told);
        assert_eq!(commands.len(), 1, "{told}");
        typed(&elsewhere, &commands[0]);
        assert_eq!(git(&["tag"]), "", "{told}");
    }
}

// The other work tree had no branch any more
#[test]
fn a_branch_that_another_work_tree_has_out_is_not_to_be_deleted() {
    let ws = TestWorkspace::repository();
    ws.commit("one");
    let other = ws.outside().join("other");
    let tree = other.to_str().unwrap();
    let script = format!("git branch free; git worktree add -q -b taken '{tree}'");
    let left = left_by_undo(&ws, &script);
    let of = |name: &str| left.iter().find(|left| left["name"] == name).unwrap();
    assert_eq!(of("refs/heads/taken")["undo"], "", "{left:?}");
    assert_eq!(of("refs/heads/taken")["checked_out_at"], tree, "{left:?}");
    assert_eq!(of("refs/heads/free")["checked_out_at"], Value::Null);
    let told = ws.stillframe(["undo"]).ok().stdout_text();
    assert!(!told.contains("refs/heads/taken"), "{told}");
    ws.git(["worktree", "remove", "-f", tree]);
    ws.git(["branch", "-D", "taken", "free"]);
    let failing = format!("{GIT}{script}; exit 1");
    let call = ws.call(["run", "--rollback-on-failure", "--", "sh", "-c", &failing]);
    let told = call.run().exits(1).stderr_text();
    let line = format!("left     branch taken made; the work tree {tree} has it checked out");
    assert!(told.contains(&line), "{told}");
    for command in named(&told) {
        typed(ws.root(), &command);
    }
    assert_eq!(
        ws.git(["-C", tree, "symbolic-ref", "HEAD"]),
        "refs/heads/taken"
    );
    ws.git(["rev-parse", "refs/heads/taken"]);
}

// Its rebase could not be ended any more
#[test]
fn a_branch_that_another_work_tree_rebases_or_bisects_is_not_to_be_deleted() {
    for began in [
        "git rebase -q --exec false HEAD~1",
        "git bisect start; git checkout -q --detach",
    ] {
        let ws = TestWorkspace::repository();
        ws.commit("one");
        let other = ws.outside().join("other");
        let tree = other.to_str().unwrap();
        let script = format!(
            "git worktree add -q -b taken '{tree}'; cd '{tree}'; git commit -q --allow-empty -m two; {began}; true"
        );
        let left = left_by_undo(&ws, &script);
        assert_ne!(ws.git_call(["branch", "-D", "taken"]).run().code, 0);
        let taken = left.iter().find(|left| left["name"] == "refs/heads/taken");
        let taken = taken.unwrap_or_else(|| panic!("{began}: {left:?}"));
        assert_eq!(taken["undo"], "", "{began}: {left:?}");
        assert_eq!(taken["checked_out_at"], tree, "{began}: {left:?}");
    }
}

// It was said to have it checked out, and has no files
#[test]
fn a_branch_that_a_bare_repository_names_may_be_deleted() {
    let mut ws = TestWorkspace::repository();
    ws.commit("one");
    let bare = ws.outside().join("bare");
    let path = bare.to_str().unwrap();
    ws.git(["clone", "-q", "--bare", ".", path]);
    ws.git(["-C", path, "worktree", "add", "-q", "-b", "side", "../tree"]);
    ws.git(["-C", path, "symbolic-ref", "HEAD", "refs/heads/made"]);
    let tree = ws.outside().join("tree");
    ws.set_root(tree.to_str().unwrap());
    let left = left_by_undo(&ws, "git branch made");
    assert_eq!(left[0]["name"], "refs/heads/made", "{left:?}");
    assert_eq!(left[0]["checked_out_at"], Value::Null, "{left:?}");
    typed(&tree, left[0]["undo"].as_str().unwrap());
    assert_eq!(ws.git(["for-each-ref", "refs/heads/made"]), "");
}
