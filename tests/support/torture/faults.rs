//! Every system call of every scene fails in turn, in each way in which it can.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::torture::call_class::CallClass;
use crate::torture::checker::{Finding, Kind};
use crate::torture::random::Random;
use crate::torture::scene::{Scene, Stage};
use crate::torture::tracer::{Injection, Refusal, Tracer};
use crate::torture::{Options, Report, workers};

/// Disturbs the scenes until as many faults as are wanted were hit, or the time is over.
///
/// Where there are fewer different faults than are wanted they are gone through again: threads
/// take turns differently. Where there are more, the seed chooses among them, for each scene as
/// many.
pub fn run(scenes: &[Scene], options: &Options) -> Result<Report, Refusal> {
    let tracer = Tracer::new(&options.launcher)?;
    let begin = Instant::now();
    let work = Mutex::new(Work::new(scenes, options));
    workers::all("faults", options, |_| {
        worker(&tracer, &work, begin, options)
    })
}

/// Disturbs a scene at one call alone, to see again what was found. Which of the calls is the nth
/// may depend on the threads that make them.
pub fn one(scene: Scene, injection: &Injection, options: &Options) -> Result<Report, Refusal> {
    let tracer = Tracer::new(&options.launcher)?;
    let begin = Instant::now();
    let stage = scene.stage(&tracer)?;
    let mut report = Report::new("faults");
    report.tried = 1;
    disturb(&stage, &tracer, injection, &mut report)?;
    report.took = begin.elapsed();
    Ok(report)
}

/// Work that nobody does: scenes, each in as many parts as there are workers.
struct Work {
    parts: VecDeque<Part>,
}

/// Some of the faults of a scene: every `of`-th of them.
struct Part {
    scene: Scene,
    part: usize,
    of: usize,
    /// How many faults it is to hit.
    share: usize,
    seed: u64,
    /// Counted from the beginning of all: when it ends, however many it has hit.
    ends_after: Duration,
}

impl Work {
    fn new(scenes: &[Scene], options: &Options) -> Self {
        let of = options.workers.max(1);
        let share = options.operations.div_ceil((of * scenes.len()).max(1));
        let turns = u32::try_from(scenes.len().max(1)).expect("scenes are few");
        let turn = options.time / turns;
        let parts = scenes.iter().zip(1..).flat_map(|(scene, turn_of)| {
            (0..of).map(move |part| Part {
                scene: *scene,
                part,
                of,
                share,
                seed: options.seed,
                ends_after: turn * turn_of,
            })
        });
        Self {
            parts: parts.collect(),
        }
    }
}

fn worker(
    tracer: &Tracer,
    work: &Mutex<Work>,
    begin: Instant,
    options: &Options,
) -> Result<Report, Refusal> {
    let mut report = Report::new("faults");
    loop {
        let next = work
            .lock()
            .expect("nobody panics with the lock")
            .parts
            .pop_front();
        let Some(part) = next else {
            return Ok(report);
        };
        let stage = part.scene.stage(tracer)?;
        let mut random = Random::new(part.seed);
        let mut left = part.share;
        let mut hit = true;
        // Where nothing can be hit, nothing ever will.
        while left > 0 && begin.elapsed() < part.ends_after && std::mem::take(&mut hit) {
            let mut plan = stage.injections(tracer)?;
            plan.retain(|injection| {
                options.class.is_none_or(|class| class == injection.class)
                    && options.fault.is_none_or(|fault| fault == injection.fault)
            });
            if !options.at.is_empty() {
                let there = calls_at(&stage, tracer, &options.at)?;
                plan.retain(|injection| there.contains(&(injection.class, injection.nth)));
            }
            // The same order in every part.
            random.shuffle(&mut plan);
            for injection in plan.into_iter().skip(part.part).step_by(part.of) {
                if left == 0 || begin.elapsed() >= part.ends_after {
                    break;
                }
                report.tried += 1;
                if disturb(&stage, tracer, &injection, &mut report)? {
                    (left, hit) = (left - 1, true);
                }
                if options.is_enough(&report) {
                    return Ok(report);
                }
            }
        }
    }
}

/// The calls about paths with this part.
fn calls_at(
    stage: &Stage,
    tracer: &Tracer,
    at: &str,
) -> Result<BTreeSet<(CallClass, usize)>, Refusal> {
    let mut calls = BTreeSet::new();
    stage.begin(tracer)?;
    tracer.watch(&stage.call(), &mut |seen| {
        if seen.path.to_string_lossy().contains(at) {
            calls.insert((seen.class, seen.nth));
        }
    })?;
    Ok(calls)
}

/// Plays the scene once; answers whether the call was reached.
fn disturb(
    stage: &Stage,
    tracer: &Tracer,
    injection: &Injection,
    report: &mut Report,
) -> Result<bool, Refusal> {
    let scene = stage.scene;
    let case = format!(
        "{scene}, {} {} {}",
        injection.class, injection.nth, injection.fault
    );
    // What the program leaves may be such that the walker or git cannot go on.
    let played = catch_unwind(AssertUnwindSafe(|| stage.play(tracer, injection)));
    let trial = match played {
        Ok(trial) => trial?,
        Err(panic) => {
            let why = panic.downcast_ref::<String>().cloned();
            let why = why.unwrap_or_else(|| "no reason".into());
            let finding = Finding::new(Kind::Stuck, format!("the checker cannot go on: {why}"));
            report.find(&case, [finding]);
            return Ok(true);
        }
    };
    let Some(path) = trial.hit else {
        return Ok(false);
    };
    report.hit += 1;
    report.count("scene", scene.to_string());
    report.count("call", injection.class.to_string());
    report.count("fault", injection.fault.to_string());
    report.count("outcome", trial.outcome);
    report.find(&format!("{case} at {path:?}"), trial.findings);
    Ok(true)
}
