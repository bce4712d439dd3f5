//! The lock of a task: one at a time saves its work, over all processes.

use std::fs::File;
use std::time::Duration;

use stillframe_backends::{ErrorKind, StateDir};
use stillframe_disk::lock::{read_holder, try_lock, write_holder};
use tokio::time::Instant;

use crate::blocking::Blocking;
use crate::error::Error;
use crate::id::WorkTaskId;
use crate::workspace::lock_file::{self, POLL};
use crate::workspace::turn::MAX_WAIT;

/// The right to save a task's work. The kernel takes it back when the process dies.
///
/// Of two that save the same work at once, one would find the other's commit on the branch, and
/// take it for somebody else's.
#[derive(Debug)]
pub(crate) struct TaskLock {
    _file: File,
}

impl TaskLock {
    /// Waits for the right, at most for `lock_timeout`; after that it is `Busy`.
    pub(crate) async fn acquire(
        state_dir: &StateDir,
        task: &WorkTaskId,
        lock_timeout: Duration,
        blocking: &Blocking,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + lock_timeout.min(MAX_WAIT);
        loop {
            let (state_dir, name) = (state_dir.clone(), format!("{task}.task"));
            let attempt = move || -> Result<Result<File, String>, Error> {
                let (mut file, path) = lock_file::open(&state_dir, &name)?;
                let is_taken =
                    try_lock(&file).map_err(stillframe_backends::PathError::at("lock", &path))?;
                if !is_taken {
                    return Ok(Err(read_holder(&mut file)));
                }
                // Best effort: the text is only for messages of those who wait.
                let holder = format!("process {}", std::process::id());
                let _ = write_holder(&mut file, &holder);
                Ok(Ok(file))
            };
            match blocking.run(attempt).await?? {
                Ok(file) => return Ok(Self { _file: file }),
                Err(holder) if Instant::now() >= deadline => {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        format!(
                            "the work of task {task} is being saved by {holder}; nothing was touched"
                        ),
                    ));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }
}
