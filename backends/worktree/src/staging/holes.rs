//! Writing files with holes in place of long runs of zeros.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;

use crate::durable::WRITTEN_AT_ONCE;
use crate::operation::Operation;
use crate::quota::Reserved;

/// What file systems allocate at once, as a rule.
const BLOCK: u64 = 4096;

/// Shorter runs of zeros are written. A hole makes another extent of a file, which costs about as
/// much to find as this does to read; and padding in programs and images is shorter.
const MIN_HOLE: u64 = 64 << 10;

/// A file that is written until the operation is cancelled or the quota is reached.
///
/// Snapshots do not record holes, so holes are made wherever the content has long runs of zeros.
pub(crate) struct Filled {
    op: Operation,
    file: File,
    /// How long the content is by now.
    length: u64,
    /// Where the zeros begin that it ends with, and that are not written yet.
    zeros_from: u64,
    /// How much was written.
    written: u64,
    reserved: Reserved,
}

impl Filled {
    /// Fills `file`, which is empty.
    pub(crate) fn new(op: &Operation, file: File) -> Self {
        Self {
            file,
            length: 0,
            zeros_from: 0,
            written: 0,
            op: op.clone(),
            reserved: op.reserve(),
        }
    }

    /// It has all that it is to have.
    pub(crate) fn done(mut self) -> io::Result<File> {
        match self.is_hole() {
            true => self.file.set_len(self.length)?,
            false => self.write_zeros()?,
        }
        self.reserved.keep();
        Ok(self.file)
    }

    fn is_hole(&self) -> bool {
        self.length - self.zeros_from >= MIN_HOLE
    }

    /// Writes the zeros that were put off.
    fn write_zeros(&mut self) -> io::Result<()> {
        let zeros = [0; MIN_HOLE as usize];
        let count = usize::try_from(self.length - self.zeros_from).expect("less than a hole");
        let at = self.zeros_from;
        self.put(&zeros[..count], at)?;
        self.zeros_from = self.length;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.reserved.up_to(self.written + bytes.len() as u64)?;
        self.file.write_all_at(bytes, at)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Takes some bytes of one kind.
    fn take(&mut self, bytes: &[u8], is_zero: bool) -> io::Result<()> {
        if !is_zero {
            if !self.is_hole() {
                self.write_zeros()?;
            }
            self.put(bytes, self.length)?;
            self.zeros_from = self.length + bytes.len() as u64;
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

impl Write for Filled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.op.check()?;
        let piece = &bytes[..bytes.len().min(WRITTEN_AT_ONCE)];
        let mut rest = piece;
        while !rest.is_empty() {
            let (run, is_zero) = run_of(rest, self.length);
            self.take(run, is_zero)?;
            rest = &rest[run.len()..];
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The blocks that `bytes`, which lie at `offset`, begin with and that are all zeros, or all not.
fn run_of(bytes: &[u8], offset: u64) -> (&[u8], bool) {
    let first = usize::try_from(BLOCK - offset % BLOCK).expect("a block is small");
    let mut end = first.min(bytes.len());
    let is_zero = is_zero(&bytes[..end]);
    while end < bytes.len() {
        let block = &bytes[end..bytes.len().min(end + BLOCK as usize)];
        if self::is_zero(block) != is_zero {
            break;
        }
        end += block.len();
    }
    (&bytes[..end], is_zero)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// What is on disk once `pieces` were written, and how much of it is allocated.
    fn filled(pieces: &[&[u8]]) -> (Vec<u8>, u64) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        let mut file = Filled::new(&Operation::unbounded(), File::create(&path).unwrap());
        for piece in pieces {
            file.write_all(piece).unwrap();
        }
        file.done().unwrap();
        let mut content = Vec::new();
        File::open(&path)
            .unwrap()
            .read_to_end(&mut content)
            .unwrap();
        (content, std::fs::metadata(&path).unwrap().blocks() * 512)
    }

    #[test]
    fn what_is_written_is_what_is_there_however_it_is_cut() {
        let zeros = vec![0; 200 << 10];
        let data = vec![7; 10_000];
        let cases: [&[&[u8]]; 9] = [
            &[],
            &[b""],
            &[b"text"],
            &[&zeros[..100]],
            &[&zeros],
            &[&zeros, &data],
            &[&data, &zeros],
            &[&data, &zeros[..5000], &data, &zeros, b"end"],
            &[&zeros, b"\x01", &zeros],
        ];
        for pieces in cases {
            let whole = pieces.concat();
            for size in [1, 4095, 4096, 4097, 70_000, usize::MAX] {
                if size == 1 && whole.len() > 20_000 {
                    continue;
                }
                let cut: Vec<&[u8]> = whole.chunks(size.min(whole.len().max(1))).collect();
                assert!(filled(&cut).0 == whole, "{} bytes by {size}", whole.len());
            }
        }
    }

    #[test]
    fn a_long_run_of_zeros_is_a_hole_and_a_short_one_is_not() {
        let data = vec![7; 64 << 10];
        let zeros = vec![0; 8 << 20];
        let all = filled(&[&data]).1;
        for pieces in [[&data[..], &zeros, &data], [&zeros, &data, &zeros]] {
            let allocated = filled(&pieces).1;
            assert!(allocated <= 3 * all, "{allocated} for {all} of data");
        }
        let short = filled(&[&data, &zeros[..32 << 10], &data]).1;
        assert!(short >= 160 << 10, "{short}");
    }
}
