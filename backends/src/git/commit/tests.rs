//! Stories about commits. The oracle is git itself.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::backend::{Backend as _, SnapshotOptions};
use crate::commit::{CommitIntent, CommitOutcome, CommitRequest, Signature};
use crate::error::ErrorKind;
use crate::git::GitBackend;
use crate::git::test_repository::TestRepository;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::restore::Restorable as _;
use crate::restore::naive::view;
use crate::snapshot::Label;
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT};

mod anything;
mod crash;
mod outside;
mod packed;
mod settling;
mod shapes;
mod tracked;

/// How long a commit waits for a lock that stays: longer than a program that another test starts
/// has the locks of this process.
const SHORT: Duration = Duration::from_millis(500);

const TIME: i64 = 1_700_000_123;

/// A repository, and a workspace in it.
struct Story {
    git: TestRepository,
    workspace: LockedWorkspace,
}

impl Story {
    /// A repository with a few files and one commit.
    fn new() -> Self {
        let story = Self::unborn();
        story.git.write("src/main.c", "int main;\n");
        story.git.write("src/other.c", "int other;\n");
        story.git.write("read me", "one\ntwo\nthree\n");
        story.git.write("docs/a/deep/text", "deep\n");
        story.git.commit("first");
        story
    }

    fn unborn() -> Self {
        let git = TestRepository::in_memory();
        let path = git.path.clone();
        Self::at(git, &path)
    }

    /// With `path` as the workspace.
    fn at(git: TestRepository, path: &Path) -> Self {
        let state = StateDir::open(git.beside("state")).unwrap();
        let workspace = Workspace::open(path, &state)
            .unwrap()
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        Self { git, workspace }
    }

    /// The same repository, with another workspace.
    fn moved_to(self, path: &Path) -> Self {
        let Self { git, workspace } = self;
        drop(workspace);
        Self::at(git, path)
    }

    fn path(&self) -> PathBuf {
        self.workspace.disk_path().to_owned()
    }

    fn git(&self, args: &[&str]) -> String {
        self.git.git_in(&self.path(), args)
    }

    fn env(&self) -> impl Fn(&str) -> Option<OsString> + use<> {
        let home = self.git.home();
        move |name| (name == "HOME").then(|| home.clone().into())
    }

    fn try_prepare(&self, request: &CommitRequest) -> Result<Option<CommitIntent>, CommitError> {
        let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
        self.try_prepare_with(request, &options)
    }

    fn try_prepare_with(
        &self,
        request: &CommitRequest,
        options: &SnapshotOptions,
    ) -> Result<Option<CommitIntent>, CommitError> {
        let snapshot = GitBackend
            .snapshot(&Operation::unbounded(), &self.workspace, options)
            .unwrap();
        self.prepare_of(&snapshot.id, request)
    }

    fn prepare_of(
        &self,
        snapshot: &crate::snapshot::SnapshotId,
        request: &CommitRequest,
    ) -> Result<Option<CommitIntent>, CommitError> {
        self.prepare_of_in(&Operation::unbounded(), snapshot, request)
    }

    fn prepare_of_in(
        &self,
        op: &Operation,
        snapshot: &crate::snapshot::SnapshotId,
        request: &CommitRequest,
    ) -> Result<Option<CommitIntent>, CommitError> {
        let slot = self.workspace.kept_open::<crate::git::store::StoreSlot>();
        let store = slot.open(&self.workspace.store_path().join("git"));
        let store = store.unwrap().unwrap();
        let record = GitBackend.record(op, &self.workspace, snapshot).unwrap();
        prepare(op, &self.workspace, &store, &record, request, &self.env())
    }

    fn prepare(&self) -> CommitIntent {
        self.try_prepare(&request())
            .unwrap()
            .expect("something differs")
    }

    fn refused(&self) -> CommitError {
        self.try_prepare(&request()).unwrap_err()
    }

    fn try_apply(&self, intent: &CommitIntent) -> Result<CommitOutcome, CommitError> {
        self.try_apply_in(&Operation::unbounded(), intent)
    }

    fn try_apply_in(
        &self,
        op: &Operation,
        intent: &CommitIntent,
    ) -> Result<CommitOutcome, CommitError> {
        apply(op, &self.workspace, intent, Aim::Make, &self.env(), SHORT)
    }

    fn try_adopt(&self, intent: &CommitIntent) -> CommitOutcome {
        apply(
            &Operation::unbounded(),
            &self.workspace,
            intent,
            Aim::Adopt,
            &self.env(),
            SHORT,
        )
        .unwrap()
    }

    /// Carries it out, and answers with the commit.
    fn apply(&self, intent: &CommitIntent) -> String {
        match self.try_apply(intent).unwrap() {
            CommitOutcome::InPlace {
                commit,
                is_adopted: false,
            } => commit,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn commit(&self) -> String {
        let intent = self.prepare();
        let commit = self.apply(&intent);
        assert_eq!(commit, intent.commit);
        commit
    }

    fn tree(&self) -> String {
        self.git(&["rev-parse", "HEAD^{tree}"])
    }

    fn status(&self) -> String {
        self.git(&["status", "--porcelain"])
    }

    /// What `git add --all` and `git commit` make of a copy of everything; `None`: there is nothing
    /// to commit.
    fn tree_of_git(&self) -> Option<String> {
        let copy = self.git.beside("copy");
        fs::create_dir(&copy).unwrap();
        for name in ["repository", "linked", "clone"] {
            if self.git.beside(name).exists() {
                let copied = Command::new("cp")
                    .arg("-a")
                    .arg(self.git.beside(name))
                    .arg(copy.join(name))
                    .status();
                assert!(copied.unwrap().success());
            }
        }
        let at = copy.join(self.path().strip_prefix(self.git.beside("")).unwrap());
        if at.join(".git").is_file() {
            // Both name each other by absolute paths.
            let own = copy.join("repository/.git/worktrees/linked");
            fs::write(at.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
            let back = at.join(".git");
            fs::write(own.join("gitdir"), format!("{}\n", back.display())).unwrap();
        }
        self.git.git_in(&at, &["add", "--all", "."]);
        let made = self.git.run(&at, &["commit", "-q", "-m", "by git"]);
        let tree = self.git.run(&at, &["rev-parse", "HEAD^{tree}"]).stdout;
        fs::remove_dir_all(&copy).unwrap();
        let tree = String::from_utf8(tree).unwrap().trim().to_owned();
        made.status.success().then_some(tree)
    }

    /// Puts every object that something names into one pack, and every ref into `packed-refs`.
    fn pack(&self) {
        self.git(&["repack", "-adq"]);
        self.git(&["pack-refs", "--all"]);
    }

    /// Commits on top of what lies in a pack, and compares with what git would have made of it.
    fn commits_as_git_does(&self) {
        self.pack();
        let theirs = self.tree_of_git().expect("there is something to commit");
        let commit = self.commit();
        assert_eq!(self.tree(), theirs);
        assert_eq!(self.git(&["rev-parse", "HEAD"]), commit);
        self.is_sound();
        assert_eq!(self.status(), "");
        assert!(self.try_prepare(&request()).unwrap().is_none(), "once more");
    }

    /// Nothing in the repository is damaged, and no lock is left.
    fn is_sound(&self) {
        let checked = self
            .git
            .run(&self.path(), &["fsck", "--strict", "--no-dangling"]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success(), "{said}");
        assert_eq!(self.leavings(), Vec::<String>::new());
    }

    /// What must not be left in a repository.
    fn leavings(&self) -> Vec<String> {
        let mut left: Vec<String> = view(&self.git.path.join(".git")).into_keys().collect();
        let clone = self.git.beside("clone");
        if clone.exists() {
            left.extend(view(&clone.join(".git")).into_keys());
        }
        left.retain(|path| path.ends_with(".lock") || path.contains("stillframe-"));
        left
    }

    /// The names of all refs, as git lists them. It has nothing to complain of.
    fn refs(&self) -> Vec<String> {
        refs_of(&self.path())
    }

    fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// The names of all refs of the repository at `path`, from `git for-each-ref` and from `git
/// branch`.
fn refs_of(path: &Path) -> Vec<String> {
    let names = |args: &[&str]| -> Vec<String> {
        let listed = Command::new("git")
            .args(args)
            .arg("--format=%(refname)")
            .current_dir(path)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&listed.stderr), "");
        let text = String::from_utf8(listed.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let mut refs = names(&["for-each-ref"]);
    refs.extend(names(&["branch", "-a"]));
    // Where HEAD is, if it names no branch.
    refs.retain(|name| !name.starts_with('('));
    refs.sort();
    refs.dedup();
    refs
}

fn request() -> CommitRequest {
    CommitRequest::new("subject\n\nbody", Timestamp::from_second(TIME).unwrap())
        .author(Signature::new("Author Ä", "author@example.org"))
        .trailer("Run-Id", "run_7")
}

fn rel(path: &str) -> RelPath {
    RelPath::new(path.as_bytes()).unwrap()
}
