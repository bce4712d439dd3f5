//! The run lock: one run, restore or undo at a time in a workspace, over all processes.

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stillframe_backends::{ErrorKind, PathError, StateDir, Workspace, printable};
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

/// What a run lock is of.
#[derive(Clone, Debug)]
pub(crate) struct LockedPlace {
    state_dir: StateDir,
    /// Of the file that the lock lies on.
    name: String,
    /// For messages.
    path: PathBuf,
}

impl LockedPlace {
    /// A workspace.
    pub(crate) fn workspace(workspace: &Workspace) -> Self {
        Self {
            state_dir: workspace.state().clone(),
            name: format!("{}.run", workspace.id()),
            path: workspace.disk_path().to_owned(),
        }
    }

    /// The worktree of a run, also where that is not there: it shares the id of the workspace that
    /// the run came from, and runs in both are in nobody's way.
    pub(crate) fn worktree(state_dir: &StateDir, path: &Path) -> Self {
        let name = blake3::hash(path.as_os_str().as_bytes()).to_hex();
        Self {
            state_dir: state_dir.clone(),
            name: format!("worktree-{}.run", &name[..32]),
            path: path.to_owned(),
        }
    }
}

enum Attempt {
    Taken(RunLock),
    /// By whom, in the holder's words.
    Held(String),
    /// The holder has died, and these are at work that it had started.
    Left(Vec<Survivor>),
}

impl RunLock {
    /// As [`RunLock::acquire_at`], of a workspace.
    pub(crate) async fn acquire(
        workspace: &Workspace,
        holder: &str,
        lock_timeout: Duration,
        blocking: &Blocking,
    ) -> Result<Self, Error> {
        let place = LockedPlace::workspace(workspace);
        Self::acquire_at(&place, holder, lock_timeout, blocking).await
    }

    /// Waits for the right to change `place`, at most for `lock_timeout`; after that it is
    /// `Busy`, and the message names the holder, or the processes that a run is survived by whose
    /// engine died. `holder` is what others will read.
    pub(crate) async fn acquire_at(
        place: &LockedPlace,
        holder: &str,
        lock_timeout: Duration,
        blocking: &Blocking,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + lock_timeout.min(MAX_WAIT);
        loop {
            let (asked, text) = (place.clone(), holder.to_owned());
            let attempt = blocking.run(move || attempt(&asked, &text)).await;
            let attempt = match attempt?? {
                Attempt::Taken(lock) => return Ok(lock),
                attempt => attempt,
            };
            if Instant::now() >= deadline {
                let path = printable(&place.path);
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

fn attempt(place: &LockedPlace, holder: &str) -> Result<Attempt, PathError> {
    let (mut file, path) = lock_file::open(&place.state_dir, &place.name)?;
    if !try_lock(&file).map_err(PathError::at("lock", &path))? {
        return Ok(Attempt::Held(read_holder(&mut file)));
    }
    if let Some(run) = run_of(&read_holder(&mut file)) {
        let survivors = survivors::survivors(&run, place.state_dir.path());
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
