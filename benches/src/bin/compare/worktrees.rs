//! A work tree of its own for a run, and the first look that git takes at it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use stillframe_backends::{
    Backend, BackendKind, Operation, Origin, RunWorktree, RunWorktrees, StateDir, Timestamp,
    backend_of,
};
use stillframe_benches::case::{FIRST_STATUS, OURS, STATUS_AGAIN, WORKTREE, WORKTREE_ADD};
use stillframe_benches::git;

use crate::ground::{Cache, Ground};

/// A clone whose runs have work trees.
struct Clone {
    path: PathBuf,
    state: StateDir,
    op: Operation,
    backend: std::sync::Arc<dyn Backend>,
    origin: Origin,
}

impl Clone {
    fn make(tree: &Path, scratch: &Path) -> Self {
        let path = scratch.join("of-runs");
        if !path.exists() {
            let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
            run(
                scratch,
                &["clone", "-q", "--no-local", &text(tree), &text(&path)],
            );
        }
        let (op, backend) = (Operation::unbounded(), backend_of(BackendKind::Git));
        let worktrees = backend.run_worktrees().expect("git has them");
        let origin = worktrees.origin(&op, &path, None).expect("it has a branch");
        Self {
            state: StateDir::open(scratch.join("state-of-runs")).expect("it can be made"),
            path,
            op,
            backend,
            origin,
        }
    }

    fn worktrees(&self) -> &dyn RunWorktrees {
        self.backend.run_worktrees().expect("git has them")
    }

    /// Makes one; answers with it.
    fn ensure(&self, id: &str) -> RunWorktree {
        let worktree = RunWorktree::of_run(&self.path, &self.state, id);
        let base = Some(&*self.origin.commit);
        let made = self
            .worktrees()
            .ensure(&self.op, &worktree, base, Timestamp::UNIX_EPOCH);
        made.expect("nothing is in the way");
        worktree
    }
}

impl Ground<'_> {
    /// Of a clone with one pack, as a user has it.
    pub(crate) fn worktrees(&mut self) {
        let clone = Clone::make(&self.site.tree.path, self.site.scratch.path());
        let id = format!("run_{}", self.site.next_nonce());
        let worktree = self.take(&[WORKTREE], OURS, Cache::Warm, |_| clone.ensure(&id));
        let status = || run(&worktree.directory, &["status", "--porcelain"]);
        let first = self.take(&[FIRST_STATUS], OURS, Cache::Warm, |_| status());
        assert_eq!(first, "", "it is clean");
        // What the first has written into the index is there for the second.
        let started = Instant::now();
        status();
        let time = started.elapsed();
        self.times.add(FIRST_STATUS, STATUS_AGAIN, time);
        let theirs = self.site.scratch.path().join(&id);
        let path = theirs.to_str().expect("a plain path").to_owned();
        let add = ["worktree", "add", "-q", "-b", &id, &path];
        self.take(&[WORKTREE], WORKTREE_ADD, Cache::Warm, |_| {
            run(&clone.path, &add)
        });
        for made in [&theirs, &worktree.directory] {
            let made = made.to_str().expect("a plain path");
            run(&clone.path, &["worktree", "remove", "--force", made]);
        }
    }
}

fn run(path: &Path, arguments: &[&str]) -> String {
    let output = git(path, arguments).unwrap_or_else(|e| panic!("{e}"));
    String::from_utf8_lossy(&output).trim().to_owned()
}
