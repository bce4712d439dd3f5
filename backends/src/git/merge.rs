//! The merge of two histories, without a checkout: the same tree as git's, or the same paths in
//! conflict. docs/merging.md lists where it is another.
//!
//! Nothing is on disk when it is done: what it has made is handed out. No attribute, driver, filter
//! or hook of a repository takes part.

mod contents;
mod directories;
mod entries;
mod held;
mod renames;
mod stages;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use self::contents::Contents;
use self::held::Held;
use self::stages::Level;
use crate::checkpoint::CheckpointError;
use crate::git::commit::{self, Edits, item_of};
use crate::git::either::EitherTrees;
use crate::git::either::past::{Past, Relation};
use crate::git::history::Commit;
use crate::git::tree_object;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;

/// Histories that cross more often than this are nobody's.
const MAX_DEPTH: u16 = 30;

/// What git calls the sides of a merge of bases, in the text of its conflicts.
const BASES: [&str; 2] = ["Temporary merge branch 1", "Temporary merge branch 2"];

/// What comes of two commits.
#[derive(Debug)]
pub(in crate::git) enum Outcome {
    /// Ours contains theirs.
    Contained,
    /// Theirs contains ours.
    FastForward,
    /// Both have something that the other has not.
    Merged(MergedTree),
    /// They cannot be merged: the paths at which a person has to decide, from the top of the work
    /// tree.
    Conflict(BTreeSet<RelPath>),
    /// They come from no common commit.
    Unrelated,
}

/// A tree, and what it has that was nowhere before.
#[derive(Debug)]
pub(in crate::git) struct MergedTree {
    pub(in crate::git) id: ObjectId,
    pub(in crate::git) objects: BTreeMap<ObjectId, (ObjectKind, Vec<u8>)>,
}

/// Merges the commit `theirs` into `ours`.
pub(in crate::git) fn merge(
    op: &Operation,
    past: &Past<'_>,
    trees: &EitherTrees<'_>,
    [ours, theirs]: [ObjectId; 2],
) -> Result<Outcome, CheckpointError> {
    match past.relation(ours, theirs)? {
        Relation::Contains => return Ok(Outcome::Contained),
        Relation::Contained => return Ok(Outcome::FastForward),
        Relation::Apart | Relation::CutAt(_) => {}
    }
    let mut merging = Merging {
        op,
        past,
        held: Held::new(trees),
    };
    let bases = past.bases(ours, theirs)?;
    if bases.is_empty() {
        return Ok(Outcome::Unrelated);
    }
    // Nobody sees the names of conflicts of which nothing is written.
    let level = Level {
        depth: 0,
        names: ["ours", "theirs"],
    };
    let whole = merging.commits(bases, [ours, theirs], level)?;
    Ok(match whole.conflicts.is_empty() {
        true => Outcome::Merged(whole.tree),
        false => Outcome::Conflict(whole.conflicts),
    })
}

/// What a merge on one level has come to. With conflicts the tree is one only below the first.
struct Whole {
    tree: MergedTree,
    conflicts: BTreeSet<RelPath>,
}

struct Merging<'a> {
    op: &'a Operation,
    past: &'a Past<'a>,
    held: Held<'a>,
}

impl Merging<'_> {
    fn commit(&self, id: ObjectId) -> Result<Rc<Commit>, CheckpointError> {
        let missing = || CheckpointError::CommitMissing {
            commit: id.to_string(),
        };
        self.past.commit(id)?.ok_or_else(missing)
    }

    fn commits(
        &mut self,
        mut bases: Vec<ObjectId>,
        [ours, theirs]: [ObjectId; 2],
        level: Level<'_>,
    ) -> Result<Whole, CheckpointError> {
        // The oldest first, as git merges them.
        bases.reverse();
        let mut bases = bases.into_iter();
        let mut base = bases.next();
        for next in bases {
            let below = Level {
                depth: level.depth + 1,
                names: BASES,
            };
            base = base
                .map(|base| self.supposed([base, next], below))
                .transpose()?;
        }
        let base = match base {
            Some(base) => self.commit(base)?.tree,
            None => tree_object::empty_tree_id(),
        };
        let sides = [self.commit(ours)?.tree, self.commit(theirs)?.tree];
        self.trees([base, sides[0], sides[1]], level)
    }

    /// The commit that a merge of two bases would be. It is not kept.
    fn supposed(
        &mut self,
        sides: [ObjectId; 2],
        level: Level<'_>,
    ) -> Result<ObjectId, CheckpointError> {
        if level.depth > MAX_DEPTH {
            let detail = format!("the histories cross more than {MAX_DEPTH} times");
            return Err(CheckpointError::Unsupported(detail));
        }
        let bases = self.past.bases(sides[0], sides[1])?;
        let tree = self.commits(bases, sides, level)?.tree;
        let objects = tree.objects.into_iter();
        self.held.hold(objects.map(|(id, (_, bytes))| (id, bytes)));
        let name = format!("{} {} {}", tree.id, sides[0], sides[1]);
        let id = ObjectId::of(ObjectKind::Commit, name.as_bytes());
        let id = id.map_err(|e| StoreError::corrupt("a merge of bases", e.to_string()))?;
        self.past.suppose(Commit::new(id, tree.id, sides.to_vec()));
        Ok(id)
    }

    fn trees(
        &self,
        [base, ours, theirs]: [ObjectId; 3],
        level: Level<'_>,
    ) -> Result<Whole, CheckpointError> {
        let changes = |side| commit::between(self.op, &self.held, Some(base), Some(side));
        let mut contents = Contents::new(self.op, &self.held);
        let merged = entries::merge(
            [ours, theirs],
            [changes(ours)?, changes(theirs)?],
            level,
            &mut contents,
        )?;
        if level.depth == 0 && !merged.conflicts.is_empty() {
            let tree = MergedTree {
                id: ours,
                objects: BTreeMap::new(),
            };
            let conflicts = merged.conflicts;
            return Ok(Whole { tree, conflicts });
        }
        let edits = merged.paths.into_iter();
        let edits: Edits = edits
            .map(|(path, side)| (path, side.and_then(item_of)))
            .collect();
        let tree = commit::tree_with(self.op, &self.held, ours, &edits)?;
        let of_kind = |kind| move |(id, bytes)| (id, (kind, bytes));
        let blobs = contents.made.into_iter().map(of_kind(ObjectKind::Blob));
        let trees = tree.trees.into_iter().map(of_kind(ObjectKind::Tree));
        Ok(Whole {
            tree: MergedTree {
                id: tree.id,
                objects: blobs.chain(trees).collect(),
            },
            conflicts: merged.conflicts,
        })
    }
}
