//! What a restore aims at, and asking the backend for everything that a plan decides by.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{self, Node, Operation, PlanError, Question, View};
use super::{Captured as _, Restorable, RestoreGoal, RestorePlan, Side};
use crate::backend::{RestoreError, SnapshotError, StoreError};
use crate::coverage::OmissionReason;
use crate::error::printable;
use crate::path::RelPath;
use crate::record::Record;
use crate::snapshot::{Snapshot, SnapshotId};
use crate::tree::{Change, Modes};
use crate::workspace::Workspace;

/// What a restore aims at, with everything that was recorded of it.
pub(super) struct Goal {
    /// What is gone back to.
    pub(super) record: Record,
    paths: Vec<RelPath>,
    /// The state after the operation that is taken back; `None` if the goal is a snapshot.
    after: Option<Record>,
    /// An undo of no paths at all, which is not the same as one of all paths.
    is_undo_of_nothing: bool,
}

impl Goal {
    pub(super) fn load<B: Restorable>(
        backend: &B,
        workspace: &Workspace,
        goal: &RestoreGoal,
    ) -> Result<Self, RestoreError> {
        let load = |snapshot: &Snapshot| backend.record(workspace, &snapshot.id);
        let loaded = match goal {
            RestoreGoal::Snapshot { snapshot, paths } => Self {
                record: load(snapshot)?,
                paths: paths.clone(),
                after: None,
                is_undo_of_nothing: false,
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
            },
        };
        backend.check_restorable(&loaded.record)?;
        loaded.refuse_unknown_paths(backend, workspace)?;
        Ok(loaded)
    }

    fn refuse_unknown_paths<B: Restorable>(
        &self,
        backend: &B,
        workspace: &Workspace,
    ) -> Result<(), RestoreError> {
        if self.after.is_some() {
            return Ok(());
        }
        for path in &self.paths {
            let is_known =
                path.is_root() || has(backend, workspace, Side::Stored(&self.record), path)?;
            if !is_known {
                return Err(RestoreError::UnknownPath {
                    snapshot: self.record.snapshot.id.clone(),
                    path: path.clone(),
                });
            }
        }
        Ok(())
    }

    /// Refuses to take an operation back where everything that it left was removed since.
    pub(super) fn refuse_undo_in_nothing(&self, workspace: &Workspace) -> Result<(), RestoreError> {
        match &self.after {
            None => Ok(()),
            Some(after) => Err(RestoreError::Unsupported(format!(
                "{} is gone, and everything that was left there; \"stillframe restore {}\" makes it \
                 again as it was before the operation, \"stillframe restore {}\" as it was after",
                printable(workspace.disk_path()),
                self.record.snapshot.id,
                after.snapshot.id
            ))),
        }
    }

    /// What the captures around this restore have to look at, whatever today's rules say.
    pub(super) fn keep(&self) -> Vec<&Record> {
        std::iter::once(&self.record).chain(&self.after).collect()
    }

    pub(super) fn plan<B: Restorable>(
        &self,
        backend: &B,
        workspace: &Workspace,
        now: &B::Capture,
    ) -> Result<RestorePlan, Unplanned> {
        let current = now.record();
        if self.is_undo_of_nothing {
            return Ok(RestorePlan::nothing(&self.record.snapshot.id));
        }
        let changes = changes_on_disk(backend, workspace, Side::Now(now), &self.record)?;
        let operation = match &self.after {
            Some(after) => changes_on_disk(backend, workspace, Side::Stored(after), &self.record)?,
            None => Vec::new(),
        };
        let same = self.same(backend, workspace, now, &changes)?;
        let view = View::of(current);
        let asked = plan::directories_in_question(&changes, view);
        let mut goal_directories = BTreeSet::new();
        for path in asked {
            if has_directory(backend, workspace, Side::Stored(&self.record), &path)? {
                goal_directories.insert(path);
            }
        }
        plan::plan(&Question {
            target: &self.record.snapshot.id,
            current: view,
            goal: View::of(&self.record),
            changes: &changes,
            goal_directories: &goal_directories,
            same: &same,
            ignored: &self.ignored(backend, workspace, now, &changes)?,
            scope: &self.paths,
            undo: self.after.as_ref().map(|after| Operation {
                after: View::of(after),
                changes: &operation,
            }),
        })
        .map_err(Unplanned::Impossible)
    }

    /// What both sides hold alike, and may have with other permission bits.
    fn same<B: Restorable>(
        &self,
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
            for (path, _) in backend.entries(workspace, &self.record)? {
                let above = std::iter::successors(path.parent(), RelPath::parent);
                asked.extend(above.filter(|p| !p.is_root()));
                asked.insert(path);
            }
            asked.extend(self.record.empty_directories.iter().cloned());
        }
        let mut same = Vec::new();
        for path in asked {
            let there = node(backend, workspace, Side::Stored(&self.record), &path)?;
            let is_same = match there {
                Some(Node::Entry(_)) => changes
                    .binary_search_by(|change| change.path.cmp(&path))
                    .is_err(),
                Some(Node::Directory) => has_directory(backend, workspace, Side::Now(now), &path)?,
                None => false,
            };
            if let Some(node) = there.filter(|_| is_same) {
                same.push((path, node));
            }
        }
        Ok(same)
    }

    /// Of the paths that only the present state has, those that today's rules or the goal's name.
    fn ignored<B: Restorable>(
        &self,
        backend: &B,
        workspace: &Workspace,
        now: &B::Capture,
        changes: &[Change],
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError> {
        let removed: Vec<RelPath> = changes
            .iter()
            .filter(|change| change.new.is_none())
            .map(|change| change.path.clone())
            .collect();
        if removed.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut ignored = backend.ignored(workspace, Side::Stored(&self.record), &removed)?;
        for (path, reason) in backend.ignored(workspace, Side::Now(now), &removed)? {
            ignored.entry(path).or_insert(reason);
        }
        Ok(ignored)
    }

    /// What is ignored and came since the goal was captured. A directory counts as one.
    pub(super) fn leftover_ignored(&self, guard: &Record) -> Vec<RelPath> {
        let known = &self.record.snapshot.omissions;
        let is_in_scope = |path: &RelPath| {
            self.paths.is_empty() || self.paths.iter().any(|p| path.starts_with(p))
        };
        guard
            .snapshot
            .omissions()
            .iter()
            .filter(|o| {
                matches!(o.reason, OmissionReason::Ignored | OmissionReason::Excluded)
                    && is_in_scope(&o.path)
                    && known.covers(&o.path).is_none()
                    && known.below(&o.path).next().is_none()
            })
            .map(|o| o.path.clone())
            .collect()
    }
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
            Self::Store(source) => RestoreError::Store(source),
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
    backend: &B,
    workspace: &Workspace,
    from: Side<'_, B::Capture>,
    to: &Record,
) -> Result<Vec<Change>, StoreError> {
    let changes = backend.changes(workspace, from, to)?;
    let here = View::of(from.record());
    let mut alike = Vec::new();
    for path in plan::left_out_by_one(here, View::of(to)) {
        let is_listed = changes.binary_search_by(|c| c.path.cmp(&path)).is_ok();
        if !is_listed && let Some(Node::Entry(entry)) = backend.lookup(workspace, from, &path)? {
            alike.push((path, entry));
        }
    }
    Ok(plan::as_on_disk(changes, alike, here))
}

/// What a side holds at a path, empty directories included.
fn node<B: Restorable>(
    backend: &B,
    workspace: &Workspace,
    side: Side<'_, B::Capture>,
    path: &RelPath,
) -> Result<Option<Node>, StoreError> {
    if path.is_root() {
        return Ok(Some(Node::Directory));
    }
    if let Some(node) = backend.lookup(workspace, side, path)? {
        return Ok(Some(node));
    }
    let is_there = View::of(side.record()).has_empty_at_or_below(path);
    Ok(is_there.then_some(Node::Directory))
}

fn has<B: Restorable>(
    backend: &B,
    workspace: &Workspace,
    side: Side<'_, B::Capture>,
    path: &RelPath,
) -> Result<bool, StoreError> {
    Ok(node(backend, workspace, side, path)?.is_some())
}

fn has_directory<B: Restorable>(
    backend: &B,
    workspace: &Workspace,
    side: Side<'_, B::Capture>,
    path: &RelPath,
) -> Result<bool, StoreError> {
    Ok(node(backend, workspace, side, path)? == Some(Node::Directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, PathError};
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
