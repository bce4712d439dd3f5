//! The power fails at every moment of every scene, and the disk loses what it was free to lose.
//!
//! The scene is on a file system of its own, on a disk that logs what is written and when it was
//! flushed. Each state that a cut can leave is made of that log (`disk`), mounted, so that the file
//! system recovers, and looked at as after any other fault. What the command had answered before
//! the cut has to be true after it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

mod device;
mod disk;
mod fuse;
pub mod unsynced;

use device::Device;
use disk::{Cut, Entry, Image};

use crate::Output;
use crate::torture::checker::{Finding, Kind};
use crate::torture::random::Random;
use crate::torture::scene::{Scene, Stage};
use crate::torture::{Options, Refusal, Report, workers};

/// Whether the program under test is told the truth by calls that wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncing {
    /// What is synced is on the disk.
    Kept,
    /// Nothing is synced, whatever is asked for: the control. Much must be found.
    Ignored,
}

/// The scenes that the power fails in.
pub const SCENES: [Scene; 8] = [
    Scene::First,
    Scene::Edits,
    Scene::Restore,
    Scene::Rollback,
    Scene::Undo,
    Scene::Collect,
    Scene::Artifact,
    Scene::Recovery,
];

/// How the file system is mounted: as it is by default, and so that it does nothing for programs
/// that forget to sync what they rename, and may show what was in a block before.
const MOUNTS: [&str; 2] = ["", "noauto_da_alloc,data=writeback"];

/// A scene that was played once, and what happened to the disk.
struct Recording {
    stage: Stage,
    mounted_with: &'static str,
    /// The disk before.
    before: Image,
    log: Vec<Entry>,
    /// What the command answered.
    output: Output,
    /// How much of the log was there before the command, and when its answer was.
    began: usize,
    answered: usize,
}

/// Work that nobody does: a scene on a file system that is mounted so.
struct Part {
    scene: Scene,
    mounted_with: &'static str,
    /// How many states are wanted.
    share: usize,
    /// Counted from the beginning of all: when it ends, however many there were.
    ends_after: Duration,
}

/// Cuts the power in the scenes until as many states as are wanted were looked at, or the time is
/// over.
///
/// [`Report::hit`] counts the states that a file system could be mounted from, no two of one
/// recording the same. A scene is played anew when there are no more.
pub fn run(scenes: &[Scene], syncing: Syncing, options: &Options) -> Result<Report, Refusal> {
    let begin = Instant::now();
    let parts = Mutex::new(parts(scenes, options));
    workers::all("power", options, |worker| {
        let device = Device::new()?;
        let empty = device::empty_file_system()?;
        let mut report = Report::new("power");
        let mut random = Random::new(options.seed.wrapping_mul(1000).wrapping_add(worker));
        loop {
            let next = parts
                .lock()
                .expect("nobody panics with the lock")
                .pop_front();
            let Some(part) = next else {
                return Ok(report);
            };
            let mut left = part.share;
            while left > 0 && begin.elapsed() < part.ends_after {
                let launcher = &options.launcher;
                let recording =
                    Recording::of(&part, &device, &empty, syncing, launcher, &mut random)?;
                report.count("played", recording.what());
                for cut in recording.cuts(left, &mut random) {
                    if begin.elapsed() >= part.ends_after {
                        break;
                    }
                    left -= 1;
                    recording.look(&cut, &device, options.seed, &mut report);
                }
            }
        }
    })
}

/// Each scene with each way to mount, with its share of the states and of the time.
fn parts(scenes: &[Scene], options: &Options) -> VecDeque<Part> {
    let all = scenes
        .iter()
        .flat_map(|scene| MOUNTS.map(|mount| (*scene, mount)));
    let all: Vec<_> = all.collect();
    let share = options.operations.div_ceil(all.len().max(1));
    let turns = u32::try_from(all.len().max(1)).expect("scenes are few");
    // As many go on at the same time as there are workers.
    let workers = u32::try_from(options.workers).unwrap_or(1).clamp(1, turns);
    let turn = options.time / turns.div_ceil(workers);
    all.into_iter()
        .zip(0..)
        .map(|((scene, mounted_with), number)| Part {
            scene,
            mounted_with,
            share,
            ends_after: turn * (number / workers + 1),
        })
        .collect()
}

impl Recording {
    /// Plays the scene once, undisturbed, and records it.
    fn of(
        part: &Part,
        device: &Device,
        empty: &Image,
        syncing: Syncing,
        launcher: &Path,
        random: &mut Random,
    ) -> Result<Self, Refusal> {
        device.load(empty.clone());
        let mounted = device.mount(part.mounted_with).map_err(cannot)?;
        let stage = part.scene.below(device.top());
        // Everything that was there before is on the disk.
        mounted.unmount();
        let mut before = device.image();
        if part.scene == Scene::Recovery {
            before = half_way(&stage, part, before, device, random)?;
        }
        device.load(before.clone());
        let mounted = device.mount(part.mounted_with).map_err(cannot)?;
        let began = device.happened();
        let call = match syncing {
            Syncing::Kept => stage.call(),
            Syncing::Ignored => stage.call().through(launcher, [unsynced::WITHOUT_SYNC]),
        };
        let output = call.run();
        let answered = device.happened();
        if syncing == Syncing::Ignored && output.code == unsynced::REFUSED {
            return Err(Refusal::Machine(output.stderr_text()));
        }
        stage.has_worked(&output);
        // What nobody waited for is written in the end, and may be lost on the way.
        mounted.unmount();
        Ok(Self {
            stage,
            mounted_with: part.mounted_with,
            log: device.load(before.clone()),
            before,
            output,
            began,
            answered,
        })
    }

    fn what(&self) -> String {
        let mounted_with = match self.mounted_with {
            "" => "ext4",
            options => options,
        };
        format!("{}, {mounted_with}", self.stage.scene)
    }

    /// Cuts during the command and after it. The first is the moment of the answer, and leaves
    /// nothing that was not flushed.
    fn cuts(&self, wanted: usize, random: &mut Random) -> Vec<Cut> {
        disk::cuts(&self.log, self.began, self.answered, wanted, random)
    }

    /// Lets the power fail so, and looks at what is left.
    fn look(&self, cut: &Cut, device: &Device, seed: u64, report: &mut Report) {
        report.tried += 1;
        let case = format!("{}, seed {seed}, {cut} of {}", self.what(), self.log.len());
        let is_answered = cut.at >= self.answered;
        device.load(cut.image(&self.before, &self.log));
        let mut mounted = device.mount(self.mounted_with);
        if mounted.is_err() {
            report.count("file system", "repaired");
            device.repair();
            mounted = device.mount(self.mounted_with);
        }
        let Ok(mounted) = mounted else {
            // Nothing above a file system outlives it.
            report.count("file system", "lost");
            return;
        };
        report.hit += 1;
        report.count("scene", self.stage.scene.to_string());
        report.count(
            "cut",
            match is_answered {
                true => "after the answer",
                false => "before the answer",
            },
        );
        if cut.is_reordered() {
            report.count("left", "reordered");
        }
        if cut.is_torn() {
            report.count("left", "torn");
        }
        let answered = is_answered.then_some(&self.output);
        // What the cut leaves may be such that the walker or git cannot go on.
        let looked = catch_unwind(AssertUnwindSafe(|| self.stage.outlives(answered)));
        let findings = looked.unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().cloned();
            let why = why.unwrap_or_else(|| "no reason".into());
            let text = format!("the checker cannot go on: {why}");
            vec![Finding::new(Kind::Stuck, text)]
        });
        report.find(&case, findings);
        mounted.unmount();
    }
}

/// A disk on which a power cut has left a restore that the next command has to finish. Its restore
/// is begun on `before`.
///
/// # Panics
///
/// If there is no such cut.
fn half_way(
    stage: &Stage,
    part: &Part,
    before: Image,
    device: &Device,
    random: &mut Random,
) -> Result<Image, Refusal> {
    device.load(before.clone());
    let mounted = device.mount(part.mounted_with).map_err(cannot)?;
    let began = device.happened();
    stage.restore().run().ok();
    let answered = device.happened();
    mounted.unmount();
    let log = device.load(before.clone());
    // What is done in the workspace comes last.
    let mut places: Vec<usize> = (began.midpoint(answered)..answered).collect();
    random.shuffle(&mut places);
    for at in places {
        let image = Cut::at(&log, at, random).image(&before, &log);
        device.load(image.clone());
        let Ok(mounted) = device.mount(part.mounted_with) else {
            continue;
        };
        let is_finished_by_the_next = stage.is_changed_by(stage.call());
        mounted.unmount();
        if is_finished_by_the_next {
            return Ok(image);
        }
    }
    panic!("no power cut is in the middle of a restore");
}

fn cannot(e: nix::errno::Errno) -> Refusal {
    Refusal::Mounts(format!("ext4: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_is_mounted_in_every_way_and_has_its_time() {
        let mut options = Options::new("torture".into()).operations(100);
        options.workers = 2;
        options.time = Duration::from_secs(80);
        let parts = parts(&SCENES, &options);
        assert_eq!(parts.len(), 16);
        assert!(parts.iter().all(|part| part.share == 7));
        let ends: Vec<u64> = parts.iter().map(|part| part.ends_after.as_secs()).collect();
        assert_eq!(ends[..4], [10, 10, 20, 20]);
        assert_eq!(ends[15], 80);
    }
}
