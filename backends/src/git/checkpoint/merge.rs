//! Merging a checkpoint with what its branch has by now, in the store.
//!
//! Trees and contents are merged in memory, and there is nothing on disk before all of it is
//! merged: a conflict leaves no trace. libgit2 merges lines and sees no repository, so that no
//! attribute, driver, filter or hook of one takes part.

use std::collections::{BTreeMap, BTreeSet};

use super::make::Keeping;
use crate::checkpoint::{CheckpointError, KeptCheckpoint, MergeRequest};
use crate::diff::fingerprint::{Fingerprint, WHOLE};
use crate::git::commit::{self, Edits, Side, TreeChange};
use crate::git::either::past::Past;
use crate::git::either::{Either, EitherTrees};
use crate::git::history::Commit;
use crate::git::refs;
use crate::git::store::Store;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::ItemKind;
use crate::git::user_index::MODE_SUBMODULE;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::restore::{MAX_MERGED_FILE_BYTES, merged_text};
use crate::store_error::StoreError;
use crate::tree::EntryKind;
use crate::workspace::LockedWorkspace;

/// A commit that somebody made, and no tool of ours, has fewer; more are not compared with each
/// other.
const MAX_COMPARED: usize = 1_000;

/// The share of a file that is in both of a rename (git's default of `merge.renames`).
const MIN_SIMILARITY: u32 = WHOLE / 2;

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
    // Of several, git would first merge those.
    let &[base] = &past.bases(ours.id, theirs.id)?[..] else {
        return Ok(None);
    };
    let base = known(&base.to_string())?;
    let set = store.reader_set()?;
    let stored = store.reader(&set);
    let either = Either {
        store,
        repository: &repository,
    };
    let mut merging = Merging {
        op,
        trees: EitherTrees::new(either, &stored),
        made: BTreeMap::new(),
    };
    let Some(edits) = merging.edits([base.tree, ours.tree, theirs.tree])? else {
        return Ok(None);
    };
    let tree = commit::tree_with(op, &merging.trees, theirs.tree, &edits)?;
    let text = merging.text(tree.id, (&ours, &theirs), &request.message)?;
    let id = ObjectId::of(ObjectKind::Commit, text.as_bytes())
        .map_err(|e| CheckpointError::InvalidOptions(e.to_string()))?;
    let pack = store.writer(op)?;
    let trees = tree.trees.iter().map(|of| (ObjectKind::Tree, of));
    let blobs = merging.made.iter().map(|of| (ObjectKind::Blob, of));
    for (kind, (id, bytes)) in blobs.chain(trees) {
        if !store.contains(id)? {
            pack.add(kind, *id, bytes).map_err(StoreError::from)?;
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

/// The paths at which a tree differs from the base, with both sides.
type Changes = BTreeMap<RelPath, (Option<Side>, Option<Side>)>;

struct Merging<'a> {
    op: &'a Operation,
    trees: EitherTrees<'a>,
    /// Contents that none of the three has.
    made: BTreeMap<ObjectId, Vec<u8>>,
}

impl Merging<'_> {
    /// What becomes of the paths of `theirs`; `None`: there is a conflict.
    fn edits(
        &mut self,
        [base, ours, theirs]: [ObjectId; 3],
    ) -> Result<Option<Edits>, CheckpointError> {
        let changes = |tree| -> Result<Changes, StoreError> {
            let changes = commit::between(self.op, &self.trees, Some(base), Some(tree))?;
            let change = |TreeChange { path, old, new }| (path, (old, new));
            Ok(changes.into_iter().map(change).collect())
        };
        let (by_us, by_them) = (changes(ours)?, changes(theirs)?);
        let (mut edits, mut moved) = (BTreeMap::new(), BTreeMap::new());
        for (path, (old, new)) in &by_us {
            let Some((_, there)) = by_them.get(path) else {
                edits.insert(path.clone(), *new);
                continue;
            };
            let (place, merged) = match (old, new, there) {
                (Some(old), None, None) => {
                    // What one has renamed the other has renamed otherwise, or removed.
                    if self.renamed(*old, &by_us, &by_them)?.is_some()
                        || self.renamed(*old, &by_them, &by_us)?.is_some()
                    {
                        return Ok(None);
                    }
                    continue;
                }
                (_, new, there) if new == there => continue,
                (Some(old), Some(new), Some(there)) => {
                    (path.clone(), self.merged([*old, *new, *there])?)
                }
                // git follows nobody who has made something else of a file.
                (Some(_), None, Some(other)) | (Some(_), Some(other), None) if !is_file(*other) => {
                    return Ok(None);
                }
                (Some(old), None, Some(there)) => {
                    edits.insert(path.clone(), None);
                    match self.renamed(*old, &by_us, &by_them)? {
                        Some((to, new)) => (to, self.merged([*old, new, *there])?),
                        None => return Ok(None),
                    }
                }
                (Some(old), Some(new), None) => match self.renamed(*old, &by_them, &by_us)? {
                    Some((to, there)) => (to, self.merged([*old, *new, there])?),
                    None => return Ok(None),
                },
                _ => return Ok(None),
            };
            let Some(merged) = merged else {
                return Ok(None);
            };
            if moved.insert(place, Some(merged)).is_some() {
                return Ok(None);
            }
        }
        edits.extend(moved);
        self.fitting(edits, theirs)
    }

    /// The file that one side has made of another that it has no more, if the other side has
    /// nothing there.
    fn renamed(
        &self,
        old: Side,
        by_one: &Changes,
        by_other: &Changes,
    ) -> Result<Option<(RelPath, Side)>, CheckpointError> {
        let added = by_one.iter().filter_map(|(path, change)| match change {
            (None, Some(new)) if is_file(*new) && !by_other.contains_key(path) => {
                Some((path, *new))
            }
            _ => None,
        });
        let added: Vec<_> = added.take(MAX_COMPARED + 1).collect();
        let Some(text) = self.text_of(old).filter(|_| added.len() <= MAX_COMPARED) else {
            return Ok(None);
        };
        let print = Fingerprint::of(&text);
        let mut best: Vec<(u32, &RelPath, Side)> = Vec::new();
        for (path, new) in added {
            self.op.check().map_err(StoreError::from)?;
            let similarity = match self.text_of(new) {
                Some(_) if new.1 == old.1 => WHOLE,
                Some(text) => print.similarity_to(&Fingerprint::of(&text)),
                None => 0,
            };
            if similarity >= MIN_SIMILARITY {
                best.push((similarity, path, new));
            }
        }
        best.sort_unstable_by_key(|(similarity, ..)| std::cmp::Reverse(*similarity));
        Ok(match best[..] {
            // Nobody can say which of them it is.
            [(one, ..), (other, ..), ..] if one == other => None,
            [(_, path, new), ..] => Some((path.clone(), new)),
            [] => None,
        })
    }

    /// What comes of a path that both have; `None`: they conflict.
    fn merged(&mut self, sides: [Side; 3]) -> Result<Option<Side>, CheckpointError> {
        if let Some(side) = chosen(sides) {
            return Ok(Some(side));
        }
        let Some(mode) = chosen(sides.map(|side| side.0)) else {
            return Ok(None);
        };
        if !sides.into_iter().all(is_file) {
            return Ok(None);
        }
        if let Some(id) = chosen(sides.map(|side| side.1)) {
            return Ok(Some((mode, id)));
        }
        let texts = sides.map(|side| self.text_of(side));
        let [Some(base), Some(ours), Some(theirs)] = texts else {
            return Ok(None);
        };
        let Some(text) = merged_text(&base, &ours, &theirs) else {
            return Ok(None);
        };
        let id = ObjectId::of(ObjectKind::Blob, &text);
        let id = id.map_err(|e| StoreError::corrupt("a merged file", e.to_string()))?;
        self.made.insert(id, text);
        Ok(Some((mode, id)))
    }

    /// What a file has; `None`: it is too long to be merged, or nowhere.
    fn text_of(&self, side: Side) -> Option<Vec<u8>> {
        let read = self
            .trees
            .either
            .object(self.op, side.1, MAX_MERGED_FILE_BYTES);
        let (kind, bytes) = read.ok()??;
        (kind == ObjectKind::Blob).then_some(bytes)
    }

    /// The same edits as a tree takes them; `None`: a file would be where a directory is, or the
    /// other way round.
    fn fitting(
        &self,
        edits: BTreeMap<RelPath, Option<Side>>,
        theirs: ObjectId,
    ) -> Result<Option<Edits>, CheckpointError> {
        let there = TreeLookup::new(&self.trees, theirs);
        let mut goes_with = BTreeSet::new();
        let added = edits.iter().filter(|(_, edit)| edit.is_some());
        for (path, _) in added {
            let mut above = path.parent();
            while let Some(at) = above.filter(|at| !at.is_root()) {
                let is_file = match edits.get(&at) {
                    Some(edit) => edit.is_some(),
                    None => there
                        .at(self.op, &at)?
                        .is_some_and(|item| item.kind != ItemKind::Directory),
                };
                if is_file {
                    return Ok(None);
                }
                above = at.parent();
            }
            let item = there.at(self.op, path)?;
            let Some(item) = item.filter(|item| item.kind == ItemKind::Directory) else {
                continue;
            };
            for below in commit::between(self.op, &self.trees, Some(item.id), None)? {
                let names = below.path.names();
                let below = names.fold(path.clone(), |at, name| at.join(name));
                if edits.get(&below) != Some(&None) {
                    return Ok(None);
                }
                goes_with.insert(below);
            }
        }
        let edits = edits.into_iter().filter(|(at, _)| !goes_with.contains(at));
        let edits = edits.map(|(path, edit)| (path, edit.and_then(item_of)));
        Ok(Some(edits.collect()))
    }

    /// The bytes of the merge. The branch goes on by its first parents: what was on it stays there,
    /// and the difference to the first parent is what this checkpoint brings.
    fn text(
        &self,
        tree: ObjectId,
        (ours, theirs): (&Commit, &Commit),
        message: &str,
    ) -> Result<String, CheckpointError> {
        let missing = || CheckpointError::CommitMissing {
            commit: ours.id.to_string(),
        };
        let read = self
            .trees
            .either
            .object(self.op, ours.id, MAX_COMMIT_BYTES)?;
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
}

/// A message of this length is no message.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// What holds of base, ours and theirs where at most one has changed it, or both alike; `None`:
/// each has changed it otherwise.
fn chosen<T: PartialEq + Copy>([base, ours, theirs]: [T; 3]) -> Option<T> {
    match () {
        () if ours == base || ours == theirs => Some(theirs),
        () if theirs == base => Some(ours),
        () => None,
    }
}

/// Whether it is a file, and no link and no commit of a submodule.
fn is_file((mode, _): Side) -> bool {
    matches!(
        EntryKind::from_git_mode(mode),
        Some(EntryKind::File | EntryKind::Executable)
    )
}

/// What a tree has for it.
fn item_of((mode, id): Side) -> Option<(ItemKind, ObjectId)> {
    match mode {
        MODE_SUBMODULE => Some((ItemKind::Submodule, id)),
        mode => EntryKind::from_git_mode(mode).map(|kind| (ItemKind::Entry(kind), id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_has_changed_holds_and_what_both_have_is_asked_further() {
        assert_eq!(chosen([1, 1, 1]), Some(1));
        assert_eq!(chosen([1, 2, 1]), Some(2));
        assert_eq!(chosen([1, 1, 3]), Some(3));
        assert_eq!(chosen([1, 2, 2]), Some(2));
        assert_eq!(chosen([1, 2, 3]), None);
    }
}
