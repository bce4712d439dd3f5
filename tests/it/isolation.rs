//! `run --isolate`, `review` and `worktree`: runs in worktrees of their own, what they hand in, and
//! letting go of them. git is the oracle.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use stillframe::events::EventQuery;
use stillframe::options::{Approval, ChangeRequest, IsolationOptions, OwnerCheck};
use stillframe::records::IsolatedRun;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunOptions,
    RunStatus, WorkspaceOptions,
};
use stillframe_tests::{Output, TestWorkspace, git};

use super::tasks::counted;

/// How often a host is killed.
const KILLS: &str = "STILLFRAME_ISOLATION_KILLS";

/// An isolated run of a script, with these options before it.
pub(super) fn isolated(ws: &TestWorkspace, options: &[&str], script: &str) -> Output {
    let args = [&["run", "--isolate"], options, &["--", "sh", "-c", script]].concat();
    ws.try_json(args)
}

/// One that hands something in, or completes.
#[track_caller]
pub(super) fn done(ws: &TestWorkspace, script: &str) -> Value {
    isolated(ws, &[], script).ok().json()
}

pub(super) fn id(run: &Value) -> &str {
    run["run_id"].as_str().unwrap()
}

pub(super) fn text<'v>(of: &'v Value, key: &str) -> &'v str {
    let value = &of["isolation"][key];
    let value = if value.is_null() { &of[key] } else { value };
    value.as_str().unwrap_or_else(|| panic!("{key}: {of}"))
}

pub(super) fn worktree(run: &Value) -> PathBuf {
    PathBuf::from(text(run, "worktree_path"))
}

/// What git says in the worktree of a run.
fn in_worktree(ws: &TestWorkspace, run: &Value, args: &[&str]) -> String {
    git::text(&ws.home(), &worktree(run), args)
}

/// Whether the run's branch, its entry and its directory are there, as git sees the first two.
pub(super) fn is_there(ws: &TestWorkspace, run: &Value) -> [bool; 3] {
    let branch = text(run, "worktree_branch");
    let directory = worktree(run);
    let listed = ws.git(["worktree", "list", "--porcelain"]);
    [
        ws.git(["for-each-ref", branch]).contains(branch),
        listed.contains(&format!("worktree {}\n", directory.display())),
        directory.join(".git").exists(),
    ]
}

/// HEAD, all branches but those of runs, the index byte for byte, and git's status.
pub(super) fn checkout(ws: &TestWorkspace) -> (Vec<u8>, String, Vec<u8>, String) {
    let refs = ws.git(["for-each-ref", "--exclude=refs/heads/stillframe/run/"]);
    let status = ws.git_call(["status", "--porcelain", "--ignored"]);
    // It would write what it has found into the index.
    let status = status.env("GIT_OPTIONAL_LOCKS", "0").run().ok();
    let status = status.stdout_text();
    (
        fs::read(ws.path(".git/HEAD")).unwrap(),
        refs,
        fs::read(ws.path(".git/index")).unwrap(),
        status,
    )
}

pub(super) fn types(ws: &TestWorkspace, run: &Value) -> Vec<String> {
    let events = ws.events(["--run", id(run)]);
    let types = events.iter().map(|event| event["type"].as_str().unwrap());
    types.map(str::to_owned).collect()
}

pub(super) fn show(ws: &TestWorkspace, run: &Value) -> Value {
    ws.json(["show", id(run)])
}

#[test]
fn a_run_works_in_its_own_worktree_and_hands_in_what_it_changed() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "ignored\n");
    ws.write("d/kept", "kept\n");
    ws.write_executable("run", "#!/bin/sh\n");
    ws.commit("second");
    let base = ws.git(["rev-parse", "HEAD"]);
    let before = checkout(&ws);
    let script = "pwd > where; echo more >> README; rm run; ln -s d link; echo x > ignored; git branch --show-current";
    let output = isolated(&ws, &[], script).ok();
    let run = output.json();
    assert_eq!(run["status"], "awaiting_review", "{run}");
    assert_eq!(run["exit_code"], 0);
    let branch = format!("stillframe/run/{}", id(&run));
    assert_eq!(
        text(&run, "worktree_branch"),
        format!("refs/heads/{branch}")
    );
    assert_eq!(worktree(&run), ws.state().join("worktrees").join(id(&run)));
    assert_eq!(
        text(&run, "originating_branch"),
        ws.git(["symbolic-ref", "HEAD"])
    );
    assert_eq!(text(&run, "base"), base);
    assert!(
        output.stderr_text().contains(&branch),
        "the command is on the branch: {output}"
    );
    assert_eq!(checkout(&ws), before, "nobody's checkout moved");

    // The commit has what git would have committed, on the branch that was cut from the base.
    let commit = text(&run, "commit");
    assert_eq!(ws.git(["rev-parse", &branch]), commit);
    assert_eq!(ws.git(["rev-parse", &format!("{commit}^")]), base);
    assert_eq!(
        ws.git(["rev-parse", &format!("{commit}^{{tree}}")]),
        text(&run, "tree")
    );
    let changed = ws.git(["diff", "--name-status", &base, commit]);
    assert_eq!(changed, "M\tREADME\nA\tlink\nD\trun\nA\twhere");
    let here = ws.git(["show", &format!("{commit}:where")]);
    assert_eq!(here, worktree(&run).to_str().unwrap());
    assert_eq!(in_worktree(&ws, &run, &["status", "--porcelain"]), "");
    assert_eq!(
        fs::read_to_string(worktree(&run).join("ignored")).unwrap(),
        "x\n"
    );
    let said = ws.git(["log", "-1", "--format=%B", commit]);
    let subject = format!("Stillframe run {}\n\nsh -c 'pwd > where", id(&run));
    assert!(said.starts_with(&subject), "{said}");
    let trailers = ws.git(["log", "-1", "--format=%(trailers:only)", commit]);
    let expected = format!("Run-Id: {}\nTask: unknown", id(&run));
    assert_eq!(trailers.trim(), expected);
    git::run(&ws.home(), ws.root(), ["fsck", "--strict", "--no-dangling"]);

    let told = types(&ws, &run);
    let order = ["run_started", "run_concluded", "review_requested"];
    let found: Vec<&String> = told
        .iter()
        .filter(|one| order.contains(&one.as_str()))
        .collect();
    assert_eq!(found, order, "{told:?}");
    let shown = show(&ws, &run);
    assert_eq!(shown["isolation"], run["isolation"]);
    assert_eq!(
        (&shown["status"], &shown["ended_at"]),
        (&json!("awaiting_review"), &Value::Null)
    );
    assert_eq!(shown["commits"][0]["commit"], *commit);
}

#[test]
fn what_a_run_hands_in_is_listed_shown_and_compared_as_git_compares_it() {
    let ws = TestWorkspace::repository();
    ws.write("a", "1\n2\n3\n");
    ws.write("b", "b\n");
    ws.commit("second");
    let run = done(
        &ws,
        "echo 4 >> a; git mv b c; printf '\\000' > binary; chmod +x README",
    );
    let (id, commit, base) = (id(&run), text(&run, "commit"), text(&run, "base"));
    let listed = ws.json(["review", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let shown = ws.json(["review", "show", id]);
    assert_eq!(listed[0], shown);
    for key in [
        "commit",
        "tree",
        "base",
        "diff",
        "request_id",
        "review_ready_at",
    ] {
        assert_eq!(shown[key], run["isolation"][key], "{key}");
    }
    let said = ws.stillframe(["review", "list"]).ok().stdout_text();
    assert!(
        said.contains(id) && said.contains("awaiting_review"),
        "{said}"
    );
    let said = ws
        .stillframe(["review", "show", &id[..12]])
        .ok()
        .stdout_text();
    assert!(
        said.contains(commit) && said.contains(text(&run, "tree")),
        "{said}"
    );

    // The patch makes the base what the run has made of it, and so does the artifact.
    let patch = ws.stillframe(["review", "diff", id, "--patch"]).ok().stdout;
    let kept = ws
        .stillframe(["artifact", "get", text(&run, "diff")])
        .ok()
        .stdout;
    assert_eq!(patch, kept);
    let file = ws.base().join("the.patch");
    fs::write(&file, &patch).unwrap();
    ws.git(["worktree", "add", "-q", "--detach", "../other", base]);
    let other = ws.base().join("other");
    let in_other = |args: &[&str]| git::text(&ws.home(), &other, args);
    in_other(&["apply", "--index", file.to_str().unwrap()]);
    assert_eq!(in_other(&["write-tree"]), text(&run, "tree"));

    let document = ws.json(["review", "diff", id]);
    let numbers = ws.git(["diff", "--no-renames", "--shortstat", base, commit]);
    let number = |key: &str| document[key].as_u64().unwrap();
    let expected = format!(
        "{} files changed, {} insertions(+), {} deletion(-)",
        number("files_changed"),
        number("insertions"),
        number("deletions")
    );
    assert_eq!(numbers.trim(), expected);
    let stat = ws
        .stillframe(["review", "diff", id, "--stat"])
        .ok()
        .stdout_text();
    assert!(stat.contains("binary") && stat.contains("a"), "{stat}");
}

#[test]
fn a_decline_leaves_every_branch_and_the_worktree_and_is_one_decision() {
    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    let before = (checkout(&ws), ws.git(["for-each-ref"]));
    let declined = ws.json(["review", "decline", id(&run), "--by", "ann"]);
    assert_eq!(
        (&declined["status"], &declined["reviewed_by"]),
        (&json!("declined"), &json!("ann"))
    );
    assert_eq!((checkout(&ws), ws.git(["for-each-ref"])), before);
    assert_eq!(is_there(&ws, &run), [true; 3]);
    let told = types(&ws, &run);
    assert_eq!(told.last().unwrap(), "review_declined");
    // The same answer, and nothing twice.
    let again = ws.json(["review", "decline", id(&run), "--by", "bob"]);
    assert_eq!(again, declined);
    assert_eq!(types(&ws, &run), told);
    assert_eq!(ws.json(["review", "list"]), json!([]));
    let shown = show(&ws, &run);
    assert_eq!(
        (&shown["status"], &shown["exit_code"]),
        (&json!("declined"), &json!(0))
    );
    assert!(!shown["ended_at"].is_null());
    assert_eq!(shown["workspace"], show(&ws, &run)["workspace"]);
    assert!(
        shown["workspace"]["diff"].is_object(),
        "what it did is still known: {shown}"
    );

    for (args, code, kind) in [
        (&["review", "decline", "run_00000000"][..], 1, "NotFound"),
        (
            &["review", "decline", id(&run), "--by", ""],
            1,
            "InvalidOptions",
        ),
    ] {
        ws.try_json(args).exits(code).error(kind);
    }
    ws.run::<&str>([], "true");
    let plain = ws.json(["runs"])[0].clone();
    for args in [
        ["review", "decline"],
        ["review", "show"],
        ["worktree", "path"],
    ] {
        let args = [&args[..], &[id(&plain)]].concat();
        ws.try_json(args).exits(1).error("NotFound");
    }
    let failed = isolated(&ws, &[], "exit 3").exits(3).json();
    let said = ws
        .try_json(["review", "decline", id(&failed)])
        .exits(1)
        .error("Conflict");
    assert!(said.contains("is failed"), "{said}");
    ws.try_json(["review", "diff", id(&failed)])
        .exits(1)
        .error("Conflict");
}

#[test]
fn of_two_decisions_at_once_there_is_one() {
    let ws = TestWorkspace::repository();
    for round in 0..4 {
        let run = done(&ws, &format!("echo {round} > new"));
        let by = ["ann", "bob"];
        let calls = by.map(|by| {
            let args = ["--json", "review", "decline", id(&run), "--by", by];
            ws.call(args).start()
        });
        let answers = calls.map(|call| call.wait().ok().json());
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0]["status"], "declined");
        let told = types(&ws, &run);
        let declined = told.iter().filter(|one| *one == "review_declined");
        assert_eq!(declined.count(), 1, "{told:?}");
    }
}

#[test]
fn a_run_that_changes_nothing_has_no_commit_and_leaves_no_trace_in_the_repository() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "ignored\n");
    ws.commit("second");
    let before = (checkout(&ws), ws.git(["for-each-ref"]));
    let output = ws
        .call(["run", "--isolate", "--", "sh", "-c", "echo x > ignored"])
        .run()
        .ok();
    let said = output.stderr_text();
    assert!(
        said.contains("changed nothing that could be committed"),
        "{said}"
    );
    let run = &ws.json(["runs"])[0];
    assert_eq!(run["status"], "completed");
    assert_eq!(is_there(&ws, run), [false; 3]);
    assert_eq!((checkout(&ws), ws.git(["for-each-ref"])), before);
    assert_eq!(ws.json(["worktree", "list"]), json!([]));
    let told = types(&ws, run);
    assert!(
        told.contains(&"run_no_changes_produced".to_owned()),
        "{told:?}"
    );
    assert!(told.contains(&"worktree_let_go".to_owned()), "{told:?}");
    ws.try_json(["worktree", "path", id(run)])
        .exits(1)
        .error("NotFound");
    // Nothing of it is in the way of an undo in the checkout.
    ws.run::<&str>([], "echo y > mine");
    isolated(&ws, &[], "true").ok();
    ws.undo();
    assert!(!ws.exists("mine"));
}

#[test]
fn what_is_out_of_scope_stays_in_the_worktree_and_is_named() {
    let ws = TestWorkspace::repository();
    ws.write("src/a.rs", "a\n");
    ws.write("docs/a.md", "a\n");
    ws.commit("second");
    let script = "echo b >> src/a.rs; mkdir -p src/deep docs; echo n > src/deep/n.rs; echo b >> docs/a.md; echo t > top.rs";
    let output = isolated(&ws, &["--scope", "src/**"], script).ok();
    let run = output.json();
    assert_eq!(
        run["isolation"]["out_of_scope"],
        json!(["docs/a.md", "top.rs"]),
        "{run}"
    );
    let changed = ws.git([
        "diff",
        "--name-only",
        text(&run, "base"),
        text(&run, "commit"),
    ]);
    assert_eq!(changed, "src/a.rs\nsrc/deep/n.rs");
    // They are there, uncommitted, as git itself says.
    let status = in_worktree(&ws, &run, &["status", "--porcelain"]);
    assert_eq!(status.trim_start(), "M docs/a.md\n?? top.rs");
    let told = [
        "run",
        "--isolate",
        "--scope",
        "src/**",
        "--",
        "sh",
        "-c",
        script,
    ];
    let told = ws.stillframe(told).ok().stderr_text();
    assert!(told.contains("docs/a.md, top.rs"), "{told}");
    // Declared, and nothing matches: nothing is committed, and what there is stays.
    let run = isolated(&ws, &["--scope", "*.py"], "echo t > top.rs")
        .ok()
        .json();
    assert_eq!(run["status"], "completed", "{run}");
    ws.json(["runs"]);
    assert_eq!(is_there(&ws, &run), [true; 3]);
    assert_eq!(
        fs::read_to_string(worktree(&run).join("top.rs")).unwrap(),
        "t\n"
    );
    ws.json(["worktree", "discard", id(&run)]);
    let gone = show(&ws, &run);
    let snapshots = gone["snapshots"].as_array().unwrap();
    let last = snapshots.last().unwrap()["id"].as_str().unwrap();
    let file = ws.stillframe(["show", &format!("{last}:top.rs")]).ok();
    assert_eq!(file.stdout, b"t\n");
    // A glob that can be none is refused, and is on no record.
    let runs = ws.json(["runs"]);
    isolated(&ws, &["--scope", "/abs"], "true").exits(2);
    assert_eq!(ws.json(["runs"]), runs);
}

#[test]
fn a_run_that_does_not_end_well_keeps_its_worktree_until_it_is_let_go_of() {
    let ws = TestWorkspace::repository();
    let before = checkout(&ws);
    let script = "echo x > new; git add new; git commit -qm mine; echo y > more; exit 3";
    let identity = ["-c", "user.name=n", "-c", "user.email=e"].join(" ");
    let script = script.replace("git commit", &format!("git {identity} commit"));
    let output = ws
        .call(["run", "--isolate", "--", "sh", "-c", &script])
        .run()
        .exits(3);
    let said = output.stderr_text();
    let run = ws.json(["runs"])[0].clone();
    assert_eq!(run["status"], "failed");
    assert!(
        said.contains(&format!("stillframe worktree path {}", id(&run))),
        "{said}"
    );
    assert_eq!(is_there(&ws, &run), [true; 3]);
    let path = ws
        .stillframe(["worktree", "path", id(&run)])
        .ok()
        .stdout_text();
    assert_eq!(path, format!("{}\n", worktree(&run).display()));
    assert_eq!(
        fs::read_to_string(worktree(&run).join("more")).unwrap(),
        "y\n"
    );
    let listed = ws.json(["worktree", "list"]);
    assert_eq!(listed[0]["run_id"], run["run_id"]);
    let tip = ws.git(["rev-parse", text(&run, "worktree_branch")]);

    let gone = ws.json(["worktree", "discard", id(&run)]);
    assert_eq!(is_there(&ws, &run), [false; 3]);
    assert_eq!(gone["branch_was_at"], *tip);
    assert_eq!(checkout(&ws), before);
    git::run(&ws.home(), ws.root(), ["fsck", "--strict", "--no-dangling"]);
    // What was not committed is in a snapshot, and again is the same answer.
    let snapshot = gone["snapshot_id"].as_str().unwrap();
    let file = |name: &str| {
        ws.stillframe(["show", &format!("{snapshot}:{name}")])
            .ok()
            .stdout
    };
    assert_eq!(
        (file("new"), file("more")),
        (b"x\n".to_vec(), b"y\n".to_vec())
    );
    let again = ws.json(["worktree", "discard", id(&run)]);
    assert_eq!(again["let_go_at"], gone["let_go_at"]);
    let told = types(&ws, &run);
    assert_eq!(
        told.iter().filter(|one| *one == "worktree_let_go").count(),
        1
    );
    assert_eq!(ws.json(["worktree", "list"]), json!([]));

    let timed_out = isolated(&ws, &["--timeout", "200ms"], "echo z > z; sleep 60");
    let run = timed_out.exits(124).json();
    assert_eq!(run["status"], "timeout");
    assert_eq!(is_there(&ws, &run), [true; 3]);
}

#[test]
fn what_is_at_work_or_in_review_is_not_let_go_of() {
    let ws = TestWorkspace::repository();
    let script =
        "touch \"$HOME/began\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.01; done; echo x > new";
    let at_work = ws
        .call(["--json", "run", "--isolate", "--", "sh", "-c", script])
        .start();
    wait_for(&ws.home().join("began"));
    let run = ws.json(["runs"])[0].clone();
    let said = ws
        .try_json(["worktree", "discard", id(&run)])
        .exits(1)
        .error("Conflict");
    assert!(said.contains("is running"), "{said}");
    fs::write(ws.home().join("go"), "").unwrap();
    let run = at_work.wait().ok().json();
    let said = ws
        .try_json(["worktree", "discard", id(&run)])
        .exits(1)
        .error("Conflict");
    assert!(said.contains("decide about it first"), "{said}");
    assert_eq!(is_there(&ws, &run), [true; 3]);
    ws.json(["review", "decline", id(&run)]);
    ws.json(["worktree", "discard", id(&run)]);
    assert_eq!(is_there(&ws, &run), [false; 3]);
    // Its patch is still there, and what it handed in is still told.
    let patch = ws
        .stillframe(["artifact", "get", text(&run, "diff")])
        .ok()
        .stdout_text();
    assert!(patch.contains("+x"), "{patch}");
    assert_eq!(
        ws.json(["review", "show", id(&run)])["commit"],
        run["isolation"]["commit"]
    );
}

pub(super) fn wait_for(path: &Path) {
    let mut tries = 0;
    while !path.exists() {
        tries += 1;
        assert!(tries < 6_000, "{} never came", path.display());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn something_elses_place_is_left_as_it_is() {
    let ws = TestWorkspace::repository();
    let run = isolated(&ws, &[], "echo x > new; exit 1").exits(1).json();
    let (path, away) = (worktree(&run), ws.base().join("away"));
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("mine"), "mine\n").unwrap();
    ws.try_json(["worktree", "discard", id(&run)])
        .exits(1)
        .error("Conflict");
    assert_eq!(fs::read_to_string(path.join("mine")).unwrap(), "mine\n");
    fs::remove_dir_all(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    ws.json(["worktree", "discard", id(&run)]);

    // A branch of that name that is a user's.
    let name = "refs/heads/stillframe/run/ticket";
    ws.git(["update-ref", name, "HEAD"]);
    ws.git(["commit", "-q", "--allow-empty", "-m", "next"]);
    let refs = ws.git(["for-each-ref"]);
    let refused = isolated(&ws, &["--run-id", "ticket"], "echo x > new");
    refused.exits(125).error("Conflict");
    assert_eq!(ws.git(["for-each-ref"]), refs);
}

#[test]
fn what_cannot_be_isolated_is_on_no_record() {
    let ws = TestWorkspace::repository();
    ws.git(["branch", "other"]);
    let refs = ws.git(["for-each-ref"]);
    let refused = |ws: &TestWorkspace, options: &[&str]| {
        let said = isolated(ws, options, "touch ../ran")
            .exits(125)
            .error("InvalidOptions");
        assert_eq!(ws.json(["runs"]), json!([]), "{said}");
        assert!(!ws.base().join("ran").exists());
        said
    };
    let said = refused(&ws, &["--from", "nowhere"]);
    assert!(said.contains("nowhere"), "{said}");
    refused(&ws, &["--with", "not-there"]);
    ws.git(["checkout", "-q", "--detach"]);
    refused(&ws, &[]);
    assert_eq!(ws.git(["for-each-ref"]), refs);
    let run = isolated(&ws, &["--from", "other"], "echo x > new")
        .ok()
        .json();
    assert_eq!(text(&run, "originating_branch"), "refs/heads/other");
    for args in [
        &["run", "--from", "other", "--", "true"][..],
        &["run", "--isolate", "--rollback-on-failure", "--", "true"],
        &["run", "--isolate", "--task", "42", "--", "true"],
    ] {
        ws.stillframe(args).exits(2);
    }
    let plain = TestWorkspace::plain();
    refused(&plain, &[]);
    let unborn = TestWorkspace::unborn();
    refused(&unborn, &[]);
}

#[test]
fn uncommitted_edits_stay_where_they_are_and_it_is_said() {
    let ws = TestWorkspace::repository();
    let clean = isolated(&ws, &[], "cat README").ok();
    let says = "not committed is not in the worktree";
    assert!(!clean.stderr_text().contains(says), "{clean}");
    ws.write("README", "edited\n");
    ws.write("untracked", "u\n");
    let before = checkout(&ws);
    let call = [
        "run",
        "--isolate",
        "--",
        "sh",
        "-c",
        "cat README; ls; echo x > new",
    ];
    let output = ws.stillframe(call).ok();
    assert_eq!(output.stdout_text(), "hello\nREADME\n");
    assert!(output.stderr_text().contains(says), "{output}");
    assert_eq!(checkout(&ws), before);
    assert_eq!(
        (ws.text("README"), ws.text("untracked")),
        ("edited\n".into(), "u\n".into())
    );
}

#[test]
fn ignored_files_are_brought_along_and_never_committed() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", ".env\nnode_modules\n");
    ws.commit("second");
    ws.write(".env", "KEY=1\n");
    ws.write("node_modules/a/index.js", "a\n");
    ws.symlink("node_modules/link", "a");
    let options = ["--with", ".env", "--with", "node_modules"];
    let script = "cat .env node_modules/link/index.js > copy; readlink node_modules/link >> copy";
    let run = isolated(&ws, &options, script).ok().json();
    let commit = text(&run, "commit");
    assert_eq!(ws.git(["show", &format!("{commit}:copy")]), "KEY=1\na\na");
    let files = ws.git(["ls-tree", "-r", "--name-only", commit]);
    assert_eq!(files, ".gitignore\nREADME\ncopy");
    assert_eq!(ws.text(".env"), "KEY=1\n");
}

#[test]
fn several_runs_work_at_once_and_in_nobodys_way() {
    let ws = TestWorkspace::repository();
    let before = checkout(&ws);
    let script = |n: usize| {
        format!(
            "touch \"$HOME/began{n}\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.01; done; echo {n} > f{n}"
        )
    };
    let running: Vec<_> = (0..4)
        .map(|n| {
            ws.call(["--json", "run", "--isolate", "--", "sh", "-c", &script(n)])
                .start()
        })
        .collect();
    for n in 0..4 {
        wait_for(&ws.home().join(format!("began{n}")));
    }
    // All are at work, and so is a run in the checkout itself.
    ws.run::<&str>([], "echo mine > mine");
    fs::write(ws.home().join("go"), "").unwrap();
    let runs: Vec<Value> = running
        .into_iter()
        .map(|run| run.wait().ok().json())
        .collect();
    for (n, run) in runs.iter().enumerate() {
        let changed = ws.git([
            "diff",
            "--name-only",
            text(run, "base"),
            text(run, "commit"),
        ]);
        assert_eq!(changed, format!("f{n}"));
    }
    let branches: BTreeSet<&str> = runs
        .iter()
        .map(|run| text(run, "worktree_branch"))
        .collect();
    assert_eq!(branches.len(), 4);
    // The run in the checkout is the last that an undo there is about.
    ws.undo();
    assert_eq!(checkout(&ws), before);
    // So is what a name of a snapshot means there.
    let named = ws.json(["show", "latest"])["path"].clone();
    assert_eq!(named, *ws.root().to_str().unwrap());
}

#[test]
fn a_command_that_commits_by_itself_hands_that_in() {
    let ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "n"]);
    ws.git(["config", "user.email", "e"]);
    let run = done(&ws, "echo x > a; git add a; git commit -qm mine");
    let commit = text(&run, "commit");
    assert_eq!(
        ws.git(["log", "-1", "--format=%s", commit]),
        "mine",
        "no commit of ours beside it"
    );
    let run = done(
        &ws,
        "echo x > a; git add a; git commit -qm mine; echo y > b",
    );
    let commit = text(&run, "commit");
    assert_eq!(
        ws.git(["log", "-1", "--format=%s", &format!("{commit}^")]),
        "mine"
    );
    assert_eq!(
        ws.git(["diff", "--name-only", text(&run, "base"), commit]),
        "a\nb"
    );
    // One that leaves its branch hands nothing in, and nothing of it is lost.
    let left = isolated(&ws, &[], "echo x > a; git checkout -q --detach")
        .exits(125)
        .json();
    assert_eq!(left["status"], "failed");
    let why = left["error"]["message"].as_str().unwrap();
    assert!(why.contains("HEAD is detached"), "{why}");
    assert_eq!(
        fs::read_to_string(worktree(&left).join("a")).unwrap(),
        "x\n"
    );
}

#[test]
fn no_hook_and_no_filter_runs_and_what_takes_one_is_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitattributes", "*.big filter=big\n*.crlf eol=crlf\n");
    ws.write("a.big", "big\n");
    ws.write("b.crlf", "one\n");
    ws.commit("second");
    let ran = ws.base().join("ran");
    let script = format!("#!/bin/sh\ntouch {}\nexit 1\n", ran.display());
    for hook in [
        "pre-commit",
        "commit-msg",
        "post-commit",
        "post-checkout",
        "reference-transaction",
    ] {
        ws.write_executable(format!(".git/hooks/{hook}"), &script);
    }
    ws.git([
        "config",
        "filter.big.clean",
        &format!("touch {}; false", ran.display()),
    ]);
    ws.git([
        "config",
        "filter.big.smudge",
        &format!("touch {}; false", ran.display()),
    ]);
    ws.git(["config", "filter.big.required", "true"]);
    ws.git(["config", "commit.gpgSign", "true"]);
    fs::remove_file(&ran).ok();
    let script =
        "cat b.crlf | od -c | head -1 > seen; printf 'two\\r\\n' >> b.crlf; echo more >> a.big";
    let run = isolated(&ws, &[], script).ok().json();
    assert!(!ran.exists(), "no program ran");
    assert_eq!(
        run["isolation"]["unconverted_paths"],
        json!(["a.big"]),
        "{run}"
    );
    let commit = text(&run, "commit");
    let cat = |path: &str| {
        let blob = format!("{commit}:{path}");
        ws.git_call(["cat-file", "blob", &blob]).run().ok().stdout
    };
    assert_eq!(cat("b.crlf"), b"one\ntwo\n");
    assert_eq!(cat("a.big"), b"big\n");
    let seen = String::from_utf8(cat("seen")).unwrap();
    assert!(
        seen.contains("\\r  \\n"),
        "written as git writes it: {seen}"
    );
}

#[test]
fn a_subdirectory_is_where_the_work_begins() {
    let mut ws = TestWorkspace::repository();
    ws.write("deep/a", "a\n");
    ws.commit("second");
    ws.set_root("work/deep");
    let run = done(&ws, "pwd > where; echo top > ../top");
    let at = fs::read_to_string(worktree(&run).join("deep/where")).unwrap();
    assert_eq!(at.trim(), worktree(&run).join("deep").to_str().unwrap());
    let changed = ws.git([
        "diff",
        "--name-only",
        text(&run, "base"),
        text(&run, "commit"),
    ]);
    assert_eq!(changed, "deep/where\ntop");
}

// Recovery.

#[test]
fn what_is_missing_of_a_candidate_when_an_engine_starts_fails_the_run_with_the_reason() {
    let ws = TestWorkspace::repository();
    let hand_in = || done(&ws, "echo x > new");
    let [gone, no_branch, moved, right] = [hand_in(), hand_in(), hand_in(), hand_in()];
    fs::remove_dir_all(worktree(&gone)).unwrap();
    ws.git(["update-ref", "-d", text(&no_branch, "worktree_branch")]);
    let tree = ws.git(["rev-parse", "HEAD^{tree}"]);
    let other = ws.git([
        "commit-tree",
        &tree,
        "-p",
        text(&moved, "base"),
        "-m",
        "other",
    ]);
    ws.git(["update-ref", text(&moved, "worktree_branch"), &other]);
    for (run, reason) in [
        (&gone, "recovered_worktree_missing"),
        (&no_branch, "recovered_worktree_branch_missing"),
        (&moved, "recovered_tree_hash_mismatch"),
    ] {
        let shown = show(&ws, run);
        assert_eq!(shown["status"], "failed", "{reason}");
        let why = shown["error"]["message"].as_str().unwrap();
        assert!(why.starts_with(reason), "{why}");
        let last = ws.events(["--run", id(run)]).pop().unwrap();
        assert_eq!(last["type"], "run_failed");
        assert_eq!(last["data"]["reason"], reason);
        assert_eq!(last["data"]["recovered"], true);
    }
    assert_eq!(show(&ws, &right)["status"], "awaiting_review");
    // What is left is kept, and a second start finds nothing to do.
    assert!(
        ws.git(["for-each-ref"])
            .contains(text(&gone, "worktree_branch"))
    );
    assert!(worktree(&no_branch).join("new").exists());
    let count = ws.events::<&str>([]).len();
    ws.json(["runs"]);
    assert_eq!(ws.events::<&str>([]).len(), count);
    let told = types(&ws, &right);
    assert_eq!(
        told.iter().filter(|one| *one == "review_requested").count(),
        1,
        "{told:?}"
    );
    // They can be let go of like any other.
    for run in [&gone, &no_branch, &moved] {
        ws.json(["worktree", "discard", id(run)]);
        assert_eq!(is_there(&ws, run), [false; 3]);
    }
}

#[test]
fn a_run_whose_host_is_killed_at_work_keeps_branch_and_worktree() {
    let ws = TestWorkspace::repository();
    let script = "echo x > new; touch \"$HOME/began\"; sleep 60";
    let mut running = ws
        .call(["run", "--isolate", "--", "sh", "-c", script])
        .start();
    wait_for(&ws.home().join("began"));
    running.kill();
    let run = ws.json(["runs"])[0].clone();
    assert_eq!(run["status"], "failed");
    let why = run["error"]["message"].as_str().unwrap();
    assert!(why.starts_with("stranded_in_progress"), "{why}");
    assert_eq!(is_there(&ws, &run), [true; 3]);
    let shown = show(&ws, &run);
    assert_eq!(
        shown["workspace"]["diff"]["changed_paths"],
        json!(["new"]),
        "{shown}"
    );
    ws.json(["worktree", "discard", id(&run)]);
    assert_eq!(is_there(&ws, &run), [false; 3]);
}

/// Kills a host at moments that are spread over all that it does, and demands of what is found
/// afterwards that nobody lost anything.
#[test]
fn whoever_is_killed_in_an_isolated_run_leaves_what_the_next_one_goes_on_with() {
    let rounds = counted(KILLS, 12);
    let ws = TestWorkspace::repository();
    for n in 0..40 {
        ws.write(format!("d/{n}"), format!("{n}\n"));
    }
    ws.commit("second");
    let before = checkout(&ws);
    let whole = isolated(&ws, &[], "echo x > new").ok();
    let whole = whole.took;
    let mut endings = BTreeSet::new();
    for round in 0..rounds {
        let run_id = format!("round-{round}");
        let script = format!("echo {round} > new; echo {round} > \"$HOME/wrote{round}\"");
        let args = [
            "--json",
            "run",
            "--isolate",
            "--run-id",
            &run_id,
            "--",
            "sh",
            "-c",
            &script,
        ];
        let mut running = ws.call(args).start();
        let at = whole.mul_f64(f64::from(u32::try_from(round).unwrap() % 12 + 1) / 12.0);
        thread::sleep(at);
        running.kill();
        let wrote = ws.home().join(format!("wrote{round}")).exists();
        // Whoever comes next settles it, and whoever comes after that has nothing to do.
        let runs = ws.json(["runs"]);
        let events = ws.events::<&str>([]).len();
        assert_eq!(ws.json(["runs"]), runs);
        assert_eq!(
            ws.events::<&str>([]).len(),
            events,
            "a second recovery finds nothing to do"
        );
        let found = runs
            .as_array()
            .unwrap()
            .iter()
            .find(|run| run["run_id"] == *run_id);
        let Some(run) = found else {
            assert!(!wrote);
            endings.insert("nothing".to_owned());
            continue;
        };
        let status = run["status"].as_str().unwrap();
        match status {
            "awaiting_review" => {
                assert_eq!(is_there(&ws, run), [true; 3]);
                let commit = text(run, "commit");
                assert_eq!(ws.git(["rev-parse", text(run, "worktree_branch")]), commit);
                assert_eq!(
                    ws.git(["rev-parse", &format!("{commit}^")]),
                    text(run, "base")
                );
                assert_eq!(
                    ws.git(["show", &format!("{commit}:new")]),
                    round.to_string()
                );
                assert_eq!(in_worktree(&ws, run, &["status", "--porcelain"]), "");
                ws.stillframe(["artifact", "get", text(run, "diff")]).ok();
                let told = types(&ws, run);
                let once = |of: &str| told.iter().filter(|one| *one == of).count();
                assert_eq!(once("run_concluded"), 1, "{told:?}");
                ws.json(["review", "decline", &run_id]);
                ws.json(["worktree", "discard", &run_id]);
            }
            "failed" | "interrupted" | "cancelled" => {
                if wrote && is_there(&ws, run)[2] {
                    let new = fs::read_to_string(worktree(run).join("new")).unwrap();
                    assert_eq!(new, format!("{round}\n"));
                }
                if status == "interrupted" {
                    ws.json(["cancel", &run_id]);
                }
                ws.json(["worktree", "discard", &run_id]);
            }
            other => panic!("{other}: {run}"),
        }
        assert_eq!(is_there(&ws, run), [false; 3], "{status}");
        endings.insert(status.to_owned());
    }
    assert_eq!(checkout(&ws), before);
    git::run(&ws.home(), ws.root(), ["fsck", "--strict", "--no-dangling"]);
    assert!(
        endings.len() > 1,
        "the loop came to one ending alone: {endings:?}"
    );
}

// The host API.

/// Lets one person decide.
struct Only(&'static str);

impl OwnerCheck for Only {
    async fn may_decide(&self, run: &IsolatedRun, reviewer: Option<&str>) -> bool {
        assert_eq!(run.session_id.as_str(), "ticket");
        reviewer == Some(self.0)
    }
}

struct Writes(&'static str);

impl Adapter for Writes {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let workspace = context.workspace.clone().unwrap();
        fs::write(workspace.join(self.0), "x\n").unwrap();
        Ok(AdapterOutput::empty())
    }
}

#[tokio::test]
async fn a_host_gives_runs_worktrees_and_decides_about_what_they_hand_in() {
    let ws = TestWorkspace::repository();
    let options = EngineOptions::default().state_dir(ws.state());
    let engine = Engine::start(options.owner_check(Only("ann")))
        .await
        .unwrap();
    let session = engine.session("ticket").await.unwrap();
    let options = || {
        RunOptions::new("add a file")
            .workspace(WorkspaceOptions::at(ws.root()))
            .isolated(IsolationOptions::new().message("Add it".to_owned()))
    };
    let [one, two] = tokio::join!(
        session.execute_run(options(), Writes("one")),
        session.execute_run(options(), Writes("two"))
    )
    .into();
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.run.status, RunStatus::AwaitingReview, "{one:?}");
    let isolation = one.isolation.as_ref().unwrap();
    let said = ws.git([
        "log",
        "-1",
        "--format=%s",
        isolation.commit.as_deref().unwrap(),
    ]);
    assert_eq!(said, "Add it");
    let waiting: Vec<IsolatedRun> = engine.pending_reviews().await.unwrap();
    assert_eq!(waiting.len(), 2);
    // Started again, it is answered from its record.
    let again = options().run_id(one.run_id.clone());
    let again = session.execute_run(again, Writes("three")).await.unwrap();
    assert!(again.is_stored);
    assert_eq!(again.isolation, one.isolation);

    let review = engine.review(two.run_id.as_str()).await.unwrap();
    let diff = review.diff(Default::default()).await.unwrap().diff;
    assert_eq!(diff.added.len(), 1);
    let events = engine.events(EventQuery::all()).await.unwrap().len();
    for nobody in [None, Some("bob")] {
        let refused = review.decline(nobody).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let mut approval = Approval::of(review.run()).unwrap();
        approval.reviewer = nobody.map(str::to_owned);
        let refused = review.approve(approval).await.unwrap_err();
        assert!(refused.to_string().contains("not its owner"), "{refused}");
        let mut request = ChangeRequest::new("more");
        request.reviewer = nobody.map(str::to_owned);
        let again = engine
            .request_changes(
                two.run_id.as_str(),
                request,
                RunOptions::new(""),
                Writes("more"),
            )
            .await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict);
    }
    assert_eq!(
        engine.events(EventQuery::all()).await.unwrap().len(),
        events
    );
    let declined = review.decline(Some("ann")).await.unwrap();
    assert_eq!(declined.status, RunStatus::Declined);
    let refused = engine
        .discard_worktree(one.run_id.as_str())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    let refused = engine.cancel_run(&one.run_id).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "it has done its work");
    engine.discard_worktree(two.run_id.as_str()).await.unwrap();
    assert_eq!(engine.isolated_runs().await.unwrap().len(), 1);

    let queued = session
        .submit_run(options(), "none", Value::Null)
        .await
        .unwrap_err();
    assert_eq!(queued.kind(), ErrorKind::InvalidOptions);
    engine.shutdown().await.unwrap();
}
