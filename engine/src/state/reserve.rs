//! A reserve of disk space in the state directory, for commands that free space or restore. A
//! completely full disk has no space even for the shared memory of the database. Recovery may use
//! the reserve too: an interrupted restore has replaced some files and not others, and must be
//! finished without waiting for a person.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use stillframe_backends::{ErrorKind, open_regular, printable};

use crate::blocking::Blocking;
use crate::error::Error;
use crate::state::file_size_limit::has_file_size_limit;

/// The space that the database, a journal and a snapshot of the present state need, doubled for
/// file systems with larger blocks.
const BYTES: u64 = 1 << 20;

/// Less is not worth a file: the memory that the processes of the database share takes 32 KiB.
const MIN_BYTES: u64 = 128 << 10;

/// If a full disk has no space for the whole reserve, it is made smaller in steps of this size.
const STEP_BYTES: u64 = 64 << 10;

/// On a disk with less than this many times its size left it is not made: there others need it
/// more.
const MIN_TIMES_FREE: u64 = 16;

/// The reserve on the disk of a state directory. Clones share it.
///
/// An engine that lent it to somebody puts it back when it ends, and until then begins nothing that
/// would use it up.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    state_dir: Arc<Path>,
    is_lent: Arc<AtomicBool>,
    /// Held while it is put back: an engine that ends may do that on two threads.
    putting_back: Arc<Mutex<()>>,
}

impl Reserve {
    /// That of this state directory, whether it is there or not.
    pub(crate) fn of(state_dir: &Path) -> Self {
        Self {
            state_dir: state_dir.into(),
            is_lent: Arc::default(),
            putting_back: Arc::default(),
        }
    }

    /// Makes the reserve complete if the disk has enough free space. Best effort. Blocks.
    pub(crate) fn keep(&self) {
        if self.bytes() < BYTES
            && free(&self.state_dir).is_some_and(|f| f >= BYTES * MIN_TIMES_FREE)
        {
            self.make(BYTES);
        }
    }

    /// Releases the reserve, for an operation that found the disk full; `false`: there is none, or
    /// it would be of no use. Blocks.
    pub(crate) fn lend(&self) -> bool {
        let is_full = free(&self.state_dir).is_none_or(|free| free < BYTES);
        // A quota shows in no number of the disk's.
        if !is_full && has_file_size_limit() {
            return false;
        }
        let is_lent = fs::remove_file(self.place()).is_ok();
        if is_lent {
            self.is_lent.store(true, Ordering::Relaxed);
        }
        is_lent
    }

    /// Whether this engine lent it to somebody.
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Relaxed)
    }

    /// Makes the reserve again if it was released, from the space that is left after the work. Best
    /// effort. Blocks.
    pub(crate) fn put_back(&self) {
        let lock = self.putting_back.lock();
        let _lock = lock.unwrap_or_else(PoisonError::into_inner);
        if !self.is_lent() || self.bytes() > 0 {
            return;
        }
        let mut bytes = free(&self.state_dir).map_or(BYTES, |free| free.min(BYTES));
        while bytes >= MIN_BYTES && !self.make(bytes) {
            bytes -= STEP_BYTES;
        }
    }

    /// Does `work`; if the disk is full and nothing was touched, does it once more with the reserve
    /// released.
    pub(crate) async fn if_needed<T, F>(
        &self,
        blocking: &Blocking,
        work: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match work().await {
            Err(e) if e.kind() == ErrorKind::NoSpace && !e.touched() => {
                let reserve = self.clone();
                match blocking.run(move || reserve.lend()).await? {
                    true => work().await,
                    false => Err(e),
                }
            }
            done => done,
        }
    }

    /// Refuses to begin work whose end could not be written down. `what`: the work, as in "step
    /// "build"". Blocks.
    pub(crate) fn check(&self, what: &str) -> Result<(), Error> {
        let is_lent = self.is_lent();
        if is_enough(self.bytes() == BYTES, is_lent, free(&self.state_dir)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "less than {} KiB are free on the disk of {}, so that the end of {what} could not be written down; it was not begun",
                BYTES / 1024,
                printable(&self.state_dir)
            ),
        ))
    }

    /// Refuses to begin work that could use up what was lent. Blocks.
    pub(crate) fn check_if_lent(&self, what: &str) -> Result<(), Error> {
        match self.is_lent() {
            true => self.check(what),
            false => Ok(()),
        }
    }

    fn place(&self) -> PathBuf {
        self.state_dir.join("reserve")
    }

    /// How much is kept; zero: nothing.
    fn bytes(&self) -> u64 {
        let found = fs::symlink_metadata(self.place())
            .ok()
            .filter(|m| m.is_file());
        found.map_or(0, |m| m.len())
    }

    fn make(&self, bytes: u64) -> bool {
        let staged = self.state_dir.join("reserve.new");
        let made = make(&staged, bytes).and_then(|()| fs::rename(&staged, self.place()));
        if let Err(e) = &made {
            tracing::debug!(error = %e, "no room is kept for recovery");
            // Another engine may be making it, under the same name.
            let _ = fs::remove_file(&staged);
        }
        made.is_ok()
    }
}

fn make(staged: &Path, bytes: u64) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let file = open_regular(options.mode(0o600), staged)?;
    // Blocks, and not only a length.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    file.sync_all()
}

/// Whether the end of work that begins now could be written down: there is the reserve, or as much
/// room on the disk, and beside it the reserve's own if that is lent. Where the system cannot tell,
/// there is.
fn is_enough(is_kept: bool, is_lent: bool, free: Option<u64>) -> bool {
    let needed = if is_lent { 2 * BYTES } else { BYTES };
    is_kept || free.is_none_or(|free| free >= needed)
}

/// How many bytes others than the system's own user may still use; `None`: not known.
fn free(state_dir: &Path) -> Option<u64> {
    let told = rustix::fs::statvfs(state_dir).ok()?;
    // A file system that has no size says so by this.
    (told.f_blocks > 0).then(|| told.f_bavail.saturating_mul(told.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn work_begins_where_its_end_can_be_written_down() {
        for (is_kept, is_lent, free, expected) in [
            (true, false, Some(0), true),
            (false, false, Some(BYTES), true),
            (false, false, Some(BYTES - 1), false),
            (false, true, Some(2 * BYTES), true),
            // What is free is what was lent.
            (false, true, Some(2 * BYTES - 1), false),
            // If it is not known, work is not refused.
            (false, false, None, true),
        ] {
            assert_eq!(
                is_enough(is_kept, is_lent, free),
                expected,
                "{is_kept} {is_lent} {free:?}"
            );
        }
        let state = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(state.path());
        assert_eq!(reserve.bytes(), 0);
        fs::write(reserve.place(), "x").unwrap();
        assert_eq!(reserve.bytes(), 1);
        reserve.keep();
        assert_eq!(reserve.bytes(), BYTES, "one of another size is made anew");
        assert!(free(state.path()).is_some());
        assert_eq!(free(&state.path().join("gone")), None);
    }

    #[test]
    fn it_takes_blocks_is_private_and_is_put_back_by_who_lent_it() {
        let state = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(state.path());
        reserve.keep();
        let meta = fs::metadata(reserve.place()).unwrap();
        assert_eq!(meta.len(), BYTES);
        assert!(meta.blocks() * 512 >= BYTES, "{} blocks", meta.blocks());
        assert_eq!(meta.mode() & 0o777, 0o600);
        reserve.keep();
        let again = fs::metadata(reserve.place()).unwrap();
        assert_eq!(again.ino(), meta.ino(), "it is made once");
        let names: Vec<_> = fs::read_dir(state.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "and leaves nothing beside it: {names:?}");
        let other = Reserve::of(state.path());
        assert!(reserve.clone().lend());
        assert!(!reserve.lend() && !other.lend());
        other.put_back();
        assert_eq!(reserve.bytes(), 0, "who lent nothing puts nothing back");
        reserve.put_back();
        assert_eq!(reserve.bytes(), BYTES);
    }

    // The second one truncated what the first had made.
    #[test]
    fn two_threads_that_put_it_back_make_it_once() {
        let state = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(state.path());
        reserve.keep();
        for _ in 0..50 {
            assert!(reserve.lend());
            let barrier = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        barrier.wait();
                        reserve.clone().put_back();
                    });
                }
            });
            assert_eq!(reserve.bytes(), BYTES);
            assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1);
        }
    }
}
