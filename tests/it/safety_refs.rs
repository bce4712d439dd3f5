//! What keeps the commits of a run that was rolled back, and who gets to see it.

use std::path::PathBuf;

use serde_json::Value;
use stillframe_tests::TestWorkspace;

const ROLLBACK: [&str; 1] = ["--rollback-on-failure"];

const NAMESPACE: &str = "refs/stillframe/safety/";

/// A run that commits a secret and fails, and is rolled back: the run, and its commit.
fn leaves_a_commit(ws: &TestWorkspace) -> (Value, String) {
    let script = "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
        GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; \
        echo password > secret; git add secret; git commit -qm secret; git rev-parse HEAD; exit 1";
    let run = ws.run(ROLLBACK, script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    let after = &run["workspace"]["after_snapshot"]["metadata"]["head_ref"];
    let commit = after.as_str().unwrap().to_owned();
    (run, commit)
}

/// The name of the ref that keeps what the run had committed.
fn kept_by(run: &Value) -> String {
    let name = run["workspace"]["rollback"]["safety_tag"].as_str().unwrap();
    name.to_owned()
}

/// A bare repository that `ws` pushes to, with all that it has so far.
fn remote(ws: &TestWorkspace) -> PathBuf {
    let bare = ws.base().join("remote.git");
    let name = bare.to_str().unwrap();
    ws.git(["init", "-q", "--bare", name]);
    ws.git(["remote", "add", "origin", name]);
    ws.git(["push", "-q", "-u", "origin", "main"]);
    bare
}

fn has(ws: &TestWorkspace, repository: &str, commit: &str) -> bool {
    let call = ws.git_call(["--git-dir", repository, "cat-file", "-e", commit]);
    call.run().code == 0
}

#[test]
fn what_a_run_left_is_kept_and_no_push_but_a_mirror_sends_it() {
    let ws = TestWorkspace::repository();
    let bare = remote(&ws);
    let bare = bare.to_str().unwrap();
    let (run, commit) = leaves_a_commit(&ws);
    let name = kept_by(&run);
    assert!(name.starts_with(NAMESPACE), "{name}");
    assert_eq!(ws.git(["rev-parse", &name]), commit);

    // An own tag, so that the pushes of tags have something to do.
    ws.git(["commit", "-q", "--allow-empty", "-m", "mine"]);
    ws.git(["tag", "-a", "-m", "mine", "v1"]);
    for push in [
        &["push", "-q"][..],
        &["push", "-q", "--follow-tags"],
        &["push", "-q", "--tags"],
        &["push", "-q", "--all"],
    ] {
        ws.git(push);
        assert!(!has(&ws, bare, &commit), "{push:?} sent it");
    }
    assert_eq!(
        ws.git(["--git-dir", bare, "for-each-ref", "--format=%(refname)"]),
        "refs/heads/main\nrefs/tags/v1",
        "the pushes did something"
    );
    ws.git(["push", "-q", "--mirror"]);
    assert!(
        has(&ws, bare, &commit),
        "the guide says that a mirror has it"
    );
}

#[test]
fn git_names_it_among_no_tags() {
    let ws = TestWorkspace::repository();
    let (_, commit) = leaves_a_commit(&ws);
    assert_eq!(ws.git(["tag"]), "");
    assert_eq!(ws.git(["log", "--tags", "--format=%H"]), "");
    let describe = ws.git_call(["describe", "--tags", &commit]).run();
    assert_ne!(describe.code, 0, "{}", describe.stdout_text());
    let all = ws.git(["log", "--all", "--format=%H"]);
    assert!(all.contains(&commit), "the guide says that this shows it");
    // It is what keeps the commit from git's own clean-up.
    ws.git(["reflog", "expire", "--expire=now", "--all"]);
    ws.git(["gc", "-q", "--prune=now"]);
    assert!(has(&ws, ".git", &commit));
}

#[test]
fn it_goes_by_the_retention_with_the_guard_of_its_rollback() {
    for is_packed in [false, true] {
        let ws = TestWorkspace::repository();
        let (run, commit) = leaves_a_commit(&ws);
        let name = kept_by(&run);
        let (later, _) = leaves_a_commit(&ws);
        let moved = ws.git(["rev-parse", "HEAD"]);
        ws.git(["update-ref", &kept_by(&later), &moved]);
        if is_packed {
            ws.git(["pack-refs", "--all"]);
        }
        let kept = ws.json(["gc", "--keep", "100"]);
        assert!(kept.get("safety_refs_removed").is_none(), "{kept}");
        assert_eq!(ws.git(["rev-parse", &name]), commit, "nothing was due");

        let gone = ws.json(["gc", "--keep", "1"]);
        assert_eq!(gone["safety_refs_removed"], serde_json::json!([name]));
        let left = ws.git(["for-each-ref", "--format=%(refname)", NAMESPACE]);
        assert_eq!(left, kept_by(&later), "one that somebody moved is theirs");
        let again = ws.json(["gc", "--keep", "1"]);
        assert!(again.get("safety_refs_removed").is_none(), "{again}");
        ws.git(["fsck", "--strict"]);
    }
}

#[test]
fn a_clean_up_says_which_refs_it_let_go_of() {
    let ws = TestWorkspace::repository();
    let (run, _) = leaves_a_commit(&ws);
    let text = ws.stillframe(["gc", "--keep", "1"]).ok().stdout_text();
    let line = format!("removed {} from the repository\n", kept_by(&run));
    assert!(text.contains(&line), "{text}");
}

#[test]
fn a_guard_whose_ref_is_locked_is_kept_until_that_can_go_too() {
    let ws = TestWorkspace::repository();
    let (run, commit) = leaves_a_commit(&ws);
    let name = kept_by(&run);
    let lock = format!(".git/{name}.lock");
    ws.write(&lock, "");
    let gc = ws.stillframe(["gc", "--keep", "1"]).ok();
    assert!(gc.stderr_text().contains(&name), "{}", gc.stderr_text());
    assert_eq!(ws.git(["rev-parse", &name]), commit);
    let guard = run["workspace"]["rollback"]["guard_snapshot"].as_str();
    ws.show(guard.unwrap());
    ws.remove(&lock);
    ws.stillframe(["gc", "--keep", "1"]).ok();
    assert_ne!(
        ws.git_call(["rev-parse", "-q", "--verify", &name])
            .run()
            .code,
        0
    );
}

#[test]
fn a_clean_up_works_where_the_repository_is_gone() {
    let ws = TestWorkspace::repository();
    let (run, _) = leaves_a_commit(&ws);
    ws.remove(".git");
    let gc = ws.json(["gc", "--keep", "1"]);
    let guard = &run["workspace"]["rollback"]["guard_snapshot"];
    let forgotten = gc["forgotten"].as_array().unwrap();
    assert!(forgotten.contains(guard), "{gc}");
}

// "HEAD or its branch was moved", of one that stayed where it was
#[test]
fn where_the_branch_stays_it_is_not_said_to_have_moved() {
    let mut ws = TestWorkspace::repository();
    ws.git(["checkout", "-q", "-b", "deep/own"]);
    let before = ws.snapshot();
    ws.write("README", "two\n");
    ws.commit("two");
    if !ws.drop_privileges() {
        return;
    }
    let tip = ws.git(["rev-parse", "HEAD"]);
    let mode = |mode| ws.chmod(".git/refs/heads/deep", mode);
    mode(0o555);
    let told = ws.stillframe(["restore", before.id(), "--repository"]);
    let told = told.ok().stdout_text();
    mode(0o755);
    assert!(told.contains("not everything was put back"), "{told}");
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
    assert!(told.contains(NAMESPACE), "{told}");
    assert!(!told.contains("was moved"), "{told}");
    let told = ws.stillframe(["restore", before.id(), "--repository"]);
    let told = told.ok().stdout_text();
    assert!(told.contains("HEAD or its branch was moved"), "{told}");
}
