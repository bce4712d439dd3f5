//! Borrowing objects that the user's repository already has.
//!
//! Packs and loose objects are hard-linked, so they cost nothing and survive any change of the
//! repository. Nothing is written there: no byte, and no time of a shared file.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::purge::objects_of;
use super::{MAX_HELD_BYTES, Store, check_bytes, missing};
use crate::borrow_mode::BorrowMode;
use crate::descriptor::open_file_at;
use crate::durable::make_private;
use crate::durable::{self, ClosedFile, StagedFile};
use crate::error::PathError;
use crate::faults::Effect;
use crate::git::ObjectId;
use crate::git::loose::LooseObject;
use crate::git::pack::{DeltaBases, Pack, PackIndex, PackWriter, TEMPORARY_OBJECT_PREFIX};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// Up to this many files are synced one by one; for more, one sync of the whole file system is less
/// work for the disk.
const MAX_SINGLE_SYNCS: usize = 16;

/// For fewer single objects no further threads are started.
const MIN_SHARED_OBJECTS: usize = 64;

/// What came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Borrowed {
    /// What the store still does not have, sorted and unique.
    pub(crate) missing: Vec<ObjectId>,
    /// How many packs came in.
    pub(crate) linked_packs: u64,
    /// How many loose objects came in.
    pub(crate) linked_loose: u64,
}

impl Store {
    /// Makes sure of those of `wanted` that the user's repository has: whole packs where it has
    /// them in packs, else single objects. `object_dirs` are its `objects` directory and its
    /// alternates.
    ///
    /// What comes in is durable on `Ok`. Of a pack it is checked that its index fits it and that
    /// both are whole; a loose object is read and hashed. Whatever is damaged, a link, or
    /// unreadable is left alone, and its objects stay missing: the caller has their bytes in the
    /// worktree.
    pub(crate) fn borrow(
        &self,
        op: &Operation,
        object_dirs: &[PathBuf],
        wanted: Vec<ObjectId>,
        mode: BorrowMode,
    ) -> Result<Borrowed, StoreError> {
        let wanted = self.missing(op, wanted)?;
        if wanted.is_empty() {
            return Ok(Borrowed::default());
        }
        self.has_new_loose.store(true, Ordering::Relaxed);
        let mut borrowing = Borrowing {
            op,
            store: self,
            mode,
            purged: objects_of(&self.purged()?),
            copies: None,
            missing: Cow::Borrowed(&wanted),
            incoming: Vec::new(),
        };
        // All packs before any loose object: one pack may bring thousands.
        let (mut linked_packs, mut linked_loose) = (0, 0);
        for directory in object_dirs {
            linked_packs += borrowing.packs(directory)?;
        }
        for directory in object_dirs {
            linked_loose += borrowing.loose_objects(directory)?;
        }
        let (incoming, copies) = (borrowing.incoming, borrowing.copies);
        self.let_in(op, incoming)?;
        if let Some(copies) = copies {
            copies.finish()?;
        }
        Ok(Borrowed {
            // What counts is what the store itself finds.
            missing: self.missing(op, wanted)?,
            linked_packs,
            linked_loose,
        })
    }
}

struct Borrowing<'a> {
    op: &'a Operation,
    store: &'a Store,
    mode: BorrowMode,
    /// Sorted and unique.
    missing: Cow<'a, [ObjectId]>,
    /// What must not come in, sorted.
    purged: Vec<ObjectId>,
    /// What comes of packs that have some of it.
    copies: Option<PackWriter>,
    /// What has come and has no name yet; the index of a pack comes after it.
    incoming: Vec<Incoming>,
}

/// A file of the user's, or its copy, that waits in the store until its bytes are synced: under its
/// name the store relies on it, also after a power cut.
struct Incoming {
    file: ClosedFile,
    name: PathBuf,
}

/// A file of the user's repository, held open.
struct Source<'a> {
    directory: BorrowedFd<'a>,
    name: &'a str,
    file: File,
}

impl Borrowing<'_> {
    /// Brings in the packs of `objects` that have something of what is missing, the largest first
    /// so that there are few of them.
    fn packs(&mut self, objects: &Path) -> Result<u64, StoreError> {
        let path = objects.join("pack");
        if self.missing.is_empty() {
            return Ok(0);
        }
        let Some(directory) =
            open_directory(objects).and_then(|objects| open_directory_at(objects.as_fd(), "pack"))
        else {
            return Ok(0);
        };
        let mut linked = 0;
        for name in pack_names(&directory) {
            self.op.check()?;
            if self.missing.is_empty() {
                break;
            }
            let directory = directory.as_fd();
            let (index_name, pack_name) = (format!("{name}.idx"), format!("{name}.pack"));
            let Some(index_source) = Source::open(directory, &index_name) else {
                continue;
            };
            let (mut is_hit, mut hits) = (vec![false; self.missing.len()], 0);
            let opened = index_source.file.try_clone().ok().and_then(|file| {
                let index = PackIndex::of_file(file, &path.join(&index_name)).ok()?;
                index
                    .each_hit(self.op, &self.missing, &mut |at| {
                        is_hit[at] = true;
                        hits += 1;
                    })
                    .ok()?;
                Some(index)
            });
            let Some(index) = opened.filter(|_| hits > 0) else {
                continue;
            };
            let Some(pack_source) = Source::open(directory, &pack_name) else {
                continue;
            };
            let pack_path = path.join(&pack_name);
            if self.has_purged(&index)? {
                if index.check_pair(&pack_source.file, &pack_path).is_ok() {
                    self.copy_from(&path.join(&index_name), &is_hit)?;
                }
                continue;
            }
            if index.check_pair(&pack_source.file, &pack_path).is_ok()
                && self.pack(&pack_source, &index_source)?
            {
                linked += 1;
                let missing = self.missing.iter().zip(is_hit);
                let still = missing.filter(|(_, is_hit)| !is_hit).map(|(id, _)| *id);
                self.missing = Cow::Owned(still.collect());
            }
        }
        Ok(linked)
    }

    fn has_purged(&self, index: &PackIndex) -> Result<bool, StoreError> {
        let mut has = false;
        if !self.purged.is_empty() {
            // An index that cannot be read to its end is as bad as one that has some of it.
            let read = index.each_hit(self.op, &self.purged, &mut |_| has = true);
            has |= read.is_err();
        }
        Ok(has)
    }

    /// Copies what is missing, `is_hit` says what of it, from a pack that has something else that
    /// was purged. What is large stays missing: the worktree has it, and is not read into memory
    /// whole.
    fn copy_from(&mut self, index_path: &Path, is_hit: &[bool]) -> Result<(), StoreError> {
        let Ok(pack) = Pack::open(index_path) else {
            return Ok(());
        };
        let bases = DeltaBases::default();
        let mut came = HashSet::new();
        for (id, _) in self
            .missing
            .iter()
            .zip(is_hit)
            .filter(|(_, is_hit)| **is_hit)
        {
            self.op.check()?;
            let read = pack.index.find(id).and_then(|offset| {
                let offset = offset.ok_or_else(|| missing(id))?;
                let (kind, bytes) = pack.object(self.op, offset, MAX_HELD_BYTES, &bases)?;
                check_bytes(id, kind, &bytes)?;
                Ok((kind, bytes))
            });
            let Ok((kind, bytes)) = read else { continue };
            if self.purged.binary_search(id).is_ok() {
                continue;
            }
            let copies = match &mut self.copies {
                Some(copies) => copies,
                none => none.insert(self.store.writer(self.op)?),
            };
            copies.add(kind, *id, &bytes)?;
            came.insert(*id);
        }
        self.missing.to_mut().retain(|id| !came.contains(id));
        Ok(())
    }

    /// Brings in one pack; `false` if it is gone or was swapped meanwhile.
    fn pack(&mut self, pack: &Source<'_>, index: &Source<'_>) -> Result<bool, StoreError> {
        let directory = self.store.pack_dir();
        let (pack_path, index_path) = (directory.join(pack.name), directory.join(index.name));
        let set = self.store.packs()?;
        if set.all().any(|p| p.index.path() == index_path) {
            // Old versions of git name a pack by its objects, not by its bytes: it is another one.
            // Or it is damaged, and as a link has no other bytes there than here.
            return Ok(false);
        }
        // Leftovers of a crash, or a pack that was found broken: they are of no use to anybody.
        for leftover in [&index_path, &pack_path] {
            durable::remove_file(self.op, leftover)?;
        }
        let Some(pack) = self.file(pack, pack_path, &|_| true)? else {
            return Ok(false);
        };
        let Some(index) = self.file(index, index_path, &|_| true)? else {
            return Ok(false);
        };
        // The index last: it is what makes the pack visible.
        self.incoming.extend([pack, index]);
        Ok(true)
    }

    /// Brings in single objects, with all processors: each has to be read.
    fn loose_objects(&mut self, objects: &Path) -> Result<u64, StoreError> {
        let Some(directory) = open_directory(objects) else {
            return Ok(0);
        };
        let this = &*self;
        let shards: Vec<_> = this.missing.chunk_by(|a, b| a.0[0] == b.0[0]).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut came = Vec::new();
            while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
                this.loose_shard(directory.as_fd(), shard, &mut came)?;
            }
            Ok::<_, StoreError>(came)
        };
        let helpers = match this.missing.len() {
            0..MIN_SHARED_OBJECTS => 0,
            _ => crate::parallel::cores() - 1,
        };
        let all = std::thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(work)).collect();
            let own = work();
            let join = |helper: ScopedJoinHandle<'_, _>| {
                helper.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            let others: Vec<_> = helpers.into_iter().map(join).collect();
            others
                .into_iter()
                .chain([own])
                .collect::<Result<Vec<_>, _>>()
        })?;
        let all: Vec<(ObjectId, Incoming)> = all.into_iter().flatten().collect();
        let came: HashSet<ObjectId> = all.iter().map(|(id, _)| *id).collect();
        self.missing.to_mut().retain(|id| !came.contains(id));
        self.incoming
            .extend(all.into_iter().map(|(_, incoming)| incoming));
        Ok(came.len() as u64)
    }

    /// Those of `shard`, ids with the same first byte, that are there; what came is added to
    /// `came`.
    fn loose_shard(
        &self,
        objects: BorrowedFd<'_>,
        shard: &[ObjectId],
        came: &mut Vec<(ObjectId, Incoming)>,
    ) -> Result<(), StoreError> {
        let Some(first) = shard.first() else {
            return Ok(());
        };
        let Some(directory) = open_directory_at(objects, &first.to_string()[..2]) else {
            return Ok(());
        };
        let target = self.store.loose_path(first);
        make_private(
            self.op,
            target.parent().expect("objects are two levels deep"),
        )?;
        let shard = shard.iter();
        for id in shard.filter(|id| self.purged.binary_search(id).is_err()) {
            self.op.check()?;
            if let Some(incoming) = self.loose_object(directory.as_fd(), id)? {
                came.push((*id, incoming));
            }
        }
        Ok(())
    }

    fn loose_object(
        &self,
        shard: BorrowedFd<'_>,
        id: &ObjectId,
    ) -> Result<Option<Incoming>, StoreError> {
        let name = id.to_string();
        let Some(source) = Source::open(shard, &name[2..]) else {
            return Ok(None);
        };
        let target = self.store.loose_path(id);
        let is_right = |file: &File| {
            let length = file.metadata().map_or(0, |m| m.len());
            LooseObject::new(file, length, &target)
                .is_ok_and(|object| object.verify_to(self.op, id, &mut io::sink()).is_ok())
        };
        // A link is of the very file that was checked; a copy is checked itself.
        if self.mode == BorrowMode::HardLink && !is_right(&source.file) {
            return Ok(None);
        }
        self.file(&source, target.clone(), &is_right)
    }

    /// Brings in one file; `None` if it is gone, was swapped, or its copy is not right.
    fn file(
        &self,
        source: &Source<'_>,
        name: PathBuf,
        is_right: &dyn Fn(&File) -> bool,
    ) -> Result<Option<Incoming>, StoreError> {
        let directory = name.parent().expect("it lies in the store");
        let file = match self.mode {
            BorrowMode::HardLink => match source.link(self.op, directory)? {
                Linked::Yes(file) => Some(file),
                Linked::Gone => None,
                Linked::Refused => self.copy(source, directory, is_right)?,
            },
            _ => self.copy(source, directory, is_right)?,
        };
        Ok(file.map(|file| Incoming { file, name }))
    }

    fn copy(
        &self,
        source: &Source<'_>,
        directory: &Path,
        is_right: &dyn Fn(&File) -> bool,
    ) -> Result<Option<ClosedFile>, StoreError> {
        let staged = StagedFile::create(
            self.op,
            directory,
            &format!("{TEMPORARY_OBJECT_PREFIX}copy_"),
        )?;
        self.op
            .effect(Effect::Write(staged.path()))
            .map_err(PathError::at("copy into", staged.path()))?;
        let length = source.file.metadata();
        let length = length
            .map_err(PathError::at("look at", staged.path()))?
            .len();
        staged.reserve(length)?;
        let is_cloned = self.mode != BorrowMode::Copy
            && rustix::fs::ioctl_ficlone(staged.as_file(), &source.file).is_ok();
        if !is_cloned {
            let mut wanted = CancellableFile {
                op: self.op,
                file: &source.file,
            };
            (&source.file)
                .rewind()
                .and_then(|()| io::copy(&mut wanted, &mut staged.as_file()))
                .map_err(PathError::at("copy into", staged.path()))?;
        }
        staged
            .as_file()
            .rewind()
            .map_err(PathError::at("read", staged.path()))?;
        if !is_right(staged.as_file()) {
            return Ok(None);
        }
        staged.make_read_only()?;
        Ok(Some(staged.close()))
    }
}

impl Store {
    /// Gives everything that came its name, durably.
    fn let_in(&self, op: &Operation, incoming: Vec<Incoming>) -> Result<(), PathError> {
        let are_many = incoming.len() > MAX_SINGLE_SYNCS;
        if are_many {
            durable::sync_file_system(op, &self.git_dir)?;
        } else {
            incoming.iter().try_for_each(|i| i.file.sync())?;
        }
        let mut directories = BTreeSet::new();
        for Incoming { file, name } in incoming {
            op.check().map_err(PathError::at("let in", &name))?;
            // Before it is there, so that it can be taken back however this ends.
            self.came_in().push(name.clone());
            // Whatever is there, the store did not take it for the object. A rename onto another
            // name of the same file would do nothing and leave both.
            durable::remove_file(op, &name)?;
            file.rename(&name)?;
            // That of the file, and the one above it: the former may be new.
            directories.extend(name.ancestors().skip(1).take(2).map(Path::to_owned));
        }
        if are_many {
            return durable::sync_file_system(op, &self.git_dir);
        }
        directories
            .iter()
            .try_for_each(|directory| durable::sync_directory(op, directory))
    }
}

impl Store {
    /// The files that came in and that nothing published needs as yet.
    pub(super) fn came_in(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.came_in.lock().expect("no panic while it is held")
    }

    /// Removes borrowed objects of a snapshot that was not published. Best effort: objects that
    /// stay are harmless, and the next collection removes them.
    ///
    /// The caller holds the lock of the workspace, so nothing else can have started to need it.
    pub(crate) fn take_back(&self, op: &Operation) {
        let came_in = std::mem::take(&mut *self.came_in());
        if came_in.is_empty() {
            return;
        }
        // An index came after its pack, and goes before it.
        for name in came_in.iter().rev() {
            let _ = durable::remove_file(op, name);
            // It goes when it is empty. That of the packs is needed.
            if let Some(shard) = name.parent().filter(|shard| **shard != self.pack_dir()) {
                let _ = fs::remove_dir(shard);
            }
        }
        let _ = self.refresh();
    }

    /// What came in stays, though nothing is published.
    pub(crate) fn keep_what_came_in(&self) {
        self.came_in().clear();
    }
}

/// A file that is read until the operation is cancelled.
struct CancellableFile<'f> {
    op: &'f Operation,
    file: &'f File,
}

impl io::Read for CancellableFile<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.op.check()?;
        self.file.read(into)
    }
}

/// What became of a hard link.
enum Linked {
    Yes(ClosedFile),
    /// The file is no longer there, or another has its name.
    Gone,
    /// The file systems, or their rules, do not allow it.
    Refused,
}

impl<'a> Source<'a> {
    /// `None` unless there is a regular file that can be read.
    fn open(directory: BorrowedFd<'a>, name: &'a str) -> Option<Self> {
        let file = open_file_at(directory, name.as_bytes()).ok()?;
        file.metadata().ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            directory,
            name,
            file,
        })
    }

    fn link(&self, op: &Operation, directory: &Path) -> Result<Linked, PathError> {
        let prefix = format!("{TEMPORARY_OBJECT_PREFIX}link_");
        let linked = durable::stage_link(op, self.directory, self.name, directory, &prefix);
        let linked = match linked {
            Ok(linked) => linked,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => return Ok(Linked::Gone),
                Some(
                    Errno::XDEV
                    | Errno::PERM
                    | Errno::ACCESS
                    | Errno::MLINK
                    | Errno::OPNOTSUPP
                    | Errno::NOSYS
                    | Errno::INVAL,
                ) => return Ok(Linked::Refused),
                _ => return Err(PathError::at("link into", directory)(error)),
            },
        };
        let look_at = |error| PathError::at("look at", linked.path())(error);
        let found = fs::symlink_metadata(linked.path()).map_err(look_at)?;
        let expected = self.file.metadata().map_err(look_at)?;
        // A link that took the place of the file was itself linked.
        Ok(match same_file(&found, &expected) {
            true => Linked::Yes(linked),
            false => Linked::Gone,
        })
    }
}

fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// `None` if it is a link, or no directory, or may not be read.
fn open_directory(path: &Path) -> Option<OwnedFd> {
    open_directory_at(rustix::fs::CWD, path)
}

fn open_directory_at(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).ok()
}

/// The packs in a directory by what their names begin with, those with the longest index first.
fn pack_names(directory: &OwnedFd) -> Vec<String> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory).into_iter().flatten() {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name().to_str().ok();
        // Names that git itself gives. They become names in the store, so they must be harmless.
        let Some(name) = name.and_then(|n| n.strip_suffix(".idx")).filter(|n| {
            n.starts_with("pack-")
                && n.len() <= 200
                && n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        }) else {
            continue;
        };
        let stat = rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        if let Ok(stat) = stat
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        {
            names.push((std::cmp::Reverse(stat.st_size), name.to_owned()));
        }
    }
    names.sort();
    names.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::super::testing::*;
    use super::*;
    use crate::git::test_repository::TestRepository;
    use crate::must_run::{Capability, skipped};

    /// A repository with some history, its objects loose.
    fn user() -> TestRepository {
        let repository = TestRepository::new();
        for commit in 0..3 {
            for n in 0..8 {
                let text = format!("{n}\n{}", "text\n".repeat(commit * n));
                repository.write(format!("d{}/f{n}", n % 3), text);
            }
            repository.commit("more");
        }
        repository
    }

    fn packed_user() -> TestRepository {
        let repository = user();
        repository.git(&["repack", "-adq"]);
        repository.git(&["prune-packed"]);
        repository
    }

    fn ids(text: &str) -> Vec<ObjectId> {
        let id = |line: &str| line.split([' ', '\t']).find_map(|word| word.parse().ok());
        text.lines().filter_map(id).collect()
    }

    fn root_of(user: &TestRepository) -> ObjectId {
        user.git(&["rev-parse", "HEAD^{tree}"]).parse().unwrap()
    }

    /// Everything that a snapshot of HEAD needs.
    fn wanted(user: &TestRepository) -> Vec<ObjectId> {
        let mut wanted = ids(&user.git(&["ls-tree", "-r", "-t", "HEAD"]));
        wanted.push(root_of(user));
        wanted
    }

    fn borrow(test: &TestStore, mode: BorrowMode) -> Borrowed {
        let wanted = wanted(&test.user);
        let borrowed =
            test.store
                .borrow(&Operation::unbounded(), &test.object_dirs(), wanted, mode);
        borrowed.unwrap()
    }

    fn publish_head(test: &TestStore) -> crate::record::Record {
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        test.publish_tree(&owner("s", "r"), root_of(&test.user), pack)
    }

    /// Names, bytes, permissions and times of everything in the user's `.git`.
    fn view(user: &TestRepository) -> Vec<String> {
        walkdir::WalkDir::new(user.path.join(".git"))
            .sort_by_file_name()
            .into_iter()
            .map(|entry| {
                let entry = entry.unwrap();
                let meta = entry.metadata().unwrap();
                let bytes = match meta.is_file() {
                    true => blake3::hash(&fs::read(entry.path()).unwrap()).to_string(),
                    false => String::new(),
                };
                let time = (meta.mtime(), meta.mtime_nsec());
                format!(
                    "{} {:o} {time:?} {bytes}",
                    entry.path().display(),
                    meta.mode()
                )
            })
            .collect()
    }

    fn pack_files(user: &TestRepository) -> (PathBuf, PathBuf) {
        let files = files_below(&user.path.join(".git/objects/pack"));
        let find = |extension: &str| {
            let is_it = |p: &&PathBuf| p.extension().is_some_and(|e| e == extension);
            files.iter().find(is_it).unwrap().clone()
        };
        (find("pack"), find("idx"))
    }

    #[test]
    fn packs_come_in_as_hard_links_and_outlive_the_repository() {
        let test = TestStore::beside(packed_user());
        let before = view(&test.user);
        let borrowed = borrow(&test, BorrowMode::HardLink);
        let expected = Borrowed {
            missing: Vec::new(),
            linked_packs: 1,
            linked_loose: 0,
        };
        assert_eq!(borrowed, expected);
        let record = publish_head(&test);
        assert_eq!(view(&test.user), before, "nothing of the user's changed");
        let (pack, _) = pack_files(&test.user);
        let ours = test.store.pack_dir().join(pack.file_name().unwrap());
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&ours), inode(&pack));
        assert_eq!(borrow(&test, BorrowMode::HardLink), Borrowed::default());
        test.fsck();
        assert_eq!(test.problems(&record), []);

        test.user.git(&["checkout", "-q", "--orphan", "other"]);
        test.user.git(&["rm", "-rfq", "."]);
        test.user.commit("nothing");
        test.user.git(&["branch", "-D", "main"]);
        test.user
            .git(&["reflog", "expire", "--expire=now", "--all"]);
        test.user.git(&["gc", "-q", "--prune=now"]);
        assert_eq!(test.problems(&record), []);
        fs::remove_dir_all(test.user.path.join(".git")).unwrap();
        assert_eq!(test.problems(&record), []);
        test.fsck();
    }

    #[test]
    fn only_the_packs_that_are_needed_come_in() {
        let user = packed_user();
        user.write("only/here", "new\n");
        user.commit("one more");
        user.git(&["repack", "-dq"]);
        user.git(&["branch", "side"]);
        user.git(&["rm", "-rfq", "only"]);
        user.commit("without");
        user.git(&["repack", "-dq"]);
        let directory = user.path.join(".git/objects/pack");
        let names = || {
            files_below(&directory)
                .into_iter()
                .filter(|p| p.extension().is_some_and(|e| e == "idx"))
                .count()
        };
        assert_eq!(names(), 3);
        let test = TestStore::beside(user);
        let borrowed = borrow(&test, BorrowMode::HardLink);
        assert_eq!(borrowed.missing, []);
        assert_eq!((borrowed.linked_packs, borrowed.linked_loose), (1, 0));
        let wanted = ids(&test.user.git(&["ls-tree", "-r", "-t", "side"]));
        let borrowed = test
            .store
            .borrow(
                &Operation::unbounded(),
                &test.object_dirs(),
                wanted,
                BorrowMode::HardLink,
            )
            .unwrap();
        assert_eq!(borrowed.missing, []);
        assert_eq!((borrowed.linked_packs, borrowed.linked_loose), (1, 0));
        assert_eq!(test.packs().len(), 2);
    }

    #[test]
    fn loose_objects_come_in_one_by_one() {
        let test = TestStore::beside(user());
        let before = view(&test.user);
        let count = {
            let mut wanted = wanted(&test.user);
            wanted.sort();
            wanted.dedup();
            wanted.len()
        };
        assert!(count > MAX_SINGLE_SYNCS / 2);
        let borrowed = borrow(&test, BorrowMode::HardLink);
        let expected = Borrowed {
            missing: Vec::new(),
            linked_packs: 0,
            linked_loose: count as u64,
        };
        assert_eq!(borrowed, expected);
        let record = publish_head(&test);
        assert_eq!(view(&test.user), before, "nothing of the user's changed");
        let shards = files_below(&test.store.git_dir.join("objects"));
        assert!(shards.len() >= count);
        fs::remove_dir_all(test.user.path.join(".git")).unwrap();
        assert_eq!(test.problems(&record), []);
        test.fsck();
    }

    #[test]
    fn a_thousand_loose_objects_are_synced_at_once() {
        let user = TestRepository::new();
        for n in 0..1000 {
            user.write(format!("f{n}"), format!("{n}\n"));
        }
        user.commit("many");
        let test = TestStore::beside(user);
        let borrowed = borrow(&test, BorrowMode::HardLink);
        assert_eq!(
            (borrowed.linked_loose, borrowed.missing),
            (1001, Vec::new())
        );
    }

    #[test]
    fn copies_and_reflinks_share_no_inode() {
        for mode in [BorrowMode::Copy, BorrowMode::Reflink] {
            for user in [user(), packed_user()] {
                let test = TestStore::beside(user);
                let before = view(&test.user);
                let borrowed = borrow(&test, mode);
                assert_eq!(borrowed.missing, [], "{mode:?}");
                assert!(borrowed.linked_packs + borrowed.linked_loose > 0);
                assert_eq!(view(&test.user), before, "{mode:?}");
                let ours = files_below(&test.store.git_dir.join("objects"));
                assert!(ours.iter().all(|p| fs::metadata(p).unwrap().nlink() == 1));
                let record = publish_head(&test);
                fs::remove_dir_all(test.user.path.join(".git")).unwrap();
                assert_eq!(test.problems(&record), []);
                test.fsck();
            }
        }
    }

    #[test]
    fn another_file_system_is_copied_from() {
        let elsewhere = Path::new("/dev/shm");
        let device = |path: &Path| fs::metadata(path).map(|m| m.dev()).ok();
        let test = TestStore::beside(packed_user());
        if device(elsewhere).is_none() || device(elsewhere) == device(&test.user.path) {
            return skipped(
                Capability::OtherFileSystem,
                "there is no second file system",
            );
        }
        let directory = tempfile::tempdir_in(elsewhere).unwrap();
        let objects = directory.path().join("objects");
        let copied = Command::new("cp")
            .arg("-r")
            .arg(&test.object_dirs()[0])
            .arg(&objects)
            .status();
        assert!(copied.unwrap().success());
        let wanted = wanted(&test.user);
        let borrowed = test.store.borrow(
            &Operation::unbounded(),
            &[objects],
            wanted,
            BorrowMode::HardLink,
        );
        let borrowed = borrowed.unwrap();
        assert_eq!((borrowed.missing, borrowed.linked_packs), (Vec::new(), 1));
        let record = publish_head(&test);
        assert_eq!(test.problems(&record), []);
    }

    #[test]
    fn a_damaged_loose_object_stays_missing() {
        let sound = user();
        let id = blob_id(b"0\n");
        let name = id.to_string();
        let rel_path = format!(".git/objects/{}/{}", &name[..2], &name[2..]);
        let good = fs::read(sound.path.join(&rel_path)).unwrap();
        let other = fs::read(sound.path.join({
            let name = root_of(&sound).to_string();
            format!(".git/objects/{}/{}", &name[..2], &name[2..])
        }));
        let claim = {
            use std::io::Write as _;
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(b"blob 1073741824\x000\n").unwrap();
            encoder.finish().unwrap()
        };
        let damaged: [(&str, Vec<u8>); 6] = [
            ("truncated", good[..good.len() - 3].to_vec()),
            ("cut in half", good[..good.len() / 2].to_vec()),
            ("zeroed", vec![0; good.len()]),
            ("empty", Vec::new()),
            ("another object", other.unwrap()),
            ("a claim of a gigabyte", claim),
        ];
        let mut test = TestStore::beside(sound);
        let wanted = wanted(&test.user);
        for (what, bytes) in damaged {
            for mode in [BorrowMode::HardLink, BorrowMode::Copy] {
                replace(&test.user.path.join(&rel_path), &bytes);
                test.store = Store::create(
                    &Operation::unbounded(),
                    &test.user.beside(&format!("{what} {mode:?}")),
                )
                .unwrap();
                let dirs = test.object_dirs();
                let borrowed = test
                    .store
                    .borrow(&Operation::unbounded(), &dirs, wanted.clone(), mode)
                    .unwrap();
                assert_eq!(borrowed.missing, [id], "{what}, {mode:?}");
                assert!(!test.store.contains(&id).unwrap(), "{what}");
                assert!(!test.store.loose_path(&id).exists(), "{what}");
            }
        }
    }

    #[test]
    fn traps_among_the_objects_are_left_alone() {
        let id = blob_id(b"0\n");
        let name = id.to_string();
        let test = TestStore::beside(user());
        let path = test.user.path.join(format!(".git/objects/{}", &name[..2]));
        let file = path.join(&name[2..]);
        let moved = test.user.beside("moved");
        fs::rename(&file, &moved).unwrap();
        symlink(&moved, &file).unwrap();
        assert_eq!(borrow(&test, BorrowMode::HardLink).missing, [id], "a link");
        fs::remove_file(&file).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(&file)
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(borrow(&test, BorrowMode::HardLink).missing, [id], "a FIFO");
        fs::remove_file(&file).unwrap();
        fs::rename(&moved, &file).unwrap();
        let outside = test.user.beside("outside");
        fs::rename(&path, &outside).unwrap();
        symlink(&outside, &path).unwrap();
        assert!(
            borrow(&test, BorrowMode::HardLink).missing.contains(&id),
            "a directory"
        );
        fs::remove_file(&path).unwrap();
        fs::rename(&outside, &path).unwrap();
        assert_eq!(borrow(&test, BorrowMode::HardLink).missing, []);
    }

    #[test]
    fn a_damaged_or_swapped_pack_is_not_borrowed() {
        type Damage = fn(&Path, &Path);
        let damages: [(&str, Damage); 8] = [
            ("cut short", |pack, _| {
                let bytes = fs::read(pack).unwrap();
                replace(pack, &bytes[..bytes.len() - 1]);
            }),
            ("emptied", |pack, _| replace(pack, b"")),
            ("another count", |pack, _| {
                let mut bytes = fs::read(pack).unwrap();
                bytes[11] ^= 1;
                replace(pack, &bytes);
            }),
            ("another checksum", |pack, _| {
                let mut bytes = fs::read(pack).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                replace(pack, &bytes);
            }),
            ("an index cut short", |_, idx| {
                let bytes = fs::read(idx).unwrap();
                replace(idx, &bytes[..bytes.len() - 40]);
            }),
            ("no pack", |pack, _| fs::remove_file(pack).unwrap()),
            ("a link for an index", |pack, idx| {
                let moved = pack.with_extension("moved");
                fs::rename(idx, &moved).unwrap();
                symlink(&moved, idx).unwrap();
            }),
            ("a link for a pack", |pack, _| {
                let moved = pack.with_extension("moved");
                fs::rename(pack, &moved).unwrap();
                symlink(&moved, pack).unwrap();
            }),
        ];
        for (what, damage) in damages {
            let test = TestStore::beside(packed_user());
            let mut expected = wanted(&test.user);
            expected.sort();
            expected.dedup();
            let (pack, idx) = pack_files(&test.user);
            damage(&pack, &idx);
            let wanted = expected.clone();
            let dirs = test.object_dirs();
            let borrowed =
                test.store
                    .borrow(&Operation::unbounded(), &dirs, wanted, BorrowMode::HardLink);
            let borrowed = borrowed.unwrap();
            assert_eq!(borrowed.missing, expected, "{what}");
            assert!(test.packs().is_empty(), "{what}");
        }
    }

    #[test]
    fn a_directory_of_packs_that_leads_elsewhere_is_not_followed() {
        let test = TestStore::beside(packed_user());
        let packs = test.user.path.join(".git/objects/pack");
        let moved = test.user.beside("moved");
        fs::rename(&packs, &moved).unwrap();
        symlink(&moved, &packs).unwrap();
        let borrowed = borrow(&test, BorrowMode::HardLink);
        assert_eq!((borrowed.linked_packs, borrowed.linked_loose), (0, 0));
        assert!(!borrowed.missing.is_empty());
        let absent = test.user.beside("absent");
        let wanted = wanted_of_nothing();
        let borrowed = test.store.borrow(
            &Operation::unbounded(),
            &[absent],
            wanted.clone(),
            BorrowMode::HardLink,
        );
        assert_eq!(borrowed.unwrap().missing, wanted);
    }

    fn wanted_of_nothing() -> Vec<ObjectId> {
        vec![ObjectId([1; 20]), ObjectId([2; 20])]
    }

    #[test]
    fn objects_are_found_in_alternates_too() {
        let origin = packed_user();
        let borrower = TestRepository::new();
        let (pack, _) = pack_files(&origin);
        let test = TestStore::beside(borrower);
        let dirs = [
            test.user.path.join(".git/objects"),
            pack.parent().unwrap().parent().unwrap().to_owned(),
        ];
        let borrowed = test.store.borrow(
            &Operation::unbounded(),
            &dirs,
            wanted(&origin),
            BorrowMode::HardLink,
        );
        assert_eq!(borrowed.unwrap().missing, []);
    }

    #[test]
    fn shallow_and_partial_clones_give_what_they_have() {
        let origin = packed_user();
        origin.git(&["config", "uploadpack.allowFilter", "true"]);
        let url = format!("file://{}", origin.path.display());
        for (option, blobs_are_missing) in [("--depth=1", false), ("--filter=blob:none", true)] {
            let user = TestRepository::empty();
            user.git(&["clone", "-q", "--no-checkout", option, &url, "."]);
            let test = TestStore::beside(user);
            let borrowed = borrow_of(&test, wanted(&origin));
            assert_eq!(!borrowed.missing.is_empty(), blobs_are_missing, "{option}");
            // What is missing comes from the worktree.
            let pack = test.store.writer(&Operation::unbounded()).unwrap();
            for id in &borrowed.missing {
                let args = ["cat-file", "blob", &id.to_string()];
                let bytes = origin.run(&origin.path, &args).stdout;
                pack.add(crate::git::ObjectKind::Blob, *id, &bytes).unwrap();
            }
            let record = test.publish_tree(&owner("s", "r"), root_of(&origin), pack);
            assert_eq!(test.problems(&record), [], "{option}");
            let fsck = test.user.run(&test.store.git_dir, &["fsck", "--strict"]);
            assert!(fsck.status.success(), "{option}: {fsck:?}");
        }
    }

    fn borrow_of(test: &TestStore, wanted: Vec<ObjectId>) -> Borrowed {
        test.store
            .borrow(
                &Operation::unbounded(),
                &test.object_dirs(),
                wanted,
                BorrowMode::HardLink,
            )
            .unwrap()
    }

    #[test]
    fn what_a_crash_left_of_a_pack_is_replaced() {
        for leftover in ["pack", "idx"] {
            let test = TestStore::beside(packed_user());
            let (pack, _) = pack_files(&test.user);
            let ours = test.store.pack_dir().join(pack.file_name().unwrap());
            fs::write(ours.with_extension(leftover), b"half of it").unwrap();
            let borrowed = borrow(&test, BorrowMode::HardLink);
            assert_eq!(borrowed.missing, [], "{leftover}");
            test.fsck();
        }
    }
}
