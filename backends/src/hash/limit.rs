//! How much content a capture may keep that the store did not have.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A limit that holds at every moment, for threads that write at once.
#[derive(Debug)]
pub(crate) struct Limit {
    max_bytes: u64,
    used: Mutex<Used>,
    /// Told whenever content that was being written is kept or gone.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct Used {
    kept_bytes: u64,
    /// Of content that is being written, and may turn out to be there already.
    written_bytes: u64,
    is_passed: bool,
}

/// The part of a limit that content takes while it is written. Dropping it gives that back.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    limit: &'a Limit,
    bytes: u64,
}

impl Limit {
    pub(crate) fn of(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            used: Mutex::default(),
            settled: Condvar::new(),
        }
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// A share of so many bytes; `None`: there is none beside what is kept. Waits while that
    /// depends on what others write, so nobody may ask who has some.
    pub(crate) fn share(&self, bytes: u64) -> Option<Share<'_>> {
        let mut used = self.used();
        loop {
            let kept = used.kept_bytes.saturating_add(bytes);
            if kept > self.max_bytes {
                return None;
            }
            if kept.saturating_add(used.written_bytes) <= self.max_bytes {
                used.written_bytes += bytes;
                return Some(Share { limit: self, bytes });
            }
            let waited = self.settled.wait(used);
            used = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Says that there was something new for which nothing of the limit was left.
    pub(crate) fn pass(&self) {
        self.used().is_passed = true;
    }

    pub(crate) fn is_passed(&self) -> bool {
        self.used().is_passed
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share<'_> {
    /// What was written stays.
    pub(crate) fn keep(self) {
        self.limit.used().kept_bytes += self.bytes;
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.limit.used().written_bytes -= self.bytes;
        self.limit.settled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_leaves_its_room_to_others() {
        let limit = Limit::of(10);
        let first = limit.share(6).unwrap();
        limit.share(4).unwrap().keep();
        assert!(limit.share(7).is_none(), "beside what is kept");
        drop(first);
        limit.share(6).unwrap().keep();
        assert!(limit.share(1).is_none());
        limit.share(0).unwrap();
        assert!(!limit.is_passed());
    }

    #[test]
    fn who_may_yet_have_room_waits_for_it() {
        let limit = Limit::of(10);
        let written = limit.share(6).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| limit.share(6).map(Share::keep).is_some());
            drop(written);
            assert!(waits.join().unwrap());
        });
        let written = limit.share(4).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| limit.share(3).is_some());
            written.keep();
            assert!(!waits.join().unwrap(), "it was needed");
        });
    }
}
