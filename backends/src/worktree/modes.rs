//! What a tree cannot hold, counted from what a walk found.

use std::collections::{BTreeMap, HashMap};

use crate::path::RelPath;
use crate::tree::{EntryKind, Modes};
use crate::worktree::stat_cache::{CachedDirectory, Flags};

/// What lies beside the tree of a capture.
pub(crate) struct Beside {
    /// Files and links that were captured.
    pub(crate) files: u64,
    /// Directories with nothing captured in them, sorted, the workspace itself left out.
    pub(crate) empty_directories: Vec<RelPath>,
    /// The permission bits.
    pub(crate) modes: Modes,
}

/// Lists what lies beside the tree of `directories`.
///
/// The bits that most entries of a kind have are said once, so that under any umask only the odd
/// ones are listed.
pub(crate) fn of(directories: &HashMap<RelPath, CachedDirectory>) -> Beside {
    let mut files = 0;
    let mut counts: [BTreeMap<u32, u64>; 3] = Default::default();
    let mut count = |of: Of, mode: u32| *counts[of as usize].entry(mode).or_insert(0) += 1;
    let mut empty_directories = Vec::new();
    for (path, directory) in directories {
        for entry in directory.entries.iter().filter(|e| e.is_captured()) {
            files += 1;
            if let Some(of) = Of::entry(entry.kind, entry.flags) {
                count(of, entry.stat.mode & 0o777);
            }
        }
        if !directory.is_absent && !path.is_root() {
            count(Of::Directory, directory.mode);
            let has_children = directory
                .children
                .iter()
                .any(|n| directories.contains_key(&path.join(n)));
            if !has_children && !directory.entries.iter().any(|e| e.is_captured()) {
                empty_directories.push(path.clone());
            }
        }
    }
    empty_directories.sort_unstable();
    let most = |of: Of, otherwise: u32| {
        counts[of as usize]
            .iter()
            .max_by_key(|(_, n)| **n)
            .map_or(otherwise, |(mode, _)| *mode)
    };
    let mut modes = Modes {
        file: most(Of::File, 0o644),
        executable: most(Of::Executable, 0o755),
        directory: most(Of::Directory, 0o755),
        exceptions: Vec::new(),
    };
    let usual = [modes.file, modes.executable, modes.directory];
    for (path, directory) in directories {
        for entry in directory.entries.iter().filter(|e| e.is_captured()) {
            let mode = entry.stat.mode & 0o777;
            if Of::entry(entry.kind, entry.flags).is_some_and(|of| usual[of as usize] != mode) {
                modes.exceptions.push((path.join(&entry.name), mode));
            }
        }
        if !directory.is_absent && !path.is_root() && directory.mode != modes.directory {
            modes.exceptions.push((path.clone(), directory.mode));
        }
    }
    modes.exceptions.sort_unstable();
    Beside {
        files,
        empty_directories,
        modes,
    }
}

#[derive(Clone, Copy)]
enum Of {
    File,
    Executable,
    Directory,
}

impl Of {
    /// Which count an entry belongs to; links, and files that are not on disk, have no bits.
    fn entry(kind: EntryKind, flags: Flags) -> Option<Self> {
        match kind {
            _ if flags.has(Flags::ABSENT) => None,
            EntryKind::File => Some(Self::File),
            EntryKind::Executable => Some(Self::Executable),
            EntryKind::Symlink => None,
        }
    }
}
