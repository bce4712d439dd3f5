//! What an index stages, and the objects that it takes.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::Request;
use crate::error::PathError;
use crate::git::ObjectId;
use crate::worktree::durable;

/// Path, id, mode, flags and extended flags of an entry in the index.
type StagedEntry = (Vec<u8>, ObjectId, u32, u16, u16);

/// A digest of what an index stages, without stat data; `None` if libgit2 cannot read it.
pub(super) fn staging_digest(scratch: &Path, bytes: &[u8]) -> Result<Option<[u8; 32]>, PathError> {
    let Some(entries) = staged_entries(scratch, bytes)? else {
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
    /// Stage and assume-unchanged; what is left out is the length of the name and a format bit.
    const FLAGS: u16 = 0xb000;
    /// skip-worktree and intent-to-add.
    const EXTENDED_FLAGS: u16 = 0x6000;
    let mut file = tempfile::NamedTempFile::new_in(scratch)
        .map_err(PathError::at("make a temporary file in", scratch))?;
    file.write_all(bytes)
        .map_err(PathError::at("write", file.path()))?;
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

/// The objects that an index names and the repository has not.
fn lacking_objects(
    scratch: &Path,
    index: &[u8],
    common_dir: &Path,
) -> Result<Vec<ObjectId>, PathError> {
    const GITLINK: u32 = 0o160_000;
    /// An entry that was only announced (`git add -N`) has the empty blob, which need not exist.
    const INTENT_TO_ADD: u16 = 0x2000;
    let Some(entries) = staged_entries(scratch, index)? else {
        return Ok(Vec::new());
    };
    let objects = Objects::open(common_dir);
    let mut lacking: Vec<ObjectId> = entries
        .into_iter()
        .filter(|(_, id, mode, _, extended)| {
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
    request: &Request<'_>,
    common_dir: &Path,
    index: &[u8],
) -> Result<Vec<ObjectId>, PathError> {
    let mut lacking = lacking_objects(request.scratch, index, common_dir)?;
    lacking.retain(|id| {
        let Ok(content) = (request.index_bytes)(id) else {
            return true;
        };
        write_loose_blob(common_dir, id, &content).is_err()
    });
    Ok(lacking)
}

/// Writes a loose object as git does: under a temporary name, synced, then under its own.
fn write_loose_blob(common_dir: &Path, id: &ObjectId, content: &[u8]) -> Result<(), PathError> {
    let digits = id.to_string();
    let objects = common_dir.join("objects");
    let directory = objects.join(&digits[..2]);
    for path in [&objects, &directory] {
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                let trap = std::io::Error::other("it is no directory");
                return Err(PathError::at("write into", path)(trap));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir(path).map_err(PathError::at("make", path))?;
            }
            Err(e) => return Err(PathError::at("look at", path)(e)),
        }
    }
    let mut staged = tempfile::Builder::new()
        .prefix("tmp_obj_")
        .permissions(std::fs::Permissions::from_mode(0o444))
        .tempfile_in(&directory)
        .map_err(PathError::at("make a temporary file in", &directory))?;
    let mut encoder = ZlibEncoder::new(staged.as_file_mut(), Compression::fast());
    encoder
        .write_all(format!("blob {}\0", content.len()).as_bytes())
        .and_then(|()| encoder.write_all(content))
        .and_then(|()| encoder.finish().map(drop))
        .and_then(|()| staged.as_file().sync_all())
        .map_err(PathError::at("write", staged.path().to_owned()))?;
    let path = directory.join(&digits[2..]);
    match staged.persist_noclobber(&path) {
        Err(e) if e.error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(PathError::at("rename into", path)(e.error))
        }
        _ => durable::sync_directory(&directory),
    }
}

/// The objects of a repository, without the repository: no configuration is read.
pub(super) struct Objects(Option<git2::Odb<'static>>);

impl Objects {
    pub(super) fn open(common_dir: &Path) -> Self {
        let objects = common_dir.join("objects");
        // libgit2 would wait for ever on a FIFO of that name.
        let is_safe = std::fs::symlink_metadata(objects.join("info/alternates"))
            .map_or(true, |meta| meta.is_file());
        let open = || {
            let odb = git2::Odb::new().ok()?;
            odb.add_disk_alternate(objects.to_str()?).ok()?;
            Some(odb)
        };
        Self(is_safe.then(open).flatten())
    }

    /// Whether the object is there. Where that cannot be told, it is taken to be.
    pub(super) fn has(&self, id: ObjectId) -> bool {
        self.0.as_ref().is_none_or(|odb| odb.exists(id.to_git2()))
    }
}
