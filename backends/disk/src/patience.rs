//! Waiting for what somebody else holds.

use std::time::{Duration, Instant};

use crate::operation::Operation;

/// How long is still to be waited. Neither flock nor git's lock files have a form that waits for a
/// while, so they are tried again and again.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// `None`: without end.
    deadline: Option<Instant>,
}

impl Patience {
    /// Below what a person sees, and far above what trying costs.
    const PAUSE: Duration = Duration::from_millis(5);

    /// It ends this long from here on.
    pub fn of(patience: Duration) -> Self {
        Self {
            deadline: Instant::now().checked_add(patience),
        }
    }

    /// Lets a moment pass before the next try; `false`, at once, if there is to be none: it has ended, or
    /// the work that waits should stop.
    pub fn pause(&self, op: &Operation) -> bool {
        let is_left = self.deadline.is_none_or(|end| Instant::now() < end);
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
    fn patience_ends_and_one_without_end_does_not() {
        assert!(!Patience::of(Duration::ZERO).pause(&Operation::unbounded()));
        let short = Patience::of(Duration::from_millis(5));
        assert!(short.pause(&Operation::unbounded()));
        assert!(
            !short.pause(&Operation::unbounded()),
            "a pause is longer than that"
        );
        assert!(Patience::of(Duration::MAX).pause(&Operation::unbounded()));
    }
}
