//! Proving that a snapshot can be put back.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;

use super::{ObjectPlace, Store, StoredParts};
use crate::contents::ContentError;
use crate::error::printable;
use crate::git::ObjectId;
use crate::git::refs::SnapshotRef;
use crate::git::tree_object::{self, ItemKind, Trees as _};
use crate::operation::Operation;
use crate::path::{RelPath, printable_bytes};
use crate::problem::Problem;
use crate::purge::Purged;
use crate::record::Record;
use crate::store_error::StoreError;

/// What was proven already, so that snapshots which share content are not read twice.
#[derive(Debug, Default)]
pub(crate) struct Proven {
    /// Trees that are right with all that is below them.
    trees: HashSet<ObjectId>,
    blobs: HashSet<ObjectId>,
    /// Packs that were read from end to end, and what was wrong with them.
    packs: BTreeMap<PathBuf, Option<String>>,
}

/// What the proof of a snapshot found.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    /// What is missing or wrong; nothing: the snapshot can be put back.
    pub(crate) problems: Vec<Problem>,
    /// What is wrong in packs that hold something of it, though all that it needs could be read.
    pub(crate) beside: Vec<Problem>,
}

impl Store {
    /// Reads and hashes every object that a snapshot needs, and every pack that holds one of them,
    /// from end to end.
    ///
    /// What is in `proven` is not read again; give a new one to read everything. Reading may take
    /// minutes. An error of the disk is an error, not a problem.
    pub(crate) fn verify(
        &self,
        op: &Operation,
        record: &Record,
        proven: &mut Proven,
    ) -> Result<Proof, StoreError> {
        self.refresh()?;
        let mut verifying = Verifying {
            store: self,
            purged: self.purged()?,
            proven,
            trees: HashSet::new(),
            problems: Vec::new(),
            used: HashSet::new(),
            blobs: Vec::new(),
        };
        if let Some(parts) = verifying.commit(op, record)? {
            for tree in [Some(parts.worktree), parts.staged].into_iter().flatten() {
                verifying.tree(op, tree)?;
            }
            verifying.blobs.extend(parts.index);
            verifying.blobs.push(parts.record);
        }
        verifying.read_blobs(op)?;
        let beside = verifying.read_packs(op)?;
        let problems = verifying.problems;
        if problems.is_empty() {
            verifying.proven.trees.extend(verifying.trees);
        }
        Ok(match problems.is_empty() {
            true => Proof { problems, beside },
            // They may be why.
            false => Proof {
                problems: [problems, beside].concat(),
                beside: Vec::new(),
            },
        })
    }
}

struct Verifying<'a> {
    store: &'a Store,
    purged: Purged,
    proven: &'a mut Proven,
    /// The trees that were read.
    trees: HashSet<ObjectId>,
    problems: Vec<Problem>,
    /// The packs that hold what was needed.
    used: HashSet<PathBuf>,
    blobs: Vec<ObjectId>,
}

impl Verifying<'_> {
    fn commit(
        &mut self,
        op: &Operation,
        record: &Record,
    ) -> Result<Option<StoredParts>, StoreError> {
        let snapshot = &record.snapshot;
        let Ok(commit) = snapshot.reference.parse::<ObjectId>() else {
            let what = snapshot.id.as_str();
            self.problems
                .push(Problem::new(what, "its ref is no object id"));
            return Ok(None);
        };
        let is_it = |found: &SnapshotRef| found.commit == commit;
        let found = match self.store.remembered(&snapshot.id)?.filter(is_it) {
            Some(found) => Some(found),
            None => self.store.refs.snapshots()?.into_iter().find(is_it),
        };
        let Some(found) = found else {
            let what = commit.to_string();
            self.problems
                .push(Problem::new(what, "no ref of the store names it"));
            return Ok(None);
        };
        self.note_packs(&commit)?;
        let stored = self.store.record_at(op, &found);
        if let Some(stored) = self.or_problem(stored)?
            && stored != *record
        {
            let what = snapshot.id.as_str();
            self.problems
                .push(Problem::new(what, "its record in the store is another one"));
        }
        let parts = self.store.parts(op, &commit);
        let Some(parts) = self.or_problem(parts)? else {
            return Ok(None);
        };
        self.operation(op, record, &parts);
        let index = record.git.as_ref().and_then(|git| git.index);
        for (part, stored, recorded) in [
            ("tree", Some(parts.worktree.to_string()), &snapshot.tree),
            (
                "index",
                parts.index.map(|id| id.to_string()),
                &index.map(|id| id.to_string()),
            ),
        ] {
            if stored != *recorded {
                let what = snapshot.id.as_str();
                let detail = format!("its commit has another {part} than its record");
                self.problems.push(Problem::new(what, detail));
            }
        }
        Ok(Some(parts))
    }

    /// What the record says of git's operations and refs has to be held by the commit, or a
    /// collection takes it.
    fn operation(&mut self, op: &Operation, record: &Record, parts: &StoredParts) {
        let git = record.git.as_ref();
        let operation = git.and_then(|git| git.operation.as_ref());
        let files = operation.into_iter().flat_map(|operation| &operation.files);
        let files = files.map(|(name, id)| (printable_bytes(name.as_bytes()), *id));
        let refs = git.and_then(|git| git.refs);
        let named: Vec<(String, ObjectId)> = files
            .chain(refs.map(|id| ("what the refs named".to_owned(), id)))
            .collect();
        if named.is_empty() {
            return;
        }
        let items = match parts.staged.map(|tree| self.store.tree(op, &tree)) {
            None => Vec::new(),
            Some(Ok(items)) => items,
            // It is read once more, and named then.
            Some(Err(_)) => return,
        };
        let held: HashSet<ObjectId> = items.iter().map(|item| item.id).collect();
        if let Some((name, _)) = named.iter().find(|(_, id)| !held.contains(id)) {
            let detail = format!("its commit does not hold {name}, which its record names");
            self.problems
                .push(Problem::new(record.snapshot.id.as_str(), detail));
        }
    }

    fn tree(&mut self, op: &Operation, root: ObjectId) -> Result<(), StoreError> {
        let mut pending = vec![(root, 0)];
        while let Some((id, depth)) = pending.pop() {
            if self.proven.trees.contains(&id) || !self.trees.insert(id) {
                continue;
            }
            self.note_packs(&id)?;
            let items = self.store.tree(op, &id);
            let Some(items) = self.or_problem(items)? else {
                continue;
            };
            for item in items {
                match item.kind {
                    ItemKind::Directory => {}
                    ItemKind::Entry(_) => {
                        self.blobs.push(item.id);
                        continue;
                    }
                    ItemKind::Submodule => continue,
                }
                let path = RelPath::root().join(&item.name);
                let checked = tree_object::check_depth(&path, depth);
                if self.or_problem(checked)?.is_some() {
                    pending.push((item.id, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// Blobs are read in the order of their places: each part of the disk once, and deltas while
    /// what they build on is at hand.
    fn read_blobs(&mut self, op: &Operation) -> Result<(), StoreError> {
        let mut blobs = std::mem::take(&mut self.blobs);
        blobs.sort_unstable();
        blobs.dedup();
        // That they are gone is no damage.
        blobs.retain(|id| !self.proven.blobs.contains(id) && !self.purged.contains(&(*id).into()));
        let mut placed = Vec::with_capacity(blobs.len());
        for id in blobs {
            let place = self.store.at_each_place(&id, |place| {
                Ok(match place {
                    ObjectPlace::Pack(pack, offset) => Some((pack.path().to_owned(), offset)),
                    ObjectPlace::Loose(_) => None,
                })
            });
            match self.or_problem(place)? {
                Some(place) => placed.push((place, id)),
                None => continue,
            }
        }
        placed.sort_unstable();
        for (place, id) in placed {
            if let Some((pack, _)) = place {
                self.used.insert(pack);
            }
            let read = match self.store.blob_to(op, &id, &mut io::sink()) {
                Ok(_) => Ok(()),
                Err(ContentError::Store(error)) => Err(error),
                Err(ContentError::Sink(_)) => unreachable!("a sink takes everything"),
            };
            if self.or_problem(read)?.is_some() {
                self.proven.blobs.insert(id);
            }
        }
        Ok(())
    }

    /// Reads the packs that hold what was needed; answers with what is wrong in them.
    fn read_packs(&mut self, op: &Operation) -> Result<Vec<Problem>, StoreError> {
        let mut found = Vec::new();
        let set = self.store.packs()?;
        if !self.problems.is_empty() {
            // They may be why something is missing; what was found elsewhere does not need them.
            for (path, detail) in &set.broken {
                self.problems
                    .push(Problem::new(printable(path), detail.as_str()));
            }
        }
        for pack in set.all() {
            if !self.used.contains(pack.path()) {
                continue;
            }
            let detail = match self.proven.packs.get(pack.path()) {
                Some(detail) => detail.clone(),
                None => match pack.verify(op) {
                    Ok(()) => None,
                    Err(StoreError::Corrupt { detail, .. }) => Some(detail),
                    Err(error) => return Err(error),
                },
            };
            if let Some(detail) = &detail {
                found.push(Problem::new(printable(pack.path()), detail.as_str()));
            }
            self.proven.packs.insert(pack.path().to_owned(), detail);
        }
        Ok(found)
    }

    fn note_packs(&mut self, id: &ObjectId) -> Result<(), StoreError> {
        for pack in self.store.packs()?.all() {
            if !self.used.contains(pack.path()) && pack.index.contains(id).unwrap_or(true) {
                self.used.insert(pack.path().to_owned());
            }
        }
        Ok(())
    }

    /// What is wrong with the store is a problem; that it cannot be read is an error.
    fn or_problem<T>(&mut self, result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(StoreError::Corrupt { what, detail }) => {
                let problem = Problem::new(what, detail);
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::*;
    use super::*;
    use crate::borrow_mode::BorrowMode;
    use crate::git::test_repository::TestRepository;
    use crate::snapshot::Label;

    /// A small snapshot with every part.
    fn whole() -> (TestStore, Record) {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let worktree = test.add_tree(&pack, &[("a", "1"), ("d/b", "2")]);
        let index = blob_id(b"index");
        let staged = blob_id(b"staged");
        for (id, bytes) in [(index, &b"index"[..]), (staged, b"staged")] {
            pack.add(crate::git::ObjectKind::Blob, id, bytes).unwrap();
        }
        let mut record = record_of(worktree, Some(index), Label::BEFORE);
        let parts = super::super::Parts {
            worktree,
            record: &record,
            index: Some(index),
            staged: vec![staged],
            named: None,
        };
        record.snapshot = test
            .store
            .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
            .unwrap();
        (test, record)
    }

    #[test]
    fn a_sound_snapshot_has_no_problems() {
        let (test, record) = whole();
        assert_eq!(test.problems(&record), []);
    }

    #[test]
    fn a_file_of_an_operation_that_the_commit_does_not_hold_is_named() {
        for (held, problems) in [(true, 0), (false, 1)] {
            let test = TestStore::new();
            let pack = test.store.writer(&Operation::unbounded()).unwrap();
            let worktree = test.add_tree(&pack, &[("a", "1")]);
            let mut record = record_of(worktree, None, Label::BEFORE);
            let id = blob_id(b"1");
            let files = BTreeMap::from([("MERGE_HEAD".to_owned(), id)]);
            record.git.as_mut().unwrap().operation = Some(crate::git::repository::OperationFiles {
                files,
                ..Default::default()
            });
            let parts = super::super::Parts {
                worktree,
                record: &record,
                index: None,
                staged: held.then_some(id).into_iter().collect(),
                named: None,
            };
            record.snapshot = test
                .store
                .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
                .unwrap();
            let found = test.problems(&record);
            assert_eq!(found.len(), problems, "{found:?}");
            assert!(
                found
                    .iter()
                    .all(|problem| problem.detail.contains("MERGE_HEAD"))
            );
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_found() {
        let (test, record) = whole();
        let pack = test.packs().remove(0);
        let mut tried = 0;
        for path in [pack.with_extension("idx"), pack] {
            let original = fs::read(&path).unwrap();
            for at in 0..original.len() {
                // The counts and the tables of an index are long and much alike.
                if path.extension().is_some_and(|e| e == "idx") && at % 3 != 0 {
                    continue;
                }
                let mut bytes = original.clone();
                bytes[at] ^= 1 << (at % 8);
                replace(&path, &bytes);
                let problems = test.problems(&record);
                assert_ne!(problems, [], "byte {at} of {}", path.display());
                tried += 1;
            }
            replace(&path, &original);
        }
        assert!(tried > 800);
        assert_eq!(test.problems(&record), []);
    }

    #[test]
    fn what_is_wrong_in_a_pack_is_no_problem_of_a_snapshot_that_does_not_need_it() {
        let (test, record) = whole();
        let writer = test.store.writer(&Operation::unbounded()).unwrap();
        let nobodys = noise(500, 7);
        let id = blob_id(&nobodys);
        writer
            .add(crate::git::ObjectKind::Blob, id, &nobodys)
            .unwrap();
        let worktree = test.add_tree(&writer, &[("a", "1"), ("z", "3")]);
        let other = test.publish_tree(&owner("s", "r"), worktree, writer);
        let set = test.store.packs().unwrap();
        let (pack, at) = set
            .packs
            .iter()
            .find_map(|pack| Some((pack.path(), pack.index.find(&id).unwrap()?)))
            .unwrap();
        let mut bytes = fs::read(pack).unwrap();
        bytes[at as usize + 100] ^= 1;
        replace(pack, &bytes);
        let [first, other] = [&record, &other].map(|record| {
            let proven = &mut Proven::default();
            test.reopened()
                .verify(&Operation::unbounded(), record, proven)
                .unwrap()
        });
        assert!(first.problems.is_empty() && first.beside.is_empty());
        assert!(other.problems.is_empty(), "{:?}", other.problems);
        assert_eq!(other.beside.len(), 1);
    }

    #[test]
    fn what_is_missing_is_named() {
        let (test, record) = whole();
        let other = test.publish(&owner("s", "r"), &[("a", "1"), ("z", "3")]);
        let packs = test.packs();
        for pack in packs {
            let moved = test.user.beside("moved");
            fs::rename(&pack, &moved).unwrap();
            let problems = [&record, &other].map(|record| test.problems(record));
            assert!(problems.iter().any(|p| !p.is_empty()));
            let all = problems.concat();
            assert!(
                all.iter().any(|p| p.detail.contains("not in the store")),
                "{all:?}"
            );
            fs::rename(&moved, &pack).unwrap();
        }
        assert_eq!(test.problems(&other), []);
    }

    #[test]
    fn a_record_that_is_not_the_stored_one_is_a_problem() {
        let (test, record) = whole();
        let mut forged = record.clone();
        forged.snapshot.tree = Some(tree_object::empty_tree_id().to_string());
        assert_eq!(test.problems(&forged).len(), 2, "the record, and its tree");
        let mut forged = record.clone();
        forged.git.as_mut().unwrap().index = None;
        assert_eq!(test.problems(&forged).len(), 2);
        for reference in ["", "HEAD", "0000000000000000000000000000000000000000"] {
            let mut forged = record.clone();
            forged.snapshot.reference = reference.to_owned();
            assert_eq!(test.problems(&forged).len(), 1, "{reference:?}");
        }
        test.store
            .forget(
                &Operation::unbounded(),
                std::slice::from_ref(&record.snapshot.id),
            )
            .unwrap();
        let problems = test.problems(&record);
        assert!(problems[0].detail.contains("no ref"), "{problems:?}");
    }

    #[test]
    fn damage_to_what_was_borrowed_is_found() {
        let user = TestRepository::new();
        for n in 0..5 {
            user.write(format!("f{n}"), noise(400, n));
        }
        user.commit("packed");
        user.git(&["repack", "-adq"]);
        user.git(&["prune-packed"]);
        user.write("loose", noise(400, 9));
        user.commit("loose");
        let test = TestStore::beside(user);
        let root = test.user.git(&["rev-parse", "HEAD^{tree}"]);
        let listed = test.user.git(&["ls-tree", "-r", "HEAD"]);
        let ids = listed.lines().map(|line| &line[12..52]);
        let wanted = ids.chain([root.as_str()]).map(|id| id.parse().unwrap());
        let dirs = test.object_dirs();
        let borrowed = test
            .store
            .borrow(
                &Operation::unbounded(),
                &dirs,
                wanted.collect(),
                BorrowMode::HardLink,
            )
            .unwrap();
        assert_eq!((borrowed.linked_packs, borrowed.linked_loose), (1, 2));
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let record = test.publish_tree(&owner("s", "r"), root.parse().unwrap(), pack);
        assert_eq!(test.problems(&record), []);

        // Somebody writes into the shared file itself.
        let objects = files_below(&test.user.path.join(".git/objects"));
        let is_needed = |path: &&PathBuf| {
            use std::os::unix::fs::MetadataExt as _;
            fs::metadata(path).unwrap().nlink() > 1
        };
        let shared: Vec<_> = objects.iter().filter(is_needed).collect();
        assert_eq!(shared.len(), 4, "a pack, its index, two loose objects");
        for path in shared {
            let original = fs::read(path).unwrap();
            let write = |bytes: &[u8]| {
                use std::os::unix::fs::FileExt as _;
                use std::os::unix::fs::PermissionsExt as _;
                let writable = fs::Permissions::from_mode(0o600);
                fs::set_permissions(path, writable).unwrap();
                let file = fs::File::options().write(true).open(path).unwrap();
                file.set_len(bytes.len() as u64).unwrap();
                file.write_all_at(bytes, 0).unwrap();
            };
            for at in [original.len() / 2, original.len() - 1] {
                let mut bytes = original.clone();
                bytes[at] ^= 4;
                write(&bytes);
                assert_ne!(
                    test.problems(&record),
                    [],
                    "byte {at} of {}",
                    path.display()
                );
            }
            write(&original[..original.len() - 1]);
            assert_ne!(test.problems(&record), [], "{} cut short", path.display());
            write(&original);
            assert_eq!(test.problems(&record), [], "{}", path.display());
        }
    }

    #[test]
    fn what_was_proven_is_not_read_again() {
        let test = TestStore::new();
        let first = test.publish(&owner("s", "r"), &[("a", "1")]);
        let second = test.publish(&owner("s", "r"), &[("a", "1"), ("b", "2")]);
        let mut proven = Proven::default();
        let store = test.reopened();
        assert_eq!(
            store
                .verify(&Operation::unbounded(), &first, &mut proven)
                .unwrap()
                .problems,
            []
        );
        let read = proven.blobs.len();
        assert_eq!(
            store
                .verify(&Operation::unbounded(), &second, &mut proven)
                .unwrap()
                .problems,
            []
        );
        assert_eq!(proven.blobs.len(), read + 2, "the new file and the record");
        assert_eq!(proven.packs.len(), 2);
    }

    #[test]
    fn damage_is_named_for_every_snapshot_that_has_it() {
        let test = TestStore::new();
        let first = test.publish(&owner("s", "r"), &[("d/a", "1")]);
        let pack = test.packs().remove(0);
        let second = test.publish(&owner("s", "r"), &[("b", "2"), ("d/a", "1")]);
        let set = test.store.packs().unwrap();
        let found = set.all().find(|found| found.path() == pack).unwrap();
        let at = found.index.find(&blob_id(b"1")).unwrap().unwrap();
        let mut bytes = fs::read(&pack).unwrap();
        bytes[at as usize + 4] ^= 1;
        replace(&pack, &bytes);
        let store = test.reopened();
        let mut proven = Proven::default();
        for record in [&first, &second] {
            let problems = store
                .verify(&Operation::unbounded(), record, &mut proven)
                .unwrap()
                .problems;
            let object = format!("the object at {at} ");
            assert!(
                problems.iter().any(|p| p.what.starts_with(&object)),
                "{problems:?}"
            );
        }
    }
}
