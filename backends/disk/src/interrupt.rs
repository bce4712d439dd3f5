//! A wish to stop, and how far it reaches.
//!
//! Work looks at the wish of its own accord: at every file and every piece of a large one, and every so
//! many items of what is done in memory. The wish belongs to a thread and those that it starts, so that
//! what lies deep below an operation heeds it without being handed it.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stillframe_model::interrupted::Interrupted;

/// A wish to stop, which loops look at once per file. Cheap to clone; clones share the wish.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    cancelled: Arc<AtomicBool>,
    deadline: Option<(Instant, Duration)>,
    /// Another wish that counts as well.
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

    /// The same wish, and it stops `limit` from now as well, unless it would earlier.
    pub fn within(mut self, limit: Duration) -> Self {
        let at = Instant::now().checked_add(limit);
        let sooner = |at: &Instant| self.deadline.is_none_or(|(known, _)| *at < known);
        if let Some(at) = at.filter(sooner) {
            self.deadline = Some((at, limit));
        }
        self
    }

    /// A wish that is there as soon as this one is or `other`. To cancel it cancels this one alone.
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

    /// Does `work`, which heeds this wish wherever it looks for one: for calls that are not given one, such
    /// as `Backend::verify` and `Backend::collect`.
    ///
    /// It is the wish of this thread until then, in place of any other, and of the threads that
    /// are started for the work. A call that is given a wish of its own heeds that one.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        Heeded(Some(self.clone())).during(work)
    }
}

thread_local! {
    static HEEDED: RefCell<Heeded> = const { RefCell::new(Heeded(None)) };
}

/// The wish that a thread heeds, if any.
#[derive(Clone, Debug)]
pub struct Heeded(Option<Interrupt>);

impl Heeded {
    /// That of this thread.
    pub fn of_this_thread() -> Self {
        HEEDED.with_borrow(Clone::clone)
    }

    /// Makes it that of this thread, until the thread ends.
    pub fn enter(&self) {
        HEEDED.set(self.clone());
    }

    fn during<T>(self, work: impl FnOnce() -> T) -> T {
        /// Gives the thread back what it heeded, also after a panic.
        struct Before(Option<Heeded>);
        impl Drop for Before {
            fn drop(&mut self) {
                HEEDED.set(self.0.take().expect("it is dropped once"));
            }
        }
        let _before = Before(Some(HEEDED.replace(self)));
        work()
    }
}

/// Fails once the work of this thread should stop, and from then on: whatever was made of an earlier
/// failure, the check before something is published fails too.
pub fn check() -> Result<(), Interrupted> {
    HEEDED.with_borrow(|heeded| match &heeded.0 {
        Some(interrupt) => interrupt.check(),
        None => Ok(()),
    })
}

/// Whether anybody may wish the work of this thread to stop.
pub fn is_heeded() -> bool {
    HEEDED.with_borrow(|heeded| heeded.0.is_some())
}

/// Does `work` to its end, whatever anybody wishes: once something is published, or half taken back, no
/// wish undoes it.
pub fn to_the_end<T>(work: impl FnOnce() -> T) -> T {
    Heeded(None).during(work)
}

/// Something so large that to let go of it takes a while: where the work that holds it was stopped, another
/// thread does that, and nobody waits for it. Nothing in it may have to be gone when the work has ended.
#[derive(Debug)]
pub struct Bulk<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Bulk<T> {
    /// This is large.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// For who goes on with it.
    pub fn into_inner(mut self) -> T {
        self.0.take().expect("it is taken out once")
    }
}

impl<T: Send + 'static> Deref for Bulk<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only its owner takes it out")
    }
}

impl<T: Send + 'static> DerefMut for Bulk<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only its owner takes it out")
    }
}

impl<T: Send + 'static> Drop for Bulk<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take()
            && check().is_err()
        {
            // A machine that gives no thread has it dropped here.
            let _ = std::thread::Builder::new().spawn(move || drop(value));
        }
    }
}

/// A loop over what is in memory: it looks at the wish every so many items, since to look at it each time
/// would take as long as an item.
#[derive(Debug, Default)]
pub struct Pace {
    items: u32,
}

/// How many items are done between two looks: of the slowest, some microseconds each, that is a few
/// milliseconds. In tests it is every one, so that a small tree is stopped at as many places as a large
/// one.
const ITEMS_PER_CHECK: u32 = if cfg!(any(test, feature = "testing")) {
    1
} else {
    1024
};

impl Pace {
    /// To be called for each item.
    #[inline]
    pub fn step(&mut self) -> Result<(), Interrupted> {
        self.items += 1;
        if self.items < ITEMS_PER_CHECK {
            return Ok(());
        }
        self.items = 0;
        check()
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
    fn a_wish_is_heeded_by_the_work_and_by_the_threads_that_it_starts_and_by_nobody_afterwards() {
        let interrupt = Interrupt::never();
        interrupt.cancel();
        assert_eq!(check(), Ok(()), "nobody has handed it to this thread");
        interrupt.during(|| {
            assert_eq!(check(), Err(Interrupted::Cancelled));
            let (aside, own) = crate::parallel::both(check, check);
            assert_eq!([aside, own], [Err(Interrupted::Cancelled); 2]);
            let items = [(); 100];
            let answers = crate::parallel::map(&items, 1, |()| check());
            assert_eq!(answers, [Err(Interrupted::Cancelled); 100]);
            let answers = crate::parallel::in_parts(&items, 1, |_| check());
            assert!(answers.iter().all(Result::is_err) && answers.len() > 1);
            assert_eq!(to_the_end(check), Ok(()));
            assert_eq!(
                Interrupt::never().during(check),
                Ok(()),
                "a nearer wish counts"
            );
            assert_eq!(check(), Err(Interrupted::Cancelled));
        });
        assert_eq!(check(), Ok(()));
        let panicked = std::panic::catch_unwind(|| interrupt.during(|| panic!("a bug")));
        assert!(panicked.is_err());
        assert_eq!(check(), Ok(()), "a panic takes it along");
    }

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
    fn of_several_wishes_any_is_enough() {
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
