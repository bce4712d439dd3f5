//! Reading content: it is compared with its record before and while it is read.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Seek as _};

use stillframe_disk::blob::{self, Stopped};

use crate::error::{Damage, GetError};
use crate::{ArtifactMeta, Digest};

/// Reads all of `file` and compares it with what was put. Leaves the file at its start.
pub(crate) fn check(file: &mut File, meta: &ArtifactMeta) -> io::Result<Result<(), Damage>> {
    let read = blob::read(file, |_| Ok::<(), Infallible>(()));
    let (bytes, blake3) = read.map_err(|e| match e {
        Stopped::Read(e) => e,
        Stopped::Take(never) => match never {},
    })?;
    file.rewind()?;
    Ok(compare(meta, bytes, blake3.into()))
}

fn compare(meta: &ArtifactMeta, bytes: u64, blake3: Digest) -> Result<(), Damage> {
    if bytes != meta.bytes {
        return Err(Damage::Length {
            expected: meta.bytes,
            found: bytes,
        });
    }
    if blake3 != meta.blake3 {
        return Err(Damage::Content {
            expected: meta.blake3,
            found: blake3,
        });
    }
    Ok(())
}

/// Hands out content that was checked once, and checks it again on the way: a disk may give other
/// bytes the second time. The last piece is held back if the whole is wrong.
pub(crate) struct CheckedReader {
    file: File,
    meta: ArtifactMeta,
    hasher: blake3::Hasher,
    remaining: u64,
}

impl CheckedReader {
    pub(crate) fn new(file: File, meta: ArtifactMeta) -> Self {
        Self {
            file,
            hasher: blake3::Hasher::new(),
            remaining: meta.bytes,
            meta,
        }
    }

    fn damaged(&self, damage: Damage) -> io::Error {
        let key = self.meta.key.clone();
        io::Error::new(
            io::ErrorKind::InvalidData,
            GetError::Corrupt { key, damage },
        )
    }
}

impl Read for CheckedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.remaining).map_or(buffer.len(), |r| r.min(buffer.len()));
        if wanted == 0 {
            return Ok(0);
        }
        let length = self.file.read(&mut buffer[..wanted])?;
        if length == 0 {
            return Err(self.damaged(Damage::Length {
                expected: self.meta.bytes,
                found: self.meta.bytes - self.remaining,
            }));
        }
        self.hasher.update(&buffer[..length]);
        let remaining = self.remaining - length as u64;
        if remaining == 0 {
            let blake3 = Digest::from(*self.hasher.finalize().as_bytes());
            compare(&self.meta, self.meta.bytes, blake3).map_err(|d| self.damaged(d))?;
        }
        self.remaining = remaining;
        Ok(length)
    }
}
