//! The process group of a command: its members, and ending them.

use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::blocking::Blocking;
use crate::process::started::Started;
use crate::process::stat::ProcessStat;

/// The process group of a command. What is left of it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    id: Option<Pid>,
}

impl ProcessGroup {
    /// The group that `command` leads; it was started as the leader of one.
    pub(crate) fn of(command: &Started) -> Self {
        // The command leads its group, so the group has its id.
        Self { id: command.id() }
    }

    /// Its id, which is the process id of its leader.
    pub(crate) fn id(&self) -> Option<Pid> {
        self.id
    }

    /// Sends `signal` to every process of the group.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            // A group that is gone already is what is wanted.
            let _ = rustix::process::kill_process_group(id, signal);
        }
    }

    /// Sends `signal`, which one that is stopped gets too: it is continued for that.
    pub(crate) fn ask(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
    }

    /// Kills what is left of the group, and comes back once nothing of it runs any more.
    ///
    /// From then on it signals nobody: the id of a group that is gone may be given to another.
    pub(crate) async fn end(&mut self, blocking: &Blocking) {
        let Some(id) = self.id else { return };
        let mut pause = Duration::from_millis(1);
        loop {
            self.signal(Signal::KILL);
            if rustix::process::test_kill_process_group(id).is_err() {
                break;
            }
            // What cannot be looked at may still run.
            let runs = blocking.run(move || has_running_process(id)).await;
            if !runs.unwrap_or(true) {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
        self.id = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self
            .id
            .is_some_and(|id| rustix::process::test_kill_process_group(id).is_ok())
        {
            self.signal(Signal::KILL);
        }
    }
}

/// Whether a process of the group can still do something. Blocks.
fn has_running_process(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return true;
    };
    processes
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .filter_map(|entry| std::fs::read(entry.path().join("stat")).ok())
        .filter_map(|line| ProcessStat::parse(&line))
        .any(|process| process.group == group.as_raw_nonzero().get() && process.can_run())
}
