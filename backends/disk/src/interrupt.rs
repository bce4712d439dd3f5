//! The cancellation of an operation.
//!
//! Work checks for a cancellation at every file, at every piece of a large file, and every so many
//! items when it works in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stillframe_model::interrupted::Interrupted;

/// Stops an operation: at once by [`Interrupt::cancel`], or at a deadline. Cheap to clone; clones
/// are cancelled together.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    cancelled: Arc<AtomicBool>,
    deadline: Option<(Instant, Duration)>,
    /// Another that counts as well.
    other: Option<Arc<Interrupt>>,
    #[cfg(any(test, feature = "testing"))]
    countdown: Option<Arc<testing::Countdown>>,
}

impl Interrupt {
    /// Never stops by itself; may be cancelled.
    pub fn never() -> Self {
        Self::default()
    }

    /// Stops `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self::never().within(limit)
    }

    /// The same, and it stops `limit` from now as well, unless it would earlier.
    pub fn within(mut self, limit: Duration) -> Self {
        let at = Instant::now().checked_add(limit);
        let sooner = |at: &Instant| self.deadline.is_none_or(|(known, _)| *at < known);
        if let Some(at) = at.filter(sooner) {
            self.deadline = Some((at, limit));
        }
        self
    }

    /// One that stops as soon as this one does or `other`. To cancel it cancels this one alone.
    pub fn or(mut self, other: Self) -> Self {
        self.other = Some(Arc::new(match self.other.take() {
            Some(known) => other.or(Self::clone(&known)),
            None => other,
        }));
        self
    }

    /// Asks the work to stop. Safe to repeat.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Fails once the work should stop, and from then on.
    pub fn check(&self) -> Result<(), Interrupted> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(countdown) = &self.countdown {
            countdown.count(self);
        }
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Interrupted::Cancelled);
        }
        match self.deadline {
            Some((at, after)) if Instant::now() >= at => Err(Interrupted::TimedOut { after }),
            _ => self.other.as_ref().map_or(Ok(()), |other| other.check()),
        }
    }
}

/// Stops at a look that a test chooses.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Counts looks, and cancels at one of them.
    #[derive(Debug)]
    pub struct Countdown {
        looks: AtomicU64,
        cancels_at: u64,
    }

    impl Countdown {
        pub(crate) fn count(&self, interrupt: &Interrupt) {
            if self.looks.fetch_add(1, Ordering::Relaxed) == self.cancels_at {
                interrupt.cancel();
            }
        }
    }

    impl Interrupt {
        /// Cancelled at the look with this number; the first is 0.
        pub fn at_look(number: u64) -> Self {
            Self {
                countdown: Some(Arc::new(Countdown {
                    looks: AtomicU64::new(0),
                    cancels_at: number,
                })),
                ..Self::never()
            }
        }

        /// How often it was looked at.
        pub fn looks(&self) -> u64 {
            let countdown = self.countdown.as_ref();
            countdown.map_or(0, |countdown| countdown.looks.load(Ordering::Relaxed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sooner_of_two_deadlines_counts_and_is_named() {
        let soon = Duration::ZERO;
        let late = Duration::from_secs(3600);
        for interrupt in [
            Interrupt::after(soon).within(late),
            Interrupt::after(late).within(soon),
        ] {
            assert_eq!(
                interrupt.check(),
                Err(Interrupted::TimedOut { after: soon })
            );
        }
    }

    #[test]
    fn of_several_interrupts_any_is_enough() {
        let [own, second, third] = [(); 3].map(|()| Interrupt::never());
        let all = own.clone().or(second.clone()).or(third.clone());
        assert_eq!(all.check(), Ok(()));
        for one in [&third, &second, &own] {
            let all = own.clone().or(second.clone()).or(third.clone());
            let alone = Interrupt::never().or(one.clone());
            one.cancel();
            assert_eq!(all.check(), Err(Interrupted::Cancelled));
            assert_eq!(alone.check(), Err(Interrupted::Cancelled));
        }
    }
}
