//! How long a capture goes on after it was told to stop.
//!
//! ```text
//! cargo run --release -p stillframe-benches --bin cancel -- TREE STATE_DIR [TIMES] [git|hash]
//! ```
//!
//! `TREE` is captured as often as that, each time anew, and told to stop at another time: from its
//! beginning to the end of a capture that nobody stops. It is only read. `STATE_DIR` must not
//! exist; it is made and removed. What is printed is how long it took until the call returned, and
//! how much processor time of all threads that was: on a machine that others use too, the former
//! says little.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use stillframe_backends::{
    Interrupt, Label, LockedWorkspace, Operation, SnapshotError, SnapshotOptions, StateDir,
    Strategy, Workspace, detect,
};

/// How often, if nothing else is said.
const TIMES: u32 = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut path = || arguments.next().map(PathBuf::from);
    let (Some(tree), Some(state)) = (path(), path()) else {
        return Err("usage: cancel TREE STATE_DIR [TIMES] [git|hash]".into());
    };
    let mut word = || path().map(|word| word.display().to_string());
    let times = word().map_or(Ok(TIMES), |times| times.parse())?;
    let strategy = match word().as_deref() {
        Some("hash") => Strategy::Hash,
        _ => Strategy::Git,
    };
    if state.exists() {
        return Err(format!("{} is there already", state.display()).into());
    }
    let undisturbed = measured(&tree, &state, strategy, None)?;
    let whole = undisturbed.took;
    println!("undisturbed: {} ms", whole.as_millis());
    let mut late = Vec::new();
    for time in 0..times {
        let after = whole * time / times;
        let one = measured(&tree, &state, strategy, Some(after))?;
        println!(
            "told after {} ms: {} {} ms later, {} ms of processor time",
            after.as_millis(),
            if one.is_stopped { "stopped" } else { "done" },
            one.late.as_millis(),
            one.late_cpu.as_millis(),
        );
        if one.is_stopped {
            late.push(one.late);
        }
    }
    late.sort();
    if let (Some(middle), Some(last)) = (late.get(late.len() / 2), late.last()) {
        println!(
            "of {} that were stopped: half within {} ms, all within {} ms",
            late.len(),
            middle.as_millis(),
            last.as_millis()
        );
    }
    Ok(())
}

/// A capture that was told to stop after a while.
struct Measured {
    took: Duration,
    is_stopped: bool,
    /// How long it went on then.
    late: Duration,
    /// The processor time of all threads meanwhile.
    late_cpu: Duration,
}

fn measured(
    tree: &Path,
    state: &Path,
    strategy: Strategy,
    after: Option<Duration>,
) -> Result<Measured, Box<dyn Error>> {
    let workspace = open(tree, state)?;
    let backend = detect(&workspace, strategy)?.backend;
    let interrupt = Interrupt::never();
    let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH).retain_content(true);
    let op = Operation::unbounded().cancelled_by(&interrupt);
    let (answer, took, late, late_cpu) = std::thread::scope(|scope| {
        let begun = Instant::now();
        let told = after.map(|after| {
            scope.spawn(move || {
                std::thread::sleep(after);
                let told = (Instant::now(), processor_time());
                interrupt.cancel();
                told
            })
        });
        let answer = backend.snapshot(&op, &workspace, &options);
        let (ended, cpu) = (Instant::now(), processor_time());
        let told = told.map(|told| told.join().expect("it only sleeps"));
        let (told, told_cpu) = told.unwrap_or((ended, cpu));
        let late = ended.saturating_duration_since(told);
        let late_cpu = cpu.saturating_sub(told_cpu);
        (answer, ended - begun, late, late_cpu)
    });
    drop(workspace);
    // What is removed after the call returned nobody waits for but who removes the rest.
    stillframe_backends::wait_for_removals();
    std::fs::remove_dir_all(state)?;
    let is_stopped = match answer {
        Ok(_) => false,
        Err(SnapshotError::Interrupted(_)) => true,
        Err(error) => return Err(error.into()),
    };
    Ok(Measured {
        took,
        is_stopped,
        late,
        late_cpu,
    })
}

/// That of all threads of this process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

fn open(tree: &Path, state: &Path) -> Result<LockedWorkspace, Box<dyn Error>> {
    let state = StateDir::open(state)?;
    let workspace = Workspace::open(tree, &state)?;
    Ok(workspace.lock(&Operation::unbounded(), Duration::from_secs(10))?)
}
