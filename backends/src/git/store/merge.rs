//! Merging small packs during captures. Each capture makes a pack and looks at all packs; without
//! merging, a capture would cost more the more captures came before it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::collect::OwnPack;
use super::{PackSet, Store};
use crate::error::PathError;
use crate::operation::Operation;
use crate::store_error::StoreError;

/// With more small packs than this some of them are merged. To look at one costs about ten
/// microseconds, to merge some three syncs.
const MAX_SMALL_PACKS: usize = 50;
/// A larger pack is no small one.
const MAX_SMALL_BYTES: u64 = 8 << 20;
/// So much is copied at most for one capture: a tenth of a second.
const MAX_COPIED_BYTES: u64 = 32 << 20;

impl Store {
    /// Merges small packs of our own into one if there are many. Best effort: what is not merged is
    /// read where it is.
    ///
    /// The caller holds the lock of the workspace. Everything stays readable throughout, also if
    /// this is killed: what is removed is durable elsewhere, and no note relies on it any more.
    pub(crate) fn merge_small_packs(&self, op: &Operation) {
        // A pack that cannot be read is reported by the operation that needs it.
        let _ = self.try_merging(op);
    }

    fn try_merging(&self, op: &Operation) -> Result<(), StoreError> {
        let set = self.packs()?;
        if set.packs.len() <= MAX_SMALL_PACKS {
            return Ok(());
        }
        let mut small = Vec::new();
        for pack in &set.packs {
            let meta =
                fs::symlink_metadata(pack.path()).map_err(PathError::at("look at", pack.path()))?;
            if meta.len() <= MAX_SMALL_BYTES
                && let Some(own) = OwnPack::of(op, pack, |_| true)?
            {
                small.push((meta.len(), own));
            }
        }
        if small.len() <= MAX_SMALL_PACKS {
            return Ok(());
        }
        small.sort_by_key(|(bytes, _)| *bytes);
        let sizes: Vec<u64> = small.iter().map(|(bytes, _)| *bytes).collect();
        let number = how_many(&sizes);
        if number < 2 {
            return Ok(());
        }
        let merged: Vec<OwnPack<'_>> = small.into_iter().take(number).map(|(_, own)| own).collect();
        let replaced = self.copy_together(op, &merged)?;
        self.refresh()?;
        self.let_go_of(&replaced);
        // What is removed must not be relied on by the next capture.
        self.vouch(op);
        Ok(self.unlink_packs(op, &replaced)?)
    }

    /// Forgets packs whose objects are all in others, before they are removed.
    fn let_go_of(&self, replaced: &[PathBuf]) {
        self.no_longer_vouch_for(replaced);
        let mut held = self.packs.lock().expect("no panic while it is held");
        let is_kept = |path: &Path| !replaced.iter().any(|gone| gone == path);
        let directory = self.pack_dir();
        let names = held.names.iter();
        let names = names.filter(|name| is_kept(&directory.join(name).with_extension("pack")));
        let kept = PackSet {
            names: names.cloned().collect(),
            packs: held
                .packs
                .iter()
                .filter(|pack| is_kept(pack.path()))
                .cloned()
                .collect(),
            doubted: held.doubted.clone(),
            broken: held.broken.clone(),
        };
        *held = Arc::new(kept);
    }
}

/// How many of the smallest are merged, by their sizes in ascending order: so that one that was
/// merged is merged again only with as much as it has itself, and no byte is copied more often than
/// the number of captures has digits in base two.
fn how_many(sizes: &[u64]) -> usize {
    let mut sum = 0;
    let mut number = 0;
    for (at, size) in sizes.iter().enumerate() {
        if sum + size > MAX_COPIED_BYTES {
            break;
        }
        if *size <= sum || at == 0 || *size == sizes[at - 1] {
            number = at + 1;
        }
        sum += size;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::faults::{Fault, one_of_each};
    use crate::git::test_repository::TestRepository;
    use crate::record::Record;
    use crate::trial;

    /// A store with one small pack more than it should have. In memory, because it syncs hundreds
    /// of times.
    fn crowded() -> (TestStore, Vec<Record>) {
        let test = TestStore::beside(TestRepository::in_memory());
        let publish = |n: usize| test.publish(&owner("s", "r"), &[("f", n.to_string())]);
        let records = (0..=MAX_SMALL_PACKS).map(publish).collect();
        (test, records)
    }

    #[test]
    fn a_store_never_has_many_small_packs_and_all_that_was_published_stays() {
        let (test, mut records) = crowded();
        for n in 0..150 {
            let store = &test.store;
            store.is_vouched_for(&Operation::unbounded()).unwrap();
            store.vouch(&Operation::unbounded());
            store.merge_small_packs(&Operation::unbounded());
            assert!(test.packs().len() <= MAX_SMALL_PACKS, "{n}");
            assert!(
                test.reopened()
                    .is_vouched_for(&Operation::unbounded())
                    .unwrap(),
                "what is gone is not relied on"
            );
            let text = format!("later {n}");
            records.push(test.publish(&owner("s", "r"), &[("f", text)]));
        }
        for record in &records {
            assert_eq!(test.problems(record), []);
        }
        assert_eq!(test.reopened().snapshots().unwrap(), records);
        test.fsck();
    }

    #[test]
    fn what_dies_while_it_merges_loses_nothing() {
        let mut endings = std::collections::BTreeSet::new();
        for call in one_of_each(18) {
            let (test, records) = crowded();
            test.store.is_vouched_for(&Operation::unbounded()).unwrap();
            test.store.vouch(&Operation::unbounded());
            let dies = Fault::StopBefore(call);
            let ((), calls) = trial::with(dies, |op| test.store.merge_small_packs(op));
            if calls <= call {
                break;
            }
            let reopened = test.reopened();
            assert_eq!(reopened.snapshots().unwrap(), records, "{call}");
            for record in &records {
                assert_eq!(test.problems(record), [], "{call}");
            }
            endings.insert(test.packs().len() < records.len());
            reopened
                .remove_temporaries(&Operation::unbounded())
                .unwrap();
            test.fsck();
        }
        assert_eq!(endings.len(), 2, "the loop crossed the removal");
    }

    #[test]
    fn what_was_merged_is_merged_again_with_as_much_as_it_has_itself() {
        for (sizes, expected) in [
            (vec![1; 51], 51),
            ([vec![1; 50], vec![51]].concat(), 50),
            ([vec![1; 50], vec![50, 51]].concat(), 52),
            ([vec![1; 50], vec![51, 102, 204]].concat(), 50),
            (vec![MAX_SMALL_BYTES; 51], 4),
            (vec![1, 10, 100], 1),
        ] {
            assert_eq!(how_many(&sizes), expected, "{sizes:?}");
        }
    }
}
