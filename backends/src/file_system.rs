//! The file system that something lies on, for whoever is told that it is full.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::printable;

/// A file system, as a person knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystem {
    /// The directory that it is mounted at, as far as the path shows.
    pub mount_point: PathBuf,
    /// How many bytes this user may still use; `None`: it does not say.
    pub free_bytes: Option<u64>,
}

impl FileSystem {
    /// The one that holds `path`, or would hold it if it were made; `None`: nobody can tell. Writes nothing.
    pub fn holding(path: &Path) -> Option<Self> {
        let path = std::path::absolute(path).ok()?;
        let there = path.ancestors().find(|above| above.exists())?;
        let there = fs::canonicalize(there).ok()?;
        let device = |path: &Path| fs::symlink_metadata(path).map(|m| m.dev()).ok();
        let own = device(&there)?;
        let mount_point = there
            .ancestors()
            .take_while(|above| device(above) == Some(own))
            .last()?;
        let told = rustix::fs::statvfs(&there).ok();
        // One that has no size says so by this.
        let told = told.filter(|told| told.f_blocks > 0);
        Some(Self {
            mount_point: mount_point.to_owned(),
            free_bytes: told.map(|told| told.f_bavail.saturating_mul(told.f_frsize)),
        })
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file system at {}", printable(&self.mount_point))?;
        match self.free_bytes {
            Some(free) => write!(f, ", which has {free} bytes free"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_is_on_the_file_system_of_what_is_there_above_it() {
        let base = tempfile::tempdir().unwrap();
        let there = FileSystem::holding(base.path()).unwrap();
        let beyond = FileSystem::holding(&base.path().join("not/there")).unwrap();
        assert_eq!(beyond.mount_point, there.mount_point);
        assert!(
            fs::canonicalize(base.path())
                .unwrap()
                .starts_with(&there.mount_point)
        );
        let said = there.to_string();
        assert!(said.starts_with("the file system at /"), "{said}");
        let none = FileSystem {
            free_bytes: None,
            ..there
        };
        assert!(!none.to_string().contains("free"));
    }

    #[test]
    fn what_is_mounted_in_another_is_named_by_its_own_directory() {
        let proc = FileSystem::holding(Path::new("/proc/self/status")).unwrap();
        assert_eq!(proc.mount_point, Path::new("/proc"));
        assert_eq!(proc.free_bytes, None, "it has no size");
    }
}
