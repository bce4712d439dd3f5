//! State directories that earlier commits wrote, as they were left.
//!
//! An archive keeps bytes, names, permission bits and times; a place, inodes and times of change it
//! cannot keep. What goes by these is told the new ones: the records of workspaces and of engines,
//! and the journals of restores that did not end. Everything else is as it was written, and names a
//! place that is not there any more, as after a move.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::TestWorkspace;
use crate::binary::project;
use crate::call::Call;

/// Bytes of a frame of a journal before its payload, and of the checksum behind it:
/// `docs/format.md`.
const HEADER: usize = 8 + 4 + 16 + 1 + 4 + 4;
const CHECKSUM: usize = blake3::OUT_LEN;

/// The state of `commit`, with its workspaces `git` and `plain`, in a directory of the test's own.
/// The first of them is the one that is worked on.
pub fn state_of(commit: &str) -> TestWorkspace {
    let mut ws = TestWorkspace::plain();
    let archive = project().join(format!("tests/fixtures/{commit}/state.tar.gz"));
    Call::new("tar", ws.base())
        .args(["-xzf".as_ref(), archive.as_os_str()])
        .run()
        .ok();
    let old_base = fs::read_to_string(ws.base().join("base")).expect("the archive has it");
    let moved = Moved {
        old_base: PathBuf::from(old_base.trim_end()),
        base: ws.base().to_owned(),
        numbers: stats(ws.base()),
    };
    let workspaces = fs::read_dir(ws.state().join("workspaces")).expect("the archive has it");
    let mut journals = 0;
    for workspace in workspaces {
        let workspace = workspace.expect("it can be listed").path();
        moved.record(&workspace.join("workspace.json"));
        let journal = workspace.join("restore.journal");
        if journal.exists() {
            moved.journal(&journal);
            journals += 1;
        }
    }
    assert_eq!(journals, 2, "each workspace has a restore that did not end");
    for engine in fs::read_dir(ws.state().join("engines")).expect("the archive has it") {
        moved.engine(&engine.expect("it can be listed").path());
    }
    ws.set_root("git");
    ws
}

/// The inodes and times of change that were, each with the one that is.
fn stats(base: &Path) -> BTreeMap<u64, u64> {
    let list = fs::read(base.join("stats")).expect("the archive has it");
    let (mut numbers, mut changes) = (BTreeMap::new(), BTreeMap::new());
    let mut modifications = BTreeSet::new();
    for line in list
        .split(|byte| *byte == 0)
        .filter(|line| !line.is_empty())
    {
        let parts: Vec<&[u8]> = line.splitn(4, |byte| *byte == b' ').collect();
        let [inode, changed, modified, path] = parts[..] else {
            panic!("{} is no line of it", line.escape_ascii());
        };
        let now = fs::symlink_metadata(base.join(OsStr::from_bytes(path)))
            .expect("the archive has all of them");
        numbers.insert(nanoseconds(inode), now.ino());
        let ctime = now.ctime() * 1_000_000_000 + now.ctime_nsec();
        changes.insert(nanoseconds(changed), ctime.cast_unsigned());
        modifications.insert(nanoseconds(modified));
    }
    // The archive has the times of modification, and a number that is both stays what it is.
    changes.retain(|changed, _| !modifications.contains(changed));
    numbers.extend(changes);
    numbers
}

/// A number, or seconds with a point and ten digits as `find` prints them, of which the last is 0.
fn nanoseconds(text: &[u8]) -> u64 {
    let text = std::str::from_utf8(text).expect("digits");
    let digits: String = match text.split_once('.') {
        Some((seconds, fraction)) => [seconds, &fraction[..9]].concat(),
        None => text.to_owned(),
    };
    digits.parse().expect("a number")
}

struct Moved {
    old_base: PathBuf,
    base: PathBuf,
    numbers: BTreeMap<u64, u64>,
}

impl Moved {
    fn record(&self, file: &Path) {
        let text = fs::read(file).expect("each workspace has a record");
        let mut record: Value = serde_json::from_slice(&text).expect("it is JSON");
        let old = PathBuf::from(record["path"].as_str().expect("it is UTF-8"));
        let below = old.strip_prefix(&self.old_base).expect("it lay there");
        let path = self.base.join(below);
        let meta = path.metadata().expect("the archive has it");
        let born = meta.created().ok();
        let born = born.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        record["path"] = path.to_str().expect("it is UTF-8").into();
        record["device"] = meta.dev().into();
        record["inode"] = meta.ino().into();
        record["born_ns"] = born.map_or(Value::Null, |since| {
            u64::try_from(since.as_nanos()).expect("before 2554").into()
        });
        fs::write(file, record.to_string()).expect("it is the test's own");
    }

    /// The paths of the workspaces that an engine worked on, each with a NUL behind it.
    fn engine(&self, file: &Path) {
        let list = fs::read(file).expect("it exists");
        let mut moved = Vec::new();
        for path in list.split_inclusive(|byte| *byte == 0) {
            let below = path.strip_prefix(self.old_base.as_os_str().as_bytes());
            moved.extend_from_slice(self.base.as_os_str().as_bytes());
            moved.extend_from_slice(below.expect("it lay there"));
        }
        fs::write(file, moved).expect("it is the test's own");
    }

    fn journal(&self, file: &Path) {
        let bytes = fs::read(file).expect("it exists");
        let mut rest = &bytes[..];
        let mut moved = Vec::new();
        while !rest.is_empty() {
            let length: [u8; 4] = rest[HEADER - 4..HEADER].try_into().expect("four of them");
            let end = HEADER + u32::from_le_bytes(length) as usize;
            let payload = self.payload(&rest[HEADER..end]);
            let mut frame = rest[..HEADER - 4].to_vec();
            frame.extend_from_slice(&u32::try_from(payload.len()).expect("small").to_le_bytes());
            frame.extend_from_slice(&payload);
            let checksum = blake3::hash(&frame);
            frame.extend_from_slice(checksum.as_bytes());
            moved.extend_from_slice(&frame);
            rest = &rest[end + CHECKSUM..];
        }
        fs::write(file, moved).expect("it is the test's own");
    }

    /// Numbers have eight bytes, the least first; a path is its length as such a number and its
    /// bytes. Inodes and times are far larger than any count or size there, so no other number is
    /// taken for one.
    fn payload(&self, payload: &[u8]) -> Vec<u8> {
        let old_base = self.old_base.as_os_str().as_bytes();
        let mut moved = Vec::with_capacity(payload.len());
        let mut at = 0;
        while at < payload.len() {
            let number = payload[at..].first_chunk::<8>();
            let number = number.map(|bytes| u64::from_le_bytes(*bytes));
            let below = payload.get(at + 8..).and_then(|b| b.strip_prefix(old_base));
            if let (Some(length), Some(below)) = (number, below) {
                let length = usize::try_from(length).expect("of a path");
                let below = &below[..length - old_base.len()];
                let path = [self.base.as_os_str().as_bytes(), below].concat();
                moved.extend_from_slice(&(path.len() as u64).to_le_bytes());
                moved.extend_from_slice(&path);
                at += 8 + length;
            } else if let Some(now) = number.and_then(|number| self.numbers.get(&number)) {
                moved.extend_from_slice(&now.to_le_bytes());
                at += 8;
            } else {
                moved.push(payload[at]);
                at += 1;
            }
        }
        moved
    }
}
