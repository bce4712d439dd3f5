//! `task quarantine`: work that no remote is proven to have is kept, listed, brought back, and let
//! go of only by the user. git is the oracle.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use stillframe::tasks::QuarantineScope;
use stillframe::{Engine, EngineOptions, ErrorKind, WorkspaceOptions};
use stillframe_tests::servers::Silence;
use stillframe_tests::{Call, TestWorkspace, git};

use super::divergence::{machines, save, saved};
use super::progress::counting_git;
use super::task_ends::KILLS_THE_HOST;
use super::tasks::{KILLS, counted};

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

/// A repository with an origin that refuses whatever comes.
fn refusing() -> TestWorkspace {
    let ws = with_origin();
    hook(&ws, "pre-receive", "echo no such work here\nexit 1");
    ws
}

fn hook(ws: &TestWorkspace, name: &str, script: &str) {
    let hook = ws.base().join("remote.git/hooks").join(name);
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_origin() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    git::text(
        &ws.home(),
        ws.base(),
        ["init", "-q", "--bare", "remote.git"],
    );
    let remote = ws.base().join("remote.git");
    ws.git(["remote", "add", "origin", remote.to_str().unwrap()]);
    ws
}

fn accept(ws: &TestWorkspace) {
    fs::remove_file(ws.base().join("remote.git/hooks/pre-receive")).unwrap();
}

/// The commit of a checkpoint that is not saved, of this kind.
fn not_saved(ws: &TestWorkspace, kind: &str) -> String {
    let saved = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    assert_eq!(saved["failure"], kind, "{saved}");
    saved["commit"].as_str().unwrap().to_owned()
}

fn listed(ws: &TestWorkspace) -> Vec<Value> {
    let listed = ws.json(["task", "quarantine", "list"]);
    listed.as_array().unwrap().clone()
}

/// The store of the workspace, as git sees it.
fn store(ws: &TestWorkspace) -> PathBuf {
    ws.stores()[0].join("git")
}

fn in_store(ws: &TestWorkspace, args: &[&str]) -> String {
    git::text(&ws.home(), &store(ws), args)
}

/// The tree that git makes of all that is in the work tree.
fn tree(ws: &TestWorkspace) -> String {
    let index = ws.base().join("another-index");
    let index = index.to_str().unwrap();
    drop(fs::remove_file(index));
    let call = |args: &[&str]| ws.git_call(args).env("GIT_INDEX_FILE", index).run().ok();
    call(&["add", "--all"]);
    call(&["write-tree"]).stdout_text().trim().to_owned()
}

/// HEAD, the branches and the index, byte for byte.
fn kept(ws: &TestWorkspace) -> (Vec<u8>, String, Vec<u8>) {
    (
        fs::read(ws.path(".git/HEAD")).unwrap(),
        ws.git(["for-each-ref"]),
        fs::read(ws.path(".git/index")).unwrap(),
    )
}

fn work(ws: &TestWorkspace) {
    ws.write("README", "other\n");
    ws.write("d/new", "new\n");
    ws.write_executable("run", "#!/bin/sh\n");
    ws.symlink("link", "d/new");
}

fn clean(ws: &TestWorkspace) {
    ws.git(["reset", "-q", "--hard"]);
    ws.git(["clean", "-qfd"]);
}

#[test]
fn what_was_refused_is_listed_with_why_and_comes_back_to_the_files() {
    let ws = refusing();
    assert_eq!(listed(&ws), [] as [Value; 0]);
    work(&ws);
    let commit = not_saved(&ws, "RemotePolicyRejected");
    let all = listed(&ws);
    let [entry] = &all[..] else {
        panic!("{all:?}");
    };
    let id = entry["id"].as_str().unwrap();
    assert!(commit.starts_with(id) && id.len() == 7, "{id}");
    assert_eq!(
        [
            &entry["task"],
            &entry["commit"],
            &entry["status"],
            &entry["failure"]
        ],
        ["42", &commit, "refused", "RemotePolicyRejected"]
    );
    assert_eq!(entry["path"], ws.root().to_str().unwrap());
    assert!(
        entry["error"]
            .as_str()
            .unwrap()
            .contains("no such work here")
    );
    let reference = entry["kept_as"].as_str().unwrap();
    assert_eq!(in_store(&ws, &["rev-parse", reference]), commit);
    let printed = ws
        .stillframe(["task", "quarantine", "list"])
        .ok()
        .stdout_text();
    assert!(
        printed.contains(&format!("task quarantine restore {id}")),
        "{printed}"
    );
    assert!(printed.contains("no such work here"), "{printed}");
    for command in [&["task", "list"][..], &["task", "show", "42"]] {
        let said = ws.stillframe(command).ok().stderr_text();
        assert!(said.contains("1 piece of work not proven"), "{said}");
        assert!(said.contains("stillframe task quarantine list"), "{said}");
    }

    // It is all there: nothing is to be done.
    let idle = ws.json(["task", "quarantine", "restore", id]);
    assert_eq!(idle["restore"], Value::Null);
    let said = ws.stillframe(["task", "quarantine", "restore", id]).ok();
    let said = said.stderr_text();
    assert!(!said.contains("undo"), "there is nothing to undo: {said}");
    clean(&ws);
    ws.write("own", "beside it\n");
    ws.git(["add", "own"]);
    let before = (kept(&ws), tree(&ws));
    let restored = ws.json(["task", "quarantine", "restore", &commit]);
    assert_eq!(restored["work"]["commit"], commit);
    assert_eq!(
        restored["restore"]["restored"],
        json!(["README", "d/new", "link", "run"])
    );
    assert_eq!(
        kept(&ws),
        before.0,
        "HEAD, branches and index are not moved"
    );
    assert_eq!(ws.text("own"), "beside it\n");
    ws.remove("own");
    assert_eq!(
        tree(&ws),
        in_store(&ws, &["rev-parse", &format!("{commit}^{{tree}}")])
    );
    ws.write("own", "beside it\n");
    ws.undo();
    assert_eq!((kept(&ws), tree(&ws)), before, "an undo takes it back");
    assert_eq!(listed(&ws), all, "it stays in quarantine");

    // Given back it can be saved without what was refused.
    ws.json(["task", "quarantine", "restore", id]);
    accept(&ws);
    let saved = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(saved["state"], "pushed");
    let remote = ws.base().join("remote.git");
    let history = git::text(
        &ws.home(),
        &remote,
        ["rev-list", saved["commit"].as_str().unwrap()],
    );
    assert!(
        !history.contains(&commit),
        "what was refused is no ancestor"
    );
    ws.git(["fsck", "--strict"]);
}

#[test]
fn a_command_that_is_printed_sends_the_work_where_it_was_to_go() {
    let ws = with_origin();
    let beside = ws.base().join("it's beside.git");
    let to = beside.to_str().unwrap();
    ws.write("file", "work\n");
    let args = ["task", "checkpoint", "it's", "--remote", to];
    ws.try_json(args).exits(1);
    git::text(&ws.home(), ws.base(), ["init", "-q", "--bare", to]);
    let listed = ws.stillframe(["task", "quarantine", "list"]).ok();
    let listed = listed.stdout_text();
    let printed = |line: &str| Some(line.split_once(": stillframe ")?.1.to_owned());
    let printed = listed.lines().filter_map(printed).next_back();
    let script = format!("printf '%s\\n' {}", printed.unwrap());
    let shell = Call::new("sh", ws.root()).args(["-c", &script]).run().ok();
    let words = shell.stdout_text();
    let sent = ws.json(words.lines());
    assert_eq!(
        (&sent["state"], &sent["remote"]),
        (&"pushed".into(), &to.into())
    );
}

#[test]
fn a_commit_that_is_let_through_later_is_saved() {
    // It is the same commit if it is made in the same second.
    for round in 0..20 {
        let ws = with_origin();
        ws.write("key", format!("{SECRET}\n"));
        let refused = not_saved(&ws, "SecretFound");
        let again = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
        let found = &again["secrets"][0];
        let word = |key: &str| found[key].as_str().unwrap();
        let found = [word("rule"), word("path"), word("fingerprint")];
        ws.json([&["task", "allow-secret"][..], &found].concat());
        let sent = ws.json(["task", "checkpoint", "42"]);
        assert_eq!(sent["state"], "pushed");
        if sent["commit"] == *refused {
            assert_eq!(listed(&ws), [] as [Value; 0]);
            let said = ws.stillframe(["task", "list"]).ok().stderr_text();
            assert!(!said.contains("not proven"), "{said}");
            return;
        }
        assert!(!listed(&ws).is_empty(), "{round}");
    }
    panic!("it was another commit each time");
}

#[test]
fn what_would_be_lost_is_named_and_nothing_moves() {
    let ws = refusing();
    work(&ws);
    let commit = not_saved(&ws, "RemotePolicyRejected");
    ws.write("README", "by hand since\n");
    let restore = ["task", "quarantine", "restore", &commit];
    let message = ws.untouched(|| ws.try_json(restore).exits(1).error("Conflict"));
    assert!(message.contains("README"), "{message}");
    assert!(message.contains("nothing was moved"), "{message}");
    clean(&ws);
    ws.write("run", "not tracked, and somebody's\n");
    let message = ws.untouched(|| ws.try_json(restore).exits(1).error("Conflict"));
    assert!(message.contains("run is not tracked here"), "{message}");
    ws.remove("run");

    // Its files would take back what came to HEAD since.
    let base = ws.git(["rev-parse", "HEAD"]);
    ws.write("later", "of somebody\n");
    ws.commit("later");
    let message = ws.untouched(|| ws.try_json(restore).exits(1).error("Conflict"));
    assert!(
        message.contains(&format!("git switch --detach {base}")),
        "{message}"
    );
    ws.git(["switch", "-q", "--detach", &base]);
    ws.json(restore);
    assert_eq!(ws.text("d/new"), "new\n");
    assert!(!ws.exists("later"));
}

// The work of a later checkpoint is known, and gives way.
#[test]
fn what_was_saved_since_gives_way_to_what_was_refused_before() {
    let ws = refusing();
    work(&ws);
    let refused = not_saved(&ws, "RemotePolicyRejected");
    accept(&ws);
    ws.write("d/new", "otherwise\n");
    ws.remove("run");
    assert_eq!(ws.json(["task", "checkpoint", "42"])["state"], "pushed");
    assert_eq!(listed(&ws).len(), 1, "the later one does not go on from it");
    ws.json(["task", "quarantine", "restore", &refused]);
    assert_eq!(ws.text("d/new"), "new\n");
    assert!(ws.exists("run"));
    ws.undo();
    assert_eq!(ws.text("d/new"), "otherwise\n");
}

#[test]
fn what_could_not_be_sent_is_there_until_it_is_proven() {
    let ws = with_origin();
    let remote = ws.base().join("remote.git");
    let away = ws.base().join("away.git");
    fs::rename(&remote, &away).unwrap();
    let save = || ws.try_json(["task", "checkpoint", "42"]);
    ws.write("a", "1\n");
    let first = save().exits(1).json()["commit"].clone();
    ws.write("a", "2\n");
    let second = save().exits(1).json()["commit"].clone();
    let all = listed(&ws);
    assert_eq!(all.len(), 1, "the second has the first: {all:?}");
    assert_eq!(
        (&all[0]["commit"], &all[0]["status"]),
        (&second, &"made".into())
    );
    assert_eq!(all[0]["earlier"], json!([first]));
    let printed = ws
        .stillframe(["task", "quarantine", "list"])
        .ok()
        .stdout_text();
    assert!(
        printed.contains("stillframe task checkpoint 42"),
        "{printed}"
    );
    assert!(printed.contains("and 1 checkpoint before it"), "{printed}");
    fs::rename(&away, &remote).unwrap();
    assert_eq!(save().ok().json()["state"], "pushed");
    assert_eq!(listed(&ws), [] as [Value; 0]);
    // What is proven is in no quarantine, and is not let go of.
    let id = second.as_str().unwrap();
    ws.try_json(["task", "quarantine", "discard", id])
        .exits(1)
        .error("NotFound");
    assert_eq!(in_store(&ws, &["rev-parse", "refs/checkpoints/42/2"]), id);
}

/// All content of the store, whatever it is packed in.
fn content(ws: &TestWorkspace) -> String {
    let args = ["cat-file", "--batch", "--batch-all-objects"];
    String::from_utf8_lossy(&git::run(&ws.home(), &store(ws), args).stdout).into_owned()
}

#[test]
fn what_is_let_go_of_is_freed_and_nothing_is_made_on_it() {
    let ws = with_origin();
    ws.write("a", "1\n");
    assert_eq!(ws.json(["task", "checkpoint", "42"])["state"], "pushed");
    ws.write("key", format!("{SECRET}\n{}", noise()));
    let refused = not_saved(&ws, "SecretFound");
    ws.remove("key");
    assert!(content(&ws).contains(SECRET));
    let gc = || ws.json(["gc", "--keep", "1"]);
    ws.json(["snapshot"]);
    gc();
    assert!(content(&ws).contains(SECRET), "no clean-up takes it");

    let discard = ["task", "quarantine", "discard", &refused[..7]];
    let gone = ws.json(discard);
    assert_eq!(
        (&gone["commit"], &gone["status"]),
        (&refused.clone().into(), &"refused".into())
    );
    assert_eq!(listed(&ws), [] as [Value; 0]);
    ws.try_json(discard).exits(1).error("NotFound");
    assert_eq!(
        in_store(&ws, &["for-each-ref", "--points-at", &refused]),
        ""
    );
    gc();
    assert!(!content(&ws).contains(SECRET), "its content is gone");
    in_store(&ws, &["fsck", "--strict"]);
    let task = ws.json(["task", "show", "42"]);
    let status = |at: usize| task["checkpoints"][at]["status"].clone();
    assert_eq!([status(0), status(1)], ["proven", "discarded"]);
    let told = ws.events(["--type", "checkpoint_discarded"]);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["data"]["commit"], refused);
    assert_eq!(told[0]["data"]["checkpoints"], 1);

    ws.write("b", "2\n");
    let next = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(next["state"], "pushed", "it goes on from what was sent");
    ws.stillframe(["verify"]).ok();
}

/// Text that does not compress: most of what it is packed with.
fn noise() -> String {
    let next = |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let numbers = std::iter::successors(Some(1_u64), next).take(2_000);
    numbers.map(|number| format!("{number:x}\n")).collect()
}

/// The checkpoints that the store keeps.
fn kept_refs(ws: &TestWorkspace) -> String {
    in_store(
        ws,
        &["for-each-ref", "--format=%(refname)", "refs/checkpoints"],
    )
}

// A merge that was not sent has the work too.
#[test]
fn what_is_let_go_of_goes_with_its_merges() {
    let [one, two] = machines();
    two.write("theirs", "of two\n");
    saved(&two, "pushed");
    one.write("key", format!("{SECRET}\n{}", noise()));
    let failed = |kind: &str| {
        let document = save(&one).exits(1).json();
        assert_eq!(document["failure"], kind, "{document}");
        assert_eq!(kept_refs(&one).lines().count(), 3, "the merge is kept");
        let refused = listed(&one)[0]["id"].as_str().unwrap().to_owned();
        one.json(["task", "quarantine", "discard", &refused]);
        assert_eq!(kept_refs(&one), "refs/checkpoints/42/1");
    };
    failed("SecretFound");
    one.remove("key");
    one.json(["snapshot"]);
    one.json(["gc", "--keep", "1"]);
    assert!(!content(&one).contains(SECRET), "its content is gone");

    hook(&one, "pre-receive", "echo no such work here\nexit 1");
    one.write("ours", "of one\n");
    failed("RemotePolicyRejected");
    accept(&one);
    saved(&one, "recovered");
    one.json(["verify"]);
}

/// Whoever dies between the ref of a checkpoint and its row leaves it so.
fn off_the_record(ws: &TestWorkspace, number: i64) {
    let state = Connection::open(ws.state().join("stillframe.db")).unwrap();
    let gone = state.execute("DELETE FROM checkpoints WHERE seq = ?1", (number,));
    assert_eq!(gone.unwrap(), 1);
}

#[test]
fn what_nobody_lived_to_put_on_record_is_not_kept_for_ever() {
    let ws = with_origin();
    ws.write("a", "1\n");
    assert_eq!(ws.json(["task", "checkpoint", "42"])["state"], "pushed");
    ws.write("key", format!("{SECRET}\n{}", noise()));
    let refused = not_saved(&ws, "SecretFound");
    off_the_record(&ws, 2);
    assert_eq!(listed(&ws), [] as [Value; 0]);
    ws.remove("key");
    ws.write("a", "2\n");
    assert_eq!(ws.json(["task", "checkpoint", "42"])["state"], "pushed");
    assert_eq!(
        kept_refs(&ws),
        "refs/checkpoints/42/1\nrefs/checkpoints/42/2"
    );
    assert_eq!(
        in_store(&ws, &["for-each-ref", "--points-at", &refused]),
        ""
    );
    ws.json(["gc", "--keep", "1"]);
    assert!(!content(&ws).contains(SECRET), "its content is gone");
    in_store(&ws, &["fsck", "--strict"]);
    ws.json(["verify"]);

    // Of lost rows nobody knows what they were.
    for n in 3..5 {
        ws.write("a", format!("{n}\n"));
        ws.json(["task", "checkpoint", "42"]);
    }
    for n in 3..5 {
        off_the_record(&ws, n);
    }
    ws.write("a", "5\n");
    let beside = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    assert_eq!(beside["state"], "pushed_beside");
    let kept = kept_refs(&ws);
    for n in 1..=5 {
        let name = format!("refs/checkpoints/42/{n}");
        assert!(kept.lines().any(|line| line == name), "{kept}");
    }
}

#[test]
fn what_the_remote_has_all_the_same_is_not_let_go_of() {
    let ws = with_origin();
    hook(&ws, "post-receive", KILLS_THE_HOST);
    let dies = |text: &str| {
        ws.write("a", text);
        let died = ws.call(["--json", "task", "checkpoint", "42"]).run();
        assert_eq!(died.code, 137, "{died}");
        listed(&ws)[0]["commit"].as_str().unwrap().to_owned()
    };
    let made = dies("1\n");
    let discard = |id: &str| ws.try_json(["task", "quarantine", "discard", id]);
    let remote = ws.base().join("remote.git");
    let away = ws.base().join("away.git");
    fs::rename(&remote, &away).unwrap();
    let message = discard(&made).exits(1).error("Unavailable");
    assert!(message.contains("nothing was let go of"), "{message}");
    assert_eq!(listed(&ws).len(), 1);
    fs::rename(&away, &remote).unwrap();
    let message = discard(&made).exits(1).error("Conflict");
    assert!(message.contains(&made), "{message}");
    assert!(message.contains(remote.to_str().unwrap()), "{message}");
    assert_eq!(listed(&ws), [] as [Value; 0]);
    let shown = ws.json(["task", "show", "42"]);
    assert_eq!(shown["checkpoints"][0]["status"], "proven", "{shown}");

    // What goes on from it and is not there goes alone.
    let sent = dies("2\n");
    fs::remove_file(remote.join("hooks/post-receive")).unwrap();
    fs::rename(&remote, &away).unwrap();
    ws.write("a", "3\n");
    let last = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    assert_eq!(listed(&ws)[0]["earlier"], json!([sent]));
    fs::rename(&away, &remote).unwrap();
    let gone = discard(last["commit"].as_str().unwrap()).ok().json();
    assert_eq!(gone["earlier"], json!([]), "{gone}");
    assert_eq!(
        kept_refs(&ws),
        "refs/checkpoints/42/1\nrefs/checkpoints/42/2"
    );
    let next = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(next["state"], "pushed", "it goes on from what is there");
    assert_eq!(listed(&ws), [] as [Value; 0]);
}

// Whoever saves it at another remote has no row of it yet.
#[tokio::test]
async fn work_that_is_on_its_way_elsewhere_is_not_let_go_of_meanwhile() {
    let ws = with_origin();
    fs::remove_dir_all(ws.base().join("remote.git")).unwrap();
    ws.write("a", "1\n");
    let made = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    let silence = Silence::start();
    let url = format!("git://127.0.0.1:{}/r", silence.port());
    ws.git(["remote", "set-url", "origin", &url]);
    let mut saving = ws
        .call(["--json", "task", "checkpoint", "42"])
        .env("PATH", counting_git(ws.base()))
        .start();
    let calls = ws.base().join("calls");
    saving.until("it asks the remote", |_| {
        fs::read_to_string(&calls).is_ok_and(|calls| calls.contains("ls-remote"))
    });
    let options = EngineOptions::default()
        .state_dir(ws.state())
        .lock_timeout(Duration::from_secs(1));
    let engine = Engine::start(options).await.unwrap();
    let workspace = WorkspaceOptions::at(ws.root());
    let id = made["commit"].as_str().unwrap();
    let busy = engine.discard_quarantined(&workspace, id).await;
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(listed(&ws).len(), 1);
    saving.kill();
    drop(saving.wait());
    engine.discard_quarantined(&workspace, id).await.unwrap();
    engine.shutdown().await.unwrap();
}

// It is on record that the last try did not get there.
#[test]
fn a_remote_that_is_silent_does_not_keep_work_from_being_let_go_of() {
    let ws = with_origin();
    let remote = ws.base().join("remote.git");
    let away = ws.base().join("away.git");
    fs::rename(&remote, &away).unwrap();
    ws.write("a", "1\n");
    let made = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    fs::rename(&away, &remote).unwrap();
    let path = counting_git(ws.base());
    let program = ws.base().join("bin/git");
    let script = fs::read_to_string(&program).unwrap();
    let hangs = script.replace(
        "\nexec",
        "\ncase \"$*\" in *ls-remote*) exec sleep 600;; esac\nexec",
    );
    fs::write(&program, hangs).unwrap();
    let id = made["commit"].as_str().unwrap();
    let began = Instant::now();
    let discard = ["--json", "task", "quarantine", "discard", id];
    ws.call(discard).env("PATH", path).run().ok();
    assert!(began.elapsed() < Duration::from_secs(60));
    let calls = fs::read_to_string(ws.base().join("calls")).unwrap();
    assert!(calls.contains("ls-remote"), "it is asked: {calls}");
    assert_eq!(listed(&ws), [] as [Value; 0]);
}

#[test]
fn a_remote_that_is_added_later_says_why_the_work_is_not_there() {
    let ws = TestWorkspace::repository();
    ws.write("a", "1\n");
    let saved = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(saved["state"], "recorded_only");
    let away = ws.base().join("remote.git");
    ws.git(["remote", "add", "origin", away.to_str().unwrap()]);
    let failed = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    assert_eq!(failed["commit"], saved["commit"]);
    let all = listed(&ws);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(
        (&all[0]["remote"], &all[0]["failure"]),
        (&json!(away), &failed["failure"])
    );

    // Of other work in the same store nobody has asked for that.
    ws.git(["remote", "remove", "origin"]);
    let id = saved["commit"].as_str().unwrap();
    ws.json(["task", "quarantine", "discard", id]);
    ws.write("a", "2\n");
    ws.json(["task", "checkpoint", "42"]);
    assert_eq!(listed(&ws), [] as [Value; 0]);
}

// A clean-up leaves a pack alone of which more than half is needed, and snapshots have the same
// bytes.
#[test]
fn a_leaked_value_is_out_of_the_store_once_it_is_let_go_of_and_purged() {
    let mut ws = with_origin();
    // As a purge does: what has the value names it still.
    ws.damages_the_store();
    ws.write("key", format!("{SECRET}\n"));
    let refused = not_saved(&ws, "SecretFound");
    ws.json(["task", "quarantine", "discard", &refused]);
    assert!(content(&ws).contains(SECRET), "the snapshot has it");
    ws.remove("key");
    ws.json(["purge", "key"]);
    assert!(!content(&ws).contains(SECRET));
    ws.json(["gc"]);
    ws.write("b", "2\n");
    assert_eq!(ws.json(["task", "checkpoint", "42"])["state"], "pushed");
}

#[test]
fn what_was_never_sent_goes_with_what_goes_on_from_it() {
    let ws = with_origin();
    let remote = ws.base().join("remote.git");
    let away = ws.base().join("away.git");
    ws.write("a", "1\n");
    ws.json(["task", "checkpoint", "42"]);
    fs::rename(&remote, &away).unwrap();
    for n in 2..4 {
        ws.write("a", format!("{n}\n"));
        ws.try_json(["task", "checkpoint", "42"]).exits(1);
    }
    let all = listed(&ws);
    let earlier = all[0]["earlier"][0].as_str().unwrap().to_owned();
    // It would stay an ancestor of what is sent next.
    ws.try_json(["task", "quarantine", "discard", &earlier])
        .exits(1)
        .error("NotFound");
    let id = all[0]["id"].as_str().unwrap();
    let gone = ws.json(["task", "quarantine", "discard", id]);
    assert_eq!(gone["earlier"], json!([earlier]));
    assert_eq!(
        in_store(
            &ws,
            &["for-each-ref", "--format=%(refname)", "refs/checkpoints"]
        ),
        "refs/checkpoints/42/1"
    );
    fs::rename(&away, &remote).unwrap();
    let next = ws.json(["task", "checkpoint", "42"]);
    let history = git::text(
        &ws.home(),
        &remote,
        ["rev-list", next["commit"].as_str().unwrap()],
    );
    assert!(!history.contains(&earlier), "{history}");
    assert_eq!(history.lines().count(), 3, "{history}");
}

#[test]
fn what_has_no_remote_is_where_it_is_to_be_and_is_let_go_of_all_the_same() {
    let ws = TestWorkspace::repository();
    ws.write("a", "1\n");
    let saved = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(saved["state"], "recorded_only");
    assert_eq!(listed(&ws), [] as [Value; 0]);
    let all = ws.json(["task", "quarantine", "list", "--all"]);
    assert_eq!(
        (&all[0]["commit"], &all[0]["remote"]),
        (&saved["commit"], &Value::Null)
    );
    let printed = ws.stillframe(["task", "quarantine", "list", "--all"]).ok();
    assert!(printed.stdout_text().contains("the task has no remote"));
    ws.json([
        "task",
        "quarantine",
        "discard",
        saved["commit"].as_str().unwrap(),
    ]);
    assert_eq!(ws.json(["task", "quarantine", "list", "--all"]), json!([]));
}

#[test]
fn an_id_that_names_nothing_here_is_refused_with_where_it_is() {
    let ws = refusing();
    work(&ws);
    let commit = not_saved(&ws, "RemotePolicyRejected");
    let other = ws.base().join("other");
    ws.git(["clone", "-q", ".", other.to_str().unwrap()]);
    let other = other.to_str().unwrap();
    for verb in ["restore", "discard"] {
        let call = |id: &str| ws.try_json(["task", "quarantine", verb, id]);
        call("").exits(1).error("InvalidOptions");
        call("abc").exits(1).error("InvalidOptions");
        call("HEAD~1~").exits(1).error("InvalidOptions");
        call("0000000").exits(1).error("NotFound");
        let args = ["--workspace", other, "task", "quarantine", verb, &commit];
        let message = ws.try_json(args).exits(1).error("NotFound");
        assert!(message.contains(ws.root().to_str().unwrap()), "{message}");
    }
    assert_eq!(listed(&ws).len(), 1);
}

/// Killed at any moment it is let go of, or it is not, and what is let go of is freed by who comes
/// next.
#[test]
fn whoever_is_killed_letting_go_of_work_has_or_has_not() {
    let rounds = usize::try_from(counted(KILLS, 24)).unwrap();
    let ws = refusing();
    for round in 0..rounds {
        ws.write("a", format!("{round}\n"));
        let commit = not_saved(&ws, "RemotePolicyRejected");
        let mut running = ws
            .call(["--json", "task", "quarantine", "discard", &commit])
            .start();
        thread::sleep(Duration::from_millis(5 + (round as u64 % 24) * 3));
        running.kill();
        drop(running.wait());
        let listed = listed(&ws);
        let is_listed = listed.iter().any(|entry| entry["commit"] == *commit);
        let named = || in_store(&ws, &["for-each-ref", "--points-at", &commit]);
        match is_listed {
            true => {
                assert!(!named().is_empty(), "round {round}: it is listed, and kept");
                ws.json(["task", "quarantine", "discard", &commit]);
            }
            false => {
                ws.json(["gc"]);
            }
        }
        assert_eq!(named(), "", "round {round}");
    }
    let told = ws.events(["--type", "checkpoint_discarded"]);
    let of = told
        .iter()
        .map(|event| event["data"]["commit"].as_str().unwrap());
    let of: BTreeSet<&str> = of.collect();
    assert_eq!(
        (of.len(), told.len()),
        (rounds, rounds),
        "each is told of once"
    );
}

#[tokio::test]
async fn a_host_is_told_when_its_engine_starts_and_lists_them() {
    let ws = refusing();
    work(&ws);
    let commit = not_saved(&ws, "RemotePolicyRejected");
    let options = || EngineOptions::default().state_dir(ws.state());
    let engine = Engine::start(options()).await.unwrap();
    assert_eq!(engine.recovery().quarantined, 1);
    let all = engine.quarantine(QuarantineScope::default()).await.unwrap();
    assert_eq!(all[0].commit, commit);
    assert_eq!(all[0].path.as_deref(), Path::new(ws.root()).to_str());
    let workspace = stillframe::WorkspaceOptions::at(ws.root());
    let gone = engine.discard_quarantined(&workspace, &all[0].id).await;
    assert_eq!(gone.unwrap(), all[0]);
    engine.shutdown().await.unwrap();
    let engine = Engine::start(options()).await.unwrap();
    assert_eq!(engine.recovery().quarantined, 0);
    engine.shutdown().await.unwrap();
}
