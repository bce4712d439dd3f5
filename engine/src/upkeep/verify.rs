//! Checking that everything that is stored is complete and undamaged.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::{
    Backend, BackendKind, ErrorKind, Operation, Problem, RelPath, Snapshot, SnapshotId, StateDir,
    StoreError, Verification, Workspace,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::failure::Failure;
use crate::options::WorkspaceOptions;
use crate::workspace::backends;
use crate::workspace::cancellation::Cancellation;

/// Checking that everything that is stored is complete and undamaged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct VerifyOutcome {
    /// Every snapshot of the workspace, newest first.
    pub snapshots: Vec<SnapshotVerdict>,
    /// Snapshots that the log lacked and that got their rows again, oldest first: the log had lost
    /// them, or the process that took them was killed before it wrote the row. They are reported
    /// once; left out if there are none. Snapshots that the log has and the store lacks are in
    /// `snapshots`, with that problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adopted: Vec<SnapshotId>,
    /// The artifacts that are missing or damaged, by key.
    pub artifacts: Vec<ArtifactVerdict>,
    /// Other damage in the store: snapshots whose id cannot be read, and damage that affects no
    /// snapshot.
    pub store: Vec<Problem>,
    /// What is wrong with the log of runs and snapshots, if anything is. If it could not be read,
    /// only the stores were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Failure>,
}

impl VerifyOutcome {
    /// Whether there is nothing wrong.
    pub fn is_sound(&self) -> bool {
        self.artifacts.is_empty()
            && self.store.is_empty()
            && self.log.is_none()
            && self.snapshots.iter().all(|s| s.problems.is_empty())
    }
}

/// Whether a snapshot can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SnapshotVerdict {
    /// The snapshot.
    pub id: SnapshotId,
    /// Who captured it.
    pub backend: BackendKind,
    /// What is missing or wrong; empty: nothing.
    pub problems: Vec<Problem>,
    /// It was taken without content: it can be compared, and not restored. That is no damage.
    pub without_content: bool,
    /// Paths whose content was purged, sorted. Only these cannot be restored, which is not damage
    /// either. Left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub purged: Vec<RelPath>,
}

impl SnapshotVerdict {
    fn unproven(snapshot: &Snapshot, problem: Problem) -> Self {
        Self {
            id: snapshot.id.clone(),
            backend: snapshot.backend,
            problems: vec![problem],
            without_content: false,
            purged: Vec::new(),
        }
    }

    /// Whether it can be restored exactly, except for purged content.
    pub fn is_restorable(&self) -> bool {
        self.problems.is_empty() && !self.without_content
    }
}

/// What is wrong with an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ArtifactVerdict {
    /// The artifact.
    pub key: String,
    /// What is wrong with it.
    pub error: Failure,
}

/// What was found in the stores of a workspace.
pub(crate) struct StoreVerdicts {
    pub(crate) snapshots: Vec<SnapshotVerdict>,
    pub(crate) store: Vec<Problem>,
}

impl StoreVerdicts {
    /// Whether there is nothing wrong.
    pub(crate) fn is_sound(&self) -> bool {
        self.store.is_empty() && self.snapshots.iter().all(|s| s.problems.is_empty())
    }
}

/// Looks at every snapshot of a workspace: those that the log has, newest first, then what the
/// stores have beside them. Blocks.
pub(crate) fn snapshots(
    op: &Operation,
    backends: &[Arc<dyn Backend>],
    workspace: &Workspace,
    logged: Vec<Snapshot>,
) -> Result<StoreVerdicts, Error> {
    let mut known: HashSet<SnapshotId> = logged.iter().map(|s| s.id.clone()).collect();
    let mut store = Vec::new();
    let mut snapshots = prove(op, backends, workspace, &logged, &mut store)?;
    let mut of_nobody = Vec::new();
    for backend in backends {
        let listing = backend.list(op, workspace)?;
        let mut beside = listing.snapshots;
        beside.retain(|snapshot| known.insert(snapshot.id.clone()));
        let beside = prove(op, backends, workspace, &beside, &mut store)?;
        snapshots.extend(beside.into_iter().rev());
        for found in listing.unreadable {
            match found.id {
                // It is named as a snapshot.
                Some(id) if known.contains(&id) => {}
                Some(id) => {
                    snapshots.push(SnapshotVerdict {
                        id: id.clone(),
                        backend: backend.kind(),
                        problems: vec![found.problem],
                        without_content: false,
                        purged: Vec::new(),
                    });
                    known.insert(id);
                }
                None => of_nobody.push(found.problem),
            }
        }
    }
    store.extend(of_nobody);
    store.extend(workspace.damaged_journal()?);
    Ok(StoreVerdicts { snapshots, store })
}

/// Proves snapshots, and answers in their order. What is wrong beside them in a store goes to
/// `store`, once.
fn prove(
    op: &Operation,
    backends: &[Arc<dyn Backend>],
    workspace: &Workspace,
    snapshots: &[Snapshot],
    store: &mut Vec<Problem>,
) -> Result<Vec<SnapshotVerdict>, Error> {
    let mut verdicts: Vec<Option<SnapshotVerdict>> = vec![None; snapshots.len()];
    for backend in backends {
        let own = snapshots.iter().enumerate();
        let own = own.filter(|(_, snapshot)| snapshot.backend == backend.kind());
        let (places, own): (Vec<usize>, Vec<&Snapshot>) = own.unzip();
        let mut found = backend.verify(op, workspace, &own).into_iter();
        for (place, snapshot) in places.into_iter().zip(own) {
            let found = match proof_of(snapshot, found.next()) {
                // It hides no other.
                Err(error @ (StoreError::Io(_) | StoreError::Unsupported(_))) => {
                    let error = Error::from(error);
                    let problem = Problem::new(snapshot.id.to_string(), error.chain());
                    Verification::new(vec![problem.of_kind(error.kind())])
                }
                found => found?,
            };
            for problem in found.beside {
                if !store.contains(&problem) {
                    store.push(problem);
                }
            }
            verdicts[place] = Some(SnapshotVerdict {
                id: snapshot.id.clone(),
                backend: snapshot.backend,
                problems: found.problems,
                without_content: found.without_content,
                purged: found.purged,
            });
        }
    }
    let verdicts = verdicts.into_iter().zip(snapshots);
    Ok(verdicts
        .map(|(verdict, snapshot)| verdict.unwrap_or_else(|| nobody_knows(snapshot)))
        .collect())
}

fn nobody_knows(snapshot: &Snapshot) -> SnapshotVerdict {
    let kind = snapshot.backend;
    let detail = format!("this engine has no backend of the kind {kind}");
    SnapshotVerdict::unproven(snapshot, Problem::new(snapshot.id.to_string(), detail))
}

/// Looks at every snapshot of a workspace that the log has, and at what the stores have beside
/// them. Blocks.
pub(crate) fn logged(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
) -> Result<StoreVerdicts, Error> {
    let rows = parts
        .reader
        .read_blocking(|store| store.snapshots(workspace.id()))?;
    let logged = rows.into_iter().map(|row| row.snapshot).collect();
    snapshots(op, &backends::backends(parts), workspace, logged)
}

/// What the store is found to have of a snapshot; that it met damage is what a proof is to find
/// out.
pub(crate) fn proof(
    op: &Operation,
    backend: &dyn Backend,
    workspace: &Workspace,
    snapshot: &Snapshot,
) -> Result<Verification, Error> {
    let found = backend.verify(op, workspace, &[snapshot]);
    Ok(proof_of(snapshot, found.into_iter().next())?)
}

fn proof_of(
    snapshot: &Snapshot,
    found: Option<Result<Verification, StoreError>>,
) -> Result<Verification, StoreError> {
    let found = found.unwrap_or_else(|| {
        let refused = format!("the backend did not answer what it has of {}", snapshot.id);
        Err(StoreError::Unsupported(refused))
    });
    let problem = match found {
        // A row is believed only with what the store has.
        Err(StoreError::UnknownSnapshot { id }) => {
            Problem::new(id.to_string(), "the store does not have it")
        }
        Err(StoreError::Corrupt { what, detail }) => Problem::new(what, detail),
        Err(error @ StoreError::VersionTooNew { .. }) => {
            Problem::new(snapshot.id.to_string(), error.to_string())
        }
        found => return found,
    };
    Ok(Verification::new(vec![problem]))
}

/// Verifies the snapshots of a workspace from the stores alone, without an engine. An engine cannot
/// start without the log, so this is for a damaged log. Blocks; writes nothing. Artifacts are not
/// checked, because only the log knows them.
pub fn verify_without_log(
    state_dir: &Path,
    workspace: &WorkspaceOptions,
) -> Result<VerifyOutcome, Error> {
    let state_dir = StateDir::open(state_dir)?;
    let workspace = Workspace::open_known(&workspace.path, &state_dir)?;
    let backends = [BackendKind::Git, BackendKind::Hash].map(stillframe_backends::backend_of);
    let found = snapshots(&Operation::unbounded(), &backends, &workspace, Vec::new())?;
    Ok(VerifyOutcome {
        snapshots: found.snapshots,
        store: found.store,
        ..VerifyOutcome::default()
    })
}

/// Compares everything in the log with its sums: what is damaged there.
pub(crate) async fn log(core: &Core, cancel: &Cancellation) -> Result<Option<Failure>, Error> {
    let reading = core.parts.reader.read(|store| store.problems());
    let problems = cancel.wait_for(reading, "reading the log").await?;
    Ok((!problems.is_empty())
        .then(|| Failure::new(ErrorKind::Corrupt.as_str(), problems.join("; "))))
}

/// What keeps the store of artifacts from being opened, if there is one and anything does.
pub(crate) async fn artifact_store(core: &Core) -> Result<Option<Problem>, Error> {
    let artifacts = core.parts.artifacts.clone();
    let look = move || match artifacts.is_there() {
        false => None,
        true => artifacts.store().err(),
    };
    let error = core.parts.blocking.run_long(look).await?;
    Ok(error.map(|e| unusable_artifacts(&e)))
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
            Ok(key) => match core.parts.artifacts.check_kept_here(&row) {
                Ok(()) => core.get(key).await,
                Err(e) => Err(e),
            },
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

/// What is wrong with a store of artifacts that cannot be opened, because of `error`.
pub(crate) fn unusable_artifacts(error: &Error) -> Problem {
    Problem::new("artifacts", error.chain()).of_kind(error.kind())
}
