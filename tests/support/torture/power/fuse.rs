//! The part of the FUSE protocol that a file system of one file needs: the file is its root.
//!
//! The structures are those of `linux/fuse.h`, version 7.31; see also fuse(4).

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Mutex;

use nix::libc;

use super::disk::Disk;

/// The longest write that the kernel may ask for, in bytes: 32 pages, its own default.
const MAX_WRITE: u32 = 128 * 1024;

/// Room for a request with the longest write.
const ROOM: usize = MAX_WRITE as usize + 4096;

/// `FUSE_BIG_WRITES`: more than a page is written at a time.
const BIG_WRITES: u32 = 1 << 5;

/// `FOPEN_DIRECT_IO`: the kernel keeps no copy of the file.
const DIRECT_IO: u32 = 1;

/// The numbers of the requests.
mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// Answers what the kernel asks of the disk, until it is unmounted.
pub(crate) fn serve(mut connection: File, disk: &Mutex<Disk>) {
    let mut request = vec![0; ROOM];
    loop {
        let length = match connection.read(&mut request) {
            Ok(length) => length,
            // A request that was withdrawn, and a signal.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => continue,
            // It is unmounted.
            Err(_) => return,
        };
        let mut disk = disk.lock().expect("nobody panics with the lock");
        if let Some(answer) = answer(&request[..length], &mut disk) {
            drop(disk);
            // The request may have been withdrawn meanwhile.
            let _ = connection.write(&answer);
        }
    }
}

/// What is answered to a request; `None` for one that wants no answer.
fn answer(request: &[u8], disk: &mut Disk) -> Option<Vec<u8>> {
    let (opcode, unique) = (u32_at(request, 4)?, u64_at(request, 8)?);
    let body = request.get(40..)?;
    let done = |payload: Vec<u8>| Some(reply(unique, 0, &payload));
    match opcode {
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => None,
        opcode::INIT => done(init(u32_at(body, 8).unwrap_or(0))),
        opcode::GETATTR | opcode::SETATTR => done(attributes(disk.image().size())),
        opcode::OPEN => done(words(&[0, 0, DIRECT_IO, 0])),
        opcode::READ => {
            let (offset, size) = (place(body)?, u32_at(body, 16)? as usize);
            done(disk.image().read(offset, size))
        }
        opcode::WRITE => {
            let (offset, size) = (place(body)?, u32_at(body, 16)?);
            disk.write(offset, body.get(40..40 + size as usize)?);
            done(words(&[size, 0]))
        }
        opcode::FSYNC => {
            disk.flush();
            done(Vec::new())
        }
        opcode::FLUSH | opcode::RELEASE | opcode::DESTROY => done(Vec::new()),
        _ => Some(reply(unique, -libc::ENOSYS, &[])),
    }
}

/// Where a read or a write begins.
fn place(body: &[u8]) -> Option<usize> {
    usize::try_from(u64_at(body, 8)?).ok()
}

/// `fuse_out_header`, and what follows it.
fn reply(unique: u64, error: i32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + payload.len()).expect("an answer is short");
    let mut bytes = Vec::with_capacity(16 + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(error.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// `fuse_init_out`.
fn init(max_readahead: u32) -> Vec<u8> {
    let mut payload = words(&[7, 31, max_readahead, BIG_WRITES]);
    // How many requests may wait, and from which number on they are too many.
    payload.extend(64_u16.to_ne_bytes());
    payload.extend(48_u16.to_ne_bytes());
    payload.extend(words(&[MAX_WRITE, 1]));
    payload.resize(64, 0);
    payload
}

/// `fuse_attr_out`, valid for a second, of a file of this size that root may read and write.
fn attributes(size: usize) -> Vec<u8> {
    let size = size as u64;
    let mut payload = Vec::new();
    payload.extend(1_u64.to_ne_bytes());
    payload.extend(words(&[0, 0]));
    for value in [1, size, size / 512, 0, 0, 0] {
        payload.extend(value.to_ne_bytes());
    }
    let mode = libc::S_IFREG | 0o600;
    payload.extend(words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    payload
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(word.try_into().expect("it has four")))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(word.try_into().expect("it has eight")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::power::disk::{Entry, Image};

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(40 + body.len()).unwrap();
        let mut bytes = words(&[length, opcode]);
        bytes.extend(77_u64.to_ne_bytes());
        bytes.resize(40, 0);
        bytes.extend(body);
        bytes
    }

    fn at(offset: u64, size: u32, data: &[u8]) -> Vec<u8> {
        let mut body = 0_u64.to_ne_bytes().to_vec();
        body.extend(offset.to_ne_bytes());
        body.extend(size.to_ne_bytes());
        body.resize(40, 0);
        body.extend(data);
        body
    }

    #[test]
    fn writes_and_flushes_are_noted_and_reads_give_what_was_written() {
        let mut disk = Disk::new(Image::zeros(8192));
        let mut ask = |opcode, body: &[u8]| answer(&request(opcode, body), &mut disk);
        let written = ask(opcode::WRITE, &at(4094, 4, b"abcd")).unwrap();
        assert_eq!(written, reply(77, 0, &words(&[4, 0])));
        ask(opcode::FSYNC, &[0; 16]).unwrap();
        let read = ask(opcode::READ, &at(4093, 6, b"")).unwrap();
        assert_eq!(read, reply(77, 0, b"\0abcd\0"));
        assert_eq!(ask(opcode::FORGET, &[0; 8]), None, "it wants no answer");
        assert_eq!(ask(999, b""), Some(reply(77, -libc::ENOSYS, b"")));
        assert_eq!(ask(opcode::WRITE, &at(0, 9, b"short")), None);
        let offset = 4094;
        let bytes = b"abcd".to_vec();
        let log = [Entry::Write { offset, bytes }, Entry::Flush];
        assert_eq!(disk.into_log(), log);
    }

    #[test]
    fn the_answers_have_the_sizes_of_the_kernels_structures() {
        assert_eq!(init(0).len(), 64);
        assert_eq!(attributes(0).len(), 16 + 88);
    }
}
