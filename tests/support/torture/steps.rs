//! Runs of steps that ask, commit and are taken back are killed at random moments, with all that
//! they started, and go on; so is whoever answers them.

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
use crate::{Output, Running, TestWorkspace};

/// The longest that a command lives before it is killed: some steps of a run are done by then, and
/// seldom all.
const MAX_LIFE: Duration = Duration::from_millis(250);

/// How often a run is killed at most before it is let go to its end.
const MAX_KILLS: usize = 60;

/// What `run` exits with when the run rests until somebody answers.
const WAITS: i32 = 75;

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
        step(
            "keep",
            "ask",
            "echo $STILLFRAME_ANSWER >> heard",
            "ask = \"go on?\"\nchoices = [\"yes\", \"no\"]",
        ),
        step("keep", "last", "echo last >> a", "commit = \"saved\""),
    ]
    .concat()
}

/// How many that are on record: the commit is one of its own.
const STEPS: usize = 8;

/// The steps of a run that fails and is taken back.
fn doomed(log: &str) -> String {
    let command = |name: &str, work: &str| {
        format!("[[step]]\nname = \"{name}\"\ncommand = '''\necho {name} >> {log}\n{work}\n'''\n\n")
    };
    command("ruin", "echo ruin >> a; rm kept; echo x > ruined") + &command("fail", "exit 3")
}

/// The file that somebody else works on meanwhile.
const MINE: &str = "mine";

/// What the workspace has when all is done, each step having had its effect once.
const DONE: [(&str, &str); 6] = [
    ("a", "first\nline\nlast\n"),
    ("made", "new\n"),
    ("dir/x", "x\n"),
    ("removed", "removed\n"),
    ("flaky", "luck\n"),
    ("kept", "kept\n"),
];

/// Begins runs, kills them and whoever resumes them, and looks until as many were killed as are
/// wanted, or the time is over.
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
    /// The file of the run that is taken back.
    doomed: String,
    /// Where each command says that it was begun.
    log: String,
    /// The answer that was acknowledged first.
    answered: Option<&'static str>,
    /// What somebody else has written in the workspace.
    mine: String,
    /// What was completed when somebody looked, with its record, and how often it had been begun.
    completed: BTreeMap<String, (Value, usize)>,
}

impl Day {
    fn new(number: usize) -> Self {
        let mut ws = TestWorkspace::below(&sandbox::place());
        ws.damages_the_store();
        ws.git(["init", "-q"]);
        ws.git(["config", "user.name", "Somebody"]);
        ws.git(["config", "user.email", "somebody@example.com"]);
        for (name, text) in [("a", "first\n"), ("gone", "gone\n"), ("kept", "kept\n")] {
            ws.write(name, text);
        }
        ws.commit_settled("first");
        let outside = ws.outside();
        fs::create_dir_all(&outside).expect("a directory can be made");
        let text = |name: &str| outside.join(name).to_string_lossy().into_owned();
        let (file, doom, log) = (text("plan.toml"), text("doomed.toml"), text("log"));
        fs::write(&file, plan(&log)).expect("the plan can be written");
        fs::write(&doom, doomed(&log)).expect("the plan can be written");
        fs::write(&log, "").expect("the log can be written");
        Self {
            ws,
            id: format!("day-{number}"),
            file,
            doomed: doom,
            log,
            answered: None,
            mine: String::new(),
            completed: BTreeMap::new(),
        }
    }

    fn live(mut self, random: &mut Random, report: &mut Report) -> Result<(), Finding> {
        let args = [
            "--json", "run", "--run-id", &self.id, "--wait", "0s", "--steps", &self.file,
        ];
        let args = args.map(str::to_owned);
        for _ in 0..MAX_KILLS {
            let output = self.disturbed(&args, random, report);
            if random.once_in(3) {
                self.look(report)?;
            }
            if output.code == WAITS {
                self.answer(random, report)?;
            }
            if random.once_in(5) {
                self.edit()?;
            }
            if output.code == 0 && output.stdout_text().contains("\"is_stored\":true") {
                break;
            }
        }
        let args: Vec<&str> = args[1..].iter().map(String::as_str).collect();
        if self.ws.try_json(&args).code == WAITS {
            let question = self.question()?;
            checker::undisturbed(&self.ws, &["answer", &question, "no"])?;
            self.answered.get_or_insert("no");
        }
        let output = checker::undisturbed(&self.ws, &args)?;
        let document = output.json();
        require(document["status"] == "completed", || {
            format!("it did not complete: {output}")
        })?;
        self.look(report)?;
        self.look_at_the_end()?;
        self.be_taken_back(random, report)?;
        checker::undisturbed(&self.ws, &["verify"]).map(|_| ())
    }

    /// Somebody works here while nobody has the run. What the run left is on record by then, so
    /// that it is not taken for its work.
    fn edit(&mut self) -> Result<(), Finding> {
        checker::undisturbed(&self.ws, &["list"])?;
        let text = format!("{}line {}\n", self.mine, self.mine.len());
        self.ws.write(MINE, &text);
        self.mine = text;
        Ok(())
    }

    /// Does `args`, or something that recovers what the last one left, and kills it.
    fn disturbed(&self, args: &[String], random: &mut Random, report: &mut Report) -> Output {
        // Whoever recovers is killed too.
        let call = match random.below(4) {
            0 => self.ws.call(["--json", "list"]),
            _ => self.ws.call(args),
        };
        let running = call.start();
        let micros = MAX_LIFE.as_micros() as usize;
        thread::sleep(Duration::from_micros(random.below(micros) as u64));
        kill_with_all_below(&running);
        let output = running.wait();
        self.remove_locks_of_git();
        report.tried += 1;
        report.hit += usize::from(output.code == 137);
        output
    }

    /// The question that waits.
    fn question(&self) -> Result<String, Finding> {
        let open = checker::undisturbed(&self.ws, &["answer"])?.json();
        let own: Vec<&str> = open
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|question| question["question_id"].as_str())
            .collect();
        require(own.len() == 1, || format!("one question waits: {open}"))?;
        Ok(own[0].to_owned())
    }

    /// Answers, perhaps not to the end, and perhaps again.
    fn answer(&mut self, random: &mut Random, report: &mut Report) -> Result<(), Finding> {
        let question = self.question()?;
        for _ in 0..2 {
            let answer = if random.once_in(2) { "yes" } else { "no" };
            let running = self
                .ws
                .call(["--json", "answer", &question, answer])
                .start();
            if random.once_in(2) {
                thread::sleep(Duration::from_micros(random.below(30_000) as u64));
                kill_with_all_below(&running);
            }
            let output = running.wait();
            report.tried += 1;
            report.hit += usize::from(output.code == 137);
            report.count("answers", output.code.to_string());
            match output.code {
                0 => {
                    require(self.answered.is_none(), || {
                        format!("a second answer was taken: {output}")
                    })?;
                    self.answered = Some(answer);
                }
                137 => {}
                _ => {
                    let kind = checker::kind_of(&output);
                    require(kind.is_some_and(|kind| kind == "Conflict"), || {
                        format!("it was not answered: {output}")
                    })?;
                }
            }
        }
        Ok(())
    }

    /// A run that fails, and is killed on its way: in the end it has failed, and what it did is
    /// taken back.
    fn be_taken_back(&self, random: &mut Random, report: &mut Report) -> Result<(), Finding> {
        let id = format!("{}-doomed", self.id);
        let args = [
            "--json",
            "run",
            "--run-id",
            &id,
            "--rollback-on-failure",
            "--steps",
            &self.doomed,
        ];
        let args = args.map(str::to_owned);
        for _ in 0..random.below(8) {
            self.disturbed(&args, random, report);
        }
        self.ws.call(&args).run();
        let run = checker::undisturbed(&self.ws, &["show", &id])?.json();
        let status = run["status"].as_str().unwrap_or_default();
        report.count("taken back", status);
        require(status == "failed", || format!("it is to fail: {run}"))?;
        // A rollback that recovery finished is on record like any other.
        let rollback = &run["workspace"]["rollback"]["status"];
        require(rollback == "completed", || {
            format!("it is to be taken back: {run}")
        })?;
        self.look_at_files()
    }

    /// A git that was killed leaves its locks, which nobody but the user may remove. Ours have a
    /// second name.
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
        let known = ["interrupted", "waiting_for_input", "completed"];
        require(known.contains(&&*status), || {
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
                    let before = step["snapshot_before"].as_str().unwrap_or(left);
                    let is_as = |snapshot: &str| {
                        let diff = checker::undisturbed(&self.ws, &["diff", snapshot, "now"])?;
                        let paths = diff.json()["changed_paths"].clone();
                        let others = paths.as_array().is_none_or(|paths| {
                            paths.iter().any(|path| path.as_str() != Some(MINE))
                        });
                        Ok::<_, Finding>(!others)
                    };
                    // It is gone back from before it is begun again.
                    let is_known = is_as(left)? || is_as(before)?;
                    require(is_known, || {
                        format!("the workspace is not as the log says: {step}")
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

    /// Looks whether the files are as each step having had its effect once leaves them.
    fn look_at_files(&self) -> Result<(), Finding> {
        for (name, text) in DONE {
            let found = self.ws.text(name);
            require(found == text, || {
                format!("{name} has {found:?}, not {text:?}")
            })?;
        }
        if !self.mine.is_empty() {
            let found = self.ws.text(MINE);
            require(found == self.mine, || {
                format!("{:?} was written, there is {found:?}", self.mine)
            })?;
        }
        for name in ["gone", "ruined"] {
            require(!self.ws.exists(name), || format!("{name} is there"))?;
        }
        let log = self.ws.git(["log", "--format=%s"]);
        require(log.trim() == "saved\nstep\nfirst", || {
            format!("commits: {log}")
        })?;
        let status = self.ws.git(["status", "--porcelain"]);
        let is_mine = |line: &str| line.ends_with(&format!(" {MINE}"));
        require(status.lines().all(is_mine), || format!("status: {status}"))?;
        self.ws.git(["fsck", "--strict"]);
        Ok(())
    }

    /// Looks whether each step had its effect once, and what is on record of that.
    fn look_at_the_end(&self) -> Result<(), Finding> {
        self.look_at_files()?;
        require(self.completed.len() == STEPS, || {
            format!("not every step is on record: {:?}", self.completed.keys())
        })?;
        let run = checker::undisturbed(&self.ws, &["show", &self.id])?.json();
        let heard = self.ws.text("heard");
        let questions = run["questions"].as_array().cloned().unwrap_or_default();
        require(questions.len() == 1, || {
            format!("it asked once: {questions:?}")
        })?;
        require(questions[0]["answer"] == heard.trim(), || {
            format!("it heard {heard:?}: {questions:?}")
        })?;
        let is_first = self.answered.is_none_or(|answer| heard.trim() == answer);
        require(is_first, || {
            format!(
                "{:?} was acknowledged first, it heard {heard:?}",
                self.answered
            )
        })?;
        let head = self.ws.git(["rev-parse", "HEAD"]);
        let commits = run["commits"].as_array().cloned().unwrap_or_default();
        let is_on_record = commits.iter().any(|commit| commit["commit"] == head.trim());
        require(is_on_record && commits.len() == 1, || {
            format!("HEAD is {head}, on record is {commits:?}")
        })
    }
}

fn require(holds: bool, said: impl FnOnce() -> String) -> Result<(), Finding> {
    match holds {
        true => Ok(()),
        false => Err(Finding::new(Kind::Untrue, said())),
    }
}

/// Kills a command with every process that it has started: what goes on after it would write where
/// a resumed run works.
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
