//! Files that restores displaced or staged, and purging content in them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use super::{FoundContent, FoundContents, Proof, Purged};
use crate::git::{ObjectHasher, ObjectKind};
use crate::operation::Operation;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;
use crate::tree::ContentId;
use crate::workspace::Workspace;
use crate::worktree::area::{self, Fate};
use crate::worktree::displaced::{Displaced, Held};

/// Removes what restores displaced, or had staged, and was purged since, wherever it lies. Answers
/// with what was looked at.
pub(crate) fn drop_purged(
    op: &Operation,
    store: &Path,
    purged: &Purged,
) -> Result<Proof, StoreError> {
    let mut proof = Proof::default();
    proof.unproven = area::each_displaced(op, store, &mut |entry| {
        proof.displaced += 1;
        let may_be = |length| purged.may_have_length(length);
        let contents = contents_of(entry, &may_be)?;
        let is_purged = contents.is_some_and(|(_, ids)| ids.iter().any(|id| purged.contains(id)));
        Ok(if is_purged { Fate::Goes } else { Fate::Stays })
    })?;
    Ok(proof)
}

impl Workspace {
    /// What the restore with this guard moved out of the way although no snapshot holds it, sorted
    /// by path, if it still lies where it was moved to.
    pub fn displaced(&self, guard: &SnapshotId) -> Result<Vec<Displaced>, StoreError> {
        Ok(Held::of(self.store_path(), guard)?.all())
    }

    /// Finds content in files that restores displaced or staged. It reads all of them; their names
    /// are numbers, so their paths are not known.
    pub fn find_displaced(
        &self,
        op: &Operation,
        id: &ContentId,
    ) -> Result<FoundContents, StoreError> {
        let purged = Purged::of(self)?;
        let mut found = FoundContents::default();
        let mut contents = BTreeMap::new();
        found.unreadable = area::each_displaced(op, self.store_path(), &mut |entry| {
            let read = contents_of(entry, &|length| length > 0)?;
            if let Some((bytes, ids)) = read.filter(|(_, ids)| ids.contains(id)) {
                contents.insert(ids[0], (bytes, ids.get(1).copied()));
            }
            Ok(Fate::Stays)
        })?;
        found.contents = contents
            .into_iter()
            .map(|(id, (bytes, other_id))| FoundContent {
                id,
                purged: purged.contains(&id),
                other_id,
                bytes: Some(bytes),
                paths: Vec::new(),
                also_at: Vec::new(),
            })
            .collect();
        Ok(found)
    }
}

/// The length of a file or link, and the ids of its bytes, git's first if it has one; `None`: it is
/// neither, or its length is none that may matter.
fn contents_of(
    entry: &walkdir::DirEntry,
    may_matter: &dyn Fn(u64) -> bool,
) -> io::Result<Option<(u64, Vec<ContentId>)>> {
    let file_type = entry.file_type();
    let (length, mut content): (u64, Box<dyn io::Read>) = if file_type.is_symlink() {
        let text = fs::read_link(entry.path())?.into_os_string().into_vec();
        (text.len() as u64, Box::new(io::Cursor::new(text)))
    } else if file_type.is_file() {
        let length = entry.metadata()?.len();
        if !may_matter(length) {
            return Ok(None);
        }
        (length, Box::new(fs::File::open(entry.path())?))
    } else {
        return Ok(None);
    };
    let mut sha1 = ObjectHasher::new(ObjectKind::Blob, length);
    let mut blake3 = blake3::Hasher::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        match content.read(&mut piece)? {
            0 => break,
            n => {
                sha1.update(&piece[..n]);
                blake3.update(&piece[..n]);
            }
        }
    }
    let sha1 = sha1.finish().ok().map(ContentId::from);
    let blake3 = ContentId::Blake3(*blake3.finalize().as_bytes());
    Ok(Some((length, sha1.into_iter().chain([blake3]).collect())))
}
