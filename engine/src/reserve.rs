//! Room on the disk of the state directory that is kept for recovery: a restore that a crash has interrupted
//! has replaced some files and not others, and must not wait for somebody to make room.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use stillframe_backends::{ErrorKind, open_regular, printable};

use crate::error::Error;

/// What the journal, the log and a snapshot of what is there need, with as much again for a file system that
/// counts in larger pieces.
const BYTES: u64 = 1 << 20;

/// On a disk with less than this many times its size left it is not made: there others need it more.
const MIN_TIMES_FREE: u64 = 16;

fn place(state_dir: &Path) -> PathBuf {
    state_dir.join("reserve")
}

/// Makes the reserve if it is not there. Best effort: nothing but recovery on a full disk depends on it.
pub(crate) fn keep(state_dir: &Path) {
    let path = place(state_dir);
    if is_there(state_dir) {
        return;
    }
    if free(state_dir).is_none_or(|free| free < BYTES * MIN_TIMES_FREE) {
        return;
    }
    let staged = state_dir.join("reserve.new");
    if let Err(e) = make(&staged).and_then(|()| fs::rename(&staged, &path)) {
        tracing::debug!(error = %e, "no room is kept for recovery");
        // Another engine may be making it, under the same name.
        let _ = fs::remove_file(&staged);
    }
}

fn make(staged: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let file = open_regular(options.mode(0o600), staged)?;
    // Blocks, and not only a length.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES)?;
    file.sync_all()
}

/// Whether the end of work that begins now could be written down: there is the reserve, or as much room on the disk.
/// Where the system cannot tell, there is.
fn is_enough(is_kept: bool, free: Option<u64>) -> bool {
    is_kept || free.is_none_or(|free| free >= BYTES)
}

/// Whether the reserve is there.
fn is_there(state_dir: &Path) -> bool {
    fs::symlink_metadata(place(state_dir)).is_ok_and(|m| m.is_file() && m.len() == BYTES)
}

/// How many bytes others than the system's own user may still use; `None`: nobody can tell.
fn free(state_dir: &Path) -> Option<u64> {
    let told = rustix::fs::statvfs(state_dir).ok()?;
    // A file system that has no size says so by this.
    (told.f_blocks > 0).then(|| told.f_bavail.saturating_mul(told.f_frsize))
}

/// Refuses to begin work whose end could not be written down. `what`: the work, as in "step "build"".
pub(crate) fn check(state_dir: &Path, what: &str) -> Result<(), Error> {
    if is_enough(is_there(state_dir), free(state_dir)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NoSpace,
        format!(
            "less than {} KiB are free on the disk of {}, so that the end of {what} could not be written down; it was not begun",
            BYTES / 1024,
            printable(state_dir)
        ),
    ))
}

/// Gives the room back to the disk; `false`: there was none. [`keep`] makes it again once there is enough.
pub(crate) fn release(state_dir: &Path) -> bool {
    fs::remove_file(place(state_dir)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn work_begins_where_its_end_can_be_written_down() {
        for (is_kept, free, expected) in [
            (true, Some(0), true),
            (false, Some(BYTES), true),
            (false, Some(BYTES - 1), false),
            // Where nothing can be told nobody is kept from work.
            (false, None, true),
        ] {
            assert_eq!(is_enough(is_kept, free), expected, "{is_kept} {free:?}");
        }
        let state = tempfile::tempdir().unwrap();
        assert!(!is_there(state.path()));
        fs::write(place(state.path()), "x").unwrap();
        assert!(!is_there(state.path()), "one of another size is none");
        assert!(free(state.path()).is_some());
        assert_eq!(free(&state.path().join("gone")), None);
    }

    #[test]
    fn it_takes_blocks_is_private_and_can_be_given_back_once() {
        let state = tempfile::tempdir().unwrap();
        keep(state.path());
        let meta = fs::metadata(place(state.path())).unwrap();
        assert_eq!(meta.len(), BYTES);
        assert!(meta.blocks() * 512 >= BYTES, "{} blocks", meta.blocks());
        assert_eq!(meta.mode() & 0o777, 0o600);
        keep(state.path());
        let again = fs::metadata(place(state.path())).unwrap();
        assert_eq!(again.ino(), meta.ino(), "it is made once");
        let names: Vec<_> = fs::read_dir(state.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "and leaves nothing beside it: {names:?}");
        assert!(release(state.path()));
        assert!(!release(state.path()));
    }
}
