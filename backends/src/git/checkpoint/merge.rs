//! Merging a checkpoint with what its branch has by now, in the store.
//!
//! There is nothing on disk before all of it is merged: a conflict leaves no trace.

use super::make::Keeping;
use crate::checkpoint::{CheckpointError, KeptCheckpoint, MergeRequest};
use crate::git::commit;
use crate::git::either::past::Past;
use crate::git::either::{Either, EitherTrees};
use crate::git::history::Commit;
use crate::git::merge::Outcome;
use crate::git::refs;
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;
use crate::workspace::LockedWorkspace;

/// A message of this length is no message.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// See [`Checkpoints::merge_checkpoint`](crate::Checkpoints::merge_checkpoint).
pub(in crate::git) fn merge(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    request: &MergeRequest,
) -> Result<Option<KeptCheckpoint>, CheckpointError> {
    // What git has fetched since lies in packs of its own.
    store.refresh()?;
    let repository = commit::repository_of(workspace)?;
    let past = Past::new(op, Some(&repository), store)?;
    let known = |id: &String| -> Result<_, CheckpointError> {
        let id: ObjectId = id.parse().map_err(CheckpointError::InvalidOptions)?;
        let missing = || CheckpointError::CommitMissing {
            commit: id.to_string(),
        };
        past.commit(id)?.ok_or_else(missing)
    };
    let (ours, theirs) = (known(&request.commit)?, known(&request.tip)?);
    let set = store.reader_set()?;
    let stored = store.reader(&set);
    let either = Either {
        store,
        repository: &repository,
    };
    let trees = EitherTrees::new(either, &stored);
    let merged = crate::git::merge::merge(op, &past, &trees, [theirs.id, ours.id])?;
    let Outcome::Merged(merged) = merged else {
        return Ok(None);
    };
    let text = text(op, either, merged.id, (&ours, &theirs), &request.message)?;
    let id = ObjectId::of(ObjectKind::Commit, text.as_bytes())
        .map_err(|e| CheckpointError::InvalidOptions(e.to_string()))?;
    let pack = store.writer(op)?;
    for (id, (kind, bytes)) in &merged.objects {
        if !store.contains(id)? {
            pack.add(*kind, *id, bytes).map_err(StoreError::from)?;
        }
    }
    if !store.contains(&id)? {
        pack.add(ObjectKind::Commit, id, text.as_bytes())
            .map_err(StoreError::from)?;
    }
    let keeping = Keeping {
        op,
        repository: &repository,
        store,
        record: None,
        on_remote: &request.on_remote,
        borrow: request.borrow,
        past: &past,
    };
    let name = refs::checkpoint_name(&request.task, request.number);
    if !store.keep_checkpoint(op, &name, id, pack, || keeping.hold(id))? {
        let taken = format!("{name} is another checkpoint");
        return Err(CheckpointError::Conflict(taken));
    }
    let kept = KeptCheckpoint::new(request.number, id.to_string(), name);
    Ok(Some(kept))
}

/// The bytes of the merge. The branch goes on by its first parents: what was on it stays there, and
/// the difference to the first parent is what this checkpoint brings.
fn text(
    op: &Operation,
    either: Either<'_>,
    tree: ObjectId,
    (ours, theirs): (&Commit, &Commit),
    message: &str,
) -> Result<String, CheckpointError> {
    let missing = || CheckpointError::CommitMissing {
        commit: ours.id.to_string(),
    };
    let read = either.object(op, ours.id, MAX_COMMIT_BYTES)?;
    let (_, bytes) = read.ok_or_else(missing)?;
    let committer = commit::committer_in(&bytes).ok_or_else(missing)?;
    let time = ours.time.max(theirs.time).max(0);
    let parents = [theirs.id, ours.id];
    Ok(commit::commit_text(
        tree,
        &parents,
        (&committer, time),
        message,
    ))
}
