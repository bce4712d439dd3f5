//! What a command started that left its process group: becoming its parent, and its end.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::blocking::Blocking;
use crate::process_group::ProcessStat;

/// How often those that ended are reaped while the command works. Nobody else does it, and each
/// takes up a process id until then.
pub(crate) const REAP_EVERY: Duration = Duration::from_secs(10);

/// How long those are pursued that start others faster than they are killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets every process that a command starts, directly or not, become a child of this process when
/// its own parent ends, for as long as this lives.
///
/// It is for a process that starts nothing but this command: whatever is its child then is the
/// command's.
#[derive(Debug)]
pub(crate) struct Orphans {
    was_reaper: bool,
}

impl Orphans {
    /// `None` where a child could be somebody else's: this process has children already, or cannot
    /// see which it has. Blocks.
    pub(crate) fn adopt() -> io::Result<Option<Self>> {
        let pid = rustix::process::getpid();
        let seen = std::fs::read_link("/proc/self")?;
        if seen.as_os_str() != pid.as_raw_nonzero().to_string().as_str() || !children()?.is_empty()
        {
            return Ok(None);
        }
        let was_reaper = rustix::process::child_subreaper()?.is_some();
        rustix::process::set_child_subreaper(Some(pid))?;
        Ok(Some(Self { was_reaper }))
    }

    /// Reaps those that have ended, but not `command`, which is waited for elsewhere.
    pub(crate) async fn reap(&self, command: Option<Pid>, blocking: &Blocking) {
        let reap = move || {
            for (child, stat) in children().unwrap_or_default() {
                if Some(child) != command && !stat.can_run() {
                    reap(child);
                }
            }
        };
        // What is not reaped now is so later.
        let _ = blocking.run(reap).await;
    }

    /// Kills what is left, and comes back once nothing of it runs any more. The command itself has
    /// ended.
    pub(crate) async fn end(self, blocking: &Blocking) {
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        while blocking.run(kill_children).await.unwrap_or(false) {
            if began.elapsed() > PATIENCE {
                tracing::warn!("processes that the command left cannot be ended");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        kill_children();
        if !self.was_reaper {
            // It can only fail where it could not be set.
            let _ = rustix::process::set_child_subreaper(None);
        }
    }
}

/// Kills every child, and reaps those that have ended. Whether there was any: the children of one
/// that is gone may be ours by the next look. Blocks.
///
/// Only children are killed: the id of one cannot become another process's before it is reaped.
fn kill_children() -> bool {
    let children = children().unwrap_or_default();
    for (child, stat) in &children {
        if stat.can_run() {
            let _ = rustix::process::kill_process(*child, Signal::KILL);
        }
        reap(*child);
    }
    !children.is_empty()
}

/// Reaps a child, if it has ended.
fn reap(child: Pid) {
    // One that somebody else has reaped is gone, as it should be.
    let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
}

/// The children of this process. Blocks.
fn children() -> io::Result<Vec<(Pid, ProcessStat)>> {
    let us = rustix::process::getpid().as_raw_nonzero().get();
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has gone meanwhile is no child any more.
        if let Some(pid) = Pid::from_raw(pid)
            && let Ok(stat) = ProcessStat::of(pid)
            && stat.parent == us
        {
            children.push((pid, stat));
        }
    }
    Ok(children)
}
