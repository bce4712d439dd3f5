//! Clean-up: removing snapshots and artifacts by age, number and quota.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};
use stillframe_backends::{
    Backend, BackendKind, ErrorKind, Label, LockedWorkspace, Operation, Problem, SnapshotId,
    StoreError, Unreadable, Workspace, seeded_bug,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data::CleanedUp;
use crate::events::event::EventType;
use crate::id::{RunId, SessionId};
use crate::options::{GcOptions, RetentionOptions};
use crate::records::artifact::ArtifactRecord;
use crate::records::snapshot::SnapshotRow;
use crate::saving::quarantine;
use crate::state::change::{Change, NewEvent};
use crate::state::registering::{MAX_WAIT, MAX_WAIT_OF_CLEANUP};
use crate::state::{StateStore, snapshot_name};
use crate::step::artifact::is_data_key;
use crate::upkeep::claims::{Claim, Claims};
use crate::upkeep::content;
use crate::upkeep::retention_rules::due;
use crate::upkeep::unregistered::unregistered;
use crate::upkeep::verify::{self, unusable_artifacts};
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;
use crate::workspace::safety::{self, SafetyRefs};
use crate::workspace::{adoption, backends, turn};

/// What a clean-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GcOutcome {
    /// Whether nothing was done, and this is what would have been done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The snapshots that were forgotten, oldest first.
    pub forgotten: Vec<SnapshotId>,
    /// Snapshots in the store that cannot be read, or lack something. While there is one, nobody
    /// can say what it needs, so no content was removed; [`GcOptions::forget_damaged`] removes
    /// them.
    pub unreadable: Vec<Problem>,
    /// Damaged snapshots that were kept because they are pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged_pinned: Vec<SnapshotId>,
    /// What was wrong with the journal of an interrupted restore, if the restore could not be
    /// finished and [`GcOptions::forget_damaged`] abandoned it. Restoring its guard undoes the part
    /// that was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_given_up: Option<Problem>,
    /// The safety refs in the user's repository that were removed or moved: those of removed guards
    /// are removed too.
    #[serde(flatten)]
    pub safety_refs: SafetyRefs,
    /// Why the artifact store could not be opened or listed, if so; no artifact was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifacts_unusable: Option<Problem>,
    /// The keys of the artifacts that were removed: patches that the log does not name, because
    /// their process died before it wrote the row, and artifacts above a quota.
    pub artifacts_removed: Vec<String>,
    /// How many bytes less the store and the artifacts use than before.
    pub freed_bytes: u64,
    /// The bytes that the store and the artifacts occupy afterwards.
    pub used_bytes: u64,
    /// How many snapshots of the workspace are left.
    pub kept: u64,
}

/// Cleans up one workspace, and what was kept for its runs.
pub(crate) async fn collect(
    core: &Core,
    opened: Opened,
    options: GcOptions,
) -> Result<GcOutcome, Error> {
    options.check()?;
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let what = "a clean-up";
    let op = cancel.operation();
    let given_up = match options.forget_damaged {
        true => {
            // By such a one nobody gets as far as a clean-up.
            let workspace = opened.workspace.clone();
            let op = op.to_its_end();
            let given_up = move || {
                let mut locked = workspace.lock(&op, lock_timeout)?;
                Ok::<_, Error>(locked.give_up_damaged_journal(&op)?)
            };
            core.parts.blocking.run(given_up).await??
        }
        false => None,
    };
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| {
            let mut outcome = clean_up(&op, &parts, locked, &options)?;
            outcome.journal_given_up = given_up;
            Ok(outcome)
        },
    )
    .await
}

/// What the removal of snapshots by hand did.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RemovalOutcome {
    /// The snapshots, and what became of their space.
    #[serde(flatten)]
    pub gc: GcOutcome,
    /// Guards that were kept, because a safety ref of theirs in the user's repository could not be
    /// removed.
    #[serde(rename = "not_removed")]
    pub kept: Vec<SnapshotId>,
    /// The runs that can no longer be undone.
    pub not_undoable: Vec<RunId>,
}

/// Forgets the snapshots of these names, all or none, and frees their space.
pub(crate) async fn remove(
    core: &Core,
    opened: Opened,
    names: Vec<String>,
) -> Result<RemovalOutcome, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    let what = "a removal";
    turn::cancellable(
        core,
        &workspace,
        what,
        lock_timeout,
        &cancel,
        move |locked| remove_named(&op, &parts, locked, &names),
    )
    .await
}

fn remove_named(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    names: &[String],
) -> Result<RemovalOutcome, Error> {
    adoption::adopt(op, parts, locked, adoption::Untold::Tell)?;
    let mut upkeep = Upkeep::read(parts, locked)?;
    upkeep.is_by_name = true;
    upkeep.measure(locked)?;
    let (ids, not_undoable) = parts
        .reader
        .read_blocking_with(|store| removable(store, locked, names, upkeep.claims.clone()))?;
    upkeep.forget(op, locked, ids.clone())?;
    upkeep.collect(op, locked)?;
    upkeep.outcome.kept = upkeep.snapshots.len() as u64;
    let mut kept = ids;
    kept.retain(|id| !upkeep.outcome.forgotten.contains(id));
    Ok(RemovalOutcome {
        gc: upkeep.outcome,
        kept,
        not_undoable,
    })
}

/// The snapshots of these names, if nothing needs one of them, and the runs that cannot be undone
/// without them.
fn removable(
    store: &dyn StateStore,
    workspace: &Workspace,
    names: &[String],
    mut claims: Claims,
) -> Result<(Vec<SnapshotId>, Vec<RunId>), Error> {
    claims.add_latest(store, workspace.id())?;
    let (mut ids, mut runs) = (Vec::new(), Vec::new());
    for name in names {
        let row = snapshot_name::find_snapshot(store, name, Some(workspace))?;
        let id = row.snapshot.id;
        if let Some(claim) = claims.of(&id) {
            let needed = claim.reason(&id);
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("snapshot {id} {needed}; nothing was removed"),
            ));
        }
        if let Some(run_id) = row.run_id
            && let Some(operation) = store.operation_of_run(&run_id)?
            && [&operation.before, &operation.after].contains(&&id)
            && !runs.contains(&run_id)
        {
            runs.push(run_id);
        }
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok((ids, runs))
}

fn clean_up(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    options: &GcOptions,
) -> Result<GcOutcome, Error> {
    adoption::adopt(op, parts, locked, adoption::Untold::Tell)?;
    let mut upkeep = Upkeep::read(parts, locked)?;
    upkeep.find_unregistered();
    upkeep.measure(locked)?;
    if options.dry_run {
        return upkeep.foretold(op, locked, options);
    }
    upkeep.move_tags(op, locked)?;
    drop_strays(op, parts, locked)?;
    // Whoever the user told to let go of them may have been killed.
    quarantine::release(op, parts, locked)?;
    if options.forget_damaged {
        upkeep.forget_damaged(op, locked)?;
    }
    let due = upkeep.due(op, locked, options)?;
    upkeep.forget(op, locked, due)?;
    upkeep.remove_unregistered(locked)?;
    upkeep.collect(op, locked)?;
    if let Some(quota) = options.max_bytes {
        upkeep.shrink(op, locked, quota)?;
    }
    match parts.writer.commit_blocking(vec![Change::Compact]) {
        // Beside the clean-up, which is done: the next one comes to it again.
        Err(e) if !matches!(e.kind(), ErrorKind::Busy | ErrorKind::NoSpace) => return Err(e),
        _ => {}
    }
    upkeep.outcome.kept = upkeep.snapshots.len() as u64;
    Ok(upkeep.outcome)
}

/// Removes the displaced files of guards that no longer exist: the clean-up that removed the guards
/// was killed before it removed the files. A guard that the log or a store has, even a damaged one,
/// still exists.
pub(crate) fn drop_strays(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
) -> Result<(), Error> {
    let workspace_id = locked.id().to_owned();
    let rows = parts
        .reader
        .read_blocking(move |store| store.snapshots(&workspace_id))?;
    let mut kept: HashSet<SnapshotId> = rows.into_iter().map(|row| row.snapshot.id).collect();
    // Whatever backend this engine has been given: displaced files are of the workspace.
    for kind in [BackendKind::Git, BackendKind::Hash] {
        let backend = stillframe_backends::backend_of(kind);
        let listing = backend.list(op, locked)?;
        kept.extend(listing.snapshots.into_iter().map(|s| s.id));
        for found in listing.unreadable {
            match found.id {
                Some(id) => drop(kept.insert(id)),
                // It may be a guard, of anything.
                None => return Ok(()),
            }
        }
    }
    Ok(locked.drop_displaced_but(op, &kept)?)
}

/// What a store has that cannot be read as a snapshot. One that the disk did not give, and of which
/// nobody can tell which it is, is an error: it may be any of those that would be forgotten.
fn unreadable_in(
    op: &Operation,
    backend: &dyn Backend,
    locked: &LockedWorkspace,
) -> Result<Vec<Unreadable>, Error> {
    let unreadable = backend.list(op, locked)?.unreadable;
    let is_unknown = |found: &&Unreadable| found.leave_alone && found.id.is_none();
    let unknown = unreadable.iter().filter(is_unknown);
    let failed = unknown.filter_map(|found| Some((found.problem.kind?, &found.problem)));
    match failed.into_iter().next() {
        None => Ok(unreadable),
        Some((kind, problem)) => Err(Error::new(
            kind,
            format!(
                "{}: {}; nothing was forgotten",
                problem.what, problem.detail
            ),
        )),
    }
}

/// Deletes an artifact: first what says that it is there, so that no row is without content.
pub(crate) async fn remove_artifact(core: &Core, key: ArtifactKey) -> Result<(), Error> {
    let change = Change::DeleteArtifact {
        key: key.as_str().to_owned(),
        id: None,
        at: core.parts.now(),
    };
    let removed = content::remove_aside(&core.parts, vec![change], vec![key], MAX_WAIT).await?;
    removed.map(drop).ok_or_else(content::busy)
}

/// By how much dates may contradict one another: clocks are set, and time zones are mistaken for
/// times.
const MAX_CONTRADICTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Fails where the dates of snapshots, newest first, say that the clock has jumped: one that is
/// dated long before another that is older, or long after `now`. Their order is that of
/// publication, which no clock can move. Pure.
pub(crate) fn refuse_contradicting_dates(
    snapshots: &[&SnapshotRow],
    now: Timestamp,
) -> Result<(), Error> {
    let is_after = |one: Timestamp, other: Timestamp| {
        Duration::try_from(one.duration_since(other)).is_ok_and(|by| by > MAX_CONTRADICTION)
    };
    let mut later = (now, None);
    for row in snapshots {
        let (at, id) = (row.snapshot.captured_at, &row.snapshot.id);
        if is_after(at, later.0) {
            let than = match later.1 {
                None => "the clock says that it is".to_owned(),
                Some(newer) => format!("{newer} is, which was taken after it"),
            };
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{id} is dated more than a day later than {than}, so the clock has jumped, and ages say nothing; nothing was forgotten (a number of snapshots to keep needs no clock)"
                ),
            ));
        }
        if at < later.0 {
            later = (at, Some(id));
        }
    }
    Ok(())
}

/// The snapshots that retention removes, oldest first. Pure.
///
/// `snapshots` are newest first, and can be read: one that cannot is nothing to fall back on, so
/// that it does not count. The newest stays, and so does every one that is claimed; both count
/// among those that are kept.
fn expired(
    snapshots: &[&SnapshotRow],
    claims: &Claims,
    options: &GcOptions,
    now: Timestamp,
) -> Vec<SnapshotId> {
    let too_old = |row: &SnapshotRow| {
        options.older_than.is_some_and(|age| {
            let lived = now.duration_since(row.snapshot.captured_at);
            Duration::try_from(lived).is_ok_and(|lived| lived > age)
        })
    };
    let too_many = |place: usize| options.keep.is_some_and(|keep| place as u64 >= keep);
    snapshots
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(place, row)| too_many(*place) || too_old(row))
        .filter(|(_, row)| !claims.hold(&row.snapshot.id) || seeded_bug!("pin-ignored"))
        .map(|(_, row)| row.snapshot.id.clone())
        .rev()
        .collect()
}

/// A clean-up under way.
pub(crate) struct Upkeep<'a> {
    pub(crate) parts: &'a Parts,
    /// Newest first.
    pub(crate) snapshots: Vec<SnapshotRow>,
    pub(crate) claims: Claims,
    /// The artifacts of the runs of this workspace.
    artifacts: Vec<ArtifactRecord>,
    /// Patches, of whatever workspace, that no row names.
    unregistered: Vec<ArtifactMeta>,
    /// What was occupied before anything was done.
    began_with_bytes: u64,
    /// How many of the refs in the outcome, moved and removed, the log has been told of.
    told_refs: (usize, usize),
    /// Whether somebody named what goes.
    is_by_name: bool,
    pub(crate) outcome: GcOutcome,
}

impl<'a> Upkeep<'a> {
    pub(crate) fn read(parts: &'a Parts, locked: &LockedWorkspace) -> Result<Self, Error> {
        let workspace_id = locked.id().to_owned();
        let (snapshots, claims, runs, artifacts, prompts) =
            parts.reader.read_blocking(|store| {
                let filter = crate::state::RunFilter {
                    workspace_id: Some(workspace_id.clone()),
                    ..Default::default()
                };
                Ok::<_, crate::state::error::StateError>((
                    store.snapshots(&workspace_id)?,
                    Claims::read(store, &workspace_id)?,
                    store.runs(&filter)?,
                    store.artifacts(None)?,
                    store.prompt_keys()?,
                ))
            })?;
        let runs: HashSet<RunId> = runs.into_iter().map(|run| run.id).collect();
        let prompts: HashSet<String> = prompts.into_iter().collect();
        let artifacts = artifacts
            .into_iter()
            .filter(|a| a.run_id.as_ref().is_some_and(|id| runs.contains(id)))
            // The log needs the data of its events and the prompts of its agents, whatever becomes
            // of snapshots.
            .filter(|a| !is_data_key(&a.key) && !prompts.contains(&a.key))
            .collect();
        Ok(Self {
            parts,
            snapshots,
            claims,
            artifacts,
            unregistered: Vec::new(),
            began_with_bytes: 0,
            told_refs: (0, 0),
            is_by_name: false,
            outcome: GcOutcome::default(),
        })
    }

    /// Looks for patches that no row names. Where the store does not tell, the rest of the clean-up
    /// goes on.
    fn find_unregistered(&mut self) {
        match unregistered(self.parts) {
            Ok(found) => self.unregistered = found,
            Err(e) => self.outcome.artifacts_unusable = Some(unusable_artifacts(&e)),
        }
    }

    /// Adds up what is occupied, before anything is done.
    pub(crate) fn measure(&mut self, locked: &LockedWorkspace) -> Result<(), Error> {
        self.began_with_bytes = self.used_bytes(locked)?;
        Ok(())
    }

    /// What is to be forgotten, oldest first.
    fn due(
        &self,
        op: &Operation,
        locked: &LockedWorkspace,
        options: &GcOptions,
    ) -> Result<Vec<SnapshotId>, Error> {
        let unreadable = self.unreadable(op, locked)?;
        let readable = |row: &&SnapshotRow| !unreadable.contains(&row.snapshot.id);
        let candidates: Vec<&SnapshotRow> = self.snapshots.iter().filter(readable).collect();
        let now = self.parts.now();
        if options.older_than.is_some() {
            refuse_contradicting_dates(&candidates, now)?;
        }
        let mut due: HashSet<SnapshotId> = expired(&candidates, &self.claims, options, now)
            .into_iter()
            .collect();
        if let Some(retention) = &options.retention {
            due.extend(self.past_retention(op, locked, retention, now)?);
        }
        let oldest_first = self.snapshots.iter().rev().map(|row| &row.snapshot.id);
        Ok(oldest_first
            .filter(|id| due.contains(*id))
            .cloned()
            .collect())
    }

    /// What would be forgotten. Nothing is.
    fn foretold(
        mut self,
        op: &Operation,
        locked: &LockedWorkspace,
        options: &GcOptions,
    ) -> Result<GcOutcome, Error> {
        let due = self.due(op, locked, options)?;
        self.outcome.dry_run = true;
        self.outcome.kept = (self.snapshots.len() - due.len()) as u64;
        self.outcome.forgotten = due;
        let keys = self.unregistered.into_iter().map(|found| found.key.into());
        self.outcome.artifacts_removed = keys.collect();
        self.outcome.used_bytes = self.began_with_bytes;
        Ok(self.outcome)
    }

    /// The snapshots that cannot be read.
    pub(crate) fn unreadable(
        &self,
        op: &Operation,
        locked: &LockedWorkspace,
    ) -> Result<HashSet<SnapshotId>, Error> {
        let mut ids = HashSet::new();
        for backend in backends::backends(self.parts) {
            let unreadable = unreadable_in(op, &*backend, locked)?.into_iter();
            ids.extend(unreadable.filter_map(|found| found.id));
        }
        Ok(ids)
    }

    /// Forgets the snapshots that are not whole, and what cannot be read as one.
    fn forget_damaged(
        &mut self,
        op: &Operation,
        locked: &mut LockedWorkspace,
    ) -> Result<(), Error> {
        let mut left_alone = HashSet::new();
        for backend in backends::backends(self.parts) {
            let found = unreadable_in(op, &*backend, locked)?.into_iter();
            let found = found.filter(|found| found.leave_alone);
            left_alone.extend(found.filter_map(|found| found.id));
        }
        let mut damaged = Vec::new();
        for row in self.snapshots.iter().rev() {
            let (id, kind) = (&row.snapshot.id, row.snapshot.backend);
            let claim = self.claims.of(id);
            if claim.is_some_and(|claim| *claim != Claim::Pin) || left_alone.contains(id) {
                continue;
            }
            let backend = backends::backend_of(self.parts, kind)?;
            let proof = verify::proof(op, &*backend, locked, &row.snapshot)?;
            match proof.problems.is_empty() {
                true => {}
                false if claim.is_some() => self.outcome.damaged_pinned.push(id.clone()),
                false => damaged.push(id.clone()),
            }
        }
        self.forget(op, locked, damaged)?;
        for backend in backends::backends(self.parts) {
            let unreadable = unreadable_in(op, &*backend, locked)?.into_iter();
            let of_nobody: Vec<String> = unreadable
                .filter(|found| !found.leave_alone)
                .filter(|found| found.id.as_ref().is_none_or(|id| !self.claims.hold(id)))
                .map(|found| found.name)
                .collect();
            if !of_nobody.is_empty() {
                backend.forget(op, locked, &[], &of_nobody)?;
            }
        }
        Ok(())
    }

    /// Moves the tags that an earlier version made.
    fn move_tags(&mut self, op: &Operation, locked: &mut LockedWorkspace) -> Result<(), Error> {
        for backend in backends::backends(self.parts) {
            let tags = match safety::move_tags(op, self.parts, locked, &*backend) {
                Ok(tags) => tags,
                // A repository that cannot be read keeps nobody from a clean-up of the store.
                Err(e) => {
                    let problem = Problem::new("the user's repository", e.chain());
                    self.outcome.safety_refs.kept.push(problem);
                    continue;
                }
            };
            let refs = &mut self.outcome.safety_refs;
            refs.moved.extend(tags.moved);
            let problem = tags.problem.map(|problem| problem.message);
            refs.kept
                .extend(problem.map(|detail| Problem::new("tags of an earlier version", detail)));
        }
        if !self.outcome.safety_refs.moved.is_empty() {
            let told = self.telling(locked, &[], &[])?;
            self.parts.writer.commit_blocking(told)?;
        }
        Ok(())
    }

    /// The changes that record the removal of these snapshots, and the fate of refs that is not
    /// recorded yet.
    fn telling(
        &mut self,
        locked: &LockedWorkspace,
        snapshots: &[SnapshotId],
        artifacts: &[&str],
    ) -> Result<Vec<Change>, Error> {
        let session_id = SessionId::of_workspace(locked.id());
        let mut changes = adoption::of_new_session(self.parts, &session_id)?;
        let refs = &self.outcome.safety_refs;
        let (moved, removed) = self.told_refs;
        let said = CleanedUp {
            snapshots,
            artifacts,
            moved_tags: &refs.moved[moved..],
            safety_refs_removed: &refs.removed[removed..],
            by_name: self.is_by_name,
        };
        self.told_refs = (refs.moved.len(), refs.removed.len());
        changes.push(Change::Append(NewEvent::new(
            EventType::WORKSPACE_CLEANED_UP,
            &session_id,
            None,
            self.parts.now(),
            said,
        )));
        Ok(changes)
    }

    /// Removes the safety refs of the guards among these; returns all but the guards whose refs
    /// could not be removed, because the guard is the only record that such a ref is ours.
    fn release(
        &mut self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        mut ids: Vec<SnapshotId>,
    ) -> Result<Vec<SnapshotId>, Error> {
        let is_due = |row: &&SnapshotRow| {
            row.snapshot.label == Label::GUARD && ids.contains(&row.snapshot.id)
        };
        let guards: Vec<SnapshotId> = self
            .snapshots
            .iter()
            .filter(is_due)
            .map(|row| row.snapshot.id.clone())
            .collect();
        if guards.is_empty() {
            return Ok(ids);
        }
        let earlier = safety::earlier_tags(self.parts)?;
        for backend in backends::backends(self.parts) {
            let Some(repository) = backend.repository() else {
                continue;
            };
            let released = repository.release_safety_refs(op, locked, &guards, &earlier)?;
            let refs = &mut self.outcome.safety_refs;
            refs.removed.extend(released.removed);
            for kept in released.kept {
                ids.retain(|id| *id != kept.guard);
                self.claims
                    .add(kept.guard, Claim::SafetyRef(kept.name.clone()));
                let problem = Problem::new(kept.name, kept.problem.message);
                if !refs.kept.contains(&problem) {
                    refs.kept.push(problem);
                }
            }
        }
        Ok(ids)
    }

    /// Removes snapshots, in the log first: a row without content would be a false promise, and if
    /// this is interrupted, the next operation removes what the store still has.
    pub(crate) fn forget(
        &mut self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        ids: Vec<SnapshotId>,
    ) -> Result<(), Error> {
        let ids = self.release(op, locked, ids)?;
        let mut by_kind = BTreeMap::<&'static str, (BackendKind, Vec<SnapshotId>)>::new();
        for row in self.snapshots.iter().rev() {
            if ids.contains(&row.snapshot.id) {
                let kind = row.snapshot.backend;
                let entry = by_kind.entry(kind.as_str()).or_insert((kind, Vec::new()));
                entry.1.push(row.snapshot.id.clone());
            }
        }
        for (kind, ids) in by_kind.into_values() {
            let mut changes = vec![Change::ForgetSnapshots(ids.clone())];
            changes.extend(self.telling(locked, &ids, &[])?);
            self.parts.writer.commit_blocking(changes)?;
            backends::backend_of(self.parts, kind)?.forget(op, locked, &ids, &[])?;
            self.snapshots.retain(|row| !ids.contains(&row.snapshot.id));
        }
        self.outcome.forgotten.extend(ids);
        Ok(())
    }

    /// Removes the oldest artifact of a run none of whose snapshots is left; `false`: there is
    /// none.
    fn remove_orphan(&mut self, locked: &LockedWorkspace) -> Result<bool, Error> {
        let alive: HashSet<&RunId> = self
            .snapshots
            .iter()
            .filter_map(|row| row.run_id.as_ref())
            .collect();
        let kept = &self.parts.artifacts;
        let orphan = self.artifacts.iter().position(|artifact| {
            let run_id = artifact.run_id.as_ref();
            kept.check_kept_here(artifact).is_ok() && run_id.is_some_and(|id| !alive.contains(id))
        });
        let Some(orphan) = orphan else {
            return Ok(false);
        };
        let artifact = self.artifacts.remove(orphan);
        let mut changes = vec![Change::DeleteArtifact {
            key: artifact.key.clone(),
            id: Some(artifact.id),
            at: self.parts.now(),
        }];
        changes.extend(self.telling(locked, &[], &[&artifact.key])?);
        let keys = vec![ArtifactKey::new(artifact.key.clone())?];
        match content::remove(self.parts, changes, keys, MAX_WAIT) {
            Ok(Some(_)) => self.outcome.artifacts_removed.push(artifact.key),
            Ok(None) => return Err(content::busy()),
            // Another one has come in its place, or somebody else has removed it.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Removes the patches that no row names.
    fn remove_unregistered(&mut self, locked: &LockedWorkspace) -> Result<(), Error> {
        let found = std::mem::take(&mut self.unregistered);
        if found.is_empty() {
            return Ok(());
        }
        let found = found.into_iter().map(|artifact| artifact.key).collect();
        let removed = content::remove(self.parts, Vec::new(), found, MAX_WAIT_OF_CLEANUP)?;
        let removed: Vec<String> = removed.into_iter().flatten().map(Into::into).collect();
        if removed.is_empty() {
            return Ok(());
        }
        // Afterwards: one that somebody is putting stays, and so does one that has a row by then.
        let keys: Vec<&str> = removed.iter().map(String::as_str).collect();
        let told = self.telling(locked, &[], &keys)?;
        self.parts.writer.commit_blocking(told)?;
        self.outcome.artifacts_removed.extend(removed);
        Ok(())
    }

    /// Frees the space of everything that is no longer needed.
    pub(crate) fn collect(
        &mut self,
        op: &Operation,
        locked: &mut LockedWorkspace,
    ) -> Result<(), Error> {
        self.outcome.unreadable.clear();
        for backend in backends::backends(self.parts) {
            let unreadable = backend.list(op, locked)?.unreadable.into_iter();
            let problems = unreadable.map(|found| found.problem);
            self.outcome.unreadable.extend(problems);
            match backend.collect(op, locked) {
                // What cannot be read is named already.
                Err(error @ StoreError::VersionTooNew { .. }) => {
                    if self.outcome.unreadable.is_empty() {
                        let problem = Problem::new("the store", error.to_string());
                        self.outcome.unreadable.push(problem);
                    }
                }
                Err(StoreError::Corrupt { what, detail }) if self.outcome.unreadable.is_empty() => {
                    self.outcome.unreadable.push(Problem::new(what, detail));
                }
                Ok(_) | Err(StoreError::Corrupt { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        match self.parts.artifacts.files() {
            Ok(Some(files)) => drop(files.gc()?),
            Ok(None) => {}
            Err(e) => self.outcome.artifacts_unusable = Some(unusable_artifacts(&e)),
        }
        self.note_used_bytes(locked)
    }

    fn note_used_bytes(&mut self, locked: &LockedWorkspace) -> Result<(), Error> {
        let used = self.used_bytes(locked)?;
        self.outcome.used_bytes = used;
        self.outcome.freed_bytes = self.began_with_bytes.saturating_sub(used);
        Ok(())
    }

    fn used_bytes(&self, locked: &LockedWorkspace) -> Result<u64, Error> {
        let mut bytes: u64 = self.artifacts.iter().map(|a| a.byte_size).sum();
        bytes += self.unregistered.iter().map(|a| a.bytes).sum::<u64>();
        for backend in backends::backends(self.parts) {
            bytes += backend.store_bytes(locked)?;
        }
        Ok(bytes)
    }

    /// Forgets the oldest, one after the other, until what is left fits.
    fn shrink(
        &mut self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        quota: u64,
    ) -> Result<(), Error> {
        while self.outcome.used_bytes > quota {
            if self.remove_orphan(locked)? {
                self.note_used_bytes(locked)?;
                continue;
            }
            if let Some(problem) = self.outcome.unreadable.first() {
                return Err(Error::new(
                    ErrorKind::LimitExceeded,
                    format!(
                        "{} bytes are occupied, the quota is {quota}; nothing more can be removed, because {} is damaged ({}) and what it needs is not known; \"stillframe gc --forget-damaged\" gives it up",
                        self.outcome.used_bytes, problem.what, problem.detail
                    ),
                ));
            }
            let oldest = self
                .snapshots
                .iter()
                .skip(1)
                .rfind(|row| !self.claims.hold(&row.snapshot.id))
                .map(|row| row.snapshot.id.clone());
            let Some(oldest) = oldest else {
                return Err(Error::new(
                    ErrorKind::LimitExceeded,
                    format!(
                        "what has to be kept occupies {} bytes, the quota is {quota}; the newest snapshot was kept",
                        self.outcome.used_bytes
                    ),
                ));
            };
            self.forget(op, locked, vec![oldest])?;
            self.collect(op, locked)?;
        }
        Ok(())
    }
}

impl Upkeep<'_> {
    /// The snapshots that retention removes, oldest first.
    pub(crate) fn past_retention(
        &self,
        op: &Operation,
        locked: &LockedWorkspace,
        options: &RetentionOptions,
        now: Timestamp,
    ) -> Result<Vec<SnapshotId>, Error> {
        let mut claims = self.claims.clone();
        self.parts
            .reader
            .read_blocking(|store| claims.add_latest(store, locked.id()))?;
        let all: Vec<&SnapshotRow> = self.snapshots.iter().collect();
        if due(&all, &claims, options, now).is_empty() {
            // Without a look at the store.
            return Ok(Vec::new());
        }
        let unreadable = self.unreadable(op, locked)?;
        let readable = |row: &&SnapshotRow| !unreadable.contains(&row.snapshot.id);
        let readable: Vec<&SnapshotRow> = all.into_iter().filter(readable).collect();
        refuse_contradicting_dates(&readable, now)?;
        Ok(due(&readable, &claims, options, now))
    }
}

#[cfg(test)]
mod tests {
    use stillframe_backends::{Label, Snapshot};

    use super::*;

    const DAY: i64 = 24 * 60 * 60;

    /// Snapshots that were taken at these days, newest first.
    fn taken(days: &[i64]) -> Vec<SnapshotRow> {
        let row = |(number, day): (usize, &i64)| SnapshotRow {
            workspace_id: "w".to_owned(),
            session_id: None,
            run_id: None,
            snapshot: Snapshot::new(
                format!("snap_{number:032x}").parse().expect("an id"),
                BackendKind::Git,
                "/w".into(),
                "ref".to_owned(),
                Label::MANUAL,
                Timestamp::from_second(day * DAY).expect("a time"),
            ),
        };
        days.iter().enumerate().map(row).collect()
    }

    #[test]
    fn ages_that_contradict_the_order_of_snapshots_say_nothing() {
        let now = Timestamp::from_second(20_000 * DAY).expect("a time");
        let answer = |days: &[i64]| {
            let rows = taken(days);
            refuse_contradicting_dates(&rows.iter().collect::<Vec<_>>(), now)
        };
        for fine in [
            &[][..],
            &[20_000],
            &[20_000, 19_999, 100],
            &[19_999, 20_000, 19_999],
            &[20_001, 20_000],
            &[1, 0, -4_000],
        ] {
            answer(fine).unwrap_or_else(|e| panic!("{fine:?}: {e}"));
        }
        // Ten years ahead; the newest from before 1970, when the clock was not set; one in the
        // middle.
        for (jumped, named) in [
            (&[23_650, 19_000][..], 0),
            (&[-5, 19_999, 19_998], 1),
            (&[19_999, 16_000, 19_998], 2),
            (&[19_999, 16_000, 15_999, 16_002], 3),
        ] {
            let error = answer(jumped).expect_err("it contradicts");
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let id = format!("snap_{named:032x} is dated");
            assert!(error.to_string().contains(&id), "{jumped:?}: {error}");
        }
    }
}
