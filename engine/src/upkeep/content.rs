//! Removing the content of artifacts.

use std::time::Duration;

use stillframe_artifact_store::ArtifactKey;

use crate::actors::Parts;
use crate::error::Error;
use crate::state::change::Change;
use crate::state::registering::Registering;

/// Writes `changes`, and then removes the content of those of `keys` that no row names; says which.
/// `None`: somebody puts an artifact, and nothing was done. Blocks.
///
/// Nobody puts one meanwhile, in this process or another: what comes under one of these keys is
/// there before, with its row, or comes afterwards.
pub(crate) fn remove(
    parts: &Parts,
    changes: Vec<Change>,
    keys: Vec<ArtifactKey>,
    patience: Duration,
) -> Result<Option<Vec<ArtifactKey>>, Error> {
    // First: of one that cannot be opened nothing is forgotten.
    let artifacts = parts.artifacts.store()?;
    let Some(_nobody_puts) = Registering::keep_out(parts.state_dir.path(), patience)? else {
        return Ok(None);
    };
    if !changes.is_empty() {
        parts.writer.commit_blocking(changes)?;
    }
    let mut removed = Vec::new();
    for key in keys {
        let named = |store: &dyn crate::state::StateStore| store.artifact(key.as_str());
        if parts.reader.read_blocking(named)?.is_none() {
            artifacts.delete(&key)?;
            removed.push(key);
        }
    }
    Ok(Some(removed))
}

/// The error of who has waited long enough for those who put artifacts.
pub(crate) fn busy() -> Error {
    Error::new(
        stillframe_backends::ErrorKind::Busy,
        "artifacts are being stored; nothing was removed, try again",
    )
}
