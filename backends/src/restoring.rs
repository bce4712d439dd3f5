//! The order of a restore, shared by both backends: guard, plan, check, stage, intent, apply,
//! compare.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Instant;

use crate::backend::{
    Recovery, RepositoryRestore, RestoreError, RestoreOptions, RestoreOutcome, SnapshotError,
    SnapshotOptions, StoreError,
};
use crate::coverage::OmissionReason;
use crate::error::{PathError, printable};
use crate::git::ObjectId;
use crate::git::rollback::{self, FoundRepository};
use crate::path::RelPath;
use crate::record::Record;
pub(crate) use crate::restore::Node;
use crate::restore::{
    self, Operation, PlanError, PlanId, Question, RestoreGoal, RestorePlan, SkipReason, Skipped,
    View,
};
use crate::snapshot::{Label, Snapshot, SnapshotId};
use crate::tree::{Change, ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::apply::Committed;
use crate::worktree::area;
use crate::worktree::journal::{self, State};
use crate::worktree::root::Root;
use crate::worktree::staging::{self, CommitError, StageError};
use crate::worktree::stat_cache::EntryStat;

#[cfg(test)]
pub(crate) mod naive;

/// What the shared order of a restore needs from a backend.
pub(crate) trait Restorable {
    /// What a capture answers with.
    type Capture: Captured;

    /// Everything that was recorded of a snapshot. An id that the store does not have is
    /// [`StoreError::UnknownSnapshot`].
    fn record(&self, workspace: &Workspace, id: &SnapshotId) -> Result<Record, StoreError>;

    /// Refuses a snapshot that can never be put back, such as one without its content. Cheap:
    /// asked before anything else is done.
    fn check_restorable(&self, record: &Record) -> Result<(), RestoreError>;

    /// Captures what is there.
    ///
    /// A path that one of `keep` captured is captured although a rule ignores it. With
    /// [`Publish::Yes`] the snapshot is durable and was read back, content included; with
    /// [`Publish::No`] nothing is written.
    fn capture(
        &self,
        workspace: &LockedWorkspace,
        options: &SnapshotOptions,
        keep: &[&Record],
        publish: Publish,
    ) -> Result<Self::Capture, SnapshotError>;

    /// Every path at which `from` and `to` hold another entry, sorted by path, unique. Coverage
    /// plays no part in it.
    fn changes(
        &self,
        workspace: &Workspace,
        from: Side<'_, Self::Capture>,
        to: &Record,
    ) -> Result<Vec<Change>, StoreError>;

    /// What `side` captured at `path`. A directory with nothing captured in it may be `None`: the
    /// caller looks into [`Record::empty_directories`] too.
    fn lookup(
        &self,
        workspace: &Workspace,
        side: Side<'_, Self::Capture>,
        path: &RelPath,
    ) -> Result<Option<Node>, StoreError>;

    /// All entries, sorted by path. Asked for only where the usual permission bits of the two
    /// sides differ, which makes every path a candidate.
    fn entries(
        &self,
        workspace: &Workspace,
        record: &Record,
    ) -> Result<Vec<(RelPath, Entry)>, StoreError>;

    /// Those of `paths` (files and links, sorted) that the ignore rules of `side` name: the ignore
    /// files in its tree, the rules around it and the host's options. A path that the index of that
    /// side has is not ignored, whatever the rules say.
    fn ignored(
        &self,
        workspace: &Workspace,
        side: Side<'_, Self::Capture>,
        paths: &[RelPath],
    ) -> Result<BTreeMap<RelPath, OmissionReason>, StoreError>;

    /// Those of `ids` (sorted, unique) that the store does not have. Content is not read.
    fn missing(
        &self,
        workspace: &Workspace,
        ids: &[ContentId],
    ) -> Result<Vec<ContentId>, StoreError>;

    /// Writes the content with this id to `sink`, as a stream, and checks it against the id:
    /// [`StoreError::Corrupt`] if it is not what the id says, whatever was written by then.
    fn write_content(
        &self,
        workspace: &Workspace,
        id: &ContentId,
        sink: &mut dyn Write,
    ) -> Result<(), ContentError>;

    /// The user's repository as it is now; `None` if the backend knows of none, or it is gone.
    fn repository(
        &self,
        workspace: &LockedWorkspace,
    ) -> Result<Option<FoundRepository>, RestoreError>;

    /// The bytes of a user's index that a snapshot kept.
    fn index_bytes(&self, workspace: &Workspace, blob: &ObjectId) -> Result<Vec<u8>, StoreError>;
}

/// What was just captured, published or not.
pub(crate) trait Captured {
    /// The record as it was published, or would have been.
    fn record(&self) -> &Record;

    /// What `lstat` said of the captured file or link at `path` when its content was known to be
    /// what the record says; `None` if it is not on disk or was not captured.
    fn stat(&self, path: &RelPath) -> Option<EntryStat>;
}

/// Whether a capture becomes a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    Yes,
    No,
}

/// A snapshot in the store, or a capture that was just made.
#[derive(Debug)]
pub(crate) enum Side<'a, C> {
    Stored(&'a Record),
    Now(&'a C),
}

impl<C> Clone for Side<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Side<'_, C> {}

impl<'a, C: Captured> Side<'a, C> {
    /// What was recorded of this side.
    fn record(self) -> &'a Record {
        match self {
            Side::Stored(record) => record,
            Side::Now(capture) => capture.record(),
        }
    }
}

/// Why some content could not be written where it was wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    /// The store lacks it, or has something else under its id.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The place it was to be written to refused.
    #[error("cannot write the content")]
    Sink(#[source] std::io::Error),
}

/// Says what a restore would do. Nothing is written.
pub(crate) fn plan_only<B: Restorable>(
    backend: &B,
    workspace: &LockedWorkspace,
    goal: &RestoreGoal,
    options: &SnapshotOptions,
) -> Result<RestorePlan, RestoreError> {
    let goal = Goal::load(backend, workspace, goal)?;
    let now = backend
        .capture(workspace, options, &goal.keep(), Publish::No)
        .map_err(RestoreError::Guard)?;
    goal.plan(backend, workspace, &now)
        .map_err(|error| error.before_anything(&goal.record.snapshot.id))
}

/// Restores: see [`Backend::restore`](crate::Backend::restore).
pub(crate) fn restore<B: Restorable>(
    backend: &B,
    workspace: &mut LockedWorkspace,
    goal: &RestoreGoal,
    options: &RestoreOptions,
) -> Result<RestoreOutcome, RestoreError> {
    let loaded = Goal::load(backend, workspace, goal)?;
    if !workspace.is_gone() {
        return restore_in_place(backend, workspace, &loaded, options);
    }
    loaded.refuse_undo_in_nothing(workspace)?;
    workspace.make_again().map_err(RestoreError::Prepare)?;
    let restored = restore_in_place(backend, workspace, &loaded, options);
    if restored.as_ref().is_err_and(|e| !e.touched()) {
        workspace.remove_again();
    }
    restored
}

/// Restores in a directory that is there.
fn restore_in_place<B: Restorable>(
    backend: &B,
    workspace: &LockedWorkspace,
    goal: &Goal,
    options: &RestoreOptions,
) -> Result<RestoreOutcome, RestoreError> {
    let started = Instant::now();
    // Two restores that are both half done could not be told apart.
    recover(workspace)?;
    let repository = prepare_repository(backend, workspace, options)?;

    let guard = backend
        .capture(
            workspace,
            &guard_options(options),
            &goal.keep(),
            Publish::Yes,
        )
        .map_err(RestoreError::Guard)?;
    let plan = goal
        .plan(backend, workspace, &guard)
        .map_err(|error| error.before_anything(&goal.record.snapshot.id))?;
    refuse_another_plan(&plan, options.expected_plan.as_ref())?;
    check_content(backend, workspace, &plan, goal)?;

    let has_repository_work = repository.as_ref().is_some_and(|r| !r.plan.is_empty());
    if plan.is_empty() && !has_repository_work {
        return Ok(RestoreOutcome {
            restored: Vec::new(),
            leftover_ignored: goal.leftover_ignored(guard.record()),
            guard: guard.record().snapshot.clone(),
            // Nothing was done, so nothing has to be looked at again.
            result: guard.record().snapshot.clone(),
            skipped: plan.skipped.clone(),
            plan,
            safety_tag: None,
            repository_error: repository.and_then(|r| r.plan.notes()),
        });
    }
    let carried = carry_out(backend, workspace, &plan, goal, &guard, options, repository)?;
    let closing = closing_options(options, started);
    let result = backend
        .capture(workspace, &closing, &goal.keep(), Publish::Yes)
        .map_err(RestoreError::Closing)?;
    let left = goal
        .plan(backend, workspace, &result)
        .map_err(|error| error.after_the_fact(&goal.record.snapshot.id))?;
    let skipped = all_skipped(&plan, &carried.skipped, &left, guard.record());
    Ok(RestoreOutcome {
        restored: restored(&plan, guard.record(), &skipped),
        leftover_ignored: goal.leftover_ignored(guard.record()),
        plan,
        guard: guard.record().snapshot.clone(),
        result: result.record().snapshot.clone(),
        skipped,
        safety_tag: carried.repository.safety_tag,
        repository_error: carried.repository.error,
    })
}

/// Finishes a restore that was interrupted: see [`Backend::recover`](crate::Backend::recover).
///
/// It needs no backend: all content was staged before the intent.
pub(crate) fn recover(workspace: &LockedWorkspace) -> Result<Recovery, RestoreError> {
    let mut recovery = Recovery::default();
    if workspace.is_gone() {
        // There is nothing to finish it in. The journal stays, for a directory that comes back.
        return Ok(recovery);
    }
    let store = workspace.store_path();
    let Some(found) = journal::find(store)? else {
        return Ok(recovery);
    };
    let Some(staging) = found.staging else {
        // It ended within its first frame, before anything else was made.
        found.journal.remove().map_err(RestoreError::Prepare)?;
        recovery.discarded += 1;
        return Ok(recovery);
    };
    match found.state {
        // Another directory has taken the place of the one that was to be restored.
        State::Intended(..) if staging.workspace_inode != workspace.identity().inode => {
            area::reap(&staging, store).map_err(RestoreError::Prepare)?;
            found.journal.remove().map_err(RestoreError::Prepare)?;
            recovery.discarded += 1;
        }
        State::Intended(intent, steps) => {
            let root = Root::open(workspace).map_err(RestoreError::Apply)?;
            let lock = intent
                .repository
                .as_ref()
                .filter(|plan| !plan.is_empty() && plan.common_dir().exists())
                .map(|plan| {
                    let patience = rollback::PATIENCE;
                    rollback::lock_repository(workspace.state(), &plan.common_dir(), patience)
                })
                .transpose()?;
            let guard = staging.guard.clone();
            let committed = Committed::resume(found.journal, staging, intent, steps);
            recovery.skipped = committed.apply(&root).map_err(RestoreError::Apply)?;
            let outcome = put_repository_back(&committed, true);
            recovery.safety_tags.extend(outcome.safety_tag);
            recovery.repository_errors.extend(outcome.error);
            committed.finish(store).map_err(RestoreError::Apply)?;
            drop(lock);
            recovery.rolled_forward.push(guard);
        }
        State::Done => {
            area::reap(&staging, store).map_err(RestoreError::Prepare)?;
            found.journal.remove().map_err(RestoreError::Prepare)?;
        }
        State::Staging => {
            area::discard(&staging, store).map_err(RestoreError::Prepare)?;
            found.journal.remove().map_err(RestoreError::Prepare)?;
            recovery.discarded += 1;
        }
    }
    Ok(recovery)
}

/// What a restore aims at, with everything that was recorded of it.
struct Goal {
    record: Record,
    paths: Vec<RelPath>,
    /// The state after the operation that is taken back; `None` if the goal is a snapshot.
    after: Option<Record>,
    /// An undo of no paths at all, which is not the same as one of all paths.
    is_undo_of_nothing: bool,
}

impl Goal {
    fn load<B: Restorable>(
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
    fn refuse_undo_in_nothing(&self, workspace: &Workspace) -> Result<(), RestoreError> {
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
    fn keep(&self) -> Vec<&Record> {
        std::iter::once(&self.record).chain(&self.after).collect()
    }

    fn plan<B: Restorable>(
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
        let asked = restore::directories_in_question(&changes, view);
        let mut goal_directories = BTreeSet::new();
        for path in asked {
            if has_directory(backend, workspace, Side::Stored(&self.record), &path)? {
                goal_directories.insert(path);
            }
        }
        restore::plan(&Question {
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
        let usual = |m: &crate::tree::Modes| (m.file, m.executable, m.directory);
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
    fn leftover_ignored(&self, guard: &Record) -> Vec<RelPath> {
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
enum Unplanned {
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
    fn before_anything(self, target: &SnapshotId) -> RestoreError {
        match self {
            Self::Store(source) => RestoreError::Store(source),
            Self::Impossible(error) => RestoreError::TargetCorrupt {
                snapshot: target.clone(),
                detail: error.to_string(),
            },
        }
    }

    /// Once the files are restored, which must not be denied.
    fn after_the_fact(self, target: &SnapshotId) -> RestoreError {
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
    for path in restore::left_out_by_one(here, View::of(to)) {
        let is_listed = changes.binary_search_by(|c| c.path.cmp(&path)).is_ok();
        if !is_listed && let Some(Node::Entry(entry)) = backend.lookup(workspace, from, &path)? {
            alike.push((path, entry));
        }
    }
    Ok(restore::as_on_disk(changes, alike, here))
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

/// How the guard is taken. Without its content there would be no way back.
fn guard_options(options: &RestoreOptions) -> SnapshotOptions {
    let mut guard = options.guard.clone();
    guard.label = Label::GUARD;
    guard.retain_content = true;
    guard
}

/// How the result is captured: like the guard, later, and whatever the interrupt says, since the
/// files are restored by then.
fn closing_options(options: &RestoreOptions, started: Instant) -> SnapshotOptions {
    let mut closing = options.guard.clone();
    closing.id = SnapshotId::random();
    closing.label = Label::AFTER;
    closing.retain_content = true;
    closing.interrupt = crate::backend::Interrupt::never();
    if let Ok(later) = closing.captured_at.checked_add(started.elapsed()) {
        closing.captured_at = later;
    }
    closing
}

fn refuse_another_plan(plan: &RestorePlan, expected: Option<&PlanId>) -> Result<(), RestoreError> {
    match expected {
        Some(expected) if *expected != plan.id => Err(RestoreError::PlanChanged {
            expected: expected.clone(),
            found: plan.id.clone(),
        }),
        _ => Ok(()),
    }
}

/// Makes sure that the store has what will be put back, and what will be displaced.
fn check_content<B: Restorable>(
    backend: &B,
    workspace: &Workspace,
    plan: &RestorePlan,
    goal: &Goal,
) -> Result<(), RestoreError> {
    let missing = |ids: BTreeSet<ContentId>| {
        let ids: Vec<ContentId> = ids.into_iter().collect();
        backend.missing(workspace, &ids)
    };
    let wanted = missing(plan.writes.iter().map(|w| w.entry.id).collect())?;
    if let Some(first) = wanted.first() {
        return Err(RestoreError::TargetCorrupt {
            snapshot: goal.record.snapshot.id.clone(),
            detail: format!("the store lacks {} objects, such as {first}", wanted.len()),
        });
    }
    let written = plan.writes.iter().filter_map(|w| w.current);
    let removed = plan.removals.iter().map(|r| r.current);
    let displaced = missing(written.chain(removed).map(|entry| entry.id).collect())?;
    match displaced.first() {
        None => Ok(()),
        Some(first) => Err(RestoreError::Guard(SnapshotError::Store(
            StoreError::corrupt("the guard", format!("the store lacks {first}")),
        ))),
    }
}

/// What came of the part of a restore that changes something.
struct Carried {
    skipped: Vec<Skipped>,
    repository: rollback::Outcome,
}

/// Stages, promises, and does it.
fn carry_out<B: Restorable>(
    backend: &B,
    workspace: &LockedWorkspace,
    plan: &RestorePlan,
    goal: &Goal,
    guard: &B::Capture,
    options: &RestoreOptions,
    repository: Option<rollback::Prepared>,
) -> Result<Carried, RestoreError> {
    let store = workspace.store_path();
    let root = Root::open(workspace).map_err(RestoreError::Prepare)?;
    let coverage = &guard.record().snapshot.omissions;
    let staged = staging::stage(&staging::Request {
        root: &root,
        store,
        plan,
        guard: &guard.record().snapshot.id,
        modes: &goal.record.modes,
        seen: &|path| guard.stat(path),
        hidden: &|path| match coverage.covers(path) {
            Some(omission) if omission.reason != OmissionReason::Sparse => {
                SkipReason::Omitted(omission.reason)
            }
            _ => SkipReason::ChangedMeanwhile,
        },
        content: &|id, sink| backend.write_content(workspace, id, sink),
        index: repository.as_ref().and_then(|r| r.index.as_deref()),
        interrupt: &options.guard.interrupt,
    })
    .map_err(|error| stage_error(error, &goal.record.snapshot.id))?;

    let mut skipped = staged.skipped().to_vec();
    if !root.is_in_place() {
        // Best effort beside the error: recovery removes what is left.
        let _ = staged.discard(store);
        let gone = std::io::Error::other("it was moved away, or another directory is there");
        return Err(RestoreError::Prepare(PathError::at(
            "recognise",
            workspace.disk_path(),
        )(gone)));
    }
    // The repository stays locked until its part is done.
    let repository_plan = repository.as_ref().map(|r| r.plan.clone());
    let committed = staged
        .commit(store, plan, repository_plan)
        .map_err(|error| match error {
            CommitError::Refused(source) => RestoreError::Prepare(source),
            CommitError::Undecided(source) => RestoreError::Apply(source),
        })?;
    skipped.extend(committed.apply(&root).map_err(RestoreError::Apply)?);
    let outcome = put_repository_back(&committed, false);
    committed.finish(store).map_err(RestoreError::Apply)?;
    drop(repository);
    Ok(Carried {
        skipped,
        repository: outcome,
    })
}

fn stage_error(error: StageError, target: &SnapshotId) -> RestoreError {
    match error {
        StageError::Disk(source) => RestoreError::Prepare(source),
        StageError::Store(StoreError::Corrupt { what, detail }) => RestoreError::TargetCorrupt {
            snapshot: target.clone(),
            detail: format!("{what} is corrupt: {detail}"),
        },
        StageError::Store(source) => RestoreError::Store(source),
        StageError::Unsupported(why) => RestoreError::Unsupported(why),
        StageError::Interrupted(source) => RestoreError::Interrupted(source),
    }
}

fn put_repository_back(committed: &Committed, is_recovery: bool) -> rollback::Outcome {
    match committed.repository() {
        None => rollback::Outcome::default(),
        Some(plan) => {
            rollback::carry_out(plan, || committed.index(), is_recovery, rollback::PATIENCE)
        }
    }
}

/// Checks what is asked for of the repository, before anything is done.
fn prepare_repository<B: Restorable>(
    backend: &B,
    workspace: &LockedWorkspace,
    options: &RestoreOptions,
) -> Result<Option<rollback::Prepared>, RestoreError> {
    let (before, after, run_id, keeps_edits) = match &options.repository {
        RepositoryRestore::Nothing => return Ok(None),
        RepositoryRestore::Rollback {
            before,
            after,
            run_id,
        } => (before, after, run_id, false),
        RepositoryRestore::Undo {
            before,
            after,
            run_id,
        } => (before, after, run_id, true),
    };
    let before = backend.record(workspace, &before.id)?;
    let after = backend.record(workspace, &after.id)?;
    let Some(state_before) = &before.git else {
        return Ok(None);
    };
    // Whatever else lies there by now is not the repository that is to be put back.
    let found = backend
        .repository(workspace)?
        .filter(|found| found.identity == state_before.common_dir);
    rollback::prepare(&rollback::Request {
        state: workspace.state(),
        scratch: workspace.store_path(),
        found: found.as_ref(),
        before: state_before,
        after: after.git.as_ref(),
        run_id,
        keeps_edits,
        index_bytes: &|blob| backend.index_bytes(workspace, blob),
        now: options.guard.captured_at,
        patience: rollback::PATIENCE,
    })
    .map(Some)
}

/// Everything that differs from the goal: what the plan left alone, what turned out to be out of
/// reach, and what still differs now, because somebody else was at work.
fn all_skipped(
    plan: &RestorePlan,
    found: &[Skipped],
    left: &RestorePlan,
    guard: &Record,
) -> Vec<Skipped> {
    let planned: BTreeSet<&RelPath> = plan.changed_paths().collect();
    // Ignore files are restored too, so the closing capture may see what a rule hid before. It was
    // there all the time, and is told elsewhere.
    let is_news =
        |path: &RelPath| planned.contains(path) || guard.snapshot.omissions.covers(path).is_none();
    let mut skipped: BTreeMap<RelPath, SkipReason> = BTreeMap::new();
    for Skipped { path, reason } in plan.skipped.iter().chain(found) {
        skipped.entry(path.clone()).or_insert(*reason);
    }
    for Skipped { path, reason } in left.skipped.iter().filter(|s| is_news(&s.path)) {
        skipped.entry(path.clone()).or_insert(*reason);
    }
    for path in left.changed_paths().filter(|path| is_news(path)) {
        skipped
            .entry(path.clone())
            .or_insert(SkipReason::ChangedMeanwhile);
    }
    // Children come first. A directory that stays for what is in it is named by that.
    for path in left.remove_directories.iter().filter(|path| is_news(path)) {
        if !has_at_or_below(&skipped, path) {
            skipped.insert(path.clone(), SkipReason::ChangedMeanwhile);
        }
    }
    skipped
        .into_iter()
        .map(|(path, reason)| Skipped { path, reason })
        .collect()
}

/// Every path that was written or removed. Directories count only where they were captured as
/// such, because nothing was in them.
fn restored(plan: &RestorePlan, guard: &Record, skipped: &[Skipped]) -> Vec<RelPath> {
    let left: BTreeMap<RelPath, SkipReason> =
        skipped.iter().map(|s| (s.path.clone(), s.reason)).collect();
    let was_listed = |path: &&RelPath| guard.empty_directories.binary_search(path).is_ok();
    let is_gone = |path: &&RelPath| was_listed(path) && !has_at_or_below(&left, path);
    let done: BTreeSet<RelPath> = plan
        .changed_paths()
        .filter(|path| !left.contains_key(*path))
        .chain(plan.remove_directories.iter().filter(is_gone))
        .cloned()
        .collect();
    done.into_iter().collect()
}

fn has_at_or_below(skipped: &BTreeMap<RelPath, SkipReason>, directory: &RelPath) -> bool {
    skipped.contains_key(directory) || !restore::range_below(skipped, directory).is_empty()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{MetadataExt as _, chown};
    use std::path::Path;
    use std::time::Duration;

    use super::naive::{Stage, rel, scratch, view};
    use super::*;
    use crate::backend::{Interrupt, Interrupted};
    use crate::error::ErrorKind;
    use crate::worktree::faults::{self, Fault};

    #[test]
    fn a_restore_gives_back_every_path() {
        let mut stage = Stage::new();
        stage.write("kept", "one\n");
        stage.write("sub/dir/file", "deep\n");
        stage.link("kept", "link");
        stage.write("run.sh", "#!/bin/sh\n");
        stage.chmod("run.sh", 0o755);
        stage.write("private", "secret\n");
        stage.chmod("private", 0o600);
        std::fs::create_dir(stage.path("empty")).unwrap();
        let snapshot = stage.snapshot();
        let before = stage.view();

        stage.write("kept", "changed\n");
        stage.remove("link");
        stage.write("link/is/now/a/directory", "three\n");
        stage.remove("sub");
        stage.write("sub", "a file where a directory was\n");
        stage.chmod("run.sh", 0o644);
        stage.chmod("private", 0o644);
        stage.remove("empty");
        stage.write("new/file", "new\n");
        let messed = stage.view();
        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.view(), before, "every byte, mode and link");
        assert_eq!(outcome.skipped, []);
        let expected = [
            "empty",
            "kept",
            "link",
            "link/is/now/a/directory",
            "new/file",
            "private",
            "run.sh",
            "sub",
            "sub/dir/file",
        ];
        assert_eq!(outcome.restored, expected.map(rel));

        stage.restore(&outcome.guard);
        assert_eq!(stage.view(), messed, "every restore can be undone");
        let again = stage.restore(&outcome.guard);
        assert_eq!(again.restored, [], "the second one has nothing to do");
    }

    fn skipped(path: &str, reason: SkipReason) -> Skipped {
        Skipped {
            path: rel(path),
            reason,
        }
    }

    fn omitted(reason: OmissionReason) -> SkipReason {
        SkipReason::Omitted(reason)
    }

    /// Device, inode, time and mode: what a path that was never touched keeps.
    fn identity(path: &Path) -> (u64, u64, i64, i64, u32) {
        let meta = fs::symlink_metadata(path).unwrap();
        (
            meta.dev(),
            meta.ino(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.mode(),
        )
    }

    #[test]
    fn paths_that_match_already_are_not_touched() {
        let mut stage = Stage::new();
        for number in 0..20 {
            stage.write(&format!("file{number}"), "the same\n");
        }
        stage.write(".gitignore", "*.log\n");
        stage.write("a.log", "ignored\n");
        let snapshot = stage.snapshot();
        stage.write("file7", "edited\n");
        let before: Vec<_> = (0..20)
            .filter(|n| *n != 7)
            .map(|n| identity(&stage.path(&format!("file{n}"))))
            .collect();
        let log = identity(&stage.path("a.log"));

        let outcome = stage.restore(&snapshot);

        assert_eq!(outcome.restored, [rel("file7")]);
        let after: Vec<_> = (0..20)
            .filter(|n| *n != 7)
            .map(|n| identity(&stage.path(&format!("file{n}"))))
            .collect();
        assert_eq!(after, before);
        assert_eq!(identity(&stage.path("a.log")), log);
    }

    #[test]
    fn what_came_after_the_snapshot_is_removed_and_stays_in_the_guard() {
        let mut stage = Stage::new();
        stage.write("a", "a\n");
        let snapshot = stage.snapshot();
        stage.write("new/deep/file", "precious\n");

        let outcome = stage.restore(&snapshot);

        assert!(!stage.has("new"), "its directories went with it");
        stage.restore(&outcome.guard);
        assert_eq!(stage.read("new/deep/file"), "precious\n");
    }

    #[test]
    fn a_path_made_again_gets_its_captured_content() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.remove("a");
        stage.write("a", "another\n");
        stage.restore(&snapshot);
        assert_eq!(stage.read("a"), "captured\n");
    }

    #[test]
    fn an_ignored_file_keeps_what_it_holds_now() {
        let mut stage = Stage::new();
        stage.write(".gitignore", "*.log\nbuild\n");
        stage.write("a.log", "then\n");
        let snapshot = stage.snapshot();
        stage.write("a.log", "now\n");
        stage.write("b.log", "new\n");
        stage.write("build/x", "new\n");
        stage.write("other/c.log", "new\n");
        let log = identity(&stage.path("a.log"));

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.read("a.log"), "now\n");
        assert_eq!(identity(&stage.path("a.log")), log);
        assert_eq!(stage.read("b.log"), "new\n");
        assert_eq!(
            outcome.leftover_ignored,
            ["b.log", "build", "other/c.log"].map(rel),
            "what came since, a directory as one"
        );
        assert_eq!(outcome.restored, []);
        assert_eq!(outcome.skipped, []);
    }

    #[test]
    fn a_rule_that_was_not_committed_still_protects() {
        let mut stage = Stage::new();
        stage.write(".gitignore", "data\n");
        stage.write("data/old", "precious\n");
        let snapshot = stage.snapshot();
        stage.remove(".gitignore");
        stage.write("data/new", "precious too\n");

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.read(".gitignore"), "data\n");
        assert_eq!(stage.read("data/old"), "precious\n");
        assert_eq!(stage.read("data/new"), "precious too\n");
        let reason = omitted(OmissionReason::Ignored);
        assert_eq!(
            outcome.skipped,
            [skipped("data/new", reason), skipped("data/old", reason)]
        );
    }

    #[test]
    fn what_the_rules_of_the_target_ignore_is_not_removed() {
        let mut stage = Stage::new();
        stage.write(".gitignore", "*.db\n");
        let snapshot = stage.snapshot();
        stage.remove(".gitignore");
        stage.write("users.db", "made while no rule hid it\n");

        let outcome = stage.restore(&snapshot);

        assert!(stage.has("users.db"));
        let reason = omitted(OmissionReason::Ignored);
        assert_eq!(outcome.skipped, [skipped("users.db", reason)]);
    }

    #[test]
    fn an_edited_ignore_file_neither_hides_an_edit_nor_a_new_file() {
        let mut stage = Stage::new();
        stage.write("a.txt", "captured\n");
        stage.write("out/b.txt", "captured\n");
        let snapshot = stage.snapshot();
        stage.write(".gitignore", "*.txt\nout\n");
        stage.write("a.txt", "edited\n");
        stage.remove("out/b.txt");
        stage.write("out/tmp", "new, and hidden\n");
        stage.write("new.txt", "new, and hidden\n");

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.read("a.txt"), "captured\n", "the target has it");
        assert_eq!(stage.read("out/b.txt"), "captured\n");
        assert!(!stage.has(".gitignore"));
        assert!(
            stage.has("new.txt") && stage.has("out/tmp"),
            "today's rules protect them"
        );
        assert_eq!(outcome.leftover_ignored, ["new.txt", "out/tmp"].map(rel));
        assert_eq!(outcome.skipped, []);
        stage.restore(&outcome.guard);
        assert_eq!(
            stage.read("a.txt"),
            "edited\n",
            "the guard has what was replaced"
        );
    }

    #[test]
    fn a_file_above_the_limit_survives_and_is_named() {
        let mut stage = Stage::new();
        stage.write("grows", "small\n");
        let snapshot = stage.snapshot();
        stage.write("grows", &"large\n".repeat(100));
        stage.write("new", &"large\n".repeat(100));
        let mut options = RestoreOptions::new(stage.options());
        options.guard.max_untracked_file_bytes = 100;
        let before = (identity(&stage.path("grows")), identity(&stage.path("new")));

        let goal = Stage::goal(&snapshot);
        let outcome = restore(&stage.backend, &mut stage.workspace, &goal, &options).unwrap();

        let reason = omitted(OmissionReason::TooLarge);
        assert_eq!(
            outcome.skipped,
            [skipped("grows", reason), skipped("new", reason)]
        );
        let after = (identity(&stage.path("grows")), identity(&stage.path("new")));
        assert_eq!(after, before);
    }

    #[test]
    fn a_file_that_the_target_left_out_is_not_removed_once_it_is_captured() {
        let mut stage = Stage::new();
        stage.write("large", &"large\n".repeat(100));
        let mut options = stage.options();
        options.max_untracked_file_bytes = 100;
        let snapshot = stage.snapshot_with(&options);

        let outcome = stage.restore(&snapshot);

        assert!(stage.has("large"));
        let reason = omitted(OmissionReason::TooLarge);
        assert_eq!(outcome.skipped, [skipped("large", reason)]);
    }

    #[test]
    fn a_directory_that_became_a_link_is_built_again_and_nothing_outside_is_touched() {
        let mut stage = Stage::new();
        stage.write("d/file", "ours\n");
        stage.write("top", "ours\n");
        let snapshot = stage.snapshot();
        let before = stage.view();
        fs::write(stage.outside.join("file"), "theirs\n").unwrap();
        fs::write(stage.outside.join("top"), "theirs\n").unwrap();
        stage.remove("d");
        stage.link(&stage.outside, "d");
        stage.remove("top");
        stage.link(stage.outside.join("top"), "top");
        let outside = (view(&stage.outside), identity(&stage.outside.join("file")));

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.view(), before);
        assert_eq!(outcome.skipped, []);
        let now = (view(&stage.outside), identity(&stage.outside.join("file")));
        assert_eq!(now, outside);
        stage.restore(&outcome.guard);
        assert_eq!(fs::read_link(stage.path("d")).unwrap(), stage.outside);
    }

    #[test]
    fn an_ignored_link_above_a_target_path_is_neither_followed_nor_replaced() {
        let mut stage = Stage::new();
        stage.write("hidden/file", "ours\n");
        let snapshot = stage.snapshot();
        stage.remove("hidden");
        stage.link(&stage.outside, "hidden");
        stage.write(".gitignore", "hidden\n");

        let outcome = stage.restore(&snapshot);

        assert_eq!(fs::read_link(stage.path("hidden")).unwrap(), stage.outside);
        assert!(view(&stage.outside).is_empty());
        let reason = omitted(OmissionReason::Ignored);
        assert_eq!(outcome.skipped, [skipped("hidden/file", reason)]);
    }

    #[test]
    fn another_name_of_a_hard_linked_file_keeps_its_bytes_and_its_mode() {
        let mut stage = Stage::new();
        stage.write("content", "captured\n");
        stage.write("mode", "same\n");
        stage.chmod("mode", 0o600);
        let snapshot = stage.snapshot();
        let other = |name: &str| stage.outside.join(name);
        stage.write("content", "edited\n");
        stage.chmod("mode", 0o644);
        fs::hard_link(stage.path("content"), other("content")).unwrap();
        fs::hard_link(stage.path("mode"), other("mode")).unwrap();
        let outside = (view(&stage.outside), identity(&other("mode")));
        let modified = fs::metadata(stage.path("mode")).unwrap().mtime_nsec();

        let (content, mode) = (other("content"), other("mode"));
        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.read("content"), "captured\n");
        assert_eq!(
            (stage.mode("mode"), stage.read("mode")),
            (0o600, "same\n".into())
        );
        assert_eq!((view(&stage.outside), identity(&mode)), outside);
        assert_eq!(fs::read_to_string(content).unwrap(), "edited\n");
        assert_eq!(
            fs::metadata(stage.path("mode")).unwrap().mtime_nsec(),
            modified,
            "its content did not change, so its time does not"
        );
        assert_eq!(outcome.skipped, []);
    }

    #[test]
    fn special_files_in_the_way_are_moved_aside_unopened() {
        let mut stage = Stage::new();
        stage.write("file", "captured\n");
        stage.write("dir/file", "captured\n");
        fs::create_dir(stage.path("empty")).unwrap();
        let snapshot = stage.snapshot();
        let before = stage.view();
        for path in ["file", "dir", "empty"] {
            stage.remove(path);
            stage.fifo(path);
        }
        stage.fifo("new");

        let outcome = stage.restore(&snapshot);

        assert_eq!(
            outcome.restored,
            ["dir", "dir/file", "empty", "file"].map(rel)
        );
        let reason = omitted(OmissionReason::Special);
        assert_eq!(
            outcome.skipped,
            [skipped("new", reason)],
            "it is in nobody's way"
        );
        stage.remove("new");
        assert_eq!(stage.view(), before);
        let trash = stage.areas().remove(0).join("trash");
        let kinds: Vec<String> = view(&trash).into_values().collect();
        assert_eq!(kinds, ["644 special true"; 3], "nothing was unlinked");
    }

    #[test]
    fn a_file_becomes_a_directory_and_the_reverse() {
        let mut stage = Stage::new();
        stage.write("one", "a file\n");
        stage.write("two/x/y", "in a directory\n");
        let snapshot = stage.snapshot();
        let before = stage.view();
        stage.remove("one");
        stage.write("one/a/b", "content\n");
        fs::create_dir(stage.path("one/empty")).unwrap();
        stage.remove("two");
        stage.write("two", "a file\n");
        let messed = stage.view();

        let outcome = stage.restore(&snapshot);
        assert_eq!(stage.view(), before);
        stage.restore(&outcome.guard);
        assert_eq!(stage.view(), messed, "what was inside is in the guard");
    }

    #[test]
    fn a_directory_with_ignored_content_is_not_replaced_by_a_file() {
        let mut stage = Stage::new();
        stage.write(".gitignore", "*.log\n");
        stage.write("place", "a file\n");
        let snapshot = stage.snapshot();
        stage.remove("place");
        stage.write("place/a.log", "in no snapshot\n");
        stage.write("place/b", "captured\n");
        stage.write("place/sub/c", "captured\n");
        std::fs::create_dir_all(stage.path("place/empty")).unwrap();
        let messed = stage.view();

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.view(), messed, "it stays as a whole");
        assert_eq!(
            outcome.skipped,
            ["place", "place/b", "place/empty", "place/sub/c"]
                .map(|path| skipped(path, SkipReason::DirectoryNotEmpty))
        );
        assert_eq!(outcome.leftover_ignored, [rel("place/a.log")]);
        assert_eq!(outcome.restored, []);
    }

    #[test]
    fn a_directory_that_was_filled_meanwhile_stays_and_is_named() {
        let mut stage = Stage::new();
        let snapshot = stage.snapshot();
        for path in ["new/empty", "other"] {
            std::fs::create_dir_all(stage.path(path)).unwrap();
        }
        let inner = stage.path("new/empty/inner");
        stage.meanwhile(move || fs::create_dir(inner).unwrap());

        let outcome = stage.restore(&snapshot);

        assert!(stage.has("new/empty/inner"));
        let left = skipped("new/empty/inner", SkipReason::ChangedMeanwhile);
        assert_eq!(outcome.skipped, [left]);
        assert_eq!(outcome.restored, [rel("other")]);
    }

    #[test]
    fn a_nested_repository_that_came_since_is_kept_whole() {
        let mut stage = Stage::new();
        stage.write("known/file", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("vendor/lib/.git/HEAD", "ref: refs/heads/main\n");
        stage.write("vendor/lib/src/a", "theirs\n");
        stage.write("vendor/lib/inner/.git/HEAD", "ref: refs/heads/main\n");
        stage.write("known/.git/HEAD", "ref: refs/heads/main\n");
        stage.write("known/file", "edited\n");

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.read("vendor/lib/src/a"), "theirs\n");
        assert!(stage.has("vendor/lib/inner/.git/HEAD"));
        assert_eq!(stage.read("known/file"), "captured\n");
        assert_eq!(
            outcome.skipped,
            [
                skipped("known/.git", omitted(OmissionReason::GitDir)),
                skipped("vendor/lib", SkipReason::NestedRepository)
            ]
        );
    }

    #[test]
    fn aliases_of_the_git_directory_are_refused_before_anything_is_touched() {
        for path in [".GIT/config", "a/.g\u{200c}it", ".git ", "git~1/hooks/x"] {
            let mut stage = Stage::new();
            stage.write("a", "a\n");
            let snapshot = stage.snapshot();
            stage.write("a", "edited\n");
            let messed = stage.view();
            stage.backend.forge(&snapshot, |entries| {
                let entry = entries[&rel("a")];
                entries.insert(rel(path), entry);
            });

            let error = stage.try_restore(&snapshot).unwrap_err();

            assert_eq!(error.kind(), ErrorKind::Corrupt, "{path}: {error}");
            assert!(!error.touched());
            assert_eq!(stage.view(), messed);
        }
    }

    #[test]
    fn only_the_named_paths_are_restored() {
        let mut stage = Stage::new();
        stage.write("a/one", "captured\n");
        stage.write("a/two", "captured\n");
        stage.write("b", "captured\n");
        let snapshot = stage.snapshot();
        for path in ["a/one", "a/two", "b", "a/new", "c"] {
            stage.write(path, "edited\n");
        }
        let restore_paths = |stage: &mut Stage, paths: &[&str]| {
            let goal = RestoreGoal::Snapshot {
                snapshot: snapshot.clone(),
                paths: paths.iter().map(|p| rel(p)).collect(),
            };
            stage.restore_goal(&goal, RepositoryRestore::Nothing)
        };

        let outcome = restore_paths(&mut stage, &["a/one"]).unwrap();
        assert_eq!(outcome.restored, [rel("a/one")]);
        assert_eq!(outcome.skipped, []);
        assert_eq!(stage.read("a/two"), "edited\n");

        let outcome = restore_paths(&mut stage, &["a"]).unwrap();
        assert_eq!(outcome.restored, ["a/new", "a/two"].map(rel));
        assert_eq!(stage.read("b"), "edited\n");
        assert!(stage.has("c"));

        stage.remove("a");
        stage.write("a", "a file where a directory was\n");
        let outcome = restore_paths(&mut stage, &["a/two"]).unwrap();
        assert_eq!(outcome.restored, ["a", "a/two"].map(rel));
        assert!(!stage.has("a/one"), "it was not asked for");

        let error = restore_paths(&mut stage, &["c"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }

    #[test]
    fn a_plan_is_refused_once_the_tree_has_moved() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        let plan = stage.plan(&snapshot);
        assert_eq!(stage.plan(&snapshot), plan, "it is named by its content");
        stage.write("b", "new\n");
        let messed = stage.view();

        let error = stage.restore_planned(&snapshot, plan.id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(!error.touched());
        assert_eq!(stage.view(), messed);

        let plan = stage.plan(&snapshot);
        let outcome = stage.restore_planned(&snapshot, plan.id.clone()).unwrap();
        assert_eq!(outcome.plan, plan);
        assert_eq!(outcome.restored, ["a", "b"].map(rel));
    }

    #[test]
    fn planning_writes_nothing() {
        let stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        let (tree, store) = (stage.view(), view(stage.workspace.store_path()));
        assert_eq!(stage.plan(&snapshot).writes.len(), 1);
        assert_eq!(stage.view(), tree);
        assert_eq!(view(stage.workspace.store_path()), store);
    }

    #[test]
    fn without_a_guard_nothing_is_touched() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        *stage.backend.is_broken.borrow_mut() = true;
        let error = stage.try_restore(&snapshot).unwrap_err();
        assert!(matches!(error, RestoreError::Guard(_)), "{error}");
        assert!(!error.touched());
        assert_eq!(stage.read("a"), "edited\n");
    }

    #[test]
    fn content_that_is_missing_or_damaged_stops_the_restore_before_it_begins() {
        let damage: [fn(&mut Vec<u8>); 2] = [Vec::clear, |bytes| bytes[0] ^= 1];
        for (number, damage) in damage.into_iter().enumerate() {
            let mut stage = Stage::new();
            stage.write("a", "captured\n");
            stage.write("b", "captured too\n");
            let snapshot = stage.snapshot();
            stage.remove("a");
            stage.write("b", "edited\n");
            stage.write("c", "new\n");
            let messed = stage.view();
            let id = ContentId::Blake3(*blake3::hash(b"captured too\n").as_bytes());
            damage(stage.backend.blobs.borrow_mut().get_mut(&id).unwrap());
            if number == 0 {
                stage.backend.blobs.borrow_mut().remove(&id);
            }

            let error = stage.try_restore(&snapshot).unwrap_err();

            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(!error.touched());
            assert_eq!(stage.view(), messed);
            assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
        }
    }

    #[test]
    fn a_snapshot_without_content_is_refused_before_the_guard() {
        let mut stage = Stage::new();
        let snapshot = stage.snapshot();
        stage.backend.forget_content(&snapshot);
        let error = stage.try_restore(&snapshot).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let unknown = Snapshot {
            id: SnapshotId::random(),
            ..snapshot
        };
        let error = stage.try_restore(&unknown).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

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

    #[test]
    fn what_changes_after_the_guard_is_kept_and_named() {
        let mut stage = Stage::new();
        for path in ["edited", "swapped", "removed", "twice", "moded"] {
            stage.write(path, "captured\n");
        }
        let snapshot = stage.snapshot();
        for path in ["edited", "swapped", "removed", "twice", "new", "newer"] {
            stage.write(path, "of the run\n");
        }
        stage.remove("twice");
        stage.chmod("moded", 0o600);
        let at = |path: &str| stage.path(path);
        let (edited, swapped, removed) = (at("edited"), at("swapped"), at("removed"));
        let (twice, new, late, moded) = (at("twice"), at("new"), at("late"), at("moded"));
        stage.meanwhile(move || {
            fs::write(edited, "of a person, and longer\n").unwrap();
            fs::remove_file(&swapped).unwrap();
            fs::create_dir(&swapped).unwrap();
            fs::remove_file(removed).unwrap();
            fs::write(twice, "it came after the guard\n").unwrap();
            fs::write(new, "of a person, and longer\n").unwrap();
            fs::write(late, "nobody knew it\n").unwrap();
            fs::write(moded, "of a person, and longer\n").unwrap();
        });

        let outcome = stage.restore(&snapshot);

        let reason = SkipReason::ChangedMeanwhile;
        assert_eq!(
            outcome.skipped,
            [
                "edited", "late", "moded", "new", "removed", "swapped", "twice"
            ]
            .map(|path| skipped(path, reason))
        );
        assert_eq!(outcome.restored, [rel("newer")]);
        assert_eq!(stage.read("edited"), "of a person, and longer\n");
        assert_eq!(stage.read("twice"), "it came after the guard\n");
        assert!(stage.path("swapped").is_dir());
        assert!(!stage.has("removed") && !stage.has("newer"));
    }

    #[test]
    fn a_directory_that_became_a_link_after_the_guard_is_not_followed() {
        let mut stage = Stage::new();
        stage.write("d/file", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("d/file", "edited\n");
        stage.write("d/new", "new\n");
        fs::write(stage.outside.join("file"), "theirs\n").unwrap();
        fs::write(stage.outside.join("new"), "theirs\n").unwrap();
        let outside = view(&stage.outside);
        let (directory, target) = (stage.path("d"), stage.outside.clone());
        stage.meanwhile(move || {
            fs::remove_dir_all(&directory).unwrap();
            std::os::unix::fs::symlink(target, directory).unwrap();
        });

        let outcome = stage.restore(&snapshot);

        assert_eq!(view(&stage.outside), outside);
        assert!(
            outcome
                .skipped
                .contains(&skipped("d/file", SkipReason::ChangedMeanwhile)),
            "{outcome:?}"
        );
    }

    #[test]
    fn an_undo_keeps_later_edits_and_names_them() {
        let mut stage = Stage::new();
        for path in ["one", "two", "three", "other"] {
            stage.write(path, "before\n");
        }
        let before = stage.snapshot();
        for path in ["one", "two", "three", "made", "made-too"] {
            stage.write(path, "by the run\n");
        }
        stage.chmod("other", 0o600);
        let after = stage.snapshot();
        stage.write("two", "by a person\n");
        stage.write("three", "before\n");
        stage.write("made-too", "by a person\n");
        stage.write("unrelated", "by a person\n");
        let edited = stage.view();

        let goal = RestoreGoal::Undo {
            before: before.clone(),
            after: after.clone(),
            paths: None,
        };
        let outcome = stage
            .restore_goal(&goal, RepositoryRestore::Nothing)
            .unwrap();

        assert_eq!(outcome.restored, ["made", "one", "other"].map(rel));
        let reason = SkipReason::EditedSince;
        assert_eq!(
            outcome.skipped,
            [skipped("made-too", reason), skipped("two", reason)]
        );
        assert_eq!(stage.read("one"), "before\n");
        assert_eq!(stage.read("two"), "by a person\n");
        assert_eq!(stage.mode("other"), 0o644);
        assert!(stage.has("unrelated") && !stage.has("made"));

        // A second undo takes the first one back, and nothing else.
        let redo = RestoreGoal::Undo {
            before: outcome.guard.clone(),
            after: outcome.result.clone(),
            paths: Some(outcome.restored.clone()),
        };
        let outcome = stage
            .restore_goal(&redo, RepositoryRestore::Nothing)
            .unwrap();
        assert_eq!(outcome.skipped, []);
        assert_eq!(stage.view(), edited);

        // A full restore takes the edits back too; the guard has them.
        let outcome = stage.restore(&before);
        assert_eq!(stage.read("two"), "before\n");
        stage.restore(&outcome.guard);
        assert_eq!(stage.read("two"), "by a person\n");
    }

    #[test]
    fn an_undo_of_no_paths_does_nothing() {
        let mut stage = Stage::new();
        stage.write("a", "before\n");
        let before = stage.snapshot();
        stage.write("a", "after\n");
        stage.write("dir/b", "after\n");
        let after = stage.snapshot();
        let goal = RestoreGoal::Undo {
            before,
            after,
            paths: Some(Vec::new()),
        };
        let outcome = stage
            .restore_goal(&goal, RepositoryRestore::Nothing)
            .unwrap();
        assert_eq!((outcome.restored.len(), outcome.skipped.len()), (0, 0));
        assert_eq!(stage.read("a"), "after\n");
    }

    #[test]
    fn setuid_and_setgid_are_never_set() {
        let mut stage = Stage::new();
        stage.write("tool", "captured\n");
        stage.chmod("tool", 0o6755);
        fs::create_dir(stage.path("shared")).unwrap();
        stage.chmod("shared", 0o2775);
        let snapshot = stage.snapshot();
        stage.write("tool", "edited\n");
        stage.chmod("shared", 0o2755);
        stage.restore(&snapshot);
        assert_eq!(stage.mode("tool"), 0o755);
        assert_eq!(stage.mode("shared"), 0o2775, "what is not recorded stays");
    }

    #[test]
    fn the_bits_of_the_workspace_itself_come_back() {
        let mut stage = Stage::new();
        stage.chmod("", 0o755);
        stage.write("a", "same\n");
        let snapshot = stage.snapshot();
        stage.chmod("", 0o700);
        let outcome = stage.restore(&snapshot);
        assert_eq!(stage.mode(""), 0o755);
        assert_eq!(outcome.restored, [RelPath::root()]);
    }

    #[test]
    fn restored_files_belong_to_whom_the_replaced_ones_did() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mut stage = Stage::new();
        stage.write("mine", "captured\n");
        stage.write("theirs/deep/gone", "captured\n");
        stage.link("mine", "theirs/deep/link");
        let snapshot = stage.snapshot();
        stage.write("mine", "edited\n");
        chown(stage.path("mine"), Some(1001), Some(1002)).unwrap();
        stage.remove("theirs/deep");
        chown(stage.path("theirs"), Some(1003), Some(1004)).unwrap();

        stage.restore(&snapshot);

        let owner = |path: &str| {
            let meta = fs::symlink_metadata(stage.path(path)).unwrap();
            (meta.uid(), meta.gid())
        };
        assert_eq!(owner("mine"), (1001, 1002));
        for path in ["theirs/deep", "theirs/deep/gone", "theirs/deep/link"] {
            assert_eq!(owner(path), (1003, 1004), "{path}");
        }
    }

    #[test]
    fn an_immutable_file_is_found_before_anything_is_touched() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        stage.write("b", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        stage.write("b", "edited\n");
        let Some(_immutable) = Immutable::make(&stage.path("b")) else {
            return;
        };
        let messed = stage.view();
        let error = stage.try_restore(&snapshot).unwrap_err();
        assert!(matches!(error, RestoreError::Prepare(_)), "{error}");
        assert_eq!(stage.view(), messed);
        assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
    }

    /// A file that nobody may change while this lives.
    struct Immutable(fs::File);

    impl Immutable {
        /// `None` where the file system or a missing capability forbids it.
        fn make(path: &Path) -> Option<Self> {
            let file = fs::File::open(path).unwrap();
            rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::IMMUTABLE).ok()?;
            Some(Self(file))
        }
    }

    impl Drop for Immutable {
        fn drop(&mut self) {
            rustix::fs::ioctl_setflags(&self.0, rustix::fs::IFlags::empty()).unwrap();
        }
    }

    /// Runs one story of this module again, as a user without any privilege.
    fn as_nobody(story: &str, environment: &[(&str, &std::ffi::OsStr)]) {
        use std::os::unix::process::CommandExt as _;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let name = format!("restoring::tests::{story}");
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .envs(environment.iter().copied())
            .uid(65534)
            .gid(65534)
            .output();
        match output {
            Ok(output) => assert!(
                output.status.success()
                    && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
            // The checkout may be closed to other users.
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::PermissionDenied, "{e}"),
        }
    }

    #[test]
    fn a_closed_directory_is_opened_for_the_restore_and_closed_again() {
        as_nobody(
            "a_closed_directory_is_opened_for_the_restore_and_closed_again",
            &[],
        );
        let mut stage = Stage::new();
        stage.write("closed/file", "captured\n");
        stage.write("closed/gone", "captured\n");
        stage.write("made/inner/file", "captured\n");
        stage.chmod("closed", 0o555);
        stage.chmod("made/inner", 0o555);
        stage.chmod("made", 0o555);
        let snapshot = stage.snapshot();
        let before = stage.view();
        for path in ["closed", "made", "made/inner"] {
            stage.chmod(path, 0o755);
        }
        stage.write("closed/file", "edited\n");
        stage.remove("closed/gone");
        stage.write("closed/new/file", "new\n");
        stage.remove("made");
        stage.chmod("closed", 0o555);
        let outcome = stage.restore(&snapshot);
        assert_eq!(outcome.skipped, []);
        assert_eq!(stage.view(), before);
        for path in ["closed", "made", "made/inner"] {
            stage.chmod(path, 0o755);
        }
    }

    #[test]
    fn a_directory_of_somebody_else_is_found_before_anything_is_touched() {
        const DIRECTORY: &str = "STILLFRAME_TEST_DIRECTORY";
        if !rustix::process::geteuid().is_root() {
            // Only root can make the directory that is not ours; see below.
            let Some(base) = std::env::var_os(DIRECTORY) else {
                return;
            };
            let base = std::path::PathBuf::from(base);
            let mut stage = Stage::at(&base);
            let snapshot = stage.snapshot();
            stage.write("mine", "edited\n");
            stage.write("theirs/file", "edited\n");
            let messed = stage.view();
            let error = stage.try_restore(&snapshot).unwrap_err();
            assert!(matches!(error, RestoreError::Prepare(_)), "{error}");
            assert_eq!(stage.view(), messed);
            return;
        }
        let base = scratch();
        let nobody = Some(65534);
        for path in ["", "work", "work/tree"] {
            let path = base.path().join(path);
            fs::create_dir_all(&path).unwrap();
            chown(path, nobody, nobody).unwrap();
        }
        let tree = base.path().join("work/tree");
        fs::create_dir(tree.join("theirs")).unwrap();
        for path in ["mine", "theirs/file"] {
            fs::write(tree.join(path), "captured\n").unwrap();
            chown(tree.join(path), nobody, nobody).unwrap();
        }
        as_nobody(
            "a_directory_of_somebody_else_is_found_before_anything_is_touched",
            &[(DIRECTORY, base.path().as_os_str())],
        );
    }

    #[test]
    fn staging_goes_beside_the_workspace_if_the_store_is_on_another_file_system() {
        let here = scratch();
        let there = tempfile::tempdir().unwrap();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        if device(here.path()) == device(there.path()) {
            return;
        }
        let mut stage = Stage::with_state(here, there.path());
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        stage.write("b", "new\n");

        let outcome = stage.restore(&snapshot);

        assert_eq!(stage.read("a"), "captured\n");
        let areas = stage.areas();
        assert_eq!(areas.len(), 1);
        assert_eq!(areas[0].parent(), stage.directory.parent());
        let mode = fs::metadata(&areas[0]).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700);
        let store = stage.workspace.store_path().to_owned();
        assert!(area::trash_bytes(&store).unwrap() > 0);
        area::purge_trashes(&store, std::slice::from_ref(&outcome.guard.id)).unwrap();
        assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
        assert_eq!(area::trash_bytes(&store).unwrap(), 0);
        area::purge_trashes(&store, std::slice::from_ref(&outcome.guard.id)).unwrap();
    }

    #[test]
    fn the_trash_stays_until_its_guard_goes() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        stage.write("b", "new\n");
        let outcome = stage.restore(&snapshot);
        let areas = stage.areas();
        assert_eq!(areas.len(), 1);
        let kept: Vec<String> = view(&areas[0].join("trash")).into_values().collect();
        assert_eq!(kept, ["644 \"new\\n\"", "644 \"edited\\n\""]);
        assert!(!areas[0].join("staged").exists());
        area::purge_trashes(
            stage.workspace.store_path(),
            std::slice::from_ref(&outcome.guard.id),
        )
        .unwrap();
        assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
    }

    #[test]
    fn a_restore_that_is_stopped_in_time_touches_nothing() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        let interrupt = Interrupt::never();
        let options = RestoreOptions::new(stage.options().interrupt(interrupt.clone()));
        stage.meanwhile(move || interrupt.cancel());
        let goal = Stage::goal(&snapshot);
        let error = restore(&stage.backend, &mut stage.workspace, &goal, &options).unwrap_err();
        let is_cancelled = matches!(error, RestoreError::Interrupted(Interrupted::Cancelled));
        assert!(is_cancelled, "{error}");
        assert_eq!(stage.read("a"), "edited\n");
        assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
        let late = Interrupt::after(Duration::ZERO);
        let options = RestoreOptions::new(stage.options().interrupt(late));
        let error = restore(&stage.backend, &mut stage.workspace, &goal, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }

    #[test]
    fn a_workspace_that_was_swapped_is_not_written_to() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        let (here, away) = (stage.directory.clone(), stage.outside.join("away"));
        stage.meanwhile(move || {
            fs::rename(&here, away).unwrap();
            fs::create_dir(&here).unwrap();
            fs::write(here.join("a"), "another directory's\n").unwrap();
        });
        let error = stage.try_restore(&snapshot).unwrap_err();
        assert!(matches!(error, RestoreError::Prepare(_)), "{error}");
        assert_eq!(stage.read("a"), "another directory's\n");
        assert_eq!(
            fs::read_to_string(stage.outside.join("away/a")).unwrap(),
            "edited\n"
        );
    }

    /// A stage where a restore has steps of every kind, with what it leads from and to.
    fn every_kind() -> (Stage, Snapshot) {
        let stage = Stage::new();
        stage.write("edited", "before\n");
        stage.write("gone", "before\n");
        stage.write("deep/er/gone", "before\n");
        stage.write("became-directory", "before\n");
        stage.write("became-file/x", "before\n");
        stage.write("became-fifo", "before\n");
        stage.link("edited", "link");
        stage.write("mode", "same\n");
        stage.chmod("mode", 0o640);
        fs::create_dir(stage.path("empty")).unwrap();
        stage.chmod("empty", 0o750);
        let snapshot = stage.snapshot();
        stage.write("edited", "after\n");
        stage.remove("gone");
        stage.remove("deep");
        stage.remove("became-directory");
        stage.write("became-directory/x", "after\n");
        stage.remove("became-file");
        stage.write("became-file", "after\n");
        stage.remove("became-fifo");
        stage.fifo("became-fifo");
        stage.remove("link");
        stage.link("gone", "link");
        stage.chmod("mode", 0o600);
        stage.remove("empty");
        stage.write("new/file", "after\n");
        (stage, snapshot)
    }

    /// What the two endings of [`every_kind`] look like: as it is left alone, and restored.
    fn endings() -> [std::collections::BTreeMap<String, String>; 2] {
        let (mut stage, snapshot) = every_kind();
        let untouched = stage.view();
        stage.restore(&snapshot);
        let restored = stage.view();
        assert_ne!(untouched, restored);
        [untouched, restored]
    }

    #[test]
    fn a_restore_that_dies_at_any_call_ends_before_or_after() {
        let [untouched, restored] = endings();
        let mut seen = BTreeSet::new();
        for call in 0.. {
            let (mut stage, snapshot) = every_kind();
            let (result, calls) =
                faults::with(Fault::StopBefore(call), || stage.try_restore(&snapshot));
            if calls <= call {
                assert!(result.is_ok(), "nothing went wrong: {result:?}");
                break;
            }
            let recovery = recover(&stage.workspace).unwrap();
            assert_eq!(recovery.skipped, [], "at call {call}");
            let now = stage.view();
            assert!(
                now == untouched || now == restored,
                "at call {call}: {now:#?}\n{result:?}"
            );
            let is_restored = now == restored;
            seen.insert(is_restored);
            if !is_restored {
                assert!(
                    !result.as_ref().is_err_and(RestoreError::touched) || recovery.discarded == 1
                );
                assert_eq!(
                    stage.areas(),
                    <[std::path::PathBuf; 0]>::default(),
                    "at call {call}"
                );
            }
            assert_eq!(recover(&stage.workspace).unwrap(), Recovery::default());
            if let [guard] = &recovery.rolled_forward[..] {
                let guard = stage.backend.record(&stage.workspace, guard).unwrap();
                stage.restore(&guard.snapshot);
                let mut now = stage.view();
                // The guard cannot hold the FIFO, which has no bytes.
                now.remove("became-fifo");
                let mut before = untouched.clone();
                before.remove("became-fifo");
                assert_eq!(now, before, "the guard leads back, at call {call}");
            }
        }
        assert_eq!(seen.len(), 2, "the loop crossed the point of no return");
    }

    #[test]
    fn a_recovery_that_dies_at_any_call_is_finished_by_the_next() {
        let [_, restored] = endings();
        let (_, all_calls) = {
            let (mut stage, snapshot) = every_kind();
            faults::with(Fault::None, || stage.try_restore(&snapshot).unwrap())
        };
        let mut finished = 0;
        // A few points past the intent, and every point of the recoveries that follow.
        for call in (0..all_calls).step_by(7) {
            for inner in 0.. {
                let (mut stage, snapshot) = every_kind();
                let (first, _) =
                    faults::with(Fault::StopBefore(call), || stage.try_restore(&snapshot));
                let was_intended = first.as_ref().is_err_and(RestoreError::touched);
                let (_, calls) =
                    faults::with(Fault::StopBefore(inner), || recover(&stage.workspace));
                recover(&stage.workspace).unwrap();
                if was_intended {
                    finished += 1;
                    assert_eq!(stage.view(), restored, "at {call} and {inner}");
                }
                assert_eq!(recover(&stage.workspace).unwrap(), Recovery::default());
                if calls <= inner {
                    break;
                }
            }
        }
        assert!(finished > 20, "{finished}");
    }

    #[test]
    fn a_call_that_fails_is_told_as_it_is() {
        use rustix::io::Errno;
        let [untouched, restored] = endings();
        let mut answers = BTreeSet::new();
        for errno in [Errno::NOSPC, Errno::IO, Errno::INVAL] {
            for call in 0.. {
                let (mut stage, snapshot) = every_kind();
                let fault = Fault::FailAt(call, errno.raw_os_error());
                let (result, calls) = faults::with(fault, || stage.try_restore(&snapshot));
                if calls <= call {
                    break;
                }
                match result {
                    Ok(outcome) => {
                        assert_eq!(outcome.skipped, [], "{errno} at {call}");
                        assert_eq!(stage.view(), restored, "{errno} at {call}");
                        answers.insert("done");
                    }
                    Err(error) if error.touched() => {
                        recover(&stage.workspace).unwrap();
                        let now = stage.view();
                        assert!(
                            now == restored || now == untouched,
                            "{errno} at {call}: {error} {now:#?}"
                        );
                        answers.insert("touched");
                    }
                    Err(error) => {
                        assert_eq!(stage.view(), untouched, "{errno} at {call}: {error}");
                        answers.insert("refused");
                    }
                }
                assert_eq!(
                    recover(&stage.workspace).unwrap().rolled_forward,
                    [],
                    "what was said to be refused does not come back, {errno} at {call}"
                );
            }
        }
        assert_eq!(answers, BTreeSet::from(["done", "touched", "refused"]));
    }

    #[test]
    fn one_path_that_the_system_refuses_does_not_stop_the_others() {
        let mut stage = Stage::new();
        for path in ["a", "b", "c"] {
            stage.write(path, "captured\n");
        }
        let snapshot = stage.snapshot();
        for path in ["a", "b", "c"] {
            stage.write(path, "edited\n");
        }
        let errno = rustix::io::Errno::PERM.raw_os_error();
        let mut refused = BTreeSet::new();
        for call in 0..100 {
            for path in ["a", "b", "c"] {
                stage.write(path, "edited\n");
            }
            let (result, calls) =
                faults::with(Fault::FailAt(call, errno), || stage.try_restore(&snapshot));
            if calls <= call {
                break;
            }
            let Ok(outcome) = result else {
                recover(&stage.workspace).unwrap();
                continue;
            };
            for skipped in &outcome.skipped {
                assert_eq!(skipped.reason, SkipReason::Refused);
                assert_eq!(stage.read(&skipped.path.to_string()), "edited\n");
                refused.insert(skipped.path.clone());
            }
            assert_eq!(outcome.restored.len() + outcome.skipped.len(), 3);
        }
        assert_eq!(refused.len(), 3, "each of them was refused once");
    }

    #[test]
    fn staged_files_that_vanish_are_found_and_the_paths_named() {
        let [untouched, _] = endings();
        let mut named = 0;
        for call in 0.. {
            let (mut stage, snapshot) = every_kind();
            let (result, calls) =
                faults::with(Fault::StopBefore(call), || stage.try_restore(&snapshot));
            if calls <= call {
                break;
            }
            if !result.is_err_and(|e| e.touched()) {
                continue;
            }
            let staged = stage.areas().into_iter().map(|a| a.join("staged"));
            for staged in staged.filter(|s| s.exists()) {
                fs::remove_dir_all(staged).unwrap();
            }
            let recovery = recover(&stage.workspace).unwrap();
            named += recovery.skipped.len();
            // What could not be finished is as it was, or named; and the guard has it all.
            let guard = recovery.rolled_forward.first();
            if let Some(guard) = guard {
                let guard = stage.backend.record(&stage.workspace, guard).unwrap();
                stage.restore(&guard.snapshot);
                let mut now = stage.view();
                now.remove("became-fifo");
                let mut before = untouched.clone();
                before.remove("became-fifo");
                assert_eq!(now, before, "at call {call}");
            }
        }
        assert!(named > 0);
    }

    #[test]
    fn recovery_keeps_what_a_person_changed_after_the_crash() {
        let mut stage = Stage::new();
        for path in ["a", "b", "c"] {
            stage.write(path, "captured\n");
        }
        let snapshot = stage.snapshot();
        for path in ["a", "b", "c"] {
            stage.write(path, "edited\n");
        }
        for call in 0.. {
            let (result, _) =
                faults::with(Fault::StopBefore(call), || stage.try_restore(&snapshot));
            assert!(result.is_err(), "it is stopped before its end");
            if stage.read("a") == "captured\n" {
                break;
            }
            recover(&stage.workspace).unwrap();
            for path in ["a", "b", "c"] {
                stage.write(path, "edited\n");
            }
        }
        stage.write("c", "by a person, later\n");
        let recovery = recover(&stage.workspace).unwrap();
        assert_eq!(stage.read("a"), "captured\n");
        assert_eq!(stage.read("c"), "by a person, later\n");
        assert_eq!(
            recovery.skipped,
            [skipped("c", SkipReason::ChangedMeanwhile)]
        );
    }

    #[test]
    fn a_journal_of_another_directory_is_dropped() {
        let (mut stage, snapshot) = every_kind();
        let mut call = 0;
        while !faults::with(Fault::StopBefore(call), || stage.try_restore(&snapshot))
            .0
            .is_err_and(|e| e.touched())
        {
            recover(&stage.workspace).unwrap();
            call += 1;
        }
        let away = stage.outside.join("away");
        fs::rename(&stage.directory, &away).unwrap();
        fs::create_dir(&stage.directory).unwrap();
        stage.write("edited", "another directory's\n");
        let stage = stage.reopen();
        let recovery = recover(&stage.workspace).unwrap();
        assert_eq!(recovery.discarded, 1);
        assert_eq!(stage.view().len(), 1);
        assert_eq!(stage.read("edited"), "another directory's\n");
        assert_eq!(recover(&stage.workspace).unwrap(), Recovery::default());
    }

    #[test]
    fn a_workspace_that_is_gone_is_made_again_and_a_refused_restore_leaves_nothing() {
        let mut stage = Stage::new();
        stage.write("sub/file", "one\n");
        stage.chmod("", 0o750);
        // The bits are those that the directory had when it was last locked.
        stage = stage.reopen();
        let before = stage.snapshot();
        let view_before = stage.view();
        stage.write("sub/file", "two\n");
        let after = stage.snapshot();
        fs::remove_dir_all(&stage.directory).unwrap();

        let undo = RestoreGoal::Undo {
            before: before.clone(),
            after: after.clone(),
            paths: None,
        };
        let error = stage
            .restore_goal(&undo, RepositoryRestore::Nothing)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let said = error.to_string();
        assert!(
            said.contains(before.id.as_str()) && said.contains(after.id.as_str()),
            "{said}"
        );
        let another = "plan_00000000000000000000000000000000".parse().unwrap();
        let error = stage.restore_planned(&before, another).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(!stage.directory.exists(), "nothing was touched");

        let outcome = stage.restore(&before);
        assert_eq!(stage.view(), view_before);
        assert_eq!(stage.mode(""), 0o750);
        assert_eq!(outcome.restored, [rel("sub/file")]);
        stage.restore(&after);
        assert_eq!(stage.read("sub/file"), "two\n");
    }

    #[test]
    fn a_restore_that_died_in_a_workspace_that_is_gone_since_stands_in_nobodys_way() {
        let mut stage = Stage::new();
        stage.write("file", "one\n");
        let snapshot = stage.snapshot();
        stage.write("file", "two\n");
        // The first call at which it leaves a promise behind.
        for call in 0.. {
            let (result, _) =
                faults::with(Fault::StopBefore(call), || stage.try_restore(&snapshot));
            if result.is_err_and(|e| e.touched()) {
                break;
            }
            recover(&stage.workspace).unwrap();
        }
        let journal = stage.workspace.store_path().join("restore.journal");
        assert!(journal.exists());
        fs::remove_dir_all(&stage.directory).unwrap();

        assert_eq!(recover(&stage.workspace).unwrap(), Recovery::default());
        assert!(journal.exists(), "the directory may come back");
        stage.restore(&snapshot);
        assert_eq!(stage.read("file"), "one\n");
        assert!(!journal.exists());
    }

    #[test]
    fn odd_names_and_deep_paths_are_restored_exactly() {
        let mut stage = Stage::new();
        let deep = vec!["d"; 300].join("/");
        let names: [&[u8]; 6] = [
            b"new\nline",
            b"tab\t",
            b"-dash",
            b"quote\"",
            b"back\\slash",
            b"\xff\xfe",
        ];
        for name in names {
            fs::write(
                stage.directory.join(std::ffi::OsStr::from_bytes(name)),
                "captured",
            )
            .unwrap();
        }
        stage.write(&format!("{deep}/file"), "captured");
        let snapshot = stage.snapshot();
        let before = stage.view();
        for name in names {
            fs::remove_file(stage.directory.join(std::ffi::OsStr::from_bytes(name))).unwrap();
        }
        stage.remove("d");
        let outcome = stage.restore(&snapshot);
        assert_eq!(stage.view(), before);
        assert_eq!(outcome.restored.len(), 7);
    }
}
