//! Those who follow links: what the harness has to find out.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc;

/// Reads every file below a directory, through whatever links there are.
pub(crate) fn reads(directory: &Path, depth: usize) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() && depth > 0 && !path.ends_with(".git") {
            reads(&path, depth - 1);
        } else if path.is_file() {
            let file = File::options()
                .read(true)
                // It may be a FIFO by now.
                .custom_flags(libc::O_NONBLOCK)
                .open(&path);
            let mut start = Vec::new();
            // Whoever does this is to be found out, whatever becomes of it.
            let _ = file.map(|file| file.take(4096).read_to_end(&mut start));
        }
    }
}

/// Writes a file, wherever the directory above it leads.
pub(crate) fn writes(root: &Path) {
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(root.join("dir/b"));
    // As above.
    let _ = file.map(|mut file| file.write_all(b"naive\n"));
}
