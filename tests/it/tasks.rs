//! `task`: work that leaves the machine, with remotes that people have, and git as the oracle.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use stillframe::tasks::WorkBranchOptions;
use stillframe::{Engine, EngineOptions, WorkspaceOptions};
use stillframe_tests::choice::is_chosen;
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::shapes::{self, Backend};
use stillframe_tests::{Output, TestWorkspace, binary, git};

const BRANCH: &str = "stillframe/task/42";

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

/// How often a host is killed, and two machines save at once, where that is not what each change
/// can afford.
pub(crate) const KILLS: &str = "STILLFRAME_TASK_KILLS";
const ROUNDS: &str = "STILLFRAME_TASK_ROUNDS";

/// What the variable says, or else this.
pub(crate) fn counted(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |count| count.parse().unwrap())
}

/// A bare repository beside the workspace.
fn remote(ws: &TestWorkspace) -> PathBuf {
    let path = ws.base().join("remote.git");
    let parent = ws.base().to_owned();
    git::text(&ws.home(), &parent, ["init", "-q", "--bare", "remote.git"]);
    path
}

/// Where the remote has a branch, as git itself says.
fn at(ws: &TestWorkspace, remote: &Path, branch: &str) -> Option<String> {
    let full = format!("refs/heads/{branch}");
    let listed = git::text(
        &ws.home(),
        ws.base(),
        ["ls-remote", remote.to_str().unwrap(), &full],
    );
    listed.split_whitespace().next().map(str::to_owned)
}

fn save(ws: &TestWorkspace, remote: &Path) -> Output {
    let remote = remote.to_str().unwrap();
    ws.try_json(["task", "checkpoint", "42", "--remote", remote])
}

fn saved(ws: &TestWorkspace, remote: &Path) -> Value {
    save(ws, remote).ok().json()
}

fn commit(document: &Value) -> &str {
    document["commit"].as_str().unwrap()
}

fn hook(remote: &Path, name: &str, script: &str) {
    let path = remote.join("hooks").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_branch_is_named_by_the_task_and_its_project_or_refused() {
    let ws = TestWorkspace::plain();
    let name = |args: &[&str]| {
        let args = ["task", "name"].iter().chain(args).copied();
        ws.try_json(args)
    };
    let named = |args: &[&str]| {
        name(args).ok().json()["branch"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(named(&["42"]), BRANCH);
    assert_eq!(
        named(&["18693", "--namespace", "AzureRepos/Engineering"]),
        "stillframe/task/azurerepos/engineering/18693"
    );
    assert_eq!(
        named(&["1", "--namespace", "p/Käseträger Über-Service"]),
        "stillframe/task/p/k-setr-ger-ber-service/1"
    );
    let long = "x".repeat(200);
    for wrong in [
        &["a/b"][..],
        &["a..b"],
        &["a b"],
        &[""],
        &["x.lock"],
        &[long.as_str()],
        &["1", "--namespace", "p/日本"],
        &["1", "--namespace", "/p"],
        &["1", "--namespace", "p"],
    ] {
        name(wrong).exits(2).error("InvalidOptions");
    }
    assert!(
        !ws.state().join("stillframe.db").exists()
            || ws.json(["task", "list"]) == Value::Array(vec![])
    );
}

/// The shapes of which nothing can be sent.
const REFUSED_SHAPES: [&str; 2] = ["shallow", "partial_clone"];

#[test]
fn work_is_on_its_branch_and_nothing_of_the_users_moves_in_any_shape_of_a_repository() {
    for shape in shapes::SHAPES {
        if shape.backend != Backend::Git || !is_chosen(shape.name, 3) {
            continue;
        }
        let ws = (shape.make)();
        let remote = remote(&ws);
        ws.settle();
        let output = ws.untouched(|| save(&ws, &remote));
        if output.code != 0 {
            // What cannot be sent is typed, and kept or said not to be made.
            let said = output.stderr_text() + &output.stdout_text();
            let kinds = match shape.name {
                // What a partial clone does not have, it cannot send either.
                "partial_clone" => ["Corrupt"],
                // Its history ends where an empty remote has nothing either, and git takes none of
                // that.
                "shallow" => ["shallow update not allowed"],
                _ => ["Unsupported"],
            };
            let is_typed = kinds.iter().any(|kind| said.contains(kind));
            assert!(is_typed, "{}: {said}", shape.name);
            assert_eq!(at(&ws, &remote, BRANCH), None, "{}", shape.name);
            assert!(REFUSED_SHAPES.contains(&shape.name), "{}", shape.name);
            continue;
        }
        assert!(!REFUSED_SHAPES.contains(&shape.name), "{}", shape.name);
        let document = output.json();
        let Some(commit) = document["commit"].as_str() else {
            assert_eq!(
                document["state"], "no_changes",
                "{}: {document}",
                shape.name
            );
            continue;
        };
        assert_eq!(
            at(&ws, &remote, BRANCH).as_deref(),
            Some(commit),
            "{}",
            shape.name
        );
        let fsck = git::call(&ws.home(), &remote, ["fsck", "--strict", "--no-dangling"]);
        fsck.run().ok();
    }
}

#[test]
fn a_commit_has_what_git_would_add_and_its_message_says_whose_it_is() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.write("staged", "staged\n");
    ws.git(["add", "staged"]);
    ws.write("staged", "and changed\n");
    ws.write("README", "changed\n");
    ws.write("untracked", "new\n");
    let head = ws.git(["rev-parse", "HEAD"]);
    let document = ws.untouched(|| saved(&ws, &remote));
    assert_eq!(document["state"], "pushed");
    let of_remote = |args: &[&str]| git::text(&ws.home(), &remote, args);
    let made = commit(&document);
    assert_eq!(of_remote(&["log", "-1", "--format=%P", made]), head);
    assert_eq!(
        of_remote(&["log", "-1", "--format=%B", made]),
        "[checkpoint] task 42\n\nRun-Id: unknown\nPipeline: unknown\nStep: unknown\n\
         Task: 42\nCheckpoint-Kind: periodic\n"
    );
    ws.git(["add", "--all"]);
    let tree = ws.git(["write-tree"]);
    assert_eq!(of_remote(&["log", "-1", "--format=%T", made]), tree);

    let own = [
        "task",
        "checkpoint",
        "42",
        "--message",
        "save {task}: half",
        "--remote",
    ];
    ws.write("README", "once more\n");
    let own = own.iter().copied().chain([remote.to_str().unwrap()]);
    let document = ws.json(own);
    let subject = of_remote(&["log", "-1", "--format=%s", commit(&document)]);
    assert_eq!(subject, "save 42: half");
}

#[test]
fn what_is_there_and_proven_is_not_made_again() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    // Nothing is new, and the head is not on the remote: that is sent.
    let head = ws.git(["rev-parse", "HEAD"]);
    let first = saved(&ws, &remote);
    assert_eq!(
        (first["state"].as_str(), commit(&first)),
        (Some("pushed"), &*head)
    );
    assert_eq!(first["is_new"], false);
    let second = saved(&ws, &remote);
    assert_eq!(
        (second["state"].as_str(), commit(&second)),
        (Some("no_changes"), &*head)
    );
    ws.write("new", "x\n");
    let third = saved(&ws, &remote);
    assert_eq!(third["state"], "pushed");
    let fourth = saved(&ws, &remote);
    assert_eq!(fourth["state"], "no_changes");
    assert_eq!(commit(&third), commit(&fourth));
    // Somebody removes the branch: it is sent again, though nothing has changed.
    git::text(
        &ws.home(),
        &remote,
        ["update-ref", "-d", &format!("refs/heads/{BRANCH}")],
    );
    let fifth = saved(&ws, &remote);
    assert_eq!(
        (fifth["state"].as_str(), commit(&fifth)),
        (Some("pushed"), commit(&third))
    );
    let shown = ws.json(["task", "show", "42"]);
    assert_eq!(shown["checkpoints"].as_array().unwrap().len(), 2, "{shown}");
}

#[test]
fn a_commit_whose_push_failed_is_sent_by_the_next_though_nothing_has_changed() {
    let ws = TestWorkspace::repository();
    ws.write("new", "x\n");
    let later = ws.base().join("remote.git");
    let failed = save(&ws, &later).exits(1).json();
    assert_eq!(failed["state"], "not_saved");
    assert!(
        failed["kept_as"]
            .as_str()
            .unwrap()
            .starts_with("refs/checkpoints/")
    );
    let remote = remote(&ws);
    let sent = saved(&ws, &remote);
    assert_eq!(sent["state"], "pushed");
    assert_eq!(commit(&sent), commit(&failed));
    assert_eq!(at(&ws, &remote, BRANCH).as_deref(), Some(commit(&failed)));
}

#[test]
fn a_branch_with_a_history_of_its_own_stays_and_the_work_goes_beside_it() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.write("ours", "x\n");
    saved(&ws, &remote);
    // Somebody else replaces the branch by a commit that ours does not go on from.
    let other = ws.git(["commit-tree", "-m", "theirs", "HEAD^{tree}"]);
    let full = format!("refs/heads/{BRANCH}");
    ws.git([
        "push",
        "-q",
        "--force",
        remote.to_str().unwrap(),
        &format!("{other}:{full}"),
    ]);
    ws.write("ours", "more\n");
    let answer = save(&ws, &remote).exits(1);
    let document = answer.json();
    assert_eq!(document["state"], "pushed_beside");
    assert_eq!(document["failure"], "RemoteDivergent");
    let error = document["error"].as_str().unwrap();
    assert_eq!(answer.stderr_text().matches(error).count(), 1, "{answer}");
    assert_eq!(at(&ws, &remote, BRANCH), Some(other), "theirs stays");
    let side = document["side_branch"].as_str().unwrap();
    assert!(side.starts_with(&format!("{BRANCH}--diverged-")), "{side}");
    assert_eq!(at(&ws, &remote, side).as_deref(), Some(commit(&document)));
    let said = ws.stillframe([
        "task",
        "checkpoint",
        "42",
        "--remote",
        remote.to_str().unwrap(),
    ]);
    let said = said.exits(1);
    assert!(said.stdout_text().contains(side), "{}", said.stdout_text());
    let next = format!("fetch and merge {BRANCH}--diverged-");
    assert!(said.stderr_text().contains(&next), "{said}");
    let listed = ws.stillframe(["task", "list"]).ok().stdout_text();
    let proven = format!(" proven on {BRANCH}--diverged-");
    assert!(listed.contains(&proven), "{listed}");
}

#[test]
fn somebody_who_goes_on_from_our_commit_has_it_and_keeps_his_own() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.write("ours", "x\n");
    let first = saved(&ws, &remote);
    let made = commit(&first).to_owned();
    git::text(
        &ws.home(),
        &remote,
        ["config", "user.email", "o@example.com"],
    );
    git::text(&ws.home(), &remote, ["config", "user.name", "o"]);
    let tree = format!("{made}^{{tree}}");
    let theirs = git::text(
        &ws.home(),
        &remote,
        ["commit-tree", "-m", "on", "-p", &made, &tree],
    );
    let full = format!("refs/heads/{BRANCH}");
    git::text(&ws.home(), &remote, ["update-ref", &full, &theirs]);
    let second = saved(&ws, &remote);
    assert_eq!(
        (second["state"].as_str(), commit(&second)),
        (Some("no_changes"), &*made)
    );
    assert_eq!(second["advanced_to"], *theirs);
    // What goes on from ours and not from theirs is beside it.
    ws.write("ours", "more\n");
    let third = save(&ws, &remote).exits(1).json();
    assert_eq!(third["state"], "pushed_beside");
    assert_eq!(at(&ws, &remote, BRANCH), Some(theirs));
}

#[test]
fn a_secret_value_stays_here_until_the_user_says_that_it_is_none() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.write("d/key", format!("a\ntoken = {SECRET}\n"));
    let output = save(&ws, &remote).exits(1);
    let document = output.json();
    assert_eq!(
        (document["state"].as_str(), document["failure"].as_str()),
        (Some("not_saved"), Some("SecretFound"))
    );
    let found = &document["secrets"][0];
    assert_eq!(
        (&found["rule"], &found["path"], &found["line"]),
        (&"github_token".into(), &"d/key".into(), &2.into())
    );
    assert_eq!(at(&ws, &remote, BRANCH), None);
    let objects = git::text(&ws.home(), &remote, ["count-objects"]);
    assert!(objects.starts_with("0 objects"), "{objects}");
    // Taken away again it is still in a commit that was made: the next one does not go on from
    // that.
    ws.remove("d/key");
    ws.write("other", "x\n");
    let clean = saved(&ws, &remote);
    let history = git::text(&ws.home(), &remote, ["log", "-p", commit(&clean)]);
    assert!(!history.contains(SECRET), "{history}");

    ws.write("d/key", format!("a\ntoken = {SECRET}\n"));
    let refused = save(&ws, &remote).exits(1);
    let said = refused.stdout_text() + &refused.stderr_text();
    assert!(!said.contains(SECRET), "{said}");
    let fingerprint = refused.json()["secrets"][0]["fingerprint"]
        .as_str()
        .unwrap()
        .to_owned();
    ws.try_json(["task", "allow-secret", "no_rule", "d/key", &fingerprint])
        .refused("InvalidOptions");
    ws.json([
        "task",
        "allow-secret",
        "github_token",
        "d/key",
        &fingerprint,
    ]);
    let sent = saved(&ws, &remote);
    assert_eq!(sent["state"], "pushed");
    ws.json([
        "task",
        "allow-secret",
        "github_token",
        "d/key",
        &fingerprint,
    ]);
    let listed = ws.json(["task", "allow-secret"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["path"], "d/key");
    assert_eq!(listed[0]["fingerprint"], fingerprint);
    let take_back = [
        "task",
        "allow-secret",
        "--remove",
        "github_token",
        "d/key",
        &fingerprint,
    ];
    assert_eq!(ws.json(take_back)["allowed"], false);
    ws.try_json(take_back).error("NotFound");
    assert_eq!(ws.json(["task", "allow-secret"]), serde_json::json!([]));
    ws.try_json(["task", "allow-secret", "--remove"]).exits(2);
    ws.try_json(["task", "allow-secret", "github_token"])
        .exits(2);
    // What was sent is there; what would be revealed once more is refused.
    ws.write("d/key", format!("b\nother = {SECRET}\n"));
    let again = save(&ws, &remote).exits(1).json();
    assert_eq!(again["failure"], "SecretFound");
    let types = ["--type", "secret_allowed", "--type", "secret_forbidden"];
    let told = ws.events(types);
    let types: Vec<&Value> = told.iter().map(|event| &event["type"]).collect();
    assert_eq!(types, ["secret_allowed", "secret_forbidden"]);
    assert_eq!(told[1]["data"]["fingerprint"], fingerprint);
    let database = ["stillframe.db", "stillframe.db-wal"];
    let database = database.map(|name| fs::read(ws.state().join(name)).unwrap_or_default());
    let database = database.concat();
    assert!(!database.is_empty());
    assert!(
        !database
            .windows(SECRET.len())
            .any(|bytes| bytes == SECRET.as_bytes())
    );
}

#[test]
fn a_secret_value_that_is_typed_as_a_path_is_kept_and_shown_nowhere() {
    let ws = TestWorkspace::repository();
    let fingerprint = "0".repeat(64);
    for option in [&[][..], &["--remove"]] {
        let path = format!("d/{SECRET}/x");
        let words = ["github_token", &path, &fingerprint];
        let args = [&["task", "allow-secret"], option, &words].concat();
        for args in [args.clone(), [&["--json"][..], &args].concat()] {
            let output = ws.stillframe(args);
            let said = output.stdout_text() + &output.stderr_text();
            assert!(!said.contains(SECRET), "{said}");
        }
        let listed = ws.stillframe(["task", "allow-secret"]).ok();
        assert!(!listed.stdout_text().contains(SECRET), "{listed}");
        assert_eq!(listed.stdout_text().contains("d/"), option.is_empty());
    }
    let events = ws.stillframe(["events"]).ok();
    assert!(!events.stdout_text().contains(SECRET), "{events}");
}

#[test]
fn a_path_without_a_repository_and_a_lock_that_stays_are_told_apart() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.write("new", "x\n");
    let nowhere = save(&ws, "/nowhere/401/remote.git".as_ref())
        .exits(1)
        .json();
    assert_eq!(nowhere["failure"], "LocalGit");
    let said = "fatal: '/nowhere/401/remote.git' does not appear to be a git repository";
    assert!(
        nowhere["error"].as_str().unwrap().ends_with(said),
        "{nowhere}"
    );
    let lock = remote.join(format!("refs/heads/{BRANCH}.lock"));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::write(&lock, "").unwrap();
    let locked = save(&ws, &remote).exits(1).json();
    assert_eq!(locked["failure"], "Unknown");
    assert!(
        locked["error"].as_str().unwrap().contains("File exists."),
        "{locked}"
    );
    fs::remove_file(lock).unwrap();
    let sent = saved(&ws, &remote);
    assert_eq!(at(&ws, &remote, BRANCH).as_deref(), Some(commit(&sent)));
}

#[test]
fn what_the_remote_refuses_is_kept_and_is_no_parent_of_the_next() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let said = format!("echo '401 rejected' >&2; echo 'a ticket, not {SECRET}' >&2; exit 1");
    hook(&remote, "pre-receive", &said);
    ws.write("new", "x\n");
    let refused = save(&ws, &remote).exits(1);
    let all = refused.stdout_text() + &refused.stderr_text();
    assert!(!all.contains(SECRET), "{all}");
    let refused = refused.json();
    assert_eq!(refused["failure"], "RemotePolicyRejected");
    let error = refused["error"].as_str().unwrap();
    let said = "the remote says: 401 rejected / a ticket, not [redacted:";
    assert!(error.contains(said), "{error}");
    fs::remove_file(remote.join("hooks/pre-receive")).unwrap();
    ws.write("new", "y\n");
    let next = saved(&ws, &remote);
    let history = git::text(&ws.home(), &remote, ["rev-list", commit(&next)]);
    assert!(!history.contains(commit(&refused)), "{history}");
    let shown = ws.json(["task", "show", "42"]);
    let statuses: Vec<&str> = shown["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["refused", "proven"]);
}

#[test]
fn without_a_remote_the_work_is_kept_and_a_remote_that_is_named_must_be_there() {
    let ws = TestWorkspace::repository();
    ws.write("new", "x\n");
    let kept = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(
        (kept["state"].as_str(), &kept["remote"]),
        (Some("recorded_only"), &Value::Null)
    );
    let message = ws
        .try_json(["task", "checkpoint", "42", "--remote", "upstream"])
        .refused("NotFound");
    assert!(message.contains("upstream"), "{message}");
    ws.git(["remote", "add", "origin", "../remote.git"]);
    let remote = remote(&ws);
    let sent = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(
        (sent["state"].as_str(), commit(&sent)),
        (Some("pushed"), commit(&kept))
    );
    assert_eq!(at(&ws, &remote, BRANCH).as_deref(), Some(commit(&sent)));
}

#[test]
fn addresses_and_places_that_cannot_be_are_refused_before_anything_is_done() {
    let ws = TestWorkspace::repository();
    for remote in [
        "ext::sh -c true",
        "http://example.com/a.git",
        "ftp://example.com/a",
        "https://",
    ] {
        for args in [
            &["task", "checkpoint", "42", "--remote", remote][..],
            &["run", "--task", "42", "--remote", remote, "--", "true"],
        ] {
            ws.try_json(args).exits(2).error("InvalidOptions");
        }
    }
    let plain = TestWorkspace::plain();
    plain.write("a", "x\n");
    plain
        .try_json(["task", "checkpoint", "42"])
        .refused("Unsupported");
    // A repository suggests an address, and nothing else.
    ws.git(["config", "remote.origin.url", "ext::sh -c 'touch owned'"]);
    ws.try_json(["task", "checkpoint", "42"])
        .refused("InvalidOptions");
    ws.git([
        "config",
        "remote.origin.url",
        "https://user:pass@127.0.0.1:1/a.git",
    ]);
    ws.git(["config", "core.sshCommand", "touch owned"]);
    ws.git(["config", "url.ext::sh -c false.insteadOf", "https://"]);
    let blip = ws.try_json(["task", "checkpoint", "42"]).exits(1);
    assert_eq!(blip.json()["failure"], "NetworkBlip");
    assert!(!(blip.stdout_text() + &blip.stderr_text()).contains("pass"));
    assert!(!ws.exists("owned"));
    assert_eq!(ws.json(["task", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn three_denials_in_a_row_flag_the_task_and_a_token_gets_through_and_nowhere_else() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    git::text(&ws.home(), &remote, ["config", "http.receivepack", "true"]);
    let options = HttpOptions {
        user: Some(("x-access-token", "t0ken-of-the-test-7c1")),
        ..HttpOptions::default()
    };
    let Some(server) = HttpServer::start(&ws.base().join("http"), ws.base(), options) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/remote.git", server.port());
    ws.write("new", "x\n");
    let call = |token: Option<&str>| {
        let args = ["--json", "task", "checkpoint", "42", "--remote", &url];
        let args: Vec<&str> = args.into_iter().chain(["--token-env", "OURS"]).collect();
        let call = ws.call(&args);
        match token {
            Some(token) => call.env("OURS", token).run(),
            None => call.run(),
        }
    };
    for (token, failures) in [(Some("wr0ng"), 1), (None, 2), (Some("wr0ng"), 3)] {
        let denied = call(token).exits(1).json();
        assert_eq!(denied["failure"], "AuthDenied", "{denied}");
        let shown = ws.json(["task", "show", "42"]);
        assert_eq!(shown["failures_in_a_row"], failures);
        assert_eq!(shown["flagged"], failures == 3);
    }
    let sent = call(Some("t0ken-of-the-test-7c1")).ok();
    assert_eq!(sent.json()["state"], "pushed");
    let shown = ws.json(["task", "show", "42"]);
    assert_eq!(
        (&shown["failures_in_a_row"], &shown["flagged"]),
        (&0.into(), &false.into())
    );
    for entry in walkdir::WalkDir::new(ws.state())
        .into_iter()
        .map(Result::unwrap)
    {
        if entry.file_type().is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            let token = b"t0ken-of-the-test-7c1";
            let has_it = bytes.windows(token.len()).any(|at| at == token);
            assert!(!has_it, "{}", entry.path().display());
        }
    }
}

#[test]
fn of_two_machines_that_save_at_once_no_commit_is_lost() {
    let rounds = counted(ROUNDS, 20);
    let machines = [TestWorkspace::repository(), TestWorkspace::repository()];
    let remote = remote(&machines[0]);
    let mut made = Vec::new();
    for round in 0..rounds {
        let documents: Vec<Value> = thread::scope(|scope| {
            let saving = machines.iter().enumerate().map(|(at, ws)| {
                let remote = &remote;
                scope.spawn(move || {
                    ws.write(format!("of{at}"), format!("{round}\n"));
                    let output = save(ws, remote);
                    output.json()
                })
            });
            let saving: Vec<_> = saving.collect();
            saving.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for document in documents {
            let branch = match document["state"].as_str().unwrap() {
                "pushed" | "no_changes" => document["branch"].as_str(),
                "pushed_beside" => document["side_branch"].as_str(),
                other => panic!("{other}: {document}"),
            };
            made.push((branch.unwrap().to_owned(), commit(&document).to_owned()));
        }
        for (branch, commit) in &made {
            let tip = at(&machines[0], &remote, branch).unwrap();
            let is_there = ["merge-base", "--is-ancestor", commit, &tip];
            git::call(&machines[0].home(), &remote, is_there).run().ok();
        }
    }
}

/// The outcome of a command of the task, which exits so.
fn run(ws: &TestWorkspace, remote: &Path, code: i32, script: &str) -> Value {
    let remote = remote.to_str().unwrap();
    let args = [
        "run", "--task", "42", "--remote", remote, "--", "sh", "-c", script,
    ];
    ws.try_json(args).exits(code).json()
}

#[test]
fn however_a_run_of_a_task_ends_its_work_is_on_the_branch_before_the_run_has_ended() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let remote_text = remote.to_str().unwrap();
    let ended = |outcome: &Value, state: &str, subject: &str| {
        assert_eq!(outcome["status"], state, "{outcome}");
        let saved = &outcome["workspace"]["saved"];
        assert_eq!(saved["state"], "pushed", "{outcome}");
        let made = commit(saved).to_owned();
        assert_eq!(at(&ws, &remote, BRANCH).as_deref(), Some(&*made));
        let log = ["log", "-1", "--format=%s", &made];
        let said = git::text(&ws.home(), &remote, log);
        let id = outcome["run_id"].as_str().unwrap();
        assert_eq!(said, format!("[{subject}] stillframe run {id}"));
        let shown = ws.show(id);
        let types: Vec<&str> = shown["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .filter(|name| name.starts_with("persist") || name.starts_with("run_"))
            .collect();
        let last = format!("run_{state}");
        let expected = [
            "run_started",
            "persist_started",
            "persist_committed",
            "persist_pushed",
            &last,
        ];
        assert_eq!(types, expected);
        assert_eq!(shown["workspace"]["saved"]["commit"], *made);
    };
    ended(
        &run(&ws, &remote, 3, "echo x > failed; exit 3"),
        "failed",
        "wip",
    );
    ended(
        &run(&ws, &remote, 0, "echo x > done"),
        "completed",
        "checkpoint",
    );
    let slow = [
        "run",
        "--task",
        "42",
        "--remote",
        remote_text,
        "--timeout",
        "1s",
        "--",
    ];
    let slow = slow
        .into_iter()
        .chain(["sh", "-c", "echo x > slow; sleep 30"]);
    ended(&ws.try_json(slow).exits(124).json(), "timeout", "wip");
    let back = [
        "run",
        "--task",
        "42",
        "--remote",
        remote_text,
        "--rollback-on-failure",
        "--",
    ];
    let back = back
        .into_iter()
        .chain(["sh", "-c", "echo x > back; exit 4"]);
    ended(&ws.try_json(back).exits(4).json(), "failed", "wip");
    assert!(
        !ws.exists("back"),
        "it was rolled back, and is on the branch"
    );
    let tree = git::text(&ws.home(), &remote, ["ls-tree", "--name-only", BRANCH]);
    assert_eq!(tree, "README\nback\ndone\nfailed\nslow");
    // One that changes nothing has nothing to save, and that is proven.
    let none = run(&ws, &remote, 0, "rm failed; echo x > failed");
    assert_eq!(none["workspace"]["saved"]["state"], "no_changes");
    assert!(ws.exists("back"), "the next run goes on from the branch");
}

#[test]
fn a_run_goes_on_from_the_branch_or_does_not_begin_and_a_failure_to_save_is_not_its_own() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let other = ws.git(["commit-tree", "-m", "theirs", "HEAD^{tree}"]);
    let push = format!("{other}:refs/heads/{BRANCH}");
    ws.git(["push", "-q", remote.to_str().unwrap(), &push]);
    ws.git(["branch", "-q", BRANCH]);
    let call = |remote: &str| {
        let args = [
            "run", "--task", "42", "--remote", remote, "--", "touch", "ran",
        ];
        ws.try_json(args).exits(125)
    };
    let message = call(remote.to_str().unwrap()).error("Conflict");
    assert!(message.contains(&other), "{message}");
    let both = "nothing was moved; the command was not run";
    assert!(message.contains(both), "{message}");
    call("/nowhere").error("Unavailable");
    assert!(!ws.exists("ran"));
    assert_eq!(ws.git(["symbolic-ref", "--short", "HEAD"]), "main");
    ws.git(["branch", "-q", "-D", BRANCH]);
    hook(&remote, "update", "exit 1");
    let refused = run(&ws, &remote, 0, "touch ran");
    assert_eq!(refused["status"], "completed");
    assert_eq!(refused["workspace"]["resumed"]["commit"], *other);
    assert_eq!(
        refused["workspace"]["saved"]["failure"],
        "RemotePolicyRejected"
    );
    assert_eq!(at(&ws, &remote, BRANCH), Some(other));
    // What has to be done before one goes back is said, where nothing is saved.
    ws.git(["symbolic-ref", "HEAD", "refs/heads/main"]);
    let path = remote.to_str().unwrap();
    let args = ["run", "--task", "42", "--remote", path, "--", "true"];
    let refused = ws.stillframe(args).ok().stderr_text();
    for said in [
        "before, main was checked out; what is here has to be saved before you go back: stillframe task checkpoint 42 --remote ",
        "stillframe task quarantine list",
    ] {
        assert!(refused.contains(said), "{refused}");
    }
    let plain = TestWorkspace::plain();
    let nowhere = ["run", "--task", "42", "--", "touch", "ran"];
    let kept = plain.try_json(nowhere).ok().json();
    assert_eq!(kept["workspace"]["saved"]["failure"], "Unknown");
    for wrong in [
        &["run", "--remote", "x", "--", "true"][..],
        &["run", "--task", "a/b", "--", "true"],
    ] {
        plain.try_json(wrong).exits(2);
    }
}

#[test]
fn a_run_that_is_killed_while_its_work_is_saved_is_saved_once_by_whoever_comes_next() {
    let rounds = counted(KILLS, 30);
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let path = remote.to_str().unwrap();
    for round in 0..rounds {
        let script = format!("echo {round} > f{round}; touch ../wrote{round}; exit 1");
        let args = ["--json", "run", "--task", "42", "--remote", path];
        // What is rolled back is nowhere but where it was saved.
        let rolls_back = ["--rollback-on-failure"];
        let rolls_back = &rolls_back[..usize::from(round % 2 == 1)];
        let args = [&args[..], rolls_back, &["--", "sh", "-c", &script]].concat();
        let mut running = ws.call(args).start();
        // From before the work to after the end, in steps that are others each time.
        let shift = u64::from(std::process::id()) % 12;
        let after = (round % 30) * 12 + (shift + round / 30) % 12;
        thread::sleep(Duration::from_millis(after));
        running.kill();
        drop(running.wait());
        // Whoever comes next settles it.
        ws.json(["snapshot"]);
        for run in ws.json(["runs"]).as_array().unwrap() {
            let status = run["status"].as_str().unwrap();
            assert!(
                ["failed", "completed"].contains(&status),
                "round {round}: {run}"
            );
        }
        let tasks = ws.json(["task", "list"]);
        if tasks.as_array().unwrap().is_empty() {
            continue;
        }
        let shown = ws.json(["task", "show", "42"]);
        assert_ne!(shown["status"], "running", "round {round}: {shown}");
        assert_eq!(shown["run_id"], Value::Null, "round {round}: {shown}");
        let mut commits = Vec::new();
        for checkpoint in shown["checkpoints"].as_array().unwrap() {
            let made = commit(checkpoint);
            assert!(!commits.contains(&made), "round {round}: {shown}");
            commits.push(made);
            if checkpoint["status"] == "proven" {
                let tip = at(&ws, &remote, checkpoint["branch"].as_str().unwrap()).unwrap();
                let is_there = ["merge-base", "--is-ancestor", made, &tip];
                git::call(&ws.home(), &remote, is_there).run().ok();
            }
        }
        let branches = git::text(&ws.home(), &remote, ["for-each-ref", "--format=%(refname)"]);
        assert!(branches.lines().count() <= 1, "round {round}: {branches}");
        // What is kept is on record.
        let names = ["for-each-ref", "--format=%(objectname)", "refs/checkpoints"];
        let kept = git::text(&ws.home(), &ws.stores()[0].join("git"), names);
        let mut kept: Vec<_> = kept.lines().collect();
        kept.sort_unstable();
        commits.sort_unstable();
        assert_eq!(kept, commits, "round {round}");
    }
    ws.json(["task", "resume", "42", "--remote", path]);
    let last = saved(&ws, &remote);
    let made = commit(&last);
    let tree = git::text(&ws.home(), &remote, ["ls-tree", "--name-only", made]);
    for round in 0..rounds {
        let name = format!("f{round}");
        let has_it = tree.lines().any(|line| line == name);
        assert_eq!(has_it, ws.exists(&name), "{name}");
        let was_written = ws.base().join(format!("wrote{round}")).exists();
        assert!(has_it || !was_written, "{name} is lost");
    }
    git::call(&ws.home(), &remote, ["fsck", "--strict", "--no-dangling"])
        .run()
        .ok();
}

/// A run that is killed while a hook of the remote holds its push up.
fn killed_while_it_is_sent(ws: &TestWorkspace, remote: &Path, script: &str) {
    let mark = ws.base().join("is-sent");
    let hangs = format!("touch '{}'; exec sleep 600", mark.display());
    hook(remote, "pre-receive", &hangs);
    let args = ["run", "--task", "42", "--", "sh", "-c", script];
    let mut running = ws.call(args).start();
    let began = Instant::now();
    while !mark.exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "it is not sent");
        thread::sleep(Duration::from_millis(20));
    }
    running.kill();
    drop(running.wait());
    fs::remove_file(remote.join("hooks/pre-receive")).unwrap();
}

#[test]
fn a_remote_that_is_silent_keeps_nobody_waiting_who_comes_after_a_run_that_was_killed() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.git(["remote", "add", "origin", remote.to_str().unwrap()]);
    killed_while_it_is_sent(&ws, &remote, "echo new > new; exit 1");
    // Whoever looks at the remote waits for what nobody writes.
    let (head, aside) = (remote.join("HEAD"), remote.join("aside"));
    fs::rename(&head, &aside).unwrap();
    let fifo = FileType::Fifo;
    mknodat(CWD, &head, fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let began = Instant::now();
    let runs = ws.json(["runs"]);
    // A call of git may take two minutes.
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(runs[0]["status"], "failed", "{runs}");
    let shown = ws.json(["task", "show", "42"]);
    let kept = &shown["checkpoints"][0];
    assert_eq!(kept["status"], "made", "{shown}");
    assert_eq!(kept["failure"], "NetworkBlip", "{shown}");
    // It answers again, and gets what was kept.
    fs::rename(&aside, &head).unwrap();
    let saved = saved(&ws, &remote);
    assert_eq!(saved["commit"], kept["commit"]);
    assert_eq!(at(&ws, &remote, BRANCH).as_deref(), Some(commit(&saved)));
}

#[test]
fn work_goes_where_it_came_from_whatever_a_run_makes_of_the_repositorys_remotes() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.git(["remote", "add", "origin", remote.to_str().unwrap()]);
    let other = ws.base().join("other.git");
    git::text(&ws.home(), ws.base(), ["init", "-q", "--bare", "other.git"]);
    let moves = format!("git remote set-url origin '{}'", other.display());
    let goes_to = |remote: &Path| at(&ws, remote, BRANCH);
    // By the command itself, and by the next engine after its own was killed.
    let script = format!(
        "{moves}; echo 1 > one; '{}' task checkpoint",
        binary::stillframe().display()
    );
    ws.json(["run", "--task", "42", "--", "sh", "-c", &script]);
    let first = goes_to(&remote).unwrap();
    assert_eq!(goes_to(&other), None);
    ws.git(["remote", "set-url", "origin", remote.to_str().unwrap()]);
    let script = format!("{moves}; echo 2 > two; exit 1");
    killed_while_it_is_sent(&ws, &remote, &script);
    let runs = ws.json(["runs"]);
    assert_eq!(runs[0]["status"], "failed", "{runs}");
    let second = goes_to(&remote).unwrap();
    assert_ne!(first, second);
    assert_eq!(goes_to(&other), None);
}

#[test]
fn what_was_never_sent_does_not_block_what_comes_after_a_secret_in_it() {
    let ws = TestWorkspace::repository();
    let later = ws.base().join("remote.git");
    ws.write("key", format!("{SECRET}\n"));
    // Nobody could look what the remote has, so nothing was searched.
    let away = save(&ws, &later).exits(1).json();
    assert_eq!(away["state"], "not_saved");
    let again = save(&ws, &later).exits(1).json();
    assert_eq!(again["commit"], away["commit"]);
    let stores: Vec<PathBuf> = walkdir::WalkDir::new(ws.state())
        .into_iter()
        .map(Result::unwrap)
        .filter(|entry| entry.file_name() == "git" && entry.path().join("HEAD").exists())
        .map(walkdir::DirEntry::into_path)
        .collect();
    let kept = again["kept_as"].as_str().unwrap();
    let names = git::text(&ws.home(), &stores[0], ["rev-parse", kept]);
    assert_eq!(names, commit(&away), "the ref that is named is there");
    ws.remove("key");
    ws.write("other", "x\n");
    let remote = remote(&ws);
    let refused = save(&ws, &remote).exits(1).json();
    assert_eq!(
        refused["failure"], "SecretFound",
        "it goes on from what was not sent"
    );
    let sent = saved(&ws, &remote);
    assert_eq!(sent["state"], "pushed");
    let history = git::text(&ws.home(), &remote, ["log", "-p", "--all"]);
    assert!(!history.contains(SECRET), "{history}");
}

#[test]
fn one_place_has_one_name_and_work_goes_on_where_the_branch_has_moved_house() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let link = ws.base().join("link.git");
    std::os::unix::fs::symlink(&remote, &link).unwrap();
    let spelled = [
        remote.display().to_string(),
        "../remote.git".to_owned(),
        link.display().to_string(),
        format!("{}/../remote.git", ws.root().display()),
    ];
    for (round, name) in spelled.iter().enumerate() {
        ws.write("file", format!("{round}\n"));
        let args = ["task", "checkpoint", "42", "--remote", name];
        assert_eq!(ws.json(args)["state"], "pushed", "{name}");
    }
    assert_eq!(ws.json(["task", "list"]).as_array().unwrap().len(), 1);
    // A copy of it elsewhere has the branch, and our commits on it are ours.
    let copy = ws.base().join("copy.git");
    let args = ["clone", "-q", "--bare", "remote.git", "copy.git"];
    git::text(&ws.home(), ws.base(), args);
    ws.write("file", "moved\n");
    let moved = saved(&ws, &copy);
    assert_eq!(moved["state"], "pushed", "{moved}");
    assert_eq!(at(&ws, &copy, BRANCH).as_deref(), Some(commit(&moved)));
    assert_eq!(
        ws.json(["task", "show", "42"])["remote"],
        copy.to_str().unwrap()
    );
    // What is shown is the task of the remote that is set here, with what of it is not saved.
    ws.git(["remote", "add", "origin", remote.to_str().unwrap()]);
    let shown = ws.json(["task", "show", "42"]);
    assert_eq!(shown["remote"], remote.to_str().unwrap());
    let nowhere = ws.base().join("nowhere.git");
    save(&ws, &nowhere).exits(1);
    let show = |args: &[&str]| {
        let all = ["task", "show", "42"].iter().chain(args);
        ws.stillframe(all).ok()
    };
    let own = show(&[]);
    assert!(own.stdout_text().contains(remote.to_str().unwrap()));
    assert!(!own.stderr_text().contains("not proven"), "{own}");
    let there = show(&["--remote", nowhere.to_str().unwrap()]);
    assert!(there.stdout_text().contains("nowhere.git"));
    // There and back, with nothing new.
    for (there, state) in [
        (&remote, "pushed"),
        (&copy, "no_changes"),
        (&remote, "no_changes"),
    ] {
        let again = saved(&ws, there);
        assert_eq!(
            (&again["state"], commit(&again)),
            (&state.into(), commit(&moved))
        );
    }
    // What a repository's configuration calls by an address is not what was typed.
    let key = format!("remote.{}.url", remote.display());
    ws.git(["config", &key, copy.to_str().unwrap()]);
    ws.write("file", "typed\n");
    let typed = saved(&ws, &remote);
    assert_eq!(typed["remote"], remote.to_str().unwrap());
}

#[test]
fn a_repository_in_the_workspace_is_named_and_a_command_that_is_printed_does_nothing_else() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    ws.write("nest/file", "x\n");
    ws.git(["init", "-q", "nest"]);
    let document = saved(&ws, &remote);
    assert_eq!(document["submodules"], serde_json::json!(["nest"]));
    ws.write("d/$(touch owned) 'x'", format!("{SECRET}\n"));
    let said = ws.stillframe([
        "task",
        "checkpoint",
        "42",
        "--remote",
        remote.to_str().unwrap(),
    ]);
    let said = said.exits(1).stderr_text();
    let line = said
        .lines()
        .find_map(|line| line.split_once("stillframe task allow-secret "));
    let (_, words) = line.unwrap();
    let program = binary::stillframe();
    let script = format!("{} task allow-secret {words}", program.display());
    let shell = stillframe_tests::Call::new("/bin/sh", ws.root()).args(["-c", &script]);
    let shell = shell
        .env("HOME", ws.home())
        .env("STILLFRAME_HOME", ws.state());
    shell.run().ok();
    assert!(!ws.exists("owned"));
    assert_eq!(saved(&ws, &remote)["state"], "pushed");
}

#[tokio::test]
async fn what_is_larger_than_the_host_allows_is_kept_and_not_sent() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    let options = EngineOptions::default().state_dir(ws.state());
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let workspace = WorkspaceOptions::at(ws.root());
    let branch = WorkBranchOptions::of("42").max_push_bytes(1_000);
    let branch = branch.remote(remote.to_str().unwrap().to_owned());
    let small = session.checkpoint(&workspace, &branch).await.unwrap();
    assert_eq!(small.failure, None, "{small:?}");
    ws.write("large", "0123456789".repeat(101));
    let kept = session.checkpoint(&workspace, &branch).await.unwrap();
    assert_eq!(kept.failure.as_deref(), Some("TooLarge"), "{kept:?}");
    let why = kept.error.unwrap();
    assert!(why.contains("1010 bytes") && why.contains("1000"), "{why}");
    assert_eq!(at(&ws, &remote, BRANCH), small.commit);
    // What comes after it does not go on from it.
    ws.remove("large");
    ws.write("little", "x");
    let next = session.checkpoint(&workspace, &branch).await.unwrap();
    assert_eq!(
        (next.failure, at(&ws, &remote, BRANCH)),
        (None, next.commit)
    );
    engine.shutdown().await.unwrap();
}
