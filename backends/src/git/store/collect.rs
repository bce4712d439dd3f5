//! Garbage collection: removing objects that no ref needs.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    MAX_COMMIT_BYTES, ObjectPlace, PackSet, Store, check_kind, missing, no_sink, parse_commit,
};
use crate::caches::SHORTCUTS;
use crate::contents::ContentError;
use crate::durable;
use crate::error::{ErrorKind, PathError};
use crate::git::pack::{CHECKSUM_BYTES, Pack, TEMPORARY_PREFIX};
use crate::git::tree_object::{self, ItemKind, Trees};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// With more packs of our own than this they are merged: every lookup goes through all of them.
const MAX_OWN_PACKS: usize = 50;
/// This many unneeded bytes are left in a pack of any size.
const MAX_WASTED_BYTES: u64 = 64 << 10;
/// Merging is for the many small ones; a pack with more than this that is needed stays as it is.
const MAX_MERGED_BYTES: u64 = 32 << 20;

impl Store {
    /// Removes the packs and loose objects in which no ref needs anything, and rewrites our own
    /// packs that [waste](OwnPack::is_wasteful) much, if there is space for that; merges them when
    /// they are many. Answers by how many bytes [`Store::bytes`] fell.
    ///
    /// The caller holds the lock of the workspace. What is needed stays readable throughout, also
    /// if this is killed. If something that is needed is missing or damaged, nothing is removed.
    pub(crate) fn collect(&self, op: &Operation) -> Result<u64, StoreError> {
        let before = self.bytes()?;
        self.forget_vouched(op)?;
        self.remove_temporaries(op)?;
        let purged = self.purged()?;
        // What a killed purge left is not needed either.
        self.drop_purged(op, &purged)?;
        self.refresh()?;
        let set = self.packs()?;
        let mut live = self.live(op)?;
        live.retain(|id| !purged.contains(&(*id).into()));
        if let Some(id) = self.missing_of(op, &set, live.clone())?.first() {
            return Err(missing(id));
        }
        let uses = self.uses(op, &set, &live)?;
        let unused = uses.iter().filter(|u| u.needed.is_empty());
        let mut unneeded: Vec<PathBuf> = unused.map(|u| u.pack.path().to_owned()).collect();
        unneeded.extend(set.broken.iter().map(|(path, _)| path.clone()));
        // First, so that there is space for what is rewritten.
        self.remove_packs(op, &unneeded)?;
        self.remove_loose_but(op, &live)?;
        self.forget_gone_names(op)?;
        match self.rewrite(op, &uses) {
            Ok(replaced) => self.remove_packs(op, &replaced)?,
            // Everything is where it was, and the next clean-up comes to it again.
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            Err(error) => return Err(error),
        }
        self.refresh()?;
        Ok(before.saturating_sub(self.bytes()?))
    }

    /// Every object that a ref needs, sorted and unique, what was purged among them. Files are not
    /// looked for.
    pub(super) fn live(&self, op: &Operation) -> Result<Vec<ObjectId>, StoreError> {
        self.live_of(op, None)
    }

    /// As [`Store::live`], for the refs that begin with `prefix`.
    pub(super) fn live_of(
        &self,
        op: &Operation,
        prefix: Option<&str>,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let mut live = HashSet::new();
        let (mut trees, mut trees_on_remote) = (Vec::new(), Vec::new());
        let ends = self.history_ends()?;
        let mut commits: Vec<(ObjectId, bool)> = Vec::new();
        let refs = self.refs.all()?.into_iter();
        let refs = refs.filter(|(name, _)| prefix.is_none_or(|prefix| name.starts_with(prefix)));
        commits.extend(refs.map(|(_, id)| (id, true)));
        while let Some((id, is_named)) = commits.pop() {
            if live.contains(&id) {
                continue;
            }
            // A parent that the store does not have belongs to the user's history.
            if !is_named && !self.contains(&id)? {
                continue;
            }
            let (kind, bytes) = self.read(op, &id, MAX_COMMIT_BYTES)?;
            check_kind(&id, kind, ObjectKind::Commit)?;
            let commit = parse_commit(&bytes)
                .ok_or_else(|| StoreError::corrupt(id.to_string(), "the commit is malformed"))?;
            live.insert(id);
            if ends.has(&id) {
                trees_on_remote.push(commit.tree);
                continue;
            }
            trees.push(commit.tree);
            commits.extend(commit.parents.into_iter().map(|parent| (parent, false)));
        }
        // What can be had from elsewhere need not be here, wherever else it is named.
        let mut elsewhere = HashSet::new();
        while let Some(id) = trees_on_remote.pop() {
            if elsewhere.contains(&id) || live.contains(&id) {
                continue;
            }
            if !self.contains(&id)? {
                elsewhere.insert(id);
                continue;
            }
            live.insert(id);
            for item in self.tree(op, &id)? {
                match item.kind {
                    ItemKind::Directory => trees_on_remote.push(item.id),
                    ItemKind::Entry(_) if self.contains(&item.id)? => drop(live.insert(item.id)),
                    ItemKind::Entry(_) => drop(elsewhere.insert(item.id)),
                    ItemKind::Submodule => {}
                }
            }
        }
        while let Some(id) = trees.pop() {
            if id == tree_object::empty_tree_id() {
                // Not every store has it, and none needs it.
                if self.contains(&id)? {
                    live.insert(id);
                }
                continue;
            }
            if elsewhere.contains(&id) || !live.insert(id) {
                continue;
            }
            for item in self.tree(op, &id)? {
                match item.kind {
                    ItemKind::Directory => trees.push(item.id),
                    ItemKind::Entry(_) if elsewhere.contains(&item.id) => {}
                    ItemKind::Entry(_) => drop(live.insert(item.id)),
                    ItemKind::Submodule => {}
                }
            }
        }
        let mut live: Vec<_> = live.into_iter().collect();
        live.sort_unstable();
        Ok(live)
    }

    /// What each pack is needed for. A pack whose objects are all in larger ones too is needed for
    /// nothing, once those were read and found right.
    fn uses(
        &self,
        op: &Operation,
        set: &PackSet,
        live: &[ObjectId],
    ) -> Result<Vec<Use>, StoreError> {
        let mut uses = Vec::with_capacity(set.packs.len());
        for pack in &set.packs {
            let mut needed = Vec::new();
            pack.index
                .each_hit(op, live, &mut |at| needed.push(live[at]))?;
            uses.push(Use {
                pack: Arc::clone(pack),
                needed,
            });
        }
        uses.sort_by_key(|u| std::cmp::Reverse(u.needed.len()));
        for at in (0..uses.len()).rev() {
            let (larger, rest) = uses.split_at(at);
            let mut elsewhere = rest[0].needed.clone();
            for other in larger {
                other.pack.index.retain_missing(op, &mut elsewhere)?;
            }
            if elsewhere.is_empty() && self.are_right_in(op, larger, &rest[0].needed)? {
                uses[at].needed.clear();
            }
        }
        Ok(uses)
    }

    /// Whether each of `ids` can be read from one of `packs`.
    fn are_right_in(
        &self,
        op: &Operation,
        packs: &[Use],
        ids: &[ObjectId],
    ) -> Result<bool, StoreError> {
        for id in ids {
            let mut is_right = false;
            for pack in packs.iter().map(|u| &u.pack) {
                let Some(offset) = pack.index.find(id)? else {
                    continue;
                };
                match self.pass_on(op, ObjectPlace::Pack(pack, offset), id, &mut io::sink()) {
                    Ok(_) => is_right = true,
                    Err(ContentError::Store(StoreError::Corrupt { .. })) => {}
                    Err(error) => return Err(no_sink(error)),
                }
                if is_right {
                    break;
                }
            }
            if !is_right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes what is needed of wasteful packs into a new one; answers with the old ones.
    fn rewrite(&self, op: &Operation, uses: &[Use]) -> Result<Vec<PathBuf>, StoreError> {
        let mut own = Vec::new();
        for one in uses.iter().filter(|u| !u.needed.is_empty()) {
            let is_needed = |id: &ObjectId| one.needed.binary_search(id).is_ok();
            own.extend(OwnPack::of(op, &one.pack, is_needed)?);
        }
        let is_crowded = own.len() > MAX_OWN_PACKS;
        own.retain(|p| p.is_wasteful() || (is_crowded && p.needed_bytes <= MAX_MERGED_BYTES));
        if own.is_empty() {
            return Ok(Vec::new());
        }
        self.copy_together(op, &own)
    }

    /// Writes what is kept of some packs into a new one, durably; answers with those that nothing
    /// is kept of any more that the new one does not have.
    pub(super) fn copy_together(
        &self,
        op: &Operation,
        packs: &[OwnPack<'_>],
    ) -> Result<Vec<PathBuf>, StoreError> {
        let writer = self.writer(op)?;
        let mut replaced = Vec::new();
        for old in packs {
            let copied = old.entries.iter().try_for_each(|entry| {
                let place = (entry.offset, entry.length);
                writer.add_entry_of(old.pack, entry.id, place, entry.crc32)
            });
            match copied {
                Ok(()) => replaced.push(old.pack.path().to_owned()),
                // It stays as it is, for `verify` to name.
                Err(StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let finished = writer.finish()?;
        // The same objects in the same order make the same pack.
        replaced.retain(|path| finished.as_ref().is_none_or(|f| f.path != *path));
        Ok(replaced)
    }

    /// Removes packs with everything that git puts beside them, durably.
    pub(super) fn remove_packs(&self, op: &Operation, packs: &[PathBuf]) -> Result<(), StoreError> {
        if packs.is_empty() {
            return Ok(());
        }
        self.unlink_packs(op, packs)?;
        Ok(durable::sync_directory(op, &self.pack_dir())?)
    }

    /// As [`Store::remove_packs`]; a power cut may bring them back.
    pub(super) fn unlink_packs(&self, op: &Operation, packs: &[PathBuf]) -> Result<(), PathError> {
        let directory = self.pack_dir();
        // Made by a git that was run by hand, it would name packs that are gone.
        durable::remove_file(op, &directory.join("multi-pack-index"))?;
        for pack in packs {
            // The index first: a pack without an index is ignored.
            for extension in ["idx", "pack", "rev", "bitmap", "mtimes", "keep", "promisor"] {
                durable::remove_file(op, &pack.with_extension(extension))?;
            }
        }
        Ok(())
    }

    /// `needed` is sorted.
    fn remove_loose_but(&self, op: &Operation, needed: &[ObjectId]) -> Result<(), StoreError> {
        let objects = self.git_dir.join("objects");
        for shard in list(&objects)? {
            if name_of(&shard).is_none_or(|name| name.len() != 2) {
                continue;
            }
            for path in list(&shard)? {
                let id = name_of(&shard)
                    .zip(name_of(&path))
                    .and_then(|(a, b)| format!("{a}{b}").parse::<ObjectId>().ok());
                if id.is_some_and(|id| needed.binary_search(&id).is_err()) {
                    durable::remove_file(op, &path)?;
                }
            }
            // It goes when it is empty.
            let _ = fs::remove_dir(&shard);
        }
        Ok(())
    }

    /// Removes what interrupted work left behind. The lock of the workspace says that nobody else
    /// is at work.
    pub(crate) fn remove_temporaries(&self, op: &Operation) -> Result<(), StoreError> {
        let objects = self.git_dir.join("objects");
        let shards = list(&objects)?.into_iter().filter(|p| p.is_dir());
        let by_id = self.git_dir.join(SHORTCUTS);
        let by_id = Some(by_id).filter(|directory| directory.is_dir());
        for directory in shards.chain([self.git_dir.clone()]).chain(by_id) {
            for path in list(&directory)? {
                let is_leftover = name_of(&path)
                    .is_some_and(|n| n.starts_with(TEMPORARY_PREFIX) || n.starts_with(".tmp-"));
                if is_leftover && path.symlink_metadata().is_ok_and(|m| m.is_file()) {
                    durable::remove_file(op, &path)?;
                }
            }
        }
        // A pack without an index, or the reverse, is what a kill between the two leaves.
        let directory = self.pack_dir();
        for path in list(&directory)? {
            if path.extension().is_none_or(|e| e != "pack") {
                continue;
            }
            let index = path.with_extension("idx");
            // An index that cannot be looked at may be there, and then its pack is needed.
            let is_there = match index.try_exists() {
                Err(_) if seeded_bug!("look-error-is-absence") => false,
                looked => looked.map_err(PathError::at("look at", &index))?,
            };
            if !is_there {
                durable::remove_file(op, &path)?;
            }
        }
        Ok(())
    }
}

/// A pack, and what it is needed for.
struct Use {
    pack: Arc<Pack>,
    /// Sorted and unique.
    needed: Vec<ObjectId>,
}

/// A pack of our own, which can be rewritten without loss.
pub(super) struct OwnPack<'a> {
    pack: &'a Pack,
    /// The needed entries, in the order of the file.
    entries: Vec<NeededEntry>,
    /// The size of the needed entries.
    needed_bytes: u64,
    /// The length of the pack.
    bytes: u64,
}

struct NeededEntry {
    id: ObjectId,
    offset: u64,
    length: u64,
    crc32: u32,
}

impl<'a> OwnPack<'a> {
    /// Whether rewriting the pack frees enough space. A small pack that captures have merged may
    /// have many needed objects beside those of one removed snapshot, so a sixteenth is enough
    /// there; the copy is small.
    fn is_wasteful(&self) -> bool {
        let wasted = self.bytes - self.needed_bytes;
        let is_small = self.needed_bytes <= MAX_MERGED_BYTES;
        self.needed_bytes < self.bytes / 2
            || (is_small && wasted > MAX_WASTED_BYTES.max(self.bytes / 16))
    }

    /// A pack, and those of its objects that are kept. `None` if it came from the user's
    /// repository. As long as it has a second name there, it costs nothing, and a copy of a part
    /// would. Later its deltas show it: they would grow.
    pub(super) fn of(
        op: &Operation,
        pack: &'a Pack,
        is_kept: impl Fn(&ObjectId) -> bool,
    ) -> Result<Option<Self>, StoreError> {
        let meta =
            fs::symlink_metadata(pack.path()).map_err(PathError::at("look at", pack.path()))?;
        if meta.nlink() > 1 {
            return Ok(None);
        }
        let mut all = pack.index.entries(op)?;
        all.sort_unstable_by_key(|(_, offset, _)| *offset);
        let end = meta.len().saturating_sub(CHECKSUM_BYTES);
        let ends = all
            .iter()
            .skip(1)
            .map(|(_, offset, _)| *offset)
            .chain([end]);
        let entries: Vec<_> = all
            .iter()
            .zip(ends)
            .filter(|((id, _, _), _)| is_kept(id))
            .map(|(&(id, offset, crc32), end)| NeededEntry {
                id,
                offset,
                length: end.saturating_sub(offset),
                crc32,
            })
            .collect();
        if pack.has_deltas(entries.iter().map(|entry| entry.offset))? {
            return Ok(None);
        }
        Ok(Some(Self {
            pack,
            needed_bytes: entries.iter().map(|entry| entry.length).sum(),
            entries,
            bytes: meta.len(),
        }))
    }
}

pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, PathError> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect())
        .map_err(PathError::at("list", directory))
}

pub(super) fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::borrow_mode::BorrowMode;
    use crate::git::test_repository::TestRepository;
    use crate::record::Record;

    fn tree_of(record: &Record) -> ObjectId {
        record.snapshot.tree.as_ref().unwrap().parse().unwrap()
    }

    /// A snapshot of HEAD, with borrowed objects.
    fn publish_head(test: &TestStore, run_id: &str) -> Record {
        let root = test.user.git(&["rev-parse", "HEAD^{tree}"]);
        let listed = test.user.git(&["ls-tree", "-r", "-t", "HEAD"]);
        let wanted = listed
            .lines()
            .map(|line| &line[12..52])
            .chain([root.as_str()])
            .map(|id| id.parse().unwrap())
            .collect();
        let dirs = test.object_dirs();
        let borrowed =
            test.store
                .borrow(&Operation::unbounded(), &dirs, wanted, BorrowMode::HardLink);
        assert_eq!(borrowed.unwrap().missing, []);
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        test.publish_tree(&owner("s", run_id), root.parse().unwrap(), pack)
    }

    fn packed_user() -> TestRepository {
        let user = TestRepository::new();
        for n in 0..20 {
            user.write(format!("f{n}"), noise(300, n));
        }
        user.commit("some");
        user.git(&["repack", "-adq"]);
        user.git(&["prune-packed"]);
        user
    }

    fn is_there(test: &TestStore, bytes: &[u8]) -> bool {
        test.reopened().contains(&blob_id(bytes)).unwrap()
    }

    #[test]
    fn what_only_forgotten_snapshots_needed_goes_and_the_rest_stays() {
        let test = TestStore::new();
        let [old, new] = [1, 2].map(|seed| noise(5000, seed));
        let shared = noise(8000, 3);
        let first = test.publish(&owner("s", "r"), &[("a", &shared), ("b", &old)]);
        let second = test.publish(&owner("s", "r"), &[("a", &shared), ("b", &new)]);
        let guard = test.publish(&owner("s", "r"), &[("c", &new)]);
        assert_eq!(
            test.store.collect(&Operation::unbounded()).unwrap(),
            0,
            "all of it is needed"
        );

        test.store
            .forget(&Operation::unbounded(), &[first.snapshot.id])
            .unwrap();
        let before = test.store.bytes().unwrap();
        let freed = test.store.collect(&Operation::unbounded()).unwrap();
        assert_eq!(freed, 0, "more than half of its pack is needed");
        test.store
            .forget(
                &Operation::unbounded(),
                std::slice::from_ref(&second.snapshot.id),
            )
            .unwrap();
        let freed = test.store.collect(&Operation::unbounded()).unwrap();
        assert!(freed > 5000, "{freed}");
        assert!(test.store.bytes().unwrap() + freed <= before);
        assert!(!is_there(&test, &old) && !is_there(&test, &shared));
        assert!(is_there(&test, &new));
        assert_eq!(test.problems(&guard), []);
        assert_eq!(
            test.store.snapshots().unwrap(),
            std::slice::from_ref(&guard)
        );
        test.fsck();

        test.store
            .forget(&Operation::unbounded(), &[guard.snapshot.id])
            .unwrap();
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(test.packs().is_empty());
        let left = files_below(&test.store.git_dir.join("objects"));
        assert!(left.is_empty());
        test.fsck();
        test.publish(&owner("s", "r"), &[("a", "1")]);
    }

    #[test]
    fn a_pack_of_which_little_is_needed_is_rewritten() {
        let test = TestStore::new();
        let small = noise(1000, 1);
        let first = test.publish(&owner("s", "r"), &[("a", &small), ("b", &noise(50_000, 2))]);
        let second = test.publish(&owner("s", "r"), &[("a", &small)]);
        test.store
            .forget(&Operation::unbounded(), &[first.snapshot.id])
            .unwrap();
        let freed = test.store.collect(&Operation::unbounded()).unwrap();
        assert!(freed > 49_000, "{freed}");
        assert_eq!(test.problems(&second), []);
        test.fsck();
        assert_eq!(
            test.store.collect(&Operation::unbounded()).unwrap(),
            0,
            "nothing is left to do"
        );
    }

    // It was taken for a pack that a kill has left without its index, and removed
    #[test]
    fn a_pack_whose_index_cannot_be_looked_at_stays() {
        let test = TestStore::new();
        test.publish(&owner("s", "r"), &[("a", &noise(1000, 1))]);
        let pack = test.packs().remove(0);
        let (index, aside) = (pack.with_extension("idx"), pack.with_extension("aside"));
        fs::rename(&index, &aside).unwrap();
        // A link to itself: not even root can follow it.
        std::os::unix::fs::symlink(&index, &index).unwrap();
        assert!(test.store.collect(&Operation::unbounded()).is_err());
        assert!(pack.exists());
        fs::rename(&aside, &index).unwrap();
        assert_eq!(test.store.collect(&Operation::unbounded()).unwrap(), 0);
        test.fsck();
    }

    #[test]
    fn many_small_packs_are_merged() {
        let test = TestStore::new();
        let records: Vec<_> = (0..MAX_OWN_PACKS + 5)
            .map(|n| test.publish(&owner("s", "r"), &[("a", n.to_string())]))
            .collect();
        assert!(test.store.collect(&Operation::unbounded()).unwrap() > 0);
        assert_eq!(test.packs().len(), 1);
        assert_eq!(test.reopened().snapshots().unwrap(), records);
        for record in &records[..3] {
            assert_eq!(test.problems(record), []);
        }
        test.fsck();
        let mode = {
            use std::os::unix::fs::PermissionsExt as _;
            fs::metadata(&test.packs()[0]).unwrap().permissions().mode()
        };
        assert_eq!(mode & 0o777, 0o400);
    }

    #[test]
    fn borrowed_packs_stay_as_they_are_while_anything_in_them_is_needed() {
        let user = TestRepository::new();
        let text = |n: usize| format!("{}{n}\n", "the same in every file\n".repeat(200 + n));
        for n in 0..20 {
            user.write(format!("f{n}"), text(n));
        }
        user.commit("alike");
        user.git(&["repack", "-adq"]);
        user.git(&["prune-packed"]);
        let test = TestStore::beside(user);
        let whole = publish_head(&test, "whole");
        let borrowed = test.reopened().packs().unwrap().packs[0].clone();
        let is_delta = |n: &usize| {
            let offset = borrowed.index.find(&blob_id(text(*n).as_bytes())).unwrap();
            borrowed.has_deltas(offset.into_iter()).unwrap()
        };
        let delta = (0..20).find(is_delta).unwrap();
        let part = test.publish(&owner("s", "part"), &[("kept", text(delta))]);
        test.store
            .forget(&Operation::unbounded(), &[whole.snapshot.id])
            .unwrap();
        test.store.collect(&Operation::unbounded()).unwrap();
        assert_eq!(
            test.packs().len(),
            2,
            "the borrowed one, and that of the part"
        );
        assert!(borrowed.path().exists());
        assert_eq!(test.problems(&part), []);

        // Without a second name it costs space, but written whole its deltas would cost more.
        fs::remove_dir_all(test.user.path.join(".git/objects/pack")).unwrap();
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(borrowed.path().exists());
        assert_eq!(test.problems(&part), []);
        test.fsck();
        test.store
            .forget(&Operation::unbounded(), &[part.snapshot.id])
            .unwrap();
        assert!(test.store.collect(&Operation::unbounded()).unwrap() > 0);
        assert!(test.packs().is_empty());
    }

    #[test]
    fn collecting_touches_nothing_of_the_users() {
        let test = TestStore::beside(packed_user());
        let record = publish_head(&test, "r");
        let times = || -> Vec<_> {
            files_below(&test.user.path.join(".git"))
                .into_iter()
                .map(|p| {
                    (
                        fs::metadata(&p).unwrap().modified().unwrap(),
                        fs::read(&p).unwrap(),
                        p,
                    )
                })
                .collect()
        };
        let before = times();
        test.store
            .forget(&Operation::unbounded(), &[record.snapshot.id])
            .unwrap();
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(test.packs().is_empty());
        assert!(times() == before);
        test.user.git(&["fsck", "--strict"]);
    }

    #[test]
    fn a_pack_that_a_larger_one_replaces_goes_unless_the_larger_is_damaged() {
        for is_damaged in [true, false] {
            let test = TestStore::beside(packed_user());
            let first = publish_head(&test, "first");
            test.user.write("new", noise(300, 99));
            test.user.commit("more");
            test.user.git(&["repack", "-adq"]);
            test.user.git(&["prune-packed"]);
            let second = publish_head(&test, "second");
            assert_eq!(test.packs().len(), 4, "two borrowed, two of our own");
            let larger = files_below(&test.user.path.join(".git/objects/pack"))
                .into_iter()
                .find(|p| p.extension().is_some_and(|e| e == "pack"))
                .unwrap();
            let ours = test.store.pack_dir().join(larger.file_name().unwrap());
            let pack = Pack::open(&ours.with_extension("idx")).unwrap();
            if is_damaged {
                let offset = pack.index.find(&blob_id(&noise(300, 7))).unwrap().unwrap();
                let mut bytes = fs::read(&ours).unwrap();
                bytes[offset as usize + 100] ^= 1;
                replace(&ours, &bytes);
            }
            let store = test.reopened();
            store.collect(&Operation::unbounded()).unwrap();
            let expected = if is_damaged { 4 } else { 3 };
            assert_eq!(test.packs().len(), expected, "damaged: {is_damaged}");
            assert_eq!(test.problems(&first).is_empty(), !is_damaged);
            let (_, bytes) = store
                .read(&Operation::unbounded(), &blob_id(&noise(300, 7)), 300)
                .unwrap();
            assert!(bytes == noise(300, 7), "the sound copy is kept");
            assert_eq!(store.snapshots().unwrap(), [first, second]);
        }
    }

    #[test]
    fn loose_objects_go_when_nobody_needs_them() {
        let user = TestRepository::new();
        user.write("a", "one\n");
        user.commit("loose");
        let test = TestStore::beside(user);
        let first = publish_head(&test, "first");
        let second = test.publish(&owner("s", "second"), &[("b", "one\n")]);
        test.store
            .forget(
                &Operation::unbounded(),
                std::slice::from_ref(&first.snapshot.id),
            )
            .unwrap();
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(is_there(&test, b"one\n"));
        assert!(!test.store.has_loose(&tree_of(&first)).unwrap());
        assert_eq!(test.problems(&second), []);
        test.fsck();
        test.user.git(&["fsck", "--strict"]);
    }

    #[test]
    fn leftovers_of_interrupted_work_are_removed() {
        let test = TestStore::new();
        let record = test.publish(&owner("s", "r"), &[("a", "1")]);
        let kept = files_below(&test.store.git_dir);
        let git_dir = &test.store.git_dir;
        fs::create_dir(git_dir.join("objects/aa")).unwrap();
        let leftovers = [
            "tmp_ref_x",
            ".tmp-config",
            "objects/pack/tmp_pack_x",
            "objects/pack/tmp_idx_x",
            "objects/aa/tmp_obj_copy_x",
            "objects/pack/pack-0000000000000000000000000000000000000000.pack",
            "objects/pack/pack-1111111111111111111111111111111111111111.idx",
        ];
        for leftover in leftovers {
            fs::write(git_dir.join(leftover), "x").unwrap();
        }
        test.reopened().collect(&Operation::unbounded()).unwrap();
        assert_eq!(files_below(git_dir), kept);
        assert_eq!(test.problems(&record), []);
    }

    #[test]
    fn nothing_is_removed_while_something_that_is_needed_is_missing() {
        let test = TestStore::new();
        test.publish(&owner("s", "r"), &[("a", "1")]);
        let first = test.packs();
        test.publish(&owner("s", "r"), &[("a", "1"), ("b", "2")]);
        let dead = test.publish(&owner("s", "r"), &[("c", "3")]);
        test.store
            .forget(&Operation::unbounded(), &[dead.snapshot.id])
            .unwrap();
        let moved = test.user.beside("moved");
        fs::rename(&first[0], &moved).unwrap();
        let store = test.reopened();
        let packs = test.packs();
        let error = store.collect(&Operation::unbounded()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert_eq!(test.packs(), packs);
    }

    #[test]
    fn what_other_refs_need_stays() {
        let test = TestStore::new();
        let record = test.publish(&owner("s", "r"), &[("a", "1")]);
        test.git(&[
            "update-ref",
            "refs/checkpoints/t/1",
            &record.snapshot.reference,
        ]);
        test.store
            .forget(&Operation::unbounded(), &[record.snapshot.id])
            .unwrap();
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(is_there(&test, b"1"));
        test.git(&["pack-refs", "--all", "--prune"]);
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(is_there(&test, b"1"));
        test.fsck();
    }

    #[test]
    fn a_kill_between_the_new_pack_and_the_old_ones_loses_nothing() {
        let test = TestStore::new();
        let records: Vec<_> = (0..MAX_OWN_PACKS + 1)
            .map(|n| test.publish(&owner("s", "r"), &[("a", n.to_string())]))
            .collect();
        let saved: Vec<_> = files_below(&test.store.pack_dir())
            .into_iter()
            .map(|p| (fs::read(&p).unwrap(), p))
            .collect();
        test.store.collect(&Operation::unbounded()).unwrap();
        for (bytes, path) in &saved {
            fs::write(path, bytes).unwrap();
        }
        // A pack whose index was removed first, too.
        fs::remove_file(saved[0].1.with_extension("idx")).unwrap();
        assert_eq!(test.reopened().snapshots().unwrap(), records);
        test.reopened().collect(&Operation::unbounded()).unwrap();
        assert_eq!(test.packs().len(), 1);
        assert_eq!(test.reopened().snapshots().unwrap(), records);
        test.fsck();
    }
}
