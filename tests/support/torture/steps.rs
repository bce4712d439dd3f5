//! Runs of steps are killed at random moments, with all that they started, and go on.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::torture::checker::{self, Finding, Kind};
use crate::torture::random::Random;
use crate::torture::{Options, Refusal, Report, sandbox, workers};
use crate::{Running, TestWorkspace};

/// The longest that a command lives before it is killed: some steps of a run are done by then, and seldom all.
const MAX_LIFE: Duration = Duration::from_millis(250);

/// How often a run is killed at most before it is let go to its end.
const MAX_KILLS: usize = 40;

/// The steps of each run. `log` is outside of the workspace: what it says no restore takes back.
fn plan(log: &str) -> String {
    let step = |phase: &str, name: &str, work: &str, more: &str| {
        format!(
            "[[step]]\nphase = \"{phase}\"\nname = \"{name}\"\n{more}\ncommand = '''\necho {name} >> {log}\n{work}\n'''\n\n"
        )
    };
    [
        step("make", "new", "echo new >> made", ""),
        step(
            "make",
            "edit",
            "echo line >> a; mkdir -p dir; echo x >> dir/x",
            "",
        ),
        step("make", "remove", "rm gone; echo removed >> removed", ""),
        step(
            "try",
            "flaky",
            &format!("test $(grep -c flaky {log}) -gt 1 && echo luck > flaky"),
            "retries = 200\nretry_delay = \"0s\"",
        ),
        step(
            "keep",
            "commit",
            "git add -A && git -c user.name=n -c user.email=e commit -q -m step",
            "",
        ),
        step("keep", "last", "echo last >> a", ""),
    ]
    .concat()
}

/// How many that are.
const STEPS: usize = 6;

/// What the workspace has when all is done, each step having had its effect once.
const DONE: [(&str, &str); 6] = [
    ("a", "first\nline\nlast\n"),
    ("made", "new\n"),
    ("dir/x", "x\n"),
    ("removed", "removed\n"),
    ("flaky", "luck\n"),
    ("kept", "kept\n"),
];

/// Begins runs, kills them and whoever resumes them, and looks until as many were killed as are wanted, or the
/// time is over.
pub fn run(options: &Options) -> Result<Report, Refusal> {
    let begin = Instant::now();
    let share = options.operations.div_ceil(options.workers.max(1));
    workers::all("steps", options, |worker| {
        let seed = options.seed.wrapping_mul(1000).wrapping_add(worker);
        let mut random = Random::new(seed);
        let mut report = Report::new("steps");
        let mut number = 0;
        while report.hit < share && begin.elapsed() < options.time && !options.is_enough(&report) {
            let case = format!("seed {seed}, run {number}");
            let found = Day::new(number).live(&mut random, &mut report);
            report.find(&case, found.err());
            number += 1;
        }
        Ok(report)
    })
}

/// One run, from its beginning to its end.
struct Day {
    ws: TestWorkspace,
    id: String,
    /// The plan's file.
    file: String,
    /// Where each command says that it was begun.
    log: String,
    /// What was completed when somebody looked, with its record, and how often it had been begun.
    completed: BTreeMap<String, (Value, usize)>,
}

impl Day {
    fn new(number: usize) -> Self {
        let mut ws = TestWorkspace::below(&sandbox::place());
        ws.damages_the_store();
        ws.git(["init", "-q"]);
        for (name, text) in [("a", "first\n"), ("gone", "gone\n"), ("kept", "kept\n")] {
            ws.write(name, text);
        }
        ws.commit_settled("first");
        let outside = ws.outside();
        fs::create_dir_all(&outside).expect("a directory can be made");
        let text = |name: &str| outside.join(name).to_string_lossy().into_owned();
        let (file, log) = (text("plan.toml"), text("log"));
        fs::write(&file, plan(&log)).expect("the plan can be written");
        fs::write(&log, "").expect("the log can be written");
        Self {
            ws,
            id: format!("day-{number}"),
            file,
            log,
            completed: BTreeMap::new(),
        }
    }

    fn live(mut self, random: &mut Random, report: &mut Report) -> Result<(), Finding> {
        let args = ["--json", "run", "--run-id", &self.id, "--steps", &self.file];
        let args = args.map(str::to_owned);
        for _ in 0..MAX_KILLS {
            // Whoever recovers is killed too.
            let call = match random.below(4) {
                0 => self.ws.call(["--json", "list"]),
                _ => self.ws.call(&args),
            };
            let running = call.start();
            let micros = MAX_LIFE.as_micros() as usize;
            thread::sleep(Duration::from_micros(random.below(micros) as u64));
            kill_with_all_below(&running);
            let output = running.wait();
            self.remove_locks_of_git();
            report.tried += 1;
            report.hit += usize::from(output.code == 137);
            if random.once_in(3) {
                self.look(report)?;
            }
            if output.code == 0 && output.stdout_text().contains("\"is_stored\":true") {
                break;
            }
        }
        let output = checker::undisturbed(
            &self.ws,
            &args[1..].iter().map(String::as_str).collect::<Vec<_>>(),
        )?;
        let document = output.json();
        require(document["status"] == "completed", || {
            format!("it did not complete: {output}")
        })?;
        self.look(report)?;
        self.look_at_the_end()
    }

    /// A git that was killed leaves its locks, which nobody but the user may remove. Ours have a second name.
    fn remove_locks_of_git(&self) {
        for name in ["index.lock", "HEAD.lock", "refs/heads/main.lock"] {
            let lock = self.ws.root().join(".git").join(name);
            let is_of_git = fs::symlink_metadata(&lock).is_ok_and(|meta| meta.nlink() == 1);
            if is_of_git {
                fs::remove_file(&lock).expect("a lock can be removed");
            }
        }
    }

    /// How often the command of a step was begun.
    fn begun(&self, name: &str) -> usize {
        let log = fs::read_to_string(&self.log).expect("the log is there");
        log.lines().filter(|line| *line == name).count()
    }

    /// Looks whether what is on record is what happened.
    fn look(&mut self, report: &mut Report) -> Result<(), Finding> {
        let shown = self.ws.try_json(["show", &self.id]);
        if shown.code != 0 {
            // It was killed before it was accepted.
            let is_unknown = checker::kind_of(&shown).is_some_and(|kind| kind == "NotFound");
            let is_early = self.completed.is_empty() && self.begun("new") == 0;
            return require(is_unknown && is_early, || {
                format!("it is not shown: {shown}")
            });
        }
        let run = shown.json();
        let status = run["status"].as_str().unwrap_or_default().to_owned();
        report.count("found", &*status);
        require(["interrupted", "completed"].contains(&&*status), || {
            format!("nobody has it, and it is {status}: {run}")
        })?;
        let sequence: Vec<u64> = self
            .events()
            .iter()
            .filter_map(|event| event["sequence"].as_u64())
            .collect();
        let gapless: Vec<u64> = (1..=sequence.len() as u64).collect();
        require(sequence == gapless, || format!("sequences: {sequence:?}"))?;
        let mut steps = BTreeMap::new();
        let phases = run["phases"].as_array().cloned().unwrap_or_default();
        for step in phases
            .iter()
            .flat_map(|p| p["steps"].as_array().cloned())
            .flatten()
        {
            let name = step["name"].as_str().unwrap_or_default().to_owned();
            steps.insert(name, step);
        }
        for (name, (record, begun)) in &self.completed {
            require(steps.get(name) == Some(record), || {
                format!(
                    "step {name} was completed: {record}; it is {:?}",
                    steps.get(name)
                )
            })?;
            require(self.begun(name) == *begun, || {
                format!("step {name} was completed and ran again")
            })?;
        }
        for (name, step) in &steps {
            let status = step["status"].as_str().unwrap_or_default();
            report.count("steps", status);
            match status {
                "completed" => {
                    let begun = self.begun(name);
                    self.completed.insert(name.clone(), (step.clone(), begun));
                }
                "interrupted" => {
                    let left = step["snapshot_after"].as_str().unwrap_or_default();
                    require(!left.is_empty(), || {
                        format!("what {name} left is lost: {step}")
                    })?;
                    let diff = checker::undisturbed(&self.ws, &["diff", left, "now"])?.json();
                    require(diff["files_changed"] == 0, || {
                        format!("the workspace is not as the log says: {diff}")
                    })?;
                }
                "pending" => {}
                _ => return require(false, || format!("step {name} is {status}")),
            }
        }
        Ok(())
    }

    fn events(&self) -> Vec<Value> {
        let session = self.ws.json(["runs"])[0]["session_id"].clone();
        let session = session.as_str().unwrap_or_default().to_owned();
        let output = self.ws.call(["events", "--session", &session]).run();
        output.json_lines()
    }

    /// Looks whether each step had its effect once.
    fn look_at_the_end(&self) -> Result<(), Finding> {
        for (name, text) in DONE {
            let found = self.ws.text(name);
            require(found == text, || {
                format!("{name} has {found:?}, not {text:?}")
            })?;
        }
        require(!self.ws.exists("gone"), || "gone is there".to_owned())?;
        let count = self.ws.git(["rev-list", "--count", "HEAD"]);
        require(count.trim() == "2", || format!("{count} commits"))?;
        let log = self.ws.git(["log", "--format=%s"]);
        require(log.trim() == "step\nfirst", || log.clone())?;
        self.ws.git(["fsck", "--strict"]);
        require(self.completed.len() == STEPS, || {
            format!("not every step is on record: {:?}", self.completed.keys())
        })?;
        checker::undisturbed(&self.ws, &["verify"]).map(|_| ())
    }
}

fn require(holds: bool, said: impl FnOnce() -> String) -> Result<(), Finding> {
    match holds {
        true => Ok(()),
        false => Err(Finding::new(Kind::Untrue, said())),
    }
}

/// Kills a command with every process that it has started: what goes on after it would write where a resumed run
/// works.
fn kill_with_all_below(running: &Running) {
    // It starts nothing more, and reaps nobody, so that no id is another's by then.
    running.signal(Signal::STOP);
    let mut doomed = vec![running.pid()];
    let mut at = 0;
    while at < doomed.len() {
        let children = children(doomed[at]);
        for child in &children {
            let _ = rustix::process::kill_process(*child, Signal::STOP);
        }
        doomed.extend(children);
        at += 1;
    }
    for pid in doomed {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// The children of a process.
fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().get().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the name, which may hold anything: the state, then the parent (proc(5)).
            let behind = stat.rsplit_once(')')?.1;
            let is_child = behind.split_ascii_whitespace().nth(1)? == parent;
            is_child.then(|| Pid::from_raw(pid)).flatten()
        })
        .collect()
}
