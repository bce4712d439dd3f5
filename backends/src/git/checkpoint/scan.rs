//! Finding secret values in the content of files, of any size and in UTF-16 too.

use std::collections::HashSet;
use std::io::{self, Write};

use stillframe_secrets::{Finding, Fingerprint, SecretRules};

/// So much is looked at together, and so much around it: a value that is longer may be cut.
const WINDOW: usize = 8 << 20;
const AROUND: usize = 1 << 20;

/// So much of a line on each side of a value says which line it is.
const CONTEXT: usize = 4096;

/// A value in some content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) rule: String,
    pub(super) fingerprint: Fingerprint,
    /// From 1.
    pub(super) line: u64,
    /// The same for the same value in the same line: by it a line is known to have been there.
    pub(super) key: [u8; 32],
}

/// Looks through content that is written to it.
pub(super) struct Scanner<'r> {
    rules: &'r SecretRules,
    window: usize,
    around: usize,
    /// What is still to be looked at, after `from` bytes that stand before it.
    held: Vec<u8>,
    from: usize,
    /// Which half of a character comes first, if the content begins with a mark that says so.
    order: Option<Order>,
    /// The lines before `held`: as bytes, and as UTF-16.
    lines: [u64; 2],
    hits: Vec<Hit>,
    pub(super) bytes: u64,
}

impl<'r> Scanner<'r> {
    pub(super) fn new(rules: &'r SecretRules) -> Self {
        Self::with_window(rules, WINDOW, AROUND)
    }

    fn with_window(rules: &'r SecretRules, window: usize, around: usize) -> Self {
        Self {
            rules,
            window,
            around,
            held: Vec::new(),
            from: 0,
            order: None,
            lines: [0; 2],
            hits: Vec::new(),
            bytes: 0,
        }
    }

    /// The values in `bytes`, which are all of some content.
    pub(super) fn whole(rules: &'r SecretRules, bytes: Vec<u8>) -> Vec<Hit> {
        let mut scanner = Self::new(rules);
        scanner.held = bytes;
        scanner.finish()
    }

    /// All values, by where they are.
    pub(super) fn finish(mut self) -> Vec<Hit> {
        self.look(usize::MAX);
        self.hits
    }

    /// Finds the values that begin from `from` on and before `until`.
    fn look(&mut self, until: usize) {
        let due = self.from..until;
        let is_due = |at: usize| due.contains(&at);
        let found = self.rules.find(&self.held);
        for found in found.iter().filter(|found| is_due(found.range.start)) {
            let line = self.lines[0] + found.line;
            self.hits.push(hit(&self.held, found, line));
        }
        // UTF-16 of a text in the Latin alphabet has NUL in every second byte.
        if !self.held.contains(&0) {
            return;
        }
        if self.from == 0 {
            self.order = Order::marked(&self.held);
        }
        let narrow = Narrow::of(&self.held, self.order);
        let mut seen = HashSet::new();
        for found in self.rules.find(&narrow.text) {
            let at = narrow.place(found.range.start);
            if is_due(at) && seen.insert((at, found.rule.clone())) {
                let line = self.lines[1] + 1 + wide_lines(&self.held[..at], self.order);
                self.hits.push(hit(&narrow.text, &found, line));
            }
        }
    }
}

impl Write for Scanner<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        while self.held.len() >= self.from + self.window + self.around {
            let until = self.from + self.window;
            self.look(until);
            let gone = until - self.around;
            self.lines[0] += lines(&self.held[..gone]);
            if self.held.contains(&0) {
                self.lines[1] += wide_lines(&self.held[..gone], self.order);
            }
            self.held.drain(..gone);
            self.from = self.around;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn hit(text: &[u8], found: &Finding, line: u64) -> Hit {
    let before = &text[found.range.start.saturating_sub(CONTEXT)..found.range.start];
    let after = &text[found.range.end..text.len().min(found.range.end + CONTEXT)];
    let is_end = |byte: &u8| *byte == b'\n';
    let begin = before.iter().rposition(is_end).map_or(0, |at| at + 1);
    let end = after.iter().position(is_end).unwrap_or(after.len());
    let end = match after[..end] {
        [.., b'\r'] => end - 1,
        _ => end,
    };
    let mut hasher = blake3::Hasher::new();
    for part in [found.rule.as_bytes(), &before[begin..], &after[..end]] {
        hasher
            .update(&(part.len() as u64).to_le_bytes())
            .update(part);
    }
    hasher.update(found.fingerprint.to_string().as_bytes());
    Hit {
        rule: found.rule.clone(),
        fingerprint: found.fingerprint,
        line,
        key: *hasher.finalize().as_bytes(),
    }
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The lines of UTF-16: where its order is not known, by the one that gives more.
fn wide_lines(bytes: &[u8], order: Option<Order>) -> u64 {
    let count = |end: &[u8]| bytes.windows(2).filter(|pair| *pair == end).count() as u64;
    match order {
        Some(Order::LowFirst) => count(b"\n\0"),
        Some(Order::HighFirst) => count(b"\0\n"),
        None => count(b"\n\0").max(count(b"\0\n")),
    }
}

/// Which half of a character of UTF-16 comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    LowFirst,
    HighFirst,
}

impl Order {
    fn marked(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xff, 0xfe, ..] => Some(Self::LowFirst),
            [0xfe, 0xff, ..] => Some(Self::HighFirst),
            _ => None,
        }
    }
}

/// The text that bytes hold as UTF-16 of either order, at any place, as far as it is ASCII.
struct Narrow {
    /// Runs of characters, with a byte after each that is no text.
    text: Vec<u8>,
    /// Where each run begins, in `text` and in the bytes.
    runs: Vec<(usize, usize)>,
}

/// Stands for what is not ASCII.
const OTHER: u8 = 0xff;

impl Narrow {
    fn of(bytes: &[u8], order: Option<Order>) -> Self {
        let mut narrow = Self {
            text: Vec::new(),
            runs: Vec::new(),
        };
        let is_ascii =
            |at: usize| matches!(bytes.get(at), Some(b'\t' | b'\n' | b'\r' | b' '..=b'~'));
        let is_text = |at| is_ascii(at) && bytes.get(at + 1).is_none_or(|byte| *byte == 0);
        let mut at = 0;
        while let Some(zero) = bytes[at..].iter().position(|byte| *byte == 0) {
            let zero = at + zero;
            let begin = match zero.checked_sub(1) {
                Some(begin) if begin >= at && is_text(begin) => begin,
                _ => {
                    at = zero + 1;
                    continue;
                }
            };
            let end = (begin..).step_by(2).find(|at| !is_text(*at));
            let end = end.expect("there is no text beyond the end");
            // Where the high half comes first, the first character may be the low half of one that
            // is not ASCII, and one more belongs to the run that has such a one after it.
            let is_half = begin > 0 && bytes[begin - 1] != 0;
            let has_more = is_ascii(end);
            let low_first = [(begin, end)];
            let high_first = [(
                if is_half { begin + 2 } else { begin },
                if has_more { end + 2 } else { end },
            )];
            let either = [
                (begin, end),
                (begin, high_first[0].1),
                (high_first[0].0, end),
                high_first[0],
            ];
            let runs = match order {
                Some(Order::LowFirst) => &low_first[..],
                Some(Order::HighFirst) => &high_first[..],
                None if is_half || has_more => &either[..],
                None => &low_first[..],
            };
            for (begin, end) in runs {
                narrow.add(bytes, *begin, *end);
            }
            at = end.min(bytes.len());
        }
        narrow
    }

    fn add(&mut self, bytes: &[u8], begin: usize, end: usize) {
        self.runs.push((self.text.len(), begin));
        // The other half of the last one is not of interest.
        let run = bytes.get(begin..(end - 1).min(bytes.len()));
        let run = run.unwrap_or_default();
        self.text.extend(run.iter().step_by(2));
        self.text.push(OTHER);
    }

    /// Where in the bytes a place of the text is.
    fn place(&self, at: usize) -> usize {
        let run = self.runs.partition_point(|(begin, _)| *begin <= at);
        let (text, bytes) = self.runs[run - 1];
        bytes + (at - text) * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "ghp_0123456789abcdefghij";
    const SMALL_WINDOW: usize = 8192;
    const SMALL_AROUND: usize = 1024;

    fn wide(text: &str, is_big: bool) -> Vec<u8> {
        let bytes = |unit: u16| match is_big {
            true => unit.to_be_bytes(),
            false => unit.to_le_bytes(),
        };
        text.encode_utf16().flat_map(bytes).collect()
    }

    fn found(bytes: &[u8]) -> Vec<(u64, Fingerprint)> {
        let hits = Scanner::whole(&SecretRules::new(), bytes.to_vec());
        hits.iter().map(|hit| (hit.line, hit.fingerprint)).collect()
    }

    /// As much larger content is looked through.
    fn in_pieces(bytes: &[u8]) -> Vec<(u64, Fingerprint)> {
        let rules = SecretRules::new();
        let mut scanner = Scanner::with_window(&rules, SMALL_WINDOW, SMALL_AROUND);
        for piece in bytes.chunks(1003) {
            scanner.write_all(piece).unwrap();
        }
        let hits = scanner.finish();
        hits.iter().map(|hit| (hit.line, hit.fingerprint)).collect()
    }

    #[test]
    fn utf_16_of_either_order_is_read_with_and_without_a_mark_and_at_odd_places() {
        let [(line, fingerprint)] = found(format!("one\ntwo {TOKEN}\n").as_bytes())[..] else {
            panic!("it is found");
        };
        assert_eq!(line, 2);
        for is_big in [false, true] {
            for mark in ["", "\u{feff}"] {
                for before in ["one\ntwo ", "eins\r\nzwöi ", "一\n文", "一\n乡", "\n"] {
                    for after in ["", "\n", "文", " and more"] {
                        let text = format!("{mark}{before}{TOKEN}{after}");
                        let bytes = wide(&text, is_big);
                        let expected = [(2, fingerprint)];
                        assert_eq!(found(&bytes), expected, "{is_big} {text:?}");
                        assert_eq!(found(&[b"\x7f", &bytes[..]].concat()), expected, "{text:?}");
                    }
                }
                let glued = format!("{mark}x{TOKEN}");
                assert_eq!(found(&wide(&glued, is_big)), [], "{glued:?}");
            }
        }
        assert_eq!(found(&[0; 1000]), []);
        assert_eq!(found(b"g\0h\0p\0"), []);
    }

    #[test]
    fn content_of_any_size_is_looked_through_once_and_with_its_lines() {
        let line = "some text that is not secret at all\n";
        let filler = |bytes: usize| line.repeat(bytes / line.len());
        for size in [
            SMALL_WINDOW - 50,
            SMALL_WINDOW,
            SMALL_WINDOW + SMALL_AROUND,
            2 * SMALL_WINDOW + 7,
        ] {
            let text = format!(
                "{TOKEN}\n{}{TOKEN}\n{}{TOKEN}",
                filler(size),
                filler(SMALL_AROUND)
            );
            let second = 2 + (size / line.len()) as u64;
            let third = second + 1 + (SMALL_AROUND / line.len()) as u64;
            let lines: Vec<u64> = in_pieces(text.as_bytes()).iter().map(|(l, _)| *l).collect();
            assert_eq!(lines, [1, second, third], "{size}");
        }
        // Wherever a window ends.
        for shift in 0..TOKEN.len() {
            let before = "x".repeat(SMALL_WINDOW - shift - 1);
            let text = format!("{before} {TOKEN} {}", filler(2 * SMALL_AROUND));
            assert_eq!(in_pieces(text.as_bytes()).len(), 1, "{shift}");
            let glued = format!("{before}x{TOKEN} {}", filler(2 * SMALL_AROUND));
            assert_eq!(in_pieces(glued.as_bytes()), [], "{shift}");
        }
        let wide_text = format!("{}{TOKEN}\n{}", filler(SMALL_WINDOW), filler(SMALL_AROUND));
        let line = 1 + (SMALL_WINDOW / line.len()) as u64;
        let found = in_pieces(&wide(&wide_text, false));
        assert_eq!(found.iter().map(|(l, _)| *l).collect::<Vec<_>>(), [line]);
    }

    #[test]
    fn a_line_is_known_again_by_the_value_and_what_stands_around_it() {
        let key = |text: &str| {
            let hits = Scanner::whole(&SecretRules::new(), text.into());
            hits[0].key
        };
        let one = key(&format!("a\nb {TOKEN} c\n"));
        assert_eq!(one, key(&format!("b {TOKEN} c")));
        assert_eq!(one, key(&format!("b {TOKEN} c\r\nd")));
        assert_ne!(one, key(&format!("b {TOKEN} d\n")));
        assert_ne!(one, key(&format!("b {TOKEN}1 c\n")));
    }
}
