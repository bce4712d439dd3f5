//! Waiting, up to a deadline, for something that somebody else holds.

use std::time::{Duration, Instant};

use crate::operation::Operation;

/// When waiting ends. Neither flock nor git's lock files have a form that waits for a while, so
/// they are tried again and again.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// `None`: it never ends.
    at: Option<Instant>,
}

impl Deadline {
    /// Below what a person sees, and far above what trying costs.
    const PAUSE: Duration = Duration::from_millis(5);

    /// This long from here on.
    pub fn after(timeout: Duration) -> Self {
        Self {
            at: Instant::now().checked_add(timeout),
        }
    }

    /// Lets a moment pass before the next try; `false`, at once, if there is to be none: the
    /// deadline has passed, or the operation that waits is cancelled.
    pub fn pause(&self, op: &Operation) -> bool {
        let is_left = self.at.is_none_or(|at| Instant::now() < at);
        let is_left = is_left && op.check().is_ok();
        if is_left {
            std::thread::sleep(Self::PAUSE);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_and_one_that_is_never_does_not() {
        assert!(!Deadline::after(Duration::ZERO).pause(&Operation::unbounded()));
        let short = Deadline::after(Duration::from_millis(5));
        assert!(short.pause(&Operation::unbounded()));
        assert!(
            !short.pause(&Operation::unbounded()),
            "a pause is longer than that"
        );
        assert!(Deadline::after(Duration::MAX).pause(&Operation::unbounded()));
    }
}
