//! Random commands are killed at random moments, while the user works with their own git.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::torture::checker::{self, Acknowledged, Finding, Kind};
use crate::torture::random::Random;
use crate::torture::sandbox::{self, Picture};
use crate::torture::{Options, Refusal, Report, workers};
use crate::{Output, TestWorkspace, view};

/// The longest that a command lives before it is killed: longer than any takes in a workspace of
/// this size, so that the end of it is among the moments too.
const MAX_LIFE: Duration = Duration::from_millis(40);

/// How many snapshots a `gc` keeps.
const KEPT: usize = 6;

/// The files that come and go.
const NAMES: [&str; 8] = [
    "a",
    "b",
    "dir/c",
    "dir/d",
    "dir/deep/e",
    "tool",
    "f",
    "other/g",
];

/// What is done to the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Snapshot,
    Restore,
    Run,
    Rollback,
    Undo,
    Collect,
    Verify,
    List,
    Diff,
}

impl Operation {
    /// What is done, each as often as it is here.
    const CHOICE: [Self; 16] = [
        Self::Snapshot,
        Self::Snapshot,
        Self::Snapshot,
        Self::Restore,
        Self::Restore,
        Self::Restore,
        Self::Run,
        Self::Run,
        Self::Rollback,
        Self::Rollback,
        Self::Undo,
        Self::Undo,
        Self::Collect,
        Self::Verify,
        Self::List,
        Self::Diff,
    ];
}

/// Works, kills and looks until the time is over, or as many operations as are wanted were begun.
pub fn run(options: &Options) -> Result<Report, Refusal> {
    let begin = Instant::now();
    let share = options.operations.div_ceil(options.workers.max(1));
    workers::all("soak", options, |worker| {
        let seed = options.seed.wrapping_mul(1000).wrapping_add(worker);
        let mut soak = Soak::new(seed);
        while begin.elapsed() < options.time && soak.report.tried < share {
            soak.step();
        }
        soak.look_at_everything();
        Ok(soak.report)
    })
}

struct Soak {
    ws: TestWorkspace,
    random: Random,
    report: Report,
    seed: u64,
    /// Snapshots that somebody was told of, oldest first, with what was there then.
    known: Vec<(Acknowledged, view::View)>,
    /// Makes every content another one.
    counter: u64,
}

impl Soak {
    fn new(seed: u64) -> Self {
        let mut ws = TestWorkspace::below(&sandbox::place());
        // It is looked at here, again and again.
        ws.damages_the_store();
        ws.git(["init", "-q"]);
        ws.write("a", "first\n");
        ws.commit_settled("first");
        let mut soak = Self {
            ws,
            random: Random::new(seed),
            report: Report::new("soak"),
            seed,
            known: Vec::new(),
            counter: 0,
        };
        let first = soak.ws.snapshot().json;
        soak.know(&first);
        soak
    }

    /// One command, with what the user does before it.
    fn step(&mut self) {
        self.edit();
        if self.random.once_in(3) {
            self.user_git();
        }
        let operation = *self.random.one_of(&Operation::CHOICE);
        let target = self.random.one_of(&self.known).clone();
        let number = self.report.tried;
        let case = format!("seed {}, operation {number}, {operation:?}", self.seed);
        let listed = match operation {
            Operation::Collect => self.listed(),
            _ => Vec::new(),
        };
        let before = Picture::of(&self.ws);
        let repository = view::git_dir(self.ws.root());
        let (output, is_killed) = self.disturbed(operation, &target.0.id);
        self.report.tried += 1;
        self.report.hit += usize::from(is_killed);
        self.report.count("operation", format!("{operation:?}"));
        let outcome = match (is_killed, checker::kind_of(&output)) {
            (true, _) => "killed",
            (false, Some(kind)) => kind,
            (false, None) => "done",
        };
        self.report.count("outcome", outcome);

        // The next command, whatever it is, finishes what there is to finish.
        let next = checker::undisturbed(&self.ws, &["list"]);
        self.report.find(&case, next.err());
        let now = Picture::of(&self.ws);
        let mut findings = Vec::new();
        if !is_killed && output.stderr_text().contains("panicked at") {
            findings.push(Finding::new(Kind::Untyped, output.to_string()));
        }
        match operation {
            Operation::Restore => {
                let after = Picture {
                    files: target.1.clone(),
                    repository: before.repository.clone(),
                };
                findings.extend(checker::workspace(&now, &[&before, &after], false));
                findings.extend(self.way_back(&before, &now, false));
            }
            Operation::Run | Operation::Rollback => {
                findings.extend(self.way_back(&before, &now, false));
            }
            Operation::Undo => findings.extend(self.way_back(&before, &now, is_killed)),
            Operation::Collect => findings.extend(self.collected(&listed)),
            Operation::Snapshot if output.code == 0 => self.know(&output.json()),
            _ => {}
        }
        if !matches!(
            operation,
            Operation::Restore | Operation::Run | Operation::Rollback | Operation::Undo
        ) {
            findings.extend(checker::workspace(&now, &[&before], false));
            let now = view::git_dir(self.ws.root());
            let lines = view::difference(&repository, &now);
            findings.extend(lines.map(|lines| Finding::new(Kind::Repository, lines)));
        }
        self.report.find(&case, findings);
        if self.random.once_in(12) {
            self.look_at_everything();
        }
    }

    /// The user writes, removes or makes executable a file or two.
    fn edit(&mut self) {
        for _ in 0..=self.random.below(2) {
            let name = *self.random.one_of(&NAMES);
            match self.random.below(5) {
                0 if self.ws.exists(name) => self.ws.remove(name),
                1 if self.ws.exists(name) => self.ws.chmod(name, 0o755),
                _ => {
                    self.counter += 1;
                    let size = 1 + self.random.below(200);
                    let text = format!("{} of {}\n", self.counter, self.seed).repeat(size);
                    self.ws.write(name, text);
                }
            }
        }
    }

    /// The user's own git, which never fails because of us.
    fn user_git(&mut self) {
        self.counter += 1;
        let branch = format!("b{}", self.counter);
        let args: Vec<&str> = match self.random.below(6) {
            0 => vec!["add", "-A"],
            1 => vec!["commit", "-q", "-a", "--allow-empty", "-m", "by the user"],
            2 => vec!["checkout", "-q", "-b", &branch],
            3 => vec!["gc", "-q", "--prune=now"],
            4 => vec!["reset", "-q"],
            _ => vec!["status", "--short"],
        };
        let output = self.ws.git_call(&args).run();
        self.report.count("the user's git", args[0]);
        if output.code != 0 {
            let case = format!("seed {}, operation {}", self.seed, self.report.tried);
            let finding = Finding::new(Kind::Repository, format!("git fails: {output}"));
            self.report.find(&case, [finding]);
        }
    }

    /// The command, killed after a while more often than not; whether it was.
    fn disturbed(&mut self, operation: Operation, target: &str) -> (Output, bool) {
        self.counter += 1;
        let number = self.counter;
        let work = format!("echo {number} > a; echo {number} > made; rm -f f; exit");
        let (good, bad) = (format!("{work} 0"), format!("{work} 1"));
        let args: Vec<&str> = match operation {
            Operation::Snapshot => vec!["snapshot"],
            Operation::Restore => vec!["restore", target],
            Operation::Run => vec!["run", "--", "/bin/sh", "-c", &good],
            Operation::Rollback => {
                vec!["run", "--rollback-on-failure", "--", "/bin/sh", "-c", &bad]
            }
            Operation::Undo => vec!["undo"],
            Operation::Collect => vec!["gc", "--keep", "6"],
            Operation::Verify => vec!["verify"],
            Operation::List => vec!["list"],
            Operation::Diff => vec!["diff", target],
        };
        let call = self.ws.call(["--json"]).args(args);
        if self.random.once_in(5) {
            return (call.run(), false);
        }
        let micros = MAX_LIFE.as_micros() as usize;
        let life = Duration::from_micros(self.random.below(micros) as u64);
        let running = call.start();
        thread::sleep(life);
        running.signal(rustix::process::Signal::KILL);
        let output = running.wait();
        let is_killed = output.code == 137;
        (output, is_killed)
    }

    /// Takes back what was done, now and then, and looks whether it is as it was.
    ///
    /// What a killed undo had merged stays when that is undone; then `may_keep_merged`, and its
    /// guard has to lead back.
    fn way_back(&mut self, before: &Picture, now: &Picture, may_keep_merged: bool) -> Vec<Finding> {
        if now == before || self.random.once_in(2) {
            return Vec::new();
        }
        let undone = self.ws.try_json(["undo"]);
        let document: Value = serde_json::from_slice(&undone.stdout).unwrap_or_default();
        if undone.code != 0 {
            // A run whose end nobody saw is no operation; the message says what leads back.
            let message = document["error"]["message"].as_str().unwrap_or_default();
            let id = message
                .split('"')
                .find_map(|quoted| quoted.strip_prefix("stillframe restore "));
            let Some(id) = id else {
                return vec![Finding::new(
                    Kind::Stuck,
                    format!("there is no undo: {undone}"),
                )];
            };
            if let Err(finding) = checker::undisturbed(&self.ws, &["restore", id]) {
                return vec![finding];
            }
        }
        let mut lines = view::difference(&before.files, &view::worktree(self.ws.root()));
        if may_keep_merged
            && lines.is_some()
            && let Some(guard) = document["undone"]["before"].as_str()
        {
            self.report.count("looked", "at the guard of a killed undo");
            if let Err(finding) = checker::undisturbed(&self.ws, &["restore", guard]) {
                return vec![finding];
            }
            lines = view::difference(&before.files, &view::worktree(self.ws.root()));
        }
        lines
            .map(|lines| Finding::new(Kind::Lost, format!("no way back:\n{lines}{undone}")))
            .into_iter()
            .collect()
    }

    /// A collection forgets no snapshot among the newest.
    fn collected(&mut self, listed: &[String]) -> Vec<Finding> {
        // One that was killed half way is asked for again.
        if let Err(finding) = checker::undisturbed(&self.ws, &["gc", "--keep", "6"]) {
            return vec![finding];
        }
        let left = self.listed();
        let is_lost = |id: &&String| !left.contains(id);
        let lost: Vec<&String> = listed.iter().take(KEPT).filter(is_lost).collect();
        let findings = match lost.is_empty() {
            true => Vec::new(),
            false => vec![Finding::new(Kind::Lost, format!("gc forgot {lost:?}"))],
        };
        self.known
            .retain(|(snapshot, _)| left.contains(&snapshot.id));
        if self.known.is_empty() {
            let newest = self.ws.snapshot().json;
            self.know(&newest);
        }
        findings
    }

    /// The ids of all snapshots, newest first.
    fn listed(&self) -> Vec<String> {
        let listed = self.ws.json(["list"]);
        let ids = listed.as_array().into_iter().flatten();
        ids.filter_map(|s| s["id"].as_str().map(str::to_owned))
            .collect()
    }

    fn know(&mut self, document: &Value) {
        let snapshot = Acknowledged::of(document).expect("it has an id and a commit");
        self.known.push((snapshot, view::worktree(self.ws.root())));
    }

    /// Whether the store is whole, and a snapshot leads back to what was there then.
    fn look_at_everything(&mut self) {
        let case = format!("seed {}, after operation {}", self.seed, self.report.tried);
        self.report.count("looked", "at everything");
        let acknowledged: Vec<_> = self.known.iter().map(|(a, _)| a.clone()).collect();
        let mut findings = checker::store(&self.ws, &acknowledged);
        let verify = self.ws.try_json(["verify"]);
        findings.extend(checker::verdict(&verify, &acknowledged));
        findings.extend(checker::locks(&self.ws));
        let (target, files) = self.random.one_of(&self.known).clone();
        match checker::undisturbed(&self.ws, &["restore", &target.id]) {
            Ok(output) => {
                let now = view::worktree(self.ws.root());
                if let Some(lines) = view::difference(&files, &now) {
                    let text = format!("{} does not come back:\n{lines}{output}", target.id);
                    findings.push(Finding::new(Kind::Lost, text));
                }
            }
            Err(finding) => findings.push(finding),
        }
        self.report.find(&case, findings);
    }
}
