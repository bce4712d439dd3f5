//! The marks that stand for values that were taken out: `[redacted:RULE]`, and `[redacted:RULE:2]`
//! where one name must differ from another.

use std::ops::Range;

use regex_automata::{Match, meta};

const CLOSING: u8 = b']';
/// A name has 64 bytes at most, and a number with its colon 6.
const MAX_INSIDE: usize = 71;

/// The mark for a value of `rule`. From the second on of those that must differ it has a number.
pub(crate) fn mark(rule: &str, number: u32) -> String {
    match number {
        0 | 1 => format!("[redacted:{rule}]"),
        _ => format!("[redacted:{rule}:{number}]"),
    }
}

/// What every mark begins with.
pub(crate) fn openings() -> meta::Regex {
    crate::rule::literals(r"\[redacted:")
}

/// The places of all marks in `bytes`, in their order.
///
/// A mark names a rule that `is_known`. Otherwise anybody could hide a token in brackets.
pub(crate) fn find(
    openings: &meta::Regex,
    bytes: &[u8],
    is_known: impl Fn(&[u8]) -> bool,
) -> Vec<Range<usize>> {
    let mark_at = |opening: Match| {
        let rest = &bytes[opening.end()..];
        let inside = rest.iter().take(MAX_INSIDE);
        let len = inside.take_while(|byte| **byte != CLOSING).count();
        let is_mark = rest.get(len) == Some(&CLOSING) && is_known(without_number(&rest[..len]));
        is_mark.then(|| opening.start()..opening.end() + len + 1)
    };
    openings.find_iter(bytes).filter_map(mark_at).collect()
}

fn without_number(inside: &[u8]) -> &[u8] {
    let colon = inside.iter().position(|byte| *byte == b':');
    match colon.map(|colon| inside.split_at(colon)) {
        Some((name, [_, digits @ ..])) if is_number(digits) => name,
        _ => inside,
    }
}

/// Whether a mark has such a number. A longer one may be a value itself.
fn is_number(digits: &[u8]) -> bool {
    let is_counted = !matches!(digits, [] | [b'0', ..] | b"1");
    is_counted && digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit)
}

/// Whether every byte of `range` is in one of `marks`.
pub(crate) fn cover(marks: &[Range<usize>], range: &Range<usize>) -> bool {
    let mut at = range.start;
    let first = marks.partition_point(|mark| mark.end <= at);
    for mark in &marks[first..] {
        if at >= range.end || mark.start > at {
            break;
        }
        at = mark.end;
    }
    at >= range.end
}

/// `range`, and all of each mark that it touches.
pub(crate) fn widen(marks: &[Range<usize>], range: &Range<usize>) -> Range<usize> {
    let first = marks.partition_point(|mark| mark.end <= range.start);
    let touched = marks[first..]
        .iter()
        .take_while(|mark| mark.start < range.end);
    touched.fold(range.clone(), |wide, mark| {
        wide.start.min(mark.start)..wide.end.max(mark.end)
    })
}
