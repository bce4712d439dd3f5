//! Commits in the user's repository: decided from a snapshot, then made under git's own locks.
//!
//! No program runs: no hook, no filter, nothing that signs. Of the configuration single values are
//! read, which say how bytes and modes are stored and who commits.

mod apply;
mod attribute_values;
mod compared;
mod contents;
mod conversion;
mod decision;
mod edits;
mod encoding;
mod index;
mod info;
mod local;
mod message;
mod new_tree;
mod objects;
mod prepare;
mod saving;
mod scope;
mod settle;
mod smudge;
mod sound;
mod staged;
#[cfg(test)]
mod tests;
mod tree_changes;

use crate::commit::CommitError;
use crate::error::PathError;
use crate::git::put_error::PutError;
use crate::git::repository::{self, Probe, RepositoryError, UserRepository};
use crate::interrupted::Interrupted;
use crate::record::{GitState, Record};
use crate::restore_error::RestoreError;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::workspace::Workspace;

pub(super) use self::apply::{Aim, apply};
pub(super) use self::compared::compare;
pub(super) use self::conversion::Conversion;
pub(super) use self::decision::Environment;
pub(super) use self::edits::Edits;
pub(super) use self::index::index_stat;
pub(super) use self::info::info;
pub(super) use self::local::LocalEdits;
pub(super) use self::message::{check_signature, signature_of_user, trailers};
pub(super) use self::new_tree::tree_with;
pub(super) use self::objects::{
    RepositoryTrees, as_store_error, committer_in, made_by, refuse_unless_commit,
};
pub(super) use self::prepare::{prepare, prepare_candidate};
pub(super) use self::saving::Saving;
pub(super) use self::smudge::{MAX_ATTRIBUTES_BYTES, Smudging};
pub(super) use self::sound::commit_text;
pub(super) use self::staged::Staged;
pub(super) use self::tree_changes::{Side, TreeChange, between, is_file, item_of, side_of};

/// The repository that `workspace` lies in.
pub(super) fn repository_of(workspace: &Workspace) -> Result<Box<UserRepository>, CommitError> {
    let path = workspace.disk_path().display();
    match repository::probe(workspace.disk_path())? {
        Probe::Found(repository) => Ok(repository),
        Probe::None => Err(CommitError::Unsupported(format!(
            "{path} is not in a git work tree"
        ))),
        Probe::Bare(git_dir) => Err(CommitError::Unsupported(repository::no_work_tree(&git_dir))),
        Probe::Unsupported { git_dir, format } => Err(CommitError::Unsupported(format!(
            "the repository {} uses {format}, which cannot be read",
            git_dir.display()
        ))),
    }
}

/// What a snapshot saw of `repository`, in which it was taken.
pub(super) fn state_in<'r>(
    record: &'r Record,
    repository: &UserRepository,
) -> Result<&'r GitState, CommitError> {
    let Some(state) = &record.git else {
        return Err(CommitError::Unsupported(
            "the snapshot was taken without the repository, which could not be read then"
                .to_owned(),
        ));
    };
    if !state.common_dir.is_same(&repository.known_as()) || state.scope != *repository.scope() {
        return Err(CommitError::Conflict(
            "the snapshot is of another repository".to_owned(),
        ));
    }
    Ok(state)
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        Self::Failed {
            context: "the commit's content could not be read".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}

impl From<RepositoryError> for CommitError {
    fn from(error: RepositoryError) -> Self {
        match error {
            error @ RepositoryError::Unsupported { .. } => Self::Unsupported(error.to_string()),
            error => {
                let error = SnapshotError::from(error);
                Self::Failed {
                    context: "the repository could not be read".to_owned(),
                    kind: error.kind(),
                    source: Box::new(error),
                }
            }
        }
    }
}

impl From<PutError> for CommitError {
    fn from(error: PutError) -> Self {
        Self::Failed {
            context: "the repository could not be written".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}

impl From<PathError> for CommitError {
    fn from(error: PathError) -> Self {
        PutError::from(error).into()
    }
}

/// Of taking the lock of a repository, or waiting for one of git's.
impl From<RestoreError> for CommitError {
    fn from(error: RestoreError) -> Self {
        Self::Failed {
            context: "the repository could not be locked".to_owned(),
            kind: error.kind(),
            source: Box::new(error),
        }
    }
}

impl From<Interrupted> for CommitError {
    fn from(why: Interrupted) -> Self {
        StoreError::Interrupted(why).into()
    }
}
