//! When a run's progress is saved, and of which repositories anything was. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;

/// How often progress is saved, unless a host says otherwise.
pub(crate) const DEFAULT_INTERVAL: SignedDuration = SignedDuration::from_secs(120);

/// Which progress of one run is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Periodic {
    /// Zero or less: never, unless it is asked for.
    interval: SignedDuration,
    /// When it was last tried, as time since the run began.
    last_try: Option<Duration>,
    /// The repositories of which work was proven on the remote.
    carried: BTreeSet<String>,
}

impl Periodic {
    /// Nothing was saved.
    pub(crate) fn new(interval: SignedDuration) -> Self {
        Self {
            interval,
            last_try: None,
            carried: BTreeSet::new(),
        }
    }

    /// Whether a checkpoint is to be made, this long after the run began; if so, it is about to be.
    ///
    /// `push_now`: somebody asks for one, whatever the interval is. A try counts that fails: a
    /// server that is away is not asked at every step.
    pub(crate) fn take(&mut self, elapsed: Duration, push_now: bool) -> bool {
        let is_due = push_now || self.is_due(elapsed);
        if is_due {
            self.last_try = Some(elapsed);
        }
        is_due
    }

    fn is_due(&self, elapsed: Duration) -> bool {
        let Ok(interval) = Duration::try_from(self.interval) else {
            return false;
        };
        let is_over = |last: Duration| elapsed.saturating_sub(last) >= interval;
        !interval.is_zero() && self.last_try.is_none_or(is_over)
    }

    /// Work of this repository is proven on the remote, and is more than was there before.
    pub(crate) fn mark(&mut self, repository: &str) {
        self.carried.insert(repository.to_owned());
    }

    /// Whether any checkpoint of the run carried work of this repository.
    pub(crate) fn has_carried(&self, repository: &str) -> bool {
        self.carried.contains(repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(interval: SignedDuration, calls: &[(u64, bool)]) -> Vec<bool> {
        let mut periodic = Periodic::new(interval);
        let calls = calls.iter();
        calls
            .map(|(elapsed, push_now)| periodic.take(Duration::from_secs(*elapsed), *push_now))
            .collect()
    }

    #[test]
    fn progress_is_saved_once_in_an_interval() {
        let calls = [
            (0, false),
            (1, false),
            (119, false),
            (120, false),
            (239, false),
            (240, false),
        ];
        let saved = [true, false, false, true, false, true];
        assert_eq!(taken(DEFAULT_INTERVAL, &calls), saved);
        assert_eq!(DEFAULT_INTERVAL.as_secs(), 120);
    }

    #[test]
    fn an_interval_of_zero_or_less_saves_nothing_that_nobody_asks_for() {
        for interval in [
            SignedDuration::ZERO,
            SignedDuration::from_nanos(-1),
            SignedDuration::MIN,
        ] {
            let calls = [(0, false), (500, false), (u64::MAX, false), (7, true)];
            assert_eq!(
                taken(interval, &calls),
                [false, false, false, true],
                "{interval}"
            );
        }
        let least = SignedDuration::from_nanos(1);
        assert_eq!(
            taken(least, &[(0, false), (0, false), (1, false)]),
            [true, false, true]
        );
    }

    #[test]
    fn what_somebody_asks_for_is_saved_within_the_interval_and_begins_another() {
        let calls = [
            (0, false),
            (60, true),
            (61, true),
            (120, false),
            (180, false),
            (181, false),
        ];
        let saved = [true, true, true, false, false, true];
        assert_eq!(taken(DEFAULT_INTERVAL, &calls), saved);
    }

    #[test]
    fn a_repository_has_carried_what_was_marked_and_nothing_else() {
        let mut periodic = Periodic::new(DEFAULT_INTERVAL);
        periodic.take(Duration::ZERO, true);
        assert!(!periodic.has_carried("a"), "a checkpoint that was refused");
        periodic.mark("a");
        periodic.mark("a");
        assert!(periodic.has_carried("a"));
        assert!(!periodic.has_carried("b"));
    }
}
