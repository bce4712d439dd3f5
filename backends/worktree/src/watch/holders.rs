//! Finding files that a process has open: they may change without an event, or be closed although
//! their opening was not reported.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The open files of a file system by inode.
pub(super) type OpenFiles = BTreeMap<u64, OpenFile>;

/// How a held file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenFile {
    /// What its holder calls it.
    pub(super) path: PathBuf,
    /// Whether the path existed in the workspace; its removal is then reported as a change.
    pub(super) was_there: bool,
}

/// The files that are mapped, open, or behind a loop device, as far as `/proc` and `/sys` show
/// them.
///
/// Those that are mapped and shared are found by the device, whatever their path; the others by a
/// path below `root`. What this process has open for reading is left out: captures do that. Another
/// user's processes are not shown, nor those of another process namespace. `None` if it ended
/// early, because it no longer `is_needed`.
pub(super) fn held(
    root: &Path,
    device: Option<(u32, u32)>,
    is_needed: &dyn Fn() -> bool,
) -> Option<OpenFiles> {
    let own = std::process::id().to_string();
    let mut held = OpenFiles::new();
    let keep = |held: &mut OpenFiles, path: &Path| {
        if path.starts_with(root)
            && let Ok(found) = fs::symlink_metadata(path)
            && found.is_file()
        {
            let path = path.to_owned();
            let was_there = true;
            held.insert(found.ino(), OpenFile { path, was_there });
        }
    };
    for process in processes() {
        if !is_needed() {
            return None;
        }
        let is_own = process.ends_with(&own);
        for descriptor in entries(&process.join("fd")) {
            // The link's own mode tells how the file was opened.
            let is_written =
                || fs::symlink_metadata(&descriptor).is_ok_and(|link| link.mode() & 0o200 != 0);
            if let Ok(path) = fs::read_link(&descriptor)
                && path.starts_with(root)
                && (!is_own || is_written())
            {
                keep(&mut held, &path);
            }
        }
    }
    for disk in entries(Path::new("/sys/block")) {
        if let Ok(path) = fs::read(disk.join("loop/backing_file")) {
            keep(
                &mut held,
                Path::new(OsStr::from_bytes(path.trim_ascii_end())),
            );
        }
    }
    for process in processes() {
        if !is_needed() {
            return None;
        }
        let maps = fs::read(process.join("maps")).unwrap_or_default();
        for line in maps.split(|b| *b == b'\n') {
            if let Some(at) = line.iter().position(|b| *b == b'/') {
                keep(&mut held, Path::new(OsStr::from_bytes(&line[at..])));
            }
            if let Some((inode, path)) = shared_mapping(line, device)
                && !is_nameless(&process, line, &path)
            {
                let was_there = false;
                held.entry(inode).or_insert(OpenFile { path, was_there });
            }
        }
    }
    Some(held)
}

fn processes() -> impl Iterator<Item = PathBuf> {
    entries(Path::new("/proc")).filter(|path| {
        let name = path.file_name().unwrap_or_default();
        name.as_bytes().iter().all(u8::is_ascii_digit)
    })
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// Whether the mapped file is known to have no name at all, and so to be in no workspace. Who may
/// not look at it (it takes `CAP_CHECKPOINT_RESTORE`) does not know.
fn is_nameless(process: &Path, line: &[u8], path: &Path) -> bool {
    let range = line.split(|b| *b == b' ').next().unwrap_or_default();
    let mapped = process.join("map_files").join(OsStr::from_bytes(range));
    path.as_os_str().as_bytes().ends_with(b" (deleted)")
        && fs::metadata(mapped).is_ok_and(|found| found.nlink() == 0)
}

/// The file behind a line of `/proc/PID/maps` (see `proc_pid_maps(5)`), if it is on `device` and
/// shared. One that cannot be written to at the moment may become so.
fn shared_mapping(line: &[u8], device: Option<(u32, u32)>) -> Option<(u64, PathBuf)> {
    let (fields, path) = match line.iter().position(|b| *b == b'/') {
        Some(at) => line.split_at(at),
        None => (line, &line[line.len()..]),
    };
    let mut fields = str::from_utf8(fields).ok()?.split_ascii_whitespace();
    let (_range, permissions) = (fields.next()?, fields.next()?);
    if !permissions.ends_with('s') {
        return None;
    }
    let (_offset, on, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = on.split_once(':')?;
    let on = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let inode: u64 = inode.parse().ok()?;
    // Of an unknown device: any file may be meant.
    (inode != 0 && device.is_none_or(|device| device == on))
        .then(|| (inode, PathBuf::from(OsStr::from_bytes(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_of_the_device_are_found() {
        let of = |line: &[u8]| shared_mapping(line, Some((254, 0)));
        let path = PathBuf::from("/w/a b");
        for permissions in ["rw-s", "r--s", "---s"] {
            let line = format!("7f00-7f10 {permissions} 00000000 fe:00 77      /w/a b");
            assert_eq!(of(line.as_bytes()), Some((77, path.clone())));
        }
        assert_eq!(of(b"7f00-7f10 rw-p 00000000 fe:00 77      /w/a b"), None);
        assert_eq!(of(b"7f00-7f10 rw-s 00000000 00:19 77      /w/a b"), None);
        assert_eq!(of(b"7f00-7f10 rw-s 00000000 00:00 0 "), None);
        assert_eq!(of(b""), None);
        assert_eq!(of(b"\xff\xff"), None);
    }
}
