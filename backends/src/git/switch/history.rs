//! What commits say, in the store and in the user's repository.

use std::collections::HashSet;

use crate::branches::{BranchError, Trailer};
use crate::checkpoint::{CheckpointError, Reaches};
use crate::git::commit;
use crate::git::either::Either;
use crate::git::either::past::{Past, Relation};
use crate::git::repository::{Shallow, UserRepository, is_ref_name};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;

/// A message of this length is no message.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// So many commits of a branch are looked at for a trailer, by first parents.
const MAX_LOOKED_AT: usize = 1_000;

/// So many commits are gone through by first parents.
const MAX_FIRST_PARENTS: usize = 1_000_000;

/// The tree of a commit, which is somewhere.
pub(super) fn tree_of(
    op: &Operation,
    either: Either<'_>,
    id: ObjectId,
) -> Result<ObjectId, BranchError> {
    let incomplete = || BranchError::Incomplete {
        object: id.to_string(),
        commit: id.to_string(),
    };
    let bytes = match either.object(op, id, MAX_COMMIT_BYTES)? {
        Some((ObjectKind::Commit, bytes)) => bytes,
        _ => return Err(incomplete()),
    };
    let commit = crate::git::history::Commit::parse(id, &bytes);
    commit.map(|commit| commit.tree).ok_or_else(incomplete)
}

/// See [`Branches::newest_trailer`](crate::Branches::newest_trailer).
pub(in crate::git) fn newest_trailer(
    op: &Operation,
    either: Either<'_>,
    tip: ObjectId,
    beyond: &[ObjectId],
    (wanted, beside): (&str, &str),
) -> Result<Trailer, BranchError> {
    let past = Past::new(op, Some(either.repository), either.store)?;
    let shallow = either.repository.shallow().map_err(super::commit_error)?;
    let mut at = Some(tip);
    // A checkpoint goes on from the one before it by its first parent.
    for _ in 0..MAX_LOOKED_AT {
        let Some(id) = at.filter(|id| !beyond.contains(id)) else {
            return Ok(Trailer::Nowhere);
        };
        let (Some(commit), Some((_, bytes))) =
            (past.commit(id)?, either.object(op, id, MAX_COMMIT_BYTES)?)
        else {
            return Ok(Trailer::Unknown);
        };
        if let Some(value) = value_of(&bytes, wanted, beside) {
            return Ok(match is_reached(&past, id, beyond)? {
                true => Trailer::Nowhere,
                false => Trailer::Value(value),
            });
        }
        let parent = commit.parents.first().copied();
        at = parent.filter(|_| !shallow.has(&id));
    }
    Ok(Trailer::Nowhere)
}

/// What a commit says of a trailer, if it has another beside it.
fn value_of(bytes: &[u8], wanted: &str, beside: &str) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let (_, message) = text.split_once("\n\n")?;
    let trailers = commit::trailers(message);
    let of = |name: &str| {
        let mut pairs = trailers.iter().filter_map(|line| line.split_once(": "));
        let found = pairs.rfind(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    };
    of(beside).and(of(wanted))
}

/// Refuses a commit that does not go on from HEAD: its files would take back what came to HEAD
/// since.
pub(super) fn refuse_unless_it_goes_on_from(
    op: &Operation,
    either: Either<'_>,
    commit: ObjectId,
    head: ObjectId,
) -> Result<(), BranchError> {
    let past = Past::new(op, Some(either.repository), either.store)?;
    match past.relation(commit, head)? {
        Relation::Contains => return Ok(()),
        Relation::Contained | Relation::Apart => {}
        Relation::CutAt(at) => {
            return Err(BranchError::Unsupported(format!(
                "whether {commit} goes on from HEAD at {head} cannot be told, because the history of {at} is not here"
            )));
        }
    }
    // What the user's repository has of its history is where somebody can go.
    let mut at = Some(commit);
    for _ in 0..MAX_LOOKED_AT {
        let Some(id) = at else { break };
        let own = either.repository.read_object(op, id, MAX_COMMIT_BYTES);
        if id != commit && own.map_err(super::commit_error)?.is_some() {
            return Err(BranchError::InTheWay(format!(
                "HEAD is at {head}, which {commit} does not go on from: it goes on from {id} (\"git switch --detach \
                 {id}\" goes there; commit the work there, go back and merge that: a checkpoint made there would take \
                 back what came since)"
            )));
        }
        let parents = past.commit(id)?.map(|commit| commit.parents.clone());
        at = parents.and_then(|parents| parents.first().copied());
    }
    Err(BranchError::InTheWay(format!(
        "HEAD is at {head}, which {commit} does not go on from"
    )))
}

/// Whether one of `others` reaches a commit. What is nowhere reaches nothing.
fn is_reached(past: &Past<'_>, id: ObjectId, others: &[ObjectId]) -> Result<bool, BranchError> {
    if others.is_empty() {
        return Ok(false);
    }
    let unreached = past.unreached(&[id], others, &HashSet::new(), &Shallow::default());
    match unreached {
        Ok(unreached) => Ok(unreached.commits.iter().all(|commit| commit.id != id)),
        Err(CheckpointError::CommitMissing { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// See [`Branches::have_one_base`](crate::Branches::have_one_base).
pub(in crate::git) fn have_one_base(
    op: &Operation,
    either: Either<'_>,
    one: ObjectId,
    other: ObjectId,
) -> Result<Reaches, BranchError> {
    let past = Past::new(op, Some(either.repository), either.store)?;
    let mut seen = HashSet::new();
    let mut is_cut = false;
    // Both at once, so that what is near is found soon.
    let mut waiting = [Some(one), Some(other)];
    let mut sides = [HashSet::new(), HashSet::new()];
    while waiting.iter().any(Option::is_some) && seen.len() < MAX_FIRST_PARENTS {
        op.check().map_err(crate::store_error::StoreError::from)?;
        for at in 0..2 {
            let Some(id) = waiting[at].take() else {
                continue;
            };
            if sides[1 - at].contains(&id) {
                return Ok(Reaches::Yes);
            }
            sides[at].insert(id);
            seen.insert(id);
            match past.commit(id)? {
                Some(commit) => waiting[at] = commit.parents.first().copied(),
                None => is_cut = true,
            }
        }
    }
    Ok(match is_cut || seen.len() >= MAX_FIRST_PARENTS {
        true => Reaches::Unknown,
        false => Reaches::No,
    })
}

/// See [`Branches::commit_named`](crate::Branches::commit_named).
pub(in crate::git) fn commit_named(
    op: &Operation,
    repository: &UserRepository,
    name: &str,
) -> Result<ObjectId, BranchError> {
    let unknown = || {
        BranchError::NotFound(format!(
            "{name:?} is no full id of a commit, no branch, and no tag of one"
        ))
    };
    let id = match name.parse::<ObjectId>() {
        Ok(id) => id,
        Err(_) if name == "HEAD" => {
            let head = repository.head().map_err(super::commit_error)?;
            head.commit().ok_or_else(unknown)?
        }
        Err(_) => ref_named(repository, name)?.ok_or_else(unknown)?,
    };
    let read = repository.read_object(op, id, MAX_COMMIT_BYTES);
    match read.map_err(super::commit_error)? {
        Some((ObjectKind::Commit, _)) => Ok(id),
        _ => Err(unknown()),
    }
}

/// A ref by the short names that git knows (gitrevisions(7)).
fn ref_named(repository: &UserRepository, name: &str) -> Result<Option<ObjectId>, BranchError> {
    for above in ["", "refs/", "refs/tags/", "refs/heads/", "refs/remotes/"] {
        let full = format!("{above}{name}");
        if !is_ref_name(&full) {
            continue;
        }
        if let Some(id) = repository.tip(&full).map_err(super::commit_error)? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}
