//! What is measured: Stillframe through its library, and git through its program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{
    Backend, Diff, DiffOptions, Label, LockedWorkspace, RestoreGoal, RestoreOptions,
    RestoreOutcome, Snapshot, SnapshotOptions, StateDir, Strategy, Workspace, detect,
};

/// Stillframe's library on one workspace, with a state directory of its own.
pub struct Stillframe {
    workspace: LockedWorkspace,
    backend: Arc<dyn Backend>,
}

/// The time that snapshots record: what it is plays no part.
const CAPTURED_AT: jiff::Timestamp = jiff::Timestamp::UNIX_EPOCH;

impl Stillframe {
    /// Opens `path` with its state in `state`, which may be new.
    pub fn open(path: &Path, state: &Path) -> Self {
        Self::open_with(path, state, Strategy::Auto)
    }

    /// The same with a backend of choice.
    pub fn open_with(path: &Path, state: &Path, strategy: Strategy) -> Self {
        let state = StateDir::open(state).expect("the state directory can be made");
        let workspace = Workspace::open(path, &state).expect("the tree is a directory");
        let backend = detect(&workspace, strategy)
            .expect("it has a backend")
            .backend;
        let workspace = workspace
            .lock(Duration::from_secs(60))
            .expect("nobody else is here");
        Self { workspace, backend }
    }

    fn options(label: Label) -> SnapshotOptions {
        SnapshotOptions::new(label, CAPTURED_AT)
    }

    /// Takes a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.backend
            .snapshot(&self.workspace, &Self::options(Label::MANUAL))
            .expect("the tree can be captured")
    }

    /// Compares two snapshots, with the patch.
    pub fn diff(&self, from: &Snapshot, to: &Snapshot) -> Diff {
        self.backend
            .diff(
                &self.workspace,
                from,
                to,
                &DiffOptions::with_patch(),
                &mut io::sink(),
            )
            .expect("both are in the store")
    }

    /// Puts `target` back.
    pub fn restore(&mut self, target: &Snapshot) -> RestoreOutcome {
        let goal = RestoreGoal::Snapshot {
            snapshot: target.clone(),
            paths: Vec::new(),
        };
        let options = RestoreOptions::new(Self::options(Label::GUARD));
        self.backend
            .restore(&mut self.workspace, &goal, &options)
            .expect("it is restorable")
    }
}

/// git the program, doing the same work in the ways that people use.
pub struct GitPeer {
    work_tree: PathBuf,
    index: PathBuf,
}

impl GitPeer {
    /// git in `work_tree`, with indexes of its own in `scratch`.
    pub fn new(work_tree: &Path, scratch: &Path) -> Self {
        Self {
            work_tree: work_tree.to_owned(),
            index: scratch.join("index"),
        }
    }

    fn run(&self, arguments: &[&str], own_index: bool) -> Vec<u8> {
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(&self.work_tree)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::null());
        if own_index {
            command.env("GIT_INDEX_FILE", &self.index);
        }
        let output = command.output().expect("git can be started");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// `git status`, for its time.
    pub fn status(&self) {
        self.run(&["status", "--porcelain"], false);
    }

    /// A tree of everything, the way most tools make one: a temporary index from HEAD, `add -A`,
    /// `write-tree`.
    pub fn tree_common_way(&self) -> String {
        let _ = fs::remove_file(&self.index);
        self.run(&["read-tree", "HEAD"], true);
        self.tree_persistent_index()
    }

    /// The same with a copy of the user's index, whose stat data spares reading clean files.
    pub fn tree_copied_index(&self) -> String {
        fs::copy(self.work_tree.join(".git/index"), &self.index).expect("there is an index");
        self.tree_persistent_index()
    }

    /// The same with the index of the last time.
    pub fn tree_persistent_index(&self) -> String {
        self.run(&["add", "-A"], true);
        let tree = self.run(&["write-tree"], true);
        String::from_utf8_lossy(&tree).trim().to_owned()
    }

    /// `git diff-tree -p` between two trees, for its time.
    pub fn diff(&self, from: &str, to: &str) {
        self.run(
            &[
                "diff-tree",
                "-p",
                "--binary",
                "--no-renames",
                "-r",
                from,
                to,
            ],
            false,
        );
    }

    /// Puts a tree back into the work tree through the index of [`GitPeer::tree_persistent_index`].
    pub fn restore(&self, tree: &str) {
        self.run(&["read-tree", "--reset", "-u", tree], true);
    }
}
