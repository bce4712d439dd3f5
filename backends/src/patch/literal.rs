//! Writing whole content, compressed, into a patch.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// Writes one direction of a binary patch: the whole content, compressed.
pub(super) fn write(
    out: &mut dyn Write,
    size: u64,
    copy: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    writeln!(out, "literal {size}")?;
    let mut compressed = ZlibEncoder::new(Base85::new(&mut *out), Compression::default());
    copy(&mut compressed)?;
    compressed.finish()?.finish()?;
    out.write_all(b"\n")
}

/// Writes bytes as lines of git's base 85 (`base85.c`): a letter for the number of bytes, up to 52,
/// then five digits for every four of them, the last four filled up with zeros.
struct Base85<'a> {
    out: &'a mut dyn Write,
    line: [u8; 52],
    len: usize,
}

impl<'a> Base85<'a> {
    const DIGITS: &'static [u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

    fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            line: [0; 52],
            len: 0,
        }
    }

    /// Writes the line that is not full.
    fn finish(mut self) -> io::Result<()> {
        if self.len > 0 {
            self.write_line()
        } else {
            Ok(())
        }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let mut text = Vec::with_capacity(1 + 52 / 4 * 5 + 1);
        text.push(match self.len as u8 {
            len @ ..=26 => b'A' + len - 1,
            len => b'a' + len - 27,
        });
        self.line[self.len..].fill(0);
        for four in self.line[..self.len.next_multiple_of(4)].chunks_exact(4) {
            let mut number = u32::from_be_bytes(four.try_into().expect("chunks of four"));
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = Self::DIGITS[(number % 85) as usize];
                number /= 85;
            }
            text.extend(digits);
        }
        text.push(b'\n');
        self.len = 0;
        self.out.write_all(&text)
    }
}

impl Write for Base85<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.len == self.line.len() {
            self.write_line()?;
        }
        let taken = bytes.len().min(self.line.len() - self.len);
        self.line[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        Ok(taken)
    }

    /// Does nothing: a line ends where it is full or at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
