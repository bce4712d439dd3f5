//! When something that failed for a passing reason is tried again. Pure.

use jiff::{SignedDuration, Timestamp};

/// More tries are not made.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// Between the first try and the second. Each later pause is twice as long as the one before.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// No pause is longer.
const MAX_PAUSE: SignedDuration = SignedDuration::from_secs(300);

/// When the next try is due, after so many have failed; `None`: there is none.
pub(crate) fn next_try(failed: u32, now: Timestamp) -> Option<Timestamp> {
    match failed < MAX_ATTEMPTS {
        // A clock at the end of time has no later moment.
        true => now.checked_add(pause_after(failed)).ok(),
        false => None,
    }
}

/// How long to wait after so many failed tries; there was at least one.
fn pause_after(failed: u32) -> SignedDuration {
    let doubled = failed.saturating_sub(1);
    let factor = 1_i32.checked_shl(doubled).filter(|factor| *factor > 0);
    let pause = factor.and_then(|factor| FIRST_PAUSE.checked_mul(factor));
    pause.map_or(MAX_PAUSE, |pause| pause.min(MAX_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_failure_is_the_last_and_the_pauses_before_were_30_and_60_seconds() {
        let now = Timestamp::from_second(1_000).unwrap();
        let due = |failed| next_try(failed, now).map(|at| at.as_second() - 1_000);
        assert_eq!([1, 2, 3, 4].map(due), [Some(30), Some(60), None, None]);
    }

    #[test]
    fn a_pause_doubles_up_to_five_minutes() {
        let seconds = [1, 2, 3, 4, 5, 6, 31, 32, 33, 1_000, u32::MAX];
        let seconds = seconds.map(|failed| pause_after(failed).as_secs());
        assert_eq!(seconds[..6], [30, 60, 120, 240, 300, 300]);
        assert_eq!(seconds[6..], [300; 5]);
        assert_eq!(next_try(1, Timestamp::MAX), None);
    }
}
