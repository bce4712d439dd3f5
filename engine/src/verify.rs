//! Whether everything that is kept is whole.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::{BackendKind, Problem, SnapshotId, Verification, Workspace};

use crate::actors::Parts;
use crate::engine::Core;
use crate::error::Error;
use crate::failure::Failure;
use crate::workspaces;

/// Whether everything that is kept is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyOutcome {
    /// Every snapshot of the workspace, newest first.
    pub snapshots: Vec<SnapshotVerdict>,
    /// The artifacts that are missing or damaged, by key.
    pub artifacts: Vec<ArtifactVerdict>,
}

impl VerifyOutcome {
    /// Whether there is nothing wrong.
    pub fn is_sound(&self) -> bool {
        self.artifacts.is_empty() && self.snapshots.iter().all(|s| s.problems.is_empty())
    }
}

/// Whether a snapshot can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SnapshotVerdict {
    /// The snapshot.
    pub id: SnapshotId,
    /// Who captured it.
    pub backend: BackendKind,
    /// What is missing or wrong; empty: it is whole.
    pub problems: Vec<Problem>,
    /// It was taken without content: it can be compared, and not restored. That is no damage.
    pub without_content: bool,
}

impl SnapshotVerdict {
    /// Whether it can be restored as it was taken.
    pub fn is_restorable(&self) -> bool {
        self.problems.is_empty() && !self.without_content
    }
}

/// What is wrong with an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArtifactVerdict {
    /// The artifact.
    pub key: String,
    /// What is wrong with it.
    pub error: Failure,
}

/// Looks at every snapshot of a workspace. Blocks.
pub(crate) fn snapshots(
    parts: &Parts,
    workspace: &Workspace,
) -> Result<Vec<SnapshotVerdict>, Error> {
    let rows = parts
        .reader
        .read_blocking(|store| store.snapshots(workspace.id()))?;
    let mut listed = BTreeMap::<&'static str, HashSet<SnapshotId>>::new();
    let mut verdicts = Vec::new();
    for row in rows {
        let snapshot = row.snapshot;
        let verdict = |found: Verification| SnapshotVerdict {
            id: snapshot.id.clone(),
            backend: snapshot.backend,
            problems: found.problems,
            without_content: found.without_content,
        };
        let unproven = |problem| verdict(Verification::new(vec![problem]));
        let backend = match workspaces::backend_of(parts, snapshot.backend) {
            Ok(backend) => backend,
            Err(e) => {
                let what = snapshot.id.to_string();
                verdicts.push(unproven(Problem::new(what, e.chain())));
                continue;
            }
        };
        let kind = snapshot.backend.as_str();
        if !listed.contains_key(kind) {
            let ids = backend.list(workspace)?.into_iter().map(|s| s.id).collect();
            listed.insert(kind, ids);
        }
        // A row is believed only with what the store has.
        if !listed[kind].contains(&snapshot.id) {
            let problem = Problem::new(snapshot.id.to_string(), "the store does not have it");
            verdicts.push(unproven(problem));
            continue;
        }
        verdicts.push(verdict(backend.verify(workspace, &snapshot)?));
    }
    Ok(verdicts)
}

/// Looks at every artifact.
pub(crate) async fn artifacts(core: &Core) -> Result<Vec<ArtifactVerdict>, Error> {
    let rows = core
        .parts
        .reader
        .read(|store| store.artifacts(None))
        .await?;
    let mut verdicts = Vec::new();
    for row in rows {
        // Opening reads all of it and compares.
        let opened = match ArtifactKey::new(row.key.clone()) {
            Ok(key) => core.get(key).await,
            Err(e) => Err(e.into()),
        };
        if let Err(e) = opened {
            verdicts.push(ArtifactVerdict {
                key: row.key,
                error: Failure::from(&e),
            });
        }
    }
    Ok(verdicts)
}
