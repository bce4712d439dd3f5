//! Stories of the work trees of runs, with git as the oracle.

use std::fs;
use std::path::PathBuf;

use crate::error::ErrorKind;
use crate::git::backend::GitBackend;
use crate::git::test_repository::TestRepository;
use crate::operation::Operation;
use crate::run_worktree::{Origin, RunDirectory, RunWorktree, RunWorktreeError, RunWorktrees as _};
use crate::workspace::StateDir;

/// A repository with a state directory beside it.
struct Stage {
    git: TestRepository,
    state: StateDir,
    op: Operation,
}

impl Stage {
    fn new(git: TestRepository) -> Self {
        let state = StateDir::open(git.beside("state")).unwrap();
        Self {
            git,
            state,
            op: Operation::unbounded(),
        }
    }

    fn with_commit() -> Self {
        Self::new(TestRepository::with_commit())
    }

    fn origin(&self, branch: Option<&str>) -> Result<Origin, RunWorktreeError> {
        GitBackend.origin(&self.op, &self.git.path, branch)
    }

    fn run(&self, id: &str) -> RunWorktree {
        RunWorktree::of_run(&self.git.path, &self.state, id)
    }

    fn directory(&self, worktree: &RunWorktree) -> RunDirectory {
        GitBackend.look(&self.op, worktree).unwrap().directory
    }
}

#[test]
fn a_run_is_cut_from_a_branch_that_has_a_commit() {
    let stage = Stage::with_commit();
    let git = &stage.git;
    let commit = git.git(&["rev-parse", "HEAD"]);
    let tree = git.git(&["rev-parse", "HEAD^{tree}"]);
    for branch in [None, Some("main"), Some("refs/heads/main")] {
        let origin = stage.origin(branch).unwrap();
        assert_eq!(origin.branch, "refs/heads/main", "{branch:?}");
        assert_eq!((&origin.commit, &origin.tree), (&commit, &tree));
        assert_eq!(
            (origin.repository, origin.is_bare),
            (git.path.clone(), false)
        );
    }
    let below = GitBackend.origin(&stage.op, &git.path.join("src"), None);
    let below = below.unwrap();
    assert_eq!(
        (below.repository, below.scope.as_bytes()),
        (git.path.clone(), &b"src"[..])
    );

    let bare = git.beside("bare");
    git.git(&["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
    let linked = git.beside("linked");
    git.git(&[
        "worktree",
        "add",
        "-q",
        "-b",
        "side",
        linked.to_str().unwrap(),
    ]);
    for (path, branch, is_bare) in [(&bare, "main", true), (&linked, "side", false)] {
        let origin = GitBackend.origin(&stage.op, path, None).unwrap();
        assert_eq!(origin.branch, format!("refs/heads/{branch}"));
        assert_eq!((&origin.repository, origin.is_bare), (path, is_bare));
        assert_eq!(origin.commit, commit);
    }
}

#[test]
fn what_no_run_can_be_cut_from_is_said_before_anything_is_written() {
    let stage = Stage::with_commit();
    let invalid = |path: &PathBuf, branch: Option<&str>| {
        let error = GitBackend.origin(&stage.op, path, branch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        error.to_string()
    };
    let path = &stage.git.path;
    assert!(invalid(path, Some("nowhere")).contains("no branch nowhere"));
    assert!(invalid(path, Some("a..b")).contains("no name of a branch"));
    stage.git.git(&["checkout", "-q", "--detach"]);
    assert!(invalid(path, None).contains("detached"));
    let empty = TestRepository::new();
    assert!(invalid(&empty.path, None).contains("has no commit"));
    let none = tempfile::tempdir().unwrap();
    assert!(invalid(&none.path().to_owned(), None).contains("no git repository"));
    assert!(invalid(&none.path().join("gone"), None).contains("no directory"));
}

#[test]
fn formats_that_are_not_handled_are_unsupported() {
    for option in ["--object-format=sha256", "--ref-format=reftable"] {
        let git = TestRepository::empty();
        if !git.run(&git.path, &["init", "-q", option]).status.success() {
            // A git that does not know it makes none.
            continue;
        }
        let stage = Stage::new(git);
        let error = stage.origin(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let looked = GitBackend.look(&stage.op, &stage.run("one"));
        assert_eq!(looked.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn no_two_runs_have_one_branch_or_directory() {
    let stage = Stage::with_commit();
    let ids = ["a.lock", "a", "a..b", "a.", "%2e", ".a", &"a".repeat(250)];
    let runs = ids.map(|id| stage.run(id));
    for (at, run) in runs.iter().enumerate() {
        stage.git.git(&["check-ref-format", &run.branch]);
        let is_other =
            |other: &RunWorktree| other.branch != run.branch && other.directory != run.directory;
        assert!(runs[..at].iter().all(is_other), "{run:?}");
    }
}

#[test]
fn what_is_not_the_runs_is_told_from_what_is() {
    let stage = Stage::with_commit();
    let worktree = stage.run("one");
    let directory = &worktree.directory;
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    assert_eq!(stage.directory(&worktree), RunDirectory::Missing);
    let is_other = |what: &str| match stage.directory(&worktree) {
        RunDirectory::Other(why) => assert!(why.contains(what), "{why}"),
        found => panic!("{found:?}: {what}"),
    };
    fs::write(directory, "").unwrap();
    is_other("no directory");
    fs::remove_file(directory).unwrap();
    std::os::unix::fs::symlink(&stage.git.path, directory).unwrap();
    is_other("no directory");
    fs::remove_file(directory).unwrap();
    fs::create_dir(directory).unwrap();
    assert_eq!(
        stage.directory(&worktree),
        RunDirectory::Missing,
        "it is empty"
    );
    fs::write(directory.join("file"), "").unwrap();
    is_other("no work tree");
    fs::write(directory.join(".git"), "gitdir: /nowhere\n").unwrap();
    is_other("not usable");
    fs::remove_dir_all(directory).unwrap();
    let text = directory.to_str().unwrap();
    stage
        .git
        .git(&["worktree", "add", "-q", "-b", "stillframe/run/one", text]);
    is_other("another work tree");
}
