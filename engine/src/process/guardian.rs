//! A process beside the host that ends a run's command when the host dies.
//!
//! It is the host's own program, started again. It starts the command, so that it is its parent, and as the subreaper
//! (prctl(2)) it becomes the parent of whatever the command leaves, however that detached itself. A socket connects it
//! with the host: on it comes what to start, and then nothing but its end, which is the end of the host or of the work.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Pid, WaitOptions};

use crate::process::{command, orphans};

/// The only argument of a guardian.
pub(crate) const GUARDIAN: &str = "--guard-a-command-for-its-host";

/// The most bytes of a command and its arguments that are taken: the kernel allows a quarter of the limit of a stack.
const MAX_WORDS: u64 = 64 * 1024 * 1024;

/// How many bytes a [`Word`] has.
pub(crate) const WORD_BYTES: usize = 5;

/// stdin, stdout and stderr of a command.
pub(crate) type Streams<F> = [F; 3];

/// What a guardian tells its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The command is at work, as this process.
    Started(i32),
    /// It could not be started, for this error of the system.
    NotStarted(i32),
    /// This signal has stopped it.
    Stopped(i32),
    /// It has ended, with this status of wait(2).
    Ended(i32),
}

impl Word {
    fn to_bytes(self) -> [u8; WORD_BYTES] {
        let (kind, number) = match self {
            Self::Started(n) => (0, n),
            Self::NotStarted(n) => (1, n),
            Self::Stopped(n) => (2, n),
            Self::Ended(n) => (3, n),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    pub(crate) fn from_bytes([kind, a, b, c, d]: [u8; WORD_BYTES]) -> Option<Self> {
        let number = i32::from_le_bytes([a, b, c, d]);
        Some(match kind {
            0 => Self::Started(number),
            1 => Self::NotStarted(number),
            2 => Self::Stopped(number),
            3 => Self::Ended(number),
            _ => return None,
        })
    }
}

/// Does the work of a guardian if this process was started for that; `None`: it was not.
///
/// A host that uses [`CommandAdapter::guardian`](crate::CommandAdapter::guardian) calls this before anything else, and
/// exits with what it answers.
pub fn be_guardian() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != GUARDIAN || args.next().is_some() {
        return None;
    }
    Some(match guard() {
        Ok(true) => ExitCode::SUCCESS,
        // Whoever typed that has no socket to read from.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    })
}

/// The program of this process, also where another file has taken its name since.
pub(crate) fn own_program() -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let link = Path::new("/proc/self/exe");
    let of = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    match std::env::current_exe() {
        Ok(path) if of(&path).is_some() && of(&path) == of(link) => path,
        _ => link.to_owned(),
    }
}

/// Sends a guardian what to start. Blocks until it has read that.
pub(crate) fn send(
    mut host: &UnixStream,
    words: &[&OsStr],
    streams: Streams<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    for word in words {
        bytes.extend(word.as_bytes());
        // The one byte that no word has.
        bytes.push(0);
    }
    let length = u64::try_from(bytes.len())
        .expect("what is in memory has a length")
        .to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    with.push(SendAncillaryMessage::ScmRights(&streams));
    let sent = loop {
        match rustix::net::sendmsg(
            host,
            &[IoSlice::new(&length)],
            &mut with,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            sent => break sent?,
        }
    };
    host.write_all(&length[sent..])?;
    host.write_all(&bytes)
}

/// What [`send`] sent.
fn receive(mut host: &UnixStream) -> io::Result<(Vec<OsString>, Streams<OwnedFd>)> {
    let mut length = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(host, &mut [IoSliceMut::new(&mut length)], &mut with, flags) {
            Err(Errno::INTR) => {}
            received => break received?.bytes,
        }
    };
    let mut streams = Vec::new();
    for message in with.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            streams.extend(descriptors);
        }
    }
    let none = |_| io::Error::from(io::ErrorKind::InvalidData);
    let streams = streams.try_into().map_err(none)?;
    host.read_exact(&mut length[received..])?;
    let length = u64::from_le_bytes(length);
    let mut bytes = Vec::new();
    host.take(length.min(MAX_WORDS)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let words = bytes
        .split_inclusive(|b| *b == 0)
        .filter_map(|word| word.strip_suffix(&[0]))
        .map(|word| OsString::from_vec(word.to_vec()));
    Ok((words.collect(), streams))
}

/// Starts the command, tells of it, and ends what there is of it when the host has gone or wants that. Whether
/// nothing is left.
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
    // Whoever ends a whole group of processes politely means the host, which ends the command its own way; blocked
    // only now, because the command has the same ones blocked.
    let _ = SigSet::all().thread_block();
    tell(&host, Word::Started(command.as_raw_nonzero().get()));
    let teller = host.try_clone()?;
    std::thread::Builder::new().spawn(move || watch(command, &teller))?;
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
fn watch(command: Pid, host: &UnixStream) {
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

fn tell(mut host: &UnixStream, word: Word) {
    // One that has gone hears nothing any more.
    let _ = host.write_all(&word.to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

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
