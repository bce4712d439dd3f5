//! The private repository of one workspace.
//!
//! A bare repository that git reads and only Stillframe writes. Objects are in packs: our own, one
//! for each snapshot, and those of the user's repository, which are hard links (see [`borrow`]). A
//! snapshot is a commit without parents whose tree has these parts:
//!
//! | Name | What |
//! |---|---|
//! | `worktree` | the captured files |
//! | `record.json` | the [`Record`], with an empty `ref` |
//! | `index` | the bytes of the user's index, if there was one |
//! | `staged` | the blobs that only the user's index names, the files of git's operations, and what the refs named, each under its id; left out if there are none |
//!
//! A ref names the commit (see [`Refs`]), and is written last. `by-id/<snapshot id>` has the name
//! of the ref; it is a shortcut, which is checked when it is used and may be missing.
//!
//! libgit2 is not used here: it maps packs, which ends the process if a shared pack is truncated,
//! and it never returns from some truncated objects.

mod blobs;
mod borrow;
mod checkpoints;
mod collect;
mod complete;
mod merge;
mod purge;
mod reader;
#[cfg(test)]
mod testing;
mod verify;
mod vouched;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use super::loose::{Checked, LooseObject};
use super::pack::{DeltaBases, Pack, PackWriter, StoredAs, open_regular};
use super::refs::{self, Namespace, Refs, SnapshotRef};
use super::tree_object::{self, ItemKind, TreeItem, Trees};
use super::{ObjectId, ObjectKind};
use crate::caches::SHORTCUTS;
use crate::contents::ContentError;
use crate::durable::make_private;
use crate::durable::{self, StagedFile};
use crate::error::{PathError, printable};
use crate::holdings::{Holdings, Listing, Unreadable};
use crate::identity::Identity;
use crate::operation::Operation;
use crate::owner::Owner;
use crate::parallel;
use crate::path::RelPath;
use crate::problem::Problem;
use crate::purge::Purged;
use crate::record::{MAX_RECORD_BYTES, Record};
use crate::snapshot::{Label, Snapshot, SnapshotId};
use crate::store_error::StoreError;
use crate::tree::{Change, Entry, EntryKind};

use complete::LastPublished;
use vouched::Vouched;

pub(crate) use complete::Names;
pub(in crate::git) use purge::objects_of as purged_objects;
pub(crate) use reader::Reader;
pub(crate) use verify::Proven;

/// What git needs to know about the repository, and what keeps a git that is run in it by hand from
/// doing harm: no housekeeping of its own, and no judging of the files that we keep as they are.
const CONFIG: &str = "\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\tlogAllRefUpdates = false
[gc]
\tauto = 0
\tpackRefs = false
[maintenance]
\tauto = false
[fsck]
\tgitmodulesBlob = ignore
\tgitmodulesLarge = ignore
\tgitmodulesName = ignore
\tgitmodulesParse = ignore
\tgitmodulesPath = ignore
\tgitmodulesSymlink = ignore
\tgitmodulesUpdate = ignore
\tgitmodulesUrl = ignore
";
/// A branch that is never born: a repository has to have a HEAD.
const HEAD: &str = "ref: refs/heads/main\n";

const WORKTREE: &[u8] = b"worktree";
const RECORD: &[u8] = b"record.json";
const INDEX: &[u8] = b"index";
const STAGED: &[u8] = b"staged";

/// The longest name of a ref, and what else fits into one file of one line.
const MAX_NAME_BYTES: u64 = 4096;
/// The largest tree that is read, in bytes: a directory of several million names.
const MAX_TREE_BYTES: u64 = 256 << 20;
/// A snapshot's commit has a few hundred bytes; those of other refs may have long messages.
const MAX_COMMIT_BYTES: u64 = 16 << 20;
/// Fewer ids than this are sorted before another thread has begun.
const SORTED_PER_THREAD: usize = 10_000;
/// Blobs up to this size are checked before any of them is passed on.
const MAX_HELD_BYTES: u64 = 4 << 20;

/// The private repository of one workspace. Threads may share it.
///
/// Several processes may read it at once. Publishing, removing and collecting need the lock of the
/// workspace.
#[derive(Debug)]
pub(crate) struct Store {
    git_dir: PathBuf,
    refs: Refs,
    packs: Mutex<Arc<PackSet>>,
    /// Where in the set the last object was found: the next one is likely to be there too.
    last_hit: AtomicUsize,
    bases: DeltaBases,
    last_published: Mutex<Option<Arc<LastPublished>>>,
    vouched: Mutex<Vouched>,
    /// The indexes of packs that are known to be damaged.
    doubted: Mutex<HashSet<PathBuf>>,
    /// Whether anything was done in the directories of loose objects since they were looked at.
    has_new_loose: AtomicBool,
    /// What came in from the user's repository since the last snapshot was published, so that it
    /// can be taken back.
    came_in: Mutex<Vec<PathBuf>>,
}

/// Keeps a store open for the next operation.
#[derive(Debug, Default)]
pub(crate) struct StoreSlot {
    held: Mutex<Option<(Identity, Arc<Store>)>>,
}

impl StoreSlot {
    /// As [`Store::open`]; the one that was opened last, if it still is what lies at `git_dir`.
    pub(crate) fn open(&self, git_dir: &Path) -> Result<Option<Arc<Store>>, StoreError> {
        // A store can be removed and made again under its name.
        let identity = fs::symlink_metadata(git_dir).ok().map(|found| Identity {
            device: found.dev(),
            inode: found.ino(),
        });
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let same = held
            .take()
            .filter(|(known, store)| Some(*known) == identity && store.git_dir == git_dir);
        let opened = match Store::open(git_dir)? {
            None => return Ok(None),
            Some(opened) => match same {
                None => Arc::new(opened),
                Some((_, store)) => {
                    // What one operation read is of no use to the next, and takes memory.
                    store.bases.clear();
                    // Another process may have removed packs meanwhile.
                    store.refresh()?;
                    store
                }
            },
        };
        *held = identity.map(|identity| (identity, Arc::clone(&opened)));
        Ok(Some(opened))
    }

    /// As [`Store::create`], and as [`StoreSlot::open`].
    pub(crate) fn create(&self, op: &Operation, git_dir: &Path) -> Result<Arc<Store>, StoreError> {
        if let Some(store) = self.open(git_dir)? {
            return Ok(store);
        }
        // A few small files: one that is half made looks damaged to git.
        Store::create(&op.to_its_end(), git_dir)?;
        Ok(self.open(git_dir)?.expect("it was just made"))
    }
}

/// The packs as they were when the directory was last read.
#[derive(Debug, Default)]
struct PackSet {
    /// What the directory had, packs and indexes, sorted.
    names: Vec<OsString>,
    /// The largest first.
    packs: Vec<Arc<Pack>>,
    /// Those that are known to be damaged: nothing in them counts as stored, and all that can be
    /// read is.
    doubted: Vec<Arc<Pack>>,
    /// Files that are no usable pack, and why.
    broken: Vec<(PathBuf, String)>,
}

/// What a snapshot consists of. Everything that is named here is in the store, or in the pack that
/// is published with it.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// The tree of the captured files.
    pub(crate) worktree: ObjectId,
    /// The description. Its `ref` is ignored.
    pub(crate) record: &'a Record,
    /// The blob with the bytes of the user's index.
    pub(crate) index: Option<ObjectId>,
    /// Blobs that the user's index names and the tree does not, and the files of git's operations;
    /// in any order.
    pub(crate) staged: Vec<ObjectId>,
    /// What `worktree` names, if the caller knows that without reading a tree.
    pub(crate) named: Option<Names>,
}

/// What [`Store::latest_in_session`] found.
#[derive(Debug, Default)]
pub(crate) struct LatestRecord {
    /// `None` if there is none that can be read.
    pub(crate) record: Option<Record>,
    /// The refs of later ones, and what is wrong with them.
    pub(crate) passed_over: Vec<Problem>,
}

/// A snapshot's ref, and its record or why that cannot be read.
pub(crate) type Scanned = (SnapshotRef, Result<Record, StoreError>);

/// The objects that the commit of a snapshot names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredParts {
    pub(crate) worktree: ObjectId,
    pub(crate) record: ObjectId,
    pub(crate) index: Option<ObjectId>,
    /// The tree of the staged blobs.
    pub(crate) staged: Option<ObjectId>,
}

impl Store {
    /// Opens the repository at `git_dir`; `None` if there is none, or its making was interrupted.
    pub(crate) fn open(git_dir: &Path) -> Result<Option<Self>, StoreError> {
        // HEAD is made last.
        if durable::read(&git_dir.join("HEAD"), MAX_NAME_BYTES)?.is_none() {
            return Ok(None);
        }
        let store = Self {
            git_dir: git_dir.to_owned(),
            refs: Refs::new(git_dir),
            packs: Mutex::default(),
            last_hit: AtomicUsize::new(0),
            bases: DeltaBases::default(),
            last_published: Mutex::default(),
            vouched: Mutex::default(),
            doubted: Mutex::default(),
            has_new_loose: AtomicBool::new(false),
            came_in: Mutex::default(),
        };
        let pack_dir = store.pack_dir();
        // What cannot be looked at is not absent.
        match std::fs::metadata(&pack_dir) {
            Ok(meta) => Ok(meta.is_dir().then_some(store)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(PathError::at("look at", pack_dir)(e).into()),
        }
    }

    /// Opens the repository at `git_dir`, making it if need be: private, and durable.
    pub(crate) fn create(op: &Operation, git_dir: &Path) -> Result<Self, StoreError> {
        if let Some(store) = Self::open(git_dir)? {
            return Ok(store);
        }
        for directory in ["objects/pack", "objects/info", "refs", SHORTCUTS] {
            make_private(op, &git_dir.join(directory))?;
        }
        durable::replace(op, &git_dir.join("config"), CONFIG.as_bytes())?;
        for directory in ["objects/pack", "objects"] {
            durable::sync_directory(op, &git_dir.join(directory))?;
        }
        // Before HEAD, which says that all of this is done.
        durable::sync_above(op, git_dir)?;
        durable::replace(op, &git_dir.join("HEAD"), HEAD.as_bytes())?;
        Ok(Self::open(git_dir)?.expect("it was just made"))
    }

    /// Where it lies.
    pub(crate) fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// Begins the pack of a snapshot.
    pub(crate) fn writer(&self, op: &Operation) -> Result<PackWriter, StoreError> {
        Ok(PackWriter::create(op, &self.pack_dir())?)
    }

    /// Whether the object is there. New packs of other processes may be overlooked, which costs a
    /// second copy; [`Store::missing`] and [`Store::borrow`] look again.
    pub(crate) fn contains(&self, id: &ObjectId) -> Result<bool, StoreError> {
        for pack in &self.packs()?.packs {
            if pack.index.contains(id)? {
                return Ok(true);
            }
        }
        self.has_loose(id)
    }

    /// Whether there is a pack: without one, nothing was ever published.
    pub(crate) fn has_packs(&self) -> Result<bool, StoreError> {
        Ok(!self.packs()?.packs.is_empty())
    }

    /// Those of `wanted` that are not in the store, sorted and unique. Content is not read.
    pub(crate) fn missing(
        &self,
        op: &Operation,
        wanted: Vec<ObjectId>,
    ) -> Result<Vec<ObjectId>, StoreError> {
        self.refresh()?;
        let set = self.packs()?;
        self.missing_of(op, &set, wanted)
    }

    fn missing_of(
        &self,
        op: &Operation,
        set: &PackSet,
        mut wanted: Vec<ObjectId>,
    ) -> Result<Vec<ObjectId>, StoreError> {
        parallel::sort(op, &mut wanted, SORTED_PER_THREAD)?;
        wanted.dedup();
        for pack in &set.packs {
            if wanted.is_empty() {
                return Ok(wanted);
            }
            pack.index.retain_missing(op, &mut wanted)?;
        }
        let mut missing = Vec::with_capacity(wanted.len());
        let shards = match wanted.is_empty() {
            true => return Ok(wanted),
            false => self.loose_shards()?,
        };
        for shard in wanted.chunk_by(|a, b| a.0[0] == b.0[0]) {
            op.check()?;
            let there = match shards.has(&shard[0]) {
                true => self.loose_in(shard)?,
                false => HashSet::new(),
            };
            missing.extend(shard.iter().filter(|id| !there.contains(*id)));
        }
        Ok(missing)
    }

    /// An object, checked against its id. `Corrupt` if it is missing, damaged, or has more than
    /// `max_bytes`.
    pub(crate) fn read(
        &self,
        op: &Operation,
        id: &ObjectId,
        max_bytes: u64,
    ) -> Result<(ObjectKind, Vec<u8>), StoreError> {
        self.at_each_place(id, |place| {
            let (kind, bytes) = match place {
                ObjectPlace::Pack(pack, offset) => {
                    pack.object(op, offset, max_bytes, &self.bases)?
                }
                ObjectPlace::Loose(object) => {
                    if object.size > max_bytes {
                        return Err(StoreError::corrupt(
                            id.to_string(),
                            format!("it has {} bytes, {max_bytes} are allowed", object.size),
                        ));
                    }
                    let mut bytes = Vec::new();
                    let kind = object.kind;
                    object.verify_to(op, id, &mut bytes).map_err(no_sink)?;
                    return Ok((kind, bytes));
                }
            };
            check_bytes(id, kind, &bytes)?;
            Ok((kind, bytes))
        })
    }

    /// Writes the blob to `out`, as a stream; answers with its size in bytes.
    ///
    /// It is checked against its id: on `Err` whatever was written must not be used. Of a blob
    /// below 4 MiB nothing is written then.
    pub(crate) fn blob_to(
        &self,
        op: &Operation,
        id: &ObjectId,
        out: &mut dyn Write,
    ) -> Result<u64, ContentError> {
        let (kind, size) = self.header(id)?;
        check_kind(id, kind, ObjectKind::Blob)?;
        if size <= MAX_HELD_BYTES {
            let (_, bytes) = self.read(op, id, size)?;
            out.write_all(&bytes).map_err(ContentError::Sink)?;
            return Ok(size);
        }
        let mut out = Counting { out, count: 0 };
        self.at_each_place(id, |place| match self.pass_on(op, place, id, &mut out) {
            // Nothing was written, so another place may do better.
            Err(ContentError::Store(error)) if out.count == 0 => Err(error),
            passed_on => Ok(passed_on),
        })??;
        Ok(size)
    }

    /// Writes the object at one place to `out`, and checks that it is the object `id`. Only what is
    /// stored as a delta is held in memory.
    fn pass_on(
        &self,
        op: &Operation,
        place: ObjectPlace<'_>,
        id: &ObjectId,
        out: &mut dyn Write,
    ) -> Result<(), ContentError> {
        let (pack, offset) = match place {
            ObjectPlace::Pack(pack, offset) => (pack, offset),
            ObjectPlace::Loose(object) => return object.verify_to(op, id, out),
        };
        if let (StoredAs::Whole(kind), size) = pack.entry_at(offset)? {
            let mut checked = Checked::new(kind, size, out);
            pack.whole_object_to(op, offset, &mut checked)?;
            return Ok(checked.finish(id)?);
        }
        let (kind, bytes) = pack.object(op, offset, u64::MAX, &self.bases)?;
        check_bytes(id, kind, &bytes)?;
        out.write_all(&bytes).map_err(ContentError::Sink)
    }

    /// The size of a blob in bytes. Its content is not read.
    pub(crate) fn blob_size(&self, id: &ObjectId) -> Result<u64, StoreError> {
        let (kind, size) = self.header(id)?;
        check_kind(id, kind, ObjectKind::Blob)?;
        Ok(size)
    }

    /// The sizes in bytes of those of these blobs that are there. Their content is not read.
    pub(crate) fn blob_sizes(
        &self,
        op: &Operation,
        mut ids: Vec<ObjectId>,
    ) -> Result<HashMap<ObjectId, u64>, StoreError> {
        ids.sort_unstable();
        ids.dedup();
        let mut sizes = HashMap::with_capacity(ids.len());
        for pack in self.packs()?.all() {
            if ids.is_empty() {
                break;
            }
            // What a damaged pack does not tell, another place may.
            let _ = pack.sizes(op, &ids, &mut |at, size| {
                sizes.insert(ids[at], size);
            });
            ids.retain(|id| !sizes.contains_key(id));
        }
        for id in ids {
            match self.blob_size(&id) {
                Ok(size) => drop(sizes.insert(id, size)),
                Err(StoreError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sizes)
    }

    /// Every path at which two trees hold another entry, sorted by path. `None` is no files at all.
    pub(crate) fn tree_changes(
        &self,
        op: &Operation,
        old: Option<ObjectId>,
        new: Option<ObjectId>,
    ) -> Result<Vec<Change>, StoreError> {
        tree_object::changes(op, &self.reader(&self.reader_set()?), old, new)
    }

    /// Every file and link of a tree, sorted by path.
    pub(crate) fn tree_paths(
        &self,
        op: &Operation,
        root: &ObjectId,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        tree_object::entries(op, &self.reader(&self.reader_set()?), root)
    }

    /// What a tree has at `path`; `None` if it has nothing there.
    pub(crate) fn entry_at(
        &self,
        op: &Operation,
        root: &ObjectId,
        path: &RelPath,
    ) -> Result<Option<TreeItem>, StoreError> {
        tree_object::find(op, self, root, path)
    }

    /// Makes a snapshot of `parts`: its record, commit and trees go into `pack` too, which is
    /// finished; then a ref is made that was not there before. Guards have a namespace of their
    /// own.
    ///
    /// On `Ok` the snapshot is durable, and everything that it names was seen to be in the store.
    /// On `Err` it does not exist.
    pub(crate) fn publish(
        &self,
        op: &Operation,
        owner: &Owner,
        parts: Parts<'_>,
        pack: PackWriter,
    ) -> Result<Snapshot, StoreError> {
        let add = |kind, bytes: &[u8]| {
            let id = ObjectId::of(kind, bytes)
                .map_err(|e| StoreError::corrupt("the new snapshot", e.to_string()))?;
            pack.add(kind, id, bytes)?;
            Ok::<_, StoreError>(id)
        };
        let mut record = parts.record.clone();
        record.snapshot.reference.clear();
        let text = serde_json::to_vec(&record).expect("a record is plain data");
        let record_id = add(ObjectKind::Blob, &text)?;
        let mut items = vec![
            item(WORKTREE, ItemKind::Directory, parts.worktree),
            item(RECORD, FILE, record_id),
        ];
        if parts.worktree == tree_object::empty_tree_id() {
            add(ObjectKind::Tree, b"")?;
        }
        if let Some(index) = parts.index {
            items.push(item(INDEX, FILE, index));
        }
        let mut staged = parts.staged;
        staged.sort_unstable();
        staged.dedup();
        let mut staged_tree = None;
        if !staged.is_empty() {
            let mut names: Vec<_> = staged
                .iter()
                .map(|id| item(id.to_string().as_bytes(), FILE, *id))
                .collect();
            let bytes = tree_object::serialize(&mut names);
            let tree = ObjectId::of(ObjectKind::Tree, &bytes)
                .map_err(|e| StoreError::corrupt("the new snapshot", e.to_string()))?;
            // As a rule the snapshot before it has the same.
            if !self.contains(&tree)? {
                pack.add(ObjectKind::Tree, tree, &bytes)?;
            }
            items.push(item(STAGED, ItemKind::Directory, tree));
            staged_tree = Some(tree);
        }
        let tree = add(ObjectKind::Tree, &tree_object::serialize(&mut items))?;
        let commit = add(
            ObjectKind::Commit,
            commit_text(&tree, &record.snapshot.id, record.snapshot.captured_at).as_bytes(),
        )?;
        if seeded_bug!("ref-before-pack") {
            let early = self.refs.stage(op, &commit)?;
            self.refs
                .create(op, Namespace::Snapshots, owner, commit, early, None)?;
        }
        let staged_ref = self.refs.stage(op, &commit)?;
        let finished = pack.finish_with(&[&staged_ref])?;
        let stored = StoredParts {
            worktree: parts.worktree,
            record: record_id,
            index: parts.index,
            staged: staged_tree,
        };
        let new_pack = finished.as_ref().map(|finished| finished.path.as_path());
        let namespace = match record.snapshot.label == Label::GUARD {
            true => Namespace::Guards,
            false => Namespace::Snapshots,
        };
        let made = self
            .check_complete(op, &[commit, tree], &stored, &staged, parts.named, new_pack)
            // Whatever was made of an earlier failure: no cancellation is passed over.
            .and_then(|()| Ok(op.check()?))
            .and_then(|()| {
                let op = &op.to_its_end();
                let before = self.refs.last();
                let shortcut = self.stage_shortcut(op, &record.snapshot.id)?;
                let last = before.as_ref().map(|last| last.found.seq);
                let made = self
                    .refs
                    .create(op, namespace, owner, commit, staged_ref, last)?;
                Ok((made, before, shortcut))
            });
        let (made, before, shortcut) = made.inspect_err(|_| {
            // Its record has a unique id, so nothing else needs this pack.
            if let Some(finished) = finished {
                let _ = self.remove_packs(op, &[finished.path]);
                let _ = self.refresh();
            }
        })?;
        let op = &op.to_its_end();
        self.remember(&record.snapshot.id, &made, shortcut);
        self.refs.note_last(op, &made, before.as_ref());
        self.came_in().clear();
        self.note_published(made, stored, staged);
        let mut snapshot = record.snapshot;
        snapshot.reference = commit.to_string();
        Ok(snapshot)
    }

    /// What the commit of a snapshot names.
    pub(crate) fn parts(
        &self,
        op: &Operation,
        commit: &ObjectId,
    ) -> Result<StoredParts, StoreError> {
        let tree = self.commit(op, commit)?.tree;
        let items = self.tree(op, &tree)?;
        let find = |name: &[u8], kind: ItemKind| {
            items
                .iter()
                .find(|item| item.name == name && item.kind == kind)
                .map(|item| item.id)
        };
        let lacks = |name: &[u8]| {
            let name = String::from_utf8_lossy(name);
            StoreError::corrupt(format!("snapshot {commit}"), format!("it has no {name}"))
        };
        Ok(StoredParts {
            worktree: find(WORKTREE, ItemKind::Directory).ok_or_else(|| lacks(WORKTREE))?,
            record: find(RECORD, FILE).ok_or_else(|| lacks(RECORD))?,
            index: find(INDEX, FILE),
            staged: find(STAGED, ItemKind::Directory),
        })
    }

    /// The records of all snapshots and guards in the order in which they were published, which is
    /// that of time as long as nobody sets the clock back.
    ///
    /// One that cannot be read is an error: use [`Store::scan`] to see the others.
    #[cfg(test)]
    pub(crate) fn snapshots(&self) -> Result<Vec<Record>, StoreError> {
        self.scan(&Operation::unbounded())?
            .into_iter()
            .map(|(_, record)| record)
            .collect()
    }

    /// Every snapshot's ref with its record, or with why it cannot be read; in the order in which
    /// they were published.
    pub(crate) fn scan(&self, op: &Operation) -> Result<Vec<Scanned>, StoreError> {
        let refs = self.refs.snapshots()?;
        let read = |found: SnapshotRef| {
            let record = self.record_at(op, &found);
            (found, record)
        };
        Ok(refs.into_iter().map(read).collect())
    }

    /// How many snapshots there are, and which was published last. No record is read.
    pub(crate) fn holdings(&self) -> Result<Holdings, StoreError> {
        let (count, newest) = self.refs.holdings()?;
        Ok(Holdings::Newest {
            count,
            reference: newest.map(|commit| commit.to_string()),
        })
    }

    /// Whether a snapshot of this id is known to have been published. Costs one look.
    pub(crate) fn has(&self, id: &SnapshotId) -> bool {
        self.by_id(id).exists()
    }

    /// The record of one snapshot.
    pub(crate) fn record(&self, op: &Operation, id: &SnapshotId) -> Result<Record, StoreError> {
        self.find(op, id).map(|(_, record)| record)
    }

    /// The record that a session published last, guards included, of those that can be read; with
    /// what is wrong with later ones.
    pub(crate) fn latest_in_session(
        &self,
        op: &Operation,
        session_id: &str,
    ) -> Result<LatestRecord, StoreError> {
        let mut latest = LatestRecord::default();
        let last = self.refs.last().map(|last| last.found);
        if let Some(last) = last.filter(|last| refs::is_of_session(&last.name, session_id))
            && let Ok(record) = self.record_at(op, &last)
        {
            latest.record = Some(record);
            return Ok(latest);
        }
        for name in self.refs.of_session(session_id)? {
            let found = self.refs.get(&name).and_then(|found| {
                let record = found.map(|found| self.record_at(op, &found));
                record.transpose()
            });
            match found {
                Ok(Some(record)) => {
                    latest.record = Some(record);
                    break;
                }
                // Forgotten since.
                Ok(None) => {}
                Err(StoreError::Corrupt { what, detail }) => {
                    let detail = format!("{what} is corrupt: {detail}");
                    latest.passed_over.push(Problem::new(name, detail));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(latest)
    }

    /// What there is as a snapshot, oldest first, whether it can be read or not.
    pub(crate) fn list(&self, op: &Operation) -> Result<Listing, StoreError> {
        let (refs, broken) = self.refs.found()?;
        let mut listing = Listing::default();
        let broken = broken.into_iter().map(|broken| {
            let problem = Problem::new(broken.name.clone(), broken.detail);
            Unreadable::new(broken.name, problem)
        });
        listing.unreadable.extend(broken);
        for found in refs {
            match self.record_at(op, &found) {
                Ok(record) => listing.snapshots.push(record.snapshot),
                Err(error @ StoreError::Interrupted(_)) => return Err(error),
                Err(error) => {
                    let (name, what) = (found.name.clone(), found.name);
                    let found = Unreadable::because(name, None, what, &error);
                    listing.unreadable.push(found);
                }
            }
        }
        if !listing.unreadable.is_empty() {
            // Whoever cannot be told their ids is told the rest.
            let mut ids = self.ids_by_name().unwrap_or_default();
            for found in &mut listing.unreadable {
                found.id = ids.remove(&found.name);
            }
        }
        Ok(listing)
    }

    /// Removes refs by their names, whatever they name.
    pub(crate) fn forget_names(&self, op: &Operation, names: &[String]) -> Result<(), StoreError> {
        let ids = self.ids_by_name()?;
        self.refs.remove(op, names)?;
        for name in names {
            if let Some(id) = ids.get(name) {
                let _ = durable::remove_file(op, &self.by_id(id));
            }
        }
        Ok(())
    }

    /// Which snapshot has a ref, as far as the shortcuts say.
    fn ids_by_name(&self) -> Result<HashMap<String, SnapshotId>, StoreError> {
        let names = self.remembered_names()?.into_iter();
        Ok(names.map(|(id, name)| (name, id)).collect())
    }

    /// Removes what remembers the names of refs that are gone.
    pub(super) fn forget_gone_names(&self, op: &Operation) -> Result<(), StoreError> {
        let there = self.refs.all()?;
        for (id, name) in self.remembered_names()? {
            if !there.contains_key(&name) {
                durable::remove_file(op, &self.by_id(&id))?;
            }
        }
        Ok(())
    }

    /// The names of refs that are remembered, with the snapshots that they are of.
    fn remembered_names(&self) -> Result<Vec<(SnapshotId, String)>, StoreError> {
        let directory = self.git_dir.join(SHORTCUTS);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if is_absent(Some(&e)) => return Ok(Vec::new()),
            Err(e) => return Err(PathError::at("list", directory)(e).into()),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(PathError::at("list", &directory))?
                .file_name();
            let id: Option<SnapshotId> = name.to_str().and_then(|name| name.parse().ok());
            if let Some(id) = id
                && let Some(name) = self.remembered_name(&id)?
            {
                names.push((id, name));
            }
        }
        Ok(names)
    }

    /// Removes the refs of these snapshots, durably. An id that is not there is fine. The content
    /// stays until [`Store::collect`].
    pub(crate) fn forget(&self, op: &Operation, ids: &[SnapshotId]) -> Result<(), StoreError> {
        let mut names = Vec::new();
        for id in ids {
            match self.find(op, id) {
                Ok((found, _)) => names.push(found.name),
                Err(StoreError::UnknownSnapshot { .. }) => {}
                // A snapshot that cannot be read can be forgotten too, as long as it can be found.
                Err(error) => match self.remembered_name(id)? {
                    Some(name) => names.push(name),
                    None => return Err(error),
                },
            }
        }
        self.refs.remove(op, &names)?;
        for id in ids {
            // Nothing is lost if the shortcut stays: it leads nowhere, and goes with the next
            // collection.
            let _ = durable::remove_file(op, &self.by_id(id));
        }
        Ok(())
    }

    /// The bytes of all files of the repository. A hard link counts like any other file.
    pub(crate) fn bytes(&self) -> Result<u64, StoreError> {
        let mut sum = 0;
        for entry in walkdir::WalkDir::new(&self.git_dir) {
            let found = entry.and_then(|e| e.metadata());
            match found {
                Ok(meta) if meta.is_file() => sum += meta.len(),
                Ok(_) => {}
                // Another process tidied up.
                Err(e) if is_absent(e.io_error()) => {}
                Err(e) => {
                    let path = e.path().unwrap_or(&self.git_dir).to_owned();
                    return Err(PathError::at("look at", path)(io::Error::from(e)).into());
                }
            }
        }
        Ok(sum)
    }

    fn find(&self, op: &Operation, id: &SnapshotId) -> Result<(SnapshotRef, Record), StoreError> {
        if let Some(found) = self.remembered(id)?
            && let Ok(record) = self.record_at(op, &found)
            && record.snapshot.id == *id
        {
            return Ok((found, record));
        }
        let mut unreadable = None;
        for (found, record) in self.scan(op)? {
            match record {
                Ok(record) if record.snapshot.id == *id => return Ok((found, record)),
                Ok(_) => {}
                Err(error) => unreadable = Some(error),
            }
        }
        // Any of those that could not be read may have been the one.
        Err(unreadable.unwrap_or_else(|| StoreError::UnknownSnapshot { id: id.clone() }))
    }

    fn record_at(&self, op: &Operation, found: &SnapshotRef) -> Result<Record, StoreError> {
        let parts = self.parts(op, &found.commit)?;
        let (kind, text) = self.read(op, &parts.record, MAX_RECORD_BYTES)?;
        check_kind(&parts.record, kind, ObjectKind::Blob)?;
        let mut record = Record::from_json(&text, &found.name)?;
        record.snapshot.reference = found.commit.to_string();
        Ok(record)
    }

    fn by_id(&self, id: &SnapshotId) -> PathBuf {
        self.git_dir.join(SHORTCUTS).join(id.as_str())
    }

    /// Makes the file that leads from the id of a snapshot to its ref, before the ref exists: it
    /// shows readers of the note that something may follow the ref in the note. Best effort.
    fn stage_shortcut(
        &self,
        op: &Operation,
        id: &SnapshotId,
    ) -> Result<Option<StagedFile>, StoreError> {
        let staged = make_private(op, &self.git_dir.join(SHORTCUTS))
            .and_then(|()| durable::stage_for(op, &self.by_id(id)));
        if staged.is_err() {
            self.refs.forget_last(op)?;
        }
        Ok(staged.ok())
    }

    /// Notes where a snapshot is. Best effort: without it, it is searched for.
    fn remember(&self, id: &SnapshotId, found: &SnapshotRef, shortcut: Option<StagedFile>) {
        if let Some(shortcut) = shortcut {
            let _ = shortcut
                .write_at(found.name.as_bytes(), 0)
                .and_then(|()| shortcut.rename(&self.by_id(id)));
        }
    }

    fn remembered(&self, id: &SnapshotId) -> Result<Option<SnapshotRef>, StoreError> {
        match self.remembered_name(id)? {
            Some(name) => self.refs.get(&name),
            None => Ok(None),
        }
    }

    /// The name of a ref of the form that a snapshot's has.
    fn remembered_name(&self, id: &SnapshotId) -> Result<Option<String>, StoreError> {
        let name = match durable::read(&self.by_id(id), MAX_NAME_BYTES) {
            Ok(Some(name)) => name,
            // Damaged, it is as good as missing.
            Ok(None) | Err(StoreError::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let name = String::from_utf8(name).ok();
        Ok(name.filter(|name| refs::is_of_snapshot(name)))
    }

    fn commit(&self, op: &Operation, id: &ObjectId) -> Result<Commit, StoreError> {
        let (kind, bytes) = self.read(op, id, MAX_COMMIT_BYTES)?;
        check_kind(id, kind, ObjectKind::Commit)?;
        parse_commit(&bytes)
            .ok_or_else(|| StoreError::corrupt(id.to_string(), "the commit is malformed"))
    }

    /// What an object claims to be, and its size in bytes.
    fn header(&self, id: &ObjectId) -> Result<(ObjectKind, u64), StoreError> {
        self.at_each_place(id, |place| match place {
            ObjectPlace::Pack(pack, offset) => pack.object_size(offset),
            ObjectPlace::Loose(object) => Ok((object.kind, object.size)),
        })
    }

    /// Tries `read` at every place that has the object until it succeeds; the first error counts.
    ///
    /// A place may vanish meanwhile, because another process merges packs: then it is looked for
    /// again.
    fn at_each_place<T>(
        &self,
        id: &ObjectId,
        mut read: impl FnMut(ObjectPlace<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let mut failure = None;
            let set = self.packs()?;
            let start = self.last_hit.load(Ordering::Relaxed);
            for step in 0..set.packs.len() {
                let at = (start + step) % set.packs.len();
                let pack = &set.packs[at];
                let found = pack.index.find(id).and_then(|offset| match offset {
                    Some(offset) => read(ObjectPlace::Pack(pack, offset)).map(Some),
                    None => Ok(None),
                });
                match found {
                    Ok(Some(value)) => {
                        self.last_hit.store(at, Ordering::Relaxed);
                        return Ok(value);
                    }
                    Ok(None) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            let path = self.loose_path(id);
            let loose = match open_regular(&path) {
                Err(e) if is_absent(Some(&e.source)) => None,
                Err(e) => Some(Err(e.into())),
                Ok(file) => Some(
                    LooseObject::of_file(file, &path)
                        .and_then(|object| read(ObjectPlace::Loose(Box::new(object)))),
                ),
            };
            match loose {
                Some(Ok(value)) => return Ok(value),
                Some(Err(error)) => failure = failure.or(Some(error)),
                None => {}
            }
            for pack in &set.doubted {
                let found = pack.index.find(id).and_then(|offset| match offset {
                    Some(offset) => read(ObjectPlace::Pack(pack, offset)).map(Some),
                    None => Ok(None),
                });
                match found {
                    Ok(Some(value)) => return Ok(value),
                    Ok(None) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if !self.refresh()? {
                return Err(failure.unwrap_or_else(|| missing(id)));
            }
        }
    }

    fn packs(&self) -> Result<Arc<PackSet>, StoreError> {
        let set = Arc::clone(&self.packs.lock().expect("no panic while it is held"));
        if set.all().next().is_some() || !set.broken.is_empty() {
            return Ok(set);
        }
        self.refresh()?;
        Ok(Arc::clone(
            &self.packs.lock().expect("no panic while it is held"),
        ))
    }

    /// Looks at the directory of packs again; answers whether other packs can be used now.
    pub(crate) fn refresh(&self) -> Result<bool, StoreError> {
        let mut held = self.packs.lock().expect("no panic while it is held");
        let directory = self.pack_dir();
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(PathError::at("list", &directory))? {
            let name = entry
                .map_err(PathError::at("list", &directory))?
                .file_name();
            let is_kept = |name: &[u8]| name.ends_with(b".pack") || name.ends_with(b".idx");
            if name.as_bytes().starts_with(b"pack-") && is_kept(name.as_bytes()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        // What was broken may have been replaced.
        if held.broken.is_empty() && held.names == names {
            return Ok(false);
        }
        let has_name = |path: &Path| {
            let name = path.file_name().expect("it lies in the directory");
            names.binary_search_by(|n| n.as_os_str().cmp(name)).is_ok()
        };
        let doubted = self.doubted.lock().expect("no panic while it is held");
        let known: HashMap<&Path, &Arc<Pack>> = held
            .all()
            .filter(|pack| has_name(pack.path()))
            .map(|pack| (pack.index.path(), pack))
            .collect();
        let indexes = names.iter().map(|name| directory.join(name));
        let indexes = indexes.filter(|path| path.extension().is_some_and(|e| e == "idx"));
        let mut set = PackSet::default();
        let mut is_whole = true;
        for path in indexes {
            let place = match doubted.contains(&path) {
                true => &mut set.doubted,
                false => &mut set.packs,
            };
            if let Some(pack) = known.get(path.as_path()) {
                place.push(Arc::clone(pack));
                continue;
            }
            let opened = match has_name(&path.with_extension("pack")) {
                true => Pack::open(&path).and_then(|pack| pack.check().map(|()| pack)),
                false => Err(StoreError::corrupt(printable(&path), "its pack is missing")),
            };
            match opened {
                Ok(pack) => place.push(Arc::new(pack)),
                Err(StoreError::Corrupt { detail, .. }) => set.broken.push((path, detail)),
                // Another process removed it, and may make it again under the same name.
                Err(StoreError::Io(e)) if is_absent(Some(&e.source)) => is_whole = false,
                Err(error) => return Err(error),
            }
        }
        let is_known = |p: &Arc<Pack>| known.contains_key(p.index.path());
        let is_changed = set.all().count() != held.all().count() || !set.all().all(is_known);
        set.packs
            .sort_by_key(|p| std::cmp::Reverse(p.index.count()));
        if is_whole {
            set.names = names;
        }
        *held = Arc::new(set);
        Ok(is_changed)
    }

    /// Which of `shard`, ids with the same first byte, are there as loose objects.
    fn loose_in(&self, shard: &[ObjectId]) -> Result<HashSet<ObjectId>, StoreError> {
        let mut there = HashSet::new();
        let Some(first) = shard.first().map(|id| self.loose_path(id)) else {
            return Ok(there);
        };
        let directory = first.parent().expect("objects are two levels deep");
        // To list the names costs less than to ask for more than a few.
        if shard.len() <= 8 {
            for id in shard {
                if self.has_loose(id)? {
                    there.insert(*id);
                }
            }
            return Ok(there);
        }
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) if is_absent(Some(&e)) => return Ok(there),
            Err(e) => return Err(PathError::at("list", directory)(e).into()),
        };
        for entry in entries {
            let entry = entry.map_err(PathError::at("list", directory))?;
            let name = entry.file_name();
            let id = name
                .to_str()
                .and_then(|name| format!("{:02x}{name}", shard[0].0[0]).parse().ok());
            if let Some(id) = id
                && entry.file_type().is_ok_and(|t| t.is_file())
            {
                there.insert(id);
            }
        }
        Ok(there)
    }

    /// Which directories of loose objects there are: as a rule few or none, so that most objects
    /// need not be looked for.
    fn loose_shards(&self) -> Result<LooseShards, StoreError> {
        let directory = self.git_dir.join("objects");
        let mut shards = LooseShards([false; 256]);
        for entry in fs::read_dir(&directory).map_err(PathError::at("list", &directory))? {
            let name = entry
                .map_err(PathError::at("list", &directory))?
                .file_name();
            let first = name.to_str().filter(|name| name.len() == 2);
            if let Some(first) = first.and_then(|name| u8::from_str_radix(name, 16).ok()) {
                shards.0[usize::from(first)] = true;
            }
        }
        Ok(shards)
    }

    fn has_loose(&self, id: &ObjectId) -> Result<bool, StoreError> {
        let path = self.loose_path(id);
        match fs::symlink_metadata(&path) {
            Ok(meta) => Ok(meta.is_file()),
            Err(e) if is_absent(Some(&e)) => Ok(false),
            Err(e) => Err(PathError::at("look at", path)(e).into()),
        }
    }

    fn loose_path(&self, id: &ObjectId) -> PathBuf {
        let name = id.to_string();
        self.git_dir
            .join("objects")
            .join(&name[..2])
            .join(&name[2..])
    }

    /// What was purged. The list lies beside the repository, since it is the workspace's.
    pub(crate) fn purged(&self) -> Result<Purged, StoreError> {
        let stores = self.git_dir.parent();
        Purged::beside(stores.expect("a store lies in a directory"))
    }

    fn pack_dir(&self) -> PathBuf {
        self.git_dir.join("objects/pack")
    }
}

impl Trees for Store {
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
        // It need not be anywhere.
        if *id == tree_object::empty_tree_id() {
            return Ok(Vec::new());
        }
        let (kind, bytes) = self.read(op, id, MAX_TREE_BYTES)?;
        check_kind(id, kind, ObjectKind::Tree)?;
        tree_object::parse(id, &bytes)
    }
}

/// The directories of loose objects, by the first byte of the ids of what is in them.
struct LooseShards([bool; 256]);

impl LooseShards {
    /// Whether there is one that may have the object.
    fn has(&self, id: &ObjectId) -> bool {
        self.0[usize::from(id.0[0])]
    }
}

/// Counts what is written.
struct Counting<'a> {
    out: &'a mut dyn Write,
    count: u64,
}

impl Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Where an object is.
enum ObjectPlace<'a> {
    Pack(&'a Pack, u64),
    Loose(Box<LooseObject<'a, fs::File>>),
}

const FILE: ItemKind = ItemKind::Entry(EntryKind::File);

fn item(name: &[u8], kind: ItemKind, id: ObjectId) -> TreeItem {
    TreeItem {
        name: name.to_vec(),
        kind,
        id,
    }
}

struct Commit {
    tree: ObjectId,
    parents: Vec<ObjectId>,
}

/// The commit of a snapshot: the same parts at the same time give the same id.
fn commit_text(tree: &ObjectId, id: &SnapshotId, captured_at: Timestamp) -> String {
    // git knows no time before 1970; the record has the right one.
    let seconds = captured_at.as_second().max(0);
    let who = format!("Stillframe <stillframe@localhost> {seconds} +0000");
    format!("tree {tree}\nauthor {who}\ncommitter {who}\n\n{id}\n")
}

fn parse_commit(bytes: &[u8]) -> Option<Commit> {
    let mut lines = bytes.split(|b| *b == b'\n');
    let id = |line: &[u8], key: &[u8]| -> Option<ObjectId> {
        std::str::from_utf8(line.strip_prefix(key)?)
            .ok()?
            .parse()
            .ok()
    };
    let tree = id(lines.next()?, b"tree ")?;
    let parents = lines.map_while(|line| id(line, b"parent ")).collect();
    Some(Commit { tree, parents })
}

fn check_bytes(id: &ObjectId, kind: ObjectKind, bytes: &[u8]) -> Result<(), StoreError> {
    let mut nowhere = io::sink();
    let mut checked = Checked::new(kind, bytes.len() as u64, &mut nowhere);
    checked.write_all(bytes).expect("a sink takes everything");
    checked.finish(id)
}

fn check_kind(id: &ObjectId, found: ObjectKind, wanted: ObjectKind) -> Result<(), StoreError> {
    if found == wanted {
        return Ok(());
    }
    let detail = format!("it is a {}, not a {}", found.as_str(), wanted.as_str());
    Err(StoreError::corrupt(id.to_string(), detail))
}

fn missing(id: &ObjectId) -> StoreError {
    StoreError::corrupt(id.to_string(), "it is not in the store")
}

fn is_absent(error: Option<&io::Error>) -> bool {
    error.is_some_and(|e| {
        matches!(
            e.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    })
}

/// Memory takes everything, so only the store can have failed.
fn no_sink(error: ContentError) -> StoreError {
    match error {
        ContentError::Store(error) => error,
        ContentError::Sink(e) => PathError::at("hold an object in", "memory")(e).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::testing::*;
    use super::*;
    use crate::caches::LAST_REF;
    use crate::contents::Contents as _;
    use crate::git::pack::Streamed;
    use crate::note;
    use crate::record::RECORD_VERSION;

    const NO_FILES: &[(&str, &str)] = &[];

    fn is_corrupt<T>(result: &Result<T, StoreError>) -> bool {
        matches!(result, Err(StoreError::Corrupt { .. }))
    }

    /// The blob, alone and as one of many, which must come to the same.
    fn content(store: &Store, id: &ObjectId) -> Result<Vec<u8>, StoreError> {
        let mut out = Vec::new();
        let alone = match store.blob_to(&Operation::unbounded(), id, &mut out) {
            Ok(size) => {
                assert_eq!(size, out.len() as u64);
                Ok(out)
            }
            Err(error) => Err(no_sink(error)),
        };
        let again = Store::open(&store.git_dir)?.expect("it is there");
        let mut out = Vec::new();
        let among_many = Arc::new(again)
            .blobs(&Operation::unbounded(), vec![*id])?
            .write(&(*id).into(), &mut out);
        match (&alone, among_many) {
            (Ok(bytes), Ok(())) => assert_eq!(*bytes, out),
            (Err(_), Err(ContentError::Store(_))) => {}
            (alone, among_many) => panic!("{id}: {:?}, {among_many:?}", alone.as_ref().err()),
        }
        alone
    }

    #[test]
    fn the_last_ref_is_known_to_the_next_process_until_anybody_else_publishes() {
        let test = TestStore::new();
        let publish = |text: &str| test.publish(&owner("s", "r"), &[("f", text)]);
        assert_eq!(test.store.refs.last(), None);
        publish("1");
        let second = publish("2");
        let known = || {
            test.reopened()
                .refs
                .last()
                .map(|last| (last.found.seq, last.count))
        };
        assert_eq!(known(), Some((2, 2)));
        let latest = test
            .reopened()
            .latest_in_session(&Operation::unbounded(), "s")
            .unwrap()
            .record;
        assert_eq!(latest, Some(second));
        // A version that writes no note leaves a shortcut, at another time.
        let shortcuts = fs::File::open(test.store.git_dir.join(SHORTCUTS)).unwrap();
        shortcuts.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(known(), None);
        publish("3");
        assert_eq!(known(), Some((3, 3)));
        // A power cut may have taken what it tells of.
        let path = test.store.git_dir.join(LAST_REF);
        let text = note::read(&path, 1 << 20).unwrap();
        let (_, of_this_start) = text.split_once('\n').unwrap();
        note::write(
            &Operation::unbounded(),
            &path,
            &format!("another start\n{of_this_start}"),
        )
        .unwrap();
        assert_eq!(known(), None);
        publish("4");
        assert_eq!(known(), Some((4, 4)));
        // Without the note the numbers still continue.
        test.store
            .refs
            .forget_last(&Operation::unbounded())
            .unwrap();
        assert_eq!(known(), None);
        let last = publish("5");
        assert_eq!(known(), Some((5, 5)));
        test.store
            .forget(&Operation::unbounded(), &[last.snapshot.id])
            .unwrap();
        assert_eq!(known(), None, "it is gone");
    }

    #[test]
    fn a_store_is_private_whatever_the_umask_and_git_takes_it() {
        // Of this thread alone: what other tests make has the modes that it always has.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
        rustix::process::umask(rustix::fs::Mode::empty());
        let test = TestStore::new();
        let record = test.publish(&owner("s", "r"), &[("a", "one\n")]);
        test.git(&["pack-refs", "--all"]);
        let other = test.publish(&owner("s", "r"), &[("a", "two\n")]);
        test.store
            .forget(&Operation::unbounded(), &[record.snapshot.id])
            .unwrap();

        for entry in walkdir::WalkDir::new(&test.store.git_dir) {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            let is_git = entry.path().ends_with("refs/tags");
            assert!(
                mode & 0o077 == 0 || is_git,
                "{mode:o} {}",
                entry.path().display()
            );
        }
        assert_eq!(test.store.snapshots().unwrap(), [other]);
        test.fsck();
        assert_eq!(test.git(&["rev-parse", "--is-bare-repository"]), "true");
        assert!(!test.store.git_dir.join("objects/info/alternates").exists());
    }

    #[test]
    fn there_is_no_store_until_its_making_is_done() {
        let test = TestStore::new();
        let git_dir = test.user.beside("another");
        assert!(Store::open(&git_dir).unwrap().is_none());
        Store::create(&Operation::unbounded(), &git_dir).unwrap();
        // As if it had been killed before its last step.
        fs::remove_file(git_dir.join("HEAD")).unwrap();
        fs::remove_dir(git_dir.join("objects/info")).unwrap();
        assert!(Store::open(&git_dir).unwrap().is_none());
        Store::create(&Operation::unbounded(), &git_dir).unwrap();
        assert!(Store::open(&git_dir).unwrap().is_some());
        test.user.git_in(&git_dir, &["fsck", "--strict"]);
    }

    #[test]
    fn a_snapshot_is_a_commit_with_its_parts_and_git_reads_all_of_them() {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let files = [
            ("src/main.rs", "fn main() {}\n"),
            ("a", "one\n"),
            ("a-b", "two\n"),
        ];
        let worktree = test.add_tree(&pack, &files);
        let mut ids = Vec::new();
        for bytes in [&b"the index"[..], b"staged 1", b"staged 2"] {
            ids.push(blob_id(bytes));
            pack.add(ObjectKind::Blob, ids[ids.len() - 1], bytes)
                .unwrap();
        }
        let mut record = record_of(worktree, Some(ids[0]), Label::BEFORE);
        record.snapshot.reference = "of no account".to_owned();
        let parts = Parts {
            worktree,
            record: &record,
            index: Some(ids[0]),
            staged: vec![ids[2], ids[1], ids[2]],
            named: None,
        };

        let snapshot = test
            .store
            .publish(&Operation::unbounded(), &owner("ses", "run"), parts, pack)
            .unwrap();

        let commit = test.git(&["rev-parse", "refs/snapshots/ses/run/1"]);
        assert_eq!(snapshot.reference, commit);
        let listed = test.git(&["ls-tree", "-r", "--name-only", &commit]);
        let mut staged = [ids[1].to_string(), ids[2].to_string()];
        staged.sort();
        let expected = [
            "index",
            "record.json",
            &format!("staged/{}", staged[0]),
            &format!("staged/{}", staged[1]),
            "worktree/a",
            "worktree/a-b",
            "worktree/src/main.rs",
        ];
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
        assert_eq!(test.git(&["show", &format!("{commit}:index")]), "the index");
        assert_eq!(test.git(&["show", &format!("{commit}:worktree/a")]), "one");
        let text = test.git(&["cat-file", "commit", &commit]);
        assert!(!text.contains("parent"), "{text}");
        let who = "author Stillframe <stillframe@localhost> 1700000000 +0000\n";
        assert!(text.contains(who), "{text}");
        test.fsck();

        let stored = test
            .reopened()
            .record(&Operation::unbounded(), &snapshot.id)
            .unwrap();
        record.snapshot = snapshot;
        assert_eq!(stored, record);
        let id: ObjectId = commit.parse().unwrap();
        let parts = test.store.parts(&Operation::unbounded(), &id).unwrap();
        assert_eq!((parts.worktree, parts.index), (worktree, Some(ids[0])));
        let text = test.git(&["cat-file", "blob", &parts.record.to_string()]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["snapshot"]["ref"], "", "the commit depends on it");
    }

    #[test]
    fn the_same_parts_make_the_same_commit() {
        let publish = |record: &Record| {
            let test = TestStore::new();
            let pack = test.store.writer(&Operation::unbounded()).unwrap();
            let worktree = test.add_tree(&pack, &[("a", "one\n")]);
            let parts = Parts {
                worktree,
                record,
                index: None,
                staged: Vec::new(),
                named: None,
            };
            test.store
                .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
                .unwrap()
        };
        let record = record_of(ObjectId([1; 20]), None, Label::MANUAL);
        assert_eq!(publish(&record), publish(&record));
    }

    #[test]
    fn an_empty_workspace_and_a_time_before_git_can_be_kept() {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let worktree = tree_object::empty_tree_id();
        let mut record = record_of(worktree, None, Label::MANUAL);
        record.snapshot.captured_at = Timestamp::from_second(-100_000_000).unwrap();
        let parts = Parts {
            worktree,
            record: &record,
            index: None,
            staged: Vec::new(),
            named: None,
        };
        record.snapshot = test
            .store
            .publish(&Operation::unbounded(), &Owner::default(), parts, pack)
            .unwrap();
        test.fsck();
        let stored = test
            .store
            .record(&Operation::unbounded(), &record.snapshot.id)
            .unwrap();
        assert_eq!(stored, record);
        assert_eq!(
            test.store
                .tree_paths(&Operation::unbounded(), &worktree)
                .unwrap(),
            []
        );
        assert_eq!(test.problems(&record), []);
    }

    #[test]
    fn a_snapshot_that_lacks_something_is_not_published() {
        let test = TestStore::new();
        let absent = blob_id(b"absent");
        let add = |pack: &PackWriter, items: &mut [TreeItem]| {
            let bytes = tree_object::serialize(items);
            let id = ObjectId::of(ObjectKind::Tree, &bytes).unwrap();
            pack.add(ObjectKind::Tree, id, &bytes).unwrap();
            id
        };
        let names = |beyond, ids| Some(Names { beyond, ids });
        let sound = test.publish(&owner("s", "r"), &[("a", "one\n")]);
        let sound_tree: ObjectId = sound.snapshot.tree.unwrap().parse().unwrap();
        for case in 0..11 {
            let pack = test.store.writer(&Operation::unbounded()).unwrap();
            let mut parts = Parts {
                worktree: sound_tree,
                record: &record_of(absent, None, Label::MANUAL),
                index: None,
                staged: Vec::new(),
                named: None,
            };
            match case {
                0 => parts.worktree = absent,
                1 => parts.worktree = add(&pack, &mut [item(b"a", FILE, absent)]),
                2 => parts.worktree = add(&pack, &mut [item(b"a", ItemKind::Directory, absent)]),
                3 => {
                    let below = add(&pack, &mut [item(b"a", FILE, absent)]);
                    parts.worktree = add(&pack, &mut [item(b"d", ItemKind::Directory, below)]);
                }
                4 => parts.index = Some(absent),
                5 => parts.named = names(None, vec![absent]),
                6 => (parts.worktree, parts.named) = (absent, names(None, Vec::new())),
                7 => parts.named = names(Some(sound_tree), vec![absent]),
                8 => {
                    parts.named = names(Some(sound_tree), Vec::new());
                    parts.staged = vec![absent];
                }
                9 => {
                    // What the caller goes on from is not what was published last.
                    parts.worktree = add(&pack, &mut [item(b"a", FILE, absent)]);
                    parts.named = names(Some(parts.worktree), Vec::new());
                }
                _ => parts.staged = vec![absent],
            }
            let error = test
                .store
                .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
                .unwrap_err();
            let StoreError::Corrupt { what, .. } = &error else {
                panic!("case {case}: {error}");
            };
            assert_eq!(*what, absent.to_string(), "case {case}");
            assert_eq!(test.store.snapshots().unwrap().len(), 1, "case {case}");
        }
        test.fsck();
    }

    #[test]
    fn what_was_staged_is_looked_for_again_once_its_snapshot_is_forgotten() {
        let test = TestStore::new();
        let files = [("a", "one\n")];
        let first = test.publish(&owner("s", "r"), &files);
        let worktree = first.snapshot.tree.unwrap().parse().unwrap();
        let staged = blob_id(b"staged");
        let publish = |has_it: bool| {
            let pack = test.store.writer(&Operation::unbounded()).unwrap();
            if has_it {
                pack.add(ObjectKind::Blob, staged, b"staged").unwrap();
            }
            let parts = Parts {
                worktree,
                record: &record_of(worktree, None, Label::MANUAL),
                index: None,
                staged: vec![staged],
                named: Some(Names {
                    beyond: Some(worktree),
                    ids: Vec::new(),
                }),
            };
            test.store
                .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
        };
        assert!(is_corrupt(&publish(false)), "nobody has it");
        let second = publish(true).unwrap();
        assert_eq!(
            test.store.last_published_staged(&Operation::unbounded()),
            [staged]
        );
        assert_eq!(
            test.reopened()
                .last_published_staged(&Operation::unbounded()),
            [staged]
        );
        let third = publish(false).unwrap();
        // By another process, of which this one hears nothing.
        let other = test.reopened();
        other
            .forget(&Operation::unbounded(), &[second.id, third.id])
            .unwrap();
        other.collect(&Operation::unbounded()).unwrap();
        assert_eq!(
            test.store.last_published_staged(&Operation::unbounded()),
            []
        );
        assert!(is_corrupt(&publish(false)), "it was collected");
        publish(true).unwrap();
        test.fsck();
    }

    #[test]
    fn the_commit_of_a_submodule_is_needed_by_nobody() {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let mut items = [item(b"module", ItemKind::Submodule, ObjectId([3; 20]))];
        let bytes = tree_object::serialize(&mut items);
        let worktree = ObjectId::of(ObjectKind::Tree, &bytes).unwrap();
        pack.add(ObjectKind::Tree, worktree, &bytes).unwrap();
        let record = record_of(worktree, None, Label::MANUAL);
        let parts = Parts {
            worktree,
            record: &record,
            index: None,
            staged: Vec::new(),
            named: None,
        };
        let snapshot = test
            .store
            .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
            .unwrap();
        let record = test
            .store
            .record(&Operation::unbounded(), &snapshot.id)
            .unwrap();
        let verify = || test.problems(&record);
        assert!(verify().is_empty(), "{:?}", verify());
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(verify().is_empty(), "{:?}", verify());
        assert_eq!(
            test.store.tree(&Operation::unbounded(), &worktree).unwrap(),
            items
        );
        test.fsck();
    }

    #[test]
    fn guards_have_a_namespace_of_their_own_and_count_in_their_session() {
        let test = TestStore::new();
        let first = test.publish(&owner("s1", "r1"), &[("a", "1")]);
        test.publish(&owner("s2", "r1"), &[("a", "2")]);
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let worktree = test.add_tree(&pack, &[("a", "3")]);
        let mut guard = record_of(worktree, None, Label::GUARD);
        let parts = Parts {
            worktree,
            record: &guard,
            index: None,
            staged: Vec::new(),
            named: None,
        };
        guard.snapshot = test
            .store
            .publish(&Operation::unbounded(), &owner("s1", "r2"), parts, pack)
            .unwrap();
        let commit = test.git(&["rev-parse", "refs/guards/s1/r2/3"]);
        assert_eq!(commit, guard.snapshot.reference);
        let store = test.reopened();
        let latest = |session| {
            let latest = store.latest_in_session(&Operation::unbounded(), session);
            latest.unwrap().record
        };
        assert_eq!(latest("s1"), Some(guard.clone()));
        assert_eq!(latest("s3"), None);
        let ids: Vec<_> = store.snapshots().unwrap();
        assert_eq!(ids.len(), 3);
        assert_eq!((&ids[0], &ids[2]), (&first, &guard));
    }

    #[test]
    fn a_record_is_found_without_its_shortcut_and_despite_a_wrong_one() {
        let test = TestStore::new();
        let records: Vec<_> = (0..3)
            .map(|n| test.publish(&owner("s", "r"), &[("a", n.to_string())]))
            .collect();
        let [first, second, third] = &records[..] else {
            unreachable!("three")
        };
        fs::remove_file(test.store.by_id(&first.snapshot.id)).unwrap();
        fs::write(
            test.store.by_id(&second.snapshot.id),
            "refs/snapshots/s/r/3",
        )
        .unwrap();
        fs::write(test.store.by_id(&third.snapshot.id), b"\xff../../x").unwrap();
        for record in &records {
            assert_eq!(
                test.store
                    .record(&Operation::unbounded(), &record.snapshot.id)
                    .unwrap(),
                *record
            );
        }
        let unknown = SnapshotId::random();
        let error = test
            .store
            .record(&Operation::unbounded(), &unknown)
            .unwrap_err();
        assert!(matches!(error, StoreError::UnknownSnapshot { id } if id == unknown));
    }

    #[test]
    fn a_record_of_a_newer_version_is_left_alone() {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let worktree = test.add_tree(&pack, &[("a", "1")]);
        let mut record = record_of(worktree, None, Label::MANUAL);
        record.version = RECORD_VERSION + 1;
        let parts = Parts {
            worktree,
            record: &record,
            index: None,
            staged: Vec::new(),
            named: None,
        };
        let snapshot = test
            .store
            .publish(&Operation::unbounded(), &owner("s", "r"), parts, pack)
            .unwrap();
        let error = test
            .store
            .record(&Operation::unbounded(), &snapshot.id)
            .unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported, "{error}");
        let scanned = test.store.scan(&Operation::unbounded()).unwrap();
        assert!(scanned[0].1.is_err());
        assert_eq!(scanned[0].0.commit.to_string(), snapshot.reference);
    }

    #[test]
    fn forgetting_is_safe_to_repeat_and_leaves_the_others() {
        let test = TestStore::new();
        let records: Vec<_> = (0..3)
            .map(|n| test.publish(&owner("s", "r"), &[("a", n.to_string())]))
            .collect();
        let ids = [records[0].snapshot.id.clone(), SnapshotId::random()];
        for _ in 0..2 {
            test.store.forget(&Operation::unbounded(), &ids).unwrap();
        }
        assert_eq!(test.reopened().snapshots().unwrap(), records[1..]);
        assert!(!test.store.by_id(&ids[0]).exists());
        let next = test.publish(&owner("s", "r"), &[("a", "4")]);
        assert_eq!(
            test.git(&["rev-parse", "refs/snapshots/s/r/4"]),
            next.snapshot.reference
        );
    }

    #[test]
    fn a_snapshot_that_cannot_be_read_can_be_forgotten() {
        let test = TestStore::new();
        let broken = test.publish(&owner("s", "r"), &[("a", "1")]);
        let pack = test.packs().remove(0);
        let sound = test.publish(&owner("s", "r"), &[("a", "2")]);
        fs::remove_file(pack).unwrap();
        let store = test.reopened();
        assert!(is_corrupt(
            &store.record(&Operation::unbounded(), &broken.snapshot.id)
        ));
        assert!(is_corrupt(&store.snapshots()));
        assert_eq!(
            store
                .record(&Operation::unbounded(), &sound.snapshot.id)
                .unwrap(),
            sound
        );
        store
            .forget(&Operation::unbounded(), &[broken.snapshot.id])
            .unwrap();
        assert_eq!(store.snapshots().unwrap(), [sound]);
    }

    #[test]
    fn blobs_of_every_size_come_back_and_their_sizes_are_known() {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let large = noise(MAX_HELD_BYTES as usize + 1, 1);
        let streamed = pack.add_stream(large.len() as u64, &mut large.as_slice());
        assert!(matches!(streamed, Ok(Streamed::Stored(_))));
        let contents = [Vec::new(), b"small".to_vec(), noise(100_000, 2), large];
        let files: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(n, content)| (format!("f{n}"), content))
            .collect();
        let worktree = test.add_tree(&pack, &files);
        test.publish_tree(&owner("s", "r"), worktree, pack);
        let store = test.reopened();
        for bytes in &contents {
            let id = blob_id(bytes);
            assert!(content(&store, &id).unwrap() == *bytes);
            assert_eq!(store.blob_size(&id).unwrap(), bytes.len() as u64);
            assert!(store.contains(&id).unwrap());
        }
        let small = blob_id(b"small");
        assert!(
            is_corrupt(&store.read(&Operation::unbounded(), &small, 4)),
            "the limit"
        );
        assert!(
            is_corrupt(&store.tree(&Operation::unbounded(), &small)),
            "no tree"
        );
        assert!(is_corrupt(&store.blob_size(&worktree)), "no blob");
        assert!(is_corrupt(&content(&store, &worktree)), "no blob");
        let error = content(&store, &blob_id(b"absent")).unwrap_err();
        assert!(error.to_string().contains(&blob_id(b"absent").to_string()));
    }

    #[test]
    fn a_flipped_bit_is_never_served() {
        let test = TestStore::new();
        let pack = test.store.writer(&Operation::unbounded()).unwrap();
        let large = noise(MAX_HELD_BYTES as usize + 1, 1);
        let files = [("small", &noise(500, 2)), ("large", &large)];
        let worktree = test.add_tree(&pack, &files);
        test.publish_tree(&owner("s", "r"), worktree, pack);
        let path = test.packs().remove(0);
        let original = fs::read(&path).unwrap();
        let ids = files.map(|(_, bytes)| blob_id(bytes));
        let mut found = [0; 2];
        for at in (12..1500).step_by(41).chain([original.len() / 2]) {
            let mut bytes = original.clone();
            bytes[at] ^= 0x10;
            replace(&path, &bytes);
            let store = test.reopened();
            for (id, found) in ids.iter().zip(&mut found) {
                match content(&store, id) {
                    Ok(bytes) => assert_eq!(blob_id(&bytes), *id, "byte {at}"),
                    Err(StoreError::Corrupt { .. }) => *found += 1,
                    Err(error) => panic!("byte {at}: {error}"),
                }
            }
        }
        assert!(found.iter().all(|n| *n > 0), "both were hit: {found:?}");
    }

    #[test]
    fn a_damaged_copy_does_not_hide_a_sound_one() {
        let test = TestStore::new();
        let bytes = noise(1000, 1);
        let id = blob_id(&bytes);
        for n in 0..2 {
            let pack = test.store.writer(&Operation::unbounded()).unwrap();
            pack.add(ObjectKind::Blob, id, &bytes).unwrap();
            let other = noise(100 + n, 3);
            pack.add(ObjectKind::Blob, blob_id(&other), &other).unwrap();
            pack.finish().unwrap();
        }
        for damaged in test.packs() {
            let original = fs::read(&damaged).unwrap();
            let mut broken = original.clone();
            broken[500] ^= 1;
            replace(&damaged, &broken);
            assert!(content(&test.reopened(), &id).unwrap() == bytes);
            assert!(
                test.reopened()
                    .read(&Operation::unbounded(), &id, 1000)
                    .unwrap()
                    .1
                    == bytes
            );
            replace(&damaged, &original);
        }
    }

    #[test]
    fn what_another_process_publishes_or_merges_is_seen() {
        let test = TestStore::new();
        let reader = test.reopened();
        assert_eq!(reader.snapshots().unwrap(), []);
        let records: Vec<_> = (0..60)
            .map(|n| test.publish(&owner("s", "r"), &[("a", n.to_string())]))
            .collect();
        assert_eq!(reader.snapshots().unwrap(), records);
        assert_eq!(test.packs().len(), 60);
        test.store.collect(&Operation::unbounded()).unwrap();
        assert_eq!(test.packs().len(), 1);
        assert_eq!(
            reader.snapshots().unwrap(),
            records,
            "the packs it knew are gone"
        );
        assert!(content(&reader, &blob_id(b"7")).unwrap() == b"7");
    }

    #[test]
    fn housekeeping_by_hand_does_no_harm() {
        let test = TestStore::new();
        let records: Vec<_> = (0..5)
            .map(|n| {
                test.publish(
                    &owner("s", "r"),
                    &[("a", noise(500, n)), ("b", noise(9, 1))],
                )
            })
            .collect();
        test.git(&["gc", "-q", "--prune=now"]);
        test.git(&["pack-refs", "--all", "--prune"]);
        assert_eq!(test.store.snapshots().unwrap(), records);
        let more = test.publish(&owner("s", "r"), &[("a", "6")]);
        assert_eq!(test.problems(&more), []);
        assert_eq!(test.problems(&records[0]), []);
        test.fsck();
    }

    #[test]
    fn what_is_missing_is_told_sorted_and_once() {
        let test = TestStore::new();
        assert_eq!(
            test.store
                .missing(&Operation::unbounded(), Vec::new())
                .unwrap(),
            []
        );
        test.publish(&owner("s", "r"), &[("a", "1")]);
        let (there, absent) = (blob_id(b"1"), [blob_id(b"2"), blob_id(b"3")]);
        let wanted = vec![absent[1], there, absent[0], absent[1], there];
        let mut expected = absent.to_vec();
        expected.sort();
        assert_eq!(
            test.store.missing(&Operation::unbounded(), wanted).unwrap(),
            expected
        );
    }

    #[test]
    fn trees_are_compared_and_listed_from_the_store() {
        let test = TestStore::new();
        let tree = |record: &Record| record.snapshot.tree.as_ref().unwrap().parse().unwrap();
        let old = test.publish(
            &owner("s", "r"),
            &[("d/a", "1"), ("d/b", "2"), ("e/c", "3")],
        );
        let new = test.publish(&owner("s", "r"), &[("d/a", "1"), ("d/b", "4"), ("f", "5")]);
        let (old, new) = (tree(&old), tree(&new));
        let changes = test
            .store
            .tree_changes(&Operation::unbounded(), Some(old), Some(new))
            .unwrap();
        let paths: Vec<_> = changes.iter().map(|c| c.path.to_string()).collect();
        assert_eq!(paths, ["d/b", "e/c", "f"]);
        let theirs = test.git(&[
            "diff-tree",
            "-r",
            "--name-only",
            &old.to_string(),
            &new.to_string(),
        ]);
        assert_eq!(theirs.lines().collect::<Vec<_>>(), paths);
        let all = test
            .store
            .tree_changes(&Operation::unbounded(), None, Some(new))
            .unwrap();
        assert_eq!(
            all.len(),
            test.store
                .tree_paths(&Operation::unbounded(), &new)
                .unwrap()
                .len()
        );
        let path = RelPath::new("d/b").unwrap();
        let found = test
            .store
            .entry_at(&Operation::unbounded(), &new, &path)
            .unwrap()
            .unwrap();
        assert_eq!(found.id, blob_id(b"4"));
        assert_eq!(
            test.store
                .tree_changes(&Operation::unbounded(), Some(old), Some(old))
                .unwrap(),
            []
        );
        let empty = test.publish(&owner("s", "r"), NO_FILES);
        let gone = test
            .store
            .tree_changes(&Operation::unbounded(), Some(new), Some(tree(&empty)))
            .unwrap();
        assert!(gone.iter().all(|c| c.new.is_none()) && gone.len() == 3);
    }

    #[test]
    fn hostile_file_content_and_names_do_not_make_git_complain() {
        let test = TestStore::new();
        let gitmodules = "[submodule \"../evil\"]\n\tpath = -x\n\turl = ext::sh -c id\n";
        let record = test.publish(
            &owner("a.lock", "x..y"),
            &[
                (&b".gitmodules"[..], gitmodules),
                (b"odd\xff\nname", "1"),
                (b"-rf", "2"),
                (b"CON", "3"),
            ],
        );
        test.fsck();
        assert_eq!(test.reopened().snapshots().unwrap(), [record]);
    }
}
