//! The directories of a repository, opened and read without following a link.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::descriptor;
use crate::error::PathError;
use crate::operation::Operation;
use crate::put_error::PutError;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens a directory for reading, which must be one.
pub fn open_directory(path: &Path) -> Result<OwnedFd, PutError> {
    Ok(rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(PathError::at("open", path))?)
}

/// Whether directories that are not there are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// With the mode and the owner of the one above.
    Yes,
    /// A missing one is told.
    No,
}

/// Opens a directory below `from`, no component of which is a link; `None` if it is not there.
pub fn open_below(
    op: &Operation,
    from: BorrowedFd<'_>,
    path: &str,
    create: Create,
) -> rustix::io::Result<Option<OwnedFd>> {
    let mut at = rustix::fs::openat(from, c".", DIRECTORY, Mode::empty())?;
    for name in path.split('/').filter(|n| !n.is_empty()) {
        let open = || rustix::fs::openat(&at, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        let next = match open() {
            Err(Errno::NOENT) if create == Create::No => return Ok(None),
            Err(Errno::NOENT) => {
                let above = rustix::fs::fstat(&at)?;
                op.before()
                    .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
                let mode = Mode::from_raw_mode(above.st_mode & 0o777);
                match rustix::fs::mkdirat(&at, name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                let made = open()?;
                give_to(made.as_fd(), &above)?;
                made
            }
            other => other?,
        };
        at = next;
    }
    Ok(Some(at))
}

/// Gives what root made in somebody's repository to them.
pub fn give_to(fd: BorrowedFd<'_>, like: &rustix::fs::Stat) -> rustix::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    rustix::fs::fchown(
        fd,
        Some(Uid::from_raw(like.st_uid)),
        Some(Gid::from_raw(like.st_gid)),
    )
}

/// Reads a regular file of the repository; `None` if there is none.
pub fn read_file(
    directory: BorrowedFd<'_>,
    name: &[u8],
    max_bytes: u64,
    at: &Path,
) -> Result<Option<Vec<u8>>, PutError> {
    let path = at.join(OsString::from_vec(name.to_vec()));
    let unsafe_file = |problem| PutError::Unsafe {
        what: crate::error::printable(&path),
        problem,
    };
    let file = match descriptor::open_file_at(directory, name) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(unsafe_file("a link")),
        Err(errno) => return Err(PathError::at("open", &path)(errno).into()),
    };
    let stat = descriptor::fstat(&file).map_err(PathError::at("look at", &path))?;
    if stat.file_type() == FileType::Directory {
        return Ok(None);
    }
    if stat.file_type() != FileType::RegularFile {
        return Err(unsafe_file("no regular file"));
    }
    if stat.size > max_bytes {
        return Err(unsafe_file("larger than any that git writes"));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes)
        .read_to_end(&mut bytes)
        .map_err(PathError::at("read", &path))?;
    Ok(Some(bytes))
}
