//! An opened workspace, with the backend to capture it.

use std::sync::Arc;

use stillframe_backends::{
    Backend, BackendKind, ErrorKind, Label, Operation, Owner, Snapshot, SnapshotOptions, Strategy,
    Workspace,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::options::WorkspaceOptions;

/// An opened workspace, with the backend to capture it.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) workspace: Workspace,
    pub(crate) options: WorkspaceOptions,
}

impl Opened {
    /// Opens the directory of `options`. Reads alone; blocks.
    pub(crate) fn open(parts: &Parts, options: WorkspaceOptions) -> Result<Self, Error> {
        let workspace = Workspace::open(&options.path, &parts.state_dir)?;
        let workspace = parts.watched.shared(workspace);
        Ok(Self { workspace, options })
    }

    /// As [`Opened::open`], also where the directory is gone: it can be listed and restored.
    pub(crate) fn open_known(parts: &Parts, options: WorkspaceOptions) -> Result<Self, Error> {
        let workspace = Workspace::open_known(&options.path, &parts.state_dir)?;
        let workspace = parts.watched.shared(workspace);
        Ok(Self { workspace, options })
    }

    /// The backend for a new capture. Reads alone; blocks.
    pub(crate) fn detect(&self, parts: &Parts) -> Result<Arc<dyn Backend>, Error> {
        match &parts.settings.backend {
            None => {
                Ok(stillframe_backends::detect(&self.workspace, self.options.strategy)?.backend)
            }
            Some(backend) => match (self.options.strategy, backend.kind()) {
                (Strategy::Git, BackendKind::Hash) | (Strategy::Hash, BackendKind::Git) => {
                    Err(Error::new(
                        ErrorKind::Unsupported,
                        format!(
                            "the backend of this engine is of the kind {}; nothing was captured",
                            backend.kind()
                        ),
                    ))
                }
                _ => Ok(Arc::clone(backend)),
            },
        }
    }

    /// How to capture this workspace for `label`, as `session_id`'s.
    pub(crate) fn snapshot_options(
        &self,
        parts: &Parts,
        label: Label,
        session_id: &SessionId,
        run_id: Option<&RunId>,
    ) -> SnapshotOptions {
        // What a run or a part of it left is captured however much it is.
        let left = [
            Label::AFTER,
            Label::AFTER_FAILURE,
            Label::GUARD,
            Label::STEP,
        ];
        let is_closing = left.contains(&label);
        let mut options = SnapshotOptions::new(label, parts.now())
            .owner(Owner {
                session_id: session_id.to_string(),
                run_id: run_id.map(ToString::to_string),
            })
            .ignore(self.options.ignore.clone())
            .retain_content(self.options.retain_content)
            .watch(self.options.watch);
        options.include = self.options.include.clone();
        options.max_untracked_file_bytes = self.options.max_untracked_file_bytes;
        if !is_closing {
            options.max_files = self.options.max_files;
            options.max_new_bytes = self.options.max_new_bytes;
        }
        options.max_store_bytes = parts.settings.max_store_bytes;
        options.borrow = parts.settings.borrow;
        options.progress = parts.settings.progress.clone();
        options
    }
}

impl Core {
    /// Opens a workspace. Reads alone.
    pub(crate) async fn open(&self, options: &WorkspaceOptions) -> Result<Opened, Error> {
        self.parts.check_available()?;
        let (parts, options) = (self.parts.clone(), options.clone());
        self.parts
            .blocking
            .run(move || Opened::open(&parts, options))
            .await?
    }

    /// As [`Core::open`], also where the directory is gone: it can be listed and restored.
    pub(crate) async fn open_known(&self, options: &WorkspaceOptions) -> Result<Opened, Error> {
        self.parts.check_available()?;
        let (parts, options) = (self.parts.clone(), options.clone());
        self.parts
            .blocking
            .run(move || Opened::open_known(&parts, options))
            .await?
    }

    /// Has a watched workspace stay watched until its session ends.
    pub(crate) fn keep_watched(&self, opened: &mut Opened, session_id: &SessionId) {
        if opened.options.watch {
            let workspace = opened.workspace.clone();
            opened.workspace = self.parts.watched.keep(workspace, session_id);
        }
    }
}

/// Lets what a restore looks at the workspace by see files as large as `snapshot` has: what was
/// captured under a larger limit is there to be compared with, displaced, and kept by a guard.
pub(crate) fn see_as_much_as(
    options: &mut SnapshotOptions,
    backend: &dyn Backend,
    workspace: &Workspace,
    snapshot: &Snapshot,
) -> Result<(), Error> {
    let stored = backend.open(&Operation::unbounded(), workspace, snapshot)?;
    let rules = stored.rules();
    // Zero is no limit.
    options.max_untracked_file_bytes = match rules.max_untracked_file_bytes {
        Some(0) => 0,
        Some(bytes) if options.max_untracked_file_bytes > 0 => {
            options.max_untracked_file_bytes.max(bytes)
        }
        _ => options.max_untracked_file_bytes,
    };
    Ok(())
}
