//! The order of a restore, shared by both backends: guard, plan, check, stage, intent, apply,
//! compare.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use super::goal::{Goal, Planned, Unplanned};
use super::plan;
use super::{
    Captured, LostAttributes, PlanId, Publish, Restorable, RestoreGoal, RestorePlan, SkipReason,
    Skipped,
};
use crate::backend::{
    Recovery, RepositoryRestore, RestoreDurations, RestoreOptions, RestoreOutcome, SnapshotOptions,
};
use crate::content_hash::ContentHashes;
use crate::contents::Overlaid;
use crate::coverage::OmissionReason;
use crate::error::{ErrorKind, PathError};
use crate::git::put_error::PutError;
use crate::git::rollback::{self, RepositoryPlan, Way};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::record::Record;
use crate::repository_changes::RepositoryProblem;
use crate::restore_error::RestoreError;
use crate::retain::RetainContent;
use crate::snapshot::{Label, SnapshotId};
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::tree::{ContentId, Entry};
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::apply::Committed;
use crate::worktree::area::{self, Area};
use crate::worktree::journal::{self, OperationId, State};
use crate::worktree::remembered::Remembered;
use crate::worktree::root::Root;
use crate::worktree::staging::{self, CommitError, StageError, Staged};

/// Says what a restore would do. Nothing is written.
pub(crate) fn plan_only<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    goal: &RestoreGoal,
    options: &RestoreOptions,
) -> Result<RestorePlan, RestoreError> {
    let goal = Goal::load(op, backend, workspace, goal)?;
    let repository = prepare_repository(
        &within_store(op, &options.guard, workspace)?,
        backend,
        workspace,
        options,
    )?;
    let mut guard = guard_options(options);
    include_made(workspace, &goal, &mut guard)?;
    let now = backend
        .capture(op, workspace, &guard, &goal.keep(), Publish::No)
        .map_err(RestoreError::Guard)?;
    let mut repository =
        repository.map(|prepared| guarded_by(op, backend, workspace, prepared, now.record()));
    let planned = goal
        .plan(op, backend, workspace, &now)
        .map_err(|error| error.before_anything(&goal.record.snapshot.id))?;
    let plan = planned.plan;
    keep_in_sight(repository.as_mut(), &goal, &now, &plan);
    foresee_objects(op, backend, workspace, repository.as_mut())?;
    let plan = with_repository(plan, repository.as_ref());
    // A directory that is gone is made again first.
    if !plan.is_empty() && !workspace.is_gone() {
        check_place(workspace)?;
    }
    Ok(plan)
}

/// Restores: see [`Backend::restore`](crate::Backend::restore).
pub(crate) fn restore<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &mut LockedWorkspace,
    goal: &RestoreGoal,
    options: &RestoreOptions,
) -> Result<RestoreOutcome, RestoreError> {
    let restored = restore_or_make_again(op, backend, workspace, goal, options);
    restored.map_err(|error| match (error, op.check()) {
        // The lock was not waited for to the end.
        (RestoreError::Busy { .. }, Err(interrupted)) => interrupted.into(),
        (error, _) => error.or_its_cause(),
    })
}

fn restore_or_make_again<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &mut LockedWorkspace,
    goal: &RestoreGoal,
    options: &RestoreOptions,
) -> Result<RestoreOutcome, RestoreError> {
    let loaded = Goal::load(op, backend, workspace, goal)?;
    if !workspace.is_gone() {
        return restore_in_place(op, backend, workspace, &loaded, options);
    }
    loaded.refuse_undo_in_nothing(workspace)?;
    workspace.make_again(op).map_err(RestoreError::Prepare)?;
    let restored = restore_in_place(op, backend, workspace, &loaded, options);
    if restored.as_ref().is_err_and(|e| !e.touched()) {
        workspace.remove_again();
    }
    restored
}

/// Restores in a directory that is there.
fn restore_in_place<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    goal: &Goal,
    options: &RestoreOptions,
) -> Result<RestoreOutcome, RestoreError> {
    let mut stopwatch = Stopwatch::start();
    // Two restores that are both half done could not be told apart.
    recover(op, workspace)?;
    let aside = || within_store(op, &options.guard, workspace);
    let repository = prepare_repository(&aside()?, backend, workspace, options)?;

    let mut guard_options = guard_options(options);
    include_made(workspace, goal, &mut guard_options)?;
    if let Some(prepared) = &repository {
        guard_options.safety_refs = prepared.plan.safety_refs();
    }
    let taken = taken_guard(backend, workspace, options);
    let is_taken = taken.is_some();
    let captured = || {
        backend.capture(
            op,
            workspace,
            &guard_options,
            &goal.keep(),
            publishes_guard(),
        )
    };
    let guard = taken.map_or_else(captured, Ok);
    let guard = guard.map_err(RestoreError::Guard)?;
    let moves = |r: &Option<rollback::Prepared>| r.as_ref().map(|r| !r.plan.is_empty());
    let had_to_move = moves(&repository) == Some(true);
    let mut repository = repository.map(|r| guarded_by(op, backend, workspace, r, guard.record()));
    refuse_another_index(is_taken && had_to_move && moves(&repository) == Some(false))?;
    let mut durations = RestoreDurations {
        guard: stopwatch.lap(),
        ..RestoreDurations::default()
    };
    let Planned { plan, made } = planned(op, backend, workspace, goal, options, &guard)?;
    keep_in_sight(repository.as_mut(), goal, &guard, &plan);
    foresee_objects(op, backend, workspace, repository.as_mut())?;
    let mut plan = with_repository(plan, repository.as_ref());
    refuse_another_plan(&plan, options.expected_plan.as_ref())?;
    check_content(&aside()?, backend, workspace, &plan, &made, goal, &guard)?;
    let repository = with_objects(op, backend, workspace, repository, &mut plan)?;
    refuse_half_a_merge(options, repository.as_ref(), &plan.skipped)?;
    durations.plan = stopwatch.lap();

    if plan.is_empty() {
        let notes = repository.and_then(|r| r.plan.notes());
        return Ok(nothing_to_do(goal, guard.record(), plan, notes, durations));
    }
    let todo = Todo {
        plan: &plan,
        made: &made,
        goal,
        guard: &guard,
        repository,
    };
    let carried = {
        let op = &aside()?;
        let displaced = op.reserve();
        let bytes = bytes_displaced(&plan, &guard);
        displaced.up_to(bytes).map_err(StoreError::from)?;
        carry_out(op, backend, workspace, todo)?
    };
    durations.apply = stopwatch.lap();
    if is_taken && led_to_goal(&plan, &carried) {
        return Ok(at_goal(goal, guard.record(), plan, carried, durations));
    }
    let closing = closing_options(options, stopwatch.started);
    // The files are restored, so a cancellation comes too late.
    let op = &op.to_its_end();
    let result = backend
        .capture(op, workspace, &closing, &goal.keep(), Publish::Yes)
        .map_err(RestoreError::Closing)?;
    let left = goal
        .plan(op, backend, workspace, &result)
        .map_err(|error| error.after_the_fact(&goal.record.snapshot.id))?
        .plan;
    let skipped = all_skipped(&plan, &carried.skipped, &left, guard.record(), &result);
    durations.verify = stopwatch.lap();
    Ok(RestoreOutcome {
        restored: restored(&plan, guard.record(), &skipped),
        leftover_ignored: goal.leftover_ignored(guard.record(), &plan, &skipped, Some(&left)),
        plan,
        guard: guard.record().snapshot.clone(),
        result: result.record().snapshot.clone(),
        skipped,
        safety_tag: carried.repository.safety_tag,
        moved_tags: Vec::new(),
        refs_left: Vec::new(),
        objects_gone: BTreeSet::new(),
        taken_elsewhere: BTreeMap::new(),
        repository_error: carried.repository.error,
        attributes_lost: carried.attributes_lost,
        durations,
    })
}

/// Refuses a branch that was decided by an index which is not there any more.
fn refuse_another_index(is_another: bool) -> Result<(), RestoreError> {
    let path = RelPath::root().join(b".git").join(b"index");
    match is_another {
        true => Err(RestoreError::Changed { path }),
        false => Ok(()),
    }
}

/// Refuses to move files of a checkout without its branch, or the branch without one of them.
fn refuse_half_a_merge(
    options: &RestoreOptions,
    repository: Option<&rollback::Prepared>,
    skipped: &[Skipped],
) -> Result<(), RestoreError> {
    let RepositoryRestore::Switch { merges: true, .. } = &options.repository else {
        return Ok(());
    };
    if let Some(Skipped { path, .. }) = skipped.first() {
        return Err(RestoreError::Changed { path: path.clone() });
    }
    match repository {
        Some(prepared) if prepared.plan.is_whole_merge() => Ok(()),
        prepared => {
            let notes = prepared.and_then(|prepared| prepared.plan.notes());
            let why = notes.map_or_else(
                || "the branch would not move with the files".to_owned(),
                |problem| problem.message,
            );
            Err(RestoreError::Unsupported(why))
        }
    }
}

/// What a switch goes on from, if the guard has its id: it is the guard then.
fn taken_guard<B: Restorable>(
    backend: &B,
    workspace: &LockedWorkspace,
    options: &RestoreOptions,
) -> Option<B::Capture> {
    match &options.repository {
        RepositoryRestore::Switch { from, .. } if from.id == options.guard.id => {
            backend.taken(workspace, &from.id)
        }
        _ => None,
    }
}

/// What is `prepared` of the repository, as far as the guard leads back from it.
fn guarded_by<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    prepared: rollback::Prepared,
    guard: &Record,
) -> rollback::Prepared {
    let Some(repository) = backend.user_repository() else {
        return prepared;
    };
    prepared.guarded_by(guard, &|blob| repository.kept(op, workspace, blob))
}

/// Whether all of it was carried out, so that the workspace is at the goal, which was made from the
/// guard. With another rule, what was left out before may not be any more.
fn led_to_goal(plan: &RestorePlan, carried: &Carried) -> bool {
    let changes_rules = |path: &RelPath| path.name() == b".gitignore";
    plan.skipped.is_empty()
        && carried.skipped.is_empty()
        && carried.repository.error.is_none()
        && !plan.changed_paths().any(changes_rules)
}

/// The outcome where the workspace is at the goal: nothing has to be looked at again.
fn at_goal(
    goal: &Goal,
    guard: &Record,
    plan: RestorePlan,
    carried: Carried,
    durations: RestoreDurations,
) -> RestoreOutcome {
    RestoreOutcome {
        restored: restored(&plan, guard, &[]),
        result: goal.record.snapshot.clone(),
        safety_tag: carried.repository.safety_tag,
        attributes_lost: carried.attributes_lost,
        ..nothing_to_do(goal, guard, plan, None, durations)
    }
}

/// The guard is what leads back.
fn publishes_guard() -> Publish {
    match seeded_bug!("guard-not-published") {
        true => Publish::No,
        false => Publish::Yes,
    }
}

/// What is to be done, seen from the guard.
fn planned<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    goal: &Goal,
    options: &RestoreOptions,
    guard: &B::Capture,
) -> Result<Planned, RestoreError> {
    let planned = match goal.plan(op, backend, workspace, guard) {
        // The guard may lack what was believed to be in the store, and the workspace still has.
        Err(Unplanned::Store(StoreError::Corrupt { .. })) => {
            let aside = within_store(op, &options.guard, workspace)
                .map_err(|error| RestoreError::Guard(error.into()))?;
            backend
                .heal(&aside, workspace, guard, &[])
                .map_err(RestoreError::Guard)?;
            goal.plan(op, backend, workspace, guard)
        }
        planned => planned,
    };
    planned.map_err(|error| error.before_anything(&goal.record.snapshot.id))
}

/// The outcome where the workspace is as it is to be: nothing has to be looked at again.
fn nothing_to_do(
    goal: &Goal,
    guard: &Record,
    plan: RestorePlan,
    repository_error: Option<RepositoryProblem>,
    durations: RestoreDurations,
) -> RestoreOutcome {
    RestoreOutcome {
        restored: Vec::new(),
        leftover_ignored: goal.leftover_ignored(guard, &plan, &plan.skipped, None),
        guard: guard.snapshot.clone(),
        result: guard.snapshot.clone(),
        skipped: plan.skipped.clone(),
        plan,
        safety_tag: None,
        moved_tags: Vec::new(),
        refs_left: Vec::new(),
        objects_gone: BTreeSet::new(),
        taken_elsewhere: BTreeMap::new(),
        repository_error,
        attributes_lost: Vec::new(),
        durations,
    }
}

/// How much of the workspace is moved aside, in bytes, where it stays for as long as its guard
/// does.
fn bytes_displaced(plan: &RestorePlan, guard: &impl Captured) -> u64 {
    let written = plan.writes.iter().map(|write| &write.path);
    let removed = plan.removals.iter().map(|removal| &removal.path);
    let sizes = written.chain(removed).filter_map(|path| guard.seen(path));
    let captured: u64 = sizes.map(|seen| seen.stat.size).sum();
    let unread = plan.displaced.iter().filter_map(|omission| omission.bytes);
    captured.saturating_add(unread.sum())
}

/// The same operation, which may add to the store what its limit leaves by now.
fn within_store(
    op: &Operation,
    options: &SnapshotOptions,
    workspace: &Workspace,
) -> Result<Operation, StoreError> {
    Ok(op.within(options.quota_aside(op, workspace)?))
}

/// Has git go on to see what a sparse checkout leaves out at the goal, and stays there.
fn keep_in_sight<C: Captured>(
    repository: Option<&mut rollback::Prepared>,
    goal: &Goal,
    now: &C,
    plan: &RestorePlan,
) {
    if let Some(repository) = repository {
        repository.keep_in_sight(&goal.staying_in_sparse(now, plan));
    }
}

/// The whole plan: of the files, and of what is `prepared` of the repository.
fn with_repository(plan: RestorePlan, prepared: Option<&rollback::Prepared>) -> RestorePlan {
    match prepared {
        Some(prepared) => plan.with_repository(prepared.changes()),
        None => plan,
    }
}

/// Looks whether the repository can be given the objects that it needs for what it is put back to,
/// so that what cannot be done is not promised.
fn foresee_objects<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    prepared: Option<&mut rollback::Prepared>,
) -> Result<(), RestoreError> {
    let (Some(prepared), Some(repository)) = (prepared, backend.user_repository()) else {
        return Ok(());
    };
    let purged = Purged::of(workspace)?;
    prepared.foresee_objects(op, &purged, &|blob| repository.kept(op, workspace, blob));
    Ok(op.check()?)
}

/// Gives the repository the objects that it needs for what it is put back to. Where one is not to
/// be had any more, or cannot be written, less is done than was decided: `plan` tells so, under the
/// id by which it was agreed to.
fn with_objects<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    prepared: Option<rollback::Prepared>,
    plan: &mut RestorePlan,
) -> Result<Option<rollback::Prepared>, RestoreError> {
    let (Some(prepared), Some(repository)) = (prepared, backend.user_repository()) else {
        return Ok(None);
    };
    let purged = Purged::of(workspace)?;
    let kept = |blob: &_| repository.kept(op, workspace, blob);
    let prepared = prepared.with_objects(op, &purged, &kept);
    // A cancellation made reading fail, and nothing is lost by that.
    op.check()?;
    plan.repository = prepared.changes();
    Ok(Some(prepared))
}

/// Tells how long the parts of a restore take.
struct Stopwatch {
    started: Instant,
    lapped: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        let started = Instant::now();
        Self {
            started,
            lapped: started,
        }
    }

    /// The time since the last part ended.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.lapped, now))
    }
}

/// See [`Backend::check_restore_place`](crate::Backend::check_restore_place).
pub(crate) fn check_place(workspace: &Workspace) -> Result<(), RestoreError> {
    let root = workspace.root().map_err(RestoreError::Prepare)?;
    // The store may not be made yet; it will lie on the file system of the state directory.
    let place = Area::place(&root, workspace.state().path(), OperationId::random())
        .map_err(RestoreError::Prepare)?;
    match place {
        Some(_) => Ok(()),
        None => Err(RestoreError::NoPlace(Area::no_place(&root))),
    }
}

/// Finishes a restore that was interrupted: see [`Backend::recover`](crate::Backend::recover).
///
/// It needs no backend: all content was staged before the intent.
pub(crate) fn recover(
    op: &Operation,
    workspace: &LockedWorkspace,
) -> Result<Recovery, RestoreError> {
    let op = &op.to_its_end();
    let mut recovery = Recovery::default();
    if workspace.is_gone() {
        // There is nothing to finish it in. The journal stays, for a directory that comes back.
        return Ok(recovery);
    }
    let store = workspace.store_path();
    let Some(found) = journal::find(op, &workspace.own_path())? else {
        return Ok(recovery);
    };
    // Before anything is done: what cannot be read is done by nobody.
    let repository = match &found.state {
        State::Intended(intent, _) => intent.repository.as_deref(),
        State::Staging | State::Done => None,
    };
    let plan = repository.map(RepositoryPlan::from_bytes).transpose()?;
    let Some(staging) = found.staging else {
        // It ended within its first frame, before anything else was made.
        found.journal.remove().map_err(RestoreError::Prepare)?;
        recovery.discarded += 1;
        return Ok(recovery);
    };
    match found.state {
        // Another directory has taken the place of the one that was to be restored.
        State::Intended(..) if staging.workspace_inode != workspace.identity().inode => {
            area::reap(op, &staging, store).map_err(RestoreError::Prepare)?;
            found.journal.remove().map_err(RestoreError::Prepare)?;
            recovery.discarded += 1;
        }
        State::Intended(_, steps) => {
            let root = workspace.root().map_err(RestoreError::Apply)?;
            let lock = plan
                .as_ref()
                .filter(|plan| !plan.is_empty() && plan.common_dir().exists())
                .map(|plan| {
                    let lock_timeout = rollback::LOCK_TIMEOUT;
                    rollback::lock_repository(
                        op,
                        workspace.state(),
                        &plan.common_dir(),
                        lock_timeout,
                    )
                })
                .transpose()?;
            let guard = staging.guard.clone();
            let committed = Committed::from_journal(found.journal, staging, steps);
            let is_begun = plan
                .as_ref()
                .is_none_or(|plan| rollback::is_begun(op, plan));
            if let (false, Some(plan)) = (is_begun, &plan) {
                // No file has come; or somebody has taken our locks away, and gone on from there.
                rollback::release(op, plan);
                Remembered::of(store)
                    .forget_made(op, &guard)
                    .map_err(RestoreError::Prepare)?;
                committed.finish(op, store).map_err(RestoreError::Apply)?;
                recovery.discarded += 1;
                return Ok(recovery);
            }
            // What was begun is carried on as far as it goes.
            let _ = hold_repository(op, plan.as_ref(), &committed, true);
            recovery.skipped = committed
                .apply(op, &root, &ContentHashes)
                .map_err(RestoreError::Apply)?;
            let outcome = put_repository_back(op, plan.as_ref(), &committed, true);
            recovery.safety_tags.extend(outcome.safety_tag);
            recovery.repository_errors.extend(outcome.error);
            committed.finish(op, store).map_err(RestoreError::Apply)?;
            drop(lock);
            recovery.rolled_forward.push(guard);
        }
        State::Done => {
            area::reap(op, &staging, store).map_err(RestoreError::Prepare)?;
            found.journal.remove().map_err(RestoreError::Prepare)?;
        }
        State::Staging => {
            Remembered::of(store)
                .forget_made(op, &staging.guard)
                .map_err(RestoreError::Prepare)?;
            area::discard(op, &staging, store).map_err(RestoreError::Prepare)?;
            found.journal.remove().map_err(RestoreError::Prepare)?;
            recovery.discarded += 1;
        }
    }
    Ok(recovery)
}

/// Lets a capture see what is to be taken back, though a rule ignores it.
fn include_made(
    workspace: &Workspace,
    goal: &Goal,
    options: &mut SnapshotOptions,
) -> Result<(), RestoreError> {
    let made = goal.made_since(workspace);
    options.include.extend(made.map_err(RestoreError::Prepare)?);
    Ok(())
}

/// How the guard is taken. Without its content there would be no way back.
fn guard_options(options: &RestoreOptions) -> SnapshotOptions {
    let mut guard = options.guard.clone();
    guard.label = Label::GUARD;
    guard.retain_content = RetainContent::Always;
    guard.since = state_before_restore(options);
    guard
}

/// The snapshot whose branches the guard has to see as well, so that what the restore does to them
/// can be taken back.
fn state_before_restore(options: &RestoreOptions) -> Option<SnapshotId> {
    match &options.repository {
        RepositoryRestore::Nothing => None,
        RepositoryRestore::Rollback { after, .. } | RepositoryRestore::Undo { after, .. } => {
            Some(after.id.clone())
        }
        RepositoryRestore::Switch { from, .. } => Some(from.id.clone()),
    }
}

/// How the result is captured: like the guard, later, and whatever the limits say, since
/// the files are restored by then.
fn closing_options(options: &RestoreOptions, started: Instant) -> SnapshotOptions {
    let mut closing = options.guard.clone();
    closing.since = state_before_restore(options).map(|_| options.guard.id.clone());
    closing.id = SnapshotId::random();
    closing.label = Label::AFTER;
    closing.retain_content = RetainContent::Always;
    (
        closing.max_files,
        closing.max_new_bytes,
        closing.max_store_bytes,
    ) = (0, 0, 0);
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

/// Makes sure that the store has what will be put back, which is read and compared when it is
/// staged, and that it has what will be displaced, every byte: the workspace has that no more
/// afterwards.
///
/// A capture takes the word of its cache for what was stored before. What was lost or damaged since
/// is stored anew, from the files.
fn check_content<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    plan: &RestorePlan,
    made: &BTreeMap<ContentId, Vec<u8>>,
    goal: &Goal,
    guard: &B::Capture,
) -> Result<(), RestoreError> {
    let wanted: BTreeSet<ContentId> = wanted(plan, made, goal).collect();
    let wanted = backend.missing(op, workspace, &Vec::from_iter(wanted))?;
    if let Some(first) = wanted.first() {
        return Err(RestoreError::TargetCorrupt {
            snapshot: goal.record.snapshot.id.clone(),
            detail: format!("the store lacks {} objects, such as {first}", wanted.len()),
        });
    }
    let written = plan
        .writes
        .iter()
        .filter_map(|w| Some((&w.path, w.current?)));
    let removed = plan.removals.iter().map(|r| (&r.path, r.current));
    let displaced: Vec<(&RelPath, Entry)> = written.chain(removed).collect();
    let ids: BTreeSet<ContentId> = displaced.iter().map(|(_, entry)| entry.id).collect();
    let lost = backend.unsound(op, workspace, &Vec::from_iter(ids))?;
    if lost.is_empty() {
        return Ok(());
    }
    let lost: BTreeSet<ContentId> = lost.into_iter().collect();
    let paths: Vec<(RelPath, Entry)> = displaced
        .into_iter()
        .filter(|(_, entry)| lost.contains(&entry.id))
        .map(|(path, entry)| (path.clone(), entry))
        .collect();
    backend
        .heal(op, workspace, guard, &paths)
        .map_err(RestoreError::Guard)?;
    let lost = backend.unsound(op, workspace, &Vec::from_iter(lost))?;
    match paths.iter().find(|(_, entry)| lost.contains(&entry.id)) {
        None => Ok(()),
        Some((path, entry)) => Err(RestoreError::Guard(SnapshotError::Store(
            StoreError::corrupt(
                "the guard",
                format!("the store lacks {}, the content of {path}", entry.id),
            ),
        ))),
    }
}

/// The ids of the content that the store has to have for `plan`: all but what was `made`, and what
/// lies in the trash of the goal.
fn wanted(
    plan: &RestorePlan,
    made: &BTreeMap<ContentId, Vec<u8>>,
    goal: &Goal,
) -> impl Iterator<Item = ContentId> {
    let ids = plan.writes.iter().map(|write| write.entry.id);
    ids.filter(|id| !made.contains_key(id) && goal.held.place_of(id).is_none())
}

/// What a restore has to do once all is known.
struct Todo<'a, C> {
    plan: &'a RestorePlan,
    /// The content of merged files, which no snapshot has.
    made: &'a BTreeMap<ContentId, Vec<u8>>,
    goal: &'a Goal,
    guard: &'a C,
    repository: Option<rollback::Prepared>,
}

/// What came of the part of a restore that changes something.
struct Carried {
    skipped: Vec<Skipped>,
    attributes_lost: Vec<LostAttributes>,
    repository: rollback::Outcome,
}

/// Stages, promises, and does it.
fn carry_out<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    todo: Todo<'_, B::Capture>,
) -> Result<Carried, RestoreError> {
    let Todo {
        plan,
        made,
        goal,
        guard,
        repository,
    } = todo;
    let store = workspace.store_path();
    let root = workspace.root().map_err(RestoreError::Prepare)?;
    let coverage = &guard.record().snapshot.omissions;
    let wanted: Vec<ContentId> = wanted(plan, made, goal).collect();
    let stored = backend
        .contents(op, workspace, &wanted)
        .map_err(|error| stage_error(StageError::Store(error), &goal.record.snapshot.id))?;
    let contents = Overlaid {
        held: made,
        stored: &*stored,
    };
    let staged = staging::stage(&staging::Request {
        root: &root,
        store,
        journal: &workspace.own_path(),
        plan,
        guard: &guard.record().snapshot.id,
        modes: &goal.record.modes,
        seen: &|path| guard.seen(path),
        hidden: &|path| match coverage.covers(path) {
            Some(omission) if omission.reason != OmissionReason::Sparse => {
                SkipReason::Omitted(omission.reason)
            }
            _ => SkipReason::ChangedMeanwhile,
        },
        contents: &contents,
        held: &goal.held,
        index: repository.as_ref().and_then(|r| r.staged.as_deref()),
        op,
    })
    .map_err(|error| stage_error(error, &goal.record.snapshot.id))?;
    if let Err(interrupted) = op.check() {
        // Best effort beside the error: recovery removes what is left.
        let _ = staged.discard(op, store);
        return Err(interrupted.into());
    }
    let is_merge = repository.as_ref().is_some_and(|r| r.plan.is_merge());
    let staged = unless_some_stay(op, store, staged, is_merge)?;
    // It is a step or two to the point of no return.
    let op = &op.to_its_end();
    let mut skipped = staged.skipped().to_vec();
    let attributes_lost = staged.attributes_lost().to_vec();
    if !root.is_in_place() {
        // Best effort beside the error: recovery removes what is left.
        let _ = staged.discard(op, store);
        let gone = std::io::Error::other("it was moved away, or another directory is there");
        return Err(RestoreError::Prepare(PathError::at(
            "recognise",
            workspace.disk_path(),
        )(gone)));
    }
    if let Err(error) = remember(op, &staged, &root, store, plan, goal, guard.record()) {
        // Best effort, as above.
        let _ = staged.discard(op, store);
        return Err(error);
    }
    // The repository stays locked until its part is done.
    let plan_back = repository.as_ref().map(|prepared| &prepared.plan);
    let encoded = plan_back.map(RepositoryPlan::to_bytes);
    let committed = staged
        .commit(op, store, plan, encoded)
        .map_err(|error| match error {
            CommitError::Refused(source) => {
                // Best effort: what it names is not there.
                let _ = Remembered::of(store).forget_made(op, &guard.record().snapshot.id);
                RestoreError::Prepare(source)
            }
            CommitError::Undecided(source) => RestoreError::Apply(source),
        })?;
    if let Err(error) = hold_repository(op, plan_back, &committed, false) {
        // Nothing was touched yet.
        let _ = Remembered::of(store).forget_made(op, &guard.record().snapshot.id);
        committed.finish(op, store).map_err(RestoreError::Apply)?;
        return Err(error);
    }
    let applied = committed.apply(op, &root, &ContentHashes);
    skipped.extend(applied.map_err(RestoreError::Apply)?);
    let outcome = put_repository_back(op, plan_back, &committed, is_merge);
    committed.finish(op, store).map_err(RestoreError::Apply)?;
    drop(repository);
    Ok(Carried {
        skipped,
        attributes_lost,
        repository: outcome,
    })
}

/// What is staged, unless something of a merge cannot come: then the branch does not move either.
fn unless_some_stay(
    op: &Operation,
    store: &Path,
    staged: Staged,
    is_merge: bool,
) -> Result<Staged, RestoreError> {
    let path = match staged.skipped().first() {
        Some(Skipped { path, .. }) if is_merge => path.clone(),
        _ => return Ok(staged),
    };
    // Best effort beside the error: recovery removes what is left.
    let _ = staged.discard(op, store);
    Err(RestoreError::Changed { path })
}

/// Writes down what later restores have to know of this one, while nothing was touched.
fn remember(
    op: &Operation,
    staged: &Staged,
    root: &Root,
    store: &Path,
    plan: &RestorePlan,
    goal: &Goal,
    guard: &Record,
) -> Result<(), RestoreError> {
    let remembered = Remembered::of(store);
    let made = staged.made().map_err(RestoreError::Prepare)?;
    remembered
        .keep_made(op, &guard.snapshot, &made)
        .map_err(RestoreError::Prepare)?;
    remembered
        .spare(op, root, goal.spares(root, guard, plan))
        .map_err(|error| match error {
            StoreError::Io(source) => RestoreError::Prepare(source),
            error => error.into(),
        })
}

pub(super) fn stage_error(error: StageError, target: &SnapshotId) -> RestoreError {
    match error {
        StageError::Disk(source) => RestoreError::Prepare(source),
        StageError::NoRoom {
            needed_bytes,
            file_system,
            source,
        } => RestoreError::NoRoom {
            needed_bytes,
            file_system,
            source,
        },
        StageError::Store(StoreError::Corrupt { what, detail }) => RestoreError::TargetCorrupt {
            snapshot: target.clone(),
            detail: format!("{what} is corrupt: {detail}"),
        },
        StageError::Store(source) => source.into(),
        StageError::NoPlace(why) => RestoreError::NoPlace(why),
        StageError::Interrupted(source) => RestoreError::Interrupted(source),
        StageError::Changed(path) => RestoreError::Changed { path },
    }
}

/// Takes the locks of what is to change in the repository where a branch is gone on with, so that
/// nobody commits there while the files come.
fn hold_repository(
    op: &Operation,
    plan: Option<&RepositoryPlan>,
    committed: &Committed,
    is_recovery: bool,
) -> Result<(), RestoreError> {
    let Some(plan) = plan else {
        return Ok(());
    };
    let staged = || committed.index();
    let held = rollback::hold(op, plan, staged, is_recovery, rollback::LOCK_TIMEOUT);
    held.map_err(|error| match error {
        PutError::Locked { what } => RestoreError::Busy {
            what,
            holder: "another process, or by what is left of one".to_owned(),
        },
        PutError::Moved {
            what,
            expected,
            found,
        } => RestoreError::HeadMoved {
            what,
            expected,
            found,
        },
        PutError::Io(source) => RestoreError::Prepare(source),
        PutError::Changed { .. } => RestoreError::Changed {
            path: RelPath::root().join(b".git").join(b"index"),
        },
        error => RestoreError::Unsupported(error.to_string()),
    })
}

fn put_repository_back(
    op: &Operation,
    plan: Option<&RepositoryPlan>,
    committed: &Committed,
    is_recovery: bool,
) -> rollback::Outcome {
    let Some(plan) = plan else {
        return rollback::Outcome::default();
    };
    let staged = || committed.index();
    rollback::carry_out(op, plan, staged, is_recovery, rollback::LOCK_TIMEOUT)
}

/// Checks what is asked for of the repository, before anything is done.
fn prepare_repository<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &LockedWorkspace,
    options: &RestoreOptions,
) -> Result<Option<rollback::Prepared>, RestoreError> {
    let mut reached = &[][..];
    let (before, after, name, way) = match &options.repository {
        RepositoryRestore::Nothing => return Ok(None),
        RepositoryRestore::Rollback {
            before,
            after,
            run_id,
        } => (before, after, run_id.as_str(), Way::Back),
        RepositoryRestore::Undo {
            before,
            after,
            run_id,
        } => (before, after, run_id.as_str(), Way::BackBesideEdits),
        RepositoryRestore::Switch {
            to,
            from,
            reached: of_tip,
            merges,
        } => {
            reached = of_tip;
            let way = if *merges { Way::Merge } else { Way::Switch };
            (to, from, to.id.as_str(), way)
        }
    };
    let before = backend.record(op, workspace, &before.id)?;
    let after = backend.record(op, workspace, &after.id)?;
    let (Some(state_before), Some(repository)) = (&before.git, backend.user_repository()) else {
        return Ok(None);
    };
    let found = repository.found(workspace).and_then(|found| match found {
        Some(other) if !other.known_as.is_same(&state_before.common_dir) => {
            Err(RepositoryProblem::new(
                ErrorKind::Unsupported,
                "another repository is there than the one that was captured: its index, HEAD and branch \
                 were left as they are",
            ))
        }
        found => Ok(found),
    });
    rollback::prepare(
        op,
        &rollback::Request {
            state: workspace.state(),
            found: found.as_ref().map(Option::as_ref).map_err(Clone::clone),
            before: state_before,
            after: after.git.as_ref(),
            run_id: name,
            way,
            reached: reached.iter().filter_map(|id| id.parse().ok()).collect(),
            index_bytes: &|blob| repository.kept(op, workspace, blob),
            now: options.guard.captured_at,
            lock_timeout: rollback::LOCK_TIMEOUT,
        },
    )
    .map(Some)
}

/// Everything that differs from the goal: what the plan left alone, what turned out to be out of
/// reach, and what still differs now, because somebody else was at work.
fn all_skipped(
    plan: &RestorePlan,
    found: &[Skipped],
    left: &RestorePlan,
    guard: &Record,
    result: &impl Captured,
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
    // What only an index that stays has is gone from disk, and that is all that was to be done
    // there.
    let removed: BTreeSet<&RelPath> = plan.removals.iter().map(|r| &r.path).collect();
    let is_gone = |path: &RelPath| {
        let left_out = &result.record().snapshot.omissions;
        removed.contains(path) && result.seen(path).is_none() && left_out.covers(path).is_none()
    };
    let is_left = |skipped: &&Skipped| is_news(&skipped.path) && !is_gone(&skipped.path);
    for Skipped { path, reason } in left.skipped.iter().filter(is_left) {
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
    skipped.contains_key(directory) || !plan::range_below(skipped, directory).is_empty()
}

#[cfg(test)]
mod tests;
