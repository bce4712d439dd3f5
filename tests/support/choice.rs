//! Which of many like cases a test tries.
//!
//! With `STILLFRAME_TORTURE=long` it tries all of them. Otherwise `STILLFRAME_SEED` chooses some:
//! `.ci/run` takes it from what it tests, so that each change is tested with others, and prints it.

use std::env;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Whether a test tries this case. About one in `share` is chosen, each by itself.
pub fn is_chosen(case: impl ToString, share: u64) -> bool {
    is_long() || is_by_chance(seed(), &case.to_string(), share)
}

/// One number of each `share` in a row, from 1 on, as far apart as that: which, the seed and `what` decide.
pub fn one_of_each(what: &str, share: usize) -> impl Iterator<Item = usize> + use<> {
    let share = if is_long() { 1 } else { share };
    let mut hasher = DefaultHasher::new();
    (seed(), what).hash(&mut hasher);
    let first = hasher.finish() % share as u64;
    (1 + first as usize..).step_by(share)
}

/// Whether all cases are tried.
pub fn is_long() -> bool {
    env::var("STILLFRAME_TORTURE").is_ok_and(|length| length == "long")
}

/// The seed of all choices.
pub fn seed() -> u64 {
    match env::var("STILLFRAME_SEED") {
        Ok(seed) if !seed.is_empty() => seed.parse().expect("STILLFRAME_SEED is a number"),
        _ => 1,
    }
}

fn is_by_chance(seed: u64, case: &str, share: u64) -> bool {
    let mut hasher = DefaultHasher::new();
    (seed, case).hash(&mut hasher);
    hasher.finish().is_multiple_of(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_so_many_are_chosen_and_others_by_another_seed() {
        let of = |seed| -> Vec<u64> {
            let cases = (0..1000).filter(|case: &u64| is_by_chance(seed, &case.to_string(), 4));
            cases.collect()
        };
        assert!((200..300).contains(&of(1).len()), "{}", of(1).len());
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!((0..9).filter(|_| is_by_chance(3, "x", 1)).count(), 9);
    }

    #[test]
    fn of_as_many_in_a_row_one_is_chosen() {
        for share in 1..9 {
            let chosen: Vec<usize> = one_of_each("x", share).take(5).collect();
            let apart = if is_long() { 1 } else { share };
            assert!((1..=apart).contains(&chosen[0]), "{chosen:?}");
            assert!(
                chosen.windows(2).all(|two| two[0] + apart == two[1]),
                "{chosen:?}"
            );
        }
    }
}
