//! The port beside [`Backend`](crate::Backend): one snapshot that is in a store.

use std::io::Write;
use std::slice;

use crate::backend::Why;
use crate::capture_rules::CaptureRules;
use crate::contents::ContentError;
use crate::coverage::{Omission, OmissionReason};
use crate::listed::{self, ListedFile};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::read_error::ReadError;
use crate::record::Record;
use crate::restore::{self, CopyOptions, CopyOutcome, Node, Restorable, Side, View};
use crate::restore_error::RestoreError;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::store_error::StoreError;
use crate::tree::Entry;
use crate::workspace::{LockedWorkspace, Workspace};

/// A snapshot in a store: what [`Backend::open`](crate::Backend::open) answers with. Every backend
/// implements it. The engine calls it to say what a snapshot has, and how it was taken.
pub trait StoredSnapshot {
    /// Says whether the snapshot has `path`, and why or why not.
    fn why(&self, op: &Operation, path: &RelPath) -> Result<Why, StoreError>;

    /// What the host asked for when it was captured, as far as that is stored with it.
    ///
    /// Default: nothing is known.
    fn rules(&self) -> CaptureRules {
        CaptureRules::default()
    }

    /// Whether `later` has nothing that this one has not: the same files, links, empty directories
    /// and permission bits, captured by the same rules, with the same left out; of a repository the
    /// same HEAD, the same that is staged, and the same operation in progress. What a capture cost,
    /// and what git notes in its index of the files' times, does not count.
    ///
    /// Default: no, so that nothing is taken for unchanged.
    fn is_unchanged(&self, op: &Operation, later: &Snapshot) -> Result<bool, StoreError> {
        let _ = (op, later);
        Ok(false)
    }

    /// Everything that the snapshot has, sorted by path. No content is read, nor has any to be
    /// kept.
    ///
    /// Default: [`StoreError::Unsupported`].
    fn files(&self, op: &Operation) -> Result<Vec<ListedFile>, StoreError> {
        let _ = op;
        let refused = "the backend does not list files";
        Err(StoreError::Unsupported(refused.to_owned()))
    }

    /// Writes what the snapshot has at `path` to `out`: the bytes of a file, or the text of a link,
    /// and answers with what it is. They are checked against the id; what was written before an
    /// error is not to be used.
    ///
    /// Default: [`StoreError::Unsupported`].
    fn read_file(
        &self,
        op: &Operation,
        path: &RelPath,
        out: &mut dyn Write,
    ) -> Result<Entry, ReadError> {
        let _ = (op, path, out);
        let refused = "the backend does not hand out files";
        Err(StoreError::Unsupported(refused.to_owned()).into())
    }

    /// Puts what the snapshot has into a directory that is new or empty, elsewhere: all that is
    /// asked for, or nothing. Files, links, empty directories and permission bits are as a restore
    /// makes them, and content is checked as it is read. `workspace` is the one that the snapshot
    /// was opened in. It is locked so that nothing is removed from its store meanwhile, and nothing
    /// of it is touched.
    ///
    /// The copy is made beside the directory, in a directory with a name of our own, and renamed
    /// last. If the process is killed before that, this other directory is left, and the target is
    /// as it was.
    ///
    /// Default: [`RestoreError::Unsupported`].
    fn copy(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &CopyOptions,
    ) -> Result<CopyOutcome, RestoreError> {
        let _ = (op, workspace, options);
        let refused = "the backend cannot put a snapshot elsewhere";
        Err(RestoreError::Unsupported(refused.to_owned()))
    }
}

/// What [`Stored`] needs of a backend beside what a restore needs. Both backends of this crate
/// implement it.
pub(crate) trait ReadStored: Restorable {
    /// The store of a workspace, which stays open with the snapshot.
    type Store;

    /// As [`Restorable::record`].
    fn record_in(
        &self,
        op: &Operation,
        store: &Self::Store,
        id: &SnapshotId,
    ) -> Result<Record, StoreError>;

    /// As [`Restorable::entries`], with the size of each, as far as the store tells it.
    fn sized_entries(
        &self,
        op: &Operation,
        store: &Self::Store,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry, Option<u64>)>, StoreError>;

    /// See [`StoredSnapshot::why`].
    fn why_in(
        &self,
        op: &Operation,
        stored: &Stored<'_, Self>,
        path: &RelPath,
    ) -> Result<Why, StoreError>;

    /// Whether the repository around the files stood the same. Default: there is none.
    fn is_repository_unchanged(
        &self,
        op: &Operation,
        store: &Self::Store,
        earlier: &Record,
        later: &Record,
    ) -> Result<bool, StoreError> {
        let _ = (op, store, earlier, later);
        Ok(true)
    }
}

/// A snapshot of one of this crate's backends.
pub(crate) struct Stored<'a, B: ReadStored + ?Sized> {
    pub(crate) backend: &'a B,
    pub(crate) workspace: &'a Workspace,
    pub(crate) store: B::Store,
    pub(crate) record: Record,
}

impl<B: ReadStored> Stored<'_, B> {
    /// The file or link at `path`.
    fn entry_at(&self, op: &Operation, path: &RelPath) -> Result<Entry, ReadError> {
        let record = &self.record;
        let found = match path.is_root() {
            true => Some(Node::Directory),
            false => self
                .backend
                .lookup(
                    op,
                    self.workspace,
                    Side::Stored(record),
                    slice::from_ref(path),
                )?
                .pop()
                .flatten(),
        };
        let is_empty_directory = || View::of(record).has_empty_at_or_below(path);
        let (snapshot, path) = (record.snapshot.id.clone(), path.clone());
        match found {
            Some(Node::Entry(entry)) => Ok(entry),
            Some(Node::Directory) => Err(ReadError::Directory { snapshot, path }),
            None if is_empty_directory() => Err(ReadError::Directory { snapshot, path }),
            None => Err(match record.snapshot.omissions.covers(&path).cloned() {
                None => ReadError::UnknownPath { snapshot, path },
                Some(omission) => ReadError::OmittedPath {
                    snapshot,
                    path,
                    omission,
                },
            }),
        }
    }
}

impl<B: ReadStored> StoredSnapshot for Stored<'_, B> {
    fn why(&self, op: &Operation, path: &RelPath) -> Result<Why, StoreError> {
        self.backend.why_in(op, self, path)
    }

    fn rules(&self) -> CaptureRules {
        self.record.rules()
    }

    fn is_unchanged(&self, op: &Operation, later: &Snapshot) -> Result<bool, StoreError> {
        let (backend, store, earlier) = (self.backend, &self.store, &self.record);
        let later = backend.record_in(op, store, &later.id)?;
        Ok(earlier.has_the_same(&later)
            && backend.is_repository_unchanged(op, store, earlier, &later)?)
    }

    fn files(&self, op: &Operation) -> Result<Vec<ListedFile>, StoreError> {
        let record = &self.record;
        let entries = self.backend.sized_entries(op, &self.store, record)?;
        Ok(listed::list(record, entries))
    }

    fn read_file(
        &self,
        op: &Operation,
        path: &RelPath,
        out: &mut dyn Write,
    ) -> Result<Entry, ReadError> {
        let entry = self.entry_at(op, path)?;
        let (snapshot, path) = (self.record.snapshot.id.clone(), path.clone());
        if Purged::of(self.workspace)?.contains(&entry.id) {
            let omission = Omission {
                path: path.clone(),
                reason: OmissionReason::Purged,
                bytes: None,
                kind: None,
            };
            return Err(ReadError::OmittedPath {
                snapshot,
                path,
                omission,
            });
        }
        if !self.record.has_content {
            return Err(ReadError::NoContent { snapshot });
        }
        let contents = self.backend.contents(op, self.workspace, &[entry.id])?;
        contents
            .write(&entry.id, out)
            .map_err(|error| match error {
                ContentError::Store(error) => ReadError::Store(error),
                ContentError::Sink(error) => ReadError::Sink(error),
            })?;
        Ok(entry)
    }

    fn copy(
        &self,
        op: &Operation,
        workspace: &LockedWorkspace,
        options: &CopyOptions,
    ) -> Result<CopyOutcome, RestoreError> {
        restore::copy(op, self.backend, workspace, &self.record, options)
    }
}
