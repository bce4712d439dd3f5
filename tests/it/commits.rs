//! Commits that steps make, from the command line, with git as the oracle.

use std::collections::BTreeSet;

use stillframe_tests::TestWorkspace;
use stillframe_tests::choice::one_of_each;
use stillframe_tests::torture::call_class::CallClass;
use stillframe_tests::torture::fault::Fault;
use stillframe_tests::torture::tracer::Injection;

use crate::torture::tracer;

/// A repository whose user has a name, and a file of steps.
fn place(steps: &str) -> (TestWorkspace, String) {
    let ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    std::fs::create_dir_all(ws.outside()).unwrap();
    let file = ws.outside().join("steps.toml");
    std::fs::write(&file, steps).unwrap();
    (ws, file.display().to_string())
}

fn commits(ws: &TestWorkspace) -> usize {
    let count = ws.git(["rev-list", "--count", "HEAD"]);
    count.trim().parse().unwrap()
}

#[test]
fn a_step_of_a_file_commits_what_its_command_changed_and_status_is_clean() {
    let (ws, file) = place(
        "[[step]]\nname = 'edit'\ncommand = 'echo more >> README; echo new > new; rm -f gone'\ncommit = 'Say more'",
    );
    ws.write("gone", "x\n");
    ws.commit("with gone");
    let before = commits(&ws);
    let said = ws
        .stillframe(["run", "--steps", &file, "--run-id", "r"])
        .ok();
    let head = ws.git(["rev-parse", "HEAD"]);
    let head = head.trim();
    assert!(
        said.stderr_text()
            .contains(&format!("commit {head} on main, 3 files"))
    );
    assert_eq!(commits(&ws), before + 1);
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    assert_eq!(ws.git(["log", "-1", "--format=%s"]).trim(), "Say more");
    ws.git(["fsck", "--strict"]);
    let shown = ws.show("r");
    let step = &shown["phases"][0]["steps"][1];
    assert_eq!(step["commit_created"], head);
    assert_eq!(shown["commits"][0]["commit"], head);
    assert_eq!(shown["commits"][0]["step_id"], step["step_id"]);
    // Taking the run back takes the commit out of the branch.
    ws.undo();
    assert_eq!(commits(&ws), before);
    assert_eq!(ws.git(["status", "--porcelain"]), "");
}

// A file whose bytes HEAD has as they are, though its attributes ask for others, stood as changed
// afterwards
#[test]
fn what_git_would_store_with_other_line_ends_is_stored_so_and_status_is_clean() {
    for (script, expected) in [
        // git goes by what it noted of the file, and does not look.
        ("echo 2 > other", "other"),
        ("echo 2 > other; touch crlf.txt", "crlf.txt other"),
        (
            "echo 2 > other; cp crlf.txt new && mv new crlf.txt",
            "crlf.txt other",
        ),
        ("touch crlf.txt lf.txt binary.bin", "crlf.txt"),
    ] {
        let (ws, file) = place(&format!(
            "[[step]]\nname = 'edit'\ncommand = '{script}'\ncommit = 'Work'"
        ));
        ws.write("crlf.txt", "one\r\ntwo\r\n");
        ws.write("lf.txt", "one\ntwo\n");
        ws.write("binary.bin", "one\r\n");
        ws.write("other", "1\n");
        next_second();
        ws.commit("as they are");
        ws.write(".gitattributes", "*.txt text\n");
        ws.commit("with attributes");
        next_second();
        assert_eq!(ws.git(["status", "--porcelain"]), "");
        ws.stillframe(["run", "--steps", &file, "--run-id", "r"])
            .ok();
        let changed = ws.git(["diff", "--name-only", "HEAD^", "HEAD"]);
        assert_eq!(changed.replace('\n', " "), expected, "{script}");
        assert_eq!(ws.git(["status", "--porcelain"]), "", "{script}");
        // git would have made the same tree of it.
        let made = ws.git(["rev-parse", "HEAD^{tree}"]);
        ws.git(["add", "--all"]);
        assert_eq!(ws.git(["write-tree"]), made, "{script}");
        assert_eq!(
            ws.read("crlf.txt"),
            b"one\r\ntwo\r\n",
            "the file stays as it is"
        );
        ws.git(["fsck", "--strict"]);
    }
}

// It was left as HEAD had it, and stood as changed afterwards
#[test]
fn what_git_looks_into_since_it_has_the_second_of_the_index_is_stored_as_git_would() {
    let (ws, file) = place("[[step]]\nname = 'edit'\ncommand = 'echo 2 > other'\ncommit = 'Work'");
    ws.write("crlf.txt", "one\r\ntwo\r\n");
    ws.write("other", "1\n");
    // So far ahead that the index that comes is no later.
    let ahead = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    let since = ahead.duration_since(std::time::UNIX_EPOCH).unwrap();
    let at = |millis| {
        let second = std::time::Duration::from_secs(since.as_secs());
        std::time::UNIX_EPOCH + second + std::time::Duration::from_millis(millis)
    };
    let set = |path: &str, millis| {
        let file = std::fs::File::open(ws.path(path)).unwrap();
        file.set_modified(at(millis)).unwrap();
    };
    set("crlf.txt", 200);
    ws.commit("as they are");
    set(".git/index", 500);
    ws.write(".gitattributes", "*.txt text\n");
    ws.stillframe(["run", "--steps", &file, "--run-id", "r"])
        .ok();
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    let changed = ws.git(["diff", "--name-only", "HEAD^", "HEAD"]);
    assert_eq!(changed.replace('\n', " "), ".gitattributes crlf.txt other");
    let made = ws.git(["rev-parse", "HEAD^{tree}"]);
    ws.git(["add", "--all"]);
    assert_eq!(
        ws.git(["write-tree"]),
        made,
        "git would have made the same tree of it"
    );
    assert_eq!(ws.read("crlf.txt"), b"one\r\ntwo\r\n");
}

/// Waits until no file that is there was written in the present second, which is what git goes by.
fn next_second() {
    let second = || {
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
    };
    let begun = second();
    while second() == begun {
        std::thread::yield_now();
    }
}

#[test]
fn a_step_of_a_clone_renames_a_directory_whose_files_lie_in_a_pack() {
    let (mut ws, file) = place(
        "[[step]]\nname = 'rename'\ncommand = 'git mv docs documentation; cp README copy'\ncommit = 'Rename docs'",
    );
    for n in 0..200 {
        // Some of them are alike.
        ws.write(
            format!("docs/part{}/page{n}", n % 7),
            format!("page {}\n", n / 2),
        );
    }
    ws.commit("with docs");
    ws.git(["repack", "-adq"]);
    let clone = ws.base().join("clone");
    ws.git(["clone", "-q", ".", clone.to_str().unwrap()]);
    ws.set_root("clone");
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    assert_eq!(ws.git(["count-objects"]), "0 objects, 0 kilobytes");
    ws.stillframe(["run", "--steps", &file, "--run-id", "r"])
        .ok();
    assert_eq!(commits(&ws), 3);
    let changes = ws.git(["diff", "HEAD^", "HEAD", "--name-status", "-M100%", "-l0"]);
    let renamed = changes
        .lines()
        .filter(|line| line.starts_with("R100\tdocs/"));
    assert_eq!(renamed.count(), 200, "{changes}");
    assert_eq!(changes.lines().count(), 201, "and the copy: {changes}");
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    ws.git(["fsck", "--strict"]);
    // Whoever comes next has a repository to work in.
    ws.stillframe(["list"]).ok();
}

#[test]
fn in_the_middle_of_a_merge_nothing_is_committed() {
    let (ws, file) = place("[[step]]\nname = 'a'\ncommit = 'x'");
    ws.git(["branch", "other"]);
    ws.write("README", "ours\n");
    ws.commit("ours");
    ws.git(["checkout", "-q", "other"]);
    ws.write("README", "theirs\n");
    ws.commit("theirs");
    assert_ne!(
        ws.git_call(["merge", "-q", "main"]).run().code,
        0,
        "it conflicts"
    );
    let before = commits(&ws);
    let status = ws.git(["status", "--porcelain"]);
    let refused = ws.call(["--json", "run", "--steps", &file]).run();
    let outcome = refused.json();
    assert_eq!(outcome["error"]["kind"], "Conflict", "{outcome}");
    assert_eq!(
        outcome["status"], "interrupted",
        "it can go on once that is put right"
    );
    assert_eq!(commits(&ws), before);
    assert_eq!(ws.git(["status", "--porcelain"]), status);
}

#[test]
fn a_commit_of_a_step_that_is_killed_at_any_step_is_made_once() {
    let Some(tracer) = tracer() else { return };
    let mut endings = BTreeSet::new();
    // Each class is counted over all threads: which of them makes the commit is nobody's choice.
    for class in [
        CallClass::Sync,
        CallClass::Link,
        CallClass::Rename,
        CallClass::Remove,
    ] {
        for nth in one_of_each(&class.to_string(), 6) {
            let (ws, file) =
                place("[[step]]\nname = 'save'\ncommit = 'Save'\nrerun = 'from_before'");
            // What makes a store is no part of the story.
            ws.snapshot();
            ws.write("README", "edited\n");
            ws.write("new", "new\n");
            let args = ["run", "--steps", &file, "--run-id", "r"];
            let fault = Fault::Kill;
            let injection = Injection { class, nth, fault };
            let killed = tracer.run(&ws.call(args), Some(&injection)).unwrap();
            let Some(at) = killed.hit else {
                assert_eq!(killed.output.code, 0, "{:?}", killed.output);
                endings.insert("not killed");
                break;
            };
            let when = format!("killed at {class} {nth}, {}", at.path);
            let refs = ws.git(["for-each-ref", "--format=%(refname)"]);
            assert_eq!(refs, "refs/heads/main", "{when}");
            let was_made = commits(&ws) == 2;
            let found = was_made.then(|| ws.git(["rev-parse", "HEAD"]));
            endings.insert(if was_made { "after" } else { "before" });
            // Whoever comes next settles it, and takes no person.
            ws.stillframe(["list"]).ok();
            ws.stillframe(args).ok();
            assert_eq!(commits(&ws), 2, "{when}: once");
            let head = ws.git(["rev-parse", "HEAD"]);
            if let Some(found) = found {
                assert_eq!(found, head, "{when}: the same commit");
            }
            assert_eq!(ws.git(["status", "--porcelain"]), "", "{when}");
            ws.git(["fsck", "--strict"]);
            let run = ws.show("r");
            let known = run["commits"].as_array().unwrap();
            assert_eq!(known.len(), 1, "{when}: the same commit, once: {run}");
            assert_eq!(run["commits"][0]["commit"], head.trim());
            assert_eq!(run["phases"][0]["steps"][0]["commit_created"], head.trim());
            for lock in ["index.lock", "HEAD.lock", "refs/heads/main.lock"] {
                assert!(!ws.exists(format!(".git/{lock}")), "{when}: {lock}");
            }
        }
    }
    assert_eq!(
        endings,
        BTreeSet::from(["after", "before", "not killed"]),
        "the loop crossed the moment of the commit and came to the end"
    );
}

#[test]
fn a_commit_that_was_refused_for_a_while_is_made_by_whoever_resumes() {
    let (ws, file) = place("[[step]]\nname = 'a'\ncommand = 'echo new > new'\ncommit = 'New'");
    ws.write(".git/index.lock", "");
    let refused = ws
        .call(["--json", "run", "--steps", &file, "--run-id", "r"])
        .run();
    assert_eq!(refused.json()["status"], "interrupted", "{refused}");
    assert_eq!(commits(&ws), 1);
    ws.remove(".git/index.lock");
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(commits(&ws), 2);
    assert_eq!(ws.git(["status", "--porcelain"]), "");
}

// The recovery that came first could not make it, and the one that came late made it behind the
// step's back
#[test]
fn a_commit_that_could_not_be_settled_at_first_is_made_once() {
    let Some(tracer) = tracer() else { return };
    let steps = "[[step]]\nname = 'a'\ncommand = 'echo more >> README'\ncommit = 'More'\nrerun = 'from_before'";
    let (ws, file) = place(steps);
    ws.snapshot();
    let args = ["run", "--steps", &file, "--run-id", "r"];
    let injection = |nth| Injection {
        class: CallClass::Link,
        nth,
        fault: Fault::Kill,
    };
    let died_at_the_branch = (1..20).any(|nth| {
        let killed = tracer.run(&ws.call(args), Some(&injection(nth))).unwrap();
        assert_eq!(killed.output.code, 137, "{:?}", killed.output);
        killed.hit.unwrap().path.contains("main")
    });
    assert!(died_at_the_branch);
    assert_eq!(commits(&ws), 1);
    ws.write(".git/refs/heads/main.lock", "");
    let listed = ws.json(["runs", "--incomplete"]);
    assert_eq!(listed[0]["run_id"], "r", "{listed}");
    ws.remove(".git/refs/heads/main.lock");
    ws.stillframe(["list"]).ok();
    assert_eq!(commits(&ws), 1, "nothing is done behind a run that rests");
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(commits(&ws), 2, "{}", ws.git(["log", "--oneline"]));
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    let run = ws.show("r");
    assert_eq!(run["commits"].as_array().unwrap().len(), 1, "{run}");
    ws.git(["fsck", "--strict"]);
}
