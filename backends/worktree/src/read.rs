//! Reading a file that may change while it is read.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::coverage::OmissionReason;
use crate::descriptor::{self, Stat};
use crate::operation::Operation;
use crate::snapshot_error::SnapshotError;
use crate::tree::ContentId;

/// Where the content of files and links goes.
///
/// Called from many threads at once. Whatever it keeps is not visible to anybody until the
/// snapshot is published.
pub trait ContentSink: Sync {
    /// Takes a file of exactly `size` bytes. `None`: `content` had fewer or more, and nothing of
    /// it was kept. A sink that keeps nothing need not look whether it had more.
    fn file(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError>;

    /// Takes the text of a link.
    fn link(&self, text: &[u8]) -> Result<ContentId, SinkError>;
}

/// The content of a file, which can be read again from its beginning.
pub trait Content: Read {
    /// Goes back to the first byte.
    fn rewind(&mut self) -> io::Result<()>;

    /// Makes `copy`, which is empty, a copy that shares its blocks with the file, so that it takes
    /// no room; what it has by then is as good as read. `false`: the file system cannot do that,
    /// and nothing was done.
    fn share_with(&mut self, copy: &File) -> bool;
}

/// How ids are made of content: by the hash that an id was made with.
pub trait Hashing: Sync {
    /// For content of `size` bytes, of which an id of the kind of `like` is wanted.
    fn hasher(&self, like: &ContentId, size: u64) -> Box<dyn Hasher>;
}

/// Makes the id of some content.
pub trait Hasher {
    /// Takes the next bytes.
    fn update(&mut self, bytes: &[u8]);

    /// The id; `None` if none is given to such content, because it is half of an attack on the
    /// hash.
    fn finish(self: Box<Self>) -> Option<ContentId>;
}

/// Why a sink did not take some content.
#[derive(Debug)]
pub enum SinkError {
    /// The worktree's file could not be read.
    Read(io::Error),
    /// The sink's own side failed.
    Sink(SnapshotError),
}

impl From<SnapshotError> for SinkError {
    fn from(error: SnapshotError) -> Self {
        Self::Sink(error)
    }
}

/// What became of reading a file or link.
#[derive(Debug)]
pub enum Reading {
    /// Its content, and its `stat`, which held from before the first byte until after the last.
    Read {
        /// Of all its bytes.
        id: ContentId,
        /// As it was from before the first byte until after the last.
        stat: Stat,
        /// How many bytes were read to find that out; content that is read twice counts twice.
        bytes: u64,
    },
    /// It is gone, or something of another kind is there.
    Replaced,
    /// It is there and cannot be captured.
    Omitted(OmissionReason),
}

/// How often a file that changes while it is read is tried. A writer that is done by then was
/// caught in the act; one that is not may never be.
const TRIES: u32 = 3;

/// Reads the regular file `name` in `directory` into `sink`, and stops between two pieces when
/// `op` is to stop.
pub fn file(
    op: &Operation,
    directory: BorrowedFd<'_>,
    name: &[u8],
    sink: &dyn ContentSink,
) -> Result<Reading, SinkError> {
    let mut bytes = 0;
    for _ in 0..TRIES {
        let file = match descriptor::open_file_at(directory, name) {
            Ok(file) => file,
            // Another process has a lease on it, and is being asked to give it back.
            Err(Errno::AGAIN) => continue,
            Err(errno) => return unopened(errno),
        };
        let before = descriptor::fstat(&file).map_err(read_error)?;
        if before.file_type() != FileType::RegularFile {
            return Ok(Reading::Replaced);
        }
        let limit = before.size.saturating_add(1);
        let mut content = Bounded {
            file: &file,
            limit,
            left: limit,
            total: 0,
            op,
        };
        let id = match sink.file(before.size, &mut content) {
            Ok(id) => id,
            Err(SinkError::Read(error)) => {
                // A read fails too when the work is to stop.
                op.check().map_err(SnapshotError::from)?;
                return Err(SinkError::Read(error));
            }
            Err(error) => return Err(error),
        };
        bytes += content.total;
        let after = descriptor::fstat(&file).map_err(read_error)?;
        if let Some(id) = id
            && is_same(&before, &after)
        {
            return Ok(Reading::Read {
                id,
                stat: after,
                bytes,
            });
        }
    }
    Ok(Reading::Omitted(OmissionReason::Unstable))
}

/// Reads the text of the link `name` in `directory` into `sink`.
pub fn link(
    directory: BorrowedFd<'_>,
    name: &[u8],
    sink: &dyn ContentSink,
) -> Result<Reading, SinkError> {
    for _ in 0..TRIES {
        let before = match descriptor::lstat_at(directory, name) {
            Ok(stat) if stat.file_type() == FileType::Symlink => stat,
            Ok(_) => return Ok(Reading::Replaced),
            Err(errno) => return unopened(errno),
        };
        let text = match descriptor::read_link_at(directory, name) {
            Ok(text) => text,
            // EINVAL: no link by now.
            Err(Errno::INVAL) => return Ok(Reading::Replaced),
            Err(errno) => return unopened(errno),
        };
        if descriptor::lstat_at(directory, name).is_ok_and(|after| is_same(&before, &after)) {
            let id = sink.link(&text)?;
            return Ok(Reading::Read {
                id,
                stat: before,
                bytes: text.len() as u64,
            });
        }
    }
    Ok(Reading::Omitted(OmissionReason::Unstable))
}

/// Whether the regular file or link `name` in `directory` holds what `id` says. Nothing is kept of
/// it, and nothing waited for: what cannot be read is not known to hold it.
pub fn holds(
    directory: BorrowedFd<'_>,
    name: &[u8],
    id: &ContentId,
    hashing: &dyn Hashing,
) -> bool {
    let digest = Digest { like: *id, hashing };
    let op = &Operation::unbounded();
    let reading = match descriptor::lstat_at(directory, name).map(|stat| stat.file_type()) {
        Ok(FileType::Symlink) => link(directory, name, &digest),
        Ok(FileType::RegularFile) => file(op, directory, name, &digest),
        _ => return false,
    };
    matches!(reading, Ok(Reading::Read { id: found, .. }) if found == *id)
}

/// Keeps nothing of the content, and makes the id that some other id would be of.
struct Digest<'a> {
    like: ContentId,
    hashing: &'a dyn Hashing,
}

impl ContentSink for Digest<'_> {
    fn file(&self, size: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
        let mut hasher = self.hashing.hasher(&self.like, size);
        let mut buffer = vec![0; 64 * 1024];
        let mut total = 0;
        loop {
            match content.read(&mut buffer).map_err(SinkError::Read)? {
                0 => break,
                read => {
                    hasher.update(&buffer[..read]);
                    total += read as u64;
                }
            }
        }
        let id = hasher.finish();
        Ok(id.filter(|_| total == size))
    }

    fn link(&self, text: &[u8]) -> Result<ContentId, SinkError> {
        let mut hasher = self.hashing.hasher(&self.like, text.len() as u64);
        hasher.update(text);
        // What has no id is not what has one.
        Ok(hasher.finish().unwrap_or(ContentId::Sha1([0; 20])))
    }
}

fn unopened(errno: Errno) -> Result<Reading, SinkError> {
    match errno {
        Errno::ACCESS | Errno::PERM => Ok(Reading::Omitted(OmissionReason::Unreadable)),
        // A single file can be a mount point, also of a file on the same device.
        Errno::XDEV => Ok(Reading::Omitted(OmissionReason::OtherFilesystem)),
        // ELOOP: a link by now. ENXIO: a socket. ENODEV: a device.
        Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::NODEV => {
            Ok(Reading::Replaced)
        }
        errno => Err(read_error(errno)),
    }
}

fn read_error(errno: Errno) -> SinkError {
    SinkError::Read(errno.into())
}

fn is_same(before: &Stat, after: &Stat) -> bool {
    before == after
}

/// Reads at most one byte more than the file had when it was opened: a file that grows for ever
/// ends here, and the byte too many shows that it grew.
struct Bounded<'a> {
    file: &'a File,
    limit: u64,
    left: u64,
    total: u64,
    op: &'a Operation,
}

impl Content for Bounded<'_> {
    fn rewind(&mut self) -> io::Result<()> {
        self.left = self.limit;
        self.file.rewind()
    }

    fn share_with(&mut self, copy: &File) -> bool {
        let shared = rustix::fs::ioctl_ficlone(copy, self.file).is_ok();
        if shared {
            self.total += copy.metadata().map_or(0, |meta| meta.len());
        }
        shared
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if room == 0 {
            return Ok(0);
        }
        self.op.check().map_err(io::Error::other)?;
        loop {
            match self.file.read(&mut buffer[..room]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(n) => {
                    self.left -= n as u64;
                    self.total += n as u64;
                    return Ok(n);
                }
            }
        }
    }
}

/// Reads all of `content` into `buffer` if it has exactly `size` bytes.
pub fn exactly(size: u64, content: &mut dyn Content, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.clear();
    // With room for a byte too many the end is found without another piece.
    buffer.reserve(
        usize::try_from(size)
            .unwrap_or(usize::MAX)
            .saturating_add(1),
    );
    content.read_to_end(buffer)?;
    Ok(buffer.len() as u64 == size)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::interrupt::Interrupt;

    /// Asks for the end after the first piece, and counts the pieces.
    struct Impatient<'a> {
        interrupt: &'a Interrupt,
        pieces: std::sync::atomic::AtomicU32,
    }

    impl ContentSink for Impatient<'_> {
        fn file(&self, _: u64, content: &mut dyn Content) -> Result<Option<ContentId>, SinkError> {
            let mut piece = [0; 4096];
            loop {
                match content.read(&mut piece).map_err(SinkError::Read)? {
                    0 => return Ok(None),
                    _ => self
                        .pieces
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed),
                };
                self.interrupt.cancel();
            }
        }

        fn link(&self, _: &[u8]) -> Result<ContentId, SinkError> {
            unreachable!("there is no link")
        }
    }

    #[test]
    fn a_cancellation_does_not_wait_for_the_end_of_a_large_file() {
        let directory = tempfile::tempdir().unwrap();
        let large = File::create(directory.path().join("large")).unwrap();
        large.set_len(1 << 40).unwrap();
        let interrupt = Interrupt::never();
        let sink = Impatient {
            interrupt: &interrupt,
            pieces: Default::default(),
        };
        let fd = File::open(directory.path()).unwrap();
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let error = file(&op, fd.as_fd(), b"large", &sink).unwrap_err();
        assert!(
            matches!(error, SinkError::Sink(SnapshotError::Interrupted(_))),
            "{error:?}"
        );
        assert_eq!(sink.pieces.into_inner(), 1);
    }
}
