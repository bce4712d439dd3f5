//! For tests: the observer of an operation's calls, which makes one of them fail.

use std::collections::BTreeMap;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Effect;
use super::sample::Calls;

/// What goes wrong with the calls of an operation.
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

/// Sees the calls of an operation. Clones are the same witness.
#[derive(Clone, Debug)]
pub struct Witness(Arc<Mutex<Seen>>);

#[derive(Debug)]
struct Seen {
    fault: Fault,
    /// Where in the code each call was made, in their order.
    places: Vec<&'static Location<'static>>,
    /// Those that said what they do, by their numbers.
    done: Vec<(u64, Done)>,
    look: Option<Look>,
}

/// Called before every call.
struct Look(Box<dyn FnMut() + Send>);

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Look")
    }
}

impl Witness {
    /// One that has seen nothing yet.
    pub fn of(fault: Fault) -> Self {
        Self::new(fault, None)
    }

    /// One that calls `look` before each call.
    pub fn looking(look: impl FnMut() + Send + 'static) -> Self {
        Self::new(Fault::None, Some(Look(Box::new(look))))
    }

    fn new(fault: Fault, look: Option<Look>) -> Self {
        Self(Arc::new(Mutex::new(Seen {
            fault,
            places: Vec::new(),
            done: Vec::new(),
            look,
        })))
    }

    /// How many calls there were.
    pub fn count(&self) -> u64 {
        self.seen().places.len() as u64
    }

    /// The calls, for a test to choose from.
    pub fn calls(&self) -> Calls {
        Calls::new(self.seen().places.clone())
    }

    /// Those of the calls that said what they do, in their order.
    pub fn done(&self) -> Vec<Done> {
        let seen = self.seen();
        seen.done.iter().map(|(_, done)| done.clone()).collect()
    }

    /// The same by the number of each call.
    pub fn done_by_number(&self) -> BTreeMap<u64, Done> {
        self.seen().done.iter().cloned().collect()
    }

    pub(crate) fn before(
        &self,
        effect: Option<Effect<&Path>>,
        place: &'static Location<'static>,
    ) -> io::Result<()> {
        let mut seen = self.seen();
        if let Some(Look(look)) = &mut seen.look {
            look();
        }
        let call = seen.places.len() as u64;
        seen.places.push(place);
        let is_sync = matches!(
            effect,
            Some(Effect::Sync(_) | Effect::SyncDirectory(_) | Effect::SyncFileSystem(_))
        );
        seen.done
            .extend(effect.map(|effect| (call, Done::from(effect))));
        match seen.fault {
            Fault::StopBefore(at) if call >= at => Err(io::Error::other("the process died")),
            Fault::FailAt(at, errno) if call == at => Err(io::Error::from_raw_os_error(errno)),
            Fault::SyncsFailFrom(at, errno) if call >= at && is_sync => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(()),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Where a look panicked, files that are dropped meanwhile are still seen.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
