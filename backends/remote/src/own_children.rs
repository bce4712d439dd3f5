//! The processes that this process has started beside commands, and waits for: git, and what a host
//! has for itself.
//!
//! Whoever ends or reaps what a command has left behind sees that by being its parent. It is the
//! parent of these too, and leaves them alone.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The ids of those that are there. As long as somebody has them, none is started, so that a child
/// that is seen meanwhile and is not among them is somebody else's.
pub fn own_children() -> MutexGuard<'static, BTreeSet<u32>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// That a process is left alone, until this is dropped, which is once it was waited for.
#[derive(Debug)]
pub struct OwnChild(Option<u32>);

impl Drop for OwnChild {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            own_children().remove(&id);
        }
    }
}

/// Starts a process that is left alone from its start on, as long as its [`OwnChild`] lives. `id`:
/// its id, if it has one.
///
/// It is for a host that starts something while a command works whose orphans it adopts.
pub fn start<C>(
    spawn: impl FnOnce() -> io::Result<C>,
    id: impl FnOnce(&C) -> Option<u32>,
) -> io::Result<(C, OwnChild)> {
    let mut own = own_children();
    let child = spawn()?;
    let id = id(&child);
    own.extend(id);
    Ok((child, OwnChild(id)))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn one_is_there_from_its_start_until_it_was_waited_for() {
        let spawn = || Command::new("true").spawn();
        let (mut child, own) = start(spawn, |child: &Child| Some(child.id())).unwrap();
        assert!(own_children().contains(&child.id()));
        child.wait().unwrap();
        drop(own);
        assert!(!own_children().contains(&child.id()));
    }
}
