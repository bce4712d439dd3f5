//! Preparing a restore. Missing space, content or permission is detected here, before anything in
//! the workspace is touched.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;

use rustix::fs::{
    Access, AtFlags, FileType, StatVfsMountFlags, Statx, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;

use crate::apply::Committed;
use crate::area::{self, Area};
use crate::contents::Contents;
use crate::coverage::Omission;
use crate::descriptor;
use crate::displaced::{self, Held, Listed};
use crate::durable;
use crate::error::{ErrorKind, PathError};
use crate::file_system::FileSystem;
use crate::file_system_of::file_system_of;
use crate::interrupted::Interrupted;
use crate::journal::{Action, Intent, Journal, OperationId, Seen, Staging, Step};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::remembered::Made;
use crate::restore_plan::{
    LostAttributes, ModeChange, RestorePlan, SkipReason, Skipped, Write as PlannedWrite,
};
use crate::root::{self, Root};
use crate::snapshot::SnapshotId;
use crate::stat_cache::EntryStat;
use crate::store_error::StoreError;
use crate::tree::{EntryKind, Modes, RECORDED_BITS};

use files::{Job, Owner, Stager, Syncing, What};

pub(crate) use holes::Filled;

mod files;
mod holes;

/// Beyond this many files one `syncfs` is cheaper than an `fsync` of each.
const MAX_SINGLE_SYNCS: usize = 64;

/// What is to be staged and carried out.
pub struct Request<'a> {
    /// The workspace.
    pub root: &'a Root,
    /// The workspace's directory in the state directory.
    pub store: &'a Path,
    /// The directory with the journal.
    pub journal: &'a Path,
    /// What is to be done.
    pub plan: &'a RestorePlan,
    /// The snapshot that holds what is replaced.
    pub guard: &'a SnapshotId,
    /// The permission bits of directories that have to be made.
    pub modes: &'a Modes,
    /// What the guard saw of a captured path.
    pub seen: &'a dyn Fn(&RelPath) -> Option<Seen>,
    /// Why a path is left alone when something that is no directory is above it.
    pub hidden: &'a dyn Fn(&RelPath) -> SkipReason,
    /// The content of what is written.
    pub contents: &'a dyn Contents,
    /// What is written that no snapshot holds, and where it lies.
    pub held: &'a Held,
    /// The bytes of a user's index, and of files of git's operations, that the repository's part of
    /// the restore needs.
    pub index: Option<&'a [u8]>,
    /// What the restore is part of.
    pub op: &'a Operation,
}

/// Why nothing could be staged. The workspace was not touched, and nothing is left over.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The disk refused, or would refuse later.
    #[error(transparent)]
    Disk(#[from] PathError),
    /// The file system has no space for the new files.
    #[error("{needed_bytes} bytes have to be written to {file_system}")]
    NoRoom {
        /// In all.
        needed_bytes: u64,
        /// The one that has too little.
        file_system: FileSystem,
        /// The disk's own word.
        source: PathError,
    },
    /// The content is missing or damaged.
    #[error(transparent)]
    Store(StoreError),
    /// No place for staging is on the workspace's file system.
    #[error("{0}")]
    NoPlace(String),
    /// Asked to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// Somebody changed this path since the guard.
    #[error("{0} changed since the guard")]
    Changed(RelPath),
}

/// New bytes on disk, and the steps that will place them. Nothing of the workspace was touched.
#[must_use = "commit or discard it"]
#[derive(Debug)]
pub struct Staged {
    journal: Journal,
    area: Area,
    steps: Vec<Step>,
    skipped: Vec<Skipped>,
    lost: Vec<LostAttributes>,
}

/// Checks that the plan can be carried out as far as that can be known, and stages all new bytes.
pub fn stage(request: &Request<'_>) -> Result<Staged, StageError> {
    let op = request.op;
    let operation = OperationId::random();
    let Some(place) = Area::place(request.root, request.store, operation)? else {
        return Err(StageError::NoPlace(Area::no_place(request.root)));
    };
    let mut draft = Draft::new(request);
    draft.survey()?;
    let staging = Staging {
        workspace_inode: request.root.identity().inode,
        directory: place.into_os_string().into_encoded_bytes(),
        guard: request.guard.clone(),
    };
    let journal = Journal::begin(op, request.journal, operation, &staging)?;
    let staged = Area::make(op, &staging, request.store)
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
            lost: draft.lost,
        }),
        Err(error) => {
            // Best effort beside the first error: recovery removes what is left.
            let _ = area::discard(op, &staging, request.store).and_then(|()| journal.remove());
            Err(match error {
                StageError::Disk(source) => draft.refused(source, &staging.path()),
                error => error,
            })
        }
    }
}

impl Staged {
    /// Paths that the plan names and that were found to be out of reach.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Files that did not get all extended attributes of what they replace, sorted by path.
    pub fn attributes_lost(&self) -> &[LostAttributes] {
        &self.lost
    }

    /// What will be put where nothing is, as it will be there.
    pub fn made(&self) -> Result<Made, PathError> {
        let staged = self.area.staged().expect("it was just made");
        let is_new =
            |step: &Step| matches!(step.action, Action::Place { .. }) && step.expected.is_none();
        let steps = self.steps.iter().enumerate().filter(|(_, s)| is_new(s));
        let made = steps.map(|(number, step)| {
            let stat = descriptor::lstat_at(staged, number.to_string().as_bytes()).map_err(
                PathError::at("look at what was staged in", self.area.path()),
            )?;
            Ok((step.path.clone(), EntryStat::of(&stat)))
        });
        made.collect::<Result<Vec<_>, _>>().map(Made::new)
    }

    /// Removes everything that was staged.
    pub fn discard(self, op: &Operation, store: &Path) -> Result<(), PathError> {
        area::discard(op, self.area.staging(), store)?;
        self.journal.remove()
    }

    /// Passes the point of no return. On an error nothing is left to recover, unless the journal
    /// could not even be removed. `repository` is what recovery is told by [`Intent::repository`].
    pub fn commit(
        mut self,
        op: &Operation,
        store: &Path,
        plan: &RestorePlan,
        repository: Option<Vec<u8>>,
    ) -> Result<Committed, CommitError> {
        let intent = Intent {
            plan: plan.id.clone(),
            target: plan.target.clone(),
            steps: self.steps.len() as u64,
            repository,
        };
        let intended = match seeded_bug!("renames-without-intent") {
            true => Ok(()),
            false => self.journal.intend(&intent, &self.steps),
        };
        match intended {
            Ok(()) => Ok(Committed::new(self.journal, self.area, self.steps)),
            // Whether the frame reached the disk is unknown, so it must not be found later.
            Err(error) => match self.discard(op, store) {
                Ok(()) => Err(CommitError::Refused(error)),
                Err(_) => Err(CommitError::Undecided(error)),
            },
        }
    }
}

/// Why the intent could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
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
    /// Those of them that no snapshot holds.
    displaced: BTreeMap<&'a RelPath, &'a Omission>,
    directories: HashMap<RelPath, Directory>,
    /// Directories that steps change, and have been looked at.
    checked: BTreeSet<RelPath>,
    /// Directories that their owner has to open up for the time of the restore, with their bits.
    closed: BTreeMap<RelPath, u32>,
    /// Directories to be made, with their bits.
    made: BTreeMap<RelPath, u32>,
    writes: Vec<(&'a PlannedWrite, Option<Seen>, Option<Owner>)>,
    copies: Vec<(&'a ModeChange, Seen, Option<Owner>)>,
    /// The directory that was looked into last: paths are sorted, so the next one is likely to be
    /// in it too.
    opened: RefCell<Option<(RelPath, Rc<OwnedFd>)>>,
    steps: Vec<Step>,
    skipped: Vec<Skipped>,
    lost: Vec<LostAttributes>,
}

impl<'a> Draft<'a> {
    fn new(request: &'a Request<'a>) -> Self {
        let plan = request.plan;
        let leaving = plan
            .removals
            .iter()
            .map(|r| &r.path)
            .chain(plan.displaced.iter().map(|omission| &omission.path))
            .collect();
        let displaced = plan.displaced.iter();
        let displaced = displaced.map(|omission| (&omission.path, omission));
        Self {
            request,
            leaving,
            displaced: displaced.collect(),
            directories: HashMap::new(),
            checked: BTreeSet::new(),
            closed: BTreeMap::new(),
            made: BTreeMap::new(),
            writes: Vec::new(),
            copies: Vec::new(),
            opened: RefCell::default(),
            steps: Vec::new(),
            skipped: Vec::new(),
            lost: Vec::new(),
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
    fn survey(&mut self) -> Result<(), StageError> {
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
        for omission in plan.displaced.iter().rev() {
            let path = &omission.path;
            let is_written = plan.writes.binary_search_by(|w| w.path.cmp(path)).is_ok();
            if is_written {
                continue;
            }
            match self.out_of_reach(omission)? {
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

    fn survey_write(&mut self, write: &'a PlannedWrite) -> Result<(), StageError> {
        let path = &write.path;
        let parent = path.parent().expect("the workspace itself is no entry");
        let mut there = None;
        match self.directory(&parent)? {
            Directory::Blocked(reason) => {
                self.skip(path, reason);
                return Ok(());
            }
            Directory::Missing => {
                let mode = self.request.modes.of_directory(&parent);
                self.make(&parent, mode)?;
            }
            Directory::Exists => there = self.check_entry(path)?,
        }
        if let Some(place) = self.request.held.place_of(&write.entry.id)
            && !self.can_be_named_again(place)
        {
            self.skip(path, SkipReason::Refused);
            return Ok(());
        }
        let owner = self.owner_of_place(path, there.as_ref())?;
        let expected = if write.current.is_some() {
            (self.request.seen)(path)
        } else if let Some(omission) = self.displaced.get(path) {
            self.out_of_reach(omission)?
        } else {
            self.writes.push((write, None, owner));
            return Ok(());
        };
        match expected {
            Some(stat) => self.writes.push((write, Some(stat), owner)),
            None => self.skip(path, SkipReason::ChangedMeanwhile),
        }
        Ok(())
    }

    /// Whether what lies at `place` can get a second name on the workspace's file system. Of what
    /// somebody else owns the kernel may refuse one.
    fn can_be_named_again(&self, place: &Path) -> bool {
        let user = rustix::process::geteuid();
        let found = descriptor::lstat_at(rustix::fs::CWD, place.as_os_str().as_bytes());
        found.is_ok_and(|found| {
            found.device == self.request.root.identity().device
                && (user.is_root() || found.owner == user.as_raw())
        })
    }

    fn survey_mode(
        &mut self,
        change: &'a ModeChange,
        modes: &mut Vec<Step>,
    ) -> Result<(), StageError> {
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
            let there = self.check_entry(path)?;
            let owner = self.owner_of_place(path, there.as_ref())?;
            self.copies.push((change, seen, owner));
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
        for (write, expected, _) in &self.writes {
            steps.push(step(&write.path, *expected, Action::Place { inode: 0 }));
        }
        for (change, seen, _) in &self.copies {
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
        // From the top down, as a directory may lie deeper than a stack does.
        let (mut unknown, mut at) = (Vec::new(), path.clone());
        let mut found = loop {
            let Some(above) = at.parent() else {
                break Directory::Exists;
            };
            if let Some(known) = self.directories.get(&at) {
                break *known;
            }
            unknown.push(std::mem::replace(&mut at, above));
        };
        for path in unknown.into_iter().rev() {
            if matches!(found, Directory::Exists) {
                found = self.look_at_directory(&path)?;
            }
            self.directories.insert(path, found);
        }
        Ok(found)
    }

    fn look_at_directory(&self, path: &RelPath) -> Result<Directory, PathError> {
        let hidden = || Directory::Blocked((self.request.hidden)(path));
        let root = self.request.root;
        match self.open(path) {
            Ok(_) => Ok(Directory::Exists),
            Err(Errno::NOENT) => Ok(Directory::Missing),
            Err(Errno::NOTDIR | Errno::LOOP) if self.leaving.contains(path) => {
                Ok(Directory::Missing)
            }
            Err(errno) if root::is_gone_or_replaced(errno) => Ok(hidden()),
            Err(errno) => Err(PathError::at("open", root.disk_path(path))(errno)),
        }
    }

    /// Plans to make `path`, and what is missing above it.
    fn make(&mut self, path: &RelPath, mode: u32) -> Result<(), StageError> {
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

    /// What the guard left out and is to be moved away, if it still looks as the guard saw it.
    fn out_of_reach(&self, omission: &Omission) -> Result<Option<Seen>, PathError> {
        let (root, path) = (self.request.root, &omission.path);
        match root.lstat(path) {
            Ok(stat) => {
                let is_it = match (stat.file_type(), omission.bytes) {
                    (FileType::Directory | FileType::Symlink, _) => false,
                    (FileType::RegularFile, Some(bytes)) => stat.size == bytes,
                    (FileType::RegularFile, None) => false,
                    (_, bytes) => bytes.is_none(),
                };
                Ok(is_it.then(|| Seen {
                    stat: EntryStat::of(&stat),
                    content: None,
                    is_racy: false,
                }))
            }
            Err(errno) if root::is_gone_or_replaced(errno) => Ok(None),
            Err(errno) => Err(PathError::at("look at", root.disk_path(path))(errno)),
        }
    }

    /// Opens the directory at `path`, if it is not the one that is open.
    fn open(&self, path: &RelPath) -> rustix::io::Result<Rc<OwnedFd>> {
        if let Some((at, fd)) = &*self.opened.borrow()
            && at == path
        {
            return Ok(Rc::clone(fd));
        }
        let fd = Rc::new(self.request.root.open_directory(path)?);
        self.opened.replace(Some((path.clone(), Rc::clone(&fd))));
        Ok(fd)
    }

    /// Makes sure that the entry at `path`, if there is one, may be renamed; answers with what is
    /// there.
    fn check_entry(&mut self, path: &RelPath) -> Result<Option<Statx>, StageError> {
        self.check_parent(path)?;
        let there = self.statx(path)?;
        if let Some(stat) = &there {
            self.refuse_immutable(path, stat)?;
            self.refuse_sticky(path, stat.stx_uid)?;
        }
        Ok(there)
    }

    /// Whom an entry at `path` is to belong to: as what is `there`, or as the nearest thing above.
    fn owner_of_place(
        &self,
        path: &RelPath,
        there: Option<&Statx>,
    ) -> Result<Option<Owner>, PathError> {
        let owner = |stat: &Statx| Owner {
            user: stat.stx_uid,
            group: stat.stx_gid,
        };
        if let Some(there) = there {
            return Ok(Some(owner(there)));
        }
        let mut at = path.parent();
        while let Some(above) = at {
            if let Some(stat) = self.statx(&above)? {
                return Ok(Some(owner(&stat)));
            }
            at = above.parent();
        }
        Ok(None)
    }

    fn check_parent(&mut self, path: &RelPath) -> Result<(), StageError> {
        let parent = path.parent().expect("the workspace itself is no entry");
        match self.directory(&parent)? {
            Directory::Exists => self.check_directory(&parent),
            _ => Ok(()),
        }
    }

    /// Makes sure that names in a directory that exists may be changed.
    fn check_directory(&mut self, path: &RelPath) -> Result<(), StageError> {
        if !self.checked.insert(path.clone()) {
            return Ok(());
        }
        let root = self.request.root;
        let refused =
            |errno: Errno| PathError::at("change what is in", root.disk_path(path))(errno);
        let fd = self.open(path).map_err(|errno| match errno {
            errno if root::is_gone_or_replaced(errno) => StageError::Changed(path.clone()),
            errno => refused(errno).into(),
        })?;
        let filesystem = rustix::fs::fstatvfs(&fd).map_err(refused)?;
        if filesystem.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(Errno::ROFS).into());
        }
        let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
            .map_err(refused)?;
        if is_immutable(&stat) {
            return Err(refused(Errno::PERM).into());
        }
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        match rustix::fs::accessat(&fd, c".", wanted, AtFlags::EACCESS) {
            Ok(()) => Ok(()),
            Err(Errno::ACCESS) if stat.stx_uid == rustix::process::geteuid().as_raw() => {
                self.closed
                    .insert(path.clone(), u32::from(stat.stx_mode) & RECORDED_BITS);
                Ok(())
            }
            Err(errno) => Err(refused(errno).into()),
        }
    }

    fn statx(&self, path: &RelPath) -> Result<Option<Statx>, PathError> {
        let root = self.request.root;
        let all = StatxFlags::BASIC_STATS;
        let looked = match path.parent() {
            None => rustix::fs::statx(root.as_fd(), c"", AtFlags::EMPTY_PATH, all),
            Some(parent) => self.open(&parent).and_then(|parent| {
                let name = OsStr::from_bytes(path.name());
                rustix::fs::statx(&*parent, name, AtFlags::SYMLINK_NOFOLLOW, all)
            }),
        };
        match looked {
            Ok(stat) => Ok(Some(stat)),
            Err(errno) if root::is_gone_or_replaced(errno) => Ok(None),
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

    /// Whether what is there, if anything, is a regular file.
    fn replaces_file(&self, write: &PlannedWrite) -> bool {
        match (write.current, self.displaced.get(&write.path)) {
            (Some(entry), _) => entry.kind != EntryKind::Symlink,
            (None, Some(omission)) => omission.bytes.is_some(),
            (None, None) => false,
        }
    }

    /// What the steps displace that no snapshot holds, by the names that it will have in the trash.
    fn listed(&self) -> Vec<Listed> {
        let steps = self.steps.iter().enumerate();
        let listed = steps.filter_map(|(number, step)| {
            let omission = (*self.displaced.get(&step.path)?).clone();
            let seen = step.expected.filter(|seen| seen.content.is_none())?;
            Some(Listed {
                omission,
                name: number.to_string(),
                stat: seen.stat,
            })
        });
        listed.collect()
    }

    /// What it means that the disk refused something of the private directory, which is gone by
    /// now.
    fn refused(&self, source: PathError, directory: &Path) -> StageError {
        let is_limit = Errno::from_io_error(&source.source) == Some(Errno::FBIG);
        match file_system_of(directory) {
            // What this process may write to a file, wherever that is.
            _ if is_limit => StageError::Disk(self.told_of_the_workspace(source, directory)),
            Some(file_system) if source.storage_kind() == ErrorKind::NoSpace => {
                StageError::NoRoom {
                    needed_bytes: self.needed_bytes(),
                    file_system,
                    source: self.told_of_the_workspace(source, directory),
                }
            }
            _ => StageError::Disk(source),
        }
    }

    /// The refusal as one of the workspace, if it is of a name in the private directory, which
    /// nobody knows.
    fn told_of_the_workspace(&self, source: PathError, directory: &Path) -> PathError {
        match source.path.starts_with(directory) {
            true => PathError::at("write to", self.request.root.disk_path(&RelPath::root()))(
                source.source,
            ),
            false => source,
        }
    }

    /// What all that is to be written has, in bytes, as far as it can be read. Reads it.
    fn needed_bytes(&self) -> u64 {
        let mut counted = Counted(0);
        for (write, _, _) in &self.writes {
            if self.request.held.place_of(&write.entry.id).is_none() {
                // The error to tell is that of the disk.
                let _ = self.request.contents.write(&write.entry.id, &mut counted);
            }
        }
        let copied = self.copies.iter().map(|(_, seen, _)| seen.stat.size);
        counted.0 + copied.sum::<u64>()
    }

    /// Stages everything that will be placed, and makes it durable.
    fn write_all(&mut self, area: &Area) -> Result<(), StageError> {
        let staged = area.staged().expect("it was just made");
        let first = self
            .steps
            .iter()
            .position(|s| matches!(s.action, Action::Place { .. }))
            .unwrap_or(self.steps.len());
        let writes = self.writes.iter();
        let held = self.request.held;
        let writes = writes.map(|(write, expected, owner)| {
            let what = match held.place_of(&write.entry.id) {
                Some(place) => What::Held(place),
                None => What::Entry(write),
            };
            (
                &write.path,
                what,
                *owner,
                expected.is_some() && self.replaces_file(write),
            )
        });
        let copies = self.copies.iter();
        let copies = copies
            .map(|(change, seen, owner)| (&change.path, What::Copy(change, *seen), *owner, true));
        let jobs: Vec<Job<'_>> = writes
            .chain(copies)
            .enumerate()
            .map(|(at, (path, what, owner, replaces))| Job {
                number: first + at,
                path,
                owner,
                replaces,
                what,
            })
            .collect();
        let syncing = match jobs.len() <= MAX_SINGLE_SYNCS {
            true => Syncing::Each,
            false => Syncing::Later,
        };
        let stager = Stager {
            root: self.request.root,
            directory: staged,
            disk_path: &area.path(),
            contents: self.request.contents,
            syncing,
            op: self.request.op,
            lost: Mutex::default(),
        };
        let inodes = stager.stage(&jobs)?;
        let mut lost = stager.lost.into_inner().expect("no panic while held");
        lost.sort_by(|a, b| a.path.cmp(&b.path));
        self.lost = lost;
        for (step, inode) in self.steps[first..].iter_mut().zip(inodes) {
            step.action = Action::Place { inode };
        }
        let displaced = self.listed();
        if !displaced.is_empty() {
            displaced::list(self.request.op, &area.path(), displaced)?;
        }
        if let Some(index) = self.request.index {
            durable::replace(self.request.op, &area.index_path(), index)?;
        }
        match syncing {
            Syncing::Each => area.sync_each(self.request.op)?,
            // The directories above are on the same file system.
            Syncing::Later => area.sync_all(self.request.op)?,
        }
        Ok(())
    }
}

/// Counts what is written to it.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_immutable(stat: &Statx) -> bool {
    stat.stx_attributes
        .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND)
}
