//! A sample of the calls of an operation, for tests in which disturbing every call takes too long.

use std::collections::HashMap;
use std::env;
use std::panic::Location;

/// One call in this many is chosen by chance.
const SHARE: u64 = 10;

/// Where in the code an operation made its calls, in their order.
#[derive(Debug)]
pub struct Calls(Vec<&'static Location<'static>>);

impl Calls {
    pub(super) fn new(places: Vec<&'static Location<'static>>) -> Self {
        Self(places)
    }

    /// The numbers of the calls that a test disturbs, in their order.
    ///
    /// With `STILLFRAME_TORTURE=long` they are all. Otherwise they are the first and the last call
    /// of the operation, the first or the last call of each place in the code, and one in ten of
    /// the others: `STILLFRAME_SEED` decides which, and what is printed makes the same choice
    /// again.
    ///
    /// After the last of them every further number follows, because the next time there may be a
    /// few calls more. A test ends where the operation makes fewer calls than the number says.
    pub fn chosen(&self) -> impl Iterator<Item = u64> + use<> {
        let seed = seed();
        println!("the calls are those of STILLFRAME_SEED={seed}");
        let numbers = 0..self.0.len() as u64;
        let chosen = match is_long() {
            true => numbers.collect(),
            false => self.sample(seed),
        };
        chosen.into_iter().chain(self.0.len() as u64..)
    }

    fn sample(&self, seed: u64) -> Vec<u64> {
        let mut ends = HashMap::new();
        for (number, place) in self.0.iter().enumerate() {
            ends.entry(place).or_insert((number, number)).1 = number;
        }
        let last_of_all = self.0.len().saturating_sub(1);
        let is_chosen = |number: &usize| {
            let (first, last) = ends[&self.0[*number]];
            let end = match is_by_chance(seed, first, 2) {
                true => first,
                false => last,
            };
            [0, last_of_all, end].contains(number) || is_by_chance(seed, *number, SHARE)
        };
        let chosen = (0..self.0.len()).filter(is_chosen);
        chosen.map(|number| number as u64).collect()
    }
}

/// Of as many numbers one in `share`, as far apart as that: which, `STILLFRAME_SEED` decides. With
/// `STILLFRAME_TORTURE=long` all of them.
pub fn one_of_each(share: u64) -> impl Iterator<Item = u64> + use<> {
    let share = if is_long() { 1 } else { share };
    let step = usize::try_from(share).expect("it is small");
    (seed() % share..).step_by(step)
}

fn is_long() -> bool {
    env::var("STILLFRAME_TORTURE").is_ok_and(|length| length == "long")
}

fn seed() -> u64 {
    match env::var("STILLFRAME_SEED") {
        Ok(seed) if !seed.is_empty() => seed.parse().expect("STILLFRAME_SEED is a number"),
        _ => 1,
    }
}

/// Whether a seed chooses a call, one of `share`.
fn is_by_chance(seed: u64, number: usize, share: u64) -> bool {
    let hash = blake3::hash(format!("{seed} {number}").as_bytes());
    let (bytes, _) = hash
        .as_bytes()
        .split_first_chunk()
        .expect("it has 32 bytes");
    u64::from_le_bytes(*bytes).is_multiple_of(share)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::durable::StagedFile;
    use crate::faults::Effect;
    use crate::operation::Operation;
    use crate::trial::calls_of;

    /// An operation of 102 calls: 100 from one place, and one from each of two others.
    fn work(op: &Operation) {
        let path = Path::new("a");
        op.effect(Effect::Stage(path)).unwrap();
        for _ in 0..100 {
            op.effect(Effect::Write(path)).unwrap();
        }
        op.before().unwrap();
    }

    #[test]
    fn a_sample_has_an_end_of_each_place_and_what_the_seed_adds() {
        let ((), calls) = calls_of(work);
        let one = calls.sample(1);
        for end in [0, 101] {
            assert!(one.contains(&end), "{one:?}");
        }
        for seed in 0..20 {
            let sample = calls.sample(seed);
            assert!(sample.contains(&1) || sample.contains(&100), "{sample:?}");
        }
        assert!((5..30).contains(&one.len()), "{one:?}");
        assert!(one.is_sorted_by(|a, b| a < b), "each once: {one:?}");
        assert_eq!(one, calls.sample(1));
        assert_ne!(one, calls.sample(2));
    }

    #[test]
    fn after_the_calls_that_are_known_every_number_is_tried() {
        let ((), calls) = calls_of(work);
        let ends: Vec<u64> = calls.chosen().skip_while(|n| *n < 101).take(3).collect();
        assert_eq!(ends, [101, 102, 103]);
    }

    #[test]
    fn what_publishes_is_a_place_beside_other_renames_and_so_always_tried() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: usize| directory.path().join(name.to_string());
        let stage = |op: &Operation| StagedFile::create(op, directory.path(), "tmp").unwrap();
        let rename_five = |op: &Operation| (0..5).for_each(|n| stage(op).rename(&path(n)).unwrap());
        let ((), calls) = calls_of(|op| {
            rename_five(op);
            drop(stage(op));
        });
        // Staged and removed again, in place of which it is published.
        let published = calls.0.len() as u64 - 1;
        let ((), calls) = calls_of(|op| {
            rename_five(op);
            stage(op).rename_to_new(&path(5)).unwrap();
            rename_five(op);
        });
        for seed in 0..20 {
            assert!(calls.sample(seed).contains(&published), "{seed}");
        }
    }
}
