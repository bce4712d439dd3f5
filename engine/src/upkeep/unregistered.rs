//! Patches, outputs of commands and data of events that the artifact store has and the log does not
//! name.
//!
//! They are stored before their rows are written. If a process dies in between, it leaves one that
//! nobody can ask for. The same happens if a process deletes an artifact and dies after it removed
//! the row.

use std::collections::HashSet;

use stillframe_artifact_store::ArtifactMeta;

use crate::actors::Parts;
use crate::error::Error;
use crate::state::registering::Registering;
use crate::step::artifact::is_data_key;
use crate::step::artifact::is_own_key;

/// Those that no row names, and none will. Blocks.
///
/// Only what has a key that the engine made up is looked at. A patch can be made again from its
/// snapshots, data without its event says nothing, and nobody was told of an output before there
/// was a row; what the host has put under a key of its own may be all that there is of it, should
/// the log be lost.
pub(crate) fn unregistered(parts: &Parts) -> Result<Vec<ArtifactMeta>, Error> {
    if !parts.artifacts.is_there() {
        return Ok(Vec::new());
    }
    let mut found = parts.artifacts.store()?.list()?.artifacts;
    found.retain(|artifact| {
        let key = artifact.key.as_str();
        is_own_key(key) || is_data_key(key)
    });
    drop_registered(parts, &mut found)?;
    if found.is_empty() {
        return Ok(found);
    }
    match Registering::wait_for_all(parts.state_dir.path())? {
        // The row of one that was on its way is there by now.
        true => drop_registered(parts, &mut found)?,
        false => found.clear(),
    }
    Ok(found)
}

fn drop_registered(parts: &Parts, found: &mut Vec<ArtifactMeta>) -> Result<(), Error> {
    let rows = parts.reader.read_blocking(|store| store.artifacts(None))?;
    let named: HashSet<String> = rows.into_iter().map(|row| row.key).collect();
    found.retain(|artifact| !named.contains(artifact.key.as_str()));
    Ok(())
}
