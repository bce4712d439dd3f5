//! Copying what lies in one work tree for another, sharing its content where the file system can.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::descriptor::{self, Stat};
use crate::error::PathError;
use crate::faults::Effect;
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::root::Root;

/// Fewer directories than this are copied by one thread.
const DIRECTORIES_PER_THREAD: usize = 8;

/// What [`copy`] copied.
#[derive(Debug, Default)]
pub struct Copied {
    /// Files and links.
    pub files: u64,
    /// Files that share their content with what they were copied from.
    pub shared: u64,
    /// What is neither a file, a link nor a directory.
    pub skipped: Vec<RelPath>,
}

impl Copied {
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.shared += other.shared;
        self.skipped.extend(other.skipped);
    }
}

/// A directory that is copied.
struct Directory {
    path: RelPath,
    to: PathBuf,
    stat: Stat,
    /// What is in it, but for directories.
    names: Vec<(OsString, FileType)>,
}

/// Copies what lies at `path` below `from`, with all below it, to `to`, where nothing is. No link
/// is followed; each comes as a link. Permission bits and times of files come along, owners and
/// further attributes do not. Nothing is synced. On `Err` some of it may have been copied.
pub fn copy(op: &Operation, from: &Root, path: &RelPath, to: &Path) -> Result<Copied, PathError> {
    let failed = |path: &RelPath| {
        let disk_path = from.disk_path(path);
        move |error: io::Error| PathError::at("copy", disk_path)(error)
    };
    let stat = from.lstat(path).map_err(|e| failed(path)(e.into()))?;
    if stat.file_type() != FileType::Directory {
        let (above, name) = from.open_parent(path).map_err(|e| failed(path)(e.into()))?;
        let name = OsStr::from_bytes(name);
        let copied = copy_entry(op, above.as_fd(), (name, stat.file_type()), path, to);
        return copied.map_err(failed(path));
    }
    let mut directories = vec![Directory {
        path: path.clone(),
        to: to.to_owned(),
        stat,
        names: Vec::new(),
    }];
    let mut at = 0;
    while at < directories.len() {
        op.check().map_err(|e| failed(path)(io::Error::from(e)))?;
        let below = directories[at].make(op, from).map_err(failed(path))?;
        directories.extend(below);
        at += 1;
    }
    let mut copied = Copied::default();
    for part in parallel::map(&directories, DIRECTORIES_PER_THREAD, |directory| {
        let copied = directory.copy_files(op, from);
        copied.map_err(failed(&directory.path))
    }) {
        copied.add(part?);
    }
    // Last: one that may not be written to takes no file, and each file changes its time.
    for directory in directories.iter().rev() {
        let opened = File::open(&directory.to);
        let set = opened.and_then(|opened| dress(&opened, &directory.stat));
        set.map_err(failed(&directory.path))?;
    }
    Ok(copied)
}

impl Directory {
    /// Makes it, and lists what is in it; answers with the directories among that.
    fn make(&mut self, op: &Operation, from: &Root) -> io::Result<Vec<Self>> {
        op.effect(Effect::MakeDirectory(&self.to))?;
        fs::create_dir(&self.to)?;
        let opened = from.open_directory(&self.path)?;
        let mut directories = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            let stat = match descriptor::lstat_at(opened.as_fd(), name.as_bytes()) {
                // It went while we looked.
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            if stat.file_type() != FileType::Directory {
                self.names.push((name, stat.file_type()));
                continue;
            }
            directories.push(Self {
                path: self.path.join(name.as_bytes()),
                to: self.to.join(&name),
                stat,
                names: Vec::new(),
            });
        }
        Ok(directories)
    }

    fn copy_files(&self, op: &Operation, from: &Root) -> io::Result<Copied> {
        let opened = from.open_directory(&self.path)?;
        let mut copied = Copied::default();
        for (name, kind) in &self.names {
            let path = self.path.join(name.as_bytes());
            let to = self.to.join(name);
            copied.add(copy_entry(op, opened.as_fd(), (name, *kind), &path, &to)?);
        }
        Ok(copied)
    }
}

/// Copies a file or a link.
fn copy_entry(
    op: &Operation,
    directory: BorrowedFd<'_>,
    (name, kind): (&OsStr, FileType),
    path: &RelPath,
    to: &Path,
) -> io::Result<Copied> {
    op.check().map_err(io::Error::from)?;
    op.effect(Effect::Stage(to))?;
    let mut copied = Copied {
        files: 1,
        ..Copied::default()
    };
    match kind {
        FileType::RegularFile => {
            let file = descriptor::open_file_at(directory, name.as_bytes())?;
            copied.shared = u64::from(copy_file(file, to)?);
        }
        FileType::Symlink => {
            let text = descriptor::read_link_at(directory, name.as_bytes())?;
            symlink(OsStr::from_bytes(&text), to)?;
        }
        _ => {
            copied.files = 0;
            copied.skipped.push(path.clone());
        }
    }
    Ok(copied)
}

/// Whether it shares its content.
fn copy_file(mut from: File, to: &Path) -> io::Result<bool> {
    let mut made = File::options();
    let mut made = made.write(true).create_new(true).mode(0o600).open(to)?;
    let is_shared = rustix::fs::ioctl_ficlone(&made, &from).is_ok();
    if !is_shared {
        io::copy(&mut from, &mut made)?;
    }
    dress(&made, &descriptor::fstat(&from)?)?;
    Ok(is_shared)
}

/// Gives what was made the bits and the time of what it was made from.
fn dress(made: &File, like: &Stat) -> io::Result<()> {
    let bits = like.permissions();
    made.set_permissions(fs::Permissions::from_mode(bits))?;
    let since = Duration::from_nanos(u64::try_from(like.mtime_ns).unwrap_or(0));
    made.set_modified(SystemTime::UNIX_EPOCH + since)
}

/// Makes the directories above `path` that are missing, and opens the nearest.
pub fn make_directories(op: &Operation, root: &Root, path: &RelPath) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = root.as_fd().try_clone_to_owned()?;
    for name in path.parent().iter().flat_map(RelPath::names) {
        let name = OsStr::from_bytes(name);
        op.before()?;
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
    }
    Ok(at)
}
