//! The element of a NuGet configuration that has a password:
//! `<add key="ClearTextPassword" value="…" />`.

use std::ops::Range;

use crate::hit::run;

/// The values of the element that begins with the `<` at `at`, if its key says that they are
/// passwords.
///
/// It is read as people write it, also inside a string of another language, where quotes and line
/// ends are escaped. The end of the text may cut it off. A `<` ends it: XML has none within a tag,
/// and so no tag is read twice however many are opened.
pub(crate) fn clear_text_passwords(bytes: &[u8], at: usize) -> Vec<Range<usize>> {
    let mut values = Vec::new();
    let mut is_password = false;
    let mut at = at + b"<add".len();
    if skip_blank(bytes, at) == at {
        return values; // an element whose name is longer
    }
    loop {
        let start = skip_blank(bytes, at);
        let end = run(bytes, start, is_name);
        let equals = skip_blank(bytes, end);
        if end == start || bytes.get(equals) != Some(&b'=') {
            break;
        }
        let Some(attribute) = quoted(bytes, skip_blank(bytes, equals + 1)) else {
            break;
        };
        let (name, value) = (&bytes[start..end], attribute.value);
        if name.eq_ignore_ascii_case(b"key") {
            is_password |= bytes[value].eq_ignore_ascii_case(b"ClearTextPassword");
        } else if name.eq_ignore_ascii_case(b"value") && is_secret(&bytes[value.clone()]) {
            values.push(value);
        }
        match attribute.next {
            Some(next) => at = next,
            None => break,
        }
    }
    if !is_password {
        values.clear();
    }
    values
}

/// Where the first element begins that may go on after the end of the text. A `>` within quotes
/// ends none, and neither does a `<`, which a value may have.
pub(crate) fn left_open(bytes: &[u8]) -> Option<usize> {
    let mut rest = 0;
    while let Some(found) = bytes[rest..].iter().position(|byte| *byte == b'<') {
        let at = rest + found;
        rest = at + 1;
        let (name, after) = bytes[at..].split_at(4.min(bytes.len() - at));
        // One whose name is longer is another element.
        if name.eq_ignore_ascii_case(b"<add") && after.first().is_none_or(u8::is_ascii_whitespace) {
            match end_of_tag(after) {
                Some(end) => rest = at + name.len() + end,
                None => return Some(at),
            }
        }
    }
    None
}

/// Where the first `>` is that no quotes are around.
fn end_of_tag(bytes: &[u8]) -> Option<usize> {
    let mut quote = None;
    bytes.iter().position(|byte| {
        match (quote, *byte) {
            (None, b'"' | b'\'') => quote = Some(*byte),
            (Some(open), byte) if open == byte => quote = None,
            (None, b'>') => return true,
            _ => {}
        }
        false
    })
}

/// The place after a quote at `at`, and after the backslashes that escape it.
pub(crate) fn after_quote(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = run(bytes, at, |byte| byte == b'\\');
    matches!(bytes.get(quote), Some(b'"' | b'\'')).then_some(quote + 1)
}

struct Quoted {
    value: Range<usize>,
    /// Where the element goes on; `None` if it does not.
    next: Option<usize>,
}

fn quoted(bytes: &[u8], at: usize) -> Option<Quoted> {
    let start = after_quote(bytes, at)?;
    let quote = bytes[start - 1];
    let end = run(bytes, start, |byte| byte != quote && byte != b'<');
    if bytes.get(end) == Some(&quote) {
        // A quote that is opened by `\"` is closed by `\"`.
        let escapes = bytes[start..end].iter().rev().take(start - 1 - at);
        let escaped = escapes.take_while(|byte| **byte == b'\\').count();
        return Some(Quoted {
            value: start..end - escaped,
            next: Some(end + 1),
        });
    }
    let end = run(bytes, start, |byte| {
        byte != quote && byte != b'\n' && byte != b'\r'
    });
    Some(Quoted {
        value: start..end,
        next: None,
    })
}

/// Whether a value is a password: not empty, and not `%NAME%`, which NuGet replaces by a variable
/// of the environment.
fn is_secret(value: &[u8]) -> bool {
    let is_variable = |name: &[u8]| {
        !name.is_empty()
            && name
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    };
    match value {
        [b'%', name @ .., b'%'] => !is_variable(name),
        _ => !value.is_empty(),
    }
}

fn is_name(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !b"=<>/\"'\\".contains(&byte)
}

/// The place after white space at `at`, which may be escaped as in `\n`.
fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = run(bytes, at, |byte| byte.is_ascii_whitespace());
        let letter = run(bytes, at, |byte| byte == b'\\');
        if letter == at || !matches!(bytes.get(letter), Some(b'n' | b'r' | b't')) {
            return at;
        }
        at = letter + 1;
    }
}
