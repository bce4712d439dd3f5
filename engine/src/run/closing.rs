//! What the engine saw after the work of a run.

use std::fs::File;

use serde_json::{Value, json};
use stillframe_backends::{BackendKind, Diff, DiffOptions, Snapshot};

use crate::actors::Parts;
use crate::error::Error;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::id::{RunId, SessionId};
use crate::records::restore_document::RestoreDocument;
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
    let diff = closing.diff.as_ref();
    let mut summary = json!({
        "backend": closing.backend,
        "before_ref": closing.before.as_ref().map(|s| &s.reference),
        "after_ref": closing.after.as_ref().map(|s| &s.reference),
        "before_snapshot": closing.before.as_ref().map(|s| &s.id),
        "after_snapshot": closing.after.as_ref().map(|s| &s.id),
        "diff": diff.map(|diff| json!({
            "files_changed": diff.files_changed,
            "insertions": diff.insertions,
            "deletions": diff.deletions,
            "changed_paths": diff.changed_paths,
        })),
        "rollback": rollback,
        "error": closing.error,
    });
    if let Some(diff) = diff {
        if !diff.refs.is_empty() {
            summary["diff"]["refs"] = json!(diff.refs);
        }
        if let Some(patch) = &diff.patch {
            summary["patch"] = json!(patch);
        }
        if let Some(key) = &diff.patch_ref {
            summary["patch_ref"] = json!(key);
        }
        if let Some(bytes) = diff.patch_bytes {
            summary["patch_bytes"] = json!(bytes);
        }
    }
    summary
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
    let (diff, patch) = compare::compare(parts, &opened.workspace, before, after, &options)?;
    let data = json!({
        "files_changed": diff.files_changed,
        "insertions": diff.insertions,
        "deletions": diff.deletions,
        "has_patch": diff.has_patch,
    });
    let event_type = EventType::WORKSPACE_DIFF_COMPUTED;
    let event = NewEvent::new(event_type, session_id, Some(run_id), parts.now(), data);
    let changes = fence.into_iter().chain([Change::Append(event)]);
    parts.writer.commit_blocking(changes.collect())?;
    Ok((diff, patch))
}
