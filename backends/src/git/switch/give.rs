//! Giving the user's repository what a commit reaches and it lacks: one pack, before any ref names
//! the commit. Objects more are nothing that anybody sees.

use std::collections::HashSet;
use std::os::fd::AsFd as _;

use crate::branches::BranchError;
use crate::commit::CommitError;
use crate::git::ObjectId;
use crate::git::directory::{Create, open_below, open_directory};
use crate::git::either::closure::Closure;
use crate::git::either::past::Past;
use crate::git::either::{Either, EitherTrees};
use crate::git::pack::PackWriter;
use crate::git::put_error::PutError;
use crate::git::repository::{RepositoryObjects, Shallow, UserRepository};
use crate::git::store::Store;
use crate::operation::Operation;
use crate::store_error::StoreError;

/// Where packs lie below the common directory.
const PACKS: &str = "objects/pack";

/// Gives it, durably. [`BranchError::Incomplete`]: something is in neither place, and nothing was
/// given.
pub(super) fn give<'a>(
    op: &'a Operation,
    (store, repository): (&Store, &UserRepository),
    trees: EitherTrees<'a>,
    to: ObjectId,
) -> Result<(), BranchError> {
    let incomplete = |object: ObjectId| BranchError::Incomplete {
        object: object.to_string(),
        commit: to.to_string(),
    };
    let past = Past::new(op, Some(repository), store)?;
    let refs = repository
        .shared_refs("refs")
        .map_err(super::commit_error)?;
    let head = repository.head().map_err(super::commit_error)?;
    let known: Vec<ObjectId> = refs.ids.into_values().chain(head.commit()).collect();
    if known.contains(&to) {
        return Ok(());
    }
    // The store's own history may end at what the repository has to have, too.
    let no_ends = Shallow::default();
    let unreached = past.unreached(&[to], &known, &HashSet::new(), &no_ends);
    let mut unreached = unreached.map_err(|error| match error {
        crate::checkpoint::CheckpointError::CommitMissing { commit } => BranchError::Incomplete {
            object: commit,
            commit: to.to_string(),
        },
        error => error.into(),
    })?;
    unreached.commits.reverse();
    let mut wanted = Closure::new(op, trees);
    for commit in &unreached.commits {
        let mut before = Vec::new();
        for parent in &commit.parents {
            before.extend(past.commit(*parent)?.map(|parent| parent.tree));
        }
        wanted.ids.insert(commit.id);
        wanted.add(commit.tree, &before)?;
    }
    let mut wanted: Vec<ObjectId> = wanted.ids.into_iter().collect();
    wanted.sort_unstable();
    let lacking = RepositoryObjects::open(repository.common_dir()).missing(op, wanted);
    if lacking.is_empty() {
        return Ok(());
    }
    let opened = open_directory(repository.common_dir());
    let opened = opened.map_err(CommitError::from)?;
    // No link is followed there.
    let packs = open_below(op, opened.as_fd(), PACKS, Create::Yes);
    let path = repository.common_dir().join(PACKS);
    packs.map_err(|errno| {
        let error = crate::error::PathError::at("open", &path)(errno);
        CommitError::from(PutError::from(error))
    })?;
    let pack = PackWriter::create(op, &path).map_err(CommitError::from)?;
    let either = Either { store, repository };
    for id in lacking {
        op.check().map_err(StoreError::from)?;
        match either.object(op, id, u64::MAX)? {
            Some((kind, bytes)) => pack.add(kind, id, &bytes).map_err(CommitError::from)?,
            None => return Err(incomplete(id)),
        }
    }
    pack.finish()?;
    Ok(())
}
