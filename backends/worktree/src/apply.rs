//! Executing a restore plan on disk.
//!
//! All new bytes are already staged and synced (`staging.rs`), and the journal names each step
//! (`journal.rs`). Only renames, new directories and permission bits are left. No file of the
//! workspace is unlinked: a displaced file takes the place of the file that was staged for it, and
//! at the end the whole staging directory becomes the trash of the restore (`area.rs`).
//!
//! The steps are executed one after another, on one thread: a rename from one directory to another
//! takes a lock of the whole file system, so several threads would not be faster.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use crate::area::{self, Area};
use crate::descriptor::{self, Stat};
use crate::error::{ErrorKind, PathError};
use crate::faults::Effect;
use crate::journal::{Action, Journal, Seen, Staging, Step};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::read::{self, Hashing};
use crate::restore_plan::{SkipReason, Skipped};
use crate::root::{self, Root};
use crate::stat_cache::EntryStat;
use crate::tree::RECORDED_BITS;

/// Beyond this many directories one `syncfs` is cheaper than an `fsync` of each.
const MAX_SINGLE_SYNCS: usize = 64;

/// A restore past the point of no return.
#[must_use = "it is not carried out"]
#[derive(Debug)]
pub struct Committed {
    journal: Journal,
    area: Area,
    steps: Vec<Step>,
    is_recovery: bool,
}

impl Committed {
    pub(crate) fn new(journal: Journal, area: Area, steps: Vec<Step>) -> Self {
        Self {
            journal,
            area,
            steps,
            is_recovery: false,
        }
    }

    /// Takes up a restore whose intent was found in the journal.
    pub fn from_journal(journal: Journal, staging: Staging, steps: Vec<Step>) -> Self {
        Self {
            is_recovery: true,
            ..Self::new(journal, Area::reopen(staging), steps)
        }
    }

    /// The staged bytes of the user's index and of the files of git's operations.
    pub fn index(&self) -> Result<Vec<u8>, PathError> {
        let path = self.area.index_path();
        fs::read(&path).map_err(PathError::at("read", path))
    }

    /// Carries out the steps that are not yet. Safe to repeat after any error or crash.
    ///
    /// Answers with the paths that were left as they are because somebody changed them since the
    /// guard, or because the system refused that one path.
    pub fn apply(
        &self,
        op: &Operation,
        root: &Root,
        hashing: &dyn Hashing,
    ) -> Result<Vec<Skipped>, PathError> {
        let (mut skipped, mut unused) = (Vec::new(), Vec::new());
        let mut touched = Touched::default();
        for (number, step) in self.steps.iter().enumerate() {
            let hand = Hand {
                op,
                root,
                area: &self.area,
                name: number.to_string(),
                step,
                is_recovery: self.is_recovery,
                hashing,
            };
            let reason = match hand.carry_out() {
                Ok(Done::Yes) => {
                    touched.note(step);
                    continue;
                }
                Ok(Done::Kept(reason)) => reason,
                Err(Failure::Refused) => SkipReason::Refused,
                Err(Failure::Disk(error)) => return Err(error),
            };
            if let Action::Place { inode } = step.action {
                unused.push((hand.name, inode));
            }
            skipped.push(Skipped {
                path: step.path.clone(),
                reason,
            });
        }
        self.area.keep_displaced(op, &unused)?;
        self.sync(op, root, &touched)?;
        Ok(skipped)
    }

    fn sync(&self, op: &Operation, root: &Root, touched: &Touched) -> Result<(), PathError> {
        let at = |path: &RelPath| {
            let disk_path = root.disk_path(path);
            move |errno: Errno| PathError::at("sync", disk_path)(errno)
        };
        let count = touched.directories.len() + touched.modes.len();
        // After a crash it is unknown what the first attempt had synced.
        if self.is_recovery || count > MAX_SINGLE_SYNCS {
            let workspace = root.disk_path(&RelPath::root());
            return faulty(op, Effect::SyncFileSystem(&workspace))
                .and_then(|()| rustix::fs::syncfs(root.as_fd()))
                .map_err(PathError::at("sync the file system of", workspace));
        }
        for path in &touched.directories {
            match root.open_directory(path) {
                Ok(fd) => faulty(op, Effect::SyncDirectory(path.as_path()))
                    .and_then(|()| rustix::fs::fsync(fd))
                    .map_err(at(path))?,
                // Removed by a later step, or replaced or moved away by somebody else.
                Err(errno) if root::is_gone_or_replaced(errno) => {}
                Err(errno) => return Err(at(path)(errno)),
            }
        }
        for path in &touched.modes {
            let opened = if path.is_root() {
                root.open_directory(path).map(File::from)
            } else {
                root.open_parent(path)
                    .and_then(|(parent, name)| descriptor::open_file_at(parent.as_fd(), name))
            };
            // Where nobody may read it by its new bits, it gets along with its directory.
            if let Ok(file) = opened {
                faulty(op, Effect::Sync(path.as_path()))
                    .and_then(|()| sync_what_has_bytes(file))
                    .map_err(at(path))?;
            }
        }
        self.area.sync_displaced(op)
    }

    /// Says that the restore is done, and removes everything but its trash.
    pub fn finish(mut self, op: &Operation, store: &Path) -> Result<(), PathError> {
        match self.journal.done() {
            // There is no space even for that. The next steps free some, and a removed journal says
            // the same.
            Err(error) if error.storage_kind() == ErrorKind::NoSpace => {}
            done => done?,
        }
        area::reap(op, self.area.staging(), store)?;
        self.journal.remove()
    }
}

/// Syncs a file or directory. A FIFO or a device, which somebody has put there since its bits were
/// set, has nothing to sync, and fsync(2) says `EINVAL`.
fn sync_what_has_bytes(opened: impl AsFd) -> rustix::io::Result<()> {
    match rustix::fs::fsync(opened) {
        Err(Errno::INVAL) => Ok(()),
        done => done,
    }
}

/// What has to be synced once all steps are done.
#[derive(Default)]
struct Touched {
    /// Directories in which names changed.
    directories: BTreeSet<RelPath>,
    /// What got other permission bits.
    modes: BTreeSet<RelPath>,
}

impl Touched {
    fn note(&mut self, step: &Step) {
        if let Action::SetMode { .. } = step.action {
            self.modes.insert(step.path.clone());
        } else {
            self.directories.extend(step.path.parent());
        }
    }
}

/// What became of a step.
enum Done {
    /// The path is as it should be.
    Yes,
    /// It was left as it is.
    Kept(SkipReason),
}

/// Why a step could not be carried out.
enum Failure {
    /// The system refuses this one path, which is as it was.
    Refused,
    /// The rest would fail as well.
    Disk(PathError),
}

const CHANGED: Done = Done::Kept(SkipReason::ChangedMeanwhile);

/// Carries out one step.
struct Hand<'a> {
    op: &'a Operation,
    root: &'a Root,
    area: &'a Area,
    /// The number of the step: the name of what is staged for it, and of what it displaces.
    name: String,
    step: &'a Step,
    is_recovery: bool,
    hashing: &'a dyn Hashing,
}

impl Hand<'_> {
    fn carry_out(&self) -> Result<Done, Failure> {
        match self.step.action {
            Action::Place { inode } => self.place(inode),
            Action::Remove => self.remove(),
            Action::MakeDirectory => self.make_directory(),
            Action::RemoveDirectory => self.remove_directory(),
            Action::SetMode { from, to } => self.set_mode(from, to),
        }
    }

    fn error(&self, operation: &'static str, source: impl Into<io::Error>) -> Failure {
        let at = PathError::at(operation, self.root.disk_path(&self.step.path));
        Failure::Disk(at(source))
    }

    /// The failure of a call before which the step has changed nothing.
    fn refused(&self, operation: &'static str, errno: Errno) -> Failure {
        match errno {
            Errno::ACCESS | Errno::PERM | Errno::BUSY | Errno::TXTBSY => Failure::Refused,
            errno => self.error(operation, errno),
        }
    }

    /// The directory that holds the path, and the last name; `None` if it is gone, or something
    /// else has taken its place.
    fn parent(&self) -> Result<Option<(OwnedFd, &[u8])>, Failure> {
        match self.root.open_parent(&self.step.path) {
            Ok(found) => Ok(Some(found)),
            Err(errno) if root::is_gone_or_replaced(errno) => Ok(None),
            Err(errno) => Err(self.refused("open the directory of", errno)),
        }
    }

    fn look(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Failure> {
        match descriptor::lstat_at(directory, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", errno)),
        }
    }

    fn look_in_area(
        &self,
        directory: rustix::io::Result<BorrowedFd<'_>>,
    ) -> Result<Option<Stat>, Failure> {
        match directory {
            Ok(fd) => self.look(fd, self.name.as_bytes()),
            Err(_) => Ok(None),
        }
    }

    fn place(&self, inode: u64) -> Result<Done, Failure> {
        let Some(waiting) = self.look_in_area(self.area.staged())? else {
            if !self.is_recovery {
                return Err(self.error("find what was staged for", Errno::NOENT));
            }
            return self.placed_already(inode);
        };
        let staged = self
            .area
            .staged()
            .map_err(|e| self.error("find what was staged for", e))?;
        let Some((parent, name)) = self.parent()? else {
            return Ok(CHANGED);
        };
        if waiting.inode != inode {
            // The two were exchanged already.
            return match self.settle(staged, parent.as_fd(), name, inode)? {
                Done::Yes => self.placed_already(inode),
                kept @ Done::Kept(_) => Ok(kept),
            };
        }
        match (self.step.expected, self.look(parent.as_fd(), name)?) {
            (None, None) => self.put(staged, parent.as_fd(), name),
            (Some(seen), Some(now))
                if is_unchanged(&seen, &now, parent.as_fd(), name, self.hashing) =>
            {
                self.exchange(staged, parent.as_fd(), name, inode)
            }
            // Where two cannot be exchanged, the old one is moved away first.
            (Some(_), None) => match self.displaced_already(self.area.trash())? {
                Some(Done::Yes) => self.put(staged, parent.as_fd(), name),
                _ => Ok(CHANGED),
            },
            _ => Ok(CHANGED),
        }
    }

    /// What to make of a step that was carried out before a crash.
    fn placed_already(&self, inode: u64) -> Result<Done, Failure> {
        let now = match self.root.lstat(&self.step.path) {
            Ok(stat) => Some(stat),
            Err(errno) if root::is_gone_or_replaced(errno) => None,
            Err(errno) => return Err(self.error("look at", errno)),
        };
        Ok(match now {
            Some(stat) if stat.inode == inode => Done::Yes,
            _ => CHANGED,
        })
    }

    /// What to make of an entry that was displaced to `directory` before a crash; `None`: none was.
    /// What the guard had not seen goes back, unless something else is in its place.
    fn displaced_already(
        &self,
        directory: rustix::io::Result<BorrowedFd<'_>>,
    ) -> Result<Option<Done>, Failure> {
        let Ok(directory) = directory else {
            return Ok(None);
        };
        let Some(displaced) = self.look(directory, self.name.as_bytes())? else {
            return Ok(None);
        };
        if self.is_as_seen(&displaced) {
            return Ok(Some(Done::Yes));
        }
        if let Some((parent, name)) = self.parent()? {
            self.take_back(directory, parent.as_fd(), name)?;
        }
        Ok(Some(CHANGED))
    }

    /// Renames the staged entry to a place where nothing is.
    fn put(
        &self,
        staged: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Done, Failure> {
        let effect = self.to_place();
        match rename_to_free(self.op, effect, staged, self.name.as_bytes(), parent, name) {
            Ok(()) => Ok(Done::Yes),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => Ok(CHANGED),
            // The directory was removed since it was opened.
            Err(Errno::NOENT) if self.look(staged, self.name.as_bytes())?.is_some() => Ok(CHANGED),
            Err(errno) => Err(self.refused("put in place", errno)),
        }
    }

    /// Exchanges the staged entry and the one in place, so that a reader sees one or the other,
    /// and never a gap.
    fn exchange(
        &self,
        staged: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
        inode: u64,
    ) -> Result<Done, Failure> {
        match self.swap(staged, parent, name) {
            Ok(()) => self.settle(staged, parent, name, inode),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let trash = self
                    .area
                    .trash()
                    .map_err(|e| self.error("find the trash for", e))?;
                if let kept @ Done::Kept(_) = self.displace(parent, name, trash)? {
                    return Ok(kept);
                }
                let put = self.put(staged, parent, name);
                if !matches!(put, Ok(Done::Yes)) {
                    self.take_back(trash, parent, name)?;
                }
                put
            }
            Err(Errno::NOENT) => Ok(CHANGED),
            Err(errno) => Err(self.refused("replace", errno)),
        }
    }

    /// Exchanges what is in place and what is in the staging directory.
    fn swap(
        &self,
        staged: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
    ) -> rustix::io::Result<()> {
        let name = OsStr::from_bytes(name);
        faulty(self.op, self.to_place()).and_then(|()| {
            rustix::fs::renameat_with(staged, &self.name, parent, name, RenameFlags::EXCHANGE)
        })
    }

    /// A rename into the workspace.
    fn to_place(&self) -> Effect<&Path> {
        Effect::Rename {
            from: Path::new(&self.name),
            to: self.step.path.as_path(),
        }
    }

    /// A rename out of the workspace.
    fn out_of_place(&self) -> Effect<&Path> {
        Effect::Rename {
            from: self.step.path.as_path(),
            to: Path::new(&self.name),
        }
    }

    /// After an exchange: what came out stays where it came out, or goes back if it is not what the
    /// guard saw.
    fn settle(
        &self,
        staged: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
        inode: u64,
    ) -> Result<Done, Failure> {
        let Some(displaced) = self.look(staged, self.name.as_bytes())? else {
            return Err(self.error("find what was displaced from", Errno::NOENT));
        };
        if !self.is_as_seen(&displaced) {
            let is_ours = self
                .look(parent, name)?
                .is_some_and(|now| now.inode == inode);
            if is_ours {
                self.swap(staged, parent, name)
                    .map_err(|e| self.error("put back", e))?;
                return Ok(CHANGED);
            }
        }
        Ok(Done::Yes)
    }

    /// Whether a displaced entry is what the guard saw. A rename changes its ctime, and on some
    /// overlays its inode.
    fn is_as_seen(&self, displaced: &Stat) -> bool {
        if seeded_bug!("guard-not-compared") {
            return true;
        }
        self.step.expected.is_some_and(|seen| {
            EntryStat {
                ctime_ns: seen.stat.ctime_ns,
                inode: seen.stat.inode,
                ..EntryStat::of(displaced)
            } == seen.stat
        })
    }

    fn remove(&self) -> Result<Done, Failure> {
        if self.is_recovery
            && let Some(done) = self.displaced_already(self.area.staged())?
        {
            return Ok(done);
        }
        let Some((parent, name)) = self.parent()? else {
            // A directory above it became a file, or is gone: so is this.
            return Ok(Done::Yes);
        };
        match (self.step.expected, self.look(parent.as_fd(), name)?) {
            (_, None) => Ok(Done::Yes),
            (Some(seen), Some(now))
                if is_unchanged(&seen, &now, parent.as_fd(), name, self.hashing) =>
            {
                let displaced = self
                    .area
                    .staged()
                    .map_err(|e| self.error("find a place for", e))?;
                self.displace(parent.as_fd(), name, displaced)
            }
            _ => Ok(CHANGED),
        }
    }

    /// Moves what is in place to a directory of displaced entries.
    fn displace(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        to: BorrowedFd<'_>,
    ) -> Result<Done, Failure> {
        let moved = faulty(self.op, self.out_of_place())
            .and_then(|()| rustix::fs::renameat(parent, OsStr::from_bytes(name), to, &self.name));
        match moved {
            Ok(()) => {}
            Err(Errno::NOENT) if self.look(parent, name)?.is_none() => return Ok(CHANGED),
            Err(errno) => return Err(self.refused("move to the trash", errno)),
        }
        match self.look(to, self.name.as_bytes())? {
            Some(displaced) if !self.is_as_seen(&displaced) => {
                self.take_back(to, parent, name)?;
                Ok(CHANGED)
            }
            _ => Ok(Done::Yes),
        }
    }

    /// Moves what was displaced back, unless something else is in its place by now.
    fn take_back(
        &self,
        from: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(), Failure> {
        let effect = self.to_place();
        match rename_to_free(self.op, effect, from, self.name.as_bytes(), parent, name) {
            // Where its directory is gone as well, it stays in the trash.
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("put back", errno)),
        }
    }

    fn make_directory(&self) -> Result<Done, Failure> {
        let Some((parent, name)) = self.parent()? else {
            return Ok(CHANGED);
        };
        let made = faulty(self.op, Effect::MakeDirectory(self.step.path.as_path()))
            .and_then(|()| rustix::fs::mkdirat(&parent, OsStr::from_bytes(name), Mode::RWXU));
        match made {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let is_directory = self
                    .look(parent.as_fd(), name)?
                    .is_some_and(|now| now.file_type() == FileType::Directory);
                return Ok(if is_directory { Done::Yes } else { CHANGED });
            }
            // What is above it was removed since it was opened.
            Err(Errno::NOENT) => return Ok(CHANGED),
            Err(errno) => return Err(self.refused("make the directory", errno)),
        }
        if rustix::process::geteuid().is_root() {
            let above = rustix::fs::fstat(&parent).map_err(|e| self.error("look at", e))?;
            let given = rustix::fs::chownat(
                &parent,
                OsStr::from_bytes(name),
                Some(Uid::from_raw(above.st_uid)),
                Some(Gid::from_raw(above.st_gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            );
            match given {
                Ok(()) => {}
                Err(Errno::NOENT) => return Ok(CHANGED),
                Err(errno) => return Err(self.error("set the owner of", errno)),
            }
        }
        Ok(Done::Yes)
    }

    fn remove_directory(&self) -> Result<Done, Failure> {
        let Some((parent, name)) = self.parent()? else {
            return Ok(Done::Yes);
        };
        match self.look(parent.as_fd(), name)? {
            Some(now) if now.file_type() == FileType::Directory => {}
            _ => return Ok(Done::Yes),
        }
        if seeded_bug!("directory-removed-with-all-in-it") {
            let _ = fs::remove_dir_all(self.root.disk_path(&self.step.path));
        }
        let removed = faulty(self.op, Effect::Remove(self.step.path.as_path())).and_then(|()| {
            rustix::fs::unlinkat(&parent, OsStr::from_bytes(name), AtFlags::REMOVEDIR)
        });
        match removed {
            // Something is left in it, so it stays; the closing capture names what.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                Ok(Done::Yes)
            }
            Err(errno) => Err(self.refused("remove the directory", errno)),
        }
    }

    fn set_mode(&self, from: Option<u32>, to: u32) -> Result<Done, Failure> {
        let opened = if self.step.path.is_root() {
            self.root.open_directory(&self.step.path)
        } else {
            let Some((parent, name)) = self.parent()? else {
                return Ok(self.without_mode());
            };
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, OsStr::from_bytes(name), flags, Mode::empty())
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(self.without_mode()),
            Err(errno) => return Err(self.refused("open", errno)),
        };
        let now = descriptor::fstat(&fd).map_err(|e| self.error("look at", e))?;
        let is_right_kind = match self.step.expected {
            Some(_) => now.file_type() == FileType::RegularFile,
            None => now.file_type() == FileType::Directory,
        };
        if !is_right_kind {
            return Ok(self.without_mode());
        }
        if now.permissions() == to {
            return Ok(Done::Yes);
        }
        let is_as_seen = self
            .step
            .expected
            .is_none_or(|seen| seen.stat == EntryStat::of(&now))
            && from.is_none_or(|from| now.permissions() == from);
        if !is_as_seen {
            return Ok(CHANGED);
        }
        // setuid and setgid of a directory are not recorded, so they stay.
        let special = match self.step.expected {
            Some(_) => 0,
            None => now.mode & 0o7777 & !RECORDED_BITS,
        };
        faulty(self.op, Effect::Write(self.step.path.as_path()))
            .and_then(|()| set_mode(&fd, Mode::from_raw_mode(to & RECORDED_BITS | special)))
            .map_err(|e| self.refused("set the mode of", e))?;
        Ok(Done::Yes)
    }
}

impl Hand<'_> {
    /// What to say where the thing whose bits were to be set is gone. A directory may have been
    /// removed or replaced by this restore itself; if not, the closing capture finds out.
    fn without_mode(&self) -> Done {
        match self.step.expected {
            Some(_) => CHANGED,
            None => Done::Yes,
        }
    }
}

/// Whether what is at a place is what the guard saw there.
///
/// To rename or unlink one name of a file changes the inode's ctime, and so what its other names
/// show. Where nothing else differs the content decides, and so it does where the guard looked so
/// soon after a write that the next one may have the same time.
fn is_unchanged(
    seen: &Seen,
    now: &Stat,
    directory: BorrowedFd<'_>,
    name: &[u8],
    hashing: &dyn Hashing,
) -> bool {
    let now = EntryStat::of(now);
    if (now == seen.stat && !seen.is_racy) || seeded_bug!("guard-not-compared") {
        return true;
    }
    let is_same_inode = EntryStat {
        ctime_ns: seen.stat.ctime_ns,
        ..now
    } == seen.stat;
    is_same_inode
        && seen
            .content
            .is_none_or(|id| read::holds(directory, name, &id, hashing))
}

/// Sets permission bits through a descriptor that may have been opened without any permission.
fn set_mode(fd: &OwnedFd, mode: Mode) -> rustix::io::Result<()> {
    match rustix::fs::fchmod(fd, mode) {
        // A descriptor that only names its file cannot be written through, but its name can.
        Err(Errno::BADF) => rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode),
        other => other,
    }
}

/// [`Operation::effect`] in the kernel's own words.
fn faulty(op: &Operation, effect: Effect<&Path>) -> rustix::io::Result<()> {
    op.effect(effect)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// Renames to a name that must be free.
fn rename_to_free(
    op: &Operation,
    effect: Effect<&Path>,
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    new_name: &[u8],
) -> rustix::io::Result<()> {
    let (name, new_name) = (OsStr::from_bytes(name), OsStr::from_bytes(new_name));
    let renamed = faulty(op, effect)
        .and_then(|()| rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE));
    match renamed {
        // A file system without this flag: look first.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            match descriptor::lstat_at(to, new_name.as_bytes()) {
                Err(Errno::NOENT) => rustix::fs::renameat(from, name, to, new_name),
                Ok(_) => Err(Errno::EXIST),
                Err(errno) => Err(errno),
            }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::ContentId;

    // A restore whose path somebody swapped for a FIFO after its bits were set was called
    // incomplete
    #[test]
    fn a_fifo_in_the_place_of_what_got_other_bits_needs_no_sync() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
        let directory = File::open(temp.path()).unwrap();
        let opened = descriptor::open_file_at(directory.as_fd(), b"pipe").unwrap();
        assert_eq!(rustix::fs::fsync(&opened), Err(Errno::INVAL));
        assert_eq!(sync_what_has_bytes(opened), Ok(()));
        assert_eq!(sync_what_has_bytes(directory), Ok(()));
    }

    /// blake3, whatever is asked for.
    struct Hashes;

    impl Hashing for Hashes {
        fn hasher(&self, _: &ContentId, _: u64) -> Box<dyn read::Hasher> {
            Box::new(Hash(blake3::Hasher::new()))
        }
    }

    struct Hash(blake3::Hasher);

    impl read::Hasher for Hash {
        fn update(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        fn finish(self: Box<Self>) -> Option<ContentId> {
            Some(ContentId::Blake3(*self.0.finalize().as_bytes()))
        }
    }

    // What was written in the tick in which the guard had looked was displaced as what it had seen
    #[test]
    fn where_times_prove_nothing_the_content_decides() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("file"), "newer").unwrap();
        let directory = File::open(temp.path()).unwrap();
        let directory = directory.as_fd();
        let now = descriptor::lstat_at(directory, b"file").unwrap();
        let holding = |content: &[u8], is_racy| Seen {
            stat: EntryStat::of(&now),
            content: Some(ContentId::Blake3(*blake3::hash(content).as_bytes())),
            is_racy,
        };
        let is_unchanged = |seen: Seen| is_unchanged(&seen, &now, directory, b"file", &Hashes);
        assert!(is_unchanged(holding(b"newer", true)));
        assert!(!is_unchanged(holding(b"older", true)));
        assert!(is_unchanged(holding(b"older", false)), "it is not read");
    }
}
