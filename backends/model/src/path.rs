//! Paths relative to a workspace, as raw bytes.

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path below a workspace: `/` between names, raw bytes, never absolute.
///
/// No component is empty, `.` or `..`, and none holds a NUL byte; the workspace itself is the empty
/// path. Paths are ordered by their bytes. In JSON a path is a string, or `{"base64": "…"}` where
/// it is not UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelPath(Vec<u8>);

/// Why some bytes are no [`RelPath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{path}\" is not a path below the workspace: {reason}")]
pub struct InvalidPath {
    /// The path, as [`printable_name`] renders it.
    pub path: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl RelPath {
    /// The workspace itself.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// Checks `bytes`; accepts what this type promises and nothing else, so it repairs nothing.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, InvalidPath> {
        let bytes = bytes.into();
        Self::check(&bytes)?;
        Ok(Self(bytes))
    }

    /// Whether [`RelPath::new`] takes `bytes`.
    pub fn check(bytes: &[u8]) -> Result<(), InvalidPath> {
        match defect(bytes) {
            None => Ok(()),
            Some(reason) => Err(InvalidPath {
                path: printable_name(bytes),
                reason,
            }),
        }
    }

    /// Reads a path that a person typed: `./a`, `a//b` and `a/` are taken for what they mean.
    ///
    /// `..` and absolute paths are refused: what they mean depends on links.
    pub fn from_user(text: &OsStr) -> Result<Self, InvalidPath> {
        let bytes = text.as_bytes();
        if bytes.first() == Some(&b'/') {
            return Err(InvalidPath {
                path: printable_name(bytes),
                reason: "it is absolute",
            });
        }
        let names: Vec<&[u8]> = bytes
            .split(|b| *b == b'/')
            .filter(|n| !n.is_empty() && *n != b".")
            .collect();
        Self::new(names.join(&b'/')).map_err(|e| InvalidPath {
            path: printable_name(bytes),
            ..e
        })
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same bytes as a relative path of the operating system.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Whether this is the workspace itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of `name` in this directory. `name` must be a single component.
    pub fn join(&self, name: &[u8]) -> Self {
        debug_assert!(!name.is_empty() && !name.contains(&b'/'), "one component");
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self(bytes)
    }

    /// The directory that holds this path; `None` for the workspace itself.
    pub fn parent(&self) -> Option<Self> {
        match self.is_root() {
            true => None,
            false => Some(Self(self.parent_bytes().to_vec())),
        }
    }

    /// The bytes of [`Self::parent`]; none for the workspace itself.
    pub fn parent_bytes(&self) -> &[u8] {
        let end = self.0.iter().rposition(|b| *b == b'/').unwrap_or(0);
        &self.0[..end]
    }

    /// The last component; empty for the workspace itself.
    pub fn name(&self) -> &[u8] {
        let start = self
            .0
            .iter()
            .rposition(|b| *b == b'/')
            .map_or(0, |at| at + 1);
        &self.0[start..]
    }

    /// The components, from the top down.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|name| !name.is_empty())
    }

    /// Whether this path is `ancestor` or lies below it.
    pub fn starts_with(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || (self.0.starts_with(&ancestor.0)
                && matches!(self.0.get(ancestor.0.len()), None | Some(b'/')))
    }
}

fn defect(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return None;
    }
    if bytes[0] == b'/' {
        return Some("it is absolute");
    }
    if bytes.contains(&0) {
        return Some("it holds a NUL byte");
    }
    bytes.split(|b| *b == b'/').find_map(|name| match name {
        b"" => Some("a component is empty"),
        b"." => Some("a component is \".\""),
        b".." => Some("a component is \"..\""),
        _ => None,
    })
}

/// Renders text for people: valid UTF-8 as it is, but control and bidirectional characters, and
/// whatever is not UTF-8, escaped. A terminal that shows it executes nothing.
///
/// Text that was rendered stays as it is, so whole messages may pass twice. For a name of its own
/// take [`printable_name`], which can be read back.
pub fn printable_bytes(bytes: &[u8]) -> String {
    rendered(bytes, |_| false)
}

/// Renders a name for people: as [`printable_bytes`], with backslashes escaped too, so that no two
/// names look alike and the bytes can be read back.
///
/// The escapes are `\\`, `\n`, `\r`, `\t`, `\u{…}` with the hexadecimal number of a character, and
/// `\x…` with two hexadecimal digits for a byte that is not UTF-8.
pub fn printable_name(bytes: &[u8]) -> String {
    rendered(bytes, |c| c == '\\')
}

fn rendered(bytes: &[u8], is_escaped_too: fn(char) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}'
                | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if c.is_control() || is_bidi || is_escaped_too(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

impl Borrow<[u8]> for RelPath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", printable_name(&self.0).replace('"', "\\\""))
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            f.write_str(".")
        } else {
            f.write_str(&printable_name(&self.0))
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathForm {
    Text(String),
    Bytes { base64: String },
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        serialize_lossless(&self.0, serializer)
    }
}

/// Writes bytes as a JSON string, or as `{"base64": "…"}` where they are not UTF-8.
pub fn serialize_lossless<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serializer.serialize_str(text),
        Err(_) => PathForm::Bytes {
            base64: BASE64.encode(bytes),
        }
        .serialize(serializer),
    }
}

/// Reads what [`serialize_lossless`] wrote.
pub fn deserialize_lossless<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u8>, D::Error> {
    match PathForm::deserialize(deserializer)? {
        PathForm::Text(text) => Ok(text.into_bytes()),
        PathForm::Bytes { base64 } => BASE64
            .decode(base64.as_bytes())
            .map_err(|_| serde::de::Error::custom("the base64 text is malformed")),
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = if deserializer.is_human_readable() {
            deserialize_lossless(deserializer)?
        } else {
            Vec::<u8>::deserialize(deserializer)?
        };
        Self::new(bytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an escaped name back, knowing the escapes that the documents promise and no others.
    fn read_back(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            if c != '\\' {
                bytes.extend_from_slice(c.to_string().as_bytes());
                continue;
            }
            let escape = rest
                .chars()
                .next()
                .expect("an escape has a second character");
            rest = &rest[1..];
            match escape {
                '\\' => bytes.push(b'\\'),
                'n' => bytes.push(b'\n'),
                'r' => bytes.push(b'\r'),
                't' => bytes.push(b'\t'),
                'x' => {
                    bytes.push(u8::from_str_radix(&rest[..2], 16).expect("two digits"));
                    rest = &rest[2..];
                }
                'u' => {
                    let end = rest.find('}').expect("a brace closes it");
                    let number = u32::from_str_radix(&rest[1..end], 16).expect("a number");
                    let c = char::from_u32(number).expect("a character");
                    bytes.extend_from_slice(c.to_string().as_bytes());
                    rest = &rest[end + 1..];
                }
                other => panic!("\\{other} is no escape"),
            }
        }
        bytes
    }

    #[test]
    fn a_printed_name_can_be_read_back() {
        for (name, printed) in [
            (&b"plain name.c"[..], "plain name.c"),
            (b"a\nb", "a\\nb"),
            (b"a\\nb", "a\\\\nb"),
            (b"a\\\nb", "a\\\\\\nb"),
            (b"\\x1b", "\\\\x1b"),
            (b"\x1b[2J", "\\u{1b}[2J"),
            (b"\xff\\xff", "\\xff\\\\xff"),
            ("ä\u{202e}\u{7f}'\"".as_bytes(), "ä\\u{202e}\\u{7f}'\""),
        ] {
            assert_eq!(printable_name(name), printed);
            assert_eq!(read_back(printed), name);
        }
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(read_back(&printable_name(&all)), all);
    }

    #[test]
    fn text_that_was_rendered_stays_as_it_is() {
        for text in ["a\nb\\c\u{202e}", "C:\\dir"] {
            let once = printable_bytes(text.as_bytes());
            assert_eq!(printable_bytes(once.as_bytes()), once);
        }
        let name = printable_name(b"a\\b\n");
        assert_eq!(
            printable_bytes(name.as_bytes()),
            name,
            "also within a message"
        );
    }

    #[test]
    fn a_quoted_path_is_escaped_once() {
        let path = RelPath::new(*b"a\\b\n\"c").expect("it is valid");
        assert_eq!(format!("{path:?}"), r#""a\\b\n\"c""#);
        let error = RelPath::new(*b"/a\n").expect_err("it is absolute");
        assert!(error.to_string().starts_with(r#""/a\n" is"#), "{error}");
    }
}
