//! When a run's progress is saved. Pure.

use std::time::Duration;

/// Which progress of one run is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Periodic {
    /// Zero: never, unless it is asked for.
    interval: Duration,
    /// When it was last tried, as time since the run began.
    last_try: Option<Duration>,
}

impl Periodic {
    /// Nothing was saved.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            last_try: None,
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
        let is_over = |last: Duration| elapsed.saturating_sub(last) >= self.interval;
        !self.interval.is_zero() && self.last_try.is_none_or(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(120);

    fn taken(interval: Duration, calls: &[(u64, bool)]) -> Vec<bool> {
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
        assert_eq!(taken(INTERVAL, &calls), saved);
    }

    #[test]
    fn without_an_interval_nothing_is_saved_that_nobody_asks_for() {
        let calls = [(0, false), (500, false), (u64::MAX, false), (7, true)];
        let saved = [false, false, false, true];
        assert_eq!(taken(Duration::ZERO, &calls), saved);
        let least = Duration::from_nanos(1);
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
        assert_eq!(taken(INTERVAL, &calls), saved);
    }
}
