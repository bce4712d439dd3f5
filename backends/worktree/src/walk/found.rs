//! The result of one thread of a walk.

use rustix::fs::FileType;

use crate::coverage::{Omission, OmissionReason, OmittedKind};
use crate::descriptor::Stat;
use crate::path::RelPath;
use crate::stat_cache::{Directories, Flags, StatCache};
use crate::tree::{ContentId, Entry};

use super::building::{Building, Known};

/// A name of a file that has several, some of which may lie outside of the workspace.
#[derive(Clone, Debug)]
pub struct Link {
    /// One of its names.
    pub path: RelPath,
    /// The device that holds it.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// What one thread found.
#[derive(Default)]
pub(super) struct Found {
    /// The directories that the cache does not have, or not so.
    pub(super) directories: Directories,
    /// The same, of those of which only a part was looked at.
    pub(super) partly: Directories,
    /// The directories that were looked for and not read: gone, or omitted.
    pub(super) gone: Vec<RelPath>,
    /// The directories that were read with all that is below them, though only some were to be.
    pub(super) anew: Vec<RelPath>,
    pub(super) omissions: Vec<Omission>,
    pub(super) left_index: Vec<(RelPath, ContentId)>,
    pub(super) not_left_out: Vec<(RelPath, Entry)>,
    pub(super) adopted: Vec<[u8; 20]>,
    /// Captured names of files that have several.
    pub(super) links: Vec<Link>,
    /// Whether any content was read.
    pub(super) has_read: bool,
    /// How many names were looked at.
    pub(super) looked_at: u64,
}

impl Found {
    pub(super) fn absorb(&mut self, other: Self) {
        if self.directories.is_empty() {
            self.directories = other.directories;
        } else {
            self.directories.extend(other.directories);
        }
        self.partly.extend(other.partly);
        self.gone.extend(other.gone);
        self.anew.extend(other.anew);
        self.omissions.extend(other.omissions);
        self.left_index.extend(other.left_index);
        self.not_left_out.extend(other.not_left_out);
        self.adopted.extend(other.adopted);
        self.links.extend(other.links);
        self.has_read |= other.has_read;
        self.looked_at += other.looked_at;
    }

    /// Notes that an id is git's index's. That has no other than SHA-1.
    pub(super) fn adopt(&mut self, id: ContentId) {
        if let ContentId::Sha1(id) = id {
            self.adopted.push(id);
        }
    }

    /// Notes that `path` was captured, if it may not be the only name of the file.
    pub(super) fn note_links(&mut self, path: impl FnOnce() -> RelPath, stat: &Stat) {
        if stat.links > 1 && stat.file_type() == FileType::RegularFile {
            self.links.push(Link {
                path: path(),
                device: stat.device,
                inode: stat.inode,
            });
        }
    }

    /// `stat`: what was seen at `path`, where anything was.
    pub(super) fn omit(&mut self, path: RelPath, reason: OmissionReason, stat: Option<&Stat>) {
        let is_file = |stat: &&Stat| stat.file_type() == FileType::RegularFile;
        self.omissions.push(Omission {
            path,
            reason,
            bytes: stat.filter(is_file).map(|stat| stat.size),
            kind: stat.and_then(|stat| match stat.file_type() {
                FileType::Directory => Some(OmittedKind::Directory),
                FileType::Symlink => Some(OmittedKind::Link),
                _ => None,
            }),
        });
    }

    /// Remembers an entry of the index that is known not to be on disk.
    pub(super) fn keep_absent(
        &mut self,
        cache: &StatCache,
        directory: &RelPath,
        known: &Known<'_>,
        into: &mut Building<'_>,
    ) {
        let entry = known.entry;
        if !entry.flags.has(Flags::TRACKED) {
            return;
        }
        let path = directory.join(known.name);
        let mut kept = entry.clone();
        kept.flags = kept.flags.with(Flags::ABSENT).without(Flags::UNSEEN);
        if entry.flags.has(Flags::SPARSE)
            && let Some(indexed) = cache.not_left_out.get(&path)
        {
            (kept.kind, kept.id) = (indexed.kind, indexed.id);
            kept.flags = kept.flags.with(Flags::AS_INDEXED);
        }
        if entry.flags.has(Flags::SPARSE) {
            self.adopt(kept.id);
            self.omit(path, OmissionReason::Sparse, None);
        } else if entry.flags.has(Flags::AS_INDEXED) {
            self.left_index.push((path, entry.id));
            kept.flags = kept.flags.without(Flags::AS_INDEXED);
        }
        into.keep(known, kept);
    }

    /// Remembers an entry of the index that could not be looked at, or in whose place lies
    /// something that is captured or omitted instead.
    pub(super) fn keep_unseen(
        &mut self,
        directory: &RelPath,
        known: &Known<'_>,
        into: &mut Building<'_>,
    ) {
        let entry = known.entry;
        if !entry.flags.has(Flags::TRACKED) {
            return;
        }
        let mut kept = entry.clone();
        kept.flags = kept.flags.with(Flags::ABSENT).with(Flags::UNSEEN);
        if entry.flags.has(Flags::AS_INDEXED) {
            self.left_index.push((directory.join(known.name), entry.id));
            kept.flags = kept.flags.without(Flags::AS_INDEXED);
        }
        into.keep(known, kept);
    }
}
