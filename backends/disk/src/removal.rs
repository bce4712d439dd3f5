//! Removing what a cancelled operation had written. If that takes longer than the operation may
//! continue, another thread does it.
//!
//! No other code sees a partly removed state: the thread holds the lock of the workspace until it
//! is done, so other processes and later operations wait as for any other work there. Code that
//! already has the lock waits with [`wait_for`]. If the process dies, the next collection removes
//! the rest, as after a killed capture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::lock::LockFile;
use crate::operation::Operation;
use stillframe_model::interrupted::Interrupted;

/// So many files are removed before the operation returns, which takes some milliseconds. In tests
/// it is few, so that a small tree has more.
const MAX_IN_PLACE: usize = if cfg!(any(test, feature = "testing")) {
    2
} else {
    512
};

/// How often a waiting operation checks for a cancellation.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// How many threads remove something in which store.
static REMOVALS: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());
static REMOVED: Condvar = Condvar::new();

fn removals() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
    // It is changed by single steps, so a panic elsewhere cannot leave it half-way.
    REMOVALS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what an operation on a locked workspace leaves.
#[derive(Clone, Debug)]
pub struct Remover {
    store: PathBuf,
    lock: Arc<LockFile>,
}

impl Remover {
    /// For the store at this path, whose workspace is locked.
    pub fn new(store: &Path, lock: &Arc<LockFile>) -> Self {
        Self {
            store: store.to_owned(),
            lock: Arc::clone(lock),
        }
    }

    /// Does `remove`, which removes so many files. Of a stopped operation with many files another
    /// thread does it, and the workspace stays locked for as long.
    pub fn remove(&self, op: &Operation, files: usize, remove: impl FnOnce() + Send + 'static) {
        if files <= MAX_IN_PLACE || op.check().is_ok() {
            return remove();
        }
        let removal = Removal::begin(self);
        let waiting = Arc::new(Mutex::new(Some(remove)));
        let take = |waiting: &Mutex<Option<_>>| {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.take().expect("it is taken once")
        };
        let of_helper = Arc::clone(&waiting);
        let helper = thread::Builder::new().spawn(move || {
            let _removal = removal;
            take(&of_helper)();
        });
        if helper.is_err() {
            // A machine that gives no thread has it removed here.
            take(&waiting)();
        }
    }
}

/// A removal that is under way, until it is dropped.
struct Removal {
    store: PathBuf,
    /// Let go of before anybody is told that the removal is over.
    lock: Option<Arc<LockFile>>,
}

impl Removal {
    fn begin(remover: &Remover) -> Self {
        #[cfg(any(test, feature = "testing"))]
        testing::note(&remover.store);
        *removals().entry(remover.store.clone()).or_default() += 1;
        Self {
            store: remover.store.clone(),
            lock: Some(Arc::clone(&remover.lock)),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        drop(self.lock.take());
        let mut removals = removals();
        if let Some(count) = removals.get_mut(&self.store) {
            *count -= 1;
            if *count == 0 {
                removals.remove(&self.store);
            }
        }
        drop(removals);
        REMOVED.notify_all();
    }
}

/// Waits until nothing of this store is being removed any more by this process, as long as that is
/// wanted.
pub fn wait_for(op: &Operation, store: &Path) -> Result<(), Interrupted> {
    let mut removals = removals();
    while removals.contains_key(store) {
        op.check()?;
        let waited = REMOVED.wait_timeout(removals, CHECK_EVERY);
        (removals, _) = waited.unwrap_or_else(PoisonError::into_inner);
    }
    Ok(())
}

/// Waits until everything is gone that captures of this process had written when they were stopped.
///
/// A capture that is stopped returns at once, and a thread removes what it had written of many
/// files. Call it before the process ends: files that it leaves use space until the next
/// `Backend::collect`.
pub fn wait_for_removals() {
    let mut removals = removals();
    while !removals.is_empty() {
        let waited = REMOVED.wait(removals);
        removals = waited.unwrap_or_else(PoisonError::into_inner);
    }
}

/// What tests ask.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::{BTreeMap, Mutex, Path, PathBuf, PoisonError};

    /// How often another thread was to remove something in which store: tests share the process.
    static HANDED_OVER: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

    pub(crate) fn note(store: &Path) {
        let mut all = HANDED_OVER.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(store.to_owned()).or_default() += 1;
    }

    /// How often another thread was to remove something in this store.
    pub fn handed_over(store: &Path) -> u64 {
        let all = HANDED_OVER.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(store).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::interrupt::Interrupt;
    use stillframe_model::lock_error::LockError;

    #[test]
    fn many_files_of_a_stopped_operation_are_removed_aside_and_the_store_is_locked_until_then() {
        let scratch = tempfile::tempdir().unwrap();
        let (store, at) = (scratch.path(), scratch.path().join("lock"));
        let lock = || LockFile::acquire(&Operation::unbounded(), &at, "the store", Duration::ZERO);
        let locked = Arc::new(lock().unwrap());
        let own = thread::current().id();
        let (told, who) = mpsc::channel();
        let cancelled = Interrupt::never();
        cancelled.cancel();
        let stopped = Operation::unbounded().cancelled_by(&cancelled);

        let of = |files: usize, op: &Operation| {
            let told = told.clone();
            let remover = Remover::new(store, &locked);
            remover.remove(op, files, move || {
                told.send(thread::current().id()).unwrap()
            });
            wait_for(&Operation::unbounded(), store).unwrap();
            who.recv().unwrap() == own
        };
        assert!(
            of(1_000_000, &Operation::unbounded()),
            "nobody is in a hurry"
        );
        assert!(of(MAX_IN_PLACE, &stopped), "a few are gone at once");
        assert!(!of(MAX_IN_PLACE + 1, &stopped));

        let (go, wait) = mpsc::channel::<()>();
        let remover = Remover::new(store, &locked);
        remover.remove(&stopped, 1_000_000, move || wait.recv().unwrap());
        drop(remover);
        let refused = wait_for(&stopped, store).unwrap_err();
        assert_eq!(
            refused,
            Interrupted::Cancelled,
            "to wait can be stopped too"
        );
        drop(locked);
        let busy = lock().unwrap_err();
        assert!(matches!(busy, LockError::Busy { .. }), "{busy:?}");
        go.send(()).unwrap();
        wait_for_removals();
        lock().unwrap();
    }
}
