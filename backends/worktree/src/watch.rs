//! Watching a workspace for changes with the kernel's inotify (see `inotify(7)`).
//!
//! The watch of a directory reports changes of its names, and changes of its files through these
//! names. Other changes are covered in two ways. Files that a process has open, or may have mapped,
//! and files with more than one name are looked at each time. If even that is not enough, the watch
//! has a hole, and the next capture walks everything. docs/guide.md names the cases that are left.

mod changes;
mod holders;
mod holds;
mod mounts;
mod names;
mod scans;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::file_system_kind;
use crate::identity::Identity;
use crate::path::RelPath;
use crate::root::Root;
use crate::search::WalkReason;
use crate::watch::changes::{Changes, Event, Growth};
use crate::watch::holders::{OpenFile, OpenFiles, held};
use crate::watch::mounts::Mounts;
use crate::watch::scans::Scans;

/// What is asked of a directory's watch. Opening is, because a file can be mapped then.
const ASKED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::OPEN)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// From `linux/fs.h`, `FS_CASEFOLD_FL`: names that differ in case are one, so the name in an event
/// need not be the one that a list has.
const CASEFOLD: u32 = 0x4000_0000;

/// From `linux/magic.h`.
const PROC: u32 = 0x9FA0;

/// Bytes of events that are read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// After reading, the thread lets this much time pass before it reads again: a busy run makes many
/// events, and waking for each would cost it a processor. The queue holds 16,384.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// The scan for holders that begins with the watch.
const FIRST_SCAN: u64 = 1;

/// A watch on everything that changes below a directory.
///
/// One capture at a time uses it, from many threads. It ends for good at the first hole; its
/// watches are given back then, and [`Watch::pending`] says why.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What to look at in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Everything in it.
    All,
    /// These names, present or not. Empty: only the directory itself changed.
    Names(BTreeSet<Vec<u8>>),
}

/// What to look at, by directory.
pub type Pending = BTreeMap<RelPath, Look>;

struct Shared {
    disk_path: PathBuf,
    identity: Identity,
    /// `None` once there is a hole. Adding a watch takes a shared lock until the changes know the
    /// watch, and reading events takes the exclusive lock, so no event of an unknown watch is read.
    inotify: RwLock<Option<Arc<OwnedFd>>>,
    /// Readable once the thread is to end.
    stop: OwnedFd,
    /// Held while events are read and noted, which keeps them in order.
    reader: Mutex<Vec<MaybeUninit<u8>>>,
    changes: Mutex<Changes>,
    mounts: Mutex<Mounts>,
    /// The holders found by any scan.
    held: Mutex<OpenFiles>,
    /// The first begins with the watch, and the others when directories were added.
    scans: Scans,
}

impl AsRef<Scans> for Shared {
    fn as_ref(&self) -> &Scans {
        &self.scans
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change of the guarded value can be left half-way by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Starts without directories: nothing is watched yet.
    ///
    /// The error says why this directory cannot be watched.
    pub fn begin(root: &Root) -> Result<Self, WalkReason> {
        if !file_system_kind::tells_of_changes(root) {
            return Err(WalkReason::Filesystem);
        }
        let unavailable = |_| WalkReason::Unavailable;
        let descriptors = rustix::fs::statfs("/proc/thread-self/fd").map_err(unavailable)?;
        if descriptors.f_type as u32 != PROC {
            return Err(WalkReason::Unavailable);
        }
        let disk_path = root.disk_path(&RelPath::root());
        let mounts = Mounts::open(&disk_path).map_err(|_| WalkReason::Unavailable)?;
        if mounts.is_layer() {
            return Err(WalkReason::Filesystem);
        }
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let inotify = inotify::init(flags).map_err(unavailable)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(unavailable)?;
        let shared = Arc::new(Shared {
            disk_path,
            identity: root.identity(),
            inotify: RwLock::new(Some(Arc::new(inotify))),
            stop,
            reader: Mutex::new(vec![MaybeUninit::uninit(); BUFFER_BYTES]),
            changes: Mutex::default(),
            mounts: Mutex::new(mounts),
            held: Mutex::default(),
            scans: Scans::default(),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("stillframe-watch".to_owned())
                .spawn(move || shared.keep_reading())
                .map_err(|_| WalkReason::Unavailable)?
        };
        let watch = Self {
            shared,
            thread: Some(thread),
        };
        watch.shared.scans.want();
        watch.scan();
        Ok(watch)
    }

    /// Watches the directory `path`, which is open as `fd`. To be called before it is listed and
    /// its files are looked at; safe to repeat. A failure ends the watch.
    pub fn add(&self, path: &RelPath, fd: BorrowedFd<'_>) {
        let shared = &*self.shared;
        let gate = shared
            .inotify
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(inotify) = gate.as_ref() else {
            return;
        };
        let is_casefolded =
            rustix::fs::ioctl_getflags(fd).is_ok_and(|flags| flags.bits() & CASEFOLD != 0);
        // By its descriptor, so that it is this directory wherever it is by now.
        let through = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
        let added = match inotify::add_watch(inotify, through, ASKED) {
            _ if is_casefolded => Err(WalkReason::Filesystem),
            Ok(watch) => Ok(watch),
            Err(Errno::NOSPC) => Err(WalkReason::WatchLimit),
            Err(_) => Err(WalkReason::LostWatch),
        };
        match added {
            Ok(watch) => {
                let mut changes = lock(&shared.changes);
                changes.add(path, watch);
                shared.remove_unneeded(inotify, changes);
            }
            Err(reason) => {
                drop(gate);
                lock(&shared.changes).end(reason);
                shared.give_back();
            }
        }
    }

    /// Whether every change in the directory is reported. An existing directory that is not watched
    /// has to be read as a whole, with everything below it, and added: it is new or was moved here,
    /// whatever was known at its path before.
    pub(crate) fn watches(&self, path: &RelPath) -> bool {
        lock(&self.shared.changes).watches(path)
    }

    /// Forgets a directory and all below it: it is gone, moved, or omitted.
    pub fn forget(&self, path: &RelPath) {
        let Some(inotify) = self.shared.inotify() else {
            return;
        };
        let mut changes = lock(&self.shared.changes);
        changes.forget(path);
        self.shared.remove_unneeded(&inotify, changes);
    }

    /// A file that can change without an event is part of every [`Watch::pending`] from now on: one
    /// with another hard link, and one whose inode [`Watch::is_held`]. Answers whether that is
    /// news.
    ///
    /// A new link to a file that had one name has an event for the new name only: who finds it has
    /// to look for the other names too.
    pub(crate) fn always_look_at(&self, directory: &RelPath, name: &[u8]) -> bool {
        lock(&self.shared.changes).always_look_at(directory, name)
    }

    /// As [`Watch::always_look_at`] for a file that somebody holds, whether or not it has other
    /// names.
    pub(crate) fn look_at_held(&self, directory: &RelPath, name: &[u8]) {
        lock(&self.shared.changes).look_at_held(directory, name);
    }

    /// Whether something has, or had, the file with this inode mapped or open for writing: a file
    /// that is so has to be looked at always. It may be another file of the same number on another
    /// file system. Waits for what was so when the watch began; what is found later is known later.
    pub(crate) fn is_held(&self, inode: u64) -> bool {
        self.shared.scans.wait_for(FIRST_SCAN);
        lock(&self.shared.held).contains_key(&inode)
    }

    /// The inodes of all that [`Watch::is_held`].
    pub(crate) fn held_inodes(&self) -> HashSet<u64> {
        self.shared.scans.wait_for(FIRST_SCAN);
        lock(&self.shared.held).keys().copied().collect()
    }

    /// Begins the scans that are wanted.
    fn scan(&self) {
        Scans::start(&self.shared, |shared, number| {
            shared.find_holders(number == FIRST_SCAN)
        });
    }

    /// Everything that may have changed since what the last [`Watch::settle`] closed off.
    ///
    /// Every directory in it is watched. A name in it that is a directory and is not watched (see
    /// `Watch::watches`) has to be read as a whole; one that is watched has changed itself, in its
    /// permissions.
    ///
    /// The error: there is a hole, so the whole tree must be walked and a new watch begun.
    pub fn pending(&self) -> Result<Pending, WalkReason> {
        self.shared.read_events();
        let growth = lock(&self.shared.changes).growth();
        // One that nobody does to its end leaves files that may change and are not known.
        let is_found = match growth {
            Growth::None | Growth::Few => self.shared.scans.are_going_on(),
            Growth::Many => self.shared.scans.wait(),
        };
        if !is_found {
            lock(&self.shared.changes).end(WalkReason::LostWatch);
        }
        if !lock(&self.shared.mounts).are_unchanged() {
            lock(&self.shared.changes).end(WalkReason::Remounted);
        }
        let Some(inotify) = self.shared.inotify() else {
            return lock(&self.shared.changes).pending();
        };
        let mut changes = lock(&self.shared.changes);
        let pending = changes.pending();
        self.shared.remove_unneeded(&inotify, changes);
        if pending.is_err() {
            self.shared.give_back();
        }
        pending
    }

    /// Ends the watch: a capture that failed may have lost what it learned from it.
    pub fn give_up(&self, reason: WalkReason) {
        lock(&self.shared.changes).end(reason);
        self.shared.give_back();
    }

    /// What the last [`Watch::pending`] answered, or the first walk found, is captured and
    /// published; without this the next answer has it again. The files of directories that were
    /// added are looked at in any case until it is known who holds them; that is found out in the
    /// background.
    pub fn settle(&self) {
        let mut changes = lock(&self.shared.changes);
        let has_grown = changes.settle();
        if has_grown {
            // While the changes are locked, so that no scan that began before is taken for this
            // one.
            self.shared.scans.want();
        }
        drop(changes);
        if has_grown {
            self.scan();
        }
    }

    /// How many directories are watched.
    #[cfg(test)]
    fn watched(&self) -> usize {
        lock(&self.shared.changes).watched()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("root", &self.shared.disk_path)
            .finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.give_back();
        if let Some(thread) = self.thread.take() {
            // It ends within what it is reading; a panic there was a hole that nobody asks for any
            // more.
            let _ = thread.join();
        }
        self.shared.scans.join();
    }
}

impl Shared {
    fn inotify(&self) -> Option<Arc<OwnedFd>> {
        let gate = self.inotify.read().unwrap_or_else(PoisonError::into_inner);
        gate.clone()
    }

    /// Removes the inotify watches and ends the thread: with a hole none of them is needed.
    fn give_back(&self) {
        let mut gate = self.inotify.write().unwrap_or_else(PoisonError::into_inner);
        if gate.take().is_some() {
            // A counter that is full would block; this one is written to once.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        }
    }

    /// Reads what happens, so that the kernel's queue does not overflow while nobody captures.
    fn keep_reading(&self) {
        while let Some(inotify) = self.inotify() {
            let mut waited = [
                PollFd::new(&*inotify, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            match poll(&mut waited, None) {
                Ok(_) | Err(Errno::INTR) => {}
                // From then on only `pending` reads; the kernel reports an overflow of the queue.
                Err(_) => return,
            }
            if !waited[1].revents().is_empty() {
                return;
            }
            self.read_events();
            let mut waited = [PollFd::new(&self.stop, PollFlags::IN)];
            if poll(&mut waited, Some(&PAUSE)).is_ok_and(|ready| ready != 0) {
                return;
            }
        }
    }

    /// Reads whatever is in the queue at the call, and notes it.
    fn read_events(&self) {
        let mut buffer = lock(&self.reader);
        let Some(mut left) = self.queued_bytes() else {
            return;
        };
        loop {
            let events = {
                let gate = self.inotify.write().unwrap_or_else(PoisonError::into_inner);
                let Some(inotify) = gate.as_ref() else {
                    return;
                };
                read_some(inotify, &mut buffer)
            };
            let Ok(events) = events else {
                lock(&self.changes).end(WalkReason::LostWatch);
                return self.give_back();
            };
            // An event takes at least its header.
            left = left.saturating_sub(16 * events.len() as u64);
            let is_last = events.is_empty() || left == 0;
            // Before the changes: `add` takes the two locks in this order.
            let Some(inotify) = self.inotify() else {
                return;
            };
            let mut changes = lock(&self.changes);
            for event in &events {
                changes.note(event);
            }
            if changes.hole().is_some() {
                drop(changes);
                return self.give_back();
            }
            self.remove_unneeded(&inotify, changes);
            if is_last {
                return;
            }
        }
    }

    /// How much is in the queue; `None` once there is none.
    fn queued_bytes(&self) -> Option<u64> {
        let inotify = self.inotify()?;
        Some(rustix::io::ioctl_fionread(&*inotify).unwrap_or(u64::MAX))
    }

    fn remove_unneeded(&self, inotify: &OwnedFd, mut changes: MutexGuard<'_, Changes>) {
        for watch in changes.take_unneeded() {
            // It fails for a directory that is gone.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Looks for files that were opened before their directory was watched, and still are. Answers
    /// with whether all was looked at: with a hole nothing is needed.
    fn find_holders(&self, is_first: bool) -> bool {
        let is_needed = || self.inotify().is_some();
        let device = lock(&self.mounts).device();
        let look = || {
            let mut found = held(&self.disk_path, device, &is_needed)?;
            let known = lock(&self.held);
            found.retain(|inode, _| !known.contains_key(inode));
            Some(found)
        };
        let is_there = |inode: u64, holding: &OpenFile| {
            fs::symlink_metadata(&holding.path)
                .is_ok_and(|there| (there.dev(), there.ino()) == (self.identity.device, inode))
        };
        let is_found =
            |(inode, holding): (&u64, &OpenFile)| holding.was_there || is_there(*inode, holding);
        let Some(mut found) = look() else {
            return false;
        };
        if is_first {
            // Where they are the walk that goes on beside this finds out.
            lock(&self.held).extend(found);
            return true;
        }
        // One may go while the list is made: what cannot be found is asked for once more.
        if !found.iter().all(is_found) {
            let Some(again) = look() else {
                return false;
            };
            found = again;
        }
        // Before they are named: a name that changes meanwhile is looked at, and known by this
        // then.
        lock(&self.held).extend(found.clone());
        let mut unplaced = HashSet::new();
        let mut named = Vec::new();
        for (inode, holding) in found {
            let is_there = is_there(inode, &holding);
            match self.below(&holding.path) {
                Some(name) if is_there => named.push(name),
                // Outside of the workspace. If it has a name inside too, it has two.
                None if is_there => {}
                // It was removed, or renamed: then its new name is looked at, and known by its
                // inode.
                _ if holding.was_there => {}
                // The holder has no path for it, or one that means nothing here.
                _ => drop(unplaced.insert(inode)),
            }
        }
        if !unplaced.is_empty() {
            let added = lock(&self.changes).unscanned();
            named.extend(self.places_of(&unplaced, &added));
        }
        let mut changes = lock(&self.changes);
        for (directory, name) in named {
            changes.look_at_held(&directory, &name);
        }
        // Directories that were settled since are for the next round.
        if self.scans.is_last() {
            changes.know_holders();
        }
        changes.hole().is_none()
    }

    /// The names of these inodes in `directories`. What has gone from there meanwhile was told.
    fn places_of(
        &self,
        inodes: &HashSet<u64>,
        directories: &[Arc<RelPath>],
    ) -> Vec<(RelPath, Vec<u8>)> {
        let mut places = Vec::new();
        for directory in directories {
            let on_disk = self.disk_path.join(OsStr::from_bytes(directory.as_bytes()));
            for entry in fs::read_dir(on_disk).into_iter().flatten().flatten() {
                if inodes.contains(&entry.ino()) {
                    let name = entry.file_name().as_encoded_bytes().to_vec();
                    places.push((RelPath::clone(directory), name));
                }
            }
        }
        places
    }

    fn below(&self, path: &Path) -> Option<(RelPath, Vec<u8>)> {
        let path = path.strip_prefix(&self.disk_path).ok()?;
        let path = RelPath::new(path.as_os_str().as_bytes()).ok()?;
        Some((path.parent()?, path.name().to_owned()))
    }
}

/// Reads a buffer full of events at most; none: the queue is empty.
fn read_some(inotify: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> rustix::io::Result<Vec<Event>> {
    let mut reader = Reader::new(inotify.as_fd(), buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => events.push(Event {
                watch: event.wd(),
                what: event.events(),
                cookie: event.cookie(),
                name: event.file_name().map(|name| name.to_bytes().to_owned()),
            }),
            Err(Errno::AGAIN) => return Ok(events),
            Err(Errno::INTR) if events.is_empty() => continue,
            Err(errno) => return Err(errno),
        }
        if reader.is_buffer_empty() {
            return Ok(events);
        }
    }
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
