//! Forgetting what need not be kept: retention and quota.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::{BackendKind, ErrorKind, LockedWorkspace, SnapshotId};

use crate::actors::Parts;
use crate::engine::Core;
use crate::error::Error;
use crate::id::RunId;
use crate::options::GcOptions;
use crate::record::ArtifactRecord;
use crate::recovery;
use crate::state::{Change, SnapshotRow};
use crate::workspaces::{self, Opened};

/// What a clean-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GcOutcome {
    /// The snapshots that were forgotten, oldest first.
    pub forgotten: Vec<SnapshotId>,
    /// The keys of the artifacts that were removed.
    pub artifacts_removed: Vec<String>,
    /// The bytes that this freed.
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
    let parts = core.parts.clone();
    let patience = parts.options.lock_patience;
    let workspace = opened.workspace.clone();
    workspaces::work(core, &workspace, "a clean-up", patience, move |locked| {
        recovery::adopt(&parts, locked, recovery::Untold::Tell)?;
        let mut upkeep = Upkeep::read(&parts, locked)?;
        let due = expired(&upkeep.snapshots, &upkeep.pinned, &options, parts.now());
        upkeep.forget(locked, due)?;
        upkeep.collect(locked)?;
        if let Some(quota) = options.max_bytes {
            upkeep.shrink(locked, quota)?;
        }
        upkeep.outcome.kept = upkeep.snapshots.len() as u64;
        Ok(upkeep.outcome)
    })
    .await
}

/// Deletes an artifact: first what says that it is there, so that no row is without content.
pub(crate) async fn remove_artifact(core: &Core, key: ArtifactKey) -> Result<(), Error> {
    let change = Change::DeleteArtifact {
        key: key.as_str().to_owned(),
        at: core.parts.now(),
    };
    core.parts.writer.commit(vec![change]).await?;
    core.delete(key).await
}

/// The snapshots that retention lets go of, oldest first. Pure.
///
/// `snapshots` are newest first. The newest stays, and so does every one that is pinned; both
/// count among those that are kept.
fn expired(
    snapshots: &[SnapshotRow],
    pinned: &HashSet<SnapshotId>,
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
        .filter(|(_, row)| !pinned.contains(&row.snapshot.id))
        .map(|(_, row)| row.snapshot.id.clone())
        .rev()
        .collect()
}

/// A clean-up under way.
struct Upkeep<'a> {
    parts: &'a Parts,
    /// Newest first.
    snapshots: Vec<SnapshotRow>,
    /// What runs under way name, in any process.
    pinned: HashSet<SnapshotId>,
    /// The artifacts of the runs of this workspace.
    artifacts: Vec<ArtifactRecord>,
    outcome: GcOutcome,
}

impl<'a> Upkeep<'a> {
    fn read(parts: &'a Parts, locked: &LockedWorkspace) -> Result<Self, Error> {
        let workspace_id = locked.id().to_owned();
        let (snapshots, under_way, runs, artifacts) = parts.reader.read_blocking(|store| {
            let filter = crate::state::RunFilter {
                workspace_id: Some(workspace_id.clone()),
                ..Default::default()
            };
            Ok::<_, crate::state::StateError>((
                store.snapshots(&workspace_id)?,
                store.runs_under_way()?,
                store.runs(&filter)?,
                store.artifacts(None)?,
            ))
        })?;
        let pinned = under_way
            .into_iter()
            .filter_map(|run| run.workspace)
            .flat_map(|workspace| [workspace.before, workspace.after])
            .collect();
        let runs: HashSet<RunId> = runs.into_iter().map(|run| run.id).collect();
        let artifacts = artifacts
            .into_iter()
            .filter(|a| a.run_id.as_ref().is_some_and(|id| runs.contains(id)))
            .collect();
        Ok(Self {
            parts,
            snapshots,
            pinned,
            artifacts,
            outcome: GcOutcome::default(),
        })
    }

    /// Forgets snapshots, in the store first: a row without content would be a promise.
    fn forget(&mut self, locked: &mut LockedWorkspace, ids: Vec<SnapshotId>) -> Result<(), Error> {
        let mut by_kind = BTreeMap::<&'static str, (BackendKind, Vec<SnapshotId>)>::new();
        for row in &self.snapshots {
            if ids.contains(&row.snapshot.id) {
                let kind = row.snapshot.backend;
                let entry = by_kind.entry(kind.as_str()).or_insert((kind, Vec::new()));
                entry.1.push(row.snapshot.id.clone());
            }
        }
        for (kind, ids) in by_kind.into_values() {
            workspaces::backend_of(self.parts, kind)?.forget(locked, &ids)?;
            let change = Change::ForgetSnapshots(ids.clone());
            self.parts.writer.commit_blocking(vec![change])?;
            self.snapshots.retain(|row| !ids.contains(&row.snapshot.id));
        }
        self.outcome.forgotten.extend(ids);
        Ok(())
    }

    /// Removes the oldest artifact of a run none of whose snapshots is left; `false`: there is
    /// none.
    fn remove_orphan(&mut self) -> Result<bool, Error> {
        let alive: HashSet<&RunId> = self
            .snapshots
            .iter()
            .filter_map(|row| row.run_id.as_ref())
            .collect();
        let orphan = self.artifacts.iter().position(|artifact| {
            artifact
                .run_id
                .as_ref()
                .is_some_and(|id| !alive.contains(id))
        });
        let Some(orphan) = orphan else {
            return Ok(false);
        };
        let artifact = self.artifacts.remove(orphan);
        let change = Change::DeleteArtifact {
            key: artifact.key.clone(),
            at: self.parts.now(),
        };
        self.parts.writer.commit_blocking(vec![change])?;
        let key = ArtifactKey::new(artifact.key.clone())?;
        self.parts.artifacts.store.delete(&key)?;
        self.outcome.freed_bytes += artifact.byte_size;
        self.outcome.artifacts_removed.push(artifact.key);
        Ok(true)
    }

    /// Frees the space of what nobody needs any more.
    fn collect(&mut self, locked: &mut LockedWorkspace) -> Result<(), Error> {
        for backend in workspaces::backends(self.parts) {
            self.outcome.freed_bytes += backend.collect(locked)?;
        }
        if let Some(files) = &self.parts.artifacts.files {
            files.gc()?;
        }
        self.outcome.used_bytes = self.used_bytes(locked)?;
        Ok(())
    }

    fn used_bytes(&self, locked: &LockedWorkspace) -> Result<u64, Error> {
        let mut bytes: u64 = self.artifacts.iter().map(|a| a.byte_size).sum();
        for backend in workspaces::backends(self.parts) {
            bytes += backend.store_bytes(locked)?;
        }
        Ok(bytes)
    }

    /// Forgets the oldest, one after the other, until what is left fits.
    fn shrink(&mut self, locked: &mut LockedWorkspace, quota: u64) -> Result<(), Error> {
        while self.outcome.used_bytes > quota {
            if self.remove_orphan()? {
                self.outcome.used_bytes = self.used_bytes(locked)?;
                continue;
            }
            let oldest = self
                .snapshots
                .iter()
                .skip(1)
                .rfind(|row| !self.pinned.contains(&row.snapshot.id))
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
            self.forget(locked, vec![oldest])?;
            self.collect(locked)?;
        }
        Ok(())
    }
}
