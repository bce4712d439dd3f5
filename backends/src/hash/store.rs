//! Where the hash backend keeps its snapshots.
//!
//! A snapshot is there once its record is: manifest and content come first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::codec::TooLong;
use crate::contents::ContentError;
use crate::descriptor;
use crate::durable;
use crate::durable::make_private;
use crate::error::PathError;
use crate::hash::content::{self, ContentStore};
use crate::hash::manifest::Manifest;
use crate::holdings::{Listing, Unreadable};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::problem::Problem;
use crate::purge::{
    FoundContents, KeptContent, Places, PurgeError, Purged, Wanted, is_empty_content,
};
use crate::record::{MAX_RECORD_BYTES, Record};
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;
use crate::tree::ContentId;
use crate::workspace::Workspace;
use crate::worktree::clock::now_ns;
use crate::worktree::stat_cache::{EntryStat, is_racy};

/// How long ago a file was changed at least whose stat data tells it from any later state: the
/// coarsest clock of a file system ticks every two seconds.
const SETTLED_NS: i64 = 2_000_000_000;

/// Records up to this version have no checksum of their own.
const LAST_UNSEALED: u32 = 2;

/// Between a record and its checksum.
const SEAL: &[u8] = b"\nblake3 ";

/// A record with its checksum behind it, as a last line.
fn sealed(mut text: Vec<u8>) -> Vec<u8> {
    let checksum = blake3::hash(&text).to_hex();
    text.extend_from_slice(SEAL);
    text.extend_from_slice(checksum.as_bytes());
    text.push(b'\n');
    text
}

/// The record of what [`sealed`] gave, and whether there was a checksum; `None` if it is wrong.
fn unsealed(bytes: &[u8]) -> Option<(&[u8], bool)> {
    let Some(at) = bytes.windows(SEAL.len()).rposition(|part| part == SEAL) else {
        return Some((bytes, false));
    };
    let (text, seal) = bytes.split_at(at);
    let checksum = seal[SEAL.len()..].strip_suffix(b"\n")?;
    (checksum == blake3::hash(text).to_hex().as_bytes()).then_some((text, true))
}

/// The hash snapshots of one workspace.
#[derive(Clone, Debug)]
pub(crate) struct HashStore {
    directory: PathBuf,
    pub(crate) content: ContentStore,
}

impl HashStore {
    /// The store of `workspace`, whether it exists or not.
    pub(crate) fn of(workspace: &Workspace) -> Self {
        Self::below(workspace.store_path())
    }

    /// The store that holds a snapshot: that of `workspace`, or of another workspace in the same
    /// state directory.
    pub(crate) fn holding(workspace: &Workspace, id: &SnapshotId) -> Result<Self, StoreError> {
        let own = Self::of(workspace);
        if own.has(id) {
            return Ok(own);
        }
        let stores = workspace
            .store_path()
            .parent()
            .map(fs::read_dir)
            .and_then(Result::ok);
        stores
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| Self::below(&entry.path()))
            .find(|store| store.has(id))
            .ok_or_else(|| StoreError::UnknownSnapshot { id: id.clone() })
    }

    fn below(store_path: &Path) -> Self {
        let directory = store_path.join("hash");
        let content = ContentStore::at(directory.join("content"));
        Self { directory, content }
    }

    /// Makes the directories.
    pub(crate) fn create(&self, op: &Operation) -> Result<(), PathError> {
        if self.content.is_made() {
            return Ok(());
        }
        make_private(op, &self.directory.join("snapshots"))?;
        make_private(op, &self.directory.join("manifests"))?;
        durable::sync_directory(op, &self.directory)?;
        // Before the last one, which says that all of this is done.
        durable::sync_above(op, &self.directory)?;
        self.content.create(op)?;
        durable::sync_directory(op, &self.directory)
    }

    /// Whether the last capture with a limit for content had digests alone. It says what the next
    /// one tries first, and no more.
    pub(crate) fn is_noted_above_limit(&self) -> bool {
        self.above_limit_path().exists()
    }

    /// Notes that, or that it is not so. Best effort.
    pub(crate) fn note_above_limit(&self, op: &Operation, is_above: bool) {
        let path = self.above_limit_path();
        if is_above != path.exists() {
            let _ = match is_above {
                true => durable::replace_unsynced(op, &path, b""),
                false => durable::remove_file(op, &path),
            };
        }
    }

    fn above_limit_path(&self) -> PathBuf {
        self.directory.join("above-limit")
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn records_directory(&self) -> PathBuf {
        self.directory.join("snapshots")
    }

    fn record_path(&self, id: &SnapshotId) -> PathBuf {
        self.records_directory().join(format!("{id}.json"))
    }

    fn manifest_path(&self, reference: &str) -> PathBuf {
        self.directory.join("manifests").join(reference)
    }

    /// Makes a snapshot durable and visible; its content is there already. `manifest` gives the
    /// bytes of its manifest, where they are needed.
    ///
    /// Where there is a manifest of the same digest, and it is whole, it is not written again; nor
    /// read, if `proof` is what an earlier call answered with and still holds. Answers with the
    /// proof that the manifest is whole, for the next call; `None` if there is none.
    pub(crate) fn publish(
        &self,
        op: &Operation,
        record: &Record,
        proof: Option<EntryStat>,
        manifest: impl FnOnce() -> Result<Vec<u8>, TooLong>,
    ) -> Result<Option<EntryStat>, StoreError> {
        let (proof, is_new) = self.publish_manifest(
            op,
            &record.snapshot.reference,
            proof,
            // The clock that file times are taken from.
            now_ns(rustix::time::ClockId::RealtimeCoarse).saturating_sub(SETTLED_NS),
            manifest,
        )?;
        let text = sealed(serde_json::to_vec(record).expect("a record is plain data"));
        let path = self.record_path(&record.snapshot.id);
        let before = self.last();
        // Whatever was made of an earlier failure: no cancellation is passed over.
        let replaced = op.check().map_err(StoreError::from).and_then(|()| {
            // What says nothing now says nothing after this.
            if before.is_some() {
                self.forget_last(op)?;
            }
            Ok(durable::replace(&op.to_its_end(), &path, &text)?)
        });
        replaced.inspect_err(|_| {
            // It may be there, and only its durability may be in doubt. What was answered with an
            // error must not be found later.
            let _ = durable::remove_file(op, &path);
            if is_new {
                let _ = durable::remove_file(op, &self.manifest_path(&record.snapshot.reference));
            }
        })?;
        self.note_last(op, &record.snapshot.reference, before.as_ref());
        Ok(proof)
    }

    /// A file that was last changed before `settled_ns` is known again by its stat data; that is a
    /// time before this call. Answers with the proof, and with whether it made the file.
    fn publish_manifest(
        &self,
        op: &Operation,
        reference: &str,
        proof: Option<EntryStat>,
        settled_ns: i64,
        manifest: impl FnOnce() -> Result<Vec<u8>, TooLong>,
    ) -> Result<(Option<EntryStat>, bool), StoreError> {
        let path = self.manifest_path(reference);
        // Before the read: what changes it later is seen.
        let found = descriptor::lstat_at(rustix::fs::CWD, path.as_os_str().as_bytes());
        let found = match found {
            Ok(stat) => Some(EntryStat::of(&stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(PathError::at("look at", &path)(errno).into()),
        };
        if proof.is_some() && found == proof {
            return Ok((proof, false));
        }
        let read = durable::read(&path, Manifest::MAX_FILE_BYTES);
        if matches!(read, Ok(Some(bytes)) if Manifest::is_whole(&bytes)) {
            let proof = found.filter(|found| !is_racy(found, settled_ns));
            return Ok((proof, false));
        }
        let bytes = manifest().map_err(|TooLong| match op.check() {
            // It was not encoded to its end.
            Err(interrupted) => StoreError::from(interrupted),
            Ok(()) => {
                let too_long = io::Error::from(io::ErrorKind::FileTooLarge);
                PathError::at("write", &path)(too_long).into()
            }
        })?;
        durable::replace(op, &path, &bytes)?;
        // Read back before anything names it.
        if !durable::holds(&path, &bytes)? {
            let what = format!("manifest {reference}");
            return Err(StoreError::corrupt(what, "it is not what was written"));
        }
        // It is too new to be known again by its stat data.
        Ok((None, found.is_none()))
    }

    /// Whether there is a snapshot of this id, readable or not.
    pub(crate) fn has(&self, id: &SnapshotId) -> bool {
        self.record_path(id).exists()
    }

    /// The record of a snapshot.
    pub(crate) fn record(&self, id: &SnapshotId) -> Result<Record, StoreError> {
        let Some(bytes) = durable::read(&self.record_path(id), MAX_RECORD_BYTES)? else {
            return Err(StoreError::UnknownSnapshot { id: id.clone() });
        };
        let corrupt = |detail| StoreError::corrupt(format!("the record of {id}"), detail);
        let (text, is_sealed) = unsealed(&bytes).ok_or_else(|| corrupt("its checksum is wrong"))?;
        let record = Record::from_json(text, id.as_str())?;
        if record.version > LAST_UNSEALED && !is_sealed {
            return Err(corrupt("its checksum is missing"));
        }
        if record.snapshot.id != *id {
            return Err(corrupt("it is the record of another snapshot"));
        }
        Ok(record)
    }

    /// What there is as a snapshot, oldest first, whether it can be read or not.
    pub(crate) fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        for id in self.ids()? {
            let error = match self.record(&id) {
                Ok(record) => {
                    listing.snapshots.push(record.snapshot);
                    continue;
                }
                // Forgotten since the directory was listed.
                Err(StoreError::UnknownSnapshot { .. }) => continue,
                Err(error) => error,
            };
            let (name, what) = (id.to_string(), id.to_string());
            listing.unreadable.push(match error {
                StoreError::Corrupt { what, detail } => Unreadable {
                    id: Some(id),
                    ..Unreadable::new(name, Problem::new(what, detail))
                },
                error => Unreadable::because(name, Some(id), what, &error),
            });
        }
        let snapshots = &mut listing.snapshots;
        snapshots.sort_by(|a, b| (a.captured_at, &a.id).cmp(&(b.captured_at, &b.id)));
        listing.unreadable.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }

    /// The ids of all snapshots, in no order. No record is read.
    pub(crate) fn ids(&self) -> Result<Vec<SnapshotId>, StoreError> {
        let directory = self.records_directory();
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(PathError::at("list", directory)(e).into()),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(PathError::at("list", &directory))?
                .file_name();
            let id = name
                .to_str()
                .and_then(|n| n.strip_suffix(".json"))
                .map(str::parse);
            ids.extend(id.and_then(Result::ok));
        }
        Ok(ids)
    }

    /// The manifest with this digest; it is checked.
    pub(crate) fn manifest(&self, reference: &str) -> Result<Manifest, StoreError> {
        let what = format!("manifest {reference}");
        let is_name = reference.len() == 64 && reference.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_name {
            return Err(StoreError::corrupt(what, "its id is no digest"));
        }
        let bytes = durable::read(&self.manifest_path(reference), Manifest::MAX_FILE_BYTES)?
            .ok_or_else(|| StoreError::corrupt(&what, "it is missing"))?;
        let manifest = Manifest::decode(&bytes, &what)?;
        if manifest.digest().to_hex().as_str() != reference {
            return Err(StoreError::corrupt(
                what,
                "its content is another manifest's",
            ));
        }
        Ok(manifest)
    }

    /// Everything that keeps `record` from being put back, and the paths whose content was purged.
    /// Content that is `proven` is not read again, and what is read and right is added to it.
    pub(crate) fn verify(
        &self,
        op: &Operation,
        record: &Record,
        purged: &Purged,
        proven: &mut HashSet<ContentId>,
    ) -> Result<(Vec<Problem>, Vec<RelPath>), StoreError> {
        let manifest = match self.manifest(&record.snapshot.reference) {
            Ok(manifest) => manifest,
            Err(StoreError::Corrupt { what, detail }) => {
                return Ok((vec![Problem::new(what, detail)], Vec::new()));
            }
            Err(error) => return Err(error),
        };
        let (mut problems, mut gone) = (Vec::new(), Vec::new());
        if !record.has_content {
            return Ok((problems, gone));
        }
        let mut seen = HashSet::new();
        for (path, entry) in manifest.items().iter().filter_map(|i| i.content()) {
            op.check()?;
            if purged.contains(&entry.id) {
                gone.push(path.clone());
                continue;
            }
            if proven.contains(&entry.id) || !seen.insert(entry.id) {
                continue;
            }
            match self.content.write_to(op, &entry.id, &mut io::sink()) {
                Ok(_) => _ = proven.insert(entry.id),
                Err(ContentError::Store(StoreError::Corrupt { what, detail })) => {
                    problems.push(Problem::new(what, detail));
                }
                Err(ContentError::Store(error)) => return Err(error),
                Err(ContentError::Sink(_)) => unreachable!("nothing is written anywhere"),
            }
        }
        Ok((problems, gone))
    }

    /// Finds what is wanted in the manifests of all snapshots.
    pub(crate) fn find_content(
        &self,
        op: &Operation,
        wanted: &Wanted,
        purged: &Purged,
    ) -> Result<FoundContents, PurgeError> {
        let mut unreadable = Vec::new();
        // With their lengths: of a snapshot without content nothing else tells them.
        let mut contents = BTreeMap::new();
        let mut manifests = Vec::new();
        let mut kept = BTreeSet::new();
        let mut ids = self.ids()?;
        ids.sort();
        for id in ids {
            op.check().map_err(StoreError::from)?;
            let read = self.record(&id).and_then(|record| {
                let manifest = self.manifest(&record.snapshot.reference)?;
                Ok((
                    record.snapshot.captured_at,
                    record.snapshot.reference,
                    manifest,
                ))
            });
            let (at, reference, manifest) = match read {
                Ok(read) => read,
                Err(error @ (StoreError::Io(_) | StoreError::Interrupted(_))) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let problem = Problem::new(id.to_string(), error.to_string());
                    unreadable.push(problem);
                    continue;
                }
            };
            for item in manifest.items() {
                let Some((path, entry)) = item.content() else {
                    continue;
                };
                if !wanted.has(&entry.id) && !wanted.names(path) {
                    continue;
                }
                match is_empty_content(&entry.id) {
                    true => drop(kept.insert(path.clone())),
                    false => drop(contents.insert(entry.id, item.bytes())),
                }
            }
            manifests.push((at, id, reference));
        }
        manifests.sort();
        let mut places = Places::default();
        for (_, id, reference) in manifests {
            op.check().map_err(StoreError::from)?;
            let manifest = self.manifest(&reference)?;
            let mut count = 0;
            for (path, entry) in manifest.items().iter().filter_map(|i| i.content()) {
                if contents.contains_key(&entry.id) {
                    places.add(entry.id, path, wanted.names(path));
                    count += 1;
                }
            }
            places.add_snapshot(&id, count);
        }
        let mut found = places.into_found(purged, |id| self.content.other_id(op, id))?;
        for content in &mut found.contents {
            content.bytes = content.bytes.or(contents[&content.id]);
        }
        let reason = "empty";
        let kept = kept.into_iter();
        found.kept = kept.map(|path| KeptContent { path, reason }).collect();
        found.unreadable = unreadable;
        Ok(found)
    }

    /// Forgets snapshots; an id that is not there is no error, so that it is safe to repeat.
    pub(crate) fn forget(&self, op: &Operation, ids: &[SnapshotId]) -> Result<(), StoreError> {
        // Records may come and go within one tick of the clock that tells of it.
        if self.last().is_some() {
            self.forget_last(op)?;
        }
        for id in ids {
            durable::remove_file(op, &self.record_path(id))?;
        }
        let directory = self.records_directory();
        if directory.exists() {
            durable::sync_directory(op, &directory)?;
        }
        Ok(())
    }

    /// Removes manifests and content that no snapshot names. While a record cannot be read nothing
    /// is removed: what it names is not known.
    pub(crate) fn collect(&self, op: &Operation) -> Result<u64, StoreError> {
        let mut manifests = HashSet::new();
        let mut live = HashSet::new();
        for id in self.ids()? {
            op.check()?;
            let record = self.record(&id)?;
            if record.has_content {
                let manifest = self.manifest(&record.snapshot.reference)?;
                live.extend(
                    manifest
                        .items()
                        .iter()
                        .filter_map(|i| i.content())
                        .filter_map(|(_, entry)| content::digest(&entry.id)),
                );
            }
            manifests.insert(record.snapshot.reference);
        }
        let mut freed = self.content.retain(op, &live)?;
        freed += self.remove_half_made(op)?;
        let directory = self.directory.join("manifests");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(freed),
            Err(e) => return Err(PathError::at("list", directory)(e).into()),
        };
        for entry in entries {
            let entry = entry.map_err(PathError::at("list", &directory))?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|n| manifests.contains(n)) {
                continue;
            }
            op.check()?;
            freed += entry.metadata().map_or(0, |m| m.len());
            durable::remove_file(op, &entry.path())?;
        }
        Ok(freed)
    }

    /// Removes records that a killed capture left before they had their names.
    fn remove_half_made(&self, op: &Operation) -> Result<u64, StoreError> {
        let directory = self.records_directory();
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(PathError::at("list", directory)(e).into()),
        };
        let mut freed = 0;
        for entry in entries {
            let entry = entry.map_err(PathError::at("list", &directory))?;
            let name = entry.file_name();
            if name
                .as_bytes()
                .starts_with(durable::STAGED_PREFIX.as_bytes())
            {
                freed += entry.metadata().map_or(0, |m| m.len());
                durable::remove_file(op, &entry.path())?;
            }
        }
        Ok(freed)
    }

    /// The bytes of everything that the store holds.
    pub(crate) fn bytes(&self) -> Result<u64, StoreError> {
        let mut total = self.content.bytes()?;
        for part in ["snapshots", "manifests"] {
            if let Ok(entries) = fs::read_dir(self.directory.join(part)) {
                total += entries
                    .flatten()
                    .filter_map(|e| e.metadata().ok())
                    .map(|m| m.len())
                    .sum::<u64>();
            }
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::hash::manifest::Listing;

    #[test]
    fn a_manifest_is_read_again_unless_its_file_is_the_one_that_was_whole() {
        let home = tempfile::tempdir().unwrap();
        let store = HashStore::below(home.path());
        store.create(&Operation::unbounded()).unwrap();
        let cache = Default::default();
        let whole = Listing::of(&Operation::unbounded(), &cache)
            .encode()
            .unwrap();
        let path = store.manifest_path("name");
        let made = Cell::new(0);
        let publish = |proof, settled_ns| {
            let made_before = made.get();
            let manifest = || {
                made.set(made_before + 1);
                Ok(whole.clone())
            };
            let proof = store.publish_manifest(
                &Operation::unbounded(),
                "name",
                proof,
                settled_ns,
                manifest,
            );
            (proof.unwrap().0, made.get() > made_before)
        };
        // Another file in its place has another inode.
        let replace = |bytes: &[u8]| {
            fs::write(home.path().join("other"), bytes).unwrap();
            fs::rename(home.path().join("other"), &path).unwrap();
        };
        let (long_ago, later) = (i64::MIN, i64::MAX);

        assert_eq!(publish(None, later), (None, true), "there was none");
        assert_eq!(fs::read(&path).unwrap(), whole);
        let too_new = publish(None, long_ago);
        assert_eq!(too_new, (None, false), "it may still change in this tick");
        let (proof, is_made) = publish(None, later);
        assert!(proof.is_some() && !is_made);
        assert_eq!(publish(proof, later), (proof, false));

        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        replace(&damaged);
        assert_eq!(publish(proof, later), (None, true), "it is another file");
        assert_eq!(fs::read(&path).unwrap(), whole);

        let (proof, _) = publish(None, later);
        fs::remove_file(&path).unwrap();
        assert_eq!(publish(proof, later), (None, true), "it is gone");
        assert_eq!(fs::read(&path).unwrap(), whole);

        // What is proven is not read.
        fs::write(&path, &damaged).unwrap();
        let now = descriptor::lstat_at(rustix::fs::CWD, path.as_os_str().as_bytes()).unwrap();
        let now = Some(EntryStat::of(&now));
        assert_eq!(publish(now, later), (now, false));
    }
}
