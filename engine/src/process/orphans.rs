//! Processes that a command started and that left its process group: becoming their parent, and
//! ending them.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use stillframe_remote::own_children::own_children;

use crate::blocking::Blocking;
use crate::process::stat::ProcessStat;

/// How often those that ended are reaped while the command works. Nobody else does it, and each
/// takes up a process id until then.
pub(crate) const REAP_EVERY: Duration = Duration::from_secs(10);

/// How long processes are killed again that start others faster than they are killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Lets every process that a command starts, directly or not, become a child of this process when
/// its own parent ends, for as long as this lives.
///
/// It is for a process that starts nothing but this command, and git: whatever else is its child
/// then is the command's.
#[derive(Debug)]
pub(crate) struct Orphans {
    was_reaper: bool,
    /// The process that was started: it is waited for elsewhere.
    started: Option<Pid>,
    /// Whether there is nothing left to end.
    is_over: bool,
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
        Ok(Some(Self {
            was_reaper,
            started: None,
            is_over: false,
        }))
    }

    /// Leaves the started process to the code that waits for it.
    pub(crate) fn spare(&mut self, started: Option<Pid>) {
        self.started = started;
    }

    /// Reaps those that have ended, but not the process that was started.
    pub(crate) async fn reap(&self, blocking: &Blocking) {
        let started = self.started;
        let reap = move || {
            for (child, stat) in children().unwrap_or_default() {
                if Some(child) != started && !stat.can_run() {
                    reap(child);
                }
            }
        };
        // What is not reaped now is so later.
        let _ = blocking.run(reap).await;
    }

    /// Kills what is left, and comes back once nothing of it runs any more. The process that was
    /// started has ended.
    pub(crate) async fn end(mut self, blocking: &Blocking) {
        if !blocking.run(end_descendants).await.unwrap_or(false) {
            tracing::warn!("processes that the command left cannot be ended");
        }
        self.is_over = true;
    }

    /// Nothing is left: somebody else has ended it.
    pub(crate) fn release(mut self) {
        self.is_over = true;
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        if !self.is_over {
            kill_descendants(self.started);
        }
        if !self.was_reaper {
            // It can only fail where it could not be set.
            let _ = rustix::process::set_child_subreaper(None);
        }
    }
}

/// Kills everything that this process has started, directly or not, and comes back once nothing of
/// it runs any more; `false`: something cannot be ended. What loses its parent has to become a
/// child of this process. Blocks.
pub(crate) fn end_descendants() -> bool {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    while has_children_after_reaping() {
        kill_descendants(None);
        if began.elapsed() > KILL_TIMEOUT {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    true
}

/// Reaps every child that has ended; whether there are others.
fn has_children_after_reaping() -> bool {
    let own = own_children();
    if own.is_empty() {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
    let (at_work, ended): (Vec<_>, Vec<_>) = children_but(&own)
        .unwrap_or_default()
        .into_iter()
        .partition(|(_, stat)| stat.can_run());
    for (child, _) in ended {
        reap(child);
    }
    !at_work.is_empty()
}

/// Kills every descendant, but not `spared`, nor git at work for this process, nor what those have
/// started. Blocks.
///
/// All generations at once: a process that starts others faster than they are killed is killed with
/// them.
fn kill_descendants(spared: Option<Pid>) {
    let own = own_children();
    let Ok(processes) = processes() else { return };
    let is_spared = |pid: Pid| Some(pid) == spared || is_among(&own, pid);
    for (pid, stat) in descendants(own_id(), &processes, is_spared) {
        if stat.can_run() {
            kill(*pid, stat);
        }
    }
}

/// The descendants of `root` among `processes`, but not what is spared, nor what that has started.
fn descendants(
    root: i32,
    processes: &[(Pid, ProcessStat)],
    is_spared: impl Fn(Pid) -> bool,
) -> impl Iterator<Item = &(Pid, ProcessStat)> {
    let mut family: HashSet<i32> = [root].into();
    loop {
        let before = family.len();
        for (pid, stat) in processes {
            if family.contains(&stat.parent) && !is_spared(*pid) {
                family.insert(pid.as_raw_nonzero().get());
            }
        }
        if family.len() == before {
            break;
        }
    }
    family.remove(&root);
    processes
        .iter()
        .filter(move |(pid, _)| family.contains(&pid.as_raw_nonzero().get()))
}

/// Kills the process that `stat` was read of, and no other that has its id by now.
fn kill(pid: Pid, stat: &ProcessStat) {
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        // The id of a child is its own until it is reaped, so that no handle is needed where there
        // is none.
        if stat.parent == own_id() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        return;
    };
    if ProcessStat::of(pid).is_ok_and(|now| now.started == stat.started) {
        // One that may not be killed is seen to be there.
        let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
    }
}

/// Reaps a child, if it has ended.
fn reap(child: Pid) {
    // One that somebody else has reaped is gone, as it should be.
    let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
}

fn own_id() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The children of this process, without git at work for it. Blocks.
fn children() -> io::Result<Vec<(Pid, ProcessStat)>> {
    children_but(&own_children())
}

/// The children of this process, but not these.
fn children_but(own: &BTreeSet<u32>) -> io::Result<Vec<(Pid, ProcessStat)>> {
    let mut children = processes()?;
    children.retain(|(pid, stat)| stat.parent == own_id() && !is_among(own, *pid));
    Ok(children)
}

fn is_among(own: &BTreeSet<u32>, pid: Pid) -> bool {
    own.contains(&pid.as_raw_nonzero().get().unsigned_abs())
}

/// All processes that are seen from here. Blocks.
fn processes() -> io::Result<Vec<(Pid, ProcessStat)>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has gone meanwhile is none any more.
        if let Some(pid) = Pid::from_raw(pid)
            && let Ok(stat) = ProcessStat::of(pid)
        {
            processes.push((pid, stat));
        }
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_is_spared_is_so_with_all_that_it_has_started() {
        let process = |id: i32, parent: i32| {
            let line = format!("{id} (x) S {parent}{}", " 1".repeat(18));
            let stat = ProcessStat::parse(line.as_bytes()).unwrap();
            (Pid::from_raw(id).unwrap(), stat)
        };
        // A command with a child, git with a helper, and somebody else.
        let processes = [(21, 20), (20, 10), (30, 10), (31, 30), (50, 40)];
        let processes = processes.map(|(id, parent)| process(id, parent));
        let ids = |spared: &[i32]| -> Vec<i32> {
            let is_spared = |pid: Pid| spared.contains(&pid.as_raw_nonzero().get());
            descendants(10, &processes, is_spared)
                .map(|(pid, _)| pid.as_raw_nonzero().get())
                .collect()
        };
        assert_eq!(ids(&[]), [21, 20, 30, 31]);
        assert_eq!(ids(&[30]), [21, 20]);
        assert_eq!(ids(&[20, 30]), [0; 0]);
    }

    #[test]
    fn git_at_work_for_this_process_is_spared() {
        #[expect(clippy::disallowed_methods, reason = "a process is to be seen")]
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let is_seen = || children().unwrap().iter().any(|(found, _)| *found == pid);
        assert!(is_seen());
        own_children().insert(child.id());
        assert!(!is_seen());
        own_children().remove(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
