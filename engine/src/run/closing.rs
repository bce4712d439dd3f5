//! What the engine saw after the work of a run.

use std::fs::File;

use serde_json::Value;
use stillframe_backends::{BackendKind, Diff, DiffOptions, Operation, Snapshot};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::data::DiffComputed;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::{RunId, SessionId};
use crate::records::restore_document::RestoreDocument;
use crate::records::run_document::{RunSummary, document};
use crate::state::change::{Change, NewEvent};
use crate::workspace::compare;
use crate::workspace::opened::Opened;

/// What the engine saw after the work of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    pub(crate) backend: Option<BackendKind>,
    pub(crate) before: Option<Snapshot>,
    pub(crate) after: Option<Snapshot>,
    pub(crate) diff: Option<Diff>,
    pub(crate) error: Option<Failure>,
}

/// What a run's row says of the workspace.
pub(crate) fn summary(closing: &Closing, rollback: Option<&RestoreDocument>) -> Value {
    if closing.backend.is_none() && closing.error.is_none() {
        return Value::Null;
    }
    let summary = RunSummary {
        backend: closing.backend,
        rollback: rollback.cloned(),
        error: closing.error.clone(),
        ..RunSummary::between(closing.before.as_ref(), closing.after.as_ref())
    };
    document(&match &closing.diff {
        Some(diff) => summary.with_diff(diff),
        None => summary,
    })
}

/// Compares what was before a run with what was after it, and logs the event. Blocks.
pub(crate) fn diff(
    parts: &Parts,
    opened: &Opened,
    [before, after]: [&Snapshot; 2],
    (session_id, run_id): (&SessionId, &RunId),
    fence: Option<Change>,
) -> Result<(Diff, Option<File>), Error> {
    let mut options = DiffOptions::default().max_patch_bytes(opened.options.max_patch_bytes);
    options.capture_patch = opened.options.capture_patch;
    let (diff, patch) = compare::compare(
        &Operation::unbounded(),
        parts,
        &opened.workspace,
        before,
        after,
        &options,
    )?;
    let said = DiffComputed {
        files_changed: diff.files_changed,
        insertions: diff.insertions,
        deletions: diff.deletions,
        has_patch: diff.has_patch,
    };
    let event_type = EventType::WORKSPACE_DIFF_COMPUTED;
    let event = NewEvent::new(event_type, session_id, Some(run_id), parts.now(), said);
    let changes = fence.into_iter().chain([Change::Append(event)]);
    parts.writer.commit_blocking(changes.collect())?;
    Ok((diff, patch))
}
