//! `--on-divergence`: others have gone on with the branch of a task meanwhile. git is the oracle.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use stillframe_tests::{Output, TestWorkspace, git};

use super::progress::counting_git;
use super::tasks::{KILLS, counted};

const BRANCH: &str = "stillframe/task/42";

const TEXT: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

fn remote(ws: &TestWorkspace) -> PathBuf {
    ws.base().join("remote.git")
}

/// Two machines that have the first checkpoint of a task, with `text` in it.
pub(super) fn machines() -> [TestWorkspace; 2] {
    let one = TestWorkspace::repository();
    git::text(
        &one.home(),
        one.base(),
        ["init", "-q", "--bare", "remote.git"],
    );
    let remote = remote(&one).to_str().unwrap().to_owned();
    one.git(["remote", "add", "origin", &remote]);
    one.git(["push", "-q", "origin", "main"]);
    one.write("text", TEXT);
    saved(&one, "pushed");
    let two = TestWorkspace::plain();
    two.git(["clone", "-q", &format!("file://{remote}"), "."]);
    resumed(&two);
    [one, two]
}

pub(super) fn save(ws: &TestWorkspace) -> Output {
    ws.try_json(["task", "checkpoint", "42", "--on-divergence", "merge"])
}

pub(super) fn saved(ws: &TestWorkspace, state: &str) -> Value {
    let document = save(ws).ok().json();
    assert_eq!(document["state"], state, "{document}");
    document
}

fn resumed(ws: &TestWorkspace) -> Value {
    ws.json(["task", "resume", "42"])
}

fn commit(document: &Value) -> &str {
    document["commit"].as_str().unwrap()
}

/// What git says, in the remote of the first machine.
fn there<const N: usize>(one: &TestWorkspace, args: [&str; N]) -> String {
    git::text(&one.home(), &remote(one), args)
}

fn tip(one: &TestWorkspace) -> String {
    there(one, ["rev-parse", BRANCH])
}

/// What the branch has in a file.
fn on_branch(one: &TestWorkspace, name: &str) -> String {
    let text = there(one, ["show", &format!("{BRANCH}:{name}")]);
    text + "\n"
}

fn names(one: &TestWorkspace) -> String {
    let names = there(one, ["ls-tree", "-r", "--name-only", BRANCH]);
    names.replace('\n', " ")
}

fn events(ws: &TestWorkspace) -> Vec<String> {
    let said = ws.stillframe(["--json", "events"]).ok().json_lines();
    let types = said.iter().map(|event| event["type"].as_str().unwrap());
    types.map(str::to_owned).collect()
}

#[test]
fn without_a_conflict_there_is_one_fetch_one_merge_and_one_push() {
    let [one, two] = machines();
    two.write("text", TEXT.replace('1', "one"));
    two.write("theirs", "of two\n");
    let theirs = saved(&two, "pushed");
    one.write("text", TEXT.replace('9', "nine"));
    one.write("ours", "of one\n");
    let head = one.git(["rev-parse", "HEAD"]);
    let (path, calls) = (counting_git(one.base()), one.base().join("calls"));
    let args = [
        "--json",
        "task",
        "checkpoint",
        "42",
        "--on-divergence",
        "merge",
    ];
    let document = one.untouched(|| one.call(args).env("PATH", &path).run().ok().json());
    assert_eq!(document["state"], "recovered", "{document}");
    assert_eq!(document.get("failure"), None, "{document}");
    let calls = fs::read_to_string(calls).unwrap();
    for (what, times) in [("fetch ", 1), ("push ", 1), ("ls-remote ", 2)] {
        let lines = calls.lines().filter(|line| line.starts_with(what));
        assert_eq!(lines.count(), times, "{what}: {calls}");
    }

    let merge = tip(&one);
    assert_eq!(commit(&document), merge);
    assert_eq!(
        there(&one, ["rev-parse", &format!("{merge}^1")]),
        commit(&theirs)
    );
    let shown = one.json(["task", "show", "42"]);
    let rows = shown["checkpoints"].as_array().unwrap();
    let [.., ours, merged] = &rows[..] else {
        panic!("{shown}")
    };
    assert_eq!(
        there(&one, ["rev-parse", &format!("{merge}^2")]),
        commit(ours)
    );
    assert_eq!(
        (&ours["advanced_to"], &ours["status"]),
        (&document["commit"], &"proven".into())
    );
    assert_eq!(
        (&merged["kind"], &merged["status"]),
        (&"merge".into(), &"proven".into())
    );
    assert_eq!(names(&one), "README ours text theirs");
    let both = TEXT.replace('1', "one").replace('9', "nine");
    assert_eq!(on_branch(&one, "text"), both);
    let merged_by_git = there(
        &one,
        ["merge-tree", "--write-tree", commit(&theirs), commit(ours)],
    );
    assert_eq!(
        there(&one, ["rev-parse", &format!("{merge}^{{tree}}")]),
        merged_by_git
    );
    let trailers = there(
        &one,
        [
            "log",
            "-1",
            "--format=%(trailers:key=Task,valueonly)",
            &merge,
        ],
    );
    assert_eq!(trailers.trim(), "42");
    assert_eq!(one.git(["rev-parse", "HEAD"]), head);
    let said = events(&one);
    let of = |name: &str| said.iter().position(|event| event == name);
    let (retried, recovered) = (
        of("push_divergence_retried"),
        of("push_divergence_recovered"),
    );
    assert!(retried.is_some() && retried < recovered, "{said:?}");
    assert_eq!(of("push_divergence_failed"), None);
    there(&one, ["fsck", "--strict", "--no-dangling"]);

    // Nothing new: what is proven stays so.
    let again = saved(&one, "no_changes");
    assert_eq!(again["advanced_to"], *merge);
}

#[test]
fn what_comes_after_a_merge_takes_nothing_of_the_others_away() {
    let [one, two] = machines();
    two.write("text", TEXT.replace('1', "one"));
    two.write("theirs", "of two\n");
    two.remove("README");
    saved(&two, "pushed");
    one.write("ours", "of one\n");
    saved(&one, "recovered");
    // The workspace has nothing of theirs, and goes on.
    assert!(!one.exists("theirs") && one.exists("README"));
    one.write("text", TEXT.replace('9', "nine"));
    saved(&one, "recovered");
    assert_eq!(
        names(&one),
        "ours text theirs",
        "what they removed stays away"
    );
    let both = TEXT.replace('1', "one").replace('9', "nine");
    assert_eq!(on_branch(&one, "text"), both);
    // Once it is brought here, nothing is to be merged.
    let back = resumed(&one);
    assert_eq!(back["commit"], *tip(&one), "{back}");
    assert_eq!(one.read("theirs"), b"of two\n");
    assert_eq!(one.read("text"), both.as_bytes());
    assert!(!one.exists("README"));
    assert_eq!(one.git(["status", "--porcelain"]), "");
    let before = tip(&one);
    one.write("last", "x\n");
    one.remove("theirs");
    let last = saved(&one, "pushed");
    assert_eq!(
        there(&one, ["rev-parse", &format!("{}^@", commit(&last))]),
        before
    );
    assert_eq!(
        names(&one),
        "last ours text",
        "what is removed here now is meant so"
    );
    resumed(&two);
    assert!(two.exists("last") && !two.exists("theirs"));
    assert_eq!(two.read("text"), both.as_bytes());
}

#[test]
fn a_conflict_leaves_no_trace_and_the_work_goes_beside_the_branch() {
    type Edit = fn(&TestWorkspace);
    let conflicts: [(&str, Edit, Edit); 4] = [
        (
            "the same line",
            |ws| ws.write("text", TEXT.replace('5', "theirs")),
            |ws| ws.write("text", TEXT.replace('5', "ours")),
        ),
        (
            "a file that one has removed",
            |ws| ws.remove("text"),
            |ws| ws.write("text", TEXT.replace('5', "ours")),
        ),
        (
            "a file and a directory",
            |ws| ws.write("new/file", "theirs\n"),
            |ws| ws.write("new", "ours\n"),
        ),
        (
            "one name for two files",
            |ws| ws.write("new", "theirs\n"),
            |ws| ws.write("new", "ours\n"),
        ),
    ];
    for (what, theirs, ours) in conflicts {
        let [one, two] = machines();
        theirs(&two);
        saved(&two, "pushed");
        let before = tip(&one);
        ours(&one);
        let document = one.untouched(|| save(&one).exits(1).json());
        assert_eq!(document["state"], "pushed_beside", "{what}: {document}");
        assert_eq!(document["failure"], "RemoteDivergent");
        assert_eq!(tip(&one), before, "{what}");
        let side = document["side_branch"].as_str().unwrap();
        assert!(side.starts_with(&format!("{BRANCH}--diverged-")), "{side}");
        assert_eq!(there(&one, ["rev-parse", side]), commit(&document));
        let branches = there(&one, ["for-each-ref", "--format=%(refname:short)"]);
        assert_eq!(branches.lines().count(), 3, "{what}: {branches}");
        let shown = one.json(["task", "show", "42"]);
        assert_eq!(shown["checkpoints"].as_array().unwrap().len(), 2, "{shown}");
        let merges = there(&one, ["rev-list", "--all", "--merges"]);
        assert_eq!(merges, "", "{what}");
        let marked = git::call(&one.home(), &remote(&one), ["grep", "-n", "<<<<<<<", side]);
        marked.run().exits(1);
        let said = events(&one);
        assert!(said.contains(&"push_divergence_failed".to_owned()));
        assert!(!said.contains(&"push_divergence_retried".to_owned()));
        one.json(["verify"]);
    }
}

#[test]
fn nobody_s_work_is_merged_unless_that_was_asked_for() {
    let [one, two] = machines();
    two.write("theirs", "of two\n");
    saved(&two, "pushed");
    let before = tip(&one);
    one.write("ours", "of one\n");
    let output = one.try_json(["task", "checkpoint", "42"]);
    assert_eq!(output.exits(1).json()["state"], "pushed_beside");
    assert_eq!(tip(&one), before);
    // What the user repeats is in the configuration.
    let config = one.home().join(".config/stillframe/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "[task]\non_divergence = \"merge\"\n").unwrap();
    one.write("ours", "more\n");
    let document = one.json(["task", "checkpoint", "42"]);
    assert_eq!(document["state"], "recovered", "{document}");
    assert_eq!(names(&one), "README ours text theirs");
    let wrong = ["task", "checkpoint", "42", "--on-divergence", "theirs"];
    one.try_json(wrong).exits(2);
}

#[test]
fn a_file_that_one_side_renames_takes_the_edits_of_the_other_along() {
    let [one, two] = machines();
    two.write("text", TEXT.replace('1', "one"));
    saved(&two, "pushed");
    one.remove("text");
    one.write("moved/text", TEXT.replace('9', "nine"));
    saved(&one, "recovered");
    assert_eq!(names(&one), "README moved/text");
    let both = TEXT.replace('1', "one").replace('9', "nine");
    assert_eq!(on_branch(&one, "moved/text"), both);
    // And the other way round.
    resumed(&two);
    two.remove("moved/text");
    two.write("text", both.replace('5', "five"));
    saved(&two, "pushed");
    one.write("moved/text", TEXT.replace('9', "ninth"));
    let document = saved(&one, "recovered");
    assert_eq!(names(&one), "README text", "{document}");
    let both = TEXT.replace('1', "one").replace('5', "five");
    assert_eq!(on_branch(&one, "text"), both.replace('9', "ninth"));
}

#[test]
fn a_run_whose_branch_others_have_moved_meanwhile_has_its_work_merged() {
    let [one, two] = machines();
    let script = format!(
        "echo ours > ours; cd '{}' && git fetch -q && echo theirs > theirs && git add theirs && \
         git -c user.name=a -c user.email=b commit -q -m theirs && git push -q origin HEAD",
        two.root().display()
    );
    let args = [
        "run",
        "--task",
        "42",
        "--on-divergence",
        "merge",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let outcome = one.json(args);
    let saved = &outcome["workspace"]["saved"];
    assert_eq!(saved["state"], "recovered", "{outcome}");
    assert_eq!(names(&one), "README ours text theirs");
    assert_eq!(saved["commit"], *tip(&one));
    // The next one begins with what the others did.
    let next = one.json(["run", "--task", "42", "--", "cat", "theirs", "ours"]);
    assert_eq!(next["workspace"]["saved"]["state"], "no_changes", "{next}");
}

#[test]
fn two_machines_in_turns_have_every_line_of_both_on_the_branch() {
    let machines = machines();
    let one = &machines[0];
    for round in 0..8 {
        for (at, ws) in machines.iter().enumerate() {
            if (round + at) % 3 == 2 {
                resumed(ws);
            }
            let own = format!("of{at}");
            let mut lines = match ws.exists(&own) {
                true => String::from_utf8(ws.read(&own)).unwrap(),
                false => String::new(),
            };
            lines.push_str(&format!("{at} {round}\n"));
            ws.write(own, lines);
            // Both edit one file, far from each other.
            let text = String::from_utf8(ws.read("text")).unwrap();
            let line = ["1", "9"][at];
            let text: Vec<String> = text
                .lines()
                .map(|found| match found.starts_with(line) {
                    true => format!("{line} {round}"),
                    false => found.to_owned(),
                })
                .collect();
            ws.write("text", text.join("\n") + "\n");
            let document = save(ws).ok().json();
            let state = document["state"].as_str().unwrap();
            assert!(["pushed", "recovered"].contains(&state), "{document}");
        }
    }
    for at in 0..2 {
        let lines: String = (0..8).map(|round| format!("{at} {round}\n")).collect();
        assert_eq!(on_branch(one, &format!("of{at}")), lines);
    }
    assert_eq!(on_branch(one, "text"), "1 7\n2\n3\n4\n5\n6\n7\n8\n9 7\n");
    for ws in &machines {
        resumed(ws);
        assert_eq!(ws.git(["status", "--porcelain"]), "");
        assert_eq!(ws.git(["rev-parse", "HEAD"]), tip(one));
    }
    there(one, ["fsck", "--strict", "--no-dangling"]);
}

#[test]
fn of_two_machines_that_merge_at_once_no_work_is_lost() {
    let machines = machines();
    let one = &machines[0];
    let mut made = Vec::new();
    for round in 0..6 {
        let documents: Vec<Value> = thread::scope(|scope| {
            let saving = machines.iter().enumerate().map(|(at, ws)| {
                scope.spawn(move || {
                    ws.write(format!("of{at}"), format!("{round}\n"));
                    save(ws).json()
                })
            });
            let saving: Vec<_> = saving.collect();
            saving.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for document in documents {
            let branch = match document["state"].as_str().unwrap() {
                "pushed" | "recovered" => &document["branch"],
                "pushed_beside" => &document["side_branch"],
                other => panic!("{other}: {document}"),
            };
            made.push((
                branch.as_str().unwrap().to_owned(),
                commit(&document).to_owned(),
            ));
        }
        for (branch, commit) in &made {
            there(one, ["merge-base", "--is-ancestor", commit, branch]);
        }
    }
    for (at, ws) in machines.iter().enumerate() {
        ws.write("more", format!("{at}\n"));
        ws.remove("more");
        ws.write(format!("of{at}"), "last\n");
        save(ws).ok();
        assert_eq!(on_branch(one, &format!("of{at}")), "last\n");
    }
}

#[test]
fn a_merge_that_is_killed_at_any_point_is_made_once_by_whoever_comes_next() {
    let rounds = counted(KILLS, 12).min(60);
    let [one, two] = machines();
    for round in 0..rounds {
        two.write(format!("theirs{round}"), "x\n");
        let document = save(&two).ok().json();
        assert_ne!(document["state"], "pushed_beside");
        one.write(format!("ours{round}"), "x\n");
        let args = ["task", "checkpoint", "42", "--on-divergence", "merge"];
        let mut running = one.call(args).start();
        let shift = u64::from(std::process::id()) % 10;
        thread::sleep(Duration::from_millis((round * 23 + shift) % 250));
        running.kill();
        drop(running.wait());
        if round % 3 == 2 {
            let back = resumed(&one);
            assert_eq!(back["commit"], *tip(&one), "round {round}: {back}");
        }
        let document = save(&one).ok().json();
        let state = document["state"].as_str().unwrap();
        assert!(
            ["pushed", "recovered", "no_changes"].contains(&state),
            "round {round}: {document}"
        );
        let names = names(&one);
        for earlier in 0..=round {
            for of in ["ours", "theirs"] {
                let name = format!("{of}{earlier}");
                assert!(names.split(' ').any(|n| n == name), "round {round}: {name}");
            }
        }
        let shown = one.json(["task", "show", "42"]);
        for checkpoint in shown["checkpoints"].as_array().unwrap() {
            if checkpoint["status"] == "proven" {
                there(
                    &one,
                    ["merge-base", "--is-ancestor", commit(checkpoint), BRANCH],
                );
            }
        }
    }
    let branches = there(&one, ["for-each-ref", "--format=%(refname)"]);
    assert_eq!(branches.lines().count(), 2, "{branches}");
    there(&one, ["fsck", "--strict", "--no-dangling"]);
    one.json(["verify"]);
}
