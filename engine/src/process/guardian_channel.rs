//! The protocol between a host and its guardian: the program to start, the messages, and the
//! answers.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The only argument of a guardian.
pub(crate) const GUARDIAN: &str = "--guard-a-command-for-its-host";

/// The most bytes of a command and its arguments that are taken: the kernel allows a quarter of the
/// limit of a stack.
pub(crate) const MAX_WORDS: u64 = 64 * 1024 * 1024;

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
    pub(crate) fn to_bytes(self) -> [u8; WORD_BYTES] {
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
pub(crate) fn receive(mut host: &UnixStream) -> io::Result<(Vec<OsString>, Streams<OwnedFd>)> {
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

pub(crate) fn tell(mut host: &UnixStream, word: Word) {
    // One that has gone hears nothing any more.
    let _ = host.write_all(&word.to_bytes());
}
