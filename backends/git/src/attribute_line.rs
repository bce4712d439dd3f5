//! The lines of attribute files, as gitattributes(5) has them.

use crate::path_pattern::{PathPattern, until_nul};
use crate::quoted::unquoted;

/// A line that gives attributes.
#[derive(Debug)]
pub struct AttributeLine<'a> {
    /// What it gives them to.
    pub subject: Subject,
    attributes: &'a [u8],
    /// How many bytes the line has, as git counts them: up to its end, or a NUL.
    pub len: usize,
}

/// What a line gives attributes to.
#[derive(Debug)]
pub enum Subject {
    /// The files that the pattern matches.
    Files(PathPattern),
    /// The macro of this name.
    Macro(Vec<u8>),
}

/// What a line says of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `name`
    True,
    /// `-name`
    False,
    /// `!name`: as if no line named it.
    Unset,
    /// `name=text`
    Text(Vec<u8>),
}

/// Reads the text of an attribute file. A line that can match no file is left out.
pub fn lines(text: &[u8]) -> impl Iterator<Item = AttributeLine<'_>> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.split(|b| *b == b'\n').filter_map(AttributeLine::parse)
}

impl<'a> AttributeLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = until_nul(line.strip_suffix(b"\r").unwrap_or(line));
        let len = line.len();
        let line = without_leading_blanks(line);
        if line.is_empty() || line.starts_with(b"#") {
            return None;
        }
        let (name, attributes) = unquoted(line).unwrap_or_else(|| {
            let (name, rest) = word(line);
            (name.to_vec(), rest)
        });
        let subject = match name.strip_prefix(b"[attr]") {
            Some(name) if !name.is_empty() => {
                Subject::Macro(word(without_leading_blanks(name)).0.to_vec())
            }
            // git takes no negative pattern here, and no file is a directory.
            _ => Subject::Files(
                PathPattern::parse(&name).filter(|p| !p.is_negated() && !p.directories_only())?,
            ),
        };
        Some(Self {
            subject,
            attributes,
            len,
        })
    }

    /// Its attributes in order, each with what the line says of it. A name may be malformed.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a [u8], Value)> {
        let mut text = self.attributes;
        std::iter::from_fn(move || {
            let (attribute, rest) = word(without_leading_blanks(text));
            text = rest;
            let (name, value) = match attribute.iter().position(|b| *b == b'=') {
                None if attribute.is_empty() => return None,
                None => (attribute, Value::True),
                Some(at) => (&attribute[..at], Value::Text(attribute[at + 1..].to_vec())),
            };
            // What is taken back has no value, whatever is written behind it.
            Some(match name {
                [b'-', name @ ..] => (name, Value::False),
                [b'!', name @ ..] => (name, Value::Unset),
                _ => (name, value),
            })
        })
    }
}

fn without_leading_blanks(text: &[u8]) -> &[u8] {
    let start = text.iter().take_while(|b| is_blank(b)).count();
    &text[start..]
}

/// The text up to the first blank, and the rest.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(is_blank).unwrap_or(text.len());
    text.split_at(end)
}

pub(crate) fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}
