//! What an engine is like with much in its log and many sessions.
//!
//! ```text
//! cargo run --release -p stillframe-benches --bin scale -- DIR [RUNS] [EVENTS]
//! ```
//!
//! `DIR` must not exist; it is made and removed, and what is measured is what its file system can
//! do. A log with that many runs and events (10,000 and 100,000 if nothing else is said) is made in
//! `/dev/shm` where there is one, since every commit is synced, and copied to `DIR`. Each part is a
//! process of its own:
//!
//! - `open`: how long until an engine takes work, in a new process each time, and how long a page
//!   of 100 events takes at several places of the log.
//! - `idle`: what 1,000 sessions that have all had a run hold, each with its handle and a reader of
//!   its events, above that log.
//! - `work`: 64 sessions at once, first in 8 workspaces and then without any, each with a reader
//!   that follows. Every event that an adapter was told of has to be in the log once, every
//!   session's numbers without a gap, and the readers have to have seen the same: else the program
//!   fails. In turns with that, what bare SQLite commits on the same file system, one row each,
//!   synced as ours are.
//! - `write` and `replay`: how fast events are written, one by one, by 40 at once and as batches, and
//!   how fast the whole log is read; in turns with bare SQLite, with the same rows.

#![expect(
    clippy::disallowed_methods,
    reason = "the parts are processes of their own"
)]

mod emitting;

use std::collections::HashSet;
use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use stillframe::events::{EventQuery, EventType};
use stillframe::options::RunQuery;
use stillframe::records::EventId;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Cursor, Engine, EngineOptions, Event, EventStream,
    RunContext, RunOptions, SessionManager, WorkspaceOptions,
};

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much the log has, if nothing else is said.
const RUNS: usize = 10_000;
const EVENTS: usize = 100_000;
/// How many sessions share them; half of all runs are in the first.
const SESSIONS: usize = 100;
/// What the engine adds to a run's events of its own: that it began, and that it ended.
const EVENTS_OF_A_RUN: usize = 2;

/// How often an engine is started.
const STARTS: usize = 9;
/// How often each page is read, and how much is on it.
const READS: usize = 51;
const PAGE: u64 = 100;

/// How many sessions are idle.
const IDLE: usize = 1_000;
/// How long they are watched being idle.
const IDLE_FOR: Duration = Duration::from_secs(5);

/// How many sessions work at once, and in how many workspaces.
const WORKING: usize = 64;
const WORKSPACES: usize = 8;
/// How often they do, and how many events each emits in each of its runs.
const ROUNDS: usize = 5;
const EMITTED: usize = 40;
/// How many commits SQLite has behind it when it is measured: its log begins anew after a thousand
/// pages.
const WARM_UP: usize = 5_000;
/// How long SQLite commits in each round.
const SQLITE_FOR: Duration = Duration::from_secs(2);

fn main() -> Answer<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(first) = arguments.next().map(PathBuf::from) else {
        return Err("usage: scale DIR [RUNS] [EVENTS]".into());
    };
    let rest: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let number = |at: usize, default| match rest.get(at) {
        Some(word) => word.display().to_string().parse::<usize>(),
        None => Ok(default),
    };
    let place = || rest.first().cloned().ok_or("which directory?");
    match first.to_str() {
        Some("--build") => in_runtime(build(place()?, number(1, RUNS)?, number(2, EVENTS)?)),
        Some("--start") => in_runtime(start(place()?)),
        Some("--pages") => in_runtime(pages(place()?)),
        Some("--idle") => in_runtime(idle(place()?)),
        Some("--work") => in_runtime(work(place()?)),
        Some("--write") => in_runtime(emitting::write(place()?)),
        Some("--replay") => in_runtime(emitting::replay(place()?)),
        _ => all(&first, number(0, RUNS)?, number(1, EVENTS)?),
    }
}

fn in_runtime(part: impl Future<Output = Answer<()>>) -> Answer<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(part)
}

/// Every part, one after the other.
fn all(dir: &Path, runs: usize, events: usize) -> Answer<()> {
    if dir.exists() {
        return Err(format!("{} is there already", dir.display()).into());
    }
    std::fs::create_dir(dir)?;
    let result = parts(&std::path::absolute(dir)?, runs, events);
    let removed = std::fs::remove_dir_all(dir);
    result?;
    Ok(removed?)
}

fn parts(dir: &Path, runs: usize, events: usize) -> Answer<()> {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => tempfile::tempdir_in(memory)?,
        false => tempfile::tempdir_in(dir)?,
    };
    let (built, state) = (made.path().join("state"), dir.join("state"));
    let begun = Instant::now();
    part("--build", &built, &[runs, events])?;
    println!("the log was made in {} s", begun.elapsed().as_secs());
    println!();
    println!("| | Measured | Asked |");
    println!("|---|--:|--:|");
    copy(&built, &state)?;
    rustix::fs::sync();
    let small = dir.join("small");
    part("--build", &small, &[4, 10])?;
    let (mut starts, mut of_small) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        for (state, times) in [(&state, &mut starts), (&small, &mut of_small)] {
            let micros: u64 = part("--start", state, &[])?.trim().parse()?;
            times.push(Duration::from_micros(micros));
        }
    }
    row(
        &format!("opening, {runs} runs, {events} events"),
        &mut starts,
        "2 s",
    );
    println!(
        "| the same, in times of opening with 4 runs | {} | 1.5 |",
        in_shares_of(&mut starts, &mut of_small)
    );
    print!("{}", part("--pages", &state, &[])?);
    print!("{}", part("--idle", &state, &[])?);
    print!("{}", part("--work", dir, &[])?);
    print!("{}", part("--write", dir, &[])?);
    print!("{}", part("--replay", &state, &[])?);
    Ok(())
}

/// Runs a part in a process of its own; answers with what it prints.
fn part(name: &str, place: &Path, numbers: &[usize]) -> Answer<String> {
    let output = Command::new(std::env::current_exe()?)
        .arg(name)
        .arg(place)
        .args(numbers.iter().map(usize::to_string))
        .stderr(std::process::Stdio::inherit())
        .output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("{name} ended with {}", output.status).into()),
    }
}

/// Copies a directory of files and directories.
fn copy(from: &Path, to: &Path) -> Answer<()> {
    std::fs::create_dir(to)?;
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    for entry in std::fs::read_dir(from)? {
        let (from, to) = (entry?.path(), to);
        let to = to.join(from.file_name().ok_or("an entry has a name")?);
        match from.is_dir() {
            true => copy(&from, &to)?,
            false => drop(std::fs::copy(&from, &to)?),
        }
    }
    Ok(())
}

/// The median of one in medians of the other.
fn in_shares_of(these: &mut [Duration], those: &mut [Duration]) -> String {
    these.sort();
    those.sort();
    let middle = |times: &[Duration]| {
        times
            .get(times.len() / 2)
            .map_or(0.0, Duration::as_secs_f64)
    };
    format!("{:.2}", middle(these) / middle(those))
}

/// Prints a row of the table: the median, and the longest.
fn row(what: &str, times: &mut [Duration], asked: &str) {
    times.sort();
    if let (Some(middle), Some(last)) = (times.get(times.len() / 2), times.last()) {
        let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
        println!(
            "| {what} | {:.2} ms, at most {:.2} | {asked} |",
            ms(middle),
            ms(last)
        );
    }
}

async fn started(state: &Path) -> Answer<Engine> {
    let options = EngineOptions::default()
        .state_dir(state)
        .max_operations(2 * WORKING);
    Ok(Engine::start(options).await?)
}

/// Emits events and does nothing else; notes what it was told of them.
struct Emits {
    count: usize,
    noted: Arc<Mutex<Vec<EventId>>>,
}

impl Emits {
    fn new(count: usize) -> Self {
        let noted = Arc::default();
        Self { count, noted }
    }
}

impl Adapter for Emits {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        for at in 0..self.count {
            let data = json!({ "at": at, "path": "src/some/file.rs", "bytes": 4_096 });
            let event = context.emit(EventType::new("noted"), data).await?;
            let mut noted = self.noted.lock().unwrap_or_else(|e| e.into_inner());
            noted.push(event.id);
        }
        Ok(AdapterOutput::empty())
    }
}

/// Makes a log.
async fn build(state: PathBuf, runs: usize, events: usize) -> Answer<()> {
    let engine = started(&state).await?;
    let mut sessions = Vec::new();
    for at in 0..SESSIONS.min(runs) {
        sessions.push(engine.session(format!("session-{at}")).await?);
    }
    // Making and starting a session are two.
    let own = events.saturating_sub(2 * sessions.len() + EVENTS_OF_A_RUN * runs);
    let next = Arc::new(Mutex::new(0..runs));
    let mut workers = Vec::new();
    for _ in 0..16 {
        let (sessions, next) = (sessions.clone(), Arc::clone(&next));
        workers.push(tokio::spawn(async move {
            loop {
                let at = next.lock().unwrap_or_else(|e| e.into_inner()).next();
                let Some(at) = at else {
                    return Answer::Ok(());
                };
                let session = match at % 2 {
                    0 => &sessions[0],
                    _ => &sessions[(at / 2) % sessions.len()],
                };
                let count = own * (at + 1) / runs - own * at / runs;
                let options = RunOptions::new("noting");
                session.execute_run(options, Emits::new(count)).await?;
            }
        }));
    }
    for worker in workers {
        worker.await??;
    }
    engine.shutdown().await?;
    Ok(())
}

/// Prints how many microseconds it takes until an engine takes work.
async fn start(state: PathBuf) -> Answer<()> {
    let begun = Instant::now();
    let engine = started(&state).await?;
    println!("{}", begun.elapsed().as_micros());
    engine.shutdown().await?;
    Ok(())
}

/// Prints how long pages of events take.
async fn pages(state: PathBuf) -> Answer<()> {
    let engine = started(&state).await?;
    let all = engine.events(EventQuery::all()).await?;
    let id = all.first().ok_or("the log is empty")?.session_id.clone();
    let session = EventQuery::session(id.clone());
    let last = engine.events(session.clone()).await?.len() as u64;
    println!(
        "| events in the log, and of the largest session | {}, {last} | |",
        all.len()
    );
    let at = |share: usize| &all[(all.len() - 1) * share / 100];
    let late = at(95)
        .run_id
        .clone()
        .ok_or("only sessions begin without a run")?;
    let cases = [
        ("one session, the first", session.clone().after(0)),
        (
            "one session, in the middle",
            session.clone().after(last / 2),
        ),
        ("one session, the last", session.clone().after(last - PAGE)),
        ("all sessions, the first", EventQuery::all()),
        (
            "all sessions, since the middle",
            EventQuery::all().since(at(50).timestamp),
        ),
        (
            "all sessions, since near the end",
            EventQuery::all().since(at(99).timestamp),
        ),
        (
            "one session, since near its end",
            session.clone().since(at(98).timestamp),
        ),
        ("of one run near the end", EventQuery::all().run(late)),
        (
            "one session, of a type that there is not",
            session.of_type(EventType::new("nothing")),
        ),
    ];
    for (what, query) in cases {
        let query = query.limit(PAGE);
        let mut times = Vec::new();
        for _ in 0..READS {
            let begun = Instant::now();
            let page = engine.events(query.clone()).await?;
            times.push(begun.elapsed());
            if page.is_empty() != what.ends_with("there is not") {
                return Err(format!("{what}: {} events", page.len()).into());
            }
        }
        row(
            &format!("a page of {PAGE} events: {what}"),
            &mut times,
            "5 ms",
        );
    }
    let cases = [
        ("all sessions, the newest", RunQuery::all()),
        ("one session, the newest", RunQuery::session(id)),
        (
            "one session, one run only",
            RunQuery::session("session-99".parse()?),
        ),
    ];
    for (what, query) in cases {
        let mut times = Vec::new();
        for _ in 0..READS {
            let begun = Instant::now();
            engine.runs(query.clone().limit(PAGE)).await?;
            times.push(begun.elapsed());
        }
        row(&format!("a page of {PAGE} runs: {what}"), &mut times, "");
    }
    engine.shutdown().await?;
    Ok(())
}

/// Holds sessions, and prints what that takes.
async fn idle(state: PathBuf) -> Answer<()> {
    let engine = started(&state).await?;
    let before = Memory::now()?;
    let mut held: Vec<(SessionManager, EventStream)> = Vec::new();
    for at in 0..IDLE {
        let session = engine.session(format!("idle-{at}")).await?;
        session
            .execute_run(RunOptions::new("one"), Emits::new(1))
            .await?;
        let mut events = session.events(Cursor::start());
        // Made, started, begun, noted, ended.
        while events.cursor().sequence() < 5 {
            events.next().await.ok_or("the stream ended")??;
        }
        held.push((session, events));
    }
    let cpu = processor_time();
    tokio::time::sleep(IDLE_FOR).await;
    let used = (processor_time() - cpu).as_secs_f64() / IDLE_FOR.as_secs_f64();
    let after = Memory::now()?;
    println!(
        "| resident, an engine that was started | {} | |",
        mib(before.resident)
    );
    println!(
        "| resident, {} idle sessions with readers | {} | 256 MiB |",
        held.len(),
        mib(after.resident)
    );
    println!(
        "| the most that was resident | {} | 256 MiB |",
        mib(after.peak)
    );
    println!(
        "| processor time while they are idle | {:.1} % of a core | |",
        used * 100.0
    );
    drop(held);
    engine.shutdown().await?;
    Ok(())
}

/// What a process holds, in KiB.
struct Memory {
    resident: u64,
    peak: u64,
}

impl Memory {
    fn now() -> Answer<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| -> Answer<u64> {
            let mut lines = status.lines();
            let line = lines
                .find_map(|line| line.strip_prefix(name))
                .ok_or("no such line")?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        let (resident, peak) = (field("VmRSS:")?, field("VmHWM:")?);
        Ok(Self { resident, peak })
    }
}

fn mib(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1_024.0)
}

/// That of all threads of this process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = time.tv_sec.unsigned_abs();
    Duration::new(seconds, time.tv_nsec.unsigned_abs() as u32)
}

/// Has sessions work at once, in turns with bare SQLite.
async fn work(dir: PathBuf) -> Answer<()> {
    let mut workspaces = Vec::new();
    for at in 0..WORKSPACES {
        let workspace = dir.join(format!("workspace-{at}"));
        std::fs::create_dir(&workspace)?;
        for file in 0..20 {
            let text = format!("{at} {file}\n").repeat(500);
            std::fs::write(workspace.join(format!("file-{file}")), text)?;
        }
        workspaces.push(workspace);
    }
    let engine = started(&dir.join("work")).await?;
    let mut bare = Bare::open(&dir.join("bare.db"))?;
    let (mut in_workspaces, mut without, mut commits) = (Rate::new(), Rate::new(), Rate::new());
    together(&engine, "warm-up", &workspaces).await?;
    for round in 0..ROUNDS {
        let begun = Instant::now();
        let count = together(&engine, &format!("in-{round}"), &workspaces).await?;
        in_workspaces.add(count, begun.elapsed());
        let (count, time) = bare.commit_for(SQLITE_FOR)?;
        commits.add(count, time);
        let begun = Instant::now();
        let count = together(&engine, &format!("out-{round}"), &[]).await?;
        without.add(count, begun.elapsed());
        let (count, time) = bare.commit_for(SQLITE_FOR)?;
        commits.add(count, time);
    }
    engine.shutdown().await?;
    let base = commits.median();
    println!(
        "| bare SQLite, durable commits a second | {} | |",
        commits.text()
    );
    for (what, rate) in [
        (format!("in {WORKSPACES} workspaces"), in_workspaces),
        ("without workspaces".to_owned(), without),
    ] {
        let ratio = rate.median() / base;
        println!(
            "| {WORKING} sessions at once {what}, events a second, nothing lost | {}: {ratio:.2} of SQLite's | none lost |",
            rate.text()
        );
    }
    Ok(())
}

/// One run of each session at the same time; answers with how many events are in the log of it.
/// Fails if one is missing.
async fn together(engine: &Engine, name: &str, workspaces: &[PathBuf]) -> Answer<usize> {
    let mut tasks = Vec::new();
    for at in 0..WORKING {
        let session = engine.session(format!("{name}-{at}")).await?;
        let mut options = RunOptions::new("noting");
        if !workspaces.is_empty() {
            let workspace = &workspaces[at % workspaces.len()];
            options = options.workspace(WorkspaceOptions::at(workspace));
        }
        tasks.push(tokio::spawn(follow(engine.clone(), session, options)));
    }
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(count)
}

/// A run of a session, with a reader that follows it.
async fn follow(engine: Engine, session: SessionManager, options: RunOptions) -> Answer<usize> {
    let mut reader = session.events(Cursor::start());
    let adapter = Emits::new(EMITTED);
    let noted = Arc::clone(&adapter.noted);
    let run = session.execute_run(options, adapter);
    let follows = async {
        let mut seen: Vec<Event> = Vec::new();
        while seen
            .last()
            .is_none_or(|event| event.event_type != EventType::RUN_COMPLETED)
        {
            seen.push(reader.next().await.ok_or("the stream ended")??);
        }
        Answer::Ok(seen)
    };
    let (outcome, seen) = tokio::join!(run, follows);
    let (run_id, seen) = (outcome?.run_id, seen?);
    let kept = engine
        .events(EventQuery::session(session.id().clone()))
        .await?;
    let numbers = kept.iter().map(|event| event.sequence);
    if !numbers.eq(1..=kept.len() as u64) {
        return Err(format!("the events of {} have a gap", session.id()).into());
    }
    if kept != seen {
        return Err(format!("the reader of {} saw something else", session.id()).into());
    }
    let ids: HashSet<&EventId> = kept.iter().map(|event| &event.id).collect();
    let noted = noted.lock().unwrap_or_else(|e| e.into_inner());
    if noted.len() != EMITTED || ids.len() != kept.len() || !noted.iter().all(|id| ids.contains(id))
    {
        return Err(format!("an event of {run_id} is lost").into());
    }
    Ok(kept.len())
}

/// SQLite, with nothing above it.
struct Bare(rusqlite::Connection);

impl Bare {
    fn open(path: &Path) -> Answer<Self> {
        let connection = rusqlite::Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = OFF;
             CREATE TABLE events (position INTEGER PRIMARY KEY, data TEXT NOT NULL);",
        )?;
        let mut bare = Self(connection);
        // A log that still grows costs the file system more than one that is written over, as ours
        // is by then.
        for _ in 0..WARM_UP {
            bare.commit()?;
        }
        bare.0.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(bare)
    }

    fn commit(&mut self) -> Answer<()> {
        let data = "x".repeat(200);
        let insert = "INSERT INTO events (data) VALUES (?1)";
        self.0.prepare_cached(insert)?.execute([data])?;
        Ok(())
    }

    /// Commits one row after the other for as long; answers with how many, and how long it took.
    fn commit_for(&mut self, time: Duration) -> Answer<(usize, Duration)> {
        let begun = Instant::now();
        let mut count = 0;
        while begun.elapsed() < time {
            self.commit()?;
            count += 1;
        }
        Ok((count, begun.elapsed()))
    }
}

/// How much was done in each round.
struct Rate(Vec<f64>);

impl Rate {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, count: usize, time: Duration) {
        self.0.push(count as f64 / time.as_secs_f64());
        self.0.sort_by(f64::total_cmp);
    }

    /// In a second.
    fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    fn text(&self) -> String {
        let bound = |rate: Option<&f64>| rate.copied().unwrap_or(0.0);
        let (least, most) = (bound(self.0.first()), bound(self.0.last()));
        format!("{:.0} ({least:.0} to {most:.0})", self.median())
    }
}
