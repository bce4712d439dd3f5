//! A merge as a commit in the user's repository, and the move of a branch.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use super::commit;
use super::either::past::Past;
use super::either::{Either, EitherTrees};
use super::loose_writer::LooseWriter;
use super::merge::{self, Outcome};
use super::put_error::PutError;
use super::repository::{RepositoryObjects, UserRepository, is_ref_name};
use super::rollback::lock::Locks;
use super::rollback::reflog::{self, Line, Missing};
use super::rollback::refs::Refs;
use super::rollback::{LOCK_TIMEOUT, lock_repository};
use super::store::Store;
use super::{ObjectId, ObjectKind, worktrees};
use crate::branch_merge::{BranchMerge, BranchMove, Checkout, CheckoutUsage, Merged};
use crate::branches::BranchError;
use crate::commit::CommitError;
use crate::error::printable;
use crate::git::backend::environment;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::workspace::StateDir;

/// So many paths in conflict are named.
const MAX_NAMED: usize = 50;

/// See [`Branches::merge`](crate::Branches::merge).
pub(super) fn merge(
    op: &Operation,
    store: &Store,
    repository: &UserRepository,
    request: &BranchMerge,
) -> Result<Merged, BranchError> {
    let id = |text: &str| {
        text.parse::<ObjectId>()
            .map_err(BranchError::InvalidOptions)
    };
    let (into, from) = (id(&request.into)?, id(&request.from)?);
    let settings = repository
        .settings(&environment)
        .map_err(CommitError::from)?;
    let message = request.commit.whole_message()?;
    let signature = match &request.commit.author {
        Some(author) => author.clone(),
        None => commit::signature_of_user(&settings),
    };
    commit::check_signature(&signature)?;
    let past = Past::new(op, Some(repository), store)?;
    for id in [into, from] {
        // It is the user's own: the merge is to name nothing else.
        commit::refuse_unless_commit(op, repository, id)?;
    }
    let set = store.reader_set()?;
    let stored = store.reader(&set);
    let trees = EitherTrees::new(Either { store, repository }, &stored);
    let merged = match merge::merge(op, &past, &trees, [into, from])? {
        Outcome::Contained => return Ok(Merged::Contained),
        Outcome::FastForward => return Ok(Merged::FastForward),
        Outcome::Unrelated => return Ok(Merged::Unrelated),
        Outcome::Conflict(paths) => {
            let more = paths.len().saturating_sub(MAX_NAMED) as u64;
            let files: Vec<RelPath> = paths.into_iter().take(MAX_NAMED).collect();
            return Ok(Merged::Conflict { files, more });
        }
        Outcome::Merged(merged) => merged,
    };
    let at = (&signature, request.commit.at.as_second());
    let text = commit::commit_text(merged.id, &[into, from], at, &message);
    let commit = ObjectId::of(ObjectKind::Commit, text.as_bytes())
        .map_err(|e| BranchError::InvalidOptions(e.to_string()))?;
    let mut objects = merged.objects;
    objects.insert(commit, (ObjectKind::Commit, text.into_bytes()));
    put(op, repository, objects)?;
    Ok(Merged::Commit {
        commit: commit.to_string(),
        tree: merged.id.to_string(),
    })
}

/// Makes objects durable in the user's repository that it may lack.
fn put(
    op: &Operation,
    repository: &UserRepository,
    mut objects: BTreeMap<ObjectId, (ObjectKind, Vec<u8>)>,
) -> Result<(), CommitError> {
    let ids = objects.keys().copied().collect();
    let mut writer = LooseWriter::open(op, repository.common_dir())?;
    for id in RepositoryObjects::open(repository.common_dir()).missing(op, ids) {
        let (kind, bytes) = objects.remove(&id).expect("it was asked for");
        writer.write(kind, &id, bytes.len() as u64, &mut |out| {
            out.write_all(&bytes)
        })?;
    }
    Ok(writer.sync()?)
}

/// See [`Branches::move_branch`](crate::Branches::move_branch).
pub(super) fn move_branch(
    op: &Operation,
    state: &StateDir,
    repository: &UserRepository,
    request: &BranchMove,
) -> Result<Vec<Checkout>, BranchError> {
    let branch = &*request.branch;
    if !branch.starts_with("refs/heads/") || !is_ref_name(branch) {
        return Err(BranchError::InvalidOptions(format!(
            "{branch:?} is no branch"
        )));
    }
    if request.message.contains(['\n', '\r', '\0']) {
        return Err(BranchError::InvalidOptions(
            "the line for the reflog is not one line".to_owned(),
        ));
    }
    let id = |text: &str| {
        text.parse::<ObjectId>()
            .map_err(BranchError::InvalidOptions)
    };
    let (from, to) = (id(&request.from)?, id(&request.to)?);
    commit::refuse_unless_commit(op, repository, to)?;
    let common_dir = repository.common_dir();
    let lock = lock_repository(op, state, common_dir, LOCK_TIMEOUT);
    let _lock = lock.map_err(CommitError::from)?;
    let checkouts = || {
        let checkouts = worktrees::checkouts_of(op, common_dir, branch);
        Ok::<_, BranchError>(checkouts.map_err(CommitError::from)?)
    };
    if !request.leaves_behind
        && let Some(checkout) = checkouts()?.first()
    {
        return Err(in_use(branch, checkout));
    }
    let refs = Refs::open(common_dir).map_err(CommitError::from)?;
    // The same for every process that moves the branch there, so that what a crash leaves of it is
    // known as ours.
    let operation = blake3::hash(format!("{branch} {from} {to}").as_bytes());
    let operation = format!("move-{}", &operation.to_hex()[..32]);
    let locks = Locks {
        operation: &operation,
        is_recovery: false,
        lock_timeout: LOCK_TIMEOUT,
    };
    refs.release_what_a_crash_left(op, &locks, branch);
    let moved = refs.move_to(op, &locks, branch, Some(from), Some(to));
    moved.map_err(|error| match error {
        PutError::Moved {
            expected, found, ..
        } => BranchError::Moved {
            branch: branch.to_owned(),
            expected,
            found,
        },
        error => CommitError::from(error).into(),
    })?;
    log(op, &refs, repository, request, [from, to])?;
    checkouts()
}

/// Adds a line to the branch's reflog, unless a crash came after that.
fn log(
    op: &Operation,
    refs: &Refs,
    repository: &UserRepository,
    request: &BranchMove,
    [from, to]: [ObjectId; 2],
) -> Result<(), BranchError> {
    let (holder, branch) = (refs.common.as_fd(), &*request.branch);
    if reflog::last(op, holder, branch) == Some(to) {
        return Ok(());
    }
    let settings = repository
        .settings(&environment)
        .map_err(CommitError::from)?;
    let signature = commit::signature_of_user(&settings);
    let line = Line {
        from: Some(from),
        to: Some(to),
        committer: &format!("{} <{}>", signature.name, signature.email),
        at: request.at.as_second(),
        message: &request.message,
    };
    let is_bare = settings.is_on("core", "bare") == Some(true);
    let missing = Missing::as_configured(&settings, is_bare);
    reflog::add(op, holder, branch, &line, missing);
    Ok(())
}

fn in_use(branch: &str, checkout: &Checkout) -> BranchError {
    let directory = printable(&checkout.directory);
    let why = match &checkout.usage {
        CheckoutUsage::CheckedOut => format!("is checked out in {directory}"),
        CheckoutUsage::InOperation => {
            format!("is in use in {directory}, where an operation of git's is in progress")
        }
        CheckoutUsage::Away(why) => format!("is checked out in {directory}, and {why}"),
    };
    BranchError::InTheWay(format!("{branch} {why}"))
}
