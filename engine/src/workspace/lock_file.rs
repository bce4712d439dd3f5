//! Files that locks lie on, in the state directory.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use stillframe_backends::{PathError, StateDir, open_regular};

/// How long between two looks at a lock that somebody holds: flock has no form that waits for a
/// while, and a fiftieth of a second is below what a person sees.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Opens the file of this name for a lock, which is made where there is none. Blocks.
pub(crate) fn open(state_dir: &StateDir, name: &str) -> Result<(File, PathBuf), PathError> {
    let directory = state_dir.path().join("locks");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(PathError::at("make the directory", &directory))?;
    let path = directory.join(name);
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = open_regular(options.mode(0o600), &path)
        .map_err(PathError::at("open the lock file", &path))?;
    Ok((file, path))
}
