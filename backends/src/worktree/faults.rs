//! The places where a restore can be stopped by a test: before every call that changes anything.
//!
//! In a program that is not a test nothing here does anything.

use std::io;

/// Asked before every call that changes the disk; an error means that it must not be made.
#[cfg(not(test))]
#[inline]
pub(crate) fn before() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use armed::{Fault, before, with};

#[cfg(test)]
mod armed {
    use super::io;
    use std::cell::Cell;

    /// What goes wrong on this thread.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Fault {
        /// Nothing; calls are counted.
        None,
        /// The process dies: neither this call nor any later one is made.
        StopBefore(u64),
        /// This one call fails.
        FailAt(u64, i32),
    }

    thread_local! {
        static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
        static CALLS: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn before() -> io::Result<()> {
        let call = CALLS.get();
        CALLS.set(call + 1);
        match FAULT.get() {
            Fault::StopBefore(at) if call >= at => Err(io::Error::other("the process died")),
            Fault::FailAt(at, errno) if call == at => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }

    /// Runs `work` with a fault, and answers with how many calls it wanted to make as well.
    pub(crate) fn with<T>(fault: Fault, work: impl FnOnce() -> T) -> (T, u64) {
        FAULT.set(fault);
        CALLS.set(0);
        let answer = work();
        FAULT.set(Fault::None);
        (answer, CALLS.get())
    }
}
