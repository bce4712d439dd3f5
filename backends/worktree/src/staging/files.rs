//! Writing new files into the staging directory, on several threads.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::StageError;
use super::holes::Filled;
use crate::attributes::Attributes;
use crate::contents::{ContentError, Contents};
use crate::descriptor;
use crate::error::PathError;
use crate::faults::Effect;
use crate::journal::Seen;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::restore_plan::{LostAttributes, ModeChange, Write as PlannedWrite};
use crate::root::{self, Root};
use crate::store_error::StoreError;
use crate::tree::{EntryKind, RECORDED_BITS};

/// Fewer files than this are staged before another thread has begun.
const FILES_PER_THREAD: usize = 32;
/// Where each file is synced: those that wait for the disk at the same time share its answer.
const SYNCING_THREADS: usize = 16;

/// Who something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// One entry to be staged.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    /// Of its step: the name that it is staged under.
    pub(super) number: usize,
    /// Where it will be placed.
    pub(super) path: &'a RelPath,
    /// The new owner: that of the file that it replaces, or of its directory. `None`: it stays
    /// ours.
    pub(super) owner: Option<Owner>,
    /// Whether something is there that it takes the place of.
    pub(super) replaces: bool,
    pub(super) what: What<'a>,
}

/// What is staged.
#[derive(Clone, Copy)]
pub(super) enum What<'a> {
    /// An entry of the goal.
    Entry(&'a PlannedWrite),
    /// What an earlier restore displaced, which lies here. It gets a second name: nobody may read
    /// it.
    Held(&'a Path),
    /// The file that is there, with other permission bits.
    Copy(&'a ModeChange, Seen),
}

/// When what is staged has to survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syncing {
    /// Each file once it is written.
    Each,
    /// Whenever the caller syncs the file system.
    Later,
}

/// The staging directory, and what is needed to fill it.
pub(super) struct Stager<'a> {
    pub(super) root: &'a Root,
    /// The staging directory.
    pub(super) directory: BorrowedFd<'a>,
    /// The staging directory, for those who watch.
    pub(super) disk_path: &'a Path,
    pub(super) contents: &'a dyn Contents,
    pub(super) syncing: Syncing,
    pub(super) op: &'a Operation,
    /// Files that did not get all attributes of what they replace.
    pub(super) lost: Mutex<Vec<LostAttributes>>,
}

impl Stager<'_> {
    /// Stages all of `jobs`; answers with the inodes in their order. On `Err` some are staged.
    pub(super) fn stage(&self, jobs: &[Job<'_>]) -> Result<Vec<u64>, StageError> {
        // As the content lies in the store. Names are given by number, so their order is free.
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_cached_key(|at| match jobs[*at].what {
            What::Entry(write) => self.contents.place(&write.entry.id),
            What::Held(_) | What::Copy(..) => u64::MAX,
        });
        let queue = Queue {
            next: AtomicUsize::new(0),
            failure: Mutex::new(None),
        };
        let work = || queue.work_off(&order, |at| self.stage_one(&jobs[at]));
        let staged = std::thread::scope(|scope| {
            // A machine that gives fewer threads gets its files all the same: this one works too.
            let helpers: Vec<_> = (1..self.threads(jobs.len()))
                .map_while(|_| {
                    let helper = std::thread::Builder::new();
                    let work = &work;
                    let helper = helper.spawn_scoped(scope, work);
                    helper.ok()
                })
                .collect();
            let mut staged = work();
            for helper in helpers {
                match helper.join() {
                    Ok(more) => staged.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            staged
        });
        if let Some(error) = queue.failure.into_inner().expect("no panic while held") {
            return Err(error);
        }
        let mut inodes = vec![0; jobs.len()];
        for (at, inode) in staged {
            inodes[at] = inode;
        }
        Ok(inodes)
    }

    fn threads(&self, jobs: usize) -> usize {
        match self.syncing {
            Syncing::Each => jobs.min(SYNCING_THREADS),
            Syncing::Later => {
                let cores = crate::parallel::cores();
                cores.min(jobs.div_ceil(FILES_PER_THREAD))
            }
        }
    }

    fn stage_one(&self, job: &Job<'_>) -> Result<u64, StageError> {
        self.op.check()?;
        let file = StagedFile {
            stager: self,
            job,
            name: job.number.to_string(),
        };
        match job.what {
            What::Entry(write) if write.entry.kind == EntryKind::Symlink => file.link(write),
            What::Entry(write) => file.write(write),
            What::Held(place) => file.name_again(place),
            What::Copy(change, seen) => file.copy(change, &seen),
        }
    }
}

/// Jobs that threads share.
struct Queue {
    next: AtomicUsize,
    /// The first error ends the work of all.
    failure: Mutex<Option<StageError>>,
}

impl Queue {
    /// Takes one job after another; answers with those that this thread has done.
    fn work_off(
        &self,
        order: &[usize],
        work: impl Fn(usize) -> Result<u64, StageError>,
    ) -> Vec<(usize, u64)> {
        let mut done = Vec::new();
        while let Some(at) = order.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            match work(*at) {
                Ok(inode) => done.push((*at, inode)),
                Err(error) => {
                    self.next.store(order.len(), Ordering::Relaxed);
                    let mut failure = self.failure.lock().expect("no panic while held");
                    failure.get_or_insert(error);
                    break;
                }
            }
        }
        done
    }
}

/// One entry on its way to the staging directory.
struct StagedFile<'a> {
    stager: &'a Stager<'a>,
    job: &'a Job<'a>,
    name: String,
}

impl StagedFile<'_> {
    fn at<E: Into<io::Error>>(&self, operation: &'static str) -> impl FnOnce(E) -> PathError {
        let path = self.stager.root.disk_path(self.job.path);
        move |error| PathError::at(operation, path)(error)
    }

    /// Stages a link; answers with its inode, as do all of these.
    fn link(&self, write: &PlannedWrite) -> Result<u64, StageError> {
        let (stager, mut text) = (self.stager, Vec::new());
        stager
            .contents
            .write(&write.entry.id, &mut text)
            .map_err(|e| self.content_error(e))?;
        self.announce("stage the link")?;
        rustix::fs::symlinkat(OsStr::from_bytes(&text), stager.directory, &self.name)
            .map_err(self.at("stage the link"))?;
        let stat = rustix::fs::statat(stager.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.at("look at what was staged for"))?;
        self.give_to_owner(&stat)?;
        Ok(stat.st_ino)
    }

    fn write(&self, write: &PlannedWrite) -> Result<u64, StageError> {
        let mode = write.mode.unwrap_or(0o644);
        let mut file = Filled::new(self.stager.op, self.create(mode)?);
        self.stager
            .contents
            .write(&write.entry.id, &mut file)
            .map_err(|e| self.content_error(e))?;
        let file = self.filled(file)?;
        let source = self.job.replaces.then(|| self.open_source().ok()).flatten();
        self.finish(&file, source.as_ref(), mode)
    }

    /// Stages a second name of what lies at `place`, whatever it is, with all that it has.
    fn name_again(&self, place: &Path) -> Result<u64, StageError> {
        let (stager, failed) = (self.stager, "bring back what was displaced from");
        self.announce(failed)?;
        rustix::fs::linkat(CWD, place, stager.directory, &self.name, AtFlags::empty())
            .map_err(self.at(failed))?;
        let stat = rustix::fs::statat(stager.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.at("look at what was staged for"))?;
        Ok(stat.st_ino)
    }

    fn copy(&self, change: &ModeChange, seen: &Seen) -> Result<u64, StageError> {
        let mut source = self.open_source()?;
        let mut file = Filled::new(self.stager.op, self.create(change.to)?);
        io::copy(&mut source, &mut file).map_err(|e| self.content_error(ContentError::Sink(e)))?;
        let file = self.filled(file)?;
        // If it was not as the guard saw it, its step will find that out too and leave it alone.
        let nanos = |ns: i64| Timespec {
            tv_sec: ns.div_euclid(1_000_000_000),
            tv_nsec: ns.rem_euclid(1_000_000_000) as _,
        };
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_OMIT,
            },
            last_modification: nanos(seen.stat.mtime_ns),
        };
        rustix::fs::futimens(&file, &times).map_err(self.at("stage"))?;
        self.finish(&file, Some(&source), change.to)
    }

    /// Opens the file that is there, to copy it.
    fn open_source(&self) -> Result<File, StageError> {
        let opened = self.stager.root.open_parent(self.job.path);
        opened
            .and_then(|(parent, name)| descriptor::open_file_at(parent.as_fd(), name))
            .map_err(|errno| match errno {
                errno if root::is_gone_or_replaced(errno) => {
                    StageError::Changed(self.job.path.clone())
                }
                errno => self.at("open")(errno).into(),
            })
    }

    /// Makes an empty file, with these permission bits unless the umask takes some of them.
    fn create(&self, mode: u32) -> Result<File, StageError> {
        self.announce("stage")?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & RECORDED_BITS);
        let fd = rustix::fs::openat(self.stager.directory, &self.name, flags, mode)
            .map_err(self.at("stage"))?;
        Ok(File::from(fd))
    }

    fn filled(&self, file: Filled) -> Result<File, StageError> {
        let done = file.done();
        done.map_err(|e| self.content_error(ContentError::Sink(e)))
    }

    /// Gives a file what it is to have beside its content. `source` is what it takes the place of,
    /// if that may be read.
    fn finish(&self, file: &File, source: Option<&File>, mode: u32) -> Result<u64, StageError> {
        let stat = rustix::fs::fstat(file).map_err(self.at("look at what was staged for"))?;
        let is_given = self.give_to_owner(&stat)?;
        let has_more = source.is_some_and(|source| self.give_attributes(file, source));
        // After the owner: a change of owner may take bits away. An access list brings its own, of
        // which the change of mode sets those of the owner, of the mask and of others.
        let wanted = mode & RECORDED_BITS;
        if is_given || has_more || stat.st_mode & 0o7777 != wanted {
            rustix::fs::fchmod(file, Mode::from_raw_mode(wanted))
                .map_err(self.at("set the mode of what was staged for"))?;
        }
        if self.stager.syncing == Syncing::Each {
            self.stager
                .op
                .effect(Effect::Sync(Path::new(&self.name)))
                .and_then(|()| Ok(rustix::fs::fsync(file)?))
                .map_err(self.at("sync what was staged for"))?;
        }
        Ok(stat.st_ino)
    }

    /// Gives `file` the attributes of `source`, whose place it takes; answers whether there were
    /// any. That some are lost is told, and stops nothing: what was replaced has them, in the
    /// trash.
    fn give_attributes(&self, file: &File, source: &File) -> bool {
        let (not_given, is_any) = match Attributes::of(source) {
            Ok(attributes) if attributes.is_empty() => return false,
            Ok(attributes) => {
                // The kernel requires write permission even for an open file (xattr(7)). Without it
                // the attributes cannot be set, and are named.
                let _ = rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR);
                (
                    attributes.give_to(self.stager.op, file, Path::new(&self.name)),
                    true,
                )
            }
            Err(errno) => (vec![(String::new(), errno.into())], false),
        };
        if let Some((_, error)) = not_given.first() {
            let reason = error.to_string();
            let names = not_given.into_iter().map(|(name, _)| name);
            let names = names.filter(|name| !name.is_empty()).collect();
            let lost = LostAttributes::new(self.job.path.clone(), names, reason);
            let mut all = self.stager.lost.lock().expect("no panic while held");
            all.push(lost);
        }
        is_any
    }

    /// Gives what was staged to the owner of its place; answers whether it tried to.
    ///
    /// Only root can give files away; anybody else may set a group they belong to.
    fn give_to_owner(&self, staged: &Stat) -> Result<bool, StageError> {
        let is_root = rustix::process::geteuid().is_root();
        let Some(owner) = self.job.owner else {
            return Ok(false);
        };
        let user = (is_root && owner.user != staged.st_uid).then(|| Uid::from_raw(owner.user));
        if user.is_none() && owner.group == staged.st_gid {
            return Ok(false);
        }
        let changed = rustix::fs::chownat(
            self.stager.directory,
            &self.name,
            user,
            Some(Gid::from_raw(owner.group)),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        match changed {
            Err(errno) if is_root => {
                Err(self.at::<Errno>("set the owner of what was staged for")(errno).into())
            }
            _ => Ok(true),
        }
    }

    fn announce(&self, operation: &'static str) -> Result<(), PathError> {
        self.stager
            .op
            .effect(Effect::Stage(self.stager.disk_path))
            .map_err(self.at(operation))
    }

    fn content_error(&self, error: ContentError) -> StageError {
        match error {
            ContentError::Store(StoreError::Interrupted(source)) => StageError::Interrupted(source),
            ContentError::Store(source) => StageError::Store(source),
            ContentError::Sink(source) => match StoreError::from(self.at("stage")(source)) {
                StoreError::Io(source) => StageError::Disk(source),
                StoreError::Interrupted(source) => StageError::Interrupted(source),
                source => StageError::Store(source),
            },
        }
    }
}
