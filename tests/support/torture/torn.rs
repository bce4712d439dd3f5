//! Power goes while the journal of a restore is written: any part of what was not synced may be
//! there.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use crate::torture::call_class::CallClass;
use crate::torture::checker::{Finding, Kind};
use crate::torture::fault::Fault;
use crate::torture::random::Random;
use crate::torture::sandbox::Picture;
use crate::torture::scene::{Scene, Stage};
use crate::torture::tracer::{Injection, Refusal, Tracer};
use crate::torture::{Options, Report, checker, workers};

/// What a disk writes whole.
const SECTOR: usize = 512;

/// How often each moment is torn before the next restore is killed.
const TEARS: usize = 8;

/// Kills restores before a sync of their journal, tears what that had written, and looks whether
/// the next command finds the workspace untouched and goes on.
pub fn run(options: &Options) -> Result<Report, Refusal> {
    let tracer = Tracer::new(&options.launcher)?;
    let begin = Instant::now();
    let begun = std::sync::atomic::AtomicUsize::new(0);
    workers::all("torn", options, |worker| {
        let mut report = Report::new("torn");
        let mut random = Random::new(options.seed.wrapping_mul(1000).wrapping_add(worker));
        let mut moments = Vec::new();
        for scene in [Scene::Restore, Scene::Undo] {
            let stage = scene.stage(&tracer)?;
            moments.extend(Moment::of(stage, &tracer)?);
        }
        loop {
            for moment in &moments {
                for _ in 0..TEARS {
                    let number = begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let is_over = number >= options.operations || begin.elapsed() >= options.time;
                    if is_over || options.is_enough(&report) {
                        return Ok(report);
                    }
                    moment.tear(&tracer, &mut random, &mut report)?;
                }
            }
        }
    })
}

/// A restore that is about to sync its intent.
struct Moment {
    stage: Stage,
    kill: Injection,
    /// How much of the journal is synced already.
    synced: usize,
}

impl Moment {
    fn of(stage: Stage, tracer: &Tracer) -> Result<Option<Self>, Refusal> {
        // The first time it syncs what later ones, which find all put back in place, need not, or
        // the other way round.
        stage.begin(tracer)?;
        tracer.run(&stage.call(), None)?;
        stage.begin(tracer)?;
        let mut syncs = Vec::new();
        tracer.watch(&stage.call(), &mut |seen| {
            if seen.class == CallClass::Sync && seen.path.ends_with("restore.journal") {
                let length = fs::metadata(&seen.path).map_or(0, |meta| meta.len());
                syncs.push((seen.nth, usize::try_from(length).unwrap_or(0)));
            }
        })?;
        // The first is of what says that nothing has happened yet, the second of the intent.
        let [(_, synced), (nth, _), ..] = syncs[..] else {
            return Ok(None);
        };
        let kill = Injection {
            class: CallClass::Sync,
            nth,
            fault: Fault::Kill,
        };
        Ok(Some(Self {
            stage,
            kill,
            synced,
        }))
    }

    fn tear(
        &self,
        tracer: &Tracer,
        random: &mut Random,
        report: &mut Report,
    ) -> Result<(), Refusal> {
        report.tried += 1;
        self.stage.begin(tracer)?;
        let ws = &self.stage.sandbox.ws;
        let before = Picture::of(ws);
        tracer.run(&self.stage.call(), Some(&self.kill))?;
        let journals = ws.stores().into_iter().map(|s| s.join("restore.journal"));
        let journals: Vec<PathBuf> = journals.filter(|journal| journal.exists()).collect();
        let [journal] = &journals[..] else {
            return Ok(());
        };
        let mut bytes = fs::read(journal).expect("it was just written");
        if bytes.len() <= self.synced {
            return Ok(());
        }
        let how = torn(&mut bytes, self.synced, random);
        fs::write(journal, &bytes).expect("it can be written");
        report.hit += 1;
        report.count("torn", how.split(' ').next().unwrap_or_default());
        let case = format!("{}, {how}", self.stage.scene);
        let next = checker::undisturbed(ws, &["list"]);
        report.find(&case, next.err());
        let now = Picture::of(ws);
        // Nothing was touched yet. What is whole by chance may be carried out.
        let lines = before.difference(&now);
        let is_torn = !how.starts_with("whole");
        if let Some(lines) = lines.filter(|_| is_torn) {
            let text = format!("a torn journal was carried out:\n{lines}");
            report.find(&case, [Finding::new(Kind::Lost, text)]);
        }
        Ok(())
    }
}

/// Takes away some of what follows `synced`; says what.
fn torn(bytes: &mut Vec<u8>, synced: usize, random: &mut Random) -> String {
    let rest = bytes.len() - synced;
    match random.below(4) {
        0 => {
            let kept = synced + random.below(rest);
            bytes.truncate(kept);
            format!("cut off at {kept}")
        }
        1 => {
            let from = synced + random.below(rest);
            let from = (from / SECTOR * SECTOR).max(synced);
            let to = (from / SECTOR * SECTOR + SECTOR).min(bytes.len());
            let was = bytes[from..to].to_vec();
            bytes[from..to].fill(0);
            match was == bytes[from..to] {
                true => "whole, as there was nothing to lose".into(),
                false => format!("zeros from {from} to {to}"),
            }
        }
        2 => {
            // What was in the sector before, of some other file.
            let from = synced + random.below(rest);
            for byte in &mut bytes[from..] {
                *byte = random.next_u64().to_le_bytes()[0];
            }
            format!("garbage from {from}")
        }
        _ => {
            let (at, bit) = (synced + random.below(rest), random.below(8));
            bytes[at] ^= 1 << bit;
            format!("flipped bit {bit} of byte {at}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_synced_is_never_torn_and_the_rest_always_is() {
        let mut random = Random::new(3);
        for _ in 0..500 {
            let whole: Vec<u8> = (0..2000_u32).map(|n| n.to_le_bytes()[0] | 1).collect();
            let mut bytes = whole.clone();
            let how = torn(&mut bytes, 700, &mut random);
            assert_eq!(bytes[..700], whole[..700], "{how}");
            assert_ne!(bytes, whole, "{how}");
        }
    }
}
