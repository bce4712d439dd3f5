//! What an index stages, and the objects that it takes.

use std::path::{Path, PathBuf};

use super::PutError;
use crate::backend::StoreError;
use crate::error::PathError;
use crate::git::history;
use crate::git::loose_writer::LooseWriter;
use crate::git::user_index;
use crate::git::{ObjectId, ObjectKind};
use crate::worktree::durable::{STAGED_PREFIX, StagedFile};

/// A commit of more is none that anybody wrote.
const MAX_COMMIT_BYTES: usize = 16 << 20;

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
    let no_shared_index = |_: &ObjectId| Err(user_index::IndexError::NotAnIndex);
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

/// The objects that an index names and the repository has not.
fn lacking_objects(
    scratch: &Path,
    index: &[u8],
    common_dir: &Path,
) -> Result<Vec<ObjectId>, PathError> {
    const GITLINK: u32 = 0o160_000;
    let Some(entries) = staged_entries(scratch, index)? else {
        return Ok(Vec::new());
    };
    let objects = Objects::open(common_dir);
    let mut lacking: Vec<ObjectId> = entries
        .into_iter()
        .filter(|(_, id, mode, _, extended)| {
            // One that was only announced (`git add -N`) has the empty blob, which need not exist.
            *mode != GITLINK && extended & INTENT_TO_ADD == 0 && !objects.has(*id)
        })
        .map(|(_, id, ..)| id)
        .collect();
    lacking.sort_unstable();
    lacking.dedup();
    Ok(lacking)
}

/// Gives the repository the staged content that it has lost and the snapshot kept; answers with what
/// it still lacks.
///
/// An object more changes nothing that anybody sees, so it is written ahead of the intent: a crash
/// leaves at most content that git's housekeeping removes.
pub(super) fn give_objects_back(
    scratch: &Path,
    common_dir: &Path,
    index: &[u8],
    kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
) -> Result<Vec<ObjectId>, PathError> {
    let mut lacking = lacking_objects(scratch, index, common_dir)?;
    lacking.retain(|id| {
        let Ok(content) = kept(id) else {
            return true;
        };
        write_blob(common_dir, id, &content).is_err()
    });
    Ok(lacking)
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
        // libgit2 would wait for ever on a FIFO of that name.
        let is_safe = std::fs::symlink_metadata(objects.join("info/alternates"))
            .map_or(true, |meta| meta.is_file());
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

    /// libgit2 would wait for ever on a FIFO in the place of a loose object.
    fn is_safe_to_read(&self, id: ObjectId) -> bool {
        let digits = id.to_string();
        let loose = self.directory.join(&digits[..2]).join(&digits[2..]);
        std::fs::symlink_metadata(loose).map_or(true, |meta| meta.is_file())
    }
}
