//! A store in a directory.
//!
//! ```text
//! <root>/format.json            the version of this layout; published last when a store is made
//!        lock                   locked while the store is changed; names its last holder
//!        staging/<random>       on its way to a place below; locked while somebody is at work on it
//!        keys/ab/<key>.json     the record of a key: its text, and length and digest of the content
//!        blobs/ab/<digest>      content, once for all keys that have the same
//!        blobs/ab/<digest>.<key>  a claim: that key may have this content
//! ```
//!
//! `<key>` is the blake3 of the key's text, `<digest>` that of the content, `ab` the first two of
//! its 64 digits. No other text becomes a file name, so no key can point outside of the store.
//!
//! A claim is written before its record, and removed after its record. So the claims beside a blob
//! name every record that can use the blob. To decide whether a blob is still needed, the store
//! reads only these records.

mod content;
mod record;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stillframe_disk::blob;
use stillframe_disk::directory::{Directory, Opened};
use stillframe_disk::durable::{self, StagedFile};
use stillframe_disk::lock::LockFile;
use stillframe_disk::operation::Operation;

pub(crate) use content::check;

use content::CheckedReader;

use crate::digest::Digest;
use crate::error::{
    Damage, DeleteError, GetError, OpenError, PathError, PutError, StoreError, printable,
};
use crate::key::ArtifactKey;
use crate::{ArtifactList, ArtifactMeta, ArtifactStore, PutOptions, read_content};

/// Keeps artifacts as files below one private directory.
///
/// Any number of processes may have the same directory open. Readers wait for nobody. Those who
/// change the store take turns, each for as long as it takes to give files their names; staging
/// content goes on beside that.
#[derive(Debug)]
pub struct FileStore {
    root: Directory,
    keys: Directory,
    blobs: Directory,
    staging: Directory,
    lock_timeout: Duration,
}

/// What the disk has for a key.
pub(crate) enum Found {
    Nothing,
    /// What its record says comes with it, unless that is damaged itself.
    Damaged(Option<ArtifactMeta>, Damage),
    /// The content, open and not yet read, though of the right length.
    Content(ArtifactMeta, File),
}

const FORMAT_FILE: &str = "format.json";
const FORMAT: &str = "{\"format\":\"stillframe artifacts\",\"version\":1}\n";
const LOCK_FILE: &str = "lock";
const KEYS: &str = "keys";
const BLOBS: &str = "blobs";
const STAGING: &str = "staging";

impl FileStore {
    /// Opens the store at `root`, making it if there is nothing or an empty directory.
    ///
    /// The directory is made private (0700). It is refused if it is a link, belongs to another
    /// user, or holds anything that is not a store's: nothing is changed then.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, OpenError> {
        // Nobody stops it: a call is done, or fails of itself.
        Self::open_by(&Operation::unbounded(), root.as_ref())
    }

    fn open_by(op: &Operation, given: &Path) -> Result<Self, OpenError> {
        if given.as_os_str().is_empty() {
            return Err(OpenError::EmptyRoot);
        }
        // By its components: a slash at the end would make the kernel follow a link.
        let path: PathBuf = std::path::absolute(given)
            .map_err(PathError::at("resolve", given))?
            .components()
            .collect();
        let root = open_root(op, &path)?;
        let is_made = check_format(&root)?;
        root.make_private()?;
        let subdirectory = |name| match root.subdirectory(name) {
            Ok(Some(found)) => Ok(found),
            Ok(None) => root.make_subdirectory(name),
            Err(e) => Err(e),
        };
        let store = Self {
            keys: subdirectory(KEYS)?,
            blobs: subdirectory(BLOBS)?,
            staging: subdirectory(STAGING)?,
            root,
            // Longer than any publication on a disk that still works, and short enough for a
            // person who waits.
            lock_timeout: Duration::from_secs(30),
        };
        if !is_made {
            let format = store.stage(FORMAT.as_bytes())?;
            format.0.rename_in(&store.root, FORMAT_FILE)?;
            store.root.sync()?;
        }
        Ok(store)
    }

    /// Opens a store that is there, to read in it: it may be another user's, or on a file system
    /// that is mounted for reading alone. Nothing is made or changed; whatever would change it
    /// fails.
    pub fn open_to_read(root: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = root.as_ref();
        let there = |directory: Option<Directory>, path: &Path| {
            directory
                .ok_or(rustix::io::Errno::NOENT)
                .map_err(PathError::at("open the directory", path))
        };
        let root = there(
            Directory::open_to_read(&Operation::unbounded(), path)?,
            path,
        )?;
        if !check_format(&root)? {
            return Err(OpenError::Refused {
                path: path.to_owned(),
                reason: "it is no store of artifacts".to_owned(),
            });
        }
        let subdirectory =
            |name: &str| there(root.subdirectory(name)?, &root.disk_path().join(name));
        Ok(Self {
            keys: subdirectory(KEYS)?,
            blobs: subdirectory(BLOBS)?,
            staging: subdirectory(STAGING)?,
            root,
            lock_timeout: Duration::ZERO,
        })
    }

    /// Waits at most that long for another process that is changing the store; default 30 s.
    pub fn lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// The name of [`FileStore::lock_timeout`] in earlier versions.
    #[deprecated(note = "it is called `lock_timeout`")]
    pub fn lock_patience(self, lock_timeout: Duration) -> Self {
        self.lock_timeout(lock_timeout)
    }

    /// The directory of the store: absolute.
    pub fn root(&self) -> &Path {
        self.root.disk_path()
    }

    /// Keeps everybody else from changing the store.
    pub(crate) fn lock(&self) -> Result<LockFile, StoreError> {
        let path = self.root().to_owned();
        let locked = self.root.lock(LOCK_FILE, self.lock_timeout)?;
        locked.map_err(|holder| StoreError::Busy { path, holder })
    }

    pub(crate) fn blobs(&self) -> &Directory {
        &self.blobs
    }

    pub(crate) fn staging(&self) -> &Directory {
        &self.staging
    }

    /// The digest of every key that has a record, damaged or not, in ascending order.
    pub(crate) fn key_digests(&self) -> Result<Vec<Digest>, PathError> {
        let mut digests = Vec::new();
        for shard in shards(&self.keys)? {
            let names = self.keys.subdirectory(&shard)?.map(|shard| shard.names());
            for name in names.transpose()?.unwrap_or_default() {
                let digest: Option<Digest> = name
                    .to_str()
                    .and_then(|name| name.strip_suffix(".json")?.parse().ok());
                digests.extend(digest.filter(|digest| shard_of(*digest) == shard));
            }
        }
        Ok(digests)
    }

    /// What the record of a key says: `None` if there is none, `Err(Damage)` if it is damaged.
    pub(crate) fn record(
        &self,
        key: Digest,
    ) -> Result<Option<Result<ArtifactMeta, Damage>>, PathError> {
        let Some(shard) = self.keys.subdirectory(&shard_of(key))? else {
            return Ok(None);
        };
        let bytes = shard.read(&record_name(key), record::MAX_BYTES)?;
        Ok(bytes.map(|bytes| record::decode(&bytes, key).ok_or(Damage::Record)))
    }

    /// Where the record of a key is.
    pub(crate) fn record_path(&self, key: Digest) -> PathBuf {
        let name = record_name(key);
        self.keys.path_of(&shard_of(key)).join(name)
    }

    /// Where content is.
    pub(crate) fn blob_path(&self, digest: Digest) -> PathBuf {
        self.blobs
            .path_of(&shard_of(digest))
            .join(digest.to_string())
    }

    /// Opens the content of a key without reading it.
    pub(crate) fn find(&self, key: Digest) -> Result<Found, StoreError> {
        match self.find_unlocked(key)? {
            Found::Damaged(_, Damage::Missing) => {
                // Somebody may have replaced the artifact after its record was read and before its
                // content was opened. Nobody can while we look again.
                let _lock = self.lock()?;
                Ok(self.find_unlocked(key)?)
            }
            found => Ok(found),
        }
    }

    fn find_unlocked(&self, key: Digest) -> Result<Found, PathError> {
        let meta = match self.record(key)? {
            None => return Ok(Found::Nothing),
            Some(Err(damage)) => return Ok(Found::Damaged(None, damage)),
            Some(Ok(meta)) => meta,
        };
        let Some(shard) = self.blobs.subdirectory(&shard_of(meta.blake3))? else {
            return Ok(Found::Damaged(Some(meta), Damage::Missing));
        };
        let damage = match shard.file(&meta.blake3.to_string())? {
            Opened::Nothing => Damage::Missing,
            Opened::Other => Damage::NotAFile,
            Opened::File(_, found) if found != meta.bytes => Damage::Length {
                expected: meta.bytes,
                found,
            },
            Opened::File(file, _) => return Ok(Found::Content(meta, file)),
        };
        Ok(Found::Damaged(Some(meta), damage))
    }

    fn stage_content(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<(ArtifactMeta, Synced), PutError> {
        let staged = StagedFile::create_in(&self.staging)?;
        let mut end = 0;
        let meta = read_content(key, content, options, |piece| {
            staged.write_at(piece, end)?;
            end += piece.len() as u64;
            Ok(())
        })?;
        Ok((meta, Synced::of(staged)?))
    }

    /// A file of these bytes that survive a power cut, and have no name yet.
    fn stage(&self, bytes: &[u8]) -> Result<Synced, PathError> {
        let staged = StagedFile::create_in(&self.staging)?;
        staged.write_at(bytes, 0)?;
        Synced::of(staged)
    }

    /// Gives the staged files their names: the content, then the record that leads to it.
    fn publish(
        &self,
        lock: &LockFile,
        meta: &ArtifactMeta,
        blob: Synced,
        record: Synced,
    ) -> Result<(), PutError> {
        let key = meta.key.hash();
        let previous = self.record(key)?;
        let records = self.keys.make_subdirectory(&shard_of(key))?;
        if seeded_bug!("artifact-named-before-content") {
            record.0.rename_in(&records, &record_name(key))?;
            return Ok(self.publish_blob(meta.blake3, key, blob)?);
        }
        let published = self
            .publish_blob(meta.blake3, key, blob)
            .and_then(|()| record.0.rename_in(&records, &record_name(key)));
        if let Err(e) = published {
            // Nothing leads there. If this fails as well, the collector does it.
            let _ = self.release(lock, meta.blake3);
            return Err(e.into());
        }
        records.sync().map_err(|source| PutError::Unconfirmed {
            key: meta.key.clone(),
            source,
        })?;
        if let Some(Ok(previous)) = previous
            && previous.blake3 != meta.blake3
        {
            // The artifact is kept whether or not the old content goes; if not, the collector
            // finds it.
            let _ = self.release(lock, previous.blake3);
        }
        Ok(())
    }

    fn publish_blob(&self, digest: Digest, key: Digest, blob: Synced) -> Result<(), PathError> {
        let shard = self.blobs.make_subdirectory(&shard_of(digest))?;
        shard.touch(&BlobName::Claim { digest, key }.to_string())?;
        // Also over a blob that is there: it may be damaged, or not yet synced.
        blob.0.rename_in(&shard, &digest.to_string())?;
        shard.sync()
    }

    /// Removes the claims that no longer hold on the content `digest`, and the content with the
    /// last of them.
    fn release(&self, _lock: &LockFile, digest: Digest) -> Result<(), PathError> {
        let Some(shard) = self.blobs.subdirectory(&shard_of(digest))? else {
            return Ok(());
        };
        let mut is_needed = false;
        for name in shard.names()? {
            let Some(name) = name.to_str() else { continue };
            match BlobName::parse(name) {
                Some(BlobName::Claim { digest: of, key }) if of == digest => {
                    if self.claim_holds(digest, key)? {
                        is_needed = true;
                    } else {
                        shard.remove(name)?;
                    }
                }
                _ => {}
            }
        }
        if !is_needed {
            shard.remove(&digest.to_string())?;
        }
        Ok(())
    }

    /// Whether the record of `key` leads to the content `digest`, or might: what a damaged record
    /// says is not known.
    fn claim_holds(&self, digest: Digest, key: Digest) -> Result<bool, PathError> {
        Ok(match self.record(key)? {
            None => false,
            Some(Ok(meta)) => meta.blake3 == digest,
            Some(Err(_)) => true,
        })
    }
}

impl ArtifactStore for FileStore {
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<ArtifactMeta, PutError> {
        let (meta, blob) = self.stage_content(key, content, options)?;
        let record = self.stage(&record::encode(&meta))?;
        let lock = self.lock()?;
        self.publish(&lock, &meta, blob, record)?;
        Ok(meta)
    }

    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError> {
        let corrupt = |damage| GetError::Corrupt {
            key: key.clone(),
            damage,
        };
        match self.find(key.hash())? {
            Found::Nothing => Err(GetError::NotFound { key: key.clone() }),
            Found::Damaged(_, damage) => Err(corrupt(damage)),
            Found::Content(meta, mut file) => {
                check(&mut file, &meta)
                    .map_err(PathError::at("read", self.blob_path(meta.blake3)))?
                    .map_err(corrupt)?;
                Ok(Box::new(CheckedReader::new(file, meta)))
            }
        }
    }

    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError> {
        let lock = self.lock()?;
        let key_digest = key.hash();
        let record = self.record(key_digest)?;
        let Some(shard) = self.keys.subdirectory(&shard_of(key_digest))? else {
            return Ok(());
        };
        shard.remove(&record_name(key_digest))?;
        // Also if there was none: whoever removed it may have died before the sync.
        shard.sync().map_err(|source| DeleteError::Unconfirmed {
            key: key.clone(),
            source,
        })?;
        if let Some(Ok(meta)) = record {
            // The artifact is gone whether or not its content is; if not, the collector finds it.
            let _ = self.release(&lock, meta.blake3);
        }
        Ok(())
    }

    fn exists(&self, key: &ArtifactKey) -> Result<bool, StoreError> {
        let key = key.hash();
        match self.keys.subdirectory(&shard_of(key))? {
            Some(shard) => Ok(shard.has(&record_name(key))?),
            None => Ok(false),
        }
    }

    fn list(&self) -> Result<ArtifactList, StoreError> {
        let mut artifacts = Vec::new();
        let mut damaged = Vec::new();
        for key in self.key_digests()? {
            match self.record(key)? {
                // Deleted since the names were read.
                None => {}
                Some(Ok(meta)) => artifacts.push(meta),
                Some(Err(_)) => damaged.push(printable(&self.record_path(key))),
            }
        }
        Ok(ArtifactList::new(artifacts, damaged))
    }
}

/// What a name in a directory below `blobs` stands for; written as that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlobName {
    Content(Digest),
    Claim { digest: Digest, key: Digest },
}

impl BlobName {
    /// `None` for a name that no store gives.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name.split_once('.') {
            None => Self::Content(name.parse().ok()?),
            Some((digest, key)) => Self::Claim {
                digest: digest.parse().ok()?,
                key: key.parse().ok()?,
            },
        })
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(digest) => write!(f, "{digest}"),
            Self::Claim { digest, key } => write!(f, "{digest}.{key}"),
        }
    }
}

fn record_name(key: Digest) -> String {
    format!("{key}.json")
}

fn shard_of(digest: Digest) -> String {
    blob::shard_of(digest.as_bytes())
}

/// The names of the directories below `all` that are there, in ascending order. To be opened one
/// at a time, because there may be more of them than descriptors to spare.
pub(crate) fn shards(all: &Directory) -> Result<Vec<String>, PathError> {
    let is_ours = |name: &str| {
        name.len() == 2 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    Ok(all
        .names()?
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| is_ours(name))
        .collect())
}

/// Opens the directory of a store, or makes it.
fn open_root(op: &Operation, path: &Path) -> Result<Directory, OpenError> {
    let refused = |reason: &str| OpenError::Refused {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => return Err(refused("it is a link")),
        Ok(found) if !found.is_dir() => return Err(refused("it is not a directory")),
        Ok(found) => {
            let (owner, me) = (found.uid(), rustix::process::geteuid().as_raw());
            if owner != me {
                let reason = format!("it belongs to user {owner}, this is user {me}");
                return Err(refused(&reason));
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => durable::make_private_durably(op, path)?,
        // A file is where a directory should lead there.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(refused("it is not a directory"));
        }
        Err(e) => return Err(PathError::at("look at", path)(e).into()),
    }
    // What was looked at may have been swapped, so the descriptor is checked again.
    let root = Directory::open(op, path)?;
    Ok(root
        .ok_or(rustix::io::Errno::NOENT)
        .map_err(PathError::at("open the directory", path))?)
}

/// A staged file whose bytes survive a power cut. Nothing else gets a name.
struct Synced(StagedFile);

impl Synced {
    fn of(staged: StagedFile) -> Result<Self, PathError> {
        if !seeded_bug!("artifact-not-synced") {
            staged.sync()?;
        }
        Ok(Self(staged))
    }
}

/// Whether the store in `root` is complete; `false` if one is to be made there.
fn check_format(root: &Directory) -> Result<bool, OpenError> {
    let path = || root.disk_path().to_owned();
    if let Some(found) = root.read(FORMAT_FILE, FORMAT.len() as u64)? {
        if found == FORMAT.as_bytes() {
            return Ok(true);
        }
        let found = String::from_utf8_lossy(&found).escape_debug().to_string();
        return Err(OpenError::UnknownFormat {
            path: path(),
            found,
        });
    }
    // The first to open it may have died, or may be at it this moment.
    let ours = [KEYS, BLOBS, STAGING, LOCK_FILE, FORMAT_FILE];
    let foreign = root
        .names()?
        .into_iter()
        .find(|name| !ours.iter().any(|ours| name == ours));
    match foreign {
        None => Ok(false),
        Some(name) => Err(OpenError::Refused {
            path: path(),
            reason: format!(
                "it holds {}, which is not a store's",
                printable(Path::new(&name))
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::os::unix::fs::FileExt as _;
    use std::sync::Barrier;

    use proptest::prelude::*;
    use rustix::io::Errno;
    use tempfile::TempDir;

    use stillframe_disk::faults::{Done, Fault};
    use stillframe_disk::trial;

    use super::*;
    use crate::ErrorKind;

    fn key(text: &str) -> ArtifactKey {
        ArtifactKey::new(text).unwrap()
    }

    /// In memory where the system has such a place: the loops below sync thousands of times.
    fn new_directory() -> TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
    }

    fn new_store() -> (TempDir, FileStore) {
        let directory = new_directory();
        let store = FileStore::open(directory.path().join("store")).unwrap();
        (directory, store)
    }

    /// Does `work` with the store while `fault` strikes at the call `at`; answers also whether it
    /// did.
    fn with_fault<T>(
        store: &FileStore,
        at: u64,
        fault: Fault,
        work: impl FnOnce(&FileStore) -> T,
    ) -> (T, bool) {
        let (done, calls) = trial::with(fault, |op| work(&opened_by(op, store.root())));
        (done, calls > at)
    }

    /// The store, whose calls `op` sees from here on.
    fn opened_by(op: &Operation, root: &Path) -> FileStore {
        FileStore::open_by(op, root).unwrap()
    }

    fn put(store: &FileStore, text: &str, content: &str) -> Result<ArtifactMeta, PutError> {
        store.put(&key(text), &mut content.as_bytes(), &PutOptions::default())
    }

    fn get(store: &FileStore, text: &str) -> Option<String> {
        match store.get(&key(text)) {
            Ok(mut content) => {
                let mut text = String::new();
                content.read_to_string(&mut text).unwrap();
                Some(text)
            }
            Err(GetError::NotFound { .. }) => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// Every file of the store and its content, but for the lock's.
    fn view(store: &FileStore) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut directories = vec![store.root().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if !path.ends_with(LOCK_FILE) {
                    let name = path.strip_prefix(store.root()).unwrap().to_owned();
                    files.insert(name, fs::read(path).unwrap());
                }
            }
        }
        files
    }

    /// The files of a store in which nothing ever went wrong.
    fn view_of(artifacts: &[(&str, &str)]) -> BTreeMap<PathBuf, Vec<u8>> {
        let (_directory, store) = new_store();
        for (key, content) in artifacts {
            put(&store, key, content).unwrap();
        }
        view(&store)
    }

    /// What a change starts from: alone, or beside keys that share the old and the new content.
    const BEGINNINGS: [&[(&str, &str)]; 3] = [
        &[],
        &[("key", "old")],
        &[("key", "old"), ("shares old", "old"), ("shares new", "new")],
    ];

    fn store_with(artifacts: &[(&str, &str)]) -> (TempDir, FileStore) {
        let (directory, store) = new_store();
        for (key, content) in artifacts {
            put(&store, key, content).unwrap();
        }
        (directory, store)
    }

    /// `artifacts` after `key` was given that content, or was deleted.
    fn changed<'a>(
        artifacts: &[(&'a str, &'a str)],
        content: Option<&'a str>,
    ) -> Vec<(&'a str, &'a str)> {
        let others = artifacts.iter().copied().filter(|(key, _)| *key != "key");
        others
            .chain(content.map(|content| ("key", content)))
            .collect()
    }

    #[test]
    fn a_put_killed_at_any_step_leaves_the_old_content_or_the_new() {
        for beginning in BEGINNINGS {
            let old = beginning.first().map(|(_, content)| *content);
            let mut endings = BTreeSet::new();
            for step in 0.. {
                let (_directory, store) = store_with(beginning);
                let dead = Fault::StopBefore(step);
                let (done, is_killed) =
                    with_fault(&store, step, dead, |store| put(store, "key", "new"));
                if !is_killed {
                    done.unwrap();
                    break;
                }
                let store = FileStore::open(store.root()).unwrap();
                let content = get(&store, "key");
                let is_new = content.as_deref() == Some("new");
                assert!(is_new || content.as_deref() == old, "{content:?} at {step}");
                let claims_new = matches!(done, Ok(_) | Err(PutError::Unconfirmed { .. }));
                assert_eq!(is_new, claims_new, "{done:?} at step {step}");
                assert_eq!(store.verify().unwrap().problems, [], "at step {step}");

                store.gc().unwrap();
                let content = content.as_deref();
                let expected = view_of(&changed(beginning, content));
                assert_eq!(
                    view(&store),
                    expected,
                    "nothing else is left at step {step}"
                );
                endings.insert(is_new);
            }
            assert_eq!(endings.len(), 2, "the loop crossed the publication");
        }
    }

    #[test]
    fn a_put_on_a_full_disk_changes_nothing() {
        for beginning in BEGINNINGS {
            let mut refused = 0;
            for step in 0.. {
                let (_directory, store) = store_with(beginning);
                let before = view(&store);
                let full = Fault::FailAt(step, Errno::NOSPC.raw_os_error());
                let (done, is_hit) =
                    with_fault(&store, step, full, |store| put(store, "key", "new"));
                match done {
                    Ok(_) if !is_hit => break,
                    // It was the clean-up that failed, or a sync that worked the second time.
                    Ok(_) => assert_eq!(get(&store, "key").as_deref(), Some("new")),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:?} at step {step}");
                        assert_eq!(view(&store), before, "at step {step}");
                        refused += 1;
                    }
                }
            }
            assert!(
                refused >= 9,
                "every write, link and rename was refused once"
            );
        }
    }

    #[test]
    fn a_delete_killed_at_any_step_leaves_the_artifact_or_nothing() {
        for beginning in &BEGINNINGS[1..] {
            let mut endings = BTreeSet::new();
            for step in 0.. {
                let (_directory, store) = store_with(beginning);
                let dead = Fault::StopBefore(step);
                let (done, is_killed) =
                    with_fault(&store, step, dead, |store| store.delete(&key("key")));
                if !is_killed {
                    done.unwrap();
                    break;
                }
                let store = FileStore::open(store.root()).unwrap();
                let content = get(&store, "key");
                let claims_gone = matches!(done, Ok(()) | Err(DeleteError::Unconfirmed { .. }));
                assert_eq!(content.is_none(), claims_gone, "{done:?} at step {step}");
                assert_eq!(store.verify().unwrap().problems, [], "at step {step}");

                store.gc().unwrap();
                let expected = view_of(&changed(beginning, content.as_deref()));
                assert_eq!(
                    view(&store),
                    expected,
                    "nothing else is left at step {step}"
                );
                endings.insert(content.is_none());
            }
            assert_eq!(endings.len(), 2, "the loop crossed the publication");
        }
    }

    #[test]
    fn a_store_whose_making_was_killed_at_any_step_is_made_by_the_next_one() {
        for step in 0.. {
            let directory = new_directory();
            let root = directory.path().join("a/b/store");
            let (opened, calls) = trial::with(Fault::StopBefore(step), |op| {
                FileStore::open_by(op, &root).map(drop)
            });
            if calls <= step {
                opened.unwrap();
                assert!(step > 8, "making a store takes that many steps");
                break;
            }
            let store = FileStore::open(&root).unwrap();
            store.gc().unwrap();
            put(&store, "key", "content").unwrap();
            assert_eq!(
                view(&store),
                view_of(&[("key", "content")]),
                "at step {step}"
            );
        }
    }

    #[test]
    fn a_put_that_the_disk_does_not_confirm_says_so() {
        let outcomes: Vec<_> = (0..40)
            .map(|step| {
                let (_directory, store) = new_store();
                let dead = Fault::StopBefore(step);
                let (done, _) = with_fault(&store, step, dead, |store| put(store, "key", "new"));
                (done, get(&store, "key"))
            })
            .collect();
        let (unconfirmed, content) = outcomes
            .iter()
            .find(|(done, _)| matches!(done, Err(PutError::Unconfirmed { .. })))
            .expect("the last sync is a step of its own");
        assert_eq!(content.as_deref(), Some("new"));
        let message = unconfirmed.as_ref().unwrap_err().to_string();
        assert_eq!(
            message,
            "artifact \"key\" was kept, but a power cut may undo it"
        );
    }

    /// What a call does, and in which directory of the store.
    fn said(call: &Done, root: &Path) -> String {
        let (what, path) = match call {
            Done::Stage(directory) => ("stage", directory.join("x")),
            Done::MakeDirectory(path) => ("make directory", path.clone()),
            Done::Write(path) if path.starts_with(root.join(BLOBS)) => ("make", path.clone()),
            Done::Write(path) => ("write", path.clone()),
            Done::Rename { to, .. } => ("rename", to.clone()),
            Done::Remove(path) => ("remove", path.clone()),
            Done::Sync(path) => ("sync file", path.clone()),
            Done::SyncDirectory(directory) => ("sync directory", directory.join("x")),
            other => panic!("{other:?}"),
        };
        let directory = path.parent().unwrap().strip_prefix(root).unwrap();
        format!("{what} {}", directory.display())
    }

    #[test]
    fn every_byte_is_synced_before_its_name_and_every_name_before_the_next_step() {
        let (_directory, store) = new_store();
        let blob = shard_of(put(&store, "other", "old").unwrap().blake3);
        let record = shard_of(key("key").hash());
        let order = |content: &str| -> Vec<String> {
            let put = |op: &Operation| put(&opened_by(op, store.root()), "key", content);
            let (done, seen) = trial::seen(put);
            done.unwrap();
            seen.iter().map(|call| said(call, store.root())).collect()
        };
        let mut expected = vec![
            "stage staging".to_owned(),
            "write staging".to_owned(),
            "sync file staging".to_owned(),
            "stage staging".to_owned(),
            "write staging".to_owned(),
            "sync file staging".to_owned(),
            "make directory keys".to_owned(),
            "sync directory keys".to_owned(),
            "make directory blobs".to_owned(),
            "sync directory blobs".to_owned(),
            format!("make blobs/{blob}"),
            format!("rename blobs/{blob}"),
            format!("sync directory blobs/{blob}"),
            format!("rename keys/{record}"),
            format!("sync directory keys/{record}"),
        ];
        assert_eq!(order("old"), expected);

        // What is replaced goes last, when nothing can bring it back.
        let new = shard_of(Digest::of(b"new"));
        for call in &mut expected {
            *call = call.replace(&format!("blobs/{blob}"), &format!("blobs/{new}"));
        }
        expected.push(format!("remove blobs/{blob}"));
        assert_eq!(
            order("new"),
            expected,
            "the claim goes, \"other\" still has the content"
        );
    }

    #[test]
    fn content_goes_with_the_last_key_that_has_it() {
        let (_directory, store) = new_store();
        for name in ["one", "two", "three"] {
            put(&store, name, "shared").unwrap();
        }
        assert_eq!(store.total_bytes().unwrap(), 6, "kept once");
        store.delete(&key("one")).unwrap();
        put(&store, "two", "other").unwrap();
        assert_eq!(get(&store, "three").as_deref(), Some("shared"));
        assert_eq!(store.total_bytes().unwrap(), 11);
        store.delete(&key("three")).unwrap();
        assert_eq!(view(&store), view_of(&[("two", "other")]));
    }

    #[test]
    fn a_put_of_the_same_content_again_heals_it() {
        let (_directory, store) = new_store();
        let meta = put(&store, "key", "content").unwrap();
        fs::write(store.blob_path(meta.blake3), "CONTENT").unwrap();
        put(&store, "other", "content").unwrap();
        assert_eq!(get(&store, "key").as_deref(), Some("content"));
    }

    #[test]
    fn keys_with_one_content_come_and_go_in_many_processes_at_once() {
        let (_directory, store) = new_store();
        let start = Barrier::new(3);
        let busy = |name: &'static str| {
            // A store of its own has a lock of its own, as another process has.
            let store = FileStore::open(store.root()).unwrap();
            start.wait();
            for _ in 0..200 {
                put(&store, name, "shared").unwrap();
                assert_eq!(get(&store, name).as_deref(), Some("shared"), "{name}");
                store.delete(&key(name)).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| busy("one"));
            scope.spawn(|| busy("two"));
            start.wait();
            for _ in 0..200 {
                store.gc().unwrap();
            }
        });
        assert_eq!(
            view(&store),
            view_of(&[]),
            "the last one takes the content along"
        );
    }

    #[test]
    fn a_reader_never_sees_a_key_without_content_while_it_is_replaced() {
        let (_directory, store) = new_store();
        put(&store, "key", "even").unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for content in ["odd", "even"].repeat(100) {
                    put(&store, "key", content).unwrap();
                }
            });
            while !writer.is_finished() {
                let content = get(&store, "key").expect("it is replaced, not deleted");
                assert!(["odd", "even"].contains(&content.as_str()), "{content}");
            }
        });
    }

    /// Content that does something when it has been read half-way.
    struct Halfway<F: FnMut() -> io::Result<()>> {
        pieces: u32,
        act: F,
    }

    impl<F: FnMut() -> io::Result<()>> Read for Halfway<F> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.pieces += 1;
            match self.pieces {
                2 => (self.act)()?,
                4.. => return Ok(0),
                _ => {}
            }
            buffer.fill(7);
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_collection_spares_what_is_on_its_way_in() {
        let (_directory, store) = new_store();
        let other = FileStore::open(store.root()).unwrap();
        let mut collected = None;
        let mut content = Halfway {
            pieces: 0,
            act: || {
                assert!(
                    other.total_bytes().unwrap() > 0,
                    "the content is on its way"
                );
                collected = Some(other.gc().unwrap());
                Ok(())
            },
        };
        let meta = store
            .put(&key("key"), &mut content, &PutOptions::default())
            .unwrap();
        assert_eq!(
            collected,
            Some(crate::GcOutcome::default()),
            "nothing was removed"
        );
        assert_eq!(store.verify().unwrap().bytes_read, meta.bytes);
        assert_eq!(store.verify().unwrap().problems, []);
    }

    #[test]
    fn a_put_survives_the_deletion_of_the_same_content_under_another_key() {
        let (_directory, store) = new_store();
        let mut content = Halfway {
            pieces: 0,
            act: || Ok(()),
        };
        store
            .put(&key("one"), &mut content, &PutOptions::default())
            .unwrap();
        let mut content = Halfway {
            pieces: 0,
            act: || {
                store.delete(&key("one")).unwrap();
                Ok(())
            },
        };
        store
            .put(&key("two"), &mut content, &PutOptions::default())
            .unwrap();
        assert_eq!(store.verify().unwrap().problems, []);
        assert_eq!(store.list().unwrap().artifacts.len(), 1);
    }

    #[test]
    fn a_put_whose_content_fails_or_is_too_long_leaves_nothing_behind() {
        let (_directory, store) = new_store();
        put(&store, "key", "old").unwrap();
        let before = view(&store);
        let mut broken = Halfway {
            pieces: 0,
            act: || Err(io::Error::other("the pipe broke")),
        };
        let e = store
            .put(&key("key"), &mut broken, &PutOptions::default())
            .unwrap_err();
        assert!(matches!(e, PutError::Content { .. }), "{e:?}");
        assert_eq!(e.kind(), ErrorKind::Unreadable);
        assert_eq!(view(&store), before);

        let options = PutOptions::default().max_bytes(2);
        let e = store
            .put(&key("key"), &mut "new".as_bytes(), &options)
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitExceeded);
        assert_eq!(view(&store), before);
    }

    #[test]
    fn a_reader_that_lies_about_its_length_is_an_error() {
        struct Liar;
        impl Read for Liar {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                Ok(buffer.len() + 1)
            }
        }
        let (_directory, store) = new_store();
        let e = store
            .put(&key("key"), &mut Liar, &PutOptions::default())
            .unwrap_err();
        assert!(matches!(e, PutError::Content { .. }), "{e:?}");
    }

    #[test]
    fn a_store_in_use_is_busy_and_names_who_uses_it() {
        let (_directory, store) = new_store();
        let store = store.lock_timeout(Duration::ZERO);
        put(&store, "key", "old").unwrap();
        let before = view(&store);
        let lock = store.lock().unwrap();
        let e = put(&store, "key", "new").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
        let me = format!("process {} (", std::process::id());
        assert!(e.to_string().contains(&me), "{e}");
        assert_eq!(
            store.delete(&key("key")).unwrap_err().kind(),
            ErrorKind::Busy
        );
        assert_eq!(store.gc().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(
            get(&store, "key").as_deref(),
            Some("old"),
            "readers do not wait"
        );
        assert_eq!(view(&store), before);
        drop(lock);
        put(&store, "key", "new").unwrap();
    }

    #[test]
    fn content_that_changes_while_it_is_read_never_ends_well() {
        let (_directory, store) = new_store();
        let text = "x".repeat(100);
        let meta = put(&store, "key", &text).unwrap();
        let blob = fs::OpenOptions::new()
            .write(true)
            .open(store.blob_path(meta.blake3))
            .unwrap();
        let read = || {
            let mut content = store.get(&key("key")).unwrap();
            let mut start = [0; 10];
            content.read_exact(&mut start).unwrap();
            assert_eq!(start, [b'x'; 10]);
            content
        };
        let mut changed = read();
        blob.write_all_at(b"y", 99).unwrap();
        let mut rest = Vec::new();
        let e = changed.read_to_end(&mut rest).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        assert!(rest.len() < 90, "the last piece is held back");
        blob.write_all_at(b"x", 99).unwrap();

        let mut cut = read();
        blob.set_len(50).unwrap();
        let e = cut.read_to_end(&mut rest).unwrap_err();
        let inner = e.get_ref().and_then(|e| e.downcast_ref::<GetError>());
        assert!(matches!(inner, Some(GetError::Corrupt { .. })), "{e:?}");
        assert!(cut.read(&mut [0; 8]).is_err(), "and it stays an error");
    }

    #[test]
    fn verify_names_every_artifact_that_cannot_be_had() {
        let (_directory, store) = new_store();
        let names = [
            "whole",
            "flipped",
            "cut",
            "missing",
            "link",
            "unnamed",
            "shares flipped",
        ];
        let place = |name: &str| {
            let content = name.trim_start_matches("shares ");
            store.blob_path(put(&store, name, content).unwrap().blake3)
        };
        let places: BTreeMap<&str, PathBuf> = names.map(|name| (name, place(name))).into();
        fs::write(&places["flipped"], "fLipped").unwrap();
        fs::write(&places["cut"], "cu").unwrap();
        fs::remove_file(&places["missing"]).unwrap();
        fs::remove_file(&places["link"]).unwrap();
        std::os::unix::fs::symlink("link", &places["link"]).unwrap();
        let record = store.record_path(key("unnamed").hash());
        fs::write(&record, "{}").unwrap();

        let found = store.verify().unwrap();
        assert_eq!(found.artifacts, 7);
        assert_eq!(
            found.bytes_read, 12,
            "\"whole\", and \"flipped\" once for both"
        );
        let found: BTreeMap<Option<String>, (PathBuf, Damage)> = found
            .problems
            .into_iter()
            .map(|p| (p.key.map(String::from), (p.disk_path, p.damage)))
            .collect();
        let flipped = Damage::Content {
            expected: Digest::of(b"flipped"),
            found: Digest::of(b"fLipped"),
        };
        let cut = Damage::Length {
            expected: 3,
            found: 2,
        };
        let expected = [
            ("flipped", flipped),
            ("shares flipped", flipped),
            ("cut", cut),
            ("missing", Damage::Missing),
            ("link", Damage::NotAFile),
        ];
        let mut expected: BTreeMap<Option<String>, (PathBuf, Damage)> = expected
            .map(|(name, damage)| (Some(name.to_owned()), (places[name].clone(), damage)))
            .into();
        for (name, (_, damage)) in &expected {
            let name = name.as_deref().unwrap();
            match store.get(&key(name)).map(drop) {
                Err(GetError::Corrupt { damage: found, .. }) => assert_eq!(found, *damage),
                other => panic!("{name}: {other:?}"),
            }
        }
        expected.insert(None, (record.clone(), Damage::Record));
        assert_eq!(found, expected);

        let list = store.list().unwrap();
        assert_eq!(list.artifacts.len(), 6, "a damaged record hides no other");
        assert_eq!(list.damaged, [record.to_str().unwrap()]);
    }

    #[test]
    fn a_damaged_record_does_not_cost_its_content() {
        let (_directory, store) = new_store();
        put(&store, "key", "content").unwrap();
        let record = store.record_path(key("key").hash());
        let bytes = fs::read(&record).unwrap();
        fs::write(&record, "{}").unwrap();
        put(&store, "other", "content").unwrap();
        store.delete(&key("other")).unwrap();
        assert_eq!(store.gc().unwrap(), crate::GcOutcome::default());
        fs::write(&record, bytes).unwrap();
        assert_eq!(
            get(&store, "key").as_deref(),
            Some("content"),
            "it can be had again"
        );

        fs::write(&record, "{}").unwrap();
        store.delete(&key("key")).unwrap();
        let outcome = store.gc().unwrap();
        assert_eq!((outcome.blobs_removed, outcome.bytes_removed), (1, 7));
        assert_eq!(view(&store), view_of(&[]), "deleting the key settles it");
    }

    #[test]
    fn a_collection_counts_what_it_removes_and_leaves_what_is_not_the_stores() {
        let (_directory, store) = new_store();
        let meta = put(&store, "key", "content").unwrap();
        let shard = store.blob_path(meta.blake3).parent().unwrap().to_owned();
        let orphan = store.blob_path(Digest::of(b"orphan"));
        fs::create_dir_all(orphan.parent().unwrap()).unwrap();
        fs::write(&orphan, "orphan").unwrap();
        fs::write(shard.join("README"), "somebody's").unwrap();
        fs::write(store.root().join("staging/0123"), "half").unwrap();

        let outcome = store.gc().unwrap();
        assert_eq!(outcome.blobs_removed, 1);
        assert_eq!(outcome.temporaries_removed, 1);
        assert_eq!(outcome.bytes_removed, 10);
        assert_eq!(outcome.blobs_in_doubt, 0);
        fs::remove_file(shard.join("README")).expect("it is still there");
        assert_eq!(view(&store), view_of(&[("key", "content")]));
        assert_eq!(
            store.gc().unwrap(),
            crate::GcOutcome::default(),
            "once is enough"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_key_comes_back_and_none_leads_out_of_the_store(
            keys in prop::collection::btree_map(
                prop_oneof!["\\PC{1,100}", "(\\.\\./|/|%2e|\\\\|\\.|[a-z~$ ]){1,60}"],
                ".{0,50}",
                0..4,
            ),
        ) {
            let (directory, store) = new_store();
            for (text, content) in &keys {
                put(&store, text, content).unwrap();
            }
            for (text, content) in &keys {
                prop_assert_eq!(get(&store, text), Some(content.clone()));
            }
            let listed: Vec<String> =
                store.list().unwrap().artifacts.into_iter().map(|m| m.key.into()).collect();
            prop_assert_eq!(listed, keys.keys().cloned().collect::<Vec<_>>());
            let beside: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
            prop_assert_eq!(beside.len(), 1, "nothing but the store itself");
            for path in view(&store).into_keys() {
                let path = path.to_str().unwrap();
                let is_ours = path == FORMAT_FILE
                    || path.chars().all(|c| c.is_ascii_hexdigit() || "keysblobsjson./".contains(c));
                prop_assert!(is_ours, "{}", path);
            }
        }
    }
}
