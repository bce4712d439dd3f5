//! What a tree cannot hold, counted from what a walk found.

use crate::path::RelPath;
use crate::tree::{EntryKind, Modes, RECORDED_BITS};
use crate::worktree::stat_cache::{Directories, Flags};

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
pub(crate) fn of(directories: &Directories) -> Beside {
    let mut files = 0;
    let mut counts: [Vec<(u32, u64)>; 3] = Default::default();
    let mut empty_directories = Vec::new();
    for (path, directory) in directories {
        let mut has_captured = false;
        for (_, entry) in directory.entries.iter().filter(|(_, e)| e.is_captured()) {
            has_captured = true;
            files += 1;
            if let Some(of) = Of::entry(entry.kind, entry.flags) {
                count(&mut counts[of as usize], entry.stat.mode & RECORDED_BITS);
            }
        }
        if !directory.is_absent && !path.is_root() {
            count(&mut counts[Of::Directory as usize], directory.mode);
            let mut children = directory.children.iter();
            if !has_captured && !children.any(|n| directories.contains_key(&path.join(n))) {
                empty_directories.push(path.clone());
            }
        }
    }
    empty_directories.sort_unstable();
    let most = |of: Of, otherwise: u32| {
        let counts = counts[of as usize].iter();
        // Of two that are as frequent the larger, so that the answer depends on the modes alone.
        let most = counts.max_by_key(|(mode, n)| (*n, *mode));
        most.map_or(otherwise, |(mode, _)| *mode)
    };
    let mut modes = Modes {
        file: most(Of::File, 0o644),
        executable: most(Of::Executable, 0o755),
        directory: most(Of::Directory, 0o755),
        exceptions: Vec::new(),
    };
    if counts.iter().all(|counts| counts.len() <= 1) {
        return Beside {
            files,
            empty_directories,
            modes,
        };
    }
    let usual = [modes.file, modes.executable, modes.directory];
    for (path, directory) in directories {
        for (name, entry) in directory.entries.iter().filter(|(_, e)| e.is_captured()) {
            let mode = entry.stat.mode & RECORDED_BITS;
            if Of::entry(entry.kind, entry.flags).is_some_and(|of| usual[of as usize] != mode) {
                modes.exceptions.push((path.join(name), mode));
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

/// Counts a mode. There are a handful of them in any workspace.
fn count(counts: &mut Vec<(u32, u64)>, mode: u32) {
    match counts.iter_mut().find(|(known, _)| *known == mode) {
        Some((_, n)) => *n += 1,
        None => counts.push((mode, 1)),
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
