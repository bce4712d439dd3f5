//! Writing lines of reflogs.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::descriptor;
use crate::git::ObjectId;
use crate::git::directory::{Create, give_to, open_below};
use crate::git::repository::{Settings, split};
use crate::operation::Operation;

/// Stands for no commit.
const NO_COMMIT: ObjectId = ObjectId([0; 20]);

/// The longest line that is looked for at the end of a log.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// A line of a reflog.
pub(in crate::git) struct Line<'a> {
    pub(in crate::git) from: Option<ObjectId>,
    pub(in crate::git) to: Option<ObjectId>,
    /// `Name <address>`.
    pub(in crate::git) committer: &'a str,
    /// Seconds since the Unix epoch.
    pub(in crate::git) at: i64,
    /// One line.
    pub(in crate::git) message: &'a str,
}

/// What becomes of a log that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Missing {
    Made,
    LeftOut,
}

impl Missing {
    /// As `core.logAllRefUpdates` says of branches and of HEAD; where it says nothing, git writes no
    /// logs of a bare repository.
    pub(in crate::git) fn as_configured(settings: &Settings, is_bare: bool) -> Self {
        const KEY: (&str, &str) = ("core", "logallrefupdates");
        let is_always = |value: &[u8]| value.eq_ignore_ascii_case(b"always");
        if settings.get(KEY.0, KEY.1).is_some_and(is_always) {
            return Self::Made;
        }
        match settings.is_on(KEY.0, KEY.1).unwrap_or(!is_bare) {
            true => Self::Made,
            false => Self::LeftOut,
        }
    }
}

/// Adds `line` to the log of the ref `name`, below the directory that holds the ref. Best effort:
/// the ref is what counts. A link is not followed.
pub(in crate::git) fn add(
    op: &Operation,
    holder: BorrowedFd<'_>,
    name: &str,
    line: &Line<'_>,
    missing: Missing,
) {
    let Some((directory, mut file)) = open(op, holder, name, missing) else {
        return;
    };
    let is_ready = directory.is_none_or(|directory| {
        // It was made.
        let like = rustix::fs::fstat(&directory);
        like.is_ok_and(|like| give_to(file.as_fd(), &like).is_ok())
    });
    if is_ready && op.before().is_ok() {
        let id = |commit: Option<ObjectId>| commit.unwrap_or(NO_COMMIT);
        let text = format!(
            "{} {} {} {} +0000\t{}\n",
            id(line.from),
            id(line.to),
            line.committer,
            line.at,
            line.message
        );
        let _ = file.write_all(text.as_bytes());
    }
}

/// Where the last line of the log of `name` says that the ref went; `None` if there is no such
/// line.
pub(in crate::git) fn last(op: &Operation, holder: BorrowedFd<'_>, name: &str) -> Option<ObjectId> {
    let tail = tail(op, holder, name)?;
    let line = tail.rsplit(|byte| *byte == b'\n').next()?;
    to_of(line)
}

/// Whether one of the last lines of the log of `name` says that the ref went to `to`.
pub(in crate::git) fn has(
    op: &Operation,
    holder: BorrowedFd<'_>,
    name: &str,
    to: ObjectId,
) -> bool {
    let tail = tail(op, holder, name).unwrap_or_default();
    let mut lines = tail.split(|byte| *byte == b'\n');
    lines.any(|line| to_of(line) == Some(to))
}

/// Where a line says that the ref went.
fn to_of(line: &[u8]) -> Option<ObjectId> {
    std::str::from_utf8(line.get(41..81)?).ok()?.parse().ok()
}

/// The end of a log, without its last line end.
fn tail(op: &Operation, holder: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    let (above, leaf) = split(name);
    let logs = open_below(op, holder, &format!("logs/{above}"), Create::No).ok()??;
    let mut file = descriptor::open_file_at(logs.as_fd(), leaf.as_bytes()).ok()?;
    if descriptor::fstat(&file).ok()?.file_type() != FileType::RegularFile {
        return None;
    }
    let length = file.seek(SeekFrom::End(0)).ok()?;
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LINE_BYTES)))
        .ok()?;
    let mut tail = Vec::new();
    file.take(MAX_LINE_BYTES).read_to_end(&mut tail).ok()?;
    tail.strip_suffix(b"\n").map(<[u8]>::to_vec)
}

/// Opens a log for a line more, and the directory that it was made in, if it was made.
fn open(
    op: &Operation,
    holder: BorrowedFd<'_>,
    name: &str,
    missing: Missing,
) -> Option<(Option<OwnedFd>, File)> {
    const FLAGS: OFlags = OFlags::WRONLY
        .union(OFlags::APPEND)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::NONBLOCK)
        .union(OFlags::CLOEXEC);
    let (above, leaf) = split(name);
    let create = match missing {
        Missing::Made => Create::Yes,
        Missing::LeftOut => Create::No,
    };
    let logs = open_below(op, holder, &format!("logs/{above}"), create).ok()??;
    let (made, fd) = match rustix::fs::openat(&logs, leaf, FLAGS, Mode::empty()) {
        Err(Errno::NOENT) if missing == Missing::Made => {
            op.before().ok()?;
            let flags = FLAGS | OFlags::CREATE | OFlags::EXCL;
            let fd = rustix::fs::openat(&logs, leaf, flags, Mode::from_raw_mode(0o666)).ok()?;
            (Some(logs), fd)
        }
        opened => (None, opened.ok()?),
    };
    let is_regular = descriptor::fstat(&fd).is_ok_and(|s| s.file_type() == FileType::RegularFile);
    is_regular.then(|| (made, File::from(fd)))
}
