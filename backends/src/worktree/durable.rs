//! Files of the store that are whole or absent, also after a power cut.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::error::PathError;

/// Replaces the file at `path` by `bytes`: staged beside it, synced, renamed, and its directory
/// synced. A reader sees the old bytes or the new ones.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), PathError> {
    let directory = path
        .parent()
        .expect("a file of the store lies in a directory");
    let mut staged = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempfile_in(directory)
        .map_err(PathError::at("make a temporary file in", directory))?;
    staged
        .write_all(bytes)
        .map_err(PathError::at("write", path))?;
    // Before the rename: a name must never point at bytes that a power cut can take.
    staged
        .as_file()
        .sync_all()
        .map_err(PathError::at("sync", path))?;
    staged
        .persist(path)
        .map_err(|e| PathError::at("rename into", path)(e.error))?;
    sync_directory(directory)
}

/// Makes the names in `directory` survive a power cut.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), PathError> {
    File::open(directory)
        .and_then(|d| d.sync_all())
        .map_err(PathError::at("sync the directory", directory))
}

/// Reads a file of the store; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, PathError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(PathError::at("read", path)(e)),
    }
}
