//! Work on a task's branch: a checkpoint that is sent, and a resume by fast-forward.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use stillframe::tasks::WorkBranchOptions;
use stillframe::{Engine, EngineOptions, SessionManager, WorkspaceOptions};
use stillframe_backends::Label;
use stillframe_benches::case::{CAPTURE_AND_PUSH, CHECKPOINT, FAST_FORWARD, OURS, RESUME};
use stillframe_benches::git;
use tokio::runtime::Runtime;

use crate::ground::{Cache, Ground, Site};

/// How many files differ.
const CHANGED: usize = 170;

const TASK: &str = "compare";
const BRANCH: &str = "stillframe/task/compare";

/// A clone of the repository, whose branches move, with two machines that work on it in turns.
pub(crate) struct TaskGround {
    clone: PathBuf,
    remote: PathBuf,
    /// A remote that gets what another has.
    beside: PathBuf,
    runtime: Runtime,
    /// The one that saves, and the one that goes on.
    sessions: [(Engine, SessionManager); 2],
    changed: Vec<PathBuf>,
    /// Where HEAD is.
    base: String,
}

impl TaskGround {
    fn make(site: &Site) -> Self {
        let scratch = site.scratch.path();
        let [clone, remote, beside] =
            ["clone", "remote.git", "beside.git"].map(|n| scratch.join(n));
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        let tree = text(&site.tree.path);
        run(scratch, &["clone", "-q", &tree, &text(&clone)]);
        for bare in [&remote, &beside] {
            run(
                scratch,
                &["clone", "-q", "--bare", "--shared", &tree, &text(bare)],
            );
        }
        for (key, value) in [("user.name", "bench"), ("user.email", "bench@localhost")] {
            run(&clone, &["config", key, value]);
        }
        let base = run(&clone, &["rev-parse", "HEAD"]);
        run(&clone, &["checkout", "-q", "-b", BRANCH]);
        let runtime = Runtime::new().expect("there are threads");
        let sessions = ["saving", "going-on"].map(|name| {
            let options = EngineOptions::default().state_dir(scratch.join(name));
            let engine = runtime.block_on(Engine::start(options)).expect("it starts");
            let session = runtime.block_on(engine.session(name)).expect("it opens");
            (engine, session)
        });
        let every = (site.tree.files.len() / CHANGED).max(1);
        let changed = site.tree.files.iter().step_by(every).take(CHANGED);
        Self {
            changed: changed.map(|file| clone.join(file)).collect(),
            clone,
            remote,
            beside,
            runtime,
            sessions,
            base,
        }
    }

    /// Changes files in a way that was never seen before.
    fn change(&self, nonce: u64) {
        for path in &self.changed {
            let mut file = fs::OpenOptions::new()
                .append(true)
                .open(path)
                .expect("a file");
            writeln!(file, "{nonce}").expect("there is room");
        }
    }

    /// Back to where the round began, with an index that git need not look behind.
    fn back(&self) {
        run(&self.clone, &["reset", "-q", "--hard", &self.base]);
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        run(&self.clone, &["status", "--porcelain"]);
    }

    fn branch(&self) -> WorkBranchOptions {
        WorkBranchOptions::of(TASK).remote(self.remote.display().to_string())
    }

    fn workspace(&self) -> WorkspaceOptions {
        WorkspaceOptions::at(&self.clone)
    }

    fn capture(&self, machine: usize) {
        let workspace = self.workspace();
        let taken = self.sessions[machine].1.snapshot(&workspace, Label::MANUAL);
        self.runtime.block_on(taken).expect("it can be captured");
    }

    /// Saves the work; answers with the commit.
    fn checkpoint(&self) -> String {
        let (branch, workspace) = (self.branch(), self.workspace());
        let saved = self.sessions[0].1.checkpoint(&workspace, &branch);
        let saved = self.runtime.block_on(saved).expect("it is sent");
        saved.commit.expect("something has changed")
    }

    /// Goes on with it; answers with where the branch is.
    fn resume(&self) -> Option<String> {
        let (branch, workspace) = (self.branch(), self.workspace());
        let resumed = self.sessions[1].1.resume_task(&workspace, &branch);
        let resumed = self
            .runtime
            .block_on(resumed)
            .expect("nothing is in the way");
        resumed.commit
    }
}

impl Ground<'_> {
    pub(crate) fn tasks(&mut self) {
        let ground = self.tasks.take();
        let mut ground = ground.unwrap_or_else(|| TaskGround::make(&self.site));
        // Those who remember have seen what is there.
        (0..2).for_each(|machine| ground.capture(machine));
        let commit = self.checkpoint(&ground);
        self.fast_forward(&ground, &commit);
        // The next round goes on from there.
        ground.base = commit;
        self.tasks = Some(ground);
    }

    /// To a bare repository by its path, against a capture and a push of the same.
    fn checkpoint(&mut self, ground: &TaskGround) -> String {
        ground.change(self.site.next_nonce());
        self.site.settle(Cache::Warm);
        let started = Instant::now();
        ground.capture(0);
        let captured = started.elapsed();
        ground.change(self.site.next_nonce());
        let commit = self.take(&[CHECKPOINT], OURS, Cache::Warm, |_| ground.checkpoint());
        let (remote, beside) = (ground.remote.to_str(), ground.beside.to_str());
        let (remote, beside) = remote.zip(beside).expect("plain paths");
        // Loose, as git leaves what it commits: from a pack of ours its push would take the deltas.
        let unpacked = ["-c", "fetch.unpackLimit=100000", "fetch", "-q"];
        run(&ground.clone, &[&unpacked[..], &[remote, BRANCH]].concat());
        let pushed = format!("{commit}:refs/heads/{BRANCH}");
        self.site.settle(Cache::Warm);
        let started = Instant::now();
        run(&ground.clone, &["push", "-q", beside, &pushed]);
        let time = captured + started.elapsed();
        self.times.add(CHECKPOINT, CAPTURE_AND_PUSH, time);
        commit
    }

    /// By the machine that has not made it. The clone has the objects.
    fn fast_forward(&mut self, ground: &TaskGround, commit: &str) {
        ground.back();
        ground.capture(1);
        let resumed = self.take(&[RESUME], OURS, Cache::Warm, |_| ground.resume());
        assert_eq!(resumed.as_deref(), Some(commit), "it is at the branch");
        let head = run(&ground.clone, &["rev-parse", "HEAD"]);
        assert_eq!(head, commit, "HEAD is, too");
        assert_eq!(run(&ground.clone, &["status", "--porcelain"]), "");
        ground.back();
        self.take(&[RESUME], FAST_FORWARD, Cache::Warm, |_| {
            run(&ground.clone, &["merge", "-q", "--ff-only", commit])
        });
    }
}

fn run(path: &Path, arguments: &[&str]) -> String {
    let output = git(path, arguments).unwrap_or_else(|e| panic!("{e}"));
    String::from_utf8_lossy(&output).trim().to_owned()
}
