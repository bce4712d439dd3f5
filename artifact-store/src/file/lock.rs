//! The one lock of a store.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::disk::Directory;
use crate::error::{PathError, StoreError};

/// Proof that nobody else changes the store. Dropping it lets others in, and so does dying.
///
/// The file is never removed: a file that is removed while somebody waits for it is locked by two.
#[derive(Debug)]
#[must_use = "dropping it gives the store back"]
pub(crate) struct StoreLock {
    _file: File,
}

impl StoreLock {
    pub(crate) const FILE: &str = "lock";

    /// Waits at most `patience`.
    pub(crate) fn acquire(root: &Directory, patience: Duration) -> Result<Self, StoreError> {
        // A file description of its own each time, so that two threads exclude each other too.
        let mut file = root.lock_file(Self::FILE)?;
        let deadline = Instant::now() + patience;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    // flock has no timed form. The lock is held for a few syncs, which take
                    // milliseconds.
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(StoreError::Busy {
                        path: root.disk_path().to_owned(),
                        holder: holder(&mut file),
                    });
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(PathError::at("lock", root.path_of(Self::FILE))(errno).into());
                }
            }
        }
        let text = format!("process {} ({})\n", std::process::id(), command_name());
        // Best effort: the lock is the kernel's, the text is for whoever has to wait.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
        Ok(Self { _file: file })
    }
}

fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    let _ = file.take(1024).read_to_end(&mut text);
    match String::from_utf8_lossy(&text).trim() {
        "" => "another process".to_owned(),
        text => text.escape_debug().to_string(),
    }
}

fn command_name() -> String {
    let arg = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&arg).file_name().unwrap_or(&arg);
    name.to_string_lossy().into_owned()
}
