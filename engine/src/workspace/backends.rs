//! Choosing the backend that can read the content of a store.

use std::sync::Arc;

use stillframe_backends::{Backend, BackendKind, ErrorKind};

use crate::actors::Parts;
use crate::error::Error;

/// The backend that understands snapshots of `kind`, wherever the workspace lies by now.
pub(crate) fn backend_of(parts: &Parts, kind: BackendKind) -> Result<Arc<dyn Backend>, Error> {
    match &parts.settings.backend {
        Some(backend) if backend.kind() == kind => Ok(Arc::clone(backend)),
        Some(_) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("this engine has no backend of the kind {kind}"),
        )),
        None => Ok(stillframe_backends::backend_of(kind)),
    }
}

/// The backends that may have something in the store of a workspace.
pub(crate) fn backends(parts: &Parts) -> Vec<Arc<dyn Backend>> {
    [BackendKind::Git, BackendKind::Hash]
        .into_iter()
        .filter_map(|kind| backend_of(parts, kind).ok())
        .collect()
}
