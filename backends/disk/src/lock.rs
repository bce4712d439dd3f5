//! Locks that the kernel holds for a process, and drops when it dies.
//!
//! flock(2) locks an open file description, so two threads that open the same file exclude each
//! other too. It has no variant with a timeout.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use stillframe_model::error::PathError;
use stillframe_model::lock_error::LockError;
use stillframe_model::path::printable_bytes;

use crate::deadline::Deadline;
use crate::operation::Operation;
use crate::regular_file::open_regular;

/// Takes the lock on a file, and says whether it has it; `false`: somebody else has.
pub fn try_lock(file: impl AsFd) -> io::Result<bool> {
    try_flock(file, FlockOperation::NonBlockingLockExclusive)
}

fn try_flock(file: impl AsFd, operation: FlockOperation) -> io::Result<bool> {
    match rustix::io::retry_on_intr(|| rustix::fs::flock(file.as_fd(), operation)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// As [`try_lock`], until the deadline.
pub fn lock_within(op: &Operation, file: impl AsFd, deadline: Deadline) -> io::Result<bool> {
    flock_within(op, file, deadline, FlockOperation::NonBlockingLockExclusive)
}

/// As [`lock_within`], but a shared lock: any number may hold it at once, and no exclusive lock is
/// possible meanwhile.
pub fn shared_lock_within(op: &Operation, file: impl AsFd, deadline: Deadline) -> io::Result<bool> {
    flock_within(op, file, deadline, FlockOperation::NonBlockingLockShared)
}

fn flock_within(
    op: &Operation,
    file: impl AsFd,
    deadline: Deadline,
    operation: FlockOperation,
) -> io::Result<bool> {
    loop {
        if try_flock(file.as_fd(), operation)? {
            return Ok(true);
        }
        if !deadline.pause(op) {
            return Ok(false);
        }
    }
}

/// Lets go of the lock on a file that stays open.
pub fn unlock(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::Unlock)?)
}

/// Writes into `file` who holds the lock, for messages of those who wait. The lock is the kernel's:
/// where this fails, nothing but a name is missing.
pub fn write_holder(file: &mut File, holder: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{holder}")
}

/// What the holder of the lock on `file` wrote, printable.
pub fn read_holder(file: &mut File) -> String {
    /// Our own processes never write more.
    const MAX_BYTES: u64 = 1024;
    let mut text = Vec::new();
    let _ = file.rewind();
    let _ = file.take(MAX_BYTES).read_to_end(&mut text);
    match printable_bytes(text.trim_ascii()) {
        text if text.is_empty() => "another process".to_owned(),
        text => text,
    }
}

/// What this process is called as a holder: its id and command.
pub fn this_process() -> String {
    let command = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&command).file_name().unwrap_or(&command);
    let name = match name.to_string_lossy() {
        name if name.is_empty() => "unknown".into(),
        name => name,
    };
    format!("process {} ({name})", std::process::id())
}

/// A file that is there to be locked, locked.
///
/// It is never deleted, because a file that is deleted while somebody waits for it is locked by
/// two.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

impl LockFile {
    /// Waits at most `timeout`. `what` is for the message.
    pub fn acquire(
        op: &Operation,
        path: &Path,
        what: &str,
        timeout: Duration,
    ) -> Result<Self, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = open_regular(options.mode(0o600), path)
            .map_err(PathError::at("open the lock file", path))?;
        let locked = Self::lock(op, file, path, timeout)?;
        locked.map_err(|holder| LockError::Busy {
            what: what.to_owned(),
            holder,
        })
    }

    /// Locks `file`, which is at `path`. The inner error is who has it.
    pub(crate) fn lock(
        op: &Operation,
        mut file: File,
        path: &Path,
        timeout: Duration,
    ) -> Result<Result<Self, String>, PathError> {
        let is_ours = lock_within(op, &file, Deadline::after(timeout));
        if !is_ours.map_err(PathError::at("lock", path))? {
            return Ok(Err(read_holder(&mut file)));
        }
        let _ = write_holder(&mut file, &this_process());
        Ok(Ok(Self { _file: file }))
    }
}

#[cfg(test)]
mod tests {
    use stillframe_model::error::ErrorKind;

    use super::*;

    #[test]
    fn a_lock_is_had_by_one_who_is_named_to_the_others_until_he_lets_go() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("lock");
        let held =
            LockFile::acquire(&Operation::unbounded(), &path, "the store", Duration::ZERO).unwrap();
        let busy = LockFile::acquire(
            &Operation::unbounded(),
            &path,
            "the store",
            Duration::from_millis(5),
        )
        .unwrap_err();
        let expected = format!("the store is in use by {}", this_process());
        assert_eq!(busy.to_string(), expected);
        assert_eq!(busy.kind(), ErrorKind::Busy);
        drop(held);
        LockFile::acquire(&Operation::unbounded(), &path, "the store", Duration::ZERO).unwrap();
    }

    #[test]
    fn whoever_has_a_lock_and_did_not_say_who_is_another_process() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(read_holder(&mut file), "another process");
        write_holder(&mut file, "run 1\u{1b}[2J of session s").unwrap();
        write_holder(&mut file, "run\u{1b}").unwrap();
        assert_eq!(
            read_holder(&mut file),
            "run\\u{1b}",
            "the whole text is replaced"
        );
    }
}
