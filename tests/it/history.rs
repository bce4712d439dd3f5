//! The commits that only HEAD's branch reaches: kept with the snapshot before a run, and given
//! back.

use stillframe_tests::{Snap, TestWorkspace, json};

/// What has git forget everything that nothing names.
const FORGET: &str = "git reflog expire --expire=now --all && git gc -q --prune=now";

fn has(ws: &TestWorkspace, id: &str) -> bool {
    ws.git_call(["cat-file", "-e", id]).run().code == 0
}

/// Fails unless the repository is whole.
fn whole(ws: &TestWorkspace) {
    let said = ws.git(["fsck", "--full", "--strict", "--no-dangling"]);
    assert_eq!(said, "");
}

/// A repository in which a run can commit.
fn repository() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "Author"]);
    ws.git(["config", "user.email", "author@example.org"]);
    ws
}

/// A repository with some commits, of which `refs/remotes/origin/main` has the first.
fn ahead() -> (TestWorkspace, String) {
    let ws = repository();
    ws.write("d/kept", "pushed\n");
    ws.commit("pushed");
    ws.git(["update-ref", "refs/remotes/origin/main", "HEAD"]);
    ws.write("d/deep/file", "one\n");
    ws.commit("one");
    ws.write("d/deep/file", "two\n");
    ws.write("top", "content of the tip\n");
    ws.symlink("link", "top");
    ws.commit("two");
    let tip = ws.git(["rev-parse", "HEAD"]);
    (ws, tip)
}

fn history(ws: &TestWorkspace, snapshot: &serde_json::Value) -> serde_json::Value {
    let id = snapshot["id"].as_str().unwrap();
    ws.show(id)["metadata"]["history"].clone()
}

// "commit … is not in the repository any more"
#[test]
fn a_tip_that_a_run_amended_away_and_pruned_comes_back() {
    let (ws, tip) = ahead();
    let log = ws.git(["log", "--format=%H %T %s %an %cd", "--stat"]);
    let amend = format!("echo three > top && git commit -qa --amend -m three && {FORGET}");
    let run = ws.run(["--rollback-on-failure"], &format!("{amend}; exit 1"));
    let run = run.exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    assert_eq!(rollback["error"], serde_json::Value::Null, "{run}");
    assert_eq!(ws.git(["rev-parse", "main"]), tip);
    assert_eq!(ws.git(["log", "--format=%H %T %s %an %cd", "--stat"]), log);
    assert_eq!(ws.git(["show", "HEAD:top"]), "content of the tip");
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    whole(&ws);

    // By hand: without the snapshot it would be gone for good.
    let run = ws.run::<&str>([], &amend).ok().json();
    assert!(!has(&ws, &tip), "git has forgotten it");
    let before = &run["workspace"]["before_snapshot"];
    assert_eq!(history(&ws, before)["commits"], 2);
    ws.undo();
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
    assert_eq!(ws.git(["log", "--format=%H %T %s %an %cd", "--stat"]), log);
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    whole(&ws);
}

#[test]
fn a_branch_that_a_run_reset_and_pruned_comes_back_with_all_of_its_commits() {
    let (ws, tip) = ahead();
    let shape = ws.git(["log", "--format=%H %T", "main"]);
    let reset = format!("git reset -q --hard origin/main && {FORGET}");
    ws.run::<&str>([], &reset).ok();
    let one = shape.lines().nth(1).unwrap().split(' ').next().unwrap();
    assert!(!has(&ws, &tip) && !has(&ws, one));
    ws.undo();
    assert_eq!(ws.git(["log", "--format=%H %T", "main"]), shape);
    assert_eq!(ws.text("d/deep/file"), "two\n");
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    whole(&ws);

    // So it does where the branch itself was deleted.
    let leave = format!(
        "git checkout -q --orphan other && git commit -qm x && git branch -qD main && {FORGET}"
    );
    ws.run::<&str>([], &leave).ok();
    assert!(!has(&ws, &tip));
    ws.undo();
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(ws.git(["log", "--format=%H %T", "main"]), shape);
    whole(&ws);
}

#[test]
fn what_another_ref_reaches_is_not_kept_and_what_is_kept_is_said() {
    let (ws, tip) = ahead();
    let before = |run: serde_json::Value| run["workspace"]["before_snapshot"].clone();
    let first = before(ws.run::<&str>([], "true").ok().json());
    assert_eq!(
        history(&ws, &first),
        serde_json::json!({"commits": 2, "not_kept_from": null})
    );
    let told = ws
        .stillframe(["show", first["id"].as_str().unwrap()])
        .ok()
        .stdout_text();
    assert!(
        told.contains("2 commits that no other ref reaches"),
        "{told}"
    );
    // Somebody pushed, and went on there.
    ws.git(["update-ref", "refs/remotes/origin/main", &tip]);
    let pushed = before(ws.run::<&str>([], "true").ok().json());
    assert_eq!(history(&ws, &pushed), serde_json::Value::Null);
    ws.git(["checkout", "-q", "-b", "theirs"]);
    ws.write("theirs", "x\n");
    ws.commit("theirs");
    ws.git(["update-ref", "refs/remotes/origin/main", "HEAD"]);
    ws.git(["checkout", "-q", "main"]);
    ws.git(["branch", "-qD", "theirs"]);
    ws.write("mine", "x\n");
    ws.commit("mine");
    let own = before(ws.run::<&str>([], "true").ok().json());
    assert_eq!(
        history(&ws, &own)["commits"],
        1,
        "the others are in the remote's branch"
    );
    ws.json(["verify"]);
}

#[test]
fn of_a_long_history_the_newest_commits_are_kept_and_the_first_that_is_not_is_named() {
    let ws = repository();
    for n in 0..70 {
        ws.write("f", format!("{n}\n"));
        ws.commit(&format!("commit {n}"));
    }
    let run = ws.run::<&str>([], &format!("git reset -q --hard HEAD~60 && {FORGET}"));
    let run = run.ok().json();
    let kept = history(&ws, &run["workspace"]["before_snapshot"]);
    assert_eq!(kept["commits"], 64);
    ws.undo();
    let skipped = ws.git(["rev-list", "--skip=64", "-1", "HEAD"]);
    assert_eq!(kept["not_kept_from"].as_str(), Some(skipped.as_str()));
    assert_eq!(ws.git(["log", "-1", "--format=%s"]), "commit 69");
    whole(&ws);
}

// History with a gap would make a broken repository of one that is whole
#[test]
fn a_branch_whose_older_commits_are_gone_stays_and_what_was_kept_is_given_back() {
    let ws = repository();
    for n in 0..67 {
        ws.write("f", format!("{n}\n"));
        ws.commit(&format!("commit {n}"));
    }
    let tip = ws.git(["rev-parse", "HEAD"]);
    let base = ws.git(["rev-parse", "HEAD~64"]);
    let leave = format!(
        "git checkout -q --orphan other && git commit -qm x && git branch -qD main && {FORGET}"
    );
    ws.run::<&str>([], &leave).ok();
    assert!(!has(&ws, &tip) && !has(&ws, &base));
    let undone = ws.undo();
    let error = undone["error"]["message"].as_str().unwrap();
    assert!(error.contains(&base), "{undone}");
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/other");
    assert_eq!(
        ws.git(["for-each-ref", "--format=%(refname)"]),
        "refs/heads/other"
    );
    assert_eq!(ws.text("f"), "66\n");
    assert_eq!(ws.git(["show", &format!("{tip}:f")]), "66");
    assert!(has(&ws, &format!("{tip}~63")) && !has(&ws, &base));
}

/// A shallow clone with one commit of `main`, and the repository that it was made from.
fn shallow_clone() -> (TestWorkspace, TestWorkspace) {
    let origin = repository();
    for n in 0..3 {
        origin.write("f", format!("{n}\n"));
        origin.commit(&format!("commit {n}"));
    }
    let ws = TestWorkspace::plain();
    let from = format!("file://{}", origin.root().display());
    ws.git(["clone", "-q", "--depth", "1", &from, "."]);
    ws.git(["remote", "set-head", "origin", "-d"]);
    ws.git(["config", "user.name", "Author"]);
    ws.git(["config", "user.email", "author@example.org"]);
    (ws, origin)
}

// "fatal: Failed to traverse parents of commit"
#[test]
fn a_shallow_clone_is_never_left_with_history_that_git_cannot_read() {
    let (ws, _origin) = shallow_clone();
    ws.git(["remote", "remove", "origin"]);
    let tip = ws.git(["rev-parse", "HEAD"]);
    let amend = format!("git commit -q --amend -m other && {FORGET}");
    let run = ws.run(["--rollback-on-failure"], &format!("{amend}; exit 1"));
    let run = run.exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    let error = rollback["error"]["message"].as_str().unwrap();
    assert!(
        error.contains(&tip) && error.contains(".git/shallow"),
        "{run}"
    );
    assert_eq!(rollback["refs_left"][0]["undo"], "", "{run}");
    assert_eq!(ws.git(["log", "--format=%s"]), "other");
    assert_eq!(ws.git(["show", &format!("{tip}:f")]), "2");

    // With the line there it goes back.
    let (ws, _origin) = shallow_clone();
    ws.git(["remote", "remove", "origin"]);
    ws.git(["commit", "-q", "--allow-empty", "-m", "mine"]);
    let tip = ws.git(["rev-parse", "HEAD"]);
    let reset = format!("git reset -q --hard HEAD~1 && {FORGET}; exit 1");
    let run = ws.run(["--rollback-on-failure"], &reset).exits(1).json();
    assert!(run["workspace"]["rollback"]["error"].is_null(), "{run}");
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
    whole(&ws);
}

// git fetches it when it is wanted
#[test]
fn what_a_partial_clone_has_not_is_not_lost() {
    let origin = repository();
    origin.git(["config", "uploadpack.allowFilter", "true"]);
    for n in 0..3 {
        origin.write("f", format!("{n}\n"));
        origin.commit(&format!("commit {n}"));
    }
    let ws = TestWorkspace::plain();
    let from = format!("file://{}", origin.root().display());
    ws.git(["clone", "-q", "--filter=blob:none", &from, "."]);
    ws.git(["config", "user.name", "Author"]);
    ws.git(["config", "user.email", "author@example.org"]);
    for name in ["refs/remotes/origin/HEAD", "refs/remotes/origin/main"] {
        ws.git(["update-ref", "--no-deref", "-d", name]);
    }
    let missing = ws.git(["rev-list", "--objects", "--missing=print", "HEAD"]);
    assert!(missing.contains('?'), "the older versions were not fetched");
    let tip = ws.git(["rev-parse", "HEAD"]);
    let amend = "git commit -q --amend -m other; exit 1";
    let run = ws.run(["--rollback-on-failure"], amend).exits(1).json();
    let kept = history(&ws, &run["workspace"]["before_snapshot"]);
    assert_eq!(kept["commits"], 4, "{run}");
    assert!(run["workspace"]["rollback"]["error"].is_null(), "{run}");
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
}

// Its parents were followed beyond where the clone ends, to commits that another fetch had left
// there
#[test]
fn where_a_shallow_clone_ends_a_commit_is_not_reached_by_those_that_were_fetched_later() {
    let (ws, origin) = shallow_clone();
    let tip = ws.git(["rev-parse", "HEAD"]);
    origin.commit("later");
    ws.git(["fetch", "-q", "--depth", "1"]);
    assert_eq!(ws.git(["rev-list", "main", "--not", "--remotes"]), tip);
    let reset = format!("git reset -q --hard origin/main && {FORGET}");
    let run = ws.run::<&str>([], &reset).ok().json();
    assert_eq!(
        history(&ws, &run["workspace"]["before_snapshot"])["commits"],
        1
    );
    assert!(!has(&ws, &tip));
    ws.undo();
    assert!(has(&ws, &tip), "the snapshot had it");
    assert_eq!(ws.git(["status", "--porcelain", "f"]), "");
    ws.git(["log", "--all", "--format=%s"]);
}

// The note said that there was nothing more, for as long as nobody moved a branch
#[test]
fn what_could_not_be_read_is_kept_by_the_next_snapshot() {
    let (ws, tip) = ahead();
    let shape = ws.git(["log", "--format=%H %T", "main"]);
    let one = ws.git(["rev-parse", "HEAD~1"]);
    let tree = ws.git(["rev-parse", "HEAD:d"]);
    let blob = ws.git(["rev-parse", "HEAD:link"]);
    for lost in [&tip, &one, &tree, &blob] {
        let object = format!(".git/objects/{}/{}", &lost[..2], &lost[2..]);
        let (there, away) = (ws.path(&object), ws.outside().join("away"));
        std::fs::rename(&there, &away).unwrap();
        let run = ws.run::<&str>([], "true").ok().json();
        let kept = history(&ws, &run["workspace"]["before_snapshot"]);
        assert!(
            kept["commits"] == 2 || kept["not_kept_from"].is_string(),
            "{lost}: {kept}"
        );
        std::fs::rename(&away, &there).unwrap();
        let run = ws.run::<&str>([], "true").ok().json();
        let kept = history(&ws, &run["workspace"]["before_snapshot"]);
        let all = serde_json::json!({"commits": 2, "not_kept_from": null});
        assert_eq!(kept, all, "{lost}");
    }
    let reset = format!("git reset -q --hard origin/main && {FORGET}");
    ws.run::<&str>([], &reset).ok();
    assert!(!has(&ws, &tip) && !has(&ws, &blob));
    ws.undo();
    assert_eq!(ws.git(["log", "--format=%H %T", "main"]), shape);
    whole(&ws);
}

// The command was printed that would have made the broken repository
#[test]
fn no_command_is_told_that_would_lead_a_branch_into_history_with_a_gap() {
    let ws = repository();
    for n in 0..90 {
        ws.git(["commit", "-q", "--allow-empty", "-m", &n.to_string()]);
    }
    let script = format!("git reset -q --hard HEAD~80 && {FORGET}; exit 1");
    let call = ws.run_call(["--rollback-on-failure"], &script);
    let run = call.run().exits(1);
    let rollback = &run.json()["workspace"]["rollback"];
    assert!(rollback["error"]["message"].is_string(), "{rollback}");
    let left = &rollback["refs_left"][0];
    assert_eq!(left["name"], "refs/heads/main", "{rollback}");
    assert_eq!(left["undo"], "", "{rollback}");
    whole(&ws);
}

/// What leads HEAD's branch elsewhere, and leaves files and index as they are.
fn lead_elsewhere() -> String {
    let other = "other=$(git commit-tree -m other HEAD^{tree})";
    format!("{other} && git update-ref HEAD $other && {FORGET}")
}

// The first gave the tip back, which was all that the second looked for
#[test]
fn no_undo_leads_a_branch_into_history_with_a_gap_however_often_it_is_tried() {
    let long = repository();
    for n in 0..70 {
        long.git(["commit", "-q", "--allow-empty", "-m", &n.to_string()]);
    }
    let (shallow, _origin) = shallow_clone();
    shallow.git(["remote", "remove", "origin"]);
    for ws in [long, shallow] {
        let run = ws.run::<&str>([], &lead_elsewhere()).ok().json();
        let other = ws.git(["rev-parse", "main"]);
        for _ in 0..3 {
            let undone = ws.undo();
            assert_eq!(undone["undone"]["run_id"], run["run_id"], "{undone}");
            assert!(undone["error"]["message"].is_string(), "{undone}");
            assert_eq!(ws.git(["rev-parse", "main"]), other);
        }
    }
}

// libgit2 waited for it, and no signal ended that
#[test]
fn a_trap_in_the_place_of_a_kept_commit_is_not_waited_for() {
    let (ws, _origin) = shallow_clone();
    ws.git(["remote", "remove", "origin"]);
    let tip = ws.git(["rev-parse", "HEAD"]);
    let object = format!(".git/objects/{}/{}", &tip[..2], &tip[2..]);
    let amend = format!(
        "{} && {FORGET} && mkdir -p {} && mkfifo {object}; exit 1",
        "git commit -q --amend -m x",
        &object[..16]
    );
    let run = ws.run(["--rollback-on-failure"], &amend).exits(1).json();
    assert_eq!(run["status"], "failed", "{run}");
    ws.remove(&object);
}

// It was the undo that had changed nothing
#[test]
fn an_undo_that_could_give_no_commit_back_is_not_what_came_last() {
    let (ws, tip) = ahead();
    let run = ws.run::<&str>([], &lead_elsewhere()).ok().json();
    assert!(!has(&ws, &tip));
    // No object can be put there.
    let in_the_way = format!(".git/objects/{}", &tip[..2]);
    ws.write(&in_the_way, "");
    for _ in 0..2 {
        let undone = ws.undo();
        assert_eq!(undone["undone"]["run_id"], run["run_id"], "{undone}");
        assert!(undone["error"]["message"].is_string(), "{undone}");
    }
    ws.remove(&in_the_way);
    let undone = ws.undo();
    assert_eq!(undone["undone"]["run_id"], run["run_id"], "{undone}");
    assert_eq!(ws.git(["rev-parse", "main"]), tip);
    whole(&ws);
}

// It is gone with the next `git stash pop`
#[test]
fn a_commit_that_only_the_stash_reaches_besides_is_kept() {
    let (ws, tip) = ahead();
    ws.write("top", "stashed\n");
    ws.git(["stash", "-q"]);
    let amend = format!("git stash drop -q && git commit -q --amend -m three && {FORGET}");
    let run = ws.run::<&str>([], &amend).ok().json();
    assert_eq!(
        history(&ws, &run["workspace"]["before_snapshot"])["commits"],
        2
    );
    assert!(!has(&ws, &tip));
    ws.undo();
    assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
    whole(&ws);
}

// It was in no snapshot before
#[test]
fn a_purge_finds_what_only_a_kept_commit_has() {
    let (mut ws, _) = ahead();
    ws.write("secret", "correct horse battery staple\n");
    ws.commit("by mistake");
    let id = ws.git(["rev-parse", "HEAD:secret"]);
    let other = ws.git(["rev-parse", "HEAD~1:top"]);
    ws.git(["rm", "-q", "secret"]);
    ws.commit("taken back");
    let tip = ws.git(["rev-parse", "HEAD"]);
    let run = ws.run::<&str>([], "true").ok().json();
    let before = Snap::of(&run["workspace"]["before_snapshot"]);
    let purged = ws.json(["purge", &id]);
    // A tree still names what was purged.
    ws.damages_the_store();
    let text = purged.to_string();
    assert!(
        text.contains("secret") && text.contains(before.id()),
        "{purged}"
    );
    let stores = ws.stores();
    assert!(!stores.is_empty());
    for store in stores {
        let store = store.join("git");
        let kept_is_there = |id: &str, code: i32| {
            let arguments = ["--git-dir", store.to_str().unwrap(), "cat-file", "-e", id];
            assert_eq!(ws.git_call(arguments).run().code, code, "{id}");
        };
        kept_is_there(&id, 1);
        kept_is_there(&other, 0);
    }
    assert_eq!(
        purged["proof"]["safety_refs"],
        serde_json::Value::Null,
        "{purged}"
    );
    // What the commits have beside it comes back, and the branch stays where git can read all of
    // it.
    let reset = format!("git reset -q --hard origin/main && {FORGET}");
    let run = ws.run(["--rollback-on-failure"], &format!("{reset}; exit 1"));
    let run = run.exits(1).json();
    let rollback = &run["workspace"]["rollback"];
    let error = rollback["error"]["message"].as_str().unwrap();
    assert!(
        error.contains(&id) && error.contains("purged") && error.contains("were left where they"),
        "{run}"
    );
    assert_eq!(ws.git(["log", "-1", "--format=%s"]), "pushed");
    assert_eq!(rollback["refs_left"][0]["undo"], "", "{run}");
    assert_eq!(json::names_in(&rollback["skipped"]), [""; 0]);
    assert_eq!(
        ws.git(["show", &format!("{tip}:top")]),
        "content of the tip"
    );
    stays_in_order(&ws);
}

/// Fails unless git can read and repack all that a ref or the index names.
fn stays_in_order(ws: &TestWorkspace) {
    whole(ws);
    ws.git(["status", "--porcelain"]);
    ws.git(["gc", "-q", "--prune=now"]);
}

// "git gc" failed from then on
#[test]
fn a_branch_is_not_led_to_a_commit_whose_content_is_gone_for_good() {
    let taken_back = " && git rm -q secret && git commit -qm 'taken back'";
    for (taken_back, is_edited) in [("", false), (taken_back, false), ("", true)] {
        let (mut ws, tip) = ahead();
        let script = format!(
            "echo correct horse battery staple > secret && git add secret && git commit -qm mistake{taken_back}"
        );
        ws.run::<&str>([], &script).ok();
        let mistake = ws.git(["log", "-1", "--format=%H", "--grep=mistake"]);
        let id = ws.git(["rev-parse", &format!("{mistake}:secret")]);
        let safety = ws.undo()["safety_tag"].as_str().unwrap().to_owned();
        assert_eq!(ws.git(["rev-parse", "main"]), tip);
        ws.damages_the_store();
        ws.json(["purge", &id]);
        ws.git(["update-ref", "-d", &safety]);
        ws.git(["reflog", "expire", "--expire=now", "--all"]);
        ws.git(["gc", "-q", "--prune=now"]);
        assert!(!has(&ws, &id));
        if is_edited {
            ws.write("own", "x\n");
            ws.git(["add", "own"]);
        }
        let plan = ws.untouched(|| ws.json(["undo", "--plan"]));
        let foreseen = &plan["repository"];
        assert_eq!(foreseen["refs"], serde_json::json!([]), "{plan}");
        assert_eq!(foreseen["index"], serde_json::Value::Null, "{plan}");
        let told = foreseen["problem"]["message"].as_str().unwrap();
        assert!(told.contains(&id), "{plan}");
        let plan_id = plan["plan_id"].as_str().unwrap();
        let redone = ws.json(["undo", "--apply", plan_id]);
        let error = redone["error"]["message"].as_str().unwrap();
        assert_eq!(error, told, "the same is planned and done");
        let says_that_it_stays = error.contains("the index was changed since");
        assert_eq!(says_that_it_stays, is_edited, "{error}");
        // HEAD stays, so that it would only take out what is staged.
        assert!(!error.contains("git reset"), "{error}");
        assert!(
            error.contains(&id)
                && error.contains("purged")
                && error.contains("were left where they are"),
            "{redone}"
        );
        assert_eq!(ws.git(["rev-parse", "HEAD"]), tip, "{redone}");
        assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/main");
        stays_in_order(&ws);
    }
}

// git could neither commit nor pack anything any more
#[test]
fn an_index_that_would_name_purged_content_stays() {
    for commits in ["", " && git commit -q --allow-empty -m on"] {
        let (mut ws, tip) = ahead();
        ws.write("secret", "correct horse battery staple\n");
        ws.git(["add", "secret"]);
        let id = ws.git(["rev-parse", ":secret"]);
        ws.run::<&str>([], &format!("git rm -qf secret{commits} && {FORGET}"))
            .ok();
        assert!(!has(&ws, &id));
        ws.damages_the_store();
        ws.json(["purge", &id]);
        let index = ws.git(["ls-files", "-s"]);
        let undone = ws.undo();
        let error = undone["error"]["message"].as_str().unwrap();
        assert!(
            error.contains("the index was left as it is") && error.contains(&id),
            "{undone}"
        );
        assert_eq!(error.contains("git reset"), !commits.is_empty(), "{error}");
        assert_eq!(ws.git(["rev-parse", "HEAD"]), tip);
        assert_eq!(ws.git(["ls-files", "-s"]), index);
        stays_in_order(&ws);
    }
}

// It was put back where older commits were gone, and git could neither commit nor pack anything any
// more
#[test]
fn where_older_commits_are_gone_an_index_that_would_name_lost_content_stays() {
    let ws = repository();
    for n in 0..67 {
        ws.write("f", format!("{n}\n"));
        ws.commit(&format!("commit {n}"));
    }
    ws.write("staged", "only staged\n");
    ws.git(["add", "staged"]);
    let lost = ws.git(["rev-parse", ":staged"]);
    ws.write("staged", "in the work tree\n");
    ws.remove(format!(".git/objects/{}/{}", &lost[..2], &lost[2..]));
    let leave = format!(
        "git rm -q -f --cached staged && git checkout -q --orphan other && git commit -qm x && git branch -qD main \
         && {FORGET}"
    );
    ws.run::<&str>([], &leave).ok();
    let index = ws.git(["ls-files", "-s"]);
    let undone = ws.undo();
    let error = undone["error"]["message"].as_str().unwrap();
    assert!(
        error.contains("HEAD and branch were left")
            && error.contains("the index was left as it is")
            && error.contains(&lost),
        "{undone}"
    );
    assert_eq!(ws.git(["ls-files", "-s"]), index);
    stays_in_order(&ws);
}

// It is as it was before the run, which is what an undo is for
#[test]
fn content_that_the_repository_had_lost_before_the_run_holds_no_branch_up() {
    let (ws, tip) = ahead();
    let lost = ws.git(["rev-parse", "HEAD~1:d/deep/file"]);
    ws.remove(format!(".git/objects/{}/{}", &lost[..2], &lost[2..]));
    let reset = format!("git reset -q --hard origin/main && {FORGET}");
    ws.run::<&str>([], &reset).ok();
    assert!(!has(&ws, &tip));
    let undone = ws.undo();
    assert_eq!(ws.git(["rev-parse", "main"]), tip, "{undone}");
    assert_eq!(ws.git(["status", "--porcelain"]), "");
    let error = undone["error"]["message"].as_str().unwrap();
    assert!(
        error.contains(&lost) && error.contains("as it did before"),
        "{undone}"
    );
}

// The index named trees that came with older commits, and "git fsck" complained until the next
// commit
#[test]
fn where_a_branch_stays_the_index_names_no_trees_that_the_repository_lacks() {
    let ws = repository();
    ws.write("old/file", "x\n");
    ws.write("old/deep/file", "x\n");
    for n in 0..67 {
        ws.write("f", format!("{n}\n"));
        ws.commit(&format!("commit {n}"));
    }
    let tree = ws.git(["rev-parse", "HEAD:old"]);
    let staged = ws.git(["ls-files", "-s"]);
    let leave = format!(
        "git checkout -q --orphan other && git rm -q -r --cached old && git commit -qm x && git branch -qD main \
         && {FORGET}"
    );
    ws.run::<&str>([], &leave).ok();
    assert!(!has(&ws, &tree));
    let undone = ws.undo();
    assert!(undone["error"]["message"].is_string(), "{undone}");
    assert_eq!(ws.git(["symbolic-ref", "HEAD"]), "refs/heads/other");
    assert_eq!(ws.git(["ls-files", "-s"]), staged);
    stays_in_order(&ws);
}

// Only its newest commits were searched
#[test]
fn a_purge_searches_all_commits_of_a_safety_ref() {
    let (mut ws, _) = ahead();
    let script = "echo correct horse battery staple > secret && git add secret && git commit -qm x && git rm -q secret \
                  && for n in $(seq 70); do git commit -q --allow-empty -m $n; done; exit 1";
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    let safety = run["workspace"]["rollback"]["safety_tag"].as_str().unwrap();
    let id = ws.git(["rev-parse", &format!("{safety}~70:secret")]);
    ws.write("secret", "correct horse battery staple\n");
    ws.snapshot();
    ws.remove("secret");
    ws.damages_the_store();
    let purged = ws.json(["purge", &id]);
    let named = json::names(&purged["proof"]["safety_refs"]);
    assert_eq!(named, [safety], "{purged}");
    // One that cannot be searched is named too.
    let last = ws.git(["rev-parse", &format!("{safety}~3")]);
    let object = format!(".git/objects/{}/{}", &last[..2], &last[2..]);
    std::fs::remove_file(ws.path(&object)).unwrap();
    ws.write("other", "tr0ub4dor\n");
    ws.snapshot();
    ws.remove("other");
    let purged = ws.json(["purge", "other"]);
    let named = json::names(&purged["proof"]["safety_refs_unsearched"]);
    assert_eq!(named, [safety], "{purged}");
}

// "git update-ref -d" was told, after which it was there still
#[test]
fn what_a_branch_has_as_well_is_not_in_a_safety_ref_alone() {
    let (mut ws, _) = ahead();
    ws.write("secret", "correct horse battery staple\n");
    ws.commit("by mistake");
    let script = "git commit -q --allow-empty -m x; exit 1";
    ws.run(["--rollback-on-failure"], script).exits(1);
    ws.git(["rm", "-q", "secret"]);
    ws.commit("taken back");
    ws.snapshot();
    ws.damages_the_store();
    let purged = ws.json(["purge", "secret"]);
    let proof = &purged["proof"];
    assert_eq!(proof["safety_refs"], serde_json::Value::Null, "{purged}");
}

// It said that all was gone, and git still had it
#[test]
fn a_purge_names_the_safety_refs_that_still_have_the_content() {
    let (mut ws, _) = ahead();
    let script =
        "echo correct horse battery staple > secret && git add secret && git commit -qm x; exit 1";
    let run = ws.run(["--rollback-on-failure"], script).exits(1).json();
    let safety = run["workspace"]["rollback"]["safety_tag"].as_str().unwrap();
    let id = ws.git(["rev-parse", &format!("{safety}:secret")]);
    let purged = ws.json(["purge", "secret"]);
    ws.damages_the_store();
    assert_eq!(
        json::names(&purged["proof"]["safety_refs"]),
        [safety],
        "{purged}"
    );
    assert!(has(&ws, &id), "the repository is not touched");
}
