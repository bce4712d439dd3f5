//! The least that any capture has to do: look at every name, and do nothing about it.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, openat, statat};

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Directories, the first one included.
    pub directories: usize,
    /// Everything else.
    pub entries: usize,
    /// Bytes of content that were read.
    pub bytes_read: u64,
}

/// Lists every directory below `path` and looks at every name, with `threads` threads and raw
/// system calls; with `reads`, reads every file too. The repository's own directory is left out.
pub fn floor(path: &Path, threads: usize, reads: bool) -> io::Result<Floor> {
    let open = |path: &Path| openat(CWD, path, DIRECTORY, Mode::empty());
    let queue = Queue {
        waiting: Mutex::new((vec![open(path)?], 1)),
        wake: Condvar::new(),
        directories: AtomicUsize::new(0),
        entries: AtomicUsize::new(0),
        reads,
    };
    let read: io::Result<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| queue.work())).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("it does not panic"))
            .sum()
    });
    Ok(Floor {
        directories: queue.directories.into_inner(),
        entries: queue.entries.into_inner(),
        bytes_read: read?,
    })
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Directories that are still to be read, and how many are not done.
struct Queue {
    waiting: Mutex<(Vec<OwnedFd>, usize)>,
    wake: Condvar,
    directories: AtomicUsize,
    entries: AtomicUsize,
    reads: bool,
}

impl Queue {
    fn work(&self) -> io::Result<u64> {
        let mut buffer = vec![0; 256 * 1024];
        let mut read = 0;
        while let Some(directory) = self.next() {
            let visited = self.visit(&directory, &mut buffer);
            let mut waiting = self.waiting.lock().expect("nobody panics");
            waiting.1 -= 1;
            match visited {
                Ok((below, bytes)) => {
                    read += bytes;
                    waiting.1 += below.len();
                    waiting.0.extend(below);
                }
                Err(error) => {
                    *waiting = (Vec::new(), 0);
                    self.wake.notify_all();
                    return Err(error);
                }
            }
            drop(waiting);
            self.wake.notify_all();
        }
        Ok(read)
    }

    fn next(&self) -> Option<OwnedFd> {
        let mut waiting = self.waiting.lock().expect("nobody panics");
        loop {
            if let Some(directory) = waiting.0.pop() {
                return Some(directory);
            }
            if waiting.1 == 0 {
                return None;
            }
            waiting = self.wake.wait(waiting).expect("nobody panics");
        }
    }

    fn visit(&self, directory: &OwnedFd, buffer: &mut [u8]) -> io::Result<(Vec<OwnedFd>, u64)> {
        let mut space = [const { MaybeUninit::<u8>::uninit() }; 64 * 1024];
        let mut names: Vec<CString> = Vec::new();
        let mut listing = RawDir::new(directory, &mut space);
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let name = entry.file_name();
            if ![&b"."[..], b"..", b".git"].contains(&name.to_bytes()) {
                names.push(name.to_owned());
            }
        }
        let (mut below, mut read) = (Vec::new(), 0);
        for name in &names {
            let stat = statat(directory, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    below.push(openat(
                        directory,
                        name.as_c_str(),
                        DIRECTORY,
                        Mode::empty(),
                    )?);
                }
                FileType::RegularFile if self.reads => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let file = openat(directory, name.as_c_str(), flags, Mode::empty())?;
                    loop {
                        match rustix::io::read(&file, &mut *buffer)? {
                            0 => break,
                            n => read += n as u64,
                        }
                    }
                }
                _ => {}
            }
        }
        self.directories.fetch_add(1, Ordering::Relaxed);
        let entries = names.len() - below.len();
        self.entries.fetch_add(entries, Ordering::Relaxed);
        Ok((below, read))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_name_is_looked_at_and_every_byte_read() {
        let home = tempfile::tempdir().unwrap();
        for directory in ["a/b", "c", ".git"] {
            fs::create_dir_all(home.path().join(directory)).unwrap();
        }
        for (file, text) in [
            ("1", "one"),
            ("a/2", "two"),
            ("a/b/3", "three"),
            (".git/x", "x"),
        ] {
            fs::write(home.path().join(file), text).unwrap();
        }
        for threads in [1, 4] {
            let looked = floor(home.path(), threads, false).unwrap();
            assert_eq!((looked.directories, looked.entries), (4, 3));
            assert_eq!(looked.bytes_read, 0);
            assert_eq!(floor(home.path(), threads, true).unwrap().bytes_read, 11);
        }
    }
}
