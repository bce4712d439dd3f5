//! Copying the files of a snapshot into another directory.

use stillframe_backends::{CopyOptions, CopyOutcome, RestoreError};

use crate::actors::core::Core;
use crate::error::Error;
use crate::options::CopyRequest;
use crate::state::{StateStore, snapshot_name};
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;
use crate::workspace::{backends, turn};

/// Puts what the snapshot of this name has into a directory.
pub(crate) async fn copy(
    core: &Core,
    opened: Opened,
    request: CopyRequest,
) -> Result<CopyOutcome, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let named = {
        let (text, workspace) = (request.snapshot, workspace.clone());
        let find = move |store: &dyn StateStore| {
            snapshot_name::find_snapshot(store, &text, Some(&workspace))
        };
        parts.reader.read_with(find).await?.snapshot
    };
    let options = CopyOptions::to(request.to).paths(request.paths);
    let op = cancel.operation();
    // No clean-up takes meanwhile what is read.
    turn::cancellable(
        core,
        &workspace,
        "a copy",
        lock_timeout,
        &cancel,
        move |locked| {
            options.check_place(locked)?;
            let backend = backends::backend_of(&parts, named.backend)?;
            let stored = backend.open(&op, locked, &named);
            Ok(stored
                .map_err(RestoreError::from)?
                .copy(&op, locked, &options)?)
        },
    )
    .await
}
