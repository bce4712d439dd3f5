//! A process beside the host that ends a run's command when the host dies.
//!
//! The guardian is the host's own program, started a second time. It starts the command, so it is
//! the command's parent. As the subreaper (prctl(2)) it also becomes the parent of every process
//! that the command leaves, even of detached ones. A socket connects the guardian with the host.
//! The host first sends what to start. After that, only the end of the socket is expected, which
//! means that the host or the work has ended.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use crate::process::guardian_channel::{GUARDIAN, Word, receive, tell};
use crate::process::{command, orphans};

/// Does the work of a guardian if this process was started for that; `None`: it was not.
///
/// A host that uses [`CommandAdapter::guardian`](crate::CommandAdapter::guardian) calls this before
/// anything else, and exits with what it answers.
pub fn be_guardian() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != GUARDIAN || args.next().is_some() {
        return None;
    }
    Some(match guard() {
        Ok(true) => ExitCode::SUCCESS,
        // If a person typed this command, there is no socket to read from.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    })
}

/// Starts the command, tells of it, and ends what there is of it when the host has gone or wants
/// that. Whether nothing is left.
fn guard() -> io::Result<bool> {
    let host = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (words, streams) = receive(&host)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let command = match command::start_guarded(&words, streams) {
        Ok(id) => id,
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            tell(&host, Word::NotStarted(errno));
            return Ok(true);
        }
    };
    // A polite signal to a whole process group is meant for the host, which ends the command its
    // own way. These signals are blocked only now, because the command inherits the signals that
    // are blocked when it starts.
    let _ = SigSet::all().thread_block();
    tell(&host, Word::Started(command.as_raw_nonzero().get()));
    let teller = host.try_clone()?;
    std::thread::Builder::new().spawn(move || observe(command, &teller))?;
    let mut byte = [0];
    loop {
        match (&host).read(&mut byte) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return Ok(orphans::end_descendants()),
            Ok(_) => {}
        }
    }
}

/// Tells the host of each stop of the command, and of its end. Reaps what else has ended meanwhile.
fn observe(command: Pid, host: &UnixStream) {
    loop {
        match rustix::process::wait(WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == command => match status.stopping_signal() {
                Some(signal) => tell(host, Word::Stopped(signal)),
                None => return tell(host, Word::Ended(status.as_raw())),
            },
            Ok(_) | Err(Errno::INTR) => {}
            // Somebody else has reaped it, because the host is gone.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::guardian_channel::send;
    use std::ffi::OsStr;
    use std::io::Write as _;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn what_is_said_is_what_is_heard() {
        for word in [
            Word::Started(7),
            Word::NotStarted(2),
            Word::Stopped(20),
            Word::Ended(-1),
        ] {
            assert_eq!(Word::from_bytes(word.to_bytes()), Some(word));
        }
        assert_eq!(Word::from_bytes([9; 5]), None);
    }

    #[test]
    fn words_and_streams_arrive_as_they_were_sent() {
        let (host, guardian) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        // More than the socket holds.
        let long = "x".repeat(1_000_000);
        let odd = OsStr::from_bytes(b"\n \xff");
        let sender = std::thread::spawn(move || {
            let words = [
                OsStr::new("program"),
                OsStr::new(""),
                OsStr::new(&long),
                odd,
            ];
            send(
                &host,
                &words,
                [writer.as_fd(), writer.as_fd(), writer.as_fd()],
            )
            .unwrap();
        });
        let (words, streams) = receive(&guardian).unwrap();
        sender.join().unwrap();
        let lengths: Vec<_> = words.iter().map(|word| word.len()).collect();
        assert_eq!(lengths, [7, 0, 1_000_000, 3]);
        assert_eq!(words[3], odd);
        let [stdin, stdout, stderr] = streams.map(std::fs::File::from);
        (&stdout).write_all(b"seen").unwrap();
        drop((stdin, stdout, stderr));
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "seen", "and no other end is open");
    }
}
