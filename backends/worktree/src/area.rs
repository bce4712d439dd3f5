//! The private directory of a restore, with staged and displaced files.
//!
//! It is outside of the workspace and on the same mount, because entries are only renamed between
//! the two: in the store if possible, else beside the workspace.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::clock::now_ns;
use crate::descriptor;
use crate::durable;
use crate::error::{PathError, printable};
use crate::faults::Effect;
use crate::journal::{Action, OperationId, Staging, Step};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::problem::Problem;
use crate::remembered::{self, Remembered};
use crate::root::Root;
use crate::snapshot::SnapshotId;
use crate::store_error::StoreError;

/// The prefix of a private directory beside the workspace.
const BESIDE_PREFIX: &str = ".stillframe-";
/// The prefix of a private directory in the store.
const STORE_PREFIX: &str = "restore-";
/// In the store: which private directory holds the trash of which guard.
const TRASH_INDEX: &str = "trash";
/// How the name of a half-made record of the workspace begins.
const UNLOCKED_LEFTOVER: &[u8] = b".tmp-workspace.json-";
const HOUR_NS: i64 = 3_600_000_000_000;
/// The directory of what waits to be placed, and of what that displaced.
const STAGED: &str = "staged";
/// The directory of what was displaced by a restore that is done.
const TRASH: &str = "trash";
/// The index of the user's repository, staged beside the entries.
const INDEX: &str = "index";
/// Far above the longest path that the kernel takes.
const MAX_POINTER_BYTES: u64 = 64 * 1024;

/// Whether a directory of this name is a private one of a restore of some workspace below: a
/// workspace above leaves it out, and says so.
pub(crate) fn is_private_name(name: &[u8]) -> bool {
    let id = name.strip_prefix(BESIDE_PREFIX.as_bytes());
    id.is_some_and(OperationId::is_one)
}

/// Whether something that these steps displace lies in the private directory, so that they were
/// begun.
pub(crate) fn has_displaced(staging: &Staging, steps: &[Step]) -> bool {
    let directory = staging.path();
    let inode_in = |place: &str, number: usize| {
        let path = directory.join(place).join(number.to_string());
        fs::symlink_metadata(path).ok().map(|found| found.ino())
    };
    steps.iter().enumerate().any(|(number, step)| {
        let staged = inode_in(STAGED, number);
        let is_displaced = match step.action {
            Action::Place { inode } => staged.is_some_and(|found| found != inode),
            Action::Remove => staged.is_some(),
            Action::MakeDirectory | Action::RemoveDirectory | Action::SetMode { .. } => false,
        };
        is_displaced || inode_in(TRASH, number).is_some()
    })
}

/// Makes a private directory in `parent`, for what is about to get a name there. A workspace around
/// it leaves it out, and so does git.
pub fn make_beside(op: &Operation, parent: &Path) -> Result<PathBuf, PathError> {
    let path = parent.join(format!("{BESIDE_PREFIX}{}", OperationId::random()));
    op.effect(Effect::MakeDirectory(&path))
        .and_then(|()| fs::DirBuilder::new().mode(0o700).create(&path))
        .map_err(PathError::at("make the directory", &path))?;
    let ignored = path.join(".gitignore");
    if let Err(error) = fs::write(&ignored, b"*\n") {
        // Best effort: the first error is the one to tell.
        let _ = remove_area(op, &path);
        return Err(PathError::at("write", &ignored)(error));
    }
    Ok(path)
}

/// The private directory that is for the one at `directory` alone, whoever makes it: beside it, and
/// of a name that comes from its own.
pub fn beside(directory: &Path) -> PathBuf {
    let digits = blake3::hash(directory.as_os_str().as_bytes()).to_hex();
    directory.with_file_name(format!("{BESIDE_PREFIX}{}", &digits[..32]))
}

/// Removes a directory that [`make_beside`] made, whatever permission bits what is in it has got.
/// That there is none is fine.
pub fn remove_beside(op: &Operation, path: &Path) -> Result<(), PathError> {
    if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    open_all(path);
    remove_area(op, path)
}

/// Lets the owner into every directory below `path`.
fn open_all(path: &Path) {
    for entry in walkdir::WalkDir::new(path).follow_links(false) {
        // If its permissions cannot be changed, its removal reports the error.
        if let Ok(entry) = entry
            && entry.file_type().is_dir()
        {
            let _ = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700));
        }
    }
}

/// Removes what a restore staged without having touched the workspace.
pub fn discard(op: &Operation, staging: &Staging, store: &Path) -> Result<(), PathError> {
    remove_area(op, &staging.path())?;
    forget_trash(op, store, &staging.guard)
}

/// Removes what a finished restore leaves behind, but for what it displaced.
pub fn reap(op: &Operation, staging: &Staging, store: &Path) -> Result<(), PathError> {
    let directory = staging.path();
    let is_trash_empty = match fs::read_dir(directory.join(TRASH)) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => true,
        Err(e) => return Err(PathError::at("list the trash in", directory)(e)),
    };
    if is_trash_empty {
        return discard(op, staging, store);
    }
    remove_tree(op, &directory.join(STAGED))?;
    remove_file(op, &directory.join(INDEX))
}

/// Removes what the restores with these guards displaced, and what is remembered of them. With none
/// it does nothing.
///
/// To be called when a guard is forgotten: until then the trash is a second copy of what the guard
/// holds, with the owners, times and attributes that no snapshot has.
pub fn purge_trashes(
    op: &Operation,
    store: &Path,
    guards: &[SnapshotId],
) -> Result<(), StoreError> {
    for guard in guards {
        purge_trash(op, store, guard)?;
    }
    Ok(())
}

/// See [`purge_trashes`].
fn purge_trash(op: &Operation, store: &Path, guard: &SnapshotId) -> Result<(), StoreError> {
    if let Some(directory) = trash_of(store, guard)? {
        remove_area(op, &directory)?;
    }
    Remembered::of(store).forget_made(op, guard)?;
    Ok(forget_trash(op, store, guard)?)
}

/// Moves the whole directory `root` to the trash of `guard`, durably. May be repeated, and then
/// makes no second trash.
pub fn displace_directory(
    op: &Operation,
    root: &Root,
    store: &Path,
    guard: &SnapshotId,
) -> Result<(), StoreError> {
    let path = root.disk_path(&RelPath::root());
    let directory = match Area::place(root, store, OperationId::of(guard))? {
        Some(directory) => directory,
        None => return Err(StoreError::Unsupported(Area::no_place(root))),
    };
    let trash = directory.join(TRASH);
    durable::make_private(op, &trash)?;
    durable::make_private(op, &store.join(TRASH_INDEX))?;
    let pointer = store.join(TRASH_INDEX).join(guard.as_str());
    durable::replace(op, &pointer, directory.as_os_str().as_bytes())?;
    // What an earlier call has moved keeps its place.
    let free = (0..).map(|number: u32| trash.join(number.to_string()));
    let mut free = free.filter(|place| fs::symlink_metadata(place).is_err());
    let place = free.next().expect("there is no end of numbers");
    op.effect(Effect::Rename {
        from: &path,
        to: &place,
    })
    .and_then(|()| fs::rename(&path, &place))
    .map_err(PathError::at("move to the trash", &path))?;
    for synced in [
        Some(&*trash),
        Some(&*directory),
        directory.parent(),
        path.parent(),
    ] {
        synced.map_or(Ok(()), |synced| durable::sync_directory(op, synced))?;
    }
    Ok(())
}

/// Removes what restores displaced, and what is remembered of them, whose guards are not among
/// `guards`: the process that removed these guards was killed before it removed their trash.
pub fn purge_strays(
    op: &Operation,
    store: &Path,
    guards: &HashSet<SnapshotId>,
) -> Result<(), StoreError> {
    let mut strays = HashSet::new();
    for directory in [TRASH_INDEX, remembered::MADE] {
        strays.extend(guards_in(&store.join(directory))?);
    }
    let strays: Vec<SnapshotId> = strays.difference(guards).cloned().collect();
    purge_trashes(op, store, &strays)
}

/// The guards by whose ids files of a directory are named.
fn guards_in(directory: &Path) -> Result<Vec<SnapshotId>, PathError> {
    let entries = list(directory)?;
    let guard = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.iter().filter_map(guard).collect())
}

/// Removes the files beside the stores of a workspace that work which was interrupted left half
/// made.
///
/// The caller holds the lock of the workspace, so that nobody else is about to give one its name;
/// but for the record of the workspace, which is written before the lock is had. One of those is
/// left alone for an hour.
pub fn reap_leftovers(op: &Operation, store: &Path) -> Result<(), PathError> {
    let long_ago_ns = now_ns(rustix::time::ClockId::Realtime).saturating_sub(HOUR_NS);
    for (path, meta) in leftovers(store)? {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let changed_ns = meta.mtime().saturating_mul(1_000_000_000);
        if !name.starts_with(UNLOCKED_LEFTOVER) || changed_ns < long_ago_ns {
            durable::remove_file(op, &path)?;
        }
    }
    Ok(())
}

/// Half-made files beside the stores of a workspace.
fn leftovers(store: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>, PathError> {
    let mut found = Vec::new();
    for directory in [
        store.to_owned(),
        store.join(TRASH_INDEX),
        store.join(remembered::MADE),
    ] {
        for entry in list(&directory)? {
            let is_ours = entry
                .file_name()
                .as_bytes()
                .starts_with(durable::STAGED_PREFIX.as_bytes());
            if let Ok(meta) = entry.metadata()
                && is_ours
                && meta.is_file()
            {
                found.push((entry.path(), meta));
            }
        }
    }
    Ok(found)
}

/// What is in a directory; nothing, if there is none.
fn list(path: &Path) -> Result<Vec<fs::DirEntry>, PathError> {
    match fs::read_dir(path) {
        Ok(entries) => entries
            .collect::<io::Result<Vec<_>>>()
            .map_err(PathError::at("list", path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(PathError::at("list", path)(e)),
    }
}

/// The bytes that displaced files of all restores of this workspace occupy, wherever they lie, and
/// half-made files beside its stores.
pub fn bytes_beside(store: &Path) -> Result<u64, StoreError> {
    let mut bytes = leftovers(store)?.iter().map(|(_, meta)| meta.len()).sum();
    for guard in guards_in(&store.join(TRASH_INDEX))? {
        let Some(directory) = trash_of(store, &guard)? else {
            continue;
        };
        // The directory of a run is there as a whole.
        let below = walkdir::WalkDir::new(directory.join(TRASH)).min_depth(1);
        for entry in below {
            match entry.and_then(|entry| entry.metadata()) {
                Ok(meta) => bytes += meta.blocks() * 512,
                Err(e) if e.io_error().map(io::Error::kind) == Some(io::ErrorKind::NotFound) => {}
                Err(e) => {
                    let path = e.path().unwrap_or(&directory).to_owned();
                    return Err(PathError::at("look at", path)(io::Error::from(e)).into());
                }
            }
        }
    }
    Ok(bytes)
}

/// The bytes of all files of the store of a workspace at `store`, whatever they are for, and of
/// what restores of it have displaced, wherever that lies. A hard link counts like any other file.
pub fn bytes_of_all(op: &Operation, store: &Path) -> Result<u64, StoreError> {
    let mut bytes = below(op, store)?;
    for guard in guards_in(&store.join(TRASH_INDEX))? {
        let trash = trash_of(store, &guard)?;
        if let Some(trash) = trash.filter(|trash| !trash.starts_with(store)) {
            bytes += below(op, &trash)?;
        }
    }
    Ok(bytes)
}

fn below(op: &Operation, directory: &Path) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for entry in walkdir::WalkDir::new(directory) {
        op.check()?;
        match entry.and_then(|entry| entry.metadata()) {
            Ok(meta) if meta.is_file() => bytes += meta.len(),
            Ok(_) => {}
            // Another process tidied up.
            Err(e) if e.io_error().map(io::Error::kind) == Some(io::ErrorKind::NotFound) => {}
            Err(e) => {
                let path = e.path().unwrap_or(directory).to_owned();
                return Err(PathError::at("look at", path)(io::Error::from(e)).into());
            }
        }
    }
    Ok(bytes)
}

/// The private directory of a restore, held open.
#[derive(Debug)]
pub struct Area {
    staging: Staging,
    /// `None` if it was gone when a recovery looked for it.
    staged: Option<OwnedFd>,
    trash: Option<OwnedFd>,
}

impl Area {
    /// Chooses where to stage; `None` if no directory outside of the workspace is on its mount
    /// and can be written to.
    pub fn place(
        root: &Root,
        store: &Path,
        operation: OperationId,
    ) -> Result<Option<PathBuf>, PathError> {
        let workspace = root.disk_path(&RelPath::root());
        let home = Mount::of(root.as_fd()).map_err(PathError::at("look at", &workspace))?;
        if Mount::at(store).is_some_and(|m| m == home) {
            return Ok(Some(store.join(format!("{STORE_PREFIX}{operation}"))));
        }
        let Some(parent) = workspace.parent() else {
            return Ok(None);
        };
        let is_open = Mount::at(parent).is_some_and(|m| m == home)
            && rustix::fs::accessat(
                rustix::fs::CWD,
                parent,
                Access::WRITE_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            )
            .is_ok();
        Ok(is_open.then(|| parent.join(format!("{BESIDE_PREFIX}{operation}"))))
    }

    /// Why nothing can be restored where [`Area::place`] finds no place.
    pub fn no_place(root: &Root) -> String {
        let workspace = root.disk_path(&RelPath::root());
        let name = printable(&workspace);
        let above = workspace.parent().and_then(Mount::at);
        match above.is_some_and(|above| Mount::of(root.as_fd()).ok() != Some(above)) {
            true => format!(
                "{name} is a mount point, so that no directory outside of it is on its file system"
            ),
            false => format!(
                "{name} is on another file system than the state directory, and the directory above \
                 it cannot be written to; choose a state directory on that file system with \
                 STILLFRAME_HOME"
            ),
        }
    }

    /// Makes the directory, and notes whose trash it will hold. A power cut may take the directory
    /// until it is synced.
    pub fn make(op: &Operation, staging: &Staging, store: &Path) -> Result<Self, PathError> {
        let path = staging.path();
        let make = |path: &Path| {
            op.effect(Effect::MakeDirectory(path))
                .and_then(|()| fs::DirBuilder::new().mode(0o700).create(path))
                .map_err(PathError::at("make the directory", path))
        };
        make(&path)?;
        if path
            .file_name()
            .is_some_and(|name| is_private_name(name.as_bytes()))
        {
            // It may lie in a work tree of the user's, where git is to take no notice of it.
            durable::replace(op, &path.join(".gitignore"), b"*\n")?;
        }
        for name in [STAGED, TRASH] {
            make(&path.join(name))?;
        }
        let pointers = store.join(TRASH_INDEX);
        if !pointers.is_dir() {
            make(&pointers)?;
        }
        durable::replace(
            op,
            &pointers.join(staging.guard.as_str()),
            &staging.directory,
        )?;
        let open = |name: &str| {
            let path = path.join(name);
            open_private(&path).map_err(PathError::at("open", path))
        };
        Ok(Self {
            staged: Some(open(STAGED)?),
            trash: Some(open(TRASH)?),
            staging: staging.clone(),
        })
    }

    /// Opens the directory of a restore that was interrupted, as far as it is there.
    pub fn reopen(staging: Staging) -> Self {
        let path = staging.path();
        let [staged, trash] = [STAGED, TRASH].map(|name| open_private(&path.join(name)).ok());
        match staged {
            Some(_) => Self {
                staging,
                staged,
                trash,
            },
            // It had become the trash. A power cut may have kept that, and not all of what came
            // before it.
            None => Self {
                staging,
                staged: trash,
                trash: None,
            },
        }
    }

    /// Makes the trash of everything that was displaced, once all steps are carried out. `unused`
    /// are the names and inodes of what was staged for those that were not: it is removed.
    ///
    /// May be repeated. A power cut may undo it until [`Area::sync_displaced`].
    pub(crate) fn keep_displaced(
        &self,
        op: &Operation,
        unused: &[(String, u64)],
    ) -> Result<(), PathError> {
        let path = self.path();
        let (from, to) = (path.join(STAGED), path.join(TRASH));
        let Ok(staged) = self.staged() else {
            return Ok(());
        };
        for (name, inode) in unused {
            // Under the same name may be what was displaced.
            let is_unused =
                descriptor::lstat_at(staged, name.as_bytes()).is_ok_and(|s| s.inode == *inode);
            if is_unused {
                op.effect(Effect::Remove(&from.join(name)))
                    .and_then(|()| Ok(rustix::fs::unlinkat(staged, name, AtFlags::empty())?))
                    .map_err(PathError::at("remove", from.join(name)))?;
            }
        }
        let rename = |from: &Path, to: &Path| {
            op.effect(Effect::Rename { from, to })
                .and_then(|()| fs::rename(from, to))
        };
        let renamed = rename(&from, &to);
        match renamed.as_ref().map_err(io::Error::kind) {
            Ok(()) => return Ok(()),
            // It is the trash already, or was taken away by somebody.
            Err(io::ErrorKind::NotFound) => return Ok(()),
            Err(io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {}
            Err(_) => return renamed.map_err(PathError::at("rename", from)),
        }
        // Where two entries cannot be exchanged, some of what was displaced is in the trash.
        for entry in fs::read_dir(&from).map_err(PathError::at("list", &from))? {
            let name = entry.map_err(PathError::at("list", &from))?.file_name();
            rename(&from.join(&name), &to.join(&name))
                .map_err(PathError::at("move to the trash", from.join(&name)))?;
        }
        Ok(())
    }

    /// Makes what was displaced, and its names, survive a power cut.
    pub(crate) fn sync_displaced(&self, op: &Operation) -> Result<(), PathError> {
        let path = self.path();
        let synced = |fd: BorrowedFd<'_>, path: &Path| {
            op.effect(Effect::SyncDirectory(path))
                .and_then(|()| Ok(rustix::fs::fsync(fd)?))
                .map_err(PathError::at("sync the directory", path))
        };
        for directory in [self.staged(), self.trash()].into_iter().flatten() {
            synced(directory, &path)?;
        }
        match path.is_dir() {
            true => durable::sync_directory(op, &path),
            false => Ok(()),
        }
    }

    /// Makes the names in the directory survive a power cut, and its own.
    pub(crate) fn sync_each(&self, op: &Operation) -> Result<(), PathError> {
        let path = self.path();
        durable::sync_directory(op, &path.join(STAGED))?;
        durable::sync_directory(op, &path)?;
        match path.parent() {
            Some(parent) => durable::sync_directory(op, parent),
            None => Ok(()),
        }
    }

    /// Makes everything survive a power cut that is on the file system of the directory: what was
    /// staged, its names, and the directory's own.
    pub fn sync_all(&self, op: &Operation) -> Result<(), PathError> {
        durable::sync_file_system(op, &self.path().join(STAGED))
    }

    /// Where it is, as the journal says it.
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.staging.path()
    }

    /// Where the index of the user's repository is staged, with the files of git's operations
    /// behind it.
    pub(crate) fn index_path(&self) -> PathBuf {
        self.path().join(INDEX)
    }

    /// The directory of what waits to be placed.
    pub fn staged(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.staged.as_ref().map(AsFd::as_fd).ok_or(Errno::NOENT)
    }

    /// The directory of what was displaced.
    pub(crate) fn trash(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.trash.as_ref().map(AsFd::as_fd).ok_or(Errno::NOENT)
    }
}

/// What decides whether a rename between two directories is possible at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mount {
    device: (u32, u32),
    /// `None` where the kernel does not tell.
    id: Option<u64>,
}

impl Mount {
    fn of(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, flags)?;
        Ok(Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            id: descriptor::mount_in(&stat),
        })
    }

    fn at(path: &Path) -> Option<Self> {
        let fd = open_private(path).ok()?;
        Self::of(fd.as_fd()).ok()
    }
}

fn open_private(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// The private directory that holds the trash of `guard`.
pub(crate) fn trash_of(store: &Path, guard: &SnapshotId) -> Result<Option<PathBuf>, StoreError> {
    let pointer = store.join(TRASH_INDEX).join(guard.as_str());
    let Some(bytes) = durable::read(&pointer, MAX_POINTER_BYTES)? else {
        return Ok(None);
    };
    Ok(Some(PathBuf::from(OsString::from_vec(bytes))))
}

fn forget_trash(op: &Operation, store: &Path, guard: &SnapshotId) -> Result<(), PathError> {
    remove_file(op, &store.join(TRASH_INDEX).join(guard.as_str()))
}

/// Where what the restore with this private directory displaced lies.
pub(crate) fn trash_in(directory: &Path) -> PathBuf {
    directory.join(TRASH)
}

/// Removes a private directory of ours; anything else at the path is left alone.
fn remove_area(op: &Operation, path: &Path) -> Result<(), PathError> {
    let is_ours = path.file_name().is_some_and(|name| {
        let name = name.as_bytes();
        name.starts_with(BESIDE_PREFIX.as_bytes()) || name.starts_with(STORE_PREFIX.as_bytes())
    });
    if !is_ours {
        return Ok(());
    }
    match remove_tree(op, path) {
        // A run's directory may have some that nothing can be removed from.
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => {
            open_all(path);
            remove_tree(op, path)
        }
        removed => removed,
    }
}

fn remove_tree(op: &Operation, path: &Path) -> Result<(), PathError> {
    match op
        .effect(Effect::Remove(path))
        .and_then(|()| fs::remove_dir_all(path))
    {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PathError::at("remove", path)(e)),
        _ => Ok(()),
    }
}

fn remove_file(op: &Operation, path: &Path) -> Result<(), PathError> {
    match op
        .effect(Effect::Remove(path))
        .and_then(|()| fs::remove_file(path))
    {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(PathError::at("remove", path)(e)),
        _ => Ok(()),
    }
}

/// What becomes of something that a restore displaced.
pub enum Fate {
    /// It stays where it is.
    Stays,
    /// It is removed, and durably so.
    Goes,
}

/// Calls `visit` for everything but directories in the private directories of all restores. Answers
/// with what could not be looked at.
pub fn each_displaced(
    op: &Operation,
    store: &Path,
    visit: &mut dyn FnMut(&walkdir::DirEntry) -> io::Result<Fate>,
) -> Result<Vec<Problem>, StoreError> {
    let mut unread = Vec::new();
    for directory in areas(store)? {
        for entry in walkdir::WalkDir::new(&directory).follow_links(false) {
            op.check()?;
            let entry = match entry {
                Ok(entry) => entry,
                Err(e)
                    if e.io_error()
                        .is_some_and(|e| e.kind() == io::ErrorKind::NotFound) =>
                {
                    continue;
                }
                Err(e) => {
                    let path = e.path().unwrap_or(&directory);
                    unread.push(Problem::new(printable(path), e.to_string()));
                    continue;
                }
            };
            if entry.file_type().is_dir() {
                continue;
            }
            match visit(&entry) {
                Ok(Fate::Stays) => {}
                Ok(Fate::Goes) => {
                    remove_file(op, entry.path())?;
                    let above = entry.path().parent();
                    durable::sync_directory(op, above.expect("it is in a private directory"))?;
                }
                Err(e) => unread.push(Problem::new(printable(entry.path()), e.to_string())),
            }
        }
    }
    Ok(unread)
}

/// The private directories of all restores of a workspace that are known of.
fn areas(store: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut areas = Vec::new();
    for entry in list(store)? {
        if entry
            .file_name()
            .as_bytes()
            .starts_with(STORE_PREFIX.as_bytes())
        {
            areas.push(entry.path());
        }
    }
    for guard in guards_in(&store.join(TRASH_INDEX))? {
        areas.extend(trash_of(store, &guard)?);
    }
    areas.sort();
    areas.dedup();
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::must_run::{Capability, skipped};

    #[test]
    fn a_workspace_that_is_a_mount_of_its_own_has_no_place_for_staging() {
        let (shared, above) = (Path::new("/dev/shm"), Path::new("/dev"));
        let elsewhere = tempfile::tempdir().unwrap();
        let mounts = [shared, above, elsewhere.path()].map(Mount::at);
        if mounts[0].is_none() || mounts[0] == mounts[1] || mounts[0] == mounts[2] {
            let why = "/dev/shm is no file system of its own";
            return skipped(Capability::OtherFileSystem, why);
        }
        let root = Root::of_directory(shared).unwrap();
        let place = Area::place(&root, elsewhere.path(), OperationId::random()).unwrap();
        assert_eq!(place, None);
        let place = Area::place(&root, shared, OperationId::random()).unwrap();
        assert!(place.unwrap().starts_with(shared), "a store there would do");
    }

    #[test]
    fn only_directories_of_ours_are_purged() {
        let base = tempfile::tempdir().unwrap();
        let (store, precious) = (base.path().join("store"), base.path().join("precious"));
        for path in [&store.join(TRASH_INDEX), &precious] {
            fs::create_dir_all(path).unwrap();
        }
        let guard = SnapshotId::random();
        let pointer = store.join(TRASH_INDEX).join(guard.as_str());
        fs::write(&pointer, precious.as_os_str().as_bytes()).unwrap();
        purge_trash(&Operation::unbounded(), &store, &guard).unwrap();
        assert!(precious.exists() && !pointer.exists());
        purge_trash(&Operation::unbounded(), &store, &SnapshotId::random()).unwrap();
    }
}
