//! What must hold whatever happens to a worktree, looked at in generated histories.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::torture::checker::{Finding, Kind};
use crate::torture::history::{self, Case, Played};
use crate::torture::{Options, Refusal, Report, workers};

/// How often a case that breaks something is played again with less in it.
const MAX_TRIES: usize = 100;

/// Something that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// A restore gives every captured path back: bytes, executable bit, text of a link, empty
    /// directories, and what was not there is gone.
    Exactness,
    /// What was omitted is as it was before any restore: content, mode, mtime, inode.
    Untouchables,
    /// What a restore replaces or removes is in its guard.
    CaptureBeforeDestroy,
    /// Restoring the guard gives what was there before the restore.
    Undo,
    /// A second restore changes nothing, not a time.
    Idempotence,
    /// Who reads a file meanwhile sees the old bytes or the new ones.
    AtomicVisibility,
    /// Whatever the user's own git throws away, every snapshot is whole.
    Reachability,
    /// A capture and a restore by hand write nothing in the user's repository.
    NoForeignEffect,
    /// After a rollback index and branch are as they were, and every commit has a name.
    StatedEffect,
    /// What was captured and what was omitted is all that a walker finds.
    Completeness,
    /// The same files give the same tree, in whatever order and on however many processors.
    Determinism,
    /// git makes the same tree.
    Agreement,
    /// An id means what it meant, and no two are the same.
    Monotony,
    /// A plan is carried out only where everything is as it saw it.
    GuardedChange,
    /// A secret is in no answer, event, error or log.
    NoLeak,
    /// What happens in one workspace changes nothing in another one of the same state directory.
    Isolation,
    /// Everything ends, and nothing fails.
    Liveness,
    /// No descriptor and no lock is left.
    Boundedness,
    /// A collection removes what was forgotten, and nothing else.
    SafeCollection,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Exactness,
        Self::Untouchables,
        Self::CaptureBeforeDestroy,
        Self::Undo,
        Self::Idempotence,
        Self::AtomicVisibility,
        Self::Reachability,
        Self::NoForeignEffect,
        Self::StatedEffect,
        Self::Completeness,
        Self::Determinism,
        Self::Agreement,
        Self::Monotony,
        Self::GuardedChange,
        Self::NoLeak,
        Self::Isolation,
        Self::Liveness,
        Self::Boundedness,
        Self::SafeCollection,
    ];

    /// What sort of finding it is if it does not hold.
    fn kind(self) -> Kind {
        match self {
            Self::Exactness
            | Self::Untouchables
            | Self::CaptureBeforeDestroy
            | Self::Undo
            | Self::AtomicVisibility
            | Self::Completeness => Kind::Lost,
            Self::Reachability | Self::Isolation | Self::SafeCollection => Kind::Damaged,
            Self::NoForeignEffect | Self::StatedEffect => Kind::Repository,
            Self::Idempotence
            | Self::Determinism
            | Self::Agreement
            | Self::Monotony
            | Self::GuardedChange
            | Self::NoLeak => Kind::Untrue,
            Self::Liveness => Kind::Stuck,
            Self::Boundedness => Kind::LeftLock,
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&json_name(*self))
    }
}

/// `StatedEffect` is `stated effect`.
fn json_name(invariant: Invariant) -> String {
    let name = format!("{invariant:?}");
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// Plays histories until each invariant was looked at in as many as are wanted, or the time is
/// over. The case number *n* of the seed *s* is the first of the seed *s* + *n*.
///
/// There are never more than twenty times as many histories, whatever they end with.
///
/// # Errors
///
/// Nothing is traced, so that there is nothing to refuse.
pub fn run(options: &Options) -> Result<Report, Refusal> {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let looks = Looks::default();
    let most = (options.operations as u64).saturating_mul(MOST);
    workers::all("invariants", options, |_| {
        let mut report = Report::new("invariants");
        while !looks.are_enough(options.operations)
            && begin.elapsed() < options.time
            && !options.is_enough(&report)
        {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= most {
                break;
            }
            looks.add(&one(options.seed.wrapping_add(number), &mut report));
        }
        Ok(report)
    })
}

/// How many histories there are at most for each time that an invariant is to be looked at.
const MOST: u64 = 20;

/// In how many histories each invariant was looked at, by all workers.
#[derive(Default)]
struct Looks(Mutex<BTreeMap<Invariant, usize>>);

impl Looks {
    fn are_enough(&self, wanted: usize) -> bool {
        let looks = self.0.lock().expect("nobody panics with the lock");
        let of = |invariant| looks.get(invariant).copied().unwrap_or_default();
        Invariant::ALL
            .iter()
            .all(|invariant| of(invariant) >= wanted)
    }

    fn add(&self, checked: &BTreeSet<Invariant>) {
        let mut looks = self.0.lock().expect("nobody panics with the lock");
        for invariant in checked {
            *looks.entry(*invariant).or_default() += 1;
        }
    }
}

/// Plays the case of a seed; answers with what was looked at.
fn one(seed: u64, report: &mut Report) -> BTreeSet<Invariant> {
    let case = Case::of(seed);
    let played = caught(&case);
    report.tried += 1;
    report.hit += 1;
    for invariant in &played.checked {
        report.count("looked at", invariant.to_string());
    }
    if let Some((invariant, _)) = played.broken.first() {
        let (small, text) = shrunk(case, *invariant);
        let name = format!("--seed {seed} --operations 1 --until-found, {invariant}, {small:?}");
        report.find(&name, [Finding::new(invariant.kind(), text)]);
    }
    played.checked
}

/// Plays a history; a panic breaks it.
fn caught(case: &Case) -> Played {
    panic::catch_unwind(AssertUnwindSafe(|| history::play(case))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Played {
            broken: vec![(Invariant::Liveness, format!("a panic: {text:?}"))],
            ..Played::default()
        }
    })
}

/// The same case with as little in it as breaks the same, and what that says.
fn shrunk(mut case: Case, invariant: Invariant) -> (Case, String) {
    let broken = |case: &Case| {
        let broken = caught(case).broken.into_iter();
        let mut same = broken.filter(|(other, _)| *other == invariant);
        same.next().map(|(_, text)| text)
    };
    let mut text = "not every time".to_owned();
    let mut tries = 0;
    loop {
        let left = MAX_TRIES.saturating_sub(tries);
        let found = case.smaller().take(left).find_map(|smaller| {
            tries += 1;
            broken(&smaller).map(|found| (smaller, found))
        });
        match found {
            Some(found) => (case, text) = found,
            None => break,
        }
    }
    if let Some(found) = broken(&case) {
        text = found;
    }
    (case, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_has_a_name_and_is_counted_once() {
        let names: BTreeSet<_> = Invariant::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), Invariant::ALL.len());
        assert!(names.contains("no foreign effect"), "{names:?}");
    }

    #[test]
    fn it_is_enough_when_the_invariant_that_is_looked_at_least_was_looked_at_enough() {
        let looks = Looks::default();
        assert!(!looks.are_enough(1) && looks.are_enough(0));
        let all = BTreeSet::from(Invariant::ALL);
        let mut but_one = all.clone();
        but_one.remove(&Invariant::NoLeak);
        looks.add(&all);
        looks.add(&but_one);
        assert!(looks.are_enough(1) && !looks.are_enough(2));
        looks.add(&all);
        assert!(looks.are_enough(2));
    }

    #[test]
    fn a_seed_is_a_case() {
        assert_eq!(Case::of(7), Case::of(7));
        let all: Vec<Case> = (0..20).map(Case::of).collect();
        assert!(all.iter().any(|case| case.has_git) && all.iter().any(|case| !case.has_git));
    }
}
