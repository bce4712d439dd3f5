//! Counting the lines that differ between two texts that are too large for memory.

use std::io::{self, Write};

use crate::patch::{BINARY_PROBE_BYTES, LineCounts};

/// Lines are told apart by as many values. Two lines with one value hide a difference at worst, so
/// this only costs accuracy; four bytes each.
const BUCKETS: usize = 1 << 20;

/// The lines of two texts as multisets: how many each side has more than the other, wherever they
/// are. Lower bounds of what a comparison finds, in a few megabytes whatever the texts are.
pub(crate) struct LineSketch {
    /// By the hash of a line: how often the later side has it more often than the earlier.
    surplus: Vec<i32>,
    is_binary: bool,
}

impl Default for LineSketch {
    fn default() -> Self {
        Self {
            surplus: vec![0; BUCKETS],
            is_binary: false,
        }
    }
}

impl LineSketch {
    /// Of a pair that is known to be binary.
    pub(crate) fn of_binary() -> Self {
        Self {
            surplus: Vec::new(),
            is_binary: true,
        }
    }

    /// Takes the earlier text. It must be dropped before the counts are asked for.
    pub(crate) fn earlier(&mut self) -> TextSketch<'_> {
        TextSketch::new(self, -1)
    }

    /// Takes the later text.
    pub(crate) fn later(&mut self) -> TextSketch<'_> {
        TextSketch::new(self, 1)
    }

    /// What was seen; nothing of a binary.
    pub(crate) fn counts(&self) -> LineCounts {
        if self.is_binary {
            return LineCounts {
                is_binary: true,
                ..LineCounts::default()
            };
        }
        let sum = |sign: i64| -> u64 {
            let surplus = self.surplus.iter().map(|n| (i64::from(*n) * sign).max(0));
            surplus.sum::<i64>().unsigned_abs()
        };
        LineCounts {
            insertions: sum(1),
            deletions: sum(-1),
            is_binary: false,
        }
    }
}

/// Takes one text, up to where it turns out to be binary: what comes then is refused.
pub(crate) struct TextSketch<'s> {
    sketch: &'s mut LineSketch,
    sign: i32,
    seen: usize,
    line: crc32fast::Hasher,
    is_open: bool,
}

impl<'s> TextSketch<'s> {
    fn new(sketch: &'s mut LineSketch, sign: i32) -> Self {
        Self {
            sketch,
            sign,
            seen: 0,
            line: crc32fast::Hasher::new(),
            is_open: false,
        }
    }

    fn end_line(&mut self) {
        let hash = std::mem::take(&mut self.line).finalize();
        let bucket = &mut self.sketch.surplus[hash as usize % BUCKETS];
        *bucket = bucket.saturating_add(self.sign);
        self.is_open = false;
    }
}

impl Write for TextSketch<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let probed = BINARY_PROBE_BYTES.saturating_sub(self.seen);
        if bytes[..bytes.len().min(probed)].contains(&0) {
            self.sketch.is_binary = true;
            return Err(io::Error::other("it is no text"));
        }
        self.seen = self.seen.saturating_add(bytes.len());
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            self.line.update(part);
            self.is_open = true;
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TextSketch<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.end_line();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written in pieces of `size` bytes.
    fn counts(old: &[u8], new: &[u8], size: usize) -> LineCounts {
        let mut sketch = LineSketch::default();
        let mut old_text = sketch.earlier();
        let is_text = old
            .chunks(size)
            .all(|piece| old_text.write_all(piece).is_ok());
        drop(old_text);
        if is_text {
            let mut new_text = sketch.later();
            new.chunks(size)
                .for_each(|piece| drop(new_text.write_all(piece)));
        }
        sketch.counts()
    }

    fn lines(insertions: u64, deletions: u64) -> LineCounts {
        LineCounts {
            insertions,
            deletions,
            is_binary: false,
        }
    }

    #[test]
    fn lines_that_one_side_has_more_often_are_counted_wherever_they_are() {
        for size in [1, 2, 7, 1000] {
            for (old, new, expected) in [
                (&b""[..], &b""[..], lines(0, 0)),
                (b"a\nb\n", b"b\na\n", lines(0, 0)),
                (b"a\na\nb\n", b"a\nc\nd\nb\n", lines(2, 1)),
                (b"a\nb", b"a\nb\n", lines(1, 1)),
                (b"", b"x\ny\nz", lines(3, 0)),
                (b"x\n\n\n", b"", lines(0, 3)),
            ] {
                assert_eq!(counts(old, new, size), expected, "{old:?} {new:?} {size}");
            }
        }
    }

    #[test]
    fn what_has_a_nul_where_git_looks_is_binary_and_nothing_is_counted() {
        let late = [&b"x".repeat(BINARY_PROBE_BYTES)[..], b"\0\n"].concat();
        let early = &late[1..];
        for size in [1, 100, 100_000] {
            assert_eq!(counts(b"", &late, size), lines(1, 0));
            assert!(counts(b"", early, size).is_binary);
            assert!(counts(early, b"a\n", size).is_binary);
        }
    }
}
