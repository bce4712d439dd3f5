//! Files of steps, from the command line: what is done once, and what is refused before anything is
//! done.
//!
//! What was begun is told by a file outside of the workspace, which every command writes to and no
//! restore takes back.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use serde_json::Value;
use stillframe_tests::choice::one_of_each;
use stillframe_tests::torture::call_class::CallClass;
use stillframe_tests::torture::fault::Fault;
use stillframe_tests::torture::tracer::{Injection, Tracer};
use stillframe_tests::{Call, TestWorkspace};

use crate::torture::tracer;

/// A repository whose user has a name.
fn place() -> TestWorkspace {
    let mut ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    fs::create_dir_all(ws.outside()).unwrap();
    ws.set_env("OUTSIDE", ws.outside());
    ws
}

/// A file of these steps, each a name, a command and what else it has.
fn plan(ws: &TestWorkspace, steps: &[(&str, &str, &str)]) -> String {
    let text: String = steps
        .iter()
        .map(|(name, command, more)| {
            format!(
                "[[step]]\nname = '{name}'\n{more}\ncommand = '''\necho {name} >> \"$OUTSIDE/log\"\n{command}\n'''\n"
            )
        })
        .collect();
    let file = ws.outside().join("steps.toml");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// What was begun, in order.
fn log(ws: &TestWorkspace) -> Vec<String> {
    let log = fs::read_to_string(ws.outside().join("log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// The subjects of the commits, the latest first.
fn subjects(ws: &TestWorkspace) -> Vec<String> {
    let log = ws.git(["log", "--format=%s"]);
    log.lines().map(str::to_owned).collect()
}

/// The names of the run's steps with where they stand.
fn steps(run: &Value) -> Vec<(String, String)> {
    let phases = run["phases"].as_array().unwrap().iter();
    let steps = phases.flat_map(|phase| phase["steps"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    steps
        .map(|step| (text(&step["name"]), text(&step["status"])))
        .collect()
}

#[test]
fn a_commit_that_is_refused_is_tried_again_without_its_command() {
    for trouble in ["lock", "merge"] {
        let ws = place();
        let file = plan(
            &ws,
            &[
                ("build", "echo new > new", "commit = 'New'"),
                ("after", "", ""),
            ],
        );
        match trouble {
            "lock" => ws.write(".git/index.lock", ""),
            _ => ws.write(".git/MERGE_HEAD", ws.git(["rev-parse", "HEAD"])),
        }
        let args = ["--json", "run", "--steps", &file, "--run-id", "r"];
        let refused = ws.call(args).run().exits(125);
        assert_eq!(refused.json()["status"], "interrupted", "{refused}");
        if trouble == "merge" {
            // A lock is waited for.
            ws.call(["resume", "r"]).run().exits(125);
        }
        assert_eq!(log(&ws), ["build"], "its result is on record");
        let done = |name: &str, status: &str| (name.to_owned(), status.to_owned());
        assert_eq!(
            steps(&ws.show("r")),
            [
                done("build", "completed"),
                done("build (commit)", "interrupted")
            ]
        );
        assert_eq!(ws.text("new"), "new\n", "nothing was taken back");
        match trouble {
            "lock" => ws.remove(".git/index.lock"),
            _ => ws.remove(".git/MERGE_HEAD"),
        }
        let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
        let head = ws.git(["rev-parse", "HEAD"]);
        let line = format!("commit {} on main, 1 file", head.trim());
        assert!(said.contains("[1/2] steps/build (commit) "), "{said}");
        assert!(said.contains(&line), "{said}");
        assert_eq!(log(&ws), ["build", "after"], "{trouble}");
        assert_eq!(subjects(&ws)[0], "New");
        assert_eq!(subjects(&ws).len(), 2);
        assert_eq!(ws.git(["status", "--porcelain"]), "");
        let shown = ws.show("r");
        let commit = &shown["phases"][0]["steps"][1];
        assert_eq!(commit["commit_created"], head.trim());
        assert_eq!(commit["result"]["data"]["commit"], head.trim());
    }
}

/// Kills a call at its `nth` rename, and says where; `None`: it has come to its end before, with
/// this exit code.
fn killed_at_rename(tracer: &Tracer, call: &Call, nth: usize, code: i32) -> Option<String> {
    let injection = Injection {
        class: CallClass::Rename,
        nth,
        fault: Fault::Kill,
    };
    let killed = tracer.run(call, Some(&injection)).unwrap();
    if killed.hit.is_none() {
        assert_eq!(killed.output.code, code, "{:?}", killed.output);
    }
    let at = killed.hit?;
    Some(format!("killed at rename {nth}, {}", at.path))
}

#[test]
fn a_step_that_is_killed_around_its_commit_commits_once_whatever_is_edited_since() {
    let Some(tracer) = tracer() else { return };
    let mut endings = std::collections::BTreeSet::new();
    for nth in one_of_each("renames", 3) {
        let ws = place();
        let more = "commit = 'New'\nrerun = 'in_place'";
        let file = plan(&ws, &[("build", "echo new > new", more)]);
        // What makes a store is no part of the story.
        ws.snapshot();
        let args = ["run", "--steps", &file, "--run-id", "r"];
        let Some(when) = killed_at_rename(&tracer, &ws.call(args), nth, 0) else {
            break;
        };
        // Whoever comes next settles it; then somebody works here.
        ws.stillframe(["list"]).ok();
        let was_made = subjects(&ws).len() == 2;
        ws.write("mine", "mine\n");
        let shown = ws.call(["--json", "show", "r"]).run();
        let is_done = shown.code == 0
            && steps(&shown.json()).first().map(|s| s.1.as_str()) == Some("completed");
        let begun = log(&ws).len();
        endings.insert((is_done, was_made));
        ws.stillframe(args).ok();
        let again = usize::from(!is_done);
        assert_eq!(
            log(&ws).len(),
            begun + again,
            "{when}: what is done is done"
        );
        assert_eq!(subjects(&ws).len(), 2, "{when}: {:?}", subjects(&ws));
        assert_eq!(subjects(&ws)[0], "New", "{when}");
        let status = ws.git(["status", "--porcelain"]);
        let left = if was_made { "?? mine" } else { "" };
        assert_eq!(status.trim_end(), left, "{when}");
        let run = ws.show("r");
        assert_eq!(run["commits"].as_array().unwrap().len(), 1, "{run}");
        ws.git(["fsck", "--strict"]);
    }
    // Between the two there are few calls.
    for seen in [(false, false), (true, true)] {
        assert!(endings.contains(&seen), "{seen:?} is in {endings:?}");
    }
}

#[test]
fn a_step_that_was_cut_off_cannot_be_left_out_of_the_file_or_passed_by() {
    let ws = place();
    let first = ("first", "", "");
    let half = (
        "half",
        "echo half > made; test -e \"$OUTSIDE/go\" || { kill -9 $PPID; exit 1; }; echo whole > made",
        "",
    );
    let last = ("last", "echo last > last", "commit = 'Last'");
    let file = plan(&ws, &[first, half, last]);
    let args = ["--json", "run", "--steps", &file, "--run-id", "r"];
    assert_eq!(ws.call(args).run().code, 137);
    let moved = ("half", half.1, "phase = 'other'");
    let renamed = ("other", half.1, "");
    let new = ("new", "echo new > new", "commit = 'New'");
    let back = "put it back";
    for (other, way) in [
        (vec![first, last], back),
        (vec![first, moved, last], back),
        (vec![first, renamed, last], back),
        (vec![new, first, half, last], "put it behind"),
        (vec![first, last, half], "put it behind"),
    ] {
        plan(&ws, &other);
        let refused = ws.call(args).run().exits(125);
        let document = refused.json();
        assert_eq!(document["status"], "interrupted");
        assert_eq!(document["error"]["kind"], "PlanChanged", "{document}");
        let message = document["error"]["message"].as_str().unwrap();
        for part in ["steps/half", way, "stillframe cancel r"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(
            !refused.stderr_text().contains("this was done"),
            "{refused}"
        );
        assert_eq!(log(&ws), ["first", "half"], "nothing was run");
        assert_eq!(ws.text("made"), "half\n", "nothing was touched");
    }
    // The steps that can go on are still those on record.
    fs::write(ws.outside().join("go"), "").unwrap();
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(log(&ws), ["first", "half", "half", "last"]);
    assert_eq!(ws.text("made"), "whole\n");
    assert_eq!(subjects(&ws)[0], "Last");
}

#[test]
fn the_commit_of_a_command_that_is_done_cannot_be_left_out_of_the_file_or_passed_by() {
    let ws = place();
    let (build, last) = (
        ("build", "echo new > new", "commit = 'New'"),
        ("last", "", ""),
    );
    let file = plan(&ws, &[build, last]);
    ws.snapshot();
    // As if it were killed between the end of the command and the beginning of the commit.
    let database = Connection::open(ws.state().join("stillframe.db")).unwrap();
    let no_commit = "CREATE TRIGGER no_commit BEFORE INSERT ON steps WHEN NEW.name LIKE '%(commit)'
                     BEGIN SELECT RAISE(ABORT, 'no further'); END";
    database.execute_batch(no_commit).unwrap();
    let args = ["--json", "run", "--steps", &file, "--run-id", "r"];
    ws.call(args).run().exits(125);
    database.execute_batch("DROP TRIGGER no_commit").unwrap();
    drop(database);
    let done = [("build".to_owned(), "completed".to_owned())];
    assert_eq!(steps(&ws.show("r")), done, "its commit was not begun");
    let without = ("build", build.1, "");
    let moved = ("build", build.1, "phase = 'other'\ncommit = 'New'");
    let new = ("new", "echo new > newer", "");
    for (other, way) in [
        (vec![last], "put it back"),
        (vec![without, last], "put it back"),
        (vec![moved, last], "put it back"),
        (vec![new, build, last], "put it behind"),
    ] {
        plan(&ws, &other);
        let refused = ws.call(args).run().exits(125);
        let error = &refused.json()["error"];
        assert_eq!(error["kind"], "PlanChanged", "{refused}");
        let message = error["message"].as_str().unwrap();
        for part in ["steps/build (commit)", way, "stillframe cancel r"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(log(&ws), ["build"], "nothing was run");
        assert_eq!(subjects(&ws).len(), 1, "nothing was committed");
    }
    plan(&ws, &[build, new, last]);
    ws.stillframe(args).ok();
    assert_eq!(log(&ws), ["build", "new", "last"]);
    assert_eq!(subjects(&ws)[0], "New");
    assert_eq!(ws.git(["show", "--format=", "--name-only"]), "new");
}

#[test]
fn a_step_that_is_done_can_be_left_out_and_is_said_to_be_done() {
    let ws = place();
    let half = (
        "half",
        "test -e \"$OUTSIDE/go\" || { kill -9 $PPID; exit 1; }",
        "",
    );
    let file = run_until_cut_off(&ws, &[("first", "", ""), half]);
    let args = ["run", "--steps", &file, "--run-id", "r"];
    plan(&ws, &[half]);
    fs::write(ws.outside().join("go"), "").unwrap();
    let said = ws.stillframe(args).ok().stderr_text();
    let line = "steps/first was done, and is not in the plan";
    assert!(said.contains(line), "{said}");
    assert!(!said.contains("steps/half was done"), "{said}");
}

#[test]
fn a_file_that_commits_is_not_begun_where_there_is_no_repository() {
    let mut ws = TestWorkspace::plain();
    fs::create_dir_all(ws.outside()).unwrap();
    ws.set_env("OUTSIDE", ws.outside());
    let file = plan(&ws, &[("first", "", ""), ("save", "", "commit = 'Save'")]);
    let args = ["--json", "run", "--steps", &file, "--run-id", "r"];
    for more in [&[][..], &["--strategy", "hash"]] {
        if !more.is_empty() {
            ws.git(["init", "--quiet", "--initial-branch=main"]);
        }
        let all: Vec<&str> = args.iter().chain(more).copied().collect();
        let document = ws.call(all).run().exits(125).json();
        assert_eq!(document["error"]["kind"], "InvalidOptions", "{document}");
        let message = document["error"]["message"].as_str().unwrap();
        assert!(message.contains("step \"save\" commits"), "{message}");
        assert!(log(&ws).is_empty(), "nothing was run");
    }
    // The id was not used for that.
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    ws.write("new", "new\n");
    ws.stillframe(args).ok();
    assert_eq!(subjects(&ws), ["Save"]);
}

#[test]
fn a_commit_that_nobody_is_named_for_is_made_once_somebody_is() {
    let ws = place();
    ws.git(["config", "--unset", "user.name"]);
    let file = plan(&ws, &[("build", "echo new > new", "commit = 'New'")]);
    let refused = ws
        .call(["--json", "run", "--steps", &file, "--run-id", "r"])
        .run()
        .exits(125);
    let document = refused.json();
    assert_eq!(document["status"], "interrupted", "{document}");
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.contains("user.name"), "{message}");
    ws.git(["config", "user.name", "Somebody"]);
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(log(&ws), ["build"]);
    assert_eq!(subjects(&ws)[0], "New");
}

#[test]
fn a_run_that_is_cancelled_while_it_asks_exits_as_one_that_is_cancelled_at_work() {
    for (name, step) in [
        ("works", "command = 'sleep 60'"),
        ("asks", "ask = 'go on?'"),
    ] {
        let ws = place();
        let file = ws.outside().join("steps.toml");
        fs::write(&file, format!("[[step]]\nname = '{name}'\n{step}\n")).unwrap();
        let file = file.display().to_string();
        let mut running = ws.call(["run", "--steps", &file, "--run-id", "r"]).start();
        running.until("it is at work", |_| {
            let shown = ws.call(["--json", "show", "r"]).run();
            shown.code == 0 && {
                let run = shown.json();
                let asked = run["questions"]
                    .as_array()
                    .is_some_and(|all| !all.is_empty());
                run["phases"][0]["steps"][0]["status"] == "running" && (asked || name == "works")
            }
        });
        ws.stillframe(["cancel", "r"]).ok();
        running.wait().exits(143);
        ws.stillframe(["resume", "r"]).exits(143);
        assert_eq!(ws.show("r")["status"], "cancelled");
    }
}

#[test]
fn of_many_that_begin_a_new_run_at_once_one_does_and_the_others_hear_that_it_is_under_way() {
    for round in 0..5 {
        let ws = place();
        ws.snapshot();
        let outputs = std::thread::scope(|scope| {
            let starters = [(); 8].map(|()| {
                let ws = &ws;
                let args = ["--json", "run", "--run-id", "same", "--", "sleep", "1"];
                scope.spawn(move || ws.call(args).run())
            });
            starters.map(|starter| starter.join().unwrap())
        });
        let began = |output: &&stillframe_tests::Output| {
            output.code == 0 && output.json()["is_stored"] != true
        };
        assert_eq!(outputs.iter().filter(began).count(), 1, "round {round}");
        for output in outputs.iter().filter(|output| output.code != 0) {
            let error = &output.json()["error"];
            assert_eq!(error["kind"], "Busy", "{output}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("run same"), "{message}");
        }
    }
}

#[test]
fn a_commit_of_somebodys_that_goes_back_with_a_step_is_named_with_its_branch() {
    let ws = place();
    let half = (
        "half",
        "echo half > half; test -e \"$OUTSIDE/go\" || { kill -9 $PPID; exit 1; }",
        "",
    );
    run_until_cut_off(&ws, &[half]);
    // Before any other command has looked, nobody can tell whose it is.
    ws.write("mine", "mine\n");
    ws.commit("mine");
    let mine = ws.git(["rev-parse", "HEAD"]);
    fs::write(ws.outside().join("go"), "").unwrap();
    let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
    assert_ne!(ws.git(["rev-parse", "HEAD"]), mine, "it went back");
    let line = said
        .lines()
        .find(|line| line.contains("branch main was moved back"));
    let tag = line.and_then(|line| line.rsplit_once(' ')).unwrap().1;
    assert_eq!(
        ws.git(["rev-parse", &format!("{tag}^{{commit}}")]),
        mine,
        "{said}"
    );
}

#[test]
fn a_run_that_rests_says_once_how_to_answer_it() {
    for wait in ["0s", "1s"] {
        let ws = place();
        let file = ws.outside().join("steps.toml");
        fs::write(&file, "[[step]]\nname = 'asks'\nask = 'go on?'\n").unwrap();
        let file = file.display().to_string();
        let args = ["run", "--steps", &file, "--run-id", "r", "--wait", wait];
        for args in [&args[..], &["resume", "r"]] {
            let said = ws.stillframe(args).exits(75).stderr_text();
            let count = said.matches(" ANSWER\" answers").count();
            assert_eq!(count, 1, "{args:?}: {said}");
        }
    }
}

#[test]
fn what_is_suggested_in_the_workspace_of_a_run_does_not_name_it() {
    let ws = place();
    let fails = (
        "fails",
        "test -e \"$OUTSIDE/go\" || { kill -9 $PPID; exit 1; }; echo new > new",
        "",
    );
    run_until_cut_off(&ws, &[fails]);
    let message = ws.stillframe(["undo", "r"]).exits(1).stderr_text();
    for part in [
        "is interrupted",
        "stillframe cancel r",
        "stillframe resume r",
    ] {
        assert!(message.contains(part), "{message}");
    }
    fs::write(ws.outside().join("go"), "").unwrap();
    let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
    assert!(
        said.contains("\"stillframe undo r\" takes it back"),
        "{said}"
    );
}

#[test]
fn a_long_command_is_told_in_part() {
    let ws = place();
    let long = format!(": {}", "x".repeat(50_000));
    let file = plan(&ws, &[("long", &long, "")]);
    let said = ws.stillframe(["run", "--steps", &file]).ok().stderr_text();
    assert!(said.contains("[1/1] steps/long: echo long"), "{said}");
    assert!(
        said.lines().all(|line| line.chars().count() < 300),
        "{} bytes",
        said.len()
    );
}

/// Runs a file of these steps, of which one is cut off, as run `r`; answers with the file.
fn run_until_cut_off(ws: &TestWorkspace, steps: &[(&str, &str, &str)]) -> String {
    let file = plan(ws, steps);
    let args = ["run", "--steps", &file, "--run-id", "r"];
    assert_eq!(ws.call(args).run().code, 137);
    file
}

/// A step that does `work` and is cut off, unless somebody lets it go on.
fn cut_off(work: &str) -> String {
    format!("{work}\ntest -e \"$OUTSIDE/go\" || {{ kill -9 $PPID; exit 1; }}")
}

/// Lets steps go on from here.
fn let_go_on(ws: &TestWorkspace) {
    fs::write(ws.outside().join("go"), "").unwrap();
}

#[test]
fn what_goes_back_with_a_step_and_what_does_not_is_told() {
    let ws = place();
    ws.write("edited", "one\n");
    ws.write("its", "one\n");
    ws.commit("two files");
    let half = cut_off("echo half > edited; echo half > its; git switch --quiet -c other");
    run_until_cut_off(&ws, &[("half", &half, "")]);
    // What the step left is known from here on.
    ws.stillframe(["list"]).ok();
    ws.write("edited", "mine\n");
    let_go_on(&ws);
    let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
    for line in [
        "steps/half (attempt 2): 1 path put back to where the step began",
        "steps/half (attempt 2): left as it is, because it was edited since: edited\n",
        "steps/half (attempt 2): HEAD names main again; it was other\n",
    ] {
        assert!(said.contains(line), "{line:?} is in {said}");
    }
}

#[test]
fn a_step_that_goes_on_with_what_is_there_though_nobody_asked_for_that_says_why() {
    for rerun in ["", "rerun = 'in_place'"] {
        let ws = place();
        let half = cut_off("echo half >> half");
        let file = plan(&ws, &[("half", &half, rerun)]);
        let args = ["run", "--steps", &file, "--run-id", "r"];
        assert_eq!(ws.call(args).run().code, 137);
        ws.stillframe(["list"]).ok();
        ws.write("mine", "mine\n");
        ws.commit("mine");
        let_go_on(&ws);
        let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
        assert_eq!(ws.text("half"), "half\nhalf\n", "{said}");
        let line =
            "steps/half (attempt 2): it goes on with what is there: HEAD or its branch was moved";
        assert_eq!(said.contains(line), rerun.is_empty(), "{said}");
        let events = ws.stillframe(["--json", "events"]).ok();
        let reason = events
            .stdout_text()
            .contains("\"in_place\":\"HEAD or its branch");
        assert_eq!(reason, rerun.is_empty(), "{events}");
    }
}

#[test]
fn a_branch_that_was_switched_while_a_run_rested_is_told_and_commits_say_where_they_go() {
    let ws = place();
    let half = cut_off("true");
    let steps = [
        ("first", "echo 1 > first", "commit = 'First'"),
        ("half", &half, ""),
        ("last", "echo 2 > last", "commit = 'Last'"),
    ];
    let file = plan(&ws, &steps);
    let args = ["run", "--steps", &file, "--run-id", "r"];
    let said = ws.call(args).run();
    assert_eq!(said.code, 137);
    let head = ws.git(["rev-parse", "HEAD"]);
    let line = format!("commit {} on main, 1 file", head.trim());
    assert!(said.stderr_text().contains(&line), "{said}");
    ws.stillframe(["list"]).ok();
    ws.git(["switch", "--quiet", "-c", "other"]);
    let_go_on(&ws);
    let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
    let told = "HEAD names other now; it was main when what came before this was done";
    assert_eq!(said.matches(told).count(), 1, "{said}");
    let head = ws.git(["rev-parse", "other"]);
    let line = format!("commit {} on other, 1 file", head.trim());
    assert!(said.contains(&line), "{said}");
    assert_eq!(ws.git(["log", "-1", "--format=%s", "main"]).trim(), "First");
}

#[test]
fn a_run_that_is_cancelled_while_it_waits_to_try_again_exits_as_cancelled() {
    let ws = place();
    let more = "retries = 3\nretry_delay = '1h'";
    let file = plan(&ws, &[("fails", "exit 7", more)]);
    let mut running = ws.call(["run", "--steps", &file, "--run-id", "r"]).start();
    running.until("it waits", |_| {
        let shown = ws.call(["--json", "show", "r"]).run();
        shown.code == 0 && shown.json()["phases"][0]["steps"][0]["status"] == "pending"
    });
    ws.stillframe(["cancel", "r"]).ok();
    running.wait().exits(143);
    let run = ws.show("r");
    assert_eq!(run["status"], "cancelled");
    assert_eq!(run["phases"][0]["steps"][0]["status"], "cancelled");
    assert_eq!(log(&ws), ["fails"]);
    ws.stillframe(["resume", "r"]).exits(143);
}

#[test]
fn a_step_that_is_given_up_fails_its_run_as_work_does() {
    let ws = place();
    let half = cut_off("echo half > half");
    let file = plan(&ws, &[("half", &half, "rerun = 'ask'")]);
    let args = ["run", "--steps", &file, "--run-id", "r", "--wait", "0s"];
    assert_eq!(ws.call(args).run().code, 137);
    ws.call(["resume", "r", "--wait", "0s"]).run().exits(75);
    let open = ws.stillframe(["--json", "answer"]).ok().json();
    let id = open[0]["question_id"].as_str().unwrap();
    let refused = ws.stillframe(["answer", id, ""]).exits(1).stderr_text();
    assert!(refused.contains("an answer needs a text"), "{refused}");
    ws.stillframe(["answer", id, "give_up"]).ok();
    let said = ws.stillframe(["resume", "r"]).exits(1).stderr_text();
    assert!(said.contains("it was cut off, and given up"), "{said}");
    assert_eq!(ws.show("r")["status"], "failed");
}

#[test]
fn the_latest_is_not_undone_past_a_run_that_rests() {
    let ws = place();
    let early = [
        "run",
        "--run-id",
        "early",
        "--",
        "sh",
        "-c",
        "echo 1 > early",
    ];
    ws.stillframe(early).ok();
    let file = plan(&ws, &[("half", &cut_off("echo half > half"), "")]);
    let args = ["run", "--steps", &file, "--run-id", "late"];
    let refused = |why: &str| {
        let refused = ws.stillframe(["undo"]).exits(1).stderr_text();
        assert!(
            refused.contains("run late is interrupted"),
            "{why}: {refused}"
        );
        assert_eq!(ws.text("early"), "1\n", "{why}: nothing was touched");
    };
    assert_eq!(ws.call(args).run().code, 137);
    refused("it came last");
    // One that never began is later, and did nothing.
    fs::rename(ws.path(".git/HEAD"), ws.path(".git/GONE")).unwrap();
    ws.call(["run", "--", "true"]).run().exits(125);
    fs::rename(ws.path(".git/GONE"), ws.path(".git/HEAD")).unwrap();
    refused("what came since did not begin");
    let snapshot = ws.snapshot();
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    ws.stillframe(["undo"]).ok();
    assert_eq!(ws.text("README"), "edited\n", "that came last");
    // It goes on, and is cut off again.
    assert_eq!(ws.call(args).run().code, 137);
    refused("it came last again");
    ws.stillframe(["undo", "early"]).ok();
    assert!(!ws.exists("early"));
    assert_eq!(ws.text("half"), "half\n");
}

#[test]
fn a_run_that_nobody_has_named_and_that_could_not_begin_is_left_by_none() {
    let ws = place();
    let file = plan(&ws, &[("first", "", "")]);
    fs::rename(ws.path(".git/HEAD"), ws.path(".git/GONE")).unwrap();
    ws.call(["run", "--steps", &file]).run().exits(125);
    fs::rename(ws.path(".git/GONE"), ws.path(".git/HEAD")).unwrap();
    assert_eq!(ws.json(["runs", "--incomplete"]), serde_json::json!([]));
    assert!(log(&ws).is_empty());
}

/// The kernel's word of each time that somebody opens a file.
struct Looks(OwnedFd);

impl Looks {
    fn at(path: &Path) -> Self {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&inotify, path, inotify::WatchFlags::OPEN).unwrap();
        Self(inotify)
    }

    /// Waits until it was opened so often: by whoever looks again and again whether it is free.
    fn wait(&self, times: usize) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut told = inotify::Reader::new(&self.0, &mut buffer);
        for _ in 0..times {
            if told.is_buffer_empty() {
                let timeout = Timespec::try_from(Duration::from_secs(60)).unwrap();
                let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
                assert_eq!(poll(&mut ready, Some(&timeout)), Ok(1), "nobody looks");
            }
            told.next().unwrap();
        }
    }
}

// "run r is under way, with a lease of engine …", of an engine that was dead
#[test]
fn a_run_whose_dead_process_somebody_looks_after_is_waited_for() {
    for is_looked_after in [true, false] {
        let ws = place();
        let file = plan(&ws, &[("half", &cut_off("true"), "")]);
        let args = ["run", "--steps", &file, "--run-id", "r"];
        assert_eq!(ws.call(args).run().code, 137);
        let_go_on(&ws);
        let engines = fs::read_dir(ws.state().join("engines")).unwrap();
        let paths = engines.map(|entry| entry.unwrap().path());
        let lock = paths.filter(|path| path.extension().is_some_and(|e| e == "lock"));
        let [lock] = lock.collect::<Vec<_>>().try_into().unwrap();
        // As whoever has found it dead, or as a process that is alive.
        let mut held = fs::OpenOptions::new().append(true).open(&lock).unwrap();
        held.lock().unwrap();
        if is_looked_after {
            std::io::Write::write_all(&mut held, &[0]).unwrap();
        }
        let looks = Looks::at(&lock);
        let resuming = ws.call(["--json", "resume", "r"]).start();
        if !is_looked_after {
            let refused = resuming.wait().exits(125);
            refused.error("Busy");
            assert_eq!(log(&ws), ["half"]);
            continue;
        }
        looks.wait(10);
        assert_eq!(log(&ws), ["half"], "it waits");
        drop(held);
        assert_eq!(resuming.wait().ok().json()["status"], "completed");
        assert_eq!(log(&ws), ["half", "half"]);
    }
}

#[test]
fn a_run_that_is_killed_after_its_step_failed_ends_as_it_would_have() {
    let Some(tracer) = tracer() else { return };
    let mut endings = std::collections::BTreeSet::new();
    for nth in 1.. {
        let ws = place();
        let file = plan(&ws, &[("fails", "echo new > new; exit 7", "")]);
        ws.snapshot();
        let args = ["run", "--steps", &file, "--run-id", "r"];
        let Some(when) = killed_at_rename(&tracer, &ws.call(args), nth, 7) else {
            break;
        };
        let shown = ws.call(["--json", "show", "r"]).run();
        let is_failed =
            shown.code == 0 && steps(&shown.json()).first().map(|s| s.1.as_str()) == Some("failed");
        endings.insert(is_failed);
        let begun = log(&ws).len();
        ws.call(args).run().exits(7);
        assert_eq!(log(&ws).len(), begun + usize::from(!is_failed), "{when}");
        assert_eq!(ws.show("r")["status"], "failed", "{when}");
    }
    assert_eq!(endings.len(), 2, "before and after: {endings:?}");
}

// A clone that has not all of the history
#[test]
fn a_commit_is_on_record_though_what_it_replaced_cannot_be_read() {
    let ws = place();
    ws.write("old", "old\n");
    ws.commit("old");
    let blob = ws.git(["rev-parse", "HEAD:old"]);
    let (head, tail) = blob.trim().split_at(2);
    let work = format!("rm -f .git/objects/{head}/{tail}; echo new > old");
    let file = plan(&ws, &[("edit", &work, "commit = 'New'")]);
    let said = ws
        .stillframe(["run", "--steps", &file, "--run-id", "r"])
        .ok();
    assert!(
        !said.stderr_text().contains("nothing was committed"),
        "{said}"
    );
    assert_eq!(ws.git(["log", "-1", "--format=%s"]).trim(), "New");
    let run = ws.show("r");
    let commits = run["commits"].as_array().unwrap();
    assert_eq!(commits.len(), 1, "{run}");
    assert_eq!(commits[0]["commit"], ws.git(["rev-parse", "HEAD"]).trim());
}

#[test]
fn an_id_whose_run_could_not_begin_can_be_started_again() {
    for how in ["steps", "command"] {
        let ws = place();
        let file = plan(&ws, &[("first", "", "")]);
        let args = match how {
            "steps" => vec!["run", "--run-id", "r", "--steps", &file],
            _ => vec![
                "run",
                "--run-id",
                "r",
                "--",
                "sh",
                "-c",
                "echo first >> \"$OUTSIDE/log\"",
            ],
        };
        // Nobody can say what is in it.
        fs::rename(ws.path(".git/HEAD"), ws.path(".git/GONE")).unwrap();
        ws.call(args.clone()).run().exits(125);
        assert!(log(&ws).is_empty(), "{how}");
        fs::rename(ws.path(".git/GONE"), ws.path(".git/HEAD")).unwrap();
        let blocker = ws.outside().join("blocks");
        let script = format!("touch '{}'; sleep 60", blocker.display());
        let mut other = ws.call(["run", "--", "sh", "-c", &script]).start();
        other.until("it has the workspace", |_| blocker.exists());
        let busy = ws.call(["--json"]).args(args.clone()).run().exits(125);
        let error = busy.error("Busy");
        assert!(
            error.to_string().contains("run r is interrupted"),
            "{error}"
        );
        assert!(log(&ws).is_empty(), "{how}");
        let listed = ws.json(["runs", "--incomplete"]);
        assert_eq!(listed[0]["run_id"], "r", "{listed}");
        other.signal(rustix::process::Signal::TERM);
        other.wait();
        ws.call(args).run().exits(0);
        assert_eq!(log(&ws), ["first"], "{how}");
        assert_eq!(ws.show("r")["status"], "completed", "{how}");
    }
}

#[test]
fn a_run_that_is_stopped_as_it_begins_goes_on_later() {
    let mut stopped = 0;
    // A busy machine takes longer to begin.
    for milliseconds in (0..4_000).step_by(8) {
        if milliseconds >= 160 && stopped > 0 {
            break;
        }
        let ws = place();
        let file = plan(&ws, &[("first", "test -e \"$OUTSIDE/go\" || sleep 20", "")]);
        let args = ["run", "--run-id", "r", "--steps", &file];
        let running = ws.call(args).start();
        std::thread::sleep(Duration::from_millis(milliseconds));
        running.signal(rustix::process::Signal::TERM);
        let ended = running.wait();
        // Before it listens it is the system that ends it.
        if ended.code == 143 && ended.stderr_text().contains("stopping") {
            stopped += 1;
        }
        let run = ws.call(["--json", "show", "r"]).run();
        if run.code == 0 {
            assert_eq!(
                run.json()["status"],
                "interrupted",
                "{milliseconds}: {ended}"
            );
        }
        let_go_on(&ws);
        ws.call(args).run().exits(0);
    }
    assert!(stopped > 0, "none was stopped by its own hand");
}

#[test]
fn a_run_that_is_stopped_while_it_waits_for_its_workspace_exits_by_the_signal() {
    let ws = place();
    run_until_cut_off(&ws, &[("half", &cut_off("true"), "")]);
    ws.stillframe(["list"]).ok();
    let blocker = ws.outside().join("blocks");
    let script = format!("touch '{}'; sleep 60", blocker.display());
    let mut other = ws.call(["run", "--", "sh", "-c", &script]).start();
    other.until("it has the workspace", |_| blocker.exists());
    let locks = fs::read_dir(ws.state().join("locks")).unwrap();
    let locks = locks.map(|entry| entry.unwrap().path());
    let mut of_runs = locks.filter(|path| path.extension().is_some_and(|e| e == "run"));
    let looks = Looks::at(&of_runs.next().unwrap());
    let waiting = ws.call(["resume", "r"]).start();
    looks.wait(3);
    waiting.signal(rustix::process::Signal::INT);
    let ended = waiting.wait().exits(130);
    assert!(
        ended.stderr_text().contains("nothing was touched"),
        "{ended}"
    );
    assert_eq!(ws.show("r")["status"], "interrupted");
    other.signal(rustix::process::Signal::TERM);
    other.wait();
}

#[test]
fn a_step_that_failed_is_named_by_its_run_and_says_when_it_is_tried_again() {
    let ws = place();
    let more = "retries = 1\nretry_delay = '10ms'";
    let file = plan(&ws, &[("fails", "exit 7", more)]);
    let args = ["run", "--steps", &file, "--run-id", "r"];
    let said = ws.call(args).run().exits(7).stderr_text();
    assert!(said.contains("it is tried again in 10 ms"), "{said}");
    let named = "step steps/fails: the command exited with code 7";
    assert!(said.contains(&format!("run r failed: {named}")), "{said}");
    let run = ws.show("r");
    assert_eq!(run["error"]["message"], named);
    assert_eq!(run["phases"][0]["steps"][0]["error"]["exit_code"], 7);
}

// The count began anew, so that a step which failed twice was tried three times more
#[test]
fn retries_are_counted_over_resumes() {
    let ws = place();
    let more = "retries = 2\nretry_delay = '10ms'";
    let cut = "test $(wc -l < \"$OUTSIDE/log\") = 2 && { kill -9 $PPID; exit 1; }\nexit 7";
    let file = plan(&ws, &[("fails", cut, more)]);
    let args = ["run", "--steps", &file, "--run-id", "r"];
    assert_eq!(ws.call(args).run().code, 137);
    assert_eq!(log(&ws).len(), 2, "the second attempt was cut off");
    let said = ws.stillframe(["resume", "r"]).exits(7).stderr_text();
    // One had failed before, one that was cut off does not count, and two fail now.
    assert_eq!(log(&ws).len(), 4, "{said}");
    let again = said.matches("it is tried again in").count();
    assert_eq!(again, 1, "{said}");
    assert!(said.contains("it is tried again in 20 ms"), "{said}");
    assert_eq!(ws.show("r")["phases"][0]["steps"][0]["attempt"], 4);
}

// "run r is cancelled", of a run that had just committed
#[test]
fn a_run_that_is_cancelled_says_what_it_committed() {
    let ws = place();
    let steps = [
        ("first", "echo 1 > first", "commit = 'First'"),
        ("half", &cut_off("true"), ""),
    ];
    run_until_cut_off(&ws, &steps);
    let said = ws.stillframe(["cancel", "r"]).ok().stderr_text();
    let head = ws.git(["rev-parse", "HEAD"]);
    let line = format!("it committed {}\n", head.trim());
    assert!(said.contains(&line), "{said}");
}

// "no file changed", and no way back was told
#[test]
fn a_run_that_only_committed_says_where_head_went_and_can_be_taken_back() {
    let ws = place();
    ws.write("mine", "mine\n");
    let before = ws.git(["rev-parse", "HEAD"]);
    let file = ws.outside().join("steps.toml");
    fs::write(&file, "[[step]]\nname = 'save'\ncommit = 'Save'\n").unwrap();
    let file = file.display().to_string();
    let said = ws.stillframe(["run", "--steps", &file, "--run-id", "r"]);
    let said = said.ok().stderr_text();
    let after = ws.git(["rev-parse", "HEAD"]);
    let line = format!(
        "HEAD went from main at {} to main at {}\n",
        &before[..12],
        &after[..12]
    );
    assert!(said.contains(&line), "{said}");
    assert!(
        said.contains("\"stillframe undo r\" takes it back"),
        "{said}"
    );
    ws.stillframe(["undo", "r"]).ok();
    assert_eq!(ws.git(["rev-parse", "HEAD"]), before);
    assert_eq!(ws.text("mine"), "mine\n");
}

#[test]
fn a_file_of_steps_that_is_not_there_is_named_alone() {
    let ws = place();
    let said = ws.stillframe(["run", "--steps", "gone.toml"]).exits(125);
    let said = said.stderr_text();
    assert!(said.contains("gone.toml cannot be read"), "{said}");
    assert!(said.trim_end().ends_with("nothing was run"), "{said}");
}

#[test]
fn an_index_that_somebody_staged_in_since_stays_and_that_is_told() {
    let ws = place();
    let half = cut_off("echo new > new; git add new");
    run_until_cut_off(&ws, &[("half", &half, "")]);
    ws.stillframe(["list"]).ok();
    ws.write("mine", "mine\n");
    ws.git(["add", "mine"]);
    let_go_on(&ws);
    let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
    let line = "steps/half (attempt 2): not everything of the repository went back: ";
    assert!(said.contains(line), "{said}");
    assert_eq!(ws.git(["diff", "--cached", "--name-only"]), "mine\nnew");
}

#[test]
fn a_step_that_cannot_go_back_as_it_is_told_to_says_what_there_is_to_do() {
    let ws = place();
    let half = cut_off("echo half >> half");
    let file = run_until_cut_off(&ws, &[("half", &half, "rerun = 'from_before'")]);
    let args = ["run", "--steps", &file, "--run-id", "r"];
    ws.stillframe(["list"]).ok();
    ws.write("mine", "mine\n");
    ws.commit("mine");
    let_go_on(&ws);
    let said = ws.stillframe(["resume", "r"]).exits(125).stderr_text();
    assert!(
        said.contains("\"in_place\" instead of \"from_before\""),
        "{said}"
    );
    assert!(said.contains("stillframe resume r"), "{said}");
    assert!(
        said.contains("stillframe run --steps FILE --run-id r"),
        "{said}"
    );
    plan(&ws, &[("half", &half, "rerun = 'in_place'")]);
    ws.stillframe(args).ok();
    assert_eq!(ws.text("half"), "half\nhalf\n");
}
