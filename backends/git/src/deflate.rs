//! Compressing content for our own packs: fast, and never much longer than the content.
//!
//! A zlib stream (RFC 1950) of deflate blocks (RFC 1951). Content that does not get shorter goes
//! into stored blocks. zlib changes its level only between streams, so the blocks of one stream are
//! made by several zlib streams: each run of compressible pieces is deflated separately, and ends
//! at a whole byte (a sync flush).

use flate2::{Compress, Compression, FlushCompress, Status};
use zlib_rs::adler32::adler32;

/// The fastest level: a snapshot waits for it. It writes literals in fixed codes, which make
/// content without repetitions longer by a sixteenth; so such content is stored as it is.
const QUICK: u32 = 1;

/// A piece from this length on is judged by samples, which cost a sixteenth of it at most. What is
/// shorter is deflated first, and stored if that made it longer.
const SAMPLED_FROM: usize = 128 * 1024;
/// So many samples of so many bytes, spread over the piece: long enough for repetitions to show.
const SAMPLES: usize = 4;
const SAMPLE_BYTES: usize = 2 * 1024;

/// A zlib stream with a window of 32 KiB, deflated at the fastest level, without a dictionary.
const ZLIB_HEADER: [u8; 2] = [0x78, 0x01];
/// The most that one stored block holds.
const MAX_STORED: usize = 0xffff;
/// What stands before the bytes of one: whether it is the last and how it is kept, its length, and
/// that inverted.
const STORED_HEADER_BYTES: usize = 5;
/// What the checksum of no bytes is.
const ADLER_OF_NOTHING: u32 = 1;

/// Where a piece stands in its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Within,
    Last,
}

/// Makes zlib streams, one after the other. Its tables are large: making them anew costs more than
/// deflating a small file.
#[derive(Debug)]
pub(crate) struct Deflater {
    run: Compress,
    /// Whether `run` has bytes of the stream that is under way.
    is_running: bool,
    /// Whether the next piece is to be stored, unless it is judged by itself.
    stores: bool,
    has_header: bool,
    checksum: u32,
    samples: Compress,
    sampled: Vec<u8>,
}

impl Deflater {
    pub(crate) fn new() -> Self {
        let quick = || Compress::new(Compression::new(QUICK), false);
        Self {
            run: quick(),
            is_running: false,
            stores: false,
            has_header: false,
            checksum: ADLER_OF_NOTHING,
            samples: quick(),
            sampled: Vec::new(),
        }
    }

    /// Appends the stream of `content` to `out`.
    pub(crate) fn whole(&mut self, content: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        let stores = content.len() >= SAMPLED_FROM && !self.gets_shorter(content);
        self.only(content, stores, out);
        let blocks = content.len().div_ceil(MAX_STORED).max(1);
        let stored = ZLIB_HEADER.len() + blocks * STORED_HEADER_BYTES + content.len() + 4;
        if out.len() - begin > stored {
            out.truncate(begin);
            self.only(content, true, out);
        }
    }

    fn only(&mut self, content: &[u8], stores: bool, out: &mut Vec<u8>) {
        self.begin();
        self.take(content, stores, Place::Last, out);
        out.extend_from_slice(&self.checksum.to_be_bytes());
    }

    /// Begins a stream, and gives up one that is under way.
    pub(crate) fn begin(&mut self) {
        self.run.reset();
        (self.is_running, self.stores, self.has_header) = (false, false, false);
        self.checksum = ADLER_OF_NOTHING;
    }

    /// Appends what the next `piece` of the stream becomes, but for what waits for the piece after
    /// it.
    ///
    /// A piece is judged by samples of it, and a short one by the piece before it.
    pub(crate) fn add(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let stores = match piece.len() >= SAMPLED_FROM {
            true => !self.gets_shorter(piece),
            false => self.stores,
        };
        self.take(piece, stores, Place::Within, out);
    }

    /// Appends the rest of the stream.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) {
        self.take(&[], !self.is_running, Place::Last, out);
        out.extend_from_slice(&self.checksum.to_be_bytes());
        self.begin();
    }

    fn take(&mut self, piece: &[u8], stores: bool, place: Place, out: &mut Vec<u8>) {
        self.add_header(out);
        self.checksum = adler32(self.checksum, piece);
        self.stores = stores;
        if !stores {
            self.is_running = true;
            let flush = match place {
                Place::Within => FlushCompress::None,
                Place::Last => FlushCompress::Finish,
            };
            return drive(&mut self.run, piece, flush, out);
        }
        if self.is_running {
            drive(&mut self.run, &[], FlushCompress::Sync, out);
            // What comes after the stored blocks must not refer to what is before them by its own
            // count.
            self.run.reset();
            self.is_running = false;
        }
        let mut blocks = piece.chunks(MAX_STORED).peekable();
        while let Some(block) = blocks.next() {
            let is_last = place == Place::Last && blocks.peek().is_none();
            store(block, is_last, out);
        }
        if place == Place::Last && piece.is_empty() {
            store(&[], true, out);
        }
    }

    fn add_header(&mut self, out: &mut Vec<u8>) {
        if !self.has_header {
            out.extend_from_slice(&ZLIB_HEADER);
            self.has_header = true;
        }
    }

    fn gets_shorter(&mut self, piece: &[u8]) -> bool {
        self.samples.reset();
        self.sampled.clear();
        let apart = (piece.len() - SAMPLE_BYTES) / (SAMPLES - 1);
        let samples = (0..SAMPLES).map(|sample| &piece[sample * apart..][..SAMPLE_BYTES]);
        let flushes = [FlushCompress::None; SAMPLES - 1];
        for (sample, flush) in samples.zip(flushes.into_iter().chain([FlushCompress::Finish])) {
            drive(&mut self.samples, sample, flush, &mut self.sampled);
        }
        self.sampled.len() < SAMPLES * SAMPLE_BYTES
    }
}

/// Appends a stored block, which begins at a whole byte.
fn store(block: &[u8], is_last: bool, out: &mut Vec<u8>) {
    let length = u16::try_from(block.len()).expect("a stored block is no longer");
    out.push(u8::from(is_last));
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&(!length).to_le_bytes());
    out.extend_from_slice(block);
}

fn drive(stream: &mut Compress, mut input: &[u8], flush: FlushCompress, out: &mut Vec<u8>) {
    loop {
        // Zlib writes the mark of a flush again where it found less than seven bytes of room.
        if out.capacity() - out.len() < 64 {
            out.reserve(input.len() / 2 + 64);
        }
        let before = stream.total_in();
        let status = stream
            .compress_vec(input, out, flush)
            .expect("deflate takes any bytes");
        let taken = stream.total_in() - before;
        input = &input[usize::try_from(taken).expect("no more than was given")..];
        let is_done = match flush {
            FlushCompress::Finish => status == Status::StreamEnd,
            _ => input.is_empty() && out.len() < out.capacity(),
        };
        if is_done {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    fn noise(length: usize, seed: u32) -> Vec<u8> {
        let mut state = seed << 1 | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[1]
        };
        (0..length).map(|_| next()).collect()
    }

    fn in_pieces(deflater: &mut Deflater, pieces: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        deflater.begin();
        for piece in pieces {
            deflater.add(piece, &mut out);
        }
        deflater.end(&mut out);
        out
    }

    fn inflated(stream: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        let mut decoder = flate2::read::ZlibDecoder::new(stream);
        decoder.read_to_end(&mut content).unwrap();
        assert_eq!(decoder.total_in(), stream.len() as u64, "nothing behind it");
        content
    }

    #[test]
    fn what_does_not_get_shorter_is_stored_as_it_is() {
        let mut deflater = Deflater::new();
        for length in [0, 1, 100, 4_000, 31_000, 70_000, 300_000] {
            let content = noise(length, 7);
            let mut whole = Vec::new();
            deflater.whole(&content, &mut whole);
            let long = in_pieces(&mut deflater, std::slice::from_ref(&content));
            assert_eq!(inflated(&whole), content);
            assert_eq!(inflated(&long), content);
            let more = whole.len() - length;
            assert!(more <= 16 + length / 5_000, "{length}: {more} more");
            if length >= SAMPLED_FROM {
                let more = long.len() - length;
                assert!(
                    more <= 16 + length / 5_000,
                    "{length}: {more} more in pieces"
                );
            }
        }
    }

    #[test]
    fn what_gets_shorter_is_as_short_as_ever_also_after_what_does_not() {
        let text = "fn main() { println!(\"hello\"); }\n"
            .repeat(8_000)
            .into_bytes();
        let mut alone = Compress::new(Compression::new(QUICK), true);
        let mut expected = Vec::new();
        drive(&mut alone, &text, FlushCompress::Finish, &mut expected);
        let mut deflater = Deflater::new();
        let random = noise(300_000, 3);
        in_pieces(&mut deflater, std::slice::from_ref(&random));
        let mut whole = Vec::new();
        deflater.whole(&text, &mut whole);
        assert!(whole == expected, "nothing is left of the stream before");

        let both = in_pieces(
            &mut deflater,
            &[random.clone(), text.clone(), random.clone()],
        );
        assert_eq!(inflated(&both), [&random[..], &text, &random].concat());
        let parts = 2 * random.len() + expected.len();
        assert!(
            both.len() < parts + parts / 1_000,
            "{} for {parts}",
            both.len()
        );
    }

    proptest! {
        #[test]
        fn whatever_goes_in_comes_out(
            pieces in prop::collection::vec((0_usize..300_000, any::<u32>(), 0_u8..3), 0..8)
        ) {
            let pieces: Vec<Vec<u8>> = pieces
                .into_iter()
                .map(|(length, seed, kind)| match kind {
                    0 => noise(length, seed),
                    1 => vec![seed.to_le_bytes()[0]; length],
                    _ => noise(length, seed).iter().map(|byte| b"abcdefg\n"[usize::from(byte & 7)]).collect(),
                })
                .collect();
            let mut deflater = Deflater::new();
            let content = pieces.concat();
            let stream = in_pieces(&mut deflater, &pieces);
            prop_assert_eq!(inflated(&stream), &content[..]);
            let mut whole = Vec::new();
            deflater.whole(&content, &mut whole);
            prop_assert_eq!(inflated(&whole), &content[..]);
        }
    }
}
