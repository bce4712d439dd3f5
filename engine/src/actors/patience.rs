//! How long a remote is waited for by an engine that finishes what a dead one left: it starts for
//! somebody who wants something else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A remote that answers at all does so sooner.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// The remotes that were waited for in vain since this engine started.
#[derive(Clone, Default)]
pub(crate) struct Patience(Arc<Mutex<BTreeSet<String>>>);

impl Patience {
    /// How long `address` may take for its first answer, where a call may take `limit`; `None`: it
    /// was waited for before.
    pub(crate) fn with(&self, address: &str, limit: Duration) -> Option<Duration> {
        let silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!silent.contains(address)).then(|| limit.min(FIRST_ANSWER))
    }

    /// Nobody answered at `address` in time.
    pub(crate) fn ended(&self, address: &str) {
        let mut silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        silent.insert(address.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_that_is_silent_is_waited_for_once_and_no_longer_than_a_call_may_take() {
        let patience = Patience::default();
        let (long, short) = (Duration::from_secs(120), Duration::from_secs(2));
        assert_eq!(patience.with("a", long), Some(FIRST_ANSWER));
        assert_eq!(patience.with("a", short), Some(short));
        patience.clone().ended("a");
        assert_eq!(patience.with("a", long), None);
        assert_eq!(patience.with("b", long), Some(FIRST_ANSWER));
    }
}
