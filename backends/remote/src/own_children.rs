//! The processes of git that this process has started and waits for.
//!
//! A host may end what a command has left behind, or reap it, and sees those by being their parent.
//! It is the parent of these too, and leaves them alone.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The ids of those that are there. As long as somebody has them, none is started, so that a child
/// that is seen meanwhile and is not among them is somebody else's.
pub fn own_children() -> MutexGuard<'static, BTreeSet<u32>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// That a process is one of them, until this is dropped, which is once it was waited for.
#[derive(Debug)]
pub(crate) struct Own(u32);

impl Drop for Own {
    fn drop(&mut self) {
        own_children().remove(&self.0);
    }
}

/// Starts one.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Own)> {
    let mut own = own_children();
    let child = command.spawn()?;
    own.insert(child.id());
    let id = Own(child.id());
    Ok((child, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_there_from_its_start_until_it_was_waited_for() {
        let (mut child, own) = spawn(&mut Command::new("true")).unwrap();
        assert!(own_children().contains(&child.id()));
        child.wait().unwrap();
        drop(own);
        assert!(!own_children().contains(&child.id()));
    }
}
