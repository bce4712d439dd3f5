//! Comparing two commits of the user's repository.

use super::objects::{CommitObject, RepositoryTrees, as_store_error};
use super::repository_of;
use super::tree_changes::{self, TreeChange};
use crate::borrow_mode::BorrowMode;
use crate::commit::CommitError;
use crate::diff::{Diff, DiffOptions, NestedChange};
use crate::diff_error::DiffError;
use crate::error::ErrorKind;
use crate::git::line_diffs;
use crate::git::repository::UserRepository;
use crate::git::store::Store;
use crate::git::user_index::MODE_SUBMODULE;
use crate::git::{ObjectId, renames};
use crate::nested::NestedState;
use crate::operation::Operation;
use crate::snapshot::BackendKind;
use crate::store_error::StoreError;
use crate::tree::{Change, Entry, EntryKind};
use crate::workspace::LockedWorkspace;

/// See [`Repository::compare_commits`](crate::Repository::compare_commits).
pub(in crate::git) fn compare(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    (from, to): (&str, &str),
    options: &DiffOptions,
    patch: &mut dyn std::io::Write,
) -> Result<Diff, DiffError> {
    if options.max_patch_bytes == 0 {
        let refused = "max_patch_bytes must not be zero; to have no patch, do not ask for one";
        return Err(DiffError::InvalidOptions(refused.to_owned()));
    }
    let repository = repository_of(workspace).map_err(read_error)?;
    let old = tree_of(op, &repository, from)?;
    let new = tree_of(op, &repository, to)?;
    let trees = RepositoryTrees(&repository);
    let changed = tree_changes::between(op, &trees, Some(old), Some(new))?;
    let changes: Vec<Change> = changed.iter().filter_map(change_of).collect();
    let sides = changes.iter().flat_map(|change| [change.old, change.new]);
    let wanted = sides.flatten().map(line_diffs::blob_id).collect();
    let directories = repository.object_dirs().map_err(as_store_error)?;
    store.borrow(op, &directories, wanted, BorrowMode::default())?;
    let mut diff = Diff::of_changes(BackendKind::Git, from, to, &changes);
    diff.nested_repositories = changed.iter().filter_map(submodule_of).collect();
    line_diffs::compare(op, store, &changes, options, patch, &mut diff)?;
    if options.renames == crate::diff::Renames::Similar {
        renames::find(op, store, &changes, options, &mut diff)?;
    }
    Ok(diff)
}

/// The tree of a commit that is named by its full id.
fn tree_of(
    op: &Operation,
    repository: &UserRepository,
    commit: &str,
) -> Result<ObjectId, DiffError> {
    let id = commit
        .parse()
        .map_err(|e| DiffError::InvalidOptions(format!("{commit:?} is no commit: {e}")))?;
    let known = CommitObject::known(op, repository, id).map_err(read_error)?;
    Ok(known.tree)
}

/// What differs of files and links at a path; `None`: of a submodule alone, which has no content
/// here.
fn change_of(change: &TreeChange) -> Option<Change> {
    let entry = |side: Option<(u32, ObjectId)>| -> Option<Entry> {
        let (mode, id) = side.filter(|(mode, _)| *mode != MODE_SUBMODULE)?;
        let kind = EntryKind::from_git_mode(mode)?;
        Some(Entry {
            kind,
            id: id.into(),
        })
    };
    let (old, new) = (entry(change.old), entry(change.new));
    let path = change.path.clone();
    (old.is_some() || new.is_some()).then_some(Change { path, old, new })
}

/// Which commit of a submodule is named at a path, where that is another; `None`: none is on either
/// side.
fn submodule_of(change: &TreeChange) -> Option<NestedChange> {
    let named = |side: Option<(u32, ObjectId)>| {
        let (_, id) = side.filter(|(mode, _)| *mode == MODE_SUBMODULE)?;
        let mut state = NestedState::default();
        state.head_ref = Some(id.to_string());
        Some(state)
    };
    let (from, to) = (named(change.old), named(change.new));
    let path = change.path.clone();
    (from.is_some() || to.is_some()).then_some(NestedChange { path, from, to })
}

fn read_error(error: CommitError) -> DiffError {
    match error.kind() {
        ErrorKind::InvalidOptions => DiffError::InvalidOptions(error.to_string()),
        ErrorKind::Unsupported => StoreError::Unsupported(error.to_string()).into(),
        _ => StoreError::corrupt("the repository", crate::error::chain(&error)).into(),
    }
}
