//! The content of hash snapshots, kept under its blake3.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::blob::{self, Stopped};
use crate::caches;
use crate::content_hash::ContentHashes;
use crate::contents::ContentError;
use crate::durable::make_private;
use crate::durable::{self, ClosedFile, StagedFile};
use crate::error::{PathError, printable};
use crate::hash::limit::{Limit, Share};
use crate::operation::Operation;
use crate::problem::Problem;
use crate::purge::{Proof, Purged};
use crate::regular_file::open_regular;
use crate::removal::Remover;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::ContentId;
use crate::worktree::read::{self, Content, ContentSink, Hashing as _, SinkError};
use crate::worktree::shards;
use crate::worktree::stat_cache::StatCache;

/// The directory that holds content, each file named by the blake3 of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct ContentStore {
    directory: PathBuf,
}

/// Up to this many new files are synced one by one; with more, one sync of the whole file system
/// is cheaper.
const MAX_SINGLE_SYNCS: usize = 32;

impl ContentStore {
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(crate) fn create(&self, op: &Operation) -> Result<(), PathError> {
        make_private(op, &self.directory)
    }

    pub(crate) fn is_made(&self) -> bool {
        self.directory.is_dir()
    }

    /// Whether the directories look as they did at [`ContentStore::vouch`]: nothing was added or
    /// removed since.
    pub(crate) fn is_vouched_for(&self) -> Result<bool, StoreError> {
        let noted = match durable::read(&self.vouched_path(), 4096) {
            Ok(noted) => noted,
            Err(StoreError::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        };
        let now = shards::stamp_of(&self.directory)?;
        Ok(noted.is_some_and(|noted| noted == now.as_bytes()))
    }

    /// Records how the directories look, so that the next capture can rely on the content in them.
    /// Best effort: without the record the next capture checks again.
    pub(crate) fn vouch(&self, op: &Operation) {
        let path = self.vouched_path();
        let noted = shards::stamp_of(&self.directory)
            .and_then(|stamp| durable::replace_unsynced(op, &path, stamp.as_bytes()));
        if noted.is_err() {
            let _ = durable::remove_file(op, &path);
        }
    }

    fn vouched_path(&self) -> PathBuf {
        self.directory.with_file_name(caches::VOUCHED_CONTENT)
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        let shard = self.directory.join(blob::shard_of(digest));
        shard.join(blob::name_of(digest))
    }

    pub(crate) fn contains(&self, digest: &[u8; 32]) -> bool {
        fs::symlink_metadata(self.path(digest)).is_ok_and(|m| m.is_file())
    }

    /// Whether there is content of this digest and size. A file that was cut short does not count.
    fn contains_all(&self, digest: &[u8; 32], size: u64) -> bool {
        fs::symlink_metadata(self.path(digest)).is_ok_and(|m| m.is_file() && m.len() == size)
    }

    /// Whether more than `max_bytes` of what `cache` has would be new here, each content counted
    /// once.
    pub(crate) fn lacks_more_than(
        &self,
        op: &Operation,
        max_bytes: u64,
        cache: &StatCache,
    ) -> Result<bool, StoreError> {
        let entries = cache.directories.values().flat_map(|d| d.entries.iter());
        let captured = entries.map(|(_, entry)| entry).filter(|e| e.is_captured());
        let contents = captured.filter_map(|e| Some(({ e.stat.size }, digest(&e.id)?)));
        // The largest first, so that few are looked for.
        let contents: BTreeSet<(u64, [u8; 32])> = contents.collect();
        let mut new = 0u64;
        for (size, digest) in contents.iter().rev() {
            op.check()?;
            if !self.contains_all(digest, *size) {
                new = new.saturating_add(*size);
            }
            if new > max_bytes {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The length of the content of `id` in bytes. The content is not read.
    pub(crate) fn length(&self, id: &ContentId) -> Result<u64, StoreError> {
        let path = self.path(&own(id)?);
        let found = fs::symlink_metadata(&path).map_err(PathError::at("look at", &path))?;
        match found.is_file() {
            true => Ok(found.len()),
            false => Err(StoreError::corrupt(
                format!("content {id}"),
                "it is no file",
            )),
        }
    }

    /// Writes the content of `id` to `out`. Bytes that do not have the id's hash are an error,
    /// which comes after they were written: `out` is the caller's own, and unpublished.
    pub(crate) fn write_to(
        &self,
        op: &Operation,
        id: &ContentId,
        out: &mut dyn Write,
    ) -> Result<u64, ContentError> {
        let digest = own(id)?;
        self.read(op, &self.path(&digest), &digest, out)
    }

    /// As [`ContentStore::write_to`], from a file that need not have its name yet.
    fn read(
        &self,
        op: &Operation,
        path: &Path,
        digest: &[u8; 32],
        out: &mut dyn Write,
    ) -> Result<u64, ContentError> {
        let id = ContentId::Blake3(*digest);
        let mut file = match open_regular(File::options().read(true), path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let what = format!("content {id}");
                return Err(StoreError::corrupt(what, "it is missing").into());
            }
            Err(e) => return Err(StoreError::from(PathError::at("open", path)(e)).into()),
        };
        let read = blob::read(&mut file, |piece| {
            op.check().map_err(StoreError::from)?;
            out.write_all(piece).map_err(ContentError::Sink)
        });
        let (total, found) = read.map_err(|e| match e {
            Stopped::Read(e) => StoreError::from(PathError::at("read", path)(e)).into(),
            Stopped::Take(e) => e,
        })?;
        if found != *digest {
            let what = format!("content {id}");
            return Err(StoreError::corrupt(what, "it does not match its id").into());
        }
        Ok(total)
    }

    /// Removes what `live` does not name, and what a killed capture left; answers with the bytes
    /// that this freed.
    pub(crate) fn retain(
        &self,
        op: &Operation,
        live: &HashSet<[u8; 32]>,
    ) -> Result<u64, StoreError> {
        let mut freed = 0;
        for (path, name, bytes) in self.files()? {
            if blob::digest_of(&name).is_some_and(|d| live.contains(&d)) {
                continue;
            }
            op.check()?;
            durable::remove_file(op, &path)?;
            freed += bytes;
        }
        Ok(freed)
    }

    /// Removes the files of what was purged, and what a killed capture left. May be repeated.
    pub(crate) fn drop_purged(&self, op: &Operation, purged: &Purged) -> Result<(), StoreError> {
        let mut directories = HashSet::new();
        for (path, name, _) in self.files()? {
            let is_purged = digest_of(&name).is_some_and(|d| purged.contains(&d));
            if is_purged || name.starts_with(durable::STAGED_PREFIX) {
                durable::remove_file(op, &path)?;
                directories.extend(path.parent().map(Path::to_owned));
            }
        }
        for directory in directories {
            durable::sync_directory(op, &directory)?;
        }
        Ok(())
    }

    /// Looks at the name of every file. The answer names files of purged content, and files that
    /// are not content.
    pub(crate) fn prove_purged(&self, purged: &Purged) -> Result<Proof, StoreError> {
        let mut proof = Proof::default();
        for (path, name, _) in self.files()? {
            proof.files += 1;
            let detail = match digest_of(&name) {
                None => "it is no content of the store",
                Some(id) if purged.contains(&id) => "it was purged",
                Some(_) => continue,
            };
            proof.unproven.push(Problem::new(printable(&path), detail));
        }
        Ok(proof)
    }

    /// The length of content, and its id as a blob of git's. `None`: it is missing or damaged, or
    /// git gives no id to it.
    pub(crate) fn other_id(
        &self,
        op: &Operation,
        id: &ContentId,
    ) -> Result<Option<(u64, ContentId)>, StoreError> {
        let Some(digest) = digest(id) else {
            return Ok(None);
        };
        let Ok(meta) = fs::symlink_metadata(self.path(&digest)) else {
            return Ok(None);
        };
        let like = ContentId::Sha1([0; 20]);
        let mut hasher = Hashed(ContentHashes.hasher(&like, meta.len()));
        match self.write_to(op, id, &mut hasher) {
            Ok(bytes) => Ok(hasher.0.finish().map(|id| (bytes, id))),
            Err(ContentError::Store(StoreError::Corrupt { .. })) => Ok(None),
            Err(ContentError::Store(error)) => Err(error),
            Err(ContentError::Sink(_)) => unreachable!("a hasher takes every byte"),
        }
    }

    /// The bytes of all content.
    pub(crate) fn bytes(&self) -> Result<u64, StoreError> {
        Ok(self.files()?.iter().map(|(_, _, bytes)| bytes).sum())
    }

    fn files(&self) -> Result<Vec<(PathBuf, String, u64)>, StoreError> {
        let mut files = Vec::new();
        for entry in walkdir::WalkDir::new(&self.directory).min_depth(1) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e)
                    if e.io_error()
                        .is_some_and(|e| e.kind() == io::ErrorKind::NotFound) =>
                {
                    continue;
                }
                Err(e) => {
                    return Err(PathError::at("list", &self.directory)(io::Error::from(e)).into());
                }
            };
            if entry.file_type().is_file() {
                let bytes = entry.metadata().map_or(0, |m| m.len());
                files.push((
                    entry.path().to_owned(),
                    entry.file_name().to_string_lossy().into_owned(),
                    bytes,
                ));
            }
        }
        Ok(files)
    }
}

/// Makes the id of what is written.
struct Hashed(Box<dyn read::Hasher>);

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The content that a file of this name has; `None`: none.
fn digest_of(name: &str) -> Option<ContentId> {
    blob::digest_of(name).map(ContentId::Blake3)
}

/// The buffer that a thread reads into. It is reused, because allocating one costs as much as
/// hashing a small file.
struct Piece(Vec<u8>);

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Piece {
    /// Nearly every file fits in one piece, and larger files are hashed at full speed.
    const BYTES: usize = 128 * 1024;

    fn take() -> Self {
        let mut bytes = SPARE.take();
        bytes.resize(Self::BYTES, 0);
        Self(bytes)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        SPARE.set(std::mem::take(&mut self.0));
    }
}

/// From this size in bytes on, a file is stored by sharing its blocks where the file system can do
/// that. For smaller files, writing is as cheap as the attempt.
const MIN_BYTES_TO_SHARE: u64 = 64 << 10;

/// Hashes what a walk reads, and keeps the content if that was asked for.
pub(crate) struct HashSink<'a> {
    op: Operation,
    store: Option<&'a ContentStore>,
    /// How much new content may be stored.
    limit: Option<&'a Limit>,
    /// Whether the file system has been found unable to share blocks.
    cannot_share: AtomicBool,
    /// What is hashed and never kept.
    purged: &'a Purged,
    /// Whether content is stored again although the store has it, because that may be damaged.
    is_anew: bool,
    staged: Mutex<Staged>,
}

/// Content that is written and not yet under its name. Dropping it removes it.
struct Staged {
    op: Operation,
    digests: HashSet<[u8; 32]>,
    files: Vec<(ClosedFile, [u8; 32])>,
    /// Who removes it; `None`: whoever drops it.
    remover: Option<Remover>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(remover) = &self.remover {
            let files = std::mem::take(&mut self.files);
            remover.remove(&self.op, files.len(), move || drop(files));
        }
    }
}

/// Content that has its name, and that no snapshot needs yet. Dropping this removes it. What cannot
/// be removed does no harm, and the next collection removes it.
#[derive(Debug)]
#[must_use = "dropping it takes the content back"]
pub(crate) struct Arrived {
    op: Operation,
    /// The files that are new. Content that was there before may be needed by another snapshot.
    files: Vec<PathBuf>,
    is_some: bool,
    /// Who removes it; `None`: whoever drops it.
    remover: Option<Remover>,
}

impl Arrived {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_some
    }

    /// Keeps it: a snapshot needs it now.
    pub(crate) fn keep(mut self) {
        self.files.clear();
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        let files = std::mem::take(&mut self.files);
        match &self.remover {
            Some(remover) => {
                let op = self.op.clone();
                remover.remove(&self.op, files.len(), move || take_back(&op, &files));
            }
            None => take_back(&self.op, &files),
        }
    }
}

/// Removes content that no snapshot needs. Best effort.
fn take_back(op: &Operation, files: &[PathBuf]) {
    for file in files {
        let _ = durable::remove_file(op, file);
        if let Some(directory) = file.parent() {
            // Only an empty directory is removed.
            let _ = fs::remove_dir(directory);
        }
    }
}

impl<'a> HashSink<'a> {
    /// With a store the content is kept, without one only hashed.
    pub(crate) fn new(op: &Operation, store: Option<&'a ContentStore>, purged: &'a Purged) -> Self {
        Self {
            op: op.clone(),
            store,
            limit: None,
            cannot_share: AtomicBool::new(false),
            purged,
            is_anew: false,
            staged: Mutex::new(Staged {
                op: op.clone(),
                digests: HashSet::new(),
                files: Vec::new(),
                remover: None,
            }),
        }
    }

    /// Everything is kept, in place of what the store has under the same id.
    pub(crate) fn anew(op: &Operation, store: &'a ContentStore, purged: &'a Purged) -> Self {
        Self {
            is_anew: true,
            ..Self::new(op, Some(store), purged)
        }
    }

    /// The sink fails, and the limit is passed, as soon as more new content would be stored.
    pub(crate) fn limited_to(mut self, limit: Option<&'a Limit>) -> Self {
        self.limit = limit;
        self
    }

    /// `remover` removes the content that is not kept in the end.
    pub(crate) fn removed_by(mut self, remover: Remover) -> Self {
        let staged = self.staged.get_mut();
        staged.unwrap_or_else(PoisonError::into_inner).remover = Some(remover);
        self
    }

    /// Makes the content durable and puts it under its names.
    pub(crate) fn publish(self) -> Result<Arrived, StoreError> {
        let mut arrived = Arrived {
            op: self.op.clone(),
            files: Vec::new(),
            is_some: false,
            remover: None,
        };
        let Some(store) = self.store else {
            return Ok(arrived);
        };
        let mut staged = self
            .staged
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        arrived.remover = staged.remover.clone();
        // Before the renames, so that after a power cut each name has its bytes.
        if staged.files.len() <= MAX_SINGLE_SYNCS {
            staged.files.iter().try_for_each(|(file, _)| file.sync())?;
        } else {
            durable::sync_file_system(&self.op, &store.directory)?;
        }
        let mut directories = HashSet::new();
        // If one fails, the rest is removed when `staged` is dropped.
        while let Some((staged, digest)) = staged.files.pop() {
            // Read back before it has its name.
            match store.read(&self.op, staged.path(), &digest, &mut io::sink()) {
                Ok(_) => {}
                Err(ContentError::Store(error)) => return Err(error),
                Err(ContentError::Sink(_)) => unreachable!("nothing is written anywhere"),
            }
            let path = store.path(&digest);
            let parent = path
                .parent()
                .expect("content lies in a directory")
                .to_owned();
            if directories.insert(parent.clone()) {
                make_private(&self.op, &parent)?;
            }
            let is_new = path
                .symlink_metadata()
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            staged.rename(&path)?;
            arrived.is_some = true;
            arrived.files.extend(is_new.then_some(path));
        }
        for directory in directories {
            durable::sync_directory(&self.op, &directory)?;
        }
        durable::sync_directory(&self.op, &store.directory)?;
        Ok(arrived)
    }

    /// The id of `content`, which is not stored. `None`: it does not have `size` bytes.
    fn hash(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        let id = hashed(size, |piece, at| {
            // What is only hashed is not asked for an end: a file that grew has another `stat`
            // after the last byte, and nothing of it is kept.
            match at == size && self.store.is_none() {
                true => Ok(0),
                false => content.read(piece).map_err(SinkError::Read),
            }
        });
        Ok(id?.map(ContentId::Blake3))
    }

    /// Stores content for which there is a share of the limit. `None`, and nothing is stored: it
    /// does not have `size` bytes.
    fn take(
        &self,
        size: u64,
        content: &mut dyn Content,
        share: Option<Share<'_>>,
    ) -> Result<Option<ContentId>, SinkError> {
        let Some(store) = self.store else {
            return self.hash(size, content);
        };
        let sink_error = |e: PathError| SinkError::Sink(StoreError::from(e).into());
        let staged = StagedFile::create(&self.op, &store.directory, durable::STAGED_PREFIX);
        let staged = staged.map_err(sink_error)?;
        let digest = match self.shares(size, content, &staged).map_err(sink_error)? {
            true => digest_of_copy(&self.op, &staged, size).map_err(sink_error)?,
            false => copy(size, content, &staged)?,
        };
        let Some(digest) = digest else {
            return Ok(None);
        };
        if self.is_anew || !store.contains_all(&digest, size) {
            let mut all = self.staged();
            if all.digests.insert(digest) {
                all.files.push((staged.close(), digest));
                if let Some(share) = share {
                    share.keep();
                }
            }
        }
        Ok(Some(ContentId::Blake3(digest)))
    }

    /// Whether `staged` shares its blocks with the file that `content` is of, and so has all of it.
    fn shares(
        &self,
        size: u64,
        content: &mut dyn Content,
        staged: &StagedFile,
    ) -> Result<bool, PathError> {
        if size < MIN_BYTES_TO_SHARE || self.cannot_share.load(Ordering::Relaxed) {
            return Ok(false);
        }
        staged.reserve(size)?;
        let shares = content.share_with(staged.as_file());
        if !shares {
            self.cannot_share.store(true, Ordering::Relaxed);
        }
        Ok(shares)
    }

    /// Handles content for which no share of the limit is left: if the store does not have it yet,
    /// the limit is passed.
    fn take_known(
        &self,
        limit: &Limit,
        size: u64,
        content: &mut dyn Content,
    ) -> Result<Option<ContentId>, SinkError> {
        let Some(id) = self.hash(size, content)? else {
            return Ok(None);
        };
        let digest = digest(&id).expect("it was made here");
        let is_known = self.store.is_some_and(|s| s.contains_all(&digest, size))
            || self.staged().digests.contains(&digest);
        if is_known {
            return Ok(Some(id));
        }
        limit.pass();
        Err(SinkError::Sink(SnapshotError::LimitExceeded {
            what: "the content that is new, in bytes,".to_owned(),
            limit: limit.max_bytes(),
            actual: limit.max_bytes().saturating_add(1),
        }))
    }

    fn staged(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        let Some(limit) = self.limit else {
            return self.take(size, content, None);
        };
        match limit.share(size) {
            Some(share) => self.take(size, content, Some(share)),
            None => self.take_known(limit, size, content),
        }
    }
}

/// Copies `content` into `staged` and returns its digest. `None`: it does not have `size` bytes.
fn copy(
    size: u64,
    content: &mut dyn Content,
    staged: &StagedFile,
) -> Result<Option<[u8; 32]>, SinkError> {
    hashed(size, |piece, at| {
        let n = content.read(piece).map_err(SinkError::Read)?;
        let written = staged.write_at(&piece[..n], at);
        written.map_err(|e| SinkError::Sink(StoreError::from(e).into()))?;
        Ok(n)
    })
}

/// The digest of a copy that the file system made. `None`: it does not have `size` bytes.
fn digest_of_copy(
    op: &Operation,
    staged: &StagedFile,
    size: u64,
) -> Result<Option<[u8; 32]>, PathError> {
    let read = hashed(size, |piece, at| {
        op.check()?;
        staged.as_file().read_at(piece, at)
    });
    read.map_err(PathError::at("read", staged.path()))
}

/// The digest of what `read` fills pieces with, which is told where each begins. `None`: it has not
/// `size` bytes.
fn hashed<E>(
    size: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, E>,
) -> Result<Option<[u8; 32]>, E> {
    let mut piece = Piece::take();
    let mut hasher = Hasher::of(size);
    loop {
        match read(&mut piece.0, hasher.total)? {
            0 => return Ok(hasher.digest()),
            n => hasher.update(&piece.0[..n]),
        }
    }
}

/// Hashes content of a size that is known.
struct Hasher {
    size: u64,
    total: u64,
    /// All at once where that is possible: there is more to be done side by side.
    whole: Option<blake3::Hash>,
    hasher: Option<blake3::Hasher>,
}

impl Hasher {
    fn of(size: u64) -> Self {
        Self {
            size,
            total: 0,
            whole: None,
            hasher: None,
        }
    }

    fn update(&mut self, piece: &[u8]) {
        match self.total == 0 && piece.len() as u64 == self.size {
            true => self.whole = Some(blake3::hash(piece)),
            false => drop(self.hasher.get_or_insert_default().update(piece)),
        }
        self.total += piece.len() as u64;
    }

    /// `None`: there were more bytes, or fewer.
    fn digest(self) -> Option<[u8; 32]> {
        let hash = || {
            self.whole
                .unwrap_or_else(|| self.hasher.unwrap_or_default().finalize())
        };
        (self.total == self.size).then(|| *hash().as_bytes())
    }
}

/// The text of a link.
struct Text<'a>(io::Cursor<&'a [u8]>);

impl Read for Text<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Content for Text<'_> {
    fn rewind(&mut self) -> io::Result<()> {
        self.0.set_position(0);
        Ok(())
    }

    fn share_with(&mut self, _: &File) -> bool {
        false
    }
}

impl ContentSink for HashSink<'_> {
    fn file(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        if self.store.is_some() && self.purged.may_have_length(size) {
            // Before any of it is written anywhere.
            let id = self.hash(size, content)?;
            if id.is_none_or(|id| self.purged.contains(&id)) {
                return Ok(id);
            }
            content.rewind().map_err(SinkError::Read)?;
        }
        match self.store {
            Some(_) => self.keep(size, content),
            None => self.hash(size, content),
        }
    }

    fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
        let id = ContentId::Blake3(*blake3::hash(text).as_bytes());
        if self.store.is_none() || self.purged.contains(&id) {
            return Ok(id);
        }
        let mut content = Text(io::Cursor::new(text));
        let id = self.keep(text.len() as u64, &mut content)?;
        Ok(id.expect("a text has its own length"))
    }
}

/// The digest in an id of this backend.
fn own(id: &ContentId) -> Result<[u8; 32], StoreError> {
    digest(id).ok_or_else(|| StoreError::corrupt(id.to_string(), "it is no id of this backend"))
}

/// The raw digest of an id of this backend's.
pub(crate) fn digest(id: &ContentId) -> Option<[u8; 32]> {
    match id {
        ContentId::Blake3(digest) => Some(*digest),
        ContentId::Sha1(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn content_is_private_and_comes_back_checked() {
        let home = tempfile::tempdir().expect("a directory");
        let store = ContentStore::at(home.path().join("content"));
        store.create(&Operation::unbounded()).expect("it is made");
        let nothing = Purged::default();
        let sink = HashSink::new(&Operation::unbounded(), Some(&store), &nothing);
        let id = sink.link(b"some bytes").expect("it is taken");
        let digest = digest(&id).expect("blake3");
        assert!(
            !store.contains(&digest),
            "nothing is visible before it is published"
        );
        sink.publish().expect("it is published").keep();
        let mode = fs::metadata(home.path().join("content"))
            .expect("it is there")
            .mode();
        assert_eq!(mode & 0o077, 0, "nobody else may read it");

        let mut out = Vec::new();
        assert_eq!(
            store
                .write_to(&Operation::unbounded(), &id, &mut out)
                .expect("it is there"),
            10
        );
        assert_eq!(out, b"some bytes");

        fs::write(store.path(&digest), b"Some bytes").expect("damaged");
        let error = store
            .write_to(&Operation::unbounded(), &id, &mut Vec::new())
            .expect_err("one bit is another");
        assert!(
            matches!(error, ContentError::Store(StoreError::Corrupt { .. })),
            "{error}"
        );
    }

    #[test]
    fn content_that_was_cut_short_is_written_again() {
        let home = tempfile::tempdir().expect("a directory");
        let store = ContentStore::at(home.path().join("content"));
        store.create(&Operation::unbounded()).expect("it is made");
        let put = || {
            let nothing = Purged::default();
            let sink = HashSink::new(&Operation::unbounded(), Some(&store), &nothing);
            let id = sink.link(b"some bytes").expect("it is taken");
            sink.publish().expect("it is published").keep();
            id
        };
        let id = put();
        fs::write(store.path(&digest(&id).expect("blake3")), b"some").expect("damaged");
        assert_eq!(put(), id);
        let mut out = Vec::new();
        assert_eq!(
            store
                .write_to(&Operation::unbounded(), &id, &mut out)
                .expect("it is whole"),
            10
        );
    }

    #[test]
    fn the_length_of_content_is_known_without_a_look_into_it() {
        let home = tempfile::tempdir().expect("a directory");
        let store = ContentStore::at(home.path().join("content"));
        store.create(&Operation::unbounded()).expect("it is made");
        let nothing = Purged::default();
        let sink = HashSink::new(&Operation::unbounded(), Some(&store), &nothing);
        let ids = ["", "some bytes"].map(|text| sink.link(text.as_bytes()).expect("it is taken"));
        sink.publish().expect("it is published").keep();
        let lengths = || ids.map(|id| store.length(&id).expect("it is there"));
        assert_eq!(lengths(), [0, 10]);
        let [_, id] = ids;
        let path = store.path(&digest(&id).expect("blake3"));
        fs::write(&path, b"Some bytes").expect("damaged");
        assert_eq!(lengths(), [0, 10], "whether it is sound is not looked at");

        fs::remove_file(&path).expect("it was there");
        let gone = store.length(&id).expect_err("nobody knows");
        assert!(matches!(gone, StoreError::Io(_)), "{gone}");
        fs::create_dir(&path).expect("a directory in its place");
        let foreign = ContentId::Sha1([7; 20]);
        for id in [id, foreign] {
            let error = store.length(&id).expect_err("it is no content");
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        }
    }

    // What another snapshot needed went with it
    #[test]
    fn what_is_taken_back_is_only_what_was_not_there_before() {
        let home = tempfile::tempdir().expect("a directory");
        let store = ContentStore::at(home.path().join("content"));
        store.create(&Operation::unbounded()).expect("it is made");
        let nothing = Purged::default();
        let sink = HashSink::new(&Operation::unbounded(), Some(&store), &nothing);
        let old = sink.link(b"of an older snapshot").expect("it is taken");
        sink.publish().expect("it is published").keep();

        let sink = HashSink::anew(&Operation::unbounded(), &store, &nothing);
        assert_eq!(sink.link(b"of an older snapshot").expect("taken"), old);
        let new = sink.link(b"new").expect("it is taken");
        let arrived = sink.publish().expect("it is published");
        assert!(!arrived.is_empty());
        drop(arrived);
        let is_there = |id| store.contains(&digest(&id).expect("blake3"));
        assert!(is_there(old) && !is_there(new));
    }

    #[test]
    fn what_nothing_names_is_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let store = ContentStore::at(home.path().join("content"));
        store.create(&Operation::unbounded()).expect("it is made");
        let nothing = Purged::default();
        let sink = HashSink::new(&Operation::unbounded(), Some(&store), &nothing);
        let kept = digest(&sink.link(b"kept").expect("taken")).expect("blake3");
        let dead = digest(&sink.link(b"not named").expect("taken")).expect("blake3");
        sink.publish().expect("it is published").keep();
        assert_eq!(
            store
                .retain(&Operation::unbounded(), &HashSet::from([kept]))
                .expect("it collects"),
            9
        );
        assert!(store.contains(&kept) && !store.contains(&dead));
    }
}
