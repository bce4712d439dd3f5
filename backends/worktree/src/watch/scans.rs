//! Looking for processes that have files open, on a background thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Rounds of some work that takes long, done one after the other by a thread that is there only
/// while there is something to do.
///
/// A request for a round returns its number, and the caller may wait for its end. A round that was
/// asked for while one was under way begins after that.
#[derive(Debug, Default)]
pub(super) struct Scans {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: u64,
    done: u64,
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

/// The owner of this does the rounds. If a panic drops it, waiting callers learn that no more
/// rounds follow.
struct Turn<'a>(&'a Scans);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().is_running = false;
        self.0.ended.notify_all();
    }
}

impl Scans {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No change of the guarded value can be left half-way by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a round that begins after this call, and answers with its number. It is done once
    /// somebody calls [`Scans::start`].
    pub(super) fn want(&self) -> u64 {
        let mut state = self.lock();
        state.wanted += 1;
        state.wanted
    }

    /// Has all wanted rounds done. `round` does the one of a number, and answers whether it came to
    /// its end; after one that did not no other begins. Where no thread can be had they are done
    /// before this returns.
    pub(super) fn start<T: AsRef<Scans> + Send + Sync + 'static>(
        owner: &Arc<T>,
        round: impl Fn(&T, u64) -> bool + Send + Clone + 'static,
    ) {
        let scans: &Self = (**owner).as_ref();
        let mut state = scans.lock();
        if state.is_running || state.done == state.wanted {
            return;
        }
        state.is_running = true;
        // It is through with its work: to join it takes no time.
        let before = state.thread.take();
        drop(state);
        if let Some(before) = before {
            let _ = before.join();
        }
        let spawned = {
            let (owner, round) = (Arc::clone(owner), round.clone());
            std::thread::Builder::new()
                .name("stillframe-holders".to_owned())
                .spawn(move || (*owner).as_ref().work(&|number| round(&owner, number)))
        };
        match spawned {
            Ok(thread) => scans.lock().thread = Some(thread),
            Err(_) => scans.work(&|number| round(owner, number)),
        }
    }

    /// Does what is asked for until there is nothing more.
    fn work(&self, round: &dyn Fn(u64) -> bool) {
        let turn = Turn(self);
        let mut state = self.lock();
        while state.done < state.wanted {
            let number = state.done + 1;
            drop(state);
            if !round(number) {
                return;
            }
            state = self.lock();
            state.done = number;
            self.ended.notify_all();
        }
        // Under the same lock as the check for requests, so that no request is lost.
        state.is_running = false;
        drop(state);
        std::mem::forget(turn);
        self.ended.notify_all();
    }

    /// For the one who does a round: whether no other was asked for meanwhile.
    pub(super) fn is_last(&self) -> bool {
        let state = self.lock();
        state.done + 1 == state.wanted
    }

    /// Whether all that was asked for is done, or is going to be.
    pub(super) fn are_going_on(&self) -> bool {
        let state = self.lock();
        state.is_running || state.done == state.wanted
    }

    /// Waits for the round `number`; false if it will not come to its end.
    pub(super) fn wait_for(&self, number: u64) -> bool {
        let mut state = self.lock();
        while state.done < number && state.is_running {
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.done >= number
    }

    /// Waits for all that was asked for; false if it will not come to its end.
    pub(super) fn wait(&self) -> bool {
        let wanted = self.lock().wanted;
        self.wait_for(wanted)
    }

    /// Waits until the thread has ended. Call it only when no more rounds will be requested.
    pub(super) fn join(&self) {
        let thread = self.lock().thread.take();
        if let Some(thread) = thread {
            // A panic there was told to all who waited.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Owner(Scans);

    impl AsRef<Scans> for Owner {
        fn as_ref(&self) -> &Scans {
            &self.0
        }
    }

    fn owner() -> Arc<Owner> {
        Arc::new(Owner(Scans::default()))
    }

    #[test]
    fn each_round_that_is_asked_for_begins_after_that() {
        let owner = owner();
        let (allow, allowed) = mpsc::channel::<()>();
        let allowed = Arc::new(Mutex::new(allowed));
        let (tell, told) = mpsc::channel();
        let round = move |_: &Owner, number| {
            tell.send(number).unwrap();
            allowed.lock().unwrap().recv().is_ok()
        };
        assert_eq!(owner.0.want(), 1);
        Scans::start(&owner, round.clone());
        assert_eq!(told.recv(), Ok(1));
        assert!(owner.0.is_last());
        assert_eq!(owner.0.want(), 2, "one is under way");
        Scans::start(&owner, round.clone());
        assert!(!owner.0.is_last() && owner.0.are_going_on());
        allow.send(()).unwrap();
        assert!(owner.0.wait_for(1));
        assert_eq!(told.recv(), Ok(2));
        allow.send(()).unwrap();
        assert!(owner.0.wait() && owner.0.are_going_on());
        assert_eq!(owner.0.want(), 3);
        Scans::start(&owner, round);
        allow.send(()).unwrap();
        assert!(owner.0.wait());
        owner.0.join();
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn nobody_waits_for_a_round_that_will_not_end() {
        for does_panic in [false, true] {
            let owner = owner();
            let number = owner.0.want();
            Scans::start(&owner, move |_: &Owner, _| {
                assert!(!does_panic, "it may");
                false
            });
            assert!(!owner.0.wait_for(number));
            assert!(!owner.0.wait());
            assert!(!owner.0.are_going_on());
            owner.0.join();
        }
    }
}
