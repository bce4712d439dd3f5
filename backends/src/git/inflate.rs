//! Inflating, strictly: what ends early is an error, and so is a wrong checksum.

use std::cell::Cell;
use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

thread_local! {
    /// Its window is large: making it anew costs more than inflating a small file.
    static SPARE: Cell<Option<Decompress>> = const { Cell::new(None) };
}

/// The inflated bytes of a zlib stream.
///
/// The end of the stream is only the end after its checksum was found right. A stream that stops
/// before is `UnexpectedEof`, one that is damaged `InvalidData`.
pub(crate) struct Inflate<R> {
    input: R,
    state: Option<Decompress>,
    is_at_end: bool,
}

impl<R: BufRead> Inflate<R> {
    pub(crate) fn new(input: R) -> Self {
        let state = match SPARE.take() {
            Some(mut state) => {
                state.reset(true);
                state
            }
            None => Decompress::new(true),
        };
        Self {
            input,
            state: Some(state),
            is_at_end: false,
        }
    }

    /// Whether nothing follows the stream, once it was read to its end.
    pub(crate) fn ends_its_input(&mut self) -> io::Result<bool> {
        Ok(self.is_at_end && self.input.fill_buf()?.is_empty())
    }
}

impl<R: BufRead> Inflate<R> {
    /// All of the bytes, which must be `size`. `InvalidData` if they are fewer or more.
    ///
    /// Costs less than to read them piece by piece: what was inflated is looked up where it is.
    pub(crate) fn read_whole(&mut self, size: usize) -> io::Result<Vec<u8>> {
        // One more byte, which shows both what is too long and, by its absence, the right checksum.
        let mut bytes = vec![0; size + 1];
        let mut filled = 0;
        while filled <= size {
            match self.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if filled != size {
            let detail = format!("it claims {size} bytes and has others");
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        bytes.truncate(size);
        Ok(bytes)
    }
}

impl<R: BufRead> Read for Inflate<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let state = self.state.as_mut().expect("kept until it is dropped");
        while !self.is_at_end && !out.is_empty() {
            let input = self.input.fill_buf()?;
            let is_input_over = input.is_empty();
            let before = (state.total_in(), state.total_out());
            let status = state
                .decompress(input, out, FlushDecompress::None)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            let consumed = (state.total_in() - before.0) as usize;
            let produced = (state.total_out() - before.1) as usize;
            self.input.consume(consumed);
            self.is_at_end = status == Status::StreamEnd;
            if produced > 0 {
                return Ok(produced);
            }
            if !self.is_at_end && consumed == 0 {
                let kind = match is_input_over {
                    true => io::ErrorKind::UnexpectedEof,
                    false => io::ErrorKind::InvalidData,
                };
                return Err(io::Error::new(kind, "the compressed bytes end early"));
            }
        }
        Ok(0)
    }
}

impl<R> Drop for Inflate<R> {
    fn drop(&mut self) {
        SPARE.set(self.state.take());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn inflated(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Inflate::new(bytes).read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn a_stream_is_read_to_its_end_and_no_further() {
        for content in [&b""[..], b"short", &[7; 100_000]] {
            let mut stream = deflated(content);
            assert_eq!(inflated(&stream).unwrap(), content);
            stream.extend(b"more");
            let mut inflate = Inflate::new(stream.as_slice());
            let mut out = Vec::new();
            inflate.read_to_end(&mut out).unwrap();
            assert_eq!(out, content);
            assert!(!inflate.ends_its_input().unwrap());
        }
    }

    #[test]
    fn a_stream_that_lacks_a_byte_is_an_error() {
        let stream = deflated(b"some content that is not repeated");
        for length in 0..stream.len() {
            let error = inflated(&stream[..length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[test]
    fn a_wrong_checksum_is_an_error() {
        let mut stream = deflated(b"some content");
        *stream.last_mut().unwrap() ^= 1;
        let error = inflated(&stream).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
