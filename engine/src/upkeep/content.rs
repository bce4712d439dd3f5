//! Removing the content of artifacts.

use std::sync::Arc;
use std::time::Duration;

use stillframe_artifact_store::ArtifactKey;
use tokio::sync::OwnedMutexGuard;

use crate::actors::Parts;
use crate::error::Error;
use crate::state::change::Change;
use crate::state::registering::{NoneRegistering, Registering};

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

/// As [`remove`], from async code. It takes no turn of long work, which who puts an artifact may
/// hold or need, and those who call this in one engine do not compete for the lock.
pub(crate) async fn remove_aside(
    parts: &Parts,
    changes: Vec<Change>,
    keys: Vec<ArtifactKey>,
    patience: Duration,
) -> Result<Option<Vec<ArtifactKey>>, Error> {
    let Some(alone) = alone(parts, patience).await else {
        return Ok(None);
    };
    let moved = parts.clone();
    let remove = move || {
        let _alone = alone;
        remove(&moved, changes, keys, patience)
    };
    parts.blocking.run_beside(remove).await?
}

/// The turn of who removes artifacts; `None`: another one has it for as long as `patience`.
async fn alone(parts: &Parts, patience: Duration) -> Option<OwnedMutexGuard<()>> {
    let turn = Arc::clone(&parts.removing).lock_owned();
    tokio::time::timeout(patience, turn).await.ok()
}

/// Nobody puts an artifact, until this is dropped.
pub(crate) struct NobodyPuts {
    _lock: NoneRegistering,
    _turn: OwnedMutexGuard<()>,
}

/// Waits so long for those who put artifacts, and keeps others from beginning; `None`: somebody is
/// still at it.
pub(crate) async fn keep_out(
    parts: &Parts,
    patience: Duration,
) -> Result<Option<NobodyPuts>, Error> {
    let Some(turn) = alone(parts, patience).await else {
        return Ok(None);
    };
    let state_dir = parts.state_dir.clone();
    let wait = move || Registering::keep_out(state_dir.path(), patience);
    let lock = parts.blocking.run_beside(wait).await??;
    Ok(lock.map(|lock| NobodyPuts {
        _lock: lock,
        _turn: turn,
    }))
}

/// The error of who has waited long enough for those who put artifacts.
pub(crate) fn busy() -> Error {
    Error::new(
        stillframe_backends::ErrorKind::Busy,
        "artifacts are being stored; nothing was removed, try again",
    )
}
