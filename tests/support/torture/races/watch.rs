//! Whether anybody reads or writes where nobody has any business.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use walkdir::WalkDir;

use crate::view::{self, Times, View};

/// Canaries: directories that no operation may look into, and what is in them.
///
/// A directory that is opened, and whatever is opened, read, written, made or removed by a path
/// through it, is told of by inotify(7). Another name of a file there is another path.
pub(crate) struct Watch {
    place: PathBuf,
    descriptor: OwnedFd,
    directories: Vec<(i32, PathBuf)>,
    files: View,
    times: Times,
}

impl Watch {
    /// Watches `place` and all directories below it from this moment on.
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        let (files, times) = (view::worktree(place), view::times(place));
        let descriptor = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let all = WatchFlags::ACCESS
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::MOVE
            | WatchFlags::OPEN;
        let mut directories = Vec::new();
        let walk = WalkDir::new(place).into_iter();
        let found: Vec<_> = walk.collect::<Result<_, _>>()?;
        for entry in found.iter().filter(|entry| entry.file_type().is_dir()) {
            let number = inotify::add_watch(&descriptor, entry.path(), all)?;
            directories.push((number, entry.path().to_owned()));
        }
        Ok(Self {
            place: place.to_owned(),
            descriptor,
            directories,
            files,
            times,
        })
    }

    /// What happened there, and what is otherwise than it was: a line for each, none twice.
    pub(crate) fn intrusions(self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut reader = Reader::new(&self.descriptor, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let directory = self.directories.iter().find(|(wd, _)| *wd == event.wd());
                    let mut path = directory.map_or(PathBuf::new(), |(_, path)| path.clone());
                    path.extend(event.file_name().map(|name| {
                        let name = name.to_string_lossy();
                        name.into_owned()
                    }));
                    // That a watch ended is no more than the end of its directory, which is told.
                    if event.events() != ReadFlags::IGNORED {
                        lines.push(format!("{:?} {}", event.events(), path.display()));
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        let difference = view::difference(&self.files, &view::worktree(&self.place));
        lines.extend(difference);
        if view::times(&self.place) != self.times {
            lines.push(format!("times or inodes below {}", self.place.display()));
        }
        lines.sort();
        lines.dedup();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_read_or_written_through_a_link_is_seen_and_another_name_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("place");
        fs::create_dir_all(place.join("deep")).unwrap();
        fs::write(place.join("deep/file"), "x").unwrap();
        symlink(&place, temp.path().join("link")).unwrap();
        let watch = || Watch::new(&place).unwrap();
        let reads = |what: fn(&Path)| {
            let watch = watch();
            what(temp.path());
            watch.intrusions()
        };
        assert_eq!(reads(|_| ()), [""; 0]);
        let named = reads(|base| {
            fs::hard_link(base.join("place/deep/file"), base.join("name")).unwrap();
            assert_eq!(fs::read(base.join("name")).unwrap(), b"x");
            assert!(base.join("link/deep/file").metadata().is_ok());
        });
        assert_eq!(named, [""; 0], "a look is no read");
        let read = reads(|base| drop(fs::read(base.join("link/deep/file")).unwrap()));
        assert!(
            read.iter().any(|line| line.contains("deep/file")),
            "{read:?}"
        );
        let listed = reads(|base| assert_eq!(fs::read_dir(base.join("link")).unwrap().count(), 1));
        assert!(!listed.is_empty());
        let written = reads(|base| fs::write(base.join("name"), "y").unwrap());
        assert!(!written.is_empty(), "the content is another");
    }
}
