//! How much there is in a directory, as far as that has to be known.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Whether more than `most` files, links and directories are in the directory at `root`, repository
/// data aside. Looks at no more than it takes to say so; what cannot be read counts as nothing.
pub fn has_more_than(root: &Path, most: u64) -> bool {
    let mut left = most;
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            if left == 0 {
                return true;
            }
            left -= 1;
            // No link is followed: its own type is asked for.
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && entry.file_name() != OsStr::new(".git") {
                directories.push(entry.path());
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_at_any_depth_and_no_further_than_asked() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        assert!(!has_more_than(root.path(), 0));
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink("/", at("a/link")).unwrap();
        fs::create_dir_all(at(".git/objects")).unwrap();
        // `a`, `a/b`, the file, the link, and `.git` itself.
        assert!(has_more_than(root.path(), 4));
        assert!(!has_more_than(root.path(), 5));
        assert!(!has_more_than(&at("gone"), 0));
    }
}
