//! Stories about checkpoints. The oracle is git itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;

use super::*;
use crate::backend::{Backend as _, SnapshotOptions};
use crate::checkpoint::{CheckpointOutcome, CheckpointRequest, Checkpoints as _};
use crate::commit::Signature;
use crate::git::GitBackend;
use crate::git::commit;
use crate::git::store::{Store, StoreSlot};
use crate::git::test_repository::TestRepository;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot::{Label, Snapshot};
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};

mod crash;
mod history;
mod merging;
mod secrets;
mod shapes;

const TIME: i64 = 1_700_000_123;
const TASK: &str = "acme/shop/42";

/// A repository, and a workspace in it.
struct Story {
    git: TestRepository,
    workspace: LockedWorkspace,
}

impl Story {
    /// A repository with a few files and one commit.
    fn new() -> Self {
        let git = TestRepository::in_memory();
        git.write("src/main.c", "int main;\n");
        git.write("src/other.c", "int other;\n");
        git.write("read me", "one\ntwo\nthree\n");
        git.write("docs/a/deep/text", "deep\n");
        git.commit("first");
        Self::of(git)
    }

    fn of(git: TestRepository) -> Self {
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

    fn path(&self) -> PathBuf {
        self.workspace.disk_path().to_owned()
    }

    fn git(&self, args: &[&str]) -> String {
        self.git.git_in(&self.path(), args)
    }

    fn store(&self) -> std::sync::Arc<Store> {
        let slot = self.workspace.kept_open::<StoreSlot>();
        slot.open(&self.store_dir()).unwrap().unwrap()
    }

    fn store_dir(&self) -> PathBuf {
        self.workspace.store_path().join("git")
    }

    /// What git says in the store.
    fn in_store(&self, args: &[&str]) -> String {
        self.git.git_in(&self.store_dir(), args)
    }

    fn env(&self) -> impl Fn(&str) -> Option<OsString> + use<> {
        let home = self.git.home();
        move |name| (name == "HOME").then(|| home.clone().into())
    }

    fn snapshot(&self) -> Snapshot {
        let options = SnapshotOptions::new(Label::AFTER_FAILURE, Timestamp::UNIX_EPOCH);
        self.snapshot_with(&options)
    }

    fn snapshot_with(&self, options: &SnapshotOptions) -> Snapshot {
        let op = Operation::unbounded();
        GitBackend.snapshot(&op, &self.workspace, options).unwrap()
    }

    fn try_make(
        &self,
        op: &Operation,
        snapshot: &Snapshot,
        request: &CheckpointRequest,
    ) -> Result<CheckpointOutcome, CheckpointError> {
        let store = self.store();
        let record = store.record(&Operation::unbounded(), &snapshot.id).unwrap();
        make(op, &self.workspace, &store, &record, request, &self.env())
    }

    /// Takes a snapshot and makes a checkpoint of it. Nothing of the user's changes meanwhile.
    fn checkpoint(&self, request: &CheckpointRequest) -> CheckpointOutcome {
        let snapshot = self.snapshot();
        let before = traces(&self.git.beside(""));
        let made = self.try_make(&Operation::unbounded(), &snapshot, request);
        assert_eq!(
            traces(&self.git.beside("")),
            before,
            "nothing of the user's changes"
        );
        let made = made.unwrap();
        self.is_sound();
        made
    }

    fn commit_of(&self, made: &CheckpointOutcome) -> String {
        let kept = made.checkpoint.as_ref().expect("there is something");
        assert_eq!(self.in_store(&["rev-parse", &kept.reference]), kept.commit);
        kept.commit.clone()
    }

    /// git finds nothing wrong in the store, and neither do we.
    fn is_sound(&self) {
        let checked = self
            .git
            .run(&self.store_dir(), &["fsck", "--strict", "--no-dangling"]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        let complaints = said.lines().filter(|line| !line.starts_with("notice: "));
        assert!(
            checked.status.success() && complaints.count() == 0,
            "{said}"
        );
        let op = Operation::unbounded();
        assert_eq!(
            GitBackend.verify_checkpoints(&op, &self.workspace).unwrap(),
            []
        );
    }

    /// What `git add --all` makes of a copy of everything.
    fn tree_of_git(&self) -> String {
        let copy = self.git.beside("copy");
        fs::create_dir(&copy).unwrap();
        for name in ["repository", "linked", "clone"] {
            if self.git.beside(name).exists() {
                let mut cp = Command::new("cp");
                let cp = cp.arg("-a").arg(self.git.beside(name)).arg(copy.join(name));
                assert!(cp.status().unwrap().success());
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
        let tree = self.git.git_in(&at, &["write-tree"]);
        fs::remove_dir_all(&copy).unwrap();
        tree
    }

    /// Makes a checkpoint that has what git would have made of the workspace.
    fn is_as_git_adds(&self) -> CheckpointOutcome {
        let theirs = self.tree_of_git();
        let made = self.checkpoint(&request(1));
        let commit = self.commit_of(&made);
        assert_eq!(
            self.in_store(&["rev-parse", &format!("{commit}^{{tree}}")]),
            theirs
        );
        // Everything that it reaches is there.
        self.reaches_all(&commit);
        made
    }

    /// git finds everything in the store that a commit reaches.
    fn reaches_all(&self, commit: &str) {
        let listed = self
            .git
            .run(&self.store_dir(), &["rev-list", "--objects", commit]);
        assert!(
            listed.status.success(),
            "{}",
            String::from_utf8_lossy(&listed.stderr)
        );
    }
}

fn request(number: u64) -> CheckpointRequest {
    let at = Timestamp::from_second(TIME).unwrap();
    CheckpointRequest::new(TASK, number, "subject\n\nRun-Id: run_7\n", at)
        .author(Signature::new("Author Ä", "author@example.org"))
}

/// All files below a directory but for the state: their bytes, modes and times.
fn traces(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32, i64, i64)> {
    let mut traces = BTreeMap::new();
    for entry in walkdir::WalkDir::new(directory) {
        let entry = entry.unwrap();
        if entry.path().starts_with(directory.join("state")) || entry.path() == directory {
            continue;
        }
        let meta = entry.metadata().unwrap();
        let bytes = match meta.is_file() {
            true => fs::read(entry.path()).unwrap(),
            false => Vec::new(),
        };
        let trace = (bytes, meta.mode(), meta.mtime(), meta.mtime_nsec());
        traces.insert(entry.path().to_owned(), trace);
    }
    traces
}

fn rel(path: &str) -> RelPath {
    RelPath::new(path.as_bytes()).unwrap()
}
