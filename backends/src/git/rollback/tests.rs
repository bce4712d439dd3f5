use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::*;

mod operation;

use crate::backend::{RepositoryRestore, RestoreOutcome};
use crate::error::ErrorKind;
use crate::faults::{Calls, Fault};
use crate::restore::RestoreGoal;
use crate::restore::naive::{Stage, git_command, view};
use crate::restore::{Captured as _, Publish, Restorable as _, recover};
use crate::snapshot::Snapshot;
use crate::trial;
use crate::workspace::TEST_LOCK_TIMEOUT;

/// A repository with a commit, something staged, something unstaged and something untracked.
fn repository() -> Stage {
    let stage = Stage::new();
    stage.git(&["init", "-q", "-b", "main"]);
    stage.write("tracked", "one\n");
    stage.write("staged", "one\n");
    stage.git(&["add", "."]);
    stage.git(&["commit", "-q", "-m", "first"]);
    stage.write("staged", "two\n");
    stage.git(&["add", "staged"]);
    stage.write("tracked", "two\n");
    stage.write("untracked", "one\n");
    stage
}

/// What a run does that commits everything and goes on.
fn run(stage: &Stage) {
    stage.write("tracked", "three\n");
    stage.write("made", "by the run\n");
    stage.git(&["add", "."]);
    stage.git(&["commit", "-q", "-m", "by the run"]);
    stage.write("untracked", "by the run\n");
    stage.write("staged", "by the run\n");
    stage.git(&["add", "staged"]);
}

fn rollback(before: &Snapshot, after: &Snapshot) -> RepositoryRestore {
    RepositoryRestore::Rollback {
        before: before.clone(),
        after: after.clone(),
        run_id: "run_7".to_owned(),
    }
}

fn roll_back(
    stage: &mut Stage,
    before: &Snapshot,
    after: &Snapshot,
) -> Result<RestoreOutcome, RestoreError> {
    roll_back_in(&Operation::unbounded(), stage, before, after)
}

fn roll_back_in(
    op: &Operation,
    stage: &mut Stage,
    before: &Snapshot,
    after: &Snapshot,
) -> Result<RestoreOutcome, RestoreError> {
    stage.restore_goal_in(op, &Stage::goal(before), rollback(before, after))
}

/// What is said of the repository beside a restore that was carried out.
fn said(outcome: &RestoreOutcome) -> String {
    outcome.repository_error.clone().unwrap().message
}

/// Of which kind that is.
fn told_kind(outcome: &RestoreOutcome) -> ErrorKind {
    outcome.repository_error.clone().unwrap().kind
}

/// The state that a run left which began at `before`.
fn snapshot_since(stage: &Stage, before: &Snapshot) -> Snapshot {
    stage.snapshot_with(&stage.options().since(before.id.clone()))
}

fn undo(
    stage: &mut Stage,
    before: &Snapshot,
    after: &Snapshot,
) -> Result<RestoreOutcome, RestoreError> {
    let goal = RestoreGoal::Undo {
        before: before.clone(),
        after: after.clone(),
        paths: None,
    };
    let repository = RepositoryRestore::Undo {
        before: before.clone(),
        after: after.clone(),
        run_id: "run_7".to_owned(),
    };
    stage.restore_goal(&goal, repository)
}

/// What git sees, apart from tags and reflogs.
fn seen(stage: &Stage) -> Seen {
    let mut files = stage.view();
    files.retain(|path, _| !path.starts_with(".git"));
    (
        fs::read(stage.path(".git/index")).unwrap_or_default(),
        fs::read_to_string(stage.path(".git/HEAD")).unwrap(),
        stage.git(&["for-each-ref", "refs/heads"]) + &operation::files_of(stage),
        files,
    )
}

/// The index, HEAD, the branches with the files of git's operations, and the files.
type Seen = (Vec<u8>, String, String, BTreeMap<String, String>);

/// What must not be left in a repository.
fn leavings(stage: &Stage) -> Vec<String> {
    let mut left: Vec<String> = view(&stage.path(".git")).into_keys().collect();
    left.retain(|path| path.ends_with(".lock") || path.contains("stillframe-"));
    left
}

const TAG: &str = "refs/stillframe/safety/run_7-1";

#[test]
fn a_run_that_committed_is_rolled_back_whole() {
    let mut stage = repository();
    let before = stage.snapshot();
    let was = seen(&stage);
    let index = fs::read(stage.path(".git/index")).unwrap();
    let status = stage.git(&["status", "--porcelain"]);
    run(&stage);
    let commit = stage.git(&["rev-parse", "HEAD"]);
    let after = stage.snapshot();
    // git refreshes the index when it is asked; the bytes are compared before that.
    let is = {
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
        assert_eq!(outcome.repository_error, None);
        assert_eq!(fs::read(stage.path(".git/index")).unwrap(), index);
        seen(&stage)
    };
    assert_eq!(is.1, was.1);
    assert_eq!(is.2, was.2);
    assert_eq!(is.3, was.3);
    assert_eq!(stage.git(&["status", "--porcelain"]), status);
    assert_eq!(stage.git(&["rev-parse", TAG]), commit);
    assert_eq!(leavings(&stage), Vec::<String>::new());
    stage.git(&["fsck", "--strict"]);
    let reflog = stage.git(&["reflog", "show", "main"]);
    assert!(reflog.contains("{0}: stillframe: roll back"), "{reflog}");

    // The same run once more: the next tag, since the first names another commit.
    stage.write("other", "other\n");
    stage.git(&["add", "other"]);
    let before = stage.snapshot();
    stage.git(&["commit", "-q", "-m", "another"]);
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(
        outcome.safety_tag.as_deref(),
        Some("refs/stillframe/safety/run_7-2")
    );
}

#[test]
fn an_undo_of_a_rollback_goes_forward_again() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let was = seen(&stage);
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    let again = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
    assert_eq!(again.repository_error, None);
    assert_eq!(seen(&stage), was);
}

// Index and branch were replaced though nobody could put them back again
#[test]
fn what_the_guard_could_not_see_of_the_repository_is_not_replaced() {
    let stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    // A program that another test starts has the lock's descriptor until it is executed.
    let (lock, lock_timeout) = (&stage.workspace, TEST_LOCK_TIMEOUT);
    let record = |snapshot: &Snapshot| {
        stage
            .backend
            .record(&Operation::unbounded(), lock, &snapshot.id)
            .unwrap()
    };
    let (before, mut guard) = (record(&before), record(&after));
    let found = stage.backend.found(lock).unwrap();
    let prepared = || {
        prepare(
            &Operation::unbounded(),
            &Request {
                state: lock.state(),
                found: Ok(found.as_ref()),
                before: before.git.as_ref().unwrap(),
                after: guard.git.as_ref(),
                run_id: "run_7",
                way: super::Way::Back,
                reached: Vec::new(),
                index_bytes: &|blob| stage.backend.kept(&Operation::unbounded(), lock, blob),
                now: Timestamp::UNIX_EPOCH,
                lock_timeout,
            },
        )
        .unwrap()
    };
    let kept = |blob: &_| stage.backend.kept(&Operation::unbounded(), lock, blob);
    let guarded = prepared().guarded_by(&guard, &kept);
    assert!(!guarded.plan.is_empty(), "all of it can be put back again");
    // As the last field of what a journal holds of a restore, which knows nothing of it.
    let field = codec::serialize(&Some(&guarded.plan), u64::MAX).unwrap();
    let (is_there, rest) = codec::split_first::<Option<()>>(&field).unwrap();
    assert_eq!((is_there, rest), (Some(()), &guarded.plan.to_bytes()[..]));
    assert_eq!(RepositoryPlan::from_bytes(rest).unwrap(), guarded.plan);
    drop(guarded);
    let unguarded = prepared();
    guard.git = None;
    let unguarded = unguarded.guarded_by(&guard, &kept);
    assert!(unguarded.plan.is_empty() && unguarded.staged.is_none());
    let said = unguarded.plan.notes().unwrap();
    assert!(said.message.contains("were not put back"), "{said:?}");
}

#[test]
fn a_commit_of_somebody_else_is_not_taken_back() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    stage.git(&["commit", "-q", "--allow-empty", "-m", "by a person"]);
    let was = (seen(&stage), view(&stage.path(".git")));

    let error = roll_back(&mut stage, &before, &after).unwrap_err();

    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
    assert!(error.to_string().contains("refs/heads/main"));
    assert!(!error.touched());
    assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

    // An undo keeps it, and takes back the files.
    let outcome = undo(&mut stage, &before, &after).unwrap();
    let told = said(&outcome);
    assert!(told.contains("HEAD, branch and index were kept"), "{told}");
    assert_eq!(told_kind(&outcome), ErrorKind::HeadMoved);
    let now = seen(&stage);
    assert_eq!((now.0, now.1, now.2), (was.0.0, was.0.1, was.0.2));
    assert_eq!(stage.read("tracked"), "two\n");
    assert_eq!(outcome.safety_tag, None);
}

#[test]
fn what_a_person_staged_since_is_kept_by_an_undo() {
    let mut stage = repository();
    let before = stage.snapshot();
    stage.write("staged", "by the run\n");
    stage.git(&["add", "staged"]);
    let after = stage.snapshot();
    // Stat data alone is no edit.
    stage.chmod("tracked", 0o600);
    stage.chmod("tracked", 0o644);
    stage.git(&[
        "update-index",
        "-q",
        "--refresh",
        "--really-refresh",
        "staged",
    ]);
    let outcome = undo(&mut stage, &before, &after).unwrap();
    assert_eq!(outcome.repository_error, None);
    assert_eq!(stage.git(&["show", ":staged"]), "two");

    let redone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
    assert_eq!(stage.git(&["show", ":staged"]), "by the run");
    stage.write("new", "by a person\n");
    stage.git(&["add", "new"]);
    let outcome = undo(&mut stage, &redone.guard, &redone.result).unwrap();
    let told = said(&outcome);
    assert!(told.contains("the index was changed since"), "{told}");
    assert_eq!(told_kind(&outcome), ErrorKind::Conflict);
    assert_eq!(stage.git(&["show", ":new"]), "by a person");
}

#[test]
fn a_first_commit_is_taken_back_packed_or_not() {
    for is_packed in [false, true] {
        let mut stage = Stage::new();
        stage.git(&["init", "-q", "-b", "main"]);
        stage.write("a", "one\n");
        let before = stage.snapshot();
        stage.git(&["add", "."]);
        stage.git(&["commit", "-q", "-m", "first"]);
        stage.git(&["branch", "kept"]);
        if is_packed {
            stage.git(&["tag", "-a", "-m", "peeled", "v1"]);
            stage.git(&["pack-refs", "--all"]);
        }
        let commit = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(outcome.repository_error, None);
        assert!(!stage.has_ref("refs/heads/main"), "packed: {is_packed}");
        assert!(stage.has_ref("refs/heads/kept"));
        assert!(!stage.has(".git/index"), "there was none");
        assert_eq!(stage.git(&["rev-parse", TAG]), commit);
        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(stage.git(&["status", "--porcelain"]), "?? a");
        assert_eq!(leavings(&stage), Vec::<String>::new());
        if is_packed {
            assert_eq!(stage.git(&["rev-parse", "v1^{commit}"]), commit);
        }

        undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(stage.git(&["rev-parse", "main"]), commit);
        assert_eq!(stage.git(&["status", "--porcelain"]), "");
    }
}

#[test]
fn a_packed_branch_goes_back() {
    let mut stage = repository();
    let before = stage.snapshot();
    let first = stage.git(&["rev-parse", "HEAD"]);
    run(&stage);
    stage.git(&["pack-refs", "--all"]);
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(outcome.repository_error, None);
    assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
}

#[test]
fn head_goes_back_to_its_branch_and_other_branches_stay() {
    let mut stage = repository();
    let before = stage.snapshot();
    stage.git(&["checkout", "-q", "-b", "topic/deep"]);
    run(&stage);
    let tip = stage.git(&["rev-parse", "HEAD"]);
    let after = stage.snapshot();

    let outcome = roll_back(&mut stage, &before, &after).unwrap();

    assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(stage.git(&["rev-parse", "topic/deep"]), tip);
    assert_eq!(outcome.safety_tag, None, "its branch keeps the tip");
    assert_eq!(outcome.repository_error, None);
}

/// What a run does to the branch that it leaves.
const LEFT_BEHIND: [&[&[&str]]; 5] = [
    // Elsewhere, by force.
    &[
        &["checkout", "-q", "-b", "other"],
        &["branch", "-f", "main", "HEAD~1"],
    ],
    // Onto a commit of the run's own, which nothing else names.
    &[
        &["checkout", "-q", "--detach"],
        &["commit", "-q", "--allow-empty", "-m", "by the run"],
        &["update-ref", "refs/heads/main", "HEAD"],
    ],
    &[&["checkout", "-q", "--detach"], &["branch", "-D", "main"]],
    &[
        &["checkout", "-q", "--detach"],
        &["branch", "-D", "main"],
        &["pack-refs", "--all"],
    ],
    &[
        &["commit", "-q", "--allow-empty", "-m", "by the run"],
        &["branch", "-m", "main", "renamed"],
    ],
];

fn two_commits() -> Stage {
    let stage = repository();
    stage.git(&["commit", "-q", "-m", "second"]);
    stage
}

#[test]
fn a_branch_that_the_run_left_and_then_moved_goes_back() {
    for commands in LEFT_BEHIND {
        let mut stage = two_commits();
        stage.git(&["pack-refs", "--all"]);
        let first = stage.git(&["rev-parse", "main"]);
        let status = stage.git(&["status", "--porcelain"]);
        let before = stage.snapshot();
        for command in commands {
            stage.git(command);
        }
        let left = seen(&stage);
        let tip = stage
            .has_ref("refs/heads/main")
            .then(|| stage.git(&["rev-parse", "refs/heads/main"]));
        let after = snapshot_since(&stage, &before);

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(outcome.repository_error, None, "{commands:?}");
        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
        assert_eq!(stage.git(&["status", "--porcelain"]), status);
        assert_eq!(leavings(&stage), Vec::<String>::new());
        match tip {
            // The old tip has a name, whoever else has it.
            Some(tip) => {
                assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
                assert_eq!(stage.git(&["rev-parse", TAG]), tip);
            }
            None => assert_eq!(outcome.safety_tag, None, "{commands:?}"),
        }
        stage.git(&["fsck", "--strict"]);

        // There and back again.
        let undone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(undone.repository_error, None, "{commands:?}");
        assert_eq!(seen(&stage), left, "{commands:?}");
        let redone = undo(&mut stage, &undone.guard, &undone.result).unwrap();
        assert_eq!(redone.repository_error, None, "{commands:?}");
        assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    }
}

#[test]
fn a_branch_that_was_left_and_that_somebody_moves_since_is_theirs() {
    for theirs in [
        &["update-ref", "refs/heads/main", "HEAD~1"][..],
        &["branch", "-q", "-D", "main"],
    ] {
        for moves in [
            &["update-ref", "refs/heads/main", "HEAD~2"][..],
            &["status"],
        ] {
            let mut stage = two_commits();
            stage.git(&["commit", "-q", "--allow-empty", "-m", "third"]);
            let before = stage.snapshot();
            stage.git(&["checkout", "-q", "-b", "other"]);
            stage.write("tracked", "by the run\n");
            stage.git(moves);
            let after = snapshot_since(&stage, &before);
            stage.git(theirs);
            let was = (seen(&stage), view(&stage.path(".git")));

            let error = roll_back(&mut stage, &before, &after).unwrap_err();

            assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
            assert!(error.to_string().contains("refs/heads/main"), "{error}");
            assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

            // An undo keeps it, and takes back the files.
            let outcome = undo(&mut stage, &before, &after).unwrap();
            let told = said(&outcome);
            assert!(told.contains("refs/heads/main is at"), "{told}");
            let now = seen(&stage);
            assert_eq!((now.0, now.1, now.2), (was.0.0, was.0.1, was.0.2));
            assert_eq!(stage.read("tracked"), "two\n");
        }
    }
}

#[test]
fn the_commits_of_a_moved_branch_and_of_a_detached_head_both_keep_a_name() {
    let mut stage = two_commits();
    let before = stage.snapshot();
    stage.git(&["checkout", "-q", "--detach"]);
    for message in ["by the run", "and on"] {
        stage.git(&["commit", "-q", "--allow-empty", "-m", message]);
    }
    stage.git(&["update-ref", "refs/heads/main", "HEAD~1"]);
    let tips = [
        stage.git(&["rev-parse", "main"]),
        stage.git(&["rev-parse", "HEAD"]),
    ];
    let after = snapshot_since(&stage, &before);
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
    let next = TAG.replace("-1", "-2");
    assert_eq!(
        [
            stage.git(&["rev-parse", TAG]),
            stage.git(&["rev-parse", &next])
        ],
        tips
    );
}

#[test]
fn other_branches_that_a_run_moved_stay() {
    let mut stage = two_commits();
    stage.git(&["branch", "side"]);
    let before = stage.snapshot();
    stage.git(&["branch", "-f", "side", "HEAD~1"]);
    stage.git(&["checkout", "-q", "side", "--", "."]);
    let side = stage.git(&["rev-parse", "side"]);
    let after = snapshot_since(&stage, &before);
    roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(stage.git(&["rev-parse", "side"]), side);
}

#[test]
fn a_branch_that_nobody_looked_at_stays_and_is_named() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let tip = stage.git(&["rev-parse", "main"]);
    stage.git(&["checkout", "-q", "-b", "topic"]);
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(
        stage.git(&["rev-parse", "main"]),
        tip,
        "nobody knows who moved it"
    );
    let told = said(&outcome);
    assert!(told.contains(&tip), "{told}");
    assert_eq!(stage.read("tracked"), "two\n");
}

#[test]
fn a_detached_head_goes_back_and_its_commit_keeps_a_name() {
    let mut stage = repository();
    stage.git(&["checkout", "-q", "--detach"]);
    let first = stage.git(&["rev-parse", "HEAD"]);
    let before = stage.snapshot();
    run(&stage);
    let tip = stage.git(&["rev-parse", "HEAD"]);
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(stage.git(&["rev-parse", "HEAD"]), first);
    assert_eq!(
        fs::read_to_string(stage.path(".git/HEAD")).unwrap().trim(),
        first
    );
    assert_eq!(stage.git(&["rev-parse", TAG]), tip);
    assert_eq!(outcome.repository_error, None);
}

#[test]
fn a_linked_worktree_has_its_own_head_and_index() {
    let stage = repository();
    let main = (
        fs::read(stage.path(".git/index")).unwrap(),
        fs::read_to_string(stage.path(".git/HEAD")).unwrap(),
    );
    let before_main = stage.git(&["rev-parse", "main"]);
    let linked = stage.outside.join("linked");
    stage.git(&[
        "worktree",
        "add",
        "-q",
        "-b",
        "topic",
        linked.to_str().unwrap(),
    ]);
    let main_git = stage.path(".git");
    let mut stage = stage.moved_to(&linked);
    let before = stage.snapshot();
    stage.write("tracked", "in the worktree\n");
    stage.git(&["commit", "-q", "-a", "-m", "in the worktree"]);
    let tip = stage.git(&["rev-parse", "HEAD"]);
    let after = stage.snapshot();

    let outcome = roll_back(&mut stage, &before, &after).unwrap();

    assert_eq!(outcome.repository_error, None);
    assert_eq!(stage.git(&["rev-parse", "topic"]), before_main);
    assert_eq!(stage.git(&["rev-parse", TAG]), tip);
    assert_eq!(stage.git(&["status", "--porcelain"]), "");
    let now = (
        fs::read(main_git.join("index")).unwrap(),
        fs::read_to_string(main_git.join("HEAD")).unwrap(),
    );
    assert_eq!(now, main, "the main worktree's are untouched");
}

#[test]
fn a_foreign_index_lock_is_waited_for_and_never_deleted() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    stage.write(".git/index.lock", "somebody's\n");
    let was = (seen(&stage), view(&stage.path(".git")));
    let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

    // One that comes later, when the files are restored already.
    stage.remove(".git/index.lock");
    let prepared = prepared(&mut stage, &before, &after, TEST_LOCK_TIMEOUT).unwrap();
    stage.write(".git/index.lock", "somebody's\n");
    let index = prepared.staged.clone().unwrap();
    let outcome = carry_out(
        &Operation::unbounded(),
        &prepared.plan,
        || Ok(index),
        false,
        Duration::ZERO,
    );
    let error = outcome.error.unwrap();
    assert!(error.message.contains("index.lock is locked"), "{error:?}");
    assert_eq!(error.kind, ErrorKind::Busy);
    assert_eq!(stage.read(".git/index.lock"), "somebody's\n");
    assert_eq!(leavings(&stage), ["index.lock"]);
}

#[test]
fn a_lock_on_anything_that_moves_is_waited_for_and_nothing_is_touched() {
    let locked = |script: &[&[&str]], lock: &str| {
        let mut stage = repository();
        let before = stage.snapshot();
        for command in script {
            stage.git(command);
        }
        stage.write("tracked", "by the run\n");
        let after = snapshot_since(&stage, &before);
        stage.write(lock, "somebody's\n");
        let was = (seen(&stage), view(&stage.path(".git")));
        let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{lock}: {error}");
        assert!(error.to_string().contains(lock), "{error}");
        assert!(!error.touched());
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was, "{lock}");
        stage.remove(lock);
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.repository_error, None, "{lock}");
    };
    let commit = ["commit", "-q", "-a", "-m", "by the run"];
    locked(&[&commit], ".git/refs/heads/main.lock");
    locked(&[&commit], ".git/refs/stillframe/safety/run_7-1.lock");
    locked(&[&["checkout", "-q", "-b", "other"]], ".git/HEAD.lock");
    let unborn: &[&[&str]] = &[
        &["checkout", "-q", "--orphan", "other"],
        &["commit", "-q", "-m", "by the run"],
    ];
    locked(unborn, ".git/HEAD.lock");
}

#[test]
fn a_branch_that_moves_while_its_lock_is_waited_for_is_kept() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    let theirs = stage.git(&["commit-tree", "-m", "by a person", "HEAD^{tree}"]);
    let (branch, lock) = (
        stage.path(".git/refs/heads/main"),
        stage.path(".git/refs/heads/main.lock"),
    );
    fs::write(&lock, format!("{theirs}\n")).unwrap();
    // git's own way to end it, in the midst of the wait.
    let they = std::thread::spawn(move || fs::rename(lock, branch).unwrap());
    let result = prepared(&mut stage, &before, &after, Duration::from_secs(60));
    they.join().unwrap();
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
    assert_eq!(stage.git(&["rev-parse", "main"]), theirs);
}

#[test]
fn what_the_disk_refuses_is_told_as_that() {
    for (errno, kind) in [
        (rustix::io::Errno::NOSPC, ErrorKind::NoSpace),
        (rustix::io::Errno::IO, ErrorKind::Storage),
    ] {
        let mut refused = 0;
        for call in 0.. {
            let mut stage = repository();
            let before = stage.snapshot();
            run(&stage);
            let after = stage.snapshot();
            let prepared = prepared(&mut stage, &before, &after, TEST_LOCK_TIMEOUT).unwrap();
            let index = prepared.staged.clone().unwrap();
            let fault = Fault::FailAt(call, errno.raw_os_error());
            let (outcome, calls) = trial::with(fault, |op| {
                carry_out(op, &prepared.plan, || Ok(index), false, Duration::ZERO)
            });
            if calls <= call {
                break;
            }
            // A line of a reflog is not worth an error.
            if let Some(error) = outcome.error {
                assert_eq!(error.kind, kind, "at call {call}: {error:?}");
                refused += 1;
            }
        }
        assert!(refused > 10, "{refused}");
    }
}

/// Prepares a rollback without the files.
fn prepared(
    stage: &mut Stage,
    before: &Snapshot,
    after: &Snapshot,
    lock_timeout: Duration,
) -> Result<Prepared, RestoreError> {
    let record = |snapshot: &Snapshot| {
        let record = stage
            .backend
            .record(&Operation::unbounded(), &stage.workspace, &snapshot.id);
        record.unwrap().git.unwrap()
    };
    let found = stage.backend.found(&stage.workspace).unwrap();
    prepare(
        &Operation::unbounded(),
        &Request {
            state: stage.workspace.state(),
            found: Ok(found.as_ref()),
            before: &record(before),
            after: Some(&record(after)),
            run_id: "run_7",
            way: super::Way::Back,
            reached: Vec::new(),
            index_bytes: &|blob| {
                stage
                    .backend
                    .kept(&Operation::unbounded(), &stage.workspace, blob)
            },
            now: Timestamp::UNIX_EPOCH,
            lock_timeout,
        },
    )
}

#[test]
fn a_branch_that_moves_at_the_last_moment_is_kept_and_so_is_the_index() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    let prepared = prepared(&mut stage, &before, &after, TEST_LOCK_TIMEOUT).unwrap();
    stage.git(&["commit", "-q", "--allow-empty", "-m", "by a person"]);
    let was = seen(&stage);
    let index = prepared.staged.clone().unwrap();
    let outcome = carry_out(
        &Operation::unbounded(),
        &prepared.plan,
        || Ok(index),
        false,
        Duration::ZERO,
    );
    let error = outcome.error.unwrap();
    assert!(error.message.contains("refs/heads/main is"), "{error:?}");
    assert_eq!(error.kind, ErrorKind::HeadMoved);
    assert_eq!(seen(&stage), was);
    assert_eq!(leavings(&stage), Vec::<String>::new());
}

#[test]
fn no_hook_runs() {
    let mut stage = repository();
    for hook in [
        "reference-transaction",
        "post-checkout",
        "post-index-change",
    ] {
        let path = format!(".git/hooks/{hook}");
        stage.write(&path, "#!/bin/sh\ntouch canary\n");
        stage.chmod(&path, 0o755);
    }
    stage.git(&["branch", "probe"]);
    assert!(stage.has("canary"), "plain git runs it");
    stage.remove("canary");
    let before = stage.snapshot();
    run(&stage);
    stage.remove("canary");
    let after = stage.snapshot();
    roll_back(&mut stage, &before, &after).unwrap();
    assert!(!stage.has("canary"));
}

#[test]
fn a_planted_symbolic_ref_at_the_name_of_the_tag_is_not_followed() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    stage.git(&["branch", "victim", "HEAD~1"]);
    stage.git(&["symbolic-ref", TAG, "refs/heads/victim"]);
    let after = stage.snapshot();
    let refs = stage.git(&["for-each-ref"]);

    let outcome = roll_back(&mut stage, &before, &after).unwrap();

    assert_eq!(stage.git(&["for-each-ref"]), refs, "no ref moved");
    assert!(said(&outcome).contains("symbolic"));
    assert_eq!(told_kind(&outcome), ErrorKind::HostileRepository);
    assert_eq!(outcome.safety_tag, None);
    assert_eq!(stage.read("tracked"), "two\n", "the files are back");
}

#[test]
fn a_directory_of_refs_that_is_a_link_is_not_written_through() {
    for directory in ["refs/stillframe", "refs/stillframe/safety", "refs/heads"] {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let real = stage.path(".git").join(directory);
        let away = stage.outside.join("refs");
        if real.exists() {
            fs::rename(&real, &away).unwrap();
        } else {
            fs::create_dir_all(real.parent().unwrap()).unwrap();
            fs::create_dir(&away).unwrap();
        }
        std::os::unix::fs::symlink(&away, &real).unwrap();
        let outside = view(&stage.outside);

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(view(&stage.outside), outside, "{directory}");
        assert!(outcome.repository_error.is_some(), "{directory}");
        assert_eq!(stage.read("tracked"), "two\n");
        assert_eq!(outcome.safety_tag, None);
    }
}

#[test]
fn a_repository_that_the_run_removed_is_told() {
    let mut stage = repository();
    let before = stage.snapshot();
    stage.write("tracked", "by the run\n");
    stage.remove(".git");
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(stage.read("tracked"), "two\n");
    assert!(said(&outcome).contains("is gone"));
    assert!(!stage.has(".git"));
}

#[test]
fn objects_that_the_repository_lost_are_told() {
    let mut stage = repository();
    let before = stage.snapshot();
    let blob = stage.git(&["rev-parse", ":staged"]);
    let first = stage.git(&["rev-parse", "HEAD"]);
    run(&stage);
    let after = stage.snapshot();
    let object = |id: &str| format!(".git/objects/{}/{}", &id[..2], &id[2..]);
    stage.remove(&object(&blob));

    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    let told = said(&outcome);
    assert!(told.contains("lacks") && told.contains(&blob), "{told}");
    assert_eq!(told_kind(&outcome), ErrorKind::Corrupt);
    assert_eq!(stage.git(&["rev-parse", "main"]), first);

    undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
    let tip = stage.git(&["rev-parse", "main"]);
    stage.remove(&object(&first));
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    let told = said(&outcome);
    assert!(told.contains(&first), "{told}");
    assert_eq!(
        stage.git(&["rev-parse", "main"]),
        tip,
        "it stays where it can be read"
    );
}

#[test]
fn a_manual_restore_leaves_the_repository_alone() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let repository = view(&stage.path(".git"));
    let outcome = stage.restore(&before);
    assert_eq!(view(&stage.path(".git")), repository);
    assert_eq!((outcome.safety_tag, outcome.repository_error), (None, None));
    assert_eq!(stage.read("tracked"), "two\n");
}

#[test]
fn a_rollback_that_dies_at_any_call_ends_before_or_after() {
    dies_at_any_call(committed);
}

/// A repository in which a run committed, and the states before and after it.
fn committed() -> (Stage, Snapshot, Snapshot) {
    let stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    (stage, before, after)
}

#[test]
fn so_does_one_that_deletes_a_packed_branch_and_the_index() {
    dies_at_any_call(|| {
        let stage = Stage::new();
        stage.git(&["init", "-q", "-b", "main"]);
        stage.write("a", "one\n");
        let before = stage.snapshot();
        stage.write("a", "two\n");
        stage.git(&["add", "."]);
        stage.git(&["commit", "-q", "-m", "first"]);
        stage.git(&["pack-refs", "--all"]);
        let after = stage.snapshot();
        (stage, before, after)
    });
}

#[test]
fn so_does_one_of_a_branch_that_lies_in_a_directory() {
    dies_at_any_call(|| {
        let stage = repository();
        stage.git(&["checkout", "-q", "-b", "feature/x"]);
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        (stage, before, after)
    });
}

#[test]
fn so_does_one_that_moves_head_to_its_branch() {
    dies_at_any_call(|| {
        let stage = repository();
        let before = stage.snapshot();
        stage.git(&["checkout", "-q", "--detach"]);
        run(&stage);
        let after = stage.snapshot();
        (stage, before, after)
    });
}

#[test]
fn so_does_one_that_moves_a_branch_which_head_had_left() {
    dies_at_any_call(|| {
        let stage = two_commits();
        let before = stage.snapshot();
        stage.git(&["checkout", "-q", "--detach"]);
        run(&stage);
        stage.git(&["update-ref", "refs/heads/main", "HEAD"]);
        let after = snapshot_since(&stage, &before);
        (stage, before, after)
    });
}

fn dies_at_any_call(make: fn() -> (Stage, Snapshot, Snapshot)) {
    let (mut stage, before, after) = make();
    let untouched = seen(&stage);
    let (outcome, calls) = trial::calls_of(|op| roll_back_in(op, &mut stage, &before, &after));
    let has_tag = outcome.unwrap().safety_tag.is_some();
    let restored = seen(&stage);
    // The bytes of the index hold the inodes of one stage.
    let is = |stage: &Stage, other: &Seen| {
        let now = seen(stage);
        (&now.1, &now.2, &now.3) == (&other.1, &other.2, &other.3)
    };
    let mut endings = BTreeSet::new();
    for call in calls.chosen() {
        let (mut stage, before, after) = make();
        let old_index = fs::read(stage.path(".git/index")).unwrap();
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| {
            roll_back_in(op, &mut stage, &before, &after)
        });
        if calls <= call {
            assert!(result.is_ok());
            break;
        }
        // Housekeeping finds no ref that is none; what is locked it leaves alone, and complains of.
        git_command(&stage.path(""), &["pack-refs", "--all"])
            .output()
            .unwrap();
        let refs = stage.git(&["for-each-ref"]);
        assert!(!refs.contains("stillframe-"), "at call {call}: {refs}");
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        assert_eq!(recovery.repository_errors, []);
        assert_eq!(recovery.skipped, []);
        assert_eq!(leavings(&stage), Vec::<String>::new(), "at call {call}");
        let is_restored = is(&stage, &restored);
        assert!(
            is_restored || is(&stage, &untouched),
            "at call {call}: {:#?}",
            seen(&stage)
        );
        let index = fs::read(stage.path(".git/index")).unwrap_or_default();
        assert_eq!(
            index != old_index,
            is_restored,
            "index and branch go together"
        );
        if is_restored && has_tag {
            assert_eq!(stage.git(&["rev-parse", TAG]), tip, "at call {call}");
        }
        endings.insert(is_restored);
    }
    assert_eq!(endings.len(), 2, "the loop crossed the point of no return");
}

/// The calls of a rollback of which nothing is disturbed.
fn calls_of_a_rollback(make: impl FnOnce() -> (Stage, Snapshot, Snapshot)) -> Calls {
    let (mut stage, before, after) = make();
    let (outcome, calls) = trial::calls_of(|op| roll_back_in(op, &mut stage, &before, &after));
    outcome.unwrap();
    calls
}

/// Sets when a file was last written, in seconds since the epoch.
fn set_modified(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    file.set_modified(time).unwrap();
}

// An index that came back had a later time than files that it had never seen, and git took them for
// clean
#[test]
fn what_git_cannot_tell_by_times_it_still_looks_at_after_a_rollback() {
    let mut stage = repository();
    stage.git(&["config", "core.trustctime", "false"]);
    let (index, second) = (stage.path(".git/index"), 1_700_000_000);
    stage.write("racy", "aaaa\n");
    set_modified(&stage.path("racy"), second);
    stage.git(&["add", "racy"]);
    set_modified(&index, second);
    fs::write(stage.path("racy"), "bbbb\n").unwrap();
    set_modified(&stage.path("racy"), second);
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    let outcome = roll_back(&mut stage, &before, &after).unwrap();
    assert_eq!(outcome.repository_error, None);
    assert_eq!(stage.read("racy"), "bbbb\n");
    assert_eq!(stage.git(&["diff", "--name-only", "racy"]), "racy");
    stage.git(&["add", "racy"]);
    assert_eq!(stage.git(&["show", ":racy"]), "bbbb");
}

#[test]
fn an_index_of_which_nobody_knows_the_time_is_older_than_any_file() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    stage.backend.forget_when_the_index_was_written(&before.id);
    roll_back(&mut stage, &before, &after).unwrap();
    let written = fs::metadata(stage.path(".git/index")).unwrap();
    assert_eq!(written.mtime(), 1);
    assert_eq!(stage.git(&["diff", "--name-only"]), "tracked");
}

// After a crash the index that somebody had staged in since was replaced by that of the snapshot
#[test]
fn what_somebody_stages_between_a_crash_and_the_recovery_is_kept() {
    let make = || {
        let stage = repository();
        let before = stage.snapshot();
        stage.write("staged", "by the run\n");
        stage.git(&["add", "staged"]);
        let after = stage.snapshot();
        (stage, before, after)
    };
    let mut endings = BTreeSet::new();
    for call in calls_of_a_rollback(make).chosen() {
        let (mut stage, before, after) = make();
        let (_, calls) = trial::with(Fault::StopBefore(call), |op| {
            roll_back_in(op, &mut stage, &before, &after)
        });
        if calls <= call {
            break;
        }
        if !leavings(&stage).is_empty() {
            // Their git would wait for the lock as well.
            continue;
        }
        stage.write("new", "work of days\n");
        stage.git(&["add", "new"]);
        stage.git(&["commit", "-q", "-m", "work of days"]);
        let commit = stage.git(&["rev-parse", "HEAD"]);
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        assert_eq!(stage.git(&["rev-parse", "HEAD"]), commit);
        assert_eq!(stage.git(&["ls-files", "new"]), "new", "at call {call}");
        assert_eq!(leavings(&stage), Vec::<String>::new(), "at call {call}");
        for error in &recovery.repository_errors {
            assert_eq!(error.kind, ErrorKind::Conflict, "{error:?}");
        }
        endings.insert(recovery.repository_errors.len());
    }
    assert_eq!(endings, BTreeSet::from([0, 1]));
}

// A recovery that ended early left the lock where the crash was
#[test]
fn a_recovery_that_cannot_go_on_leaves_no_lock_of_the_crash() {
    let mut endings = BTreeSet::new();
    for call in calls_of_a_rollback(committed).chosen() {
        let (mut stage, before, after) = committed();
        let first = stage.git(&["rev-parse", "HEAD~1"]);
        let (_, calls) = trial::with(Fault::StopBefore(call), |op| {
            roll_back_in(op, &mut stage, &before, &after)
        });
        if calls <= call {
            break;
        }
        // The tag is the first that is put back, and somebody else has it now.
        stage.write(&format!(".git/{TAG}"), &format!("{first}\n"));
        let had_lock = !leavings(&stage).is_empty();
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        assert_eq!(leavings(&stage), Vec::<String>::new(), "at call {call}");
        assert_eq!(stage.git(&["rev-parse", TAG]), first, "at call {call}");
        stage.git(&["status"]);
        endings.insert((had_lock, recovery.repository_errors.is_empty()));
    }
    assert!(endings.contains(&(true, false)), "{endings:?}");
}

#[test]
fn ids_of_runs_make_names_that_git_takes() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    let repository = RepositoryRestore::Rollback {
        before: before.clone(),
        after,
        run_id: "a..b.lock".to_owned(),
    };
    let outcome = stage
        .restore_goal(&Stage::goal(&before), repository)
        .unwrap();
    let tag = outcome.safety_tag.unwrap();
    assert_eq!(tag, "refs/stillframe/safety/a%2e%2eb%2elock-1");
    stage.git(&["check-ref-format", &tag]);
    assert!(stage.has_ref(&tag));
}

#[test]
fn two_of_us_do_not_write_in_one_repository_at_once() {
    let mut stage = repository();
    let before = stage.snapshot();
    run(&stage);
    let after = stage.snapshot();
    let git_dir = stage.path(".git");
    let held = lock_repository(
        &Operation::unbounded(),
        stage.workspace.state(),
        &git_dir,
        TEST_LOCK_TIMEOUT,
    )
    .unwrap();
    let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    drop(held);
    prepared(&mut stage, &before, &after, TEST_LOCK_TIMEOUT).unwrap();
    let capture = stage.backend.capture(
        &Operation::unbounded(),
        &stage.workspace,
        &stage.options(),
        &[],
        Publish::No,
    );
    assert!(capture.unwrap().record().git.is_some());
}
