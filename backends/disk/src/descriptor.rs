//! Files and directories by descriptor and name: looked at and opened, with no link followed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use stillframe_model::tree::RECORDED_BITS;

/// What `lstat` says, in the units that the stat cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The device that holds it.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
    /// Kind and permission bits as the kernel has them, such as `0o100644`.
    pub mode: u32,
    /// In bytes; of a link, the length of its text.
    pub size: u64,
    /// Nanoseconds since the Unix epoch.
    pub mtime_ns: i128,
    /// Nanoseconds since the Unix epoch.
    pub ctime_ns: i128,
    /// The number of the user.
    pub owner: u32,
    /// How many names it has.
    pub links: u64,
}

impl Stat {
    fn from_kernel(stat: &rustix::fs::Stat) -> Self {
        let ns = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec as i64),
            owner: stat.st_uid,
            #[allow(
                clippy::unnecessary_cast,
                reason = "the type differs between architectures"
            )]
            links: stat.st_nlink as u64,
        }
    }

    /// What it is: a file, a directory, a link, …
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// The bits that a snapshot records: see [`RECORDED_BITS`].
    pub fn permissions(&self) -> u32 {
        self.mode & RECORDED_BITS
    }
}

/// `lstat` of `name` in `directory`.
pub fn lstat_at(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Stat> {
    if seeded_bug!("link-followed-by-the-walk") {
        return rustix::fs::statat(directory, OsStr::from_bytes(name), AtFlags::empty())
            .map(|stat| Stat::from_kernel(&stat));
    }
    rustix::fs::statat(
        directory,
        OsStr::from_bytes(name),
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .map(|stat| Stat::from_kernel(&stat))
}

/// The mount that `name` in `directory` is on, without following a link; of `directory` itself for
/// an empty name. `None` where the kernel does not tell (before 5.8).
pub fn mount_of(directory: BorrowedFd<'_>, name: &[u8]) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let name = OsStr::from_bytes(name);
    let stat = rustix::fs::statx(directory, name, flags, StatxFlags::MNT_ID).ok()?;
    mount_in(&stat)
}

/// The mount that this tells of, if [`StatxFlags::MNT_ID`] was asked for.
pub fn mount_in(stat: &rustix::fs::Statx) -> Option<u64> {
    let tells = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    tells.then_some(stat.stx_mnt_id)
}

/// `fstat` of an open descriptor.
pub fn fstat(fd: impl AsFd) -> rustix::io::Result<Stat> {
    rustix::fs::fstat(fd).map(|stat| Stat::from_kernel(&stat))
}

/// Opens the regular file `name` in `directory` for reading. A link is refused (`ELOOP`), so is a
/// mount point where the kernel can tell (`EXDEV`), and a FIFO does not block.
pub fn open_file_at(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<File> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let name = OsStr::from_bytes(name);
    if seeded_bug!("link-followed-by-the-walk") {
        let flags = flags.difference(OFlags::NOFOLLOW);
        return rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from);
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(directory, Path::new(name), flags, Mode::empty(), resolve) {
        // Kernels before 5.6, and sandboxes that forbid what they do not know.
        Err(Errno::NOSYS | Errno::PERM) => {
            rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from)
        }
        other => other.map(File::from),
    }
}

/// The text of the link `name` in `directory`.
pub fn read_link_at(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    rustix::fs::readlinkat(directory, OsStr::from_bytes(name), Vec::new())
        .map(std::ffi::CString::into_bytes)
}
