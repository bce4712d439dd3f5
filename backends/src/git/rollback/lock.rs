//! Writing files of the user's repository under git's own locks: the whole new content in
//! `<file>.lock`, which must not exist yet, then a rename.
//!
//! A lock is a hard link to a file whose name has the id of the operation, so that after a crash
//! our own lock can be told from a foreign one.

use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::MAX_INDEX_BYTES;
use crate::deadline::Deadline;
use crate::descriptor::{self, Stat};
use crate::error::{PathError, printable};
use crate::git::directory::{give_to, read_file};
use crate::git::put_error::PutError;
use crate::operation::Operation;

/// What git adds to the name of a file for that of its lock.
const LOCK_SUFFIX: &str = ".lock";

/// The longest name that a file may have.
const MAX_NAME_BYTES: usize = 255;

/// The locks of one operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::git) struct Locks<'a> {
    /// The operation's id: a part of the name of a file.
    pub(in crate::git) operation: &'a str,
    /// A crash of this very operation may have left locks that hold what they would hold now.
    pub(in crate::git) is_recovery: bool,
    /// How long a foreign lock is waited for.
    pub(in crate::git) lock_timeout: Duration,
}

impl Locks<'_> {
    /// Takes away what a crash of this operation left in the user's way at `place`.
    ///
    /// Best effort. On a file system without hard links, only its content shows that a lock is
    /// ours, so it stays.
    pub(in crate::git) fn release_what_a_crash_left(&self, op: &Operation, place: &Place<'_>) {
        let lock = self.lock_of(place);
        if let Ok(Some(evidence)) = place.look(&lock.evidence) {
            let held = place.look(&lock.name);
            if held.is_ok_and(|held| held.is_some_and(|held| is_one_file(&held, &evidence))) {
                let _ = place.release(op, &lock.name);
            }
            let _ = place.release(op, &lock.evidence);
        }
    }

    /// Takes the lock of a file, with what it is to get, for a later [`Locks::replace`] of this
    /// operation that finds it as its own. A file system without hard links cannot tell it from
    /// another's later, and is refused.
    pub(in crate::git) fn hold(
        &self,
        op: &Operation,
        place: &Place<'_>,
        new: New<'_>,
    ) -> Result<(), PutError> {
        let lock = self.acquire(op, place, new)?;
        if self.is_held(place) {
            return Ok(());
        }
        if !self.is_recovery {
            // It was taken just now.
            place.release(op, &lock.name)?;
        }
        Err(PutError::Unsafe {
            what: printable(place.path),
            problem: "on a file system without hard links, so that no lock of ours is known again",
        })
    }

    /// Whether the lock at `place` is one of this operation.
    pub(in crate::git) fn is_held(&self, place: &Place<'_>) -> bool {
        let lock = self.lock_of(place);
        match (place.look(&lock.name), place.look(&lock.evidence)) {
            (Ok(Some(held)), Ok(Some(evidence))) => is_one_file(&held, &evidence),
            _ => false,
        }
    }

    fn lock_of(&self, place: &Place<'_>) -> Lock {
        // In a directory with refs git takes every file for one, and packs it, unless its name ends
        // so.
        let evidence =
            |of: &dyn Display| format!("stillframe-{}~{of}{LOCK_SUFFIX}", self.operation);
        let mut lock = Lock {
            name: format!("{}{LOCK_SUFFIX}", place.name),
            evidence: evidence(&place.name),
        };
        if lock.evidence.len() > MAX_NAME_BYTES {
            lock.evidence = evidence(&blake3::hash(place.name.as_bytes()));
        }
        lock
    }

    /// Replaces a file, or removes it, under git's own lock for it. `judge` is asked under the
    /// lock.
    pub(in crate::git) fn replace(
        &self,
        op: &Operation,
        place: &Place<'_>,
        new: Option<New<'_>>,
        judge: &Judge<'_>,
    ) -> Result<(), PutError> {
        let lock = self.acquire(op, place, new.unwrap_or(New::of(&[])))?;
        // From here on every way out leads past the release.
        let judged = place.read().and_then(|now| judge(now.as_deref()));
        let done = judged.and_then(|verdict| match (verdict, new) {
            (Verdict::Right, _) => Ok(Held::Yes),
            (Verdict::Replace, None) => Ok(place.unlink(op, place.name).map(|()| Held::Yes)?),
            (Verdict::Replace, Some(_)) => {
                op.before().map_err(place.at("replace"))?;
                rustix::fs::renameat(place.directory, &lock.name, place.directory, place.name)
                    .map_err(place.at("replace"))?;
                Ok(Held::No)
            }
        });
        // Whatever came of it, nothing of ours may stay in the user's way. Once renamed, the lock
        // is free, and one of that name is somebody else's.
        let released = match done {
            Ok(Held::No) => Ok(()),
            _ => place.release(op, &lock.name),
        }
        .and(place.release(op, &lock.evidence));
        done?;
        released?;
        rustix::fs::fsync(place.directory).map_err(place.at("sync the directory of"))?;
        Ok(())
    }

    /// Takes `<name>.lock` with the new content in it, whole and synced.
    fn acquire(&self, op: &Operation, place: &Place<'_>, new: New<'_>) -> Result<Lock, PutError> {
        let lock = self.lock_of(place);
        if self.is_recovery && self.is_ours(place, &lock, new.bytes)? {
            return Ok(lock);
        }
        place.unlink(op, &lock.evidence)?;
        self.write_evidence(op, place, &lock, new)?;
        let deadline = Deadline::after(self.lock_timeout);
        loop {
            let linked = match op.before() {
                Ok(()) => rustix::fs::linkat(
                    place.directory,
                    &lock.evidence,
                    place.directory,
                    &lock.name,
                    AtFlags::empty(),
                ),
                Err(refused) => Err(Errno::from_io_error(&refused).unwrap_or(Errno::IO)),
            };
            let taken = match linked {
                // A file system without hard links.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                    rustix::fs::renameat_with(
                        place.directory,
                        &lock.evidence,
                        place.directory,
                        &lock.name,
                        RenameFlags::NOREPLACE,
                    )
                }
                other => other,
            };
            match taken {
                Ok(()) => return Ok(lock),
                Err(Errno::EXIST) if seeded_bug!("foreign-lock-deleted") => {
                    place.unlink(op, &lock.name)?;
                }
                Err(Errno::EXIST) if deadline.pause(op) => {}
                Err(errno) => {
                    // Nothing but our own file, which is of no use without the lock.
                    let _ = place.release(op, &lock.evidence);
                    return Err(match errno {
                        Errno::EXIST => PutError::Locked {
                            what: printable(&place.path.join(&lock.name)),
                        },
                        errno => place.at("lock")(errno).into(),
                    });
                }
            }
        }
    }

    /// Whether the lock is what a crash of this very operation left.
    fn is_ours(&self, place: &Place<'_>, lock: &Lock, bytes: &[u8]) -> Result<bool, PutError> {
        let Some(held) = place.look(&lock.name)? else {
            return Ok(false);
        };
        Ok(match place.look(&lock.evidence)? {
            Some(evidence) => is_one_file(&held, &evidence),
            // Without hard links the evidence itself became the lock, whole.
            None => {
                let content = read_file(
                    place.directory,
                    lock.name.as_bytes(),
                    MAX_INDEX_BYTES,
                    place.path,
                )?;
                !bytes.is_empty() && content.as_deref() == Some(bytes)
            }
        })
    }

    fn write_evidence(
        &self,
        op: &Operation,
        place: &Place<'_>,
        lock: &Lock,
        new: New<'_>,
    ) -> Result<(), PutError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What is replaced keeps its owner and mode; something new gets those of its directory.
        let like = match place.look(place.name)? {
            Some(_) => rustix::fs::statat(place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW),
            None => rustix::fs::fstat(place.directory),
        }
        .map_err(place.at("look at"))?;
        op.before().map_err(place.at("lock"))?;
        let fd = rustix::fs::openat(
            place.directory,
            &lock.evidence,
            flags,
            Mode::from_raw_mode(0o600),
        )
        .map_err(place.at("lock"))?;
        let mut file = File::from(fd);
        let written = op.before().and_then(|()| {
            file.write_all(new.bytes)?;
            if let Some(modified_ns) = new.modified_ns {
                set_modified(&file, modified_ns)?;
            }
            give_to(file.as_fd(), &like)?;
            file.set_permissions(std::fs::Permissions::from_mode(like.st_mode & 0o666))?;
            file.sync_all()
        });
        if let Err(source) = written {
            let _ = place.release(op, &lock.evidence);
            return Err(place.at("lock")(source).into());
        }
        Ok(())
    }
}

/// What a file gets.
#[derive(Clone, Copy)]
pub(in crate::git) struct New<'a> {
    pub(in crate::git) bytes: &'a [u8],
    /// When it was last written, in nanoseconds since the Unix epoch; `None`: it is now.
    pub(in crate::git) modified_ns: Option<i64>,
}

impl<'a> New<'a> {
    pub(in crate::git) fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            modified_ns: None,
        }
    }
}

fn set_modified(file: &File, ns: i64) -> std::io::Result<()> {
    let since_epoch = Duration::from_nanos(ns.unsigned_abs());
    file.set_modified(match ns < 0 {
        true => SystemTime::UNIX_EPOCH - since_epoch,
        false => SystemTime::UNIX_EPOCH + since_epoch,
    })
}

/// Whether two names are of one file.
fn is_one_file(one: &Stat, other: &Stat) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Says what to do with a file that holds this; `None`: that is not there.
pub(in crate::git) type Judge<'a> = dyn Fn(Option<&[u8]>) -> Result<Verdict, PutError> + 'a;

/// What to do with a file once its lock is held.
pub(in crate::git) enum Verdict {
    /// It is as it should be.
    Right,
    Replace,
}

/// Whether a lock still is in the way of others.
enum Held {
    Yes,
    No,
}

/// A lock in the user's repository, and the file whose link it is.
struct Lock {
    name: String,
    /// Our own file, whose name has the operation's id. It is no lock of git's own: a ref's name
    /// never has a tilde.
    evidence: String,
}

/// A file in a directory of the user's repository.
pub(in crate::git) struct Place<'a> {
    pub(in crate::git) directory: BorrowedFd<'a>,
    pub(in crate::git) path: &'a Path,
    pub(in crate::git) name: &'a str,
}

impl Place<'_> {
    fn at<E: Into<std::io::Error>>(
        &self,
        operation: &'static str,
    ) -> impl FnOnce(E) -> PathError + use<E> {
        PathError::at(operation, self.path.join(self.name))
    }

    fn look(&self, name: &str) -> Result<Option<Stat>, PathError> {
        match descriptor::lstat_at(self.directory, name.as_bytes()) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.at("look at")(errno)),
        }
    }

    pub(in crate::git) fn read(&self) -> Result<Option<Vec<u8>>, PutError> {
        read_file(
            self.directory,
            self.name.as_bytes(),
            MAX_INDEX_BYTES,
            self.path,
        )
    }

    /// Removes what would stay in the user's way. What fails once may be transient, and is tried
    /// once more.
    fn release(&self, op: &Operation, name: &str) -> Result<(), PathError> {
        if seeded_bug!("lock-left") {
            return Ok(());
        }
        self.unlink(op, name).or_else(|_| self.unlink(op, name))
    }

    fn unlink(&self, op: &Operation, name: &str) -> Result<(), PathError> {
        op.before().map_err(self.at("remove"))?;
        match rustix::fs::unlinkat(self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.at("remove")(errno)),
        }
    }
}
