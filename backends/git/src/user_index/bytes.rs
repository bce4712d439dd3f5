//! The bytes of an index file.

use std::borrow::Borrow;

use sha1::{Digest as _, Sha1};

use super::stream::{
    EXTENDED_INTENT_TO_ADD, EXTENDED_SKIP_WORKTREE, FLAG_ASSUME_UNCHANGED, FLAG_EXTENDED,
    FLAG_LENGTH,
};
use super::{IndexEntry, TRAILER_BYTES};
use crate::ObjectId;

/// A directory of an index whose tree is known: all below it is as that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexTree {
    /// One component; empty for the top.
    pub name: Vec<u8>,
    /// The tree.
    pub id: ObjectId,
    /// How many entries are below it, at any depth.
    pub entries: u64,
    /// How many directories it has. They follow it, each with its own behind it.
    pub directories: u64,
}

impl IndexTree {
    fn bytes(&self) -> Vec<u8> {
        let counts = format!("\0{} {}\n", self.entries, self.directories);
        [&self.name, counts.as_bytes(), &self.id.0].concat()
    }
}

/// The bytes of an index with these entries, which are in order. It is a version 4 if `version` is,
/// and else the oldest one that can hold them.
///
/// `trees` are those of all of its directories, the top first; none: they are not known, and git
/// makes them when it needs them (git's Documentation/gitformat-index, "Cache tree").
pub fn serialize<P: Borrow<[u8]>>(
    version: u32,
    entries: &[IndexEntry<P>],
    trees: &[IndexTree],
) -> Vec<u8> {
    let is_extended = |entry: &IndexEntry<P>| entry.is_intent_to_add || entry.is_skip_worktree;
    let version = match version {
        4 => 4,
        _ if entries.iter().any(is_extended) => 3,
        _ => 2,
    };
    let mut bytes = Vec::with_capacity(12 + entries.len() * 96 + TRAILER_BYTES);
    bytes.extend(b"DIRC");
    bytes.extend(u32::to_be_bytes(version));
    let count = u32::try_from(entries.len()).expect("an index that was read has no more");
    bytes.extend(count.to_be_bytes());
    let mut previous: &[u8] = b"";
    for entry in entries {
        let start = bytes.len();
        let stat = &entry.stat;
        let words = [
            stat.ctime.0,
            stat.ctime.1,
            stat.mtime.0,
            stat.mtime.1,
            stat.dev,
            stat.ino,
            entry.mode,
            stat.uid,
            stat.gid,
            stat.size,
        ];
        for word in words {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(entry.id.0);
        let path = entry.path.borrow();
        let set = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let flags = set(entry.is_assume_unchanged, FLAG_ASSUME_UNCHANGED)
            | set(is_extended(entry), FLAG_EXTENDED)
            | u16::from(entry.stage) << 12
            | path.len().min(usize::from(FLAG_LENGTH)) as u16;
        bytes.extend(flags.to_be_bytes());
        if is_extended(entry) {
            let extended = set(entry.is_skip_worktree, EXTENDED_SKIP_WORKTREE)
                | set(entry.is_intent_to_add, EXTENDED_INTENT_TO_ADD);
            bytes.extend(extended.to_be_bytes());
        }
        if version == 4 {
            let shared = previous.iter().zip(path).take_while(|(a, b)| a == b);
            let shared = shared.count();
            push_varint(&mut bytes, (previous.len() - shared) as u64);
            bytes.extend(&path[shared..]);
            bytes.push(0);
            previous = path;
        } else {
            bytes.extend(path);
            // One to eight NULs, so that the entry is a multiple of eight bytes long.
            let padding = 8 - (bytes.len() - start) % 8;
            bytes.extend(std::iter::repeat_n(0, padding));
        }
    }
    if !trees.is_empty() {
        let extension: Vec<u8> = trees.iter().flat_map(IndexTree::bytes).collect();
        let length = u32::try_from(extension.len()).expect("shorter than the entries");
        bytes.extend(b"TREE");
        bytes.extend(length.to_be_bytes());
        bytes.extend(extension);
    }
    let checksum = Sha1::digest(&bytes);
    bytes.extend(checksum);
    bytes
}

/// A number in the form that packs use for offsets: seven bits a byte, the high ones first, and one
/// added at each step.
fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    let mut digits = vec![(value & 0x7f) as u8];
    while value > 0x7f {
        value = (value >> 7) - 1;
        digits.push(0x80 | (value & 0x7f) as u8);
    }
    bytes.extend(digits.iter().rev());
}
