//! A place for a directory that gets its name last, with all that is in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::durable;
use crate::error::{ErrorKind, PathError, printable};
use crate::operation::Operation;
use crate::restore_error::RestoreError;
use crate::worktree::area;

/// The directory in the private one that gets the name in the end.
const TREE: &str = "tree";

/// A place for a directory: nothing is there, or a directory with nothing in it.
#[derive(Debug)]
pub struct Place {
    /// Absolute, without links.
    parent: PathBuf,
    name: OsString,
    /// The directory that is there.
    found: Option<fs::Metadata>,
}

/// Why no directory can be put somewhere. Nothing was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It is no place for it.
    #[error("{0}; nothing was made")]
    Bad(String),
    /// Something is there.
    #[error("{0}; nothing was made")]
    Occupied(String),
    /// The disk does not let it be looked at, or written.
    #[error(transparent)]
    Disk(PathError),
}

/// A private directory beside a [`Place`], for what is to be put there and what that needs.
/// Dropping it removes it, but for what has got its name.
#[derive(Debug)]
#[must_use = "dropping it removes the directory"]
pub struct Scratch {
    op: Operation,
    path: PathBuf,
}

impl Place {
    /// Looks at `to`, which must lie in none of the directories `apart_from`; each comes with what
    /// it is.
    pub fn find(to: &Path, apart_from: &[(&Path, &str)]) -> Result<Self, PlaceError> {
        let refused = |why: &str| PlaceError::Bad(format!("{} {why}", printable(to)));
        let absolute = std::path::absolute(to).map_err(|_| refused("is no path of a directory"))?;
        let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(refused("is no path of a directory that could be made"));
        };
        let parent = fs::canonicalize(above).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                refused("cannot be made: the directory above it is not there")
            }
            _ => PlaceError::Disk(PathError::at("resolve", above)(error)),
        })?;
        let path = parent.join(name);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(PlaceError::Disk(PathError::at("look at", path)(error))),
        };
        if let Some(found) = &found {
            let occupied = |why: &str| PlaceError::Occupied(format!("{} {why}", printable(to)));
            if !found.is_dir() {
                return Err(occupied("is there, and is no directory"));
            }
            let mut entries = fs::read_dir(&path)
                .map_err(PathError::at("list", &path))
                .map_err(PlaceError::Disk)?;
            if entries.next().is_some() {
                return Err(occupied("is not empty"));
            }
        }
        for (directory, what) in apart_from {
            if path.starts_with(directory) {
                return Err(refused(&format!("lies in {what} {}", printable(directory))));
            }
        }
        Ok(Self {
            parent,
            name: name.to_owned(),
            found,
        })
    }

    /// Absolute, without links.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Makes a private directory beside it, which a workspace around it leaves out.
    pub fn scratch(&self, op: &Operation) -> Result<Scratch, PathError> {
        let made = area::make_beside(op, &self.parent);
        let path = made.map_err(|error| PathError {
            path: self.path(),
            ..error
        })?;
        Ok(Scratch {
            op: op.to_its_end(),
            path,
        })
    }

    /// The error as one of this place, if it is of a name in `scratch`, which nobody knows.
    pub fn told(&self, source: PathError, scratch: &Scratch) -> PathError {
        match source.path.strip_prefix(&scratch.path) {
            Err(_) => source,
            Ok(within) => {
                let mut path = self.path();
                // Joining nothing would end the path with a slash.
                path.extend(within.strip_prefix(TREE).into_iter().flatten());
                PathError { path, ..source }
            }
        }
    }

    /// Gives `tree` the owner and the permission bits of the directory whose place it takes.
    pub(crate) fn dress(&self, tree: &Path) -> Result<(), PathError> {
        let Some(found) = &self.found else {
            return Ok(());
        };
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(tree, Some(found.uid()), Some(found.gid()))
                .map_err(PathError::at("set the owner of", tree))?;
        }
        let bits = fs::Permissions::from_mode(found.mode() & 0o7777);
        fs::set_permissions(tree, bits).map_err(PathError::at("set the mode of", tree))
    }

    /// Gives the tree of `scratch`, which has to be synced, its name, durably. A directory that is
    /// there is empty still, or nothing happens.
    pub fn take(&self, op: &Operation, scratch: &Scratch) -> Result<(), PathError> {
        let path = self.path();
        fs::rename(scratch.tree(), &path).map_err(PathError::at("rename to", &path))?;
        durable::sync_directory(op, &self.parent)
    }

    /// As [`Place::take`], but a directory that is there stays, as whoever stands in it sees it:
    /// the tree's one entry of this name moves into it. Nothing of that name is there, or nothing
    /// happens.
    pub fn fill(&self, op: &Operation, scratch: &Scratch, name: &str) -> Result<(), PathError> {
        if self.found.is_none() {
            return self.take(op, scratch);
        }
        let path = self.path();
        let to = path.join(name);
        rename_to_new(&scratch.tree().join(name), &to).map_err(PathError::at("rename to", to))?;
        durable::sync_directory(op, &path)
    }

    /// Takes back what [`Place::fill`] did, and what was made beside it: these entries go. The
    /// directory goes too, unless it was there before, or somebody has put something else into it.
    pub fn clear(&self, scratch: &Scratch, names: &BTreeSet<OsString>) -> Result<(), PathError> {
        let path = self.path();
        for (number, name) in names.iter().enumerate() {
            let entry = path.join(name);
            // At once, and whatever is below it. No link is followed.
            match fs::rename(&entry, scratch.path.join(number.to_string())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                moved => moved.map_err(PathError::at("remove", entry))?,
            }
        }
        if self.found.is_none() {
            match fs::remove_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                removed => removed.map_err(PathError::at("remove", &path))?,
            }
        }
        Ok(())
    }
}

/// Renames to what nothing has for a name.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(
        rustix::fs::CWD,
        from,
        rustix::fs::CWD,
        to,
        rustix::fs::RenameFlags::NOREPLACE,
    )?)
}

impl Scratch {
    /// The private directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where in it the directory is made that gets the name of the place.
    pub fn tree(&self) -> PathBuf {
        self.path.join(TREE)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in a directory of our name, and there may be an error already, which is
        // the one to tell.
        let _ = area::remove_beside(&self.op, &self.path);
    }
}

impl PlaceError {
    /// What a host can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Bad(_) | Self::Occupied(_) => ErrorKind::InvalidOptions,
            Self::Disk(error) => error.storage_kind(),
        }
    }
}

impl From<PlaceError> for RestoreError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Bad(why) | PlaceError::Occupied(why) => Self::BadPlace(why),
            PlaceError::Disk(error) => Self::Prepare(error),
        }
    }
}
