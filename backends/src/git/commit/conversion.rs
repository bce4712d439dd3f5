//! How git converts a file's bytes before it stores them, where no program is needed: line ends,
//! `$Id$`, and encodings that take no table. The rules are those of gitattributes(5), "text",
//! "ident" and "working-tree-encoding", and of `core.autocrlf`.

use std::borrow::Cow;

use super::attribute_values::AttributeValues;
use super::encoding::Encoding;
use crate::git::ObjectId;
use crate::git::attribute_line::Value;
use crate::git::repository::Settings;

/// What the attributes of a path and the configuration ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::git) struct Conversion {
    pub(super) lines: LineEnds,
    /// Whether lines end in CRLF in the work tree.
    writes_crlf: bool,
    /// `$Id: …$` becomes `$Id$`.
    is_ident: bool,
    /// The encoding that the file has and what is stored has not.
    pub(super) encoding: Option<Encoding>,
    /// The filter, or the encoding, that it takes a program or a table for.
    pub(in crate::git) unsupported: Option<String>,
}

/// What becomes of line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineEnds {
    AsIs,
    /// CRLF becomes LF.
    Text,
    /// As [`LineEnds::Text`], if it is a text, and git has no text with CRLF for it by now.
    Auto,
}

impl Conversion {
    pub(super) fn of(attributes: &AttributeValues, settings: &Settings) -> Self {
        let named = match attributes.get(b"working-tree-encoding") {
            Some(Value::Text(name)) if !is_utf_8(name) => Some(name),
            _ => None,
        };
        let encoding = named.and_then(|name| Encoding::named(name));
        let by_encoding = named.filter(|_| encoding.is_none());
        let by_encoding = by_encoding.map(|name| called(name));
        let by_filter = match attributes.get(b"filter") {
            Some(Value::Text(filter)) => {
                Some(format!("the filter {}", String::from_utf8_lossy(filter)))
            }
            _ => None,
        };
        Self {
            lines: LineEnds::of(attributes, settings),
            writes_crlf: writes_crlf(attributes, settings),
            is_ident: attributes.get(b"ident") == Some(&Value::True),
            encoding,
            unsupported: by_filter.or(by_encoding),
        }
    }

    /// Whether every file stays as it is.
    pub(super) fn is_nothing(&self) -> bool {
        self.lines == LineEnds::AsIs
            && !self.is_ident
            && self.encoding.is_none()
            && self.unsupported.is_none()
    }

    /// Whether every file is written as it is stored, as far as it takes no program.
    pub(in crate::git) fn writes_as_stored(&self) -> bool {
        !self.writes_crlf && !self.is_ident && self.encoding.is_none()
    }

    /// Whether its filter is that of git-lfs.
    pub(in crate::git) fn is_large_file_storage(&self) -> bool {
        self.unsupported.as_deref() == Some("the filter lfs")
    }

    /// What git writes into the work tree for the blob `id`, which has these bytes.
    pub(in crate::git) fn to_worktree(&self, bytes: &[u8], id: ObjectId) -> Vec<u8> {
        let mut converted = match self.is_ident {
            true => with_ids(bytes, &id.to_string()),
            false => bytes.to_vec(),
        };
        if self.writes_crlf && may_get_crlf(&converted, self.lines) {
            converted = with_crlf(&converted);
        }
        let encoded = self
            .encoding
            .and_then(|encoding| encoding.encoded(&converted));
        encoded.unwrap_or(converted)
    }

    /// What git stores for `bytes`; `None`: they do not have the encoding of the file, and git
    /// refuses to store them. `has_crlf` says whether what git has for the path now is a text with
    /// CRLF; it is asked only where that matters.
    pub(super) fn to_git<'b, E>(
        &self,
        bytes: &'b [u8],
        has_crlf: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Option<Cow<'b, [u8]>>, E> {
        let mut converted = Cow::Borrowed(bytes);
        if let Some(encoding) = self.encoding {
            let Some(decoded) = encoding.decoded(bytes) else {
                return Ok(None);
            };
            converted = Cow::Owned(decoded);
        }
        let text = &*converted;
        let converts = match self.lines {
            LineEnds::AsIs => false,
            LineEnds::Text => contains_crlf(text),
            LineEnds::Auto => contains_crlf(text) && is_text(text) && !has_crlf()?,
        };
        if converts {
            converted = Cow::Owned(with_lf(text));
        }
        if self.is_ident
            && let Some(without) = without_ids(&converted)
        {
            converted = Cow::Owned(without);
        }
        Ok(Some(converted))
    }
}

impl LineEnds {
    fn of(attributes: &AttributeValues, settings: &Settings) -> Self {
        let asked = |name: &[u8]| match attributes.get(name)? {
            Value::True => Some(Self::Text),
            Value::False => Some(Self::AsIs),
            Value::Text(text) if text == b"input" => Some(Self::Text),
            Value::Text(text) if text == b"auto" => Some(Self::Auto),
            Value::Unset | Value::Text(_) => None,
        };
        let has_eol = matches!(
            attributes.get(b"eol"),
            Some(Value::Text(text)) if text == b"lf" || text == b"crlf"
        );
        match asked(b"text").or_else(|| asked(b"crlf")) {
            Some(lines) => lines,
            None if has_eol => Self::Text,
            None => {
                let autocrlf = settings.get("core", "autocrlf");
                let is_input = autocrlf.is_some_and(|v| v.eq_ignore_ascii_case(b"input"));
                match is_input || settings.is_on("core", "autocrlf") == Some(true) {
                    true => Self::Auto,
                    false => Self::AsIs,
                }
            }
        }
    }
}

/// Whether lines end in CRLF in the work tree (`output_eol` in git's convert.c).
fn writes_crlf(attributes: &AttributeValues, settings: &Settings) -> bool {
    let is = |name: &[u8], wanted: &[u8]| matches!(attributes.get(name), Some(Value::Text(text)) if text == wanted);
    // Anything else is as if it were not there.
    let is_asked = |name: &&[u8]| {
        let named = [&b"input"[..], b"auto"].iter().any(|word| is(name, word));
        named || matches!(attributes.get(name), Some(Value::True | Value::False))
    };
    let asked = [&b"text"[..], b"crlf"].into_iter().find(is_asked);
    let is_off = asked.is_some_and(|name| attributes.get(name) == Some(&Value::False));
    if is_off || is(b"eol", b"lf") {
        return false;
    }
    if is(b"eol", b"crlf") {
        return true;
    }
    let autocrlf = settings.get("core", "autocrlf");
    let is_input = autocrlf.is_some_and(|v| v.eq_ignore_ascii_case(b"input"));
    let is_on = !is_input && settings.is_on("core", "autocrlf") == Some(true);
    match asked {
        Some(name) if is(name, b"input") => false,
        Some(_) => {
            let eol = settings.get("core", "eol");
            let eol_is_crlf = eol.is_some_and(|v| v.eq_ignore_ascii_case(b"crlf"));
            is_on || (eol_is_crlf && !is_input)
        }
        None => is_on,
    }
}

/// Whether git gives the bytes of a text that it has stored CRLF. Where it guesses, one that has
/// some CR already is left alone, and so is what is no text.
fn may_get_crlf(bytes: &[u8], lines: LineEnds) -> bool {
    lines != LineEnds::Auto || (!bytes.contains(&b'\r') && is_text(bytes))
}

/// The bytes with CRLF for each LF that has none.
fn with_crlf(bytes: &[u8]) -> Vec<u8> {
    let mut converted = Vec::with_capacity(bytes.len() + bytes.len() / 16);
    let mut before = 0;
    for byte in bytes {
        if *byte == b'\n' && before != b'\r' {
            converted.push(b'\r');
        }
        converted.push(*byte);
        before = *byte;
    }
    converted
}

/// The bytes with `$Id: <id> $` in place of `$Id$` and `$Id: …$`. One with blanks within is another
/// system's, and stays.
fn with_ids(bytes: &[u8], id: &str) -> Vec<u8> {
    let mut converted = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(dollar) = rest.iter().position(|b| *b == b'$') {
        let (before, after) = rest.split_at(dollar + 1);
        converted.extend_from_slice(before);
        rest = after;
        let Some(after) = rest.strip_prefix(b"Id") else {
            continue;
        };
        let after = match after.first() {
            Some(b'$') => &after[1..],
            Some(b':') => {
                let Some(end) = after.iter().position(|b| *b == b'$') else {
                    break;
                };
                let within = &after[1..end];
                let blank = within.iter().skip(1).position(|b| *b == b' ');
                let is_foreign = blank.is_some_and(|at| at + 2 < within.len());
                if within.contains(&b'\n') || is_foreign {
                    continue;
                }
                &after[end + 1..]
            }
            _ => continue,
        };
        converted.extend_from_slice(format!("Id: {id} $").as_bytes());
        rest = after;
    }
    converted.extend_from_slice(rest);
    converted
}

/// Whether these bytes are a text with CRLF, as git judges what it has stored for a path.
pub(super) fn is_text_with_crlf(bytes: &[u8]) -> bool {
    contains_crlf(bytes) && is_text(bytes)
}

/// An encoding, for people.
fn called(name: &[u8]) -> String {
    format!("the encoding {}", String::from_utf8_lossy(name))
}

fn is_utf_8(encoding: &[u8]) -> bool {
    encoding.eq_ignore_ascii_case(b"utf-8") || encoding.eq_ignore_ascii_case(b"utf8")
}

fn contains_crlf(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\r\n")
}

/// Whether git takes the bytes for text: there is no NUL and no lone CR, and not more than one odd
/// byte for 128 others.
fn is_text(bytes: &[u8]) -> bool {
    let (mut printable, mut odd) = (0_usize, 0_usize);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if bytes.get(at + 1) != Some(&b'\n') => return false,
            b'\r' | b'\n' => {}
            0 => return false,
            0x08 | b'\t' | 0x1b | 0x0c => printable += 1,
            0x7f | 0..0x20 => odd += 1,
            _ => printable += 1,
        }
    }
    // What ends a file on DOS.
    if bytes.last() == Some(&0x1a) {
        odd -= 1;
    }
    printable >> 7 >= odd
}

fn with_lf(bytes: &[u8]) -> Vec<u8> {
    let mut converted = Vec::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        if *byte != b'\r' || bytes.get(at + 1) != Some(&b'\n') {
            converted.push(*byte);
        }
    }
    converted
}

/// The bytes with `$Id$` in place of `$Id: …$`; `None` if there is none of these.
fn without_ids(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut converted = Vec::new();
    let mut has_any = false;
    let mut rest = bytes;
    while let Some(dollar) = rest.iter().position(|b| *b == b'$') {
        let (before, after) = rest.split_at(dollar + 1);
        converted.extend_from_slice(before);
        rest = after;
        let Some(id) = rest.strip_prefix(b"Id:") else {
            continue;
        };
        let Some(end) = id.iter().position(|b| *b == b'$') else {
            break;
        };
        if id[..end].contains(&b'\n') {
            continue;
        }
        converted.extend_from_slice(b"Id$");
        rest = &id[end + 1..];
        has_any = true;
    }
    converted.extend_from_slice(rest);
    has_any.then_some(converted)
}
