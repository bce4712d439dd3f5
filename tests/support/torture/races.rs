//! Somebody swaps what is in the workspace for something else while it is captured, compared,
//! restored and recovered: files for links to outside, directories for links, FIFOs for files, the
//! root for a link.
//!
//! Nothing outside is read or written (`watch`), no edit is lost (`edits`), and nothing hangs.

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use stillframe_backends::{
    Backend, DiffOptions, ErrorKind, Label, RestoreGoal, RestoreOptions, Snapshot, SnapshotOptions,
    StateDir, Strategy, Workspace, detect,
};

mod edits;
mod naive;
mod racer;
mod watch;

use edits::Kept;
use racer::{Manner, Racer};
use watch::Watch;

use crate::torture::checker::{self, Finding, Kind};
use crate::torture::random::Random;
use crate::torture::sandbox::{self, Sandbox};
use crate::torture::{Options, Refusal, Report, workers};
use crate::{Call, TestWorkspace, json, oracle, view};

/// How many attempts there are before everything is looked at and made anew.
const ROUND: usize = 50;

/// How long one may take: far above what any takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The longest that a program lives that is killed.
const MAX_LIFE: Duration = Duration::from_millis(40);

/// What no snapshot may have.
const SECRET: &str = "a canary that nobody may read\n";

/// What is raced against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The library, in this process, and now and then the built program.
    Product,
    /// One that reads all files, and follows links. It has to be found out.
    NaiveReader,
    /// One that writes a file, and follows links. It has to be found out.
    NaiveWriter,
}

/// Races until as many attempts as are wanted were made, or the time is over.
///
/// [`Report::hit`] counts the attempts in the course of which something was swapped.
pub fn run(subject: Subject, options: &Options) -> Result<Report, Refusal> {
    let begin = Instant::now();
    let begun = AtomicUsize::new(0);
    workers::all("races", options, |worker| {
        let mut report = Report::new("races");
        let sandbox = Sandbox::new(arena());
        let mut random = Random::new(options.seed.wrapping_mul(1000).wrapping_add(worker));
        while begin.elapsed() < options.time {
            let first = begun.fetch_add(ROUND, Ordering::Relaxed);
            let attempts = options.operations.saturating_sub(first).min(ROUND);
            if attempts == 0 {
                break;
            }
            let round = Round {
                subject,
                sandbox: &sandbox,
                seed: random.next_u64(),
                attempts,
                manner: *random.one_of(&MANNERS),
                strategy: *random.one_of(&STRATEGIES),
            };
            if round.play(&mut report).is_hung {
                // A thread that hangs cannot be ended, so nobody goes on beside it.
                break;
            }
        }
        Ok(report)
    })
}

/// How racers are, each as often as it is here.
const MANNERS: [Manner; 4] = [Manner::Plain, Manner::Plain, Manner::Root, Manner::Staging];

/// What captures, each as often as it is here.
const STRATEGIES: [Strategy; 3] = [Strategy::Git, Strategy::Git, Strategy::Hash];

/// A repository with files where the racer swaps, canaries with the same names, a file that may
/// have other names, and an empty hand.
fn arena() -> TestWorkspace {
    let ws = TestWorkspace::below(&sandbox::place());
    ws.git(["init", "-q"]);
    ws.write("a", "first\n");
    ws.write("dir/b", "first\n");
    ws.write("dir/deep/c", "first\n");
    ws.write("kept", "never swapped\n");
    ws.write_executable("tool", "first\n");
    ws.symlink("link", "kept");
    ws.write(".gitignore", "*.log\n");
    ws.commit_settled("first");
    ws.write("untracked", "nowhere else\n");
    let canaries = canaries(&ws);
    fs::create_dir_all(canaries.join("deep")).expect("the directory is new");
    for name in ["secret", "b", "deep/c", "deep/secret", ".gitignore"] {
        fs::write(canaries.join(name), SECRET).expect("the directory is writable");
    }
    fs::write(shared(&ws), "it has other names\n").expect("the directory is writable");
    fs::create_dir(hand(&ws)).expect("the directory is new");
    ws
}

fn canaries(ws: &TestWorkspace) -> PathBuf {
    ws.outside().join("canaries")
}

fn shared(ws: &TestWorkspace) -> PathBuf {
    ws.outside().join("shared")
}

fn hand(ws: &TestWorkspace) -> PathBuf {
    ws.base().join("hand")
}

/// Some attempts, with one racer.
struct Round<'a> {
    subject: Subject,
    sandbox: &'a Sandbox,
    seed: u64,
    attempts: usize,
    manner: Manner,
    strategy: Strategy,
}

impl fmt::Display for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            manner,
            strategy,
            ..
        } = self;
        write!(f, "round {seed:#x}, {manner:?}, {strategy:?}")
    }
}

struct Ending {
    is_hung: bool,
}

/// One operation that was raced against.
struct Attempt {
    operation: &'static str,
    outcome: Outcome,
    /// How often something was swapped meanwhile.
    swaps: u64,
}

impl Round<'_> {
    /// Plays it from the beginning, and looks at everything.
    fn play(&self, report: &mut Report) -> Ending {
        self.sandbox.reset();
        let ws = &self.sandbox.ws;
        let case = self.to_string();
        let before = view::worktree(ws.root());
        let outside = ws.outside();
        let watch = Watch::new(&outside).expect("directories can be watched");
        let racer = Racer::new(
            [ws.root(), &hand(ws), &ws.state()],
            &canaries(ws),
            &shared(ws),
            self.manner,
            self.seed,
        );
        let mut racer = racer.expect("the directory is writable");
        let swaps = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let course = Course::of(self, Arc::clone(&swaps));
        let (sender, attempts) = mpsc::sync_channel(1);
        // Not a scoped thread: one that hangs is left behind.
        let engine = {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                // Whoever listens hears of a panic by the end of the channel.
                let _is_over = OnDrop(is_over);
                course.run(&sender);
            })
        };
        let is_hung = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if racer.step() {
                        swaps.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let is_hung = self.listen(&attempts, &case, report);
            is_over.store(true, Ordering::Relaxed);
            is_hung
        });
        if is_hung {
            return Ending { is_hung };
        }
        if let Err(panic) = engine.join() {
            let text = format!("it cannot be raced against: {}", what_panicked(&*panic));
            report.find(&case, [Finding::new(Kind::Stuck, text)]);
        }
        let intrusions = watch.intrusions();
        if !intrusions.is_empty() {
            let text = intrusions.join("\n");
            report.find(&case, [Finding::new(Kind::Escape, text)]);
        }
        if self.subject == Subject::Product {
            let looked = catch_unwind(AssertUnwindSafe(|| self.look(&before, racer.edits())));
            report.find(
                &case,
                looked.unwrap_or_else(|panic| {
                    let text = format!("the checker cannot go on: {}", what_panicked(&*panic));
                    vec![Finding::new(Kind::Stuck, text)]
                }),
            );
        }
        report.count("rounds", format!("{:?}, {:?}", self.manner, self.strategy));
        Ending { is_hung }
    }

    /// Notes what is done, until nobody does anything; answers with whether somebody hangs.
    fn listen(&self, attempts: &Receiver<Attempt>, case: &str, report: &mut Report) -> bool {
        loop {
            match attempts.recv_timeout(DEADLINE) {
                Ok(attempt) => {
                    report.tried += 1;
                    report.hit += usize::from(attempt.swaps > 0);
                    report.count("operation", attempt.operation);
                    let outcome = format!("{:?}: {}", self.manner, attempt.outcome.what);
                    report.count("outcome", outcome);
                    let case = format!("{case}, {}", attempt.operation);
                    report.find(&case, self.too_soon(&attempt));
                    report.find(&case, attempt.outcome.findings);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let text = format!("nothing has ended for {DEADLINE:?}");
                    report.find(case, [Finding::new(Kind::Hang, text)]);
                    return true;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// A failure of the disk, where nobody has touched anything but the workspace.
    fn too_soon(&self, attempt: &Attempt) -> Option<Finding> {
        let outcome = &attempt.outcome;
        let is_of_the_disk = outcome.what == ErrorKind::Storage.as_str();
        (is_of_the_disk && self.manner == Manner::Plain)
            .then(|| Finding::new(Kind::NotRetried, outcome.why.clone()))
    }

    /// What is wrong now that nobody races: with the edits, and with the store.
    fn look(&self, before: &view::View, edits: u64) -> Vec<Finding> {
        let ws = &self.sandbox.ws;
        let mut findings = Vec::new();
        // Whatever was interrupted is finished by the next command.
        let Ok(first) = self.first_snapshot(&mut findings) else {
            return findings;
        };
        let kept = Kept::in_all_of(ws);
        let is_lost = |edit: &u64| !kept.edits.contains(edit);
        let lost: Vec<u64> = (0..edits).filter(is_lost).collect();
        if !lost.is_empty() {
            let text = format!("the edits {lost:?} of {edits} are nowhere");
            findings.push(Finding::new(Kind::Lost, text));
        }
        let secret = SECRET.trim_end().as_bytes();
        let mut stored = kept.stored.windows(secret.len());
        if stored.any(|bytes| bytes == secret) {
            findings.push(Finding::new(Kind::Escape, "a canary is in the store"));
        }
        if !kept.misnamed.is_empty() {
            let text = format!("{:?} are not what their names say", kept.misnamed);
            findings.push(Finding::new(Kind::Damaged, text));
        }
        if let Some(complaint) = oracle::fsck_complaint(&ws.state()) {
            findings.push(Finding::new(Kind::Damaged, complaint));
        }
        findings.extend(checker::verdict(&ws.try_json(["verify"]), &[]));
        findings.extend(checker::locks(ws));
        match checker::undisturbed(ws, &["restore", &first]) {
            Ok(output) => {
                let answer = output.json();
                let mut named = json::names_in(&answer["skipped"]);
                // A file that a rule of today protects may lie where a directory was.
                named.extend(json::names(&answer["leftover_ignored"]));
                let now = view::worktree(ws.root());
                let mut differing = before.differing(&now);
                // What came since, and a rule of today protects, stays.
                differing.retain(|path| {
                    let is_named = |name: &String| checker::is_below(path, name);
                    before.line(path).is_some() && !named.iter().any(is_named)
                });
                if !differing.is_empty() {
                    let lines = view::difference(before, &now).unwrap_or_default();
                    let text = format!("{differing:?} do not come back:\n{lines}{output}");
                    findings.push(Finding::new(Kind::Lost, text));
                }
            }
            Err(finding) => findings.push(finding),
        }
        findings
    }

    /// The id of the oldest snapshot, which was taken before anybody raced.
    fn first_snapshot(&self, findings: &mut Vec<Finding>) -> Result<String, ()> {
        let listed = checker::undisturbed(&self.sandbox.ws, &["list"]);
        let listed = listed.map_err(|finding| findings.push(finding))?;
        let document = listed.json();
        let ids = document.as_array().into_iter().flatten();
        let oldest = ids.filter_map(|s| s["id"].as_str()).next_back();
        oldest.map(str::to_owned).ok_or_else(|| {
            let text = format!("no snapshot is left: {listed}");
            findings.push(Finding::new(Kind::Lost, text));
        })
    }
}

/// The attempts of a round, on a thread of their own.
struct Course {
    subject: Subject,
    root: PathBuf,
    attempts: usize,
    /// What is raced against, unless that is a naive one.
    engine: Option<Engine>,
    /// Whether the program can do the same as the library.
    has_program: bool,
    random: Random,
    swaps: Arc<AtomicU64>,
    /// The program, in the workspace, before it is told what to do.
    program: Call,
}

/// What the library has in hand.
struct Engine {
    workspace: Workspace,
    backend: Arc<dyn Backend>,
    known: Vec<Snapshot>,
}

impl Course {
    fn of(round: &Round<'_>, swaps: Arc<AtomicU64>) -> Self {
        let ws = &round.sandbox.ws;
        Self {
            subject: round.subject,
            root: ws.root().to_owned(),
            engine: (round.subject == Subject::Product)
                .then(|| Engine::open(ws.root(), &ws.state(), round.strategy)),
            attempts: round.attempts,
            // A root that is a link names another workspace, which is then rightly read; and the
            // program takes git where it is not told otherwise.
            has_program: round.manner != Manner::Root && round.strategy == Strategy::Git,
            random: Random::new(!round.seed),
            swaps,
            program: ws.call(["--json"]),
        }
    }

    fn run(mut self, attempts: &SyncSender<Attempt>) {
        match self.subject {
            Subject::Product => {
                let engine = self.engine.take().expect("it is there for the product");
                self.race_the_product(engine, attempts);
            }
            Subject::NaiveReader => self.race("read", attempts, |course| {
                naive::reads(&course.root, 4);
                Outcome::done()
            }),
            Subject::NaiveWriter => self.race("write", attempts, |course| {
                naive::writes(&course.root);
                Outcome::done()
            }),
        }
    }

    fn race(
        &mut self,
        operation: &'static str,
        attempts: &SyncSender<Attempt>,
        mut work: impl FnMut(&mut Self) -> Outcome,
    ) {
        for _ in 0..self.attempts {
            let begin = self.swaps.load(Ordering::Relaxed);
            let until = Instant::now() + DEADLINE / 2;
            let mut outcome = work(self);
            // It is over sooner than anybody has a turn to swap anything.
            while self.swaps.load(Ordering::Relaxed) == begin && Instant::now() < until {
                thread::yield_now();
                outcome = work(self);
            }
            let swaps = self.swaps.load(Ordering::Relaxed) - begin;
            let attempt = Attempt {
                operation,
                outcome,
                swaps,
            };
            if attempts.send(attempt).is_err() {
                return;
            }
        }
    }

    fn race_the_product(&mut self, mut engine: Engine, attempts: &SyncSender<Attempt>) {
        for _ in 0..self.attempts {
            let begin = self.swaps.load(Ordering::Relaxed);
            let operation = *self.random.one_of(&Operation::CHOICE);
            let operation = match operation {
                Operation::Program if !self.has_program => Operation::Restore,
                other => other,
            };
            let tried = catch_unwind(AssertUnwindSafe(|| self.attempt(operation, &mut engine)));
            let outcome = tried.unwrap_or_else(|panic| {
                let text = format!("a panic: {}", what_panicked(&*panic));
                Outcome::untyped("panic", text)
            });
            let attempt = Attempt {
                operation: operation.name(),
                outcome,
                swaps: self.swaps.load(Ordering::Relaxed) - begin,
            };
            if attempts.send(attempt).is_err() {
                return;
            }
        }
    }

    fn attempt(&mut self, operation: Operation, engine: &mut Engine) -> Outcome {
        let target = self.random.one_of(&engine.known).clone();
        match operation {
            Operation::Snapshot => engine.snapshot(),
            Operation::Restore => engine.restore(target),
            Operation::Diff => engine.diff(&target),
            Operation::Recover => engine.recover(),
            Operation::Program => self.program(target.id.as_str()),
        }
    }

    /// The built program does something, and is killed one time in two.
    fn program(&mut self, target: &str) -> Outcome {
        let args: [&[&str]; 5] = [
            &["snapshot"],
            &["restore", target],
            &["restore", target],
            &["diff", target],
            &["undo"],
        ];
        let args = *self.random.one_of(&args);
        let running = self.program.clone().args(args).start();
        if self.random.once_in(2) {
            let micros = MAX_LIFE.as_micros() as usize;
            thread::sleep(Duration::from_micros(self.random.below(micros) as u64));
            running.signal(rustix::process::Signal::KILL);
        }
        let output = running.wait();
        match (output.code, checker::kind_of(&output)) {
            (0, _) => Outcome::done(),
            (137, _) => Outcome::of("killed", String::new()),
            (_, Some(kind)) => Outcome::of(kind, output.to_string()),
            (_, None) => Outcome::untyped("untyped", output.to_string()),
        }
    }
}

/// How an attempt ended.
struct Outcome {
    /// `done`, `killed`, or the kind of the error.
    what: &'static str,
    /// What the error says.
    why: String,
    /// What must not be.
    findings: Vec<Finding>,
}

impl Outcome {
    fn done() -> Self {
        Self::of("done", String::new())
    }

    fn of(what: &'static str, why: String) -> Self {
        // Nobody damages the store here.
        let is_damage = what == ErrorKind::Corrupt.as_str();
        let damage = is_damage.then(|| Finding::new(Kind::Damaged, why.clone()));
        Self {
            what,
            why,
            findings: damage.into_iter().collect(),
        }
    }

    fn untyped(what: &'static str, why: String) -> Self {
        Self {
            what,
            findings: vec![Finding::new(Kind::Untyped, why.clone())],
            why,
        }
    }

    fn failed(kind: ErrorKind, error: &dyn std::error::Error) -> Self {
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            why += &format!(": {cause}");
            source = cause.source();
        }
        Self::of(kind.as_str(), why)
    }
}

/// What is raced against.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Snapshot,
    Restore,
    Diff,
    Recover,
    Program,
}

impl Operation {
    /// Each as often as it is here.
    const CHOICE: [Self; 20] = {
        let mut all = [Self::Snapshot; 20];
        let mut at = 8;
        while at < 17 {
            all[at] = Self::Restore;
            at += 1;
        }
        all[17] = Self::Diff;
        all[18] = Self::Recover;
        all[19] = Self::Program;
        all
    };

    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Restore => "restore",
            Self::Diff => "diff with the present",
            Self::Recover => "recover",
            Self::Program => "program",
        }
    }
}

impl Engine {
    /// One with a snapshot of what is there while nobody races yet.
    fn open(root: &Path, state: &Path, strategy: Strategy) -> Self {
        let state = StateDir::open(state).expect("the state directory can be made");
        let workspace = Workspace::open(root, &state).expect("it is a workspace");
        let locked = workspace
            .clone()
            .lock(&stillframe_backends::Operation::unbounded(), DEADLINE)
            .expect("nobody holds it");
        let backend = detect(&locked, strategy)
            .expect("it is a repository")
            .backend;
        drop(locked);
        let mut engine = Self {
            workspace,
            backend,
            known: Vec::new(),
        };
        let first = engine.snapshot();
        assert_eq!(first.what, "done", "the first snapshot: {}", first.why);
        engine
    }

    fn snapshot(&mut self) -> Outcome {
        let locked = match self
            .workspace
            .clone()
            .lock(&stillframe_backends::Operation::unbounded(), DEADLINE)
        {
            Ok(locked) => locked,
            Err(e) => return Outcome::failed(e.kind(), &e),
        };
        match self.backend.snapshot(
            &stillframe_backends::Operation::unbounded(),
            &locked,
            &options(Label::MANUAL),
        ) {
            Ok(snapshot) => {
                self.known.push(snapshot);
                Outcome::done()
            }
            Err(e) => Outcome::failed(e.kind(), &e),
        }
    }

    fn restore(&mut self, snapshot: Snapshot) -> Outcome {
        let mut locked = match self
            .workspace
            .clone()
            .lock(&stillframe_backends::Operation::unbounded(), DEADLINE)
        {
            Ok(locked) => locked,
            Err(e) => return Outcome::failed(e.kind(), &e),
        };
        let goal = RestoreGoal::Snapshot {
            snapshot,
            paths: Vec::new(),
        };
        let options = RestoreOptions::new(options(Label::GUARD));
        match self.backend.restore(
            &stillframe_backends::Operation::unbounded(),
            &mut locked,
            &goal,
            &options,
        ) {
            Ok(_) => Outcome::done(),
            Err(e) => Outcome::failed(e.kind(), &e),
        }
    }

    /// A snapshot, compared with this one, with the patch.
    fn diff(&mut self, from: &Snapshot) -> Outcome {
        let taken = self.snapshot();
        let Some(now) = self.known.last().filter(|_| taken.what == "done") else {
            return taken;
        };
        let options = DiffOptions::default();
        let mut patch = Vec::new();
        match self.backend.diff(
            &stillframe_backends::Operation::unbounded(),
            &self.workspace,
            from,
            now,
            &options,
            &mut patch,
        ) {
            Ok(_) => Outcome::done(),
            Err(e) => Outcome::failed(e.kind(), &e),
        }
    }

    fn recover(&mut self) -> Outcome {
        let mut locked = match self
            .workspace
            .clone()
            .lock(&stillframe_backends::Operation::unbounded(), DEADLINE)
        {
            Ok(locked) => locked,
            Err(e) => return Outcome::failed(e.kind(), &e),
        };
        match self
            .backend
            .recover(&stillframe_backends::Operation::unbounded(), &mut locked)
        {
            Ok(_) => Outcome::done(),
            Err(e) => Outcome::failed(e.kind(), &e),
        }
    }
}

fn options(label: Label) -> SnapshotOptions {
    SnapshotOptions::new(label, Timestamp::now()).retain_content(true)
}

/// Sets a flag when it goes.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn what_panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "no reason".into())
}
