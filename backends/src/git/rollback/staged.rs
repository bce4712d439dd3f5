//! What an index stages, and the objects that it takes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::directory::{open_directory, read_file};
use super::{MAX_INDEX_BYTES, PutError};
use crate::backend::StoreError;
use crate::error::PathError;
use crate::git::history;
use crate::git::loose_writer::LooseWriter;
use crate::git::user_index::{self, IndexError};
use crate::git::{ObjectId, ObjectKind};
use crate::regular_file::open_regular;
use crate::worktree::durable::{STAGED_PREFIX, StagedFile};

/// A commit of more is none that anybody wrote.
const MAX_COMMIT_BYTES: usize = 16 << 20;

/// Nobody borrows from more directories of objects.
const MAX_ALTERNATES: usize = 100;
/// A list of alternates of more is none that anybody wrote.
const MAX_ALTERNATES_BYTES: u64 = 64 << 10;

/// Flags of an entry; what is left out is the length of the name and a format bit.
const ASSUME_UNCHANGED: u16 = 0x8000;
const STAGE: u16 = 0x3000;
/// Extended flags of an entry.
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;

/// Path, id, mode, flags and extended flags of an entry in the index.
type StagedEntry = (Vec<u8>, ObjectId, u32, u16, u16);

/// A digest of what an index stages, without stat data; `None` if that cannot be read from these bytes alone. It is
/// the same whether or not git wrote the index as a sparse one, unless that has a directory in the place of its files.
pub(crate) fn staging_digest(scratch: &Path, bytes: &[u8]) -> Result<Option<[u8; 32]>, PathError> {
    let entries = staged_entries(scratch, bytes)?;
    let Some(entries) = entries.or_else(|| entries_of_sparse(bytes)) else {
        return Ok(None);
    };
    let mut hasher = blake3::Hasher::new();
    for (path, id, mode, flags, extended_flags) in entries {
        hasher
            .update(&(path.len() as u64).to_le_bytes())
            .update(&path)
            .update(&id.0)
            .update(&mode.to_le_bytes())
            .update(&flags.to_le_bytes())
            .update(&extended_flags.to_le_bytes());
    }
    Ok(Some(*hasher.finalize().as_bytes()))
}

/// What an index stages; `None` if libgit2 cannot read it.
fn staged_entries(scratch: &Path, bytes: &[u8]) -> Result<Option<Vec<StagedEntry>>, PathError> {
    const FLAGS: u16 = ASSUME_UNCHANGED | STAGE;
    const EXTENDED_FLAGS: u16 = SKIP_WORKTREE | INTENT_TO_ADD;
    let file = StagedFile::create(scratch, STAGED_PREFIX)?;
    file.write_at(bytes, 0)?;
    let Ok(index) = git2::Index::open(file.path()) else {
        return Ok(None);
    };
    let entries = index.iter().map(|e| {
        (
            e.path.clone(),
            e.id.into(),
            e.mode,
            e.flags & FLAGS,
            e.flags_extended & EXTENDED_FLAGS,
        )
    });
    Ok(Some(entries.collect()))
}

/// What a sparse index stages, which libgit2 does not read; `None` if it is split, or no index.
fn entries_of_sparse(bytes: &[u8]) -> Option<Vec<StagedEntry>> {
    let no_shared_index = |_: &ObjectId| Err(IndexError::NotAnIndex);
    let index = user_index::parse(bytes, &mut { no_shared_index }).ok()?;
    let set = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    let entries = index.entries.into_iter().map(|entry| {
        let flags = set(entry.is_assume_unchanged, ASSUME_UNCHANGED) | u16::from(entry.stage) << 12;
        let extended =
            set(entry.is_skip_worktree, SKIP_WORKTREE) | set(entry.is_intent_to_add, INTENT_TO_ADD);
        let path = entry.path.as_bytes().to_vec();
        (path, entry.id, entry.mode, flags, extended)
    });
    Some(entries.collect())
}

/// Content that an index stages.
struct Staged {
    id: ObjectId,
    /// The directory is out of a sparse checkout, and this its tree.
    is_tree: bool,
    /// The file is out of a sparse checkout.
    is_skipped: bool,
}

/// What an index stages that the repository has not; none if it cannot be read. The shared index of a split one is beside
/// the index of the work tree.
fn lacking_objects(git_dir: &Path, common_dir: &Path, index: &[u8]) -> Vec<Staged> {
    const GITLINK: u32 = 0o160_000;
    const TREE: u32 = 0o040_000;
    let mut shared = |id: &ObjectId| shared_index(git_dir, id).ok_or(IndexError::NotAnIndex);
    let Ok(index) = user_index::parse(index, &mut shared) else {
        return Vec::new();
    };
    let objects = Objects::open(common_dir);
    let mut looked_for = BTreeSet::new();
    let entries = index.entries.into_iter();
    // One that was only announced (`git add -N`) has the empty blob, which need not exist.
    let staged = entries.filter(|entry| entry.mode != GITLINK && !entry.is_intent_to_add);
    staged
        .filter(|entry| looked_for.insert(entry.id) && !objects.has(entry.id))
        .map(|entry| Staged {
            id: entry.id,
            is_tree: entry.mode == TREE,
            is_skipped: entry.is_skip_worktree,
        })
        .collect()
}

fn shared_index(git_dir: &Path, id: &ObjectId) -> Option<Vec<u8>> {
    let opened = open_directory(git_dir).ok()?;
    let name = format!("sharedindex.{id}");
    let read = read_file(opened.as_fd(), name.as_bytes(), MAX_INDEX_BYTES, git_dir);
    read.ok().flatten()
}

/// Gives the repository the staged content that it has lost and the snapshot kept; answers with what it still lacks.
/// What is out of a sparse checkout counts only if it is `lost`: a partial clone never had it.
///
/// An object more changes nothing that anybody sees, so it is written ahead of the intent: a crash
/// leaves at most content that git's housekeeping removes.
pub(super) fn give_objects_back(
    git_dir: &Path,
    common_dir: &Path,
    index: &[u8],
    lost: &dyn Fn(&ObjectId) -> bool,
    kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
) -> Vec<ObjectId> {
    let is_given = |staged: &Staged| {
        let content = Some(staged).filter(|staged| !staged.is_tree);
        let content = content.and_then(|staged| kept(&staged.id).ok());
        content.is_some_and(|content| write_blob(common_dir, &staged.id, &content).is_ok())
    };
    let lacking = lacking_objects(git_dir, common_dir, index).into_iter();
    let lacking = lacking.filter(|staged| !is_given(staged));
    let counts = |staged: &Staged| !staged.is_skipped || lost(&staged.id);
    lacking.filter(counts).map(|staged| staged.id).collect()
}

fn write_blob(common_dir: &Path, id: &ObjectId, content: &[u8]) -> Result<(), PutError> {
    let mut objects = LooseWriter::open(common_dir)?;
    let size = content.len() as u64;
    objects.write(ObjectKind::Blob, id, size, &mut |out| {
        out.write_all(content)
    })?;
    objects.sync()
}

/// The objects of a repository, without the repository: no configuration is read.
pub(in crate::git) struct Objects {
    odb: Option<git2::Odb<'static>>,
    directory: PathBuf,
}

impl Objects {
    pub(in crate::git) fn open(common_dir: &Path) -> Self {
        let objects = common_dir.join("objects");
        let is_safe = is_safe_to_open(&objects);
        let open = || {
            let odb = git2::Odb::new().ok()?;
            odb.add_disk_alternate(objects.to_str()?).ok()?;
            Some(odb)
        };
        Self {
            odb: is_safe.then(open).flatten(),
            directory: objects,
        }
    }

    /// Whether the object is there. Where that cannot be told, it is taken to be.
    pub(in crate::git) fn has(&self, id: ObjectId) -> bool {
        self.odb.as_ref().is_none_or(|odb| odb.exists(id.to_git2()))
    }

    /// Whether the commit is there, with all parents that it names. Where that cannot be told, it is taken to be.
    pub(super) fn has_with_parents(&self, id: ObjectId) -> bool {
        self.has(id) && self.parents(id).into_iter().all(|parent| self.has(parent))
    }

    fn parents(&self, id: ObjectId) -> Vec<ObjectId> {
        let Some(odb) = self.odb.as_ref().filter(|_| self.is_safe_to_read(id)) else {
            return Vec::new();
        };
        let is_commit = |(size, kind)| kind == git2::ObjectType::Commit && size <= MAX_COMMIT_BYTES;
        if !odb.read_header(id.to_git2()).is_ok_and(is_commit) {
            return Vec::new();
        }
        let commit = odb.read(id.to_git2());
        commit.map_or_else(
            |_| Vec::new(),
            |commit| history::parents_of(id, commit.data()),
        )
    }

    /// It would wait for ever on a FIFO in the place of a loose object too.
    fn is_safe_to_read(&self, id: ObjectId) -> bool {
        let digits = id.to_string();
        let loose = self.directory.join(&digits[..2]).join(&digits[2..]);
        std::fs::symlink_metadata(loose).map_or(true, |meta| meta.is_file())
    }
}

/// Whether libgit2 can open a directory of objects, and those that it borrows from: it would wait for ever on a FIFO in the
/// place of a pack, an index or the list of alternates.
fn is_safe_to_open(objects: &Path) -> bool {
    let mut pending = vec![objects.to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(objects) = pending.pop() {
        if !seen.insert(objects.canonicalize().unwrap_or_else(|_| objects.clone())) {
            continue;
        }
        let list = objects.join("info/alternates");
        if seen.len() > MAX_ALTERNATES || !is_file_or_absent(&list) || has_trap(&objects) {
            return false;
        }
        pending.extend(alternates(&list).map(|path| objects.join(path)));
    }
    true
}

fn is_file_or_absent(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.is_file())
}

/// Whether something other than a file has the name of a pack, or of an index of packs.
fn has_trap(objects: &Path) -> bool {
    let is_opened = |name: &[u8]| {
        name.ends_with(b".idx") || name.ends_with(b".pack") || name == b"multi-pack-index"
    };
    let names = std::fs::read_dir(objects.join("pack"));
    let mut names = names.into_iter().flatten().flatten();
    names.any(|entry| is_opened(entry.file_name().as_bytes()) && !is_file_or_absent(&entry.path()))
}

/// The directories that a list of alternates names; none if it cannot be read.
fn alternates(list: &Path) -> impl Iterator<Item = PathBuf> {
    let mut text = Vec::new();
    let read = open_regular(File::options().read(true), list)
        .and_then(|file| file.take(MAX_ALTERNATES_BYTES).read_to_end(&mut text));
    let text = read.map_or_else(|_| Vec::new(), |_| text);
    let lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(Vec::from).collect();
    let lines = lines.into_iter();
    let named = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    named.map(|line| PathBuf::from(OsString::from_vec(line)))
}
