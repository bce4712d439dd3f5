//! Storing the files of git's operations (merge, rebase and the like) with a snapshot.

use crate::git::pack::PackWriter;
use crate::git::repository::OperationFiles;
use crate::git::repository::{GitOperation, RepositoryError, UserRepository};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::purge::Purged;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;

/// What a snapshot says of git's operations.
#[derive(Debug, Default)]
pub(super) struct KeptOperation {
    /// merge, rebase, cherry-pick, revert or bisect, if one is in progress.
    pub(super) in_progress: Option<&'static str>,
    /// `None`: they were not kept.
    pub(super) files: Option<OperationFiles>,
    /// The full names of the branches that it moves at its end.
    pub(super) branches: Vec<String>,
    /// Why the files were not kept, for people.
    pub(super) warning: Option<String>,
}

impl KeptOperation {
    /// The blobs that have to be kept for it; in any order, not unique.
    pub(super) fn blobs(&self) -> impl Iterator<Item = ObjectId> {
        self.files
            .iter()
            .flat_map(|files| files.files.values().copied())
    }
}

/// Reads the files, and puts their bytes into the pack unless the store has them.
///
/// Too many of them are no reason to capture nothing: then they are not kept, and a warning says
/// so. So it is of those that cannot be read, if the rest of the repository was found to be damaged
/// (`is_damaged`); else they are an error.
pub(super) fn keep(
    repository: &UserRepository,
    is_damaged: bool,
    store: &Store,
    pack: &PackWriter,
    purged: &Purged,
) -> Result<KeptOperation, SnapshotError> {
    let not_kept = |in_progress: Option<&'static str>, why: &str| KeptOperation {
        in_progress,
        warning: Some(format!(
            "the files of git's {} were not kept, and a rollback does not put them back: {why}",
            in_progress.unwrap_or("operations")
        )),
        ..KeptOperation::default()
    };
    let GitOperation {
        in_progress,
        contents,
    } = match repository.operation() {
        Ok(found) => found,
        Err(error) if is_damaged => return Ok(not_kept(None, &error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let contents = match contents {
        Ok(contents) => contents,
        Err(error @ RepositoryError::TooLarge { .. }) => {
            return Ok(not_kept(in_progress, &error.to_string()));
        }
        Err(error) if is_damaged => return Ok(not_kept(in_progress, &error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let Ok(files) = contents.ids() else {
        return Ok(not_kept(in_progress, "one is half of a SHA-1 collision"));
    };
    if files
        .files
        .values()
        .any(|id| purged.contains(&(*id).into()))
    {
        return Ok(not_kept(in_progress, "the content of one was purged"));
    }
    for (id, bytes) in files.files.values().zip(contents.files.values()) {
        if !store.contains(id)? {
            pack.add(ObjectKind::Blob, *id, bytes)
                .map_err(StoreError::from)?;
        }
    }
    Ok(KeptOperation {
        in_progress,
        files: Some(files),
        branches: contents.branches().into_iter().collect(),
        warning: None,
    })
}
