//! Deciding what a restore does. Everything here is a function over values; the disk is touched
//! in `backends/worktree/src/apply.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::coverage::{Omission, OmissionReason};
use crate::dot_git::is_dot_git;
use crate::path::RelPath;
use crate::restore::RestorePlan;
use crate::restore::merge::Merge;
pub(crate) use crate::restore::sorted::range_below;
use crate::restore::sorted::{below, change_at, changes_below};
pub(crate) use crate::restore::view::{Node, View};
use crate::snapshot::SnapshotId;
use crate::tree::{Change, Entry};

mod judgement;
mod planner;

use planner::Planner;

/// Everything that [`plan`] decides by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    /// Names the snapshot that is put back.
    pub(crate) target: &'a SnapshotId,
    pub(crate) current: View<'a>,
    pub(crate) goal: View<'a>,
    /// From `current` to `goal`: all differences on disk ([`as_on_disk`]), sorted by path.
    pub(crate) changes: &'a [Change],
    /// Of [`directories_in_question`] those that `goal` has, because something captured lies in
    /// them or because they are listed as empty.
    pub(crate) goal_directories: &'a BTreeSet<RelPath>,
    /// What both sides hold alike, and may have with other permission bits. Sorted by path.
    pub(crate) same: &'a [(RelPath, Node)],
    /// Of the paths that only `current` has, those that the ignore rules of either side name.
    pub(crate) ignored: &'a BTreeMap<RelPath, OmissionReason>,
    /// Of the directories above those, the ones that the rules name and the goal knows not to have
    /// been there.
    pub(crate) ignored_directories: &'a BTreeSet<RelPath>,
    /// Of the empty directories of `goal`, those that a rule hides in `current` and that are known
    /// not to be there.
    pub(crate) absent_directories: &'a BTreeSet<RelPath>,
    /// Paths of `changes` at which a restore put what is there, since the goal was captured.
    pub(crate) made: &'a BTreeSet<RelPath>,
    /// Directories in which a restore put something since the goal was captured, and that it has by
    /// what its sparse checkout leaves out alone: on disk there was nothing in them.
    pub(crate) sparse_directories: &'a BTreeSet<RelPath>,
    /// Of the paths that the goal left out and `current` has captured, those at which nothing
    /// changed since.
    pub(crate) unchanged: &'a BTreeSet<RelPath>,
    /// Paths that a rule protected from an earlier restore to the goal, which took the rule away.
    /// Sorted; a directory stands for everything in it.
    pub(crate) spared: &'a [RelPath],
    /// Of the paths that the goal has, those that no snapshot holds: a restore displaced what was
    /// there. Nothing is known of them but where they lie now.
    pub(crate) held: &'a BTreeSet<RelPath>,
    /// What a restore displaced and is where it was, captured or not. No change tells of it.
    pub(crate) in_place: &'a BTreeSet<RelPath>,
    /// Literal paths to stay at and below; empty: everything.
    pub(crate) scope: &'a [RelPath],
    /// Take back an operation only, and keep what happened since.
    pub(crate) undo: Option<Undone<'a>>,
}

/// The operation that an undo takes back. It led from the goal to `after`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undone<'a> {
    pub(crate) after: View<'a>,
    /// From `after` to the goal: all differences on disk ([`as_on_disk`]), sorted by path.
    pub(crate) changes: &'a [Change],
    /// What comes of files that the operation changed and that were edited since, as far as they
    /// can be merged.
    pub(crate) merges: &'a BTreeMap<RelPath, Merge>,
    /// What the size tells of files that only one of `after` and the current state has captured, as
    /// far as it is known.
    pub(crate) sizes: &'a BTreeMap<RelPath, Size>,
    /// Files that the goal left out, and that are captured by now with the size that they had.
    pub(crate) regained: &'a BTreeSet<RelPath>,
}

/// What the size tells of a file that two captures met, and not both took; and its times, where the
/// later one took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// It may be the same.
    Same,
    /// It is another by now, or may be.
    Another,
}

impl Size {
    pub(crate) fn of(then: u64, now: u64) -> Self {
        match then == now {
            true => Self::Same,
            false => Self::Another,
        }
    }
}

/// Why a snapshot must not be put back. Nothing was planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// Some file system would take the path for a repository's own directory.
    #[error("it holds {path}, which some file systems take for .git")]
    GitAlias { path: RelPath },
    /// No worktree can look like this.
    #[error("it holds {path} more than once")]
    Repeated { path: RelPath },
    /// No worktree can look like this.
    #[error("it holds {path} both as a file and as a directory")]
    FileAndDirectory { path: RelPath },
}

/// The paths that a sparse checkout leaves out of one side only, sorted. On disk the two differ
/// there, though their trees may hold the same.
pub(crate) fn left_out_by_one(from: View<'_>, to: View<'_>) -> Vec<RelPath> {
    let left_out = |side: View<'_>, other: View<'_>| {
        let sparse = |o: &&Omission| o.reason == OmissionReason::Sparse;
        let omissions = side.coverage.omissions().iter().filter(sparse);
        let only_here = omissions.filter(|o| !other.is_sparse(&o.path));
        only_here.map(|o| o.path.clone()).collect::<Vec<_>>()
    };
    let mut paths = left_out(from, to);
    paths.extend(left_out(to, from));
    paths.sort();
    paths
}

/// Turns the differences between two trees into those between two disks: what a sparse checkout
/// leaves out of `from` is in its tree as the index has it, and is not there. `alike` is what both
/// trees hold at paths of [`left_out_by_one`].
pub(crate) fn as_on_disk(
    mut changes: Vec<Change>,
    alike: Vec<(RelPath, Entry)>,
    from: View<'_>,
) -> Vec<Change> {
    if !alike.is_empty() {
        changes.extend(alike.into_iter().map(|(path, entry)| Change {
            path,
            old: Some(entry),
            new: Some(entry),
        }));
        changes.sort_by(|a, b| a.path.cmp(&b.path));
    }
    for change in &mut changes {
        if from.is_sparse(&change.path) {
            change.old = None;
        }
    }
    changes
}

/// The directories of which a plan has to know whether the goal has them: a directory that it has
/// is not removed, whatever becomes of what is in it.
pub(crate) fn directories_in_question(changes: &[Change], current: View<'_>) -> BTreeSet<RelPath> {
    let mut asked = BTreeSet::new();
    for change in changes.iter().filter(|c| c.new.is_none()) {
        insert_ancestors(&mut asked, &change.path);
    }
    for path in current.empty_directories {
        insert_ancestors(&mut asked, path);
        asked.insert(path.clone());
    }
    for omission in current.coverage.omissions() {
        match omission.reason {
            OmissionReason::Ignored
            | OmissionReason::Excluded
            | OmissionReason::Sparse
            | OmissionReason::GitDir => {}
            _ => {
                asked.insert(omission.path.clone());
            }
        }
    }
    asked.remove(&RelPath::root());
    asked
}

/// Lists what has to change on disk so that the current state becomes the goal.
///
/// A path is removed only if the goal positively knows that it was not there, and nothing is
/// removed or replaced whose present content was not captured. What is left alone for such a
/// reason is named in [`RestorePlan::skipped`].
pub(crate) fn plan(question: &Question<'_>) -> Result<RestorePlan, PlanError> {
    check(question)?;
    Ok(Planner::new(question).decide())
}

/// Refuses a goal that no worktree can be, before anything is planned.
fn check(question: &Question<'_>) -> Result<(), PlanError> {
    let mut entry_above: Option<&RelPath> = None;
    let mut before: Option<&RelPath> = None;
    let wanted = question.changes.iter().filter(|c| c.new.is_some());
    for change in wanted {
        let path = &change.path;
        if before.is_some_and(|b| b >= path) {
            return Err(PlanError::Repeated { path: path.clone() });
        }
        before = Some(path);
        if path.is_root() || path.names().any(is_dot_git) {
            return Err(PlanError::GitAlias { path: path.clone() });
        }
        // Names such as `a-b` sort between `a` and `a/b`, so the parents are looked up as well.
        if entry_above.is_some_and(|above| path.starts_with(above))
            || is_below_entry(question, path)
        {
            return Err(PlanError::FileAndDirectory { path: path.clone() });
        }
        entry_above = Some(path);
    }
    for path in question.goal.empty_directories {
        if path.names().any(is_dot_git) {
            return Err(PlanError::GitAlias { path: path.clone() });
        }
    }
    Ok(())
}

fn is_below_entry(question: &Question<'_>, path: &RelPath) -> bool {
    ancestors(path)
        .any(|above| change_at(question.changes, &above).is_some_and(|c| c.new.is_some()))
}

/// The directories above `path`, from the nearest up; the workspace itself is left out.
fn ancestors(path: &RelPath) -> impl Iterator<Item = RelPath> {
    std::iter::successors(path.parent(), RelPath::parent).filter(|p| !p.is_root())
}

fn insert_ancestors(into: &mut BTreeSet<RelPath>, path: &RelPath) {
    for above in ancestors(path) {
        if !into.insert(above) {
            break;
        }
    }
}

#[cfg(test)]
mod tests;
