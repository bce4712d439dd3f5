//! How much an operation may add to what is kept.
//!
//! What is written into a store asks for room first, temporary files included, and gives it back when it is
//! removed without having got its name. So a limit holds at every moment, and not only in the end. Like
//! the wish to stop, the room belongs to a thread and those that it starts.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stillframe_model::exceeded::Exceeded;
use stillframe_model::size::printable_size;

/// What an operation may add, and what it has added. Zero: no limit.
#[derive(Debug, Default)]
pub struct Room {
    /// For what is written, in bytes.
    max_new_bytes: u64,
    new_bytes: AtomicU64,
    /// For all that the store occupies, in bytes; a hard link counts like any other file.
    max_store_bytes: u64,
    store_bytes: AtomicU64,
    /// What the store occupied when the operation began.
    began_with_bytes: u64,
    /// What was refused first.
    refused: Mutex<Option<Exceeded>>,
}

impl Room {
    /// For an operation on a store that occupies `store_bytes`.
    pub fn new(max_new_bytes: u64, max_store_bytes: u64, store_bytes: u64) -> Self {
        Self {
            max_new_bytes,
            max_store_bytes,
            store_bytes: AtomicU64::new(store_bytes),
            began_with_bytes: store_bytes,
            ..Self::default()
        }
    }

    fn take(&self, new: u64, linked: u64) -> Result<(), Exceeded> {
        self.try_take(new, linked).inspect_err(|exceeded| {
            let mut refused = self.refused.lock().expect("no panic while it is held");
            refused.get_or_insert_with(|| exceeded.clone());
        })
    }

    fn try_take(&self, new: u64, linked: u64) -> Result<(), Exceeded> {
        let add = |to: &AtomicU64, bytes: u64, limit: u64| {
            let fits = |now: u64| {
                let sum = now.saturating_add(bytes);
                (limit == 0 || sum <= limit).then_some(sum)
            };
            let added = to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
            added.map(drop).map_err(|now| now.saturating_add(bytes))
        };
        add(&self.new_bytes, new, self.max_new_bytes).map_err(|actual| Exceeded {
            what: format!(
                "what the capture would store anew, in bytes ({}),",
                of(actual, self.max_new_bytes)
            ),
            limit: self.max_new_bytes,
            actual,
        })?;
        let bytes = new.saturating_add(linked);
        add(&self.store_bytes, bytes, self.max_store_bytes).map_err(|actual| {
            self.new_bytes.fetch_sub(new, Ordering::Relaxed);
            Exceeded {
                what: format!(
                    "what the store would occupy, which had {}, in bytes ({}),",
                    printable_size(self.began_with_bytes),
                    of(actual, self.max_store_bytes)
                ),
                limit: self.max_store_bytes,
                actual,
            }
        })
    }

    fn give_back(&self, new: u64, linked: u64) {
        self.new_bytes.fetch_sub(new, Ordering::Relaxed);
        self.store_bytes.fetch_sub(new + linked, Ordering::Relaxed);
    }
}

/// So much where there may be so much, for people.
fn of(actual: u64, limit: u64) -> String {
    let (actual, limit) = (printable_size(actual), printable_size(limit));
    format!("{actual} for {limit} at most")
}

thread_local! {
    static ROOM: RefCell<Given> = const { RefCell::new(Given(None)) };
}

/// The room that a thread has; without one there is no limit.
#[derive(Clone, Debug)]
pub struct Given(Option<Arc<Room>>);

impl Given {
    /// That of this thread.
    pub fn of_this_thread() -> Self {
        ROOM.with_borrow(Clone::clone)
    }

    /// Makes it that of this thread, until the thread ends.
    pub fn enter(&self) {
        ROOM.set(self.clone());
    }
}

/// Does `work` with no more room than this.
pub fn within<T>(room: Room, work: impl FnOnce() -> T) -> T {
    /// Gives the thread back what it had, also after a panic.
    struct Before(Option<Given>);
    impl Drop for Before {
        fn drop(&mut self) {
            ROOM.set(self.0.take().expect("it is dropped once"));
        }
    }
    let _before = Before(Some(ROOM.replace(Given(Some(Arc::new(room))))));
    work()
}

/// What was first refused of the room that this thread has, if anything was.
pub fn refused() -> Option<Exceeded> {
    ROOM.with_borrow(|given| {
        let refused = &given.0.as_ref()?.refused;
        refused.lock().expect("no panic while it is held").clone()
    })
}

/// The room that a file takes: dropping it gives it back.
#[derive(Debug)]
pub struct Taken {
    given: Given,
    new: AtomicU64,
    linked: AtomicU64,
}

impl Taken {
    /// None as yet, of what this thread has.
    pub fn nothing() -> Self {
        Self {
            given: Given::of_this_thread(),
            new: AtomicU64::new(0),
            linked: AtomicU64::new(0),
        }
    }

    /// Whether there is any limit, so that it has to be known how much is taken.
    pub fn is_limited(&self) -> bool {
        let limits = |room: &Arc<Room>| room.max_new_bytes != 0 || room.max_store_bytes != 0;
        self.given.0.as_ref().is_some_and(limits)
    }

    /// Takes as much as a file needs that is to have `length` bytes.
    pub fn up_to(&self, length: u64) -> Result<(), Exceeded> {
        let Some(room) = &self.given.0 else {
            return Ok(());
        };
        let had = self.new.load(Ordering::Relaxed);
        if length > had {
            room.take(length - had, 0)?;
            self.new.store(length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes as much as a file needs that has its bytes already, under another name.
    pub fn linked(&self, length: u64) -> Result<(), Exceeded> {
        if let Some(room) = &self.given.0 {
            room.take(0, length)?;
            self.linked.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The file was cut off behind `length` bytes.
    pub fn down_to(&self, length: u64) {
        let Some(room) = &self.given.0 else {
            return;
        };
        let had = self.new.load(Ordering::Relaxed);
        if length < had {
            room.give_back(had - length, 0);
            self.new.store(length, Ordering::Relaxed);
        }
    }

    /// The file stays.
    pub fn keep(self) {
        self.new.store(0, Ordering::Relaxed);
        self.linked.store(0, Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(room) = &self.given.0 {
            let (new, linked) = (self.new.get_mut(), self.linked.get_mut());
            room.give_back(*new, *linked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_by_what_goes_and_not_by_what_stays() {
        within(Room::new(10, 0, 1000), || {
            let first = Taken::nothing();
            first.up_to(6).unwrap();
            let second = Taken::nothing();
            let refused = second.up_to(5).unwrap_err();
            assert_eq!((refused.limit, refused.actual), (10, 11));
            assert_eq!(super::refused(), Some(refused));
            second.up_to(4).unwrap();
            second.down_to(1);
            drop(first);
            second.up_to(9).unwrap();
            second.keep();
            Taken::nothing().up_to(1).unwrap();
            Taken::nothing().up_to(2).unwrap_err();
        });
        assert_eq!(refused(), None);
        Taken::nothing().up_to(u64::MAX).unwrap();
    }

    #[test]
    fn what_is_there_and_what_is_linked_count_for_the_store_alone() {
        within(Room::new(3, 100, 90), || {
            let taken = Taken::nothing();
            taken.linked(9).unwrap();
            taken.up_to(1).unwrap();
            let refused = taken.up_to(2).unwrap_err();
            assert_eq!((refused.limit, refused.actual), (100, 101));
            let said = refused.to_string();
            assert!(said.contains("(101 bytes for 100 bytes at most)"), "{said}");
            assert!(
                refused.to_string().contains("which had 90 bytes"),
                "{refused}"
            );
            drop(taken);
            Taken::nothing().up_to(3).unwrap();
        });
    }

    #[test]
    fn threads_share_what_there_is() {
        within(Room::new(100, 0, 0), || {
            let items = [(); 40];
            let took = crate::parallel::map(&items, 1, |()| {
                let taken = Taken::nothing();
                let took = taken.up_to(10).is_ok();
                taken.keep();
                took
            });
            assert_eq!(took.into_iter().filter(|took| *took).count(), 10);
        });
    }
}
