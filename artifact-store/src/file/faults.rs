//! For tests: observes the calls that change the disk, and makes them fail one by one.

use std::cell::{Cell, RefCell};
use std::path::Path;

use rustix::io::Errno;

/// What happens to the call whose turn it is, and to those after it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// That call fails, the others work.
    Once(Errno),
    /// No call works from then on, clean-up included: what is on disk is what `kill -9` leaves.
    Dead,
}

thread_local! {
    static ARMED: Cell<Option<(u32, Fault)>> = const { Cell::new(None) };
    static HITS: Cell<u32> = const { Cell::new(0) };
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `work` while `fault` strikes after `calls` calls that work. Answers also whether it did.
pub(crate) fn with<T>(calls: u32, fault: Fault, work: impl FnOnce() -> T) -> (T, bool) {
    ARMED.set(Some((calls, fault)));
    HITS.set(0);
    let done = work();
    ARMED.set(None);
    (done, HITS.get() > 0)
}

/// Runs `work`, and answers with the calls that it made: what, and the path of the directory.
pub(crate) fn seen<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    SEEN.set(Some(Vec::new()));
    let done = work();
    (done, SEEN.take().unwrap_or_default())
}

pub(crate) fn strike(change: &str, place: &Path) -> rustix::io::Result<()> {
    SEEN.with_borrow_mut(|seen| {
        if let Some(seen) = seen {
            seen.push(format!("{change} {}", place.display()));
        }
    });
    match ARMED.get() {
        None => Ok(()),
        Some((0, fault)) => {
            HITS.set(HITS.get() + 1);
            match fault {
                Fault::Once(errno) => {
                    ARMED.set(None);
                    Err(errno)
                }
                Fault::Dead => Err(Errno::IO),
            }
        }
        Some((calls, fault)) => {
            ARMED.set(Some((calls - 1, fault)));
            Ok(())
        }
    }
}
