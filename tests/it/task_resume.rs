//! `task resume` and `run --task`: a workspace comes to the branch of a task, and any machine goes
//! on. git is the oracle.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use stillframe_tests::choice::is_chosen;
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::shapes::{self, Backend};
use stillframe_tests::{Call, Output, TestWorkspace, git};

use super::tasks::{KILLS, counted};

const BRANCH: &str = "stillframe/task/42";

/// A repository whose `origin` has its branch `main`.
fn machine() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    git::text(
        &ws.home(),
        ws.base(),
        ["init", "-q", "--bare", "remote.git"],
    );
    let remote = remote(&ws);
    ws.git(["remote", "add", "origin", remote.to_str().unwrap()]);
    ws.git(["push", "-q", "origin", "main"]);
    ws
}

fn remote(ws: &TestWorkspace) -> PathBuf {
    ws.base().join("remote.git")
}

/// Another machine with a clone of what `of` has as its origin.
fn another(of: &TestWorkspace, options: &[&str]) -> TestWorkspace {
    let ws = TestWorkspace::plain();
    let from = format!("file://{}", remote(of).display());
    let clone = ["clone", "-q"].iter().chain(options).copied();
    ws.git(clone.chain([&*from, "."]));
    ws
}

fn at(ws: &TestWorkspace) -> Option<String> {
    let full = format!("refs/heads/{BRANCH}");
    let listed = ws.git(["ls-remote", "origin", &full]);
    listed.split_whitespace().next().map(str::to_owned)
}

fn resume(ws: &TestWorkspace) -> Output {
    ws.try_json(["task", "resume", "42"])
}

fn resumed(ws: &TestWorkspace) -> Value {
    resume(ws).ok().json()
}

fn saved(ws: &TestWorkspace) -> String {
    let saved = ws.json(["task", "checkpoint", "42"]);
    saved["commit"].as_str().unwrap().to_owned()
}

/// The outcome of a command of the task, which exits so.
fn run(ws: &TestWorkspace, code: i32, script: &str) -> Value {
    let args = ["run", "--task", "42", "--", "sh", "-c", script];
    ws.try_json(args).exits(code).json()
}

/// What git says of the work tree, HEAD and branches.
fn seen(ws: &TestWorkspace) -> String {
    [
        ws.git(["status", "--porcelain=v1", "-uall", "--ignored"]),
        ws.git(["ls-files", "-s", "-t"]),
        ws.git(["for-each-ref", "refs/heads", "refs/tags"]),
        fs::read_to_string(ws.path(".git/HEAD")).unwrap(),
    ]
    .join("\n--\n")
}

/// Nothing is moved, and the error is of this kind.
fn refused(ws: &TestWorkspace, kind: &str, says: &str) {
    let before = seen(ws);
    let message = ws.untouched(|| resume(ws).exits(1).error(kind));
    assert!(message.contains(says), "{message}");
    assert!(message.contains("nothing was moved"), "{message}");
    assert_eq!(seen(ws), before);
}

#[test]
fn what_one_machine_saved_another_goes_on_with_and_the_first_again() {
    let one = machine();
    let failed = run(&one, 3, "mkdir -p src; echo half > src/work; exit 3");
    assert_eq!(failed["workspace"]["resumed"]["state"], "fresh");
    assert_eq!(
        failed["workspace"]["resumed"]["way_back"],
        "git switch main"
    );
    assert_eq!(one.git(["symbolic-ref", "--short", "HEAD"]), BRANCH);

    let two = another(&one, &[]);
    let there = at(&one).unwrap();
    let begun = run(&two, 0, "cat src/work; echo whole >> src/work; rm README");
    let on = &begun["workspace"]["resumed"];
    assert_eq!(
        (&on["state"], &on["commit"]),
        (&"resumed".into(), &(*there).into())
    );
    // What the run did is told, and not what it found.
    let changed = &begun["workspace"]["diff"]["changed_paths"];
    assert_eq!(*changed, serde_json::json!(["README", "src/work"]));
    assert_eq!(two.read("src/work"), b"half\nwhole\n");
    let tip = at(&two).unwrap();
    let parent = ["rev-parse", &format!("{tip}^")];
    assert_eq!(git::text(&one.home(), &remote(&one), parent), there);

    let back = resumed(&one);
    assert_eq!(back["state"], "fast_forwarded");
    assert_eq!(back["commit"], *tip);
    assert_eq!(back["way_back"], Value::Null);
    assert_eq!(one.read("src/work"), b"half\nwhole\n");
    assert!(!one.exists("README"));
    assert_eq!(one.git(["status", "--porcelain"]), "");
    // The old tip is reached by the new one, and needs no name.
    assert_eq!(one.git(["for-each-ref", "refs/stillframe"]), "");
    for ws in [&one, &two] {
        ws.git(["fsck", "--strict"]);
        git::call(&ws.home(), &remote(&one), ["fsck", "--strict"])
            .run()
            .ok();
    }
    // The command that is named goes back.
    two.git(["stash", "-q", "--include-untracked"]);
    two.git(["switch", "-q", "main"]);
    assert!(two.exists("README"));
}

/// A machine dies in the middle of a run that was saved several times; another goes on, and then
/// the first one.
#[test]
fn a_machine_that_dies_takes_no_more_with_it_than_was_never_saved() {
    let one = machine();
    let program = stillframe_tests::binary::stillframe().display();
    let script = format!(
        "for n in 1 2 3 4; do echo $n >> work; {program} task checkpoint || exit 9; done; \
         echo unsaved >> work; touch ../ready; sleep 600"
    );
    let args = ["run", "--task", "42", "--", "sh", "-c", &script];
    let mut running = one.call(args).start();
    while !one.base().join("ready").exists() {
        thread::sleep(Duration::from_millis(20));
    }
    running.kill();
    drop(running.wait());
    let two = another(&one, &[]);
    let finished = run(&two, 0, "echo finished >> work");
    assert_eq!(finished["workspace"]["saved"]["state"], "pushed");
    assert_eq!(two.read("work"), b"1\n2\n3\n4\nfinished\n");
    // What the first one had not saved is saved once it is back: beside the branch, which has gone
    // on.
    one.json(["snapshot"]);
    let runs = one.json(["runs"]);
    assert_eq!(runs[0]["status"], "failed", "{runs}");
    let beside = [
        "for-each-ref",
        "--format=%(refname)",
        "refs/heads/stillframe",
    ];
    let branches = git::text(&one.home(), &remote(&one), beside);
    let beside = branches
        .lines()
        .find(|name| name.contains("--diverged-"))
        .unwrap();
    let work = git::text(
        &one.home(),
        &remote(&one),
        ["show", &format!("{beside}:work")],
    );
    assert_eq!(work, "1\n2\n3\n4\nunsaved");
    let message = resume(&one).exits(1).error("NotFound");
    assert!(message.contains("--diverged-"), "{message}");
    // Both come together by git, and go on as one.
    one.git(["fetch", "-q", "origin"]);
    let side = beside.strip_prefix("refs/heads/").unwrap();
    one.git([
        "checkout",
        "-q",
        "--force",
        "-B",
        "both",
        &format!("origin/{side}"),
    ]);
    let merge = [
        "merge",
        "-q",
        "-s",
        "ours",
        "-m",
        "both",
        &format!("origin/{BRANCH}"),
    ];
    one.git(merge);
    let both = saved(&one);
    assert_eq!(at(&one), Some(both));
    one.git(["branch", "-q", "-f", BRANCH, "both"]);
    assert_eq!(resumed(&one)["state"], "resumed");
    one.git(["fsck", "--strict"]);
}

/// A run that is killed while its command works is saved as far as it came, by whoever comes next.
#[test]
fn what_a_killed_run_left_is_on_the_branch_once_somebody_comes() {
    let ws = machine();
    let script = "echo half > work; touch ../ready; sleep 600";
    let args = [
        "run",
        "--task",
        "42",
        "--checkpoint-every",
        "0",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut running = ws.call(args).start();
    while !ws.base().join("ready").exists() {
        thread::sleep(Duration::from_millis(20));
    }
    running.kill();
    drop(running.wait());
    assert_eq!(at(&ws), None);
    ws.json(["snapshot"]);
    let tip = at(&ws).unwrap();
    let subject = git::text(&ws.home(), &remote(&ws), ["log", "-1", "--format=%s", &tip]);
    let runs = ws.json(["runs"]);
    let id = runs[0]["run_id"].as_str().unwrap();
    assert_eq!(subject, format!("[wip] stillframe run {id}"));
    assert_eq!(runs[0]["status"], "failed");
    let shown = ws.show(id);
    assert_eq!(shown["workspace"]["saved"]["commit"], *tip);
    assert_eq!(ws.json(["undo"])["status"], "completed");
}

/// A command may write in the repository's configuration, and its work is sent where it came from.
#[test]
fn the_work_of_a_run_goes_where_it_was_to_go_when_the_run_began() {
    let one = machine();
    let other = one.base().join("other.git");
    git::text(
        &one.home(),
        one.base(),
        ["init", "-q", "--bare", "other.git"],
    );
    let script = format!(
        "echo x > work; git remote set-url origin {}",
        other.display()
    );
    let outcome = run(&one, 0, &script);
    assert_eq!(outcome["workspace"]["saved"]["state"], "pushed");
    let branches = |at: &PathBuf| git::text(&one.home(), at, ["branch", "--list", BRANCH]);
    assert_ne!(branches(&remote(&one)), "");
    assert_eq!(branches(&other), "");
}

/// What was saved from here is no change that somebody would lose: the branch may go on from it,
/// and who goes on here keeps that where the branch did not.
#[test]
fn work_that_was_saved_here_gives_way_to_what_came_of_it_and_later_changes_stay() {
    let one = machine();
    run(
        &one,
        3,
        "mkdir d; for n in 1 2 3 4 5; do echo $n > d/$n; done; echo x >> README; exit 3",
    );
    // The same machine, with changes since: they stay, on top of what was saved.
    one.write("d/1", "mine\n");
    one.write("d/2", "staged\n");
    one.git(["add", "d/2"]);
    fs::remove_file(one.path("d/3")).unwrap();
    let on = resumed(&one);
    assert_eq!(on["state"], "fast_forwarded");
    assert_eq!(on["restore"]["restored"], serde_json::json!([]));
    assert_eq!(one.git(["status", "--porcelain"]), " M d/1\nM  d/2\n D d/3");
    // Elsewhere somebody goes on.
    let two = another(&one, &[]);
    run(
        &two,
        0,
        "echo more >> d/4; rm d/5; git checkout -q main -- README; echo new > new",
    );
    let on = resumed(&one);
    assert_eq!(on["state"], "fast_forwarded");
    assert_eq!(one.read("d/4"), b"4\nmore\n");
    assert!(!one.exists("d/5") && one.exists("new"));
    assert_eq!(one.git(["status", "--porcelain"]), " M d/1\nM  d/2\n D d/3");
    assert_eq!(one.git(["diff", "--name-only", "main", "--", "README"]), "");
    // What was put back by hand stays so, and is named.
    let four = another(&one, &[]);
    run(&four, 0, "echo a > own; echo b >> README; echo c > d/4");
    four.git(["checkout", "-q", "README"]);
    let on = resumed(&four);
    assert_eq!(on["kept"], serde_json::json!(["README"]));
    assert_eq!(four.git(["status", "--porcelain"]), " M README");
    // And one file alone that was changed since is in nobody's way.
    four.git(["checkout", "-q", "README"]);
    run(&four, 0, "echo d > own");
    four.write("own", "mine\n");
    assert_eq!(resumed(&four)["kept"], serde_json::json!(["own"]));
    assert_eq!(four.git(["status", "--porcelain"]), " M own");
    resumed(&two);
    // Once all is put back it comes again.
    let three = another(&one, &[]);
    resumed(&three);
    let tip = three.git(["rev-parse", "HEAD"]);
    three.git(["reset", "-q", "--hard", "HEAD~"]);
    three.git(["clean", "-qfd"]);
    assert_eq!(resumed(&three)["commit"], *tip);
    assert_eq!(three.git(["status", "--porcelain"]), "");
    // Where both have changed something, it is in the way.
    run(&two, 0, "echo theirs > d/1");
    refused(&one, "Conflict", "d/1 was changed");
}

#[test]
fn an_undo_brings_back_what_was_there_before_a_resume() {
    let one = machine();
    run(&one, 0, "echo x > made; echo y >> README; chmod +x README");
    let two = another(&one, &[]);
    two.write("own", "mine\n");
    two.write("staged", "mine\n");
    two.git(["add", "staged"]);
    two.write(".git/info/exclude", "ignored\n");
    two.write("ignored", "mine\n");
    let before = (seen(&two), two.read("README"));
    let done = resumed(&two);
    assert_eq!(
        done["restore"]["restored"],
        serde_json::json!(["README", "made"])
    );
    assert_eq!(two.git(["status", "--porcelain"]), "A  staged\n?? own");
    assert_eq!(two.read("ignored"), b"mine\n");
    two.json(["undo"]);
    let names = |text: &str| text.replace(&format!(" {BRANCH}"), "");
    assert_eq!(names(&seen(&two)), names(&before.0));
    assert_eq!(two.read("README"), before.1);
    // And the undo of that comes back to the branch.
    two.json(["undo"]);
    assert_eq!(two.git(["symbolic-ref", "--short", "HEAD"]), BRANCH);
    assert_eq!(two.git(["status", "--porcelain"]), "A  staged\n?? own");
    // There is nothing to do a second time.
    let again = two.untouched(|| resumed(&two));
    assert_eq!(again["restore"], Value::Null);
}

#[test]
fn a_resume_is_what_the_branch_here_and_there_allow() {
    // Nowhere: it begins where it is told to, or at HEAD.
    let ws = machine();
    let first = ws.git(["rev-parse", "HEAD"]);
    ws.write("README", "second\n");
    ws.git(["commit", "-qam", "second"]);
    let args = ["task", "resume", "7", "--start-point", "origin/main"];
    let begun = ws.json(args);
    assert_eq!(
        (&begun["state"], &begun["commit"]),
        (&"fresh".into(), &(*first).into())
    );
    assert_ne!(ws.read("README"), b"second\n");
    let wrong = ["task", "resume", "8", "--start-point", "nowhere"];
    ws.try_json(wrong).exits(1).error("NotFound");
    ws.git(["switch", "-q", "main"]);

    // Here alone, and ahead of there.
    resumed(&ws);
    ws.write("ahead", "x\n");
    ws.git(["add", "ahead"]);
    ws.git(["commit", "-qm", "ahead"]);
    let ahead = ws.git(["rev-parse", "HEAD"]);
    let here = resumed(&ws);
    assert_eq!(
        (&here["state"], &here["commit"]),
        (&"resumed".into(), &(*ahead).into())
    );
    let made = saved(&ws);
    assert_eq!((made.as_str(), at(&ws)), (&*ahead, Some(ahead.clone())));

    // Somebody has committed here after our checkpoint was sent, and died.
    ws.write("work", "x\n");
    let ours = saved(&ws);
    ws.git(["add", "work"]);
    ws.git(["commit", "-qm", "the agent's own"]);
    let own = ws.git(["rev-parse", "HEAD"]);
    let on = resumed(&ws);
    assert_eq!(
        (&on["state"], &on["commit"]),
        (&"resumed".into(), &(*own).into())
    );
    ws.write("more", "x\n");
    let next = saved(&ws);
    git::call(&ws.home(), &remote(&ws), ["cat-file", "-e", &next])
        .run()
        .ok();
    let parents = git::text(
        &ws.home(),
        &remote(&ws),
        ["log", "-1", "--format=%P", &next],
    );
    assert_eq!(parents, format!("{ours} {own}"));

    // Both have what the other has not.
    let other = ws.git(["commit-tree", "-m", "theirs", "-p", "HEAD~", "HEAD^{tree}"]);
    let push = format!("+{other}:refs/heads/{BRANCH}");
    ws.git(["push", "-q", "origin", &push]);
    refused(&ws, "Conflict", &other);

    // What was saved from here is gone there.
    ws.git(["push", "-q", "origin", &format!(":refs/heads/{BRANCH}")]);
    ws.git(["switch", "-q", "main"]);
    ws.git(["branch", "-q", "-D", BRANCH]);
    refused(&ws, "NotFound", &format!("checkpoint {next}"));
    let message = resume(&ws).exits(1).error("NotFound");
    assert!(message.contains("the store still has it"), "{message}");

    // Nobody can say.
    ws.git(["remote", "set-url", "origin", "/nowhere/remote.git"]);
    refused(&ws, "Unavailable", "cannot be asked");
}

#[test]
fn a_branch_with_another_tasks_work_is_not_taken() {
    let ws = machine();
    run(&ws, 0, "echo x > made");
    // Its work is in main by now, and so main's history has its trailers.
    resumed(&ws);
    ws.git(["fetch", "-q", "origin"]);
    ws.git(["switch", "-q", "main"]);
    ws.git(["merge", "-q", "--ff-only", &format!("origin/{BRANCH}")]);
    ws.git(["push", "-q", "origin", "main"]);
    let fresh = ws.json(["task", "resume", "43"]);
    assert_eq!(fresh["state"], "fresh");
    assert_eq!(ws.json(["task", "resume", "43"])["state"], "resumed");
    ws.git(["switch", "-q", "main"]);
    // That of a task of its own has not come to main.
    ws.write("own", "x\n");
    ws.json(["task", "checkpoint", "44"]);
    ws.git(["fetch", "-q", "origin"]);
    let push = "refs/remotes/origin/stillframe/task/44:refs/heads/stillframe/task/45";
    ws.git(["push", "-q", "origin", push]);
    ws.git(["clean", "-qfd"]);
    let message = ws
        .try_json(["task", "resume", "45"])
        .exits(1)
        .error("Conflict");
    assert!(message.contains("task 44"), "{message}");
}

#[test]
fn a_task_does_not_begin_with_the_work_of_another() {
    let ws = machine();
    run(&ws, 0, "echo x > made");
    resumed(&ws);
    let call = ["run", "--task", "43", "--", "touch", "ran"];
    let message = ws.try_json(call).exits(125).error("Conflict");
    assert!(message.contains("work of task 42"), "{message}");
    assert!(!ws.exists("ran"));
    let start = ["task", "resume", "43", "--start-point", "main"];
    assert_eq!(ws.json(start)["state"], "fresh");
    assert!(!ws.exists("made"));
    // The branch of another layout is in the way only once something was saved with it.
    let two = another(&ws, &[]);
    two.json(["task", "resume", "7"]);
    two.json(["task", "resume", "7", "--namespace", "p/q"]);
    // What is no repository is in nobody's way.
    ws.git(["branch", "-q", "stillframe-old"]);
    ws.git([
        "branch",
        "-q",
        "-m",
        "stillframe-old",
        "stillframe/task/44/x",
    ]);
    let message = ws
        .try_json(["task", "resume", "44"])
        .exits(1)
        .error("Conflict");
    assert!(message.contains("stillframe/task/44/x"), "{message}");
}

/// Where HEAD is on the branch of another task, what is there is that one's.
#[test]
fn the_work_of_one_task_comes_to_no_other() {
    let ws = machine();
    run(&ws, 0, "echo x > made; echo y > also");
    let call = ["run", "--task", "43", "--", "touch", "ran"];
    let begins = || ws.try_json(call).exits(125).error("Conflict");
    let message = ws.untouched(begins);
    for part in ["also and 1 more", "task 42", "stillframe task resume 42)"] {
        assert!(message.contains(part), "{message}");
    }
    let save = ["task", "checkpoint", "43"];
    let saves = || ws.try_json(save).exits(1).error("Conflict");
    let message = ws.untouched(saves);
    assert!(message.contains("nothing was saved"), "{message}");
    resumed(&ws);
    // Nor is a commit of one that of another, which could not go on from it.
    let message = saves();
    assert!(message.contains("stillframe task resume 42)"), "{message}");
    let listed = ws.git(["ls-remote", "origin", "refs/heads/stillframe/task/43"]);
    assert_eq!(listed, "");
    ws.git(["switch", "-q", "main"]);
    assert_eq!(ws.json(call)["workspace"]["resumed"]["state"], "fresh");
    let two = another(&ws, &[]);
    let there = [
        "diff",
        "--name-only",
        "origin/main",
        "origin/stillframe/task/43",
    ];
    assert_eq!(two.git(there), "ran");
}

/// What was saved from here is on the branch here by now. A change that is made elsewhere does not
/// go on from it.
#[test]
fn a_change_on_another_branch_is_in_the_way_of_what_was_saved() {
    let ws = machine();
    ws.write("text", "base\n");
    ws.commit("text");
    run(&ws, 0, "echo work >> text");
    resumed(&ws);
    ws.git(["switch", "-q", "main"]);
    let tip = at(&ws);
    ws.write("text", "base\nmine\n");
    refused(&ws, "Conflict", "text was changed");
    let call = ["run", "--task", "42", "--", "touch", "ran"];
    ws.try_json(call).exits(125).error("Conflict");
    assert_eq!(at(&ws), tip);
    // On the branch it is one.
    ws.git(["checkout", "-q", "text"]);
    resumed(&ws);
    assert_eq!(ws.text("text"), "base\nwork\n");
    ws.write("text", "base\nwork\nmine\n");
    run(&ws, 0, "true");
    assert_ne!(at(&ws), tip);
    assert_eq!(ws.text("text"), "base\nwork\nmine\n");
}

/// What could not be sent is on the branch here all the same, and the next run goes on from it.
#[test]
fn a_run_goes_on_from_what_was_never_sent() {
    let ws = machine();
    run(&ws, 0, "echo 1 > made");
    let away = ws.base().join("away.git");
    let script = format!(
        "echo 2 > made; mv {} {}; exit 9",
        remote(&ws).display(),
        away.display()
    );
    let args = [
        "run",
        "--task",
        "42",
        "--rollback-on-failure",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let failed = ws.try_json(args).exits(9).json();
    assert_eq!(failed["workspace"]["saved"]["state"], "not_saved");
    assert_eq!(ws.read("made"), b"1\n");
    fs::rename(&away, remote(&ws)).unwrap();
    run(&ws, 0, "test $(cat made) = 2 && echo 3 > made");
    let tip = at(&ws).unwrap();
    let subjects = git::text(&ws.home(), &remote(&ws), ["log", "--format=%s", &tip]);
    assert_eq!(
        subjects
            .lines()
            .filter(|line| line.contains("[wip]"))
            .count(),
        1
    );
}

#[test]
fn an_ignored_file_that_was_captured_is_in_the_way_too() {
    let one = machine();
    let two = another(&one, &[]);
    run(&one, 0, "echo theirs > own.log; git add -f own.log");
    two.write(".git/info/exclude", "*.log\n");
    resumed(&two);
    two.git(["switch", "-q", "main"]);
    two.write("own.log", "mine\n");
    refused(&two, "Conflict", "own.log is ignored");
}

#[test]
fn local_changes_in_the_way_are_named_and_stay() {
    let one = machine();
    run(
        &one,
        0,
        "echo theirs > README; echo theirs > new; mkdir d; echo theirs > d/x",
    );
    let ready = || another(&one, &[]);
    let two = ready();
    two.write("README", "mine\n");
    refused(&two, "Conflict", "README was changed");
    let two = ready();
    two.write(".git/info/exclude", "new\n");
    two.write("new", "mine\n");
    refused(&two, "Conflict", "new is ignored");
    let two = ready();
    two.write("d", "mine\n");
    refused(&two, "Conflict", "d/x lies below");
    let two = ready();
    two.write("new", "mine\n");
    let call = ["run", "--task", "42", "--", "touch", "ran"];
    let message = two.try_json(call).exits(125).error("Conflict");
    assert!(message.contains("new is not tracked here"), "{message}");
    assert!(!two.exists("ran"));
    // What is the same already is not in the way.
    two.write("new", "theirs\n");
    assert_eq!(resumed(&two)["state"], "resumed");
    assert_eq!(two.git(["status", "--porcelain"]), "");
    // Work in the way can be saved first, which then is on the branch.
    let two = ready();
    two.write("README", "mine\n");
    let beside = two.try_json(["task", "checkpoint", "42"]).exits(1).json();
    assert_eq!(beside["state"], "pushed_beside");
}

#[test]
fn a_clone_that_lacks_history_comes_to_the_branch_too() {
    let one = machine();
    for round in 0..4 {
        one.write("README", format!("{round}\n"));
        one.git(["commit", "-qam", "more"]);
    }
    one.git(["push", "-q", "origin", "main"]);
    run(&one, 0, "echo x > made");
    // From before what a shallow clone has.
    let args = ["task", "resume", "old", "--start-point", "HEAD"];
    one.git(["switch", "-q", "--detach", "main~3"]);
    one.json(args);
    one.write("made", "old\n");
    one.json(["task", "checkpoint", "old"]);
    for options in [
        &["--depth", "1", "--no-single-branch"][..],
        &["--filter=blob:none"],
        &[],
    ] {
        git::text(
            &one.home(),
            &remote(&one),
            ["config", "uploadpack.allowFilter", "true"],
        );
        let two = another(&one, options);
        two.git(["switch", "-q", "main"]);
        let on = resumed(&two);
        assert_eq!(on["state"], "resumed", "{options:?}");
        assert_eq!(two.read("made"), b"x\n", "{options:?}");
        assert_eq!(two.git(["status", "--porcelain"]), "", "{options:?}");
        let on = two.json(["task", "resume", "old"]);
        assert_eq!(on["state"], "resumed", "{options:?}");
        assert_eq!(two.read("made"), b"old\n", "{options:?}");
        assert_eq!(two.git(["status", "--porcelain"]), "", "{options:?}");
        two.git(["log", "--oneline"]);
    }
}

#[test]
fn a_fresh_branch_moves_nothing_but_head_in_any_shape_of_a_repository() {
    let (mut begun, mut chosen) = (0, 0);
    for shape in shapes::SHAPES {
        if shape.backend != Backend::Git || !is_chosen(shape.name, 4) {
            continue;
        }
        chosen += 1;
        let ws = (shape.make)();
        let view = |ws: &TestWorkspace| {
            let status = ["status", "--porcelain=v1", "-uall", "--ignored"];
            let listed = ["ls-files", "-s", "-t"];
            [&status[..], &listed].map(|args| {
                let output = ws.git_call(args.iter().copied()).run();
                (output.code, output.stdout_text())
            })
        };
        ws.settle();
        let before = view(&ws);
        let output = resume(&ws);
        assert_eq!(view(&ws), before, "{}", shape.name);
        if output.code == 0 {
            let head = ws.git(["symbolic-ref", "--short", "HEAD"]);
            assert_eq!(head, BRANCH, "{}", shape.name);
            begun += 1;
            continue;
        }
        let said = output.stderr_text() + &output.stdout_text();
        let kinds = match shape.name {
            // Its origin is gone.
            "partial_clone" => ["Unavailable", "Corrupt"],
            _ => ["Unsupported", "Conflict"],
        };
        let is_typed = kinds.iter().any(|kind| said.contains(kind));
        assert!(is_typed, "{}: {said}", shape.name);
    }
    assert!(
        begun * 2 > chosen,
        "{begun} branches were begun of {chosen}"
    );
}

/// Killed at any moment it is before or after, by itself.
#[test]
fn a_resume_that_is_killed_is_not_half_done() {
    let rounds = counted(KILLS, 24);
    let one = machine();
    run(
        &one,
        0,
        "for n in 1 2 3 4 5 6 7 8 9; do mkdir -p d$n; echo $n > d$n/f; done; rm README",
    );
    let (mut moved, mut stayed) = (0_u64, 0_u64);
    for round in 0..rounds {
        let two = another(&one, &[]);
        two.write("own", "mine\n");
        two.json(["snapshot"]);
        let mut running = two.call(["--json", "task", "resume", "42"]).start();
        thread::sleep(Duration::from_millis(
            10 + (round % 24) * 8 + round / 24 % 8,
        ));
        running.kill();
        drop(running.wait());
        two.json(["snapshot"]);
        let head = two.git(["symbolic-ref", "--short", "HEAD"]);
        assert_eq!(
            two.git(["status", "--porcelain"]),
            "?? own",
            "round {round}: {head}"
        );
        assert_eq!(two.exists("README"), head == "main", "round {round}");
        two.git(["fsck", "--strict"]);
        match head == "main" {
            true => stayed += 1,
            false => moved += 1,
        }
        // Whoever comes next gets there.
        resumed(&two);
        assert_eq!(
            two.git(["status", "--porcelain"]),
            "?? own",
            "round {round}"
        );
        assert!(two.exists("d9/f") && !two.exists("README"), "round {round}");
    }
    assert!(moved + stayed == rounds, "{moved} and {stayed}");
}

#[test]
fn a_task_goes_on_from_the_commit_that_is_expected_or_not_at_all() {
    let one = machine();
    let expecting = |ws: &TestWorkspace, commit: &str| {
        ws.try_json(["task", "resume", "42", "--expect", commit])
    };
    let head = one.git(["rev-parse", "HEAD"]);
    let nobody = one.untouched(|| expecting(&one, &head).exits(1).error("Conflict"));
    assert!(nobody.contains("nobody has"), "{nobody}");
    one.write("work", "1\n");
    let first = saved(&one);
    let two = another(&one, &[]);
    for beginning in [&first[..39], "HEAD", ""] {
        expecting(&two, beginning).exits(2).error("InvalidOptions");
    }
    assert_eq!(expecting(&two, &first).ok().json()["commit"], first);
    two.write("work", "2\n");
    let second = saved(&two);
    // Somebody has gone on with it since it was looked at.
    let before = seen(&one);
    let elsewhere = one.untouched(|| expecting(&one, &first).exits(1).error("Conflict"));
    assert!(
        elsewhere.contains(&second) && elsewhere.contains(&first),
        "both are named: {elsewhere}"
    );
    assert_eq!(seen(&one), before);
    let args = [
        "run", "--task", "42", "--expect", &first, "--", "touch", "ran",
    ];
    one.try_json(args).exits(125);
    assert!(!one.exists("ran"), "the command was not run");
    let args = [
        "run", "--task", "42", "--expect", &second, "--", "touch", "ran",
    ];
    one.try_json(args).ok();
    assert_eq!(
        (one.text("work").as_str(), one.exists("ran")),
        ("2\n", true)
    );
}

// What a replica said last was once taken for the truth.
#[test]
fn an_answer_that_lags_is_asked_for_again_before_anything_is_said_to_be_missing() {
    let one = machine();
    git::text(
        &one.home(),
        &remote(&one),
        ["config", "http.receivepack", "true"],
    );
    let own = one.base().join("http");
    let options = HttpOptions::default();
    let Some(server) = HttpServer::start(&own, one.base(), options) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/remote.git", server.port());
    one.git(["remote", "set-url", "origin", &url]);
    one.write("work", "1\n");
    let first = saved(&one);
    // A replica has the first checkpoint, and not yet the second.
    let replicas = own.join("replicas");
    fs::create_dir_all(&replicas).unwrap();
    Call::new("/bin/cp", "/")
        .args([
            "-r".as_ref(),
            remote(&one).as_os_str(),
            replicas.as_os_str(),
        ])
        .run()
        .ok();
    one.write("work", "2\n");
    let second = saved(&one);
    let lags = |answers: &str| fs::write(own.join("lag"), answers).unwrap();
    one.git(["reset", "-q", "--hard"]);
    one.git(["clean", "-qfd"]);
    lags("x");
    let args = ["task", "resume", "42", "--expect", &second];
    assert_eq!(one.json(args)["commit"], second);
    assert_eq!(
        fs::read_to_string(own.join("lag")).unwrap(),
        "",
        "it lagged once"
    );

    // It is asked twice, and no oftener: what it says is missing is not taken for a new beginning.
    lags("xxxxxxxx");
    one.git(["switch", "-q", "main"]);
    one.git(["branch", "-q", "-D", BRANCH]);
    let message = one.untouched(|| resume(&one).exits(1).error("NotFound"));
    assert!(message.contains(&second), "{message}");
    assert_eq!(fs::read_to_string(own.join("lag")).unwrap().len(), 6);
    let other = another(&one, &[]);
    lags("xxxxxxxx");
    other.git(["remote", "set-url", "origin", &url]);
    let args = ["task", "resume", "42", "--expect", &second];
    let message = other.try_json(args).exits(1).error("Conflict");
    assert!(
        message.contains(&first) && message.contains(&second),
        "{message}"
    );
    lags("");
    assert_eq!(other.json(args)["commit"], second);
}
