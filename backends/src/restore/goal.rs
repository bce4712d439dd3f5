//! What a restore aims at, and asking the backend for everything that a plan decides by.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::evidence;
use super::merge::{self, Merges};
use super::plan::{self, Node, PlanError, Question, Undone, View};
use super::{
    Captured, Restorable, RestoreGoal, RestorePlan, Side, SkipReason, Skipped, check_content_kept,
};
use crate::coverage::{Omission, OmissionReason};
use crate::error::PathError;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::record::Record;
use crate::restore_error::RestoreError;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId, EntryKind, Modes};
use crate::workspace::Workspace;
use crate::worktree::displaced::Held;
use crate::worktree::remembered::{Made, Remembered, Spared};
use crate::worktree::root::{self, Root};
use crate::worktree::stat_cache::{EntryStat, kind_of_mode};

/// The empty directories of `goal` that a rule hides in `current`, as far as they are not there.
fn absent_directories(
    workspace: &Workspace,
    current: View<'_>,
    goal: &Record,
) -> Result<BTreeSet<RelPath>, PathError> {
    let is_hidden = |path: &&RelPath| {
        let omission = current.coverage.covers(path);
        omission.is_some_and(Omission::hides_a_directory)
    };
    let mut hidden = goal.empty_directories.iter().filter(is_hidden).peekable();
    if hidden.peek().is_none() {
        return Ok(BTreeSet::new());
    }
    let root = workspace.root()?;
    let is_absent = |path: &&RelPath| matches!(root.lstat(path), Err(Errno::NOENT));
    Ok(hidden.filter(is_absent).cloned().collect())
}

/// Whether the workspace has something at `path` that a snapshot could know. What may not be looked
/// at is taken to be there.
fn is_there(workspace: &Workspace, path: &RelPath) -> Result<bool, RestoreError> {
    if path.names().next() == Some(b".git") {
        return Ok(false);
    }
    let root = match workspace.root() {
        Ok(root) => root,
        // All of it was removed.
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(RestoreError::Prepare(error)),
    };
    Ok(!root.lstat(path).is_err_and(root::is_gone_or_replaced))
}

/// What a restore aims at, with everything that was recorded of it.
pub(super) struct Goal {
    /// What is gone back to.
    pub(super) record: Record,
    paths: Vec<RelPath>,
    /// The state after the operation that is taken back; `None` if the goal is a snapshot.
    after: Option<Record>,
    /// An undo of no paths at all, which is not the same as one of all paths.
    is_undo_of_nothing: bool,
    /// What restores put where nothing was since the goal, if that is a guard.
    made: Made,
    /// What the goal left out, and the restore that it is the guard of displaced. It is put back
    /// too.
    pub(super) held: Held,
}

impl Goal {
    pub(super) fn load<B: Restorable>(
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        goal: &RestoreGoal,
    ) -> Result<Self, RestoreError> {
        let remembered = Remembered::of(workspace.store_path());
        let purged = Purged::of(workspace)?;
        let load = |snapshot: &Snapshot| {
            let mut record = backend.record(op, workspace, &snapshot.id)?;
            if !purged.is_empty() {
                let entries = backend.entries(op, workspace, &record)?;
                purged.name_in(&mut record, entries);
            }
            Ok::<_, StoreError>(record)
        };
        let loaded = match goal {
            RestoreGoal::Snapshot { snapshot, paths } => Self {
                record: load(snapshot)?,
                paths: paths.clone(),
                after: None,
                is_undo_of_nothing: false,
                made: remembered.made_since(snapshot)?,
                held: Held::of(workspace.store_path(), &snapshot.id)?,
            },
            RestoreGoal::Undo {
                before,
                after,
                paths,
            } => Self {
                record: load(before)?,
                paths: paths.clone().unwrap_or_default(),
                after: Some(load(after)?),
                is_undo_of_nothing: paths.as_ref().is_some_and(Vec::is_empty),
                made: remembered.made_since(before)?,
                held: Held::of(workspace.store_path(), &before.id)?,
            },
        };
        check_content_kept(&loaded.record)?;
        loaded.refuse_unknown_paths(op, backend, workspace)?;
        Ok(loaded)
    }

    fn refuse_unknown_paths<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
    ) -> Result<(), RestoreError> {
        if self.after.is_some() {
            return Ok(());
        }
        let there = nodes(
            op,
            backend,
            workspace,
            Side::Stored(&self.record),
            &self.paths,
        )?;
        for (path, there) in self.paths.iter().zip(there) {
            let omissions = &self.record.snapshot.omissions;
            let own = omissions.at(path).map(|omission| omission.reason);
            if self.held.has(path) {
                continue;
            }
            if there.is_none() || own == Some(OmissionReason::Purged) {
                let (snapshot, path) = (self.record.snapshot.id.clone(), path.clone());
                return Err(match omissions.covers(&path).cloned() {
                    // It was not there, so that what is there by now goes.
                    None if is_there(workspace, &path)? => continue,
                    None => RestoreError::UnknownPath { snapshot, path },
                    Some(omission) => RestoreError::OmittedPath {
                        snapshot,
                        path,
                        omission,
                    },
                });
            }
        }
        Ok(())
    }

    /// Refuses to take an operation back where everything that it left was removed since.
    pub(super) fn refuse_undo_in_nothing(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        match &self.after {
            None => Ok(()),
            Some(after) => Err(RestoreError::NothingLeft {
                workspace: workspace.disk_path().to_owned(),
                before: self.record.snapshot.id.clone(),
                after: after.snapshot.id.clone(),
            }),
        }
    }

    /// What the captures around this restore have to look at, whatever today's rules say.
    pub(super) fn keep(&self) -> Vec<&Record> {
        std::iter::once(&self.record).chain(&self.after).collect()
    }

    /// Where a restore put something since the goal, a guard, that still is as it was put. It is
    /// captured although a rule ignores it, so that it can be taken back.
    pub(super) fn made_since(&self, workspace: &Workspace) -> Result<Vec<RelPath>, PathError> {
        if self.made.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.made.still_there(&workspace.root()?))
    }

    /// What a rule protects from this restore of `plan` and will not from the next, since the rule
    /// goes away with it.
    pub(super) fn spares(&self, root: &Root, guard: &Record, plan: &RestorePlan) -> Vec<Spared> {
        let changes_rules = |path: &RelPath| path.name() == b".gitignore";
        if !plan.changed_paths().any(changes_rules) {
            return Vec::new();
        }
        let known = &self.record.snapshot.omissions;
        let hidden = guard.snapshot.omissions().iter();
        let hidden = hidden
            .filter(|o| o.reason == OmissionReason::Ignored && self.is_asked_for(&o.path))
            .map(|o| &o.path);
        let kept = plan.skipped.iter();
        let kept = kept
            .filter(|s| s.reason == SkipReason::Omitted(OmissionReason::Ignored))
            .map(|s| &s.path);
        hidden
            .chain(kept)
            .chain(&plan.leftover_ignored)
            .filter(|path| known.covers(path).is_none())
            .filter_map(|path| {
                Some(Spared {
                    path: path.clone(),
                    inode: root.lstat(path).ok()?.inode,
                    target: self.record.snapshot.id.clone(),
                    at: guard.snapshot.captured_at,
                })
            })
            .collect()
    }

    fn is_asked_for(&self, path: &RelPath) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|p| path.starts_with(p))
    }

    /// Says what a restore does where things are as `now` saw them.
    pub(super) fn plan<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        now: &B::Capture,
    ) -> Result<Planned, Unplanned> {
        let current = now.record();
        if self.is_undo_of_nothing {
            return Ok(Planned {
                plan: RestorePlan::nothing(&self.record.snapshot.id),
                made: BTreeMap::new(),
            });
        }
        let changes = changes_on_disk(op, backend, workspace, Side::Now(now), &self.record)?;
        let operation = match &self.after {
            Some(after) => {
                changes_on_disk(op, backend, workspace, Side::Stored(after), &self.record)?
            }
            None => Vec::new(),
        };
        let view = View::of(current);
        let merges = self.merges(op, backend, workspace, view, &changes, &operation)?;
        let missing = self.missing(workspace).map_err(StoreError::from)?;
        // What is where it was, and is captured by now, is no omission any more.
        let known = self.held.missing(|omission, _| {
            !missing.has(&omission.path) && view.coverage.covers(&omission.path).is_some()
        });
        let coverage = known.without(&self.record.snapshot.omissions);
        let goal = View {
            coverage: &coverage,
            ..View::of(&self.record)
        };
        let changes = missing.and_changes(changes, &self.held);
        let operation = match &self.after {
            None => operation,
            Some(after) => {
                let known = &after.snapshot.omissions;
                let left = self.held.missing(|o, _| known.at(&o.path) == Some(o));
                left.and_changes(operation, &self.held)
            }
        };
        let same = self.same(op, backend, workspace, now, &changes)?;
        let asked = plan::directories_in_question(&changes, view);
        let goal_directories = self.directories_among(op, backend, workspace, asked)?;
        let in_place = self.held.missing(|omission, _| missing.has(&omission.path));
        let made = self.made_among(now, &changes);
        let spared = match &self.after {
            // What an operation made, its undo takes back.
            Some(_) => Vec::new(),
            None => Remembered::of(workspace.store_path())
                .spared(|| workspace.root(), &self.record.snapshot)?,
        };
        let sizes = match &self.after {
            Some(after) => evidence::sizes(op, backend, workspace, now, after, &operation)
                .map_err(StoreError::from)?,
            None => BTreeMap::new(),
        };
        let regained = match &self.after {
            Some(_) => self.regained(now),
            None => BTreeSet::new(),
        };
        let absent_directories =
            absent_directories(workspace, view, &self.record).map_err(StoreError::from)?;
        let ignored = self.ignored(op, backend, workspace, now, &changes, &made)?;
        let sparse_directories = self.sparse_directories(op, backend, workspace, &made)?;
        let unchanged = evidence::unchanged(workspace, now, &self.record, &changes)
            .map_err(StoreError::from)?;
        let plan = plan::plan(&Question {
            target: &self.record.snapshot.id,
            current: view,
            goal,
            changes: &changes,
            goal_directories: &goal_directories,
            same: &same,
            ignored: &ignored,
            ignored_directories: &self
                .ignored_directories(op, backend, workspace, now, &ignored)?,
            absent_directories: &absent_directories,
            made: &made,
            unchanged: &unchanged,
            sparse_directories: &sparse_directories,
            spared: &spared,
            held: &missing.paths(),
            in_place: &in_place.paths(),
            scope: &self.paths,
            undo: self.after.as_ref().map(|after| Undone {
                after: View::of(after),
                changes: &operation,
                merges: &merges.by_path,
                sizes: &sizes,
                regained: &regained,
            }),
        })
        .map_err(Unplanned::Impossible)?;
        let made = merges.made;
        Ok(Planned { plan, made })
    }

    /// What a sparse checkout leaves out at the goal, and `now` has captured and `plan` leaves on
    /// disk.
    pub(super) fn staying_in_sparse<C: Captured>(
        &self,
        now: &C,
        plan: &RestorePlan,
    ) -> BTreeSet<RelPath> {
        let removed: BTreeSet<&RelPath> = plan.removals.iter().map(|r| &r.path).collect();
        let left_out = self.record.snapshot.omissions().iter();
        let left_out = left_out.filter(|omission| omission.reason == OmissionReason::Sparse);
        let stays = left_out
            .map(|omission| &omission.path)
            .filter(|path| !removed.contains(path) && now.seen(path).is_some());
        stays.cloned().collect()
    }

    /// The directories that the goal has by what a sparse checkout leaves out alone, of those in
    /// which a restore put what is there of `made`.
    fn sparse_directories<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        made: &BTreeSet<RelPath>,
    ) -> Result<BTreeSet<RelPath>, StoreError> {
        let goal = View::of(&self.record);
        let made = made.iter().filter(|path| goal.is_sparse(path));
        let above = |path: &RelPath| std::iter::successors(path.parent(), RelPath::parent);
        let mut directories: BTreeSet<RelPath> = made
            .flat_map(above)
            .filter(|path| !path.is_root())
            .collect();
        if directories.is_empty() {
            return Ok(directories);
        }
        for (path, _) in backend.entries(op, workspace, &self.record)? {
            if !goal.is_sparse(&path) {
                for directory in above(&path) {
                    directories.remove(&directory);
                }
            }
        }
        Ok(directories)
    }

    /// The files that the goal left out and `now` has captured with the size that they had.
    fn regained<C: Captured>(&self, now: &C) -> BTreeSet<RelPath> {
        let left_out = self.record.snapshot.omissions().iter();
        let has_its_size = |omission: &&Omission| {
            let file = now.seen(&omission.path).map(|seen| seen.stat);
            let file = file.filter(|stat| kind_of_mode(stat.mode) != Some(EntryKind::Symlink));
            file.is_some_and(|stat| omission.bytes == Some(stat.size))
        };
        let regained = left_out.filter(has_its_size);
        regained.map(|omission| omission.path.clone()).collect()
    }

    /// Those of `paths` at which the goal has a directory.
    fn directories_among<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        paths: BTreeSet<RelPath>,
    ) -> Result<BTreeSet<RelPath>, StoreError> {
        let paths = Vec::from_iter(paths);
        let there = nodes(op, backend, workspace, Side::Stored(&self.record), &paths)?;
        let there = paths.into_iter().zip(there);
        let directories = there.filter(|(_, there)| *there == Some(Node::Directory));
        Ok(directories.map(|(path, _)| path).collect())
    }

    /// What comes of the files in which edits meet what an undo takes back.
    fn merges<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        current: View<'_>,
        changes: &[Change],
        operation: &[Change],
    ) -> Result<Merges, StoreError> {
        let Some(after) = &self.after else {
            return Ok(Merges::default());
        };
        let candidates = merge::candidates(&merge::Versions {
            current,
            after: View::of(after),
            before: View::of(&self.record),
            changes,
            operation,
        });
        merge::merge_all(op, backend, workspace, candidates)
    }

    /// What was displaced and is not where it was.
    fn missing(&self, workspace: &Workspace) -> Result<Held, PathError> {
        if self.held.is_empty() {
            return Ok(Held::default());
        }
        let root = workspace.root()?;
        Ok(self.held.missing(|omission, is_it| {
            let found = root.lstat(&omission.path);
            found.is_ok_and(|found| is_it(&EntryStat::of(&found)))
        }))
    }

    /// What both sides hold alike, and may have with other permission bits.
    fn same<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        now: &B::Capture,
        changes: &[Change],
    ) -> Result<Vec<(RelPath, Node)>, StoreError> {
        let current = now.record();
        let (here, there) = (&current.modes, &self.record.modes);
        let mut asked: BTreeSet<RelPath> = [here, there]
            .into_iter()
            .flat_map(|modes| modes.exceptions.iter().map(|(path, _)| path.clone()))
            .collect();
        let usual = |m: &Modes| (m.file, m.executable, m.directory);
        if usual(here) != usual(there) {
            let entries = backend.entries(op, workspace, &self.record)?.into_iter();
            let empty = self.record.empty_directories.iter().cloned();
            for path in entries.map(|(path, _)| path).chain(empty) {
                let above = std::iter::successors(path.parent(), RelPath::parent);
                asked.extend(above.filter(|p| !p.is_root()));
                asked.insert(path);
            }
        }
        let asked: Vec<RelPath> = asked.into_iter().collect();
        let nodes_there = nodes(op, backend, workspace, Side::Stored(&self.record), &asked)?;
        let (mut same, mut directories) = (Vec::new(), Vec::new());
        for (path, there) in asked.into_iter().zip(nodes_there) {
            match there {
                Some(node @ Node::Entry(_)) => {
                    let differs = changes.binary_search_by(|change| change.path.cmp(&path));
                    if differs.is_err() {
                        same.push((path, node));
                    }
                }
                Some(Node::Directory) => directories.push(path),
                None => {}
            }
        }
        let nodes_here = nodes(op, backend, workspace, Side::Now(now), &directories)?;
        let alike = directories
            .into_iter()
            .zip(nodes_here)
            .filter(|(_, here)| *here == Some(Node::Directory));
        same.extend(alike.map(|(path, _)| (path, Node::Directory)));
        same.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(same)
    }

    /// Of the paths that differ, those at which a restore put what is there. They are known,
    /// whatever a rule says.
    fn made_among<C: Captured>(&self, now: &C, changes: &[Change]) -> BTreeSet<RelPath> {
        let is_made = |path: &RelPath| {
            let seen = now.seen(path);
            seen.is_some_and(|seen| self.made.is_at(path, &seen.stat))
        };
        let paths = changes.iter().map(|change| &change.path);
        paths.filter(|path| is_made(path)).cloned().collect()
    }

    /// Of the paths that only the present state has, those that today's rules or the goal's name.
    fn ignored<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        now: &B::Capture,
        changes: &[Change],
        made: &BTreeSet<RelPath>,
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError> {
        let removed: Vec<RelPath> = changes
            .iter()
            .filter(|change| change.new.is_none() && !made.contains(&change.path))
            .map(|change| change.path.clone())
            .collect();
        if removed.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut ignored = backend.ignored(op, workspace, Side::Stored(&self.record), &removed)?;
        for (path, reason) in backend.ignored(op, workspace, Side::Now(now), &removed)? {
            ignored.entry(path).or_insert(reason);
        }
        Ok(ignored)
    }

    /// The directories above `ignored` paths that today's rules or the goal's name, and that came
    /// since the goal.
    fn ignored_directories<B: Restorable>(
        &self,
        op: &Operation,
        backend: &B,
        workspace: &Workspace,
        now: &B::Capture,
        ignored: &BTreeMap<RelPath, OmissionReason>,
    ) -> Result<BTreeSet<RelPath>, StoreError> {
        let above = |path: &RelPath| std::iter::successors(path.parent(), RelPath::parent);
        let all: BTreeSet<RelPath> = ignored.keys().flat_map(above).collect();
        let all: Vec<RelPath> = all.into_iter().filter(|path| !path.is_root()).collect();
        let then = Side::Stored(&self.record);
        let there = nodes(op, backend, workspace, then, &all)?;
        let new = all.into_iter().zip(there);
        let new: Vec<RelPath> = new
            .filter(|(path, there)| there.is_none() && self.came_since(path))
            .map(|(path, _)| path)
            .collect();
        let mut named =
            BTreeSet::from_iter(backend.ignored_directories(op, workspace, then, &new)?);
        named.extend(backend.ignored_directories(op, workspace, Side::Now(now), &new)?);
        Ok(named)
    }

    /// What is ignored and came since the goal was captured. A directory counts as one, and what is
    /// in a repository that was kept whole counts as that.
    ///
    /// A rule may have hidden new paths in a directory that was there before from the guard. They
    /// show in `left`, what still differs afterwards, if the restore took that rule away. The other
    /// way round, the guard may have captured what a rule hides that the restore brings back: the
    /// plan has that.
    pub(super) fn leftover_ignored(
        &self,
        guard: &Record,
        plan: &RestorePlan,
        skipped: &[Skipped],
        left: Option<&RestorePlan>,
    ) -> Vec<RelPath> {
        let in_repository = |path: &RelPath| {
            let mut repositories = skipped
                .iter()
                .filter(|s| s.reason == SkipReason::NestedRepository);
            repositories.any(|s| path.starts_with(&s.path))
        };
        let known = &self.record.snapshot.omissions;
        let hidden = guard.snapshot.omissions().iter();
        let hidden = hidden.filter(|o| o.is_left_out_by_rule()).map(|o| &o.path);
        let hidden = hidden.filter(|path| self.is_asked_for(path) && self.came_since(path));
        let came_to_light = left.into_iter().flat_map(|left| {
            let spared = left.skipped.iter();
            let spared = spared
                .filter(|s| matches!(s.reason, SkipReason::Omitted(reason) if reason.is_a_rule()))
                .map(|s| &s.path);
            let removals = left.removals.iter().map(|r| &r.path);
            removals.chain(spared).chain(&left.leftover_ignored)
        });
        let was_hidden = |path: &&RelPath| {
            let then = guard.snapshot.omissions.covers(path);
            then.is_some_and(Omission::is_left_out_by_rule) && known.covers(path).is_none()
        };
        let found = hidden.chain(&plan.leftover_ignored);
        let found = found.chain(came_to_light.filter(was_hidden));
        let mut leftover = BTreeSet::new();
        // A directory is sorted before what is in it.
        for path in found.cloned().collect::<BTreeSet<_>>() {
            let is_listed = std::iter::successors(Some(path.clone()), RelPath::parent)
                .any(|p| leftover.contains(&p));
            if !is_listed && !in_repository(&path) {
                leftover.insert(path);
            }
        }
        leftover.into_iter().collect()
    }

    /// Whether the goal knows that nothing was left out at `path` or below it, and has no empty
    /// directory there.
    fn came_since(&self, path: &RelPath) -> bool {
        let goal = View::of(&self.record);
        goal.coverage.covers(path).is_none()
            && goal.coverage.below(path).next().is_none()
            && !goal.has_empty_at_or_below(path)
    }
}

/// A plan, with what it needs that no snapshot has.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: RestorePlan,
    /// The content of merged files.
    pub(super) made: BTreeMap<ContentId, Vec<u8>>,
}

/// Why there is no plan.
#[derive(Debug)]
pub(super) enum Unplanned {
    /// The store could not answer.
    Store(StoreError),
    /// The goal is nothing that a worktree can be.
    Impossible(PlanError),
}

impl From<StoreError> for Unplanned {
    fn from(source: StoreError) -> Self {
        Self::Store(source)
    }
}

impl Unplanned {
    /// While nothing was touched.
    pub(super) fn before_anything(self, target: &SnapshotId) -> RestoreError {
        match self {
            Self::Store(source) => source.into(),
            Self::Impossible(error) => RestoreError::TargetCorrupt {
                snapshot: target.clone(),
                detail: error.to_string(),
            },
        }
    }

    /// Once the files are restored, which must not be denied.
    pub(super) fn after_the_fact(self, target: &SnapshotId) -> RestoreError {
        let source = match self {
            Self::Store(source) => source,
            Self::Impossible(error) => {
                StoreError::corrupt(format!("snapshot {target}"), error.to_string())
            }
        };
        RestoreError::Closing(SnapshotError::Store(source))
    }
}

/// Every difference on disk between two sides, sorted by path.
fn changes_on_disk<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    from: Side<'_, B::Capture>,
    to: &Record,
) -> Result<Vec<Change>, StoreError> {
    let changes = backend.changes(op, workspace, from, to)?;
    let here = View::of(from.record());
    let is_listed = |path: &RelPath| changes.binary_search_by(|c| c.path.cmp(path)).is_ok();
    let asked: Vec<RelPath> = plan::left_out_by_one(here, View::of(to))
        .into_iter()
        .filter(|path| !is_listed(path))
        .collect();
    let found = backend.lookup(op, workspace, from, &asked)?;
    let alike = asked.into_iter().zip(found);
    let alike = alike.filter_map(|(path, node)| match node {
        Some(Node::Entry(entry)) => Some((path, entry)),
        _ => None,
    });
    let alike = alike.collect();
    Ok(plan::as_on_disk(changes, alike, here))
}

/// What a side holds at each of `paths`, empty directories included.
fn nodes<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    side: Side<'_, B::Capture>,
    paths: &[RelPath],
) -> Result<Vec<Option<Node>>, StoreError> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let view = View::of(side.record());
    let found = backend.lookup(op, workspace, side, paths)?;
    let nodes = paths.iter().zip(found).map(|(path, node)| {
        let is_directory = || path.is_root() || view.has_empty_at_or_below(path);
        node.or_else(|| is_directory().then_some(Node::Directory))
    });
    Ok(nodes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::restore::naive::rel;

    #[test]
    fn a_comparison_that_fails_afterwards_keeps_its_kind_and_says_that_files_were_touched() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let id = SnapshotId::random();
        for (error, kind) in [
            (
                StoreError::Io(PathError::at("read", "/store")(full())).into(),
                ErrorKind::NoSpace,
            ),
            (
                StoreError::UnknownSnapshot { id: id.clone() }.into(),
                ErrorKind::NotFound,
            ),
            (
                Unplanned::Impossible(PlanError::Repeated { path: rel("a") }),
                ErrorKind::Corrupt,
            ),
        ] {
            let error: RestoreError = Unplanned::after_the_fact(error, &id);
            assert_eq!((error.kind(), error.touched()), (kind, true), "{error:?}");
        }
    }
}
