//! Preparing a restore: everything that can fail for want of space, content or permission fails
//! here, before anything of the workspace is touched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, FileType, Gid, Mode, OFlags, StatVfsMountFlags, Statx, StatxAttributes,
    StatxFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use crate::backend::{Interrupt, Interrupted, StoreError};
use crate::error::PathError;
use crate::git::rollback::RepositoryPlan;
use crate::path::RelPath;
use crate::restore::ContentError;
use crate::restore::{ModeChange, RestorePlan, SkipReason, Skipped, Write as PlannedWrite};
use crate::snapshot::SnapshotId;
use crate::tree::{ContentId, EntryKind, Modes, RECORDED_BITS};
use crate::worktree::apply::Committed;
use crate::worktree::area::{self, Area};
use crate::worktree::journal::{Action, Intent, Journal, OperationId, Seen, Staging, Step};
use crate::worktree::remembered::Made;
use crate::worktree::root::{self, Root, Stat};
use crate::worktree::stat_cache::EntryStat;
use crate::worktree::{durable, faults};

/// Beyond this many files one `syncfs` is cheaper than an `fsync` of each.
const MAX_SINGLE_SYNCS: usize = 64;

/// What is to be staged and carried out.
pub(crate) struct Request<'a> {
    pub(crate) root: &'a Root,
    /// The workspace's directory in the state directory.
    pub(crate) store: &'a Path,
    pub(crate) plan: &'a RestorePlan,
    pub(crate) guard: &'a SnapshotId,
    /// The permission bits of directories that have to be made.
    pub(crate) modes: &'a Modes,
    /// What the guard saw of a captured path.
    pub(crate) seen: &'a dyn Fn(&RelPath) -> Option<Seen>,
    /// Why a path is left alone when something that is no directory is above it.
    pub(crate) hidden: &'a dyn Fn(&RelPath) -> SkipReason,
    /// Writes the content with some id.
    pub(crate) content: &'a dyn Fn(&ContentId, &mut dyn Write) -> Result<(), ContentError>,
    /// The bytes of a user's index that the repository's part of the restore needs.
    pub(crate) index: Option<&'a [u8]>,
    pub(crate) interrupt: &'a Interrupt,
}

/// Why nothing could be staged. The workspace was not touched, and nothing is left over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    /// The disk refused, or would refuse later.
    #[error(transparent)]
    Disk(#[from] PathError),
    /// The content is missing or damaged.
    #[error(transparent)]
    Store(StoreError),
    /// No place for staging is on the workspace's file system.
    #[error("{0}")]
    Unsupported(String),
    /// Asked to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// New bytes on disk, and the steps that will place them. Nothing of the workspace was touched.
#[must_use = "commit or discard it"]
#[derive(Debug)]
pub(crate) struct Staged {
    journal: Journal,
    area: Area,
    steps: Vec<Step>,
    skipped: Vec<Skipped>,
}

/// Checks that the plan can be carried out as far as that can be known, and stages all new bytes.
pub(crate) fn stage(request: &Request<'_>) -> Result<Staged, StageError> {
    let operation = OperationId::random();
    let Some(place) = Area::place(request.root, request.store, operation)? else {
        return Err(StageError::Unsupported(Area::no_place(request.root)));
    };
    let mut draft = Draft::new(request);
    draft.survey()?;
    let staging = Staging {
        workspace_inode: request.root.identity().inode,
        directory: place.into_os_string().into_encoded_bytes(),
        guard: request.guard.clone(),
    };
    let journal = Journal::begin(request.store, operation, &staging)?;
    let staged = Area::make(&staging, request.store)
        .map_err(StageError::from)
        .and_then(|area| {
            draft.write_all(&area)?;
            Ok(area)
        });
    match staged {
        Ok(area) => Ok(Staged {
            journal,
            area,
            steps: draft.steps,
            skipped: draft.skipped,
        }),
        Err(error) => {
            // Best effort beside the first error: recovery removes what is left.
            let _ = area::discard(&staging, request.store).and_then(|()| journal.remove());
            Err(error)
        }
    }
}

impl Staged {
    /// Paths that the plan names and that were found to be out of reach.
    pub(crate) fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// What will be put where nothing is, as it will be there.
    pub(crate) fn made(&self) -> Result<Made, PathError> {
        let staged = self.area.staged().expect("it was just made");
        let is_new =
            |step: &Step| matches!(step.action, Action::Place { .. }) && step.expected.is_none();
        let steps = self.steps.iter().enumerate().filter(|(_, s)| is_new(s));
        let made = steps.map(|(number, step)| {
            let stat = root::lstat_at(staged, number.to_string().as_bytes()).map_err(
                PathError::at("look at what was staged in", self.area.path()),
            )?;
            Ok((step.path.clone(), EntryStat::of(&stat)))
        });
        made.collect::<Result<Vec<_>, _>>().map(Made::new)
    }

    /// Removes everything that was staged.
    pub(crate) fn discard(self, store: &Path) -> Result<(), PathError> {
        area::discard(self.area.staging(), store)?;
        self.journal.remove()
    }

    /// Passes the point of no return. On an error nothing is left to recover, unless the journal
    /// could not even be removed.
    pub(crate) fn commit(
        mut self,
        store: &Path,
        plan: &RestorePlan,
        repository: Option<RepositoryPlan>,
    ) -> Result<Committed, CommitError> {
        let intent = Intent {
            plan: plan.id.clone(),
            target: plan.target.clone(),
            steps: self.steps.len() as u64,
            repository,
        };
        match self.journal.intend(&intent, &self.steps) {
            Ok(()) => Ok(Committed::new(self.journal, self.area, intent, self.steps)),
            // Whether the frame reached the disk is unknown, so it must not be found later.
            Err(error) => match self.discard(store) {
                Ok(()) => Err(CommitError::Refused(error)),
                Err(_) => Err(CommitError::Undecided(error)),
            },
        }
    }
}

/// Why the intent could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// It is certainly not there.
    #[error(transparent)]
    Refused(PathError),
    /// It may be there; recovery decides.
    #[error(transparent)]
    Undecided(PathError),
}

/// What is known of a directory of the workspace before anything is touched.
#[derive(Clone, Copy, Debug)]
enum Directory {
    /// It is there.
    Exists,
    /// It will be made; nothing, or something that is moved away first, is in its place.
    Missing,
    /// Something that stays is in its place.
    Blocked(SkipReason),
}

/// The steps of a restore while they are being collected.
struct Draft<'a> {
    request: &'a Request<'a>,
    /// Files, links and special files that are moved away, by path.
    leaving: BTreeSet<&'a RelPath>,
    directories: HashMap<RelPath, Directory>,
    /// Directories that steps change, and have been looked at.
    checked: BTreeSet<RelPath>,
    /// Directories that their owner has to open up for the time of the restore, with their bits.
    closed: BTreeMap<RelPath, u32>,
    /// Directories to be made, with their bits.
    made: BTreeMap<RelPath, u32>,
    writes: Vec<(&'a PlannedWrite, Option<Seen>)>,
    copies: Vec<(&'a ModeChange, Seen)>,
    steps: Vec<Step>,
    skipped: Vec<Skipped>,
}

impl<'a> Draft<'a> {
    fn new(request: &'a Request<'a>) -> Self {
        let plan = request.plan;
        let leaving = plan
            .removals
            .iter()
            .map(|r| &r.path)
            .chain(&plan.displaced)
            .collect();
        Self {
            request,
            leaving,
            directories: HashMap::new(),
            checked: BTreeSet::new(),
            closed: BTreeMap::new(),
            made: BTreeMap::new(),
            writes: Vec::new(),
            copies: Vec::new(),
            steps: Vec::new(),
            skipped: Vec::new(),
        }
    }

    fn skip(&mut self, path: &RelPath, reason: SkipReason) {
        self.skipped.push(Skipped {
            path: path.clone(),
            reason,
        });
    }

    /// Looks at every place that will be changed, and collects the steps in their order. What the
    /// system would refuse as a whole is an error, before anything was touched.
    fn survey(&mut self) -> Result<(), PathError> {
        let plan = self.request.plan;
        let mut removals = Vec::new();
        for removal in plan.removals.iter().rev() {
            match (self.request.seen)(&removal.path) {
                Some(stat) => removals.push((&removal.path, stat)),
                None => self.skip(&removal.path, SkipReason::ChangedMeanwhile),
            }
        }
        for write in &plan.writes {
            self.survey_write(write)?;
        }
        for path in plan.displaced.iter().rev() {
            let is_written = plan.writes.binary_search_by(|w| w.path.cmp(path)).is_ok();
            if is_written {
                continue;
            }
            match self.special(path)? {
                Some(stat) => removals.push((path, stat)),
                None => self.skip(path, SkipReason::ChangedMeanwhile),
            }
        }
        for (path, _) in &removals {
            self.check_entry(path)?;
        }
        for path in &plan.remove_directories {
            self.check_parent(path)?;
        }
        for (path, mode) in &plan.make_directories {
            match self.directory(path)? {
                Directory::Missing => {
                    self.make(path, *mode)?;
                }
                Directory::Exists => {}
                Directory::Blocked(reason) => self.skip(path, reason),
            }
        }
        let mut modes = Vec::new();
        for change in &plan.modes {
            self.survey_mode(change, &mut modes)?;
        }
        self.collect(removals, modes);
        Ok(())
    }

    fn survey_write(&mut self, write: &'a PlannedWrite) -> Result<(), PathError> {
        let path = &write.path;
        let parent = path.parent().expect("the workspace itself is no entry");
        match self.directory(&parent)? {
            Directory::Blocked(reason) => {
                self.skip(path, reason);
                return Ok(());
            }
            Directory::Missing => {
                let mode = self.request.modes.of_directory(&parent);
                self.make(&parent, mode)?;
            }
            Directory::Exists => self.check_entry(path)?,
        }
        let expected = if write.current.is_some() {
            (self.request.seen)(path)
        } else if self.leaving.contains(path) {
            self.special(path)?
        } else {
            self.writes.push((write, None));
            return Ok(());
        };
        match expected {
            Some(stat) => self.writes.push((write, Some(stat))),
            None => self.skip(path, SkipReason::ChangedMeanwhile),
        }
        Ok(())
    }

    fn survey_mode(
        &mut self,
        change: &'a ModeChange,
        modes: &mut Vec<Step>,
    ) -> Result<(), PathError> {
        let path = &change.path;
        let Some(stat) = self.statx(path)? else {
            self.skip(path, SkipReason::ChangedMeanwhile);
            return Ok(());
        };
        let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
        if kind == FileType::Directory {
            modes.push(Step {
                path: path.clone(),
                expected: None,
                action: Action::SetMode {
                    from: Some(change.from),
                    to: change.to,
                },
            });
            return Ok(());
        }
        let Some(seen) = (self.request.seen)(path) else {
            self.skip(path, SkipReason::ChangedMeanwhile);
            return Ok(());
        };
        self.refuse_immutable(path, &stat)?;
        if stat.stx_nlink > 1 && kind == FileType::RegularFile {
            // Its other names may lie outside of the workspace, and would change with it.
            self.check_entry(path)?;
            self.copies.push((change, seen));
            return Ok(());
        }
        modes.push(Step {
            path: path.clone(),
            expected: Some(seen),
            action: Action::SetMode {
                from: Some(change.from),
                to: change.to,
            },
        });
        Ok(())
    }

    /// Puts the steps in order: what has to be opened up, removals from the deepest up, new
    /// directories from the top down, new entries, and permission bits from the deepest up.
    fn collect(&mut self, removals: Vec<(&RelPath, Seen)>, mut modes: Vec<Step>) {
        let step = |path: &RelPath, expected, action| Step {
            path: path.clone(),
            expected,
            action,
        };
        let set_mode = |from, to| Action::SetMode { from, to };
        let mut steps = Vec::new();
        for (path, mode) in &self.closed {
            steps.push(step(path, None, set_mode(Some(*mode), mode | 0o700)));
        }
        for (path, stat) in removals {
            steps.push(step(path, Some(stat), Action::Remove));
        }
        for path in &self.request.plan.remove_directories {
            steps.push(step(path, None, Action::RemoveDirectory));
        }
        for path in self.made.keys() {
            steps.push(step(path, None, Action::MakeDirectory));
        }
        for (write, expected) in &self.writes {
            steps.push(step(&write.path, *expected, Action::Place { inode: 0 }));
        }
        for (change, seen) in &self.copies {
            steps.push(step(&change.path, Some(*seen), Action::Place { inode: 0 }));
        }
        for (path, mode) in &self.made {
            modes.push(step(path, None, set_mode(None, *mode)));
        }
        for (path, mode) in &self.closed {
            match modes.iter_mut().find(|s| s.path == *path) {
                Some(planned) => {
                    if let Action::SetMode { from, .. } = &mut planned.action {
                        *from = Some(mode | 0o700);
                    }
                }
                None => modes.push(step(path, None, set_mode(Some(mode | 0o700), *mode))),
            }
        }
        modes.sort_by(|a, b| b.path.cmp(&a.path));
        steps.extend(modes);
        self.steps = steps;
    }

    /// Finds out what is at the place of a directory, and at those above it.
    fn directory(&mut self, path: &RelPath) -> Result<Directory, PathError> {
        if path.is_root() {
            return Ok(Directory::Exists);
        }
        if let Some(known) = self.directories.get(path) {
            return Ok(*known);
        }
        let parent = path
            .parent()
            .expect("the workspace itself is handled above");
        let found = match self.directory(&parent)? {
            Directory::Exists => self.look_at_directory(path)?,
            other => other,
        };
        self.directories.insert(path.clone(), found);
        Ok(found)
    }

    fn look_at_directory(&self, path: &RelPath) -> Result<Directory, PathError> {
        let hidden = || Directory::Blocked((self.request.hidden)(path));
        let root = self.request.root;
        match root.open_directory(path) {
            Ok(_) => Ok(Directory::Exists),
            Err(Errno::NOENT) => Ok(Directory::Missing),
            Err(Errno::NOTDIR | Errno::LOOP) if self.leaving.contains(path) => {
                Ok(Directory::Missing)
            }
            Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(hidden()),
            Err(errno) => Err(PathError::at("open", root.disk_path(path))(errno)),
        }
    }

    /// Plans to make `path`, and what is missing above it.
    fn make(&mut self, path: &RelPath, mode: u32) -> Result<(), PathError> {
        let mut at = path.clone();
        let mut mode = mode;
        loop {
            if self.made.insert(at.clone(), mode).is_some() {
                return Ok(());
            }
            let above = at.parent().expect("the workspace itself is there");
            if matches!(self.directory(&above)?, Directory::Exists) {
                return self.check_directory(&above);
            }
            mode = self.request.modes.of_directory(&above);
            at = above;
        }
    }

    /// The special file at `path`, if one is there.
    fn special(&self, path: &RelPath) -> Result<Option<Seen>, PathError> {
        let root = self.request.root;
        match root.lstat(path) {
            Ok(stat) => Ok(match stat.file_type() {
                FileType::RegularFile | FileType::Directory | FileType::Symlink => None,
                _ => Some(Seen {
                    stat: EntryStat::of(&stat),
                    content: None,
                }),
            }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(PathError::at("look at", root.disk_path(path))(errno)),
        }
    }

    /// Makes sure that the entry at `path`, if there is one, may be renamed.
    fn check_entry(&mut self, path: &RelPath) -> Result<(), PathError> {
        self.check_parent(path)?;
        if let Some(stat) = self.statx(path)? {
            self.refuse_immutable(path, &stat)?;
            self.refuse_sticky(path, stat.stx_uid)?;
        }
        Ok(())
    }

    fn check_parent(&mut self, path: &RelPath) -> Result<(), PathError> {
        let parent = path.parent().expect("the workspace itself is no entry");
        match self.directory(&parent)? {
            Directory::Exists => self.check_directory(&parent),
            _ => Ok(()),
        }
    }

    /// Makes sure that names in a directory that exists may be changed.
    fn check_directory(&mut self, path: &RelPath) -> Result<(), PathError> {
        if !self.checked.insert(path.clone()) {
            return Ok(());
        }
        let root = self.request.root;
        let refused =
            |errno: Errno| PathError::at("change what is in", root.disk_path(path))(errno);
        let fd = root.open_directory(path).map_err(refused)?;
        let filesystem = rustix::fs::fstatvfs(&fd).map_err(refused)?;
        if filesystem.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(Errno::ROFS));
        }
        let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
            .map_err(refused)?;
        if is_immutable(&stat) {
            return Err(refused(Errno::PERM));
        }
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        match rustix::fs::accessat(&fd, c".", wanted, AtFlags::EACCESS) {
            Ok(()) => Ok(()),
            Err(Errno::ACCESS) if stat.stx_uid == rustix::process::geteuid().as_raw() => {
                self.closed
                    .insert(path.clone(), u32::from(stat.stx_mode) & RECORDED_BITS);
                Ok(())
            }
            Err(errno) => Err(refused(errno)),
        }
    }

    fn statx(&self, path: &RelPath) -> Result<Option<Statx>, PathError> {
        let root = self.request.root;
        let looked = if path.is_root() {
            rustix::fs::statx(
                root.as_fd(),
                c"",
                AtFlags::EMPTY_PATH,
                StatxFlags::BASIC_STATS,
            )
        } else {
            root.open_parent(path).and_then(|(parent, name)| {
                rustix::fs::statx(
                    &parent,
                    OsStr::from_bytes(name),
                    AtFlags::SYMLINK_NOFOLLOW,
                    StatxFlags::BASIC_STATS,
                )
            })
        };
        match looked {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(PathError::at("look at", root.disk_path(path))(errno)),
        }
    }

    fn refuse_immutable(&self, path: &RelPath, stat: &Statx) -> Result<(), PathError> {
        if is_immutable(stat) {
            let disk_path = self.request.root.disk_path(path);
            return Err(PathError::at("replace", disk_path)(Errno::PERM));
        }
        Ok(())
    }

    /// In a sticky directory only the owners of file and directory may move a file.
    fn refuse_sticky(&self, path: &RelPath, owner: u32) -> Result<(), PathError> {
        let user = rustix::process::geteuid();
        if user.is_root() || owner == user.as_raw() {
            return Ok(());
        }
        let parent = path.parent().expect("the workspace itself is no entry");
        let Some(above) = self.statx(&parent)? else {
            return Ok(());
        };
        if u32::from(above.stx_mode) & 0o1000 != 0 && above.stx_uid != user.as_raw() {
            let disk_path = self.request.root.disk_path(path);
            return Err(PathError::at("replace", disk_path)(Errno::PERM));
        }
        Ok(())
    }

    /// Stages everything that will be placed, and makes it durable.
    fn write_all(&mut self, area: &Area) -> Result<(), StageError> {
        let staged = area.staged().expect("it was just made");
        let first = self
            .steps
            .iter()
            .position(|s| matches!(s.action, Action::Place { .. }))
            .unwrap_or(self.steps.len());
        let is_single = self.writes.len() + self.copies.len() <= MAX_SINGLE_SYNCS;
        let mut inodes = Vec::new();
        for (write, _) in &self.writes {
            self.request.interrupt.check()?;
            let file = StagedFile {
                draft: self,
                directory: staged,
                name: (first + inodes.len()).to_string(),
                path: &write.path,
                is_synced: is_single,
            };
            inodes.push(file.write(write)?);
        }
        for (change, seen) in &self.copies {
            self.request.interrupt.check()?;
            let file = StagedFile {
                draft: self,
                directory: staged,
                name: (first + inodes.len()).to_string(),
                path: &change.path,
                is_synced: is_single,
            };
            inodes.push(file.copy(change, seen)?);
        }
        for (step, found) in self.steps[first..].iter_mut().zip(inodes) {
            step.action = Action::Place { inode: found };
        }
        if let Some(index) = self.request.index {
            let path = area.index_path();
            faults::before().map_err(PathError::at("write", &path))?;
            durable::replace(&path, index)?;
        }
        faults::before().map_err(PathError::at("sync", area.path()))?;
        let synced = if is_single {
            rustix::fs::fsync(staged)
        } else {
            rustix::fs::syncfs(staged)
        };
        Ok(synced.map_err(PathError::at("sync", area.path()))?)
    }
}

fn is_immutable(stat: &Statx) -> bool {
    stat.stx_attributes
        .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND)
}

/// One entry on its way to the staging directory.
struct StagedFile<'a> {
    draft: &'a Draft<'a>,
    directory: BorrowedFd<'a>,
    name: String,
    /// Where it will be placed.
    path: &'a RelPath,
    is_synced: bool,
}

impl StagedFile<'_> {
    fn at(&self, operation: &'static str) -> impl FnOnce(Errno) -> PathError {
        let path = self.draft.request.root.disk_path(self.path);
        move |errno| PathError::at(operation, path)(errno)
    }

    /// Stages a planned entry; answers with its inode.
    fn write(&self, write: &PlannedWrite) -> Result<u64, StageError> {
        let content = self.draft.request.content;
        if write.entry.kind == EntryKind::Symlink {
            let mut text = Vec::new();
            content(&write.entry.id, &mut text).map_err(|e| self.content_error(e))?;
            self.before("stage the link")?;
            rustix::fs::symlinkat(OsStr::from_bytes(&text), self.directory, &self.name)
                .map_err(self.at("stage the link"))?;
            let stat = root::lstat_at(self.directory, self.name.as_bytes())
                .map_err(self.at("look at what was staged for"))?;
            self.give_to_owner(&stat)?;
            return Ok(stat.inode);
        }
        let mut file = self.create()?;
        {
            let mut sink = io::BufWriter::with_capacity(128 * 1024, &mut file);
            content(&write.entry.id, &mut sink)
                .and_then(|()| sink.flush().map_err(ContentError::Sink))
                .map_err(|e| self.content_error(e))?;
        }
        self.finish(&file, write.mode.unwrap_or(0o644))
    }

    /// Stages the file that is there, with other permission bits; answers with its inode.
    fn copy(&self, change: &ModeChange, seen: &Seen) -> Result<u64, StageError> {
        let root = self.draft.request.root;
        let (parent, name) = root.open_parent(self.path).map_err(self.at("open"))?;
        let mut source = root::open_file_at(parent.as_fd(), name).map_err(self.at("open"))?;
        let mut file = self.create()?;
        self.before("stage")?;
        io::copy(&mut source, &mut file)
            .map_err(PathError::at("stage", root.disk_path(self.path)))?;
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
        self.finish(&file, change.to)
    }

    fn create(&self) -> Result<File, StageError> {
        self.before("stage")?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.directory, &self.name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(self.at("stage"))?;
        Ok(File::from(fd))
    }

    fn finish(&self, file: &File, mode: u32) -> Result<u64, StageError> {
        let stat = root::fstat(file).map_err(self.at("look at what was staged for"))?;
        self.give_to_owner(&stat)?;
        // After the owner: a change of owner may take bits away.
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode & RECORDED_BITS))
            .map_err(self.at("set the mode of what was staged for"))?;
        if self.is_synced {
            self.before("sync what was staged for")?;
            rustix::fs::fsync(file).map_err(self.at("sync what was staged for"))?;
        }
        Ok(stat.inode)
    }

    /// Gives what was staged to the owner of what it replaces, or of the directory it goes to.
    ///
    /// Only root can give files away; anybody else may set a group they belong to.
    fn give_to_owner(&self, staged: &Stat) -> Result<(), StageError> {
        let Some((owner, group)) = self.owner_of_place()? else {
            return Ok(());
        };
        let is_root = rustix::process::geteuid().is_root();
        let owner = (is_root && owner != staged.owner).then(|| Uid::from_raw(owner));
        let changed = rustix::fs::chownat(
            self.directory,
            &self.name,
            owner,
            Some(Gid::from_raw(group)),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        match changed {
            Err(errno) if is_root => {
                Err(self.at("set the owner of what was staged for")(errno).into())
            }
            _ => Ok(()),
        }
    }

    fn owner_of_place(&self) -> Result<Option<(u32, u32)>, StageError> {
        let mut at = Some(self.path.clone());
        while let Some(path) = at {
            if let Some(stat) = self.draft.statx(&path)? {
                return Ok(Some((stat.stx_uid, stat.stx_gid)));
            }
            at = path.parent();
        }
        Ok(None)
    }

    fn before(&self, operation: &'static str) -> Result<(), PathError> {
        faults::before().map_err(PathError::at(
            operation,
            self.draft.request.root.disk_path(self.path),
        ))
    }

    fn content_error(&self, error: ContentError) -> StageError {
        match error {
            ContentError::Store(source) => StageError::Store(source),
            ContentError::Sink(source) => StageError::Disk(PathError::at(
                "stage",
                self.draft.request.root.disk_path(self.path),
            )(source)),
        }
    }
}
