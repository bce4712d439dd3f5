//! The places where a test can stop what changes the disk: before every call that does.
//!
//! Each of them says here what it is about to do. A test can make any one fail, end the process in
//! front of it, or read afterwards what was done in which order. In a program that is not a test
//! nothing here does anything.

use std::io;
use std::path::Path;

use crate::interrupt::Heeded;
use crate::room::Given;

#[cfg(any(test, feature = "testing"))]
mod sample;

/// A call that changes the disk, or makes a change of it last; with the paths that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<P> {
    /// Makes a file that nobody looks for yet, in this directory.
    Stage(P),
    /// Makes a directory.
    MakeDirectory(P),
    /// Changes the bytes, the length or the mode of a file.
    Write(P),
    /// Gives a file a further name.
    Link(P),
    /// Gives a file another name.
    Rename {
        /// The name that it has.
        from: P,
        /// The name that it gets.
        to: P,
    },
    /// Takes the name of a file away.
    Remove(P),
    /// Makes the bytes of a file survive a power cut.
    Sync(P),
    /// Makes the names in a directory survive a power cut.
    SyncDirectory(P),
    /// Makes everything on the file system of this path survive a power cut.
    SyncFileSystem(P),
}

/// Asked before a call that changes the disk; an error means that it must not be made.
#[cfg(not(any(test, feature = "testing")))]
#[inline]
pub fn before() -> io::Result<()> {
    Ok(())
}

/// As [`before`], for a call that says what it does.
#[cfg(not(any(test, feature = "testing")))]
#[inline]
pub fn effect(_: Effect<&Path>) -> io::Result<()> {
    Ok(())
}

/// What the threads that a thread starts have to share with it: the wish to stop that it heeds, and in
/// tests who sees their calls.
#[cfg(not(any(test, feature = "testing")))]
#[derive(Clone, Debug)]
pub struct Seam {
    heeded: Heeded,
    room: Given,
}

#[cfg(not(any(test, feature = "testing")))]
impl Seam {
    /// That of this thread.
    pub fn of_this_thread() -> Self {
        Self {
            heeded: Heeded::of_this_thread(),
            room: Given::of_this_thread(),
        }
    }

    /// Makes it that of this thread, until the thread ends.
    pub fn enter(&self) {
        self.heeded.enter();
        self.room.enter();
    }
}

#[cfg(any(test, feature = "testing"))]
pub use armed::{Done, Fault, Seam, before, calls_of, effect, looked_at, seen, with};
#[cfg(any(test, feature = "testing"))]
pub use sample::Calls;

#[cfg(any(test, feature = "testing"))]
mod armed {
    use std::cell::RefCell;
    use std::panic::Location;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex, MutexGuard};

    use super::sample::Calls;
    use super::{Effect, Given, Heeded, Path, io};

    /// What goes wrong on this thread and those that it starts.
    #[derive(Clone, Copy, Debug)]
    pub enum Fault {
        /// Nothing; calls are counted.
        None,
        /// The process dies: neither this call nor any later one is made.
        StopBefore(u64),
        /// This one call fails.
        FailAt(u64, i32),
        /// No sync works from this call on; every other call does.
        SyncsFailFrom(u64, i32),
    }

    /// A call that was made, or tried.
    pub type Done = Effect<PathBuf>;

    impl From<Effect<&Path>> for Done {
        fn from(effect: Effect<&Path>) -> Self {
            match effect {
                Effect::Stage(path) => Self::Stage(path.to_owned()),
                Effect::MakeDirectory(path) => Self::MakeDirectory(path.to_owned()),
                Effect::Write(path) => Self::Write(path.to_owned()),
                Effect::Link(path) => Self::Link(path.to_owned()),
                Effect::Rename { from, to } => Self::Rename {
                    from: from.to_owned(),
                    to: to.to_owned(),
                },
                Effect::Remove(path) => Self::Remove(path.to_owned()),
                Effect::Sync(path) => Self::Sync(path.to_owned()),
                Effect::SyncDirectory(path) => Self::SyncDirectory(path.to_owned()),
                Effect::SyncFileSystem(path) => Self::SyncFileSystem(path.to_owned()),
            }
        }
    }

    #[derive(Debug)]
    struct Armed {
        fault: Fault,
        /// Where in the code each call was made, in their order.
        places: Vec<&'static Location<'static>>,
        seen: Vec<Done>,
        look: Option<Look>,
    }

    /// Called before every call.
    struct Look(Box<dyn FnMut() + Send>);

    impl std::fmt::Debug for Look {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Look")
        }
    }

    impl Armed {
        fn calls(&self) -> u64 {
            self.places.len() as u64
        }

        fn before(
            &mut self,
            effect: Option<Done>,
            place: &'static Location<'static>,
        ) -> io::Result<()> {
            if let Some(Look(look)) = &mut self.look {
                look();
            }
            let call = self.calls();
            self.places.push(place);
            let is_sync = matches!(
                effect,
                Some(Effect::Sync(_) | Effect::SyncDirectory(_) | Effect::SyncFileSystem(_))
            );
            self.seen.extend(effect);
            match self.fault {
                Fault::StopBefore(at) if call >= at => Err(io::Error::other("the process died")),
                Fault::FailAt(at, errno) if call == at => Err(io::Error::from_raw_os_error(errno)),
                Fault::SyncsFailFrom(at, errno) if call >= at && is_sync => {
                    Err(io::Error::from_raw_os_error(errno))
                }
                _ => Ok(()),
            }
        }
    }

    /// What the threads that a thread starts have to share with it: the wish to stop that it heeds, and who
    /// sees their calls.
    #[derive(Clone, Debug)]
    pub struct Seam {
        heeded: Heeded,
        room: Given,
        watcher: Watcher,
    }

    /// Who sees the calls, if anybody.
    type Watcher = Option<Arc<Mutex<Armed>>>;

    thread_local! {
        static WATCHER: RefCell<Watcher> = const { RefCell::new(None) };
    }

    impl Seam {
        /// That of this thread.
        pub fn of_this_thread() -> Self {
            Self {
                heeded: Heeded::of_this_thread(),
                room: Given::of_this_thread(),
                watcher: WATCHER.with_borrow(Clone::clone),
            }
        }

        /// Makes it that of this thread, until the thread ends.
        pub fn enter(&self) {
            self.heeded.enter();
            self.room.enter();
            WATCHER.set(self.watcher.clone());
        }
    }

    fn locked(armed: &Mutex<Armed>) -> MutexGuard<'_, Armed> {
        armed.lock().expect("a look that panics fails the test")
    }

    fn told(effect: Option<Done>, place: &'static Location<'static>) -> io::Result<()> {
        match WATCHER.with_borrow(Clone::clone) {
            Some(armed) => locked(&armed).before(effect, place),
            None => Ok(()),
        }
    }

    /// See the other of this name.
    #[track_caller]
    pub fn before() -> io::Result<()> {
        told(None, Location::caller())
    }

    /// See the other of this name.
    #[track_caller]
    pub fn effect(effect: Effect<&Path>) -> io::Result<()> {
        told(Some(effect.into()), Location::caller())
    }

    fn armed<T>(fault: Fault, look: Option<Look>, work: impl FnOnce() -> T) -> (T, Armed) {
        let armed = Arc::new(Mutex::new(Armed {
            fault,
            places: Vec::new(),
            seen: Vec::new(),
            look,
        }));
        WATCHER.set(Some(Arc::clone(&armed)));
        let answer = work();
        WATCHER.set(None);
        let mut armed = locked(&armed);
        let after = Armed {
            fault,
            places: std::mem::take(&mut armed.places),
            seen: std::mem::take(&mut armed.seen),
            look: None,
        };
        (answer, after)
    }

    /// Runs `work` with a fault, and answers with how many calls it wanted to make as well.
    pub fn with<T>(fault: Fault, work: impl FnOnce() -> T) -> (T, u64) {
        let (answer, armed) = armed(fault, None, work);
        (answer, armed.calls())
    }

    /// Runs `work`, and answers with its calls as well, for a test to choose from.
    pub fn calls_of<T>(work: impl FnOnce() -> T) -> (T, Calls) {
        let (answer, armed) = armed(Fault::None, None, work);
        (answer, Calls::new(armed.places))
    }

    /// Runs `work`, and calls `look` before each of its calls.
    pub fn looked_at<T>(look: impl FnMut() + Send + 'static, work: impl FnOnce() -> T) -> T {
        let look = Look(Box::new(look));
        armed(Fault::None, Some(look), work).0
    }

    /// Runs `work`, and answers with the calls that it made, in their order, as well.
    pub fn seen<T>(work: impl FnOnce() -> T) -> (T, Vec<Done>) {
        let (answer, armed) = armed(Fault::None, None, work);
        (answer, armed.seen)
    }
}
