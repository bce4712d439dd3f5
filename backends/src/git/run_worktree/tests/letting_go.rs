//! Letting go of a work tree.

use std::collections::BTreeSet;

use super::*;
use crate::backend::{Backend as _, RestoreOptions, SnapshotOptions};
use crate::faults::Fault;
use crate::operation::Operation;
use crate::restore::RestoreGoal;
use crate::run_worktree::Removed;
use crate::snapshot::{Label, Snapshot};
use crate::trial;
use crate::workspace::{LockedWorkspace, TEST_LOCK_TIMEOUT, Workspace};

pub(super) fn nothing_is_left(stage: &Stage, worktree: &RunWorktree) {
    let state = GitBackend.look(&stage.op, worktree).unwrap();
    assert_eq!((state.tip, state.directory), (None, RunDirectory::Missing));
    let common = stage.git.path.join(".git");
    assert!(!common.join("worktrees/stillframe-one").exists());
    assert!(!common.join("logs").join(&worktree.branch).exists());
    let above = worktree.directory.parent().unwrap();
    if above.exists() {
        assert_eq!(names(above), Vec::<Vec<u8>>::new());
    }
    let refs = stage.git.git(&["for-each-ref", "--format=%(refname)"]);
    assert_eq!(refs, "refs/heads/main");
    let listed = stage.git.git(&["worktree", "list", "--porcelain"]);
    assert_eq!(listed.matches("worktree ").count(), 1, "{listed}");
}

/// The workspace of a run's work tree, locked, with its snapshots in the store of the repository's.
fn workspace(stage: &Stage, worktree: &RunWorktree) -> LockedWorkspace {
    let of = Workspace::open(&stage.git.path, &stage.state).unwrap();
    let own = Workspace::open_run_worktree(&worktree.directory, &stage.state, Some(&of));
    own.unwrap().lock(&stage.op, TEST_LOCK_TIMEOUT).unwrap()
}

fn capture(stage: &Stage, workspace: &LockedWorkspace) -> Snapshot {
    let options = SnapshotOptions::new(Label::GUARD, Timestamp::UNIX_EPOCH).retain_content(true);
    GitBackend.snapshot(&stage.op, workspace, &options).unwrap()
}

/// A run that worked: with a commit, an edit that is in none, and what is ignored.
fn worked() -> (Stage, RunWorktree, String) {
    let git = TestRepository::in_memory();
    git.write(".gitignore", "ignored\n");
    git.commit("first");
    let stage = Stage::new(git);
    let worktree = stage.ensure("one");
    let write = |name: &str, text: &str| fs::write(worktree.directory.join(name), text).unwrap();
    write("committed", "one\n");
    stage.git_in(&worktree, &["add", "-A"]);
    stage.git_in(&worktree, &["commit", "-q", "-m", "work"]);
    write("edited", "two\n");
    fs::create_dir(worktree.directory.join("ignored")).unwrap();
    write("ignored/cache", "three\n");
    let sealed = fs::Permissions::from_mode(0o555);
    fs::set_permissions(worktree.directory.join("ignored"), sealed).unwrap();
    let tip = stage.git.git(&["rev-parse", &worktree.branch]);
    (stage, worktree, tip)
}

/// The files of trashes in the store, by their last names.
fn trashed(stage: &Stage) -> BTreeSet<Vec<u8>> {
    let walk = walkdir::WalkDir::new(stage.state.path().join("workspaces")).into_iter();
    let walk = walk
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().is_file());
    let files = walk.filter(|e| e.path().components().any(|c| c.as_os_str() == "trash"));
    files
        .map(|entry| entry.file_name().as_bytes().to_vec())
        .collect()
}

#[test]
fn everything_goes_and_what_is_in_no_commit_is_in_the_capture_and_the_trash() {
    let (stage, worktree, tip) = worked();
    let main = stage.git.git(&["rev-parse", "main"]);
    let mut run = workspace(&stage, &worktree);
    let own = run.own_path();
    let guard = capture(&stage, &run);
    assert!(own.exists(), "the cache of the capture");
    let before = GitBackend.store_bytes(&run).unwrap();
    let removed = GitBackend.remove(
        &stage.op,
        &worktree,
        Some((&mut run, &guard.id)),
        Some(&tip),
    );
    let all = Removed {
        directory: true,
        entry: true,
        branch: true,
    };
    assert_eq!(removed.unwrap(), all);
    nothing_is_left(&stage, &worktree);
    assert!(!own.exists());
    assert_eq!(stage.git.git(&["rev-parse", "main"]), main);
    let in_trash = trashed(&stage);
    for name in ["committed", "edited", "cache"] {
        assert!(in_trash.contains(name.as_bytes()), "{name}: {in_trash:?}");
    }
    assert!(
        GitBackend.store_bytes(&run).unwrap() > before,
        "the trash counts"
    );
    // Again, as after a crash: there is nothing left to do.
    let again = GitBackend.remove(
        &stage.op,
        &worktree,
        Some((&mut run, &guard.id)),
        Some(&tip),
    );
    assert_eq!(again.unwrap(), Removed::default());

    // The capture outlives the directory, in the store of the workspace that the run came from.
    drop(run);
    let of = Workspace::open(&stage.git.path, &stage.state).unwrap();
    let mut of = of.lock(&stage.op, TEST_LOCK_TIMEOUT).unwrap();
    let listed = GitBackend.list(&stage.op, &of).unwrap();
    assert!(
        listed
            .snapshots
            .iter()
            .any(|snapshot| snapshot.id == guard.id)
    );
    let stored = GitBackend.open(&stage.op, &of, &guard).unwrap();
    let mut bytes = Vec::new();
    let edited = crate::path::RelPath::new("edited").unwrap();
    stored.read_file(&stage.op, &edited, &mut bytes).unwrap();
    assert_eq!(bytes, b"two\n");
    drop(stored);
    // The trash goes with the guard, whatever permission bits it has.
    GitBackend
        .forget(&stage.op, &mut of, &[guard.id], &[])
        .unwrap();
    assert_eq!(trashed(&stage), BTreeSet::new());
}

#[test]
fn a_directory_that_is_there_does_not_go_without_a_capture() {
    let (stage, worktree, tip) = worked();
    let error = GitBackend
        .remove(&stage.op, &worktree, None, Some(&tip))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(worktree.directory.join("ignored/cache").exists());
    assert_eq!(stage.git.git(&["rev-parse", &worktree.branch]), tip);
}

#[test]
fn a_branch_that_is_elsewhere_than_expected_keeps_all() {
    let (stage, worktree, tip) = worked();
    let main = stage.git.git(&["rev-parse", "main"]);
    let mut run = workspace(&stage, &worktree);
    let guard = capture(&stage, &run);
    let removed = GitBackend.remove(
        &stage.op,
        &worktree,
        Some((&mut run, &guard.id)),
        Some(&main),
    );
    let error = removed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
    assert!(error.to_string().contains(&tip), "{error}");
    assert!(worktree.directory.exists());
    // Without the branch the rest goes.
    let removed = GitBackend.remove(&stage.op, &worktree, Some((&mut run, &guard.id)), None);
    let all = Removed {
        directory: true,
        entry: true,
        branch: false,
    };
    assert_eq!(removed.unwrap(), all);
    assert_eq!(stage.git.git(&["rev-parse", &worktree.branch]), tip);
    let removed = GitBackend
        .remove(&stage.op, &worktree, None, Some(&tip))
        .unwrap();
    assert!(removed.branch);
    nothing_is_left(&stage, &worktree);
}

#[test]
fn what_is_not_the_runs_stays() {
    let (stage, worktree, tip) = worked();
    let mut run = workspace(&stage, &worktree);
    let guard = capture(&stage, &run);
    let mut refused = |why: &str| {
        let guard = Some((&mut run, &guard.id));
        let error = GitBackend
            .remove(&stage.op, &worktree, guard, Some(&tip))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(stage.git.git(&["rev-parse", &worktree.branch]), tip);
        assert!(worktree.directory.join("edited").exists());
    };
    let dot_git = worktree.directory.join(".git");
    let link = fs::read(&dot_git).unwrap();
    fs::remove_file(&dot_git).unwrap();
    refused("no work tree");
    fs::write(&dot_git, &link).unwrap();
    let gitdir = stage.git.path.join(".git/worktrees/stillframe-one/gitdir");
    let text = fs::read(&gitdir).unwrap();
    fs::write(&gitdir, "/elsewhere/.git\n").unwrap();
    refused("not usable");
    fs::write(&gitdir, text).unwrap();
    let lock = stage
        .git
        .path
        .join(".git/worktrees/stillframe-one/index.lock");
    fs::write(&lock, "").unwrap();
    let removed = GitBackend.remove(
        &stage.op,
        &worktree,
        Some((&mut run, &guard.id)),
        Some(&tip),
    );
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Busy);
    assert!(lock.exists());
    assert_eq!(stage.git.git(&["rev-parse", &worktree.branch]), tip);
    fs::remove_file(&lock).unwrap();
    GitBackend
        .remove(
            &stage.op,
            &worktree,
            Some((&mut run, &guard.id)),
            Some(&tip),
        )
        .unwrap();
    nothing_is_left(&stage, &worktree);
}

#[test]
fn one_that_is_killed_anywhere_is_finished_by_the_next() {
    let let_go = |op: &Operation| {
        let (stage, worktree, tip) = worked();
        let mut run = workspace(&stage, &worktree);
        let guard = capture(&stage, &run);
        let removed = GitBackend.remove(op, &worktree, Some((&mut run, &guard.id)), Some(&tip));
        (removed, (stage, worktree, tip, run, guard))
    };
    let ((removed, _), calls) = trial::calls_of(let_go);
    removed.unwrap();
    let mut disturbed = 0;
    for call in calls.chosen() {
        let ((removed, left), calls) = trial::with(Fault::StopBefore(call), let_go);
        let (stage, worktree, tip, mut run, guard) = left;
        if calls <= call {
            removed.unwrap();
            break;
        }
        stage.git.git(&["worktree", "list", "--porcelain"]);
        let guard = Some((&mut run, &guard.id));
        GitBackend
            .remove(&stage.op, &worktree, guard, Some(&tip))
            .unwrap();
        nothing_is_left(&stage, &worktree);
        assert!(trashed(&stage).contains(&b"cache"[..]), "at {call}");
        disturbed += 1;
    }
    assert!(disturbed > 8, "{disturbed}");
}

#[test]
fn a_restore_that_was_interrupted_is_finished_where_it_was_and_nowhere_else() {
    let stage = Stage::with_commit();
    let worktree = stage.ensure("one");
    let file = worktree.directory.join("src/main.c");
    let mut run = workspace(&stage, &worktree);
    let goal = RestoreGoal::Snapshot {
        snapshot: capture(&stage, &run),
        paths: Vec::new(),
    };
    let options = || {
        let guard = SnapshotOptions::new(Label::GUARD, Timestamp::UNIX_EPOCH);
        RestoreOptions::new(guard.retain_content(true))
    };
    let mut finished = 0;
    let mut call = 0;
    loop {
        fs::write(&file, format!("changed {call}\n")).unwrap();
        let (restored, calls) = trial::with(Fault::StopBefore(call), |op| {
            GitBackend.restore(op, &mut run, &goal, &options())
        });
        drop(run);
        let of = Workspace::open(&stage.git.path, &stage.state).unwrap();
        let mut of = of.lock(&stage.op, TEST_LOCK_TIMEOUT).unwrap();
        let recovered = GitBackend.recover(&stage.op, &mut of).unwrap();
        assert_eq!(
            (recovered.rolled_forward.len(), recovered.discarded),
            (0, 0)
        );
        assert_eq!(stage.git.git(&["status", "--porcelain"]), "");
        drop(of);
        run = workspace(&stage, &worktree);
        let recovered = GitBackend.recover(&stage.op, &mut run).unwrap();
        finished += recovered.rolled_forward.len();
        let text = fs::read_to_string(&file).unwrap();
        let is_restored = restored.is_ok() || !recovered.rolled_forward.is_empty();
        assert!(!is_restored || text == "int main;\n", "at {call}: {text}");
        if calls <= call {
            restored.unwrap();
            break;
        }
        call += 7;
    }
    assert!(finished > 0, "some were past the point of no return");
}

#[test]
fn captures_of_two_directories_with_one_store_do_not_mistake_each_other() {
    let stage = Stage::with_commit();
    let worktree = stage.ensure("one");
    let of = Workspace::open(&stage.git.path, &stage.state).unwrap();
    let trees = |text: &str| {
        fs::write(worktree.directory.join("file"), text).unwrap();
        let run = workspace(&stage, &worktree);
        let of_run = capture(&stage, &run).tree.unwrap();
        drop(run);
        let main = of.clone().lock(&stage.op, TEST_LOCK_TIMEOUT).unwrap();
        let of_main = capture(&stage, &main).tree.unwrap();
        (of_run, of_main, main)
    };
    let written = |directory: &Path| {
        stage.git.git_in(directory, &["add", "-A"]);
        stage.git.git_in(directory, &["write-tree"])
    };
    for text in ["one\n", "two\n", "three\n"] {
        let (of_run, of_main, mut main) = trees(text);
        assert_eq!(of_run, written(&worktree.directory));
        assert_eq!(of_main, written(&stage.git.path));
        // Each cache goes by what the store has, and goes with it.
        GitBackend.collect(&stage.op, &mut main).unwrap();
    }
    let opened = Workspace::open(&worktree.directory, &stage.state);
    assert!(opened.is_err(), "no other way leads to it");
    let below =
        Workspace::open_run_worktree(stage.state.path().join("workspaces"), &stage.state, None);
    assert!(below.is_err());
}
