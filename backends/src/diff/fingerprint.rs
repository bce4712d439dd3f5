//! How similar two contents are, by git's measure (`diffcore-delta.c`, `estimate_similarity` of
//! `diffcore-rename.c`), so that the same pairs are renames here and in git. Pure.

use crate::patch::is_binary;

/// Everything is the same.
pub(crate) const WHOLE: u32 = 60_000;

/// A piece ends after a newline, or after this many bytes.
const MAX_PIECE: u32 = 64;

/// Pieces are told apart by as many values; the number is git's, and so are those that the pieces
/// get.
const VALUES: u32 = 107_927;

/// The pieces of a content.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprint {
    /// By value: how many bytes are in pieces that have it. Sorted; at most 863 KB.
    pieces: Vec<(u32, u32)>,
    /// Of the content, in bytes.
    size: u64,
}

impl Fingerprint {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let is_text = !is_binary(bytes);
        let mut pieces = Vec::with_capacity(bytes.len() / 32);
        let (mut low, mut high, mut length) = (0_u32, 0_u32, 0_u32);
        let mut rest = bytes.iter().peekable();
        while let Some(byte) = rest.next() {
            // In text a line that ends otherwise is the same line.
            if is_text && *byte == b'\r' && rest.peek() == Some(&&b'\n') {
                continue;
            }
            (low, high) = ((low << 7) ^ (high >> 25), (high << 7) ^ (low >> 25));
            low = low.wrapping_add(u32::from(*byte));
            length += 1;
            if length == MAX_PIECE || *byte == b'\n' || rest.peek().is_none() {
                pieces.push((low.wrapping_add(high.wrapping_mul(0x61)) % VALUES, length));
                (low, high, length) = (0, 0, 0);
            }
        }
        pieces.sort_unstable();
        pieces.dedup_by(|piece, kept| {
            let is_same = piece.0 == kept.0;
            kept.1 += if is_same { piece.1 } else { 0 };
            is_same
        });
        pieces.shrink_to_fit();
        let size = bytes.len() as u64;
        Self { pieces, size }
    }

    /// How much of the larger content is in both, from 0 to [`WHOLE`].
    pub(crate) fn similarity_to(&self, later: &Self) -> u32 {
        let larger = u128::from(self.size.max(later.size).max(1));
        let shared = u128::from(self.shared_with(later)) * u128::from(WHOLE);
        u32::try_from(shared / larger).unwrap_or(WHOLE)
    }

    /// How many bytes of this are in `later` too.
    fn shared_with(&self, later: &Self) -> u64 {
        let mut others = later.pieces.iter().peekable();
        let mut shared = 0;
        for (value, length) in &self.pieces {
            while others.next_if(|(other, _)| other < value).is_some() {}
            if let Some((_, other)) = others.next_if(|(other, _)| other == value) {
                shared += u64::from(*length.min(other));
            }
        }
        shared
    }
}

/// Whether contents of these sizes can be as similar as `minimum` at all.
pub(crate) fn can_be_similar(sizes: [u64; 2], minimum: u32) -> bool {
    let (larger, smaller) = (sizes[0].max(sizes[1]), sizes[0].min(sizes[1]));
    let parts = |bytes: u64, of: u32| u128::from(bytes) * u128::from(of);
    smaller > 0 && parts(larger, WHOLE - minimum) >= parts(larger - smaller, WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(old: &[u8], new: &[u8]) -> u32 {
        Fingerprint::of(old).similarity_to(&Fingerprint::of(new)) * 100 / WHOLE
    }

    #[test]
    fn similarity_is_the_part_of_the_larger_that_both_have() {
        for (old, new, expected) in [
            (&b"a\nb\nc\nd\n"[..], &b"a\nb\nc\nd\n"[..], 100),
            (b"a\nb\nc\nd\n", b"d\nc\nb\na\n", 100),
            (b"a\nb\nc\nd\n", b"a\nb\nc\nx\n", 75),
            (b"a\nb\n", b"a\nb\nc\nd\n", 50),
            (b"a\na\na\n", b"a\nb\nb\n", 33),
            (b"a\r\nb\r\n", b"a\nb\n", 66),
            (b"x\n\0a\r\n", b"x\n\0a\n", 33),
            (b"last", b"last\n", 0),
            (b"", b"", 0),
        ] {
            assert_eq!(percent(old, new), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn sizes_that_are_too_far_apart_need_no_look() {
        for (sizes, minimum, expected) in [
            ([100, 50], WHOLE / 2, true),
            ([100, 49], WHOLE / 2, false),
            ([49, 100], WHOLE / 2, false),
            ([75, 100], WHOLE / 4 * 3, true),
            ([74, 100], WHOLE / 4 * 3, false),
            ([0, 0], WHOLE / 2, false),
            ([u64::MAX, u64::MAX - 1], WHOLE / 2, true),
        ] {
            assert_eq!(can_be_similar(sizes, minimum), expected, "{sizes:?}");
        }
    }
}
