//! A restore is killed, and then what finishes it, and what finishes that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::torture::call_class::CallClass;
use crate::torture::fault::Fault;
use crate::torture::random::Random;
use crate::torture::scene::{Scene, Stage};
use crate::torture::tracer::{Injection, Refusal, Tracer};
use crate::torture::{Options, Report, workers};

/// How many are killed at most, one after the other.
const MAX_DEPTH: usize = 5;

/// Where a command can be killed: how many calls of each class that changes something it makes.
type Steps = BTreeMap<CallClass, usize>;

/// Kills restores and undos at random steps, then one to four commands that would finish them, and
/// looks whether the next one does, until there were as many of such chains as are wanted, or the
/// time is over.
pub fn run(options: &Options) -> Result<Report, Refusal> {
    let tracer = Tracer::new(&options.launcher)?;
    let begin = Instant::now();
    let begun = AtomicUsize::new(0);
    workers::all("recovery", options, |worker| {
        let mut report = Report::new("recovery");
        let mut random = Random::new(options.seed.wrapping_mul(1000).wrapping_add(worker));
        let mut stages = Vec::new();
        for scene in [Scene::Restore, Scene::Undo] {
            let stage = scene.stage(&tracer)?;
            let steps = steps_of(&stage, &tracer)?;
            stages.push((stage, steps));
        }
        while begin.elapsed() < options.time
            && begun.fetch_add(1, Ordering::Relaxed) < options.operations
        {
            let (stage, steps) = &stages[random.below(2)];
            chain(stage, steps, &tracer, &mut random, &mut report)?;
        }
        Ok(report)
    })
}

/// The steps of the operation, and those of the command that finishes it when it was killed half
/// way.
fn steps_of(stage: &Stage, tracer: &Tracer) -> Result<[Steps; 2], Refusal> {
    let mutating = |mut counts: Steps| {
        counts.retain(|class, _| CallClass::MUTATING.contains(class));
        counts
    };
    stage.begin(tracer)?;
    let whole = mutating(tracer.run(&stage.call(), None)?.counts);
    stage.begin(tracer)?;
    let renames = whole.get(&CallClass::Rename).copied().unwrap_or(1);
    let in_the_middle = Injection {
        class: CallClass::Rename,
        nth: renames.div_ceil(2),
        fault: Fault::Kill,
    };
    tracer.run(&stage.call(), Some(&in_the_middle))?;
    let finishing = tracer.run(&stage.sandbox.ws.call(["--json", "list"]), None)?;
    Ok([whole, mutating(finishing.counts)])
}

fn chain(
    stage: &Stage,
    [of_operation, of_recovery]: &[Steps; 2],
    tracer: &Tracer,
    random: &mut Random,
    report: &mut Report,
) -> Result<(), Refusal> {
    let depth = 2 + random.below(MAX_DEPTH - 1);
    report.tried += 1;
    stage.begin(tracer)?;
    let mut case = stage.scene.to_string();
    let mut killed = 0;
    for level in 0..depth {
        let (call, steps) = match level {
            0 => (stage.call(), of_operation),
            _ => (stage.sandbox.ws.call(["--json", "list"]), of_recovery),
        };
        let kill = somewhere(steps, random);
        let traced = tracer.run(&call, Some(&kill))?;
        if traced.hit.is_some() {
            killed += 1;
            case += &format!(", killed at {} {}", kill.class, kill.nth);
        }
        report.find(&case, crate::torture::checker::hang(&traced));
    }
    report.hit += usize::from(killed > 1);
    report.count("killed in one chain", killed.to_string());
    report.count("scene", stage.scene.to_string());
    report.find(&case, stage.aftermath(Fault::Kill));
    Ok(())
}

fn somewhere(steps: &Steps, random: &mut Random) -> Injection {
    let all: usize = steps.values().sum();
    let mut at = random.below(all.max(1));
    for (class, count) in steps {
        if at < *count {
            return Injection {
                class: *class,
                nth: at + 1,
                fault: Fault::Kill,
            };
        }
        at -= count;
    }
    Injection {
        class: CallClass::Write,
        nth: 1,
        fault: Fault::Kill,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_somewhere() {
        let steps = Steps::from([(CallClass::Write, 2), (CallClass::Rename, 1)]);
        let mut random = Random::new(1);
        let mut seen: Vec<_> = (0..200).map(|_| somewhere(&steps, &mut random)).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 3, "{seen:?}");
    }
}
