//! How much an operation may add to a store.
//!
//! A writer reserves bytes before it writes them into a store, also those of temporary files, and
//! releases them if the temporary file is removed. So the store never exceeds its limit, not even
//! for a moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stillframe_model::exceeded::Exceeded;
use stillframe_model::size::printable_size;

/// What an operation may add, and what it has added. Zero: no limit.
#[derive(Debug, Default)]
pub struct Quota {
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

impl Quota {
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

    /// What was refused first.
    pub(crate) fn refused(&self) -> Option<Exceeded> {
        self.refused
            .lock()
            .expect("no panic while it is held")
            .clone()
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

/// What is reserved for a file: dropping it gives it back.
#[derive(Debug)]
pub struct Reserved {
    quota: Option<Arc<Quota>>,
    new: AtomicU64,
    linked: AtomicU64,
}

impl Reserved {
    /// Nothing as yet, of what `quota` has; without one there is no limit.
    pub(crate) fn of(quota: Option<&Arc<Quota>>) -> Self {
        Self {
            quota: quota.cloned(),
            new: AtomicU64::new(0),
            linked: AtomicU64::new(0),
        }
    }

    /// Whether there is any limit, so that it has to be known how much is taken.
    pub fn is_limited(&self) -> bool {
        let limits = |quota: &Arc<Quota>| quota.max_new_bytes != 0 || quota.max_store_bytes != 0;
        self.quota.as_ref().is_some_and(limits)
    }

    /// Reserves as much as a file needs that is to have `length` bytes.
    pub fn up_to(&self, length: u64) -> Result<(), Exceeded> {
        let Some(quota) = &self.quota else {
            return Ok(());
        };
        let had = self.new.load(Ordering::Relaxed);
        if length > had {
            quota.take(length - had, 0)?;
            self.new.store(length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reserves as much as a file needs that has its bytes already, under another name.
    pub fn linked(&self, length: u64) -> Result<(), Exceeded> {
        if let Some(quota) = &self.quota {
            quota.take(0, length)?;
            self.linked.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The file was cut off behind `length` bytes.
    pub fn down_to(&self, length: u64) {
        let Some(quota) = &self.quota else {
            return;
        };
        let had = self.new.load(Ordering::Relaxed);
        if length < had {
            quota.give_back(had - length, 0);
            self.new.store(length, Ordering::Relaxed);
        }
    }

    /// The file stays.
    pub fn keep(self) {
        self.new.store(0, Ordering::Relaxed);
        self.linked.store(0, Ordering::Relaxed);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(quota) = &self.quota {
            let (new, linked) = (self.new.get_mut(), self.linked.get_mut());
            quota.give_back(*new, *linked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;

    fn within(quota: Quota) -> Operation {
        Operation::unbounded().within(quota)
    }

    #[test]
    fn what_is_reserved_is_given_back_by_what_goes_and_not_by_what_stays() {
        let op = within(Quota::new(10, 0, 1000));
        let first = op.reserve();
        first.up_to(6).unwrap();
        let second = op.reserve();
        let refused = second.up_to(5).unwrap_err();
        assert_eq!((refused.limit, refused.actual), (10, 11));
        assert_eq!(op.refused(), Some(refused));
        second.up_to(4).unwrap();
        second.down_to(1);
        drop(first);
        second.up_to(9).unwrap();
        second.keep();
        op.reserve().up_to(1).unwrap();
        op.reserve().up_to(2).unwrap_err();
        assert_eq!(Operation::unbounded().refused(), None);
        Operation::unbounded().reserve().up_to(u64::MAX).unwrap();
    }

    #[test]
    fn what_is_there_and_what_is_linked_count_for_the_store_alone() {
        let op = within(Quota::new(3, 100, 90));
        let reserved = op.reserve();
        reserved.linked(9).unwrap();
        reserved.up_to(1).unwrap();
        let refused = reserved.up_to(2).unwrap_err();
        assert_eq!((refused.limit, refused.actual), (100, 101));
        let said = refused.to_string();
        assert!(said.contains("(101 bytes for 100 bytes at most)"), "{said}");
        assert!(
            refused.to_string().contains("which had 90 bytes"),
            "{refused}"
        );
        drop(reserved);
        op.reserve().up_to(3).unwrap();
    }

    #[test]
    fn threads_share_what_there_is() {
        let op = within(Quota::new(100, 0, 0));
        let items = [(); 40];
        let took = crate::parallel::map(&items, 1, |()| {
            let reserved = op.reserve();
            let took = reserved.up_to(10).is_ok();
            reserved.keep();
            took
        });
        assert_eq!(took.into_iter().filter(|took| *took).count(), 10);
    }
}
