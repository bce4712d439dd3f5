//! Detecting whether anything was added to a directory of objects, or removed from it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::PathError;

/// What tells the state of the directories below `directory` whose names have two characters from
/// any other in which a file was added to them or removed. It costs one look at each; there are at
/// most 256. That a file was written to it does not tell.
pub fn stamp_of(directory: &Path) -> Result<String, PathError> {
    let mut lines = Vec::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => Some(entries),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(PathError::at("list", directory)(e)),
    };
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(PathError::at("list", directory))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.len() == 2) else {
            continue;
        };
        match entry.metadata() {
            Ok(meta) => lines.push(format!("{name} {} {}\n", meta.mtime(), meta.mtime_nsec())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(PathError::at("look at", entry.path())(e)),
        }
    }
    lines.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for line in &lines {
        hasher.update(line.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_or_removed_shows_and_what_lies_elsewhere_does_not() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        let stamp = || stamp_of(home.path()).unwrap();
        let nothing = stamp();
        assert_eq!(stamp_of(&at("absent")).unwrap(), nothing);
        fs::create_dir_all(at("ab")).unwrap();
        fs::create_dir_all(at("pack")).unwrap();
        // Directories of long ago, so that no change falls in the same tick.
        let settle = || {
            let file = fs::File::open(at("ab")).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        };
        settle();
        let empty = stamp();
        assert_ne!(empty, nothing);
        fs::write(at("pack/x"), "").unwrap();
        assert_eq!(stamp(), empty);
        fs::write(at("ab/x"), "").unwrap();
        assert_ne!(stamp(), empty);
        settle();
        fs::remove_file(at("ab/x")).unwrap();
        assert_ne!(stamp(), empty);
    }
}
