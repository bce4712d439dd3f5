//! Strict decompression: a truncated stream is an error, and so is a wrong checksum.

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
pub struct Inflate<R> {
    input: R,
    state: Option<Decompress>,
    is_at_end: bool,
}

impl<R: BufRead> Inflate<R> {
    /// Reads the stream that `input` begins with.
    pub fn new(input: R) -> Self {
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
        loop {
            match self.input.fill_buf() {
                Ok(rest) => return Ok(self.is_at_end && rest.is_empty()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl<R: BufRead> Inflate<R> {
    /// All of the bytes, which must be `size`. `InvalidData` if they are fewer or more.
    ///
    /// Costs less than to read them piece by piece: what was inflated is looked up where it is.
    pub fn read_whole(&mut self, size: usize) -> io::Result<Vec<u8>> {
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

/// The first bytes of a zlib stream: as many as it takes until `is_enough` holds of them, and all
/// of `out` at most.
///
/// `None` where `stream` ends before that, repeats what came earlier, or is anything but ordinary:
/// [`Inflate`] tells what it is then. Nothing is proven of what follows those bytes.
///
/// [`Inflate`] builds tables that pay for thousands of bytes; for the two sizes at the beginning of
/// a delta, which every file of a repository may be asked for, they would cost ten times the rest.
pub fn beginning<'o>(
    stream: &[u8],
    out: &'o mut [u8],
    is_enough: impl Fn(&[u8]) -> bool,
) -> Option<&'o [u8]> {
    let [method, flags, blocks @ ..] = stream else {
        return None;
    };
    let has_dictionary = flags & 0x20 != 0;
    let is_sound = u16::from_be_bytes([*method, *flags]) % 31 == 0;
    if method & 0x0f != 8 || has_dictionary || !is_sound {
        return None;
    }
    let mut bits = Bits::of(blocks);
    let _is_last = bits.take(1)?;
    let mut codes = Codes::NONE;
    let mut literals = match bits.take(2)? {
        0 => Literals::stored(&mut bits)?,
        1 => Literals::Fixed,
        2 => {
            codes.read(&mut bits)?;
            Literals::Dynamic(&codes)
        }
        _ => return None,
    };
    let mut length = 0;
    while length < out.len() {
        out[length] = literals.next(&mut bits)?;
        length += 1;
        if is_enough(&out[..length]) {
            break;
        }
    }
    Some(&out[..length])
}

/// The bits of a deflated stream, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    held: u64,
    /// How many bits of `held` count; those above them are zero or what will come to stand there.
    count: u32,
}

impl<'a> Bits<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            held: 0,
            count: 0,
        }
    }

    fn fill(&mut self) {
        if let Some(word) = self.bytes.first_chunk() {
            self.held |= u64::from_le_bytes(*word) << self.count;
            self.bytes = &self.bytes[(63 - self.count as usize) / 8..];
            self.count |= 56;
            return;
        }
        while self.count <= 56
            && let Some((byte, rest)) = self.bytes.split_first()
        {
            self.held |= u64::from(*byte) << self.count;
            self.bytes = rest;
            self.count += 8;
        }
    }

    /// The next bits, 16 at most, as they stand: the first is the lowest.
    fn peek(&mut self) -> u32 {
        if self.count < 16 {
            self.fill();
        }
        (self.held & 0xffff) as u32
    }

    fn skip(&mut self, count: u32) -> Option<()> {
        self.count = self.count.checked_sub(count)?;
        self.held >>= count;
        Some(())
    }

    /// The next `count` bits, 16 at most, as a number.
    fn take(&mut self, count: u32) -> Option<u32> {
        let bits = self.peek() & ((1 << count) - 1);
        self.skip(count)?;
        Some(bits)
    }
}

/// How the literals of a block are told apart.
enum Literals<'c> {
    /// They stand as they are; so many are left.
    Stored(u32),
    Fixed,
    Dynamic(&'c Codes),
}

impl Literals<'_> {
    fn stored(bits: &mut Bits<'_>) -> Option<Self> {
        bits.skip(bits.count % 8)?;
        let (length, complement) = (bits.take(16)?, bits.take(16)?);
        (length ^ complement == 0xffff).then_some(Self::Stored(length))
    }

    /// The next byte, if it is a literal.
    fn next(&mut self, bits: &mut Bits<'_>) -> Option<u8> {
        let literal = match self {
            Self::Stored(left) => {
                *left = left.checked_sub(1)?;
                bits.take(8)?
            }
            Self::Fixed => {
                // Codes stand with their highest bit first (RFC 1951, 3.2.6).
                let code = (bits.peek() as u16).reverse_bits();
                let (literal, length) = match code >> 8 {
                    head @ 0x30..=0xbf => (head - 0x30, 8),
                    0xc8..=0xff => ((code >> 7) - 0x190 + 144, 9),
                    _ => return None,
                };
                bits.skip(length)?;
                u32::from(literal)
            }
            Self::Dynamic(codes) => u32::from(codes.next(bits)?),
        };
        u8::try_from(literal).ok()
    }
}

/// The longest code of a literal, in bits.
const MAX_CODE_BITS: usize = 15;

/// The codes of the literals and lengths of a block.
struct Codes {
    /// How long the code of each symbol is, in bits; zero: it has none. Those of distances follow,
    /// and after them what the last repetition may reach.
    lengths: [u8; Self::ROOM],
    /// How many symbols there are: literals, the end of the block, and lengths.
    symbols: usize,
    /// How many codes there are of each length.
    counts: [u16; MAX_CODE_BITS + 1],
}

impl Codes {
    const NONE: Self = Self {
        lengths: [0; Self::ROOM],
        symbols: 0,
        counts: [0; MAX_CODE_BITS + 1],
    };

    /// Literals, the end of the block, and lengths.
    const MAX_SYMBOLS: usize = 286;
    const MAX_DISTANCES: usize = 30;
    /// All of them, and the longest repetition.
    const ROOM: usize = Self::MAX_SYMBOLS + Self::MAX_DISTANCES + 138;

    /// Reads the codes into what has none.
    ///
    /// There are some hundred of them for each object that is asked for, in no order that a
    /// processor could foresee, so none of the steps depends on which it is.
    fn read(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        let symbols = bits.take(5)? as usize + 257;
        let distances = bits.take(5)? as usize + 1;
        if symbols > Self::MAX_SYMBOLS || distances > Self::MAX_DISTANCES {
            return None;
        }
        let codes = code_lengths(bits)?;
        // Nothing was last yet, and no length is as long as that.
        let (mut at, mut last) = (0, LengthCode::LAST);
        while at < symbols + distances {
            let code = codes[bits.peek() as usize & 0x7f];
            let more = (bits.held & code.mask()) >> code.bits;
            bits.skip(code.all_bits.into())?;
            let is_last = code.length == LengthCode::LAST;
            let length = if is_last { last } else { code.length };
            // At least as many as a length that is not zero is repeated; the others are
            // overwritten.
            self.lengths[at..][..8].copy_from_slice(&[length; 8]);
            let end = at + usize::from(code.times) + more as usize;
            let count = self.counts.get_mut(usize::from(length))?;
            *count += (end.min(symbols) - at.min(symbols)) as u16;
            (at, last) = (end, length);
        }
        if at > symbols + distances {
            return None;
        }
        self.counts[0] = 0;
        self.symbols = symbols;
        // As many codes as there is room for: with more or fewer they mean nothing.
        let counts = self.counts.iter().enumerate();
        let taken = counts.map(|(length, count)| usize::from(*count) << (MAX_CODE_BITS - length));
        (taken.sum::<usize>() == 1 << MAX_CODE_BITS).then_some(())
    }

    /// The symbol that comes next.
    fn next(&self, bits: &mut Bits<'_>) -> Option<u16> {
        let stream = bits.peek();
        let (mut code, mut first) = (0, 0);
        for (length, count) in self.counts.iter().enumerate().skip(1) {
            code = code << 1 | stream >> (length - 1) & 1;
            first <<= 1;
            let count = u32::from(*count);
            if code < first + count {
                bits.skip(length as u32)?;
                // Of one length, codes ascend with their symbols.
                return self.nth_of(length as u8, (code - first) as usize);
            }
            first += count;
        }
        None
    }

    /// The symbol that has `before` others before it whose codes are as long as its own: `length`
    /// bits.
    fn nth_of(&self, length: u8, mut before: usize) -> Option<u16> {
        /// Counted at once.
        const AT_ONCE: usize = 32;
        let lengths = &self.lengths[..self.symbols];
        for (at, some) in (0_u16..).step_by(AT_ONCE).zip(lengths.chunks(AT_ONCE)) {
            let count: u8 = some.iter().map(|of| u8::from(*of == length)).sum();
            if before < usize::from(count) {
                let same = (at..).zip(some).filter(|(_, of)| **of == length);
                return same.map(|(symbol, _)| symbol).nth(before);
            }
            before -= usize::from(count);
        }
        None
    }
}

/// What some bits stand for in the lengths of codes: a length, and how often it comes.
#[derive(Clone, Copy, Default)]
#[repr(C, align(4))]
struct LengthCode {
    length: u8,
    times: u8,
    /// How many of the bits are its code.
    bits: u8,
    /// The same, with those that follow and count how much oftener the length comes.
    all_bits: u8,
}

impl LengthCode {
    /// The length that came last.
    const LAST: u8 = 0xff;

    /// RFC 1951, 3.2.7.
    fn of(symbol: u8, bits: u8) -> Self {
        let (length, times, more_bits) = match symbol {
            0..16 => (symbol, 1, 0),
            16 => (Self::LAST, 3, 2),
            17 => (0, 3, 3),
            _ => (0, 11, 7),
        };
        Self {
            length,
            times,
            bits,
            all_bits: bits + more_bits,
        }
    }

    /// All of its bits.
    fn mask(self) -> u64 {
        (1 << self.all_bits) - 1
    }
}

/// The codes of the lengths of codes, each at all places that begin with it.
fn code_lengths(bits: &mut Bits<'_>) -> Option<[LengthCode; 128]> {
    /// RFC 1951, 3.2.7.
    const ORDER: [usize; 19] = [
        16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
    ];
    let given = bits.take(4)? as usize + 4;
    let mut lengths = [0; 19];
    let mut counts = [0; 8];
    for symbol in &ORDER[..given] {
        let length = bits.take(3)? as u8;
        lengths[*symbol] = length;
        counts[usize::from(length)] += 1;
    }
    // By length, and those of one length ascending; those without a code come last.
    let mut next = [0; 8];
    for length in 1..7 {
        next[length + 1] = next[length] + counts[length];
    }
    next[0] = next[7] + counts[7];
    let mut sorted = [0; 19];
    for (symbol, length) in (0..).zip(lengths) {
        let next = &mut next[usize::from(length)];
        sorted[*next] = symbol;
        *next += 1;
    }
    let mut sorted = sorted.into_iter();
    let mut table = [LengthCode::default(); 128];
    let mut code = 0_usize;
    for (length, count) in counts.into_iter().enumerate().skip(1) {
        // Codes count up, and go on from those that are shorter.
        code <<= 1;
        for symbol in sorted.by_ref().take(count) {
            // The highest bit of a code comes first, so it is found at the low end of what comes.
            let place = (code as u8).reverse_bits() >> (8 - length);
            *table.get_mut(usize::from(place))? = LengthCode::of(symbol, length as u8);
            code += 1;
        }
        if code > 1 << length {
            return None;
        }
        if length < 7 {
            // Any bit may follow.
            table.copy_within(..1 << length, 1 << length);
        }
    }
    (code == 1 << 7).then_some(table)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

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

    // A look for what follows the stream was not repeated
    #[test]
    fn a_read_that_is_interrupted_is_repeated_at_every_place() {
        struct Interrupted<'a>(&'a [u8], bool);
        impl Read for Interrupted<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.1 = !self.1;
                match self.1 {
                    true => Err(io::ErrorKind::Interrupted.into()),
                    false => self.0.read(out),
                }
            }
        }
        let stream = deflated(b"content");
        let input = io::BufReader::with_capacity(1, Interrupted(&stream, false));
        let mut inflate = Inflate::new(input);
        assert_eq!(inflate.read_whole(7).unwrap(), b"content");
        assert!(inflate.ends_its_input().unwrap());
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

    /// Deflated at each level, with the codes that zlib chooses and with those that are fixed.
    fn deflated_in_every_way(bytes: &[u8]) -> Vec<Vec<u8>> {
        let at_level = |level| {
            let mut encoder =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        [0, 1, 6, 9].into_iter().map(at_level).collect()
    }

    #[test]
    fn the_first_bytes_of_ordinary_streams_are_told_without_the_rest() {
        let text: String = (0..400).map(|n| format!("{n} and {}\n", n * n)).collect();
        for content in [
            &text.as_bytes()[..6],
            &text.as_bytes()[..40],
            text.as_bytes(),
        ] {
            for stream in deflated_in_every_way(content) {
                let start = &stream[..stream.len().min(256)];
                let mut out = [0; 20];
                let found = beginning(start, &mut out, |bytes| bytes.len() == 3);
                assert_eq!(found, Some(&content[..3]));
            }
        }
    }

    proptest! {
        #[test]
        fn the_first_bytes_are_those_that_the_whole_has(
            content in prop::collection::vec(prop_oneof![any::<u8>(), 0..4_u8], 0..600),
            cut: prop::sample::Index,
            enough in 1..8_usize,
        ) {
            for stream in deflated_in_every_way(&content) {
                for length in [stream.len(), cut.index(stream.len())] {
                    let mut out = [0; 5];
                    let is_enough = |bytes: &[u8]| bytes.len() == enough;
                    if let Some(found) = beginning(&stream[..length], &mut out, is_enough) {
                        prop_assert_eq!(found, &content[..enough.min(5)]);
                    }
                }
            }
        }

        #[test]
        fn any_bytes_have_a_beginning_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0..3_u8,
        ) {
            let mut stream = vec![0x78, 0x9c];
            stream.extend(bytes);
            if let Some(block) = stream.get_mut(2) {
                *block = *block & !6 | kind << 1;
            }
            let mut out = [0; 20];
            let _ = beginning(&stream, &mut out, |_| false);
        }
    }
}
