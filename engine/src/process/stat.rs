//! Reading the state of a process from `/proc`.

use std::io;

use rustix::process::Pid;

/// What the kernel says of a process in `/proc/<pid>/stat`, as far as it is of use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    state: u8,
    /// The parent; zero: none that is seen from here.
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// When it was started, in clock ticks since the start of the machine. With its id it is one
    /// process and no other: an id is given out again, but not within a tick.
    pub(crate) started: u64,
}

impl ProcessStat {
    /// The process `pid`. Blocks.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        let text = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
        Self::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Reads a line of proc(5): `pid (name) state parent group …`, the time of the start as the
    /// 22nd field; the name may hold anything.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
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
