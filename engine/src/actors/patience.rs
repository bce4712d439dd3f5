//! How long a remote is waited for by an engine that finishes what a dead one left: it starts for
//! somebody who wants something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A remote that answers at all does so sooner.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// How long a remote that did not answer is not asked again.
const REST: Duration = Duration::from_secs(60);

/// The remotes that were waited for in vain, and when.
#[derive(Clone, Default)]
pub(crate) struct Patience(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Patience {
    /// How long `address` may take for its first answer at `now`, where a call may take `limit`;
    /// `None`: it was waited for a moment ago.
    pub(crate) fn with(&self, address: &str, limit: Duration, now: Instant) -> Option<Duration> {
        let silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = silent.get(address).map(|at| now.duration_since(*at));
        let is_silent = since.is_some_and(|since| since < REST);
        (!is_silent).then(|| limit.min(FIRST_ANSWER))
    }

    /// Nobody had answered at `address` in time by `now`.
    pub(crate) fn ended(&self, address: &str, now: Instant) {
        let mut silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        silent.insert(address.to_owned(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_that_is_silent_is_waited_for_once_a_minute_and_no_longer_than_a_call_may_take() {
        let patience = Patience::default();
        let (long, short) = (Duration::from_secs(120), Duration::from_secs(2));
        let now = Instant::now();
        assert_eq!(patience.with("a", long, now), Some(FIRST_ANSWER));
        assert_eq!(patience.with("a", short, now), Some(short));
        patience.clone().ended("a", now);
        assert_eq!(patience.with("a", long, now), None);
        assert_eq!(patience.with("b", long, now), Some(FIRST_ANSWER));
        assert_eq!(patience.with("a", long, now + REST), Some(FIRST_ANSWER));
    }
}
