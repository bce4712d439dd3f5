//! The process group of a command: what it consists of, and its end.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::blocking::Blocking;
use crate::process::started::Started;

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

/// What the kernel says of a process in `/proc/<pid>/stat`, as far as it is of use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    state: u8,
    /// The parent; zero: none that is seen from here.
    pub(crate) parent: i32,
    group: i32,
    /// When it was started, in clock ticks since the start of the machine. With its id it is one process and no
    /// other: an id is given out again, but not within a tick.
    pub(crate) started: u64,
}

impl ProcessStat {
    /// The process `pid`. Blocks.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        let text = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
        Self::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Reads a line of proc(5): `pid (name) state parent group …`, the time of the start as the 22nd field; the
    /// name may hold anything.
    fn parse(line: &[u8]) -> Option<Self> {
        let name_end = line.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(&line[name_end + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        Some(Self {
            state: *fields.next()?.as_bytes().first()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            started: fields.nth(16)?.parse().ok()?,
        })
    }

    /// Whether it can still do something. One that only waits to be reaped by its parent, which
    /// need not be us, cannot.
    pub(crate) fn can_run(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }

    /// Whether a signal has stopped it, and none continued it since.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == b'T'
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_anything_in_it_does_not_shift_the_fields() {
        let line = b"7 (a) b) S 1 (\xff\n) Z 3 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let stat = ProcessStat::parse(line).unwrap();
        assert_eq!((stat.parent, stat.group, stat.started), (3, 5, 4711));
        assert!(!stat.can_run());
        for line in [
            &b""[..],
            b"7",
            b"7 (a)",
            b"7 (a) S",
            b"7 (a) S x y",
            b"7 (a) S 1 2 3",
        ] {
            assert_eq!(ProcessStat::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_kernel_says_of_us_what_the_system_calls_say() {
        let stat = ProcessStat::of(rustix::process::getpid()).unwrap();
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        assert_eq!(stat.parent, parent.unwrap_or(0));
        assert_eq!(
            stat.group,
            rustix::process::getpgrp().as_raw_nonzero().get()
        );
        assert!(stat.can_run());
    }
}
