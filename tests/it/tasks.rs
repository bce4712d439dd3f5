//! `task`: work that leaves the machine, with remotes that people have, and git as the oracle.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::shapes::{self, Backend};
use stillframe_tests::{Output, TestWorkspace, git};

const BRANCH: &str = "stillframe/task/42";

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

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
        name(wrong).refused("InvalidOptions");
    }
    assert!(
        !ws.state().join("state.db").exists() || ws.json(["task", "list"]) == Value::Array(vec![])
    );
}

#[test]
fn work_is_on_its_branch_and_nothing_of_the_users_moves_in_any_shape_of_a_repository() {
    let mut saved_shapes = 0;
    for shape in shapes::SHAPES {
        if shape.backend != Backend::Git {
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
                // Its history ends where an empty remote has nothing either, and git takes none of that.
                "shallow" => ["shallow update not allowed"],
                _ => ["Unsupported"],
            };
            let is_typed = kinds.iter().any(|kind| said.contains(kind));
            assert!(is_typed, "{}: {said}", shape.name);
            assert_eq!(at(&ws, &remote, BRANCH), None, "{}", shape.name);
            continue;
        }
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
        saved_shapes += 1;
    }
    assert!(saved_shapes > 30, "{saved_shapes} shapes were saved");
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
        "[checkpoint] stillframe run unknown\n\nRun-Id: unknown\nPipeline: unknown\nStep: unknown\n\
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
    let document = save(&ws, &remote).exits(1).json();
    assert_eq!(document["state"], "pushed_beside");
    assert_eq!(document["failure"], "RemoteDivergent");
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
    // Taken away again it is still in a commit that was made: the next one does not go on from that.
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
    let database = fs::read(ws.state().join("state.db")).unwrap_or_default();
    assert!(
        !database
            .windows(SECRET.len())
            .any(|bytes| bytes == SECRET.as_bytes())
    );
}

#[test]
fn what_the_remote_refuses_is_kept_and_is_no_parent_of_the_next() {
    let ws = TestWorkspace::repository();
    let remote = remote(&ws);
    hook(&remote, "pre-receive", "echo '401 rejected' >&2; exit 1");
    ws.write("new", "x\n");
    let refused = save(&ws, &remote).exits(1).json();
    assert_eq!(refused["failure"], "RemotePolicyRejected");
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
        let refused = ws.try_json(["task", "checkpoint", "42", "--remote", remote]);
        refused.refused("InvalidOptions");
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
    const ROUNDS: usize = 20;
    let machines = [TestWorkspace::repository(), TestWorkspace::repository()];
    let remote = remote(&machines[0]);
    let mut made = Vec::new();
    for round in 0..ROUNDS {
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
