//! Stories of the work trees of runs, with git as the oracle.

mod bringing;
mod crash;
mod in_the_way;
mod letting_go;
mod making;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::error::ErrorKind;
use crate::git::backend::GitBackend;
use crate::git::test_repository::TestRepository;
use crate::operation::Operation;
use crate::run_worktree::{
    Ensured, Origin, RunDirectory, RunWorktree, RunWorktreeError, RunWorktrees as _,
};
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

    fn try_ensure(
        &self,
        worktree: &RunWorktree,
        base: Option<&str>,
    ) -> Result<Ensured, RunWorktreeError> {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        GitBackend.ensure(&self.op, worktree, base, at)
    }

    /// Makes the work tree of a run that is cut from HEAD.
    fn ensure(&self, id: &str) -> RunWorktree {
        let worktree = self.run(id);
        let base = self.git.git(&["rev-parse", "HEAD"]);
        self.try_ensure(&worktree, Some(&base)).unwrap();
        worktree
    }

    fn git_in(&self, worktree: &RunWorktree, args: &[&str]) -> String {
        self.git.git_in(&worktree.directory, args)
    }

    /// That git finds nothing wrong with it, and nothing changed in it.
    fn is_sound(&self, worktree: &RunWorktree) {
        let state = GitBackend.look(&self.op, worktree).unwrap();
        assert!(state.is_ready(), "{state:?}");
        assert_eq!(
            self.git_in(worktree, &["status", "--porcelain", "--ignored"]),
            ""
        );
        let listed = self.git.git(&["worktree", "list", "--porcelain"]);
        let head = self.git_in(worktree, &["rev-parse", "HEAD"]);
        let directory = worktree.directory.display();
        let expected = format!(
            "worktree {directory}\nHEAD {head}\nbranch {}",
            worktree.branch
        );
        let mut entries = listed.split("\n\n").map(str::trim_end);
        assert!(entries.any(|entry| entry == expected), "{listed}");
        assert_eq!(
            self.git
                .git(&["worktree", "prune", "--dry-run", "--verbose"]),
            ""
        );
        let checked = self
            .git
            .run(&self.git.path, &["fsck", "--strict", "--no-dangling"]);
        assert!(checked.status.success(), "{checked:?}");
        assert_eq!(String::from_utf8_lossy(&checked.stdout), "");
        let above = worktree.directory.parent().unwrap();
        let left = names(above)
            .into_iter()
            .filter(|name| name.starts_with(b"."));
        assert_eq!(left.count(), 0, "nothing of the making is left");
    }
}

fn names(directory: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|e| name(e).as_bytes().to_vec()).collect();
    names.sort();
    names
}

/// Everything in a work tree but `.git`, as lines with mode, path and content.
fn view(directory: &Path) -> String {
    let mut lines = String::new();
    let walk = walkdir::WalkDir::new(directory).sort_by_file_name();
    for entry in walk.into_iter().filter_entry(|e| e.file_name() != ".git") {
        let entry = entry.unwrap();
        let path = entry.path().strip_prefix(directory).unwrap();
        let meta = entry.metadata().unwrap();
        let content = match meta.file_type() {
            kind if kind.is_symlink() => {
                let target = fs::read_link(entry.path()).unwrap();
                target.as_os_str().as_bytes().to_vec()
            }
            kind if kind.is_file() => fs::read(entry.path()).unwrap(),
            _ => Vec::new(),
        };
        let mode = match path.as_os_str().is_empty() {
            true => 0,
            false => meta.permissions().mode(),
        };
        lines.push_str(&format!(
            "{mode:o} {:?} {:?}\n",
            path,
            content.escape_ascii().to_string()
        ));
    }
    lines
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
