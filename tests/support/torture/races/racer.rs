//! Somebody who swaps what is in a workspace for something else, again and again.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::edits;
use crate::torture::random::Random;

/// What is swapped. The names below `dir` are those of files among the canaries too.
const TARGETS: [&str; 11] = [
    "a",
    "dir",
    "dir/b",
    "dir/deep",
    "dir/deep/c",
    ".gitignore",
    "dir/.gitignore",
    "tool",
    "link",
    "new",
    "dir/new",
];

/// How many things it has in its hand: few enough that a swap brings back what was there before.
const HAND: usize = 24;

/// How many edits it makes at most, so that what has to be looked through stays small.
const MAX_EDITS: u64 = 600;

/// What a racer does beside swapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Nothing else.
    Plain,
    /// Has the root itself be a link to the canaries, for moments.
    Root,
    /// Takes away what a restore works in, and puts it back a moment later.
    Staging,
}

/// One that swaps. It destroys nothing: what it takes out of the workspace it has in its hand.
pub(crate) struct Racer {
    root: PathBuf,
    hand: PathBuf,
    /// Below it are the directories that restores work in.
    state: PathBuf,
    manner: Manner,
    random: Random,
    /// How long it waits between two things, in moments.
    pause: usize,
    /// The next name in its hand, and the names that are there.
    next: u64,
    names: Vec<String>,
    /// How many edits it made: those below this number.
    edits: u64,
}

impl Racer {
    /// One with things in its hand, in the empty directory `hand`.
    ///
    /// Its links lead to `canaries`; `shared` is a file that it gives other names, and never
    /// writes.
    pub(crate) fn new(
        [root, hand, state]: [&Path; 3],
        canaries: &Path,
        shared: &Path,
        manner: Manner,
        seed: u64,
    ) -> std::io::Result<Self> {
        let mut racer = Self {
            root: root.to_owned(),
            hand: hand.to_owned(),
            state: state.to_owned(),
            manner,
            pause: *Random::new(seed).one_of(&[0, 0, 10, 100, 1000]),
            random: Random::new(seed),
            next: 0,
            names: Vec::new(),
            edits: 0,
        };
        symlink(canaries, hand.join("root"))?;
        let links = [
            canaries.to_owned(),
            canaries.join("secret"),
            canaries.join("deep"),
            "/dev/zero".into(),
            "nowhere".into(),
        ];
        for target in links {
            symlink(target, racer.new_name())?;
        }
        for _ in 0..2 {
            let fifo = racer.new_name();
            rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            fs::hard_link(shared, racer.new_name())?;
            let rule = format!("*\n# {}", edits::line(racer.edit()));
            fs::write(racer.new_name(), rule)?;
            racer.new_directory()?;
        }
        while racer.names.len() < HAND {
            racer.new_file()?;
        }
        Ok(racer)
    }

    /// A path in its hand that was never used.
    fn new_name(&mut self) -> PathBuf {
        let name = self.next.to_string();
        self.next += 1;
        let path = self.hand.join(&name);
        self.names.push(name);
        path
    }

    /// The number of a new edit.
    fn edit(&mut self) -> u64 {
        self.edits += 1;
        self.edits - 1
    }

    fn new_file(&mut self) -> std::io::Result<()> {
        let edit = edits::line(self.edit());
        fs::write(self.new_name(), edit)
    }

    fn new_directory(&mut self) -> std::io::Result<()> {
        let (first, second) = (edits::line(self.edit()), edits::line(self.edit()));
        let directory = self.new_name();
        fs::create_dir_all(directory.join("deep"))?;
        fs::write(directory.join("b"), first)?;
        fs::write(directory.join("deep/c"), second)
    }

    /// Does one thing, if it can be done this moment; answers with whether it was.
    pub(crate) fn step(&mut self) -> bool {
        wait_a_little(self.pause);
        let done = match self.random.below(100) {
            0..10 => self.append(),
            10..15 => self.come_and_go(),
            15 if self.manner == Manner::Root => self.swap_root(),
            15..35 if self.manner == Manner::Staging => self.take_staging(),
            _ => self.swap(),
        };
        done.is_ok()
    }

    /// How many edits it made. Their numbers are those below this one.
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Opens the directory of one of the targets, without following a link; answers with it and the
    /// last name.
    fn somewhere(&mut self) -> Result<(OwnedFd, &'static str), Errno> {
        let path = *self.random.one_of(&TARGETS);
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
        let mut directory = rustix::fs::openat(CWD, &self.root, flags, Mode::empty())?;
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in above.split('/').filter(|part| !part.is_empty()) {
            directory = rustix::fs::openat(&directory, part, flags, Mode::empty())?;
        }
        Ok((directory, name))
    }

    /// Swaps something in the workspace for something in its hand.
    fn swap(&mut self) -> Result<(), Errno> {
        let (directory, name) = self.somewhere()?;
        let mine = self.random.below(self.names.len());
        let path = self.hand.join(&self.names[mine]);
        let swapped =
            rustix::fs::renameat_with(CWD, &path, &directory, name, RenameFlags::EXCHANGE);
        if swapped != Err(Errno::NOENT) || path.symlink_metadata().is_err() {
            return swapped;
        }
        rustix::fs::renameat_with(CWD, &path, &directory, name, RenameFlags::NOREPLACE)?;
        self.names.swap_remove(mine);
        if self.edits < MAX_EDITS {
            self.new_file().map_err(|_| Errno::IO)?;
        } else if self.names.len() < 2 {
            let fifo = self.new_name();
            rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0)?;
        }
        Ok(())
    }

    /// Writes at the end of a file that is there.
    fn append(&mut self) -> Result<(), Errno> {
        if self.edits >= MAX_EDITS {
            return self.swap();
        }
        let (directory, name) = self.somewhere()?;
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
        let mut file = File::from(file);
        let meta = file.metadata().map_err(|_| Errno::IO)?;
        // Another name of a file outside is not written through.
        if !meta.is_file() || meta.nlink() != 1 {
            return Err(Errno::MLINK);
        }
        let edit = edits::line(self.edits);
        file.write_all(edit.as_bytes()).map_err(|_| Errno::IO)?;
        self.edits += 1;
        Ok(())
    }

    /// Makes names in a directory, and removes them.
    fn come_and_go(&mut self) -> Result<(), Errno> {
        let (directory, _) = self.somewhere()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let names: Vec<String> = (0..8)
            .map(|_| format!("x{}", self.random.next_u64()))
            .collect();
        for name in &names {
            drop(rustix::fs::openat(&directory, name, flags, Mode::RUSR)?);
        }
        for name in &names {
            rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// For a moment, the root is a link to the canaries.
    fn swap_root(&mut self) -> Result<(), Errno> {
        let moments = self.random.below(50);
        let link = self.hand.join("root");
        let swap = || rustix::fs::renameat_with(CWD, &link, CWD, &self.root, RenameFlags::EXCHANGE);
        swap()?;
        wait_a_little(moments);
        swap()
    }

    /// For a moment, what a restore works in is somewhere else.
    fn take_staging(&mut self) -> Result<(), Errno> {
        let stores = fs::read_dir(self.state.join("workspaces")).map_err(|_| Errno::NOENT)?;
        let entries = stores
            .flatten()
            .filter_map(|store| fs::read_dir(store.path()).ok());
        let staging = entries
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                name.starts_with(b"restore-") && path.is_dir()
            });
        let staging = staging.ok_or(Errno::NOENT)?;
        self.next += 1;
        let away = self.hand.join(format!("staging{}", self.next));
        rustix::fs::rename(&staging, &away)?;
        wait_a_little(self.random.below(50));
        // A directory of that name may have been made meanwhile, which is not ours to replace.
        rustix::fs::renameat_with(CWD, &away, CWD, &staging, RenameFlags::NOREPLACE)
    }
}

/// Lets others do something.
fn wait_a_little(moments: usize) {
    for _ in 0..moments {
        thread::yield_now();
    }
}
