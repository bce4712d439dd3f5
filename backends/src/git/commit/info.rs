//! The facts about a commit in the repository.

use super::objects::{CommitObject, RepositoryTrees};
use super::tree_changes::{self, Side, TreeChange};
use crate::commit::{CommitError, CommitInfo};
use crate::git::repository::UserRepository;
use crate::git::user_index::MODE_SUBMODULE;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::patch::{self, Limits, LineCounts, MAX_TEXT_BYTES};
use crate::tree::EntryKind;
use crate::workspace::Workspace;

/// Nothing is told of how a count came about, so nothing is left out of it for time.
const LIMITS: Limits = Limits {
    max_compared_bytes: u64::MAX,
    deadline: None,
};

/// See [`Backend::commit_info`](crate::Backend::commit_info).
pub(in crate::git) fn info(
    op: &Operation,
    workspace: &Workspace,
    commit: &str,
) -> Result<CommitInfo, CommitError> {
    let unknown = || CommitError::NotFound(commit.to_owned());
    let id: ObjectId = commit.parse().map_err(|_| unknown())?;
    let repository = super::repository_of(workspace)?;
    let found = CommitObject::read(op, &repository, id)?.ok_or_else(unknown)?;
    let parent = found.parents.first().copied();
    let old = match parent {
        Some(parent) => Some(CommitObject::known(op, &repository, parent)?.tree),
        None => None,
    };
    let trees = RepositoryTrees(&repository);
    let changes = tree_changes::between(op, &trees, old, Some(found.tree))?;
    let mut counts = LineCounts::default();
    for change in &changes {
        let of_change = count(op, &repository, change)?;
        counts.insertions += of_change.insertions;
        counts.deletions += of_change.deletions;
    }
    Ok(CommitInfo {
        commit: id.to_string(),
        tree: found.tree.to_string(),
        parent: parent.map(|parent| parent.to_string()),
        message: found.message,
        author: found.author,
        files_changed: changes.len() as u64,
        insertions: counts.insertions,
        deletions: counts.deletions,
    })
}

/// Counts the lines of one path. A binary file has none.
fn count(
    op: &Operation,
    repository: &UserRepository,
    change: &TreeChange,
) -> Result<LineCounts, CommitError> {
    let is_link = |side: &Side| EntryKind::from_git_mode(side.0) == Some(EntryKind::Symlink);
    let (old, new) = (change.old, change.new);
    // What becomes another kind of thing goes, and comes.
    if let (Some(old), Some(new)) = (&old, &new)
        && (is_link(old) != is_link(new) || (old.0 == MODE_SUBMODULE) != (new.0 == MODE_SUBMODULE))
    {
        let gone = sides(op, repository, Some(*old), None)?;
        let come = sides(op, repository, None, Some(*new))?;
        return Ok(LineCounts {
            insertions: come.insertions,
            deletions: gone.deletions,
            ..LineCounts::default()
        });
    }
    sides(op, repository, old, new)
}

fn sides(
    op: &Operation,
    repository: &UserRepository,
    old: Option<Side>,
    new: Option<Side>,
) -> Result<LineCounts, CommitError> {
    if old.map(|(_, id)| id) == new.map(|(_, id)| id) {
        return Ok(LineCounts::default());
    }
    let text = |side: Option<Side>| match side {
        Some(side) => text(op, repository, side).map(|text| text.map(Some)),
        None => Ok(Some(None)),
    };
    match (text(old)?, text(new)?) {
        (Some(old), Some(new)) => Ok(patch::count(old.as_deref(), new.as_deref(), &LIMITS).counts),
        // Too large for git to take for text.
        _ => Ok(LineCounts::default()),
    }
}

/// The text that git compares; `None` if it is too large to be one.
fn text(
    op: &Operation,
    repository: &UserRepository,
    (mode, id): Side,
) -> Result<Option<Vec<u8>>, CommitError> {
    if mode == MODE_SUBMODULE {
        return Ok(Some(format!("Subproject commit {id}\n").into_bytes()));
    }
    let size = repository.object_sizes(op, &[id])?[0];
    if size.is_some_and(|size| size > MAX_TEXT_BYTES as u64) {
        return Ok(None);
    }
    match repository.read_object(op, id, MAX_TEXT_BYTES as u64)? {
        Some((ObjectKind::Blob, bytes)) => Ok(Some(bytes)),
        _ => Err(crate::git::repository::RepositoryError::MissingObject { id }.into()),
    }
}
