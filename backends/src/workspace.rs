//! A directory that is captured and restored: its root, its identity, its place in the state
//! directory, and its lock.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, PathError, printable};

/// Where Stillframe keeps everything that is its own. Private: mode 0700.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// A directory that is captured and restored. Its scope is everything below it.
///
/// Opening one writes nothing. Two spellings of a path, and a path through a link, give the same
/// workspace: it is known by its real path, and by device and inode.
#[derive(Clone, Debug)]
pub struct Workspace {
    disk_path: PathBuf,
    identity: Identity,
    store_path: PathBuf,
    state: StateDir,
}

/// What the kernel knows a directory by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The device that holds it.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// A workspace that no other engine can touch while this value lives.
///
/// The kernel holds the lock, so a crash lets go of it. It does not stop the user's editor: what
/// a restore is about to replace is compared with the guard first.
#[must_use = "dropping it gives the workspace back"]
#[derive(Debug)]
pub struct LockedWorkspace {
    workspace: Workspace,
    _lock: LockFile,
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
            | Self::StateInside { .. }
            | Self::InsideState { .. } => ErrorKind::InvalidOptions,
            Self::Unreadable(_) => ErrorKind::Unreadable,
            Self::BadStateDir { .. } => ErrorKind::Storage,
            Self::State(source) => source.storage_kind(),
        }
    }
}

/// Why a workspace could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else is at work there.
    #[error("{what} is in use by {holder}")]
    Busy {
        /// What is locked.
        what: String,
        /// What the holder wrote into the lock file: its process and command.
        holder: String,
    },
    /// The lock file could not be made.
    #[error("cannot lock")]
    Io(#[from] PathError),
}

impl LockError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Io(source) => source.storage_kind(),
        }
    }
}

impl StateDir {
    /// Opens the state directory, making it if need be; existing ones are made private again.
    ///
    /// A directory that belongs to another user is refused.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WorkspaceError> {
        let path = path.as_ref();
        make_private(path).map_err(WorkspaceError::State)?;
        let path = fs::canonicalize(path)
            .map_err(PathError::at("resolve", path))
            .map_err(WorkspaceError::State)?;
        let meta = fs::metadata(&path)
            .map_err(PathError::at("look at", &path))
            .map_err(WorkspaceError::State)?;
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me {
            let reason = format!("it belongs to user {}, this is user {me}", meta.uid());
            return Err(WorkspaceError::BadStateDir { path, reason });
        }
        if meta.mode() & 0o077 != 0 {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
                .map_err(PathError::at("make private", &path))
                .map_err(WorkspaceError::State)?;
        }
        Ok(Self { path })
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
}

/// Makes `path` and what is missing above it, readable by the owner alone, whatever the umask.
pub(crate) fn make_private(path: &Path) -> Result<(), PathError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(PathError::at("make the directory", path))
}

impl Workspace {
    /// Opens the directory at `path`. Writes nothing.
    pub fn open(path: impl AsRef<Path>, state: &StateDir) -> Result<Self, WorkspaceError> {
        let path = path.as_ref();
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
        if disk_path.starts_with(&state.path) {
            let state = state.path.clone();
            return Err(WorkspaceError::InsideState {
                workspace: disk_path,
                state,
            });
        }
        if state.path.starts_with(&disk_path) {
            return Err(WorkspaceError::StateInside {
                state: state.path.clone(),
                workspace: disk_path,
            });
        }
        let identity = Identity {
            device: meta.dev(),
            inode: meta.ino(),
        };
        let born_ns = meta.created().ok().and_then(|t| {
            t.duration_since(std::time::UNIX_EPOCH)
                .ok()
                .map(|d| d.as_nanos())
        });
        let store_path = registry::locate(state, &disk_path, identity, born_ns)?;
        Ok(Self {
            disk_path,
            identity,
            store_path,
            state: state.clone(),
        })
    }

    /// The directory: absolute, without links.
    pub fn disk_path(&self) -> &Path {
        &self.disk_path
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

    /// Waits for the lock, at most for `patience`; [`LockError::Busy`] names who holds it.
    ///
    /// The first lock makes the store's directory.
    pub fn lock(self, patience: Duration) -> Result<LockedWorkspace, LockError> {
        make_private(&self.store_path)?;
        registry::record(&self)?;
        let what = format!("the workspace {}", printable(&self.disk_path));
        let lock = LockFile::acquire(&self.store_path.join("lock"), &what, patience)?;
        Ok(LockedWorkspace {
            workspace: self,
            _lock: lock,
        })
    }
}

impl LockedWorkspace {
    /// Gives the lock back and keeps the workspace.
    pub fn unlock(self) -> Workspace {
        self.workspace
    }
}

impl std::ops::Deref for LockedWorkspace {
    type Target = Workspace;

    fn deref(&self) -> &Workspace {
        &self.workspace
    }
}

/// A lock that the kernel holds for this process and drops when it dies.
///
/// The file's text only informs. It is never deleted, because a file that is deleted while
/// somebody waits for it is locked by two.
#[derive(Debug)]
pub(crate) struct LockFile {
    _file: File,
}

impl LockFile {
    /// Waits at most `patience`. `what` is for the message.
    pub(crate) fn acquire(path: &Path, what: &str, patience: Duration) -> Result<Self, LockError> {
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(PathError::at("open the lock file", path))?;
        // A patience without end has no deadline.
        let deadline = Instant::now().checked_add(patience);
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        loop {
            match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if !is_over() => {
                    // flock has no timed form; a hundredth of a second is below what a person sees.
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    let _ = (&mut file).take(1024).read_to_string(&mut holder);
                    let holder = match holder.trim() {
                        "" => "another process".to_owned(),
                        text => crate::path::printable_bytes(text.as_bytes()),
                    };
                    return Err(LockError::Busy {
                        what: what.to_owned(),
                        holder,
                    });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(PathError::at("lock", path)(errno).into()),
            }
        }
        let holder = format!("process {} ({})\n", std::process::id(), command_name());
        // Best effort: the lock is the kernel's, the text is for whoever has to wait.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()));
        Ok(Self { _file: file })
    }
}

fn command_name() -> String {
    std::env::args_os().next().map_or_else(
        || "unknown".to_owned(),
        |arg| {
            Path::new(&arg)
                .file_name()
                .unwrap_or(&arg)
                .to_string_lossy()
                .into_owned()
        },
    )
}

/// Which store belongs to which directory.
mod registry {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "hex_path")]
        path: PathBuf,
        #[serde(flatten)]
        identity: Identity,
        born_ns: Option<u128>,
    }

    const FILE: &str = "workspace.json";

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
        let all = state.path.join("workspaces");
        // A store keeps its name when its directory moves, so the name that a path would get may
        // be taken by a directory that once was there: then the next one is tried.
        let mut own = None;
        for attempt in 0_u32.. {
            let mut hasher = blake3::Hasher::new();
            hasher
                .update(path.as_os_str().as_bytes())
                .update(&attempt.to_le_bytes());
            let place = all.join(&hasher.finalize().to_hex()[..32]);
            match read(&place.join(FILE)) {
                Some(record) if record.path == path => return Ok(place),
                Some(_) => {}
                None => {
                    own = Some(place);
                    break;
                }
            }
        }
        let own = own.expect("some name is free");
        let entries = match fs::read_dir(&all) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(own),
            Err(e) => return Err(WorkspaceError::State(PathError::at("list", &all)(e))),
        };
        for entry in entries.flatten() {
            let Some(record) = read(&entry.path().join(FILE)) else {
                continue;
            };
            if record.identity == identity && record.born_ns.is_some() && record.born_ns == born_ns
            {
                return Ok(entry.path());
            }
        }
        Ok(own)
    }

    /// Writes down which directory a store belongs to, if it is not written there already.
    pub(super) fn record(workspace: &Workspace) -> Result<(), PathError> {
        let file = workspace.store_path.join(FILE);
        let born_ns = fs::symlink_metadata(&workspace.disk_path)
            .and_then(|m| m.created())
            .ok()
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map(|d| d.as_nanos());
        let now = Record {
            path: workspace.disk_path.clone(),
            identity: workspace.identity,
            born_ns,
        };
        if read(&file).is_some_and(|r| {
            r.path == now.path && r.identity == now.identity && r.born_ns == now.born_ns
        }) {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&now).expect("a record is plain data");
        crate::worktree::durable::replace(&file, &text)
    }

    fn read(file: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
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
