//! The workspace's directory as an open descriptor: every access to a path below it starts here.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::descriptor::{Stat, fstat, lstat_at, mount_of};
use crate::error::PathError;
use crate::identity::Identity;
use crate::path::RelPath;

/// The longest path, in bytes, that is handed to the kernel at once; its own limit is 4096 with
/// the closing NUL.
const MAX_PATH_BYTES: usize = 4000;

/// The workspace's directory, held open.
///
/// A path below it is resolved by the kernel without following any link and without leaving the
/// directory or its file system, whatever happens to the tree meanwhile.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    disk_path: PathBuf,
    identity: Identity,
    /// The mount id, read only when it is needed. The inner `None`: the kernel does not report it.
    mount: OnceLock<Option<u64>>,
    /// Set once the kernel has said that it has no `openat2`.
    is_plain: AtomicBool,
}

/// Whether a path that was looked up below the workspace does not lead to what was there before: it
/// is gone, a file or a link is above it, or it leads out of the workspace. `EXDEV` stands for a
/// mount point, and for a directory that was renamed to a place outside while the kernel was in it
/// (openat2(2), `RESOLVE_BENEATH`).
pub fn is_gone_or_replaced(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV
    )
}

impl Root {
    /// Opens the directory at `path` and makes sure that it is the one that is known by `identity`:
    /// a directory that was swapped meanwhile is an error, never an empty tree.
    pub fn open(path: &Path, identity: Identity) -> Result<Self, PathError> {
        let root = Self::of_directory(path)?;
        if root.identity != identity {
            return Err(PathError::at("recognise", path)(io::Error::other(
                "another directory has taken its place",
            )));
        }
        Ok(root)
    }

    /// Opens a directory by its path, whichever it is.
    pub fn of_directory(path: &Path) -> Result<Self, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(PathError::at("open", path))?;
        let stat = fstat(&fd).map_err(PathError::at("look at", path))?;
        Ok(Self {
            fd,
            disk_path: path.to_owned(),
            identity: Identity {
                device: stat.device,
                inode: stat.inode,
            },
            mount: OnceLock::new(),
            is_plain: AtomicBool::new(false),
        })
    }

    /// To open what is below it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether `name` in `directory`, which is below the workspace, is on another file system: on
    /// another mount, or in a directory that no rename leads into, so that nothing could be put
    /// back there.
    ///
    /// The number of a device alone does not decide that. On an overlay a file has that of its
    /// layer, and the directories have another one (overlayfs, "Inode properties"). A directory of
    /// another device on the same mount is a subvolume (btrfs), and a rename into that is refused
    /// as between mounts.
    pub(crate) fn is_other_filesystem(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
    ) -> bool {
        if stat.device == self.identity.device {
            return false;
        }
        if stat.file_type() == FileType::Directory {
            return true;
        }
        let there = mount_of(directory, name);
        let own = || mount_of(self.as_fd(), b"");
        // Where the kernel does not tell the mount, the device is what is known.
        there.is_none() || there != *self.mount.get_or_init(own)
    }

    /// What the kernel knows it by.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the workspace's path still leads to this directory.
    pub fn is_in_place(&self) -> bool {
        rustix::fs::lstat(&self.disk_path).is_ok_and(|s| {
            Identity {
                device: s.st_dev,
                inode: s.st_ino,
            } == self.identity
        })
    }

    /// `path` as it is on disk, for messages.
    pub fn disk_path(&self, path: &RelPath) -> PathBuf {
        if path.is_root() {
            self.disk_path.clone()
        } else {
            self.disk_path.join(path.as_path())
        }
    }

    /// Opens the directory at `path`: `ELOOP` or `ENOTDIR` if a link or a file is in the way,
    /// `EXDEV` if another file system begins on the way.
    pub fn open_directory(&self, path: &RelPath) -> rustix::io::Result<OwnedFd> {
        let bytes = path.as_bytes();
        if bytes.is_empty() {
            return self.step(self.as_fd(), b".");
        }
        if bytes.len() <= MAX_PATH_BYTES {
            return self.step(self.as_fd(), bytes);
        }
        let mut at: Option<OwnedFd> = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            // Cut at the last separator that fits; a single name is at most 255 bytes long.
            let cut = if rest.len() <= MAX_PATH_BYTES {
                rest.len()
            } else {
                rest[..MAX_PATH_BYTES]
                    .iter()
                    .rposition(|b| *b == b'/')
                    .ok_or(Errno::NAMETOOLONG)?
            };
            let from = at.as_ref().map_or_else(|| self.as_fd(), AsFd::as_fd);
            let next = self.step(from, &rest[..cut])?;
            at = Some(next);
            rest = rest.get(cut + 1..).unwrap_or_default();
        }
        Ok(at.expect("the path is not empty"))
    }

    /// Opens the directory that holds `path`, and answers with it and the last name.
    pub fn open_parent<'p>(&self, path: &'p RelPath) -> rustix::io::Result<(OwnedFd, &'p [u8])> {
        let parent = path.parent().ok_or(Errno::INVAL)?;
        Ok((self.open_directory(&parent)?, path.name()))
    }

    /// `lstat` of the entry at `path`.
    pub fn lstat(&self, path: &RelPath) -> rustix::io::Result<Stat> {
        if path.is_root() {
            return fstat(&self.fd);
        }
        let (parent, name) = self.open_parent(path)?;
        lstat_at(parent.as_fd(), name)
    }

    fn step(&self, from: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if seeded_bug!("link-followed-by-the-apply") {
            let flags = flags.difference(OFlags::NOFOLLOW);
            return rustix::fs::openat(from, OsStr::from_bytes(path), flags, Mode::empty());
        }
        while !self.is_plain.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH
                | ResolveFlags::NO_SYMLINKS
                | ResolveFlags::NO_XDEV
                | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(
                from,
                Path::new(OsStr::from_bytes(path)),
                flags,
                Mode::empty(),
                resolve,
            ) {
                // EAGAIN: a rename elsewhere raced with the resolution.
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Kernels before 5.6, and sandboxes that forbid what they do not know.
                Err(Errno::NOSYS | Errno::PERM) => self.is_plain.store(true, Ordering::Relaxed),
                other => return other,
            }
        }
        let mut at: Option<OwnedFd> = None;
        for name in path.split(|b| *b == b'/') {
            let parent = at.as_ref().map_or(from, AsFd::as_fd);
            let next = rustix::fs::openat(parent, OsStr::from_bytes(name), flags, Mode::empty())?;
            if fstat(&next)?.device != self.identity.device {
                return Err(Errno::XDEV);
            }
            at = Some(next);
        }
        at.ok_or(Errno::INVAL)
    }
}
