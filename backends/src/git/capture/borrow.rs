//! Which objects a capture takes from the user's repository, and which files it reads because
//! neither the repository nor the store has their content.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use super::sink::GitSink;
use super::{Request, Setting};
use rustix::io::Errno;

use crate::coverage::{Omission, OmissionReason};
use crate::error::PathError;
use crate::git::object_id::sha1;
use crate::git::repository::UserRepository;
use crate::git::trees::Trees;
use crate::git::{ObjectId, index};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot_error::SnapshotError;
use crate::tree::{ContentId, EntryKind};
use crate::worktree::memory::Base;
use crate::worktree::read::{self, Reading, SinkError};
use crate::worktree::root::{self, Root};
use crate::worktree::stat_cache::{CachedEntry, Directories, EntryStat, Flags, StatCache};
use crate::worktree::walk::Walked;

/// Up to this many staged blobs are looked up again although earlier captures saw them, because
/// that costs almost nothing.
const MAX_STAGED_LOOKED_FOR: usize = 1000;

fn object_dirs(repository: Option<&UserRepository>) -> Result<Vec<PathBuf>, SnapshotError> {
    Ok(repository
        .map(UserRepository::object_dirs)
        .transpose()?
        .unwrap_or_default())
}

impl Setting<'_> {
    /// Makes sure that every object of the capture is in the store, or will be with its pack.
    ///
    /// A file whose object the repository lacks, as in a partial clone, is read like a changed one.
    pub(super) fn borrow(
        &self,
        base: &Base,
        walked: &mut Walked,
        build: impl Fn(&mut Walked) -> Result<Trees, SnapshotError>,
    ) -> Result<Trees, SnapshotError> {
        let Request { store, options, .. } = self.request;
        let adopted = std::mem::take(&mut walked.adopted).into_iter();
        // In place: there is one for each file.
        let mut wanted: Vec<ObjectId> = adopted.map(ObjectId).collect();
        let mut trees = build(walked)?;
        let missing: Vec<ObjectId> = if wanted.is_empty() {
            // Trees alone are not looked for in the repository: they are at hand.
            Vec::new()
        } else {
            wanted.extend(trees.new.keys());
            let object_dirs = object_dirs(self.repository)?;
            store
                .borrow(self.request.op, &object_dirs, wanted, options.borrow)?
                .missing
        };
        let lost: HashSet<ObjectId> = missing
            .into_iter()
            .filter(|id| !trees.new.contains_key(id))
            .collect();
        if !lost.is_empty() {
            self.read_anew(&lost, &base.cache.directories, walked)?;
            trees = build(walked)?;
        }
        let ids: Vec<ObjectId> = trees.new.keys().copied().collect();
        let missing: HashSet<ObjectId> = store.missing(self.request.op, ids)?.into_iter().collect();
        trees.new.retain(|id, _| missing.contains(id));
        Ok(trees)
    }

    /// Reads the files whose objects are lost.
    fn read_anew(
        &self,
        lost: &HashSet<ObjectId>,
        before: &Directories,
        walked: &mut Walked,
    ) -> Result<(), SnapshotError> {
        let op = self.request.op;
        let is_lost = |entry: &CachedEntry| {
            entry.is_captured() && sha1(&entry.id).is_some_and(|id| lost.contains(&id))
        };
        let mut paths = Vec::new();
        for (directory, cached) in walked.delta.iter(before) {
            let entries = cached.entries.iter().filter(|(_, entry)| is_lost(entry));
            paths.extend(entries.map(|(name, entry)| (directory.join(name), entry.id)));
        }
        let anew = Anew {
            root: self.root,
            sink: self.sink,
            before,
            op,
        };
        for (path, id) in paths {
            op.check()?;
            anew.read(walked, &path, id)?;
        }
        Ok(())
    }

    /// The blobs that only the user's index names, as far as anybody has them, but for what was
    /// purged. Of very many it is believed, where `believes` says so, that the store has those that
    /// it had.
    pub(super) fn staged(
        &self,
        cache: &StatCache,
        believes: bool,
    ) -> Result<Vec<ObjectId>, SnapshotError> {
        let Request { store, options, .. } = self.request;
        // Sorted.
        let seen = match believes {
            true => store.last_published_staged(self.request.op),
            false => Vec::new(),
        };
        let mut ids: Vec<ObjectId> = index::only_in_index(cache)
            .iter()
            .filter_map(sha1)
            .collect();
        let is_many = ids.len() > MAX_STAGED_LOOKED_FOR;
        let unseen = ids
            .iter()
            .filter(|id| !is_many || seen.binary_search(id).is_err());
        let unseen: Vec<ObjectId> = unseen.copied().collect();
        if !unseen.is_empty() {
            let object_dirs = object_dirs(self.repository)?;
            let missing = store
                .borrow(self.request.op, &object_dirs, unseen, options.borrow)?
                .missing;
            ids.retain(|id| missing.binary_search(id).is_err());
        }
        ids.retain(|id| !self.sink.purged.contains(&(*id).into()));
        Ok(ids)
    }
}

/// Reads files that looked unchanged, because nobody has the objects that the index names for them.
struct Anew<'a, 's> {
    root: &'a Root,
    sink: &'a GitSink<'s>,
    before: &'a Directories,
    op: &'a Operation,
}

impl Anew<'_, '_> {
    fn read(
        &self,
        walked: &mut Walked,
        path: &RelPath,
        indexed: ContentId,
    ) -> Result<(), SnapshotError> {
        let directory = path
            .parent()
            .and_then(|parent| walked.delta.get_mut(self.before, &parent))
            .expect("an adopted entry lies in a directory that was walked");
        let at = directory.entries.find(path.name());
        let at = at.expect("an adopted entry was kept");
        let entry = directory.entries.entry_mut(at);
        if entry.flags.has(Flags::ABSENT) {
            // A sparse checkout of a partial clone: neither the file nor its object is here.
            entry.flags = entry.flags.with(Flags::UNSEEN);
            return Ok(());
        }
        let unreadable = |operation, source: std::io::Error| SnapshotError::Unreadable {
            context: format!("{path} could not be read"),
            source: PathError::at(operation, self.root.disk_path(path))(source),
        };
        let reading = match self.root.open_parent(path) {
            Ok((parent, name)) => match entry.kind {
                EntryKind::Symlink => read::link(parent.as_fd(), name, self.sink),
                _ => read::file(self.op, parent.as_fd(), name, self.sink),
            }
            .map_err(|error| match error {
                SinkError::Sink(error) => error,
                SinkError::Read(source) => unreadable("read", source),
            })?,
            Err(errno) if root::is_gone_or_replaced(errno) => Reading::Replaced,
            Err(Errno::ACCESS | Errno::PERM) => Reading::Omitted(OmissionReason::Unreadable),
            Err(errno) => return Err(unreadable("open", errno.into())),
        };
        let reason = match reading {
            Reading::Read { id, bytes, .. } if self.sink.purged.contains(&id) => {
                walked.files_hashed += 1;
                walked.bytes_read += bytes;
                OmissionReason::Purged
            }
            Reading::Read { id, stat, bytes } => {
                walked.files_hashed += 1;
                walked.bytes_read += bytes;
                entry.id = id;
                entry.stat = EntryStat::of(&stat);
                // It was clean a moment ago; the next capture looks again.
                entry.flags = entry.flags.with(Flags::RACY);
                if id != indexed && entry.flags.has(Flags::AS_INDEXED) {
                    entry.flags = entry.flags.without(Flags::AS_INDEXED);
                    walked.left_index.push((path.clone(), indexed));
                }
                return Ok(());
            }
            Reading::Replaced => OmissionReason::Unstable,
            Reading::Omitted(reason) => reason,
        };
        entry.flags = entry.flags.with(Flags::ABSENT).with(Flags::UNSEEN);
        if entry.flags.has(Flags::AS_INDEXED) {
            entry.flags = entry.flags.without(Flags::AS_INDEXED);
            walked.left_index.push((path.clone(), indexed));
        }
        let bytes = Some(entry.stat.size);
        // It is there, and no entry says so: the next capture has to list the directory.
        directory.listed = None;
        let omission = Omission {
            path: path.clone(),
            reason,
            bytes,
            kind: None,
        };
        walked.omissions.insert(path.clone(), omission);
        Ok(())
    }
}
