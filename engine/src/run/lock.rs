//! The run lock: one run, restore or undo at a time in a workspace, over all processes.

use std::fs::File;
use std::time::Duration;

use stillframe_backends::{ErrorKind, PathError, Workspace, printable};
use stillframe_disk::lock::{read_holder, try_lock, write_holder};
use tokio::time::Instant;

use crate::blocking::Blocking;
use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::process::survivors;
use crate::records::recovery::Survivor;
use crate::workspace::lock_file::{self, POLL};
use crate::workspace::turn::MAX_WAIT;

/// The right to change a workspace. The kernel takes it back when the process dies.
///
/// It is not the lock that captures take turns by: that one is held for each step, so that a
/// snapshot can be taken while a run is at work.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

enum Attempt {
    Taken(RunLock),
    /// By whom, in the holder's words.
    Held(String),
    /// The holder has died, and these are at work that it had started.
    Left(Vec<Survivor>),
}

impl RunLock {
    /// Waits for the right to change `workspace`, at most for `lock_timeout`; after that it is
    /// `Busy`, and the message names the holder, or the processes that a run is survived by whose
    /// engine died. `holder` is what others will read.
    pub(crate) async fn acquire(
        workspace: &Workspace,
        holder: &str,
        lock_timeout: Duration,
        blocking: &Blocking,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + lock_timeout.min(MAX_WAIT);
        loop {
            let (place, text) = (workspace.clone(), holder.to_owned());
            let attempt = blocking.run(move || attempt(&place, &text)).await;
            let attempt = match attempt?? {
                Attempt::Taken(lock) => return Ok(lock),
                attempt => attempt,
            };
            if Instant::now() >= deadline {
                let path = printable(workspace.disk_path());
                return Err(Error::new(
                    ErrorKind::Busy,
                    match attempt {
                        Attempt::Left(survivors) => format!(
                            "the workspace {path} is in use by what run {} had started before its engine died: {}; wait for its end, or end it; nothing was touched",
                            survivors[0].run_id,
                            survivors::some_of(&survivors)
                        ),
                        Attempt::Held(by) => {
                            format!("the workspace {path} is in use by {by}; nothing was touched")
                        }
                        Attempt::Taken(_) => unreachable!("it was returned"),
                    },
                ));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Releases the lock after a run that ended: the next holder need not look for processes that
    /// the run had started.
    pub(crate) fn release(self) {
        // Best effort: if it fails, the next holder looks, and finds nothing or processes that were
        // left on purpose.
        let _ = self.file.set_len(0);
    }
}

fn attempt(workspace: &Workspace, holder: &str) -> Result<Attempt, PathError> {
    let (mut file, path) = lock_file::open(workspace.state(), &format!("{}.run", workspace.id()))?;
    if !try_lock(&file).map_err(PathError::at("lock", &path))? {
        return Ok(Attempt::Held(read_holder(&mut file)));
    }
    if let Some(run) = run_of(&read_holder(&mut file)) {
        let survivors = survivors::survivors(&run, workspace.state().path());
        if !survivors.is_empty() {
            return Ok(Attempt::Left(survivors));
        }
    }
    // Best effort: the lock is the kernel's, and the text is only for messages of those who wait.
    let holder = format!("{holder} (process {})", std::process::id());
    let _ = write_holder(&mut file, &holder);
    Ok(Attempt::Taken(RunLock { file }))
}

/// What a run calls itself that has a workspace.
pub(crate) fn holder_of(run: &RunId, session: &SessionId) -> String {
    format!("{RUN}{run}{OF_SESSION}{session}")
}

const RUN: &str = "run ";
const OF_SESSION: &str = " of session ";

/// The run that a holder's words are of, if they are a run's.
fn run_of(holder: &str) -> Option<RunId> {
    let (run, _) = holder.strip_prefix(RUN)?.split_once(OF_SESSION)?;
    run.parse().ok()
}
