//! Reading a database that cannot be written, from a copy. SQLite has to recover the write-ahead
//! log, and to share memory with other processes, before it can read the first row. The mode for
//! unchanging files (`immutable`) would ignore the log.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use stillframe_backends::{PathError, open_regular};
use tempfile::TempDir;

use super::opening::naming;
use super::{DATABASE, SqliteStore};
use crate::state::error::StateError;

/// How often a copy that somebody wrote into is made anew.
const MAX_TRIES: u32 = 50;

/// Longer than any tick by which a file system tells time.
const TICK: Duration = Duration::from_millis(20);

impl SqliteStore {
    /// Opens a copy of the database in `state_dir`, for reading alone. One of an earlier version is
    /// brought up to date there. Nothing in `state_dir` is made or changed.
    pub(crate) fn open_copy(state_dir: &Path) -> Result<Self, StateError> {
        let copy = copy(state_dir)?;
        Self::open_once(copy.path()).map_err(|error| naming(&state_dir.join(DATABASE), error))
    }

    /// Opens a database whose files nobody needs any more once they are open, so that no end of
    /// this process leaves them.
    fn open_once(copy: &Path) -> Result<Self, StateError> {
        drop(Self::open(copy)?);
        let store = Self::open_reader(copy)?;
        // The first read opens the log, and what its readers share.
        let read = "SELECT count(*) FROM sqlite_schema";
        store.connection.query_row(read, (), |_| Ok(()))?;
        Ok(store)
    }
}

/// The database and its log, as they were at one moment.
fn copy(state_dir: &Path) -> Result<TempDir, StateError> {
    let names = [DATABASE.to_owned(), format!("{DATABASE}-wal")];
    for _ in 0..MAX_TRIES {
        let before = names.each_ref().map(|name| stamp(&state_dir.join(name)));
        // What others write from here on, who may write there, gives the file another time.
        std::thread::sleep(TICK);
        let place = std::env::temp_dir();
        let directory = tempfile::Builder::new()
            .prefix("stillframe-")
            .tempdir_in(&place)
            .map_err(PathError::at("make a temporary directory in", &place))?;
        for name in &names {
            let from = state_dir.join(name);
            match copy_file(&from, &directory.path().join(name)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && name != DATABASE => {}
                copied => copied.map_err(PathError::at("copy", &from))?,
            }
        }
        if names.each_ref().map(|name| stamp(&state_dir.join(name))) == before {
            return Ok(directory);
        }
    }
    Err(StateError::InUse)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = open_regular(fs::OpenOptions::new().read(true), from)?;
    let mut options = fs::OpenOptions::new();
    let mut made = options.write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut made).map(drop)
}

/// What tells a file that was written to.
fn stamp(path: &Path) -> Option<[i64; 5]> {
    let found = fs::symlink_metadata(path).ok()?;
    Some([
        found.ino().cast_signed(),
        found.size().cast_signed(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime_nsec(),
    ])
}
