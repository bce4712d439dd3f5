//! A directory that is captured and restored: its root, its identity, its place in the state
//! directory, and its lock.

use std::any::Any;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, PathError, printable};
use crate::faults::Effect;
use crate::identity::Identity;
use crate::kept_open::KeptOpen;
use crate::lock::LockFile;
use crate::lock_error::LockError;
use crate::operation::Operation;
use crate::removal::Remover;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;

use crate::durable::{make_private, make_private_durably};
use crate::worktree::area;
use crate::worktree::memory::Memory;
use crate::worktree::root::Root;

/// In the state directory: where work trees of runs are.
pub(crate) const WORKTREES: &str = "worktrees";

/// In a store: what belongs to work trees of runs that keep their snapshots in it.
const RUNS: &str = "runs";

/// Where Stillframe keeps everything that is its own. Private: mode 0700.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    is_writable: bool,
}

/// A directory that is captured and restored. Its scope is everything below it.
///
/// Opening one writes nothing. Two spellings of a path, and a path through a link, give the same
/// workspace: it is known by its real path, and by device and inode.
///
/// As long as a value or a clone of it lives, it holds what the last capture found in memory, about
/// a hundred bytes for each file, so that the next capture need not read it.
#[derive(Clone, Debug)]
pub struct Workspace {
    disk_path: PathBuf,
    identity: Identity,
    store_path: PathBuf,
    /// For a run's work tree that keeps its snapshots in the store of another workspace: that one.
    store_of: Option<Arc<Self>>,
    state: StateDir,
    memory: Arc<Memory>,
    kept_open: Arc<KeptOpen>,
}

/// A workspace that no other engine can touch while this value lives.
///
/// The kernel holds the lock, so a crash releases it. It does not stop the user's editor: what a
/// restore is about to replace is compared with the guard first.
///
/// A capture that is stopped may still have files to remove when it has returned. A thread does
/// that, and the lock is given back when it is done, whatever becomes of this value.
#[must_use = "dropping it gives the workspace back"]
#[derive(Debug)]
pub struct LockedWorkspace {
    workspace: Workspace,
    lock: Arc<LockFile>,
}

/// Why a directory is no workspace, or the state directory no place for one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// No path was given.
    #[error("workspace path cannot be empty")]
    EmptyPath,
    /// There is something else at the path, or nothing.
    #[error("workspace path is not a directory: {}", printable(path))]
    NotADirectory {
        /// The path as it was given.
        path: PathBuf,
    },
    /// Nothing is at the path, where a workspace used to be.
    #[error(
        "workspace path is not a directory: {} is gone, and its snapshots are kept",
        printable(path)
    )]
    Gone {
        /// The path: absolute, without links.
        path: PathBuf,
    },
    /// The path cannot be looked at.
    #[error("workspace cannot be opened")]
    Unreadable(#[source] PathError),
    /// Snapshots would capture themselves.
    #[error(
        "the state directory {} lies inside the workspace {}; choose another with STILLFRAME_HOME",
        printable(state),
        printable(workspace)
    )]
    StateInside {
        /// The state directory.
        state: PathBuf,
        /// The workspace.
        workspace: PathBuf,
    },
    /// What the engine keeps is no workspace of a user's.
    #[error(
        "the workspace {} lies inside the state directory {}",
        printable(workspace),
        printable(state)
    )]
    InsideState {
        /// The workspace.
        workspace: PathBuf,
        /// The state directory.
        state: PathBuf,
    },
    /// The state directory is not usable.
    #[error("the state directory {} cannot be used: {reason}", printable(path))]
    BadStateDir {
        /// The state directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The state directory could not be made or read.
    #[error("the state directory cannot be used")]
    State(#[source] PathError),
}

impl WorkspaceError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::EmptyPath
            | Self::NotADirectory { .. }
            | Self::Gone { .. }
            | Self::StateInside { .. }
            | Self::InsideState { .. } => ErrorKind::InvalidOptions,
            Self::Unreadable(_) => ErrorKind::Unreadable,
            Self::BadStateDir { .. } => ErrorKind::Storage,
            Self::State(source) => source.storage_kind(),
        }
    }
}

impl StateDir {
    /// Opens the state directory, making it if need be; existing ones are made private again.
    ///
    /// A link to a directory is followed, once: the directory is what is opened, and checked. One
    /// that leads nowhere is refused, for what it leads to may only be unmounted. So is a directory
    /// that belongs to another user.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WorkspaceError> {
        Self::open_in(&Operation::unbounded(), path.as_ref())
    }

    pub(crate) fn open_in(op: &Operation, path: &Path) -> Result<Self, WorkspaceError> {
        if let Some(reason) = unmakeable(path) {
            let path = path.to_owned();
            return Err(WorkspaceError::BadStateDir { path, reason });
        }
        make_private_durably(op, path).map_err(WorkspaceError::State)?;
        let path = fs::canonicalize(path)
            .map_err(PathError::at("resolve", path))
            .map_err(WorkspaceError::State)?;
        let meta = fs::metadata(&path)
            .map_err(PathError::at("look at", &path))
            .map_err(WorkspaceError::State)?;
        if let Some(reason) = of_another_user(&meta) {
            return Err(WorkspaceError::BadStateDir { path, reason });
        }
        if meta.mode() & 0o077 != 0 {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
                .map_err(PathError::at("make private", &path))
                .map_err(WorkspaceError::State)?;
        }
        Ok(Self {
            path,
            is_writable: true,
        })
    }

    /// Opens a state directory that is there, to read in it. Nothing is made or changed, so it may
    /// be another user's, or on a file system that is mounted for reading alone.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Self, WorkspaceError> {
        let path = path.as_ref();
        let path = fs::canonicalize(path)
            .map_err(PathError::at("resolve", path))
            .map_err(WorkspaceError::State)?;
        Ok(Self {
            path,
            is_writable: false,
        })
    }

    /// Whether there is a directory at `path` in which this user cannot, or should not, write: it
    /// belongs to another user, or the file system or its permissions do not allow it.
    pub fn is_there_to_read(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        fs::metadata(path).is_ok_and(|found| {
            let is_refused = || rustix::fs::access(path, Access::WRITE_OK).is_err();
            found.is_dir() && (of_another_user(&found).is_some() || is_refused())
        })
    }

    /// Why nothing is written in one that was opened to read.
    pub fn unwritable(&self) -> io::Error {
        let looked = fs::metadata(&self.path).map(|found| of_another_user(&found));
        match looked {
            Err(e) => e,
            Ok(Some(reason)) => io::Error::new(io::ErrorKind::PermissionDenied, reason),
            Ok(None) => match rustix::fs::access(&self.path, Access::WRITE_OK) {
                Err(errno) => errno.into(),
                Ok(()) => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "it could not be written when it was opened",
                ),
            },
        }
    }

    /// Whether it was opened to be written to.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The directory to use when nothing else is said: `$STILLFRAME_HOME`, else
    /// `$XDG_STATE_HOME/stillframe`, else `~/.local/state/stillframe`; `None` without a home.
    ///
    /// `env` looks up an environment variable.
    pub fn default_path(env: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
        let dir = |name| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        dir("STILLFRAME_HOME")
            .or_else(|| {
                dir("XDG_STATE_HOME")
                    .filter(|p| p.is_absolute())
                    .map(|p| p.join("stillframe"))
            })
            .or_else(|| dir("HOME").map(|p| p.join(".local/state/stillframe")))
    }

    /// Where it is: absolute, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The workspaces that were ever locked, also those whose directories are gone; sorted by path.
    /// One whose directory cannot be said is left out.
    pub fn workspaces(&self) -> Result<Vec<Workspace>, WorkspaceError> {
        registry::all(self)
    }
}

/// Why there can be no directory at `path`, if something else is in its place.
fn unmakeable(path: &Path) -> Option<String> {
    if fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
        return Some("it is no directory".to_owned());
    }
    // Without a slash at the end, which would make the kernel follow a link.
    let path: PathBuf = path.components().collect();
    let lost = |path: &&Path| fs::symlink_metadata(path).is_ok() && is_nothing_behind(path);
    let link = path.ancestors().find(lost)?;
    let target = fs::read_link(link).ok()?;
    Some(format!(
        "{} is a link to {}, where nothing is",
        printable(link),
        printable(&target)
    ))
}

/// Whether nothing is where `path` leads to.
fn is_nothing_behind(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

impl Workspace {
    /// Opens the directory at `path`. Writes nothing.
    ///
    /// [`WorkspaceError::Gone`] if there is none, and the state directory knows it.
    pub fn open(path: impl AsRef<Path>, state: &StateDir) -> Result<Self, WorkspaceError> {
        let path = path.as_ref();
        match Self::open_directory(path, state) {
            Err(WorkspaceError::NotADirectory { path }) => match registry::gone(state, &path) {
                Some(gone) => Err(WorkspaceError::Gone {
                    path: gone.disk_path,
                }),
                None => Err(WorkspaceError::NotADirectory { path }),
            },
            opened => opened,
        }
    }

    /// As [`Workspace::open`]; a directory that is gone is the workspace that it was.
    ///
    /// Its snapshots can be listed and compared, and restoring one makes the directory again.
    /// Whatever needs the directory fails and says so.
    pub fn open_known(path: impl AsRef<Path>, state: &StateDir) -> Result<Self, WorkspaceError> {
        let path = path.as_ref();
        match Self::open_directory(path, state) {
            Err(WorkspaceError::NotADirectory { path }) => {
                registry::gone(state, &path).ok_or(WorkspaceError::NotADirectory { path })
            }
            opened => opened,
        }
    }

    /// The workspace of this [id](Workspace::id), wherever its directory lies by now: to read what
    /// is kept of it. `None`: nothing is.
    pub fn kept(id: &str, state: &StateDir) -> Option<Self> {
        registry::kept(state, id)
    }

    /// Whether nothing is at the workspace's path. What cannot be looked at is not gone.
    pub fn is_gone(&self) -> bool {
        is_nothing(&self.disk_path)
    }

    /// Opens the work tree of a run: the one directory below the state directory that may be a
    /// workspace, because whoever calls names it. It lies in `worktrees/` there.
    ///
    /// Its snapshots are kept in the store of the workspace `of`, where they outlive the directory;
    /// it has that one's [`Workspace::id`], and its lock: while one of the two is locked, so is the
    /// other. What captures leave for those that follow, and the journal of a restore, are its own.
    /// `None`: it has a store of its own, as the work tree of a bare repository does.
    ///
    /// [`WorkspaceError::InsideState`]: it lies somewhere else in the state directory.
    pub fn open_run_worktree(
        path: impl AsRef<Path>,
        state: &StateDir,
        of: Option<&Self>,
    ) -> Result<Self, WorkspaceError> {
        let found = Found::at(path.as_ref())?;
        if found.disk_path.parent() != Some(&*state.path.join(WORKTREES)) {
            found.refuse_state(state)?;
        }
        let own = || found.store(state);
        Ok(Self {
            store_path: of.map_or_else(own, |of| Ok(of.store_path.clone()))?,
            store_of: of.map(|of| Arc::new(of.clone())),
            disk_path: found.disk_path,
            identity: found.identity,
            state: state.clone(),
            memory: Arc::default(),
            kept_open: Arc::default(),
        })
    }

    fn open_directory(path: &Path, state: &StateDir) -> Result<Self, WorkspaceError> {
        let found = Found::at(path)?;
        found.refuse_state(state)?;
        Ok(Self {
            store_path: found.store(state)?,
            store_of: None,
            disk_path: found.disk_path,
            identity: found.identity,
            state: state.clone(),
            memory: Arc::default(),
            kept_open: Arc::default(),
        })
    }

    /// The directory: absolute, without links.
    pub fn disk_path(&self) -> &Path {
        &self.disk_path
    }

    /// Whether the directory has more than `most` entries at any depth, repository data aside, as
    /// far as they can be read. Looks at no more of it than it takes to say so.
    pub fn has_more_than(&self, most: u64) -> bool {
        stillframe_worktree::extent::has_more_than(&self.disk_path, most)
    }

    /// Opens the directory; an error if another one has taken its place.
    pub(crate) fn root(&self) -> Result<Root, PathError> {
        Root::open(&self.disk_path, self.identity)
    }

    /// What the kernel knows the directory by.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The name of this workspace's directory in the state directory: 32 hexadecimal digits.
    ///
    /// It stays the same while the directory keeps its place, and when it is moved as a whole.
    pub fn id(&self) -> &str {
        self.store_path
            .file_name()
            .and_then(|n| n.to_str())
            .expect("made of hexadecimal digits")
    }

    /// This workspace's directory in the state directory. It may not exist yet.
    pub fn store_path(&self) -> &Path {
        &self.store_path
    }

    /// The state directory that the store lies in.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// Where the state is that goes with the directory and not with its snapshots: the cache of a
    /// capture, and the journal of a restore. Of a workspace with a store of its own, that is the
    /// store's directory.
    pub(crate) fn own_path(&self) -> PathBuf {
        match &self.store_of {
            None => self.store_path.clone(),
            Some(_) => {
                let name = blake3::hash(self.disk_path.as_os_str().as_bytes()).to_hex();
                self.store_path.join(RUNS).join(&name[..32])
            }
        }
    }

    /// [`Workspace::own_path`] of all that have the same store.
    pub(crate) fn own_paths(&self) -> Vec<PathBuf> {
        let runs = fs::read_dir(self.store_path.join(RUNS));
        let runs = runs.into_iter().flatten().flatten();
        let mut all = vec![self.store_path.clone()];
        all.extend(runs.map(|run| run.path()));
        all
    }

    /// What captures leave for those that follow, as long as this value or a clone of it lives.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What a backend keeps open between operations, by its type.
    pub(crate) fn kept_open<T: Default + Any + Send + Sync>(&self) -> Arc<T> {
        self.kept_open.get()
    }

    /// Waits for the lock, at most for `lock_timeout`; [`LockError::Busy`] names who holds it.
    ///
    /// The first lock makes the store's directory.
    pub fn lock(
        self,
        op: &Operation,
        lock_timeout: Duration,
    ) -> Result<LockedWorkspace, LockError> {
        make_private(op, &self.own_path())?;
        registry::record(op, self.store_of.as_deref().unwrap_or(&self))?;
        let what = format!("the workspace {}", printable(&self.disk_path));
        let lock = LockFile::acquire(op, &self.store_path.join("lock"), &what, lock_timeout)?;
        Ok(LockedWorkspace {
            workspace: self,
            lock: Arc::new(lock),
        })
    }
}

/// A directory that is about to be a workspace.
struct Found {
    /// Absolute, without links.
    disk_path: PathBuf,
    identity: Identity,
    /// In nanoseconds since the Unix epoch, where that is known.
    born_ns: Option<u128>,
}

impl Found {
    fn at(path: &Path) -> Result<Self, WorkspaceError> {
        if path.as_os_str().is_empty() {
            return Err(WorkspaceError::EmptyPath);
        }
        let not_a_directory = || WorkspaceError::NotADirectory {
            path: path.to_owned(),
        };
        let disk_path = fs::canonicalize(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => not_a_directory(),
            _ => WorkspaceError::Unreadable(PathError::at("resolve", path)(source)),
        })?;
        let meta = fs::symlink_metadata(&disk_path)
            .map_err(PathError::at("look at", &disk_path))
            .map_err(WorkspaceError::Unreadable)?;
        if !meta.is_dir() {
            return Err(not_a_directory());
        }
        let born = meta.created().ok();
        let born = born.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(Self {
            disk_path,
            identity: Identity {
                device: meta.dev(),
                inode: meta.ino(),
            },
            born_ns: born.map(|d| d.as_nanos()),
        })
    }

    /// Refuses what is in the state directory, or has it within.
    fn refuse_state(&self, state: &StateDir) -> Result<(), WorkspaceError> {
        let (workspace, state) = (self.disk_path.clone(), state.path.clone());
        if workspace.starts_with(&state) {
            return Err(WorkspaceError::InsideState { workspace, state });
        }
        match state.starts_with(&workspace) {
            true => Err(WorkspaceError::StateInside { state, workspace }),
            false => Ok(()),
        }
    }

    /// Its store.
    fn store(&self, state: &StateDir) -> Result<PathBuf, WorkspaceError> {
        registry::locate(state, &self.disk_path, self.identity, self.born_ns)
    }
}

fn is_nothing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

impl LockedWorkspace {
    /// Makes the directory again, empty, if it is gone; answers with whether it was.
    ///
    /// It gets the permission bits that it had when it was last locked, and as root the owner of
    /// the directory above. The store stays the workspace's, which is known by its path; device
    /// and inode are the new directory's from then on. The directory above has to be there, without
    /// a link on the way to it and on the file system that the workspace was on: where that is only
    /// unmounted, nothing is gone. Nothing is made but the one directory.
    pub fn make_again(&mut self, op: &Operation) -> Result<bool, PathError> {
        let path = &self.workspace.disk_path;
        // The directory of a run's work tree is made with all that makes it one, or not at all.
        if !is_nothing(path) || self.workspace.store_of.is_some() {
            return Ok(false);
        }
        let at = |source: Errno| PathError::at("make the directory", path)(source);
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(at(Errno::NOENT));
        };
        let above = open_without_links(above).map_err(at)?;
        let found = rustix::fs::fstat(&above).map_err(at)?;
        if found.st_dev != self.workspace.identity.device {
            let elsewhere = io::Error::other(
                "the directory above is not on the file system that the workspace was on; \
                 if that is as it should be, make the directory and try again",
            );
            return Err(PathError::at("make the directory", path)(elsewhere));
        }
        let mode = registry::mode(&self.workspace).unwrap_or(0o700);
        rustix::fs::mkdirat(&above, name, Mode::RWXU).map_err(at)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&above, name, flags, Mode::empty()).map_err(at)?;
        if rustix::process::geteuid().is_root() {
            let (user, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
            rustix::fs::fchown(&made, Some(user), Some(group)).map_err(at)?;
        }
        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode)).map_err(at)?;
        rustix::fs::fsync(&above).map_err(at)?;
        let stat = rustix::fs::fstat(&made).map_err(at)?;
        self.workspace.identity = Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        registry::record(op, &self.workspace)?;
        Ok(true)
    }

    /// Takes back [`Self::make_again`], if nothing was put into the directory since.
    pub(crate) fn remove_again(&self) {
        // Best effort beside the first error: an empty directory is harmless.
        let _ = fs::remove_dir(&self.workspace.disk_path);
    }

    /// Removes what restores displaced whose guards are not among `guards`, which has to name every
    /// one that is kept. Somebody who forgot a guard was killed before it came to that; nobody else
    /// can tell what it is.
    pub fn drop_displaced_but(
        &mut self,
        op: &Operation,
        guards: &HashSet<SnapshotId>,
    ) -> Result<(), StoreError> {
        area::purge_strays(op, &self.workspace.store_path, guards)
    }

    /// Removes what goes with the directory of a run's work tree, once that is gone.
    pub(crate) fn forget_run(&self, op: &Operation) -> Result<(), PathError> {
        if self.store_of.is_none() {
            return Ok(());
        }
        let own = self.own_path();
        let removed = op.effect(Effect::Remove(&own));
        match removed.and_then(|()| fs::remove_dir_all(&own)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PathError::at("remove", own)(e)),
            _ => Ok(()),
        }
    }

    /// Who removes what an operation that is stopped leaves.
    pub(crate) fn remover(&self) -> Remover {
        Remover::new(&self.workspace.store_path, &self.lock)
    }

    /// Gives the lock back and keeps the workspace.
    pub fn unlock(self) -> Workspace {
        self.workspace
    }
}

/// Opens a directory by a path that had no link in it when it was resolved, and has none today.
fn open_without_links(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
        // Kernels before 5.6, and sandboxes that forbid what they do not know.
        Err(Errno::NOSYS | Errno::PERM) => match fs::canonicalize(path) {
            Ok(resolved) if resolved == path => rustix::fs::open(path, flags, Mode::empty()),
            Ok(_) => Err(Errno::LOOP),
            Err(e) => Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        },
        opened => opened,
    }
}

impl std::ops::Deref for LockedWorkspace {
    type Target = Workspace;

    fn deref(&self) -> &Workspace {
        &self.workspace
    }
}

/// That what was found is another user's, if it is.
fn of_another_user(found: &fs::Metadata) -> Option<String> {
    let me = rustix::process::geteuid().as_raw();
    (found.uid() != me).then(|| format!("it belongs to user {}, this is user {me}", found.uid()))
}

/// Which store belongs to which directory.
mod registry {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "hex_path")]
        path: PathBuf,
        #[serde(flatten)]
        identity: Identity,
        born_ns: Option<u128>,
        /// Permission bits. Records of older versions have none.
        #[serde(default)]
        mode: Option<u32>,
    }

    const FILE: &str = "workspace.json";

    /// Of that file: some times the longest path in hexadecimal digits.
    const MAX_BYTES: u64 = 64 << 10;

    /// In the state directory: the stores of all workspaces.
    const DIRECTORY: &str = "workspaces";

    /// The store of the directory at `path`, with its record; else where one would be made.
    fn place_of(state: &StateDir, path: &Path) -> (PathBuf, Option<Record>) {
        // A store keeps its name when its directory moves, so the name that a path would get may
        // be taken by a directory that once was there: then the next one is tried.
        let mut attempt = 0_u32;
        loop {
            let mut hasher = blake3::Hasher::new();
            hasher
                .update(path.as_os_str().as_bytes())
                .update(&attempt.to_le_bytes());
            let place = state
                .path
                .join(DIRECTORY)
                .join(&hasher.finalize().to_hex()[..32]);
            match read(&place.join(FILE)) {
                Some(record) if record.path != path => attempt += 1,
                found => return (place, found),
            }
        }
    }

    /// The workspace whose directory was at `path`, where nothing is today.
    pub(super) fn gone(state: &StateDir, path: &Path) -> Option<Workspace> {
        let above = match path.parent()? {
            above if above.as_os_str().is_empty() => Path::new("."),
            above => above,
        };
        let disk_path = fs::canonicalize(above).ok()?.join(path.file_name()?);
        if !is_nothing(&disk_path) {
            return None;
        }
        let (store_path, record) = place_of(state, &disk_path);
        Some(recorded(state, store_path, record?))
    }

    /// The workspace that a store belongs to by its record.
    fn recorded(state: &StateDir, store_path: PathBuf, record: Record) -> Workspace {
        Workspace {
            disk_path: record.path,
            identity: record.identity,
            store_path,
            store_of: None,
            state: state.clone(),
            memory: Arc::default(),
            kept_open: Arc::default(),
        }
    }

    /// The workspaces of all stores, sorted by path.
    pub(super) fn all(state: &StateDir) -> Result<Vec<Workspace>, WorkspaceError> {
        let stores = stores(state).map_err(WorkspaceError::State)?;
        let found = stores.into_iter().filter_map(|store_path| {
            let record = read(&store_path.join(FILE))?;
            Some(recorded(state, store_path, record))
        });
        let mut all: Vec<Workspace> = found.collect();
        all.sort_by(|a, b| a.disk_path.cmp(&b.disk_path));
        Ok(all)
    }

    /// The directories of all stores, in no order.
    fn stores(state: &StateDir) -> Result<Vec<PathBuf>, PathError> {
        let all = state.path.join(DIRECTORY);
        match fs::read_dir(&all) {
            Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(PathError::at("list", all)(e)),
        }
    }

    /// The workspace whose store has this name, as it was when it was last locked.
    pub(super) fn kept(state: &StateDir, id: &str) -> Option<Workspace> {
        let is_name = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let store_path = is_name.then(|| state.path.join(DIRECTORY).join(id))?;
        let record = read(&store_path.join(FILE))?;
        Some(Workspace {
            disk_path: record.path,
            identity: record.identity,
            store_path,
            store_of: None,
            state: state.clone(),
            memory: Arc::default(),
            kept_open: Arc::default(),
        })
    }

    /// The permission bits that the directory had when it was last locked.
    pub(super) fn mode(workspace: &Workspace) -> Option<u32> {
        read(&workspace.store_path.join(FILE))?.mode
    }

    /// Finds the store of a directory; the place for one if there is none yet.
    ///
    /// The path decides, because that is what a person means. A directory that was moved as a
    /// whole, or is reached through a bind mount, is found by device, inode and time of birth.
    pub(super) fn locate(
        state: &StateDir,
        path: &Path,
        identity: Identity,
        born_ns: Option<u128>,
    ) -> Result<PathBuf, WorkspaceError> {
        let own = match place_of(state, path) {
            (place, Some(_)) => return Ok(place),
            (place, None) => place,
        };
        let mut moved = None;
        for store in stores(state).map_err(WorkspaceError::State)? {
            let Some(record) = read(&store.join(FILE)) else {
                continue;
            };
            if record.path == path {
                return Ok(store);
            }
            if record.identity == identity && record.born_ns.is_some() && record.born_ns == born_ns
            {
                moved.get_or_insert(store);
            }
        }
        Ok(moved.unwrap_or(own))
    }

    /// Writes down which directory a store belongs to, if it is not written there already. What was
    /// written of a directory that is gone stays.
    pub(super) fn record(op: &Operation, workspace: &Workspace) -> Result<(), PathError> {
        let file = workspace.store_path.join(FILE);
        let found = fs::symlink_metadata(&workspace.disk_path);
        let known = read(&file);
        if known.is_some() && workspace.is_gone() {
            return Ok(());
        }
        let born_ns = found
            .as_ref()
            .ok()
            .and_then(|m| m.created().ok())
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map(|d| d.as_nanos());
        let now = Record {
            path: workspace.disk_path.clone(),
            identity: workspace.identity,
            born_ns,
            mode: found.ok().map(|m| m.mode() & crate::tree::RECORDED_BITS),
        };
        if known.is_some_and(|r| r == now) {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&now).expect("a record is plain data");
        crate::durable::replace(op, &file, &text)
    }

    fn read(file: &Path) -> Option<Record> {
        let bytes = crate::durable::read(file, MAX_BYTES).ok()??;
        serde_json::from_slice(&bytes).ok()
    }

    mod hex_path {
        use super::*;
        use std::ffi::OsString;
        use std::os::unix::ffi::OsStringExt as _;

        pub(super) fn serialize<S: serde::Serializer>(
            path: &Path,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            crate::path::serialize_lossless(path.as_os_str().as_bytes(), s)
        }

        pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
            d: D,
        ) -> Result<PathBuf, D::Error> {
            crate::path::deserialize_lossless(d).map(|b| PathBuf::from(OsString::from_vec(b)))
        }
    }
}

/// How long a test waits for its own lock: a program that another test of its process is about to
/// start has it for a moment.
#[cfg(test)]
pub(crate) const TEST_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A state directory, and the path of a workspace that was locked once, with mode 0750, and
    /// whose directory is gone.
    fn gone() -> (tempfile::TempDir, StateDir, PathBuf, String) {
        let base = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(base.path()).unwrap();
        let state = StateDir::open(root.join("state")).unwrap();
        let path = root.join("above/workspace");
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let workspace = Workspace::open(&path, &state).unwrap();
        let id = workspace.id().to_owned();
        drop(
            workspace
                .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
                .unwrap(),
        );
        fs::remove_dir(&path).unwrap();
        (base, state, path, id)
    }

    // "File exists", which says nothing to whoever set the link
    #[test]
    fn a_state_directory_may_be_a_link_to_a_directory_and_to_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(base.path()).unwrap();
        fs::create_dir(root.join("real")).unwrap();
        fs::set_permissions(root.join("real"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join("file"), "").unwrap();
        for (link, target) in [
            ("link", "real"),
            ("again", "link"),
            ("lost", "nowhere"),
            ("to-file", "file"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        for name in ["link", "again", "link/", "link/below"] {
            let opened = StateDir::open(root.join(name)).unwrap();
            let below = name.strip_prefix("link/").unwrap_or_default();
            assert_eq!(opened.path(), root.join("real").join(below), "{name}");
        }
        let made_private = fs::metadata(root.join("real")).unwrap();
        assert_eq!(made_private.mode() & 0o7777, 0o700);
        let state = StateDir::open(root.join("link")).unwrap();
        let refused = Workspace::open(&root, &state).unwrap_err();
        assert!(
            matches!(refused, WorkspaceError::StateInside { .. }),
            "{refused:?}"
        );
        for (name, why) in [
            ("lost", "lost is a link to nowhere, where nothing is"),
            ("lost/", "lost is a link to nowhere, where nothing is"),
            ("lost/below", "lost is a link to nowhere, where nothing is"),
            ("to-file", "it is no directory"),
            ("file", "it is no directory"),
        ] {
            let refused = StateDir::open(root.join(name)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
            let message = refused.to_string();
            assert!(message.contains(why) && message.contains(name), "{message}");
        }
        assert!(!root.join("nowhere").exists());
    }

    #[test]
    fn a_directory_that_is_gone_keeps_its_store_and_is_made_again_as_it_was() {
        let (_base, state, path, id) = gone();
        let refused = Workspace::open(&path, &state).unwrap_err();
        assert!(
            matches!(refused, WorkspaceError::Gone { .. }),
            "{refused:?}"
        );
        let known = Workspace::open_known(&path, &state).unwrap();
        assert_eq!(known.id(), id);
        assert!(known.is_gone());
        let mut locked = known
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        assert!(!path.exists(), "a lock makes nothing");
        assert!(locked.make_again(&Operation::unbounded()).unwrap());
        let made = fs::symlink_metadata(&path).unwrap();
        assert_eq!(made.mode() & 0o7777, 0o750);
        assert_eq!(locked.identity().inode, made.ino());
        assert!(
            !locked.make_again(&Operation::unbounded()).unwrap(),
            "it is there"
        );
        drop(locked);
        let opened = Workspace::open(&path, &state).unwrap();
        assert_eq!((opened.id(), opened.is_gone()), (&*id, false));
    }

    #[test]
    fn what_was_never_a_workspace_is_not_one_that_is_gone() {
        let (_base, state, path, _) = gone();
        for path in [
            path.with_file_name("other"),
            path.join("below"),
            path.join(".."),
        ] {
            for opened in [
                Workspace::open(&path, &state),
                Workspace::open_known(&path, &state),
            ] {
                let refused = opened.unwrap_err();
                assert!(
                    matches!(refused, WorkspaceError::NotADirectory { .. }),
                    "{refused:?}"
                );
            }
        }
        // Something else is in its place, be it a link that leads nowhere.
        symlink("nowhere", &path).unwrap();
        let refused = Workspace::open_known(&path, &state).unwrap_err();
        assert!(
            matches!(refused, WorkspaceError::NotADirectory { .. }),
            "{refused:?}"
        );
    }

    #[test]
    fn a_directory_is_made_again_only_where_it_was() {
        let (base, state, path, _) = gone();
        let above = path.parent().unwrap();
        let mut locked = Workspace::open_known(&path, &state)
            .unwrap()
            .lock(&Operation::unbounded(), TEST_LOCK_TIMEOUT)
            .unwrap();
        let moved = base.path().join("moved");
        fs::rename(above, &moved).unwrap();
        let error = locked.make_again(&Operation::unbounded()).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
        symlink(&moved, above).unwrap();
        locked
            .make_again(&Operation::unbounded())
            .expect_err("not through a link that has come since");
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
        // Another file system where the directory above was: that one is only unmounted.
        fs::remove_file(above).unwrap();
        fs::rename(&moved, above).unwrap();
        locked.workspace.identity.device += 1;
        locked.make_again(&Operation::unbounded()).unwrap_err();
        assert!(!path.exists());
    }
}
