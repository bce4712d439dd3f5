//! What the engine saw after the work of a run.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};
use stillframe_backends::{BackendKind, Diff, DiffOptions, ErrorKind, Operation, Snapshot};

use crate::actors::artifact_store::{Putting, Reader};
use crate::actors::core::Core;
use crate::blocking::Blocking;
use crate::error::Error;
use crate::events::data::DiffComputed;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::{RunId, SessionId};
use crate::records::repositories::SavedRepositories;
use crate::records::restore_document::RestoreDocument;
use crate::records::resumed_work::ResumedWork;
use crate::records::run_document::{WorkspaceSummary, document};
use crate::records::saved_work::SavedWork;
use crate::run::patch::{self, Incoming};
use crate::state::change::{Change, NewEvent};
use crate::state::registering::Registering;
use crate::step::artifact::{self, own_key};
use crate::workspace::compare;
use crate::workspace::opened::Opened;

/// How long the captures after the work of a run wait for their turn. Much longer than any
/// operation by hand: without them nobody knows what the run did.
pub(crate) const CLOSING_LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// What the engine saw after the work of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    pub(crate) backend: Option<BackendKind>,
    pub(crate) before: Option<Snapshot>,
    pub(crate) after: Option<Snapshot>,
    pub(crate) diff: Option<Diff>,
    pub(crate) error: Option<Failure>,
    /// How the workspace came to the branch of its task.
    pub(crate) resumed: Option<Box<ResumedWork>>,
    /// What became of the work on that branch.
    pub(crate) saved: Option<SavedWork>,
    /// What became of the work in all repositories of the run, if it works in several.
    pub(crate) repositories: Option<SavedRepositories>,
}

/// What a run's row says of the workspace.
pub(crate) fn summary(closing: &Closing, rollback: Option<&RestoreDocument>) -> Value {
    if closing.backend.is_none() && closing.error.is_none() {
        return Value::Null;
    }
    let summary = WorkspaceSummary {
        backend: closing.backend,
        rollback: rollback.cloned(),
        error: closing.error.clone(),
        resumed: closing.resumed.as_deref().cloned(),
        saved: closing.saved.clone(),
        repositories: closing.repositories.clone(),
        ..WorkspaceSummary::between(closing.before.as_ref(), closing.after.as_ref())
    };
    document(&match &closing.diff {
        Some(diff) => summary.with_diff(diff),
        None => summary,
    })
}

/// Compares what was before a run with what was after it, keeps the patch as an artifact where it
/// is too large to be embedded or the host wants it so, and logs the event, which names the
/// artifact.
///
/// Beside the comparison: why the patch could not be kept, if it could not.
pub(crate) async fn diff(
    core: &Core,
    opened: Opened,
    [before, after]: [Snapshot; 2],
    (session_id, run_id): (&SessionId, &RunId),
    fence: Option<Change>,
) -> Result<(Diff, Option<Error>), Error> {
    let parts = &core.parts;
    let (shared, session, run) = (core.clone(), session_id.clone(), run_id.clone());
    let compared = move || {
        let mut options = DiffOptions::default().max_patch_bytes(opened.options.max_patch_bytes);
        options.capture_patch = opened.options.capture_patch;
        let compare = |out: &mut dyn Write| {
            let op = Operation::unbounded();
            compare::compare(
                &op,
                &shared.parts,
                &opened.workspace,
                &before,
                &after,
                &options,
                out,
            )
        };
        let is_offloaded = opened.options.offload_patches;
        let is_wanted = |diff: &Diff| diff.has_patch && (diff.patch_truncated || is_offloaded);
        let stem = format!("{PATCH}{}_{}_", before.reference, after.reference);
        let keep = |patch| keep(&shared, &stem, (&session, &run), patch);
        patch::offloaded(options.max_patch_bytes, compare, is_wanted, keep)
    };
    let (mut diff, keeping) = parts.blocking.run_long(compared).await??;
    let kept = match keeping {
        Some(Ok(keeping)) => keeping.kept().await.map(Some),
        Some(Err(e)) => Err(e),
        None => Ok(None),
    };
    let (mut record, mut held, mut problem) = (None, None, None);
    match kept {
        Ok(Some((key, Some((meta, _))))) if diff.patch_bytes.is_some_and(|n| n != meta.bytes) => {
            let detail = format!(
                "the artifact store kept {} bytes of patch {key:?}",
                meta.bytes
            );
            problem = Some(Error::new(ErrorKind::Storage, detail));
        }
        Ok(Some((key, put))) => {
            diff.patch = None;
            diff.patch_ref = Some(key.into());
            if let Some((meta, registering)) = put {
                let whose = (session_id, Some(run_id));
                record = Some(artifact::record(parts, whose, meta, "text/x-patch"));
                held = Some(registering);
            }
        }
        Ok(None) => {}
        Err(e) => problem = Some(e),
    }
    let said = DiffComputed {
        files_changed: diff.files_changed,
        insertions: diff.insertions,
        deletions: diff.deletions,
        has_patch: diff.has_patch,
        patch_ref: diff.patch_ref.as_deref(),
    };
    let event_type = EventType::WORKSPACE_DIFF_COMPUTED;
    let event = NewEvent::new(event_type, session_id, Some(run_id), parts.now(), said);
    let record = record.map(|record| Change::RegisterArtifact(Box::new(record)));
    let changes = fence.into_iter().chain(record);
    let changes = changes.chain([Change::Append(event)]).collect();
    parts.writer.commit_and_release(changes, held).await?;
    Ok((diff, problem))
}

/// A patch that becomes an artifact.
pub(super) struct Keeping {
    key: ArtifactKey,
    /// On its way into the store, with what keeps clean-ups away until it is registered; `None`: it
    /// is there, and registered.
    put: Option<(Putting, Registering)>,
}

impl Keeping {
    /// Waits until it is there; of one that is new the answer has what is to be registered.
    pub(super) async fn kept(
        self,
    ) -> Result<(ArtifactKey, Option<(ArtifactMeta, Registering)>), Error> {
        let put = match self.put {
            Some((putting, registering)) => Some((putting.done().await?, registering)),
            None => None,
        };
        Ok((self.key, put))
    }
}

/// Has the store read the whole patch, unless it has it. Blocks, but not for what is to be read.
pub(super) fn keep(
    core: &Core,
    stem: &str,
    (session_id, run_id): (&SessionId, &RunId),
    patch: Incoming,
) -> Result<Keeping, Error> {
    let known = core
        .parts
        .reader
        .read_blocking(|store| store.artifacts(Some(session_id)))?;
    // The engine that compared these two before died before it had written how the run ended.
    let known = known
        .into_iter()
        .find(|of| of.run_id.as_ref() == Some(run_id) && of.key.starts_with(stem));
    if let Some(known) = known {
        let key = ArtifactKey::new(known.key)?;
        return Ok(Keeping { key, put: None });
    }
    let key = own_key(stem)?;
    let registering = Registering::begin(core.parts.state_dir.path())?;
    let putting = core.begin_put(key.clone(), Box::new(patch), Reader::Own);
    let putting = Blocking::wait_for(putting)?;
    let put = Some((putting, registering));
    Ok(Keeping { key, put })
}

/// How the key of a patch begins.
pub(super) const PATCH: &str = "patch_";
