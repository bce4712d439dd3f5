//! Where the hash backend keeps its snapshots.
//!
//! A snapshot is there once its record is: manifest and content come first.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::backend::{Problem, StoreError};
use crate::codec::TooLong;
use crate::error::PathError;
use crate::hash::content::{self, ContentStore};
use crate::hash::manifest::{Listing, Manifest};
use crate::record::{MAX_RECORD_BYTES, Record};
use crate::restore::ContentError;
use crate::snapshot::SnapshotId;
use crate::workspace::{Workspace, make_private};
use crate::worktree::durable;

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
    pub(crate) fn create(&self) -> Result<(), PathError> {
        if self.content.is_made() {
            return Ok(());
        }
        make_private(&self.directory.join("snapshots"))?;
        make_private(&self.directory.join("manifests"))?;
        durable::sync_directory(&self.directory)?;
        // Before the last one, which says that all of this is done.
        durable::sync_above(&self.directory)?;
        self.content.create()?;
        durable::sync_directory(&self.directory)
    }

    fn record_path(&self, id: &SnapshotId) -> PathBuf {
        self.directory.join("snapshots").join(format!("{id}.json"))
    }

    fn manifest_path(&self, reference: &str) -> PathBuf {
        self.directory.join("manifests").join(reference)
    }

    /// Makes a snapshot durable and visible; its content is there already.
    ///
    /// Where there is a manifest of the same digest, and it is whole, it is not written again.
    pub(crate) fn publish(
        &self,
        record: &Record,
        manifest: &Listing<'_>,
    ) -> Result<(), StoreError> {
        let path = self.manifest_path(&record.snapshot.reference);
        let read = || durable::read(&path, Manifest::MAX_FILE_BYTES);
        let is_there = matches!(read(), Ok(Some(bytes)) if Manifest::is_whole(&bytes));
        if !is_there {
            let bytes = manifest
                .encode()
                .map_err(|TooLong| io::Error::from(io::ErrorKind::FileTooLarge))
                .map_err(PathError::at("write", &path))?;
            durable::replace(&path, &bytes)?;
            // Read back before anything names it.
            if read()?.is_none_or(|found| found != bytes) {
                let what = format!("manifest {}", record.snapshot.reference);
                return Err(StoreError::corrupt(what, "it is not what was written"));
            }
        }
        let text = serde_json::to_vec(record).expect("a record is plain data");
        let path = self.record_path(&record.snapshot.id);
        durable::replace(&path, &text).inspect_err(|_| {
            // It may be there, and only its durability may be in doubt. What was answered with an
            // error must not be found later.
            let _ = durable::remove_file(&path);
        })?;
        Ok(())
    }

    /// Whether there is a snapshot of this id, readable or not.
    pub(crate) fn has(&self, id: &SnapshotId) -> bool {
        self.record_path(id).exists()
    }

    /// The record of a snapshot.
    pub(crate) fn record(&self, id: &SnapshotId) -> Result<Record, StoreError> {
        match durable::read(&self.record_path(id), MAX_RECORD_BYTES)? {
            Some(text) => Record::from_json(&text, id.as_str()),
            None => Err(StoreError::UnknownSnapshot { id: id.clone() }),
        }
    }

    /// All records that can be read, oldest first.
    pub(crate) fn records(&self) -> Result<Vec<Record>, StoreError> {
        let mut records: Vec<Record> = Vec::new();
        for id in self.ids()? {
            match self.record(&id) {
                Ok(record) => records.push(record),
                // `verify` names it.
                Err(StoreError::Corrupt { .. } | StoreError::VersionTooNew { .. }) => {}
                // Forgotten since the directory was listed.
                Err(StoreError::UnknownSnapshot { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        records.sort_by(|a, b| {
            (a.snapshot.captured_at, &a.snapshot.id).cmp(&(b.snapshot.captured_at, &b.snapshot.id))
        });
        Ok(records)
    }

    /// The ids of all snapshots, in no order.
    fn ids(&self) -> Result<Vec<SnapshotId>, StoreError> {
        let directory = self.directory.join("snapshots");
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

    /// Everything that keeps `record` from being put back.
    pub(crate) fn verify(&self, record: &Record) -> Result<Vec<Problem>, StoreError> {
        let manifest = match self.manifest(&record.snapshot.reference) {
            Ok(manifest) => manifest,
            Err(StoreError::Corrupt { what, detail }) => {
                return Ok(vec![Problem::new(what, detail)]);
            }
            Err(error) => return Err(error),
        };
        if !record.has_content {
            return Ok(Vec::new());
        }
        let mut problems = Vec::new();
        let mut seen = HashSet::new();
        for (_, entry) in manifest.items().iter().filter_map(|i| i.content()) {
            if !seen.insert(entry.id) {
                continue;
            }
            match self.content.write_to(&entry.id, &mut io::sink()) {
                Ok(_) => {}
                Err(ContentError::Store(StoreError::Corrupt { what, detail })) => {
                    problems.push(Problem::new(what, detail));
                }
                Err(ContentError::Store(error)) => return Err(error),
                Err(ContentError::Sink(_)) => unreachable!("nothing is written anywhere"),
            }
        }
        Ok(problems)
    }

    /// Forgets snapshots; an id that is not there is no error, so that it is safe to repeat.
    pub(crate) fn forget(&self, ids: &[SnapshotId]) -> Result<(), StoreError> {
        for id in ids {
            durable::remove_file(&self.record_path(id))?;
        }
        let directory = self.directory.join("snapshots");
        if directory.exists() {
            durable::sync_directory(&directory)?;
        }
        Ok(())
    }

    /// Removes manifests and content that no snapshot names. While a record cannot be read nothing
    /// is removed: what it names is not known.
    pub(crate) fn collect(&self) -> Result<u64, StoreError> {
        let mut manifests = HashSet::new();
        let mut live = HashSet::new();
        for id in self.ids()? {
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
        let mut freed = self.content.retain(&live)?;
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
            freed += entry.metadata().map_or(0, |m| m.len());
            durable::remove_file(&entry.path())?;
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
