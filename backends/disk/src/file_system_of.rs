//! Which file system something lies on.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use stillframe_model::file_system::FileSystem;

/// The file system that holds `path`, or would hold it if it were made; `None`: not known. Writes
/// nothing.
pub fn file_system_of(path: &Path) -> Option<FileSystem> {
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
    let free_bytes = told.map(|told| told.f_bavail.saturating_mul(told.f_frsize));
    Some(FileSystem::new(mount_point.to_owned(), free_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_is_on_the_file_system_of_what_is_there_above_it() {
        let base = tempfile::tempdir().unwrap();
        let there = file_system_of(base.path()).unwrap();
        let beyond = file_system_of(&base.path().join("not/there")).unwrap();
        assert_eq!(beyond.mount_point, there.mount_point);
        assert!(
            fs::canonicalize(base.path())
                .unwrap()
                .starts_with(&there.mount_point)
        );
        let said = there.to_string();
        assert!(said.starts_with("the file system at /"), "{said}");
        let none = FileSystem::new(there.mount_point, None);
        assert!(!none.to_string().contains("free"));
    }

    #[test]
    fn what_is_mounted_in_another_is_named_by_its_own_directory() {
        let proc = file_system_of(Path::new("/proc/self/status")).unwrap();
        assert_eq!(proc.mount_point, Path::new("/proc"));
        assert_eq!(proc.free_bytes, None, "it has no size");
    }
}
