//! The built-in rules. Each is found by how it begins, in one pass for all, and then read by hand.
//!
//! All of it takes time in proportion to the text: what a rule has read is not read by it again.

use std::ops::Range;

use regex_automata::meta;

use crate::add_element;
use crate::hit::{Hit, run};

/// The names of the rules, by their index.
pub(crate) const FAMILIES: [&str; 7] = [
    "nuget_password",
    "npm_token",
    "anthropic_key",
    "openai_key",
    "github_token",
    "gitlab_token",
    "jwt",
];

const NUGET: usize = 0;
const NPM: usize = 1;
const ANTHROPIC: usize = 2;
const OPENAI: usize = 3;
const GITHUB: usize = 4;
const GITLAB: usize = 5;
const JWT: usize = 6;

const NPM_KEY: &[u8] = b"_authToken";

pub(crate) fn beginnings() -> meta::Regex {
    crate::rule::literals("<[Aa][Dd][Dd]|_authToken|sk-|ghp_|glpat-|eyJ")
}

/// Whether `tail` ends with a part of a beginning.
pub(crate) fn may_begin_at_end(tail: &[u8]) -> bool {
    let ends_with_part = |beginning: &&str| {
        let parts = (1..beginning.len()).map(|len| &beginning.as_bytes()[..len]);
        let ends_with = |part: &[u8]| {
            let start = tail.len().checked_sub(part.len());
            start.is_some_and(|start| tail[start..].eq_ignore_ascii_case(part))
        };
        parts.into_iter().any(ends_with)
    };
    ["<add", "_authToken", "sk-", "ghp_", "glpat-", "eyJ"]
        .iter()
        .any(ends_with_part)
}

/// Where something begins at the end of `text` that white space does not end: an element, or a key
/// with its value to come.
pub(crate) fn left_open(text: &str) -> Option<usize> {
    let element = add_element::left_open(text.as_bytes());
    let key = text.rfind("_authToken").filter(|at| {
        let after = &text[at + NPM_KEY.len()..];
        let value = after.trim_start_matches([' ', '\t', '=', '\\', '"', '\'']);
        !value.contains(|c: char| c.is_ascii_whitespace()) && !after.contains(['\n', '\r'])
    });
    [element, key].into_iter().flatten().min()
}

/// The values in `bytes`, in no order.
pub(crate) fn hits(beginnings: &meta::Regex, bytes: &[u8]) -> Vec<Hit> {
    let mut scan = Scan {
        bytes,
        read_to: [0; FAMILIES.len()],
        hits: Vec::new(),
    };
    for found in beginnings.find_iter(bytes) {
        let at = found.start();
        match bytes[at] {
            b'<' => scan.nuget(at),
            b'_' => scan.npm(at),
            b's' => scan.key(at),
            b'e' => scan.jwt(at),
            _ if bytes[at..].starts_with(b"ghp_") => {
                scan.word(GITHUB, at, b"ghp_", 20, |byte| byte.is_ascii_alphanumeric());
            }
            _ => scan.word(GITLAB, at, b"glpat-", 20, is_base64url),
        }
    }
    scan.hits
}

struct Scan<'a> {
    bytes: &'a [u8],
    /// By rule: what begins before this place was read.
    read_to: [usize; FAMILIES.len()],
    hits: Vec<Hit>,
}

impl Scan<'_> {
    fn push(&mut self, rule: usize, range: Range<usize>) {
        self.hits.push(Hit { rule, range });
    }

    /// A word that is `prefix` and at least `least` bytes that `is_part` accepts.
    fn word(
        &mut self,
        rule: usize,
        at: usize,
        prefix: &[u8],
        least: usize,
        is_part: fn(u8) -> bool,
    ) {
        if at < self.read_to[rule] || !begins_word(&self.bytes[..at]) {
            return;
        }
        let start = at + prefix.len();
        let end = run(self.bytes, start, is_part);
        if end - start >= least {
            self.read_to[rule] = end;
            self.push(rule, at..end);
        }
    }

    /// Both rules whose values begin with `sk-`. One value is reported once, by the narrower rule.
    fn key(&mut self, at: usize) {
        if at < self.read_to[ANTHROPIC] {
            return;
        }
        let found = self.hits.len();
        for prefix in [b"sk-ant-oat", b"sk-ant-api"] {
            if self.bytes[at..].starts_with(prefix) {
                self.word(ANTHROPIC, at, prefix, 8, is_base64url);
            }
        }
        if self.hits.len() == found {
            self.word(OPENAI, at, b"sk-", 20, is_base64url);
        }
    }

    fn npm(&mut self, at: usize) {
        if at < self.read_to[NPM] {
            return;
        }
        let is_space = |byte| byte == b' ' || byte == b'\t';
        let equals = run(self.bytes, at + NPM_KEY.len(), is_space);
        if self.bytes.get(equals) != Some(&b'=') {
            return;
        }
        let quote = run(self.bytes, equals + 1, is_space);
        let start = add_element::after_quote(self.bytes, quote).unwrap_or(quote);
        let end = run(self.bytes, start, |byte| {
            byte.is_ascii_alphanumeric() || b"._-+/=".contains(&byte)
        });
        if end - start >= 16 {
            self.read_to[NPM] = end;
            self.push(NPM, start..end);
        }
    }

    fn jwt(&mut self, at: usize) {
        if at < self.read_to[JWT] {
            return;
        }
        let next_part = |dot: usize| {
            let end = run(self.bytes, dot + 1, is_base64url);
            (self.bytes.get(dot) == Some(&b'.') && end > dot + 1).then_some(end)
        };
        let first_end = run(self.bytes, at, is_base64url);
        let end = next_part(first_end).and_then(next_part);
        // What follows is the same for every beginning within the first part.
        self.read_to[JWT] = first_end;
        if let Some(end) = end {
            self.push(JWT, at..end);
        }
    }

    fn nuget(&mut self, at: usize) {
        for value in add_element::clear_text_passwords(self.bytes, at) {
            self.push(NUGET, value);
        }
    }
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Whether what follows `before` is the start of a word.
fn begins_word(before: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    !before.last().is_some_and(is_word) || ends_escape(before)
}

/// Whether the last bytes are an escape: in source text a letter of it is not one of the value's
/// own text, and a word that follows it starts there.
fn ends_escape(before: &[u8]) -> bool {
    let hex_after = |mark: &[u8], digits: usize| {
        let split = before.len().checked_sub(digits);
        split.is_some_and(|split| {
            before[split..].iter().all(u8::is_ascii_hexdigit) && before[..split].ends_with(mark)
        })
    };
    matches!(before, [.., b'\\', b'n' | b'r' | b't'])
        || hex_after(b"%", 2)
        || hex_after(b"\\x", 2)
        || hex_after(b"\\u", 4)
        || ends_colour(before)
}

/// Whether the last bytes switch a terminal's colour, as `ESC [ 3 1 m` does.
fn ends_colour(before: &[u8]) -> bool {
    let Some(parameters) = before.strip_suffix(b"m") else {
        return false;
    };
    let is_parameter = |byte: &&u8| byte.is_ascii_digit() || **byte == b';';
    let len = parameters
        .iter()
        .rev()
        .take(24)
        .take_while(is_parameter)
        .count();
    let opening = &parameters[..parameters.len() - len];
    let ends_with = |escape: &&[u8]| {
        let start = opening.len().checked_sub(escape.len());
        start.is_some_and(|start| opening[start..].eq_ignore_ascii_case(escape))
    };
    [&b"\x1b["[..], b"\\x1b[", b"\\u001b[", b"\\033[", b"\\e["]
        .iter()
        .any(ends_with)
}
