//! What is measured: Stillframe through its library.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{
    Backend, Diff, DiffOptions, Label, LockedWorkspace, Operation, RestoreGoal, RestoreOptions,
    RestoreOutcome, Snapshot, SnapshotOptions, StateDir, Strategy, Workspace, detect,
};

/// Stillframe's library on one workspace, with a state directory of its own.
pub struct Stillframe {
    workspace: LockedWorkspace,
    backend: Arc<dyn Backend>,
    watches: bool,
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
            .lock(&Operation::unbounded(), Duration::from_secs(60))
            .expect("nobody else is here");
        Self {
            workspace,
            backend,
            watches: false,
        }
    }

    /// Watches the workspace from the next snapshot on.
    pub fn watching(mut self) -> Self {
        self.watches = true;
        self
    }

    /// Big files are wanted too, whatever their size.
    fn options(label: Label) -> SnapshotOptions {
        let mut options = SnapshotOptions::new(label, CAPTURED_AT);
        options.max_untracked_file_bytes = 0;
        options
    }

    /// Takes a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.backend
            .snapshot(
                &Operation::unbounded(),
                &self.workspace,
                &Self::options(Label::MANUAL).watch(self.watches),
            )
            .expect("the tree can be captured")
    }

    /// Compares two snapshots, with the patch.
    pub fn diff(&self, from: &Snapshot, to: &Snapshot) -> Diff {
        self.backend
            .diff(
                &Operation::unbounded(),
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
            .restore(
                &Operation::unbounded(),
                &mut self.workspace,
                &goal,
                &options,
            )
            .expect("it is restorable")
    }
}
